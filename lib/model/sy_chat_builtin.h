/* sy_chat_builtin.h - what a template can call that is not a macro: Jinja's filters and tests,
 * methods of Python's str, dict and list, global functions. One table for each; every entry names
 * its parameters. Private to sy_chat_*.c. */
#ifndef SY_CHAT_BUILTIN_H
#define SY_CHAT_BUILTIN_H

#include "sy_chat_value.h"

typedef struct chat_named {
    chat_str *name;
    chat_value value;
} chat_named;

typedef struct chat_args {
    chat_value *pos; /* [n_pos] */
    size_t n_pos;
    chat_named *named; /* [n_named] */
    size_t n_named;
} chat_args;

#define CHAT_PARAMS_MAX  6
#define CHAT_NOT_BUILTIN UINT16_MAX

typedef struct chat_builtin {
    const char *name;
    /* Names of parameters with a space between; from the first with a '?' on they may be left out.
     * NULL: call_args takes the arguments as they come. */
    const char *params;
    /* self: what is filtered or tested, the method's object. arg: [parameters], MISSING where not
     * given. */
    chat_value (*call)(chat_run *run, chat_value self, const chat_value *arg);
    chat_value (*call_args)(chat_run *run, chat_value self, const chat_args *args);
    chat_kind of; /* METHODS: whose */
} chat_builtin;

typedef enum chat_table { CHAT_FILTERS, CHAT_TESTS, CHAT_METHODS, CHAT_FUNCTIONS } chat_table;

/* The tables themselves, each in the file that implements it; *n: entries. */
const chat_builtin *sy_chat_filters(size_t *n);
const chat_builtin *sy_chat_list_filters(size_t *n); /* the second part of FILTERS */
const chat_builtin *sy_chat_tests(size_t *n);
const chat_builtin *sy_chat_str_methods(size_t *n);
const chat_builtin *sy_chat_container_methods(size_t *n); /* the second part of METHODS */
const chat_builtin *sy_chat_functions(size_t *n);

uint16_t sy_chat_builtin_find(chat_table table, const chat_str *name); /* not for METHODS */
uint16_t sy_chat_method_find(chat_kind of, const chat_str *name);
const char *sy_chat_builtin_name(chat_table table, uint16_t id);
chat_value sy_chat_call_builtin(chat_run *run, chat_table table, uint16_t id, chat_value self,
                                const chat_args *args);
/* Fails the run, while parsing, for a method that Python has and this interpreter does not. */
void sy_chat_check_method(chat_run *run, const chat_str *name);

/* Arguments as C values; each fails the run where Python would raise TypeError. */
int64_t sy_chat_arg_int(chat_run *run, chat_value arg, int64_t fallback); /* also for NONE */
int sy_chat_arg_truth(chat_value arg, int fallback);
chat_value sy_chat_arg_string(chat_run *run, chat_value arg, const char *what);

#endif
