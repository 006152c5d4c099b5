/* test_lifecycle.c - what a node may do with a shard, one question at a time. The interplay of
 * several nodes is simulated in tests/sim. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sy_lifecycle.h"

#define HERE 0xabcu /* the placement in force */

static sy_life resident(void)
{
    sy_life life = {0};

    sy_life_wanted(&life, 1, 1);
    assert_true(sy_life_must_load(&life, 1));
    sy_life_loading(&life, 2);
    sy_life_verifying(&life, 3);
    sy_life_loaded(&life, 4);
    assert_int_equal(life.state, SY_SHARD_RESIDENT);
    return life;
}

static sy_life lingering(uint64_t question)
{
    sy_life life = resident();

    assert_true(sy_life_wanted(&life, 0, 10));
    assert_int_equal(life.state, SY_SHARD_LINGERING);
    sy_life_ask(&life, question, HERE);
    return life;
}

static sy_life_answer yes(uint64_t question)
{
    return (sy_life_answer){question, HERE, SY_SHARD_RESIDENT};
}

static void test_a_wanted_shard_is_loaded_and_one_that_is_not_is_left_alone(void **state)
{
    sy_life life = {0};

    (void)state;
    assert_false(sy_life_must_load(&life, 0));
    sy_life_wanted(&life, 1, 0);
    assert_true(sy_life_must_load(&life, 0));
    sy_life_loading(&life, 0);
    assert_false(sy_life_must_load(&life, 0));
}

static void test_a_shard_that_became_unwanted_while_it_was_loaded_lingers(void **state)
{
    sy_life life = {0};

    (void)state;
    sy_life_wanted(&life, 1, 0);
    sy_life_loading(&life, 0);
    sy_life_wanted(&life, 0, 1);
    sy_life_loaded(&life, 2);
    assert_int_equal(life.state, SY_SHARD_LINGERING);
}

static void test_it_leaves_memory_after_the_new_holder_has_answered(void **state)
{
    sy_life life = lingering(7);
    const sy_life_answer answer = yes(7);

    (void)state;
    assert_true(sy_life_answered(&life, &answer, HERE, 20));
    assert_int_equal(life.state, SY_SHARD_ABSENT);
}

static void test_what_is_no_answer_to_the_question_keeps_it_in_memory(void **state)
{
    const sy_life_answer wrong[] = {
        {6, HERE, SY_SHARD_RESIDENT},     /* to an older question */
        {7, HERE + 1, SY_SHARD_RESIDENT}, /* another placement is in force there */
        {7, HERE, SY_SHARD_LINGERING},    /* it is about to leave there as well */
        {7, HERE, SY_SHARD_LOADING},      {7, HERE, SY_SHARD_VERIFYING},
        {7, HERE, SY_SHARD_FAILED},       {7, HERE, SY_SHARD_ABSENT},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(wrong); i++) {
        sy_life life = lingering(7);
        assert_false(sy_life_answered(&life, &wrong[i], HERE, 20));
        assert_int_equal(life.state, SY_SHARD_LINGERING);
    }
    sy_life life = lingering(7);
    const sy_life_answer answer = yes(7);
    assert_false(sy_life_answered(&life, &answer, HERE + 1, 20)); /* another one here meanwhile */
}

static void test_an_answer_from_before_it_was_wanted_again_does_not_count(void **state)
{
    sy_life life = lingering(7);
    const sy_life_answer late = yes(7);

    (void)state;
    assert_true(sy_life_wanted(&life, 1, 20));
    assert_false(sy_life_answered(&life, &late, HERE, 21));
    assert_true(sy_life_wanted(&life, 0, 22)); /* the same placement as the first time */
    assert_false(sy_life_answered(&life, &late, HERE, 23));
    assert_int_equal(life.state, SY_SHARD_LINGERING);
}

static void test_it_asks_after_its_time_or_when_room_is_needed(void **state)
{
    sy_life life = lingering(7); /* since 10 */

    (void)state;
    assert_false(sy_life_may_ask(&life, 100, 0, 109));
    assert_true(sy_life_may_ask(&life, 100, 0, 110));
    assert_true(sy_life_may_ask(&life, 100, 1, 11));
    life = resident();
    assert_false(sy_life_may_ask(&life, 0, 1, 1000));
}

static void test_a_failed_load_is_tried_again_later_and_later_and_at_once_after_an_edit(
    void **state)
{
    sy_life life = {0};
    int64_t now_us = 0, wait_us = 0;

    (void)state;
    sy_life_wanted(&life, 1, 0);
    for (int i = 0; i < 12; i++) {
        assert_true(sy_life_must_load(&life, now_us));
        sy_life_loading(&life, now_us);
        sy_life_failed(&life, now_us);
        assert_int_equal(life.state, SY_SHARD_FAILED);
        assert_false(sy_life_must_load(&life, now_us));
        assert_true(life.retry_us - now_us >= wait_us);
        wait_us = life.retry_us - now_us;
        assert_true(wait_us <= SY_LIFE_RETRY_MAX_US);
        now_us = life.retry_us;
    }
    assert_int_equal(wait_us, SY_LIFE_RETRY_MAX_US);
    sy_life_loading(&life, now_us);
    sy_life_failed(&life, now_us);
    assert_true(sy_life_wanted(&life, 1, now_us));
    assert_true(sy_life_must_load(&life, now_us));
}

static void test_a_failed_load_that_nobody_wants_any_more_is_forgotten(void **state)
{
    sy_life life = {0};

    (void)state;
    sy_life_wanted(&life, 1, 0);
    sy_life_loading(&life, 0);
    sy_life_wanted(&life, 0, 0);
    sy_life_failed(&life, 0);
    assert_int_equal(life.state, SY_SHARD_ABSENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wanted_shard_is_loaded_and_one_that_is_not_is_left_alone),
        cmocka_unit_test(test_a_shard_that_became_unwanted_while_it_was_loaded_lingers),
        cmocka_unit_test(test_it_leaves_memory_after_the_new_holder_has_answered),
        cmocka_unit_test(test_what_is_no_answer_to_the_question_keeps_it_in_memory),
        cmocka_unit_test(test_an_answer_from_before_it_was_wanted_again_does_not_count),
        cmocka_unit_test(test_it_asks_after_its_time_or_when_room_is_needed),
        cmocka_unit_test(
            test_a_failed_load_is_tried_again_later_and_later_and_at_once_after_an_edit),
        cmocka_unit_test(test_a_failed_load_that_nobody_wants_any_more_is_forgotten),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
