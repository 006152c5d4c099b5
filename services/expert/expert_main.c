/* expert_main.c - switchyard-expert: hosts the shards that placement wants on its devices, and
 * computes them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "expert.h"
#include "sy_devices.h"
#include "sy_log.h"
#include "sy_precision_text.h"

enum {
    TICK_US = 200 * 1000, /* watchers are told of the load, and devices are looked at */
    CLOSE_S = 10          /* for all that has nothing to do with a GPU */
};

typedef struct expert_options {
    sy_service_options common;
    const char *devices;
    sy_device_list device_list; /* what it says */
    const char *load_from, *shared_memory, *weights, *activations;
    sy_precision precision; /* what the last two say */
    int64_t memory_mb, loaders, load_mb_s, linger_s;
    int64_t self_test_s, device_timeout_s, device_exit_s;
} expert_options;

static sy_status check(expert_options *o, sy_error *err)
{
    if (strcmp(o->load_from, "checkpoint") != 0 && strcmp(o->load_from, "peers") != 0)
        return sy_error_set(err, SY_EINVAL, "--load-from %s: checkpoint or peers", o->load_from);
    if (strcmp(o->shared_memory, "on") != 0 && strcmp(o->shared_memory, "off") != 0)
        return sy_error_set(err, SY_EINVAL, "--shared-memory %s: on or off", o->shared_memory);
    sy_status st = sy_precision_parse(&o->precision, o->weights, o->activations, err);

    if (st != SY_OK) return st;
    /* At once, before a checkpoint of many gigabytes is looked at: a device that is named and
     * cannot be used is a mistake of who named it, and never another device instead. */
    st = sy_devices_choose(&o->device_list, o->devices, err);
    if (st != SY_OK) return st;
    if (o->device_list.device[0].kind == SY_DEVICE_CUDA && o->precision.activations != SY_ACT_F32)
        return sy_error_set(
            err, SY_EINVAL,
            "--activations %s: it is for CPUs; what GPUs do is in the name of their "
            "arithmetic, bf16: leave the option out",
            o->activations);
    return SY_OK;
}

/* A process has one set of options, so the table can be a constant; these are the defaults. */
static expert_options options = {.devices = "cpu:0",
                                 .load_from = "checkpoint",
                                 .shared_memory = "on",
                                 .weights = "as-stored",
                                 .activations = "f32",
                                 .loaders = 2,
                                 .load_mb_s = 100,
                                 .linger_s = 60,
                                 .self_test_s = 300,
                                 .device_timeout_s = 10,
                                 .device_exit_s = 5};

static const sy_arg option_table[] = {
    {"devices", "LIST",
     "comma-separated: cpu:0,cpu:1, each a pool of --threads threads; or GPUs of one kind: "
     "cuda:0,cuda:1, or cuda for all of them, see switchyard devices",
     SY_ARG_STRING, &options.devices, 0, 0},
    {"weights", "FORMAT", SY_WEIGHTS_HELP, SY_ARG_STRING, &options.weights, 0, 0},
    {"activations", "TYPE", SY_ACTIVATIONS_HELP, SY_ARG_STRING, &options.activations, 0, 0},
    {"memory-mb", "MB",
     "memory for shards, of all devices together, of which GPUs have an equal part each; 0: no "
     "limit, and on GPUs nine tenths of what is free",
     SY_ARG_INT, &options.memory_mb, 0, 1 << 24},
    {"loaders", "N", "threads that bring shards into memory; they yield to requests; default 2",
     SY_ARG_INT, &options.loaders, 1, EXPERT_LOADERS_MAX},
    {"load-mb-s", "MB",
     "how fast shards are loaded while requests are served, and given to other nodes; 0: no "
     "limit; default 100",
     SY_ARG_INT, &options.load_mb_s, 0, 1 << 20},
    {"load-from", "SOURCE",
     "checkpoint or peers: where shards come from; the other one is the second choice",
     SY_ARG_STRING, &options.load_from, 0, 0},
    {"linger-s", "S",
     "how long a shard that is no longer wanted stays, at least, unless memory is needed; "
     "default 60",
     SY_ARG_INT, &options.linger_s, 0, 86400},
    {"self-test-s", "S",
     "how often a shard on each GPU is computed once more and compared; 0: never; default 300",
     SY_ARG_INT, &options.self_test_s, 0, 86400},
    {"device-timeout-s", "S", "a GPU that does not finish a batch in this time is lost; default 10",
     SY_ARG_INT, &options.device_timeout_s, 1, 3600},
    {"device-exit-s", "S",
     "a node that has lost a GPU, or whose GPU computes wrong, is not ready, and ends so long "
     "after with exit code 3; default 5",
     SY_ARG_INT, &options.device_exit_s, 0, 86400},
    {"shared-memory", "on|off",
     "on: rows of aggregators on this host are read and written where they have them, and "
     "shards of nodes on this host are copied from GPU to GPU; off: all rows and shards go "
     "through the connection; default on",
     SY_ARG_STRING, &options.shared_memory, 0, 0},
};

