/* sy_lease.c - a lease is a hash with a time to live. Every renewal writes all of it in one
 * transaction, so that there is never a lease without an end, and a Redis that lost its data is
 * filled again. Two processes that go by one name would overwrite each other for ever: that is
 * noticed, and said. */
#include "sy_lease.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

#include "sy_keys.h"
#include "sy_log.h"

#define TWIN_LOG_INTERVAL_US 10000000

/* Who holds a lease, as far as Redis tells. */
typedef struct holder {
    char pid[24];
    char address[SY_ADDRESS_BYTES];
} holder;

struct sy_lease {
    sy_primary *commands;
    char ttl_ms[24];
    void (*on_withdrawn)(void *ctx);
    void *ctx;
    int is_announced;
    int is_written;   /* since it was announced under this key */
    int must_publish; /* the others do not know yet what it says */
    char key[SY_KEY_BYTES];
    sy_member self;
    holder me;
    _Atomic int64_t write_logged_us, twin_logged_us, delete_logged_us, publish_logged_us;
};

/* The deletion of a key that is, or was, ours. */
typedef struct removal {
    sy_lease *lease;
    int is_withdrawal; /* somebody waits for it */
    char key[SY_KEY_BYTES];
    holder me;
} removal;

/* The answer to HMGET pid address. 0: nobody holds the lease, or the answer is odd. */
static int read_holder(holder *out, const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[0]->type != REDIS_REPLY_STRING ||
        reply->element[1]->type != REDIS_REPLY_STRING) {
        return 0;
    }
    snprintf(out->pid, sizeof(out->pid), "%s", reply->element[0]->str);
    snprintf(out->address, sizeof(out->address), "%s", reply->element[1]->str);
    return 1;
}

static int is_same(const holder *a, const holder *b)
{
    return strcmp(a->pid, b->pid) == 0 && strcmp(a->address, b->address) == 0;
}

static sy_status ask_holder(sy_lease *self, sy_redis_reply_fn *fn, void *arg, const char *key)
{
    return sy_primary_command(self->commands, fn, arg, 4,
                              (const char *const[]){"HMGET", key, "pid", "address"});
}

/* ---- telling others ---- */

static void on_published(void *arg, const redisReply *reply)
{
    sy_lease *self = arg;

    (void)sy_redis_answered(reply, "to publish on " SY_MEMBERS_CHANNEL, &self->publish_logged_us);
}

/* After the change, on the same connection: whoever hears it finds the change made. */
static void publish(sy_lease *self, const char *key)
{
    (void)!sy_primary_command(
        self->commands, on_published, self, 3,
        (const char *const[]){"PUBLISH", SY_MEMBERS_CHANNEL, key + strlen(SY_KEY_ROOT)});
}

/* ---- withdrawing ---- */

static void finish_removal(removal *of)
{
    if (of->is_withdrawal) of->lease->on_withdrawn(of->lease->ctx);
    free(of);
}

static void on_deleted(void *arg, const redisReply *reply)
{
    removal *of = arg;

    (void)sy_redis_answered(reply, "to delete a lease", &of->lease->delete_logged_us);
    finish_removal(of);
}

static void on_holder_before_delete(void *arg, const redisReply *reply)
{
    removal *of = arg;
    sy_lease *self = of->lease;
    holder now;
    const int is_ours = sy_redis_answered(reply, "to delete a lease", &self->delete_logged_us) &&
                        read_holder(&now, reply) && is_same(&now, &of->me);
    const int is_back = self->is_announced && strcmp(self->key, of->key) == 0;

    if (!is_ours || is_back ||
        sy_primary_command(self->commands, on_deleted, of, 2,
                           (const char *const[]){"DEL", of->key}) != SY_OK) {
        finish_removal(of);
        return;
    }
    publish(self, of->key);
}

static void remove_current(sy_lease *self, int is_withdrawal)
{
    removal *of = calloc(1, sizeof(*of));

    if (of == NULL) { /* the lease will end by itself */
        if (is_withdrawal) self->on_withdrawn(self->ctx);
        return;
    }
    of->lease = self;
    of->is_withdrawal = is_withdrawal;
    of->me = self->me;
    memcpy(of->key, self->key, sizeof(of->key));
    if (ask_holder(self, on_holder_before_delete, of, of->key) != SY_OK) finish_removal(of);
}

void sy_lease_withdraw(sy_lease *lease)
{
    if (!lease->is_announced) {
        lease->on_withdrawn(lease->ctx);
        return;
    }
    lease->is_announced = 0;
    remove_current(lease, 1);
}

