#!/usr/bin/env python3
"""Measures what placement costs while traffic flows: how soon an edit is in force everywhere, how long
the cut-over itself takes, what a migration does to the time between tokens, how long the gap is when
a node dies, is paused or falls silent, and how evenly routers share. Every answer is compared bit by
bit before its time counts. Writes DATE-COMMIT-live.json and .md into bench/results/.

  bench/live.py                     everything (about ten minutes); needs the tests' Python packages
  bench/live.py --only edits,gaps   parts: edits, migration, gaps, routers, placement, balance
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
PARTS = ("placement", "balance", "edits", "migration", "gaps", "routers")


def log(text):
    print(text, file=sys.stderr, flush=True)


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p * len(values)))]


# ---- traffic with a clock ----

class Traffic:
    """Clients that generate without pause. Each checks its tokens against what the same request gave
    before anything happened; the time between two tokens of one answer is a gap."""

    def __init__(self, cluster, n_clients, n_tokens, prompts):
        import sy_client

        self.cluster, self.n_tokens, self.prompts = cluster, n_tokens, prompts
        with cluster.client() as client:
            self.want = [client.generate(p, max_tokens=n_tokens, ignore_eos=True).tokens
                         for p in prompts]
        self.gaps = []  # (when it ended, how long), seconds
        self.answers = 0
        self.lock = threading.Lock()
        self.background = sy_client.Background(n_clients, self._run)

    def _run(self, i, stop):
        with self.cluster.client() as client:
            n = i
            while not stop.is_set():
                self._ask(client, n % len(self.prompts))
                n += 1

    def _ask(self, client, which):
        tokens, gaps, last = [], [], None
        for reply in client.start(self.prompts[which], max_tokens=self.n_tokens, ignore_eos=True):
            if reply.WhichOneof("event") != "delta":
                continue
            now = time.monotonic()
            if last is not None:
                gaps.append((now, now - last))
            last = now
            tokens += reply.delta.token
        assert tokens == self.want[which], "a token changed"
        with self.lock:
            self.gaps += gaps
            self.answers += 1

    def since(self, begin, end=None):
        with self.lock:
            return [g for t, g in self.gaps if begin <= t and (end is None or t <= end)]

    def wait_answers(self, n):
        import sy_client

        goal = self.answers + n
        sy_client.wait_for(lambda: self.answers >= goal or self.background.failures,
                           f"{n} more answers", 120)

    def stop(self):
        self.background.stop(240)


PROMPTS = ["In the beginning", "static int sqlite3", "Natural resources:", "A"]


# ---- an edit is in force everywhere ----

def histogram(cluster, name, metric):
    """(upper bound of the bucket that holds the 99th percentile, samples) in microseconds."""
    from sy_client import http_get

    _, body = http_get(cluster.http(name), "/metrics")
    buckets = [(float(le) if le != "+Inf" else float("inf"), float(n)) for le, n in
               re.findall(rf'^{metric}_bucket{{le="([^"]+)"}} (\S+)$', body, re.M)]
    if not buckets or buckets[-1][1] == 0:
        return None
    total = buckets[-1][1]
    return next(le for le, n in buckets if n >= 0.99 * total) * 1e6, int(total)


def measure_edits(_args):
    from sy_client import wait_for
    from sy_cluster import HandCluster

    cluster = HandCluster(experts=3, routers=2, aggregators=2)
    try:
        traffic = Traffic(cluster, 4, 32, PROMPTS)
        names, delays = cluster.names(), []
        rng = random.Random(1)
        with cluster.redis() as r:
            for _ in range(200):
                before = cluster.hash_of(names[0])
                field = f"{rng.randrange(4)}/{rng.randrange(16)}"
                old = r.hget(cluster.placement_key, field)
                value = rng.choice([v for v in (f"expert-{i}/cpu:0" for i in range(3))
                                    if v != old])
                sent_us = time.time_ns() // 1000
                r.hset(cluster.placement_key, field, value)

                def told():
                    states = [cluster.placement_of(n) for n in names]
                    hashes = {s.get("hash") for s in states}
                    return len(hashes) == 1 and int(states[0]["hash"], 16) != before and states
                states = wait_for(told, "the edit to be in force everywhere")
                delays.append(max(s["taken_us"] for s in states) / 1e3 - sent_us / 1e3)
        traffic.stop()
        cut = histogram(cluster, "aggregator-0", "switchyard_cutover_seconds")
        return {"edits": len(delays), "processes": len(names), "answers": traffic.answers,
                "everywhere_ms": {"p50": percentile(delays, 0.5), "p99": percentile(delays, 0.99),
                                  "max": max(delays)},
                "cutover_us": {"p99_at_most": cut[0], "samples": cut[1]} if cut else None}
    finally:
        cluster.close()


# ---- a quarter of all experts moves ----

def synthetic(args, name):
    path = args.cache / name
    if not (path / "config.json").exists():
        args.cache.mkdir(parents=True, exist_ok=True)
        log(f"writing {path}")
        subprocess.run([args.build / "bin" / "switchyard", "synth", "--preset", name, "--out",
                        path], check=True, stdout=subprocess.DEVNULL)
    return path


def move_a_quarter(cluster, layers, experts, there):
    """A quarter of all experts goes from the first node to the second, or back; returns when all have
    arrived. Before and after, both nodes have work in every layer."""
    from sy_client import wait_for

    node = "expert-1" if there else "expert-0"
    fields = {f"{layer}/{e}": f"{node}/cpu:0" for layer in range(layers)
              for e in range(0, experts, 4)}
    begin = time.monotonic()
    cluster.set_placement(fields)
    wanted = {tuple(map(int, f.split("/"))) for f in fields}

    def arrived():
        time.sleep(0.2)  # asking is work for the node as well
        shards = cluster.shards_of(node) or []
        return wanted <= {(s["layer"], s["expert"]) for s in shards if s["state"] == "resident"}
    wait_for(arrived, "the shards to arrive", 600)
    return begin, time.monotonic(), len(fields)


def window(traffic, begin, end):
    gaps = traffic.since(begin, end)
    return {"tokens": len(gaps), "p50_ms": percentile(gaps, 0.5) * 1e3,
            "p99_ms": percentile(gaps, 0.99) * 1e3}


def migration_cluster(args, name, path, experts):
    import sy_cluster

    cluster = sy_cluster.HandCluster()
    cluster.model_name = name
    cluster.start_redis()
    for i in range(2):
        # Gone as soon as they may, so that the way back loads again.
        cluster.start("expert", i, model=path, linger_s=0, threads=1, load_mb_s=args.load_mb_s,
                      load_from=args.load_from)
    cluster.start("router", 0, model=path)
    cluster.start("aggregator", 0, model=path, threads=1)
    cluster.set_placement({"*/*": "expert-0/cpu:0",
                           **{f"*/{e}": "expert-1/cpu:0" for e in range(1, experts, 2)}})
    return cluster


def measure_migration(args):
    """Pairs of windows of the same length, one with the migration in it and one without."""
    result = {}
    for name in args.models.split(","):
        path = ROOT / "models" / "trio" if name == "trio" else synthetic(args, name)
        config = json.loads((path / "config.json").read_text())
        layers = config["num_hidden_layers"]
        experts = config.get("num_local_experts") or config.get("num_experts")
        cluster = migration_cluster(args, name, path, experts)
        try:
            cluster.wait_ready(timeout_s=300)
            cluster.wait_connected()
            traffic = Traffic(cluster, args.migration_clients, 64,
                              [[1, 5, 9, 13 + i] for i in range(4)])
            traffic.wait_answers(8)
            pairs, moved, there = [], 0, True
            for _ in range(args.rounds):
                begin, arrived, moved = move_a_quarter(cluster, layers, experts, there)
                there = not there
                time.sleep(max(0.0, begin + args.window_s - time.monotonic()))
                end = time.monotonic()
                traffic.wait_answers(2)
                quiet_begin = time.monotonic()
                while time.monotonic() - quiet_begin < arrived - begin:
                    time.sleep(0.2)
                    cluster.shards_of("expert-0")
                time.sleep(max(0.0, quiet_begin + (end - begin) - time.monotonic()))
                quiet_end = time.monotonic()
                traffic.wait_answers(2)
                pairs.append({"migration_s": arrived - begin,
                              "during": window(traffic, begin, arrived),
                              "with": window(traffic, begin, end),
                              "without": window(traffic, quiet_begin, quiet_end)})
                log(f"{name}: {pairs[-1]}")
            traffic.stop()
            result[name] = {
                "shards_moved": moved, "load_mb_s": args.load_mb_s, "load_from": args.load_from,
                "rounds": pairs,
                "p99_ratio_median": statistics.median(
                    p["during"]["p99_ms"] / p["without"]["p99_ms"] for p in pairs),
                "p99_ratio_of_windows_median": statistics.median(
                    p["with"]["p99_ms"] / p["without"]["p99_ms"] for p in pairs),
                "p50_ratio_median": statistics.median(
                    p["during"]["p50_ms"] / p["without"]["p50_ms"] for p in pairs)}
        finally:
            cluster.close()
    return result


# ---- a node dies, is paused, falls silent ----

def measure_gaps(args):
    from sy_client import wait_for
    from sy_namespaces import NamespaceCluster

    nodes = ["expert-0", "expert-1", "expert-2"]
    placement = {f"{layer}/{e}": f"{nodes[(layer + e) % 3]}/cpu:0 {nodes[(layer + e + 1) % 3]}/cpu:0"
                 for layer in range(4) for e in range(16)}
    result = {}
    for hedge in ("on", "off"):
        cluster = NamespaceCluster(experts=3, routers=2, aggregator_options={"hedge": hedge})
        try:
            cluster.set_placement(placement)
            cluster.wait_ready()
            cluster.wait_connected()
            traffic = Traffic(cluster, args.clients, 200, PROMPTS)
            traffic.wait_answers(args.clients)
            rng, rounds = random.Random(1), []
            for i in range(args.failures):
                way, victim = ("kill", "pause", "cut off")[i % 3], rng.choice(nodes)
                begin = time.monotonic()
                process = cluster.process[victim]
                if way == "kill":
                    process.kill()
                elif way == "pause":
                    process.signal(signal.SIGSTOP)
                else:
                    cluster.network.drop(victim)
                traffic.wait_answers(2 * args.clients)
                end = time.monotonic()
                if way == "kill":
                    process.start()
                elif way == "pause":
                    process.signal(signal.SIGCONT)
                else:
                    cluster.network.heal(victim)
                cluster.wait_ready(victim)
                wait_for(lambda: all(n["up"] and not n["suspect"] and n["resident"] >= 40
                                     for n in cluster.nodes_of("aggregator-0")),
                         "all nodes to be used again")
                traffic.wait_answers(args.clients)
                rounds.append({"way": way, "longest_ms": max(traffic.since(begin, end)) * 1e3})
                log(f"hedge {hedge}: {rounds[-1]}")
            traffic.stop()
            quiet = traffic.since(0)
            failures = cluster.metric("aggregator-0", "switchyard_layer_failures_total")
            result[f"hedge {hedge}"] = {
                "rounds": rounds, "answers": traffic.answers, "failed_layers": failures,
                "longest_ms": {way: max(r["longest_ms"] for r in rounds if r["way"] == way)
                               for way in ("kill", "pause", "cut off")},
                "usual_p50_ms": percentile(quiet, 0.5) * 1e3}
        finally:
            cluster.close()
    return result


# ---- routers come and go ----

def measure_routers(_args):
    from sy_client import wait_for
    from sy_cluster import HandCluster

    cluster = HandCluster(experts=1, routers=1, aggregators=1)
    try:
        traffic = Traffic(cluster, 4, 32, PROMPTS)
        traffic.wait_answers(8)

        def served():
            return [cluster.metric(f"router-{i}", "switchyard_route_seconds_count") or 0
                    for i in range(4) if f"router-{i}" in cluster.process]
        begin = time.monotonic()
        for i in range(1, 4):
            cluster.start("router", i)
        wait_for(lambda: all(n > 0 for n in served()) and len(served()) == 4,
                 "every router to take traffic")
        first_s = time.monotonic() - begin
        time.sleep(2.0)
        before = served()
        time.sleep(3.0)
        each = [b - a for a, b in zip(before, served())]
        for i in range(3):
            assert cluster.process[f"router-{i}"].terminate() == 0
        traffic.wait_answers(8)
        traffic.stop()
        mean = sum(each) / 4
        return {"all_four_take_traffic_after_s": first_s, "messages_each": each,
                "farthest_from_even": max(abs(n - mean) / mean for n in each),
                "answers": traffic.answers,
                "failed_layers": cluster.metric("aggregator-0",
                                                "switchyard_layer_failures_total")}
    finally:
        cluster.close()


# ---- programs that measure pure parts ----

def run_program(args, name):
    out = subprocess.run([args.build / "bin" / name], check=True, capture_output=True, text=True)
    return [json.loads(line) for line in out.stdout.splitlines()]


def table(header, rows):
    return ["| " + " | ".join(header) + " |", "|" + "---|" * len(header),
            *("| " + " | ".join(str(x) for x in row) + " |" for row in rows), ""]


def report_edits(r):
    e, c = r["everywhere_ms"], r["cutover_us"]
    return [f"{r['edits']} edits, one at a time, while 4 clients generate ({r['answers']} answers, no token "
            f"changed); in force in all {r['processes']} processes after {e['p50']:.1f} ms (p50), "
            f"{e['p99']:.1f} ms (p99), {e['max']:.1f} ms (max). The cut-over in an aggregator: "
            f"p99 at most {c['p99_at_most']:.0f} us.", ""]


def report_migration(r):
    rows = [[m, v["shards_moved"], f"{statistics.median(p['migration_s'] for p in v['rounds']):.2f} s",
             f"{statistics.median(p['without']['p50_ms'] for p in v['rounds']):.2f} / "
             f"{statistics.median(p['without']['p99_ms'] for p in v['rounds']):.2f}",
             f"{statistics.median(p['during']['p50_ms'] for p in v['rounds']):.2f} / "
             f"{statistics.median(p['during']['p99_ms'] for p in v['rounds']):.2f}",
             f"{v['p50_ratio_median']:.3f}", f"{v['p99_ratio_median']:.3f}",
             f"{v['p99_ratio_of_windows_median']:.3f}"] for m, v in r.items()]
    pace = next(iter(r.values()))["load_mb_s"]
    return [f"A quarter of all experts moves to the other node and back ({pace} MB/s). Milliseconds between "
            "two tokens; medians of paired rounds. The last column compares whole windows of some "
            "seconds, with the migration in one of them: where it lasts a fraction of a second, p99 "
            "during it is that of a few hundred tokens.", "",
            *table(["model", "shards", "takes", "p50 / p99 without", "during", "p50 ratio", "p99 ratio",
                    "p99 ratio, windows"], rows)]


def report_gaps(r):
    rows = [[k, len(v["rounds"]), v["answers"], int(v["failed_layers"]), f"{v['usual_p50_ms']:.1f}",
             *(f"{v['longest_ms'][way]:.0f}" for way in ("kill", "pause", "cut off"))]
            for k, v in r.items()]
    return ["Every expert on two of three nodes, 8 clients. The longest gap between two tokens of one answer, ms:",
            "", *table(["", "rounds", "answers", "failed", "usual p50", "kill -9", "SIGSTOP",
                        "packets dropped"], rows)]


def report_routers(r):
    return [f"1 -> 4 -> 1 replicas: all four take traffic {r['all_four_take_traffic_after_s']:.2f} s after "
            f"their start, load within {100 * r['farthest_from_even']:.1f} % of even, "
            f"{int(r['failed_layers'])} failures in {r['answers']} answers.", ""]


def report_placement(r):
    return ["61 layers x 256 experts on 64 nodes, median us:", "",
            *table(["what", "different values", "us"],
                   [[x["what"].replace("_", " "), x["lists"], f"{x['median_us']:.0f}"] for x in r])]


def report_balance(r):
    rows = [[x["trace"], f"{x['layers']} x {x['experts']} on {x['devices']}", f"{x['before']:.3f}",
             f"{min(x['eplb_global'], x['eplb_hierarchical']):.3f}", f"{x['ours']:.3f}",
             f"{x['worst_layer']:.3f}", x["shards_moved"], f"{x['lazy']:.3f}", x["lazy_shards_moved"],
             f"{x['ms']:.0f}"] for x in r]
    return ["max / mean load of devices, mean over layers. EPLB: the better of its two policies. Lazy: as the "
            "command does, with as few moves as make it 1.05.", "",
            *table(["trace", "problem", "before", "EPLB", "ours", "worst layer", "shards moved", "lazy",
                    "moved", "ms"], rows)]


def report(result):
    lines = [f"# Placement while traffic flows, {result['date']}, commit {result['commit']}", "",
             f"{result['machine']}. `bench/live.py`; every answer was compared with the one without events.",
             ""]
    for part in PARTS:
        if part in result:
            lines += [f"## {part}", "", *globals()[f"report_{part}"](result[part])]
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    p.add_argument("--out", type=pathlib.Path, default=ROOT / "bench" / "results")
    p.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("/tmp/switchyard-bench"))
    p.add_argument("--models", default="trio,olmoe4", help="for the migration: trio, or synth presets")
    p.add_argument("--rounds", type=int, default=9, help="pairs of windows of the migration")
    p.add_argument("--window-s", type=float, default=8.0, help="of the migration's windows")
    p.add_argument("--load-mb-s", type=int, default=100, help="expert nodes' pace of loading")
    p.add_argument("--load-from", default="checkpoint", help="checkpoint or peers")
    p.add_argument("--migration-clients", type=int, default=2)
    p.add_argument("--failures", type=int, default=20, help="rounds of the kill loop")
    p.add_argument("--clients", type=int, default=8)
    p.add_argument("--only", default=",".join(PARTS))
    args = p.parse_args()
    os.environ["SY_BUILD"] = str(args.build)
    import sy_client

    sy_client.load(tempfile.mkdtemp(prefix="sy-stubs-"))
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=10", "HEAD"],
                            capture_output=True, text=True, check=True).stdout.strip()
    result = {"date": datetime.date.today().isoformat(), "commit": commit,
              "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    measure = {"edits": measure_edits, "migration": measure_migration, "gaps": measure_gaps,
               "routers": measure_routers,
               "placement": lambda a: run_program(a, "bench_placement"),
               "balance": lambda a: run_program(a, "bench_balance")}
    for part in PARTS:
        if part in args.only.split(","):
            log(f"== {part}")
            result[part] = measure[part](args)
    name = args.out / f"{result['date']}-{commit}-live"
    name.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    name.with_suffix(".md").write_text(report(result))
    print(report(result))


if __name__ == "__main__":
    main()
