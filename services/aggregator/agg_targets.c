/* agg_targets.c - the watched targets of one view: experts in order of layer and expert, found by
 * bisection, each with its list's targets one after the other. Counters belong to no view: views
 * that follow one another share them by reference. */
#include "agg_targets.h"

#include <stdlib.h>
#include <string.h>

typedef struct watched { /* an expert */
    uint32_t layer, expert;
    uint32_t first, n; /* into target */
} watched;

struct agg_targets {
    uint32_t n_watched, n_targets;
    watched *watched;
    agg_target **target;
};

static int is_watched(const sy_target_list *list)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (list->target[i].share != 0 || list->target[i].shadow || list->target[i].any_weights)
            return 1;
    return 0;
}

static const watched *find_expert(const agg_targets *targets, uint32_t layer, uint32_t expert)
{
    uint32_t low = 0, high = targets == NULL ? 0 : targets->n_watched;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const watched *w = &targets->watched[middle];
        if (w->layer == layer && w->expert == expert) return w;
        if (w->layer < layer || (w->layer == layer && w->expert < expert))
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static void target_unref(agg_target *target)
{
    if (target != NULL && atomic_fetch_sub_explicit(&target->refs, 1, memory_order_acq_rel) == 1)
        free(target);
}

/* That of the view before, with another reference, or a new one. */
static agg_target *take_target(const agg_targets *before, const watched *w, const sy_target *wanted)
{
    const watched *old = find_expert(before, w->layer, w->expert);
    agg_target *target = NULL;

    for (uint32_t i = 0; old != NULL && i < old->n && target == NULL; i++) {
        agg_target *candidate = before->target[old->first + i];
        if (strcmp(candidate->node, wanted->node) == 0 &&
            strcmp(candidate->device, wanted->device) == 0)
            target = candidate;
    }
    if (target != NULL) {
        atomic_fetch_add_explicit(&target->refs, 1, memory_order_relaxed);
    } else {
        target = calloc(1, sizeof(*target));
        if (target == NULL) return NULL;
        atomic_init(&target->refs, 1);
        target->layer = w->layer;
        target->expert = w->expert;
        memcpy(target->node, wanted->node, sizeof(target->node));
        memcpy(target->device, wanted->device, sizeof(target->device));
    }
    atomic_store_explicit(&target->share, wanted->share, memory_order_relaxed);
    atomic_store_explicit(&target->shadow, wanted->shadow, memory_order_relaxed);
    atomic_store_explicit(&target->any_weights, wanted->any_weights, memory_order_relaxed);
    return target;
}

/* 0: no memory. */
static int add_expert(agg_targets *targets, const agg_targets *before, uint32_t layer,
                      uint32_t expert, const sy_target_list *list)
{
    watched *w = &targets->watched[targets->n_watched];

    *w = (watched){layer, expert, targets->n_targets, list->n};
    for (uint32_t i = 0; i < list->n; i++) {
        agg_target *target = take_target(before, w, &list->target[i]);
        if (target == NULL) return 0;
        targets->target[targets->n_targets++] = target;
    }
    targets->n_watched++;
    return 1;
}

/* 0: no memory. */
static int add_all(agg_targets *targets, const agg_targets *before, const sy_snapshot *snapshot,
                   const uint8_t *list_is_watched)
{
    const uint32_t layers = sy_snapshot_layers(snapshot), experts = sy_snapshot_experts(snapshot);

    for (uint32_t layer = 0; layer < layers; layer++)
        for (uint32_t expert = 0; expert < experts; expert++) {
            const uint32_t number = sy_snapshot_list_of(snapshot, layer, expert);
            if (!list_is_watched[number]) continue;
            const sy_target_list *list = sy_snapshot_list(snapshot, number);
            if (targets->n_targets + list->n > AGG_TARGETS_MAX) return 1;
            if (!add_expert(targets, before, layer, expert, list)) return 0;
        }
    return 1;
}

agg_targets *agg_targets_make(const agg_targets *before, const sy_snapshot *snapshot)
{
    const uint32_t lists = snapshot == NULL ? 0 : sy_snapshot_lists(snapshot);
    uint8_t *list_is_watched = calloc((size_t)lists + 1, 1); /* list 0 is nobody's */
    agg_targets *targets = calloc(1, sizeof(*targets));
    int any = 0, done = targets != NULL && list_is_watched != NULL;

    for (uint32_t k = 1; done && k <= lists; k++) {
        list_is_watched[k] = (uint8_t)is_watched(sy_snapshot_list(snapshot, k));
        any |= list_is_watched[k];
    }
    if (done && any) {
        targets->watched = calloc(AGG_TARGETS_MAX, sizeof(*targets->watched));
        targets->target = calloc(AGG_TARGETS_MAX, sizeof(agg_target *));
        done = targets->watched != NULL && targets->target != NULL &&
               add_all(targets, before, snapshot, list_is_watched);
    }
    free(list_is_watched);
    if (done) return targets;
    agg_targets_free(targets);
    return NULL;
}

void agg_targets_free(agg_targets *targets)
{
    if (targets == NULL) return;
    for (uint32_t i = 0; i < targets->n_targets; i++) target_unref(targets->target[i]);
    free(targets->watched);
    free(targets->target);
    free(targets);
}

agg_target *agg_targets_find(const agg_targets *targets, uint32_t layer, uint32_t expert,
                             uint32_t i)
{
    const watched *w = find_expert(targets, layer, expert);

    return w != NULL && i < w->n ? targets->target[w->first + i] : NULL;
}

size_t agg_targets_count(const agg_targets *targets)
{
    return targets == NULL ? 0 : targets->n_targets;
}

agg_target *agg_targets_at(const agg_targets *targets, size_t i)
{
    return targets->target[i];
}
