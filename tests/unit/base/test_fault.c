/* test_fault.c - SY_FAULT, as one process reads it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "sy_fault.h"

/* The table is read once a process, so one environment serves all tests; the first of them sees the
 * complaints. */
static void entries_that_make_no_sense_are_named_and_ignored(void **state)
{
    capture c = capture_begin(STDERR_FILENO);
    char *text;
    int hit;

    (void)state;
    hit = sy_fault_hit("no.such.point");
    text = capture_end(&c);
    assert_false(hit);
    assert_non_null(strstr(text, "\"nocolon\""));
    assert_non_null(strstr(text, "\"zero.pass:0\""));
    assert_non_null(strstr(text, "\"bad.pass:3x\""));
    assert_non_null(strstr(text, "\":5\""));
    assert_null(strstr(text, "third.pass"));
    free(text);
    assert_false(sy_fault_hit("nocolon"));
    assert_false(sy_fault_hit("zero.pass"));
    assert_false(sy_fault_hit("bad.pass"));
}

static void only_the_third_pass_fails(void **state)
{
    (void)state;
    for (int pass = 1; pass <= 6; pass++) assert_int_equal(sy_fault_hit("third.pass"), pass == 3);
}

static void every_pass_fails(void **state)
{
    (void)state;
    for (int pass = 1; pass <= 6; pass++) assert_true(sy_fault_hit("every.pass"));
}

static void points_that_are_not_named_never_fail(void **state)
{
    (void)state;
    for (int pass = 1; pass <= 6; pass++) assert_false(sy_fault_hit("third"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_that_make_no_sense_are_named_and_ignored),
        cmocka_unit_test(only_the_third_pass_fails),
        cmocka_unit_test(every_pass_fails),
        cmocka_unit_test(points_that_are_not_named_never_fail),
    };

    setenv("SY_FAULT", "nocolon,zero.pass:0,bad.pass:3x,:5,,third.pass:3,every.pass:always", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
