/* test_trunk_device.c - a trunk on a GPU, in every form: logits close to the processor's, and the
 * same bits wherever a prompt was cut, whatever else was in the batch, before and after it lost
 * rows, in whichever workspace. */
#include "effort.h"
#include "gpu_logits.h"

static void check_form(const form *f, int is_rounded)
{
    static const struct {
        const char *name;
        const way *way;
    } ways[] = {{"in pieces", &pieces}, {"losing rows", &losing}, {"in two workspaces", &in_turn}};
    const size_t n_ways = is_rounded ? SY_COUNT_OF(ways) : 1;
    sy_model *model = open_form_as(f, is_rounded, (made_options){.dtype = SY_BF16});
    sy_trunk *trunk = open_on(model, 0), *processor;
    sy_error err = {0};

    must(sy_trunk_open(&processor, model, sy_kernels_best(), (sy_precision){0}, NULL, &err), &err);
    float *want = logits_of(processor, &whole), *first = logits_of(trunk, &alone);
    check_close(f->name, first, want);
    for (size_t i = 0; i < n_ways; i++) {
        float *got = logits_of(trunk, ways[i].way);
        check_bits(f->name, ways[i].name, got, first);
        free(got);
    }
    free(want);
    free(first);
    sy_trunk_close(trunk);
    sy_trunk_close(processor);
    made_model_close(model);
}

static void every_form_is_close_to_the_processor_and_has_bits_of_its_own(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(forms); i += ONLY_RACES ? 5 : ONLY_ACCESSES ? 3 : 1)
        for (int is_rounded = ONLY_RACES; is_rounded <= 1; is_rounded++)
            check_form(&forms[i], is_rounded);
}

/* ---- two workspaces at once ---- */

typedef struct half {
    sy_trunk_ws *ws;
    sy_batch batch;
    uint32_t token[TOKENS], position[TOKENS];
    const sy_kv_seq *of[TOKENS];
    sy_kv_seq seq;
} half;

static void begin_half(half *h, const sy_trunk *trunk, sy_kv *kv, uint32_t seq)
{
    sy_error err = {0};

    must(sy_trunk_ws_open(&h->ws, trunk, TOKENS, NULL, &err), &err);
    assert_int_equal(sy_kv_reserve(kv, &h->seq, TOKENS), SY_OK);
    h->seq.is_long = seq == 1;
    h->batch = (sy_batch){TOKENS, h->token, h->position, h->of};
    for (uint32_t t = 0; t < TOKENS; t++) {
        h->token[t] = token_at(seq, t);
        h->position[t] = t;
        h->of[t] = &h->seq;
    }
    must(sy_trunk_begin(trunk, h->ws, &h->batch, &err), &err);
}

