/* test_queue.c - order, limits, deadlines and closing of a queue, alone and between threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "sy_clock.h"
#include "sy_queue.h"

#define N_PRODUCERS 3
#define N_CONSUMERS 3
#define N_EACH      4000

static void *item_of(size_t i)
{
    return (void *)(uintptr_t)(i + 1);
}

static sy_queue *open_queue(size_t capacity)
{
    sy_queue *queue;

    assert_int_equal(sy_queue_open(&queue, capacity), SY_OK);
    return queue;
}

static void push(sy_queue *queue, size_t i)
{
    assert_int_equal(sy_queue_push(queue, item_of(i)), SY_OK);
}

static void expect_pop(sy_queue *queue, size_t i)
{
    void *item;

    assert_int_equal(sy_queue_pop(queue, &item, 0), SY_OK);
    assert_ptr_equal(item, item_of(i));
}

static void a_queue_without_room_for_anything_is_refused(void **state)
{
    sy_queue *queue;

    (void)state;
    assert_int_equal(sy_queue_open(&queue, 0), SY_EINVAL);
    assert_null(queue);
    assert_int_equal(sy_queue_open(&queue, SIZE_MAX), SY_ENOMEM);
    assert_null(queue);
    sy_queue_free(NULL);
}

static void items_come_out_in_order_round_the_ring(void **state)
{
    sy_queue *queue = open_queue(3);
    size_t next = 0;

    (void)state;
    push(queue, 0);
    for (size_t i = 1; i < 20; i++) {
        push(queue, i);
        assert_int_equal(sy_queue_length(queue), 2);
        expect_pop(queue, next++);
    }
    expect_pop(queue, next);
    sy_queue_free(queue);
}

static void a_full_queue_refuses_at_once(void **state)
{
    sy_queue *queue = open_queue(2);

    (void)state;
    push(queue, 0);
    push(queue, 1);
    assert_int_equal(sy_queue_push(queue, item_of(2)), SY_ELIMIT);
    expect_pop(queue, 0);
    push(queue, 3);
    expect_pop(queue, 1);
    expect_pop(queue, 3);
    sy_queue_free(queue);
}

static void an_empty_queue_waits_no_longer_than_asked(void **state)
{
    sy_queue *queue = open_queue(2);
    const int64_t start_us = sy_clock_us();
    void *item = queue;

    (void)state;
    assert_int_equal(sy_queue_pop(queue, &item, 0), SY_EDEADLINE);
    assert_null(item);
    assert_int_equal(sy_queue_pop(queue, &item, start_us - 5), SY_EDEADLINE);
    assert_int_equal(sy_queue_pop(queue, &item, start_us + 20000), SY_EDEADLINE);
    assert_true(sy_clock_us() >= start_us + 20000);
    sy_queue_free(queue);
}

static void a_closed_queue_hands_out_what_it_had(void **state)
{
    sy_queue *queue = open_queue(4);
    void *item;

    (void)state;
    push(queue, 0);
    push(queue, 1);
    sy_queue_close(queue);
    sy_queue_close(queue);
    assert_int_equal(sy_queue_push(queue, item_of(2)), SY_ECANCELLED);
    expect_pop(queue, 0);
    expect_pop(queue, 1);
    assert_int_equal(sy_queue_pop(queue, &item, SY_NEVER_US), SY_ECANCELLED);
    sy_queue_free(queue);
}

static int is_even(const void *item, void *arg)
{
    ++*(size_t *)arg;
    return (uintptr_t)item % 2 == 0;
}

static void matching_items_are_taken_and_the_others_keep_their_order(void **state)
{
    void *taken[8];

    (void)state;
    for (size_t shift = 0; shift < 8; shift++) { /* each place of the ring is the first once */
        sy_queue *queue = open_queue(8);
        size_t n_asked = 0;

        for (size_t i = 0; i < shift; i++) {
            push(queue, i);
            expect_pop(queue, i);
        }
        for (size_t i = 0; i < 8; i++) push(queue, i);
        assert_int_equal(sy_queue_take_matching(queue, taken, 0, is_even, &n_asked), 0);
        assert_int_equal(n_asked, 0);
        assert_int_equal(sy_queue_take_matching(queue, taken, 3, is_even, &n_asked), 3);
        for (size_t i = 0; i < 3; i++) assert_ptr_equal(taken[i], item_of(2 * i + 1));
        assert_int_equal(n_asked, 6); /* nobody is asked once enough were found */
        expect_pop(queue, 0);
        expect_pop(queue, 2);
        expect_pop(queue, 4);
        expect_pop(queue, 6);
        expect_pop(queue, 7);
        assert_int_equal(sy_queue_length(queue), 0);
        sy_queue_free(queue);
    }
}

typedef struct traffic {
    sy_queue *queue;
    _Atomic uint32_t n_seen[N_PRODUCERS * N_EACH];
    _Atomic size_t n_wrong;
} traffic;

