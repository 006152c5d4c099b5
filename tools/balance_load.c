/* balance_load.c - see the header. */
#include "balance_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "fact_json.h"
#include "sy_clock.h"

int balance_sample_add(balance_sample *sample, const char *name, const json_t *answer)
{
    const size_t n = (size_t)sample->layers * sample->experts;
    const json_t *const rows = json_object_get(answer, "rows");
    balance_counts *grown;
    balance_counts *counts;

    if (json_array_size(rows) != n || fact_count(answer, "layers") != sample->layers) return 0;
    grown = realloc(sample->item, (sample->n + 1) * sizeof(*grown));
    if (grown == NULL) return 0;
    sample->item = grown;
    counts = &grown[sample->n];
    memset(counts, 0, sizeof(*counts));
    counts->rows = calloc(n + 1, sizeof(*counts->rows));
    if (counts->rows == NULL) return 0;
    snprintf(counts->name, sizeof(counts->name), "%s", name);
    counts->since_us = fact_count(answer, "since_us");
    for (size_t i = 0; i < n; i++) {
        const json_int_t count = json_integer_value(json_array_get(rows, i));

        counts->rows[i] = count > 0 ? (uint64_t)count : 0;
    }
    sample->n++;
    return 1;
}

sy_status balance_sample_take(balance_sample *out, const cluster_facts *facts, const sy_grid *grid,
                              sy_error *err)
{
    memset(out, 0, sizeof(*out));
    out->layers = grid->layers;
    out->experts = grid->experts;
    out->at_us = sy_clock_wall_us();
    for (size_t i = 0; i < facts->n; i++) {
        const fact_process *const p = &facts->process[i];
        json_t *answer = NULL;

        if (p->kind != SY_MEMBER_AGGREGATOR) continue;
        if (fact_get(&answer, p->lease.http, "/load", err) == SY_OK)
            balance_sample_add(out, p->lease.name, answer);
        json_decref(answer);
    }
    sy_error_clear(err);
    return SY_OK;
}

void balance_sample_free(balance_sample *sample)
{
    for (size_t i = 0; i < sample->n; i++) free(sample->item[i].rows);
    free(sample->item);
    memset(sample, 0, sizeof(*sample));
}

static const balance_counts *find(const balance_sample *sample, const char *name)
{
    for (size_t i = 0; i < sample->n; i++)
        if (strcmp(sample->item[i].name, name) == 0) return &sample->item[i];
    return NULL;
}

double balance_sample_difference(double *rows, const balance_sample *before,
                                 const balance_sample *after)
{
    const size_t n = (size_t)after->layers * after->experts;
    double sum = 0.0;

    for (size_t k = 0; k < after->n; k++) {
        const balance_counts *const now = &after->item[k];
        const balance_counts *was = before != NULL ? find(before, now->name) : NULL;

        if (was != NULL && was->since_us != now->since_us) was = NULL; /* it has started anew */
        if (before != NULL && was == NULL && (int64_t)now->since_us < before->at_us) continue;
        for (size_t i = 0; i < n; i++) {
            const uint64_t less = was != NULL ? was->rows[i] : 0;
            const double more = now->rows[i] > less ? (double)(now->rows[i] - less) : 0.0;

            rows[i] += more;
            sum += more;
        }
    }
    return sum;
}
