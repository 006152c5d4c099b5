/* sy_wire_generate.c - GenerateRequest and GenerateReply. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "switchyard/v1/aggregator.pb-c.h"
#include "sy_wire_in.h"
#include "sy_wire_out.h"

#define DELTA_TEXT_FIELD 2u

_Static_assert((int)SY_FINISH_STOP == (int)SWITCHYARD__V1__FINISH_REASON__STOP &&
                   (int)SY_FINISH_LENGTH == (int)SWITCHYARD__V1__FINISH_REASON__LENGTH,
               "sy_finish_reason follows aggregator.proto");

static void check_range(sy_wire_in *in, const char *field, float value, int ok, const char *wanted)
{
    if (!ok) sy_wire_refuse(in, "sampling.%s: %g, must be %s", field, (double)value, wanted);
}

static void read_sampling(sy_sampling_params *out, sy_wire_in *in,
                          const Switchyard__V1__Sampling *msg)
{
    *out = (sy_sampling_params){.top_p = 1, .repetition_penalty = 1};
    if (msg == NULL) return;
    if (msg->temperature_given_case != 0) out->temperature = msg->temperature;
    if (msg->top_k_given_case != 0) out->top_k = msg->top_k;
    if (msg->top_p_given_case != 0) out->top_p = msg->top_p;
    if (msg->min_p_given_case != 0) out->min_p = msg->min_p;
    if (msg->repetition_penalty_given_case != 0) out->repetition_penalty = msg->repetition_penalty;
    check_range(in, "temperature", out->temperature,
                isfinite(out->temperature) && out->temperature >= 0, "finite and at least 0");
    check_range(in, "top_p", out->top_p, out->top_p > 0 && out->top_p <= 1,
                "above 0 and at most 1");
    check_range(in, "min_p", out->min_p, out->min_p >= 0 && out->min_p <= 1, "0 to 1");
    check_range(in, "repetition_penalty", out->repetition_penalty,
                isfinite(out->repetition_penalty) && out->repetition_penalty > 0,
                "finite and above 0");
}

static void read_input(sy_generate_request *out, sy_wire_in *in,
                       const Switchyard__V1__GenerateRequest *msg)
{
    const int is_chat = msg->input_case == SWITCHYARD__V1__GENERATE_REQUEST__INPUT_CHAT;

    if (is_chat || msg->input_case == SWITCHYARD__V1__GENERATE_REQUEST__INPUT_PROMPT) {
        out->is_chat = is_chat;
        out->prompt = is_chat ? msg->chat : msg->prompt;
        out->prompt_bytes = sy_wire_string_bytes(out->prompt);
        if (out->prompt_bytes > SY_WIRE_TEXT_MAX) {
            sy_wire_refuse(in, "%s: %zu bytes, but at most %u are allowed",
                           is_chat ? "chat" : "prompt", out->prompt_bytes, SY_WIRE_TEXT_MAX);
        }
    } else if (msg->input_case == SWITCHYARD__V1__GENERATE_REQUEST__INPUT_TOKENS) {
        const size_t n = msg->tokens->n_id;

        if (n < 1 || n > SY_WIRE_TOKENS_MAX) {
            sy_wire_refuse(in, "tokens.id: %zu elements, must be 1 to %u", n, SY_WIRE_TOKENS_MAX);
        }
        out->token = sy_wire_aligned(in, msg->tokens->id, n * sizeof(*out->token));
        out->n_tokens = (uint32_t)n;
    } else {
        sy_wire_refuse(in, "input: absent, but a prompt, tokens or a chat are needed");
    }
}

static void read_stops(sy_generate_request *out, sy_wire_in *in,
                       const Switchyard__V1__GenerateRequest *msg)
{
    const char **stop;

    if (msg->n_stop > SY_WIRE_STOPS_MAX) {
        sy_wire_refuse(in, "stop: %zu elements, but at most %u are allowed", msg->n_stop,
                       SY_WIRE_STOPS_MAX);
    }
    if (in->status != SY_OK || msg->n_stop == 0) return;
    stop = sy_wire_alloc(in, msg->n_stop * sizeof(*stop));
    if (stop == NULL) return;
    for (size_t i = 0; i < msg->n_stop; i++) {
        stop[i] = sy_wire_text(in, "stop", msg->stop[i], SY_WIRE_STOP_BYTES_MAX);
        if (*stop[i] == '\0')
            sy_wire_refuse(in, "stop: empty text, which would end every answer at once");
    }
    out->stop = stop;
    out->n_stops = (uint32_t)msg->n_stop;
}

sy_status sy_wire_generate_request_decode(sy_generate_request *out, sy_arena *arena,
                                          const sy_iov *iov, size_t n, sy_error *err)
{
    const Switchyard__V1__GenerateRequest *msg;
    sy_wire_in in;

    *out = (sy_generate_request){.model = ""};
    sy_wire_in_init(&in, arena, err);
    msg = sy_wire_unpack(&in, &switchyard__v1__generate_request__descriptor, iov, n);
    if (msg == NULL) return in.status;
    out->model = sy_wire_name(&in, "model", msg->model);
    read_input(out, &in, msg);
    out->max_tokens = msg->max_tokens;
    read_sampling(&out->sampling, &in, msg->sampling);
    read_stops(out, &in, msg);
    out->seed = msg->seed;
    out->logprobs = msg->logprobs != 0;
    out->top_logprobs = msg->top_logprobs;
    if (out->top_logprobs > SY_WIRE_TOP_LOGPROBS_MAX) {
        sy_wire_refuse(&in, "top_logprobs: %" PRIu32 ", but at most %d are allowed",
                       out->top_logprobs, SY_WIRE_TOP_LOGPROBS_MAX);
    }
    out->policy = sy_wire_policy(msg->policy);
    out->want_logits = msg->want_logits != 0;
    out->ignore_eos = msg->ignore_eos != 0;
    return in.status;
}

static void put_sampling(Switchyard__V1__Sampling *msg, const sy_sampling_params *in)
{
    switchyard__v1__sampling__init(msg);
    msg->temperature_given_case = SWITCHYARD__V1__SAMPLING__TEMPERATURE_GIVEN_TEMPERATURE;
    msg->temperature = in->temperature;
    msg->top_k_given_case = SWITCHYARD__V1__SAMPLING__TOP_K_GIVEN_TOP_K;
    msg->top_k = in->top_k;
    msg->top_p_given_case = SWITCHYARD__V1__SAMPLING__TOP_P_GIVEN_TOP_P;
    msg->top_p = in->top_p;
    msg->min_p_given_case = SWITCHYARD__V1__SAMPLING__MIN_P_GIVEN_MIN_P;
    msg->min_p = in->min_p;
    msg->repetition_penalty_given_case =
        SWITCHYARD__V1__SAMPLING__REPETITION_PENALTY_GIVEN_REPETITION_PENALTY;
    msg->repetition_penalty = in->repetition_penalty;
}

static int has_nul(const sy_iov *text)
{
    return text->len > 0 && memchr(text->data, '\0', text->len) != NULL;
}

/* A text with a NUL inside cannot be a C string. It goes out as a field that protobuf-c knows
 * nothing of: behind all others, but the same message. */
