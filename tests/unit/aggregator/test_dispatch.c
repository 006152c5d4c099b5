/* test_dispatch.c - a layer call against peers that die, stall, lie or send garbage. The experts
 * here are fakes with a closed form, expert e gives (e + 1) * x, so a row that went astray, came
 * twice or is missing shows by value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "agg_moe.h"
#include "sy_clock.h"
#include "sy_synth.h"

enum { H = 32, E = 8, K = 2, L = 2, T = 5, NODES = 3 };

/* What a fake node does with a message. */
typedef enum manner {
    HONEST,
    ERRORS,     /* answers UNAVAILABLE */
    GARBAGE,    /* bytes that are no message, though the id can be read */
    FEW_ROWS,   /* one row too few */
    WRONG_TYPE, /* bf16 rows */
    FAULTY,     /* says that no expert is resident */
    SILENT,     /* never answers */
    LATE,       /* answers, wrongly, only when the test says so */
    N_MANNERS
} manner;

typedef struct fake_node {
    char name[24], address[64];
    sy_server *server;
    _Atomic int manner;
    atomic_int messages, rows;
    pthread_mutex_t mutex; /* guards held */
    sy_call *held;         /* LATE: whom to answer */
    uint64_t held_id;
    uint32_t held_rows;
} fake_node;

static char dir[] = "/tmp/sy-agg-XXXXXX";
static sy_model *model;
static sy_loop *loop, *client_loop;
static fake_node node[NODES];
static fake_node router;
static agg_peers *peers;
static agg_moe_config config;
static agg_lane lane;

static void must(sy_status st, const sy_error *err)
{
    if (st != SY_OK) fail_msg("%s: %s", sy_status_name(st), err->message);
}

/* ---- fakes ---- */

static void send_reply(sy_call *call, uint64_t id, uint32_t n_rows, sy_dtype dtype, sy_buf *rows)
{
    const sy_compute_reply reply = {.id = id, .output = {dtype, n_rows, H, rows->data}};
    sy_frame frame;

    assert_int_equal(sy_wire_compute_reply_encode(&frame, &reply, rows), SY_OK);
    sy_call_send(call, &frame);
}

static sy_buf *compute(const sy_compute_request *r)
{
    sy_buf *out = sy_buf_alloc(r->n_assign * H * sizeof(float));
    const float *x = r->hidden.data;

    for (uint32_t g = 0, i = 0; g < r->n_groups; g++)
        for (; i < r->group_end[g]; i++)
            for (uint32_t k = 0; k < H; k++)
                ((float *)out->data)[i * H + k] = (float)(r->expert[g] + 1) * x[r->row[i] * H + k];
    return out;
}

static void send_faults(sy_call *call, const sy_compute_request *r, sy_buf *rows)
{
    sy_shard_fault fault[E] = {0};
    sy_frame frame;

    for (uint32_t g = 0; g < r->n_groups; g++) {
        fault[g].expert = r->expert[g];
        sy_error_clear(&fault[g].status);
        sy_error_set(&fault[g].status, SY_EUNAVAILABLE, "not resident");
    }
    const sy_compute_reply reply = {.id = r->id,
                                    .n_faults = r->n_groups,
                                    .fault = fault,
                                    .output = {SY_F32, r->n_assign, H, rows->data}};
    assert_int_equal(sy_wire_compute_reply_encode(&frame, &reply, rows), SY_OK);
    sy_call_send(call, &frame);
}

static void send_status(sy_call *call, uint64_t id)
{
    sy_compute_reply reply = {.id = id};
    sy_frame frame;

    sy_error_clear(&reply.status);
    sy_error_set(&reply.status, SY_EUNAVAILABLE, "not today");
    assert_int_equal(sy_wire_compute_reply_encode(&frame, &reply, NULL), SY_OK);
    sy_call_send(call, &frame);
}

static void send_garbage(sy_call *call, uint64_t id)
{
    sy_buf *buf = sy_buf_alloc(64);
    uint8_t *p = buf->data, n = 0;
    sy_frame frame;

    p[n++] = 0x08; /* field 1: the id, as a varint */
    do {
        p[n++] = (uint8_t)((id & 0x7f) | (id > 0x7f ? 0x80 : 0));
    } while ((id >>= 7) != 0);
    memcpy(p + n, "\x7a\xff\xff\xff\x7f garbage", 13); /* field 15, 256 MB of it, they say */
    sy_frame_init(&frame);
    assert_int_equal(sy_frame_add(&frame, buf, p, (size_t)n + 13), SY_OK);
    sy_buf_unref(buf);
    sy_call_send(call, &frame);
}

