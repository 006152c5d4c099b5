"""The tokenizer beside Hugging Face's `tokenizers`, and beside `tiktoken` for its files: for every pipeline that a family of models uses,
a vocabulary is trained on the repository's own text and a few lines of other languages, and bulk
strings must become the same ids and come back as the same text. The strings are natural, or random
from every corner of Unicode; their seed is the pipeline's name, so that a failure repeats."""
import base64
import json
import random
import subprocess
import sys
import unicodedata

import pytest
import tiktoken
from tokenizers import Tokenizer

from sy_client import BIN, LONG, ROOT, SANITIZED
from sy_cluster import server_env

sys.path.insert(0, str(ROOT / "tests" / "support"))
import make_tokenizer_vectors as vectors  # noqa: E402
from make_tokenizer_vectors import (DSV2, DSV3, LLAMA3, O200K, QWEN2, add, byte_level,  # noqa: E402
                                    byte_level_spec, decoder_sequence, regex_split,
                                    sentencepiece_spec, sequence, template, tokens_with_flags)

TRAINING = list(vectors.TRAINING)
N_TEXTS = 100_000 if LONG else 300 if SANITIZED else 3_000
VOCAB = 2_000

# Kimi-K2's pattern: runs of Han are pieces of their own.
HAN_OUT = "&&[^\\p{Han}]]"
KIMI = r"[\p{Han}]+|" + O200K.replace(r"\p{M}]", r"\p{M}" + HAN_OUT).replace(r"[\r\n/]*", r"[\r\n]*")


def ranges(chars):
    """First and last of each run of neighbours in a sorted list."""
    starts = [i for i, c in enumerate(chars) if i == 0 or ord(c) != ord(chars[i - 1]) + 1]
    return [(chars[i], chars[j - 1]) for i, j in zip(starts, [*starts[1:], len(chars)])]


# DeepSeek-V2 lists the cased letters, range by range: those that there were before Unicode 14.
OF_UNICODE_14 = {0x2C2F, 0x2C5F, 0xA7C0, 0xA7C1, *range(0xA7D0, 0xA7DA), *range(0x10570, 0x105BD),
                 *range(0x1DF00, 0x1DF1F)}
CASED = [chr(c) for c in range(0x110000)
         if unicodedata.category(chr(c)) in ("Lu", "Ll", "Lt") and c not in OF_UNICODE_14]
DSV2_LETTERS = r"\s?[" + "".join(
    first + "-" + last for first, last in ranges(CASED)) + "]+"


# ---- pipelines ----

def flagged(spec):
    """Added tokens of every kind besides the pipeline's own."""
    add(spec, *tokens_with_flags(), ("<words>", {"single_word": True, "lstrip": True}),
        ("  pad ", {"normalized": True, "rstrip": True, "special": False}),
        ("<|endoftext|>x", {"special": False}))
    return spec


def split_spec(*patterns, normalizer=None, then=(), **model):
    spec = byte_level_spec(sequence(*map(regex_split, patterns), *then, byte_level(False)),
                           normalizer, VOCAB)
    spec["model"].update(model)
    return flagged(spec)


def metaspace(scheme, split, **model):
    spec = sentencepiece_spec(VOCAB, range(256) if model.get("byte_fallback") else [])
    spec["normalizer"] = None
    spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme,
                             "split": split}
    spec["model"].update(model)
    spec["decoder"] = decoder_sequence() if model.get("byte_fallback") else spec["pre_tokenizer"]
    ids = add(spec, ("<unk>", {}), ("<s>", {}), ("</s>", {"rstrip": True}))
    spec["post_processor"] = template(("<s>", ids["<s>"]))
    return flagged(spec)


def legacy():
    spec = sentencepiece_spec(VOCAB, range(256))
    spec["model"].update(byte_fallback=True, fuse_unk=True)
    spec["decoder"] = decoder_sequence()
    ids = add(spec, ("<unk>", {}), ("<s>", {}), ("</s>", {}))
    spec["post_processor"] = template(("<s>", ids["<s>"]))
    return flagged(spec)


