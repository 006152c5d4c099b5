/* wire_kinds.h - every message that lib/wire knows, behind one interface: make one with random
 * contents, and read one and write it again. What was read is compared by what it is written as,
 * which is canonical. */
#ifndef WIRE_KINDS_H
#define WIRE_KINDS_H

#include "switchyard/v1/aggregator.pb-c.h"
#include "switchyard/v1/expert.pb-c.h"
#include "switchyard/v1/router.pb-c.h"
#include "wire_fixture.h"

static inline const char *some_text(rng *r, sy_arena *arena, size_t max_chars)
{
    static const char *const letters[] = {
        "a", "Z", "7", "-", " ", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x9a\x82"};
    const size_t n = rng_below(r, max_chars + 1);
    char *text = sy_arena_calloc(arena, 4 * n + 1, 1);

    assert_non_null(text);
    for (size_t i = 0; i < n; i++) strcat(text, letters[rng_below(r, SY_COUNT_OF(letters))]);
    return text;
}

static inline void *some_bytes(rng *r, sy_arena *arena, size_t n)
{
    uint8_t *p = sy_arena_alloc(arena, n);

    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)rng_next(r);
    return p;
}

static inline float *some_floats(rng *r, sy_arena *arena, size_t n)
{
    float *p = sy_arena_calloc(arena, n, sizeof(*p));

    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = (float)rng_below(r, 1000) / 64.0f;
    return p;
}

static inline sy_rows some_rows(rng *r, sy_arena *arena, uint32_t n_rows)
{
    sy_rows rows = {.dtype = (sy_dtype)(1 + rng_below(r, 3)),
                    .rows = n_rows,
                    .cols = 1 + (uint32_t)rng_below(r, 40)};

    rows.data = some_bytes(r, arena, sy_rows_bytes(&rows));
    return rows;
}

static inline sy_error some_error(rng *r, sy_arena *arena)
{
    sy_error err;

    sy_error_set(&err, (sy_status)(1 + rng_below(r, SY_N_STATUS - 1)), "%s",
                 some_text(r, arena, 40));
    sy_error_where(&err, rng_below(r, 2) ? "EXPERT_UNREACHABLE" : NULL,
                   (int32_t)rng_below(r, 3) - 1, (int32_t)rng_below(r, 3) - 1,
                   some_text(r, arena, 5));
    return err;
}

static inline sy_error maybe_error(rng *r, sy_arena *arena)
{
    sy_error none;

    sy_error_clear(&none);
    return rng_below(r, 2) ? some_error(r, arena) : none;
}

/* Where the rows and `output_bytes` for the answer may be: the rows lose their data. */
static inline sy_shared_rows some_shared(rng *r, sy_arena *arena, sy_rows *rows,
                                         uint64_t output_bytes)
{
    sy_shared_rows shared = {.pid = rng_next(r) >> rng_below(r, 64),
                             .fd = (uint32_t)rng_next(r),
                             .bytes = (1 << 20) + rng_below(r, 1 << 20),
                             .input = 64 * rng_below(r, 1000),
                             .output_bytes = output_bytes};

    memcpy(shared.key, some_bytes(r, arena, sizeof(shared.key)), sizeof(shared.key));
    if (output_bytes > 0) shared.output = (1 << 17) + 64 * rng_below(r, 1000);
    rows->data = NULL;
    return shared;
}

static inline sy_status make_route_request(sy_frame *out, rng *r, sy_arena *arena)
{
    sy_route_request in = {
        .id = rng_next(r) >> rng_below(r, 64),
        .model = some_text(r, arena, 20),
        .layer = (uint32_t)rng_below(r, 100),
        .policy = {(uint32_t)rng_below(r, 3), (int)rng_below(r, 2)},
        .hidden = some_rows(r, arena, 1 + (uint32_t)rng_below(r, 6)),
    };
    if (rng_below(r, 3) == 0) in.shared = some_shared(r, arena, &in.hidden, 0);
    return sy_wire_route_request_encode(out, &in, NULL);
}