static sy_status put_text_with_nul(ProtobufCMessage *msg, ProtobufCMessageUnknownField *unknown,
                                   uint32_t number, sy_arena *scratch, const sy_iov *text)
{
    size_t length = text->len;
    size_t prefix_bytes = 0;
    uint8_t prefix[10];

    for (; length >= 0x80; length >>= 7) prefix[prefix_bytes++] = (uint8_t)(length | 0x80);
    prefix[prefix_bytes++] = (uint8_t)length;
    *unknown = (ProtobufCMessageUnknownField){
        .tag = number,
        .wire_type = PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED,
        .len = prefix_bytes + text->len,
        .data = sy_arena_alloc(scratch, prefix_bytes + text->len),
    };
    if (unknown->data == NULL) return SY_ENOMEM;
    memcpy(unknown->data, prefix, prefix_bytes);
    memcpy(unknown->data + prefix_bytes, text->data, text->len);
    msg->unknown_fields = unknown;
    msg->n_unknown_fields = 1;
    return SY_OK;
}

static sy_status put_prompt(Switchyard__V1__GenerateRequest *msg,
                            ProtobufCMessageUnknownField *unknown, sy_arena *scratch,
                            const sy_generate_request *in)
{
    const sy_iov prompt = {in->prompt, in->prompt_bytes};
    char *text;

    msg->input_case = in->is_chat ? SWITCHYARD__V1__GENERATE_REQUEST__INPUT_CHAT
                                  : SWITCHYARD__V1__GENERATE_REQUEST__INPUT_PROMPT;
    if (has_nul(&prompt)) {
        const uint32_t number = msg->input_case;

        msg->input_case = SWITCHYARD__V1__GENERATE_REQUEST__INPUT__NOT_SET;
        return put_text_with_nul(&msg->base, unknown, number, scratch, &prompt);
    }
    text = sy_arena_strndup(scratch, prompt.data, prompt.len);
    if (in->is_chat)
        msg->chat = text;
    else
        msg->prompt = text;
    return text != NULL ? SY_OK : SY_ENOMEM;
}

