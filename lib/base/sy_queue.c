/* sy_queue.c - a ring of pointers under one mutex. Items are handed over in microseconds of work
 * each, so the lock is never what they wait for; in return, taking matching items out of the middle
 * stays simple. */
#include "sy_queue.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "sy_clock.h"

struct sy_queue {
    pthread_mutex_t lock;
    pthread_cond_t filled; /* an item came, or the queue was closed */
    size_t capacity;
    size_t head; /* the oldest item; below capacity */
    size_t n_items;
    size_t n_waiting; /* consumers asleep: nobody is signalled when there is none */
    int closed, poked;
    void *ring[];
};

static size_t slot(const sy_queue *queue, size_t i)
{
    const size_t at = queue->head + i;

    return at < queue->capacity ? at : at - queue->capacity;
}

sy_status sy_queue_open(sy_queue **out, size_t capacity)
{
    pthread_condattr_t monotonic;
    sy_queue *self;

    *out = NULL;
    if (capacity == 0) return SY_EINVAL;
    if (capacity > (PTRDIFF_MAX - sizeof(*self)) / sizeof(void *)) return SY_ENOMEM;
    self = calloc(1, sizeof(*self) + capacity * sizeof(void *));
    if (self == NULL) return SY_ENOMEM;
    self->capacity = capacity;
    pthread_mutex_init(&self->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&self->filled, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *out = self;
    return SY_OK;
}

void sy_queue_free(sy_queue *queue)
{
    if (queue == NULL) return;
    SY_ASSERT(queue->n_items == 0);
    SY_ASSERT(queue->n_waiting == 0);
    pthread_cond_destroy(&queue->filled);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

sy_status sy_queue_push(sy_queue *queue, void *item)
{
    sy_status st = SY_OK;
    int wake = 0;

    pthread_mutex_lock(&queue->lock);
    if (queue->closed) {
        st = SY_ECANCELLED;
    } else if (queue->n_items == queue->capacity) {
        st = SY_ELIMIT;
    } else {
        queue->ring[slot(queue, queue->n_items)] = item;
        queue->n_items++;
        wake = queue->n_waiting > 0;
    }
    if (wake) pthread_cond_signal(&queue->filled);
    pthread_mutex_unlock(&queue->lock);
    return st;
}

/* Sleeps until woken or timed out; SY_EDEADLINE, without sleeping, when deadline_us has passed
 * already, so that the caller looks at the queue once more after each sleep. The lock is held
 * before and after. */
static sy_status wait_filled(sy_queue *queue, int64_t deadline_us)
{
    struct timespec until;

    if (queue->poked || (deadline_us != SY_NEVER_US && deadline_us <= sy_clock_us())) {
        queue->poked = 0;
        return SY_EDEADLINE;
    }
    queue->n_waiting++;
    if (deadline_us == SY_NEVER_US) {
        pthread_cond_wait(&queue->filled, &queue->lock);
    } else {
        until.tv_sec = (time_t)(deadline_us / 1000000);
        until.tv_nsec = (long)(deadline_us % 1000000) * 1000;
        pthread_cond_timedwait(&queue->filled, &queue->lock, &until);
    }
    queue->n_waiting--;
    return SY_OK;
}

sy_status sy_queue_pop(sy_queue *queue, void **item, int64_t deadline_us)
{
    sy_status st = SY_OK;

    *item = NULL;
    pthread_mutex_lock(&queue->lock);
    while (st == SY_OK && queue->n_items == 0) {
        st = queue->closed ? SY_ECANCELLED : wait_filled(queue, deadline_us);
    }
    if (st == SY_OK) {
        *item = queue->ring[queue->head];
        queue->head = slot(queue, 1);
        queue->n_items--;
    }
    pthread_mutex_unlock(&queue->lock);
    return st;
}

size_t sy_queue_take_matching(sy_queue *queue, void **items, size_t max,
                              int (*match)(const void *item, void *arg), void *arg)
{
    size_t n_taken = 0;
    size_t n_kept = 0;

    pthread_mutex_lock(&queue->lock);
    for (size_t i = 0; i < queue->n_items; i++) {
        void *item = queue->ring[slot(queue, i)];

        if (n_taken < max && match(item, arg)) {
            items[n_taken++] = item;
        } else {
            queue->ring[slot(queue, n_kept++)] = item;
        }
    }
    queue->n_items = n_kept;
    pthread_mutex_unlock(&queue->lock);
    return n_taken;
}

void sy_queue_poke(sy_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->poked = 1;
    pthread_cond_signal(&queue->filled);
    pthread_mutex_unlock(&queue->lock);
}

void sy_queue_close(sy_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->closed = 1;
    pthread_cond_broadcast(&queue->filled);
    pthread_mutex_unlock(&queue->lock);
}

size_t sy_queue_length(sy_queue *queue)
{
    size_t n_items;

    pthread_mutex_lock(&queue->lock);
    n_items = queue->n_items;
    pthread_mutex_unlock(&queue->lock);
    return n_items;
}
