/* trunk_gpu_fixture.h - trunks on emulated GPUs. */
#ifndef TRUNK_GPU_FIXTURE_H
#define TRUNK_GPU_FIXTURE_H

#include "emulated_gpus.h"

#include <math.h>

#include "sy_trunk.h"

static inline void must(sy_status st, const sy_error *err)
{
    if (st != SY_OK) fail_msg("%s: %s", sy_status_name(st), err->message);
}

/* The reason as well, and that the message has the text. */
static inline void expect_error(sy_status got, sy_status want, const sy_error *err,
                                const char *reason, const char *text)
{
    if (got != want || err->status != want || strcmp(err->reason, reason) != 0 ||
        strstr(err->message, text) == NULL)
        fail_msg("%s, %s: \"%s\"; want %s, %s: \"...%s...\"", sy_status_name(got), err->reason,
                 err->message, sy_status_name(want), reason, text);
}

static inline sy_trunk_device device_at(uint32_t number)
{
    static char name[N_DEVICES + 1][16];

    snprintf(name[number], sizeof(name[number]), "cuda:%u", number);
    return (sy_trunk_device){.backend = backend, .number = number, .name = name[number]};
}

/* Matrices held as that: SY_DTYPE_NONE: as they read. */
static inline sy_trunk *open_held(const sy_model *model, uint32_t number, sy_dtype weights)
{
    const sy_trunk_device device = device_at(number);
    sy_trunk *trunk;
    sy_pool *pool; /* for the load alone */
    sy_error err = {0};

    must(sy_pool_open(&pool, 3, "test"), &err);
    must(sy_trunk_open_on(&trunk, &device, model, sy_kernels_best(),
                          (sy_precision){.weights = weights}, pool, &err),
         &err);
    sy_pool_free(pool);
    return trunk;
}

static inline sy_trunk *open_on(const sy_model *model, uint32_t number)
{
    return open_held(model, number, SY_DTYPE_NONE);
}

/* Of got from want, to the size of want. */
static inline double distance(const float *got, const float *want, size_t n)
{
    double off = 0, size = 0;

    for (size_t i = 0; i < n; i++) {
        const double d = (double)got[i] - (double)want[i];
        off += d * d;
        size += (double)want[i] * (double)want[i];
    }
    return sqrt(off / size);
}

#endif
