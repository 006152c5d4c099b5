/* sim_node.c - an expert node, reduced to what decides about memory: sy_lifecycle.h, and around it
 * a memory with so much room, loads that take their time, and questions to other nodes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_world.h"

static int node_number(const char *name)
{
    return name[0] == 'n' ? atoi(name + 1) : -1; /* "ghost": nobody */
}

static const sy_target_list *targets_of(const world *w, uint32_t n, uint32_t shard)
{
    const sy_snapshot *snapshot = w->process[n].snapshot;

    if (snapshot == NULL) return NULL;
    return sy_snapshot_targets(snapshot, shard / EXPERTS, shard % EXPERTS);
}

static int is_wanted(const world *w, uint32_t n, uint32_t shard)
{
    const sy_target_list *list = targets_of(w, n, shard);

    for (uint32_t i = 0; list != NULL && i < list->n; i++) {
        if (node_number(list->target[i].node) == (int)n) return 1;
    }
    return 0;
}

static int is_in_memory(const sy_life *life)
{
    return life->state != SY_SHARD_ABSENT && life->state != SY_SHARD_FAILED;
}

static uint32_t count_in_memory(const node *self)
{
    uint32_t count = 0;

    for (uint32_t shard = 0; shard < SHARDS; shard++) count += is_in_memory(&self->life[shard]);
    return count;
}

static void changed(world *w, uint32_t n, uint32_t shard)
{
    sim_note(w, "n%u: shard %u is %s", n, shard, sy_shard_state_name(w->node[n].life[shard].state));
    sim_announce(w, n, shard);
}

/* ---- loading ---- */

static void begin_load(world *w, uint32_t n, uint32_t shard)
{
    node *const self = &w->node[n];

    sy_life_loading(&self->life[shard], w->now_us);
    changed(w, n, shard);
    w->report->n_loads++;
    sim_post(w, w->now_us + sim_between(w, MS(50), MS(1500)),
             (event){.kind = EVENT_LOADED, .to = n, .shard = shard, .number = self->generation});
}

static int fails_now(world *w)
{
    return w->now_us < EDITS_END_US + MS(10000) && sim_percent(w, w->percent_failing);
}

static void load_failed(world *w, uint32_t n, uint32_t shard)
{
    sy_life_failed(&w->node[n].life[shard], w->now_us);
    w->report->n_failed_loads++;
    changed(w, n, shard);
    sim_node_step(w, n);
}

void sim_node_loaded(world *w, const event *e)
{
    node *const self = &w->node[e->to];

    if (self->generation != e->number) return;
    if (fails_now(w)) {
        load_failed(w, e->to, e->shard);
        return;
    }
    sy_life_verifying(&self->life[e->shard], w->now_us);
    sim_post(w, w->now_us + sim_between(w, MS(10), MS(200)),
             (event){.kind = EVENT_VERIFIED, .to = e->to, .shard = e->shard, .number = e->number});
}

void sim_node_verified(world *w, const event *e)
{
    node *const self = &w->node[e->to];

    if (self->generation != e->number) return;
    if (fails_now(w)) {
        load_failed(w, e->to, e->shard);
        return;
    }
    sy_life_loaded(&self->life[e->shard], w->now_us);
    changed(w, e->to, e->shard);
    sim_node_step(w, e->to);
}

/* ---- unloading ---- */

static void unloaded(world *w, uint32_t n, uint32_t shard, int for_room)
{
    w->report->n_unloads++;
    w->report->n_unloads_for_room += for_room != 0;
    changed(w, n, shard);
}

/* What a wrong implementation does: it believes an answer that nobody gave. */
static void unload_unasked(world *w, uint32_t n, uint32_t shard)
{
    sy_life *const life = &w->node[n].life[shard];
    const sy_life_answer answer = {1, 1, SY_SHARD_RESIDENT};

    sy_life_ask(life, answer.question, answer.placement_hash);
    if (sy_life_answered(life, &answer, answer.placement_hash, w->now_us)) {
        unloaded(w, n, shard, 0);
    }
}

static int64_t message_delay(world *w)
{
    if (w->now_us >= EDITS_END_US || !sim_percent(w, w->percent_late)) {
        return sim_between(w, MS(1), MS(40));
    }
    return sim_percent(w, 50) ? sim_between(w, MS(40), MS(1000))
                              : sim_between(w, MS(1000), LATE_MAX_US);
}

static void send_between_nodes(world *w, event e)
{
    if (sim_percent(w, w->percent_dropped)) return;
    sim_post(w, w->now_us + message_delay(w), e);
}

