/* gpu_fixture.h - expert nodes on emulated GPUs: the plugin of tests/emu, loaded as the real one
 * is, with a file through which devices are told to hang or to be lost. Devices that were lost stay
 * so for this process, so each test has devices of its own. */
#ifndef GPU_FIXTURE_H
#define GPU_FIXTURE_H

#include <sys/wait.h>

#include "residency_fixture.h"
#include "sy_backend_load.h"

enum { H = 64, FFN = 96, LAYERS = 3, EXPERTS = 8, MESSAGES_MAX = 64 };

static char gpu_model_dir[] = "/tmp/sy-gpu-XXXXXX";
static char gpu_control[] = "/tmp/sy-gpu-control-XXXXXX";
static sy_model *model;

/* What the devices are to do from now on; "": nothing. */
static inline void devices_told(const char *lines)
{
    char path[sizeof(gpu_control) + 8];

    snprintf(path, sizeof(path), "%s.new", gpu_control);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(lines, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(path, gpu_control), 0);
}

static inline int gpus_set_up(void **state)
{
    char folder[512];
    const ssize_t n = readlink("/proc/self/exe", folder, sizeof(folder) - 32);

    (void)state;
    if (n <= 0) return -1;
    folder[n] = '\0';
    *strrchr(folder, '/') = '\0'; /* BUILD/bin */
    strcpy(strrchr(folder, '/'), "/tests/emu/plugin");
    setenv(SY_BACKEND_DIR_VARIABLE, folder, 1);
    setenv("SY_EMU_DEVICES", "4", 1);
    setenv("SY_EMU_MEMORY_MB", "64", 1);
    const int fd = mkstemp(gpu_control);
    if (fd < 0) return -1;
    close(fd);
    setenv("SY_EMU_CONTROL", gpu_control, 1);
    model = model_make_as(gpu_model_dir, 1, SY_BF16);
    return 0;
}

static inline int gpus_tear_down(void **state)
{
    (void)state;
    model_remove(model);
    return unlink(gpu_control);
}

/* Every test in a process of its own; how many failed. Nothing has a thread before. */
static inline int run_each(const struct CMUnitTest *test, size_t n)
{
    int n_failed = 0;

    for (size_t i = 0; i < n; i++) {
        int status = 1;
        fflush(stdout);
        const pid_t pid = fork();
        if (pid == 0)
            exit(_cmocka_run_group_tests(test[i].name, &test[i], 1, gpus_set_up, gpus_tear_down));
        n_failed += pid < 0 || waitpid(pid, &status, 0) != pid || status != 0;
    }
    return n_failed;
}

/* On GPUs 0 and following; what lingers stays. */
static inline host *gpu_host(const char *name, uint32_t n_gpus)
{
    return host_open(&(host_options){
        .name = name, .model = model, .n_gpus = n_gpus, .linger_us = WAIT_US * 100});
}

/* ---- messages ---- */

/* Tokens `first` and following, each for all of the n_experts experts from first_expert on. */
typedef struct question {
    uint32_t layer, first_token, n_tokens;
    uint16_t first_expert, n_experts;
} question;

/* A client on one stream; answers are kept until the next ask. */
typedef struct asker {
    sy_peer *peer;
    sy_fanout *fanout;
    sy_arena arena;
} asker;

static inline void asker_open(asker *a, host *h)
{
    const sy_peer_config config = {.name = h->self.node,
                                   .address = h->address,
                                   .stream_path = "/switchyard.v1.Expert/ComputeStream",
                                   .reply_id = sy_wire_peek_id};
    sy_error err = {0};

    must(sy_peer_open(&a->peer, h->loop, &config, &err), &err);
    must(sy_fanout_open(&a->fanout, MESSAGES_MAX), &err);
    sy_arena_init(&a->arena, 1 << 28);
    wait_until(sy_peer_up(a->peer));
}

static inline void asker_close(asker *a)
{
    sy_fanout_free(a->fanout);
    sy_peer_close(a->peer);
    sy_arena_free(&a->arena);
}

