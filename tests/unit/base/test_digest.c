/* test_digest.c - XXH3 64 as published, whole and in pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sy_digest.h"
#include "sy_hash.h"

/* The empty input's value is in xxHash's own tests (seed 0). */
static void the_values_are_those_of_xxh3_64(void **state)
{
    (void)state;
    assert_int_equal(sy_digest(NULL, 0), 0x2d06800538d394c2ull);
    assert_int_equal(sy_digest("", 0), 0x2d06800538d394c2ull);
}

static void pieces_give_the_value_of_the_whole(void **state)
{
    enum { N = 5000 };
    uint8_t *bytes = malloc(N);

    (void)state;
    assert_non_null(bytes);
    for (size_t i = 0; i < N; i++) bytes[i] = (uint8_t)sy_splitmix64(i);
    for (uint64_t round = 0; round < 50; round++) {
        const size_t n = (size_t)(sy_splitmix64(1000 + round) % (N + 1));
        sy_digest_state *s = sy_digest_open();

        assert_non_null(s);
        for (size_t at = 0, i = 0; at < n; i++) {
            const size_t piece =
                SY_MIN(n - at, (size_t)(sy_splitmix64(round * 9999 + i) % (round * 20 + 2)));
            sy_digest_add(s, bytes + at, piece);
            at += piece;
            assert_int_equal(sy_digest_value(s), sy_digest(bytes, at)); /* of what came so far */
        }
        assert_int_equal(sy_digest_value(s), sy_digest(bytes, n));
        sy_digest_free(s);
    }
    free(bytes);
}

static void nothing_is_a_piece_too(void **state)
{
    sy_digest_state *s = sy_digest_open();

    (void)state;
    assert_non_null(s);
    sy_digest_add(s, NULL, 0);
    assert_int_equal(sy_digest_value(s), sy_digest("", 0));
    sy_digest_add(s, "abc", 3);
    sy_digest_add(s, NULL, 0);
    assert_int_equal(sy_digest_value(s), sy_digest("abc", 3));
    sy_digest_free(s);
    sy_digest_free(NULL);
}

static void one_bit_changes_the_value(void **state)
{
    uint8_t bytes[257] = {0};
    const uint64_t before = sy_digest(bytes, sizeof(bytes));

    (void)state;
    for (size_t bit = 0; bit < sizeof(bytes) * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(sy_digest(bytes, sizeof(bytes)) != before);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_true(sy_digest(bytes, sizeof(bytes) - 1) != before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_values_are_those_of_xxh3_64),
        cmocka_unit_test(pieces_give_the_value_of_the_whole),
        cmocka_unit_test(nothing_is_a_piece_too),
        cmocka_unit_test(one_bit_changes_the_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
