/* agg_main.c - switchyard-aggregator: options, the order in which parts open and close, readiness.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "aggregator.h"
#include "sy_log.h"

typedef struct agg_options {
    sy_service_options common;
    const char *router;
    int64_t running_max, queue_max, step_rows, kv_mb, peer_timeout_ms, layer_timeout_ms;
} agg_options;

static sy_status parse(agg_options *o, int argc, char **argv, sy_error *err)
{
    *o = (agg_options){.router = "remote",
                       .running_max = 64,
                       .queue_max = 1024,
                       .step_rows = 256,
                       .peer_timeout_ms = 10000,
                       .layer_timeout_ms = 30000};
    const sy_arg extra[] = {
        {"router", "WHERE",
         "remote: ask router replicas; inproc: compute the gate here, with the same bits",
         SY_ARG_STRING, &o->router, 0, 0},
        {"max-running", "N", "generations computed together", SY_ARG_INT, &o->running_max, 1, 4096},
        {"max-queue", "N", "generations that may wait for room", SY_ARG_INT, &o->queue_max, 1,
         1000000},
        {"step-rows", "N", "token rows a step: decode tokens first, then pieces of prompts",
         SY_ARG_INT, &o->step_rows, 1, 65536},
        {"kv-mb", "MB", "memory of the KV cache; 0: enough for max-running contexts, at most 1024",
         SY_ARG_INT, &o->kv_mb, 0, 1 << 20},
        {"peer-timeout-ms", "MS", "one attempt at one router or node, then another is tried",
         SY_ARG_INT, &o->peer_timeout_ms, 1, 3600000},
        {"layer-timeout-ms", "MS", "one layer with all its attempts", SY_ARG_INT,
         &o->layer_timeout_ms, 1, 3600000},
    };
    sy_status st = sy_service_parse(
        &o->common, argc, argv, "aggregator",
        "switchyard-aggregator --model DIR [options]\n\n"
        "The clients' door: runs the model's trunk, asks routers for experts and nodes for "
        "their outputs.",
        extra, SY_COUNT_OF(extra), err);
    if (st != SY_OK) return st;
    if (strcmp(o->router, "remote") != 0 && strcmp(o->router, "inproc") != 0)
        return sy_error_set(err, SY_EINVAL, "--router %s: remote or inproc", o->router);
    return SY_OK;
}

/* ---- callbacks of the control thread ---- */

static void on_placement(void *ctx, sy_snapshot *snapshot)
{
    aggregator *agg = ctx;

    agg_peers_placement(agg->peers, snapshot);
}

static void on_members(void *ctx, sy_member_kind kind, const sy_member *member, size_t n)
{
    aggregator *agg = ctx;

    agg_peers_set_loop(agg->peers, sy_service_loop(agg->service));
    agg_peers_members(agg->peers, kind, member, n);
}

static int ready(void *ctx, sy_strbuf *why)
{
    aggregator *agg = ctx;
    const size_t at = why->len;
    int yes;

    agg_peers_sweep(agg->peers);
    yes = agg_peers_ready(agg->peers, agg->inproc == NULL, why);
    pthread_mutex_lock(&agg->ready_mutex);
    agg->ready = yes;
    snprintf(agg->not_ready, sizeof(agg->not_ready), "%s", yes ? "" : why->data + at);
    pthread_mutex_unlock(&agg->ready_mutex);
    return yes;
}

/* The engine counts by itself; the metric follows. */
static void set_counter(const char *name, const char *help, uint64_t value)
{
    sy_metric *metric = sy_metric_counter(name, help, NULL);

    sy_metric_add(metric, (double)value - sy_metric_value(metric));
}

static void set_load_gauges(void *arg)
{
    const aggregator *agg = arg;
    sy_engine_load load;

    sy_engine_get_load(agg->engine, &load);
    sy_metric_set(
        sy_metric_gauge("switchyard_running_requests", "Generations being computed", NULL),
        load.running);
    sy_metric_set(
        sy_metric_gauge("switchyard_waiting_requests", "Generations waiting for room", NULL),
        load.waiting);
    sy_metric_set(sy_metric_gauge("switchyard_kv_free_pages", "Free pages of the KV cache", NULL),
                  load.kv_free_pages);
    sy_metric_set(sy_metric_gauge("switchyard_kv_pages", "Pages of the KV cache", NULL),
                  load.kv_pages);
    set_counter("switchyard_engine_steps_total", "Steps computed", load.steps);
    set_counter("switchyard_engine_rows_total", "Token rows computed", load.rows);
}

/* ---- opening and closing ---- */

static sy_status open_model(aggregator *agg, const agg_options *o, sy_error *err)
{
    const int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
    const unsigned threads =
        (unsigned)(o->common.threads > 0 ? o->common.threads : SY_MAX(cores, 1));
    sy_status st;

    SY_TRY(sy_kernels_choose(&agg->kernels, o->common.kernels, err));
    SY_TRY(sy_pool_open(&agg->pool, threads, "trunk"));
    SY_TRY(sy_model_open(&agg->model, o->common.model_dir, o->common.model_name, err));
    agg->desc = sy_model_describe(agg->model);
    SY_TRY(sy_tokenizer_open(&agg->tokenizer, o->common.model_dir, agg->desc->vocab, err));
    SY_TRY(sy_trunk_open(&agg->trunk, agg->model, agg->kernels, agg->pool, err));
    if (strcmp(o->router, "inproc") == 0)
        SY_TRY(sy_router_open(&agg->inproc, agg->model, agg->kernels, err));
    sy_log(SY_LOG_INFO, "model %s: trunk of %llu MB, kernels %s, %u threads",
           sy_model_name(agg->model), (unsigned long long)(sy_trunk_bytes(agg->trunk) >> 20),
           agg->kernels->name, threads);
out:
    return st;
}

