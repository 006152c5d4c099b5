/* control_fixture.h - what tests of the control plane against a real Redis share: a server, what
 * was seen of it, and ways to have a server on a TCP port as well. */
#ifndef CONTROL_FIXTURE_H
#define CONTROL_FIXTURE_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "control_seen.h"
#include "sy_metrics.h"

#define KEY "switchyard:{trio}:placement"

/* A check an hour: only a hint can bring an edit. */
#define NEVER_CHECK_US 3600000000ll

typedef struct fixture {
    test_redis redis;
    seen seen;
} fixture;

static inline int set_up(void **state)
{
    fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    seen_init(&f->seen);
    test_redis_open(&f->redis);
    *state = f;
    return 0;
}

static inline int tear_down(void **state)
{
    fixture *f = *state;

    assert_int_equal(f->seen.n_repeated_epochs, 0);
    test_redis_close(&f->redis);
    pthread_mutex_destroy(&f->seen.mutex);
    free(f);
    return 0;
}

static inline sy_control_config config_of(fixture *f, int64_t check_us)
{
    return (sy_control_config){
        .redis = f->redis.address,
        .model = "trio",
        .grid.layers = 2,
        .grid.experts = 3,
        .check_us = check_us,
        .ctx = &f->seen,
        .on_placement = seen_placement,
    };
}

static inline unsigned hints_of(sy_control *control)
{
    sy_placement_news news;

    sy_control_news(control, &news);
    return news.hints;
}

static inline double redis_errors(void)
{
    return sy_metric_value(sy_metric_counter("switchyard_redis_errors_total", "", NULL));
}

static inline int is_writable(void)
{
    return sy_metric_value(sy_metric_gauge("switchyard_redis_writable", "", NULL)) > 0;
}

static inline int free_port(void)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(name);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(bind(fd, (const struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&name, &n), 0);
    close(fd);
    return ntohs(name.sin_port);
}

#endif
