/* dispatch_fixture.h - a cluster of fakes for tests of layer calls: three expert nodes with a
 * closed form, expert e gives (e + 1) * x, and two routers, so a row that went astray, came twice
 * or is missing shows by value. */
#ifndef DISPATCH_FIXTURE_H
#define DISPATCH_FIXTURE_H

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
#include "agg_targets.h"
#include "sy_clock.h"
#include "sy_shm.h"
#include "sy_synth.h"

enum { H = 32, E = 8, K = 2, L = 2, T = 5, NODES = 3, ROUTERS = 2 };
#define NEVER_LATE_US (600 * 1000000LL) /* a test that waits for it fails by its own limit */
#define WAIT_US       (60 * 1000000LL)

/* What a fake does with a message. */
typedef enum manner {
    HONEST,
    ERRORS,      /* answers UNAVAILABLE */
    GARBAGE,     /* bytes that are no message, though the id can be read; a router: expert 8 of 8 */
    FEW_ROWS,    /* one row too few */
    WRONG_TYPE,  /* rows of a type that nobody asked for */
    FAULTY,      /* says that no expert is resident */
    SILENT,      /* never answers, not even a probe */
    HOLDS,       /* answers only when the test says so */
    FREES,       /* lets the first node answer what that one holds, and is silent itself */
    SAYS_SHARED, /* its rows are in shared memory, it says, and puts none there */
    N_MANNERS
} manner;

typedef struct fake_node {
    char name[24], address[64];
    sy_server *server;
    _Atomic int manner;
    atomic_int messages, rows, probes;
    _Atomic float scale; /* of its outputs: 1 is right */
    _Atomic int other_arithmetic;
    _Atomic int is_old;    /* knows nothing of bf16 answers */
    _Atomic int row_dtype; /* of the rows that it was sent last */
    pthread_mutex_t mutex; /* guards the rest */
    uint8_t absent[L * E]; /* shards that it does not hold */
    sy_call *watch;
    sy_call *held; /* HOLDS: whom to answer */
    uint64_t held_id;
    uint32_t held_rows;
    sy_dtype held_dtype;
    sy_buf *held_out;
    void *held_lent;        /* where the answer goes; NULL: into the message */
    sy_shm_view *held_view; /* that holds it there */
    /* What it does with messages whose rows are in shared memory. */
    _Atomic int sharing;
    atomic_int shared_messages;
    sy_shm_guest *guest;
} fake_node;

enum { SHARES, CANNOT_SHARE, KNOWS_NO_SHARING };

static char dir[] = "/tmp/sy-agg-XXXXXX";
static sy_model *model;
static sy_loop *loop, *client_loop;
static fake_node node[NODES], router[ROUTERS];
static agg_peers *peers;
static agg_moe_config config;
static agg_lane lane;
static size_t shared_bytes_max; /* 0: nothing is shared, unless a test's set_up says so */

static inline void must(sy_status st, const sy_error *err)
{
    if (st != SY_OK) fail_msg("%s: %s", sy_status_name(st), err->message);
}

