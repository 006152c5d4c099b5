"""Encoding takes work in proportion to the text, however hostile: instructions counted by callgrind,
which repeat where times do not. A text of one kind is given once and again twice as long; beyond
what starting costs, the second may take little more than twice the first. Anything quadratic in one
of the texts would take nearly four times as much."""
import json
import re
import shutil
import subprocess

import pytest

from sy_client import BIN, LONG, SANITIZED
from sy_cluster import server_env
from test_tokenizers import PIPELINES, VOCAB, larger_vocabularies, write_ranks  # noqa: F401

N_CHARS = 3_000
KINDS = {
    "letters": "a", "capitals": "A", "spaces": " ", "digits": "7", "newlines": "\n",
    "marks": "\u0301\u0323", "disordered marks": "\u0302" * 9 + "\u0323", "Han": "你好", "quotes": "'",
    "mixed space": " \t\r\n  ",
    "one word": "Word", "Greek": "αΒ", "emoji": "👩‍💻", "punctuation": "!/", "young Han": "\U0002EBF0",
    "added tokens": "<|endoftext|> ", "half an added token": "<|endoftext|",
}
ENDED = {"spaces, then a letter": (" ", "x"), "spaces, then a digit": (" ", "1"),
         "letters, then a mark": ("A", "\u0301"), "newlines, then a letter": ("\n", "x")}
SHOWN = ["gpt2", "qwen2", "o200k", "deepseek-v2", "deepseek-v3", "kimi",
         "mixtral: legacy prepend and replace"]


def instructions(directory, texts):
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
         str(BIN / "tokenize_lines"), str(directory), str(2 * VOCAB)],
        input="".join(json.dumps(text) + "\n" for text in texts), capture_output=True, text=True,
        env=server_env(), check=False)
    assert done.returncode == 0, done.stderr
    return int(re.search(r"Collected : (\d+)", done.stderr)[1])


def texts_of(n_chars):
    return {**{kind: (unit * n_chars)[:n_chars] for kind, unit in KINDS.items()},
            **{kind: unit * n_chars + end for kind, (unit, end) in ENDED.items()}}


def check_linear(directory):
    start = instructions(directory, [])
    once, twice = (instructions(directory, texts_of(n).values()) - start for n in (N_CHARS, 2 * N_CHARS))
    if twice <= 2.1 * once:
        return
    worst = {kind: [instructions(directory, [texts_of(n)[kind]]) - start
                    for n in (N_CHARS, 2 * N_CHARS)] for kind in texts_of(1)}
    assert False, f"{twice} instructions for twice the text, {once} for once; by kind: {worst}"


@pytest.mark.timeout(900)
@pytest.mark.skipif(SANITIZED or shutil.which("valgrind") is None,
                    reason="instructions are counted by valgrind, which runs no sanitized programs")
@pytest.mark.parametrize("name", PIPELINES if LONG else SHOWN)
def test_twice_the_text_takes_twice_the_work(name, tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(PIPELINES[name]()))
    check_linear(tmp_path)


@pytest.mark.timeout(900)
@pytest.mark.skipif(SANITIZED or shutil.which("valgrind") is None,
                    reason="instructions are counted by valgrind, which runs no sanitized programs")
def test_twice_the_text_takes_twice_the_work_from_ranks(tmp_path):
    write_ranks(tmp_path)
    check_linear(tmp_path)
