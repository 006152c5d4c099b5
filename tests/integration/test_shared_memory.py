"""Rows in memory that processes of one host share: the same bits as through connections, whoever
cannot share, is stopped or is killed."""
import signal

import pytest

import sy_client
import sy_reference as reference
from sy_client import SANITIZED, WAIT_S, Background, array, rows, same_bits, wait_for

pytestmark = pytest.mark.asan
N_ROWS = 180  # many enough for every message to be worth it


def forward(client, x, layer):
    request = sy_client.pb.ForwardRequest(model="trio", layer=layer, hidden=rows(x))
    return array(client.stub.Forward(request, timeout=WAIT_S).output)


def outputs(cluster, seeds=(1, 2)):
    with cluster.client() as client:
        return [forward(client, reference.hidden(N_ROWS, seed=s), layer)
                for s in seeds for layer in range(4)]


def rows_by(cluster, way, name="aggregator-0"):
    return cluster.metric(name, f'switchyard_rows_total{{way="{way}"}}')


def test_shared_and_sent_rows_give_the_same_bits_on_one_and_two_nodes(up):
    everywhere = dict(expert_arg="--shared-memory=off", router_arg="--shared-memory=off",
                      aggregator_arg="--shared-memory=off")
    sent = up(experts=1, **everywhere)
    want = outputs(sent)
    assert rows_by(sent, "bytes") > 0
    assert rows_by(sent, "shared") == 0 or SANITIZED  # whose clusters have other options
    for n_nodes in (1, 2):
        shared = up(experts=n_nodes)
        assert all(same_bits(a, b) for a, b in zip(want, outputs(shared)))
        assert rows_by(shared, "shared") > 0 and rows_by(shared, "bytes") == 0


@pytest.mark.sanitize
@pytest.mark.parametrize("tier", ["expert", "router"])
def test_a_peer_that_does_without_gets_its_rows_as_bytes(up, one_node, tier):
    cluster = up(experts=2, **{f"{tier}_arg": "--shared-memory=off"})
    assert all(same_bits(a, b) for a, b in zip(outputs(one_node), outputs(cluster)))
    assert (rows_by(cluster, "bytes") > 0) == (tier == "expert")


@pytest.mark.sanitize
def test_nodes_that_are_stopped_or_killed_in_the_middle_spoil_no_row(hand):
    cluster = hand(experts=2, routers=1, aggregators=1, peer_timeout_ms=2000)
    cluster.set_placement(cluster.everywhere("expert-0", "expert-1"))
    cluster.wait_resident({"expert-0": 64, "expert-1": 64})
    want = outputs(cluster, seeds=(3,))

    def ask(_i, stop):
        with cluster.client() as client:
            while not stop.is_set():
                for layer in range(4):
                    got = forward(client, reference.hidden(N_ROWS, seed=3), layer)
                    assert same_bits(got, want[layer])
                done.append(1)
    done = []
    asking = Background(3, ask)

    def passes(n=8):
        goal = len(done) + n
        wait_for(lambda: len(done) >= goal or asking.failures, f"{n} more answers")
    try:
        for name in ("expert-0", "expert-1", "expert-0"):
            passes()
            cluster.process[name].signal(signal.SIGSTOP)
            passes()
            cluster.process[name].signal(signal.SIGCONT)  # writes what it still owes
            passes()
            cluster.process[name].kill()
            passes()
            cluster.process[name].start()
            cluster.wait_ready(name)
    finally:
        asking.stop()
    assert rows_by(cluster, "shared") > 0
