/* drain_plan.c - see the header. */
#include "drain_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "placement_move.h"
#include "target_edit.h"

#define CANDIDATES_MAX 4096

/* A device that may take experts. */
typedef struct candidate {
    const fact_process *node;
    sy_target target;
    size_t n_wanted; /* shards, those that this plan adds among them */
    uint64_t memory_bytes, memory_max_bytes;
} candidate;

typedef struct drainer {
    const drain_input *in;
    field_map *map;
    drain_result *out;
    candidate *candidate;
    size_t n;
    const char **field; /* [n_fields] that name the node */
    size_t n_fields, cap_fields;
    int is_full; /* somebody could take an expert but for memory */
} drainer;

/* ---- who may take experts ---- */

static int is_fit(const fact_process *p, const drain_input *in)
{
    const fact_process *leaving = facts_node(in->facts, in->node);
    const sy_member *is = &p->lease;

    if (p->kind != SY_MEMBER_NODE || strcmp(is->name, in->node) == 0) return 0;
    if (!p->answers || strcmp(is->state, "draining") == 0) return 0;
    if (leaving == NULL) return 1;
    if (is->checkpoint_hash[0] != '\0' && leaving->lease.checkpoint_hash[0] != '\0' &&
        strcmp(is->checkpoint_hash, leaving->lease.checkpoint_hash) != 0) {
        return 0;
    }
    return is->arithmetic[0] == '\0' || leaving->lease.arithmetic[0] == '\0' ||
           strcmp(is->arithmetic, leaving->lease.arithmetic) == 0;
}

static void add_candidate(drainer *d, const fact_process *node, const char *device, size_t n)
{
    candidate *c = &d->candidate[d->n];
    char text[SY_NODE_BYTES + SY_DEVICE_BYTES];

    if (d->n == CANDIDATES_MAX || n >= SY_DEVICE_BYTES) return;
    snprintf(text, sizeof(text), "%s/%.*s", node->lease.name, (int)n, device);
    if (target_parse(&c->target, text, NULL) != SY_OK) return;
    c->node = node;
    for (size_t i = 0; i < node->shards.n_devices; i++) {
        const fact_device *told = &node->shards.device[i];

        if (strcmp(told->name, c->target.device) != 0) continue;
        c->memory_bytes = told->memory_bytes;
        c->memory_max_bytes = told->memory_max_bytes;
    }
    d->n++;
}

static void find_candidates(drainer *d)
{
    static const char separators[] = " ,";

    for (size_t i = 0; i < d->in->facts->n; i++) {
        const fact_process *p = &d->in->facts->process[i];

        if (!is_fit(p, d->in)) continue;
        for (const char *at = p->lease.devices; *at != '\0'; at += strspn(at, separators)) {
            const size_t n = strcspn(at, separators);

            if (n > 0) add_candidate(d, p, at, n);
            at += n;
        }
    }
}

static void count_wanted(drainer *d, const sy_snapshot *snapshot)
{
    const size_t n = (size_t)d->in->grid.layers * d->in->grid.experts;

    for (size_t i = 0; i < n; i++) {
        const sy_target_list *list = sy_snapshot_targets(
            snapshot, (uint32_t)(i / d->in->grid.experts), (uint32_t)(i % d->in->grid.experts));

        for (size_t c = 0; list != NULL && c < d->n; c++) {
            d->candidate[c].n_wanted += targets_find(list, &d->candidate[c].target) >= 0;
        }
    }
}

static int has_room(const drainer *d, const candidate *c, uint64_t n_shards)
{
    return c->memory_max_bytes == 0 || d->in->shard_bytes == 0 ||
           c->memory_bytes + n_shards * d->in->shard_bytes <= c->memory_max_bytes;
}

/* One that has the shard as a shadow, else the device with the fewest shards, the first of equals;
 * NULL: none has room. */
