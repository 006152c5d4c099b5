/* quant_block.h - what the products with weights of blocks share, of integers or encoded: the walk
 * over tokens, blocks of inputs and panels.
 *
 * Some tokens' activations are copied into a buffer on the stack, block after block of inputs and
 * the tokens side by side, so that rows which lie far apart (x_row) do not share cache sets and a
 * block's activations stream past its weights, which stay in registers or in the first-level cache.
 * The outputs of a few panels rest in a buffer of whole lines, however few columns the last panel
 * has. With few tokens several panels advance together, block by block: the memory then sees
 * several streams. Bodies ask for the weights some blocks ahead, into the next
 * panels where one ends: left to the hardware's prefetch, which stops at every page and every
 * panel, one to four tokens take a fifth to a half more time, and eight to thirty-two as much. */
#ifndef SY_QUANT_BLOCK_H
#define SY_QUANT_BLOCK_H

#include "cpu/sy_cpu.h"
#include "sy_quant_panel.h"

#define QUANT_TOKENS_MAX   96
#define QUANT_Q8_MAX       (QUANT_TOKENS_MAX * 32) /* blocks of one token that the buffer holds */
#define QUANT_F32_MAX      (QUANT_Q8_MAX / 4)
#define QUANT_FP8_MAX      (QUANT_F32_MAX * SY_QUANT_BLOCK / SY_FP8_BLOCK)
#define QUANT_GROUP_TOKENS 16 /* up to this many, GROUP_MAX panels go together */
#define QUANT_GROUP_MAX    4
#define QUANT_ACC_LINES    (QUANT_TOKENS_MAX * 2)

#define QUANT_AHEAD_BYTES 2048 /* how far ahead to ask for weights of one panel */

/* The arguments of a product, as they came: x or q. */
typedef struct quant_job {
    float *y;
    size_t y_stride;
    const float *x;
    size_t x_stride;
    const sy_qrows *q;
    const uint32_t *x_row;
    size_t T;
    const sy_panels *w;
    size_t begin, end;
} quant_job;

/* Tokens [t, t + n_tokens), blocks [block, block + n_blocks) of them. */
typedef struct quant_part {
    size_t t, n_tokens;
    size_t block, n_blocks;
} quant_part;

/* The activations of one part, [n_blocks][n_tokens], and the outputs of the panels in hand. */
typedef struct quant_buffer {
    _Alignas(SY_CACHE_LINE) union {
        int8_t q[QUANT_Q8_MAX * SY_QUANT_BLOCK];
        float x[QUANT_F32_MAX * SY_QUANT_BLOCK]; /* zeros past k: they leave a chain as it is */
    };
    float scale[QUANT_Q8_MAX];
    int32_t bias[QUANT_Q8_MAX]; /* what the stored quants' bias adds to a block's sum, negated */
    _Alignas(SY_CACHE_LINE) float acc[QUANT_ACC_LINES * SY_PANEL]; /* [panels][n_tokens][16] */
} quant_buffer;

/* One block of weights, of one panel or of two that lie panel_bytes apart. */
typedef struct quant_weights {
    const uint8_t *quants;
    const uint8_t *scales;
    size_t panel_bytes;
    size_t n_k;           /* inputs that the block has: less than all only at the end of a row */
    const uint8_t *ahead; /* quants to ask for meanwhile, panels as far apart; NULL: none */
    const uint8_t *ahead_scales;
} quant_weights;

/* Adds one block of n_panels panels (1, or what the instruction set takes at once) to the outputs:
 * acc is [n_panels][n_tokens][16], b counts from the start of the buffer. */
typedef void quant_body(float *acc, const quant_buffer *buffer, size_t b, size_t n_tokens,
                        quant_weights w, sy_dtype dtype, size_t n_panels);
typedef void quant_fill(quant_buffer *buffer, const quant_job *job, quant_part part);
typedef void quant_run(quant_buffer *buffer, const quant_job *job, quant_part part);

static inline size_t quant_row_of(const quant_job *job, size_t t)
{
    return job->x_row != NULL ? job->x_row[t] : t;
}

