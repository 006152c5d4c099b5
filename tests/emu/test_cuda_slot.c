/* Weights packed on the device: the bytes that the host's packing gives, whatever the order in
 * which ranges of rows arrive; unpacked, the bytes that came; and nothing beside them touched. */
#include "kernel_cases.h"
#include "sy_cuda_pack.h"
#include "sy_cuda_slot.h"

static const uint32_t sizes[] = {1, 7, 8, 15, 16, 17, 63, 64, 65, 130};

static uint32_t blocks_of(uint32_t n)
{
    return (n + 127) / 128;
}

/* FP8: where the factors of row `row` are. */
static uint8_t *factors_of(const edge_buffer *rows, uint32_t k, uint32_t row)
{
    return rows->data + (row + 1) * sy_cuda_row_bytes(SY_CUDA_FP8, k) - blocks_of(k) * 4;
}

/* Rows of random bytes, 16-byte aligned at their start. Of FP8 those of a block of 128 have its
 * factors. */
static edge_buffer open_rows(sy_cuda_weights weights, uint32_t n, uint32_t k, uint32_t seed)
{
    const size_t bytes = n * sy_cuda_row_bytes(weights, k);
    edge_buffer b = edge_open(bytes, (16 - bytes % 16) % 16);
    test_random r = {seed};

    for (size_t i = 0; i < b.bytes; i++) b.data[i] = (uint8_t)random_u32(&r);
    for (uint32_t row = 0; row < n && weights == SY_CUDA_FP8; row++)
        memcpy(factors_of(&b, k, row), factors_of(&b, k, row / 128 * 128), blocks_of(k) * 4);
    return b;
}

/* Rows [row, row + n_rows) to the device and into the matrix, from memory of just their size. */
static void pack_range(edge_buffer *packed, const edge_buffer *rows, sy_cuda_weights weights,
                       sy_cuda_part part, uint32_t n, uint32_t k, uint32_t row, uint32_t n_rows)
{
    const size_t row_bytes = sy_cuda_row_bytes(weights, k), bytes = n_rows * row_bytes;
    edge_buffer staged = edge_open(bytes, (16 - bytes % 16) % 16);

    memcpy(staged.data, rows->data + row * row_bytes, bytes);
    assert_int_equal(
        sy_cuda_rows_pack(packed->data, staged.data, weights, part, n, k, row, n_rows, NULL), 0);
    edge_check(packed);
    edge_check(&staged);
    edge_close(&staged);
}

/* Ranges of `step` rows, the last one first when `backwards`. */
static void pack_ranges(edge_buffer *packed, const edge_buffer *rows, sy_cuda_weights weights,
                        sy_cuda_part part, uint32_t n, uint32_t k, uint32_t step, int backwards)
{
    const uint32_t n_ranges = (n + step - 1) / step;

    for (uint32_t i = 0; i < n_ranges; i++) {
        const uint32_t row = (backwards ? n_ranges - 1 - i : i) * step;
        pack_range(packed, rows, weights, part, n, k, row, SY_MIN(step, n - row));
    }
}

static void check_unpacked(const edge_buffer *packed, const edge_buffer *rows,
                           sy_cuda_weights weights, sy_cuda_part part, uint32_t n, uint32_t k,
                           uint32_t row, uint32_t n_rows)
{
    const size_t row_bytes = sy_cuda_row_bytes(weights, k), bytes = n_rows * row_bytes;
    edge_buffer back = edge_open(bytes, (16 - bytes % 16) % 16);

    assert_int_equal(
        sy_cuda_rows_unpack(back.data, packed->data, weights, part, n, k, row, n_rows, NULL), 0);
    for (size_t i = 0; i < bytes; i++)
        if (back.data[i] != rows->data[row * row_bytes + i])
            fail_msg("weights %d, part %d, %u by %u, rows from %u: byte %zu is %02x, want %02x",
                     (int)weights, (int)part, n, k, row, i, back.data[i],
                     rows->data[row * row_bytes + i]);
    edge_check(&back);
    edge_close(&back);
}

static void check_matrix(const edge_buffer *want, const edge_buffer *got, const char *what,
                         uint32_t n, uint32_t k)
{
    for (size_t i = 0; i < want->bytes; i++)
        if (want->data[i] != got->data[i])
            fail_msg("%s, %u by %u: byte %zu is %02x, want %02x", what, n, k, i, got->data[i],
                     want->data[i]);
}

