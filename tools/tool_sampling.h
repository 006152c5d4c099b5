/* tool_sampling.h - the options that `run` and `generate` share: prompts, how to draw, what to
 * print. */
#ifndef TOOL_SAMPLING_H
#define TOOL_SAMPLING_H

#include "sy_args.h"
#include "sy_wire.h"

typedef struct tool_sampling {
    const char *prompt, *prompt_file, *chat_file, *tokens, *prompts_file;
    int64_t max_tokens, top_k, seed, top_logprobs, experts_per_token;
    double temperature, top_p, min_p, repetition_penalty;
    sy_arg_strings stop;
    int logprobs, ignore_eos, json;
    const char *logits_out;
} tool_sampling;

#define TOOL_SAMPLING_ARGS 19
/* Sets the defaults and fills the table's first TOOL_SAMPLING_ARGS rows. */
void tool_sampling_args(sy_arg out[TOOL_SAMPLING_ARGS], tool_sampling *sampling);
/* What no single option can tell: 0, or 2 with the mistake printed. */
int tool_sampling_check(const tool_sampling *sampling);

/* One prompt: text or tokens. */
typedef struct tool_prompt {
    char *text; /* NULL when tokens are given; may hold NULs */
    size_t text_bytes;
    int is_chat; /* text is a conversation, as JSON */
    uint32_t *token;
    uint32_t n_tokens;
    uint32_t max_tokens;
    uint64_t seed;
} tool_prompt;

typedef struct tool_prompts { /* zeroed is empty */
    tool_prompt *item;
    size_t n;
} tool_prompts;

/* From whichever of the five options was given: at least one prompt. A prompts file has one JSON
 * value a line: a string, or an object with "prompt", "chat" (a conversation, an object) or
 * "tokens" and maybe "max_tokens" and "seed", which win over the options. Returns 0, or the exit
 * code with the mistake printed. *out is to be freed either way. */
int tool_prompts_load(tool_prompts *out, const tool_sampling *sampling);
void tool_prompts_free(tool_prompts *prompts);

/* The request for one prompt, without a model's name; borrows from both. */
sy_generate_request tool_request(const tool_sampling *sampling, const tool_prompt *prompt);

#endif
