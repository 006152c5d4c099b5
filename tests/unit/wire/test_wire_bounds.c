/* test_wire_bounds.c - every bound on what a peer may send, with the text that names the field.
 * Messages are built by protobuf-c, so that nothing of ours stands between the mistake and the
 * decoder. */
#include <math.h>

#include "wire_refuse.h"

static uint8_t zeros[1024];

static Switchyard__V1__Rows four_by_eight(void)
{
    Switchyard__V1__Rows rows;

    switchyard__v1__rows__init(&rows);
    rows.dtype = SWITCHYARD__V1__DTYPE__F32;
    rows.rows = 4;
    rows.cols = 8;
    rows.data = (ProtobufCBinaryData){128, zeros};
    return rows;
}

static void rows_must_have_the_shape_they_claim(void **state)
{
    Switchyard__V1__RouteRequest msg;
    Switchyard__V1__Rows rows = four_by_eight();

    switchyard__v1__route_request__init(&msg);
    (void)state;
    refused("route_request", &msg.base, "hidden: absent");
    msg.hidden = &rows;
    taken("route_request", &msg.base);
    rows.data.len = 100;
    refused("route_request", &msg.base,
            "hidden.data: 100 bytes, but 4 rows x 8 columns of f32 need 128");
    rows.data.len = 0;
    refused("route_request", &msg.base,
            "hidden.data: 0 bytes, but 4 rows x 8 columns of f32 need 128");
    rows.dtype = SWITCHYARD__V1__DTYPE__F16;
    rows.data.len = 128;
    refused("route_request", &msg.base,
            "hidden.data: 128 bytes, but 4 rows x 8 columns of f16 need 64");
    rows.dtype = SWITCHYARD__V1__DTYPE__DTYPE_UNSPECIFIED;
    refused("route_request", &msg.base, "hidden.dtype: 0, must be F32 (1), BF16 (2) or F16 (3)");
    rows.dtype = SWITCHYARD__V1__DTYPE__Q8; /* of weights only */
    refused("route_request", &msg.base, "hidden.dtype: 4, must be");
    rows.dtype = SWITCHYARD__V1__DTYPE__Q4;
    refused("route_request", &msg.base, "hidden.dtype: 5, must be");
    rows.dtype = SWITCHYARD__V1__DTYPE__FP8;
    refused("route_request", &msg.base, "hidden.dtype: 6, must be");
    rows.dtype = SWITCHYARD__V1__DTYPE__MXFP4;
    refused("route_request", &msg.base, "hidden.dtype: 7, must be");
    rows.dtype = (Switchyard__V1__DType)8;
    refused("route_request", &msg.base, "hidden.dtype: 8, must be");
    rows.dtype = (Switchyard__V1__DType)-1;
    refused("route_request", &msg.base, "hidden.dtype: -1, must be");
    rows = four_by_eight();
    rows.rows = 0;
    refused("route_request", &msg.base, "hidden.rows: 0, must be 1 to 1048576");
    rows.rows = (1u << 20) + 1;
    refused("route_request", &msg.base, "hidden.rows: 1048577, must be");
    rows.rows = 4;
    rows.cols = 0;
    refused("route_request", &msg.base, "hidden.cols: 0, must be 1 to 1048576");
    rows.cols = UINT32_MAX;
    refused("route_request", &msg.base, "hidden.cols: 4294967295, must be");
}

/* 2^20 x 2^20 elements are allowed each by each, and their bytes do not wrap around in 32 bits. */
static void rows_of_the_largest_shape_need_their_bytes(void **state)
{
    Switchyard__V1__ForwardRequest msg;
    Switchyard__V1__Rows rows = four_by_eight();

    switchyard__v1__forward_request__init(&msg);
    (void)state;
    msg.hidden = &rows;
    rows.rows = 1u << 20;
    rows.cols = 1u << 20;
    refused("forward_request", &msg.base,
            "hidden.data: 128 bytes, but 1048576 rows x 1048576 columns of f32 need 4398046511104");
    rows.data.len = 0;
    refused("forward_request", &msg.base, "hidden.data: 0 bytes");
}

