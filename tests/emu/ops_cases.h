/* ops_cases.h - an operation of every kind, with and without what it may do without, and the call
 * of sy_cuda_trunk.h that it must be. */
#ifndef OPS_CASES_H
#define OPS_CASES_H

#include "ops_fixture.h"

typedef struct op_maker {
    const char *name;
    void (*make)(op_case *c, const opened *on);
    int (*call)(const op_case *c); /* on the host's memory */
} op_maker;

static inline sy_cuda_row_count rows_in(const op_case *c)
{
    return (sy_cuda_row_count){host_of(c, &c->op.n_rows), c->op.rows_max};
}

static inline uint64_t padded(uint64_t n)
{
    return (n + 63) / 64 * 64;
}

/* ---- whole rows ---- */

static inline void make_rows(op_case *c, const opened *on)
{
    case_begin(c, on, SY_BACKEND_ROWS, 3, 3);
    c->op.u.rows.n = 70;
    bf16_of(c, &c->op.u.rows.to, 3 * padded(70));
    floats_of(c, &c->op.u.rows.from, 3 * 70);
}

static inline int call_rows(const op_case *c)
{
    return sy_cuda_rows_from_f32(host_of(c, &c->op.u.rows.to), host_of(c, &c->op.u.rows.from), 70,
                                 3, 70, NULL);
}

static inline void make_embed(op_case *c, const opened *on)
{
    case_begin(c, on, SY_BACKEND_EMBED, 3, 5);
    c->op.u.embed.hidden = 20;
    c->op.u.embed.vocab = 7;
    c->op.u.embed.factor = 1.5f;
    floats_of(c, &c->op.u.embed.x, 5 * 20);
    bf16_of(c, &c->op.u.embed.embedding, 7 * 20);
    numbers_of(c, &c->op.u.embed.token, 5, 7);
}

static inline int call_embed(const op_case *c)
{
    const sy_cuda_row_count rows = rows_in(c);

    return sy_cuda_embed(host_of(c, &c->op.u.embed.x), host_of(c, &c->op.u.embed.embedding),
                         host_of(c, &c->op.u.embed.token), 20, 1.5f, &rows, NULL);
}

static inline void make_norm(op_case *c, const opened *on)
{
    case_begin(c, on, SY_BACKEND_NORM, 3, 5);
    c->op.u.norm.form = SY_BACKEND_NORM_RMS;
    c->op.u.norm.n = 40;
    c->op.u.norm.eps = 0.25f;
    floats_of(c, &c->op.u.norm.y, 5 * 40);
    may_miss(c);
    bf16_of(c, &c->op.u.norm.y16, 5 * padded(40));
    may_miss(c);
    floats_of(c, &c->op.u.norm.x, 5 * 40);
    floats_of(c, &c->op.u.norm.weight, 40);
}

static inline int call_norm(const op_case *c)
{
    const sy_cuda_row_count rows = rows_in(c);
    const sy_cuda_norm norm = {SY_CUDA_NORM_RMS, host_of(c, &c->op.u.norm.weight), NULL, 0.25f, 40};

    return sy_cuda_norm_rows(host_of(c, &c->op.u.norm.y), host_of(c, &c->op.u.norm.y16),
                             host_of(c, &c->op.u.norm.x), NULL, &norm, &rows, NULL);
}

static inline void make_layer_norm(op_case *c, const opened *on)
{
    case_begin(c, on, SY_BACKEND_NORM, 2, 4);
    c->op.u.norm.form = SY_BACKEND_NORM_LAYER;
    c->op.u.norm.n = 33;
    c->op.u.norm.eps = 0.5f;
    c->op.u.norm.x_rows = 6;
    floats_of(c, &c->op.u.norm.y, 4 * 33);
    may_miss(c);
    floats_of(c, &c->op.u.norm.x, 6 * 33);
    numbers_of(c, &c->op.u.norm.row, 4, 6);
    may_miss(c);
    floats_of(c, &c->op.u.norm.weight, 33);
    floats_of(c, &c->op.u.norm.bias, 33);
    may_miss(c);
}

