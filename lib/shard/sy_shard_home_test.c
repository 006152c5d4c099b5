/* sy_shard_home_test.c - whether a GPU computes right: at the start, with an expert that every
 * build knows, and later, with what is there.
 *
 * The rows of the known expert's matrices are chosen, by a hash of the row's number, among a few
 * variants, so that its reference takes no longer than so many rows: every element of every output
 * is checked. A row in the wrong place, a wrong input of a row, or a wrong scale all show.
 * Of fp8, rows have factors in common: those of a variant times a power of two that the block of
 * rows has, so that a product is known from its variant's. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sy_hash.h"
#include "sy_shard_home_internal.h"
#include "sy_shard_internal.h"

enum { VARIANTS = 61, TOKENS = 5, GATE = 0, UP = 1, DOWN = 2 };

/* Of an output's difference, to the root of the mean square of its token's. */
#define TOLERANCE 1e-2
/* So that gate's and up's outputs reach beyond what clamped families let pass, now and then. */
#define INPUT_SCALE 4.0f

/* Rows of a batch, from what one token is to what a prompt is: each way to compute has its turn.
 * The last is cut in two groups. */
static const uint32_t batch_rows[] = {1, 8, 20, 50, 130};

typedef struct self_test {
    sy_shard_home *home;
    uint32_t slot;
    uint32_t H, F;
    uint8_t *variant[2];  /* [VARIANTS] rows of H inputs, and of F, as they are held */
    size_t row_bytes[2];  /* of those */
    uint8_t *rows, *back; /* 16 rows of any part, as written and as read */
    float *x;             /* [TOKENS,H] of bf16's values */
    float *h;             /* [F] */
    float *want, *first;  /* [TOKENS,H]: the reference; what the device gave first */
    float *wide;          /* [max(H,F)] */
} self_test;

static float noise(uint64_t kind, uint64_t i)
{
    return 2 * sy_unit_float(sy_splitmix64(kind << 40 | i)) - 1;
}

static unsigned variant_of(unsigned part, uint32_t row)
{
    return (unsigned)(sy_splitmix64((uint64_t)part << 32 | row) % VARIANTS);
}

static float bias_of(const self_test *t, unsigned part, uint32_t row)
{
    if (t->home->form.n == SY_SHARD_MATRICES) return 0;
    return noise(16 + part, row) / 4;
}

/* What a row's weights are in units of its variant's: another number for each of three blocks, and
 * for the parts of a block. */
static float power_of(const self_test *t, unsigned part, uint32_t row)
{
    static const float power[] = {0.5f, 1, 2};

    if (t->home->form.dtype[0] != SY_FP8) return 1;
    return power[(part + row / SY_FP8_BLOCK) % SY_COUNT_OF(power)];
}

/* to: gets the row as it is held. */
static void make_row(const self_test *t, uint8_t *to, unsigned part, uint32_t row)
{
    const unsigned kind = part == DOWN;
    const size_t row_bytes = t->row_bytes[kind];
    const float power = power_of(t, part, row);

    memcpy(to, t->variant[kind] + variant_of(part, row) * row_bytes, row_bytes);
    if (t->home->form.dtype[0] != SY_FP8) return;
    for (uint8_t *at = to + (kind == 0 ? t->H : t->F); at < to + row_bytes; at += sizeof(float)) {
        float factor;
        memcpy(&factor, at, sizeof(factor));
        factor *= power;
        memcpy(at, &factor, sizeof(factor));
    }
}

/* ---- the expert ---- */

/* fp8: every block of inputs has a factor of its own, the same in all variants. */
static void encode_fp8(uint8_t *row, const float *wide, uint32_t k, float scale, unsigned kind)
{
    const float least = scale / 256; /* codes reach 448 */

    for (uint32_t i = 0; i < k; i++) {
        const uint32_t block = i / SY_FP8_BLOCK;
        const float factor = least * (1.5f + noise(8 + kind, block) / 2);
        row[i] = sy_f32_to_f8_e4m3(wide[i] / factor);
        memcpy(row + k + block * sizeof(factor), &factor, sizeof(factor));
    }
}

