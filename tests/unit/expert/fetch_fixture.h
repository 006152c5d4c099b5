/* fetch_fixture.h - a model whose shards take several chunks, a node that gives them as it should,
 * and one whose every message the test plays itself. Real sockets. */
#ifndef FETCH_FIXTURE_H
#define FETCH_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "expert_fetch.h"
#include "sy_clock.h"
#include "sy_digest.h"
#include "sy_synth.h"
#include "sy_wire.h"

enum { LAYER = 1, EXPERT = 2, CHUNK = EXPERT_FETCH_CHUNK_BYTES };
#define WAIT_US    ((int64_t)30 * 1000000) /* generous: only a hang reaches it */
#define NEVER_ENDS ((size_t)-1)

#define wait_until(cond)                                                           \
    do {                                                                           \
        const int64_t give_up_us = sy_clock_us() + WAIT_US;                        \
        while (!(cond)) {                                                          \
            if (sy_clock_us() > give_up_us) fail_msg("still not true: %s", #cond); \
            nap();                                                                 \
        }                                                                          \
    } while (0)

static inline void nap(void)
{
    const struct timespec t = {.tv_nsec = 1000000};

    nanosleep(&t, NULL);
}

static inline void must(sy_status st, const sy_error *err)
{
    if (st != SY_OK) fail_msg("%s: %s", sy_status_name(st), err->message);
}

/* ---- the model; one for all tests ---- */

static char model_dir[] = "/tmp/sy-fetch-XXXXXX";
static sy_model *model;
static sy_shard_identity truth; /* of the shard that is fetched */
static uint64_t total_bytes;
static uint8_t *stored; /* [total_bytes] */

static inline sy_model *model_make(char *dir, uint32_t hidden, uint32_t ffn, uint32_t n_experts)
{
    const sy_synth_config config = {.family = "mixtral",
                                    .vocab = 300,
                                    .hidden = hidden,
                                    .n_layers = 2,
                                    .n_heads = 2,
                                    .n_kv_heads = 1,
                                    .head_dim = 16,
                                    .n_experts = n_experts,
                                    .top_k = 2,
                                    .expert_ffn = ffn,
                                    .context = 64,
                                    .rms_eps = 1e-5f,
                                    .rope_theta = 1e4f,
                                    .options.dtype = SY_F32};
    sy_model *made;
    sy_error err = {0};

    assert_non_null(mkdtemp(dir));
    must(sy_synth_write(dir, &config, &err), &err);
    must(sy_model_open(&made, dir, "small", &err), &err);
    return made;
}

static inline int model_remove(sy_model *made)
{
    char command[64];

    snprintf(command, sizeof(command), "rm -rf %s", sy_model_dir(made));
    sy_model_close(made);
    return system(command);
}

static inline int model_set_up(void **state)
{
    static const sy_role role[3] = {SY_ROLE_EXPERT_GATE, SY_ROLE_EXPERT_UP, SY_ROLE_EXPERT_DOWN};
    sy_shard_form form;
    sy_error err = {0};
    size_t at = 0;

    (void)state;
    model = model_make(model_dir, 256, 500, 20);
    must(
        sy_shard_identify(&truth, model, (sy_precision){0}, LAYER, EXPERT, sy_kernels_best(), &err),
        &err);
    sy_shard_form_of(&form, model, SY_DTYPE_NONE, LAYER, EXPERT);
    total_bytes = sy_shard_form_bytes(&form);
    assert_true(total_bytes > 5 * CHUNK && total_bytes % CHUNK != 0);
    stored = malloc(total_bytes);
    for (int i = 0; i < 3; i++) {
        const sy_tensor *t = sy_model_tensor(model, role[i], LAYER, EXPERT);
        memcpy(stored + at, t->data, t->bytes);
        at += t->bytes;
    }
    return 0;
}

static inline int model_tear_down(void **state)
{
    (void)state;
    free(stored);
    return model_remove(model);
}

/* ---- a node that plays what the test says ---- */

typedef struct node node;
struct node {
    sy_loop *loop;
    sy_server *server;
    char address[32];
    sy_shard_store *store;       /* of a real one */
    expert_fetch_server *giving; /* of a real one */
    /* Of a played one: called for each request, on the loop. */
    void (*play)(node *n, sy_call *call, const sy_fetch_request *request);
    _Atomic uint32_t n_requests;
    _Atomic uint64_t offset, content; /* of the last request */
    _Atomic(sy_call *) held;          /* the last one that play has not finished: a reference */
};

static inline void node_message(void *ctx, sy_call *call, sy_msg *msg)
{
    node *n = ctx;
    sy_fetch_request request;
    sy_arena arena;
    sy_error err = {0};
    size_t n_iov;
    const sy_iov *iov = sy_msg_iov(msg, &n_iov);

    sy_arena_init(&arena, 1 << 16);
    must(sy_wire_fetch_request_decode(&request, &arena, iov, n_iov, &err), &err);
    atomic_store(&n->offset, request.offset);
    atomic_store(&n->content, request.content_hash);
    atomic_fetch_add(&n->n_requests, 1);
    n->play(n, call, &request);
    sy_arena_free(&arena);
}

static inline void node_listen(node *n, const sy_method *method)
{
    static const char *const any[] = {"127.0.0.1:0"};
    const sy_server_config config = {.addresses = any,
                                     .n_addresses = 1,
                                     .methods = method,
                                     .n_methods = 1,
                                     .error_details = sy_wire_error_details};
    sy_error err = {0};

    must(sy_loop_open(&n->loop, "test"), &err);
    must(sy_server_open(&n->server, n->loop, &config, &err), &err);
    snprintf(n->address, sizeof(n->address), "127.0.0.1:%d", sy_server_port(n->server, 0));
}

static inline node *node_played(void (*play)(node *, sy_call *, const sy_fetch_request *))
{
    node *n = calloc(1, sizeof(*n));
    const sy_method method = {
        .path = EXPERT_FETCH_PATH, .server_streams = 1, .ctx = n, .on_message = node_message};

    assert_non_null(n);
    n->play = play;
    node_listen(n, &method);
    return n;
}

/* Loads the shard and verifies it, as an expert node does. */
static inline void store_fill(sy_shard_store *store, uint32_t layer, uint32_t expert)
{
    sy_shard_builder *builder;
    sy_shard_identity identity;
    sy_error err = {0};
    int done;

    must(sy_shard_begin(&builder, store, layer, expert, NULL, &err), &err);
    must(sy_shard_add_from_checkpoint(builder, SIZE_MAX, &done, &err), &err);
    must(sy_shard_verify(builder, &identity, sy_kernels_best(), &err), &err);
    sy_shard_publish(builder);
}

/* A node as it should be, with the shard in memory; config.model: another model than the tests'. */
static inline node *node_real(expert_fetch_server_config config)
{
    node *n = calloc(1, sizeof(*n));
    sy_error err = {0};

    assert_non_null(n);
    if (config.model == NULL) config.model = model;
    must(sy_shard_store_open(&n->store, config.model, (sy_precision){0}, 0, &err), &err);
    store_fill(n->store, LAYER, EXPERT);
    config.store = n->store;
    must(expert_fetch_server_open(&n->giving, &config, &err), &err);
    const sy_method method = {.path = EXPERT_FETCH_PATH,
                              .server_streams = 1,
                              .ctx = n->giving,
                              .on_message = expert_fetch_message,
                              .on_end = expert_fetch_end};
    node_listen(n, &method);
    return n;
}

/* Keeps this call open instead of the one before. */
static inline void node_hold(node *n, sy_call *call)
{
    sy_call *before = atomic_exchange(&n->held, call == NULL ? NULL : sy_call_ref(call));

    if (before != NULL) sy_call_unref(before);
}

static inline void node_close(node *n)
{
    node_hold(n, NULL);
    sy_server_close(n->server, 0);
    expert_fetch_server_close(n->giving);
    sy_loop_close(n->loop);
    sy_shard_store_close(n->store);
    free(n);
}

/* ---- what a played node says ---- */

static inline sy_shard_chunk chunk_at(uint64_t offset)
{
    sy_shard_form form;
    sy_shard_chunk c = {.layer = LAYER,
                        .expert = EXPERT,
                        .content_hash = truth.content,
                        .probe_hash = truth.probe,
                        .total_bytes = total_bytes,
                        .offset = offset,
                        .data = stored + offset,
                        .n_bytes = (size_t)SY_MIN(total_bytes - offset, (uint64_t)CHUNK)};

    sy_shard_form_of(&form, model, SY_DTYPE_NONE, LAYER, EXPERT);
    c.n_tensors = form.n;
    memcpy(c.dtype, form.dtype, sizeof(c.dtype));
    memcpy(c.rows, form.rows, sizeof(c.rows));
    memcpy(c.cols, form.cols, sizeof(c.cols));
    c.chunk_hash = sy_digest(c.data, c.n_bytes);
    return c;
}

static inline void say(sy_call *call, const sy_shard_chunk *c)
{
    sy_frame frame;

    assert_int_equal(sy_wire_shard_chunk_encode(&frame, c, NULL), SY_OK);
    (void)sy_call_send(call, &frame);
}

/* The right chunks from offset on, at most n of them. Returns the offset after them. */
static inline uint64_t say_chunks(sy_call *call, uint64_t offset, size_t n)
{
    while (n-- > 0 && offset < total_bytes) {
        const sy_shard_chunk c = chunk_at(offset);
        say(call, &c);
        offset += c.n_bytes;
    }
    return offset;
}

static inline void hang_up(sy_call *call, sy_status st)
{
    sy_error err = {0};

    sy_error_clear(&err);
    sy_error_set(&err, st, "played");
    sy_call_finish(call, &err);
}

/* ---- fetching ---- */

typedef struct taker {
    sy_shard_store *store;
    expert_fetcher *fetcher;
    atomic_int stop;
    uint64_t stop_at; /* stops itself when so much is there; 0: never */
    uint64_t added, n_steps;
    expert_fetched fetched;
    sy_error err;
} taker;

static inline taker *taker_open(expert_fetcher_config config, uint64_t memory_max)
{
    taker *t = calloc(1, sizeof(*t));
    sy_error err = {0};

    assert_non_null(t);
    must(sy_shard_store_open(&t->store, model, (sy_precision){0}, memory_max, &err), &err);
    config.model = model;
    config.store = t->store;
    config.kernels = sy_kernels_best();
    must(expert_fetcher_open(&t->fetcher, &config, &err), &err);
    return t;
}

static inline void taker_close(taker *t)
{
    expert_fetcher_close(t->fetcher);
    sy_shard_store_close(t->store);
    free(t);
}

static inline void on_progress(void *arg, uint64_t added, uint64_t total)
{
    taker *t = arg;

    assert_int_equal(total, total_bytes);
    t->n_steps++;
    t->added = added;
    if (t->stop_at != 0 && added >= t->stop_at) atomic_store(&t->stop, 1);
}

/* Fetches from these nodes; what comes is published. */
static inline sy_status take_from(taker *t, node *const *nodes, size_t n)
{
    static const char *const name[] = {"expert-a", "expert-b", "expert-c"};
    expert_source source[3];
    sy_shard_builder *builder;

    for (size_t i = 0; i < n; i++) source[i] = (expert_source){name[i], nodes[i]->address, 0};
    const expert_fetch_job job = {.layer = LAYER,
                                  .expert = EXPERT,
                                  .source = source,
                                  .n_sources = n,
                                  .stop = &t->stop,
                                  .progress = on_progress,
                                  .progress_arg = t};
    const uint64_t before = sy_shard_store_bytes(t->store);
    const sy_status st = expert_fetch(t->fetcher, &builder, &t->fetched, &job, &t->err);
    assert_int_equal(st, t->err.status);
    assert_int_equal(st == SY_OK, builder != NULL);
    if (st == SY_OK)
        sy_shard_publish(builder);
    else
        assert_int_equal(sy_shard_store_bytes(t->store), before);
    return st;
}

static inline void expect_the_shard(taker *t)
{
    const sy_shard *shard = sy_shard_get(t->store, LAYER, EXPERT);
    uint8_t *bytes = malloc(total_bytes);

    if (t->err.status != SY_OK) fail_msg("%s: %s", sy_status_name(t->err.status), t->err.message);
    assert_true(shard != NULL && bytes != NULL);
    assert_true(shard->identity.content == truth.content && shard->identity.probe == truth.probe);
    assert_int_equal(sy_shard_export(shard, 0, bytes, total_bytes), total_bytes);
    assert_memory_equal(bytes, stored, total_bytes);
    sy_shard_put(t->store, shard);
    free(bytes);
}

static inline void expect_refusal(const taker *t, sy_status want, const char *text)
{
    if (t->err.status != want || strstr(t->err.message, text) == NULL)
        fail_msg("%s: \"%s\", not %s with \"%s\"", sy_status_name(t->err.status), t->err.message,
                 sy_status_name(want), text);
}

#endif
