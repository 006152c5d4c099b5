"""Generate, as a Python program uses it."""
import math

import grpc
import numpy as np
import pytest

from sy_client import error_of
import sy_client

pytestmark = pytest.mark.sanitize
PROMPT = "In the beginning"


def test_tokens_arrive_one_by_one_and_the_text_is_their_sum(client):
    n_events = n_tokens = 0
    whole = client.generate(PROMPT, max_tokens=24, ignore_eos=True)
    for reply in client.start(PROMPT, max_tokens=24, ignore_eos=True):
        n_events += 1
        n_tokens += len(reply.delta.token)
    assert n_tokens == 24 == len(whole.tokens)
    assert n_events == 25, "a token each, and Finish"
    assert whole.finish.reason == sy_client.pb.LENGTH
    assert whole.finish.usage.generated_tokens == 24
    assert whole.text.isprintable() or "\n" in whole.text


def test_finish_tells_usage_timing_and_placement(client):
    finish = client.generate(PROMPT, max_tokens=8, ignore_eos=True).finish
    assert finish.usage.prompt_tokens == 5 and finish.usage.generated_tokens == 8
    timing = finish.timing
    assert 0 <= timing.queue_ms <= timing.first_token_ms <= timing.total_ms
    assert timing.route_ms > 0 and timing.compute_ms > 0 and timing.combine_ms > 0
    assert finish.placement_hash == client.model().placement_hash
    assert list(finish.policies) == [], "nothing approximates unless asked to"


def test_the_same_seed_gives_the_same_text_and_another_seed_another(client):
    def draw(seed):
        return client.generate(PROMPT, max_tokens=32, ignore_eos=True, seed=seed,
                               sampling=dict(temperature=1.0, top_p=0.95, top_k=100)).tokens

    assert draw(7) == draw(7)
    assert len({tuple(draw(seed)) for seed in range(4)}) == 4


def test_temperature_zero_is_greedy(client):
    greedy = client.generate(PROMPT).tokens
    assert client.generate(PROMPT, sampling=dict(temperature=0.0), seed=99).tokens == greedy
    assert client.generate(PROMPT, sampling=dict(temperature=1.0, top_k=1), seed=5).tokens == greedy


def test_a_repetition_penalty_changes_what_repeats(client):
    tokens = [client.generate("food, food, food,", max_tokens=48, ignore_eos=True,
                              sampling=dict(repetition_penalty=p)).tokens for p in (1.0, 1.8)]
    assert len(set(tokens[1])) > len(set(tokens[0]))


def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(client):
    free = client.generate(PROMPT, max_tokens=48, ignore_eos=True).text
    middle = free[len(free) // 2:][:6]
    stopped = client.generate(PROMPT, max_tokens=48, ignore_eos=True, stop=["never seen", middle])
    assert stopped.text == free[:free.index(middle)]
    assert stopped.finish.reason == sy_client.pb.STOP


def test_logprobs_are_the_log_softmax_of_the_logits(client):
    got = client.generate(PROMPT, max_tokens=6, logprobs=True, top_logprobs=5, want_logits=True)
    logits = got.logits.astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert len(got.logprobs) == 6 and len(got.top) == 30
    for i, token in enumerate(got.tokens):
        assert math.isclose(got.logprobs[i], logprobs[i, token], abs_tol=1e-4)
        top = got.top[5 * i:5 * i + 5]
        assert [t for t, _ in top] == list(np.argsort(-logprobs[i], kind="stable")[:5])
        assert np.allclose([p for _, p in top], np.sort(logprobs[i])[::-1][:5], atol=1e-4)


@pytest.mark.parametrize("n", [1, 2, 17])
def test_max_tokens_is_the_number_of_tokens(client, n):
    got = client.generate(PROMPT, max_tokens=n, ignore_eos=True)
    assert len(got.tokens) == n == got.finish.usage.generated_tokens


def test_without_max_tokens_the_context_is_the_end(client):
    prompt = [5] * 1000
    got = client.generate(prompt, max_tokens=0, ignore_eos=True)
    assert got.finish.reason == sy_client.pb.LENGTH
    assert got.finish.usage.prompt_tokens == 1000
    assert 23 <= len(got.tokens) <= 25, "the context is 1024 tokens"


def test_an_end_of_sequence_token_stops_unless_ignored(client):
    # Hot enough that each of the 2048 tokens is as likely as another: a few hundred seeds of 100
    # tokens meet the end-of-sequence token, and the seeds make it the same one in every run.
    hot = dict(max_tokens=100, sampling=dict(temperature=1000.0))
    for seed in range(400):
        got = client.generate(PROMPT, seed=seed, **hot)
        if got.finish.reason == sy_client.pb.STOP:
            break
    assert got.finish.reason == sy_client.pb.STOP
    on = client.generate(PROMPT, seed=seed, ignore_eos=True, **hot)
    n = len(got.tokens) - (2047 in got.tokens)
    assert on.tokens[:n] == got.tokens[:n] and on.tokens[n] == 2047 and len(on.tokens) == 100


def test_a_multibyte_character_is_sent_whole(client):
    for reply in client.start("café — 你好 😀", max_tokens=48, ignore_eos=True):
        reply.delta.text.encode()  # protobuf has checked that each piece is UTF-8 of its own
        assert "\ufffd" not in reply.delta.text[1:], "a character was cut"


def test_cancelling_stops_the_work(one_node, client):
    n_calls, n_tokens = 40, 1000

    def rows():
        return one_node.metric("aggregator-0", "switchyard_engine_rows_total")
    before = rows()
    calls = [client.start(PROMPT, max_tokens=n_tokens, ignore_eos=True) for _ in range(n_calls)]
    for call in calls:
        next(call)
    assert one_node.metric("aggregator-0", "switchyard_running_requests") > 0
    for call in calls:
        call.cancel()
    one_node.wait_idle()
    assert rows() - before < n_calls * n_tokens / 2, "idle because all was computed to the end"
    assert client.generate(PROMPT, max_tokens=4).tokens


def test_a_deadline_ends_a_long_answer(one_node, client):
    error = error_of(client.start, PROMPT, timeout=0.3, max_tokens=0, ignore_eos=True)
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    one_node.wait_idle()


def test_fewer_experts_are_used_when_the_request_asks_and_the_reply_says_so(client):
    exact = client.generate(PROMPT, max_tokens=8, want_logits=True)
    one = client.generate(PROMPT, max_tokens=8, want_logits=True,
                          policy=sy_client.tensor_pb.RoutePolicy(experts_per_token=1))
    same = client.generate(PROMPT, max_tokens=8, want_logits=True,
                           policy=sy_client.tensor_pb.RoutePolicy(experts_per_token=2))
    assert not sy_client.same_bits(exact.logits[:1], one.logits[:1])
    assert one.finish.policies, "a departure from exactness is named in the reply"
    assert sy_client.same_bits(exact.logits, same.logits)
    assert not same.finish.policies, "as many experts as the checkpoint uses is exact"


def test_list_models_describes_what_is_served(client):
    model = client.model()
    assert (model.name, model.family) == ("trio", "mixtral")
    assert (model.layers, model.hidden, model.experts, model.top_k) == (4, 192, 16, 2)
    assert (model.vocab, model.context) == (2048, 1024)
    assert model.ready and not model.not_ready_reason
    assert model.structure_hash and model.placement_hash and model.placement_epoch