/* Token t, which every question means by that number. */
static inline void token(float *x, uint32_t t)
{
    uint64_t s = 0x9e3779b97f4a7c15u * (t + 1);

    for (size_t i = 0; i < H; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(s >> 40) / (float)(1 << 23) - 1.0f;
    }
}

static inline void asker_send(asker *a, question q)
{
    const uint32_t n_rows = q.n_tokens * q.n_experts;
    uint16_t *id = malloc(q.n_experts * sizeof(*id));
    uint32_t *end = malloc(q.n_experts * sizeof(*end)), *row = malloc(n_rows * sizeof(*row));
    float *x = malloc((size_t)q.n_tokens * H * sizeof(*x));
    sy_frame frame;

    for (uint32_t t = 0; t < q.n_tokens; t++) token(x + (size_t)t * H, q.first_token + t);
    for (uint16_t e = 0; e < q.n_experts; e++) {
        id[e] = (uint16_t)(q.first_expert + e);
        end[e] = (e + 1u) * q.n_tokens;
        for (uint32_t t = 0; t < q.n_tokens; t++) row[e * q.n_tokens + t] = t;
    }
    const sy_compute_request request = {.id = sy_peer_next_id(a->peer),
                                        .model = "small",
                                        .layer = q.layer,
                                        .n_groups = q.n_experts,
                                        .n_assign = n_rows,
                                        .expert = id,
                                        .group_end = end,
                                        .row = row,
                                        .hidden = {SY_F32, q.n_tokens, H, x}};
    assert_int_equal(sy_wire_compute_request_encode(&frame, &request, NULL), SY_OK);
    sy_fanout_send(a->fanout, a->peer, request.id, &frame);
    free(id);
    free(end);
    free(row);
    free(x);
}

/* The answer to message i of those sent since asker_reset. */
static inline sy_compute_reply asker_answer(asker *a, uint32_t i)
{
    sy_compute_reply reply;
    sy_error err = {0};
    size_t n;

    sy_fanout_wait(a->fanout, sy_clock_us() + WAIT_US);
    const sy_fanout_slot *slot = sy_fanout_at(a->fanout, i);
    if (slot->status != SY_OK) fail_msg("message %u: %s", i, slot->err.message);
    const sy_iov *iov = sy_msg_iov(slot->msg, &n);
    must(sy_wire_compute_reply_decode(&reply, &a->arena, iov, n, &err), &err);
    return reply;
}

static inline void asker_reset(asker *a)
{
    sy_fanout_reset(a->fanout);
    sy_arena_reset(&a->arena);
}

/* The rows of one question, which must be answered without a fault; the caller frees. */
static inline float *rows_of(host *h, question q)
{
    const size_t bytes = (size_t)q.n_tokens * q.n_experts * H * sizeof(float);
    float *rows = malloc(bytes);
    asker a;

    asker_open(&a, h);
    asker_send(&a, q);
    const sy_compute_reply reply = asker_answer(&a, 0);
    if (reply.status.status != SY_OK) fail_msg("%s", reply.status.message);
    if (reply.n_faults != 0) fail_msg("%s", reply.fault[0].status.message);
    assert_int_equal(reply.output.rows, q.n_tokens * q.n_experts);
    memcpy(rows, reply.output.data, bytes);
    asker_close(&a);
    return rows;
}

/* ---- what a host says of its GPUs ---- */

static inline uint8_t device_of_shard(host *h, uint32_t layer, uint32_t id)
{
    return atomic_load(&h->self.residency.device[layer * EXPERTS + id]);
}

/* Where the weights lie that a message would be computed with; NULL: nowhere. */
static inline const sy_shard_home *home_of_shard(host *h, uint32_t layer, uint32_t id)
{
    const sy_shard *shard = sy_shard_get(h->self.store, layer, id);
    const sy_shard_home *home = shard == NULL ? NULL : shard->home;

    sy_shard_put(h->self.store, shard);
    return home;
}

#endif
