/* sy_model_gguf.c - the tensor of every role in GGUF files. Tensors are found by the names that
 * Hugging Face has for them; experts of a layer lie in one tensor, gate and up each in their own.
 */
#include "sy_model_bind.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_gguf_map.h"

typedef struct found {
    const sy_gguf_tensor *tensor;
    sy_gguf_place place;
    int is_used;
} found;

typedef struct binder {
    sy_model *model;
    found *found; /* [n] by name and part */
    size_t n;
    char missing[SY_MESSAGE_BYTES];
    size_t n_missing;
    sy_error *err;
} binder;

static int order_of_found(const void *a, const void *b)
{
    const found *x = a, *y = b;
    const int order = strcmp(x->place.name, y->place.name);

    return order != 0 ? order : (x->place.part > y->place.part) - (x->place.part < y->place.part);
}

static sy_status list_found(binder *b)
{
    const size_t n = sy_gguf_set_count(b->model->gguf);

    b->found = calloc(n + 1, sizeof(*b->found));
    if (b->found == NULL) return sy_error_set(b->err, SY_ENOMEM, "no memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        found *f = &b->found[b->n];
        sy_status st;

        f->tensor = sy_gguf_set_at(b->model->gguf, i);
        st = sy_gguf_place_of(&f->place, b->model->gguf, f->tensor, b->err);
        if (st != SY_OK) return st;
        if (f->place.name[0] != '\0') b->n++;
    }
    qsort(b->found, b->n, sizeof(*b->found), order_of_found);
    return SY_OK;
}

/* NULL: there is none. */
static found *find(binder *b, const char *name, sy_gguf_part part)
{
    found wanted = {.place = {.part = part}};
    found *f;

    snprintf(wanted.place.name, sizeof(wanted.place.name), "%s", name);
    f = bsearch(&wanted, b->found, b->n, sizeof(*b->found), order_of_found);
    if (f != NULL) f->is_used = 1;
    return f;
}

static sy_status refuse(const binder *b, const sy_tensor_spec *spec)
{
    sy_error_where(b->err, "BAD_TENSOR", spec->layer, spec->expert, NULL);
    return SY_EINVAL;
}

/* Blocks that memory may hold as they are keep their type; the others read as bf16. */
static sy_dtype dtype_of(const sy_gguf_tensor *tensor)
{
    const sy_gguf_block *block = sy_gguf_block_find(tensor->type);

    return block->dtype != SY_DTYPE_NONE ? block->dtype : SY_BF16;
}

static int is_of_elements(const sy_gguf_tensor *tensor)
{
    return sy_dtype_bytes(sy_gguf_block_find(tensor->type)->dtype) != 0;
}

static sy_status check(const binder *b, const found *f, const sy_tensor_spec *spec,
                       const uint64_t shape[2], uint32_t rank, uint64_t n_matrices)
{
    const char *name = f->tensor->tensor.name;
    const uint64_t rows = rank == 1 ? 1 : shape[0], columns = rank == 1 ? shape[0] : shape[1];
    const sy_status st = sy_gguf_decodable(f->tensor->type, b->err);

    if (st != SY_OK) {
        sy_error_prefix(b->err, "tensor \"%s\"", name);
        return refuse(b, spec);
    }
    if (rank == 1 && !is_of_elements(f->tensor)) {
        sy_error_set(b->err, SY_EINVAL,
                     "tensor \"%s\" is of type %s, but a vector must be F32, F16 or BF16", name,
                     f->tensor->tensor.dtype_name);
        return refuse(b, spec);
    }
    if (f->place.n_matrices == n_matrices && f->place.n_rows == rows &&
        f->place.n_columns == columns)
        return SY_OK;
    sy_error_set(b->err, SY_EINVAL,
                 "tensor \"%s\" of type %s is %" PRIu64 " x [%" PRIu64 ", %" PRIu64
                 "], but the metadata implies %" PRIu64 " x [%" PRIu64 ", %" PRIu64 "]",
                 name, f->tensor->tensor.dtype_name, f->place.n_matrices, f->place.n_rows,
                 f->place.n_columns, n_matrices, rows, columns);
    return refuse(b, spec);
}