/* mxfp4: any codes, under one of two factors: what they mean is of about the right size. */
static void encode_mxfp4(uint8_t *row, uint32_t k, float scale, uint64_t seed)
{
    const uint32_t n_blocks = (k + SY_QUANT_BLOCK - 1) / SY_QUANT_BLOCK;
    const uint32_t n_codes = n_blocks * (SY_QUANT_BLOCK / 2);

    for (uint32_t i = 0; i < n_codes; i++) row[i] = (uint8_t)sy_splitmix64(seed << 32 | i);
    for (uint32_t i = 0; i < n_blocks; i++)
        row[n_codes + i] = (uint8_t)(127 + ilogbf(scale) - 3 + (int)(sy_splitmix64(seed + i) % 2));
}

static sy_status make_variants(const self_test *t, unsigned kind)
{
    const sy_dtype dtype = t->home->form.dtype[0];
    const uint32_t k = kind == 0 ? t->H : t->F;
    const float scale = (kind == 0 ? INPUT_SCALE : 1) * sqrtf(3.0f / (float)k);

    for (uint32_t v = 0; v < VARIANTS; v++) {
        uint8_t *row = t->variant[kind] + v * t->row_bytes[kind];
        for (uint32_t i = 0; i < k; i++) t->wide[i] = scale * noise(kind, (uint64_t)v * k + i);
        if (sy_dtype_is_quant(dtype)) {
            const sy_status st = sy_quantize_rows(row, dtype, t->wide, SY_F32, 1, k);
            if (st != SY_OK) return st;
        } else if (dtype == SY_FP8) {
            encode_fp8(row, t->wide, k, scale, kind);
        } else if (dtype == SY_MXFP4) {
            encode_mxfp4(row, k, scale, (uint64_t)kind << 8 | v);
        } else {
            for (uint32_t i = 0; i < k; i++) {
                const uint16_t value = sy_f32_to_bf16(t->wide[i]);
                memcpy(row + i * sizeof(value), &value, sizeof(value));
            }
        }
    }
    return SY_OK;
}

/* Rows [row, row + n) of a part, as they are held. */
static void make_rows(const self_test *t, unsigned part, uint32_t row, uint32_t n)
{
    const size_t row_bytes = part < SY_SHARD_MATRICES ? t->row_bytes[part == DOWN] : sizeof(float);

    for (uint32_t i = 0; i < n; i++) {
        const float bias = bias_of(t, part, row + i);
        if (part < SY_SHARD_MATRICES)
            make_row(t, t->rows + i * row_bytes, part, row + i);
        else
            memcpy(t->rows + i * row_bytes, &bias, sizeof(bias));
    }
}

static sy_status write_expert(const self_test *t, sy_error *err)
{
    const sy_shard_form *form = &t->home->form;

    for (unsigned part = 0; part < form->n; part++) {
        for (uint32_t row = 0; row < form->rows[part]; row += SY_PANEL) {
            const uint32_t n = SY_MIN((uint32_t)SY_PANEL, form->rows[part] - row);
            make_rows(t, part, row, n);
            const sy_status st = sy_shard_home_write(t->home, t->slot, part, row, n, t->rows, err);
            if (st != SY_OK) return st;
        }
    }
    return sy_shard_home_flush(t->home, t->slot, err);
}

static sy_status failed(const self_test *t, sy_error *err, const char *what, uint32_t a, uint32_t b)
{
    sy_error_set(err, SY_EDATALOSS,
                 "%s fails its self-test: %s (%u, %u): do not serve from this device before it is "
                 "checked (switchyard devices --measure)",
                 t->home->name, what, a, b);
    sy_error_where(err, "DEVICE_SELF_TEST", -1, -1, NULL);
    return SY_EDATALOSS;
}