#define WAIT_UNTIL(condition)                                                \
    do {                                                                     \
        const int64_t until_us = sy_clock_us() + WAIT_US;                    \
        while (!(condition)) {                                               \
            if (sy_clock_us() > until_us) fail_msg("never: %s", #condition); \
            usleep(500);                                                     \
        }                                                                    \
    } while (0)

/* ---- what fakes answer ---- */

/* lent: where the client wants the rows; NULL: in the message. */
static inline void send_lent(sy_call *call, uint64_t id, uint32_t n_rows, sy_dtype dtype,
                             const sy_buf *rows, void *lent)
{
    const sy_compute_reply reply = {.id = id, .output_shared = 1, .output = {dtype, n_rows, H}};
    sy_frame frame;

    memcpy(lent, rows->data, sy_rows_bytes(&reply.output));
    assert_int_equal(sy_wire_compute_reply_encode(&frame, &reply, NULL), SY_OK);
    sy_call_send(call, &frame);
}

static inline void send_rows(sy_call *call, uint64_t id, uint32_t n_rows, sy_dtype dtype,
                             sy_buf *rows)
{
    const sy_compute_reply reply = {.id = id, .output = {dtype, n_rows, H, rows->data}};
    sy_frame frame;

    assert_int_equal(sy_wire_compute_reply_encode(&frame, &reply, rows), SY_OK);
    sy_call_send(call, &frame);
}

static inline sy_buf *compute(const sy_compute_request *r, float scale)
{
    sy_buf *out = sy_buf_alloc(r->n_assign * H * sizeof(float));
    float x[T * H];

    sy_dtype_widen(x, r->hidden.data, r->hidden.dtype, (size_t)r->hidden.rows * H);
    for (uint32_t g = 0, i = 0; g < r->n_groups; g++)
        for (; i < r->group_end[g]; i++)
            for (uint32_t k = 0; k < H; k++)
                ((float *)out->data)[i * H + k] =
                    scale * (float)(r->expert[g] + 1) * x[r->row[i] * H + k];
    return out;
}

/* As the node would send them: in the type that was asked for, if it knows of it. */
static inline sy_dtype finish_rows(const fake_node *self, const sy_compute_request *r, sy_buf *rows)
{
    const size_t n = (size_t)r->n_assign * H;
    uint16_t rounded[T * K * H];

    if (r->output_dtype != SY_BF16 || self->is_old) return SY_F32;
    sy_kernels_best()->round_bf16(rounded, rows->data, n);
    memcpy(rows->data, rounded, n * sizeof(*rounded));
    return SY_BF16;
}

static inline void send_faults(sy_call *call, const sy_compute_request *r, sy_buf *rows)
{
    sy_shard_fault fault[E] = {0};
    sy_frame frame;

    for (uint32_t g = 0; g < r->n_groups; g++) {
        fault[g].expert = r->expert[g];
        sy_error_clear(&fault[g].status);
        sy_error_set(&fault[g].status, SY_EUNAVAILABLE, "not resident");
        sy_error_where(&fault[g].status, "SHARD_NOT_RESIDENT", -1, -1, NULL);
    }
    const sy_compute_reply reply = {.id = r->id,
                                    .n_faults = r->n_groups,
                                    .fault = fault,
                                    .output = {SY_F32, r->n_assign, H, rows->data}};
    assert_int_equal(sy_wire_compute_reply_encode(&frame, &reply, rows), SY_OK);
    sy_call_send(call, &frame);
}

static inline void send_status(sy_call *call, uint64_t id)
{
    sy_compute_reply reply = {.id = id};
    sy_frame frame;

    sy_error_clear(&reply.status);
    sy_error_set(&reply.status, SY_EUNAVAILABLE, "not today");
    assert_int_equal(sy_wire_compute_reply_encode(&frame, &reply, NULL), SY_OK);
    sy_call_send(call, &frame);
}

static inline void send_garbage(sy_call *call, uint64_t id)
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

/* ---- fakes ---- */

static inline void hold(fake_node *self, sy_call *call, uint64_t id, uint32_t n_rows,
                        sy_dtype dtype, sy_buf *out, sy_shm_view *view, void *lent)
{
    pthread_mutex_lock(&self->mutex);
    if (self->held != NULL) sy_call_unref(self->held);
    sy_buf_unref(self->held_out);
    self->held = sy_call_ref(call);
    self->held_id = id;
    self->held_rows = n_rows;
    self->held_dtype = dtype;
    self->held_out = sy_buf_ref(out);
    sy_shm_view_unref(self->held_view);
    self->held_view = view == NULL ? NULL : sy_shm_view_ref(view);
    self->held_lent = lent;
    pthread_mutex_unlock(&self->mutex);
}

/* Answers what the fake has held back, rightly or not. */
static inline void release_held(fake_node *self, int rightly)
{
    pthread_mutex_lock(&self->mutex);
    assert_non_null(self->held);
    if (!rightly) memset(self->held_out->data, 0x41, self->held_out->len);
    if (self->held_lent != NULL)
        send_lent(self->held, self->held_id, self->held_rows, self->held_dtype, self->held_out,
                  self->held_lent);
    else
        send_rows(self->held, self->held_id, self->held_rows, self->held_dtype, self->held_out);
    pthread_mutex_unlock(&self->mutex);
}

static inline void count(fake_node *self, const sy_compute_request *r)
{
    atomic_fetch_add(&self->rows, (int)r->n_assign);
    atomic_fetch_add(&self->messages, 1);
}

static inline void answer_rows(fake_node *self, sy_call *call, const sy_compute_request *r,
                               sy_shm_view *view)
{
    const manner m = (manner)self->manner;
    sy_buf *rows = compute(r, self->scale);
    const sy_dtype dtype = finish_rows(self, r, rows);
    const int fits =
        view != NULL && r->shared.output_bytes >= (size_t)r->n_assign * H * sy_dtype_bytes(dtype);
    void *lent = fits ? sy_shm_view_at(view, r->shared.output, r->shared.output_bytes) : NULL;

    self->row_dtype = r->hidden.dtype;
    if (m != HOLDS) count(self, r); /* before the answer, which a test waits for */
    switch (m) {
    case HONEST:
        if (lent != NULL)
            send_lent(call, r->id, r->n_assign, dtype, rows, lent);
        else
            send_rows(call, r->id, r->n_assign, dtype, rows);
        break;
    case SAYS_SHARED: { /* the rows go nowhere */
        float nowhere[T * K * H];
        send_lent(call, r->id, r->n_assign, SY_F32, rows, nowhere);
        break;
    }
    case ERRORS: send_status(call, r->id); break;
    case GARBAGE: send_garbage(call, r->id); break;
    case FEW_ROWS: send_rows(call, r->id, r->n_assign - 1, dtype, rows); break;
    case WRONG_TYPE:
        send_rows(call, r->id, r->n_assign, dtype == SY_F32 ? SY_BF16 : SY_F16, rows);
        break;
    case FAULTY: send_faults(call, r, rows); break;
    case FREES: release_held(&node[0], 1); break;
    case HOLDS: hold(self, call, r->id, r->n_assign, dtype, rows, view, lent); break;
    case SILENT:
    case N_MANNERS: break;
    }
    if (m == HOLDS) count(self, r); /* who sees it may release what is held */
    sy_buf_unref(rows);
}

static inline sy_error sharing_error(const fake_node *self)
{
    sy_error err = {0};

    if (self->sharing == KNOWS_NO_SHARING) {
        sy_error_set(&err, SY_EINVAL, "hidden.data: 0 bytes, but these rows need more");
    } else {
        sy_error_set(&err, SY_EPRECONDITION, "not here");
        sy_error_where(&err, SY_SHM_UNAVAILABLE, -1, -1, NULL);
    }
    return err;
}

/* Finds the rows where they are. 0: it has answered that it cannot. */
static inline int open_shared(fake_node *self, sy_call *call, uint64_t id,
                              const sy_shared_rows *shared, sy_rows *hidden, sy_shm_view **view)
{
    sy_shm_ticket ticket = {.pid = shared->pid, .fd = shared->fd, .bytes = shared->bytes};
    sy_compute_reply reply = {.id = id};
    sy_frame frame;
    sy_error err = {0};

    if (shared->bytes == 0) return 1;
    atomic_fetch_add(&self->shared_messages, 1);
    memcpy(ticket.key, shared->key, sizeof(ticket.key));
    if (self->sharing == SHARES) {
        must(sy_shm_guest_view(view, self->guest, &ticket, &err), &err);
        hidden->data = sy_shm_view_at(*view, shared->input, sy_rows_bytes(hidden));
        assert_non_null(hidden->data);
        return 1;
    }
    reply.status = sharing_error(self);
    assert_int_equal(sy_wire_compute_reply_encode(&frame, &reply, NULL), SY_OK);
    sy_call_send(call, &frame);
    return 0;
}

static inline void on_compute(void *ctx, sy_call *call, sy_msg *msg)
{
    fake_node *self = ctx;
    sy_compute_request r;
    sy_arena arena;
    sy_error err = {0};
    size_t n;
    const sy_iov *iov = sy_msg_iov(msg, &n);

    sy_arena_init(&arena, 1 << 24);
    if (sy_wire_compute_request_decode(&r, &arena, iov, n, &err) == SY_OK) {
        sy_shm_view *view = NULL;
        if (open_shared(self, call, r.id, &r.shared, &r.hidden, &view))
            answer_rows(self, call, &r, view);
        sy_shm_view_unref(view);
    } else { /* a probe, which nobody can compute */
        atomic_fetch_add(&self->probes, 1);
        if (self->manner != SILENT) send_status(call, sy_wire_peek_id(iov, n));
    }
    sy_arena_free(&arena);
}

static inline void send_state(fake_node *self)
{
    sy_shard_info shard[L * E] = {0};
    sy_frame frame;

    pthread_mutex_lock(&self->mutex);
    for (uint32_t i = 0; i < L * E; i++)
        shard[i] = (sy_shard_info){.layer = i / E,
                                   .expert = i % E,
                                   .state = self->absent[i] ? SY_SHARD_ABSENT : SY_SHARD_RESIDENT,
                                   .device = "cpu:0",
                                   .reason = ""};
    const sy_node_state state = {.node = self->name,
                                 .model = sy_model_name(model),
                                 .full = 1,
                                 .n_shards = L * E,
                                 .shard = shard,
                                 .arithmetic = self->other_arithmetic ? "other/1" : SY_ARITHMETIC,
                                 .structure_hash = sy_model_structure_hash(model)};
    assert_int_equal(sy_wire_node_state_encode(&frame, &state, NULL), SY_OK);
    if (self->watch != NULL)
        sy_call_send(self->watch, &frame);
    else
        sy_frame_free(&frame);
    pthread_mutex_unlock(&self->mutex);
}

static inline void on_watch(void *ctx, sy_call *call, sy_msg *msg)
{
    fake_node *self = ctx;

    (void)msg;
    pthread_mutex_lock(&self->mutex);
    if (self->watch != NULL) sy_call_unref(self->watch);
    self->watch = sy_call_ref(call);
    pthread_mutex_unlock(&self->mutex);
    send_state(self);
}

/* Token t goes to experts t % E and (t + 3) % E, the higher id in the first slot, with weights 0.25
 * and 0.75. */
static inline void on_route(void *ctx, sy_call *call, sy_msg *msg)
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
    const int is_probe = sy_wire_route_request_decode(&r, &arena, iov, n, &err) != SY_OK;
    if (!is_probe) self->row_dtype = r.hidden.dtype;
    atomic_fetch_add(is_probe ? &self->probes : &self->messages, 1);
    sy_route_reply reply = {.id = sy_wire_peek_id(iov, n), .status = err};
    for (uint32_t t = 0; !is_probe && t < r.hidden.rows; t++) {
        const uint16_t a = (uint16_t)(t % E), b = (uint16_t)((t + 3) % E);
        expert[t * K] = a > b ? a : b;
        expert[t * K + 1] = a > b ? b : a;
        weight[t * K] = 0.25f;
        weight[t * K + 1] = 0.75f;
    }
    if (self->manner == GARBAGE) expert[0] = E; /* an expert that does not exist */
    const int is_shared = !is_probe && r.shared.bytes > 0;
    atomic_fetch_add(&self->shared_messages, is_shared);
    if (is_shared && self->sharing != SHARES)
        reply.status = sharing_error(self);
    else if (!is_probe)
        reply = (sy_route_reply){
            .id = r.id, .slots = K, .n_tokens = r.hidden.rows, .expert = expert, .weight = weight};
    if (self->manner != SILENT) {
        assert_int_equal(sy_wire_route_reply_encode(&frame, &reply, NULL), SY_OK);
        sy_call_send(call, &frame);
    }
    sy_arena_free(&arena);
}