typedef struct producer {
    traffic *traffic;
    size_t id;
} producer;

static void *produce(void *arg)
{
    const producer *self = arg;

    for (size_t i = 0; i < N_EACH;) {
        const sy_status st = sy_queue_push(self->traffic->queue, item_of(self->id * N_EACH + i));

        if (st == SY_OK) {
            i++;
        } else if (st == SY_ELIMIT) {
            sched_yield();
        } else {
            self->traffic->n_wrong++;
            break;
        }
    }
    return NULL;
}

/* Items of one producer must reach each consumer in the order they were pushed. */
static void *consume(void *arg)
{
    traffic *t = arg;
    size_t last[N_PRODUCERS] = {0};
    void *item;
    sy_status st;

    while ((st = sy_queue_pop(t->queue, &item, SY_NEVER_US)) == SY_OK) {
        const size_t i = (uintptr_t)item - 1;
        const size_t from = i / N_EACH;

        t->n_seen[i]++;
        if (i % N_EACH + 1 <= last[from]) t->n_wrong++;
        last[from] = i % N_EACH + 1;
    }
    if (st != SY_ECANCELLED) t->n_wrong++;
    return NULL;
}

static void many_threads_lose_and_double_nothing(void **state)
{
    traffic *t = calloc(1, sizeof(*t));
    producer producers[N_PRODUCERS];
    pthread_t threads[N_PRODUCERS + N_CONSUMERS];

    (void)state;
    assert_non_null(t);
    t->queue = open_queue(7);
    for (size_t i = 0; i < N_CONSUMERS; i++) {
        assert_int_equal(pthread_create(&threads[N_PRODUCERS + i], NULL, consume, t), 0);
    }
    for (size_t i = 0; i < N_PRODUCERS; i++) {
        producers[i] = (producer){t, i};
        assert_int_equal(pthread_create(&threads[i], NULL, produce, &producers[i]), 0);
    }
    for (size_t i = 0; i < N_PRODUCERS; i++) pthread_join(threads[i], NULL);
    sy_queue_close(t->queue);
    for (size_t i = 0; i < N_CONSUMERS; i++) pthread_join(threads[N_PRODUCERS + i], NULL);
    assert_int_equal(t->n_wrong, 0);
    for (size_t i = 0; i < N_PRODUCERS * N_EACH; i++) assert_int_equal(t->n_seen[i], 1);
    sy_queue_free(t->queue);
    free(t);
}

/* queues[0] leads there, queues[1] back. */
static void *echo(void *arg)
{
    sy_queue **queues = arg;
    void *item;

    while (sy_queue_pop(queues[0], &item, SY_NEVER_US) == SY_OK &&
           sy_queue_push(queues[1], item) == SY_OK) {
    }
    return NULL;
}

static void a_lone_consumer_is_woken_by_each_push(void **state)
{
    sy_queue *queues[2] = {open_queue(1), open_queue(1)};
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, echo, queues), 0);
    for (size_t i = 0; i < 2000; i++) {
        void *item;

        push(queues[0], i);
        assert_int_equal(sy_queue_pop(queues[1], &item, sy_clock_us() + 30000000), SY_OK);
        assert_ptr_equal(item, item_of(i));
    }
    sy_queue_close(queues[0]);
    pthread_join(thread, NULL);
    sy_queue_free(queues[0]);
    sy_queue_free(queues[1]);
}

static void a_poked_pop_returns_once_and_items_come_first(void **state)
{
    sy_queue *queue;
    void *item;
    int value;

    (void)state;
    assert_int_equal(sy_queue_open(&queue, 2), SY_OK);
    sy_queue_poke(queue);
    assert_int_equal(sy_queue_push(queue, &value), SY_OK);
    assert_int_equal(sy_queue_pop(queue, &item, SY_NEVER_US), SY_OK);
    assert_ptr_equal(item, &value);
    assert_int_equal(sy_queue_pop(queue, &item, SY_NEVER_US), SY_EDEADLINE);
    assert_int_equal(sy_queue_push(queue, &value), SY_OK);
    assert_int_equal(sy_queue_pop(queue, &item, SY_NEVER_US), SY_OK);
    sy_queue_free(queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_queue_without_room_for_anything_is_refused),
        cmocka_unit_test(items_come_out_in_order_round_the_ring),
        cmocka_unit_test(a_full_queue_refuses_at_once),
        cmocka_unit_test(an_empty_queue_waits_no_longer_than_asked),
        cmocka_unit_test(a_closed_queue_hands_out_what_it_had),
        cmocka_unit_test(matching_items_are_taken_and_the_others_keep_their_order),
        cmocka_unit_test(a_lone_consumer_is_woken_by_each_push),
        cmocka_unit_test(many_threads_lose_and_double_nothing),
        cmocka_unit_test(a_poked_pop_returns_once_and_items_come_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
