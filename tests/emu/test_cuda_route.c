/* The experts that a gate chose become rows and tiles: in the one order there is, whatever the
 * order of threads and the number of blocks, with nothing lost, doubled, or written too far. Then
 * the whole way of a layer on the device: gate, route, experts, combine. */
#include "effort.h"
#include "kernel_cases.h"
#include "sy_cuda_pack.h"
#include "sy_cuda_route.h"
#include "sy_route.h"

#define ERROR_MAX 5e-3 /* relative L2, as for the experts alone */

static uint32_t *u32_of(const edge_buffer *b)
{
    return (uint32_t *)(void *)b->data;
}

static edge_buffer open_u32(size_t n)
{
    return edge_open(n * sizeof(uint32_t), 0);
}

/* ---- sorting ---- */

typedef enum id_kind {
    IDS_ANY,
    IDS_ONE,   /* all of one expert */
    IDS_FEW,   /* most experts have nothing */
    IDS_WRONG, /* some that are no expert's */
    N_ID_KINDS
} id_kind;

typedef enum slot_kind {
    SLOTS_NONE,     /* NULL */
    SLOTS_SHUFFLED, /* every expert here, in slots far beyond E */
    SLOTS_SOME,     /* a third of the experts elsewhere */
    SLOTS_NOWHERE,  /* all of them */
    N_SLOT_KINDS
} slot_kind;

typedef struct route_case {
    sy_cuda_route_dims dims;
    id_kind ids;
    slot_kind slots;
    sy_cuda_variant variant;
} route_case;

/* The inputs, and what the device made of them. */
typedef struct route_run {
    edge_buffer expert, slot;
    edge_buffer x_row, pos, begin, tiles, n_tiles, n_elsewhere, scratch;
    sy_cuda_routes out;
} route_run;

static uint32_t random_id(test_random *r, id_kind kind, uint32_t n_experts)
{
    const uint32_t any = random_u32(r);

    switch (kind) {
    case IDS_ONE: return n_experts / 2;
    case IDS_FEW: return any % 3 * (n_experts / 3) % n_experts;
    case IDS_WRONG: return any % 5 == 0 ? UINT32_MAX - any % 2 : any % (n_experts + 2);
    default: return any % n_experts;
    }
}

static uint32_t slot_of(slot_kind kind, uint32_t e)
{
    if (kind == SLOTS_NONE) return e;
    if (kind == SLOTS_NOWHERE || (kind == SLOTS_SOME && e % 3 == 1)) return SY_CUDA_ELSEWHERE;
    return 100000u - 7 * e;
}

static void route_open(route_run *run, const sy_cuda_route_dims *dims, sy_cuda_variant variant)
{
    const size_t n_pairs = (size_t)dims->n_tokens * dims->k;

    run->expert = open_u32(n_pairs);
    run->slot = open_u32(dims->n_experts);
    run->x_row = open_u32(n_pairs);
    run->pos = open_u32(n_pairs);
    run->begin = open_u32(dims->n_experts + 1);
    run->tiles = edge_open(sy_cuda_route_tiles_max(dims, variant) * sizeof(sy_cuda_tile), 0);
    run->n_tiles = open_u32(1);
    run->n_elsewhere = open_u32(1);
    run->scratch = edge_open(sy_cuda_route_scratch_bytes(dims), 0);
    run->out = (sy_cuda_routes){
        .x_row = u32_of(&run->x_row),
        .pos = u32_of(&run->pos),
        .begin = u32_of(&run->begin),
        .tiles = (sy_cuda_tile *)(void *)run->tiles.data,
        .n_tiles = u32_of(&run->n_tiles),
        .n_elsewhere = u32_of(&run->n_elsewhere),
        .scratch = run->scratch.bytes == 0 ? NULL : run->scratch.data,
    };
}

static void route_close(route_run *run)
{
    edge_buffer *written[] = {&run->x_row,   &run->pos,         &run->begin,  &run->tiles,
                              &run->n_tiles, &run->n_elsewhere, &run->scratch};

    for (size_t i = 0; i < SY_COUNT_OF(written); i++) {
        edge_check(written[i]);
        edge_close(written[i]);
    }
    edge_close(&run->expert);
    edge_close(&run->slot);
}