def byte_level_alone(normalizer=None, prefix=False, before=()):
    steps = [*before, byte_level(True, prefix)]
    return flagged(byte_level_spec(sequence(*steps) if before else steps[0], normalizer, VOCAB))


DIGITS = {"type": "Digits", "individual_digits": True}
PIPELINES = {
    "gpt2": byte_level_alone,
    "gpt2 with a prefix space": lambda: byte_level_alone(prefix=True),
    "olmoe: gpt2 after NFC": lambda: byte_level_alone({"type": "NFC"}),
    "qwen2": lambda: split_spec(QWEN2, normalizer={"type": "NFC"}),
    "llama3": lambda: split_spec(LLAMA3, ignore_merges=True),
    "o200k": lambda: split_spec(O200K, ignore_merges=True),
    "deepseek-v2": lambda: split_spec(DSV2[0], DSV2_LETTERS, *DSV2[2:], then=[DIGITS]),
    "deepseek-v3": lambda: split_spec(*DSV3, normalizer={"type": "Sequence", "normalizers": []}),
    "kimi": lambda: split_spec(KIMI, ignore_merges=True),
    "granite: digits, then gpt2": lambda: byte_level_alone(before=[DIGITS]),
    "mixtral: metaspace first": lambda: metaspace("first", False, byte_fallback=True,
                                                  fuse_unk=True),
    "metaspace always, no bytes": lambda: metaspace("always", True, fuse_unk=True),
    "metaspace never, single unk": lambda: metaspace("never", True),
    "mixtral: legacy prepend and replace": legacy,
}


def training_text():
    """The documents of the repository, and a little of many languages as often as it takes."""
    documents = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("lib/base/*.c")])
    lines = [line for path in documents for line in path.read_text().splitlines()]
    return lines + 20 * TRAINING + 5 * [text.replace("\0", "") for text in vectors.TEXTS]


# ---- strings ----

def code_points(*ranges):
    return [chr(c) for low, high in ranges for c in range(low, high + 1)
            if not 0xD800 <= c <= 0xDFFF]


PLANES = [code_points((plane << 16, (plane << 16) + 0xFFFF)) for plane in range(17)]
POOLS = {
    "ASCII": code_points((0x20, 0x7E)),
    "controls": code_points((0x00, 0x1F), (0x7F, 0x9F), (0x200B, 0x200F), (0x2028, 0x202E),
                            (0x2060, 0x206F), (0xFFF9, 0xFFFF)),
    "spaces": list(" \t\u00A0\u1680\u2000\u2003\u200A\u202F\u205F\u3000\u180E\u200B\uFEFF"),
    "newlines": ["\n", "\r", "\r\n", "\u000B", "\u000C", "\u0085", "\u2028", "\u2029"],
    "marks": code_points((0x300, 0x36F), (0x483, 0x489), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF),
                         (0x3099, 0x309A), (0xFE00, 0xFE0F), (0x1D165, 0x1D172)),
    "composed": code_points((0xC0, 0x24F), (0x1E00, 0x1FFF), (0x958, 0x95F), (0xF900, 0xFAFF),
                            (0x1D15E, 0x1D164), (0x2F800, 0x2FA1D)),
    "CJK": code_points((0x3000, 0x30FF), (0x3400, 0x9FFF), (0x20000, 0x20FFF), (0x2EBF0, 0x323AF)),
    "Hangul": code_points((0x1100, 0x11FF), (0xAC00, 0xD7FB)),
    "right to left": code_points((0x590, 0x6FF), (0x7C0, 0x8FF), (0xFB1D, 0xFDFF),
                                 (0x1E900, 0x1E95F)),
    "Indic": code_points((0x900, 0xDFF), (0xE00, 0xFFF), (0x11000, 0x111FF)),
    "cased": code_points((0x370, 0x58F), (0x10A0, 0x10FF), (0x1C80, 0x1CBF), (0x2C00, 0x2DFF),
                         (0xA640, 0xA7FF), (0x10400, 0x1044F)),
    "symbols": code_points((0x2000, 0x2BFF), (0x1F000, 0x1FAFF), (0xA1, 0xBF)),
    "emoji": ["😀", "👍🏽", "👩‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "1️⃣", "☺\uFE0F", "\u200D", "🏽", "🏴\U000E0067\U000E007F"],
    "digits": [c for c in map(chr, range(0x110000)) if not "\uD800" <= c <= "\uDFFF"
               and c.isnumeric()],
    "contractions": [quote + tail for quote in "'’ʼ" for word in
                     ("s", "t", "re", "ve", "m", "ll", "d", "ſ", "x") for tail in
                     {word, word.upper(), word.capitalize(), word[:-1] + word[-1].upper()}],
    "added tokens": ["<|endoftext|>", "<|endoftext|>x", "<lstrip>", "<rstrip>", "<both>", "<word>",
                     "<words>", "<norm>", "cafétok", "cafe\u0301tok", "  pad ", "  pad", "<s>",
                     "</s>", "<unk>", "<|endoftext|", "<", "|>"],
    "look-alikes": ["▁", "▁▁", "Ġ", "Ċ", "Ã©", "<0x41>", "<0xE4>", "<0x0A>", "\uFFFD", "\uFFFE",
                    "\U0010FFFF", "\uE000", "ﬁ", "ß", "İ", "ǅ", "\u0345", "\u2126", "\u212A"],
}
WORDS = " \n".join(TRAINING + vectors.TEXTS)


