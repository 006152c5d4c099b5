#!/usr/bin/env python3
"""Counts the instructions of layer calls and of matrix products under callgrind, and compares them
with instructions.json.

    tests/perf/instructions.py           compares; --build DIR: other programs than build/release's
    tests/perf/instructions.py --renew   writes what it has counted as the new baseline

Layer calls. guard_layer dumps the profile where its warm-up ends and where its calls end, so what
counts is the calls, in all threads, and nothing of the start. (The difference of two runs of
different lengths, tried first, moves by 8 %: what nodes announce at the start depends on timing.)
Three figures, each of this system's own objects:

  kernels  functions of kernels/: the same number on every run
  copies   memcpy and its like, called by own code: within 1.2 %; from 2 KB on one a byte
  code     all other functions of lib/ and services/, and protobuf-c, which packs only our messages:
           within 1 %; within 2.5 % for 16 rows in the worst of three times five runs, on two
           cores with a load of 10 to 13. Nearly all of that is lib/rpc, where threads look at the
           clock and park for a millisecond at a time.

gRPC and the rest of the C library are left out: they follow the scheduler, by a tenth and more.

Kernels. count_kernels has one thread: the same number on every run, for each product.

Needs no more than Python and valgrind, and a processor with AVX2: valgrind 3.19 knows no AVX-512,
and multiply-adds are emulated, so few calls must do.
"""
import argparse
import collections
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASELINE = pathlib.Path(__file__).with_name("instructions.json")
RENEW = "tests/perf/instructions.py --renew"
HIDDEN = 512
CALLS = {1: 100, 16: 15}  # by rows: a call of 16 takes 0.2 s
TOLERANCE_PERCENT = {"kernels": 2, "copies": 5, "code": 10, "products": 2}
# What guard_layer makes its inputs with, and layer calls never use.
INPUTS = {"sy_splitmix64", "sy_unit_float"}
# From 2 KB on bytes are copied by an instruction that counts once a byte, on every machine.
TUNABLES = "glibc.cpu.x86_rep_movsb_threshold=2048"
TIMEOUT_S = 240


class Unfit(Exception):
    """This machine or this build cannot be compared with the baseline."""


class Profile:
    """One dump: self cost by (object, file, function), and what functions spent in memcpy and its
    like. Callgrind names a thing once, as "(number) name", and then by the number alone."""
    KINDS = {"ob": "ob", "cob": "ob", "fn": "fn", "cfn": "fn", "fl": "fl", "fi": "fl", "fe": "fl",
             "cfi": "fl", "cfl": "fl"}

    def __init__(self, path):
        self.cost, self.copies = collections.Counter(), collections.Counter()
        self.copy_functions = set()
        names, last, is_call = {}, {}, False
        for line in path.read_text().splitlines():
            key, _, value = line.partition("=")
            if key in self.KINDS:
                number, _, name = value.partition(" ")
                entry = (self.KINDS[key], number)
                if name:
                    names[entry] = name
                last[key] = names[entry]
            elif key == "calls":
                is_call = True
            elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
                place, n = (last["ob"], last["fl"], last["fn"]), int(line.split()[-1])
                if not is_call:
                    self.cost[place] += n
                elif last["cfn"].startswith("__mem"):
                    self.copies[place] += n
                    self.copy_functions.add(last["cfn"])
                is_call = False


