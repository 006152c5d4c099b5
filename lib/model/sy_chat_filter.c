/* sy_chat_filter.c - Jinja's filters on text and numbers, and tojson as transformers has it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_chat_eval.h"
#include "sy_chat_json.h"
#include "sy_chat_text.h"

#define NUMBER_BYTES_MAX 400 /* of text that int and float look at */
#define INDENT_MAX       1000

static chat_value call_method(chat_run *run, const char *name, chat_value self,
                              const chat_value *arg)
{
    const chat_value key = sy_chat_cstring(run, name);
    chat_value pos[3];
    chat_args args = {.pos = pos};

    for (size_t i = 0; arg != NULL && i < 3 && arg[i].kind != CHAT_MISSING; i++) {
        pos[args.n_pos++] = arg[i];
    }
    return sy_chat_call_builtin(run, CHAT_METHODS, sy_chat_method_find(CHAT_STRING, key.str),
                                sy_chat_to_string(run, self), &args);
}

static chat_value trim(chat_run *run, chat_value self, const chat_value *arg)
{
    return call_method(run, "strip", self, (chat_value[3]){arg[0]});
}

static chat_value upper(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_change_case(run, sy_chat_to_string(run, self), CHAT_UPPER);
}

static chat_value lower(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_change_case(run, sy_chat_to_string(run, self), CHAT_LOWER);
}

static chat_value capitalize(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_change_case(run, sy_chat_to_string(run, self), CHAT_CAPITALIZE);
}

static chat_value title(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_title(run, sy_chat_to_string(run, self));
}

static chat_value string(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_to_string(run, self);
}

static chat_value safe(chat_run *run, chat_value self, const chat_value *arg)
{
    chat_value text = sy_chat_to_string(run, self);

    (void)arg;
    text.is_safe = 1;
    return text;
}

static chat_value escape(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_escape_html(run, sy_chat_to_string(run, self));
}

static chat_value replace(chat_run *run, chat_value self, const chat_value *arg)
{
    return call_method(
        run, "replace", self,
        (chat_value[3]){sy_chat_to_string(run, arg[0]), sy_chat_to_string(run, arg[1]), arg[2]});
}

static chat_value format(chat_run *run, chat_value self, const chat_args *args)
{
    chat_value operand;

    if (args->n_named > 0 && args->n_pos > 0) {
        sy_chat_fail(run, SY_EINVAL, "can't handle positional and keyword arguments at once");
    }
    if (args->n_named > 0) {
        operand = sy_chat_from_dict(sy_chat_dict_new(run));
        for (size_t i = 0; i < args->n_named && run->status == SY_OK; i++) {
            sy_chat_dict_set(run, operand.dict,
                             (chat_value){.kind = CHAT_STRING, .str = args->named[i].name},
                             args->named[i].value);
        }
    } else {
        operand = sy_chat_from_list(sy_chat_list_new(run, CHAT_SEQ_TUPLE, args->n_pos));
        for (size_t i = 0; i < args->n_pos && run->status == SY_OK; i++) {
            sy_chat_list_push(run, operand.list, args->pos[i]);
        }
    }
    return sy_chat_format_percent(run, sy_chat_to_string(run, self), operand);
}

/* A string for one level of indentation: n spaces or the text itself. */
static chat_value indentation(chat_run *run, chat_value width)
{
    char spaces[INDENT_MAX];
    int64_t n;

    if (width.kind == CHAT_STRING) return width;
    n = sy_chat_arg_int(run, width, 4);
    if (n > INDENT_MAX) sy_chat_fail(run, SY_ELIMIT, "an indentation of more than %d", INDENT_MAX);
    if (n < 0 || n > INDENT_MAX) n = 0;
    memset(spaces, ' ', sizeof(spaces));
    return sy_chat_string(run, spaces, (size_t)n);
}

static chat_value indent(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_value unit = indentation(run, arg[0]);
    const int first = sy_chat_arg_truth(arg[1], 0);
    const int blank = sy_chat_arg_truth(arg[2], 0);
    const chat_value text = sy_chat_arg_string(run, self, "what is indented");
    /* As Jinja does: with a line end added, so that a last one makes an empty line. */
    const chat_value whole = sy_chat_concat(run, text, sy_chat_cstring(run, "\n"));
    const chat_value lines = call_method(run, "splitlines", whole, NULL);
    sy_strbuf buf;

    sy_chat_text_begin(&buf);
    for (size_t i = 0; run->status == SY_OK && i < lines.list->n; i++) {
        const chat_str *line = lines.list->item[i].str;

        if (i > 0) sy_chat_put(run, &buf, "\n", 1);
        if (i == 0 ? first : (blank || line->n > 0)) {
            sy_chat_put(run, &buf, unit.str->data, unit.str->n);
        }
        sy_chat_put(run, &buf, line->data, line->n);
    }
    return sy_chat_text_end(run, &buf);
}

