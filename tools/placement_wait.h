/* placement_wait.h - waiting until an edit is in force everywhere and what it newly wants is in
 * memory. */
#ifndef PLACEMENT_WAIT_H
#define PLACEMENT_WAIT_H

#include "cluster_facts.h"
#include "tool_place.h"

typedef struct wait_want { /* an expert on a device that did not have to hold it before */
    uint32_t layer, expert;
    sy_target target;
} wait_want;

typedef struct wait_list {
    wait_want *want; /* [n], in order of layer and expert */
    size_t n;
} wait_list;

/* What `after` wants and `before` (NULL: nothing) did not. SY_OK: in the end free(out->want). */
SY_MUST_USE sy_status wait_list_between(wait_list *out, const sy_snapshot *before,
                                        const sy_snapshot *after, sy_error *err);

typedef struct wait_view {
    size_t n_processes, n_switched;      /* that have the hash in force */
    size_t n_resident, n_failed, n_gone; /* wants; gone: not asked for any more */
    int percent;                         /* of the bytes of all wants, roughly */
    int is_done;
    char waits_for[320]; /* a sentence without its end; "" when done */
    char failed[320];    /* the first shards that failed, with reasons; "" */
} wait_view;

/* now: the placement as Redis has it at this moment. Pure. */
void wait_look(wait_view *out, const wait_list *list, const sy_snapshot *now,
               const cluster_facts *facts);

/* One more thing to wait for. 1: it is so; else why: [cap], a sentence without its end. Pure. */
typedef int wait_also(void *arg, char *why, size_t cap, const sy_snapshot *now,
                      const cluster_facts *facts);

/* Looks until everything is there, and shows on stderr what it waits for. SY_OK; SY_EDEADLINE with
 * a text that says what is missing; SY_ECANCELLED: interrupted. Call tool_pause_open before. also:
 * may be NULL. */
SY_MUST_USE sy_status placement_wait(wait_view *out, place *p, const wait_list *list,
                                     wait_also *also, void *arg, int64_t timeout_us, sy_error *err);

#define TOOL_EXIT_CHECK    3
#define TOOL_EXIT_DEADLINE 4
/* Prints err as tool_fail does and returns the exit code of a command that waited. */
int wait_exit_code(const sy_error *err);

#endif
