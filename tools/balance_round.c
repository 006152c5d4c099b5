/* balance_round.c - see the header. */
#include "balance_round.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

#include "sy_model.h"
#include "tool_print.h"
#include "tool_text.h"

#define NEVER_GAIN 1e9 /* nothing gains so much: only what is lost is placed again */

/* ---- looking ---- */

/* The names of the canaries that run. */
static sy_status look_for_canaries(balance_round *r, sy_error *err)
{
    char key[256];
    redisReply *reply = NULL;
    sy_status st;

    snprintf(key, sizeof(key), "switchyard:{%s}:canary", r->place.model);
    SY_TRY(tool_redis_ask(&reply, r->place.redis, 2, (const char *[]){"HKEYS", key}, NULL, err));
    if (reply->type != REDIS_REPLY_ARRAY) {
        st = tool_redis_odd(r->place.redis, "HKEYS", err);
        goto out;
    }
    r->canary = calloc(reply->elements + 1, sizeof(*r->canary));
    for (size_t i = 0; r->canary != NULL && i < reply->elements; i++) {
        if (reply->element[i]->type != REDIS_REPLY_STRING) continue;
        r->canary[r->n_canaries] = strdup(reply->element[i]->str);
        if (r->canary[r->n_canaries++] == NULL) st = SY_ENOMEM;
    }
    if (r->canary == NULL || st != SY_OK)
        st = sy_error_set(err, SY_ENOMEM, "no memory for the canaries");
out:
    if (reply != NULL) freeReplyObject(reply);
    return st;
}

sy_status balance_round_look(balance_round *r, const balance_options *options, sy_error *err)
{
    place *const p = &r->place;
    sy_status st;

    memset(r, 0, sizeof(*r));
    r->options = options;
    SY_TRY(place_open(p, &options->where, err));
    SY_TRY(place_read(&r->map, p, err));
    SY_TRY(field_map_snapshot(&r->snapshot, r->map, FIELD_BEFORE, &p->grid, err));
    SY_TRY(look_for_canaries(r, err));
    SY_TRY(facts_take(&r->facts, p->redis, p->model, FACT_PLACEMENT | FACT_SHARDS, err));
    r->rows = calloc((size_t)p->grid.layers * p->grid.experts, sizeof(*r->rows));
    if (r->rows == NULL) st = sy_error_set(err, SY_ENOMEM, "no memory for the load");
out:
    return st;
}

void balance_round_free(balance_round *r)
{
    for (size_t i = 0; i < r->n_canaries; i++) free(r->canary[i]);
    free(r->canary);
    sy_balance_plan_free(&r->plan);
    balance_problem_free(&r->problem);
    free(r->rows);
    facts_free(&r->facts);
    sy_snapshot_unref(r->snapshot);
    field_map_close(r->map);
    place_close(&r->place);
    memset(r, 0, sizeof(*r));
}

/* ---- planning ---- */

static uint64_t find_shard_bytes(const balance_round *r)
{
    uint64_t bytes = facts_shard_bytes(&r->facts);
    sy_model *model = NULL;

    if (bytes > 0 || r->place.model_dir[0] == '\0') return bytes;
    if (sy_model_open(&model, r->place.model_dir, r->place.model, NULL) == SY_OK)
        bytes = sy_model_expert_bytes(model);
    sy_model_close(model);
    return bytes;
}

static int has_enough_rows(const balance_round *r)
{
    return r->n_rows > 0 &&
           r->n_rows >= (double)r->options->rows_min * sy_grid_moe_layers(&r->place.grid);
}

/* Why nothing but what is lost may move in this round; 0: anything may. */
static int must_keep(balance_round *r)
{
    const balance_problem *const p = &r->problem;
    const double now = r->plan.base.mean;

    for (size_t i = 0; i < p->n_nodes; i++) {
        const balance_node *const node = &p->node[i];

        if (node->is_open || node->is_gone || facts_node(&r->facts, node->name) != NULL) continue;
        snprintf(r->why, sizeof(r->why), "node %s has lost its lease, and is given time to return",
                 node->name);
        return 1;
    }
    if (r->plan.n_lost_left > 0) {
        snprintf(r->why, sizeof(r->why), "experts that have no holder come first");
    } else if (p->n_waiting > 0) {
        snprintf(r->why, sizeof(r->why),
                 "%zu shards that were asked for are not there yet, the first: %s", p->n_waiting,
                 p->waits_for);
    } else if (!has_enough_rows(r)) {
        snprintf(r->why, sizeof(r->why),
                 "%.0f rows a layer were computed, too few to go by: --min-rows is %lld",
                 r->n_rows / sy_grid_moe_layers(&r->place.grid), (long long)r->options->rows_min);
    } else if (now <= r->options->threshold) {
        snprintf(r->why, sizeof(r->why), "max/mean load is %.3f, and up to %.3f is good enough",
                 now, r->options->threshold);
    } else {
        return 0;
    }
    return 1;
}

static uint32_t replicas_max_of(const balance_round *r)
{
    return (uint32_t)SY_MIN(r->options->replicas_max, SY_TARGETS_MAX);
}

static sy_status make_plan(balance_round *r, double min_gain, sy_error *err)
{
    const sy_balance_options options = {.budget_bytes = (uint64_t)r->options->budget_mb * 1000000,
                                        .replicas_max = replicas_max_of(r),
                                        .min_replicas = r->problem.min_replicas,
                                        .min_gain = min_gain,
                                        .good_enough =
                                            min_gain < NEVER_GAIN ? r->options->threshold : 0.0};

    sy_balance_plan_free(&r->plan);
    return sy_balance(&r->plan, &r->problem.input, &options, err);
}

