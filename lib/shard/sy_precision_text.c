/* sy_precision_text.c - see sy_precision_text.h. */
#include "sy_precision_text.h"

#include <stdio.h>

#include "sy_metrics.h"

const char *sy_weights_name(sy_dtype weights)
{
    return weights == SY_DTYPE_NONE ? "as-stored" : sy_dtype_name(weights);
}

const char *sy_activations_name(sy_activations activations)
{
    switch (activations) {
    case SY_ACT_Q8: return "q8";
    case SY_ACT_BF16: return "bf16";
    case SY_ACT_F32: break;
    }
    return "f32";
}

int sy_weights_are_told(sy_dtype weights)
{
    return sy_dtype_is_quant(weights) || sy_dtype_is_encoded(weights);
}

uint32_t sy_precision_policies(char (*out)[SY_PRECISION_POLICY_BYTES], const char *prefix,
                               sy_precision precision)
{
    uint32_t n = 0;

    if (sy_weights_are_told(precision.weights))
        snprintf(out[n++], SY_PRECISION_POLICY_BYTES, "%sweights=%s", prefix,
                 sy_weights_name(precision.weights));
    if (precision.activations != SY_ACT_F32)
        snprintf(out[n++], SY_PRECISION_POLICY_BYTES, "%sactivations=%s", prefix,
                 sy_activations_name(precision.activations));
    return n;
}

void sy_precision_metric(const char *name, sy_precision precision)
{
    char labels[64];

    snprintf(labels, sizeof(labels), "weights=\"%s\",activations=\"%s\"",
             sy_weights_name(precision.weights), sy_activations_name(precision.activations));
    sy_metric_set(
        sy_metric_gauge(name, "How weights are held, and rows multiplied with them", labels), 1);
}
