/* placement_show.c - see the header. */
#include "placement_show.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "tool_placement.h"
#include "tool_report.h"
#include "tool_text.h"

#define LISTS_MAX 62 /* distinct lists of targets that the table has a letter for */

/* ---- JSON ---- */

static json_t *targets_json(const sy_target_list *list)
{
    json_t *array = json_array();

    for (uint32_t i = 0; list != NULL && i < list->n; i++) {
        const sy_target_list one = {.n = 1, .target = {list->target[i]}};
        char text[SY_NODE_BYTES + SY_DEVICE_BYTES + 16];

        sy_targets_format(text, sizeof(text), &one);
        json_array_append_new(array, json_string(text));
    }
    return array;
}

/* 0 for a layer that has none: it is shown as an empty one. */
static uint32_t experts_of(const sy_snapshot *snapshot, uint32_t layer)
{
    return sy_grid_has(sy_snapshot_grid(snapshot), layer) ? sy_snapshot_experts(snapshot) : 0;
}

static json_t *resolved_json(const sy_snapshot *snapshot)
{
    json_t *layers = json_array();

    for (uint32_t layer = 0; layer < sy_snapshot_layers(snapshot); layer++) {
        json_t *experts = json_array();
        const uint32_t n_experts = experts_of(snapshot, layer);

        for (uint32_t expert = 0; expert < n_experts; expert++) {
            json_array_append_new(experts,
                                  targets_json(sy_snapshot_targets(snapshot, layer, expert)));
        }
        json_array_append_new(layers, experts);
    }
    return layers;
}

static json_t *fields_json(const tool_hash *hash)
{
    json_t *fields = json_object();

    for (size_t i = 0; i < hash->n; i++) {
        const sy_placement_entry *e = &hash->entry[i];
        json_t *name = tool_json_text(e->field, e->field_len);

        json_object_set_new(fields, json_string_value(name),
                            tool_json_text(e->value, e->value_len));
        json_decref(name);
    }
    return fields;
}

static json_t *refused_json(const sy_snapshot *snapshot)
{
    json_t *list = json_array();

    for (size_t i = 0; i < sy_snapshot_refusals(snapshot); i++) {
        const sy_refusal *r = sy_snapshot_refusal_at(snapshot, i);

        json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "field", r->field, "value",
                                              r->value, "why", r->why));
    }
    return list;
}

int placement_show_json(const char *model, const sy_snapshot *snapshot, const tool_hash *hash,
                        int is_line)
{
    char moe_layers[SY_GRID_TEXT_BYTES];
    char text[20];

    sy_grid_format(moe_layers, sizeof(moe_layers), sy_snapshot_grid(snapshot));
    snprintf(text, sizeof(text), "%016llx", (unsigned long long)sy_snapshot_hash(snapshot));
    json_t *value = json_pack(
        "{s:o, s:I, s:I, s:s, s:s, s:b, s:o, s:o, s:o}", "model",
        tool_json_text(model, strlen(model)), "layers", (json_int_t)sy_snapshot_layers(snapshot),
        "experts", (json_int_t)sy_snapshot_experts(snapshot), "moe_layers", moe_layers, "hash",
        text, "complete", sy_snapshot_complete(snapshot), "fields", fields_json(hash), "resolved",
        resolved_json(snapshot), "refused", refused_json(snapshot));

    return is_line ? tool_json_print_line(value) : tool_json_print(value);
}

/* ---- text ---- */

static void show_layer(const sy_snapshot *snapshot, uint32_t layer)
{
    char text[SY_PLACEMENT_VALUE_MAX];

    printf("\nEXPERT  TARGETS OF LAYER %u\n", layer);
    for (uint32_t expert = 0; expert < sy_snapshot_experts(snapshot); expert++) {
        const sy_target_list *list = sy_snapshot_targets(snapshot, layer, expert);

        if (list != NULL) sy_targets_format(text, sizeof(text), list);
        printf("%6u  %s\n", expert, list != NULL ? text : "none");
    }
}

