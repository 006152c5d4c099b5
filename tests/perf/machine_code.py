#!/usr/bin/env python3
"""Reads the machine code of the CUDA plugin: how many bytes of weights a warp has on their way
whenever it waits for some, kernel by kernel. Needs no GPU.

    tests/perf/machine_code.py                 --build DIR: another build than build/release
    tests/perf/machine_code.py --arch sm_80    another kind of GPU than sm_90a

A GPU's memory gives its bandwidth only to who keeps enough loads under way: bandwidth times latency,
about 27 KB on each multiprocessor of an H200 (4.8 TB/s, 0.7 us, 132 of them). A token decoded alone
gives a multiprocessor four to eight warps, so each should have 4 KB or more on their way while it
waits. Source code does not show it: a compiler that moves a register whose load has not come makes
the warp wait there, and one that gathers loads behind the products leaves none on their way.

Loads complete in the order they were issued. So of a loop that loads weights, run through three
times: when an instruction needs a load, what was issued after that one is still on its way.

Weights are what is loaded 16 bytes a lane, with the hint that L2 may fetch what is beside it:
sy_load_stream and sy_load_stream_shared. Scales of blocks come the same way, and count as much
although eight lanes share one.
cuobjdump and nvdisasm are looked for on PATH, in CUDA's folder and among Python's packages.
"""
import argparse
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parents[2]
WARP_BYTES = 32 * 16  # of one load by all lanes
TIMEOUT_S = 300

FUNCTION = re.compile(r"^\s*Function : (\S+)")
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
REGISTER = re.compile(r"\bR(\d+)\b")
TARGET = re.compile(r"0x([0-9a-f]+)\s*$")

Instruction = collections.namedtuple("Instruction", "address name operands")
# products: of a warp's matrix unit; least: bytes under way at the worst wait; moved: loads that are
# first used by a move; spills: accesses to local memory, in all of the kernel.
Loop = collections.namedtuple("Loop", "kernel loads products least mean moved spills")


class Unfit(Exception):
    """There is no plugin to read, or nothing to read it with."""


def find_tools():
    """The folder of cuobjdump, which calls nvdisasm."""
    packages = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/local/cuda/bin",
               *packages.glob("*/bin")]
    for folder in folders:
        if all(shutil.which(tool, path=folder) for tool in ("cuobjdump", "nvdisasm")):
            return folder
    raise Unfit("cuobjdump and nvdisasm are not there")


