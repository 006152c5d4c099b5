/* inspect_fidelity.c - running a model in several precisions, one after the other. */
#include "inspect_fidelity.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "sy_clock.h"
#include "sy_hash.h"
#include "sy_moe.h"
#include "sy_trunk.h"
#include "tool_print.h"

enum {
    STEP_ROWS_MAX = 256,
    HEAD_ROWS_MAX = 32, /* whose logits are compared at once; those as stored are all kept */
    LABEL_BYTES = 64
};
#define SCRATCH_BYTES ((uint64_t)64 << 20) /* of loading and of threads, at the most */

static const sy_precision as_stored;
#define Q8                \
    {                     \
        SY_Q8, SY_ACT_F32 \
    }
#define Q4                \
    {                     \
        SY_Q4, SY_ACT_F32 \
    }
#define FP8                \
    {                      \
        SY_FP8, SY_ACT_F32 \
    }
#define MXFP4                \
    {                        \
        SY_MXFP4, SY_ACT_F32 \
    }
#define Q8_ROWS          \
    {                    \
        SY_Q8, SY_ACT_Q8 \
    }
#define Q4_ROWS          \
    {                    \
        SY_Q4, SY_ACT_Q8 \
    }
#define BF16_ROWS            \
    {                        \
        SY_BF16, SY_ACT_BF16 \
    }

/* In the order that is printed. */
static const struct {
    const char *name;
    sy_precision trunk, experts;
} variants[INSPECT_FIDELITY_ROWS_MAX] = {
    {"as stored", {0}, {0}},
    {"experts fp8", {0}, FP8},
    {"trunk fp8", FP8, {0}},
    {"both fp8", FP8, FP8},
    {"experts mxfp4", {0}, MXFP4},
    {"trunk mxfp4", MXFP4, {0}},
    {"both mxfp4", MXFP4, MXFP4},
    {"experts q8", {0}, Q8},
    {"experts q4", {0}, Q4},
    {"trunk q8", Q8, {0}},
    {"trunk q4", Q4, {0}},
    {"both q8", Q8, Q8},
    {"both q4", Q4, Q4},
    {"both q8, q8 rows", Q8_ROWS, Q8_ROWS},
    {"both q4, q8 rows", Q4_ROWS, Q4_ROWS},
    {"bf16 rows", BF16_ROWS, BF16_ROWS},
};
/* In the order in which they run: from one to the next only one part changes, as far as that is
 * possible, and the other one stays in memory. */
static const uint8_t order[INSPECT_FIDELITY_ROWS_MAX] = {0,  1,  3, 2, 4,  6,  5,  9,
                                                         10, 12, 8, 7, 11, 13, 14, 15};

/* The model in one precision after the other, and what its steps work in. */
typedef struct session {
    const sy_model *model;
    const sy_model_desc *desc;
    const sy_kernels *kernels;
    sy_pool *pool;
    uint32_t n_tokens, n_rows; /* of a prompt, of all prompts */
    uint32_t step_rows_max;
    size_t n_run, n_variants; /* so far, and in all, for the label */
    char label[LABEL_BYTES];
    /* The parts that are in memory, and how; NULL: not now. */
    sy_trunk *trunk;
    sy_trunk_ws *ws;
    sy_moe_local *experts;
    sy_precision trunk_precision, experts_precision;
    /* Of a step, [step_rows_max]; rows of all prompts follow each other. */
    sy_kv *kv;
    sy_kv_seq seq[INSPECT_FIDELITY_PROMPTS];
    const sy_kv_seq **seq_of;
    uint32_t *token, *position;
    uint64_t *request;
    uint8_t *failed;
    uint16_t *got_expert;   /* [.,K] of one layer */
    float *got;             /* [HEAD_ROWS_MAX,V] */
    fidelity_row *compared; /* [HEAD_ROWS_MAX] */
    /* Of the model as stored, kept. */
    float *want;           /* [n_rows,V] */
    uint16_t *want_expert; /* [layers,n_rows,K]; dense layers have nothing in theirs */
} session;

/* ---- memory ---- */

static uint64_t weight_bytes(const inspect_facts *f, sy_dtype weights, int trunk)
{
    for (size_t i = 0; i < f->n_formats; i++)
        if (f->format[i].weights == weights)
            return trunk ? f->format[i].trunk_bytes : f->format[i].experts_bytes;
    return trunk ? f->format[0].trunk_bytes
                 : f->format[0].experts_bytes; /* bf16, as it is stored */
}

