/* sy_trunk.h - the model without its experts: embedding, norms, attention over a paged KV cache,
 * the MLPs that every token passes, head. Every operation works on a batch of rows; a row is one
 * token of one sequence, and its result depends on that sequence alone: batching, chunking of a
 * prompt and threads change no bit. Formulas: transformers' modeling files of the families that
 * sy_model_desc describes, in float32. */
#ifndef SY_TRUNK_H
#define SY_TRUNK_H

#include "sy_kernels.h"
#include "sy_model.h"
#include "sy_pool.h"

/* ---- KV pages ---- */
#define SY_KV_PAGE 16 /* tokens a page */

typedef struct sy_kv sy_kv; /* all pages; one owner thread */
typedef struct sy_kv_seq {  /* one sequence's pages; zeroed is empty */
    uint32_t *page;
    uint32_t n_pages, capacity;
    uint8_t is_long; /* set by the owner before its first row: the sequence may pass
                        rope.original_context (SY_ROPE_LONG) */
} sy_kv_seq;

SY_MUST_USE sy_status sy_kv_open(sy_kv **out, const sy_model_desc *desc, uint32_t n_pages,
                                 sy_error *err);
void sy_kv_close(sy_kv *kv);                          /* accepts NULL */
uint64_t sy_kv_page_bytes(const sy_model_desc *desc); /* of one page, all layers: keys and values,
                                                         or with MLA the latent alone */
uint32_t sy_kv_pages(const sy_kv *kv);
uint32_t sy_kv_free_pages(const sy_kv *kv);
/* Gives seq pages for n_tokens in all. SY_ELIMIT: not enough are free, and seq is as before;
 * SY_ENOMEM. */
SY_MUST_USE sy_status sy_kv_reserve(sy_kv *kv, sy_kv_seq *seq, uint32_t n_tokens);
void sy_kv_release(sy_kv *kv, sy_kv_seq *seq); /* seq is empty and holds no memory afterwards */

/* ---- trunk ---- */
typedef struct sy_trunk sy_trunk; /* immutable: any thread; a workspace belongs to one */

/* Packs its weights with the pool's threads; no byte of an expert is touched. precision: of every
 * matrix, the head among them, also where the checkpoint ties it to the embedding; the embedding
 * itself stays as stored, norms and biases are fp32, and so are the activations that go through the
 * two matrices a head of MLA, whatever the precision says of others. SY_EINVAL: weights too large
 * for that format, with the tensor's name; SY_EDATALOSS: a weight that is not a number, or the file
 * was cut; SY_ENOMEM. */
SY_MUST_USE sy_status sy_trunk_open(sy_trunk **out, const sy_model *model,
                                    const sy_kernels *kernels, sy_precision precision,
                                    sy_pool *pool, sy_error *err);
void sy_trunk_close(sy_trunk *trunk); /* accepts NULL */
const sy_model_desc *sy_trunk_describe(const sy_trunk *trunk);
const sy_kernels *sy_trunk_kernels(const sy_trunk *trunk);
sy_precision sy_trunk_precision(const sy_trunk *trunk);
uint64_t sy_trunk_bytes(const sy_trunk *trunk);

typedef struct sy_batch { /* T rows; arrays borrowed */
    uint32_t n_rows;
    const uint32_t *token; /* [T] < vocab */
    const uint32_t
        *position; /* [T] < context; rows of a sequence in ascending position, earlier ones in KV */
    const sy_kv_seq *const *seq; /* [T] with pages up to that position */
} sy_batch;

typedef struct sy_trunk_ws sy_trunk_ws; /* scratch for up to rows_max rows */
SY_MUST_USE sy_status sy_trunk_ws_open(sy_trunk_ws **out, const sy_trunk *trunk, uint32_t rows_max,
                                       sy_pool *pool, sy_error *err);
void sy_trunk_ws_close(sy_trunk_ws *ws); /* accepts NULL */

/* One step is: begin; per layer attention, moe_input, mlp, (the experts, add); then head. x: [T,H],
 * the residual stream. */
void sy_trunk_begin(const sy_trunk *trunk, sy_trunk_ws *ws, float *x,
                    const sy_batch *batch); /* x = embedding; angles */
/* Again for a batch that lost rows between layers: x is the caller's to compact, the angles follow
 * here. */
void sy_trunk_rebatch(const sy_trunk *trunk, sy_trunk_ws *ws, const sy_batch *batch);
void sy_trunk_attention(const sy_trunk *trunk, sy_trunk_ws *ws, sy_kv *kv, uint32_t layer, float *x,
                        const sy_batch *batch); /* x += Attn(Norm1(x)); writes KV */
void sy_trunk_moe_input(const sy_trunk *trunk, uint32_t layer, float *xn, const float *x,
                        uint32_t n_rows); /* Norm2(x) */
/* What every token passes: x += MLP(xn), times the model's residual multiplier; xn is what
 * sy_trunk_moe_input gave. The MLP of a dense layer, the shared experts of any other; nothing where
 * the model has neither. */
void sy_trunk_mlp(const sy_trunk *trunk, sy_trunk_ws *ws, uint32_t layer, float *x, const float *xn,
                  uint32_t n_rows);
void sy_trunk_add(const sy_trunk *trunk, float *x, const float *y,
                  uint32_t n_rows); /* x += y, times the model's residual multiplier */
/* logits[i] = Head(Norm(x[row[i]])), [n,vocab]. */
void sy_trunk_head(const sy_trunk *trunk, sy_trunk_ws *ws, float *logits, const float *x,
                   const uint32_t *row, uint32_t n);

#endif