static sy_status read_back(const self_test *t, sy_error *err)
{
    const sy_shard_form *form = &t->home->form;

    for (unsigned part = 0; part < form->n; part++) {
        const size_t row_bytes = sy_dtype_row_bytes(form->dtype[part], form->cols[part]);
        for (uint32_t row = 0; row < form->rows[part]; row += SY_PANEL) {
            const uint32_t n = SY_MIN((uint32_t)SY_PANEL, form->rows[part] - row);
            const sy_status st = sy_shard_home_read(t->back, t->home, t->slot, part, row, n, err);
            if (st != SY_OK) return st;
            make_rows(t, part, row, n);
            if (memcmp(t->back, t->rows, n * row_bytes) != 0)
                return failed(t, err, "weights come back changed (part, row)", part, row);
        }
    }
    return SY_OK;
}

/* ---- its reference ---- */

static void dot_variants(const self_test *t, float *out, unsigned kind, const float *x)
{
    const sy_dtype dtype = t->home->form.dtype[0];
    const uint32_t k = kind == 0 ? t->H : t->F;

    for (uint32_t v = 0; v < VARIANTS; v++)
        out[v] = sy_shard_reference_dot(t->variant[kind] + v * t->row_bytes[kind], dtype, x, k, 0,
                                        t->wide);
}

/* Of a row whose variant gives dot[]. */
static float product_of(const self_test *t, const float *dot, unsigned part, uint32_t row)
{
    return dot[variant_of(part, row)] * power_of(t, part, row) +
           bias_of(t, SY_SHARD_MATRICES + part, row);
}

static void make_reference(const self_test *t)
{
    float dot[VARIANTS];

    for (uint32_t token = 0; token < TOKENS; token++) {
        dot_variants(t, dot, 0, t->x + (size_t)token * t->H);
        for (uint32_t i = 0; i < t->F; i++)
            t->h[i] = sy_shard_reference_mlp(t->home, product_of(t, dot, GATE, i),
                                             product_of(t, dot, UP, i));
        dot_variants(t, dot, 1, t->h);
        for (uint32_t i = 0; i < t->H; i++)
            t->want[(size_t)token * t->H + i] = product_of(t, dot, DOWN, i);
    }
}

/* ---- its outputs ---- */

static sy_status run_batch(const self_test *t, uint32_t n_rows, int is_cut, sy_error *err)
{
    const sy_shard_lane *lane = &t->home->lane[t->home->n_lanes].memory;
    const uint32_t cut = is_cut ? n_rows / 4 + 1 : n_rows;
    const sy_backend_group group[] = {{t->slot, 0, cut}, {t->slot, cut, n_rows}};

    for (uint32_t token = 0; token < TOKENS; token++)
        for (uint32_t i = 0; i < t->H; i++)
            lane->x[token * lane->x_stride + i] = sy_f32_to_bf16(t->x[(size_t)token * t->H + i]);
    for (uint32_t r = 0; r < n_rows; r++) lane->x_row[r] = r % TOKENS;
    return sy_shard_home_run(t->home, TOKENS, n_rows, group, is_cut ? 2 : 1, err);
}

/* The first output of a token is held against the reference, every other one against the first. */
static sy_status check_row(const self_test *t, const float *y, uint32_t token, int is_first,
                           uint32_t n_rows, sy_error *err)
{
    float *first = t->first + (size_t)token * t->H;
    const float *want = t->want + (size_t)token * t->H;
    double square = 0;

    if (!is_first) {
        if (memcmp(y, first, t->H * sizeof(*y)) == 0) return SY_OK;
        return failed(t, err, "the bits of a token depend on its batch (token, rows of the batch)",
                      token, n_rows);
    }
    memcpy(first, y, t->H * sizeof(*y));
    for (uint32_t i = 0; i < t->H; i++) square += (double)want[i] * (double)want[i];
    const double most = TOLERANCE * sqrt(square / t->H);
    for (uint32_t i = 0; i < t->H; i++)
        if (!(fabs((double)y[i] - (double)want[i]) <= most)) /* a NaN as well */
            return failed(t, err, "a wrong output (token, element)", token, i);
    return SY_OK;
}

