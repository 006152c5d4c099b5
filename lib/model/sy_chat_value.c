/* sy_chat_value.c - the limits of a run, strings and sequences: what Python calls len(), iter() and
 * bool(). */
#include "sy_chat_value.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sy_unicode.h"

#define CLIP_BYTES    400
#define WORK_PER_STEP 16 /* bytes copied, items walked: so many cost one step */

void sy_chat_fail(chat_run *run, sy_status status, const char *fmt, ...)
{
    char text[SY_MESSAGE_BYTES];
    va_list args;

    if (run->status != SY_OK) return;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    text[sy_utf8_check(text, strlen(text))] = '\0'; /* may have been cut inside a character */
    run->status = sy_error_set(run->err, status, "chat template, line %u: %s", run->line, text);
}

int sy_chat_clip(const char *text, size_t n)
{
    return (int)(n <= CLIP_BYTES ? n : sy_utf8_check(text, CLIP_BYTES));
}

static void fail_memory(chat_run *run, size_t n, size_t size)
{
    const size_t left = run->arena->limit_bytes - run->arena->total_bytes;

    if (n > left / size) {
        sy_chat_fail(run, SY_ELIMIT, "it needs more than %zu MiB of memory",
                     run->arena->limit_bytes >> 20);
    } else {
        sy_chat_fail(run, SY_ENOMEM, "no memory for its values");
    }
}

void sy_chat_charge(chat_run *run, size_t work)
{
    run->steps += 1 + work / WORK_PER_STEP;
    if (run->steps > SY_CHAT_STEPS_MAX) {
        sy_chat_fail(run, SY_ELIMIT, "it takes more than %llu steps",
                     (unsigned long long)SY_CHAT_STEPS_MAX);
    }
}

int sy_chat_enter(chat_run *run)
{
    run->depth++;
    if (run->depth > SY_CHAT_DEPTH_MAX) {
        sy_chat_fail(run, SY_ELIMIT, "it is nested or recurses deeper than %d levels",
                     SY_CHAT_DEPTH_MAX);
    }
    return run->status == SY_OK;
}

void sy_chat_leave(chat_run *run)
{
    run->depth--;
}

void *sy_chat_alloc(chat_run *run, size_t n, size_t size)
{
    void *p = NULL;

    if (run->status != SY_OK) return NULL;
    if (n <= SIZE_MAX / size) p = sy_arena_alloc(run->arena, n * size);
    if (p == NULL) fail_memory(run, n, size);
    return p;
}

void sy_chat_put(chat_run *run, sy_strbuf *buf, const char *text, size_t n)
{
    if (run->status != SY_OK || n == 0) return;
    if (n > SY_CHAT_OUTPUT_BYTES_MAX - run->text_bytes) {
        sy_chat_fail(run, SY_ELIMIT, "it writes more than %zu MiB of text",
                     SY_CHAT_OUTPUT_BYTES_MAX >> 20);
        return;
    }
    run->text_bytes += n;
    sy_chat_charge(run, n);
    sy_strbuf_append(buf, text, n);
    if (buf->failed) sy_chat_fail(run, SY_ENOMEM, "no memory for its text");
}

void sy_chat_text_begin(sy_strbuf *buf)
{
    sy_strbuf_init(buf);
}

chat_value sy_chat_text_end(chat_run *run, sy_strbuf *buf)
{
    const chat_value text = sy_chat_string(run, buf->data, buf->len);

    run->text_bytes -= buf->len;
    sy_strbuf_free(buf);
    return text;
}

chat_value sy_chat_undefined(chat_str *name, chat_kind owner)
{
    return (chat_value){.kind = CHAT_UNDEFINED, .id = (uint16_t)owner, .str = name};
}

void sy_chat_fail_undefined(chat_run *run, chat_value v)
{
    const int n = v.str == NULL ? 0 : sy_chat_clip(v.str->data, v.str->n);
    const char *name = v.str == NULL ? "" : v.str->data;

    if (v.str == NULL) {
        sy_chat_fail(run, SY_EINVAL, "a value is undefined");
    } else if (v.id == CHAT_MISSING) {
        sy_chat_fail(run, SY_EINVAL, "'%.*s' is undefined", n, name);
    } else if (v.id == CHAT_METHOD) {
        sy_chat_fail(run, SY_EINVAL, "'%.*s' would change a value, which templates may not", n,
                     name);
    } else {
        sy_chat_fail(run, SY_EINVAL, "'%s object' has no attribute '%.*s'",
                     sy_chat_type((chat_value){.kind = (uint8_t)v.id}), n, name);
    }
}

