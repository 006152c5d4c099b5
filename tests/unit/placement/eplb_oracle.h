/* eplb_oracle.h - what DeepSeek's Expert Parallelism Load Balancer does, written from its
 * description, as the mark that sy_balance is measured against.
 *
 * Every device of a layer has the same number of slots. Each slot beyond one for each expert goes
 * to the expert with the highest load for each replica; then replicas are sorted by load,
 * descending, and each goes to the device with the least load that has a slot left. `hierarchical`
 * does so in three stages, groups of experts to nodes, replicas inside a node, devices inside a
 * node; `global` knows no nodes. It does not mind two replicas of one expert on one device, and it
 * does not look at what is where. */
#ifndef EPLB_ORACLE_H
#define EPLB_ORACLE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct eplb_item {
    double load;
    uint32_t id;
} eplb_item;

static inline int eplb_by_load(const void *a, const void *b)
{
    const eplb_item *const x = a, *const y = b;

    if (x->load != y->load) return x->load > y->load ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* pack: [n_items] which of n_packs each item goes to, n_items / n_packs in each. */
static inline void eplb_pack(uint32_t *pack, const double *load, uint32_t n_items, uint32_t n_packs)
{
    eplb_item *item = calloc(n_items, sizeof(*item));
    double *sum = calloc(n_packs, sizeof(*sum));
    uint32_t *n = calloc(n_packs, sizeof(*n));

    for (uint32_t i = 0; i < n_items; i++) item[i] = (eplb_item){load[i], i};
    qsort(item, n_items, sizeof(*item), eplb_by_load);
    for (uint32_t i = 0; i < n_items; i++) {
        uint32_t best = UINT32_MAX;

        for (uint32_t p = 0; p < n_packs; p++)
            if (n[p] < n_items / n_packs && (best == UINT32_MAX || sum[p] < sum[best])) best = p;
        pack[item[i].id] = best;
        sum[best] += item[i].load;
        n[best]++;
    }
    free(item);
    free(sum);
    free(n);
}

/* expert: [n_slots] which expert each replica is of; n: [n_experts] how many each has. */
static inline void eplb_replicate(uint32_t *expert, uint32_t *n, const double *load,
                                  uint32_t n_experts, uint32_t n_slots)
{
    for (uint32_t e = 0; e < n_experts; e++) {
        expert[e] = e;
        n[e] = 1;
    }
    for (uint32_t i = n_experts; i < n_slots; i++) {
        uint32_t best = 0;

        for (uint32_t e = 1; e < n_experts; e++)
            if (load[e] / n[e] > load[best] / n[best]) best = e;
        expert[i] = best;
        n[best]++;
    }
}

/* The busiest device's load. n_slots is a multiple of n_devices. */
static inline double eplb_global(const double *load, uint32_t n_experts, uint32_t n_devices,
                                 uint32_t n_slots)
{
    uint32_t *expert = calloc(n_slots, sizeof(*expert));
    uint32_t *n = calloc(n_experts, sizeof(*n));
    uint32_t *device = calloc(n_slots, sizeof(*device));
    double *part = calloc(n_slots, sizeof(*part));
    double *sum = calloc(n_devices, sizeof(*sum));
    double max = 0.0;

    eplb_replicate(expert, n, load, n_experts, n_slots);
    for (uint32_t i = 0; i < n_slots; i++) part[i] = load[expert[i]] / n[expert[i]];
    eplb_pack(device, part, n_slots, n_devices);
    for (uint32_t i = 0; i < n_slots; i++) sum[device[i]] += part[i];
    for (uint32_t d = 0; d < n_devices; d++)
        if (sum[d] > max) max = sum[d];
    free(expert);
    free(n);
    free(device);
    free(part);
    free(sum);
    return max;
}

/* n_groups is a multiple of n_nodes, and n_experts one of n_groups; n_devices and n_slots are
 * multiples of n_nodes. */
static inline double eplb_hierarchical(const double *load, uint32_t n_experts, uint32_t n_devices,
                                       uint32_t n_slots, uint32_t n_nodes, uint32_t n_groups)
{
    const uint32_t group_size = n_experts / n_groups;
    double *group_load = calloc(n_groups, sizeof(*group_load));
    uint32_t *node = calloc(n_groups, sizeof(*node));
    double *inside = calloc(n_experts, sizeof(*inside));
    double max = 0.0;

    for (uint32_t e = 0; e < n_experts; e++) group_load[e / group_size] += load[e];
    eplb_pack(node, group_load, n_groups, n_nodes);
    for (uint32_t i = 0; i < n_nodes; i++) {
        uint32_t n_inside = 0;
        double high;

        for (uint32_t e = 0; e < n_experts; e++)
            if (node[e / group_size] == i) inside[n_inside++] = load[e];
        high = eplb_global(inside, n_inside, n_devices / n_nodes, n_slots / n_nodes);
        if (high > max) max = high;
    }
    free(group_load);
    free(node);
    free(inside);
    return max;
}

#endif
