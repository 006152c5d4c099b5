/* balance_print.c - a round for people and for programs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "balance_round.h"
#include "sy_clock.h"
#include "tool_placement.h"
#include "tool_print.h"
#include "tool_report.h"
#include "tool_text.h"

#define SHOWN_CHANGES_MAX 40
#define SHOWN_LAYERS_MAX  40

static const char *verdict_text(sy_balance_verdict verdict)
{
    switch (verdict) {
    case SY_BALANCE_EVEN: return "nothing better was found";
    case SY_BALANCE_NO_LOAD: return "no load was seen";
    case SY_BALANCE_NO_EXPERTS: return "it has no experts";
    case SY_BALANCE_IMPROVED: return "better";
    case SY_BALANCE_TOO_LITTLE: return "more would gain too little";
    case SY_BALANCE_OVER_BUDGET: return "more is beyond the budget";
    case SY_BALANCE_NO_ROOM: return "an expert has no holder, and no device has room";
    }
    return "";
}

/* What each device has to do, of all. after: by the plan. */
static void sum_loads(double *sum, uint32_t *n, const balance_round *r, int after)
{
    const sy_balance_input *const input = &r->problem.input;
    const uint32_t *const offset = after ? r->plan.offset : input->offset;
    const uint32_t *const holder = after ? r->plan.holder : input->holder;

    for (size_t at = 0; at < (size_t)input->grid.layers * input->grid.experts; at++) {
        uint32_t n_live = 0;

        for (uint32_t i = offset[at]; i < offset[at + 1]; i++)
            n_live += holder[i] != SY_BALANCE_GONE;
        for (uint32_t i = offset[at]; i < offset[at + 1]; i++) {
            if (holder[i] == SY_BALANCE_GONE) continue;
            n[holder[i]]++;
            if (r->problem.hold[at] == BALANCE_FREE) sum[holder[i]] += input->load[at] / n_live;
        }
        /* What is held stays, and its shares are in the order of the input. */
        if (r->problem.hold[at] == BALANCE_FREE) continue;
        for (uint32_t i = input->offset[at]; i < input->offset[at + 1]; i++)
            if (input->holder[i] != SY_BALANCE_GONE)
                sum[input->holder[i]] += input->share[i] * input->load[at];
    }
}

static void print_devices(const balance_round *r)
{
    const uint32_t n = r->problem.input.n_devices;
    double *sum = calloc(2 * (size_t)n, sizeof(*sum));
    uint32_t *held = calloc(2 * (size_t)n, sizeof(*held));
    double total = 0.0;

    if (sum == NULL || held == NULL) goto out;
    sum_loads(sum, held, r, 0);
    sum_loads(sum + n, held + n, r, 1);
    for (uint32_t d = 0; d < n; d++) total += sum[n + d];
    printf("%-28s  %17s  %6s  %19s\n", "DEVICE", "EXPERTS", "SLOTS", "LOAD");
    for (uint32_t d = 0; d < n; d++) {
        char name[SY_NODE_BYTES + SY_DEVICE_BYTES];

        snprintf(name, sizeof(name), "%s/%s", r->problem.device[d].node,
                 r->problem.device[d].device);
        printf("%-28s  %6u -> %7u  %6u  %6.2f -> %7.2f %%\n", name, held[d], held[n + d],
               r->problem.input_device[d].slots, total > 0 ? 100 * sum[d] / total : 0.0,
               total > 0 ? 100 * sum[n + d] / total : 0.0);
    }
out:
    free(sum);
    free(held);
}

static void print_layers(const balance_round *r)
{
    const uint32_t n_layers = sy_grid_moe_layers(&r->problem.input.grid);
    uint32_t n_shown = 0;

    printf("\n%-6s  %-16s  %-8s  %-6s  %s\n", "LAYER", "MAX/MEAN", "POSSIBLE", "LOADS", "");
    for (uint32_t i = 0; i < r->plan.layers && n_shown < SHOWN_LAYERS_MAX; i++) {
        const sy_balance_layer *const l = &r->plan.layer[i];
        const double mean = l->mean > 0 ? l->mean : 1.0;

        if (l->verdict == SY_BALANCE_NO_EXPERTS) continue;
        n_shown++;
        printf("%-6u  %6.3f -> %6.3f  %8.3f  %6u  %s\n", i, l->before / mean, l->after / mean,
               l->bound / mean, l->n_loads, verdict_text(l->verdict));
    }
    if (n_shown < n_layers) printf("... and %u more layers\n", n_layers - n_shown);
}

