/* sy_primary.c - which of several servers is used. Each is asked for its role when it comes up, at
 * every periodic check, and, while no primary is known, at growing intervals. A primary is used
 * where there is one; the one in use is kept while it is as good as any other, so that two servers
 * that both claim to be primary do not make us swing. Without a primary a replica is read, because
 * a process that starts then still learns the placement.
 *
 * Leaving a server closes its connection and opens it anew: so every answer that a consumer of
 * commands waits for comes (as NULL) before the next on_up. */
#include "sy_primary.h"

#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>
#include <uv.h>

#include "sy_clock.h"
#include "sy_log.h"
#include "sy_metrics.h"

#define SEARCH_MIN_MS   100
#define SEARCH_MAX_MS   2000
#define LOG_INTERVAL_US 10000000
#define LINK_SETTLE_US  500000 /* in which a replica finds out that its primary is gone */

/* In order of preference. */
typedef enum server_role {
    ROLE_UNKNOWN, /* not up, or not asked yet */
    ROLE_NEITHER, /* no server for data: Sentinel, for example */
    ROLE_STALE,   /* a replica that has lost its primary */
    ROLE_REPLICA,
    ROLE_UNTOLD, /* neither ROLE nor INFO is permitted: a primary until it refuses a write */
    ROLE_PRIMARY,
} server_role;

typedef struct server {
    sy_primary *owner;
    sy_redis *redis;
    server_role role;
    int is_asked;        /* an answer is due */
    int64_t readonly_us; /* ROLE_UNTOLD: when it last refused a write; 0: never */
    _Atomic int64_t logged_us;
} server;

struct sy_primary {
    sy_primary_config config;
    server server[SY_REDIS_ADDRESSES_MAX];
    server *in_use;   /* NULL: none */
    int was_writable; /* as last seen of the one in use */
    int64_t lost_us;  /* when the one in use was last lost; 0: never */
    uv_timer_t search;
    int is_search_open;
    uint64_t search_ms;
    sy_metric *writable;
    _Atomic int64_t twins_logged_us;
};

static int has_choice(const sy_primary *self)
{
    return self->config.n_addresses > 1;
}

/* ---- the choice ---- */

/* Where roles are not told, a refused write counts for a while: the server may be promoted without
 * anybody telling us. */
static server_role rank_of(const server *s)
{
    if (!sy_redis_is_up(s->redis)) return ROLE_UNKNOWN;
    if (s->role == ROLE_UNTOLD && s->readonly_us != 0 &&
        sy_clock_us() - s->readonly_us < SEARCH_MAX_MS * 1000ll) {
        return ROLE_REPLICA;
    }
    return s->role;
}

/* Each server has told its role, or cannot be reached: a better one need not be waited for. */
static int is_settled(const sy_primary *self)
{
    for (size_t i = 0; i < self->config.n_addresses; i++) {
        const server *s = &self->server[i];

        if (s->role == ROLE_UNKNOWN && !sy_redis_has_failed(s->redis)) return 0;
    }
    return 1;
}

static server *best_server(sy_primary *self)
{
    server *best = self->in_use;
    server_role rank = best != NULL ? SY_MAX(rank_of(best), ROLE_NEITHER) : ROLE_NEITHER;
    const int may_read_only = is_settled(self);

    for (size_t i = 0; i < self->config.n_addresses; i++) {
        server *s = &self->server[i];
        const server_role its = rank_of(s);

        if (its <= rank || (its < ROLE_UNTOLD && !may_read_only)) continue;
        best = s;
        rank = its;
    }
    return best;
}

static const char *reason_of(const server *s)
{
    switch (rank_of(s)) {
    case ROLE_PRIMARY: return "it is the primary";
    case ROLE_UNTOLD: return "its role is not told: permit ROLE or INFO";
    case ROLE_REPLICA: return "no primary answers, and this replica can be read";
    case ROLE_STALE: return "no primary answers, and this replica, which has lost it, can be read";
    case ROLE_NEITHER:
    case ROLE_UNKNOWN: break;
    }
    return "its role is unknown";
}

static void use(sy_primary *self, server *next)
{
    server *const before = self->in_use;

    self->in_use = NULL;
    if (before != NULL) {
        self->config.on_down(self->config.ctx);
        sy_redis_restart(before->redis);
    }
    self->in_use = next;
    self->was_writable = sy_primary_is_writable(self);
    if (has_choice(self)) {
        sy_log(SY_LOG_INFO, "Redis at %s is used: %s", sy_redis_where(next->redis),
               reason_of(next));
    }
    self->config.on_up(self->config.ctx);
}

