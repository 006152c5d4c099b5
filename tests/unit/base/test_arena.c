/* test_arena.c - alignment, limits and reuse of an arena. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "sy_arena.h"
#include "sy_asan.h"

static void allocations_are_aligned_and_do_not_overlap(void **state)
{
    unsigned char *given[600];
    sy_arena arena;

    (void)state;
    sy_arena_init(&arena, SIZE_MAX);
    for (size_t n = 0; n < SY_COUNT_OF(given); n++) {
        given[n] = sy_arena_alloc(&arena, n);
        assert_non_null(given[n]);
        assert_int_equal((uintptr_t)given[n] % (n >= 64 ? 64 : 16), 0);
        memset(given[n], (int)(n & 0xff), n);
    }
    for (size_t n = 0; n < SY_COUNT_OF(given); n++) {
        for (size_t i = 0; i < n; i++) assert_int_equal(given[n][i], n & 0xff);
        assert_true(n == 0 || given[n] != given[n - 1]);
    }
    sy_arena_free(&arena);
}

static void an_allocation_past_the_limit_is_refused_and_the_rest_goes_on(void **state)
{
    const size_t limit_bytes = 200000;
    sy_arena arena;
    size_t n_given = 0;

    (void)state;
    sy_arena_init(&arena, limit_bytes);
    assert_null(sy_arena_alloc(&arena, limit_bytes + 1));
    assert_null(sy_arena_alloc(&arena, SIZE_MAX));
    while (sy_arena_alloc(&arena, 1000) != NULL) n_given++;
    assert_in_range(n_given, limit_bytes / 1000 / 2, limit_bytes / 1000);
    assert_true(arena.total_bytes <= limit_bytes);
    sy_arena_reset(&arena);
    assert_non_null(sy_arena_alloc(&arena, 1000));
    sy_arena_free(&arena);
    assert_non_null(sy_arena_alloc(&arena, 1000)); /* usable again, with the same limit */
    assert_null(sy_arena_alloc(&arena, limit_bytes + 1));
    sy_arena_free(&arena);
}

static void a_small_limit_can_be_used_to_the_last_byte(void **state)
{
    sy_arena arena;

    (void)state;
    sy_arena_init(&arena, 100);
    assert_non_null(sy_arena_alloc(&arena, 100));
    assert_null(sy_arena_alloc(&arena, 1));
    sy_arena_free(&arena);
}

static void a_reset_keeps_the_memory_and_the_next_round_asks_for_no_more(void **state)
{
    sy_arena arena;

    (void)state;
    sy_arena_init(&arena, 1200000);
    assert_non_null(sy_arena_alloc(&arena, 1000));
    assert_non_null(sy_arena_alloc(&arena, 1000000)); /* a block of its own, in the middle */
    for (int i = 0; i < 10; i++) assert_non_null(sy_arena_alloc(&arena, 9000));
    sy_arena_reset(&arena);
    assert_in_range(arena.total_bytes, 1000000, SIZE_MAX);
    for (int round = 0; round < 3; round++) {
        const size_t kept_bytes = arena.total_bytes;

        assert_non_null(sy_arena_alloc(&arena, 900000));
        assert_int_equal(arena.total_bytes, kept_bytes);
        sy_arena_reset(&arena);
    }
    sy_arena_free(&arena);
    assert_int_equal(arena.total_bytes, 0);
    sy_arena_free(&arena);
    sy_arena_reset(&arena);
}

/* Rounds that each take more than the first block: from the second on, all comes from one. */
static void rounds_of_one_size_settle(void **state)
{
    sy_arena arena;
    struct sy_arena_block *settled = NULL;

    (void)state;
    sy_arena_init(&arena, SIZE_MAX);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 300; i++) assert_non_null(sy_arena_alloc(&arena, 1000));
        sy_arena_reset(&arena);
        if (round > 0) assert_ptr_equal(arena.block, settled);
        settled = arena.block;
    }
    sy_arena_free(&arena);
}

static void calloc_zeroes_recycled_memory_and_sees_overflow(void **state)
{
    sy_arena arena;
    unsigned char *p;

    (void)state;
    sy_arena_init(&arena, SIZE_MAX);
    p = sy_arena_alloc(&arena, 5000);
    memset(p, 0xff, 5000);
    sy_arena_reset(&arena);
    p = sy_arena_calloc(&arena, 100, 50);
    assert_non_null(p);
    for (size_t i = 0; i < 5000; i++) assert_int_equal(p[i], 0);
    assert_null(sy_arena_calloc(&arena, SIZE_MAX / 2, 3));
    assert_non_null(sy_arena_calloc(&arena, 0, 8));
    sy_arena_free(&arena);
}

static void strndup_copies_any_bytes(void **state)
{
    sy_arena arena;
    char *copy;

    (void)state;
    sy_arena_init(&arena, SIZE_MAX);
    copy = sy_arena_strndup(&arena, "a\0b!", 3);
    assert_memory_equal(copy, "a\0b", 4);
    copy = sy_arena_strndup(&arena, NULL, 0);
    assert_string_equal(copy, "");
    assert_null(sy_arena_strndup(&arena, "x", SIZE_MAX));
    sy_arena_free(&arena);
}

#if SY_ASAN
static void stray_accesses_are_seen_by_the_sanitizer(void **state)
{
    sy_arena arena;
    char *a;

    (void)state;
    sy_arena_init(&arena, SIZE_MAX);
    a = sy_arena_alloc(&arena, 20);
    assert_non_null(sy_arena_alloc(&arena, 20));
    assert_false(__asan_address_is_poisoned(a + 19));
    assert_true(__asan_address_is_poisoned(a + 20));
    sy_arena_reset(&arena);
    assert_true(__asan_address_is_poisoned(a));
    sy_arena_free(&arena);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_are_aligned_and_do_not_overlap),
        cmocka_unit_test(an_allocation_past_the_limit_is_refused_and_the_rest_goes_on),
        cmocka_unit_test(a_small_limit_can_be_used_to_the_last_byte),
        cmocka_unit_test(a_reset_keeps_the_memory_and_the_next_round_asks_for_no_more),
        cmocka_unit_test(rounds_of_one_size_settle),
        cmocka_unit_test(calloc_zeroes_recycled_memory_and_sees_overflow),
        cmocka_unit_test(strndup_copies_any_bytes),
#if SY_ASAN
        cmocka_unit_test(stray_accesses_are_seen_by_the_sanitizer),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
