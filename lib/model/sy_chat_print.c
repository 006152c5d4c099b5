/* sy_chat_print.c - values as text, the way Python's str() and repr() write them: what {{ }} prints
 * and what filters that take text see. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "sy_chat_eval.h"
#include "sy_unicode.h"

static void put(chat_run *run, sy_strbuf *buf, const char *text)
{
    sy_chat_put(run, buf, text, strlen(text));
}

/* The shortest digits that read back as f, as printf's %e writes them. */
static void shortest_digits(char out[32], double f)
{
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(out, 32, "%.*e", digits - 1, f);
        if (strtod(out, NULL) == f) return;
    }
}

size_t sy_chat_format_double(char out[40], double f)
{
    char scientific[32];
    char digits[24];
    int n_digits = 0;
    int exponent;

    if (isnan(f) || isinf(f)) {
        return (size_t)snprintf(out, 40, "%s", isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
    }
    shortest_digits(scientific, f);
    for (const char *c = scientific; *c != 'e'; c++) {
        if (*c >= '0' && *c <= '9') digits[n_digits++] = *c;
    }
    digits[n_digits] = '\0';
    exponent = (int)strtol(strchr(scientific, 'e') + 1, NULL, 10);
    if (exponent >= -4 && exponent < 16) {
        return (size_t)snprintf(out, 40, "%.*f", SY_MAX(n_digits - 1 - exponent, 1), f);
    }
    return (size_t)snprintf(out, 40, "%s%c%s%se%c%02d", signbit(f) ? "-" : "", digits[0],
                            n_digits > 1 ? "." : "", digits + 1, exponent < 0 ? '-' : '+',
                            abs(exponent));
}

static int is_printable(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return 0;
    case UTF8PROC_CATEGORY_ZS: return c == ' ';
    default: return 1;
    }
}

static void put_escape(chat_run *run, sy_strbuf *buf, uint32_t c)
{
    char text[16];

    switch (c) {
    case '\n': put(run, buf, "\\n"); return;
    case '\r': put(run, buf, "\\r"); return;
    case '\t': put(run, buf, "\\t"); return;
    default: break;
    }
    if (c < 0x100) {
        (void)snprintf(text, sizeof(text), "\\x%02x", (unsigned)c);
    } else if (c < 0x10000) {
        (void)snprintf(text, sizeof(text), "\\u%04x", (unsigned)c);
    } else {
        (void)snprintf(text, sizeof(text), "\\U%08x", (unsigned)c);
    }
    put(run, buf, text);
}

static void put_quoted(chat_run *run, sy_strbuf *buf, const chat_str *s)
{
    const int has_single = memchr(s->data, '\'', s->n) != NULL;
    const int has_double = memchr(s->data, '"', s->n) != NULL;
    const char quote = has_single && !has_double ? '"' : '\'';
    size_t from = 0;

    sy_chat_put(run, buf, &quote, 1);
    for (size_t i = 0; i < s->n && run->status == SY_OK;) {
        const size_t at = i;
        const uint32_t c = sy_utf8_next(s->data, &i);
        const int needs_slash = c == (uint32_t)quote || c == '\\';

        if (!needs_slash && is_printable(c)) continue;
        sy_chat_put(run, buf, s->data + from, at - from);
        from = i;
        if (needs_slash) {
            put(run, buf, "\\");
            from = at;
        } else {
            put_escape(run, buf, c);
        }
    }
    sy_chat_put(run, buf, s->data + from, s->n - from);
    sy_chat_put(run, buf, &quote, 1);
}

static void put_range(chat_run *run, sy_strbuf *buf, const chat_list *list)
{
    char text[96];

    (void)snprintf(text, sizeof(text), "range(%" PRId64 ", %" PRId64, list->range.start,
                   list->range.stop);
    put(run, buf, text);
    if (list->range.step != 1) {
        (void)snprintf(text, sizeof(text), ", %" PRId64, list->range.step);
        put(run, buf, text);
    }
    put(run, buf, ")");
}