/* "3/17", its value now and planned. */
typedef struct change_texts {
    char field[32];
    char before[SY_PLACEMENT_VALUE_MAX];
    const char *after; /* NULL: nothing is written */
} change_texts;

static void show_change(change_texts *out, const balance_round *r, const sy_balance_change *change)
{
    const sy_target_list *const list =
        sy_snapshot_targets(r->snapshot, change->layer, change->expert);

    sy_field_format(out->field, sizeof(out->field),
                    (sy_field){(int32_t)change->layer, (int32_t)change->expert});
    snprintf(out->before, sizeof(out->before), "nothing");
    if (list != NULL) sy_targets_format(out->before, sizeof(out->before), list);
    out->after = balance_is_written(&r->plan, change)
                     ? field_map_get(r->map, out->field, FIELD_AFTER)
                     : NULL;
}

static void print_changes(const balance_round *r)
{
    static change_texts texts;

    printf("\n");
    for (size_t i = 0; i < r->plan.n_changes && i < SHOWN_CHANGES_MAX; i++) {
        const sy_balance_change *const change = &r->plan.change[i];

        show_change(&texts, r, change);
        if (texts.after != NULL) {
            printf("%s: %s -> %s: %s\n", texts.field, texts.before, tool_shown(texts.after),
                   sy_balance_why_text(change->why));
        } else {
            printf("%s: %s: %s\n", texts.field, texts.before, sy_balance_why_text(change->why));
        }
    }
    if (r->plan.n_changes > SHOWN_CHANGES_MAX)
        printf("... and %zu more experts\n", r->plan.n_changes - SHOWN_CHANGES_MAX);
}

static void print_left_alone(const balance_round *r)
{
    for (size_t i = 0; i < r->problem.n_nodes; i++) {
        const balance_node *const node = &r->problem.node[i];

        if (!node->is_open)
            printf("node %s %s: %s\n", node->name, node->is_gone ? "is gone" : "takes no part",
                   node->why);
    }
    for (int hold = BALANCE_CANARY; hold <= BALANCE_CLOSED; hold++) {
        if (r->problem.n_held[hold] == 0) continue;
        printf("left alone, %zu: %s\n", r->problem.n_held[hold],
               balance_hold_text((balance_hold)hold));
    }
}

void balance_minimum_text(char *out, size_t cap, const balance_round *r)
{
    const uint32_t wanted = r->problem.min_replicas, in_force = r->plan.min_nodes;
    const char *const origin =
        r->problem.is_min_found ? "the placement's least, --min-replicas auto" : "--min-replicas";

    if (in_force < wanted) {
        snprintf(out, cap, "every expert on %u nodes or more: all there are, %u are wanted (%s)",
                 in_force, wanted, origin);
    } else if (in_force < 2) {
        snprintf(out, cap, "no minimum of nodes for an expert (%s)", origin);
    } else {
        snprintf(out, cap, "every expert on %u nodes or more (%s)", in_force, origin);
    }
}

void balance_print(const balance_round *r)
{
    char grid[TOOL_GRID_BYTES];
    char minimum[160];

    balance_minimum_text(minimum, sizeof(minimum), r);
    printf("model %s: %s on %u devices, %.0f rows\n", r->place.model,
           tool_grid_text(grid, &r->problem.input.grid), r->problem.input.n_devices, r->n_rows);
    printf("%s\n", minimum);
    print_devices(r);
    print_layers(r);
    if (r->plan.n_changes > 0) print_changes(r);
    printf("\n");
    print_left_alone(r);
    printf("%s: %s\n",
           r->n_fields == 0 ? "nothing moves"
           : r->is_applied  ? "written"
                            : "not written",
           r->why);
    if (r->is_applied) printf("history: %s\n", r->entry_id);
}

/* ---- JSON ---- */

