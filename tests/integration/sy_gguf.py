"""A GGUF file of a Mixtral checkpoint, as llama.cpp's converter and quantiser make it: the rows of
queries and keys interleaved in each head, the experts of a layer in one tensor."""
import json
import struct

import numpy as np

ALIGNMENT = 32
U32, F32, STRING, ARRAY = 4, 6, 8, 9
TYPE_F32, TYPE_Q8_0 = 0, 8


def read_safetensors(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, item in json.loads(data[8:8 + n]).items():
        if name == "__metadata__":
            continue
        assert item["dtype"] == "F32"
        begin, end = (8 + n + at for at in item["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], "<f4").reshape(item["shape"])
    return tensors


def interleave(weight, n_heads):
    rows = weight.reshape(n_heads, 2, -1, weight.shape[1])
    return rows.swapaxes(1, 2).reshape(weight.shape)


def q8_0(weight):
    blocks = weight.reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype("<f2")
    ints = np.rint(blocks / scale.astype("<f4")).clip(-127, 127).astype("i1")
    return np.concatenate([scale.view("u1"), ints.view("u1")], axis=1).tobytes()


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key, kind, value):
    return string(key) + struct.pack("<I", kind) + value


def strings(key, texts):
    return entry(key, ARRAY, struct.pack("<IQ", STRING, len(texts)) + b"".join(map(string, texts)))


def metadata(config, tokens):
    def u32(key, name):
        return entry(f"llama.{key}", U32, struct.pack("<I", config[name]))

    def f32(key, name):
        return entry(f"llama.{key}", F32, struct.pack("<f", config[name]))

    return [
        entry("general.architecture", STRING, string("llama")),
        u32("block_count", "num_hidden_layers"), u32("context_length", "max_position_embeddings"),
        u32("embedding_length", "hidden_size"), u32("feed_forward_length", "intermediate_size"),
        u32("attention.head_count", "num_attention_heads"),
        u32("attention.head_count_kv", "num_key_value_heads"), f32("rope.freq_base", "rope_theta"),
        f32("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        u32("expert_count", "num_local_experts"), u32("expert_used_count", "num_experts_per_tok"),
        entry("tokenizer.ggml.model", STRING, string("gpt2")),
        entry("tokenizer.ggml.pre", STRING, string("gpt-2")),
        strings("tokenizer.ggml.tokens", tokens), strings("tokenizer.ggml.merges", []),
    ]


def converted(config, source):
    """name -> weights, [experts,] rows, columns."""
    yield "token_embd.weight", source["model.embed_tokens.weight"]
    yield "output_norm.weight", source["model.norm.weight"]
    yield "output.weight", source["lm_head.weight"]
    for layer in range(config["num_hidden_layers"]):
        here, there = f"blk.{layer}.", f"model.layers.{layer}."
        attention, moe = there + "self_attn.", there + "block_sparse_moe."
        yield here + "attn_norm.weight", source[there + "input_layernorm.weight"]
        yield here + "ffn_norm.weight", source[there + "post_attention_layernorm.weight"]
        yield here + "attn_q.weight", interleave(source[attention + "q_proj.weight"],
                                                 config["num_attention_heads"])
        yield here + "attn_k.weight", interleave(source[attention + "k_proj.weight"],
                                                 config["num_key_value_heads"])
        yield here + "attn_v.weight", source[attention + "v_proj.weight"]
        yield here + "attn_output.weight", source[attention + "o_proj.weight"]
        yield here + "ffn_gate_inp.weight", source[moe + "gate.weight"]
        for name, matrix in ("gate", "w1"), ("down", "w2"), ("up", "w3"):
            yield here + f"ffn_{name}_exps.weight", np.stack(
                [source[f"{moe}experts.{e}.{matrix}.weight"]
                 for e in range(config["num_local_experts"])])


def write_mixtral(directory, out, blocks=False, template=None):
    """directory: an F32 checkpoint in one file. blocks: matrices as Q8_0, as quantisers have it.
    template: of conversations."""
    config = json.loads((directory / "config.json").read_text())
    vocab = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    keys = metadata(config, sorted(vocab, key=vocab.get))
    if template is not None:
        keys.append(entry("tokenizer.chat_template", STRING, string(template)))
    infos, data = [], b""
    for name, weight in converted(config, read_safetensors(directory / "model.safetensors")):
        is_rounded = blocks and weight.ndim > 1 and "ffn_gate_inp" not in name
        infos.append(string(name) + struct.pack("<I", weight.ndim) +
                     struct.pack(f"<{weight.ndim}Q", *reversed(weight.shape)) +
                     struct.pack("<IQ", TYPE_Q8_0 if is_rounded else TYPE_F32, len(data)))
        data += q8_0(weight) if is_rounded else weight.astype("<f4").tobytes()
        data += bytes(-len(data) % ALIGNMENT)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys)) + b"".join(keys + infos)
    out.write_bytes(header + bytes(-len(header) % ALIGNMENT) + data)