static inline void start_fake(fake_node *self, const char *name, int is_router)
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
    assert_non_null(self->guest = sy_shm_guest_open(1));
    must(sy_server_open(&self->server, loop, &c, &err), &err);
}

static inline void stop_fake(fake_node *self)
{
    pthread_mutex_lock(&self->mutex);
    if (self->held != NULL) sy_call_unref(self->held);
    if (self->watch != NULL) sy_call_unref(self->watch);
    sy_buf_unref(self->held_out);
    sy_shm_view_unref(self->held_view);
    self->held = self->watch = NULL;
    self->held_out = NULL;
    self->held_view = NULL;
    self->held_lent = NULL;
    pthread_mutex_unlock(&self->mutex);
    sy_server_close(self->server, 0);
    self->server = NULL;
    sy_shm_guest_unref(self->guest);
    self->guest = NULL;
}

/* ---- the cluster of fakes ---- */

static inline void place(const char *value)
{
    const sy_placement_entry entry = {"*/*", 3, value, strlen(value)};
    sy_snapshot *snapshot;
    sy_error err = {0};

    must(sy_snapshot_build(&snapshot, NULL, &entry, 1, &(sy_grid){.layers = L, .experts = E}, &err),
         &err);
    assert_int_equal(sy_snapshot_refusals(snapshot), 0);
    agg_peers_placement(peers, snapshot);
    sy_snapshot_unref(snapshot);
}

