/* check_report.c - see the header. */
#include "check_report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FINDINGS_MAX 1000

static void find(check_report *r, const char *kind, const char *subject, const char *fmt, ...)
    SY_PRINTF(4, 5);

static void find(check_report *r, const char *kind, const char *subject, const char *fmt, ...)
{
    check_finding *f = &r->finding[r->n];
    va_list ap;

    if (r->n == FINDINGS_MAX) {
        r->n_more++;
        return;
    }
    r->n++;
    f->kind = kind;
    snprintf(f->subject, sizeof(f->subject), "%s", subject);
    va_start(ap, fmt);
    vsnprintf(f->why, sizeof(f->why), fmt, ap);
    va_end(ap);
}

/* ---- what Redis says ---- */

static void check_fields(check_report *r, const sy_snapshot *now)
{
    uint32_t layer;
    uint32_t expert;
    const size_t n_missing = sy_snapshot_missing(now, &layer, &expert);
    char subject[64];

    for (size_t i = 0; i < sy_snapshot_refusals(now); i++) {
        const sy_refusal *refusal = sy_snapshot_refusal_at(now, i);

        find(r, "refused", refusal->field, "'%s': %s", refusal->value, refusal->why);
    }
    if (n_missing == 0) return;
    snprintf(subject, sizeof(subject), "%u/%u", layer, expert);
    find(r, "no target", subject,
         "%zu experts have no target at all, this one first: servers that run keep the placement "
         "before, and servers that start cannot serve them",
         n_missing);
}

/* A list that no node serves is worse than one that lacks a replica. */
static int is_served(const sy_target_list *list, const cluster_facts *facts)
{
    for (uint32_t i = 0; i < list->n; i++) {
        const fact_process *node = facts_node(facts, list->target[i].node);

        if (!list->target[i].shadow && node != NULL &&
            fact_has_device(node, list->target[i].device)) {
            return 1;
        }
    }
    return 0;
}

static void check_target(check_report *r, const sy_target *target, const cluster_facts *facts,
                         size_t n_experts)
{
    const fact_process *node = facts_node(facts, target->node);
    char subject[SY_NODE_BYTES + SY_DEVICE_BYTES];

    snprintf(subject, sizeof(subject), "%s/%s", target->node, target->device);
    if (node == NULL) {
        find(r, "unknown node", subject,
             "%zu experts are wanted there, and no node of that name has a lease for this model",
             n_experts);
    } else if (!fact_has_device(node, target->device)) {
        find(r, "unknown device", subject,
             "%zu experts are wanted there, and the node announces %s", n_experts,
             node->lease.devices);
    } else if (strcmp(node->lease.state, "draining") == 0) {
        find(r, "stopping", subject, "%zu experts are wanted there, and the node is about to stop",
             n_experts);
    }
}

typedef struct device_count {
    sy_target target;
    size_t n;
} device_count;

static sy_status check_targets(check_report *r, const sy_snapshot *now, const cluster_facts *facts)
{
    const uint32_t experts = sy_snapshot_experts(now);
    const size_t n_all = (size_t)sy_snapshot_layers(now) * experts;
    device_count *count = NULL;
    size_t n = 0;
    char subject[64];

    for (size_t i = 0; i < n_all; i++) {
        const uint32_t layer = (uint32_t)(i / experts);
        const uint32_t expert = (uint32_t)(i % experts);
        const sy_target_list *list = sy_snapshot_targets(now, layer, expert);

        if (list == NULL) continue;
        if (!is_served(list, facts)) {
            snprintf(subject, sizeof(subject), "%u/%u", layer, expert);
            find(r, "not served", subject, "none of its nodes and devices is there");
        }
        for (uint32_t t = 0; t < list->n; t++) {
            size_t at = 0;

            while (at < n && (strcmp(count[at].target.node, list->target[t].node) != 0 ||
                              strcmp(count[at].target.device, list->target[t].device) != 0)) {
                at++;
            }
            if (at == n) {
                device_count *grown = realloc(count, (n + 1) * sizeof(*grown));

                if (grown == NULL) {
                    free(count);
                    return SY_ENOMEM;
                }
                count = grown;
                count[n++] = (device_count){.target = list->target[t]};
            }
            count[at].n++;
        }
    }
    for (size_t i = 0; i < n; i++) check_target(r, &count[i].target, facts, count[i].n);
    free(count);
    return SY_OK;
}

