/* Attention over runs of keys: every implementation gives the bits of the reference, run after run
 * as in one run, and the reference is the dot product and the weighted sum that its header
 * promises. */
#include "kernel_cases.h"

typedef struct attention_case {
    size_t n_keys, head_dim, stride;
    value_kind kind;
} attention_case;

static const size_t key_counts[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33};
static const size_t head_dims[] = {1,  7,  8,  15, 16,  17,  24,  32,  63,
                                   64, 65, 80, 96, 127, 128, 129, 200, 256};

/* The last row ends at the end of memory: nobody may read a whole stride there. */
static size_t run_floats(const attention_case *c)
{
    return c->n_keys == 0 ? 0 : (c->n_keys - 1) * c->stride + c->head_dim;
}

static void check_scores(const attention_case *c, const float *q, const float *keys)
{
    edge_buffer got = edge_open(c->n_keys * sizeof(float), 8);
    float want[64];
    char what[96];

    for (size_t j = 0; j < c->n_keys; j++)
        want[j] = 0.125f * sy_kernels_at(0)->dot(q, keys + j * c->stride, c->head_dim);
    for (size_t i = 0; i < sy_kernels_count(); i++) {
        const sy_kernels *k = sy_kernels_at(i);
        snprintf(what, sizeof(what), "scores, %s, %zu keys of %zu, values %d", k->name, c->n_keys,
                 c->head_dim, (int)c->kind);
        k->attn_scores(edge_floats(&got), q, keys, c->stride, c->n_keys, c->head_dim, 0.125f);
        check_bits(want, edge_floats(&got), c->n_keys, what);
        edge_check(&got);
    }
    edge_close(&got);
}

static void check_values(const attention_case *c, const float *p, const float *values)
{
    edge_buffer got = edge_open(c->head_dim * sizeof(float), 8);
    float *want = calloc(c->head_dim, sizeof(float));
    float *o = edge_floats(&got);
    char what[96];

    assert_non_null(want);
    for (size_t j = 0; j < c->n_keys; j++)
        for (size_t d = 0; d < c->head_dim; d++)
            want[d] = fmaf(p[j], values[j * c->stride + d], want[d]);
    for (size_t i = 0; i < sy_kernels_count(); i++) {
        const sy_kernels *k = sy_kernels_at(i);
        const size_t half = c->n_keys / 2;
        snprintf(what, sizeof(what), "values, %s, %zu keys of %zu, values %d", k->name, c->n_keys,
                 c->head_dim, (int)c->kind);
        memset(o, 0, got.bytes);
        k->attn_values(o, p, values, c->stride, half, c->head_dim);
        k->attn_values(o, p + half, values + half * c->stride, c->stride, c->n_keys - half,
                       c->head_dim);
        check_bits(want, o, c->head_dim, what);
        edge_check(&got);
    }
    free(want);
    edge_close(&got);
}

static void check_case(const attention_case *c)
{
    edge_buffer rows = edge_open(run_floats(c) * sizeof(float), 0);
    edge_buffer q = edge_open(c->head_dim * sizeof(float), 0);
    edge_buffer p = edge_open(c->n_keys * sizeof(float), 0);
    test_random r = {TEST_SEED + c->n_keys * 1000 + c->head_dim};

    random_fill(edge_floats(&rows), run_floats(c), &r, c->kind);
    random_fill(edge_floats(&q), c->head_dim, &r, c->kind);
    random_fill(edge_floats(&p), c->n_keys, &r, c->kind);
    check_scores(c, edge_floats(&q), edge_floats(&rows));
    check_values(c, edge_floats(&p), edge_floats(&rows));
    edge_close(&rows);
    edge_close(&q);
    edge_close(&p);
}

static void every_implementation_attends_like_ref(void **state)
{
    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(head_dims); d++)
        for (size_t n = 0; n < SY_COUNT_OF(key_counts); n++)
            for (int kind = 0; kind < N_VALUE_KINDS; kind++) {
                attention_case c = {key_counts[n], head_dims[d], head_dims[d], (value_kind)kind};
                check_case(&c);
                c.stride += 19; /* other heads lie between */
                check_case(&c);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_implementation_attends_like_ref),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