static chat_value json_separator(chat_run *run, chat_value pair, size_t i, const char *fallback)
{
    if (pair.kind == CHAT_MISSING || pair.kind == CHAT_NONE) return sy_chat_cstring(run, fallback);
    if (pair.kind != CHAT_LIST || pair.list->seq > CHAT_SEQ_TUPLE || pair.list->n != 2) {
        sy_chat_fail(run, SY_EINVAL, "separators of tojson must be a pair of strings");
        return sy_chat_cstring(run, "");
    }
    return sy_chat_arg_string(run, pair.list->item[i], "a separator of tojson");
}

static chat_value tojson(chat_run *run, chat_value self, const chat_value *arg)
{
    chat_json_style style = {.ensure_ascii = sy_chat_arg_truth(arg[0], 0),
                             .sort_keys = sy_chat_arg_truth(arg[3], 0)};

    if (arg[1].kind != CHAT_MISSING && arg[1].kind != CHAT_NONE) {
        style.is_pretty = 1;
        style.indent = indentation(run, arg[1]).str;
    }
    style.item_separator = json_separator(run, arg[2], 0, style.is_pretty ? "," : ", ").str;
    style.key_separator = json_separator(run, arg[2], 1, ": ").str;
    if (run->status != SY_OK) return sy_chat_none();
    return sy_chat_to_json(run, self, &style);
}

/* Python's spelling of a number: white space around it, single underscores between digits. Copies
 * the rest to out: [NUMBER_BYTES_MAX]. */
static int clean_number(chat_run *run, char *out, const chat_str *s)
{
    const size_t begin = sy_chat_space_prefix(s->data, s->n);
    const size_t end = sy_chat_rstrip_space(s->data, s->n);
    size_t n = 0;

    sy_chat_charge(run, s->n);
    if (begin >= end || end - begin >= NUMBER_BYTES_MAX) return 0;
    for (size_t i = begin; i < end; i++) {
        const char c = s->data[i];
        const int digit_before = i > begin && s->data[i - 1] >= '0' && s->data[i - 1] <= '9';
        const int digit_after = i + 1 < end && s->data[i + 1] >= '0' && s->data[i + 1] <= '9';

        if (c == '_' && digit_before && digit_after) continue;
        if (c == '\0' || c == '_') return 0;
        out[n++] = c;
    }
    out[n] = '\0';
    return 1;
}

static int parse_int(chat_run *run, const char *text, int64_t *out)
{
    const char *digits = text + (*text == '-' || *text == '+');
    int64_t value = 0;

    if (*digits == '\0' || strspn(digits, "0123456789") != strlen(digits)) return 0;
    for (; *digits != '\0'; digits++) {
        const int64_t digit = *text == '-' ? '0' - *digits : *digits - '0';

        if (__builtin_mul_overflow(value, (int64_t)10, &value) ||
            __builtin_add_overflow(value, digit, &value)) {
            sy_chat_fail(run, SY_EINVAL, "the number %.40s does not fit 64 bits", text);
            return 0;
        }
    }
    *out = value;
    return 1;
}

static int parse_double(const char *text, double *out)
{
    static const char *const names[] = {"inf", "infinity", "nan"};
    const char *unsigned_text = text + (*text == '-' || *text == '+');
    int is_name = 0;
    char *end;

    for (size_t i = 0; i < SY_COUNT_OF(names); i++) {
        is_name |= strcasecmp(unsigned_text, names[i]) == 0;
    }
    if (!is_name && (strspn(text, "0123456789+-.eE") != strlen(text) || *text == '\0')) return 0;
    *out = strtod(text, &end);
    return end != text && *end == '\0';
}

static chat_value truncate_double(chat_run *run, double f)
{
    if (!(f >= -0x1p63 && f < 0x1p63)) {
        sy_chat_fail(run, SY_EINVAL, "a number does not fit an integer of 64 bits");
        return sy_chat_int(0);
    }
    return sy_chat_int((int64_t)f);
}

static chat_value to_int(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_value fallback = arg[0].kind == CHAT_MISSING ? sy_chat_int(0) : arg[0];
    char text[NUMBER_BYTES_MAX];
    int64_t i;
    double f;

    if (sy_chat_arg_int(run, arg[1], 10) != 10) {
        sy_chat_fail(run, SY_EINVAL, "the filter int is supported in base 10 only");
    }
    if (sy_chat_is_integer(self)) return sy_chat_int(self.i);
    if (self.kind == CHAT_FLOAT) return isnan(self.f) ? fallback : truncate_double(run, self.f);
    if (self.kind == CHAT_UNDEFINED) sy_chat_fail_undefined(run, self);
    if (self.kind != CHAT_STRING || !clean_number(run, text, self.str)) return fallback;
    if (parse_int(run, text, &i)) return sy_chat_int(i);
    if (!parse_double(text, &f) || isnan(f) || isinf(f)) return fallback;
    return truncate_double(run, f);
}

