/* sy_chat_dict.c - mappings of a chat template, and what they stand on: hashing, equality, order.
 */
#include <math.h>
#include <string.h>

#include "sy_chat_value.h"
#include "sy_hash.h"

#define SMALL_DICT 8 /* entries that a plain search finds as fast as a table */

chat_dict *sy_chat_dict_new(chat_run *run)
{
    chat_dict *dict = sy_chat_alloc(run, 1, sizeof(*dict));

    if (dict != NULL) *dict = (chat_dict){0};
    return dict;
}

chat_value sy_chat_from_dict(chat_dict *dict)
{
    if (dict == NULL) return sy_chat_undefined(NULL, CHAT_MISSING);
    return (chat_value){.kind = CHAT_DICT, .dict = dict};
}

/* A tuple is a key when it holds plain values; Python would look into tuples inside it. */
int sy_chat_is_hashable(chat_value v)
{
    if (v.kind == CHAT_DICT) return 0;
    if (v.kind != CHAT_LIST) return 1;
    if (v.list->seq != CHAT_SEQ_TUPLE) return 0;
    for (size_t i = 0; i < v.list->n; i++) {
        if (v.list->item[i].kind == CHAT_DICT || v.list->item[i].kind == CHAT_LIST) return 0;
    }
    return 1;
}

/* Equal values hash alike: 1, 1.0 and true are one key. */
static uint64_t hash_value(chat_value v)
{
    uint64_t hash = SY_FNV1A_START;

    switch (v.kind) {
    case CHAT_STRING: return sy_fnv1a(hash, v.str->data, v.str->n);
    case CHAT_BOOL:
    case CHAT_INT: return sy_splitmix64((uint64_t)v.i);
    case CHAT_FLOAT:
        if (v.f >= -9e18 && v.f <= 9e18 && floor(v.f) == v.f) {
            return sy_splitmix64((uint64_t)(int64_t)v.f);
        }
        return sy_fnv1a(hash, &v.f, sizeof(v.f));
    case CHAT_LIST:
        for (size_t i = 0; i < v.list->n; i++) {
            hash = sy_splitmix64(hash ^ hash_value(v.list->item[i]));
        }
        return hash;
    default: return v.kind;
    }
}

static size_t find(chat_run *run, const chat_dict *dict, chat_value key, uint64_t hash)
{
    if (dict->n_slots == 0) {
        for (size_t i = 0; i < dict->n; i++) {
            if (dict->entry[i].hash == hash && sy_chat_equal(run, dict->entry[i].key, key)) {
                return i;
            }
        }
        return dict->n;
    }
    for (size_t at = hash & (dict->n_slots - 1);; at = (at + 1) & (dict->n_slots - 1)) {
        const size_t i = dict->slot[at];

        if (i == 0 || run->status != SY_OK) return dict->n;
        if (dict->entry[i - 1].hash == hash && sy_chat_equal(run, dict->entry[i - 1].key, key)) {
            return i - 1;
        }
        sy_chat_charge(run, 0); /* keys that are made to collide cost their maker steps */
    }
}

static void link_entry(chat_run *run, chat_dict *dict, size_t i)
{
    size_t at = dict->entry[i].hash & (dict->n_slots - 1);

    while (dict->slot[at] != 0) {
        at = (at + 1) & (dict->n_slots - 1);
        sy_chat_charge(run, 0);
    }
    dict->slot[at] = (uint32_t)(i + 1);
}

static int grow(chat_run *run, chat_dict *dict)
{
    const size_t larger = SY_MAX((size_t)SMALL_DICT, 2 * dict->capacity);
    chat_entry *entry = sy_chat_alloc(run, larger, sizeof(*entry));

    if (entry == NULL) return 0;
    if (dict->n > 0) memcpy(entry, dict->entry, dict->n * sizeof(*entry));
    dict->entry = entry;
    dict->capacity = larger;
    if (larger > SMALL_DICT) {
        uint32_t *slot = sy_chat_alloc(run, 2 * larger, sizeof(*slot));

        if (slot == NULL) return 0;
        memset(slot, 0, 2 * larger * sizeof(*slot));
        dict->slot = slot;
        dict->n_slots = 2 * larger;
        for (size_t i = 0; i < dict->n && run->status == SY_OK; i++) link_entry(run, dict, i);
    }
    return run->status == SY_OK;
}

