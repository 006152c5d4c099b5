/* tool_redis.h - what commands ask of Redis: placement, leases, history. Blocks, until a timeout.
 * docs/placement.md has the contract. */
#ifndef TOOL_REDIS_H
#define TOOL_REDIS_H

#include "sy_control.h"

struct redisReply;

typedef struct tool_redis tool_redis;

/* url: as sy_redis_address_parse takes it. timeout_us bounds the connecting and each answer.
 * SY_EINVAL the address, SY_EUNAVAILABLE nobody answers there, SY_EPRECONDITION it refuses the
 * login or the database. Errors hold no password. */
SY_MUST_USE sy_status tool_redis_open(tool_redis **out, const char *url, int64_t timeout_us,
                                      sy_error *err);
void tool_redis_close(tool_redis *redis); /* accepts NULL */
SY_MUST_USE sy_status tool_redis_ping(tool_redis *redis, sy_error *err);

/* ---- placement ---- */
typedef struct tool_hash {
    sy_placement_entry *entry; /* [n], as Redis has them: bytes, not trusted */
    size_t n;                  /* 0: there is no such hash */
    struct redisReply *reply;  /* owns the bytes */
} tool_hash;
/* SY_OK: the caller ends *out with tool_hash_free. */
SY_MUST_USE sy_status tool_redis_placement(tool_hash *out, tool_redis *redis, const char *model,
                                           sy_error *err);
void tool_hash_free(tool_hash *hash); /* accepts a zeroed one */

#define TOOL_MODELS_MAX 64
typedef struct tool_models {
    size_t n;
    char name[TOOL_MODELS_MAX][128];
} tool_models;
/* The models that have a placement. */
SY_MUST_USE sy_status tool_redis_models(tool_models *out, tool_redis *redis, sy_error *err);

typedef struct tool_change { /* all texts borrowed during the call */
    const char *model;
    const char *const *field; /* [n] */
    const char *const *value; /* [n] */
    size_t n;
    int must_be_new; /* refuse when the hash has any field */
    const char *reason, *command;
} tool_change;
/* Replaces the whole hash and adds to the history, in one transaction. SY_EEXISTS: must_be_new, and
 * it is not; SY_EUNAVAILABLE: somebody else changed it meanwhile. */
SY_MUST_USE sy_status tool_redis_replace(tool_redis *redis, const tool_change *change,
                                         sy_error *err);

/* ---- leases ---- */
/* *out: [*n] sorted by name, the caller frees it. */
SY_MUST_USE sy_status tool_redis_members(sy_member **out, size_t *n, tool_redis *redis,
                                         sy_member_kind kind, sy_error *err);

/* ---- copies ---- */
typedef struct tool_copy { /* of a key, as DUMP writes it */
    char *data;
    size_t len;
} tool_copy;
/* SY_OK: *out, zeroed or an older copy, is replaced; the caller frees data in the end.
 * SY_ENOTFOUND: there is no such key, and *out is as it was. */
SY_MUST_USE sy_status tool_redis_dump(tool_copy *out, tool_redis *redis, const char *key,
                                      sy_error *err);
/* SY_EEXISTS: the key is there already. */
SY_MUST_USE sy_status tool_redis_restore(tool_redis *redis, const char *key, const tool_copy *copy,
                                         sy_error *err);
SY_MUST_USE sy_status tool_key_history(char *out, size_t cap, const char *model);

#endif
