/* sy_shard_export.c - a shard's form, and its rows out of the packed ones, byte by byte. */
#include "sy_shard.h"

#include <string.h>

#include "sy_shard_home_internal.h"
#include "sy_shard_internal.h"

void sy_shard_form_of(sy_shard_form *out, const sy_model *model, sy_dtype weights, uint32_t layer,
                      uint32_t expert)
{
    static const sy_role role[SY_SHARD_MATRICES] = {SY_ROLE_EXPERT_GATE, SY_ROLE_EXPERT_UP,
                                                    SY_ROLE_EXPERT_DOWN};

    *out = (sy_shard_form){0};
    if (!sy_shard_exists(model, layer, expert)) return;
    for (unsigned i = 0; i < SY_SHARD_MATRICES; i++) {
        const sy_tensor *t = sy_model_tensor(model, role[i], layer, expert);
        out->dtype[i] = weights == SY_DTYPE_NONE ? t->dtype : weights;
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

/* The next bytes of one part from byte `at` on, as many as one step gives, 1 to n: rows, the part
 * of a row, or the part of an item. */
static size_t export_step(uint8_t *dst, const sy_panels *w, uint64_t at, size_t n)
{
    const size_t item_bytes = item_bytes_of(w);
    const size_t row_bytes = sy_dtype_row_bytes(w->dtype, w->k);
    const uint32_t row = (uint32_t)(at / row_bytes);
    const uint32_t item = (uint32_t)(at % row_bytes / item_bytes);
    const size_t cut = at % item_bytes;
    uint8_t whole[2 + SY_QUANT_BLOCK]; /* the largest item is a Q8 block */

    if (cut > 0 || n < item_bytes) {
        const size_t part = SY_MIN(n, item_bytes - cut);
        unpack_row_part(whole, w, row, item, item + 1);
        memcpy(dst, whole + cut, part);
        return part;
    }
    if (item > 0 || n < row_bytes) {
        const uint32_t items = (uint32_t)SY_MIN(row_bytes / item_bytes - item, n / item_bytes);
        unpack_row_part(dst, w, row, item, item + items);
        return items * item_bytes;
    }
    const uint32_t rows = (uint32_t)SY_MIN((size_t)(w->n - row), n / row_bytes);
    sy_panels_unpack(dst, w, row, row + rows);
    return rows * row_bytes;
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