/* One half's experts are computed while the other half's attention is under way. */
static void steps_of_two_workspaces_overlap_and_share_a_head(void **state)
{
    sy_model *model = open_form_as(&forms[3], 1, (made_options){.dtype = SY_BF16});
    sy_trunk *trunk = open_on(model, 1);
    float *want = logits_of(trunk, &whole), *got = malloc(2 * TOKENS * VOCAB * sizeof(*got));
    half h[2] = {0};
    sy_trunk_row row[TOKENS];
    sy_error err = {0};
    sy_kv *kv;

    (void)state;
    assert_non_null(got);
    must(sy_kv_open(&kv, trunk, 4, &err), &err);
    for (uint32_t i = 0; i < 2; i++) begin_half(&h[i], trunk, kv, i);
    for (uint32_t layer = 0; layer < sy_trunk_describe(trunk)->n_layers; layer++) {
        for (uint32_t i = 0; i < 2; i++) {
            must(sy_trunk_attend(trunk, h[i].ws, kv, layer, &h[i].batch, &err), &err);
            must(sy_trunk_norm(trunk, h[i].ws, layer, TOKENS, &err), &err);
            must(sy_trunk_mlp(trunk, h[i].ws, layer, TOKENS, &err), &err);
        }
        for (uint32_t i = 0; i < 2 && sy_model_has_experts(sy_trunk_describe(trunk), layer); i++)
            compute_experts(trunk, h[i].ws, TOKENS);
    }
    for (uint32_t i = 0; i < TOKENS; i++) /* runs of one, then of two rows of either, backwards */
        row[i] = (sy_trunk_row){h[i < 9 ? i % 2 : i / 2 % 2].ws, TOKENS - 1 - i};
    must(sy_trunk_head(trunk, got, row, TOKENS, &err), &err);
    for (uint32_t i = 0; i < TOKENS; i++) {
        const uint32_t seq = row[i].ws == h[1].ws;
        const float *of_row = want + ((size_t)seq * TOKENS + row[i].row) * VOCAB;
        if (memcmp(got + (size_t)i * VOCAB, of_row, VOCAB * sizeof(float)) != 0)
            fail_msg("row %u of workspace %u: %g, want %g", row[i].row, seq,
                     (double)got[(size_t)i * VOCAB], (double)of_row[0]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        sy_kv_release(kv, &h[i].seq);
        sy_trunk_ws_close(h[i].ws);
    }
    sy_kv_close(kv);
    free(want);
    free(got);
    sy_trunk_close(trunk);
    made_model_close(model);
}

/* ---- long sequences ---- */

enum { LONG = 150, LONG_ROWS = 128 };

static void two_layers_of_a_long_context(sy_model_desc *d, made_options *o)
{
    (void)o;
    d->n_layers = 2;
    d->context = 256;
    d->head_dim = d->rotary_dim = 24;
}

/* Logits of the last token of two sequences; decoded: by a step of their own, in a workspace for so
 * many rows, so that its table of pages has to grow, and attention goes in splits. */
static void run_long(float *logits, const sy_trunk *trunk, uint32_t rows_max, int decoded)
{
    uint32_t token[LONG_ROWS], position[LONG_ROWS], n_done = 0;
    const sy_kv_seq *of[LONG_ROWS];
    sy_kv_seq seq[2] = {0};
    sy_trunk_ws *ws[2];
    sy_error err = {0};
    sy_kv *kv;

    must(sy_trunk_ws_open(&ws[0], trunk, LONG_ROWS, NULL, &err), &err);
    must(sy_trunk_ws_open(&ws[1], trunk, rows_max, NULL, &err), &err);
    must(sy_kv_open(&kv, trunk, 20, &err), &err);
    for (uint32_t i = 0; i < 2; i++) assert_int_equal(sy_kv_reserve(kv, &seq[i], LONG), SY_OK);
    while (n_done < LONG) {
        const uint32_t left = LONG - n_done, n = left > 64 ? 64 : left == 1 ? 1 : left - decoded;
        sy_trunk_ws *here = ws[n == 1];
        sy_batch batch = {2 * n, token, position, of};
        const sy_trunk_row row[] = {{here, n - 1}, {here, 2 * n - 1}};

        for (uint32_t i = 0; i < 2 * n; i++) {
            position[i] = n_done + i % n;
            token[i] = token_at(i / n, position[i]);
            of[i] = &seq[i / n];
        }
        must(sy_trunk_begin(trunk, here, &batch, &err), &err);
        for (uint32_t layer = 0; layer < 2; layer++)
            must(sy_trunk_attend(trunk, here, kv, layer, &batch, &err), &err);
        n_done += n;
        if (n_done == LONG) must(sy_trunk_head(trunk, logits, row, 2, &err), &err);
    }
    for (uint32_t i = 0; i < 2; i++) {
        sy_kv_release(kv, &seq[i]);
        sy_trunk_ws_close(ws[i]);
    }
    sy_kv_close(kv);
}

static void a_long_sequence_has_the_same_bits_however_it_was_cut(void **state)
{
    const form f = {"long", two_layers_of_a_long_context};
    sy_model *model = open_form_as(&f, 0, (made_options){.dtype = SY_BF16});
    sy_trunk *trunk = open_on(model, 2), *processor;
    float want[2 * VOCAB], got[2 * VOCAB], exact[2 * VOCAB];
    sy_error err = {0};

    (void)state;
    must(sy_trunk_open(&processor, model, sy_kernels_best(), (sy_precision){0}, NULL, &err), &err);
    run_long(exact, processor, 2, 1);
    run_long(want, trunk, 2, 0);
    run_long(got, trunk, 2, 1);
    assert_memory_equal(got, want, sizeof(want));
    assert_true(distance(want, exact, 2 * VOCAB) <= DISTANCE_MAX);
    sy_trunk_close(trunk);
    sy_trunk_close(processor);
    made_model_close(model);
}

/* ---- a head that goes in pieces ---- */

enum { WIDE_VOCAB = 1 << 17, WIDE_ROWS = 67 };

static void a_wide_head(sy_model_desc *d, made_options *o)
{
    (void)o;
    d->n_layers = 1;
    d->vocab = WIDE_VOCAB;
    d->hidden = 16;
    d->tied_head = 1;
}

static void a_head_of_many_rows_goes_in_pieces(void **state)
{
    static const uint32_t looked_at[] = {0, 63, 64, WIDE_ROWS - 1};
    const form f = {"wide", a_wide_head};
    sy_model *model = open_form_as(&f, 0, (made_options){.dtype = SY_BF16});
    sy_trunk *trunk = open_on(model, 3);
    float *got = malloc(sizeof(*got) * WIDE_ROWS * WIDE_VOCAB);
    float *one = malloc(sizeof(*one) * WIDE_VOCAB);
    uint32_t token[WIDE_ROWS], position[WIDE_ROWS];
    const sy_kv_seq *of[WIDE_ROWS];
    const sy_batch batch = {WIDE_ROWS, token, position, of};
    sy_kv_seq seq[WIDE_ROWS] = {0};
    sy_trunk_row row[WIDE_ROWS];
    sy_trunk_ws *ws;
    sy_kv *kv;
    sy_error err = {0};

    (void)state;
    assert_true(got != NULL && one != NULL);
    must(sy_trunk_ws_open(&ws, trunk, WIDE_ROWS, NULL, &err), &err);
    must(sy_kv_open(&kv, trunk, WIDE_ROWS, &err), &err);
    for (uint32_t i = 0; i < WIDE_ROWS; i++) {
        assert_int_equal(sy_kv_reserve(kv, &seq[i], 1), SY_OK);
        token[i] = 1000 * i;
        position[i] = 0;
        of[i] = &seq[i];
        row[i] = (sy_trunk_row){ws, i};
    }
    must(sy_trunk_begin(trunk, ws, &batch, &err), &err);
    must(sy_trunk_head(trunk, got, row, WIDE_ROWS, &err), &err);
    for (size_t i = 0; i < SY_COUNT_OF(looked_at); i++) {
        must(sy_trunk_head(trunk, one, &row[looked_at[i]], 1, &err), &err);
        assert_memory_equal(got + (size_t)looked_at[i] * WIDE_VOCAB, one,
                            WIDE_VOCAB * sizeof(*one));
    }
    for (uint32_t i = 0; i < WIDE_ROWS; i++) sy_kv_release(kv, &seq[i]);
    sy_kv_close(kv);
    sy_trunk_ws_close(ws);
    free(got);
    free(one);
    sy_trunk_close(trunk);
    made_model_close(model);
}

/* ---- what a trunk says of itself ---- */

static void rows_that_lie_apart_or_turned_are_read_as_if_they_did_not(void **state)
{
    static const made_options lies[] = {{.dtype = SY_BF16, .strided = 1},
                                        {.dtype = SY_BF16, .transposed = 1}};
    static const size_t looked_at[] = {3, 9}; /* dense and shared MLPs; latent attention */

    (void)state;
    for (size_t k = 0; k < SY_COUNT_OF(looked_at); k++) {
        const size_t f = looked_at[k];
        sy_model *model = open_form_as(&forms[f], 1, (made_options){.dtype = SY_BF16});
        sy_trunk *trunk = open_on(model, 4);
        float *want = logits_of(trunk, &whole);

        for (size_t i = 0; i < SY_COUNT_OF(lies); i++) {
            sy_model *other = open_form_as(&forms[f], 1, lies[i]);
            sy_trunk *of_other = open_on(other, 4);
            float *got = logits_of(of_other, &whole);

            check_bits(forms[f].name, i == 0 ? "strided" : "transposed", got, want);
            free(got);
            sy_trunk_close(of_other);
            made_model_close(other);
        }
        free(want);
        sy_trunk_close(trunk);
        made_model_close(model);
    }
}

static void a_trunk_says_what_it_is_and_takes(void **state)
{
    (void)state;
    for (int is_rounded = 0; is_rounded <= 1; is_rounded++) {
        const uint64_t dim = is_rounded ? 24 : 20, element = is_rounded ? 2 : 4;
        sy_model *model = open_form_as(&forms[0], is_rounded, (made_options){.dtype = SY_BF16});
        sy_trunk *trunk = open_on(model, 5);
        sy_error err = {0};

        assert_string_equal(sy_trunk_arithmetic(trunk), "bf16-mma/1:sm_90");
        assert_int_equal(sy_trunk_page_bytes(trunk), 3 * 2 * 2 * dim * SY_KV_PAGE * element);
        assert_int_equal(sy_kv_page_bytes(sy_trunk_describe(trunk)),
                         3 * 2 * 2 * dim * SY_KV_PAGE * sizeof(float));
        assert_true(sy_trunk_bytes(trunk) > model->used);
        assert_true(sy_trunk_bytes(trunk) < 4 * model->used);
        assert_ptr_equal(sy_trunk_kernels(trunk), sy_kernels_best());
        assert_false(sy_trunk_lost(trunk, &err));
        sy_trunk_close(trunk);
        made_model_close(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_is_close_to_the_processor_and_has_bits_of_its_own),
        cmocka_unit_test(steps_of_two_workspaces_overlap_and_share_a_head),
        cmocka_unit_test(a_long_sequence_has_the_same_bits_however_it_was_cut),
        cmocka_unit_test(a_head_of_many_rows_goes_in_pieces),
        cmocka_unit_test(rows_that_lie_apart_or_turned_are_read_as_if_they_did_not),
        cmocka_unit_test(a_trunk_says_what_it_is_and_takes),
    };

    return cmocka_run_group_tests(tests, devices_open, devices_close);
}
