/* gpu_fetch_fixture.h - shards that go from GPU to GPU of two processes: a giver, which is this
 * process or, as CUDA wants it for memory that is to be opened, this program once more; and a taker
 * with a GPU of its own. */
#ifndef GPU_FETCH_FIXTURE_H
#define GPU_FETCH_FIXTURE_H

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

#include "gpu_fixture.h"
#include "sy_digest.h"
#include "sy_shm.h"

enum { GIVER_GPU = 0, TAKER_GPU = 1, TOLD_FD = 3 };

static inline sy_shard_home *home_on(uint32_t number)
{
    static const char *const name[] = {"cuda:0", "cuda:1"};
    sy_shard_home_config config = {
        .number = number, .name = name[number], .model = model, .lanes = 1};
    sy_shard_home *home;
    sy_error err = {0};

    must(sy_backend_load(&config.backend, "cuda", &err), &err);
    must(sy_shard_home_open(&home, &config, &err), &err);
    return home;
}

static inline uint64_t slots_taken(const sy_shard_home *home)
{
    return sy_shard_home_bytes(home) / sy_shard_home_slot_bytes(home);
}

/* ---- giving ---- */

typedef struct giver {
    sy_shard_store *store;
    sy_shard_home *home;
    expert_fetch_server *giving;
    sy_loop *loop;
    sy_server *server;
    char address[64];
} giver;

static inline void giver_load(giver *g, sy_shard_home *home, uint32_t layer, uint32_t id)
{
    sy_shard_builder *builder;
    sy_shard_identity identity;
    sy_error err = {0};
    int done;

    must(sy_shard_begin_on(&builder, g->store, home, layer, id, NULL, &err), &err);
    must(sy_shard_add_from_checkpoint(builder, SIZE_MAX, &done, &err), &err);
    must(sy_shard_verify(builder, &identity, sy_kernels_best(), &err), &err);
    sy_shard_publish(builder);
}

/* Layer 0 is on its GPU. */
static inline giver *giver_open(expert_fetch_server_config config)
{
    static const char *const any[] = {"127.0.0.1:0"};
    giver *g = calloc(1, sizeof(*g));
    sy_error err = {0};

    assert_non_null(g);
    must(sy_shard_store_open(&g->store, model, (sy_precision){0}, 0, &err), &err);
    g->home = home_on(GIVER_GPU);
    for (uint32_t id = 0; id < EXPERTS; id++) giver_load(g, g->home, 0, id);
    config.model = model;
    config.store = g->store;
    must(expert_fetch_server_open(&g->giving, &config, &err), &err);
    const sy_method method = {.path = EXPERT_FETCH_PATH,
                              .server_streams = 1,
                              .ctx = g->giving,
                              .on_message = expert_fetch_message,
                              .on_end = expert_fetch_end};
    const sy_server_config listening = {.addresses = any,
                                        .n_addresses = 1,
                                        .methods = &method,
                                        .n_methods = 1,
                                        .error_details = sy_wire_error_details};
    must(sy_loop_open(&g->loop, "test"), &err);
    must(sy_server_open(&g->server, g->loop, &listening, &err), &err);
    snprintf(g->address, sizeof(g->address), "127.0.0.1:%d", sy_server_port(g->server, 0));
    return g;
}

static inline void giver_close(giver *g)
{
    sy_server_close(g->server, 0);
    expert_fetch_server_close(g->giving);
    sy_loop_close(g->loop);
    sy_shard_store_close(g->store);
    sy_shard_home_close(g->home);
    free(g);
}

/* ---- another process that gives ---- */

typedef struct other {
    pid_t pid;
    int fd;
    char address[64];
} other;

/* The other process, until its end of the socket ends. Any byte: expert 0 of layer 1 takes the
 * place of that of layer 0, and when it is there, an answer. */
static inline int give(const char *dir, const char *hold_us)
{
    sy_error err = {0};
    char byte;

    must(sy_model_open(&model, dir, "small", &err), &err);
    giver *g =
        giver_open((expert_fetch_server_config){.offers_slots = 1, .hold_us = atol(hold_us)});
    if (write(TOLD_FD, g->address, sizeof(g->address)) != sizeof(g->address)) return 1;
    while (read(TOLD_FD, &byte, 1) > 0) {
        wait_until(expert_fetch_server_running(g->giving) == 0);
        sy_shard_unload(g->store, 0, 0);
        giver_load(g, g->home, 1, 0);
        if (write(TOLD_FD, &byte, 1) != 1) return 1;
    }
    giver_close(g);
    sy_model_close(model);
    return 0;
}

