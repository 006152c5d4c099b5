/* pairs_bf16.c - bf16 activations with AVX512_BF16: an instruction adds the products of a pair of
 * inputs to each of the 16 columns of a panel.
 *
 * Two lines of a panel, inputs k and k+1, are one register; one permutation puts the two weights of
 * a column side by side, in the order of columns. As with fp32 activations: up to 4 tokens go row
 * by row through all of k, four panels at once; more go in tiles of up to 12 tokens x 2 panels over
 * a block of x on the stack, the sums resting in y between blocks of k. */
#include <immintrin.h>
#include <string.h>

#include "cpu/sy_cpu.h"

#define ROW_TOKENS   4
#define ROW_PANELS   4
#define BLOCK_PANELS 2
#define BLOCK_TOKENS 12
#define SUMS_MAX     (BLOCK_TOKENS * BLOCK_PANELS)
#define TOKENS_MAX   96
#define K_MAX        256
#define BLOCK_STRIDE (K_MAX + 32) /* rows shall not share a cache set */
#define LINE_BYTES   (SY_PANEL * sizeof(uint16_t))
#define PAIR_BYTES   (2 * LINE_BYTES)
/* Row by row, what is asked for meanwhile: used once a step, it shall not drive everything else out
 * of the caches. */
#define AHEAD_BYTES 2048

typedef struct pairs_job {
    float *y;
    size_t y_stride;
    const uint16_t *x;
    size_t x_stride;
    const uint32_t *x_row;
    size_t T;
    const sy_panels *w;
    size_t begin, end;
} pairs_job;

/* What one tile works on: some tokens, some panels side by side, some inputs. */
typedef struct pairs_tile {
    float *y;
    size_t y_stride;
    size_t n_last;       /* columns that the last of the panels has */
    const uint8_t *line; /* of the first panel, at the first k: k is even */
    size_t panel_bytes;
    const uint8_t
        *ahead;        /* what to ask for meanwhile, and how fast: the tiles of a block share the */
    size_t ahead_step; /* lines of the next panels among them */
    size_t n_k;
    int resume; /* the sums of earlier k are in y */
    const uint16_t *row[ROW_TOKENS];
    const uint16_t *block; /* rows BLOCK_STRIDE apart; NULL: row */
} pairs_tile;

/* The two bf16 of a column lie as [k][16 columns in the order 0 8 1 9 ...], twice. */
SY_CPU_INLINE __m512i pair_order(void)
{
    __m512i order = _mm512_setzero_si512();
    uint16_t at[32];

    for (size_t c = 0; c < SY_PANEL; c++) {
        const size_t place = c < 8 ? 2 * c : 2 * (c - 8) + 1;
        at[2 * c] = (uint16_t)place;
        at[2 * c + 1] = (uint16_t)(SY_PANEL + place);
    }
    memcpy(&order, at, sizeof(order));
    return order;
}

SY_CPU_INLINE __m512bh load_pair(const uint8_t *line, __m512i order)
{
    return (__m512bh)_mm512_permutexvar_epi16(order, _mm512_loadu_si512(line));
}

/* The last input of an odd number: its partner is zero. */
SY_CPU_INLINE __m512bh load_last(const uint8_t *line, __m512i order)
{
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)line);

    return (__m512bh)_mm512_permutexvar_epi16(order, _mm512_zextsi256_si512(half));
}

SY_CPU_INLINE __m512bh broadcast_pair(const uint16_t *x)
{
    int32_t pair;

    memcpy(&pair, x, sizeof(pair));
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* T and P are constants where this is used, and so is whether there is a block. */
SY_CPU_INLINE void tile(const pairs_tile *a, size_t T, size_t P, int is_block)
{
    const __mmask16 last_columns = (__mmask16)((1u << a->n_last) - 1);
    const __m512i order = pair_order();
    const uint8_t *line = a->line, *ahead = a->ahead;
    __m512 sum[SUMS_MAX];
    size_t k = 0;

#pragma GCC unroll 24
    for (size_t i = 0; i < T * P; i++) {
        const float *y = a->y + i / P * a->y_stride + i % P * SY_PANEL;
        const __mmask16 columns = i % P == P - 1 ? last_columns : 0xffff;
        sum[i] = a->resume ? _mm512_maskz_loadu_ps(columns, y) : _mm512_setzero_ps();
    }
    for (; k + 1 < a->n_k; k += 2, line += PAIR_BYTES) {
        /* Where the panels end, the next ones begin. */
        const int is_last = k * LINE_BYTES + AHEAD_BYTES >= a->panel_bytes;
        const size_t row_ahead = AHEAD_BYTES + (is_last ? (P - 1) * a->panel_bytes : 0);
        __m512bh w[ROW_PANELS];
#pragma GCC unroll 4
        for (size_t p = 0; p < P; p++) {
            const uint8_t *from = line + p * a->panel_bytes;
            w[p] = load_pair(from, order);
            if (is_block)
                _mm_prefetch(ahead + p * a->panel_bytes, _MM_HINT_T1);
            else
                _mm_prefetch(from + row_ahead, _MM_HINT_NTA);
        }
        ahead += a->ahead_step;
#pragma GCC unroll 12
        for (size_t t = 0; t < T; t++) {
            const __m512bh x =
                broadcast_pair((is_block ? a->block + t * BLOCK_STRIDE : a->row[t]) + k);
#pragma GCC unroll 4
            for (size_t p = 0; p < P; p++)
                sum[t * P + p] = _mm512_dpbf16_ps(sum[t * P + p], x, w[p]);
        }
    }
#pragma GCC unroll 24
    for (size_t i = 0; i < T * P; i++) {
        const uint16_t *x = is_block ? a->block + i / P * BLOCK_STRIDE : a->row[i / P];
        float *y = a->y + i / P * a->y_stride + i % P * SY_PANEL;
        if (k < a->n_k) {
            const __m512bh last = load_last(line + i % P * a->panel_bytes, order);
            sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)_mm512_set1_epi32(x[k]), last);
        }
        _mm512_mask_storeu_ps(y, i % P == P - 1 ? last_columns : 0xffff, sum[i]);
    }
}

