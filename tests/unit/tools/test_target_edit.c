/* test_target_edit.c - edits of one value: what is written is always something servers take. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "target_edit.h"

static sy_target_list list_of(const char *text)
{
    sy_target_list list;
    sy_error err;

    if (sy_targets_parse(&list, text, strlen(text), &err) != SY_OK) {
        fail_msg("'%s': %s", text, err.message);
    }
    return list;
}

static sy_target target_of(const char *text)
{
    sy_target target;

    assert_int_equal(target_parse(&target, text, NULL), SY_OK);
    return target;
}

/* Also that the grammar takes it. */
static void assert_list(const sy_target_list *list, const char *text)
{
    char is[SY_PLACEMENT_VALUE_MAX];
    sy_target_list again;

    assert_int_equal(targets_text(is, list, NULL), SY_OK);
    assert_string_equal(is, text);
    assert_int_equal(sy_targets_parse(&again, is, strlen(is), NULL), SY_OK);
}

static void a_node_is_dropped_and_shares_are_scaled_to_100(void **state)
{
    static const struct {
        const char *before, *after;
    } cases[] = {
        {"a/cpu:0 b/cpu:0", "b/cpu:0"},
        {"b/cpu:0 c/cpu:0", "b/cpu:0 c/cpu:0"},
        {"a/cpu:0@95 b/cpu:0@5", "b/cpu:0@100"},
        {"a/cpu:0@40 b/cpu:0@30 c/cpu:0@30", "b/cpu:0@50 c/cpu:0@50"},
        {"a/cpu:0@97 b/cpu:0@1 c/cpu:0@2", "b/cpu:0@33 c/cpu:0@67"},
        {"a/cpu:0@10 a/cpu:1@10 b/cpu:0@80 c/cpu:0@shadow", "b/cpu:0@100 c/cpu:0@shadow"},
        {"b/cpu:0 a/cpu:0@shadow", "b/cpu:0"},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        sy_target_list list = list_of(cases[i].before);

        assert_int_equal(targets_drop_node(&list, "a", NULL), SY_OK);
        assert_list(&list, cases[i].after);
    }
}

static void the_last_node_that_serves_is_not_dropped(void **state)
{
    sy_target_list list = list_of("a/cpu:0 a/cpu:1 b/cpu:0@shadow");

    (void)state;
    assert_int_equal(targets_drop_node(&list, "a", NULL), SY_ENOTFOUND);
    assert_list(&list, "a/cpu:0 a/cpu:1 b/cpu:0@shadow");
}

static void every_scaling_adds_up_and_leaves_nobody_without(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= SY_TARGETS_MAX; n++) {
        for (uint32_t sum = n; sum <= 100; sum += 3) {
            for (uint32_t first = 1; first + n <= 101; first += 7) {
                sy_target_list list = {.n = n};
                uint32_t total = 0;

                for (uint32_t i = 0; i < n; i++) {
                    snprintf(list.target[i].node, SY_NODE_BYTES, "n%u", i);
                    snprintf(list.target[i].device, SY_DEVICE_BYTES, "cpu:0");
                    list.target[i].share = (uint8_t)(i == 0 ? first : 1);
                }
                assert_int_equal(targets_scale(&list, sum, NULL), SY_OK);
                for (uint32_t i = 0; i < n; i++) {
                    assert_true(list.target[i].share >= 1);
                    total += list.target[i].share;
                }
                assert_int_equal(total, sum);
            }
        }
    }
}

static void more_targets_than_percents_are_an_error(void **state)
{
    sy_target_list list = list_of("a/cpu:0 b/cpu:0 c/cpu:0");

    (void)state;
    assert_int_equal(targets_scale(&list, 2, NULL), SY_EINVAL);
    assert_list(&list, "a/cpu:0 b/cpu:0 c/cpu:0");
}

static void a_move_takes_the_share_along(void **state)
{
    static const struct {
        const char *before, *from, *to, *after;
    } cases[] = {
        {"a/cpu:0 b/cpu:0", "a/cpu:0", "c/cpu:1", "c/cpu:1 b/cpu:0"},
        {"a/cpu:0@30 b/cpu:0@70", "b/cpu:0", "c/cpu:0", "a/cpu:0@30 c/cpu:0@70"},
        {"a/cpu:0@30 b/cpu:0@70", "a/cpu:0", "b/cpu:0", "b/cpu:0@100"},
        {"a/cpu:0 b/cpu:0@shadow", "b/cpu:0", "c/cpu:0", "a/cpu:0 c/cpu:0@shadow"},
        {"a/cpu:0 b/cpu:0@shadow", "a/cpu:0", "b/cpu:0", "b/cpu:0"},
        {"a/cpu:0 b/cpu:0@shadow", "b/cpu:0", "a/cpu:0", "a/cpu:0"},
        {"a/cpu:0", "a/cpu:0", "a/cpu:0", "a/cpu:0"},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        sy_target_list list = list_of(cases[i].before);
        const sy_target from = target_of(cases[i].from);
        const sy_target to = target_of(cases[i].to);

        assert_int_equal(targets_move(&list, &from, &to, NULL), SY_OK);
        assert_list(&list, cases[i].after);
    }
}

