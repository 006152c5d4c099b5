"""The families' vectors, made by transformers' own model classes: see README.md.

    make.py                      write every NAME.vectors.json
    make.py mixtral olmoe        only these
    make.py --check              compute again and compare with the files
    make.py --write DIR          only write the checkpoints, DIR/NAME/{config.json,model.safetensors}
"""
import argparse
import contextlib
import json
import pathlib
import re
import shutil
import sys
import tempfile
import warnings

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

import recipe

HERE = pathlib.Path(__file__).resolve().parent
STORAGE = {"deepseek_v3_fp8": recipe.fp8, "gpt_oss_mxfp4": recipe.mxfp4}
PUBLISHED_PROMPT = [1, 17, 42, 99, 200, 7, 3, 255, 128, 64]
LONG_IDS, LONG_STEPS = 48, 64
TURN_IDS, TURN_STEPS = (16, 12), 8
CHECKSUMS = re.compile(r"layers\.1\.(self_attn\.kv_a_proj|mlp\.experts\.(3\.|gate_up|down))")
# What a run must keep away from, so that rounding in another order cannot change an id or an expert.
MARGIN_MIN = 1e-3     # between the two best logits, of the largest |logit|
ROUTER_GAP_MIN = 2e-5 # between the last expert that is chosen and the first that is not
VARIETY_MIN = 8       # different ids among the greedy ones; a tied head repeats one, whatever the prompt
SEEDS = range(1, 200)


# ---- a model on disk, and loaded ----

def disk_shapes(folder):
    """The tensors that transformers itself would save for the configuration."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with tempfile.TemporaryDirectory() as saved:
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(saved)
        return recipe.read_shapes(pathlib.Path(saved) / "model.safetensors")


def write_checkpoint(name, folder):
    """A folder as published checkpoints have it; returns its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(HERE / f"{name}.json", folder / "config.json")
    checkpoint = STORAGE.get(name, recipe.plain)(disk_shapes(folder))
    recipe.write_safetensors(folder / "model.safetensors", checkpoint)
    return checkpoint


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=False, dtype=torch.float32, attn_implementation="eager",
        experts_implementation="eager", output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[key], (key, info[key])
    if model.config.model_type == "phimoe":
        tell_length(model.model.rotary_emb)
    return model.eval()


def tell_length(rotary):
    """transformers 5.24 asks for Phi's frequencies without the length, and so never gets those of long_factor;
    4.57 and 5.2 pass it."""
    frequencies = rotary.rope_init_fn

    def before(_module, args, kwargs):
        positions = kwargs["position_ids"] if "position_ids" in kwargs else args[1]
        rotary.rope_init_fn = lambda config, *_: frequencies(config, seq_len=int(positions.max()) + 1)

    rotary.register_forward_pre_hook(before, with_kwargs=True)


