/* sy_sequence.c - from a drawn token to an event: end tokens, limits, and text that is shown only
 * once it is certain. */
#include "sy_sequence.h"

#include <stdlib.h>
#include <string.h>

#include "sy_clock.h"

static sy_status copy_stops(sequence *seq, const sy_gen_params *params)
{
    for (uint32_t i = 0; i < params->n_stops; i++) {
        seq->stop[i] = strdup(params->stop[i]);
        if (seq->stop[i] == NULL) return SY_ENOMEM;
        seq->stop_bytes[i] = strlen(seq->stop[i]);
        seq->n_stops = i + 1;
    }
    return SY_OK;
}

sequence *sequence_make(uint64_t id, const sy_gen_params *params, const sy_model_desc *desc)
{
    sequence *seq = calloc(1, sizeof(*seq));
    const uint32_t room = desc->context - params->n_prompt;
    const uint32_t more = params->max_tokens == 0 ? room : SY_MIN(params->max_tokens, room);

    if (seq == NULL) return NULL;
    sy_strbuf_init(&seq->text);
    seq->n_max = params->n_prompt + more;
    seq->kv.is_long = seq->n_max > desc->rope.original_context;
    seq->token = malloc(sizeof(uint32_t) * seq->n_max);
    if (seq->token == NULL || copy_stops(seq, params) != SY_OK) {
        sequence_free(seq);
        return NULL;
    }
    memcpy(seq->token, params->prompt, sizeof(uint32_t) * params->n_prompt);
    seq->id = id;
    seq->n_prompt = seq->n_tokens = params->n_prompt;
    seq->sampler = params->sampler;
    seq->logprobs = params->logprobs;
    seq->want_logits = params->want_logits;
    seq->ignore_eos = params->ignore_eos;
    seq->top_logprobs = params->top_logprobs;
    seq->experts_per_token = params->experts_per_token;
    seq->degraded = params->degraded;
    seq->deadline_us = params->deadline_us;
    seq->user = params->user;
    seq->on_event = params->on_event;
    seq->submitted_us = sy_clock_us();
    sy_error_clear(&seq->error);
    return seq;
}

void sequence_free(sequence *seq)
{
    if (seq == NULL) return;
    for (uint32_t i = 0; i < seq->n_stops; i++) free(seq->stop[i]);
    sy_strbuf_free(&seq->text);
    free(seq->token);
    free(seq);
}

/* Where the earliest stop text begins, or SIZE_MAX. */
static size_t find_stop(const sequence *seq)
{
    size_t first = SIZE_MAX;

    for (uint32_t i = 0; i < seq->n_stops; i++) {
        const char *at = memmem(seq->text.data, seq->text.len, seq->stop[i], seq->stop_bytes[i]);
        if (at != NULL) first = SY_MIN(first, (size_t)(at - seq->text.data));
    }
    return first;
}

/* Length of the longest end of the text that could still become a stop text: it is held back. */
static size_t held_back(const sequence *seq)
{
    size_t longest = 0;

    for (uint32_t i = 0; i < seq->n_stops; i++) {
        size_t n = SY_MIN(seq->stop_bytes[i] - 1, seq->text.len);
        while (n > longest && memcmp(seq->text.data + seq->text.len - n, seq->stop[i], n) != 0) n--;
        longest = SY_MAX(longest, n);
    }
    return longest;
}

static sy_gen_stats stats_of(const sequence *seq, uint64_t placement_hash)
{
    const int64_t now_us = sy_clock_us();
    sy_gen_stats s = {.prompt_tokens = seq->n_prompt,
                      .generated_tokens = seq->n_tokens - seq->n_prompt,
                      .queue_us = seq->started_us == 0 ? 0 : seq->started_us - seq->submitted_us,
                      .first_token_us =
                          seq->first_token_us == 0 ? 0 : seq->first_token_us - seq->submitted_us,
                      .total_us = now_us - seq->submitted_us,
                      .moe = seq->moe,
                      .placement_hash = placement_hash,
                      .degraded_rows = seq->degraded_rows,
                      .other_weights_rows = seq->other_weights_rows};

    if (s.generated_tokens > 1 && now_us > seq->first_token_us)
        s.decode_tokens_per_s =
            (s.generated_tokens - 1) * 1e6 / (double)(now_us - seq->first_token_us);
    return s;
}

static void drop_front(sy_strbuf *text, size_t n)
{
    memmove(text->data, text->data + n, text->len - n);
    text->len -= n;
    text->data[text->len] = '\0';
}

static int is_eos(const sequence *seq, const sy_model_desc *desc, uint32_t token)
{
    for (uint32_t i = 0; !seq->ignore_eos && i < desc->n_eos; i++)
        if (desc->eos[i] >= 0 && (uint32_t)desc->eos[i] == token) return 1;
    return 0;
}

/* Adds the token's text and says how much of it may be shown; *ended is raised by a stop text. */
static size_t advance_text(sequence *seq, const sy_tokenizer *tokenizer, uint32_t token, int *ended)
{
    size_t at;

    sy_tokenizer_decode(tokenizer, &seq->detok, token, 1, &seq->text);
    if (*ended) sy_tokenizer_decode_end(tokenizer, &seq->detok, &seq->text);
    if (seq->text.len == 0) return 0;
    at = find_stop(seq);
    if (at != SIZE_MAX) {
        *ended = 1;
        return at;
    }
    return *ended ? seq->text.len : seq->text.len - held_back(seq);
}

int sequence_take(sequence *seq, const drawn *d, const sy_model_desc *desc,
                  const sy_tokenizer *tokenizer, uint64_t placement_hash)
{
    sy_gen_event event = {.n_tokens = 1, .token = &d->token, .reason = SY_GEN_STOP};
    const int eos = is_eos(seq, desc, d->token);
    size_t shown;

    seq->token[seq->n_tokens++] = d->token;
    if (seq->first_token_us == 0) seq->first_token_us = sy_clock_us();
    event.ended = eos || seq->n_tokens == seq->n_max;
    if (event.ended && !eos) event.reason = SY_GEN_LENGTH;
    shown = advance_text(seq, tokenizer, d->token, &event.ended);
    if (event.ended && shown != seq->text.len) event.reason = SY_GEN_STOP; /* cut by a stop text */
    event.text = seq->text.data;
    event.text_bytes = shown;
    if (seq->logprobs) event.logprob = &d->logprob;
    if (seq->top_logprobs > 0) {
        event.n_top = seq->top_logprobs;
        event.top = d->top;
    }
    event.logits = d->logits;
    sy_error_clear(&event.error);
    if (seq->text.failed) {
        event.ended = 1;
        sy_error_set(&event.error, SY_ENOMEM, "no memory for the text");
    }
    if (event.ended) event.stats = stats_of(seq, placement_hash);
    seq->on_event(seq->user, &event);
    if (!event.ended && shown > 0) drop_front(&seq->text, shown);
    return event.ended;
}

void sequence_fail(sequence *seq)
{
    sy_gen_event event = {.ended = 1, .error = seq->error, .stats = stats_of(seq, 0)};

    seq->on_event(seq->user, &event);
}
