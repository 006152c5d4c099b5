/* guard_layer.c - layer calls over the three tiers, all in this process and joined by sockets as
 * always: a lane of the aggregator, a router, and two nodes that hold half of the experts each.
 *
 *  guard_layer                      proves that once warm a call allocates nothing in this system's
 *                                   own code, and does not depend on locks that others hold
 *  guard_layer --calls 1000 --rows 16 --no-check
 *                                   the same work for a profiler: how many calls, and of what size,
 *                                   depends on the arguments alone, and so does the checksum */
#include "agg_moe.h"
#include "guard_hooks.h"
#include "residency_fixture.h"
#include "router_work.h"
#include "sy_args.h"
#include "sy_hash.h"
#include "sy_log.h"

enum { NODES = 2 };

typedef struct guard {
    char dir[64];
    sy_model *model;
    const sy_model_desc *desc;
    host *node[NODES];
    router tier;
    sy_loop *router_loop, *loop; /* the second: of the aggregator's peers */
    sy_server *router_server;
    char router_address[64];
    agg_peers *peers;
    agg_moe_config config;
    agg_lane lane;
    uint32_t n_rows;
    float *x, *y; /* [T,H] */
    uint64_t *request;
    uint8_t *failed;
    uint64_t digest;
} guard;

/* ---- the tiers ---- */

static void open_router(guard *g)
{
    static const char *const any[] = {"127.0.0.1:0"};
    const sy_method method = {.path = "/switchyard.v1.Router/RouteStream",
                              .client_streams = 1,
                              .server_streams = 1,
                              .ctx = &g->tier,
                              .on_open = router_stream_open,
                              .on_message = router_route_message,
                              .on_end = router_stream_end};
    const sy_server_config config = {
        .addresses = any, .n_addresses = 1, .methods = &method, .n_methods = 1};
    sy_error err = {0};

    g->tier.model = g->model;
    g->tier.desc = g->desc;
    g->tier.kernels = sy_kernels_best();
    must(sy_model_checkpoint_hash(&g->tier.checkpoint_hash, g->model, &err), &err);
    must(sy_router_open(&g->tier.gates, g->model, g->tier.kernels, &err), &err);
    must(router_work_open(&g->tier, 1, &err), &err);
    must(sy_loop_open(&g->router_loop, "router"), &err);
    must(sy_server_open(&g->router_server, g->router_loop, &config, &err), &err);
    snprintf(g->router_address, sizeof(g->router_address), "127.0.0.1:%d",
             sy_server_port(g->router_server, 0));
}

/* Even experts on one node, odd ones on the other: every call has rows for both. */
static void place_all(guard *g)
{
    static const char *const value[NODES] = {"node-0/cpu:0", "node-1/cpu:0"};
    char field[64][16];
    const char *pairs[2 * 64 + 1] = {0};

    for (uint32_t e = 0; e < g->desc->n_experts; e++) {
        snprintf(field[e], sizeof(field[e]), "*/%u", e);
        pairs[2 * e] = field[e];
        pairs[2 * e + 1] = value[e % NODES];
    }
    for (int i = 0; i < NODES; i++) place_pairs(g->node[i], pairs);
    sy_snapshot *snapshot = snapshot_of(g->node[0], pairs);
    agg_peers_placement(g->peers, snapshot);
    sy_snapshot_unref(snapshot);
}

/* Shards are announced as they are loaded, in no particular order. */
static int has_its_half(const guard *g, const agg_view *view, uint32_t node)
{
    const uint32_t n_shards = g->desc->n_layers * g->desc->n_experts;

    for (uint32_t shard = node; shard < n_shards; shard += NODES)
        if (!agg_node_has(view->node[node], shard, 0)) return 0;
    return 1;
}

static int is_connected(const guard *g)
{
    agg_view *view = agg_peers_view(g->peers);
    int yes = view->n_routers == 1 && view->n_nodes == NODES;

    if (yes) yes = sy_peer_up(view->router[0]->peer);
    for (uint32_t i = 0; yes && i < view->n_nodes; i++)
        yes = sy_peer_up(view->node[i]->peer) && has_its_half(g, view, i);
    agg_view_unref(view);
    return yes;
}