/* How many are on too few nodes for want of budget, and not of room. */
static size_t count_short_of_budget(const sy_balance_plan *plan)
{
    size_t n = 0;

    for (size_t i = 0; i < plan->n_changes; i++)
        n += plan->change[i].why == SY_BALANCE_SHORT_BUDGET;
    return n;
}

/* Says what the layers' verdicts come to when nothing moves. */
static void explain_rest(balance_round *r)
{
    size_t n[SY_BALANCE_NO_ROOM + 1] = {0};

    for (uint32_t i = 0; i < r->plan.layers; i++) n[r->plan.layer[i].verdict]++;
    if (r->plan.n_lost_left > 0) {
        snprintf(r->why, sizeof(r->why),
                 "%u experts have no holder, and %s to place them again: %s", r->plan.n_lost_left,
                 n[SY_BALANCE_NO_ROOM] > 0 ? "no device has room" : "no budget",
                 n[SY_BALANCE_NO_ROOM] > 0
                     ? "more memory, a larger --spare or a smaller --min-replicas is needed"
                     : "raise --budget-mb");
    } else if (r->plan.n_short_left > 0) {
        const int is_budget = count_short_of_budget(&r->plan) > 0;

        snprintf(r->why, sizeof(r->why),
                 "%u experts are on fewer than %u nodes (--min-replicas), and %s",
                 r->plan.n_short_left, r->plan.min_nodes,
                 is_budget ? "no budget to place more: raise --budget-mb"
                           : "no device of another node has room: more memory or a larger --spare "
                             "is needed");
    } else if (n[SY_BALANCE_OVER_BUDGET] > 0) {
        snprintf(r->why, sizeof(r->why),
                 "max/mean load is %.3f, and no change fits into --budget-mb %lld",
                 r->plan.before.mean, (long long)r->options->budget_mb);
    } else {
        snprintf(r->why, sizeof(r->why),
                 "max/mean load is %.3f, and nothing better was found that gains --min-gain %g%s",
                 r->plan.before.mean, r->options->min_gain,
                 n[SY_BALANCE_TOO_LITTLE] > 0 ? " (less, it would)" : "");
    }
}

static void explain_moves(balance_round *r, const char *because)
{
    const sy_balance_plan *const plan = &r->plan;
    char size[TOOL_SIZE_BYTES];
    sy_strbuf text;

    sy_strbuf_init(&text);
    sy_strbuf_printf(&text, "%zu experts change, %llu shards to load (%s)", r->n_fields,
                     (unsigned long long)plan->n_loads,
                     r->problem.input.shard_bytes > 0 ? tool_size(size, plan->load_bytes)
                                                      : "of a size that no node tells");
    if (plan->n_lost > 0) sy_strbuf_printf(&text, "; %u experts had no holder left", plan->n_lost);
    if (plan->n_short + plan->n_short_left > 0) {
        sy_strbuf_printf(&text, "; %u experts were on fewer than %u nodes, %u are so now",
                         plan->n_short, plan->min_nodes, plan->n_short_left);
    }
    if (has_enough_rows(r) && plan->n_lost == 0) {
        sy_strbuf_printf(&text, ": max/mean load %.3f -> %.3f, worst layer %.3f -> %.3f",
                         plan->before.mean, plan->after.mean, plan->before.worst,
                         plan->after.worst);
    }
    if (because[0] != '\0') sy_strbuf_printf(&text, "; nothing else, for %s", because);
    snprintf(r->why, sizeof(r->why), "%s", text.data);
    sy_strbuf_free(&text);
}

sy_status balance_round_plan(balance_round *r, int (*is_gone)(void *arg, const char *node),
                             void *arg, sy_error *err)
{
    const size_t n_all = (size_t)r->place.grid.layers * r->place.grid.experts;
    char because[sizeof(r->why)];
    sy_status st;
    const balance_question question = {.snapshot = r->snapshot,
                                       .map = r->map,
                                       .facts = &r->facts,
                                       .rows = r->rows,
                                       .is_gone = is_gone,
                                       .arg = arg,
                                       .canary = (const char *const *)r->canary,
                                       .n_canaries = r->n_canaries,
                                       .n_spare = r->options->spare,
                                       .replicas_max = replicas_max_of(r),
                                       .min_replicas = r->options->replicas_min,
                                       .shard_bytes = find_shard_bytes(r)};

    /* Then every expert counts the same: what is lost is spread by numbers. */
    for (size_t at = 0; at < n_all && !has_enough_rows(r); at++) r->rows[at] = 1.0;
    SY_TRY(balance_problem_make(&r->problem, &question, err));
    SY_TRY(make_plan(r, r->options->min_gain, err));
    if (must_keep(r)) SY_TRY(make_plan(r, NEVER_GAIN, err));
    SY_TRY(balance_set_fields(r->map, &r->n_fields, &r->problem, r->snapshot, &r->plan, err));
    memcpy(because, r->why, sizeof(because));
    if (r->n_fields > 0) {
        explain_moves(r, because);
    } else if (because[0] == '\0' || r->plan.n_lost_left + r->plan.n_short_left > 0) {
        explain_rest(r);
    }
out:
    return st;
}

/* ---- writing ---- */

sy_status balance_round_apply(balance_round *r, const char *author, sy_error *err)
{
    tool_edit edit = {.model = r->place.model,
                      .reason = r->why,
                      .command =
                          r->options->watch ? "switchyard balance --watch" : "switchyard balance",
                      .author = author};
    sy_status st;

    if (r->n_fields == 0) return SY_OK;
    SY_TRY(field_map_changes(&edit.change, &edit.n, r->map));
    SY_TRY(tool_redis_change(r->place.redis, &edit, r->entry_id, err));
    r->is_applied = 1;
out:
    return st;
}