sy_status sy_wire_generate_request_encode(sy_frame *out, const sy_generate_request *in,
                                          sy_buf *bulk)
{
    Switchyard__V1__GenerateRequest msg;
    Switchyard__V1__TokenIds tokens;
    ProtobufCMessageUnknownField unknown;
    Switchyard__V1__RoutePolicy policy;
    Switchyard__V1__Sampling sampling;
    sy_arena scratch;
    sy_status st;

    switchyard__v1__generate_request__init(&msg);
    switchyard__v1__token_ids__init(&tokens);
    sy_frame_init(out);
    sy_arena_init(&scratch, SIZE_MAX);
    msg.model = sy_wire_lend_text(in->model);
    if (in->prompt != NULL) {
        SY_TRY(put_prompt(&msg, &unknown, &scratch, in));
    } else {
        msg.input_case = SWITCHYARD__V1__GENERATE_REQUEST__INPUT_TOKENS;
        msg.tokens = &tokens;
        tokens.n_id = in->n_tokens;
        tokens.id = sy_wire_lend(in->token);
    }
    msg.max_tokens = in->max_tokens;
    put_sampling(&sampling, &in->sampling);
    msg.sampling = &sampling;
    msg.n_stop = in->n_stops;
    msg.stop = sy_wire_lend(in->stop);
    msg.seed = in->seed;
    msg.logprobs = in->logprobs != 0;
    msg.top_logprobs = in->top_logprobs;
    msg.policy = sy_wire_put_policy(&policy, &in->policy);
    msg.want_logits = in->want_logits != 0;
    msg.ignore_eos = in->ignore_eos != 0;
    SY_TRY(sy_wire_pack(out, &msg.base, bulk));
out:
    sy_arena_free(&scratch);
    return st;
}

static void read_top_logprobs(sy_delta *out, sy_wire_in *in, const Switchyard__V1__Delta *msg)
{
    const size_t n = msg->n_top_logprob;
    sy_token_logprob *top;

    if (n == 0 || in->status != SY_OK) return;
    if (out->n_tokens == 0 || n % out->n_tokens != 0 ||
        n / out->n_tokens > SY_WIRE_TOP_LOGPROBS_MAX) {
        sy_wire_refuse(
            in, "top_logprob: %zu elements, must be up to %d for each of the %" PRIu32 " tokens", n,
            SY_WIRE_TOP_LOGPROBS_MAX, out->n_tokens);
        return;
    }
    top = sy_wire_alloc(in, n * sizeof(*top));
    if (top == NULL) return;
    for (size_t i = 0; i < n; i++) {
        top[i] = (sy_token_logprob){msg->top_logprob[i]->token, msg->top_logprob[i]->logprob};
    }
    out->top = top;
    out->n_top = (uint32_t)n;
}