def profiles(program, *args, marks):
    """Runs program; what it printed, and the profiles that end where a function of marks begins."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "profile"
        done = subprocess.run(
            ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}",
             *(f"--dump-before={mark}" for mark in marks), str(program), *map(str, args)],
            env={**os.environ, "SWITCHYARD_KERNELS": "avx2", "GLIBC_TUNABLES": TUNABLES},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode != 0:
            raise RuntimeError(f"{program} under valgrind ended with {done.returncode}\n"
                               f"{done.stdout}{done.stderr}")
        parts = sorted(pathlib.Path(folder).glob("profile.*"), key=lambda p: int(p.suffix[1:]))
        return done.stdout, [Profile(part) for part in parts]


# ---- what is counted ----

@functools.lru_cache(maxsize=None)
def folder_of(source_root, file):
    """lib/wire, kernels, tests/guard ...; functions that begin in a header of the compiler's are
    made of intrinsics. What ccache had from another checkout names that one's files: it is the
    part of a path that exists here as well which counts."""
    if "intrin.h" in file:
        return "kernels"
    parts = os.path.normpath(file).split("/")
    for i in range(len(parts) - 1):
        if parts[i] and os.path.isfile(os.path.join(source_root, *parts[i:])):
            return "kernels" if parts[i] == "kernels" else "/".join(parts[i:i + 2])
    return "other"


def count_layer(build, source_root, n_rows):
    """The figures of a call, and which of libc's ways to copy this processor takes."""
    program = build / "bin" / "guard_layer"
    n_calls = CALLS[n_rows]
    _, parts = profiles(program, "--calls", n_calls, "--rows", n_rows, "--hidden", HIDDEN,
                        "--no-check", marks=("guard_begin", "guard_end"))
    assert len(parts) == 2, f"{len(parts)} profiles of {program}: guard_begin and guard_end make 2"
    folders = collections.Counter()
    copies = 0
    for (binary, file, function), n in (parts[1].cost + parts[1].copies).items():
        place = (binary, file, function)
        if os.path.basename(binary).startswith("libprotobuf-c"):
            folders["protobuf-c"] += parts[1].cost[place]
        elif os.path.basename(binary) == "guard_layer" and function not in INPUTS:
            folder = folder_of(source_root, file)
            if not folder.startswith("tests/"):
                folders[folder] += parts[1].cost[place]
                copies += parts[1].copies[place]
    per_call = {name: round(n / n_calls) for name, n in sorted(folders.items()) if n > 0}
    kernels = per_call.pop("kernels", 0)
    figures = {"kernels": kernels, "copies": round(copies / n_calls),
               "code": sum(per_call.values()), "code_by_folder": per_call}
    ways = {re.sub("^__mem(cpy|move)(_chk)?_", "", f) for f in parts[1].copy_functions
            if f.startswith(("__memcpy", "__memmove"))}
    return figures, " ".join(sorted(ways))


def count_kernels(build):
    """Instructions a thousand products."""
    printed, parts = profiles(build / "bin" / "count_kernels", marks=("run_case*", "end_case*"))
    cases = [line.rsplit(": ", 1) for line in printed.splitlines()]
    assert len(parts) == 2 * len(cases), f"{len(parts)} profiles of {len(cases)} products"
    return {name: round(1000 * sum(part.cost.values()) / int(n), 2)
            for (name, n), part in zip(cases, parts[1::2])}


# ---- where ----

def made_with(build):
    """What the counts depend on besides the sources."""
    cache = (build / "CMakeCache.txt").read_text()
    compiler = next((build / "CMakeFiles").glob("*/CMakeCCompiler.cmake")).read_text()

    def value(text, pattern):
        found = re.search(pattern, text, re.MULTILINE)
        return found[1] if found else ""

    kind = value(cache, r"^CMAKE_BUILD_TYPE:\w+=(.*)$")
    flags = value(cache, rf"^CMAKE_C_FLAGS_{kind.upper()}:\w+=(.*)$")
    name = value(compiler, r'^set\(CMAKE_C_COMPILER_ID "(.*)"\)')
    version = value(compiler, r'^set\(CMAKE_C_COMPILER_VERSION "(\d+)')
    valgrind = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=True)
    return {"compiler": f"{name} {version}", "build": f"{kind} {flags}",
            "libc": os.confstr("CS_GNU_LIBC_VERSION"),
            "valgrind": re.search(r"\d+\.\d+", valgrind.stdout)[0]}