def random_part(rng, natural):
    kind = rng.randrange(12)
    if kind < 3:
        at = rng.randrange(len(natural))
        return natural[at:at + rng.randint(1, 60)]
    if kind < 4:
        at = rng.randrange(len(WORDS))
        return WORDS[at:at + rng.randint(1, 30)]
    if kind < 5:
        plane = PLANES[rng.choice((0, 0, 0, 1, 1, 2, 3, 14, rng.randrange(17)))]
        return "".join(rng.choices(plane, k=rng.randint(1, 6)))
    pool = POOLS[rng.choice(list(POOLS))]
    if kind < 6:  # a run
        return rng.choice(pool) * rng.randint(2, 300 if rng.random() < 0.05 else 12)
    return "".join(rng.choices(pool, k=rng.randint(1, 6)))


def make_texts(seed, n):
    rng = random.Random(seed)
    natural = "\n".join(vectors.TRAINING)
    texts = list(vectors.TEXTS)
    while len(texts) < n:
        joint = rng.choice(("", "", " ", "\n", "'"))
        texts.append(joint.join(random_part(rng, natural) for _ in range(rng.randint(1, 8))))
    return texts[:n]


# ---- comparison ----

def ask(directory, lines):
    """What tokenize_lines answers, line by line."""
    done = subprocess.run([str(BIN / "tokenize_lines"), str(directory), str(2 * VOCAB)],
                          input="".join(json.dumps(line) + "\n" for line in lines),
                          capture_output=True, text=True, env=server_env(), check=False)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.split("\n")[:-1]]
    assert len(answers) == len(lines)
    return answers


def expect_all(what, asked, got, want):
    """One message for all differences, with the first few."""
    wrong = [i for i, pair in enumerate(zip(got, want, strict=True)) if pair[0] != pair[1]]
    shown = "\n".join(f"{asked[i]!r}\n  got  {got[i]}\n  want {want[i]}" for i in wrong[:5])
    assert not wrong, f"{len(wrong)} of {len(asked)} {what} differ:\n{shown}"


def expected_ids(tokenizer, texts):
    """By text: ids with special tokens, and ids of the same as plain text."""
    tokenizer.encode_special_tokens = False
    special = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    tokenizer.encode_special_tokens = True
    plain = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [list(pair) for pair in zip(special, (encoding.ids for encoding in plain))]


