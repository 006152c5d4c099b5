/* plan_report.c - see the header. */
#include "plan_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "target_edit.h"
#include "tool_print.h"

#define WARNINGS_MAX 64
#define DEVICES_MAX  65536

typedef struct maker {
    plan_report *out;
    const plan_input *in;
    size_t cap;
    int failed;
} maker;

/* ---- devices ---- */

static plan_device *device_of(maker *m, const sy_target *target)
{
    plan_report *r = m->out;

    for (size_t i = 0; i < r->n_devices; i++) {
        if (strcmp(r->device[i].node, target->node) == 0 &&
            strcmp(r->device[i].device, target->device) == 0) {
            return &r->device[i];
        }
    }
    if (r->n_devices == m->cap) {
        const size_t cap = SY_MAX((size_t)16, 2 * m->cap);
        plan_device *grown = realloc(r->device, cap * sizeof(*grown));

        if (grown == NULL || cap > DEVICES_MAX) {
            m->failed = 1;
            if (grown != NULL) r->device = grown;
            return NULL;
        }
        r->device = grown;
        m->cap = cap;
    }
    plan_device *device = &r->device[r->n_devices++];

    memset(device, 0, sizeof(*device));
    memcpy(device->node, target->node, sizeof(device->node));
    memcpy(device->device, target->device, sizeof(device->device));
    return device;
}

/* The part of an expert's rows that one of its targets gets. */
static double part_of(const sy_target_list *list, uint32_t i)
{
    if (list->target[i].shadow) return 0;
    if (list->target[i].share > 0) return list->target[i].share / 100.0;
    return 1.0 / targets_count_serving(list);
}

static void count_side(maker *m, const sy_snapshot *snapshot, int is_after)
{
    const uint32_t experts = sy_snapshot_experts(snapshot);
    const size_t n = (size_t)sy_snapshot_layers(snapshot) * experts;

    for (size_t i = 0; i < n; i++) {
        const sy_target_list *list =
            sy_snapshot_targets(snapshot, (uint32_t)(i / experts), (uint32_t)(i % experts));
        const double weight = m->in->rows != NULL ? (double)m->in->rows[i] : 1;

        for (uint32_t t = 0; list != NULL && t < list->n; t++) {
            plan_device *device = device_of(m, &list->target[t]);

            if (device == NULL) return;
            *(is_after ? &device->n_after : &device->n_before) += 1;
            *(is_after ? &device->load_after : &device->load_before) += weight * part_of(list, t);
        }
    }
}

/* To parts of the whole, and how uneven they are. */
static void weigh(plan_report *r)
{
    double before = 0, after = 0, most_before = 0, most_after = 0;

    for (size_t i = 0; i < r->n_devices; i++) {
        before += r->device[i].load_before;
        after += r->device[i].load_after;
    }
    for (size_t i = 0; i < r->n_devices; i++) {
        plan_device *device = &r->device[i];

        if (before > 0) device->load_before /= before;
        if (after > 0) device->load_after /= after;
        most_before = SY_MAX(most_before, device->load_before);
        most_after = SY_MAX(most_after, device->load_after);
    }
    r->worst_before = most_before * (double)r->n_devices;
    r->worst_after = most_after * (double)r->n_devices;
}

/* ---- what changes ---- */

static int lists_differ(const sy_target_list *a, const sy_target_list *b)
{
    if (a == NULL || b == NULL) return a != b;
    return a->n != b->n || memcmp(a->target, b->target, a->n * sizeof(a->target[0])) != 0;
}

/* A node that still has the shard, though it was not wanted there, need not load it. */
static int must_load(const maker *m, const sy_target *target, uint32_t layer, uint32_t expert)
{
    const fact_process *node = facts_node(m->in->facts, target->node);
    const fact_shard *shard = node != NULL ? fact_find_shard(node, layer, expert) : NULL;

    return shard == NULL || strcmp(shard->device, target->device) != 0 ||
           (shard->state != SY_SHARD_RESIDENT && shard->state != SY_SHARD_LINGERING);
}

static void compare_expert(maker *m, uint32_t layer, uint32_t expert)
{
    const sy_target_list *was = sy_snapshot_targets(m->in->before, layer, expert);
    const sy_target_list *is = sy_snapshot_targets(m->in->after, layer, expert);

    if (!lists_differ(was, is)) return;
    m->out->n_experts++;
    for (uint32_t i = 0; is != NULL && i < is->n; i++) {
        plan_device *device;

        if (was != NULL && targets_find(was, &is->target[i]) >= 0) continue;
        if (!must_load(m, &is->target[i], layer, expert)) continue;
        m->out->n_loads++;
        device = device_of(m, &is->target[i]);
        if (device != NULL) device->n_loads++;
    }
    for (uint32_t i = 0; was != NULL && i < was->n; i++) {
        m->out->n_drops += is == NULL || targets_find(is, &was->target[i]) < 0;
    }
}

