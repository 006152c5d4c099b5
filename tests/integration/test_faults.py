"""What clients see when they, or the processes behind the aggregator, misbehave."""
import itertools
import os
import random
import signal
import subprocess
import sys
import time

import grpc
import pytest

import sy_client
import sy_reference as reference
from sy_client import (SANITIZED, WAIT_S, Background, array, error_info, error_of,
                       same_bits, wait_for)
from sy_cluster import rss_bytes
from test_layers import forward

PROMPTS = ["In the beginning", "static int sqlite3", "Natural resources:", "A",
           "And the LORD spake unto Moses, saying,", "/*\n** This routine is called"]


def expect_answers(cluster, n_tokens=24):
    """A function (client, i) that asks for the i-th of a few answers and compares every bit."""
    cases = [dict(prompt=p, max_tokens=n_tokens, ignore_eos=True, want_logits=True, **how)
             for p in PROMPTS for how in ({}, dict(sampling=dict(temperature=0.9), seed=3))]
    with cluster.client() as client:
        want = [client.generate(**case) for case in cases]

    def ask(client, i):
        case, expected = cases[i % len(cases)], want[i % len(cases)]
        got = client.generate(**case)
        assert got.tokens == expected.tokens and got.text == expected.text
        assert same_bits(got.logits, expected.logits)
        return got
    return ask


def keep_asking(cluster, ask, n_clients=4):
    """Clients that ask until stopped. done() says how many answers there were so far."""
    counter = itertools.count()

    def run(i, stop):
        with cluster.client(i % len(cluster.aggregators)) as client:
            while not stop.is_set():
                ask(client, next(counter))
    background = Background(n_clients, run)
    background.asked = lambda: counter.__reduce__()[1][0]
    return background


def traffic_passes(background, n=12):
    """Waits until n more requests have been started, so that some ran from start to end."""
    goal = background.asked() + n
    wait_for(lambda: background.asked() >= goal or background.failures, f"{n} more requests")


# ---- clients ----

@pytest.mark.sanitize
def test_a_client_that_never_reads_holds_up_nobody(one_node):
    with one_node.client() as lazy, one_node.client() as other:
        ask = expect_answers(one_node)
        calls = [lazy.start("A", max_tokens=900, ignore_eos=True, want_logits=True)
                 for _ in range(3)]
        for i in range(12):
            ask(other, i)
        for call in calls:
            call.cancel()
    one_node.wait_idle()


@pytest.mark.sanitize
def test_a_stream_whose_answers_are_never_read_holds_up_nobody(one_node):
    x = reference.hidden(64, seed=1)

    def requests():
        for i in range(2000):
            yield forward(x, i % 4, id=i + 1)
    with one_node.client() as lazy, one_node.client() as other:
        ask = expect_answers(one_node)
        call = lazy.stub.ForwardStream(requests(), timeout=WAIT_S * 4)
        next(call)
        for i in range(8):
            ask(other, i)
        assert len(array(other.stub.Forward(forward(x), timeout=WAIT_S).output)) == 64
        call.cancel()
    one_node.wait_idle()


GONE = """
import sys, sy_client
sy_client.load(sys.argv[2])
call = sy_client.Client(sys.argv[1]).start("A", max_tokens=900, ignore_eos=True)
for _ in range(3): next(call)
print("reading", flush=True)
for _ in call: pass
"""


@pytest.mark.sanitize
def test_a_client_that_disappears_frees_its_place(one_node, tmp_path):
    env = dict(os.environ, PYTHONPATH=os.path.dirname(__file__))
    gone = subprocess.Popen([sys.executable, "-c", GONE, one_node.aggregators[0], str(tmp_path)],
                            env=env, stdout=subprocess.PIPE)
    assert gone.stdout.readline() == b"reading\n"
    gone.send_signal(signal.SIGSTOP)  # so that it cannot come to its end before it is killed
    gone.kill()
    gone.wait()
    gone.stdout.close()
    one_node.wait_idle()
    with one_node.client() as client:
        assert client.generate("A", max_tokens=4).tokens


