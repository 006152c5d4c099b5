/* test_wire_fields.c - each field of each message stands where the .proto files say: protobuf-c's
 * structs against ours, both ways. */
#include "wire_packed.h"

static uint16_t halves[] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0};
static float floats[] = {0.25f, 0.5f, 0.75f, 1.0f};
static uint16_t experts[] = {3, 0xffff, 7, 9};

static Switchyard__V1__Rows two_by_three(void)
{
    Switchyard__V1__Rows rows;

    switchyard__v1__rows__init(&rows);
    rows.dtype = SWITCHYARD__V1__DTYPE__BF16;
    rows.rows = 2;
    rows.cols = 3;
    rows.data = (ProtobufCBinaryData)WHOLE(halves);
    return rows;
}

static void is_two_by_three(const sy_rows *rows)
{
    assert_int_equal(rows->dtype, SY_BF16);
    assert_int_equal(rows->rows, 2);
    assert_int_equal(rows->cols, 3);
    assert_int_equal(sy_rows_bytes(rows), 12);
    assert_true(is_aligned(rows->data));
    assert_memory_equal(rows->data, halves, sizeof(halves));
}

static Switchyard__V1__Status unreachable(void)
{
    Switchyard__V1__Status status;

    switchyard__v1__status__init(&status);
    status.code = 14;
    status.message = text("node-2 is gone");
    status.reason = text("EXPERT_UNREACHABLE");
    status.layer_given_case = SWITCHYARD__V1__STATUS__LAYER_GIVEN_LAYER;
    status.layer = 0;
    status.expert_given_case = SWITCHYARD__V1__STATUS__EXPERT_GIVEN_EXPERT;
    status.expert = 17;
    status.node = text("node-2");
    return status;
}

static void is_unreachable(const sy_error *err)
{
    assert_int_equal(err->status, SY_EUNAVAILABLE);
    assert_string_equal(err->message, "node-2 is gone");
    assert_string_equal(err->reason, "EXPERT_UNREACHABLE");
    assert_string_equal(err->node, "node-2");
    assert_int_equal(err->layer, 0);
    assert_int_equal(err->expert, 17);
}

