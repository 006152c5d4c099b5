/* test_npy.c - .npy files: what NumPy writes is read, what is written NumPy reads, and everything
 * else is an error that says what is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tool_npy.h"

/* A file in memory: version, a dictionary, and n_data bytes that count up. */
typedef struct image {
    uint8_t bytes[4096];
    size_t n;
} image;

static image image_of(int version, const char *dictionary, size_t n_data)
{
    image im = {.n = version == 2 ? 12 : 10};
    const size_t len = strlen(dictionary);

    memcpy(im.bytes, "\x93NUMPY", 6);
    im.bytes[6] = (uint8_t)version;
    im.bytes[8] = (uint8_t)(len & 0xff);
    im.bytes[9] = (uint8_t)(len >> 8);
    memcpy(im.bytes + im.n, dictionary, len);
    im.n += len;
    for (size_t i = 0; i < n_data; i++) im.bytes[im.n++] = (uint8_t)i;
    return im;
}

/* Parses from a block of exactly the image's size, so that a read past the end is seen. */
static sy_status parse(tool_npy *out, const image *im, size_t n, int bf16, sy_error *err)
{
    uint8_t *exact = malloc(n + 1);
    sy_status st;

    assert_non_null(exact);
    memcpy(exact + 1, im->bytes, n); /* and at an odd address */
    st = tool_npy_parse(out, exact + 1, n, bf16, err);
    if (st == SY_OK && n > 0) {
        const uint8_t *data = out->data;
        const size_t n_data = out->rows * out->cols * sy_dtype_bytes(out->dtype);
        for (size_t i = 0; i < n_data; i++) assert_int_equal(data[i], (uint8_t)i);
    }
    free(exact);
    return st;
}

static void expect_error(const image *im, size_t n, const char *text)
{
    tool_npy npy;
    sy_error err = {0};
    const sy_status st = parse(&npy, im, n, 0, &err);

    if (st != SY_EINVAL || strstr(err.message, text) == NULL)
        fail_msg("%s \"%s\", expected INVALID_ARGUMENT with \"%s\"", sy_status_name(st),
                 err.message, text);
}

static void arrays_as_numpy_writes_them_are_read(void **state)
{
    static const struct {
        int version, bf16;
        const char *dictionary;
        sy_dtype dtype;
        uint64_t rows, cols;
    } cases[] = {
        {1, 0, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }      \n", SY_F32, 3, 4},
        {2, 0, "{'descr': '<f2', 'fortran_order': False, 'shape': (5, 1), }\n", SY_F16, 5, 1},
        {1, 1, "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }\n", SY_BF16, 2, 3},
        {1, 1, "{\"shape\":(2,3),\"fortran_order\":False,\"descr\":\"<f4\"}", SY_F32, 2, 3},
        {1, 0, "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 7), }\n", SY_F32, 0, 7},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        const image im = image_of(cases[i].version, cases[i].dictionary,
                                  cases[i].rows * cases[i].cols * sy_dtype_bytes(cases[i].dtype));
        tool_npy npy;
        sy_error err = {0};

        if (parse(&npy, &im, im.n, cases[i].bf16, &err) != SY_OK)
            fail_msg("%s: %s", cases[i].dictionary, err.message);
        assert_int_equal(npy.dtype, cases[i].dtype);
        assert_int_equal(npy.rows, cases[i].rows);
        assert_int_equal(npy.cols, cases[i].cols);
    }
}

static void malformed_files_are_errors_that_say_why(void **state)
{
    static const struct {
        const char *dictionary;
        size_t n_data;
        const char *error;
    } cases[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}", 47, "but 47 follow"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}", 49, "but 49 follow"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4)}", 96, "'<f8'"},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (3, 4)}", 48, "'>f4'"},
        {"{'descr': '\x01\xff', 'fortran_order': False, 'shape': (1, 1)}", 4, "type '?"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (3, 4)}", 24, "--bf16"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}", 12, "structured"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (3, 4)}", 48, "ascontiguousarray"},
        {"{'descr': '<f4', 'fortran_order': 1, 'shape': (3, 4)}", 48, "neither True nor False"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (12,)}", 48, "1 dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': ()}", 4, "0 dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 6)}", 48, "3 dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, -4)}", 48, "whole number"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4}", 48, "parenthesis"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 12}", 48, "not a tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 1)}", 4,
         "too large"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}", 0,
         "too large"},
        {"{'descr': '<f4', 'fortran_order': False}", 4, "'shape' is missing"},
        {"{'descr': '<f4', 'shape': (1, 1)}", 4, "'fortran_order' is missing"},
        {"{'fortran_order': False, 'shape': (1, 1)}", 4, "'descr' is missing"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)}", 4, "twice"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1), 'more': 1}", 4, "'more'"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)} x", 4, "follows the closing"},
        {"{'descr': '<f4' 'fortran_order': False, 'shape': (1, 1)}", 4, "a comma"},
        {"{'descr' '<f4'}", 4, "no value"},
        {"{'descr': '<f4", 4, "does not end"},
        {"{descr: '<f4'}", 4, "a string is missing"},
        {"", 4, "begin with a brace"},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        const image im = image_of(1, cases[i].dictionary, cases[i].n_data);

        expect_error(&im, im.n, cases[i].error);
    }
}