static void expect_u32(const uint32_t *want, const uint32_t *got, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (want[i] != got[i]) fail_msg("%s[%zu]: %u, want %u", what, i, got[i], want[i]);
}

static uint32_t bin_of(const route_case *c, uint32_t expert)
{
    const uint32_t E = c->dims.n_experts;

    return expert < E && slot_of(c->slots, expert) != SY_CUDA_ELSEWHERE ? expert : E;
}

/* Written for the reader: expert after expert, what is elsewhere last, all pairs are gone through
 * in order. */
static void expect_rows(const route_case *c, const route_run *run)
{
    const uint32_t E = c->dims.n_experts, n_pairs = c->dims.n_tokens * c->dims.k;
    uint32_t *x_row = calloc(n_pairs + 1, sizeof(uint32_t));
    uint32_t *pos = calloc(n_pairs + 1, sizeof(uint32_t));
    uint32_t begin[SY_CUDA_ROUTE_EXPERTS_MAX + 1], n = 0;

    assert_non_null(x_row);
    assert_non_null(pos);
    for (uint32_t bin = 0; bin <= E; bin++) {
        begin[bin] = n;
        for (uint32_t p = 0; p < n_pairs; p++) {
            if (bin_of(c, u32_of(&run->expert)[p]) != bin) continue;
            x_row[n] = p / c->dims.k;
            pos[p] = n++;
        }
    }
    expect_u32(begin, u32_of(&run->begin), E + 1, "begin");
    expect_u32(x_row, u32_of(&run->x_row), n_pairs, "x_row");
    expect_u32(pos, u32_of(&run->pos), n_pairs, "pos");
    assert_int_equal(*u32_of(&run->n_elsewhere), n_pairs - begin[E]);
    free(x_row);
    free(pos);
}

static void expect_tiles(const route_case *c, const route_run *run)
{
    const uint32_t tiles_max = sy_cuda_route_tiles_max(&c->dims, c->variant);
    const uint32_t n_tiles = *u32_of(&run->n_tiles);
    sy_cuda_tile *want = calloc(tiles_max + 1, sizeof(*want));

    assert_non_null(want);
    assert_true(n_tiles <= tiles_max);
    assert_int_equal(n_tiles,
                     sy_cuda_tiles_cut(want, u32_of(&run->begin), c->dims.n_experts, c->variant));
    for (uint32_t i = 0; i < n_tiles; i++) {
        const sy_cuda_tile tile = run->out.tiles[i];
        const uint32_t slot = slot_of(c->slots, want[i].expert);
        if (tile.expert != slot || tile.begin != want[i].begin || tile.end != want[i].end)
            fail_msg("tile %u: slot %u, rows %u to %u; want %u, %u to %u", i, tile.expert,
                     tile.begin, tile.end, slot, want[i].begin, want[i].end);
    }
    for (size_t i = n_tiles * sizeof(*want); i < run->tiles.bytes; i++)
        if (run->tiles.data[i] != GUARD) fail_msg("byte %zu of the tiles was written", i);
    free(want);
}

static void check_route(const route_case *c)
{
    const uint32_t E = c->dims.n_experts, n_pairs = c->dims.n_tokens * c->dims.k;
    test_random r = {TEST_SEED + n_pairs + E};
    route_run run;

    route_open(&run, &c->dims, c->variant);
    for (uint32_t p = 0; p < n_pairs; p++) u32_of(&run.expert)[p] = random_id(&r, c->ids, E);
    for (uint32_t e = 0; e < E; e++) u32_of(&run.slot)[e] = slot_of(c->slots, e);
    assert_int_equal(sy_cuda_route(&run.out, u32_of(&run.expert),
                                   c->slots == SLOTS_NONE ? NULL : u32_of(&run.slot), &c->dims,
                                   c->variant, NULL),
                     0);
    expect_rows(c, &run);
    expect_tiles(c, &run);
    route_close(&run);
}

/* Every kind of ids; which slots and variant it comes with changes from size to size. */
static void check_dims(uint32_t n_tokens, uint32_t k, uint32_t n_experts)
{
    static uint32_t n_cases;

    for (int ids = 0; ids < N_ID_KINDS; ids++, n_cases++)
        check_route(&(route_case){
            .dims = {.n_tokens = n_tokens, .k = k, .n_experts = n_experts},
            .ids = (id_kind)ids,
            .slots = (slot_kind)((n_cases + n_cases / N_ID_KINDS) % N_SLOT_KINDS),
            .variant = (sy_cuda_variant)(n_cases % N_SY_CUDA_VARIANTS),
        });
}

