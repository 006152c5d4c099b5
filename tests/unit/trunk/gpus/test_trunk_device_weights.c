/* test_trunk_device_weights.c - a trunk on a GPU whose matrices are held in fewer bits: logits
 * close to those of a processor that holds them so, the same bits however they were asked for, and
 * as little memory. */
#include "effort.h"
#include "gpu_logits.h"

typedef struct held {
    sy_dtype weights;
    double far_min; /* logits are further than that from those of bf16: rounding shows */
} held;

static const held all_held[] = {{SY_Q8, 1e-3}, {SY_Q4, 2e-2}};

static double distance_of_all(const float *got, const float *want)
{
    return distance(got, want, (size_t)SEQS * TOKENS * VOCAB);
}

/* In the ways of the rows; first: [SEQS][TOKENS][VOCAB], each sequence alone. */
static void check_ways(const char *name, const sy_trunk *trunk, const float *first)
{
    float *got = logits_of(trunk, &pieces);

    check_bits(name, "in pieces", got, first);
    free(got);
    got = logits_of(trunk, &losing);
    check_bits(name, "losing rows", got, first);
    free(got);
}

static void check_held(const form *f, int is_rounded, const held *h)
{
    sy_model *model = open_form_as(f, is_rounded, (made_options){.dtype = SY_BF16});
    sy_trunk *trunk = open_held(model, 0, h->weights), *wide = open_on(model, 0), *processor;
    const sy_precision precision = {.weights = h->weights};
    sy_error err = {0};

    must(sy_trunk_open(&processor, model, sy_kernels_best(), precision, NULL, &err), &err);
    float *want = logits_of(processor, &whole), *first = logits_of(trunk, &alone);
    float *of_wide = logits_of(wide, &alone);
    check_close(f->name, first, want);
    check_ways(f->name, trunk, first);
    if (!(distance_of_all(first, of_wide) > h->far_min))
        fail_msg("%s: as %s logits are %g off those of bf16", f->name, sy_dtype_name(h->weights),
                 distance_of_all(first, of_wide));
    free(want);
    free(first);
    free(of_wide);
    sy_trunk_close(trunk);
    sy_trunk_close(wide);
    sy_trunk_close(processor);
    made_model_close(model);
}

static void rounded_weights_are_close_to_the_processor_and_have_bits_of_their_own(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(forms); i += ONLY_RACES ? 5 : ONLY_ACCESSES ? 3 : 1)
        check_held(&forms[i], i % 4 < 2, &all_held[i % SY_COUNT_OF(all_held)]);
}

/* ---- memory ---- */

static void wide_layers(sy_model_desc *d, made_options *o)
{
    (void)o;
    d->hidden = 256;
    d->n_layers = 2;
    d->dense_ffn = 512;
    d->layer[0] = d->layer[1] = SY_LAYER_DENSE;
}

/* All matrices but the embedding, at their bits an element; vectors are small. */
static void a_trunk_takes_the_bytes_of_its_weights(void **state)
{
    static const struct {
        sy_dtype weights;
        double bytes; /* of an element */
    } cases[] = {{SY_DTYPE_NONE, 2}, {SY_Q8, 34.0 / 32}, {SY_Q4, 18.0 / 32}};
    const form f = {"wide", wide_layers};
    sy_model *model = open_form_as(&f, 0, (made_options){.dtype = SY_BF16});
    double n = 0;

    (void)state;
    for (uint32_t layer = 0; layer < 2; layer++)
        for (int role = 0; role < SY_N_ROLES; role++)
            if (role != SY_ROLE_EMBED && model->tensor[layer][role].rank == 2)
                n += (double)model->tensor[layer][role].n_elements;
    const double embedding = 2.0 * (double)model->tensor[0][SY_ROLE_EMBED].n_elements;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        sy_trunk *trunk = open_held(model, 1, cases[i].weights);
        const double want = embedding + n * cases[i].bytes;
        const double got = (double)sy_trunk_bytes(trunk);

        if (!(got > want && got < 1.1 * want))
            fail_msg("%s: %g bytes, and the weights have %g", sy_dtype_name(cases[i].weights), got,
                     want);
        sy_trunk_close(trunk);
    }
    made_model_close(model);
}

