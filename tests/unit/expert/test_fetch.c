/* test_fetch.c - shards that travel from node to node, and every way in which a peer may fail or
 * lie. */
#include "fetch_fixture.h"

static void a_fetched_shard_is_the_one_that_was_given(void **state)
{
    node *a = node_real((expert_fetch_server_config){0});
    taker *t = taker_open((expert_fetcher_config){0}, 0);

    (void)state;
    (void)take_from(t, &a, 1);
    expect_the_shard(t);
    assert_int_equal(t->added, total_bytes);
    assert_int_equal(t->n_steps, (total_bytes + CHUNK - 1) / CHUNK);
    wait_until(expert_fetch_server_bytes(a->giving) == total_bytes);
    assert_int_equal(take_from(t, &a, 0), SY_ENOTFOUND);
    taker_close(t);
    node_close(a);
}

static void who_has_it_not_is_named(void **state)
{
    node *a = node_real((expert_fetch_server_config){0});
    taker *t = taker_open((expert_fetcher_config){0}, 0);

    (void)state;
    assert_int_equal(sy_shard_unload(a->store, LAYER, EXPERT), 1);
    assert_int_equal(take_from(t, &a, 1), SY_EPRECONDITION);
    expect_refusal(t, SY_EPRECONDITION, "expert-a: layer 1 expert 2 is not in memory here");
    assert_string_equal(t->err.reason, "SHARD_NOT_RESIDENT");
    assert_string_equal(t->err.node, "expert-a");
    /* One that was loaded without being probed has no identity to promise. */
    must(sy_shard_load(a->store, LAYER, EXPERT, &t->err), &t->err);
    assert_int_equal(take_from(t, &a, 1), SY_EPRECONDITION);
    taker_close(t);
    node_close(a);
}

static void nobody_at_the_address_is_unavailable(void **state)
{
    node absent = {.address = "127.0.0.1:1"};
    node *a = node_real((expert_fetch_server_config){0});
    node *nodes[] = {&absent, a};
    taker *t = taker_open((expert_fetcher_config){0}, 0);

    (void)state;
    assert_int_equal(take_from(t, nodes, 1), SY_EUNAVAILABLE);
    assert_string_equal(t->err.node, "expert-a");
    (void)take_from(t, nodes, 2);
    expect_the_shard(t);
    assert_int_equal(t->fetched.source, 1);
    taker_close(t);
    node_close(a);
}

/* ---- connections that are lost ---- */

static void two_chunks_then_lost(node *n, sy_call *call, const sy_fetch_request *request)
{
    (void)n;
    say_chunks(call, request->offset, 2);
    hang_up(call, SY_EUNAVAILABLE);
}

static void a_lost_fetch_goes_on_where_it_was(void **state)
{
    node *a = node_played(two_chunks_then_lost);
    taker *t = taker_open((expert_fetcher_config){0}, 0);

    (void)state;
    (void)take_from(t, &a, 1);
    expect_the_shard(t);
    assert_int_equal(t->n_steps, (total_bytes + CHUNK - 1) / CHUNK); /* no chunk came twice */
    assert_int_equal(atomic_load(&a->n_requests), 3);
    assert_int_equal(atomic_load(&a->offset), 4 * CHUNK);
    assert_true(atomic_load(&a->content) == truth.content);
    taker_close(t);
    node_close(a);
}

static void a_lost_fetch_goes_on_from_another_node(void **state)
{
    node *a = node_played(two_chunks_then_lost), *b = node_real((expert_fetch_server_config){0});
    node *nodes[] = {a, b};
    taker *t = taker_open((expert_fetcher_config){0}, 0);

    (void)state;
    (void)take_from(t, nodes, 2);
    expect_the_shard(t);
    assert_int_equal(t->fetched.source, 1);
    wait_until(expert_fetch_server_bytes(b->giving) == total_bytes - 2 * CHUNK);
    taker_close(t);
    node_close(a);
    node_close(b);
}

static void nothing_and_lost(node *n, sy_call *call, const sy_fetch_request *request)
{
    (void)n;
    (void)request;
    hang_up(call, SY_ELIMIT);
}

static void ends_early_with_ok(node *n, sy_call *call, const sy_fetch_request *request)
{
    (void)n;
    say_chunks(call, request->offset, request->offset == 0 ? 1 : 0);
    sy_call_finish(call, NULL);
}

