/* pairs_avx2.c - bf16 activations where no instruction multiplies pairs: two multiply-adds a pair.
 * There is no speed to win over fp32 activations here, only the same bits as where there is. */
#include <immintrin.h>

#include "cpu/sy_cpu.h"
#include "sy_pairs.h"

#define PAIRS_TOKENS 4

typedef struct line_avx2 {
    __m256 lo, hi; /* columns 0-7 and 8-15 */
} line_avx2;

void sy_avx2_round_bf16(uint16_t *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = pairs_round(x[i]);
}

SY_CPU_INLINE line_avx2 widen_line(const uint8_t *from)
{
    const __m256i pairs = _mm256_loadu_si256((const __m256i *)(const void *)from);
    const __m256i high = _mm256_set1_epi32((int)0xffff0000);

    return (line_avx2){_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)),
                       _mm256_castsi256_ps(_mm256_and_si256(pairs, high))};
}

SY_CPU_INLINE void add_line(line_avx2 *sum, const uint16_t *const *row, size_t T, size_t k,
                            const uint8_t *panel)
{
    const line_avx2 w = widen_line(panel + k * SY_PANEL * sizeof(uint16_t));

#pragma GCC unroll 4
    for (size_t t = 0; t < T; t++) {
        const __m256 x = _mm256_set1_ps(pairs_widen(row[t][k]));
        sum[t].lo = _mm256_fmadd_ps(x, w.lo, sum[t].lo);
        sum[t].hi = _mm256_fmadd_ps(x, w.hi, sum[t].hi);
    }
}

SY_CPU_INLINE void tile(float *y, size_t y_stride, size_t n_columns, const uint16_t *const *row,
                        size_t T, const uint8_t *panel, size_t n_k)
{
    line_avx2 sum[PAIRS_TOKENS];
    float line[SY_PANEL];

#pragma GCC unroll 4
    for (size_t t = 0; t < T; t++) sum[t] = (line_avx2){_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (size_t k = 0; k + 1 < n_k; k += 2) {
        add_line(sum, row, T, k + 1, panel);
        add_line(sum, row, T, k, panel);
    }
    if (n_k % 2 != 0) {
#pragma GCC unroll 4
        for (size_t t = 0; t < T; t++) { /* the partner's product, +0 */
            sum[t].lo = _mm256_add_ps(sum[t].lo, _mm256_setzero_ps());
            sum[t].hi = _mm256_add_ps(sum[t].hi, _mm256_setzero_ps());
        }
        add_line(sum, row, T, n_k - 1, panel);
    }
#pragma GCC unroll 4
    for (size_t t = 0; t < T; t++) {
        _mm256_storeu_ps(line, sum[t].lo);
        _mm256_storeu_ps(line + 8, sum[t].hi);
        memcpy(y + t * y_stride, line, n_columns * sizeof(*y));
    }
}

void sy_avx2_matmul_bf16(float *y, size_t y_stride, const uint16_t *x, size_t x_stride,
                         const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin,
                         size_t end)
{
    const size_t panel_bytes = sy_panel_bytes(SY_BF16, w->k);
    const unsigned before = pairs_enter();

    SY_ASSERT(w->dtype == SY_BF16);
    for (size_t panel = begin; panel < end; panel++) {
        const uint8_t *from = (const uint8_t *)w->data + panel * panel_bytes;
        const size_t n = panel * SY_PANEL, n_columns = SY_MIN((size_t)SY_PANEL, w->n - n);
        for (size_t t = 0; t < T; t += PAIRS_TOKENS) {
            const uint16_t *row[PAIRS_TOKENS] = {NULL};
            const size_t n_tokens = SY_MIN((size_t)PAIRS_TOKENS, T - t);
            float *to = y + t * y_stride + n;
            for (size_t i = 0; i < n_tokens; i++)
                row[i] = x + (x_row != NULL ? x_row[t + i] : t + i) * x_stride;
            switch (n_tokens) {
            case 1: tile(to, y_stride, n_columns, row, 1, from, w->k); break;
            case 2: tile(to, y_stride, n_columns, row, 2, from, w->k); break;
            case 3: tile(to, y_stride, n_columns, row, 3, from, w->k); break;
            default: tile(to, y_stride, n_columns, row, PAIRS_TOKENS, from, w->k); break;
            }
        }
    }
    pairs_leave(before);
}
