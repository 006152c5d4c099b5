/* plugin_fixture.h - what the tests of the plugin on emulated GPUs share: experts whose weights
 * follow from their number, pools of them, and what a batch must give. Everything that can be had
 * through the plugin's table is had through it. */
#ifndef PLUGIN_FIXTURE_H
#define PLUGIN_FIXTURE_H

#include "emu_cudart.h"
#include "kernel_cases.h"
#include "sy_backend.h"
#include "sy_cuda_pack.h"
#include "sy_cuda_slot.h"

const sy_backend *sy_backend_get(uint32_t abi);

static const sy_backend *cuda;
static char why[SY_BACKEND_WHY_BYTES];

static inline void ok(int result)
{
    if (result != SY_BACKEND_OK) fail_msg("result %d: %s", result, why);
}

static inline void refused(int result, int want, const char *text)
{
    if (result != want) fail_msg("want result %d, got %d: %s", want, result, why);
    if (strstr(why, text) == NULL) fail_msg("'%s' is not in: %s", text, why);
}

static inline int fixture_begin(void **state)
{
    (void)state;
    emu_cudart_reset();
    cuda = sy_backend_get(SY_BACKEND_ABI);
    why[0] = '\0';
    return cuda == NULL;
}

static inline int fixture_end(void **state)
{
    (void)state;
    if (emu_cudart_n_live() != 0) fprintf(stderr, "%d objects live\n", emu_cudart_n_live());
    return emu_cudart_n_live() != 0 || emu_cudart_last() != cudaSuccess;
}

#define PLUGIN_TEST(f) cmocka_unit_test_setup_teardown(f, fixture_begin, fixture_end)

/* ---- experts ---- */

static inline sy_backend_pool_config config_of(uint32_t hidden, uint32_t ffn, uint32_t weights,
                                               int has_bias)
{
    return (sy_backend_pool_config){.hidden = hidden,
                                    .ffn = ffn,
                                    .weights = weights,
                                    .has_bias = has_bias != 0,
                                    .mlp = has_bias ? SY_BACKEND_CLAMPED : SY_BACKEND_SWIGLU,
                                    .mlp_limit = 0.75f,
                                    .slots_max = 6,
                                    .rows_max = 96,
                                    .lanes = 2};
}

static inline uint32_t n_parts(const sy_backend_pool_config *c)
{
    return c->has_bias ? 6 : 3;
}

static inline uint32_t part_rows(const sy_backend_pool_config *c, uint32_t part)
{
    return part == SY_BACKEND_DOWN || part == SY_BACKEND_DOWN_BIAS ? c->hidden : c->ffn;
}

static inline size_t part_row_bytes(const sy_backend_pool_config *c, uint32_t part)
{
    if (part > SY_BACKEND_DOWN) return sizeof(float);
    return sy_cuda_row_bytes((sy_cuda_weights)c->weights,
                             part == SY_BACKEND_DOWN ? c->ffn : c->hidden);
}

/* Of FP8, behind the codes: numbers of about 1/64 that the rows of a block of 128 have together. No
 * code is a NaN. */
static inline void part_tame_fp8(uint8_t *rows, const sy_backend_pool_config *c, uint32_t id,
                                 uint32_t part)
{
    const size_t row_bytes = part_row_bytes(c, part);
    const uint32_t k = part == SY_BACKEND_DOWN ? c->ffn : c->hidden;

    for (uint32_t row = 0; row < part_rows(c, part); row++, rows += row_bytes) {
        test_random r = {TEST_SEED + id * 4096 + row / 128 * 8 + part};
        for (uint32_t i = 0; i < k; i++)
            if ((rows[i] & 0x7f) == 0x7f) rows[i] ^= 1;
        for (size_t at = k; at < row_bytes; at += sizeof(float)) {
            const float factor = (1.5f + random_unit(&r)) / 64.0f;
            memcpy(rows + at, &factor, sizeof(factor));
        }
    }
}

/* Random bytes as factors would be huge, or none: what is computed would be NaN, which says
 * nothing. These make weights of about 1. */
