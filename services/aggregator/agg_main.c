/* agg_main.c - switchyard-aggregator: options, the order in which parts open and close, readiness.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agg_http.h"
#include "agg_trunk.h"
#include "aggregator.h"
#include "sy_log.h"
#include "sy_precision_text.h"
#include "sy_shard.h"

typedef struct agg_options {
    sy_service_options common;
    agg_trunk_options trunk;
    const char *router, *routers, *hedge, *verify_weights, *shared_memory, *wire_rows;
    const char *weights, *activations, *expert_weights, *expert_activations, *expert_arithmetic;
    sy_precision precision, expert_precision; /* what those say */
    int64_t running_max, queue_max, step_rows, prompt_rows, overlap_rows, kv_mb, peer_timeout_ms,
        layer_timeout_ms;
    int64_t slow_min_ms, slow_max_ms, silent_ms, grace_ms, shared_memory_mb;
    double slow_factor, hedge_share, shadow_share;
} agg_options;

/* ---- options ---- */

static sy_status check_switch(const char *name, const char *value, sy_error *err)
{
    if (strcmp(value, "on") == 0 || strcmp(value, "off") == 0) return SY_OK;
    return sy_error_set(err, SY_EINVAL, "--%s %s: on or off", name, value);
}

static sy_status check_share(const char *name, double value, sy_error *err)
{
    if (value >= 0 && value <= 1) return SY_OK;
    return sy_error_set(err, SY_EINVAL, "--%s %g: from 0 to 1", name, value);
}

/* Nodes are expected to be as this process is, unless their options are given here as well. */
static sy_status read_precisions(agg_options *o, sy_error *err)
{
    const char *like_own;
    sy_precision experts;
    sy_status st;

    SY_TRY(sy_precision_parse(&o->precision, o->weights, o->activations, err));
    like_own = o->activations;
    if (o->expert_weights != NULL &&
        sy_precision_parse(&experts, o->expert_weights, o->activations, err) != SY_OK)
        like_own = "f32"; /* the trunk's do not go with these weights */
    sy_error_clear(err);
    st = sy_precision_parse(&o->expert_precision,
                            o->expert_weights == NULL ? o->weights : o->expert_weights,
                            o->expert_activations == NULL ? like_own : o->expert_activations, err);
    if (st != SY_OK) sy_error_prefix(err, "--expert-weights, --expert-activations");
out:
    return st;
}

static sy_status read_arithmetic(agg_options *o, sy_error *err)
{
    const char *of_cpus = sy_arithmetic_name(o->expert_precision.activations);

    if (o->expert_arithmetic == NULL) o->expert_arithmetic = of_cpus;
    if (o->expert_arithmetic[0] == '\0' ||
        strlen(o->expert_arithmetic) >= sizeof(((sy_member *)0)->arithmetic))
        return sy_error_set(err, SY_EINVAL,
                            "--expert-arithmetic: a name of 1 to %zu characters, as a node "
                            "announces it",
                            sizeof(((sy_member *)0)->arithmetic) - 1);
    if (o->expert_activations != NULL && strcmp(o->expert_arithmetic, of_cpus) != 0)
        return sy_error_set(err, SY_EINVAL,
                            "--expert-activations are what CPUs compute with (%s): not together "
                            "with --expert-arithmetic %s",
                            of_cpus, o->expert_arithmetic);
    return SY_OK;
}

static sy_status check(agg_options *o, sy_error *err)
{
    sy_status st;

    if (strcmp(o->router, "remote") != 0 && strcmp(o->router, "inproc") != 0 &&
        strcmp(o->router, "fallback") != 0)
        return sy_error_set(err, SY_EINVAL, "--router %s: remote, inproc or fallback", o->router);
    SY_TRY(read_precisions(o, err));
    SY_TRY(read_arithmetic(o, err));
    if (strcmp(o->wire_rows, "f32") != 0 && strcmp(o->wire_rows, "bf16") != 0)
        return sy_error_set(err, SY_EINVAL, "--wire-rows %s: f32 or bf16", o->wire_rows);
    SY_TRY(check_switch("hedge", o->hedge, err));
    SY_TRY(check_switch("verify-weights", o->verify_weights, err));
    SY_TRY(check_switch("shared-memory", o->shared_memory, err));
    SY_TRY(check_share("hedge-share", o->hedge_share, err));
    SY_TRY(check_share("shadow-share", o->shadow_share, err));
    if (!(o->slow_factor >= 1 && o->slow_factor <= 1000))
        return sy_error_set(err, SY_EINVAL, "--slow-factor %g: from 1 to 1000", o->slow_factor);
    if (o->slow_min_ms > o->slow_max_ms)
        return sy_error_set(err, SY_EINVAL, "--slow-min-ms %lld is more than --slow-max-ms %lld",
                            (long long)o->slow_min_ms, (long long)o->slow_max_ms);
out:
    return st;
}

