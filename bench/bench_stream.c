/* bench_stream.c - what a message costs through lib/rpc, beside the same bytes over a bare socket
 * in the same run. Servers are processes of their own (this program again, with --serve), so that
 * every exchange crosses the kernel as it does between the tiers. Columns:
 *
 *  raw        write, read: no gRPC (bench_echo)
 *  stream     one request in flight, the next one sent from the callback of the last
 *  fan-out    the same from a thread that sleeps until the answer is there: what a layer call pays
 *  fan-out 2  two servers asked at once, as when a layer's experts are on two nodes
 *  8 in flight: messages a second
 *
 * and then the exchanges of a layer call, in the sizes that its rows have: one with a router, and
 * one with two nodes at once. Their sum is what a layer call over three tiers cannot go below. */
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_echo.h"
#include "bench_limits.h"
#include "bench_stats.h"
#include "sy_args.h"
#include "sy_clock.h"
#include "sy_log.h"
#include "sy_rpc.h"

#define STREAM_PATH "/switchyard.bench.Echo/Stream"
#define N_SERVERS   2
#define IN_FLIGHT   8
#define ROUNDS_MAX  5
#define HEAD_BYTES                                                                \
    16 /* a message begins with its id and the length of the answer, 8 bytes each \
        */
#define BYTES_MAX ((size_t)16 << 20)
#define WAIT_US   ((int64_t)10 * 1000000)

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "bench_stream: error: %s\n", what);
    exit(1); /* the servers end when their standard input does */
}

/* ---- the server ---- */

typedef struct lengths { /* of a request and of its answer */
    size_t sent, back;
} lengths;

static void copy_out(void *out, const sy_msg *msg, size_t bytes)
{
    size_t n, at = 0;
    const sy_iov *iov = sy_msg_iov(msg, &n);

    for (size_t i = 0; i < n && at < bytes; i++) {
        const size_t part = SY_MIN(iov[i].len, bytes - at);
        memcpy((char *)out + at, iov[i].data, part);
        at += part;
    }
}

static size_t answer_bytes(const sy_msg *msg)
{
    uint64_t head[2] = {0, 0};

    copy_out(head, msg, sizeof(head));
    return SY_MIN((size_t)head[1], BYTES_MAX);
}

/* An echo: cut, or followed by whatever was in the memory, when another length is asked for. */
static void echo_message(void *ctx, sy_call *call, sy_msg *msg)
{
    const size_t bytes = answer_bytes(msg);
    sy_buf *buf = sy_buf_alloc(bytes);
    sy_frame frame;

    (void)ctx;
    if (buf == NULL) return; /* the client waits in vain, and says so */
    copy_out(buf->data, msg, bytes);
    sy_frame_init(&frame);
    if (sy_frame_add(&frame, buf, buf->data, bytes) == SY_OK) (void)sy_call_send(call, &frame);
    sy_buf_unref(buf);
}

/* Serves on a Unix socket and on a free port, which goes to stdout, until stdin ends. */
static int serve(const char *socket_path)
{
    char unix_address[256];
    const char *const addresses[] = {unix_address, "127.0.0.1:0"};
    const sy_method method = {
        .path = STREAM_PATH, .client_streams = 1, .server_streams = 1, .on_message = echo_message};
    const sy_server_config config = {
        .addresses = addresses, .n_addresses = 2, .methods = &method, .n_methods = 1};
    sy_loop *loop;
    sy_server *server;
    sy_error err;
    char byte;

    snprintf(unix_address, sizeof(unix_address), "unix:%s", socket_path);
    if (sy_loop_open(&loop, "echo") != SY_OK) give_up("no loop");
    if (sy_server_open(&server, loop, &config, &err) != SY_OK) give_up(err.message);
    printf("%d\n", sy_server_port(server, 1));
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
    sy_server_close(server, 0);
    sy_loop_close(loop);
    return 0;
}

typedef struct server {
    pid_t pid;
    int stdin_fd;
    char address[BENCH_N_TRANSPORTS][128];
} server;

