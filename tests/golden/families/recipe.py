"""Weights of the families' small checkpoints: a function of each tensor's name on disk, and how two of them
are quantised. README.md states the same in words. NumPy alone; what transformers makes of them is make.py."""
import json
import struct

import numpy as np

FP8_BLOCK = 128
MXFP4_BLOCK = 32
MXFP4_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
# Weights that stay as they are in an fp8 checkpoint; every other matrix is quantised.
FP8_KEPT = ("embed_tokens.weight", "lm_head.weight", "mlp.gate.weight", "norm.weight", "_bias")


# ---- values from a counter ----

def splitmix64(x):
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def fnv1a64(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 & (2**64 - 1)
    return h


def uniform(name, shape):
    """float32 in [-1, 1), element i in row-major order from the name's hash + i."""
    n = int(np.prod(shape, dtype=np.int64))
    with np.errstate(over="ignore"):
        z = splitmix64(np.uint64(fnv1a64(name.encode())) + np.arange(n, dtype=np.uint64))
    u = ((z >> np.uint64(40)).astype(np.float64) - 2**23) / 2**23
    return u.astype(np.float32).reshape(shape)


def weight(name, shape):
    u = uniform(name, shape)
    if name.endswith("norm.weight") or "layernorm.weight" in name:
        return np.float32(1) + np.float32(0.25) * u
    if name.endswith(("e_score_correction_bias", ".bias", "_bias", "sinks")):
        return np.float32(0.125) * u
    if "embed_tokens" in name:
        return u
    if any(part in name for part in ("mlp.gate.weight", "block_sparse_moe.gate.weight", "router.weight",
                                     "router.layer.weight", "gate.wg.weight")):
        return np.float32(0.5) * u
    return np.float32(0.25) * u


def token_ids(seed, n, vocab):
    """n ids in [3, vocab)."""
    with np.errstate(over="ignore"):
        z = splitmix64(np.uint64(seed << 32) + np.arange(n, dtype=np.uint64))
    return (3 + z % np.uint64(vocab - 3)).astype(int).tolist()


# ---- formats: each encoder has its decoder, and what the decoder gives is what the models compute with ----

def to_bf16(x):
    """uint16, rounded to nearest even; x is finite."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    odd = bits >> np.uint32(16) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def power_of_two_above(max_abs, largest):
    """The exponent e of the smallest 2^e with largest * 2^e >= max_abs, exactly; 0 for 0."""
    e = np.where(max_abs > 0, np.frexp(max_abs / largest)[1], 0)
    e = np.where((max_abs > 0) & (largest * np.ldexp(1.0, e - 1) >= max_abs), e - 1, e)
    return e.astype(np.int64)


def fp8_values():
    """The 127 values of e4m3 that are not negative, by code."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * np.exp2(exponent - 10.0))


def nearest_code(magnitude, values):
    """The code of the nearest value; halfway, the even code."""
    code = np.clip(np.searchsorted(values, magnitude), 1, len(values) - 1)
    below, above = magnitude - values[code - 1], values[code] - magnitude
    return np.where((below < above) | ((below == above) & ((code - 1) % 2 == 0)), code - 1, code)


def _spread(scale, shape):
    """One scale for each 128 x 128 block, the last of a row or column cut short, over the elements."""
    return np.repeat(np.repeat(scale, FP8_BLOCK, 0), FP8_BLOCK, 1)[:shape[0], :shape[1]]


def to_fp8(w):
    """Codes uint8 [M,N] and scales float32 [ceil(M/128), ceil(N/128)]."""
    blocks = [-(-n // FP8_BLOCK) for n in w.shape]
    max_abs = np.zeros(blocks)
    for i in range(blocks[0]):
        for j in range(blocks[1]):
            rows, columns = (slice(b * FP8_BLOCK, (b + 1) * FP8_BLOCK) for b in (i, j))
            max_abs[i, j] = np.abs(w[rows, columns]).max()
    scale = np.ldexp(1.0, power_of_two_above(max_abs, 448.0))
    code = nearest_code(np.abs(w.astype(np.float64)) / _spread(scale, w.shape), fp8_values())
    return (code | np.signbit(w) * 128).astype(np.uint8), scale.astype(np.float32)


def from_fp8(code, scale):
    value = fp8_values()[code & 127].astype(np.float32) * _spread(scale, code.shape)
    return from_bf16(to_bf16(np.where(code & 128, -value, value).astype(np.float32)))


def to_mxfp4(w):
    """w [..., rows, columns] to blocks [..., rows, columns/32, 16] and scales [..., rows, columns/32]."""
    w = w.reshape(*w.shape[:-1], -1, MXFP4_BLOCK).astype(np.float64)
    e = power_of_two_above(np.abs(w).max(-1), 6.0)
    code = nearest_code(np.abs(w) / np.ldexp(1.0, e)[..., None], MXFP4_VALUES) | np.signbit(w) * 8
    return (code[..., 0::2] | code[..., 1::2] << 4).astype(np.uint8), (e + 127).astype(np.uint8)


def from_mxfp4(blocks, scales):
    code = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], MXFP4_BLOCK)
    value = MXFP4_VALUES[code & 7] * np.where(code & 8, -1.0, 1.0)
    value = np.ldexp(value, scales.astype(np.int64)[..., None] - 127)
    return value.reshape(*scales.shape[:-1], -1).astype(np.float32)


# ---- checkpoints: {name on disk: (safetensors dtype, array)} ----

def plain(shapes):
    return {name: ("F32", weight(name, shape)) for name, shape in shapes.items()}


def uneven(w, block):
    """Weights of which no two neighbouring blocks have the same scale: block (i, j) times 2^-((i + 2j) mod 4)."""
    i, j = (np.arange(n) // size for n, size in zip(w.shape[-2:], block))
    return np.ldexp(w, -((i[:, None] + 2 * j) % 4)).astype(np.float32)


def _narrow(name, w):
    return ("F32", w) if name.endswith("e_score_correction_bias") else ("BF16", to_bf16(w))


def fp8(shapes):
    out = {}
    for name, shape in shapes.items():
        w = weight(name, shape)
        if name.endswith(FP8_KEPT):
            out[name] = _narrow(name, w)
        else:
            code, scale = to_fp8(uneven(w, (FP8_BLOCK, FP8_BLOCK)))
            out[name], out[name + "_scale_inv"] = ("F8_E4M3", code), ("F32", scale)
    return out


def mxfp4(shapes):
    """The experts' matrices are gpt_oss's own, transposed to [E, out, in]."""
    out = {}
    for name, shape in shapes.items():
        w = weight(name, shape)
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales = to_mxfp4(uneven(w.swapaxes(1, 2), (1, MXFP4_BLOCK)))
            out[name + "_blocks"], out[name + "_scales"] = ("U8", blocks), ("U8", scales)
        else:
            out[name] = _narrow(name, w)
    return out


def widened(checkpoint):
    """{name: float32} of the unquantised tensors' names: what a quantised checkpoint stands for."""
    out = {}
    for name, (dtype, data) in checkpoint.items():
        if name.endswith("_blocks"):
            name = name.removesuffix("_blocks")
            out[name] = from_mxfp4(data, checkpoint[name + "_scales"][1]).swapaxes(1, 2)
        elif dtype == "F8_E4M3":
            out[name] = from_fp8(data, checkpoint[name + "_scale_inv"][1])
        elif dtype == "BF16":
            out[name] = from_bf16(data)
        elif not name.endswith(("_scales", "_scale_inv")):
            out[name] = data
    return out


def write_safetensors(path, checkpoint):
    """Tensors in the order of their names, the header padded to a multiple of 8 bytes."""
    header, end = {}, 0
    for name, (dtype, data) in sorted(checkpoint.items()):
        header[name] = {"dtype": dtype, "shape": list(data.shape), "data_offsets": [end, end + data.nbytes]}
        end += data.nbytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, (_, data) in sorted(checkpoint.items()):
            file.write(np.ascontiguousarray(data).tobytes())


def read_shapes(path):
    """{name: shape} of a safetensors file."""
    with open(path, "rb") as file:
        (n,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(n))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
