/* sy_engine_internal.h - the engine's struct, shared by the queue side (sy_engine.c) and the step
 * (sy_step.c). */
#ifndef SY_ENGINE_INTERNAL_H
#define SY_ENGINE_INTERNAL_H

#include <pthread.h>

#include "sy_sequence.h"

struct sy_engine {
    sy_engine_config config; /* defaults filled in */
    const sy_model_desc *desc;
    const sy_kernels *kernels;
    sy_kv *kv;       /* engine thread; free pages are mirrored in load */
    sy_trunk_ws *ws; /* engine thread */

    pthread_mutex_t mutex; /* guards everything down to `load` */
    pthread_cond_t wake;   /* the engine thread waits here */
    pthread_cond_t idle;   /* sy_engine_wait_idle waits here */
    sequence *running, *waiting, **waiting_tail;
    uint64_t next_id;
    int closing;
    sy_engine_load load;
    pthread_t thread;

    /* The step's arrays, engine thread only, sized for step_rows_max rows and running_max
     * sequences. */
    uint64_t step;
    uint32_t n_rows, n_members;
    sequence **member; /* [running_max]: who takes part in this step */
    sequence **row_of; /* [rows] */
    uint32_t *row_token, *row_position;
    const sy_kv_seq **row_seq;
    uint64_t *row_request;
    uint8_t *row_failed, *row_may_degrade, *row_note;
    float *x, *xn, *y;  /* [rows,H] */
    uint32_t *head_row; /* [running_max]: row whose logits are wanted */
    sequence **head_seq;
    float *logits;         /* [running_max,vocab] */
    drawn *draw;           /* [running_max] */
    void *sampler_scratch; /* [threads] */
    size_t sampler_bytes;  /* of one */
};

sy_status engine_step_open(sy_engine *engine, sy_error *err);
void engine_step_close(sy_engine *engine);
/* One step over the running list. Sequences that failed have their error set; those that ended are
 * marked in `ended`, which has running_max entries; returns how many. */
uint32_t engine_step(sy_engine *engine, sequence **ended);

#endif
