/* sy_config_gate.c - how the gate of a model chooses and weighs: the family's own rules, and what
 * its configuration may say about them. */
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sy_config_read.h"
#include "sy_json_load.h"

static sy_status read_renormalise(const config_reader *in, sy_gate_desc *gate)
{
    const sy_family *family = in->family;
    int renormalise = family->renormalise;
    sy_status st;

    SY_TRY(config_read_bool(&renormalise, in,
                            family->renormalise_key != NULL ? family->renormalise_key
                                                            : "norm_topk_prob"));
    if (family->renormalise_key == NULL && renormalise != family->renormalise)
        return sy_error_set(in->err, SY_EINVAL, "norm_topk_prob is %s, but %s always has it %s",
                            renormalise ? "true" : "false", family->name,
                            family->renormalise ? "true" : "false");
    gate->renormalise = renormalise;
out:
    return st;
}

/* DeepSeek-V2's method says whether it has groups; the others have them where there is more than
 * one. What a file leaves out is as the family's own code has it. */
static sy_status read_groups(const config_reader *in, sy_gate_desc *gate)
{
    const json_t *method = config_member(in->root, "topk_method");
    const json_t *groups = config_member(in->root, "n_group");
    const json_t *chosen = config_member(in->root, "topk_group");
    const int is_greedy =
        method == NULL ? gate->group_best == 1 : strcmp(json_string_value(method), "greedy") == 0;
    sy_status st = SY_OK;

    if (!(in->family->reads & SY_READS_GROUPS) || is_greedy) {
        gate->n_group = 0;
    } else if (groups != NULL) {
        SY_TRY(config_check_uint(&gate->n_group, in, "n_group", groups, 1, SY_GATE_GROUPS_MAX));
    } else if (gate->group_best == 1) {
        return sy_error_set(in->err, SY_EINVAL,
                            "n_group is missing, which topk_method \"%.64s\" needs",
                            json_string_value(method));
    }
    if (gate->n_group <= 1)
        gate->group_best = gate->n_group = gate->topk_group = 0;
    else if (chosen != NULL || gate->topk_group == 0)
        SY_TRY(
            config_check_uint(&gate->topk_group, in, "topk_group", chosen, 1, SY_GATE_GROUPS_MAX));
out:
    return st;
}

static sy_status check_groups(const config_reader *in, const sy_model_desc *desc)
{
    const sy_gate_desc *gate = &desc->gate;

    if (gate->n_group == 0) return SY_OK;
    if (desc->n_experts % gate->n_group != 0)
        return sy_error_set(in->err, SY_EINVAL,
                            "n_group is %" PRIu32 ", which does not divide the %" PRIu32 " experts",
                            gate->n_group, desc->n_experts);
    if (gate->topk_group > gate->n_group ||
        gate->topk_group * (desc->n_experts / gate->n_group) < desc->top_k)
        return sy_error_set(in->err, SY_EINVAL,
                            "topk_group is %" PRIu32 " of %" PRIu32 " groups, which have %" PRIu32
                            " experts each: %" PRIu32 " experts cannot be chosen",
                            gate->topk_group, gate->n_group, desc->n_experts / gate->n_group,
                            desc->top_k);
    return SY_OK;
}

sy_status config_read_gate(const config_reader *in, sy_model_desc *desc)
{
    sy_gate_desc *gate = &desc->gate;
    sy_status st;

    *gate = in->family->gate;
    SY_TRY(read_renormalise(in, gate));
    SY_TRY(read_groups(in, gate));
    SY_TRY(check_groups(in, desc));
    if (in->family->reads & SY_READS_SCALE)
        SY_TRY(config_read_float(&gate->scale, in, "routed_scaling_factor",
                                 config_member(in->root, "routed_scaling_factor"), 1e6, 0));
    if (in->family->reads & SY_READS_JITTER)
        SY_TRY(config_read_float(&gate->sparse_epsilon, in, "router_jitter_noise",
                                 config_member(in->root, "router_jitter_noise"), 1.0, 0));
    if (gate->norm_min > 0.0f)
        SY_TRY(config_read_float(&gate->norm_min, in, "moe_norm_min",
                                 config_member(in->root, "moe_norm_min"), 1.0, 0));
    if (gate->scales_input && desc->top_k != 1)
        return sy_error_set(in->err, SY_EINVAL,
                            "%s is %" PRIu32 ": %s scales the input of an expert, which is "
                            "supported for one expert a token",
                            in->family->top_k.alias[0], desc->top_k, in->family->name);
    if (gate->score == SY_GATE_SPARSEMIXER && desc->top_k > 2)
        return sy_error_set(in->err, SY_EINVAL, "%s is %" PRIu32 ": SparseMixer chooses 2 at most",
                            in->family->top_k.alias[0], desc->top_k);
out:
    return st;
}
