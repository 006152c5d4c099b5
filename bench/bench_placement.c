/* bench_placement.c - what an edit of the placement costs a process: building the snapshot from the
 * whole hash, first and after one edit, and reading it. 61 layers of 256 experts on 64 nodes, every
 * expert with a field of its own. Results are checked before anything is timed. One JSON object a
 * line; times are medians. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_limits.h"
#include "bench_stats.h"
#include "sy_args.h"
#include "sy_hash.h"
#include "sy_placement.h"

#define LAYERS      61
#define EXPERTS     256
#define FIELDS      (LAYERS * EXPERTS)
#define NODES       64
#define EDITED      (FIELDS / 2 + 77)
#define SAMPLES_MAX 1024
#define TEXT_BYTES  96

/* The hash, and the same with one value edited. */
typedef struct bench {
    const char *values; /* "single", ... */
    double seconds;     /* a figure */
    char (*field)[16];  /* [FIELDS] */
    char (*value)[TEXT_BYTES];
    char edited[TEXT_BYTES];
    sy_placement_entry *entry;          /* [FIELDS] */
    sy_placement_entry *edited_entry;   /* [FIELDS] */
    sy_placement_entry *shuffled_entry; /* [FIELDS], edited too */
    sy_snapshot *before, *after;
} bench;

static sy_snapshot *build(const sy_snapshot *previous, const sy_placement_entry *entry)
{
    sy_snapshot *snapshot;
    sy_error err;

    if (sy_snapshot_build(&snapshot, previous, entry, FIELDS,
                          &(sy_grid){.layers = LAYERS, .experts = EXPERTS}, &err) == SY_OK) {
        return snapshot;
    }
    fprintf(stderr, "bench_placement: %s\n", err.message);
    exit(1);
}

/* ---- the hashes ---- */

/* single: one of 64 values; pairs: one of about 4000; own: every expert's value is different. */
static void write_value(char *out, const char *values, int i)
{
    const int node = i % NODES;
    const int other = (node + 1 + i / NODES % (NODES - 1)) % NODES;

    if (strcmp(values, "single") == 0) {
        snprintf(out, TEXT_BYTES, "expert-%d/cuda:0", node);
    } else if (strcmp(values, "pairs") == 0) {
        snprintf(out, TEXT_BYTES, "expert-%d/cuda:0 expert-%d/cuda:0", node, other);
    } else {
        snprintf(out, TEXT_BYTES, "expert-%d/cuda:%d expert-%d/cuda:%d", node, i / NODES % 128,
                 other, i / NODES / 64);
    }
}

static void shuffle(sy_placement_entry *entry)
{
    for (size_t i = FIELDS - 1; i > 0; i--) {
        const size_t j = (size_t)(sy_splitmix64(i) % (i + 1));
        const sy_placement_entry kept = entry[i];

        entry[i] = entry[j];
        entry[j] = kept;
    }
}

static void prepare(bench *b, const char *values)
{
    b->values = values;
    for (int i = 0; i < FIELDS; i++) {
        const int n = snprintf(b->field[i], sizeof(b->field[i]), "%d/%d", i / EXPERTS, i % EXPERTS);

        write_value(b->value[i], values, i);
        b->entry[i] =
            (sy_placement_entry){b->field[i], (size_t)n, b->value[i], strlen(b->value[i])};
    }
    snprintf(b->edited, sizeof(b->edited), "expert-new/cpu:0");
    memcpy(b->edited_entry, b->entry, FIELDS * sizeof(*b->entry));
    b->edited_entry[EDITED].value = b->edited;
    b->edited_entry[EDITED].value_len = strlen(b->edited);
    memcpy(b->shuffled_entry, b->edited_entry, FIELDS * sizeof(*b->entry));
    shuffle(b->shuffled_entry);
    sy_snapshot_unref(b->before);
    sy_snapshot_unref(b->after);
    b->before = build(NULL, b->entry);
    b->after = build(b->before, b->edited_entry);
}

static int is_at(const sy_snapshot *snapshot, int i, const char *want)
{
    const sy_target_list *list =
        sy_snapshot_targets(snapshot, (uint32_t)i / EXPERTS, (uint32_t)i % EXPERTS);
    char text[SY_PLACEMENT_VALUE_MAX];

    if (list == NULL) return 0;
    sy_targets_format(text, sizeof(text), list);
    return strcmp(text, want) == 0;
}

