"""Each family's published vector (weights from a counter, logits from transformers' own classes)
through the three tiers: the expected logits, and the bits of one process."""
import json
from pathlib import Path

import numpy as np
import pytest

from sy_client import same_bits
from sy_cluster import run_tool
from sy_dense import Model

# ASCII characters: with the synthetic tokenizer a token is a byte, so `run` can be asked the same.
PROMPT = [1, 17, 42, 99]
N_TOKENS = 8
# ids of the published prompt, and its last position's logits 0 to 3 and argmax.
PUBLISHED = [1, 17, 42, 99, 200, 7, 3, 255, 128, 64]
VECTORS = {
    "mixtral": ([1.29304, -1.59335, -0.51380, 2.28850], 147),
    "olmoe": ([1.04429, -2.23449, 0.63137, 1.52692], 175),
    "qwen2_moe": ([0.48789, -3.04103, 0.33380, 0.58357], 249),
    "qwen3_moe": ([0.46023, 0.11915, 0.87895, 1.06997], 207),
    "deepseek_v2_lite": ([2.03738, 0.97525, -2.15820, -1.51287], 138),
    "deepseek_v2": ([1.16302, -0.59821, 0.93184, 1.25161], 190),
    "deepseek_v3": ([-0.19229, 2.49375, -0.67959, -1.25480], 236),
    "granitemoe": ([-0.54857, 0.84257, 1.32694, 0.24458], 64),
    "phimoe": ([2.38311, -2.61042, -0.78038, 1.23347], 114),
    "gpt_oss": ([1.46874, -0.42418, 1.66466, 1.68113], 62),
    "glm4_moe": ([0.20975, 0.09013, 2.05404, -0.57194], 194),
    "llama4_text": ([0.61936, 0.22497, -0.72588, -1.30834], 220),
    "ernie4_5_moe": ([-2.76647, 2.00269, -1.21482, -4.02034], 32),
    "hunyuan_v1_moe": ([2.22685, 9.23495, 0.43639, -6.66408], 159),
    "minimax_m2": ([-0.37071, -0.29278, 1.33905, 1.64830], 162),
}
# Larger logits, larger rounding.
TOLERANCE = {"ernie4_5_moe": 4e-4, "hunyuan_v1_moe": 4e-4}
CONFIGS = Path(__file__).parent.parent / "golden" / "families"
# Those whose forms no other has.
SANITIZED = {"deepseek_v3", "gpt_oss", "llama4_text", "phimoe", "qwen2_moe"}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.asan if name in SANITIZED else ())
                        for name in VECTORS])
def family(request):
    return request.param


def synth(name, out):
    run_tool("synth", "--config", CONFIGS / f"{name}.json", "--recipe", "vectors", "--out", out)


def in_process(directory, out):
    answer = run_tool("run", "--model", directory, "--prompt", bytes(PROMPT).decode(),
                      "--max-tokens", N_TOKENS, "--ignore-eos", "--json", "--logits-out", out)
    return json.loads(answer)["tokens"], np.load(out)


def test_a_family_gives_its_vector_and_the_bits_of_one_process_over_two_nodes(up, family, tmp_path):
    synth(family, tmp_path / "model")
    logits, argmax = VECTORS[family]
    cluster = up(model=tmp_path / "model", experts=2)
    with cluster.client() as client:
        published = client.generate(PUBLISHED, max_tokens=1, ignore_eos=True, want_logits=True)
        got = client.generate(PROMPT, max_tokens=N_TOKENS, ignore_eos=True, want_logits=True)
    assert np.abs(published.logits[0][:4] - np.array(logits)).max() <= TOLERANCE.get(family, 2e-4)
    assert published.tokens == [argmax]
    tokens, want = in_process(tmp_path / "model", tmp_path / "logits.npy")
    assert got.tokens == tokens
    assert same_bits(got.logits, want)


SCALINGS = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": {"rope_type": "llama3", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4,
               "original_max_position_embeddings": 64},
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32},
}
# Far past the 32 tokens that the scalings say the model was trained on.
LONG = "The quick brown fox jumps over the lazy dog; then it jumps back over it, twice."


@pytest.mark.parametrize("scaling", SCALINGS)
def test_stretched_rotations_give_the_logits_of_the_formulas(scaling, tmp_path):
    model = tmp_path / "model"
    synth("qwen3_moe", model)
    config = json.loads((model / "config.json").read_text())
    config["rope_scaling"] = SCALINGS[scaling]
    (model / "config.json").write_text(json.dumps(config))
    reference = Model(model)
    # The reference itself is right about the published vector, which has no scaling.
    if scaling == "default":
        assert np.abs(reference.logits(PUBLISHED)[:4] - np.array(VECTORS["qwen3_moe"][0])).max() < 2e-4
    want = reference.logits(list(LONG.encode()))
    run_tool("run", "--model", model, "--prompt", LONG, "--max-tokens", 1, "--ignore-eos", "--json",
             "--logits-out", tmp_path / "logits.npy")
    got = np.load(tmp_path / "logits.npy")[0]
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
