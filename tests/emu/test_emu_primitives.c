/* The emulator's instructions, against what the PTX manual says of each lane. */
#include "emu_probe.h"
#include "kernel_cases.h"

static uint32_t bf16_bits(float f) /* of a value that bf16 holds */
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u >> 16;
}

static float small_integer(test_random *r)
{
    return (float)((int)(random_u32(r) % 17) - 8);
}

/* Registers of a lane from whole matrices: the manual's tables for m16n8k16, written out. */
static void fill_fragments(uint32_t a_out[32][4], uint32_t b_out[32][2], float a[16][16],
                           float b[16][8])
{
    static const int row_of[4] = {0, 8, 0, 8}, k_of[4] = {0, 0, 8, 8};

    for (int l = 0; l < 32; l++) {
        for (int i = 0; i < 4; i++) {
            const float *from = &a[l / 4 + row_of[i]][l % 4 * 2 + k_of[i]];
            a_out[l][i] = bf16_bits(from[0]) | bf16_bits(from[1]) << 16;
        }
        for (int i = 0; i < 2; i++) {
            const int k = l % 4 * 2 + 8 * i;
            b_out[l][i] = bf16_bits(b[k][l / 4]) | bf16_bits(b[k + 1][l / 4]) << 16;
        }
    }
}

static void mma_multiplies_matrices(void **state)
{
    test_random r = {TEST_SEED};
    float a[16][16], b[16][8], c[32][4], was[32][4];
    uint32_t a_lanes[32][4], b_lanes[32][2];

    (void)state;
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) a[i][j] = small_integer(&r);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) b[i][j] = small_integer(&r);
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) was[l][i] = c[l][i] = small_integer(&r);
    fill_fragments(a_lanes, b_lanes, a, b);
    assert_int_equal(emu_probe_mma(&c[0][0], &a_lanes[0][0], &b_lanes[0][0], NULL), 0);
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            float want = was[l][i];
            for (int k = 0; k < 16; k++) want += a[l / 4 + i / 2 * 8][k] * b[k][l % 4 * 2 + i % 2];
            check_bits(&want, &c[l][i], 1, "C");
        }
}

/* Of the largest numbers and the smallest: a denormal times 2^100 is no zero. */
static void mma_keeps_denormals_and_spreads_nan(void **state)
{
    static float a[16][16], b[16][8], c[32][4];
    uint32_t a_lanes[32][4], b_lanes[32][2];

    (void)state;
    a[0][3] = 0x1p-130f;
    b[3][0] = 0x1p+100f;
    a[1][5] = NAN;
    a[2][6] = INFINITY;
    b[6][1] = 1.0f;
    fill_fragments(a_lanes, b_lanes, a, b);
    assert_int_equal(emu_probe_mma(&c[0][0], &a_lanes[0][0], &b_lanes[0][0], NULL), 0);
    assert_true(c[0][0] == 0x1p-30f);                                          /* row 0, column 0 */
    for (int l = 4; l < 8; l++) assert_true(isnan(c[l][0]) && isnan(c[l][1])); /* row 1 */
    assert_true(isnan(c[8][0]));      /* row 2: infinity times zero */
    assert_true(c[8][1] == INFINITY); /* row 2, column 1 */
    assert_true(c[12][0] == 0.0f);    /* row 3 */
}

static void ldmatrix_hands_out_four_matrices(void **state)
{
    uint16_t in[32][8];
    uint32_t out[32][4];

    (void)state;
    for (int row = 0; row < 32; row++)
        for (int i = 0; i < 8; i++) in[row][i] = (uint16_t)(row * 100 + i);
    assert_int_equal(emu_probe_ldmatrix(&out[0][0], &in[0][0], NULL), 0);
    for (int l = 0; l < 32; l++)
        for (int m = 0; m < 4; m++) {
            const uint32_t low = (uint32_t)((8 * m + l / 4) * 100 + l % 4 * 2);
            if (out[l][m] != (low | (low + 1) << 16))
                fail_msg("lane %d, matrix %d: %08x, want %u and %u", l, m, out[l][m], low, low + 1);
        }
}

static void shuffles_move_values_between_lanes(void **state)
{
    test_random r = {TEST_SEED};
    uint32_t in[32], out[5][32], odd = 0;

    (void)state;
    for (int l = 0; l < 32; l++) {
        in[l] = random_u32(&r);
        odd |= (in[l] & 1) << l;
    }
    assert_int_equal(emu_probe_shuffles(&out[0][0], in, NULL), 0);
    for (int l = 0; l < 32; l++) {
        assert_int_equal(out[0][l], in[3]);
        assert_int_equal(out[1][l], in[l ^ 5]);
        assert_int_equal(out[2][l], in[l >= 7 ? l - 7 : l]);
        assert_int_equal(out[3][l], in[l + 7 < 32 ? l + 7 : l]);
        assert_int_equal(out[4][l], odd);
    }
}

static void atomics_and_counting_barriers_add_up(void **state)
{
    static const uint32_t threads[] = {1, 31, 32, 33, 96, 288};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(threads); i++) {
        const uint32_t n = 3 * threads[i];
        test_random r = {TEST_SEED + i};
        uint32_t *in = calloc(n, sizeof(*in)), got[3] = {0}, want[3] = {0};
        assert_non_null(in);
        for (uint32_t block = 0; block < 3; block++) {
            uint32_t n_odd = 0;
            for (uint32_t t = 0; t < threads[i]; t++) {
                const uint32_t v = in[block * threads[i] + t] = random_u32(&r);
                want[0] += v;
                want[1] = SY_MAX(want[1], v);
                n_odd += v & 1;
            }
            want[2] += n_odd % 2;
        }
        assert_int_equal(emu_probe_reduce(got, in, 3, threads[i], NULL), 0);
        for (int j = 0; j < 3; j++) assert_int_equal(got[j], want[j]);
        free(in);
    }
}

static void copies_land_when_waited_for(void **state)
{
    enum { N = 128 };
    _Alignas(16) uint32_t in[N * 4], out[N * 4];

    (void)state;
    for (uint32_t i = 0; i < N * 4; i++) in[i] = i + 1;
    assert_int_equal(emu_probe_copies(out, in, N, NULL), 0);
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t from = N - 1 - i;
            assert_int_equal(out[i * 4 + j], from % 2 == 0 ? in[from * 4 + j] : 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mma_multiplies_matrices),
        cmocka_unit_test(mma_keeps_denormals_and_spreads_nan),
        cmocka_unit_test(ldmatrix_hands_out_four_matrices),
        cmocka_unit_test(shuffles_move_values_between_lanes),
        cmocka_unit_test(atomics_and_counting_barriers_add_up),
        cmocka_unit_test(copies_land_when_waited_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
