/* expert_main.c - switchyard-expert: hosts the shards that placement wants on its devices, and
 * computes them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "expert.h"
#include "sy_log.h"

typedef struct expert_options {
    sy_service_options common;
    const char *devices;
    int64_t memory_mb;
} expert_options;

static sy_status parse(expert_options *o, int argc, char **argv, sy_error *err)
{
    *o = (expert_options){.devices = "cpu:0"};
    const sy_arg extra[] = {
        {"devices", "LIST", "comma-separated: cpu:0,cpu:1; each is a pool of --threads threads",
         SY_ARG_STRING, &o->devices, 0, 0},
        {"memory-mb", "MB", "memory for shards; 0: no limit", SY_ARG_INT, &o->memory_mb, 0,
         1 << 24},
    };

    return sy_service_parse(&o->common, argc, argv, "expert",
                            "switchyard-expert --model DIR [options]\n\n"
                            "Hosts expert shards: loads what the placement in Redis wants on this "
                            "node, and computes it.",
                            extra, SY_COUNT_OF(extra), err);
}

/* ---- devices ---- */

static int is_number(const char *s)
{
    const size_t n = strlen(s);

    return n >= 1 && n <= 3 && strspn(s, "0123456789") == n;
}

static sy_status add_device(expert *self, const char *name, size_t n, sy_error *err)
{
    expert_device *d = &self->device[self->n_devices];

    if (self->n_devices == EXPERT_DEVICES_MAX)
        return sy_error_set(err, SY_EINVAL, "--devices: at most %d", EXPERT_DEVICES_MAX);
    if (n >= sizeof(d->name))
        return sy_error_set(err, SY_EINVAL, "--devices: %.*s is too long", (int)n, name);
    memcpy(d->name, name, n);
    d->name[n] = '\0';
    if (strncmp(d->name, "cuda", 4) == 0)
        return sy_error_set(err, SY_EUNIMPLEMENTED,
                            "--devices %s: this build has no CUDA; use cpu:N", d->name);
    if (strncmp(d->name, "cpu:", 4) != 0 || !is_number(d->name + 4))
        return sy_error_set(err, SY_EINVAL, "--devices: %s is not a device; use cpu:N", d->name);
    for (uint32_t i = 0; i < self->n_devices; i++)
        if (strcmp(self->device[i].name, d->name) == 0)
            return sy_error_set(err, SY_EINVAL, "--devices: %s is named twice", d->name);
    d->index = (uint8_t)self->n_devices++;
    d->expert = self;
    return SY_OK;
}

static sy_status open_devices(expert *self, const expert_options *o, sy_error *err)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    size_t at = 0;

    for (const char *s = o->devices;; s++) {
        const size_t n = strcspn(s, ",");
        sy_status st = add_device(self, s, n, err);
        if (st != SY_OK) return st;
        s += n;
        if (*s == '\0') break;
    }
    const unsigned all = (unsigned)SY_MAX(cores, 1) / self->n_devices;
    const unsigned threads = o->common.threads > 0 ? (unsigned)o->common.threads : SY_MAX(all, 1u);
    for (uint32_t i = 0; i < self->n_devices; i++) {
        sy_status st = sy_pool_open(&self->device[i].pool, threads, self->device[i].name);
        if (st != SY_OK) return sy_error_set(err, st, "no threads for %s", self->device[i].name);
        at += (size_t)snprintf(self->devices + at, sizeof(self->devices) - at, "%s%s",
                               i == 0 ? "" : " ", self->device[i].name);
    }
    return SY_OK;
}

static sy_status open_model(expert *self, const expert_options *o, sy_error *err)
{
    sy_status st;

    SY_TRY(sy_kernels_choose(&self->kernels, o->common.kernels, err));
    SY_TRY(sy_model_open(&self->model, o->common.model_dir, o->common.model_name, err));
    self->desc = sy_model_describe(self->model);
    self->node = o->common.name;
    SY_TRY(sy_shard_store_open(&self->store, self->model, (uint64_t)o->memory_mb << 20, err));
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
    self->memory = sy_metric_gauge("switchyard_expert_memory_bytes", "Memory of shards", NULL);
    sy_log(SY_LOG_INFO, "model %s: %u layers of %u experts, %llu bytes each, kernels %s",
           sy_model_name(self->model), self->desc->n_layers, self->desc->n_experts,
           (unsigned long long)sy_model_expert_bytes(self->model), self->kernels->name);
out:
    return st;
}

/* ---- life ---- */

static void on_placement(void *ctx, sy_snapshot *snapshot)
{
    residency_placement(ctx, snapshot);
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
         .on_message = compute_message},
        {.path = "/switchyard.v1.Expert/Watch",
         .server_streams = 1,
         .ctx = self,
         .on_message = residency_watch_message,
         .on_end = residency_watch_end},
    };
    const sy_service_config config = {.tier = "expert",
                                      .kind = SY_MEMBER_NODE,
                                      .devices = self->devices,
                                      .structure_hash = sy_model_structure_hash(self->model),
                                      .server = {.methods = methods,
                                                 .n_methods = SY_COUNT_OF(methods),
                                                 .service_names = names,
                                                 .n_service_names = 1,
                                                 .send_queue_max = 4096,
                                                 .error_details = sy_wire_error_details},
                                      .control = {.layers = self->desc->n_layers,
                                                  .experts = self->desc->n_experts,
                                                  .ctx = self,
                                                  .on_placement = on_placement},
                                      .model = sy_model_name(self->model),
                                      .ready = ready};

    return sy_service_start(&self->service, o, &config, err);
}

int main(int argc, char **argv)
{
    static expert self;
    expert_options options;
    sy_error err = {0};
    sy_status st;

    sy_service_init();
    sy_error_clear(&err);
    SY_TRY(parse(&options, argc, argv, &err));
    SY_TRY(open_model(&self, &options, &err));
    SY_TRY(open_devices(&self, &options, &err));
    SY_TRY(compute_open(&self, &err));
    SY_TRY(residency_open(&self, &err));
    SY_TRY(start(&self, &options.common, &err));
    sy_service_wait(self.service);
out:
    sy_service_stop_control(self.service);
    compute_close(&self);
    residency_close(&self);
    sy_service_close(self.service);
    for (uint32_t i = 0; i < self.n_devices; i++) sy_pool_free(self.device[i].pool);
    sy_shard_store_close(self.store);
    sy_model_close(self.model);
    return st == SY_OK ? 0 : sy_service_exit_code(&err, "switchyard-expert");
}
