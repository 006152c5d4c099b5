"""Placement is edited without pause, rightly and wrongly, while clients generate; then every process
of the cluster is restarted under the same edits. No answer is missing, late beyond reason, or another
one than without edits: every logit is compared bit by bit.

SY_SEED=N replays a run; SY_LONG=1 makes it longer.
"""
import os

import pytest

from sy_client import LONG, wait_for
from sy_edits import EXPERTS, LAYERS, Edits
from test_faults import expect_answers, keep_asking, traffic_passes

SEED = int(os.environ.get("SY_SEED", "1"))
N_EDITS = 3000 if LONG else 500
CLIENTS = 8


@pytest.fixture
def cluster(hand):
    """Three nodes that give up a shard as soon as they may, so that everything really moves."""
    cluster = hand()
    cluster.start_redis()
    for i in range(3):
        cluster.start("expert", i, linger_s=0)
    for i in range(2):
        cluster.start("router", i)
    for i in range(2):
        cluster.start("aggregator", i)
    cluster.set_placement({"*/*": "expert-0/cpu:0 expert-1/cpu:0", **cluster.spread(3)})
    cluster.wait_ready()
    cluster.wait_connected()
    return cluster


def everywhere_the_same(cluster):
    hashes = {n: cluster.hash_of(n) for n in cluster.names()}
    return len(set(hashes.values())) == 1 and None not in hashes.values()


def settled(cluster):
    """What is in memory is what is wanted, and nothing else."""
    for name in cluster.names():
        if not name.startswith("expert"):
            continue
        shards = cluster.shards_of(name)
        if shards is None or any(s["wanted"] != (s["state"] == "resident") for s in shards
                                 if "no device" not in s["reason"]):
            return False
    return True


def check_the_end(cluster, edits):
    edits.repair()
    wait_for(lambda: everywhere_the_same(cluster), "one placement everywhere")
    for name in cluster.names():
        wait_for(lambda n=name: cluster.metric(n, "switchyard_placement_refused_fields") == 0,
                 f"no refusal on {name}")
    wait_for(lambda: settled(cluster), "every node to hold what is wanted and nothing else")
    left = sum(cluster.metric(n, "switchyard_expert_left_total") for n in cluster.names()
               if n.startswith("expert"))
    assert left > 20, f"only {left} shards have ever left a node: the edits moved nothing"
    for name in ("aggregator-0", "aggregator-1"):
        assert cluster.metric(name, "switchyard_layer_failures_total") == 0, name


@pytest.mark.timeout(1200 if LONG else 400)
def test_500_edits_and_no_client_notices(cluster):
    edits = Edits(cluster, SEED, ["expert-0", "expert-1", "expert-2"])
    traffic = keep_asking(cluster, expect_answers(cluster), n_clients=CLIENTS)
    try:
        for i in range(N_EDITS):
            edits.one()
            if i % 8 == 0:
                traffic_passes(traffic, 1)
        traffic_passes(traffic, 2 * CLIENTS)
        traffic.stop()
    except BaseException:
        print(f"SY_SEED={SEED}; edit {edits.n_done}; the last ones: {edits.last}")
        raise
    assert edits.n_done == N_EDITS and edits.n_invalid > N_EDITS // 20
    check_the_end(cluster, edits)
    print(f"{N_EDITS} edits ({edits.n_invalid} invalid), {traffic.asked()} answers")


def restart(cluster, name):
    process = cluster.process[name]
    assert process.terminate() == 0
    yield
    process.start()
    cluster.wait_ready(name, *(n for n in cluster.names() if n.startswith("aggregator")))
    if not name.startswith("aggregator"):
        cluster.wait_connected(name)


def restart_redis(cluster):
    with cluster.redis() as r:
        placement = r.hgetall(cluster.placement_key)
    cluster.process["redis"].kill()
    yield
    cluster.start_redis()
    cluster.set_placement(placement)
    for name in cluster.names():
        wait_for(lambda n=name: cluster.metric(n, "switchyard_redis_up") == 1, name)


@pytest.mark.timeout(1200 if LONG else 400)
def test_every_node_router_and_redis_restarts_under_edits_and_no_client_notices(cluster):
    """Every value names two nodes, so that one of them may be away."""
    cluster.set_placement({"*/*": "expert-0/cpu:0 expert-1/cpu:0",
                           **{f"{layer}/{e}": f"expert-{(layer + e) % 3}/cpu:0 "
                                              f"expert-{(layer + e + 1) % 3}/cpu:0"
                              for layer in range(LAYERS) for e in range(EXPERTS)}})
    wait_for(lambda: everywhere_the_same(cluster) and settled(cluster), "two holders each")
    edits = Edits(cluster, SEED, ["expert-0", "expert-1", "expert-2"], n_holders=2)
    traffic = keep_asking(cluster, expect_answers(cluster), n_clients=CLIENTS)
    done = []
    try:
        for victim in ("expert-0", "router-0", "redis", "expert-1", "router-1", "expert-2"):
            done.append(victim)
            steps = restart_redis(cluster) if victim == "redis" else restart(cluster, victim)
            next(steps)
            traffic_passes(traffic, CLIENTS)
            for _ in range(N_EDITS // 50):
                if victim != "redis":
                    edits.one()
                traffic_passes(traffic, 1)
            for _ in steps:
                pass
            # Until every wanted copy is there again, a second one must not be taken away.
            edits.repair()
            wait_for(lambda: everywhere_the_same(cluster) and settled(cluster), "two holders each")
            traffic_passes(traffic, CLIENTS)
        traffic.stop()
    except BaseException:
        print(f"SY_SEED={SEED}; restarted: {done}; the last edits: {edits.last}")
        raise
    check_the_end(cluster, edits)
    print(f"{edits.n_done} edits, {traffic.asked()} answers")


@pytest.mark.timeout(300)
def test_an_aggregator_dies_and_only_its_own_clients_see_it(cluster):
    import grpc

    ask = expect_answers(cluster)
    others = keep_asking_one(cluster, ask, 1)
    with cluster.client(0) as client:
        call = client.start("In the beginning", max_tokens=900, ignore_eos=True)
        next(call)
        cluster.process["aggregator-0"].kill()
        with pytest.raises(grpc.RpcError) as error:
            for _ in call:
                pass
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    traffic_passes(others, 12)
    others.stop()
    cluster.process["aggregator-0"].start()
    cluster.wait_ready("aggregator-0")
    with cluster.client(0) as client:
        for i in range(4):
            ask(client, i)


def keep_asking_one(cluster, ask, aggregator):
    import itertools

    from sy_client import Background

    counter = itertools.count()

    def run(_i, stop):
        with cluster.client(aggregator) as client:
            while not stop.is_set():
                ask(client, next(counter))
    background = Background(4, run)
    background.asked = lambda: counter.__reduce__()[1][0]
    return background
