"""Weights held as a checkpoint has them encoded, fp8 or mxfp4: the same bits in one process and over
nodes, also while experts move, close to what they give as bf16, and refused where nothing is so
encoded."""
import functools
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from sy_client import MODEL, same_bits, wait_for
from sy_cluster import run_tool
from test_faults import expect_answers, keep_asking, traffic_passes
from test_live_placement import settle, states, wait_count
from test_precision import refusal_of

CONFIGS = Path(__file__).parent.parent / "golden" / "families"
FAMILIES = {"fp8": "deepseek_v3_fp8", "mxfp4": "gpt_oss_mxfp4"}
SHARDS = {"fp8": 2 * 16, "mxfp4": 3 * 8}
# How far logits may be from those of the weights as bf16, in units of the largest: what bf16 loses
# of fp8 times a factor; nothing of mxfp4, but sums are added up in another order.
TOLERANCE = {"fp8": 2e-2, "mxfp4": 1e-5}
PROMPT = "The quick brown fox"
N_TOKENS = 16


def bend_factors(file):
    """Synthetic factors of fp8 blocks are powers of two, which bf16 would lose nothing by."""
    data = bytearray(file.read_bytes())
    (n,) = struct.unpack("<Q", data[:8])
    for name, tensor in json.loads(data[8:8 + n]).items():
        if not name.endswith("_scale_inv"):
            continue
        begin, end = (8 + n + at for at in tensor["data_offsets"])
        factors = np.frombuffer(data[begin:end], "<f4")
        data[begin:end] = (factors * np.linspace(0.7, 1, len(factors), dtype="<f4")).tobytes()
    file.write_bytes(data)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    @functools.cache
    def make(weights):
        path = tmp_path_factory.mktemp("encoded") / FAMILIES[weights]
        run_tool("synth", "--config", CONFIGS / f"{FAMILIES[weights]}.json", "--recipe", "vectors",
                 "--out", path)
        bend_factors(path / "model.safetensors")
        return path
    return make


@pytest.fixture(scope="module")
def in_process(models, tmp_path_factory):
    """(checkpoint's encoding, --weights, ...) -> (answer of `switchyard run`, logits [N_TOKENS,V])."""
    @functools.cache
    def run(encoding, weights, *more):
        out = tmp_path_factory.mktemp("run") / "logits.npy"
        answer = run_tool("run", "--model", models(encoding), "--prompt", PROMPT, "--max-tokens",
                          N_TOKENS, "--ignore-eos", "--json", "--logits-out", out,
                          f"--weights={weights}", *more)
        return json.loads(answer), np.load(out)
    return run


@pytest.fixture(params=list(FAMILIES))
def encoding(request):
    return request.param


def start(hand, model, *node_options, **aggregator_options):
    cluster = hand()
    cluster.model_name = model.name
    cluster.start_redis()
    for i, options in enumerate(node_options):
        cluster.start("expert", i, model=model, **options)
    cluster.start("router", 0, model=model)
    cluster.start("aggregator", 0, model=model, **aggregator_options)
    return cluster


def ask(cluster):
    with cluster.client() as client:
        return client.generate(PROMPT, max_tokens=N_TOKENS, ignore_eos=True, want_logits=True)


def check_bits(cluster, in_process, encoding):
    answer, logits = in_process(encoding, encoding)
    got = ask(cluster)
    assert got.tokens == answer["tokens"]
    assert same_bits(got.logits, logits)
    assert list(got.finish.policies) == [f"weights={encoding}"]


# ---- one process ----

@pytest.mark.asan
def test_logits_stay_near_those_of_the_weights_as_bf16(in_process, encoding):
    answer, logits = in_process(encoding, encoding)
    _, want = in_process(encoding, "as-stored")
    worst = np.abs(logits[0] - want[0]).max() / np.abs(want[0]).max()
    assert 0 < worst <= TOLERANCE[encoding]
    assert answer["policies"] == [f"weights={encoding}"]


def test_neither_threads_nor_instruction_sets_change_a_bit(in_process, encoding):
    for more in (["--threads=1"], ["--threads=3"], ["--kernels=ref"], ["--kernels=avx2"]):
        answer, logits = in_process(encoding, encoding, *more)
        assert answer["tokens"] == in_process(encoding, encoding)[0]["tokens"], more
        assert same_bits(logits, in_process(encoding, encoding)[1]), more


def test_a_checkpoint_says_what_it_takes_as_it_is_encoded(models, encoding):
    def inspect(model):
        return json.loads(run_tool("inspect", model, "--json"))["weights"]
    told = inspect(models(encoding))
    assert set(told) == {"as-stored", encoding, "q8", "q4"}
    held, plain = told[encoding], told["as-stored"]
    assert held["expert_bytes"] < (0.6 if encoding == "fp8" else 0.4) * plain["expert_bytes"]
    if encoding == "fp8":
        assert held["trunk_bytes"] < plain["trunk_bytes"]
    else:
        assert held["trunk_bytes"] == plain["trunk_bytes"]
    assert set(inspect(MODEL)) == {"as-stored", "q8", "q4"}


