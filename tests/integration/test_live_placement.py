"""Experts move, are replicated and leave while the cluster serves: what operators and clients see."""
import json
import shutil
import signal
import struct

import grpc
import pytest

import sy_reference as reference
from sy_client import (MODEL, WAIT_S, array, error_info, error_of, same_bits, wait_for)
from sy_cluster import run_tool
from test_faults import expect_answers, keep_asking, traffic_passes
from test_layers import forward

ALL = 64  # shards of the bundled model: 4 layers of 16 experts


def start_nodes(hand, *options, routers=1, **aggregator_options):
    """A cluster whose nodes have options of their own; placement is still empty."""
    cluster = hand()
    cluster.start_redis()
    for i, option in enumerate(options):
        cluster.start("expert", i, **option)
    for i in range(routers):
        cluster.start("router", i)
    cluster.start("aggregator", 0, **aggregator_options)
    return cluster


def states(cluster, node):
    """State of every shard in or on its way into the node's memory, by (layer, expert)."""
    return {(s["layer"], s["expert"]): s for s in cluster.shards_of(node) or []}


def count(cluster, node, state):
    return sum(s["state"] == state for s in states(cluster, node).values())


def wait_count(cluster, node, state, n):
    wait_for(lambda: count(cluster, node, state) == n, f"{n} shards {state} on {node}")


def settle(cluster):
    cluster.wait_same_hash(*cluster.names())
    cluster.wait_ready()
    cluster.wait_connected()


