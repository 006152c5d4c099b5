#!/usr/bin/env python3
"""Measures Switchyard on this machine, beside what the machine could do at best: one process
against clusters, in alternation, after checking that all of them give the same tokens. Writes
DATE-COMMIT.json, .md and .svg into bench/results/. bench/README.md explains every figure.

  bench/run.py                      everything (about an hour)
  bench/run.py --quick --models trio   a minute, to see that it works; not for keeping
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys

import bench_report
from bench_model import Shape, pseudo_random_ids, trained_ids
from bench_process import Cluster, Failed, OneProcess, call, raise_priority

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGETS = ["switchyard", "switchyard-router", "switchyard-expert", "switchyard-aggregator",
           "bench_machine", "bench_stream"]
PROMPT_TOKENS = 512
CONCURRENT = (8, 16)
STATES = ("route", "dispatch", "compute", "combine")
# How weights are held and multiplied: options, and the arithmetic whose limit counts.
FORMATS = {"as-stored": ([], "fma"),
           "bf16": (["--activations", "bf16"], "bf16"),
           "q8": (["--weights", "q8", "--activations", "q8"], "int8"),
           "q4": (["--weights", "q4", "--activations", "q8"], "int8")}
# Shapes that `switchyard synth` has no preset for: what its options must say.
SHAPES = {
    "mixtral8": {"family": "mixtral", "layers": 8, "hidden": 1024, "heads": 16, "kv-heads": 8,
                 "head-dim": 64, "experts": 8, "top-k": 2, "ffn": 3584, "vocab": 32000,
                 "context": 4096},
    "granite1b": {"family": "mixtral", "layers": 24, "hidden": 1024, "heads": 16, "kv-heads": 8,
                  "head-dim": 64, "experts": 32, "top-k": 8, "ffn": 512, "vocab": 49152,
                  "context": 4096},
}


def log(text):
    print(text, file=sys.stderr, flush=True)


def arguments():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release",
                   help="build folder; what is measured is built in it first")
    p.add_argument("--out", type=pathlib.Path, default=ROOT / "bench" / "results",
                   help="where results are kept")
    p.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("/tmp/switchyard-bench"),
                   help="where synthetic checkpoints are kept (olmoe4: 3.7 GB)")
    p.add_argument("--models", default="trio,olmoe4,mixtral8,granite1b",
                   help="trio (bundled), presets of `switchyard synth`, or shapes known here, "
                        "separated by commas")
    p.add_argument("--formats", default=",".join(FORMATS),
                   help="how weights are held, separated by commas; trio is small, and stays as "
                        "stored")
    p.add_argument("--rounds", type=int, default=3, help="repetitions of everything; odd")
    p.add_argument("--threads", type=int, default=2, help="compute threads of every process")
    p.add_argument("--quick", action="store_true", help="one short round")
    p.add_argument("--raise-priority", action="store_true",
                   help="before everybody else's work on a shared machine; needs root")
    p.add_argument("--no-build", action="store_true", help="measure the programs as they are")
    args = p.parse_args()
    if args.quick:
        args.rounds = 1
    return args


# ---- what is measured ----

class Model:
    """A checkpoint with the prompts for it, and how its weights are held."""

    def __init__(self, name, path, weights, args):
        self.name, self.path, self.weights = name, path, weights
        self.shape = Shape(path, weights)
        self.golden = [json.loads(p.read_text()) for p in sorted((path / "golden").glob("*.json"))]
        self.is_small = self.shape.step_bytes(1) < 64 << 20
        self.decode_tokens = (128 if self.is_small else 16) if args.quick else \
            (512 if self.is_small else 64)
        self.at_once_tokens = min(self.decode_tokens, 128 if self.is_small else 32)
        self.prompt = self.ids(min(PROMPT_TOKENS, self.shape.context - 8), 0)
        self.start = self.ids(4, 1)

    def ids(self, n, seed):
        if self.golden:
            return trained_ids(self.golden, n, seed)
        return pseudo_random_ids(self.shape, n, seed)

    def prompts(self, n):
        return [self.ids(4, seed) for seed in range(n)]


def find_checkpoint(name, args):
    if name == "trio":
        return ROOT / "models" / "trio"
    path = args.cache / name
    if not (path / "config.json").exists():
        args.cache.mkdir(parents=True, exist_ok=True)
        log(f"writing {path}")
        part = args.cache / f"{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        what = [w for k, v in SHAPES[name].items() for w in (f"--{k}", v)] \
            if name in SHAPES else ["--preset", name]
        call([args.build / "bin" / "switchyard", "synth", *what, "--out", part])
        part.rename(path)
    return path


def find_models(args):
    for name in args.models.split(","):
        path = find_checkpoint(name, args)
        for weights in args.formats.split(",") if name != "trio" else ("as-stored",):
            yield Model(name if weights == "as-stored" else f"{name} {weights}", path, weights, args)


def configurations(model, args):
    """In the order they are measured within a round. Names are those of the report."""
    bin_dir, threads = args.build / "bin", args.threads

    def cluster(**options):
        return Cluster(bin_dir, model.path, threads, is_raised=args.raise_priority,
                       options=FORMATS[model.weights][0], **options)

    configs = {"one process": lambda: OneProcess(bin_dir, model.path, threads,
                                                 FORMATS[model.weights][0]),
               "cluster, 2 nodes": lambda: cluster(experts=2)}
    if model.weights == "as-stored":
        configs |= {"cluster, 1 node": lambda: cluster(experts=1),
                    "cluster, 2 nodes, gate in process":
                        lambda: cluster(experts=2, router="inproc")}
        if not model.is_small:
            configs |= {f"cluster, {n} node{'s' * (n > 1)} of one thread":
                        lambda n=n: cluster(experts=n, expert_threads=1) for n in (1, 2)}
    return configs


# ---- correctness, before anything is timed ----

def check_tokens(model, configs):
    """Greedy tokens: the reference's where there are golden files, and everybody's the same. Rounded
    weights give other tokens than the reference's, and everywhere the same ones."""
    wanted = [(g["prompt_tokens"], len(g["greedy_tokens"]), g["greedy_tokens"])
              for g in model.golden] or [(model.start, 12, None), (model.prompt[:40], 12, None)]
    first = None
    for name, make in configs.items():
        with make() as program:
            got = [program.generate(ids, n)["tokens"] for ids, n, _ in wanted]
            got += program.at_once(model.prompts(CONCURRENT[0]), 12)["tokens"]
        for tokens, (ids, _, want) in zip(got, wanted):
            if want is not None and tokens != want:
                raise Failed(f"{model.name}, {name}: prompt {ids[:8]}: tokens {tokens}, "
                             f"the reference says {want}")
        first = first or got
        if got != first:
            raise Failed(f"{model.name}, {name}: tokens {got} differ from one process: {first}")
        log(f"{model.name}: {name}: tokens are right")
    return {"prompts": len(first), "against": "reference" if model.golden else "one process"}