static void open_lane(guard *g)
{
    sy_member node[NODES] = {0}, gate = {0};
    sy_error err = {0};

    must(sy_loop_open(&g->loop, "aggregator"), &err);
    must(agg_peers_open(&g->peers, g->model, (size_t)64 << 20, &err), &err);
    agg_peers_set_loop(g->peers, g->loop);
    for (int i = 0; i < NODES; i++) {
        snprintf(node[i].name, sizeof(node[i].name), "%s", g->node[i]->self.node);
        snprintf(node[i].address, sizeof(node[i].address), "%s", g->node[i]->address);
        snprintf(node[i].model, sizeof(node[i].model), "%s", sy_model_name(g->model));
    }
    snprintf(gate.name, sizeof(gate.name), "router-0");
    snprintf(gate.address, sizeof(gate.address), "%s", g->router_address);
    snprintf(gate.model, sizeof(gate.model), "%s", sy_model_name(g->model));
    agg_peers_members(g->peers, SY_MEMBER_NODE, node, NODES);
    agg_peers_members(g->peers, SY_MEMBER_ROUTER, &gate, 1);
    g->config = (agg_moe_config){.model = g->model,
                                 .kernels = sy_kernels_best(),
                                 .peers = g->peers,
                                 .peer_timeout_us = WAIT_US,
                                 .silent_us = WAIT_US};
    must(agg_lane_open(&g->lane, &g->config, &err), &err);
}

static void open_all(guard *g, uint32_t hidden)
{
    static const char *const name[NODES] = {"node-0", "node-1"};
    sy_synth_config config = olmoe_vectors();
    sy_error err = {0};

    config.options.recipe = SY_SYNTH_SCALED;
    config.hidden = hidden;
    config.head_dim = hidden / config.n_heads;
    snprintf(g->dir, sizeof(g->dir), "/tmp/sy-guard-XXXXXX");
    assert_non_null(mkdtemp(g->dir));
    must(sy_synth_write(g->dir, &config, &err), &err);
    must(sy_model_open(&g->model, g->dir, "small", &err), &err);
    g->desc = sy_model_describe(g->model);
    for (int i = 0; i < NODES; i++)
        g->node[i] = host_open(&(host_options){.name = name[i], .model = g->model});
    open_router(g);
    open_lane(g);
    place_all(g);
    wait_until(is_connected(g));
    g->x = malloc((size_t)g->n_rows * hidden * sizeof(float));
    g->y = malloc((size_t)g->n_rows * hidden * sizeof(float));
    g->request = calloc(g->n_rows, sizeof(*g->request));
    g->failed = calloc(g->n_rows, 1);
    assert_true(g->x != NULL && g->y != NULL && g->request != NULL && g->failed != NULL);
}

static void close_all(guard *g)
{
    agg_lane_close(&g->lane);
    agg_peers_close(g->peers);
    sy_loop_close(g->loop);
    sy_server_close(g->router_server, 0);
    router_work_close(&g->tier);
    sy_loop_close(g->router_loop);
    sy_router_close(g->tier.gates);
    for (int i = 0; i < NODES; i++) host_close(g->node[i]);
    model_remove(g->model);
    free(g->x);
    free(g->y);
    free(g->request);
    free(g->failed);
}

/* ---- calls ---- */

/* The n-th call's rows follow from n; its outputs go into the checksum. */
static void run_call(guard *g, uint32_t n)
{
    const size_t n_values = (size_t)g->n_rows * g->desc->hidden;
    const sy_moe moe = agg_lane_ops(&g->lane);
    sy_moe_call call = {.layer = n % g->desc->n_layers,
                        .n_rows = g->n_rows,
                        .request = g->request,
                        .x = g->x,
                        .y = g->y,
                        .deadline_us = sy_clock_us() + WAIT_US,
                        .failed = g->failed};

    for (size_t i = 0; i < n_values; i++)
        g->x[i] = sy_unit_float(sy_splitmix64(n * n_values + i)) - 0.5f;
    sy_error_clear(&call.error);
    const sy_status st = moe.layer(moe.ctx, &call);
    if (st != SY_OK || call.n_row_errors > 0) {
        /* Outside a test of cmocka's its messages are not printed. */
        fprintf(stderr, "a call failed: %s\n",
                st != SY_OK ? call.error.message : call.row_error[0].message);
        exit(1);
    }
    for (size_t i = 0; i < n_values; i++) {
        uint32_t bits;
        memcpy(&bits, &g->y[i], sizeof(bits));
        g->digest = sy_splitmix64(g->digest ^ bits);
    }
}

