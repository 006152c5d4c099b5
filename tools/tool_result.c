/* tool_result.c - collecting a generation and printing it. */
#include "tool_result.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tool_npy.h"
#include "tool_print.h"
#include "tool_report.h"

#define FLOAT_DIGITS 9 /* enough to tell any two floats apart */

void tool_result_init(tool_result *result)
{
    *result = (tool_result){0};
    sy_strbuf_init(&result->token);
    sy_strbuf_init(&result->text);
    sy_strbuf_init(&result->logprob);
    sy_strbuf_init(&result->top);
    sy_strbuf_init(&result->logits);
    sy_strbuf_init(&result->policies);
    sy_error_clear(&result->error);
}

void tool_result_free(tool_result *result)
{
    sy_strbuf_free(&result->token);
    sy_strbuf_free(&result->text);
    sy_strbuf_free(&result->logprob);
    sy_strbuf_free(&result->top);
    sy_strbuf_free(&result->logits);
    sy_strbuf_free(&result->policies);
}

static void add_logits(tool_result *result, const sy_rows *rows)
{
    if (rows->rows == 0) return;
    if (rows->dtype != SY_F32 || (result->vocab != 0 && result->vocab != rows->cols)) {
        sy_error_set(&result->error, SY_EDATALOSS, "logits of type %s and width %u arrived",
                     sy_dtype_name(rows->dtype), rows->cols);
        return;
    }
    result->vocab = rows->cols;
    sy_strbuf_append(&result->logits, rows->data, sy_rows_bytes(rows));
}

void tool_result_add(tool_result *result, const sy_delta *delta)
{
    sy_strbuf_append(&result->token, delta->token, delta->n_tokens * sizeof(*delta->token));
    sy_strbuf_append(&result->text, delta->text, delta->text_bytes);
    sy_strbuf_append(&result->logprob, delta->logprob, delta->n_logprobs * sizeof(float));
    sy_strbuf_append(&result->top, delta->top, delta->n_top * sizeof(*delta->top));
    result->n_tokens += delta->n_tokens;
    if (delta->n_tokens > 0) result->n_top = delta->n_top / delta->n_tokens;
    add_logits(result, &delta->logits);
    if (result->token.failed || result->text.failed || result->logprob.failed ||
        result->top.failed || result->logits.failed)
        sy_error_set(&result->error, SY_ENOMEM, "no memory for the answer after %u tokens",
                     result->n_tokens);
}

void tool_result_finish(tool_result *result, const sy_finish *finish)
{
    result->finish = *finish;
    result->finish.policy = NULL; /* borrowed from the message */
    for (uint32_t i = 0; i < finish->n_policies; i++)
        sy_strbuf_printf(&result->policies, "%s\n", finish->policy[i]);
}

static int same_bytes(const sy_strbuf *a, const sy_strbuf *b)
{
    return a->len == b->len && memcmp(a->data, b->data, a->len) == 0;
}

int tool_result_equal(const tool_result *a, const tool_result *b)
{
    return same_bytes(&a->token, &b->token) && same_bytes(&a->text, &b->text) &&
           same_bytes(&a->logprob, &b->logprob) && same_bytes(&a->top, &b->top) &&
           same_bytes(&a->logits, &b->logits);
}

/* ---- JSON: without memory every step gives NULL, which the next one accepts and passes on ---- */

/* JSON knows no infinities: they become null, as does a NaN. */
static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static void push(json_t **array, json_t *value)
{
    if (json_array_append_new(*array, value) == 0) return;
    json_decref(*array);
    *array = NULL;
}

static json_t *tokens_json(const tool_result *r)
{
    const uint32_t *token = (const uint32_t *)(const void *)r->token.data;
    json_t *array = json_array();

    for (uint32_t i = 0; i < r->n_tokens; i++) push(&array, json_integer(token[i]));
    return array;
}

static json_t *logprobs_json(const tool_result *r)
{
    const float *logprob = (const float *)(const void *)r->logprob.data;
    json_t *array = json_array();

    for (size_t i = 0; i < r->logprob.len / sizeof(float); i++)
        push(&array, number((double)logprob[i]));
    return array;
}

static json_t *top_logprobs_json(const tool_result *r)
{
    const sy_token_logprob *top = (const sy_token_logprob *)(const void *)r->top.data;
    const size_t n = r->top.len / sizeof(*top);
    json_t *steps = json_array();

    for (size_t i = 0; r->n_top > 0 && i + r->n_top <= n; i += r->n_top) {
        json_t *step = json_array();

        for (size_t j = i; j < i + r->n_top; j++)
            push(&step, json_pack("{s:I,s:o}", "token", (json_int_t)top[j].token, "logprob",
                                  number((double)top[j].logprob)));
        push(&steps, step);
    }
    return steps;
}

