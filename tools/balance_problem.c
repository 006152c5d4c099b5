/* balance_problem.c - see the header. */
#include "balance_problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_LIMIT UINT32_MAX

const char *balance_hold_text(balance_hold hold)
{
    switch (hold) {
    case BALANCE_FREE: break;
    case BALANCE_CANARY: return "it has shares, a shadow, \"!\" or a canary: somebody's experiment";
    case BALANCE_REFUSED: return "its field is refused: switchyard placement check says why";
    case BALANCE_CLOSED: return "a node that has it takes no part now";
    }
    return "";
}

/* ---- nodes ---- */

static balance_node *find_node(const balance_problem *p, const char *name)
{
    for (size_t i = 0; i < p->n_nodes; i++)
        if (strcmp(p->node[i].name, name) == 0) return &p->node[i];
    return NULL;
}

static sy_status add_node(balance_problem *p, const char *name, sy_error *err)
{
    balance_node *grown;

    if (find_node(p, name) != NULL) return SY_OK;
    grown = realloc(p->node, (p->n_nodes + 1) * sizeof(*grown));
    if (grown == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the nodes");
    p->node = grown;
    memset(&grown[p->n_nodes], 0, sizeof(*grown));
    snprintf(grown[p->n_nodes++].name, sizeof(grown->name), "%s", name);
    return SY_OK;
}

static const fact_shard *first_failed(const fact_process *process)
{
    for (size_t i = 0; i < process->shards.n; i++) {
        const fact_shard *const shard = &process->shards.shard[i];

        if (shard->state == SY_SHARD_FAILED && shard->wanted) return shard;
    }
    return NULL;
}

static void judge_node(balance_node *node, const balance_question *q)
{
    const fact_process *const process = facts_node(q->facts, node->name);
    const fact_shard *failed;

    if (process == NULL) {
        node->is_gone = q->is_gone(q->arg, node->name);
        snprintf(node->why, sizeof(node->why), "%s",
                 node->is_gone ? "it has no lease" : "it has no lease, but not for long");
    } else if (strcmp(process->lease.state, "serving") != 0) {
        snprintf(node->why, sizeof(node->why), "it is %s",
                 process->lease.state[0] != '\0' ? process->lease.state : "in no known state");
    } else if (!process->has_shards) {
        snprintf(node->why, sizeof(node->why), "it does not tell its shards: %s", process->why);
    } else if ((failed = first_failed(process)) != NULL) {
        snprintf(node->why, sizeof(node->why), "it cannot load %u/%u: %s", failed->layer,
                 failed->expert, failed->reason);
    } else {
        node->is_open = 1;
    }
}

static int by_name(const void *a, const void *b)
{
    return strverscmp(((const balance_node *)a)->name, ((const balance_node *)b)->name);
}

static sy_status find_nodes(balance_problem *p, const balance_question *q, sy_error *err)
{
    const uint32_t n_lists = sy_snapshot_lists(q->snapshot);
    sy_status st = SY_OK;

    for (size_t i = 0; i < q->facts->n; i++)
        if (q->facts->process[i].kind == SY_MEMBER_NODE)
            SY_TRY(add_node(p, q->facts->process[i].lease.name, err));
    for (uint32_t number = 1; number <= n_lists; number++) {
        const sy_target_list *const list = sy_snapshot_list(q->snapshot, number);

        for (uint32_t i = 0; i < list->n; i++) SY_TRY(add_node(p, list->target[i].node, err));
    }
    if (p->n_nodes > 0) qsort(p->node, p->n_nodes, sizeof(*p->node), by_name);
    for (size_t i = 0; i < p->n_nodes; i++) judge_node(&p->node[i], q);
out:
    return st;
}

/* ---- devices ---- */

static uint32_t find_device(const balance_problem *p, const sy_target *target)
{
    for (uint32_t d = 0; d < p->input.n_devices; d++) {
        if (strcmp(p->device[d].node, target->node) == 0 &&
            strcmp(p->device[d].device, target->device) == 0) {
            return d;
        }
    }
    return SY_BALANCE_GONE;
}

static sy_status add_device(balance_problem *p, size_t node, const char *name, size_t n,
                            sy_error *err)
{
    const uint32_t at = p->input.n_devices;
    balance_device *device;
    sy_balance_device *input_device;

    if (n >= sizeof(device->device)) return SY_OK; /* no such device can be named in placement */
    device = realloc(p->device, (at + 1) * sizeof(*device));
    if (device != NULL) p->device = device;
    input_device = realloc(p->input_device, (at + 1) * sizeof(*input_device));
    if (input_device != NULL) p->input_device = input_device;
    if (device == NULL || input_device == NULL)
        return sy_error_set(err, SY_ENOMEM, "no memory for the devices");
    memset(&device[at], 0, sizeof(*device));
    snprintf(device[at].node, sizeof(device[at].node), "%s", p->node[node].name);
    snprintf(device[at].device, sizeof(device[at].device), "%.*s", (int)n, name);
    input_device[at] = (sy_balance_device){.node = (uint32_t)node};
    p->input.n_devices++;
    return SY_OK;
}

static void take_memory(balance_device *device, const fact_process *process)
{
    for (size_t i = 0; i < process->shards.n_devices; i++) {
        const fact_device *const told = &process->shards.device[i];

        if (strcmp(told->name, device->device) != 0) continue;
        device->memory_bytes = told->memory_bytes;
        device->memory_max_bytes = told->memory_max_bytes;
    }
}

static sy_status find_devices(balance_problem *p, const balance_question *q, sy_error *err)
{
    static const char separators[] = " ,";
    const balance_node *closed = NULL;
    sy_status st = SY_OK;

    for (size_t i = 0; i < p->n_nodes; i++) {
        const fact_process *const process = facts_node(q->facts, p->node[i].name);

        if (!p->node[i].is_open && closed == NULL) closed = &p->node[i];
        if (!p->node[i].is_open) continue;
        for (const char *at = process->lease.devices; *at != '\0'; at += strspn(at, separators)) {
            const size_t n = strcspn(at, separators);

            if (n > 0) SY_TRY(add_device(p, i, at, n, err));
            if (n > 0) take_memory(&p->device[p->input.n_devices - 1], process);
            at += n;
        }
    }
    if (p->input.n_devices == 0) {
        st = sy_error_set(err, SY_ENOTFOUND, "no expert node takes part in balancing%s%s%s%s",
                          closed != NULL ? ": " : "", closed != NULL ? closed->name : "",
                          closed != NULL ? ": " : "", closed != NULL ? closed->why : "");
    }
out:
    return st;
}

/* What memory has room for: what is resident and wanted, and what is free beside it. */
static uint32_t slots_in_memory(const balance_problem *p, const balance_question *q, uint32_t d)
{
    const balance_device *const device = &p->device[d];
    const fact_process *const process = facts_node(q->facts, device->node);
    uint64_t n = 0;

    if (device->memory_max_bytes == 0 || q->shard_bytes == 0) return NO_LIMIT;
    for (size_t i = 0; i < process->shards.n; i++) {
        const fact_shard *const shard = &process->shards.shard[i];

        n += shard->wanted && shard->state == SY_SHARD_RESIDENT &&
             strcmp(shard->device, device->device) == 0;
    }
    if (device->memory_max_bytes > device->memory_bytes)
        n += (device->memory_max_bytes - device->memory_bytes) / q->shard_bytes;
    return (uint32_t)SY_MIN(n, (uint64_t)NO_LIMIT);
}

static uint32_t count_open_nodes(const balance_problem *p)
{
    uint32_t n = 0;

    for (size_t i = 0; i < p->n_nodes; i++) n += p->node[i].is_open != 0;
    return n;
}

static void count_slots(balance_problem *p, const balance_question *q)
{
    const uint64_t replicas = SY_MAX(SY_MIN(p->min_replicas, count_open_nodes(p)), 1);
    const uint64_t layers = sy_grid_moe_layers(&p->input.grid), experts = p->input.grid.experts;
    const uint64_t spare = q->n_spare >= 0 ? (uint64_t)q->n_spare : (experts + 7) / 8;
    const uint64_t n_devices = p->input.n_devices;
    const uint64_t even = (layers * (experts * replicas + spare) + n_devices - 1) / n_devices;

    for (uint32_t d = 0; d < p->input.n_devices; d++) {
        p->input_device[d].slots =
            SY_MIN((uint32_t)SY_MIN(even, (uint64_t)NO_LIMIT), slots_in_memory(p, q, d));
    }
}

/* ---- experts ---- */

static int is_plain(const sy_target_list *list)
{
    for (uint32_t i = 0; i < list->n; i++) {
        const sy_target *const t = &list->target[i];

        if (t->share != 0 || t->shadow || t->any_weights) return 0;
    }
    return 1;
}

static int has_closed_node(const balance_problem *p, const sy_target_list *list)
{
    for (uint32_t i = 0; i < list->n; i++) {
        const balance_node *const node = find_node(p, list->target[i].node);

        if (node != NULL && !node->is_open && !node->is_gone) return 1;
    }
    return 0;
}

/* Whether a canary's name, fields with commas between, speaks of the expert. */
static int covers(const char *canary, const balance_problem *p, uint32_t layer, uint32_t expert)
{
    for (const char *at = canary; *at != '\0'; at += strspn(at, ", ")) {
        const size_t n = strcspn(at, ", ");
        sy_field field;

        if (sy_field_parse(&field, at, n, &p->input.grid, NULL) == SY_OK &&
            (field.layer == SY_ANY || field.layer == (int32_t)layer) &&
            (field.expert == SY_ANY || field.expert == (int32_t)expert)) {
            return 1;
        }
        at += n;
    }
    return 0;
}

static balance_hold hold_of(const balance_problem *p, const balance_question *q,
                            const sy_target_list *list, uint32_t layer, uint32_t expert)
{
    char field[32];

    sy_field_format(field, sizeof(field), (sy_field){(int32_t)layer, (int32_t)expert});
    for (size_t i = 0; i < q->n_canaries; i++)
        if (covers(q->canary[i], p, layer, expert)) return BALANCE_CANARY;
    for (size_t i = 0; i < sy_snapshot_refusals(q->snapshot); i++)
        if (strcmp(sy_snapshot_refusal_at(q->snapshot, i)->field, field) == 0)
            return BALANCE_REFUSED;
    if (list == NULL) return BALANCE_FREE;
    if (!is_plain(list)) return BALANCE_CANARY;
    return has_closed_node(p, list) ? BALANCE_CLOSED : BALANCE_FREE;
}

/* What part of the expert's rows the target computes. A shadow computes a copy of them all. */
static double part_of(const sy_target_list *list, const sy_target *target)
{
    uint32_t n_serving = 0;

    if (target->shadow) return 1.0;
    if (target->share > 0) return target->share / 100.0;
    for (uint32_t i = 0; i < list->n; i++) n_serving += !list->target[i].shadow;
    return 1.0 / n_serving;
}

static void take_expert(balance_problem *p, const balance_question *q, size_t at)
{
    const uint32_t layer = (uint32_t)(at / p->input.grid.experts);
    const uint32_t expert = (uint32_t)(at % p->input.grid.experts);
    const sy_target_list *const list = sy_snapshot_targets(q->snapshot, layer, expert);
    const uint32_t n = list != NULL ? list->n : 0;
    uint32_t to = p->offset[at];
    double open = 0.0;

    p->offset[at + 1] = to;
    if (!sy_grid_has(&p->input.grid, layer)) return;
    p->hold[at] = (uint8_t)hold_of(p, q, list, layer, expert);
    p->n_held[p->hold[at]]++;
    for (uint32_t i = 0; i < n; i++, to++) {
        p->holder[to] = find_device(p, &list->target[i]);
        p->share[to] = 0.0;
        if (p->holder[to] == SY_BALANCE_GONE) continue;
        p->device[p->holder[to]].n_held++;
        p->share[to] = part_of(list, &list->target[i]);
        open += p->share[to];
    }
    p->load[at] = q->rows[at];
    p->offset[at + 1] = to;
    if (p->hold[at] == BALANCE_FREE) return;
    /* Only what it does on devices that take part is to be balanced around. */
    p->load[at] *= open;
    for (uint32_t i = p->offset[at]; i < to && open > 0.0; i++) p->share[i] /= open;
}

static sy_status take_experts(balance_problem *p, const balance_question *q, sy_error *err)
{
    const size_t n_all = (size_t)p->input.grid.layers * p->input.grid.experts;
    size_t n_holders = 0;

    for (size_t at = 0; at < n_all; at++) {
        const sy_target_list *const list =
            sy_snapshot_targets(q->snapshot, (uint32_t)(at / p->input.grid.experts),
                                (uint32_t)(at % p->input.grid.experts));

        n_holders += list != NULL ? list->n : 0;
    }
    p->load = calloc(n_all + 1, sizeof(*p->load));
    p->offset = calloc(n_all + 1, sizeof(*p->offset));
    p->holder = calloc(n_holders + 1, sizeof(*p->holder));
    p->share = calloc(n_holders + 1, sizeof(*p->share));
    p->hold = calloc(n_all + 1, sizeof(*p->hold));
    if (p->load == NULL || p->offset == NULL || p->holder == NULL || p->share == NULL ||
        p->hold == NULL) {
        return sy_error_set(err, SY_ENOMEM, "no memory for the placement");
    }
    for (size_t at = 0; at < n_all; at++) take_expert(p, q, at);
    return SY_OK;
}

/* ---- the minimum ---- */

static uint32_t count_list_nodes(const sy_target_list *list)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < list->n; i++) {
        uint32_t before = 0;

        while (strcmp(list->target[before].node, list->target[i].node) != 0) before++;
        n += before == i;
    }
    return n;
}

