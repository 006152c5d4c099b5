/* sy_sequence.h - one generation inside the engine: its tokens, its text, its pages. Touched by the
 * engine's thread only, but for `cancelled`. */
#ifndef SY_SEQUENCE_H
#define SY_SEQUENCE_H

#include <stdatomic.h>

#include "sy_engine.h"

typedef struct sequence {
    uint64_t id;
    struct sequence *next;              /* in the waiting or running list */
    uint32_t *token;                    /* prompt, then what was generated */
    uint32_t n_prompt, n_tokens, n_max; /* n_max: prompt and all that may follow */
    uint32_t n_computed;                /* positions whose keys and values are in the cache */
    uint64_t last_step;                 /* when it last took part */
    sy_kv_seq kv;
    sy_sampler sampler;
    uint32_t n_stops;
    char *stop[SY_STOPS_MAX];
    size_t stop_bytes[SY_STOPS_MAX];
    int logprobs, want_logits, ignore_eos;
    uint32_t top_logprobs, experts_per_token;
    int degraded; /* may go on without an expert */
    uint32_t degraded_rows, other_weights_rows;
    int64_t deadline_us;
    void *user;
    void (*on_event)(void *user, const sy_gen_event *event);
    atomic_int cancelled;
    sy_detok detok;
    sy_strbuf text; /* decoded, not sent yet */
    int64_t submitted_us, started_us, first_token_us;
    sy_moe_times moe;
    sy_error error; /* not SY_OK: ends at the next opportunity */
} sequence;

/* What was drawn for a sequence in one step. */
typedef struct drawn {
    uint32_t token;
    float logprob;
    sy_top_token top[SY_TOP_LOGPROBS_MAX];
    const float *logits;
} drawn;

/* NULL: no memory. params were checked. */
sequence *sequence_make(uint64_t id, const sy_gen_params *params, const sy_model_desc *desc);
void sequence_free(sequence *seq); /* its pages are given back already; accepts NULL */
/* Takes the drawn token in, sends its event; 1 when that was the last one of the sequence. */
int sequence_take(sequence *seq, const drawn *d, const sy_model_desc *desc,
                  const sy_tokenizer *tokenizer, uint64_t placement_hash);
/* The last event, for a sequence that failed or was cancelled: seq->error says why. */
void sequence_fail(sequence *seq);

#endif
