/* test_inspect_place.c - a suggested placement: what goes where, what does not fit, and which lists
 * of devices are none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "inspect_place.h"

#define LAYERS  4 /* 0 has no experts */
#define EXPERTS 8
#define BYTES   100

static inspect_facts facts(void)
{
    static const uint8_t flag[LAYERS] = {1};
    inspect_facts f = {.grid = sy_grid_of(LAYERS, EXPERTS, flag, 1)};

    f.format[0] = (inspect_format){.weights = SY_DTYPE_NONE, .expert_bytes = BYTES};
    f.format[1] = (inspect_format){.weights = SY_Q8, .expert_bytes = BYTES / 2};
    f.format[2] = (inspect_format){.weights = SY_Q4, .expert_bytes = BYTES / 4};
    f.n_formats = 3;
    return f;
}

static inspect_place place(const inspect_facts *f, const char *devices, const char *weights)
{
    inspect_place p;
    sy_error err;

    if (inspect_place_make(&p, f, devices, weights, &err) != SY_OK) fail_msg("%s", err.message);
    return p;
}

static uint64_t count(const inspect_place *p, size_t device, uint32_t layer)
{
    uint64_t n = 0;

    for (uint32_t e = 0; e < EXPERTS; e++) n += p->to[layer * EXPERTS + e] == device;
    return n;
}

static void equal_devices_get_the_default_spread(void **state)
{
    const inspect_facts f = facts();
    inspect_place p = place(&f, "gpu0=80GiB, gpu1/cuda:3=1TB", "as-stored");

    (void)state;
    assert_int_equal(p.n_devices, 2);
    assert_string_equal(p.device[0].name, "gpu0/cpu:0");
    assert_string_equal(p.device[1].name, "gpu1/cuda:3");
    assert_int_equal(p.device[0].memory_bytes, 80ull << 30);
    assert_int_equal(p.device[1].memory_bytes, 1000000000000ull);
    assert_int_equal(p.n_left, 0);
    for (uint32_t at = 0; at < LAYERS * EXPERTS; at++) {
        const uint32_t layer = at / EXPERTS;

        assert_int_equal(p.to[at], layer == 0 ? INSPECT_NOWHERE : (at % EXPERTS + layer - 1) % 2);
    }
    inspect_place_free(&p);
}

static void devices_get_what_their_memory_is_of_all(void **state)
{
    const inspect_facts f = facts();
    inspect_place p = place(&f, "a=600B,b=1800B", "as-stored"); /* 6 and 18 of 24 */

    (void)state;
    assert_int_equal(p.device[0].n_experts, 6);
    assert_int_equal(p.device[1].n_experts, 18);
    assert_int_equal(p.n_left, 0);
    for (uint32_t layer = 1; layer < LAYERS; layer++) assert_int_equal(count(&p, 0, layer), 2);
    inspect_place_free(&p);
}

static void room_of_any_shape_is_used_to_the_last_expert(void **state)
{
    static const char *const lists[] = {"a=100,b=2300", "a=700,b=500,c=1200",
                                        "a=99,b=2400",  "3*800",
                                        "24*100",       "a=50,23*100,b=100"};
    const inspect_facts f = facts();

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(lists); i++) {
        inspect_place p = place(&f, lists[i], "as-stored");

        if (p.n_left != 0) fail_msg("%s: %d are left", lists[i], (int)p.n_left);
        for (size_t d = 0; d < p.n_devices; d++)
            assert_true(p.device[d].n_experts <= p.device[d].n_room);
        inspect_place_free(&p);
    }
}

static void what_does_not_fit_is_counted_and_fits_in_fewer_bits(void **state)
{
    const inspect_facts f = facts();
    inspect_place p = place(&f, "2*750", "as-stored"), q = place(&f, "2*750", "q8");
    inspect_place none = place(&f, "a=99", "as-stored");

    (void)state;
    assert_int_equal(p.n_left, 10);
    assert_int_equal(p.device[0].n_experts, 7);
    assert_string_equal(p.device[1].name, "expert-1/cpu:0");
    assert_int_equal(q.n_left, 0);
    assert_int_equal(none.n_left, 24);
    inspect_place_free(&p);
    inspect_place_free(&q);
    inspect_place_free(&none);
}

static void lists_that_name_no_devices_are_refused(void **state)
{
    static const char *const bad[] = {"",
                                      ",",
                                      "gpu0",
                                      "gpu0=",
                                      "=80GiB",
                                      "gpu0=80GiBs",
                                      "gpu0=0",
                                      "gpu0=-1",
                                      "gpu0=99999999999999999999",
                                      "gpu0=18446744073709551615TiB",
                                      "a=1,a=2",
                                      "a/gpu:0=1",
                                      "a/cpu:0@5=1",
                                      "a b=1",
                                      "0*80GiB",
                                      "x*80GiB",
                                      "2000*80GiB",
                                      "1KiB*80GiB",
                                      "*=1",
                                      "a=1*2"};
    const inspect_facts f = facts();

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        inspect_place p;
        sy_error err;

        if (inspect_place_make(&p, &f, bad[i], "as-stored", &err) == SY_OK)
            fail_msg("'%s' was taken", bad[i]);
        assert_non_null(strstr(err.message, "--devices"));
        inspect_place_free(&p);
    }
}

static void weights_of_no_format_are_refused(void **state)
{
    const inspect_facts f = facts();
    inspect_place p;
    sy_error err;

    (void)state;
    assert_int_equal(inspect_place_make(&p, &f, "a=1", "q5", &err), SY_EINVAL);
    assert_string_equal(err.message, "--weights q5: as-stored, q8 or q4");
    inspect_place_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_devices_get_the_default_spread),
        cmocka_unit_test(devices_get_what_their_memory_is_of_all),
        cmocka_unit_test(room_of_any_shape_is_used_to_the_last_expert),
        cmocka_unit_test(what_does_not_fit_is_counted_and_fits_in_fewer_bits),
        cmocka_unit_test(lists_that_name_no_devices_are_refused),
        cmocka_unit_test(weights_of_no_format_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