def require(build):
    if shutil.which("valgrind") is None:
        raise Unfit("valgrind is not installed: deploy/local/install.sh --tests")
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    if "avx2" not in flags or "fma" not in flags:
        raise Unfit("this processor has no AVX2 with FMA")
    for name in ("guard_layer", "count_kernels"):
        if not (build / "bin" / name).exists():
            raise Unfit(f"{build} has no {name}: build it, without sanitizers")


def require_alike(baseline, here):
    for key, value in here.items():
        if baseline["made_with"][key] != value:
            raise Unfit(f"the baseline was made with {key} {baseline['made_with'][key]!r}, this is "
                        f"{value!r}: counts cannot be compared ({RENEW} makes a new baseline)")


def measure(build, baseline=None):
    """All counts. Unfit: not here, or not to be compared with baseline."""
    require(build)
    where = made_with(build)
    if baseline is not None:
        require_alike(baseline, where)
    source_root = re.search(r"^CMAKE_HOME_DIRECTORY:\w+=(.*)$",
                            (build / "CMakeCache.txt").read_text(), re.MULTILINE)[1]
    counted = {"made_with": where, "layer": {}, "kernels": count_kernels(build)}
    for n_rows in CALLS:
        figures, where["copies"] = count_layer(build, source_root, n_rows)
        counted["layer"][f"{n_rows} row{'s' if n_rows > 1 else ''} of {HIDDEN}"] = figures
    if baseline is not None:
        require_alike(baseline, where)
    return counted


# ---- judgement ----

def verdict(what, unit, tolerance_percent, before, now):
    """(1 worse, 0 alike, -1 better; a text with both figures)"""
    change = 100 * (now - before) / before
    text = f"{what}: {now:,} instructions {unit}, {before:,} in the baseline ({change:+.1f} %)"
    if change > tolerance_percent:
        return 1, f"{text}; {tolerance_percent} % are allowed. Meant so? Then {RENEW}"
    if change < -tolerance_percent:
        return -1, f"{text}: better. Keep it so with {RENEW}"
    return 0, text


def judge_layer(case, figure, baseline, counted):
    before, now = baseline["layer"][case], counted["layer"][case]
    sign, text = verdict(f"{figure} of a layer call, {case}", "a call", TOLERANCE_PERCENT[figure],
                         before[figure], now[figure])
    if sign != 0 and figure == "code":
        was, is_now = before["code_by_folder"], now["code_by_folder"]
        for folder in sorted(was.keys() | is_now.keys()):
            text += f"\n  {folder:22} {was.get(folder, 0):9,} -> {is_now.get(folder, 0):9,}"
    return sign, text


def judge_kernel(case, baseline, counted):
    return verdict(f"matrix product, {case}", "a thousand products", TOLERANCE_PERCENT["products"],
                   baseline["kernels"][case], counted["kernels"][case])


def main():
    parser = argparse.ArgumentParser(description="Counts instructions; see the head of this file.")
    parser.add_argument("--build", type=pathlib.Path,
                        default=pathlib.Path(os.environ.get("SY_BUILD", ROOT / "build/release")))
    parser.add_argument("--renew", action="store_true", help="write the baseline")
    args = parser.parse_args()
    try:
        baseline = None if args.renew else json.loads(BASELINE.read_text())
        counted = measure(args.build.resolve(), baseline)
    except Unfit as why:
        print(f"instructions.py: {why}", file=sys.stderr)
        return 2
    if args.renew:
        BASELINE.write_text(json.dumps(counted, indent=1) + "\n")
        print(f"{BASELINE} is renewed")
        return 0
    verdicts = [judge_kernel(case, baseline, counted) for case in baseline["kernels"]]
    verdicts += [judge_layer(case, figure, baseline, counted) for case in baseline["layer"]
                 for figure in ("kernels", "copies", "code")]
    for sign, text in verdicts:
        print(("worse:  " if sign > 0 else "better: " if sign < 0 else "alike:  ") + text)
    return any(sign > 0 for sign, _ in verdicts)


if __name__ == "__main__":
    sys.exit(main())
