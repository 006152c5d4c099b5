/* test_metrics.c - values, and the text a scraper reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "sy_metrics.h"

/* The caller frees the text. */
static char *rendered(void)
{
    sy_strbuf out;
    char *text;

    sy_strbuf_init(&out);
    sy_metrics_render(&out);
    text = sy_strbuf_detach(&out);
    assert_non_null(text);
    return text;
}

static void expect_text(const char *want)
{
    char *text = rendered();

    if (strstr(text, want) == NULL) fail_msg("no \"%s\" in:\n%s", want, text);
    free(text);
}

static void the_same_name_and_labels_are_the_same_metric(void **state)
{
    sy_metric *a = sy_metric_counter("t_same_total", "Help.", "x=\"1\"");

    (void)state;
    assert_non_null(a);
    assert_ptr_equal(sy_metric_counter("t_same_total", "Help.", "x=\"1\""), a);
    assert_ptr_not_equal(sy_metric_counter("t_same_total", "Help.", "x=\"2\""), a);
    assert_ptr_not_equal(sy_metric_counter("t_same_total", "Help.", NULL), a);
    assert_ptr_equal(sy_metric_counter("t_same_total", "Help.", NULL),
                     sy_metric_counter("t_same_total", "Help.", ""));
}

static void labels_need_not_outlive_the_call(void **state)
{
    char labels[] = "node=\"expert-0\"";
    sy_metric *metric = sy_metric_gauge("t_copied", "Help.", labels);

    (void)state;
    memset(labels, '#', sizeof(labels) - 1);
    sy_metric_set(metric, 1.5);
    expect_text("t_copied{node=\"expert-0\"} 1.5\n");
}

static void counters_only_rise(void **state)
{
    sy_metric *metric = sy_metric_counter("t_rise_total", "Help.", NULL);

    (void)state;
    sy_metric_add(metric, 2);
    sy_metric_add(metric, 0.5);
    sy_metric_add(metric, -1);
    sy_metric_add(metric, NAN);
    assert_true(sy_metric_value(metric) == 2.5);
    expect_text("# HELP t_rise_total Help.\n# TYPE t_rise_total counter\nt_rise_total 2.5\n");
}

static void gauges_go_both_ways_and_print_exactly(void **state)
{
    sy_metric *metric = sy_metric_gauge("t_gauge", "Help.", NULL);

    (void)state;
    sy_metric_set(metric, 10);
    sy_metric_add(metric, -12);
    assert_true(sy_metric_value(metric) == -2);
    expect_text("\nt_gauge -2\n");
    sy_metric_set(metric, 0.1);
    expect_text("\nt_gauge 0.1\n");
    sy_metric_set(metric, 0x1.3333333333334p-2); /* next to 0.3: needs all 17 digits */
    expect_text("\nt_gauge 0.30000000000000004\n");
    sy_metric_set(metric, 123456789012);
    expect_text("\nt_gauge 123456789012\n");
    sy_metric_set(metric, INFINITY);
    expect_text("\nt_gauge +Inf\n");
    sy_metric_set(metric, NAN);
    expect_text("\nt_gauge NaN\n");
}

static void a_histogram_adds_up_its_buckets(void **state)
{
    sy_metric *metric = sy_metric_histogram("t_wait_seconds", "Help.", "tier=\"router\"");

    (void)state;
    sy_metric_observe_us(metric, -5);
    sy_metric_observe_us(metric, 10); /* a bound belongs to its bucket */
    sy_metric_observe_us(metric, 11);
    sy_metric_observe_us(metric, 1000000);
    sy_metric_observe_us(metric, 60000000);
    sy_metric_observe_us(metric, 60000001);
    assert_true(sy_metric_value(metric) == 6);
    expect_text("# TYPE t_wait_seconds histogram\n"
                "t_wait_seconds_bucket{tier=\"router\",le=\"1e-05\"} 2\n"
                "t_wait_seconds_bucket{tier=\"router\",le=\"2e-05\"} 3\n"
                "t_wait_seconds_bucket{tier=\"router\",le=\"5e-05\"} 3\n"
                "t_wait_seconds_bucket{tier=\"router\",le=\"0.0001\"} 3\n");
    expect_text("t_wait_seconds_bucket{tier=\"router\",le=\"0.5\"} 3\n"
                "t_wait_seconds_bucket{tier=\"router\",le=\"1\"} 4\n");
    expect_text("t_wait_seconds_bucket{tier=\"router\",le=\"50\"} 4\n"
                "t_wait_seconds_bucket{tier=\"router\",le=\"60\"} 5\n"
                "t_wait_seconds_bucket{tier=\"router\",le=\"+Inf\"} 6\n"
                "t_wait_seconds_sum{tier=\"router\"} 121.000022\n"
                "t_wait_seconds_count{tier=\"router\"} 6\n");
}

static void a_histogram_without_labels_has_only_its_bound(void **state)
{
    (void)state;
    sy_metric_observe_us(sy_metric_histogram("t_bare_seconds", NULL, NULL), 1);
    expect_text(
        "t_bare_seconds_bucket{le=\"+Inf\"} 1\nt_bare_seconds_sum 1e-06\nt_bare_seconds_count 1\n");
}