/* A process has one set of options, so the table can be a constant; these are the defaults. */
static agg_options options = {.trunk = {.device = "cpu:0", .timeout_s = 10, .exit_s = 5},
                              .router = "remote",
                              .weights = "as-stored",
                              .activations = "f32",
                              .hedge = "on",
                              .verify_weights = "on",
                              .shared_memory = "on",
                              .shared_memory_mb = 64,
                              .wire_rows = "f32",
                              .running_max = 64,
                              .queue_max = 1024,
                              .step_rows = 512,
                              .prompt_rows = 64,
                              .overlap_rows = -1,
                              .peer_timeout_ms = 10000,
                              .layer_timeout_ms = 30000,
                              .slow_min_ms = 30,
                              .slow_max_ms = 150,
                              .silent_ms = 600,
                              .grace_ms = 500,
                              .slow_factor = 4,
                              .hedge_share = 0.1,
                              .shadow_share = 1};

static const sy_arg option_table[] = {
    {"router", "WHERE",
     "remote: ask router replicas; inproc: compute the gate here, with the same bits; "
     "fallback: ask, and compute here when no replica answers",
     SY_ARG_STRING, &options.router, 0, 0},
    {"routers", "LIST",
     "routers that have no lease: dns:///NAME:PORT, HOST:PORT or unix:/PATH, separated by "
     "commas",
     SY_ARG_STRING, &options.routers, 0, 0},
    {"weights", "FORMAT", SY_WEIGHTS_HELP, SY_ARG_STRING, &options.weights, 0, 0},
    {"activations", "TYPE", SY_ACTIVATIONS_HELP, SY_ARG_STRING, &options.activations, 0, 0},
    {"trunk-device", "NAME",
     "where the model without its experts is computed: cpu:0, or a GPU, such as cuda:0 (switchyard "
     "devices lists them); default cpu:0",
     SY_ARG_STRING, &options.trunk.device, 0, 0},
    {"device-timeout-s", "S", "a GPU that does not finish a layer in this time is lost; default 10",
     SY_ARG_INT, &options.trunk.timeout_s, 1, 3600},
    {"device-exit-s", "S",
     "an aggregator that has lost its GPU is not ready, and ends so long after with exit code 3; "
     "default 5",
     SY_ARG_INT, &options.trunk.exit_s, 0, 86400},
    {"expert-weights", "FORMAT",
     "the --weights of expert nodes, if they are others than here: nodes whose weights are "
     "others are refused",
     SY_ARG_STRING, &options.expert_weights, 0, 0},
    {"expert-activations", "TYPE", "the same for their --activations", SY_ARG_STRING,
     &options.expert_activations, 0, 0},
    {"expert-arithmetic", "NAME",
     "what expert nodes on GPUs announce, such as bf16-mma/1:sm_90 (switchyard devices tells): "
     "nodes of another arithmetic are refused; default: that of CPUs",
     SY_ARG_STRING, &options.expert_arithmetic, 0, 0},
    {"max-running", "N", "generations computed together", SY_ARG_INT, &options.running_max, 1,
     4096},
    {"max-queue", "N", "generations that may wait for room", SY_ARG_INT, &options.queue_max, 1,
     1000000},
    {"step-rows", "N", "token rows a step: decode tokens first, then pieces of prompts", SY_ARG_INT,
     &options.step_rows, 1, 65536},
    {"prompt-rows", "N",
     "of these for prompts while others decode, who wait for the whole step; 0: all that are "
     "left",
     SY_ARG_INT, &options.prompt_rows, 0, 65536},
    {"overlap-rows", "N",
     "a step of so many rows is computed as two halves, one with the experts while the other "
     "is in attention; 0: none is; -1: what each half needs so that reading an expert's "
     "weights twice costs nothing",
     SY_ARG_INT, &options.overlap_rows, -1, 65536},
    {"kv-mb", "MB", "memory of the KV cache; 0: enough for max-running contexts, at most 1024",
     SY_ARG_INT, &options.kv_mb, 0, 1 << 20},
    {"peer-timeout-ms", "MS", "one attempt at a router or node that nobody can stand in for",
     SY_ARG_INT, &options.peer_timeout_ms, 1, 3600000},
    {"layer-timeout-ms", "MS", "one layer with all its attempts", SY_ARG_INT,
     &options.layer_timeout_ms, 1, 3600000},
    {"hedge", "on|off",
     "on: a slow message is sent to another holder as well, the first "
     "answer wins; off: the slow node is given up",
     SY_ARG_STRING, &options.hedge, 0, 0},
    {"slow-factor", "X", "a message is slow after so many times what is usual for its size",
     SY_ARG_DOUBLE, &options.slow_factor, 0, 0},
    {"slow-min-ms", "MS", "but not before", SY_ARG_INT, &options.slow_min_ms, 1, 3600000},
    {"slow-max-ms", "MS", "and at the latest", SY_ARG_INT, &options.slow_max_ms, 1, 3600000},
    {"silent-ms", "MS",
     "a late peer from which nothing at all is heard for so long is given up, even if nobody "
     "else can stand in for it",
     SY_ARG_INT, &options.silent_ms, 1, 3600000},
    {"hedge-share", "X", "of all messages, 0 to 1: more are not sent twice", SY_ARG_DOUBLE,
     &options.hedge_share, 0, 0},
    {"grace-ms", "MS", "how long a layer waits for a node or router that was here just now",
     SY_ARG_INT, &options.grace_ms, 0, 3600000},
    {"shadow-share", "X", "of the messages that shadows get copies of, 0 to 1", SY_ARG_DOUBLE,
     &options.shadow_share, 0, 0},
    {"verify-weights", "on|off",
     "on: what nodes hold is compared with this checkpoint, each "
     "expert read once, at idle priority; off: nodes are only compared with each other",
     SY_ARG_STRING, &options.verify_weights, 0, 0},
    {"shared-memory", "on|off",
     "on: rows for routers and nodes of this host, and what they compute, are in memory that "
     "is shared with them; off: all rows go through the connection",
     SY_ARG_STRING, &options.shared_memory, 0, 0},
    {"shared-memory-mb", "MB",
     "of that, for each router and node, at most; memory is only taken as it is used", SY_ARG_INT,
     &options.shared_memory_mb, 1, 1023},
    {"wire-rows", "TYPE",
     "f32; or bf16: rows for routers and nodes, and what nodes compute, travel rounded to that, in "
     "half the bytes, and answers say so; default f32",
     SY_ARG_STRING, &options.wire_rows, 0, 0},
};