static void find_minimum(balance_problem *p, const balance_question *q)
{
    uint32_t least = UINT32_MAX;

    p->is_min_found = q->min_replicas < 0;
    p->min_replicas = (uint32_t)SY_MAX(q->min_replicas, 0);
    if (!p->is_min_found) return;
    for (size_t at = 0; at < (size_t)p->input.grid.layers * p->input.grid.experts; at++) {
        const sy_target_list *const list =
            sy_snapshot_targets(q->snapshot, (uint32_t)(at / p->input.grid.experts),
                                (uint32_t)(at % p->input.grid.experts));

        /* One that is placed nowhere says nothing about how safe the others should be. */
        if (p->hold[at] != BALANCE_FREE || list == NULL || list->n == 0) continue;
        least = SY_MIN(least, count_list_nodes(list));
    }
    if (least != UINT32_MAX) p->min_replicas = SY_MIN(least, q->replicas_max);
}

/* ---- what is on its way ---- */

static void wait_for(balance_problem *p, const balance_question *q, uint32_t layer, uint32_t expert,
                     uint32_t d)
{
    const balance_device *const device = &p->device[d];
    const fact_shard *const shard =
        fact_find_shard(facts_node(q->facts, device->node), layer, expert);
    const sy_shard_state state = shard != NULL ? shard->state : SY_SHARD_ABSENT;

    if (state == SY_SHARD_RESIDENT || state == SY_SHARD_LINGERING || state == SY_SHARD_FAILED)
        return;
    if (p->n_waiting++ == 0) {
        snprintf(p->waits_for, sizeof(p->waits_for), "%u/%u is %s on %s/%s", layer, expert,
                 sy_shard_state_name(state), device->node, device->device);
    }
}