def widen(name, checkpoint, folder):
    """Makes the folder one of float32 without a quantisation: the values that the quantised one stands for."""
    config = json.loads((HERE / f"{name}.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    recipe.write_safetensors(folder / "model.safetensors",
                             {n: ("F32", w) for n, w in recipe.widened(checkpoint).items()})


# ---- watching the routers ----

class Routers:
    """The experts of the last position and the smallest gap, from what the MoE blocks hand to topk."""

    def __init__(self, model):
        self.layers = model.model.layers
        self.top_k = next(getattr(model.config, key) for key in ("num_experts_per_tok", "moe_k", "moe_topk")
                          if getattr(model.config, key, None) is not None)
        if isinstance(self.top_k, list):
            self.top_k = self.top_k[0]
        self.layer = None
        self.forget()
        for i, layer in enumerate(self.layers):
            block = next(getattr(layer, key) for key in ("mlp", "block_sparse_moe", "feed_forward")
                         if hasattr(layer, key))
            block.register_forward_pre_hook(lambda *_, i=i: setattr(self, "layer", i))
            block.register_forward_hook(lambda *_: setattr(self, "layer", None))
            if type(block).__name__.startswith("Phimoe"):
                block.router.register_forward_hook(self.on_sparse_mixer)

    def forget(self):
        self.chosen = [None] * len(self.layers)
        self.gap = np.inf

    def on_topk(self, scores, k, indices):
        """Group scores that are summed over their best two are no choice: only what is left out matters."""
        if self.layer is None or k >= scores.shape[-1] or indices.dim() != 2:
            return
        best = scores.float().sort(-1, descending=True).values
        gap = best[..., k - 1] - best[..., k]
        self.gap = min(self.gap, gap.min().item())
        if k == self.top_k:
            self.chosen[self.layer] = sorted(indices.reshape(-1, k)[-1].tolist())

    def on_sparse_mixer(self, _module, inputs, output):
        """Phi's router takes two maxima, and leaves out what is further below them than a threshold."""
        layer, chosen = self.layer, output[-1]
        logits = torch.nn.functional.linear(inputs[0].reshape(-1, inputs[0].shape[-1]), _module.weight)
        best = logits.sort(-1, descending=True).values
        gaps = [(best[:, 0] - best[:, 1]), (best[:, 1] - best[:, 2])]
        for top in (best[:, :1], best[:, 1:2]):
            far = (top - logits) / torch.maximum(logits.abs(), top)
            gaps.append((far - 2 * _module.router_jitter_noise).abs())
        self.gap = min(self.gap, min(g.min().item() for g in gaps))
        self.chosen[layer] = sorted(chosen.reshape(-1, self.top_k)[-1].tolist())

    @contextlib.contextmanager
    def watching(self):
        self.forget()
        plain = {owner: owner.topk for owner in (torch, torch.Tensor)}

        def watched(scores, k, *args, **kwargs):
            out = plain[torch](scores, k, *args, **kwargs)
            self.on_topk(scores, k, out[1])
            return out

        for owner in plain:
            owner.topk = watched
        try:
            yield
        finally:
            for owner, topk in plain.items():
                owner.topk = topk


# ---- runs ----

class Unsuited(Exception):
    """A prompt after which rounding could change a choice, or which shows too little."""


class Run:
    """Greedy decoding of one sequence, with or without a cache of keys and values."""

    def __init__(self, model, cached):
        self.model, self.cached = model, cached
        self.ids, self.cache, self.n_seen = [], None, 0

    @torch.no_grad()
    def logits(self):
        """Of the last position."""
        begin = self.n_seen if self.cached else 0
        out = self.model(torch.tensor([self.ids[begin:]]), past_key_values=self.cache, use_cache=self.cached)
        self.n_seen, self.cache = len(self.ids), out.past_key_values if self.cached else None
        return out.logits[0, -1].float().numpy()

    def generate(self, ids, n_steps):
        """After more ids: the logits of each step. The last id that is chosen is not run yet."""
        self.ids += ids
        steps = []
        for _ in range(n_steps):
            steps.append(self.logits())
            self.ids.append(int(steps[-1].argmax()))
        return np.stack(steps)


def margins(steps):
    best = np.sort(steps, 1)
    return best[:, -1] - best[:, -2]


def expect_clear(steps):
    if (margins(steps) < MARGIN_MIN * np.abs(steps).max()).any():
        raise Unsuited("two logits are close")


def compare(what, a, b):
    """Cached and uncached runs sum in different orders, no more."""
    worst = np.abs(a - b).max() / np.abs(a).max()
    assert worst < 1e-4, f"{what}: with and without a cache differ by {worst:.1e} of the largest logit"


def long_run(model, routers, prompt):
    with routers.watching():
        first = Run(model, cached=False)
        first.generate(prompt, 1)
        experts = routers.chosen
    with routers.watching():
        steps = Run(model, cached=True).generate(prompt, LONG_STEPS)
        gap = routers.gap
    expect_clear(steps)
    if gap < ROUTER_GAP_MIN:
        raise Unsuited("two experts are close")
    if not model.config.tie_word_embeddings and len(set(steps.argmax(1).tolist())) < VARIETY_MIN:
        raise Unsuited("a loop of few ids")
    compare("long", steps, Run(model, cached=False).generate(prompt, LONG_STEPS))
    return {"prompt": prompt, "experts": experts, "logits": steps[0], "max_abs": np.abs(steps[0]).max(),
            "greedy": steps.argmax(1).tolist(), "margins": margins(steps), "last_logits": steps[-1],
            "router_gap": gap}


def turns_run(model, routers, prompts):
    runs = [Run(model, cached) for cached in (True, False)]
    turns = []
    with routers.watching():
        for prompt in prompts:
            steps, uncached = (run.generate(prompt, TURN_STEPS) for run in runs)
            expect_clear(steps)
            compare("turns", steps, uncached)
            turns.append({"ids": prompt, "greedy": steps.argmax(1).tolist(), "margins": margins(steps),
                          "last_logits": steps[-1]})
        if routers.gap < ROUTER_GAP_MIN:
            raise Unsuited("two experts are close")
    return turns


@torch.no_grad()
def published_run(model, routers):
    with routers.watching():
        logits = model(torch.tensor([PUBLISHED_PROMPT]), use_cache=False).logits[0].float().numpy()
        return {"prompt": PUBLISHED_PROMPT, "experts": routers.chosen, "logits": logits[-1],
                "max_abs": np.abs(logits[-1]).max(), "mean_abs_all_positions": np.abs(logits).mean(),
                "router_gap": routers.gap}


def crossing_run(model, routers, prompt):
    """longrope alone: from under the original context to over it, without a cache, whose keys would be stale."""
    with routers.watching():
        steps = Run(model, cached=False).generate(prompt, 6)
    expect_clear(steps)
    if routers.gap < ROUTER_GAP_MIN:
        raise Unsuited("two experts are close")
    return {"prompt": prompt, "logits": steps[0], "greedy": steps.argmax(1).tolist(),
            "margins": margins(steps), "last_logits": steps[-1], "router_gap": routers.gap}


def first_suited(run):
    for seed in SEEDS:
        try:
            return {"seed": seed, **run(seed)}
        except Unsuited:
            pass
    raise AssertionError("no seed suits")


def vectors(name, scratch):
    checkpoint = write_checkpoint(name, scratch)
    if name in STORAGE:
        widen(name, checkpoint, scratch)
    model = load(scratch)
    routers, vocab = Routers(model), model.config.vocab_size
    out = {"family": name, "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
           "tensors": len(checkpoint), "elements": int(sum(data.size for _, data in checkpoint.values())),
           "published": published_run(model, routers)}
    if name in STORAGE:
        out["checksums"] = {n: f"{recipe.fnv1a64(data.tobytes()):016x}"
                            for n, (_, data) in sorted(checkpoint.items()) if CHECKSUMS.search(n)}
    out["long"] = first_suited(lambda seed: long_run(model, routers, recipe.token_ids(seed, LONG_IDS, vocab)))

    def turns(seed):
        ids = recipe.token_ids(1000 + seed, sum(TURN_IDS), vocab)
        return {"turns": turns_run(model, routers, [ids[:TURN_IDS[0]], ids[TURN_IDS[0]:]])}

    out["conversation"] = first_suited(turns)
    if getattr(model.config, "rope_parameters", {}).get("rope_type") == "longrope":
        out["crossing"] = first_suited(
            lambda seed: crossing_run(model, routers, recipe.token_ids(2000 + seed, 4, vocab)))
    return out


# ---- files ----

def to_text(value):
    """JSON; floats as the shortest of up to nine digits that give the float32 back."""
    def plain(v):
        if isinstance(v, dict):
            return {k: plain(x) for k, x in v.items()}
        if isinstance(v, (list, np.ndarray)):
            return [plain(x) for x in v]
        if isinstance(v, (float, np.floating)):
            return next(f for f in (float(f"{v:.{n}g}") for n in range(6, 10)) if n_same(f, v))
        return v

    def n_same(f, v):
        return np.float32(f) == np.float32(v)

    text = json.dumps(plain(value), indent=1)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r"\s*\n\s*", "", m[1]) + "]", text) + "\n"


