/* sy_loop.c - owns a completion queue, its thread, what is posted to it, and its timers; which
 * thread drives it is sy_turn.c's business. gRPC 1.51 has no alarm in C, so timers are the deadline
 * that the thread waits with; posts wake it with an empty batch on a call that goes nowhere.
 *
 * gRPC is initialised once and never shut down: threads that outlive a loop may still hold received
 * messages and calls, and dropping them must stay legal. */
#include "sy_rpc_internal.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "sy_log.h"

struct sy_loop {
    grpc_completion_queue *queue;
    grpc_channel *wake_channel; /* a lame channel: never connects */
    grpc_call *wake_call;
    rpc_tag wake_tag;
    pthread_t thread;
    rpc_turn turn;
    rpc_timer *timers;  /* loop only, by due time */
    rpc_post *deferred; /* loop only, newest first */

    pthread_mutex_t mutex; /* the fields below, and batches on wake_call */
    rpc_post *head, **tail;
    int wake_pending, closing;
};

typedef struct owned_post { /* sy_loop_post has no object to live in */
    rpc_post post;
    void (*fn)(void *arg);
    void *arg;
} owned_post;

/* ---- process-wide ---- */

static void log_from_grpc(gpr_log_func_args *args)
{
    /* Its errors are mostly about peers that come and go, which sy_peer reports in better words. */
    sy_log(args->severity == GPR_LOG_SEVERITY_ERROR ? SY_LOG_DEBUG : SY_LOG_INFO, "grpc: %s",
           args->message);
}

/* Debian builds abseil with its deadlock detector on: every lock of gRPC's then walks a graph,
 * which is a third of the throughput of small messages. There is no C name for the switch; where
 * the library has another name for it, the symbol stays NULL and nothing happens. */
extern void set_deadlock_detection(int mode) __asm__(
    "_ZN4absl7debian329SetMutexDeadlockDetectionModeENS0_15OnDeadlockCycleE") __attribute__((weak));

static void init_once(void)
{
    /* gRPC frees each 64 KB receive chunk; giving the pages back and faulting them in again halves
     * the throughput of 2 MB messages. 32 MB is the largest mmap threshold that glibc accepts. */
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TOP_PAD, 16 << 20);
    if (set_deadlock_detection != NULL) set_deadlock_detection(0);
    gpr_set_log_function(log_from_grpc);
    grpc_init();
}

static void block_signals(sigset_t *old)
{
    sigset_t all;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, old);
}

void rpc_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    sigset_t old;

    block_signals(&old); /* gRPC's own threads inherit the mask: signals belong to the program's
                            control thread */
    pthread_once(&once, init_once);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* ---- timers ---- */

void rpc_timer_stop(rpc_timer *timer)
{
    if (timer->link == NULL) return;
    *timer->link = timer->next;
    if (timer->next != NULL) timer->next->link = timer->link;
    timer->link = NULL;
}

void rpc_timer_start(sy_loop *loop, rpc_timer *timer, int64_t due_us, void (*fn)(rpc_timer *))
{
    rpc_timer **at = &loop->timers;

    rpc_timer_stop(timer);
    while (*at != NULL && (*at)->due_us <= due_us) at = &(*at)->next; /* a few a server or peer */
    timer->fn = fn;
    timer->due_us = due_us;
    timer->next = *at;
    timer->link = at;
    if (timer->next != NULL) timer->next->link = &timer->next;
    *at = timer;
}

/* The first timer, or until_us. */
static gpr_timespec due(const sy_loop *loop, int64_t until_us)
{
    const int64_t due_us =
        SY_MAX(loop->timers == NULL ? until_us : SY_MIN(until_us, loop->timers->due_us), 0);

    if (due_us == SY_NEVER_US) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return (gpr_timespec){.tv_sec = due_us / 1000000,
                          .tv_nsec = (int32_t)(due_us % 1000000) * 1000,
                          .clock_type = GPR_CLOCK_MONOTONIC};
}

static void run_timers(sy_loop *loop)
{
    const int64_t now_us = sy_clock_us();

    while (loop->timers != NULL && loop->timers->due_us <= now_us) {
        rpc_timer *timer = loop->timers;

        rpc_timer_stop(timer);
        timer->fn(timer);
    }
}

/* ---- posts ---- */

/* Under the mutex. One wake is on its way at most; it runs everything posted until then. */
static void wake(sy_loop *loop)
{
    grpc_call_error refused;

    if (loop->wake_pending) return;
    loop->wake_pending = 1;
    refused = grpc_call_start_batch(loop->wake_call, NULL, 0, &loop->wake_tag, NULL);
    SY_ASSERT(refused == GRPC_CALL_OK);
}

static int post(sy_loop *loop, rpc_post *item)
{
    int closing;

    item->next = NULL;
    pthread_mutex_lock(&loop->mutex);
    closing = loop->closing;
    if (!closing) {
        *loop->tail = item;
        loop->tail = &item->next;
        wake(loop);
    }
    pthread_mutex_unlock(&loop->mutex);
    return !closing;
}

void rpc_loop_post(sy_loop *loop, rpc_post *item, void (*fn)(void *arg), void *arg)
{
    int taken;

    item->fn = fn;
    item->arg = arg;
    taken = post(loop, item);
    SY_ASSERT(taken);
}

void rpc_loop_defer(sy_loop *loop, rpc_post *item, void (*fn)(void *arg), void *arg)
{
    *item = (rpc_post){.next = loop->deferred, .fn = fn, .arg = arg};
    loop->deferred = item;
}

static void run_deferred(sy_loop *loop)
{
    while (loop->deferred != NULL) {
        rpc_post *item = loop->deferred;

        loop->deferred = item->next;
        item->fn(item->arg);
    }
}