static void hold(fake_node *self, sy_call *call, const sy_compute_request *r)
{
    pthread_mutex_lock(&self->mutex);
    if (self->held != NULL) sy_call_unref(self->held);
    self->held = sy_call_ref(call);
    self->held_id = r->id;
    self->held_rows = r->n_assign;
    pthread_mutex_unlock(&self->mutex);
}

static void on_compute(void *ctx, sy_call *call, sy_msg *msg)
{
    fake_node *self = ctx;
    sy_compute_request r;
    sy_arena arena;
    sy_error err = {0};
    size_t n;
    const sy_iov *iov = sy_msg_iov(msg, &n);

    sy_arena_init(&arena, 1 << 24);
    must(sy_wire_compute_request_decode(&r, &arena, iov, n, &err), &err);
    sy_buf *rows = compute(&r);
    atomic_fetch_add(&self->messages, 1);
    atomic_fetch_add(&self->rows, (int)r.n_assign);
    switch ((manner)self->manner) {
    case HONEST: send_reply(call, r.id, r.n_assign, SY_F32, rows); break;
    case ERRORS: send_status(call, r.id); break;
    case GARBAGE: send_garbage(call, r.id); break;
    case FEW_ROWS: send_reply(call, r.id, r.n_assign - 1, SY_F32, rows); break;
    case WRONG_TYPE: send_reply(call, r.id, r.n_assign, SY_BF16, rows); break;
    case FAULTY: send_faults(call, &r, rows); break;
    case LATE: hold(self, call, &r); break;
    case SILENT:
    case N_MANNERS: break;
    }
    sy_buf_unref(rows);
    sy_arena_free(&arena);
}

/* Every shard is resident on every node. */
static void on_watch(void *ctx, sy_call *call, sy_msg *msg)
{
    const fake_node *self = ctx;
    sy_shard_info shard[L * E] = {0};
    sy_frame frame;

    (void)msg;
    for (uint32_t i = 0; i < L * E; i++)
        shard[i] = (sy_shard_info){i / E, i % E, SY_SHARD_RESIDENT, "cpu:0", ""};
    const sy_node_state state = {.node = self->name,
                                 .model = sy_model_name(model),
                                 .full = 1,
                                 .n_shards = L * E,
                                 .shard = shard,
                                 .structure_hash = sy_model_structure_hash(model)};
    assert_int_equal(sy_wire_node_state_encode(&frame, &state, NULL), SY_OK);
    sy_call_send(call, &frame);
}

/* Token t goes to experts t % E and (t + 3) % E, the higher id in the first slot, with weights 0.25
 * and 0.75. */
static void on_route(void *ctx, sy_call *call, sy_msg *msg)
{
    fake_node *self = ctx;
    sy_route_request r;
    sy_arena arena;
    sy_error err = {0};
    sy_frame frame;
    size_t n;
    const sy_iov *iov = sy_msg_iov(msg, &n);
    uint16_t expert[T * K];
    float weight[T * K];

    sy_arena_init(&arena, 1 << 24);
    must(sy_wire_route_request_decode(&r, &arena, iov, n, &err), &err);
    for (uint32_t t = 0; t < r.hidden.rows; t++) {
        const uint16_t a = (uint16_t)(t % E), b = (uint16_t)((t + 3) % E);
        expert[t * K] = a > b ? a : b;
        expert[t * K + 1] = a > b ? b : a;
        weight[t * K] = 0.25f;
        weight[t * K + 1] = 0.75f;
    }
    if (self->manner == GARBAGE) expert[0] = E; /* an expert that does not exist */
    const sy_route_reply reply = {
        .id = r.id, .slots = K, .n_tokens = r.hidden.rows, .expert = expert, .weight = weight};
    assert_int_equal(sy_wire_route_reply_encode(&frame, &reply, NULL), SY_OK);
    sy_call_send(call, &frame);
    sy_arena_free(&arena);
}

