/* sy_snapshot.c - immutable snapshots. A snapshot has a grid of the fields' good values, one cell
 * for each field that the grammar allows, wildcards included, and beside it what is in force for
 * each expert. Both hold numbers of lists (sy_lists.h): 60 layers of 256 experts cost a few lists
 * and 120 KB, not 20 MB.
 *
 * Building from the whole hash is made cheap, rather than finding out what was edited: the value of
 * a field is compared with the text that the previous snapshot has for it, and only what differs is
 * looked up or parsed. So no state but the previous snapshot's decides what a build gives. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_bytes.h"
#include "sy_hash.h"
#include "sy_lists.h"
#include "sy_placement.h"

#define CELLS_MAX (1u << 24)

/* List numbers begin at 1; 0 says "no value". */
struct sy_snapshot {
    _Atomic uint32_t n_refs;
    sy_grid grid;
    uint64_t epoch, hash;
    uint32_t *cell;     /* [layers + 1][experts + 1]; row and column 0 are "*" */
    uint32_t *in_force; /* [layers][experts]; 0 for layers without experts */
    sy_lists lists;     /* those that some cell holds */
    uint8_t *is_used;   /* [lists.n + 1], by number: in force for some expert */
    uint32_t n_parsed;
    size_t n_missing;
    uint32_t missing_layer, missing_expert; /* the first */
    sy_refusal *refusal;
    size_t n_refusals, refusal_capacity;
};

static size_t n_cells(const sy_snapshot *self)
{
    return ((size_t)self->grid.layers + 1) * ((size_t)self->grid.experts + 1);
}

/* Places for experts, those of layers without any among them. */
static size_t n_places(const sy_snapshot *self)
{
    return (size_t)self->grid.layers * self->grid.experts;
}

static uint32_t *cell_at(const sy_snapshot *self, int32_t layer, int32_t expert)
{
    const size_t row = (size_t)(layer - SY_ANY);
    const size_t column = (size_t)(expert - SY_ANY);

    return &self->cell[row * ((size_t)self->grid.experts + 1) + column];
}

/* ---- building ---- */

static sy_status refuse(sy_snapshot *self, const sy_placement_entry *entry, const char *why,
                        const char *and_then)
{
    sy_refusal *refusal;

    if (self->n_refusals == SY_REFUSALS_MAX) return SY_OK;
    if (self->n_refusals == self->refusal_capacity) {
        const size_t capacity = SY_MAX((size_t)8, 2 * self->refusal_capacity);

        refusal = realloc(self->refusal, capacity * sizeof(*refusal));
        if (refusal == NULL) return SY_ENOMEM;
        self->refusal = refusal;
        self->refusal_capacity = capacity;
    }
    refusal = &self->refusal[self->n_refusals++];
    memset(refusal, 0, sizeof(*refusal));
    if (entry != NULL) {
        sy_bytes_show(refusal->field, sizeof(refusal->field), entry->field, entry->field_len);
        sy_bytes_show(refusal->value, sizeof(refusal->value), entry->value, entry->value_len);
    }
    snprintf(refusal->why, sizeof(refusal->why), "%.190s%s", why, and_then);
    return SY_OK;
}

/* SY_EINVAL: the value does not parse, and *why says so. SY_ENOMEM. */
static sy_status read_value(uint32_t *number, sy_snapshot *self, const sy_placement_entry *entry,
                            sy_error *why)
{
    sy_target_list targets;
    sy_status st;

    SY_TRY(sy_lists_find(number, &self->lists, entry->value, entry->value_len));
    if (*number != 0) return SY_OK;
    self->n_parsed++;
    SY_TRY(sy_targets_parse(&targets, entry->value, entry->value_len, why));
    st = sy_lists_add(number, &self->lists, &targets); /* known, if only the spelling is new */
out:
    return st;
}

/* The lists of `previous`, if there is one, have the same numbers in self until all is read. */
static sy_status take_entry(sy_snapshot *self, const sy_snapshot *previous,
                            const sy_placement_entry *entry)
{
    uint32_t before = 0;
    uint32_t number;
    sy_field field;
    sy_error why;
    sy_status st;

    if (sy_field_parse(&field, entry->field, entry->field_len, &self->grid, &why) != SY_OK) {
        return refuse(self, entry, why.message, "");
    }
    if (previous != NULL) before = *cell_at(previous, field.layer, field.expert);
    if (before != 0 && sy_lists_is_text(&self->lists, before, entry->value, entry->value_len)) {
        *cell_at(self, field.layer, field.expert) = before;
        return SY_OK;
    }
    st = read_value(&number, self, entry, &why);
    if (st == SY_ENOMEM) return st;
    if (st == SY_OK) {
        *cell_at(self, field.layer, field.expert) = number;
        return SY_OK;
    }
    *cell_at(self, field.layer, field.expert) = before;
    return refuse(self, entry, why.message,
                  before != 0 ? "; its last good value stays in force" : "");
}