static inline sy_status make_route_reply(sy_frame *out, rng *r, sy_arena *arena)
{
    sy_route_reply in = {.id = rng_next(r),
                         .slots = (uint32_t)rng_below(r, 5),
                         .n_tokens = (uint32_t)rng_below(r, 9)};
    const size_t n = (size_t)in.slots * in.n_tokens;

    in.expert = some_bytes(r, arena, n * sizeof(*in.expert));
    in.weight = some_floats(r, arena, n);
    in.queue_us = (uint32_t)rng_below(r, 2) * (uint32_t)rng_next(r);
    in.compute_us = (uint32_t)rng_below(r, 2) * (uint32_t)rng_next(r);
    in.status = maybe_error(r, arena);
    return sy_wire_route_reply_encode(out, &in, NULL);
}

static inline sy_status make_compute_request(sy_frame *out, rng *r, sy_arena *arena)
{
    sy_compute_request in = {
        .id = rng_next(r), .model = some_text(r, arena, 20), .layer = (uint32_t)rng_below(r, 100)};
    uint16_t expert[8];
    uint32_t group_end[8];
    uint32_t *row;

    in.hidden = some_rows(r, arena, 1 + (uint32_t)rng_below(r, 6));
    in.n_groups = 1 + (uint32_t)rng_below(r, 8);
    for (uint32_t g = 0; g < in.n_groups; g++) {
        expert[g] = (uint16_t)((g > 0 ? expert[g - 1] + 1u : 0) + rng_below(r, 8000));
        in.n_assign += 1 + (uint32_t)rng_below(r, 5);
        group_end[g] = in.n_assign;
    }
    row = sy_arena_calloc(arena, in.n_assign, sizeof(*row));
    assert_non_null(row);
    for (uint32_t i = 0; i < in.n_assign; i++) row[i] = (uint32_t)rng_below(r, in.hidden.rows);
    in.expert = expert;
    in.group_end = group_end;
    in.row = row;
    in.partial = (int)rng_below(r, 2);
    in.weight = in.partial || rng_below(r, 2) ? some_floats(r, arena, in.n_assign) : NULL;
    if (rng_below(r, 2)) in.output_dtype = rng_below(r, 2) ? SY_BF16 : SY_F32;
    if (rng_below(r, 3) == 0)
        in.shared = some_shared(r, arena, &in.hidden, rng_below(r, 2) * (1 + rng_below(r, 5000)));
    return sy_wire_compute_request_encode(out, &in, NULL);
}

static inline sy_status make_compute_reply(sy_frame *out, rng *r, sy_arena *arena)
{
    sy_compute_reply in = {.id = rng_next(r), .status = maybe_error(r, arena)};
    sy_shard_fault fault[4];

    in.n_faults = (uint32_t)rng_below(r, 5);
    for (uint32_t i = 0; i < in.n_faults; i++) {
        fault[i] = (sy_shard_fault){(uint32_t)rng_below(r, 65535), some_error(r, arena)};
    }
    in.fault = fault;
    in.queue_us = (uint32_t)rng_below(r, 2) * 70000;
    in.compute_us = (uint32_t)rng_below(r, 300);
    in.batched_requests = (uint32_t)rng_below(r, 3);
    if (rng_below(r, 4) != 0) in.output = some_rows(r, arena, 1 + (uint32_t)rng_below(r, 6));
    in.output_shared = in.output.rows > 0 && rng_below(r, 3) == 0;
    if (in.output_shared) in.output.data = NULL;
    return sy_wire_compute_reply_encode(out, &in, NULL);
}

static inline sy_status make_node_state(sy_frame *out, rng *r, sy_arena *arena)
{
    sy_node_state in = {
        .node = some_text(r, arena, 20),
        .model = some_text(r, arena, 20),
        .full = (int)rng_below(r, 2),
        .n_shards = (uint32_t)rng_below(r, 40),
        .queue_length = (uint32_t)rng_below(r, 300),
        .memory_bytes = rng_next(r),
        .placement_hash = rng_next(r),
        .structure_hash = rng_next(r),
        .checkpoint_hash = rng_next(r),
        .arithmetic = some_text(r, arena, 12),
        .build = some_text(r, arena, 12),
        .n_devices = (uint32_t)rng_below(r, 4),
    };
    sy_shard_info shard[40];
    sy_device_load device[4];

    for (uint32_t i = 0; i < in.n_shards; i++) {
        shard[i] = (sy_shard_info){
            .layer = (uint32_t)rng_below(r, 100),
            .expert = (uint32_t)rng_below(r, 65535),
            .state = (sy_shard_state)rng_below(r, SY_N_SHARD_STATES),
            .device = some_text(r, arena, 8),
            .reason = some_text(r, arena, 30),
            .content_hash = rng_next(r),
            .probe_hash = rng_next(r),
            .loaded_percent = (uint32_t)rng_below(r, 101),
        };
    }
    for (uint32_t i = 0; i < in.n_devices; i++) {
        device[i] = (sy_device_load){some_text(r, arena, 8), (uint32_t)rng_below(r, 300),
                                     (uint32_t)rng_next(r), rng_next(r), rng_next(r)};
    }
    in.shard = shard;
    in.device = device;
    return sy_wire_node_state_encode(out, &in, NULL);
}

