/* bench_balance.c - how even sy_balance makes devices, how many shards that moves, and how long it
 * takes, beside DeepSeek's EPLB on the same loads. One JSON object a line. It begins with experts
 * spread evenly, as `switchyard placement init` leaves them, and ends after the hot spots have
 * drifted once. Columns: max/mean device load, mean over layers. */
#include <stdio.h>
#include <stdlib.h>

#include "balance_trace.h"
#include "eplb_oracle.h"
#include "sy_balance.h"
#include "sy_clock.h"

#define TRACES SY_SOURCE_DIR "/tests/unit/placement/traces/"

typedef struct setting {
    uint32_t layers, experts, devices, slots, devices_a_node; /* slots: of a layer on a device */
} setting;

typedef struct placement {
    uint32_t *offset, *holder;
} placement;

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "bench_balance: error: %s\n", what);
    exit(1);
}

static placement spread(const setting *s)
{
    const size_t n = (size_t)s->layers * s->experts;
    placement p = {calloc(n + 1, sizeof(*p.offset)), calloc(n, sizeof(*p.holder))};

    if (p.offset == NULL || p.holder == NULL) give_up("no memory");
    for (uint32_t i = 0; i < n; i++) {
        p.offset[i + 1] = i + 1;
        p.holder[i] = (i % s->experts + i / s->experts) % s->devices;
    }
    return p;
}

static sy_balance_plan plan_for(const setting *s, const balance_trace *trace, const placement *now,
                                double min_gain, int64_t *took_us)
{
    sy_balance_device *device = calloc(s->devices, sizeof(*device));
    const sy_balance_options options = {.replicas_max = s->devices,
                                        .min_gain = min_gain,
                                        .good_enough = min_gain > 0.0 ? 1.05 : 0.0};
    const sy_balance_input input = {.grid = {.layers = s->layers, .experts = s->experts},
                                    .n_devices = s->devices,
                                    .device = device,
                                    .load = trace->load,
                                    .offset = now->offset,
                                    .holder = now->holder,
                                    .shard_bytes = 1};
    const int64_t began_us = sy_clock_us();
    sy_balance_plan plan;
    sy_error err;

    if (device == NULL) give_up("no memory");
    for (uint32_t d = 0; d < s->devices; d++)
        device[d] = (sy_balance_device){d / s->devices_a_node, s->slots * s->layers};
    if (sy_balance(&plan, &input, &options, &err) != SY_OK) give_up(err.message);
    *took_us = sy_clock_us() - began_us;
    free(device);
    return plan;
}

typedef struct marks { /* mean over layers of max/mean */
    double global, hierarchical, bound;
} marks;

static marks ask_eplb(const setting *s, const balance_trace *trace, const sy_balance_plan *plan)
{
    const uint32_t n_slots = s->slots * s->devices, n_nodes = s->devices / s->devices_a_node;
    marks m = {0};

    for (uint32_t layer = 0; layer < s->layers; layer++) {
        const double *const load = trace->load + (size_t)layer * s->experts;
        const double mean = plan->layer[layer].mean * s->layers;

        m.global += eplb_global(load, s->experts, s->devices, n_slots) / mean;
        m.hierarchical +=
            eplb_hierarchical(load, s->experts, s->devices, n_slots, n_nodes, n_nodes) / mean;
        m.bound += plan->layer[layer].bound / mean;
    }
    return m;
}

static void measure(const setting *s, balance_trace *trace)
{
    placement now = spread(s);
    int64_t took_us, lazy_us;

    for (int is_later = 0; is_later < 2; is_later++) {
        sy_balance_plan best = plan_for(s, trace, &now, 0.0, &took_us);
        sy_balance_plan lazy = plan_for(s, trace, &now, 0.02, &lazy_us);
        const marks eplb = ask_eplb(s, trace, &best);

        printf("{\"trace\": \"%s%s\", \"layers\": %u, \"experts\": %u, \"devices\": %u, "
               "\"slots\": %u, \"before\": %.4f, \"eplb_global\": %.4f, \"eplb_hierarchical\": "
               "%.4f, \"bound\": %.4f, \"ours\": %.4f, \"worst_layer\": %.4f, \"shards_moved\": "
               "%llu, \"lazy\": %.4f, \"lazy_shards_moved\": %llu, \"ms\": %.1f}\n",
               trace->name, is_later ? ", drifted" : "", s->layers, s->experts, s->devices,
               s->slots, best.before.mean, eplb.global, eplb.hierarchical, eplb.bound,
               best.after.mean, best.after.worst, (unsigned long long)best.n_loads, lazy.after.mean,
               (unsigned long long)lazy.n_loads, (double)took_us / 1000.0);
        fflush(stdout);
        sy_balance_plan_free(&best);
        free(now.offset);
        free(now.holder);
        now = (placement){lazy.offset, lazy.holder};
        lazy.offset = lazy.holder = NULL;
        sy_balance_plan_free(&lazy);
        balance_drift(trace, 7);
    }
    free(now.offset);
    free(now.holder);
    free(trace->load);
}

int main(void)
{
    static const struct {
        balance_shape shape;
        double parameter;
    } shapes[] = {{BALANCE_UNIFORM, 0},     {BALANCE_ZIPF, 0.5},      {BALANCE_ZIPF, 0.8},
                  {BALANCE_ZIPF, 1.0},      {BALANCE_ZIPF, 1.2},      {BALANCE_LOGNORMAL, 0.5},
                  {BALANCE_LOGNORMAL, 1.0}, {BALANCE_LOGNORMAL, 1.5}, {BALANCE_HOT, 3}};
    static const setting settings[] = {
        {8, 64, 8, 9, 2}, {8, 128, 16, 9, 4}, {61, 256, 32, 9, 8}, {61, 256, 64, 5, 8}};
    static const char *const recorded[] = {"trio-code", "trio-facts", "trio-scripture"};
    static const setting small = {4, 16, 4, 5, 1};

    for (size_t i = 0; i < SY_COUNT_OF(recorded); i++) {
        char path[512];
        balance_trace trace;

        snprintf(path, sizeof(path), TRACES "%s.txt", recorded[i]);
        trace = balance_read(path);
        if (trace.load == NULL) give_up(path);
        measure(&small, &trace);
    }
    for (size_t k = 0; k < SY_COUNT_OF(settings); k++) {
        for (size_t i = 0; i < SY_COUNT_OF(shapes); i++) {
            balance_trace trace = balance_make(shapes[i].shape, shapes[i].parameter,
                                               settings[k].layers, settings[k].experts, i + 1);
            measure(&settings[k], &trace);
        }
    }
    return 0;
}
