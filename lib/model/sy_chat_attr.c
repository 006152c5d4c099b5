/* sy_chat_attr.c - object.name, object[key] and object[a:b:c]. Jinja makes the first two nearly
 * one: each falls back to the other's meaning, so message.content reads a mapping's member, and
 * spec['items'] finds the method of mappings where there is no such member. */
#include <inttypes.h>
#include <stdio.h>

#include "sy_chat_eval.h"

static int is_one_of(const chat_str *name, const char *const *names)
{
    for (; *names != NULL; names++) {
        if (sy_chat_str_is(name, *names)) return 1;
    }
    return 0;
}

/* Methods that change their object: the sandbox of transformers hides them. */
static int is_mutating(chat_value object, const chat_str *name)
{
    static const char *const dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    static const char *const list[] = {"append", "clear",   "extend", "insert", "pop",
                                       "remove", "reverse", "sort",   NULL};

    if (object.kind == CHAT_DICT) return is_one_of(name, dict);
    return object.kind == CHAT_LIST && object.list->seq == CHAT_SEQ_LIST && is_one_of(name, list);
}

/* Python's own attributes of the object; MISSING: it has no such one. */
static chat_value method(chat_run *run, chat_value object, chat_str *name)
{
    chat_value *self;
    uint16_t id;

    if (name->n > 4 && name->data[0] == '_' && name->data[1] == '_') {
        return sy_chat_undefined(name, CHAT_METHOD); /* __class__ and its like */
    }
    if (is_mutating(object, name)) return sy_chat_undefined(name, CHAT_METHOD);
    if (object.kind == CHAT_LIST && object.list->seq != CHAT_SEQ_LIST &&
        (object.list->seq > CHAT_SEQ_RANGE || sy_chat_str_is(name, "copy"))) {
        return (chat_value){.kind = CHAT_MISSING}; /* tuples and ranges lack this one */
    }
    id = sy_chat_method_find((chat_kind)object.kind, name);
    if (id == CHAT_NOT_BUILTIN) return (chat_value){.kind = CHAT_MISSING};
    self = sy_chat_alloc(run, 1, sizeof(*self));
    if (self == NULL) return sy_chat_none();
    *self = object;
    return (chat_value){.kind = CHAT_METHOD, .id = id, .self = self};
}

chat_value sy_chat_attribute(chat_run *run, chat_value object, chat_str *name)
{
    const chat_value *member = NULL;
    chat_value found = {.kind = CHAT_MISSING};

    if (run->status != SY_OK) return sy_chat_none();
    if (object.kind == CHAT_UNDEFINED) {
        sy_chat_fail_undefined(run, object);
        return sy_chat_none();
    }
    if (object.kind == CHAT_LOOP) {
        found = sy_chat_loop_attribute(run, object.loop, name);
    }
    if (found.kind == CHAT_MISSING) found = method(run, object, name);
    if (found.kind != CHAT_MISSING) return found;
    if (object.kind == CHAT_DICT || object.kind == CHAT_NAMESPACE) {
        member = sy_chat_dict_get_str(run, object.dict, name);
    }
    return member != NULL ? *member : sy_chat_undefined(name, (chat_kind)object.kind);
}

static chat_value no_element(chat_run *run, chat_value object, chat_value key)
{
    char text[32];

    if (key.kind == CHAT_STRING) return sy_chat_undefined(key.str, (chat_kind)object.kind);
    if (!sy_chat_is_integer(key)) return sy_chat_undefined(NULL, CHAT_MISSING);
    (void)snprintf(text, sizeof(text), "%" PRId64, key.i);
    return sy_chat_undefined(sy_chat_cstring(run, text).str, (chat_kind)object.kind);
}

static chat_value element(chat_run *run, chat_value object, int64_t i)
{
    const size_t n = object.kind == CHAT_STRING ? object.str->n_chars : object.list->n;
    size_t at;

    if (i < 0) i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n) return no_element(run, object, sy_chat_int(i));
    if (object.kind == CHAT_LIST) return object.list->item[i];
    at = sy_chat_char_offset(run, object.str, (size_t)i);
    return sy_chat_substring(run, object, at, sy_chat_char_offset(run, object.str, (size_t)i + 1));
}

static int is_indexable(chat_value v)
{
    return v.kind == CHAT_STRING || (v.kind == CHAT_LIST && v.list->seq <= CHAT_SEQ_RANGE);
}

chat_value sy_chat_item(chat_run *run, chat_value object, chat_value key)
{
    chat_value found;

    if (run->status != SY_OK) return sy_chat_none();
    if (object.kind == CHAT_UNDEFINED) {
        sy_chat_fail_undefined(run, object);
        return sy_chat_none();
    }
    if (object.kind == CHAT_DICT && sy_chat_is_hashable(key)) {
        const chat_value *member = sy_chat_dict_get(run, object.dict, key);

        if (member != NULL) return *member;
    }
    if (is_indexable(object) && sy_chat_is_integer(key)) return element(run, object, key.i);
    if (key.kind != CHAT_STRING) return no_element(run, object, key);
    if (object.kind == CHAT_NAMESPACE || object.kind == CHAT_LOOP) {
        return sy_chat_attribute(run, object, key.str);
    }
    found = method(run, object, key.str);
    return found.kind != CHAT_MISSING ? found : no_element(run, object, key);
}

