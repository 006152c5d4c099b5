/* sy_watch.c - a notification is only a hint that something changed: what counts is the hash, read
 * as a whole. At most one read is on its way; a hint that comes meanwhile causes one more. So an
 * edit that falls between subscribing and reading, or whose notification is lost, is seen by the
 * next read at the latest, and a burst of edits costs a few reads. */
#include "sy_watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

#include "sy_hash.h"
#include "sy_keys.h"
#include "sy_log.h"
#include "sy_metrics.h"

#define REFUSALS_LOGGED_MAX 20

struct sy_watch {
    sy_watch_config config;
    sy_redis *listener;
    char key[SY_KEY_BYTES];
    char channel[SY_KEY_BYTES + 32];
    int is_reading, must_read_again;
    int has_content;
    uint64_t content; /* of the last hash that was taken */
    sy_snapshot *snapshot;
    sy_metric *epoch, *refused, *missing;
    _Atomic int64_t read_logged_us, config_logged_us, subscribe_logged_us, odd_logged_us;
};

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

static void take_snapshot(sy_watch *self, sy_snapshot *snapshot)
{
    sy_snapshot *const before = self->snapshot;

    self->snapshot = snapshot;
    log_snapshot(self, snapshot);
    sy_metric_set(self->epoch, (double)sy_snapshot_epoch(snapshot));
    sy_metric_set(self->refused, (double)sy_snapshot_refusals(snapshot));
    sy_metric_set(self->missing, (double)sy_snapshot_missing(snapshot, NULL, NULL));
    self->config.on_snapshot(self->config.ctx, snapshot);
    sy_snapshot_unref(before);
}

static void take_hash(sy_watch *self, const redisReply *hash)
{
    const size_t n = hash->elements / 2;
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
    if (sy_snapshot_build(&snapshot, self->snapshot, entry, n, self->config.layers,
                          self->config.experts, &err) == SY_OK) {
        self->has_content = 1;
        self->content = content;
        take_snapshot(self, snapshot);
    } else if (sy_log_due(&self->odd_logged_us, 10000000)) {
        sy_log_error(SY_LOG_ERROR, &err, "%s cannot be taken", self->key);
    }
    free(entry);
}

static void on_hash(void *arg, const redisReply *reply)
{
    sy_watch *self = arg;

    self->is_reading = 0;
    if (sy_redis_answered(reply, "to read the placement", &self->read_logged_us)) {
        if (is_hash(reply)) {
            take_hash(self, reply);
        } else if (sy_log_due(&self->odd_logged_us, 10000000)) {
            sy_log(SY_LOG_ERROR, "what Redis says of %s is no hash", self->key);
        }
    }
    if (self->must_read_again) sy_watch_read(self);
}

void sy_watch_read(sy_watch *watch)
{
    watch->must_read_again = watch->is_reading;
    if (watch->is_reading) return;
    watch->is_reading = sy_redis_command(watch->config.commands, on_hash, watch, 2,
                                         (const char *const[]){"HGETALL", watch->key}) == SY_OK;
}

/* ---- notifications ---- */

static int is_word(const redisReply *reply, const char *word)
{
    return reply->type == REDIS_REPLY_STRING && strcmp(reply->str, word) == 0;
}

/* The acknowledgement counts as well: the hash may have changed before the subscription began. */
static void on_message(void *ctx, const redisReply *message)
{
    sy_watch *self = ctx;

    if (!sy_redis_answered(message, "to send notifications", &self->subscribe_logged_us)) return;
    if (message->type != REDIS_REPLY_ARRAY || message->elements != 3) return; /* an answered PING */
    if (is_word(message->element[0], "message") || is_word(message->element[0], "subscribe")) {
        sy_watch_read(self);
    }
}

static void on_listener_up(void *ctx)
{
    sy_watch *self = ctx;

    sy_redis_subscribe(self->listener, self->channel);
}

static void on_notify_set(void *arg, const redisReply *reply)
{
    sy_watch *self = arg;

    if (sy_redis_answered(reply, "CONFIG SET notify-keyspace-events", &self->config_logged_us)) {
        sy_log(SY_LOG_INFO, "keyspace notifications are switched on in Redis");
    }
}

/* Adds what is missing of "Kgh" to what the server has; others may use notifications too. */
static void on_notify_get(void *arg, const redisReply *reply)
{
    static const char needed[] = "Kgh";
    sy_watch *self = arg;
    char flags[64];
    size_t n;
    size_t n_before;

    if (!sy_redis_answered(reply, "CONFIG GET notify-keyspace-events", &self->config_logged_us)) {
        return;
    }
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[1]->type != REDIS_REPLY_STRING || reply->element[1]->len > 32) {
        return;
    }
    n = (size_t)snprintf(flags, sizeof(flags), "%s", reply->element[1]->str);
    n_before = n;
    for (const char *flag = needed; *flag != '\0'; flag++) {
        if (strchr(flags, *flag) != NULL || (*flag != 'K' && strchr(flags, 'A') != NULL)) continue;
        flags[n++] = *flag;
        flags[n] = '\0';
    }
    if (n == n_before) return;
    (void)!sy_redis_command(
        self->config.commands, on_notify_set, self, 4,
        (const char *const[]){"CONFIG", "SET", "notify-keyspace-events", flags});
}

void sy_watch_on_up(sy_watch *watch)
{
    /* The server forgets the setting when it restarts. Where CONFIG is forbidden, the operator may
     * have set it; else the periodic check has to do. */
    (void)!sy_redis_command(watch->config.commands, on_notify_get, watch, 3,
                            (const char *const[]){"CONFIG", "GET", "notify-keyspace-events"});
    sy_watch_read(watch);
}

/* ---- open and close ---- */

sy_status sy_watch_open(sy_watch **out, const sy_watch_config *config)
{
    const sy_redis_config listener = {
        .loop = config->loop,
        .address = config->address,
        .purpose = "notifications",
        .on_up = on_listener_up,
        .on_message = on_message,
    };
    sy_redis_config with_ctx = listener;
    sy_watch *self = calloc(1, sizeof(*self));
    sy_status st = SY_ENOMEM;

    *out = NULL;
    if (self == NULL) return SY_ENOMEM;
    self->config = *config;
    SY_TRY(sy_key_placement(self->key, sizeof(self->key), config->model));
    snprintf(self->channel, sizeof(self->channel), "__keyspace@%d__:%s", config->address->db,
             self->key);
    self->epoch = sy_metric_gauge("switchyard_placement_epoch",
                                  "Counts the placements this process has taken.", NULL);
    self->refused = sy_metric_gauge("switchyard_placement_refused_fields",
                                    "Fields of the placement hash that are not in force.", NULL);
    self->missing = sy_metric_gauge("switchyard_placement_missing_experts",
                                    "Experts for which the placement names no target.", NULL);
    with_ctx.ctx = self;
    SY_TRY(sy_redis_open(&self->listener, &with_ctx));
    *out = self;
    self = NULL;
out:
    free(self);
    return st;
}

void sy_watch_stop(sy_watch *watch)
{
    if (watch == NULL) return;
    sy_redis_close(watch->listener);
    watch->listener = NULL;
}

void sy_watch_free(sy_watch *watch)
{
    if (watch == NULL) return;
    sy_snapshot_unref(watch->snapshot);
    free(watch);
}
