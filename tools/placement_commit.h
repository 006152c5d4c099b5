/* placement_commit.h - the end of every command that edits placement: writes, says what was there
 * and what is there now, and waits if asked to. */
#ifndef PLACEMENT_COMMIT_H
#define PLACEMENT_COMMIT_H

#include "placement_wait.h"

typedef struct commit_options {
    const char *reason, *command; /* for the history */
    int64_t timeout_s;
    int force, wait, json;
    wait_also *also; /* one more thing to wait for; NULL: nothing */
    void *also_arg;
    const char *done; /* what is printed at the end of a wait, beside its figures; or NULL */
} commit_options;

#define COMMIT_TIMEOUT_S 300
#define WAIT_ARGS(o)                                                      \
    {"wait",                                                              \
     NULL,                                                                \
     "until every process has it in force and what it wants is resident", \
     SY_ARG_FLAG,                                                         \
     &(o).wait,                                                           \
     0,                                                                   \
     0},                                                                  \
        {"timeout-s",                                                     \
         "S",                                                             \
         "how long to wait at most; exit code 4 after it",                \
         SY_ARG_INT,                                                      \
         &(o).timeout_s,                                                  \
         1,                                                               \
         86400 * 7},                                                      \
    {                                                                     \
        "json", NULL, "print JSON", SY_ARG_FLAG, &(o).json, 0, 0          \
    }

/* Writes the fields that were set in map, all or none. Returns the exit code: 0; 1 somebody came
 * first, or Redis refuses; 4 the wait took too long; 130 it was interrupted. */
int placement_commit(place *p, field_map *map, const commit_options *options);

/* "switchyard placement set 3/17 expert-b/cpu:0", cut where it is long. The caller frees it. */
char *commit_command(const char *name, const char *const *word, size_t n);

#endif
