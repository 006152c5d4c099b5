/* sy_trunk.h - the model without its experts: embedding, norms, attention over a paged KV cache,
 * the MLPs that every token passes, head; on the processor, or on a GPU. Every operation works on a
 * batch of rows; a row is one token of one sequence, and its result depends on that sequence alone:
 * batching, chunking of a prompt and threads change no bit. Formulas: transformers' modeling files
 * of the families that sy_model_desc describes; on the processor in float32, on a GPU as
 * kernels/cuda/sy_cuda_trunk.h says (sy_trunk_arithmetic names it).
 *
 * The rows themselves, the residual stream, lie in a workspace, where the trunk computes. Calls on
 * a GPU only enqueue, but for sy_trunk_input and sy_trunk_head. On the processor they do not fail;
 * on a GPU any may: SY_EUNAVAILABLE (DEVICE_LOST), after which all do and sy_trunk_lost says so, or
 * SY_EIO. */
#ifndef SY_TRUNK_H
#define SY_TRUNK_H

#include "cuda/sy_backend.h"
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

typedef struct sy_trunk sy_trunk; /* immutable: any thread; a workspace belongs to one */

/* Where that trunk computes. SY_ENOMEM: with figures. */
SY_MUST_USE sy_status sy_kv_open(sy_kv **out, const sy_trunk *trunk, uint32_t n_pages,
                                 sy_error *err);
void sy_kv_close(sy_kv *kv); /* before its trunk; accepts NULL */
/* Of one page, all layers: keys and values, or with MLA the latent alone. On the processor; and
 * where that trunk computes. */
uint64_t sy_kv_page_bytes(const sy_model_desc *desc);
uint64_t sy_trunk_page_bytes(const sy_trunk *trunk);
uint32_t sy_kv_pages(const sy_kv *kv);
uint32_t sy_kv_free_pages(const sy_kv *kv);
/* Gives seq pages for n_tokens in all. SY_ELIMIT: not enough are free, and seq is as before;
 * SY_ENOMEM. */
SY_MUST_USE sy_status sy_kv_reserve(sy_kv *kv, sy_kv_seq *seq, uint32_t n_tokens);
void sy_kv_release(sy_kv *kv, sy_kv_seq *seq); /* seq is empty and holds no memory afterwards */

/* ---- trunk ---- */

/* Packs its weights with the pool's threads; no byte of an expert is touched. precision: of every
 * matrix, the head among them, also where the checkpoint ties it to the embedding; the embedding
 * itself stays as stored, norms and biases are fp32, and so are the activations that go through the
 * two matrices a head of MLA, whatever the precision says of others. SY_EINVAL: weights too large
 * for that format, with the tensor's name; SY_EDATALOSS: a weight that is not a number, or the file
 * was cut; SY_ENOMEM. */
SY_MUST_USE sy_status sy_trunk_open(sy_trunk **out, const sy_model *model,
                                    const sy_kernels *kernels, sy_precision precision,
                                    sy_pool *pool, sy_error *err);

/* A GPU as the place of a trunk. */
typedef struct sy_trunk_device {
    const sy_backend *backend;
    uint32_t number;     /* of the device, as the backend counts */
    const char *name;    /* "cuda:0"; copied */
    uint32_t timeout_us; /* a step's work that takes longer: the device is lost. 0: 10 s */
} sy_trunk_device;
/* The same on a GPU, whose arithmetic has been tried against the processor's before it returns.
 * precision: weights are held as on the processor, where that is bf16, q8, q4, fp8 or mxfp4;
 * activations are not asked, they are bf16 in products. kernels: for what the processor still does.
 * SY_EUNIMPLEMENTED (DEVICE_WEIGHTS, DEVICE_SHAPE): held in a type, or of a form, that the device's
 * kernels do not do, which is named;
 * SY_ENOMEM (DEVICE_MEMORY), with figures; SY_EDATALOSS (DEVICE_SELF_TEST); SY_EUNAVAILABLE. */
SY_MUST_USE sy_status sy_trunk_open_on(sy_trunk **out, const sy_trunk_device *device,
                                       const sy_model *model, const sy_kernels *kernels,
                                       sy_precision precision, sy_pool *pool, sy_error *err);
