/* sy_hints.c - the listener follows the command connection to its server, because a server sends
 * what it tracks for one connection to another of its own. In this order, so that no change falls
 * between: the listener asks for its id and subscribes; once the channel of invalidations is
 * acknowledged, the command connection switches tracking on; and with each step that is in force
 * the placement is read once more. Whichever connection is lost, its part is done again. */
#include "sy_hints.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

#include "sy_keys.h"
#include "sy_log.h"
#include "sy_metrics.h"

#define INVALIDATIONS "__redis__:invalidate"
#define N_KINDS       3

/* In the order of the bits SY_HINT_*. */
static const char *const kind_labels[N_KINDS] = {"hint=\"tracking\"", "hint=\"notifications\"",
                                                 "hint=\"members\""};

struct sy_hints {
    sy_hints_config config;
    sy_redis *listener;
    char key[SY_KEY_BYTES]; /* of the placement */
    char keyspace[SY_KEY_BYTES + 32];
    char id[24];             /* of the listener's connection, as the server counts; "": unknown */
    int hears_invalidations; /* the subscription is acknowledged */
    int hears_keyspace, hears_members;
    int is_tracking_sent;  /* on this command connection */
    int is_notifying;      /* the server's setting sends what we need, as far as is known */
    int is_refusal_logged; /* of tracking: said once, until it works */
    _Atomic unsigned active;
    sy_metric *metric[N_KINDS];
    _Atomic int64_t config_logged_us, subscribe_logged_us;
};

static void set_active(sy_hints *self, unsigned hint, int is_active)
{
    const unsigned before = atomic_load(&self->active);
    const unsigned now = is_active ? before | hint : before & ~hint;

    atomic_store(&self->active, now);
    for (unsigned i = 0; i < N_KINDS; i++) sy_metric_set(self->metric[i], (now >> i) & 1u);
}

static void note_notifications(sy_hints *self)
{
    set_active(self, SY_HINT_NOTIFICATIONS, self->hears_keyspace && self->is_notifying);
}

/* ---- tracking: on the command connection ---- */

static void on_tracking(void *arg, const redisReply *reply)
{
    sy_hints *self = arg;

    if (reply == NULL) return;
    if (reply->type != REDIS_REPLY_ERROR) {
        self->is_refusal_logged = 0;
        set_active(self, SY_HINT_TRACKING, self->hears_invalidations);
        self->config.on_placement(self->config.ctx);
        return;
    }
    set_active(self, SY_HINT_TRACKING, 0);
    if (self->is_refusal_logged) return;
    self->is_refusal_logged = 1;
    sy_log(SY_LOG_INFO,
           "Redis does not track the placement for us (%s): notifications or the periodic check "
           "bring edits",
           reply->str);
}

static void on_tracking_off(void *arg, const redisReply *reply)
{
    (void)arg;
    (void)reply; /* the answer to switching it on says all there is to say */
}

static void start_tracking(sy_hints *self)
{
    static const char *const off[] = {"CLIENT", "TRACKING", "OFF"};
    const char *on[] = {"CLIENT", "TRACKING", "ON",     "REDIRECT",
                        self->id, "BCAST",    "PREFIX", self->key};

    if (!self->hears_invalidations || self->id[0] == '\0') return;
    /* A prefix cannot be given twice, so what led to the listener before this one goes first. */
    if (self->is_tracking_sent) {
        (void)!sy_primary_command(self->config.commands, on_tracking_off, self, 3, off);
    }
    self->is_tracking_sent = sy_primary_command(self->config.commands, on_tracking, self,
                                                (int)SY_COUNT_OF(on), on) == SY_OK;
}

/* ---- what the listener hears ---- */

static int is_word(const redisReply *reply, const char *word)
{
    return reply->type == REDIS_REPLY_STRING && strcmp(reply->str, word) == 0;
}

static void on_subscribed(sy_hints *self, const redisReply *channel)
{
    if (is_word(channel, INVALIDATIONS)) {
        self->hears_invalidations = 1;
        start_tracking(self);
    } else if (is_word(channel, self->keyspace)) {
        self->hears_keyspace = 1;
        note_notifications(self);
        self->config.on_placement(self->config.ctx);
    } else if (is_word(channel, SY_MEMBERS_CHANNEL)) {
        self->hears_members = 1;
        set_active(self, SY_HINT_MEMBERS, 1);
        self->config.on_members(self->config.ctx, NULL, 0);
    }
}

/* What a message holds is looked at no closer than needed: the keys of an invalidation, which may
 * be an array or nothing at all, do not matter. */
static void on_message(void *ctx, const redisReply *message)
{
    sy_hints *self = ctx;
    const redisReply *channel;
    const redisReply *what;

    if (!sy_redis_answered(message, "to send hints", &self->subscribe_logged_us)) return;
    if (message->type != REDIS_REPLY_ARRAY || message->elements != 3) return; /* an answered PING */
    channel = message->element[1];
    what = message->element[2];
    if (is_word(message->element[0], "subscribe")) {
        on_subscribed(self, channel);
    } else if (!is_word(message->element[0], "message")) {
        return;
    } else if (is_word(channel, SY_MEMBERS_CHANNEL)) {
        const int is_text = what->type == REDIS_REPLY_STRING;

        self->config.on_members(self->config.ctx, is_text ? what->str : NULL,
                                is_text ? what->len : 0);
    } else if (is_word(channel, INVALIDATIONS)) {
        self->config.on_placement(self->config.ctx);
    } else if (is_word(channel, self->keyspace)) {
        self->is_notifying = 1; /* whoever set it up */
        note_notifications(self);
        self->config.on_placement(self->config.ctx);
    }
}