static void find_waiting(balance_problem *p, const balance_question *q)
{
    for (uint32_t layer = 0; layer < p->input.grid.layers; layer++) {
        for (uint32_t e = 0; e < p->input.grid.experts; e++) {
            const size_t at = (size_t)layer * p->input.grid.experts + e;

            for (uint32_t i = p->offset[at]; i < p->offset[at + 1]; i++)
                if (p->holder[i] != SY_BALANCE_GONE) wait_for(p, q, layer, e, p->holder[i]);
        }
    }
}

sy_status balance_problem_make(balance_problem *out, const balance_question *q, sy_error *err)
{
    sy_status st;

    memset(out, 0, sizeof(*out));
    out->input.grid = *sy_snapshot_grid(q->snapshot);
    out->input.shard_bytes = q->shard_bytes;
    SY_TRY(find_nodes(out, q, err));
    SY_TRY(find_devices(out, q, err));
    SY_TRY(take_experts(out, q, err));
    find_minimum(out, q);
    count_slots(out, q);
    find_waiting(out, q);
    out->input.device = out->input_device;
    out->input.load = out->load;
    out->input.offset = out->offset;
    out->input.holder = out->holder;
    out->input.pinned = out->hold;
    out->input.share = out->share;
out:
    return st;
}

void balance_problem_free(balance_problem *p)
{
    free(p->node);
    free(p->device);
    free(p->input_device);
    free(p->load);
    free(p->share);
    free(p->offset);
    free(p->holder);
    free(p->hold);
    memset(p, 0, sizeof(*p));
}

