/* sy_wire.h - protobuf-c messages <-> plain structs. Every bound on what a peer may send is checked
 * here and only here; a violation is SY_EINVAL with the field's name. Pure: no I/O, no state; any
 * thread.
 *
 * decode: iov is a received message in pieces cut anywhere. Everything in *out points into the
 * arena, copied once; rows and index arrays are 64-byte aligned there, NULL when empty. Trailing
 * bulk (field 15 last) is gathered straight into place; any other field order gives the same
 * result.
 *
 * encode: rows are sent by reference: the frame takes a reference to `bulk`, the buffer that
 * rows.data points into (NULL when there are no rows, or to have them copied). The bytes are
 * ordinary protobuf. */
#ifndef SY_WIRE_H
#define SY_WIRE_H

#include "sy_arena.h"
#include "sy_buf.h"
#include "sy_dtype.h"
#include "sy_shard_state.h"
#include "sy_status.h"

#define SY_WIRE_NAME_MAX         128
#define SY_WIRE_LAYERS_TEXT_MAX  4096
#define SY_WIRE_TEXT_MAX         (4u << 20) /* bytes of a prompt */
#define SY_WIRE_TOKENS_MAX       (1u << 20)
#define SY_WIRE_STOPS_MAX        16
#define SY_WIRE_STOP_BYTES_MAX   256
#define SY_WIRE_TOP_LOGPROBS_MAX 20
#define SY_WIRE_ROWS_MAX         (1u << 20)
#define SY_WIRE_COLS_MAX         (1u << 20)
#define SY_WIRE_EMPTY_SLOT       0xFFFFu
#define SY_WIRE_SHARDS_MAX       (1u << 17) /* of one node */
#define SY_WIRE_DEVICES_MAX      256
#define SY_WIRE_POLICIES_MAX     16

typedef struct sy_rows {
    sy_dtype dtype; /* SY_DTYPE_NONE with rows == 0: absent */
    uint32_t rows, cols;
    const void *data; /* rows*cols elements; NULL: they are not in the message */
} sy_rows;
size_t sy_rows_bytes(const sy_rows *rows);

/* Where the elements of a message's rows are, when they are in memory that the client shares
 * (lib/shm has it): offsets into it. decode: aligned to SY_WIRE_SHARED_ALIGN, both areas inside of
 * `bytes` and apart from one another; whether there is such memory is for others to find out. */
#define SY_WIRE_SHARED_ALIGN     64
#define SY_WIRE_SHARED_KEY_BYTES 16
typedef struct sy_shared_rows {
    uint64_t pid;
    uint32_t fd;
    uint8_t key[SY_WIRE_SHARED_KEY_BYTES];
    uint64_t bytes;                /* of the memory; 0: nothing is shared */
    uint64_t input;                /* all of `hidden`, whose data are NULL then */
    uint64_t output, output_bytes; /* for the reply; 0, 0: its rows come in the message */
} sy_shared_rows;

typedef struct sy_route_policy {
    uint32_t experts_per_token; /* 0: the checkpoint's */
    int degraded; /* an expert that nobody answers for is left out instead of failing the row */
} sy_route_policy;

typedef struct sy_route_request {
    uint64_t id;
    const char *model; /* "" when absent; never NULL after decode */
    uint32_t layer;
    sy_route_policy policy;
    sy_shared_rows shared; /* no output */
    sy_rows hidden;        /* decode: rows >= 1, cols >= 1, length exact */
} sy_route_request;

typedef struct sy_route_reply {
    uint64_t id;
    uint32_t slots;         /* K */
    uint32_t n_tokens;      /* T, from the length of `expert` */
    const uint16_t *expert; /* [T,K] */
    const float *weight;    /* [T,K] */
    uint32_t queue_us, compute_us;
    sy_error status; /* SY_OK: fine */
} sy_route_reply;

