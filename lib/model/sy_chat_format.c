/* sy_chat_format.c - Python's "..." % values and "...".format(values), as much of them as templates
 * use: what else there is fails by name. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "sy_chat_eval.h"

#define WIDTH_MAX    1000 /* also of a precision */
#define NUMBER_BYTES (2 * WIDTH_MAX + 400)

typedef struct spec {
    char flags[8];        /* of "-+ 0", each once */
    int width, precision; /* -1: none */
    char conversion;
} spec;

typedef struct formatter {
    chat_run *run;
    sy_strbuf *buf;
    const chat_str *format;
    size_t at;
    chat_value values; /* what stands right of the % */
    size_t n_used;
} formatter;

static void fail(formatter *f, const char *message)
{
    sy_chat_fail(f->run, SY_EINVAL, "%s", message);
}

static char next_char(const formatter *f)
{
    return f->at < f->format->n ? f->format->data[f->at] : '\0';
}

static int number(formatter *f)
{
    int n = 0;

    while (next_char(f) >= '0' && next_char(f) <= '9') {
        n = SY_MIN(n * 10 + (next_char(f) - '0'), WIDTH_MAX + 1);
        f->at++;
    }
    if (n > WIDTH_MAX) {
        sy_chat_fail(f->run, SY_ELIMIT, "a format is wider than %d", WIDTH_MAX);
        n = 0;
    }
    return n;
}

/* The value that the next conversion takes. */
static chat_value next_value(formatter *f)
{
    if (f->values.kind == CHAT_LIST && f->values.list->seq == CHAT_SEQ_TUPLE) {
        if (f->n_used < f->values.list->n) return f->values.list->item[f->n_used++];
    } else if (f->n_used == 0) {
        f->n_used = 1;
        return f->values;
    }
    fail(f, "not enough arguments for format string");
    return sy_chat_none();
}

/* (name) after a '%'. */
static chat_value named_value(formatter *f)
{
    const chat_value *found = NULL;
    const char *begin = f->format->data + f->at + 1;
    const char *end = memchr(begin, ')', f->format->n - f->at - 1);

    if (end == NULL || f->values.kind != CHAT_DICT) {
        fail(f, end == NULL ? "incomplete format key" : "format requires a mapping");
        return sy_chat_none();
    }
    f->at += (size_t)(end - begin) + 2;
    f->n_used = 1;
    found = sy_chat_dict_get(f->run, f->values.dict,
                             sy_chat_string(f->run, begin, (size_t)(end - begin)));
    if (found == NULL) fail(f, "a key of the format string is missing");
    return found != NULL ? *found : sy_chat_none();
}

static void parse_spec(formatter *f, spec *out)
{
    size_t n_flags = 0;

    *out = (spec){.width = -1, .precision = -1};
    for (; next_char(f) != '\0' && strchr("-+ 0", next_char(f)) != NULL; f->at++) {
        if (strchr(out->flags, next_char(f)) == NULL) out->flags[n_flags++] = next_char(f);
    }
    if (next_char(f) >= '1' && next_char(f) <= '9') out->width = number(f);
    if (next_char(f) == '.') {
        f->at++;
        out->precision = number(f);
    }
    while (next_char(f) != '\0' && strchr("hlL", next_char(f)) != NULL) f->at++;
    out->conversion = next_char(f);
    if (out->conversion == '\0') fail(f, "incomplete format");
    f->at++;
}

static void put_padded(formatter *f, const spec *s, chat_value text)
{
    const chat_str *str = text.str;
    const size_t n_chars =
        s->precision < 0 ? str->n_chars : SY_MIN(str->n_chars, (size_t)s->precision);
    const int pad = s->width - (int)SY_MIN(n_chars, (size_t)WIDTH_MAX);
    const int is_left = strchr(s->flags, '-') != NULL;

    for (int i = 0; i < pad && !is_left; i++) sy_chat_put(f->run, f->buf, " ", 1);
    sy_chat_put(f->run, f->buf, str->data, sy_chat_char_offset(f->run, str, n_chars));
    for (int i = 0; i < pad && is_left; i++) sy_chat_put(f->run, f->buf, " ", 1);
}