static void start_fake(fake_node *self, const char *name, int is_router)
{
    const char *address = self->address;
    const sy_method methods[] = {{.path = is_router ? "/switchyard.v1.Router/RouteStream"
                                                    : "/switchyard.v1.Expert/ComputeStream",
                                  .client_streams = 1,
                                  .server_streams = 1,
                                  .ctx = self,
                                  .on_message = is_router ? on_route : on_compute},
                                 {.path = "/switchyard.v1.Expert/Watch",
                                  .server_streams = 1,
                                  .ctx = self,
                                  .on_message = on_watch}};
    const sy_server_config c = {
        .addresses = &address, .n_addresses = 1, .methods = methods, .n_methods = 2};
    sy_error err = {0};

    snprintf(self->name, sizeof(self->name), "%s", name);
    snprintf(self->address, sizeof(self->address), "unix:%s/%s.sock", dir, name);
    pthread_mutex_init(&self->mutex, NULL);
    must(sy_server_open(&self->server, loop, &c, &err), &err);
}

static void stop_fake(fake_node *self)
{
    if (self->held != NULL) sy_call_unref(self->held);
    self->held = NULL;
    sy_server_close(self->server, 0);
    self->server = NULL;
}

/* ---- the cluster of fakes ---- */

static void place(const char *value)
{
    const sy_placement_entry entry = {"*/*", 3, value, strlen(value)};
    sy_snapshot *snapshot;
    sy_error err = {0};

    must(sy_snapshot_build(&snapshot, NULL, &entry, 1, L, E, &err), &err);
    agg_peers_placement(peers, snapshot);
    sy_snapshot_unref(snapshot);
}

/* Until every peer is up and the residency of the nodes that run is known. */
static void wait_ready(void)
{
    const int64_t until_us = sy_clock_us() + 60 * 1000000;

    for (;;) {
        agg_view *view = agg_peers_view(peers);
        int ready = view->n_routers == 1 && sy_peer_up(view->router[0]->peer);
        for (uint32_t i = 0; i < view->n_nodes; i++)
            ready &= agg_node_has(view->node[i], L * E - 1);
        for (uint32_t i = 0; i < view->n_nodes; i++)
            atomic_store(&view->node[i]->suspect_until_us, 0);
        ready &= view->n_nodes == NODES;
        agg_view_unref(view);
        if (ready) return;
        if (sy_clock_us() > until_us) fail_msg("the peers do not come up");
        usleep(1000);
    }
}

static int set_up(void **state)
{
    const sy_synth_config synth = {.family = "mixtral",
                                   .vocab = 300,
                                   .hidden = H,
                                   .n_layers = L,
                                   .n_heads = 2,
                                   .n_kv_heads = 1,
                                   .head_dim = 16,
                                   .n_experts = E,
                                   .top_k = K,
                                   .expert_ffn = 16,
                                   .context = 64,
                                   .rms_eps = 1e-5f,
                                   .rope_theta = 1e4f,
                                   .dtype = SY_F32};
    sy_member member[NODES + 1] = {0};
    sy_error err = {0};

    (void)state;
    assert_non_null(mkdtemp(dir));
    must(sy_synth_write(dir, &synth, &err), &err);
    must(sy_model_open(&model, dir, "fake", &err), &err);
    must(sy_loop_open(&loop, "servers"), &err);
    must(sy_loop_open(&client_loop, "client"), &err);
    start_fake(&router, "router-0", 1);
    for (int i = 0; i < NODES; i++) {
        char name[24];
        snprintf(name, sizeof(name), "expert-%d", i);
        start_fake(&node[i], name, 0);
    }
    must(agg_peers_open(&peers, model, 1 << 24, &err), &err);
    agg_peers_set_loop(peers, client_loop);
    for (int i = 0; i <= NODES; i++) {
        const fake_node *f = i == NODES ? &router : &node[i];
        memcpy(member[i].name, f->name, sizeof(f->name));
        memcpy(member[i].address, f->address, sizeof(f->address));
        snprintf(member[i].model, sizeof(member[i].model), "fake");
    }
    agg_peers_members(peers, SY_MEMBER_NODE, member, NODES);
    agg_peers_members(peers, SY_MEMBER_ROUTER, member + NODES, 1);
    config = (agg_moe_config){.model = model,
                              .kernels = sy_kernels_best(),
                              .peers = peers,
                              .peer_timeout_us = 600 * 1000000LL};
    must(agg_lane_open(&lane, &config, &err), &err);
    return 0;
}

