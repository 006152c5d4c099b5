/* sy_cuda_ops_check.c - what an operation needs, before any of its batch is enqueued: its places,
 * on the stream's device and aligned, and room behind each of them. Sizes saturate, so that what
 * does not fit into 64 bits does not fit into a buffer either.
 *
 * What stands in device memory is not looked at: that numbers of rows are at most rows_max, tokens
 * less than the vocabulary, positions less than positions_max, and pages those of the cache, is the
 * caller's to see to. */
#include <cuda_runtime_api.h>

#include "sy_cuda_internal.h"
#include "sy_cuda_pack.h"
#include "sy_cuda_trunk.h"

enum {
    ROWS_MAX = 1 << 24,
    GRID_MAX = 65535, /* of a grid's y and z: rows of what goes by heads, and heads */
    SPLITS_MAX = GRID_MAX
};

/* The operation that is looked at. The first thing that is wrong with it stands in why, and what
 * is asked after that changes nothing. */
typedef struct op_check {
    uint32_t index;
    const char *name;
    int device; /* of the stream */
    int result;
    char *why;
} op_check;

/* Where the rest of the sentence goes; NULL: there is one already. */
static char *begin_refusal(op_check *c, size_t *room)
{
    int n;

    if (c->result != SY_BACKEND_OK) return NULL;
    c->result = SY_BACKEND_EINVAL;
    n = snprintf(c->why, SY_BACKEND_WHY_BYTES, "operation %u (%s): ", c->index, c->name);
    *room = SY_BACKEND_WHY_BYTES - (size_t)n; /* names are short */
    return c->why + n;
}

/* A macro, so that the compiler checks the format. */
#define refuse(c, ...)                                       \
    do {                                                     \
        size_t room;                                         \
        char *rest = begin_refusal((c), &room);              \
        if (rest != NULL) snprintf(rest, room, __VA_ARGS__); \
    } while (0)

/* ---- sizes ---- */

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;

    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t floats(uint64_t rows, uint64_t n)
{
    return times(times(rows, n), sizeof(float));
}

/* Rows of bf16 activations; n is at most SY_CUDA_DIMENSION_MAX. */
static uint64_t activations(uint64_t rows, uint32_t n)
{
    return times(rows, (uint64_t)sy_cuda_padded(n) * 2);
}

static void check_count(op_check *c, const char *what, uint64_t n, uint64_t max)
{
    if (n < 1 || n > max)
        refuse(c, "%s is %llu, and from 1 to %llu are computed", what, (unsigned long long)n,
               (unsigned long long)max);
}

static void check_dimension(op_check *c, const char *what, uint32_t n)
{
    check_count(c, what, n, SY_CUDA_DIMENSION_MAX);
}

/* ---- places ---- */

static void need_at(op_check *c, const char *what, sy_backend_ref ref, uint64_t bytes,
                    uint64_t alignment)
{
    if (ref.buffer == NULL) {
        refuse(c, "it needs %s", what);
        return;
    }
    if (ref.buffer->handle->device != c->device)
        refuse(c, "%s is on device %d, and the stream on device %d", what,
               ref.buffer->handle->device, c->device);
    if (ref.offset % alignment != 0)
        refuse(c, "%s begins at byte %llu, and not at a multiple of %llu", what,
               (unsigned long long)ref.offset, (unsigned long long)alignment);
    if (ref.offset > ref.buffer->bytes || bytes > ref.buffer->bytes - ref.offset)
        refuse(c, "%s needs %llu bytes at %llu of a buffer of %llu", what,
               (unsigned long long)bytes, (unsigned long long)ref.offset,
               (unsigned long long)ref.buffer->bytes);
}

static void need(op_check *c, const char *what, sy_backend_ref ref, uint64_t bytes)
{
    need_at(c, what, ref, bytes, 16);
}

static void may_need(op_check *c, const char *what, sy_backend_ref ref, uint64_t bytes)
{
    if (ref.buffer != NULL) need(c, what, ref, bytes);
}

