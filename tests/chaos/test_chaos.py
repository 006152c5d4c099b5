"""Many things go wrong in a row, drawn from one seed, under traffic that must not notice.

Each round does something to one process or to the placement, waits until the cluster has got over
it, and asserts that the answers in between were all there and all right, bit by bit. What is never
done is what the design does not promise to survive: both holders of an expert at once.
SY_SEED=N replays a run; SY_LONG=1 makes it ten minutes.
"""
import os
import random
import signal
import time

import pytest

from sy_client import LONG, wait_for
from test_faults import expect_answers, keep_asking, traffic_passes

SECONDS = 600 if LONG else 40
SEED = int(os.environ.get("SY_SEED", "1"))


class Chaos:
    def __init__(self, cluster, rng):
        self.cluster, self.rng = cluster, rng
        self.replaceable = ["expert-0", "expert-1", "expert-2", "router-0", "router-1"]

    def settle(self, *names):
        """The processes are ready, and known to the aggregator again."""
        self.cluster.wait_ready(*names, "aggregator-0")
        self.cluster.wait_connected(*names)

    def kill(self):
        victim = self.rng.choice(self.replaceable)
        self.cluster.process[victim].kill()
        yield f"kill {victim}"
        self.cluster.process[victim].start()
        self.settle(victim)

    def terminate(self):
        victim = self.rng.choice(self.replaceable)
        assert self.cluster.process[victim].terminate() == 0
        yield f"terminate {victim}"
        self.cluster.process[victim].start()
        self.settle(victim)

    def pause(self):
        victim = self.rng.choice(self.replaceable)
        self.cluster.process[victim].signal(signal.SIGSTOP)
        yield f"pause {victim}"
        self.cluster.process[victim].signal(signal.SIGCONT)
        self.settle(victim)

    def kill_redis(self):
        with self.cluster.redis() as r:
            placement = r.hgetall(self.cluster.placement_key)
        self.cluster.process["redis"].kill()
        yield "kill redis"
        self.cluster.start_redis()
        self.cluster.set_placement(placement)
        for name in self.cluster.names():
            wait_for(lambda n=name: self.cluster.metric(n, "switchyard_redis_up") == 1, name)

    def move(self):
        """Every expert gets two holders of three, in any order, some with shares."""
        fields = {}
        for field in self.cluster.spread(1):
            pair = self.rng.sample(["expert-0", "expert-1", "expert-2"], 2)
            shares = self.rng.choice([("", ""), ("@90", "@10"), ("", "@shadow")])
            fields[field] = " ".join(f"{n}/cpu:0{s}" for n, s in zip(pair, shares))
            if "@shadow" in shares:  # a shadow is no holder to fall back on: give it a third
                third = ({"expert-0", "expert-1", "expert-2"} - set(pair)).pop()
                fields[field] += f" {third}/cpu:0"
        before = self.cluster.hash_of("aggregator-0")
        self.cluster.set_placement(fields)
        yield "move every expert"
        self.cluster.wait_same_hash(*self.cluster.names(), other_than=before)
        self.settle("expert-0", "expert-1", "expert-2")

    def spoil_a_field(self):
        with self.cluster.redis() as r:
            good = r.hget(self.cluster.placement_key, "1/1")
        self.cluster.set_placement({"1/1": "nonsense"})
        yield "spoil a field"
        self.cluster.set_placement({"1/1": good})


@pytest.mark.timeout(SECONDS + 300)
def test_nothing_that_is_survivable_is_noticed(hand):
    cluster = hand(experts=3, routers=2, aggregators=0)
    cluster.start("aggregator", peer_timeout_ms=1000)
    cluster.set_placement(cluster.everywhere("expert-0", "expert-1"))
    cluster.wait_same_hash(*cluster.names())
    cluster.wait_resident({"expert-0": 64, "expert-1": 64})
    cluster.wait_ready()
    cluster.wait_connected()
    rng = random.Random(SEED)
    chaos = Chaos(cluster, rng)
    traffic = keep_asking(cluster, expect_answers(cluster))
    actions = [chaos.kill, chaos.terminate, chaos.pause, chaos.kill_redis, chaos.move,
               chaos.spoil_a_field]
    history = []
    end = time.monotonic() + SECONDS
    try:
        while time.monotonic() < end and not traffic.failures:
            action = rng.choice(actions)()
            history.append(next(action))
            traffic_passes(traffic)
            for _ in action:
                pass
            traffic_passes(traffic, 4)
        traffic.stop()
    except BaseException:
        print(f"SY_SEED={SEED}; what was done: {history}")
        raise
    assert len(history) >= 3
    assert cluster.metric("aggregator-0", "switchyard_layer_failures_total") == 0
    cluster.wait_idle()
    print(f"{len(history)} rounds, {traffic.asked()} answers")
