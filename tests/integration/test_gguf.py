"""Models from GGUF files through the three tiers: what one process gives, and what the checkpoint
gives that the file was made of."""
import json

import pytest

from sy_client import same_bits
from sy_cluster import run_tool
from sy_gguf import write_mixtral
from test_families import N_TOKENS, PROMPT, PUBLISHED, in_process, synth


@pytest.fixture
def checkpoint(tmp_path):
    synth("mixtral", tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.asan
@pytest.mark.parametrize("blocks", [False, True], ids=["f32", "q8_0"])
def test_a_gguf_file_gives_the_bits_of_one_process_over_two_nodes(up, checkpoint, tmp_path, blocks):
    path = tmp_path / "mixtral.gguf"
    write_mixtral(checkpoint, path, blocks=blocks)
    cluster = up(model=path, experts=2)
    with cluster.client() as client:
        got = client.generate(PROMPT, max_tokens=N_TOKENS, ignore_eos=True, want_logits=True)
        text = client.generate(bytes(PROMPT).decode(), max_tokens=N_TOKENS, ignore_eos=True)
    tokens, want = in_process(path, tmp_path / "logits.npy")
    assert got.tokens == tokens and text.tokens == tokens
    assert same_bits(got.logits, want)
    if not blocks:
        assert same_bits(got.logits, in_process(checkpoint, tmp_path / "logits.npy")[1])


def test_an_expert_moves_between_nodes_that_hold_blocks_of_a_gguf_file(up, checkpoint, tmp_path):
    path = tmp_path / "mixtral.gguf"
    write_mixtral(checkpoint, path, blocks=True)
    cluster = up(model=path, experts=2)
    fields = dict(prompt=PUBLISHED, max_tokens=N_TOKENS, ignore_eos=True, want_logits=True)
    with cluster.client() as client:
        want = client.generate(**fields)
        told = run_tool("placement", "move", "--dir", cluster.dir, "*/3", "expert-0/cpu:0",
                        "expert-1/cpu:0", "--wait")
        got = client.generate(**fields)
    assert int(told.split(" experts move")[0]) > 0
    assert same_bits(got.logits, want.logits)


def test_a_folder_with_two_models_is_refused_by_their_names(checkpoint, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in "one.gguf", "two.gguf":
        write_mixtral(checkpoint, folder / name)
    done = run_tool("run", "--model", folder, "--prompt", "a", check=False)
    assert done.returncode != 0
    assert "one.gguf" in done.stderr and "two.gguf" in done.stderr


def test_a_gguf_file_brings_its_chat_template(checkpoint, tmp_path):
    path, chat = tmp_path / "mixtral.gguf", tmp_path / "chat.json"
    write_mixtral(checkpoint, path, template="{% for m in messages %}<{{ m.content }}>{% endfor %}")
    chat.write_text(json.dumps({"messages": [{"role": "user", "content": "a"},
                                             {"role": "user", "content": "b"}]}))
    options = ["--model", path, "--max-tokens", 4, "--ignore-eos", "--json"]
    got = json.loads(run_tool("run", *options, "--chat", chat))
    assert got["tokens"] == json.loads(run_tool("run", *options, "--prompt", "<a><b>"))["tokens"]
    assert got["usage"]["prompt_tokens"] == 6