# ---- figures ----

def machine_limits(args):
    return json.loads(call([args.build / "bin" / "bench_machine",
                            *(["--quick"] if args.quick else [])])[0])


def dram_gbps(limits):
    return max(d["gbps"] for d in limits["dram"])


def peak_gflops(limits, arithmetic="fma"):
    return max(f["gflops"] for f in limits[arithmetic])


def measure_once(program, model, limits):
    """Every figure of one configuration in one round, with its shares of this round's limits."""
    shape = model.shape
    program.generate(model.start, 4)  # the first request pays for pages and connections
    prefill = program.generate(model.prompt, 1)["timing"]["prefill_tokens_per_s"]
    timing = program.generate(model.start, model.decode_tokens)["timing"]
    decode = timing["decode_tokens_per_s"]
    n_calls = shape.layers * model.decode_tokens  # the short prompt is one step
    figures = {"decode_tokens_per_s": decode, "prefill_tokens_per_s": prefill,
               "decode_dram_share": decode * shape.step_bytes(1) / dram_gbps(limits) / 1e9,
               "prefill_peak_share": prefill * shape.prompt_flops() / 1e9 /
               peak_gflops(limits, FORMATS[model.weights][1]),
               "token_us": 1e6 / decode}
    for state in STATES:
        figures[f"layer_{state}_us"] = timing[f"{state}_ms"] * 1e3 / n_calls
    layers_us = sum(figures[f"layer_{s}_us"] for s in STATES) * shape.layers
    figures["rest_us"] = figures["token_us"] - layers_us
    for n in CONCURRENT:
        rate = program.at_once(model.prompts(n), model.at_once_tokens)["tokens_per_s"]
        figures[f"at_once_{n}_tokens_per_s"] = rate
        figures[f"at_once_{n}_dram_share"] = rate / n * shape.step_bytes(n) / \
            dram_gbps(limits) / 1e9
    return figures


