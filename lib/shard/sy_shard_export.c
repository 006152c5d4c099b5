/* sy_shard_export.c - a shard's form, and its rows out of the packed ones, byte by byte. */
#include "sy_shard.h"

#include <string.h>

#include "sy_shard_home_internal.h"
#include "sy_shard_internal.h"

static const sy_role matrix_role[SY_SHARD_MATRICES] = {SY_ROLE_EXPERT_GATE, SY_ROLE_EXPERT_UP,
                                                       SY_ROLE_EXPERT_DOWN};

/* What a matrix is held as. */
static sy_dtype held_as(const sy_tensor *t, sy_dtype weights)
{
    if (sy_dtype_is_encoded(weights)) return sy_tensor_encoded(t) == weights ? weights : t->dtype;
    return weights == SY_DTYPE_NONE ? t->dtype : weights;
}

void sy_shard_form_of(sy_shard_form *out, const sy_model *model, sy_dtype weights, uint32_t layer,
                      uint32_t expert)
{
    *out = (sy_shard_form){0};
    if (!sy_shard_exists(model, layer, expert)) return;
    for (unsigned i = 0; i < SY_SHARD_MATRICES; i++) {
        const sy_tensor *t = sy_model_tensor(model, matrix_role[i], layer, expert);
        out->dtype[i] = held_as(t, weights);
        out->rows[i] = (uint32_t)t->shape[0];
        out->cols[i] = (uint32_t)t->shape[1];
    }
    out->n = SY_SHARD_MATRICES;
    if (sy_model_tensor(model, SY_ROLE_EXPERT_GATE_BIAS, layer, expert) == NULL) return;
    for (; out->n < SY_SHARD_PARTS_MAX; out->n++) {
        out->dtype[out->n] = SY_F32;
        out->rows[out->n] = out->rows[out->n - SY_SHARD_MATRICES];
        out->cols[out->n] = 1;
    }
}

static int has_encoded(const sy_model *model, sy_dtype weights, uint32_t layer)
{
    for (uint32_t expert = 0; sy_shard_exists(model, layer, expert); expert++)
        for (unsigned i = 0; i < SY_SHARD_MATRICES; i++)
            if (sy_tensor_encoded(sy_model_tensor(model, matrix_role[i], layer, expert)) == weights)
                return 1;
    return 0;
}

sy_status sy_shard_check_weights(const sy_model *model, sy_dtype weights, sy_error *err)
{
    const sy_model_desc *desc = sy_model_describe(model);
    const sy_tensor *first = NULL;
    sy_dtype encoded;

    if (!sy_dtype_is_encoded(weights)) return SY_OK;
    for (uint32_t layer = 0; layer < desc->n_layers; layer++) {
        if (has_encoded(model, weights, layer)) return SY_OK;
        if (first == NULL) first = sy_model_tensor(model, SY_ROLE_EXPERT_GATE, layer, 0);
    }
    if (first == NULL) return SY_OK; /* no layer has experts: there is nothing to hold */
    encoded = sy_tensor_encoded(first);
    sy_error_set(err, SY_EINVAL,
                 "--weights %s keeps what a checkpoint stores as %s, but the experts of %s are %s: "
                 "use --weights as-stored%s%s%s",
                 sy_dtype_name(weights), sy_dtype_name(weights), sy_model_name(model),
                 sy_dtype_name(encoded == SY_DTYPE_NONE ? first->dtype : encoded),
                 encoded == SY_DTYPE_NONE ? "" : ", ",
                 encoded == SY_DTYPE_NONE ? "" : sy_dtype_name(encoded),
                 sy_dtype_is_quant(first->dtype) ? "" : ", q8 or q4");
    sy_error_where(err, "SHARD_FORM", -1, -1, NULL);
    return SY_EINVAL;
}

uint64_t sy_shard_form_bytes(const sy_shard_form *form)
{
    uint64_t total = 0;

    for (unsigned i = 0; i < form->n; i++) {
        uint64_t bytes;
        if (__builtin_mul_overflow((uint64_t)sy_dtype_row_bytes(form->dtype[i], form->cols[i]),
                                   (uint64_t)form->rows[i], &bytes) ||
            __builtin_add_overflow(total, bytes, &total))
            return 0;
    }
    return total;
}

unsigned sy_shard_parts(const sy_shard *shard)
{
    if (shard->home != NULL) return sy_shard_home_form(shard->home)->n;
    return shard->gate_bias == NULL ? SY_SHARD_MATRICES : SY_SHARD_PARTS_MAX;
}

