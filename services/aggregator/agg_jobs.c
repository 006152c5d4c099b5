/* agg_jobs.c - handing messages from the loop to threads that may block, and the answers that need
 * no thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator.h"

int agg_job_push(sy_queue *queue, sy_call *call, sy_msg *msg, const char *what)
{
    agg_job *job = malloc(sizeof(*job));
    char text[96] = "the server is shutting down";
    sy_status st;

    if (job == NULL) {
        sy_service_refuse(call, SY_ENOMEM, "no memory for the request");
        return 0;
    }
    *job = (agg_job){sy_call_ref(call), sy_msg_take(msg)};
    sy_call_pending(call, 1);
    st = sy_queue_push(queue, job);
    if (st == SY_OK) return 1;
    if (st == SY_ELIMIT)
        snprintf(text, sizeof(text), "%d %s wait already, which is the limit", AGG_QUEUE_MAX, what);
    sy_service_refuse(call, st == SY_ECANCELLED ? SY_EUNAVAILABLE : st, text);
    sy_call_pending(call, -1);
    agg_job_free(job);
    return 0;
}

void agg_job_free(agg_job *job)
{
    sy_msg_free(job->msg);
    sy_call_unref(job->call);
    free(job);
}

void agg_models_message(void *ctx, sy_call *call, sy_msg *msg)
{
    aggregator *agg = ctx;
    sy_snapshot *snapshot = sy_control_snapshot(sy_service_control(agg->service));
    const sy_grid grid =
        sy_grid_of(agg->desc->n_layers, agg->desc->n_experts, agg->desc->layer, SY_LAYER_DENSE);
    char why[sizeof(agg->not_ready)];
    char moe_layers[SY_GRID_TEXT_BYTES];
    sy_model_info info = {.name = sy_model_name(agg->model),
                          .family = agg->desc->family,
                          .architecture = agg->desc->architecture,
                          .layers = agg->desc->n_layers,
                          .hidden = agg->desc->hidden,
                          .experts = agg->desc->n_experts,
                          .top_k = agg->desc->top_k,
                          .expert_ffn = agg->desc->expert_ffn,
                          .vocab = agg->desc->vocab,
                          .context = agg->desc->context,
                          .structure_hash = sy_model_structure_hash(agg->model),
                          .moe_layers = moe_layers};
    const sy_model_list list = {1, &info};
    sy_frame frame;

    (void)msg;
    sy_grid_format(moe_layers, sizeof(moe_layers), &grid);
    pthread_mutex_lock(&agg->ready_mutex);
    info.ready = agg->ready;
    memcpy(why, agg->not_ready, sizeof(why));
    pthread_mutex_unlock(&agg->ready_mutex);
    info.not_ready_reason = info.ready ? "" : why;
    if (snapshot != NULL) {
        info.placement_hash = sy_snapshot_hash(snapshot);
        info.placement_epoch = sy_snapshot_epoch(snapshot);
    }
    sy_snapshot_unref(snapshot);
    if (sy_wire_model_list_encode(&frame, &list, NULL) != SY_OK) {
        sy_service_refuse(call, SY_ENOMEM, "no memory for the answer");
        return;
    }
    if (sy_call_send(call, &frame) == SY_OK) sy_call_finish(call, NULL);
}