/* Who holds an expert of both layers, as they announce it; returns when the aggregator knows. */
static inline void set_holders(uint32_t expert, int first, int second, int third)
{
    const int holds[NODES] = {first, second, third};

    for (int i = 0; i < NODES; i++) {
        pthread_mutex_lock(&node[i].mutex);
        for (uint32_t l = 0; l < L; l++) node[i].absent[l * E + expert] = (uint8_t)!holds[i];
        pthread_mutex_unlock(&node[i].mutex);
        send_state(&node[i]);
    }
    agg_view *view = agg_peers_view(peers);
    for (int i = 0; i < NODES; i++)
        WAIT_UNTIL(agg_node_has(view->node[i], E + expert, 1) == holds[i]);
    agg_view_unref(view);
}

static inline agg_node *peer_of(int i) /* the view is not changed by tests */
{
    agg_view *view = agg_peers_view(peers);
    agg_node *found = view->node[i];

    agg_view_unref(view);
    return found;
}

/* Every peer is up, and what the nodes hold is known. */
static inline int is_ready(void)
{
    agg_view *view = agg_peers_view(peers);
    int ready = view->n_routers == ROUTERS && view->n_nodes == NODES;

    for (uint32_t i = 0; i < view->n_routers; i++) ready &= sy_peer_up(view->router[i]->peer);
    for (uint32_t i = 0; i < view->n_nodes; i++) ready &= agg_node_has(view->node[i], L * E - 1, 0);
    agg_view_unref(view);
    return ready;
}

