/* test_args.c - command lines as people type them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "sy_args.h"

static struct {
    int verbose;
    const char *listen;
    int64_t port;
    int64_t seed;
    double factor;
    sy_arg_strings peers;
} opt;

static const sy_arg table[] = {
    {"listen", "ADDR", "where to listen", SY_ARG_STRING, &opt.listen, 0, 0},
    {"port", "N",
     "the port of the metrics, which are served over plain HTTP to whoever may reach it, so choose "
     "with care",
     SY_ARG_INT, &opt.port, 1, 65535},
    {"seed", "N", "any number", SY_ARG_INT, &opt.seed, 0, 0},
    {"load-factor", "X", "a factor", SY_ARG_DOUBLE, &opt.factor, 0, 0},
    {"peer", "ADDR", "a peer", SY_ARG_STRINGS, &opt.peers, 0, 0},
    {"verbose", NULL, "say more", SY_ARG_FLAG, &opt.verbose, 0, 0},
    {"a-rather-long-option-name", "SOMETHING", "has a line of its own", SY_ARG_STRING, &opt.listen,
     0, 0},
};

static sy_error err;
static const char *positional[2];
static size_t n_positional;

static int set_defaults(void **state)
{
    (void)state;
    memset(&opt, 0, sizeof(opt));
    opt.listen = "unix:/tmp/x";
    opt.port = 9090;
    opt.factor = 1.5;
    opt.peers = (sy_arg_strings){{"default-peer"}, 1};
    sy_error_clear(&err);
    return 0;
}

/* line: arguments, separated by one blank each; kept until the next call. */
static sy_status parse(const char *line)
{
    static char text[512];
    static char program[] = "prog";
    char *argv[64] = {program};
    int argc = 1;

    snprintf(text, sizeof(text), "%s", line);
    for (char *p = text; *line != '\0' && p != NULL; argc++) argv[argc] = strsep(&p, " ");
    return sy_args_parse(argc, argv, table, SY_COUNT_OF(table), "prog [options] FILE", positional,
                         2, &n_positional, &err);
}

static void expect_message(const char *line, const char *want)
{
    assert_int_equal(parse(line), SY_EINVAL);
    assert_string_equal(err.message, want);
}

static void nothing_given_leaves_the_defaults(void **state)
{
    (void)state;
    assert_int_equal(parse(""), SY_OK);
    assert_string_equal(opt.listen, "unix:/tmp/x");
    assert_int_equal(opt.port, 9090);
    assert_int_equal(opt.peers.n, 1);
    assert_int_equal(n_positional, 0);
}

static void both_spellings_of_a_value_work(void **state)
{
    (void)state;
    assert_int_equal(parse("--listen tcp:1 --port=80 --load-factor -0.25 --seed -7 --verbose"),
                     SY_OK);
    assert_string_equal(opt.listen, "tcp:1");
    assert_int_equal(opt.port, 80);
    assert_int_equal(opt.seed, -7);
    assert_true(opt.factor == -0.25);
    assert_int_equal(opt.verbose, 1);
    assert_int_equal(parse("--listen=--odd=x --verbose=no"), SY_OK);
    assert_string_equal(opt.listen, "--odd=x");
    assert_int_equal(opt.verbose, 0);
}

static void the_last_of_two_values_counts(void **state)
{
    (void)state;
    assert_int_equal(parse("--port 1 --port 2"), SY_OK);
    assert_int_equal(opt.port, 2);
}

static void a_repeated_option_replaces_its_default_and_grows(void **state)
{
    (void)state;
    assert_int_equal(parse("--peer a --peer=b --peer c"), SY_OK);
    assert_int_equal(opt.peers.n, 3);
    assert_string_equal(opt.peers.item[0], "a");
    assert_string_equal(opt.peers.item[2], "c");
}

static void a_list_has_an_end(void **state)
{
    (void)state;
    expect_message(
        "--peer=1 --peer=2 --peer=3 --peer=4 --peer=5 --peer=6 --peer=7 --peer=8 --peer=9 "
        "--peer=10 --peer=11 --peer=12 --peer=13 --peer=14 --peer=15 --peer=16 --peer=17",
        "--peer: given more than 16 times");
}

static void positionals_stand_anywhere(void **state)
{
    (void)state;
    assert_int_equal(parse("one --verbose -"), SY_OK);
    assert_int_equal(n_positional, 2);
    assert_string_equal(positional[0], "one");
    assert_string_equal(positional[1], "-");
    assert_int_equal(parse("-- --verbose"), SY_OK);
    assert_int_equal(n_positional, 1);
    assert_string_equal(positional[0], "--verbose");
    expect_message("a b c", "unexpected argument \"c\"; --help shows the usage");
    assert_int_equal(sy_args_parse(1, (char *[]){NULL}, table, 1, "x", NULL, 0, NULL, &err), SY_OK);
}