/* ---- mxfp4, which no family's trunk has ---- */

enum { FP4_BLOCK = 32, FP4_FACTOR = 121 }; /* codes reach up to 6 * 2^-6 */

static uint8_t nearest_code(float v)
{
    uint8_t best = 0;

    for (uint8_t code = 1; code < 16; code++)
        if (fabsf(sy_fp4_to_f32(code) - v) < fabsf(sy_fp4_to_f32(best) - v)) best = code;
    return best;
}

/* As gpt-oss has them: 16 bytes a block, and factors elsewhere. */
static void encode(sy_model *m, sy_role role, uint32_t layer)
{
    sy_tensor *t = &m->tensor[layer][role];
    const uint64_t n = t->shape[0], k = t->shape[1], blocks = k / FP4_BLOCK;
    uint8_t *code = m->map + m->used, *factor = code + n * k / 2;

    assert_int_equal(k % FP4_BLOCK, 0);
    m->used += n * k / 2 + n * blocks;
    assert_true(m->used <= m->map_bytes);
    memset(code, 0, n * k / 2);
    for (uint64_t i = 0; i < n * blocks; i++) factor[i] = (uint8_t)(FP4_FACTOR + i % 2);
    for (uint64_t i = 0; i < n * k; i++) {
        const int power = factor[i / FP4_BLOCK] - 127;
        const float v = ldexpf(m->value[layer][role][i], -power);
        code[i / 2] = (uint8_t)(code[i / 2] | nearest_code(v) << i % 2 * 4);
    }
    t->dtype_name = "MXFP4";
    t->encoding = SY_ENCODING_MXFP4;
    t->data = code;
    t->scale = factor;
    t->row_step = k / 2;
    t->scale_step = blocks;
    t->column_step = 0;
}

static void blocks_of_32(sy_model_desc *d, made_options *o)
{
    o->qkv_bias = 1;
    d->hidden = 96;
    d->n_layers = 2;
    d->head_dim = d->rotary_dim = 24;
    d->layer[0] = SY_LAYER_DENSE;
    d->dense_ffn = 64;
    d->shared_ffn = 32;
}

/* As stored they read as bf16, which has every number of theirs: the logits are near, but sums are
 * taken in another order. */
static void a_trunk_of_mxfp4_is_close_to_the_processor(void **state)
{
    const form f = {"mxfp4", blocks_of_32};
    const sy_precision precision = {.weights = SY_MXFP4};
    sy_model *model = open_form_as(&f, 0, (made_options){.dtype = SY_BF16});
    sy_trunk *trunk, *wide, *processor;
    sy_error err = {0};

    (void)state;
    for (uint32_t layer = 0; layer < 2; layer++)
        for (int role = SY_ROLE_HEAD; role < SY_N_ROLES; role++)
            if (model->tensor[layer][role].rank == 2 && role != SY_ROLE_EMBED)
                encode(model, (sy_role)role, layer);
    trunk = open_held(model, 2, SY_MXFP4);
    wide = open_on(model, 2);
    must(sy_trunk_open(&processor, model, sy_kernels_best(), precision, NULL, &err), &err);
    float *want = logits_of(processor, &whole), *first = logits_of(trunk, &alone);
    float *of_wide = logits_of(wide, &alone);
    check_close(f.name, first, want);
    assert_true(distance_of_all(first, of_wide) <= DISTANCE_MAX);
    check_ways(f.name, trunk, first);
    assert_true(2 * sy_trunk_bytes(trunk) < sy_trunk_bytes(wide));
    free(want);
    free(first);
    free(of_wide);
    sy_trunk_close(trunk);
    sy_trunk_close(wide);
    sy_trunk_close(processor);
    made_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounded_weights_are_close_to_the_processor_and_have_bits_of_their_own),
        cmocka_unit_test(a_trunk_takes_the_bytes_of_its_weights),
        cmocka_unit_test(a_trunk_of_mxfp4_is_close_to_the_processor),
    };

    return cmocka_run_group_tests(tests, devices_open, devices_close);
}