static int require_hashable(chat_run *run, chat_value key)
{
    if (key.kind == CHAT_STRING) sy_chat_charge(run, key.str->n);
    if (key.kind == CHAT_LIST) sy_chat_charge(run, key.list->n * sizeof(key));
    if (sy_chat_is_hashable(key)) return 1;
    sy_chat_fail(run, SY_EINVAL, "unhashable type: '%s'", sy_chat_type(key));
    return 0;
}

void sy_chat_dict_set(chat_run *run, chat_dict *dict, chat_value key, chat_value value)
{
    uint64_t hash;
    size_t i;

    if (dict == NULL || run->status != SY_OK || !require_hashable(run, key)) return;
    hash = hash_value(key);
    i = find(run, dict, key, hash);
    if (i < dict->n) {
        dict->entry[i].value = value;
        return;
    }
    if (run->status != SY_OK || (dict->n == dict->capacity && !grow(run, dict))) return;
    dict->entry[dict->n] = (chat_entry){.key = key, .value = value, .hash = hash};
    dict->n++;
    if (dict->n_slots > 0) link_entry(run, dict, dict->n - 1);
    sy_chat_charge(run, sizeof(chat_entry));
}

chat_value *sy_chat_dict_get(chat_run *run, const chat_dict *dict, chat_value key)
{
    size_t i;

    if (!require_hashable(run, key)) return NULL;
    i = find(run, dict, key, hash_value(key));
    return i < dict->n ? &dict->entry[i].value : NULL;
}

chat_value *sy_chat_dict_get_str(chat_run *run, const chat_dict *dict, chat_str *key)
{
    return sy_chat_dict_get(run, dict, (chat_value){.kind = CHAT_STRING, .str = key});
}

chat_value sy_chat_dict_view(chat_run *run, const chat_dict *dict, chat_seq view)
{
    chat_list *list = sy_chat_list_new(run, view, dict->n);

    for (size_t i = 0; list != NULL && i < dict->n && run->status == SY_OK; i++) {
        const chat_entry *e = &dict->entry[i];

        sy_chat_list_push(run, list,
                          view == CHAT_SEQ_KEYS     ? e->key
                          : view == CHAT_SEQ_VALUES ? e->value
                                                    : sy_chat_pair(run, e->key, e->value));
    }
    return sy_chat_from_list(list);
}

/* Exact even where an integer has no double of its value. */
static int compare_int_double(int64_t a, double f, int *unordered)
{
    int64_t whole;

    *unordered = isnan(f);
    if (isnan(f)) return 1;
    if (f >= 0x1p63) return -1;
    if (f < -0x1p63) return 1;
    whole = (int64_t)f; /* towards zero */
    if (a != whole) return a < whole ? -1 : 1;
    return (double)whole < f ? -1 : (double)whole > f;
}

static int compare_numbers(chat_value a, chat_value b, int *unordered)
{
    *unordered = 0;
    if (a.kind != CHAT_FLOAT && b.kind != CHAT_FLOAT) return (a.i > b.i) - (a.i < b.i);
    if (a.kind != CHAT_FLOAT) return compare_int_double(a.i, b.f, unordered);
    if (b.kind != CHAT_FLOAT) return -compare_int_double(b.i, a.f, unordered);
    *unordered = isnan(a.f) || isnan(b.f);
    return *unordered ? 1 : (a.f > b.f) - (a.f < b.f);
}

static int compare_strings(chat_run *run, const chat_str *a, const chat_str *b)
{
    const size_t n = SY_MIN(a->n, b->n);
    const int order = memcmp(a->data, b->data, n); /* UTF-8 sorts as its code points do */

    sy_chat_charge(run, n);
    return order != 0 ? order : (a->n > b->n) - (a->n < b->n);
}

static int equal_lists(chat_run *run, const chat_list *a, const chat_list *b)
{
    if (a == b) return 1;
    if (a->seq != b->seq || a->n != b->n || a->seq == CHAT_SEQ_ITERATOR) return 0;
    for (size_t i = 0; i < a->n && run->status == SY_OK; i++) {
        if (!sy_chat_equal(run, a->item[i], b->item[i])) return 0;
    }
    return 1;
}

static int equal_dicts(chat_run *run, const chat_dict *a, const chat_dict *b)
{
    if (a == b) return 1;
    if (a->n != b->n) return 0;
    for (size_t i = 0; i < a->n && run->status == SY_OK; i++) {
        const chat_value *other = sy_chat_dict_get(run, b, a->entry[i].key);

        if (other == NULL || !sy_chat_equal(run, a->entry[i].value, *other)) return 0;
    }
    return 1;
}