static inline sy_status make_fetch_request(sy_frame *out, rng *r, sy_arena *arena)
{
    sy_fetch_request in = {
        .model = some_text(r, arena, 20),
        .layer = (uint32_t)rng_below(r, 100),
        .expert = (uint32_t)rng_below(r, 65535),
        .offset = rng_next(r) >> rng_below(r, 64),
        .content_hash = rng_next(r),
    };

    if (rng_below(r, 2) == 0) {
        in.offset = 0;
        in.taker = (sy_slot_taker){.pid = rng_next(r) >> rng_below(r, 64),
                                   .fd = (uint32_t)rng_below(r, 1000),
                                   .bytes = 1 + rng_below(r, 9000),
                                   .arithmetic = some_text(r, arena, 20),
                                   .slot_bytes = 1 + rng_below(r, 9000)};
        memcpy(in.taker.key, some_bytes(r, arena, sizeof(in.taker.key)), sizeof(in.taker.key));
    }
    return sy_wire_fetch_request_encode(out, &in, NULL);
}

static inline sy_status make_shard_chunk(sy_frame *out, rng *r, sy_arena *arena)
{
    sy_shard_chunk in = {
        .layer = (uint32_t)rng_below(r, 100),
        .expert = (uint32_t)rng_below(r, 65535),
        .content_hash = rng_next(r),
        .probe_hash = rng_next(r),
        .chunk_hash = rng_next(r),
        .n_tensors = rng_below(r, 2) == 0 ? 3 : SY_WIRE_TENSORS_MAX,
    };

    for (size_t i = 0; i < in.n_tensors; i++) {
        const int is_bias = i >= 3;
        in.dtype[i] = is_bias ? SY_F32 : (sy_dtype)(1 + rng_below(r, 5));
        in.rows[i] = is_bias ? in.rows[i - 3] : 1 + (uint32_t)rng_below(r, 9);
        in.cols[i] = is_bias ? 1 : 1 + (uint32_t)rng_below(r, 70);
        in.total_bytes += in.rows[i] * sy_dtype_row_bytes(in.dtype[i], in.cols[i]);
    }
    if (rng_below(r, 2) == 0) {
        in.slot.n_slots = 1 + (uint32_t)rng_below(r, 1000);
        in.slot.slot = (uint32_t)rng_below(r, in.slot.n_slots);
        in.slot.slot_bytes = 1 + (rng_next(r) >> rng_below(r, 64)) / 2;
        in.slot.home_hash = rng_next(r);
        memcpy(in.slot.handle, some_bytes(r, arena, sizeof(in.slot.handle)),
               sizeof(in.slot.handle));
        return sy_wire_shard_chunk_encode(out, &in, NULL);
    }
    in.offset = rng_below(r, (size_t)in.total_bytes);
    in.n_bytes = 1 + rng_below(r, (size_t)(in.total_bytes - in.offset));
    in.data = some_bytes(r, arena, in.n_bytes);
    return sy_wire_shard_chunk_encode(out, &in, NULL);
}

static inline sy_status make_generate_request(sy_frame *out, rng *r, sy_arena *arena)
{
    const char *const stop[] = {"</s>", "\xe2\x82\xac", "\n\n"};
    sy_generate_request in = {
        .model = some_text(r, arena, 20),
        .max_tokens = (uint32_t)rng_below(r, 1000),
        .sampling = {(float)rng_below(r, 3), (uint32_t)rng_below(r, 99), 0.5f, 0.25f, 1.5f},
        .n_stops = (uint32_t)rng_below(r, 4),
        .stop = stop,
        .seed = rng_next(r),
        .logprobs = (int)rng_below(r, 2),
        .top_logprobs = (uint32_t)rng_below(r, 21),
        .policy = {(uint32_t)rng_below(r, 3), (int)rng_below(r, 2)},
        .want_logits = (int)rng_below(r, 2),
        .ignore_eos = (int)rng_below(r, 2),
    };

    if (rng_below(r, 2)) {
        in.prompt = some_text(r, arena, 60);
        in.prompt_bytes = strlen(in.prompt);
    } else {
        in.n_tokens = 1 + (uint32_t)rng_below(r, 50);
        in.token = some_bytes(r, arena, in.n_tokens * sizeof(*in.token));
    }
    return sy_wire_generate_request_encode(out, &in, NULL);
}