static sy_tensor view_of(const found *f, const uint64_t shape[2], uint32_t rank, uint64_t matrix)
{
    const sy_tensor *t = &f->tensor->tensor;
    const uint64_t rows = rank == 1 ? 1 : shape[0];
    const uint64_t row_bytes = f->tensor->row_bytes;
    sy_tensor view = {.name = t->name,
                      .dtype_name = t->dtype_name,
                      .dtype = dtype_of(f->tensor),
                      .rank = rank,
                      .shape = {shape[0], rank == 1 ? 0 : shape[1]},
                      .n_elements = shape[0] * (rank == 1 ? 1 : shape[1]),
                      .data = t->data + matrix * rows * row_bytes,
                      .bytes = rows * row_bytes};

    if (rank == 1) return view; /* plain elements */
    view.head_rows = f->place.head_rows;
    view.row_step = row_bytes;
    if (view.head_rows > 0 || sy_gguf_block_find(f->tensor->type)->dtype == SY_DTYPE_NONE)
        view.encoding = SY_ENCODING_GGUF;
    view.block = f->tensor->type;
    return view;
}

/* kv_b_proj is turned, element by element: blocks will not do. */
static void read_as_elements(sy_tensor *view)
{
    view->encoding = SY_ENCODING_GGUF;
    if (sy_dtype_bytes(view->dtype) == 0) view->dtype = SY_BF16;
}

static sy_status miss(binder *b, const char *name)
{
    model_list_name(b->missing, name);
    return ++b->n_missing == MODEL_NAMES_SHOWN ? SY_ENOTFOUND : SY_OK;
}

static sy_status no_memory(const binder *b)
{
    return sy_error_set(b->err, SY_ENOMEM, "no memory for the tensors of a model");
}

static sy_status bind_one(binder *b, const sy_tensor_spec *spec, const found *f)
{
    sy_tensor *view;
    sy_status st;

    SY_TRY(check(b, f, spec, spec->shape, spec->rank, 1));
    view = model_make_views(b->model, 1);
    if (view == NULL) return no_memory(b);
    *view = view_of(f, spec->shape, spec->rank, 0);
    if (spec->role == SY_ROLE_KV_B) read_as_elements(view);
    model_place(b->model, view, spec->role, spec->layer, 0);
out:
    return st;
}

/* The matrix of that role of every expert. */
static sy_status bind_experts(binder *b, const sy_tensor_spec *spec, const found *f, sy_role role)
{
    const uint32_t n = b->model->desc.n_experts;
    uint64_t shape[2];
    const uint32_t rank = sy_role_shape(shape, &b->model->desc, role);
    sy_tensor *views;
    sy_status st;

    SY_TRY(check(b, f, spec, shape, rank, n));
    views = model_make_views(b->model, n);
    if (views == NULL) return no_memory(b);
    for (uint32_t e = 0; e < n; e++) {
        views[e] = view_of(f, shape, rank, e);
        model_place(b->model, &views[e], role, spec->layer, e);
    }
out:
    return st;
}

/* Keys and values apart, each a matrix a head. */
static sy_status bind_kv_b(binder *b, const sy_tensor_spec *spec, const found *k, const found *v)
{
    const sy_model_desc *d = &b->model->desc;
    const uint64_t keys[2] = {d->mla.nope_dim, d->mla.kv_rank};
    const uint64_t values[2] = {d->mla.value_dim, d->mla.kv_rank};
    const uint64_t stored[2] = {(uint64_t)d->n_heads * d->mla.kv_rank, d->mla.nope_dim};
    const uint64_t all_values[2] = {(uint64_t)d->n_heads * d->mla.value_dim, d->mla.kv_rank};
    sy_tensor *views;
    sy_status st;

    SY_TRY(check(b, k, spec, keys, 2, d->n_heads));
    SY_TRY(check(b, v, spec, values, 2, d->n_heads));
    if (d->mla.nope_dim > SY_KV_B_NOPE_MAX)
        return sy_error_set(b->err, SY_EINVAL,
                            "tensor \"%s\": keys of %" PRIu32 " elements, the limit is %u",
                            k->tensor->tensor.name, d->mla.nope_dim, SY_KV_B_NOPE_MAX);
    views = model_make_views(b->model, 3);
    if (views == NULL) return no_memory(b);
    views[1] = view_of(k, stored, 2, 0);
    views[2] = view_of(v, all_values, 2, 0);
    read_as_elements(&views[1]);
    read_as_elements(&views[2]);
    if (views[1].dtype != views[2].dtype) views[1].dtype = views[2].dtype = SY_BF16;
    views[0] = view_of(v, spec->shape, 2, 0);
    views[0].encoding = SY_ENCODING_GGUF_KV_B;
    views[0].dtype = views[1].dtype;
    views[0].bytes = k->tensor->tensor.bytes + v->tensor->tensor.bytes;
    views[0].part[0] = &views[1];
    views[0].part[1] = &views[2];
    model_place(b->model, &views[0], spec->role, spec->layer, 0);
out:
    return st;
}

