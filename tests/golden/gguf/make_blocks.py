"""Writes blocks.bin: random blocks of every type that lib/model/sy_gguf_block.c decodes, and the
floats that the `gguf` package of ggml's authors makes of them. Replayed by
tests/unit/model/test_gguf_block.c; made with gguf 0.19.0 and numpy 2.4.6:

    python3 -m venv venv && venv/bin/pip install gguf==0.19.0 numpy
    venv/bin/python tests/golden/gguf/make_blocks.py tests/golden/gguf/blocks.bin

A record: the type's number, the count of elements n and of bytes b, 32-bit little-endian each; b
bytes; n floats. Scales are any finite f16 (subnormals and both zeros among them), any exponent for
MXFP4; quants are any bits. Where the format has no blocks, NaNs are left out: which of their bits
survive differs between machines."""

import struct
import sys

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES

SCALES = {  # bytes from the block's start at which an f16 scale lies
    T.Q8_0: [0], T.Q4_0: [0], T.Q5_0: [0], T.Q4_K: [0, 2], T.Q6_K: [208],
    T.Q5_K: [0, 2],
}
BLOCKS = {T.Q8_0: 12, T.Q4_0: 12, T.Q5_0: 12, T.Q4_K: 6, T.Q6_K: 6, T.MXFP4: 12, T.Q5_K: 6}


def finite_f16(rng, n):
    bits = rng.integers(0, 1 << 16, n, dtype=np.uint16)
    bits[(bits & 0x7C00) == 0x7C00] &= np.uint16(0x83FF)
    bits[: min(n, 4)] = [0x0000, 0x8000, 0x0001, 0x83FF][: min(n, 4)]
    return bits


def random_blocks(rng, kind):
    n = BLOCKS[kind]
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for at in SCALES.get(kind, []):
        blocks[:, at:at + 2] = finite_f16(rng, n).view(np.uint8).reshape(n, 2)
    if kind == T.MXFP4:
        blocks[:6, 0] = [0, 1, 2, 127, 254, 255]
    return blocks.reshape(-1), n * elements


def record(kind, raw, floats):
    return struct.pack("<III", int(kind), len(floats), len(raw)) + raw.tobytes() + floats.tobytes()


def main(path):
    rng = np.random.default_rng(20261130)
    out = b""
    for kind in BLOCKS:
        raw, n = random_blocks(rng, kind)
        with np.errstate(over="ignore"):
            floats = quants.dequantize(raw, kind).astype("<f4")
        assert len(floats) == n
        out += record(kind, raw, floats)
    halves = finite_f16(rng, 64)
    out += record(T.F16, halves.view(np.uint8), quants.dequantize(halves.view(np.uint8), T.F16))
    brain = rng.integers(0, 1 << 16, 64, dtype=np.uint16)
    brain[(brain & 0x7F80) == 0x7F80] &= np.uint16(0xFF80)  # infinities stay
    out += record(T.BF16, brain.view(np.uint8), quants.dequantize(brain.view(np.uint8), T.BF16))
    plain = rng.standard_normal(16).astype("<f4")
    out += record(T.F32, plain.view(np.uint8), plain)
    with open(path, "wb") as file:
        file.write(out)


main(sys.argv[1])