/* A letter for each distinct list of targets, so that a table of any model fits a terminal. */
typedef struct legend {
    size_t n;
    char text[LISTS_MAX][SY_PLACEMENT_VALUE_MAX];
    size_t n_experts[LISTS_MAX];
    size_t n_without_letter;
} legend;

static const char letters[LISTS_MAX + 1] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

static char take_letter(legend *l, const sy_target_list *list)
{
    char text[SY_PLACEMENT_VALUE_MAX];
    size_t i = 0;

    if (list == NULL) return '-';
    sy_targets_format(text, sizeof(text), list);
    while (i < l->n && strcmp(l->text[i], text) != 0) i++;
    if (i == LISTS_MAX) {
        l->n_without_letter++;
        return '*';
    }
    if (i == l->n) {
        snprintf(l->text[i], sizeof(l->text[i]), "%s", text);
        l->n++;
    }
    l->n_experts[i]++;
    return letters[i];
}

static void show_table(const sy_snapshot *snapshot)
{
    static legend l;

    memset(&l, 0, sizeof(l));
    printf("\nLAYER ");
    for (uint32_t layer = 0; layer < sy_snapshot_layers(snapshot); layer++)
        if (experts_of(snapshot, layer) > 0) printf(" %3u", layer);
    printf("\nEXPERT\n");
    for (uint32_t expert = 0; expert < sy_snapshot_experts(snapshot); expert++) {
        printf("%6u", expert);
        for (uint32_t layer = 0; layer < sy_snapshot_layers(snapshot); layer++) {
            if (experts_of(snapshot, layer) == 0) continue;
            printf("   %c", take_letter(&l, sy_snapshot_targets(snapshot, layer, expert)));
        }
        printf("\n");
    }
    printf("\n");
    for (size_t i = 0; i < l.n; i++) {
        printf("%c  %s  (%zu experts)\n", letters[i], l.text[i], l.n_experts[i]);
    }
    if (l.n_without_letter > 0) {
        printf("*  others: --layer L shows them  (%zu experts)\n", l.n_without_letter);
    }
}

static void show_refusals(const sy_snapshot *snapshot)
{
    const size_t n = sy_snapshot_refusals(snapshot);

    if (n > 0) printf("\n%zu fields are refused:\n", n);
    for (size_t i = 0; i < n; i++) {
        const sy_refusal *r = sy_snapshot_refusal_at(snapshot, i);

        printf("  %s = '%s': %s\n", r->field, r->value, r->why);
    }
}

sy_status placement_show_text(const char *model, const sy_snapshot *snapshot, int64_t only_layer,
                              sy_error *err)
{
    const sy_grid *grid = sy_snapshot_grid(snapshot);
    char text[TOOL_GRID_BYTES];
    uint32_t layer;
    uint32_t expert;
    const size_t n_missing = sy_snapshot_missing(snapshot, &layer, &expert);
    sy_status st = SY_OK;

    if (only_layer >= (int64_t)sy_snapshot_layers(snapshot)) {
        return sy_error_set(err, SY_EINVAL, "--layer %lld: the model has layers 0 to %u",
                            (long long)only_layer, sy_snapshot_layers(snapshot) - 1);
    }
    if (only_layer >= 0) SY_TRY(sy_grid_check(grid, (uint32_t)only_layer, err));
    printf("model %s: %s, hash %016llx\n", tool_shown(model), tool_grid_text(text, grid),
           (unsigned long long)sy_snapshot_hash(snapshot));
    if (n_missing > 0) {
        printf("%zu experts have no target, the first is %u/%u\n", n_missing, layer, expert);
    }
    if (only_layer >= 0) {
        show_layer(snapshot, (uint32_t)only_layer);
    } else {
        show_table(snapshot);
    }
    show_refusals(snapshot);
out:
    return st;
}
