/* test_cuda_backend.c - the CUDA plugin's code over an emulated runtime (emu_cudart.h): what it
 * tells of devices, how errors of the runtime arrive, and that nothing is left behind when any call
 * fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "emu_cudart.h"
#include "sy_backend.h"

const sy_backend *sy_backend_get(uint32_t abi);

static const sy_backend *cuda;
static char why[SY_BACKEND_WHY_BYTES];
static emu_cudart_machine *machine;

/* Two devices that work. Whatever belongs to one may be used only while it is the current one. */
static int begin(void **state)
{
    (void)state;
    emu_cudart_reset();
    machine = emu_cudart_machine_get();
    machine->strict = 1;
    for (int i = 0; i < EMU_CUDART_DEVICES_MAX;
         i++) { /* a name without an end, as none should be */
        memset(machine->device[i].name, 'N', sizeof(machine->device[i].name) - 1);
    }
    cuda = sy_backend_get(SY_BACKEND_ABI);
    why[0] = '\0';
    return cuda == NULL;
}

static int end(void **state)
{
    (void)state;
    return emu_cudart_n_live() != 0;
}

static void assert_says(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("'%s' is not in: %s", part, text);
}

static void only_the_abi_of_the_header_is_served(void **state)
{
    (void)state;
    assert_null(sy_backend_get(SY_BACKEND_ABI + 1));
    assert_null(sy_backend_get(0));
    assert_int_equal(cuda->size, sizeof(sy_backend));
    assert_string_equal(cuda->name, "cuda");
}

/* ---- what is there ---- */

static sy_backend_system host;
static sy_backend_device device[4];
static uint32_t n;

static int probe(void)
{
    memset(device, 0xee, sizeof(device));
    return cuda->probe(&host, device, 4, &n, why);
}

static void devices_are_described(void **state)
{
    (void)state;
    assert_int_equal(probe(), SY_BACKEND_OK);
    assert_int_equal(n, 2);
    assert_int_equal(host.driver_version, 13000);
    assert_int_equal(host.runtime_version, 13000);
    assert_int_equal(strlen(device[1].name), sizeof(device[1].name) - 1);
    assert_string_equal(device[1].pci, "0000:01:00.0");
    assert_int_equal(device[1].major, 9);
    assert_int_equal(device[1].n_multiprocessors, 132);
    assert_int_equal(device[1].has_ecc, 1);
    assert_int_equal(device[1].memory_bytes, (uint64_t)256 << 20);
    assert_int_equal(device[1].usable, 1);
    assert_string_equal(device[1].why, "");
}

static void a_missing_driver_is_no_device_and_still_tells_the_versions(void **state)
{
    (void)state;
    machine->driver_version = 0;
    assert_int_equal(probe(), SY_BACKEND_ENODEVICE);
    assert_int_equal(n, 0);
    assert_int_equal(host.driver_version, 0);
    assert_int_equal(host.runtime_version, CUDART_VERSION);
    assert_says(why, "CUDA driver version is insufficient for CUDA runtime version "
                     "(cudaErrorInsufficientDriver)");
}

static void a_driver_without_devices_is_no_device(void **state)
{
    (void)state;
    machine->n_devices = 0;
    assert_int_equal(probe(), SY_BACKEND_ENODEVICE);
    assert_says(why, "cudaGetDeviceCount");
}

static void a_device_that_cannot_be_used_says_why_and_the_others_can(void **state)
{
    (void)state;
    machine->n_devices = 4;
    machine->device[0].major = 7;
    machine->device[1].compute_mode = cudaComputeModeProhibited;
    machine->device[2].properties_error = cudaErrorECCUncorrectable;
    assert_int_equal(probe(), SY_BACKEND_OK);
    assert_int_equal(device[0].usable, 0);
    assert_says(device[0].why, "7.0 is older than 8.0");
    assert_int_equal(device[1].usable, 0);
    assert_says(device[1].why, "Prohibited");
    assert_int_equal(device[2].usable, 0);
    assert_says(device[2].why, "cudaGetDeviceProperties");
    assert_int_equal(device[3].usable, 1);
}