static inline sy_status make_generate_reply(sy_frame *out, rng *r, sy_arena *arena)
{
    const char *const policy[] = {"experts_per_token=2", "drop"};
    sy_generate_reply in = {.is_finish = (int)rng_below(r, 2)};
    sy_token_logprob top[12];

    in.delta.n_tokens = (uint32_t)rng_below(r, 5);
    in.delta.token = some_bytes(r, arena, in.delta.n_tokens * sizeof(*in.delta.token));
    in.delta.text = some_text(r, arena, 20);
    in.delta.text_bytes = strlen(in.delta.text);
    in.delta.n_logprobs = rng_below(r, 2) ? in.delta.n_tokens : 0;
    in.delta.logprob = some_floats(r, arena, in.delta.n_logprobs);
    in.delta.n_top = in.delta.n_tokens * (uint32_t)rng_below(r, 4);
    for (uint32_t i = 0; i < in.delta.n_top; i++) {
        top[i] = (sy_token_logprob){(uint32_t)rng_next(r), -(float)rng_below(r, 9)};
    }
    in.delta.top = top;
    if (in.delta.n_tokens > 0 && rng_below(r, 2))
        in.delta.logits = some_rows(r, arena, in.delta.n_tokens);
    in.finish = (sy_finish){
        .reason = (sy_finish_reason)rng_below(r, 3),
        .prompt_tokens = (uint32_t)rng_below(r, 1000),
        .generated_tokens = (uint32_t)rng_below(r, 1000),
        .queue_ms = (double)rng_below(r, 100) / 8,
        .total_ms = (double)rng_below(r, 100) / 8,
        .combine_ms = (double)rng_below(r, 100) / 8,
        .placement_hash = rng_next(r),
        .n_policies = (uint32_t)rng_below(r, 3),
        .policy = policy,
        .degraded_rows = (uint32_t)rng_below(r, 5),
    };
    return sy_wire_generate_reply_encode(out, &in, NULL);
}

static inline sy_status make_forward_request(sy_frame *out, rng *r, sy_arena *arena)
{
    const sy_forward_request in = {
        .id = rng_next(r),
        .model = some_text(r, arena, 20),
        .layer = (uint32_t)rng_below(r, 100),
        .policy = {(uint32_t)rng_below(r, 3), (int)rng_below(r, 2)},
        .want_routing = (int)rng_below(r, 2),
        .hidden = some_rows(r, arena, 1 + (uint32_t)rng_below(r, 6)),
    };
    return sy_wire_forward_request_encode(out, &in, NULL);
}

static inline sy_status make_forward_reply(sy_frame *out, rng *r, sy_arena *arena)
{
    const char *const policy[] = {"degraded", "experts_per_token=2"};
    sy_forward_reply in = {
        .id = rng_next(r),
        .status = maybe_error(r, arena),
        .placement_hash = rng_next(r),
        .n_policies = (uint32_t)rng_below(r, 3),
        .policy = policy,
        .degraded_rows = (uint32_t)rng_below(r, 5),
    };

    in.output = some_rows(r, arena, 1 + (uint32_t)rng_below(r, 6));
    if (rng_below(r, 2)) {
        in.slots = 1 + (uint32_t)rng_below(r, 4);
        in.n_tokens = in.output.rows;
        in.expert = some_bytes(r, arena, (size_t)in.slots * in.n_tokens * sizeof(*in.expert));
        in.weight = some_floats(r, arena, (size_t)in.slots * in.n_tokens);
    }
    return sy_wire_forward_reply_encode(out, &in, NULL);
}

static inline sy_status make_model_query(sy_frame *out, rng *r, sy_arena *arena)
{
    const sy_model_query in = {some_text(r, arena, 30)};

    return sy_wire_model_query_encode(out, &in, NULL);
}

