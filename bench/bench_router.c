/* bench_router.c - the gate alone, and behind RPC. First what one thread routes with the gate in
 * its own memory, against multiply-adds in registers; then the same through the router's server in
 * a process of its own, on one processor, with several calls in flight on one stream. Processor
 * time is what is measured: "a CPU second" is what one core gives, whatever the client costs and
 * whoever else runs; only the calls a second of the wall clock are of the whole. Layers alternate
 * and rows change, as they do in service: a processor learns the choices of a few rows by heart.
 * Answers are compared with the bare gate's, bit by bit, and those with the reference, before
 * anything is timed.
 */
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench_child.h"
#include "bench_limits.h"
#include "bench_stats.h"
#include "router_work.h"
#include "sy_args.h"
#include "sy_clock.h"
#include "sy_log.h"
#include "sy_shm.h"
#include "sy_synth.h"

#define STREAM_PATH "/switchyard.v1.Router/RouteStream"
#define N_LAYERS    2
#define T_MAX       256
#define N_ROWS      (4 * T_MAX) /* calls take T of them, from where the last one stopped */
#define T_REF       5 /* rows that the reference computes: enough for both of a product's paths */
#define IN_FLIGHT   8
#define WAIT_US     ((int64_t)10 * 1000000)

typedef struct shape {
    const char *family;
    uint32_t hidden, n_experts, top_k;
} shape;

static const shape shapes[] = {
    {"mixtral", 4096, 8, 2},
    {"olmoe", 2048, 64, 8},
    {"olmoe", 2048, 128, 8},
    {"olmoe", 7168, 256, 8},
};

/* One shape under measurement: its gates, rows for them, and what they answer. */
typedef struct bench {
    char dir[64];
    double seconds;   /* a figure */
    const char *only; /* "2048x64": one gate; NULL: all */
    int json, n_figures;
    const sy_kernels *kernels;
    const shape *shape;
    sy_model *model;
    sy_router *gates;
    float *x; /* [N_ROWS][hidden], in `rows` */
    sy_buf *rows;
    float *scratch;
    uint16_t *expert[N_LAYERS]; /* [N_ROWS][top_k] */
    float *weight[N_LAYERS];
    double peak_gflops;
} bench;

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "bench_router: error: %s\n", what);
    exit(1); /* a server ends when its standard input does */
}

static void *memory_for(size_t bytes)
{
    void *p = aligned_alloc(SY_CACHE_LINE, (bytes + SY_CACHE_LINE - 1) & ~(SY_CACHE_LINE - 1));

    if (p == NULL) give_up("no memory");
    return p;
}

/* ---- the server, as switchyard-router has it, without a control plane ---- */

static int serve(const char *dir, const char *socket_path, const char *kernels)
{
    static router self;
    char address[256];
    const char *const addresses[] = {address};
    const sy_method method = {.path = STREAM_PATH,
                              .client_streams = 1,
                              .server_streams = 1,
                              .ctx = &self,
                              .on_open = router_stream_open,
                              .on_end = router_stream_end,
                              .on_message = router_route_message};
    const sy_server_config config = {.addresses = addresses,
                                     .n_addresses = 1,
                                     .methods = &method,
                                     .n_methods = 1,
                                     .send_queue_max = ROUTER_QUEUE_MAX};
    sy_loop *loop;
    sy_server *server;
    sy_error err;

    bench_pin(1);
    snprintf(address, sizeof(address), "unix:%s", socket_path);
    if (sy_kernels_choose(&self.kernels, kernels, &err) != SY_OK ||
        sy_model_open(&self.model, dir, NULL, &err) != SY_OK ||
        sy_router_open(&self.gates, self.model, self.kernels, &err) != SY_OK)
        give_up(err.message);
    self.desc = sy_model_describe(self.model);
    self.shares_memory = 1;
    if (router_work_open(&self, 1, &err) != SY_OK) give_up(err.message);
    if (sy_loop_open(&loop, "router") != SY_OK) give_up("no loop");
    if (sy_server_open(&server, loop, &config, &err) != SY_OK) give_up(err.message);
    bench_child_serve();
    sy_server_close(server, 0);
    router_work_close(&self);
    sy_loop_close(loop);
    sy_router_close(self.gates);
    sy_model_close(self.model);
    return 0;
}

