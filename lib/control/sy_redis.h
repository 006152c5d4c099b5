/* sy_redis.h - one connection to Redis on a libuv loop, which mends itself: it resolves, connects,
 * logs in, selects the database, and after any failure tries again with back-off. hiredis formats
 * commands and parses answers; the sockets are libuv's. The loop's thread only. Only for
 * lib/control. */
#ifndef SY_REDIS_H
#define SY_REDIS_H

#include "sy_control.h"

struct uv_loop_s;
struct redisReply;

typedef struct sy_redis sy_redis;

/* reply: borrowed during the call; NULL when the connection was lost before the answer came. */
typedef void sy_redis_reply_fn(void *arg, const struct redisReply *reply);

typedef struct sy_redis_config {
    struct uv_loop_s *loop;
    const sy_redis_address *address; /* borrowed; NULL: idle until sy_redis_follow */
    const char *purpose;             /* for the log: "commands", "notifications" */
    void *ctx;
    void (*on_up)(void *ctx);       /* logged in: commands may be sent */
    void (*on_down)(void *ctx);     /* after an on_up; pending commands are answered NULL next */
    void (*on_readonly)(void *ctx); /* a command was refused because this is a replica; or NULL */
    /* What arrives once sy_redis_subscribe was called; NULL if it never is. */
    void (*on_message)(void *ctx, const struct redisReply *message);
} sy_redis_config;

SY_MUST_USE sy_status sy_redis_open(sy_redis **out, const sy_redis_config *config);
/* Answers what is pending with NULL; the memory goes in the loop's next turns. Accepts NULL. */
void sy_redis_close(sy_redis *redis);
int sy_redis_is_up(const sy_redis *redis);
int sy_redis_has_failed(const sy_redis *redis); /* its last attempt or connection did, not yet up */
const char *sy_redis_where(const sy_redis *redis); /* for the log, without a password */

/* Connects to the very server that `leader` is connected to, not merely to the same name, and stays
 * with it until told otherwise. Nothing happens when it is there already. */
void sy_redis_follow(sy_redis *redis, const sy_redis *leader);
/* Answers what is pending with NULL and connects anew at once; on_down is called when it was up. */
void sy_redis_restart(sy_redis *redis);

/* SY_OK: fn is called once, later. Otherwise never: SY_EUNAVAILABLE when not up, SY_ELIMIT,
 * SY_ENOMEM. argv: copied. */
SY_MUST_USE sy_status sy_redis_command(sy_redis *redis, sy_redis_reply_fn *fn, void *arg, int argc,
                                       const char *const *argv);
/* From now on this connection only listens, to one channel more each time. While it is up. */
void sy_redis_subscribe(sy_redis *redis, const char *channel);

/* True when the answer is of use; else logs "WHAT: ERROR", at most every 10 s for each last_us, and
 * not at all for a lost connection. */
int sy_redis_answered(const struct redisReply *reply, const char *what, _Atomic int64_t *last_us);

#endif
