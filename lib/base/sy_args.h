/* sy_args.h - command lines: a table of options, `--name value` or `--name=value`, flags, --help
 * made from the table. Used by every program, so that help and errors look alike. */
#ifndef SY_ARGS_H
#define SY_ARGS_H

#include "sy_strbuf.h"

typedef enum sy_arg_kind {
    SY_ARG_FLAG,
    SY_ARG_STRING,
    SY_ARG_INT,
    SY_ARG_DOUBLE,
    SY_ARG_STRINGS
} sy_arg_kind;

#define SY_ARG_STRINGS_MAX 16
typedef struct sy_arg_strings {
    const char *item[SY_ARG_STRINGS_MAX];
    size_t n;
} sy_arg_strings;

typedef struct sy_arg {
    const char *name;  /* without dashes */
    const char *value; /* what help calls it: "DIR"; NULL for a flag */
    const char *help;
    sy_arg_kind kind;
    void *out; /* int *, const char **, int64_t *, double *, sy_arg_strings *; holds the default
                  beforehand */
    int64_t min, max; /* SY_ARG_INT: inclusive; both 0: no check */
} sy_arg;

/* Parses argv[1..]; borrowed strings point into argv. positional: [max_positional], n_positional
 * may be NULL when max_positional is 0. An environment variable SWITCHYARD_NAME (dashes as
 * underscores, upper case) gives a default. SY_EINVAL: unknown option (with the nearest name),
 * missing or malformed value, too many positionals; err says so. SY_ECANCELLED: --help was asked
 * for and printed to stdout. */
SY_MUST_USE sy_status sy_args_parse(int argc, char **argv, const sy_arg *args, size_t n_args,
                                    const char *usage, const char **positional,
                                    size_t max_positional, size_t *n_positional, sy_error *err);

#endif