static inline int call_layer_norm(const op_case *c)
{
    const sy_cuda_row_count rows = rows_in(c);
    const sy_cuda_norm norm = {SY_CUDA_NORM_LAYER, host_of(c, &c->op.u.norm.weight),
                               host_of(c, &c->op.u.norm.bias), 0.5f, 33};

    return sy_cuda_norm_rows(host_of(c, &c->op.u.norm.y), NULL, host_of(c, &c->op.u.norm.x),
                             host_of(c, &c->op.u.norm.row), &norm, &rows, NULL);
}

static inline void make_sum(op_case *c, const opened *on)
{
    case_begin(c, on, SY_BACKEND_ADD, 3, 4);
    c->op.u.add.hidden = 50;
    c->op.u.add.factor = 0.75f;
    floats_of(c, &c->op.u.add.x, 4 * 50);
    floats_of(c, &c->op.u.add.y, 4 * 50);
}

static inline void make_gated_sum(op_case *c, const opened *on)
{
    make_sum(c, on);
    floats_of(c, &c->op.u.add.row_factor, 4);
    may_miss(c);
}

static inline int call_sum(const op_case *c)
{
    const sy_cuda_row_count rows = rows_in(c);

    return sy_cuda_add(host_of(c, &c->op.u.add.x), host_of(c, &c->op.u.add.y), 0.75f,
                       host_of(c, &c->op.u.add.row_factor), 50, &rows, NULL);
}

static inline void make_gate(op_case *c, const opened *on)
{
    case_begin(c, on, SY_BACKEND_SHARED_GATE, 3, 4);
    c->op.u.shared_gate.hidden = 50;
    floats_of(c, &c->op.u.shared_gate.gate, 4);
    floats_of(c, &c->op.u.shared_gate.x, 4 * 50);
    floats_of(c, &c->op.u.shared_gate.w, 50);
}

static inline int call_gate(const op_case *c)
{
    const sy_cuda_row_count rows = rows_in(c);

    return sy_cuda_shared_gate(host_of(c, &c->op.u.shared_gate.gate),
                               host_of(c, &c->op.u.shared_gate.x),
                               host_of(c, &c->op.u.shared_gate.w), 50, &rows, NULL);
}

/* ---- products ---- */

/* Packed weights of n_matrices, which are any bytes: small codes, small scales. */
static inline void weights_of(op_case *c, sy_backend_ref *at, const sy_backend_matrix *matrix,
                              uint32_t n_matrices)
{
    const uint64_t bytes = n_matrices * cuda->matrix_bytes(matrix);
    uint8_t *w;

    if (matrix->weights == SY_BACKEND_BF16) {
        bf16_of(c, at, bytes / 2);
        return;
    }
    w = piece_of(c, at, bytes);
    for (uint64_t i = 0; i < bytes; i++) w[i] = (uint8_t)(random_u32(&c->random) & 0x3f);
}

static inline void make_linear_of(op_case *c, const opened *on, uint32_t n_rows, uint32_t rows_max,
                                  uint32_t weights)
{
    case_begin(c, on, SY_BACKEND_LINEAR, n_rows, rows_max);
    c->op.u.linear.matrix = (sy_backend_matrix){SY_BACKEND_PLAIN, 40, 70, weights};
    c->op.u.linear.divisor = 1.5f;
    floats_of(c, &c->op.u.linear.y, rows_max * 40);
    bf16_of(c, &c->op.u.linear.x, rows_max * padded(70));
    weights_of(c, &c->op.u.linear.weights, &c->op.u.linear.matrix, 1);
}

static inline void make_linear(op_case *c, const opened *on)
{
    make_linear_of(c, on, 3, 5, SY_BACKEND_BF16);
    floats_of(c, &c->op.u.linear.bias, 40);
    may_miss(c);
}

