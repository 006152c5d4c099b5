/* sy_engine.h - many generations at once over one model: continuous batching. A single thread
 * steps: the next token of every running sequence plus pieces of waiting prompts, up to a budget of
 * rows. With experts elsewhere a large step passes the layers as two halves, one with the experts
 * while the other is in attention. Results of a sequence never depend on what else runs. Limits are
 * stated at open; past them a submission is refused at once, never queued without bound. */
#ifndef SY_ENGINE_H
#define SY_ENGINE_H

#include "sy_moe.h"
#include "sy_sampler.h"
#include "sy_tokenizer.h"
#include "sy_trunk.h"

typedef struct sy_engine sy_engine;

#define SY_STOPS_MAX        16
#define SY_TOP_LOGPROBS_MAX 20

typedef struct sy_engine_config {
    const sy_trunk *trunk;
    const sy_tokenizer *tokenizer;
    sy_moe moe;
    sy_moe second_moe;         /* called while `moe` is, from a thread of its own, for the second
                                  half of a step's rows. Its layer NULL: no step is divided */
    uint32_t overlap_rows_min; /* rows of a step that is divided. 0: none is */
    sy_pool *pool;             /* for the trunk's work; NULL: the engine's thread alone */
    uint32_t running_max;      /* sequences computed together. 0: 64 */
    uint32_t queue_max;        /* sequences waiting for room. 0: 1024 */
    uint32_t step_rows_max;    /* rows a step. 0: 512 */
    uint32_t prompt_rows_max;  /* of these for prompts, while others decode. 0: step_rows_max */
    uint64_t kv_bytes_max;     /* KV cache. 0: running_max whole contexts, at most 1 GiB */
    int64_t layer_timeout_us;  /* one MoE call. 0: 30 s */
} sy_engine_config;

typedef enum sy_gen_end { SY_GEN_STOP = 1, SY_GEN_LENGTH = 2 } sy_gen_end;

typedef struct sy_gen_stats {
    uint32_t prompt_tokens, generated_tokens;
    int64_t queue_us, first_token_us, total_us; /* since submission */
    double decode_tokens_per_s;                 /* after the first token; 0 for a single one */
    sy_moe_times moe; /* of every layer call this sequence took part in: both calls of a layer
                         whose halves held rows of it, though they ran side by side */
    uint64_t placement_hash;
    uint32_t degraded_rows;      /* token rows of a layer that miss an expert */
    uint32_t other_weights_rows; /* of those computed with other weights, as placement said */
} sy_gen_stats;

/* What happened to a sequence; pointers are borrowed for the callback. Exactly one event has
 * `ended`, and it is the last. */
typedef struct sy_gen_event {
    uint32_t n_tokens; /* 0 or 1 */
    const uint32_t *token;
    const char *
        text; /* what became certain; never splits a character, never shows a part of a stop text */
    size_t text_bytes;
    const float *logprob; /* [n_tokens] or NULL */
    uint32_t n_top;
    const sy_top_token *top; /* [n_top] or NULL */
    const float *logits;     /* [vocab] or NULL */
    int ended;               /* reason, stats, and error (not SY_OK: it failed) are set */
    sy_gen_end reason;
    sy_error error;
    sy_gen_stats stats;
} sy_gen_event;

typedef struct sy_gen_params {
    const uint32_t *prompt; /* n_prompt >= 1 ids < vocab; copied */
    uint32_t n_prompt;
    uint32_t max_tokens; /* 0: to the end of the context */
    sy_sampler sampler;
    uint32_t n_stops;
    const char *const *stop; /* not empty; copied */
    int logprobs, want_logits, ignore_eos;
    uint32_t top_logprobs;
    uint32_t experts_per_token; /* 0: the checkpoint's */
    int degraded;               /* go on without an expert that nobody answers for */
    int64_t deadline_us;        /* SY_NEVER_US: none */
    void *user;
    void (*on_event)(void *user, const sy_gen_event *event); /* engine thread; must not block */
} sy_gen_params;

SY_MUST_USE sy_status sy_engine_open(sy_engine **out, const sy_engine_config *config,
                                     sy_error *err);
/* An overlap_rows_min at which each half still has enough rows for each expert that reading the
 * expert's weights a second time hides behind the arithmetic. */
uint32_t sy_engine_overlap_rows(const sy_model_desc *desc);
/* Ends what runs with SY_ECANCELLED events, then joins. Accepts NULL. */
void sy_engine_close(sy_engine *engine);
/* *id names the sequence until its last event; fails now or calls on_event later, never both. Any
 * thread. SY_EINVAL (empty prompt, id past the vocabulary, prompt as long as the context or longer,
 * too many stops), SY_ELIMIT (the queue is full, or the sequence could never fit the KV cache; the
 * text says the limit), SY_ECANCELLED (closing), SY_ENOMEM. */
SY_MUST_USE sy_status sy_engine_submit(sy_engine *engine, const sy_gen_params *params, uint64_t *id,
                                       sy_error *err);
void sy_engine_cancel(
    sy_engine *engine,
    uint64_t id); /* an ECANCELLED event follows unless it ended already. Any thread */

typedef struct sy_engine_load {
    uint32_t running, waiting, running_max, queue_max;
    uint32_t kv_pages, kv_free_pages;
    uint64_t steps, rows; /* since start */
} sy_engine_load;
void sy_engine_get_load(const sy_engine *engine, sy_engine_load *out); /* any thread */
/* Waits until nothing runs or waits, or the deadline: 1 when idle. */
int sy_engine_wait_idle(sy_engine *engine, int64_t deadline_us);

#endif
