/* placement_undo.c - see the header. */
#include "placement_undo.h"

#include <string.h>

#include "tool_text.h"

static int is_same(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

sy_status undo_entry(field_map *map, const history_entry *entry, int force, sy_error *err)
{
    if (entry->change == NULL) {
        return sy_error_set(
            err, SY_EPRECONDITION,
            "history entry %s (%s) does not say what each of its %zu fields was "
            "before, so it cannot be undone: switchyard placement apply takes a plan "
            "that was kept",
            tool_shown(entry->id), tool_shown(entry->command), entry->n_fields);
    }
    for (size_t i = 0; i < entry->n; i++) {
        const tool_field_change *change = &entry->change[i];
        const char *now = field_map_get(map, change->field, FIELD_AFTER);

        if (!force && !is_same(now, change->after)) {
            sy_error_set(err, SY_EEXISTS,
                         "%s is %s by now, and not %s, which entry %s made of it: undo the later "
                         "entry first, or --force",
                         tool_shown(change->field), tool_shown(now), tool_shown(change->after),
                         tool_shown(entry->id));
            sy_error_where(err, "PLACEMENT_CHANGED", -1, -1, NULL);
            return SY_EEXISTS;
        }
        if (field_map_set(map, change->field, change->before) != SY_OK) {
            return sy_error_set(err, SY_ENOMEM, "no memory for the edit");
        }
    }
    return SY_OK;
}