static void a_peer_that_never_gets_further_is_given_up(void **state)
{
    node *busy = node_played(nothing_and_lost), *early = node_played(ends_early_with_ok);
    taker *t = taker_open((expert_fetcher_config){0}, 0);

    (void)state;
    assert_int_equal(take_from(t, &busy, 1), SY_EUNAVAILABLE); /* not SY_ELIMIT: that is ours */
    assert_int_equal(atomic_load(&busy->n_requests), 5);
    assert_int_equal(take_from(t, &early, 1), SY_EUNAVAILABLE);
    expect_refusal(t, SY_EUNAVAILABLE, "expert-a: ended the stream after 262144 bytes");
    taker_close(t);
    node_close(busy);
    node_close(early);
}

static void one_chunk_then_silence(node *n, sy_call *call, const sy_fetch_request *request)
{
    say_chunks(call, request->offset, 1);
    node_hold(n, call);
}

static void a_peer_that_stalls_is_given_up(void **state)
{
    node *a = node_played(one_chunk_then_silence), *b = node_real((expert_fetch_server_config){0});
    node *nodes[] = {a, b};
    taker *t = taker_open((expert_fetcher_config){.stall_us = 300000}, 0);

    (void)state;
    (void)take_from(t, nodes, 2);
    expect_the_shard(t);
    assert_int_equal(t->fetched.source, 1);
    taker_close(t);

    t = taker_open((expert_fetcher_config){.stall_us = WAIT_US, .total_us = 300000}, 0);
    assert_int_equal(take_from(t, &a, 1), SY_EDEADLINE);
    assert_string_equal(t->err.node, "expert-a");
    taker_close(t);
    node_close(a);
    node_close(b);
}

static void a_stop_ends_a_fetch_at_once(void **state)
{
    node *a = node_played(one_chunk_then_silence);
    taker *t = taker_open((expert_fetcher_config){.stall_us = 10 * WAIT_US}, 0);

    (void)state;
    t->stop_at = 1;
    const int64_t before_us = sy_clock_us();
    assert_int_equal(take_from(t, &a, 1), SY_ECANCELLED);
    assert_true(sy_clock_us() - before_us < WAIT_US);
    assert_int_equal(t->n_steps, 1);
    assert_int_equal(take_from(t, &a, 1), SY_ECANCELLED); /* stopped before it began */
    assert_int_equal(atomic_load(&a->n_requests), 1);
    taker_close(t);
    node_close(a);
}

/* ---- peers that send what they should not ---- */

typedef void (*lie_fn)(sy_shard_chunk *c);
static _Atomic(lie_fn) lie; /* told about the third chunk */

static void three_chunks_the_last_a_lie(node *n, sy_call *call, const sy_fetch_request *request)
{
    const uint64_t at = say_chunks(call, request->offset, 2);
    sy_shard_chunk c = chunk_at(at);

    (void)n;
    atomic_load (&lie)(&c);
    say(call, &c);
    say_chunks(call, at + CHUNK, NEVER_ENDS);
    sy_call_finish(call, NULL);
}

static void other_expert(sy_shard_chunk *c)
{
    c->expert++;
}
static void other_offset(sy_shard_chunk *c)
{
    c->offset -= 1;
}
static void past_the_end(sy_shard_chunk *c)
{
    c->offset = total_bytes - 1;
}
static void other_total(sy_shard_chunk *c)
{
    c->total_bytes++;
}
static void other_form(sy_shard_chunk *c)
{
    c->rows[0] *= 2;
    c->total_bytes += (uint64_t)c->rows[1] * c->cols[0] * 4;
}
static void other_content(sy_shard_chunk *c)
{
    c->content_hash ^= 1;
}
static void no_probe(sy_shard_chunk *c)
{
    c->probe_hash = 0;
}
static void other_bytes(sy_shard_chunk *c)
{
    c->data = stored;
}
static void not_a_number(sy_shard_chunk *c)
{
    static uint8_t bytes[CHUNK];

    memset(bytes, 0xff, sizeof(bytes));
    c->data = bytes;
    c->chunk_hash = sy_digest(bytes, c->n_bytes);
}
static void other_bytes_well_hashed(sy_shard_chunk *c)
{
    c->data = stored;
    c->chunk_hash = sy_digest(stored, c->n_bytes);
}

