/* sy_turn.c - whose turn it is to drive a loop. Its own thread does, by default; a thread that
 * sleeps until an answer comes does it better itself: what it waits for then runs on it, without a
 * sleep, a wake and a hop to another core on the way.
 *
 * The turn is free while such a thread is between two waits. The loop's thread leaves it alone so
 * long, because being woken for a turn, and again to hand it over, would cost more than is gained;
 * it looks every PARK_US, and takes a turn that nobody took since. So an event of anybody else's
 * waits for two such periods at most. */
#include "sy_rpc_internal.h"

#define PARK_US 1000

void rpc_turn_open(rpc_turn *turn)
{
    pthread_condattr_t attr;

    pthread_mutex_init(&turn->mutex, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&turn->parked, &attr);
    pthread_condattr_destroy(&attr);
    turn->last = &turn->first;
    turn->is_taken = 1; /* the loop's thread begins with it */
}

void rpc_turn_close(rpc_turn *turn)
{
    SY_ASSERT(turn->first == NULL);
    pthread_cond_destroy(&turn->parked);
    pthread_mutex_destroy(&turn->mutex);
}

void rpc_turn_want(rpc_turn *turn)
{
    if (atomic_load_explicit(&turn->is_wanted, memory_order_relaxed)) return;
    atomic_store_explicit(&turn->is_wanted, 1, memory_order_relaxed);
}

int rpc_turn_is_wanted(const rpc_turn *turn)
{
    return atomic_load_explicit(&turn->is_wanted, memory_order_relaxed);
}

int rpc_turn_take(rpc_turn *turn, rpc_turn_waiter *waiter)
{
    int is_mine;

    pthread_mutex_lock(&turn->mutex);
    is_mine = !turn->is_taken;
    turn->is_taken = 1;
    turn->n_taken += (unsigned)is_mine;
    waiter->has_turn = is_mine;
    waiter->is_queued = !is_mine;
    if (!is_mine) {
        waiter->next = NULL;
        *turn->last = waiter;
        turn->last = &waiter->next;
        rpc_turn_want(turn);
    }
    pthread_mutex_unlock(&turn->mutex);
    return is_mine;
}

int rpc_turn_withdraw(rpc_turn *turn, rpc_turn_waiter *waiter)
{
    int is_mine;

    pthread_mutex_lock(&turn->mutex);
    if (waiter->is_queued) {
        rpc_turn_waiter **at = &turn->first;

        while (*at != waiter) at = &(*at)->next; /* as many as there are lanes */
        *at = waiter->next;
        if (*at == NULL) turn->last = at;
        waiter->is_queued = 0;
    }
    is_mine = waiter->has_turn;
    pthread_mutex_unlock(&turn->mutex);
    return is_mine;
}

/* Under the mutex: to whoever waits longest. */
static void pass(rpc_turn *turn)
{
    rpc_turn_waiter *next = turn->first;

    atomic_store_explicit(&turn->is_wanted, 0, memory_order_relaxed);
    if (next == NULL) {
        turn->is_taken = 0;
        return;
    }
    turn->first = next->next;
    if (turn->first == NULL) turn->last = &turn->first;
    turn->n_taken++;
    next->is_queued = 0;
    next->has_turn = 1;
    next->tell(next);
}

void rpc_turn_pass(rpc_turn *turn)
{
    pthread_mutex_lock(&turn->mutex);
    pass(turn);
    pthread_mutex_unlock(&turn->mutex);
}

void rpc_turn_park(rpc_turn *turn)
{
    unsigned n_seen;

    pthread_mutex_lock(&turn->mutex);
    pass(turn);
    do {
        const int64_t until_us = sy_clock_us() + PARK_US;
        const struct timespec until = {.tv_sec = until_us / 1000000,
                                       .tv_nsec = until_us % 1000000 * 1000};

        n_seen = turn->n_taken;
        pthread_cond_timedwait(&turn->parked, &turn->mutex, &until);
    } while (turn->is_taken || turn->n_taken != n_seen);
    turn->is_taken = 1;
    pthread_mutex_unlock(&turn->mutex);
}
