/* sy_lists.c - lists are told apart by their canonical text: comparing a few bytes with it says
 * that a value is known, and saves parsing it. */
#include "sy_lists.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "sy_hash.h"

/* One allocation. The text stands right behind the head, because looking at both is what a build
 * does for every field. */
struct sy_list {
    _Atomic uint32_t n_refs;
    uint32_t text_len;
    uint64_t hash; /* of the text */
    const sy_target_list *targets;
    char text[]; /* not terminated; the targets follow */
};

static sy_list *list_new(const sy_target_list *targets, const char *text, size_t n, uint64_t hash)
{
    const size_t text_bytes = (n + 7) / 8 * 8; /* keeps the targets aligned */
    sy_list *list = malloc(sizeof(*list) + text_bytes + sizeof(*targets));
    void *copy;

    if (list == NULL) return NULL;
    copy = list->text + text_bytes;
    atomic_init(&list->n_refs, 1);
    list->text_len = (uint32_t)n;
    list->hash = hash;
    list->targets = memcpy(copy, targets, sizeof(*targets));
    memcpy(list->text, text, n);
    return list;
}

static void list_unref(sy_list *list)
{
    if (atomic_fetch_sub_explicit(&list->n_refs, 1, memory_order_acq_rel) == 1) free(list);
}

sy_status sy_lists_share(sy_lists *out, const sy_lists *lists)
{
    memset(out, 0, sizeof(*out));
    if (lists->n == 0) return SY_OK;
    out->at = malloc(lists->n * sizeof(*out->at));
    if (out->at == NULL) return SY_ENOMEM;
    memcpy(out->at, lists->at, lists->n * sizeof(*out->at));
    out->n = out->capacity = lists->n;
    for (uint32_t i = 0; i < out->n; i++) {
        atomic_fetch_add_explicit(&out->at[i]->n_refs, 1, memory_order_relaxed);
    }
    return SY_OK;
}

void sy_lists_close(sy_lists *lists)
{
    for (uint32_t i = 0; i < lists->n; i++) list_unref(lists->at[i]);
    free(lists->at);
    free(lists->slot);
    memset(lists, 0, sizeof(*lists));
}

static int is_text(const sy_list *list, const char *text, size_t n)
{
    return list->text_len == n && memcmp(list->text, text, n) == 0;
}

int sy_lists_is_text(const sy_lists *lists, uint32_t number, const char *text, size_t n)
{
    return is_text(lists->at[number - 1], text, n);
}

/* Where the list with this text is in the table, or belongs. There is always a free slot. */
static uint32_t *find_slot(const sy_lists *lists, const char *text, size_t n, uint64_t hash)
{
    uint32_t i = (uint32_t)sy_splitmix64(hash) & (lists->n_slots - 1);

    while (lists->slot[i] != 0) {
        const sy_list *list = lists->at[lists->slot[i] - 1];

        if (list->hash == hash && is_text(list, text, n)) break;
        i = (i + 1) & (lists->n_slots - 1);
    }
    return &lists->slot[i];
}

/* Makes room for one more list, in a table of a power of two that is at most half full. */
static sy_status make_room(sy_lists *lists)
{
    uint32_t n_slots = 64;

    if (lists->n == lists->capacity) {
        const uint32_t capacity = SY_MAX(16u, 2 * lists->capacity);
        sy_list **at = realloc(lists->at, capacity * sizeof(*at));

        if (at == NULL) return SY_ENOMEM;
        lists->at = at;
        lists->capacity = capacity;
    }
    if (lists->n_slots >= 2 * (lists->n + 1)) return SY_OK;
    while (n_slots < 4 * (lists->n + 1)) n_slots *= 2;
    free(lists->slot);
    lists->slot = calloc(n_slots, sizeof(*lists->slot));
    lists->n_slots = lists->slot == NULL ? 0 : n_slots;
    if (lists->slot == NULL) return SY_ENOMEM;
    for (uint32_t i = 0; i < lists->n; i++) {
        const sy_list *list = lists->at[i];

        *find_slot(lists, list->text, list->text_len, list->hash) = i + 1;
    }
    return SY_OK;
}

sy_status sy_lists_find(uint32_t *number, sy_lists *lists, const char *text, size_t n)
{
    *number = 0;
    if (lists->n == 0 || n > SY_PLACEMENT_VALUE_MAX) return SY_OK;
    if (make_room(lists) != SY_OK) return SY_ENOMEM;
    *number = *find_slot(lists, text, n, sy_fnv1a(SY_FNV1A_START, text, n));
    return SY_OK;
}

sy_status sy_lists_add(uint32_t *number, sy_lists *lists, const sy_target_list *targets)
{
    char text[SY_PLACEMENT_VALUE_MAX];
    const size_t n = sy_targets_format(text, sizeof(text), targets);
    const uint64_t hash = sy_fnv1a(SY_FNV1A_START, text, n);
    uint32_t *slot;

    *number = 0;
    if (make_room(lists) != SY_OK) return SY_ENOMEM;
    slot = find_slot(lists, text, n, hash);
    if (*slot == 0) {
        sy_list *list = list_new(targets, text, n, hash);

        if (list == NULL) return SY_ENOMEM;
        lists->at[lists->n++] = list;
        *slot = lists->n;
    }
    *number = *slot;
    return SY_OK;
}

void sy_lists_keep(sy_lists *lists, uint32_t *is_kept)
{
    uint32_t n_kept = 0;

    for (uint32_t i = 0; i < lists->n; i++) {
        sy_list *const list = lists->at[i];

        if (is_kept[i + 1]) {
            lists->at[n_kept++] = list;
            is_kept[i + 1] = n_kept;
        } else {
            list_unref(list);
        }
    }
    lists->n = n_kept;
    free(lists->slot);
    lists->slot = NULL;
    lists->n_slots = 0;
}

const sy_target_list *sy_lists_targets(const sy_lists *lists, uint32_t number)
{
    return lists->at[number - 1]->targets;
}

uint64_t sy_lists_hash(const sy_lists *lists, uint32_t number)
{
    return lists->at[number - 1]->hash;
}