static void a_lie_is_named_and_the_shard_taken_from_another_node(void **state)
{
    static const struct {
        lie_fn lie;
        sy_status status;
        const char *text;
    } lies[] = {
        {other_expert, SY_EINVAL, "expert-a: sent layer 1 expert 3"},
        {other_offset, SY_EINVAL, "expert-a: sent the bytes from 524287 on, not from 524288"},
        {past_the_end, SY_EINVAL, "expert-a: offset"},
        {other_total, SY_EINVAL, "expert-a: total_bytes"},
        {other_form, SY_EINVAL, "expert-a: the shard's form changed"},
        {other_content, SY_EDATALOSS, "expert-a: the shard changed on the way"},
        {no_probe, SY_EINVAL, "expert-a: does not say"},
        {other_bytes, SY_EDATALOSS, "expert-a: the bytes from 524288 on were damaged on the way"},
        {not_a_number, SY_EDATALOSS, "expert-a: layer 1 expert 2: a weight of"},
        {other_bytes_well_hashed, SY_EDATALOSS, "expert-a: announced content"},
    };
    node *a = node_played(three_chunks_the_last_a_lie);
    node *b = node_real((expert_fetch_server_config){0});
    node *nodes[] = {a, b};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(lies); i++) {
        taker *t = taker_open((expert_fetcher_config){0}, 0);

        atomic_store(&lie, lies[i].lie);
        (void)take_from(t, nodes, 1);
        expect_refusal(t, lies[i].status, lies[i].text);
        assert_string_equal(t->err.node, "expert-a");
        assert_int_equal(t->err.layer, LAYER);
        assert_int_equal(t->err.expert, EXPERT);
        assert_int_equal(atomic_load(&a->n_requests), 2 * i + 1); /* not asked again */
        (void)take_from(t, nodes, 2);
        expect_the_shard(t);
        taker_close(t);
    }
    node_close(a);
    node_close(b);
}

static void a_lie_is_not_forgotten_when_nobody_else_has_the_shard(void **state)
{
    node *a = node_played(three_chunks_the_last_a_lie);
    node *b = node_real((expert_fetch_server_config){0});
    node *nodes[] = {a, b};
    taker *t = taker_open((expert_fetcher_config){0}, 0);

    (void)state;
    atomic_store(&lie, other_bytes);
    assert_int_equal(sy_shard_unload(b->store, LAYER, EXPERT), 1);
    (void)take_from(t, nodes, 2);
    expect_refusal(t, SY_EDATALOSS, "expert-a: the bytes from");
    taker_close(t);
    node_close(a);
    node_close(b);
}

static void all_with_a_wrong_probe(node *n, sy_call *call, const sy_fetch_request *request)
{
    (void)n;
    for (uint64_t at = request->offset; at < total_bytes; at += CHUNK) {
        sy_shard_chunk c = chunk_at(at);
        c.probe_hash ^= 1;
        say(call, &c);
    }
    sy_call_finish(call, NULL);
}

static void a_shard_that_computes_other_bits_than_announced_is_refused(void **state)
{
    node *a = node_played(all_with_a_wrong_probe);
    taker *t = taker_open((expert_fetcher_config){0}, 0);

    (void)state;
    (void)take_from(t, &a, 1);
    expect_refusal(t, SY_EDATALOSS, "expert-a: announced content");
    assert_string_equal(t->err.reason, "SHARD_CORRUPT");
    taker_close(t);
    node_close(a);
}

static void other_form_from_the_start(node *n, sy_call *call, const sy_fetch_request *request)
{
    sy_shard_chunk c = chunk_at(request->offset);

    (void)n;
    for (int i = 0; i < 3; i++) c.dtype[i] = SY_BF16;
    c.total_bytes /= 2;
    say(call, &c);
    sy_call_finish(call, NULL);
}

static void a_shard_of_another_checkpoint_is_refused(void **state)
{
    node *a = node_played(other_form_from_the_start);
    taker *t = taker_open((expert_fetcher_config){0}, 0);

    (void)state;
    (void)take_from(t, &a, 1);
    expect_refusal(t, SY_EINVAL, "gate is bf16 [500,256], but this model has f32 [500,256]");
    taker_close(t);
    node_close(a);
}