static json_t *policies_json(const tool_result *r)
{
    json_t *array = json_array();

    for (const char *at = r->policies.data; *at != '\0';) {
        const size_t n = strcspn(at, "\n");

        push(&array, tool_json_text(at, n));
        at += n + (at[n] == '\n');
    }
    return array;
}

static json_t *timing_json(const sy_finish *f, const tool_result_origin *origin)
{
    const double prefill_ms = f->first_token_ms - f->queue_ms;

    return json_pack("{s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "load_ms",
                     origin->load_ms < 0 ? json_null() : number(origin->load_ms), "queue_ms",
                     number(f->queue_ms), "first_token_ms", number(f->first_token_ms), "total_ms",
                     number(f->total_ms), "decode_tokens_per_s", number(f->decode_tokens_per_s),
                     "prefill_tokens_per_s",
                     number(prefill_ms > 0 ? f->prompt_tokens * 1e3 / prefill_ms : 0), "route_ms",
                     number(f->route_ms), "dispatch_ms", number(f->dispatch_ms), "compute_ms",
                     number(f->compute_ms), "combine_ms", number(f->combine_ms));
}

json_t *tool_result_json(const tool_result *r, const tool_result_origin *origin)
{
    static const char *const reasons[] = {
        [SY_FINISH_NONE] = "none", [SY_FINISH_STOP] = "stop", [SY_FINISH_LENGTH] = "length"};
    const size_t reason = (size_t)r->finish.reason;
    char hash[17];

    snprintf(hash, sizeof(hash), "%016" PRIx64, r->finish.placement_hash);
    return json_pack("{s:o,s:o,s:o,s:o,s:s,s:{s:I,s:I},s:o,s:s,s:s?,s:o}", "tokens", tokens_json(r),
                     "text", tool_json_text(r->text.data, r->text.len), "logprobs",
                     logprobs_json(r), "top_logprobs", top_logprobs_json(r), "finish_reason",
                     reason < SY_COUNT_OF(reasons) ? reasons[reason] : "none", "usage",
                     "prompt_tokens", (json_int_t)r->finish.prompt_tokens, "generated_tokens",
                     (json_int_t)r->finish.generated_tokens, "timing",
                     timing_json(&r->finish, origin), "placement_hash", hash, "kernels",
                     origin->kernels, "policies", policies_json(r));
}

static sy_status print_json(const tool_result *r, const tool_result_origin *origin, sy_error *err)
{
    json_t *root = tool_result_json(r, origin);
    char *line =
        root == NULL ? NULL : json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(FLOAT_DIGITS));

    json_decref(root);
    if (line == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the JSON");
    puts(line);
    free(line);
    return SY_OK;
}

/* ---- the rest ---- */

static void print_summary(const sy_finish *f)
{
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr,
            "%u prompt tokens, %u generated in %.2f s: first after %.0f ms, then %.1f tokens/s\n",
            f->prompt_tokens, f->generated_tokens, f->total_ms / 1e3, f->first_token_ms,
            f->decode_tokens_per_s);
}

int tool_result_print_end(const tool_result *r, const tool_result_origin *origin, int json,
                          size_t number)
{
    sy_error err = r->error;

    if (!json && (err.status == SY_OK || r->text.len > 0)) putchar('\n');
    if (err.status == SY_OK && json) err.status = print_json(r, origin, &err);
    if (err.status == SY_OK) {
        if (!json) print_summary(&r->finish);
        return tool_flush_stdout();
    }
    if (number != 0) sy_error_prefix(&err, "prompt %zu", number);
    return tool_fail(&err);
}

sy_status tool_results_write_logits(const char *path, const tool_result *results, size_t n,
                                    sy_error *err)
{
    tool_npy_shape shape = {.dtype = SY_F32};
    sy_iov *pieces = calloc(n, sizeof(*pieces));
    sy_status st;

    if (pieces == NULL) return sy_error_set(err, SY_ENOMEM, "no memory to write the logits");
    for (size_t i = 0; i < n; i++) {
        pieces[i] = (sy_iov){results[i].logits.data, results[i].logits.len};
        shape.rows += results[i].n_tokens;
        shape.cols = SY_MAX(shape.cols, results[i].vocab);
    }
    st = tool_npy_write(path, shape, pieces, n, err);
    free(pieces);
    return st;
}
