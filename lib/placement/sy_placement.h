/* sy_placement.h - which expert is wanted where: the grammar of the placement hash, immutable
 * snapshots of it, and the choice of a target. Pure: no I/O, no clock, no locks. docs/placement.md
 * has the contract.
 *
 *   field  = LAYER "/" EXPERT; either may be "*"; the most specific wins, and of two with one star
 *            the one that names the layer
 *   value  = NODE "/" DEVICE [ "@" (1..100 | "shadow") ] [ "!" ], separated by spaces */
#ifndef SY_PLACEMENT_H
#define SY_PLACEMENT_H

#include "sy_grid.h"

#define SY_TARGETS_MAX         16 /* per field */
#define SY_DEVICE_BYTES        16
#define SY_PLACEMENT_VALUE_MAX 2048 /* bytes */
#define SY_ANY                 (-1)

typedef struct sy_field {
    int32_t layer;  /* SY_ANY: "*" */
    int32_t expert; /* SY_ANY: "*" */
} sy_field;

typedef struct sy_target {
    char node[SY_NODE_BYTES];     /* [A-Za-z0-9._-]+ */
    char device[SY_DEVICE_BYTES]; /* "cpu:0", "cuda:1" */
    uint8_t share;                /* percent; 0: no share given */
    uint8_t shadow;               /* gets a copy, its output is only compared */
    uint8_t any_weights; /* "!": used even if its weights or arithmetic are not the model's */
} sy_target;

typedef struct sy_target_list {
    uint32_t n;
    sy_target target[SY_TARGETS_MAX];
} sy_target_list;

/* grid: the model's shards; an index past them, or a layer without experts, is refused. Text need
 * not be NUL-terminated and may hold any bytes. Errors (all SY_EINVAL) are sentences for an
 * operator. */
SY_MUST_USE sy_status sy_field_parse(sy_field *out, const char *text, size_t n, const sy_grid *grid,
                                     sy_error *err);
SY_MUST_USE sy_status sy_targets_parse(sy_target_list *out, const char *text, size_t n,
                                       sy_error *err);
/* "3/17", "*" + "/17"; and the value's canonical text: the same targets in the same order, one
 * space between. Returns the length, as snprintf does. */
size_t sy_field_format(char *out, size_t cap, sy_field field);
size_t sy_targets_format(char *out, size_t cap, const sy_target_list *list);

/* ---- snapshots ---- */
typedef struct sy_snapshot sy_snapshot; /* immutable, reference-counted (atomically) */

typedef struct sy_placement_entry { /* one hash field as Redis has it: bytes, not trusted */
    const char *field;
    size_t field_len;
    const char *value;
    size_t value_len;
} sy_placement_entry;

#define SY_REFUSALS_MAX 1024 /* kept by a snapshot; further ones are not counted */
typedef struct sy_refusal {  /* printable ASCII: other bytes are shown as \xNN */
    char field[64];          /* cut if longer */
    char value[128];         /* cut if longer */
    char why[256];
} sy_refusal;

/* Builds the snapshot after `previous` (NULL: the first) from the whole hash, in any order. Fields
 * with stars speak for layers that have experts, and for no others. A field
 * that does not parse, names what the model has not, or leaves nothing but shadows is refused for
 * itself alone: the last good value of that very field stays in force (none, if there was none) and
 * the refusal is recorded. Refused as a whole are an empty hash when previous has any target, and
 * one that leaves some expert without a target when previous is complete: the result then has
 * previous' targets and, before refusals of single fields, one with field "". The first snapshot
 * may be incomplete. SY_EINVAL: the dimensions, no layer with experts, or previous is of another
 * grid; SY_ENOMEM. */
SY_MUST_USE sy_status sy_snapshot_build(sy_snapshot **out, const sy_snapshot *previous,
                                        const sy_placement_entry *entry, size_t n_entries,
                                        const sy_grid *grid, sy_error *err);
sy_snapshot *sy_snapshot_ref(sy_snapshot *snapshot);
void sy_snapshot_unref(sy_snapshot *snapshot); /* accepts NULL */
uint64_t sy_snapshot_epoch(
    const sy_snapshot *snapshot); /* 1, 2, ...: previous' + 1, or the same when nothing changed */