static void need_place(op_check *c, const char *what, sy_backend_ref ref, uint64_t rows)
{
    need_at(c, what, ref, rows * sizeof(uint32_t), sizeof(uint32_t));
}

/* The rows of all but copies; max: what the launch has room for. Returns rows_max. */
static uint64_t need_rows(op_check *c, const sy_backend_op *op, uint32_t max)
{
    if (op->rows_max > max) refuse(c, "rows_max is %u, and at most %u go", op->rows_max, max);
    if (op->kind != SY_BACKEND_ROWS)
        need_at(c, "n_rows", op->n_rows, sizeof(uint32_t), sizeof(uint32_t));
    return op->rows_max;
}

/* ---- copies, and whole rows ---- */

static void check_copy(op_check *c, const sy_backend_op *op)
{
    const sy_backend_ref to = op->u.copy.to, from = op->u.copy.from;
    const uint64_t n = op->u.copy.n;

    if (op->kind != SY_BACKEND_COPY && n > 0 && op->u.copy.host == NULL)
        refuse(c, "it needs memory of the host");
    if (op->kind != SY_BACKEND_OUT) need_at(c, "to", to, n, 1);
    if (op->kind != SY_BACKEND_IN) need_at(c, "from", from, n, 1);
    if (c->result != SY_BACKEND_OK || op->kind != SY_BACKEND_COPY || n == 0) return;
    /* Both ends lie inside the buffer, so neither sum overflows. */
    if (to.buffer == from.buffer && to.offset < from.offset + n && from.offset < to.offset + n)
        refuse(c, "%llu bytes at %llu of a buffer go to %llu of it, which overlaps",
               (unsigned long long)n, (unsigned long long)from.offset,
               (unsigned long long)to.offset);
}

static void check_rows(op_check *c, const sy_backend_op *op)
{
    const uint64_t rows = need_rows(c, op, ROWS_MAX);
    const uint32_t n = op->u.rows.n;

    check_dimension(c, "n", n);
    need(c, "to", op->u.rows.to, activations(rows, n));
    need(c, "from", op->u.rows.from, floats(rows, n));
}

static void check_embed(op_check *c, const sy_backend_op *op)
{
    const uint64_t rows = need_rows(c, op, ROWS_MAX);
    const uint32_t hidden = op->u.embed.hidden, vocab = op->u.embed.vocab;

    check_dimension(c, "hidden", hidden);
    check_count(c, "vocab", vocab, UINT32_MAX);
    need(c, "x", op->u.embed.x, floats(rows, hidden));
    need(c, "embedding", op->u.embed.embedding, times(vocab, (uint64_t)hidden * 2));
    need(c, "token", op->u.embed.token, rows * sizeof(uint32_t));
}

static void check_norm(op_check *c, const sy_backend_op *op)
{
    const uint64_t rows = need_rows(c, op, ROWS_MAX);
    const sy_backend_ref row = op->u.norm.row;
    const uint32_t n = op->u.norm.n;

    if (op->u.norm.form > SY_BACKEND_NORM_LAYER) refuse(c, "form %u is none", op->u.norm.form);
    if (op->u.norm.form == SY_BACKEND_NORM_RMS && op->u.norm.bias.buffer != NULL)
        refuse(c, "an RMS norm has no bias");
    check_dimension(c, "n", n);
    may_need(c, "y", op->u.norm.y, floats(rows, n));
    may_need(c, "y16", op->u.norm.y16, activations(rows, n));
    may_need(c, "row", row, rows * sizeof(uint32_t));
    need(c, "x", op->u.norm.x, floats(row.buffer != NULL ? op->u.norm.x_rows : rows, n));
    need(c, "weight", op->u.norm.weight, floats(1, n));
    may_need(c, "bias", op->u.norm.bias, floats(1, n));
}

static void check_add(op_check *c, const sy_backend_op *op)
{
    const uint64_t rows = need_rows(c, op, ROWS_MAX);

    check_dimension(c, "hidden", op->u.add.hidden);
    need(c, "x", op->u.add.x, floats(rows, op->u.add.hidden));
    need(c, "y", op->u.add.y, floats(rows, op->u.add.hidden));
    may_need(c, "row_factor", op->u.add.row_factor, floats(rows, 1));
}

