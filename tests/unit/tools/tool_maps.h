/* tool_maps.h - placements in memory for tests, written as operators type them. */
#ifndef TOOL_MAPS_H
#define TOOL_MAPS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cluster_facts.h"
#include "field_map.h"

/* pairs: field, value, field, value, ..., NULL. */
static inline field_map *map_of(const char *const *pairs)
{
    sy_placement_entry entry[64];
    tool_hash hash = {.entry = entry};
    field_map *map = NULL;

    for (size_t i = 0; pairs[i] != NULL; i += 2) {
        assert_true(hash.n < SY_COUNT_OF(entry));
        entry[hash.n++] =
            (sy_placement_entry){pairs[i], strlen(pairs[i]), pairs[i + 1], strlen(pairs[i + 1])};
    }
    assert_int_equal(field_map_open(&map, &hash, NULL), SY_OK);
    return map;
}

#define MAP(...) map_of((const char *const[]){__VA_ARGS__, NULL})

static inline void assert_field(const field_map *map, const char *field, const char *value)
{
    const char *now = field_map_get(map, field, FIELD_AFTER);

    if (value == NULL) {
        assert_null(now);
        return;
    }
    if (now == NULL) fail_msg("%s is not there, and should be '%s'", field, value);
    assert_string_equal(now, value);
}

/* One more node to facts of at most 8, with cpu:0 and /shards as JSON (NULL: does not tell). */
static inline fact_process *add_node(cluster_facts *facts, const char *name, const char *shards)
{
    fact_process *p;

    if (facts->process == NULL) facts->process = calloc(8, sizeof(*facts->process));
    assert_non_null(facts->process);
    p = &facts->process[facts->n++];
    p->kind = SY_MEMBER_NODE;
    p->answers = 1;
    snprintf(p->lease.name, sizeof(p->lease.name), "%s", name);
    snprintf(p->lease.devices, sizeof(p->lease.devices), "cpu:0");
    snprintf(p->lease.state, sizeof(p->lease.state), "serving");
    if (shards != NULL) {
        assert_int_equal(fact_read_shards(&p->shards, shards), SY_OK);
        p->has_shards = 1;
    }
    return p;
}

#endif
