/* sy_shard_identity.c - what a shard is: the hash of its stored bytes, read back from where they
 * lie packed, and the hash of its output for one row that every build knows.
 *
 * The probe row: element i is 2 * sy_unit_float(sy_splitmix64(i)) - 1, in [-1, 1). Its output is
 * hashed as fp32 in memory's order, a NaN (weights so large that sums overflow) as 0x7fc00000. */
#include "sy_shard.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sy_fault.h"
#include "sy_hash.h"
#include "sy_shard_internal.h"

/* Products that the reference kernels are asked for, a matrix: all of a small shard, some panels of
 * a large one, evenly chosen, so that a check costs a few milliseconds. */
#define REFERENCE_PRODUCTS_MAX ((size_t)1 << 18)

static sy_status content_of(uint64_t *out, const sy_shard *shard, uint8_t *stage)
{
    sy_digest_state *digest = sy_digest_open();

    if (digest == NULL) return SY_ENOMEM;
    for (unsigned i = 0; i < 3; i++) {
        const sy_panels *w = sy_shard_matrix(shard, i);
        const size_t row_bytes = w->k * sy_dtype_bytes(w->dtype);

        for (uint32_t row = 0; row < w->n; row += SY_PANEL) {
            const uint32_t rows = SY_MIN((uint32_t)SY_PANEL, w->n - row);
            sy_panels_unpack(stage, w, row, row + rows);
            sy_digest_add(digest, stage, rows * row_bytes);
        }
    }
    *out = sy_digest_value(digest);
    sy_digest_free(digest);
    return SY_OK;
}

static void canonical_nan(float *x, size_t n)
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

/* Rows [0, SY_PANEL) of a panel as a matrix of its own. */
static sy_panels panel_of(const sy_panels *w, size_t panel, uint32_t *n)
{
    const uint8_t *data = w->data;

    *n = SY_MIN((uint32_t)SY_PANEL, w->n - (uint32_t)(panel * SY_PANEL));
    return (sy_panels){data + panel * sy_panels_bytes(w->dtype, 1, w->k), w->dtype, *n, w->k};
}

static int differs(const float *got, float *want, uint32_t n)
{
    canonical_nan(want, n);
    return memcmp(got, want, n * sizeof(*got)) != 0;
}

/* The chosen panels with the reference kernels: h [F] from x, y [H] from h. NULL when they agree,
 * else the matrices that do not. */
static const char *check_with_reference(const sy_shard *shard, const float *x, const float *h,
                                        const float *y)
{
    const sy_kernels *ref = sy_kernels_at(0);
    float a[SY_PANEL], b[SY_PANEL];
    uint32_t n;

    for (size_t p = 0; p < sy_panels_count(shard->gate.n); p += panel_stride(&shard->gate)) {
        const sy_panels gate = panel_of(&shard->gate, p, &n);
        const sy_panels up = panel_of(&shard->up, p, &n);
        ref->matmul(a, SY_PANEL, x, gate.k, NULL, 1, &gate, 0, 1);
        ref->matmul(b, SY_PANEL, x, up.k, NULL, 1, &up, 0, 1);
        ref->swiglu(a, a, b, n);
        if (differs(h + p * SY_PANEL, a, n)) return "gate and up";
    }
    for (size_t p = 0; p < sy_panels_count(shard->down.n); p += panel_stride(&shard->down)) {
        const sy_panels down = panel_of(&shard->down, p, &n);
        ref->matmul(a, SY_PANEL, h, down.k, NULL, 1, &down, 0, 1);
        if (differs(y + p * SY_PANEL, a, n)) return "down";
    }
    return NULL;
}

static sy_status probe_of(uint64_t *out, const sy_shard *shard, const sy_kernels *kernels,
                          sy_error *err)
{
    const sy_shard_group group = {shard, 0, 1};
    const size_t hidden = shard->gate.k, n_out = shard->down.n;
    sy_shard_scratch scratch = {0};
    float *x = malloc(hidden * sizeof(*x));
    float *y = malloc(n_out * sizeof(*y));
    const char *wrong;
    sy_status st = SY_ENOMEM;

    if (x == NULL || y == NULL) goto out;
    for (size_t i = 0; i < hidden; i++) x[i] = 2 * sy_unit_float(sy_splitmix64(i)) - 1;
    SY_TRY(sy_shard_compute(y, x, hidden, NULL, &group, 1, &scratch, NULL, kernels));
    canonical_nan(y, n_out);
    canonical_nan(scratch.h, shard->gate.n);
    wrong = check_with_reference(shard, x, scratch.h, y);
    *out = sy_digest(y, n_out * sizeof(*y));
    if (wrong != NULL)
        st = sy_shard_refuse(shard, SY_EDATALOSS, "SHARD_PROBE", err,
                             "%s with the %s kernels does not give the reference's bits: do not "
                             "serve from this machine before its memory and processor are checked",
                             wrong, kernels->name);
out:
    if (st == SY_ENOMEM) sy_error_set(err, st, "no memory to probe a shard");
    sy_shard_scratch_free(&scratch);
    free(x);
    free(y);
    return st;
}

sy_status sy_shard_verify(sy_shard_builder *builder, sy_shard_identity *out,
                          const sy_kernels *kernels, sy_error *err)
{
    sy_shard_identity *identity = &builder->shard->identity;
    const uint64_t added = sy_digest_value(builder->digest);
    sy_status st;

    *out = (sy_shard_identity){0};
    if (builder->failed || builder->added_bytes != builder->total_bytes)
        return sy_shard_refuse(
            builder->shard, SY_EPRECONDITION, NULL, err, "%llu of %llu bytes are there",
            (unsigned long long)builder->added_bytes, (unsigned long long)builder->total_bytes);
    if (sy_fault_hit("shard.memory")) /* a bit that flips between arriving and being checked */
        ((uint8_t *)(uintptr_t)builder->shard->up.data)[0] ^= 1;
    st = content_of(&identity->content, builder->shard, builder->stage);
    if (st != SY_OK) return sy_error_set(err, st, "no memory to hash a shard");
    if (identity->content != added)
        return sy_shard_refuse(builder->shard, SY_EDATALOSS, "SHARD_CORRUPT", err,
                               "what arrived hashes to %016llx, what lies in memory to %016llx: "
                               "the file changed while it was read, or memory is damaged",
                               (unsigned long long)added, (unsigned long long)identity->content);
    st = probe_of(&identity->probe, builder->shard, kernels, err);
    if (st != SY_OK) return st;
    builder->verified = 1;
    *out = *identity;
    return SY_OK;
}

sy_status sy_shard_identify(sy_shard_identity *out, const sy_model *model, uint32_t layer,
                            uint32_t expert, const sy_kernels *kernels, sy_error *err)
{
    const sy_model_desc *desc = sy_model_describe(model);
    sy_shard_builder *builder;
    int done;
    sy_status st;

    *out = (sy_shard_identity){0};
    if (layer >= desc->n_layers || expert >= desc->n_experts)
        return sy_error_set(err, SY_ENOTFOUND, "the model has no layer %u expert %u", layer,
                            expert);
    st = sy_shard_builder_open(&builder, NULL, model, layer, expert, err);
    if (st != SY_OK) return st;
    st = sy_shard_add_from_checkpoint(builder, SIZE_MAX, &done, err);
    if (st == SY_OK) st = sy_shard_verify(builder, out, kernels, err);
    sy_shard_abandon(builder);
    return st;
}