static int judge(const char *what, guard_kind kind, uint32_t n_calls, size_t n_max)
{
    const size_t n = guard_count(kind);

    printf("%s: %zu, %.2f a call%s\n", what, n, (double)n / n_calls,
           n > n_max ? ": TOO MANY, from" : "");
    if (n > 0) guard_print(kind);
    return n > n_max;
}

/* locks_max: found taken, a hundred calls; negative: nothing is judged. */
static int run(uint32_t n_calls, uint32_t n_rows, uint32_t hidden, int64_t locks_max)
{
    static guard g;
    int failed = 0;

    g.n_rows = n_rows;
    open_all(&g, hidden);
    for (uint32_t i = 0; i < n_calls; i++) run_call(&g, i); /* the warm-up: the very same calls */
    g.digest = 0;
    guard_begin();
    const int64_t begin_us = sy_clock_us();
    for (uint32_t i = 0; i < n_calls; i++) run_call(&g, i);
    const int64_t took_us = sy_clock_us() - begin_us;
    guard_end();
    printf("%u calls of %u rows of %u: %.1f us each; checksum %016llx\n", n_calls, n_rows, hidden,
           (double)took_us / n_calls, (unsigned long long)g.digest);
    if (locks_max >= 0) {
        const size_t contended_max = (size_t)locks_max * n_calls / 100;
        /* A pool grows by one when more of its buffers are out at once than ever before, which
         * depends on the threads' pace; what a call allocates comes a hundred times in a hundred.
         */
        failed |= judge("allocations", GUARD_ALLOCATION, n_calls, n_calls / 10);
        failed |= judge("locks found taken", GUARD_CONTENDED, n_calls, contended_max);
        (void)judge("sleeps on conditions", GUARD_SLEEP, n_calls, SIZE_MAX);
        (void)judge("wakes of conditions", GUARD_WAKE, n_calls, SIZE_MAX);
    }
    close_all(&g);
    return failed;
}

int main(int argc, char **argv)
{
    int64_t n_calls = 100, n_rows = 4, hidden = 64, locks_max = 600;
    int is_unchecked = 0;
    sy_error err;
    const sy_arg args[] = {
        {"calls", "N", "layer calls after the warm-up; default 100", SY_ARG_INT, &n_calls, 1,
         1000000},
        {"rows", "N", "of each call; default 4", SY_ARG_INT, &n_rows, 1, 4096},
        {"hidden", "N", "of the model; default 64", SY_ARG_INT, &hidden, 16, 8192},
        {"locks", "N",
         "that may be found taken in a hundred calls, by chance: about one a "
         "message, which may be reported as sent while its sender still has the call's; default "
         "600",
         SY_ARG_INT, &locks_max, 0, 10000},
        {"no-check", NULL, "count nothing and judge nothing", SY_ARG_FLAG, &is_unchecked, 0, 0},
    };
    const sy_status st = sy_args_parse(argc, argv, args, SY_COUNT_OF(args), "guard_layer [options]",
                                       NULL, 0, NULL, &err);

    if (st == SY_ECANCELLED) return 0;
    if (st != SY_OK) {
        fprintf(stderr, "guard_layer: error: %s\n", err.message);
        return 2;
    }
    sy_log_open("guard_layer", SY_LOG_WARN, 0);
    return run((uint32_t)n_calls, (uint32_t)n_rows, (uint32_t)hidden,
               is_unchecked ? -1 : locks_max);
}
