/* sy_shard_combine.c - the weighted sum of the experts' rows of each token. Its order is fixed, so
 * that nobody can tell when and from where the rows came: additions are made as early as the order
 * allows, not as early as the rows are there. */
#include "sy_shard.h"

enum {
    TASK_TOKENS = 8,
    SMALL_FLOATS = 1 << 18 /* a megabyte of rows: less is read while the pool wakes up */
};

typedef struct sums {
    float *y;
    const sy_plan *plan;
    const float *const *row;
    size_t hidden;
    const uint8_t *skip;
    uint32_t *done;
    const sy_kernels *kernels;
} sums;

/* Adds terms from the n-th on until one is not there; returns how many the sum then has. */
static uint32_t add_terms(const sums *s, uint32_t t, uint32_t n)
{
    const sy_plan *plan = s->plan;
    const uint32_t *list = plan->token_row + (size_t)t * plan->top_k;
    float *out = s->y + (size_t)t * s->hidden;

    if (n == 0) {
        if (plan->top_k > 0 && list[0] != UINT32_MAX && s->row[list[0]] == NULL) return 0;
        for (size_t i = 0; i < s->hidden; i++) out[i] = 0.0f;
    }
    /* Empty slots stand at the end. */
    for (; n < plan->top_k && list[n] != UINT32_MAX && s->row[list[n]] != NULL; n++)
        s->kernels->axpy(out, s->row[list[n]], plan->row_weight[list[n]], s->hidden);
    return n;
}

static void combine_task(void *arg, size_t i, unsigned thread)
{
    const sums *s = arg;
    const uint32_t begin = (uint32_t)i * TASK_TOKENS;
    const uint32_t end = SY_MIN(begin + TASK_TOKENS, s->plan->n_tokens);

    (void)thread;
    for (uint32_t t = begin; t < end; t++) {
        if (s->skip != NULL && s->skip[t]) continue;
        const uint32_t n = add_terms(s, t, s->done == NULL ? 0 : s->done[t]);
        if (s->done != NULL) s->done[t] = n;
    }
}

void sy_shard_combine(float *y, const sy_plan *plan, const float *const *row, size_t hidden,
                      const uint8_t *skip, uint32_t *done, sy_pool *pool, const sy_kernels *kernels)
{
    sums s = {y, plan, row, hidden, skip, done, kernels};
    const int is_small = (size_t)plan->n_rows * hidden < SMALL_FLOATS;

    sy_pool_run(is_small ? NULL : pool, (plan->n_tokens + TASK_TOKENS - 1) / TASK_TOKENS,
                combine_task, &s);
}
