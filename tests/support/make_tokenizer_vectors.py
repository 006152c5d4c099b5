#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/*.json: tiny tokenizers and what Hugging Face's `tokenizers` makes of texts.

Run by hand, in a virtual environment with tokenizers 0.23.3 from PyPI:
    python3 tests/support/make_tokenizer_vectors.py tests/golden/tokenizer
Everything is derived from the fixed texts and seeds below, so that a second run writes the same files.
"""
import json
import random
import sys
import unicodedata
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d"
QWEN2 = (r"(?i:" + GPT2_WORDS + r")|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + r"+(?i:" + GPT2_WORDS + r")?"
         r"|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + r"*(?i:" + GPT2_WORDS + r")?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DSV3 = [r"\p{N}{1,3}", "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]
DSV2 = [r"[\r\n]", "\\s?[A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u0370-\u0373\u0400-\u0481]+",
        "\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+", r"\s+$",
        "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+"]

TRAINING = """The quick brown fox jumps over the lazy dog. In the beginning was the word, and the word was with
the tokenizer. She's sure they're right; we've seen that it'll work, I'd say. HelloWorld and helloWorld and HTTPServer.
static int count(const char *s) { for (int i = 0; i < 10; i++) { return s[i]; } }
    if (x == 12345) { printf("%d\\n", x); }
Numbers: 1 22 333 4444 55555 3.14159 2024-01-01. Café, naïve, déjà vu, über, straße, Ελληνικά, русский текст и слова.
你好，世界。今天天气很好。こんにちは世界。カタカナ 안녕하세요 세계 مرحبا بالعالم שלום עולם नमस्ते दुनिया 😀 👍🏽 👩‍💻
""".split("\n")

TEXTS = [
    "", " ", "a", "Hello", "Hello, world!", " leading and trailing ", "I'M  here, isn't 12345 ok?\n\n  x=f(y);",
    "HelloWorld's\t42é你好 !\r\n", "The quick brown fox jumps over the lazy dog.",
    "we've they're I'd it'll SHE'S CAN'T 'tis 'ſ don\u2019t", "camelCase HTTPServer XMLHttpRequest iPhone's",
    "static int main(void)\n{\n    return 0;\n}\n", "\tif (a && b || !c) { x += 3.14e-5; } // done\r\n\r\n",
    "for i in range(10):\n\tprint(f\"{i:>3}\")\n\n\n", "   \n  \n\n x", "\n", "\n\n\n", "\r\n\r\n", "  \t \n \t", "a  b   c    d",
    "1", "12", "1234567890", "3.14 1,000,000 ½ ² Ⅷ ٣٤٥ १२३ ①", "x1y22z333", "2024-01-01T00:00:00Z",
    "café cafe\u0301 naïve nai\u0308ve", "A\u030A Å Å e\u0323\u0302 e\u0302\u0323 ﬁ ﬀ", "\u1100\u1161\u11A8 각 가",
    "你好，世界。", "今天天气很好。明天呢？", "こんにちは世界カタカナ、ひらがな。", "안녕하세요 세계", "中文English混合123テスト",
    "Ελληνικά русский Українська", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "ภาษาไทยไม่มีช่องว่าง",
    "😀", "😀😀 👍🏽 👩‍💻 🏳️‍🌈", "naïve 😀café", "…—–“”‘’«»", "$100 €50 £20 ¥5 + = ~ ^ ` | <>",
    "a\u00A0b\u2003c\u3000d\u2028e\u2029f\u0085g\u180Eh\u200Bi\u1680j", "\u0000\u0001\u001F\u007F", "a\u0000b",
    "\u0301\u0302 \u0300a", "\uFEFFbom", "\uFFFD\uFFFE\uE000", "\U0001F1E9\U0001F1EA \U00020000 \U0010FFFD",
    "http://example.com/path?q=1&r=2#frag", "user@example.com", "C:\\Windows\\System32", "__init__ snake_case kebab-case",
    "!!!???...///***", "a/b/c//\n/d", "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "<|endoftext|><|endoftext|>",
    "<|im_start|>user\nHello<|im_end|>\n", "<s>Hello</s>", "<s> a </s>", "left  <lstrip>  right", "left  <rstrip>  right",
    "left  <both>\n <both> right", "a<word>b <word> c<word> <word>", "é<word> <word>\u0301", "<norm>", "x<norm>y", "caf\u00e9tok cafe\u0301tok",
    "▁ under▁score ▁▁", " ▁", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "the the the the the", "unknown: ჯ ꙮ 𒀀 q", "ჯჯჯ ꙮ ა", "<0x41> <0xE4>",
    "Ġhello ĊĠ Ã©", " hello", "hello", "ſt ﬆ ß ẞ İ ı K", "A" * 40 + "a" * 40, "-" * 50, "0" * 50, " " * 50 + "x", "\n" * 20 + " x",
]


def random_texts(seed):
    """Strings of characters from every corner of Unicode; unassigned ones differ between versions and stay out."""
    rng = random.Random(seed)
    pools = [(0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF),
             (0x1E00, 0x1FFF), (0x2000, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F6FF)]
    texts = []
    for _ in range(24):
        text = ""
        while len(text) < 24:
            low, high = rng.choice(pools)
            for _ in range(rng.randint(1, 4)):
                c = chr(rng.randint(low, high))
                if unicodedata.category(c) != "Cn":
                    text += c
            text += rng.choice(["", "", " ", "\n", "  ", "1", "a"])
        texts.append(text)
    return texts


def added(token, id_, **flags):
    base = {"id": id_, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True}
    return {**base, **flags}


def regex_split(pattern, behavior="Isolated"):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def byte_level(use_regex, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


def template(*before):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": name, "type_id": 0}} for name, _ in before] + [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [id_], "tokens": [name]} for name, id_ in before}}


def skeleton():
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {}, "merges": []}}


def train(spec, size, alphabet):
    """Learns merges with spec's own normalizer and pre-tokenizer; fills its vocab and merges."""
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TRAINING, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    spec["model"]["vocab"], spec["model"]["merges"] = model["vocab"], model["merges"]
    return spec


