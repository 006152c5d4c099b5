"""Each family's published vector (weights from a counter, logits from transformers' own classes)
through the three tiers: the expected logits, and the bits of one process."""
import json

import numpy as np
import pytest

from sy_client import same_bits
from sy_cluster import run_tool

# ASCII characters: with the synthetic tokenizer a token is a byte, so `run` can be asked the same.
PROMPT = [1, 17, 42, 99]
N_TOKENS = 8
# ids of the published prompt, and its last position's logits 0 to 3 and argmax.
PUBLISHED = [1, 17, 42, 99, 200, 7, 3, 255, 128, 64]
VECTORS = {
    "mixtral": ([1.29304, -1.59335, -0.51380, 2.28850], 147),
    "olmoe": ([1.04429, -2.23449, 0.63137, 1.52692], 175),
    "qwen3_moe": ([0.46023, 0.11915, 0.87895, 1.06997], 207),
}
pytestmark = pytest.mark.sanitize


@pytest.fixture(params=list(VECTORS))
def family(request):
    return request.param


def in_process(directory, out):
    answer = run_tool("run", "--model", directory, "--prompt", bytes(PROMPT).decode(),
                      "--max-tokens", N_TOKENS, "--ignore-eos", "--json", "--logits-out", out)
    return json.loads(answer)["tokens"], np.load(out)


def test_a_family_gives_its_vector_and_the_bits_of_one_process_over_two_nodes(up, family, tmp_path):
    run_tool("synth", "--preset", f"vectors-{family}", "--out", tmp_path / "model")
    logits, argmax = VECTORS[family]
    cluster = up(model=tmp_path / "model", experts=2)
    with cluster.client() as client:
        published = client.generate(PUBLISHED, max_tokens=1, ignore_eos=True, want_logits=True)
        got = client.generate(PROMPT, max_tokens=N_TOKENS, ignore_eos=True, want_logits=True)
    assert np.abs(published.logits[0][:4] - np.array(logits)).max() <= 2e-4
    assert published.tokens == [argmax]
    tokens, want = in_process(tmp_path / "model", tmp_path / "logits.npy")
    assert got.tokens == tokens
    assert same_bits(got.logits, want)
