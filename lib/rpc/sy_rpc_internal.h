/* sy_rpc_internal.h - what the files of this folder share. gRPC's types appear as bare struct
 * names, so that its headers stay in the .c files. "Loop only" means: called or touched on the
 * loop's thread and nowhere else. */
#ifndef SY_RPC_INTERNAL_H
#define SY_RPC_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "sy_clock.h"
#include "sy_rpc.h"

struct ProtobufCMessage;
struct grpc_byte_buffer;
struct grpc_call;
struct grpc_channel;
struct grpc_completion_queue;

#define RPC_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* Initial metadata of every stream that a server of ours accepts. */
#define RPC_ACCEPTED_KEY "switchyard-accepted"

#define RPC_MESSAGE_BYTES_DEFAULT ((size_t)64 << 20)

void rpc_init(void); /* gRPC and malloc tuning, once a process; never undone, see sy_loop.c */

/* ---- loop ---- */

/* Stands at every operation that gRPC completes on the loop's queue; fn runs on the loop. */
typedef struct rpc_tag {
    void (*fn)(struct rpc_tag *tag, int ok);
} rpc_tag;

/* A post that needs no memory: it lives in its object and is free again once fn has been entered.
 */
typedef struct rpc_post {
    struct rpc_post *next;
    void (*fn)(void *arg);
    void *arg;
} rpc_post;

typedef struct rpc_timer {
    struct rpc_timer *next, **link; /* link is NULL while the timer is not running */
    int64_t due_us;
    void (*fn)(struct rpc_timer *timer);
} rpc_timer;

/* The turn to drive a loop; sy_turn.c. Who has it is the loop's thread for all that is "loop only".
 */
typedef struct rpc_turn_waiter {
    struct rpc_turn_waiter *next; /* under the turn's mutex, as are the next two */
    int is_queued, has_turn;
    /* Wakes the waiter, whose has_turn has been set. Called under the turn's mutex; afterwards the
     * waiter may be gone. */
    void (*tell)(struct rpc_turn_waiter *waiter);
} rpc_turn_waiter;

typedef struct rpc_turn {
    _Atomic int is_wanted;
    pthread_mutex_t mutex;
    pthread_cond_t parked; /* nobody signals it: its sleeper looks by the clock */
    rpc_turn_waiter *first, **last;
    unsigned n_taken; /* by waiters */
    int is_taken;
} rpc_turn;

void rpc_turn_open(rpc_turn *turn); /* the loop's thread has it */
void rpc_turn_close(rpc_turn *turn);
/* Soon somebody will wait: the loop's thread had better let go of it after its next event. */
void rpc_turn_want(rpc_turn *turn);
int rpc_turn_is_wanted(const rpc_turn *turn);
/* 1: it was free, and is the caller's until rpc_turn_pass. 0: the waiter is queued; it sleeps until
 * it is told, or what it waits for has come, and calls rpc_turn_withdraw in any case, which says
 * whether it has the turn by now. */
int rpc_turn_take(rpc_turn *turn, rpc_turn_waiter *waiter);
int rpc_turn_withdraw(rpc_turn *turn, rpc_turn_waiter *waiter);
void rpc_turn_pass(rpc_turn *turn); /* to the first in the queue; free when there is none */
void rpc_turn_park(
    rpc_turn *turn); /* the loop's thread: passes it, and waits until it has it back */

struct grpc_completion_queue *rpc_loop_queue(sy_loop *loop);
rpc_turn *rpc_loop_turn(sy_loop *loop);
int rpc_loop_is_current(const sy_loop *loop); /* is this thread having the turn? */
/* With the turn: waits until until_us for one event, and runs it and what is due. 1: there was one;
 * 0: none came; -1: the loop has ended. rpc_loop_enter says that this thread has the turn from now
 * on (NULL: no more). */
int rpc_loop_run_one(sy_loop *loop, int64_t until_us);
void rpc_loop_enter(const sy_loop *loop);
/* Any thread. The loop must not be closing: servers and peers end before their loop does. */
void rpc_loop_post(sy_loop *loop, rpc_post *post, void (*fn)(void *arg), void *arg);
/* Loop only. Before the next event, whichever thread runs that; newest first. */
void rpc_loop_defer(sy_loop *loop, rpc_post *post, void (*fn)(void *arg), void *arg);
/* Loop only. Starting a running timer moves it; stopping one that does not run is fine. */
void rpc_timer_start(sy_loop *loop, rpc_timer *timer, int64_t due_us, void (*fn)(rpc_timer *));
void rpc_timer_stop(rpc_timer *timer);

/* ---- bytes ---- */

