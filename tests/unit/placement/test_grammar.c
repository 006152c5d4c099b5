/* test_grammar.c - what an operator may write into the placement hash, and what he is told about
 * what he may not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sy_placement.h"

#define LAYERS  4
#define EXPERTS 20
#define GRID    (&(const sy_grid){.layers = LAYERS, .experts = EXPERTS})

/* A copy of exactly n bytes, so that AddressSanitizer sees a read past the end. */
static char *exact_copy(const char *text, size_t n)
{
    char *copy = malloc(n > 0 ? n : 1);

    assert_non_null(copy);
    memcpy(copy, text, n);
    return copy;
}

static sy_status parse_field(sy_field *out, const char *text, size_t n, sy_error *err)
{
    char *copy = exact_copy(text, n);
    const sy_status st = sy_field_parse(out, copy, n, GRID, err);

    free(copy);
    return st;
}

static sy_status parse_targets(sy_target_list *out, const char *text, size_t n, sy_error *err)
{
    char *copy = exact_copy(text, n);
    const sy_status st = sy_targets_parse(out, copy, n, err);

    free(copy);
    return st;
}

static void assert_says(const char *input, const sy_error *err, const char *fragment)
{
    assert_int_equal(err->status, SY_EINVAL);
    if (strstr(err->message, fragment) == NULL) {
        fail_msg("for '%s': '%s' does not contain '%s'", input, err->message, fragment);
    }
}

static void fields_of_the_grammar_are_read(void **state)
{
    static const struct {
        const char *text;
        int32_t layer, expert;
    } good[] = {
        {"0/0", 0, 0},        {"3/17", 3, 17},    {"3/19", 3, 19},
        {"*/17", SY_ANY, 17}, {"3/*", 3, SY_ANY}, {"*/*", SY_ANY, SY_ANY},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(good); i++) {
        sy_field field;
        sy_error err;
        char text[32];

        if (parse_field(&field, good[i].text, strlen(good[i].text), &err) != SY_OK) {
            fail_msg("'%s' is refused: %s", good[i].text, err.message);
        }
        assert_int_equal(field.layer, good[i].layer);
        assert_int_equal(field.expert, good[i].expert);
        assert_int_equal(sy_field_format(text, sizeof(text), field), strlen(good[i].text));
        assert_string_equal(text, good[i].text);
    }
}

static void other_fields_are_refused_with_a_sentence(void **state)
{
    static const struct {
        const char *text;
        const char *says;
    } bad[] = {
        {"", "is not LAYER/EXPERT"},
        {"3", "'3' is not LAYER/EXPERT"},
        {"3-17", "'3-17' is not LAYER/EXPERT"},
        {"/", "the layer '' is not a number"},
        {"3/", "the expert '' is not a number"},
        {"/17", "the layer '' is not a number"},
        {"4/0", "no layer 4: its layers are 0 to 3"},
        {"0/20", "no expert 20: its experts are 0 to 19"},
        {"-1/0", "the layer '-1' is not a number"},
        {"+1/0", "the layer '+1' is not a number"},
        {"03/17", "without leading zeros"},
        {"3/017", "without leading zeros"},
        {"00/1", "without leading zeros"},
        {"3/17/1", "the expert '17/1' is not a number"},
        {" 3/17", "the layer ' 3'"},
        {"3/17 ", "the expert '17 '"},
        {"3 / 17", "the layer '3 '"},
        {"**/1", "the layer '**'"},
        {"1e0/1", "the layer '1e0'"},
        {"0x1/1", "the layer '0x1'"},
        {"3/99999999999999999999", "the expert '99999999999999999999'"},
        {"4294967296/0", "the layer '4294967296'"},
        {"3/1\n7", "'1\\x0a7'"},
        {"\xc3\xbc/1", "'\\xc3\\xbc'"},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        sy_field field;
        sy_error err;

        if (parse_field(&field, bad[i].text, strlen(bad[i].text), &err) == SY_OK) {
            fail_msg("'%s' is accepted", bad[i].text);
        }
        assert_says(bad[i].text, &err, bad[i].says);
    }
}

static void a_nul_byte_in_a_field_is_shown_and_refused(void **state)
{
    sy_field field;
    sy_error err;

    (void)state;
    assert_int_equal(parse_field(&field, "3/1\0", 4, &err), SY_EINVAL);
    assert_says("3/1\\0", &err, "'1\\x00'");
    assert_int_equal(parse_field(&field, "\0", 1, NULL), SY_EINVAL);
}