static sy_status bind_slabs(binder *b, const sy_tensor_spec *spec)
{
    const int has_parts =
        spec->role == SY_ROLE_EXPERT_GATE || spec->role == SY_ROLE_EXPERT_GATE_BIAS;
    const found *gate = find(b, spec->name, has_parts ? SY_GGUF_GATE : SY_GGUF_WHOLE);
    const found *up = has_parts ? find(b, spec->name, SY_GGUF_UP) : NULL;
    sy_status st;

    if (gate == NULL || (has_parts && up == NULL)) return miss(b, spec->name);
    SY_TRY(bind_experts(b, spec, gate, spec->role));
    if (has_parts) st = bind_experts(b, spec, up, (sy_role)(spec->role + 1));
out:
    return st;
}

/* "...experts.0..." -> "...experts.{e}...". */
static void name_of_all(char out[SY_TENSOR_NAME_MAX + 1], const char *name)
{
    static const char first[] = ".experts.0.";
    const char *at = strstr(name, first);

    SY_ASSERT(at != NULL);
    snprintf(out, SY_TENSOR_NAME_MAX + 1, "%.*s.experts.{e}.%s", (int)(at - name), name,
             at + sizeof(first) - 1);
}

static sy_status bind_tensor(void *arg, const sy_tensor_spec *spec)
{
    binder *b = arg;
    char name[SY_TENSOR_NAME_MAX + 1];
    const found *f, *k, *v;

    if (spec->is_slab) return bind_slabs(b, spec);
    if (spec->expert > 0) return SY_OK; /* bound with the first */
    if (spec->expert == 0) {
        name_of_all(name, spec->name);
        f = find(b, name, SY_GGUF_WHOLE);
        return f != NULL ? bind_experts(b, spec, f, spec->role) : miss(b, name);
    }
    f = find(b, spec->name, SY_GGUF_WHOLE);
    if (f != NULL) return bind_one(b, spec, f);
    k = find(b, spec->name, SY_GGUF_KV_B_K);
    v = find(b, spec->name, SY_GGUF_KV_B_V);
    return k != NULL && v != NULL ? bind_kv_b(b, spec, k, v) : miss(b, spec->name);
}

static sy_status keep_used(binder *b)
{
    sy_model *model = b->model;
    char extra[SY_MESSAGE_BYTES] = "";
    size_t n_extra = 0;

    for (size_t i = 0; i < b->n; i++) {
        if (b->found[i].is_used) {
            model->bytes += b->found[i].tensor->tensor.bytes;
        } else if (n_extra++ < MODEL_NAMES_SHOWN) {
            model_list_name(extra, b->found[i].tensor->tensor.name);
        }
    }
    for (size_t i = 0; i < sy_gguf_set_count(model->gguf); i++)
        model->tensors[model->n_tensors++] = &sy_gguf_set_at(model->gguf, i)->tensor;
    return n_extra == 0 ? SY_OK : model_refuse_extra(model, n_extra, extra, b->err);
}

sy_status model_bind_gguf(sy_model *model, sy_error *err)
{
    binder b = {.model = model, .err = err};
    sy_status st;

    model->n_slots = model_slot_of(&model->desc, SY_ROLE_NORM1, model->desc.n_layers, 0);
    model->slots = calloc(model->n_slots, sizeof(*model->slots));
    model->tensors = calloc(sy_gguf_set_count(model->gguf) + 1, sizeof(*model->tensors));
    if (model->slots == NULL || model->tensors == NULL) {
        st = no_memory(&b);
        goto out;
    }
    SY_TRY(list_found(&b));
    st = sy_model_each_tensor(&model->desc, bind_tensor, &b);
    if (b.n_missing > 0)
        st = model_refuse_missing(model, b.n_missing, b.missing, err);
    else if (st == SY_OK)
        st = keep_used(&b);
out:
    free(b.found);
    return st;
}