static void warn_of_twins(sy_primary *self)
{
    const server *first = NULL;

    for (size_t i = 0; i < self->config.n_addresses; i++) {
        const server *s = &self->server[i];

        if (rank_of(s) != ROLE_PRIMARY) continue;
        if (first != NULL && sy_log_due(&self->twins_logged_us, LOG_INTERVAL_US)) {
            sy_log(SY_LOG_WARN,
                   "Redis at %s and at %s both say that they are the primary: make one a replica "
                   "of the other; %s is used",
                   sy_redis_where(first->redis), sy_redis_where(s->redis),
                   self->in_use != NULL ? sy_redis_where(self->in_use->redis) : "neither");
        }
        first = s;
    }
}

static void on_search(uv_timer_t *timer);

static void search_or_rest(sy_primary *self)
{
    if (!has_choice(self)) return;
    if (sy_primary_is_writable(self)) {
        self->search_ms = SEARCH_MIN_MS;
        uv_timer_stop(&self->search);
    } else if (!uv_is_active((const uv_handle_t *)&self->search)) {
        uv_timer_start(&self->search, on_search, self->search_ms, 0);
        self->search_ms = SY_MIN(self->search_ms * 2, (uint64_t)SEARCH_MAX_MS);
    }
}

static void choose(sy_primary *self)
{
    server *const best = best_server(self);

    if (best != self->in_use) {
        use(self, best);
    } else if (best != NULL && !self->was_writable && sy_primary_is_writable(self)) {
        self->was_writable = 1;
        sy_log(SY_LOG_INFO, "Redis at %s, which is in use, is the primary now",
               sy_redis_where(best->redis));
        self->config.on_writable(self->config.ctx);
    }
    self->was_writable = sy_primary_is_writable(self);
    sy_metric_set(self->writable, self->was_writable);
    warn_of_twins(self);
    search_or_rest(self);
}

/* ---- roles ---- */

/* A primary that dies ends our connection and its replica's in the same moment: what the replica
 * says of its link right after is not news. It is asked again. */
static void note_role(server *s, server_role role)
{
    const int64_t lost_us = s->owner->lost_us;

    if (role == ROLE_REPLICA && lost_us != 0 && sy_clock_us() - lost_us < LINK_SETTLE_US) {
        role = ROLE_STALE;
    }
    s->is_asked = 0;
    s->role = role;
    choose(s->owner);
}

static void on_info(void *arg, const redisReply *reply)
{
    server *s = arg;
    server_role role = ROLE_NEITHER;

    if (reply == NULL) return;
    if (reply->type == REDIS_REPLY_ERROR) {
        role = ROLE_UNTOLD;
    } else if (reply->type == REDIS_REPLY_STRING) {
        if (strstr(reply->str, "role:master") != NULL) {
            role = ROLE_PRIMARY;
        } else if (strstr(reply->str, "role:slave") != NULL) {
            role = strstr(reply->str, "master_link_status:up") != NULL ? ROLE_REPLICA : ROLE_STALE;
        }
    }
    note_role(s, role);
}

static int is_word(const redisReply *reply, const char *word)
{
    return reply->type == REDIS_REPLY_STRING && strcmp(reply->str, word) == 0;
}

static void on_role(void *arg, const redisReply *reply)
{
    static const char *const info[] = {"INFO", "replication"};
    server *s = arg;
    server_role role = ROLE_NEITHER;

    if (reply == NULL) return;              /* on_server_down has seen to it */
    if (reply->type == REDIS_REPLY_ERROR) { /* forbidden, or older than ROLE */
        if (sy_redis_command(s->redis, on_info, s, 2, info) != SY_OK) s->is_asked = 0;
        return;
    }
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements > 0) {
        if (is_word(reply->element[0], "master")) {
            role = ROLE_PRIMARY;
        } else if (is_word(reply->element[0], "slave")) {
            role = reply->elements > 3 && is_word(reply->element[3], "connected") ? ROLE_REPLICA
                                                                                  : ROLE_STALE;
        }
    }
    if (role == ROLE_NEITHER && sy_log_due(&s->logged_us, LOG_INTERVAL_US)) {
        sy_log(SY_LOG_WARN, "Redis at %s is neither a primary nor a replica, and is not used",
               sy_redis_where(s->redis));
    }
    note_role(s, role);
}

