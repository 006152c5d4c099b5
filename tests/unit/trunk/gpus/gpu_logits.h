/* gpu_logits.h - logits of two sequences through a made model, in as many ways as they can be cut
 * into steps: alone, together, in pieces, losing rows, in two workspaces. */
#ifndef GPU_LOGITS_H
#define GPU_LOGITS_H

#include "gpu_forms.h"

enum { SEQS = 2, TOKENS = 21, STEPS = 6, STEP_ROWS = 48, EXTRA = 3 };

/* Of the logits of one position from the processor's, to their size: products round activations to
 * bf16. */
#define DISTANCE_MAX 2e-2

/* What each step takes of either sequence, and what else happens to it. */
typedef struct way {
    uint32_t step[STEPS][SEQS];
    int two_workspaces; /* in turn */
    int loses_rows;     /* of another sequence, in the middle of each step */
} way;

static const way whole = {.step = {{TOKENS, TOKENS}}};
static const way alone = {.step = {{TOKENS, 0}, {0, TOKENS}}};
static const way pieces = {.step = {{1, 3}, {14, 0}, {1, 14}, {4, 1}, {1, 3}}};
static const way in_turn = {.step = {{9, 0}, {0, 20}, {11, 0}, {0, 1}, {1, 0}},
                            .two_workspaces = 1};
static const way losing = {.step = {{8, 20}, {13, 1}}, .loses_rows = 1};

static inline uint32_t token_at(uint32_t seq, uint32_t position)
{
    return (uint32_t)(sy_splitmix64(seq * 1000 + position) % VOCAB);
}

typedef struct run {
    const sy_trunk *trunk;
    sy_trunk_ws *ws[2];
    sy_kv *kv;
    sy_kv_seq seq[SEQS + 1]; /* the last one's rows are lost */
    uint32_t n_done[SEQS];
    float *logits; /* [SEQS][TOKENS][VOCAB] */
    uint32_t token[STEP_ROWS], position[STEP_ROWS], place[STEP_ROWS];
    const sy_kv_seq *of[STEP_ROWS];
} run;

static inline void add_row(run *r, sy_batch *batch, uint32_t seq, uint32_t position)
{
    const uint32_t t = batch->n_rows++;

    assert_true(t < STEP_ROWS);
    r->token[t] = token_at(seq, position);
    r->position[t] = position;
    r->of[t] = &r->seq[seq];
    r->place[t] = seq * TOKENS + position;
}

static inline sy_batch choose_rows(run *r, const uint32_t n[SEQS], int has_extra)
{
    sy_batch batch = {0, r->token, r->position, r->of};
    uint32_t n_extra = 0;

    for (uint32_t i = 0; i < SEQS; i++) {
        assert_int_equal(sy_kv_reserve(r->kv, &r->seq[i], r->n_done[i] + n[i]), SY_OK);
        for (uint32_t j = 0; j < n[i]; j++) {
            assert_true(r->n_done[i] < TOKENS);
            add_row(r, &batch, i, r->n_done[i]++);
        }
        if (has_extra) add_row(r, &batch, SEQS, n_extra++);
    }
    if (has_extra) add_row(r, &batch, SEQS, n_extra++);
    assert_int_equal(n_extra, has_extra ? EXTRA : 0);
    return batch;
}

/* Rows of the last sequence are lost, between two layers. */
static inline void lose_rows(run *r, sy_trunk_ws *ws, sy_batch *batch)
{
    uint32_t row[STEP_ROWS], n = 0;
    sy_error err = {0};

    for (uint32_t t = 0; t < batch->n_rows; t++) {
        if (r->of[t] == &r->seq[SEQS]) continue;
        r->token[n] = r->token[t];
        r->position[n] = r->position[t];
        r->of[n] = r->of[t];
        r->place[n] = r->place[t];
        row[n++] = t;
    }
    batch->n_rows = n;
    must(sy_trunk_keep(r->trunk, ws, batch, row, &err), &err);
}

/* What experts would give: something of the row alone. */
static inline void compute_experts(const sy_trunk *trunk, sy_trunk_ws *ws, uint32_t n_rows)
{
    const size_t hidden = sy_trunk_describe(trunk)->hidden;
    const float *xn;
    sy_error err = {0};

    must(sy_trunk_input(&xn, trunk, ws, n_rows, &err), &err);
    float *out = sy_trunk_output(ws);
    for (size_t i = 0; i < n_rows * hidden; i++) out[i] = 0.5f * xn[i] + 0.25f;
    must(sy_trunk_add(trunk, ws, n_rows, &err), &err);
}

