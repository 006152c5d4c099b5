"""What `switchyard inspect --fidelity` measures of rounding: against logits of `switchyard run`, by
NumPy's arithmetic, and for checkpoints of other families and types."""
import json
import pathlib

import numpy as np
import pytest

from sy_client import MODEL
from sy_cluster import run_tool

CONFIGS = pathlib.Path(__file__).parent.parent / "golden" / "families"
PROMPTS = 4
NAMES = ["as stored", "experts q8", "experts q4", "trunk q8", "trunk q4", "both q8", "both q4",
         "both q8, q8 rows", "both q4, q8 rows", "bf16 rows"]
MEASURES = ["max_relative", "mean_absolute", "kl_mean_nats", "kl_max_nats", "same_argmax",
            "same_experts"]
pytestmark = pytest.mark.asan


def measure(model, *args):
    return json.loads(run_tool("inspect", model, "--fidelity", "--json", *args))["fidelity"]


def rows_of(told):
    return {row["name"]: row for row in told["rows"]}


def synth(out, *args):
    run_tool("synth", "--out", out, *args)
    return out


def splitmix64(counter):
    mask = 2**64 - 1
    z = (counter + 0x9e3779b97f4a7c15) & mask
    z = ((z ^ z >> 30) * 0xbf58476d1ce4e5b9) & mask
    z = ((z ^ z >> 27) * 0x94d049bb133111eb) & mask
    return z ^ z >> 31


def logits_of(tmp_path, vocab, **precision):
    """[PROMPTS,V]: of prompts of one token each, as --fidelity-tokens 1 has them."""
    prompts, out = tmp_path / "prompts", tmp_path / "logits.npy"
    prompts.write_text("".join(json.dumps({"tokens": [splitmix64(i) % vocab]}) + "\n"
                               for i in range(PROMPTS)))
    run_tool("run", "--model", MODEL, "--prompts-file", prompts, "--max-tokens", 1, "--ignore-eos",
             "--json", "--logits-out", out, *(f"--{k}={v}" for k, v in precision.items()))
    return np.load(out).reshape(PROMPTS, vocab).astype(np.float64)


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_every_precision_has_a_row_and_as_stored_differs_by_nothing():
    told = measure(MODEL)
    rows = rows_of(told)
    assert (told["prompts"], told["tokens"], list(rows)) == (PROMPTS, 64, NAMES)
    assert told["notes"] == [] and told["needed_bytes"] > (MODEL / "model.safetensors").stat().st_size
    assert [rows["as stored"][m] for m in MEASURES] == [0, 0, 0, 0, 1, 1]
    for name in NAMES[1:]:
        row = rows[name]
        assert 0 < row["mean_absolute"] and 0 < row["kl_mean_nats"] <= row["kl_max_nats"], name
        assert 0.8 < row["same_argmax"] <= 1 and 0.9 < row["same_experts"] <= 1, name
    assert rows["experts q4"]["trunk"] == {"weights": "as-stored", "activations": "f32"}
    assert rows["experts q4"]["experts"] == {"weights": "q4", "activations": "f32"}
    assert rows["both q8, q8 rows"]["trunk"] == {"weights": "q8", "activations": "q8"}


def test_q8_differs_less_than_q4_and_one_tier_less_than_both():
    rows = rows_of(measure(MODEL, "--fidelity-tokens", 16))
    for part in ("experts", "trunk", "both"):
        for m in ("mean_absolute", "kl_mean_nats"):
            assert 0 < rows[f"{part} q8"][m] < rows[f"{part} q4"][m], (part, m)
    for bits in ("q8", "q4"):
        assert rows[f"experts {bits}"]["mean_absolute"] < rows[f"both {bits}"]["mean_absolute"]


@pytest.mark.parametrize("name, precision", [
    ("both q8", {"weights": "q8"}), ("both q4", {"weights": "q4"}),
    ("both q4, q8 rows", {"weights": "q4", "activations": "q8"}),
    ("bf16 rows", {"weights": "bf16", "activations": "bf16"})])