typedef struct sy_compute_request {
    uint64_t id;
    const char *model;
    uint32_t layer;
    int partial;               /* Combine PARTIAL */
    uint32_t n_groups;         /* G */
    uint32_t n_assign;         /* R */
    const uint16_t *expert;    /* [G], strictly ascending */
    const uint32_t *group_end; /* [G], strictly ascending, last == R */
    const uint32_t *row;       /* [R], < hidden.rows */
    const float *weight;       /* [R] or NULL */
    sy_shared_rows shared;
    sy_dtype output_dtype; /* of the reply's rows: SY_BF16, or SY_F32, as which 0 is sent too */
    sy_rows hidden;        /* [T,H] */
} sy_compute_request;

typedef struct sy_shard_fault {
    uint32_t expert;
    sy_error status;
} sy_shard_fault;

typedef struct sy_compute_reply {
    uint64_t id;
    sy_error status;
    uint32_t n_faults;
    const sy_shard_fault *fault;
    uint32_t queue_us, compute_us, batched_requests;
    int output_shared; /* output has no data: they are where the request's `shared` says */
    sy_rows output;
} sy_compute_reply;

typedef struct sy_shard_info {
    uint32_t layer, expert;
    sy_shard_state state;
    const char *device;                /* "cpu:0" */
    const char *reason;                /* FAILED: why */
    uint64_t content_hash, probe_hash; /* sy_shard_identity; 0: not known yet */
    uint32_t loaded_percent;           /* LOADING */
} sy_shard_info;
typedef struct sy_device_load {
    const char *device;
    uint32_t queue_length;                   /* messages waiting or being computed */
    uint32_t service_us;                     /* a message's time here, lately; 0: nothing yet */
    uint64_t memory_bytes, memory_max_bytes; /* 0: no limit */
} sy_device_load;
typedef struct sy_node_state {
    const char *node, *model;
    int full;
    uint32_t n_shards;
    const sy_shard_info *shard;
    uint32_t queue_length;
    uint64_t memory_bytes, placement_hash, structure_hash;
    uint64_t checkpoint_hash;       /* sy_model_checkpoint_hash */
    const char *arithmetic, *build; /* SY_ARITHMETIC, SY_VERSION */
    uint32_t n_devices;             /* 0: nothing new about load */
    const sy_device_load *device;
} sy_node_state;

/* A shard on its way from one node to another: the bytes of gate, up and down as they are held,
 * row-major, one after the other, then those of their biases. */
#define SY_WIRE_CHUNK_MAX    (4u << 20)
#define SY_WIRE_TENSORS_MAX  6u
#define SY_WIRE_HANDLE_BYTES 64u
/* A process on the giver's machine that may read the shard out of a GPU's memory. */
typedef struct sy_slot_taker {
    uint64_t pid;
    uint32_t fd;
    uint8_t key[SY_WIRE_SHARED_KEY_BYTES];
    uint64_t bytes;         /* of the memory by which it shows who it is; 0: there is no taker */
    const char *arithmetic; /* of the GPU that the shard goes to */
    uint64_t slot_bytes;    /* of a slot there, >= 1 */
} sy_slot_taker;
/* Where a shard lies in the giver's GPU. */
typedef struct sy_chunk_slot {
    uint8_t handle[SY_WIRE_HANDLE_BYTES];
    uint64_t slot_bytes;    /* 0: it does not say, and there are data */
    uint32_t n_slots, slot; /* slot < n_slots */
    uint64_t home_hash;
} sy_chunk_slot;
typedef struct sy_fetch_request {
    const char *model;
    uint32_t layer, expert;
    uint64_t offset;       /* where to go on; 0 with a taker */
    uint64_t content_hash; /* of what has been read so far; 0: any. Another: SY_EPRECONDITION */
    sy_slot_taker taker;
} sy_fetch_request;
typedef struct sy_shard_chunk {
    uint32_t layer, expert;
    uint64_t content_hash, probe_hash; /* of the whole shard */
    uint64_t total_bytes, offset;      /* total: exactly what the tensors need */
    uint64_t chunk_hash;               /* XXH3 64 of data */
    uint32_t n_tensors;                /* 3: gate, up, down; 6: and their biases, f32 [rows,1] */
    sy_dtype dtype[SY_WIRE_TENSORS_MAX];
    uint32_t rows[SY_WIRE_TENSORS_MAX], cols[SY_WIRE_TENSORS_MAX];
    const void *data; /* [n_bytes], 1..SY_WIRE_CHUNK_MAX; offset + n_bytes <= total_bytes */
    size_t n_bytes;
    sy_chunk_slot slot; /* in place of data: offset and n_bytes are 0 */
} sy_shard_chunk;

