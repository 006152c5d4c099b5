/* test_device_measure.c - measuring a device whose backend is in this file: what its failures
 * become, that bytes which change on their way are noticed, and that all is given back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_measure.h"

enum { FAIL_OPEN = 1, FAIL_MEMORY, FAIL_ALLOC, FAIL_IN, FAIL_FIRST_OUT, FAIL_OUT, FAIL_MEASURE };

static int fail_at; /* one of the above; 0: nothing */
static int fail_with;
static int n_calls, n_live, flips_a_bit;
static sy_error err;
static device_measure measured;

struct sy_backend_handle {
    int unused;
};

struct sy_backend_buffer {
    uint64_t bytes;
    unsigned char data[];
};

static int begin(void **state)
{
    (void)state;
    fail_at = n_calls = n_live = flips_a_bit = 0;
    sy_error_clear(&err);
    return 0;
}

static int end(void **state)
{
    (void)state;
    return n_live != 0;
}

static int call(char *why)
{
    if (++n_calls != fail_at) return SY_BACKEND_OK;
    snprintf(why, SY_BACKEND_WHY_BYTES, "call %d is told to fail", n_calls);
    return fail_with;
}

static int open_device(sy_backend_handle **out, uint32_t device, char *why)
{
    static sy_backend_handle handle;
    const int result = call(why);

    assert_int_equal(device, 3);
    *out = result == SY_BACKEND_OK ? &handle : NULL;
    n_live += *out != NULL;
    return result;
}

static void close_device(sy_backend_handle *handle)
{
    n_live -= handle != NULL;
}

static int memory(sy_backend_handle *handle, uint64_t *free_bytes, uint64_t *total_bytes, char *why)
{
    (void)handle;
    *free_bytes = 70;
    *total_bytes = 80;
    return call(why);
}

static int buffer_alloc(sy_backend_buffer **out, sy_backend_handle *handle, uint64_t bytes,
                        char *why)
{
    const int result = call(why);

    (void)handle;
    *out = NULL;
    if (result != SY_BACKEND_OK) return result;
    *out = malloc(sizeof(**out) + bytes);
    assert_non_null(*out);
    (*out)->bytes = bytes;
    n_live++;
    return result;
}

static void buffer_free(sy_backend_buffer *buffer)
{
    n_live -= buffer != NULL;
    free(buffer);
}

static int copy_in(sy_backend_buffer *buffer, uint64_t offset, const void *host, uint64_t n,
                   char *why)
{
    assert_true(offset + n <= buffer->bytes);
    memcpy(buffer->data + offset, host, n);
    if (flips_a_bit) buffer->data[offset + n - 1] ^= 1;
    return call(why);
}

static int copy_out(void *host, sy_backend_buffer *buffer, uint64_t offset, uint64_t n, char *why)
{
    assert_true(offset + n <= buffer->bytes);
    memcpy(host, buffer->data + offset, n);
    return call(why);
}

static int measure_copies(sy_backend_bandwidth *out, sy_backend_handle *handle, uint64_t bytes,
                          char *why)
{
    (void)handle;
    assert_true(bytes > 0);
    *out = (sy_backend_bandwidth){1, 2, 3};
    return call(why);
}

static const sy_backend backend = {.open = open_device,
                                   .close = close_device,
                                   .memory = memory,
                                   .buffer_alloc = buffer_alloc,
                                   .buffer_free = buffer_free,
                                   .copy_in = copy_in,
                                   .copy_out = copy_out,
                                   .measure_copies = measure_copies};

static void a_device_that_works_is_measured(void **state)
{
    (void)state;
    assert_int_equal(device_measure_run(&measured, &backend, 3, &err), SY_OK);
    assert_int_equal(n_calls, FAIL_MEASURE);
    assert_int_equal(measured.free_bytes, 70);
    assert_int_equal(measured.total_bytes, 80);
    assert_true(measured.copies.on_device == 3);
}

static void one_changed_bit_is_noticed(void **state)
{
    (void)state;
    flips_a_bit = 1;
    assert_int_equal(device_measure_run(&measured, &backend, 3, &err), SY_EDATALOSS);
    assert_non_null(strstr(err.message, "cuda:3"));
}

static void any_failure_is_told_and_all_is_given_back(void **state)
{
    char text[64];

    (void)state;
    for (int at = FAIL_OPEN; at <= FAIL_MEASURE; at++) {
        begin(state);
        fail_at = at;
        fail_with = at % 2 == 0 ? SY_BACKEND_ENOMEM : SY_BACKEND_EDEVLOST;
        assert_int_equal(device_measure_run(&measured, &backend, 3, &err),
                         at % 2 == 0 ? SY_ENOMEM : SY_EUNAVAILABLE);
        snprintf(text, sizeof(text), "call %d is told to fail", at);
        assert_string_equal(err.message, text);
        assert_int_equal(n_live, 0);
        assert_int_equal(n_calls, at);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_device_that_works_is_measured, begin, end),
        cmocka_unit_test_setup_teardown(one_changed_bit_is_noticed, begin, end),
        cmocka_unit_test_setup_teardown(any_failure_is_told_and_all_is_given_back, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
