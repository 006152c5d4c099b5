/* sy_watch.c - a hint only says that something changed: what counts is the hash, read as a whole.
 * At most one read is on its way; a hint that comes meanwhile causes one more. So an edit that
 * falls between subscribing and reading, or whose hint is lost, is seen by the next read at the
 * latest. Reads that hints cause keep a distance, so that a thousand edits one by one cost a few
 * dozen reads of a hash that may be large. */
#include "sy_watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>
#include <uv.h>

#include "sy_clock.h"
#include "sy_hash.h"
#include "sy_keys.h"
#include "sy_log.h"
#include "sy_metrics.h"

#define REFUSALS_LOGGED_MAX 20
#define READ_INTERVAL_US    20000 /* between reads that hints cause */

struct sy_watch {
    sy_watch_config config;
    char key[SY_KEY_BYTES];
    uv_timer_t timer; /* the read that a hint has asked for */
    int is_timer_open;
    int is_reading, must_read_again;
    int64_t read_us;   /* when the last read was sent; 0: never */
    int64_t hinted_us; /* the first hint since; 0: none */
    int64_t cause_us;  /* the hint that the read on its way is for; 0: none */
    int has_content;
    uint64_t content; /* of the last hash that was taken */
    sy_snapshot *snapshot;
    sy_metric *epoch, *refused, *missing, *seconds;
    _Atomic int64_t read_logged_us, odd_logged_us, stale_logged_us;
};

static void on_due(uv_timer_t *timer);

/* ---- reading ---- */

/* Of the hash's fields and values in any order, because HGETALL has none. */
static uint64_t content_of(const redisReply *hash)
{
    uint64_t sum = hash->elements;

    for (size_t i = 0; i < hash->elements; i += 2) {
        const redisReply *field = hash->element[i];
        const redisReply *value = hash->element[i + 1];
        uint64_t h = sy_fnv1a(SY_FNV1A_START, &field->len, sizeof(field->len));

        h = sy_fnv1a(h, field->str, field->len);
        sum += sy_splitmix64(sy_fnv1a(h, value->str, value->len));
    }
    return sum;
}

static int is_hash(const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements % 2 != 0) return 0;
    for (size_t i = 0; i < reply->elements; i++) {
        if (reply->element[i]->type != REDIS_REPLY_STRING) return 0;
    }
    return 1;
}

static void log_snapshot(const sy_watch *self, const sy_snapshot *snapshot)
{
    const size_t n_refusals = sy_snapshot_refusals(snapshot);
    uint32_t layer;
    uint32_t expert;
    const size_t n_missing = sy_snapshot_missing(snapshot, &layer, &expert);

    for (size_t i = 0; i < n_refusals && i < REFUSALS_LOGGED_MAX; i++) {
        const sy_refusal *refusal = sy_snapshot_refusal_at(snapshot, i);

        if (refusal->field[0] == '\0' && i == 0) {
            sy_log(SY_LOG_ERROR, "%s is refused: %s", self->key, refusal->why);
        } else {
            sy_log(SY_LOG_ERROR, "%s: field '%s' with '%s' is refused: %s", self->key,
                   refusal->field, refusal->value, refusal->why);
        }
    }
    if (n_refusals > REFUSALS_LOGGED_MAX) {
        sy_log(SY_LOG_ERROR, "%s: %zu more fields are refused", self->key,
               n_refusals - REFUSALS_LOGGED_MAX);
    }
    sy_log(SY_LOG_INFO, "placement of %s: epoch %llu, hash %016llx", self->config.model,
           (unsigned long long)sy_snapshot_epoch(snapshot),
           (unsigned long long)sy_snapshot_hash(snapshot));
    if (n_missing > 0) {
        sy_log(SY_LOG_WARN, "%s has no target for %zu experts, the first is %u/%u", self->key,
               n_missing, layer, expert);
    }
}

static void take_snapshot(sy_watch *self, sy_snapshot *snapshot, int64_t build_us)
{
    sy_snapshot *const before = self->snapshot;

    /* Before anybody sees the snapshot: who does finds it in the metrics, too. */
    sy_metric_set(self->epoch, (double)sy_snapshot_epoch(snapshot));
    sy_metric_set(self->refused, (double)sy_snapshot_refusals(snapshot));
    sy_metric_set(self->missing, (double)sy_snapshot_missing(snapshot, NULL, NULL));
    self->snapshot = snapshot;
    self->config.on_snapshot(self->config.ctx, snapshot, build_us);
    if (self->cause_us != 0) {
        sy_metric_observe_us(self->seconds, sy_clock_us() - self->cause_us);
    }
    log_snapshot(self, snapshot);
    sy_snapshot_unref(before);
}

