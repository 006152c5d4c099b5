/* sy_rpc.h - gRPC core behind plain C: one loop (a completion queue and its thread), servers, and
 * peers with long-lived streams. No gRPC type shows. This layer moves bytes; what they mean is
 * lib/wire's business.
 *
 * Threads. A loop is driven by one thread at a time: its own, or one that waits in a fan-out for
 * answers that come on it, which then needs no other thread to bring them. Every callback (on_*)
 * runs there and must not block: hand work to an engine thread. So whoever waits in a fan-out holds
 * no lock that a callback of the loop takes. sy_call_send, sy_call_finish, sy_peer_send and
 * everything marked "any thread" may be called from anywhere, callbacks included. A callback is
 * never made from inside the call that it belongs to. Ownership. A received message is borrowed for
 * the callback unless sy_msg_take is called. A frame handed to a send call belongs to it, whatever
 * it returns. */
#ifndef SY_RPC_H
#define SY_RPC_H

#include "sy_buf.h"
#include "sy_queue.h"
#include "sy_status.h"

/* ---- loop ---- */
typedef struct sy_loop sy_loop;

SY_MUST_USE sy_status sy_loop_open(sy_loop **out, const char *thread_name);
/* Servers and peers of this loop are closed already. Joins the thread. Accepts NULL. */
void sy_loop_close(sy_loop *loop);
/* Runs fn(arg) once on the thread that drives the loop, soon. Any thread; in order for one caller.
 * SY_ENOMEM, SY_ECANCELLED (closing). */
SY_MUST_USE sy_status sy_loop_post(sy_loop *loop, void (*fn)(void *arg), void *arg);

/* sy_queue_pop without a deadline, for the one thread that works off what the loop's callbacks put
 * into a queue: while it has nothing to do it drives the loop, so that work which comes is on the
 * right thread already. The loop outlives the call; it need not be told when the queue is closed.
 * loop NULL: not known yet, so it only sleeps. */
SY_MUST_USE sy_status sy_loop_pop(sy_loop *loop, sy_queue *queue, void **item);

/* ---- messages in ---- */
typedef struct sy_msg sy_msg;
size_t sy_msg_len(const sy_msg *msg);
/* Pieces cut anywhere; they live as long as the message. */
const sy_iov *sy_msg_iov(const sy_msg *msg, size_t *n);
sy_msg *sy_msg_take(sy_msg *msg); /* keeps a callback's message; end with sy_msg_free */
void sy_msg_free(sy_msg *msg);    /* accepts NULL */

/* ---- server ---- */
typedef struct sy_server sy_server;
typedef struct sy_call sy_call; /* one RPC on the server, reference-counted */

typedef struct sy_method {
    const char *path; /* "/switchyard.v1.Router/RouteStream" */
    int client_streams, server_streams;
    void *ctx; /* first argument of the callbacks */
    /* A call has arrived; sy_call_set_user may be used. NULL: nothing to do. */
    void (*on_open)(void *ctx, sy_call *call);
    /* A request message. Non-streaming clients send exactly one (none at all: the call ends with
     * INVALID_ARGUMENT here). */
    void (*on_message)(void *ctx, sy_call *call, sy_msg *msg);
    /* The client will send no more (streaming clients only). NULL: the call is finished with OK
     * once its sends are out. */
    void (*on_half_close)(void *ctx, sy_call *call);
    /* Exactly once for each on_open, last: finished, cancelled, deadline passed or connection lost.
     * Other threads that hold references may still call sy_call_send: it then returns
     * SY_ECANCELLED. */
    void (*on_end)(void *ctx, sy_call *call, int cancelled);
} sy_method;

typedef struct sy_server_config {
    const char *const *addresses; /* "127.0.0.1:7000", "[::1]:7000", "unix:/path", "127.0.0.1:0" */
    size_t n_addresses;
    const sy_method *methods; /* copied; health and reflection are added by the server itself */
    size_t n_methods;
    const char *const *service_names; /* full names for reflection's list: "switchyard.v1.Router" */
    size_t n_service_names;
    size_t message_bytes_max; /* past it: RESOURCE_EXHAUSTED. 0: 64 MiB */
    size_t calls_max; /* concurrent calls; past it RESOURCE_EXHAUSTED with the limit. 0: 1024 */
    size_t send_queue_max; /* waiting in one call; past it sy_call_send gives SY_ELIMIT. 0: 256 */
    int64_t send_stall_us; /* a client that takes nothing for so long is cancelled. 0: 60 s */
    /* Bytes of a google.rpc.Status for grpc-status-details-bin (lib/wire has it); NULL: none are
     * sent. Returns the length written to out, 0 for none. */
    size_t (*error_details)(const sy_error *err, void *out, size_t cap);
} sy_server_config;

