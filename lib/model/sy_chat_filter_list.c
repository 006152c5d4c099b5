/* sy_chat_filter_list.c - Jinja's filters on sequences and mappings. */
#include <string.h>

#include "sy_chat_eval.h"
#include "sy_chat_text.h"

static chat_value to_list(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_list *items = sy_chat_iterate(run, self);
    chat_list *list;

    (void)arg;
    if (items == NULL) return sy_chat_none();
    list = sy_chat_list_new(run, CHAT_SEQ_LIST, items->n);
    for (size_t i = 0; i < items->n && run->status == SY_OK; i++) {
        sy_chat_list_push(run, list, items->item[i]);
    }
    return sy_chat_from_list(list);
}

static chat_value first(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_list *items;

    (void)arg;
    if (self.kind == CHAT_LIST && self.list->seq == CHAT_SEQ_ITERATOR) {
        if (self.list->pos < self.list->n) return self.list->item[self.list->pos++];
        return sy_chat_undefined(NULL, CHAT_MISSING);
    }
    items = sy_chat_iterate(run, self);
    if (items == NULL || items->n == 0) return sy_chat_undefined(NULL, CHAT_MISSING);
    return items->item[0];
}

static chat_value last(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_list *items;

    (void)arg;
    if (self.kind == CHAT_LIST && self.list->seq == CHAT_SEQ_ITERATOR) {
        sy_chat_fail(run, SY_EINVAL, "'generator' object is not reversible");
    }
    items = sy_chat_iterate(run, self);
    if (items == NULL || items->n == 0) return sy_chat_undefined(NULL, CHAT_MISSING);
    return items->item[items->n - 1];
}

static chat_value join(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_list *items = sy_chat_iterate(run, self);
    const chat_value separator =
        arg[0].kind == CHAT_MISSING ? sy_chat_cstring(run, "") : sy_chat_to_string(run, arg[0]);
    sy_strbuf buf;

    sy_chat_text_begin(&buf);
    for (size_t i = 0; items != NULL && i < items->n && run->status == SY_OK; i++) {
        chat_value item = items->item[i];

        if (arg[1].kind != CHAT_MISSING && arg[1].kind != CHAT_NONE) {
            item = sy_chat_path(run, item, arg[1]);
        }
        if (i > 0) sy_chat_put(run, &buf, separator.str->data, separator.str->n);
        sy_chat_print(run, &buf, item);
    }
    return sy_chat_text_end(run, &buf);
}

static chat_value reverse(chat_run *run, chat_value self, const chat_value *arg)
{
    static const chat_value backwards[3] = {
        {.kind = CHAT_NONE}, {.kind = CHAT_NONE}, {.kind = CHAT_INT, .i = -1}};
    const int is_iterator = self.kind == CHAT_LIST && self.list->seq == CHAT_SEQ_ITERATOR;
    const chat_list *items;
    chat_list *reversed;

    (void)arg;
    if (self.kind == CHAT_STRING) return sy_chat_slice(run, self, backwards);
    items = sy_chat_iterate(run, self);
    if (items == NULL) return sy_chat_none();
    reversed = sy_chat_list_new(run, is_iterator ? CHAT_SEQ_LIST : CHAT_SEQ_ITERATOR, items->n);
    for (size_t i = items->n; i-- > 0 && run->status == SY_OK;) {
        sy_chat_list_push(run, reversed, items->item[i]);
    }
    return sy_chat_from_list(reversed);
}

static chat_value items(chat_run *run, chat_value self, const chat_value *arg)
{
    chat_value view;

    (void)arg;
    if (self.kind == CHAT_UNDEFINED) {
        return sy_chat_from_list(sy_chat_list_new(run, CHAT_SEQ_ITERATOR, 0));
    }
    if (self.kind != CHAT_DICT) {
        sy_chat_fail(run, SY_EINVAL, "can only get item pairs from a mapping, not from a %s",
                     sy_chat_type(self));
        return sy_chat_none();
    }
    view = sy_chat_dict_view(run, self.dict, CHAT_SEQ_ITEMS);
    if (view.kind == CHAT_LIST) view.list->seq = CHAT_SEQ_ITERATOR;
    return view;
}

static chat_value ignore_case(chat_run *run, chat_value v)
{
    return v.kind == CHAT_STRING ? sy_chat_change_case(run, v, CHAT_LOWER) : v;
}

typedef struct keyed {
    chat_value key, item;
} keyed;