static inline void make_long_linear(op_case *c, const opened *on)
{
    make_linear_of(c, on, 66, 70, SY_BACKEND_BF16);
}

static inline void make_q8_linear(op_case *c, const opened *on)
{
    make_linear_of(c, on, 3, 5, SY_BACKEND_Q8);
}

static inline void make_long_q4_linear(op_case *c, const opened *on)
{
    make_linear_of(c, on, 66, 70, SY_BACKEND_Q4);
}

static inline void make_fp8_linear(op_case *c, const opened *on)
{
    make_linear_of(c, on, 9, 12, SY_BACKEND_FP8);
}

static inline void make_mxfp4_linear(op_case *c, const opened *on)
{
    make_linear_of(c, on, 20, 20, SY_BACKEND_MXFP4);
}

static inline int call_linear(const op_case *c)
{
    const sy_cuda_row_count rows = rows_in(c);
    const sy_cuda_matrix m = {host_of(c, &c->op.u.linear.weights), host_of(c, &c->op.u.linear.bias),
                              40, 70, (sy_cuda_weights)c->op.u.linear.matrix.weights};

    return sy_cuda_linear(host_of(c, &c->op.u.linear.y), host_of(c, &c->op.u.linear.x), &m, 1.5f,
                          SY_CUDA_TOKENS_16, &rows, NULL);
}

static inline void make_up_of(op_case *c, const opened *on, uint32_t weights)
{
    case_begin(c, on, SY_BACKEND_SWIGLU_UP, 3, 20);
    c->op.u.linear.matrix = (sy_backend_matrix){SY_BACKEND_GATE_UP, 24, 40, weights};
    bf16_of(c, &c->op.u.linear.y, 20 * padded(24));
    bf16_of(c, &c->op.u.linear.x, 20 * padded(40));
    weights_of(c, &c->op.u.linear.weights, &c->op.u.linear.matrix, 1);
}

static inline void make_up(op_case *c, const opened *on)
{
    make_up_of(c, on, SY_BACKEND_BF16);
}

static inline void make_fp8_up(op_case *c, const opened *on)
{
    make_up_of(c, on, SY_BACKEND_FP8);
}

static inline int call_up(const op_case *c)
{
    const sy_cuda_row_count rows = rows_in(c);
    const sy_cuda_matrix m = {host_of(c, &c->op.u.linear.weights), NULL, 24, 40,
                              (sy_cuda_weights)c->op.u.linear.matrix.weights};

    return sy_cuda_linear_swiglu(host_of(c, &c->op.u.linear.y), host_of(c, &c->op.u.linear.x), &m,
                                 SY_CUDA_TOKENS_8, &rows, NULL);
}

static inline void make_linear_heads_of(op_case *c, const opened *on, uint32_t weights)
{
    case_begin(c, on, SY_BACKEND_LINEAR_HEADS, 3, 5);
    c->op.u.linear_heads.n_heads = 3;
    c->op.u.linear_heads.matrix = (sy_backend_matrix){SY_BACKEND_PLAIN, 20, 70, weights};
    c->op.u.linear_heads.n_tail = 4;
    floats_of(c, &c->op.u.linear_heads.y, 5 * 3 * (20 + 4));
    floats_of(c, &c->op.u.linear_heads.x, 5 * 3 * (70 + 4));
    weights_of(c, &c->op.u.linear_heads.weights, &c->op.u.linear_heads.matrix, 3);
}

static inline void make_linear_heads(op_case *c, const opened *on)
{
    make_linear_heads_of(c, on, SY_BACKEND_BF16);
}

static inline void make_q4_linear_heads(op_case *c, const opened *on)
{
    make_linear_heads_of(c, on, SY_BACKEND_Q4);
}