static void rows_of_a_reply_may_be_absent_but_not_wrong(void **state)
{
    Switchyard__V1__ComputeReply msg;
    Switchyard__V1__Rows rows;

    switchyard__v1__compute_reply__init(&msg);
    switchyard__v1__rows__init(&rows);
    (void)state;
    taken("compute_reply", &msg.base);
    msg.output = &rows;
    taken("compute_reply", &msg.base);
    rows.rows = 1;
    refused("compute_reply", &msg.base, "output.dtype: 0");
    rows = four_by_eight();
    rows.data.len = 127;
    refused("compute_reply", &msg.base, "output.data: 127 bytes");
    rows.dtype = SWITCHYARD__V1__DTYPE__Q8;
    refused("compute_reply", &msg.base, "output.dtype: 4");
}

static void names_are_short_and_clean(void **state)
{
    char long_name[130] = "";
    Switchyard__V1__RouteRequest msg;
    Switchyard__V1__Rows rows = four_by_eight();

    switchyard__v1__route_request__init(&msg);
    (void)state;
    memset(long_name, 'n', 129);
    msg.hidden = &rows;
    msg.model = long_name;
    refused("route_request", &msg.base, "model: 129 bytes, but at most 128 are allowed");
    msg.model = long_name + 1;
    taken("route_request", &msg.base);
    msg.model = text("ab\xc3");
    refused("route_request", &msg.base, "model: not UTF-8 at byte 2");
}

static void names_have_no_nul(void **state)
{
    const sy_iov iov = {"\x0a\x03"
                        "a\0b",
                        5};
    sy_arena arena;
    sy_model_query out;
    sy_error err;

    (void)state;
    sy_arena_init(&arena, ARENA_BYTES);
    assert_int_equal(sy_wire_model_query_decode(&out, &arena, &iov, 1, &err), SY_EINVAL);
    assert_string_equal(err.message, "model: a NUL at byte 1, but text has none");
    sy_arena_free(&arena);
}

static void what_is_no_message_is_said_to_be_none(void **state)
{
    const sy_iov iov = {"\x0a\x05", 2};
    sy_arena arena;
    sy_model_query out;
    sy_error err;

    (void)state;
    sy_arena_init(&arena, ARENA_BYTES);
    assert_int_equal(sy_wire_model_query_decode(&out, &arena, &iov, 1, &err), SY_EINVAL);
    assert_string_equal(err.message,
                        "DescribeModelRequest: these 2 bytes are not such a protobuf message");
    sy_arena_free(&arena);
}

static void slots_of_a_route_reply_agree(void **state)
{
    Switchyard__V1__RouteReply msg;
    uint16_t expert[6] = {0};
    float weight[6] = {0};

    switchyard__v1__route_reply__init(&msg);
    (void)state;
    msg.slots = 2;
    msg.expert = (ProtobufCBinaryData)WHOLE(expert);
    msg.weight = (ProtobufCBinaryData)WHOLE(weight);
    taken("route_reply", &msg.base);
    msg.expert.len = 11;
    refused("route_reply", &msg.base, "expert: 11 bytes, which is no multiple of 2");
    msg.expert.len = 10;
    refused("route_reply", &msg.base, "expert: 5 elements, which is no multiple of the 2 slots");
    msg.expert.len = 8;
    refused("route_reply", &msg.base, "weight: 6 elements, but `expert` has 4");
    msg.expert.len = 12;
    msg.weight.len = 23;
    refused("route_reply", &msg.base, "weight: 23 bytes, which is no multiple of 4");
    msg.weight.len = 24;
    msg.slots = 0;
    refused("route_reply", &msg.base, "expert: 6 elements, which is no multiple of the 0 slots");
    msg.slots = 65536;
    refused("route_reply", &msg.base, "slots: 65536, but a token has at most 65535");
    msg.slots = 2;
    weight[4] = NAN;
    refused("route_reply", &msg.base, "weight: element 4 is");
    weight[4] = -INFINITY;
    refused("route_reply", &msg.base, "weight: element 4 is -inf, which is not finite");
    msg.expert.len = msg.weight.len = 0;
    taken("route_reply", &msg.base);
}

