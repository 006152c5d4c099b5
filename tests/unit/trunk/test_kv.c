/* test_kv.c - pages of the KV cache: handed out, given back, never shared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sy_hash.h"
#include "sy_trunk_internal.h"

static const sy_trunk trunk = {.ops = &trunk_cpu_ops,
                               .desc = {.n_layers = 3, .n_kv_heads = 2, .head_dim = 8},
                               .shape = {.n_heads = 2, .key_dim = 8, .value_dim = 8}};

static sy_kv *open_kv(uint32_t pages)
{
    sy_kv *kv;
    sy_error err = {0};

    if (sy_kv_open(&kv, &trunk, pages, &err) != SY_OK) fail_msg("%s", err.message);
    return kv;
}

static void a_sequence_gets_a_page_for_every_sixteen_tokens(void **state)
{
    static const struct {
        uint32_t tokens, pages;
    } cases[] = {{0, 0}, {1, 1}, {15, 1}, {16, 1}, {17, 2}, {32, 2}, {33, 3}, {160, 10}};
    sy_kv *kv = open_kv(10);

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        sy_kv_seq seq = {0};
        assert_int_equal(sy_kv_reserve(kv, &seq, cases[i].tokens), SY_OK);
        assert_int_equal(seq.n_pages, cases[i].pages);
        assert_int_equal(sy_kv_free_pages(kv), 10 - cases[i].pages);
        sy_kv_release(kv, &seq);
        assert_int_equal(sy_kv_free_pages(kv), 10);
    }
    sy_kv_close(kv);
}

static void past_the_last_page_a_sequence_keeps_what_it_has(void **state)
{
    sy_kv *kv = open_kv(4);
    sy_kv_seq a = {0}, b = {0};

    (void)state;
    assert_int_equal(sy_kv_reserve(kv, &a, 40), SY_OK); /* 3 pages */
    assert_int_equal(sy_kv_reserve(kv, &b, 17), SY_ELIMIT);
    assert_int_equal(b.n_pages, 0);
    assert_int_equal(sy_kv_reserve(kv, &b, 16), SY_OK);
    assert_int_equal(sy_kv_reserve(kv, &a, 49), SY_ELIMIT);
    assert_int_equal(a.n_pages, 3);
    assert_int_equal(sy_kv_reserve(kv, &a, 20), SY_OK); /* has them already */
    sy_kv_release(kv, &b);
    assert_int_equal(sy_kv_reserve(kv, &a, 49), SY_OK);
    sy_kv_release(kv, &a);
    sy_kv_close(kv);
}

static void no_page_belongs_to_two_sequences(void **state)
{
    enum { PAGES = 64, SEQS = 9 };
    sy_kv *kv = open_kv(PAGES);
    sy_kv_seq seq[SEQS];
    uint32_t held[SEQS] = {0};

    (void)state;
    memset(seq, 0, sizeof(seq));
    for (uint64_t step = 0; step < 5000; step++) {
        const uint64_t r = sy_splitmix64(step);
        const uint32_t s = (uint32_t)(r % SEQS);
        uint8_t used[PAGES] = {0};
        if (r >> 60 < 5) {
            sy_kv_release(kv, &seq[s]);
            held[s] = 0;
        } else if (sy_kv_reserve(kv, &seq[s], held[s] + (uint32_t)(r >> 32) % 60) == SY_OK) {
            held[s] = SY_MAX(held[s], seq[s].n_pages * SY_KV_PAGE);
        }
        uint32_t total = 0;
        for (uint32_t i = 0; i < SEQS; i++)
            for (uint32_t p = 0; p < seq[i].n_pages; p++, total++) {
                assert_true(seq[i].page[p] < PAGES);
                assert_int_equal(used[seq[i].page[p]]++, 0);
            }
        assert_int_equal(total + sy_kv_free_pages(kv), PAGES);
    }
    for (uint32_t i = 0; i < SEQS; i++) sy_kv_release(kv, &seq[i]);
    sy_kv_close(kv);
}

static void a_cache_of_no_pages_is_an_error(void **state)
{
    sy_kv *kv;
    sy_error err = {0};

    (void)state;
    assert_int_equal(sy_kv_open(&kv, &trunk, 0, &err), SY_EINVAL);
    assert_null(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_gets_a_page_for_every_sixteen_tokens),
        cmocka_unit_test(past_the_last_page_a_sequence_keeps_what_it_has),
        cmocka_unit_test(no_page_belongs_to_two_sequences),
        cmocka_unit_test(a_cache_of_no_pages_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
