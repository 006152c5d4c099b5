/* sy_trunk_device.c - the GPU that a trunk computes on: opening and closing it, its memory, waits
 * that end, and the day it is lost. */
#include "sy_trunk_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_backend_load.h"

enum { TIMEOUT_US = 10 * 1000000 };

/* ---- loss ---- */

static void lose(trunk_machine *machine, const char *why)
{
    pthread_mutex_lock(&machine->loss);
    if (!atomic_load(&machine->is_lost)) {
        snprintf(machine->why, sizeof(machine->why), "%s", why);
        atomic_store(&machine->is_lost, 1);
    }
    pthread_mutex_unlock(&machine->loss);
}

int trunk_device_lost(const trunk_machine *machine, sy_error *why)
{
    if (!atomic_load(&machine->is_lost)) return 0;
    /* Written before is_lost was, and never again. */
    sy_error_set(why, SY_EUNAVAILABLE, "%s is lost: %s", machine->name, machine->why);
    sy_error_where(why, "DEVICE_LOST", -1, -1, NULL);
    return 1;
}

sy_status trunk_device_result(trunk_machine *machine, int result, const char *why, sy_error *err)
{
    if (result == SY_BACKEND_OK) return SY_OK;
    if (result == SY_BACKEND_EDEVLOST) {
        lose(machine, why);
        (void)trunk_device_lost(machine, err);
        return SY_EUNAVAILABLE;
    }
    const sy_status st = sy_error_set(err, sy_backend_status(result), "%s: %s", machine->name, why);
    if (st == SY_ENOMEM) sy_error_where(err, "DEVICE_MEMORY", -1, -1, NULL);
    return st;
}

/* ---- waits ---- */

sy_status trunk_device_mark(trunk_machine *machine, uint32_t mark, sy_error *err)
{
    char why[SY_BACKEND_WHY_BYTES] = "";

    if (trunk_device_lost(machine, err)) return SY_EUNAVAILABLE;
    return trunk_device_result(machine, machine->backend->stream_mark(machine->stream, mark, why),
                               why, err);
}

sy_status trunk_device_wait(trunk_machine *machine, uint32_t mark, sy_error *err)
{
    char why[SY_BACKEND_WHY_BYTES] = "";
    int done = 0;

    if (trunk_device_lost(machine, err)) return SY_EUNAVAILABLE;
    const int result =
        machine->backend->stream_wait(&done, machine->stream, mark, machine->timeout_us, why);
    if (result != SY_BACKEND_OK) return trunk_device_result(machine, result, why, err);
    if (done) return SY_OK;
    snprintf(why, sizeof(why), "the work of a step was not done after %.3f s",
             (double)machine->timeout_us / 1e6);
    return trunk_device_result(machine, SY_BACKEND_EDEVLOST, why, err);
}

void trunk_device_settle(trunk_machine *machine)
{
    if (!trunk_device_lost(machine, NULL) &&
        trunk_device_mark(machine, DEVICE_MARK_NOW, NULL) == SY_OK)
        (void)!trunk_device_wait(machine, DEVICE_MARK_NOW, NULL);
    if (!trunk_device_lost(machine, NULL)) return;
    /* Nobody enqueues any more. Of a device that hangs, the backend then leaves alone what freeing
     * would wait for. */
    machine->backend->stream_close(machine->stream);
    machine->stream = NULL;
}

/* ---- memory ---- */

sy_status trunk_device_take(sy_backend_buffer **out, trunk_machine *machine, uint64_t bytes,
                            const char *what, sy_error *err)
{
    char why[SY_BACKEND_WHY_BYTES] = "", ignored[SY_BACKEND_WHY_BYTES];
    uint64_t free_bytes = 0, total_bytes = 0;

    *out = NULL;
    if (trunk_device_lost(machine, err)) return SY_EUNAVAILABLE;
    const int result = machine->backend->buffer_alloc(out, machine->handle, bytes, why);
    if (result != SY_BACKEND_ENOMEM) return trunk_device_result(machine, result, why, err);
    (void)machine->backend->memory(machine->handle, &free_bytes, &total_bytes, ignored);
    sy_error_set(err, SY_ENOMEM, "%s: %s need %llu bytes, and %llu of %llu are free: %s",
                 machine->name, what, (unsigned long long)bytes, (unsigned long long)free_bytes,
                 (unsigned long long)total_bytes, why);
    sy_error_where(err, "DEVICE_MEMORY", -1, -1, NULL);
    return SY_ENOMEM;
}

sy_status trunk_device_take_pinned(void **out, trunk_machine *machine, uint64_t bytes,
                                   sy_error *err)
{
    char why[SY_BACKEND_WHY_BYTES] = "";

    *out = NULL;
    if (trunk_device_lost(machine, err)) return SY_EUNAVAILABLE;
    const int result = machine->backend->pinned_alloc(out, machine->handle, bytes, why);
    if (result != SY_BACKEND_ENOMEM) return trunk_device_result(machine, result, why, err);
    return sy_error_set(err, SY_ENOMEM, "no memory for %llu bytes of the host that %s reads: %s",
                        (unsigned long long)bytes, machine->name, why);
}

sy_status trunk_device_copy_in(trunk_machine *machine, sy_backend_ref to, const void *host,
                               uint64_t n, sy_error *err)
{
    char why[SY_BACKEND_WHY_BYTES] = "";

    return trunk_device_result(
        machine, machine->backend->copy_in(to.buffer, to.offset, host, n, why), why, err);
}

