#!/usr/bin/env python3
"""The whole model in one process (`switchyard run`), on a GPU beside the CPU: small models of several
families, and with --wide one as wide as a real one, which tells how long a step takes. Prints JSON, an
object a line; needs numpy and nothing else.
usage: gpu_model.py --build DIR [--device cuda:0] [--seconds N] [--quick] [--wide LAYERS]"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "tests" / "golden" / "families"
N_TOKENS = 6
CONTEXT = 1024
# One token; more than a page of the cache; past windows and chunks, and past a split of attention.
PROMPTS = ["A", "In the beginning was", "The quick brown fox jumps over the lazy dog. " * 4]
# Of logits, in units of the largest: activations, keys and values are rounded to bf16.
TOLERANCE = 0.05
# Of a step in which that made a gate choose another expert, where two were nearly equal.
TOLERANCE_FLIPPED = 0.2
# What each has that the others have not: heads that share keys; norms of heads; latents, groups, and
# shared experts; sinks, windows, biases and the clamp; chunks and warmed queries; gated shared experts.
FAMILIES = [("mixtral", None), ("qwen3_moe", None), ("deepseek_v3", None), ("gpt_oss", None),
            ("llama4_text", None), ("qwen2_moe", None), ("deepseek_v3_fp8", None),
            ("deepseek_v3_fp8", "fp8"), ("gpt_oss_mxfp4", "mxfp4"), ("deepseek_v3", "q4"),
            ("mixtral", "q8")]


class Answer:
    def __init__(self, told, logits):
        self.tokens, self.policies, self.timing = told["tokens"], told["policies"], told["timing"]
        self.logits = logits


class Failed(Exception):
    """A program ended otherwise than it should; says how."""


class Switchyard:
    """The tool of a build."""

    def __init__(self, build):
        self.path = build / "bin" / "switchyard"

    def __call__(self, *args, timeout_s=120):
        done = subprocess.run([str(self.path), *map(str, args)], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or ["nothing was said"]
            raise Failed(f"switchyard {args[0]} ended with {done.returncode}: {said[-1]}")
        return done.stdout

    def make(self, family, out):
        """A checkpoint of a family's small model, with room for longer prompts."""
        config = json.loads((CONFIGS / f"{family}.json").read_text(encoding="utf-8"))
        config["max_position_embeddings"] = CONTEXT
        path = out.with_suffix(".json")
        path.write_text(json.dumps(config), encoding="utf-8")
        encoded = "fp8" in family or "mxfp4" in family
        self("synth", "--config", path, "--recipe", "vectors", "--out", out,
             *([] if encoded else ["--dtype", "bf16"]))
        return out

    def run(self, model, prompts, *options, n_tokens=N_TOKENS, want_logits=True, timeout_s=120):
        """[Answer, ...], all of one process."""
        with tempfile.TemporaryDirectory(prefix="sy-run-") as folder:
            file, out = pathlib.Path(folder) / "prompts", pathlib.Path(folder) / "logits.npy"
            file.write_text("".join(json.dumps(p) + "\n" for p in prompts), encoding="utf-8")
            logits = ["--logits-out", out] if want_logits else []
            told = self("run", "--model", model, "--prompts-file", file, "--max-tokens", n_tokens,
                        "--ignore-eos", "--json", *logits, *options, timeout_s=timeout_s)
            rows = np.load(out) if want_logits else None
        answers, at = [], 0
        for line in told.splitlines():
            told = json.loads(line)
            n = len(told["tokens"])
            answers.append(Answer(told, rows[at:at + n] if want_logits else None))
            at += n
        if len(answers) != len(prompts):
            raise Failed(f"{len(answers)} answers to {len(prompts)} prompts")
        return answers


# ---- comparing ----

def same_bits(a, b):
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def steps_off(got, want):
    """How far the logits of each step are off, in units of the largest, until the two have read
    different tokens."""
    differ = [i for i, (a, b) in enumerate(zip(got.tokens, want.tokens)) if a != b]
    n = differ[0] + 1 if differ else len(want.tokens)
    return [float(np.abs(g - w).max() / np.abs(w).max())
            for g, w in zip(got.logits[:n], want.logits[:n])]


