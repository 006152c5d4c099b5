"""Logits of a small checkpoint of float32 tensors in float64, from the formulas of transformers'
modeling_qwen3_moe.py and modeling_rope_utils.py: another way to the numbers than the C code's."""
import json
import math

import numpy as np


def read_tensors(path):
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    out = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32"
        begin, end = (8 + n + at for at in entry["data_offsets"])
        flat = np.frombuffer(raw[begin:end], "<f4").astype(np.float64)
        out[name] = flat.reshape(entry["shape"])
    return out


def frequencies(config):
    """Of each pair, and what cosine and sine are multiplied with."""
    d, theta = config["head_dim"], config["rope_theta"]
    inv = theta ** -(np.arange(0, d, 2) / d)
    rope = config.get("rope_scaling") or {"rope_type": "default"}
    kind, s = rope["rope_type"], rope.get("factor")
    length = rope.get("original_max_position_embeddings", config["max_position_embeddings"])
    if kind == "default":
        return inv, 1.0
    if kind == "linear":
        return inv / s, 1.0
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = length * inv / (2 * math.pi)
        t = np.clip((turns - low) / (high - low), 0, 1)
        return inv * ((1 - t) / s + t), 1.0
    assert kind == "yarn"

    def pair_that_turns(times):
        return d * math.log(length / (times * 2 * math.pi)) / (2 * math.log(theta))
    low = max(math.floor(pair_that_turns(rope.get("beta_fast", 32))), 0)
    high = min(math.ceil(pair_that_turns(rope.get("beta_slow", 1))), d - 1)
    ramp = np.clip((np.arange(d // 2) - low) / max(high - low, 0.001), 0, 1)
    return inv / s * ramp + inv * (1 - ramp), 0.1 * math.log(s) + 1


class Model:
    def __init__(self, directory):
        self.config = json.loads((directory / "config.json").read_text())
        self.tensors = read_tensors(directory / "model.safetensors")
        self.eps = self.config["rms_norm_eps"]

    def tensor(self, layer, name):
        return self.tensors[f"model.layers.{layer}.{name}.weight"]

    def norm(self, x, w):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * w

    def rotate(self, x):
        """x: [T, heads, d]."""
        inv, scale = frequencies(self.config)
        angle = np.arange(len(x))[:, None, None] * inv
        c, s = np.cos(angle) * scale, np.sin(angle) * scale
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * c - b * s, b * c + a * s], -1)

    def attention(self, layer, x):
        n, d = len(x), self.config["head_dim"]
        q, k, v = (
            (x @ self.tensor(layer, f"self_attn.{p}_proj").T).reshape(n, -1, d) for p in "qkv")
        q = self.rotate(self.norm(q, self.tensor(layer, "self_attn.q_norm")))
        k = self.rotate(self.norm(k, self.tensor(layer, "self_attn.k_norm")))
        k, v = (np.repeat(z, q.shape[1] // z.shape[1], 1) for z in (k, v))
        score = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(d)
        score = np.where(np.tri(n, dtype=bool), score, -np.inf)
        p = np.exp(score - score.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", p, v).reshape(n, -1)
        return out @ self.tensor(layer, "self_attn.o_proj").T

    def expert(self, layer, e, x):
        gate, up, down = (self.tensor(layer, f"mlp.experts.{e}.{p}_proj")
                          for p in ("gate", "up", "down"))
        g = gate @ x
        return down @ (g / (1 + np.exp(-g)) * (up @ x))

    def moe(self, layer, x):
        score = x @ self.tensor(layer, "mlp.gate").T
        p = np.exp(score - score.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        out = np.zeros_like(x)
        for t, row in enumerate(p):
            chosen = np.argsort(-row, kind="stable")[:self.config["num_experts_per_tok"]]
            total = row[chosen].sum() if self.config["norm_topk_prob"] else 1.0
            out[t] = sum(row[e] / total * self.expert(layer, e, x[t]) for e in chosen)
        return out

    def logits(self, ids):
        x = self.tensors["model.embed_tokens.weight"][ids]
        for layer in range(self.config["num_hidden_layers"]):
            x = x + self.attention(layer, self.norm(x, self.tensor(layer, "input_layernorm")))
            x = x + self.moe(layer, self.norm(x, self.tensor(layer, "post_attention_layernorm")))
        x = self.norm(x[-1], self.tensors["model.norm.weight"])
        return self.tensors["lm_head.weight"] @ x
