/* sy_trunk_device_test.c - whether a GPU computes a trunk right: a layer of each form that the
 * model has, with weights that every build knows, small, but with heads, norms, rotation and cache
 * as the model has them, through the very calls that serve. All that it makes of two sequences is
 * held against the reference in double precision (sy_trunk_device_want.c), and, cut into other
 * batches, against itself, bit by bit. */
#include "sy_trunk_device_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of an element's difference, to the root of the mean square of its row's: a few times what
 * rounding to bf16 between two products, or of a softmax's weights, comes to. */
#define TOLERANCE 2e-2

enum { HEADS_MAX = 2, Q_RANK_MAX = 48, WINDOW = 7, FIRST_ROWS = 18, PAGES = 8, N_PARTS = 3 };

static const char *const stage_name[] = {[TEST_EMBEDDED] = "embedding",
                                         [TEST_NORMED] = "norm",
                                         [TEST_QUERIES] = "queries",
                                         [TEST_KEYS] = "keys",
                                         [TEST_VALUES] = "values",
                                         [TEST_ABSORBED] = "absorption",
                                         [TEST_ATTENDED] = "attention",
                                         [TEST_RAISED] = "latent values",
                                         [TEST_ADDED] = "residual sum",
                                         [TEST_INPUT] = "second norm",
                                         [TEST_MLP] = "MLP"};

static trunk_machine *machine_of(const device_test *t)
{
    return t->device.machine;
}

static sy_status failed(const device_test *t, sy_error *err, const char *what, test_stage stage,
                        uint32_t row, uint32_t element)
{
    sy_error_set(err, SY_EDATALOSS,
                 "%s fails its self-test: %s of %s, row %u, element %u: do not serve from this "
                 "device before it is checked (switchyard devices --measure)",
                 machine_of(t)->name, what, stage_name[stage], row, element);
    sy_error_where(err, "DEVICE_SELF_TEST", -1, -1, NULL);
    return SY_EDATALOSS;
}

static sy_status no_memory(const device_test *t, sy_error *err)
{
    return sy_error_set(err, SY_ENOMEM, "no memory for the self-test of %s", machine_of(t)->name);
}

/* ---- the layer ---- */

static void shrink(sy_model_desc *d, const sy_trunk *model, uint32_t layer)
{
    const uint32_t group = model->desc.n_heads / model->shape.n_heads;
    const int has_mlp = d->dense_ffn > 0 || d->shared_ffn > 0;

    d->n_layers = 1;
    d->layer[0] = (uint8_t)((d->layer[layer] & ~SY_LAYER_DENSE) | (has_mlp ? SY_LAYER_DENSE : 0));
    d->hidden = TEST_HIDDEN;
    d->vocab = TEST_VOCAB;
    d->dense_ffn = has_mlp ? TEST_FFN : 0;
    d->shared_ffn = 0;
    d->context = FIRST_ROWS;
    d->sliding_window = WINDOW;
    d->attention_chunk = WINDOW;
    d->mla.q_rank = SY_MIN(d->mla.q_rank, (uint32_t)Q_RANK_MAX);
    d->n_kv_heads = SY_MIN(d->n_kv_heads, (uint32_t)HEADS_MAX);
    d->n_heads =
        d->mla.kv_rank > 0 ? d->n_kv_heads : d->n_kv_heads * SY_MIN(group, (uint32_t)HEADS_MAX);
}

static sy_status take(device_test *t, sy_backend_ref *out, test_weight weight, uint64_t bytes,
                      sy_error *err)
{
    const sy_status st = trunk_device_take(&t->memory[weight], machine_of(t), bytes,
                                           "the weights of a self-test", err);

    *out = (sy_backend_ref){t->memory[weight], 0};
    return st;
}

/* n rows of a matrix, as it is held, whose values t keeps; the caller frees. */
static uint8_t *make_rows(device_test *t, test_weight weight, sy_dtype dtype, uint32_t n,
                          uint32_t k)
{
    uint8_t *rows = malloc(n * sy_dtype_row_bytes(dtype, k));
    float *value = malloc((size_t)n * k * sizeof(*value));

    t->value[weight] = value;
    if (rows != NULL && value != NULL && trunk_test_make(rows, value, weight, dtype, n, k))
        return rows;
    free(rows);
    return NULL;
}