static void check_shared_gate(op_check *c, const sy_backend_op *op)
{
    const uint64_t rows = need_rows(c, op, ROWS_MAX);
    const uint32_t hidden = op->u.shared_gate.hidden;

    check_dimension(c, "hidden", hidden);
    need(c, "gate", op->u.shared_gate.gate, floats(rows, 1));
    need(c, "x", op->u.shared_gate.x, floats(rows, hidden));
    need(c, "w", op->u.shared_gate.w, floats(1, hidden));
}

/* ---- products ---- */

static void check_matrix(op_check *c, const sy_backend_matrix *m, uint32_t form, uint32_t last)
{
    if (m->form != form)
        refuse(c, "its matrix is of form %u, and form %u is computed", m->form, form);
    if (m->weights > last)
        refuse(c, "its matrix is of weights %u, and weights 0 to %u are computed", m->weights,
               last);
    check_dimension(c, "n", m->n);
    check_dimension(c, "k", m->k);
}

static void check_linear(op_check *c, const sy_backend_op *op)
{
    const uint64_t rows = need_rows(c, op, ROWS_MAX);
    const sy_backend_matrix *m = &op->u.linear.matrix;

    check_matrix(c, m, SY_BACKEND_PLAIN, SY_BACKEND_MXFP4);
    need(c, "weights", op->u.linear.weights, sy_cuda_matrix_size(m));
    if (!(op->u.linear.divisor > 0))
        refuse(c, "it divides by %g, and not by a number above 0", (double)op->u.linear.divisor);
    need(c, "y", op->u.linear.y, floats(rows, m->n));
    need(c, "x", op->u.linear.x, activations(rows, m->k));
    may_need(c, "bias", op->u.linear.bias, floats(1, m->n));
}

static void check_swiglu_up(op_check *c, const sy_backend_op *op)
{
    const uint64_t rows = need_rows(c, op, ROWS_MAX);
    const sy_backend_matrix *m = &op->u.linear.matrix;

    check_matrix(c, m, SY_BACKEND_GATE_UP, SY_BACKEND_MXFP4);
    need(c, "weights", op->u.linear.weights, sy_cuda_matrix_size(m));
    if (op->u.linear.bias.buffer != NULL) refuse(c, "it has no bias");
    need(c, "y", op->u.linear.y, activations(rows, m->n));
    need(c, "x", op->u.linear.x, activations(rows, m->k));
}

static void check_linear_heads(op_check *c, const sy_backend_op *op)
{
    const uint64_t rows = need_rows(c, op, ROWS_MAX);
    const sy_backend_matrix *m = &op->u.linear_heads.matrix;
    const uint64_t n = m->n, k = m->k;
    const uint64_t n_heads = op->u.linear_heads.n_heads, n_tail = op->u.linear_heads.n_tail;

    check_count(c, "n_heads", n_heads, GRID_MAX);
    check_matrix(c, m, SY_BACKEND_PLAIN, SY_BACKEND_Q4);
    if (n_tail > SY_CUDA_DIMENSION_MAX)
        refuse(c, "n_tail is %u, and at most %d are copied", op->u.linear_heads.n_tail,
               SY_CUDA_DIMENSION_MAX);
    need(c, "y", op->u.linear_heads.y, floats(times(rows, n_heads), n + n_tail));
    need(c, "x", op->u.linear_heads.x, floats(times(rows, n_heads), k + n_tail));
    need(c, "weights", op->u.linear_heads.weights, times(n_heads, sy_cuda_matrix_size(m)));
}

/* ---- heads ---- */

