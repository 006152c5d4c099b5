/* The hash of device memory is the hash of the same host memory, and notices what can go wrong with
 * a copy: a bit, words that changed places, words that are missing. */
#include "kernel_cases.h"
#include "sy_cuda_hash.h"

/* Words: less than a warp, a block's share (1024 words) and its neighbours, and more than the most
 * blocks (1024 of them) take at once. */
static const size_t sizes[] = {0,    1,    2,    7,    31,   32,   33,    255,    256,     257,
                               1023, 1024, 1025, 2047, 4096, 4097, 10000, 262144, 1050000, 2100001};

static edge_buffer open_words(size_t n, test_random *r)
{
    edge_buffer b = edge_open(n * sizeof(uint64_t), 0);

    for (size_t i = 0; i < b.bytes; i++) b.data[i] = (uint8_t)random_u32(r);
    return b;
}

static uint64_t hash_on_device(const void *data, uint64_t bytes, uint64_t garbage)
{
    edge_buffer out = edge_open(sizeof(uint64_t), 0);
    uint64_t hash;

    memcpy(out.data, &garbage, sizeof(garbage));
    assert_int_equal(sy_cuda_hash((uint64_t *)(void *)out.data, data, bytes, NULL), 0);
    memcpy(&hash, out.data, sizeof(hash));
    edge_check(&out);
    edge_close(&out);
    return hash;
}

static void expect_host_hash(size_t n_words)
{
    test_random r = {TEST_SEED + n_words};
    edge_buffer data = open_words(n_words, &r);
    const uint64_t want = sy_cuda_hash_host(data.data, data.bytes);
    const uint64_t got = hash_on_device(data.data, data.bytes, UINT64_MAX - n_words);

    if (got != want)
        fail_msg("%zu words: %016llx, want %016llx", n_words, (unsigned long long)got,
                 (unsigned long long)want);
    edge_close(&data);
}

static void device_and_host_agree(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(sizes); i++) expect_host_hash(sizes[i]);
}

/* Held against numbers from another program: both implementations could be wrong alike. */
static void the_hash_is_the_published_one(void **state)
{
    static const uint64_t words[] = {0, 1, UINT64_MAX, 0x0123456789abcdef};
    static const uint64_t want[] = {0, 0xe220a8397b1dcdaf, 0xa10c35dae0acba16, 0x303fb91af45fd992,
                                    0x4acfa69bb9f500f2};

    (void)state;
    for (size_t n = 0; n < SY_COUNT_OF(want); n++)
        assert_int_equal(sy_cuda_hash_host(words, n * sizeof(words[0])), want[n]);
}

static void no_bit_may_flip(void **state)
{
    enum { N_WORDS = 1057 };
    test_random r = {TEST_SEED};
    edge_buffer data = open_words(N_WORDS, &r);
    const uint64_t before = hash_on_device(data.data, data.bytes, 0);

    (void)state;
    /* Every bit on the host, which the device agrees with; there, one of each word's in turn. */
    for (size_t bit = 0; bit < data.bytes * 8; bit++) {
        data.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (sy_cuda_hash_host(data.data, data.bytes) == before)
            fail_msg("bit %zu of %zu can flip", bit, data.bytes * 8);
        if (bit % 1601 == 0 && hash_on_device(data.data, data.bytes, before) == before)
            fail_msg("bit %zu of %zu can flip on the device", bit, data.bytes * 8);
        data.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(hash_on_device(data.data, data.bytes, before), before);
    edge_close(&data);
}

static void words_may_not_change_places(void **state)
{
    enum { N_WORDS = 3000 };
    static const size_t pairs[][2] = {{0, 1}, {0, 32}, {3, 259}, {0, 1024}, {5, 2053}, {0, 2999}};
    test_random r = {TEST_SEED};
    edge_buffer data = open_words(N_WORDS, &r);
    uint64_t *word = (uint64_t *)(void *)data.data;
    const uint64_t before = hash_on_device(data.data, data.bytes, 0);

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(pairs); i++) {
        uint64_t *a = word + pairs[i][0], *b = word + pairs[i][1];
        for (int back = 0; back < 2; back++) {
            const uint64_t kept = *a;
            *a = *b;
            *b = kept;
            if ((hash_on_device(data.data, data.bytes, 1) == before) != back)
                fail_msg("words %zu and %zu, exchanged %d times", pairs[i][0], pairs[i][1],
                         back + 1);
        }
    }
    edge_close(&data);
}

static void zeros_count_by_their_number(void **state)
{
    enum { N_WORDS = 64 };
    static const uint64_t zeros[N_WORDS];
    uint64_t before = 0;

    (void)state;
    for (uint64_t n = 1; n <= N_WORDS; n++) {
        const uint64_t hash = hash_on_device(zeros, n * sizeof(zeros[0]), 0);
        if (hash == before) fail_msg("%d zeros and one more: the same hash", (int)n - 1);
        before = hash;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_and_host_agree),
        cmocka_unit_test(the_hash_is_the_published_one),
        cmocka_unit_test(no_bit_may_flip),
        cmocka_unit_test(words_may_not_change_places),
        cmocka_unit_test(zeros_count_by_their_number),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
