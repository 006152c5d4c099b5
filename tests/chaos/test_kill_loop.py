"""Nodes are killed, paused and cut off from the network, round after round, with every expert on two
of them. No request fails and no token changes. How long the longest gap between two tokens was is
printed here and measured in bench/: a test does not depend on time.

SY_SEED=N replays a run; SY_LONG=1 makes it longer.
"""
import os
import random
import signal

import pytest

from sy_client import LONG, wait_for
from sy_namespaces import NamespaceCluster
from test_faults import expect_answers, keep_asking, traffic_passes

SEED = int(os.environ.get("SY_SEED", "1"))
ROUNDS = 100 if LONG else 20
CLIENTS = 8
NODES = ["expert-0", "expert-1", "expert-2"]


def two_holders():
    return {f"{layer}/{e}": f"{NODES[(layer + e) % 3]}/cpu:0 {NODES[(layer + e + 1) % 3]}/cpu:0"
            for layer in range(4) for e in range(16)}


def make(**aggregator_options):
    cluster = NamespaceCluster(experts=3, routers=2, aggregator_options=aggregator_options)
    cluster.set_placement(two_holders())
    cluster.wait_ready()
    cluster.wait_connected()
    return cluster


def all_usable(cluster, names):
    """As the aggregator sees them: reachable, and nothing held against them."""
    nodes = {n["name"]: n for n in cluster.nodes_of("aggregator-0")}
    return all(n in nodes and nodes[n]["up"] and not nodes[n]["suspect"] and
               nodes[n]["resident"] >= 40 for n in names)


def kill(cluster, victim):
    cluster.process[victim].kill()
    yield
    cluster.process[victim].start()


def pause(cluster, victim):
    cluster.process[victim].signal(signal.SIGSTOP)
    yield
    cluster.process[victim].signal(signal.SIGCONT)


def cut_off(cluster, victim):
    cluster.network.drop(victim)
    yield
    cluster.network.heal(victim)


@pytest.mark.timeout(1800 if LONG else 400)
@pytest.mark.parametrize("hedge", ["on", "off"])
def test_nodes_die_pause_and_fall_silent_and_no_client_notices(hedge):
    cluster = make(hedge=hedge)
    try:
        rng = random.Random(SEED)
        traffic = keep_asking(cluster, expect_answers(cluster), n_clients=CLIENTS)
        ways = [kill, pause, cut_off]
        history = []
        try:
            for i in range(ROUNDS):
                way, victim = ways[i % 3], rng.choice(NODES)
                history.append(f"{way.__name__} {victim}")
                steps = way(cluster, victim)
                next(steps)
                traffic_passes(traffic, CLIENTS)
                for _ in steps:
                    pass
                cluster.wait_ready(victim)
                wait_for(lambda: all_usable(cluster, NODES), f"{victim} to be used again")
                traffic_passes(traffic, 2)
            traffic.stop()
        except BaseException:
            print(f"SY_SEED={SEED}; {history}")
            raise
        assert cluster.metric("aggregator-0", "switchyard_layer_failures_total") == 0
        hedges = cluster.metric("aggregator-0", "switchyard_hedges_total")
        assert (hedges > 0) == (hedge == "on"), f"{hedges} hedges"
        print(f"{len(history)} rounds, {traffic.asked()} answers, {hedges} hedges")
    finally:
        cluster.close()


@pytest.mark.timeout(300)
def test_both_holders_fall_silent_and_the_error_names_them():
    """Nobody is left: a typed error, though no time-out of a message is near; and service goes on
    when one is back."""
    import grpc

    from sy_client import error_info, error_of

    cluster = make(peer_timeout_ms=600000, layer_timeout_ms=600000)
    try:
        ask = expect_answers(cluster)
        for name in NODES:
            cluster.network.drop(name)
        with cluster.client() as client:
            error = error_of(client.start, "In the beginning")
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            info = error_info(error)
            assert info.reason == "EXPERT_UNREACHABLE"
            assert f"layer {info.metadata['layer']} expert {info.metadata['expert']}" in \
                error.details()
            assert "expert-" in error.details(), "the nodes that were tried are named"
            for name in NODES:
                cluster.network.heal(name)
            wait_for(lambda: all_usable(cluster, NODES), "all nodes to be used again")
            for i in range(6):
                ask(client, i)
    finally:
        cluster.close()
