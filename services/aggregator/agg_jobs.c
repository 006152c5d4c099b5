/* agg_jobs.c - handing messages from the loop to threads that may block, and the answers that need
 * no thread. */
#include <stdlib.h>
#include <string.h>

#include "aggregator.h"

static void refuse(sy_call *call, sy_status st, const char *text, int limit, const char *what)
{
    sy_error err = {0};

    sy_error_clear(&err);
    if (st == SY_ELIMIT)
        sy_error_set(&err, st, "%d %s wait already, which is the limit", limit, what);
    else
        sy_error_set(&err, st, "%s", text);
    sy_call_finish(call, &err);
}

void agg_job_push(sy_queue *queue, sy_call *call, sy_msg *msg, const char *what)
{
    agg_job *job = malloc(sizeof(*job));
    sy_status st;

    if (job == NULL) {
        refuse(call, SY_ENOMEM, "no memory for the request", 0, what);
        return;
    }
    *job = (agg_job){sy_call_ref(call), sy_msg_take(msg)};
    sy_call_pending(call, 1);
    st = sy_queue_push(queue, job);
    if (st == SY_OK) return;
    refuse(call, st == SY_ECANCELLED ? SY_EUNAVAILABLE : st, "the server is shutting down",
           AGG_QUEUE_MAX, what);
    sy_call_pending(call, -1);
    agg_job_free(job);
}

void agg_job_free(agg_job *job)
{
    sy_msg_free(job->msg);
    sy_call_unref(job->call);
    free(job);
}

sy_status agg_check_model(const aggregator *agg, const char *name, sy_error *err)
{
    if (name[0] == '\0' || strcmp(name, sy_model_name(agg->model)) == 0) return SY_OK;
    sy_error_set(err, SY_ENOTFOUND, "model: %s is not served here; this aggregator serves %s", name,
                 sy_model_name(agg->model));
    sy_error_where(err, "MODEL_UNKNOWN", -1, -1, NULL);
    return SY_ENOTFOUND;
}

void agg_models_message(void *ctx, sy_call *call, sy_msg *msg)
{
    aggregator *agg = ctx;
    sy_snapshot *snapshot = sy_control_snapshot(sy_service_control(agg->service));
    char why[sizeof(agg->not_ready)];
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
                          .structure_hash = sy_model_structure_hash(agg->model)};
    const sy_model_list list = {1, &info};
    sy_frame frame;

    (void)msg;
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
        refuse(call, SY_ENOMEM, "no memory for the answer", 0, "");
        return;
    }
    if (sy_call_send(call, &frame) == SY_OK) sy_call_finish(call, NULL);
}