static void families_stay_together_in_order_of_their_names(void **state)
{
    static const char want[] = "# HELP t_order_a a\n# TYPE t_order_a gauge\nt_order_a 0\n"
                               "# HELP t_order_ab ab\n# TYPE t_order_ab gauge\nt_order_ab 0\n"
                               "# HELP t_order_b b\n# TYPE t_order_b gauge\nt_order_b 0\n"
                               "t_order_b{i=\"0\"} 0\nt_order_b{i=\"1\"} 0\n";

    (void)state;
    sy_metric_gauge("t_order_b", "b", "i=\"1\"");
    sy_metric_gauge("t_order_a", "a", NULL);
    sy_metric_gauge("t_order_ab", "ab", NULL);
    sy_metric_gauge("t_order_b", "b", NULL);
    sy_metric_gauge("t_order_b", "b", "i=\"0\"");
    expect_text(want);
}

/* One malformed line, and a scraper throws the whole page away. */
static void labels_that_were_not_escaped_cannot_break_the_page(void **state)
{
    static const struct {
        const char *labels;
        const char *line;
    } cases[] = {
        {"n=\"a\\\"b\\\\c\\nd\"", "t_bad{n=\"a\\\"b\\\\c\\nd\"} 1\n"}, /* well escaped: as it is */
        {"n=\"\xc3\xa9\",m=\"\"", "t_bad{n=\"\xc3\xa9\",m=\"\"} 1\n"},
        {"n=\"a\nb\"", "t_bad{malformed=\"n=\\\"a\\nb\\\"\"} 1\n"},
        {"n=\"a\"b\"", "t_bad{malformed=\"n=\\\"a\\\"b\\\"\"} 1\n"},
        {"n=\"a", "t_bad{malformed=\"n=\\\"a\"} 1\n"},
        {"n=\"a\\", "t_bad{malformed=\"n=\\\"a\\\\\"} 1\n"},
        {"n=\"a\\q\"", "t_bad{malformed=\"n=\\\"a\\\\q\\\"\"} 1\n"},
        {"n=\"\xff\"", "t_bad{malformed=\"n=\\\"\xef\xbf\xbd\\\"\"} 1\n"},
        {"1n=\"a\"", "t_bad{malformed=\"1n=\\\"a\\\"\"} 1\n"},
        {"n=\"a\",", "t_bad{malformed=\"n=\\\"a\\\",\"} 1\n"},
        {"n=a", "t_bad{malformed=\"n=a\"} 1\n"},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        sy_metric_set(sy_metric_gauge("t_bad", "line\nback\\slash \"q\"", cases[i].labels), 1);
        expect_text(cases[i].line);
    }
    expect_text("# HELP t_bad line\\nback\\\\slash \"q\"\n# TYPE");
}

static void updates_without_a_metric_do_nothing(void **state)
{
    (void)state;
    sy_metric_add(NULL, 1);
    sy_metric_set(NULL, 1);
    sy_metric_observe_us(NULL, 1);
    assert_true(sy_metric_value(NULL) == 0);
}

static void set_from_hook(void *arg)
{
    sy_metric_add(sy_metric_gauge("t_hooked", "Help.", NULL), *(double *)arg);
}

static void hooks_run_before_each_page_and_may_make_metrics(void **state)
{
    static double step = 2;

    (void)state;
    sy_metrics_on_render(set_from_hook, &step);
    expect_text("\nt_hooked 2\n");
    expect_text("\nt_hooked 4\n");
    step = 0;
}

#define N_THREADS 4
#define N_ADDS    5000

static void *add_often(void *arg)
{
    sy_metric *counter = sy_metric_counter("t_threads_total", "Help.", NULL);
    sy_metric *histogram = sy_metric_histogram("t_threads_seconds", "Help.", NULL);

    (void)arg;
    for (int i = 0; i < N_ADDS; i++) {
        sy_metric_add(counter, 1);
        sy_metric_observe_us(histogram, i);
    }
    return NULL;
}

static void updates_from_many_threads_all_count(void **state)
{
    pthread_t threads[N_THREADS];

    (void)state;
    for (size_t t = 0; t < N_THREADS; t++) {
        assert_int_equal(pthread_create(&threads[t], NULL, add_often, NULL), 0);
    }
    for (int i = 0; i < 20; i++) free(rendered());
    for (size_t t = 0; t < N_THREADS; t++) pthread_join(threads[t], NULL);
    assert_true(sy_metric_value(sy_metric_counter("t_threads_total", "Help.", NULL)) ==
                N_THREADS * N_ADDS);
    assert_true(sy_metric_value(sy_metric_histogram("t_threads_seconds", "Help.", NULL)) ==
                N_THREADS * N_ADDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_name_and_labels_are_the_same_metric),
        cmocka_unit_test(labels_need_not_outlive_the_call),
        cmocka_unit_test(counters_only_rise),
        cmocka_unit_test(gauges_go_both_ways_and_print_exactly),
        cmocka_unit_test(a_histogram_adds_up_its_buckets),
        cmocka_unit_test(a_histogram_without_labels_has_only_its_bound),
        cmocka_unit_test(families_stay_together_in_order_of_their_names),
        cmocka_unit_test(labels_that_were_not_escaped_cannot_break_the_page),
        cmocka_unit_test(updates_without_a_metric_do_nothing),
        cmocka_unit_test(hooks_run_before_each_page_and_may_make_metrics),
        cmocka_unit_test(updates_from_many_threads_all_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
