/* sy_args.c - one pass over the command line, then the environment for what the command line left
 * out. Every message names the option and what would be right. */
#include "sy_args.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define ARGS_MAX        64 /* bits of `given` */
#define NAME_MAX_BYTES  48
#define HELP_COLUMNS    80
#define HELP_INDENT_MAX 34 /* an option that is wider stands on a line of its own */
#define ENV_PREFIX      "SWITCHYARD_"
#define ENV_NAME_BYTES  (sizeof(ENV_PREFIX) + NAME_MAX_BYTES)

typedef struct parser {
    const sy_arg *args;
    size_t n_args;
    uint64_t given; /* bit i: args[i] was on the command line */
    const char **positional;
    size_t max_positional;
    size_t n_positional;
    sy_error *err;
} parser;

static void env_name(char out[ENV_NAME_BYTES], const char *name)
{
    size_t len = sizeof(ENV_PREFIX) - 1;

    memcpy(out, ENV_PREFIX, len);
    for (; *name != '\0'; name++)
        out[len++] = *name == '-' ? '_' : (char)toupper((unsigned char)*name);
    out[len] = '\0';
}

/* Help. */

static void put_default(sy_strbuf *out, const sy_arg *arg)
{
    const sy_arg_strings *strings = arg->out;

    switch (arg->kind) {
    case SY_ARG_STRING:
        if (*(const char **)arg->out != NULL && (*(const char **)arg->out)[0] != '\0') {
            sy_strbuf_printf(out, " (default %s)", *(const char **)arg->out);
        }
        break;
    case SY_ARG_INT:
        sy_strbuf_printf(out, " (default %jd)", (intmax_t) * (int64_t *)arg->out);
        break;
    case SY_ARG_DOUBLE: sy_strbuf_printf(out, " (default %g)", *(double *)arg->out); break;
    case SY_ARG_STRINGS:
        sy_strbuf_puts(out, " (may be repeated");
        for (size_t i = 0; i < strings->n; i++) {
            sy_strbuf_printf(out, "%s%s", i == 0 ? "; default " : ", ", strings->item[i]);
        }
        sy_strbuf_puts(out, ")");
        break;
    case SY_ARG_FLAG:
    default: break;
    }
}

/* Breaks text between words, so that it stays right of the indent. */
static void put_wrapped(sy_strbuf *out, const char *text, size_t indent)
{
    size_t column = indent;

    while (*text != '\0') {
        const size_t word = strcspn(text, " ");

        if (column > indent && column + 1 + word > HELP_COLUMNS) {
            sy_strbuf_printf(out, "\n%*s", (int)indent, "");
            column = indent;
        } else if (column > indent) {
            sy_strbuf_append(out, " ", 1);
            column++;
        }
        sy_strbuf_append(out, text, word);
        column += word;
        text += word;
        text += strspn(text, " ");
    }
    sy_strbuf_append(out, "\n", 1);
}

static size_t option_width(const sy_arg *arg)
{
    return strlen("  --") + strlen(arg->name) + (arg->value ? 1 + strlen(arg->value) : 0);
}

static void put_option(sy_strbuf *out, const sy_arg *arg, size_t indent)
{
    const size_t width = option_width(arg);
    sy_strbuf text;

    sy_strbuf_printf(out, "  --%s%s%s", arg->name, arg->value ? " " : "",
                     arg->value ? arg->value : "");
    if (width + 2 > indent) {
        sy_strbuf_printf(out, "\n%*s", (int)indent, "");
    } else {
        sy_strbuf_printf(out, "%*s", (int)(indent - width), "");
    }
    sy_strbuf_init(&text);
    sy_strbuf_puts(&text, arg->help);
    put_default(&text, arg);
    put_wrapped(out, text.data, indent);
    sy_strbuf_free(&text);
}

static void print_help(const parser *p, const char *usage)
{
    static const sy_arg help = {.name = "help", .help = "show this text", .kind = SY_ARG_FLAG};
    size_t indent = option_width(&help) + 2;
    char variable[ENV_NAME_BYTES];
    sy_strbuf out;

    for (size_t i = 0; i < p->n_args; i++) {
        const size_t width = option_width(&p->args[i]) + 2;

        if (width <= HELP_INDENT_MAX) indent = SY_MAX(indent, width);
    }
    sy_strbuf_init(&out);
    sy_strbuf_printf(&out, "usage: %s\n\n", usage);
    for (size_t i = 0; i < p->n_args; i++) put_option(&out, &p->args[i], indent);
    put_option(&out, &help, indent);
    if (p->n_args > 0) {
        env_name(variable, p->args[0].name);
        sy_strbuf_printf(&out,
                         "\nAn option that is not given is taken from the environment: --%s from\n"
                         "%s.\n",
                         p->args[0].name, variable);
    }
    fwrite(out.data, 1, out.len, stdout);
    fflush(stdout);
    sy_strbuf_free(&out);
}