/* SY_EEXISTS: an address is in use (named); SY_EINVAL: an address does not parse. Health is
 * NOT_SERVING at first. */
SY_MUST_USE sy_status sy_server_open(sy_server **out, sy_loop *loop, const sy_server_config *config,
                                     sy_error *err);
int sy_server_port(const sy_server *server, size_t address); /* the port bound; 0 for unix: */
/* "" is the server as a whole; any other service name ("switchyard.v1.Router", or a model's) exists
 * from its first set. Any thread. */
void sy_server_set_health(sy_server *server, const char *service, int serving);
size_t sy_server_calls(const sy_server *server); /* running now */
/* Stops taking calls and waits up to drain_us for running ones (streams between tiers end at once,
 * cleanly, when nothing is pending on them: their sends are flushed first); then cancels the rest,
 * waits for their on_end, and frees. Not from a callback. Accepts NULL. */
void sy_server_close(sy_server *server, int64_t drain_us);

/* Calls. Any thread. */
sy_call *sy_call_ref(sy_call *call);
void sy_call_unref(sy_call *call);
void sy_call_set_user(sy_call *call, void *user); /* before any other thread sees the call */
void *sy_call_user(const sy_call *call);
sy_loop *sy_call_loop(const sy_call *call);
int64_t sy_call_deadline_us(const sy_call *call); /* monotonic; SY_NEVER_US */
int sy_call_ended(const sy_call *call); /* cancelled, lost or finished: work for it may stop */
/* Queues a message; the order of sends is kept. The frame is consumed. SY_ECANCELLED: the call has
 * ended. SY_ELIMIT: the client does not read and send_queue_max messages wait. */
sy_status sy_call_send(sy_call *call, sy_frame *frame);
size_t sy_call_queued(const sy_call *call); /* messages not yet taken by the transport */
/* Ends the call after what is queued: OK when err is NULL or SY_OK. Later sends fail. Once only;
 * more are ignored. */
void sy_call_finish(sy_call *call, const sy_error *err);
/* Requests being worked on for this call: keeps a draining stream open until they are answered, and
 * past 64 stops reading more of a stream. At a drain, a stream with client_streams and nothing
 * pending ends with OK, one with server_streams only with UNAVAILABLE: a generation holds one, so
 * that it may finish; a watch holds none. */
void sy_call_pending(sy_call *call, int delta);

/* ---- peers: a channel with one long-lived bidirectional stream ---- */
typedef struct sy_peer sy_peer;

typedef struct sy_peer_config {
    const char *name;          /* for logs: "expert-0"; copied, as is all below */
    const char *address;       /* as in sy_server_config */
    const char *stream_path;   /* "/switchyard.v1.Expert/ComputeStream" */
    const char *watch_path;    /* a server-streaming method opened beside it, or NULL */
    const void *watch_request; /* its request message */
    size_t watch_request_len;
    size_t message_bytes_max; /* 0: 64 MiB */
    size_t window_max; /* requests in flight; past it sy_peer_send gives SY_ELIMIT. 0: 1024 */
    int64_t backoff_min_us, backoff_max_us; /* between connection attempts. 0: 50 ms, 2 s */
    int64_t keepalive_us; /* a silent peer is given up after about twice this. 0: 5 s */
    /* Correlation id of a reply; 0: unreadable, which ends the stream. */
    uint64_t (*reply_id)(const sy_iov *iov, size_t n);
    void *ctx;
    /* Stream up or down; NULL: not interested. */
    void (*on_state)(void *ctx, sy_peer *peer, int up);
    void (*on_watch)(void *ctx, sy_peer *peer, sy_msg *msg);
    /* No more is to come of a request, be it waited for or forgotten: its answer is here (before
     * its callback), or it was not sent. What a lost stream takes with it is not told one by one:
     * on_state tells. Any thread, within a send among others: it must not call back into this
     * layer. NULL: not interested. */
    void (*on_settled)(void *ctx, uint64_t id);
} sy_peer_config;

/* Begins to connect and keeps trying, with back-off, until closed. Never fails for an absent peer.
 */
SY_MUST_USE sy_status sy_peer_open(sy_peer **out, sy_loop *loop, const sy_peer_config *config,
                                   sy_error *err);
/* Fails what is in flight with SY_ECANCELLED and frees once quiet. Not from a callback. Accepts
 * NULL. */
