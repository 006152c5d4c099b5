/* checkpoint_files.h - files for the tests of checkpoints: a temporary directory, whole-file
 * writes, and safetensors files with any header at all. Failures end the test: a test that cannot
 * write its input proves nothing. */
#ifndef CHECKPOINT_FILES_H
#define CHECKPOINT_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <ftw.h>
#include <unistd.h>

#include "sy_file.h"

static inline int remove_one(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info;
    (void)type;
    (void)walk;
    return remove(path);
}

/* The directory of one test; path: [4096]. */
static inline void temp_dir_make(char *path)
{
    const char *base = getenv("TMPDIR");

    snprintf(path, 4096, "%s/switchyard-test-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(path) == NULL) fail_msg("cannot make %s", path);
}

static inline void temp_dir_remove(const char *path)
{
    assert_int_equal(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* A path inside dir; valid until the fourth call after this one. */
static inline const char *in_dir(const char *dir, const char *name)
{
    static char paths[4][4096];
    static unsigned turn;
    char *path = paths[turn++ % 4];

    assert_int_equal(sy_path_join(path, sizeof(paths[0]), dir, name), SY_OK);
    return path;
}

static inline void write_bytes(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");

    if (f == NULL) fail_msg("cannot create %s", path);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void write_text_file(const char *path, const char *text)
{
    write_bytes(path, text, strlen(text));
}

/* claimed_bytes: what the length field says; header_n bytes of header and data_n of data follow. */
static inline void write_safetensors(const char *path, uint64_t claimed_bytes, const char *header,
                                     size_t header_n, size_t data_n)
{
    uint8_t *bytes = calloc(1, 8 + header_n + data_n);

    assert_non_null(bytes);
    for (unsigned i = 0; i < 8; i++) bytes[i] = (uint8_t)(claimed_bytes >> (8 * i));
    memcpy(bytes + 8, header, header_n);
    for (size_t i = 0; i < data_n; i++) bytes[8 + header_n + i] = (uint8_t)i;
    write_bytes(path, bytes, 8 + header_n + data_n);
    free(bytes);
}

/* Fails unless text contains part; prints both. */
static inline void expect_text(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

static inline void expect_ok(sy_status st, const sy_error *err)
{
    if (st != SY_OK) fail_msg("%s: %s", sy_status_name(st), err->message);
}

#endif
