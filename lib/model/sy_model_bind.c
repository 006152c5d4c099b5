/* sy_model_bind.c - the tensor of every role in the files that are there: names and shapes checked,
 * parts of larger tensors and encoded ones given out as views. */
#include "sy_model_bind.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUTER_ROLES  ((size_t)SY_ROLE_NORM1)
#define LAYER_ROLES  ((size_t)(SY_ROLE_EXPERT_GATE - SY_ROLE_NORM1))
#define EXPERT_ROLES ((size_t)(SY_N_ROLES - SY_ROLE_EXPERT_GATE))

enum { F8_BLOCK = 128, FP4_BLOCK = 32, FP4_BLOCK_BYTES = FP4_BLOCK / 2 };

size_t model_slot_of(const sy_model_desc *desc, sy_role role, uint32_t layer, uint32_t expert)
{
    const size_t per_layer = LAYER_ROLES + EXPERT_ROLES * desc->n_experts;
    const size_t base = OUTER_ROLES + per_layer * layer;

    if (!sy_role_is_of_layer(role)) return role;
    if (!sy_role_is_of_expert(role)) return base + (size_t)(role - SY_ROLE_NORM1);
    return base + LAYER_ROLES + EXPERT_ROLES * expert + (size_t)(role - SY_ROLE_EXPERT_GATE);
}

/* What opening needs besides the model. */
typedef struct binder {
    sy_model *model;
    const sy_family *family;
    unsigned char *is_used; /* [shards.n_tensors] */
    char missing[SY_MESSAGE_BYTES];
    size_t n_missing;
    sy_error *err;
} binder;

void model_list_name(char list[SY_MESSAGE_BYTES], const char *name)
{
    const size_t len = strlen(list);

    snprintf(list + len, SY_MESSAGE_BYTES - len, "%s%s", len > 0 ? ", " : "", name);
}

static void shape_text(char *out, size_t cap, const uint64_t *shape, uint32_t rank)
{
    size_t len = (size_t)snprintf(out, cap, "[");

    for (uint32_t i = 0; i < rank && len < cap; i++) {
        len += (size_t)snprintf(out + len, cap - len, "%s%" PRIu64, i > 0 ? ", " : "", shape[i]);
    }
    if (len < cap) snprintf(out + len, cap - len, "]");
}

static sy_status refuse(const binder *b, const sy_tensor_spec *spec)
{
    sy_error_where(b->err, "BAD_TENSOR", spec->layer, spec->expert, NULL);
    return SY_EINVAL;
}

/* ---- finding ---- */

/* NULL: there is none. Once found it has a place. */
static const sy_tensor *find(binder *b, const char *name)
{
    const size_t i = sy_shards_find(&b->model->shards, name);

    if (i == b->model->shards.n_tensors) return NULL;
    b->is_used[i] = 1;
    return b->model->shards.tensors[i].tensor;
}

static const sy_tensor *find_beside(binder *b, const sy_tensor_spec *spec, const char *tail)
{
    char name[SY_TENSOR_NAME_MAX + 32];

    snprintf(name, sizeof(name), "%s%s", spec->name, tail);
    return find(b, name);
}

static sy_status check_shape(const binder *b, const sy_tensor *tensor, const sy_tensor_spec *spec,
                             const uint64_t *shape, uint32_t rank)
{
    /* ERNIE's bias is [1, E]. */
    const uint32_t skip = rank == 1 && tensor->rank == 2 && tensor->shape[0] == 1 ? 1 : 0;
    char has[SY_TENSOR_RANK_MAX * 22 + 4];
    char needs[96];

    if (tensor->rank == rank + skip &&
        memcmp(tensor->shape + skip, shape, rank * sizeof(shape[0])) == 0)
        return SY_OK;
    shape_text(has, sizeof(has), tensor->shape, tensor->rank);
    shape_text(needs, sizeof(needs), shape, rank);
    sy_error_set(b->err, SY_EINVAL, "tensor \"%s\" has shape %s, but config.json implies %s",
                 tensor->name, has, needs);
    return refuse(b, spec);
}

static sy_status check_type(const binder *b, const sy_tensor *tensor, const sy_tensor_spec *spec)
{
    if (tensor->dtype != SY_DTYPE_NONE) return SY_OK;
    sy_error_set(b->err, SY_EINVAL,
                 "tensor \"%s\" has type %s; only F32, BF16 and F16 can be computed with, and "
                 "F8_E4M3 beside its _scale_inv",
                 tensor->name, tensor->dtype_name);
    return refuse(b, spec);
}

static sy_status check_name(const binder *b, const sy_tensor *tensor, const sy_tensor_spec *spec,
                            const char *dtype_name)
{
    if (strcmp(tensor->dtype_name, dtype_name) == 0) return SY_OK;
    sy_error_set(b->err, SY_EINVAL, "tensor \"%s\" has type %s, but %s is needed", tensor->name,
                 tensor->dtype_name, dtype_name);
    return refuse(b, spec);
}