/* from: [n] into to: [n], stable, halves already sorted. */
static void merge(chat_run *run, keyed *to, const keyed *from, size_t half, size_t n, int reverse)
{
    size_t left = 0;
    size_t right = half;

    for (size_t i = 0; i < n; i++) {
        int takes_right = right < n;

        if (left < half && right < n && run->status == SY_OK) {
            int unordered = 0;
            const int order =
                sy_chat_compare(run, from[right].key, from[left].key, "<", &unordered);

            takes_right = !unordered && (reverse ? order > 0 : order < 0);
        } else if (left < half) {
            takes_right = 0;
        }
        to[i] = takes_right ? from[right++] : from[left++];
    }
}

/* Sorts a: [n] with spare: [n] to work in. */
static void sort_keyed(chat_run *run, keyed *a, keyed *spare, size_t n, int reverse)
{
    const size_t half = n / 2;

    if (n < 2 || run->status != SY_OK) return;
    sort_keyed(run, a, spare, half, reverse);
    sort_keyed(run, a + half, spare, n - half, reverse);
    merge(run, spare, a, half, n, reverse);
    memcpy(a, spare, n * sizeof(*a));
}

static chat_value sorted(chat_run *run, keyed *a, size_t n, int reverse)
{
    keyed *spare = sy_chat_alloc(run, n, sizeof(*spare));
    chat_list *list = sy_chat_list_new(run, CHAT_SEQ_LIST, n);

    if (spare == NULL || list == NULL) return sy_chat_none();
    sort_keyed(run, a, spare, n, reverse);
    for (size_t i = 0; i < n; i++) sy_chat_list_push(run, list, a[i].item);
    return sy_chat_from_list(list);
}

void sy_chat_sort_pairs(chat_run *run, chat_list *pairs)
{
    keyed *a = sy_chat_alloc(run, pairs->n, sizeof(*a));
    chat_value result;

    if (a == NULL) return;
    for (size_t i = 0; i < pairs->n; i++) {
        a[i] = (keyed){.key = pairs->item[i].list->item[0], .item = pairs->item[i]};
    }
    result = sorted(run, a, pairs->n, 0);
    if (run->status == SY_OK) *pairs = *result.list;
}

/* What an item is sorted by: a list of one value for each of the paths "a.b,c". */
static chat_value sort_key(chat_run *run, chat_value item, chat_value paths, int keeps_case)
{
    chat_list *key = sy_chat_list_new(run, CHAT_SEQ_LIST, 1);
    size_t begin = 0;

    if (paths.kind != CHAT_STRING) {
        if (paths.kind != CHAT_MISSING && paths.kind != CHAT_NONE) {
            item = sy_chat_path(run, item, paths);
        }
        sy_chat_list_push(run, key, keeps_case ? item : ignore_case(run, item));
        return sy_chat_from_list(key);
    }
    for (size_t end = 0; end <= paths.str->n && run->status == SY_OK; end++) {
        chat_value part;

        if (end < paths.str->n && paths.str->data[end] != ',') continue;
        part = sy_chat_path(run, item, sy_chat_substring(run, paths, begin, end));
        sy_chat_list_push(run, key, keeps_case ? part : ignore_case(run, part));
        begin = end + 1;
    }
    return sy_chat_from_list(key);
}

static chat_value sort(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_list *list = sy_chat_iterate(run, self);
    keyed *a = list == NULL ? NULL : sy_chat_alloc(run, list->n, sizeof(*a));

    if (a == NULL) return sy_chat_none();
    for (size_t i = 0; i < list->n && run->status == SY_OK; i++) {
        a[i].item = list->item[i];
        a[i].key = sort_key(run, list->item[i], arg[2], sy_chat_arg_truth(arg[1], 0));
    }
    if (run->status != SY_OK) return sy_chat_none();
    return sorted(run, a, list->n, sy_chat_arg_truth(arg[0], 0));
}

static chat_value dictsort(chat_run *run, chat_value self, const chat_value *arg)
{
    const int keeps_case = sy_chat_arg_truth(arg[0], 0);
    const int by_value = arg[1].kind == CHAT_STRING && sy_chat_str_is(arg[1].str, "value");
    chat_value pairs;
    keyed *a;

    if (arg[1].kind != CHAT_MISSING && !by_value &&
        !(arg[1].kind == CHAT_STRING && sy_chat_str_is(arg[1].str, "key"))) {
        sy_chat_fail(run, SY_EINVAL, "dictsort sorts by 'key' or by 'value'");
    }
    if (self.kind == CHAT_UNDEFINED) sy_chat_fail_undefined(run, self);
    if (self.kind != CHAT_DICT) {
        sy_chat_fail(run, SY_EINVAL, "dictsort sorts a mapping, not a %s", sy_chat_type(self));
        return sy_chat_none();
    }
    pairs = sy_chat_dict_view(run, self.dict, CHAT_SEQ_ITEMS);
    a = pairs.kind != CHAT_LIST ? NULL : sy_chat_alloc(run, pairs.list->n, sizeof(*a));
    if (a == NULL) return sy_chat_none();
    for (size_t i = 0; i < pairs.list->n; i++) {
        const chat_value key = pairs.list->item[i].list->item[by_value];

        a[i] =
            (keyed){.key = keeps_case ? key : ignore_case(run, key), .item = pairs.list->item[i]};
    }
    return sorted(run, a, pairs.list->n, sy_chat_arg_truth(arg[2], 0));
}