static int wants_help(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return 1;
    }
    return 0;
}

/* Values. `from` is what the person wrote: "--port", or the name of the variable. */

static sy_status set_int(const sy_arg *arg, const char *from, const char *text, sy_error *err)
{
    const int is_checked = arg->min != 0 || arg->max != 0;
    char *end = NULL;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || isspace((unsigned char)text[0])) {
        return sy_error_set(err, SY_EINVAL, "%s: \"%s\" is not a whole number", from, text);
    }
    if (errno == ERANGE || (is_checked && (value < arg->min || value > arg->max))) {
        return sy_error_set(err, SY_EINVAL, "%s: %s is not between %jd and %jd", from, text,
                            (intmax_t)(is_checked ? arg->min : INT64_MIN),
                            (intmax_t)(is_checked ? arg->max : INT64_MAX));
    }
    *(int64_t *)arg->out = value;
    return SY_OK;
}

static sy_status set_double(const sy_arg *arg, const char *from, const char *text, sy_error *err)
{
    char *end = NULL;
    const double value = strtod(text, &end);

    if (end == text || *end != '\0' || isspace((unsigned char)text[0]) || !isfinite(value)) {
        return sy_error_set(err, SY_EINVAL, "%s: \"%s\" is not a number", from, text);
    }
    *(double *)arg->out = value;
    return SY_OK;
}

static sy_status set_flag(const sy_arg *arg, const char *from, const char *text, sy_error *err)
{
    static const char *const word[] = {"0", "false", "no", "off", "1", "true", "yes", "on"};

    for (size_t i = 0; i < SY_COUNT_OF(word); i++) {
        if (strcasecmp(text, word[i]) == 0) {
            *(int *)arg->out = i >= SY_COUNT_OF(word) / 2;
            return SY_OK;
        }
    }
    return sy_error_set(err, SY_EINVAL, "%s: \"%s\" is neither true nor false", from, text);
}

static sy_status add_string(const sy_arg *arg, const char *from, const char *text, sy_error *err)
{
    sy_arg_strings *strings = arg->out;

    if (strings->n == SY_ARG_STRINGS_MAX) {
        return sy_error_set(err, SY_EINVAL, "%s: given more than %d times", from,
                            SY_ARG_STRINGS_MAX);
    }
    strings->item[strings->n++] = text;
    return SY_OK;
}

/* is_first: the option has no value of this source yet, so a list starts anew instead of growing
 * from its default. */
static sy_status set_value(const sy_arg *arg, const char *from, const char *text, int is_first,
                           sy_error *err)
{
    switch (arg->kind) {
    case SY_ARG_STRING: *(const char **)arg->out = text; return SY_OK;
    case SY_ARG_INT: return set_int(arg, from, text, err);
    case SY_ARG_DOUBLE: return set_double(arg, from, text, err);
    case SY_ARG_STRINGS:
        if (is_first) ((sy_arg_strings *)arg->out)->n = 0;
        return add_string(arg, from, text, err);
    case SY_ARG_FLAG:
    default: return set_flag(arg, from, text, err);
    }
}

/* Names. */

/* Edits (insert, delete, replace a character) that make b of a; both are shorter than
 * NAME_MAX_BYTES. */
static size_t edit_distance(const char *a, size_t a_len, const char *b)
{
    const size_t b_len = strlen(b);
    size_t row[NAME_MAX_BYTES + 1];

    for (size_t j = 0; j <= b_len; j++) row[j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            row[j] = SY_MIN(replaced, SY_MIN(row[j], row[j - 1]) + 1);
        }
    }
    return row[b_len];
}