static sy_status parse(int argc, char **argv, sy_error *err)
{
    const sy_status st =
        sy_service_parse(&options.common, argc, argv, "expert",
                         "switchyard-expert --model DIR [options]\n\n"
                         "Hosts expert shards: loads what the placement in Redis wants on this "
                         "node, and computes it.",
                         option_table, SY_COUNT_OF(option_table), err);

    return st == SY_OK ? check(&options, err) : st;
}

static sy_status open_devices(expert *self, const expert_options *o, sy_error *err)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const unsigned all = (unsigned)SY_MAX(cores, 1) / o->device_list.n;
    const unsigned threads = o->common.threads > 0 ? (unsigned)o->common.threads : SY_MAX(all, 1u);
    const sy_status st = devices_open(self, o->device_list.device, o->device_list.n, threads, err);

    if (st == SY_OK)
        sy_precision_metric("switchyard_expert_precision_info", devices_precision(self));
    return st;
}

static void open_fetch_metrics(expert *self)
{
    static const char *const way[] = {"way=\"bytes\"", "way=\"ipc\""};

    for (int i = 0; i < 2; i++) {
        self->fetched[i] = sy_metric_counter("switchyard_expert_fetched_shards_total",
                                             "Shards taken from other nodes, by how", way[i]);
        self->fetched_bytes[i] = sy_metric_counter("switchyard_expert_fetched_bytes_total",
                                                   "Bytes of these shards", way[i]);
    }
}

static void open_metrics(expert *self)
{
    static const char loads[] = "switchyard_expert_loads_total";
    static const char loads_help[] = "Shards brought into memory, by where they came from";

    self->rows = sy_metric_counter("switchyard_expert_rows_total", "Rows computed", NULL);
    self->messages =
        sy_metric_counter("switchyard_expert_messages_total", "Compute messages received", NULL);
    self->batches = sy_metric_counter("switchyard_expert_batches_total",
                                      "Computations; messages of one layer share one", NULL);
    self->errors = sy_metric_counter("switchyard_expert_errors_total",
                                     "Messages answered with an error", NULL);
    self->seconds = sy_metric_histogram("switchyard_expert_seconds",
                                        "From a message's arrival to its answer", NULL);
    self->resident = sy_metric_gauge("switchyard_expert_shards", "Shards in memory", NULL);
    self->lingering = sy_metric_gauge("switchyard_expert_lingering",
                                      "Shards in memory that placement wants elsewhere", NULL);
    self->failed =
        sy_metric_gauge("switchyard_expert_failed_shards", "Shards that cannot be loaded", NULL);
    self->loading =
        sy_metric_gauge("switchyard_expert_loading", "Shards being loaded or verified", NULL);
    self->memory = sy_metric_gauge("switchyard_expert_memory_bytes", "Memory of shards", NULL);
    self->loads = sy_metric_counter(loads, loads_help, "source=\"checkpoint\"");
    self->fetches = sy_metric_counter(loads, loads_help, "source=\"peers\"");
    self->copies = sy_metric_counter(loads, loads_help, "source=\"device\"");
    self->load_failures = sy_metric_counter("switchyard_expert_load_failures_total",
                                            "Loads of shards that failed", NULL);
    self->left = sy_metric_counter("switchyard_expert_left_total",
                                   "Shards that left memory after another node had them", NULL);
    open_fetch_metrics(self);
}

