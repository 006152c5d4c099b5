/* Slots of experts on emulated GPUs: what was written comes back, equal weights have equal hashes,
 * and what makes no sense or finds no room is refused in words. */
#include "plugin_fixture.h"

#include <pthread.h>

#include "sy_cuda_hash.h"

static void rows_come_back_as_they_went(void **state)
{
    static const struct {
        uint32_t hidden, ffn;
        int has_bias;
    } forms[] = {{64, 64, 0}, {96, 32, 1}, {70, 50, 1}, {1, 1, 1}, {17, 129, 0}, {288, 65, 1}};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(forms); i++)
        for (uint32_t weights = SY_BACKEND_BF16; weights <= SY_BACKEND_MXFP4; weights++) {
            const sy_backend_pool_config c =
                config_of(forms[i].hidden, forms[i].ffn, weights, forms[i].has_bias);
            place p;

            if (weights % 3 == i % 3) continue; /* most of them */
            p = place_open(0, &c);
            assert_int_equal(p.info.n_slots, c.slots_max);
            put(&p, 0, 1);
            ok(expert_write(&p, 5, 2, 32, why));
            ok(expert_write(&p, 1, 3, 48, why));
            ok(expert_write(&p, 0, 4, 16, why)); /* last: it must not reach into its neighbour */
            check_slot(&p, 0, 4);
            check_slot(&p, 1, 3);
            check_slot(&p, 5, 2);
            place_close(&p);
        }
}

static void a_few_rows_are_read_or_replaced(void **state)
{
    const sy_backend_pool_config c = config_of(70, 50, SY_BACKEND_BF16, 1);
    place p = place_open(0, &c);
    uint8_t *other = part_make(&c, 9, SY_BACKEND_DOWN), *mine = part_make(&c, 1, SY_BACKEND_DOWN);
    const size_t row = part_row_bytes(&c, SY_BACKEND_DOWN);
    uint8_t got[70 * 100];

    (void)state;
    put(&p, 2, 1);
    ok(cuda->slot_write(p.pool, 2, SY_BACKEND_DOWN, 64, 6, other + 64 * row, why));
    ok(cuda->slot_write(p.pool, 2, SY_BACKEND_DOWN, 16, 32, other + 16 * row, why));
    memcpy(mine + 16 * row, other + 16 * row, 32 * row);
    memcpy(mine + 64 * row, other + 64 * row, 6 * row);
    ok(cuda->slot_read(got, p.pool, 2, SY_BACKEND_DOWN, 0, 70, why));
    assert_memory_equal(got, mine, 70 * row);
    memset(got, 0, sizeof(got));
    ok(cuda->slot_read(got, p.pool, 2, SY_BACKEND_DOWN, 48, 22, why));
    assert_memory_equal(got, mine + 48 * row, 22 * row);
    free(other);
    free(mine);
    place_close(&p);
}

/* Rows of which sixteen are more than a megabyte, and a part of more than one piece. */
static void large_rows_go_in_pieces(void **state)
{
    static const struct {
        uint32_t hidden, ffn;
    } forms[] = {{32832, 16}, {1024, 544}};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(forms); i++) {
        sy_backend_pool_config c = config_of(forms[i].hidden, forms[i].ffn, SY_BACKEND_BF16, 0);
        uint8_t *rows = part_make(&c, 1, SY_BACKEND_UP);
        place p;

        c.rows_max = c.slots_max = c.lanes = 1;
        p = place_open(1, &c);
        ok(cuda->slot_write(p.pool, 0, SY_BACKEND_UP, 0, c.ffn, rows, why));
        check_part(&p, 0, 1, SY_BACKEND_UP);
        place_close(&p);
        free(rows);
    }
}

static void equal_weights_have_equal_hashes_wherever_they_are(void **state)
{
    (void)state;
    for (uint32_t weights = SY_BACKEND_BF16; weights <= SY_BACKEND_MXFP4; weights++) {
        sy_backend_pool_config c = config_of(70, 150, weights, 1);
        place a = place_open(0, &c), b;
        uint64_t hash;

        c.slots_max = 3;
        b = place_open(1, &c);
        put(&a, 0, 1);
        hash = hash_of(&a, 0);
        put(&a, 5, 2);
        assert_true(hash_of(&a, 5) != hash);
        ok(expert_write(&a, 5, 1, 16, why));
        assert_true(hash_of(&a, 5) == hash);
        put(&b, 2, 1);
        assert_true(hash_of(&b, 2) == hash);
        place_close(&a);
        place_close(&b);
    }
}

