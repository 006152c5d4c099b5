/* sy_loop_pop.c - the wait of a thread that works off what a loop's callbacks leave in a queue. */
#include "sy_rpc_internal.h"

/* How long a closed queue may go unseen by the thread that drives. */
#define LOOK_US 50000

/* Events that are run at once after the first item, so that what has come together is worked on
 * together. */
#define MORE_EVENTS_MAX 64

typedef struct popper {
    rpc_turn_waiter waiter;
    sy_queue *queue;
} popper;

static void tell(rpc_turn_waiter *waiter)
{
    sy_queue_poke(RPC_OF(waiter, popper, waiter)->queue);
}

/* With the turn, which is passed on at the end: until something is in the queue, or LOOK_US have
 * passed. */
static void drive(sy_loop *loop, sy_queue *queue)
{
    const int64_t until_us = sy_clock_us() + LOOK_US;
    int ran = 1;

    rpc_loop_enter(loop);
    while (ran > 0 && sy_queue_length(queue) == 0) ran = rpc_loop_run_one(loop, until_us);
    for (int n = 0; ran > 0 && n < MORE_EVENTS_MAX; n++) ran = rpc_loop_run_one(loop, 0);
    rpc_loop_enter(NULL);
    rpc_turn_pass(rpc_loop_turn(loop));
}

sy_status sy_loop_pop(sy_loop *loop, sy_queue *queue, void **item)
{
    popper self = {.waiter.tell = tell, .queue = queue};

    if (loop == NULL) return sy_queue_pop(queue, item, SY_NEVER_US);
    for (;;) {
        sy_status st = sy_queue_pop(queue, item, 0);

        if (st != SY_EDEADLINE) return st;
        if (!rpc_turn_take(rpc_loop_turn(loop), &self.waiter)) {
            st = sy_queue_pop(queue, item, SY_NEVER_US);
            if (!rpc_turn_withdraw(rpc_loop_turn(loop), &self.waiter)) {
                if (st != SY_EDEADLINE) return st;
                continue; /* poked in vain */
            }
            if (st != SY_EDEADLINE) {
                rpc_turn_pass(rpc_loop_turn(loop)); /* both at once: the work comes first */
                return st;
            }
        }
        drive(loop, queue);
    }
}