static void start_server(server *s, const char *dir, int index)
{
    char path[96], serve_option[] = "--serve", name[] = "bench_stream";
    char *argv[] = {name, serve_option, path, NULL};
    posix_spawn_file_actions_t files;
    char line[32];
    int in[2], out[2];

    snprintf(path, sizeof(path), "%s/%d.sock", dir, index);
    /* Closed in every child: a server whose standard input another one holds never sees its end. */
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) give_up("no pipe");
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
    if (posix_spawn(&s->pid, "/proc/self/exe", &files, NULL, argv, environ) != 0)
        give_up("cannot start a server");
    posix_spawn_file_actions_destroy(&files);
    close(in[0]);
    close(out[1]);
    s->stdin_fd = in[1];
    FILE *port_file = fdopen(out[0], "r");
    if (port_file == NULL || fgets(line, sizeof(line), port_file) == NULL)
        give_up("a server did not start");
    const long port = strtol(line, NULL, 10);
    fclose(port_file);
    snprintf(s->address[BENCH_UNIX], sizeof(s->address[0]), "unix:%s", path);
    snprintf(s->address[BENCH_TCP], sizeof(s->address[0]), "127.0.0.1:%ld", port);
}

static void stop_server(server *s)
{
    close(s->stdin_fd);
    waitpid(s->pid, NULL, 0);
    unlink(s->address[BENCH_UNIX] + strlen("unix:"));
}

/* ---- messages ---- */

typedef struct bench {
    sy_loop *loop;
    sy_fanout *fanout;
    sy_peer *peer[BENCH_N_TRANSPORTS][N_SERVERS];
    bench_echo raw[BENCH_N_TRANSPORTS];
    sy_buf *payload; /* of every message, by reference, as hidden rows are sent */
    double seconds;  /* a figure, a round */
    int rounds;
} bench;

static uint64_t id_of(const sy_iov *iov, size_t n)
{
    unsigned char bytes[8];
    uint64_t id;
    size_t at = 0;

    for (size_t i = 0; i < n && at < sizeof(bytes); i++) {
        const size_t part = SY_MIN(iov[i].len, sizeof(bytes) - at);
        memcpy(bytes + at, iov[i].data, part);
        at += part;
    }
    if (at < sizeof(bytes)) return 0;
    memcpy(&id, bytes, sizeof(id));
    return id;
}

static void make_frame(sy_frame *frame, const bench *b, uint64_t id, lengths size)
{
    const uint64_t words[] = {id, size.back};
    sy_buf *head = sy_buf_alloc(HEAD_BYTES);

    if (head == NULL) give_up("no memory");
    memcpy(head->data, words, HEAD_BYTES);
    sy_frame_init(frame);
    if (sy_frame_add(frame, head, head->data, HEAD_BYTES) != SY_OK ||
        (size.sent > HEAD_BYTES &&
         sy_frame_add(frame, b->payload, b->payload->data, size.sent - HEAD_BYTES) != SY_OK))
        give_up("no room in a frame");
    sy_buf_unref(head);
}

static int payload_is_back(const bench *b, const sy_msg *msg, lengths size)
{
    const size_t same_bytes = SY_MIN(size.sent, size.back);
    unsigned char *back = malloc(size.back);
    int same = back != NULL && sy_msg_len(msg) == size.back;

    if (same) copy_out(back, msg, size.back);
    same = same && memcmp(back + HEAD_BYTES, b->payload->data, same_bytes - HEAD_BYTES) == 0;
    free(back);
    return same;
}

/* ---- the thread that waits ---- */