static void more_devices_than_asked_for_are_counted_and_not_written(void **state)
{
    (void)state;
    machine->n_devices = 3;
    memset(device, 0xee, sizeof(device));
    assert_int_equal(cuda->probe(&host, device, 1, &n, why), SY_BACKEND_OK);
    assert_int_equal(n, 3);
    assert_int_equal(device[0].usable, 1);
    assert_int_equal((unsigned char)device[1].name[0], 0xee);
}

static void cublas_is_found_or_missed_in_words(void **state)
{
    uint64_t version = 1;
    const int result = cuda->blas_version(&version, why);

    (void)state;
    if (result == SY_BACKEND_OK) {
        assert_true(version >= 10000);
    } else {
        assert_int_equal(result, SY_BACKEND_ENODEVICE);
        assert_int_equal(version, 0);
        assert_says(why, "libcublasLt.so");
    }
}

/* ---- one device ---- */

enum { BYTES = 1000 };
static sy_backend_handle *handle;
static sy_backend_buffer *buffer;

static void open_second(void)
{
    assert_int_equal(cuda->open(&handle, 1, why), SY_BACKEND_OK);
    assert_int_equal(cuda->buffer_alloc(&buffer, handle, BYTES, why), SY_BACKEND_OK);
}

static void close_second(void)
{
    cuda->buffer_free(buffer);
    cuda->close(handle);
}

static void bytes_come_back_from_where_they_went(void **state)
{
    unsigned char in[BYTES], out[BYTES];

    (void)state;
    for (size_t i = 0; i < BYTES; i++) in[i] = (unsigned char)(i % 251);
    open_second();
    assert_int_equal(cuda->copy_in(buffer, 0, in, BYTES, why), SY_BACKEND_OK);
    assert_int_equal(cuda->copy_in(buffer, 17, in + 100, 3, why), SY_BACKEND_OK);
    assert_int_equal(cuda->copy_out(out, buffer, 5, BYTES - 5, why), SY_BACKEND_OK);
    memcpy(in + 17, (unsigned char[]){100, 101, 102}, 3);
    assert_memory_equal(out, in + 5, BYTES - 5);
    close_second();
}

static void ranges_outside_of_a_buffer_are_refused(void **state)
{
    static const struct {
        uint64_t offset, n;
    } outside[] = {{0, BYTES + 1},      {1, BYTES},         {BYTES, 1},
                   {BYTES + 1, 0},      {UINT64_MAX, 1},    {UINT64_MAX, UINT64_MAX},
                   {1, UINT64_MAX - 0}, {BYTES, UINT64_MAX}};
    unsigned char byte = 7;

    (void)state;
    open_second();
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
        assert_int_equal(cuda->copy_in(buffer, outside[i].offset, &byte, outside[i].n, why),
                         SY_BACKEND_EINVAL);
        assert_int_equal(cuda->copy_out(&byte, buffer, outside[i].offset, outside[i].n, why),
                         SY_BACKEND_EINVAL);
    }
    assert_int_equal(cuda->copy_in(buffer, BYTES, &byte, 0, why), SY_BACKEND_OK);
    assert_int_equal(byte, 7);
    close_second();
}

static void what_makes_no_sense_is_refused(void **state)
{
    sy_backend_bandwidth copies;

    (void)state;
    assert_int_equal(cuda->open(&handle, 2, why), SY_BACKEND_EINVAL);
    assert_null(handle);
    assert_says(why, "no device 2");
    assert_int_equal(cuda->open(&handle, UINT32_MAX, why), SY_BACKEND_EINVAL);
    cuda->close(NULL);
    cuda->buffer_free(NULL);
    open_second();
    close_second();
    assert_int_equal(cuda->open(&handle, 0, why), SY_BACKEND_OK);
    assert_int_equal(cuda->buffer_alloc(&buffer, handle, 0, why), SY_BACKEND_EINVAL);
    assert_null(buffer);
    assert_int_equal(cuda->measure_copies(&copies, handle, 0, why), SY_BACKEND_EINVAL);
    assert_int_equal(cuda->measure_copies(&copies, handle, UINT64_MAX, why), SY_BACKEND_EINVAL);
    cuda->close(handle);
}