def byte_level_spec(pre_tokenizer, normalizer=None, size=400):
    spec = skeleton()
    spec["normalizer"], spec["pre_tokenizer"], spec["decoder"] = normalizer, pre_tokenizer, byte_level(True)
    return train(spec, size, sorted(pre_tokenizers.ByteLevel.alphabet()))


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def add(spec, *tokens):
    """Added tokens after the model's; those of the model keep their ids."""
    vocab = spec["model"]["vocab"]
    next_id = len(vocab)
    for content, flags in tokens:
        id_ = vocab.get(content, next_id)
        next_id += content not in vocab
        spec["added_tokens"].append(added(content, id_, **flags))
    spec["added_tokens"].sort(key=lambda token: token["id"])
    return {token["content"]: token["id"] for token in spec["added_tokens"]}


def tokens_with_flags():
    return [("<|endoftext|>", {}), ("<lstrip>", {"lstrip": True}), ("<rstrip>", {"rstrip": True}),
            ("<both>", {"lstrip": True, "rstrip": True, "special": False}), ("<word>", {"single_word": True, "special": False}),
            ("<norm>", {"normalized": True, "special": False}), ("cafétok", {"normalized": True, "special": False})]


def sentencepiece_spec(size, bytes_in_vocab, unk=True):
    """As converted from SentencePiece: <unk> <s> </s>, perhaps 256 bytes, then characters and merges."""
    spec = skeleton()
    spec["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True}
    train(spec, size, [])
    spec["pre_tokenizer"] = None
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in bytes_in_vocab]
    learnt = sorted(spec["model"]["vocab"], key=spec["model"]["vocab"].get)
    spec["model"]["vocab"] = {name: i for i, name in enumerate(names + learnt)}
    if unk:
        spec["model"]["unk_token"] = "<unk>"
    return spec