@pytest.mark.sanitize
@pytest.mark.timeout(900)
def test_64_clients_at_once_get_the_right_answers_and_memory_stays_flat(hand):
    n_warm, n_all = (60, 200) if SANITIZED else (500, 2000)
    cluster = hand(experts=2, routers=1, aggregators=1)
    ask = expect_answers(cluster, n_tokens=8)
    numbers = iter(range(n_all))
    order = list(numbers)
    random.Random(1).shuffle(order)

    def run_all(todo):
        todo = iter(todo)

        def work(i, stop):
            with cluster.client() as client:
                while not stop.is_set() and (number := next(todo, None)) is not None:
                    ask(client, number)
        Background(64, work).join(WAIT_S * 8)
        cluster.wait_idle()

    def memory():
        return {name: rss_bytes(pid) for name, pid in cluster.pids().items()}

    run_all(order[:n_warm])
    before = memory()
    run_all(order[n_warm:])
    after = memory()
    if SANITIZED:
        return  # freed memory is kept in quarantine there
    grown = {n: (before[n] >> 10, after[n] >> 10) for n in before
             if after[n] > before[n] * 1.1 + (8 << 20)}
    assert not grown, f"KiB before and after: {grown}"


def test_past_the_limit_of_waiting_requests_the_answer_is_an_error_at_once(hand):
    cluster = hand(experts=1, routers=1, aggregators=0)
    cluster.start("aggregator", max_running=2, max_queue=3)
    cluster.wait_ready("aggregator-0")
    with cluster.client() as client:
        calls = []
        for name, n in (("running", 2), ("waiting", 3)):
            calls += [client.start("A", max_tokens=1000, ignore_eos=True) for _ in range(n)]
            wait_for(lambda: cluster.metric("aggregator-0", f"switchyard_{name}_requests") == n,
                     f"{n} requests to be {name}")
        error = error_of(client.start, "A")
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "3" in error.details() and "limit" in error.details()
        for call in calls:
            call.cancel()
        cluster.wait_idle()
        assert client.generate("A", max_tokens=4).tokens


@pytest.mark.sanitize
def test_requests_that_fail_while_they_are_being_admitted_harm_nobody(hand):
    """Without a node every request ends at once, and here before its admission is over."""
    cluster = hand(experts=1, routers=1, aggregators=0)
    cluster.start("aggregator", 0, env={"SY_FAULT": "generate.admit:always"})
    cluster.wait_ready()
    cluster.wait_connected()
    ask = expect_answers(cluster, n_tokens=4)
    cluster.process["expert-0"].kill()
    with cluster.client() as client:
        wait_for(lambda: not client.model().ready, "the model to be shown as not ready")

    def run(_i, _stop):
        with cluster.client() as client:
            for _ in range(20):
                assert error_of(client.start, "A").code() == grpc.StatusCode.UNAVAILABLE
    Background(8, run).join(WAIT_S * 4)
    cluster.process["expert-0"].start()
    cluster.wait_ready("expert-0", "aggregator-0")
    with cluster.client() as client:
        for i in range(4):
            ask(client, i)


# ---- expert nodes ----

def start_long(client, n_tokens=900):
    """A long generation that is in the middle of its tokens."""
    call = client.start("In the beginning", max_tokens=n_tokens, ignore_eos=True)
    tokens = []
    while len(tokens) < 5:
        tokens += next(call).delta.token
    return call, tokens


@pytest.mark.sanitize
def test_the_only_node_dies_in_mid_request_and_the_error_names_layer_and_expert(hand):
    cluster = hand(experts=1, routers=1, aggregators=1)
    with cluster.client() as client:
        want = client.generate("In the beginning", want_logits=True)
        call, _ = start_long(client)
        cluster.process["expert-0"].kill()
        died = time.monotonic()
        error = error_of(lambda: call)
        assert time.monotonic() - died < (30 if SANITIZED else 5)
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        info = error_info(error)
        assert info.reason == "EXPERT_UNREACHABLE"
        assert 0 <= int(info.metadata["layer"]) < 4 and 0 <= int(info.metadata["expert"]) < 16
        assert f"layer {info.metadata['layer']} expert {info.metadata['expert']}" in error.details()
        wait_for(lambda: not client.model().ready, "the model to be shown as not ready")
        assert "expert" in client.model().not_ready_reason
        started = time.monotonic()
        error = error_of(client.start, "A")
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert time.monotonic() - started < (30 if SANITIZED else 5)
        cluster.process["expert-0"].start()
        cluster.wait_ready()
        got = client.generate("In the beginning", want_logits=True)
        assert same_bits(got.logits, want.logits)


