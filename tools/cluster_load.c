/* cluster_load.c - see the header. */
#include "cluster_load.h"

#include <stdlib.h>

#include <jansson.h>

#include "fact_json.h"

/* An answer for a model of other dimensions adds nothing. */
static void add_load(uint64_t *rows, uint64_t *total, const json_t *object, size_t n)
{
    const json_t *list = json_object_get(object, "rows");

    if (json_array_size(list) != n) return;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        const json_int_t count = json_is_integer(item) ? json_integer_value(item) : 0;

        if (count <= 0) continue;
        rows[i] += (uint64_t)count;
        *total += (uint64_t)count;
    }
}

sy_status cluster_load_take(uint64_t **rows, const cluster_facts *facts, uint32_t layers,
                            uint32_t experts)
{
    const size_t n = (size_t)layers * experts;
    uint64_t total = 0;

    *rows = calloc(n + 1, sizeof(**rows));
    if (*rows == NULL) return SY_ENOMEM;
    for (size_t i = 0; i < facts->n; i++) {
        json_t *object = NULL;

        if (facts->process[i].kind != SY_MEMBER_AGGREGATOR) continue;
        if (fact_get(&object, facts->process[i].lease.http, "/load", NULL) == SY_OK) {
            add_load(*rows, &total, object, n);
        }
        json_decref(object);
    }
    if (total > 0) return SY_OK;
    free(*rows);
    *rows = NULL;
    return SY_ENOTFOUND;
}
