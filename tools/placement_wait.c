/* placement_wait.c - see the header. */
#include "placement_wait.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_clock.h"
#include "target_edit.h"
#include "tool_line.h"
#include "tool_pause.h"
#include "tool_print.h"

#define LOOK_US     250000
#define PATIENCE_US 30000000 /* for Redis to come back */

/* ---- what is waited for ---- */

static sy_status add_want(wait_list *list, size_t *cap, const wait_want *want)
{
    if (list->n == *cap) {
        const size_t grown_cap = SY_MAX((size_t)64, 2 * *cap);
        wait_want *grown = realloc(list->want, grown_cap * sizeof(*grown));

        if (grown == NULL) return SY_ENOMEM;
        list->want = grown;
        *cap = grown_cap;
    }
    list->want[list->n++] = *want;
    return SY_OK;
}

static sy_status add_expert(wait_list *list, size_t *cap, const sy_snapshot *before,
                            const sy_snapshot *after, uint32_t layer, uint32_t expert)
{
    const sy_target_list *is = sy_snapshot_targets(after, layer, expert);
    const sy_target_list *was = before != NULL ? sy_snapshot_targets(before, layer, expert) : NULL;
    sy_status st = SY_OK;

    for (uint32_t i = 0; is != NULL && i < is->n; i++) {
        if (was != NULL && targets_find(was, &is->target[i]) >= 0) continue;
        SY_TRY(add_want(list, cap, &(wait_want){layer, expert, is->target[i]}));
    }
out:
    return st;
}

sy_status wait_list_between(wait_list *out, const sy_snapshot *before, const sy_snapshot *after,
                            sy_error *err)
{
    size_t cap = 0;
    sy_status st = SY_OK;

    memset(out, 0, sizeof(*out));
    for (uint32_t layer = 0; layer < sy_snapshot_layers(after); layer++) {
        for (uint32_t expert = 0; expert < sy_snapshot_experts(after); expert++) {
            SY_TRY(add_expert(out, &cap, before, after, layer, expert));
        }
    }
out:
    if (st == SY_OK) return st;
    free(out->want);
    memset(out, 0, sizeof(*out));
    return sy_error_set(err, st, "no memory for the list of shards");
}

/* ---- looking ---- */

/* Two pieces at most, as examples: the figures tell how many there are. */
static void add_piece(char *out, size_t cap, const char *piece)
{
    const size_t n = strlen(out);

    if (n + strlen(piece) + 3 >= cap || strstr(out, "; ") != NULL) return;
    snprintf(out + n, cap - n, "%s%s", n > 0 ? "; " : "", piece);
}

static void look_at_hashes(wait_view *v, const sy_snapshot *now, const cluster_facts *facts)
{
    char hash[20];
    char piece[FACT_TEXT_BYTES + 128];

    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)sy_snapshot_hash(now));
    for (size_t i = 0; i < facts->n; i++) {
        const fact_process *p = &facts->process[i];
        /* A field that is refused leaves a process with the value that it had before, which a tool
         * that comes later cannot know: its hash is then its own. */
        const int is_switched =
            p->answers && (strcmp(p->hash, hash) == 0 || sy_snapshot_refusals(now) > 0);

        v->n_processes++;
        v->n_switched += (size_t)is_switched;
        if (is_switched) continue;
        snprintf(piece, sizeof(piece),
                 p->answers ? "%s has another placement in force (%s)" : "%s does not answer (%s)",
                 p->lease.name, p->answers ? p->hash : p->why);
        add_piece(v->waits_for, sizeof(v->waits_for), piece);
    }
}

static void look_at_want(wait_view *v, const wait_want *want, const cluster_facts *facts,
                         int *percent)
{
    const fact_process *node = facts_node(facts, want->target.node);
    const fact_shard *shard =
        node != NULL ? fact_find_shard(node, want->layer, want->expert) : NULL;
    char piece[FACT_TEXT_BYTES + 160];

    *percent = 0;
    if (node == NULL) {
        snprintf(piece, sizeof(piece), "%u/%u: node %s is not there", want->layer, want->expert,
                 want->target.node);
    } else if (!node->has_shards) {
        snprintf(piece, sizeof(piece), "%s does not tell its shards (%s)", want->target.node,
                 node->why);
    } else if (shard == NULL) {
        snprintf(piece, sizeof(piece), "%u/%u on %s has not begun to load", want->layer,
                 want->expert, want->target.node);
    } else if (shard->state == SY_SHARD_FAILED) {
        v->n_failed++;
        snprintf(piece, sizeof(piece), "%u/%u on %s failed: %s", want->layer, want->expert,
                 want->target.node, shard->reason);
        add_piece(v->failed, sizeof(v->failed), piece);
    } else if (shard->state == SY_SHARD_RESIDENT &&
               strcmp(shard->device, want->target.device) == 0) {
        v->n_resident++;
        *percent = 100;
        return;
    } else {
        *percent = shard->state == SY_SHARD_RESIDENT ? 0 : shard->percent;
        snprintf(piece, sizeof(piece), "%u/%u on %s/%s is %s, %d %%", want->layer, want->expert,
                 want->target.node, shard->device, sy_shard_state_name(shard->state), *percent);
    }
    add_piece(v->waits_for, sizeof(v->waits_for), piece);
}