def difference(a, b, path=""):
    """The largest difference of numbers; everything else must be the same."""
    if isinstance(a, dict) and set(a) == set(b):
        return max(difference(a[k], b[k], f"{path}.{k}") for k in a if k not in ("transformers", "torch"))
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return max((difference(x, y, f"{path}[{i}]") for i, (x, y) in enumerate(zip(a, b))), default=0)
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b)
    assert a == b, f"{path}: {a} and {b}"
    return 0


def main():
    names = sorted(p.stem for p in HERE.glob("*.json") if not p.name.endswith(".vectors.json"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", type=pathlib.Path, metavar="DIR")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", message=".*past_key_values")  # the spelling that every release knows
    torch.set_num_threads(1)
    for name in options.names or names:
        if options.write:
            write_checkpoint(name, options.write / name)
            continue
        with tempfile.TemporaryDirectory() as scratch:
            text = to_text(vectors(name, pathlib.Path(scratch)))
        path = HERE / f"{name}.vectors.json"
        if options.check:
            worst = difference(json.loads(path.read_text()), json.loads(text))
            print(f"{name}: largest difference {worst:.1e}")
            if worst > 1e-4:
                sys.exit(f"{name}: not what the file says")
        else:
            path.write_text(text)
            print(f"{name}: {len(text)} bytes")


if __name__ == "__main__":
    main()