static chat_value to_float(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_value fallback = arg[0].kind == CHAT_MISSING ? sy_chat_float(0.0) : arg[0];
    char text[NUMBER_BYTES_MAX];
    double f;

    if (sy_chat_is_integer(self)) return sy_chat_float((double)self.i);
    if (self.kind == CHAT_FLOAT) return self;
    if (self.kind == CHAT_UNDEFINED) sy_chat_fail_undefined(run, self);
    if (self.kind != CHAT_STRING || !clean_number(run, text, self.str)) return fallback;
    return parse_double(text, &f) ? sy_chat_float(f) : fallback;
}

static chat_value absolute(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    if (self.kind == CHAT_FLOAT) return sy_chat_float(fabs(self.f));
    if (sy_chat_is_integer(self))
        return self.i < 0 ? sy_chat_sign(run, self, 1) : sy_chat_int(self.i);
    if (self.kind == CHAT_UNDEFINED) sy_chat_fail_undefined(run, self);
    sy_chat_fail(run, SY_EINVAL, "bad operand type for abs(): '%s'", sy_chat_type(self));
    return self;
}

static chat_value round_number(chat_run *run, chat_value self, const chat_value *arg)
{
    const int64_t precision = sy_chat_arg_int(run, arg[0], 0);
    char text[NUMBER_BYTES_MAX];
    double scale;
    double f;

    if (!sy_chat_is_number(self) || precision < 0 || precision > 20) {
        sy_chat_fail(run, SY_EINVAL, "the filter round takes a number and a precision of 0 to 20");
        return self;
    }
    if (arg[1].kind == CHAT_MISSING ||
        (arg[1].kind == CHAT_STRING && sy_chat_str_is(arg[1].str, "common"))) {
        if (self.kind != CHAT_FLOAT) return sy_chat_int(self.i);
        if (isnan(self.f) || isinf(self.f)) return self;
        (void)snprintf(text, sizeof(text), "%.*f", (int)precision, self.f);
        return sy_chat_float(strtod(text, NULL));
    }
    f = self.kind == CHAT_FLOAT ? self.f : (double)self.i;
    scale = pow(10.0, (double)precision);
    if (arg[1].kind == CHAT_STRING && sy_chat_str_is(arg[1].str, "ceil")) {
        return sy_chat_float(ceil(f * scale) / scale);
    }
    if (arg[1].kind == CHAT_STRING && sy_chat_str_is(arg[1].str, "floor")) {
        return sy_chat_float(floor(f * scale) / scale);
    }
    sy_chat_fail(run, SY_EINVAL, "method must be common, ceil or floor");
    return self;
}

static chat_value fallback_value(chat_run *run, chat_value self, const chat_value *arg)
{
    if (self.kind != CHAT_UNDEFINED && !(sy_chat_arg_truth(arg[1], 0) && !sy_chat_truth(self))) {
        return self;
    }
    return arg[0].kind == CHAT_MISSING ? sy_chat_cstring(run, "") : arg[0];
}

static chat_value length(chat_run *run, chat_value self, const chat_value *arg)
{
    size_t n;

    (void)arg;
    if (!sy_chat_length(self, &n)) {
        sy_chat_fail(run, SY_EINVAL, "object of type '%s' has no len()", sy_chat_type(self));
    }
    return sy_chat_int((int64_t)n);
}

const chat_builtin *sy_chat_filters(size_t *n)
{
    static const chat_builtin filters[] = {
        {"trim", "chars?", trim, NULL, CHAT_MISSING},
        {"upper", "", upper, NULL, CHAT_MISSING},
        {"lower", "", lower, NULL, CHAT_MISSING},
        {"capitalize", "", capitalize, NULL, CHAT_MISSING},
        {"title", "", title, NULL, CHAT_MISSING},
        {"string", "", string, NULL, CHAT_MISSING},
        {"safe", "", safe, NULL, CHAT_MISSING},
        {"escape", "", escape, NULL, CHAT_MISSING},
        {"e", "", escape, NULL, CHAT_MISSING},
        {"replace", "old new count?", replace, NULL, CHAT_MISSING},
        {"format", NULL, NULL, format, CHAT_MISSING},
        {"indent", "width? first? blank?", indent, NULL, CHAT_MISSING},
        {"tojson", "ensure_ascii? indent? separators? sort_keys?", tojson, NULL, CHAT_MISSING},
        {"int", "default? base?", to_int, NULL, CHAT_MISSING},
        {"float", "default?", to_float, NULL, CHAT_MISSING},
        {"abs", "", absolute, NULL, CHAT_MISSING},
        {"round", "precision? method?", round_number, NULL, CHAT_MISSING},
        {"default", "default_value? boolean?", fallback_value, NULL, CHAT_MISSING},
        {"d", "default_value? boolean?", fallback_value, NULL, CHAT_MISSING},
        {"length", "", length, NULL, CHAT_MISSING},
        {"count", "", length, NULL, CHAT_MISSING},
    };

    *n = SY_COUNT_OF(filters);
    return filters;
}
