/* sy_shard_probe.c - what a shard gives for one row that every build knows, held against the
 * reference kernels.
 *
 * The row: element i is 2 * sy_unit_float(sy_splitmix64(i)) - 1, in [-1, 1). Its output is hashed
 * as fp32 in memory's order, a NaN (weights so large that sums overflow) as 0x7fc00000. */
#include "sy_shard.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sy_hash.h"
#include "sy_shard_home_internal.h"
#include "sy_shard_internal.h"

/* Products that the reference kernels are asked for, a matrix: all of a small shard, some panels of
 * a large one, evenly chosen, so that a check costs a few milliseconds. */
#define REFERENCE_PRODUCTS_MAX ((size_t)1 << 18)

enum { BLOCK_PANELS = SY_QUANT_BLOCK / SY_PANEL };

typedef struct probe {
    const sy_shard *shard;
    float *x, *y; /* [H] */
    sy_shard_scratch scratch;
    void *rounded; /* of the reference kernels, with int8 or bf16 activations: x */
    sy_qrows x_rounded;
} probe;

float sy_shard_probe_input(size_t i)
{
    return 2 * sy_unit_float(sy_splitmix64(i)) - 1;
}

void sy_shard_canonical_nan(float *x, size_t n)
{
    static const uint32_t bits = 0x7fc00000u;

    for (size_t i = 0; i < n; i++)
        if (isnan(x[i])) memcpy(&x[i], &bits, sizeof(bits));
}

/* Every stride-th panel is within the limit on products. */
static size_t panel_stride(const sy_panels *w)
{
    const size_t panels = sy_panels_count(w->n);
    const size_t most = SY_MAX(REFERENCE_PRODUCTS_MAX / ((size_t)w->k * SY_PANEL), (size_t)1);

    return (panels + most - 1) / most;
}

/* `panels` panels from one on as a matrix of its own. */
static sy_panels panels_of(const sy_panels *w, size_t panel, uint32_t panels)
{
    const uint8_t *data = w->data;
    const uint32_t n = SY_MIN((uint32_t)SY_PANEL * panels, w->n - (uint32_t)(panel * SY_PANEL));

    return (sy_panels){data + panel * sy_panels_bytes(w->dtype, 1, w->k), w->dtype, n, w->k};
}

static int differs(float *got, float *want, uint32_t n)
{
    sy_shard_canonical_nan(got, n);
    sy_shard_canonical_nan(want, n);
    return memcmp(got, want, n * sizeof(*got)) != 0;
}

/* What the reference kernels make of gate's and up's output in a row's n columns from panel `panel`
 * on: in place of gate's. */
static void between(const sy_shard *s, float *gate, float *up, size_t panel, uint32_t n)
{
    const sy_kernels *ref = sy_kernels_at(0);
    const size_t col = panel * SY_PANEL;

    sy_shard_add_bias(gate, 0, s->gate_bias, col, 1, n, ref);
    sy_shard_add_bias(up, 0, s->up_bias, col, 1, n, ref);
    sy_shard_activate(s, gate, up, n, ref);
}

/* ---- fp32 activations ---- */

static const char *check_floats(const probe *p)
{
    const sy_kernels *ref = sy_kernels_at(0);
    const sy_shard *s = p->shard;
    float *h = p->scratch.h, a[SY_PANEL], b[SY_PANEL];

    for (size_t i = 0; i < sy_panels_count(s->gate.n); i += panel_stride(&s->gate)) {
        const sy_panels gate = panels_of(&s->gate, i, 1), up = panels_of(&s->up, i, 1);
        ref->matmul(a, SY_PANEL, p->x, gate.k, NULL, 1, &gate, 0, 1);
        ref->matmul(b, SY_PANEL, p->x, up.k, NULL, 1, &up, 0, 1);
        between(s, a, b, i, gate.n);
        if (differs(h + i * SY_PANEL, a, gate.n)) return "gate and up";
    }
    for (size_t i = 0; i < sy_panels_count(s->down.n); i += panel_stride(&s->down)) {
        const sy_panels down = panels_of(&s->down, i, 1);
        ref->matmul(a, SY_PANEL, h, down.k, NULL, 1, &down, 0, 1);
        sy_shard_add_bias(a, 0, s->down_bias, i * SY_PANEL, 1, down.n, ref);
        if (differs(p->y + i * SY_PANEL, a, down.n)) return "down";
    }
    return NULL;
}

/* ---- int8 activations ---- */

/* One block of h, rounded, against the one that was computed. */
static int block_differs(const probe *p, const float *h, uint32_t n, size_t block)
{
    const sy_qrows *got = &p->scratch.h_rounded;
    _Alignas(64) int8_t q[SY_QUANT_BLOCK];
    float scale;
    int32_t sum;
    const sy_qrows want = {q, &scale, &sum, SY_QUANT_BLOCK, 1};

    sy_kernels_at(0)->quantize(&want, 0, h, SY_QUANT_BLOCK, 1, n);
    return memcmp(q, got->q + block * SY_QUANT_BLOCK, sizeof(q)) != 0 ||
           differs(&got->scale[block], &scale, 1) || got->sum[block] != sum;
}

