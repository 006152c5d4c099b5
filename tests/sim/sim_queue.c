/* sim_queue.c - what will happen, soonest first: a binary heap. */
#include <stdlib.h>

#include "sim_world.h"

static int is_before(const event *a, const event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->sequence < b->sequence;
}

void sim_post(world *w, int64_t at_us, event e)
{
    size_t i = w->n_events;

    SY_ASSERT(at_us >= w->now_us);
    if (w->n_events == w->event_capacity) {
        w->event_capacity = SY_MAX((size_t)256, 2 * w->event_capacity);
        w->event = realloc(w->event, w->event_capacity * sizeof(*w->event));
        SY_ASSERT(w->event != NULL);
    }
    e.at_us = at_us;
    e.sequence = w->n_sequence++;
    w->n_events++;
    for (; i > 0 && is_before(&e, &w->event[(i - 1) / 2]); i = (i - 1) / 2) {
        w->event[i] = w->event[(i - 1) / 2];
    }
    w->event[i] = e;
}

int sim_next(world *w, event *out)
{
    const event *last;
    size_t i = 0;

    if (w->n_events == 0) return 0;
    *out = w->event[0];
    last = &w->event[--w->n_events];
    for (size_t child = 1; child < w->n_events; child = 2 * i + 1) {
        if (child + 1 < w->n_events && is_before(&w->event[child + 1], &w->event[child])) child++;
        if (!is_before(&w->event[child], last)) break;
        w->event[i] = w->event[child];
        i = child;
    }
    w->event[i] = *last;
    return 1;
}