typedef struct range {
    int64_t start, stop, step;
    size_t n; /* items start, start + step, ... */
} range;

static int64_t clamp(int64_t i, int64_t n, int64_t low, int64_t high)
{
    if (i < 0) i = i < -n ? -1 : i + n;
    return i < low ? low : i > high ? high : i;
}

/* Python's slice.indices(). 0: the bounds are no such, and the run failed. */
static int resolve_slice(chat_run *run, const chat_value bounds[3], size_t length, range *out)
{
    const int64_t n = (int64_t)length;
    int64_t low, high;

    for (int i = 0; i < 3; i++) {
        if (bounds[i].kind == CHAT_NONE || sy_chat_is_integer(bounds[i])) continue;
        sy_chat_fail(run, SY_EINVAL, "slice indices must be integers or None");
        return 0;
    }
    out->step = bounds[2].kind == CHAT_NONE ? 1 : bounds[2].i;
    out->n = 0;
    if (out->step == 0) {
        sy_chat_fail(run, SY_EINVAL, "slice step cannot be zero");
        return 0;
    }
    /* Far beyond any length, a step takes one item; negating the smallest would overflow. */
    if (out->step < -INT64_MAX) out->step = -INT64_MAX;
    low = out->step > 0 ? 0 : -1;
    high = out->step > 0 ? n : n - 1;
    out->start = bounds[0].kind != CHAT_NONE ? clamp(bounds[0].i, n, low, high)
                 : out->step > 0             ? 0
                                             : n - 1;
    out->stop = bounds[1].kind != CHAT_NONE ? clamp(bounds[1].i, n, low, high)
                : out->step > 0             ? n
                                            : -1;
    if (out->step > 0 && out->start < out->stop) {
        out->n = (size_t)((out->stop - out->start - 1) / out->step) + 1;
    } else if (out->step < 0 && out->stop < out->start) {
        out->n = (size_t)((out->start - out->stop - 1) / -out->step) + 1;
    }
    return 1;
}

static chat_value slice_string(chat_run *run, chat_value s, const range *r)
{
    sy_strbuf buf;
    chat_value part;
    const chat_list *chars;

    if (r->step == 1) {
        const size_t begin = sy_chat_char_offset(run, s.str, (size_t)r->start);

        return sy_chat_substring(run, s, begin,
                                 sy_chat_char_offset(run, s.str, (size_t)r->start + r->n));
    }
    chars = sy_chat_iterate(run, s);
    sy_chat_text_begin(&buf);
    for (size_t i = 0; chars != NULL && i < r->n && run->status == SY_OK; i++) {
        const chat_str *c = chars->item[r->start + (int64_t)i * r->step].str;

        sy_chat_put(run, &buf, c->data, c->n);
    }
    part = sy_chat_text_end(run, &buf);
    part.is_safe = s.is_safe;
    return part;
}

static chat_value slice_list(chat_run *run, const chat_list *list, const range *r)
{
    chat_list *part = sy_chat_list_new(run, list->seq, r->n);

    for (size_t i = 0; i < r->n && run->status == SY_OK; i++) {
        sy_chat_list_push(run, part, list->item[r->start + (int64_t)i * r->step]);
    }
    if (part != NULL && list->seq == CHAT_SEQ_RANGE) {
        const uint64_t step = (uint64_t)list->range.step;

        part->range.start = (int64_t)((uint64_t)list->range.start + (uint64_t)r->start * step);
        part->range.stop = (int64_t)((uint64_t)list->range.start + (uint64_t)r->stop * step);
        part->range.step = (int64_t)(step * (uint64_t)r->step);
    }
    return sy_chat_from_list(part);
}

chat_value sy_chat_slice(chat_run *run, chat_value object, const chat_value bounds[3])
{
    size_t length;
    range r;

    if (run->status != SY_OK) return sy_chat_none();
    if (object.kind == CHAT_UNDEFINED) sy_chat_fail_undefined(run, object);
    if (!is_indexable(object)) {
        sy_chat_fail(run, SY_EINVAL, "'%s' object has no slices", sy_chat_type(object));
    }
    (void)sy_chat_length(object, &length);
    if (run->status != SY_OK || !resolve_slice(run, bounds, length, &r)) return sy_chat_none();
    if (object.kind == CHAT_STRING) return slice_string(run, object, &r);
    return slice_list(run, object.list, &r);
}

chat_value sy_chat_path(chat_run *run, chat_value item, chat_value path)
{
    const chat_str *s = path.str;

    if (path.kind != CHAT_STRING) return sy_chat_item(run, item, path);
    for (size_t begin = 0; begin <= s->n && run->status == SY_OK;) {
        size_t end = begin;
        int64_t number = 0;
        int is_number;

        while (end < s->n && s->data[end] != '.') end++;
        is_number = end > begin && end - begin < 18;
        for (size_t i = begin; i < end; i++) {
            if (s->data[i] < '0' || s->data[i] > '9') is_number = 0;
            number = is_number ? number * 10 + (s->data[i] - '0') : 0;
        }
        item = sy_chat_item(
            run, item, is_number ? sy_chat_int(number) : sy_chat_substring(run, path, begin, end));
        begin = end + 1;
    }
    return item;
}