static void files_of_other_kinds_are_named(void **state)
{
    image im = image_of(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)}", 4);

    (void)state;
    im.bytes[6] = 3;
    expect_error(&im, im.n, "version 3.0");
    im.bytes[6] = 2; /* the dictionary's first bytes become a length */
    expect_error(&im, im.n, "at most");
    im.bytes[0] = 'P';
    expect_error(&im, im.n, "not a .npy file");
}

static void a_file_cut_anywhere_is_an_error(void **state)
{
    for (int version = 1; version <= 2; version++) {
        const image im =
            image_of(version, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}\n", 16);

        for (size_t n = 0; n < im.n; n++) {
            tool_npy npy;
            sy_error err = {0};

            if (parse(&npy, &im, n, 0, &err) != SY_EINVAL)
                fail_msg("version %d, %zu of %zu bytes: accepted", version, n, im.n);
        }
    }
    (void)state;
}

static void what_is_written_reads_back(void **state)
{
    static const sy_dtype dtypes[] = {SY_F32, SY_F16, SY_BF16};
    char path[] = "/tmp/sy-npy-XXXXXX";
    const int fd = mkstemp(path);
    uint8_t data[6 * 4];

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof(data); i++) data[i] = (uint8_t)(i * 11);
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++) {
        const size_t n = 6 * sy_dtype_bytes(dtypes[d]);
        const sy_iov pieces[] = {{data, 5}, {data + 5, n - 5}};
        sy_error err = {0};
        tool_npy npy;

        if (tool_npy_write(path, (tool_npy_shape){dtypes[d], 2, 3}, pieces, 2, &err) != SY_OK ||
            tool_npy_read(&npy, path, 1, &err) != SY_OK)
            fail_msg("%s: %s", sy_dtype_name(dtypes[d]), err.message);
        assert_int_equal(npy.dtype, dtypes[d]);
        assert_int_equal(npy.rows, 2);
        assert_int_equal(npy.cols, 3);
        assert_memory_equal(npy.data, data, n);
        assert_int_equal(((const char *)npy.data - npy.file) % 64, 0);
        tool_npy_free(&npy);
    }
    unlink(path);
}

static void errors_of_files_name_the_path(void **state)
{
    const sy_iov piece = {"1234", 4};
    sy_error err = {0};
    tool_npy npy;

    (void)state;
    assert_int_equal(tool_npy_read(&npy, "/nonexistent/x.npy", 0, &err), SY_ENOTFOUND);
    assert_non_null(strstr(err.message, "/nonexistent/x.npy"));
    assert_int_equal(tool_npy_read(&npy, "/etc/passwd", 0, &err), SY_EINVAL);
    assert_non_null(strstr(err.message, "/etc/passwd: not a .npy file"));
    assert_int_equal(
        tool_npy_write("/nonexistent/x.npy", (tool_npy_shape){SY_F32, 1, 1}, &piece, 1, &err),
        SY_EIO);
    assert_non_null(strstr(err.message, "/nonexistent/x.npy"));
    assert_int_equal(
        tool_npy_write("/nonexistent/x.npy", (tool_npy_shape){SY_F32, 1, 2}, &piece, 1, &err),
        SY_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_as_numpy_writes_them_are_read),
        cmocka_unit_test(malformed_files_are_errors_that_say_why),
        cmocka_unit_test(files_of_other_kinds_are_named),
        cmocka_unit_test(a_file_cut_anywhere_is_an_error),
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(errors_of_files_name_the_path),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
