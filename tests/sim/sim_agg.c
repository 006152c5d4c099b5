/* sim_agg.c - an aggregator, reduced to whom it asks: first a target that is wanted and said to be
 * resident, then whoever is said to have the shard in memory. Who answers "not resident" is not
 * asked again by that request. With nobody left to ask, it waits for news until its grace ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_world.h"

/* ---- what is known ---- */

/* What a node says on its stream reaches an aggregator late, but in order. */
static void hear(world *w, uint32_t a, uint32_t n, event e)
{
    aggregator *const agg = &w->agg[a];
    const int64_t at_us = w->now_us + sim_between(w, MS(1), WATCH_MAX_US);

    agg->heard_us[n] = SY_MAX(agg->heard_us[n], at_us);
    e.to = a;
    e.from = n;
    sim_post(w, agg->heard_us[n], e);
}

void sim_announce(world *w, uint32_t n, uint32_t shard)
{
    for (uint32_t a = 0; a < w->n_aggs; a++) {
        hear(w, a, n,
             (event){.kind = EVENT_WATCH,
                     .shard = shard,
                     .answer = {.state = w->node[n].life[shard].state}});
    }
}

void sim_announce_down(world *w, uint32_t n)
{
    for (uint32_t a = 0; a < w->n_aggs; a++) hear(w, a, n, (event){.kind = EVENT_DOWN});
}

static int is_said_to_have(const aggregator *agg, uint32_t n, uint32_t shard)
{
    return agg->state[n][shard] == SY_SHARD_RESIDENT || agg->state[n][shard] == SY_SHARD_LINGERING;
}

static const sy_target_list *targets_of(const world *w, uint32_t a, uint32_t shard)
{
    const sy_snapshot *snapshot = w->process[w->n_nodes + a].snapshot;

    return snapshot == NULL ? NULL
                            : sy_snapshot_targets(snapshot, shard / EXPERTS, shard % EXPERTS);
}

static int is_shadow(const sy_target_list *list, uint32_t n)
{
    for (uint32_t i = 0; list != NULL && i < list->n; i++) {
        const char *name = list->target[i].node;

        if (list->target[i].shadow && name[0] == 'n' && atoi(name + 1) == (int)n) return 1;
    }
    return 0;
}

/* The node to ask, or -1. The only copy may be that of a node which is now a shadow, while the
 * target beside it still loads: it serves until then. */
static int choose(const world *w, uint32_t a, const request *r)
{
    const aggregator *agg = &w->agg[a];
    const sy_target_list *list = targets_of(w, a, r->shard);
    sy_candidate candidate[SY_TARGETS_MAX] = {{0}};
    int node_of[SY_TARGETS_MAX];
    int picked = -1;

    for (uint32_t i = 0; list != NULL && i < list->n; i++) {
        const char *name = list->target[i].node;

        node_of[i] = name[0] == 'n' ? atoi(name + 1) : -1;
        candidate[i].usable = node_of[i] >= 0 && (r->tried >> node_of[i] & 1) == 0 &&
                              agg->state[node_of[i]][r->shard] == SY_SHARD_RESIDENT;
    }
    if (list != NULL) {
        picked =
            sy_placement_pick(list, candidate, r->number, r->shard / EXPERTS, r->shard % EXPERTS);
    }
    if (picked >= 0) return node_of[picked];
    if ((w->bugs & SIM_WANTED_ONLY) != 0) return -1;
    for (uint32_t i = 0; i < w->n_nodes; i++) {
        const uint32_t n = (i + r->number) % w->n_nodes;

        if ((r->tried >> n & 1) != 0 || !is_said_to_have(agg, n, r->shard)) continue;
        if ((w->bugs & SIM_SPURNS_SHADOWS) == 0 || !is_shadow(list, n)) return (int)n;
    }
    return -1;
}

/* ---- requests ---- */

/* Nobody can answer for an expert whose holders crashed, until another one has loaded it and
 * everybody has heard of it. */
