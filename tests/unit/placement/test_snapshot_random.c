/* test_snapshot_random.c - random edits of a placement hash, each seen three ways that must agree:
 * the snapshot built after the one before, a snapshot built after one that shares nothing with it,
 * and a model that knows only the rules of docs/placement.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sy_hash.h"
#include "sy_placement.h"

#define LAYERS      3
#define EXPERTS     4
#define GRID        (&(const sy_grid){.layers = LAYERS, .experts = EXPERTS})
#define N_GOOD      ((LAYERS + 1) * (EXPERTS + 1)) /* fields of the grammar, wildcards included */
#define N_SEQUENCES 400
#define N_EDITS     50

/* What is written, and what it means; NULL: it is refused. */
static const struct {
    const char *text;
    const char *means;
} values[] = {
    {"a/cpu:0", "a/cpu:0"},
    {"b/cpu:0", "b/cpu:0"},
    {"a/cpu:0 b/cpu:0", "a/cpu:0 b/cpu:0"},
    {" a/cpu:0  b/cpu:0", "a/cpu:0 b/cpu:0"},
    {"b/cpu:0 a/cpu:0", "b/cpu:0 a/cpu:0"},
    {"b/cpu:0 ", "b/cpu:0"},
    {"c/cuda:1!", "c/cuda:1!"},
    {"a/cpu:0@95 c/cpu:0@5", "a/cpu:0@95 c/cpu:0@5"},
    {"a/cpu:0 d/cpu:0@shadow!", "a/cpu:0 d/cpu:0@shadow!"},
    {"", NULL},
    {"a/cpu:0@95", NULL},
    {"a/cpu:0!!", NULL},
    {"a/cpu:0 a/cpu:0", NULL},
    {"nonsense", NULL},
};
static const char *const odd_fields[] = {"", "9/0", "x", "01/1", "0/4", "1/1/1", "*"};
#define N_FIELDS (N_GOOD + SY_COUNT_OF(odd_fields))

typedef struct model {
    uint64_t seed, n_random;
    int value[N_FIELDS];      /* the hash as Redis has it: index into values, -1: no such field */
    const char *good[N_GOOD]; /* in force, by field; NULL: none */
    uint64_t epoch;
    size_t n_refusals;
} model;

static uint32_t below(model *m, uint32_t n)
{
    return (uint32_t)(sy_splitmix64(m->seed * 1000003 + m->n_random++) % n);
}

static void field_text(char out[32], size_t i)
{
    sy_field field = {(int32_t)(i / (EXPERTS + 1)) - 1, (int32_t)(i % (EXPERTS + 1)) - 1};

    if (i < N_GOOD) {
        sy_field_format(out, 32, field);
    } else {
        snprintf(out, 32, "%s", odd_fields[i - N_GOOD]);
    }
}

/* ---- the rules, told naively ---- */

static const char *targets_of(const char *const *good, uint32_t layer, uint32_t expert)
{
    const uint32_t row = (layer + 1) * (EXPERTS + 1);

    if (good[row + expert + 1] != NULL) return good[row + expert + 1];
    if (good[row] != NULL) return good[row];
    if (good[expert + 1] != NULL) return good[expert + 1];
    return good[0];
}

static uint32_t count_missing(const char *const *good)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
        n += targets_of(good, i / EXPERTS, i % EXPERTS) == NULL;
    }
    return n;
}

static int is_same_in_force(const char *const *a, const char *const *b)
{
    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
        const char *x = targets_of(a, i / EXPERTS, i % EXPERTS);
        const char *y = targets_of(b, i / EXPERTS, i % EXPERTS);

        if ((x == NULL) != (y == NULL) || (x != NULL && strcmp(x, y) != 0)) return 0;
    }
    return 1;
}

