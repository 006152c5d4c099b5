/* test_tensor_encoded.c - rows as a file has them encoded: they are the numbers that reading rounds
 * to bf16, however the rows lie in the file. Views are made by hand here, of any shape. */
#include "checkpoint_files.h"

#include <math.h>

#include "sy_gguf_block.h"
#include "sy_hash.h"
#include "sy_model.h"
#include "sy_tensor.h"
#include "synth_model.h"

enum { ROWS = 131, F8_COLUMNS = 300, FP4_COLUMNS = 96, GROUPS = FP4_COLUMNS / 32 };
enum { F8_STEP = 3 * 4 }; /* bytes of a row of factors */

static uint64_t random_of(uint64_t i)
{
    return sy_splitmix64(i + 77);
}

/* Any code but the NaNs, and factors with all their bits in use. data: one byte off any alignment.
 */
static sy_tensor make_f8(uint8_t *data, uint8_t *scale)
{
    for (size_t i = 0; i < (size_t)ROWS * F8_COLUMNS; i++) {
        data[i + 1] = (uint8_t)random_of(i);
        if ((data[i + 1] & 0x7f) == 0x7f) data[i + 1] ^= 1;
    }
    for (size_t i = 0; i < 2 * 3; i++) {
        const float factor = ldexpf(1 + sy_unit_float(random_of(i)), (int)(i % 5) - 9);
        memcpy(scale + 1 + i * sizeof(factor), &factor, sizeof(factor));
    }
    return (sy_tensor){.name = "f8",
                       .dtype_name = "F8_E4M3",
                       .dtype = SY_BF16,
                       .rank = 2,
                       .shape = {ROWS, F8_COLUMNS},
                       .n_elements = (uint64_t)ROWS * F8_COLUMNS,
                       .data = data + 1,
                       .encoding = SY_ENCODING_F8_BLOCK,
                       .scale = scale + 1,
                       .scale_step = F8_STEP};
}

/* Every second row of what is there, from the second on. */
static sy_tensor make_fp4(uint8_t *data, uint8_t *scale)
{
    for (size_t i = 0; i < 2 * (size_t)ROWS * FP4_COLUMNS / 2; i++) data[i] = (uint8_t)random_of(i);
    for (size_t i = 0; i < 2 * (size_t)ROWS * GROUPS; i++)
        scale[i] = (uint8_t)(i < 6 ? i % 3 : 100 + random_of(i) % 50);
    return (sy_tensor){.name = "fp4",
                       .dtype_name = "U8",
                       .dtype = SY_BF16,
                       .rank = 2,
                       .shape = {ROWS, FP4_COLUMNS},
                       .n_elements = (uint64_t)ROWS * FP4_COLUMNS,
                       .data = data + FP4_COLUMNS / 2,
                       .encoding = SY_ENCODING_MXFP4,
                       .row_step = 2 * FP4_COLUMNS / 2,
                       .scale = scale + GROUPS,
                       .scale_step = 2 * GROUPS};
}

/* Both at once and in pieces; each row's numbers, rounded, are those that reading gives. */
static void expect_numbers(const sy_tensor *t, sy_dtype dtype)
{
    const uint64_t columns = t->shape[1];
    const size_t row_bytes = sy_dtype_row_bytes(dtype, columns);
    uint8_t *all = malloc(ROWS * row_bytes), *piece = malloc(7 * row_bytes);
    uint16_t *read = malloc(columns * sizeof(*read));
    float *got = malloc(columns * sizeof(*got));

    assert_int_equal(sy_tensor_encoded(t), dtype);
    assert_false(sy_tensor_is_in_place(t));
    sy_tensor_read_as(all, t, dtype, 0, ROWS);
    for (uint64_t r = 0; r < ROWS; r += 7) {
        const uint64_t n = SY_MIN(ROWS - r, (uint64_t)7);
        sy_tensor_read_as(piece, t, dtype, r, n);
        assert_memory_equal(piece, all + r * row_bytes, n * row_bytes);
    }
    for (uint64_t r = 0; r < ROWS; r++) {
        sy_tensor_read(read, t, r, 1);
        sy_dtype_widen(got, all + r * row_bytes, dtype, columns);
        for (uint64_t c = 0; c < columns; c++)
            if (sy_f32_to_bf16(got[c]) != read[c])
                fail_msg("%s [%d,%d]: %a, which reads as %a", t->name, (int)r, (int)c,
                         (double)got[c], (double)sy_bf16_to_f32(read[c]));
        sy_tensor_read_as(piece, t, SY_BF16, r, 1);
        assert_memory_equal(piece, read, columns * sizeof(*read));
    }
    free(all);
    free(piece);
    free(read);
    free(got);
}

static void fp8_rows_have_their_codes_and_the_factors_of_their_blocks(void **state)
{
    static uint8_t data[ROWS * F8_COLUMNS + 1], scale[2 * F8_STEP + 1];
    const sy_tensor t = make_f8(data, scale);
    uint8_t row[F8_COLUMNS + F8_STEP];
    float numbers[F8_COLUMNS];
    size_t n_rounded = 0;

    (void)state;
    assert_int_equal(sy_dtype_row_bytes(SY_FP8, F8_COLUMNS), sizeof(row));
    expect_numbers(&t, SY_FP8);
    for (uint64_t r = 0; r < ROWS; r += 65) { /* 0, 65: the first blocks; 130: the second */
        sy_tensor_read_as(row, &t, SY_FP8, r, 1);
        assert_memory_equal(row, t.data + r * F8_COLUMNS, F8_COLUMNS);
        assert_memory_equal(row + F8_COLUMNS, t.scale + (r == 130 ? F8_STEP : 0), F8_STEP);
        sy_dtype_widen(numbers, row, SY_FP8, F8_COLUMNS);
        for (size_t c = 0; c < F8_COLUMNS; c++)
            n_rounded += sy_bf16_to_f32(sy_f32_to_bf16(numbers[c])) != numbers[c];
    }
    assert_true(n_rounded > F8_COLUMNS); /* what bf16 loses is there */
}