def id_lists(rng, spec, tokenizer, encoded):
    """What to decode: ids of the texts, and ids at random. Left out is where a stream cannot know
    what `tokenizers` does (make_tokenizer_vectors.py says why)."""
    lists = [ids for ids, _ in encoded]
    size = tokenizer.get_vocab_size()
    lists += [[rng.randrange(size) for _ in range(rng.randint(1, 20))] for _ in lists]
    respelt = vectors.respelt_ids(tokenizer, spec)
    lists = [ids for ids in lists if not respelt & set(ids)]
    if not spec["model"]["byte_fallback"]:
        return lists
    texts = zip(*(tokenizer.decode_batch(lists, skip_special_tokens=skip)
                  for skip in (False, True)))
    return [ids for ids, text in zip(lists, texts) if "\uFFFD" not in text[0] + text[1]]


@pytest.fixture(scope="module", autouse=True)
def larger_vocabularies():
    """The helpers of make_tokenizer_vectors train on this module's text."""
    vectors.TRAINING = training_text()
    yield
    vectors.TRAINING = TRAINING


@pytest.mark.asan
@pytest.mark.timeout(3600 if LONG else 300)
@pytest.mark.parametrize("name", PIPELINES)
def test_ids_and_texts_are_those_of_the_tokenizers_package(name, tmp_path):
    spec = PIPELINES[name]()
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False))
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    texts = make_texts(name, N_TEXTS)
    encoded = expected_ids(tokenizer, texts)
    expect_all("encodings", texts, ask(tmp_path, texts), encoded)
    lists = id_lists(random.Random(name), spec, tokenizer, encoded)
    decoded = zip(*(tokenizer.decode_batch(lists, skip_special_tokens=skip)
                    for skip in (False, True)))
    expect_all("decodings", lists, ask(tmp_path, lists), [list(pair) for pair in decoded])


# ---- tiktoken.model ----

RANK_TOKENS = ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|media_pad|>", "cafétok"]


def write_ranks(directory):
    """A trained vocabulary as tiktoken.model, and its special tokens; what tiktoken makes of it."""
    byte_of = {c: byte for byte, c in enumerate(byte_alphabet())}
    model = byte_level_spec(sequence(regex_split(KIMI), byte_level(False)), None, VOCAB)["model"]
    trained = [bytes(byte_of[c] for c in token) for token in model["vocab"]]
    tokens = dict.fromkeys([*(bytes([byte]) for byte in range(256)), *trained])
    ranks = {token: rank for rank, token in enumerate(tokens)}
    special = {token: len(ranks) + 2 * i for i, token in enumerate(RANK_TOKENS)}
    (directory / "tiktoken.model").write_text("".join(
        f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    (directory / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {
        str(rank): {"content": token, "lstrip": False, "normalized": False, "rstrip": False,
                    "single_word": False, "special": True} for token, rank in special.items()}}))
    return tiktoken.Encoding("trained", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)


def byte_alphabet():
    """GPT-2's printable character of each byte."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in own else next(others)) for byte in range(256)]


@pytest.mark.asan
@pytest.mark.timeout(3600 if LONG else 300)
def test_a_file_of_ranks_encodes_and_decodes_as_tiktoken_does(tmp_path):
    encoding = write_ranks(tmp_path)
    rng = random.Random("ranks")
    texts = [text + rng.choice(["", *RANK_TOKENS]) for text in make_texts("ranks", N_TEXTS)]
    want = [[encoding.encode(text, allowed_special="all"), encoding.encode_ordinary(text)]
            for text in texts]
    expect_all("encodings", texts, ask(tmp_path, texts), want)
    special = set(encoding._special_tokens.values())  # pylint: disable=protected-access
    known = [*range(encoding.n_vocab - 2 * len(special) + 1), *special]
    lists = [ids for ids, _ in want] + [rng.choices(known, k=rng.randint(1, 20)) for _ in want]
    expect_all("decodings", lists, ask(tmp_path, lists),
               [[encoding.decode(ids), encoding.decode([i for i in ids if i not in special])]
                for ids in lists])
