/* sy_shard.h - expert weights and their computation, wherever they run: the same code serves the
 * expert nodes and the embedded single process. A shard is one expert of one layer: gate, up and
 * down matrices and their biases where the family has them; in host memory packed in column panels,
 * in one allocation of its own, or in a slot of a GPU (sy_shard_home.h). Layers without experts
 * have no shards. No network, no placement. */
#ifndef SY_SHARD_H
#define SY_SHARD_H

#include "sy_kernels.h"
#include "sy_model.h"
#include "sy_plan.h"
#include "sy_pool.h"

/* What a shard is, whoever holds it. Two holders whose identities are equal give the same bits. */
typedef struct sy_shard_identity {
    uint64_t content; /* XXH3 64 of the bytes of gate, up, down as they are held, row-major in this
                         order, then of their biases: the checkpoint's own weights, as they read,
                         or as they are encoded, or those rows rounded to blocks */
    uint64_t probe;   /* XXH3 64 of its output (fp32) for one fixed row that every build knows
                         (sy_shard_identity.c); 0: not probed */
} sy_shard_identity;

typedef struct sy_shard_home sy_shard_home; /* a GPU */

typedef struct sy_shard {
    uint32_t layer, expert;
    sy_shard_identity identity;
    sy_shard_home *home; /* NULL: host memory. Else the panels have types and shapes but no data,
                            and it is computed by sy_shard_home_submit alone */
    uint32_t slot;       /* of the home */
    uint64_t home_hash;  /* of what lies in the slot, by the device's own hash, once verified */
    sy_activations activations;                   /* what rows are rounded to before each product */
    sy_panels gate, up;                           /* [F,H] */
    sy_panels down;                               /* [H,F] */
    const float *gate_bias, *up_bias, *down_bias; /* [F], [F], [H]; NULL: it has none */
    sy_mlp_form mlp;                              /* what lies between those and down */
    float mlp_limit;
    uint64_t bytes; /* of host memory, or of the slot */
} sy_shard;         /* immutable, reference-counted inside the store */

typedef struct sy_shard_store sy_shard_store;

/* precision: how every shard is held and computed. memory_bytes_max: of host memory; loads that
 * would pass it are refused (0: no limit). The model is borrowed and outlives the store; so do the
 * homes that its shards are put on. SY_EINVAL: as sy_shard_check_weights. */
SY_MUST_USE sy_status sy_shard_store_open(sy_shard_store **out, const sy_model *model,
                                          sy_precision precision, uint64_t memory_bytes_max,
                                          sy_error *err);
void sy_shard_store_close(sy_shard_store *store); /* nobody holds a shard any more; accepts NULL */
/* Reads, packs and publishes one shard in host memory; already resident anywhere: SY_OK at once;
 * being built by another thread: waits for it. Touches only that shard's bytes of the files. Its
 * content hash is of the bytes as they were read or rounded; it is not probed. Any thread, several
 * at once. SY_ELIMIT ("needs X, has Y of Z"), SY_EDATALOSS (file cut while open, or a weight that
 * is not a number), SY_EINVAL (weights too large for the store's format: SHARD_ROUNDING),
 * SY_ENOMEM. */
SY_MUST_USE sy_status sy_shard_load(sy_shard_store *store, uint32_t layer, uint32_t expert,
                                    sy_error *err);
/* ---- loading in pieces: from files or from another node, at any pace ---- */
/* The parts of a shard are gate, up, down and, where it has them, the biases of gate, up, down:
 * each a matrix of one column of f32, whatever the checkpoint stores. */
enum { SY_SHARD_MATRICES = 3, SY_SHARD_PARTS_MAX = 6 };
/* How the bytes of the parts lie, row after row. What the checkpoint stores, as sy_tensor_read
 * gives it, is one form, what a store with rounded or encoded weights holds, exports and takes from
 * others is another. */
typedef struct sy_shard_form {
    uint32_t n; /* 3, or 6 with biases; 0: there is no such shard */
    sy_dtype dtype[SY_SHARD_PARTS_MAX];
    uint32_t rows[SY_SHARD_PARTS_MAX], cols[SY_SHARD_PARTS_MAX];
} sy_shard_form;
/* weights: as sy_precision has it; SY_DTYPE_NONE: the checkpoint's form. layer, expert: any. */
void sy_shard_form_of(sy_shard_form *out, const sy_model *model, sy_dtype weights, uint32_t layer,
                      uint32_t expert);
/* The weights whose form sy_shard_add_from_checkpoint counts by: what is kept encoded is taken as
 * it is, all else as it reads. */