/* Floats of a row while it passes a layer: the residual stream and its like, attention, the MLPs,
 * and what each of its experts makes of it. */
static uint64_t row_floats(const sy_model_desc *d)
{
    const uint64_t heads = 4 * (uint64_t)d->n_heads * SY_MAX(d->head_dim, d->mla.kv_rank);
    const uint64_t mlp = 2 * (uint64_t)SY_MAX(d->dense_ffn, d->shared_ffn);

    return 8 * (uint64_t)d->hidden + heads + mlp + d->n_experts +
           (uint64_t)d->top_k * (d->hidden + 2 * (uint64_t)d->expert_ffn);
}

static uint32_t kv_pages(uint32_t n_tokens)
{
    return (n_tokens + SY_KV_PAGE - 1) / SY_KV_PAGE * INSPECT_FIDELITY_PROMPTS;
}

/* The most at any time: the largest of the variants, which is the model as stored unless that is
 * smaller than its blocks. The shape is of a valid model, so that no product overflows. */
static uint64_t needed_bytes(const inspect_facts *f, uint32_t n_tokens)
{
    const sy_model_desc *d = f->desc;
    const uint64_t rows = (uint64_t)n_tokens * INSPECT_FIDELITY_PROMPTS;
    uint64_t weights = 0;

    for (size_t i = 0; i < SY_COUNT_OF(variants); i++) {
        const uint64_t bytes = weight_bytes(f, variants[i].trunk.weights, 1) +
                               weight_bytes(f, variants[i].experts.weights, 0);
        weights = SY_MAX(weights, bytes);
    }
    return weights + f->gates.loaded_bytes + kv_pages(n_tokens) * sy_kv_page_bytes(d) +
           (rows + SY_MIN(rows, (uint64_t)HEAD_ROWS_MAX)) * d->vocab * sizeof(float) +
           rows * d->n_layers * d->top_k * sizeof(uint16_t) +
           SY_MIN(rows, (uint64_t)STEP_ROWS_MAX) * row_floats(d) * sizeof(float) + SCRATCH_BYTES;
}

static sy_status check_memory(uint64_t needed, uint64_t available, sy_error *err)
{
    char a[TOOL_SIZE_BYTES], b[TOOL_SIZE_BYTES];

    if (needed <= available) return SY_OK;
    return sy_error_set(err, SY_ELIMIT,
                        "--fidelity holds the whole model and needs %s of memory, but %s is "
                        "available: use a machine with more, or stop what else runs here",
                        tool_size(a, needed), tool_size(b, available));
}

/* ---- opening ---- */

static sy_status no_memory(sy_error *err)
{
    return sy_error_set(err, SY_ENOMEM, "no memory to compare logits");
}

static sy_status open_arrays(session *s, sy_error *err)
{
    const size_t rows = s->step_rows_max, vocab = s->desc->vocab;
    const size_t head_rows = SY_MIN(rows, (size_t)HEAD_ROWS_MAX), k = s->desc->top_k;

    s->seq_of = malloc(rows * sizeof(*s->seq_of));
    s->token = malloc(rows * sizeof(*s->token));
    s->position = malloc(rows * sizeof(*s->position));
    s->request = calloc(rows, sizeof(*s->request));
    s->failed = malloc(rows);
    s->got_expert = malloc(rows * k * sizeof(*s->got_expert));
    s->got = malloc(head_rows * vocab * sizeof(*s->got));
    s->compared = malloc(head_rows * sizeof(*s->compared));
    s->want = malloc(s->n_rows * vocab * sizeof(*s->want));
    s->want_expert = malloc(s->desc->n_layers * s->n_rows * k * sizeof(*s->want_expert));
    if (s->seq_of == NULL || s->token == NULL || s->position == NULL || s->request == NULL ||
        s->failed == NULL || s->got_expert == NULL || s->got == NULL || s->compared == NULL ||
        s->want == NULL || s->want_expert == NULL)
        return no_memory(err);
    return SY_OK;
}

static sy_status open_session(session *s, sy_error *err)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    sy_status st;

    SY_TRY(sy_kernels_choose(&s->kernels, "auto", err));
    SY_TRY(open_arrays(s, err));
    if (sy_pool_open(&s->pool, (unsigned)SY_MAX(cores, 1L), "fidelity") != SY_OK)
        return sy_error_set(err, SY_EIO, "no threads to compute with");
out:
    return st;
}