/* ---- views ---- */

sy_tensor *model_make_views(sy_model *model, size_t n)
{
    sy_tensor *views;

    if (model->n_views == model->views_capacity) {
        const size_t capacity = SY_MAX((size_t)64, 2 * model->views_capacity);
        sy_tensor **grown = realloc(model->view, capacity * sizeof(*grown));

        if (grown == NULL) return NULL;
        model->view = grown;
        model->views_capacity = capacity;
    }
    views = calloc(n, sizeof(*views));
    if (views != NULL) model->view[model->n_views++] = views;
    return views;
}

static sy_status no_memory(const binder *b, const sy_tensor *tensor)
{
    return sy_error_set(b->err, SY_ENOMEM, "no memory for %s", tensor->name);
}

void model_place(sy_model *model, const sy_tensor *tensor, sy_role role, int32_t layer,
                 uint32_t expert)
{
    model->slots[model_slot_of(&model->desc, role, (uint32_t)SY_MAX(layer, 0), expert)] = tensor;
}

static void place(binder *b, const sy_tensor *tensor, sy_role role, int32_t layer, uint32_t expert)
{
    model_place(b->model, tensor, role, layer, expert);
}

static sy_tensor view_of(const sy_tensor *tensor, uint64_t rows, uint64_t columns)
{
    return (sy_tensor){.name = tensor->name,
                       .dtype_name = tensor->dtype_name,
                       .dtype = tensor->dtype,
                       .rank = columns > 0 ? 2 : 1,
                       .shape = {rows, columns},
                       .n_elements = rows * SY_MAX(columns, (uint64_t)1),
                       .data = tensor->data,
                       .bytes = tensor->bytes};
}

/* e4m3 with its factors: [ceil(rows / 128), ceil(columns / 128)] of fp32. */
static sy_status bind_f8(binder *b, const sy_tensor *tensor, const sy_tensor_spec *spec)
{
    const sy_tensor *factors = find_beside(b, spec, "_scale_inv");
    const uint64_t shape[2] = {(spec->shape[0] + F8_BLOCK - 1) / F8_BLOCK,
                               (spec->shape[1] + F8_BLOCK - 1) / F8_BLOCK};
    sy_tensor *view;
    sy_status st;

    if (factors == NULL) {
        sy_error_set(b->err, SY_EINVAL,
                     "tensor \"%s\" has type F8_E4M3, but there is no \"%s_scale_inv\" beside it",
                     tensor->name, spec->name);
        return refuse(b, spec);
    }
    SY_TRY(check_shape(b, factors, spec, shape, 2));
    SY_TRY(check_name(b, factors, spec, "F32"));
    view = model_make_views(b->model, 1);
    if (view == NULL) return no_memory(b, tensor);
    *view = view_of(tensor, spec->shape[0], spec->shape[1]);
    view->dtype = SY_BF16;
    view->encoding = SY_ENCODING_F8_BLOCK;
    view->bytes += factors->bytes;
    view->scale = factors->data;
    view->scale_step = shape[1] * sizeof(float);
    place(b, view, spec->role, spec->layer, (uint32_t)SY_MAX(spec->expert, 0));
out:
    return st;
}

static sy_status bind_one(binder *b, const sy_tensor *tensor, const sy_tensor_spec *spec)
{
    sy_tensor *view;
    sy_status st;

    SY_TRY(check_shape(b, tensor, spec, spec->shape, spec->rank));
    if (spec->rank == 2 && sy_role_is_encoded(spec->role) &&
        strcmp(tensor->dtype_name, "F8_E4M3") == 0)
        return bind_f8(b, tensor, spec);
    SY_TRY(check_type(b, tensor, spec));
    if (tensor->rank != spec->rank) {
        view = model_make_views(b->model, 1);
        if (view == NULL) return no_memory(b, tensor);
        *view = view_of(tensor, spec->shape[0], 0);
        tensor = view;
    }
    place(b, tensor, spec->role, spec->layer, (uint32_t)SY_MAX(spec->expert, 0));
out:
    return st;
}

/* Where the matrix (or vector) `part` of `parts` begins in an expert's slab of plain elements, and
 * how its rows lie there. */
static void lay_out(sy_tensor *view, sy_slab_form form, unsigned part, unsigned parts)
{
    const uint64_t element = sy_dtype_bytes(view->dtype), rows = view->shape[0];

    if (form == SY_SLAB_ROWS) {
        view->data += part * rows * SY_MAX(view->shape[1], (uint64_t)1) * element;
        return;
    }
    const int alternate = form == SY_SLAB_INTERLEAVED && parts == 2;
    view->data += part * (alternate ? 1 : rows) * element;
    view->row_step = (alternate ? parts : 1) * element;
    if (view->rank == 2) view->column_step = parts * rows * element;
}

