/* sy_snapshot.c - immutable snapshots. A snapshot has a grid of the fields' good values, one cell
 * for each field that the grammar allows, wildcards included; reading an expert's targets looks at
 * the four cells that may speak for it. Cells hold the number of a list: equal lists are stored
 * once, so that 60 layers of 256 experts cost a few lists and 60 KB, not 20 MB. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_bytes.h"
#include "sy_hash.h"
#include "sy_placement.h"

#define CELLS_MAX (1u << 24)

/* List numbers begin at 1; 0 says "no value". */
struct sy_snapshot {
    _Atomic uint32_t n_refs;
    uint32_t layers, experts;
    uint64_t epoch, hash;
    uint32_t *cell; /* [layers + 1][experts + 1]; row and column 0 are "*" */
    sy_target_list *list;
    uint8_t *is_used; /* [n_lists]: some expert's targets */
    uint32_t n_lists, list_capacity;
    size_t n_missing;
    uint32_t missing_layer, missing_expert; /* the first */
    sy_refusal *refusal;
    size_t n_refusals, refusal_capacity;
};

/* While a snapshot is built: where to find a list by its contents. Open addressing, a power of two
 * of slots that hold list numbers. */
typedef struct index_table {
    uint32_t *slot;
    uint32_t n_slots;
} index_table;

static size_t n_cells(const sy_snapshot *self)
{
    return ((size_t)self->layers + 1) * ((size_t)self->experts + 1);
}

static uint32_t *cell_at(const sy_snapshot *self, int32_t layer, int32_t expert)
{
    const size_t row = (size_t)(layer - SY_ANY);
    const size_t column = (size_t)(expert - SY_ANY);

    return &self->cell[row * ((size_t)self->experts + 1) + column];
}

/* The number of the list that speaks for an expert, most specific field first; 0: none does. */
static uint32_t resolve(const sy_snapshot *self, uint32_t layer, uint32_t expert)
{
    uint32_t id = *cell_at(self, (int32_t)layer, (int32_t)expert);

    if (id == 0) id = *cell_at(self, (int32_t)layer, SY_ANY);
    if (id == 0) id = *cell_at(self, SY_ANY, (int32_t)expert);
    if (id == 0) id = *cell_at(self, SY_ANY, SY_ANY);
    return id;
}

/* ---- equal lists once ---- */

static uint64_t list_hash(const sy_target_list *list)
{
    return sy_fnv1a(SY_FNV1A_START, list->target, list->n * sizeof(list->target[0]));
}

/* Parsed lists are zero after each text's end, so equal lists are equal bytes. */
static int list_equals(const sy_target_list *a, const sy_target_list *b)
{
    return a->n == b->n && memcmp(a->target, b->target, a->n * sizeof(a->target[0])) == 0;
}

static uint32_t *find_slot(const sy_snapshot *self, const index_table *table,
                           const sy_target_list *list)
{
    uint32_t i = (uint32_t)list_hash(list) & (table->n_slots - 1);

    while (table->slot[i] != 0 && !list_equals(&self->list[table->slot[i] - 1], list)) {
        i = (i + 1) & (table->n_slots - 1);
    }
    return &table->slot[i];
}

static sy_status grow_lists(sy_snapshot *self, index_table *table)
{
    const uint32_t capacity = SY_MAX(8u, 2 * self->list_capacity);
    sy_target_list *list = realloc(self->list, capacity * sizeof(*list));

    if (list == NULL) return SY_ENOMEM;
    self->list = list;
    self->list_capacity = capacity;
    free(table->slot);
    table->n_slots = 2 * capacity; /* so that the table is never more than half full */
    table->slot = calloc(table->n_slots, sizeof(*table->slot));
    if (table->slot == NULL) return SY_ENOMEM;
    for (uint32_t id = 1; id <= self->n_lists; id++) {
        *find_slot(self, table, &self->list[id - 1]) = id;
    }
    return SY_OK;
}

