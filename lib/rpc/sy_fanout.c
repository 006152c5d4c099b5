/* sy_fanout.c - owns the slots of one round of requests to several peers, and the wait until they
 * are answered. Who waits drives the peers' loop meanwhile when the turn is to be had (sy_turn.c),
 * and sleeps when another thread has it. */
#include "sy_rpc_internal.h"

#include <stdlib.h>

/* Events that are still run when the time is up: answers that were here before. */
#define LATE_EVENTS_MAX 16

typedef struct fanout_slot {
    sy_fanout_slot pub; /* until done: written by the waiter; then by nobody */
    sy_fanout *fanout;
    int done; /* under the mutex */
} fanout_slot;

struct sy_fanout {
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    size_t n, n_max;
    size_t n_seen;  /* waiter only: how many were done when it last looked */
    sy_loop *loop;  /* waiter only: of all peers of this round; NULL: they have several, or none */
    size_t n_done;  /* under the mutex, as is the next */
    size_t wake_at; /* the waiter sleeps until so many are done: no wake before that */
    int is_told;    /* it has been given the turn; under the mutex */
    rpc_turn_waiter waiter;
    fanout_slot slot[];
};

static void tell(rpc_turn_waiter *waiter)
{
    sy_fanout *fanout = RPC_OF(waiter, sy_fanout, waiter);

    pthread_mutex_lock(&fanout->mutex);
    fanout->is_told = 1;
    pthread_cond_signal(&fanout->wake);
    pthread_mutex_unlock(&fanout->mutex);
}

sy_status sy_fanout_open(sy_fanout **out, size_t n_max)
{
    pthread_condattr_t attr;
    sy_fanout *fanout;

    *out = NULL;
    if (n_max > SIZE_MAX / 2 / sizeof(fanout_slot)) return SY_ENOMEM;
    fanout = calloc(1, sizeof(*fanout) + n_max * sizeof(fanout_slot));
    if (fanout == NULL) return SY_ENOMEM;
    pthread_mutex_init(&fanout->mutex, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&fanout->wake, &attr);
    pthread_condattr_destroy(&attr);
    fanout->n_max = n_max;
    fanout->wake_at = SIZE_MAX;
    fanout->waiter.tell = tell;
    *out = fanout;
    return SY_OK;
}

/* Under the mutex. */
static void set_done(fanout_slot *slot)
{
    slot->pub.done_us = sy_clock_us();
    slot->done = 1;
    slot->fanout->n_done++;
    if (slot->fanout->n_done >= slot->fanout->wake_at) pthread_cond_signal(&slot->fanout->wake);
}

static void on_reply(void *arg, uint64_t id, sy_msg *msg, const sy_error *err)
{
    fanout_slot *slot = arg;
    sy_fanout *fanout = slot->fanout;

    (void)id;
    pthread_mutex_lock(&fanout->mutex);
    slot->pub.err = *err;
    slot->pub.status = err->status;
    if (msg != NULL) slot->pub.msg = sy_msg_take(msg);
    set_done(slot); /* signals under the mutex: after it, the fan-out may be gone */
    pthread_mutex_unlock(&fanout->mutex);
}

/* The sender will wait soon: it wants the turn by then. */
static void choose_loop(sy_fanout *fanout, sy_loop *loop)
{
    if (fanout->n == 1) {
        fanout->loop = loop;
        rpc_turn_want(rpc_loop_turn(loop));
    } else if (fanout->loop != loop) {
        fanout->loop = NULL;
    }
}

size_t sy_fanout_send(sy_fanout *fanout, sy_peer *peer, uint64_t id, sy_frame *frame)
{
    fanout_slot *slot;
    sy_status st;

    SY_ASSERT(fanout->n < fanout->n_max);
    slot = &fanout->slot[fanout->n];
    *slot = (fanout_slot){.fanout = fanout, .pub = {.peer = peer, .id = id}};
    pthread_mutex_lock(&fanout->mutex);
    fanout->n++; /* before the request: its answer may come at once */
    pthread_mutex_unlock(&fanout->mutex);
    choose_loop(fanout, rpc_peer_loop(peer));
    st = sy_peer_send(peer, id, frame, on_reply, slot);
    if (st != SY_OK) {
        pthread_mutex_lock(&fanout->mutex);
        sy_error_clear(&slot->pub.err);
        sy_error_set(
            &slot->pub.err, st, "peer %s at %s: %s", sy_peer_name(peer), sy_peer_address(peer),
            st == SY_ELIMIT ? "its window of requests in flight is full" : "not connected");
        sy_error_where(&slot->pub.err, st == SY_EUNAVAILABLE ? "PEER_UNREACHABLE" : NULL, -1, -1,
                       sy_peer_name(peer));
        slot->pub.status = st;
        set_done(slot);
        pthread_mutex_unlock(&fanout->mutex);
    }
    return fanout->n - 1;
}

int sy_fanout_is_done(sy_fanout *fanout, size_t slot)
{
    int done;

    SY_ASSERT(slot < fanout->n);
    pthread_mutex_lock(&fanout->mutex);
    done = fanout->slot[slot].done;
    pthread_mutex_unlock(&fanout->mutex);
    return done;
}

