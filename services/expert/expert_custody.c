/* expert_custody.c - how shards leave memory: never but by the word of another node. For those that
 * linger, the nodes that placement wants are asked, one Watch call a node and round; whoever says
 * under the very same placement that the shard is resident there takes over. lib/placement's life
 * cycle decides; this file has the clock, the questions and the lock. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expert.h"
#include "sy_clock.h"
#include "sy_log.h"

enum {
    ASK_US = 2 * 1000 * 1000,
    ROUND_MIN_US = 250 * 1000, /* between rounds; doubles while nothing leaves */
    ROUND_MAX_US = 4 * 1000 * 1000,
    LOG_US = 30 * 1000 * 1000,
    LATE_US = 5 * 1000 * 1000, /* from when a shard could leave: before, nobody need worry */
    WHY_BYTES = 192
};

/* A shard that is asked about in this round. */
typedef struct leaving {
    uint32_t shard;
    uint8_t room; /* whose memory it is in, as residency_room_of has it */
    int due;      /* it has lingered long enough: it may leave whether or not room is needed */
    int64_t since_us;
    uint64_t question;
    const sy_target_list *target; /* of the round's snapshot */
} leaving;

typedef struct asked_node {
    const char *node;      /* in the round's snapshot */
    expert_answer *answer; /* NULL: none */
    char why[WHY_BYTES];   /* then */
} asked_node;

typedef struct round {
    sy_snapshot *snapshot;
    uint64_t placement_hash;
    leaving *shard; /* oldest first */
    uint32_t n_shards;
    uint32_t n_room[EXPERT_DEVICES_MAX];      /* shards that wait for room there */
    uint32_t n_left_from[EXPERT_DEVICES_MAX]; /* and how many have left it */
    asked_node *node;
    size_t n_nodes;
    uint32_t n_left;
} round_of;

static int by_age(const void *a, const void *b)
{
    const leaving *x = a, *y = b;

    if (x->since_us != y->since_us) return x->since_us < y->since_us ? -1 : 1;
    return x->shard < y->shard ? -1 : x->shard > y->shard;
}

/* ---- which to ask about: mutex held ---- */

/* Shards that wait for room, by whose memory they wait for. */
static void count_waiting_for_room(uint32_t n_room[EXPERT_DEVICES_MAX], const expert *self)
{
    const residency *r = &self->residency;

    memset(n_room, 0, EXPERT_DEVICES_MAX * sizeof(*n_room));
    for (uint32_t i = 0; i < r->n_shards; i++)
        if (r->shard[i].needs_room) n_room[residency_room_of(self, r->shard[i].wanted_device)]++;
}

static uint8_t room_of(const expert *self, uint32_t shard)
{
    return residency_room_of(self, atomic_load(&self->residency.device[shard]));
}

/* 1: some shard may be asked about now. Else *until_us is when the first may. */
static int anything_may_ask(const expert *self, int64_t *until_us)
{
    const residency *r = &self->residency;
    const int64_t now_us = sy_clock_us();
    uint32_t n_room[EXPERT_DEVICES_MAX];

    *until_us = SY_NEVER_US;
    if (r->n_in_state[SY_SHARD_LINGERING] == 0) return 0;
    count_waiting_for_room(n_room, self);
    for (uint32_t i = 0; i < r->n_shards; i++) {
        const sy_life *life = &r->shard[i].life;
        if (sy_life_may_ask(life, self->linger_us, n_room[room_of(self, i)] > 0, now_us)) return 1;
        if (life->state == SY_SHARD_LINGERING)
            *until_us = SY_MIN(*until_us, life->since_us + self->linger_us);
    }
    return 0;
}

static sy_status begin_round(round_of *out, expert *self)
{
    residency *r = &self->residency;
    const int64_t now_us = sy_clock_us();

    *out = (round_of){.placement_hash = r->placement_hash};
    count_waiting_for_room(out->n_room, self);
    out->shard = calloc(r->n_in_state[SY_SHARD_LINGERING], sizeof(*out->shard));
    if (out->shard == NULL) return SY_ENOMEM;
    out->snapshot = sy_snapshot_ref(r->snapshot);
    for (uint32_t i = 0; i < r->n_shards; i++) {
        sy_life *life = &r->shard[i].life;
        const uint8_t room = room_of(self, i);
        if (!sy_life_may_ask(life, self->linger_us, out->n_room[room] > 0, now_us)) continue;
        sy_life_ask(life, ++r->last_question, r->placement_hash);
        out->shard[out->n_shards++] = (leaving){
            .shard = i,
            .room = room,
            .due = sy_life_may_ask(life, self->linger_us, 0, now_us),
            .since_us = life->since_us,
            .question = r->last_question,
            .target = sy_snapshot_targets(r->snapshot, i / r->experts, i % r->experts),
        };
    }
    qsort(out->shard, out->n_shards, sizeof(*out->shard), by_age);
    return SY_OK;
}

