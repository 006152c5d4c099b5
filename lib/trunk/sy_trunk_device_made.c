/* sy_trunk_device_made.c - the weights of a GPU's self-test, which every build knows, in each of
 * the types that a matrix is held in. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sy_hash.h"
#include "sy_trunk_device_test.h"

float trunk_test_weight(test_weight weight, uint32_t i, uint32_t j, uint32_t k)
{
    const uint64_t bits = sy_splitmix64(((uint64_t)weight << 56) + (uint64_t)i * k + j);
    const float noise = 2 * sy_unit_float(bits) - 1;

    if (weight >= TEST_NORM1_BIAS) return noise / 4;
    if (weight >= TEST_NORM1) return 1 + noise / 4;
    return sy_bf16_to_f32(sy_f32_to_bf16(noise * sqrtf(3.0f / (float)k)));
}

/* Of the elements of a matrix, at most. */
static float size_of(uint32_t k)
{
    return sqrtf(3.0f / (float)k);
}

static int make_plain(uint8_t *rows, test_weight weight, sy_dtype dtype, uint32_t n, uint32_t k)
{
    uint16_t *plain = malloc((size_t)n * k * sizeof(*plain));
    sy_status st = SY_ENOMEM;

    for (size_t i = 0; plain != NULL && i < (size_t)n * k; i++)
        plain[i] =
            sy_f32_to_bf16(trunk_test_weight(weight, (uint32_t)(i / k), (uint32_t)(i % k), k));
    if (plain != NULL && dtype == SY_BF16) {
        memcpy(rows, plain, (size_t)n * k * sizeof(*plain));
        st = SY_OK;
    } else if (plain != NULL) {
        st = sy_quantize_rows(rows, dtype, plain, SY_BF16, n, k);
    }
    free(plain);
    return st == SY_OK;
}

/* A factor for 128 rows by 128 elements; codes reach up to 200 and more, or half of that. */
static void make_fp8(uint8_t *row, test_weight weight, uint32_t i, uint32_t k)
{
    uint8_t *end = row + k;

    for (uint32_t j = 0; j < k; j++) {
        const uint32_t block = (uint32_t)weight + i / SY_FP8_BLOCK + j / SY_FP8_BLOCK;
        const float factor = size_of(k) / (float)(200 >> block % 2);

        row[j] = sy_f32_to_f8_e4m3(trunk_test_weight(weight, i, j, k) / factor);
        if (j % SY_FP8_BLOCK == 0)
            memcpy(end + j / SY_FP8_BLOCK * sizeof(factor), &factor, sizeof(factor));
    }
}

static uint8_t nearest_fp4(float v)
{
    uint8_t best = 0;

    for (uint8_t code = 1; code < 16; code++)
        if (fabsf(sy_fp4_to_f32(code) - v) < fabsf(sy_fp4_to_f32(best) - v)) best = code;
    return best;
}

/* A power of two for 32 elements, of which the largest become about 6, or 3. */
static void make_mxfp4(uint8_t *row, test_weight weight, uint32_t i, uint32_t k)
{
    const uint32_t n_blocks = (k + SY_QUANT_BLOCK - 1) / SY_QUANT_BLOCK;
    int power;

    (void)frexpf(size_of(k) / 6, &power);
    memset(row, 0, sy_dtype_row_bytes(SY_MXFP4, k));
    for (uint32_t j = 0; j < k; j++) {
        const int own = power + (int)((i + j / SY_QUANT_BLOCK) % 2);
        const float v = ldexpf(trunk_test_weight(weight, i, j, k), -own);

        row[j / 2] = (uint8_t)(row[j / 2] | nearest_fp4(v) << j % 2 * 4);
        row[n_blocks * (SY_QUANT_BLOCK / 2) + j / SY_QUANT_BLOCK] = (uint8_t)(own + 127);
    }
}

int trunk_test_make(uint8_t *rows, float *value, test_weight weight, sy_dtype dtype, uint32_t n,
                    uint32_t k)
{
    const size_t row_bytes = sy_dtype_row_bytes(dtype, k);

    if (!sy_dtype_is_encoded(dtype) && !make_plain(rows, weight, dtype, n, k)) return 0;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *row = rows + i * row_bytes;

        if (dtype == SY_FP8) make_fp8(row, weight, i, k);
        if (dtype == SY_MXFP4) make_mxfp4(row, weight, i, k);
        sy_dtype_widen(value + (size_t)i * k, row, dtype, k);
    }
    return 1;
}
