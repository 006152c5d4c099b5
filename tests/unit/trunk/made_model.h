/* made_model.h - a model made in memory from a description, in the place of the library's sy_model:
 * every form that a description has, whether a family has it or not, and tensors that lie as a test
 * wants them to. One test of an executable includes this. */
#ifndef MADE_MODEL_H
#define MADE_MODEL_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sy_hash.h"
#include "sy_model.h"

enum { MADE_LAYERS_MAX = 4 };

/* What a description does not say. */
typedef struct made_options {
    sy_dtype dtype;
    int qkv_bias, o_bias, head_bias, sinks;
    int strided;    /* rows lie apart */
    int transposed; /* columns lie side by side; not the embedding */
} made_options;

struct sy_model {
    sy_model_desc desc;
    made_options options;
    sy_tensor tensor[MADE_LAYERS_MAX][SY_N_ROLES]; /* data NULL: there is none */
    float *value[MADE_LAYERS_MAX][SY_N_ROLES];     /* the same, row-major */
    uint8_t *map; /* of a file without a name: pages that are let go of come back */
    size_t map_bytes, used;
};

/* 1 when the model has the role, with its shape; a vector has one column. */
static int made_shape(const sy_model *m, sy_role role, uint32_t layer, uint32_t shape[2])
{
    const sy_model_desc *d = &m->desc;
    const int is_dense = (d->layer[layer] & SY_LAYER_DENSE) != 0;
    const int is_mla = d->mla.kv_rank > 0, is_outer = role < SY_ROLE_NORM1;
    const int has_norms = d->qk_norm != SY_QK_NORM_NONE && d->qk_norm != SY_QK_NORM_WEIGHTLESS;
    const uint32_t q = d->n_heads * d->head_dim, kv = d->n_kv_heads * d->head_dim, h = d->hidden;
    const uint32_t o = is_mla ? d->n_heads * d->mla.value_dim : q;
    const int is_whole = d->qk_norm == SY_QK_NORM_WHOLE;
    const struct {
        int has;
        uint32_t n, k;
    } of[SY_N_ROLES] = {
        [SY_ROLE_EMBED] = {1, d->vocab, h},
        [SY_ROLE_FINAL_NORM] = {1, h, 1},
        [SY_ROLE_FINAL_NORM_BIAS] = {d->norm == SY_NORM_LAYER, h, 1},
        [SY_ROLE_HEAD] = {!d->tied_head, d->vocab, h},
        [SY_ROLE_HEAD_BIAS] = {m->options.head_bias, d->vocab, 1},
        [SY_ROLE_NORM1] = {1, h, 1},
        [SY_ROLE_NORM1_BIAS] = {d->norm == SY_NORM_LAYER, h, 1},
        [SY_ROLE_NORM2] = {1, h, 1},
        [SY_ROLE_NORM2_BIAS] = {d->norm == SY_NORM_LAYER, h, 1},
        [SY_ROLE_Q] = {!is_mla || d->mla.q_rank == 0, q, h},
        [SY_ROLE_K] = {!is_mla, kv, h},
        [SY_ROLE_V] = {!is_mla, kv, h},
        [SY_ROLE_O] = {1, h, o},
        [SY_ROLE_Q_BIAS] = {m->options.qkv_bias, q, 1},
        [SY_ROLE_K_BIAS] = {m->options.qkv_bias, kv, 1},
        [SY_ROLE_V_BIAS] = {m->options.qkv_bias, kv, 1},
        [SY_ROLE_O_BIAS] = {m->options.o_bias, h, 1},
        [SY_ROLE_Q_NORM] = {has_norms, is_whole ? q : d->head_dim, 1},
        [SY_ROLE_K_NORM] = {has_norms, is_whole ? kv : d->head_dim, 1},
        [SY_ROLE_SINKS] = {m->options.sinks, d->n_heads, 1},
        [SY_ROLE_Q_A] = {d->mla.q_rank > 0, d->mla.q_rank, h},
        [SY_ROLE_Q_A_NORM] = {d->mla.q_rank > 0, d->mla.q_rank, 1},
        [SY_ROLE_Q_B] = {d->mla.q_rank > 0, q, d->mla.q_rank},
        [SY_ROLE_KV_A] = {is_mla, d->mla.kv_rank + d->rotary_dim, h},
        [SY_ROLE_KV_A_NORM] = {is_mla, d->mla.kv_rank, 1},
        [SY_ROLE_KV_B] = {is_mla, d->n_heads * (d->mla.nope_dim + d->mla.value_dim),
                          d->mla.kv_rank},
        [SY_ROLE_DENSE_GATE] = {is_dense, d->dense_ffn, h},
        [SY_ROLE_DENSE_UP] = {is_dense, d->dense_ffn, h},
        [SY_ROLE_DENSE_DOWN] = {is_dense, h, d->dense_ffn},
        [SY_ROLE_SHARED_GATE] = {!is_dense && d->shared_ffn > 0, d->shared_ffn, h},
        [SY_ROLE_SHARED_UP] = {!is_dense && d->shared_ffn > 0, d->shared_ffn, h},
        [SY_ROLE_SHARED_DOWN] = {!is_dense && d->shared_ffn > 0, h, d->shared_ffn},
        [SY_ROLE_SHARED_MIX] = {!is_dense && d->shared_gate, 1, h},
    };

    shape[0] = of[role].n;
    shape[1] = of[role].k;
    return of[role].has && (!is_outer || layer == 0);
}