static void read_delta(sy_delta *out, sy_wire_in *in, const Switchyard__V1__Delta *msg)
{
    if (msg->n_token > SY_WIRE_TOKENS_MAX) {
        sy_wire_refuse(in, "token: %zu elements, but at most %u are allowed", msg->n_token,
                       SY_WIRE_TOKENS_MAX);
    }
    if (msg->n_logprob != 0 && msg->n_logprob != msg->n_token) {
        sy_wire_refuse(in, "logprob: %zu elements, but `token` has %zu", msg->n_logprob,
                       msg->n_token);
    }
    if (in->status != SY_OK) return;
    out->n_tokens = (uint32_t)msg->n_token;
    out->token = sy_wire_aligned(in, msg->token, msg->n_token * sizeof(*out->token));
    out->text = msg->text;
    out->text_bytes = sy_wire_string_bytes(msg->text);
    if (out->text_bytes > SY_WIRE_TEXT_MAX) {
        sy_wire_refuse(in, "text: %zu bytes, but at most %u are allowed", out->text_bytes,
                       SY_WIRE_TEXT_MAX);
    }
    sy_wire_utf8(in, "text", out->text, out->text_bytes);
    out->n_logprobs = (uint32_t)msg->n_logprob;
    out->logprob = sy_wire_aligned(in, msg->logprob, msg->n_logprob * sizeof(*out->logprob));
    read_top_logprobs(out, in, msg);
    sy_wire_rows(&out->logits, in, "logits", msg->logits, SY_WIRE_OPTIONAL);
    if (out->logits.rows != 0 && out->logits.rows != out->n_tokens) {
        sy_wire_refuse(in, "logits.rows: %" PRIu32 ", but `token` has %" PRIu32, out->logits.rows,
                       out->n_tokens);
    }
}

static void read_finish(sy_finish *out, sy_wire_in *in, const Switchyard__V1__Finish *msg)
{
    const Switchyard__V1__GenerateTiming *timing = msg->timing;

    if ((int)msg->reason < SY_FINISH_NONE || (int)msg->reason > SY_FINISH_LENGTH) {
        sy_wire_refuse(in, "reason: %d, must be 0 to %d", (int)msg->reason, SY_FINISH_LENGTH);
        return;
    }
    out->reason = (sy_finish_reason)msg->reason;
    out->placement_hash = msg->placement_hash;
    if (msg->usage != NULL) {
        out->prompt_tokens = msg->usage->prompt_tokens;
        out->generated_tokens = msg->usage->generated_tokens;
    }
    if (timing != NULL) {
        out->queue_ms = timing->queue_ms;
        out->first_token_ms = timing->first_token_ms;
        out->total_ms = timing->total_ms;
        out->decode_tokens_per_s = timing->decode_tokens_per_s;
        out->route_ms = timing->route_ms;
        out->dispatch_ms = timing->dispatch_ms;
        out->compute_ms = timing->compute_ms;
        out->combine_ms = timing->combine_ms;
    }
    out->policy = sy_wire_policies(&out->n_policies, in, msg->policies, msg->n_policies);
    out->degraded_rows = msg->degraded_rows;
}

/* A reply with neither event is an empty delta: the other side may know a third kind. */
sy_status sy_wire_generate_reply_decode(sy_generate_reply *out, sy_arena *arena, const sy_iov *iov,
                                        size_t n, sy_error *err)
{
    const Switchyard__V1__GenerateReply *msg;
    sy_wire_in in;

    *out = (sy_generate_reply){.delta = {.text = ""}};
    sy_wire_in_init(&in, arena, err);
    msg = sy_wire_unpack(&in, &switchyard__v1__generate_reply__descriptor, iov, n);
    if (msg == NULL) return in.status;
    if (msg->event_case == SWITCHYARD__V1__GENERATE_REPLY__EVENT_DELTA) {
        in.group = "delta";
        read_delta(&out->delta, &in, msg->delta);
    } else if (msg->event_case == SWITCHYARD__V1__GENERATE_REPLY__EVENT_FINISH) {
        in.group = "finish";
        out->is_finish = 1;
        read_finish(&out->finish, &in, msg->finish);
    }
    return in.status;
}