/* ---- the bare gate ---- */

static double cpu_now_s(void) /* of this thread */
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void route_bare(const bench *b, const sy_router *gates, uint16_t *expert, float *weight,
                       uint32_t layer, uint32_t row, uint32_t T)
{
    sy_error err;

    if (sy_route(gates, layer, expert, weight, b->x + (size_t)row * b->shape->hidden, T, NULL,
                 b->scratch, NULL, &err) != SY_OK)
        give_up(err.message);
}

static void check_against_ref(const bench *b)
{
    uint16_t expert[T_REF * SY_TOP_K_MAX];
    float weight[T_REF * SY_TOP_K_MAX];
    const size_t n = (size_t)T_REF * b->shape->top_k;
    sy_router *ref;
    sy_error err;

    if (sy_router_open(&ref, b->model, sy_kernels_at(0), &err) != SY_OK) give_up(err.message);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        route_bare(b, ref, expert, weight, layer, 0, T_REF);
        if (memcmp(expert, b->expert[layer], n * sizeof(*expert)) != 0 ||
            memcmp(weight, b->weight[layer], n * sizeof(*weight)) != 0)
            give_up("the gate's choices differ from the reference's; not timed");
    }
    sy_router_close(ref);
}

static void open_shape(bench *b, const shape *s)
{
    const sy_synth_config config = {.family = s->family,
                                    .vocab = 256,
                                    .hidden = s->hidden,
                                    .n_layers = N_LAYERS,
                                    .n_heads = 1,
                                    .n_kv_heads = 1,
                                    .head_dim = 64,
                                    .n_experts = s->n_experts,
                                    .top_k = s->top_k,
                                    .expert_ffn = 1,
                                    .context = 64,
                                    .rms_eps = 1e-5f,
                                    .rope_theta = 1e4f,
                                    .options.dtype = SY_BF16};
    const size_t row_bytes = s->hidden * sizeof(float), n = (size_t)N_ROWS * s->top_k;
    uint32_t random = 1;
    sy_error err;

    b->shape = s;
    if (sy_synth_write(b->dir, &config, &err) != SY_OK ||
        sy_model_open(&b->model, b->dir, NULL, &err) != SY_OK ||
        sy_router_open(&b->gates, b->model, b->kernels, &err) != SY_OK)
        give_up(err.message);
    b->rows = sy_buf_alloc(N_ROWS * row_bytes);
    if (b->rows == NULL) give_up("no memory");
    b->x = b->rows->data;
    for (size_t i = 0; i < (size_t)N_ROWS * s->hidden; i++) {
        random = random * 1664525u + 1013904223u;
        b->x[i] = (float)(int32_t)random * 0x1p-30f;
    }
    b->scratch = memory_for(sy_router_scratch(b->gates, N_ROWS) * sizeof(float));
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        b->expert[layer] = memory_for(n * sizeof(uint16_t));
        b->weight[layer] = memory_for(n * sizeof(float));
        route_bare(b, b->gates, b->expert[layer], b->weight[layer], layer, 0, N_ROWS);
    }
    check_against_ref(b);
    b->peak_gflops = 0;
    for (int i = 0; i < 3; i++) {
        const double start_s = cpu_now_s();
        const double gflops = bench_fma_chains(b->kernels->name) / (cpu_now_s() - start_s) * 1e-9;
        b->peak_gflops = SY_MAX(b->peak_gflops, gflops);
    }
}

static void close_shape(bench *b)
{
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        free(b->expert[layer]);
        free(b->weight[layer]);
    }
    free(b->scratch);
    sy_buf_unref(b->rows);
    sy_router_close(b->gates);
    sy_model_close(b->model);
}