@pytest.mark.sanitize
def test_a_replica_takes_over_when_a_node_dies(hand):
    cluster = hand(experts=2, routers=1, aggregators=1)
    cluster.set_placement(cluster.everywhere("expert-0", "expert-1"))
    cluster.wait_resident({"expert-0": 64, "expert-1": 64})
    cluster.wait_same_hash("expert-0", "expert-1", "aggregator-0")
    cluster.wait_ready()
    ask = expect_answers(cluster)
    traffic = keep_asking(cluster, ask)
    for victim in ("expert-1", "expert-0"):
        traffic_passes(traffic)
        cluster.process[victim].kill()
        traffic_passes(traffic)
        cluster.process[victim].start()
        cluster.wait_ready(victim)
        cluster.wait_connected(victim)  # before the next one dies
    traffic.stop()


@pytest.mark.sanitize
def test_a_node_that_hangs_costs_a_bounded_delay(hand):
    cluster = hand(experts=2, routers=1, aggregators=0)
    cluster.start("aggregator", peer_timeout_ms=1000)
    cluster.set_placement(cluster.everywhere("expert-0", "expert-1"))
    cluster.wait_resident({"expert-0": 64, "expert-1": 64})
    cluster.wait_ready()
    cluster.wait_connected()
    ask = expect_answers(cluster)
    traffic = keep_asking(cluster, ask)
    traffic_passes(traffic)
    cluster.process["expert-1"].signal(signal.SIGSTOP)
    traffic_passes(traffic, 24)
    cluster.process["expert-1"].signal(signal.SIGCONT)
    traffic_passes(traffic)
    traffic.stop()


@pytest.mark.sanitize
def test_a_node_that_leaves_in_good_order_is_not_noticed(hand):
    cluster = hand(experts=2, routers=1, aggregators=1)
    cluster.set_placement(cluster.everywhere("expert-0", "expert-1"))
    cluster.wait_resident({"expert-0": 64, "expert-1": 64})
    cluster.wait_ready()
    traffic = keep_asking(cluster, expect_answers(cluster))
    traffic_passes(traffic)
    assert cluster.process["expert-0"].terminate() == 0
    traffic_passes(traffic)
    traffic.stop()


# ---- routers ----

@pytest.mark.sanitize
@pytest.mark.parametrize("how", ["killed", "stopped in good order"])
def test_a_router_replica_goes_away_and_nobody_notices(hand, how):
    cluster = hand(experts=1, routers=2, aggregators=1)
    traffic = keep_asking(cluster, expect_answers(cluster))
    for victim in ("router-0", "router-1"):
        traffic_passes(traffic)
        if how == "killed":
            cluster.process[victim].kill()
        else:
            assert cluster.process[victim].terminate() == 0
        traffic_passes(traffic)
        cluster.process[victim].start()
        cluster.wait_ready(victim)
        cluster.wait_connected(victim)
    traffic.stop()


@pytest.mark.sanitize
def test_a_router_replica_that_hangs_costs_a_bounded_delay(hand):
    cluster = hand(experts=1, routers=2, aggregators=0)
    cluster.start("aggregator", peer_timeout_ms=1000)
    cluster.wait_ready("aggregator-0")
    cluster.wait_connected()
    traffic = keep_asking(cluster, expect_answers(cluster))
    traffic_passes(traffic)
    cluster.process["router-0"].signal(signal.SIGSTOP)
    traffic_passes(traffic, 24)
    cluster.process["router-0"].signal(signal.SIGCONT)
    traffic_passes(traffic)
    traffic.stop()


def test_no_router_at_all_is_an_error_that_says_so(hand):
    cluster = hand(experts=1, routers=1, aggregators=1)
    with cluster.client() as client:
        cluster.process["router-0"].kill()
        error = error_of(client.start, "A")
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert "router" in error.details()
        assert error_info(error).reason == "ROUTER_UNREACHABLE"
        wait_for(lambda: "router" in client.model().not_ready_reason, "the reason to be shown")


@pytest.mark.sanitize
def test_a_router_inside_the_aggregator_gives_the_same_bits(hand):
    cluster = hand(experts=1, routers=1, aggregators=1)
    ask = expect_answers(cluster)
    cluster.process["router-0"].kill()
    cluster.start("aggregator", 1, router="inproc")
    cluster.wait_ready("aggregator-1")
    with cluster.client(1) as client:
        for i in range(4):
            ask(client, i)


