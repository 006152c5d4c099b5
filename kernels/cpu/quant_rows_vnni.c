/* quant_rows_vnni.c - a few tokens against weights of integer blocks: the weights are what costs,
 * and each is read once, from several panels side by side. Unlike the tiles of quant_vnni.c nothing
 * is copied, and the outputs stay in registers from the first block to the last. */
#include <immintrin.h>

#include "cpu/quant_rows.h"

#define SUMS_MAX 8 /* tokens x panels */
/* What is asked for meanwhile: the hardware stops at every page. Weights are used once a step: they
 * shall not drive everything else out of the caches, such as what the next message needs. */
#define AHEAD_BYTES 2048

/* What a tile works on: the tokens' rows, and P panels side by side. */
typedef struct rows_tile {
    const int8_t *q[QUANT_ROWS_MAX];
    const float *scale[QUANT_ROWS_MAX];
    const int32_t *sum[QUANT_ROWS_MAX];
    const uint8_t *quants, *scales; /* of the first panel */
    size_t panel_bytes, n_blocks;
} rows_tile;

SY_CPU_INLINE __m512i broadcast_four(const int8_t *q)
{
    int32_t four;

    memcpy(&four, q, sizeof(four));
    return _mm512_set1_epi32(four);
}

/* The products of one line of P panels, inputs 4i to 4i+3 of the block, added to the sums. */
SY_CPU_INLINE void add_line(__m512i sum[SUMS_MAX], const rows_tile *a, const __m512i *w, size_t at,
                            size_t T, size_t P)
{
#pragma GCC unroll 4
    for (size_t t = 0; t < T; t++) {
        const __m512i x = broadcast_four(a->q[t] + at);
#pragma GCC unroll 4
        for (size_t p = 0; p < P; p++)
            sum[t * P + p] = _mm512_dpbusd_epi32(sum[t * P + p], w[p], x);
    }
}

/* How far ahead of a block's lines lie those to ask for: in the same panels, and where these end,
 * at the start of the next ones. */
SY_CPU_INLINE size_t lines_ahead(const rows_tile *a, size_t b, sy_dtype dtype, size_t P)
{
    const size_t block_bytes = quant_block_bytes(dtype), end = a->n_blocks * block_bytes;

    return b * block_bytes + AHEAD_BYTES < end ? AHEAD_BYTES
                                               : AHEAD_BYTES + P * a->panel_bytes - end;
}

SY_CPU_INLINE void add_block(__m512i sum[SUMS_MAX], const rows_tile *a, size_t b, sy_dtype dtype,
                             size_t T, size_t P)
{
    const size_t ahead = lines_ahead(a, b, dtype, P);
    const size_t lines = quant_block_bytes(dtype) / QUANT_LINE_BYTES;
    const uint8_t *quants = a->quants + b * quant_block_bytes(dtype);
    const __m512i low = _mm512_set1_epi8(15);

#pragma GCC unroll 8
    for (size_t i = 0; i < lines; i++) {
        __m512i w[4], high[4];
#pragma GCC unroll 4
        for (size_t p = 0; p < P; p++) {
            const uint8_t *line = quants + p * a->panel_bytes + i * QUANT_LINE_BYTES;
            w[p] = _mm512_loadu_si512(line);
            _mm_prefetch(line + ahead, _MM_HINT_NTA);
        }
        if (dtype == SY_Q8) {
            add_line(sum, a, w, b * SY_QUANT_BLOCK + 4 * i, T, P);
            continue;
        }
#pragma GCC unroll 4
        for (size_t p = 0; p < P; p++) {
            high[p] = _mm512_and_si512(_mm512_srli_epi16(w[p], 4), low);
            w[p] = _mm512_and_si512(w[p], low);
        }
        add_line(sum, a, w, b * SY_QUANT_BLOCK + 8 * i, T, P);
        add_line(sum, a, high, b * SY_QUANT_BLOCK + 8 * i + 4, T, P);
    }
}