static void ask(server *s)
{
    if (s->is_asked) return;
    s->is_asked = sy_redis_command(s->redis, on_role, s, 1, (const char *const[]){"ROLE"}) == SY_OK;
}

void sy_primary_check(sy_primary *primary)
{
    if (!has_choice(primary)) return;
    for (size_t i = 0; i < primary->config.n_addresses; i++) ask(&primary->server[i]);
}

static void on_search(uv_timer_t *timer)
{
    sy_primary *self = timer->data;

    sy_primary_check(self);
    choose(self);
}

/* ---- what connections report ---- */

static void on_server_up(void *ctx)
{
    server *s = ctx;

    s->is_asked = 0;
    s->readonly_us = 0;
    if (has_choice(s->owner)) {
        ask(s);
        search_or_rest(s->owner);
    } else {
        note_role(s, ROLE_PRIMARY);
    }
}

static void on_server_down(void *ctx)
{
    server *s = ctx;
    sy_primary *self = s->owner;

    s->role = ROLE_UNKNOWN;
    s->is_asked = 0;
    if (self->in_use != s) return;
    self->in_use = NULL;
    self->lost_us = sy_clock_us();
    self->config.on_down(self->config.ctx);
    sy_primary_check(self); /* perhaps one of the others has been promoted */
    search_or_rest(self);
}

/* The role that we knew is over. */
static void on_server_readonly(void *ctx)
{
    server *s = ctx;

    if (!has_choice(s->owner)) return;
    s->readonly_us = sy_clock_us();
    sy_primary_check(s->owner);
    if (s->role == ROLE_UNTOLD) choose(s->owner);
}

/* ---- use ---- */

int sy_primary_is_up(const sy_primary *primary)
{
    return primary->in_use != NULL;
}

int sy_primary_is_writable(const sy_primary *primary)
{
    return primary->in_use != NULL && rank_of(primary->in_use) >= ROLE_UNTOLD;
}

int sy_primary_is_current(const sy_primary *primary)
{
    return primary->in_use != NULL && rank_of(primary->in_use) >= ROLE_REPLICA;
}

const sy_redis *sy_primary_connection(const sy_primary *primary)
{
    return primary->in_use != NULL ? primary->in_use->redis : NULL;
}

sy_status sy_primary_command(sy_primary *primary, sy_redis_reply_fn *fn, void *arg, int argc,
                             const char *const *argv)
{
    if (primary->in_use == NULL) return SY_EUNAVAILABLE;
    return sy_redis_command(primary->in_use->redis, fn, arg, argc, argv);
}

/* ---- open and close ---- */

sy_status sy_primary_open(sy_primary **out, const sy_primary_config *config)
{
    sy_primary *self = calloc(1, sizeof(*self));
    sy_status st = SY_OK;

    *out = self;
    if (self == NULL) return SY_ENOMEM;
    SY_ASSERT(config->n_addresses >= 1 && config->n_addresses <= SY_REDIS_ADDRESSES_MAX);
    self->config = *config;
    self->search_ms = SEARCH_MIN_MS;
    self->writable =
        sy_metric_gauge("switchyard_redis_writable",
                        "1 while the Redis in use is the primary, or the only one.", NULL);
    uv_timer_init(config->loop, &self->search);
    self->search.data = self;
    self->is_search_open = 1;
    for (size_t i = 0; i < config->n_addresses; i++) {
        server *s = &self->server[i];
        const sy_redis_config connection = {
            .loop = config->loop,
            .address = &config->address[i],
            .purpose = "commands",
            .ctx = s,
            .on_up = on_server_up,
            .on_down = on_server_down,
            .on_readonly = on_server_readonly,
        };

        s->owner = self;
        SY_TRY(sy_redis_open(&s->redis, &connection));
    }
out:
    return st;
}

void sy_primary_stop(sy_primary *primary)
{
    if (primary == NULL) return;
    primary->in_use = NULL; /* nobody asks anything more */
    for (size_t i = 0; i < primary->config.n_addresses; i++) {
        sy_redis_close(primary->server[i].redis);
    }
    if (primary->is_search_open) uv_close((uv_handle_t *)&primary->search, NULL);
    primary->is_search_open = 0;
}

void sy_primary_free(sy_primary *primary)
{
    free(primary);
}
