/* field_map.c - an index by hash over a list of fields, texts in an arena. */
#include "field_map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_arena.h"
#include "sy_hash.h"

#define TEXT_BYTES_MAX ((size_t)1 << 30)

typedef struct field_item {
    const char *field, *before, *after; /* NULL: not there */
    const char *expected;
    int is_set, is_expected;
} field_item;

struct field_map {
    field_item *item; /* [n] */
    size_t n, cap;
    uint32_t *slot; /* [n_slots], a power of two more than half empty; item + 1, 0: none */
    size_t n_slots;
    tool_field_change *change; /* what field_map_changes gave out */
    sy_arena arena;
};

/* ---- the index ---- */

static uint32_t *find_slot(const field_map *map, const char *field)
{
    size_t i = (size_t)sy_fnv1a(SY_FNV1A_START, field, strlen(field)) & (map->n_slots - 1);

    while (map->slot[i] != 0 && strcmp(map->item[map->slot[i] - 1].field, field) != 0) {
        i = (i + 1) & (map->n_slots - 1);
    }
    return &map->slot[i];
}

static field_item *find(const field_map *map, const char *field)
{
    const uint32_t slot = *find_slot(map, field);

    return slot != 0 ? &map->item[slot - 1] : NULL;
}

static sy_status grow(field_map *map)
{
    const size_t cap = SY_MAX((size_t)64, 2 * map->cap);
    field_item *item = realloc(map->item, cap * sizeof(*item));
    uint32_t *slot = calloc(4 * cap, sizeof(*slot));

    if (item != NULL) map->item = item;
    if (item == NULL || slot == NULL) {
        free(slot);
        return SY_ENOMEM;
    }
    free(map->slot);
    map->slot = slot;
    map->n_slots = 4 * cap;
    map->cap = cap;
    for (size_t i = 0; i < map->n; i++) *find_slot(map, map->item[i].field) = (uint32_t)(i + 1);
    return SY_OK;
}

static sy_status add(field_item **out, field_map *map, const char *field, size_t n)
{
    const char *copy = sy_arena_strndup(&map->arena, field, strnlen(field, n));

    *out = NULL;
    if (copy == NULL || (map->n == map->cap && grow(map) != SY_OK)) return SY_ENOMEM;
    map->item[map->n] = (field_item){.field = copy};
    *out = &map->item[map->n++];
    *find_slot(map, copy) = (uint32_t)map->n;
    return SY_OK;
}

/* ---- open and close ---- */

sy_status field_map_open(field_map **out, const tool_hash *hash, sy_error *err)
{
    field_map *map = calloc(1, sizeof(*map));
    field_item *item;
    sy_status st = SY_ENOMEM;

    *out = NULL;
    if (map == NULL) goto out;
    sy_arena_init(&map->arena, TEXT_BYTES_MAX);
    SY_TRY(grow(map));
    for (size_t i = 0; i < hash->n; i++) {
        const sy_placement_entry *e = &hash->entry[i];

        SY_TRY(add(&item, map, e->field, e->field_len));
        item->before = sy_arena_strndup(&map->arena, e->value, strnlen(e->value, e->value_len));
        item->after = item->before;
        if (item->before == NULL) st = SY_ENOMEM;
        if (st != SY_OK) goto out;
    }
    *out = map;
    map = NULL;
out:
    field_map_close(map);
    if (st != SY_OK) sy_error_set(err, st, "no memory for the placement");
    return st;
}

void field_map_close(field_map *map)
{
    if (map == NULL) return;
    sy_arena_free(&map->arena);
    free(map->item);
    free(map->slot);
    free(map->change);
    free(map);
}

/* ---- reading and setting ---- */

static const char *value_of(const field_item *item, field_side side)
{
    return side == FIELD_BEFORE ? item->before : item->after;
}

const char *field_map_get(const field_map *map, const char *field, field_side side)
{
    const field_item *item = find(map, field);

    return item != NULL ? value_of(item, side) : NULL;
}

sy_status field_map_set(field_map *map, const char *field, const char *value)
{
    field_item *item = find(map, field);
    sy_status st = SY_OK;

    if (item == NULL) SY_TRY(add(&item, map, field, strlen(field)));
    item->is_set = 1;
    item->after = NULL;
    if (value != NULL) {
        item->after = sy_arena_strndup(&map->arena, value, strlen(value));
        if (item->after == NULL) st = SY_ENOMEM;
    }
out:
    return st;
}

sy_status field_map_expect(field_map *map, const char *field, const char *before)
{
    field_item *item = find(map, field);
    sy_status st = SY_OK;

    if (item == NULL) SY_TRY(add(&item, map, field, strlen(field)));
    item->is_expected = 1;
    item->expected = NULL;
    if (before != NULL) {
        item->expected = sy_arena_strndup(&map->arena, before, strlen(before));
        if (item->expected == NULL) st = SY_ENOMEM;
    }
out:
    return st;
}

sy_status field_map_each(field_map *map,
                         sy_status (*fn)(void *arg, const char *field, const char *value),
                         void *arg)
{
    const size_t n = map->n;
    sy_status st = SY_OK;

    for (size_t i = 0; i < n && st == SY_OK; i++) {
        if (map->item[i].after != NULL) st = fn(arg, map->item[i].field, map->item[i].after);
    }
    return st;
}

/* "2/3" before "10/1". */
static int by_field(const void *a, const void *b)
{
    return strverscmp(((const tool_field_change *)a)->field, ((const tool_field_change *)b)->field);
}

sy_status field_map_changes(const tool_field_change **out, size_t *n, field_map *map)
{
    *n = 0;
    free(map->change);
    *out = map->change = calloc(map->n + 1, sizeof(*map->change));
    if (map->change == NULL) return SY_ENOMEM;
    for (size_t i = 0; i < map->n; i++) {
        const field_item *item = &map->item[i];

        if (!item->is_set) continue;
        map->change[(*n)++] = (tool_field_change){
            item->field, item->is_expected ? item->expected : item->before, item->after};
    }
    if (*n > 1) qsort(map->change, *n, sizeof(*map->change), by_field);
    return SY_OK;
}

sy_status field_map_snapshot(sy_snapshot **out, const field_map *map, field_side side,
                             const sy_grid *grid, sy_error *err)
{
    sy_placement_entry *entry = calloc(map->n + 1, sizeof(*entry));
    size_t n = 0;
    sy_status st;

    *out = NULL;
    if (entry == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the placement");
    for (size_t i = 0; i < map->n; i++) {
        const char *field = map->item[i].field;
        const char *value = value_of(&map->item[i], side);

        if (value == NULL) continue;
        entry[n++] = (sy_placement_entry){field, strlen(field), value, strlen(value)};
    }
    st = sy_snapshot_build(out, NULL, entry, n, grid, err);
    free(entry);
    return st;
}

const char *field_map_speaker(const field_map *map, uint32_t layer, uint32_t expert,
                              field_side side)
{
    const sy_field candidate[] = {{(int32_t)layer, (int32_t)expert},
                                  {(int32_t)layer, SY_ANY},
                                  {SY_ANY, (int32_t)expert},
                                  {SY_ANY, SY_ANY}};
    sy_target_list list;
    char text[32];

    for (size_t i = 0; i < SY_COUNT_OF(candidate); i++) {
        const field_item *item;
        const char *value;

        sy_field_format(text, sizeof(text), candidate[i]);
        item = find(map, text);
        value = item != NULL ? value_of(item, side) : NULL;
        if (value != NULL && sy_targets_parse(&list, value, strlen(value), NULL) == SY_OK) {
            return item->field;
        }
    }
    return NULL;
}