static json_t *ratio_json(const sy_balance_ratio *ratio)
{
    return json_pack("{s:f, s:f, s:I, s:f}", "mean", ratio->mean, "worst", ratio->worst,
                     "worst_layer", (json_int_t)ratio->worst_layer, "whole", ratio->whole);
}

static json_t *changes_json(const balance_round *r)
{
    static change_texts texts;
    json_t *list = json_array();

    for (size_t i = 0; i < r->plan.n_changes; i++) {
        const sy_balance_change *const change = &r->plan.change[i];

        show_change(&texts, r, change);
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:o, s:I, s:I, s:f, s:s}", "field", texts.field, "before",
                            texts.before, "after",
                            texts.after != NULL ? json_string(texts.after) : json_null(), "loads",
                            (json_int_t)change->n_loads, "drops", (json_int_t)change->n_drops,
                            "rows", change->load, "why", sy_balance_why_text(change->why)));
    }
    return list;
}

static json_t *layers_json(const balance_round *r)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < r->plan.layers; i++) {
        const sy_balance_layer *const l = &r->plan.layer[i];
        const double mean = l->mean > 0 ? l->mean : 1.0;

        json_array_append_new(
            list, json_pack("{s:f, s:f, s:f, s:f, s:I, s:I, s:s}", "before", l->before / mean,
                            "after", l->after / mean, "possible", l->bound / mean, "better",
                            l->better / mean, "loads", (json_int_t)l->n_loads, "better_loads",
                            (json_int_t)l->need_loads, "why", verdict_text(l->verdict)));
    }
    return list;
}

static json_t *minimum_json(const balance_round *r)
{
    return json_pack("{s:I, s:I, s:b, s:I, s:I}", "nodes", (json_int_t)r->plan.min_nodes, "wanted",
                     (json_int_t)r->problem.min_replicas, "automatic", r->problem.is_min_found,
                     "short", (json_int_t)r->plan.n_short, "short_left",
                     (json_int_t)r->plan.n_short_left);
}

static json_t *closed_json(const balance_round *r)
{
    json_t *list = json_array();

    for (size_t i = 0; i < r->problem.n_nodes; i++) {
        const balance_node *const node = &r->problem.node[i];

        if (node->is_open) continue;
        json_array_append_new(list, json_pack("{s:s, s:b, s:o}", "node", node->name, "gone",
                                              node->is_gone, "why",
                                              tool_json_text(node->why, strlen(node->why))));
    }
    return list;
}

int balance_print_json(const balance_round *r, uint64_t number)
{
    const size_t *const held = r->problem.n_held;

    return tool_json_print_line(json_pack(
        "{s:I, s:I, s:o, s:f, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:s, s:o, "
        "s:{s:I, s:I, s:I}, s:o, s:o, s:o, s:o}",
        "round", (json_int_t)number, "at_us", (json_int_t)sy_clock_wall_us(), "model",
        tool_json_text(r->place.model, strlen(r->place.model)), "rows", r->n_rows, "before",
        ratio_json(&r->plan.before), "after", ratio_json(&r->plan.after), "fields",
        (json_int_t)r->n_fields, "loads", (json_int_t)r->plan.n_loads, "drops",
        (json_int_t)r->plan.n_drops, "load_bytes", (json_int_t)r->plan.load_bytes, "waiting",
        (json_int_t)r->problem.n_waiting, "lost", (json_int_t)r->plan.n_lost, "lost_left",
        (json_int_t)r->plan.n_lost_left, "applied", r->is_applied, "dry_run", r->options->dry_run,
        "entry", r->entry_id, "why", tool_json_text(r->why, strlen(r->why)), "left_alone", "canary",
        (json_int_t)held[BALANCE_CANARY], "refused", (json_int_t)held[BALANCE_REFUSED], "closed",
        (json_int_t)held[BALANCE_CLOSED], "min_replicas", minimum_json(r), "nodes_out",
        closed_json(r), "layers", layers_json(r), "changes", changes_json(r)));
}

int balance_print_json_nothing(uint64_t number, const char *why)
{
    return tool_json_print_line(json_pack("{s:I, s:I, s:b, s:o}", "round", (json_int_t)number,
                                          "at_us", (json_int_t)sy_clock_wall_us(), "applied", 0,
                                          "why", tool_json_text(why, strlen(why))));
}