static void a_route_reply_has_a_bounded_number_of_tokens(void **state)
{
    const size_t n = SY_WIRE_ROWS_MAX + 1;
    Switchyard__V1__RouteReply msg;

    switchyard__v1__route_reply__init(&msg);
    (void)state;
    msg.slots = 1;
    msg.expert = (ProtobufCBinaryData){n * 2, calloc(n, 2)};
    msg.weight = (ProtobufCBinaryData){n * 4, calloc(n, 4)};
    assert_true(msg.expert.data != NULL && msg.weight.data != NULL);
    refused("route_reply", &msg.base, "expert: 1048577 tokens, but at most 1048576 are allowed");
    free(msg.expert.data);
    free(msg.weight.data);
}

typedef struct compute_fixture {
    Switchyard__V1__ComputeRequest msg;
    Switchyard__V1__Rows rows;
    uint16_t expert[3];
    uint32_t group_end[3];
    uint32_t row[5];
    float weight[5];
} compute_fixture;

static void compute_reset(compute_fixture *f)
{
    *f = (compute_fixture){
        .rows = four_by_eight(),
        .expert = {1, 5, 9},
        .group_end = {2, 3, 5},
        .row = {0, 3, 1, 2, 3},
    };
    switchyard__v1__compute_request__init(&f->msg);
    f->msg.expert = (ProtobufCBinaryData)WHOLE(f->expert);
    f->msg.group_end = (ProtobufCBinaryData)WHOLE(f->group_end);
    f->msg.row = (ProtobufCBinaryData)WHOLE(f->row);
    f->msg.weight = (ProtobufCBinaryData)WHOLE(f->weight);
    f->msg.hidden = &f->rows;
}

static void compute_refused(compute_fixture *f, const char *why)
{
    refused("compute_request", &f->msg.base, why);
    compute_reset(f);
}

static void groups_ascend_and_cover_all_assignments(void **state)
{
    compute_fixture f;

    (void)state;
    compute_reset(&f);
    taken("compute_request", &f.msg.base);
    f.expert[1] = 1;
    compute_refused(&f, "expert: element 1 is 1, must be above 1 and below 65535");
    f.expert[2] = 4;
    compute_refused(&f, "expert: element 2 is 4, must be above 5");
    f.expert[2] = 65535;
    compute_refused(&f, "expert: element 2 is 65535, must be above 5 and below 65535");
    f.group_end[0] = 0;
    compute_refused(&f, "group_end: element 0 is 0, must be above 0 and at most the 5 of `row`");
    f.group_end[1] = 2;
    compute_refused(&f, "group_end: element 1 is 2, must be above 2");
    f.group_end[2] = 6;
    compute_refused(&f, "group_end: element 2 is 6, must be above 3 and at most the 5 of `row`");
    f.group_end[2] = 4;
    compute_refused(&f, "group_end: the last is 4, but `row` has 5 elements");
    f.msg.group_end.len = 8;
    compute_refused(&f, "group_end: 2 elements, but `expert` has 3");
    f.msg.expert.len = f.msg.group_end.len = f.msg.row.len = 0;
    compute_refused(&f, "expert: empty");
    f.msg.row.len = 0;
    compute_refused(&f, "group_end: element 0 is 2, must be above 0 and at most the 0 of `row`");
    f.msg.expert.len = 5;
    compute_refused(&f, "expert: 5 bytes, which is no multiple of 2");
    f.msg.group_end.len = 11;
    compute_refused(&f, "group_end: 11 bytes, which is no multiple of 4");
    f.msg.row.len = 19;
    compute_refused(&f, "row: 19 bytes, which is no multiple of 4");
}