def flip_a_bit(directory, layer=1, expert=3):
    """A copy of the bundled checkpoint with one bit of one expert turned; returns its path."""
    path = directory / "trio"
    shutil.copytree(MODEL, path, symlinks=False)
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    begin, end = header[f"model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.weight"][
        "data_offsets"]
    # A mantissa bit of an element that is not near the tensor's ends or middle.
    data[8 + n + begin + ((end - begin) // 3 & ~1)] ^= 0x10
    file.write_bytes(data)
    return path


# ---- moving ----

@pytest.mark.sanitize
def test_an_expert_leaves_its_node_only_when_the_new_one_has_it(hand):
    cluster = start_nodes(hand, {"linger_s": 0}, {"linger_s": 0})
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    settle(cluster)
    ask = expect_answers(cluster)
    cluster.process["expert-1"].signal(signal.SIGSTOP)
    cluster.set_placement({"*/*": "expert-1/cpu:0"})
    cluster.wait_same_hash("expert-0", "aggregator-0")
    traffic = keep_asking(cluster, ask)
    wait_count(cluster, "expert-0", "lingering", ALL)
    traffic_passes(traffic, 12)
    assert count(cluster, "expert-0", "lingering") == ALL, "nobody else has them"
    cluster.process["expert-1"].signal(signal.SIGCONT)
    wait_count(cluster, "expert-1", "resident", ALL)
    wait_for(lambda: not states(cluster, "expert-0"), "expert-0 to let go of everything")
    traffic_passes(traffic, 12)
    traffic.stop()
    assert cluster.metric("aggregator-0", "switchyard_layer_failures_total") == 0


@pytest.mark.asan
def test_a_wanted_node_that_nobody_knows_changes_nothing(hand):
    cluster = start_nodes(hand, {"linger_s": 0})
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    settle(cluster)
    ask = expect_answers(cluster)
    cluster.set_placement({"*/*": "expert-77/cpu:0"})
    cluster.wait_same_hash(*cluster.names())
    wait_count(cluster, "expert-0", "lingering", ALL)
    with cluster.client() as client:
        for i in range(6):
            ask(client, i)
    assert count(cluster, "expert-0", "lingering") == ALL
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    wait_count(cluster, "expert-0", "resident", ALL)


@pytest.mark.asan
def test_rolling_back_within_the_lingering_time_loads_nothing(hand):
    cluster = start_nodes(hand, {}, {})
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    settle(cluster)
    cluster.set_placement({"*/*": "expert-1/cpu:0"})
    wait_count(cluster, "expert-1", "resident", ALL)
    wait_count(cluster, "expert-0", "lingering", ALL)
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    wait_count(cluster, "expert-0", "resident", ALL)
    assert "loading" not in cluster.process["expert-0"].tail(3)


@pytest.mark.sanitize
def test_shards_come_from_a_peer_and_give_the_same_bits(hand):
    cluster = start_nodes(hand, {}, {"load_from": "peers"})
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    settle(cluster)
    ask = expect_answers(cluster)
    traffic = keep_asking(cluster, ask)
    cluster.set_placement({"*/*": "expert-1/cpu:0"})
    wait_count(cluster, "expert-1", "resident", ALL)
    assert {s["source"] for s in states(cluster, "expert-1").values()} == {"expert-0"}
    traffic_passes(traffic, 12)
    traffic.stop()
    cluster.process["expert-0"].kill()
    with cluster.client() as client:
        for i in range(6):
            ask(client, i)


def test_the_sending_peer_dies_in_the_middle_and_the_checkpoint_takes_over(hand):
    """A third node has the checkpoint's bytes as well: nothing is lost with the peer."""
    cluster = start_nodes(hand, {"load_mb_s": 1}, {"load_from": "peers"})
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    settle(cluster)
    ask = expect_answers(cluster)
    cluster.set_placement({"*/*": "expert-0/cpu:0 expert-1/cpu:0"})
    wait_for(lambda: 0 < count(cluster, "expert-1", "resident") < ALL, "some shards to have come")
    cluster.process["expert-0"].kill()
    wait_count(cluster, "expert-1", "resident", ALL)
    assert {s["source"] for s in states(cluster, "expert-1").values()} == {"expert-0", "checkpoint"}
    with cluster.client() as client:
        wait_for(lambda: client.model().ready, "the model to be ready")
        for i in range(6):
            ask(client, i)


@pytest.mark.asan
def test_a_node_without_room_says_what_it_needs_and_the_old_holder_serves_on(hand):
    cluster = start_nodes(hand, {}, {"memory_mb": 1})
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    settle(cluster)
    ask = expect_answers(cluster)
    cluster.set_placement({"*/*": "expert-1/cpu:0"})
    wait_for(lambda: count(cluster, "expert-1", "failed") > 0, "a shard without room")
    failed = [s for s in states(cluster, "expert-1").values() if s["state"] == "failed"]
    assert all("needs" in s["reason"] and "has" in s["reason"] for s in failed)
    with cluster.client() as client:
        for i in range(6):
            ask(client, i)
    told = run_tool("placement", "check", "--redis", f"unix:{cluster.redis_path}", check=False)
    assert told.returncode == 3 and "needs" in told.stdout, told.stdout + told.stderr


@pytest.mark.sanitize
def test_a_slow_node_slows_nobody_who_has_another_and_changes_no_bit(hand):
    cluster = hand()
    cluster.start_redis()
    cluster.start("expert", 0)
    cluster.start("expert", 1, env={"SY_FAULT": "expert.slow:always"})
    cluster.start("expert", 2, env={"SY_FAULT": "expert.compute:always"})  # answers with errors
    cluster.start("router", 0)
    cluster.start("aggregator", 0)
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    settle(cluster)
    ask = expect_answers(cluster)
    cluster.set_placement({"*/*": "expert-0/cpu:0 expert-1/cpu:0 expert-2/cpu:0"})
    for name in ("expert-1", "expert-2"):
        wait_count(cluster, name, "resident", ALL)
    traffic = keep_asking(cluster, ask)
    traffic_passes(traffic, 24)
    traffic.stop()
    assert cluster.metric("expert-2", "switchyard_expert_errors_total") > 0
    assert cluster.metric("aggregator-0", "switchyard_layer_failures_total") == 0


# ---- weights that differ ----

@pytest.mark.asan
def test_a_node_whose_weights_differ_by_a_bit_is_never_used(hand, tmp_path):
    other = flip_a_bit(tmp_path)
    cluster = start_nodes(hand, {}, {"model": other})
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    settle(cluster)
    ask = expect_answers(cluster)
    cluster.set_placement({"1/3": "expert-1/cpu:0", "2/2": "expert-1/cpu:0"})

    def refused():
        nodes = {n["name"]: n for n in cluster.nodes_of("aggregator-0")}
        return nodes["expert-1"]["resident"] == 2 and nodes["expert-1"]["shards_refused"]
    assert wait_for(refused, "the copy to be refused") == 1
    with cluster.client() as client:
        for i in range(12):
            assert not ask(client, i).finish.policies
        # With the right copy gone there is nobody: an error that says why, not a wrong answer.
        cluster.process["expert-0"].kill()
        error = error_of(client.stub.Forward, forward(reference.hidden(40, seed=1), 1),
                         timeout=WAIT_S)
    assert error.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.asan
def test_other_weights_are_used_where_placement_says_so_and_the_reply_tells(hand, tmp_path):
    other = flip_a_bit(tmp_path)
    cluster = start_nodes(hand, {}, {"model": other})
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    settle(cluster)
    x = reference.hidden(64, seed=1)
    with cluster.client() as client:
        before = array(client.stub.Forward(forward(x, 1), timeout=WAIT_S).output)
        cluster.set_placement({"1/3": "expert-1/cpu:0!"})

        def told():
            reply = client.stub.Forward(forward(x, 1), timeout=WAIT_S)
            return reply.policies and reply
        reply = wait_for(told, "a reply that tells of other weights")
        assert any("other weights" in p for p in reply.policies), reply.policies
        after = array(reply.output)
        ids, _ = reference.route(1, x)
        for t in range(len(x)):
            assert same_bits(before[t], after[t]) == (3 not in ids[t]), f"row {t}"


# ---- nobody left ----

@pytest.mark.asan
def test_a_request_that_allows_it_goes_on_without_a_lost_expert_and_says_so(hand):
    cluster = start_nodes(hand, {}, {})
    cluster.set_placement({"*/*": "expert-0/cpu:0", "1/0": "expert-1/cpu:0"})
    settle(cluster)
    wait_count(cluster, "expert-1", "resident", 1)
    x = reference.hidden(64, seed=1)
    ids, weights = reference.route(1, x)
    with cluster.client() as client:
        cluster.process["expert-1"].kill()
        error = error_of(client.stub.Forward, forward(x, 1), timeout=WAIT_S)
        assert error_info(error).reason == "EXPERT_UNREACHABLE"
        assert error_info(error).metadata["expert"] == "0"
        import sy_client

        policy = sy_client.tensor_pb.RoutePolicy(degraded=True)
        reply = client.stub.Forward(forward(x, 1, policy=policy), timeout=WAIT_S)
        lost = (ids == 0).any(1)
        assert reply.degraded_rows == lost.sum() > 0
        assert any("degraded" in p for p in reply.policies)
        got = array(reply.output)
        for t in range(len(x)):
            left = [(e, w) for e, w in zip(ids[t], weights[t]) if e != 0]
            scale = weights[t].sum() / sum(w for _, w in left)
            want = sum(w * scale * reference.expert(1, e, x[t:t + 1])[0] for e, w in left)
            assert reference.worst(got[t], want) < 1e-4, f"row {t}"
        answer = client.generate("In the beginning", ignore_eos=True, max_tokens=200,
                                 policy=policy)
        assert answer.finish.degraded_rows > 0


# ---- routers ----

@pytest.mark.sanitize
def test_routers_come_and_go_under_traffic_and_share_it(hand):
    cluster = hand(experts=1, routers=1, aggregators=1)
    ask = expect_answers(cluster)
    traffic = keep_asking(cluster, ask)
    for i in range(1, 4):
        cluster.start("router", i)
    cluster.wait_ready()
    cluster.wait_connected()

    def served(name):
        return cluster.metric(name, "switchyard_route_seconds_count") or 0
    before = {f"router-{i}": served(f"router-{i}") for i in range(4)}
    wait_for(lambda: all(served(n) - before[n] >= 100 for n in before) or traffic.failures,
             "every router to get a share")
    for i in range(3):
        assert cluster.process[f"router-{i}"].terminate() == 0
    traffic_passes(traffic, 24)
    traffic.stop()
    assert cluster.metric("aggregator-0", "switchyard_layer_failures_total") == 0


@pytest.mark.sanitize
def test_all_routers_are_gone_and_the_gate_is_computed_in_the_aggregator(hand):
    cluster = hand(experts=1, routers=1, aggregators=0)
    cluster.start("aggregator", 0, router="fallback")
    cluster.wait_ready()
    cluster.wait_connected()
    ask = expect_answers(cluster)
    traffic = keep_asking(cluster, ask)
    cluster.process["router-0"].kill()
    traffic_passes(traffic, 24)
    cluster.process["router-0"].start()
    cluster.wait_ready("router-0")
    traffic_passes(traffic, 12)
    traffic.stop()


@pytest.mark.sanitize
def test_the_only_router_or_node_falls_silent_and_the_error_comes_without_a_time_out(hand):
    """No time-out of a message is near: silence alone is enough, and service goes on afterwards."""
    cluster = start_nodes(hand, {}, peer_timeout_ms=600000, layer_timeout_ms=600000)
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    settle(cluster)
    ask = expect_answers(cluster)
    for name, reason in (("router-0", "ROUTER_UNREACHABLE"), ("expert-0", "EXPERT_UNREACHABLE")):
        cluster.process[name].signal(signal.SIGSTOP)
        with cluster.client() as client:
            error = error_of(client.start, "In the beginning")
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            assert error_info(error).reason == reason, error.details()
            cluster.process[name].signal(signal.SIGCONT)

            def answered():
                try:
                    return client.generate("A", max_tokens=2).tokens
                except grpc.RpcError:
                    return None
            wait_for(answered, f"answers with {name} back")
            for i in range(4):
                ask(client, i)


@pytest.mark.asan
def test_routers_are_found_by_name_without_a_lease(hand):
    """dns:///: every address of a name; here the router has a Redis of nobody's."""
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    cluster = hand(experts=1, routers=0, aggregators=0)
    cluster.start("router", 0, listen=f"127.0.0.1:{port}", redis="127.0.0.1:1")
    cluster.start("aggregator", 0, routers=f"dns:///localhost:{port}")
    cluster.wait_ready("aggregator-0")
    with cluster.client() as client:
        assert client.generate("A", max_tokens=4).tokens