static void one_weight_changes_the_hash(void **state)
{
    const sy_backend_pool_config c = config_of(70, 50, SY_BACKEND_BF16, 1);
    place p = place_open(0, &c);
    uint64_t before;

    (void)state;
    put(&p, 0, 1);
    before = hash_of(&p, 0);
    for (uint32_t part = 0; part < n_parts(&c); part++) {
        uint8_t *rows = part_make(&c, 1, part);
        const uint32_t n = part_rows(&c, part);

        rows[n * part_row_bytes(&c, part) - 1] ^= 1;
        ok(cuda->slot_write(p.pool, 0, part, 0, n, rows, why));
        assert_true(hash_of(&p, 0) != before);
        rows[n * part_row_bytes(&c, part) - 1] ^= 1;
        ok(cuda->slot_write(p.pool, 0, part, 0, n, rows, why));
        assert_true(hash_of(&p, 0) == before);
        free(rows);
    }
    place_close(&p);
}

/* ---- FP8, whose factors rows have together ---- */

static uint8_t *factors_at(const sy_backend_pool_config *c, uint8_t *rows, uint32_t part,
                           uint32_t row)
{
    const uint32_t k = part == SY_BACKEND_DOWN ? c->ffn : c->hidden;

    return rows + row * part_row_bytes(c, part) + k;
}

static void one_factor_changes_the_hash(void **state)
{
    const sy_backend_pool_config c = config_of(140, 150, SY_BACKEND_FP8, 0);
    place p = place_open(0, &c);
    uint64_t before;

    (void)state;
    put(&p, 0, 1);
    before = hash_of(&p, 0);
    for (uint32_t part = 0; part < 3; part++) {
        uint8_t *rows = part_make(&c, 1, part);
        const uint32_t n = part_rows(&c, part);

        for (uint32_t row = 128; row < n; row++) factors_at(&c, rows, part, row)[7] ^= 1;
        ok(cuda->slot_write(p.pool, 0, part, 0, n, rows, why));
        assert_true(hash_of(&p, 0) != before);
        for (uint32_t row = 128; row < n; row++) factors_at(&c, rows, part, row)[7] ^= 1;
        ok(cuda->slot_write(p.pool, 0, part, 0, n, rows, why));
        assert_true(hash_of(&p, 0) == before);
        free(rows);
    }
    place_close(&p);
}

/* A view whose blocks of 128 rows begin elsewhere: in one call, and from one to the next. */
static void rows_of_a_block_with_other_factors_are_refused(void **state)
{
    const sy_backend_pool_config c = config_of(140, 300, SY_BACKEND_FP8, 0);
    const size_t row_bytes = part_row_bytes(&c, SY_BACKEND_UP);
    uint8_t *rows = part_make(&c, 1, SY_BACKEND_UP);
    place p = place_open(0, &c);
    uint64_t before;

    (void)state;
    put(&p, 3, 1);
    before = hash_of(&p, 3);
    factors_at(&c, rows, SY_BACKEND_UP, 200)[6] ^= 1;
    refused(cuda->slot_write(p.pool, 3, SY_BACKEND_UP, 0, 300, rows, why), SY_BACKEND_EINVAL,
            "row 200 of part 1 has other factors than row 128");
    assert_true(hash_of(&p, 3) == before); /* and none of the rows before it went in */
    refused(cuda->slot_write(p.pool, 3, SY_BACKEND_UP, 144, 16, rows + 144 * row_bytes, why),
            SY_BACKEND_EINVAL, "from row 128 on, go in first");
    ok(cuda->slot_write(p.pool, 3, SY_BACKEND_UP, 0, 192, rows, why));
    refused(cuda->slot_write(p.pool, 3, SY_BACKEND_UP, 192, 16, rows + 192 * row_bytes, why),
            SY_BACKEND_EINVAL, "row 200 of part 1");
    factors_at(&c, rows, SY_BACKEND_UP, 200)[6] ^= 1;
    ok(cuda->slot_write(p.pool, 3, SY_BACKEND_UP, 128, 64, rows + 128 * row_bytes, why));
    ok(cuda->slot_write(p.pool, 3, SY_BACKEND_GATE, 0, 16, rows, why)); /* another part */
    ok(cuda->slot_write(p.pool, 4, SY_BACKEND_UP, 0, 16, rows, why));   /* another slot */
    ok(cuda->slot_write(p.pool, 3, SY_BACKEND_UP, 192, 108, rows + 192 * row_bytes, why));
    check_part(&p, 3, 1, SY_BACKEND_UP);
    free(rows);
    place_close(&p);
}

