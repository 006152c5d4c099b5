/* probe_fragments.c - writes down what single instructions do, as text. Built twice from the
 * kernels of tests/emu/emu_probe.cu, for a GPU and for the emulator, so that the two files can be
 * compared line by line (gpu_probe.py): one number that differs is a layout that was misunderstood.
 * Lines are "NAME CASE: WORDS", words in hexadecimal, of lane 0 first. Of the sections whose name
 * begins with "sum" the inputs are there too, as whole matrices: their sums are not exact, and how
 * a tensor core rounds them is its own affair. */
#include "emu_probe.h"
#include "kernel_cases.h"

enum { EXACT_CASES = 16, SUM_CASES = 8, COPIES = 128, BLOCKS = 5, THREADS = 96 };

typedef struct matrices {
    float a[16][16], b[16][8], c[16][8];
} matrices;

/* The registers of all lanes, in memory of the device. */
typedef struct lanes {
    edge_buffer a, b, c;
} lanes;

static uint32_t *words_of(const edge_buffer *b)
{
    return (uint32_t *)(void *)b->data;
}

static uint32_t float_bits(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

static uint32_t two_bf16(float low, float high)
{
    return (uint32_t)sy_f32_to_bf16(low) | (uint32_t)sy_f32_to_bf16(high) << 16;
}

static void print_words(const char *name, int number, const uint32_t *words, size_t n)
{
    printf("%s %d:", name, number);
    for (size_t i = 0; i < n; i++) printf(" %08x", words[i]);
    putchar('\n');
}

/* Of lane 4g + t, as the PTX manual's tables for m16n8k16 have it. */
static void spread(const lanes *l, const matrices *m)
{
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4 * 2;
        for (int i = 0; i < 4; i++) {
            const float *from = &m->a[g + i % 2 * 8][t + i / 2 * 8];
            words_of(&l->a)[lane * 4 + i] = two_bf16(from[0], from[1]);
            memcpy(&words_of(&l->c)[lane * 4 + i], &m->c[g + i / 2 * 8][t + i % 2], 4);
        }
        for (int i = 0; i < 2; i++)
            words_of(&l->b)[lane * 2 + i] = two_bf16(m->b[t + 8 * i][g], m->b[t + 8 * i + 1][g]);
    }
}

static lanes lanes_open(void)
{
    return (lanes){edge_open(32 * 4 * sizeof(uint32_t), 0), edge_open(32 * 2 * sizeof(uint32_t), 0),
                   edge_open(32 * 4 * sizeof(uint32_t), 0)};
}

static void multiply(const char *name, int number, const lanes *l, const matrices *m)
{
    spread(l, m);
    assert_int_equal(emu_probe_mma(edge_floats(&l->c), words_of(&l->a), words_of(&l->b), NULL), 0);
    print_words(name, number, words_of(&l->c), 128);
}

/* ---- products whose sums are exact ---- */

/* One element of A against a B of which no two elements are equal: tells where it came from. */
static void probe_layout(const lanes *l)
{
    for (int at = 0; at < 256; at++) {
        matrices m = {0};
        m.a[at / 16][at % 16] = 1.0f;
        for (int i = 0; i < 128; i++) m.b[i / 8][i % 8] = (float)(i + 1);
        multiply("layout", at, l, &m);
    }
}

static void probe_integers(const lanes *l)
{
    test_random r = {TEST_SEED};

    for (int n = 0; n < EXACT_CASES; n++) {
        matrices m;
        for (int i = 0; i < 256; i++) m.a[i / 16][i % 16] = (float)(random_u32(&r) % 129) - 64.0f;
        for (int i = 0; i < 128; i++) {
            m.b[i / 8][i % 8] = (float)(random_u32(&r) % 129) - 64.0f;
            m.c[i / 8][i % 8] = (float)(random_u32(&r) % 1025) - 512.0f;
        }
        multiply("integers", n, l, &m);
    }
}

/* A row and a column each for a denormal, a NaN, an infinity, a product that overflows, and one
 * that is a denormal. */
