/* sim_run.c - the world: what a seed is like, the loop of events, and the invariants. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_world.h"
#include "sy_hash.h"

uint32_t sim_below(world *w, uint32_t n)
{
    return (uint32_t)(sy_splitmix64(sy_splitmix64(w->seed) + w->n_random++) % n);
}

int sim_percent(world *w, uint32_t percent)
{
    return sim_below(w, 100) < percent;
}

int64_t sim_between(world *w, int64_t from_us, int64_t to_us)
{
    return from_us + (int64_t)sim_below(w, (uint32_t)(to_us - from_us + 1));
}

void sim_note(world *w, const char *fmt, ...)
{
    sim_report *const report = w->report;
    char *line;
    size_t n;
    va_list args;

    if (!w->with_trace) return;
    line = report->trace[report->n_trace++ % SIM_TRACE_LINES];
    n = (size_t)snprintf(line, SIM_LINE_BYTES, "%10.3f ms  ", (double)w->now_us / 1000);
    va_start(args, fmt);
    vsnprintf(line + n, SIM_LINE_BYTES - n, fmt, args);
    va_end(args);
}

void sim_violation(world *w, const char *fmt, ...)
{
    va_list args;

    if (w->is_over) return;
    w->is_over = 1;
    w->report->at_us = w->now_us;
    va_start(args, fmt);
    vsnprintf(w->report->violation, sizeof(w->report->violation), fmt, args);
    va_end(args);
}

uint64_t sim_hash(const world *w, uint32_t p)
{
    const sy_snapshot *snapshot = w->process[p].snapshot;

    return snapshot == NULL ? 0 : sy_snapshot_hash(snapshot);
}

int sim_has(const world *w, uint32_t n, uint32_t shard)
{
    const sy_shard_state state = w->node[n].life[shard].state;

    return !w->node[n].is_down && (state == SY_SHARD_RESIDENT || state == SY_SHARD_LINGERING);
}

/* ---- invariants ---- */

static void check_custody(world *w)
{
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        uint32_t n_holders = 0;

        for (uint32_t n = 0; n < w->n_nodes; n++) n_holders += sim_has(w, n, shard) != 0;
        if (n_holders > 0 && !w->is_served[shard]) w->served_since_us[shard] = w->now_us;
        /* A node that crashed may have promised to keep it, and its word is under way as long as
         * a message can be. */
        if (n_holders == 0 && w->is_served[shard] &&
            w->now_us - w->crashed_us[shard] > 2 * LATE_MAX_US) {
            sim_violation(w, "nobody has shard %u in memory", shard);
        }
        w->is_served[shard] = n_holders > 0;
    }
}

static int is_named(const sy_target_list *list, uint32_t n)
{
    char name[16];

    snprintf(name, sizeof(name), "n%u", n);
    for (uint32_t i = 0; list != NULL && i < list->n; i++) {
        if (strcmp(list->target[i].node, name) == 0) return 1;
    }
    return 0;
}

static void check_converged(world *w)
{
    for (uint32_t p = 1; p < w->n_nodes + w->n_aggs; p++) {
        if (sim_hash(w, p) != sim_hash(w, 0)) {
            sim_violation(w, "at the end two processes have different placements");
        }
    }
    for (uint32_t n = 0; n < w->n_nodes; n++) {
        for (uint32_t shard = 0; shard < SHARDS; shard++) {
            const sy_shard_state want =
                is_named(
                    sy_snapshot_targets(w->process[0].snapshot, shard / EXPERTS, shard % EXPERTS),
                    n)
                    ? SY_SHARD_RESIDENT
                    : SY_SHARD_ABSENT;

            if (w->node[n].life[shard].state != want) {
                sim_violation(w, "at the end shard %u is %s on n%u, not %s", shard,
                              sy_shard_state_name(w->node[n].life[shard].state), n,
                              sy_shard_state_name(want));
            }
        }
    }
}

/* ---- events ---- */

static void next_edit(world *w)
{
    const int64_t wait_us = sim_percent(w, w->is_flipping ? 75 : 50)
                                ? sim_between(w, MS(5), MS(500))
                                : sim_between(w, MS(500), MS(4000));

    if (w->now_us + wait_us < EDITS_END_US) {
        sim_post(w, w->now_us + wait_us, (event){.kind = EVENT_EDIT});
    } else {
        sim_post(w, EDITS_END_US, (event){.kind = EVENT_EDIT, .is_found = 1});
    }
}

static void happen_edit(world *w, const event *e)
{
    if (e->is_found) { /* the last one */
        sim_last_edit(w);
        return;
    }
    sim_edit(w);
    next_edit(w);
}

