/* sy_fanout.c - owns the slots of one round of requests to several peers, and the sleep until they
 * are answered. */
#include "sy_rpc.h"

#include <pthread.h>
#include <stdlib.h>

#include "sy_clock.h"

typedef struct fanout_slot {
    sy_fanout_slot pub; /* until done: written by the waiter; then by nobody */
    sy_fanout *fanout;
    int done; /* under the mutex */
} fanout_slot;

struct sy_fanout {
    pthread_mutex_t mutex;
    pthread_cond_t all_done;
    size_t n, n_max;
    size_t n_done; /* under the mutex */
    fanout_slot slot[];
};

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
    pthread_cond_init(&fanout->all_done, &attr);
    pthread_condattr_destroy(&attr);
    fanout->n_max = n_max;
    *out = fanout;
    return SY_OK;
}

/* Under the mutex. The waiter sleeps until the last one only: one wake a round. */
static void set_done(fanout_slot *slot)
{
    slot->pub.done_us = sy_clock_us();
    slot->done = 1;
    slot->fanout->n_done++;
    if (slot->fanout->n_done == slot->fanout->n) pthread_cond_signal(&slot->fanout->all_done);
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

static int is_done(sy_fanout *fanout, const fanout_slot *slot)
{
    int done;

    pthread_mutex_lock(&fanout->mutex);
    done = slot->done;
    pthread_mutex_unlock(&fanout->mutex);
    return done;
}

/* Afterwards every slot is done and no callback of this round runs or will. */
static void give_up_open(sy_fanout *fanout)
{
    for (size_t i = 0; i < fanout->n; i++) {
        fanout_slot *slot = &fanout->slot[i];

        if (is_done(fanout, slot) || !sy_peer_forget(slot->pub.peer, slot->pub.id)) continue;
        pthread_mutex_lock(&fanout->mutex);
        sy_error_clear(&slot->pub.err);
        sy_error_set(&slot->pub.err, SY_EDEADLINE, "peer %s at %s: no answer in time",
                     sy_peer_name(slot->pub.peer), sy_peer_address(slot->pub.peer));
        sy_error_where(&slot->pub.err, NULL, -1, -1, sy_peer_name(slot->pub.peer));
        slot->pub.status = SY_EDEADLINE;
        set_done(slot);
        pthread_mutex_unlock(&fanout->mutex);
    }
}

void sy_fanout_wait(sy_fanout *fanout, int64_t deadline_us)
{
    const int64_t until_us = SY_MAX(deadline_us, 0);
    const struct timespec until = {.tv_sec = until_us / 1000000,
                                   .tv_nsec = until_us % 1000000 * 1000};
    int open, late = 0;

    pthread_mutex_lock(&fanout->mutex);
    while (fanout->n_done < fanout->n && late == 0) {
        late = deadline_us == SY_NEVER_US
                   ? pthread_cond_wait(&fanout->all_done, &fanout->mutex)
                   : pthread_cond_timedwait(&fanout->all_done, &fanout->mutex, &until);
    }
    open = fanout->n_done < fanout->n;
    pthread_mutex_unlock(&fanout->mutex);
    if (open) give_up_open(fanout);
}

void sy_fanout_reset(sy_fanout *fanout)
{
    give_up_open(fanout);
    for (size_t i = 0; i < fanout->n; i++) sy_msg_free(fanout->slot[i].pub.msg);
    fanout->n = 0;
    fanout->n_done = 0;
}

void sy_fanout_free(sy_fanout *fanout)
{
    if (fanout == NULL) return;
    sy_fanout_reset(fanout);
    pthread_cond_destroy(&fanout->all_done);
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