static inline void part_tame(uint8_t *rows, const sy_backend_pool_config *c, uint32_t id,
                             uint32_t part)
{
    const size_t row_bytes = part_row_bytes(c, part), bytes = part_rows(c, part) * row_bytes;
    const size_t block = c->weights == SY_BACKEND_Q8 ? 34 : 18;

    if (c->weights == SY_BACKEND_FP8) {
        part_tame_fp8(rows, c, id, part);
    } else if (c->weights == SY_BACKEND_MXFP4) {
        for (size_t i = 0; i < bytes; i++)
            if (i % row_bytes >= row_bytes / 17 * 16) rows[i] = (uint8_t)(122 + rows[i] % 4);
    } else {
        for (size_t i = 1; i < bytes; i += block) /* the high byte of an f16 */
            rows[i] = (uint8_t)((c->weights == SY_BACKEND_Q8 ? 0x20 : 0x30) | (rows[i] & 0x83));
    }
}

/* A part of expert `id`, row-major; the caller ends it with free. */
static inline uint8_t *part_make(const sy_backend_pool_config *c, uint32_t id, uint32_t part)
{
    const size_t bytes = part_rows(c, part) * part_row_bytes(c, part);
    test_random r = {TEST_SEED + id * 64 + part};
    uint8_t *rows = malloc(bytes);

    assert_non_null(rows);
    if (part > SY_BACKEND_DOWN) {
        for (size_t i = 0; i < bytes / 4; i++) {
            const float v = random_unit(&r);
            memcpy(rows + 4 * i, &v, 4);
        }
    } else if (c->weights == SY_BACKEND_BF16) {
        for (size_t i = 0; i < bytes / 2; i++) {
            const uint16_t v = sy_f32_to_bf16(random_unit(&r) * 0.3f);
            memcpy(rows + 2 * i, &v, 2);
        }
    } else {
        for (size_t i = 0; i < bytes; i++) rows[i] = (uint8_t)random_u32(&r);
        part_tame(rows, c, id, part);
    }
    return rows;
}

/* ---- pools ---- */

typedef struct place { /* a device and a pool on it */
    sy_backend_handle *handle;
    sy_backend_pool *pool;
    sy_backend_pool_config config;
    sy_backend_pool_info info;
} place;

static inline place place_open(uint32_t device, const sy_backend_pool_config *config)
{
    place p = {.config = *config};

    ok(cuda->open(&p.handle, device, why));
    ok(cuda->pool_open(&p.pool, p.handle, config, why));
    cuda->pool_describe(&p.info, p.pool);
    return p;
}

static inline void place_close(place *p)
{
    cuda->pool_close(p->pool);
    cuda->close(p->handle);
}

/* All of expert `id` into the slot, at most n_rows rows a call; the first result that is no
 * success. */
static inline int expert_write(const place *p, uint32_t slot, uint32_t id, uint32_t n_rows,
                               char *reason)
{
    int result = SY_BACKEND_OK;

    for (uint32_t part = 0; part < n_parts(&p->config) && result == SY_BACKEND_OK; part++) {
        const uint32_t n = part_rows(&p->config, part);
        uint8_t *rows = part_make(&p->config, id, part);

        for (uint32_t at = 0; at < n && result == SY_BACKEND_OK; at += n_rows)
            result = cuda->slot_write(p->pool, slot, part, at, n - at < n_rows ? n - at : n_rows,
                                      rows + at * part_row_bytes(&p->config, part), reason);
        free(rows);
    }
    if (result == SY_BACKEND_OK) result = cuda->slot_flush(p->pool, slot, reason);
    return result;
}

static inline void put(const place *p, uint32_t slot, uint32_t id)
{
    ok(expert_write(p, slot, id, 1 << 20, why));
}

static inline void check_part(const place *p, uint32_t slot, uint32_t id, uint32_t part)
{
    const uint32_t n = part_rows(&p->config, part);
    const size_t bytes = n * part_row_bytes(&p->config, part);
    uint8_t *want = part_make(&p->config, id, part), *got = malloc(bytes);

    assert_non_null(got);
    memset(got, 0xa5, bytes);
    ok(cuda->slot_read(got, p->pool, slot, part, 0, n, why));
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != want[i])
            fail_msg("slot %u, part %u: byte %zu of %zu is %02x and not %02x", slot, part, i, bytes,
                     got[i], want[i]);
    free(want);
    free(got);
}

