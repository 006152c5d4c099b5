/* sy_chat_builtin.c - finding a filter, test, method or function, and matching its arguments with
 * its parameters. */
#include "sy_chat_builtin.h"

#include <string.h>

#define PARTS_MAX 2

typedef const chat_builtin *(*part_fn)(size_t *n);

static const part_fn tables[][PARTS_MAX] = {
    [CHAT_FILTERS] = {sy_chat_filters, sy_chat_list_filters},
    [CHAT_TESTS] = {sy_chat_tests},
    [CHAT_METHODS] = {sy_chat_str_methods, sy_chat_container_methods},
    [CHAT_FUNCTIONS] = {sy_chat_functions},
};

static const chat_builtin *entry_at(chat_table table, size_t id)
{
    for (size_t part = 0; part < PARTS_MAX && tables[table][part] != NULL; part++) {
        size_t n;
        const chat_builtin *entry = tables[table][part](&n);

        if (id < n) return &entry[id];
        id -= n;
    }
    return NULL;
}

static uint16_t find(chat_table table, const chat_str *name, int of)
{
    const chat_builtin *entry;

    for (uint16_t id = 0; (entry = entry_at(table, id)) != NULL; id++) {
        if ((of < 0 || (int)entry->of == of) && sy_chat_str_is(name, entry->name)) return id;
    }
    return CHAT_NOT_BUILTIN;
}

uint16_t sy_chat_builtin_find(chat_table table, const chat_str *name)
{
    return find(table, name, -1);
}

uint16_t sy_chat_method_find(chat_kind of, const chat_str *name)
{
    return find(CHAT_METHODS, name, (int)of);
}

const char *sy_chat_builtin_name(chat_table table, uint16_t id)
{
    const chat_builtin *entry = entry_at(table, id);

    return entry == NULL ? "" : entry->name;
}

/* The parameters' names one after the other; NULL at the end. *n: bytes of the name. */
static const char *next_param(const char **params, size_t *n, int *is_optional)
{
    const char *name = *params;

    while (*name == ' ') name++;
    *n = strcspn(name, " ?");
    if (*n == 0) return NULL;
    *params = name + *n;
    if (**params == '?') {
        *is_optional = 1;
        ++*params;
    }
    return name;
}

static int match_args(chat_run *run, const chat_builtin *entry, const chat_args *args,
                      chat_value out[CHAT_PARAMS_MAX])
{
    const char *params = entry->params;
    const char *name;
    size_t n_params = 0;
    size_t n_named_used = 0;
    size_t n;
    int is_optional = 0;

    while ((name = next_param(&params, &n, &is_optional)) != NULL) {
        chat_value *value = &out[n_params];

        *value = (chat_value){.kind = CHAT_MISSING};
        if (n_params < args->n_pos) *value = args->pos[n_params];
        for (size_t i = 0; i < args->n_named; i++) {
            const chat_str *given = args->named[i].name;

            if (given->n != n || memcmp(given->data, name, n) != 0) continue;
            n_named_used++;
            if (value->kind != CHAT_MISSING) {
                sy_chat_fail(run, SY_EINVAL, "%s() got the argument %.*s twice", entry->name,
                             (int)n, name);
            }
            *value = args->named[i].value;
        }
        if (value->kind == CHAT_MISSING && !is_optional) {
            sy_chat_fail(run, SY_EINVAL, "%s() lacks its argument %.*s", entry->name, (int)n, name);
        }
        n_params++;
    }
    if (args->n_pos > n_params) {
        sy_chat_fail(run, SY_EINVAL, "%s() takes at most %zu arguments, got %zu", entry->name,
                     n_params, args->n_pos);
    }
    if (n_named_used < args->n_named) {
        sy_chat_fail(run, SY_EINVAL, "%s() got an argument of a name it does not know",
                     entry->name);
    }
    return run->status == SY_OK;
}

chat_value sy_chat_call_builtin(chat_run *run, chat_table table, uint16_t id, chat_value self,
                                const chat_args *args)
{
    const chat_builtin *entry = entry_at(table, id);
    chat_value arg[CHAT_PARAMS_MAX];

    if (run->status != SY_OK || entry == NULL) return sy_chat_none();
    if (entry->params == NULL) return entry->call_args(run, self, args);
    if (!match_args(run, entry, args, arg)) return sy_chat_none();
    return entry->call(run, self, arg);
}

void sy_chat_check_method(chat_run *run, const chat_str *name)
{
    static const char *const unsupported[] = {
        "casefold",    "center",   "encode",    "expandtabs",   "format_map",
        "fromkeys",    "isascii",  "isdecimal", "isidentifier", "isnumeric",
        "isprintable", "istitle",  "ljust",     "maketrans",    "rindex",
        "rjust",       "swapcase", "translate", "zfill",
    };

    for (size_t i = 0; i < SY_COUNT_OF(unsupported); i++) {
        if (sy_chat_str_is(name, unsupported[i])) {
            sy_chat_fail(run, SY_EINVAL, "the method \"%s\" is not supported", unsupported[i]);
        }
    }
}

int64_t sy_chat_arg_int(chat_run *run, chat_value arg, int64_t fallback)
{
    if (arg.kind == CHAT_MISSING || arg.kind == CHAT_NONE) return fallback;
    if (sy_chat_is_integer(arg)) return arg.i;
    sy_chat_fail(run, SY_EINVAL, "'%s' object cannot be interpreted as an integer",
                 sy_chat_type(arg));
    return fallback;
}

int sy_chat_arg_truth(chat_value arg, int fallback)
{
    return arg.kind == CHAT_MISSING ? fallback : sy_chat_truth(arg);
}

chat_value sy_chat_arg_string(chat_run *run, chat_value arg, const char *what)
{
    if (arg.kind == CHAT_STRING) return arg;
    sy_chat_fail(run, SY_EINVAL, "%s must be str, not %s", what, sy_chat_type(arg));
    return sy_chat_cstring(run, "");
}
