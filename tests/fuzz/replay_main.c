/* replay_main.c - a fuzz target as a regression test: runs it on every file of the given
 * directories, then on deterministic mutations of each. The same seed gives the same inputs on any
 * machine.
 *
 *   fuzz_NAME_replay [--mutations N] [--seed S] [--verbose] DIR...
 *
 * --verbose names each input before it runs; the last line before a crash is the one to debug. */
#include <dirent.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_file.h"
#include "sy_hash.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INPUT_BYTES_MAX ((size_t)16 << 20)
#define GROWTH_BYTES    ((size_t)256) /* what one edit may add */
#define EDITS_MAX       4u

typedef struct options {
    uint64_t n_mutations, seed;
    int is_verbose;
} options;

typedef struct input {
    uint8_t *data; /* [capacity] */
    size_t n, capacity;
} input;

typedef struct dice {
    uint64_t counter;
} dice;

/* [0, n); n >= 1. */
static size_t roll(dice *d, size_t n)
{
    return (size_t)(sy_splitmix64(d->counter++) % n);
}

static void insert(input *in, size_t at, const void *bytes, size_t n)
{
    if (n > in->capacity - in->n) return;
    memmove(in->data + at + n, in->data + at, in->n - at);
    memcpy(in->data + at, bytes, n);
    in->n += n;
}

static void erase(input *in, size_t at, size_t n)
{
    memmove(in->data + at, in->data + at + n, in->n - at - n);
    in->n -= n;
}

/* Pieces that matter to the formats under test. */
static void insert_token(input *in, dice *d)
{
    static const char *const tokens[] = {"{",
                                         "}",
                                         "[",
                                         "]",
                                         ",",
                                         ":",
                                         "\"",
                                         "\\",
                                         "\\u0000",
                                         "\\ud800",
                                         "0",
                                         "-1",
                                         "1.5",
                                         "1e99",
                                         "null",
                                         "true",
                                         "[[[[",
                                         "\"a\":1,",
                                         "\xff",
                                         "\xc3\xa9",
                                         "18446744073709551615",
                                         "9223372036854775807",
                                         "4294967296",
                                         "\"__metadata__\":{},"};
    const char *token = tokens[roll(d, SY_COUNT_OF(tokens))];

    insert(in, roll(d, in->n + 1), token, strlen(token));
}

static void repeat_piece(input *in, dice *d)
{
    uint8_t piece[GROWTH_BYTES];
    const size_t at = roll(d, in->n);
    const size_t n = 1 + roll(d, SY_MIN(in->n - at, sizeof(piece)));

    memcpy(piece, in->data + at, n);
    insert(in, roll(d, in->n + 1), piece, n);
}

static void change_digit(input *in, dice *d)
{
    const size_t start = roll(d, in->n);

    for (size_t i = start; i < in->n; i++) {
        if (in->data[i] >= '0' && in->data[i] <= '9') {
            in->data[i] = (uint8_t)('0' + roll(d, 10));
            return;
        }
    }
}

static void edit(input *in, dice *d)
{
    size_t at;

    if (in->n == 0) {
        insert_token(in, d);
        return;
    }
    at = roll(d, in->n);
    switch (roll(d, 7)) {
    case 0: in->data[at] ^= (uint8_t)(1u << roll(d, 8)); break;
    case 1: in->data[at] = (uint8_t)roll(d, 256); break;
    case 2: erase(in, at, 1 + roll(d, SY_MIN(in->n - at, GROWTH_BYTES))); break;
    case 3: in->n = at; break;
    case 4: insert_token(in, d); break;
    case 5: repeat_piece(in, d); break;
    default: change_digit(in, d); break;
    }
}

/* base: [n]. work has room for every edit. */
static void run_mutations(input *work, const uint8_t *base, size_t n, const char *name,
                          const options *opts)
{
    const uint64_t file_seed = sy_fnv1a(SY_FNV1A_START ^ opts->seed, name, strlen(name));

    for (uint64_t m = 0; m < opts->n_mutations; m++) {
        dice d = {.counter = sy_splitmix64(file_seed + m)};
        const size_t n_edits = 1 + roll(&d, EDITS_MAX);
        uint8_t *exact;

        if (n > 0) memcpy(work->data, base, n);
        work->n = n;
        for (size_t e = 0; e < n_edits; e++) edit(work, &d);
        if (opts->is_verbose) printf("%s, mutation %" PRIu64 "\n", name, m);
        /* A block of exactly that size: a sanitizer then sees the first byte read too many. */
        exact = malloc(work->n > 0 ? work->n : 1);
        if (exact == NULL) abort();
        if (work->n > 0) memcpy(exact, work->data, work->n);
        LLVMFuzzerTestOneInput(exact, work->n);
        free(exact);
    }
}

static int run_file(const char *path, const options *opts)
{
    input work = {0};
    char *data = NULL;
    size_t n;
    sy_error err;

    if (sy_file_read(&data, &n, path, INPUT_BYTES_MAX, &err) != SY_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 0;
    }
    if (opts->is_verbose) printf("%s\n", path);
    LLVMFuzzerTestOneInput((const uint8_t *)data, n);
    work.capacity = n + EDITS_MAX * GROWTH_BYTES;
    work.data = malloc(work.capacity);
    if (work.data == NULL) abort();
    run_mutations(&work, (const uint8_t *)data, n, sy_path_base(path), opts);
    free(work.data);
    free(data);
    return 1;
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Returns the number of files run, or -1. */
static int run_dir(const char *dir, const options *opts)
{
    struct dirent **entries;
    const int n = scandir(dir, &entries, is_visible, alphasort);
    int n_run = 0;

    if (n < 0) {
        perror(dir);
        return -1;
    }
    for (int i = 0; i < n; i++) {
        char path[4096];

        if (n_run >= 0 && sy_path_join(path, sizeof(path), dir, entries[i]->d_name) == SY_OK) {
            n_run = run_file(path, opts) ? n_run + 1 : -1;
        }
        free(entries[i]);
    }
    free(entries);
    return n_run;
}

static int parse_options(options *opts, int argc, char **argv)
{
    int i = 1;

    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        uint64_t *number = strcmp(argv[i], "--mutations") == 0 ? &opts->n_mutations
                           : strcmp(argv[i], "--seed") == 0    ? &opts->seed
                                                               : NULL;

        if (strcmp(argv[i], "--verbose") == 0) {
            opts->is_verbose = 1;
        } else if (number != NULL && i + 1 < argc) {
            char *end;

            *number = strtoull(argv[++i], &end, 10);
            if (*end != '\0' || argv[i][0] == '\0') return argc;
        } else {
            return argc;
        }
    }
    return i;
}

int main(int argc, char **argv)
{
    options opts = {.seed = 1};
    int n_files = 0;
    int i = parse_options(&opts, argc, argv);

    if (i >= argc) {
        fprintf(stderr, "usage: %s [--mutations N] [--seed S] [--verbose] DIR...\n", argv[0]);
        return 2;
    }
    for (; i < argc; i++) {
        const int n = run_dir(argv[i], &opts);

        if (n <= 0) {
            fprintf(stderr, "%s: no corpus to run\n", argv[i]);
            return 1;
        }
        n_files += n;
    }
    printf("%d files, %" PRIu64 " mutations each, seed %" PRIu64 "\n", n_files, opts.n_mutations,
           opts.seed);
    return 0;
}