/* ---- writing ---- */

static void on_holder_before_renewal(void *arg, const redisReply *reply)
{
    sy_lease *self = arg;
    holder now;

    if (!sy_redis_answered(reply, "to read a lease", &self->write_logged_us)) return;
    if (!self->is_written || !self->is_announced || !read_holder(&now, reply) ||
        is_same(&now, &self->me) || !sy_log_due(&self->twin_logged_us, TWIN_LOG_INTERVAL_US)) {
        return;
    }
    sy_log(SY_LOG_ERROR,
           "the lease %s is also held by process %s at %s: give each process a name of its own",
           self->key, now.pid, now.address);
}

static void on_queued(void *arg, const redisReply *reply)
{
    sy_lease *self = arg;

    (void)sy_redis_answered(reply, "to write a lease", &self->write_logged_us);
}

static void on_written(void *arg, const redisReply *reply)
{
    sy_lease *self = arg;

    if (!sy_redis_answered(reply, "to write a lease", &self->write_logged_us)) return;
    if (reply->type != REDIS_REPLY_ARRAY) return;
    for (size_t i = 0; i < reply->elements; i++) {
        if (!sy_redis_answered(reply->element[i], "to write a lease", &self->write_logged_us)) {
            return;
        }
    }
    self->is_written = 1;
}

void sy_lease_renew(sy_lease *lease)
{
    static const char *const multi[] = {"MULTI"};
    static const char *const exec[] = {"EXEC"};
    const char *set[2 + 2 * SY_LEASE_FIELDS] = {"HSET", lease->key};
    const char *expire[] = {"PEXPIRE", lease->key, lease->ttl_ms};
    sy_primary *to = lease->commands;

    if (!lease->is_announced || !sy_primary_is_writable(to)) return;
    for (size_t i = 0; i < SY_LEASE_FIELDS; i++) {
        set[2 + 2 * i] = sy_lease_fields[i].name;
        set[3 + 2 * i] = i == SY_LEASE_PID ? lease->me.pid
                                           : (const char *)&lease->self + sy_lease_fields[i].offset;
    }
    /* Where one cannot be sent the rest cannot either; the next renewal tries again, and its EXEC
     * would also end a transaction that is left open here. */
    if (ask_holder(lease, on_holder_before_renewal, lease, lease->key) == SY_OK &&
        sy_primary_command(to, on_queued, lease, 1, multi) == SY_OK &&
        sy_primary_command(to, on_queued, lease, (int)SY_COUNT_OF(set), set) == SY_OK &&
        sy_primary_command(to, on_queued, lease, (int)SY_COUNT_OF(expire), expire) == SY_OK) {
        (void)!sy_primary_command(to, on_written, lease, 1, exec);
        if (lease->must_publish) publish(lease, lease->key);
        lease->must_publish = 0;
    }
}

void sy_lease_on_up(sy_lease *lease)
{
    lease->must_publish = 1;
    sy_lease_renew(lease);
}

void sy_lease_announce(sy_lease *lease, sy_member_kind kind, const sy_member *self)
{
    char key[SY_KEY_BYTES];

    if (sy_key_member(key, sizeof(key), kind, self->name) != SY_OK) return;
    if (lease->is_announced && strcmp(key, lease->key) != 0) remove_current(lease, 0);
    if (!lease->is_announced || strcmp(key, lease->key) != 0) lease->is_written = 0;
    memcpy(lease->key, key, sizeof(key));
    lease->self = *self;
    snprintf(lease->me.pid, sizeof(lease->me.pid), "%lld", (long long)self->pid);
    memcpy(lease->me.address, self->address, sizeof(lease->me.address));
    lease->is_announced = 1;
    lease->must_publish = 1;
    sy_lease_renew(lease);
}

sy_status sy_lease_open(sy_lease **out, sy_primary *commands, int64_t lease_us,
                        void (*on_withdrawn)(void *ctx), void *ctx)
{
    sy_lease *self = calloc(1, sizeof(*self));

    *out = self;
    if (self == NULL) return SY_ENOMEM;
    self->commands = commands;
    self->on_withdrawn = on_withdrawn;
    self->ctx = ctx;
    snprintf(self->ttl_ms, sizeof(self->ttl_ms), "%lld",
             (long long)SY_MAX(lease_us / 1000, (int64_t)1));
    return SY_OK;
}

void sy_lease_free(sy_lease *lease)
{
    free(lease);
}