static void ask(world *w, uint32_t n, uint32_t shard)
{
    node *const self = &w->node[n];
    const sy_target_list *list = targets_of(w, n, shard);
    /* Numbers of an earlier life must not come back. */
    const uint64_t question = (uint64_t)self->generation << 32 | ++self->n_questions;

    self->repeat_us[shard] = self->life[shard].question == 0
                                 ? REPEAT_MIN_US
                                 : SY_MIN(2 * self->repeat_us[shard], REPEAT_MAX_US);
    self->asked_us[shard] = w->now_us;
    sy_life_ask(&self->life[shard], question, sim_hash(w, n));
    for (uint32_t i = 0; list != NULL && i < list->n; i++) {
        const int to = node_number(list->target[i].node);

        if (list->target[i].shadow) continue; /* takes nothing over: its output is not used */
        if (to < 0 || to == (int)n) continue;
        send_between_nodes(w, (event){.kind = EVENT_QUESTION,
                                      .to = (uint32_t)to,
                                      .from = n,
                                      .shard = shard,
                                      .answer = {.question = question}});
    }
}

void sim_node_question(world *w, const event *e)
{
    event answer = *e;

    if (w->node[e->to].is_down) return;
    answer.kind = EVENT_ANSWER;
    answer.to = e->from;
    answer.from = e->to;
    answer.answer.placement_hash = sim_hash(w, e->to);
    answer.answer.state = w->node[e->to].life[e->shard].state;
    send_between_nodes(w, answer);
}

void sim_node_answer(world *w, const event *e)
{
    node *const self = &w->node[e->to];
    sy_life *const life = &self->life[e->shard];
    const uint64_t hash = sim_hash(w, e->to);
    const int for_room = w->now_us - life->since_us < w->linger_us;
    sy_life_answer answer = e->answer;

    if (self->is_down) return;
    if ((w->bugs & SIM_OLD_ANSWERS) != 0 && life->state == SY_SHARD_LINGERING) {
        sy_life_ask(life, answer.question, hash);
    }
    if ((w->bugs & SIM_IGNORES_HASH) != 0) answer.placement_hash = hash;
    if ((w->bugs & SIM_TAKES_LINGERING) != 0 && answer.state == SY_SHARD_LINGERING) {
        answer.state = SY_SHARD_RESIDENT;
    }
    if (!sy_life_answered(life, &answer, hash, w->now_us)) {
        w->report->n_answers_of_no_use++;
        return;
    }
    sim_note(w, "n%u: n%u takes over shard %u under %04x", e->to, e->from, e->shard,
             (unsigned)(hash & 0xffff));
    unloaded(w, e->to, e->shard, for_room);
    sim_node_step(w, e->to);
}

/* ---- what is due ---- */

void sim_node_step(world *w, uint32_t n)
{
    node *const self = &w->node[n];
    const uint32_t room = w->now_us < EDITS_END_US ? self->room : SHARDS;
    int needs_room = 0;

    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        if (!sy_life_must_load(&self->life[shard], w->now_us)) continue;
        if (count_in_memory(self) < room) {
            begin_load(w, n, shard);
        } else {
            needs_room = 1;
        }
    }
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        sy_life *const life = &self->life[shard];

        if (!sy_life_may_ask(life, w->linger_us, needs_room, w->now_us)) continue;
        if ((w->bugs & SIM_BY_THE_CLOCK) != 0 || ((w->bugs & SIM_EVICTS) != 0 && needs_room)) {
            unload_unasked(w, n, shard);
        } else if ((w->bugs & SIM_NEVER_ASKS) == 0 &&
                   (life->question == 0 ||
                    w->now_us - self->asked_us[shard] >= self->repeat_us[shard])) {
            ask(w, n, shard);
        }
    }
}

void sim_node_placed(world *w, uint32_t n)
{
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        if (sy_life_wanted(&w->node[n].life[shard], is_wanted(w, n, shard), w->now_us)) {
            changed(w, n, shard);
        }
    }
    sim_node_step(w, n);
}

void sim_node_crash(world *w, uint32_t n)
{
    node *const self = &w->node[n];

    if (self->is_down) return;
    sim_note(w, "n%u crashes", n);
    w->report->n_crashes++;
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        if (sim_has(w, n, shard)) w->crashed_us[shard] = w->now_us;
    }
    memset(self->life, 0, sizeof(self->life));
    sy_snapshot_unref(w->process[n].snapshot);
    w->process[n].snapshot = NULL;
    self->is_down = 1;
    self->generation++;
    sim_announce_down(w, n);
    sim_post(w, w->now_us + sim_between(w, MS(100), MS(3000)),
             (event){.kind = EVENT_RESTART, .to = n});
}
