/* inspect_fidelity_print.c - the measured differences as a table and as JSON. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "inspect_fidelity.h"
#include "sy_precision_text.h"
#include "tool_print.h"
#include "tool_report.h"

static void print_row(const inspect_fidelity_row *row)
{
    const fidelity_diff *d = &row->diff;

    if (row->error.status != SY_OK) {
        printf("  %-17s not measured: %s\n", row->name, row->error.message);
        return;
    }
    printf("  %-17s %11.3g %9.3g %9.3g %9.3g %8.1f%% %7.1f%%\n", row->name, d->relative_max,
           d->absolute_mean, d->kl_mean_nats, d->kl_max_nats, 100 * fidelity_diff_same_argmax(d),
           100 * fidelity_diff_same_experts(d));
}

void inspect_fidelity_print(const inspect_fidelity *f)
{
    char size[TOOL_SIZE_BYTES];

    printf("\nfidelity       logits at %" PRIu32 " positions, %" PRIu32 " prompts of %" PRIu32
           " random tokens, against the model as stored; %s of memory\n",
           f->n_prompts * f->n_tokens, f->n_prompts, f->n_tokens, tool_size(size, f->needed_bytes));
    printf("  %-17s %11s %9s %9s %9s %9s %8s\n", "", "max |d| /", "mean |d|", "mean KL", "max KL",
           "same best", "same");
    printf("  %-17s %11s %9s %9s %9s %9s %8s\n", "", "max |logit|", "logits", "nats", "nats",
           "token", "experts");
    for (size_t i = 0; i < f->n_rows; i++) print_row(&f->row[i]);
    for (size_t i = 0; i < f->n_notes; i++) printf("  %s\n", f->note[i]);
}

static json_t *precision_json(sy_precision p)
{
    return json_pack("{s:s,s:s}", "weights", sy_weights_name(p.weights), "activations",
                     sy_activations_name(p.activations));
}

static json_t *row_json(const inspect_fidelity_row *row)
{
    const fidelity_diff *d = &row->diff;
    json_t *told = json_pack("{s:s,s:o,s:o}", "name", row->name, "trunk",
                             precision_json(row->trunk), "experts", precision_json(row->experts));

    if (row->error.status != SY_OK) {
        json_object_set_new(told, "error",
                            tool_json_text(row->error.message, strlen(row->error.message)));
        return told;
    }
    json_object_set_new(told, "max_relative", json_real(d->relative_max));
    json_object_set_new(told, "mean_absolute", json_real(d->absolute_mean));
    json_object_set_new(told, "kl_mean_nats", json_real(d->kl_mean_nats));
    json_object_set_new(told, "kl_max_nats", json_real(d->kl_max_nats));
    json_object_set_new(told, "same_argmax", json_real(fidelity_diff_same_argmax(d)));
    json_object_set_new(told, "same_experts", json_real(fidelity_diff_same_experts(d)));
    return told;
}

json_t *inspect_fidelity_json(const inspect_fidelity *f)
{
    json_t *rows = json_array(), *notes = json_array();

    for (size_t i = 0; i < f->n_rows; i++) json_array_append_new(rows, row_json(&f->row[i]));
    for (size_t i = 0; i < f->n_notes; i++) json_array_append_new(notes, json_string(f->note[i]));
    return json_pack("{s:I,s:I,s:I,s:o,s:o}", "prompts", (json_int_t)f->n_prompts, "tokens",
                     (json_int_t)f->n_tokens, "needed_bytes", (json_int_t)f->needed_bytes, "rows",
                     rows, "notes", notes);
}