static int is_excused(const world *w, const request *r)
{
    return !w->is_served[r->shard] ||
           w->served_since_us[r->shard] > r->start_us - 2 * WATCH_MAX_US ||
           w->crashed_us[r->shard] > r->start_us - LATE_MAX_US;
}

static void go_on(world *w, uint32_t a, uint32_t slot)
{
    request *const r = &w->agg[a].request[slot];
    const int n = choose(w, a, r);

    if (n < 0) {
        w->report->n_waits += !r->has_waited;
        r->has_waited = 1;
        return;
    }
    r->is_asking = 1;
    sim_post(w, w->now_us + sim_between(w, MS(1), MS(30)),
             (event){.kind = EVENT_COMPUTE,
                     .to = (uint32_t)n,
                     .from = a,
                     .shard = slot,
                     .number = r->number});
}

static void go_on_waiting(world *w, uint32_t a)
{
    for (uint32_t slot = 0; slot < REQUESTS_MAX; slot++) {
        const request *r = &w->agg[a].request[slot];

        if (r->is_open && !r->is_asking) go_on(w, a, slot);
    }
}

static void fail_request(world *w, uint32_t a, request *r, const char *why)
{
    r->is_open = 0;
    if (is_excused(w, r)) {
        w->report->n_excused++;
        return;
    }
    sim_violation(w, "a%u: a request for shard %u found no holder: %s", a, r->shard, why);
}

void sim_agg_watch(world *w, const event *e)
{
    w->agg[e->to].state[e->from][e->shard] = (uint8_t)e->answer.state;
    go_on_waiting(w, e->to);
}

void sim_agg_down(world *w, const event *e)
{
    memset(w->agg[e->to].state[e->from], SY_SHARD_ABSENT, SHARDS);
}

void sim_agg_placed(world *w, uint32_t a)
{
    go_on_waiting(w, a);
}

void sim_agg_request(world *w, uint32_t a)
{
    const uint32_t shard = sim_below(w, SHARDS);

    for (uint32_t slot = 0; slot < REQUESTS_MAX; slot++) {
        request *const r = &w->agg[a].request[slot];

        if (r->is_open) continue;
        *r = (request){
            .is_open = 1, .number = ++w->n_request_numbers, .shard = shard, .start_us = w->now_us};
        w->report->n_requests++;
        sim_post(w, w->now_us + GRACE_US,
                 (event){.kind = EVENT_DEADLINE, .to = a, .shard = slot, .number = r->number});
        go_on(w, a, slot);
        return;
    }
}

/* e->shard is the request's slot from here on: the node is asked for the slot's shard. */
void sim_agg_compute(world *w, const event *e)
{
    const uint32_t shard = w->agg[e->from].request[e->shard].shard;
    event reply = *e;

    reply.kind = EVENT_REPLY;
    reply.to = e->from;
    reply.from = e->to;
    reply.is_found = sim_has(w, e->to, shard);
    w->report->n_lingering_served +=
        reply.is_found && w->node[e->to].life[shard].state == SY_SHARD_LINGERING;
    sim_post(w, w->now_us + sim_between(w, MS(1), MS(30)), reply);
}

void sim_agg_reply(world *w, const event *e)
{
    request *const r = &w->agg[e->to].request[e->shard];

    r->is_asking = 0;
    if (e->is_found) {
        r->is_open = 0;
        return;
    }
    sim_note(w, "n%u tells a%u: shard %u is not resident", e->from, e->to, r->shard);
    r->tried |= 1u << e->from;
    w->report->n_second_tries++;
    if ((w->bugs & SIM_ONE_TRY) != 0) {
        fail_request(w, e->to, r, "the one it asked has none");
    } else if (w->now_us >= r->start_us + GRACE_US) {
        fail_request(w, e->to, r, "the last one it asked in time has none");
    } else {
        go_on(w, e->to, e->shard);
    }
}

void sim_agg_deadline(world *w, const event *e)
{
    request *const r = &w->agg[e->to].request[e->shard];

    if (!r->is_open || r->number != e->number || r->is_asking) return;
    fail_request(w, e->to, r, "its grace is over");
}
