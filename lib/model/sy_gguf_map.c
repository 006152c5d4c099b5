/* sy_gguf_map.c - tensors by name: what each is, and its rows in Hugging Face's order. */
#include "sy_gguf_map.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_file.h"
#include "sy_gguf_family.h"

/* "blk.12.attn_q.weight" -> 12 and "attn_q.weight"; 0: it is no layer's. */
static int split_layer(int32_t *layer, const char **rest, const char *name)
{
    uint32_t number = 0;
    const char *p = name + 4;

    if (strncmp(name, "blk.", 4) != 0 || *p < '0' || *p > '9') return 0;
    if (*p == '0' && p[1] != '.') return 0;
    for (; *p >= '0' && *p <= '9' && number < SY_GGUF_TENSORS_MAX; p++)
        number = 10 * number + (uint32_t)(*p - '0');
    if (*p != '.' || number >= SY_GGUF_TENSORS_MAX) return 0;
    *layer = (int32_t)number;
    *rest = p + 1;
    return 1;
}

static void set_change(sy_gguf_place *out, gguf_change change)
{
    switch (change) {
    case GGUF_EXPERTS:
    case GGUF_EXPERTS_FUSED: out->is_of_experts = 1; break;
    case GGUF_EXPERTS_TRANSPOSED: out->is_of_experts = out->is_transposed = 1; break;
    case GGUF_GATE: out->part = SY_GGUF_GATE; break;
    case GGUF_UP: out->part = SY_GGUF_UP; break;
    case GGUF_GATE_FUSED: out->part = SY_GGUF_GATE, out->is_of_experts = 1; break;
    case GGUF_UP_FUSED: out->part = SY_GGUF_UP, out->is_of_experts = 1; break;
    case GGUF_GATE_TRANSPOSED:
        out->part = SY_GGUF_GATE;
        out->is_of_experts = out->is_transposed = 1;
        break;
    case GGUF_UP_TRANSPOSED:
        out->part = SY_GGUF_UP;
        out->is_of_experts = out->is_transposed = 1;
        break;
    case GGUF_K_B: out->part = SY_GGUF_KV_B_K; break;
    case GGUF_V_B: out->part = SY_GGUF_KV_B_V; break;
    case GGUF_AS_IS:
    case GGUF_UNUSED:
    case GGUF_Q_HEADS:
    case GGUF_K_HEADS: break;
    }
}

static int is_of_heads(const sy_gguf_place *place)
{
    return place->part == SY_GGUF_KV_B_K || place->part == SY_GGUF_KV_B_V;
}

/* What the dimensions are to whoever reads rows; part and is_of_experts are set. */
static sy_status set_extent(sy_gguf_place *out, const sy_tensor *tensor, sy_error *err)
{
    const uint64_t *shape = tensor->shape;
    const int is_stacked = out->is_of_experts || is_of_heads(out);
    const uint32_t n_inner = tensor->rank - (uint32_t)is_stacked;

    if (tensor->rank < (uint32_t)is_stacked + (is_of_heads(out) ? 2 : 1) || n_inner > 2) {
        return sy_error_set(err, SY_EINVAL, "tensor \"%s\" has %" PRIu32 " dimensions",
                            tensor->name, tensor->rank);
    }
    out->n_matrices = is_stacked ? *shape++ : 1;
    out->n_rows = n_inner == 2 ? *shape++ : 1;
    out->n_columns = *shape;
    if (out->part == SY_GGUF_KV_B_K) {
        out->n_columns = out->n_rows;
        out->n_rows = *shape;
    }
    return SY_OK;
}

static sy_status set_heads(sy_gguf_place *out, const gguf_family *family, const sy_gguf *metadata,
                           gguf_change change, const char *name, sy_error *err)
{
    const uint64_t n = out->n_rows > 1 ? out->n_rows : out->n_columns;
    char kv_key[GGUF_KEY_BYTES];
    uint32_t n_heads;
    int is_kv;
    sy_status st;

    gguf_key_name(kv_key, family, "attention.head_count_kv");
    is_kv = change == GGUF_K_HEADS && sy_gguf_value_of(metadata, kv_key) != NULL;
    SY_TRY(gguf_heads(&n_heads, family, metadata,
                      is_kv ? "attention.head_count_kv" : "attention.head_count", err));
    if (n % n_heads != 0 || n / n_heads % 2 != 0 || n / n_heads > UINT32_MAX) {
        return sy_error_set(err, SY_EINVAL,
                            "%" PRIu64 " rows are not of %" PRIu32
                            " heads with an even number each, in tensor \"%s\"",
                            n, n_heads, name);
    }
    out->head_rows = (uint32_t)(n / n_heads);
out:
    return st;
}