/* Takes the buffer, also when there is no memory (NULL). One reference. */
sy_msg *rpc_msg_new(struct grpc_byte_buffer *buffer);
/* Gathers a small message; returns its length, or SIZE_MAX when it is longer than cap. */
size_t rpc_msg_copy(const sy_msg *msg, void *out, size_t cap);
/* Consumes the frame: big pieces go out by reference, small ones are copied. */
struct grpc_byte_buffer *rpc_buffer_from_frame(sy_frame *frame);
SY_MUST_USE sy_status rpc_frame_pack(sy_frame *out, const struct ProtobufCMessage *message);

/* Messages that wait for their turn in one call. No lock of its own. */
typedef struct rpc_waiting {
    struct grpc_byte_buffer *buffer;
    uint64_t id; /* 0: nobody asks for it by name */
} rpc_waiting;

typedef struct rpc_send_queue {
    rpc_waiting *slot;
    size_t capacity, head, count, max;
} rpc_send_queue;

/* Takes the buffer when SY_OK. SY_ELIMIT: max messages wait; SY_ENOMEM. */
SY_MUST_USE sy_status rpc_send_queue_push(rpc_send_queue *queue, rpc_waiting waiting);
rpc_waiting rpc_send_queue_pop(rpc_send_queue *queue); /* count > 0 */
void rpc_send_queue_clear(rpc_send_queue *queue);      /* destroys what waits, frees the memory */

/* ---- addresses and channels ---- */

#define RPC_UNIX_PATH_BYTES 108 /* sizeof sun_path, its end included */
typedef struct rpc_address {
    int is_unix;
    char path[RPC_UNIX_PATH_BYTES]; /* unix only */
    char host[256], port[6];        /* TCP only; an IPv6 host stands without its brackets */
    char listen[336];               /* as a gRPC server wants it */
    char target[352];               /* as a gRPC channel wants it */
} rpc_address;

/* SY_EINVAL, with what is wrong and what a good address looks like. Resolves nothing. */
SY_MUST_USE sy_status rpc_address_parse(rpc_address *out, const char *text, sy_error *err);
/* Makes a unix: path free to listen on. SY_EEXISTS: another process serves there, or it is no
 * socket. */
SY_MUST_USE sy_status rpc_address_claim(const rpc_address *address, const char *text,
                                        sy_error *err);
/* Why gRPC could not listen there: never SY_OK. */
sy_status rpc_address_explain(const rpc_address *address, const char *text, sy_error *err);

typedef struct rpc_channel_options {
    size_t message_bytes_max;
    int64_t backoff_min_us, backoff_max_us;
    int64_t keepalive_us; /* 0: none */
} rpc_channel_options;

struct grpc_channel *rpc_channel_open(const rpc_address *address,
                                      const rpc_channel_options *options);

/* ---- calls on the server ---- */

struct rpc_call_status;

struct sy_call {
    _Atomic int refs;
    sy_server *server; /* loop only, and only before the end */
    sy_loop *loop;
    const sy_method *method; /* valid until on_end has returned */
    void *user;
    int64_t deadline_us;
    size_t (*error_details)(const sy_error *err, void *out, size_t cap);

    /* The mutex serialises every batch with a send in it and guards what follows. Slice destructors
     * may run while it is held (inside start_batch); they only drop buffers and never come back
     * here. */
    pthread_mutex_t mutex;
    struct grpc_call *grpc; /* no batch is started once `ended` is set */
    rpc_send_queue sends;
    int send_inflight, metadata_sent, status_sent;
    int64_t inflight_since_us;
    int status_code; /* once finishing */
    struct rpc_call_status *status;
    _Atomic int finishing, ended; /* written under the mutex; read by the loop without it */

    _Atomic int n_tags;           /* operations that gRPC has yet to complete */
    _Atomic int pending;          /* sy_call_pending */
    _Atomic int recv_paused;      /* back-pressure: whoever clears it arms the next receive */
    _Atomic int finish_when_idle; /* ends with OK as soon as nothing is pending */
    rpc_post resume_post;

    rpc_tag send_tag, recv_tag, close_tag;
    /* Loop only. */
    struct sy_call *next, **link; /* the server's list */
    struct grpc_byte_buffer *recv_buffer;
    struct grpc_metadata *accepted; /* what a stream's initial metadata says; NULL: nothing */
    int recv_armed, got_message, closed, cancelled, counted;
};

typedef struct rpc_call_setup {
    sy_server *server;
    sy_loop *loop;
    const sy_method *method;
    struct grpc_call *grpc; /* taken */
    int64_t deadline_us;
    size_t send_queue_max;
    size_t (*error_details)(const sy_error *err, void *out, size_t cap);
} rpc_call_setup;

