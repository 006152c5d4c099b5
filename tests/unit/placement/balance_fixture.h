/* balance_fixture.h - a balancing problem that grows by calls, and what a plan for it must keep
 * whatever the numbers are. */
#ifndef BALANCE_FIXTURE_H
#define BALANCE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "balance_trace.h"
#include "sy_balance.h"

#define FIX_DEVICES_MAX 128
#define FIX_SHARD_BYTES 1000

typedef struct fixture {
    uint32_t layers, experts, n_devices;
    sy_balance_device device[FIX_DEVICES_MAX];
    double *load;
    uint8_t *pinned; /* NULL: none */
    uint32_t *offset, *holder;
    sy_balance_options options;
} fixture;

/* slots: of each device for each layer. */
static inline fixture fix_open(uint32_t layers, uint32_t experts, uint32_t n_devices,
                               uint32_t devices_a_node, uint32_t slots)
{
    fixture f = {.layers = layers, .experts = experts, .n_devices = n_devices};

    f.load = calloc((size_t)layers * experts, sizeof(*f.load));
    for (uint32_t d = 0; d < n_devices; d++)
        f.device[d] = (sy_balance_device){d / devices_a_node, slots * layers};
    f.options.replicas_max = n_devices;
    return f;
}

static inline void fix_close(fixture *f)
{
    free(f->load);
    free(f->pinned);
    free(f->offset);
    free(f->holder);
}

/* The default spread. */
static inline void fix_spread(fixture *f)
{
    const size_t n = (size_t)f->layers * f->experts;

    f->offset = calloc(n + 1, sizeof(*f->offset));
    f->holder = calloc(n, sizeof(*f->holder));
    for (uint32_t i = 0; i < n; i++) {
        f->offset[i + 1] = i + 1;
        f->holder[i] = (i % f->experts + i / f->experts) % f->n_devices;
    }
}

/* Each expert on two devices, one after the other. */
static inline void fix_spread_twice(fixture *f)
{
    const size_t n = (size_t)f->layers * f->experts;

    f->offset = calloc(n + 1, sizeof(*f->offset));
    f->holder = calloc(2 * n, sizeof(*f->holder));
    for (uint32_t i = 0; i < n; i++) {
        f->offset[i + 1] = 2 * (i + 1);
        f->holder[2 * i] = (i % f->experts + i / f->experts) % f->n_devices;
        f->holder[2 * i + 1] = (f->holder[2 * i] + 1) % f->n_devices;
    }
}

/* "0,1 2 - x": the holders of one expert after another; "-": none, "x": one that is gone. */
static inline void fix_place(fixture *f, const char *text)
{
    const size_t n = (size_t)f->layers * f->experts;
    uint32_t at = 0;

    f->offset = calloc(n + 1, sizeof(*f->offset));
    f->holder = calloc(strlen(text) + 1, sizeof(*f->holder));
    for (size_t i = 0; i < n; i++) {
        text += strspn(text, " ");
        for (; *text != '\0' && *text != ' '; text += strspn(text, ",")) {
            if (*text == 'x') {
                f->holder[at++] = SY_BALANCE_GONE;
                text++;
            } else if (*text == '-') {
                text++;
            } else {
                f->holder[at++] = (uint32_t)strtoul(text, (char **)(uintptr_t)&text, 10);
            }
        }
        f->offset[i + 1] = at;
    }
}

static inline sy_balance_input fix_input(const fixture *f)
{
    return (sy_balance_input){.grid = {.layers = f->layers, .experts = f->experts},
                              .n_devices = f->n_devices,
                              .device = f->device,
                              .load = f->load,
                              .offset = f->offset,
                              .holder = f->holder,
                              .pinned = f->pinned,
                              .shard_bytes = FIX_SHARD_BYTES};
}

static inline sy_balance_plan fix_plan(const fixture *f)
{
    const sy_balance_input input = fix_input(f);
    sy_balance_plan plan;
    sy_error err;

    sy_error_clear(&err);
    if (sy_balance(&plan, &input, &f->options, &err) != SY_OK) fail_msg("%s", err.message);
    return plan;
}

/* The plan is what there is now; plan is freed. */
static inline void fix_apply(fixture *f, sy_balance_plan *plan)
{
    free(f->offset);
    free(f->holder);
    f->offset = plan->offset;
    f->holder = plan->holder;
    plan->offset = plan->holder = NULL;
    sy_balance_plan_free(plan);
}

/* "0,1 2": the holders of one layer's experts. */
static inline const char *fix_show(const sy_balance_plan *plan, uint32_t layer)
{
    static char text[4096];
    size_t len = 0;

    for (size_t at = (size_t)layer * plan->experts; at < (layer + 1) * (size_t)plan->experts;
         at++) {
        const uint32_t begin = plan->offset[at];

        if (begin == plan->offset[at + 1])
            len += (size_t)snprintf(text + len, sizeof(text) - len, "-");
        for (uint32_t i = begin; i < plan->offset[at + 1]; i++) {
            len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%u", i > begin ? "," : "",
                                    plan->holder[i]);
        }
        len += (size_t)snprintf(text + len, sizeof(text) - len, " ");
    }
    text[len > 0 ? len - 1 : 0] = '\0';
    return text;
}

/* The busiest device's load of one layer, worked out from the holders alone. */
static inline double fix_max(const fixture *f, const uint32_t *offset, const uint32_t *holder,
                             uint32_t layer)
{
    double sum[FIX_DEVICES_MAX] = {0};
    double max = 0.0;

    for (size_t at = (size_t)layer * f->experts; at < (layer + 1) * (size_t)f->experts; at++) {
        for (uint32_t i = offset[at]; i < offset[at + 1]; i++)
            if (holder[i] != SY_BALANCE_GONE)
                sum[holder[i]] += f->load[at] / (offset[at + 1] - offset[at]);
    }
    for (uint32_t d = 0; d < f->n_devices; d++)
        if (sum[d] > max) max = sum[d];
    return max;
}

#endif
