/* device_measure.c - see the header. */
#include "device_measure.h"

#include <stdlib.h>
#include <string.h>

#include "sy_backend_load.h"

/* Odd, so that no copy is a whole number of pages or words. */
#define CHECK_BYTES ((size_t)(1 << 20) - 7)
#define COPY_BYTES  ((uint64_t)256 << 20)

static sy_status fail(sy_error *err, int result, const char *why)
{
    return sy_error_set(err, sy_backend_status(result), "%s", why);
}

/* Every byte tells its place, over a period that divides no power of two. */
static void fill(unsigned char *out, size_t n)
{
    for (size_t i = 0; i < n; i++) out[i] = (unsigned char)(i % 251);
}

/* host: [2 * CHECK_BYTES] of scratch. The bytes return by two copies, the second from the middle of
 * the buffer. */
static sy_status check_with(unsigned char *host, const sy_backend *backend,
                            sy_backend_buffer *buffer, uint32_t number, sy_error *err)
{
    const size_t n_first = CHECK_BYTES / 3;
    unsigned char *back = host + CHECK_BYTES;
    char why[SY_BACKEND_WHY_BYTES];
    int result;

    fill(host, CHECK_BYTES);
    memset(back, 0xff, CHECK_BYTES);
    result = backend->copy_in(buffer, 0, host, CHECK_BYTES, why);
    if (result == SY_BACKEND_OK) result = backend->copy_out(back, buffer, 0, n_first, why);
    if (result == SY_BACKEND_OK)
        result = backend->copy_out(back + n_first, buffer, n_first, CHECK_BYTES - n_first, why);
    if (result != SY_BACKEND_OK) return fail(err, result, why);
    if (memcmp(host, back, CHECK_BYTES) == 0) return SY_OK;
    return sy_error_set(err, SY_EDATALOSS,
                        "cuda:%u gives back other bytes than it was given: do not use it", number);
}

static sy_status check_copies(const sy_backend *backend, sy_backend_handle *handle, uint32_t number,
                              sy_error *err)
{
    unsigned char *host = malloc(2 * CHECK_BYTES);
    sy_backend_buffer *buffer = NULL;
    char why[SY_BACKEND_WHY_BYTES];
    int result;
    sy_status st;

    if (host == NULL) return sy_error_set(err, SY_ENOMEM, "no memory to check copies with");
    result = backend->buffer_alloc(&buffer, handle, CHECK_BYTES, why);
    st = result != SY_BACKEND_OK ? fail(err, result, why)
                                 : check_with(host, backend, buffer, number, err);
    backend->buffer_free(buffer);
    free(host);
    return st;
}

sy_status device_measure_run(device_measure *out, const sy_backend *backend, uint32_t number,
                             sy_error *err)
{
    sy_backend_handle *handle = NULL;
    char why[SY_BACKEND_WHY_BYTES];
    int result = backend->open(&handle, number, why);
    sy_status st;

    *out = (device_measure){0};
    if (result != SY_BACKEND_OK) return fail(err, result, why);
    result = backend->memory(handle, &out->free_bytes, &out->total_bytes, why);
    st = result == SY_BACKEND_OK ? check_copies(backend, handle, number, err)
                                 : fail(err, result, why);
    if (st == SY_OK) {
        result = backend->measure_copies(&out->copies, handle, COPY_BYTES, why);
        if (result != SY_BACKEND_OK) st = fail(err, result, why);
    }
    backend->close(handle);
    return st;
}