typedef struct sy_sampling_params {
    float temperature;        /* 0: greedy */
    uint32_t top_k;           /* 0: all */
    float top_p;              /* 1: all */
    float min_p;              /* 0: all */
    float repetition_penalty; /* 1: none */
} sy_sampling_params;

typedef struct sy_generate_request {
    const char *model;
    const char *prompt; /* NULL when tokens are given; UTF-8 is checked by the tokenizer */
    size_t prompt_bytes;
    int is_chat;           /* prompt is a conversation for the chat template, as JSON */
    const uint32_t *token; /* NULL when a prompt is given */
    uint32_t n_tokens;
    uint32_t max_tokens;
    sy_sampling_params
        sampling; /* absent: greedy, nothing filtered. NaN, negative, or out of range: SY_EINVAL */
    uint32_t n_stops;
    const char *const *stop;
    uint64_t seed;
    int logprobs;
    uint32_t top_logprobs;
    sy_route_policy policy;
    int want_logits, ignore_eos;
} sy_generate_request;

typedef struct sy_token_logprob {
    uint32_t token;
    float logprob;
} sy_token_logprob;
typedef struct sy_delta {
    uint32_t n_tokens;
    const uint32_t *token;
    const char *text; /* text_bytes of UTF-8, perhaps with NULs */
    size_t text_bytes;
    uint32_t n_logprobs; /* 0 or n_tokens */
    const float *logprob;
    uint32_t n_top; /* in all */
    const sy_token_logprob *top;
    sy_rows logits;
} sy_delta;
typedef enum sy_finish_reason { SY_FINISH_NONE, SY_FINISH_STOP, SY_FINISH_LENGTH } sy_finish_reason;
typedef struct sy_finish {
    sy_finish_reason reason;
    uint32_t prompt_tokens, generated_tokens;
    double queue_ms, first_token_ms, total_ms, decode_tokens_per_s;
    double route_ms, dispatch_ms, compute_ms, combine_ms;
    uint64_t placement_hash;
    uint32_t n_policies;
    const char *const *policy;
    uint32_t degraded_rows; /* token rows of a layer that miss an expert */
} sy_finish;
typedef struct sy_generate_reply {
    int is_finish; /* 0 also for an event of a later version: an empty delta */
    sy_delta delta;
    sy_finish finish;
} sy_generate_reply;

typedef struct sy_forward_request {
    uint64_t id;
    const char *model;
    uint32_t layer;
    sy_route_policy policy;
    int want_routing;
    sy_rows hidden;
} sy_forward_request;
typedef struct sy_forward_reply {
    uint64_t id;
    sy_error status;
    uint32_t slots, n_tokens;
    const uint16_t *expert; /* [T,K] or NULL */
    const float *weight;
    uint64_t placement_hash;
    uint32_t n_policies;
    const char *const *policy;
    uint32_t degraded_rows;
    sy_rows output;
} sy_forward_reply;

