"""The tensor methods against NumPy: Forward of the aggregator, Route of the router, Compute and
Watch of the expert nodes."""
import grpc
import numpy as np
import pytest

import sy_client
import sy_reference as reference
from sy_client import WAIT_S, array, channel, error_info, error_of, rows, rows_bf16, same_bits

pytestmark = pytest.mark.sanitize
TOLERANCE = 1e-4


def forward(x, layer=0, **fields):
    hidden = x if not isinstance(x, np.ndarray) else rows(x)
    return sy_client.pb.ForwardRequest(model="trio", layer=layer, hidden=hidden, **fields)


# ---- aggregator ----

@pytest.mark.parametrize("layer", range(4))
@pytest.mark.parametrize("n_rows", [1, 7, 65])
def test_forward_is_the_moe_block(client, layer, n_rows):
    x = reference.hidden(n_rows, seed=layer)
    reply = client.stub.Forward(forward(x, layer), timeout=WAIT_S)
    assert reference.worst(array(reply.output), reference.moe(layer, x)) <= TOLERANCE
    assert reply.placement_hash == client.model().placement_hash


def test_forward_takes_bf16_rows(client):
    x = reference.hidden(9, seed=3)
    narrow = sy_client.widen_bf16(sy_client.bf16_bits(x))
    reply = client.stub.Forward(forward(rows_bf16(x), 2), timeout=WAIT_S)
    assert same_bits(array(reply.output),
                     array(client.stub.Forward(forward(narrow, 2), timeout=WAIT_S).output))
    assert reference.worst(array(reply.output), reference.moe(2, narrow)) <= TOLERANCE


def test_forward_tells_the_experts_it_used(client):
    x = reference.hidden(33, seed=1)
    reply = client.stub.Forward(forward(x, 1, want_routing=True), timeout=WAIT_S)
    ids, weights = reference.route(1, x)
    assert reply.slots == 2
    assert np.array_equal(np.frombuffer(reply.expert, "<u2").reshape(-1, 2), ids)
    assert np.allclose(np.frombuffer(reply.weight, "<f4").reshape(-1, 2), weights, atol=1e-5)


def test_a_row_gives_the_same_bits_alone_and_in_company(client):
    x = reference.hidden(31, seed=5)
    together = array(client.stub.Forward(forward(x, 3), timeout=WAIT_S).output)
    for t in (0, 13, 30):
        alone = array(client.stub.Forward(forward(x[t:t + 1], 3), timeout=WAIT_S).output)
        assert same_bits(alone[0], together[t])


def test_one_node_and_three_nodes_give_the_same_bits(one_node, three_nodes):
    x = reference.hidden(40, seed=6)
    outputs = []
    for cluster in (one_node, three_nodes):
        with cluster.client() as c:
            outputs.append([array(c.stub.Forward(forward(x, layer), timeout=WAIT_S).output)
                            for layer in range(4)])
    assert same_bits(np.array(outputs[0]), np.array(outputs[1]))


def test_a_stream_answers_every_message_by_its_id(client):
    requests = [forward(reference.hidden(1 + i, seed=i), i % 4, id=100 + i) for i in range(12)]
    replies = list(client.stub.ForwardStream(iter(requests), timeout=WAIT_S))
    assert sorted(r.id for r in replies) == list(range(100, 112))
    for reply in replies:
        i = reply.id - 100
        want = reference.moe(i % 4, reference.hidden(1 + i, seed=i))
        assert not reply.HasField("status")
        assert reference.worst(array(reply.output), want) <= TOLERANCE


def test_an_error_of_one_message_does_not_end_the_stream(client):
    x = reference.hidden(2, seed=0)
    nan = x.copy()
    nan[1, 7] = np.nan
    requests = [forward(x, 0, id=1), forward(x, 99, id=2), forward(nan, 0, id=3),
                forward(x[:, :100], 0, id=4), forward(x, 0, id=5)]
    replies = {r.id: r for r in client.stub.ForwardStream(iter(requests), timeout=WAIT_S)}
    assert sorted(replies) == [1, 2, 3, 4, 5]
    assert same_bits(array(replies[1].output), array(replies[5].output))
    for i, text in ((2, "layer"), (3, "NaN"), (4, "hidden")):
        assert replies[i].status.code == 3, replies[i].status
        assert text in replies[i].status.message


# ---- router ----

@pytest.fixture
def router(one_node):
    with channel(one_node.address("router-0")) as c:
        yield sy_client.router_rpc.RouterStub(c)


def route_request(x, layer=0, **fields):
    return sy_client.router_pb.RouteRequest(model="trio", layer=layer, hidden=rows(x), **fields)


def check_route(reply, layer, x):
    ids, weights = reference.route(layer, x)
    assert reply.slots == 2
    assert np.array_equal(np.frombuffer(reply.expert, "<u2").reshape(-1, 2), ids)
    assert np.allclose(np.frombuffer(reply.weight, "<f4").reshape(-1, 2), weights, atol=1e-5)


def test_a_router_names_the_top_experts(router):
    for layer in range(4):
        x = reference.hidden(50, seed=layer)
        check_route(router.Route(route_request(x, layer), timeout=WAIT_S), layer, x)


def test_a_route_stream_answers_by_id_and_survives_an_error(router):
    requests = [route_request(reference.hidden(3, seed=i), i % 4, id=i + 1) for i in range(8)]
    requests.insert(4, route_request(reference.hidden(1, 0), 77, id=50))
    replies = {r.id: r for r in router.RouteStream(iter(requests), timeout=WAIT_S)}
    assert sorted(replies) == [1, 2, 3, 4, 5, 6, 7, 8, 50]
    assert replies[50].status.code == 3 and "layer" in replies[50].status.message
    for i in range(8):
        check_route(replies[i + 1], i % 4, reference.hidden(3, seed=i))