/* ---- what processes say ---- */

/* The weights and the arithmetic are the aggregators' measure; where none runs, the first node's.
 */
static const fact_process *measure(const cluster_facts *facts)
{
    const fact_process *first = NULL;

    for (size_t i = facts->n; i-- > 0;) {
        const fact_process *p = &facts->process[i];

        if (p->kind == SY_MEMBER_ROUTER || p->lease.checkpoint_hash[0] == '\0') continue;
        if (p->kind == SY_MEMBER_AGGREGATOR) return p;
        first = p;
    }
    return first;
}

static void check_weights(check_report *r, const cluster_facts *facts)
{
    const fact_process *right = measure(facts);

    for (size_t i = 0; i < facts->n && right != NULL; i++) {
        const fact_process *p = &facts->process[i];
        const sy_member *is = &p->lease;
        const sy_member *should = &right->lease;

        if (p->kind == SY_MEMBER_ROUTER) continue;
        if (is->checkpoint_hash[0] != '\0' &&
            strcmp(is->checkpoint_hash, should->checkpoint_hash) != 0) {
            find(r, "other weights", is->name,
                 "its checkpoint is %s and that of %s is %s: it is not used unless placement says "
                 "\"!\"",
                 is->checkpoint_hash, should->name, should->checkpoint_hash);
        } else if (is->arithmetic[0] != '\0' && should->arithmetic[0] != '\0' &&
                   strcmp(is->arithmetic, should->arithmetic) != 0) {
            find(r, "other arithmetic", is->name,
                 "it computes as %s and %s as %s: it is not used unless placement says \"!\"",
                 is->arithmetic, should->name, should->arithmetic);
        }
    }
}

static void check_hashes(check_report *r, const sy_snapshot *now, const cluster_facts *facts)
{
    const char *first = NULL; /* with refusals, the hash in force is nobody's but theirs */
    char hash[20];

    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)sy_snapshot_hash(now));
    for (size_t i = 0; i < facts->n; i++) {
        const fact_process *p = &facts->process[i];
        const char *should = hash;

        r->n_processes++;
        if (!p->answers) {
            find(r, "no answer", p->lease.name, "%s", p->why);
            continue;
        }
        if (first == NULL) first = p->hash;
        if (sy_snapshot_refusals(now) > 0) should = first;
        if (strcmp(p->hash, should) == 0) {
            r->n_switched++;
        } else {
            find(r, "other placement", p->lease.name, "it has %s in force, and not %s",
                 p->hash[0] != '\0' ? p->hash : "none", should);
        }
    }
}

static void check_shards(check_report *r, const cluster_facts *facts)
{
    char subject[SY_NODE_BYTES + 64];

    for (size_t i = 0; i < facts->n; i++) {
        const fact_process *p = &facts->process[i];

        if (p->kind != SY_MEMBER_NODE || !p->answers) continue;
        if (!p->has_shards) find(r, "no answer", p->lease.name, "shards: %s", p->why);
        for (int state = 0; state < SY_N_SHARD_STATES; state++) {
            r->n_in_state[state] += p->shards.n_in_state[state];
        }
        for (size_t j = 0; j < p->shards.n; j++) {
            const fact_shard *shard = &p->shards.shard[j];

            if (shard->state != SY_SHARD_FAILED) continue;
            snprintf(subject, sizeof(subject), "%u/%u on %s", shard->layer, shard->expert,
                     p->lease.name);
            find(r, "failed", subject, "%s", shard->reason);
        }
    }
}

sy_status check_report_make(check_report *out, const sy_snapshot *now, const cluster_facts *facts,
                            sy_error *err)
{
    sy_status st;

    memset(out, 0, sizeof(*out));
    out->finding = calloc(FINDINGS_MAX, sizeof(*out->finding));
    if (out->finding == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the check");
    check_fields(out, now);
    st = check_targets(out, now, facts);
    if (st != SY_OK) {
        free(out->finding);
        return sy_error_set(err, st, "no memory for the check");
    }
    check_weights(out, facts);
    check_hashes(out, now, facts);
    check_shards(out, facts);
    return SY_OK;
}