static void route_request(void **state)
{
    Switchyard__V1__RouteRequest msg;
    Switchyard__V1__RoutePolicy policy;
    Switchyard__V1__Rows rows = two_by_three();
    sy_route_request out;
    sy_frame frame;
    sy_iov sent;

    switchyard__v1__route_request__init(&msg);
    switchyard__v1__route_policy__init(&policy);
    (void)state;
    msg.id = UINT64_MAX;
    msg.model = text("tiny");
    msg.layer = 5;
    msg.policy = &policy;
    policy.experts_per_token = 2;
    policy.degraded = 1;
    msg.hidden = &rows;
    sent = packed(&msg.base);
    assert_int_equal(sy_wire_route_request_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_true(out.id == UINT64_MAX);
    assert_string_equal(out.model, "tiny");
    assert_int_equal(out.layer, 5);
    assert_int_equal(out.policy.experts_per_token, 2);
    assert_int_equal(out.policy.degraded, 1);
    is_two_by_three(&out.hidden);
    assert_int_equal(sy_wire_route_request_encode(&frame, &out, NULL), SY_OK);
    frame_equals(&frame, sent);
}

static void route_request_fields_of_others_are_read_over(void **state)
{
    Switchyard__V1__RouteRequest msg;
    Switchyard__V1__Rows rows = two_by_three();
    sy_route_request out;
    sy_iov sent;

    switchyard__v1__route_request__init(&msg);
    (void)state;
    msg.expert_load = floats;
    msg.n_expert_load = SY_COUNT_OF(floats);
    msg.context_tokens = 8;
    msg.hidden = &rows;
    sent = packed(&msg.base);
    assert_int_equal(sy_wire_route_request_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_string_equal(out.model, "");
    assert_int_equal(out.policy.experts_per_token, 0);
    is_two_by_three(&out.hidden);
}

static void route_reply(void **state)
{
    Switchyard__V1__RouteReply msg;
    Switchyard__V1__RouteStats stats;
    Switchyard__V1__Status status = unreachable();
    sy_route_reply out;
    sy_frame frame;
    sy_iov sent;

    switchyard__v1__route_reply__init(&msg);
    switchyard__v1__route_stats__init(&stats);
    (void)state;
    msg.id = 77;
    msg.slots = 2;
    msg.expert = (ProtobufCBinaryData)WHOLE(experts);
    msg.weight = (ProtobufCBinaryData)WHOLE(floats);
    msg.stats = &stats;
    stats.queue_us = 11;
    stats.compute_us = 22;
    msg.status = &status;
    sent = packed(&msg.base);
    assert_int_equal(sy_wire_route_reply_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_true(out.id == 77);
    assert_int_equal(out.slots, 2);
    assert_int_equal(out.n_tokens, 2);
    assert_true(is_aligned(out.expert) && is_aligned(out.weight));
    assert_memory_equal(out.expert, experts, sizeof(experts));
    assert_memory_equal(out.weight, floats, sizeof(floats));
    assert_int_equal(out.queue_us, 11);
    assert_int_equal(out.compute_us, 22);
    is_unreachable(&out.status);
    assert_int_equal(sy_wire_route_reply_encode(&frame, &out, NULL), SY_OK);
    frame_equals(&frame, sent);
}

static void compute_request(void **state)
{
    Switchyard__V1__ComputeRequest msg;
    Switchyard__V1__Rows rows = two_by_three();
    uint16_t expert[] = {0, 65534};
    uint32_t group_end[] = {1, 4};
    uint32_t row[] = {1, 0, 1, 1};
    sy_compute_request out;
    sy_frame frame;
    sy_iov sent;

    switchyard__v1__compute_request__init(&msg);
    (void)state;
    msg.id = 1;
    msg.model = text("m");
    msg.layer = 2;
    msg.expert = (ProtobufCBinaryData)WHOLE(expert);
    msg.group_end = (ProtobufCBinaryData)WHOLE(group_end);
    msg.row = (ProtobufCBinaryData)WHOLE(row);
    msg.weight = (ProtobufCBinaryData)WHOLE(floats);
    msg.combine = SWITCHYARD__V1__COMBINE__PARTIAL;
    msg.output_dtype = SWITCHYARD__V1__DTYPE__BF16;
    msg.hidden = &rows;
    sent = packed(&msg.base);
    assert_int_equal(sy_wire_compute_request_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_true(out.id == 1);
    assert_string_equal(out.model, "m");
    assert_int_equal(out.layer, 2);
    assert_int_equal(out.partial, 1);
    assert_int_equal(out.output_dtype, SY_BF16);
    assert_int_equal(out.n_groups, 2);
    assert_int_equal(out.n_assign, 4);
    assert_true(is_aligned(out.expert) && is_aligned(out.group_end) && is_aligned(out.row) &&
                is_aligned(out.weight));
    assert_memory_equal(out.expert, expert, sizeof(expert));
    assert_memory_equal(out.group_end, group_end, sizeof(group_end));
    assert_memory_equal(out.row, row, sizeof(row));
    assert_memory_equal(out.weight, floats, sizeof(floats));
    is_two_by_three(&out.hidden);
    assert_int_equal(sy_wire_compute_request_encode(&frame, &out, NULL), SY_OK);
    frame_equals(&frame, sent);
}

/* f32 is sent as the absence that nodes have always known. */
static void outputs_are_floats_unless_bf16_is_asked_for(void **state)
{
    Switchyard__V1__ComputeRequest msg;
    Switchyard__V1__Rows rows = two_by_three();
    uint16_t expert[] = {7};
    uint32_t group_end[] = {1}, row[] = {1};
    sy_compute_request out;
    sy_frame frame;
    sy_iov sent;

    switchyard__v1__compute_request__init(&msg);
    (void)state;
    msg.expert = (ProtobufCBinaryData)WHOLE(expert);
    msg.group_end = (ProtobufCBinaryData)WHOLE(group_end);
    msg.row = (ProtobufCBinaryData)WHOLE(row);
    msg.hidden = &rows;
    msg.output_dtype = SWITCHYARD__V1__DTYPE__F32;
    sent = packed(&msg.base);
    assert_int_equal(sy_wire_compute_request_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_int_equal(out.output_dtype, SY_F32);
    msg.output_dtype = SWITCHYARD__V1__DTYPE__DTYPE_UNSPECIFIED;
    sent = packed(&msg.base);
    assert_int_equal(sy_wire_compute_request_encode(&frame, &out, NULL), SY_OK);
    frame_equals(&frame, sent);
    assert_int_equal(sy_wire_compute_request_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_int_equal(out.output_dtype, SY_F32);
}

static void compute_reply(void **state)
{
    Switchyard__V1__ComputeReply msg;
    Switchyard__V1__Timing timing;
    Switchyard__V1__ShardFault fault;
    Switchyard__V1__ShardFault *faults[] = {&fault};
    Switchyard__V1__Status status = unreachable();
    Switchyard__V1__Rows rows = two_by_three();
    sy_compute_reply out;
    sy_frame frame;
    sy_iov sent;

    switchyard__v1__compute_reply__init(&msg);
    switchyard__v1__timing__init(&timing);
    switchyard__v1__shard_fault__init(&fault);
    (void)state;
    msg.id = 300;
    msg.status = &status;
    msg.n_fault = 1;
    msg.fault = faults;
    fault.expert = 9;
    fault.status = &status;
    msg.timing = &timing;
    timing.queue_us = 1;
    timing.compute_us = 2;
    timing.batched_requests = 3;
    msg.output = &rows;
    sent = packed(&msg.base);
    assert_int_equal(sy_wire_compute_reply_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_true(out.id == 300);
    is_unreachable(&out.status);
    assert_int_equal(out.n_faults, 1);
    assert_int_equal(out.fault[0].expert, 9);
    is_unreachable(&out.fault[0].status);
    assert_int_equal(out.queue_us, 1);
    assert_int_equal(out.compute_us, 2);
    assert_int_equal(out.batched_requests, 3);
    is_two_by_three(&out.output);
    assert_int_equal(sy_wire_compute_reply_encode(&frame, &out, NULL), SY_OK);
    frame_equals(&frame, sent);
}

static void an_empty_reply_is_ok_and_has_no_rows(void **state)
{
    sy_compute_reply out;

    (void)state;
    assert_int_equal(sy_wire_compute_reply_decode(&out, &arena, NULL, 0, NULL), SY_OK);
    assert_int_equal(out.status.status, SY_OK);
    assert_int_equal(out.status.layer, -1);
    assert_int_equal(out.status.expert, -1);
    assert_int_equal(out.n_faults, 0);
    assert_int_equal(out.output.dtype, SY_DTYPE_NONE);
    assert_int_equal(out.output.rows, 0);
}

/* An aggregator sends such messages to learn whether somebody answers. */
static void a_refused_request_still_has_its_id(void **state)
{
    Switchyard__V1__ComputeRequest compute;
    Switchyard__V1__RouteRequest route;
    sy_compute_request compute_out;
    sy_route_request route_out;
    sy_error err;
    sy_iov sent;

    switchyard__v1__compute_request__init(&compute);
    switchyard__v1__route_request__init(&route);
    (void)state;
    compute.id = 300;
    sent = packed(&compute.base);
    assert_int_equal(sy_wire_compute_request_decode(&compute_out, &arena, &sent, 1, &err),
                     SY_EINVAL);
    assert_int_equal(compute_out.id, 300);
    assert_int_equal(sy_wire_peek_id(&sent, 1), 300);
    assert_string_equal(err.message, "hidden: absent");
    route.id = UINT64_MAX;
    sent = packed(&route.base);
    assert_int_equal(sy_wire_route_request_decode(&route_out, &arena, &sent, 1, &err), SY_EINVAL);
    assert_true(route_out.id == UINT64_MAX);
    assert_true(sy_wire_peek_id(&sent, 1) == UINT64_MAX);
    assert_string_equal(err.message, "hidden: absent");
}

static void generate_request(void **state)
{
    Switchyard__V1__GenerateRequest msg;
    Switchyard__V1__Sampling sampling;
    char *stop[] = {text("END"), (char *)(uintptr_t) "\n\n"};
    sy_generate_request out;
    sy_frame frame;
    sy_iov sent;

    switchyard__v1__generate_request__init(&msg);
    switchyard__v1__sampling__init(&sampling);
    (void)state;
    msg.input_case = SWITCHYARD__V1__GENERATE_REQUEST__INPUT_PROMPT;
    msg.prompt = text("Once upon");
    msg.model = text("tiny");
    msg.max_tokens = 16;
    msg.sampling = &sampling;
    sampling.temperature_given_case = SWITCHYARD__V1__SAMPLING__TEMPERATURE_GIVEN_TEMPERATURE;
    sampling.temperature = 0.5f;
    sampling.top_k_given_case = SWITCHYARD__V1__SAMPLING__TOP_K_GIVEN_TOP_K;
    sampling.top_k = 40;
    sampling.top_p_given_case = SWITCHYARD__V1__SAMPLING__TOP_P_GIVEN_TOP_P;
    sampling.top_p = 0.75f;
    sampling.min_p_given_case = SWITCHYARD__V1__SAMPLING__MIN_P_GIVEN_MIN_P;
    sampling.min_p = 0.125f;
    sampling.repetition_penalty_given_case =
        SWITCHYARD__V1__SAMPLING__REPETITION_PENALTY_GIVEN_REPETITION_PENALTY;
    sampling.repetition_penalty = 1.25f;
    msg.n_stop = 2;
    msg.stop = stop;
    msg.seed = 99;
    msg.logprobs = 1;
    msg.top_logprobs = 3;
    msg.want_logits = 1;
    msg.ignore_eos = 1;
    sent = packed(&msg.base);
    assert_int_equal(sy_wire_generate_request_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_string_equal(out.prompt, "Once upon");
    assert_int_equal(out.prompt_bytes, 9);
    assert_null(out.token);
    assert_int_equal(out.max_tokens, 16);
    assert_true(out.sampling.temperature == 0.5f);
    assert_int_equal(out.sampling.top_k, 40);
    assert_true(out.sampling.top_p == 0.75f);
    assert_true(out.sampling.min_p == 0.125f);
    assert_true(out.sampling.repetition_penalty == 1.25f);
    assert_int_equal(out.n_stops, 2);
    assert_string_equal(out.stop[1], "\n\n");
    assert_int_equal(out.seed, 99);
    assert_int_equal(out.logprobs, 1);
    assert_int_equal(out.top_logprobs, 3);
    assert_int_equal(out.want_logits, 1);
    assert_int_equal(out.ignore_eos, 1);
    assert_int_equal(sy_wire_generate_request_encode(&frame, &out, NULL), SY_OK);
    frame_equals(&frame, sent);
}

static void sampling_is_greedy_unless_asked(void **state)
{
    Switchyard__V1__GenerateRequest msg;
    Switchyard__V1__TokenIds tokens;
    Switchyard__V1__Sampling sampling;
    uint32_t id[] = {1, 2, UINT32_MAX};
    sy_generate_request out;
    sy_iov sent;

    switchyard__v1__generate_request__init(&msg);
    switchyard__v1__token_ids__init(&tokens);
    switchyard__v1__sampling__init(&sampling);
    (void)state;
    msg.input_case = SWITCHYARD__V1__GENERATE_REQUEST__INPUT_TOKENS;
    msg.tokens = &tokens;
    tokens.n_id = 3;
    tokens.id = id;
    for (int given = 0; given < 2; given++) {
        msg.sampling = given ? &sampling : NULL;
        sent = packed(&msg.base);
        assert_int_equal(sy_wire_generate_request_decode(&out, &arena, &sent, 1, NULL), SY_OK);
        assert_null(out.prompt);
        assert_int_equal(out.n_tokens, 3);
        assert_memory_equal(out.token, id, sizeof(id));
        assert_true(is_aligned(out.token));
        assert_true(out.sampling.temperature == 0);
        assert_int_equal(out.sampling.top_k, 0);
        assert_true(out.sampling.top_p == 1);
        assert_true(out.sampling.min_p == 0);
        assert_true(out.sampling.repetition_penalty == 1);
    }
}

static void a_prompt_keeps_its_nul_bytes(void **state)
{
    static const char prompt[] = "before\0after\xff\0";
    const sy_generate_request in = {.model = "m",
                                    .prompt = prompt,
                                    .prompt_bytes = sizeof(prompt),
                                    .max_tokens = 9,
                                    .sampling = {0, 0, 1, 0, 1}};
    sy_generate_request out;
    sy_frame frame;
    sy_iov iov;
    bytes b;

    (void)state;
    assert_int_equal(sy_wire_generate_request_encode(&frame, &in, NULL), SY_OK);
    b = bytes_of_frame(&frame);
    iov = (sy_iov){b.data, b.len};
    assert_int_equal(sy_wire_generate_request_decode(&out, &arena, &iov, 1, NULL), SY_OK);
    assert_int_equal(out.prompt_bytes, sizeof(prompt));
    assert_memory_equal(out.prompt, prompt, sizeof(prompt));
    assert_int_equal(out.max_tokens, 9);
    free(b.data);
}

static void delta(void **state)
{
    Switchyard__V1__GenerateReply msg;
    Switchyard__V1__Delta inner;
    Switchyard__V1__TokenLogprob top[4];
    Switchyard__V1__TokenLogprob *tops[4];
    Switchyard__V1__Rows rows = two_by_three();
    uint32_t token[] = {300, 70000};
    sy_generate_reply out;
    sy_frame frame;
    sy_iov sent;

    switchyard__v1__generate_reply__init(&msg);
    switchyard__v1__delta__init(&inner);
    (void)state;
    msg.event_case = SWITCHYARD__V1__GENERATE_REPLY__EVENT_DELTA;
    msg.delta = &inner;
    inner.n_token = 2;
    inner.token = token;
    inner.text = text(" two");
    inner.n_logprob = 2;
    inner.logprob = floats;
    inner.n_top_logprob = 4;
    inner.top_logprob = tops;
    for (uint32_t i = 0; i < 4; i++) {
        switchyard__v1__token_logprob__init(&top[i]);
        top[i].token = i;
        top[i].logprob = -(float)i;
        tops[i] = &top[i];
    }
    inner.logits = &rows;
    sent = packed(&msg.base);
    assert_int_equal(sy_wire_generate_reply_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_int_equal(out.is_finish, 0);
    assert_int_equal(out.delta.n_tokens, 2);
    assert_memory_equal(out.delta.token, token, sizeof(token));
    assert_int_equal(out.delta.text_bytes, 4);
    assert_memory_equal(out.delta.text, " two", 4);
    assert_int_equal(out.delta.n_logprobs, 2);
    assert_memory_equal(out.delta.logprob, floats, 2 * sizeof(float));
    assert_int_equal(out.delta.n_top, 4);
    assert_int_equal(out.delta.top[3].token, 3);
    assert_true(out.delta.top[3].logprob == -3);
    is_two_by_three(&out.delta.logits);
    assert_int_equal(sy_wire_generate_reply_encode(&frame, &out, NULL), SY_OK);
    frame_equals(&frame, sent);
}

static void the_text_of_a_delta_keeps_its_nul_bytes(void **state)
{
    char nuls[200] = "\0\0x";
    sy_generate_reply in = {.delta = {.text = nuls, .text_bytes = sizeof(nuls)}};
    sy_generate_reply out;
    sy_frame frame;
    sy_iov iov;
    bytes b;

    (void)state;
    assert_int_equal(sy_wire_generate_reply_encode(&frame, &in, NULL), SY_OK);
    b = bytes_of_frame(&frame);
    iov = (sy_iov){b.data, b.len};
    assert_int_equal(sy_wire_generate_reply_decode(&out, &arena, &iov, 1, NULL), SY_OK);
    assert_int_equal(out.delta.text_bytes, sizeof(nuls));
    assert_memory_equal(out.delta.text, nuls, sizeof(nuls));
    free(b.data);
}

static void finish(void **state)
{
    Switchyard__V1__GenerateReply msg;
    Switchyard__V1__Finish inner;
    Switchyard__V1__Usage usage;
    Switchyard__V1__GenerateTiming timing;
    char *policies[] = {text("experts_per_token=1")};
    sy_generate_reply out;
    sy_frame frame;
    sy_iov sent;

    switchyard__v1__generate_reply__init(&msg);
    switchyard__v1__finish__init(&inner);
    switchyard__v1__usage__init(&usage);
    switchyard__v1__generate_timing__init(&timing);
    (void)state;
    msg.event_case = SWITCHYARD__V1__GENERATE_REPLY__EVENT_FINISH;
    msg.finish = &inner;
    inner.reason = SWITCHYARD__V1__FINISH_REASON__LENGTH;
    inner.usage = &usage;
    inner.timing = &timing;
    inner.placement_hash = 1;
    inner.n_policies = 1;
    inner.policies = policies;
    inner.degraded_rows = 12;
    usage.prompt_tokens = 2;
    usage.generated_tokens = 3;
    timing.queue_ms = 4;
    timing.first_token_ms = 5;
    timing.total_ms = 6;
    timing.decode_tokens_per_s = 7;
    timing.route_ms = 8;
    timing.dispatch_ms = 9;
    timing.compute_ms = 10;
    timing.combine_ms = 11;
    sent = packed(&msg.base);
    assert_int_equal(sy_wire_generate_reply_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_int_equal(out.is_finish, 1);
    assert_int_equal(out.finish.reason, SY_FINISH_LENGTH);
    assert_int_equal(out.finish.placement_hash, 1);
    assert_int_equal(out.finish.prompt_tokens, 2);
    assert_int_equal(out.finish.generated_tokens, 3);
    assert_true(out.finish.queue_ms == 4 && out.finish.first_token_ms == 5 &&
                out.finish.total_ms == 6);
    assert_true(out.finish.decode_tokens_per_s == 7 && out.finish.route_ms == 8);
    assert_true(out.finish.dispatch_ms == 9 && out.finish.compute_ms == 10 &&
                out.finish.combine_ms == 11);
    assert_int_equal(out.finish.n_policies, 1);
    assert_string_equal(out.finish.policy[0], "experts_per_token=1");
    assert_int_equal(out.finish.degraded_rows, 12);
    assert_int_equal(sy_wire_generate_reply_encode(&frame, &out, NULL), SY_OK);
    frame_equals(&frame, sent);
}

static void forward_both_ways(void **state)
{
    Switchyard__V1__ForwardRequest request;
    Switchyard__V1__ForwardReply reply;
    Switchyard__V1__Status status = unreachable();
    Switchyard__V1__Rows rows = two_by_three();
    char *policies[] = {text("degraded")};
    sy_forward_request req;
    sy_forward_reply rep;
    sy_frame frame;
    sy_iov sent;

    switchyard__v1__forward_request__init(&request);
    switchyard__v1__forward_reply__init(&reply);
    (void)state;
    request.id = 4;
    request.model = text("m");
    request.layer = 1;
    request.want_routing = 1;
    request.hidden = &rows;
    sent = packed(&request.base);
    assert_int_equal(sy_wire_forward_request_decode(&req, &arena, &sent, 1, NULL), SY_OK);
    assert_true(req.id == 4 && req.layer == 1 && req.want_routing == 1);
    assert_string_equal(req.model, "m");
    is_two_by_three(&req.hidden);
    assert_int_equal(sy_wire_forward_request_encode(&frame, &req, NULL), SY_OK);
    frame_equals(&frame, sent);

    reply.id = 5;
    reply.status = &status;
    reply.slots = 2;
    reply.expert = (ProtobufCBinaryData)WHOLE(experts);
    reply.weight = (ProtobufCBinaryData)WHOLE(floats);
    reply.placement_hash = 6;
    reply.n_policies = 1;
    reply.policies = policies;
    reply.degraded_rows = 7;
    reply.output = &rows;
    sent = packed(&reply.base);
    assert_int_equal(sy_wire_forward_reply_decode(&rep, &arena, &sent, 1, NULL), SY_OK);
    assert_true(rep.id == 5 && rep.slots == 2 && rep.n_tokens == 2 && rep.placement_hash == 6);
    is_unreachable(&rep.status);
    assert_memory_equal(rep.expert, experts, sizeof(experts));
    assert_memory_equal(rep.weight, floats, sizeof(floats));
    assert_int_equal(rep.n_policies, 1);
    assert_string_equal(rep.policy[0], "degraded");
    assert_int_equal(rep.degraded_rows, 7);
    is_two_by_three(&rep.output);
    assert_int_equal(sy_wire_forward_reply_encode(&frame, &rep, NULL), SY_OK);
    frame_equals(&frame, sent);
}

static void models(void **state)
{
    Switchyard__V1__ListModelsReply list;
    Switchyard__V1__Model model;
    Switchyard__V1__Model *list_of_one[] = {&model};
    Switchyard__V1__ModelDescription description;
    sy_model_list out;
    sy_model_info info;
    sy_iov sent;

    switchyard__v1__list_models_reply__init(&list);
    switchyard__v1__model__init(&model);
    switchyard__v1__model_description__init(&description);
    (void)state;
    list.n_model = 1;
    list.model = list_of_one;
    model.name = text("n");
    model.family = text("f");
    model.layers = 1;
    model.hidden = 2;
    model.experts = 30;
    model.top_k = 4;
    model.vocab = 5;
    model.context = 6;
    model.ready = 1;
    model.not_ready_reason = text("why");
    model.placement_hash = 7;
    model.structure_hash = 8;
    model.placement_epoch = 9;
    model.moe_layers = text("3-60");
    sent = packed(&list.base);
    assert_int_equal(sy_wire_model_list_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_int_equal(out.n_models, 1);
    info = out.model[0];
    assert_string_equal(info.name, "n");
    assert_string_equal(info.family, "f");
    assert_string_equal(info.architecture, "");
    assert_string_equal(info.not_ready_reason, "why");
    assert_string_equal(info.moe_layers, "3-60");
    assert_true(info.layers == 1 && info.hidden == 2 && info.experts == 30 && info.top_k == 4);
    assert_true(info.vocab == 5 && info.context == 6 && info.ready == 1);
    assert_true(info.placement_hash == 7 && info.structure_hash == 8 && info.placement_epoch == 9);

    description.architecture = text("a");
    description.expert_ffn = 10;
    description.structure_hash = 11;
    description.moe_layers = text("1,3");
    sent = packed(&description.base);
    assert_int_equal(sy_wire_model_description_decode(&info, &arena, &sent, 1, NULL), SY_OK);
    assert_string_equal(info.architecture, "a");
    assert_int_equal(info.expert_ffn, 10);
    assert_int_equal(info.structure_hash, 11);
    assert_string_equal(info.moe_layers, "1,3");
}

static void a_query_may_be_meant_for_either_service(void **state)
{
    Switchyard__V1__WatchRequest watch;
    sy_model_query out;
    sy_frame frame;
    sy_iov sent;

    switchyard__v1__watch_request__init(&watch);
    (void)state;
    watch.model = text("tiny");
    sent = packed(&watch.base);
    assert_int_equal(sy_wire_model_query_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_string_equal(out.model, "tiny");
    assert_int_equal(sy_wire_model_query_encode(&frame, &(sy_model_query){NULL}, NULL), SY_OK);
    assert_int_equal(frame.n_pieces, 0);
    sy_frame_free(&frame);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(route_request),
        cmocka_unit_test(route_request_fields_of_others_are_read_over),
        cmocka_unit_test(route_reply),
        cmocka_unit_test(compute_request),
        cmocka_unit_test(outputs_are_floats_unless_bf16_is_asked_for),
        cmocka_unit_test(compute_reply),
        cmocka_unit_test(an_empty_reply_is_ok_and_has_no_rows),
        cmocka_unit_test(a_refused_request_still_has_its_id),
        cmocka_unit_test(generate_request),
        cmocka_unit_test(sampling_is_greedy_unless_asked),
        cmocka_unit_test(a_prompt_keeps_its_nul_bytes),
        cmocka_unit_test(delta),
        cmocka_unit_test(the_text_of_a_delta_keeps_its_nul_bytes),
        cmocka_unit_test(finish),
        cmocka_unit_test(forward_both_ways),
        cmocka_unit_test(models),
        cmocka_unit_test(a_query_may_be_meant_for_either_service),
    };

    return cmocka_run_group_tests(tests, arena_open, arena_close);
}