static void use_options(expert *self, const expert_options *o)
{
    self->node = o->common.name;
    self->memory_bytes_max = (uint64_t)o->memory_mb << 20;
    self->n_loaders = (uint32_t)o->loaders;
    self->load_bytes_per_s = (uint64_t)o->load_mb_s << 20;
    self->load_from_peers = strcmp(o->load_from, "peers") == 0;
    self->linger_us = o->linger_s * 1000000;
    self->self_test_us = o->self_test_s * 1000000;
    self->device_timeout_us = o->device_timeout_s * 1000000;
    self->device_exit_us = o->device_exit_s * 1000000;
    self->precision = o->precision;
    self->shares_memory = strcmp(o->shared_memory, "on") == 0;
}

static uint32_t first_with_experts(const sy_model_desc *desc)
{
    uint32_t layer = 0;

    while (layer + 1 < desc->n_layers && !sy_model_has_experts(desc, layer)) layer++;
    return layer;
}

static sy_status open_model(expert *self, const expert_options *o, sy_error *err)
{
    sy_shard_form form;
    sy_grid grid;
    sy_status st;
    int is_gpu;

    use_options(self, o);
    SY_TRY(sy_kernels_choose(&self->kernels, o->common.kernels, err));
    SY_TRY(sy_model_open(&self->model, o->common.model_dir, o->common.model_name, err));
    if (o->common.allow_nan) sy_model_allow_nan(self->model);
    self->desc = sy_model_describe(self->model);
    self->structure_hash = sy_model_structure_hash(self->model);
    SY_TRY(sy_model_checkpoint_hash(&self->checkpoint_hash, self->model, err));
    /* On GPUs their slots are the limit. */
    is_gpu = o->device_list.device[0].kind == SY_DEVICE_CUDA;
    SY_TRY(sy_shard_store_open(&self->store, self->model, self->precision,
                               is_gpu ? 0 : self->memory_bytes_max, err));
    sy_shard_form_of(&form, self->model, self->precision.weights, first_with_experts(self->desc),
                     0);
    grid =
        sy_grid_of(self->desc->n_layers, self->desc->n_experts, self->desc->layer, SY_LAYER_DENSE);
    sy_log(SY_LOG_INFO,
           "model %s, checkpoint %016llx: %u layers of %u experts, %llu bytes each, weights %s, "
           "activations %s, kernels %s",
           sy_model_name(self->model), (unsigned long long)self->checkpoint_hash,
           sy_grid_moe_layers(&grid), self->desc->n_experts,
           (unsigned long long)sy_shard_form_bytes(&form), sy_weights_name(self->precision.weights),
           is_gpu ? sy_activations_name(SY_ACT_BF16)
                  : sy_activations_name(self->precision.activations),
           self->kernels->name);
out:
    return st;
}

/* What this node needs of others: to ask them, to take shards from them, and to give them some. */
static sy_status open_peers(expert *self, sy_error *err)
{
    const expert_fetcher_config taking = {.model = self->model,
                                          .store = self->store,
                                          .kernels = self->kernels,
                                          .takes_slots = self->shares_memory};
    const expert_fetch_server_config giving = {.model = self->model,
                                               .store = self->store,
                                               .bytes_per_s_max = self->load_bytes_per_s,
                                               .offers_slots = self->shares_memory};
    sy_status st;

    SY_TRY(expert_peers_open(&self->peers, self->model, self->node, err));
    SY_TRY(expert_fetcher_open(&self->fetcher, &taking, err));
    SY_TRY(expert_fetch_server_open(&self->fetch_server, &giving, err));
out:
    return st;
}

/* ---- life ---- */

static void on_placement(void *ctx, sy_snapshot *snapshot)
{
    residency_placement(ctx, snapshot);
}

static void on_members(void *ctx, sy_member_kind kind, const sy_member *member, size_t n)
{
    expert *self = ctx;

    if (kind == SY_MEMBER_NODE) expert_peers_members(self->peers, member, n);
}

static void on_tick(void *ctx)
{
    watch_load(ctx);
    devices_tick(ctx);
}

static int ready(void *ctx, sy_strbuf *why)
{
    return residency_ready(ctx, why);
}