static void assignments_stay_inside_the_rows(void **state)
{
    compute_fixture f;

    (void)state;
    compute_reset(&f);
    f.row[4] = 4;
    compute_refused(&f, "row: element 4 is 4, must be below the 4 of hidden.rows");
    f.row[0] = UINT32_MAX;
    compute_refused(&f, "row: element 0 is 4294967295, must be below");
    f.msg.weight.len = 16;
    compute_refused(&f, "weight: 4 elements, but `row` has 5");
    f.msg.weight.len = 0;
    taken("compute_request", &f.msg.base);
    f.msg.combine = SWITCHYARD__V1__COMBINE__PARTIAL;
    compute_refused(&f, "weight: 0 elements, but `row` has 5");
    f.weight[2] = INFINITY;
    compute_refused(&f, "weight: element 2 is inf, which is not finite");
    f.msg.combine = (Switchyard__V1__Combine)2;
    compute_refused(&f, "combine: 2, must be EXACT (0) or PARTIAL (1)");
    for (int dtype = -1; dtype <= 8; dtype++) {
        if (dtype >= 0 && dtype <= 2) continue;
        f.msg.output_dtype = (Switchyard__V1__DType)dtype;
        refused("compute_request", &f.msg.base, "output_dtype: ");
    }
    f.msg.output_dtype = SWITCHYARD__V1__DTYPE__F16;
    compute_refused(&f, "output_dtype: 3, must be F32 (1) or BF16 (2)");
    f.msg.hidden = NULL;
    compute_refused(&f, "hidden: absent");
}

static void assignments_are_bounded(void **state)
{
    const uint32_t n = SY_WIRE_ROWS_MAX + 1;
    compute_fixture f;
    uint32_t *row = calloc(n, sizeof(*row));

    (void)state;
    assert_non_null(row);
    compute_reset(&f);
    f.msg.weight.len = 0;
    f.group_end[2] = n;
    f.msg.row = (ProtobufCBinaryData){n * sizeof(*row), (uint8_t *)row};
    compute_refused(&f, "row: 1048577 elements, but at most 1048576 are allowed");
    free(row);
}

static void faults_say_which_and_why(void **state)
{
    Switchyard__V1__ComputeReply msg;
    Switchyard__V1__ShardFault fault[2];
    Switchyard__V1__ShardFault *faults[] = {&fault[0], &fault[1]};
    Switchyard__V1__Status status;

    switchyard__v1__compute_reply__init(&msg);
    switchyard__v1__status__init(&status);
    (void)state;
    msg.n_fault = 2;
    msg.fault = faults;
    status.code = 14;
    for (int i = 0; i < 2; i++) {
        switchyard__v1__shard_fault__init(&fault[i]);
        fault[i].status = &status;
    }
    taken("compute_reply", &msg.base);
    fault[1].expert = 65535;
    refused("compute_reply", &msg.base, "fault[1].expert: 65535, must be below 65535");
    fault[1].expert = 0;
    fault[1].status = NULL;
    refused("compute_reply", &msg.base, "fault[1].status: absent or OK");
    status.node = text("\xff");
    refused("compute_reply", &msg.base, "fault[0].status.node: not UTF-8 at byte 0");
    msg.n_fault = 0;
    msg.status = &status;
    refused("compute_reply", &msg.base, "status.node: not UTF-8 at byte 0");
    status.node = text("");
    status.layer_given_case = SWITCHYARD__V1__STATUS__LAYER_GIVEN_LAYER;
    status.layer = 1u << 31;
    refused("compute_reply", &msg.base, "status.layer: 2147483648, must be below 2147483648");
}

static void long_texts_of_a_status_are_cut(void **state)
{
    Switchyard__V1__RouteReply msg;
    Switchyard__V1__Status status;
    char long_text[3 * 400 + 1];
    uint8_t packed[2000];
    sy_route_reply out;
    sy_arena arena;
    sy_iov iov;

    switchyard__v1__route_reply__init(&msg);
    switchyard__v1__status__init(&status);
    (void)state;
    for (size_t i = 0; i < 400; i++) memcpy(long_text + 3 * i, "\xe2\x82\xac", 4);
    status.code = 1u << 31;
    status.message = long_text;
    msg.status = &status;
    iov = (sy_iov){packed, switchyard__v1__route_reply__pack(&msg, packed)};
    sy_arena_init(&arena, ARENA_BYTES);
    assert_int_equal(sy_wire_route_reply_decode(&out, &arena, &iov, 1, NULL), SY_OK);
    assert_int_equal(out.status.status, SY_EINTERNAL);
    assert_int_equal(strlen(out.status.message), 510); /* 170 whole characters of the 511 bytes */
    sy_arena_free(&arena);
}

