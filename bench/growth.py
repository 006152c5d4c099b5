#!/usr/bin/env python3
"""How the cost of a token grows: with the experts of a layer, the nodes of a cluster, the requests at
the same time, and the context; in one process and in a cluster, each beside what the machine's limits
of the same minutes let one expect. Writes DATE-COMMIT-growth.json, .md and .svg into bench/results/.

  bench/growth.py                        everything (about twenty minutes)
  bench/growth.py --only nodes,context   parts: experts, nodes, requests, context
  bench/growth.py --quick                few points, to see that it works; not for keeping
"""
import argparse
import datetime
import json
import pathlib
import shutil
import statistics
import sys
import tempfile

import bench_curves
from bench_model import Shape, pseudo_random_ids
from bench_process import Cluster, Failed, OneProcess, call
from run import ROOT, build, describe_machine, dram_gbps, peak_gflops, git, log, machine_limits

CURVES = ("experts", "nodes", "requests", "context")


def arguments():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    p.add_argument("--out", type=pathlib.Path, default=ROOT / "bench" / "results")
    p.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("/tmp/switchyard-bench"),
                   help="where synthetic checkpoints are written, and removed again")
    p.add_argument("--only", default=",".join(CURVES), help="curves, separated by commas")
    p.add_argument("--rounds", type=int, default=3, help="repetitions of every point; odd")
    p.add_argument("--threads", type=int, default=2, help="compute threads of every process")
    p.add_argument("--quick", action="store_true", help="one round of few points")
    p.add_argument("--no-build", action="store_true", help="measure the programs as they are")
    args = p.parse_args()
    if args.quick:
        args.rounds = 1
    return args


class Synthetic:
    """A checkpoint that exists for a `with` block."""

    def __init__(self, args, **sizes):
        self.args, self.sizes = args, sizes

    def __enter__(self):
        self.args.cache.mkdir(parents=True, exist_ok=True)
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="growth-", dir=self.args.cache)) / "model"
        options = [word for name, value in self.sizes.items()
                   for word in (f"--{name.replace('_', '-')}", value)]
        call([self.args.build / "bin" / "switchyard", "synth", "--out", self.path, "--family",
              "mixtral", *options])
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path.parent)


def programs(args, path, experts=2):
    bin_dir = args.build / "bin"
    return {"one process": lambda: OneProcess(bin_dir, path, args.threads),
            "cluster": lambda: Cluster(bin_dir, path, args.threads, experts=experts)}


def decode_us(program, prompt, n):
    return 1e6 / program.generate(prompt, n)["timing"]["decode_tokens_per_s"]


def same_tokens(what, answers):
    """Nothing is timed before everybody gives the same tokens."""
    if any(a != answers[0] for a in answers):
        raise Failed(f"{what}: tokens differ: {answers}")


def measure(args, what, make, ask):
    """Medians of `ask(program)` for each program, in alternation; the limits are those of the same
    rounds. ask gives a number of microseconds a token, and the tokens."""
    rounds, limits = {name: [] for name in make}, []
    for _ in range(args.rounds):
        limits.append(machine_limits(args))
        answers = []
        for name, open_program in make.items():
            with open_program() as program:
                us, tokens = ask(program)
            rounds[name].append(us)
            answers.append(tokens)
        same_tokens(what, answers)
    point = {name: statistics.median(us) for name, us in rounds.items()}
    log(f"{what}: " + ", ".join(f"{name} {us:,.0f} us" for name, us in point.items()))
    return {"us": point, "rounds": rounds, "dram_gbps": statistics.median(map(dram_gbps, limits)),
            "fma_gflops": statistics.median(map(peak_gflops, limits))}


def alone(prompt, n):
    """Decode of one sequence after a first short answer, which pays for connections."""
    def ask(program):
        tokens = program.generate(prompt, 8)["tokens"]
        return decode_us(program, prompt, n), tokens
    return ask


# ---- the curves: points with what is expected of each ----

def curve_experts(args):
    points = []
    for experts in (8, 64, 512) if args.quick else (8, 16, 32, 64, 128, 256, 512):
        with Synthetic(args, layers=2, hidden=1024, heads=16, kv_heads=4, head_dim=64, ffn=512,
                       experts=experts, top_k=8, vocab=8192, context=512) as path:
            shape = Shape(path)
            p = measure(args, f"{experts} experts", programs(args, path),
                        alone(pseudo_random_ids(shape, 4, 1), 128))
        p |= {"x": experts, "law_us": shape.step_bytes(1) / p["dram_gbps"] / 1e3}
        points.append(p)
    return {"x": "experts a layer", "points": points,
            "law": "bytes of the token's own weights / DRAM: only the gate's share grows"}


def nodes_touched(n, k):
    """Expected number of nodes that hold some of k experts, spread evenly over n."""
    return n * (1 - (1 - 1 / n) ** k)