const char *sy_chat_type(chat_value v)
{
    static const char *const names[] = {[CHAT_MISSING] = "missing",
                                        [CHAT_UNDEFINED] = "Undefined",
                                        [CHAT_NONE] = "NoneType",
                                        [CHAT_BOOL] = "bool",
                                        [CHAT_INT] = "int",
                                        [CHAT_FLOAT] = "float",
                                        [CHAT_STRING] = "str",
                                        [CHAT_LIST] = "list",
                                        [CHAT_DICT] = "dict",
                                        [CHAT_MACRO] = "Macro",
                                        [CHAT_NAMESPACE] = "Namespace",
                                        [CHAT_FUNCTION] = "function",
                                        [CHAT_METHOD] = "method",
                                        [CHAT_LOOP] = "LoopContext"};
    static const char *const seq_names[] = {
        [CHAT_SEQ_LIST] = "list",       [CHAT_SEQ_TUPLE] = "tuple",
        [CHAT_SEQ_RANGE] = "range",     [CHAT_SEQ_ITERATOR] = "generator",
        [CHAT_SEQ_KEYS] = "dict_keys",  [CHAT_SEQ_VALUES] = "dict_values",
        [CHAT_SEQ_ITEMS] = "dict_items"};

    if (v.kind == CHAT_LIST && v.list != NULL) return seq_names[v.list->seq];
    return names[v.kind];
}

size_t sy_chat_count_chars(const char *text, size_t n)
{
    size_t n_chars = 0;

    for (size_t i = 0; i < n; i++) n_chars += ((uint8_t)text[i] & 0xC0) != 0x80;
    return n_chars;
}

static chat_value from_bytes(chat_run *run, char *data, size_t n, size_t n_chars, size_t room)
{
    static char nothing[1];
    static chat_str empty = {.data = nothing}; /* never written: it has no room */
    chat_str *s = n == 0 ? NULL : sy_chat_alloc(run, 1, sizeof(*s));

    if (s == NULL) return (chat_value){.kind = CHAT_STRING, .str = &empty};
    *s = (chat_str){.data = data, .n = n, .n_chars = n_chars, .room = room};
    return (chat_value){.kind = CHAT_STRING, .str = s};
}

chat_value sy_chat_string(chat_run *run, const char *text, size_t n)
{
    char *copy = n == 0 ? NULL : sy_chat_alloc(run, n, 1);

    if (copy == NULL) return from_bytes(run, NULL, 0, 0, 0);
    memcpy(copy, text, n);
    sy_chat_charge(run, n);
    return from_bytes(run, copy, n, sy_chat_count_chars(text, n), 0);
}

chat_value sy_chat_cstring(chat_run *run, const char *text)
{
    return sy_chat_string(run, text, strlen(text));
}

chat_value sy_chat_substring(chat_run *run, chat_value whole, size_t begin, size_t end)
{
    char *data = whole.str->data;
    chat_value part;

    if (begin == 0 && end == whole.str->n) return whole;
    sy_chat_charge(run, end - begin);
    part = from_bytes(run, data + begin, end - begin,
                      sy_chat_count_chars(data + begin, end - begin), 0);
    part.is_safe = whole.is_safe;
    return part;
}

/* Templates build long texts piece by piece. Whoever appends to the end of a buffer first may use
 * the room behind it, so that n appends copy O(n) bytes and not O(n * n). */
chat_value sy_chat_concat(chat_run *run, chat_value a, chat_value b)
{
    chat_str *left = a.str;
    const chat_str *right = b.str;
    char *data = left->data;
    size_t room = left->room;
    size_t n;

    if (right->n == 0) return a;
    if (left->n == 0) return b;
    if (left->n + right->n > SY_CHAT_MEMORY_BYTES_MAX) { /* neither is longer than that */
        sy_chat_fail(run, SY_ELIMIT, "a string is too long");
        return a;
    }
    n = left->n + right->n;
    if (room >= right->n) {
        left->room = 0;
        sy_chat_charge(run, right->n);
    } else {
        const size_t spare = n < 64 ? 0 : n / 2;

        data = sy_chat_alloc(run, n + spare, 1);
        if (data == NULL) return a;
        memcpy(data, left->data, left->n);
        room = right->n + spare;
        sy_chat_charge(run, n);
    }
    memcpy(data + left->n, right->data, right->n);
    return from_bytes(run, data, n, left->n_chars + right->n_chars, room - right->n);
}

int sy_chat_str_equal(const chat_str *a, const chat_str *b)
{
    return a->n == b->n && memcmp(a->data, b->data, a->n) == 0;
}

int sy_chat_str_is(const chat_str *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->data, text, s->n) == 0;
}

size_t sy_chat_char_offset(chat_run *run, const chat_str *s, size_t i)
{
    size_t at = 0;

    if (s->n == s->n_chars) return i;
    if (i == s->n_chars) return s->n;
    sy_chat_charge(run, i);
    while (i > 0) {
        at += sy_utf8_length((uint8_t)s->data[at]);
        i--;
    }
    return at;
}