/* item, or what is at the path in it, without its case unless keeps_case. */
static chat_value key_of(chat_run *run, chat_value item, chat_value path, chat_value keeps_case)
{
    if (path.kind != CHAT_MISSING && path.kind != CHAT_NONE) item = sy_chat_path(run, item, path);
    return sy_chat_arg_truth(keeps_case, 0) ? item : ignore_case(run, item);
}

static chat_value unique(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_list *list = sy_chat_iterate(run, self);
    chat_list *out = sy_chat_list_new(run, CHAT_SEQ_ITERATOR, 0);
    chat_dict *seen = sy_chat_dict_new(run);

    for (size_t i = 0; list != NULL && seen != NULL && i < list->n && run->status == SY_OK; i++) {
        const chat_value key = key_of(run, list->item[i], arg[1], arg[0]);

        if (sy_chat_dict_get(run, seen, key) != NULL) continue;
        sy_chat_dict_set(run, seen, key, sy_chat_none());
        sy_chat_list_push(run, out, list->item[i]);
    }
    return sy_chat_from_list(out);
}

static chat_value extreme(chat_run *run, chat_value self, const chat_value *arg, int wants_max)
{
    const chat_list *list = sy_chat_iterate(run, self);
    chat_value best_key = {.kind = CHAT_MISSING};
    chat_value best = sy_chat_undefined(NULL, CHAT_MISSING);

    for (size_t i = 0; list != NULL && i < list->n && run->status == SY_OK; i++) {
        const chat_value key = key_of(run, list->item[i], arg[1], arg[0]);
        int unordered = 0;
        int order = 1;

        if (i > 0) order = sy_chat_compare(run, key, best_key, wants_max ? ">" : "<", &unordered);
        if (i > 0 && (unordered || (wants_max ? order <= 0 : order >= 0))) continue;
        best_key = key;
        best = list->item[i];
    }
    return best;
}

static chat_value minimum(chat_run *run, chat_value self, const chat_value *arg)
{
    return extreme(run, self, arg, 0);
}

static chat_value maximum(chat_run *run, chat_value self, const chat_value *arg)
{
    return extreme(run, self, arg, 1);
}

static chat_value sum(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_list *list = sy_chat_iterate(run, self);
    chat_value total = arg[1].kind == CHAT_MISSING ? sy_chat_int(0) : arg[1];

    for (size_t i = 0; list != NULL && i < list->n && run->status == SY_OK; i++) {
        chat_value item = list->item[i];

        if (arg[0].kind != CHAT_MISSING && arg[0].kind != CHAT_NONE) {
            item = sy_chat_path(run, item, arg[0]);
        }
        total = sy_chat_binary(run, CHAT_OP_ADD, total, item);
    }
    return total;
}

/* The filter or test that map, select and their like are given by name. */
static uint16_t find_named(chat_run *run, chat_table table, chat_value name)
{
    const chat_value text = sy_chat_arg_string(run, name, "the name of a filter or test");
    const uint16_t id = sy_chat_builtin_find(table, text.str);

    if (id == CHAT_NOT_BUILTIN) {
        sy_chat_fail(run, SY_EINVAL, "the %s \"%.*s\" is not supported",
                     table == CHAT_FILTERS ? "filter" : "test",
                     sy_chat_clip(text.str->data, text.str->n), text.str->data);
    }
    return id;
}

static chat_args without_first(const chat_args *args, size_t n)
{
    chat_args rest = *args;

    rest.pos += n;
    rest.n_pos -= n;
    return rest;
}

static chat_value named_arg(const chat_args *args, const char *name)
{
    for (size_t i = 0; i < args->n_named; i++) {
        if (sy_chat_str_is(args->named[i].name, name)) return args->named[i].value;
    }
    return (chat_value){.kind = CHAT_MISSING};
}

/* As sy_chat_path, where every missing part becomes the default. */
static chat_value path_or(chat_run *run, chat_value item, chat_value path, chat_value fallback)
{
    const chat_value found = sy_chat_path(run, item, path);

    if (found.kind != CHAT_UNDEFINED) return found;
    return fallback.kind == CHAT_MISSING || fallback.kind == CHAT_NONE ? found : fallback;
}