/* The slot has expert `id`, byte for byte. */
static inline void check_slot(const place *p, uint32_t slot, uint32_t id)
{
    for (uint32_t part = 0; part < n_parts(&p->config); part++) check_part(p, slot, id, part);
}

static inline uint64_t hash_of(const place *p, uint32_t slot)
{
    uint64_t hash = 0;

    ok(cuda->slot_hash(&hash, p->pool, slot, why));
    return hash;
}

/* ---- batches ---- */

enum { GROUPS_MAX = 8 };

typedef struct batch {
    uint32_t n_x, n_rows, n_groups;
    uint32_t id[GROUPS_MAX]; /* the expert of a group */
    sy_backend_group group[GROUPS_MAX];
    uint64_t seed;
} batch;

/* Group i has expert id[i], in the slot of that number, and n[i] rows. */
static inline batch batch_of(uint32_t n_x, const uint32_t *id, const uint32_t *n, uint32_t n_groups)
{
    batch b = {.n_x = n_x, .n_groups = n_groups};

    for (uint32_t i = 0; i < n_groups; i++) {
        b.id[i] = id[i];
        b.group[i] = (sy_backend_group){id[i], b.n_rows, b.n_rows + n[i]};
        b.n_rows += n[i];
        b.seed = b.seed * 31 + id[i] * 7 + n[i] + 1;
    }
    return b;
}

static inline void batch_fill(uint16_t *x, uint32_t *x_row, const batch *b, const place *p)
{
    test_random r = {TEST_SEED + b->seed};

    for (uint32_t t = 0; t < b->n_x; t++)
        for (uint32_t i = 0; i < p->config.hidden; i++)
            x[(size_t)t * p->info.x_stride + i] = sy_f32_to_bf16(random_unit(&r));
    for (uint32_t i = 0; i < b->n_rows; i++) x_row[i] = random_u32(&r) % b->n_x;
}

static inline int batch_submit(const place *p, uint32_t lane, const batch *b, char *reason)
{
    sy_backend_lane memory;

    cuda->lane(&memory, p->pool, lane);
    batch_fill(memory.x, memory.x_row, b, p);
    return cuda->submit(p->pool, lane, b->n_x, b->n_rows, b->group, b->n_groups, reason);
}

/* The first result that is no success. */
static inline int batch_wait(const place *p, uint32_t lane, char *reason)
{
    float device_us = -1;
    int done = 0, result = SY_BACKEND_OK;

    for (int i = 0; i < 600 && result == SY_BACKEND_OK && !done; i++)
        result = cuda->wait(&done, &device_us, p->pool, lane, 100000, reason);
    if (result == SY_BACKEND_OK && !done) fail_msg("a minute was not enough");
    if (result == SY_BACKEND_OK) assert_true(device_us >= 0);
    return result;
}

/* The expert as a kernel sees it, in memory of its own: memory[0..4]. */
typedef struct packed {
    edge_buffer memory[5];
    sy_cuda_expert expert;
} packed;

static inline const float *packed_scales(const edge_buffer *memory, sy_cuda_part part, uint32_t n,
                                         uint32_t k)
{
    const size_t offset = sy_cuda_scale_offset(SY_CUDA_FP8, part, n, k);

    return (const float *)(const void *)(memory->data + offset);
}