def test_the_numbers_are_those_of_the_logits_that_run_gives(name, precision, tmp_path):
    vocab = json.loads((MODEL / "config.json").read_text())["vocab_size"]
    want, got = logits_of(tmp_path, vocab), logits_of(tmp_path, vocab, **precision)
    d = np.abs(got - want)
    p, q = log_softmax(want), log_softmax(got)
    kl = (np.exp(p) * (p - q)).sum(-1)
    row = rows_of(measure(MODEL, "--fidelity-tokens", 1))[name]
    for m, value in (("max_relative", (d.max(-1) / np.abs(want).max(-1)).max()),
                     ("mean_absolute", d.mean()), ("kl_mean_nats", kl.mean()),
                     ("kl_max_nats", kl.max()),
                     ("same_argmax", (want.argmax(-1) == got.argmax(-1)).mean())):
        assert row[m] == pytest.approx(value, rel=1e-6, abs=1e-12), m


def test_what_a_checkpoint_cannot_be_held_as_is_said_in_its_row(tmp_path):
    model = synth(tmp_path / "model", "--dtype", "f32")
    rows = rows_of(measure(model, "--fidelity-tokens", 4))
    assert list(rows) == NAMES
    assert "bf16" in rows["bf16 rows"]["error"] and "kl_mean_nats" not in rows["bf16 rows"]
    assert all("error" not in rows[name] for name in NAMES[:-1])
    assert "not measured: " in run_tool("inspect", model, "--fidelity", "--fidelity-tokens", 4)


@pytest.mark.parametrize("config, notes, encoded", [
    ("deepseek_v3_fp8", ["fp8 weights are held as bf16: "], ["experts fp8", "trunk fp8", "both fp8"]),
    ("gpt_oss_mxfp4", ["mxfp4 weights are held as bf16, "], ["experts mxfp4"]),
    ("deepseek_v2_lite", [], [])])
def test_blocks_of_a_checkpoint_have_rows_of_their_own_as_they_are_encoded(config, notes, encoded,
                                                                           tmp_path):
    model = synth(tmp_path / "model", "--config", CONFIGS / f"{config}.json", "--recipe", "vectors")
    told = measure(model, "--fidelity-tokens", 4)
    assert len(told["notes"]) == len(notes)
    assert all(said.startswith(note) for said, note in zip(told["notes"], notes))
    rows = rows_of(told)
    assert list(rows) == NAMES[:1] + encoded + NAMES[1:]
    assert [rows["as stored"][m] for m in MEASURES] == [0, 0, 0, 0, 1, 1]
    assert 0 < rows["both q8"]["mean_absolute"] < rows["both q4"]["mean_absolute"]
    for name in encoded:  # nearer to the files than q8, if not the same sums in another order
        part, weights = name.split()
        assert rows[name]["mean_absolute"] < rows[f"{part} q8"]["mean_absolute"], name
        for tier in ("trunk", "experts"):
            held = weights if part in (tier, "both") else "as-stored"
            assert rows[name][tier]["weights"] == held, (name, tier)


def test_the_table_is_for_people(tmp_path):
    told = run_tool("inspect", MODEL, "--fidelity", "--fidelity-tokens", 2)
    table = told[told.index("\nfidelity "):].splitlines()
    assert "8 positions, 4 prompts of 2 random tokens" in table[1]
    assert [line.strip().startswith(name) for name, line in zip(NAMES, table[4:])] == [True] * 10
    assert max(map(len, table[2:])) <= 100


def test_options_that_make_no_sense_are_refused():
    for args, code, text in ((["--fidelity-tokens", 1025], 1, "the model's context has 1024"),
                             (["--fidelity-tokens", 0], 2, "--fidelity-tokens"),
                             (["--fields", "--devices", "4*1GB"], 2, "leave out --fidelity")):
        done = run_tool("inspect", MODEL, "--fidelity", *args, check=False)
        assert done.returncode == code and text in done.stderr, (args, done.stderr)