static void values_of_the_grammar_are_read_and_written_back(void **state)
{
    static const struct {
        const char *text;
        const char *canonical; /* NULL: the same */
        uint32_t n;
    } good[] = {
        {"expert-b/cpu:0", NULL, 1},
        {"expert-a/cuda:1023", NULL, 1},
        {"expert-a/cpu:0 expert-b/cpu:0", NULL, 2},
        {"expert-a/cpu:0 expert-a/cpu:1", NULL, 2},
        {"expert-a/cpu:0@95 expert-b/cpu:0@5", NULL, 2},
        {"a/cpu:0@95 b/cpu:0@5 c/cpu:0@shadow", NULL, 3},
        {"a/cpu:0@100", NULL, 1},
        {"expert-a/cpu:0 expert-b/cpu:0@shadow", NULL, 2},
        {"A.b_c-9/cuda:0", NULL, 1},
        {"  a/cpu:0   b/cpu:0 ", "a/cpu:0 b/cpu:0", 2},
        {"expert-b/cpu:0!", NULL, 1},
        {"a/cpu:0@95 b/cpu:0@5!", NULL, 2},
        {"a/cpu:0!  b/cpu:0@shadow! ", "a/cpu:0! b/cpu:0@shadow!", 2},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(good); i++) {
        const char *want = good[i].canonical != NULL ? good[i].canonical : good[i].text;
        char text[SY_PLACEMENT_VALUE_MAX];
        sy_target_list list;
        sy_error err;

        if (parse_targets(&list, good[i].text, strlen(good[i].text), &err) != SY_OK) {
            fail_msg("'%s' is refused: %s", good[i].text, err.message);
        }
        assert_int_equal(list.n, good[i].n);
        assert_int_equal(sy_targets_format(text, sizeof(text), &list), strlen(want));
        assert_string_equal(text, want);
        assert_int_equal(sy_targets_format(NULL, 0, &list), strlen(want));
        assert_int_equal(sy_targets_format(text, 4, &list), strlen(want));
        assert_memory_equal(text, want, 3);
        assert_int_equal(text[3], '\0');
    }
}

static void the_parts_of_a_target_are_told_apart(void **state)
{
    static const char text[] = "expert-a/cpu:0@95 expert-b/cuda:1@5! c/cpu:2@shadow";
    sy_target_list list;

    (void)state;
    assert_int_equal(parse_targets(&list, text, strlen(text), NULL), SY_OK);
    assert_string_equal(list.target[0].node, "expert-a");
    assert_string_equal(list.target[0].device, "cpu:0");
    assert_int_equal(list.target[0].share, 95);
    assert_int_equal(list.target[0].shadow, 0);
    assert_string_equal(list.target[1].device, "cuda:1");
    assert_int_equal(list.target[1].share, 5);
    assert_int_equal(list.target[0].any_weights, 0);
    assert_int_equal(list.target[1].any_weights, 1);
    assert_int_equal(list.target[2].any_weights, 0);
    assert_string_equal(list.target[2].node, "c");
    assert_int_equal(list.target[2].share, 0);
    assert_int_equal(list.target[2].shadow, 1);
}

static void other_values_are_refused_with_a_sentence(void **state)
{
    static const struct {
        const char *text;
        const char *says;
    } bad[] = {
        {"", "names no target"},
        {"   ", "names no target"},
        {"expert-a", "'expert-a' is not NODE/DEVICE"},
        {"expert-a cpu:0", "'expert-a' is not NODE/DEVICE"},
        {"/cpu:0", "has no node"},
        {"a/", "the device '' is neither"},
        {"a/cpu", "the device 'cpu' is neither cpu:N nor cuda:N"},
        {"a/cpu:", "the device 'cpu:' is neither"},
        {"a/cpu:x", "the device 'cpu:x'"},
        {"a/cpu:00", "the device 'cpu:00'"},
        {"a/cpu:1024", "the device 'cpu:1024'"},
        {"a/gpu:0", "the device 'gpu:0'"},
        {"a/CPU:0", "the device 'CPU:0'"},
        {"a/cpu:-1", "the device 'cpu:-1'"},
        {"a/b/cpu:0", "the device 'b/cpu:0'"},
        {"a,b/cpu:0", "the node name 'a,b'"},
        {"a:1/cpu:0", "the node name 'a:1'"},
        {"a/cpu:0@", "the share ''"},
        {"a/cpu:0@0", "the share '0'"},
        {"a/cpu:0@101", "the share '101'"},
        {"a/cpu:0@-5", "the share '-5'"},
        {"a/cpu:0@5%", "the share '5%'"},
        {"a/cpu:0@05", "the share '05'"},
        {"a/cpu:0@5.5", "the share '5.5'"},
        {"a/cpu:0@Shadow", "the share 'Shadow'"},
        {"a/cpu:0@50@50", "the share '50@50'"},
        {"a@5/cpu:0", "'a@5/cpu:0' is not NODE/DEVICE"},
        {"a/cpu:0@95", "the shares add up to 95: they must add up to 100"},
        {"a/cpu:0@95 b/cpu:0@6", "the shares add up to 101"},
        {"a/cpu:0@100 b/cpu:0", "some targets have a share and some have none"},
        {"a/cpu:0@shadow", "only shadow targets"},
        {"a/cpu:0@shadow b/cpu:0@shadow", "only shadow targets"},
        {"a/cpu:0 a/cpu:0", "a/cpu:0 is named twice"},
        {"a/cpu:0 b/cpu:0 a/cpu:0@shadow", "a/cpu:0 is named twice"},
        {"a/cpu:0!!", "the target 'a/cpu:0!!' has a '!' too many or in another place than its end"},
        {"a/cpu:0!@5", "'a/cpu:0!@5' has a '!' too many or in another place"},
        {"a/cpu:0@5!0", "'a/cpu:0@5!0' has a '!' too many or in another place"},
        {"a!/cpu:0!", "'a!/cpu:0!' has a '!' too many or in another place"},
        {"!a/cpu:0", "'!a/cpu:0' has a '!' too many or in another place"},
        {"a/cpu:0 !", "the target '!' is not NODE/DEVICE"},
        {"a/cpu:0@!", "the share ''"},
        {"a/!", "the device ''"},
        {"a/cpu:0 a/cpu:0!", "a/cpu:0 is named twice"},
        {"a/cpu:0@shadow!", "only shadow targets"},
        {"a/cpu:0\tb/cpu:0", "the device 'cpu:0\\x09b/cpu:0'"},
        {"a/cpu:0\n", "the device 'cpu:0\\x0a'"},
        {"\xc3\xbc/cpu:0", "the node name '\\xc3\\xbc'"},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        sy_target_list list;
        sy_error err;

        if (parse_targets(&list, bad[i].text, strlen(bad[i].text), &err) == SY_OK) {
            fail_msg("'%s' is accepted", bad[i].text);
        }
        assert_says(bad[i].text, &err, bad[i].says);
        assert_int_equal(list.n, 0);
    }
}