static void a_mistyped_option_suggests_the_nearest(void **state)
{
    (void)state;
    expect_message("--lisen x", "unknown option --lisen; did you mean --listen?");
    expect_message("--load_factor=2", "unknown option --load_factor; did you mean --load-factor?");
    expect_message("-port", "unknown option -port; did you mean --port?");
    expect_message("--quite-another", "unknown option --quite-another; --help lists the options");
    expect_message("-x", "unknown option -x; --help lists the options");
    expect_message("--=3", "unknown option --; --help lists the options");
    expect_message(
        "--a-name-longer-than-any-that-a-table-could-ever-hold-in-its-names",
        "unknown option --a-name-longer-than-any-that-a-table-could-ever-hold-in-its-names; "
        "--help lists the options");
}

static void a_missing_value_is_named(void **state)
{
    (void)state;
    expect_message("--listen", "--listen: a value is missing: --listen ADDR");
    expect_message("--listen --verbose", "--listen: a value is missing: --listen ADDR");
}

static void numbers_are_read_strictly(void **state)
{
    (void)state;
    expect_message("--port 80x", "--port: \"80x\" is not a whole number");
    expect_message("--port=", "--port: \"\" is not a whole number");
    expect_message("--port 1.5", "--port: \"1.5\" is not a whole number");
    expect_message("--port 0", "--port: 0 is not between 1 and 65535");
    expect_message("--port 65536", "--port: 65536 is not between 1 and 65535");
    expect_message("--seed 9223372036854775808",
                   "--seed: 9223372036854775808 is not between -9223372036854775808 and "
                   "9223372036854775807");
    expect_message("--load-factor 1e", "--load-factor: \"1e\" is not a number");
    expect_message("--load-factor nan", "--load-factor: \"nan\" is not a number");
    expect_message("--load-factor 1e999", "--load-factor: \"1e999\" is not a number");
    expect_message("--verbose=perhaps", "--verbose: \"perhaps\" is neither true nor false");
    assert_int_equal(opt.port, 9090);
}

static void the_environment_gives_what_the_command_line_left_out(void **state)
{
    (void)state;
    setenv("SWITCHYARD_LOAD_FACTOR", "3", 1);
    setenv("SWITCHYARD_PORT", "81", 1);
    setenv("SWITCHYARD_VERBOSE", "true", 1);
    setenv("SWITCHYARD_PEER", "from-env", 1);
    setenv("SWITCHYARD_LISTEN", "", 1); /* as good as absent */
    assert_int_equal(parse("--port 82"), SY_OK);
    assert_true(opt.factor == 3);
    assert_int_equal(opt.port, 82);
    assert_int_equal(opt.verbose, 1);
    assert_int_equal(opt.peers.n, 1);
    assert_string_equal(opt.peers.item[0], "from-env");
    assert_string_equal(opt.listen, "unix:/tmp/x");
    setenv("SWITCHYARD_PORT", "many", 1);
    expect_message("", "SWITCHYARD_PORT: \"many\" is not a whole number");
    assert_int_equal(parse("--port 83"), SY_OK); /* what is overridden need not make sense */
}

static int clear_environment(void **state)
{
    (void)state;
    unsetenv("SWITCHYARD_LOAD_FACTOR");
    unsetenv("SWITCHYARD_PORT");
    unsetenv("SWITCHYARD_VERBOSE");
    unsetenv("SWITCHYARD_PEER");
    unsetenv("SWITCHYARD_LISTEN");
    return 0;
}

static void help_is_aligned_and_shows_defaults(void **state)
{
    capture c = capture_begin(STDOUT_FILENO);
    const sy_status st = parse("--port 5 --nonsense --help");
    char *text = capture_end(&c);

    (void)state;
    assert_int_equal(st, SY_ECANCELLED);
    assert_string_equal(
        text, "usage: prog [options] FILE\n\n"
              "  --listen ADDR    where to listen (default unix:/tmp/x)\n"
              "  --port N         the port of the metrics, which are served over plain HTTP to\n"
              "                   whoever may reach it, so choose with care (default 9090)\n"
              "  --seed N         any number (default 0)\n"
              "  --load-factor X  a factor (default 1.5)\n"
              "  --peer ADDR      a peer (may be repeated; default default-peer)\n"
              "  --verbose        say more\n"
              "  --a-rather-long-option-name SOMETHING\n"
              "                   has a line of its own (default unix:/tmp/x)\n"
              "  --help           show this text\n"
              "\n"
              "An option that is not given is taken from the environment: --listen from\n"
              "SWITCHYARD_LISTEN.\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(nothing_given_leaves_the_defaults, set_defaults),
        cmocka_unit_test_setup(both_spellings_of_a_value_work, set_defaults),
        cmocka_unit_test_setup(the_last_of_two_values_counts, set_defaults),
        cmocka_unit_test_setup(a_repeated_option_replaces_its_default_and_grows, set_defaults),
        cmocka_unit_test_setup(a_list_has_an_end, set_defaults),
        cmocka_unit_test_setup(positionals_stand_anywhere, set_defaults),
        cmocka_unit_test_setup(a_mistyped_option_suggests_the_nearest, set_defaults),
        cmocka_unit_test_setup(a_missing_value_is_named, set_defaults),
        cmocka_unit_test_setup(numbers_are_read_strictly, set_defaults),
        cmocka_unit_test_setup_teardown(the_environment_gives_what_the_command_line_left_out,
                                        set_defaults, clear_environment),
        cmocka_unit_test_setup(help_is_aligned_and_shows_defaults, set_defaults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
