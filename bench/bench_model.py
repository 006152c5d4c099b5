"""What a model must read and compute, from its config.json alone: the limits of speed."""
import json
import pathlib

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
BLOCK_BYTES = {"q8": 34 / 32, "q4": 18 / 32}  # a weight's share of a block of 32 and its scale


class Shape:
    """Counts of weights, and what a step over T tokens touches of them. weights: as in the option of
    that name; the gate and the embedding stay as they are stored."""

    def __init__(self, model_dir, weights="as-stored"):
        c = json.loads((pathlib.Path(model_dir) / "config.json").read_text())
        self.layers = c["num_hidden_layers"]
        self.hidden = c["hidden_size"]
        self.vocab = c["vocab_size"]
        self.context = c["max_position_embeddings"]
        self.experts = c.get("num_local_experts") or c["num_experts"]
        self.top_k = c["num_experts_per_tok"]
        self.ffn = c["intermediate_size"]
        self.dtype = c.get("torch_dtype") or c.get("dtype") or "float32"
        head_dim = c.get("head_dim") or self.hidden // c["num_attention_heads"]
        q, kv = c["num_attention_heads"] * head_dim, c["num_key_value_heads"] * head_dim
        self.attention = self.hidden * (2 * q + 2 * kv)  # q, k, v and o of a layer
        self.gate = self.hidden * self.experts
        self.expert = 3 * self.hidden * self.ffn
        self.head = self.hidden * self.vocab
        self.kv_width = kv
        self.stored_bytes = DTYPE_BYTES[self.dtype]
        self.item_bytes = BLOCK_BYTES.get(weights, self.stored_bytes)
        self.tied = c.get("tie_word_embeddings", False)

    def weights(self):
        """All of them, the embedding included; norms are left out everywhere."""
        return self.layers * (self.attention + self.gate + self.experts * self.expert) + \
            2 * self.head

    def memory_bytes(self):
        """Of all weights in memory."""
        matrices = self.layers * (self.attention + self.experts * self.expert) + self.head
        return round(matrices * self.item_bytes +
                     (self.layers * self.gate + self.head) * self.stored_bytes)

    def kv_bytes(self, tokens):
        """Keys and values of so many positions, fp32."""
        return self.layers * 2 * self.kv_width * 4 * tokens

    def distinct_experts(self, tokens):
        """Expected number of a layer's experts that so many tokens touch, routed evenly."""
        return self.experts * (1 - (1 - self.top_k / self.experts) ** tokens)

    def step_bytes(self, tokens):
        """Weights read by one decode step of so many sequences, each once. The KV cache is left
        out: at these lengths it is below a hundredth."""
        layer = self.attention + self.distinct_experts(tokens) * self.expert
        return (self.layers * layer + self.head) * self.item_bytes + \
            self.layers * self.gate * self.stored_bytes

    def prompt_flops(self):
        """Of one prompt token: the head is applied to the last one only, and is left out, as are
        the attention scores."""
        return 2 * self.layers * (self.attention + self.gate + self.top_k * self.expert)

    def describe(self):
        return {"layers": self.layers, "hidden": self.hidden, "experts": self.experts,
                "top_k": self.top_k, "expert_width": self.ffn, "vocab": self.vocab,
                "dtype": self.dtype, "weight_bytes": self.memory_bytes(),
                "token_bytes": round(self.step_bytes(1)), "prompt_flops": self.prompt_flops()}


def pseudo_random_ids(shape, n, seed):
    """Token ids for a model whose weights are random as well. No real checkpoint has its special
    tokens among these: the last ids are left out."""
    ids, state = [], seed * 2 + 1
    for _ in range(n):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2 ** 64
        ids.append((state >> 33) % (shape.vocab - 16))
    return ids


def trained_ids(golden, n, seed):
    """Token ids of real text: golden prompts with their answers, one after another, begun at
    another place for each seed."""
    text = [id_ for want in golden for id_ in want["prompt_tokens"] + want["greedy_tokens"]]
    begin = seed * 23
    return [text[(begin + i) % len(text)] for i in range(n)]