static void model_takes_hash(model *m, int is_first)
{
    const char *good[N_GOOD] = {0};
    size_t n_fields = 0;

    m->n_refusals = 0;
    for (size_t i = 0; i < N_FIELDS; i++) {
        if (m->value[i] < 0) continue;
        n_fields++;
        if (i >= N_GOOD) {
            m->n_refusals++;
        } else if (values[m->value[i]].means == NULL) {
            m->n_refusals++;
            good[i] = m->good[i];
        } else {
            good[i] = values[m->value[i]].means;
        }
    }
    if (!is_first && ((n_fields == 0 && count_missing(m->good) < LAYERS * EXPERTS) ||
                      (count_missing(good) > 0 && count_missing(m->good) == 0))) {
        m->n_refusals++;
        return;
    }
    m->epoch += is_first || !is_same_in_force(good, m->good);
    memcpy(m->good, good, sizeof(good));
}

/* ---- building ---- */

static sy_snapshot *build(model *m, const sy_snapshot *previous)
{
    sy_placement_entry entry[N_FIELDS];
    char field[N_FIELDS][32];
    sy_snapshot *snapshot;
    size_t n = 0;

    for (size_t i = 0; i < N_FIELDS; i++) {
        if (m->value[i] < 0) continue;
        field_text(field[i], i);
        entry[n++] = (sy_placement_entry){field[i], strlen(field[i]), values[m->value[i]].text,
                                          strlen(values[m->value[i]].text)};
    }
    for (size_t i = n; i > 1; i--) { /* HGETALL has no order */
        const size_t j = below(m, (uint32_t)i);
        const sy_placement_entry kept = entry[i - 1];

        entry[i - 1] = entry[j];
        entry[j] = kept;
    }
    assert_int_equal(sy_snapshot_build(&snapshot, previous, entry, n, GRID, NULL), SY_OK);
    return snapshot;
}

/* A snapshot of its own with what is in force. */
static sy_snapshot *build_good(const model *m)
{
    sy_placement_entry entry[N_GOOD];
    char field[N_GOOD][32];
    sy_snapshot *snapshot;
    size_t n = 0;

    for (size_t i = 0; i < N_GOOD; i++) {
        if (m->good[i] == NULL) continue;
        field_text(field[i], i);
        entry[n++] =
            (sy_placement_entry){field[i], strlen(field[i]), m->good[i], strlen(m->good[i])};
    }
    assert_int_equal(sy_snapshot_build(&snapshot, NULL, entry, n, GRID, NULL), SY_OK);
    return snapshot;
}

static void edit(model *m)
{
    const uint32_t kind = below(m, 20);

    if (kind == 0) { /* deleted, or nearly */
        const uint32_t kept = below(m, 3) == 0 ? below(m, N_FIELDS) : N_FIELDS;

        for (uint32_t i = 0; i < N_FIELDS; i++) {
            if (i != kept) m->value[i] = -1;
        }
    } else if (kind <= 2) { /* a layer's fields, or an expert's, at once */
        const uint32_t from = below(m, N_GOOD);
        const uint32_t step = kind == 1 ? 1 : EXPERTS + 1;
        const int value = (int)below(m, SY_COUNT_OF(values));

        for (uint32_t i = from; i < N_GOOD; i += step) m->value[i] = value;
    } else {
        for (uint32_t n = 1 + below(m, 3); n > 0; n--) {
            /* Odd fields are rare, and so are deletions. */
            const uint32_t i = below(m, below(m, 8) == 0 ? N_FIELDS : N_GOOD);

            m->value[i] = below(m, 4) == 0 ? -1 : (int)below(m, SY_COUNT_OF(values));
        }
    }
}

/* ---- comparing ---- */

static void assert_in_force(const model *m, const sy_snapshot *snapshot, int step)
{
    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
        const uint32_t layer = i / EXPERTS, expert = i % EXPERTS;
        const sy_target_list *list = sy_snapshot_targets(snapshot, layer, expert);
        const char *want = targets_of(m->good, layer, expert);
        char got[SY_PLACEMENT_VALUE_MAX] = "none";

        if (list != NULL) {
            sy_targets_format(got, sizeof(got), list);
            assert_ptr_equal(
                sy_snapshot_list(snapshot, sy_snapshot_list_of(snapshot, layer, expert)), list);
        }
        if (strcmp(got, want != NULL ? want : "none") != 0) {
            fail_msg("seed %llu, edit %d: %u/%u is at '%s', not at '%s'",
                     (unsigned long long)m->seed, step, layer, expert, got,
                     want != NULL ? want : "none");
        }
    }
}