static candidate *least_loaded(drainer *d, const sy_target_list *list, uint64_t n_shards)
{
    candidate *best = NULL;

    for (size_t i = 0; i < d->n; i++) {
        candidate *c = &d->candidate[i];
        const int there = targets_find(list, &c->target);

        if (there >= 0 && !list->target[there].shadow) continue;
        if (there >= 0) return c; /* the shadow has the shard already */
        if (!has_room(d, c, n_shards)) {
            d->is_full = 1;
        } else if (best == NULL || c->n_wanted < best->n_wanted) {
            best = c;
        }
    }
    return best;
}

/* ---- fields ---- */

static sy_status collect(void *arg, const char *field, const char *value)
{
    drainer *d = arg;
    sy_target_list list;
    sy_field parsed;
    int names_it = 0;

    if (sy_field_parse(&parsed, field, strlen(field), &d->in->grid, NULL) != SY_OK ||
        sy_targets_parse(&list, value, strlen(value), NULL) != SY_OK) {
        return SY_OK; /* no server takes it, so it wants nothing */
    }
    for (uint32_t i = 0; i < list.n; i++) {
        names_it |= strcmp(list.target[i].node, d->in->node) == 0;
    }
    if (!names_it) return SY_OK;
    if (d->n_fields == d->cap_fields) {
        const size_t cap = SY_MAX((size_t)64, 2 * d->cap_fields);
        const char **grown = realloc(d->field, cap * sizeof(*grown));

        if (grown == NULL) return SY_ENOMEM;
        d->field = grown;
        d->cap_fields = cap;
    }
    d->field[d->n_fields++] = field;
    return SY_OK;
}

static int by_name(const void *a, const void *b)
{
    return strverscmp(*(const char *const *)a, *(const char *const *)b);
}

/* Puts the least loaded device in the node's place. */
static sy_status replace_node(drainer *d, sy_target_list *list, uint64_t n_shards, sy_error *err)
{
    candidate *to = least_loaded(d, list, n_shards);
    sy_status st;

    if (to == NULL) {
        return d->is_full
                   ? sy_error_set(err, SY_ELIMIT, "no other node has the memory for what %s holds",
                                  d->in->node)
                   : sy_error_set(err, SY_EUNAVAILABLE,
                                  "there is no other node of this model, with the same "
                                  "weights and not about to stop, that could take what %s "
                                  "holds",
                                  d->in->node);
    }
    for (uint32_t i = 0; i < list->n; i++) {
        if (strcmp(list->target[i].node, d->in->node) != 0 || list->target[i].shadow) continue;
        SY_TRY(targets_move(list, &list->target[i], &to->target, err));
        break;
    }
    SY_TRY(targets_drop_node(list, d->in->node, err)); /* its other devices, and its shadows */
    to->n_wanted += n_shards;
    to->memory_bytes += n_shards * d->in->shard_bytes;
out:
    return st;
}

/* Experts for which the wildcard speaks are spread; the wildcard itself gets one more device, and
 * speaks for nobody until somebody deletes fields. */
static sy_status spread_wildcard(drainer *d, const char *field, const sy_target_list *list,
                                 sy_error *err)
{
    sy_target_list left = *list;
    char value[SY_PLACEMENT_VALUE_MAX];
    sy_status st = SY_OK;

    for (uint32_t layer = 0; layer < d->in->grid.layers; layer++) {
        if (!sy_grid_has(&d->in->grid, layer)) continue;
        for (uint32_t expert = 0; expert < d->in->grid.experts; expert++) {
            const char *speaker = field_map_speaker(d->map, layer, expert, FIELD_AFTER);
            sy_target_list own = *list;

            if (speaker == NULL || strcmp(speaker, field) != 0) continue;
            SY_TRY(replace_node(d, &own, 1, err));
            SY_TRY(placement_set_expert(d->map, layer, expert, &own, err));
        }
    }
    SY_TRY(replace_node(d, &left, 0, err));
    SY_TRY(targets_text(value, &left, err));
    SY_TRY(field_map_set(d->map, field, value));
out:
    return st;
}