def test_a_router_describes_its_model(router, client):
    model = router.DescribeModel(sy_client.router_pb.DescribeModelRequest(model="trio"),
                                 timeout=WAIT_S)
    assert (model.layers, model.hidden, model.experts, model.top_k) == (4, 192, 16, 2)
    assert model.expert_ffn == 256
    assert model.structure_hash == client.model().structure_hash


# ---- expert ----

def compute_request(layer, x, pairs, weights=None, combine=0, **fields):
    """pairs: (expert, row) in any order; the message lists them expert by expert."""
    order = sorted(range(len(pairs)), key=lambda i: pairs[i])
    experts = sorted({e for e, _ in pairs})
    ends = np.cumsum([sum(e == p for p, _ in pairs) for e in experts])
    weight = b"" if weights is None else np.array([weights[i] for i in order], "<f4").tobytes()
    return sy_client.expert_pb.ComputeRequest(
        model="trio", layer=layer, expert=np.array(experts, "<u2").tobytes(),
        group_end=ends.astype("<u4").tobytes(),
        row=np.array([pairs[i][1] for i in order], "<u4").tobytes(), weight=weight,
        combine=combine, hidden=rows(x), **fields), [pairs[i] for i in order]


@pytest.fixture
def node(one_node):
    with channel(one_node.address("expert-0")) as c:
        yield sy_client.expert_rpc.ExpertStub(c)


PAIRS = [(3, 0), (3, 2), (0, 1), (15, 0), (15, 1), (15, 2), (7, 4), (7, 3)]


def test_exact_gives_a_row_for_each_assignment_in_order(node):
    x = reference.hidden(5, seed=11)
    request, order = compute_request(1, x, PAIRS)
    reply = node.Compute(request, timeout=WAIT_S)
    want = np.concatenate([reference.expert(1, e, x[t:t + 1]) for e, t in order])
    assert not reply.fault
    assert reference.worst(array(reply.output), want) <= TOLERANCE


def test_partial_gives_the_weighted_sum_of_each_token(node):
    x = reference.hidden(5, seed=12)
    weights = np.linspace(0.1, 0.8, len(PAIRS))
    request, _ = compute_request(2, x, PAIRS, weights, sy_client.expert_pb.PARTIAL)
    want = np.zeros(x.shape)
    for (e, t), w in zip(PAIRS, weights):
        want[t] += w * reference.expert(2, e, x[t:t + 1])[0]
    got = array(node.Compute(request, timeout=WAIT_S).output)
    assert reference.worst(got, want) <= TOLERANCE


def test_a_compute_stream_answers_by_id_and_survives_an_error(node):
    x = reference.hidden(5, seed=13)
    requests = [compute_request(i, x, PAIRS, id=i + 1)[0] for i in range(4)]
    bad = compute_request(0, x, PAIRS, id=9)[0]
    bad.row = np.array([0, 1, 2, 3, 4, 5, 0, 0], "<u4").tobytes()  # row 5 of 5
    replies = {r.id: r for r in node.ComputeStream(iter(requests[:2] + [bad] + requests[2:]),
                                                   timeout=WAIT_S)}
    assert sorted(replies) == [1, 2, 3, 4, 9]
    assert replies[9].status.code == 3 and "row" in replies[9].status.message
    for i in range(4):
        order = compute_request(i, x, PAIRS)[1]
        want = np.concatenate([reference.expert(i, e, x[t:t + 1]) for e, t in order])
        assert reference.worst(array(replies[i + 1].output), want) <= TOLERANCE


def test_a_node_names_the_experts_it_does_not_hold_and_computes_the_others(three_nodes):
    x = reference.hidden(2, seed=14)
    request, order = compute_request(0, x, [(0, 0), (1, 0), (3, 1)])  # expert-0 holds 0 and 3
    with channel(three_nodes.address("expert-0")) as c:
        reply = sy_client.expert_rpc.ExpertStub(c).Compute(request, timeout=WAIT_S)
    assert [f.expert for f in reply.fault] == [1]
    fault = reply.fault[0].status
    assert (fault.code, fault.reason, fault.node) == (14, "SHARD_NOT_RESIDENT", "expert-0")
    assert (fault.layer, fault.expert) == (0, 1)
    got = array(reply.output)
    assert not got[1].any()
    assert reference.worst(got[0], reference.expert(0, 0, x[:1])[0]) <= TOLERANCE
    assert reference.worst(got[2], reference.expert(0, 3, x[1:])[0]) <= TOLERANCE


def test_watch_tells_the_whole_state_first(node):
    watch = node.Watch(sy_client.expert_pb.WatchRequest(model="trio"), timeout=WAIT_S)
    state = next(watch)
    watch.cancel()
    assert state.full and state.node == "expert-0" and state.model == "trio"
    assert sorted((s.layer, s.expert) for s in state.shard) == [(i, e) for i in range(4)
                                                                for e in range(16)]
    assert {s.state for s in state.shard} == {sy_client.expert_pb.RESIDENT}
    assert {s.device for s in state.shard} == {"cpu:0"}
    assert state.memory_bytes >= 64 * 3 * 256 * 192 * 2


def test_an_unknown_model_is_named_by_every_tier(one_node, client, router, node):
    x = reference.hidden(1, 0)
    calls = [(client.stub.Forward, forward(x)), (router.Route, route_request(x)),
             (node.Compute, compute_request(0, x, [(0, 0)])[0])]
    for method, request in calls:
        request.model = "quartet"
        error = error_of(method, request, timeout=WAIT_S)
        assert error.code() == grpc.StatusCode.NOT_FOUND
        assert "quartet" in error.details() and "trio" in error.details()
        assert error_info(error).reason == "MODEL_UNKNOWN"