# ---- Redis and placement ----

@pytest.mark.sanitize
def test_redis_dies_and_traffic_goes_on(hand):
    cluster = hand(experts=2, routers=2, aggregators=1)
    ask = expect_answers(cluster)
    traffic = keep_asking(cluster, ask)
    before = cluster.wait_same_hash(*cluster.names())
    cluster.process["redis"].kill()
    for name in cluster.names():
        wait_for(lambda n=name: cluster.metric(n, "switchyard_redis_up") == 0, f"{name} to notice")
    traffic_passes(traffic, 24)
    assert all(cluster.ready(n) for n in cluster.names())
    # An empty Redis comes back: as a whole it is refused, the last good placement stays.
    cluster.start_redis()
    for name in cluster.names():
        wait_for(lambda n=name: cluster.metric(n, "switchyard_redis_up") == 1, f"{name} to be back")
    traffic_passes(traffic)
    assert cluster.wait_same_hash(*cluster.names()) == before
    # Edits take effect again.
    placement = {**cluster.spread(2), "0/0": "expert-1/cpu:0"}
    cluster.set_placement(placement)
    cluster.wait_same_hash(*cluster.names(), other_than=before)
    traffic_passes(traffic)
    traffic.stop()


@pytest.mark.sanitize
def test_moving_experts_with_hset_is_not_an_event_for_clients(hand):
    cluster = hand(experts=2, routers=1, aggregators=1)
    ask = expect_answers(cluster)
    traffic = keep_asking(cluster, ask)
    last = cluster.wait_same_hash(*cluster.names())
    with cluster.client() as client:
        assert ask(client, 0).hash == last
        for fields in ({"0/0": "expert-1/cpu:0"},
                       {f"1/{e}": "expert-1/cpu:0" for e in range(16)},
                       cluster.everywhere("expert-1"),
                       {"2/3": "expert-0/cpu:0@50 expert-1/cpu:0@50"},
                       cluster.everywhere("expert-0")):
            cluster.set_placement(fields)
            new = cluster.wait_same_hash(*cluster.names(), other_than=last)
            traffic_passes(traffic)
            assert ask(client, 0).hash == new, "Finish names the placement it ended under"
            last = new
    traffic.stop()


@pytest.mark.asan
def test_watch_tells_the_move_of_an_expert(hand):
    cluster = hand(experts=2, routers=1, aggregators=1)
    pb = sy_client.expert_pb
    watches = []
    for name in ("expert-0", "expert-1"):
        stub = sy_client.expert_rpc.ExpertStub(sy_client.channel(cluster.address(name)))
        watches.append(stub.Watch(pb.WatchRequest(model="trio"), timeout=WAIT_S))
        assert next(watches[-1]).full
    cluster.set_placement({"0/0": "expert-1/cpu:0"})
    states = []
    for state in watches[1]:
        assert not state.full
        states += [s.state for s in state.shard if (s.layer, s.expert) == (0, 0)]
        if states[-1:] == [pb.RESIDENT]:
            break
    assert states[0] == pb.LOADING
    lingering = next(s for state in watches[0] for s in state.shard
                     if (s.layer, s.expert) == (0, 0))
    assert lingering.state == pb.LINGERING
    for watch in watches:
        watch.cancel()


@pytest.mark.parametrize("value, why", [
    ("expert-9", "NODE/DEVICE"), ("", "target"), ("expert-0/cpu:0@0", "share"),
    ("expert-0/cpu:0@60 expert-1/cpu:0@60", "100"), ("expert-0/cpu:0@shadow", "shadow"),
    ("expert-0/cpu:0 " * 20, "16"), ("\xff\x00\x01", "")])
def test_a_bad_field_is_refused_alone(hand, value, why):
    cluster = hand(experts=2, routers=1, aggregators=1)
    ask = expect_answers(cluster)
    before = cluster.wait_same_hash(*cluster.names())
    cluster.set_placement({"0/0": value, "0/1": "expert-0/cpu:0", "99/0": "expert-0/cpu:0",
                           "nonsense": "expert-0/cpu:0"})
    for name in cluster.names():
        wait_for(lambda n=name: cluster.metric(n, "switchyard_placement_refused_fields") == 3,
                 f"{name} to count three refusals")
    cluster.wait_same_hash(*cluster.names(), other_than=before)  # 0/1 is in force
    assert cluster.placement_of("aggregator-0")["refused"] == 3
    log = cluster.process["aggregator-0"].text()
    assert "0/0" in log and "99/0" in log and "nonsense" in log and why in log
    with cluster.client() as client:
        for i in range(4):
            ask(client, i)