sy_panels sy_shard_part(const sy_shard *shard, unsigned i)
{
    switch (i) {
    case 0: return shard->gate;
    case 1: return shard->up;
    case 2: return shard->down;
    case 3: return (sy_panels){shard->gate_bias, SY_F32, shard->gate.n, 1};
    case 4: return (sy_panels){shard->up_bias, SY_F32, shard->up.n, 1};
    default: return (sy_panels){shard->down_bias, SY_F32, shard->down.n, 1};
    }
}

void sy_shard_form_in_memory(sy_shard_form *out, const sy_shard *shard)
{
    *out = (sy_shard_form){.n = sy_shard_parts(shard)};
    for (unsigned i = 0; i < out->n; i++) {
        const sy_panels w = sy_shard_part(shard, i);
        out->dtype[i] = w.dtype;
        out->rows[i] = w.n;
        out->cols[i] = w.k;
    }
}

/* ---- parts of rows, in items that cannot be cut further: elements, or blocks ---- */

static size_t item_bytes_of(const sy_panels *w)
{
    return sy_dtype_is_quant(w->dtype) ? sy_dtype_row_bytes(w->dtype, 1) : sy_dtype_bytes(w->dtype);
}

/* One block of one row: a panel of 32 columns, put together from the block's quants and, behind all
 * quants of the panel, its scales. */
static void unpack_block(uint8_t *dst, const sy_panels *w, uint32_t row, uint32_t block)
{
    enum { QUANT_BYTES_MAX = SY_PANEL * SY_QUANT_BLOCK, SCALE_BYTES = SY_PANEL * 2 };
    _Alignas(64) uint8_t one[QUANT_BYTES_MAX + 64];
    const size_t quant_bytes = QUANT_BYTES_MAX / (w->dtype == SY_Q4 ? 2 : 1);
    const size_t blocks = (w->k + SY_QUANT_BLOCK - 1) / SY_QUANT_BLOCK;
    const uint8_t *panel =
        (const uint8_t *)w->data + row / SY_PANEL * sy_panel_bytes(w->dtype, w->k);
    const sy_panels view = {one, w->dtype, SY_PANEL, SY_QUANT_BLOCK};

    memcpy(one, panel + block * quant_bytes, quant_bytes);
    memcpy(one + quant_bytes, panel + blocks * quant_bytes + (size_t)block * SCALE_BYTES,
           SCALE_BYTES);
    sy_panels_unpack(dst, &view, row % SY_PANEL, row % SY_PANEL + 1);
}

/* Items [begin, end) of one row. Where they are elements, a panel's lines lie one after another, so
 * some of them are a panel of a narrower matrix. */
static void unpack_row_part(uint8_t *dst, const sy_panels *w, uint32_t row, uint32_t begin,
                            uint32_t end)
{
    const size_t item_bytes = item_bytes_of(w);

    if (sy_dtype_is_quant(w->dtype)) {
        for (uint32_t block = begin; block < end; block++)
            unpack_block(dst + (block - begin) * item_bytes, w, row, block);
        return;
    }
    const size_t line = row / SY_PANEL * (size_t)w->k + begin;
    const sy_panels lines = {(const uint8_t *)w->data + line * SY_PANEL * item_bytes, w->dtype,
                             SY_PANEL, end - begin};

    sy_panels_unpack(dst, &lines, row % SY_PANEL, row % SY_PANEL + 1);
}

/* ---- parts of encoded rows, whose codes come first and whose factors at the end ---- */

static uint32_t encoded_inputs(sy_dtype dtype)
{
    return dtype == SY_FP8 ? SY_FP8_BLOCK : SY_QUANT_BLOCK;
}

static size_t factor_bytes_of(sy_dtype dtype)
{
    return dtype == SY_FP8 ? sizeof(float) : 1;
}

/* Of k inputs: in a row; and in a panel, where fp8's codes are filled up to whole lines. */
static size_t row_codes_bytes(sy_dtype dtype, uint32_t k)
{
    return dtype == SY_FP8 ? k : (k + SY_QUANT_BLOCK - 1) / SY_QUANT_BLOCK * (SY_QUANT_BLOCK / 2);
}

static size_t panel_codes_bytes(sy_dtype dtype, uint32_t k)
{
    return dtype == SY_FP8 ? ((size_t)k + 3) / 4 * 4 * SY_PANEL
                           : row_codes_bytes(dtype, k) * SY_PANEL;
}