static void close_trunk(session *s)
{
    for (size_t i = 0; s->kv != NULL && i < INSPECT_FIDELITY_PROMPTS; i++)
        sy_kv_release(s->kv, &s->seq[i]);
    sy_kv_close(s->kv);
    sy_trunk_ws_close(s->ws);
    sy_trunk_close(s->trunk);
    s->kv = NULL;
    s->ws = NULL;
    s->trunk = NULL;
}

static sy_status open_trunk(session *s, sy_error *err)
{
    sy_status st;

    SY_TRY(sy_trunk_open(&s->trunk, s->model, s->kernels, s->trunk_precision, s->pool, err));
    SY_TRY(sy_trunk_ws_open(&s->ws, s->trunk, s->step_rows_max, s->pool, err));
    SY_TRY(sy_kv_open(&s->kv, s->trunk, kv_pages(s->n_tokens), err));
    for (size_t i = 0; i < INSPECT_FIDELITY_PROMPTS; i++) {
        if (sy_kv_reserve(s->kv, &s->seq[i], s->n_tokens) != SY_OK) return no_memory(err);
        s->seq[i].is_long = s->n_tokens > s->desc->rope.original_context;
    }
out:
    return st;
}

static void close_session(session *s)
{
    close_trunk(s);
    sy_moe_local_close(s->experts);
    sy_pool_free(s->pool);
    free(s->seq_of);
    free(s->token);
    free(s->position);
    free(s->request);
    free(s->failed);
    free(s->got_expert);
    free(s->got);
    free(s->compared);
    free(s->want);
    free(s->want_expert);
}

/* ---- the parts ---- */

static int same_precision(sy_precision a, sy_precision b)
{
    return a.weights == b.weights && a.activations == b.activations;
}

static void on_shard(void *arg, uint32_t done, uint32_t total)
{
    tool_progress_show(arg, done, total);
}

/* Gives up whatever is held otherwise before anything is opened. */
static sy_status hold(session *s, sy_precision trunk, sy_precision experts, sy_error *err)
{
    tool_progress progress = {.label = s->label};
    sy_status st = SY_OK;

    if (s->trunk != NULL && !same_precision(s->trunk_precision, trunk)) close_trunk(s);
    if (s->experts != NULL && !same_precision(s->experts_precision, experts)) {
        sy_moe_local_close(s->experts);
        s->experts = NULL;
    }
    if (s->trunk == NULL) {
        s->trunk_precision = trunk;
        SY_TRY(open_trunk(s, err));
    }
    if (s->experts == NULL) {
        s->experts_precision = experts;
        st = sy_moe_local_open(&s->experts, s->model, s->kernels, experts, s->pool, NULL, on_shard,
                               &progress, err);
        tool_progress_end(&progress);
    }
out:
    return st;
}

/* ---- one step ---- */

/* Rows [first, first + n) of all. Which experts they go to is kept, when diff is NULL, else
 * compared with what was. */
static sy_status ask_experts(session *s, uint32_t layer, uint32_t first, uint32_t n,
                             fidelity_diff *diff, sy_error *err)
{
    const sy_moe moe = sy_moe_local_ops(s->experts);
    const uint32_t k = s->desc->top_k;
    uint16_t *want = s->want_expert + ((size_t)layer * s->n_rows + first) * k;
    sy_moe_call call = {.layer = layer,
                        .n_rows = n,
                        .expert = diff == NULL ? want : s->got_expert,
                        .request = s->request,
                        .y = sy_trunk_output(s->ws),
                        .deadline_us = SY_NEVER_US,
                        .pool = s->pool,
                        .failed = s->failed};

    sy_error_clear(&call.error);
    const sy_status st = sy_trunk_input(&call.x, s->trunk, s->ws, n, err);
    if (st != SY_OK) return st;
    if (moe.layer(moe.ctx, &call) != SY_OK) {
        *err = call.error;
        return err->status;
    }
    for (uint32_t r = 0; r < n; r++) {
        if (!s->failed[r]) continue;
        *err = call.row_error[s->failed[r] - 1];
        return err->status;
    }
    if (diff != NULL) fidelity_diff_add_experts(diff, want, s->got_expert, n, k);
    return SY_OK;
}

/* Rows [first, first + n) of all prompts through all layers; what the head takes is in the
 * workspace. Token ids come from a counter: the same on every machine, and for every model with
 * that vocabulary. */