static chat_value map(chat_run *run, chat_value self, const chat_args *args)
{
    const chat_value path = named_arg(args, "attribute");
    const int by_path = args->n_pos == 0 && path.kind != CHAT_MISSING;
    chat_list *out = sy_chat_list_new(run, CHAT_SEQ_ITERATOR, 0);
    const chat_list *list;
    uint16_t id = CHAT_NOT_BUILTIN;
    chat_args rest = {0};

    if (!sy_chat_truth(self)) return sy_chat_from_list(out);
    if (!by_path && args->n_pos == 0) sy_chat_fail(run, SY_EINVAL, "map requires a filter");
    list = sy_chat_iterate(run, self);
    if (run->status != SY_OK) return sy_chat_none();
    if (!by_path) {
        id = find_named(run, CHAT_FILTERS, args->pos[0]);
        rest = without_first(args, 1);
    }
    for (size_t i = 0; i < list->n && run->status == SY_OK; i++) {
        const chat_value item = list->item[i];

        sy_chat_list_push(run, out,
                          by_path ? path_or(run, item, path, named_arg(args, "default"))
                                  : sy_chat_call_builtin(run, CHAT_FILTERS, id, item, &rest));
    }
    return sy_chat_from_list(out);
}

/* select, reject: by a test on the item; with_path: on what is at the path that comes first. */
static chat_value choose(chat_run *run, chat_value self, const chat_args *args, int with_path,
                         int wanted)
{
    const size_t n_path = with_path ? 1 : 0;
    const int has_test = args->n_pos > n_path;
    chat_list *out = sy_chat_list_new(run, CHAT_SEQ_ITERATOR, 0);
    const chat_list *list;
    uint16_t id = CHAT_NOT_BUILTIN;
    chat_args rest = {0};

    if (!sy_chat_truth(self)) return sy_chat_from_list(out);
    if (args->n_pos < n_path) sy_chat_fail(run, SY_EINVAL, "missing parameter for attribute name");
    list = sy_chat_iterate(run, self);
    if (run->status != SY_OK) return sy_chat_none();
    if (has_test) {
        id = find_named(run, CHAT_TESTS, args->pos[n_path]);
        rest = without_first(args, n_path + 1);
    }
    for (size_t i = 0; i < list->n && run->status == SY_OK; i++) {
        chat_value tested = list->item[i];

        if (with_path) tested = sy_chat_path(run, tested, args->pos[0]);
        if (has_test) tested = sy_chat_call_builtin(run, CHAT_TESTS, id, tested, &rest);
        if (sy_chat_truth(tested) == wanted) sy_chat_list_push(run, out, list->item[i]);
    }
    return sy_chat_from_list(out);
}

static chat_value select_items(chat_run *run, chat_value self, const chat_args *args)
{
    return choose(run, self, args, 0, 1);
}

static chat_value reject(chat_run *run, chat_value self, const chat_args *args)
{
    return choose(run, self, args, 0, 0);
}

static chat_value selectattr(chat_run *run, chat_value self, const chat_args *args)
{
    return choose(run, self, args, 1, 1);
}

static chat_value rejectattr(chat_run *run, chat_value self, const chat_args *args)
{
    return choose(run, self, args, 1, 0);
}

const chat_builtin *sy_chat_list_filters(size_t *n)
{
    static const chat_builtin filters[] = {
        {"list", "", to_list, NULL, CHAT_MISSING},
        {"first", "", first, NULL, CHAT_MISSING},
        {"last", "", last, NULL, CHAT_MISSING},
        {"join", "d? attribute?", join, NULL, CHAT_MISSING},
        {"reverse", "", reverse, NULL, CHAT_MISSING},
        {"items", "", items, NULL, CHAT_MISSING},
        {"sort", "reverse? case_sensitive? attribute?", sort, NULL, CHAT_MISSING},
        {"dictsort", "case_sensitive? by? reverse?", dictsort, NULL, CHAT_MISSING},
        {"unique", "case_sensitive? attribute?", unique, NULL, CHAT_MISSING},
        {"min", "case_sensitive? attribute?", minimum, NULL, CHAT_MISSING},
        {"max", "case_sensitive? attribute?", maximum, NULL, CHAT_MISSING},
        {"sum", "attribute? start?", sum, NULL, CHAT_MISSING},
        {"map", NULL, NULL, map, CHAT_MISSING},
        {"select", NULL, NULL, select_items, CHAT_MISSING},
        {"reject", NULL, NULL, reject, CHAT_MISSING},
        {"selectattr", NULL, NULL, selectattr, CHAT_MISSING},
        {"rejectattr", NULL, NULL, rejectattr, CHAT_MISSING},
    };

    *n = SY_COUNT_OF(filters);
    return filters;
}