static void run_owned(void *arg)
{
    owned_post owned = *(owned_post *)arg;

    free(arg);
    owned.fn(owned.arg);
}

sy_status sy_loop_post(sy_loop *loop, void (*fn)(void *arg), void *arg)
{
    owned_post *owned = malloc(sizeof(*owned));

    if (owned == NULL) return SY_ENOMEM;
    *owned = (owned_post){.post = {.fn = run_owned, .arg = owned}, .fn = fn, .arg = arg};
    if (post(loop, &owned->post)) return SY_OK;
    free(owned);
    return SY_ECANCELLED;
}

static void on_wake(rpc_tag *tag, int ok)
{
    sy_loop *loop = RPC_OF(tag, sy_loop, wake_tag);
    rpc_post *item;
    int closing;

    (void)ok;
    pthread_mutex_lock(&loop->mutex);
    loop->wake_pending = 0;
    item = loop->head;
    loop->head = NULL;
    loop->tail = &loop->head;
    closing = loop->closing; /* nothing is posted after it is set, so `item` is the last of it */
    pthread_mutex_unlock(&loop->mutex);
    while (item != NULL) {
        rpc_post *next = item->next; /* the item may be posted again, or freed, by fn */

        item->fn(item->arg);
        item = next;
    }
    if (!closing) return;
    grpc_call_unref(loop->wake_call);
    grpc_channel_destroy(loop->wake_channel);
    grpc_completion_queue_shutdown(loop->queue);
}

/* ---- the thread ---- */

static _Thread_local const sy_loop *current;

void rpc_loop_enter(const sy_loop *loop)
{
    current = loop;
}

int rpc_loop_is_current(const sy_loop *loop)
{
    return current == loop;
}

int rpc_loop_run_one(sy_loop *loop, int64_t until_us)
{
    grpc_event event;

    run_deferred(loop);
    event = grpc_completion_queue_next(loop->queue, due(loop, until_us), NULL);
    if (event.type == GRPC_QUEUE_SHUTDOWN) return -1;
    if (event.type == GRPC_OP_COMPLETE) {
        rpc_tag *tag = event.tag;

        tag->fn(tag, event.success);
    }
    if (loop->timers != NULL) run_timers(loop);
    return event.type == GRPC_OP_COMPLETE;
}

static void *loop_main(void *arg)
{
    sy_loop *loop = arg;

    rpc_loop_enter(loop);
    while (rpc_loop_run_one(loop, SY_NEVER_US) >= 0) {
        if (!rpc_turn_is_wanted(&loop->turn)) continue;
        rpc_loop_enter(NULL);
        rpc_turn_park(&loop->turn);
        rpc_loop_enter(loop);
    }
    return NULL;
}

struct grpc_completion_queue *rpc_loop_queue(sy_loop *loop)
{
    return loop->queue;
}

rpc_turn *rpc_loop_turn(sy_loop *loop)
{
    return &loop->turn;
}

static int start_thread(sy_loop *loop, const char *name)
{
    char short_name[16] = "sy-loop"; /* what the kernel keeps */
    sigset_t old;
    int refused;

    block_signals(&old);
    refused = pthread_create(&loop->thread, NULL, loop_main, loop);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (refused) return 0;
    if (name != NULL) {
        memcpy(short_name, name, strnlen(name, sizeof(short_name) - 1));
        short_name[strnlen(name, sizeof(short_name) - 1)] = '\0';
    }
    pthread_setname_np(loop->thread, short_name);
    return 1;
}

sy_status sy_loop_open(sy_loop **out, const char *thread_name)
{
    sy_loop *loop;

    *out = NULL;
    rpc_init();
    loop = calloc(1, sizeof(*loop));
    if (loop == NULL) return SY_ENOMEM;
    pthread_mutex_init(&loop->mutex, NULL);
    rpc_turn_open(&loop->turn);
    loop->tail = &loop->head;
    loop->wake_tag.fn = on_wake;
    loop->queue = grpc_completion_queue_create_for_next(NULL);
    loop->wake_channel = grpc_lame_client_channel_create("wake", GRPC_STATUS_UNAVAILABLE, "wake");
    loop->wake_call = grpc_channel_create_call(loop->wake_channel, NULL, 0, loop->queue,
                                               grpc_slice_from_static_string("/wake"), NULL,
                                               gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    if (start_thread(loop, thread_name)) {
        *out = loop;
        return SY_OK;
    }
    grpc_call_unref(loop->wake_call);
    grpc_channel_destroy(loop->wake_channel);
    grpc_completion_queue_shutdown(loop->queue);
    while (
        grpc_completion_queue_next(loop->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
        GRPC_QUEUE_SHUTDOWN) {
    }
    grpc_completion_queue_destroy(loop->queue);
    rpc_turn_close(&loop->turn);
    pthread_mutex_destroy(&loop->mutex);
    free(loop);
    return SY_ENOMEM;
}

void sy_loop_close(sy_loop *loop)
{
    if (loop == NULL) return;
    SY_ASSERT(!rpc_loop_is_current(loop));
    pthread_mutex_lock(&loop->mutex);
    SY_ASSERT(!loop->closing);
    loop->closing = 1;
    wake(loop);
    pthread_mutex_unlock(&loop->mutex);
    pthread_join(loop->thread, NULL);
    SY_ASSERT(loop->timers == NULL); /* a server or peer of this loop is still open */
    grpc_completion_queue_destroy(loop->queue);
    rpc_turn_close(&loop->turn);
    pthread_mutex_destroy(&loop->mutex);
    free(loop);
}