/* fault: as SY_FAULT has it; told: what its GPUs are to do. */
typedef struct other_options {
    const char *fault, *told, *hold_us;
} other_options;

static inline void become_other(const other_options *o, int fd)
{
    char path[sizeof(gpu_control) + 8];

    snprintf(path, sizeof(path), "%s.other", gpu_control);
    FILE *file = fopen(path, "w");
    if (file == NULL) _exit(126);
    fputs(o->told != NULL ? o->told : "", file);
    fclose(file);
    setenv("SY_EMU_CONTROL", path, 1);
    if (o->fault != NULL) setenv("SY_FAULT", o->fault, 1);
    if (fd == TOLD_FD)
        fcntl(fd, F_SETFD, 0);
    else
        dup2(fd, TOLD_FD);
    execl("/proc/self/exe", "test", "give", sy_model_dir(model),
          o->hold_us != NULL ? o->hold_us : "0", (char *)NULL);
    _exit(127);
}

/* Before this process has a thread. */
static inline other other_start(other_options options)
{
    other o;
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    fflush(stdout);
    o.pid = fork();
    assert_true(o.pid >= 0);
    if (o.pid == 0) become_other(&options, pair[1]);
    close(pair[1]);
    o.fd = pair[0];
    assert_int_equal(recv(o.fd, o.address, sizeof(o.address), MSG_WAITALL), sizeof(o.address));
    return o;
}

static inline void other_replace(const other *o)
{
    char byte = 'r';

    assert_int_equal(write(o->fd, &byte, 1), 1);
    assert_int_equal(read(o->fd, &byte, 1), 1);
}

static inline void other_kill(const other *o)
{
    assert_int_equal(kill(o->pid, SIGKILL), 0);
    assert_int_equal(waitpid(o->pid, NULL, 0), o->pid);
    close(o->fd);
}

static inline void other_end(const other *o)
{
    char path[sizeof(gpu_control) + 8];
    int status;

    close(o->fd);
    assert_int_equal(waitpid(o->pid, &status, 0), o->pid);
    assert_int_equal(status, 0);
    snprintf(path, sizeof(path), "%s.other", gpu_control);
    unlink(path);
}

/* ---- asking by hand ---- */

typedef struct asking {
    sy_client *client;
    sy_client_call *call;
    sy_arena arena;
    sy_shard_chunk chunk; /* the first one */
} asking;

static inline sy_fetch_request request_of(const sy_shm *shown, const sy_shard_home *home)
{
    sy_fetch_request request = {.model = "small"};
    sy_shm_ticket ticket;

    sy_shm_get_ticket(shown, &ticket);
    request.taker = (sy_slot_taker){.pid = ticket.pid,
                                    .fd = ticket.fd,
                                    .bytes = ticket.bytes,
                                    .arithmetic = sy_shard_home_arithmetic(home),
                                    .slot_bytes = sy_shard_home_slot_bytes(home)};
    memcpy(request.taker.key, ticket.key, sizeof(ticket.key));
    return request;
}

static inline asking *asking_begin(const char *address, const sy_fetch_request *request)
{
    asking *a = calloc(1, sizeof(*a));
    sy_frame frame;
    sy_error err = {0};
    sy_msg *msg;
    size_t n;

    assert_non_null(a);
    sy_arena_init(&a->arena, 1 << 22);
    must(sy_client_open(&a->client, address, 0, &err), &err);
    assert_int_equal(sy_wire_fetch_request_encode(&frame, request, NULL), SY_OK);
    must(sy_client_start(&a->call, a->client, EXPERT_FETCH_PATH, &frame, sy_clock_us() + WAIT_US, 1,
                         &err),
         &err);
    must(sy_client_next(a->call, &msg, &err), &err);
    assert_non_null(msg);
    const sy_iov *iov = sy_msg_iov(msg, &n);
    must(sy_wire_shard_chunk_decode(&a->chunk, &a->arena, iov, n, &err), &err);
    sy_msg_free(msg);
    return a;
}

static inline void asking_end(asking *a)
{
    sy_client_end(a->call);
    sy_client_close(a->client);
    sy_arena_free(&a->arena);
    free(a);
}

#endif
