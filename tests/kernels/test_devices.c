/* test_devices.c - what --devices says, and what a machine with two GPUs, one of them broken,
 * answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_backend_load.h"
#include "sy_devices.h"

static sy_error err;
static sy_device_list list;

static int begin(void **state)
{
    (void)state;
    sy_error_clear(&err);
    return setenv(SY_BACKEND_DIR_VARIABLE, SY_TEST_BACKENDS "/devices", 1);
}

static void use_plugin(const char *name)
{
    char dir[1024];

    snprintf(dir, sizeof(dir), "%s/%s", SY_TEST_BACKENDS, name);
    assert_int_equal(setenv(SY_BACKEND_DIR_VARIABLE, dir, 1), 0);
}

static void assert_says(const char *text)
{
    if (strstr(err.message, text) == NULL) fail_msg("'%s' is not in: %s", text, err.message);
}

static void parsed(const char *text)
{
    if (sy_devices_parse(&list, text, &err) != SY_OK) fail_msg("'%s': %s", text, err.message);
}

static void not_parsed(const char *text, const char *says)
{
    sy_error_clear(&err);
    if (sy_devices_parse(&list, text, &err) != SY_EINVAL)
        fail_msg("'%s': %s", text, sy_status_name(err.status));
    assert_says(says);
}

static void devices_are_read_in_the_order_they_are_named(void **state)
{
    (void)state;
    parsed("cuda:0,cuda:12,cpu:1023,cpu:0");
    assert_int_equal(list.n, 4);
    assert_int_equal(list.every_cuda, 0);
    assert_int_equal(list.device[1].kind, SY_DEVICE_CUDA);
    assert_int_equal(list.device[1].number, 12);
    assert_string_equal(list.device[1].name, "cuda:12");
    assert_int_equal(list.device[2].kind, SY_DEVICE_CPU);
    assert_int_equal(list.device[2].number, 1023);
    assert_string_equal(list.device[3].name, "cpu:0");
}

static void all_cuda_devices_are_named_at_once(void **state)
{
    (void)state;
    parsed("cuda,cpu:0");
    assert_int_equal(list.every_cuda, 1);
    assert_int_equal(list.n, 1);
    assert_string_equal(list.device[0].name, "cpu:0");
}

static void what_is_no_device_is_named(void **state)
{
    static const char *const wrong[] = {
        "",         ",",      "cpu",      "cpu:",      "cpu:-1",        "cpu:1024",
        "cpu:0 ",   " cpu:0", "cpu:00",   "cpu:01",    "cpu:1.5",       "gpu:0",
        "cuda:",    "cuda:x", "cuda:0x1", "cuda:9999", "cuda:99999",    "CUDA:0",
        "cuda:0:1", "cuda0",  ":0",       "cuda :0",   "cpu:4294967296"};
    char shown[64];

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(wrong); i++) {
        snprintf(shown, sizeof(shown), "'%.*s'", (int)strcspn(wrong[i], ","), wrong[i]);
        not_parsed(wrong[i], shown);
    }
    not_parsed("cpu:0,", "''");
    not_parsed("cpu:0,,cpu:1", "''");
}

static void a_name_of_any_length_is_refused_in_a_short_text(void **state)
{
    static char text[70000];

    (void)state;
    memset(text, 'c', sizeof(text) - 1);
    not_parsed(text, "is not a device");
}

static void a_device_is_named_once(void **state)
{
    (void)state;
    not_parsed("cpu:0,cuda:1,cpu:0", "cpu:0 is named twice");
    not_parsed("cuda,cuda", "cuda is named twice");
    not_parsed("cuda,cuda:1", "cuda:1 is among cuda");
    not_parsed("cuda:1,cuda", "cuda:1 is among cuda");
}

static void as_many_devices_are_named_as_a_process_may_have(void **state)
{
    char text[SY_DEVICES_MAX * 8 + 16] = "cpu:0";

    (void)state;
    for (int i = 1; i < SY_DEVICES_MAX; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), ",cpu:%d", i);
    parsed(text);
    assert_int_equal(list.n, SY_DEVICES_MAX);
    snprintf(text + strlen(text), sizeof(text) - strlen(text), ",cpu:%d", SY_DEVICES_MAX);
    not_parsed(text, "more than 16");
}

/* ---- what can be used ---- */

static void refused(const char *text, sy_status st, const char *reason, const char *says)
{
    sy_error_clear(&err);
    if (sy_devices_choose(&list, text, &err) != st)
        fail_msg("'%s': %s: %s", text, sy_status_name(err.status), err.message);
    assert_int_equal(err.status, st);
    assert_string_equal(err.reason, reason);
    assert_int_equal(strncmp(err.message, "--devices: ", 11), 0);
    assert_says(says);
}

static void cpu_devices_need_no_plugin(void **state)
{
    (void)state;
    use_plugin("other_abi");
    assert_int_equal(sy_devices_choose(&list, "cpu:0,cpu:1", &err), SY_OK);
    assert_int_equal(list.n, 2);
}

static void two_devices_are_found_and_one_cannot_be_used(void **state)
{
    static sy_cuda cuda;

    (void)state;
    sy_cuda_probe(&cuda);
    assert_int_equal(cuda.why.status, SY_OK);
    assert_int_equal(cuda.n, 2);
    assert_int_equal(cuda.system.driver_version, 13020);
    assert_string_equal(cuda.device[0].name, "Fake GPU");
    assert_int_equal(cuda.device[0].usable, 1);
    assert_int_equal(cuda.device[1].usable, 0);
    assert_string_equal(cuda.device[1].why, "an injected failure");
}

