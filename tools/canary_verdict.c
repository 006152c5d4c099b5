/* canary_verdict.c - see the header. */
#include "canary_verdict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *canary_phase_name(canary_phase phase)
{
    static const char *const name[CANARY_N_PHASES] = {"load", "shadow", "share"};

    return phase < CANARY_N_PHASES ? name[phase] : "?";
}

static double average(uint64_t sum, uint64_t n)
{
    return n > 0 ? (double)sum / (double)n : 0;
}

/* What is bad in every phase. */
static int is_bad(char *why, size_t cap, const canary_limits *limits, const canary_counts *c)
{
    const double is = average(c->latency_us, c->messages);
    const double was = average(c->old_latency_us, c->old_messages);

    if (c->failed[0] != '\0') {
        snprintf(why, cap, "it could not be loaded: %s", c->failed);
    } else if (c->refused[0] != '\0') {
        snprintf(why, cap, "refused: %s", c->refused);
    } else if (c->errors > limits->max_errors) {
        snprintf(why, cap, "%llu errors, and %llu are allowed", (unsigned long long)c->errors,
                 (unsigned long long)limits->max_errors);
    } else if (c->differing_rows > 0 &&
               (limits->max_diff <= 0 || !(c->max_diff <= limits->max_diff))) {
        snprintf(why, cap, "%llu of %llu compared rows differ, by %g at most, and %g is allowed",
                 (unsigned long long)c->differing_rows, (unsigned long long)c->compared_rows,
                 c->max_diff, limits->max_diff);
    } else if (c->messages >= CANARY_MESSAGES_MIN && c->old_messages >= CANARY_MESSAGES_MIN &&
               limits->max_latency_ratio > 0 &&
               is > was * limits->max_latency_ratio + (double)limits->latency_slack_us) {
        snprintf(why, cap,
                 "it takes %.0f us a message, and the targets before %.0f us: more than "
                 "%.2f times as long",
                 is, was, limits->max_latency_ratio);
    } else {
        return 0;
    }
    return 1;
}

static canary_verdict judge_load(char *why, size_t cap, const canary_limits *limits,
                                 const canary_counts *c, int64_t elapsed_us)
{
    const char *const silent = c->silent;

    if (c->n_wanted > 0 && c->n_resident == c->n_wanted && c->n_silent == 0) return CANARY_NEXT;
    snprintf(why, cap,
             "after %.0f s it is resident and usable for %zu of %zu aggregators' "
             "targets%s%s",
             (double)elapsed_us / 1e6, c->n_resident, c->n_wanted, silent[0] != '\0' ? "; " : "",
             silent);
    return elapsed_us <= limits->patience_us ? CANARY_GOES_ON : CANARY_BACK;
}

static canary_verdict judge_rows(char *why, size_t cap, const char *what, uint64_t rows,
                                 const canary_limits *limits, int64_t since_us)
{
    if (rows >= limits->min_rows) return CANARY_NEXT;
    if (since_us > limits->patience_us) {
        snprintf(why, cap,
                 "%llu rows were %s in %.0f s, and %llu are needed to judge it: there is "
                 "too little traffic",
                 (unsigned long long)rows, what, (double)since_us / 1e6,
                 (unsigned long long)limits->min_rows);
        return CANARY_BACK;
    }
    snprintf(why, cap, "%llu of %llu rows were %s", (unsigned long long)rows,
             (unsigned long long)limits->min_rows, what);
    return CANARY_GOES_ON;
}

canary_verdict canary_judge(char *why, size_t cap, canary_phase phase, const canary_limits *limits,
                            const canary_counts *counts, int64_t elapsed_us)
{
    why[0] = '\0';
    if (is_bad(why, cap, limits, counts)) return CANARY_BACK;
    if (phase == CANARY_LOAD) return judge_load(why, cap, limits, counts, elapsed_us);
    if (counts->n_aggregators == 0) {
        snprintf(why, cap, "no aggregator answers: %s", counts->silent);
        return elapsed_us > limits->patience_us + limits->for_us ? CANARY_BACK : CANARY_GOES_ON;
    }
    if (phase == CANARY_SHADOW) {
        return judge_rows(why, cap, "compared", counts->compared_rows, limits, elapsed_us);
    }
    if (elapsed_us < limits->for_us) {
        snprintf(why, cap, "%.0f s of %.0f s, %llu rows, %llu errors", (double)elapsed_us / 1e6,
                 (double)limits->for_us / 1e6, (unsigned long long)counts->rows,
                 (unsigned long long)counts->errors);
        return CANARY_GOES_ON;
    }
    return judge_rows(why, cap, "computed by it", counts->rows, limits,
                      elapsed_us - limits->for_us);
}

int canary_duration(int64_t *out_us, const char *text)
{
    static const struct {
        const char *unit;
        double us;
    } units[] = {{"", 1e6}, {"s", 1e6}, {"ms", 1e3}, {"m", 60e6}, {"h", 3600e6}, {"d", 86400e6}};
    char *end = NULL;
    const double value = strtod(text, &end);

    if (end == text || !isfinite(value) || value < 0 || strchr("0123456789.", text[0]) == NULL) {
        return 0;
    }
    for (size_t i = 0; i < SY_COUNT_OF(units); i++) {
        if (strcmp(end, units[i].unit) != 0) continue;
        if (value * units[i].us > 366 * 86400e6) return 0;
        *out_us = (int64_t)(value * units[i].us);
        return 1;
    }
    return 0;
}