static sy_status parse(int argc, char **argv, sy_error *err)
{
    const sy_status st = sy_service_parse(
        &options.common, argc, argv, "aggregator",
        "switchyard-aggregator --model DIR [options]\n\n"
        "The clients' door: runs the model's trunk, asks routers for experts and nodes for "
        "their outputs.",
        option_table, SY_COUNT_OF(option_table), err);
    return st == SY_OK ? check(&options, err) : st;
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

static void on_tick(void *arg)
{
    aggregator *agg = arg;

    agg_trunk_tick(agg);
    agg_view *view = agg_peers_view(agg->peers);

    agg_probe_suspects(view, sy_model_name(agg->model));
    agg_view_unref(view);
}

/* HTTP thread. */
static int http_get(void *ctx, const char *path, sy_strbuf *body)
{
    aggregator *agg = ctx;

    return agg_http_get(agg->peers, agg->model, path, body);
}

static int ready(void *ctx, sy_strbuf *why)
{
    aggregator *agg = ctx;
    const size_t at = why->len;
    int yes;

    agg_peers_sweep(agg->peers);
    yes = agg_peers_ready(agg->peers, agg->inproc == NULL && agg->fallback == NULL, why) &&
          !agg_trunk_is_lost(agg, why);
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

/* A template that cannot be used is the trouble of those who send conversations alone. */
static void open_chat(aggregator *agg, const char *dir)
{
    sy_error_clear(&agg->chat_error);
    switch (sy_chat_open(&agg->chat, dir, NULL, &agg->chat_error)) {
    case SY_OK:
    case SY_ENOTFOUND: sy_error_clear(&agg->chat_error); break;
    default: sy_log_error(SY_LOG_WARN, &agg->chat_error, "conversations are refused"); break;
    }
}

/* Before nodes are expected to hold what no node can: every one of them would be refused. */
static sy_status check_expert_weights(const sy_model *model, const agg_options *o, sy_error *err)
{
    const sy_status st = sy_shard_check_weights(model, o->expert_precision.weights, err);

    if (st != SY_OK && o->expert_weights != NULL)
        sy_error_prefix(err, "--expert-weights %s", o->expert_weights);
    return st;
}

static sy_status open_model(aggregator *agg, const agg_options *o, sy_error *err)
{
    const int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
    const unsigned threads =
        (unsigned)(o->common.threads > 0 ? o->common.threads : SY_MAX(cores, 1));
    sy_status st;

    SY_TRY(sy_kernels_choose(&agg->kernels, o->common.kernels, err));
    SY_TRY(sy_pool_open(&agg->pool, threads, "trunk"));
    SY_TRY(sy_model_open(&agg->model, o->common.model_dir, o->common.model_name, err));
    SY_TRY(check_expert_weights(agg->model, o, err));
    if (o->common.allow_nan) sy_model_allow_nan(agg->model);
    agg->desc = sy_model_describe(agg->model);
    SY_TRY(sy_tokenizer_open(&agg->tokenizer, o->common.model_dir, agg->desc->vocab, err));
    open_chat(agg, o->common.model_dir);
    agg->precision = o->precision;
    agg->expert_precision = o->expert_precision;
    agg->expert_arithmetic = o->expert_arithmetic;
    SY_TRY(agg_trunk_open(agg, &o->trunk, err));
    sy_precision_metric("switchyard_aggregator_precision_info", agg->precision);
    if (strcmp(o->router, "inproc") == 0)
        SY_TRY(sy_router_open(&agg->inproc, agg->model, agg->kernels, err));
    if (strcmp(o->router, "fallback") == 0)
        SY_TRY(sy_router_open(&agg->fallback, agg->model, agg->kernels, err));
    sy_log(SY_LOG_INFO,
           "model %s: trunk of %llu MB, weights %s, activations %s, kernels %s, %u threads",
           sy_model_name(agg->model), (unsigned long long)(sy_trunk_bytes(agg->trunk) >> 20),
           sy_weights_name(agg->precision.weights), sy_activations_name(agg->precision.activations),
           agg->kernels->name, threads);
out:
    return st;
}

/* A checkpoint that cannot be read everywhere still serves: the trunk is in memory by now. */
static sy_status open_peers(aggregator *agg, const agg_options *o, sy_error *err)
{
    sy_status st;

    if (sy_model_checkpoint_hash(&agg->checkpoint_hash, agg->model, err) != SY_OK) {
        sy_log_error(SY_LOG_WARN, err, "no fingerprint of the weights: nodes are not held to it");
        agg->checkpoint_hash = 0;
        sy_error_clear(err);
    }
    SY_TRY(agg_peers_open(&agg->peers, agg->model, (size_t)o->common.message_mb << 20, err));
    if (strcmp(o->shared_memory, "on") == 0)
        agg_peers_share(agg->peers, (size_t)o->shared_memory_mb << 20, AGG_SHARED_BYTES_MIN);
    SY_TRY(agg_peers_verify(agg->peers, agg->checkpoint_hash, agg->expert_arithmetic, agg->kernels,
                            agg->expert_precision, strcmp(o->verify_weights, "on") == 0, err));
out:
    return st;
}

static sy_status open_engine(aggregator *agg, const agg_options *o, sy_error *err)
{
    const uint32_t overlap_rows =
        o->overlap_rows < 0 ? sy_engine_overlap_rows(agg->desc) : (uint32_t)o->overlap_rows;
    const sy_dtype wire_rows = strcmp(o->wire_rows, "bf16") == 0 ? SY_BF16 : SY_F32;
    sy_status st;

    SY_TRY(open_peers(agg, o, err));
    agg->layer_timeout_us = o->layer_timeout_ms * 1000;
    agg->moe_config = (agg_moe_config){.model = agg->model,
                                       .kernels = agg->kernels,
                                       .peers = agg->peers,
                                       .wire_rows = wire_rows,
                                       .inproc = agg->inproc,
                                       .fallback = agg->fallback,
                                       .peer_timeout_us = o->peer_timeout_ms * 1000,
                                       .hedge = strcmp(o->hedge, "on") == 0,
                                       .slow_factor = o->slow_factor,
                                       .slow_min_us = o->slow_min_ms * 1000,
                                       .slow_max_us = o->slow_max_ms * 1000,
                                       .silent_us = o->silent_ms * 1000,
                                       .hedge_share = o->hedge_share,
                                       .grace_us = o->grace_ms * 1000,
                                       .shadow_share = o->shadow_share};
    SY_TRY(agg_lane_open(&agg->engine_lane, &agg->moe_config, err));
    if (overlap_rows > 0) SY_TRY(agg_lane_open(&agg->second_lane, &agg->moe_config, err));
    const sy_engine_config config = {.trunk = agg->trunk,
                                     .tokenizer = agg->tokenizer,
                                     .moe = agg_lane_ops(&agg->engine_lane),
                                     .second_moe = agg_lane_ops(&agg->second_lane),
                                     .overlap_rows_min = overlap_rows,
                                     .pool = agg->pool,
                                     .running_max = (uint32_t)o->running_max,
                                     .queue_max = (uint32_t)o->queue_max,
                                     .step_rows_max = (uint32_t)o->step_rows,
                                     .prompt_rows_max = (uint32_t)o->prompt_rows,
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
    const sy_service_config config = {
        .tier = "aggregator",
        .kind = SY_MEMBER_AGGREGATOR,
        .structure_hash = sy_model_structure_hash(agg->model),
        .checkpoint_hash = agg->checkpoint_hash,
        .arithmetic = agg->expert_arithmetic,
        .server = {.methods = methods,
                   .n_methods = SY_COUNT_OF(methods),
                   .service_names = names,
                   .n_service_names = 1,
                   .send_queue_max = 4096,
                   .error_details = sy_wire_error_details},
        .control = {.grid = sy_grid_of(agg->desc->n_layers, agg->desc->n_experts, agg->desc->layer,
                                       SY_LAYER_DENSE),
                    .watch_nodes = 1,
                    .watch_routers = 1,
                    .routers = o->routers,
                    .ctx = agg,
                    .on_placement = on_placement,
                    .on_members = on_members,
                    .http_get = http_get},
        .model = sy_model_name(agg->model),
        .ready = ready};

    sy_status st = sy_service_start(&agg->service, &o->common, &config, err);
    if (st == SY_OK && sy_control_every(sy_service_control(agg->service), AGG_PROBE_TICK_US,
                                        on_tick, agg) != SY_OK)
        sy_log(SY_LOG_ERROR, "no timer: a peer that was silent once stays in disfavour");
    return st;
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
    if (agg->second_lane.fanout != NULL) agg_lane_close(&agg->second_lane);
    agg_peers_close(agg->peers);
    sy_service_close(agg->service);
    sy_router_close(agg->inproc);
    sy_router_close(agg->fallback);
    sy_trunk_close(agg->trunk);
    sy_chat_close(agg->chat);
    sy_tokenizer_close(agg->tokenizer);
    sy_model_close(agg->model);
    sy_pool_free(agg->pool);
    pthread_mutex_destroy(&agg->ready_mutex);
}

int main(int argc, char **argv)
{
    static aggregator agg;
    sy_error err = {0};
    sy_status st;
    int code = 0;

    sy_service_init();
    sy_error_clear(&err);
    pthread_mutex_init(&agg.ready_mutex, NULL);
    SY_TRY(parse(argc, argv, &err));
    SY_TRY(open_model(&agg, &options, &err));
    SY_TRY(open_engine(&agg, &options, &err));
    SY_TRY(start(&agg, &options, &err));
    sy_service_wait(agg.service);
out:
    agg_trunk_end(&agg);
    close_all(&agg);
    if (st != SY_OK) code = sy_service_exit_code(&err, "switchyard-aggregator");
    return code != 0 && agg.trunk_is_refused ? 2 : code;
}
