/* quant_vnni.c - int8 products with AVX-512 VNNI: a register holds 4 inputs of the 16 columns of a
 * panel, and one instruction adds 64 products of a stored quant (unsigned, biased) and an
 * activation (signed, broadcast) to 16 sums of 32 bits, without saturation.
 *
 * The blocks of two panels stay in registers, 8 each, while all tokens of the part pass. What the
 * bias adds to a sum is known beforehand and is where the sum starts. */
#include <immintrin.h>

#include "cpu/quant_block.h"
#include "cpu/quant_rows.h"

#define AT_ONCE 2

/* The lines of one block, in the order of inputs. */
SY_CPU_INLINE void load_block(__m512i w[QUANT_LINES_MAX], const uint8_t *quants, sy_dtype dtype)
{
    const __m512i low = _mm512_set1_epi8(15);

    if (dtype == SY_Q8) {
#pragma GCC unroll 8
        for (size_t i = 0; i < QUANT_LINES_MAX; i++)
            w[i] = _mm512_loadu_si512(quants + i * QUANT_LINE_BYTES);
        return;
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < QUANT_LINES_MAX; i += 2) {
        const __m512i line = _mm512_loadu_si512(quants + i / 2 * QUANT_LINE_BYTES);
        w[i] = _mm512_and_si512(line, low);
        w[i + 1] = _mm512_and_si512(_mm512_srli_epi16(line, 4), low);
    }
}

SY_CPU_INLINE __m512i load_x(const int8_t *q)
{
    int32_t four;

    memcpy(&four, q, sizeof(four));
    return _mm512_set1_epi32(four);
}

SY_CPU_INLINE void body(float *acc, const quant_buffer *buffer, size_t b, size_t n_tokens,
                        quant_weights at, sy_dtype dtype, size_t P)
{
    const size_t first = b * n_tokens;
    __m512i w[AT_ONCE][QUANT_LINES_MAX];
    __m512 d[AT_ONCE];

#pragma GCC unroll 2
    for (size_t p = 0; p < P; p++) {
        const uint8_t *scales = at.scales + p * at.panel_bytes;
        load_block(w[p], at.quants + p * at.panel_bytes, dtype);
        d[p] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)scales));
    }
    quant_prefetch(at, dtype, P);
    for (size_t t = 0; t < n_tokens; t++) {
        const int8_t *q = buffer->q + (first + t) * SY_QUANT_BLOCK;
        const __m512 scale = _mm512_set1_ps(buffer->scale[first + t]);
        __m512i sum[AT_ONCE];
#pragma GCC unroll 2
        for (size_t p = 0; p < P; p++) sum[p] = _mm512_set1_epi32(buffer->bias[first + t]);
#pragma GCC unroll 8
        for (size_t i = 0; i < QUANT_LINES_MAX; i++) {
            const __m512i x = load_x(q + 4 * i);
#pragma GCC unroll 2
            for (size_t p = 0; p < P; p++) sum[p] = _mm512_dpbusd_epi32(sum[p], w[p][i], x);
        }
#pragma GCC unroll 2
        for (size_t p = 0; p < P; p++) {
            float *y = acc + (p * n_tokens + t) * SY_PANEL;
            const __m512 product = _mm512_mul_ps(d[p], scale);
            _mm512_store_ps(
                y, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[p]), product, _mm512_load_ps(y)));
        }
    }
}

static void run_q8(quant_buffer *buffer, const quant_job *job, quant_part part)
{
    quant_panels(buffer, job, part, body, SY_Q8, AT_ONCE);
}

static void run_q4(quant_buffer *buffer, const quant_job *job, quant_part part)
{
    quant_panels(buffer, job, part, body, SY_Q4, AT_ONCE);
}

void sy_vnni_matmul_q8(float *y, size_t y_stride, const sy_qrows *x, const uint32_t *x_row,
                       size_t T, const sy_panels *w, size_t begin, size_t end)
{
    const quant_job job = {.y = y,
                           .y_stride = y_stride,
                           .q = x,
                           .x_row = x_row,
                           .T = T,
                           .w = w,
                           .begin = begin,
                           .end = end};

    if (T <= QUANT_ROWS_MAX) {
        const quant_rows_job few = {y, y_stride, x, x_row, T, w, begin, end};
        sy_vnni_rows_q8(&few);
        return;
    }
    quant_by_parts(&job, QUANT_Q8_MAX, quant_fill_q8, w->dtype == SY_Q8 ? run_q8 : run_q4);
}