/* Numbers 1.., each for a list that some field has, no list twice. */
static void assert_lists(const model *m, const sy_snapshot *snapshot, int step)
{
    uint32_t n_different = 0;

    for (size_t i = 0; i < N_GOOD; i++) {
        int is_new = m->good[i] != NULL;

        for (size_t j = 0; is_new && j < i; j++) {
            is_new = m->good[j] == NULL || strcmp(m->good[i], m->good[j]) != 0;
        }
        n_different += is_new;
    }
    if (sy_snapshot_lists(snapshot) != n_different) {
        fail_msg("seed %llu, edit %d: %u lists instead of %u", (unsigned long long)m->seed, step,
                 sy_snapshot_lists(snapshot), n_different);
    }
}

static void assert_same(const model *m, const sy_snapshot *a, const sy_snapshot *b, int step)
{
    if (sy_snapshot_hash(a) != sy_snapshot_hash(b) ||
        sy_snapshot_refusals(a) != sy_snapshot_refusals(b)) {
        fail_msg("seed %llu, edit %d: %zu refusals and %zu", (unsigned long long)m->seed, step,
                 sy_snapshot_refusals(a), sy_snapshot_refusals(b));
    }
    for (size_t i = 0; i < sy_snapshot_refusals(a); i++) {
        assert_memory_equal(sy_snapshot_refusal_at(a, i), sy_snapshot_refusal_at(b, i),
                            sizeof(sy_refusal));
    }
    for (char node[] = "a"; node[0] <= 'e'; node[0]++) {
        assert_int_equal(sy_snapshot_names_node(a, node), sy_snapshot_names_node(b, node));
    }
}

static void assert_agree(const model *m, const sy_snapshot *snapshot, const sy_snapshot *other,
                         int step)
{
    const uint32_t n_missing = count_missing(m->good);
    char where[64];

    snprintf(where, sizeof(where), "seed %llu, edit %d", (unsigned long long)m->seed, step);
    assert_in_force(m, snapshot, step);
    assert_in_force(m, other, step);
    assert_lists(m, snapshot, step);
    assert_same(m, snapshot, other, step);
    if (sy_snapshot_epoch(snapshot) != m->epoch) {
        fail_msg("%s: epoch %llu instead of %llu", where,
                 (unsigned long long)sy_snapshot_epoch(snapshot), (unsigned long long)m->epoch);
    }
    if (sy_snapshot_refusals(snapshot) != m->n_refusals) {
        fail_msg("%s: %zu refusals instead of %zu", where, sy_snapshot_refusals(snapshot),
                 m->n_refusals);
    }
    if (sy_snapshot_missing(snapshot, NULL, NULL) != n_missing ||
        sy_snapshot_complete(snapshot) != (n_missing == 0)) {
        fail_msg("%s: %zu experts are missing instead of %u", where,
                 sy_snapshot_missing(snapshot, NULL, NULL), n_missing);
    }
}

static void run_sequence(uint64_t seed)
{
    model m = {.seed = seed};
    sy_snapshot *snapshot = NULL;
    sy_snapshot *older = NULL; /* kept for a while: later ones share its lists */

    for (size_t i = 0; i < N_FIELDS; i++) m.value[i] = -1;
    if (seed % 4 != 0) m.value[0] = 0; /* most begin complete */
    for (int step = 0; step < N_EDITS; step++) {
        sy_snapshot *const before = snapshot;
        sy_snapshot *const unrelated = before == NULL ? NULL : build_good(&m);
        sy_snapshot *other;

        snapshot = build(&m, before);
        other = build(&m, unrelated);
        model_takes_hash(&m, before == NULL);
        assert_agree(&m, snapshot, other, step);
        if (below(&m, 4) == 0) {
            sy_snapshot_unref(older);
            older = sy_snapshot_ref(snapshot);
        }
        sy_snapshot_unref(before);
        sy_snapshot_unref(unrelated);
        sy_snapshot_unref(other);
        edit(&m);
    }
    sy_snapshot_unref(snapshot);
    sy_snapshot_unref(older);
}

static void any_history_of_edits_gives_what_the_rules_say(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= N_SEQUENCES; seed++) run_sequence(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_history_of_edits_gives_what_the_rules_say),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