static void small_steps_are_sorted(void **state)
{
    static const uint32_t tokens[] = {0, 1, 5, 31, 32, 33, 65, 129};
    static const uint32_t experts[] = {1, 2, 33, 512};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(tokens); i += ONLY_RACES ? 3 : 1)
        for (size_t j = 0; j < SY_COUNT_OF(experts); j++)
            check_dims(tokens[i], (i + j) % 2 == 0 ? 1 : 8, experts[j]);
}

/* Around the 8192 pairs that one block can do, and the 2048 of each of several. */
static void large_steps_are_sorted(void **state)
{
    static const uint32_t dims[][3] = {{8191, 1, 64}, {1024, 8, 512}, {2731, 3, 60},
                                       {1025, 8, 1},  {1639, 5, 256}, {320, 32, 511}};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(dims); i += ONLY_RACES ? 2 : 1)
        check_dims(dims[i][0], dims[i][1], dims[i][2]);
}

static void one_row_an_expert_takes_all_the_tiles_there_may_be(void **state)
{
    const sy_cuda_route_dims dims = {.n_tokens = 512, .k = 1, .n_experts = 512};
    const sy_cuda_route_dims single = {.n_tokens = 8, .k = 3, .n_experts = 1};
    route_run run;

    (void)state;
    route_open(&run, &dims, SY_CUDA_TOKENS_64);
    for (uint32_t p = 0; p < 512; p++) u32_of(&run.expert)[p] = p * 5 % 512;
    assert_int_equal(
        sy_cuda_route(&run.out, u32_of(&run.expert), NULL, &dims, SY_CUDA_TOKENS_64, NULL), 0);
    assert_int_equal(*run.out.n_tiles, 512);
    assert_int_equal(sy_cuda_route_tiles_max(&dims, SY_CUDA_TOKENS_64), 512);
    assert_int_equal(sy_cuda_route_tiles_max(&single, SY_CUDA_TOKENS_8), 3);
    route_close(&run);
}

/* ---- a whole layer ---- */

enum { LAYER_EXPERTS = 7, LAYER_K = 3, LAYER_HIDDEN = 72, LAYER_FFN = 40, LAYER_TOKENS = 37 };

/* Weights and rows as bf16, row-major; what the device has of them; slots in reverse order. */
typedef struct layer {
    uint16_t gate[LAYER_EXPERTS][LAYER_FFN][LAYER_HIDDEN];
    uint16_t up[LAYER_EXPERTS][LAYER_FFN][LAYER_HIDDEN];
    uint16_t down[LAYER_EXPERTS][LAYER_HIDDEN][LAYER_FFN];
    float x[LAYER_TOKENS][LAYER_HIDDEN], logits[LAYER_TOKENS][LAYER_EXPERTS];
    edge_buffer packed_up[LAYER_EXPERTS], packed_down[LAYER_EXPERTS];
    sy_cuda_expert table[LAYER_EXPERTS];
    uint32_t slot[LAYER_EXPERTS];
} layer;

static void fill_bf16(void *to, size_t n, test_random *r)
{
    for (size_t i = 0; i < n; i++) {
        const uint16_t v = sy_f32_to_bf16(random_unit(r) * 0.3f);
        memcpy((uint8_t *)to + 2 * i, &v, 2);
    }
}