static sy_status run_layers(session *s, uint32_t first, uint32_t n, fidelity_diff *diff,
                            sy_error *err)
{
    const sy_batch batch = {n, s->token, s->position, s->seq_of};
    sy_status st;

    for (uint32_t r = 0; r < n; r++) {
        const uint32_t row = first + r;

        s->token[r] = (uint32_t)(sy_splitmix64(row) % s->desc->vocab);
        s->position[r] = row % s->n_tokens;
        s->seq_of[r] = &s->seq[row / s->n_tokens];
    }
    SY_TRY(sy_trunk_begin(s->trunk, s->ws, &batch, err));
    for (uint32_t layer = 0; layer < s->desc->n_layers; layer++) {
        SY_TRY(sy_trunk_attend(s->trunk, s->ws, s->kv, layer, &batch, err));
        SY_TRY(sy_trunk_norm(s->trunk, s->ws, layer, n, err));
        SY_TRY(sy_trunk_mlp(s->trunk, s->ws, layer, n, err));
        if (!sy_model_has_experts(s->desc, layer)) continue;
        SY_TRY(ask_experts(s, layer, first, n, diff, err));
        SY_TRY(sy_trunk_add(s->trunk, s->ws, n, err));
    }
out:
    return st;
}

typedef struct compare_job {
    const session *session;
    const float *want; /* [.,V], of the rows in `got` */
} compare_job;

static void compare_task(void *arg, size_t i, unsigned thread)
{
    const compare_job *job = arg;
    const session *s = job->session;
    const uint32_t vocab = s->desc->vocab;

    (void)thread;
    fidelity_row_compare(&s->compared[i], job->want + i * vocab, s->got + i * vocab, vocab);
}

/* The logits of rows [first, first + n): kept, when diff is NULL, else compared with those that
 * were. */
static sy_status run_head(session *s, uint32_t first, uint32_t n, fidelity_diff *diff,
                          sy_error *err)
{
    const size_t vocab = s->desc->vocab;
    sy_trunk_row row[HEAD_ROWS_MAX];
    sy_status st = SY_OK;

    for (uint32_t begin = 0; begin < n; begin += HEAD_ROWS_MAX) {
        const uint32_t n_head = SY_MIN(n - begin, (uint32_t)HEAD_ROWS_MAX);
        float *want = s->want + (first + begin) * vocab;

        for (uint32_t i = 0; i < n_head; i++) row[i] = (sy_trunk_row){s->ws, begin + i};
        SY_TRY(sy_trunk_head(s->trunk, diff == NULL ? want : s->got, row, n_head, err));
        if (diff == NULL) continue;
        sy_pool_run(s->pool, n_head, compare_task, &(compare_job){s, want});
        fidelity_diff_add(diff, s->compared, n_head);
    }
out:
    return st;
}

static sy_status run_prompts(session *s, fidelity_diff *diff, sy_error *err)
{
    tool_progress progress = {.label = s->label};
    sy_status st = SY_OK;

    for (uint32_t first = 0, n; first < s->n_rows; first += n) {
        n = SY_MIN(s->n_rows - first, s->step_rows_max);
        SY_TRY(run_layers(s, first, n, diff, err));
        SY_TRY(run_head(s, first, n, diff, err));
        tool_progress_show(&progress, first + n, s->n_rows);
    }
out:
    tool_progress_end(&progress);
    return st;
}

/* ---- the variants ---- */

static void set_label(session *s, const char *name)
{
    snprintf(s->label, sizeof(s->label), "%zu of %zu, %s", ++s->n_run, s->n_variants, name);
}

/* SY_EINVAL says something about one format alone: weights that it has no number for, or that are
 * not the bf16 it needs. The row has the reason, and the others go on; but the model as stored has
 * to be sound. */
static sy_status measure(session *s, inspect_fidelity_row *row, sy_error *err)
{
    const int is_as_stored =
        row->trunk.weights == SY_DTYPE_NONE && row->experts.weights == SY_DTYPE_NONE;
    sy_status st;

    set_label(s, row->name);
    st = hold(s, row->trunk, row->experts, &row->error);
    if (st == SY_OK) st = run_prompts(s, &row->diff, &row->error);
    if (st == SY_OK && row->diff.n_not_finite > 0)
        st = sy_error_set(&row->error, SY_EINVAL,
                          "the logits of %" PRIu64 " positions hold a NaN or an infinity",
                          row->diff.n_not_finite);
    if (st == SY_OK) return SY_OK;
    row->diff = (fidelity_diff){0};
    if (st == SY_EINVAL && !is_as_stored) return SY_OK;
    *err = row->error;
    sy_error_prefix(err, "%s", row->name);
    return st;
}