/* ---- the listener's connection ---- */

/* One command for each channel: where one is forbidden the others are heard. */
static void subscribe(sy_hints *self)
{
    if (self->config.model != NULL) {
        sy_redis_subscribe(self->listener, INVALIDATIONS);
        sy_redis_subscribe(self->listener, self->keyspace);
    }
    if (self->config.are_members_wanted) sy_redis_subscribe(self->listener, SY_MEMBERS_CHANNEL);
}

static void on_id(void *arg, const redisReply *reply)
{
    sy_hints *self = arg;

    if (reply == NULL) return;
    if (reply->type == REDIS_REPLY_INTEGER && reply->integer > 0) {
        snprintf(self->id, sizeof(self->id), "%lld", reply->integer);
    } else if (self->config.model != NULL) {
        on_tracking(self, reply);
    }
    subscribe(self);
}

static void on_listener_up(void *ctx)
{
    sy_hints *self = ctx;

    /* A failure needs no word: an unanswered connection is dropped before long. */
    (void)!sy_redis_command(self->listener, on_id, self, 2, (const char *const[]){"CLIENT", "ID"});
}

static void on_listener_down(void *ctx)
{
    sy_hints *self = ctx;

    self->id[0] = '\0';
    self->hears_invalidations = self->hears_keyspace = self->hears_members = 0;
    set_active(self, SY_HINT_TRACKING | SY_HINT_NOTIFICATIONS | SY_HINT_MEMBERS, 0);
}

/* ---- notifications: a setting of the server ---- */

static void on_notify_set(void *arg, const redisReply *reply)
{
    sy_hints *self = arg;

    if (!sy_redis_answered(reply, "CONFIG SET notify-keyspace-events", &self->config_logged_us)) {
        return;
    }
    sy_log(SY_LOG_INFO, "keyspace notifications are switched on in Redis");
    self->is_notifying = 1;
    note_notifications(self);
}

/* Adds what is missing of "Kgh" to what the server has; others may use notifications too. */
static void on_notify_get(void *arg, const redisReply *reply)
{
    static const char needed[] = "Kgh";
    sy_hints *self = arg;
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
    if (n == n_before) {
        self->is_notifying = 1;
        note_notifications(self);
        return;
    }
    (void)!sy_primary_command(
        self->config.commands, on_notify_set, self, 4,
        (const char *const[]){"CONFIG", "SET", "notify-keyspace-events", flags});
}

void sy_hints_on_up(sy_hints *hints)
{
    hints->is_tracking_sent = 0; /* it belongs to the connection before */
    sy_redis_follow(hints->listener, sy_primary_connection(hints->config.commands));
    if (hints->config.model == NULL) return;
    /* The server forgets the setting when it restarts. Where CONFIG is forbidden, the operator may
     * have set it; else tracking or the periodic check has to do. */
    (void)!sy_primary_command(hints->config.commands, on_notify_get, hints, 3,
                              (const char *const[]){"CONFIG", "GET", "notify-keyspace-events"});
    start_tracking(hints);
}

void sy_hints_on_down(sy_hints *hints)
{
    hints->is_tracking_sent = hints->is_notifying = 0;
    set_active(hints, SY_HINT_TRACKING | SY_HINT_NOTIFICATIONS, 0);
}

unsigned sy_hints_active(const sy_hints *hints)
{
    return hints != NULL ? atomic_load(&hints->active) : 0;
}

/* ---- open and close ---- */

sy_status sy_hints_open(sy_hints **out, const sy_hints_config *config)
{
    sy_hints *self = calloc(1, sizeof(*self));
    const sy_redis_config listener = {
        .loop = config->loop,
        .purpose = "hints",
        .ctx = self,
        .on_up = on_listener_up,
        .on_down = on_listener_down,
        .on_message = on_message,
    };
    sy_status st = SY_OK;

    *out = NULL;
    if (self == NULL) return SY_ENOMEM;
    self->config = *config;
    if (config->model != NULL) {
        SY_TRY(sy_key_placement(self->key, sizeof(self->key), config->model));
        snprintf(self->keyspace, sizeof(self->keyspace), "__keyspace@%d__:%s", config->db,
                 self->key);
    }
    for (size_t i = 0; i < N_KINDS; i++) {
        self->metric[i] = sy_metric_gauge(
            "switchyard_redis_hints",
            "1 while changes are heard of in this way, before the periodic check.", kind_labels[i]);
    }
    SY_TRY(sy_redis_open(&self->listener, &listener));
    *out = self;
    self = NULL;
out:
    free(self);
    return st;
}

void sy_hints_stop(sy_hints *hints)
{
    if (hints == NULL) return;
    sy_redis_close(hints->listener);
    hints->listener = NULL;
}

void sy_hints_free(sy_hints *hints)
{
    free(hints);
}