static layer *layer_open(void)
{
    test_random r = {TEST_SEED};
    layer *m = calloc(1, sizeof(*m));

    assert_non_null(m);
    fill_bf16(m->gate, sizeof(m->gate) / 2, &r);
    fill_bf16(m->up, sizeof(m->up) / 2, &r);
    fill_bf16(m->down, sizeof(m->down) / 2, &r);
    for (uint32_t t = 0; t < LAYER_TOKENS; t++) {
        random_fill(m->x[t], LAYER_HIDDEN, &r, VALUES_PLAIN);
        random_fill(m->logits[t], LAYER_EXPERTS, &r, VALUES_PLAIN);
        for (uint32_t i = 0; i < LAYER_HIDDEN; i++)
            m->x[t][i] = sy_bf16_to_f32(sy_f32_to_bf16(m->x[t][i]));
    }
    for (uint32_t e = 0; e < LAYER_EXPERTS; e++) {
        m->slot[e] = LAYER_EXPERTS - 1 - e;
        m->packed_up[e] = edge_open(sy_cuda_gate_up_bytes(LAYER_FFN, LAYER_HIDDEN), 0);
        m->packed_down[e] = edge_open(sy_cuda_pack_bytes(LAYER_HIDDEN, LAYER_FFN), 0);
        sy_cuda_pack_gate_up(m->packed_up[e].data, m->gate[e], m->up[e], LAYER_FFN, LAYER_HIDDEN, 0,
                             sy_cuda_gate_up_blocks(LAYER_FFN));
        sy_cuda_pack(m->packed_down[e].data, m->down[e], LAYER_HIDDEN, LAYER_FFN, 0,
                     sy_cuda_row_blocks(LAYER_HIDDEN));
        m->table[m->slot[e]] =
            (sy_cuda_expert){.gate_up = m->packed_up[e].data, .down = m->packed_down[e].data};
    }
    return m;
}

static void layer_close(layer *m)
{
    for (uint32_t e = 0; e < LAYER_EXPERTS; e++) {
        edge_close(&m->packed_up[e]);
        edge_close(&m->packed_down[e]);
    }
    free(m);
}

/* y = Down(silu(Gate x) * Up x), all in double. */
static void expert_exactly(double y[LAYER_HIDDEN], const layer *m, uint32_t e, const float *x)
{
    double h[LAYER_FFN];

    for (uint32_t f = 0; f < LAYER_FFN; f++) {
        double g = 0, u = 0;
        for (uint32_t i = 0; i < LAYER_HIDDEN; i++) {
            g += (double)sy_bf16_to_f32(m->gate[e][f][i]) * (double)x[i];
            u += (double)sy_bf16_to_f32(m->up[e][f][i]) * (double)x[i];
        }
        h[f] = g / (1.0 + exp(-g)) * u;
    }
    for (uint32_t i = 0; i < LAYER_HIDDEN; i++) {
        y[i] = 0;
        for (uint32_t f = 0; f < LAYER_FFN; f++)
            y[i] += (double)sy_bf16_to_f32(m->down[e][i][f]) * h[f];
    }
}

static const sy_cuda_gate layer_gate = {.score = SY_CUDA_SOFTMAX,
                                        .n_experts = LAYER_EXPERTS,
                                        .k = LAYER_K,
                                        .renormalise = 1,
                                        .scale = 1.0f};

/* What the CPU's gate and exact experts make of the layer. */
static void layer_exactly(double out[LAYER_TOKENS][LAYER_HIDDEN], const layer *m)
{
    const sy_gate_desc gate = {.score = SY_GATE_SOFTMAX, .renormalise = 1, .scale = 1.0f};

    memset(out, 0, sizeof(double) * LAYER_TOKENS * LAYER_HIDDEN);
    for (uint32_t t = 0; t < LAYER_TOKENS; t++) {
        float scores[LAYER_EXPERTS], weight[LAYER_K];
        uint16_t expert[LAYER_K];

        memcpy(scores, m->logits[t], sizeof(scores));
        sy_route_select(expert, weight, scores, NULL, LAYER_EXPERTS, LAYER_K, 1, &gate,
                        sy_kernels_at(0));
        for (uint32_t j = 0; j < LAYER_K; j++) {
            double y[LAYER_HIDDEN];
            expert_exactly(y, m, expert[j], m->x[t]);
            for (uint32_t i = 0; i < LAYER_HIDDEN; i++) out[t][i] += (double)weight[j] * y[i];
        }
    }
}

/* The rows of y that no tile is for, as another device would send them. */
static void fill_elsewhere(float *y, const route_run *run, const layer *m)
{
    const uint32_t n_here = u32_of(&run->begin)[LAYER_EXPERTS];

    for (uint32_t p = 0; p < LAYER_TOKENS * LAYER_K; p++) {
        const uint32_t row = u32_of(&run->pos)[p];
        double exact[LAYER_HIDDEN];

        if (row < n_here) continue;
        expert_exactly(exact, m, u32_of(&run->expert)[p], m->x[p / LAYER_K]);
        for (uint32_t i = 0; i < LAYER_HIDDEN; i++)
            y[(size_t)row * LAYER_HIDDEN + i] = (float)exact[i];
    }
}

