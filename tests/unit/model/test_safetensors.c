/* test_safetensors.c - what the reader takes and what it refuses: the known attack files among
 * them, made here. */
#include "checkpoint_files.h"

#include <sys/stat.h>

#include "sy_safetensors.h"

static char dir[4096];

static int setup(void **state)
{
    (void)state;
    temp_dir_make(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    temp_dir_remove(dir);
    return 0;
}

static const char *file_path(void)
{
    return in_dir(dir, "model.safetensors");
}

static void expect_refused(const char *path, sy_status wanted, const char *part)
{
    sy_safetensors *file = (sy_safetensors *)&file;
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    st = sy_safetensors_open(&file, path, &err);
    if (st != wanted) {
        fail_msg("wanted %s with \"%s\", got %s: %s", sy_status_name(wanted), part,
                 sy_status_name(st), err.message);
    }
    assert_null(file);
    assert_int_equal(err.status, wanted);
    expect_text(err.message, part);
    expect_text(err.message, path);
}

static void refuse_n(const char *header, size_t header_n, size_t data_n, const char *part)
{
    write_safetensors(file_path(), header_n, header, header_n, data_n);
    expect_refused(file_path(), SY_EINVAL, part);
}

static void refuse(const char *header, size_t data_n, const char *part)
{
    refuse_n(header, strlen(header), data_n, part);
}

static sy_safetensors *accept(const char *header, size_t data_n)
{
    sy_safetensors *file;
    sy_error err;

    write_safetensors(file_path(), strlen(header), header, strlen(header), data_n);
    expect_ok(sy_safetensors_open(&file, file_path(), &err), &err);
    return file;
}

#define ENTRY(dtype, shape, offsets) \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void a_sound_file_gives_its_tensors_in_file_order(void **state)
{
    sy_safetensors *file = accept(
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"b\":" ENTRY("F32", "[2,1]", "[4,12]") ",\"a\":" ENTRY("BF16", "[2]", "[0,4]") "}  ",
        12);
    const sy_tensor *a = sy_safetensors_at(file, 0);
    const sy_tensor *b = sy_safetensors_find(file, "b");

    (void)state;
    assert_int_equal(sy_safetensors_count(file), 2);
    assert_string_equal(a->name, "a");
    assert_int_equal(a->dtype, SY_BF16);
    assert_int_equal(a->rank, 1);
    assert_int_equal(a->bytes, 4);
    assert_ptr_equal(b, sy_safetensors_at(file, 1));
    assert_string_equal(b->dtype_name, "F32");
    assert_int_equal(b->shape[0], 2);
    assert_int_equal(b->shape[1], 1);
    assert_int_equal(b->n_elements, 2);
    assert_int_equal(b->data[0], 4); /* the byte's number */
    assert_ptr_equal(b->data, a->data + 4);
    assert_null(sy_safetensors_find(file, "c"));
    assert_null(sy_safetensors_at(file, 2));
    sy_safetensors_close(file);
}

static void scalars_empty_tensors_and_other_types_are_sound(void **state)
{
    sy_safetensors *file =
        accept(" \t\r\n{\"scalar\":" ENTRY("F16", "[]", "[0,2]") /* one element */
               ",\"none\":" ENTRY("F32", "[0,7]", "[2,2]")       /* none */
               ",\"also none\":" ENTRY("U8", "[0]", "[2,2]")     /* at the same place */
               ",\"fp8\":" ENTRY("F8_E4M3", "[3]", "[2,5]")      /* no kernel reads it */
               ",\"fp4\":" ENTRY("F4", "[2]", "[5,6]")           /* two elements a byte */
               ",\"\\u00e9\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[6,14],"
               "\"extra\":[{\"x\":1.5}]}}\n\t ",
               14);

    (void)state;
    assert_int_equal(sy_safetensors_count(file), 6);
    assert_int_equal(sy_safetensors_find(file, "scalar")->n_elements, 1);
    assert_int_equal(sy_safetensors_find(file, "none")->n_elements, 0);
    assert_int_equal(sy_safetensors_find(file, "fp8")->dtype, SY_DTYPE_NONE);
    assert_string_equal(sy_safetensors_find(file, "fp8")->dtype_name, "F8_E4M3");
    assert_int_equal(sy_safetensors_find(file, "fp4")->bytes, 1);
    assert_non_null(sy_safetensors_find(file, "é"));
    sy_safetensors_close(file);
    file = accept("{}", 0);
    assert_int_equal(sy_safetensors_count(file), 0);
    assert_null(sy_safetensors_find(file, "a"));
    sy_safetensors_close(file);
}

static void lengths_that_the_file_does_not_have_are_refused(void **state)
{
    (void)state;
    expect_refused(in_dir(dir, "absent"), SY_ENOTFOUND, "absent");
    write_bytes(file_path(), "", 0);
    expect_refused(file_path(), SY_EINVAL, "too few");
    write_bytes(file_path(), "\2\0\0\0\0\0\0", 7);
    expect_refused(file_path(), SY_EINVAL, "too few");
    write_safetensors(file_path(), 3, "{}", 2, 0);
    expect_refused(file_path(), SY_EINVAL, "truncated");
    write_safetensors(file_path(), UINT64_C(1) << 63, "{}", 2, 0);
    expect_refused(file_path(), SY_EINVAL, "limit of 100000000");
    write_safetensors(file_path(), UINT64_MAX - 7, "{}", 2, 0);
    expect_refused(file_path(), SY_EINVAL, "limit of 100000000");
    write_safetensors(file_path(), 0, "{}", 2, 0);
    expect_refused(file_path(), SY_EINVAL, "empty");
}

static void a_header_above_100_megabytes_is_refused_unread(void **state)
{
    (void)state;
    write_safetensors(file_path(), 100000001, "{}", 2, 0);
    assert_int_equal(truncate(file_path(), 8 + 100000001), 0);
    expect_refused(file_path(), SY_EINVAL, "100000001");
}

static void what_is_no_regular_file_is_refused_and_not_waited_for(void **state)
{
    (void)state;
    assert_int_equal(mkfifo(file_path(), 0600), 0);
    expect_refused(file_path(), SY_EINVAL, "regular file");
    expect_refused(dir, SY_EINVAL, "regular file");
}

static void headers_that_are_no_json_object_are_refused(void **state)
{
    (void)state;
    refuse("{", 0, "not JSON");
    refuse("[]", 0, "an array");
    refuse("7", 0, "JSON");
    refuse("{}{}", 0, "not JSON");
    refuse("\xef\xbb\xbf{}", 0, "JSON");
    refuse_n("{}\0", 3, 0, "JSON");
    refuse("{\"\xff\":" ENTRY("U8", "[1]", "[0,1]") "}", 1, "UTF-8");
    refuse("{\"\xed\xa0\x80\":" ENTRY("U8", "[1]", "[0,1]") "}", 1, "UTF-8");
    refuse("{\"\\u0000\":" ENTRY("U8", "[1]", "[0,1]") "}", 1, "JSON");
}

static void deep_nesting_is_refused(void **state)
{
    enum { DEPTH = 100000 };
    char *header = malloc(DEPTH);

    (void)state;
    assert_non_null(header);
    memset(header, '[', DEPTH);
    refuse_n(header, DEPTH, 0, "nested");
    free(header);
}

static void more_values_than_the_limit_are_refused(void **state)
{
    enum { N = 9000000 };
    char *header = malloc(N);

    (void)state;
    assert_non_null(header);
    memset(header, ' ', N);
    memcpy(header, "{\"a\":[0", 7);
    for (size_t i = 7; i + 2 < N - 2; i += 2) memcpy(header + i, ",0", 2);
    memcpy(header + N - 2, "]}", 2);
    write_safetensors(file_path(), N, header, N, 0);
    expect_refused(file_path(), SY_ELIMIT, "4000000");
    free(header);
}

static void a_name_that_stands_twice_is_refused(void **state)
{
    (void)state;
    refuse("{\"model.norm\":" ENTRY("U8", "[1]", "[0,1]") ",\"model.norm\":" ENTRY("U8", "[1]",
                                                                                   "[1,2]") "}",
           2, "\"model.norm\" twice");
    refuse("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
           "\"dtype\" twice");
}

static void names_beyond_the_limit_are_refused(void **state)
{
    char header[1024];
    char name[SY_TENSOR_NAME_MAX + 2];
    sy_safetensors *file;

    (void)state;
    memset(name, 'n', sizeof(name));
    name[SY_TENSOR_NAME_MAX + 1] = '\0';
    snprintf(header, sizeof(header), "{\"%s\":" ENTRY("U8", "[1]", "[0,1]") "}", name);
    refuse(header, 1, "limit of 512");
    name[SY_TENSOR_NAME_MAX] = '\0';
    snprintf(header, sizeof(header), "{\"%s\":" ENTRY("U8", "[1]", "[0,1]") "}", name);
    file = accept(header, 1);
    assert_non_null(sy_safetensors_find(file, name));
    sy_safetensors_close(file);
}

static void entries_of_the_wrong_kind_are_refused(void **state)
{
    (void)state;
    refuse("{\"a\":1}", 0, "an integer, not an object");
    refuse("{\"a\":{}}", 0, "dtype is missing");
    refuse("{\"a\":" ENTRY("F12", "[1]", "[0,1]") "}", 1, "\"F12\" is unknown");
    refuse("{\"a\":" ENTRY("bf16", "[1]", "[0,2]") "}", 2, "\"bf16\" is unknown");
    refuse("{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype is an integer");
    refuse("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "shape is missing");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "data_offsets");
    refuse("{\"a\":" ENTRY("U8", "[1.0]", "[0,1]") "}", 1, "no integer >= 0 in tensor \"a\"");
    refuse("{\"a\":" ENTRY("U8", "[-1]", "[0,1]") "}", 1, "no integer >= 0 in tensor \"a\"");
    refuse("{\"a\":" ENTRY("U8", "[\"1\"]", "[0,1]") "}", 1, "no integer >= 0");
    refuse("{\"a\":" ENTRY("U8", "[1]", "[0]") "}", 1, "data_offsets");
    refuse("{\"a\":" ENTRY("U8", "[1]", "[0,1,2]") "}", 1, "data_offsets");
    refuse("{\"a\":" ENTRY("U8", "[1]", "[-1,0]") "}", 1, "data_offsets");
    refuse("{\"a\":" ENTRY("U8", "[1]", "[0,1e0]") "}", 1, "data_offsets");
    refuse("{\"a\":" ENTRY("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "9 dimensions");
    refuse("{\"__metadata__\":[]}", 0, "an array, not an object");
    refuse("{\"__metadata__\":{\"n\":1}}", 0, "an integer, where only strings");
}

static void holes_overlaps_and_aliases_are_refused(void **state)
{
    (void)state;
    refuse("{\"a\":" ENTRY("U8", "[1]", "[1,2]") "}", 2, "hole");
    refuse("{\"a\":" ENTRY("U8", "[2]", "[0,2]") ",\"b\":" ENTRY("U8", "[1]", "[3,4]") "}", 4,
           "hole before them (the data before them ends at 2) in tensor \"b\"");
    refuse("{\"a\":" ENTRY("U8", "[2]", "[0,2]") ",\"b\":" ENTRY("U8", "[2]", "[1,3]") "}", 3,
           "overlap");
    refuse("{\"a\":" ENTRY("U8", "[4]", "[0,4]") ",\"b\":" ENTRY("U8", "[4]", "[0,4]") "}", 4,
           "overlap");
    refuse("{\"a\":" ENTRY("U8", "[1]", "[2,1]") "}", 2, "reversed");
    refuse("{\"a\":" ENTRY("U8", "[1]", "[9223372036854775807,0]") "}", 2, "reversed");
}

/* A small file that asks for a terabyte of tensors. */
static void a_hundred_thousand_tensors_over_the_same_bytes_are_refused(void **state)
{
    enum { N = 100000, ENTRY_BYTES = 80 };
    char *header = malloc((size_t)N * ENTRY_BYTES);
    size_t len = 1;

    (void)state;
    assert_non_null(header);
    header[0] = '{';
    for (size_t i = 0; i < N; i++) {
        len += (size_t)snprintf(header + len, ENTRY_BYTES,
                                "%s\"t%zu\":" ENTRY("U8", "[64]", "[0,64]"), i > 0 ? "," : "", i);
    }
    header[len++] = '}';
    refuse_n(header, len, 64, "overlap");
    free(header);
}

static void sizes_that_do_not_match_the_shape_are_refused(void **state)
{
    (void)state;
    refuse("{\"a\":" ENTRY("F32", "[2]", "[0,4]") "}", 4, "needs 8 bytes");
    refuse("{\"a\":" ENTRY("F32", "[1]", "[0,8]") "}", 8, "needs 4 bytes");
    refuse("{\"a\":" ENTRY("F4", "[3]", "[0,2]") "}", 2, "whole number of bytes");
    refuse("{\"a\":" ENTRY("F6_E2M3", "[3]", "[0,3]") "}", 3, "whole number of bytes");
}

static void shapes_whose_product_overflows_are_refused(void **state)
{
    (void)state;
    refuse("{\"a\":" ENTRY("U8", "[2,18446744073709551614]", "[0,0]") "}", 0, "too big integer");
    refuse("{\"a\":" ENTRY("U8", "[2,9223372036854775807]", "[0,0]") "}", 0, "overflows");
    refuse("{\"a\":" ENTRY("U8", "[4,9223372036854775807]", "[0,0]") "}", 0, "overflows");
    refuse("{\"a\":" ENTRY("F64", "[4294967296,4294967296]", "[0,0]") "}", 0, "overflows");
    refuse("{\"a\":" ENTRY("F64", "[1152921504606846976]", "[0,0]") "}", 0, "overflows");
}

static void missing_and_trailing_bytes_are_refused(void **state)
{
    (void)state;
    refuse("{\"a\":" ENTRY("U8", "[4]", "[0,4]") "}", 3, "truncated");
    refuse("{\"a\":" ENTRY("U8", "[4]", "[0,4]") "}", 5, "bytes of no tensor");
    refuse("{}", 1, "bytes of no tensor");
    refuse("{\"a\":" ENTRY("U8", "[9223372036854775]", "[0,9223372036854775]") "}", 3, "truncated");
}

static sy_status sum_bytes(void *arg)
{
    const sy_tensor *tensor = arg;
    unsigned sum = 0;

    for (uint64_t i = 0; i < tensor->bytes; i++) sum += tensor->data[i];
    return sum == 0 ? SY_OK : SY_EINVAL;
}

static void a_file_cut_while_it_is_open_is_an_error_and_no_crash(void **state)
{
    const char *header = "{\"a\":" ENTRY("U8", "[1048576]", "[0,1048576]") "}";
    sy_safetensors *file = accept(header, 1048576);
    sy_tensor tensor = *sy_safetensors_at(file, 0);
    sy_error err;

    (void)state;
    assert_int_equal(sy_map_guard(sum_bytes, &tensor, &err), SY_EINVAL);
    assert_int_equal(truncate(file_path(), 4096), 0);
    assert_int_equal(sy_map_guard(sum_bytes, &tensor, &err), SY_EDATALOSS);
    sy_safetensors_close(file);
}

/* Emits entry number + 1 in every byte, in two pieces. */
static sy_status fill_with_number(void *arg, size_t entry, sy_st_emit emit, void *sink)
{
    const size_t *bytes = arg;
    uint8_t data[64];
    sy_status st;

    memset(data, (int)entry + 1, sizeof(data));
    st = emit(sink, data, bytes[entry] / 2);
    return st == SY_OK ? emit(sink, data, bytes[entry] - bytes[entry] / 2) : st;
}

static void a_written_file_reads_back_in_the_reference_writers_order(void **state)
{
    static const sy_st_entry entries[] = {
        {.name = "z", .dtype = SY_F16, .rank = 1, .shape = {3}},
        {.name = "b", .dtype = SY_F32, .rank = 2, .shape = {2, 2}},
        {.name = "\"quoted\" é\n", .dtype = SY_BF16, .rank = 0},
        {.name = "a", .dtype = SY_F32, .rank = 1, .shape = {1}},
        {.name = "empty", .dtype = SY_F16, .rank = 2, .shape = {0, 5}},
    };
    static const char *const order[] = {"a", "b", "\"quoted\" é\n", "empty", "z"};
    size_t bytes[] = {6, 16, 2, 4, 0};
    sy_safetensors *file;
    sy_error err;

    (void)state;
    expect_ok(sy_safetensors_write(file_path(), entries, 5, fill_with_number, bytes, &err), &err);
    expect_ok(sy_safetensors_open(&file, file_path(), &err), &err);
    assert_int_equal(sy_safetensors_count(file), 5);
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(sy_safetensors_at(file, i)->name, order[i]);
    }
    assert_int_equal(sy_safetensors_find(file, "b")->data[15], 2);
    assert_int_equal(sy_safetensors_find(file, "z")->data[0], 1);
    assert_int_equal((uintptr_t)sy_safetensors_at(file, 0)->data % 8, 0);
    sy_safetensors_close(file);
}

static sy_status fill_too_little(void *arg, size_t entry, sy_st_emit emit, void *sink)
{
    (void)entry;
    return emit(sink, "1234567890", *(const size_t *)arg);
}

static void a_write_that_fails_leaves_no_file(void **state)
{
    static const sy_st_entry entries[] = {{.name = "a", .dtype = SY_F32, .rank = 1, .shape = {2}},
                                          {.name = "a", .dtype = SY_F32, .rank = 1, .shape = {2}}};
    size_t bytes = 7;
    sy_error err;

    (void)state;
    assert_int_equal(sy_safetensors_write(file_path(), entries, 1, fill_too_little, &bytes, &err),
                     SY_EINVAL);
    expect_text(err.message, "8 that its shape needs: tensor \"a\"");
    bytes = 9;
    assert_int_equal(sy_safetensors_write(file_path(), entries, 1, fill_too_little, &bytes, &err),
                     SY_EINVAL);
    assert_int_equal(sy_safetensors_write(file_path(), entries, 2, fill_too_little, &bytes, &err),
                     SY_EINVAL);
    expect_text(err.message, "two tensors are called \"a\"");
    assert_false(sy_file_exists(file_path()));
    assert_false(sy_file_exists(in_dir(dir, "model.safetensors.partial")));
    assert_int_equal(
        sy_safetensors_write(in_dir(dir, "no/such/dir"), entries, 1, fill_too_little, &bytes, &err),
        SY_EIO);
    expect_text(err.message, "cannot create");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_sound_file_gives_its_tensors_in_file_order),
        TEST(scalars_empty_tensors_and_other_types_are_sound),
        TEST(lengths_that_the_file_does_not_have_are_refused),
        TEST(a_header_above_100_megabytes_is_refused_unread),
        TEST(what_is_no_regular_file_is_refused_and_not_waited_for),
        TEST(headers_that_are_no_json_object_are_refused),
        TEST(deep_nesting_is_refused),
        TEST(more_values_than_the_limit_are_refused),
        TEST(a_name_that_stands_twice_is_refused),
        TEST(names_beyond_the_limit_are_refused),
        TEST(entries_of_the_wrong_kind_are_refused),
        TEST(holes_overlaps_and_aliases_are_refused),
        TEST(a_hundred_thousand_tensors_over_the_same_bytes_are_refused),
        TEST(sizes_that_do_not_match_the_shape_are_refused),
        TEST(shapes_whose_product_overflows_are_refused),
        TEST(missing_and_trailing_bytes_are_refused),
        TEST(a_file_cut_while_it_is_open_is_an_error_and_no_crash),
        TEST(a_written_file_reads_back_in_the_reference_writers_order),
        TEST(a_write_that_fails_leaves_no_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