static void check_rotation(op_check *c, const sy_backend_op *op, uint64_t rows)
{
    const uint32_t dim = op->u.heads.rotary_dim, first = op->u.heads.rotary_at;

    if (dim == 0) return;
    if (dim % 2 != 0 || first > op->u.heads.head_dim || dim > op->u.heads.head_dim - first)
        refuse(c, "%u elements from %u on do not rotate in a head of %u", dim, first,
               op->u.heads.head_dim);
    check_count(c, "angle_rows", op->u.heads.angle_rows, UINT32_MAX);
    need(c, "angles", op->u.heads.angles, floats(op->u.heads.angle_rows, dim));
    need_place(c, "places.angle", op->u.heads.places.angle, rows);
}

static void check_heads(op_check *c, const sy_backend_op *op)
{
    const uint64_t rows = need_rows(c, op, GRID_MAX);
    const uint64_t n_heads = op->u.heads.n_heads;
    const uint32_t norm = op->u.heads.norm, norm_dim = op->u.heads.norm_dim;

    check_count(c, "n_heads", n_heads, GRID_MAX);
    check_count(c, "head_dim", op->u.heads.head_dim, SY_CUDA_KEY_MAX);
    if (norm > SY_BACKEND_ROTATE_THEN_NORM) refuse(c, "norm %u is none", norm);
    if (norm != SY_BACKEND_HEADS_AS_THEY_ARE) {
        check_count(c, "norm_dim", norm_dim, op->u.heads.head_dim);
        may_need(c, "norm_weight", op->u.heads.norm_weight, floats(1, norm_dim));
    }
    if (op->u.heads.temperature_scale != 0 && !(op->u.heads.temperature_floor > 0))
        refuse(c, "its temperature_floor is %g", (double)op->u.heads.temperature_floor);
    need(c, "x", op->u.heads.x, floats(times(rows, n_heads), op->u.heads.head_dim));
    need_place(c, "places.position", op->u.heads.places.position, rows);
    check_rotation(c, op, rows);
}

/* ---- the cache, and attention ---- */

static void check_kv(op_check *c, const sy_backend_kv *kv)
{
    const uint64_t of_value = kv->is_latent ? 0 : kv->value_dim;
    const uint64_t page = times(times(kv->n_heads, SY_CUDA_KV_PAGE), kv->key_dim + of_value);

    check_count(c, "kv.n_heads", kv->n_heads, GRID_MAX);
    check_dimension(c, "kv.key_dim", kv->key_dim);
    check_dimension(c, "kv.value_dim", kv->value_dim);
    if (kv->is_latent && (kv->n_heads != 1 || kv->value_dim > kv->key_dim))
        refuse(c,
               "a cache of latents has one head, and values that are parts of keys; this has %u "
               "heads, keys of %u and values of %u",
               kv->n_heads, kv->key_dim, kv->value_dim);
    check_count(c, "kv.pages_max", kv->pages_max, UINT32_MAX);
    check_count(c, "kv.n_pages", kv->n_pages, UINT32_MAX);
    check_count(c, "kv.n_sequences", kv->n_sequences, UINT32_MAX);
    need(c, "kv.data", kv->data, times(times(page, kv->n_pages), kv->is_bf16 ? 2 : 4));
    need(c, "kv.page", kv->page, times(times(kv->n_sequences, kv->pages_max), sizeof(uint32_t)));
}

static void check_kv_put(op_check *c, const sy_backend_op *op)
{
    const sy_backend_kv *kv = &op->u.kv_put.kv;
    const uint64_t rows = need_rows(c, op, GRID_MAX);
    const uint64_t heads = times(rows, kv->n_heads);

    check_kv(c, kv);
    need(c, "k", op->u.kv_put.k, floats(heads, kv->key_dim));
    if (!kv->is_latent) need(c, "v", op->u.kv_put.v, floats(heads, kv->value_dim));
    need_place(c, "places.position", op->u.kv_put.places.position, rows);
    need_place(c, "places.sequence", op->u.kv_put.places.sequence, rows);
}

