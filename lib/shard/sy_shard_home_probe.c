/* sy_shard_home_probe.c - what a shard on a GPU gives for the row that every build knows, held
 * against a reference in double precision, which reads the weights back from the device. Exact in
 * everything but the device's sums: x and h are rounded to bf16, as the kernels round them. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sy_clock.h"
#include "sy_digest.h"
#include "sy_shard_home_internal.h"
#include "sy_shard_internal.h"

/* Products that the reference is asked for in Down: all of a small shard, some blocks of rows of a
 * large one, evenly chosen. Gate and Up are needed whole. */
#define DOWN_PRODUCTS_MAX ((size_t)1 << 18)
/* Of the difference's length to the reference's. Sums in fp32 stay far below; a wrong fragment, row
 * or scale is far above. */
#define TOLERANCE 1e-2
#define IN_RANGE  ((double)FLT_MAX / 2)
/* One row of one expert takes microseconds. */
#define BATCH_LIMIT_US (60 * (int64_t)1000000)

/* ---- one batch on the probe's lane ---- */

sy_status sy_shard_home_run(sy_shard_home *home, uint32_t n_x, uint32_t n_rows,
                            const sy_backend_group *group, uint32_t n_groups, sy_error *err)
{
    enum { LOOK_US = 100000 };
    const int64_t deadline = sy_clock_us() + BATCH_LIMIT_US;
    char why[SY_BACKEND_WHY_BYTES] = "";
    float device_us;
    int done = 0;
    sy_status st;

    if (sy_shard_home_lost(home, err)) return SY_EUNAVAILABLE;
    st = sy_shard_home_result(
        home, home->backend->submit(home->pool, home->n_lanes, n_x, n_rows, group, n_groups, why),
        why, err);
    while (st == SY_OK && !done) {
        if (sy_clock_us() > deadline) /* the lane is never free again */
            return sy_shard_home_result(home, SY_BACKEND_EDEVLOST,
                                        "a small batch was not done within a minute", err);
        st = sy_shard_home_result(
            home, home->backend->wait(&done, &device_us, home->pool, home->n_lanes, LOOK_US, why),
            why, err);
    }
    return st;
}

sy_status sy_shard_home_output(uint64_t *out, float *y, const sy_shard *shard, sy_error *err)
{
    sy_shard_home *home = shard->home;
    const sy_shard_lane *lane = &home->lane[home->n_lanes].memory;
    const sy_backend_group group = {shard->slot, 0, 1};
    sy_status st;

    *out = 0;
    pthread_mutex_lock(&home->probe);
    for (size_t i = 0; i < shard->gate.k; i++) lane->x[i] = sy_f32_to_bf16(sy_shard_probe_input(i));
    lane->x_row[0] = 0;
    st = sy_shard_home_run(home, 1, 1, &group, 1, err);
    if (st == SY_OK) {
        if (y != NULL) memcpy(y, lane->y, shard->down.n * sizeof(*y));
        sy_shard_canonical_nan(lane->y, shard->down.n);
        *out = sy_digest(lane->y, shard->down.n * sizeof(*lane->y));
    }
    pthread_mutex_unlock(&home->probe);
    return st;
}

/* ---- the reference ---- */

float sy_shard_reference_dot(const void *row, sy_dtype dtype, const float *x, uint32_t k,
                             float bias, float *wide)
{
    enum { CHAINS = 8 }; /* so that several additions are under way */
    const uint32_t whole = k / CHAINS * CHAINS;
    double sum[CHAINS] = {0}, all = (double)bias;

    sy_dtype_widen(wide, row, dtype, k);
    for (uint32_t i = 0; i < whole; i += CHAINS)
        for (uint32_t j = 0; j < CHAINS; j++) sum[j] += (double)wide[i + j] * (double)x[i + j];
    for (uint32_t i = whole; i < k; i++) all += (double)wide[i] * (double)x[i];
    for (uint32_t j = 0; j < CHAINS; j++) all += sum[j];
    return fabs(all) < IN_RANGE ? (float)all : NAN;
}

