/* client_call.h - calls to an aggregator as the commands make them: one request, its replies, an
 * error with everything that the server told. */
#ifndef CLIENT_CALL_H
#define CLIENT_CALL_H

#include <pthread.h>

#include "sy_rpc.h"
#include "tool_result.h"

/* A connection, shared by all threads of a command. */
typedef struct client {
    sy_client *rpc;
    int64_t timeout_us;      /* of one call; 0: none */
    int wait;                /* for a server that is not there yet */
    pthread_mutex_t mutex;   /* guards what follows */
    sy_client_call **active; /* [active_max] calls running now, NULL where there is none */
    size_t active_max;
    int is_interrupted;
} client;

/* Zeroed but for its mutex: client_interrupt and client_close accept it from here on. */
void client_init(client *self);
/* active_max: calls at the same time, one a thread. reply_bytes_max: 0: rpc's own limit. */
SY_MUST_USE sy_status client_open(client *self, const char *address, size_t active_max,
                                  size_t reply_bytes_max, sy_error *err);
void client_close(client *self);
/* Cancels every call, running or to come: for tool_interrupt_open. */
void client_interrupt(void *self);

/* Runs one call to its end on the calling thread: sends request (consumed), hands each reply to
 * on_reply, whose failure cancels the call. slot < active_max: no other thread uses it meanwhile.
 */
SY_MUST_USE sy_status client_run(client *self, size_t slot, const char *path, sy_frame *request,
                                 sy_status (*on_reply)(void *arg, const sy_iov *iov, size_t n,
                                                       sy_error *err),
                                 void *arg, sy_error *err);

/* A generation that went over the wire. */
typedef struct client_generation {
    tool_result result;
    int64_t started_us, first_token_us, ended_us; /* as seen from here; first_token_us 0: none */
    void (*on_text)(const char *text, size_t n);  /* NULL: only collected */
} client_generation;

/* result.error says how it went, whatever failed; to be freed with tool_result_free. */
void client_generate(client *self, size_t slot, const sy_generate_request *request,
                     void (*on_text)(const char *text, size_t n), client_generation *out);

#endif