static void sampling_parameters_are_numbers_in_range(void **state)
{
    static const struct {
        float temperature, top_p, min_p, repetition_penalty;
        const char *why;
    } bad[] = {
        {NAN, 1, 0, 1, "sampling.temperature: "},
        {-0.5f, 1, 0, 1, "sampling.temperature: -0.5, must be finite and at least 0"},
        {INFINITY, 1, 0, 1, "sampling.temperature: inf, must be finite"},
        {1, 0, 0, 1, "sampling.top_p: 0, must be above 0 and at most 1"},
        {1, 1.5f, 0, 1, "sampling.top_p: 1.5, must be"},
        {1, NAN, 0, 1, "sampling.top_p: "},
        {1, 1, -1, 1, "sampling.min_p: -1, must be 0 to 1"},
        {1, 1, 2, 1, "sampling.min_p: 2, must be 0 to 1"},
        {1, 1, NAN, 1, "sampling.min_p: "},
        {1, 1, 0, 0, "sampling.repetition_penalty: 0, must be finite and above 0"},
        {1, 1, 0, INFINITY, "sampling.repetition_penalty: inf, must be"},
        {1, 1, 0, NAN, "sampling.repetition_penalty: "},
        {0, 1, 0, 1, NULL},
        {2, 0.1f, 1, 0.5f, NULL},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        Switchyard__V1__GenerateRequest msg;
        Switchyard__V1__Sampling sampling;

        switchyard__v1__generate_request__init(&msg);
        switchyard__v1__sampling__init(&sampling);
        msg.input_case = SWITCHYARD__V1__GENERATE_REQUEST__INPUT_PROMPT;
        msg.prompt = text("");
        msg.sampling = &sampling;
        sampling.temperature_given_case = SWITCHYARD__V1__SAMPLING__TEMPERATURE_GIVEN_TEMPERATURE;
        sampling.temperature = bad[i].temperature;
        sampling.top_p_given_case = SWITCHYARD__V1__SAMPLING__TOP_P_GIVEN_TOP_P;
        sampling.top_p = bad[i].top_p;
        sampling.min_p_given_case = SWITCHYARD__V1__SAMPLING__MIN_P_GIVEN_MIN_P;
        sampling.min_p = bad[i].min_p;
        sampling.repetition_penalty_given_case =
            SWITCHYARD__V1__SAMPLING__REPETITION_PENALTY_GIVEN_REPETITION_PENALTY;
        sampling.repetition_penalty = bad[i].repetition_penalty;
        if (bad[i].why != NULL) {
            refused("generate_request", &msg.base, bad[i].why);
        } else {
            taken("generate_request", &msg.base);
        }
    }
}

static void an_input_is_needed_and_bounded(void **state)
{
    Switchyard__V1__GenerateRequest msg;
    Switchyard__V1__TokenIds tokens;
    char *prompt = calloc(SY_WIRE_TEXT_MAX + 2, 1);

    switchyard__v1__generate_request__init(&msg);
    switchyard__v1__token_ids__init(&tokens);
    (void)state;
    assert_non_null(prompt);
    refused("generate_request", &msg.base, "input: absent");
    msg.input_case = SWITCHYARD__V1__GENERATE_REQUEST__INPUT_TOKENS;
    msg.tokens = &tokens;
    refused("generate_request", &msg.base, "tokens.id: 0 elements, must be 1 to 1048576");
    tokens.n_id = SY_WIRE_TOKENS_MAX + 1;
    tokens.id = calloc(tokens.n_id, sizeof(*tokens.id));
    assert_non_null(tokens.id);
    refused("generate_request", &msg.base, "tokens.id: 1048577 elements, must be 1 to 1048576");
    tokens.n_id--;
    taken("generate_request", &msg.base);
    free(tokens.id);
    msg.input_case = SWITCHYARD__V1__GENERATE_REQUEST__INPUT_PROMPT;
    msg.prompt = prompt;
    memset(prompt, 'p', SY_WIRE_TEXT_MAX + 1);
    refused("generate_request", &msg.base,
            "prompt: 4194305 bytes, but at most 4194304 are allowed");
    msg.prompt = prompt + 1;
    taken("generate_request", &msg.base);
    free(prompt);
}

