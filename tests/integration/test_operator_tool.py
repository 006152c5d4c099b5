"""What operators do with the `switchyard` command on a running cluster."""
import json

import pytest

from sy_client import wait_for
from sy_cluster import run_tool
from test_faults import expect_answers, keep_asking, traffic_passes
from test_live_placement import ALL, count, flip_a_bit, settle, start_nodes, states


class Operator:
    def __init__(self, cluster):
        self.cluster = cluster
        self.where = ["--redis", f"unix:{cluster.redis_path}", "--model", cluster.model_name]

    def __call__(self, *args, **how):
        return run_tool(*args, *self.where, **how)

    def json(self, *args, **how):
        return json.loads(self(*args, "--json", **how))

    def fails(self, *args):
        done = self(*args, check=False)
        assert done.returncode != 0, done.stdout
        return done

    def value(self, field):
        with self.cluster.redis() as r:
            return r.hget(self.cluster.placement_key, field)


@pytest.fixture
def two(hand):
    cluster = start_nodes(hand, {"linger_s": 1}, {"linger_s": 1})
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    settle(cluster)
    return cluster


def test_set_plan_apply_history_and_rollback(two, tmp_path):
    op = Operator(two)
    op("placement", "set", "3/7", "expert-1/cpu:0", "--reason", "a first move", "--wait")
    assert op.value("3/7") == "expert-1/cpu:0" and (3, 7) in states(two, "expert-1")
    plan = tmp_path / "plan.json"
    text = tmp_path / "edits"
    text.write_text("# two at once\n2/1 expert-1/cpu:0\n2/2 expert-0/cpu:0 expert-1/cpu:0\n")
    told = op("placement", "plan", text, "--out", plan)
    assert "2/1" in told and op.value("2/1") is None, "a plan changes nothing"
    op("placement", "apply", plan, "--wait")
    assert op.value("2/2") == "expert-0/cpu:0 expert-1/cpu:0"
    # Somebody else was first: nothing is written, and the text says so.
    op("placement", "plan", text, "--out", plan)
    op("placement", "set", "2/1", "expert-0/cpu:0", "--reason", "somebody else")
    assert "2/1" in op.fails("placement", "apply", plan).stderr
    history = op.json("placement", "history")
    assert len(history["entries"]) >= 3
    op("placement", "rollback")
    assert op.value("2/1") == "expert-1/cpu:0"


def test_a_wrong_field_is_refused_by_the_tool_and_found_by_check(two):
    op = Operator(two)
    assert op.fails("placement", "set", "9/1", "expert-0/cpu:0").stderr
    two.set_placement({"9/1": "expert-0/cpu:0", "1/1": "nonsense"})
    told = op("placement", "check", check=False)
    assert told.returncode == 3 and "9/1" in told.stdout and "1/1" in told.stdout


def test_drain_empties_a_node_under_traffic_and_says_when_it_may_stop(two):
    op = Operator(two)
    ask = expect_answers(two)
    traffic = keep_asking(two, ask)
    op("drain", "expert-0", "--timeout-s", "60")
    assert count(two, "expert-1", "resident") == ALL
    assert two.process["expert-0"].terminate() == 0
    traffic_passes(traffic, 12)
    traffic.stop()
    assert two.metric("aggregator-0", "switchyard_layer_failures_total") == 0


@pytest.mark.timeout(300)
def test_a_good_canary_is_promoted_by_itself(two):
    op = Operator(two)
    traffic = keep_asking(two, expect_answers(two))
    op("canary", "start", "--field", "1/3", "--to", "expert-1/cpu:0", "--share", "20",
       "--min-rows", "20", "--for", "3s")
    assert op.value("1/3") == "expert-1/cpu:0"
    traffic_passes(traffic, 12)
    traffic.stop()
    reasons = " ".join(e["reason"] for e in op.json("placement", "history")["entries"])
    assert "promote" in reasons


@pytest.mark.timeout(300)
def test_a_canary_with_one_flipped_bit_is_found_by_difference_and_goes_back(hand, tmp_path):
    """The target is accepted with other weights, so only its outputs can tell."""
    cluster = start_nodes(hand, {}, {"model": flip_a_bit(tmp_path)})
    cluster.set_placement({"*/*": "expert-0/cpu:0", "1/3": "expert-0/cpu:0"})
    settle(cluster)
    op = Operator(cluster)
    traffic = keep_asking(cluster, expect_answers(cluster))
    told = op("canary", "start", "--field", "1/3", "--to", "expert-1/cpu:0", "--share", "5",
              "--min-rows", "20", "--for", "60s", "--max-diff", "0", "--any-weights", check=False)
    assert told.returncode != 0 and "differ" in told.stdout + told.stderr
    assert op.value("1/3") == "expert-0/cpu:0"
    traffic_passes(traffic, 12)
    traffic.stop()  # no output changed: the shadow's was never used


@pytest.mark.timeout(300)
def test_a_canary_whose_outputs_turn_wrong_after_it_was_verified_goes_back(hand):
    """One bit of its memory flips after every hash was right."""
    cluster = hand()
    cluster.start_redis()
    cluster.start("expert", 0)
    cluster.start("expert", 1, env={"SY_FAULT": "expert.flip:always"})
    cluster.start("router", 0)
    cluster.start("aggregator", 0)
    cluster.set_placement({"*/*": "expert-0/cpu:0"})
    settle(cluster)
    op = Operator(cluster)
    traffic = keep_asking(cluster, expect_answers(cluster))
    told = op("canary", "start", "--field", "1/3", "--to", "expert-1/cpu:0", "--share", "5",
              "--min-rows", "20", "--for", "60s", check=False)
    assert told.returncode != 0 and "differ" in told.stdout + told.stderr
    with cluster.redis() as r:
        assert r.hget(cluster.placement_key, "1/3") in (None, "expert-0/cpu:0")
    traffic_passes(traffic, 12)
    traffic.stop()


@pytest.mark.timeout(300)
def test_the_balancer_replaces_experts_of_a_node_that_died(hand):
    cluster = hand(experts=3, routers=1, aggregators=1)
    cluster.set_placement(cluster.everywhere("expert-0", "expert-1"))
    settle(cluster)
    op = Operator(cluster)
    traffic = keep_asking(cluster, expect_answers(cluster))
    cluster.process["expert-1"].kill()
    wait_for(lambda: not any(n["name"] == "expert-1" and n["up"]
                             for n in cluster.nodes_of("aggregator-0")), "expert-1 to be missed")

    def replaced():
        op("balance", "--sample-s", "1", "--dead-after-s", "1")
        with cluster.redis() as r:
            return not any("expert-1" in v for v in r.hgetall(cluster.placement_key).values())
    wait_for(replaced, "no value to name the dead node")
    traffic_passes(traffic, 12)
    traffic.stop()
