/* expert_devices.c - the devices of this node: threads on CPUs, memory on GPUs, and what follows
 * when a GPU fails. Nothing here computes. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "expert.h"
#include "sy_backend_load.h"
#include "sy_clock.h"
#include "sy_log.h"

_Static_assert((int)SY_DEVICES_MAX <= (int)EXPERT_DEVICES_MAX, "a place each");
_Static_assert(sizeof(((sy_device *)0)->name) <= sizeof(((expert_device *)0)->name), "its name");
_Static_assert(EXPERT_LANES <= SY_BACKEND_LANES_MAX, "so many are there");

/* ---- open, close ---- */

static void open_metrics(expert_device *device)
{
    static const char faults[] = "switchyard_expert_device_faults_total";
    static const char faults_help[] = "GPUs that failed while the node served, by reason";
    char labels[64];

    snprintf(labels, sizeof(labels), "device=\"%s\"", device->name);
    device->batches = sy_metric_counter("switchyard_expert_device_batches_total",
                                        "Batches that a GPU has begun", labels);
    device->rows = sy_metric_counter("switchyard_expert_device_rows_total",
                                     "Rows of experts in these batches", labels);
    device->seconds = sy_metric_counter("switchyard_expert_device_seconds_total",
                                        "How long the GPU was busy with them", labels);
    device->lanes = sy_metric_gauge("switchyard_expert_device_lanes", "Batches under way", labels);
    snprintf(labels, sizeof(labels), "device=\"%s\",reason=\"DEVICE_LOST\"", device->name);
    device->lost = sy_metric_counter(faults, faults_help, labels);
    snprintf(labels, sizeof(labels), "device=\"%s\",reason=\"DEVICE_PROBE\"", device->name);
    device->wrong = sy_metric_counter(faults, faults_help, labels);
}

static sy_status open_gpu(expert *self, expert_device *device, const sy_device *name,
                          uint32_t n_devices, sy_error *err)
{
    sy_shard_home_config config = {.number = name->number,
                                   .name = device->name,
                                   .model = self->model,
                                   .weights = self->precision.weights,
                                   .memory_bytes_max = self->memory_bytes_max / n_devices,
                                   .lanes = EXPERT_LANES};
    const int64_t begin_us = sy_clock_us();
    sy_status st;

    open_metrics(device);
    SY_TRY(sy_backend_load(&config.backend, "cuda", err));
    SY_TRY(sy_shard_home_open(&device->home, &config, err));
    SY_TRY(sy_shard_home_self_test(device->home, err));
    sy_log(SY_LOG_INFO, "%s: room for %u shards in %llu bytes, computes as %s; self-test %lld ms",
           device->name, sy_shard_home_slots(device->home),
           (unsigned long long)sy_shard_home_bytes_max(device->home),
           sy_shard_home_arithmetic(device->home), (long long)((sy_clock_us() - begin_us) / 1000));
out:
    return st;
}

static sy_status check_arithmetic(const expert_device *first, const expert_device *device,
                                  sy_error *err)
{
    const char *one = sy_shard_home_arithmetic(first->home);
    const char *other = sy_shard_home_arithmetic(device->home);

    if (strcmp(one, other) == 0) return SY_OK;
    sy_error_set(
        err, SY_EINVAL,
        "%s computes as %s and %s as %s, and a shard that moved from one to the other would "
        "change what it computes: start a node for each",
        first->name, one, device->name, other);
    sy_error_where(err, "MIXED_ARITHMETIC", -1, -1, NULL);
    return SY_EINVAL;
}

static sy_status open_device(expert *self, const sy_device *name, uint32_t n_devices,
                             unsigned threads, sy_error *err)
{
    expert_device *device = &self->device[self->n_devices];
    const size_t at = strlen(self->devices);
    sy_status st;

    memcpy(device->name, name->name, sizeof(name->name));
    device->index = (uint8_t)self->n_devices++;
    device->expert = self;
    snprintf(self->devices + at, sizeof(self->devices) - at, "%s%s", at == 0 ? "" : " ",
             device->name);
    if (name->kind == SY_DEVICE_CPU) {
        st = sy_pool_open(&device->pool, threads, device->name);
        return st == SY_OK ? st : sy_error_set(err, st, "no threads for %s", device->name);
    }
    st = open_gpu(self, device, name, n_devices, err);
    if (st == SY_OK) st = check_arithmetic(&self->device[0], device, err);
    if (st != SY_OK) sy_devices_name_option(err, "--devices");
    return st;
}