static void stops_are_few_and_short(void **state)
{
    Switchyard__V1__GenerateRequest msg;
    char long_text[258] = "";
    char *stop[17];

    switchyard__v1__generate_request__init(&msg);
    (void)state;
    msg.input_case = SWITCHYARD__V1__GENERATE_REQUEST__INPUT_PROMPT;
    msg.prompt = text("x");
    msg.stop = stop;
    for (size_t i = 0; i < SY_COUNT_OF(stop); i++) stop[i] = text("END");
    msg.n_stop = 17;
    refused("generate_request", &msg.base, "stop: 17 elements, but at most 16 are allowed");
    msg.n_stop = 16;
    taken("generate_request", &msg.base);
    memset(long_text, 's', 257);
    stop[3] = long_text;
    refused("generate_request", &msg.base, "stop: 257 bytes, but at most 256 are allowed");
    stop[3] = text("");
    refused("generate_request", &msg.base, "stop: empty text");
    stop[3] = text("\xc0\x80");
    refused("generate_request", &msg.base, "stop: not UTF-8 at byte 0");
    msg.n_stop = 0;
    msg.top_logprobs = 21;
    refused("generate_request", &msg.base, "top_logprobs: 21, but at most 20 are allowed");
}

static void a_delta_is_consistent(void **state)
{
    Switchyard__V1__GenerateReply msg;
    Switchyard__V1__Delta delta;
    Switchyard__V1__TokenLogprob one;
    Switchyard__V1__TokenLogprob *top[43];
    Switchyard__V1__Rows rows = four_by_eight();
    uint32_t token[2] = {0};
    float logprob[3] = {0};

    switchyard__v1__generate_reply__init(&msg);
    switchyard__v1__delta__init(&delta);
    switchyard__v1__token_logprob__init(&one);
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(top); i++) top[i] = &one;
    msg.event_case = SWITCHYARD__V1__GENERATE_REPLY__EVENT_DELTA;
    msg.delta = &delta;
    delta.n_token = 2;
    delta.token = token;
    delta.logprob = logprob;
    delta.top_logprob = top;
    delta.n_logprob = 3;
    refused("generate_reply", &msg.base, "delta.logprob: 3 elements, but `token` has 2");
    delta.n_logprob = 2;
    delta.n_top_logprob = 3;
    refused("generate_reply", &msg.base,
            "delta.top_logprob: 3 elements, must be up to 20 for each of the 2 tokens");
    delta.n_top_logprob = 42;
    refused("generate_reply", &msg.base, "delta.top_logprob: 42 elements");
    delta.n_top_logprob = 40;
    taken("generate_reply", &msg.base);
    delta.logits = &rows;
    refused("generate_reply", &msg.base, "delta.logits.rows: 4, but `token` has 2");
    rows.data.len = 3;
    refused("generate_reply", &msg.base, "delta.logits.data: 3 bytes, but 4 rows");
    delta.logits = NULL;
    delta.text = text("ok\xe2\x82");
    refused("generate_reply", &msg.base, "delta.text: not UTF-8 at byte 2");
}

static void a_finish_has_a_known_reason(void **state)
{
    Switchyard__V1__GenerateReply msg;
    Switchyard__V1__Finish finish;
    char *policies[SY_WIRE_POLICIES_MAX + 1];

    for (size_t i = 0; i < SY_COUNT_OF(policies); i++) policies[i] = text("\x80");
    switchyard__v1__generate_reply__init(&msg);
    switchyard__v1__finish__init(&finish);
    (void)state;
    taken("generate_reply", &msg.base); /* perhaps an event of a later version */
    msg.event_case = SWITCHYARD__V1__GENERATE_REPLY__EVENT_FINISH;
    msg.finish = &finish;
    finish.reason = (Switchyard__V1__FinishReason)3;
    refused("generate_reply", &msg.base, "finish.reason: 3, must be 0 to 2");
    finish.reason = SWITCHYARD__V1__FINISH_REASON__STOP;
    finish.n_policies = 1;
    finish.policies = policies;
    refused("generate_reply", &msg.base, "finish.policies: not UTF-8 at byte 0");
    finish.n_policies = SY_COUNT_OF(policies);
    refused("generate_reply", &msg.base,
            "finish.policies: 17 elements, but at most 16 are allowed");
}