static sy_status intern(uint32_t *id, sy_snapshot *self, index_table *table,
                        const sy_target_list *list)
{
    uint32_t *slot;

    if (self->n_lists == self->list_capacity && grow_lists(self, table) != SY_OK) {
        return SY_ENOMEM;
    }
    SY_ASSERT(table->slot != NULL);
    slot = find_slot(self, table, list);
    if (*slot == 0) {
        self->list[self->n_lists++] = *list;
        *slot = self->n_lists;
    }
    *id = *slot;
    return SY_OK;
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

static sy_status take_entry(sy_snapshot *self, index_table *table, const sy_snapshot *previous,
                            const sy_placement_entry *entry)
{
    sy_target_list parsed;
    const sy_target_list *list = &parsed;
    sy_field field;
    sy_error why;
    uint32_t before = 0;

    if (sy_field_parse(&field, entry->field, entry->field_len, self->layers, self->experts, &why) !=
        SY_OK) {
        return refuse(self, entry, why.message, "");
    }
    if (sy_targets_parse(&parsed, entry->value, entry->value_len, &why) != SY_OK) {
        if (previous != NULL) before = *cell_at(previous, field.layer, field.expert);
        if (before == 0) return refuse(self, entry, why.message, "");
        if (refuse(self, entry, why.message, "; its last good value stays in force") != SY_OK) {
            return SY_ENOMEM;
        }
        list = &previous->list[before - 1];
    }
    return intern(cell_at(self, field.layer, field.expert), self, table, list);
}

static size_t count_missing(sy_snapshot *self)
{
    self->n_missing = 0;
    for (uint32_t layer = 0; layer < self->layers; layer++) {
        for (uint32_t expert = 0; expert < self->experts; expert++) {
            if (resolve(self, layer, expert) != 0) continue;
            if (self->n_missing == 0) {
                self->missing_layer = layer;
                self->missing_expert = expert;
            }
            self->n_missing++;
        }
    }
    return self->n_missing;
}

static sy_status adopt(sy_snapshot *self, const sy_snapshot *previous)
{
    if (self->list_capacity < previous->n_lists) {
        sy_target_list *list = realloc(self->list, previous->n_lists * sizeof(*list));

        if (list == NULL) return SY_ENOMEM;
        self->list = list;
        self->list_capacity = previous->n_lists;
    }
    if (previous->n_lists > 0) {
        memcpy(self->list, previous->list, previous->n_lists * sizeof(*self->list));
    }
    self->n_lists = previous->n_lists;
    memcpy(self->cell, previous->cell, n_cells(self) * sizeof(*self->cell));
    count_missing(self);
    return SY_OK;
}

/* Refuses the whole hash where it would take the last targets away from an expert that has some:
 * a deleted hash, or a deletion too many, must not stop what is being served. */
static sy_status guard_coverage(sy_snapshot *self, const sy_snapshot *previous, size_t n_entries)
{
    const size_t n_experts = (size_t)self->layers * self->experts;
    const size_t n_missing = count_missing(self);
    char why[160];

    if (previous == NULL) return SY_OK;
    if (n_entries == 0 && previous->n_missing < n_experts) {
        snprintf(why, sizeof(why), "the hash is deleted or empty");
    } else if (n_missing > 0 && previous->n_missing == 0) {
        snprintf(why, sizeof(why), "%zu of %zu experts would have no target, the first is %u/%u",
                 n_missing, n_experts, self->missing_layer, self->missing_expert);
    } else {
        return SY_OK;
    }
    if (adopt(self, previous) != SY_OK) return SY_ENOMEM;
    if (self->n_refusals == SY_REFUSALS_MAX) self->n_refusals--; /* this one matters more */
    return refuse(self, NULL, why, ": the placement before stays in force as a whole");
}

/* The hash is FNV-1a of the lines "LAYER/EXPERT VALUE\n", in order, of all experts that have
 * targets: anybody can compute it. */
static sy_status finish(sy_snapshot *self, const sy_snapshot *previous)
{
    char text[SY_PLACEMENT_VALUE_MAX];
    char name[32];
    size_t text_len = 0;
    uint32_t text_of = 0; /* neighbours often share a list: its text is made once */

    self->is_used = calloc(self->n_lists + 1, 1);
    if (self->is_used == NULL) return SY_ENOMEM;
    self->hash = SY_FNV1A_START;
    for (uint32_t layer = 0; layer < self->layers; layer++) {
        for (uint32_t expert = 0; expert < self->experts; expert++) {
            const uint32_t id = resolve(self, layer, expert);

            if (id == 0) continue;
            if (id != text_of) {
                text_len = sy_targets_format(text, sizeof(text) - 1, &self->list[id - 1]);
                text[text_len++] = '\n';
                text_of = id;
            }
            self->is_used[id - 1] = 1;
            self->hash = sy_fnv1a(self->hash, name,
                                  (size_t)snprintf(name, sizeof(name), "%u/%u ", layer, expert));
            self->hash = sy_fnv1a(self->hash, text, text_len);
        }
    }
    self->epoch = 1;
    if (previous != NULL) self->epoch = previous->epoch + (self->hash != previous->hash);
    return SY_OK;
}

static int compare_refusals(const void *a, const void *b)
{
    return strcmp(((const sy_refusal *)a)->field, ((const sy_refusal *)b)->field);
}

static sy_status open_snapshot(sy_snapshot **out, uint32_t layers, uint32_t experts)
{
    sy_snapshot *self = calloc(1, sizeof(*self));

    *out = NULL;
    if (self == NULL) return SY_ENOMEM;
    atomic_init(&self->n_refs, 1);
    self->layers = layers;
    self->experts = experts;
    self->cell = calloc(n_cells(self), sizeof(*self->cell));
    if (self->cell == NULL) {
        free(self);
        return SY_ENOMEM;
    }
    *out = self;
    return SY_OK;
}

sy_status sy_snapshot_build(sy_snapshot **out, const sy_snapshot *previous,
                            const sy_placement_entry *entry, size_t n_entries, uint32_t layers,
                            uint32_t experts, sy_error *err)
{
    sy_snapshot *self = NULL;
    index_table table = {NULL, 0};
    sy_status st;

    *out = NULL;
    if (layers == 0 || experts == 0 || layers >= CELLS_MAX || experts >= CELLS_MAX ||
        ((uint64_t)layers + 1) * ((uint64_t)experts + 1) > CELLS_MAX) {
        return sy_error_set(err, SY_EINVAL, "a model of %u layers with %u experts cannot be placed",
                            layers, experts);
    }
    if (previous != NULL && (previous->layers != layers || previous->experts != experts)) {
        return sy_error_set(err, SY_EINVAL, "the snapshot before is of another model");
    }
    SY_TRY(open_snapshot(&self, layers, experts));
    for (size_t i = 0; i < n_entries; i++) {
        SY_TRY(take_entry(self, &table, previous, &entry[i]));
    }
    SY_TRY(guard_coverage(self, previous, n_entries));
    SY_TRY(finish(self, previous));
    if (self->n_refusals > 1) {
        qsort(self->refusal, self->n_refusals, sizeof(*self->refusal), compare_refusals);
    }
    *out = self;
    self = NULL;
out:
    free(table.slot);
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
    free(snapshot->cell);
    free(snapshot->list);
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

uint32_t sy_snapshot_layers(const sy_snapshot *snapshot)
{
    return snapshot->layers;
}

uint32_t sy_snapshot_experts(const sy_snapshot *snapshot)
{
    return snapshot->experts;
}

const sy_target_list *sy_snapshot_targets(const sy_snapshot *snapshot, uint32_t layer,
                                          uint32_t expert)
{
    uint32_t id;

    if (layer >= snapshot->layers || expert >= snapshot->experts) return NULL;
    id = resolve(snapshot, layer, expert);
    return id == 0 ? NULL : &snapshot->list[id - 1];
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
    for (uint32_t i = 0; i < snapshot->n_lists; i++) {
        const sy_target_list *list = &snapshot->list[i];

        for (uint32_t j = 0; snapshot->is_used[i] && j < list->n; j++) {
            if (strcmp(list->target[j].node, node) == 0) return 1;
        }
    }
    return 0;
}
