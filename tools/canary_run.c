/* canary_run.c - see the header. */
#include "canary_run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "canary_meter.h"
#include "sy_clock.h"
#include "target_edit.h"
#include "tool_line.h"
#include "tool_pause.h"
#include "tool_text.h"

#define TICK_US    1000000
#define BACK_TRIES 60 /* a second apart: what was begun is taken back, though Redis be away */

typedef struct runner {
    place *p;
    canary_state *state;
    canary_result *result;
    canary_meter *meter;
    sy_arena arena; /* of values */
    tool_line line;
    int quiet;
    int is_registered; /* the state is in Redis, and ours */
} runner;

/* ---- values ---- */

sy_status canary_value(char out[SY_PLACEMENT_VALUE_MAX], const canary_state *state,
                       const canary_field *field, canary_phase phase, sy_error *err)
{
    sy_target_list list;
    sy_target to;
    sy_status st;

    SY_TRY(target_parse(&to, state->to, err));
    SY_TRY(sy_targets_parse(&list, field->old, strlen(field->old), err));
    if (phase == CANARY_SHARE) {
        SY_TRY(targets_with_share(&list, &to, state->share, err));
    } else {
        SY_TRY(targets_with_shadow(&list, &to, err));
    }
    SY_TRY(targets_text(out, &list, err));
out:
    return st;
}