/* Token-layers a CPU second: the median of samples that are long enough for the clock. */
static double time_bare(const bench *b, uint32_t T)
{
    static bench_samples samples;
    const uint32_t n_calls = T_MAX / T;
    const size_t n = (size_t)T * b->shape->top_k;
    uint16_t *expert = memory_for(n * sizeof(*expert));
    float *weight = memory_for(n * sizeof(*weight));
    uint32_t row = 0, layer = 0;

    samples.n = 0;
    for (const double end_s = bench_now_s() + b->seconds; bench_now_s() < end_s;) {
        const double start_s = cpu_now_s();
        for (uint32_t i = 0; i < n_calls; i++, row = (row + T) % N_ROWS)
            route_bare(b, b->gates, expert, weight, layer++ % N_LAYERS, row, T);
        bench_samples_add(&samples, cpu_now_s() - start_s);
    }
    free(expert);
    free(weight);
    return (double)T * n_calls / bench_quantile(samples.value, samples.n, 0.5);
}

/* ---- through the server: a chain of callbacks on the loop's thread ---- */

typedef enum rows_in { IN_MESSAGE, IN_SHARED_MEMORY, N_ROWS_IN } rows_in;
static const char *const rows_in_names[N_ROWS_IN] = {"rpc", "shm"};

typedef struct client {
    const bench *b;
    rows_in rows_in;
    sy_shm *shm;
    sy_shm_ticket ticket;
    float *shared_x; /* a copy of b->x, in shm */
    sy_loop *loop;
    sy_peer *peer;
    sy_arena arena;
    uint32_t T, next_layer, next_row;
    size_t in_flight, n_calls;
    double begin_s, end_s;
    sem_t done;
    struct {
        uint64_t id;
        uint32_t layer, row;
    } call[IN_FLIGHT];
    int checked; /* every answer is compared */
} client;

static void client_reply(void *arg, uint64_t id, sy_msg *msg, const sy_error *err);

static void client_send(client *c)
{
    const uint32_t H = c->b->shape->hidden;
    const uint32_t layer = c->next_layer++ % N_LAYERS;
    const size_t at = (size_t)c->next_row * H;
    sy_route_request request = {
        .id = sy_peer_next_id(c->peer),
        .model = "",
        .layer = layer,
        .hidden = {.dtype = SY_F32, .rows = c->T, .cols = H, .data = c->b->x + at}};
    sy_frame frame;
    size_t i = 0;

    while (c->call[i].id != 0) i++;
    c->call[i].id = request.id;
    c->call[i].layer = layer;
    c->call[i].row = c->next_row;
    c->next_row = (c->next_row + c->T) % N_ROWS;
    c->in_flight++;
    if (c->rows_in == IN_SHARED_MEMORY) {
        request.hidden.data = NULL;
        request.shared = (sy_shared_rows){.pid = c->ticket.pid,
                                          .fd = c->ticket.fd,
                                          .bytes = c->ticket.bytes,
                                          .input = sy_shm_offset(c->shm, c->shared_x + at)};
        memcpy(request.shared.key, c->ticket.key, sizeof(request.shared.key));
    }
    if (sy_wire_route_request_encode(&frame, &request, c->b->rows) != SY_OK ||
        sy_peer_send(c->peer, request.id, &frame, client_reply, c) != SY_OK)
        give_up("a call was refused");
}

static void check_reply(client *c, uint32_t layer, uint32_t row, const sy_msg *msg)
{
    const size_t n = (size_t)c->T * c->b->shape->top_k;
    const size_t at = (size_t)row * c->b->shape->top_k;
    sy_route_reply reply;
    sy_error err;
    size_t n_pieces;
    const sy_iov *iov = sy_msg_iov(msg, &n_pieces);

    if (sy_wire_route_reply_decode(&reply, &c->arena, iov, n_pieces, &err) != SY_OK)
        give_up(err.message);
    if (reply.status.status != SY_OK) give_up(reply.status.message);
    if (reply.n_tokens != c->T || reply.slots != c->b->shape->top_k ||
        memcmp(reply.expert, c->b->expert[layer] + at, n * sizeof(*reply.expert)) != 0 ||
        memcmp(reply.weight, c->b->weight[layer] + at, n * sizeof(*reply.weight)) != 0)
        give_up("an answer differs from the bare gate's; not timed");
    sy_arena_reset(&c->arena);
}