/* A slot that cannot be forgotten any more has been answered in this very moment. */
void sy_fanout_give_up(sy_fanout *fanout, size_t index)
{
    fanout_slot *slot = &fanout->slot[index];

    if (sy_fanout_is_done(fanout, index) || !sy_peer_forget(slot->pub.peer, slot->pub.id)) return;
    pthread_mutex_lock(&fanout->mutex);
    sy_error_clear(&slot->pub.err);
    sy_error_set(&slot->pub.err, SY_EDEADLINE, "peer %s at %s: no answer in time",
                 sy_peer_name(slot->pub.peer), sy_peer_address(slot->pub.peer));
    sy_error_where(&slot->pub.err, NULL, -1, -1, sy_peer_name(slot->pub.peer));
    slot->pub.status = SY_EDEADLINE;
    set_done(slot);
    pthread_mutex_unlock(&fanout->mutex);
}

/* Afterwards every slot is done and no callback of this round runs or will. */
static void give_up_open(sy_fanout *fanout)
{
    for (size_t i = 0; i < fanout->n; i++) sy_fanout_give_up(fanout, i);
}

static size_t count_done(sy_fanout *fanout)
{
    size_t n_done;

    pthread_mutex_lock(&fanout->mutex);
    n_done = fanout->n_done;
    pthread_mutex_unlock(&fanout->mutex);
    return n_done;
}

/* With the turn, which is passed on at the end. */
static void drive(sy_fanout *fanout, size_t n_done, int64_t until_us)
{
    int ran = 1;

    rpc_loop_enter(fanout->loop);
    for (int n_late = 0; ran >= 0 && count_done(fanout) < n_done;) {
        ran = rpc_loop_run_one(fanout->loop, until_us);
        if (sy_clock_us() >= until_us && (ran == 0 || ++n_late == LATE_EVENTS_MAX)) break;
    }
    rpc_loop_enter(NULL);
    rpc_turn_pass(rpc_loop_turn(fanout->loop));
}

/* Until n_done slots are done, until_us has passed, or this thread has been given the turn. */
static void sleep_until(sy_fanout *fanout, size_t n_done, int64_t until_us)
{
    const int64_t at_us = SY_MAX(until_us, 0);
    const struct timespec at = {.tv_sec = at_us / 1000000, .tv_nsec = at_us % 1000000 * 1000};
    int late = 0;

    pthread_mutex_lock(&fanout->mutex);
    fanout->wake_at = n_done;
    while (fanout->n_done < n_done && !fanout->is_told && late == 0) {
        late = until_us == SY_NEVER_US ? pthread_cond_wait(&fanout->wake, &fanout->mutex)
                                       : pthread_cond_timedwait(&fanout->wake, &fanout->mutex, &at);
    }
    fanout->wake_at = SIZE_MAX; /* nobody sleeps: nobody need be woken */
    pthread_mutex_unlock(&fanout->mutex);
}

/* Until n_done slots are done, or until_us has passed; returns how many are. */
static size_t wait_until(sy_fanout *fanout, size_t n_done, int64_t until_us)
{
    int is_mine = 0;

    if (count_done(fanout) < n_done) {
        rpc_turn *turn = fanout->loop == NULL ? NULL : rpc_loop_turn(fanout->loop);

        fanout->is_told = 0; /* not queued: nobody tells */
        if (turn != NULL) is_mine = rpc_turn_take(turn, &fanout->waiter);
        if (!is_mine) sleep_until(fanout, n_done, until_us);
        if (!is_mine && turn != NULL) is_mine = rpc_turn_withdraw(turn, &fanout->waiter);
        if (is_mine) drive(fanout, n_done, until_us);
    }
    fanout->n_seen = count_done(fanout);
    return fanout->n_seen;
}

void sy_fanout_wait(sy_fanout *fanout, int64_t deadline_us)
{
    if (wait_until(fanout, fanout->n, deadline_us) < fanout->n) give_up_open(fanout);
}

size_t sy_fanout_wait_some(sy_fanout *fanout, int64_t until_us)
{
    return wait_until(fanout, SY_MIN(fanout->n_seen + 1, fanout->n), until_us);
}

void sy_fanout_reset(sy_fanout *fanout)
{
    give_up_open(fanout);
    for (size_t i = 0; i < fanout->n; i++) sy_msg_free(fanout->slot[i].pub.msg);
    fanout->n = 0;
    fanout->n_done = 0;
    fanout->n_seen = 0;
}

void sy_fanout_free(sy_fanout *fanout)
{
    if (fanout == NULL) return;
    sy_fanout_reset(fanout);
    pthread_cond_destroy(&fanout->wake);
    pthread_mutex_destroy(&fanout->mutex);
    free(fanout);
}

size_t sy_fanout_count(const sy_fanout *fanout)
{
    return fanout->n;
}

const sy_fanout_slot *sy_fanout_at(const sy_fanout *fanout, size_t slot)
{
    SY_ASSERT(slot < fanout->n);
    return &fanout->slot[slot].pub;
}