static int tear_down(void **state)
{
    char command[64];

    (void)state;
    agg_lane_close(&lane);
    agg_peers_close(peers);
    for (int i = 0; i < NODES; i++) stop_fake(&node[i]);
    stop_fake(&router);
    sy_loop_close(client_loop);
    sy_loop_close(loop);
    sy_model_close(model);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command) + (int)sy_buf_outstanding();
}

static void all_honest(void)
{
    for (int i = 0; i < NODES; i++) {
        node[i].manner = HONEST;
        atomic_store(&node[i].messages, 0);
        atomic_store(&node[i].rows, 0);
    }
    router.manner = HONEST;
    config.peer_timeout_us = 600 * 1000000LL; /* a test that waits for it fails by its own limit */
    wait_ready();
}

/* ---- layer calls ---- */

typedef struct layer_call {
    sy_moe_call call;
    float x[T * H], y[T * H];
    uint64_t request[T];
    uint8_t failed[T];
} layer_call;

static sy_status run_layer(layer_call *c)
{
    sy_moe moe = agg_lane_ops(&lane);

    for (uint32_t i = 0; i < T * H; i++) c->x[i] = (float)(i % 97) / 16.0f - 3.0f;
    for (uint32_t t = 0; t < T; t++) c->request[t] = 100 + t;
    c->call = (sy_moe_call){.layer = 1,
                            .n_rows = T,
                            .request = c->request,
                            .x = c->x,
                            .y = c->y,
                            .deadline_us = sy_clock_us() + 1200 * 1000000LL,
                            .failed = c->failed};
    sy_error_clear(&c->call.error);
    return moe.layer(moe.ctx, &c->call);
}

static void expect_right(const layer_call *c)
{
    for (uint32_t t = 0; t < T; t++) {
        const uint32_t a = t % E, b = (t + 3) % E, low = a < b ? a : b, high = a < b ? b : a;
        assert_int_equal(c->failed[t], 0);
        for (uint32_t k = 0; k < H; k++) {
            const float x = c->x[t * H + k];
            const float want =
                __builtin_fmaf(0.25f, (float)(high + 1) * x, 0.75f * ((float)(low + 1) * x));
            if (c->y[t * H + k] != want)
                fail_msg("token %u column %u: %g, expected %g", t, k, (double)c->y[t * H + k],
                         (double)want);
        }
    }
}

static void rows_come_back_to_the_token_they_belong_to(void **state)
{
    layer_call c;

    (void)state;
    all_honest();
    place("expert-0/cpu:0@40 expert-1/cpu:0@30 expert-2/cpu:0@30");
    assert_int_equal(run_layer(&c), SY_OK);
    expect_right(&c);
    assert_int_equal(node[0].rows + node[1].rows + node[2].rows, T * K);
}

static void a_node_that_errs_lies_or_sends_garbage_costs_a_retry_and_no_wrong_row(void **state)
{
    static const manner bad[] = {ERRORS, GARBAGE, FEW_ROWS, WRONG_TYPE, FAULTY};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        layer_call c;
        all_honest();
        place("expert-0/cpu:0");
        node[0].manner = bad[i];
        assert_int_equal(run_layer(&c), SY_OK);
        expect_right(&c);
        assert_int_equal(node[0].messages, 1); /* asked once, then never again in this call */
        assert_int_equal(node[1].rows + node[2].rows, T * K);
    }
}

static void a_silent_node_costs_its_time_out_and_is_not_asked_first_again(void **state)
{
    layer_call c;

    (void)state;
    all_honest();
    place("expert-0/cpu:0");
    node[0].manner = SILENT;
    config.peer_timeout_us = 2 * 1000 * 1000;
    assert_int_equal(run_layer(&c), SY_OK);
    expect_right(&c);
    assert_int_equal(run_layer(&c), SY_OK); /* suspect now: others are asked */
    expect_right(&c);
    assert_int_equal(node[0].messages, 1);
}