static int results_are_right(const bench *b)
{
    sy_snapshot *const scratch = build(NULL, b->shuffled_entry);
    sy_placement_cost cost;
    int ok = sy_snapshot_hash(scratch) == sy_snapshot_hash(b->after) &&
             sy_snapshot_epoch(b->after) == 2 && sy_snapshot_parsed(b->after) == 1;

    for (int i = 0; ok && i < FIELDS; i++) {
        ok = is_at(b->before, i, b->value[i]) &&
             is_at(b->after, i, i == EDITED ? b->edited : b->value[i]);
    }
    ok = ok && sy_placement_compare(&cost, b->before, b->after, 1, NULL, NULL) == SY_OK &&
         cost.n_experts == 1 && cost.n_loads == 1;
    sy_snapshot_unref(scratch);
    return ok;
}

/* ---- what is timed ---- */

static void build_first(const bench *b)
{
    sy_snapshot_unref(build(NULL, b->entry));
}

static void build_after_edit(const bench *b)
{
    sy_snapshot_unref(build(b->before, b->edited_entry));
}

static void build_shuffled(const bench *b)
{
    sy_snapshot_unref(build(b->before, b->shuffled_entry));
}

static void resolve(const bench *b)
{
    volatile uint32_t sum = 0; /* so that the reading is not left out */

    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t expert = 0; expert < EXPERTS; expert++) {
            sum += sy_snapshot_targets(b->after, layer, expert)->n;
        }
    }
}

static void compare(const bench *b)
{
    sy_placement_cost cost;

    (void)!sy_placement_compare(&cost, b->before, b->after, 1, NULL, NULL);
}

static void measure(const bench *b, const char *what, void (*call)(const bench *b))
{
    double sample[SAMPLES_MAX];
    const double end = bench_now_s() + b->seconds;
    size_t n = 0;

    call(b); /* warms up */
    while (n < 5 || (n < SAMPLES_MAX && bench_now_s() < end)) {
        const double start = bench_now_s();

        call(b);
        sample[n++] = bench_now_s() - start;
    }
    const double best_us = bench_quantile(sample, n, 1e-9) * 1e6;
    printf("{\"what\": \"%s\", \"values\": \"%s\", \"fields\": %d, \"nodes\": %d, \"lists\": %u, "
           "\"median_us\": %.1f, \"best_us\": %.1f, \"samples\": %zu}\n",
           what, b->values, FIELDS, NODES, sy_snapshot_lists(b->before),
           bench_quantile(sample, n, 0.5) * 1e6, best_us, n);
    fflush(stdout);
}

static int measure_all(bench *b)
{
    static const char *const values[] = {"single", "pairs", "own"};

    for (size_t i = 0; i < SY_COUNT_OF(values); i++) {
        prepare(b, values[i]);
        if (!results_are_right(b)) {
            fprintf(stderr, "bench_placement: %s: wrong targets; not timed\n", values[i]);
            return 0;
        }
        measure(b, "first_build", build_first);
        measure(b, "one_edit_build", build_after_edit);
        measure(b, "one_edit_build_shuffled", build_shuffled);
        measure(b, "resolve_all", resolve);
        measure(b, "compare", compare);
    }
    return 1;
}

static int open_fields(bench *b)
{
    b->field = calloc(FIELDS, sizeof(*b->field));
    b->value = calloc(FIELDS, sizeof(*b->value));
    b->entry = calloc(FIELDS, sizeof(*b->entry));
    b->edited_entry = calloc(FIELDS, sizeof(*b->entry));
    b->shuffled_entry = calloc(FIELDS, sizeof(*b->entry));
    if (b->field != NULL && b->value != NULL && b->entry != NULL && b->edited_entry != NULL &&
        b->shuffled_entry != NULL)
        return 1;
    fprintf(stderr, "bench_placement: no memory for %d fields\n", FIELDS);
    return 0;
}

int main(int argc, char **argv)
{
    bench b = {.seconds = 0.5};
    int is_quick = 0;
    sy_error err;
    const sy_arg args[] = {
        {.name = "quick",
         .help = "a tenth of the time, to see that it works",
         .kind = SY_ARG_FLAG,
         .out = &is_quick},
    };
    const sy_status st = sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                                       "bench_placement [options]", NULL, 0, NULL, &err);

    if (st == SY_ECANCELLED) return 0;
    if (st != SY_OK) {
        fprintf(stderr, "bench_placement: %s\n", err.message);
        return 2;
    }
    if (is_quick) b.seconds /= 10;
    const int ok = open_fields(&b) && measure_all(&b);
    sy_snapshot_unref(b.before);
    sy_snapshot_unref(b.after);
    free(b.field);
    free(b.value);
    free(b.entry);
    free(b.edited_entry);
    free(b.shuffled_entry);
    return ok ? 0 : 1;
}