/* n_heads matrices, one behind another, of rows that are numbered through. */
static sy_status make_matrices(device_test *t, sy_backend_ref *out, test_weight weight,
                               sy_dtype dtype, uint32_t n_heads, uint32_t n, uint32_t k,
                               sy_error *err)
{
    const sy_backend_matrix matrix = trunk_matrix_of(SY_BACKEND_PLAIN, n, k, dtype);
    const uint64_t bytes = machine_of(t)->backend->matrix_bytes(&matrix);
    const size_t row_bytes = sy_dtype_row_bytes(dtype, k);
    uint8_t *rows = make_rows(t, weight, dtype, n_heads * n, k);
    sy_status st = rows == NULL ? no_memory(t, err) : SY_OK;

    if (st == SY_OK) st = take(t, out, weight, n_heads * bytes, err);
    for (uint32_t h = 0; h < n_heads && st == SY_OK; h++)
        st = trunk_device_write(machine_of(t), trunk_ref(*out, h * bytes), &matrix, 0, n,
                                rows + (size_t)h * n * row_bytes, NULL, err);
    free(rows);
    return st;
}

/* A matrix that the model has not is one of bf16. */
static sy_dtype dtype_of(const device_matrix *like)
{
    return like->n == 0 ? SY_BF16 : like->dtype;
}

static sy_status make_matrix(device_test *t, device_matrix *out, const device_matrix *like,
                             test_weight weight, uint32_t n, uint32_t k, sy_error *err)
{
    *out = (device_matrix){.n = n, .k = k, .dtype = dtype_of(like)};
    return make_matrices(t, &out->weights, weight, out->dtype, 1, n, k, err);
}

static sy_status make_gate_up(device_test *t, const device_layer *like, sy_error *err)
{
    const sy_dtype dtype = dtype_of(&like->gate_up);
    const sy_backend_matrix matrix =
        trunk_matrix_of(SY_BACKEND_GATE_UP, TEST_FFN, TEST_HIDDEN, dtype);
    device_matrix *out = &t->layer.gate_up;
    uint8_t *gate = make_rows(t, TEST_GATE, dtype, TEST_FFN, TEST_HIDDEN);
    uint8_t *up = make_rows(t, TEST_UP, dtype, TEST_FFN, TEST_HIDDEN);
    sy_status st = gate == NULL || up == NULL ? no_memory(t, err) : SY_OK;

    *out = (device_matrix){.n = TEST_FFN, .k = TEST_HIDDEN, .dtype = dtype};
    if (st == SY_OK)
        st = take(t, &out->weights, TEST_GATE, machine_of(t)->backend->matrix_bytes(&matrix), err);
    if (st == SY_OK)
        st = trunk_device_write(machine_of(t), out->weights, &matrix, 0, TEST_FFN, gate, up, err);
    free(gate);
    free(up);
    return st;
}

/* Where the model has one, like: none otherwise. */
static sy_status make_vector(device_test *t, sy_backend_ref *out, sy_backend_ref like,
                             test_weight weight, uint32_t n, sy_error *err)
{
    float *v;
    sy_status st;

    if (like.buffer == NULL) return SY_OK;
    v = malloc(n * sizeof(*v));
    if (v == NULL) return no_memory(t, err);
    for (uint32_t i = 0; i < n; i++) v[i] = trunk_test_weight(weight, i, 0, 1);
    st = take(t, out, weight, n * sizeof(*v), err);
    if (st == SY_OK) st = trunk_device_copy_in(machine_of(t), *out, v, n * sizeof(*v), err);
    free(v);
    return st;
}

