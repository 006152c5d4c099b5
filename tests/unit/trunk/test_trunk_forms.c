/* test_trunk_forms.c - every form of attention, norm, rotation and MLP that a description can ask
 * for: the logits of formulas in double precision, and the same bits whoever computes them and
 * wherever a prompt was cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "effort.h"
#include "made_forms.h"
#include "reference.h"
#include "sy_trunk.h"

enum { SEQS = 2, TOKENS = 45, STEP_ROWS = 64 };

static void must(sy_status st, const sy_error *err)
{
    if (st != SY_OK) fail_msg("%s: %s", sy_status_name(st), err->message);
}

/* Who computes, and what each step takes of either sequence. */
typedef struct way {
    sy_precision precision;
    const sy_kernels *kernels;
    unsigned threads;
    uint32_t step[12][SEQS];
} way;

static const uint32_t whole[12][SEQS] = {{TOKENS, 0}, {0, TOKENS}};
static const uint32_t pieces[12][SEQS] = {{1, 3}, {17, 0}, {1, 14}, {13, 1}, {2, 19}, {11, 8}};

static uint32_t token_at(uint32_t seq, uint32_t position)
{
    return (uint32_t)(sy_splitmix64(seq * 1000 + position) % VOCAB);
}

typedef struct run {
    sy_pool *pool;
    sy_trunk *trunk;
    sy_trunk_ws *ws;
    sy_kv *kv;
    sy_kv_seq seq[SEQS];
    uint32_t n_done[SEQS];
    float *logits; /* [SEQS][TOKENS][VOCAB] */
} run;

static void run_step(run *r, const uint32_t n[SEQS])
{
    const sy_model_desc *d = sy_trunk_describe(r->trunk);
    uint32_t token[STEP_ROWS], position[STEP_ROWS], place[STEP_ROWS];
    sy_trunk_row row[STEP_ROWS];
    const sy_kv_seq *seq[STEP_ROWS];
    sy_batch batch = {0, token, position, seq};
    sy_error err = {0};

    for (uint32_t i = 0; i < SEQS; i++) {
        assert_int_equal(sy_kv_reserve(r->kv, &r->seq[i], r->n_done[i] + n[i]), SY_OK);
        for (uint32_t j = 0; j < n[i]; j++, batch.n_rows++) {
            assert_true(batch.n_rows < STEP_ROWS && r->n_done[i] < TOKENS);
            position[batch.n_rows] = r->n_done[i]++;
            token[batch.n_rows] = token_at(i, position[batch.n_rows]);
            seq[batch.n_rows] = &r->seq[i];
            row[batch.n_rows] = (sy_trunk_row){r->ws, batch.n_rows};
            place[batch.n_rows] = i * TOKENS + position[batch.n_rows];
        }
    }
    float *logits = malloc(sizeof(float) * STEP_ROWS * VOCAB);
    assert_non_null(logits);
    must(sy_trunk_begin(r->trunk, r->ws, &batch, &err), &err);
    for (uint32_t layer = 0; layer < d->n_layers; layer++) {
        must(sy_trunk_attend(r->trunk, r->ws, r->kv, layer, &batch, &err), &err);
        must(sy_trunk_norm(r->trunk, r->ws, layer, batch.n_rows, &err), &err);
        must(sy_trunk_mlp(r->trunk, r->ws, layer, batch.n_rows, &err), &err);
    }
    must(sy_trunk_head(r->trunk, logits, row, batch.n_rows, &err), &err);
    for (uint32_t t = 0; t < batch.n_rows; t++)
        memcpy(r->logits + (size_t)place[t] * VOCAB, logits + (size_t)t * VOCAB,
               VOCAB * sizeof(float));
    free(logits);
}

/* Logits [SEQS][TOKENS][VOCAB]; the caller frees. The second sequence is a long one. */
static float *logits_of(const sy_model *model, const way *w)
{
    run r = {.logits = calloc((size_t)SEQS * TOKENS * VOCAB, sizeof(float))};
    sy_error err = {0};

    assert_non_null(r.logits);
    must(sy_pool_open(&r.pool, w->threads, "test"), &err);
    must(sy_trunk_open(&r.trunk, model, w->kernels, w->precision, r.pool, &err), &err);
    must(sy_trunk_ws_open(&r.ws, r.trunk, STEP_ROWS, r.pool, &err), &err);
    must(sy_kv_open(&r.kv, r.trunk, SEQS * (TOKENS / SY_KV_PAGE + 1), &err), &err);
    r.seq[1].is_long = 1;
    for (size_t i = 0; i < SY_COUNT_OF(w->step); i++)
        if (w->step[i][0] + w->step[i][1] > 0) run_step(&r, w->step[i]);
    for (size_t i = 0; i < SEQS; i++) {
        assert_int_equal(r.n_done[i], TOKENS);
        sy_kv_release(r.kv, &r.seq[i]);
    }
    sy_kv_close(r.kv);
    sy_trunk_ws_close(r.ws);
    sy_trunk_close(r.trunk);
    sy_pool_free(r.pool);
    return r.logits;
}

