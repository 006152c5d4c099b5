/* canary_state.h - what Redis knows of a canary, so that another process can take it up when its
 * watcher dies: hash switchyard:{MODEL}:canary, one field a canary, JSON. */
#ifndef CANARY_STATE_H
#define CANARY_STATE_H

#include "canary_verdict.h"
#include "sy_arena.h"
#include "tool_redis.h"

#define CANARY_FIELDS_MAX 4096     /* of placement that one canary may be of */
#define CANARY_DEAD_US    10000000 /* a watcher that was silent so long is gone */

typedef struct canary_field { /* of placement */
    const char *field;        /* "3/17" */
    const char *from;         /* its value before; NULL: it had none, a wildcard spoke */
    const char *old;          /* the targets that served it before, whoever spoke */
    const char *value;        /* what the canary wrote last; NULL: nothing yet */
} canary_field;

typedef struct canary_state {
    const char *name; /* as it was asked for: "3/17", "3/1,3/2" */
    const char *to;   /* "expert-b/cpu:0" */
    canary_field *field;
    size_t n;
    canary_phase phase;
    canary_limits limits;
    int no_shadow;
    uint32_t share;
    int64_t started_us, phase_us, beat_us; /* CLOCK_REALTIME; phase_us: when the phase began */
    const char *author;
    const char *wish; /* "", "promote", "abort" */
} canary_state;

typedef struct canary_list {
    canary_state *state; /* [n], by name */
    size_t n;
    size_t n_odd; /* entries that are not what this tool writes */
    sy_arena arena;
} canary_list;

/* All canaries of a model. Ends with canary_list_free. */
SY_MUST_USE sy_status canary_list_read(canary_list *out, tool_redis *redis, const char *model,
                                       sy_error *err);
void canary_list_free(canary_list *list); /* accepts a zeroed one */
const canary_state *canary_find(const canary_list *list, const char *name); /* or NULL */
int canary_is_watched(const canary_state *state, int64_t now_us);

/* Writes the state, but for the wish, which is somebody else's to set: *wish gets the one that is
 * there. must_be_new: SY_EEXISTS when there is a canary of that name with a live watcher. */
SY_MUST_USE sy_status canary_state_write(tool_redis *redis, const char *model,
                                         const canary_state *state, int must_be_new,
                                         canary_wish *wish, sy_error *err);
/* SY_ENOTFOUND: there is no such canary. */
SY_MUST_USE sy_status canary_state_wish(tool_redis *redis, const char *model, const char *name,
                                        const char *wish, sy_error *err);
SY_MUST_USE sy_status canary_state_remove(tool_redis *redis, const char *model, const char *name,
                                          sy_error *err);

/* SY_EINVAL: it is not what canary_state_text writes; SY_ENOMEM. out: in the arena. */
SY_MUST_USE sy_status canary_state_parse(canary_state *out, sy_arena *arena, const char *name,
                                         const char *text, size_t n);
char *canary_state_text(const canary_state *state); /* the caller frees it; NULL: no memory */

#endif
