/* damaged_model.h - a sound checkpoint of one model.safetensors, damaged in one place: a text of
 * its configuration or header replaced, or bytes of a tensor overwritten. */
#ifndef DAMAGED_MODEL_H
#define DAMAGED_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sy_file.h"
#include "synth_model.h"

typedef struct damaged_file {
    char path[512];
    char *data;
    size_t n;
} damaged_file;

static inline damaged_file damaged_read(const char *dir, const char *name)
{
    damaged_file f;
    sy_error err = {0};

    snprintf(f.path, sizeof(f.path), "%s/%s", dir, name);
    if (sy_file_read(&f.data, &f.n, f.path, (size_t)1 << 30, &err) != SY_OK)
        fail_msg("%s", err.message);
    return f;
}

static inline void damaged_write(damaged_file *f)
{
    FILE *out = fopen(f->path, "wb");

    assert_non_null(out);
    assert_int_equal(fwrite(f->data, 1, f->n, out), f->n);
    assert_int_equal(fclose(out), 0);
    free(f->data);
}

/* The first `old` becomes `new`; both are bytes of the whole file. */
static inline void damaged_replace(damaged_file *f, const char *old, const char *new)
{
    const size_t old_n = strlen(old), new_n = strlen(new);
    char *at = memmem(f->data, f->n, old, old_n);
    char *changed;

    if (at == NULL) fail_msg("%s does not contain %s", f->path, old);
    changed = malloc(f->n + new_n);
    assert_non_null(changed);
    const size_t before = (size_t)(at - f->data);
    memcpy(changed, f->data, before);
    memcpy(changed + before, new, new_n);
    memcpy(changed + before + new_n, at + old_n, f->n - before - old_n);
    free(f->data);
    f->data = changed;
    f->n += new_n - old_n;
}

static inline void damage_config(const char *dir, const char *old, const char *new)
{
    damaged_file f = damaged_read(dir, "config.json");

    damaged_replace(&f, old, new);
    damaged_write(&f);
}

/* Offsets of tensors count from the header's end, so that it may change its length. */
static inline void damage_header(const char *dir, const char *old, const char *new)
{
    damaged_file f = damaged_read(dir, "model.safetensors");
    uint64_t header_bytes;

    damaged_replace(&f, old, new);
    memcpy(&header_bytes, f.data, sizeof(header_bytes)); /* tests run on little-endian machines */
    header_bytes += strlen(new) - strlen(old);
    memcpy(f.data, &header_bytes, sizeof(header_bytes));
    damaged_write(&f);
}

/* Bytes of a tensor, from `at` on. */
static inline void damage_tensor(const char *dir, const char *name, size_t at, const void *bytes,
                                 size_t n)
{
    damaged_file f = damaged_read(dir, "model.safetensors");
    char quoted[600];
    uint64_t header_bytes, begin, end;
    const char *entry;

    snprintf(quoted, sizeof(quoted), "\"%s\":", name);
    memcpy(&header_bytes, f.data, sizeof(header_bytes));
    entry = memmem(f.data + 8, header_bytes, quoted, strlen(quoted));
    if (entry == NULL) fail_msg("there is no tensor %s", name);
    entry = strstr(entry, "\"data_offsets\":[");
    assert_non_null(entry);
    assert_int_equal(sscanf(entry, "\"data_offsets\":[%lu,%lu]", &begin, &end), 2);
    assert_true(at + n <= end - begin);
    memcpy(f.data + 8 + header_bytes + begin + at, bytes, n);
    damaged_write(&f);
}

/* dir: [64]; the checkpoint of a published vector. */
static inline void damaged_make(char *dir, const char *family, sy_dtype dtype)
{
    snprintf(dir, 64, "/tmp/sy-damaged-XXXXXX");
    assert_non_null(mkdtemp(dir));
    write_family(dir, family, dtype);
}

static inline void damaged_remove(const char *dir)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

#endif