static void a_forward_reply_routes_the_rows_it_returns(void **state)
{
    Switchyard__V1__ForwardReply msg;
    Switchyard__V1__Rows rows = four_by_eight();
    char *policies[] = {text("d\x80")};
    uint16_t expert[6] = {0};
    float weight[6] = {0};

    switchyard__v1__forward_reply__init(&msg);
    (void)state;
    msg.output = &rows;
    taken("forward_reply", &msg.base);
    msg.slots = 2;
    msg.expert = (ProtobufCBinaryData)WHOLE(expert);
    msg.weight = (ProtobufCBinaryData)WHOLE(weight);
    refused("forward_reply", &msg.base, "expert: 3 tokens, but output.rows is 4");
    rows.rows = 3;
    rows.data.len = 96;
    taken("forward_reply", &msg.base);
    msg.n_policies = 1;
    msg.policies = policies;
    refused("forward_reply", &msg.base, "policies: not UTF-8 at byte 1");
    msg.n_policies = 0;
    msg.weight.len = 0;
    refused("forward_reply", &msg.base, "weight: 0 elements, but `expert` has 6");
}

static void sizes_of_models_are_plausible(void **state)
{
    Switchyard__V1__ListModelsReply list;
    Switchyard__V1__Model model;
    Switchyard__V1__Model *models[] = {&model, &model};
    Switchyard__V1__ModelDescription description;

    switchyard__v1__list_models_reply__init(&list);
    switchyard__v1__model__init(&model);
    switchyard__v1__model_description__init(&description);
    (void)state;
    description.experts = 65536;
    refused("model_description", &description.base,
            "experts: 65536, but at most 65535 are allowed");
    description.experts = 8;
    description.top_k = 9;
    refused("model_description", &description.base, "top_k: 9, but there are 8 experts");
    list.n_model = 2;
    list.model = models;
    model.hidden = (1u << 20) + 1;
    refused("model_list", &list.base, "model[0].hidden: 1048577, but at most 1048576 are allowed");
    model.hidden = 0;
    model.name = text("\xed\xa0\x80");
    refused("model_list", &list.base, "model[0].name: not UTF-8 at byte 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_must_have_the_shape_they_claim),
        cmocka_unit_test(rows_of_the_largest_shape_need_their_bytes),
        cmocka_unit_test(rows_of_a_reply_may_be_absent_but_not_wrong),
        cmocka_unit_test(names_are_short_and_clean),
        cmocka_unit_test(names_have_no_nul),
        cmocka_unit_test(what_is_no_message_is_said_to_be_none),
        cmocka_unit_test(slots_of_a_route_reply_agree),
        cmocka_unit_test(a_route_reply_has_a_bounded_number_of_tokens),
        cmocka_unit_test(groups_ascend_and_cover_all_assignments),
        cmocka_unit_test(assignments_stay_inside_the_rows),
        cmocka_unit_test(assignments_are_bounded),
        cmocka_unit_test(faults_say_which_and_why),
        cmocka_unit_test(long_texts_of_a_status_are_cut),
        cmocka_unit_test(sampling_parameters_are_numbers_in_range),
        cmocka_unit_test(an_input_is_needed_and_bounded),
        cmocka_unit_test(stops_are_few_and_short),
        cmocka_unit_test(a_delta_is_consistent),
        cmocka_unit_test(a_finish_has_a_known_reason),
        cmocka_unit_test(a_forward_reply_routes_the_rows_it_returns),
        cmocka_unit_test(sizes_of_models_are_plausible),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