def decoder_sequence():
    return {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def make_specs():
    specs = {}
    spec = specs["gpt2"] = byte_level_spec(byte_level(True))
    add(spec, *tokens_with_flags())
    spec["post_processor"] = byte_level(True)

    spec = specs["gpt2_prefix_space"] = byte_level_spec(byte_level(True, prefix=True))
    add(spec, ("<|endoftext|>", {}), ("<word>", {"single_word": True, "special": False}))

    spec = specs["qwen2"] = byte_level_spec(sequence(regex_split(QWEN2), byte_level(False)), {"type": "NFC"})
    add(spec, ("<|endoftext|>", {}), ("<|im_start|>", {}), ("<|im_end|>", {}), ("<norm>", {"normalized": True, "special": False}),
        ("cafétok", {"normalized": True, "special": False}))

    spec = specs["llama3"] = byte_level_spec(sequence(regex_split(LLAMA3), byte_level(False)))
    ids = add(spec, ("<|endoftext|>", {}), ("<s>", {}))
    spec["model"]["ignore_merges"] = True
    spec["post_processor"] = {"type": "Sequence", "processors": [byte_level(True), template(("<s>", ids["<s>"]))]}

    spec = specs["o200k"] = byte_level_spec(sequence(regex_split(O200K), byte_level(False)))
    spec["model"]["ignore_merges"] = True
    for whole in ("Ġhello", "hello", "XMLHttp", "ä½łå¥½"):  # in the vocabulary, but no merges lead to them
        spec["model"]["vocab"].setdefault(whole, len(spec["model"]["vocab"]))
    add(spec, ("<|endoftext|>", {}))

    spec = specs["deepseek_v3"] = byte_level_spec(sequence(*map(regex_split, DSV3), byte_level(False)),
                                                  {"type": "Sequence", "normalizers": []})
    ids = add(spec, ("<｜begin▁of▁sentence｜>", {}), ("<|endoftext|>", {"special": False}))
    spec["post_processor"] = template(("<｜begin▁of▁sentence｜>", ids["<｜begin▁of▁sentence｜>"]))

    spec = specs["deepseek_v2"] = byte_level_spec(sequence(*map(regex_split, DSV2), {"type": "Digits", "individual_digits": True},
                                                           byte_level(False)))
    add(spec, ("<|endoftext|>", {}))

    spec = specs["granite"] = byte_level_spec(sequence({"type": "Digits", "individual_digits": True}, byte_level(True)))
    add(spec, ("<|endoftext|>", {}))

    spec = specs["metaspace_first"] = sentencepiece_spec(140, range(256))
    spec["normalizer"] = None
    spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    spec["model"].update(byte_fallback=True, fuse_unk=True)
    spec["decoder"] = decoder_sequence()
    ids = add(spec, ("<unk>", {}), ("<s>", {}), ("</s>", {"rstrip": True}))
    spec["post_processor"] = template(("<s>", ids["<s>"]))

    spec = specs["metaspace_fused_unk"] = sentencepiece_spec(140, [])
    spec["normalizer"] = None
    spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    spec["model"]["fuse_unk"] = True
    spec["decoder"] = spec["pre_tokenizer"]
    add(spec, ("<unk>", {}), ("<s>", {}), ("</s>", {}))

    spec = specs["metaspace_single_unk"] = sentencepiece_spec(140, [])
    spec["normalizer"] = None
    spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True}
    spec["decoder"] = spec["pre_tokenizer"]
    add(spec, ("<s>", {}), ("</s>", {"lstrip": True}))

    spec = specs["legacy_partial_bytes"] = sentencepiece_spec(140, [0xE1, 0x83, 0xAF, 0x0A])
    spec["model"].update(byte_fallback=True, fuse_unk=True)
    spec["decoder"] = decoder_sequence()
    ids = add(spec, ("<unk>", {"normalized": True}), ("<s>", {}), ("</s>", {}), ("<norm>", {"normalized": True, "special": False}))
    spec["post_processor"] = template(("<s>", ids["<s>"]))

    spec = specs["no_unk_no_decoder"] = sentencepiece_spec(140, [], unk=False)
    add(spec, ("<s>", {}), ("</s>", {}))

    spec = specs["nfc"] = byte_level_spec(byte_level(True), {"type": "Sequence", "normalizers": [{"type": "NFC"}]}, 320)
    add(spec, *tokens_with_flags())
    return specs


def decoded(tokenizer, ids):
    return [tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True)]


def respelt_ids(tokenizer, spec):
    """Tokens that the normalizer changes. 0.23 decodes them as normalized, and then no longer knows that they are special;
    earlier versions decode them as they are spelt in the file, which is what is wanted."""
    normalizer = tokenizer.normalizer
    return {token["id"] for token in spec["added_tokens"]
            if token["normalized"] and normalizer and normalizer.normalize_str(token["content"]) != token["content"]}