static sy_status make_attention(device_test *t, const device_layer *like, sy_error *err)
{
    const sy_model_desc *d = &t->trunk.desc;
    const uint32_t q = d->n_heads * d->head_dim, kv = d->n_kv_heads * d->head_dim;
    const int is_whole = d->qk_norm == SY_QK_NORM_WHOLE;
    device_layer *l = &t->layer;
    sy_status st;

    SY_TRY(make_matrix(t, &l->q, &like->q, TEST_Q, q, d->hidden, err));
    SY_TRY(make_matrix(t, &l->k, &like->k, TEST_K, kv, d->hidden, err));
    SY_TRY(make_matrix(t, &l->v, &like->v, TEST_V, kv, d->hidden, err));
    SY_TRY(make_vector(t, &l->q.bias, like->q.bias, TEST_Q_BIAS, q, err));
    SY_TRY(make_vector(t, &l->k.bias, like->k.bias, TEST_K_BIAS, kv, err));
    SY_TRY(make_vector(t, &l->v.bias, like->v.bias, TEST_V_BIAS, kv, err));
    SY_TRY(make_vector(t, &l->q_norm, like->q_norm, TEST_Q_NORM, is_whole ? q : d->head_dim, err));
    SY_TRY(make_vector(t, &l->k_norm, like->k_norm, TEST_K_NORM, is_whole ? kv : d->head_dim, err));
    SY_TRY(make_vector(t, &l->sinks, like->sinks, TEST_SINKS, d->n_heads, err));
out:
    return st;
}

static sy_status make_latent(device_test *t, const device_layer *like, sy_error *err)
{
    const sy_model_desc *d = &t->trunk.desc;
    const sy_mla_desc *mla = &d->mla;
    const uint32_t q_in = mla->q_rank > 0 ? mla->q_rank : d->hidden;
    device_layer *l = &t->layer;
    sy_status st;

    if (mla->q_rank > 0)
        SY_TRY(make_matrix(t, &l->q_a, &like->q_a, TEST_Q_A, mla->q_rank, d->hidden, err));
    SY_TRY(make_vector(t, &l->q_a_norm, like->q_a_norm, TEST_Q_A_NORM, mla->q_rank, err));
    SY_TRY(make_matrix(t, &l->q, &like->q, TEST_Q, d->n_heads * d->head_dim, q_in, err));
    SY_TRY(make_matrix(t, &l->k, &like->k, TEST_K, mla->kv_rank + d->rotary_dim, d->hidden, err));
    SY_TRY(make_vector(t, &l->kv_a_norm, like->kv_a_norm, TEST_KV_A_NORM, mla->kv_rank, err));
    l->heads_dtype = like->heads_dtype;
    SY_TRY(make_matrices(t, &l->key_up, TEST_KEY_UP, l->heads_dtype, d->n_heads, mla->kv_rank,
                         mla->nope_dim, err));
    SY_TRY(make_matrices(t, &l->value_up, TEST_VALUE_UP, l->heads_dtype, d->n_heads, mla->value_dim,
                         mla->kv_rank, err));
out:
    return st;
}

static sy_status make_embedding(device_test *t, sy_error *err)
{
    const uint64_t bytes = (uint64_t)TEST_VOCAB * TEST_HIDDEN * sizeof(uint16_t);
    uint8_t *rows = make_rows(t, TEST_EMBED, SY_BF16, TEST_VOCAB, TEST_HIDDEN);
    sy_status st = rows == NULL ? no_memory(t, err) : SY_OK;

    if (st == SY_OK) st = take(t, &t->device.embed, TEST_EMBED, bytes, err);
    if (st == SY_OK) st = trunk_device_copy_in(machine_of(t), t->device.embed, rows, bytes, err);
    free(rows);
    return st;
}

static sy_status make_layer(device_test *t, const device_layer *like, sy_error *err)
{
    const sy_model_desc *d = &t->trunk.desc;
    const uint32_t hidden = d->hidden, o = (uint32_t)trunk_attn_width(d);
    sy_backend_ref mix = {NULL, 0};
    device_layer *l = &t->layer;
    sy_status st;

    SY_TRY(make_embedding(t, err));
    SY_TRY(make_vector(t, &l->norm1.weight, like->norm1.weight, TEST_NORM1, hidden, err));
    SY_TRY(make_vector(t, &l->norm2.weight, like->norm2.weight, TEST_NORM2, hidden, err));
    SY_TRY(make_vector(t, &l->norm1.bias, like->norm1.bias, TEST_NORM1_BIAS, hidden, err));
    SY_TRY(make_vector(t, &l->norm2.bias, like->norm2.bias, TEST_NORM2_BIAS, hidden, err));
    if (t->trunk.shape.is_latent)
        SY_TRY(make_latent(t, like, err));
    else
        SY_TRY(make_attention(t, like, err));
    SY_TRY(make_matrix(t, &l->o, &like->o, TEST_O, hidden, o, err));
    SY_TRY(make_vector(t, &l->o.bias, like->o.bias, TEST_O_BIAS, hidden, err));
    if (d->dense_ffn == 0) return SY_OK;
    SY_TRY(make_gate_up(t, like, err));
    SY_TRY(make_matrix(t, &l->down, &like->down, TEST_DOWN, hidden, TEST_FFN, err));
    if (d->shared_gate) mix = l->norm1.weight;
    SY_TRY(make_vector(t, &l->mix, mix, TEST_MIX, hidden, err));
out:
    return st;
}