static void check_bf16(uint32_t n, uint32_t k)
{
    const uint32_t F = n;
    edge_buffer gate = open_rows(SY_CUDA_BF16, n, k, 5), up = open_rows(SY_CUDA_BF16, n, k, 6);
    edge_buffer down_want = edge_open(sy_cuda_pack_bytes(n, k), 0);
    edge_buffer both_want = edge_open(sy_cuda_gate_up_bytes(F, k), 0);
    edge_buffer down = edge_open(sy_cuda_matrix_bytes(SY_CUDA_BF16, SY_CUDA_DOWN, n, k), 0);
    edge_buffer both = edge_open(sy_cuda_matrix_bytes(SY_CUDA_BF16, SY_CUDA_UP, F, k), 0);

    assert_int_equal(down.bytes, down_want.bytes);
    assert_int_equal(both.bytes, both_want.bytes);
    sy_cuda_pack(down_want.data, gate.data, n, k, 0, sy_cuda_row_blocks(n));
    sy_cuda_pack_gate_up(both_want.data, gate.data, up.data, F, k, 0, sy_cuda_gate_up_blocks(F));
    memset(down.data, 0xee, down.bytes);
    memset(both.data, 0xee, both.bytes);
    pack_ranges(&down, &gate, SY_CUDA_BF16, SY_CUDA_DOWN, n, k, 16, 1);
    pack_ranges(&both, &gate, SY_CUDA_BF16, SY_CUDA_GATE, F, k, 48, 0);
    pack_ranges(&both, &up, SY_CUDA_BF16, SY_CUDA_UP, F, k, 32, 1);
    check_matrix(&down_want, &down, "down", n, k);
    check_matrix(&both_want, &both, "gate and up", n, k);
    check_unpacked(&down, &gate, SY_CUDA_BF16, SY_CUDA_DOWN, n, k, 0, n);
    check_unpacked(&both, &gate, SY_CUDA_BF16, SY_CUDA_GATE, F, k, 0, F);
    check_unpacked(&both, &up, SY_CUDA_BF16, SY_CUDA_UP, F, k, 0, F);
    if (n > 16) {
        check_unpacked(&down, &gate, SY_CUDA_BF16, SY_CUDA_DOWN, n, k, 16, n - 16);
        check_unpacked(&both, &up, SY_CUDA_BF16, SY_CUDA_UP, F, k, 16, SY_MIN(16, F - 16));
    }
    edge_buffer *all[] = {&gate, &up, &down_want, &both_want, &down, &both};
    for (size_t i = 0; i < SY_COUNT_OF(all); i++) edge_close(all[i]);
}

static void bf16_is_packed_as_the_host_packs_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(sizes); i++)
        for (size_t j = 0; j < SY_COUNT_OF(sizes); j++) check_bf16(sizes[i], sizes[j]);
}

/* ---- quantised ---- */

/* Bytes of a block of 16 rows by 128 inputs, and of the codes in it. */
typedef struct form {
    uint32_t block_bytes, codes_bytes;
} form;

static form form_of(sy_cuda_weights weights)
{
    switch (weights) {
    case SY_CUDA_Q8: return (form){2048 + 128, 2048};
    case SY_CUDA_Q4: return (form){1024 + 128, 1024};
    case SY_CUDA_MXFP4: return (form){1024 + 64, 1024};
    default: return (form){2048, 2048};
    }
}

/* Code i of a row, as the row has it; past its last block there are zeros. */
static uint32_t stored_code(const uint8_t *row, sy_cuda_weights weights, uint32_t i, uint32_t k)
{
    const uint32_t block = i / 32, in = i % 32;

    if (weights == SY_CUDA_FP8) return i < k ? row[i] : 0;
    if (block >= (k + 31) / 32) return 0;
    if (weights == SY_CUDA_Q8) return row[block * 34 + 2 + in];
    if (weights == SY_CUDA_Q4) return row[block * 18 + 2 + in % 16] >> in / 16 * 4 & 15;
    return row[block * 16 + in / 2] >> in % 2 * 4 & 15;
}

