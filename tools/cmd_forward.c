/* cmd_forward.c - `switchyard forward`: one MoE layer over rows from a .npy file, through an
 * aggregator: what a client does that holds the rest of the model itself. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client_call.h"
#include "commands.h"
#include "sy_args.h"
#include "sy_clock.h"
#include "sy_file.h"
#include "sy_hash.h"
#include "tool_interrupt.h"
#include "tool_npy.h"
#include "tool_print.h"
#include "tool_report.h"

#define REPLY_OVERHEAD_BYTES ((size_t)1 << 20)
#define REPLY_BYTES_MAX      ((size_t)INT32_MAX) /* gRPC's own limit */

typedef struct options {
    const char *target, *model, *in, *out, *routing;
    int64_t layer, timeout_s, experts_per_token;
    int wait, bf16, json;
} options;

/* The one reply, as far as it is needed after its message is gone. */
typedef struct answer {
    sy_arena arena; /* what reply points into */
    sy_forward_reply reply;
    int is_known;
    double total_ms;
    float *output; /* [rows, cols] */
} answer;

static int parse(options *o, int argc, char **argv)
{
    *o = (options){.model = "", .layer = -1, .timeout_s = 60};
    const sy_arg args[] = {
        {"target", "ADDRESS", "the aggregator: unix:PATH or HOST:PORT", SY_ARG_STRING, &o->target,
         0, 0},
        {"layer", "L", "which layer's experts, from 0", SY_ARG_INT, &o->layer, 0, UINT32_MAX},
        {"in", "FILE.npy", "rows of the layer's input, after its norm: float32 or float16 [T, H]",
         SY_ARG_STRING, &o->in, 0, 0},
        {"out", "FILE.npy", "where to write the layer's output, float32 [T, H]", SY_ARG_STRING,
         &o->out, 0, 0},
        {"bf16", NULL, "uint16 elements of --in are the bits of bf16", SY_ARG_FLAG, &o->bf16, 0, 0},
        {"routing", "FILE.json", "where to write each row's experts and their weights",
         SY_ARG_STRING, &o->routing, 0, 0},
        {"model", "NAME", "the model; an aggregator serves one, so that it need not be named",
         SY_ARG_STRING, &o->model, 0, 0},
        {"experts-per-token", "K",
         "use fewer experts than the checkpoint says, weights renormalised; 0: as it says",
         SY_ARG_INT, &o->experts_per_token, 0, UINT16_MAX},
        {"timeout-s", "S", "the call may take so long; 0: for ever", SY_ARG_INT, &o->timeout_s, 0,
         1000000},
        {"wait", NULL, "wait for a server that is not there yet, within the timeout", SY_ARG_FLAG,
         &o->wait, 0, 0},
        {"json", NULL, "print the summary as JSON", SY_ARG_FLAG, &o->json, 0, 0},
    };
    sy_error err = {0};

    sy_error_clear(&err);
    if (sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                      "switchyard forward --target ADDRESS --layer L --in FILE.npy --out FILE.npy\n"
                      "\nComputes one layer's experts over rows that the caller holds.",
                      NULL, 0, NULL, &err) != SY_OK)
        return tool_usage_error(&err) == 0 ? -1 : 2;
    if (o->target == NULL) return tool_bad_option("--target ADDRESS is missing");
    if (o->layer < 0) return tool_bad_option("--layer L is missing");
    if (o->in == NULL || o->out == NULL)
        return tool_bad_option("--in FILE.npy and --out FILE.npy are needed");
    return 0;
}

/* ---- the call ---- */

static sy_status on_reply(void *arg, const sy_iov *iov, size_t n, sy_error *err)
{
    answer *a = arg;
    sy_status st;

    if (a->is_known) return sy_error_set(err, SY_EDATALOSS, "the server answered twice");
    st = sy_wire_forward_reply_decode(&a->reply, &a->arena, iov, n, err);
    if (st != SY_OK) {
        sy_error_prefix(err, "the server's reply");
        return st;
    }
    a->is_known = 1;
    if (a->reply.status.status != SY_OK) *err = a->reply.status;
    return a->reply.status.status;
}