/* Norms are around 1, biases small, and matrices keep the size of what goes through them. */
static float made_value(sy_role role, uint32_t layer, uint32_t columns, size_t i)
{
    const uint64_t bits = sy_splitmix64(((uint64_t)role * 16 + layer) * 1000003 + i) >> 40;
    const float u = (float)bits / (float)(1 << 23) - 1.0f;

    if (role == SY_ROLE_SINKS) return 2.0f * u;
    if (role == SY_ROLE_EMBED) return u;
    if (columns > 1) return 1.7f * u / sqrtf((float)columns);
    switch (role) {
    case SY_ROLE_FINAL_NORM:
    case SY_ROLE_NORM1:
    case SY_ROLE_NORM2:
    case SY_ROLE_Q_NORM:
    case SY_ROLE_K_NORM:
    case SY_ROLE_Q_A_NORM:
    case SY_ROLE_KV_A_NORM: return 1.0f + 0.25f * u;
    default: return 0.125f * u;
    }
}

static void made_tensor(sy_model *m, sy_role role, uint32_t layer, const uint32_t shape[2])
{
    const int is_matrix = shape[1] > 1, is_turned = m->options.transposed && is_matrix;
    const size_t n = (size_t)shape[0] * shape[1], element = sy_dtype_bytes(m->options.dtype);
    const size_t gap = m->options.strided ? 3 * element : 0;
    const size_t row_step = is_turned ? element : shape[1] * element + gap;
    const size_t column_step = is_turned ? shape[0] * element : element;
    sy_tensor *t = &m->tensor[layer][role];
    float *value = m->value[layer][role] = malloc(n * sizeof(float));
    uint8_t *data = m->map + m->used;

    m->used += n * element + shape[0] * gap + 7; /* no alignment is promised */
    assert_non_null(value);
    assert_true(m->used <= m->map_bytes);
    *t = (sy_tensor){.name = "made",
                     .dtype_name = sy_dtype_name(m->options.dtype),
                     .dtype = m->options.dtype,
                     .rank = is_matrix ? 2 : 1,
                     .shape = {shape[0], is_matrix ? shape[1] : 0},
                     .n_elements = n,
                     .data = data,
                     .bytes = n * element,
                     .row_step = m->options.strided || is_turned ? row_step : 0,
                     .column_step = is_turned ? column_step : 0};
    for (size_t i = 0; i < n; i++) {
        uint8_t *at = data + i / shape[1] * row_step + i % shape[1] * column_step;
        uint16_t half;

        value[i] = made_value(role, layer, shape[1], i);
        if (m->options.dtype == SY_F32) {
            memcpy(at, &value[i], sizeof(float));
        } else {
            half = sy_f32_to_bf16(value[i]);
            value[i] = sy_bf16_to_f32(half);
            memcpy(at, &half, sizeof(half));
        }
    }
}

static sy_model *made_model_open(const sy_model_desc *desc, const made_options *options)
{
    const int fd = memfd_create("made", 0);
    sy_model *m = calloc(1, sizeof(*m));
    uint32_t shape[2];

    assert_non_null(m);
    assert_true(fd >= 0 && desc->n_layers <= MADE_LAYERS_MAX);
    m->desc = *desc;
    m->options = *options;
    m->map_bytes = 16 << 20;
    assert_int_equal(ftruncate(fd, (off_t)m->map_bytes), 0);
    m->map = mmap(NULL, m->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(m->map != MAP_FAILED);
    close(fd);
    for (uint32_t layer = 0; layer < desc->n_layers; layer++)
        for (int role = 0; role < SY_N_ROLES; role++)
            if (made_shape(m, (sy_role)role, layer, shape))
                made_tensor(m, (sy_role)role, layer, shape);
    return m;
}

static void made_model_close(sy_model *m)
{
    for (uint32_t layer = 0; layer < MADE_LAYERS_MAX; layer++)
        for (int role = 0; role < SY_N_ROLES; role++) free(m->value[layer][role]);
    munmap(m->map, m->map_bytes);
    free(m);
}

const sy_model_desc *sy_model_describe(const sy_model *model)
{
    return &model->desc;
}

int sy_model_is_sound(const sy_model *model, const void *elements, sy_dtype dtype, uint64_t n)
{
    (void)model;
    return sy_dtype_all_finite(elements, dtype, n);
}

int sy_model_are_sound(const sy_model *model, const void *rows, sy_dtype dtype, uint64_t n,
                       uint64_t k)
{
    const uint8_t *row = rows;
    int sound = 1;

    for (uint64_t i = 0; i < n && sound; i++, row += sy_dtype_row_bytes(dtype, k))
        sound = sy_model_is_sound(model, row, dtype, k);
    return sound;
}

const sy_tensor *sy_model_tensor(const sy_model *model, sy_role role, uint32_t layer,
                                 uint32_t expert)
{
    const sy_tensor *t = &model->tensor[role < SY_ROLE_NORM1 ? 0 : layer][role];

    (void)expert;
    return t->data == NULL ? NULL : t;
}

#endif
