/* agg_suspect.h - what is thought of a peer that kept silent: others are asked first, until it has
 * answered. Probes go out with back-off; requests of clients are never used to find out. Also how
 * long a peer usually takes, which is what "silent" is measured by. Any thread, without locks:
 * updates that cross may lose one another, which costs nothing but accuracy. */
#ifndef AGG_SUSPECT_H
#define AGG_SUSPECT_H

#include <stdatomic.h>

#include "sy_base.h"

#define AGG_PROBE_MIN_US  50000 /* first probe after a silence; doubles */
#define AGG_PROBE_MAX_US  2000000
#define AGG_PROBE_TICK_US 50000 /* how often agg_probe_suspects is called */
#define AGG_SIZES         18    /* classes of message sizes: 1, 2-3, 4-7, ... rows */

typedef struct agg_suspicion { /* zeroed: nothing against it */
    atomic_int suspect;
    atomic_int probing;          /* a probe is on its way */
    atomic_uint strikes;         /* silences since it last answered a request in time */
    _Atomic int64_t probe_at_us; /* when the next probe is due */
    _Atomic int64_t seen_up_us;  /* when it was last seen connected; 0: never. To 50 ms or so */
    _Atomic int64_t logged_us;
    atomic_uint quiet_ticks; /* probe intervals since it became suspect and was heard from at all */
    _Atomic uint32_t usual_us[AGG_SIZES]; /* what a message of this size takes; 0: unknown */
    uint64_t probe_id;                    /* control thread only */
} agg_suspicion;

struct agg_view;
struct agg_node;

int agg_is_suspect(const struct agg_node *node);
void agg_suspect(struct agg_node *node, const char *why); /* logs the first time */
void agg_absolve(struct agg_node *node); /* it has answered, whatever it said and however late */
/* It has answered a message of n_rows rows within took_us: absolves, and learns what is usual. An
 * answer in time also brings the next probe's back-off to its beginning. */
void agg_answered(struct agg_node *node, uint32_t n_rows, int64_t took_us, int in_time);
/* What a message of n_rows rows usually takes there, taken from other sizes if need be; 0: nothing
 * is known yet. */
uint32_t agg_usual_us(const struct agg_node *node, uint32_t n_rows);
/* The same from messages of about this size alone. */
uint32_t agg_measured_us(const struct agg_node *node, uint32_t n_rows);
/* A sign of life of any kind: a probe's answer, a message on its Watch stream. */
void agg_heard(struct agg_node *node);
/* 1: it is suspect and nothing has been heard from it for silent_us: it is as good as gone, even if
 * nobody else can be asked. Counted in calls of agg_probe_suspects, so a pause of this process is
 * not taken for a silence of its peers. */
int agg_is_silent(const struct agg_node *node, int64_t silent_us);
/* 1: it says that it is about to stop, or it is suspect: others are asked first. */
int agg_comes_last(const struct agg_node *node);
/* Sends the probes that are due, and notes who is connected. Control thread, every
 * AGG_PROBE_TICK_US. */
void agg_probe_suspects(struct agg_view *view, const char *model);

#endif