/* The number of the list that speaks for an expert, most specific field first; 0: none does. */
static uint32_t resolve(const sy_snapshot *self, uint32_t layer, uint32_t expert)
{
    uint32_t number = *cell_at(self, (int32_t)layer, (int32_t)expert);

    if (number == 0) number = *cell_at(self, (int32_t)layer, SY_ANY);
    if (number == 0) number = *cell_at(self, SY_ANY, (int32_t)expert);
    if (number == 0) number = *cell_at(self, SY_ANY, SY_ANY);
    return number;
}

static void resolve_all(sy_snapshot *self)
{
    self->n_missing = 0;
    for (uint32_t layer = 0; layer < self->grid.layers; layer++) {
        uint32_t *to = self->in_force + (size_t)layer * self->grid.experts;

        if (!sy_grid_has(&self->grid, layer)) continue;
        for (uint32_t expert = 0; expert < self->grid.experts; expert++) {
            *to = resolve(self, layer, expert);
            if (*to++ != 0) continue;
            if (self->n_missing == 0) {
                self->missing_layer = layer;
                self->missing_expert = expert;
            }
            self->n_missing++;
        }
    }
}

/* Refuses the whole hash where it would take the last targets away from an expert that has some:
 * a deleted hash, or a deletion too many, must not stop what is being served. */
static sy_status guard_coverage(sy_snapshot *self, const sy_snapshot *previous, size_t n_entries)
{
    const uint64_t n_all = sy_grid_shards(&self->grid);
    char why[160];

    if (previous == NULL) return SY_OK;
    if (n_entries == 0 && previous->n_missing < n_all) {
        snprintf(why, sizeof(why), "the hash is deleted or empty");
    } else if (self->n_missing > 0 && previous->n_missing == 0) {
        snprintf(why, sizeof(why), "%zu of %llu experts would have no target, the first is %u/%u",
                 self->n_missing, (unsigned long long)n_all, self->missing_layer,
                 self->missing_expert);
    } else {
        return SY_OK;
    }
    memcpy(self->cell, previous->cell, n_cells(self) * sizeof(*self->cell));
    resolve_all(self);
    if (self->n_refusals == SY_REFUSALS_MAX) self->n_refusals--; /* this one matters more */
    return refuse(self, NULL, why, ": the placement before stays in force as a whole");
}

/* Lets go of the lists that no cell holds any more: memory is bounded by the hash, not by its
 * history. */
static sy_status drop_old_lists(sy_snapshot *self)
{
    uint32_t *number = calloc((size_t)self->lists.n + 1, sizeof(*number));

    if (number == NULL) return SY_ENOMEM;
    for (size_t i = 0; i < n_cells(self); i++) number[self->cell[i]] = 1;
    number[0] = 0;
    sy_lists_keep(&self->lists, number);
    for (size_t i = 0; i < n_cells(self); i++) self->cell[i] = number[self->cell[i]];
    for (size_t i = 0; i < n_places(self); i++) {
        self->in_force[i] = number[self->in_force[i]];
    }
    free(number);
    return SY_OK;
}

static sy_status finish(sy_snapshot *self, const sy_snapshot *previous)
{
    const uint32_t *at = self->in_force;

    self->is_used = calloc((size_t)self->lists.n + 1, 1);
    if (self->is_used == NULL) return SY_ENOMEM;
    for (uint32_t layer = 0; layer < self->grid.layers; layer++) {
        for (uint32_t expert = 0; expert < self->grid.experts; expert++, at++) {
            const uint64_t place = sy_splitmix64((uint64_t)layer << 32 | expert);

            if (*at == 0) continue;
            self->is_used[*at] = 1;
            self->hash += sy_splitmix64(sy_lists_hash(&self->lists, *at) ^ place);
        }
    }
    self->epoch = 1;
    if (previous != NULL) self->epoch = previous->epoch + (self->hash != previous->hash);
    return SY_OK;
}

static int compare_refusals(const void *a, const void *b)
{
    const sy_refusal *x = a;
    const sy_refusal *y = b;
    const int order = strcmp(x->field, y->field);

    return order != 0 ? order : strcmp(x->value, y->value); /* fields that are cut may be equal */
}

static sy_status open_snapshot(sy_snapshot **out, const sy_snapshot *previous, const sy_grid *grid)
{
    sy_snapshot *self = calloc(1, sizeof(*self));
    sy_status st = SY_ENOMEM;

    *out = NULL;
    if (self == NULL) return SY_ENOMEM;
    atomic_init(&self->n_refs, 1);
    self->grid = *grid;
    self->cell = calloc(n_cells(self), sizeof(*self->cell));
    self->in_force = calloc(n_places(self), sizeof(*self->in_force));
    if (self->cell == NULL || self->in_force == NULL) goto out;
    if (previous != NULL) SY_TRY(sy_lists_share(&self->lists, &previous->lists));
    *out = self;
    return SY_OK;
out:
    sy_snapshot_unref(self);
    return st;
}