void wait_look(wait_view *out, const wait_list *list, const sy_snapshot *now,
               const cluster_facts *facts)
{
    uint64_t percents = 0;

    memset(out, 0, sizeof(*out));
    look_at_hashes(out, now, facts);
    for (size_t i = 0; i < list->n; i++) {
        const wait_want *want = &list->want[i];
        const sy_target_list *targets = sy_snapshot_targets(now, want->layer, want->expert);
        int percent = 100;

        if (targets == NULL || targets_find(targets, &want->target) < 0) {
            out->n_gone++;
        } else {
            look_at_want(out, want, facts, &percent);
        }
        percents += (uint64_t)percent;
    }
    out->percent = list->n > 0 ? (int)(percents / list->n) : 100;
    out->is_done = out->n_switched == out->n_processes && out->n_resident + out->n_gone == list->n;
}

/* ---- waiting ---- */

typedef struct waiting {
    place *p;
    const wait_list *list;
    wait_also *also;
    void *arg;
} waiting;

static sy_status look(wait_view *out, const waiting *w, sy_error *err)
{
    place *p = w->p;
    const unsigned shards = w->list->n > 0 || w->also != NULL ? FACT_SHARDS : 0;
    cluster_facts facts = {0};
    field_map *map = NULL;
    sy_snapshot *now = NULL;
    sy_status st;

    SY_TRY(place_read(&map, p, err));
    SY_TRY(field_map_snapshot(&now, map, FIELD_BEFORE, &p->grid, err));
    SY_TRY(facts_take(&facts, p->redis, p->model, FACT_PLACEMENT | shards, err));
    wait_look(out, w->list, now, &facts);
    if (out->is_done && w->also != NULL) {
        out->is_done = w->also(w->arg, out->waits_for, sizeof(out->waits_for), now, &facts);
    }
out:
    facts_free(&facts);
    sy_snapshot_unref(now);
    field_map_close(map);
    return st;
}

static void show(tool_line *line, const wait_view *v, const wait_list *list)
{
    tool_line_show(line,
                   "waiting: %zu of %zu processes have it in force, %zu of %zu shards "
                   "resident (%d %%)%s%s%s",
                   v->n_switched, v->n_processes, v->n_resident, list->n - v->n_gone, v->percent,
                   v->n_failed > 0 ? ", some failed" : "", v->waits_for[0] != '\0' ? ": " : "",
                   v->waits_for);
}

sy_status placement_wait(wait_view *out, place *p, const wait_list *list, wait_also *also,
                         void *arg, int64_t timeout_us, sy_error *err)
{
    const waiting w = {.p = p, .list = list, .also = also, .arg = arg};
    const int64_t began_us = sy_clock_us();
    int64_t heard_us = began_us; /* of Redis */
    tool_line line = {0};
    sy_status st;

    for (;;) {
        const int64_t now_us = sy_clock_us();

        st = look(out, &w, err);
        if (st == SY_OK) {
            heard_us = now_us;
            if (out->is_done) break;
            show(&line, out, list);
        } else if (st != SY_EUNAVAILABLE || now_us - heard_us > PATIENCE_US) {
            break;
        } else {
            tool_line_show(&line, "waiting: %s", err->message);
        }
        if (now_us - began_us >= timeout_us) {
            st = sy_error_set(err, SY_EDEADLINE,
                              "after %lld s %zu of %zu processes have it in force and %zu of %zu "
                              "shards are resident: %s",
                              (long long)(timeout_us / 1000000), out->n_switched, out->n_processes,
                              out->n_resident, list->n - out->n_gone,
                              out->failed[0] != '\0' ? out->failed : out->waits_for);
            break;
        }
        if (tool_pause(LOOK_US)) {
            st = sy_error_set(err, SY_ECANCELLED,
                              "interrupted while waiting: the edit stays as it "
                              "is, and takes effect without this command");
            break;
        }
    }
    tool_line_end(&line);
    return st;
}

int wait_exit_code(const sy_error *err)
{
    (void)tool_fail(err);
    if (err->status == SY_EDEADLINE) return TOOL_EXIT_DEADLINE;
    return err->status == SY_ECANCELLED ? TOOL_EXIT_INTERRUPTED : 1;
}