/* 1: no order of additions of the latest row that was widened leaves fp32's range. */
static int stays_in_range(const float *wide, const float *x, uint32_t k, float bias)
{
    double reach = fabs((double)bias);

    for (uint32_t i = 0; i < k; i++) reach += fabs((double)wide[i] * (double)x[i]);
    return reach < IN_RANGE;
}

float sy_shard_reference_mlp(const sy_shard_home *home, float g, float u)
{
    const double limit = (double)home->mlp_limit;
    double h;

    if (home->mlp == SY_MLP_CLAMPED && !isnan(g) && !isnan(u)) {
        const double a = fmin((double)g, limit), b = fmax(fmin((double)u, limit), -limit);
        h = (b + 1) * (a / (1 + exp(-(1.702 * a))));
    } else {
        h = (double)g / (1 + exp(-(double)g)) * (double)u;
    }
    return fabs(h) < IN_RANGE ? sy_bf16_to_f32(sy_f32_to_bf16((float)h)) : NAN;
}

typedef struct reference {
    const sy_shard *shard;
    uint8_t *rows[2];      /* 16 of Gate or Down, and of Up */
    float *x, *h, *wide;   /* [H], [F], [max(H,F)] */
    float *bias[3];        /* [F], [F], [H]: zeros where there are none */
    int is_careful;        /* what fp32 may not be able to add up is undecided: a NaN */
    double wrong2, right2; /* squares of the difference's and the reference's length so far */
} reference;

static void reference_close(reference *r)
{
    free(r->rows[0]);
    free(r->rows[1]);
    free(r->x);
    free(r->h);
    free(r->wide);
    for (int i = 0; i < 3; i++) free(r->bias[i]);
}

static sy_status read_block(reference *r, uint8_t *rows, unsigned part, uint32_t row, uint32_t *n,
                            sy_error *err)
{
    const sy_panels w = sy_shard_part(r->shard, part);

    *n = SY_MIN((uint32_t)SY_PANEL, w.n - row);
    return sy_shard_home_read(rows, r->shard->home, r->shard->slot, part, row, *n, err);
}

static sy_status reference_open(reference *r, const sy_shard *shard, sy_error *err)
{
    const uint32_t H = shard->gate.k, F = shard->gate.n, most = SY_MAX(H, F);
    const size_t row_bytes = sy_dtype_row_bytes(shard->gate.dtype, most);

    *r = (reference){.shard = shard};
    for (int i = 0; i < 2; i++) r->rows[i] = malloc(SY_PANEL * row_bytes);
    for (unsigned i = 0; i < 3; i++) r->bias[i] = calloc(most, sizeof(float));
    r->x = malloc(H * sizeof(float));
    r->h = malloc(F * sizeof(float));
    r->wide = malloc(most * sizeof(float));
    if (r->rows[0] == NULL || r->rows[1] == NULL || r->bias[0] == NULL || r->bias[1] == NULL ||
        r->bias[2] == NULL || r->x == NULL || r->h == NULL || r->wide == NULL)
        return sy_error_set(err, SY_ENOMEM, "no memory to probe a shard");
    for (uint32_t i = 0; i < H; i++)
        r->x[i] = sy_bf16_to_f32(sy_f32_to_bf16(sy_shard_probe_input(i)));
    for (unsigned i = SY_SHARD_MATRICES; i < sy_shard_parts(shard); i++) {
        const uint32_t n = sy_shard_part(shard, i).n;
        const sy_status st = sy_shard_home_read(r->bias[i - SY_SHARD_MATRICES], shard->home,
                                                shard->slot, i, 0, n, err);
        if (st != SY_OK) return st;
    }
    return SY_OK;
}

