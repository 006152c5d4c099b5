/* tool_result.h - a generation as it is collected, wherever it was computed: `run` fills it from
 * the engine, `generate` from the wire, and both print it the same way. One thread at a time. */
#ifndef TOOL_RESULT_H
#define TOOL_RESULT_H

#include "sy_strbuf.h"
#include "sy_wire.h"

struct json_t;

typedef struct tool_result {
    sy_strbuf token;   /* uint32 [n_tokens] */
    sy_strbuf text;    /* UTF-8 */
    sy_strbuf logprob; /* float [n_tokens], when asked for */
    sy_strbuf top;     /* sy_token_logprob [n_tokens, n_top], when asked for */
    sy_strbuf logits;  /* float [n_tokens, vocab], when asked for */
    uint32_t n_tokens, n_top, vocab;
    sy_finish finish;   /* its policies are not kept here but in: */
    sy_strbuf policies; /* each ended by a newline */
    sy_error error;     /* SY_OK: finish holds */
} tool_result;

void tool_result_init(tool_result *result);
void tool_result_free(tool_result *result);
/* A failure (no memory, logits of a changing width) lands in result->error. */
void tool_result_add(tool_result *result, const sy_delta *delta);
void tool_result_finish(tool_result *result, const sy_finish *finish);
/* True when tokens, text, log probabilities and logits have the same bytes. */
int tool_result_equal(const tool_result *a, const tool_result *b);

/* What only the process that computes knows; a client has neither. */
typedef struct tool_result_origin {
    double load_ms;      /* below 0: not known */
    const char *kernels; /* NULL: not known */
} tool_result_origin;
/* The object that both commands print. The caller owns it; NULL: no memory. */
struct json_t *tool_result_json(const tool_result *result, const tool_result_origin *origin);
/* Ends an answer whose text, unless json, is on stdout already: the JSON as one line, or a summary
 * on stderr when that is a terminal; or the error. number: of the prompt, 0 when there is but one.
 * Returns the exit code. */
int tool_result_print_end(const tool_result *result, const tool_result_origin *origin, int json,
                          size_t number);

/* All results' logits, one after another, as one .npy file [sum of n_tokens, vocab]. */
SY_MUST_USE sy_status tool_results_write_logits(const char *path, const tool_result *results,
                                                size_t n, sy_error *err);

#endif