void sy_trunk_close(sy_trunk *trunk); /* accepts NULL */
const sy_model_desc *sy_trunk_describe(const sy_trunk *trunk);
const sy_kernels *sy_trunk_kernels(const sy_trunk *trunk);
sy_precision sy_trunk_precision(const sy_trunk *trunk);
uint64_t sy_trunk_bytes(const sy_trunk *trunk); /* of weights, where they are */
/* "f32-chain/1", ...; on a GPU "bf16-mma/1:sm_90". Lives as long as the trunk. */
const char *sy_trunk_arithmetic(const sy_trunk *trunk);
/* 1: its GPU is of no more use to this process; why, with the reason for machines. Any thread. */
int sy_trunk_lost(const sy_trunk *trunk, sy_error *why);

typedef struct sy_batch { /* T rows; arrays borrowed */
    uint32_t n_rows;
    const uint32_t *token; /* [T] < vocab */
    const uint32_t
        *position; /* [T] < context; rows of a sequence in ascending position, earlier ones in KV */
    const sy_kv_seq *const *seq; /* [T] with pages up to that position */
} sy_batch;

/* The rows of a step, and scratch, for up to rows_max of them. One thread at a time for all
 * workspaces of a trunk. */
typedef struct sy_trunk_ws sy_trunk_ws;
SY_MUST_USE sy_status sy_trunk_ws_open(sy_trunk_ws **out, const sy_trunk *trunk, uint32_t rows_max,
                                       sy_pool *pool, sy_error *err);
void sy_trunk_ws_close(sy_trunk_ws *ws); /* before its trunk; accepts NULL */

/* One step is: begin; per layer attention, norm, mlp and, where it has experts, input, what they
 * do, and add; then head. x, [T,H], is the residual stream in the workspace. */

/* x = embedding; angles. The batch is read during the call. */
SY_MUST_USE sy_status sy_trunk_begin(const sy_trunk *trunk, sy_trunk_ws *ws, const sy_batch *batch,
                                     sy_error *err);
/* The batch lost rows between layers: x[i] = x[row[i]], row ascending; batch: those that stay. */
SY_MUST_USE sy_status sy_trunk_keep(const sy_trunk *trunk, sy_trunk_ws *ws, const sy_batch *batch,
                                    const uint32_t *row, sy_error *err);
/* x += Attn(Norm1(x)); writes KV. batch: as begin, or the last keep, had it. */
SY_MUST_USE sy_status sy_trunk_attend(const sy_trunk *trunk, sy_trunk_ws *ws, sy_kv *kv,
                                      uint32_t layer, const sy_batch *batch, sy_error *err);
/* Norm2(x), for the two that follow. */
SY_MUST_USE sy_status sy_trunk_norm(const sy_trunk *trunk, sy_trunk_ws *ws, uint32_t layer,
                                    uint32_t n_rows, sy_error *err);
/* What every token passes: x += MLP(Norm2(x)), times the model's residual multiplier. The MLP of a
 * dense layer, the shared experts of any other; nothing where the model has neither. */
SY_MUST_USE sy_status sy_trunk_mlp(const sy_trunk *trunk, sy_trunk_ws *ws, uint32_t layer,
                                   uint32_t n_rows, sy_error *err);
/* Norm2(x) on the host: *xn is [n_rows,H], in the workspace, until the next norm. Waits for it, and
 * not for the mlp that came after. */
SY_MUST_USE sy_status sy_trunk_input(const float **xn, const sy_trunk *trunk, sy_trunk_ws *ws,
                                     uint32_t n_rows, sy_error *err);
/* [rows_max,H] of the host: where the experts' sum goes before an add. Not written between that add
 * and the next input or head. */
float *sy_trunk_output(const sy_trunk_ws *ws);
/* x += output, times the model's residual multiplier. Its rows were moved by the caller, where some
 * were lost. */
SY_MUST_USE sy_status sy_trunk_add(const sy_trunk *trunk, sy_trunk_ws *ws, uint32_t n_rows,
                                   sy_error *err);
typedef struct sy_trunk_row {
    sy_trunk_ws *ws;
    uint32_t row;
} sy_trunk_row;
/* logits[i] = Head(Norm(x[row[i]])), [n,vocab]; n at most the first one's rows_max. Waits. */
SY_MUST_USE sy_status sy_trunk_head(const sy_trunk *trunk, float *logits, const sy_trunk_row *row,
                                    uint32_t n, sy_error *err);

#endif