static void put_list(chat_run *run, sy_strbuf *buf, const chat_list *list)
{
    static const char *const brackets[][2] = {
        [CHAT_SEQ_LIST] = {"[", "]"},
        [CHAT_SEQ_TUPLE] = {"(", ")"},
        [CHAT_SEQ_KEYS] = {"dict_keys([", "])"},
        [CHAT_SEQ_VALUES] = {"dict_values([", "])"},
        [CHAT_SEQ_ITEMS] = {"dict_items([", "])"},
    };

    if (list->seq == CHAT_SEQ_RANGE) {
        put_range(run, buf, list);
        return;
    }
    if (list->seq == CHAT_SEQ_ITERATOR) {
        sy_chat_fail(run, SY_EINVAL, "an iterator cannot be printed; use the filter list first");
        return;
    }
    put(run, buf, brackets[list->seq][0]);
    for (size_t i = 0; i < list->n && run->status == SY_OK; i++) {
        if (i > 0) put(run, buf, ", ");
        sy_chat_print_repr(run, buf, list->item[i]);
    }
    if (list->seq == CHAT_SEQ_TUPLE && list->n == 1) put(run, buf, ",");
    put(run, buf, brackets[list->seq][1]);
}

static void put_dict(chat_run *run, sy_strbuf *buf, const chat_dict *dict)
{
    put(run, buf, "{");
    for (size_t i = 0; i < dict->n && run->status == SY_OK; i++) {
        if (i > 0) put(run, buf, ", ");
        sy_chat_print_repr(run, buf, dict->entry[i].key);
        put(run, buf, ": ");
        sy_chat_print_repr(run, buf, dict->entry[i].value);
    }
    put(run, buf, "}");
}

static void put_object(chat_run *run, sy_strbuf *buf, chat_value v)
{
    switch (v.kind) {
    case CHAT_LIST: put_list(run, buf, v.list); break;
    case CHAT_DICT: put_dict(run, buf, v.dict); break;
    case CHAT_NAMESPACE:
        put(run, buf, "<Namespace ");
        put_dict(run, buf, v.dict);
        put(run, buf, ">");
        break;
    case CHAT_MACRO:
        put(run, buf, v.macro->name == NULL ? "<Macro anonymous" : "<Macro '");
        if (v.macro->name != NULL) sy_chat_put(run, buf, v.macro->name->data, v.macro->name->n);
        put(run, buf, v.macro->name == NULL ? ">" : "'>");
        break;
    default:
        sy_chat_fail(run, SY_EINVAL, "a %s cannot be printed; is () missing?", sy_chat_type(v));
    }
}

void sy_chat_print_repr(chat_run *run, sy_strbuf *buf, chat_value v)
{
    if (v.kind == CHAT_STRING) {
        if (v.is_safe) put(run, buf, "Markup(");
        put_quoted(run, buf, v.str);
        if (v.is_safe) put(run, buf, ")");
    } else if (v.kind == CHAT_UNDEFINED) {
        put(run, buf, "Undefined");
    } else {
        sy_chat_print(run, buf, v);
    }
}

void sy_chat_print(chat_run *run, sy_strbuf *buf, chat_value v)
{
    char text[40];

    switch (v.kind) {
    case CHAT_MISSING:
    case CHAT_UNDEFINED: break;
    case CHAT_NONE: put(run, buf, "None"); break;
    case CHAT_BOOL: put(run, buf, v.i ? "True" : "False"); break;
    case CHAT_INT:
        (void)snprintf(text, sizeof(text), "%" PRId64, v.i);
        put(run, buf, text);
        break;
    case CHAT_FLOAT: sy_chat_put(run, buf, text, sy_chat_format_double(text, v.f)); break;
    case CHAT_STRING: sy_chat_put(run, buf, v.str->data, v.str->n); break;
    default:
        if (sy_chat_enter(run)) put_object(run, buf, v);
        sy_chat_leave(run);
    }
}

chat_value sy_chat_to_string(chat_run *run, chat_value v)
{
    sy_strbuf buf;

    if (v.kind == CHAT_STRING) return v;
    sy_chat_text_begin(&buf);
    sy_chat_print(run, &buf, v);
    return sy_chat_text_end(run, &buf);
}