static inline sy_model_info some_model(rng *r, sy_arena *arena)
{
    return (sy_model_info){
        .name = some_text(r, arena, 20),
        .family = some_text(r, arena, 10),
        .architecture = some_text(r, arena, 20),
        .not_ready_reason = some_text(r, arena, 40),
        .layers = (uint32_t)rng_below(r, 100),
        .hidden = (uint32_t)rng_below(r, 8192),
        .experts = 10 + (uint32_t)rng_below(r, 100),
        .top_k = (uint32_t)rng_below(r, 10),
        .expert_ffn = (uint32_t)rng_below(r, 8192),
        .vocab = (uint32_t)rng_next(r),
        .context = (uint32_t)rng_next(r),
        .ready = (int)rng_below(r, 2),
        .placement_hash = rng_next(r),
        .structure_hash = rng_next(r),
        .placement_epoch = rng_next(r),
        .moe_layers = some_text(r, arena, 30),
    };
}

static inline sy_status make_model_description(sy_frame *out, rng *r, sy_arena *arena)
{
    const sy_model_info in = some_model(r, arena);

    return sy_wire_model_description_encode(out, &in, NULL);
}

static inline sy_status make_model_list(sy_frame *out, rng *r, sy_arena *arena)
{
    sy_model_info model[4];
    const sy_model_list in = {(uint32_t)rng_below(r, 5), model};

    for (uint32_t i = 0; i < in.n_models; i++) model[i] = some_model(r, arena);
    return sy_wire_model_list_encode(out, &in, NULL);
}

#define AGAIN(name, type)                                                                   \
    static inline sy_status again_##name(sy_frame *out, sy_arena *arena, const sy_iov *iov, \
                                         size_t n, sy_error *err)                           \
    {                                                                                       \
        type value;                                                                         \
        const sy_status st = sy_wire_##name##_decode(&value, arena, iov, n, err);           \
                                                                                            \
        sy_frame_init(out);                                                                 \
        return st != SY_OK ? st : sy_wire_##name##_encode(out, &value, NULL);               \
    }
AGAIN(route_request, sy_route_request)
AGAIN(route_reply, sy_route_reply)
AGAIN(compute_request, sy_compute_request)
AGAIN(compute_reply, sy_compute_reply)
AGAIN(node_state, sy_node_state)
AGAIN(fetch_request, sy_fetch_request)
AGAIN(shard_chunk, sy_shard_chunk)
AGAIN(generate_request, sy_generate_request)
AGAIN(generate_reply, sy_generate_reply)
AGAIN(forward_request, sy_forward_request)
AGAIN(forward_reply, sy_forward_reply)
AGAIN(model_query, sy_model_query)
AGAIN(model_description, sy_model_info)
AGAIN(model_list, sy_model_list)

typedef struct wire_kind {
    const char *name;
    const ProtobufCMessageDescriptor *desc;
    sy_status (*make)(sy_frame *out, rng *r, sy_arena *arena);
    sy_status (*again)(sy_frame *out, sy_arena *arena, const sy_iov *iov, size_t n, sy_error *err);
} wire_kind;

#define KIND(name, message)                                                        \
    {                                                                              \
#name, &switchyard__v1__##message##__descriptor, make_##name, again_##name \
    }
static const wire_kind wire_kinds[] = {
    KIND(route_request, route_request),
    KIND(route_reply, route_reply),
    KIND(compute_request, compute_request),
    KIND(compute_reply, compute_reply),
    KIND(node_state, node_state),
    KIND(fetch_request, fetch_shard_request),
    KIND(shard_chunk, shard_chunk),
    KIND(generate_request, generate_request),
    KIND(generate_reply, generate_reply),
    KIND(forward_request, forward_request),
    KIND(forward_reply, forward_reply),
    KIND(model_query, describe_model_request),
    KIND(model_description, model_description),
    KIND(model_list, list_models_reply),
};

static inline const wire_kind *kind_named(const char *name)
{
    for (size_t k = 0; k < SY_COUNT_OF(wire_kinds); k++) {
        if (strcmp(wire_kinds[k].name, name) == 0) return &wire_kinds[k];
    }
    fail_msg("no kind %s", name);
    return NULL;
}

static inline bytes some_message(const wire_kind *kind, rng *r)
{
    sy_arena arena;
    sy_frame frame;
    bytes b;

    sy_arena_init(&arena, ARENA_BYTES);
    assert_int_equal(kind->make(&frame, r, &arena), SY_OK);
    b = bytes_of_frame(&frame);
    sy_arena_free(&arena);
    return b;
}

#endif