/* The same where sy_cu_forms.h has it: lane 4g + t, inputs 8t .. 8t+7 of group q. */
static uint32_t packed_code(const uint8_t *block, sy_cuda_weights weights, uint32_t row, uint32_t i)
{
    const uint32_t q = i / 32, t = i % 32 / 8, lane = row % 8 * 4 + t, r = row / 8;
    const uint8_t *lane_bytes;

    if (weights == SY_CUDA_Q8 || weights == SY_CUDA_FP8) {
        static const uint32_t byte_of[4] = {0, 2, 1, 3};
        const uint32_t s = i % 8 / 4;
        lane_bytes = block + 512 * q + 16 * lane;
        return lane_bytes[(2 * s + r) * 4 + byte_of[i % 4]];
    }
    const uint32_t u = q / 2, v = q % 2, nibble = i % 8 / 2 + (i % 2 ? 4 : 0);
    lane_bytes = block + 512 * u + 16 * lane;
    return lane_bytes[(2 * v + r) * 4 + nibble / 2] >> nibble % 2 * 4 & 15;
}

static uint32_t stored_scale(const uint8_t *row, sy_cuda_weights weights, uint32_t group,
                             uint32_t k)
{
    const uint32_t n_groups = (k + 31) / 32;
    uint16_t v;

    if (group >= n_groups) return 0;
    if (weights == SY_CUDA_MXFP4) return row[n_groups * 16 + group];
    memcpy(&v, row + group * (weights == SY_CUDA_Q8 ? 34 : 18), sizeof(v));
    return v;
}

static uint32_t packed_scale(const uint8_t *scales, sy_cuda_weights weights, uint32_t row,
                             uint32_t q)
{
    uint16_t v;

    if (weights == SY_CUDA_MXFP4) return scales[row % 8 * 8 + row / 8 * 4 + q];
    memcpy(&v, scales + row % 8 * 16 + (q / 2 * 2 + row / 8) * 4 + q % 2 * 2, sizeof(v));
    return v;
}

/* Row `at` of the matrix (of gate and up together, or of down) has what row `row` of `rows` has;
 * NULL: it is padding. */
static void check_packed_row(const edge_buffer *packed, sy_cuda_weights weights, uint32_t at,
                             const uint8_t *row, uint32_t k)
{
    const form f = form_of(weights);
    const uint32_t n_blocks = (k + 127) / 128;

    for (uint32_t i = 0; i < n_blocks * 128; i++) {
        const uint8_t *block =
            packed->data + ((size_t)(at / 16) * n_blocks + i / 128) * f.block_bytes;
        const uint32_t want = row == NULL ? 0 : stored_code(row, weights, i, k);
        const uint32_t got = packed_code(block, weights, at % 16, i % 128);
        if (want != got)
            fail_msg("weights %d, k %u: code [%u][%u] is %x, want %x", (int)weights, k, at, i, got,
                     want);
        if (i % 32 != 0 || weights == SY_CUDA_FP8) continue;
        const uint32_t want_scale = row == NULL ? 0 : stored_scale(row, weights, i / 32, k);
        const uint32_t got_scale =
            packed_scale(block + f.codes_bytes, weights, at % 16, i % 128 / 32);
        if (want_scale != got_scale)
            fail_msg("weights %d, k %u: scale [%u][%u] is %x, want %x", (int)weights, k, at, i / 32,
                     got_scale, want_scale);
    }
}

static size_t round_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Zeros from `used` on, to the next multiple of 256. */
static void check_filled_up(const edge_buffer *packed, size_t used)
{
    for (size_t i = used; i < round_up(used); i++)
        if (packed->data[i] != 0) fail_msg("byte %zu, behind the blocks, is not zero", i);
}

/* What follows the last row block: of FP8 a table for each of n_tables parts, else nothing. */
static void check_tail(const edge_buffer *packed, sy_cuda_weights weights, uint32_t n, uint32_t k,
                       size_t used, size_t n_tables)
{
    const size_t table = round_up(blocks_of(n) * (size_t)blocks_of(k) * 4);

    check_filled_up(packed, used);
    assert_int_equal(packed->bytes,
                     round_up(used) + (weights == SY_CUDA_FP8 ? n_tables * table : 0));
}

/* FP8: the part's table has the factors of the first row of each block, and zeros behind them. */
static void check_table(const edge_buffer *packed, const edge_buffer *rows, sy_cuda_part part,
                        uint32_t n, uint32_t k)
{
    const size_t at = sy_cuda_scale_offset(SY_CUDA_FP8, part, n, k), bytes = blocks_of(k) * 4;

    assert_int_equal(at % 256, 0);
    for (uint32_t block = 0; block < blocks_of(n); block++)
        if (memcmp(packed->data + at + block * bytes, factors_of(rows, k, block * 128), bytes) != 0)
            fail_msg("part %d, %u by %u: wrong factors of rows from %u on", (int)part, n, k,
                     block * 128);
    check_filled_up(packed, at + blocks_of(n) * bytes);
}

