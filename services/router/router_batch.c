/* router_batch.c - see router_batch.h. */
#include "router_batch.h"

#include <string.h>

static int takes_company(const router_job *job)
{
    return job->err.status == SY_OK && job->request.hidden.rows <= BATCH_JOB_ROWS_MAX;
}

size_t batch_gather(router_job **job, size_t n)
{
    const sy_route_request *first = &job[0]->request;
    uint32_t n_rows = first->hidden.rows;
    size_t n_together = 1;

    if (!takes_company(job[0])) return 1;
    for (size_t i = 1; i < n; i++) {
        router_job *other = job[i];
        const sy_route_request *r = &other->request;

        if (!takes_company(other) || r->layer != first->layer ||
            r->policy.experts_per_token != first->policy.experts_per_token ||
            r->hidden.rows > BATCH_ROWS_MAX - n_rows)
            continue;
        n_rows += r->hidden.rows;
        memmove(job + n_together + 1, job + n_together, (i - n_together) * sizeof(job[0]));
        job[n_together++] = other;
    }
    return n_together;
}

/* The rows of all as fp32, one after another: where they are, if that is so already. NULL: no
 * memory. */
static const float *join_rows(router_job *const *job, size_t n, size_t n_values, sy_arena *scratch)
{
    const sy_rows *first = &job[0]->request.hidden;
    float *x, *next;

    if (n == 1 && first->dtype == SY_F32) return first->data;
    x = sy_arena_alloc(scratch, n_values * sizeof(float));
    next = x;
    for (size_t i = 0; x != NULL && i < n; i++) {
        const sy_rows *rows = &job[i]->request.hidden;
        const size_t n_here = (size_t)rows->rows * rows->cols;

        sy_dtype_widen(next, rows->data, rows->dtype, n_here);
        next += n_here;
    }
    return x;
}

/* All or none: err says why. */
static sy_status route_all(const router *self, router_job *const *job, size_t n, sy_arena *scratch,
                           sy_error *err)
{
    const uint32_t asked = job[0]->request.policy.experts_per_token;
    const uint32_t k = asked == 0 ? self->desc->top_k : asked;
    const sy_route_options options = {.experts_per_token = asked};
    size_t T = 0;

    for (size_t i = 0; i < n; i++) T += job[i]->request.hidden.rows;
    uint16_t *expert = sy_arena_alloc(scratch, T * k * sizeof(*expert));
    float *weight = sy_arena_alloc(scratch, T * k * sizeof(*weight));
    float *logits =
        sy_arena_alloc(scratch, sy_router_scratch(self->gates, (uint32_t)T) * sizeof(*logits));
    const float *x = join_rows(job, n, T * self->desc->hidden, scratch);

    if (expert == NULL || weight == NULL || logits == NULL || x == NULL)
        return sy_error_set(err, SY_ENOMEM, "no memory for %zu rows", T);
    const sy_status st = sy_route(self->gates, job[0]->request.layer, expert, weight, x,
                                  (uint32_t)T, &options, logits, NULL, err);
    if (st != SY_OK) return st;
    for (size_t i = 0; i < n; i++) {
        const uint32_t n_tokens = job[i]->request.hidden.rows;

        job[i]->reply.slots = k;
        job[i]->reply.n_tokens = n_tokens;
        job[i]->reply.expert = expert;
        job[i]->reply.weight = weight;
        expert += (size_t)n_tokens * k;
        weight += (size_t)n_tokens * k;
    }
    return SY_OK;
}

void batch_route(const router *self, router_job *const *job, size_t n, sy_arena *scratch)
{
    if (job[0]->err.status != SY_OK) return;
    if (n > 1) {
        sy_error err;

        if (route_all(self, job, n, scratch, &err) == SY_OK) return;
    }
    /* Alone, or one of them is at fault: which one shows alone. */
    for (size_t i = 0; i < n; i++) (void)route_all(self, job + i, 1, scratch, &job[i]->err);
}
