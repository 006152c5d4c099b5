"""Rows that travel as bf16 (--wire-rows bf16): the same bits over one node and over more, in shared
memory and in messages, near those of fp32, named in replies, and off unless asked for."""
import subprocess

import numpy as np
import pytest

import sy_client
import sy_reference as reference
from sy_client import WAIT_S, array, rows, same_bits
from test_live_placement import settle, start_nodes

N_TOKENS = 24
N_ROWS = 180  # many enough for every message to be worth an area of shared memory
PROMPT = "The quick brown fox jumps over the lazy dog. " * 4
# Of the logits of one step with their like in fp32; every layer rounds what goes in and comes out
# to 8 bits of mantissa.
COSINE_MIN = 0.9999

pytestmark = pytest.mark.asan


def ask(client, n_tokens=N_TOKENS):
    return client.generate(PROMPT, max_tokens=n_tokens, ignore_eos=True, want_logits=True)


def forward(client, layer):
    request = sy_client.pb.ForwardRequest(model="trio", layer=layer,
                                          hidden=rows(reference.hidden(N_ROWS, seed=5)))
    return client.stub.Forward(request, timeout=WAIT_S)


def start(hand, n_nodes, placement=None, **aggregator_options):
    cluster = start_nodes(hand, *[{}] * n_nodes, **aggregator_options)
    cluster.set_placement(placement or cluster.spread(n_nodes))
    settle(cluster)
    return cluster


def taken(cluster, way):
    return cluster.metric("aggregator-0", f'switchyard_rows_total{{way="{way}"}}')


def cosine(a, b):
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    return a @ b / np.sqrt((a @ a) * (b @ b))


@pytest.fixture(scope="module")
def exact(one_node):
    with one_node.client() as client:
        got = ask(client, 1)
        assert not got.finish.policies
        return got.logits, [array(forward(client, layer).output) for layer in range(4)]


def test_neither_nodes_nor_shared_memory_nor_the_gate_change_a_bit_of_bf16_rows(hand, exact):
    ways = [(1, {}), (1, {"shared_memory": "off"}), (2, {}), (2, {"shared_memory": "off"}),
            (2, {"router": "inproc"}), (2, {"overlap_rows": 16, "prompt_rows": 0})]
    want = None
    for n_nodes, options in ways:
        cluster = start(hand, n_nodes, wire_rows="bf16", **options)
        with cluster.client() as client:
            got, layers = ask(client), [forward(client, layer) for layer in range(4)]
        assert list(got.finish.policies) == ["wire_rows=bf16"]
        assert all(list(reply.policies) == ["wire_rows=bf16"] for reply in layers)
        layers = [array(reply.output) for reply in layers]
        if want is None:
            want = got, layers
        assert got.tokens == want[0].tokens, options
        assert same_bits(got.logits, want[0].logits), options
        assert all(same_bits(a, b) for a, b in zip(layers, want[1])), options
        in_messages = options.get("shared_memory") == "off"
        assert (taken(cluster, "shared") > 0) != in_messages
    logits, layers = exact
    assert not same_bits(want[0].logits[:1], logits)
    assert cosine(want[0].logits[:1], logits) > COSINE_MIN
    for layer, (got, fp32) in enumerate(zip(want[1], layers)):
        assert not same_bits(got, fp32)
        # A row whose scores are nearly tied may go to another expert.
        assert np.median([cosine(a, b) for a, b in zip(got, fp32)]) > COSINE_MIN, layer
        assert cosine(got, fp32) > 0.99, layer


def test_copies_for_a_slow_node_give_the_same_bits(hand):
    cluster = hand()
    cluster.start_redis()
    cluster.start("expert", 0, env={"SY_FAULT": "expert.slow:always"})
    cluster.start("expert", 1)
    cluster.start("router", 0)
    cluster.start("aggregator", 0, wire_rows="bf16", hedge_share=1, slow_min_ms=1, slow_max_ms=5)
    cluster.set_placement(cluster.everywhere("expert-0", "expert-1"))
    settle(cluster)
    with cluster.client() as client:
        got = [ask(client) for _ in range(3)]
    assert all(same_bits(g.logits, got[0].logits) for g in got)
    assert cluster.metric("aggregator-0", "switchyard_hedges_total") > 0


def test_f32_by_name_is_what_the_default_does_and_other_types_are_refused(hand, exact):
    cluster = start(hand, 1, wire_rows="f32")
    with cluster.client() as client:
        got = ask(client, 1)
    assert same_bits(got.logits, exact[0]) and not got.finish.policies
    argv = cluster.argv("aggregator", "aggregator-9", **{"wire-rows": "f16"})
    done = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2 and "--wire-rows f16: f32 or bf16" in done.stderr