static void check_quant(sy_cuda_weights weights, uint32_t n, uint32_t k)
{
    const size_t row_bytes = sy_cuda_row_bytes(weights, k);
    const size_t row_block = (k + 127) / 128 * (size_t)form_of(weights).block_bytes;
    const uint32_t padded = sy_cuda_padded(n);
    edge_buffer gate = open_rows(weights, n, k, 5), up = open_rows(weights, n, k, 6);
    edge_buffer down = edge_open(sy_cuda_matrix_bytes(weights, SY_CUDA_DOWN, n, k), 0);
    edge_buffer both = edge_open(sy_cuda_matrix_bytes(weights, SY_CUDA_GATE, n, k), 0);

    memset(down.data, 0xee, down.bytes);
    memset(both.data, 0xee, both.bytes);
    pack_ranges(&down, &up, weights, SY_CUDA_DOWN, n, k, 16, 1);
    pack_ranges(&both, &up, weights, SY_CUDA_UP, n, k, 32, 1);
    pack_ranges(&both, &gate, weights, SY_CUDA_GATE, n, k, 16, 0);
    for (uint32_t r = 0; r < (n + 15) / 16 * 16; r++)
        check_packed_row(&down, weights, r, r < n ? up.data + r * row_bytes : NULL, k);
    for (uint32_t r = 0; r < padded; r++) {
        const uint32_t at = r / 8 * 16 + r % 8;
        check_packed_row(&both, weights, at, r < n ? gate.data + r * row_bytes : NULL, k);
        check_packed_row(&both, weights, at + 8, r < n ? up.data + r * row_bytes : NULL, k);
    }
    check_tail(&down, weights, n, k, (n + 15) / 16 * row_block, 1);
    check_tail(&both, weights, n, k, padded / 8 * row_block, 2);
    if (weights == SY_CUDA_FP8) {
        check_table(&down, &up, SY_CUDA_DOWN, n, k);
        check_table(&both, &gate, SY_CUDA_GATE, n, k);
        check_table(&both, &up, SY_CUDA_UP, n, k);
    }
    check_unpacked(&down, &up, weights, SY_CUDA_DOWN, n, k, 0, n);
    check_unpacked(&both, &gate, weights, SY_CUDA_GATE, n, k, 0, n);
    check_unpacked(&both, &up, weights, SY_CUDA_UP, n, k, n / 16 * 16, n % 16);
    edge_buffer *all[] = {&gate, &up, &down, &both};
    for (size_t i = 0; i < SY_COUNT_OF(all); i++) edge_close(all[i]);
}

static void quantised_rows_are_packed_as_the_header_says(void **state)
{
    static const uint32_t rows[] = {1, 16, 33, 70}, inputs[] = {1, 31, 33, 97, 128, 257};

    (void)state;
    for (int w = SY_CUDA_Q8; w < N_SY_CUDA_WEIGHTS; w++)
        for (size_t i = 0; i < SY_COUNT_OF(rows); i++)
            for (size_t j = 0; j < SY_COUNT_OF(inputs); j++)
                check_quant((sy_cuda_weights)w, rows[i], inputs[j]);
}

/* More than one block of 128 rows, ranges that begin and end in the middle of them, and more
 * factors of a row than a block has threads. */
static void factors_of_fp8_lie_where_the_kernels_look(void **state)
{
    static const uint32_t forms[][2] = {{127, 1},   {128, 129}, {129, 128}, {144, 257},
                                        {260, 130}, {300, 300}, {385, 33},  {33, 17000}};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(forms); i++) {
        const uint32_t n = forms[i][0], k = forms[i][1];
        edge_buffer rows = open_rows(SY_CUDA_FP8, n, k, 11);

        check_quant(SY_CUDA_FP8, n, k);
        for (uint32_t step = 112; step < 416; step += 48) {
            edge_buffer m = edge_open(sy_cuda_matrix_bytes(SY_CUDA_FP8, SY_CUDA_UP, n, k), 0);
            memset(m.data, 0xee, m.bytes);
            pack_ranges(&m, &rows, SY_CUDA_FP8, SY_CUDA_UP, n, k, step, step % 96 == 16);
            check_table(&m, &rows, SY_CUDA_UP, n, k);
            check_unpacked(&m, &rows, SY_CUDA_FP8, SY_CUDA_UP, n, k, n / 32 * 16, n - n / 32 * 16);
            edge_close(&m);
        }
        edge_close(&rows);
    }
}