static void an_answer_that_comes_too_late_is_not_added(void **state)
{
    layer_call c;

    (void)state;
    all_honest();
    place("expert-0/cpu:0");
    node[0].manner = LATE;
    config.peer_timeout_us = 2 * 1000 * 1000;
    assert_int_equal(run_layer(&c), SY_OK);
    expect_right(&c);
    pthread_mutex_lock(&node[0].mutex);
    sy_buf *wrong = sy_buf_alloc(node[0].held_rows * H * sizeof(float));
    memset(wrong->data, 0x41, wrong->len);
    send_reply(node[0].held, node[0].held_id, node[0].held_rows, SY_F32, wrong);
    sy_buf_unref(wrong);
    pthread_mutex_unlock(&node[0].mutex);
    all_honest();
    assert_int_equal(run_layer(&c),
                     SY_OK); /* the same stream: the late answer came before this one */
    expect_right(&c);
}

static void when_nobody_answers_only_the_tokens_concerned_fail_with_layer_expert_and_nodes(
    void **state)
{
    layer_call c;

    (void)state;
    all_honest();
    place("expert-0/cpu:0 expert-1/cpu:0");
    for (int i = 0; i < NODES; i++) node[i].manner = ERRORS;
    assert_int_equal(run_layer(&c), SY_OK);
    for (uint32_t t = 0; t < T; t++) {
        assert_true(c.failed[t] != 0);
        /* Each token is told of an expert of its own. */
        const int32_t e = c.call.row_error[c.failed[t] - 1].expert;
        assert_true(e == (int32_t)(t % E) || e == (int32_t)((t + 3) % E));
    }
    const sy_error *why = &c.call.row_error[0];
    assert_int_equal(why->status, SY_EUNAVAILABLE);
    assert_string_equal(why->reason, "EXPERT_UNREACHABLE");
    assert_int_equal(why->layer, 1);
    assert_true(why->expert >= 0);
    for (int i = 0; i < NODES; i++)
        if (strstr(why->message, node[i].name) == NULL)
            fail_msg("%s is not named in: %s", node[i].name, why->message);
    /* Each node was asked once for each expert, and no more. */
    for (int i = 0; i < NODES; i++) assert_int_equal(node[i].rows, T * K);
}

static void a_row_that_is_not_a_number_fails_alone(void **state)
{
    layer_call c;
    sy_moe moe = agg_lane_ops(&lane);

    (void)state;
    all_honest();
    place("expert-0/cpu:0");
    assert_int_equal(run_layer(&c), SY_OK);
    c.x[2 * H + 5] = __builtin_nanf("");
    sy_error_clear(&c.call.error);
    assert_int_equal(moe.layer(moe.ctx, &c.call), SY_OK);
    for (uint32_t t = 0; t < T; t++) assert_int_equal(c.failed[t] != 0, t == 2);
    assert_string_equal(c.call.row_error[0].reason, "ROW_NOT_FINITE");
}

static void a_router_that_names_an_expert_that_does_not_exist_is_refused(void **state)
{
    layer_call c;

    (void)state;
    all_honest();
    place("expert-0/cpu:0");
    router.manner = GARBAGE;
    assert_int_equal(run_layer(&c), SY_EUNAVAILABLE);
    assert_string_equal(c.call.error.reason, "ROUTER_UNREACHABLE");
    assert_non_null(strstr(c.call.error.message, "expert 8 of 8"));
    assert_int_equal(node[0].messages, 0);
}

static void a_node_that_dies_is_replaced_and_used_again_when_it_is_back(void **state)
{
    layer_call c;

    (void)state;
    all_honest();
    place("expert-2/cpu:0");
    stop_fake(&node[2]);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(run_layer(&c), SY_OK);
        expect_right(&c);
    }
    start_fake(&node[2], "expert-2", 0);
    all_honest(); /* waits until it is known again */
    assert_int_equal(run_layer(&c), SY_OK);
    expect_right(&c);
    assert_int_equal(node[2].rows, T * K);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_back_to_the_token_they_belong_to),
        cmocka_unit_test(a_node_that_errs_lies_or_sends_garbage_costs_a_retry_and_no_wrong_row),
        cmocka_unit_test(a_silent_node_costs_its_time_out_and_is_not_asked_first_again),
        cmocka_unit_test(an_answer_that_comes_too_late_is_not_added),
        cmocka_unit_test(
            when_nobody_answers_only_the_tokens_concerned_fail_with_layer_expert_and_nodes),
        cmocka_unit_test(a_row_that_is_not_a_number_fails_alone),
        cmocka_unit_test(a_router_that_names_an_expert_that_does_not_exist_is_refused),
        cmocka_unit_test(a_node_that_dies_is_replaced_and_used_again_when_it_is_back),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
