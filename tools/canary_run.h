/* canary_run.h - the life of a canary: load as a shadow, compare, share, promote or go back. Every
 * step is one compare-and-set of placement with an entry in the history. */
#ifndef CANARY_RUN_H
#define CANARY_RUN_H

#include "canary_state.h"
#include "tool_place.h"

typedef enum canary_end {
    CANARY_PROMOTED,
    CANARY_WENT_BACK,
    CANARY_LEFT /* somebody else edited the fields, or Redis is away: nothing more was touched */
} canary_end;

typedef struct canary_result {
    canary_end end;
    int is_interrupted;
    char why[512];
    canary_counts counts; /* of the last phase */
    canary_phase phase;
} canary_result;

/* What the field says in a phase; SY_ELIMIT and others: the grammar has no room for it. */
SY_MUST_USE sy_status canary_value(char out[SY_PLACEMENT_VALUE_MAX], const canary_state *state,
                                   const canary_field *field, canary_phase phase, sy_error *err);

/* Watches until the end; Ctrl-C is a wish to abort (tool_pause_open is the caller's). is_new:
 * begins with the first phase, and SY_EEXISTS when there is such a canary; else goes on where the
 * state says, after canary_take_up. quiet: prints nothing. Other failures than the first write end
 * in result, not in a status.
 */
SY_MUST_USE sy_status canary_run(canary_result *result, place *p, canary_state *state, int is_new,
                                 int quiet, sy_error *err);

/* For a canary whose watcher died: finds what its fields say by now, before any of the calls below
 * or a canary_run that is not new. arena: lives as long as the state. SY_EEXISTS: somebody else
 * edited one of them. */
SY_MUST_USE sy_status canary_take_up(place *p, canary_state *state, sy_arena *arena, sy_error *err);
/* The last step alone, for a canary that nobody watches. */
void canary_promote_now(canary_result *result, place *p, canary_state *state);
void canary_go_back(canary_result *result, place *p, canary_state *state, const char *why);

#endif