/* ---- warnings ---- */

static char *next_warning(maker *m)
{
    static char spare[256]; /* what is one too many is not shown */

    return m->out->n_warnings < WARNINGS_MAX ? m->out->warning[m->out->n_warnings++] : spare;
}

static void warn_of_memory(maker *m, const plan_device *d)
{
    const uint64_t more_bytes = d->n_loads * m->out->shard_bytes;
    char has[TOOL_SIZE_BYTES], needs[TOOL_SIZE_BYTES], most[TOOL_SIZE_BYTES];

    if (d->memory_max_bytes == 0 || d->memory_bytes + more_bytes <= d->memory_max_bytes) return;
    snprintf(next_warning(m), 256,
             "%s/%s has %s in memory and would load %s more, but may have %s: shards that linger "
             "must leave first, or loads fail",
             d->node, d->device, tool_size(has, d->memory_bytes), tool_size(needs, more_bytes),
             tool_size(most, d->memory_max_bytes));
}

static void look_at_device(maker *m, plan_device *d)
{
    const fact_process *node = facts_node(m->in->facts, d->node);

    if (node != NULL) {
        for (size_t i = 0; i < node->shards.n_devices; i++) {
            const fact_device *told = &node->shards.device[i];

            if (strcmp(told->name, d->device) != 0) continue;
            d->memory_bytes = told->memory_bytes;
            d->memory_max_bytes = told->memory_max_bytes;
        }
    }
    if (d->n_after == 0) return;
    if (node == NULL) {
        snprintf(next_warning(m), 256,
                 "node %s has no lease for this model: its %zu experts there are not served until "
                 "it appears",
                 d->node, d->n_after);
    } else if (!fact_has_device(node, d->device)) {
        snprintf(next_warning(m), 256, "node %s has no device %s: it announces %.100s", d->node,
                 d->device, node->lease.devices);
    } else if (strcmp(node->lease.state, "draining") == 0) {
        snprintf(next_warning(m), 256, "node %s is about to stop", d->node);
    }
    if (d->n_loads > 0) warn_of_memory(m, d);
}

static void look_at_refusals(maker *m)
{
    for (size_t i = 0; i < sy_snapshot_refusals(m->in->after); i++) {
        const sy_refusal *r = sy_snapshot_refusal_at(m->in->after, i);

        snprintf(next_warning(m), 256, "servers will refuse %s: %.160s", r->field, r->why);
    }
    if (!sy_snapshot_complete(m->in->after) && sy_snapshot_complete(m->in->before)) {
        snprintf(next_warning(m), 256,
                 "servers will refuse it as a whole: experts would have no target");
    }
}

static int by_name(const void *a, const void *b)
{
    const plan_device *left = a;
    const plan_device *right = b;
    const int order = strverscmp(left->node, right->node);

    return order != 0 ? order : strverscmp(left->device, right->device);
}

sy_status plan_report_make(plan_report *out, const plan_input *in, sy_error *err)
{
    maker m = {.out = out, .in = in};

    memset(out, 0, sizeof(*out));
    out->has_load = in->rows != NULL;
    out->shard_bytes = in->shard_bytes > 0 ? in->shard_bytes : facts_shard_bytes(in->facts);
    out->warning = calloc(WARNINGS_MAX, sizeof(*out->warning));
    m.failed = out->warning == NULL;
    if (!m.failed) count_side(&m, in->before, 0);
    if (!m.failed) count_side(&m, in->after, 1);
    for (uint32_t layer = 0; !m.failed && layer < sy_snapshot_layers(in->after); layer++) {
        for (uint32_t expert = 0; expert < sy_snapshot_experts(in->after); expert++) {
            compare_expert(&m, layer, expert);
        }
    }
    if (m.failed) {
        plan_report_free(out);
        return sy_error_set(err, SY_ENOMEM, "no memory for the plan");
    }
    out->load_bytes = out->n_loads * out->shard_bytes;
    weigh(out);
    if (out->n_devices > 1) qsort(out->device, out->n_devices, sizeof(*out->device), by_name);
    for (size_t i = 0; i < out->n_devices; i++) look_at_device(&m, &out->device[i]);
    look_at_refusals(&m);
    return SY_OK;
}

void plan_report_free(plan_report *report)
{
    free(report->device);
    free(report->warning);
    memset(report, 0, sizeof(*report));
}
