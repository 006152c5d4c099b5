/* cmd_drain.c - `switchyard drain NODE`: empties a node, and waits until it may be stopped. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "drain_plan.h"
#include "placement_commit.h"
#include "placement_undo.h"
#include "target_edit.h"
#include "tool_print.h"
#include "tool_text.h"

#define UNDO_LOOK_BACK 1000

typedef struct drain {
    place_options where;
    commit_options commit;
    const char *node;
    int is_undo, does_not_wait;
    place p;
    field_map *map;
    char command[SY_NODE_BYTES + 64], undo_command[SY_NODE_BYTES + 64];
    char reason[TOOL_ENTRY_ID_BYTES + 256];
} drain;

static int is_safe(void *arg, char *why, size_t cap, const sy_snapshot *now,
                   const cluster_facts *facts)
{
    const drain *d = arg;

    return drain_is_safe(d->node, why, cap, now, facts);
}

static sy_status edit_fields(drain *d, sy_error *err)
{
    cluster_facts facts = {0};
    drain_result result;
    sy_status st;

    SY_TRY(facts_take(&facts, d->p.redis, d->p.model, FACT_PLACEMENT | FACT_SHARDS, err));
    const drain_input input = {.node = d->node,
                               .facts = &facts,
                               .grid = d->p.grid,
                               .shard_bytes = facts_shard_bytes(&facts)};

    SY_TRY(drain_fields(&result, d->map, &input, err));
    if (!d->commit.json) {
        printf("%s: %zu fields have other targets and drop it, %zu fields go to other nodes\n",
               d->node, result.n_dropped, result.n_moved);
    }
out:
    facts_free(&facts);
    return st;
}

/* The newest drain of this node that was not undone yet. */
static sy_status undo_drain(drain *d, sy_error *err)
{
    const history_entry *found = NULL;
    history h = {0};
    sy_status st;

    SY_TRY(history_read(&h, d->p.redis, d->p.model, UNDO_LOOK_BACK, NULL, err));
    for (size_t i = 0; i < h.n && found == NULL; i++) {
        if (strcmp(h.entry[i].command, d->undo_command) == 0) break;
        if (strcmp(h.entry[i].command, d->command) == 0) found = &h.entry[i];
    }
    if (found == NULL) {
        st = sy_error_set(err, SY_ENOTFOUND,
                          "the newest %zu entries of the history have no drain of %s that was not "
                          "undone",
                          h.n, d->node);
        goto out;
    }
    SY_TRY(undo_entry(d->map, found, d->commit.force, err));
    snprintf(d->reason, sizeof(d->reason), "undo of the drain %s%s%.200s", tool_shown(found->id),
             d->commit.reason != NULL ? ": " : "",
             d->commit.reason != NULL ? d->commit.reason : "");
out:
    history_free(&h);
    return st;
}

static sy_status prepare(drain *d, sy_error *err)
{
    sy_target any;
    char text[SY_NODE_BYTES + 16];
    sy_status st;

    snprintf(text, sizeof(text), "%.*s/cpu:0", SY_NODE_BYTES, d->node);
    if (strlen(d->node) >= SY_NODE_BYTES || target_parse(&any, text, NULL) != SY_OK) {
        return sy_error_set(err, SY_EINVAL, "%s is no name of a node", tool_shown(d->node));
    }
    snprintf(d->command, sizeof(d->command), "switchyard drain %s", d->node);
    snprintf(d->undo_command, sizeof(d->undo_command), "switchyard drain %s --undo", d->node);
    snprintf(d->reason, sizeof(d->reason), "%.250s",
             d->commit.reason != NULL ? d->commit.reason : "the node is to be stopped");
    SY_TRY(place_open(&d->p, &d->where, err));
    SY_TRY(place_read(&d->map, &d->p, err));
    st = d->is_undo ? undo_drain(d, err) : edit_fields(d, err);
out:
    return st;
}

int cmd_drain(int argc, char **argv)
{
    drain d = {.commit = {.timeout_s = 600}};
    char done[SY_NODE_BYTES + 64];
    const sy_arg args[] = {
        PLACE_ARGS(d.where),
        {"undo", NULL, "give the node back what its last drain took", SY_ARG_FLAG, &d.is_undo, 0,
         0},
        {"no-wait", NULL, "return as soon as placement is edited", SY_ARG_FLAG, &d.does_not_wait, 0,
         0},
        {"force", NULL, "with --undo: also fields that somebody changed since", SY_ARG_FLAG,
         &d.commit.force, 0, 0},
        {"reason", "TEXT", "why, for the history", SY_ARG_STRING, &d.commit.reason, 0, 0},
        WAIT_ARGS(d.commit),
    };
    size_t n_words = 0;
    sy_error err;
    int code;
    sy_status st;

    sy_error_clear(&err);
    st = sy_args_parse(
        argc, argv, args, SY_COUNT_OF(args),
        "switchyard drain NODE (--dir RUNDIR | --redis URL) [options]\n\n"
        "Takes a node out of placement, in one edit: it is dropped where an expert has other "
        "targets, and\nelsewhere the least loaded nodes take its place. Then waits (--wait is the "
        "default) until every\nprocess follows, every new target is resident, and nobody needs "
        "what the node still holds: then it\nis safe to stop. Exit code 4: that took longer than "
        "--timeout-s.",
        &d.node, 1, &n_words, &err);
    if (st != SY_OK) return tool_usage_error(&err);
    if (n_words != 1) return tool_bad_option("drain needs the name of one NODE");
    st = prepare(&d, &err);
    snprintf(done, sizeof(done), d.is_undo ? "%s is back" : "%s is safe to stop", d.node);
    d.commit.wait = !d.does_not_wait;
    d.commit.command = d.is_undo ? d.undo_command : d.command;
    d.commit.reason = d.reason;
    d.commit.done = done;
    if (!d.is_undo) {
        d.commit.force = 0;
        d.commit.also = is_safe;
        d.commit.also_arg = &d;
    }
    code = st == SY_OK ? placement_commit(&d.p, d.map, &d.commit) : tool_fail(&err);
    field_map_close(d.map);
    place_close(&d.p);
    return code;
}
