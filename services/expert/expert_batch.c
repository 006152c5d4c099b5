/* expert_batch.c - the groups of several messages of one layer, computed together: rows of one
 * expert stand side by side, whoever sent them, so its weights are read once. A row's result does
 * not depend on its neighbours (sy_kernels.h), so nobody can tell. */
#include <stdlib.h>
#include <string.h>

#include "compute_job.h"

static int by_expert(const void *a, const void *b)
{
    const job_piece *x = a, *y = b;

    if (x->expert != y->expert) return x->expert < y->expert ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static size_t count_groups(const expert_device *device, compute_job *const *job, size_t n_jobs)
{
    size_t n = 0;

    for (size_t i = 0; i < n_jobs; i++)
        for (uint32_t g = 0; g < job[i]->request.n_groups; g++)
            n += job[i]->group_device[g] == device->index;
    return n;
}

job_piece *batch_pieces(size_t *n, const expert_device *device, compute_job *const *job,
                        size_t n_jobs, sy_arena *arena)
{
    const size_t n_groups = count_groups(device, job, n_jobs);
    job_piece *piece = sy_arena_alloc(arena, (n_groups + 1) * sizeof(*piece));
    uint32_t at = 0;

    *n = n_groups;
    if (piece == NULL) return NULL;
    for (size_t i = 0; i < n_jobs; i++) {
        const sy_compute_request *r = &job[i]->request;
        for (uint32_t g = 0; g < r->n_groups; g++) {
            if (job[i]->group_device[g] != device->index) continue;
            piece[at] = (job_piece){.job = job[i],
                                    .job_id = (uint32_t)i,
                                    .order = at,
                                    .group = g,
                                    .expert = r->expert[g],
                                    .begin = g == 0 ? 0 : r->group_end[g - 1],
                                    .end = r->group_end[g]};
            at++;
        }
    }
    qsort(piece, n_groups, sizeof(*piece), by_expert);
    return piece;
}

static sy_status compute_one(expert_device *device, compute_job *job, batch_scratch *scratch)
{
    const expert *self = device->expert;
    const sy_compute_request *r = &job->request;
    sy_shard_group *group = sy_arena_alloc(&scratch->arena, (r->n_groups + 1) * sizeof(*group));
    size_t n = 0;

    if (group == NULL) return SY_ENOMEM;
    for (uint32_t g = 0; g < r->n_groups; g++)
        if (job->group_device[g] == device->index)
            group[n++] =
                (sy_shard_group){job->shard[g], g == 0 ? 0 : r->group_end[g - 1], r->group_end[g]};
    return sy_shard_compute(job->y, job->x, self->desc->hidden, r->row, group, n, &scratch->shard,
                            device->pool, self->kernels);
}

static size_t make_groups(const job_piece *p, size_t n_pieces, sy_shard_group *group)
{
    size_t n = 0;
    uint32_t rows = 0;

    for (size_t i = 0; i < n_pieces; i++) {
        const uint32_t count = p[i].end - p[i].begin;
        if (i == 0 || p[i].expert != p[i - 1].expert)
            group[n++] = (sy_shard_group){p[i].job->shard[p[i].group], rows, rows};
        rows += count;
        group[n - 1].end = rows;
    }
    return n;
}

static sy_status compute_together(expert_device *device, compute_job *const *job, size_t n_jobs,
                                  batch_scratch *scratch)
{
    const expert *self = device->expert;
    const size_t hidden = self->desc->hidden, row_bytes = hidden * sizeof(float);
    size_t n_pieces, rows = 0;
    const job_piece *p = batch_pieces(&n_pieces, device, job, n_jobs, &scratch->arena);
    sy_shard_group *group = sy_arena_alloc(&scratch->arena, n_pieces * sizeof(*group));

    if (p == NULL || group == NULL) return SY_ENOMEM;
    for (size_t i = 0; i < n_pieces; i++) rows += p[i].end - p[i].begin;
    float *x = sy_arena_alloc(&scratch->arena, rows * row_bytes);
    float *y = sy_arena_alloc(&scratch->arena, rows * row_bytes);
    if (x == NULL || y == NULL) return SY_ENOMEM;
    float *to = x;
    for (size_t i = 0; i < n_pieces; i++)
        for (uint32_t r = p[i].begin; r < p[i].end; r++, to += hidden)
            memcpy(to, p[i].job->x + p[i].job->request.row[r] * hidden, row_bytes);
    sy_status st = sy_shard_compute(y, x, hidden, NULL, group, make_groups(p, n_pieces, group),
                                    &scratch->shard, device->pool, self->kernels);
    if (st != SY_OK) return st;
    const float *from = y;
    for (size_t i = 0; i < n_pieces; i++) {
        const size_t n = p[i].end - p[i].begin;
        memcpy(p[i].job->y + p[i].begin * hidden, from, n * row_bytes);
        from += n * hidden;
    }
    return SY_OK;
}

void batch_compute(expert_device *device, compute_job **job, size_t n_jobs, batch_scratch *scratch)
{
    sy_error err = {0};
    sy_status st;

    sy_error_clear(&err);
    st = n_jobs == 1 ? compute_one(device, job[0], scratch)
                     : compute_together(device, job, n_jobs, scratch);
    sy_arena_reset(&scratch->arena);
    for (size_t i = 0; i < n_jobs; i++) {
        if (st != SY_OK) {
            sy_error_set(&err, st, "no memory for %u rows", job[i]->request.n_assign);
            job_fail(job[i], &err);
        }
        atomic_store(&job[i]->batched, (unsigned)n_jobs);
    }
    sy_metric_add(device->expert->batches, 1);
}