/* So that what is hashed and sent is the same bytes on every kind of node. */
static void rows_are_as_long_as_everywhere(void **state)
{
    (void)state;
    for (uint32_t k = 1; k < 300; k += 7) {
        assert_int_equal(sy_cuda_row_bytes(SY_CUDA_BF16, k), sy_dtype_row_bytes(SY_BF16, k));
        assert_int_equal(sy_cuda_row_bytes(SY_CUDA_Q8, k), sy_dtype_row_bytes(SY_Q8, k));
        assert_int_equal(sy_cuda_row_bytes(SY_CUDA_Q4, k), sy_dtype_row_bytes(SY_Q4, k));
        assert_int_equal(sy_cuda_row_bytes(SY_CUDA_FP8, k), sy_dtype_row_bytes(SY_FP8, k));
        assert_int_equal(sy_cuda_row_bytes(SY_CUDA_MXFP4, k), sy_dtype_row_bytes(SY_MXFP4, k));
    }
}

/* ---- what holds for all ---- */

/* One range, and what lies outside it keeps its bytes. */
static void a_range_changes_its_own_blocks_alone(void **state)
{
    const uint32_t n = 70, k = 65;

    (void)state;
    for (int w = 0; w < N_SY_CUDA_WEIGHTS; w++) {
        const sy_cuda_weights weights = (sy_cuda_weights)w;
        edge_buffer rows = open_rows(weights, n, k, 7);
        edge_buffer m = edge_open(sy_cuda_matrix_bytes(weights, SY_CUDA_DOWN, n, k), 0);
        const size_t row_block =
            w == SY_CUDA_BF16 ? 2 * SY_CUDA_BLOCK_BYTES : form_of(weights).block_bytes;
        memset(m.data, 0xee, m.bytes);
        pack_range(&m, &rows, weights, SY_CUDA_DOWN, n, k, 16, 32);
        const size_t table =
            w == SY_CUDA_FP8 ? sy_cuda_scale_offset(weights, SY_CUDA_DOWN, n, k) : m.bytes;
        for (size_t i = 0; i < m.bytes; i++)
            if ((i < row_block || i >= 3 * row_block) && (i < table || i >= table + 4) &&
                m.data[i] != 0xee)
                fail_msg("weights %d: byte %zu, outside rows 16 to 47, is %02x", w, i, m.data[i]);
        check_unpacked(&m, &rows, weights, SY_CUDA_DOWN, n, k, 16, 32);
        edge_close(&rows);
        edge_close(&m);
    }
}

static void no_rows_are_no_work(void **state)
{
    uint64_t packed[256] = {0}, rows[2] = {0};

    (void)state;
    assert_int_equal(
        sy_cuda_rows_pack(packed, rows, SY_CUDA_BF16, SY_CUDA_DOWN, 64, 8, 16, 0, NULL), 0);
    assert_int_equal(
        sy_cuda_rows_unpack(rows, packed, SY_CUDA_BF16, SY_CUDA_DOWN, 64, 8, 16, 0, NULL), 0);
}

static void sizes_that_overflow_are_zero(void **state)
{
    (void)state;
    assert_int_equal(sy_cuda_matrix_bytes(SY_CUDA_BF16, SY_CUDA_UP, UINT32_MAX, UINT32_MAX), 0);
    assert_int_equal(sy_cuda_matrix_bytes(SY_CUDA_BF16, SY_CUDA_UP, 64, 64), 16384);
    assert_int_equal(sy_cuda_row_bytes(SY_CUDA_BF16, UINT32_MAX), 2 * (size_t)UINT32_MAX);
    assert_int_equal(sy_cuda_row_bytes(SY_CUDA_Q8, UINT32_MAX), 34 * ((size_t)1 << 27));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_is_packed_as_the_host_packs_it),
        cmocka_unit_test(quantised_rows_are_packed_as_the_header_says),
        cmocka_unit_test(factors_of_fp8_lie_where_the_kernels_look),
        cmocka_unit_test(rows_are_as_long_as_everywhere),
        cmocka_unit_test(a_range_changes_its_own_blocks_alone),
        cmocka_unit_test(no_rows_are_no_work),
        cmocka_unit_test(sizes_that_overflow_are_zero),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