@pytest.mark.asan
def test_a_checkpoint_that_is_not_so_encoded_is_refused_with_what_would_do(models, hand):
    cases = [(MODEL, "fp8", "are bf16: use --weights as-stored, q8 or q4"),
             (models("mxfp4"), "fp8", "are mxfp4: use --weights as-stored, mxfp4, q8 or q4")]
    for model, weights, text in cases:
        done = run_tool("run", "--model", model, "--prompt", PROMPT, f"--weights={weights}",
                        check=False)
        assert done.returncode != 0 and text in done.stderr, done.stderr
        cluster = hand()
        cluster.start_redis()
        node = cluster.start("expert", 0, model=model, weights=weights)
        wait_for(lambda: not node.alive(), "the node to give up")
        assert text in node.text()
        del cluster.process["expert-0"]  # it ended as it should: with an error
    done = run_tool("inspect", MODEL, "--devices=2*1GiB", "--weights=fp8", check=False)
    assert done.returncode != 0 and "as-stored, q8 or q4" in done.stderr
    done = run_tool("run", "--model", models("fp8"), "--prompt", PROMPT, "--weights=fp8",
                    "--activations=q8", check=False)
    assert done.returncode == 2 and "weights" in done.stderr


def test_an_aggregator_does_not_wait_for_nodes_that_no_node_can_be(models, hand):
    cases = [(MODEL, "fp8", "are bf16: use --weights as-stored, q8 or q4"),
             (models("fp8"), "mxfp4", "are fp8: use --weights as-stored, fp8, q8 or q4"),
             (models("mxfp4"), "fp8", "are mxfp4: use --weights as-stored, mxfp4, q8 or q4")]
    for model, weights, text in cases:
        cluster = hand()
        cluster.start_redis()
        aggregator = cluster.start("aggregator", 0, model=model, expert_weights=weights)
        assert aggregator.wait() == 2
        assert f"--expert-weights {weights}: " in aggregator.text() and text in aggregator.text()
        del cluster.process["aggregator-0"]  # it ended as it should: with an error


# ---- over nodes ----

@pytest.mark.asan
def test_two_nodes_give_the_bits_of_one_process_also_while_experts_move(hand, models, in_process,
                                                                        encoding):
    node = {"weights": encoding, "linger_s": 0}
    cluster = start(hand, models(encoding), node, {**node, "load_from": "peers"}, weights=encoding)
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    settle(cluster)
    cluster.set_placement({"1/*": "expert-1/cpu:0"})
    per_layer = {"fp8": 16, "mxfp4": 8}[encoding]
    wait_count(cluster, "expert-0", "resident", SHARDS[encoding] - per_layer)
    wait_count(cluster, "expert-1", "resident", per_layer)
    check_bits(cluster, in_process, encoding)
    traffic = keep_asking(cluster, expect_answers(cluster), n_clients=2)
    cluster.set_placement({"*/*": "expert-1/cpu:0"})
    wait_count(cluster, "expert-1", "resident", SHARDS[encoding])
    wait_for(lambda: not states(cluster, "expert-0"), "expert-0 to let go of everything")
    traffic_passes(traffic, 6)
    traffic.stop()
    assert {s["source"] for s in states(cluster, "expert-1").values()} == {"expert-0"}
    check_bits(cluster, in_process, encoding)
    told = cluster.json_of("expert-1", "/shards")
    assert (told["weights"], told["activations"]) == (encoding, "f32")
    n_bytes = json.loads(run_tool("inspect", models(encoding), "--json"))["weights"][encoding]
    held = {s["bytes"] for s in told["shards"]}
    # Panels and biases begin at whole lines of memory.
    assert len(held) == 1 and 0 <= held.pop() - n_bytes["expert_bytes"] < 6 * 64


def test_up_hands_the_encoding_to_nodes_and_aggregators(up, models, in_process):
    check_bits(up(model=models("fp8"), experts=2, weights="fp8"), in_process, "fp8")


def test_experts_alone_may_be_held_as_they_are_encoded(hand, models):
    cluster = start(hand, models("fp8"), {"weights": "fp8"}, expert_weights="fp8")
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    settle(cluster)
    assert list(ask(cluster).finish.policies) == ["expert_weights=fp8"]


def test_a_trunk_alone_may_be_held_as_it_is_encoded(hand, models):
    cluster = start(hand, models("fp8"), {}, weights="fp8", expert_weights="as-stored")
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    settle(cluster)
    assert list(ask(cluster).finish.policies) == ["weights=fp8", "expert_weights=as-stored"]


@pytest.mark.asan
def test_copies_held_otherwise_are_refused_and_not_taken_from_that_node(hand, models):
    cluster = start(hand, models("fp8"), {}, {"weights": "fp8", "load_from": "peers"},
                    weights="fp8")
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    wait_for(lambda: refusal_of(cluster).get("shards_refused") == SHARDS["fp8"],
             "all copies to be refused")
    assert "or are held otherwise (--weights)" in cluster.process["aggregator-0"].text()
    cluster.set_placement({"*/*": "expert-1/cpu:0"})
    wait_count(cluster, "expert-1", "resident", SHARDS["fp8"])
    assert {s["source"] for s in states(cluster, "expert-1").values()} == {"checkpoint"}
    cluster.wait_ready("aggregator-0")
    expect_answers(cluster, n_tokens=4)
