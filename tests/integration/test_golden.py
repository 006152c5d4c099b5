"""The answers are the reference's, and the same bits however they are computed."""
import functools
import json

import numpy as np
import pytest

from sy_client import Background, SANITIZED, MODEL, request, same_bits
from sy_cluster import run_tool

GOLDEN = sorted((MODEL / "golden").glob("*.json"))
OTHERS = 15
CLUSTERS = ["one_node", "three_nodes", "router_in_process", "two_devices_each"]
pytestmark = pytest.mark.asan
if SANITIZED:
    GOLDEN = GOLDEN[:3]


@functools.cache
def golden(name):
    return json.loads((MODEL / "golden" / f"{name}.json").read_text())


@pytest.fixture(scope="session")
def in_process(tmp_path_factory):
    """name -> (tokens, logits [48,V]) of `switchyard run`."""
    @functools.cache
    def run(name):
        out = tmp_path_factory.mktemp("run") / "logits.npy"
        want = golden(name)
        answer = run_tool("run", "--model", MODEL, "--prompt", want["prompt"], "--max-tokens",
                          len(want["greedy_tokens"]), "--ignore-eos", "--json", "--logits-out", out)
        return json.loads(answer)["tokens"], np.load(out)
    return run


@pytest.fixture(params=CLUSTERS)
def cluster(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=[p.stem for p in GOLDEN])
def name(request):
    return request.param


def check_reference(tokens, logits, want):
    reference = np.array(want["logits_last"])
    worst = np.abs(logits[0] - reference).max() / np.abs(reference).max()
    assert worst <= 1e-3, f"logits differ by {worst} of the largest"
    assert tokens == want["greedy_tokens"]


def ask(client, want):
    return client.generate(want["prompt"], max_tokens=len(want["greedy_tokens"]), ignore_eos=True,
                           want_logits=True)


def test_one_process_gives_the_reference_answer(in_process, name):
    tokens, logits = in_process(name)
    check_reference(tokens, logits, golden(name))


def test_a_cluster_gives_the_reference_answer_and_the_bits_of_one_process(in_process, cluster,
                                                                          name):
    want = golden(name)
    with cluster.client() as client:
        got = ask(client, want)
    assert got.finish.usage.prompt_tokens == len(want["prompt_tokens"])
    check_reference(got.tokens, got.logits, want)
    assert same_bits(got.logits, in_process(name)[1])


def test_token_ids_give_the_bits_of_the_prompt_that_they_spell(one_node, name):
    want = golden(name)
    with one_node.client() as client:
        by_text = ask(client, want)
        by_ids = client.generate(want["prompt_tokens"], max_tokens=len(want["greedy_tokens"]),
                                 ignore_eos=True, want_logits=True)
    assert by_ids.text == by_text.text
    assert same_bits(by_ids.logits, by_text.logits)


@pytest.mark.parametrize("cluster", CLUSTERS[:-1] + [
    pytest.param(CLUSTERS[-1], marks=pytest.mark.sanitize)], indirect=True)
def test_among_fifteen_other_requests_no_bit_changes(in_process, cluster):
    def keep_busy(i, stop):
        prompts = [golden(p.stem)["prompt"] for p in GOLDEN]
        n_tokens = 0
        with cluster.client() as other:
            while not stop.is_set():
                call = other.stub.Generate(request(prompts[i % len(prompts)], max_tokens=600,
                                                   ignore_eos=True, seed=i, sampling=dict(
                                                       temperature=1.0)))
                for reply in call:
                    n_tokens += len(reply.delta.token)
                    if stop.is_set():
                        call.cancel()
                        break
        return n_tokens

    others = Background(OTHERS, keep_busy)
    try:
        with cluster.client() as client:
            for path in GOLDEN:
                want = golden(path.stem)
                got = ask(client, want)
                check_reference(got.tokens, got.logits, want)
                assert same_bits(got.logits, in_process(path.stem)[1]), path.stem
    finally:
        counts = others.stop()
    assert min(counts) > 0, "some of the others never ran"
    cluster.wait_idle()
