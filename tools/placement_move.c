/* placement_move.c - see the header. */
#include "placement_move.h"

#include <string.h>

#include "target_edit.h"

sy_status placement_of_expert(sy_target_list *out, const char **field, const field_map *map,
                              uint32_t layer, uint32_t expert)
{
    const char *value;

    *field = field_map_speaker(map, layer, expert, FIELD_AFTER);
    if (*field == NULL) return SY_ENOTFOUND;
    value = field_map_get(map, *field, FIELD_AFTER);
    return sy_targets_parse(out, value, strlen(value), NULL);
}

static sy_status set_field(field_map *map, const char *field, const sy_target_list *list,
                           sy_error *err)
{
    char value[SY_PLACEMENT_VALUE_MAX];
    sy_status st;

    SY_TRY(targets_text(value, list, err));
    st = field_map_set(map, field, value);
    if (st != SY_OK) sy_error_set(err, st, "no memory for the edit");
out:
    return st;
}

sy_status placement_set_expert(field_map *map, uint32_t layer, uint32_t expert,
                               const sy_target_list *list, sy_error *err)
{
    char field[32];

    sy_field_format(field, sizeof(field), (sy_field){(int32_t)layer, (int32_t)expert});
    return set_field(map, field, list, err);
}

/* The field speaks for no expert outside the pattern. */
static int is_inside(const char *field, const move_what *what)
{
    sy_field f;

    if (sy_field_parse(&f, field, strlen(field), &what->grid, NULL) != SY_OK) {
        return 0;
    }
    return (what->field.layer == SY_ANY || f.layer == what->field.layer) &&
           (what->field.expert == SY_ANY || f.expert == what->field.expert);
}

static int is_of(const move_what *what, uint32_t layer)
{
    return sy_grid_has(&what->grid, layer) &&
           (what->field.layer == SY_ANY || (uint32_t)what->field.layer == layer);
}

static sy_status move_one(size_t *n_moved, field_map *map, const move_what *what, uint32_t layer,
                          uint32_t expert, sy_error *err)
{
    sy_target_list list;
    const char *field;
    sy_status st = SY_OK;

    if (placement_of_expert(&list, &field, map, layer, expert) != SY_OK) return SY_OK;
    if (targets_find(&list, &what->from) < 0) return SY_OK;
    SY_TRY(targets_move(&list, &what->from, &what->to, err));
    (*n_moved)++;
    /* With a count, the field of several experts would move more of them than were asked for. */
    if (what->count < 0 && is_inside(field, what)) {
        st = set_field(map, field, &list, err);
    } else {
        st = placement_set_expert(map, layer, expert, &list, err);
    }
out:
    return st;
}

/* Counts experts, not fields: once a wildcard is edited, the others that it speaks for are seen as
 * moved already. */
static size_t count_from(const field_map *map, const move_what *what)
{
    const char *field;
    sy_target_list list;
    size_t n = 0;

    for (uint32_t layer = 0; layer < what->grid.layers; layer++) {
        if (!is_of(what, layer)) continue;
        for (uint32_t expert = 0; expert < what->grid.experts; expert++) {
            if (what->field.expert != SY_ANY && (uint32_t)what->field.expert != expert) continue;
            if (placement_of_expert(&list, &field, map, layer, expert) != SY_OK) continue;
            n += targets_find(&list, &what->from) >= 0;
        }
    }
    return n;
}

sy_status placement_move(size_t *n_moved, field_map *map, const move_what *what, sy_error *err)
{
    const size_t n_there = count_from(map, what);
    size_t n = 0;
    sy_status st = SY_OK;

    *n_moved = what->count >= 0 ? SY_MIN(n_there, (size_t)what->count) : n_there;
    if (target_is_at(&what->from, &what->to)) *n_moved = 0;
    for (uint32_t layer = 0; layer < what->grid.layers && n < *n_moved; layer++) {
        if (!is_of(what, layer)) continue;
        for (uint32_t expert = 0; expert < what->grid.experts && n < *n_moved; expert++) {
            if (what->field.expert != SY_ANY && (uint32_t)what->field.expert != expert) continue;
            SY_TRY(move_one(&n, map, what, layer, expert, err));
        }
    }
out:
    return st;
}
