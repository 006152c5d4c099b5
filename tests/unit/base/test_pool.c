/* test_pool.c - that a pool does each piece of work once, on threads it names rightly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "sy_clock.h"
#include "sy_pool.h"

#define N_MAX      1000
#define GIVE_UP_US (30 * INT64_C(1000000))

typedef struct job {
    unsigned n_threads;
    uint32_t
        n_done[N_MAX];   /* plain: two threads on one index would be a race that sanitizers see */
    uint64_t scratch[8]; /* one a thread, plain for the same reason */
    _Atomic unsigned n_wrong;
} job;

static void do_one(void *arg, size_t i, unsigned thread)
{
    job *j = arg;

    if (i >= N_MAX || thread >= j->n_threads) {
        j->n_wrong++;
        return;
    }
    j->n_done[i]++;
    j->scratch[thread]++;
}

static sy_pool *open_pool(unsigned n_threads)
{
    sy_pool *pool;

    assert_int_equal(sy_pool_open(&pool, n_threads, "a-long-name-for-a-test"), SY_OK);
    assert_int_equal(sy_pool_threads(pool), n_threads);
    return pool;
}

static void check_job(const job *j, size_t n, uint32_t times)
{
    uint64_t total = 0;

    for (size_t i = 0; i < N_MAX; i++) {
        const uint32_t want = i < n ? times : 0;

        if (j->n_done[i] != want) fail_msg("%zu: done %u times, want %u", i, j->n_done[i], want);
    }
    for (size_t t = 0; t < SY_COUNT_OF(j->scratch); t++) total += j->scratch[t];
    assert_int_equal(total, n * times);
    assert_int_equal(j->n_wrong, 0);
}

static void each_index_is_done_once_for_every_size_and_thread_count(void **state)
{
    static const size_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 63, 1000};

    (void)state;
    for (unsigned n_threads = 1; n_threads <= 5; n_threads++) {
        sy_pool *pool = open_pool(n_threads);

        for (size_t s = 0; s < SY_COUNT_OF(sizes); s++) {
            job j = {.n_threads = n_threads};

            for (int round = 0; round < 20; round++) sy_pool_run(pool, sizes[s], do_one, &j);
            check_job(&j, sizes[s], 20);
        }
        sy_pool_free(pool);
    }
}

static void no_pool_means_the_caller_alone(void **state)
{
    job j = {.n_threads = 1};

    (void)state;
    sy_pool_run(NULL, 100, do_one, &j);
    check_job(&j, 100, 1);
    assert_int_equal(sy_pool_threads(NULL), 1);
    sy_pool_free(NULL);
}

static void a_pool_of_no_threads_is_refused(void **state)
{
    sy_pool *pool = (sy_pool *)(uintptr_t)1;

    (void)state;
    assert_int_equal(sy_pool_open(&pool, 0, "x"), SY_EINVAL);
    assert_null(pool);
    assert_int_equal(sy_pool_open(&pool, UINT32_MAX, NULL), SY_EINVAL);
    assert_null(pool);
}

typedef struct meeting {
    unsigned n_wanted;
    _Atomic unsigned n_begun;
} meeting;

/* Each of the indices waits until all have begun: this ends only if as many threads take part. */
static void meet(void *arg, size_t i, unsigned thread)
{
    meeting *m = arg;
    const int64_t give_up_us = sy_clock_us() + GIVE_UP_US;

    (void)i;
    (void)thread;
    ++m->n_begun;
    while (m->n_begun < m->n_wanted && sy_clock_us() < give_up_us) sched_yield();
}

static void check_meeting(sy_pool *pool, unsigned n)
{
    meeting m = {.n_wanted = n};
    const int64_t start_us = sy_clock_us();

    sy_pool_run(pool, n, meet, &m);
    assert_int_equal(m.n_begun, n);
    if (sy_clock_us() - start_us >= GIVE_UP_US) fail_msg("%u threads did not meet", n);
}

static void all_threads_are_woken_when_there_is_work_for_all(void **state)
{
    (void)state;
    for (unsigned n_threads = 4; n_threads <= 6;
         n_threads += 2) { /* as many as indices, and more */
        sy_pool *pool = open_pool(n_threads);

        for (int round = 0; round < 50; round++) check_meeting(pool, 4);
        sy_pool_free(pool);
    }
}

/* One sleeper wakes the next: the last of many comes as well, and so does each once all are awake.
 */
static void a_wide_pool_is_woken_to_the_last_thread(void **state)
{
    sy_pool *pool = open_pool(40);

    (void)state;
    for (int round = 0; round < 5; round++) {
        check_meeting(pool, 40);
        check_meeting(pool, 3);
        check_meeting(pool, 23);
    }
    sy_pool_free(pool);
}

/* Pauses of every length around the one after which a worker falls asleep. */
static void a_worker_between_waking_and_sleeping_misses_no_run(void **state)
{
    sy_pool *pool = open_pool(2);

    (void)state;
    for (int round = 0; round < 400; round++) {
        const int64_t until_us = sy_clock_us() + round % 80;

        while (sy_clock_us() < until_us) {
        }
        check_meeting(pool, 2);
    }
    sy_pool_free(pool);
}

static void very_many_short_runs_lose_no_wake_up(void **state)
{
    sy_pool *pool = open_pool(3);
    job j = {.n_threads = 3};

    (void)state;
    for (int round = 0; round < 5000; round++) sy_pool_run(pool, 4, do_one, &j);
    check_job(&j, 4, 5000);
    sy_pool_free(pool);
}

typedef struct caller {
    sy_pool *pool;
    job *job;
} caller;

static void *call_often(void *arg)
{
    const caller *self = arg;

    for (int round = 0; round < 300; round++) {
        sy_pool_run(self->pool, 1 + (size_t)round % 9, do_one, self->job);
    }
    return NULL;
}

static void callers_on_several_threads_take_turns(void **state)
{
    sy_pool *pool = open_pool(3);
    job shared = {.n_threads = 3}; /* plain counters: runs that overlapped would be a race */
    caller self = {pool, &shared};
    pthread_t threads[3];
    uint64_t total = 0;

    (void)state;
    for (size_t t = 0; t < SY_COUNT_OF(threads); t++) {
        assert_int_equal(pthread_create(&threads[t], NULL, call_often, &self), 0);
    }
    for (size_t t = 0; t < SY_COUNT_OF(threads); t++) pthread_join(threads[t], NULL);
    for (size_t i = 0; i < N_MAX; i++) total += shared.n_done[i];
    for (int round = 0; round < 300; round++) total -= 3 * (1 + (uint64_t)round % 9);
    assert_int_equal(total, 0);
    assert_int_equal(shared.n_wrong, 0);
    sy_pool_free(pool);
}

static void a_pool_can_be_freed_before_its_threads_have_slept(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) sy_pool_free(open_pool(4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_index_is_done_once_for_every_size_and_thread_count),
        cmocka_unit_test(no_pool_means_the_caller_alone),
        cmocka_unit_test(a_pool_of_no_threads_is_refused),
        cmocka_unit_test(all_threads_are_woken_when_there_is_work_for_all),
        cmocka_unit_test(a_wide_pool_is_woken_to_the_last_thread),
        cmocka_unit_test(a_worker_between_waking_and_sleeping_misses_no_run),
        cmocka_unit_test(very_many_short_runs_lose_no_wake_up),
        cmocka_unit_test(callers_on_several_threads_take_turns),
        cmocka_unit_test(a_pool_can_be_freed_before_its_threads_have_slept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
