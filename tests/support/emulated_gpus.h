/* emulated_gpus.h - eight emulated GPUs for a test's process: the real plugin, built over an
 * emulated runtime (tests/emu), with a file through which devices are told to fail. A device that
 * was lost stays lost, so each test that loses one has its own. */
#ifndef EMULATED_GPUS_H
#define EMULATED_GPUS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sy_backend_load.h"

enum { N_DEVICES = 8 };

static const sy_backend *backend;
static char control_path[64], control_dir[32];

/* Before the first call of the runtime, which reads the environment. */
static inline int devices_open(void **state)
{
    sy_error err = {0};

    (void)state;
    strcpy(control_dir, "/tmp/sy-gpus-XXXXXX");
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

#endif
