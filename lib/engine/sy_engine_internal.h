/* sy_engine_internal.h - the engine's struct, shared by the queue side (sy_engine.c), the step
 * (sy_step.c) and the way of its rows through the layers (sy_halves.c). */
#ifndef SY_ENGINE_INTERNAL_H
#define SY_ENGINE_INTERNAL_H

#include <pthread.h>

#include "sy_sequence.h"

/* Arrays of a step's rows; rows of one sequence stand side by side, in ascending position. */
typedef struct step_rows {
    sequence **owner;
    uint32_t *token, *position;
    const sy_kv_seq **seq;
    uint64_t *request;
    uint8_t *failed, *may_degrade, *note;
    uint32_t *kept; /* which rows stay when others are taken out */
} step_rows;

/* Rows that pass through the layers together: all of a step, or one half of them. Of the thread
 * that has the turn; while the half's MoE call runs, of the thread that made it. */
typedef struct half {
    uint32_t first, n_rows; /* where they begin in the step; fewer once sequences fail */
    step_rows rows;         /* the step's arrays from `first` on */
    sy_moe_call call;
    const sy_moe *moe;
    const float *xn; /* what the experts get: of the workspace */
    sy_trunk_ws *ws; /* has the rows themselves from one layer to the next: one a half */
} half;

struct sy_engine {
    sy_engine_config config; /* defaults filled in */
    const sy_model_desc *desc;
    const sy_kernels *kernels;
    sy_kv *kv; /* engine thread, and the turn's during a step; free pages are mirrored in load */

    pthread_mutex_t mutex; /* guards everything down to `load` */
    pthread_cond_t wake;   /* the engine thread waits here */
    pthread_cond_t idle;   /* sy_engine_wait_idle waits here */
    sequence *running, *waiting, **waiting_tail;
    uint64_t next_id;
    int closing;
    sy_engine_load load;
    pthread_t thread;

    /* The step's arrays, engine thread only between steps, sized for step_rows_max rows and
     * running_max sequences. */
    uint64_t step, total_rows; /* since start */
    uint32_t n_rows, n_decode; /* as chosen; decode rows come first */
    step_rows rows;
    sy_trunk_row *head_row; /* [running_max]: row whose logits are wanted */
    sequence **head_seq;
    float *logits;         /* [running_max,vocab] */
    drawn *draw;           /* [running_max] */
    void *sampler_scratch; /* [threads] */
    size_t sampler_bytes;  /* of one */

    /* The halves. Half 0 is the engine thread's, half 1 the lane thread's. */
    half half[2];
    pthread_mutex_t turn_mutex; /* guards the four below */
    pthread_cond_t turn_changed;
    int turn;       /* whose half may use the trunk and the sequences */
    int present[2]; /* the half is on its way through the layers */
    int lane_ends;
    int has_lane; /* the thread was started */
    pthread_t lane;
};

sy_status engine_step_open(sy_engine *engine, sy_error *err);
void engine_step_close(sy_engine *engine);
/* One step over the running list. Sequences that failed have their error set; those that ended are
 * marked in `ended`, which has running_max entries; returns how many. */
uint32_t engine_step(sy_engine *engine, sequence **ended);

sy_status engine_halves_open(sy_engine *engine, sy_error *err);
void engine_halves_close(sy_engine *engine); /* accepts an engine whose halves failed to open */
/* Takes the chosen rows through all layers. Afterwards those of sequences without an error are in
 * half[0] and half[1]. */
void engine_halves_run(sy_engine *engine);

#endif