/* One block of one row as a row of its own, codes and factor; as unpack_block. */
static void unpack_encoded_block(uint8_t *dst, const sy_panels *w, uint32_t row, uint32_t block)
{
    _Alignas(64) uint8_t one[SY_PANEL * (SY_FP8_BLOCK + sizeof(float))];
    const uint32_t first = block * encoded_inputs(w->dtype);
    const uint32_t n = SY_MIN(encoded_inputs(w->dtype), w->k - first);
    const size_t codes_bytes = panel_codes_bytes(w->dtype, n);
    const size_t factors_bytes = SY_PANEL * factor_bytes_of(w->dtype);
    const uint8_t *panel =
        (const uint8_t *)w->data + row / SY_PANEL * sy_panel_bytes(w->dtype, w->k);
    const sy_panels view = {one, w->dtype, SY_PANEL, n};

    memcpy(one, panel + panel_codes_bytes(w->dtype, first), codes_bytes);
    memcpy(one + codes_bytes, panel + panel_codes_bytes(w->dtype, w->k) + block * factors_bytes,
           factors_bytes);
    sy_panels_unpack(dst, &view, row % SY_PANEL, row % SY_PANEL + 1);
}

/* The next bytes of a row from byte `at` of it on: those of one block's codes, or of a factor. */
static size_t export_encoded(uint8_t *dst, const sy_panels *w, uint32_t row, size_t at, size_t n)
{
    const uint32_t inputs = encoded_inputs(w->dtype);
    const size_t codes_bytes = row_codes_bytes(w->dtype, w->k);
    const size_t block_bytes = row_codes_bytes(w->dtype, inputs);
    const size_t factor_bytes = factor_bytes_of(w->dtype);
    uint8_t one[SY_FP8_BLOCK + sizeof(float)];
    size_t block, begin, end; /* of the bytes in one */

    if (at < codes_bytes) {
        block = at / block_bytes;
        begin = at % block_bytes;
        end = SY_MIN(block_bytes, codes_bytes - block * block_bytes);
    } else {
        block = (at - codes_bytes) / factor_bytes;
        end = SY_MIN(block_bytes, codes_bytes - block * block_bytes) + factor_bytes;
        begin = end - factor_bytes + (at - codes_bytes) % factor_bytes;
    }
    n = SY_MIN(n, end - begin);
    unpack_encoded_block(one, w, row, (uint32_t)block);
    memcpy(dst, one + begin, n);
    return n;
}

/* ---- any part ---- */

/* The next bytes of one part from byte `at` on, as many as one step gives, 1 to n: rows, the part
 * of a row, or the part of an item. */
static size_t export_step(uint8_t *dst, const sy_panels *w, uint64_t at, size_t n)
{
    const size_t row_bytes = sy_dtype_row_bytes(w->dtype, w->k);
    const uint32_t row = (uint32_t)(at / row_bytes);

    if (at % row_bytes == 0 && n >= row_bytes) {
        const uint32_t rows = (uint32_t)SY_MIN((size_t)(w->n - row), n / row_bytes);
        sy_panels_unpack(dst, w, row, row + rows);
        return rows * row_bytes;
    }
    if (sy_dtype_is_encoded(w->dtype)) return export_encoded(dst, w, row, at % row_bytes, n);
    const size_t item_bytes = item_bytes_of(w);
    const uint32_t item = (uint32_t)(at % row_bytes / item_bytes);
    const size_t cut = at % item_bytes;
    uint8_t whole[2 + SY_QUANT_BLOCK]; /* the largest item is a Q8 block */

    if (cut > 0 || n < item_bytes) {
        const size_t part = SY_MIN(n, item_bytes - cut);
        unpack_row_part(whole, w, row, item, item + 1);
        memcpy(dst, whole + cut, part);
        return part;
    }
    const uint32_t items = (uint32_t)SY_MIN(row_bytes / item_bytes - item, n / item_bytes);
    unpack_row_part(dst, w, row, item, item + items);
    return items * item_bytes;
}

sy_status sy_shard_read(size_t *n_read, const sy_shard *shard, uint64_t offset, void *dst, size_t n,
                        sy_error *err)
{
    size_t *done = n_read;

    *done = 0;
    for (unsigned i = 0; i < sy_shard_parts(shard); i++) {
        const sy_panels w = sy_shard_part(shard, i);
        const uint64_t bytes = (uint64_t)w.n * sy_dtype_row_bytes(w.dtype, w.k);

        while (offset < bytes && *done < n) {
            const size_t most = (size_t)SY_MIN((uint64_t)(n - *done), bytes - offset);
            size_t step = 0;
            if (shard->home == NULL) {
                step = export_step((uint8_t *)dst + *done, &w, offset, most);
            } else {
                const sy_status st = sy_shard_home_export(&step, (uint8_t *)dst + *done, shard, i,
                                                          offset, most, err);
                if (st != SY_OK) return st;
            }
            *done += step;
            offset += step;
        }
        offset -= SY_MIN(offset, bytes);
    }
    return SY_OK;
}

size_t sy_shard_export(const sy_shard *shard, uint64_t offset, void *dst, size_t n)
{
    size_t done;
    const sy_status st = sy_shard_read(&done, shard, offset, dst, n, NULL);

    (void)st; /* what a device does not give is missing at the end */
    return done;
}
