/* agg_policies.c - see agg_policies.h. */
#include "agg_policies.h"

#include <stdio.h>
#include <string.h>

static char *next(agg_policies *out)
{
    return out->text[out->n++];
}

void agg_policies_list(agg_policies *out, uint32_t experts_per_token, uint32_t top_k,
                       uint32_t degraded_rows, uint32_t other_weights_rows)
{
    const size_t size = sizeof(out->text[0]);

    out->n = 0;
    for (uint32_t i = 0; i < AGG_POLICIES_MAX; i++) out->list[i] = out->text[i];
    if (experts_per_token != 0 && experts_per_token < top_k)
        snprintf(next(out), size, "experts_per_token=%u", experts_per_token);
    if (degraded_rows > 0) snprintf(next(out), size, "degraded: %u rows", degraded_rows);
    if (other_weights_rows > 0)
        snprintf(next(out), size, "other weights: %u rows", other_weights_rows);
}

void agg_policies_add_precision(agg_policies *list, sy_precision trunk, sy_precision experts)
{
    list->n += sy_precision_policies(&list->text[list->n], "", trunk);
    if (trunk.weights == experts.weights && trunk.activations == experts.activations) return;
    if (sy_weights_are_told(trunk.weights) && !sy_weights_are_told(experts.weights))
        snprintf(next(list), sizeof(list->text[0]), "expert_weights=%s",
                 sy_weights_name(experts.weights));
    if (trunk.activations != SY_ACT_F32 && experts.activations == SY_ACT_F32)
        snprintf(next(list), sizeof(list->text[0]), "expert_activations=%s",
                 sy_activations_name(experts.activations));
    list->n += sy_precision_policies(&list->text[list->n], "expert_", experts);
}

void agg_policies_add_arithmetic(agg_policies *list, const char *arithmetic, sy_precision experts)
{
    if (strcmp(arithmetic, sy_arithmetic_name(experts.activations)) == 0) return;
    snprintf(next(list), sizeof(list->text[0]), "arithmetic=%.31s", arithmetic);
}

void agg_policies_add_trunk(agg_policies *list, const char *arithmetic, sy_precision trunk)
{
    if (strcmp(arithmetic, sy_arithmetic_name(trunk.activations)) == 0) return;
    snprintf(next(list), sizeof(list->text[0]), "trunk_arithmetic=%.30s", arithmetic);
}

void agg_policies_add_wire_rows(agg_policies *list, sy_dtype wire_rows)
{
    if (wire_rows == SY_BF16)
        snprintf(next(list), sizeof(list->text[0]), "wire_rows=%s", sy_dtype_name(wire_rows));
}