/* ---- open and close ---- */

static void close_machine(trunk_machine *machine)
{
    if (machine == NULL) return;
    machine->backend->stream_close(machine->stream);
    machine->backend->close(machine->handle);
    pthread_mutex_destroy(&machine->loss);
    free(machine->name);
    free(machine);
}

/* What bits depend on: the kind of the device. */
static sy_status name_arithmetic(trunk_machine *machine, uint32_t number, sy_error *err)
{
    char why[SY_BACKEND_WHY_BYTES] = "";
    sy_backend_device *device = calloc((size_t)number + 1, sizeof(*device));
    sy_backend_system system;
    uint32_t n = 0;

    if (device == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for %s", machine->name);
    const int result = machine->backend->probe(&system, device, number + 1, &n, why);
    const sy_backend_device *d = &device[number];
    sy_status st = trunk_device_result(machine, result, why, err);
    if (st == SY_OK && number >= n)
        st = sy_error_set(err, SY_EUNAVAILABLE, "%s: there are %u devices", machine->name, n);
    if (st == SY_OK)
        snprintf(machine->arithmetic, sizeof(machine->arithmetic), SY_BACKEND_ARITHMETIC_CUDA,
                 d->major, d->minor);
    free(device);
    return st;
}

static sy_status open_machine(trunk_machine **out, const sy_trunk_device *device, sy_error *err)
{
    trunk_machine *machine = calloc(1, sizeof(*machine));
    char why[SY_BACKEND_WHY_BYTES] = "";
    sy_status st = SY_ENOMEM;

    *out = NULL;
    if (machine == NULL) return sy_error_set(err, st, "no memory for %s", device->name);
    machine->backend = device->backend;
    machine->timeout_us = device->timeout_us > 0 ? device->timeout_us : TIMEOUT_US;
    pthread_mutex_init(&machine->loss, NULL);
    machine->name = strdup(device->name);
    if (machine->name == NULL) {
        sy_error_set(err, st, "no memory for %s", device->name);
        goto out;
    }
    SY_TRY(name_arithmetic(machine, device->number, err));
    SY_TRY(trunk_device_result(
        machine, machine->backend->open(&machine->handle, device->number, why), why, err));
    SY_TRY(trunk_device_result(
        machine, machine->backend->stream_open(&machine->stream, machine->handle, why), why, err));
    *out = machine;
    machine = NULL;
out:
    close_machine(machine);
    return st;
}

static void close_trunk(sy_trunk *trunk)
{
    struct trunk_device *device = trunk->device;

    if (device == NULL) return;
    if (device->machine != NULL) {
        trunk_device_settle(device->machine);
        device->machine->backend->buffer_free(device->memory);
        close_machine(device->machine);
    }
    free(device->layer);
    free(device->inv_freq);
    free(device);
}

static const char *arithmetic(const sy_trunk *trunk)
{
    return trunk->device->machine->arithmetic;
}

static int is_lost(const sy_trunk *trunk, sy_error *why)
{
    return trunk_device_lost(trunk->device->machine, why);
}

static const trunk_ops device_trunk_ops = {.close = close_trunk,
                                           .arithmetic = arithmetic,
                                           .lost = is_lost,
                                           .page_bytes = trunk_device_page_bytes,
                                           .kv_open = trunk_device_kv_open,
                                           .kv_close = trunk_device_kv_close,
                                           .ws_open = trunk_device_ws_open,
                                           .ws_close = trunk_device_ws_close,
                                           .begin = trunk_device_begin,
                                           .keep = trunk_device_keep,
                                           .attend = trunk_device_attend,
                                           .norm = trunk_device_norm,
                                           .mlp = trunk_device_mlp,
                                           .input = trunk_device_input,
                                           .output = trunk_device_output,
                                           .add = trunk_device_add,
                                           .head = trunk_device_head};

static sy_status make_room(sy_trunk *trunk, sy_error *err)
{
    const sy_model_desc *d = &trunk->desc;
    struct trunk_device *device = calloc(1, sizeof(*device));

    trunk->device = device;
    if (device != NULL) device->layer = calloc(d->n_layers, sizeof(*device->layer));
    if (device != NULL) device->inv_freq = calloc((size_t)d->rotary_dim + 1, sizeof(float));
    if (device == NULL || device->layer == NULL || device->inv_freq == NULL)
        return sy_error_set(err, SY_ENOMEM, "no memory for the trunk");
    trunk_set_rotation(trunk, device->inv_freq);
    return SY_OK;
}

sy_status sy_trunk_open_on(sy_trunk **out, const sy_trunk_device *device, const sy_model *model,
                           const sy_kernels *kernels, sy_precision precision, sy_pool *pool,
                           sy_error *err)
{
    sy_trunk *trunk = calloc(1, sizeof(*trunk));
    sy_status st;

    *out = NULL;
    if (trunk == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the trunk");
    trunk->ops = &device_trunk_ops;
    trunk->desc = *sy_model_describe(model);
    trunk->shape = sy_kv_shape_of(&trunk->desc);
    trunk->kernels = kernels;
    trunk->precision = precision;
    SY_TRY(make_room(trunk, err));
    SY_TRY(open_machine(&trunk->device->machine, device, err));
    SY_TRY(trunk_device_load(trunk, model, pool, err));
    SY_TRY(trunk_device_self_test(trunk, err));
    *out = trunk;
    trunk = NULL;
out:
    sy_trunk_close(trunk);
    return st;
}