static void expect_close(const double want[LAYER_TOKENS][LAYER_HIDDEN], const float *got)
{
    for (uint32_t t = 0; t < LAYER_TOKENS; t++) {
        double error = 0, size = 0;
        for (uint32_t i = 0; i < LAYER_HIDDEN; i++) {
            const double d = (double)got[(size_t)t * LAYER_HIDDEN + i] - want[t][i];
            error += d * d;
            size += want[t][i] * want[t][i];
        }
        if (!(sqrt(error) <= ERROR_MAX * sqrt(size)))
            fail_msg("token %u: off by %g of %g", t, sqrt(error), sqrt(size));
    }
}

/* Nothing goes back to the host between the first call and the last but what is elsewhere. */
static void run_layer(const layer *m, const uint32_t *slot, sy_cuda_variant variant,
                      const double want[LAYER_TOKENS][LAYER_HIDDEN])
{
    const sy_cuda_route_dims dims = {LAYER_TOKENS, LAYER_K, LAYER_EXPERTS};
    const size_t n_rows = LAYER_TOKENS * LAYER_K, hidden = LAYER_HIDDEN;
    edge_buffer x = edge_open((size_t)LAYER_TOKENS * sy_cuda_padded(LAYER_HIDDEN) * 2, 0);
    edge_buffer h = edge_open(n_rows * sy_cuda_padded(LAYER_FFN) * 2, 0);
    edge_buffer y = edge_open(n_rows * hidden * sizeof(float), 0);
    edge_buffer weight = edge_open(n_rows * sizeof(float), 0);
    edge_buffer out = edge_open(LAYER_TOKENS * hidden * sizeof(float), 0);
    uint16_t *x16 = (uint16_t *)(void *)x.data, *h16 = (uint16_t *)(void *)h.data;
    route_run run;

    route_open(&run, &dims, variant);
    const sy_cuda_batch batch = {.experts = m->table,
                                 .tiles = run.out.tiles,
                                 .n_tiles = run.out.n_tiles,
                                 .tiles_max = sy_cuda_route_tiles_max(&dims, variant),
                                 .hidden = LAYER_HIDDEN,
                                 .ffn = LAYER_FFN};
    int error =
        sy_cuda_rows_from_f32(x16, &m->x[0][0], LAYER_HIDDEN, LAYER_TOKENS, LAYER_HIDDEN, NULL);
    error |= sy_cuda_gate_topk(u32_of(&run.expert), edge_floats(&weight), &m->logits[0][0], NULL,
                               NULL, LAYER_TOKENS, &layer_gate, NULL);
    error |= sy_cuda_route(&run.out, u32_of(&run.expert), slot, &dims, variant, NULL);
    error |= sy_cuda_up(h16, x16, run.out.x_row, &batch, variant, NULL);
    error |= sy_cuda_down(edge_floats(&y), h16, &batch, variant, NULL);
    fill_elsewhere(edge_floats(&y), &run, m);
    error |= sy_cuda_combine(edge_floats(&out), edge_floats(&y), run.out.pos, edge_floats(&weight),
                             LAYER_TOKENS, LAYER_K, LAYER_HIDDEN, NULL);
    assert_int_equal(error, 0);
    expect_close(want, edge_floats(&out));
    route_close(&run);
    edge_buffer *all[] = {&x, &h, &y, &weight, &out};
    for (size_t i = 0; i < SY_COUNT_OF(all); i++) {
        edge_check(all[i]);
        edge_close(all[i]);
    }
}

static void a_layer_runs_without_the_host(void **state)
{
    static double want[LAYER_TOKENS][LAYER_HIDDEN];
    layer *m = layer_open();

    (void)state;
    layer_exactly(want, m);
    for (int variant = 0; variant < N_SY_CUDA_VARIANTS; variant++)
        run_layer(m, m->slot, (sy_cuda_variant)variant, want);
    m->slot[0] = m->slot[4] = SY_CUDA_ELSEWHERE;
    run_layer(m, m->slot, SY_CUDA_TOKENS_16, want);
    layer_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_steps_are_sorted),
        cmocka_unit_test(large_steps_are_sorted),
        cmocka_unit_test(one_row_an_expert_takes_all_the_tiles_there_may_be),
        cmocka_unit_test(a_layer_runs_without_the_host),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
