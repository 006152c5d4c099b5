/* balance_watch.c - see the header. A round starts from nothing but the load and who is away: what
 * went wrong in one is forgotten in the next, connections too. */
#include "balance_watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "balance_lock.h"
#include "sy_clock.h"
#include "sy_log.h"
#include "tool_pause.h"
#include "tool_print.h"
#include "up_cluster.h"

#define STATE_KEY  "switchyard:balancer:state"
#define FADE       0.5 /* of the load, from one round to the next */
#define LOCK_TRIES 20  /* a tenth of a second each, that the first round waits for the lock */

typedef struct watch {
    const balance_options *options;
    balance_lock *lock; /* NULL: a dry run writes nothing and needs none */
    balance_away away;
    balance_sample last; /* n 0: none */
    double *rows;        /* [layers*experts of last] the load, fading */
    double n_rows;
    uint64_t round;
    char stood_by[SY_MESSAGE_BYTES]; /* for whom, as it was said last */
    char minimum[160];               /* of nodes, as it was said last */
} watch;

/* ---- load ---- */

static void forget_load(watch *w)
{
    balance_sample_free(&w->last);
    free(w->rows);
    w->rows = NULL;
    w->n_rows = 0.0;
}

static sy_status begin_load(watch *w, const balance_round *r, sy_error *err)
{
    forget_load(w);
    w->rows = calloc((size_t)r->place.grid.layers * r->place.grid.experts, sizeof(*w->rows));
    if (w->rows == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the load");
    return balance_sample_take(&w->last, &r->facts, &r->place.grid, err);
}

/* Adds what was computed since the last round. The first round waits for some. */
static sy_status take_load(watch *w, balance_round *r, sy_error *err)
{
    const size_t n = (size_t)r->place.grid.layers * r->place.grid.experts;
    balance_sample now = {0};
    sy_status st;

    if (w->last.layers != r->place.grid.layers || w->last.experts != r->place.grid.experts) {
        SY_TRY(begin_load(w, r, err));
        if (tool_pause(w->options->sample_s * 1000000))
            return sy_error_set(err, SY_ECANCELLED, "interrupted");
    }
    SY_TRY(balance_sample_take(&now, &r->facts, &r->place.grid, err));
    w->n_rows *= FADE;
    for (size_t i = 0; i < n; i++) w->rows[i] *= FADE;
    w->n_rows += balance_sample_difference(w->rows, &w->last, &now);
    balance_sample_free(&w->last);
    w->last = now;
    memset(&now, 0, sizeof(now));
    memcpy(r->rows, w->rows, n * sizeof(*r->rows));
    r->n_rows = w->n_rows;
out:
    balance_sample_free(&now);
    return st;
}

/* ---- a round ---- */

/* Alive is who wrote here lately: `switchyard status` shows it. */
static void leave_sign(const watch *w, balance_round *r, const char *why)
{
    char number[24], at[24], ttl[24];
    const char *set[] = {"HSET",  STATE_KEY, "holder", balance_lock_name(w->lock),
                         "round", number,    "at_us",  at,
                         "why",   why};
    const char *expire[] = {"PEXPIRE", STATE_KEY, ttl};

    if (r->place.redis == NULL) return;
    snprintf(number, sizeof(number), "%llu", (unsigned long long)w->round);
    snprintf(at, sizeof(at), "%lld", (long long)sy_clock_wall_us());
    snprintf(ttl, sizeof(ttl), "%lld", (long long)(3 * w->options->interval_s + 60) * 1000);
    if (tool_redis_tell(r->place.redis, (int)SY_COUNT_OF(set), set, NULL) == SY_OK)
        (void)!tool_redis_tell(r->place.redis, (int)SY_COUNT_OF(expire), expire, NULL);
}

static sy_status apply(watch *w, balance_round *r, sy_error *err)
{
    char author[BALANCE_HOLDER_BYTES + 16];
    char why[SY_MESSAGE_BYTES];

    if (w->options->dry_run || r->n_fields == 0) return SY_OK;
    /* Looking took a while: it must still be this one that acts. */
    if (!balance_lock_held(w->lock, why, sizeof(why)))
        return sy_error_set(err, SY_EPRECONDITION, "the lock was lost, nothing is written: %s",
                            why);
    snprintf(author, sizeof(author), "balancer@%s", balance_lock_name(w->lock));
    return balance_round_apply(r, author, err);
}

static sy_status run_round(watch *w, balance_round *r, sy_error *err)
{
    sy_status st;

    SY_TRY(balance_round_look(r, w->options, err));
    st = balance_away_note(&w->away, r->snapshot, &r->facts, sy_clock_us());
    if (st != SY_OK) return sy_error_set(err, st, "no memory for who is away");
    SY_TRY(take_load(w, r, err));
    SY_TRY(balance_round_plan(r, balance_away_is_gone, &w->away, err));
    SY_TRY(apply(w, r, err));
out:
    return st;
}

/* 1: this round is somebody else's. */
static int stands_by(watch *w)
{
    char why[SY_MESSAGE_BYTES];

    if (w->lock == NULL) return 0;
    for (int i = 0; w->round == 1 && i < LOCK_TRIES; i++)
        if (balance_lock_held(w->lock, why, sizeof(why)) || tool_pause(100000)) break;
    if (balance_lock_held(w->lock, why, sizeof(why))) {
        if (w->stood_by[0] != '\0') sy_log(SY_LOG_INFO, "has the lock now, and acts");
        w->stood_by[0] = '\0';
        return 0;
    }
    if (strcmp(why, w->stood_by) != 0) sy_log(SY_LOG_INFO, "stands by: %s", why);
    snprintf(w->stood_by, sizeof(w->stood_by), "%s", why);
    if (w->options->json) balance_print_json_nothing(w->round, why);
    /* What is known of before is old when its turn comes. */
    forget_load(w);
    balance_away_forget(&w->away);
    return 1;
}

/* Which minimum is in force, when it is another one than before. */
static void say_minimum(watch *w, const balance_round *r)
{
    char text[sizeof(w->minimum)];

    balance_minimum_text(text, sizeof(text), r);
    if (strcmp(text, w->minimum) == 0) return;
    sy_log(SY_LOG_INFO, "%s", text);
    memcpy(w->minimum, text, sizeof(text));
}

static void do_round(watch *w)
{
    balance_round r;
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    memset(&r, 0, sizeof(r));
    st = run_round(w, &r, &err);
    if (st == SY_OK) {
        sy_log(SY_LOG_INFO, "round %llu: %s: %s", (unsigned long long)w->round,
               r.n_fields == 0 ? "nothing moves"
               : r.is_applied  ? "moved"
                               : "would move",
               r.why);
        say_minimum(w, &r);
        if (w->options->json) balance_print_json(&r, w->round);
    } else if (st != SY_ECANCELLED) {
        sy_log_error(SY_LOG_WARN, &err, "round %llu: nothing moves", (unsigned long long)w->round);
        if (w->options->json) balance_print_json_nothing(w->round, err.message);
        /* Leases come back one by one after Redis, or the network, was away: whoever is not back in
         * the first round after it has not been missing for as long as it looks. */
        balance_away_forget(&w->away);
    }
    if (w->lock != NULL && st != SY_ECANCELLED)
        leave_sign(w, &r, st == SY_OK ? r.why : err.message);
    balance_round_free(&r);
}

/* ---- all of them ---- */

static sy_status find_redis(char *out, size_t cap, const balance_options *options, sy_error *err)
{
    sy_redis_address address[SY_REDIS_ADDRESSES_MAX];
    up_cluster *cluster = NULL;
    size_t n;
    sy_status st = SY_OK;

    if (options->where.dir != NULL) {
        SY_TRY(up_cluster_load(&cluster, options->where.dir, err));
        snprintf(out, cap, "%s", cluster->redis);
    } else if (options->where.redis != NULL) {
        snprintf(out, cap, "%s", options->where.redis);
    } else {
        st = sy_error_set(err, SY_EINVAL,
                          "say where Redis is: --redis URL, or --dir RUNDIR of a local cluster");
        goto out;
    }
    /* A mistake in it is told at once, and not waited for as an outage is. */
    SY_TRY(sy_redis_addresses_parse(address, SY_COUNT_OF(address), &n, out, err));
out:
    free(cluster);
    return st;
}

int balance_watch(const balance_options *options)
{
    static watch w;
    char url[UP_URL_BYTES];
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    w = (watch){.options = options, .away.dead_after_us = options->dead_after_s * 1000000};
    sy_log_open("balancer", SY_LOG_INFO, 0);
    SY_TRY(tool_pause_open(&err));
    SY_TRY(find_redis(url, sizeof(url), options, &err));
    if (!options->dry_run) SY_TRY(balance_lock_open(&w.lock, url, &err));
    sy_log(SY_LOG_INFO, "every %lld s, at most %lld MB a round%s", (long long)options->interval_s,
           (long long)options->budget_mb, options->dry_run ? ", writes nothing" : "");
    do {
        const int64_t next_us = sy_clock_us() + options->interval_s * 1000000;

        w.round++;
        if (!stands_by(&w)) do_round(&w);
        tool_pause(SY_MAX(next_us - sy_clock_us(), 0));
    } while (!tool_interrupted());
    sy_log(SY_LOG_INFO, "ends");
out:
    balance_lock_close(w.lock);
    tool_pause_close();
    forget_load(&w);
    balance_away_forget(&w.away);
    return st == SY_OK ? 0 : tool_fail(&err);
}