/* Loop only, all of them. NULL: no memory; the gRPC call is cancelled then. */
sy_call *rpc_call_new(const rpc_call_setup *setup);
void rpc_call_start(sy_call *call);                       /* on_open, then receives */
void rpc_call_reject(sy_call *call, const sy_error *err); /* instead of rpc_call_start */
void rpc_call_drain(sy_call *call);
void rpc_call_check_stall(sy_call *call, int64_t now_us, int64_t stall_us);
/* In sy_server.c: the call has ended, after on_end. Drops the server's reference. */
void rpc_server_call_ended(sy_server *server, sy_call *call);

/* ---- services that every server has ---- */

typedef struct rpc_health rpc_health;
SY_MUST_USE sy_status rpc_health_open(rpc_health **out);
void rpc_health_free(rpc_health *health); /* accepts NULL */
void rpc_health_set(rpc_health *health, const char *service, int serving);
#define RPC_HEALTH_METHODS 2
void rpc_health_methods(rpc_health *health, sy_method *out);

typedef struct rpc_reflection rpc_reflection;
SY_MUST_USE sy_status rpc_reflection_open(rpc_reflection **out, const char *const *services,
                                          size_t n_services);
void rpc_reflection_free(rpc_reflection *reflection); /* accepts NULL */
#define RPC_REFLECTION_METHODS 2
void rpc_reflection_methods(rpc_reflection *reflection, sy_method *out);

/* Descriptor sets, walked in place. All strings are ranges in the set. */
typedef struct rpc_range {
    const uint8_t *data;
    size_t len;
} rpc_range;

/* The n-th file of a FileDescriptorSet; 0 when there is none or the set is malformed. */
int rpc_descriptor_file(rpc_range *file, rpc_range set, size_t n);
int rpc_descriptor_name(rpc_range *name, rpc_range file);
int rpc_descriptor_dependency(rpc_range *name, rpc_range file, size_t n);
/* Does the file define this full name: a service, method, message, enum, field or enum value,
 * nested ones too? */
int rpc_descriptor_defines(rpc_range file, const char *symbol);

/* ---- calls on a client, driven by the loop ---- */

typedef struct rpc_stream rpc_stream;
typedef struct rpc_stream_events {
    void (*on_ready)(void *ctx, rpc_stream *stream); /* the server has accepted it */
    void (*on_message)(void *ctx, rpc_stream *stream, sy_msg *msg);
    void (*on_end)(void *ctx, rpc_stream *stream,
                   const sy_error *err); /* once; err->status SY_OK: ended by the server */
    void (*on_closed)(void *ctx, rpc_stream *stream); /* once, last: gRPC has let go of it */
    int (*wanted)(void *ctx, uint64_t id); /* is a message that had to wait still worth sending? Any
                                              thread. May be NULL */
} rpc_stream_events;

typedef struct rpc_stream_setup {
    sy_loop *loop;
    struct grpc_channel *channel;
    const char *path;
    const void *request; /* with request_only: the one message, then half-close */
    size_t request_len;
    int request_only;
    size_t send_queue_max;
    const rpc_stream_events *events; /* static */
    void *ctx;
} rpc_stream_setup;

/* Loop only. Waits for the server to appear, however long; the caller owns one reference. */
SY_MUST_USE sy_status rpc_stream_open(rpc_stream **out, const rpc_stream_setup *setup);
/* Loop only; on_end, with this status, and on_closed still come. */
void rpc_stream_cancel(rpc_stream *stream, sy_status why, const char *text);
rpc_stream *rpc_stream_ref(rpc_stream *stream);
void rpc_stream_unref(rpc_stream *stream); /* accepts NULL */
/* Any thread. Takes the buffer, whatever it returns. SY_ECANCELLED: ended; SY_ELIMIT; SY_ENOMEM. */
SY_MUST_USE sy_status rpc_stream_send(rpc_stream *stream, struct grpc_byte_buffer *buffer,
                                      uint64_t id);

/* ---- requests in flight ---- */

sy_loop *rpc_peer_loop(const sy_peer *peer);

typedef struct rpc_pending_entry {
    uint64_t id; /* 0: free */
    sy_reply_fn fn;
    void *arg;
} rpc_pending_entry;

typedef struct rpc_pending { /* no lock of its own */
    rpc_pending_entry *entry;
    size_t mask, count, max;
} rpc_pending;

SY_MUST_USE sy_status rpc_pending_open(rpc_pending *table, size_t max);
void rpc_pending_free(rpc_pending *table);
/* SY_ELIMIT: max requests are in flight; SY_EEXISTS: this id is. */
SY_MUST_USE sy_status rpc_pending_put(rpc_pending *table, rpc_pending_entry entry);
int rpc_pending_has(const rpc_pending *table, uint64_t id);
int rpc_pending_take(rpc_pending *table, uint64_t id, rpc_pending_entry *out);
int rpc_pending_take_any(rpc_pending *table, size_t *cursor,
                         rpc_pending_entry *out); /* *cursor: 0 at first */

#endif
