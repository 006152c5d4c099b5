/* sy_chat_json.c - the caller's JSON becomes values; the filter tojson writes values as Python's
 * json.dumps() does, without the HTML escapes of Jinja's own filter. */
#include "sy_chat_json.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sy_chat_eval.h"
#include "sy_unicode.h"

static chat_value from_object(chat_run *run, const json_t *json)
{
    chat_dict *dict = sy_chat_dict_new(run);
    const char *key;
    json_t *member;

    json_object_foreach((json_t *)(uintptr_t)json, key, member)
    {
        sy_chat_dict_set(run, dict, sy_chat_cstring(run, key), sy_chat_from_json(run, member));
        if (run->status != SY_OK) break;
    }
    return sy_chat_from_dict(dict);
}

static chat_value from_array(chat_run *run, const json_t *json)
{
    const size_t n = json_array_size(json);
    chat_list *list = sy_chat_list_new(run, CHAT_SEQ_LIST, n);

    for (size_t i = 0; i < n && run->status == SY_OK; i++) {
        sy_chat_list_push(run, list, sy_chat_from_json(run, json_array_get(json, i)));
    }
    return sy_chat_from_list(list);
}

chat_value sy_chat_from_json(chat_run *run, const json_t *json)
{
    switch (json_typeof(json)) {
    case JSON_OBJECT: return from_object(run, json);
    case JSON_ARRAY: return from_array(run, json);
    case JSON_STRING: return sy_chat_string(run, json_string_value(json), json_string_length(json));
    case JSON_INTEGER: return sy_chat_int(json_integer_value(json));
    case JSON_REAL: return sy_chat_float(json_real_value(json));
    case JSON_TRUE: return sy_chat_bool(1);
    case JSON_FALSE: return sy_chat_bool(0);
    default: return sy_chat_none();
    }
}

typedef struct writer {
    chat_run *run;
    sy_strbuf *buf;
    const chat_json_style *style;
    int level;
} writer;

static void put(writer *w, const char *text, size_t n)
{
    sy_chat_put(w->run, w->buf, text, n);
}

static void put_text(writer *w, const char *text)
{
    put(w, text, strlen(text));
}

static void put_str(writer *w, const chat_str *s)
{
    put(w, s->data, s->n);
}

static void put_escape(writer *w, uint32_t c)
{
    static const char *const short_forms[] = {
        ['\b'] = "\\b", ['\f'] = "\\f", ['\n'] = "\\n", ['\r'] = "\\r",
        ['\t'] = "\\t", ['"'] = "\\\"", ['\\'] = "\\\\"};
    char text[16];

    if (c < SY_COUNT_OF(short_forms) && short_forms[c] != NULL) {
        put_text(w, short_forms[c]);
        return;
    }
    if (c < 0x10000) {
        (void)snprintf(text, sizeof(text), "\\u%04x", (unsigned)c);
    } else {
        (void)snprintf(text, sizeof(text), "\\u%04x\\u%04x",
                       (unsigned)(0xD800 + ((c - 0x10000) >> 10)),
                       (unsigned)(0xDC00 + ((c - 0x10000) & 0x3FF)));
    }
    put_text(w, text);
}

static void write_string(writer *w, const chat_str *s)
{
    size_t from = 0;

    put_text(w, "\"");
    for (size_t i = 0; i < s->n && w->run->status == SY_OK;) {
        const size_t at = i;
        const uint32_t c = sy_utf8_next(s->data, &i);

        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7F || !w->style->ensure_ascii)) continue;
        put(w, s->data + from, at - from);
        put_escape(w, c);
        from = i;
    }
    put(w, s->data + from, s->n - from);
    put_text(w, "\"");
}

static void write_value(writer *w, chat_value v);

/* What stands before an item, and before the closing bracket when there were items. */
static void new_line(writer *w)
{
    if (!w->style->is_pretty) return;
    put_text(w, "\n");
    for (int i = 0; i < w->level && w->run->status == SY_OK; i++) put_str(w, w->style->indent);
}

static void before_item(writer *w, size_t i)
{
    if (i > 0) put_str(w, w->style->item_separator);
    new_line(w);
}

static void write_list(writer *w, const chat_list *list)
{
    put_text(w, "[");
    w->level++;
    for (size_t i = 0; i < list->n && w->run->status == SY_OK; i++) {
        before_item(w, i);
        write_value(w, list->item[i]);
    }
    w->level--;
    if (list->n > 0) new_line(w);
    put_text(w, "]");
}

static void write_float(writer *w, double f)
{
    char text[40];

    if (isnan(f) || isinf(f)) {
        put_text(w, isnan(f) ? "NaN" : f > 0 ? "Infinity" : "-Infinity");
    } else {
        put(w, text, sy_chat_format_double(text, f));
    }
}

static void write_scalar(writer *w, chat_value v)
{
    char text[32];

    switch (v.kind) {
    case CHAT_NONE: put_text(w, "null"); break;
    case CHAT_BOOL: put_text(w, v.i ? "true" : "false"); break;
    case CHAT_FLOAT: write_float(w, v.f); break;
    case CHAT_INT:
        (void)snprintf(text, sizeof(text), "%" PRId64, v.i);
        put_text(w, text);
        break;
    default:
        sy_chat_fail(w->run, SY_EINVAL, "an object of type %s is not JSON serializable",
                     sy_chat_type(v));
    }
}

static void write_key(writer *w, chat_value key)
{
    if (key.kind == CHAT_STRING) {
        write_string(w, key.str);
    } else if (key.kind == CHAT_NONE || sy_chat_is_number(key)) {
        put_text(w, "\"");
        write_scalar(w, key);
        put_text(w, "\"");
    } else {
        sy_chat_fail(w->run, SY_EINVAL, "keys must be str, int, float, bool or None, not %s",
                     sy_chat_type(key));
    }
}

static void write_dict(writer *w, const chat_dict *dict)
{
    const chat_value items = sy_chat_dict_view(w->run, dict, CHAT_SEQ_ITEMS);

    if (items.kind != CHAT_LIST || w->run->status != SY_OK) return;
    if (w->style->sort_keys) sy_chat_sort_pairs(w->run, items.list);
    put_text(w, "{");
    w->level++;
    for (size_t i = 0; i < items.list->n && w->run->status == SY_OK; i++) {
        const chat_value *pair = items.list->item[i].list->item;

        before_item(w, i);
        write_key(w, pair[0]);
        put_str(w, w->style->key_separator);
        write_value(w, pair[1]);
    }
    w->level--;
    if (items.list->n > 0) new_line(w);
    put_text(w, "}");
}

static void write_value(writer *w, chat_value v)
{
    if (sy_chat_enter(w->run)) {
        if (v.kind == CHAT_STRING) {
            write_string(w, v.str);
        } else if (v.kind == CHAT_DICT) {
            write_dict(w, v.dict);
        } else if (v.kind == CHAT_LIST && v.list->seq <= CHAT_SEQ_TUPLE) {
            write_list(w, v.list);
        } else {
            write_scalar(w, v);
        }
    }
    sy_chat_leave(w->run);
}

chat_value sy_chat_to_json(chat_run *run, chat_value v, const chat_json_style *style)
{
    sy_strbuf buf;
    writer w = {.run = run, .buf = &buf, .style = style};

    sy_chat_text_begin(&buf);
    write_value(&w, v);
    return sy_chat_text_end(run, &buf);
}