static inline void run_step(run *r, const way *w, uint32_t step)
{
    const sy_model_desc *d = sy_trunk_describe(r->trunk);
    sy_trunk_ws *ws = r->ws[w->two_workspaces && step % 2 == 1];
    sy_batch batch = choose_rows(r, w->step[step], w->loses_rows);
    float *logits = malloc(sizeof(float) * STEP_ROWS * VOCAB);
    sy_trunk_row row[STEP_ROWS];
    sy_error err = {0};

    assert_non_null(logits);
    must(sy_trunk_begin(r->trunk, ws, &batch, &err), &err);
    for (uint32_t layer = 0; layer < d->n_layers; layer++) {
        must(sy_trunk_attend(r->trunk, ws, r->kv, layer, &batch, &err), &err);
        must(sy_trunk_norm(r->trunk, ws, layer, batch.n_rows, &err), &err);
        must(sy_trunk_mlp(r->trunk, ws, layer, batch.n_rows, &err), &err);
        if (sy_model_has_experts(d, layer)) compute_experts(r->trunk, ws, batch.n_rows);
        if (w->loses_rows && layer == 0) lose_rows(r, ws, &batch);
    }
    for (uint32_t t = 0; t < batch.n_rows; t++) row[t] = (sy_trunk_row){ws, t};
    must(sy_trunk_head(r->trunk, logits, row, batch.n_rows, &err), &err);
    for (uint32_t t = 0; t < batch.n_rows; t++)
        memcpy(r->logits + (size_t)r->place[t] * VOCAB, logits + (size_t)t * VOCAB,
               VOCAB * sizeof(float));
    free(logits);
}

/* Logits [SEQS][TOKENS][VOCAB]; the caller frees. The second sequence is a long one. */
static inline float *logits_of(const sy_trunk *trunk, const way *w)
{
    run r = {.trunk = trunk, .logits = calloc((size_t)SEQS * TOKENS * VOCAB, sizeof(float))};
    sy_error err = {0};

    assert_non_null(r.logits);
    for (size_t i = 0; i < 2; i++)
        must(sy_trunk_ws_open(&r.ws[i], trunk, STEP_ROWS, NULL, &err), &err);
    must(sy_kv_open(&r.kv, trunk, 5, &err), &err);
    r.seq[1].is_long = 1;
    assert_int_equal(sy_kv_reserve(r.kv, &r.seq[SEQS], EXTRA), SY_OK);
    for (uint32_t i = 0; i < STEPS; i++)
        if (w->step[i][0] + w->step[i][1] > 0) run_step(&r, w, i);
    for (size_t i = 0; i <= SEQS; i++) {
        if (i < SEQS) assert_int_equal(r.n_done[i], TOKENS);
        sy_kv_release(r.kv, &r.seq[i]);
    }
    sy_kv_close(r.kv);
    sy_trunk_ws_close(r.ws[0]);
    sy_trunk_ws_close(r.ws[1]);
    return r.logits;
}

static inline void check_close(const char *name, const float *got, const float *want)
{
    for (size_t seq = 0; seq < SEQS; seq++) {
        for (size_t t = 0; t < TOKENS; t++) {
            const size_t at = (seq * TOKENS + t) * VOCAB;
            const double d = distance(got + at, want + at, VOCAB);
            if (!(d <= DISTANCE_MAX) || d == 0)
                fail_msg("%s: sequence %zu, position %zu: %g off", name, seq, t, d);
        }
    }
}

static inline void check_bits(const char *name, const char *way_name, const float *got,
                              const float *want)
{
    for (size_t i = 0; i < (size_t)SEQS * TOKENS * VOCAB; i++) {
        if (memcmp(&got[i], &want[i], sizeof(float)) == 0) continue;
        fail_msg("%s, %s: sequence %zu, position %zu: %.9g, alone %.9g", name, way_name,
                 i / VOCAB / TOKENS, i / VOCAB % TOKENS, (double)got[i], (double)want[i]);
    }
}

#endif