def test_a_node_without_the_device_leaves_the_old_holder_in_service(hand):
    cluster = hand(experts=2, routers=1, aggregators=1)
    ask = expect_answers(cluster)
    traffic = keep_asking(cluster, ask)
    cluster.set_placement({"0/0": "expert-1/cpu:7"})
    wait_for(lambda: any("cpu:7" in s["reason"] for s in cluster.shards_of("expert-1") or []),
             "the node to say what is wrong")
    assert cluster.ready("expert-1"), "what it has, it serves"
    traffic_passes(traffic)
    cluster.set_placement({"0/0": "nobody/cpu:0"})
    traffic_passes(traffic)
    cluster.set_placement({"0/0": "expert-1/cpu:0"})
    wait_for(lambda: any((s["layer"], s["expert"], s["state"]) == (0, 0, "resident")
                         for s in cluster.shards_of("expert-1") or []), "the shard to arrive")
    traffic_passes(traffic)
    traffic.stop()


def test_deleting_the_placement_by_mistake_is_refused(hand):
    cluster = hand(experts=2, routers=1, aggregators=1)
    traffic = keep_asking(cluster, expect_answers(cluster))
    before = cluster.wait_same_hash(*cluster.names())
    with cluster.redis() as r:
        r.delete(cluster.placement_key)
    for name in cluster.names():
        wait_for(lambda n=name: cluster.metric(n, "switchyard_placement_refused_fields") == 1,
                 f"{name} to refuse")
    traffic_passes(traffic)
    assert cluster.wait_same_hash(*cluster.names()) == before
    traffic.stop()


@pytest.mark.skipif(SANITIZED, reason="the address space of sanitizers leaves no room for a limit")
def test_a_node_with_too_little_memory_says_so_and_the_others_serve(hand):
    cluster = hand(experts=1, routers=1, aggregators=1)
    cluster.start("expert", 1, memory_mb=1)
    traffic = keep_asking(cluster, expect_answers(cluster))
    cluster.set_placement(cluster.everywhere("expert-1"))
    wait_for(lambda: any("needs" in s["reason"] for s in cluster.shards_of("expert-1") or []),
             "the node to say that it has no room")
    traffic_passes(traffic)
    traffic.stop()


# ---- the aggregator ----

@pytest.mark.sanitize
def test_sigterm_lets_a_running_generation_finish(hand):
    cluster = hand(experts=1, routers=1, aggregators=0)
    cluster.start("aggregator", drain_s=60)
    cluster.wait_ready("aggregator-0")
    with cluster.client() as client:
        want = client.generate("In the beginning", max_tokens=400, ignore_eos=True)
        call, tokens = start_long(client, 400)
        cluster.process["aggregator-0"].signal(signal.SIGTERM)
        rest = sy_client.read_all(call)
    assert tokens + rest.tokens == want.tokens
    assert cluster.process["aggregator-0"].wait() == 0


def test_sigterm_with_a_short_drain_ends_what_still_runs(hand):
    cluster = hand(experts=1, routers=1, aggregators=0)
    cluster.start("aggregator", drain_s=0)
    cluster.wait_ready("aggregator-0")
    with cluster.client() as client:
        call, _ = start_long(client)
        cluster.process["aggregator-0"].signal(signal.SIGTERM)
        assert error_of(lambda: call).code() in (grpc.StatusCode.CANCELLED,
                                                 grpc.StatusCode.UNAVAILABLE)
    assert cluster.process["aggregator-0"].wait() == 0


def test_an_aggregator_comes_back_after_a_kill_on_the_same_socket(hand):
    cluster = hand(experts=1, routers=1, aggregators=1)
    ask = expect_answers(cluster)
    cluster.process["aggregator-0"].kill()
    cluster.process["aggregator-0"].start()
    cluster.wait_ready("aggregator-0")
    with cluster.client() as client:
        ask(client, 0)