sy_status sy_snapshot_build(sy_snapshot **out, const sy_snapshot *previous,
                            const sy_placement_entry *entry, size_t n_entries, const sy_grid *grid,
                            sy_error *err)
{
    const uint32_t layers = grid->layers, experts = grid->experts;
    sy_snapshot *self = NULL;
    sy_status st;

    *out = NULL;
    if (layers == 0 || experts == 0 || layers >= CELLS_MAX || experts >= CELLS_MAX ||
        ((uint64_t)layers + 1) * ((uint64_t)experts + 1) > CELLS_MAX) {
        return sy_error_set(err, SY_EINVAL, "a model of %u layers with %u experts cannot be placed",
                            layers, experts);
    }
    if (sy_grid_shards(grid) == 0)
        return sy_error_set(err, SY_EINVAL, "no layer of the model has experts to place");
    if (previous != NULL && !sy_grid_is_same(&previous->grid, grid)) {
        return sy_error_set(err, SY_EINVAL, "the snapshot before is of another model");
    }
    SY_TRY(open_snapshot(&self, previous, grid));
    for (size_t i = 0; i < n_entries; i++) SY_TRY(take_entry(self, previous, &entry[i]));
    resolve_all(self);
    SY_TRY(guard_coverage(self, previous, n_entries));
    SY_TRY(drop_old_lists(self));
    SY_TRY(finish(self, previous));
    if (self->n_refusals > 1) {
        qsort(self->refusal, self->n_refusals, sizeof(*self->refusal), compare_refusals);
    }
    *out = self;
    self = NULL;
out:
    sy_snapshot_unref(self);
    if (st == SY_ENOMEM) sy_error_set(err, st, "no memory for a placement snapshot");
    return st;
}

/* ---- reading ---- */

sy_snapshot *sy_snapshot_ref(sy_snapshot *snapshot)
{
    atomic_fetch_add_explicit(&snapshot->n_refs, 1, memory_order_relaxed);
    return snapshot;
}

void sy_snapshot_unref(sy_snapshot *snapshot)
{
    if (snapshot == NULL) return;
    if (atomic_fetch_sub_explicit(&snapshot->n_refs, 1, memory_order_acq_rel) != 1) return;
    sy_lists_close(&snapshot->lists);
    free(snapshot->cell);
    free(snapshot->in_force);
    free(snapshot->is_used);
    free(snapshot->refusal);
    free(snapshot);
}

uint64_t sy_snapshot_epoch(const sy_snapshot *snapshot)
{
    return snapshot->epoch;
}

uint64_t sy_snapshot_hash(const sy_snapshot *snapshot)
{
    return snapshot->hash;
}

const sy_grid *sy_snapshot_grid(const sy_snapshot *snapshot)
{
    return &snapshot->grid;
}

uint32_t sy_snapshot_layers(const sy_snapshot *snapshot)
{
    return snapshot->grid.layers;
}

uint32_t sy_snapshot_experts(const sy_snapshot *snapshot)
{
    return snapshot->grid.experts;
}

uint32_t sy_snapshot_list_of(const sy_snapshot *snapshot, uint32_t layer, uint32_t expert)
{
    if (layer >= snapshot->grid.layers || expert >= snapshot->grid.experts) return 0;
    return snapshot->in_force[(size_t)layer * snapshot->grid.experts + expert];
}

uint32_t sy_snapshot_lists(const sy_snapshot *snapshot)
{
    return snapshot->lists.n;
}

const sy_target_list *sy_snapshot_list(const sy_snapshot *snapshot, uint32_t number)
{
    SY_ASSERT(number >= 1 && number <= snapshot->lists.n);
    return sy_lists_targets(&snapshot->lists, number);
}

const sy_target_list *sy_snapshot_targets(const sy_snapshot *snapshot, uint32_t layer,
                                          uint32_t expert)
{
    const uint32_t number = sy_snapshot_list_of(snapshot, layer, expert);

    return number == 0 ? NULL : sy_lists_targets(&snapshot->lists, number);
}

uint32_t sy_snapshot_parsed(const sy_snapshot *snapshot)
{
    return snapshot->n_parsed;
}

int sy_snapshot_complete(const sy_snapshot *snapshot)
{
    return snapshot->n_missing == 0;
}

size_t sy_snapshot_missing(const sy_snapshot *snapshot, uint32_t *layer, uint32_t *expert)
{
    if (layer != NULL) *layer = snapshot->missing_layer;
    if (expert != NULL) *expert = snapshot->missing_expert;
    return snapshot->n_missing;
}

size_t sy_snapshot_refusals(const sy_snapshot *snapshot)
{
    return snapshot->n_refusals;
}

const sy_refusal *sy_snapshot_refusal_at(const sy_snapshot *snapshot, size_t i)
{
    SY_ASSERT(i < snapshot->n_refusals);
    return &snapshot->refusal[i];
}

int sy_snapshot_names_node(const sy_snapshot *snapshot, const char *node)
{
    for (uint32_t number = 1; number <= snapshot->lists.n; number++) {
        const sy_target_list *list = sy_lists_targets(&snapshot->lists, number);

        for (uint32_t j = 0; snapshot->is_used[number] && j < list->n; j++) {
            if (strcmp(list->target[j].node, node) == 0) return 1;
        }
    }
    return 0;
}