SY_CPU_INLINE const uint16_t *row_of(const pairs_job *job, size_t t)
{
    return job->x + (job->x_row != NULL ? job->x_row[t] : t) * job->x_stride;
}

SY_CPU_INLINE pairs_tile tile_at(const pairs_job *job, size_t t, size_t panel, size_t n_panels,
                                 size_t k, size_t n_k)
{
    const size_t n_left = job->w->n - (panel + n_panels - 1) * SY_PANEL;
    const uint8_t *line = (const uint8_t *)job->w->data + (panel * job->w->k + k) * LINE_BYTES;

    return (pairs_tile){
        .y = job->y + t * job->y_stride + panel * SY_PANEL,
        .y_stride = job->y_stride,
        .n_last = SY_MIN(n_left, (size_t)SY_PANEL),
        .line = line,
        .ahead = line,
        .panel_bytes = job->w->k * LINE_BYTES,
        .n_k = n_k,
        .resume = k > 0,
    };
}

SY_CPU_INLINE void block_tile(const pairs_tile *a, size_t T, size_t P)
{
    switch (T) {
    case 1: tile(a, 1, P, 1); break;
    case 2: tile(a, 2, P, 1); break;
    case 3: tile(a, 3, P, 1); break;
    case 4: tile(a, 4, P, 1); break;
    case 5: tile(a, 5, P, 1); break;
    case 6: tile(a, 6, P, 1); break;
    case 7: tile(a, 7, P, 1); break;
    case 8: tile(a, 8, P, 1); break;
    case 9: tile(a, 9, P, 1); break;
    case 10: tile(a, 10, P, 1); break;
    case 11: tile(a, 11, P, 1); break;
    default: tile(a, BLOCK_TOKENS, P, 1); break;
    }
}

/* One block of x against all panels: tokens [t0, t0 + n_tokens), inputs [k, k + n_k). */
static void run_block(const pairs_job *job, const uint16_t *x, size_t t0, size_t n_tokens, size_t k,
                      size_t n_k)
{
    for (size_t panel = job->begin; panel < job->end; panel += BLOCK_PANELS) {
        const size_t n_left = job->end - panel;
        const size_t n_panels = SY_MIN((size_t)BLOCK_PANELS, n_left);
        const size_t n_tiles = (n_tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
        size_t tile_id = 0;
        for (size_t t = 0, T; t < n_tokens; t += T) {
            const size_t n_left_tiles = (n_tokens - t + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
            T = (n_tokens - t + n_left_tiles - 1) / n_left_tiles;
            pairs_tile a = tile_at(job, t0 + t, panel, n_panels, k, n_k);
            a.block = x + t * BLOCK_STRIDE;
            if (n_left >= 2 * BLOCK_PANELS) {
                a.ahead_step = PAIR_BYTES / n_tiles;
                a.ahead += BLOCK_PANELS * a.panel_bytes + tile_id++ * (n_k / 2) * a.ahead_step;
            }
            if (n_panels == BLOCK_PANELS) {
                block_tile(&a, T, BLOCK_PANELS);
            } else {
                block_tile(&a, T, 1);
            }
        }
    }
}

static void by_blocks(const pairs_job *job)
{
    _Alignas(SY_CACHE_LINE) uint16_t block[TOKENS_MAX * BLOCK_STRIDE];

    for (size_t t = 0; t < job->T; t += TOKENS_MAX) {
        const size_t n_tokens = SY_MIN((size_t)TOKENS_MAX, job->T - t);
        size_t k = 0;
        do { /* once even when there is no k: the outputs are then +0 */
            const size_t n_k = SY_MIN((size_t)K_MAX, job->w->k - k);
            for (size_t i = 0; i < n_tokens; i++)
                memcpy(block + i * BLOCK_STRIDE, row_of(job, t + i) + k, n_k * sizeof(*block));
            run_block(job, block, t, n_tokens, k, n_k);
            k += K_MAX;
        } while (k < job->w->k);
    }
}

SY_CPU_INLINE void by_rows(const pairs_job *job, size_t T)
{
    for (size_t panel = job->begin, P; panel < job->end; panel += P) {
        P = job->end - panel >= ROW_PANELS ? ROW_PANELS : 1;
        pairs_tile a = tile_at(job, 0, panel, P, 0, job->w->k);
        for (size_t t = 0; t < T; t++) a.row[t] = row_of(job, t);
        if (P == ROW_PANELS) {
            tile(&a, T, ROW_PANELS, 0);
        } else {
            tile(&a, T, 1, 0);
        }
    }
}

void sy_pairs_matmul_bf16(float *y, size_t y_stride, const uint16_t *x, size_t x_stride,
                          const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin,
                          size_t end)
{
    const pairs_job job = {y, y_stride, x, x_stride, x_row, T, w, begin, end};

    SY_ASSERT(w->dtype == SY_BF16);
    switch (T) {
    case 0: break;
    case 1: by_rows(&job, 1); break;
    case 2: by_rows(&job, 2); break;
    case 3: by_rows(&job, 3); break;
    case 4: by_rows(&job, ROW_TOKENS); break;
    default: by_blocks(&job); break;
    }
}