def make_vectors(name, spec):
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    out = {"tokenizers_version": tokenizers.__version__, "name": name, "tokenizer": spec, "encode": [], "decode": []}
    respelt = respelt_ids(tokenizer, spec)
    for text in TEXTS + random_texts(name):
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(text).ids
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        case = {"text": text, "ids": ids}
        if not respelt & set(ids):
            case["decoded"] = decoded(tokenizer, ids)
        if plain != ids:
            case["plain"] = plain
        out["encode"].append(case)
    rng = random.Random(name)
    for _ in range(24):
        ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randint(1, 12))]
        texts = decoded(tokenizer, ids)
        # ByteFallback answers U+FFFD for each byte of a run that is invalid anywhere; a stream cannot know that yet.
        if respelt & set(ids):
            continue
        if not spec["model"]["byte_fallback"] or "\uFFFD" not in texts[0] + texts[1]:
            out["decode"].append({"ids": ids, "decoded": texts})
    return out


def make_splits():
    """Pre-tokenizers alone: every behavior, and regular expressions that Oniguruma and PCRE2 could read differently."""
    behaviors = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    steps = [{"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert} for behavior in behaviors
             for invert in (False, True) for pattern in ({"String": "-"}, {"Regex": r"\s"}, {"Regex": "-+"})]
    patterns = [r"\s+$", r"^a", r"$\n", r"\w+", r"\W", r"\d+", r"\D+", r"\S+", r"[\w]+", r"[^\w\s]+", r"[^\S]", r"\p{Han}+", r"\P{L}",
                r"\p{^L}+", r"[\p{Lu}-]", r"a{2}", r"a{,2}b", r"a{2,}", r"a{1,2}", r"(?<=a)b", r"(?<!a)b", r"a(?=b)", r"(?:ab)+",
                r"(?>a+)b", r"a+?b", r"a++", "[\u4E00-\u9FA5]", r"[\u4E00-\u9FA5]", r"\x{e9}", r"\x41", r"\v", r"[\v]", r".", r"a.b",
                r"(?i:s|k)", r"(?i:[a-c])", r"'(?i:[sdmt]|ll|ve|re)", r"[^\r\n\p{L}\p{N}]?+\p{L}+|\s++", r"\{|\}", r"a{b", r"]|}",
                r"\-\/\#", r"[\-\]\[]", r"\p{Hiragana}|\p{Katakana}", r"(a|b)c", r"[!-/:-~]", r"\p{M}+", r"\p{Nd}|\p{Nl}|\p{No}",
                r"\p{Zs}", r"\p{P}", r"\p{S}", r"\p{Lm}|\p{Lo}|\p{Lt}"]
    steps += [regex_split(pattern) for pattern in patterns]
    steps += [{"type": "Digits", "individual_digits": individual} for individual in (False, True)]
    steps += [{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
              for scheme in ("always", "first", "never") for split in (False, True)]
    steps.append(sequence(*map(regex_split, DSV2)))
    texts = ["the-final--countdown-", "--a - b\n-- c  ", "aab aaab ab b\nab a.b a\nb", "a b\n \n\n c\n", "x\n  ", "'S 's don'T k\u212A ſ é É A",
             "abc ABC\u0301 你好。かなカナー 漢字々 12½Ⅷ²", "a\u000Bb\u0085c\u180Ed\u200Be\u200Cf\u203Fg_h ǅ ʰ ª \u24B6", "a{b}]c[-]/#-/#",
             "▁a b▁ c", " a"]
    cases = []
    for step in steps:
        pre_tokenizer = Tokenizer.from_str(json.dumps({**skeleton(), "pre_tokenizer": step})).pre_tokenizer
        cases.append({"pre_tokenizer": step, "pieces": [[piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)] for text in texts]})
    return {"tokenizers_version": tokenizers.__version__, "texts": texts, "cases": cases}


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, spec in make_specs().items():
        write(folder / f"{name}.json", make_vectors(name, spec))
    write(folder / "splits.json", make_splits())


if __name__ == "__main__":
    main()