/* What came must have the shape of what was sent. */
static sy_status take_output(answer *a, const tool_npy *in, sy_error *err)
{
    const sy_rows *rows = &a->reply.output;
    const size_t n = (size_t)rows->rows * rows->cols;

    if (!a->is_known) return sy_error_set(err, SY_EDATALOSS, "the server sent no answer");
    if (rows->rows != in->rows || rows->cols != in->cols)
        return sy_error_set(err, SY_EDATALOSS,
                            "the server answered %" PRIu64 " rows of %" PRIu64
                            " with %u rows of %u",
                            in->rows, in->cols, rows->rows, rows->cols);
    a->output = malloc(SY_MAX(n, 1) * sizeof(float));
    if (a->output == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the output");
    sy_dtype_widen(a->output, rows->data, rows->dtype, n);
    return SY_OK;
}

static sy_status call(client *c, const options *o, const tool_npy *in, answer *a, sy_error *err)
{
    const sy_forward_request request = {
        .id = 1,
        .model = o->model,
        .layer = (uint32_t)o->layer,
        .policy = {.experts_per_token = (uint32_t)o->experts_per_token},
        .want_routing = o->routing != NULL,
        .hidden = {in->dtype, (uint32_t)in->rows, (uint32_t)in->cols, in->data},
    };
    const int64_t start_us = sy_clock_us();
    sy_frame frame;
    sy_status st = sy_wire_forward_request_encode(&frame, &request, NULL);

    if (st != SY_OK)
        return sy_error_set(err, st, "%s: too much for one message: send fewer rows", o->in);
    st = client_run(c, 0, "/switchyard.v1.Aggregator/Forward", &frame, on_reply, a, err);
    a->total_ms = (double)(sy_clock_us() - start_us) / 1e3;
    return st == SY_OK ? take_output(a, in, err) : st;
}

/* ---- results ---- */

/* A slot without an expert, which a policy may leave, is null; so is what JSON has no number for.
 */
static json_t *routing_json(const sy_forward_reply *reply)
{
    json_t *experts = json_array(), *weights = json_array();

    for (size_t t = 0; t < reply->n_tokens; t++) {
        json_t *expert = json_array(), *weight = json_array();

        for (size_t i = t * reply->slots; i < (t + 1) * reply->slots; i++) {
            const int is_empty = reply->expert[i] == SY_WIRE_EMPTY_SLOT;

            json_array_append_new(expert, is_empty ? json_null() : json_integer(reply->expert[i]));
            json_array_append_new(weight, isfinite(reply->weight[i])
                                              ? json_real((double)reply->weight[i])
                                              : json_null());
        }
        json_array_append_new(experts, expert);
        json_array_append_new(weights, weight);
    }
    return json_pack("{s:I,s:o,s:o}", "slots", (json_int_t)reply->slots, "experts", experts,
                     "weights", weights);
}

static sy_status write_routing(const char *path, const sy_forward_reply *reply, sy_error *err)
{
    json_t *root = routing_json(reply);
    char *text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9));
    sy_status st;

    if (text == NULL)
        st = sy_error_set(err, SY_ENOMEM, "no memory for the routing");
    else
        st = sy_file_write_atomic(path, text, strlen(text), err);
    free(text);
    json_decref(root);
    return st;
}

static sy_status write_output(const options *o, const answer *a, sy_error *err)
{
    const tool_npy_shape shape = {SY_F32, a->reply.output.rows, a->reply.output.cols};
    const sy_iov piece = {a->output, shape.rows * shape.cols * sizeof(float)};
    const sy_status st = tool_npy_write(o->out, shape, &piece, 1, err);

    if (st != SY_OK || o->routing == NULL) return st;
    return write_routing(o->routing, &a->reply, err);
}

static int print_summary(const options *o, const answer *a)
{
    const sy_rows *rows = &a->reply.output;
    char hash[17], checksum[17];

    snprintf(hash, sizeof(hash), "%016" PRIx64, a->reply.placement_hash);
    snprintf(checksum, sizeof(checksum), "%016" PRIx64,
             sy_fnv1a(SY_FNV1A_START, a->output, (size_t)rows->rows * rows->cols * sizeof(float)));
    if (o->json)
        return tool_json_print(json_pack("{s:I,s:I,s:I,s:f,s:s,s:s}", "layer", (json_int_t)o->layer,
                                         "rows", (json_int_t)rows->rows, "hidden",
                                         (json_int_t)rows->cols, "total_ms", a->total_ms,
                                         "checksum", checksum, "placement_hash", hash));
    printf("layer %" PRId64 ": %" PRIu32 " rows of %" PRIu32
           " in %.1f ms, checksum %s, placement %s\n",
           o->layer, rows->rows, rows->cols, a->total_ms, checksum, hash);
    return tool_flush_stdout();
}

/* 0, or the exit code with the mistake printed. */
static int forward(client *c, const options *o, const tool_npy *in)
{
    const size_t reply_bytes = in->rows * in->cols * sizeof(float) + REPLY_OVERHEAD_BYTES;
    answer a = {0};
    sy_error err = {0};
    sy_status st;
    int code = 0;

    sy_error_clear(&err);
    sy_arena_init(&a.arena, REPLY_BYTES_MAX);
    SY_TRY(client_open(c, o->target, 1,
                       SY_MIN(SY_MAX(reply_bytes, (size_t)64 << 20), REPLY_BYTES_MAX), &err));
    SY_TRY(call(c, o, in, &a, &err));
    SY_TRY(write_output(o, &a, &err));
    code = print_summary(o, &a);
out:
    if (st != SY_OK) code = tool_fail(&err);
    free(a.output);
    sy_arena_free(&a.arena);
    return code;
}

static sy_status read_input(tool_npy *in, const options *o, sy_error *err)
{
    const sy_status st = tool_npy_read(in, o->in, o->bf16, err);

    if (st != SY_OK) return st;
    if (in->rows < 1 || in->rows > SY_WIRE_ROWS_MAX || in->cols < 1 || in->cols > SY_WIRE_COLS_MAX)
        return sy_error_set(err, SY_EINVAL,
                            "%s: the shape is (%" PRIu64 ", %" PRIu64 "), but 1 to %u rows of 1 to "
                            "%u columns can be sent",
                            o->in, in->rows, in->cols, SY_WIRE_ROWS_MAX, SY_WIRE_COLS_MAX);
    return SY_OK;
}

int cmd_forward(int argc, char **argv)
{
    options o;
    client c;
    tool_npy in = {0};
    sy_error err = {0};
    sy_status st;
    int code = parse(&o, argc, argv);

    if (code != 0) return SY_MAX(code, 0);
    sy_error_clear(&err);
    client_init(&c);
    c.timeout_us = o.timeout_s * 1000000;
    c.wait = o.wait;
    SY_TRY(read_input(&in, &o, &err));
    SY_TRY(tool_interrupt_open(client_interrupt, &c, &err));
    code = forward(&c, &o, &in);
out:
    if (st != SY_OK) code = tool_fail(&err);
    tool_interrupt_close();
    client_close(&c);
    tool_npy_free(&in);
    return code;
}