/* What a slot has got by a copy is not known on the host. */
static void the_middle_of_a_block_is_written_after_its_beginning(void **state)
{
    const sy_backend_pool_config c = config_of(140, 300, SY_BACKEND_FP8, 0);
    const size_t row_bytes = part_row_bytes(&c, SY_BACKEND_UP);
    uint8_t *rows = part_make(&c, 1, SY_BACKEND_UP);
    place p = place_open(0, &c);

    (void)state;
    put(&p, 0, 1);
    refused(cuda->slot_write(p.pool, 1, SY_BACKEND_UP, 16, 16, rows + 16 * row_bytes, why),
            SY_BACKEND_EINVAL, "row 16 of part 1: those before it, from row 0 on, go in first");
    ok(cuda->slot_write(p.pool, 1, SY_BACKEND_UP, 0, 16, rows, why));
    refused(cuda->slot_write(p.pool, 1, SY_BACKEND_UP, 144, 16, rows + 144 * row_bytes, why),
            SY_BACKEND_EINVAL, "from row 128 on, go in first");
    ok(cuda->slot_write(p.pool, 1, SY_BACKEND_UP, 0, 16, rows, why));
    ok(cuda->slot_copy(p.pool, 1, p.pool, 0, 0, p.info.slot_bytes, why));
    refused(cuda->slot_write(p.pool, 1, SY_BACKEND_UP, 16, 16, rows + 16 * row_bytes, why),
            SY_BACKEND_EINVAL, "go in first");
    check_slot(&p, 1, 1);
    free(rows);
    place_close(&p);
}

/* ---- several threads ---- */

typedef struct loader {
    const place *p;
    uint32_t slot;
    int result;
    char why[SY_BACKEND_WHY_BYTES];
} loader;

static void *load(void *argument)
{
    loader *l = argument;

    for (uint32_t round = 0; round < 3 && l->result == SY_BACKEND_OK; round++)
        l->result = expert_write(l->p, l->slot, 10 * round + l->slot, 16, l->why);
    return NULL;
}

static void slots_are_written_by_several_threads(void **state)
{
    (void)state;
    for (uint32_t weights = SY_BACKEND_BF16; weights <= SY_BACKEND_FP8; weights += SY_BACKEND_FP8) {
        const sy_backend_pool_config c = config_of(96, 150, weights, 1);
        place p = place_open(0, &c);
        pthread_t thread[6];
        loader l[6] = {{0}};

        for (uint32_t i = 0; i < 6; i++) {
            l[i].p = &p;
            l[i].slot = i;
            assert_int_equal(pthread_create(&thread[i], NULL, load, &l[i]), 0);
        }
        for (uint32_t i = 0; i < 6; i++) {
            pthread_join(thread[i], NULL);
            if (l[i].result != SY_BACKEND_OK) fail_msg("slot %u: %s", i, l[i].why);
        }
        for (uint32_t i = 0; i < 6; i++) check_slot(&p, i, 20 + i);
        place_close(&p);
    }
}

/* ---- refusals ---- */

static void what_is_no_place_for_rows_is_refused(void **state)
{
    const sy_backend_pool_config c = config_of(70, 50, SY_BACKEND_BF16, 0);
    static const struct {
        uint32_t slot, part, row, n_rows;
        const char *text;
    } wrong[] = {{6, 0, 0, 16, "slot 6 of a pool of 6"},
                 {UINT32_MAX, 0, 0, 16, "of a pool of 6"},
                 {0, 3, 0, 16, "no part 3"},
                 {0, UINT32_MAX, 0, 16, "no part"},
                 {0, 0, 0, 51, "part 0 has 50"},
                 {0, 0, 64, 0, "part 0 has 50"},
                 {0, 2, 64, 7, "part 2 has 70"},
                 {0, 2, 16, UINT32_MAX, "part 2 has 70"},
                 {0, 2, 8, 16, "whole blocks of 16"},
                 {0, 2, 16, 17, "whole blocks of 16"}};
    place p = place_open(0, &c);
    uint8_t rows[1] = {7};
    uint64_t hash;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(wrong); i++) {
        refused(cuda->slot_write(p.pool, wrong[i].slot, wrong[i].part, wrong[i].row,
                                 wrong[i].n_rows, rows, why),
                SY_BACKEND_EINVAL, wrong[i].text);
        refused(cuda->slot_read(rows, p.pool, wrong[i].slot, wrong[i].part, wrong[i].row,
                                wrong[i].n_rows, why),
                SY_BACKEND_EINVAL, wrong[i].text);
    }
    refused(cuda->slot_hash(&hash, p.pool, 6, why), SY_BACKEND_EINVAL, "slot 6");
    refused(cuda->slot_flush(p.pool, 6, why), SY_BACKEND_EINVAL, "slot 6");
    ok(cuda->slot_write(p.pool, 0, SY_BACKEND_GATE, 16, 0, rows, why));
    assert_int_equal(rows[0], 7);
    place_close(&p);
}