static sy_status check_batches(const self_test *t, sy_error *err)
{
    const float *y = t->home->lane[t->home->n_lanes].memory.y;
    uint32_t n_seen = 0;

    for (size_t b = 0; b < SY_COUNT_OF(batch_rows); b++) {
        const uint32_t n_rows = batch_rows[b];
        sy_status st = run_batch(t, n_rows, b + 1 == SY_COUNT_OF(batch_rows), err);
        for (uint32_t r = 0; r < n_rows && st == SY_OK; r++) {
            const uint32_t token = r % TOKENS;
            st = check_row(t, y + (size_t)r * t->H, token, token >= n_seen, n_rows, err);
            n_seen = SY_MAX(n_seen, token + 1);
        }
        if (st != SY_OK) return st;
    }
    return SY_OK;
}

/* ---- all of it ---- */

static void self_test_close(const self_test *t)
{
    free(t->variant[0]);
    free(t->variant[1]);
    free(t->rows);
    free(t->back);
    free(t->x);
    free(t->h);
    free(t->want);
    free(t->first);
    free(t->wide);
}

static sy_status self_test_open(self_test *t, sy_shard_home *home, sy_error *err)
{
    const sy_shard_form *form = &home->form;
    const uint32_t H = form->cols[0], F = form->rows[0];
    const size_t outputs = (size_t)TOKENS * H * sizeof(float);

    *t = (self_test){.home = home, .H = H, .F = F};
    for (unsigned kind = 0; kind < 2; kind++) {
        t->row_bytes[kind] = sy_dtype_row_bytes(form->dtype[0], kind == 0 ? H : F);
        t->variant[kind] = malloc(VARIANTS * t->row_bytes[kind]);
    }
    const size_t block_bytes =
        SY_PANEL * SY_MAX(SY_MAX(t->row_bytes[0], t->row_bytes[1]), sizeof(float));
    t->rows = malloc(block_bytes);
    t->back = malloc(block_bytes);
    t->x = malloc(outputs);
    t->h = malloc(F * sizeof(float));
    t->want = malloc(outputs);
    t->first = malloc(outputs);
    t->wide = malloc(SY_MAX(H, F) * sizeof(float));
    if (t->variant[0] == NULL || t->variant[1] == NULL || t->rows == NULL || t->back == NULL ||
        t->x == NULL || t->h == NULL || t->want == NULL || t->first == NULL || t->wide == NULL ||
        make_variants(t, 0) != SY_OK || make_variants(t, 1) != SY_OK)
        return sy_error_set(err, SY_ENOMEM, "no memory for the self-test of %s", home->name);
    for (size_t i = 0; i < (size_t)TOKENS * H; i++)
        t->x[i] = sy_bf16_to_f32(sy_f32_to_bf16(noise(2, i)));
    return SY_OK;
}

sy_status sy_shard_home_self_test(sy_shard_home *home, sy_error *err)
{
    self_test t;
    sy_status st = self_test_open(&t, home, err);

    if (st == SY_OK) st = sy_shard_home_take(&t.slot, home, err);
    if (st != SY_OK) {
        self_test_close(&t);
        return st;
    }
    make_reference(&t);
    st = write_expert(&t, err);
    if (st == SY_OK) st = read_back(&t, err);
    if (st == SY_OK) {
        pthread_mutex_lock(&home->probe);
        st = check_batches(&t, err);
        pthread_mutex_unlock(&home->probe);
    }
    sy_shard_home_settle(home, t.slot);
    sy_shard_home_give(home, t.slot);
    self_test_close(&t);
    return st;
}

sy_status sy_shard_home_reprobe(const sy_shard *shard, sy_error *err)
{
    uint64_t probe;
    const sy_status st = sy_shard_home_output(&probe, NULL, shard, err);

    if (st != SY_OK || probe == shard->identity.probe) return st;
    return sy_shard_refuse(shard, SY_EDATALOSS, "DEVICE_PROBE", err,
                           "its output on %s hashes to %016llx, and to %016llx when it was "
                           "verified: the memory of the device or the device is damaged",
                           sy_shard_home_name(shard->home), (unsigned long long)probe,
                           (unsigned long long)shard->identity.probe);
}
