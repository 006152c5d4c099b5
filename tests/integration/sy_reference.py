"""The checkpoint read with NumPy alone, and Mixtral's MoE block computed from it in float64."""
import functools
import json
import struct

import numpy as np

from sy_client import MODEL, widen_bf16


@functools.cache
def config():
    return json.loads((MODEL / "config.json").read_text())


@functools.cache
def _file():
    data = np.memmap(MODEL / "model.safetensors", np.uint8, "r")
    (n,) = struct.unpack("<Q", data[:8].tobytes())
    return data[8 + n:], json.loads(data[8:8 + n].tobytes())


@functools.cache
def tensor(name):
    data, header = _file()
    entry = header[name]
    assert entry["dtype"] == "BF16", entry
    begin, end = entry["data_offsets"]
    return widen_bf16(data[begin:end].view("<u2")).reshape(entry["shape"])


def expert(layer, e, x):
    """w2(silu(w1 x) * (w3 x)) for each row of x."""
    prefix = f"model.layers.{layer}.block_sparse_moe.experts.{e}."
    w1, w2, w3 = (tensor(f"{prefix}{w}.weight").astype(np.float64) for w in ("w1", "w2", "w3"))
    x = x.astype(np.float64)
    gate = x @ w1.T
    return (gate / (1 + np.exp(-gate)) * (x @ w3.T)) @ w2.T


def route(layer, x):
    """ids [T,K] and weights [T,K]: softmax over all experts, the best K, renormalised."""
    k = config()["num_experts_per_tok"]
    gate = tensor(f"model.layers.{layer}.block_sparse_moe.gate.weight").astype(np.float64)
    scores = x.astype(np.float64) @ gate.T
    scores = np.exp(scores - scores.max(1, keepdims=True))
    scores /= scores.sum(1, keepdims=True)
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    weights = np.take_along_axis(scores, ids, 1)
    return ids, weights / weights.sum(1, keepdims=True)


def moe(layer, x):
    ids, weights = route(layer, x)
    y = np.zeros(x.shape, np.float64)
    for t in range(x.shape[0]):
        for e, w in zip(ids[t], weights[t]):
            y[t] += w * expert(layer, e, x[t:t + 1])[0]
    return y


def hidden(n_rows, seed):
    """Rows of about the size that the block sees behind its norm."""
    return np.random.default_rng(seed).standard_normal(
        (n_rows, config()["hidden_size"])).astype(np.float32)


def worst(got, want):
    """Largest difference in units of the largest value wanted."""
    return np.abs(got - want).max() / np.abs(want).max()
