/* tool_sampling.c - the table of the shared options, and what they come to as a request. */
#include "tool_sampling.h"

#include <stdio.h>
#include <string.h>

#include "tool_print.h"

void tool_sampling_args(sy_arg out[TOOL_SAMPLING_ARGS], tool_sampling *s)
{
    *s = (tool_sampling){.max_tokens = 128, .top_p = 1, .repetition_penalty = 1};
    const sy_arg args[] = {
        {"prompt", "TEXT", "the prompt", SY_ARG_STRING, &s->prompt, 0, 0},
        {"prompt-file", "FILE", "the prompt, byte for byte", SY_ARG_STRING, &s->prompt_file, 0, 0},
        {"chat", "FILE",
         "a conversation for the checkpoint's chat template, as JSON: {\"messages\": [{\"role\": "
         "\"user\", \"content\": TEXT}]}, and whatever else the template reads",
         SY_ARG_STRING, &s->chat_file, 0, 0},
        {"tokens", "IDS", "the prompt as token ids: 1,17,42", SY_ARG_STRING, &s->tokens, 0, 0},
        {"prompts-file", "FILE",
         "several prompts, a JSON value a line: a string, or {\"prompt\": TEXT} or {\"tokens\": "
         "[IDS]}, also with \"max_tokens\" and \"seed\"",
         SY_ARG_STRING, &s->prompts_file, 0, 0},
        {"max-tokens", "N", "tokens to generate; 0: to the end of the context", SY_ARG_INT,
         &s->max_tokens, 0, UINT32_MAX},
        {"temperature", "T", "0: always the most likely token", SY_ARG_DOUBLE, &s->temperature, 0,
         0},
        {"top-k", "K", "draw from the K most likely tokens; 0: all", SY_ARG_INT, &s->top_k, 0,
         UINT32_MAX},
        {"top-p", "P", "draw from the fewest tokens that together reach this probability",
         SY_ARG_DOUBLE, &s->top_p, 0, 0},
        {"min-p", "P", "leave out tokens below this share of the best one's probability",
         SY_ARG_DOUBLE, &s->min_p, 0, 0},
        {"repetition-penalty", "X", "above 1: avoid tokens that were seen", SY_ARG_DOUBLE,
         &s->repetition_penalty, 0, 0},
        {"seed", "S", "the same seed draws the same tokens", SY_ARG_INT, &s->seed, 0, INT64_MAX},
        {"stop", "TEXT", "a text that ends the answer and is not part of it", SY_ARG_STRINGS,
         &s->stop, 0, 0},
        {"ignore-eos", NULL, "go on after the model's end token", SY_ARG_FLAG, &s->ignore_eos, 0,
         0},
        {"experts-per-token", "K",
         "use fewer experts than the checkpoint says, weights renormalised; 0: as it says",
         SY_ARG_INT, &s->experts_per_token, 0, UINT16_MAX},
        {"json", NULL, "print one JSON object a prompt instead of text", SY_ARG_FLAG, &s->json, 0,
         0},
        {"logprobs", NULL, "with --json: log probabilities of the tokens", SY_ARG_FLAG,
         &s->logprobs, 0, 0},
        {"top-logprobs", "N", "with --json: the N most likely tokens of each step", SY_ARG_INT,
         &s->top_logprobs, 0, SY_WIRE_TOP_LOGPROBS_MAX},
        {"logits-out", "FILE", "write every step's logits, float32 [tokens, vocabulary], as .npy",
         SY_ARG_STRING, &s->logits_out, 0, 0},
    };
    _Static_assert(SY_COUNT_OF(args) == TOOL_SAMPLING_ARGS, "the header promises so many");
    memcpy(out, args, sizeof(args));
}

static int check_prompt(const tool_sampling *s)
{
    const int n = (s->prompt != NULL) + (s->prompt_file != NULL) + (s->chat_file != NULL) +
                  (s->tokens != NULL) + (s->prompts_file != NULL);

    if (n == 1) return 0;
    return tool_bad_option(n == 0
                               ? "a prompt is missing: --prompt, --prompt-file, --chat, --tokens "
                                 "or --prompts-file"
                               : "give one of --prompt, --prompt-file, --chat, --tokens and "
                                 "--prompts-file");
}

int tool_sampling_check(const tool_sampling *s)
{
    if (check_prompt(s) != 0) return 2;
    if (!(s->temperature >= 0 && s->temperature <= 1e4))
        return tool_bad_option("--temperature: %g is not between 0 and 10000", s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return tool_bad_option("--top-p: %g is not above 0 and at most 1", s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return tool_bad_option("--min-p: %g is not between 0 and 1", s->min_p);
    if (!(s->repetition_penalty > 0 && s->repetition_penalty <= 1e4))
        return tool_bad_option("--repetition-penalty: %g is not above 0", s->repetition_penalty);
    for (size_t i = 0; i < s->stop.n; i++)
        if (s->stop.item[i][0] == '\0')
            return tool_bad_option("--stop: an empty text would end every answer at once");
    if ((s->logprobs || s->top_logprobs > 0) && !s->json)
        return tool_bad_option("log probabilities are part of the JSON: add --json");
    if (s->temperature == 0 && (s->top_k != 0 || s->top_p != 1 || s->min_p != 0))
        fputs("switchyard: note: --top-k, --top-p and --min-p do nothing at temperature 0\n",
              stderr);
    return 0;
}

sy_generate_request tool_request(const tool_sampling *s, const tool_prompt *prompt)
{
    return (sy_generate_request){
        .model = "",
        .prompt = prompt->text,
        .prompt_bytes = prompt->text_bytes,
        .is_chat = prompt->is_chat,
        .token = prompt->token,
        .n_tokens = prompt->n_tokens,
        .max_tokens = prompt->max_tokens,
        .sampling = {.temperature = (float)s->temperature,
                     .top_k = (uint32_t)s->top_k,
                     .top_p = (float)s->top_p,
                     .min_p = (float)s->min_p,
                     .repetition_penalty = (float)s->repetition_penalty},
        .n_stops = (uint32_t)s->stop.n,
        .stop = s->stop.item,
        .seed = prompt->seed,
        .logprobs = s->logprobs,
        .top_logprobs = (uint32_t)s->top_logprobs,
        .policy = {.experts_per_token = (uint32_t)s->experts_per_token},
        .want_logits = s->logits_out != NULL,
        .ignore_eos = s->ignore_eos,
    };
}
