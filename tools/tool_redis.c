/* tool_redis.c - hiredis, one command at a time. */
#include "tool_redis.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

#include "tool_text.h"

#define KEY_BYTES   256
#define MEMBERS_MAX 65536

struct tool_redis {
    redisContext *context;
    sy_redis_address address;
    int64_t timeout_us;
    char where[160]; /* for people: no password */
};

/* ---- commands ---- */

static struct timeval to_timeval(int64_t us)
{
    return (struct timeval){.tv_sec = (time_t)(us / 1000000), .tv_usec = us % 1000000};
}

static sy_status ask(redisReply **out, tool_redis *redis, int argc, const char **argv,
                     const size_t *lens, sy_error *err)
{
    redisReply *reply = redisCommandArgv(redis->context, argc, argv, lens);

    *out = NULL;
    if (reply == NULL) {
        sy_error_set(err, SY_EUNAVAILABLE, "Redis at %s does not answer: %s", redis->where,
                     redis->context->errstr);
        return SY_EUNAVAILABLE;
    }
    if (reply->type == REDIS_REPLY_ERROR) {
        const sy_status st = strncmp(reply->str, "BUSYKEY", 7) == 0 ? SY_EEXISTS : SY_EPRECONDITION;

        sy_error_set(err, st, "Redis at %s refuses %s: %s", redis->where, argv[0], reply->str);
        freeReplyObject(reply);
        return st;
    }
    *out = reply;
    return SY_OK;
}

static sy_status tell(tool_redis *redis, int argc, const char **argv, sy_error *err)
{
    redisReply *reply;
    const sy_status st = ask(&reply, redis, argc, argv, NULL, err);

    if (reply != NULL) freeReplyObject(reply);
    return st;
}

sy_status tool_redis_odd(const tool_redis *redis, const char *command, sy_error *err)
{
    return sy_error_set(err, SY_EDATALOSS, "Redis at %s gives an odd answer to %s", redis->where,
                        command);
}

/* ---- open and close ---- */

static sy_status log_in(tool_redis *redis, sy_error *err)
{
    const sy_redis_address *address = &redis->address;
    char db[16];
    sy_status st = SY_OK;

    if (address->password[0] != '\0') {
        const char *with_user[] = {"AUTH", address->user, address->password};
        const char *without[] = {"AUTH", address->password};

        if (address->user[0] != '\0') {
            SY_TRY(tell(redis, 3, with_user, err));
        } else {
            SY_TRY(tell(redis, 2, without, err));
        }
    }
    if (address->db != 0) {
        const char *select[] = {"SELECT", db};

        snprintf(db, sizeof(db), "%d", address->db);
        SY_TRY(tell(redis, 2, select, err));
    }
out:
    return st;
}

