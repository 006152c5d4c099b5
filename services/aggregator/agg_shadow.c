/* agg_shadow.c - see agg_shadow.h. The lane's thread chooses rows and encodes messages; the
 * shadow's own thread sends them, waits, and compares. A job is all copies of one layer call; it
 * holds the view that its nodes and counters belong to. */
#include "agg_shadow.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "agg_dispatch.h"
#include "agg_rows.h"
#include "agg_targets.h"
#include "sy_clock.h"
#include "sy_hash.h"
#include "sy_queue.h"

enum { ANSWER_US = 1000 * 1000, LOOK_US = 50 * 1000, ARENA_BYTES_MAX = 1 << 28 };

typedef struct copy { /* one message */
    agg_node *node;
    uint64_t id;
    sy_frame frame; /* sent: empty */
    uint32_t n_rows;
    float *want;         /* [n_rows,H]: what the client was given */
    agg_target **target; /* [n_rows]: for whom a difference counts */
    int64_t sent_us;
} copy;

typedef struct job {
    agg_view *view;
    uint32_t n;
    size_t bytes;
    copy copy[AGG_COPIES_MAX];
} job;

struct agg_shadow {
    const agg_moe_config *config;
    uint32_t hidden;
    uint64_t draws; /* lane's thread only, as is the next */
    int started;
    pthread_t thread;
    sy_queue *queue;   /* of job */
    sy_fanout *fanout; /* shadow's thread only, as is the next */
    sy_arena arena;
    atomic_int closing;
    atomic_uint n_copies; /* under way */
    atomic_size_t bytes;  /* of them */
    sy_metric *skipped, *compared, *differing;
};

/* ---- comparing; the shadow's thread ---- */

static void raise_max(_Atomic float *max, float value)
{
    float known = atomic_load_explicit(max, memory_order_relaxed);

    while (value > known && !atomic_compare_exchange_weak_explicit(
                                max, &known, value, memory_order_relaxed, memory_order_relaxed)) {
    }
}

static void compare_row(agg_shadow *shadow, agg_target *target, const float *got, const float *want)
{
    float max = 0.0f;

    atomic_fetch_add_explicit(&target->compared_rows, 1, memory_order_relaxed);
    sy_metric_add(shadow->compared, 1);
    if (memcmp(got, want, shadow->hidden * sizeof(*got)) == 0) return;
    for (uint32_t i = 0; i < shadow->hidden; i++) {
        const float diff = fabsf(got[i] - want[i]);
        max = isnan(diff) ? INFINITY : SY_MAX(max, diff); /* not a number: as far off as can be */
    }
    atomic_fetch_add_explicit(&target->differing_rows, 1, memory_order_relaxed);
    sy_metric_add(shadow->differing, 1);
    raise_max(&target->max_diff, max);
}

static int is_fault(const sy_compute_reply *reply, uint32_t expert)
{
    for (uint32_t i = 0; i < reply->n_faults; i++)
        if (reply->fault[i].expert == expert) return 1;
    return 0;
}

/* *wide: holds the rows if they had to be widened. */
static sy_status read_copy(agg_shadow *shadow, const copy *c, const sy_fanout_slot *answer,
                           sy_compute_reply *reply, sy_buf **wide)
{
    const agg_moe_config *config = shadow->config;
    sy_error err;
    size_t n;

    if (answer->status != SY_OK) return answer->status;
    const sy_iov *iov = sy_msg_iov(answer->msg, &n);
    const sy_status st = sy_wire_compute_reply_decode(reply, &shadow->arena, iov, n, &err);
    if (st != SY_OK) return st;
    if (reply->status.status != SY_OK) return reply->status.status;
    if (reply->output_shared ||
        !agg_rows_are_expected(reply, c->n_rows, shadow->hidden, config->wire_rows))
        return SY_EDATALOSS;
    return agg_rows_take(&reply->output, wide, config->wire_rows, config->kernels);
}