static way way_of(const sy_kernels *kernels, unsigned threads, const uint32_t step[12][SEQS])
{
    way w = {.kernels = kernels, .threads = threads};

    memcpy(w.step, step, sizeof(w.step));
    return w;
}

static void check_reference(const char *name, const sy_model *model, const float *got,
                            double tolerance)
{
    double *want = ref_alloc((size_t)TOKENS * VOCAB), size = 0, worst = 0;
    size_t worst_at = 0;
    uint32_t token[TOKENS];

    for (uint32_t seq = 0; seq < SEQS; seq++) {
        for (uint32_t t = 0; t < TOKENS; t++) token[t] = token_at(seq, t);
        reference_logits(want, model, token, TOKENS, seq == 1);
        for (size_t i = 0; i < (size_t)TOKENS * VOCAB; i++) {
            const double off = fabs((double)got[(size_t)seq * TOKENS * VOCAB + i] - want[i]);

            size = fmax(size, fabs(want[i]));
            if (off > worst || isnan(off)) worst = off, worst_at = i;
        }
        if (!(worst <= tolerance * size))
            fail_msg("%s: sequence %u, position %zu: off by %g of %g", name, seq, worst_at / VOCAB,
                     worst, size);
    }
    free(want);
}

static void every_form_gives_the_logits_of_its_formulas(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(forms); i++) {
        sy_model *model = open_form(&forms[i], (made_options){.dtype = SY_F32});
        const way w = way_of(sy_kernels_best(), 2, whole);
        float *got = logits_of(model, &w);

        check_reference(forms[i].name, model, got, 5e-6);
        free(got);
        made_model_close(model);
    }
}

static void check_bits(const char *name, const char *way_name, const float *got, const float *want)
{
    for (size_t i = 0; i < (size_t)SEQS * TOKENS * VOCAB; i++) {
        if (memcmp(&got[i], &want[i], sizeof(float)) == 0) continue;
        fail_msg("%s, %s: sequence %zu, position %zu: %.9g, alone %.9g", name, way_name,
                 i / VOCAB / TOKENS, i / VOCAB % TOKENS, (double)got[i], (double)want[i]);
    }
}

static void neither_cuts_nor_neighbours_nor_threads_nor_kernels_change_a_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(forms); i++) {
        sy_model *model = open_form(&forms[i], (made_options){.dtype = SY_BF16});
        const way alone = way_of(sy_kernels_at(0), 1, whole);
        float *want = logits_of(model, &alone);

        check_reference(forms[i].name, model, want, 5e-6);
        for (size_t k = ONLY_RACES ? sy_kernels_count() - 1 : 0; k < sy_kernels_count(); k++) {
            for (unsigned threads = ONLY_RACES ? 7 : 1; threads <= 7; threads += 3) {
                const way w = way_of(sy_kernels_at(k), threads, pieces);
                float *got = logits_of(model, &w);

                check_bits(forms[i].name, w.kernels->name, got, want);
                free(got);
            }
        }
        free(want);
        made_model_close(model);
    }
}

static void rows_that_lie_apart_or_turned_are_read_as_if_they_did_not(void **state)
{
    const made_options lies[] = {{.dtype = SY_BF16, .strided = 1},
                                 {.dtype = SY_BF16, .transposed = 1}};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(forms); i++) {
        sy_model *model = open_form(&forms[i], (made_options){.dtype = SY_BF16});
        way w = way_of(sy_kernels_best(), 2, whole);

        for (size_t p = 0; p < 2; p++) {
            w.precision.weights = p == 0 ? SY_DTYPE_NONE : SY_Q8;
            float *want = logits_of(model, &w);
            for (size_t l = 0; l < SY_COUNT_OF(lies); l++) {
                sy_model *other = open_form(&forms[i], lies[l]);
                float *got = logits_of(other, &w);

                check_bits(forms[i].name, l == 0 ? "strided" : "transposed", got, want);
                free(got);
                made_model_close(other);
            }
            free(want);
        }
        made_model_close(model);
    }
}