static void no_pool_of(const sy_backend_pool_config *c, int result, const char *text)
{
    sy_backend_handle *handle;
    sy_backend_pool *pool = (sy_backend_pool *)(void *)why;

    ok(cuda->open(&handle, 0, why));
    refused(cuda->pool_open(&pool, handle, c, why), result, text);
    assert_null(pool);
    cuda->close(handle);
}

static void what_no_pool_can_be_is_refused(void **state)
{
    const sy_backend_pool_config good = config_of(70, 50, SY_BACKEND_BF16, 1);
    sy_backend_pool_config c;

    (void)state;
#define NO_POOL(field, value, text)                \
    do {                                           \
        c = good;                                  \
        c.field = (value);                         \
        no_pool_of(&c, SY_BACKEND_EINVAL, (text)); \
    } while (0)
    NO_POOL(hidden, 0, "experts of 0 by 50");
    NO_POOL(ffn, UINT32_MAX, "experts of 70 by 4294967295");
    NO_POOL(weights, 5, "weights of kind 5");
    NO_POOL(mlp, 2, "an mlp of kind 2");
    NO_POOL(mlp_limit, -1, "the limit -1");
    NO_POOL(mlp_limit, NAN, "the limit");
    NO_POOL(rows_max, 0, "batches of 0 rows");
    NO_POOL(rows_max, UINT32_MAX, "batches of 4294967295 rows");
    NO_POOL(lanes, 0, "0 lanes");
    NO_POOL(lanes, 9, "9 lanes: there are 1 to 8");
    NO_POOL(slots_max, 0, "without slots");
#undef NO_POOL
    cuda->pool_close(NULL);
    cuda->remote_close(NULL);
}

/* ---- room ---- */

static void a_pool_takes_what_it_may_take(void **state)
{
    sy_backend_pool_config c = config_of(512, 512, SY_BACKEND_BF16, 0);
    place p;

    (void)state;
    c.slots_max = 1000;
    c.memory_bytes = 5 * (3u * 512 * 512 * 2) + 1000;
    p = place_open(0, &c);
    assert_true(p.info.slot_bytes == 3u * 512 * 512 * 2);
    assert_int_equal(p.info.n_slots, 5);
    assert_int_equal(p.info.n_lanes, 2);
    assert_int_equal(p.info.x_stride, 512);
    assert_string_equal(p.info.arithmetic, "bf16-mma/1:sm_90");
    place_close(&p);

    c.memory_bytes = 0; /* nine tenths of what is free */
    p = place_open(0, &c);
    assert_in_range(p.info.n_slots * p.info.slot_bytes, (uint64_t)200 << 20, (uint64_t)232 << 20);
    put(&p, p.info.n_slots - 1, 1);
    check_slot(&p, p.info.n_slots - 1, 1);
    place_close(&p);

    c.memory_bytes = 3u * 512 * 512 * 2 - 1;
    no_pool_of(&c, SY_BACKEND_ENOMEM, "not one expert has room: it takes 1.6 MB");
}

static void what_does_not_fit_says_how_much_it_is(void **state)
{
    sy_backend_pool_config c = config_of(4096, 4096, SY_BACKEND_BF16, 0);

    (void)state;
    c.rows_max = 16384; /* x and h 134 MB each, y twice as much */
    no_pool_of(&c, SY_BACKEND_ENOMEM, "a lane: 537");
    c.rows_max = 1;
    c.hidden = c.ffn = 16384;
    no_pool_of(&c, SY_BACKEND_ENOMEM, "not one expert has room: it takes 1610");
    emu_cudart_fail("cudaHostAlloc", 1, cudaErrorMemoryAllocation);
    no_pool_of(&c, SY_BACKEND_ENOMEM, "the host gives no");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        PLUGIN_TEST(rows_come_back_as_they_went),
        PLUGIN_TEST(a_few_rows_are_read_or_replaced),
        PLUGIN_TEST(large_rows_go_in_pieces),
        PLUGIN_TEST(equal_weights_have_equal_hashes_wherever_they_are),
        PLUGIN_TEST(one_weight_changes_the_hash),
        PLUGIN_TEST(one_factor_changes_the_hash),
        PLUGIN_TEST(rows_of_a_block_with_other_factors_are_refused),
        PLUGIN_TEST(the_middle_of_a_block_is_written_after_its_beginning),
        PLUGIN_TEST(slots_are_written_by_several_threads),
        PLUGIN_TEST(what_is_no_place_for_rows_is_refused),
        PLUGIN_TEST(what_no_pool_can_be_is_refused),
        PLUGIN_TEST(a_pool_takes_what_it_may_take),
        PLUGIN_TEST(what_does_not_fit_says_how_much_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