/* Copies are a shadow's only traffic, so they count as such; the sides of shares have their own. */
static void count_traffic(agg_target *target, uint32_t n_rows, int good, int64_t took_us)
{
    if (!target->shadow) return;
    if (!good) {
        atomic_fetch_add_explicit(&target->errors, 1, memory_order_relaxed);
        return;
    }
    atomic_fetch_add_explicit(&target->messages, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&target->rows, n_rows, memory_order_relaxed);
    atomic_fetch_add_explicit(&target->latency_us, (unsigned long long)SY_MAX(took_us, 0),
                              memory_order_relaxed);
}

static void take_copy(agg_shadow *shadow, const copy *c, const sy_fanout_slot *answer)
{
    const size_t hidden = shadow->hidden;
    sy_compute_reply reply = {0};
    sy_buf *wide = NULL;
    const sy_status st = read_copy(shadow, c, answer, &reply, &wide);
    const float *out = reply.output.data;

    if (answer->status == SY_OK) agg_absolve(c->node);
    if (answer->status == SY_EDEADLINE && !atomic_load(&shadow->closing))
        agg_suspect(c->node, "did not answer a copy in time");
    for (uint32_t begin = 0, end; begin < c->n_rows; begin = end) { /* target by target */
        agg_target *target = c->target[begin];
        const int good = st == SY_OK && !is_fault(&reply, target->expert);
        for (end = begin; end < c->n_rows && c->target[end] == target; end++)
            if (good) compare_row(shadow, target, out + end * hidden, c->want + end * hidden);
        count_traffic(target, end - begin, good, answer->done_us - c->sent_us);
    }
    sy_buf_unref(wide);
    sy_arena_reset(&shadow->arena);
}

static void run_job(agg_shadow *shadow, job *j)
{
    const int64_t until_us = sy_clock_us() + SY_MIN(shadow->config->peer_timeout_us, ANSWER_US);
    size_t done = 0;

    for (uint32_t i = 0; i < j->n; i++) {
        j->copy[i].sent_us = sy_clock_us();
        sy_fanout_send(shadow->fanout, j->copy[i].node->peer, j->copy[i].id, &j->copy[i].frame);
        sy_frame_init(&j->copy[i].frame);
    }
    while (done < j->n && sy_clock_us() < until_us && !atomic_load(&shadow->closing))
        done = sy_fanout_wait_some(shadow->fanout, SY_MIN(until_us, sy_clock_us() + LOOK_US));
    sy_fanout_wait(shadow->fanout, 0); /* gives up what is open */
    for (uint32_t i = 0; i < j->n; i++)
        take_copy(shadow, &j->copy[i], sy_fanout_at(shadow->fanout, i));
    sy_fanout_reset(shadow->fanout);
}

static void free_copy(copy *c)
{
    sy_frame_free(&c->frame);
    free(c->want);
    free(c->target);
}

static void free_job(agg_shadow *shadow, job *j)
{
    atomic_fetch_sub(&shadow->n_copies, j->n);
    atomic_fetch_sub(&shadow->bytes, j->bytes);
    for (uint32_t i = 0; i < j->n; i++) free_copy(&j->copy[i]);
    agg_view_unref(j->view);
    free(j);
}

static void *shadow_main(void *arg)
{
    agg_shadow *shadow = arg;
    void *item;

    while (sy_queue_pop(shadow->queue, &item, SY_NEVER_US) == SY_OK) {
        if (!atomic_load(&shadow->closing)) run_job(shadow, item);
        free_job(shadow, item);
    }
    return NULL;
}

/* ---- choosing; the lane's thread ---- */

typedef struct choice { /* what one node gets a copy of */
    uint32_t n, n_max;
    uint32_t *row;
    agg_target **target;
} choice;

/* The target with the largest share, the first of equals; -1: no shares. */
static int32_t main_side(const sy_target_list *list)
{
    int32_t best = -1;

    for (uint32_t i = 0; i < list->n; i++)
        if (list->target[i].share > (best < 0 ? 0 : list->target[best].share)) best = (int32_t)i;
    return best;
}