def measure_model(model, args):
    configs = configurations(model, args)
    checked = check_tokens(model, configs)
    rounds, limits, peaks = {name: [] for name in configs}, [], {}
    for i in range(args.rounds):
        for name, make in configs.items():
            limits.append(machine_limits(args))
            with make() as program:
                rounds[name].append(measure_once(program, model, limits[-1]))
                peaks[name] = program.peak_bytes()
            log(f"{model.name}, round {i + 1}: {name}: "
                f"{rounds[name][-1]['decode_tokens_per_s']:.1f} tokens/s")
    for i in range(args.rounds):  # ratios within a round: a slow minute hits both sides
        alone = rounds["one process"][i]
        for name in configs:
            for key in ("decode_tokens_per_s", "prefill_tokens_per_s"):
                rounds[name][i][key.replace("tokens_per_s", "to_one_process")] = \
                    rounds[name][i][key] / alone[key]
    return {"shape": model.shape.describe(), "checked": checked, "limits": limits,
            "prompt_tokens": len(model.prompt), "decode_tokens": model.decode_tokens,
            "fits_in_cache": model.shape.memory_bytes() <= last_cache_bytes(),
            "configurations": {name: {"median": medians(rounds[name]), "rounds": rounds[name],
                                      "peak_bytes": peaks[name]} for name in configs}}


def medians(rounds):
    return {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}


# ---- the machine and the commit ----

def last_cache_bytes():
    sizes = [p.read_text().strip() for p in
             pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(s[:-1]) << {"K": 10, "M": 20}[s[-1]] for s in sizes), default=0)


def git(*argv):
    done = subprocess.run(["git", "-C", str(ROOT), *argv], capture_output=True, text=True,
                          check=False)
    return done.stdout.strip()


def describe_machine():
    cpu = [line.split(":", 1)[1].strip() for line in
           pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = pathlib.Path("/proc/meminfo").read_text().split()[1]
    return {"cpu": cpu[0] if cpu else platform.machine(), "cores": os.cpu_count(),
            "memory_bytes": int(memory) << 10, "last_cache_bytes": last_cache_bytes(),
            "kernel": platform.release(), "load_average": os.getloadavg()[0]}


def build(args):
    if not (args.build / "CMakeCache.txt").exists():
        subprocess.run(["cmake", "-S", str(ROOT), "-B", str(args.build), "-G", "Ninja",
                        "-DCMAKE_BUILD_TYPE=Release"], check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", str(args.build), "--target", *TARGETS], check=True,
                   stdout=sys.stderr)


def main():
    args = arguments()
    args.build = args.build.resolve()
    if not args.no_build:
        build(args)
    machine = describe_machine()
    if args.raise_priority:
        raise_priority("self")
    if machine["load_average"] > 0.5:
        log(f"the load average is {machine['load_average']:.1f}: absolute figures will be low; "
            "read ratios and shares")
    commit = git("rev-parse", "--short=10", "HEAD") or "unknown"
    result = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
              "commit": commit + ("-dirty" if git("status", "--porcelain") else ""),
              "machine": machine, "threads": args.threads, "rounds": args.rounds,
              "quick": args.quick,
              "raised_priority": args.raise_priority, "limits": machine_limits(args),
              "streams": json.loads(call([args.build / "bin" / "bench_stream", "--json",
                                          *(["--quick"] if args.quick else [])])[0]),
              "exchanges": json.loads(call([args.build / "bin" / "bench_stream", "--layers", "--json",
                                            *(["--quick"] if args.quick else [])])[0]),
              "models": {}}
    for model in find_models(args):
        result["models"][model.name] = measure_model(model, args)
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / f"{result['date'][:10]}-{result['commit']}"
    stem.with_name(stem.name + ".json").write_text(json.dumps(result, indent=1) + "\n")
    stem.with_name(stem.name + ".md").write_text(bench_report.markdown(result))
    stem.with_name(stem.name + ".svg").write_text(bench_report.svg(result))
    print(bench_report.markdown(result))
    log(f"kept as {stem}.json, .md and .svg")


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(f"bench/run.py: {failure}")