static void end_round(round_of *round)
{
    for (size_t i = 0; i < round->n_nodes; i++) expert_answer_unref(round->node[i].answer);
    free(round->node);
    free(round->shard);
    sy_snapshot_unref(round->snapshot);
}

/* ---- asking: no lock ---- */

static asked_node *find_node(const round_of *round, const char *node)
{
    for (size_t i = 0; i < round->n_nodes; i++)
        if (strcmp(round->node[i].node, node) == 0) return &round->node[i];
    return NULL;
}

/* Shadows take no custody: nothing is served from them. */
static int may_succeed(const expert *self, const sy_target *target)
{
    return !target->shadow && strcmp(target->node, self->node) != 0;
}

/* The nodes that the round's shards are wanted on, once each. */
static sy_status list_nodes(round_of *round, const expert *self)
{
    round->node = calloc(EXPERT_PEERS_MAX, sizeof(*round->node));
    if (round->node == NULL) return SY_ENOMEM;
    for (uint32_t i = 0; i < round->n_shards; i++) {
        const sy_target_list *list = round->shard[i].target;
        for (uint32_t t = 0; list != NULL && t < list->n; t++) {
            if (!may_succeed(self, &list->target[t]) || round->n_nodes == EXPERT_PEERS_MAX ||
                find_node(round, list->target[t].node) != NULL)
                continue;
            round->node[round->n_nodes++] = (asked_node){.node = list->target[t].node};
        }
    }
    return SY_OK;
}

static int is_stopping(expert *self)
{
    residency_lock(self);
    const int stopping = self->residency.stopping;
    residency_unlock(self);
    return stopping;
}

static void ask_all(round_of *round, expert *self)
{
    for (size_t i = 0; i < round->n_nodes && !is_stopping(self); i++) {
        asked_node *n = &round->node[i];
        sy_error err = {0};
        sy_error_clear(&err);
        if (expert_ask(&n->answer, self->peers, n->node, sy_clock_us() + ASK_US, &err) == SY_OK)
            continue;
        snprintf(n->why, sizeof(n->why), "%s does not answer: %.120s", n->node, err.message);
    }
}

/* ---- answers: mutex held ---- */

static int identities_differ(const sy_shard_identity *a, const sy_shard_identity *b)
{
    return (a->content != 0 && b->content != 0 && a->content != b->content) ||
           (a->probe != 0 && b->probe != 0 && a->probe != b->probe);
}

/* Holders of one shard that are not the same: whose copy is the checkpoint's is for the aggregators
 * to find out, but somebody should look. */
static void compare_identities(const expert *self, const expert_answer *answer)
{
    static _Atomic int64_t logged_us;
    const residency *r = &self->residency;
    uint32_t n = 0, first = 0;

    for (uint32_t i = 0; i < r->n_shards; i++) {
        if (answer->state[i] != SY_SHARD_RESIDENT || r->shard[i].bytes == 0 ||
            !identities_differ(&answer->identity[i], &r->shard[i].identity))
            continue;
        if (n++ == 0) first = i;
    }
    if (n == 0 || !sy_log_due(&logged_us, LOG_US)) return;
    sy_log(SY_LOG_ERROR,
           "%s has other weights or another arithmetic than this node for %u shards; the first is "
           "layer %u expert %u: content %016llx probe %016llx there, %016llx %016llx here",
           answer->node, n, first / r->experts, first % r->experts,
           (unsigned long long)answer->identity[first].content,
           (unsigned long long)answer->identity[first].probe,
           (unsigned long long)r->shard[first].identity.content,
           (unsigned long long)r->shard[first].identity.probe);
}

/* Why the target cannot take the shard over, as far as its node's answer says; "": it can. */
static void say_why(char *out, size_t cap, const expert *self, const round_of *round,
                    const sy_target *target, uint32_t shard)
{
    const asked_node *n = find_node(round, target->node);
    const expert_answer *answer = n == NULL ? NULL : n->answer;

    out[0] = '\0';
    if (answer == NULL) {
        snprintf(out, cap, "%s", n == NULL ? "not asked yet" : n->why);
    } else if (answer->placement_hash != round->placement_hash) {
        snprintf(out, cap, "%s has another placement in force (%016llx)", target->node,
                 (unsigned long long)answer->placement_hash);
    } else if (answer->state[shard] != SY_SHARD_RESIDENT) {
        snprintf(out, cap, "%s has it %s", target->node,
                 sy_shard_state_name((sy_shard_state)answer->state[shard]));
    } else if (!target->any_weights && identities_differ(&answer->identity[shard],
                                                         &self->residency.shard[shard].identity)) {
        snprintf(out, cap, "%s has other weights or another arithmetic than this node",
                 target->node);
    }
}