static void client_reply(void *arg, uint64_t id, sy_msg *msg, const sy_error *err)
{
    client *c = arg;
    size_t i = 0;

    if (msg == NULL) give_up(err->message);
    while (i < IN_FLIGHT && c->call[i].id != id) i++;
    if (i == IN_FLIGHT) give_up("an answer to no call");
    if (c->checked) check_reply(c, c->call[i].layer, c->call[i].row, msg);
    c->call[i].id = 0;
    c->n_calls++;
    c->in_flight--;
    if (bench_now_s() < c->end_s) {
        client_send(c);
    } else if (c->in_flight == 0) {
        c->end_s = bench_now_s();
        sem_post(&c->done);
    }
}

static void client_begin(void *arg)
{
    client *c = arg;

    c->n_calls = 0;
    c->begin_s = bench_now_s();
    c->end_s += c->begin_s;
    for (int i = 0; i < IN_FLIGHT; i++) client_send(c);
}

static void run_client(client *c, rows_in where, uint32_t T, double seconds, int checked)
{
    c->rows_in = where;
    c->T = T;
    c->next_row = 0;
    c->end_s = seconds;
    c->checked = checked;
    if (sy_loop_post(c->loop, client_begin, c) != SY_OK) give_up("the loop takes nothing");
    while (sem_wait(&c->done) != 0) {
    }
}

static void share_rows(client *c)
{
    const size_t bytes = (size_t)N_ROWS * c->b->shape->hidden * sizeof(float);
    sy_error err;

    if (sy_shm_create(&c->shm, bytes, &err) != SY_OK) give_up(err.message);
    c->shared_x = sy_shm_lend(c->shm, bytes);
    if (c->shared_x == NULL) give_up("no room in shared memory");
    memcpy(c->shared_x, c->b->x, bytes);
    sy_shm_get_ticket(c->shm, &c->ticket);
}

static void connect_client(client *c, const bench *b, const char *socket_path)
{
    const int64_t give_up_us = sy_clock_us() + WAIT_US;
    char address[256];
    const sy_peer_config config = {.name = "router",
                                   .address = address,
                                   .stream_path = STREAM_PATH,
                                   .reply_id = sy_wire_peek_id};
    sy_error err;

    *c = (client){.b = b};
    snprintf(address, sizeof(address), "unix:%s", socket_path);
    sem_init(&c->done, 0, 0);
    sy_arena_init(&c->arena, 1 << 24);
    share_rows(c);
    if (sy_loop_open(&c->loop, "bench") != SY_OK) give_up("no loop");
    if (sy_peer_open(&c->peer, c->loop, &config, &err) != SY_OK) give_up(err.message);
    while (!sy_peer_up(c->peer)) {
        if (sy_clock_us() > give_up_us) give_up("the server does not answer");
        usleep(1000);
    }
}

static void close_client(client *c)
{
    sy_peer_close(c->peer);
    sy_loop_close(c->loop);
    sy_arena_free(&c->arena);
    sy_shm_give_back(c->shm, c->shared_x);
    sy_shm_unref(c->shm);
    sem_destroy(&c->done);
}

/* ---- figures ---- */