/* Which of the expert's targets has computed a row: -1 when it was none of them. */
static int32_t side_of(const sy_target_list *list, const agg_node *node)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (!list->target[i].shadow && strcmp(list->target[i].node, node->name) == 0)
            return (int32_t)i;
    return -1;
}

/* Whose difference a copy for target i shows, of a row that `side` has computed; -1: no copy is
 * made. A side on trial is compared with the main one only, in either direction. */
static int32_t on_trial(const sy_target_list *list, int32_t main, int32_t side, int32_t i)
{
    if (list->target[i].shadow) return side == main || side < 0 || main < 0 ? i : -1;
    if (main < 0 || i == side) return -1;
    if (side == main || side < 0) return i == main ? -1 : i;
    return i == main ? side : -1;
}

static void choose(choice *c, agg_lane *lane, uint32_t r, agg_target *target)
{
    if (target == NULL || (c->n > 0 && c->row[c->n - 1] == r)) return;
    if (c->row == NULL) {
        c->n_max = lane->plan.n_rows;
        c->row = sy_arena_alloc(&lane->arena, c->n_max * sizeof(*c->row));
        c->target = sy_arena_alloc(&lane->arena, c->n_max * sizeof(agg_target *));
    }
    if (c->row == NULL || c->target == NULL || c->n == c->n_max) return;
    c->row[c->n] = r;
    c->target[c->n++] = target;
}

static void choose_for_group(choice *choices, agg_lane *lane, const sy_moe_call *call,
                             uint32_t group)
{
    const sy_plan *plan = &lane->plan;
    const uint32_t e = plan->active[group], shard = agg_shard_of(lane, call, group);
    const agg_targets *targets = lane->view->targets;
    const int32_t *position;
    const sy_target_list *list = agg_targets_of(lane, shard, &position);
    const int32_t main = list == NULL ? -1 : main_side(list);

    for (uint32_t i = 0; list != NULL && i < list->n; i++) {
        const agg_node *node = position[i] < 0 ? NULL : lane->view->node[position[i]];
        if (node == NULL || agg_is_suspect(node) ||
            !agg_node_has(node, shard, list->target[i].any_weights))
            continue;
        for (uint32_t r = plan->group[e]; r < plan->group[e + 1]; r++) {
            const agg_node *by = lane->row_by[r];
            if (by == NULL || by == node || call->failed[plan->row_token[r]]) continue;
            const int32_t tried = on_trial(list, main, side_of(list, by), (int32_t)i);
            if (tried < 0) continue;
            choose(&choices[position[i]], lane, r,
                   agg_targets_find(targets, call->layer, e, (uint32_t)tried));
        }
    }
}

static int is_drawn(agg_shadow *shadow)
{
    return (double)sy_unit_float(sy_splitmix64(shadow->draws++)) < shadow->config->shadow_share;
}

/* 0: skipped. */
static int add_copy(agg_shadow *shadow, job *j, agg_lane *lane, const sy_moe_call *call,
                    agg_node *node, const choice *chosen)
{
    const size_t hidden = shadow->hidden, want_bytes = chosen->n * hidden * sizeof(float);

    if (j->n + atomic_load(&shadow->n_copies) >= AGG_COPIES_MAX ||
        j->bytes + atomic_load(&shadow->bytes) + 2 * want_bytes > AGG_COPIES_BYTES_MAX)
        return 0;
    copy *c = &j->copy[j->n];
    *c = (copy){.node = node, .n_rows = chosen->n};
    sy_frame_init(&c->frame);
    c->id = sy_peer_next_id(node->peer);
    c->want = malloc(want_bytes);
    c->target = malloc(chosen->n * sizeof(agg_target *));
    if (c->want == NULL || c->target == NULL ||
        agg_encode_rows(lane, call, c->id, chosen->row, chosen->n, NULL, &c->frame) != SY_OK) {
        free_copy(c);
        return 0;
    }
    memcpy(c->target, chosen->target, chosen->n * sizeof(agg_target *));
    for (uint32_t i = 0; i < chosen->n; i++)
        memcpy(c->want + i * hidden, lane->row_out[chosen->row[i]], hidden * sizeof(float));
    j->bytes += want_bytes + c->frame.total_bytes;
    j->n++;
    return 1;
}