static inline packed packed_open(const sy_backend_pool_config *c, uint32_t id)
{
    const sy_cuda_weights weights = (sy_cuda_weights)c->weights;
    packed p;

    p.memory[0] = edge_open(sy_cuda_matrix_bytes(weights, SY_CUDA_GATE, c->ffn, c->hidden), 0);
    p.memory[1] = edge_open(sy_cuda_matrix_bytes(weights, SY_CUDA_DOWN, c->hidden, c->ffn), 0);
    for (uint32_t part = SY_BACKEND_GATE; part <= SY_BACKEND_DOWN; part++) {
        const uint32_t n = part_rows(c, part), k = part == SY_BACKEND_DOWN ? c->ffn : c->hidden;
        uint8_t *rows = part_make(c, id, part);

        assert_int_equal(sy_cuda_rows_pack(p.memory[part == SY_BACKEND_DOWN].data, rows, weights,
                                           (sy_cuda_part)part, n, k, 0, n, NULL),
                         0);
        free(rows);
    }
    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t part = SY_BACKEND_GATE_BIAS + i;
        uint8_t *rows = part_make(c, id, part);

        p.memory[2 + i] = edge_open(part_rows(c, part) * sizeof(float), 0);
        memcpy(p.memory[2 + i].data, rows, p.memory[2 + i].bytes);
        free(rows);
    }
    p.expert = (sy_cuda_expert){.gate_up = p.memory[0].data, .down = p.memory[1].data};
    if (weights == SY_CUDA_FP8) {
        p.expert.gate_scale = packed_scales(&p.memory[0], SY_CUDA_GATE, c->ffn, c->hidden);
        p.expert.up_scale = packed_scales(&p.memory[0], SY_CUDA_UP, c->ffn, c->hidden);
        p.expert.down_scale = packed_scales(&p.memory[1], SY_CUDA_DOWN, c->hidden, c->ffn);
    }
    if (c->has_bias) {
        p.expert.gate_bias = edge_floats(&p.memory[2]);
        p.expert.up_bias = edge_floats(&p.memory[3]);
        p.expert.down_bias = edge_floats(&p.memory[4]);
    }
    return p;
}

static inline void packed_close(packed *p)
{
    for (size_t i = 0; i < SY_COUNT_OF(p->memory); i++) edge_close(&p->memory[i]);
}

/* What a batch must give: the kernels called directly, an expert after the other. y: [n_rows, H].
 */
static inline void batch_expect(float *y, const batch *b, const place *p)
{
    const sy_backend_pool_config *c = &p->config;
    const uint32_t padded = sy_cuda_padded(c->ffn);
    edge_buffer x = edge_open((size_t)b->n_x * p->info.x_stride * 2, 0);
    edge_buffer x_row = edge_open(b->n_rows * sizeof(uint32_t), 0);
    edge_buffer h = edge_open((size_t)b->n_rows * padded * 2, 0);
    edge_buffer tiles = edge_open((b->n_rows / 8 + 1) * sizeof(sy_cuda_tile), 0);

    memset(x.data, 0, x.bytes);
    batch_fill((uint16_t *)(void *)x.data, (uint32_t *)(void *)x_row.data, b, p);
    for (uint32_t i = 0; i < b->n_groups; i++) {
        packed e = packed_open(c, b->id[i]);
        const uint32_t begin[] = {b->group[i].begin, b->group[i].end};
        const uint32_t n_tiles = (uint32_t)sy_cuda_tiles_cut((sy_cuda_tile *)(void *)tiles.data,
                                                             begin, 1, SY_CUDA_TOKENS_8);
        const sy_cuda_batch direct = {.experts = &e.expert,
                                      .tiles = (sy_cuda_tile *)(void *)tiles.data,
                                      .n_tiles = &n_tiles,
                                      .tiles_max = n_tiles,
                                      .hidden = c->hidden,
                                      .ffn = c->ffn,
                                      .mlp = (sy_cuda_mlp)c->mlp,
                                      .mlp_limit = c->mlp_limit,
                                      .weights = (sy_cuda_weights)c->weights};

        sy_cuda_up((uint16_t *)(void *)h.data, (uint16_t *)(void *)x.data,
                   (uint32_t *)(void *)x_row.data, &direct, SY_CUDA_TOKENS_8, NULL);
        sy_cuda_down(y, (uint16_t *)(void *)h.data, &direct, SY_CUDA_TOKENS_8, NULL);
        packed_close(&e);
    }
    edge_close(&x);
    edge_close(&x_row);
    edge_close(&h);
    edge_close(&tiles);
}

static inline void batch_check(const place *p, uint32_t lane, const batch *b)
{
    const size_t n = (size_t)b->n_rows * p->config.hidden;
    float *want = malloc(n * sizeof(float) + 1);
    sy_backend_lane memory;

    assert_non_null(want);
    cuda->lane(&memory, p->pool, lane);
    batch_expect(want, b, p);
    for (size_t i = 0; i < n; i++) /* two NaN are no difference */
        if (!isfinite(want[i])) fail_msg("the reference is no number");
    check_bits(want, memory.y, n, "y");
    free(want);
}

#endif