static int equal_containers(chat_run *run, chat_value a, chat_value b)
{
    int equal = 0;

    if (sy_chat_enter(run)) {
        equal = a.kind == CHAT_LIST ? equal_lists(run, a.list, b.list)
                                    : equal_dicts(run, a.dict, b.dict);
    }
    sy_chat_leave(run);
    return equal;
}

int sy_chat_equal(chat_run *run, chat_value a, chat_value b)
{
    int unordered;

    sy_chat_charge(run, 0);
    if (sy_chat_is_number(a) && sy_chat_is_number(b)) {
        return compare_numbers(a, b, &unordered) == 0 && !unordered;
    }
    if (a.kind != b.kind) return 0;
    switch (a.kind) {
    case CHAT_STRING: return a.str->n == b.str->n && compare_strings(run, a.str, b.str) == 0;
    case CHAT_LIST:
    case CHAT_DICT: return equal_containers(run, a, b);
    case CHAT_NAMESPACE: return a.dict == b.dict;
    case CHAT_MACRO: return a.macro == b.macro;
    case CHAT_LOOP: return a.loop == b.loop;
    case CHAT_FUNCTION: return a.id == b.id;
    case CHAT_METHOD: return 0;
    default: return 1; /* none, undefined */
    }
}

static int compare_lists(chat_run *run, const chat_list *a, const chat_list *b, const char *symbol,
                         int *unordered)
{
    const size_t n = SY_MIN(a->n, b->n);
    size_t i = 0;
    int order;

    while (i < n && run->status == SY_OK && sy_chat_equal(run, a->item[i], b->item[i])) i++;
    if (i == n) return (a->n > b->n) - (a->n < b->n);
    order =
        sy_chat_enter(run) ? sy_chat_compare(run, a->item[i], b->item[i], symbol, unordered) : 0;
    sy_chat_leave(run);
    return order;
}

int sy_chat_compare(chat_run *run, chat_value a, chat_value b, const char *symbol, int *unordered)
{
    int ignored;

    if (unordered == NULL) unordered = &ignored;
    *unordered = 0;
    if (a.kind == CHAT_UNDEFINED || b.kind == CHAT_UNDEFINED) {
        sy_chat_fail_undefined(run, a.kind == CHAT_UNDEFINED ? a : b);
        return 0;
    }
    if (sy_chat_is_number(a) && sy_chat_is_number(b)) return compare_numbers(a, b, unordered);
    if (a.kind == CHAT_STRING && b.kind == CHAT_STRING) return compare_strings(run, a.str, b.str);
    if (a.kind == CHAT_LIST && b.kind == CHAT_LIST && a.list->seq == b.list->seq &&
        a.list->seq <= CHAT_SEQ_TUPLE) {
        return compare_lists(run, a.list, b.list, symbol, unordered);
    }
    sy_chat_fail(run, SY_EINVAL, "'%s' not supported between instances of '%s' and '%s'", symbol,
                 sy_chat_type(a), sy_chat_type(b));
    return 0;
}

static int contains_text(chat_run *run, const chat_str *s, chat_value item)
{
    if (item.kind != CHAT_STRING) {
        sy_chat_fail(run, SY_EINVAL, "'in <string>' requires string as left operand, not %s",
                     sy_chat_type(item));
        return 0;
    }
    sy_chat_charge(run, s->n);
    return item.str->n == 0 || memmem(s->data, s->n, item.str->data, item.str->n) != NULL;
}

int sy_chat_contains(chat_run *run, chat_value container, chat_value item)
{
    chat_list *list;

    if (container.kind == CHAT_STRING) return contains_text(run, container.str, item);
    if (container.kind == CHAT_DICT) return sy_chat_dict_get(run, container.dict, item) != NULL;
    if (container.kind != CHAT_LIST && container.kind != CHAT_UNDEFINED) {
        sy_chat_fail(run, SY_EINVAL, "argument of type '%s' is not iterable",
                     sy_chat_type(container));
        return 0;
    }
    list = sy_chat_iterate(run, container);
    for (size_t i = 0; list != NULL && i < list->n && run->status == SY_OK; i++) {
        if (sy_chat_equal(run, list->item[i], item)) return 1;
    }
    return 0;
}
