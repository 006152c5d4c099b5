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

/* ---- any command ---- */
/* A connection that broke is made again first. *out: the caller ends it with freeReplyObject; never
 * an error reply. lens may be NULL: the arguments are texts. SY_EUNAVAILABLE: no answer;
 * SY_EPRECONDITION: Redis refuses the command, but SY_EEXISTS for BUSYKEY. */
SY_MUST_USE sy_status tool_redis_ask(struct redisReply **out, tool_redis *redis, int argc,
                                     const char **argv, const size_t *lens, sy_error *err);
/* The same, for a command whose answer says no more than "OK". */
SY_MUST_USE sy_status tool_redis_tell(tool_redis *redis, int argc, const char **argv,
                                      sy_error *err);
/* SY_EDATALOSS: an answer of another shape than the command's. */
sy_status tool_redis_odd(const tool_redis *redis, const char *command, sy_error *err);

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

/* ---- edits ---- */

typedef struct tool_field_change { /* texts borrowed during the call */
    const char *field;
    const char *before; /* what must be there, to the byte; NULL: the field must not be there */
    const char *after;  /* NULL: the field is deleted. Equal to before: it is only guarded */
} tool_field_change;

typedef struct tool_edit { /* all texts borrowed during the call */
    const char *model;
    const tool_field_change *change; /* [n], each field once */
    size_t n;
    int must_be_new;  /* refused when the hash has any field */
    int replaces_all; /* every field that is not among the changes goes, whatever it says */
    int force;        /* whatever is there is overwritten; the history says what it was */
    const char *reason, *command; /* for the history */
    const char *author;           /* NULL: tool_author */
} tool_edit;

#define TOOL_ENTRY_ID_BYTES 48
/* Compare-and-set of any number of fields, all or none, with an entry in the history. An edit of
 * other fields at the same moment is no conflict. entry_id: NULL, or gets the history's id
 * ("1700000000000-0"), "" when nothing differed and so nothing was written. The connection is of
 * use afterwards, whatever comes out.
 * SY_EEXISTS (reason "PLACEMENT_CHANGED"): a field is not as `before` says, and the text names who
 * changed it, when and to what; or must_be_new, and it is not. SY_EUNAVAILABLE, SY_EPRECONDITION:
 * Redis does not answer, or refuses. Nothing was written in any of these cases, but for two: after
 * SY_EUNAVAILABLE without an answer to the last command nobody knows, and the text says so; and
 * where the history's key holds something else than a stream, fields are written without an entry.
 */
SY_MUST_USE sy_status tool_redis_change(tool_redis *redis, const tool_edit *edit,
                                        char entry_id[TOOL_ENTRY_ID_BYTES], sy_error *err);

#define TOOL_AUTHOR_BYTES 160
/* "USER@HOST": who is to be asked about a change. out is returned. */
const char *tool_author(char out[TOOL_AUTHOR_BYTES]);

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
