/* sy_shard_home_rows.c - weights into a slot and out of it, as rows, as hashes, and from one GPU to
 * another. */
#include <stdlib.h>
#include <string.h>

#include "sy_shard_home_internal.h"
#include "sy_shard_internal.h"

/* What a content hash reads back at once, about. */
#define READ_BYTES ((size_t)1 << 20)

/* The one thing about rows that a device may have to refuse. */
static sy_status refuse_factors(const sy_shard_home *home, const char *why, sy_error *err)
{
    sy_error_set(err, SY_EUNIMPLEMENTED,
                 "%s cannot hold these weights as fp8: %s: --weights as-stored would do",
                 home->name, why);
    sy_error_where(err, "DEVICE_WEIGHTS", -1, -1, NULL);
    return SY_EUNIMPLEMENTED;
}

sy_status sy_shard_home_write(sy_shard_home *home, uint32_t slot, unsigned part, uint32_t row,
                              uint32_t n_rows, const void *rows, sy_error *err)
{
    char why[SY_BACKEND_WHY_BYTES] = "";

    if (sy_shard_home_lost(home, err)) return SY_EUNAVAILABLE;
    const int result = home->backend->slot_write(home->pool, slot, part, row, n_rows, rows, why);
    if (result == SY_BACKEND_EINVAL && part < SY_SHARD_MATRICES && home->form.dtype[part] == SY_FP8)
        return refuse_factors(home, why, err);
    return sy_shard_home_result(home, result, why, err);
}

sy_status sy_shard_home_flush(sy_shard_home *home, uint32_t slot, sy_error *err)
{
    char why[SY_BACKEND_WHY_BYTES] = "";

    if (sy_shard_home_lost(home, err)) return SY_EUNAVAILABLE;
    return sy_shard_home_result(home, home->backend->slot_flush(home->pool, slot, why), why, err);
}

void sy_shard_home_settle(sy_shard_home *home, uint32_t slot)
{
    const sy_status st = sy_shard_home_flush(home, slot, NULL);

    (void)st; /* a device that is lost writes nothing either */
}

static sy_status read_locked(void *rows, sy_shard_home *home, uint32_t slot, unsigned part,
                             uint32_t row, uint32_t n_rows, sy_error *err)
{
    char why[SY_BACKEND_WHY_BYTES] = "";

    if (sy_shard_home_lost(home, err)) return SY_EUNAVAILABLE;
    return sy_shard_home_result(
        home, home->backend->slot_read(rows, home->pool, slot, part, row, n_rows, why), why, err);
}

sy_status sy_shard_home_read(void *rows, sy_shard_home *home, uint32_t slot, unsigned part,
                             uint32_t row, uint32_t n_rows, sy_error *err)
{
    pthread_mutex_lock(&home->reads);
    const sy_status st = read_locked(rows, home, slot, part, row, n_rows, err);
    pthread_mutex_unlock(&home->reads);
    return st;
}

sy_status sy_shard_home_hash(uint64_t *out, sy_shard_home *home, uint32_t slot, sy_error *err)
{
    char why[SY_BACKEND_WHY_BYTES] = "";

    *out = 0;
    if (sy_shard_home_lost(home, err)) return SY_EUNAVAILABLE;
    pthread_mutex_lock(&home->reads);
    const int result = home->backend->slot_hash(out, home->pool, slot, why);
    pthread_mutex_unlock(&home->reads);
    return sy_shard_home_result(home, result, why, err);
}

/* ---- from one to another ---- */

int sy_shard_home_is_alike(const sy_shard_home *a, const sy_shard_home *b)
{
    return a->backend == b->backend && a->info.slot_bytes == b->info.slot_bytes;
}

/* A copy touches two devices: whichever is lost says so once more when it is asked alone. */
static sy_status who_is_lost(sy_shard_home *to, uint32_t to_slot, const sy_shard *from,
                             const char *why, sy_error *err)
{
    sy_shard_home *home = from->home;
    char said[SY_BACKEND_WHY_BYTES] = "";

    if (home->backend->slot_flush(home->pool, from->slot, said) == SY_BACKEND_EDEVLOST)
        sy_shard_home_lose(home, said);
    if (to->backend->slot_flush(to->pool, to_slot, said) == SY_BACKEND_EDEVLOST)
        sy_shard_home_lose(to, said);
    if (sy_shard_home_lost(to, err) || sy_shard_home_lost(home, err)) return SY_EUNAVAILABLE;
    return sy_shard_home_result(to, SY_BACKEND_EDEVLOST, why, err);
}