def ask_cuobjdump(plugin, *options):
    if not plugin.exists():
        raise Unfit(f"there is no {plugin}: a build without CUDA")
    folder = str(find_tools())
    env = os.environ | {"PATH": folder + os.pathsep + os.environ.get("PATH", "")}
    done = subprocess.run([os.path.join(folder, "cuobjdump"), *options, plugin], text=True, env=env,
                          capture_output=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise Unfit(f"cuobjdump {' '.join(options)}: {done.stderr.strip()[-300:]}")
    return done.stdout


def disassemble(plugin, arch):
    text = ask_cuobjdump(plugin, "-sass", "-arch", arch)
    if "Function :" not in text:
        raise Unfit(f"no code for {arch} in {plugin}")
    return text


def local_bytes(plugin):
    """{(architecture, kernel): bytes of a thread's stack and of other memory that is its own}, of
    all architectures: what has been spilled is there, and arrays that found no registers."""
    arch, kernel, found = None, None, {}
    for line in ask_cuobjdump(plugin, "-res-usage").splitlines():
        if name := re.match(r"\s*arch = (\S+)", line):
            arch = name[1]
        elif name := re.match(r"\s*Function (\S+):", line):
            kernel = name[1]
        elif used := re.search(r"\bSTACK:(\d+).*\bLOCAL:(\d+)", line):
            found[arch, kernel] = int(used[1]) + int(used[2])
    return found


def kernels(text):
    """Names, as the linker has them, and the instructions of each."""
    name, body = None, []
    for line in text.splitlines():
        if found := FUNCTION.match(line):
            if name:
                yield name, body
            name, body = found[1], []
        elif found := INSTRUCTION.match(line):
            body.append(Instruction(int(found[1], 16), found[2], found[3]))
    if name:
        yield name, body


def loads_weights(i):
    return i.name.startswith("LDG") and ".LTC128B.128" in i.name


def is_move(i):
    return i.name.startswith(("MOV", "IMAD.MOV"))


def registers_read(i):
    """All but those of the first operand, which is the result; as many as belong together."""
    operands = i.operands.split(",")
    stores = i.name.startswith("ST")
    used = set()
    for place, operand in enumerate(operands if stores else operands[1:]):
        for found in REGISTER.findall(operand):
            n = 1
            if i.name.startswith("HMMA"):
                n = (4, 2, 4)[min(place, 2)]
            elif stores and ".128" in i.name and "[" not in operand:
                n = 4
            elif ".64" in operand:
                n = 2
            used.update(range(int(found), int(found) + n))
    return used


def inner_loops(body):
    """(begin, end) of those that have no other loop with weights in them."""
    place = {i.address: n for n, i in enumerate(body)}
    spans = []
    for n, i in enumerate(body):
        target = TARGET.search(i.operands) if i.name.startswith("BRA") else None
        begin = place.get(int(target[1], 16)) if target else None
        if begin is not None and begin < n and any(map(loads_weights, body[begin:n])):
            spans.append((begin, n))
    return [s for s in spans
            if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]


def waits(loop):
    """(bytes still under way, who waits) each time that loads are needed, from the second round on:
    the first finds what the code before the loop has loaded, which is not looked at."""
    under_way, found = [], []
    for n, i in enumerate(loop * 3):
        used = registers_read(i)
        needed = [k for k, registers in enumerate(under_way) if registers & used]
        if needed:
            under_way = under_way[needed[-1] + 1:]
            if n >= len(loop):
                found.append((len(under_way) * WARP_BYTES, i))
        if loads_weights(i):
            first = int(REGISTER.search(i.operands)[1])
            under_way.append(set(range(first, first + 4)))
    return found


def read(text):
    """A Loop for each one that loads weights."""
    for name, body in kernels(text):
        spills = sum(i.name.startswith(("LDL", "STL")) for i in body)
        for begin, end in inner_loops(body):
            loop = body[begin:end + 1]
            seen = waits(loop)
            left = [n for n, _ in seen] or [0]
            yield Loop(name, sum(map(loads_weights, loop)),
                       sum(i.name.startswith("HMMA") for i in loop), min(left),
                       sum(left) / len(left), sum(is_move(i) for _, i in seen), spills)


def short(kernel):
    """Readable enough without a demangler: the kernel, its types and its numbers."""
    parts = re.findall(r"([a-z_]+_kernel)|(?<=\d)(sy_cu_[a-z]+\d?)(?=\d*[A-Z0-9])|Li(\d+)E", kernel)
    return " ".join(part.removeprefix("sy_cu_") for found in parts for part in found if part)


def arguments():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    p.add_argument("--arch", default="sm_90a")
    return p.parse_args()


def main():
    args = arguments()
    text = disassemble(args.build / "lib" / "switchyard" / "libswitchyard_cuda.so", args.arch)
    print(f"{args.arch}: bytes of weights of one warp under way at a wait\n"
          f"{'kernel':<40}{'loads':>6}{'products':>9}{'least':>7}{'mean':>7}{'moved':>6}{'spills':>7}")
    for loop in read(text):
        print(f"{short(loop.kernel):<40}{loop.loads:>6}{loop.products:>9}{loop.least:>7}"
              f"{loop.mean:>7.0f}{loop.moved:>6}{loop.spills:>7}")


if __name__ == "__main__":
    try:
        main()
    except Unfit as why:
        sys.exit(f"tests/perf/machine_code.py: {why}")