static int start_thread(agg_shadow *shadow)
{
    if (!shadow->started)
        shadow->started = pthread_create(&shadow->thread, NULL, shadow_main, shadow) == 0;
    return shadow->started;
}

static void send_choices(agg_shadow *shadow, agg_lane *lane, const sy_moe_call *call,
                         const choice *choices)
{
    agg_view *view = lane->view;
    job *j = malloc(sizeof(*j));
    uint32_t skipped = 0;

    if (j == NULL) return;
    j->n = 0;
    j->bytes = 0;
    for (uint32_t i = 0; i < view->n_nodes; i++)
        if (choices[i].n > 0 && is_drawn(shadow))
            skipped += !add_copy(shadow, j, lane, call, view->node[i], &choices[i]);
    j->view = view;
    atomic_fetch_add_explicit(&view->refs, 1, memory_order_relaxed);
    atomic_fetch_add(&shadow->n_copies, j->n);
    atomic_fetch_add(&shadow->bytes, j->bytes);
    if (j->n == 0 || !start_thread(shadow) || sy_queue_push(shadow->queue, j) != SY_OK) {
        skipped += j->n;
        free_job(shadow, j);
    }
    if (skipped > 0) sy_metric_add(shadow->skipped, skipped);
}

void agg_shadow_copy(agg_shadow *shadow, agg_lane *lane, const sy_moe_call *call)
{
    const agg_view *view = lane->view;
    uint32_t chosen = 0;

    if (shadow == NULL || shadow->config->shadow_share <= 0 || view->targets == NULL ||
        agg_targets_count(view->targets) == 0)
        return;
    choice *choices = sy_arena_calloc(&lane->arena, view->n_nodes + 1, sizeof(*choices));
    if (choices == NULL) return;
    for (uint32_t g = 0; g < lane->plan.n_groups; g++)
        if (agg_targets_find(view->targets, call->layer, lane->plan.active[g], 0) != NULL)
            choose_for_group(choices, lane, call, g);
    for (uint32_t i = 0; i < view->n_nodes; i++) chosen += choices[i].n;
    if (chosen > 0) send_choices(shadow, lane, call, choices);
}

/* ---- opening and closing ---- */

agg_shadow *agg_shadow_open(const agg_moe_config *config, uint32_t hidden)
{
    agg_shadow *shadow = calloc(1, sizeof(*shadow));

    if (shadow == NULL) return NULL;
    shadow->config = config;
    shadow->hidden = hidden;
    sy_arena_init(&shadow->arena, ARENA_BYTES_MAX);
    shadow->skipped = sy_metric_counter("switchyard_shadow_skipped_total",
                                        "Copies for comparison that were not sent", NULL);
    shadow->compared = sy_metric_counter("switchyard_shadow_rows_total",
                                         "Rows compared with what a client was given", NULL);
    shadow->differing = sy_metric_counter("switchyard_shadow_differing_rows_total",
                                          "Of these, rows with another bit somewhere", NULL);
    if (sy_queue_open(&shadow->queue, AGG_COPIES_MAX) == SY_OK &&
        sy_fanout_open(&shadow->fanout, AGG_COPIES_MAX) == SY_OK)
        return shadow;
    agg_shadow_close(shadow);
    return NULL;
}

void agg_shadow_close(agg_shadow *shadow)
{
    if (shadow == NULL) return;
    atomic_store(&shadow->closing, 1);
    if (shadow->queue != NULL) sy_queue_close(shadow->queue);
    if (shadow->started) pthread_join(shadow->thread, NULL);
    if (shadow->queue != NULL) sy_queue_free(shadow->queue);
    sy_fanout_free(shadow->fanout);
    sy_arena_free(&shadow->arena);
    free(shadow);
}