static void probe_odd_values(const lanes *l)
{
    matrices m = {0};

    m.a[0][3] = 0x1p-130f;
    m.a[1][5] = NAN;
    m.a[2][6] = INFINITY;
    m.a[3][9] = -0x1p+127f;
    m.a[4][12] = 0x1p-100f;
    m.a[5][15] = -0.0f;
    m.c[6][0] = 0x1p-140f;
    multiply("odd", 0, l, &m); /* with zeros */
    for (int i = 0; i < 128; i++) m.b[i / 8][i % 8] = 1.0f;
    multiply("odd", 1, l, &m);
    for (int i = 0; i < 128; i++) m.b[i / 8][i % 8] = i % 2 == 0 ? 0x1p+100f : 0x1p-40f;
    multiply("odd", 2, l, &m);
}

/* ---- sums that have to round ---- */

static float with_exponent(test_random *r, int spread)
{
    const int exponent = spread == 0 ? 0 : (int)(random_u32(r) % (uint32_t)(spread + 1)) - spread;
    const uint16_t bits = sy_f32_to_bf16(1.0f + (float)(random_u32(r) % 128) / 128.0f);
    const float v = ldexpf(sy_bf16_to_f32(bits), exponent);

    return random_u32(r) % 2 == 0 ? v : -v;
}

static void print_matrices(const char *name, int number, const matrices *m)
{
    static const char *const side[] = {"a", "b", "c"};
    const float *const from[] = {&m->a[0][0], &m->b[0][0], &m->c[0][0]};
    static const size_t count[] = {256, 128, 128};
    char full[64];

    for (int i = 0; i < 3; i++) {
        uint32_t words[256];
        for (size_t j = 0; j < count[i]; j++) words[j] = float_bits(from[i][j]);
        snprintf(full, sizeof(full), "%s_%s", name, side[i]);
        print_words(full, number, words, count[i]);
    }
}

/* Of numbers within 2^spread of each other. Case by case fewer of the terms are zero. */
static void probe_sums(const lanes *l, int spread)
{
    test_random r = {TEST_SEED + (uint32_t)spread};
    char name[32];

    snprintf(name, sizeof(name), "sum%d", spread);
    for (int n = 0; n < SUM_CASES; n++) {
        matrices m;
        for (int i = 0; i < 256; i++)
            m.a[i / 16][i % 16] =
                (int)(random_u32(&r) % SUM_CASES) <= n ? with_exponent(&r, spread) : 0.0f;
        for (int i = 0; i < 128; i++) {
            m.b[i / 8][i % 8] = with_exponent(&r, spread);
            m.c[i / 8][i % 8] = n % 2 == 0 ? 0.0f : with_exponent(&r, spread);
        }
        print_matrices(name, n, &m);
        multiply(name, n, l, &m);
    }
}

/* ---- what moves data ---- */

static void probe_moves(void)
{
    test_random r = {TEST_SEED};
    edge_buffer in = edge_open(COPIES * 16, 0), out = edge_open(COPIES * 16, 0);

    for (int n = 0; n < 4; n++) {
        for (int i = 0; i < COPIES * 4; i++) words_of(&in)[i] = random_u32(&r);
        assert_int_equal(
            emu_probe_ldmatrix(words_of(&out), (const uint16_t *)(void *)in.data, NULL), 0);
        print_words("ldmatrix", n, words_of(&out), 128);
        assert_int_equal(emu_probe_copies(words_of(&out), words_of(&in), COPIES, NULL), 0);
        print_words("copies", n, words_of(&out), COPIES * 4);
        assert_int_equal(emu_probe_shuffles(words_of(&out), words_of(&in), NULL), 0);
        print_words("shuffles", n, words_of(&out), 5 * 32);
        memset(out.data, 0, 12);
        assert_int_equal(emu_probe_reduce(words_of(&out), words_of(&in), BLOCKS, THREADS, NULL), 0);
        print_words("reduce", n, words_of(&out), 3);
    }
    edge_close(&in);
    edge_close(&out);
}

static void instructions_are_written_down(void **state)
{
    static const int spreads[] = {0, 3, 8, 16, 32};
    lanes l = lanes_open();

    (void)state;
    probe_layout(&l);
    probe_integers(&l);
    probe_odd_values(&l);
    for (size_t i = 0; i < SY_COUNT_OF(spreads); i++) probe_sums(&l, spreads[i]);
    probe_moves();
    edge_close(&l.a);
    edge_close(&l.b);
    edge_close(&l.c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(instructions_are_written_down)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