static void print_bare(bench *b, uint32_t T, double tokens_per_s)
{
    const shape *s = b->shape;
    const double gflops = 2.0 * s->hidden * s->n_experts * tokens_per_s * 1e-9;
    const double share = b->peak_gflops > 0 ? gflops / b->peak_gflops : 0;

    if (b->json) {
        printf("%s\n  {\"kind\": \"bare\", \"kernels\": \"%s\", \"hidden\": %u, \"experts\": %u, "
               "\"top_k\": %u, \"T\": %u, \"token_layers_per_s\": %.0f, \"gflops\": %.2f, "
               "\"fma_peak_gflops\": %.2f, \"fma_share\": %.3f}",
               b->n_figures++ > 0 ? "," : "", b->kernels->name, s->hidden, s->n_experts, s->top_k,
               T, tokens_per_s, gflops, b->peak_gflops, share);
    } else {
        printf("%5u x %-4u %4u bare %12.0f %8.1f %5.0f %%\n", s->hidden, s->n_experts, T,
               tokens_per_s, gflops, 100 * share);
    }
    fflush(stdout);
}

typedef struct served {
    double calls_per_s, calls_per_cpu_s;
} served;

static void print_served(bench *b, rows_in where, uint32_t T, const served *r, double bare_per_s)
{
    const shape *s = b->shape;
    const double wall_ratio = r->calls_per_s * T / bare_per_s;
    const double cpu_ratio = r->calls_per_cpu_s * T / bare_per_s;

    if (b->json) {
        printf("%s\n  {\"kind\": \"%s\", \"kernels\": \"%s\", \"hidden\": %u, \"experts\": %u, "
               "\"top_k\": %u, \"T\": %u, \"in_flight\": %d, \"calls_per_s\": %.0f, "
               "\"token_layers_per_s\": %.0f, \"ratio_to_bare\": %.3f, \"cpu_us_per_call\": %.2f, "
               "\"calls_per_cpu_s\": %.0f, \"cpu_ratio_to_bare\": %.3f}",
               b->n_figures++ > 0 ? "," : "", rows_in_names[where], b->kernels->name, s->hidden,
               s->n_experts, s->top_k, T, IN_FLIGHT, r->calls_per_s, r->calls_per_s * T, wall_ratio,
               1e6 / r->calls_per_cpu_s, r->calls_per_cpu_s, cpu_ratio);
    } else {
        printf("%5u x %-4u %4u %-4s %12.0f %8.0f %5.0f %% %10.1f us %8.0f calls %5.0f %%\n",
               s->hidden, s->n_experts, T, rows_in_names[where], r->calls_per_s * T, r->calls_per_s,
               100 * wall_ratio, 1e6 / r->calls_per_cpu_s, r->calls_per_cpu_s, 100 * cpu_ratio);
    }
    fflush(stdout);
}

static served time_served(client *c, const bench_child *child, rows_in where, uint32_t T,
                          double seconds)
{
    served r;

    run_client(c, where, T, seconds / 8, 1);
    const double cpu_s = bench_child_cpu_s(child);
    run_client(c, where, T, seconds, 0);
    r.calls_per_s = (double)c->n_calls / (c->end_s - c->begin_s);
    r.calls_per_cpu_s = (double)c->n_calls / (bench_child_cpu_s(child) - cpu_s);
    return r;
}

static void measure_shape(bench *b)
{
    static const uint32_t bare[] = {1, 16, 64, 256};
    static const uint32_t behind_rpc[] = {1, 64};
    char socket_path[96], serve_option[] = "--serve", dir_option[] = "--model", name[] = "bench";
    char kernels_option[] = "--kernels", kernels[16];
    char *argv[] = {name,   serve_option,   socket_path, dir_option,
                    b->dir, kernels_option, kernels,     NULL};
    bench_child child;
    client c;

    for (size_t i = 0; i < SY_COUNT_OF(bare); i++) print_bare(b, bare[i], time_bare(b, bare[i]));
    snprintf(socket_path, sizeof(socket_path), "%s/socket", b->dir);
    snprintf(kernels, sizeof(kernels), "%s", b->kernels->name);
    if (!bench_child_start(&child, argv)) give_up("the server did not start");
    connect_client(&c, b, socket_path);
    for (size_t i = 0; i < SY_COUNT_OF(behind_rpc); i++) {
        const uint32_t T = behind_rpc[i];
        for (int where = 0; where < N_ROWS_IN; where++) {
            const double bare_per_s = time_bare(b, T); /* in the same second */
            const served r = time_served(&c, &child, (rows_in)where, T, 2 * b->seconds);
            print_served(b, (rows_in)where, T, &r, bare_per_s);
        }
    }
    close_client(&c);
    bench_child_stop(&child);
    unlink(socket_path);
}