/* Nothing is known of anybody. */
static inline void forget_suspicions(void)
{
    agg_view *view = agg_peers_view(peers);

    for (uint32_t i = 0; i < view->n_nodes + view->n_routers; i++) {
        agg_suspicion *s =
            &(i < view->n_nodes ? view->node[i] : view->router[i - view->n_nodes])->suspicion;
        atomic_store(&s->suspect, 0);
        atomic_store(&s->strikes, 0);
        for (int k = 0; k < AGG_SIZES; k++) atomic_store(&s->usual_us[k], 0);
    }
    agg_view_unref(view);
}

static inline void all_honest(void)
{
    for (int i = 0; i < NODES; i++) {
        fake_node *f = &node[i];
        f->manner = HONEST;
        f->scale = 1.0f;
        f->other_arithmetic = 0;
        f->is_old = 0;
        pthread_mutex_lock(&f->mutex);
        memset(f->absent, 0, sizeof(f->absent));
        pthread_mutex_unlock(&f->mutex);
        if (f->server != NULL) send_state(f);
    }
    for (int i = 0; i < ROUTERS; i++) router[i].manner = HONEST;
    WAIT_UNTIL(is_ready());
    forget_suspicions();
    for (int i = 0; i < NODES + ROUTERS; i++) {
        fake_node *f = i < NODES ? &node[i] : &router[i - NODES];
        f->sharing = SHARES;
        atomic_store(&f->shared_messages, 0);
        atomic_store(&f->messages, 0);
        atomic_store(&f->rows, 0);
        atomic_store(&f->probes, 0);
    }
    memset(lane.seen_us, 0, L * E * sizeof(*lane.seen_us));
    lane.router_seen_us = 0;
    lane.hedges_left = 1000;
    config = (agg_moe_config){.model = model,
                              .kernels = sy_kernels_best(),
                              .peers = peers,
                              .peer_timeout_us = NEVER_LATE_US,
                              .silent_us = NEVER_LATE_US};
}