static void two_devices_are_used_in_turn(void **state)
{
    sy_backend_handle *first;
    uint64_t free_bytes = 0, total_bytes = 0;
    const unsigned char byte = 1;

    (void)state;
    machine->device[0].memory_bytes = 3 << 20;
    open_second();
    assert_int_equal(cuda->open(&first, 0, why), SY_BACKEND_OK);
    assert_int_equal(cuda->memory(first, &free_bytes, &total_bytes, why), SY_BACKEND_OK);
    assert_int_equal(free_bytes, 3 << 20);
    assert_int_equal(total_bytes, 3 << 20);
    assert_int_equal(cuda->copy_in(buffer, 0, &byte, 1, why), SY_BACKEND_OK);
    assert_int_equal(cuda->memory(handle, &free_bytes, &total_bytes, why), SY_BACKEND_OK);
    assert_true(free_bytes <= total_bytes - BYTES);
    assert_int_equal(total_bytes, 256 << 20);
    cuda->close(first);
    close_second();
}

static void a_device_that_is_full_says_so(void **state)
{
    sy_backend_buffer *more;

    (void)state;
    machine->device[1].memory_bytes = 2 << 20;
    open_second();
    assert_int_equal(cuda->buffer_alloc(&more, handle, 2 << 20, why), SY_BACKEND_ENOMEM);
    assert_null(more);
    assert_says(why, "cudaMalloc: out of memory (cudaErrorMemoryAllocation)");
    close_second();
}

/* For good, and it alone. */
static void a_lost_device_can_only_be_closed(void **state)
{
    sy_backend_handle *first;
    unsigned char byte = 1;
    uint64_t n_free, n_total;

    (void)state;
    assert_int_equal(cuda->open(&first, 0, why), SY_BACKEND_OK);
    open_second();
    emu_cudart_lose(1, cudaErrorIllegalAddress);
    assert_int_equal(cuda->copy_in(buffer, 0, &byte, 1, why), SY_BACKEND_EDEVLOST);
    assert_says(why, "an illegal memory access was encountered (cudaErrorIllegalAddress)");
    assert_int_equal(cuda->copy_out(&byte, buffer, 0, 1, why), SY_BACKEND_EDEVLOST);
    assert_int_equal(cuda->memory(handle, &n_free, &n_total, why), SY_BACKEND_EDEVLOST);
    assert_int_equal(cuda->memory(first, &n_free, &n_total, why), SY_BACKEND_OK);
    close_second();
    cuda->close(first);
}

static void copies_are_measured_in_bytes_a_second(void **state)
{
    sy_backend_bandwidth copies;

    (void)state;
    machine->event_ms = 0.5;
    assert_int_equal(cuda->open(&handle, 1, why), SY_BACKEND_OK);
    assert_int_equal(cuda->measure_copies(&copies, handle, 1 << 20, why), SY_BACKEND_OK);
    assert_true(copies.to_device == 1048576 * 2e3);
    assert_true(copies.from_device == 1048576 * 2e3);
    assert_true(copies.on_device == 1048576 * 4e3);
    machine->event_ms = 0;
    assert_int_equal(cuda->measure_copies(&copies, handle, 1, why), SY_BACKEND_EINVAL);
    assert_says(why, "too fast");
    cuda->close(handle);
}

/* ---- failures ---- */

/* Everything once; the first result that is no success. Ends what it made. */
static int session(void)
{
    unsigned char bytes[BYTES] = {0};
    uint64_t free_bytes, total_bytes;
    sy_backend_bandwidth copies;
    int result = cuda->open(&handle, 1, why);

    if (result != SY_BACKEND_OK) return result;
    buffer = NULL;
    if ((result = cuda->memory(handle, &free_bytes, &total_bytes, why)) == SY_BACKEND_OK &&
        (result = cuda->buffer_alloc(&buffer, handle, BYTES, why)) == SY_BACKEND_OK &&
        (result = cuda->copy_in(buffer, 0, bytes, BYTES, why)) == SY_BACKEND_OK &&
        (result = cuda->copy_out(bytes, buffer, 0, BYTES, why)) == SY_BACKEND_OK)
        result = cuda->measure_copies(&copies, handle, BYTES, why);
    cuda->buffer_free(buffer);
    cuda->close(handle);
    return result;
}