sy_status sy_gguf_place_of(sy_gguf_place *out, const sy_gguf_set *set, const sy_gguf_tensor *tensor,
                           sy_error *err)
{
    const sy_gguf *metadata = sy_gguf_set_metadata(set);
    const char *name = tensor->tensor.name;
    const char *rest = name;
    const gguf_family *family;
    const gguf_name *row;
    uint32_t n_layers;
    int is_of_layer;
    sy_status st;

    *out = (sy_gguf_place){.layer = -1};
    SY_TRY(gguf_family_of(&family, metadata, err));
    SY_TRY(gguf_layers(&n_layers, family, metadata, err));
    is_of_layer = split_layer(&out->layer, &rest, name);
    row = gguf_name_find(family, is_of_layer, rest);
    if (out->layer >= 0 && (uint32_t)out->layer >= n_layers) return SY_OK; /* MTP */
    if (row == NULL) {
        return sy_error_set(err, SY_EINVAL, "tensor \"%s\" is none that %s has", name,
                            family->architecture);
    }
    if (row->change == GGUF_UNUSED) return SY_OK;
    set_change(out, row->change);
    out->is_interleaved =
        family->interleaves_gate_up && (out->part == SY_GGUF_GATE || out->part == SY_GGUF_UP);
    SY_TRY(set_extent(out, &tensor->tensor, err));
    if (family->permutes_heads && (row->change == GGUF_Q_HEADS || row->change == GGUF_K_HEADS))
        SY_TRY(set_heads(out, family, metadata, row->change, name, err));
    if (out->layer >= 0)
        (void)snprintf(out->name, sizeof(out->name), "model.layers.%" PRIi32 ".%s", out->layer,
                       row->there);
    else
        (void)snprintf(out->name, sizeof(out->name), "%s", row->there);
out:
    return st;
}

typedef struct read_job {
    float *out;
    float *scratch; /* one row as stored, for KV_B_K and biases; else NULL */
    const sy_gguf_tensor *tensor;
    const sy_gguf_place *place;
    uint64_t matrix, begin, n;
} read_job;

/* Where row r of Hugging Face's stands: in each head, its first half and its second alternate. */
static uint64_t stored_row(const sy_gguf_place *place, uint64_t r)
{
    const uint64_t head = place->head_rows;
    const uint64_t in_head = head > 0 ? r % head : 0;

    if (head == 0) return r;
    return r - in_head + (in_head < head / 2 ? 2 * in_head : 2 * (in_head - head / 2) + 1);
}

static const uint8_t *row_at(const read_job *job, uint64_t row)
{
    return job->tensor->tensor.data + row * job->tensor->row_bytes;
}

/* Stored rows are columns: each is decoded once, and gives one element of every row asked for. */
static void read_columns(const read_job *job)
{
    const sy_gguf_place *place = job->place;

    for (uint64_t c = 0; c < place->n_columns; c++) {
        sy_gguf_decode(job->scratch, row_at(job, job->matrix * place->n_columns + c),
                       job->tensor->type, (size_t)place->n_rows);
        for (uint64_t i = 0; i < job->n; i++)
            job->out[i * place->n_columns + c] = job->scratch[job->begin + i];
    }
}

static sy_status read_guarded(void *arg)
{
    const read_job *job = arg;
    const sy_gguf_place *place = job->place;
    const size_t n_columns = (size_t)place->n_columns;

    if (place->part == SY_GGUF_KV_B_K) {
        read_columns(job);
        return SY_OK;
    }
    for (uint64_t i = 0; i < job->n; i++) {
        const uint64_t row = place->n_rows == 1 ? 0 : stored_row(place, job->begin + i);

        sy_gguf_decode(job->scratch != NULL ? job->scratch : job->out + i * n_columns,
                       row_at(job, job->matrix * place->n_rows + row), job->tensor->type,
                       n_columns);
    }
    if (job->scratch == NULL) return SY_OK;
    for (size_t c = 0; c < n_columns; c++) job->out[c] = job->scratch[stored_row(place, c)];
    return SY_OK;
}

sy_status sy_gguf_read_rows(float *out, const sy_gguf_tensor *tensor, const sy_gguf_place *place,
                            uint64_t matrix, uint64_t begin, uint64_t n, sy_error *err)
{
    read_job job = {out, NULL, tensor, place, matrix, begin, n};
    sy_status st = sy_gguf_decodable(tensor->type, err);

    SY_ASSERT(matrix < place->n_matrices && begin <= place->n_rows && n <= place->n_rows - begin);
    if (st != SY_OK) {
        sy_error_prefix(err, "tensor \"%s\"", tensor->tensor.name);
        return st;
    }
    if (n == 0) return SY_OK;
    if (place->part == SY_GGUF_KV_B_K || (place->n_rows == 1 && place->head_rows > 0)) {
        job.scratch = calloc((size_t)SY_MAX(place->n_rows, place->n_columns), sizeof(float));
        if (job.scratch == NULL)
            return sy_error_set(err, SY_ENOMEM, "no memory for a row of tensor \"%s\"",
                                tensor->tensor.name);
    }
    st = sy_map_guard(read_guarded, &job, err);
    if (st != SY_OK) sy_error_prefix(err, "tensor \"%s\"", tensor->tensor.name);
    free(job.scratch);
    return st;
}