static inline int call_linear_heads(const op_case *c)
{
    const sy_cuda_row_count rows = rows_in(c);
    const sy_cuda_head_matrices m = {host_of(c, &c->op.u.linear_heads.weights),
                                     (sy_cuda_weights)c->op.u.linear_heads.matrix.weights,
                                     3,
                                     20,
                                     70,
                                     4};

    return sy_cuda_linear_heads(host_of(c, &c->op.u.linear_heads.y),
                                host_of(c, &c->op.u.linear_heads.x), &m, &rows, NULL);
}

/* ---- heads ---- */

static inline void make_heads(op_case *c, const opened *on)
{
    case_begin(c, on, SY_BACKEND_HEADS, 3, 5);
    c->op.u.heads.n_heads = 2;
    c->op.u.heads.head_dim = 20;
    c->op.u.heads.norm = SY_BACKEND_NORM_THEN_ROTATE;
    c->op.u.heads.norm_dim = 18;
    c->op.u.heads.norm_eps = 0.25f;
    c->op.u.heads.clip = 0.5f;
    c->op.u.heads.rotary_at = 4;
    c->op.u.heads.rotary_dim = 10;
    c->op.u.heads.interleaved = 1;
    c->op.u.heads.angle_rows = 9;
    floats_of(c, &c->op.u.heads.x, 5 * 2 * 20);
    floats_of(c, &c->op.u.heads.norm_weight, 18);
    may_miss(c);
    floats_of(c, &c->op.u.heads.angles, 9 * 10);
    numbers_of(c, &c->op.u.heads.places.position, 5, 9);
    is_of_words(c);
    numbers_of(c, &c->op.u.heads.places.angle, 5, 9);
    is_of_words(c);
}

static inline int call_heads(const op_case *c)
{
    const sy_cuda_row_count rows = rows_in(c);
    const sy_cuda_places places = {.position = host_of(c, &c->op.u.heads.places.position),
                                   .angle = host_of(c, &c->op.u.heads.places.angle)};
    const sy_cuda_heads h = {.n_heads = 2,
                             .head_dim = 20,
                             .norm = SY_CUDA_NORM_THEN_ROTATE,
                             .norm_dim = 18,
                             .norm_weight = host_of(c, &c->op.u.heads.norm_weight),
                             .norm_eps = 0.25f,
                             .clip = 0.5f,
                             .rotary_at = 4,
                             .rotary_dim = 10,
                             .interleaved = 1,
                             .angles = host_of(c, &c->op.u.heads.angles)};

    return sy_cuda_finish_heads(host_of(c, &c->op.u.heads.x), &h, &places, &rows, NULL);
}

static inline void make_tempered_heads(op_case *c, const opened *on)
{
    case_begin(c, on, SY_BACKEND_HEADS, 3, 4);
    c->op.u.heads.n_heads = 3;
    c->op.u.heads.head_dim = 8;
    c->op.u.heads.norm = SY_BACKEND_ROTATE_THEN_NORM;
    c->op.u.heads.norm_dim = 8;
    c->op.u.heads.norm_eps = 0.125f;
    c->op.u.heads.temperature_floor = 2.0f;
    c->op.u.heads.temperature_scale = 0.5f;
    floats_of(c, &c->op.u.heads.x, 4 * 3 * 8);
    numbers_of(c, &c->op.u.heads.places.position, 4, 100);
    is_of_words(c);
}

static inline int call_tempered_heads(const op_case *c)
{
    const sy_cuda_row_count rows = rows_in(c);
    const sy_cuda_places places = {.position = host_of(c, &c->op.u.heads.places.position)};
    const sy_cuda_heads h = {.n_heads = 3,
                             .head_dim = 8,
                             .norm = SY_CUDA_ROTATE_THEN_NORM,
                             .norm_dim = 8,
                             .norm_eps = 0.125f,
                             .temperature_floor = 2.0f,
                             .temperature_scale = 0.5f};

    return sy_cuda_finish_heads(host_of(c, &c->op.u.heads.x), &h, &places, &rows, NULL);
}

/* ---- the cache, and attention ---- */

