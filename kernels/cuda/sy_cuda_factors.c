/* sy_cuda_factors.c - whether rows of FP8 can be held: the device has one factor for 128 rows by
 * 128 inputs, while each row that comes has its own. Looked at on the host, before anything is
 * copied: the device could only say later that some row was wrong.
 *
 * Matrices of the trunk are written in whole blocks of 128 rows. Of slots a call whose rows begin
 * at a multiple of 128 begins that block anew; one that goes on in the middle of a block must have
 * the factors of the call before, which are kept here. So the rows of a block come in ascending
 * order, and a pool has the factors of one block for each part of a slot. Who may write a slot may
 * read and write what is kept of it. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "sy_cuda_pool_internal.h"

enum {
    BLOCK = 128, /* rows, and inputs */
    MATRICES = 3
};
#define NO_BLOCK UINT32_MAX

struct sy_cuda_factors {
    size_t bytes;   /* of the factors of one row, at most */
    uint32_t *row;  /* [slots][MATRICES]: where the block begins, or NO_BLOCK */
    uint8_t *value; /* [slots][MATRICES][bytes] */
};

static size_t factor_bytes(uint32_t k)
{
    return ((size_t)k + BLOCK - 1) / BLOCK * sizeof(float);
}

int sy_cuda_factors_open(sy_backend_pool *pool, char *why)
{
    const sy_backend_pool_config *c = &pool->config;
    const size_t n = (size_t)pool->info.n_slots * MATRICES;
    sy_cuda_factors *self;

    if (c->weights != SY_BACKEND_FP8) return SY_BACKEND_OK;
    pool->factors = self = calloc(1, sizeof(*self));
    if (self != NULL) {
        self->bytes = factor_bytes(c->hidden > c->ffn ? c->hidden : c->ffn);
        self->row = malloc(n * sizeof(*self->row));
        self->value = malloc(n * self->bytes);
    }
    if (self == NULL || self->row == NULL || self->value == NULL)
        return REFUSE(why, SY_BACKEND_ENOMEM, "no memory for %u slots", pool->info.n_slots);
    for (size_t i = 0; i < n; i++) self->row[i] = NO_BLOCK;
    return SY_BACKEND_OK;
}

void sy_cuda_factors_close(sy_cuda_factors *factors)
{
    if (factors == NULL) return;
    free(factors->row);
    free(factors->value);
    free(factors);
}

void sy_cuda_factors_forget(const sy_backend_pool *pool, uint32_t slot)
{
    if (pool->factors == NULL) return;
    for (uint32_t part = 0; part < MATRICES; part++)
        pool->factors->row[(size_t)slot * MATRICES + part] = NO_BLOCK;
}

/* Of row r, whose factors are at `mine`. */
static int check_row(uint32_t *begin, uint8_t *value, const unsigned char *mine, size_t bytes,
                     uint32_t part, uint32_t r, char *why)
{
    if (r % BLOCK == 0) {
        *begin = r;
        memcpy(value, mine, bytes);
        return SY_BACKEND_OK;
    }
    if (*begin != r / BLOCK * BLOCK)
        return REFUSE(why, SY_BACKEND_EINVAL,
                      "row %u of part %u: those before it, from row %u on, go in first, for they "
                      "have factors together",
                      r, part, r / BLOCK * BLOCK);
    if (memcmp(value, mine, bytes) != 0)
        return REFUSE(why, SY_BACKEND_EINVAL,
                      "row %u of part %u has other factors than row %u: the device has one for %d "
                      "rows by %d inputs, from multiples of %d on",
                      r, part, *begin, BLOCK, BLOCK, BLOCK);
    return SY_BACKEND_OK;
}

int sy_cuda_factors_check(const sy_backend_pool *pool, uint32_t slot, uint32_t part, uint32_t k,
                          uint32_t row, uint32_t n_rows, const unsigned char *rows, char *why)
{
    const size_t at = (size_t)slot * MATRICES + part, bytes = factor_bytes(k);
    uint32_t *begin = &pool->factors->row[at];
    uint8_t *value = pool->factors->value + at * pool->factors->bytes;
    int result = SY_BACKEND_OK;

    for (uint32_t i = 0; i < n_rows && result == SY_BACKEND_OK; i++)
        result = check_row(begin, value, rows + i * (k + bytes) + k, bytes, part, row + i, why);
    if (result != SY_BACKEND_OK) *begin = NO_BLOCK; /* none of the rows goes in */
    return result;
}

int sy_cuda_factors_agree(uint32_t k, uint32_t row, uint32_t n_rows, const unsigned char *rows,
                          char *why)
{
    const size_t bytes = factor_bytes(k);

    for (uint32_t i = 0; i < n_rows; i++) {
        const uint32_t first = i / BLOCK * BLOCK;
        const unsigned char *mine = rows + i * (k + bytes) + k;

        if (memcmp(mine, rows + first * (k + bytes) + k, bytes) != 0)
            return REFUSE(why, SY_BACKEND_EINVAL,
                          "row %u has other factors than row %u: the device has one for %d rows by "
                          "%d inputs, from multiples of %d on",
                          row + i, row + first, BLOCK, BLOCK, BLOCK);
    }
    return SY_BACKEND_OK;
}
