"""Conversations: through the checkpoint's chat template, in one process and over the tiers."""
import json
import shutil

import grpc
import pytest

from sy_client import error_of
from sy_cluster import MODEL, run_tool

pytestmark = pytest.mark.asan
TEMPLATE = ("{{ bos_token }}{% for message in messages %}\n"
            "{{ message.role | upper }}: {{ message.content | trim }}\n"
            "{% endfor %}\n"
            "{% if add_generation_prompt %}ASSISTANT:{% endif %}")
MESSAGES = [{"role": "user", "content": "  In the beginning "}, {"role": "assistant", "content": "was"},
            {"role": "user", "content": "what?"}]
TEXT = "USER: In the beginning\nASSISTANT: was\nUSER: what?\nASSISTANT:"


def with_template(directory, template):
    shutil.copytree(MODEL, directory)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config["bos_token"] = "<|endoftext|>"
    if template is not None:
        config["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def run(directory, *args):
    return json.loads(run_tool("run", "--model", directory, *args, "--max-tokens", 12,
                               "--ignore-eos", "--json"))


def test_a_conversation_is_the_text_that_its_template_makes(up, tmp_path):
    model = with_template(tmp_path / "model", TEMPLATE)
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps({"messages": MESSAGES}))
    got = run(model, "--chat", chat)
    # The template's special token is one token, and nothing is added around the text.
    want = run(model, "--prompt", "<|endoftext|>" + TEXT)
    assert got["tokens"] == want["tokens"]
    assert got["usage"]["prompt_tokens"] == want["usage"]["prompt_tokens"]
    with up(model=model, experts=2).client() as client:
        assert client.generate(chat=chat.read_text(), max_tokens=12,
                               ignore_eos=True).tokens == want["tokens"]
        # Without a place for an answer, if it is asked for so: another text.
        fewer = client.generate(chat=json.dumps({"messages": MESSAGES, "add_generation_prompt": False}),
                                max_tokens=1, ignore_eos=True)
        assert fewer.finish.usage.prompt_tokens < want["usage"]["prompt_tokens"]
        e = error_of(client.generate, chat="[1]")
        assert e.code() == grpc.StatusCode.INVALID_ARGUMENT and "object" in e.details()
        e = error_of(client.generate, chat=json.dumps({"messages": 7}))
        assert e.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert client.generate("In the beginning", max_tokens=2).tokens, "the others go on"


def test_several_conversations_of_a_file_are_answered(tmp_path):
    model = with_template(tmp_path / "model", TEMPLATE)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"chat": {"messages": MESSAGES}, "max_tokens": 4}) + "\n" +
                       json.dumps({"prompt": "<|endoftext|>" + TEXT, "max_tokens": 4}) + "\n")
    lines = run_tool("run", "--model", model, "--prompts-file", prompts, "--ignore-eos",
                     "--json").splitlines()
    assert json.loads(lines[0])["tokens"] == json.loads(lines[1])["tokens"]


@pytest.mark.parametrize("template, code, part", [
    (None, grpc.StatusCode.FAILED_PRECONDITION, "no chat template"),
    ("{% for m in messages %}\n{% bogus %}{% endfor %}", grpc.StatusCode.INVALID_ARGUMENT, "bogus"),
    ("{{ raise_exception('roles must alternate') }}", grpc.StatusCode.INVALID_ARGUMENT,
     "roles must alternate"),
])
def test_a_template_that_is_missing_or_wrong_refuses_conversations_alone(up, tmp_path, template, code,
                                                                         part):
    with up(model=with_template(tmp_path / "model", template)).client() as client:
        e = error_of(client.generate, chat=json.dumps({"messages": MESSAGES}))
        assert e.code() == code and part in e.details()
        assert client.generate("In the beginning", max_tokens=2).tokens