enum { CACHE_PAGES = 5, CACHE_SEQUENCES = 2, CACHE_PAGES_MAX = 2 };

/* Finite values in every page, and page tables that share none. */
static inline void make_kv(op_case *c, sy_backend_kv *kv)
{
    const uint64_t width = kv->key_dim + (kv->is_latent ? 0 : kv->value_dim);
    const uint64_t n = (uint64_t)CACHE_PAGES * kv->n_heads * 16 * width;
    uint32_t *page;

    kv->n_pages = CACHE_PAGES;
    kv->pages_max = CACHE_PAGES_MAX;
    kv->n_sequences = CACHE_SEQUENCES;
    if (kv->is_bf16) {
        bf16_of(c, &kv->data, n);
    } else {
        floats_of(c, &kv->data, n);
    }
    page = numbers_of(c, &kv->page, CACHE_SEQUENCES * CACHE_PAGES_MAX, 1);
    for (uint32_t i = 0; i < CACHE_SEQUENCES * CACHE_PAGES_MAX; i++) page[i] = (i * 3 + 1) % 5;
}

static inline void make_places(op_case *c, sy_backend_places *places, uint32_t rows_max)
{
    uint32_t *position = numbers_of(c, &places->position, rows_max, 1);

    is_of_words(c);
    for (uint32_t i = 0; i < rows_max; i++) position[i] = (i * 7 + 9) % (CACHE_PAGES_MAX * 16);
    numbers_of(c, &places->sequence, rows_max, CACHE_SEQUENCES);
    is_of_words(c);
}

static inline sy_cuda_kv kv_on_host(const op_case *c, const sy_backend_kv *kv)
{
    return (sy_cuda_kv){.data = host_of(c, &kv->data),
                        .type = kv->is_bf16 ? SY_CUDA_KV_BF16 : SY_CUDA_KV_F32,
                        .n_heads = kv->n_heads,
                        .key_dim = kv->key_dim,
                        .value_dim = kv->value_dim,
                        .is_latent = (int)kv->is_latent,
                        .page = host_of(c, &kv->page),
                        .pages_max = kv->pages_max};
}

static inline void make_put(op_case *c, const opened *on)
{
    case_begin(c, on, SY_BACKEND_KV_PUT, 3, 4);
    c->op.u.kv_put.kv = (sy_backend_kv){.n_heads = 2, .key_dim = 9, .value_dim = 6};
    make_kv(c, &c->op.u.kv_put.kv);
    floats_of(c, &c->op.u.kv_put.k, 4 * 2 * 9);
    floats_of(c, &c->op.u.kv_put.v, 4 * 2 * 6);
    make_places(c, &c->op.u.kv_put.places, 4);
}

static inline void make_latent_put(op_case *c, const opened *on)
{
    case_begin(c, on, SY_BACKEND_KV_PUT, 3, 4);
    c->op.u.kv_put.kv =
        (sy_backend_kv){.is_bf16 = 1, .is_latent = 1, .n_heads = 1, .key_dim = 24, .value_dim = 16};
    make_kv(c, &c->op.u.kv_put.kv);
    floats_of(c, &c->op.u.kv_put.k, 4 * 24);
    make_places(c, &c->op.u.kv_put.places, 4);
}

static inline int call_put(const op_case *c)
{
    const sy_cuda_row_count rows = rows_in(c);
    const sy_cuda_kv kv = kv_on_host(c, &c->op.u.kv_put.kv);
    const sy_cuda_places places = {.position = host_of(c, &c->op.u.kv_put.places.position),
                                   .sequence = host_of(c, &c->op.u.kv_put.places.sequence)};

    return sy_cuda_kv_put(&kv, host_of(c, &c->op.u.kv_put.k), host_of(c, &c->op.u.kv_put.v),
                          &places, &rows, NULL);
}