/* ---- the way back ---- */

int balance_is_written(const sy_balance_plan *plan, const sy_balance_change *change)
{
    const size_t at = (size_t)change->layer * plan->experts + change->expert;

    if (plan->offset[at] == plan->offset[at + 1]) return 0;
    return change->n_loads + change->n_drops > 0;
}

static int has_holder(const sy_balance_plan *plan, size_t at, uint32_t d)
{
    for (uint32_t i = plan->offset[at]; i < plan->offset[at + 1]; i++)
        if (plan->holder[i] == d) return 1;
    return 0;
}

/* Appends targets on nodes that are gone, as long as the list is on fewer nodes than the minimum.
 */
static void keep_gone(sy_target_list *list, const balance_problem *p, const sy_target_list *was)
{
    for (uint32_t i = 0; was != NULL && i < was->n && list->n < SY_TARGETS_MAX; i++) {
        const balance_node *const node = find_node(p, was->target[i].node);

        if (count_list_nodes(list) >= p->min_replicas) return;
        if (node != NULL && node->is_gone) list->target[list->n++] = was->target[i];
    }
}

/* Those that stay keep their order; who is new comes after them. */
static sy_status make_value(char out[SY_PLACEMENT_VALUE_MAX], const balance_problem *p,
                            const sy_target_list *was, const sy_balance_plan *plan, size_t at,
                            sy_error *err)
{
    sy_target_list list = {0};

    for (uint32_t i = 0; was != NULL && i < was->n; i++) {
        const uint32_t d = find_device(p, &was->target[i]);

        if (d != SY_BALANCE_GONE && has_holder(plan, at, d)) list.target[list.n++] = was->target[i];
    }
    for (uint32_t i = plan->offset[at]; i < plan->offset[at + 1]; i++) {
        const balance_device *const device = &p->device[plan->holder[i]];
        int is_there = 0;

        for (uint32_t k = 0; k < list.n; k++)
            is_there |= find_device(p, &list.target[k]) == plan->holder[i];
        if (is_there || list.n == SY_TARGETS_MAX) continue;
        memcpy(list.target[list.n].node, device->node, sizeof(device->node));
        memcpy(list.target[list.n++].device, device->device, sizeof(device->device));
    }
    keep_gone(&list, p, was);
    if (sy_targets_format(out, SY_PLACEMENT_VALUE_MAX, &list) >= SY_PLACEMENT_VALUE_MAX)
        return sy_error_set(err, SY_ELIMIT, "the names of %u nodes are too long for one value",
                            list.n);
    return SY_OK;
}