static inline void quant_fill_q8(quant_buffer *buffer, const quant_job *job, quant_part part)
{
    const int32_t bias = job->w->dtype == SY_Q8 ? Q8_BIAS : Q4_BIAS;

    for (size_t t = 0; t < part.n_tokens; t++) {
        const size_t row = quant_row_of(job, part.t + t);
        const int8_t *q = job->q->q + row * job->q->stride + part.block * SY_QUANT_BLOCK;
        const float *scale = job->q->scale + row * job->q->blocks + part.block;
        const int32_t *sum = job->q->sum + row * job->q->blocks + part.block;
        for (size_t b = 0; b < part.n_blocks; b++) {
            const size_t to = b * part.n_tokens + t;
            memcpy(buffer->q + to * SY_QUANT_BLOCK, q + b * SY_QUANT_BLOCK, SY_QUANT_BLOCK);
            buffer->scale[to] = scale[b];
            buffer->bias[to] = -bias * sum[b];
        }
    }
}

/* n_inputs, of a block, is a constant where this is used. */
SY_CPU_INLINE void quant_fill_blocks(quant_buffer *buffer, const quant_job *job, quant_part part,
                                     size_t n_inputs)
{
    const size_t first = part.block * n_inputs;

    for (size_t t = 0; t < part.n_tokens; t++) {
        const float *x = job->x + quant_row_of(job, part.t + t) * job->x_stride;
        for (size_t b = 0; b < part.n_blocks; b++) {
            const size_t k = first + b * n_inputs;
            const size_t n = SY_MIN(n_inputs, job->w->k - k);
            float *to = buffer->x + (b * part.n_tokens + t) * n_inputs;
            if (n < n_inputs) memset(to, 0, n_inputs * sizeof(*to));
            memcpy(to, x + k, n * sizeof(*to));
        }
    }
}

static inline void quant_fill_f32(quant_buffer *buffer, const quant_job *job, quant_part part)
{
    quant_fill_blocks(buffer, job, part, SY_QUANT_BLOCK);
}

static inline void quant_fill_fp8(quant_buffer *buffer, const quant_job *job, quant_part part)
{
    quant_fill_blocks(buffer, job, part, SY_FP8_BLOCK);
}

/* The outputs of panels [panel, panel + n_panels) come from y, when earlier blocks are in it, and
 * go back there. */
static inline void quant_acc_load(float *acc, const quant_job *job, quant_part part, size_t panel,
                                  size_t n_panels)
{
    if (part.block == 0) {
        memset(acc, 0, n_panels * part.n_tokens * SY_PANEL * sizeof(*acc));
        return;
    }
    for (size_t p = 0; p < n_panels; p++) {
        const size_t n = (panel + p) * SY_PANEL;
        const size_t n_columns = SY_MIN((size_t)SY_PANEL, job->w->n - n);
        for (size_t t = 0; t < part.n_tokens; t++) {
            memcpy(acc + (p * part.n_tokens + t) * SY_PANEL,
                   job->y + (part.t + t) * job->y_stride + n, n_columns * sizeof(*acc));
        }
    }
}

static inline void quant_acc_store(const float *acc, const quant_job *job, quant_part part,
                                   size_t panel, size_t n_panels)
{
    for (size_t p = 0; p < n_panels; p++) {
        const size_t n = (panel + p) * SY_PANEL;
        const size_t n_columns = SY_MIN((size_t)SY_PANEL, job->w->n - n);
        for (size_t t = 0; t < part.n_tokens; t++) {
            memcpy(job->y + (part.t + t) * job->y_stride + n,
                   acc + (p * part.n_tokens + t) * SY_PANEL, n_columns * sizeof(*acc));
        }
    }
}

/* Asks for a block of each of n_panels panels, while the current one is worked on. */
SY_CPU_INLINE void quant_prefetch(quant_weights w, sy_dtype dtype, size_t n_panels)
{
    if (w.ahead == NULL) return;
    for (size_t p = 0; p < n_panels; p++) {
        __builtin_prefetch(w.ahead_scales + p * w.panel_bytes);
        for (size_t i = 0; i < quant_block_bytes(dtype); i += SY_CACHE_LINE)
            __builtin_prefetch(w.ahead + p * w.panel_bytes + i);
    }
}

/* How far from a block's quants those to ask for lie; 0: there are none. */
SY_CPU_INLINE ptrdiff_t quant_ahead_bytes(quant_weights w)
{
    return w.ahead != NULL ? w.ahead - w.quants : 0;
}