static inline void make_attention(op_case *c, const opened *on)
{
    const uint64_t splits = 2;

    case_begin(c, on, SY_BACKEND_ATTEND, 3, 4);
    c->op.u.attend.kv = (sy_backend_kv){.n_heads = 2, .key_dim = 12, .value_dim = 6};
    c->op.u.attend.n_heads = 4;
    c->op.u.attend.scale = 0.3f;
    c->op.u.attend.window = 11;
    c->op.u.attend.positions_max = 130;
    c->op.u.attend.rows_together = 1;
    make_kv(c, &c->op.u.attend.kv);
    floats_of(c, &c->op.u.attend.out, 4 * 4 * 6);
    floats_of(c, &c->op.u.attend.q, 4 * 4 * 12);
    floats_of(c, &c->op.u.attend.sinks, 4);
    may_miss(c);
    floats_of(c, &c->op.u.attend.scratch, 4 * 4 * splits * (6 + 2));
    may_miss(c);
    make_places(c, &c->op.u.attend.places, 4);
}

static inline void make_bf16_attention(op_case *c, const opened *on)
{
    case_begin(c, on, SY_BACKEND_ATTEND, 3, 4);
    c->op.u.attend.kv = (sy_backend_kv){.is_bf16 = 1, .n_heads = 1, .key_dim = 16, .value_dim = 8};
    c->op.u.attend.n_heads = 2;
    c->op.u.attend.scale = 0.3f;
    c->op.u.attend.chunk = 8;
    c->op.u.attend.positions_max = 32;
    c->op.u.attend.rows_together = 4;
    make_kv(c, &c->op.u.attend.kv);
    floats_of(c, &c->op.u.attend.out, 4 * 2 * 8);
    floats_of(c, &c->op.u.attend.q, 4 * 2 * 16);
    make_places(c, &c->op.u.attend.places, 4);
}

static inline int call_attention(const op_case *c)
{
    const sy_cuda_row_count rows = rows_in(c);
    const sy_cuda_kv kv = kv_on_host(c, &c->op.u.attend.kv);
    const sy_cuda_places places = {.position = host_of(c, &c->op.u.attend.places.position),
                                   .sequence = host_of(c, &c->op.u.attend.places.sequence)};
    const sy_cuda_attention a = {.n_heads = c->op.u.attend.n_heads,
                                 .scale = 0.3f,
                                 .window = c->op.u.attend.window,
                                 .chunk = c->op.u.attend.chunk,
                                 .sinks = host_of(c, &c->op.u.attend.sinks),
                                 .positions_max = c->op.u.attend.positions_max,
                                 .rows_together = 1,
                                 .partial = host_of(c, &c->op.u.attend.scratch)};

    return sy_cuda_attend(host_of(c, &c->op.u.attend.out), host_of(c, &c->op.u.attend.q), &kv,
                          &places, &a, &rows, NULL);
}

static const op_maker op_makers[] = {
    {"rows", make_rows, call_rows},
    {"embed", make_embed, call_embed},
    {"norm", make_norm, call_norm},
    {"norm", make_layer_norm, call_layer_norm},
    {"add", make_sum, call_sum},
    {"add", make_gated_sum, call_sum},
    {"shared gate", make_gate, call_gate},
    {"linear", make_linear, call_linear},
    {"linear", make_long_linear, call_linear},
    {"swiglu up", make_up, call_up},
    {"linear heads", make_linear_heads, call_linear_heads},
    {"linear", make_q8_linear, call_linear},
    {"linear", make_long_q4_linear, call_linear},
    {"linear", make_fp8_linear, call_linear},
    {"linear", make_mxfp4_linear, call_linear},
    {"swiglu up", make_fp8_up, call_up},
    {"linear heads", make_q4_linear_heads, call_linear_heads},
    {"heads", make_heads, call_heads},
    {"heads", make_tempered_heads, call_tempered_heads},
    {"kv put", make_put, call_put},
    {"kv put", make_latent_put, call_put},
    {"attend", make_attention, call_attention},
    {"attend", make_bf16_attention, call_attention},
};

#endif