typedef struct sy_model_info { /* ListModels' Model and DescribeModel's ModelDescription alike */
    const char *name, *family, *architecture, *not_ready_reason;
    uint32_t layers, hidden, experts, top_k, expert_ffn, vocab, context;
    int ready;
    uint64_t placement_hash, structure_hash, placement_epoch;
    const char *moe_layers; /* "3-60": those with experts */
} sy_model_info;
typedef struct sy_model_list {
    uint32_t n_models;
    const sy_model_info *model;
} sy_model_list;
typedef struct sy_model_query { /* DescribeModelRequest and WatchRequest */
    const char *model;
} sy_model_query;

/* SY_EINVAL (malformed, a bound is broken: the field is named), SY_ELIMIT (the arena's limit),
 * SY_ENOMEM. */
#define SY_WIRE_DECODE(name, type)                                                               \
    SY_MUST_USE sy_status sy_wire_##name##_decode(type *out, sy_arena *arena, const sy_iov *iov, \
                                                  size_t n, sy_error *err)
SY_WIRE_DECODE(route_request, sy_route_request);
SY_WIRE_DECODE(route_reply, sy_route_reply);
SY_WIRE_DECODE(compute_request, sy_compute_request);
SY_WIRE_DECODE(compute_reply, sy_compute_reply);
SY_WIRE_DECODE(node_state, sy_node_state);
SY_WIRE_DECODE(fetch_request, sy_fetch_request);
SY_WIRE_DECODE(shard_chunk, sy_shard_chunk);
SY_WIRE_DECODE(generate_request, sy_generate_request);
SY_WIRE_DECODE(generate_reply, sy_generate_reply);
SY_WIRE_DECODE(forward_request, sy_forward_request);
SY_WIRE_DECODE(forward_reply, sy_forward_reply);
SY_WIRE_DECODE(model_query, sy_model_query);
SY_WIRE_DECODE(model_description, sy_model_info);
SY_WIRE_DECODE(model_list, sy_model_list);

/* The frame is initialised here and is the caller's on SY_OK; it has no pieces when all fields have
 * their defaults. Nothing is checked: the receiver does that. SY_ENOMEM, SY_ELIMIT (2 GiB). */
#define SY_WIRE_ENCODE(name, type) \
    SY_MUST_USE sy_status sy_wire_##name##_encode(sy_frame *out, const type *in, sy_buf *bulk)
SY_WIRE_ENCODE(route_request, sy_route_request);
SY_WIRE_ENCODE(route_reply, sy_route_reply);
SY_WIRE_ENCODE(compute_request, sy_compute_request);
SY_WIRE_ENCODE(compute_reply, sy_compute_reply);
SY_WIRE_ENCODE(node_state, sy_node_state);
SY_WIRE_ENCODE(fetch_request, sy_fetch_request);
SY_WIRE_ENCODE(shard_chunk, sy_shard_chunk);
SY_WIRE_ENCODE(generate_request, sy_generate_request);
SY_WIRE_ENCODE(generate_reply, sy_generate_reply);
SY_WIRE_ENCODE(forward_request, sy_forward_request);
SY_WIRE_ENCODE(forward_reply, sy_forward_reply);
SY_WIRE_ENCODE(model_query, sy_model_query);
SY_WIRE_ENCODE(model_description, sy_model_info);
SY_WIRE_ENCODE(model_list, sy_model_list);

/* Field 1 of a reply as a varint, 0 when it cannot be read: what lib/rpc correlates by. */
uint64_t sy_wire_peek_id(const sy_iov *iov, size_t n);
/* A google.rpc.Status with an ErrorInfo (domain "switchyard", metadata layer, expert, node):
 * returns the length, 0 when it does not fit. And back, adding to err what the bytes say; malformed
 * bytes change nothing. */
size_t sy_wire_error_details(const sy_error *err, void *out, size_t cap);
void sy_wire_error_from_details(sy_error *err, const void *data, size_t n);
/* Health: a request for `service`, and the answer's status (1: SERVING). */
SY_MUST_USE sy_status sy_wire_health_request_encode(sy_frame *out, const char *service);
SY_MUST_USE sy_status sy_wire_health_reply_decode(int *status, const sy_iov *iov, size_t n);

#endif
