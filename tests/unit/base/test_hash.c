/* test_hash.c - known values of the hashes, because files and peers depend on them; and the clocks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sy_clock.h"
#include "sy_hash.h"

static void fnv1a_gives_the_published_values(void **state)
{
    (void)state;
    assert_true(sy_fnv1a(SY_FNV1A_START, "", 0) == 0xcbf29ce484222325ull);
    assert_true(sy_fnv1a(SY_FNV1A_START, "a", 1) == 0xaf63dc4c8601ec8cull);
    assert_true(sy_fnv1a(SY_FNV1A_START, "foobar", 6) == 0x85944171f73967e8ull);
}

static void fnv1a_may_be_fed_in_pieces(void **state)
{
    (void)state;
    assert_true(sy_fnv1a(sy_fnv1a(SY_FNV1A_START, "foo", 3), "bar", 3) ==
                sy_fnv1a(SY_FNV1A_START, "foobar", 6));
}

static void splitmix_gives_the_same_numbers_as_the_tools_in_python(void **state)
{
    static const double want[] = {-0.25653815269470215, 0.5077086687088013, -0.36447346210479736,
                                  -0.9111205339431763};
    const uint64_t seed = sy_fnv1a(SY_FNV1A_START, "a", 1);

    (void)state;
    for (uint64_t i = 0; i < SY_COUNT_OF(want); i++) {
        const int64_t top = (int64_t)(sy_splitmix64(seed + i) >> 40);
        const double got = (double)(top - (1 << 23)) / (1 << 23);

        if (got != want[i]) fail_msg("number %d: got %.17g, want %.17g", (int)i, got, want[i]);
    }
}

static void unit_floats_reach_both_ends_but_not_one(void **state)
{
    (void)state;
    assert_true(sy_unit_float(0) == 0.0f);
    assert_true(sy_unit_float(0xffffffffffull) == 0.0f);
    assert_true(sy_unit_float(1ull << 63) == 0.5f);
    assert_true(sy_unit_float(UINT64_MAX) == 1.0f - 0x1p-24f);
}

static void the_monotonic_clock_does_not_go_back(void **state)
{
    int64_t before_us = sy_clock_us();

    (void)state;
    for (int i = 0; i < 1000; i++) {
        const int64_t now_us = sy_clock_us();

        assert_true(now_us >= before_us);
        before_us = now_us;
    }
    assert_true(sy_clock_wall_us() > INT64_C(1600000000) * 1000000); /* some day after 2020 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fnv1a_gives_the_published_values),
        cmocka_unit_test(fnv1a_may_be_fed_in_pieces),
        cmocka_unit_test(splitmix_gives_the_same_numbers_as_the_tools_in_python),
        cmocka_unit_test(unit_floats_reach_both_ends_but_not_one),
        cmocka_unit_test(the_monotonic_clock_does_not_go_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