sy_status balance_set_fields(field_map *map, size_t *n_fields, const balance_problem *problem,
                             const sy_snapshot *snapshot, const sy_balance_plan *plan,
                             sy_error *err)
{
    char value[SY_PLACEMENT_VALUE_MAX];
    char field[32];
    sy_status st = SY_OK;

    *n_fields = 0;
    for (size_t i = 0; i < plan->n_changes; i++) {
        const sy_balance_change *const change = &plan->change[i];
        const size_t at = (size_t)change->layer * plan->experts + change->expert;
        const char *speaker;

        if (!balance_is_written(plan, change)) continue;
        sy_field_format(field, sizeof(field),
                        (sy_field){(int32_t)change->layer, (int32_t)change->expert});
        speaker = field_map_speaker(map, change->layer, change->expert, FIELD_BEFORE);
        SY_TRY(make_value(value, problem,
                          sy_snapshot_targets(snapshot, change->layer, change->expert), plan, at,
                          err));
        if (speaker != NULL && strcmp(speaker, field) != 0)
            SY_TRY(field_map_set(map, speaker, field_map_get(map, speaker, FIELD_BEFORE)));
        SY_TRY(field_map_set(map, field, value));
        (*n_fields)++;
    }
out:
    if (st == SY_ENOMEM) sy_error_set(err, st, "no memory for the changes");
    return st;
}
