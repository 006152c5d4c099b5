/* client_call.c - a call over lib/rpc's blocking client. */
#include "client_call.h"

#include <stdlib.h>
#include <string.h>

#include "sy_clock.h"

#define REPLY_MEMORY_BYTES_MAX ((size_t)1 << 30)
#define DETAILS_BYTES          8192

void client_init(client *self)
{
    *self = (client){0};
    pthread_mutex_init(&self->mutex, NULL);
}

sy_status client_open(client *self, const char *address, size_t active_max, size_t reply_bytes_max,
                      sy_error *err)
{
    sy_client_call **active = calloc(active_max, sizeof(*active));

    if (active == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for %zu calls", active_max);
    pthread_mutex_lock(&self->mutex);
    self->active = active;
    self->active_max = active_max;
    pthread_mutex_unlock(&self->mutex);
    return sy_client_open(&self->rpc, address, reply_bytes_max, err);
}

void client_close(client *self)
{
    sy_client_close(self->rpc);
    free(self->active);
    pthread_mutex_destroy(&self->mutex);
}

void client_interrupt(void *arg)
{
    client *self = arg;

    pthread_mutex_lock(&self->mutex);
    self->is_interrupted = 1;
    for (size_t i = 0; i < self->active_max; i++)
        if (self->active[i] != NULL) sy_client_cancel(self->active[i]);
    pthread_mutex_unlock(&self->mutex);
}

/* The registered call is the one that an interrupt may touch, so it is taken back before it is
 * freed. */
static void set_active(client *self, size_t slot, sy_client_call *call)
{
    pthread_mutex_lock(&self->mutex);
    self->active[slot] = call;
    if (call != NULL && self->is_interrupted) sy_client_cancel(call);
    pthread_mutex_unlock(&self->mutex);
}

/* Makes of gRPC's bare status what a person needs: the details that the server sent, and what this
 * side knows better. */
static void explain(client *self, const sy_client_call *call, sy_error *err)
{
    uint8_t details[DETAILS_BYTES];
    const size_t n = sy_client_details(call, details, sizeof(details));
    int is_interrupted;

    if (n > 0) sy_wire_error_from_details(err, details, n);
    pthread_mutex_lock(&self->mutex);
    is_interrupted = self->is_interrupted;
    pthread_mutex_unlock(&self->mutex);
    if (err->status == SY_ECANCELLED && is_interrupted)
        sy_error_set(err, SY_ECANCELLED, "interrupted");
    else if (err->status == SY_EDEADLINE && n == 0)
        sy_error_set(err, SY_EDEADLINE, "no answer within %g s", (double)self->timeout_us / 1e6);
}

sy_status client_run(client *self, size_t slot, const char *path, sy_frame *request,
                     sy_status (*on_reply)(void *arg, const sy_iov *iov, size_t n, sy_error *err),
                     void *arg, sy_error *err)
{
    const int64_t deadline_us =
        self->timeout_us == 0 ? SY_NEVER_US : sy_clock_us() + self->timeout_us;
    sy_client_call *call = NULL;
    sy_msg *msg = NULL;
    sy_status st = sy_client_start(&call, self->rpc, path, request, deadline_us, self->wait, err);

    if (st != SY_OK) return st;
    set_active(self, slot, call);
    while ((st = sy_client_next(call, &msg, err)) == SY_OK && msg != NULL) {
        size_t n;
        const sy_iov *iov = sy_msg_iov(msg, &n);

        st = on_reply(arg, iov, n, err);
        sy_msg_free(msg);
        if (st != SY_OK) goto out;
    }
    if (st != SY_OK) explain(self, call, err);
out:
    set_active(self, slot, NULL);
    sy_client_end(call);
    return st;
}

/* ---- generations ---- */

typedef struct reader {
    client_generation *gen;
    sy_arena arena;
    int has_finish;
} reader;

static sy_status on_generate_reply(void *arg, const sy_iov *iov, size_t n, sy_error *err)
{
    reader *self = arg;
    client_generation *gen = self->gen;
    sy_generate_reply reply;
    const sy_status st = sy_wire_generate_reply_decode(&reply, &self->arena, iov, n, err);

    if (st != SY_OK) {
        sy_error_prefix(err, "the server's reply");
        return st;
    }
    if (reply.is_finish) {
        tool_result_finish(&gen->result, &reply.finish);
        self->has_finish = 1;
    } else {
        if (reply.delta.n_tokens > 0 && gen->first_token_us == 0)
            gen->first_token_us = sy_clock_us();
        tool_result_add(&gen->result, &reply.delta);
        if (gen->on_text != NULL && reply.delta.text_bytes > 0)
            gen->on_text(reply.delta.text, reply.delta.text_bytes);
    }
    sy_arena_reset(&self->arena);
    if (gen->result.error.status != SY_OK) *err = gen->result.error;
    return gen->result.error.status;
}

void client_generate(client *self, size_t slot, const sy_generate_request *request,
                     void (*on_text)(const char *text, size_t n), client_generation *out)
{
    reader state = {.gen = out};
    sy_error err = {0};
    sy_frame frame;
    sy_status st;

    *out = (client_generation){.started_us = sy_clock_us(), .on_text = on_text};
    tool_result_init(&out->result);
    sy_error_clear(&err);
    sy_arena_init(&state.arena, REPLY_MEMORY_BYTES_MAX);
    st = sy_wire_generate_request_encode(&frame, request, NULL);
    if (st != SY_OK)
        sy_error_set(&err, st, "the request cannot be encoded");
    else
        st = client_run(self, slot, "/switchyard.v1.Aggregator/Generate", &frame, on_generate_reply,
                        &state, &err);
    if (st == SY_OK && !state.has_finish)
        st = sy_error_set(&err, SY_EDATALOSS, "the server ended its answer without a last message");
    if (st != SY_OK) out->result.error = err;
    out->ended_us = sy_clock_us();
    sy_arena_free(&state.arena);
}
