/* balance_away.c - how long nodes have been without a lease. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "balance_watch.h"

static balance_away_node *find(const balance_away *away, const char *node)
{
    for (size_t i = 0; i < away->n; i++)
        if (strcmp(away->item[i].name, node) == 0) return &away->item[i];
    return NULL;
}

static sy_status add(balance_away *away, const char *node)
{
    balance_away_node *grown;

    if (find(away, node) != NULL) return SY_OK;
    grown = realloc(away->item, (away->n + 1) * sizeof(*grown));
    if (grown == NULL) return SY_ENOMEM;
    away->item = grown;
    snprintf(grown[away->n].name, sizeof(grown->name), "%s", node);
    grown[away->n++].since_us = away->now_us;
    return SY_OK;
}

sy_status balance_away_note(balance_away *away, const sy_snapshot *snapshot,
                            const cluster_facts *facts, int64_t now_us)
{
    size_t n_left = 0;
    sy_status st = SY_OK;

    away->now_us = now_us;
    for (size_t i = 0; i < away->n; i++)
        if (facts_node(facts, away->item[i].name) == NULL) away->item[n_left++] = away->item[i];
    away->n = n_left;
    for (uint32_t number = 1; number <= sy_snapshot_lists(snapshot); number++) {
        const sy_target_list *const list = sy_snapshot_list(snapshot, number);

        for (uint32_t i = 0; i < list->n; i++)
            if (facts_node(facts, list->target[i].node) == NULL)
                SY_TRY(add(away, list->target[i].node));
    }
out:
    return st;
}

int balance_away_is_gone(void *arg, const char *node)
{
    const balance_away *const away = arg;
    const balance_away_node *const found = find(away, node);

    return found != NULL && away->now_us - found->since_us >= away->dead_after_us;
}

void balance_away_forget(balance_away *away)
{
    free(away->item);
    away->item = NULL;
    away->n = 0;
}