static sy_status drain_field(drainer *d, const char *field, sy_error *err)
{
    const char *text = field_map_get(d->map, field, FIELD_AFTER);
    char value[SY_PLACEMENT_VALUE_MAX];
    sy_target_list list;
    sy_status st;

    SY_TRY(sy_targets_parse(&list, text, strlen(text), err));
    if (targets_drop_node(&list, d->in->node, NULL) == SY_OK) {
        d->out->n_dropped++;
    } else {
        d->out->n_moved++;
        if (strchr(field, '*') != NULL && d->n > 1) return spread_wildcard(d, field, &list, err);
        SY_TRY(replace_node(d, &list, strchr(field, '*') == NULL, err));
    }
    SY_TRY(targets_text(value, &list, err));
    SY_TRY(field_map_set(d->map, field, value));
out:
    return st;
}

sy_status drain_fields(drain_result *out, field_map *map, const drain_input *in, sy_error *err)
{
    drainer d = {.in = in, .map = map, .out = out};
    sy_snapshot *snapshot = NULL;
    sy_status st;

    memset(out, 0, sizeof(*out));
    d.candidate = calloc(CANDIDATES_MAX, sizeof(*d.candidate));
    if (d.candidate == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the plan");
    find_candidates(&d);
    SY_TRY(field_map_snapshot(&snapshot, map, FIELD_AFTER, &in->grid, err));
    count_wanted(&d, snapshot);
    SY_TRY(field_map_each(map, collect, &d));
    if (d.n_fields > 1) qsort(d.field, d.n_fields, sizeof(*d.field), by_name);
    for (size_t i = 0; i < d.n_fields; i++) SY_TRY(drain_field(&d, d.field[i], err));
out:
    if (st == SY_ENOMEM) sy_error_set(err, st, "no memory for the plan");
    sy_snapshot_unref(snapshot);
    free(d.candidate);
    free(d.field);
    return st;
}

/* ---- when it may be stopped ---- */

static int is_held_elsewhere(const char *node, const fact_shard *shard, const sy_snapshot *now,
                             const cluster_facts *facts)
{
    const sy_target_list *list = sy_snapshot_targets(now, shard->layer, shard->expert);

    for (uint32_t i = 0; list != NULL && i < list->n; i++) {
        const sy_target *target = &list->target[i];
        const fact_process *other = facts_node(facts, target->node);
        const fact_shard *held =
            other != NULL ? fact_find_shard(other, shard->layer, shard->expert) : NULL;

        if (target->shadow || strcmp(target->node, node) == 0) continue;
        if (held != NULL && held->state == SY_SHARD_RESIDENT) return 1;
    }
    return 0;
}

int drain_is_safe(const char *node, char *why, size_t cap, const sy_snapshot *now,
                  const cluster_facts *facts)
{
    const fact_process *leaving = facts_node(facts, node);

    if (sy_snapshot_names_node(now, node)) {
        snprintf(why, cap, "placement wants %s again: somebody else edited it", node);
        return 0;
    }
    if (leaving == NULL) return 1;
    if (!leaving->has_shards) {
        snprintf(why, cap, "%s does not tell its shards (%s)", node, leaving->why);
        return 0;
    }
    for (size_t i = 0; i < leaving->shards.n; i++) {
        const fact_shard *shard = &leaving->shards.shard[i];

        if (shard->state == SY_SHARD_FAILED || shard->state == SY_SHARD_ABSENT) continue;
        if (shard->wanted || shard->state == SY_SHARD_RESIDENT) {
            snprintf(why, cap, "%u/%u on %s is %s still", shard->layer, shard->expert, node,
                     sy_shard_state_name(shard->state));
            return 0;
        }
        if (shard->state == SY_SHARD_LINGERING && !is_held_elsewhere(node, shard, now, facts)) {
            snprintf(why, cap, "%u/%u is resident on no other node", shard->layer, shard->expert);
            return 0;
        }
    }
    return 1;
}