static inline int set_up(void **state)
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
                                   .options.dtype = SY_F32};
    sy_member member[NODES + ROUTERS] = {0};
    sy_error err = {0};

    (void)state;
    assert_non_null(mkdtemp(dir));
    must(sy_synth_write(dir, &synth, &err), &err);
    must(sy_model_open(&model, dir, "fake", &err), &err);
    must(sy_loop_open(&loop, "servers"), &err);
    must(sy_loop_open(&client_loop, "client"), &err);
    for (int i = 0; i < NODES + ROUTERS; i++) {
        fake_node *f = i < NODES ? &node[i] : &router[i - NODES];
        char name[24];
        snprintf(name, sizeof(name), i < NODES ? "expert-%d" : "router-%d", i % NODES);
        pthread_mutex_init(&f->mutex, NULL);
        f->scale = 1.0f;
        start_fake(f, name, i >= NODES);
        memcpy(member[i].name, f->name, sizeof(f->name));
        memcpy(member[i].address, f->address, sizeof(f->address));
        snprintf(member[i].model, sizeof(member[i].model), "fake");
    }
    must(agg_peers_open(&peers, model, 1 << 24, &err), &err);
    agg_peers_set_loop(peers, client_loop);
    agg_peers_share(peers, shared_bytes_max, 0);
    agg_peers_members(peers, SY_MEMBER_NODE, member, NODES);
    agg_peers_members(peers, SY_MEMBER_ROUTER, member + NODES, ROUTERS);
    config = (agg_moe_config){.model = model, .kernels = sy_kernels_best(), .peers = peers};
    must(agg_lane_open(&lane, &config, &err), &err);
    return 0;
}

static inline int tear_down(void **state)
{
    char command[64];

    (void)state;
    agg_lane_close(&lane);
    agg_peers_close(peers);
    for (int i = 0; i < NODES; i++) stop_fake(&node[i]);
    for (int i = 0; i < ROUTERS; i++) stop_fake(&router[i]);
    sy_loop_close(client_loop);
    sy_loop_close(loop);
    sy_model_close(model);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command) + (int)sy_buf_outstanding();
}

/* ---- layer calls ---- */

typedef struct layer_call {
    sy_moe_call call;
    float x[T * H], y[T * H];
    float shift; /* of x: 0 leaves numbers that are exact in bf16 */
    uint64_t request[T];
    uint8_t failed[T], note[T], may_degrade[T];
} layer_call;

static inline sy_status run_layer(layer_call *c)
{
    sy_moe moe = agg_lane_ops(&lane);

    for (uint32_t i = 0; i < T * H; i++) c->x[i] = (float)(i % 97) / 16.0f - 3.0f + c->shift;
    for (uint32_t t = 0; t < T; t++) c->request[t] = 100 + t;
    memset(c->note, 0, sizeof(c->note));
    c->call = (sy_moe_call){.layer = 1,
                            .n_rows = T,
                            .request = c->request,
                            .x = c->x,
                            .y = c->y,
                            .deadline_us = sy_clock_us() + 1200 * 1000000LL,
                            .may_degrade = c->may_degrade,
                            .note = c->note,
                            .failed = c->failed};
    sy_error_clear(&c->call.error);
    return moe.layer(moe.ctx, &c->call);
}

/* The token's output is low * (its lower expert's) + high * (its higher expert's). */
static inline void expect_token(const layer_call *c, uint32_t t, float low, float high)
{
    const uint32_t a = t % E, b = (t + 3) % E;

    assert_int_equal(c->failed[t], 0);
    for (uint32_t k = 0; k < H; k++) {
        const float x = c->x[t * H + k];
        const float want = __builtin_fmaf(high, (float)((a > b ? a : b) + 1) * x,
                                          low * ((float)((a < b ? a : b) + 1) * x));
        if (c->y[t * H + k] != want)
            fail_msg("token %u column %u: %g, expected %g", t, k, (double)c->y[t * H + k],
                     (double)want);
    }
}

static inline void expect_right(const layer_call *c)
{
    for (uint32_t t = 0; t < T; t++) expect_token(c, t, 0.75f, 0.25f);
}

static inline void run_right(void)
{
    layer_call c = {0};

    assert_int_equal(run_layer(&c), SY_OK);
    expect_right(&c);
}

#endif