sy_status devices_open(expert *self, const sy_device *names, uint32_t n, unsigned threads,
                       sy_error *err)
{
    sy_status st = SY_OK;

    SY_ASSERT(n > 0 && n <= EXPERT_DEVICES_MAX); /* sy_devices_choose sees to it */
    for (uint32_t i = 0; i < n && st == SY_OK; i++)
        st = open_device(self, &names[i], n, threads, err);
    if (st != SY_OK) return st;
    self->arithmetic = self->device[0].home != NULL
                           ? sy_shard_home_arithmetic(self->device[0].home)
                           : sy_arithmetic_name(self->precision.activations);
    return SY_OK;
}

sy_precision devices_precision(const expert *self)
{
    sy_precision precision = self->precision;

    if (self->device[0].home != NULL) precision.activations = SY_ACT_BF16;
    return precision;
}

void devices_close(expert *self)
{
    for (uint32_t d = 0; d < self->n_devices; d++) {
        sy_shard_home_close(self->device[d].home);
        sy_pool_free(self->device[d].pool);
    }
}

/* ---- failure ---- */

int devices_any_failed(const expert *self)
{
    for (uint32_t d = 0; d < self->n_devices; d++)
        if (device_failed(&self->device[d])) return 1;
    return 0;
}

/* 1: this call is the first to say so, and fault is what everybody is told. */
static int enter_failed(expert_device *device, const sy_error *why)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    int is_first;

    pthread_mutex_lock(&mutex);
    is_first = !device_failed(device);
    if (is_first) {
        const int is_wrong = strcmp(why->reason, "DEVICE_PROBE") == 0;
        const int is_named = strncmp(why->message, device->name, strlen(device->name)) == 0;
        device->failed_us = sy_clock_us();
        sy_error_clear(&device->fault);
        sy_error_set(&device->fault, SY_EUNAVAILABLE, "%s%s%s", is_named ? "" : device->name,
                     is_named   ? ""
                     : is_wrong ? " computes wrong: "
                                : " is lost: ",
                     why->message);
        sy_error_where(&device->fault, is_wrong ? "DEVICE_PROBE" : "DEVICE_LOST", -1, -1,
                       device->expert->node);
        sy_metric_add(is_wrong ? device->wrong : device->lost, 1);
        atomic_store_explicit(&device->failed, 1, memory_order_release);
    }
    pthread_mutex_unlock(&mutex);
    return is_first;
}

void device_fail(expert_device *device, const sy_error *why)
{
    if (!enter_failed(device, why)) return;
    sy_log_error(SY_LOG_ERROR, &device->fault, "this node serves no more");
    residency_device_failed(device->expert, device->index, device->fault.message);
}

void devices_look(expert *self)
{
    sy_error why = {0};

    for (uint32_t d = 0; d < self->n_devices; d++)
        if (self->device[d].home != NULL && !device_failed(&self->device[d]) &&
            sy_shard_home_lost(self->device[d].home, &why))
            device_fail(&self->device[d], &why);
}

int devices_say_failed(const expert *self, sy_strbuf *why)
{
    for (uint32_t d = 0; d < self->n_devices; d++) {
        if (!device_failed(&self->device[d])) continue;
        sy_strbuf_printf(why, "%s (%s)", self->device[d].fault.message,
                         self->device[d].fault.reason);
        return 1;
    }
    return 0;
}

/* A probe waits for the device as a batch does, and may be the only one to. */
static void look_at_probe(expert_device *device, int64_t now_us)
{
    const int64_t timeout_us = device->expert->device_timeout_us;
    const int64_t since_us = atomic_load(&device->probed_us);
    sy_error err = {0};

    if (since_us == 0 || now_us - since_us <= timeout_us || device_failed(device)) return;
    sy_error_clear(&err);
    sy_error_set(&err, SY_EUNAVAILABLE, "a probe is not done after %g s", (double)timeout_us / 1e6);
    device_fail(device, &err);
}

void devices_tick(expert *self)
{
    const int64_t now_us = sy_clock_us();

    devices_look(self);
    for (uint32_t d = 0; d < self->n_devices; d++) {
        const expert_device *device = &self->device[d];
        look_at_probe(&self->device[d], now_us);
        if (self->is_exiting || !device_failed(device) ||
            now_us - device->failed_us < self->device_exit_us)
            continue;
        self->is_exiting = 1;
        sy_log(SY_LOG_ERROR, "this process ends, to be started again: %s", device->fault.message);
        (void)kill(getpid(), SIGTERM); /* the orderly end, which answers what is still open */
    }
}