static void remove_model(const bench *b)
{
    static const char *const names[] = {"config.json", "generation_config.json",
                                        "model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json"};
    char path[128];

    for (size_t i = 0; i < SY_COUNT_OF(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", b->dir, names[i]);
        unlink(path);
    }
}

static int is_wanted(const bench *b, const shape *s)
{
    char name[32];

    snprintf(name, sizeof(name), "%ux%u", s->hidden, s->n_experts);
    return b->only == NULL || strcmp(b->only, name) == 0;
}

static int run(bench *b)
{
    snprintf(b->dir, sizeof(b->dir), "/tmp/bench-router-XXXXXX");
    if (mkdtemp(b->dir) == NULL) give_up("no temporary folder");
    bench_pin(0);
    if (b->json) {
        printf("[");
    } else {
        printf("%d layers in turn; behind RPC %d calls in flight; kernels %s\n", N_LAYERS,
               IN_FLIGHT, b->kernels->name);
        printf("bare: token-layers a CPU second, GFLOP/s, share of the FMA peak\n"
               "rpc, shm: token-layers a second, calls a second, share of bare | CPU us a call, "
               "calls a "
               "CPU second, share of bare\n");
    }
    for (size_t i = 0; i < SY_COUNT_OF(shapes); i++) {
        if (!is_wanted(b, &shapes[i])) continue;
        open_shape(b, &shapes[i]);
        measure_shape(b);
        close_shape(b);
        remove_model(b);
    }
    if (b->json) printf("\n]\n");
    rmdir(b->dir);
    return 0;
}

int main(int argc, char **argv)
{
    bench b = {0};
    const char *kernels = NULL, *socket_path = NULL, *model_dir = NULL;
    int is_quick = 0;
    sy_error err;
    const sy_arg args[] = {
        {.name = "json",
         .help = "an array instead of a table",
         .kind = SY_ARG_FLAG,
         .out = &b.json},
        {.name = "quick", .help = "shorter runs", .kind = SY_ARG_FLAG, .out = &is_quick},
        {.name = "gate",
         .value = "HxE",
         .help = "only this one of the gates, as 2048x64",
         .kind = SY_ARG_STRING,
         .out = &b.only},
        {.name = "kernels",
         .value = "NAME",
         .help = "this implementation; default: the best",
         .kind = SY_ARG_STRING,
         .out = &kernels},
        {.name = "serve",
         .value = "SOCKET",
         .help = "be a server, until standard input ends",
         .kind = SY_ARG_STRING,
         .out = &socket_path},
        {.name = "model",
         .value = "DIR",
         .help = "of the server: its checkpoint",
         .kind = SY_ARG_STRING,
         .out = &model_dir},
    };
    sy_status st = sy_args_parse(argc, argv, args, SY_COUNT_OF(args), "bench_router [options]",
                                 NULL, 0, NULL, &err);

    if (st == SY_ECANCELLED) return 0;
    if (st == SY_OK) st = sy_kernels_choose(&b.kernels, kernels, &err);
    if (st != SY_OK) {
        fprintf(stderr, "bench_router: error: %s\n", err.message);
        return 2;
    }
    sy_log_open("bench_router", SY_LOG_WARN, 0);
    signal(SIGPIPE, SIG_IGN);
    if (socket_path != NULL && model_dir != NULL) return serve(model_dir, socket_path, kernels);
    b.seconds = is_quick ? 0.1 : 0.5;
    return run(&b);
}