def median(values):
    return sorted(values)[len(values) // 2]


def worst_of(got, want):
    return max(max(steps_off(g, w)) for g, w in zip(got, want))


def not_near(got, want):
    for i, (g, w) in enumerate(zip(got, want)):
        off = steps_off(g, w)
        # Not "greater than": a NaN is not near either.
        if not (median(off) <= TOLERANCE and max(off) <= TOLERANCE_FLIPPED):
            return (f"prompt {i + 1}: logits are off by {[round(v, 4) for v in off]} of the largest, at "
                    f"most {TOLERANCE} in most steps and {TOLERANCE_FLIPPED} in any")
    # Rounding shows: the same bits would be a CPU's.
    return "the very bits of the CPU: the GPU computed nothing" if worst_of(got, want) == 0 else None


def not_same(got, want):
    for i, (g, w) in enumerate(zip(got, want)):
        if g.tokens != w.tokens:
            return f"prompt {i + 1}: tokens {g.tokens}, want {w.tokens}"
        if not same_bits(g.logits, w.logits):
            return f"prompt {i + 1}: logits differ"
    return None


def not_told(answers, *names):
    """Answers say where they departed from exactness."""
    for name in names:
        for a in answers:
            if not any(p.startswith(f"{name}=") for p in a.policies):
                return f"{name}= is not among the policies {a.policies}"
    return None


# ---- families ----

def say(**what):
    print(json.dumps(what), flush=True)


def tell_case(name, reason, **more):
    say(kind="case", name=name, result="fail" if reason else "pass",
        **({"reason": reason} if reason else {}), **more)


def check_family(tool, model, family, weights, device):
    name = family + (f" with --weights {weights}" if weights else "")
    held = ["--weights", weights] if weights else []
    on_gpu = ["--devices", device, *held]
    want = tool.run(model, PROMPTS, *held)
    got = tool.run(model, PROMPTS, *on_gpu)
    tell_case(f"{name}: all of it on the GPU, near the CPU",
              not_near(got, want) or not_told(got, "arithmetic", "trunk_arithmetic"),
              worst=worst_of(got, want))
    trunk_alone = tool.run(model, PROMPTS, "--trunk-device", device, *held)
    tell_case(f"{name}: the trunk alone on the GPU, near the CPU",
              not_near(trunk_alone, want) or not_told(trunk_alone, "trunk_arithmetic"),
              worst=worst_of(trunk_alone, want))
    tell_case(f"{name}: the same bits twice", not_same(tool.run(model, PROMPTS, *on_gpu), got))
    # Alone the longest, whose prompt is cut otherwise then, and the one that others' rows surround.
    for i in (0, len(PROMPTS) - 1):
        tell_case(f"{name}: prompt {i + 1} alone has the bits that it has among others",
                  not_same(tool.run(model, PROMPTS[i:i + 1], *on_gpu), got[i:i + 1]))


def check_families(tool, args, end):
    for family, weights in FAMILIES[:args.families]:
        name = family + (f" with --weights {weights}" if weights else "")
        if time.monotonic() > end:
            say(kind="case", name=name, result="skip", reason="no time was left for it")
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="sy-model-") as folder:
                model = tool.make(family, pathlib.Path(folder) / family)
                check_family(tool, model, family, weights, args.device)
        except (Failed, subprocess.TimeoutExpired) as e:
            tell_case(name, str(e)[:800])


# ---- as wide as a real one ----

WIDE = {"hidden": 2048, "heads": 32, "kv-heads": 4, "head-dim": 128, "experts": 16, "top-k": 8,
        "ffn": 768, "vocab": 151936, "context": 4096}
NARROW = {"hidden": 128, "heads": 4, "kv-heads": 2, "head-dim": 32, "experts": 4, "top-k": 2,
          "ffn": 64, "vocab": 256, "context": 1024}


def time_wide(tool, model, device, n_prompts, n_prompt, n_tokens):
    """What a step takes when so many are decoded together. Prompts are other tokens each."""
    prompts = [{"tokens": [(i * 31 + t * 7) % 200 + 1 for t in range(n_prompt)]}
               for i in range(n_prompts)]
    answers = tool.run(model, prompts, "--devices", device, n_tokens=n_tokens, want_logits=False,
                       timeout_s=60)
    rates = [a.timing["decode_tokens_per_s"] for a in answers]
    return {"prompts": n_prompts, "prompt_tokens": n_prompt, "tokens": n_tokens,
            "step_us": round(1e6 / median(rates), 1),
            "first_token_ms": round(median([a.timing["first_token_ms"] for a in answers]), 3),
            "load_ms": answers[0].timing["load_ms"]}


def check_wide(tool, args):
    """Narrow where the GPU is an emulated one."""
    shape = NARROW if args.narrow else WIDE
    with tempfile.TemporaryDirectory(prefix="sy-wide-") as folder:
        model = pathlib.Path(folder) / "wide"
        begin = time.monotonic()
        tool("synth", "--family", "qwen3_moe", "--layers", args.wide, "--out", model,
             *(f"--{k}={v}" for k, v in shape.items()))
        say(kind="wide", layers=args.wide, **{k.replace("-", "_"): v for k, v in shape.items()},
            made_in_s=round(time.monotonic() - begin, 1))
        for n_prompts, n_prompt in [(1, 16), (8, 16), (64, 16), (1, 512)][:2 if args.narrow else 4]:
            try:
                told = time_wide(tool, model, args.device, n_prompts, n_prompt,
                                 3 if args.narrow else 64)
                say(kind="step", **told)
            except (Failed, subprocess.TimeoutExpired) as e:
                tell_case(f"{n_prompts} prompts of {n_prompt} tokens", str(e)[:800])


def main():
    parser = argparse.ArgumentParser(description="The whole model on a GPU.")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=90.0, help="nothing is begun after them")
    parser.add_argument("--families", type=int, default=len(FAMILIES), help="the first so many")
    parser.add_argument("--wide", type=int, metavar="LAYERS")
    parser.add_argument("--narrow", action="store_true", help="of --wide: a small one after all")
    args = parser.parse_args()

    tool = Switchyard(args.build.resolve())
    try:
        if args.wide:
            check_wide(tool, args)
        else:
            check_families(tool, args, time.monotonic() + args.seconds)
    except (Failed, OSError, subprocess.TimeoutExpired) as e:
        traceback.print_exc()
        tell_case("a model to try it with", str(e)[:800])
    say(kind="end")


if __name__ == "__main__":
    sys.exit(main())
