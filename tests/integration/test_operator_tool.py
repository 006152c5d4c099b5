"""What operators do with the `switchyard` command on a running cluster."""
import json
import os
import pty
import select
import signal
import subprocess

import pytest

from sy_client import BIN, WAIT_S, wait_for
from sy_cluster import run_tool, server_env
from test_faults import expect_answers, keep_asking, traffic_passes
from test_live_placement import ALL, count, flip_a_bit, settle, start_nodes, states


# Canaries here are judged by their outputs: on a busy machine any node may be slow for a while.
ANY_SPEED = ["--max-latency-ratio", "1000"]


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
    op("canary", "start", *ANY_SPEED, "--field", "1/3", "--to", "expert-1/cpu:0", "--share", "20",
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
    told = op("canary", "start", *ANY_SPEED,
              "--field", "1/3", "--to", "expert-1/cpu:0", "--share", "5",
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
    told = op("canary", "start", *ANY_SPEED,
              "--field", "1/3", "--to", "expert-1/cpu:0", "--share", "5",
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
    for name in ("expert-0", "expert-1"):
        wait_for(lambda n=name: count(cluster, n, "resident") == ALL, f"everything on {name}")
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


# ---- commands that go on until somebody ends them ----

class Running:
    """A `switchyard` command in the background; ended with the test."""

    def __init__(self, op, *args):
        self.popen = subprocess.Popen([str(BIN / "switchyard"), *args, *op.where],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, env=server_env())

    def end(self, signum=None):
        """(exit code, all that was printed)."""
        if signum is not None:
            self.popen.send_signal(signum)
        text, _ = self.popen.communicate(timeout=WAIT_S)
        return self.popen.returncode, text

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.popen.kill()
        self.popen.wait()


def wait_share(op, field):
    wait_for(lambda: "@" in (op.value(field) or "") and "shadow" not in op.value(field),
             f"{field} to have shares")


@pytest.mark.parametrize("wish, code", [("abort", 1), ("promote", 0)])
def test_somebody_else_ends_a_canary(two, wish, code):
    op = Operator(two)
    op("placement", "set", "1/0", "expert-0/cpu:0", "--wait")
    traffic = keep_asking(two, expect_answers(two))
    with Running(op, "canary", "start", *ANY_SPEED,
                     "--field", "1/0", "--to", "expert-1/cpu:0", "--share",
                 "30", "--min-rows", "10", "--for", "1h") as canary:
        wait_share(op, "1/0")
        assert "1/0" in op("canary", "status")
        op("canary", wish, "1/0")
        got, text = canary.end()
    assert got == code, text
    assert op.value("1/0") == ("expert-1/cpu:0" if wish == "promote" else "expert-0/cpu:0")
    traffic_passes(traffic, 12)
    traffic.stop()


def test_the_watcher_of_a_canary_dies_and_another_takes_over(two):
    op = Operator(two)
    op("placement", "set", "1/0", "expert-0/cpu:0", "--wait")
    traffic = keep_asking(two, expect_answers(two))
    with Running(op, "canary", "start", *ANY_SPEED,
                     "--field", "1/0", "--to", "expert-1/cpu:0", "--share",
                 "30", "--min-rows", "10", "--for", "5s") as canary:
        wait_share(op, "1/0")
        canary.popen.kill()
    assert op.value("1/0").count("@") == 2, "what was in force stays"
    wait_for(lambda: op("canary", "watch", "1/0", check=False).returncode == 0,
             "the canary to be taken over and promoted")
    assert op.value("1/0") == "expert-1/cpu:0"
    traffic.stop()


def test_an_edit_by_hand_ends_a_canary_and_is_left_alone(two):
    op = Operator(two)
    traffic = keep_asking(two, expect_answers(two))
    with Running(op, "canary", "start", *ANY_SPEED,
                     "--field", "1/0", "--to", "expert-1/cpu:0", "--share",
                 "30", "--min-rows", "10", "--for", "1h") as canary:
        wait_share(op, "1/0")
        two.set_placement({"1/0": "expert-0/cpu:0 expert-1/cpu:0"})
        code, text = canary.end()
    assert code == 1, text
    assert op.value("1/0") == "expert-0/cpu:0 expert-1/cpu:0"
    traffic.stop()


def test_one_balancer_acts_and_the_other_takes_over_when_it_dies(two):
    op = Operator(two)
    options = ["balance", "--watch", "--interval-s", "1", "--sample-s", "1", "--json"]

    def holder():
        with two.redis() as r:
            return r.get("switchyard:balancer")
    with Running(op, *options) as first:
        wait_for(lambda: str(first.popen.pid) in (holder() or ""), "the first to have the lock")
        with Running(op, *options) as second:
            with two.redis() as r:
                wait_for(lambda: r.hget("switchyard:balancer:state", "at_us"), "a sign of life")
            first.popen.kill()
            wait_for(lambda: str(second.popen.pid) in (holder() or ""), "the second to take over")
            code, text = second.end(signal.SIGTERM)
            assert code == 0, text
    assert holder() is None, "the lock is given back"


def test_draining_can_be_undone(two):
    op = Operator(two)
    with two.redis() as r:
        before = r.hgetall(two.placement_key)
    op("drain", "expert-0", "--timeout-s", "60")
    op("drain", "expert-0", "--undo")
    with two.redis() as r:
        assert r.hgetall(two.placement_key) == before


def test_status_refreshes_in_a_terminal_and_ctrl_c_ends_it(two):
    op = Operator(two)
    ours, theirs = pty.openpty()
    view = subprocess.Popen([str(BIN / "switchyard"), "status", "--watch", "--interval-s", "1",
                             *op.where], stdin=theirs, stdout=theirs, stderr=theirs,
                            env=server_env(), start_new_session=True)
    os.close(theirs)
    try:
        seen = b""
        while seen.count(b"\x1b[H") < 2 or seen.count(b"expert-1") < 2:
            assert select.select([ours], [], [], WAIT_S)[0], f"no second view: {seen!r}"
            seen += os.read(ours, 65536)
        view.send_signal(signal.SIGINT)
        while view.poll() is None and select.select([ours], [], [], WAIT_S)[0]:
            try:
                os.read(ours, 65536)
            except OSError:  # the terminal's other end is closed
                break
        assert view.wait(WAIT_S) in (0, 130)
    finally:
        view.kill()
        view.wait()
        os.close(ours)
