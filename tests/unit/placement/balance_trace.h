/* balance_trace.h - loads of experts to balance: recorded ones, and made-up ones of the shapes that
 * routing has. Everything is a function of a seed. */
#ifndef BALANCE_TRACE_H
#define BALANCE_TRACE_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_hash.h"

typedef struct balance_trace {
    char name[48];
    uint32_t layers, experts;
    double *load; /* [layers, experts] */
} balance_trace;

typedef enum balance_shape {
    BALANCE_UNIFORM,   /* all alike, give or take a tenth */
    BALANCE_ZIPF,      /* 1 / rank^parameter */
    BALANCE_LOGNORMAL, /* exp(parameter * gauss) */
    BALANCE_HOT        /* a uniform crowd, and `parameter` experts that are twenty times as hot */
} balance_shape;

static inline double balance_unit(uint64_t *state)
{
    return (double)(sy_splitmix64((*state)++) >> 11) * 0x1p-53;
}

static inline double balance_gauss(uint64_t *state)
{
    const double u = 1.0 - balance_unit(state), v = balance_unit(state);

    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

/* Each rank to some expert, another one in each layer. */
static inline void balance_shuffle(double *load, uint32_t n, uint64_t *state)
{
    for (uint32_t i = n - 1; i > 0; i--) {
        const uint32_t k = (uint32_t)(balance_unit(state) * (i + 1));
        const double kept = load[i];

        load[i] = load[k];
        load[k] = kept;
    }
}

static inline void balance_fill_layer(double *load, uint32_t n, balance_shape shape,
                                      double parameter, uint64_t *state)
{
    for (uint32_t i = 0; i < n; i++) {
        switch (shape) {
        case BALANCE_UNIFORM: load[i] = 0.9 + 0.2 * balance_unit(state); break;
        case BALANCE_ZIPF: load[i] = pow(i + 1.0, -parameter); break;
        case BALANCE_LOGNORMAL: load[i] = exp(parameter * balance_gauss(state)); break;
        case BALANCE_HOT:
            load[i] = (i < parameter ? 20.0 : 1.0) * (0.8 + 0.4 * balance_unit(state));
            break;
        }
        load[i] *= 1000.0;
    }
    balance_shuffle(load, n, state);
}

static inline balance_trace balance_make(balance_shape shape, double parameter, uint32_t layers,
                                         uint32_t experts, uint64_t seed)
{
    static const char *const names[] = {"uniform", "zipf", "lognormal", "hot"};
    balance_trace out = {.layers = layers, .experts = experts};
    uint64_t state = sy_splitmix64(seed);

    snprintf(out.name, sizeof(out.name), "%s-%g", names[shape], parameter);
    out.load = calloc((size_t)layers * experts, sizeof(*out.load));
    for (uint32_t layer = 0; layer < layers; layer++)
        balance_fill_layer(out.load + (size_t)layer * experts, experts, shape, parameter, &state);
    return out;
}

/* The same hot spots a while later: a tenth of the experts have changed places with others. */
static inline void balance_drift(balance_trace *trace, uint64_t seed)
{
    uint64_t state = sy_splitmix64(seed);

    for (uint32_t layer = 0; layer < trace->layers; layer++) {
        double *const load = trace->load + (size_t)layer * trace->experts;

        for (uint32_t i = 0; i < trace->experts / 10 + 1; i++) {
            const uint32_t a = (uint32_t)(balance_unit(&state) * trace->experts);
            const uint32_t b = (uint32_t)(balance_unit(&state) * trace->experts);
            const double kept = load[a];

            load[a] = load[b];
            load[b] = kept;
        }
    }
}

/* A recorded trace: a line for each layer, a number for each expert. load is NULL when it cannot be
 * read. */
static inline balance_trace balance_read(const char *path)
{
    balance_trace out = {0};
    FILE *file = fopen(path, "r");
    const char *base = strrchr(path, '/');
    char line[65536];
    size_t n = 0;

    if (file == NULL) return out;
    snprintf(out.name, sizeof(out.name), "%s", base != NULL ? base + 1 : path);
    while (fgets(line, sizeof(line), file) != NULL) {
        char *at = line, *end;

        if (line[0] == '#') continue;
        for (double value = strtod(at, &end); end != at; value = strtod(at, &end)) {
            out.load = realloc(out.load, (n + 1) * sizeof(*out.load));
            out.load[n++] = value;
            at = end;
        }
        out.layers++;
    }
    fclose(file);
    out.experts = out.layers > 0 ? (uint32_t)(n / out.layers) : 0;
    return out;
}

#endif