static void happen_tick(world *w, uint32_t n)
{
    if (!w->node[n].is_down) sim_node_step(w, n);
    sim_post(w, w->now_us + MS(200), (event){.kind = EVENT_TICK, .to = n});
}

static void happen_request(world *w, uint32_t a)
{
    sim_agg_request(w, a);
    if (w->now_us < EDITS_END_US + MS(20000)) {
        sim_post(w, w->now_us + sim_between(w, MS(10), MS(200)),
                 (event){.kind = EVENT_REQUEST, .to = a});
    }
}

static void happen_crash(world *w)
{
    const int64_t wait_us = sim_between(w, MS(3000), MS(15000));

    sim_node_crash(w, sim_below(w, w->n_nodes));
    if (w->now_us + wait_us < EDITS_END_US) {
        sim_post(w, w->now_us + wait_us, (event){.kind = EVENT_CRASH});
    }
}

static void happen(world *w, const event *e)
{
    switch (e->kind) {
    case EVENT_EDIT: happen_edit(w, e); break;
    case EVENT_READ: sim_read(w, e->to); break;
    case EVENT_TICK: happen_tick(w, e->to); break;
    case EVENT_LOADED: sim_node_loaded(w, e); break;
    case EVENT_VERIFIED: sim_node_verified(w, e); break;
    case EVENT_QUESTION: sim_node_question(w, e); break;
    case EVENT_ANSWER: sim_node_answer(w, e); break;
    case EVENT_WATCH: sim_agg_watch(w, e); break;
    case EVENT_DOWN: sim_agg_down(w, e); break;
    case EVENT_REQUEST: happen_request(w, e->to); break;
    case EVENT_COMPUTE: sim_agg_compute(w, e); break;
    case EVENT_REPLY: sim_agg_reply(w, e); break;
    case EVENT_DEADLINE: sim_agg_deadline(w, e); break;
    case EVENT_CRASH: happen_crash(w); break;
    case EVENT_RESTART:
        w->node[e->to].is_down = 0;
        sim_read(w, e->to);
        break;
    }
}

/* ---- a run ---- */

static void begin(world *w)
{
    w->n_nodes = 3 + sim_below(w, NODES_MAX - 2);
    w->n_aggs = 1 + sim_below(w, AGGS_MAX);
    w->linger_us =
        sim_percent(w, 50) ? sim_between(w, MS(5000), MS(8000)) : sim_between(w, 0, MS(500));
    w->is_flipping = sim_percent(w, 40);
    w->percent_late = sim_below(w, w->is_flipping ? 60 : 40);
    w->percent_dropped = sim_below(w, 30);
    w->percent_failing = sim_percent(w, 50) ? 0 : sim_below(w, 50);
    w->has_crashes = sim_percent(w, 25);
    for (uint32_t shard = 0; shard < SHARDS; shard++) w->crashed_us[shard] = -4 * LATE_MAX_US;
    for (uint32_t p = 0; p < w->n_nodes + w->n_aggs; p++) {
        w->process[p].is_slow = sim_percent(w, w->is_flipping ? 20 : 10);
    }
    for (uint32_t n = 0; n < w->n_nodes; n++) {
        w->node[n].room = sim_percent(w, 50) ? SHARDS : 2 + sim_below(w, SHARDS - 2);
        sim_post(w, sim_between(w, 0, MS(200)), (event){.kind = EVENT_TICK, .to = n});
    }
    for (uint32_t a = 0; a < w->n_aggs; a++) {
        sim_post(w, MS(3000), (event){.kind = EVENT_REQUEST, .to = a});
    }
    if (w->has_crashes) {
        sim_post(w, sim_between(w, MS(5000), MS(20000)), (event){.kind = EVENT_CRASH});
    }
    sim_first_placement(w);
    sim_post(w, sim_between(w, MS(3000), MS(8000)), (event){.kind = EVENT_EDIT});
}

void sim_run(sim_report *out, uint64_t seed, uint32_t bugs, int with_trace)
{
    world *const w = calloc(1, sizeof(*w));
    event e;

    SY_ASSERT(w != NULL);
    memset(out, 0, sizeof(*out));
    w->seed = seed;
    w->bugs = bugs;
    w->with_trace = with_trace;
    w->report = out;
    begin(w);
    while (!w->is_over && sim_next(w, &e) && e.at_us <= END_US) {
        w->now_us = e.at_us;
        out->n_events++;
        happen(w, &e);
        check_custody(w);
    }
    if (!w->is_over) check_converged(w);
    for (uint32_t p = 0; p < PROCESSES_MAX; p++) sy_snapshot_unref(w->process[p].snapshot);
    free(w->event);
    free(w);
}