/* Block `at` of a panel, or, where the panel ends before, of the one a group further. */
SY_CPU_INLINE void quant_ahead(quant_weights *w, const quant_job *job, size_t panel, size_t n_group,
                               size_t at, sy_dtype dtype)
{
    const size_t n_blocks = quant_blocks_of(dtype, job->w->k);

    if (at >= n_blocks) {
        at -= n_blocks;
        panel += n_group;
    }
    w->ahead = w->ahead_scales = NULL;
    if (at >= n_blocks || panel >= job->end) return;
    const uint8_t *quants = (const uint8_t *)job->w->data + panel * w->panel_bytes;
    const uint8_t *scales = quants + quant_quants_bytes(dtype, job->w->k);
    w->ahead = quants + at * quant_block_bytes(dtype);
    w->ahead_scales = scales + at * quant_scales_bytes(dtype);
}

/* Blocks of one group of panels. body, dtype and at_once (panels that a body takes) are constants
 * where this is used. */
SY_CPU_INLINE void quant_group(quant_buffer *buffer, const quant_job *job, quant_part part,
                               size_t panel, size_t n_panels, quant_body *body, sy_dtype dtype,
                               size_t at_once)
{
    const size_t block_bytes = quant_block_bytes(dtype);
    const size_t n_inputs = quant_block_inputs(dtype);
    const size_t panel_bytes = quant_panel_bytes(dtype, job->w->k);
    const uint8_t *quants = quant_panel_at(job->w, panel);
    const uint8_t *scales = quant_scales_at(job->w, quants);

    for (size_t b = 0; b < part.n_blocks; b++) {
        const size_t at = part.block + b;
        for (size_t p = 0; p < n_panels; p += at_once) {
            const size_t n = p + at_once <= n_panels ? at_once : 1;
            const size_t ahead = at + QUANT_AHEAD_BYTES / block_bytes;
            quant_weights w = {
                .quants = quants + p * panel_bytes + at * block_bytes,
                .scales = scales + p * panel_bytes + at * quant_scales_bytes(dtype),
                .panel_bytes = panel_bytes,
                .n_k = SY_MIN(n_inputs, job->w->k - at * n_inputs),
            };
            quant_ahead(&w, job, panel + p, n_panels, ahead, dtype);
            float *acc = buffer->acc + p * part.n_tokens * SY_PANEL;
            if (n == at_once) {
                body(acc, buffer, b, part.n_tokens, w, dtype, at_once);
            } else {
                body(acc, buffer, b, part.n_tokens, w, dtype, 1);
            }
        }
    }
}

/* All panels of the job against one part. */
SY_CPU_INLINE void quant_panels(quant_buffer *buffer, const quant_job *job, quant_part part,
                                quant_body *body, sy_dtype dtype, size_t at_once)
{
    const size_t n_max = part.n_tokens <= QUANT_GROUP_TOKENS ? QUANT_GROUP_MAX : at_once;

    for (size_t panel = job->begin, n; panel < job->end; panel += n) {
        n = SY_MIN(n_max, job->end - panel);
        quant_acc_load(buffer->acc, job, part, panel, n);
        quant_group(buffer, job, part, panel, n, body, dtype, at_once);
        quant_acc_store(buffer->acc, job, part, panel, n);
    }
}

/* Splits the job into parts of as equal numbers of tokens as can be, and of as many blocks as the
 * buffer holds (capacity, counted in blocks of one token). A block's chain never leaves its part.
 */
static inline void quant_by_parts(const quant_job *job, size_t capacity, quant_fill *fill,
                                  quant_run *run)
{
    const size_t n_blocks = quant_blocks_of(job->w->dtype, job->w->k);
    quant_buffer buffer;

    for (size_t t = 0, n; t < job->T; t += n) {
        const size_t left = job->T - t;
        const size_t n_parts = (left + QUANT_TOKENS_MAX - 1) / QUANT_TOKENS_MAX;
        n = (left + n_parts - 1) / n_parts;
        size_t block = 0;
        do { /* once even when there is no k: the outputs are then +0 */
            const size_t most = SY_MIN(capacity / n, n_blocks - block);
            const quant_part part = {t, n, block, most};
            fill(&buffer, job, part);
            run(&buffer, job, part);
            block += most;
        } while (block < n_blocks);
    }
}

#endif