static double fan_out(bench *b, bench_transport transport, size_t n_servers, lengths size,
                      int is_checked)
{
    const double start_s = bench_now_s();
    sy_frame frame;

    sy_fanout_reset(b->fanout);
    for (size_t i = 0; i < n_servers; i++) {
        const uint64_t id = sy_peer_next_id(b->peer[transport][i]);
        make_frame(&frame, b, id, size);
        sy_fanout_send(b->fanout, b->peer[transport][i], id, &frame);
    }
    sy_fanout_wait(b->fanout, sy_clock_us() + WAIT_US);
    const double seconds = bench_now_s() - start_s;
    for (size_t i = 0; i < n_servers; i++) {
        const sy_fanout_slot *slot = sy_fanout_at(b->fanout, i);
        if (slot->status != SY_OK) give_up(slot->err.message);
        if (is_checked && !payload_is_back(b, slot->msg, size)) give_up("the echo differs");
    }
    return seconds;
}

static void time_fan_out(bench_samples *out, bench *b, bench_transport transport, size_t n_servers,
                         lengths size)
{
    out->n = 0;
    for (const double end_s = bench_now_s() + b->seconds; bench_now_s() < end_s;)
        bench_samples_add(out, fan_out(b, transport, n_servers, size, 0));
}

/* ---- the chain of callbacks; all on the loop's thread ---- */

typedef struct chain {
    bench *b;
    sy_peer *peer;
    lengths size;
    size_t in_flight, n_messages;
    bench_samples *samples; /* NULL: only counted */
    double sent_s, begin_s, end_s;
    sem_t done;
} chain;

static void chain_reply(void *arg, uint64_t id, sy_msg *msg, const sy_error *err);

static void chain_send(chain *c)
{
    const uint64_t id = sy_peer_next_id(c->peer);
    sy_frame frame;

    make_frame(&frame, c->b, id, c->size);
    c->sent_s = bench_now_s();
    c->in_flight++;
    if (sy_peer_send(c->peer, id, &frame, chain_reply, c) != SY_OK) give_up("a send was refused");
}

static void chain_reply(void *arg, uint64_t id, sy_msg *msg, const sy_error *err)
{
    chain *c = arg;
    const double now_s = bench_now_s();

    (void)id;
    if (msg == NULL) give_up(err->message);
    if (c->samples != NULL) bench_samples_add(c->samples, now_s - c->sent_s);
    c->n_messages++;
    c->in_flight--;
    if (now_s < c->end_s) {
        chain_send(c);
    } else if (c->in_flight == 0) {
        c->end_s = now_s;
        sem_post(&c->done);
    }
}

static void chain_begin_one(void *arg)
{
    chain_send(arg);
}

/* Messages a second with so many in flight; their round trips to `samples` when it is not NULL,
 * which makes sense for one in flight only. */
static double run_chain(bench *b, sy_peer *peer, lengths size, int in_flight,
                        bench_samples *samples)
{
    chain c = {.b = b, .peer = peer, .size = size, .samples = samples};

    if (samples != NULL) samples->n = 0;
    sem_init(&c.done, 0, 0);
    c.begin_s = bench_now_s();
    c.end_s = c.begin_s + b->seconds;
    for (int i = 0; i < in_flight; i++)
        if (sy_loop_post(b->loop, chain_begin_one, &c) != SY_OK) give_up("the loop takes nothing");
    while (sem_wait(&c.done) != 0) {
    }
    sem_destroy(&c.done);
    return (double)c.n_messages / (c.end_s - c.begin_s);
}

/* ---- figures ---- */

enum column { RAW, STREAM, FAN_OUT, FAN_OUT_2, N_COLUMNS };
static const char *const column_names[N_COLUMNS] = {"raw", "stream", "fan_out", "fan_out_2"};

typedef struct row {
    double p50_us[N_COLUMNS], p99_us[N_COLUMNS];
    double messages_per_s; /* 8 in flight */
} row;

static void time_raw(bench_samples *out, bench *b, bench_transport transport, size_t bytes)
{
    static unsigned char sent[BENCH_ECHO_BYTES_MAX], back[BENCH_ECHO_BYTES_MAX];

    out->n = 0;
    for (const double end_s = bench_now_s() + b->seconds; bench_now_s() < end_s;) {
        const double start_s = bench_now_s();
        if (!bench_echo_exchange(&b->raw[transport], sent, back, bytes))
            give_up("the bare socket's other end is gone");
        bench_samples_add(out, bench_now_s() - start_s);
    }
}