static void a_move_from_where_it_is_not_changes_nothing(void **state)
{
    sy_target_list list = list_of("a/cpu:0");
    const sy_target from = target_of("a/cpu:1");
    const sy_target to = target_of("b/cpu:0");

    (void)state;
    assert_int_equal(targets_move(&list, &from, &to, NULL), SY_ENOTFOUND);
    assert_list(&list, "a/cpu:0");
}

static void a_canary_is_a_shadow_and_then_a_share(void **state)
{
    static const struct {
        const char *old, *to, *shadow, *share;
    } cases[] = {
        {"a/cpu:0", "b/cpu:0", "a/cpu:0 b/cpu:0@shadow", "a/cpu:0@95 b/cpu:0@5"},
        {"a/cpu:0", "b/cpu:0!", "a/cpu:0 b/cpu:0@shadow!", "a/cpu:0@95 b/cpu:0@5!"},
        {"a/cpu:0 c/cpu:0", "b/cpu:0", "a/cpu:0 c/cpu:0 b/cpu:0@shadow",
         "a/cpu:0@48 c/cpu:0@47 b/cpu:0@5"},
        {"a/cpu:0@20 c/cpu:0@80", "b/cpu:0", "a/cpu:0@20 c/cpu:0@80 b/cpu:0@shadow",
         "a/cpu:0@19 c/cpu:0@76 b/cpu:0@5"},
        {"a/cpu:0 b/cpu:0@shadow", "b/cpu:0", "a/cpu:0 b/cpu:0@shadow", "a/cpu:0@95 b/cpu:0@5"},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        const sy_target to = target_of(cases[i].to);
        sy_target_list shadow = list_of(cases[i].old);
        sy_target_list share = list_of(cases[i].old);

        assert_int_equal(targets_with_shadow(&shadow, &to, NULL), SY_OK);
        assert_list(&shadow, cases[i].shadow);
        assert_int_equal(targets_with_share(&share, &to, 5, NULL), SY_OK);
        assert_list(&share, cases[i].share);
    }
}

static void a_canary_of_what_serves_already_is_refused(void **state)
{
    sy_target_list list = list_of("a/cpu:0 b/cpu:0");
    const sy_target to = target_of("b/cpu:0");

    (void)state;
    assert_int_equal(targets_with_shadow(&list, &to, NULL), SY_EEXISTS);
    assert_int_equal(targets_with_share(&list, &to, 5, NULL), SY_EEXISTS);
    assert_int_equal(targets_with_share(&list, &to, 0, NULL), SY_EINVAL);
    assert_int_equal(targets_with_share(&list, &to, 100, NULL), SY_EINVAL);
    assert_list(&list, "a/cpu:0 b/cpu:0");
}

static void sixteen_targets_have_no_room_for_a_canary(void **state)
{
    const sy_target to = target_of("z/cpu:0");
    sy_target_list list = {.n = SY_TARGETS_MAX};

    (void)state;
    for (uint32_t i = 0; i < list.n; i++) {
        snprintf(list.target[i].node, SY_NODE_BYTES, "n%u", i);
        snprintf(list.target[i].device, SY_DEVICE_BYTES, "cpu:0");
    }
    assert_int_equal(targets_with_shadow(&list, &to, NULL), SY_ELIMIT);
    assert_int_equal(targets_with_share(&list, &to, 5, NULL), SY_ELIMIT);
    assert_int_equal(list.n, SY_TARGETS_MAX);
}

static void a_target_alone_has_neither_share_nor_company(void **state)
{
    sy_target target;

    (void)state;
    assert_int_equal(target_parse(&target, "a/cpu:0@5", NULL), SY_EINVAL);
    assert_int_equal(target_parse(&target, "a/cpu:0@shadow", NULL), SY_EINVAL);
    assert_int_equal(target_parse(&target, "a/cpu:0 b/cpu:0", NULL), SY_EINVAL);
    assert_int_equal(target_parse(&target, "", NULL), SY_EINVAL);
    assert_int_equal(target_parse(&target, "a/cpu:0!", NULL), SY_OK);
    assert_int_equal(target.any_weights, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_is_dropped_and_shares_are_scaled_to_100),
        cmocka_unit_test(the_last_node_that_serves_is_not_dropped),
        cmocka_unit_test(every_scaling_adds_up_and_leaves_nobody_without),
        cmocka_unit_test(more_targets_than_percents_are_an_error),
        cmocka_unit_test(a_move_takes_the_share_along),
        cmocka_unit_test(a_move_from_where_it_is_not_changes_nothing),
        cmocka_unit_test(a_canary_is_a_shadow_and_then_a_share),
        cmocka_unit_test(a_canary_of_what_serves_already_is_refused),
        cmocka_unit_test(sixteen_targets_have_no_room_for_a_canary),
        cmocka_unit_test(a_target_alone_has_neither_share_nor_company),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