static const char *check_rounded(const probe *p)
{
    const sy_kernels *ref = sy_kernels_at(0);
    const sy_shard *s = p->shard;
    const sy_qrows *x = &p->x_rounded;
    float a[SY_QUANT_BLOCK], b[SY_QUANT_BLOCK];

    ref->quantize(x, 0, p->x, s->gate.k, 1, s->gate.k);
    for (size_t i = 0; i < sy_panels_count(s->gate.n); i += BLOCK_PANELS * panel_stride(&s->gate)) {
        const sy_panels gate = panels_of(&s->gate, i, BLOCK_PANELS);
        const sy_panels up = panels_of(&s->up, i, BLOCK_PANELS);
        ref->matmul_q8(a, SY_QUANT_BLOCK, x, NULL, 1, &gate, 0, sy_panels_count(gate.n));
        ref->matmul_q8(b, SY_QUANT_BLOCK, x, NULL, 1, &up, 0, sy_panels_count(up.n));
        between(s, a, b, i, gate.n);
        if (block_differs(p, a, gate.n, i / BLOCK_PANELS)) return "gate and up";
    }
    for (size_t i = 0; i < sy_panels_count(s->down.n); i += panel_stride(&s->down)) {
        const sy_panels down = panels_of(&s->down, i, 1);
        ref->matmul_q8(a, SY_PANEL, &p->scratch.h_rounded, NULL, 1, &down, 0, 1);
        sy_shard_add_bias(a, 0, s->down_bias, i * SY_PANEL, 1, down.n, ref);
        if (differs(p->y + i * SY_PANEL, a, down.n)) return "down";
    }
    return NULL;
}

/* ---- bf16 activations ---- */

static const char *check_pairs(const probe *p)
{
    const sy_kernels *ref = sy_kernels_at(0);
    const sy_shard *s = p->shard;
    uint16_t *x = p->rounded, pairs[SY_PANEL];
    const uint16_t *h = p->scratch.h_pairs;
    float a[SY_PANEL], b[SY_PANEL];

    ref->round_bf16(x, p->x, s->gate.k);
    for (size_t i = 0; i < sy_panels_count(s->gate.n); i += panel_stride(&s->gate)) {
        const sy_panels gate = panels_of(&s->gate, i, 1), up = panels_of(&s->up, i, 1);
        ref->matmul_bf16(a, SY_PANEL, x, gate.k, NULL, 1, &gate, 0, 1);
        ref->matmul_bf16(b, SY_PANEL, x, up.k, NULL, 1, &up, 0, 1);
        between(s, a, b, i, gate.n);
        ref->round_bf16(pairs, a, gate.n);
        if (memcmp(h + i * SY_PANEL, pairs, gate.n * sizeof(*pairs)) != 0) return "gate and up";
    }
    for (size_t i = 0; i < sy_panels_count(s->down.n); i += panel_stride(&s->down)) {
        const sy_panels down = panels_of(&s->down, i, 1);
        ref->matmul_bf16(a, SY_PANEL, h, down.k, NULL, 1, &down, 0, 1);
        sy_shard_add_bias(a, 0, s->down_bias, i * SY_PANEL, 1, down.n, ref);
        if (differs(p->y + i * SY_PANEL, a, down.n)) return "down";
    }
    return NULL;
}

/* ---- the probe ---- */

static sy_status probe_open(probe *p, const sy_shard *shard)
{
    const size_t bytes = shard->activations == SY_ACT_Q8 ? sy_qrows_bytes(1, shard->gate.k)
                                                         : shard->gate.k * sizeof(uint16_t);

    *p = (probe){.shard = shard};
    p->x = malloc(shard->gate.k * sizeof(*p->x));
    p->y = malloc(shard->down.n * sizeof(*p->y));
    if (p->x == NULL || p->y == NULL) return SY_ENOMEM;
    for (size_t i = 0; i < shard->gate.k; i++) p->x[i] = sy_shard_probe_input(i);
    if (shard->activations == SY_ACT_F32) return SY_OK;
    p->rounded = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (p->rounded == NULL) return SY_ENOMEM;
    if (shard->activations == SY_ACT_Q8) sy_qrows_at(&p->x_rounded, p->rounded, 1, shard->gate.k);
    return SY_OK;
}

static void probe_close(probe *p)
{
    sy_shard_scratch_free(&p->scratch);
    free(p->rounded);
    free(p->x);
    free(p->y);
}

sy_status sy_shard_probe(uint64_t *out, const sy_shard *shard, const sy_kernels *kernels,
                         sy_error *err)
{
    static const char *(*const check[])(const probe *p) = {
        [SY_ACT_F32] = check_floats, [SY_ACT_Q8] = check_rounded, [SY_ACT_BF16] = check_pairs};
    const sy_shard_group group = {shard, 0, 1};
    const char *wrong;
    probe p;
    sy_status st;

    SY_TRY(probe_open(&p, shard));
    SY_TRY(sy_shard_compute(p.y, p.x, shard->gate.k, NULL, &group, 1, &p.scratch, NULL, kernels));
    wrong = check[shard->activations](&p);
    sy_shard_canonical_nan(p.y, shard->down.n);
    *out = sy_digest(p.y, shard->down.n * sizeof(*p.y));
    if (wrong != NULL)
        st = sy_shard_refuse(shard, SY_EDATALOSS, "SHARD_PROBE", err,
                             "%s with the %s kernels does not give the reference's bits: do not "
                             "serve from this machine before its memory and processor are checked",
                             wrong, kernels->name);
out:
    if (st == SY_ENOMEM) sy_error_set(err, st, "no memory to probe a shard");
    probe_close(&p);
    return st;
}