static void garbage(node *n, sy_call *call, const sy_fetch_request *request)
{
    static const uint8_t bytes[] = {0xff, 0xff, 0xff, 0x07, 0x0a};
    sy_buf *buf = sy_buf_alloc(sizeof(bytes));
    sy_frame frame;

    (void)n;
    (void)request;
    memcpy(buf->data, bytes, sizeof(bytes));
    sy_frame_init(&frame);
    assert_int_equal(sy_frame_add(&frame, buf, buf->data, sizeof(bytes)), SY_OK);
    sy_buf_unref(buf);
    (void)sy_call_send(call, &frame);
}

static void an_oversized_message(node *n, sy_call *call, const sy_fetch_request *request)
{
    sy_shard_chunk c = chunk_at(request->offset);

    (void)n;
    c.n_bytes = SY_WIRE_CHUNK_MAX + (1 << 20);
    c.data = calloc(1, c.n_bytes);
    say(call, &c);
    free((void *)(uintptr_t)c.data);
}

static void garbage_and_oversized_messages_are_errors(void **state)
{
    node *a = node_played(garbage), *b = node_played(an_oversized_message);
    taker *t = taker_open((expert_fetcher_config){0}, 0);

    (void)state;
    assert_int_equal(take_from(t, &a, 1), SY_EINVAL);
    assert_int_equal(take_from(t, &b, 1), SY_EUNAVAILABLE);
    expect_refusal(t, SY_EUNAVAILABLE, "expert-a: ");
    taker_close(t);
    node_close(a);
    node_close(b);
}

/* All of it, then the last chunk again and again, and no end. */
static void never_ending(node *n, sy_call *call, const sy_fetch_request *request)
{
    const sy_shard_chunk last = chunk_at(total_bytes - 1);

    say_chunks(call, request->offset, NEVER_ENDS);
    for (int i = 0; i < 100; i++) say(call, &last);
    node_hold(n, call);
}

static void a_stream_without_an_end_ends_when_the_shard_is_whole(void **state)
{
    node *a = node_played(never_ending);
    taker *t = taker_open((expert_fetcher_config){0}, 0);

    (void)state;
    (void)take_from(t, &a, 1);
    expect_the_shard(t);
    wait_until(sy_call_ended(atomic_load(&a->held)));
    taker_close(t);
    node_close(a);
}

/* ---- this node's own limits ---- */

static void a_shard_that_does_not_fit_or_is_here_already_is_not_fetched(void **state)
{
    node *a = node_real((expert_fetch_server_config){0});
    taker *t = taker_open((expert_fetcher_config){0}, 1000);

    (void)state;
    assert_int_equal(take_from(t, &a, 1), SY_ELIMIT);
    expect_refusal(t, SY_ELIMIT, "has 1000 of 1000");
    assert_string_equal(t->err.reason, "SHARD_MEMORY");
    taker_close(t);

    t = taker_open((expert_fetcher_config){0}, 0);
    store_fill(t->store, LAYER, EXPERT);
    const expert_source source = {"expert-a", a->address, 0};
    const expert_fetch_job job = {
        .layer = LAYER, .expert = EXPERT, .source = &source, .n_sources = 1};
    sy_shard_builder *builder;
    assert_int_equal(expert_fetch(t->fetcher, &builder, NULL, &job, NULL), SY_EEXISTS);
    assert_null(builder);
    taker_close(t);
    node_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fetched_shard_is_the_one_that_was_given),
        cmocka_unit_test(who_has_it_not_is_named),
        cmocka_unit_test(nobody_at_the_address_is_unavailable),
        cmocka_unit_test(a_lost_fetch_goes_on_where_it_was),
        cmocka_unit_test(a_lost_fetch_goes_on_from_another_node),
        cmocka_unit_test(a_peer_that_never_gets_further_is_given_up),
        cmocka_unit_test(a_peer_that_stalls_is_given_up),
        cmocka_unit_test(a_stop_ends_a_fetch_at_once),
        cmocka_unit_test(a_lie_is_named_and_the_shard_taken_from_another_node),
        cmocka_unit_test(a_lie_is_not_forgotten_when_nobody_else_has_the_shard),
        cmocka_unit_test(a_shard_that_computes_other_bits_than_announced_is_refused),
        cmocka_unit_test(a_shard_of_another_checkpoint_is_refused),
        cmocka_unit_test(garbage_and_oversized_messages_are_errors),
        cmocka_unit_test(a_stream_without_an_end_ends_when_the_shard_is_whole),
        cmocka_unit_test(a_shard_that_does_not_fit_or_is_here_already_is_not_fetched),
    };
    return cmocka_run_group_tests(tests, model_set_up, model_tear_down);
}