static int is_same(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* One of the values that this canary gives the field in its life, though a watcher that died may
 * not have told which. */
static int is_ours(const canary_state *state, const canary_field *field, const char *value)
{
    char text[SY_PLACEMENT_VALUE_MAX];

    if (value == NULL) return 0;
    for (int phase = CANARY_LOAD; phase < CANARY_N_PHASES; phase++) {
        if (canary_value(text, state, field, (canary_phase)phase, NULL) == SY_OK &&
            strcmp(text, value) == 0) {
            return 1;
        }
    }
    return 0;
}

/* ---- edits ---- */

static sy_status change(place *p, const canary_state *state, const tool_field_change *list,
                        size_t n, const char *reason, sy_error *err)
{
    char command[200];
    const tool_edit edit = {.model = p->model,
                            .change = list,
                            .n = n,
                            .reason = reason,
                            .command = command,
                            .author = state->author};

    snprintf(command, sizeof(command), "switchyard canary %.80s to %.80s", state->name, state->to);
    return tool_redis_change(p->redis, &edit, NULL, err);
}

/* From what the canary wrote last to what `after` says. */
static sy_status change_all(place *p, const canary_state *state, const char *const *after,
                            const char *reason, sy_error *err)
{
    tool_field_change *list = calloc(state->n + 1, sizeof(*list));
    sy_status st;

    if (list == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the canary");
    for (size_t i = 0; i < state->n; i++) {
        const canary_field *field = &state->field[i];

        list[i] = (tool_field_change){field->field,
                                      field->value != NULL ? field->value : field->from, after[i]};
    }
    st = change(p, state, list, state->n, reason, err);
    free(list);
    return st;
}

/* The fields that still say what the canary wrote get their value from before; others are
 * somebody's by now. *n_left: how many of those. */
static sy_status restore(size_t *n_left, place *p, const canary_state *state, const char *reason,
                         sy_error *err)
{
    tool_field_change *list = calloc(state->n + 1, sizeof(*list));
    field_map *map = NULL;
    size_t n = 0;
    sy_status st = list != NULL ? SY_OK : sy_error_set(err, SY_ENOMEM, "no memory for the canary");

    *n_left = 0;
    if (list == NULL) return st;
    SY_TRY(place_read(&map, p, err));
    for (size_t i = 0; i < state->n; i++) {
        const canary_field *field = &state->field[i];
        const char *now = field_map_get(map, field->field, FIELD_BEFORE);

        if (is_same(now, field->from)) continue;
        if (is_ours(state, field, now)) {
            list[n++] = (tool_field_change){field->field, now, field->from};
        } else {
            (*n_left)++;
        }
    }
    if (st == SY_OK && n > 0) st = change(p, state, list, n, reason, err);
out:
    free(list);
    field_map_close(map);
    return st;
}

static void finish(canary_result *result, canary_end end, const char *fmt, ...) SY_PRINTF(3, 4);

static void finish(canary_result *result, canary_end end, const char *fmt, ...)
{
    va_list ap;

    result->end = end;
    va_start(ap, fmt);
    vsnprintf(result->why, sizeof(result->why), fmt, ap);
    va_end(ap);
}

/* Placement is right by now; a state that stays is only clutter. */
static void forget(place *p, const canary_state *state)
{
    (void)!canary_state_remove(p->redis, p->model, state->name, NULL);
}

void canary_go_back(canary_result *result, place *p, canary_state *state, const char *why)
{
    char reason[400];
    size_t n_left = 0;
    sy_error err;
    sy_status st = SY_EUNAVAILABLE;

    snprintf(reason, sizeof(reason), "canary of %.80s went back: %.250s", state->name, why);
    for (int i = 0; i < BACK_TRIES && st != SY_OK; i++) {
        sy_error_clear(&err);
        st = restore(&n_left, p, state, reason, &err);
        /* Whoever interrupts a second time ends the process, so this wait has its end. */
        if (st == SY_EUNAVAILABLE && i + 1 < BACK_TRIES) tool_sleep(TICK_US);
        if (st != SY_OK && st != SY_EUNAVAILABLE && st != SY_EEXISTS) break;
    }
    if (st != SY_OK) {
        finish(result, CANARY_LEFT, "%.200s; it cannot go back: %.250s", why, err.message);
        return;
    }
    forget(p, state);
    if (n_left > 0) {
        finish(result, CANARY_LEFT,
               "%.300s; %zu fields were edited by somebody else, and stay as they are", why,
               n_left);
    } else {
        finish(result, CANARY_WENT_BACK, "%s", why);
    }
}

/* Somebody else's edit ends the canary, and nothing of theirs is touched. */
static void leave(runner *r, const char *why)
{
    char text[420];

    snprintf(text, sizeof(text), "%.400s", why);
    canary_go_back(r->result, r->p, r->state, text);
    r->result->end = CANARY_LEFT;
}

void canary_promote_now(canary_result *result, place *p, canary_state *state)
{
    const char **after = calloc(state->n + 1, sizeof(*after));
    char reason[200];
    sy_error err;
    sy_status st = SY_ENOMEM;

    sy_error_clear(&err);
    snprintf(reason, sizeof(reason), "canary of %.80s promoted: %.80s", state->name, state->to);
    for (size_t i = 0; after != NULL && i < state->n; i++) after[i] = state->to;
    if (after != NULL) st = change_all(p, state, after, reason, &err);
    free(after);
    if (st == SY_OK) {
        forget(p, state);
        finish(result, CANARY_PROMOTED, "%s is %s now", state->name, state->to);
    } else {
        finish(result, CANARY_LEFT, "it cannot be promoted: %.400s", err.message);
        if (st == SY_EEXISTS) canary_go_back(result, p, state, result->why);
    }
}

/* ---- phases ---- */

static sy_status enter(runner *r, canary_phase phase, int is_new, sy_error *err)
{
    canary_state *state = r->state;
    const char **after = sy_arena_calloc(&r->arena, state->n + 1, sizeof(*after));
    char value[SY_PLACEMENT_VALUE_MAX];
    char reason[200];
    canary_wish wish;
    sy_status st = SY_OK;

    if (after == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the canary");
    for (size_t i = 0; i < state->n; i++) {
        SY_TRY(canary_value(value, state, &state->field[i], phase, err));
        after[i] = sy_arena_strndup(&r->arena, value, strlen(value));
        if (after[i] == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the canary");
    }
    if (phase == CANARY_SHARE) {
        snprintf(reason, sizeof(reason), "canary of %.80s: %.70s gets %u %%", state->name,
                 state->to, state->share);
    } else {
        snprintf(reason, sizeof(reason), "canary of %.80s: %.70s as a shadow", state->name,
                 state->to);
    }
    /* The state is there before the edit, so that whatever was begun can be taken back. */
    state->phase = phase;
    state->phase_us = state->beat_us = sy_clock_wall_us();
    SY_TRY(canary_state_write(r->p->redis, r->p->model, state, is_new, &wish, err));
    r->is_registered = 1;
    SY_TRY(change_all(r->p, state, after, reason, err));
    for (size_t i = 0; i < state->n; i++) state->field[i].value = after[i];
    SY_TRY(canary_state_write(r->p->redis, r->p->model, state, 0, &wish, err));
    canary_meter_begin(r->meter);
    if (!r->quiet) {
        tool_line_end(&r->line);
        printf("%s\n", reason);
        fflush(stdout);
    }
out:
    return st;
}

/* Every field has the value of the state's phase. */
static int is_in_phase(const canary_state *state)
{
    char value[SY_PLACEMENT_VALUE_MAX];

    for (size_t i = 0; i < state->n; i++) {
        const canary_field *field = &state->field[i];

        if (canary_value(value, state, field, state->phase, NULL) != SY_OK ||
            field->value == NULL || strcmp(field->value, value) != 0) {
            return 0;
        }
    }
    return 1;
}

sy_status canary_take_up(place *p, canary_state *state, sy_arena *arena, sy_error *err)
{
    field_map *map = NULL;
    sy_status st;

    SY_TRY(place_read(&map, p, err));
    for (size_t i = 0; i < state->n && st == SY_OK; i++) {
        canary_field *field = &state->field[i];
        const char *now = field_map_get(map, field->field, FIELD_BEFORE);

        field->value = NULL;
        if (is_same(now, field->from)) continue;
        if (!is_ours(state, field, now)) {
            st = sy_error_set(err, SY_EEXISTS, "somebody else edited %s: it is %s now",
                              tool_shown(field->field), tool_shown(now));
        } else {
            field->value = sy_arena_strndup(arena, now, strlen(now));
            if (field->value == NULL) st = sy_error_set(err, SY_ENOMEM, "no memory");
        }
    }
out:
    field_map_close(map);
    return st;
}

/* The next phase's edit. 1: the canary has ended. */
static int advance(runner *r)
{
    canary_state *state = r->state;
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    if (state->phase == CANARY_SHARE) {
        canary_promote_now(r->result, r->p, state);
        return 1;
    }
    if (state->phase == CANARY_LOAD && !state->no_shadow) {
        /* The value is the same: from here on rows are compared. */
        state->phase = CANARY_SHADOW;
        state->phase_us = sy_clock_wall_us();
        canary_meter_begin(r->meter);
        return 0;
    }
    st = enter(r, CANARY_SHARE, 0, &err);
    if (st == SY_OK) return 0;
    if (st == SY_EEXISTS) {
        leave(r, err.message);
    } else {
        canary_go_back(r->result, r->p, state, err.message);
    }
    return 1;
}

/* 1: somebody else's edit, told in why. */
static int is_taken(runner *r, char *why, size_t cap, const field_map *map)
{
    for (size_t i = 0; i < r->state->n; i++) {
        const canary_field *field = &r->state->field[i];
        const char *now = field_map_get(map, field->field, FIELD_BEFORE);

        if (is_same(now, field->value)) continue;
        snprintf(why, cap, "somebody else edited %s: it is %s now", field->field, tool_shown(now));
        return 1;
    }
    return 0;
}

/* One look. *is_over: the canary has ended. SY_EUNAVAILABLE: Redis is away, and nothing is known.
 */
static sy_status tick(runner *r, int *is_over, sy_error *err)
{
    canary_state *state = r->state;
    canary_counts *counts = &r->result->counts;
    cluster_facts facts = {0};
    field_map *map = NULL;
    canary_wish wish = CANARY_NO_WISH;
    char why[400];
    sy_status st;

    state->beat_us = sy_clock_wall_us();
    SY_TRY(canary_state_write(r->p->redis, r->p->model, state, 0, &wish, err));
    SY_TRY(place_read(&map, r->p, err));
    *is_over = 1;
    if (is_taken(r, why, sizeof(why), map)) {
        leave(r, why);
    } else if (wish == CANARY_WISH_ABORT || tool_interrupted()) {
        r->result->is_interrupted = wish != CANARY_WISH_ABORT;
        canary_go_back(r->result, r->p, state,
                       wish == CANARY_WISH_ABORT ? "aborted by switchyard canary abort"
                                                 : "interrupted");
    } else if (wish == CANARY_WISH_PROMOTE) {
        canary_promote_now(r->result, r->p, state);
    } else {
        SY_TRY(facts_take(&facts, r->p->redis, r->p->model, FACT_SHARDS, err));
        SY_TRY(canary_meter_look(counts, r->meter, &facts, err));
        *is_over = 0;
        r->result->phase = state->phase;
        switch (canary_judge(why, sizeof(why), state->phase, &state->limits, counts,
                             sy_clock_wall_us() - state->phase_us)) {
        case CANARY_GOES_ON:
            if (!r->quiet) tool_line_show(&r->line, "%s: %s", canary_phase_name(state->phase), why);
            break;
        case CANARY_NEXT: *is_over = advance(r); break;
        case CANARY_BACK:
            canary_go_back(r->result, r->p, state, why);
            *is_over = 1;
            break;
        }
    }
out:
    if (st != SY_OK) *is_over = 0;
    facts_free(&facts);
    field_map_close(map);
    return st;
}

static void watch(runner *r)
{
    int is_over = 0;
    sy_error err;

    while (!is_over) {
        sy_error_clear(&err);
        if (tick(r, &is_over, &err) == SY_ENOTFOUND) {
            finish(r->result, CANARY_LEFT, "%.400s", err.message);
            forget(r->p, r->state);
            is_over = 1;
        } else if (err.status != SY_OK && !is_over) {
            if (!r->quiet) tool_line_show(&r->line, "waiting: %s", err.message);
            if (tool_interrupted()) {
                r->result->is_interrupted = 1;
                canary_go_back(r->result, r->p, r->state, "interrupted");
                is_over = 1;
            }
        }
        if (!is_over) (void)tool_pause(TICK_US);
    }
    tool_line_end(&r->line);
}

sy_status canary_run(canary_result *result, place *p, canary_state *state, int is_new, int quiet,
                     sy_error *err)
{
    runner r = {.p = p, .state = state, .result = result, .quiet = quiet};
    sy_status st;

    memset(result, 0, sizeof(*result));
    sy_arena_init(&r.arena, (size_t)256 << 20);
    SY_TRY(canary_meter_open(&r.meter, state, err));
    if (is_new) {
        st = enter(&r, CANARY_LOAD, 1, err);
        /* An edit whose outcome nobody knows keeps its state, so that it can be aborted. */
        if (st != SY_OK && r.is_registered && st != SY_EUNAVAILABLE) forget(p, state);
    } else if (!is_in_phase(state)) {
        st = enter(&r, state->phase, 0, err); /* the watcher before died in between */
    }
    SY_TRY(st);
    watch(&r);
out:
    canary_meter_close(r.meter);
    sy_arena_free(&r.arena);
    return st;
}