def curve_nodes(args):
    points = []
    stream = json.loads(call([args.build / "bin" / "bench_stream", "--json", "--quick"])[0])
    unix = min((s for s in stream if s["transport"] == "unix"), key=lambda s: s["bytes"])
    one_more_us = unix["fan_out_2_p50_us"] - unix["fan_out_p50_us"]
    with Synthetic(args, layers=2, hidden=1024, heads=16, kv_heads=4, head_dim=64, ffn=512,
                   experts=64, top_k=8, vocab=8192, context=512) as path:
        shape = Shape(path)
        for nodes in (1, 4, 16) if args.quick else (1, 2, 4, 8, 16):
            make = programs(args, path, experts=nodes)
            p = measure(args, f"{nodes} nodes", make, alone(pseudo_random_ids(shape, 4, 1), 128))
            first = points[0] if points else p
            more = nodes_touched(nodes, shape.top_k) - 1
            p |= {"x": nodes, "law_us": first["us"]["cluster"] + shape.layers * more * one_more_us}
            points.append(p)
    return {"x": "expert nodes, all on these cores", "points": points,
            "law": "one node's cost + one more message of a bare fan-out for each further node that "
                   "the token's experts are on, n (1 - (1 - 1/n)^k)"}


def curve_requests(args):
    points = []
    with Synthetic(args, layers=2, hidden=1024, heads=16, kv_heads=4, head_dim=64, ffn=512,
                   experts=64, top_k=8, vocab=8192, context=512) as path:
        shape = Shape(path)
        for n in (1, 16, 256) if args.quick else (1, 2, 4, 8, 16, 32, 64, 128, 256):
            prompts = [pseudo_random_ids(shape, 4, seed) for seed in range(n)]

            def ask(program, prompts=prompts):
                answer = program.at_once(prompts, 64)
                return 1e6 / answer["tokens_per_s"], answer["tokens"]

            p = measure(args, f"{n} requests", programs(args, path), ask)
            together = min(n, 64)  # as many run at the same time, if nobody says otherwise
            flops = together * (shape.prompt_flops() + 2 * shape.head)
            step_us = max(shape.step_bytes(together) / p["dram_gbps"] / 1e3,
                          flops / p["fma_gflops"] / 1e3)
            p |= {"x": n, "law_us": step_us / together}
            points.append(p)
    return {"x": "requests at the same time", "points": points,
            "law": "the larger of bytes touched by a step / DRAM and its multiply-adds / FMA, shared by "
                   "the step's tokens (64 at most)"}


def curve_context(args):
    points, sizes = [], (1024, 4096) if args.quick else (1024, 4096, 8192, 16384, 32768)
    with Synthetic(args, layers=2, hidden=1024, heads=16, kv_heads=4, head_dim=64, ffn=512,
                   experts=16, top_k=2, vocab=8192, context=max(sizes)) as path:
        shape = Shape(path)
        for context in sizes:
            text = path.parent / "prompt"
            text.write_bytes(bytes(97 + i * i % 26 for i in range(context - 40)))

            def ask(program, text=text):
                answer = program.generate_from(text, 32)
                return 1e6 / answer["timing"]["decode_tokens_per_s"], answer["tokens"]

            p = measure(args, f"context {context}", programs(args, path), ask)
            p |= {"x": context, "law_us": (shape.step_bytes(1) + shape.kv_bytes(context)) /
                  p["dram_gbps"] / 1e3}
            points.append(p)
    return {"x": "tokens of context", "points": points,
            "law": "(bytes of weights + keys and values of the context) / DRAM"}


def main():
    args = arguments()
    args.build = args.build.resolve()
    if not args.no_build:
        build(args)
    unknown = set(args.only.split(",")) - set(CURVES)
    if unknown:
        sys.exit(f"bench/growth.py: no such curve: {', '.join(sorted(unknown))}")
    commit = git("rev-parse", "--short=10", "HEAD") or "unknown"
    result = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
              "commit": commit + ("-dirty" if git("status", "--porcelain") else ""),
              "machine": describe_machine(), "threads": args.threads, "rounds": args.rounds,
              "quick": args.quick, "curves": {}}
    for name in args.only.split(","):
        result["curves"][name] = globals()[f"curve_{name}"](args)
    args.out.mkdir(parents=True, exist_ok=True)
    stem = f"{result['date'][:10]}-{result['commit']}-growth"
    (args.out / f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.out / f"{stem}.md").write_text(bench_curves.markdown(result))
    (args.out / f"{stem}.svg").write_text(bench_curves.svg(result))
    print(bench_curves.markdown(result))
    log(f"kept as {args.out / stem}.json, .md and .svg")


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(f"bench/growth.py: {failure}")