static inline sy_dtype sy_shard_read_as(sy_dtype weights)
{
    return sy_dtype_is_encoded(weights) ? weights : SY_DTYPE_NONE;
}
/* SY_EINVAL (SHARD_FORM): an encoded type, and not one matrix of any expert is stored so. */
SY_MUST_USE sy_status sy_shard_check_weights(const sy_model *model, sy_dtype weights,
                                             sy_error *err);
/* Of all parts, one after the other; 0 when there are none, or so large that they overflow. */
uint64_t sy_shard_form_bytes(const sy_shard_form *form);

typedef struct sy_shard_builder sy_shard_builder; /* one thread at a time */
/* Claims memory: the packed shard's; beside it a builder has the rows of one panel. form: as the
 * sender has it; NULL: not from a sender. SY_EEXISTS: it is in memory already, or somebody builds
 * it; SY_ELIMIT ("needs X, has Y of Z", SHARD_MEMORY); SY_EINVAL: a form that is not this store's
 * (SHARD_FORM); SY_ENOTFOUND: the model has no such shard; SY_ENOMEM. */
SY_MUST_USE sy_status sy_shard_begin(sy_shard_builder **out, sy_shard_store *store, uint32_t layer,
                                     uint32_t expert, const sy_shard_form *form, sy_error *err);
/* The same on a GPU, which has been opened for this model and these weights; home NULL: in host
 * memory. It takes a slot and none of the store's memory. A shard that is in memory elsewhere in
 * this process gets a second copy, which takes the place of the first when it is published: readers
 * find one or the other, and who holds the first keeps it. SY_EEXISTS: it is in that very place
 * already, or being built anywhere; SY_ELIMIT (SHARD_MEMORY): no slot is free; SY_EUNAVAILABLE
 * (DEVICE_LOST), as from every call below with a shard on a GPU. */
SY_MUST_USE sy_status sy_shard_begin_on(sy_shard_builder **out, sy_shard_store *store,
                                        sy_shard_home *home, uint32_t layer, uint32_t expert,
                                        const sy_shard_form *form, sy_error *err);
/* The next at most n_max bytes from the copy that is in memory elsewhere in this process: between
 * GPUs directly, without passing through the host where the devices can; *done: all are there.
 * SY_ENOTFOUND: there is none; SY_EPRECONDITION: bytes before came directly, or now would not. The
 * copy stays readable until the builder ends, also when it is unloaded. The bytes are verified as
 * any others, by content where they came through the host, which must be the source's, by the
 * devices' hashes and the probe where they did not. */
SY_MUST_USE sy_status sy_shard_add_from_copy(sy_shard_builder *builder, size_t n_max, int *done,
                                             sy_error *err);
/* The next bytes of the store's form, in order, any number. SY_EINVAL: more than the form has;
 * SY_EDATALOSS: a weight that is not a number. After a failure the builder can only be abandoned.
 */
SY_MUST_USE sy_status sy_shard_add(sy_shard_builder *builder, const void *data, size_t n,
                                   sy_error *err);
/* Bytes so far: of the store's form, or of the checkpoint's where they come from there; while they
 * come directly, their share of the store's form. */
uint64_t sy_shard_added(const sy_shard_builder *builder);
/* The next at most n_max bytes from the checkpoint's files, rounded to the store's format as they
 * come; *done: all are there. Each matrix is released from the page tables once it is packed.
 * SY_EDATALOSS: the file was cut while open, or as sy_shard_add; SY_EINVAL: weights too large for
 * the format (SHARD_ROUNDING). SY_EPRECONDITION, for this and sy_shard_add: the bytes before came
 * the other way, in another form. */
SY_MUST_USE sy_status sy_shard_add_from_checkpoint(sy_shard_builder *builder, size_t n_max,
                                                   int *done, sy_error *err);
/* All bytes are there (else SY_EPRECONDITION): works out the identity from what lies in memory now,
 * unpacked again, and the probe with these kernels and the store's activations, compared bit by bit
 * with the reference ones (on an even choice of output panels, when the shard is large).
 * On a GPU the probe is the device's own and is compared with a reference in double precision; the
 * kernels are not asked. After a direct copy within this process, the devices' hashes must agree,
 * and the bits of the probes where the arithmetic is the same; the content is the source's. After
 * one from another process all of this is asked.
 * SY_EDATALOSS: what lies in memory is not what was added (SHARD_CORRUPT), or the kernels differ
 * (SHARD_PROBE). */
SY_MUST_USE sy_status sy_shard_verify(sy_shard_builder *builder, sy_shard_identity *out,
                                      const sy_kernels *kernels, sy_error *err);