static sy_status bind_slab_part(binder *b, const sy_tensor *tensor, const sy_tensor_spec *spec,
                                sy_role role, unsigned part, unsigned parts)
{
    const uint32_t n = b->model->desc.n_experts;
    const uint64_t slab_bytes = tensor->bytes / n;
    sy_tensor *view = model_make_views(b->model, n);
    uint64_t shape[2];

    if (view == NULL) return no_memory(b, tensor);
    sy_role_shape(shape, &b->model->desc, role);
    for (uint32_t e = 0; e < n; e++) {
        view[e] = view_of(tensor, shape[0], shape[1]);
        view[e].data += e * slab_bytes;
        view[e].bytes = slab_bytes / parts;
        lay_out(&view[e], b->family->slabs, part, parts);
        place(b, &view[e], role, spec->layer, e);
    }
    return SY_OK;
}

static int is_of_two_parts(sy_role role)
{
    return role == SY_ROLE_EXPERT_GATE || role == SY_ROLE_EXPERT_GATE_BIAS;
}

static sy_status bind_slabs(binder *b, const sy_tensor *tensor, const sy_tensor_spec *spec)
{
    const unsigned parts = is_of_two_parts(spec->role) ? 2 : 1;
    sy_status st;

    SY_TRY(check_shape(b, tensor, spec, spec->shape, spec->rank));
    SY_TRY(check_type(b, tensor, spec));
    for (unsigned part = 0; part < parts; part++)
        SY_TRY(bind_slab_part(b, tensor, spec, (sy_role)(spec->role + part), part, parts));
out:
    return st;
}

/* gpt-oss: rows of blocks, and their scales in a tensor beside; rows of gate and up alternate. */
static sy_status bind_fp4(binder *b, const sy_tensor *blocks, const sy_tensor *scales,
                          const sy_tensor_spec *spec)
{
    const unsigned parts = is_of_two_parts(spec->role) ? 2 : 1;
    const uint32_t n = b->model->desc.n_experts;
    /* The spec is of the plain slab, [E, inputs, outputs]. */
    const uint64_t columns = spec->shape[1], rows = spec->shape[2], groups = columns / FP4_BLOCK;
    const uint64_t shape[4] = {n, rows, groups, FP4_BLOCK_BYTES};
    sy_status st;

    if (columns % FP4_BLOCK != 0) {
        sy_error_set(b->err, SY_EINVAL,
                     "tensor \"%s\": rows of %" PRIu64 " elements are no whole blocks of %d",
                     blocks->name, columns, FP4_BLOCK);
        return refuse(b, spec);
    }
    SY_TRY(check_shape(b, blocks, spec, shape, 4));
    SY_TRY(check_shape(b, scales, spec, shape, 3));
    SY_TRY(check_name(b, blocks, spec, "U8"));
    SY_TRY(check_name(b, scales, spec, "U8"));
    for (unsigned part = 0; part < parts; part++) {
        sy_tensor *view = model_make_views(b->model, n);

        if (view == NULL) return no_memory(b, blocks);
        for (uint32_t e = 0; e < n; e++) {
            const uint64_t first = e * rows + part;

            view[e] = view_of(blocks, rows / parts, columns);
            view[e].dtype = SY_BF16;
            view[e].encoding = SY_ENCODING_MXFP4;
            view[e].data += first * groups * FP4_BLOCK_BYTES;
            view[e].bytes = (blocks->bytes + scales->bytes) / n / parts;
            view[e].row_step = parts * groups * FP4_BLOCK_BYTES;
            view[e].scale = scales->data + first * groups;
            view[e].scale_step = parts * groups;
            place(b, &view[e], (sy_role)(spec->role + part), spec->layer, e);
        }
    }
out:
    return st;
}

/* Once a tensor that the configuration asks for. */
static sy_status bind_tensor(void *arg, const sy_tensor_spec *spec)
{
    binder *b = arg;
    const sy_tensor *tensor = find(b, spec->name);
    char missing[SY_TENSOR_NAME_MAX + 32];
    const char *tail = "";

    if (tensor != NULL)
        return spec->is_slab ? bind_slabs(b, tensor, spec) : bind_one(b, tensor, spec);
    if (b->family->slabs == SY_SLAB_INTERLEAVED && spec->is_slab && spec->rank == 3) {
        const sy_tensor *blocks = find_beside(b, spec, "_blocks");
        const sy_tensor *scales = find_beside(b, spec, "_scales");

        if (blocks != NULL && scales != NULL) return bind_fp4(b, blocks, scales, spec);
        if (blocks != NULL || scales != NULL) tail = blocks == NULL ? "_blocks" : "_scales";
    }
    snprintf(missing, sizeof(missing), "%s%s", spec->name, tail);
    model_list_name(b->missing, missing);
    /* A hostile configuration may ask for millions: enough is known to say what is wrong. */
    return ++b->n_missing == MODEL_NAMES_SHOWN ? SY_ENOTFOUND : SY_OK;
}