static void put_number(formatter *f, const spec *s, const char *length, int64_t i, double d)
{
    char c_format[64];
    char text[NUMBER_BYTES];
    char width[16] = "";
    char precision[16] = "";
    int n;

    if (s->width >= 0) (void)snprintf(width, sizeof(width), "%d", s->width);
    if (s->precision >= 0) (void)snprintf(precision, sizeof(precision), ".%d", s->precision);
    (void)snprintf(c_format, sizeof(c_format), "%%%s%s%s%s%c", s->flags, width, precision, length,
                   s->conversion);
    /* The format is built above from parts that were checked one by one. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    n = length[0] != '\0' ? snprintf(text, sizeof(text), c_format, i)
                          : snprintf(text, sizeof(text), c_format, d);
#pragma GCC diagnostic pop
    if (n > 0) sy_chat_put(f->run, f->buf, text, SY_MIN((size_t)n, sizeof(text) - 1));
}

static void put_integer(formatter *f, spec *s, chat_value v)
{
    const int is_decimal = strchr("diu", s->conversion) != NULL;

    if (is_decimal) s->conversion = 'd';
    if (v.kind == CHAT_FLOAT && is_decimal && v.f > -0x1p63 && v.f < 0x1p63) {
        v = sy_chat_int((int64_t)v.f);
    }
    if (!sy_chat_is_integer(v) || (!is_decimal && v.i < 0)) {
        sy_chat_fail(f->run, SY_EINVAL, "%%%c format: %s", s->conversion,
                     sy_chat_is_integer(v) ? "a negative number is not supported"
                                           : "an integer is required");
        return;
    }
    put_number(f, s, PRId64[0] == 'l' && PRId64[1] == 'l' ? "ll" : "l", v.i, 0.0);
}

static void put_float(formatter *f, const spec *s, chat_value v)
{
    if (!sy_chat_is_number(v)) {
        fail(f, "a number is required in a format");
        return;
    }
    put_number(f, s, "", 0, v.kind == CHAT_FLOAT ? v.f : (double)v.i);
}

static chat_value to_repr(chat_run *run, chat_value v)
{
    sy_strbuf buf;

    sy_chat_text_begin(&buf);
    sy_chat_print_repr(run, &buf, v);
    return sy_chat_text_end(run, &buf);
}

static void put_conversion(formatter *f)
{
    const int has_name = next_char(f) == '(';
    chat_value value = sy_chat_none();
    spec s;

    if (has_name) value = named_value(f);
    parse_spec(f, &s);
    if (f->run->status != SY_OK) return;
    if (s.conversion == '%') {
        sy_chat_put(f->run, f->buf, "%", 1);
        return;
    }
    if (strchr("srdiuxXofFeEgG", s.conversion) == NULL) {
        sy_chat_fail(f->run, SY_EINVAL, "the format %%%c is not supported", s.conversion);
        return;
    }
    if (!has_name) value = next_value(f);
    if (s.conversion == 's') {
        put_padded(f, &s, sy_chat_to_string(f->run, value));
    } else if (s.conversion == 'r') {
        put_padded(f, &s, to_repr(f->run, value));
    } else if (strchr("diuxXo", s.conversion) != NULL) {
        put_integer(f, &s, value);
    } else {
        put_float(f, &s, value);
    }
}

/* Python lets what has keys or indices go unused. */
static int is_used_up(const formatter *f)
{
    if (f->values.kind == CHAT_LIST && f->values.list->seq == CHAT_SEQ_TUPLE) {
        return f->n_used == f->values.list->n;
    }
    return f->n_used > 0 || f->values.kind == CHAT_DICT || f->values.kind == CHAT_UNDEFINED ||
           (f->values.kind == CHAT_LIST && f->values.list->seq <= CHAT_SEQ_RANGE);
}

chat_value sy_chat_format_percent(chat_run *run, chat_value format, chat_value value)
{
    sy_strbuf buf;
    formatter f = {.run = run, .buf = &buf, .format = format.str, .values = value};

    sy_chat_text_begin(&buf);
    while (f.at < f.format->n && run->status == SY_OK) {
        const char *from = f.format->data + f.at;
        const char *percent = memchr(from, '%', f.format->n - f.at);
        const size_t n = percent == NULL ? f.format->n - f.at : (size_t)(percent - from);

        sy_chat_put(run, &buf, from, n);
        f.at += n;
        if (percent == NULL) break;
        f.at++;
        put_conversion(&f);
    }
    if (run->status == SY_OK && !is_used_up(&f)) {
        fail(&f, "not all arguments converted during string formatting");
    }
    return sy_chat_text_end(run, &buf);
}

/* The value of "{}", "{1}" or "{name}"; name: [n] is what stands between the braces. */
static chat_value field(chat_run *run, const char *name, size_t n, const chat_args *args,
                        size_t *n_auto)
{
    size_t index = 0;
    int is_index = 1;

    for (size_t i = 0; i < n; i++) {
        is_index = is_index && name[i] >= '0' && name[i] <= '9' && n < 9;
        if (is_index) index = index * 10 + (size_t)(name[i] - '0');
        if (strchr(":!.[", name[i]) != NULL) {
            sy_chat_fail(run, SY_EINVAL, "format() is supported with {}, {0} and {name} only");
            return sy_chat_none();
        }
    }
    if (n == 0) index = (*n_auto)++;
    if (is_index && index < args->n_pos) return args->pos[index];
    for (size_t i = 0; !is_index && i < args->n_named; i++) {
        const chat_str *given = args->named[i].name;

        if (given->n == n && memcmp(given->data, name, n) == 0) return args->named[i].value;
    }
    sy_chat_fail(run, SY_EINVAL, "format() lacks the value of {%.*s}", sy_chat_clip(name, n), name);
    return sy_chat_none();
}

chat_value sy_chat_format_braces(chat_run *run, chat_value format, const chat_args *args)
{
    const chat_str *s = format.str;
    sy_strbuf buf;
    size_t n_auto = 0;

    sy_chat_text_begin(&buf);
    for (size_t i = 0; i < s->n && run->status == SY_OK;) {
        const char c = s->data[i];
        const char *end;

        if (c != '{' && c != '}') {
            sy_chat_put(run, &buf, &c, 1);
            i++;
        } else if (i + 1 < s->n && s->data[i + 1] == c) { /* a doubled brace is a brace */
            sy_chat_put(run, &buf, &c, 1);
            i += 2;
        } else {
            end = c == '{' ? memchr(s->data + i, '}', s->n - i) : NULL;
            if (end == NULL) {
                sy_chat_fail(run, SY_EINVAL, "a single '%c' in a format string", c);
                break;
            }
            sy_chat_print(
                run, &buf,
                field(run, s->data + i + 1, (size_t)(end - s->data) - i - 1, args, &n_auto));
            i = (size_t)(end - s->data) + 1;
        }
    }
    return sy_chat_text_end(run, &buf);
}
