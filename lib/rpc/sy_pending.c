/* sy_pending.c - requests in flight by id: open addressing with linear probing. Ids count upwards,
 * so the low bits spread them perfectly; the table is at most half full and never grows. */
#include "sy_rpc_internal.h"

#include <stdlib.h>

sy_status rpc_pending_open(rpc_pending *table, size_t max)
{
    size_t slots = 16;

    if (max > SIZE_MAX / 4 / sizeof(rpc_pending_entry)) return SY_ENOMEM;
    while (slots < 2 * max) slots *= 2;
    table->entry = calloc(slots, sizeof(*table->entry));
    if (table->entry == NULL) return SY_ENOMEM;
    table->mask = slots - 1;
    table->count = 0;
    table->max = max;
    return SY_OK;
}

void rpc_pending_free(rpc_pending *table)
{
    free(table->entry);
    table->entry = NULL;
}

/* The slot that holds id, or the free one where it would go. */
static size_t find(const rpc_pending *table, uint64_t id)
{
    size_t at = (size_t)id & table->mask;

    while (table->entry[at].id != 0 && table->entry[at].id != id) at = (at + 1) & table->mask;
    return at;
}

sy_status rpc_pending_put(rpc_pending *table, rpc_pending_entry entry)
{
    const size_t at = find(table, entry.id);

    SY_ASSERT(entry.id != 0);
    if (table->entry[at].id != 0) return SY_EEXISTS;
    if (table->count >= table->max) return SY_ELIMIT;
    table->entry[at] = entry;
    table->count++;
    return SY_OK;
}

int rpc_pending_has(const rpc_pending *table, uint64_t id)
{
    return id != 0 && table->entry[find(table, id)].id != 0;
}

/* Closes the gap: later entries of the run move up when their home allows it, so that no tombstones
 * are needed. */
static void remove_at(rpc_pending *table, size_t gap)
{
    size_t at = gap;

    for (;;) {
        size_t home;

        at = (at + 1) & table->mask;
        if (table->entry[at].id == 0) break;
        home = (size_t)table->entry[at].id & table->mask;
        if (((at - home) & table->mask) < ((at - gap) & table->mask)) continue;
        table->entry[gap] = table->entry[at];
        gap = at;
    }
    table->entry[gap].id = 0;
    table->count--;
}

int rpc_pending_take(rpc_pending *table, uint64_t id, rpc_pending_entry *out)
{
    const size_t at = find(table, id);

    if (id == 0 || table->entry[at].id == 0) return 0;
    *out = table->entry[at];
    remove_at(table, at);
    return 1;
}

int rpc_pending_take_any(rpc_pending *table, size_t *cursor, rpc_pending_entry *out)
{
    if (table->count == 0) return 0;
    while (table->entry[*cursor & table->mask].id == 0) (*cursor)++;
    *out = table->entry[*cursor & table->mask];
    remove_at(table, *cursor & table->mask);
    return 1;
}
