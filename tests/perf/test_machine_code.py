"""The kernels that read weights keep loads under way while they wait. machine_code.py tells how that
is seen without a GPU, and why it decides how fast one is."""
import os
import pathlib
import re

import pytest

import machine_code

BUILD = pathlib.Path(os.environ.get("SY_BUILD", machine_code.ROOT / "build" / "release")).resolve()
PLUGIN = BUILD / "lib" / "switchyard" / "libswitchyard_cuda.so"
ARCHITECTURES = {"sm_80", "sm_90a", "sm_100"}
# By rows of a tile, over eight: the fewer, the fewer warps there are, and the more it is the memory
# that takes the time.
LEAST_BYTES = {1: 5120, 2: 5120, 4: 3072, 8: 1024}
LEAST_BYTES_TILED = 1536


@pytest.fixture(scope="session")
def stubs():
    """Nothing here talks to a server: the whole-system tests' stubs are not needed."""


@pytest.fixture(scope="session")
def loops():
    try:
        return list(machine_code.read(machine_code.disassemble(PLUGIN, "sm_90a")))
    except machine_code.Unfit as why:
        pytest.skip(str(why))


def find(loops, pattern):
    found = [loop for loop in loops if re.search(pattern, machine_code.short(loop.kernel))]
    assert found, f"no kernel is called {pattern}"
    return found


@pytest.mark.parametrize("eights", LEAST_BYTES)
def test_a_streaming_warp_waits_with_more_weights_under_way(loops, eights):
    found = find(loops, rf"^(linear_)?(stream|linear)_kernel (\w+ )?{eights} ")
    slow = [loop for loop in found if loop.least < LEAST_BYTES[eights]]
    assert not slow, f"less than {LEAST_BYTES[eights]} bytes: {slow}"


def test_a_tiled_warp_waits_with_the_next_weights_under_way(loops):
    slow = [loop for loop in find(loops, "tiled_kernel") if loop.least < LEAST_BYTES_TILED]
    assert not slow, f"less than {LEAST_BYTES_TILED} bytes: {slow}"


def test_no_kernel_spills_or_has_a_local_array():
    try:
        used = machine_code.local_bytes(PLUGIN)
    except machine_code.Unfit as why:
        pytest.skip(str(why))
    assert ARCHITECTURES <= {arch for arch, _ in used}
    spilled = {kernel: n for kernel, n in used.items() if n > 0}
    assert not spilled, f"bytes of local memory: {spilled}"


def test_no_warp_waits_for_weights_only_to_move_them(loops):
    moved = [loop for loop in loops if loop.moved > 0]
    assert not moved, f"loads are moved before they have come: {moved}"


def test_loads_that_all_come_before_the_next_are_seen():
    """The analysis itself: a loop that waits for what it has just asked for, and one that does not."""
    load = "/*{:04x}*/ LDG.E.NA.LTC128B.128.CONSTANT R{}, desc[UR4][R2.64] ; /* 0x0 */"
    product = "/*{:04x}*/ HMMA.16816.F32.BF16 R40, R{}, R44, R40 ; /* 0x0 */"
    back = "/*{:04x}*/ @P0 BRA 0x0 ; /* 0x0 */"
    waits = ["Function : a", load.format(0, 4), product.format(16, 4), back.format(32)]
    rings = ["Function : b", product.format(0, 4), load.format(16, 4), product.format(32, 8),
             load.format(48, 8), back.format(64)]
    moves = ["Function : c", load.format(0, 4), "/*0010*/ MOV R12, R4 ; /* 0x0 */",
             product.format(32, 12), back.format(48)]
    a, b, c = machine_code.read("\n".join(" " + line for line in waits + rings + moves))
    assert (a.least, b.least, c.least) == (0, machine_code.WARP_BYTES, 0)
    assert (a.moved, b.moved, c.moved) == (0, 0, 2)