void sy_peer_close(sy_peer *peer);
int sy_peer_up(const sy_peer *peer);
const char *sy_peer_name(const sy_peer *peer);
const char *sy_peer_address(const sy_peer *peer);
/* Requests in flight: what the choice of two compares. */
size_t sy_peer_outstanding(const sy_peer *peer);

/* One answer: msg is borrowed for the call, or NULL with the reason in err (EUNAVAILABLE: stream
 * lost; ECANCELLED). */
typedef void (*sy_reply_fn)(void *arg, uint64_t id, sy_msg *msg, const sy_error *err);
uint64_t sy_peer_next_id(sy_peer *peer); /* never 0; unique for this peer */
/* Sends a request that carries `id` and calls fn exactly once, later, unless the request is
 * forgotten first. Fails now (SY_EUNAVAILABLE: not connected; SY_ELIMIT: window full) or calls
 * back, never both. The frame is consumed. Any thread. */
SY_MUST_USE sy_status sy_peer_send(sy_peer *peer, uint64_t id, sy_frame *frame, sy_reply_fn fn,
                                   void *arg);
/* After it returns fn is not running and will not be called for id. 1: it was still in flight; 0:
 * fn has been called. Not from a callback. */
int sy_peer_forget(sy_peer *peer, uint64_t id);

/* ---- fan-out: several requests, one deadline ---- */
typedef struct sy_fanout sy_fanout;
typedef struct sy_fanout_slot {
    sy_peer *peer;
    uint64_t id;
    sy_status status; /* SY_OK: msg holds the reply; SY_EDEADLINE; else as err says */
    sy_msg *msg;      /* taken; the fan-out frees it */
    sy_error err;
    int64_t done_us;
} sy_fanout_slot;

SY_MUST_USE sy_status sy_fanout_open(sy_fanout **out, size_t n_max);
void sy_fanout_free(sy_fanout *fanout);  /* accepts NULL; not while waiting */
void sy_fanout_reset(sy_fanout *fanout); /* ready for the next round; frees messages */
/* Sends and counts; a refused send is a slot that is done already. Returns the slot's index. id:
 * from sy_peer_next_id. */
size_t sy_fanout_send(sy_fanout *fanout, sy_peer *peer, uint64_t id, sy_frame *frame);
/* Sleeps until every slot is done or deadline_us has passed; then those still open are forgotten
 * and get SY_EDEADLINE. */
void sy_fanout_wait(sy_fanout *fanout, int64_t deadline_us);
/* Sleeps until one more slot is done than the last call (or reset) saw, or all are, or until_us has
 * passed; what is open stays open. Returns how many are done. For those who may send a second copy
 * elsewhere, or stop when other slots have brought all that is needed. */
size_t sy_fanout_wait_some(sy_fanout *fanout, int64_t until_us);
int sy_fanout_is_done(sy_fanout *fanout, size_t slot);
/* Forgets a slot that is open: it is done with SY_EDEADLINE, and its answer will not be taken. */
void sy_fanout_give_up(sy_fanout *fanout, size_t slot);
size_t sy_fanout_count(const sy_fanout *fanout);
const sy_fanout_slot *sy_fanout_at(const sy_fanout *fanout, size_t slot);

/* ---- blocking client calls: for tools and tests, not for the data plane ----
 * Nothing runs between calls: a client that has been idle learns only from its next call that the
 * server went, and that call fails with SY_EUNAVAILABLE. */
typedef struct sy_client sy_client;
typedef struct sy_client_call sy_client_call;
SY_MUST_USE sy_status sy_client_open(sy_client **out, const char *address, size_t message_bytes_max,
                                     sy_error *err);
void sy_client_close(sy_client *client);
/* Starts a call with one request message (consumed). wait_for_ready: wait for an absent server
 * until the deadline. */
SY_MUST_USE sy_status sy_client_start(sy_client_call **out, sy_client *client, const char *path,
                                      sy_frame *request, int64_t deadline_us, int wait_for_ready,
                                      sy_error *err);
/* The next reply; *msg is the caller's. *msg NULL with SY_OK: the stream ended with status OK.
 * Otherwise the call's status and text. */
SY_MUST_USE sy_status sy_client_next(sy_client_call *call, sy_msg **msg, sy_error *err);
/* After a failure: copies grpc-status-details-bin, returns its length; 0: none, or it is longer
 * than cap. */
size_t sy_client_details(const sy_client_call *call, void *out, size_t cap);
void sy_client_cancel(sy_client_call *call); /* any thread */
void sy_client_end(sy_client_call *call);    /* cancels if still running, frees; accepts NULL */

#endif