/* Every column in turn, round after round, so that a noisy minute hits them all; then the median of
 * the rounds. */
static row measure(bench *b, bench_transport transport, size_t bytes)
{
    static bench_samples samples;
    const lengths size = {bytes, bytes};
    double p50[N_COLUMNS][ROUNDS_MAX], p99[N_COLUMNS][ROUNDS_MAX], rate[ROUNDS_MAX];
    row r;

    fan_out(b, transport, N_SERVERS, size, 1);
    for (int i = 0; i < b->rounds; i++) {
        for (int column = 0; column < N_COLUMNS; column++) {
            switch (column) {
            case RAW: time_raw(&samples, b, transport, bytes); break;
            case STREAM: run_chain(b, b->peer[transport][0], size, 1, &samples); break;
            case FAN_OUT: time_fan_out(&samples, b, transport, 1, size); break;
            default: time_fan_out(&samples, b, transport, N_SERVERS, size); break;
            }
            p50[column][i] = bench_quantile(samples.value, samples.n, 0.5) * 1e6;
            p99[column][i] = bench_quantile(samples.value, samples.n, 0.99) * 1e6;
        }
        rate[i] = run_chain(b, b->peer[transport][0], size, IN_FLIGHT, NULL);
    }
    for (int column = 0; column < N_COLUMNS; column++) {
        r.p50_us[column] = bench_quantile(p50[column], (size_t)b->rounds, 0.5);
        r.p99_us[column] = bench_quantile(p99[column], (size_t)b->rounds, 0.5);
    }
    r.messages_per_s = bench_quantile(rate, (size_t)b->rounds, 0.5);
    return r;
}

static void print_json(const row *r, bench_transport transport, size_t bytes, int is_first)
{
    printf("%s\n  {\"transport\": \"%s\", \"bytes\": %zu", is_first ? "" : ",",
           bench_transport_names[transport], bytes);
    for (int c = 0; c < N_COLUMNS; c++)
        printf(", \"%s_p50_us\": %.1f, \"%s_p99_us\": %.1f", column_names[c], r->p50_us[c],
               column_names[c], r->p99_us[c]);
    printf(", \"stream_to_raw\": %.2f, \"fan_out_to_raw\": %.2f, \"messages_per_s_8\": %.0f, "
           "\"gbps_8\": %.3f}",
           r->p50_us[STREAM] / r->p50_us[RAW], r->p50_us[FAN_OUT] / r->p50_us[RAW],
           r->messages_per_s, r->messages_per_s * (double)bytes * 1e-9);
}

static void print_line(const row *r, bench_transport transport, size_t bytes)
{
    printf("%-5s %7zu", bench_transport_names[transport], bytes);
    for (int c = 0; c < N_COLUMNS; c++) printf(" %7.1f %7.1f", r->p50_us[c], r->p99_us[c]);
    printf(" %6.2f %6.2f %9.0f %7.3f\n", r->p50_us[STREAM] / r->p50_us[RAW],
           r->p50_us[FAN_OUT] / r->p50_us[RAW], r->messages_per_s,
           r->messages_per_s * (double)bytes * 1e-9);
    fflush(stdout);
}

static void measure_all(bench *b, int is_json)
{
    static const size_t sizes[] = {HEAD_BYTES, 4096, 32768, 262144};

    if (is_json) {
        printf("[");
    } else {
        printf("round trips in us, p50 and p99; ratios of p50 to raw; 8 in flight\n");
        printf("%-5s %7s %15s %15s %15s %15s %6s %6s %9s %7s\n", "", "bytes", "raw", "stream",
               "fan-out", "fan-out 2", "stream", "f-out", "msg/s", "GB/s");
    }
    for (int t = 0; t < BENCH_N_TRANSPORTS; t++)
        for (size_t i = 0; i < SY_COUNT_OF(sizes); i++) {
            const row r = measure(b, (bench_transport)t, sizes[i]);
            if (is_json) {
                print_json(&r, (bench_transport)t, sizes[i], t == 0 && i == 0);
            } else {
                print_line(&r, (bench_transport)t, sizes[i]);
            }
        }
    if (is_json) printf("\n]\n");
}