/* 1: the shard has left. */
static int try_to_leave(expert *self, round_of *round, const leaving *l)
{
    residency *r = &self->residency;
    sy_life *life = &r->shard[l->shard].life;
    char why[WHY_BYTES] = "placement names no other node that serves it";

    for (uint32_t t = 0; l->target != NULL && t < l->target->n; t++) {
        const sy_target *target = &l->target->target[t];
        if (!may_succeed(self, target)) continue;
        say_why(why, sizeof(why), self, round, target, l->shard);
        if (why[0] != '\0') continue;
        const sy_life_answer answer = {
            .question = l->question,
            .placement_hash = find_node(round, target->node)->answer->placement_hash,
            .state = SY_SHARD_RESIDENT,
        };
        if (!sy_life_answered(life, &answer, r->placement_hash, sy_clock_us())) return 0;
        residency_leave(self, l->shard);
        sy_log(SY_LOG_DEBUG, "layer %u expert %u leaves memory: %s has it", l->shard / r->experts,
               l->shard % r->experts, target->node);
        return 1;
    }
    if (life->state == SY_SHARD_LINGERING) residency_reason(self, l->shard, why);
    return 0;
}

/* Says how many leave, and now and then why the others cannot. */
static void report(const expert *self, const round_of *round)
{
    static _Atomic int64_t logged_us;
    const residency *r = &self->residency;
    uint32_t shard = 0;

    if (round->n_left > 0) {
        sy_metric_add(self->left, round->n_left);
        sy_log(SY_LOG_INFO, "%u shards have left memory, %u linger", round->n_left,
               r->n_in_state[SY_SHARD_LINGERING]);
    }
    for (uint32_t i = 0; i < round->n_shards; i++) {
        shard = round->shard[i].shard;
        if (r->shard[shard].life.state != SY_SHARD_LINGERING ||
            sy_clock_us() < round->shard[i].since_us + self->linger_us + LATE_US)
            continue;
        if (r->shard[shard].reason[0] == '\0' || !sy_log_due(&logged_us, LOG_US)) return;
        sy_log(SY_LOG_WARN, "%u shards linger and are served; layer %u expert %u stays because %s",
               r->n_in_state[SY_SHARD_LINGERING], shard / r->experts, shard % r->experts,
               r->shard[shard].reason);
        return;
    }
}

static void hear_answers(expert *self, round_of *round)
{
    residency *r = &self->residency;

    for (size_t i = 0; i < round->n_nodes; i++)
        if (round->node[i].answer != NULL) compare_identities(self, round->node[i].answer);
    if (r->placement_hash != round->placement_hash) return; /* no question is open any more */
    for (uint32_t i = 0; i < round->n_shards; i++) {
        const leaving *l = &round->shard[i];
        /* For want of room only as many go as are waited for: the others may be wanted again. */
        if (!l->due && round->n_left_from[l->room] >= round->n_room[l->room]) continue;
        if (!try_to_leave(self, round, l)) continue;
        round->n_left_from[l->room]++;
        round->n_left++;
    }
    if (round->n_left > 0) residency_has_room(self);
    report(self, round);
}

/* ---- the thread ---- */

/* One round of questions; returns how many shards have left. Mutex held, but not while asking. */
static uint32_t go_round(expert *self)
{
    round_of round;
    uint32_t n_left;

    if (begin_round(&round, self) == SY_OK && list_nodes(&round, self) == SY_OK) {
        residency_unlock(self);
        ask_all(&round, self);
        residency_lock(self);
        hear_answers(self, &round);
    }
    n_left = round.n_left;
    end_round(&round);
    return n_left;
}

static void *custody_main(void *arg)
{
    expert *self = arg;
    residency *r = &self->residency;
    int64_t pause_us = ROUND_MIN_US;
    uint64_t hash = 0;

    residency_lock(self);
    while (!r->stopping) {
        int64_t until_us;
        if (!anything_may_ask(self, &until_us)) {
            residency_wait(self, &r->leaving, until_us);
            continue;
        }
        if (r->placement_hash != hash) pause_us = ROUND_MIN_US;
        hash = r->placement_hash;
        if (go_round(self) > 0) pause_us = ROUND_MIN_US;
        /* A new placement, or a load that needs room, ends the pause. */
        if (!r->stopping) residency_wait(self, &r->leaving, sy_clock_us() + pause_us);
        pause_us = SY_MIN(2 * pause_us, (int64_t)ROUND_MAX_US);
    }
    residency_unlock(self);
    return NULL;
}

sy_status custody_open(expert *self, sy_error *err)
{
    residency *r = &self->residency;

    if (pthread_create(&r->custody, NULL, custody_main, self) != 0)
        return sy_error_set(err, SY_EIO, "no thread for the custody of shards");
    r->custody_started = 1;
    return SY_OK;
}

void custody_close(expert *self)
{
    if (self->residency.custody_started) pthread_join(self->residency.custody, NULL);
}