/* Of the targets in force: equal content, equal hash, in every process. The sum, modulo 2^64, over
 * the experts that have targets, of
 *     sy_splitmix64(FNV-1a(TARGETS) ^ sy_splitmix64(LAYER * 2^32 + EXPERT))
 * where TARGETS is the list's text as sy_targets_format writes it. */
uint64_t sy_snapshot_hash(const sy_snapshot *snapshot);
const sy_grid *sy_snapshot_grid(const sy_snapshot *snapshot); /* lives as long as the snapshot */
uint32_t sy_snapshot_layers(const sy_snapshot *snapshot);
uint32_t sy_snapshot_experts(const sy_snapshot *snapshot);
/* The targets in force, after wildcards; NULL when none, as for a layer without experts: never a
 * list of length 0. Lives as long as the snapshot. */
const sy_target_list *sy_snapshot_targets(const sy_snapshot *snapshot, uint32_t layer,
                                          uint32_t expert);
/* Equal lists are stored once and numbered 1..sy_snapshot_lists. The number of the list in force
 * for an expert, 0 when none: what is worked out for a list serves all experts that share it. */
uint32_t sy_snapshot_lists(const sy_snapshot *snapshot);
uint32_t sy_snapshot_list_of(const sy_snapshot *snapshot, uint32_t layer, uint32_t expert);
const sy_target_list *sy_snapshot_list(const sy_snapshot *snapshot, uint32_t number); /* 1.. */
/* How many values had to be parsed to build it. A value that is spelled like a list in force
 * before, or like one seen in the same build, is known by its text. */
uint32_t sy_snapshot_parsed(const sy_snapshot *snapshot);
int sy_snapshot_complete(
    const sy_snapshot *snapshot); /* every expert of every layer with experts has a target */
size_t sy_snapshot_missing(const sy_snapshot *snapshot, uint32_t *layer,
                           uint32_t *expert); /* count; the first one */
size_t sy_snapshot_refusals(const sy_snapshot *snapshot);
const sy_refusal *sy_snapshot_refusal_at(const sy_snapshot *snapshot,
                                         size_t i); /* in the order of the fields' text */
int sy_snapshot_names_node(const sy_snapshot *snapshot,
                           const char *node); /* in force, not only behind a more specific field */

/* ---- choice ---- */
typedef struct sy_candidate { /* what the caller knows of targets->target[i] at this moment */
    int usable;               /* alive and resident */
    uint32_t outstanding;     /* requests in flight to that node */
} sy_candidate;

/* Index of the target for (request, layer, expert), or -1 when none is usable. candidate:
 * [targets->n]. With shares: by a hash of the three, so that a request stays on one side; what an
 * unusable target would get goes to the usable ones by their shares. Without: the one with less
 * outstanding of two that the hash picks. Shadows are never chosen. */
int sy_placement_pick(const sy_target_list *targets, const sy_candidate *candidate,
                      uint64_t request, uint32_t layer, uint32_t expert);

/* ---- what a change costs ---- */
typedef struct sy_placement_cost {
    uint32_t n_experts; /* whose targets differ in any way */
    uint32_t n_loads;   /* (expert, node/device) pairs that are wanted and were not before */
    uint32_t n_drops;   /* pairs that were wanted and are not any more */
    uint64_t load_bytes;
} sy_placement_cost;
/* From one placement to another of the same grid (before NULL: from nothing). each: called in
 * order for every expert that differs, with its targets before and after (NULL: none); may be NULL.
 * SY_EINVAL: another grid. */
SY_MUST_USE sy_status sy_placement_compare(sy_placement_cost *out, const sy_snapshot *before,
                                           const sy_snapshot *after, uint64_t shard_bytes,
                                           void (*each)(void *arg, uint32_t layer, uint32_t expert,
                                                        const sy_target_list *before,
                                                        const sy_target_list *after),
                                           void *arg);

/* ---- the default placement ---- */
/* Spreads experts over nodes evenly: expert e of the i-th layer that has experts goes to device
 * (e + i) % n_devices. devices: "expert-0/cpu:0". Calls put() for each field; stops at its first
 * failure and returns it. SY_EINVAL: no device, or one that is not NODE/DEVICE. */
SY_MUST_USE sy_status
sy_placement_spread(const sy_grid *grid, const char *const *devices, size_t n_devices,
                    sy_status (*put)(void *arg, const char *field, const char *value), void *arg);

#endif