/* ---- the exchanges of a layer call ---- */

typedef struct layer_shape {
    const char *name;
    size_t hidden, top_k;
} layer_shape;

/* p50 in us of a round trip through callbacks, and of the fan-out to n_servers. */
typedef struct exchange {
    double stream_us, fan_out_us;
} exchange;

static exchange measure_exchange(bench *b, size_t n_servers, lengths size)
{
    static bench_samples samples;
    double stream[ROUNDS_MAX], fan[ROUNDS_MAX];

    fan_out(b, BENCH_UNIX, n_servers, size, 1);
    for (int i = 0; i < b->rounds; i++) {
        run_chain(b, b->peer[BENCH_UNIX][0], size, 1, &samples);
        stream[i] = bench_quantile(samples.value, samples.n, 0.5) * 1e6;
        time_fan_out(&samples, b, BENCH_UNIX, n_servers, size);
        fan[i] = bench_quantile(samples.value, samples.n, 0.5) * 1e6;
    }
    return (exchange){bench_quantile(stream, (size_t)b->rounds, 0.5),
                      bench_quantile(fan, (size_t)b->rounds, 0.5)};
}

static void measure_layer(bench *b, const layer_shape *shape, size_t n_rows, int is_json,
                          int is_first)
{
    const size_t row_bytes = shape->hidden * sizeof(float);
    const lengths to_router = {HEAD_BYTES + n_rows * row_bytes,
                               HEAD_BYTES +
                                   n_rows * shape->top_k * 6}; /* an id and a weight each */
    const lengths to_node = {HEAD_BYTES + n_rows * row_bytes,
                             HEAD_BYTES + n_rows * shape->top_k * row_bytes / N_SERVERS};
    const exchange route = measure_exchange(b, 1, to_router);
    const exchange dispatch = measure_exchange(b, N_SERVERS, to_node);
    const double sum_us = route.fan_out_us + dispatch.fan_out_us;

    if (is_json)
        printf("%s\n  {\"layer\": \"%s\", \"rows\": %zu, \"route_stream_p50_us\": %.1f, "
               "\"route_fan_out_p50_us\": %.1f, \"dispatch_stream_p50_us\": %.1f, "
               "\"dispatch_fan_out_2_p50_us\": %.1f, \"layer_p50_us\": %.1f}",
               is_first ? "[" : ",", shape->name, n_rows, route.stream_us, route.fan_out_us,
               dispatch.stream_us, dispatch.fan_out_us, sum_us);
    else
        printf("%-6s %5zu %8zu %8zu %8.1f %8.1f %8zu %8zu %8.1f %9.1f %9.1f\n", shape->name, n_rows,
               to_router.sent, to_router.back, route.stream_us, route.fan_out_us, to_node.sent,
               to_node.back, dispatch.stream_us, dispatch.fan_out_us, sum_us);
    fflush(stdout);
}

static void measure_layers(bench *b, int is_json)
{
    static const layer_shape shapes[] = {{"trio", 192, 2}, {"olmoe", 2048, 8}};
    static const size_t rows[] = {1, 16, 256};

    if (!is_json)
        printf("\nexchanges of a layer call, Unix sockets: bytes there and back, p50 in us\n"
               "%-6s %5s %35s %45s\n%12s %8s %8s %8s %8s %8s %8s %8s %9s %9s\n",
               "", "rows", "router", "two nodes", "", "bytes", "back", "stream", "fan-out", "bytes",
               "back", "stream", "fan-out 2", "sum");
    for (size_t i = 0; i < SY_COUNT_OF(shapes); i++)
        for (size_t k = 0; k < SY_COUNT_OF(rows); k++)
            measure_layer(b, &shapes[i], rows[k], is_json, i == 0 && k == 0);
    if (is_json) printf("\n]\n");
}