chat_list *sy_chat_list_new(chat_run *run, chat_seq seq, size_t capacity)
{
    chat_list *list = sy_chat_alloc(run, 1, sizeof(*list));

    if (list == NULL) return NULL;
    *list = (chat_list){.seq = seq, .capacity = capacity};
    if (capacity > 0) {
        list->item = sy_chat_alloc(run, capacity, sizeof(*list->item));
        if (list->item == NULL) return NULL;
    }
    return list;
}

void sy_chat_list_push(chat_run *run, chat_list *list, chat_value v)
{
    if (list == NULL || run->status != SY_OK) return;
    if (list->n == list->capacity) {
        const size_t larger = SY_MAX((size_t)8, 2 * list->capacity);
        chat_value *item = sy_chat_alloc(run, larger, sizeof(*item));

        if (item == NULL) return;
        if (list->n > 0) memcpy(item, list->item, list->n * sizeof(*item));
        list->item = item;
        list->capacity = larger;
    }
    list->item[list->n++] = v;
    sy_chat_charge(run, sizeof(v));
}

chat_value sy_chat_from_list(chat_list *list)
{
    if (list == NULL) return sy_chat_undefined(NULL, CHAT_MISSING);
    return (chat_value){.kind = CHAT_LIST, .list = list};
}

chat_value sy_chat_pair(chat_run *run, chat_value a, chat_value b)
{
    chat_list *pair = sy_chat_list_new(run, CHAT_SEQ_TUPLE, 2);

    sy_chat_list_push(run, pair, a);
    sy_chat_list_push(run, pair, b);
    return sy_chat_from_list(pair);
}

static chat_list *characters(chat_run *run, chat_value v)
{
    chat_list *list = sy_chat_list_new(run, CHAT_SEQ_LIST, v.str->n_chars);

    v.is_safe = 0; /* Python's Markup hands out plain characters */
    for (size_t at = 0; list != NULL && at < v.str->n && run->status == SY_OK;) {
        const size_t end = at + sy_utf8_length((uint8_t)v.str->data[at]);

        sy_chat_list_push(run, list, sy_chat_substring(run, v, at, end));
        at = end;
    }
    return list;
}

static chat_list *take_rest(chat_run *run, chat_list *iterator)
{
    chat_list *rest = sy_chat_list_new(run, CHAT_SEQ_LIST, 0);

    if (rest == NULL) return NULL;
    rest->n = rest->capacity = iterator->n - iterator->pos;
    if (rest->n > 0) rest->item = iterator->item + iterator->pos;
    iterator->pos = iterator->n;
    return rest;
}

chat_list *sy_chat_iterate(chat_run *run, chat_value v)
{
    chat_value keys;

    switch (v.kind) {
    case CHAT_UNDEFINED: return sy_chat_list_new(run, CHAT_SEQ_LIST, 0);
    case CHAT_STRING: return characters(run, v);
    case CHAT_DICT:
        keys = sy_chat_dict_view(run, v.dict, CHAT_SEQ_KEYS);
        return keys.kind == CHAT_LIST ? keys.list : NULL;
    case CHAT_LIST: return v.list->seq == CHAT_SEQ_ITERATOR ? take_rest(run, v.list) : v.list;
    default:
        sy_chat_fail(run, SY_EINVAL, "'%s' object is not iterable", sy_chat_type(v));
        return NULL;
    }
}

int sy_chat_is_iterable(chat_value v)
{
    return v.kind == CHAT_UNDEFINED || v.kind == CHAT_STRING || v.kind == CHAT_LIST ||
           v.kind == CHAT_DICT || v.kind == CHAT_LOOP;
}

int sy_chat_length(chat_value v, size_t *out)
{
    *out = 0;
    switch (v.kind) {
    case CHAT_UNDEFINED: return 1;
    case CHAT_STRING: *out = v.str->n_chars; return 1;
    case CHAT_DICT: *out = v.dict->n; return 1;
    case CHAT_LIST: *out = v.list->n; return v.list->seq != CHAT_SEQ_ITERATOR;
    default: return 0;
    }
}

int sy_chat_truth(chat_value v)
{
    switch (v.kind) {
    case CHAT_MISSING:
    case CHAT_UNDEFINED:
    case CHAT_NONE: return 0;
    case CHAT_BOOL:
    case CHAT_INT: return v.i != 0;
    case CHAT_FLOAT: return v.f != 0.0;
    case CHAT_STRING: return v.str->n > 0;
    case CHAT_DICT: return v.dict->n > 0;
    case CHAT_LIST: return v.list->seq == CHAT_SEQ_ITERATOR || v.list->n > 0;
    default: return 1;
    }
}