/* ---- running it ---- */

static void place_stages(device_test *t)
{
    const struct trunk_device_ws *w = t->ws->device;
    const sy_model_desc *d = &t->trunk.desc;
    const sy_kv_shape *shape = &t->trunk.shape;
    const uint32_t attended = d->n_heads * shape->value_dim, kv = shape->n_heads * shape->key_dim;

    for (int i = 0; i < TEST_STAGES; i++) t->width[i] = 0;
    t->width[TEST_EMBEDDED] = t->width[TEST_NORMED] = t->width[TEST_ADDED] = TEST_HIDDEN;
    t->width[TEST_QUERIES] = d->n_heads * d->head_dim;
    t->width[TEST_KEYS] = kv;
    t->width[TEST_ATTENDED] = attended;
    t->place[TEST_EMBEDDED] = t->place[TEST_ADDED] = t->place[TEST_MLP] = w->x;
    t->place[TEST_NORMED] = w->xn16;
    t->place[TEST_QUERIES] = w->q;
    t->place[TEST_KEYS] = w->k;
    t->place[TEST_VALUES] = w->v;
    t->place[TEST_ABSORBED] = w->query;
    t->place[TEST_ATTENDED] = w->attended;
    t->place[TEST_RAISED] = w->attn;
    t->place[TEST_INPUT] = w->xn;
    if (shape->is_latent) {
        t->width[TEST_ABSORBED] = d->n_heads * shape->key_dim;
        t->width[TEST_RAISED] = d->n_heads * d->mla.value_dim;
    } else {
        t->width[TEST_VALUES] = kv;
    }
    t->width[TEST_INPUT] = TEST_HIDDEN;
    if (d->dense_ffn > 0) t->width[TEST_MLP] = TEST_HIDDEN;
}

static sy_status test_open(device_test *t, const sy_trunk *model, uint32_t layer,
                           const device_layer *like, sy_error *err)
{
    sy_status st;

    t->trunk = *model;
    t->device = *model->device;
    t->trunk.device = &t->device;
    t->device.layer = &t->layer;
    shrink(&t->trunk.desc, model, layer);
    t->trunk.shape = sy_kv_shape_of(&t->trunk.desc);
    SY_TRY(make_layer(t, like, err));
    SY_TRY(sy_trunk_ws_open(&t->ws, &t->trunk, TEST_ROWS, NULL, err));
    SY_TRY(sy_kv_open(&t->kv, &t->trunk, PAGES, err));
    place_stages(t);
    for (uint32_t i = 0; i < TEST_STAGES; i++) {
        const size_t n = (size_t)TEST_ROWS * t->width[i] + 1;
        t->first[i] = calloc(n, sizeof(float));
        t->again[i] = calloc(n, sizeof(float));
        if (t->first[i] == NULL || t->again[i] == NULL) return no_memory(t, err);
    }
    for (uint32_t r = 0; r < TEST_ROWS; r++) {
        t->sequence[r] = r >= FIRST_ROWS;
        t->position[r] = r >= FIRST_ROWS ? r - FIRST_ROWS : r;
    }
out:
    return st;
}

static void test_close(device_test *t)
{
    for (uint32_t i = 0; t->kv != NULL && i < TEST_SEQUENCES; i++) sy_kv_release(t->kv, &t->seq[i]);
    sy_kv_close(t->kv);
    sy_trunk_ws_close(t->ws);
    for (uint32_t i = 0; i < TEST_STAGES; i++) {
        free(t->first[i]);
        free(t->again[i]);
    }
    trunk_device_settle(machine_of(t));
    for (size_t i = 0; i < SY_COUNT_OF(t->memory); i++) {
        machine_of(t)->backend->buffer_free(t->memory[i]);
        free(t->value[i]);
    }
    free(t);
}