static void connect_all(bench *b, const server *servers)
{
    const int64_t give_up_us = sy_clock_us() + WAIT_US;
    sy_error err;

    if (sy_loop_open(&b->loop, "bench") != SY_OK) give_up("no loop");
    for (int t = 0; t < BENCH_N_TRANSPORTS; t++)
        for (int i = 0; i < N_SERVERS; i++) {
            const sy_peer_config config = {.name = "echo",
                                           .address = servers[i].address[t],
                                           .stream_path = STREAM_PATH,
                                           .reply_id = id_of};
            if (sy_peer_open(&b->peer[t][i], b->loop, &config, &err) != SY_OK) give_up(err.message);
            while (!sy_peer_up(b->peer[t][i])) {
                if (sy_clock_us() > give_up_us) give_up("a server does not answer");
                usleep(1000);
            }
        }
    if (sy_fanout_open(&b->fanout, N_SERVERS) != SY_OK ||
        (b->payload = sy_buf_alloc(BYTES_MAX)) == NULL)
        give_up("no memory");
    for (size_t i = 0; i < BYTES_MAX; i++)
        ((unsigned char *)b->payload->data)[i] = (unsigned char)(i * 131 >> 3);
}

static void close_all(bench *b)
{
    sy_fanout_free(b->fanout);
    for (int t = 0; t < BENCH_N_TRANSPORTS; t++)
        for (int i = 0; i < N_SERVERS; i++) sy_peer_close(b->peer[t][i]);
    sy_loop_close(b->loop);
    sy_buf_unref(b->payload);
    for (int t = 0; t < BENCH_N_TRANSPORTS; t++) bench_echo_close(&b->raw[t]);
}

int main(int argc, char **argv)
{
    bench b = {0};
    server servers[N_SERVERS];
    char dir[] = "/tmp/bench-stream-XXXXXX";
    const char *socket_path = NULL;
    int is_json = 0, is_quick = 0, is_layers = 0;
    sy_error err;
    const sy_arg args[] = {
        {.name = "json",
         .help = "an array instead of a table",
         .kind = SY_ARG_FLAG,
         .out = &is_json},
        {.name = "layers",
         .help = "only the exchanges of a layer call; with --json they come no other way",
         .kind = SY_ARG_FLAG,
         .out = &is_layers},
        {.name = "quick", .help = "shorter runs", .kind = SY_ARG_FLAG, .out = &is_quick},
        {.name = "serve",
         .value = "SOCKET",
         .help = "be a server, until standard input ends",
         .kind = SY_ARG_STRING,
         .out = &socket_path},
    };
    const sy_status st = sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                                       "bench_stream [options]", NULL, 0, NULL, &err);

    if (st == SY_ECANCELLED) return 0;
    if (st != SY_OK) {
        fprintf(stderr, "bench_stream: error: %s\n", err.message);
        return 2;
    }
    sy_log_open("bench_stream", SY_LOG_WARN, 0);
    signal(SIGPIPE, SIG_IGN);
    if (socket_path != NULL) return serve(socket_path);
    b.rounds = is_quick ? 3 : ROUNDS_MAX;
    b.seconds = is_quick ? 0.06 : 0.3;
    for (int t = 0; t < BENCH_N_TRANSPORTS; t++) /* they fork: before gRPC, and any thread */
        if (!bench_echo_open(&b.raw[t], (bench_transport)t)) return 1;
    if (mkdtemp(dir) == NULL) give_up("no temporary folder");
    for (int i = 0; i < N_SERVERS; i++) start_server(&servers[i], dir, i);
    connect_all(&b, servers);
    if (!is_layers) measure_all(&b, is_json);
    if (is_layers || !is_json) measure_layers(&b, is_json);
    close_all(&b);
    for (int i = 0; i < N_SERVERS; i++) stop_server(&servers[i]);
    rmdir(dir);
    return 0;
}
