/* expert_check.c - whether GPUs still compute right: one thread probes a resident shard of each in
 * turn now and then, and compares the output with the one that the shard had when it was loaded. A
 * bit that flips in a device's memory, or a device that begins to compute wrong, gives no error. */
#include <stdlib.h>
#include <string.h>

#include "expert.h"
#include "sy_clock.h"
#include "sy_log.h"

enum { LOG_US = 60 * 1000 * 1000 };

struct expert_check {
    pthread_t thread;
    int started;
    pthread_mutex_t mutex; /* guards stopping */
    pthread_cond_t wake;
    int stopping;
};

/* The next one after the last that was probed, with a reference; NULL: the device has none. */
static const sy_shard *next_shard(expert_device *device)
{
    expert *self = device->expert;
    const residency *r = &self->residency;

    for (uint32_t k = 1; k <= r->n_shards; k++) {
        const uint32_t i = (device->probed + k) % r->n_shards;
        const uint8_t state = atomic_load(&r->state[i]);
        if (atomic_load(&r->device[i]) != device->index ||
            (state != SY_SHARD_RESIDENT && state != SY_SHARD_LINGERING))
            continue;
        const sy_shard *shard = sy_shard_get(self->store, i / r->experts, i % r->experts);
        if (shard != NULL && shard->home == device->home) {
            device->probed = i;
            return shard;
        }
        sy_shard_put(self->store, shard); /* it is moving */
    }
    return NULL;
}

static void probe(expert_device *device)
{
    static _Atomic int64_t logged_us;
    expert *self = device->expert;
    const sy_shard *shard = next_shard(device);
    sy_error err = {0};

    if (shard == NULL) return;
    sy_error_clear(&err);
    atomic_store(&device->probed_us, sy_clock_us());
    const sy_status st = sy_shard_home_reprobe(shard, &err);
    atomic_store(&device->probed_us, 0);
    sy_shard_put(self->store, shard);
    if (st == SY_EDATALOSS)
        device_fail(device, &err);
    else if (st != SY_OK)
        devices_look(self);
    if (st != SY_OK && st != SY_EDATALOSS && sy_log_due(&logged_us, LOG_US))
        sy_log_error(SY_LOG_WARN, &err, "%s cannot be checked", device->name);
}

/* 0: the node stops. */
static int sleep_until(expert_check *check, int64_t until_us)
{
    const struct timespec until = {.tv_sec = until_us / 1000000,
                                   .tv_nsec = until_us % 1000000 * 1000};
    int timed_out = 0;

    pthread_mutex_lock(&check->mutex);
    while (!check->stopping && !timed_out)
        timed_out = pthread_cond_timedwait(&check->wake, &check->mutex, &until) != 0;
    const int goes_on = !check->stopping;
    pthread_mutex_unlock(&check->mutex);
    return goes_on;
}

static void *check_main(void *arg)
{
    expert *self = arg;

    while (sleep_until(self->check, sy_clock_us() + self->self_test_us))
        for (uint32_t d = 0; d < self->n_devices; d++)
            if (self->device[d].home != NULL && !device_failed(&self->device[d]))
                probe(&self->device[d]);
    return NULL;
}

sy_status check_open(expert *self, sy_error *err)
{
    pthread_condattr_t monotonic;
    expert_check *check;

    if (self->device[0].home == NULL || self->self_test_us == 0) return SY_OK;
    check = calloc(1, sizeof(*check));
    if (check == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for checking devices");
    self->check = check;
    pthread_mutex_init(&check->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&check->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&check->thread, NULL, check_main, self) != 0)
        return sy_error_set(err, SY_EIO, "no thread for checking devices");
    check->started = 1;
    return SY_OK;
}

void check_close(expert *self)
{
    expert_check *check = self->check;

    if (check == NULL) return;
    pthread_mutex_lock(&check->mutex);
    check->stopping = 1;
    pthread_cond_signal(&check->wake);
    pthread_mutex_unlock(&check->mutex);
    if (check->started) pthread_join(check->thread, NULL);
    pthread_cond_destroy(&check->wake);
    pthread_mutex_destroy(&check->mutex);
    free(check);
    self->check = NULL;
}