static sy_status open_engine(aggregator *agg, const agg_options *o, sy_error *err)
{
    sy_status st;

    SY_TRY(agg_peers_open(&agg->peers, agg->model, (size_t)o->common.message_mb << 20, err));
    agg->layer_timeout_us = o->layer_timeout_ms * 1000;
    agg->moe_config = (agg_moe_config){.model = agg->model,
                                       .kernels = agg->kernels,
                                       .peers = agg->peers,
                                       .inproc = agg->inproc,
                                       .peer_timeout_us = o->peer_timeout_ms * 1000};
    SY_TRY(agg_lane_open(&agg->engine_lane, &agg->moe_config, err));
    const sy_engine_config config = {.trunk = agg->trunk,
                                     .tokenizer = agg->tokenizer,
                                     .moe = agg_lane_ops(&agg->engine_lane),
                                     .pool = agg->pool,
                                     .running_max = (uint32_t)o->running_max,
                                     .queue_max = (uint32_t)o->queue_max,
                                     .step_rows_max = (uint32_t)o->step_rows,
                                     .kv_bytes_max = (uint64_t)o->kv_mb << 20,
                                     .layer_timeout_us = agg->layer_timeout_us};
    SY_TRY(sy_engine_open(&agg->engine, &config, err));
    sy_metrics_on_render(set_load_gauges, agg);
    SY_TRY(agg_generate_open(agg, err));
    SY_TRY(agg_forward_open(agg, err));
out:
    return st;
}

static sy_status start(aggregator *agg, const agg_options *o, sy_error *err)
{
    static const char *const names[] = {"switchyard.v1.Aggregator"};
    const sy_method methods[] = {
        {.path = "/switchyard.v1.Aggregator/Generate",
         .server_streams = 1,
         .ctx = agg,
         .on_message = agg_generate_message,
         .on_end = agg_generate_end},
        {.path = "/switchyard.v1.Aggregator/Forward",
         .ctx = agg,
         .on_message = agg_forward_message},
        {.path = "/switchyard.v1.Aggregator/ForwardStream",
         .client_streams = 1,
         .server_streams = 1,
         .ctx = agg,
         .on_open = agg_forward_stream_open,
         .on_message = agg_forward_message},
        {.path = "/switchyard.v1.Aggregator/ListModels",
         .ctx = agg,
         .on_message = agg_models_message},
    };
    const sy_service_config config = {.tier = "aggregator",
                                      .kind = SY_MEMBER_AGGREGATOR,
                                      .structure_hash = sy_model_structure_hash(agg->model),
                                      .server = {.methods = methods,
                                                 .n_methods = SY_COUNT_OF(methods),
                                                 .service_names = names,
                                                 .n_service_names = 1,
                                                 .send_queue_max = 4096,
                                                 .error_details = sy_wire_error_details},
                                      .control = {.layers = agg->desc->n_layers,
                                                  .experts = agg->desc->n_experts,
                                                  .watch_nodes = 1,
                                                  .watch_routers = 1,
                                                  .ctx = agg,
                                                  .on_placement = on_placement,
                                                  .on_members = on_members},
                                      .model = sy_model_name(agg->model),
                                      .ready = ready};

    return sy_service_start(&agg->service, &o->common, &config, err);
}

/* In reverse: the server is drained already, so nothing new arrives; the engine ends its sequences;
 * peers go before the loop, and the control plane before the peers that it feeds. */
static void close_all(aggregator *agg)
{
    agg_generate_close(agg);
    agg_forward_close(agg);
    sy_engine_close(agg->engine);
    sy_service_stop_control(agg->service);
    if (agg->engine_lane.fanout != NULL) agg_lane_close(&agg->engine_lane);
    agg_peers_close(agg->peers);
    sy_service_close(agg->service);
    sy_router_close(agg->inproc);
    sy_trunk_close(agg->trunk);
    sy_tokenizer_close(agg->tokenizer);
    sy_model_close(agg->model);
    sy_pool_free(agg->pool);
    pthread_mutex_destroy(&agg->ready_mutex);
}

int main(int argc, char **argv)
{
    static aggregator agg;
    agg_options options;
    sy_error err = {0};
    sy_status st;

    sy_service_init();
    sy_error_clear(&err);
    pthread_mutex_init(&agg.ready_mutex, NULL);
    SY_TRY(parse(&options, argc, argv, &err));
    SY_TRY(open_model(&agg, &options, &err));
    SY_TRY(open_engine(&agg, &options, &err));
    SY_TRY(start(&agg, &options, &err));
    sy_service_wait(agg.service);
out:
    close_all(&agg);
    return st == SY_OK ? 0 : sy_service_exit_code(&err, "switchyard-aggregator");
}