static sy_status start(expert *self, const sy_service_options *o, sy_error *err)
{
    static const char *const names[] = {"switchyard.v1.Expert"};
    const sy_method methods[] = {
        {.path = "/switchyard.v1.Expert/Compute", .ctx = self, .on_message = compute_message},
        {.path = "/switchyard.v1.Expert/ComputeStream",
         .client_streams = 1,
         .server_streams = 1,
         .ctx = self,
         .on_open = compute_stream_open,
         .on_message = compute_message,
         .on_end = compute_stream_end},
        {.path = "/switchyard.v1.Expert/Watch",
         .server_streams = 1,
         .ctx = self,
         .on_message = watch_message,
         .on_end = watch_end},
        {.path = EXPERT_FETCH_PATH,
         .server_streams = 1,
         .ctx = self->fetch_server,
         .on_message = expert_fetch_message,
         .on_end = expert_fetch_end},
    };
    const sy_service_config config = {.tier = "expert",
                                      .kind = SY_MEMBER_NODE,
                                      .devices = self->devices,
                                      .structure_hash = self->structure_hash,
                                      .checkpoint_hash = self->checkpoint_hash,
                                      .arithmetic = self->arithmetic,
                                      .server = {.methods = methods,
                                                 .n_methods = SY_COUNT_OF(methods),
                                                 .service_names = names,
                                                 .n_service_names = 1,
                                                 .send_queue_max = 4096,
                                                 .error_details = sy_wire_error_details},
                                      .control = {.grid = self->residency.grid,
                                                  .watch_nodes = 1,
                                                  .ctx = self,
                                                  .on_placement = on_placement,
                                                  .on_members = on_members,
                                                  .http_get = watch_http_get},
                                      .model = sy_model_name(self->model),
                                      .ready = ready};
    sy_status st = sy_service_start(&self->service, o, &config, err);

    if (st != SY_OK) return st;
    if (sy_control_every(sy_service_control(self->service), TICK_US, on_tick, self) != SY_OK)
        sy_log(SY_LOG_WARN, "no timer: watchers are not told of this node's load");
    return SY_OK;
}

static void close_all(expert *self)
{
    sy_service_stop_control(self->service);
    check_close(self);
    compute_close(self);
    residency_close(self);
    expert_fetch_server_close(self->fetch_server);
    expert_fetcher_close(self->fetcher);
    sy_service_close(self->service);
    expert_peers_close(self->peers);
    sy_shard_store_close(self->store);
    devices_close(self);
    sy_model_close(self->model);
}

static void give_up(int signum)
{
    (void)signum;
    _exit(EXPERT_EXIT_DEVICE);
}

/* Every message has been answered, and what is left, memory to be given back, may wait for a GPU
 * that never answers: a node that has lost one does without, and any other has a limit. */
static void end_in_time(const expert *self)
{
    if (devices_any_failed(self)) _exit(EXPERT_EXIT_DEVICE);
    if (self->device[0].home == NULL) return;
    signal(SIGALRM, give_up);
    alarm((unsigned)(self->device_timeout_us / 1000000) + CLOSE_S);
}

int main(int argc, char **argv)
{
    static expert self;
    sy_error err = {0};
    int is_wrong_usage = 1; /* while the command line is read, and when it is followed */
    int code;
    sy_status st;

    sy_service_init();
    sy_error_clear(&err);
    SY_TRY(parse(argc, argv, &err));
    is_wrong_usage = 0;
    open_metrics(&self);
    SY_TRY(open_model(&self, &options, &err));
    is_wrong_usage = 1; /* it names devices that cannot be used */
    SY_TRY(open_devices(&self, &options, &err));
    is_wrong_usage = 0;
    SY_TRY(compute_open(&self, &err));
    SY_TRY(open_peers(&self, &err));
    SY_TRY(residency_open(&self, &err));
    SY_TRY(check_open(&self, &err));
    SY_TRY(start(&self, &options.common, &err));
    sy_service_wait(self.service);
    end_in_time(&self);
out:
    close_all(&self);
    if (st == SY_OK) return 0;
    code = sy_service_exit_code(&err, "switchyard-expert");
    return code != 0 && is_wrong_usage ? 2 : code;
}
