/* trunk_gpu_fixture.h - trunks on emulated GPUs: the real plugin, built over an emulated runtime
 * (tests/emu), with a file through which devices are told to fail. A device that was lost stays
 * lost, so each test that loses one has its own. */
#ifndef TRUNK_GPU_FIXTURE_H
#define TRUNK_GPU_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sy_backend_load.h"
#include "sy_trunk.h"

enum { N_DEVICES = 8 };

static const sy_backend *backend;
static char control_path[64], control_dir[32];

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

/* Before the first call of the runtime, which reads the environment. */
static inline int devices_open(void **state)
{
    sy_error err = {0};

    (void)state;
    strcpy(control_dir, "/tmp/sy-trunk-XXXXXX");
    if (mkdtemp(control_dir) == NULL) return -1;
    snprintf(control_path, sizeof(control_path), "%s/control", control_dir);
    setenv("SY_EMU_DEVICES", "8", 1);
    setenv("SY_EMU_MEMORY_MB", "256", 1);
    setenv("SY_EMU_CONTROL", control_path, 1);
    if (sy_backend_load_file(&backend, SY_TEST_PLUGIN, "cuda", &err) == SY_OK) return 0;
    print_error("%s\n", err.message);
    return -1;
}

static inline int devices_close(void **state)
{
    (void)state;
    unlink(control_path);
    return rmdir(control_dir);
}

/* What the devices are to do from now on; "": nothing. */
static inline void devices_told(const char *lines)
{
    char path[80];

    snprintf(path, sizeof(path), "%s.new", control_path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(lines, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(path, control_path), 0);
}

static inline sy_trunk_device device_at(uint32_t number)
{
    static char name[N_DEVICES + 1][16];

    snprintf(name[number], sizeof(name[number]), "cuda:%u", number);
    return (sy_trunk_device){.backend = backend, .number = number, .name = name[number]};
}

static inline sy_trunk *open_on(const sy_model *model, uint32_t number)
{
    const sy_trunk_device device = device_at(number);
    sy_trunk *trunk;
    sy_pool *pool; /* for the load alone */
    sy_error err = {0};

    must(sy_pool_open(&pool, 3, "test"), &err);
    must(sy_trunk_open_on(&trunk, &device, model, sy_kernels_best(), (sy_precision){0}, pool, &err),
         &err);
    sy_pool_free(pool);
    return trunk;
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