/* NULL: the checkpoint has nothing that is held so. */
static inspect_fidelity_row *row_named(inspect_fidelity *out, const char *name)
{
    for (size_t i = 0; i < out->n_rows; i++)
        if (out->row[i].name == name) return &out->row[i];
    return NULL;
}

static sy_status measure_all(session *s, inspect_fidelity *out, sy_error *err)
{
    sy_status st;

    snprintf(s->label, sizeof(s->label), "loading as stored");
    SY_TRY(hold(s, as_stored, as_stored, err));
    SY_TRY(run_prompts(s, NULL, err));
    for (size_t i = 0; i < SY_COUNT_OF(order); i++) {
        inspect_fidelity_row *row = row_named(out, variants[order[i]].name);

        if (row != NULL) SY_TRY(measure(s, row, err));
    }
out:
    return st;
}

/* What reading the files' own blocks rounds is not measured: all is compared with them as they
 * read.
 */
static void add_notes(inspect_fidelity *out, const inspect_facts *f)
{
    static const char *const note[] = {
        [SY_ENCODING_F8_BLOCK] =
            "fp8 weights are held as bf16: a weight times its block's factor is rounded, by 1 part "
            "in 512 at the most, and \"as stored\" is with that; --weights fp8 rounds nothing",
        [SY_ENCODING_MXFP4] = "mxfp4 weights are held as bf16, which has every one of them exactly",
        [SY_ENCODING_GGUF] = "blocks of GGUF other than Q8_0 and Q4_0 are held as bf16",
    };
    int is_seen[SY_COUNT_OF(note)] = {0};

    for (uint32_t layer = 0; layer < f->desc->n_layers; layer++)
        for (int role = SY_ROLE_NORM1; role < SY_N_ROLES; role++) {
            const sy_tensor *tensor = sy_model_tensor(f->model, (sy_role)role, layer, 0);

            if (tensor != NULL && (size_t)tensor->encoding < SY_COUNT_OF(note))
                is_seen[tensor->encoding] = 1;
        }
    for (size_t i = 0; i < SY_COUNT_OF(note); i++)
        if (is_seen[i] && note[i] != NULL) out->note[out->n_notes++] = note[i];
}

/* Whether these weights are others than those as stored: what keeps an encoding is, where this part
 * has matrices that are so encoded, which then take another number of bytes. */
static int is_other(const inspect_facts *f, sy_dtype weights, int trunk)
{
    return !sy_dtype_is_encoded(weights) ||
           weight_bytes(f, weights, trunk) != weight_bytes(f, SY_DTYPE_NONE, trunk);
}

static void add_rows(inspect_fidelity *out, const inspect_facts *f)
{
    for (size_t i = 0; i < SY_COUNT_OF(variants); i++) {
        inspect_fidelity_row *row = &out->row[out->n_rows];

        if (!is_other(f, variants[i].trunk.weights, 1)) continue;
        if (!is_other(f, variants[i].experts.weights, 0)) continue;
        out->n_rows++;
        row->name = variants[i].name;
        row->trunk = variants[i].trunk;
        row->experts = variants[i].experts;
        sy_error_clear(&row->error);
    }
}

sy_status inspect_fidelity_measure(inspect_fidelity *out, const inspect_facts *facts,
                                   uint32_t n_tokens, uint64_t memory_bytes, sy_error *err)
{
    session s = {.model = facts->model, .desc = facts->desc, .n_tokens = n_tokens};
    sy_status st;

    *out = (inspect_fidelity){.n_prompts = INSPECT_FIDELITY_PROMPTS, .n_tokens = n_tokens};
    if (n_tokens > facts->desc->context)
        return sy_error_set(err, SY_EINVAL,
                            "--fidelity-tokens: %" PRIu32 ", but the model's context has %" PRIu32,
                            n_tokens, facts->desc->context);
    add_rows(out, facts);
    add_notes(out, facts);
    s.n_variants = out->n_rows;
    s.n_rows = n_tokens * INSPECT_FIDELITY_PROMPTS;
    s.step_rows_max = SY_MIN(s.n_rows, (uint32_t)STEP_ROWS_MAX);
    out->needed_bytes = needed_bytes(facts, n_tokens);
    SY_TRY(check_memory(out->needed_bytes, memory_bytes, err));
    SY_TRY(open_session(&s, err));
    st = measure_all(&s, out, err);
out:
    close_session(&s);
    return st;
}
