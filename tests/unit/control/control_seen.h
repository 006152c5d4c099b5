/* control_seen.h - what a control plane has told its owner, kept for the test to look at. */
#ifndef CONTROL_SEEN_H
#define CONTROL_SEEN_H

#include <pthread.h>

#include "sy_control.h"
#include "test_redis.h"

#define SEEN_MEMBERS_MAX 8

typedef struct seen {
    pthread_mutex_t mutex; /* callbacks run on the loop thread */
    uint32_t n_placements;
    uint64_t epoch; /* of the last one */
    uint32_t n_repeated_epochs;
    struct {
        uint32_t n_calls;
        size_t n;
        sy_member member[SEEN_MEMBERS_MAX];
    } list[2]; /* by sy_member_kind */
    int n_signals[65];
    uint32_t n_ticks;
} seen;

static inline void seen_init(seen *s)
{
    memset(s, 0, sizeof(*s));
    pthread_mutex_init(&s->mutex, NULL);
}

static inline void seen_placement(void *ctx, sy_snapshot *snapshot)
{
    seen *s = ctx;

    pthread_mutex_lock(&s->mutex);
    s->n_repeated_epochs += sy_snapshot_epoch(snapshot) == s->epoch;
    s->epoch = sy_snapshot_epoch(snapshot);
    s->n_placements++;
    pthread_mutex_unlock(&s->mutex);
}

static inline void seen_members(void *ctx, sy_member_kind kind, const sy_member *member, size_t n)
{
    seen *s = ctx;

    pthread_mutex_lock(&s->mutex);
    s->list[kind].n_calls++;
    s->list[kind].n = n;
    for (size_t i = 0; i < n && i < SEEN_MEMBERS_MAX; i++) s->list[kind].member[i] = member[i];
    pthread_mutex_unlock(&s->mutex);
}

static inline uint32_t seen_calls(seen *s, sy_member_kind kind)
{
    uint32_t n;

    pthread_mutex_lock(&s->mutex);
    n = s->list[kind].n_calls;
    pthread_mutex_unlock(&s->mutex);
    return n;
}

/* The names of a kind as last told, with spaces between: "expert-0 expert-1". */
static inline int seen_names_are(seen *s, sy_member_kind kind, const char *want)
{
    char got[SEEN_MEMBERS_MAX * SY_NODE_BYTES] = "";

    pthread_mutex_lock(&s->mutex);
    for (size_t i = 0; i < s->list[kind].n && i < SEEN_MEMBERS_MAX; i++) {
        if (i > 0) strcat(got, " ");
        strcat(got, s->list[kind].member[i].name);
    }
    pthread_mutex_unlock(&s->mutex);
    return strcmp(got, want) == 0;
}

static inline sy_member seen_member(seen *s, sy_member_kind kind, size_t i)
{
    sy_member member;

    pthread_mutex_lock(&s->mutex);
    member = s->list[kind].member[i];
    pthread_mutex_unlock(&s->mutex);
    return member;
}

static inline sy_control *seen_open(const sy_control_config *config)
{
    sy_control *control;
    sy_error err;

    if (sy_control_open(&control, config, &err) != SY_OK) fail_msg("no control: %s", err.message);
    return control;
}

/* Whether the control's snapshot has the expert at those targets. */
static inline int is_at(sy_control *control, uint32_t layer, uint32_t expert, const char *want)
{
    sy_snapshot *snapshot = sy_control_snapshot(control);
    char got[SY_PLACEMENT_VALUE_MAX] = "";
    const sy_target_list *list;

    if (snapshot == NULL) return 0;
    list = sy_snapshot_targets(snapshot, layer, expert);
    if (list != NULL) sy_targets_format(got, sizeof(got), list);
    sy_snapshot_unref(snapshot);
    return strcmp(got, want) == 0;
}

static inline size_t n_refused(sy_control *control)
{
    sy_snapshot *snapshot = sy_control_snapshot(control);
    size_t n = 0;

    if (snapshot != NULL) n = sy_snapshot_refusals(snapshot);
    sy_snapshot_unref(snapshot);
    return n;
}

#endif
