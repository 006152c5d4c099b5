/* test_status.c - the texts of errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "sy_status.h"

static void every_status_has_a_name_of_its_own(void **state)
{
    (void)state;
    for (int i = 0; i < SY_N_STATUS; i++) {
        assert_non_null(sy_status_name((sy_status)i));
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(sy_status_name((sy_status)i), sy_status_name((sy_status)k));
        }
    }
    assert_string_equal(sy_status_name(SY_EINVAL), "INVALID_ARGUMENT");
    assert_string_equal(sy_status_name((sy_status)99), "UNKNOWN");
}

static void status_codes_survive_the_way_to_a_peer_and_back(void **state)
{
    (void)state;
    assert_int_equal(sy_status_code(SY_EUNAVAILABLE), 14);
    for (int i = 0; i < SY_N_STATUS; i++) {
        const sy_status back = sy_status_from_code(sy_status_code((sy_status)i));

        assert_int_equal(sy_status_code(back), sy_status_code((sy_status)i));
    }
    assert_int_equal(sy_status_from_code(-1), SY_EINTERNAL);
    assert_int_equal(sy_status_from_code(1000), SY_EINTERNAL);
}

static void setting_an_error_returns_its_status_and_clears_the_place(void **state)
{
    sy_error err;

    (void)state;
    memset(&err, 0x5a, sizeof(err));
    assert_int_equal(sy_error_set(&err, SY_ELIMIT, "%d of %s", 7, "9"), SY_ELIMIT);
    assert_int_equal(err.status, SY_ELIMIT);
    assert_string_equal(err.message, "7 of 9");
    assert_string_equal(err.reason, "");
    assert_string_equal(err.node, "");
    assert_int_equal(err.layer, -1);
    assert_int_equal(err.expert, -1);
}

static void null_errors_are_accepted_everywhere(void **state)
{
    (void)state;
    assert_int_equal(sy_error_set(NULL, SY_EIO, "x"), SY_EIO);
    sy_error_where(NULL, "R", 1, 2, "n");
    sy_error_prefix(NULL, "p");
    sy_error_clear(NULL);
}

static void a_place_is_added_piece_by_piece(void **state)
{
    sy_error err;

    (void)state;
    sy_error_set(&err, SY_EUNAVAILABLE, "no answer");
    sy_error_where(&err, "EXPERT_UNREACHABLE", 3, -1, NULL);
    sy_error_where(&err, NULL, -1, 17, "expert-0");
    assert_string_equal(err.reason, "EXPERT_UNREACHABLE");
    assert_string_equal(err.node, "expert-0");
    assert_int_equal(err.layer, 3);
    assert_int_equal(err.expert, 17);
    assert_string_equal(err.message, "no answer");
}

static void a_prefix_may_quote_the_message_it_extends(void **state)
{
    sy_error err;

    (void)state;
    sy_error_set(&err, SY_EINVAL, "header is not JSON");
    sy_error_prefix(&err, "%s", "model.safetensors");
    assert_string_equal(err.message, "model.safetensors: header is not JSON");
    sy_error_set(&err, SY_EINVAL, "[%s]", err.message);
    assert_string_equal(err.message, "[model.safetensors: header is not JSON]");
}

/* Messages travel in protobuf strings: half a character would make a whole reply unreadable. */
static void a_long_text_is_cut_between_characters(void **state)
{
    char text[2 * SY_MESSAGE_BYTES];
    sy_error err;

    (void)state;
    for (size_t shift = 0; shift < 4; shift++) {
        size_t len;

        memset(text, 'a', shift);
        for (len = shift; len + 7 < sizeof(text); len += 7) { /* U+1F600 and U+20AC */
            memcpy(text + len, "\xf0\x9f\x98\x80\xe2\x82\xac", 7);
        }
        text[len] = '\0';
        sy_error_set(&err, SY_EINVAL, "%s", text);
        len = strlen(err.message);
        assert_in_range(len, SY_MESSAGE_BYTES - 4, SY_MESSAGE_BYTES - 1);
        assert_true(memcmp(err.message + len - 3, "\xe2\x82\xac", 3) == 0 ||
                    memcmp(err.message + len - 4, "\xf0\x9f\x98\x80", 4) == 0);
        sy_error_where(&err, text, -1, -1, text);
        assert_in_range(strlen(err.reason), SY_REASON_BYTES - 4, SY_REASON_BYTES - 1);
        assert_in_range(strlen(err.node), SY_NODE_BYTES - 4, SY_NODE_BYTES - 1);
        sy_error_prefix(&err, "%s", text);
        assert_in_range(strlen(err.message), SY_MESSAGE_BYTES - 4, SY_MESSAGE_BYTES - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_name_of_its_own),
        cmocka_unit_test(status_codes_survive_the_way_to_a_peer_and_back),
        cmocka_unit_test(setting_an_error_returns_its_status_and_clears_the_place),
        cmocka_unit_test(null_errors_are_accepted_everywhere),
        cmocka_unit_test(a_place_is_added_piece_by_piece),
        cmocka_unit_test(a_prefix_may_quote_the_message_it_extends),
        cmocka_unit_test(a_long_text_is_cut_between_characters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