static void a_device_that_works_can_be_used(void **state)
{
    (void)state;
    if (sy_devices_choose(&list, "cuda:0", &err) != SY_OK) fail_msg("%s", err.message);
    assert_int_equal(list.n, 1);
    assert_string_equal(list.device[0].name, "cuda:0");
}

static void cuda_stands_for_every_device_and_all_of_them_must_work(void **state)
{
    (void)state;
    refused("cuda", SY_EPRECONDITION, "DEVICE_UNUSABLE", "cuda:1 cannot be used: an injected");
    use_plugin("one_device");
    sy_error_clear(&err);
    if (sy_devices_choose(&list, "cuda", &err) != SY_OK) fail_msg("%s", err.message);
    assert_int_equal(list.n, 1);
    assert_int_equal(list.device[0].kind, SY_DEVICE_CUDA);
    assert_int_equal(list.device[0].number, 0);
    assert_string_equal(list.device[0].name, "cuda:0");
}

static void devices_that_round_differently_make_no_node(void **state)
{
    (void)state;
    refused("cpu:0,cuda:0", SY_EINVAL, "MIXED_ARITHMETIC", "cpu:N and cuda:N");
    refused("cuda,cpu:1", SY_EINVAL, "MIXED_ARITHMETIC", "start a node for each");
    use_plugin("two_kinds");
    refused("cuda:0,cuda:1", SY_EINVAL, "MIXED_ARITHMETIC", "cuda:0 (compute capability 9.0)");
    refused("cuda", SY_EINVAL, "MIXED_ARITHMETIC", "cuda:1 (8.0)");
    assert_says("(MIXED_ARITHMETIC)");
    sy_error_clear(&err);
    assert_int_equal(sy_devices_choose(&list, "cuda:1", &err), SY_OK);
}

static void a_broken_device_is_refused_with_its_reason(void **state)
{
    (void)state;
    refused("cuda:1", SY_EPRECONDITION, "DEVICE_UNUSABLE", "cuda:1 cannot be used: an injected");
}

static void a_device_that_is_not_there_is_refused(void **state)
{
    (void)state;
    refused("cuda:2", SY_ENOTFOUND, "DEVICE_NOT_FOUND", "has 2 CUDA devices");
    refused("cuda:1023", SY_ENOTFOUND, "DEVICE_NOT_FOUND", "cuda:1023");
}

static void a_missing_driver_is_told_with_the_versions(void **state)
{
    (void)state;
    use_plugin("no_driver");
    refused("cuda:0", SY_EUNAVAILABLE, "NO_CUDA_DEVICE", "an injected lack of drivers");
    assert_says("driver none, runtime 13.0");
    refused("cuda", SY_EUNAVAILABLE, "NO_CUDA_DEVICE", "driver none");
}

static void a_driver_without_devices_is_told(void **state)
{
    (void)state;
    use_plugin("no_devices");
    refused("cuda", SY_EUNAVAILABLE, "NO_CUDA_DEVICE", "driver 13.2, runtime 13.0");
    refused("cuda:0", SY_EUNAVAILABLE, "NO_CUDA_DEVICE", "no device");
}

static void a_plugin_that_does_not_load_is_told(void **state)
{
    (void)state;
    use_plugin("other_abi");
    refused("cuda:0", SY_EPRECONDITION, "BACKEND_MISMATCH", "/other_abi/libswitchyard_cuda.so");
    refused("cuda", SY_EPRECONDITION, "BACKEND_MISMATCH", "/other_abi/libswitchyard_cuda.so");
}

static void versions_are_shown_as_people_write_them(void **state)
{
    char text[SY_VERSION_TEXT_BYTES];

    (void)state;
    assert_string_equal(sy_backend_version_text(text, 0), "none");
    assert_string_equal(sy_backend_version_text(text, 13000), "13.0");
    assert_string_equal(sy_backend_version_text(text, 12040), "12.4");
    assert_string_equal(sy_backend_version_text(text, UINT32_MAX), "4294967.29");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(devices_are_read_in_the_order_they_are_named, begin),
        cmocka_unit_test_setup(all_cuda_devices_are_named_at_once, begin),
        cmocka_unit_test_setup(what_is_no_device_is_named, begin),
        cmocka_unit_test_setup(a_name_of_any_length_is_refused_in_a_short_text, begin),
        cmocka_unit_test_setup(a_device_is_named_once, begin),
        cmocka_unit_test_setup(as_many_devices_are_named_as_a_process_may_have, begin),
        cmocka_unit_test_setup(cpu_devices_need_no_plugin, begin),
        cmocka_unit_test_setup(two_devices_are_found_and_one_cannot_be_used, begin),
        cmocka_unit_test_setup(a_device_that_works_can_be_used, begin),
        cmocka_unit_test_setup(cuda_stands_for_every_device_and_all_of_them_must_work, begin),
        cmocka_unit_test_setup(devices_that_round_differently_make_no_node, begin),
        cmocka_unit_test_setup(a_broken_device_is_refused_with_its_reason, begin),
        cmocka_unit_test_setup(a_device_that_is_not_there_is_refused, begin),
        cmocka_unit_test_setup(a_missing_driver_is_told_with_the_versions, begin),
        cmocka_unit_test_setup(a_driver_without_devices_is_told, begin),
        cmocka_unit_test_setup(a_plugin_that_does_not_load_is_told, begin),
        cmocka_unit_test_setup(versions_are_shown_as_people_write_them, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