/* ---- what is left over ---- */

static int ends_with(const char *s, const char *tail)
{
    const size_t len = strlen(s);
    const size_t tail_len = strlen(tail);

    return len >= tail_len && strcmp(s + len - tail_len, tail) == 0;
}

/* Of what predicts further tokens: decoder layers past the model's own. */
static int is_of_mtp(const sy_model_desc *desc, const char *name)
{
    unsigned long layer;
    char *end;

    if (desc->n_mtp_layers == 0) return 0;
    if (strstr(name, ".mtp_") != NULL) return 1; /* ERNIE's */
    if (strncmp(name, desc->prefix, strlen(desc->prefix)) != 0) return 0;
    name += strlen(desc->prefix);
    if (strncmp(name, "model.layers.", 13) != 0) return 0;
    layer = strtoul(name + 13, &end, 10);
    return *end == '.' && layer >= desc->n_layers && layer - desc->n_layers < desc->n_mtp_layers;
}

/* Old files carry the rotation's frequencies, which follow from the configuration; a model that
 * reads images as well has its other parts beside the text's. */
static int is_ignored(const sy_model_desc *desc, const char *name)
{
    if (ends_with(name, ".rotary_emb.inv_freq") || is_of_mtp(desc, name)) return 1;
    return desc->prefix[0] != '\0' && strncmp(name, desc->prefix, strlen(desc->prefix)) != 0;
}

/* Keeps the tensors that have a role; any other but the ignored ones means that something would be
 * left out. */
static sy_status keep_used(binder *b)
{
    sy_model *model = b->model;
    char extra[SY_MESSAGE_BYTES] = "";
    size_t n_extra = 0;

    for (size_t i = 0; i < model->shards.n_tensors; i++) {
        const sy_tensor *tensor = model->shards.tensors[i].tensor;

        if (b->is_used[i]) {
            model->tensors[model->n_tensors++] = tensor;
            model->bytes += tensor->bytes; /* no overflow: the sum of mapped files */
        } else if (!is_ignored(&model->desc, tensor->name) && n_extra++ < MODEL_NAMES_SHOWN) {
            model_list_name(extra, tensor->name);
        }
    }
    return n_extra == 0 ? SY_OK : model_refuse_extra(model, n_extra, extra, b->err);
}

sy_status model_refuse_extra(const sy_model *model, size_t n, const char *names, sy_error *err)
{
    sy_error_set(err, SY_EINVAL, "%zu tensors have no place in a %s model as %s describes it%s: %s",
                 n, model->desc.family, model->gguf != NULL ? "the metadata" : "config.json",
                 model->desc.tied_head ? " (tie_word_embeddings is true)" : "", names);
    sy_error_where(err, "UNKNOWN_TENSOR", -1, -1, NULL);
    return SY_EINVAL;
}

sy_status model_refuse_missing(const sy_model *model, size_t n, const char *names, sy_error *err)
{
    const sy_model_desc *desc = &model->desc;

    sy_error_set(err, SY_EINVAL,
                 "%s%zu tensors are missing of a %s model with %" PRIu32 " layers of %" PRIu32
                 " experts: %s",
                 n == MODEL_NAMES_SHOWN ? "at least " : "", n, desc->family, desc->n_layers,
                 desc->n_experts, names);
    sy_error_where(err, "MISSING_TENSOR", -1, -1, NULL);
    return SY_EINVAL;
}

sy_status model_bind(sy_model *model, sy_error *err)
{
    const sy_model_desc *desc = &model->desc;
    binder b = {.model = model, .family = sy_family_find(desc->family), .err = err};
    sy_status st;

    model->n_slots = model_slot_of(desc, SY_ROLE_NORM1, desc->n_layers, 0);
    model->slots = calloc(model->n_slots, sizeof(*model->slots));
    model->tensors = calloc(model->shards.n_tensors + 1, sizeof(*model->tensors));
    b.is_used = calloc(model->shards.n_tensors + 1, 1);
    if (model->slots == NULL || model->tensors == NULL || b.is_used == NULL) {
        st = sy_error_set(err, SY_ENOMEM, "no memory for %zu tensors", model->n_slots);
        goto out;
    }
    st = sy_model_each_tensor(desc, bind_tensor, &b);
    if (b.n_missing > 0)
        st = model_refuse_missing(model, b.n_missing, b.missing, err);
    else if (st == SY_OK)
        st = keep_used(&b);
out:
    free(b.is_used);
    return st;
}