static void mxfp4_rows_have_their_codes_and_scales(void **state)
{
    static uint8_t data[ROWS * FP4_COLUMNS], scale[2 * ROWS * GROUPS];
    const sy_tensor t = make_fp4(data, scale);
    uint8_t row[FP4_COLUMNS / 2 + GROUPS];

    (void)state;
    assert_int_equal(sy_dtype_row_bytes(SY_MXFP4, FP4_COLUMNS), sizeof(row));
    expect_numbers(&t, SY_MXFP4);
    sy_tensor_read_as(row, &t, SY_MXFP4, 40, 1);
    assert_memory_equal(row, data + 81 * FP4_COLUMNS / 2, FP4_COLUMNS / 2);
    assert_memory_equal(row + FP4_COLUMNS / 2, scale + 81 * GROUPS, GROUPS);
}

/* Every factor, that which no float has among them: ggml's numbers, bit for bit. */
static void blocks_of_gguf_turn_into_the_same_numbers(void **state)
{
    enum { BLOCK = 17 };
    static uint8_t data[ROWS * GROUPS * BLOCK];
    const sy_tensor t = {.name = "gguf",
                         .dtype_name = "MXFP4",
                         .dtype = SY_BF16,
                         .rank = 2,
                         .shape = {ROWS, FP4_COLUMNS},
                         .n_elements = (uint64_t)ROWS * FP4_COLUMNS,
                         .data = data,
                         .encoding = SY_ENCODING_GGUF,
                         .block = SY_GGUF_MXFP4,
                         .row_step = GROUPS * BLOCK};
    uint8_t row[FP4_COLUMNS / 2 + GROUPS];
    float got[FP4_COLUMNS], want[FP4_COLUMNS];

    (void)state;
    for (size_t i = 0; i < sizeof(data); i++) data[i] = (uint8_t)random_of(i);
    for (size_t i = 0; i < (size_t)ROWS * GROUPS; i++) data[i * BLOCK] = (uint8_t)i;
    expect_numbers(&t, SY_MXFP4);
    for (uint64_t r = 0; r < ROWS; r++) {
        sy_tensor_read_as(row, &t, SY_MXFP4, r, 1);
        sy_dtype_widen(got, row, SY_MXFP4, FP4_COLUMNS);
        sy_gguf_decode(want, data + r * GROUPS * BLOCK, SY_GGUF_MXFP4, FP4_COLUMNS);
        for (size_t c = 0; c < FP4_COLUMNS; c++)
            if (memcmp(&got[c], &want[c], sizeof(float)) != 0)
                fail_msg("[%d,%zu], factor %d: %a, expected %a", (int)r, c,
                         data[(r * GROUPS + c / 32) * BLOCK], (double)got[c], (double)want[c]);
    }
}

/* By what a role gives, as loaders ask. */
static void a_checkpoint_says_what_is_encoded_as_what(void **state)
{
    static const struct {
        const char *family;
        sy_role role;
        sy_dtype want;
    } cases[] = {
        {"deepseek_v3_fp8", SY_ROLE_EXPERT_UP, SY_FP8},
        {"deepseek_v3_fp8", SY_ROLE_KV_A, SY_FP8},
        {"deepseek_v3_fp8", SY_ROLE_GATE, SY_DTYPE_NONE},
        {"deepseek_v3_fp8", SY_ROLE_NORM1, SY_DTYPE_NONE},
        {"deepseek_v3_fp8", SY_ROLE_EMBED, SY_DTYPE_NONE},
        {"gpt_oss_mxfp4", SY_ROLE_EXPERT_DOWN, SY_MXFP4},
        {"gpt_oss_mxfp4", SY_ROLE_EXPERT_DOWN_BIAS, SY_DTYPE_NONE},
        {"gpt_oss_mxfp4", SY_ROLE_Q, SY_DTYPE_NONE},
        {"gpt_oss", SY_ROLE_EXPERT_DOWN, SY_DTYPE_NONE}, /* transposed */
        {"mixtral", SY_ROLE_EXPERT_DOWN, SY_DTYPE_NONE},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        char dir[] = "/tmp/sy-encoded-XXXXXX", command[64];
        const sy_tensor *t;
        sy_model *model;
        sy_error err = {0};

        assert_non_null(mkdtemp(dir));
        write_family(dir, cases[i].family, SY_DTYPE_NONE);
        if (sy_model_open(&model, dir, NULL, &err) != SY_OK)
            fail_msg("%s: %s", cases[i].family, err.message);
        t = sy_model_tensor(model, cases[i].role, 1, 3);
        if (sy_tensor_encoded(t) != cases[i].want)
            fail_msg("%s, %s: %s, expected %s", cases[i].family, t->name,
                     sy_dtype_name(sy_tensor_encoded(t)), sy_dtype_name(cases[i].want));
        sy_model_close(model);
        snprintf(command, sizeof(command), "rm -rf %s", dir);
        assert_int_equal(system(command), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp8_rows_have_their_codes_and_the_factors_of_their_blocks),
        cmocka_unit_test(mxfp4_rows_have_their_codes_and_scales),
        cmocka_unit_test(blocks_of_gguf_turn_into_the_same_numbers),
        cmocka_unit_test(a_checkpoint_says_what_is_encoded_as_what),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