/* The limits of sy_cuda_attend: nothing was enqueued yet, which it could not say. */
static void check_attend_shape(op_check *c, const sy_backend_op *op)
{
    const sy_backend_kv *kv = &op->u.attend.kv;
    const uint32_t n_heads = op->u.attend.n_heads;

    check_count(c, "n_heads", n_heads, GRID_MAX);
    if (kv->key_dim > SY_CUDA_KEY_MAX || kv->value_dim > SY_CUDA_VALUE_MAX)
        refuse(c, "keys of %u and values of %u: at most %d and %d are computed", kv->key_dim,
               kv->value_dim, SY_CUDA_KEY_MAX, SY_CUDA_VALUE_MAX);
    if (kv->is_bf16 && (kv->key_dim % 8 != 0 || kv->value_dim % 8 != 0))
        refuse(c, "keys of %u and values of %u in bf16 are no multiples of 8", kv->key_dim,
               kv->value_dim);
    if (kv->n_heads > 0 && n_heads % kv->n_heads != 0)
        refuse(c, "%u heads do not share %u of the cache", n_heads, kv->n_heads);
    check_count(c, "positions_max", op->u.attend.positions_max,
                (uint64_t)SPLITS_MAX * SY_CUDA_SPLIT);
}

static void check_attend(op_check *c, const sy_backend_op *op)
{
    const sy_backend_kv *kv = &op->u.attend.kv;
    const uint64_t rows = need_rows(c, op, GRID_MAX);
    const uint64_t heads = times(rows, op->u.attend.n_heads);
    uint64_t scratch = sy_cuda_attend_scratch(op->rows_max, op->u.attend.n_heads, kv->value_dim,
                                              op->u.attend.positions_max);

    if (scratch == 0 && rows > 0) scratch = UINT64_MAX; /* it overflows */
    check_kv(c, kv);
    check_attend_shape(c, op);
    need(c, "out", op->u.attend.out, floats(heads, kv->value_dim));
    need(c, "q", op->u.attend.q, floats(heads, kv->key_dim));
    may_need(c, "sinks", op->u.attend.sinks, floats(1, op->u.attend.n_heads));
    may_need(c, "scratch", op->u.attend.scratch, scratch);
    need_place(c, "places.position", op->u.attend.places.position, rows);
    need_place(c, "places.sequence", op->u.attend.places.sequence, rows);
}

/* ---- all of them ---- */

typedef struct op_kind {
    const char *name;
    void (*check)(op_check *c, const sy_backend_op *op);
} op_kind;

static const op_kind kinds[] = {
    [SY_BACKEND_IN] = {"in", check_copy},
    [SY_BACKEND_OUT] = {"out", check_copy},
    [SY_BACKEND_COPY] = {"copy", check_copy},
    [SY_BACKEND_ROWS] = {"rows", check_rows},
    [SY_BACKEND_EMBED] = {"embed", check_embed},
    [SY_BACKEND_NORM] = {"norm", check_norm},
    [SY_BACKEND_ADD] = {"add", check_add},
    [SY_BACKEND_SHARED_GATE] = {"shared gate", check_shared_gate},
    [SY_BACKEND_LINEAR] = {"linear", check_linear},
    [SY_BACKEND_SWIGLU_UP] = {"swiglu up", check_swiglu_up},
    [SY_BACKEND_LINEAR_HEADS] = {"linear heads", check_linear_heads},
    [SY_BACKEND_HEADS] = {"heads", check_heads},
    [SY_BACKEND_KV_PUT] = {"kv put", check_kv_put},
    [SY_BACKEND_ATTEND] = {"attend", check_attend},
};

const char *sy_cuda_op_name(uint32_t kind)
{
    return kind < sizeof(kinds) / sizeof(kinds[0]) ? kinds[kind].name : NULL;
}

int sy_cuda_op_check(const sy_backend_op *op, uint32_t index, int device, char *why)
{
    op_check c = {.index = index, .name = sy_cuda_op_name(op->kind), .device = device, .why = why};

    if (c.name == NULL)
        return REFUSE(why, SY_BACKEND_EINVAL, "operation %u: there is no kind %u", index, op->kind);
    kinds[op->kind].check(&c, op);
    return c.result;
}