static void a_nul_byte_in_a_value_is_shown_and_refused(void **state)
{
    sy_target_list list;
    sy_error err;

    (void)state;
    assert_int_equal(parse_targets(&list, "a/cpu:0\0", 8, &err), SY_EINVAL);
    assert_says("a/cpu:0\\0", &err, "'cpu:0\\x00'");
}

static void limits_of_a_value_are_the_stated_ones(void **state)
{
    char text[SY_PLACEMENT_VALUE_MAX + 2];
    char node[SY_NODE_BYTES + 16];
    sy_target_list list;
    sy_error err;
    size_t n = 0;

    (void)state;
    for (int i = 0; i < SY_TARGETS_MAX + 1; i++) {
        if (i == SY_TARGETS_MAX) assert_int_equal(parse_targets(&list, text, n, &err), SY_OK);
        n += (size_t)snprintf(text + n, sizeof(text) - n, "n%d/cpu:0 ", i);
    }
    assert_int_equal(parse_targets(&list, text, n, &err), SY_EINVAL);
    assert_says(text, &err, "more than 16 targets");

    memset(text, ' ', sizeof(text));
    memcpy(text, "a/cpu:0", 7);
    assert_int_equal(parse_targets(&list, text, SY_PLACEMENT_VALUE_MAX, &err), SY_OK);
    assert_int_equal(parse_targets(&list, text, SY_PLACEMENT_VALUE_MAX + 1, &err), SY_EINVAL);
    assert_says("long", &err, "the value has 2049 bytes: at most 2048");

    memset(node, 'n', sizeof(node));
    memcpy(node + SY_NODE_BYTES - 1, "/cpu:0", 6);
    assert_int_equal(parse_targets(&list, node, SY_NODE_BYTES + 5, &err), SY_OK);
    memcpy(node + SY_NODE_BYTES - 1, "n/cpu:0", 7);
    assert_int_equal(parse_targets(&list, node, SY_NODE_BYTES + 6, &err), SY_EINVAL);
    assert_says("long node", &err, "has 64 bytes: at most 63");
}

/* The widest text that parses is the widest that is written: it fits where values fit. */
static void the_longest_list_survives_the_way_back(void **state)
{
    char text[SY_PLACEMENT_VALUE_MAX + 1];
    char back[SY_PLACEMENT_VALUE_MAX];
    sy_target_list list;
    size_t n = 0;

    (void)state;
    for (int i = 0; i < SY_TARGETS_MAX; i++) {
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%063d/cuda:1000%s", i > 0 ? " " : "",
                              i, i > 0 ? "@shadow!" : "@100!");
    }
    assert_int_equal(parse_targets(&list, text, n, NULL), SY_OK);
    assert_int_equal(sy_targets_format(back, sizeof(back), &list), n);
    assert_string_equal(back, text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_of_the_grammar_are_read),
        cmocka_unit_test(other_fields_are_refused_with_a_sentence),
        cmocka_unit_test(a_nul_byte_in_a_field_is_shown_and_refused),
        cmocka_unit_test(values_of_the_grammar_are_read_and_written_back),
        cmocka_unit_test(the_parts_of_a_target_are_told_apart),
        cmocka_unit_test(other_values_are_refused_with_a_sentence),
        cmocka_unit_test(a_nul_byte_in_a_value_is_shown_and_refused),
        cmocka_unit_test(limits_of_a_value_are_the_stated_ones),
        cmocka_unit_test(the_longest_list_survives_the_way_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