sy_status sy_shard_home_copy(sy_shard_home *to, uint32_t to_slot, const sy_shard *from,
                             uint64_t offset, uint64_t n, sy_error *err)
{
    sy_shard_home *home = from->home;
    char why[SY_BACKEND_WHY_BYTES] = "";
    sy_status st;

    if (sy_shard_home_lost(to, err) || sy_shard_home_lost(home, err)) return SY_EUNAVAILABLE;
    pthread_mutex_lock(&home->reads);
    const int result =
        to->backend->slot_copy(to->pool, to_slot, home->pool, from->slot, offset, n, why);
    if (result == SY_BACKEND_EDEVLOST)
        st = who_is_lost(to, to_slot, from, why, err);
    else
        st = sy_shard_home_result(to, result, why, err);
    pthread_mutex_unlock(&home->reads);
    return st;
}

/* ---- as bytes ---- */

/* The device gives whole blocks of 16 rows: they go to dst as they are, or through home->block. */
static sy_status export_locked(size_t *n_read, void *dst, const sy_shard *shard, unsigned part,
                               uint64_t at, size_t n, sy_error *err)
{
    sy_shard_home *home = shard->home;
    const sy_panels w = sy_shard_part(shard, part);
    const size_t row_bytes = sy_dtype_row_bytes(w.dtype, w.k);
    const uint32_t row = (uint32_t)(at / row_bytes) / SY_PANEL * SY_PANEL;
    const size_t skipped = (size_t)(at - row * (uint64_t)row_bytes);
    const uint32_t n_block = SY_MIN((uint32_t)SY_PANEL, w.n - row);
    sy_status st;

    if (skipped == 0 && n >= n_block * row_bytes) {
        const uint32_t n_fit = (uint32_t)SY_MIN(n / row_bytes, (size_t)(w.n - row));
        const uint32_t n_rows = row + n_fit == w.n ? n_fit : n_fit / SY_PANEL * SY_PANEL;
        *n_read = n_rows * row_bytes;
        return read_locked(dst, home, shard->slot, part, row, n_rows, err);
    }
    *n_read = SY_MIN(n, n_block * row_bytes - skipped);
    st = read_locked(home->block, home, shard->slot, part, row, n_block, err);
    if (st == SY_OK) memcpy(dst, home->block + skipped, *n_read);
    return st;
}

sy_status sy_shard_home_export(size_t *n_read, void *dst, const sy_shard *shard, unsigned part,
                               uint64_t at, size_t n, sy_error *err)
{
    pthread_mutex_lock(&shard->home->reads);
    const sy_status st = export_locked(n_read, dst, shard, part, at, n, err);
    pthread_mutex_unlock(&shard->home->reads);
    return st;
}

sy_status sy_shard_home_content(uint64_t *out, const sy_shard *shard, sy_error *err)
{
    const uint64_t total = sy_shard_form_bytes(&shard->home->form);
    sy_digest_state *digest = sy_digest_open();
    uint8_t *piece = malloc(READ_BYTES);
    sy_status st = SY_OK;
    size_t n;

    *out = 0;
    if (digest == NULL || piece == NULL)
        st = sy_error_set(err, SY_ENOMEM, "no memory to hash a shard");
    for (uint64_t at = 0; at < total && st == SY_OK; at += n) {
        st = sy_shard_read(&n, shard, at, piece, READ_BYTES, err);
        if (st == SY_OK) sy_digest_add(digest, piece, n);
    }
    if (st == SY_OK) *out = sy_digest_value(digest);
    sy_digest_free(digest);
    free(piece);
    return st;
}

/* Of the row's first weight: its sign, or where that may be a zero's, its largest step. */
static void flip_bit_of(uint8_t *row, sy_dtype dtype)
{
    switch (dtype) {
    case SY_Q8:
    case SY_Q4: row[sizeof(uint16_t)] ^= 0x80; break;
    case SY_FP8: row[0] ^= 0x40; break;
    case SY_MXFP4: row[0] ^= 0x04; break;
    default: row[1] ^= 0x80;
    }
}

void sy_shard_home_flip_bit(const sy_shard *shard)
{
    enum { UP = 1 };
    sy_shard_home *home = shard->home;
    const uint32_t n_rows = SY_MIN((uint32_t)SY_PANEL, shard->up.n);
    sy_status st;

    pthread_mutex_lock(&home->reads);
    st = read_locked(home->block, home, shard->slot, UP, 0, n_rows, NULL);
    if (st == SY_OK) {
        flip_bit_of(home->block, shard->up.dtype);
        st = sy_shard_home_write(home, shard->slot, UP, 0, n_rows, home->block, NULL);
    }
    if (st == SY_OK) sy_shard_home_settle(home, shard->slot);
    pthread_mutex_unlock(&home->reads);
}