/* Row i of those in `rows`. */
static float reference_row(const reference *r, const uint8_t *rows, uint32_t i, const sy_panels *w,
                           const float *x, float bias)
{
    const uint8_t *row = rows + i * sy_dtype_row_bytes(w->dtype, w->k);
    const float y = sy_shard_reference_dot(row, w->dtype, x, w->k, bias, r->wide);

    return r->is_careful && !stays_in_range(r->wide, x, w->k, bias) ? NAN : y;
}

static sy_status reference_h(reference *r, sy_error *err)
{
    enum { GATE, UP };
    const sy_panels *w = &r->shard->gate;
    uint32_t n;

    for (uint32_t row = 0; row < w->n; row += SY_PANEL) {
        sy_status st = read_block(r, r->rows[0], GATE, row, &n, err);
        if (st == SY_OK) st = read_block(r, r->rows[1], UP, row, &n, err);
        if (st != SY_OK) return st;
        for (uint32_t i = 0; i < n; i++) {
            const float g = reference_row(r, r->rows[0], i, w, r->x, r->bias[GATE][row + i]);
            const float u = reference_row(r, r->rows[1], i, w, r->x, r->bias[UP][row + i]);
            r->h[row + i] = sy_shard_reference_mlp(r->shard->home, g, u);
        }
    }
    return SY_OK;
}

/* Output rows whose reference is undecided do not count. */
static sy_status compare_down(reference *r, const float *y, sy_error *err)
{
    enum { DOWN = 2 };
    const sy_panels *w = &r->shard->down;
    const size_t most = SY_MAX(DOWN_PRODUCTS_MAX / ((size_t)w->k * SY_PANEL), (size_t)1);
    const size_t stride = (sy_panels_count(w->n) + most - 1) / most;

    for (size_t row = 0; row < w->n; row += stride * SY_PANEL) {
        uint32_t n;
        const sy_status st = read_block(r, r->rows[0], DOWN, (uint32_t)row, &n, err);
        if (st != SY_OK) return st;
        for (uint32_t i = 0; i < n; i++) {
            const float want = reference_row(r, r->rows[0], i, w, r->h, r->bias[DOWN][row + i]);
            if (isnan(want) && r->is_careful) continue;
            const double wrong = (double)y[row + i] - (double)want;
            r->wrong2 += wrong * wrong;
            r->right2 += (double)want * (double)want;
        }
    }
    return SY_OK;
}

/* *agrees: as far as the reference is decided. */
static sy_status check_output(int *agrees, reference *r, const float *y, int is_careful,
                              sy_error *err)
{
    r->is_careful = is_careful;
    r->wrong2 = r->right2 = 0;
    sy_status st = reference_h(r, err);
    if (st == SY_OK) st = compare_down(r, y, err);
    *agrees = r->wrong2 <= TOLERANCE * TOLERANCE * r->right2; /* no infinity, no NaN */
    return st;
}

sy_status sy_shard_home_probe(uint64_t *out, const sy_shard *shard, sy_error *err)
{
    float *y = malloc(shard->down.n * sizeof(*y));
    reference r = {0};
    int agrees;
    sy_status st;

    *out = 0;
    if (y == NULL) return sy_error_set(err, SY_ENOMEM, "no memory to probe a shard");
    SY_TRY(reference_open(&r, shard, err));
    SY_TRY(sy_shard_home_output(out, y, shard, err));
    SY_TRY(check_output(&agrees, &r, y, 0, err));
    if (!agrees) SY_TRY(check_output(&agrees, &r, y, 1, err)); /* weights may be huge: it is slow */
    if (!agrees)
        st = sy_shard_refuse(shard, SY_EDATALOSS, "SHARD_PROBE", err,
                             "its output on %s is %.3g of the reference's length away from it, "
                             "which rounding does not explain: do not serve from this device "
                             "before it is checked (switchyard devices --measure)",
                             sy_shard_home_name(shard->home), sqrt(r.wrong2 / r.right2));
out:
    reference_close(&r);
    free(y);
    return st;
}
