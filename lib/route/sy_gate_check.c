/* sy_gate_check.c - what a description of a gate may ask for. Past this check the choice itself
 * asserts; so whatever a configuration can say wrongly is refused here. */
#include <math.h>

#include "sy_route.h"

static sy_status check_numbers(const sy_gate_desc *gate, sy_error *err)
{
    if (!isfinite(gate->scale) || !(gate->scale > 0.0f)) {
        return sy_error_set(err, SY_EINVAL,
                            "the gate scales weights by %g: it must be above 0, and 1 for none",
                            (double)gate->scale);
    }
    if (!isfinite(gate->norm_epsilon) || gate->norm_epsilon < 0.0f || !isfinite(gate->norm_min) ||
        gate->norm_min < 0.0f) {
        return sy_error_set(err, SY_EINVAL,
                            "the gate divides by max(sum + %g, %g): both numbers must be 0 or more",
                            (double)gate->norm_epsilon, (double)gate->norm_min);
    }
    if (!isfinite(gate->sparse_epsilon) || gate->sparse_epsilon < 0.0f) {
        return sy_error_set(err, SY_EINVAL,
                            "the gate's near-ties are within %g: it must be 0 or more",
                            (double)gate->sparse_epsilon);
    }
    return SY_OK;
}

/* n_group >= 1. */
static sy_status check_groups(const sy_gate_desc *gate, uint32_t n_experts, uint32_t k,
                              sy_error *err)
{
    uint32_t group_size;

    if (gate->n_group > SY_GATE_GROUPS_MAX || n_experts % gate->n_group != 0) {
        return sy_error_set(err, SY_EINVAL,
                            "%u experts do not come in %u groups: n_group must divide them and be "
                            "at most %u",
                            n_experts, gate->n_group, SY_GATE_GROUPS_MAX);
    }
    group_size = n_experts / gate->n_group;
    if (gate->topk_group < 1 || gate->topk_group > gate->n_group) {
        return sy_error_set(err, SY_EINVAL, "topk_group is %u: it must be 1 to n_group, %u",
                            gate->topk_group, gate->n_group);
    }
    if (gate->topk_group * group_size < k) {
        return sy_error_set(err, SY_EINVAL,
                            "%u groups of %u experts are fewer than the %u that a token needs",
                            gate->topk_group, group_size, k);
    }
    if (gate->group_best < 1 || gate->group_best > SY_MIN(SY_GATE_GROUP_BEST_MAX, group_size)) {
        return sy_error_set(err, SY_EINVAL,
                            "a group's score cannot be the sum of %u: it must be 1 to %u, and a "
                            "group has %u experts",
                            gate->group_best, SY_GATE_GROUP_BEST_MAX, group_size);
    }
    return SY_OK;
}

sy_status sy_gate_check(const sy_gate_desc *gate, uint32_t n_experts, uint32_t k, sy_error *err)
{
    sy_status st;

    if (n_experts < 1 || n_experts > SY_EXPERTS_MAX || k < 1 || k > n_experts) {
        return sy_error_set(err, SY_EINVAL,
                            "cannot route to %u of %u experts: there may be 1 to %u, and a token "
                            "takes 1 to all of them",
                            k, n_experts, SY_EXPERTS_MAX);
    }
    switch (gate->score) {
    case SY_GATE_SOFTMAX:
    case SY_GATE_SIGMOID:
    case SY_GATE_SIGMOID_CHOSEN:
    case SY_GATE_SOFTMAX_CHOSEN: break;
    case SY_GATE_SPARSEMIXER:
        if (k <= 2 && gate->n_group <= 1) break;
        return sy_error_set(err, SY_EINVAL,
                            "SparseMixer is defined for 1 or 2 experts a token without groups, not "
                            "for %u in %u groups",
                            k, gate->n_group);
    default: return sy_error_set(err, SY_EINVAL, "there is no gate of kind %d", (int)gate->score);
    }
    if (gate->scales_input && k != 1) {
        return sy_error_set(err, SY_EINVAL,
                            "the gate scales the input of an expert: a token takes 1, not %u", k);
    }
    SY_TRY(check_numbers(gate, err));
    if (gate->n_group > 0) {
        SY_TRY(check_groups(gate, n_experts, k, err));
    } else if (gate->topk_group > 0) {
        st = sy_error_set(err, SY_EINVAL, "topk_group is %u, but n_group is missing",
                          gate->topk_group);
    }
out:
    return st;
}
