"""Edits of the placement as operators type them, drawn from a seed: what is right, what is wrong, and
what is right but cannot be followed. All go through redis-cli."""
import random
import subprocess

LAYERS, EXPERTS = 4, 16
INVALID = [("3/17", "expert-0/cpu:0"), ("9/1", "expert-0/cpu:0"), ("1/2/3", "expert-0/cpu:0"),
           ("1/1", ""), ("1/1", "expert-0"), ("2/2", "expert-0/cpu:0@60 expert-1/cpu:0@60"),
           ("0/3", "expert-0/cpu:0@shadow"), ("0/4", "expert-0/cpu:0 expert-0/cpu:0"),
           ("x/y", "expert-0/cpu:0"), ("1/5", "expert-0/tpu:0"), ("01/5", "expert-0/cpu:0"),
           ("2/6", "expert-0/cpu:0@50 expert-1/cpu:0"), ("2/7", "expert-0/cpu:0!!")]


class Edits:
    """nodes: names whose cpu:0 may be wanted. n_holders: how many of them every value names at
    least, so that one of them may be away."""

    def __init__(self, cluster, seed, nodes, n_holders=1, invalid=0.1):
        self.cluster, self.rng, self.nodes = cluster, random.Random(seed), list(nodes)
        self.n_holders, self.invalid = n_holders, invalid
        self.n_done = self.n_invalid = 0
        self.last = []  # the newest ones, for whoever has to explain a failure

    def redis_cli(self, *args):
        done = subprocess.run(["redis-cli", "-s", self.cluster.redis_path, *args], check=True,
                              capture_output=True, text=True)
        assert not done.stdout.startswith(("ERR", "(error)")), done.stdout

    def _holders(self, n):
        return [f"{node}/cpu:0" for node in self.rng.sample(self.nodes, min(n, len(self.nodes)))]

    def _value(self):
        at_least = self.n_holders
        kind = self.rng.choice(["move", "replicas", "shares", "shadow", "nowhere"])
        if kind == "move":
            return " ".join(self._holders(at_least))
        if kind == "replicas":
            return " ".join(self._holders(self.rng.randint(max(2, at_least), len(self.nodes))))
        if kind == "shares":
            first, second = self._holders(2)
            share = self.rng.randint(1, 99)
            return f"{first}@{share} {second}@{100 - share}"
        if kind == "shadow" and len(self.nodes) > at_least:
            *holders, shadow = self._holders(at_least + 1)
            return " ".join([*holders, f"{shadow}@shadow"])
        # Followed as far as possible: nobody knows that node, or it has no such device.
        lost = self.rng.choice(["expert-99/cpu:0", f"{self.nodes[0]}/cpu:7"])
        if at_least > 1 or self.rng.random() < 0.7:
            return " ".join([*self._holders(at_least), lost])
        return lost

    def _field(self):
        kind = self.rng.random()
        layer, expert = self.rng.randrange(LAYERS), self.rng.randrange(EXPERTS)
        if kind < 0.06:
            return f"*/{expert}"
        if kind < 0.12:
            return f"{layer}/*"
        if kind < 0.14:
            return "*/*"
        return f"{layer}/{expert}"

    def one(self):
        """Makes one edit; returns what was typed."""
        key = self.cluster.placement_key
        if self.rng.random() < self.invalid:
            field, value = self.rng.choice(INVALID)
            command = ["HSET", key, field, value]
            self.n_invalid += 1
        elif self.rng.random() < 0.06:
            command = ["HDEL", key, f"{self.rng.randrange(LAYERS)}/{self.rng.randrange(EXPERTS)}"]
        else:
            pairs = [x for _ in range(self.rng.choice([1, 1, 1, 4]))
                     for x in (self._field(), self._value())]
            command = ["HSET", key, *pairs]
        self.redis_cli(*command)
        self.n_done += 1
        self.last = [*self.last[-9:], command[2:]]
        return command[2:]

    def repair(self):
        """Takes back what is refused, so that the hash says what is in force."""
        with self.cluster.redis() as r:
            for field, _ in INVALID:
                r.hdel(self.cluster.placement_key, field)
            r.hset(self.cluster.placement_key, "*/*", " ".join(self._holders(self.n_holders)))
