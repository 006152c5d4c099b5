/* sy_shard_internal.h - what the table of shards and the builder know of each other: this folder
 * only. */
#ifndef SY_SHARD_INTERNAL_H
#define SY_SHARD_INTERNAL_H

#include "sy_digest.h"
#include "sy_shard.h"
#include "sy_shard_remote.h"

/* What stands in the way of a claim. */
typedef enum sy_shard_claiming {
    SY_SHARD_CLAIM_NEW,  /* any copy, or another builder */
    SY_SHARD_CLAIM_WAIT, /* any copy; another builder is waited for */
    SY_SHARD_CLAIM_COPY  /* a copy in that very place, or another builder */
} sy_shard_claiming;
/* Room for `bytes` of host memory and the right to build a shard on `home` (NULL: in host memory);
 * exactly one sy_shard_settle follows. SY_EEXISTS: something stands in the way. SY_ENOTFOUND: the
 * model has no such shard. SY_ELIMIT. */
SY_MUST_USE sy_status sy_shard_claim(sy_shard_store *store, uint32_t layer, uint32_t expert,
                                     const sy_shard_home *home, uint64_t bytes,
                                     sy_shard_claiming claiming, sy_error *err);
/* Publishes the shard, with one reference that is the table's, in place of a copy that may be
 * there; NULL gives the room back. */
void sy_shard_settle(sy_shard_store *store, uint32_t layer, uint32_t expert, uint64_t bytes,
                     sy_shard *shard);
const sy_model *sy_shard_store_model(const sy_shard_store *store);
sy_precision sy_shard_store_precision(const sy_shard_store *store);

/* A shard of this form in one allocation, its weights undefined; with one reference. NULL: no
 * memory. */
sy_shard *sy_shard_make(const sy_shard_form *form, sy_activations activations, uint32_t layer,
                        uint32_t expert);
/* The same in a slot that the caller has taken, and which the shard gives back. */
sy_shard *sy_shard_make_on(sy_shard_home *home, uint32_t slot, const sy_shard_form *form,
                           sy_activations activations, uint32_t layer, uint32_t expert);
void sy_shard_free(sy_shard *shard); /* accepts NULL */
/* What the store counts of it. */
static inline uint64_t sy_shard_host_bytes(const sy_shard *shard)
{
    return shard->home == NULL ? shard->bytes : 0;
}
/* What sy_shard_make takes for the weights; 0: no such form. */
uint64_t sy_shard_packed_bytes(const sy_shard_form *form);
unsigned sy_shard_parts(const sy_shard *shard); /* as its form's n */
/* Part i, in a form's order; on a GPU without data. A bias is packed as any matrix of one column of
 * f32 is, which is a plain vector filled up to whole panels. */
sy_panels sy_shard_part(const sy_shard *shard, unsigned i);
/* An error that says that the model has no such shard. */
sy_status sy_shard_missing(uint32_t layer, uint32_t expert, sy_error *err);
/* True when the model has this shard: layer and expert may be any numbers. */
int sy_shard_exists(const sy_model *model, uint32_t layer, uint32_t expert);

struct sy_shard_builder {
    sy_shard_store *store; /* NULL: the shard is only identified, never published */
    const sy_model *model;
    sy_shard *shard;            /* owned */
    sy_shard_form held, stored; /* as it lies in memory; as the checkpoint's tensors give it */
    const sy_shard_form *in;    /* which of them the bytes have that come in */
    uint64_t total_bytes, added_bytes; /* of it */
    unsigned part; /* where the next byte goes: part, panel, byte of that panel's rows */
    size_t panel, staged_bytes;
    uint8_t *stage;          /* the rows of one panel, of either form */
    uint8_t *read;           /* the same, from the checkpoint's tensor */
    uint8_t *rounded;        /* the rows of one panel, as held */
    sy_digest_state *digest; /* of the bytes as held */
    int failed;              /* an add ended in the middle */
    int verified;
    const sy_shard *source; /* with a reference: the copy that bytes come from; else NULL */
    uint64_t copied_bytes;  /* of its slot, where they come directly: added_bytes is their share */
    int direct;             /* none of them passes through the host */
    /* The same from another process, in place of source: */
    int is_offered;
    sy_shard_offer offer;
    sy_backend_remote *remote; /* until all of them are there */
};
/* The builder behind sy_shard_begin_on: store may be NULL. Takes a slot, if it is for a home, but
 * does not claim; the model has the shard. */
SY_MUST_USE sy_status sy_shard_builder_open(sy_shard_builder **out, sy_shard_store *store,
                                            sy_shard_home *home, const sy_model *model,
                                            sy_precision precision, uint32_t layer, uint32_t expert,
                                            sy_error *err);
void sy_shard_builder_free(sy_shard_builder *builder); /* the claim stays */
/* Before bytes of form `in` are added: SY_EPRECONDITION when it failed before, or when they came
 * another way so far. */
SY_MUST_USE sy_status sy_shard_builder_choose(sy_shard_builder *builder, const sy_shard_form *in,
                                              sy_error *err);
/* Bytes of the row panel that comes next which are not there yet; 0: all are there. */
size_t sy_shard_builder_wants(const sy_shard_builder *builder);
int sy_shard_is_form_of(const sy_shard_form *form, const sy_shard_form *own); /* equal */
/* As sy_shard_export, with the reason why there are none of a shard on a GPU. */
SY_MUST_USE sy_status sy_shard_read(size_t *n_read, const sy_shard *shard, uint64_t offset,
                                    void *dst, size_t n, sy_error *err);
/* The output of the shard for the row that every build knows, as a hash. SY_EDATALOSS: it is not
 * the reference kernels' (SHARD_PROBE); SY_ENOMEM. */
SY_MUST_USE sy_status sy_shard_probe(uint64_t *out, const sy_shard *shard,
                                     const sy_kernels *kernels, sy_error *err);
/* bias[col, col + cols), unless bias is NULL, is added to each of the rows, stride floats apart,
 * that y has of these columns. */
static inline void sy_shard_add_bias(float *y, size_t stride, const float *bias, size_t col,
                                     size_t rows, size_t cols, const sy_kernels *kernels)
{
    if (bias == NULL) return;
    for (size_t i = 0; i < rows; i++) kernels->add(y + i * stride, bias + col, cols);
}
/* What lies between the matrices, of n elements: g becomes what goes into Down. */
static inline void sy_shard_activate(const sy_shard *shard, float *g, const float *u, size_t n,
                                     const sy_kernels *kernels)
{
    if (shard->mlp == SY_MLP_CLAMPED)
        kernels->clamped_swiglu(g, g, u, shard->mlp_limit, n);
    else
        kernels->swiglu(g, g, u, n);
}
/* An error about this shard, with its reason and place. */
sy_status sy_shard_refuse(const sy_shard *shard, sy_status status, const char *reason,
                          sy_error *err, const char *fmt, ...) SY_PRINTF(5, 6);

#endif
