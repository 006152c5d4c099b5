/* sy_chat_function.c - the global functions of a chat template: Jinja's, and the two that
 * transformers adds. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "sy_chat_eval.h"

#define RANGE_MAX 100000 /* items, as in Jinja's sandbox */

/* How many integers from start up to stop, exclusive, are step apart. */
static uint64_t range_length(int64_t start, int64_t stop, int64_t step)
{
    if (step > 0 && start < stop) {
        return ((uint64_t)stop - (uint64_t)start - 1) / (uint64_t)step + 1;
    }
    if (step < 0 && stop < start) {
        return ((uint64_t)start - (uint64_t)stop - 1) / (0 - (uint64_t)step) + 1;
    }
    return 0;
}

static chat_value range(chat_run *run, chat_value self, const chat_value *arg)
{
    int64_t bound[3] = {0, 0, 1}; /* start, stop, step */
    chat_list *list;
    uint64_t n;

    (void)self;
    for (int i = 0; i < 3 && arg[i].kind != CHAT_MISSING; i++) {
        if (!sy_chat_is_integer(arg[i])) {
            sy_chat_fail(run, SY_EINVAL, "'%s' object cannot be interpreted as an integer",
                         sy_chat_type(arg[i]));
            return sy_chat_none();
        }
        bound[i] = arg[i].i;
    }
    if (arg[1].kind == CHAT_MISSING) {
        bound[1] = bound[0];
        bound[0] = 0;
    }
    if (bound[2] == 0) sy_chat_fail(run, SY_EINVAL, "range() arg 3 must not be zero");
    n = range_length(bound[0], bound[1], bound[2]);
    if (n > RANGE_MAX) {
        sy_chat_fail(run, SY_ELIMIT, "a range of %llu items, the maximum is %d",
                     (unsigned long long)n, RANGE_MAX);
        return sy_chat_none();
    }
    list = sy_chat_list_new(run, CHAT_SEQ_RANGE, (size_t)n);
    if (list == NULL) return sy_chat_none();
    list->range.start = bound[0];
    list->range.stop = bound[1];
    list->range.step = bound[2];
    for (uint64_t i = 0; i < n && run->status == SY_OK; i++) {
        sy_chat_list_push(run, list,
                          sy_chat_int((int64_t)((uint64_t)bound[0] + i * (uint64_t)bound[2])));
    }
    return sy_chat_from_list(list);
}

static chat_dict *named_values(chat_run *run, const chat_args *args, const char *function)
{
    chat_dict *dict = sy_chat_dict_new(run);

    if (args->n_pos > 1 || (args->n_pos == 1 && args->pos[0].kind != CHAT_DICT)) {
        sy_chat_fail(run, SY_EINVAL, "%s() takes named values or one mapping", function);
    }
    if (dict == NULL || run->status != SY_OK) return NULL;
    for (size_t i = 0; args->n_pos == 1 && i < args->pos[0].dict->n; i++) {
        const chat_entry *e = &args->pos[0].dict->entry[i];

        sy_chat_dict_set(run, dict, e->key, e->value);
    }
    for (size_t i = 0; i < args->n_named; i++) {
        sy_chat_dict_set(run, dict, (chat_value){.kind = CHAT_STRING, .str = args->named[i].name},
                         args->named[i].value);
    }
    return dict;
}

static chat_value new_namespace(chat_run *run, chat_value self, const chat_args *args)
{
    chat_dict *dict = named_values(run, args, "namespace");

    (void)self;
    if (dict == NULL) return sy_chat_none();
    return (chat_value){.kind = CHAT_NAMESPACE, .dict = dict};
}

static chat_value new_dict(chat_run *run, chat_value self, const chat_args *args)
{
    (void)self;
    return sy_chat_from_dict(named_values(run, args, "dict"));
}

static chat_value raise_exception(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_value text = sy_chat_to_string(run, arg[0]);

    (void)self;
    if (run->status != SY_OK) return text;
    sy_chat_fail(run, SY_EINVAL, "%.*s", sy_chat_clip(text.str->data, text.str->n), text.str->data);
    sy_error_where(run->err, "CHAT_TEMPLATE_REFUSED", -1, -1, NULL);
    return text;
}

static chat_value strftime_now(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)self;
    return sy_chat_strftime(run, sy_chat_arg_string(run, arg[0], "strftime() argument 1"));
}

/* One conversion at s: [n], after its '%': an optional flag and a letter. Returns the bytes used, 0
 * when it is no conversion. */
static size_t conversion(const char *s, size_t n, char spec[8])
{
    const size_t n_flags = n > 0 && s[0] != '\0' && strchr("-_0^#", s[0]) != NULL;
    const char letter = n > n_flags ? s[n_flags] : '\0';

    if (letter == '\0' || strchr("aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZf%", letter) == NULL) {
        return 0;
    }
    (void)snprintf(spec, 8, "%%%.*s%c", (int)n_flags, s, letter);
    return n_flags + 1;
}

chat_value sy_chat_strftime(chat_run *run, chat_value format)
{
    const time_t seconds = (time_t)run->now_seconds;
    const chat_str *f = format.str;
    sy_strbuf buf;
    struct tm tm;

    if (gmtime_r(&seconds, &tm) == NULL) {
        sy_chat_fail(run, SY_EINVAL, "strftime_now() of a year that has no date");
        return format;
    }
    sy_chat_text_begin(&buf);
    for (size_t i = 0; i < f->n && run->status == SY_OK;) {
        const char *percent = memchr(f->data + i, '%', f->n - i);
        const size_t at = percent == NULL ? f->n : (size_t)(percent - f->data);
        char text[256];
        char spec[8];
        size_t used;

        sy_chat_put(run, &buf, f->data + i, at - i);
        if (at == f->n) break;
        used = conversion(f->data + at + 1, f->n - at - 1, spec);
        i = at + 1 + used;
        if (used == 0) {
            sy_chat_put(run, &buf, "%", 1);
        } else if (spec[strlen(spec) - 1] == 'f') {
            sy_chat_put(run, &buf, "000000", 6); /* microseconds, which the clock has not */
        } else if (strchr("zZ", spec[strlen(spec) - 1]) == NULL) { /* Python's naive time: none */
            /* The format was made from parts that conversion() knows. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            const size_t n = strftime(text, sizeof(text), spec, &tm);
#pragma GCC diagnostic pop
            sy_chat_put(run, &buf, text, n);
        }
    }
    return sy_chat_text_end(run, &buf);
}

const chat_builtin *sy_chat_functions(size_t *n)
{
    static const chat_builtin functions[] = {
        {"range", "start stop? step?", range, NULL, CHAT_MISSING},
        {"namespace", NULL, NULL, new_namespace, CHAT_MISSING},
        {"dict", NULL, NULL, new_dict, CHAT_MISSING},
        {"raise_exception", "message", raise_exception, NULL, CHAT_MISSING},
        {"strftime_now", "format", strftime_now, NULL, CHAT_MISSING},
    };

    *n = SY_COUNT_OF(functions);
    return functions;
}