/* The rows of a batch as they lie in the workspace, to their places among all rows. */
static sy_status read_stage(const device_test *t, float *const *out, test_stage stage,
                            const uint32_t *row, uint32_t n, sy_error *err)
{
    trunk_machine *machine = machine_of(t);
    const sy_backend_ref from = t->place[stage];
    const uint32_t width = t->width[stage], is_half = stage == TEST_NORMED;
    const size_t step = is_half ? trunk_padded(width) * sizeof(uint16_t) : width * sizeof(float);
    uint8_t *rows = malloc(n * step + 1);
    char why[SY_BACKEND_WHY_BYTES] = "";
    sy_status st;

    if (rows == NULL) return no_memory(t, err);
    SY_TRY(trunk_device_mark(machine, DEVICE_MARK_NOW, err));
    SY_TRY(trunk_device_wait(machine, DEVICE_MARK_NOW, err));
    SY_TRY(trunk_device_result(
        machine, machine->backend->copy_out(rows, from.buffer, from.offset, n * step, why), why,
        err));
    for (uint32_t i = 0; i < n; i++)
        sy_dtype_widen(out[stage] + (size_t)row[i] * width, rows + i * step,
                       is_half ? SY_BF16 : SY_F32, width);
out:
    free(rows);
    return st;
}

static sy_status read_stages(const device_test *t, float *const *out, test_stage first,
                             test_stage last, const uint32_t *row, uint32_t n, sy_error *err)
{
    for (test_stage i = first; i <= last; i++) {
        if (t->width[i] == 0) continue;
        const sy_status st = read_stage(t, out, i, row, n, err);
        if (st != SY_OK) return st;
    }
    return SY_OK;
}

static sy_status run_rows(device_test *t, float *const *out, const uint32_t *row, uint32_t n,
                          sy_error *err)
{
    uint32_t token[TEST_ROWS], position[TEST_ROWS];
    const sy_kv_seq *seq[TEST_ROWS];
    const sy_batch batch = {n, token, position, seq};
    sy_status st;

    for (uint32_t i = 0; i < n; i++) {
        token[i] = row[i];
        position[i] = t->position[row[i]];
        seq[i] = &t->seq[t->sequence[row[i]]];
    }
    SY_TRY(sy_trunk_begin(&t->trunk, t->ws, &batch, err));
    SY_TRY(read_stages(t, out, TEST_EMBEDDED, TEST_EMBEDDED, row, n, err));
    SY_TRY(sy_trunk_attend(&t->trunk, t->ws, t->kv, 0, &batch, err));
    SY_TRY(read_stages(t, out, TEST_NORMED, TEST_ADDED, row, n, err));
    SY_TRY(sy_trunk_norm(&t->trunk, t->ws, 0, n, err));
    SY_TRY(read_stages(t, out, TEST_INPUT, TEST_INPUT, row, n, err));
    SY_TRY(sy_trunk_mlp(&t->trunk, t->ws, 0, n, err));
    SY_TRY(read_stages(t, out, TEST_MLP, TEST_MLP, row, n, err));
out:
    return st;
}

/* All rows at once; and the same rows, in other pages, in parts, each row in the part that its
 * number here says. */
static sy_status run_all(device_test *t, sy_error *err)
{
    static const uint8_t part[TEST_ROWS] = {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                            1, 2, 2, 2, 2, 2, 2, 1, 1, 2};
    uint32_t row[TEST_ROWS], n = TEST_ROWS;
    sy_status st;

    for (uint32_t i = 0; i < n; i++) row[i] = i;
    t->seq[1].is_long = 1;
    SY_TRY(sy_kv_reserve(t->kv, &t->seq[0], FIRST_ROWS));
    SY_TRY(sy_kv_reserve(t->kv, &t->seq[1], TEST_ROWS - FIRST_ROWS));
    SY_TRY(run_rows(t, t->first, row, n, err));
    for (uint32_t i = 0; i < TEST_SEQUENCES; i++) sy_kv_release(t->kv, &t->seq[i]);
    t->seq[1].is_long = 1;
    SY_TRY(sy_kv_reserve(t->kv, &t->seq[1], TEST_ROWS - FIRST_ROWS));
    SY_TRY(sy_kv_reserve(t->kv, &t->seq[0], FIRST_ROWS));
    for (uint32_t p = 0; p < N_PARTS; p++) {
        n = 0;
        for (uint32_t i = 0; i < TEST_ROWS; i++)
            if (part[i] == p) row[n++] = i;
        SY_TRY(run_rows(t, t->again, row, n, err));
    }
out:
    return st;
}

