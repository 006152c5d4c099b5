"""Steps divided in two halves: nobody can tell by the answers, not even while a node dies."""
import itertools

import pytest

import sy_client
from sy_client import SANITIZED, WAIT_S, Background, same_bits, wait_for

ROUNDS = 2 if SANITIZED else 4
CASES = [dict(prompt=prompt, max_tokens=n, ignore_eos=True, want_logits=True, **how)
         for n, prompt in enumerate(["In the beginning", "A", "static int sqlite3",
                                     "And the LORD spake unto Moses, saying, " * 5,
                                     "Natural resources:", "/*\n** This routine " * 8], start=9)
         for how in ({}, dict(sampling=dict(temperature=0.9), seed=3))]


def expect_same(got, want):
    assert got.tokens == want.tokens and got.text == want.text
    assert same_bits(got.logits, want.logits)


@pytest.fixture
def two_aggregators(hand):
    """Three nodes that hold everything; aggregator-0 divides no step, aggregator-1 every one."""
    cluster = hand(experts=3, routers=1, aggregators=1, overlap_rows=0, prompt_rows=0)
    cluster.set_placement(cluster.everywhere("expert-0", "expert-1", "expert-2"))
    cluster.wait_resident({f"expert-{i}": 64 for i in range(3)})
    cluster.start("aggregator", 1, overlap_rows=2, step_rows=64, prompt_rows=24)
    cluster.wait_ready("aggregator-1")
    cluster.wait_connected()
    return cluster


def layer_calls(cluster, name):
    return cluster.metric(name, 'switchyard_layer_seconds_count{state="route"}') or 0


def ask_16_at_once(cluster, want, rounds, each=lambda i: None):
    """16 clients of aggregator-1; `each` is told when an answer is there."""
    numbers = itertools.count()

    def run(i, stop):
        with cluster.client(1) as client:
            for k in range(rounds):
                case = (i + k * 5) % len(CASES)
                expect_same(client.generate(**CASES[case], timeout=WAIT_S * 4), want[case])
                each(next(numbers))
    return Background(16, run)


def answers_of_undivided_steps(cluster):
    with cluster.client(0) as client:
        return [client.generate(**case) for case in CASES]


@pytest.mark.sanitize
def test_16_requests_at_once_get_the_same_bits_from_divided_steps(two_aggregators):
    cluster = two_aggregators
    want = answers_of_undivided_steps(cluster)
    ask_16_at_once(cluster, want, ROUNDS).join(WAIT_S * 6)
    steps = {n: cluster.metric(n, "switchyard_engine_steps_total")
             for n in ("aggregator-0", "aggregator-1")}
    assert layer_calls(cluster, "aggregator-0") == 4 * steps["aggregator-0"]
    # Steps of a single row are left whole.
    assert layer_calls(cluster, "aggregator-1") > 6 * steps["aggregator-1"]


@pytest.mark.sanitize
def test_a_node_that_dies_between_the_halves_changes_no_bit(two_aggregators):
    cluster = two_aggregators
    want = answers_of_undivided_steps(cluster)
    answered = []
    background = ask_16_at_once(cluster, want, ROUNDS, answered.append)
    wait_for(lambda: len(answered) >= 8 or background.failures, "some answers")
    cluster.process["expert-1"].kill()
    background.join(WAIT_S * 6)
    assert len(answered) == 16 * ROUNDS
    cluster.wait_idle("aggregator-1")
    assert cluster.metric("aggregator-1", "switchyard_layer_failures_total") in (0, None)


@pytest.mark.sanitize
def test_without_its_only_holder_a_request_fails_and_others_are_answered(hand):
    """One expert in 16 of one layer is gone for good: whoever needs it in either half ends with
    that reason, and everybody else has the right bits."""
    cluster = hand(experts=2, routers=1, aggregators=1, overlap_rows=2, step_rows=64, grace_ms=0)
    with cluster.client() as client:
        want = [client.generate(**case) for case in CASES]
    cluster.process["expert-1"].kill()
    cluster.set_placement({**cluster.everywhere("expert-0"), "3/14": "expert-1/cpu:0"})
    cluster.wait_resident({"expert-0": 63})
    outcomes = []

    def run(i, stop):
        with cluster.client() as client:
            try:
                got = client.generate(**CASES[i % len(CASES)], timeout=WAIT_S * 4)
            except sy_client.grpc.RpcError as error:
                assert error.code() == sy_client.grpc.StatusCode.UNAVAILABLE
                assert "layer 3 expert 14" in error.details()
                outcomes.append("failed")
                return
            expect_same(got, want[i % len(CASES)])
            outcomes.append("answered")
    Background(16, run).join(WAIT_S * 6)
    assert len(outcomes) == 16 and "failed" in outcomes
    cluster.wait_idle()