/* dtype, T and P are constants where this is used. */
SY_CPU_INLINE void tile(float *y, size_t y_stride, size_t n_last, const rows_tile *a,
                        sy_dtype dtype, size_t T, size_t P)
{
    const int32_t bias = dtype == SY_Q8 ? Q8_BIAS : Q4_BIAS;
    __m512 out[SUMS_MAX];

#pragma GCC unroll 8
    for (size_t i = 0; i < T * P; i++) out[i] = _mm512_setzero_ps();
    for (size_t b = 0; b < a->n_blocks; b++) {
        __m512i sum[SUMS_MAX];
#pragma GCC unroll 8
        for (size_t i = 0; i < T * P; i++) sum[i] = _mm512_set1_epi32(-bias * a->sum[i / P][b]);
        add_block(sum, a, b, dtype, T, P);
#pragma GCC unroll 4
        for (size_t p = 0; p < P; p++) {
            const uint8_t *scales = a->scales + p * a->panel_bytes + b * QUANT_PANEL_SCALES;
            const __m512 d =
                _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)scales));
            _mm_prefetch(scales + AHEAD_BYTES / 8, _MM_HINT_NTA);
#pragma GCC unroll 4
            for (size_t t = 0; t < T; t++) {
                const __m512 product = _mm512_mul_ps(d, _mm512_set1_ps(a->scale[t][b]));
                out[t * P + p] =
                    _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[t * P + p]), product, out[t * P + p]);
            }
        }
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < T * P; i++) {
        const size_t n = i % P == P - 1 ? n_last : SY_PANEL;
        _mm512_mask_storeu_ps(y + i / P * y_stride + i % P * SY_PANEL, (__mmask16)((1u << n) - 1),
                              out[i]);
    }
}

/* P_max panels at once while there are as many, then one at a time. */
SY_CPU_INLINE void rows(const quant_rows_job *job, sy_dtype dtype, size_t T, size_t P_max)
{
    const sy_panels *w = job->w;
    const size_t blocks = quant_blocks(w->k);
    rows_tile a = {.panel_bytes = quant_panel_bytes(dtype, w->k), .n_blocks = blocks};

    for (size_t t = 0; t < T; t++) {
        const size_t row = job->x_row != NULL ? job->x_row[t] : t;
        a.q[t] = job->x->q + row * job->x->stride;
        a.scale[t] = job->x->scale + row * job->x->blocks;
        a.sum[t] = job->x->sum + row * job->x->blocks;
    }
    for (size_t panel = job->begin, P; panel < job->end; panel += P) {
        P = job->end - panel >= P_max ? P_max : 1;
        const size_t left = w->n - (panel + P - 1) * SY_PANEL;
        float *y = job->y + panel * SY_PANEL;
        a.quants = quant_panel_at(w, panel);
        a.scales = quant_scales_at(w, a.quants);
        if (P == P_max) {
            tile(y, job->y_stride, SY_MIN(left, (size_t)SY_PANEL), &a, dtype, T, P_max);
        } else {
            tile(y, job->y_stride, SY_MIN(left, (size_t)SY_PANEL), &a, dtype, T, 1);
        }
    }
}

SY_CPU_INLINE void by_tokens(const quant_rows_job *job, sy_dtype dtype)
{
    switch (job->T) {
    case 0: break;
    case 1: rows(job, dtype, 1, 4); break;
    case 2: rows(job, dtype, 2, 4); break;
    case 3: rows(job, dtype, 3, 2); break;
    default: rows(job, dtype, QUANT_ROWS_MAX, 2); break;
    }
}

void sy_vnni_rows_q8(const quant_rows_job *job)
{
    SY_ASSERT(job->T <= QUANT_ROWS_MAX);
    if (job->w->dtype == SY_Q8) {
        by_tokens(job, SY_Q8);
    } else {
        by_tokens(job, SY_Q4);
    }
}
