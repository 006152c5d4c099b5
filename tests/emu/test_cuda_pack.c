/* Weights in a GPU's order: every element lies where the header says, padding is zero, and
 * unpacking gives the checkpoint's bytes back. */
#include "kernel_cases.h"
#include "sy_cuda_pack.h"

static const uint32_t sizes[] = {1, 7, 8, 15, 16, 17, 63, 64, 65, 130};

/* The header's formula, from the element's side. */
static size_t offset_of(uint32_t row, uint32_t k, uint32_t n_k)
{
    const uint32_t blocks = (n_k + 63) / 64, in = k % 64;
    const uint32_t g = row % 8, high = row / 8 % 2;
    const uint32_t t = in / 16, s = in % 16 / 4, pair = in % 4 / 2, odd = in % 2;

    return ((size_t)(row / 16) * blocks + k / 64) * 2048 + s * 512 + (4 * g + t) * 16 +
           (pair * 2 + high) * 4 + odd * 2;
}

/* Bytes at an odd address, each element its own number, never zero. */
static uint8_t *fill(uint32_t n, uint32_t k, uint32_t first)
{
    uint8_t *w = malloc((size_t)n * k * 2 + 1);

    assert_non_null(w);
    for (uint32_t i = 0; i < n * k; i++) {
        const uint16_t v = (uint16_t)(first + i) | 1;
        memcpy(w + 1 + (size_t)i * 2, &v, 2);
    }
    return w;
}

static uint16_t at(const uint8_t *bytes, size_t offset)
{
    uint16_t v;

    memcpy(&v, bytes + offset, 2);
    return v;
}

static void check_plain(uint32_t n, uint32_t k)
{
    const size_t bytes = sy_cuda_pack_bytes(n, k);
    edge_buffer packed = edge_open(bytes, 0), back = edge_open((size_t)n * k * 2, 0);
    uint8_t *w = fill(n, k, 5);

    assert_int_equal(bytes, (size_t)((n + 15) / 16) * ((k + 63) / 64) * SY_CUDA_BLOCK_BYTES);
    sy_cuda_pack(packed.data, w + 1, n, k, sy_cuda_row_blocks(n) / 2, sy_cuda_row_blocks(n));
    sy_cuda_pack(packed.data, w + 1, n, k, 0, sy_cuda_row_blocks(n) / 2);
    for (uint32_t row = 0; row < (n + 15) / 16 * 16; row++)
        for (uint32_t i = 0; i < sy_cuda_padded(k); i++) {
            const uint16_t want = row < n && i < k ? at(w + 1, ((size_t)row * k + i) * 2) : 0;
            const uint16_t got = at(packed.data, offset_of(row, i, k));
            if (want != got)
                fail_msg("%u by %u: W[%u][%u] is %u, want %u", n, k, row, i, got, want);
        }
    sy_cuda_unpack(back.data, packed.data, n, k);
    assert_memory_equal(back.data, w + 1, (size_t)n * k * 2);
    edge_check(&packed);
    edge_check(&back);
    edge_close(&packed);
    edge_close(&back);
    free(w);
}

static void matrices_are_packed_as_the_header_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(sizes); i++)
        for (size_t j = 0; j < SY_COUNT_OF(sizes); j++) check_plain(sizes[i], sizes[j]);
}

static void check_gate_up(uint32_t ffn, uint32_t k)
{
    const size_t bytes = sy_cuda_gate_up_bytes(ffn, k), n = (size_t)ffn * k * 2;
    const uint32_t padded = sy_cuda_padded(ffn);
    edge_buffer packed = edge_open(bytes, 0), gate_back = edge_open(n, 0),
                up_back = edge_open(n, 0);
    uint8_t *gate = fill(ffn, k, 5), *up = fill(ffn, k, 30001);

    assert_int_equal(bytes, sy_cuda_pack_bytes(2 * padded, k));
    sy_cuda_pack_gate_up(packed.data, gate + 1, up + 1, ffn, k, 0, sy_cuda_gate_up_blocks(ffn));
    for (uint32_t f = 0; f < padded; f++)
        for (uint32_t i = 0; i < sy_cuda_padded(k); i++) {
            const int inside = f < ffn && i < k;
            const size_t from = ((size_t)f * k + i) * 2;
            const uint32_t row = f / 8 * 16 + f % 8;
            assert_int_equal(at(packed.data, offset_of(row, i, k)),
                             inside ? at(gate + 1, from) : 0);
            assert_int_equal(at(packed.data, offset_of(row + 8, i, k)),
                             inside ? at(up + 1, from) : 0);
        }
    sy_cuda_unpack_gate_up(gate_back.data, up_back.data, packed.data, ffn, k);
    assert_memory_equal(gate_back.data, gate + 1, n);
    assert_memory_equal(up_back.data, up + 1, n);
    edge_check(&packed);
    edge_close(&packed);
    edge_close(&gate_back);
    edge_close(&up_back);
    free(gate);
    free(up);
}

static void gate_and_up_are_interleaved(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(sizes); i++)
        for (size_t j = 0; j < SY_COUNT_OF(sizes); j += 3) check_gate_up(sizes[i], sizes[j]);
}

static void sizes_that_overflow_are_zero(void **state)
{
    (void)state;
    assert_int_equal(sy_cuda_pack_bytes(UINT32_MAX, UINT32_MAX), 0);
    assert_int_equal(sy_cuda_pack_bytes(16, 64), SY_CUDA_BLOCK_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_are_packed_as_the_header_says),
        cmocka_unit_test(gate_and_up_are_interleaved),
        cmocka_unit_test(sizes_that_overflow_are_zero),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