static const struct {
    sy_precision precision;
    double cosine_min;
} roundings[] = {
    {{SY_Q8, SY_ACT_F32}, 0.9995}, {{SY_Q8, SY_ACT_Q8}, 0.999},      {{SY_Q4, SY_ACT_F32}, 0.95},
    {{SY_Q4, SY_ACT_Q8}, 0.95},    {{SY_BF16, SY_ACT_BF16}, 0.9995},
};

static double cosine(const float *a, const float *b, size_t n)
{
    double dot = 0, a2 = 0, b2 = 0;

    for (size_t i = 0; i < n; i++) {
        dot += (double)a[i] * (double)b[i];
        a2 += (double)a[i] * (double)a[i];
        b2 += (double)b[i] * (double)b[i];
    }
    return dot / sqrt(a2 * b2);
}

static void rounded_forms_are_close_and_the_same_for_everybody(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(forms); i++) {
        sy_model *model = open_form(&forms[i], (made_options){.dtype = SY_BF16});
        way alone = way_of(sy_kernels_at(0), 1, whole);
        float *stored = logits_of(model, &alone);

        for (size_t p = 0; p < SY_COUNT_OF(roundings); p++) {
            way cut = way_of(sy_kernels_best(), 3, pieces);

            alone.precision = cut.precision = roundings[p].precision;
            float *want = logits_of(model, &alone), *got = logits_of(model, &cut);
            const double c = cosine(want, stored, (size_t)SEQS * TOKENS * VOCAB);
            check_bits(forms[i].name, "rounded", got, want);
            if (!(c >= roundings[p].cosine_min) || c > 0.99999999)
                fail_msg("%s, weights %s, activations %d: cosine %f", forms[i].name,
                         sy_dtype_name(roundings[p].precision.weights),
                         (int)roundings[p].precision.activations, c);
            free(want);
            free(got);
        }
        free(stored);
        made_model_close(model);
    }
}

static void a_latent_cache_holds_one_vector_a_token(void **state)
{
    sy_model_desc d = plain_desc();
    made_options o = {0};

    (void)state;
    assert_int_equal(sy_kv_page_bytes(&d), 3 * 2 * 2 * 20 * SY_KV_PAGE * sizeof(float));
    deepseek_v3(&d, &o);
    assert_int_equal(sy_kv_page_bytes(&d), 3 * (36 + 10) * SY_KV_PAGE * sizeof(float));
}

static void a_weight_that_is_no_number_is_found_in_every_role(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(forms); i++) {
        sy_model *model = open_form(&forms[i], (made_options){.dtype = SY_F32});
        sy_pool *pool;

        assert_int_equal(sy_pool_open(&pool, 2, "test"), SY_OK);
        for (uint32_t layer = 0; layer < model->desc.n_layers; layer++) {
            for (int role = 0; role < SY_N_ROLES; role++) {
                const sy_tensor *t = &model->tensor[layer][role];
                const float nan = NAN;
                sy_trunk *trunk;
                sy_error err = {0};
                float kept;

                if (t->data == NULL) continue;
                uint8_t *last = (uint8_t *)(uintptr_t)t->data + (t->n_elements - 1) * sizeof(float);
                memcpy(&kept, last, sizeof(kept));
                memcpy(last, &nan, sizeof(nan));
                const sy_status st =
                    sy_trunk_open(&trunk, model, sy_kernels_best(), (sy_precision){0}, pool, &err);
                if (st != SY_EDATALOSS) fail_msg("%s, role %d: %d", forms[i].name, role, (int)st);
                memcpy(last, &kept, sizeof(kept));
            }
        }
        sy_pool_free(pool);
        made_model_close(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_gives_the_logits_of_its_formulas),
        cmocka_unit_test(neither_cuts_nor_neighbours_nor_threads_nor_kernels_change_a_bit),
        cmocka_unit_test(rows_that_lie_apart_or_turned_are_read_as_if_they_did_not),
        cmocka_unit_test(rounded_forms_are_close_and_the_same_for_everybody),
        cmocka_unit_test(a_latent_cache_holds_one_vector_a_token),
        cmocka_unit_test(a_weight_that_is_no_number_is_found_in_every_role),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