static void any_call_that_fails_leaves_nothing_behind(void **state)
{
    static const struct {
        cudaError_t error;
        int result;
    } cases[] = {{cudaErrorMemoryAllocation, SY_BACKEND_ENOMEM},
                 {cudaErrorIllegalAddress, SY_BACKEND_EDEVLOST},
                 {cudaErrorECCUncorrectable, SY_BACKEND_EDEVLOST},
                 {cudaErrorDevicesUnavailable, SY_BACKEND_ENODEVICE},
                 {cudaErrorUnknown, SY_BACKEND_EFAILED}};
    uint64_t n_calls;

    (void)state;
    machine->event_ms = 1;
    assert_int_equal(session(), SY_BACKEND_OK);
    n_calls = emu_cudart_n_calls(NULL) - 2; /* the last are those of the two ends */
    assert_in_range(n_calls, 60, 200);
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
        for (uint64_t at = 1; at <= n_calls; at++) {
            begin(state);
            machine->event_ms = 1;
            emu_cudart_fail(NULL, at, cases[c].error);
            if (session() != cases[c].result)
                fail_msg("call %d, error %d: %s", (int)at, (int)cases[c].error, why);
            assert_says(why, cudaGetErrorName(cases[c].error));
            if (emu_cudart_n_live() != 0)
                fail_msg("call %d leaves %d objects", (int)at, emu_cudart_n_live());
            assert_int_equal(emu_cudart_last(), cudaSuccess);
        }
}

static void a_probe_survives_any_call_that_fails(void **state)
{
    uint64_t n_calls;

    (void)state;
    assert_int_equal(probe(), SY_BACKEND_OK);
    n_calls = emu_cudart_n_calls(NULL);
    for (uint64_t at = 1; at <= n_calls; at++) {
        begin(state);
        emu_cudart_fail(NULL, at, cudaErrorUnknown);
        if (at == 1) {
            assert_int_equal(probe(), SY_BACKEND_EFAILED);
            continue;
        }
        assert_int_equal(probe(), SY_BACKEND_OK);
        assert_int_equal(device[0].usable + device[1].usable, 1);
        assert_says(device[device[0].usable].why, "unknown error (cudaErrorUnknown)");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(only_the_abi_of_the_header_is_served, begin, end),
        cmocka_unit_test_setup_teardown(devices_are_described, begin, end),
        cmocka_unit_test_setup_teardown(a_missing_driver_is_no_device_and_still_tells_the_versions,
                                        begin, end),
        cmocka_unit_test_setup_teardown(a_driver_without_devices_is_no_device, begin, end),
        cmocka_unit_test_setup_teardown(a_device_that_cannot_be_used_says_why_and_the_others_can,
                                        begin, end),
        cmocka_unit_test_setup_teardown(more_devices_than_asked_for_are_counted_and_not_written,
                                        begin, end),
        cmocka_unit_test_setup_teardown(cublas_is_found_or_missed_in_words, begin, end),
        cmocka_unit_test_setup_teardown(bytes_come_back_from_where_they_went, begin, end),
        cmocka_unit_test_setup_teardown(ranges_outside_of_a_buffer_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(what_makes_no_sense_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(two_devices_are_used_in_turn, begin, end),
        cmocka_unit_test_setup_teardown(a_device_that_is_full_says_so, begin, end),
        cmocka_unit_test_setup_teardown(a_lost_device_can_only_be_closed, begin, end),
        cmocka_unit_test_setup_teardown(copies_are_measured_in_bytes_a_second, begin, end),
        cmocka_unit_test_setup_teardown(any_call_that_fails_leaves_nothing_behind, begin, end),
        cmocka_unit_test_setup_teardown(a_probe_survives_any_call_that_fails, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