static void take_hash(sy_watch *self, const redisReply *hash)
{
    const size_t n = hash->elements / 2;
    const int64_t begin_us = sy_clock_us();
    const uint64_t content = content_of(hash);
    sy_placement_entry *entry;
    sy_snapshot *snapshot;
    sy_error err;

    if (self->has_content && self->content == content) return;
    entry = calloc(n + 1, sizeof(*entry));
    if (entry == NULL) return; /* the next check tries again */
    for (size_t i = 0; i < n; i++) {
        const redisReply *field = hash->element[2 * i];
        const redisReply *value = hash->element[2 * i + 1];

        entry[i] = (sy_placement_entry){field->str, field->len, value->str, value->len};
    }
    if (sy_snapshot_build(&snapshot, self->snapshot, entry, n, &self->config.grid, &err) == SY_OK) {
        self->has_content = 1;
        self->content = content;
        take_snapshot(self, snapshot, sy_clock_us() - begin_us);
    } else if (sy_log_due(&self->odd_logged_us, 10000000)) {
        sy_log_error(SY_LOG_ERROR, &err, "%s cannot be taken", self->key);
    }
    free(entry);
}

/* Without its primary a replica may be far behind: it is better than nothing, and nothing else. */
static int is_good_source(sy_watch *self)
{
    if (self->snapshot == NULL || sy_primary_is_current(self->config.commands)) return 1;
    if (sy_log_due(&self->stale_logged_us, 10000000)) {
        sy_log(SY_LOG_WARN, "%s is not taken from a replica that has lost its primary", self->key);
    }
    return 0;
}

static void schedule(sy_watch *self)
{
    const int64_t wait_us = self->read_us + READ_INTERVAL_US - sy_clock_us();

    if (!self->is_timer_open || uv_is_active((const uv_handle_t *)&self->timer)) return;
    self->must_read_again = 0;
    uv_timer_start(&self->timer, on_due, wait_us > 0 ? (uint64_t)(wait_us + 999) / 1000 : 0, 0);
}

static void on_hash(void *arg, const redisReply *reply)
{
    sy_watch *self = arg;

    self->is_reading = 0;
    if (sy_redis_answered(reply, "to read the placement", &self->read_logged_us) &&
        is_good_source(self)) {
        if (is_hash(reply)) {
            take_hash(self, reply);
        } else if (sy_log_due(&self->odd_logged_us, 10000000)) {
            sy_log(SY_LOG_ERROR, "what Redis says of %s is no hash", self->key);
        }
    }
    self->cause_us = 0;
    if (self->must_read_again) schedule(self);
}

void sy_watch_read(sy_watch *watch)
{
    watch->must_read_again |= watch->is_reading;
    if (watch->is_reading) return;
    watch->is_reading = sy_primary_command(watch->config.commands, on_hash, watch, 2,
                                           (const char *const[]){"HGETALL", watch->key}) == SY_OK;
    if (!watch->is_reading) return;
    uv_timer_stop(&watch->timer); /* what it was set for is on its way */
    watch->must_read_again = 0;
    watch->read_us = sy_clock_us();
    watch->cause_us = watch->hinted_us;
    watch->hinted_us = 0;
}

static void on_due(uv_timer_t *timer)
{
    sy_watch_read(timer->data);
}

/* Never at once: hints of one edit come in pairs, and by the next turn of the loop both are in. */
void sy_watch_hint(sy_watch *watch)
{
    if (watch->hinted_us == 0) watch->hinted_us = sy_clock_us();
    if (watch->is_reading) {
        watch->must_read_again = 1;
    } else {
        schedule(watch);
    }
}

/* ---- open and close ---- */

sy_status sy_watch_open(sy_watch **out, const sy_watch_config *config)
{
    sy_watch *self = calloc(1, sizeof(*self));
    sy_status st = SY_ENOMEM;

    *out = NULL;
    if (self == NULL) return SY_ENOMEM;
    self->config = *config;
    SY_TRY(sy_key_placement(self->key, sizeof(self->key), config->model));
    self->epoch = sy_metric_gauge("switchyard_placement_epoch",
                                  "Counts the placements this process has taken.", NULL);
    self->refused = sy_metric_gauge("switchyard_placement_refused_fields",
                                    "Fields of the placement hash that are not in force.", NULL);
    self->missing = sy_metric_gauge("switchyard_placement_missing_experts",
                                    "Experts for which the placement names no target.", NULL);
    self->seconds = sy_metric_histogram(
        "switchyard_placement_seconds",
        "From hearing that the placement changed to the new one being in force.", NULL);
    uv_timer_init(config->loop, &self->timer);
    self->timer.data = self;
    self->is_timer_open = 1;
    *out = self;
    self = NULL;
out:
    free(self);
    return st;
}

void sy_watch_stop(sy_watch *watch)
{
    if (watch == NULL || !watch->is_timer_open) return;
    watch->is_timer_open = 0;
    uv_close((uv_handle_t *)&watch->timer, NULL);
}

void sy_watch_free(sy_watch *watch)
{
    if (watch == NULL) return;
    sy_snapshot_unref(watch->snapshot);
    free(watch);
}