static sy_status connect_to(tool_redis *redis, sy_error *err)
{
    const sy_redis_address *address = &redis->address;
    const struct timeval timeout = to_timeval(redis->timeout_us);

    if (redis->context != NULL) redisFree(redis->context);
    if (address->is_unix) {
        snprintf(redis->where, sizeof(redis->where), "unix:%s", address->path);
        redis->context = redisConnectUnixWithTimeout(address->path, timeout);
    } else {
        snprintf(redis->where, sizeof(redis->where), "%s:%d", address->host, address->port);
        redis->context = redisConnectWithTimeout(address->host, address->port, timeout);
    }
    if (redis->context == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for a connection");
    if (redis->context->err != 0) {
        return sy_error_set(err, SY_EUNAVAILABLE, "cannot connect to Redis at %s: %s", redis->where,
                            redis->context->errstr);
    }
    if (redisSetTimeout(redis->context, timeout) != REDIS_OK) {
        return sy_error_set(err, SY_EIO, "cannot set a timeout: %s", redis->context->errstr);
    }
    return SY_OK;
}

/* A connection that broke is made again by the next command. */
sy_status tool_redis_ask(redisReply **out, tool_redis *redis, int argc, const char **argv,
                         const size_t *lens, sy_error *err)
{
    sy_status st;

    *out = NULL;
    if (redis->context == NULL || redis->context->err != 0) {
        SY_TRY(connect_to(redis, err));
        SY_TRY(log_in(redis, err));
    }
    st = ask(out, redis, argc, argv, lens, err);
out:
    return st;
}

sy_status tool_redis_tell(tool_redis *redis, int argc, const char **argv, sy_error *err)
{
    redisReply *reply;
    const sy_status st = tool_redis_ask(&reply, redis, argc, argv, NULL, err);

    if (reply != NULL) freeReplyObject(reply);
    return st;
}

sy_status tool_redis_open(tool_redis **out, const char *url, int64_t timeout_us, sy_error *err)
{
    tool_redis *redis = calloc(1, sizeof(*redis));
    sy_status st;

    *out = NULL;
    if (redis == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for a connection");
    signal(SIGPIPE, SIG_IGN); /* hiredis writes without MSG_NOSIGNAL */
    redis->timeout_us = timeout_us;
    SY_TRY(sy_redis_address_parse(&redis->address, url, err));
    SY_TRY(connect_to(redis, err));
    SY_TRY(log_in(redis, err));
    *out = redis;
    redis = NULL;
out:
    tool_redis_close(redis);
    return st;
}

void tool_redis_close(tool_redis *redis)
{
    if (redis == NULL) return;
    if (redis->context != NULL) redisFree(redis->context);
    free(redis);
}

sy_status tool_redis_ping(tool_redis *redis, sy_error *err)
{
    return tool_redis_tell(redis, 1, (const char *[]){"PING"}, err);
}

/* ---- placement: reading ---- */

static int is_hash(const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements % 2 != 0) return 0;
    for (size_t i = 0; i < reply->elements; i++) {
        if (reply->element[i]->type != REDIS_REPLY_STRING) return 0;
    }
    return 1;
}

static sy_status placement_key(char out[KEY_BYTES], const char *model, sy_error *err)
{
    if (sy_key_placement(out, KEY_BYTES, model) == SY_OK) return SY_OK;
    return sy_error_set(err, SY_EINVAL, "the name of the model is too long");
}

sy_status tool_redis_placement(tool_hash *out, tool_redis *redis, const char *model, sy_error *err)
{
    char key[KEY_BYTES];
    sy_status st;

    memset(out, 0, sizeof(*out));
    SY_TRY(placement_key(key, model, err));
    SY_TRY(tool_redis_ask(&out->reply, redis, 2, (const char *[]){"HGETALL", key}, NULL, err));
    if (!is_hash(out->reply)) {
        st = tool_redis_odd(redis, "HGETALL", err);
        goto out;
    }
    out->entry = calloc(out->reply->elements / 2 + 1, sizeof(*out->entry));
    if (out->entry == NULL) {
        st = sy_error_set(err, SY_ENOMEM, "no memory for the placement");
        goto out;
    }
    for (; out->n < out->reply->elements / 2; out->n++) {
        const redisReply *field = out->reply->element[2 * out->n];
        const redisReply *value = out->reply->element[2 * out->n + 1];

        out->entry[out->n] = (sy_placement_entry){field->str, field->len, value->str, value->len};
    }
out:
    if (st != SY_OK) tool_hash_free(out);
    return st;
}

void tool_hash_free(tool_hash *hash)
{
    free(hash->entry);
    if (hash->reply != NULL) freeReplyObject(hash->reply);
    memset(hash, 0, sizeof(*hash));
}

/* ---- keys by pattern ---- */

typedef sy_status scan_fn(void *arg, const char *key);

/* Calls fn for each key that matches, possibly twice for one, as SCAN does. */
static sy_status scan(tool_redis *redis, const char *pattern, scan_fn *fn, void *arg, sy_error *err)
{
    char cursor[32] = "0";
    redisReply *reply = NULL;
    sy_status st;

    do {
        SY_TRY(tool_redis_ask(&reply, redis, 6,
                              (const char *[]){"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"},
                              NULL, err));
        if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
            reply->element[0]->type != REDIS_REPLY_STRING ||
            reply->element[1]->type != REDIS_REPLY_ARRAY) {
            st = tool_redis_odd(redis, "SCAN", err);
            goto out;
        }
        snprintf(cursor, sizeof(cursor), "%s", reply->element[0]->str);
        for (size_t i = 0; i < reply->element[1]->elements; i++) {
            const redisReply *key = reply->element[1]->element[i];

            if (key->type == REDIS_REPLY_STRING) SY_TRY(fn(arg, key->str));
        }
        freeReplyObject(reply);
        reply = NULL;
    } while (strcmp(cursor, "0") != 0);
out:
    if (reply != NULL) freeReplyObject(reply);
    return st;
}

static sy_status add_model(void *arg, const char *key)
{
    tool_models *models = arg;
    const char *const begin = strchr(key, '{');
    const char *const end = strrchr(key, '}');
    char name[sizeof(models->name[0])];

    if (begin == NULL || end == NULL || end <= begin + 1) return SY_OK;
    if ((size_t)(end - begin) > sizeof(name)) return SY_OK;
    snprintf(name, sizeof(name), "%.*s", (int)(end - begin - 1), begin + 1);
    for (size_t i = 0; i < models->n; i++) {
        if (strcmp(models->name[i], name) == 0) return SY_OK;
    }
    if (models->n < TOOL_MODELS_MAX) memcpy(models->name[models->n++], name, sizeof(name));
    return SY_OK;
}

sy_status tool_redis_models(tool_models *out, tool_redis *redis, sy_error *err)
{
    memset(out, 0, sizeof(*out));
    return scan(redis, "switchyard:{*}:placement", add_model, out, err);
}

/* ---- leases ---- */

typedef struct member_list {
    sy_member *item;
    size_t n;
    const char *prefix;
} member_list;

/* A key is anybody's to write: what is no name of a process is none. */
static int is_name(const char *text)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const size_t n = strspn(text, letters);

    return n > 0 && n < SY_NODE_BYTES && text[n] == '\0';
}