static sy_status put_top_logprobs(Switchyard__V1__Delta *msg, sy_arena *scratch, const sy_delta *in)
{
    Switchyard__V1__TokenLogprob *one = sy_arena_calloc(scratch, in->n_top, sizeof(*one));

    msg->top_logprob = sy_arena_calloc(scratch, in->n_top, sizeof(Switchyard__V1__TokenLogprob *));
    if (one == NULL || msg->top_logprob == NULL) return SY_ENOMEM;
    msg->n_top_logprob = in->n_top;
    for (uint32_t i = 0; i < in->n_top; i++) {
        switchyard__v1__token_logprob__init(&one[i]);
        one[i].token = in->top[i].token;
        one[i].logprob = in->top[i].logprob;
        msg->top_logprob[i] = &one[i];
    }
    return SY_OK;
}

static sy_status put_delta_text(Switchyard__V1__Delta *msg, ProtobufCMessageUnknownField *unknown,
                                sy_arena *scratch, const sy_iov *text)
{
    if (has_nul(text))
        return put_text_with_nul(&msg->base, unknown, DELTA_TEXT_FIELD, scratch, text);
    msg->text = sy_arena_strndup(scratch, text->data, text->len);
    return msg->text != NULL ? SY_OK : SY_ENOMEM;
}

static sy_status encode_delta(sy_frame *out, const sy_delta *in, sy_buf *bulk)
{
    Switchyard__V1__GenerateReply msg;
    Switchyard__V1__Delta delta;
    ProtobufCMessageUnknownField unknown;
    Switchyard__V1__Rows logits;
    sy_arena scratch;
    sy_status st;

    switchyard__v1__generate_reply__init(&msg);
    switchyard__v1__delta__init(&delta);
    sy_arena_init(&scratch, SIZE_MAX);
    msg.event_case = SWITCHYARD__V1__GENERATE_REPLY__EVENT_DELTA;
    msg.delta = &delta;
    delta.n_token = in->n_tokens;
    delta.token = sy_wire_lend(in->token);
    delta.n_logprob = in->n_logprobs;
    delta.logprob = sy_wire_lend(in->logprob);
    delta.logits = sy_wire_put_rows(&logits, &in->logits);
    SY_TRY(put_delta_text(&delta, &unknown, &scratch, &(sy_iov){in->text, in->text_bytes}));
    if (in->n_top > 0) SY_TRY(put_top_logprobs(&delta, &scratch, in));
    SY_TRY(sy_wire_pack(out, &msg.base, bulk));
out:
    sy_arena_free(&scratch);
    return st;
}

static sy_status encode_finish(sy_frame *out, const sy_finish *in, sy_buf *bulk)
{
    Switchyard__V1__GenerateReply msg;
    Switchyard__V1__Finish finish;
    Switchyard__V1__Usage usage;
    Switchyard__V1__GenerateTiming timing;

    switchyard__v1__generate_reply__init(&msg);
    switchyard__v1__finish__init(&finish);
    switchyard__v1__usage__init(&usage);
    switchyard__v1__generate_timing__init(&timing);
    msg.event_case = SWITCHYARD__V1__GENERATE_REPLY__EVENT_FINISH;
    msg.finish = &finish;
    finish.reason = (Switchyard__V1__FinishReason)in->reason;
    finish.usage = &usage;
    finish.timing = &timing;
    finish.placement_hash = in->placement_hash;
    finish.n_policies = in->n_policies;
    finish.policies = sy_wire_lend(in->policy);
    finish.degraded_rows = in->degraded_rows;
    usage.prompt_tokens = in->prompt_tokens;
    usage.generated_tokens = in->generated_tokens;
    timing.queue_ms = in->queue_ms;
    timing.first_token_ms = in->first_token_ms;
    timing.total_ms = in->total_ms;
    timing.decode_tokens_per_s = in->decode_tokens_per_s;
    timing.route_ms = in->route_ms;
    timing.dispatch_ms = in->dispatch_ms;
    timing.compute_ms = in->compute_ms;
    timing.combine_ms = in->combine_ms;
    return sy_wire_pack(out, &msg.base, bulk);
}

sy_status sy_wire_generate_reply_encode(sy_frame *out, const sy_generate_reply *in, sy_buf *bulk)
{
    sy_frame_init(out);
    return in->is_finish ? encode_finish(out, &in->finish, bulk)
                         : encode_delta(out, &in->delta, bulk);
}