/* After verify: from now on sy_shard_get finds it. Frees the builder. */
void sy_shard_publish(sy_shard_builder *builder);
void sy_shard_abandon(sy_shard_builder *builder); /* gives the memory back; accepts NULL */

/* Bytes [offset, offset + n) of a shard in memory, in its form, for another node: returns how many
 * there were, 0 past the end. Fewer before the end: its GPU gives no more (sy_shard_home_lost tells
 * whether it ever will). Any thread. */
size_t sy_shard_export(const sy_shard *shard, uint64_t offset, void *dst, size_t n);
void sy_shard_form_in_memory(sy_shard_form *out, const sy_shard *shard);
/* The identity that the checkpoint's own bytes have at this precision, without keeping them: what
 * holders are compared with. Needs memory for one shard, which no store counts. Errors as above. */
SY_MUST_USE sy_status sy_shard_identify(sy_shard_identity *out, const sy_model *model,
                                        sy_precision precision, uint32_t layer, uint32_t expert,
                                        const sy_kernels *kernels, sy_error *err);

/* For tests of what notices it: damages one weight of up, wherever the shard lies. On a GPU no
 * batch that is under way may use it. */
void sy_shard_flip_bit(const sy_shard *shard);

/* Takes it out of the table; memory goes when the last holder lets go. 1: it was resident. */
int sy_shard_unload(sy_shard_store *store, uint32_t layer, uint32_t expert);
/* With a reference, or NULL: not resident, or no such layer or expert. Any thread. */
const sy_shard *sy_shard_get(sy_shard_store *store, uint32_t layer, uint32_t expert);
void sy_shard_put(sy_shard_store *store, const sy_shard *shard); /* accepts NULL */
/* Of host memory, with what builders have claimed; sy_shard_home_bytes has the rest. */
uint64_t sy_shard_store_bytes(const sy_shard_store *store);
uint32_t sy_shard_store_count(const sy_shard_store *store); /* wherever they lie */

/* Rows of one expert inside a message or batch: rows [begin, end) of the index array. */
typedef struct sy_shard_group {
    const sy_shard *shard;
    uint32_t begin, end;
} sy_shard_group;

/* Scratch for sy_shard_compute, grown on demand, owned by one computing thread. Zeroed is empty. */
typedef struct sy_shard_scratch {
    float *h; /* [rows, F] */
    size_t capacity_floats;
    float *tile; /* one tile a pool thread */
    size_t tile_floats;
    /* With rounded activations, in place of h: the rows of x in use, and all of h. */
    void *rounded;
    size_t rounded_bytes;
    sy_qrows h_rounded; /* int8, of the latest call */
    uint16_t *h_pairs;  /* bf16, the same */
    uint32_t *index;    /* which row of x_rounded is which */
    size_t n_index;
} sy_shard_scratch;
void sy_shard_scratch_free(sy_shard_scratch *scratch);

/* y[i] = Down(silu(Gate x) * (Up x)) with x = row x_row[i] (x_row NULL: row i), for the rows of
 * every group; rows in no group are not written. In place of silu(g) * u is what the family has
 * there (sy_mlp_form); biases, where there are some, are added to what each matrix gives. The
 * groups' shards are of one store, and none lies on a GPU; with its rounded activations x is
 * rounded once a row, and what goes into Down before Down. Each element is one chain of fused
 * multiply-adds (sy_kernels.h): neither the pool, nor what else is in the batch, changes a bit. x:
 * [.,H] rows x_stride floats apart; y: [R,H] packed. SY_ENOMEM. */
SY_MUST_USE sy_status sy_shard_compute(float *y, const float *x, size_t x_stride,
                                       const uint32_t *x_row, const sy_shard_group *groups,
                                       size_t n_groups, sy_shard_scratch *scratch, sy_pool *pool,
                                       const sy_kernels *kernels);

/* y[t] = sum of weight * row over the token's experts in ascending id, each step one fma from +0:
 * y: [T,H], row: [R] pointers in the plan's row order. Tokens with skip[t] != 0 are left alone
 * (skip may be NULL).
 * done: [T], the terms that y[t] holds; zeroed at first. The sum goes on from there as far as its
 * rows are there (row[r] not NULL), so calls while rows arrive give the bits of one call at the
 * end. A token starts again with done[t] = 0, as it must when its weights change. NULL: all rows
 * are there, and nothing is summed yet.
 * pool: shares large sums by tokens; NULL: this thread alone. */
void sy_shard_combine(float *y, const sy_plan *plan, const float *const *row, size_t hidden,
                      const uint8_t *skip, uint32_t *done, sy_pool *pool,
                      const sy_kernels *kernels);

#endif