/* ---- is it right? ---- */

static uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static sy_status check_row(const device_test *t, test_stage stage, uint32_t row, double *want,
                           sy_error *err)
{
    const uint32_t width = t->width[stage];
    const float *got = t->first[stage] + (size_t)row * width;
    const float *again = t->again[stage] + (size_t)row * width;
    double square = 0;

    trunk_test_want(want, t, stage, row);
    for (uint32_t i = 0; i < width; i++) square += want[i] * want[i];
    const double most = TOLERANCE * sqrt(square / width);
    for (uint32_t i = 0; i < width; i++) {
        if (!(fabs((double)got[i] - want[i]) <= most)) /* a NaN as well */
            return failed(t, err, "a wrong result", stage, row, i);
        if (bits_of(got[i]) != bits_of(again[i]))
            return failed(t, err, "bits that depend on the batch", stage, row, i);
    }
    return SY_OK;
}

static sy_status check_all(const device_test *t, sy_error *err)
{
    sy_status st = SY_OK;

    for (test_stage stage = 0; stage < TEST_STAGES && st == SY_OK; stage++) {
        double *want = malloc((t->width[stage] + 1) * sizeof(*want));
        if (want == NULL) return no_memory(t, err);
        for (uint32_t r = 0; t->width[stage] > 0 && r < TEST_ROWS && st == SY_OK; r++)
            st = check_row(t, stage, r, want, err);
        free(want);
    }
    return st;
}

/* A layer with the flags of that one, and with biases and types of matrices as `like` has them. */
static sy_status test_layer(const sy_trunk *trunk, uint32_t layer, const device_layer *like,
                            sy_error *err)
{
    device_test *t = calloc(1, sizeof(*t));
    sy_status st;

    if (t == NULL)
        return sy_error_set(err, SY_ENOMEM, "no memory for the self-test of %s",
                            trunk->device->machine->name);
    t->device.machine = trunk->device->machine;
    SY_TRY(test_open(t, trunk, layer, like, err));
    SY_TRY(run_all(t, err));
    SY_TRY(check_all(t, err));
out:
    test_close(t);
    return st;
}

/* A test of layer a says all that one of layer b would. */
static int stands_for(const sy_trunk *trunk, uint32_t a, uint32_t b)
{
    const sy_model_desc *d = &trunk->desc;
    const device_layer *x = &trunk->device->layer[a], *y = &trunk->device->layer[b];

    if (((d->layer[a] ^ d->layer[b]) & ~SY_LAYER_DENSE) != 0) return 0;
    if (x->q.dtype != y->q.dtype || x->k.dtype != y->k.dtype || x->v.dtype != y->v.dtype ||
        x->o.dtype != y->o.dtype || x->q_a.dtype != y->q_a.dtype ||
        x->heads_dtype != y->heads_dtype)
        return 0;
    return y->down.n == 0 ||
           (dtype_of(&x->gate_up) == y->gate_up.dtype && dtype_of(&x->down) == y->down.dtype);
}

/* Where no layer has matrices like the head, one is made that has. */
static sy_status test_head(const sy_trunk *trunk, sy_error *err)
{
    const sy_dtype dtype = trunk->device->head.dtype;
    device_layer like = trunk->device->layer[0];

    for (uint32_t i = 0; i < trunk->desc.n_layers; i++)
        if (trunk->device->layer[i].o.dtype == dtype) return SY_OK;
    like.o.dtype = dtype;
    return test_layer(trunk, 0, &like, err);
}

sy_status trunk_device_self_test(const sy_trunk *trunk, sy_error *err)
{
    for (uint32_t layer = 0; layer < trunk->desc.n_layers; layer++) {
        uint32_t other = 0;

        while (other < layer && !stands_for(trunk, other, layer)) other++;
        if (other < layer) continue;
        const sy_status st = test_layer(trunk, layer, &trunk->device->layer[layer], err);
        if (st != SY_OK) return st;
    }
    return test_head(trunk, err);
}