static sy_status fail_unknown(const parser *p, const char *option, size_t len)
{
    const char *name = option + strspn(option, "-");
    const size_t name_len = len - (size_t)(name - option);
    const char *nearest = NULL;
    size_t least = 1 + SY_MAX(name_len / 3, 2); /* further away it is no typing mistake */

    for (size_t i = 0; i < p->n_args && name_len < NAME_MAX_BYTES; i++) {
        const size_t distance = edit_distance(name, name_len, p->args[i].name);

        if (distance < least) {
            least = distance;
            nearest = p->args[i].name;
        }
    }
    if (nearest == NULL) {
        return sy_error_set(p->err, SY_EINVAL, "unknown option %.*s; --help lists the options",
                            (int)SY_MIN(len, 100), option);
    }
    return sy_error_set(p->err, SY_EINVAL, "unknown option %.*s; did you mean --%s?",
                        (int)SY_MIN(len, 100), option, nearest);
}

/* The command line. */

/* Takes argv[*i], an option, and its value, which may be the next argument; leaves *i at the last
 * one taken. */
static sy_status take_option(parser *p, int argc, char **argv, int *i)
{
    const char *option = argv[*i];
    const size_t len = strcspn(option, "=");
    const char *value = option[len] == '=' ? option + len + 1 : NULL;
    char from[NAME_MAX_BYTES + 3];
    size_t id = 0;
    int is_first;

    while (id < p->n_args &&
           (strncmp(option, "--", 2) != 0 || strlen(p->args[id].name) != len - 2 ||
            memcmp(p->args[id].name, option + 2, len - 2) != 0)) {
        id++;
    }
    if (id == p->n_args) return fail_unknown(p, option, len);
    snprintf(from, sizeof(from), "--%s", p->args[id].name);
    is_first = (p->given & (uint64_t)1 << id) == 0;
    p->given |= (uint64_t)1 << id;
    if (p->args[id].kind == SY_ARG_FLAG) {
        return set_value(&p->args[id], from, value != NULL ? value : "true", is_first, p->err);
    }
    if (value == NULL) {
        /* A value may begin with one dash, as -1 does; two dashes mean that it was forgotten. */
        if (*i + 1 == argc || strncmp(argv[*i + 1], "--", 2) == 0) {
            return sy_error_set(p->err, SY_EINVAL, "%s: a value is missing: %s %s", from, from,
                                p->args[id].value != NULL ? p->args[id].value : "VALUE");
        }
        value = argv[++*i];
    }
    return set_value(&p->args[id], from, value, is_first, p->err);
}

static sy_status take_positional(parser *p, const char *text)
{
    if (p->n_positional == p->max_positional) {
        return sy_error_set(p->err, SY_EINVAL, "unexpected argument \"%s\"; --help shows the usage",
                            text);
    }
    p->positional[p->n_positional++] = text;
    return SY_OK;
}

static sy_status take_command_line(parser *p, int argc, char **argv)
{
    sy_status st = SY_OK;
    int options_end = 0;

    for (int i = 1; i < argc && st == SY_OK; i++) {
        if (options_end || argv[i][0] != '-' || argv[i][1] == '\0') {
            st = take_positional(p, argv[i]);
        } else if (strcmp(argv[i], "--") == 0) {
            options_end = 1;
        } else {
            st = take_option(p, argc, argv, &i);
        }
    }
    return st;
}

/* An empty variable counts as absent: that is how templates of containers leave an option out. */
static sy_status take_environment(parser *p)
{
    sy_status st = SY_OK;

    for (size_t id = 0; id < p->n_args && st == SY_OK; id++) {
        char variable[ENV_NAME_BYTES];
        const char *value;

        if ((p->given & (uint64_t)1 << id) != 0) continue;
        env_name(variable, p->args[id].name);
        value = getenv(variable);
        if (value == NULL || value[0] == '\0') continue;
        st = set_value(&p->args[id], variable, value, 1, p->err);
    }
    return st;
}

sy_status sy_args_parse(int argc, char **argv, const sy_arg *args, size_t n_args, const char *usage,
                        const char **positional, size_t max_positional, size_t *n_positional,
                        sy_error *err)
{
    parser p = {.args = args,
                .n_args = n_args,
                .positional = positional,
                .max_positional = max_positional,
                .err = err};
    sy_status st;

    SY_ASSERT(n_args <= ARGS_MAX);
    for (size_t i = 0; i < n_args; i++) SY_ASSERT(strlen(args[i].name) < NAME_MAX_BYTES);
    if (n_positional != NULL) *n_positional = 0;
    if (wants_help(argc, argv)) {
        print_help(&p, usage);
        return sy_error_set(err, SY_ECANCELLED, "help was printed");
    }
    SY_TRY(take_command_line(&p, argc, argv));
    SY_TRY(take_environment(&p));
    if (n_positional != NULL) *n_positional = p.n_positional;
out:
    return st;
}