static sy_status add_member(void *arg, const char *key)
{
    member_list *list = arg;
    const char *const name = key + strlen(list->prefix);
    sy_member *grown;

    if (!is_name(name) || list->n == MEMBERS_MAX) return SY_OK;
    for (size_t i = 0; i < list->n; i++) {
        if (strcmp(list->item[i].name, name) == 0) return SY_OK;
    }
    grown = realloc(list->item, (list->n + 1) * sizeof(*grown));
    if (grown == NULL) return SY_ENOMEM;
    list->item = grown;
    memset(&grown[list->n], 0, sizeof(*grown));
    snprintf(grown[list->n].name, sizeof(grown->name), "%s", name);
    list->n++;
    return SY_OK;
}

static void take_lease_field(sy_member *out, const char *field, const char *value)
{
    const struct {
        const char *name;
        char *to;
        size_t cap;
    } text[] = {
        {"address", out->address, sizeof(out->address)},
        {"http", out->http, sizeof(out->http)},
        {"model", out->model, sizeof(out->model)},
        {"devices", out->devices, sizeof(out->devices)},
        {"state", out->state, sizeof(out->state)},
        {"version", out->version, sizeof(out->version)},
        {"structure_hash", out->structure_hash, sizeof(out->structure_hash)},
        {"checkpoint_hash", out->checkpoint_hash, sizeof(out->checkpoint_hash)},
        {"arithmetic", out->arithmetic, sizeof(out->arithmetic)},
    };

    for (size_t i = 0; i < SY_COUNT_OF(text); i++) {
        if (strcmp(text[i].name, field) == 0) {
            tool_text_show(text[i].to, text[i].cap, value, strlen(value));
        }
    }
    if (strcmp(field, "pid") == 0) out->pid = strtoll(value, NULL, 10);
}

/* *is_there is 0 for a lease that ended since it was listed. */
static sy_status read_lease(int *is_there, tool_redis *redis, sy_member *member,
                            sy_member_kind kind, sy_error *err)
{
    char key[KEY_BYTES];
    redisReply *reply = NULL;
    sy_status st;

    SY_TRY(sy_key_member(key, sizeof(key), kind, member->name));
    SY_TRY(tool_redis_ask(&reply, redis, 2, (const char *[]){"HGETALL", key}, NULL, err));
    *is_there = is_hash(reply) && reply->elements > 0;
    for (size_t i = 0; *is_there && i < reply->elements; i += 2) {
        take_lease_field(member, reply->element[i]->str, reply->element[i + 1]->str);
    }
out:
    if (reply != NULL) freeReplyObject(reply);
    return st;
}

static int by_name(const void *a, const void *b)
{
    return strverscmp(((const sy_member *)a)->name, ((const sy_member *)b)->name);
}

sy_status tool_redis_members(sy_member **out, size_t *n, tool_redis *redis, sy_member_kind kind,
                             sy_error *err)
{
    char prefix[KEY_BYTES];
    char pattern[KEY_BYTES + 1];
    member_list list = {.prefix = prefix};
    size_t n_left = 0;
    int is_there = 0;
    sy_status st;

    *out = NULL;
    *n = 0;
    SY_TRY(sy_key_member(prefix, sizeof(prefix), kind, ""));
    snprintf(pattern, sizeof(pattern), "%s*", prefix);
    SY_TRY(scan(redis, pattern, add_member, &list, err));
    for (size_t i = 0; i < list.n; i++) {
        SY_TRY(read_lease(&is_there, redis, &list.item[i], kind, err));
        if (is_there) list.item[n_left++] = list.item[i];
    }
    if (n_left > 0) qsort(list.item, n_left, sizeof(*list.item), by_name);
    *out = list.item;
    *n = n_left;
    list.item = NULL;
out:
    if (st == SY_ENOMEM) sy_error_set(err, st, "no memory for the leases");
    free(list.item);
    return st;
}

/* ---- copies ---- */

sy_status tool_redis_dump(tool_copy *out, tool_redis *redis, const char *key, sy_error *err)
{
    redisReply *reply = NULL;
    char *data;
    sy_status st;

    SY_TRY(tool_redis_ask(&reply, redis, 2, (const char *[]){"DUMP", key}, NULL, err));
    if (reply->type != REDIS_REPLY_STRING) {
        st = reply->type == REDIS_REPLY_NIL ? sy_error_set(err, SY_ENOTFOUND, "there is no %s", key)
                                            : tool_redis_odd(redis, "DUMP", err);
        goto out;
    }
    data = malloc(reply->len + 1);
    if (data == NULL) {
        st = sy_error_set(err, SY_ENOMEM, "no memory for a copy of %s", key);
        goto out;
    }
    memcpy(data, reply->str, reply->len);
    free(out->data);
    *out = (tool_copy){.data = data, .len = reply->len};
out:
    if (reply != NULL) freeReplyObject(reply);
    return st;
}

sy_status tool_redis_restore(tool_redis *redis, const char *key, const tool_copy *copy,
                             sy_error *err)
{
    const char *argv[] = {"RESTORE", key, "0", copy->data};
    const size_t lens[] = {7, strlen(key), 1, copy->len};
    redisReply *reply;
    const sy_status st = tool_redis_ask(&reply, redis, 4, argv, lens, err);

    if (reply != NULL) freeReplyObject(reply);
    return st;
}
