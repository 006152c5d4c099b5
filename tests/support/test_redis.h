/* test_redis.h - a redis-server of the test's own, on a Unix socket in a temporary folder, which
 * can be killed and started again; and a blocking connection to edit it with. Needs hiredis. */
#ifndef TEST_REDIS_H
#define TEST_REDIS_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <hiredis/hiredis.h>

#define TEST_REDIS_ARGS_MAX 8
#define TEST_WAIT_S         60 /* generous: only a failing test waits so long */

/* Waits until the condition holds; fails the test when it never does. The pause only saves CPU
 * time: nothing depends on how long it is. */
#define WAIT_FOR(cond)                                                               \
    do {                                                                             \
        const time_t wait_until_ = time(NULL) + TEST_WAIT_S;                         \
        while (!(cond)) {                                                            \
            if (time(NULL) > wait_until_) fail_msg("waited in vain for: %s", #cond); \
            nanosleep(&(const struct timespec){0, 2000000}, NULL);                   \
        }                                                                            \
    } while (0)

typedef struct test_redis {
    pid_t pid; /* 0: not running */
    char dir[64];
    char socket[96];
    char address[112];                          /* "unix:/.../redis.sock" */
    const char *extra[TEST_REDIS_ARGS_MAX + 1]; /* further arguments, ended by NULL */
    const char *password;                       /* of requirepass, or NULL */
} test_redis;

/* NULL: nobody answers yet. */
static inline redisContext *test_redis_try(const test_redis *redis)
{
    redisContext *c = redisConnectUnix(redis->socket);
    redisReply *reply = NULL;
    int is_good = 0;

    if (c != NULL && c->err == 0) {
        if (redis->password != NULL) freeReplyObject(redisCommand(c, "AUTH %s", redis->password));
        reply = redisCommand(c, "PING");
        is_good = reply != NULL && reply->type == REDIS_REPLY_STATUS;
    }
    if (reply != NULL) freeReplyObject(reply);
    if (is_good) return c;
    if (c != NULL) redisFree(c);
    return NULL;
}

static inline redisContext *test_redis_connect(const test_redis *redis)
{
    redisContext *c = NULL;

    WAIT_FOR((c = test_redis_try(redis)) != NULL);
    return c;
}

/* Starts the server, or starts it again after test_redis_kill, with an empty memory. */
static inline void test_redis_start(test_redis *redis)
{
    const char *argv[20 + TEST_REDIS_ARGS_MAX] = {
        "redis-server", "--port", "0", "--unixsocket", redis->socket, "--dir",
        redis->dir,     "--save", "",  "--appendonly", "no",          "--logfile",
        "redis.log"};
    size_t n = 13;

    for (size_t i = 0; redis->extra[i] != NULL; i++) argv[n++] = redis->extra[i];
    argv[n] = NULL;
    redis->pid = fork();
    assert_true(redis->pid >= 0);
    if (redis->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* never outlives the test */
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    redisFree(test_redis_connect(redis));
}

static inline void test_redis_open(test_redis *redis)
{
    snprintf(redis->dir, sizeof(redis->dir), "/tmp/sy-test-redis-XXXXXX");
    assert_non_null(mkdtemp(redis->dir));
    snprintf(redis->socket, sizeof(redis->socket), "%s/redis.sock", redis->dir);
    snprintf(redis->address, sizeof(redis->address), "unix:%s", redis->socket);
}

static inline void test_redis_kill(test_redis *redis)
{
    if (redis->pid <= 0) return;
    kill(redis->pid, SIGKILL);
    assert_int_equal(waitpid(redis->pid, NULL, 0), redis->pid);
    redis->pid = 0;
}

static inline void test_redis_close(test_redis *redis)
{
    char path[128];

    test_redis_kill(redis);
    unlink(redis->socket);
    snprintf(path, sizeof(path), "%s/redis.log", redis->dir);
    unlink(path);
    rmdir(redis->dir);
}

/* One command on a connection of its own; the answer as a number: of an integer its value, of a
 * string or an array its length, of a status 1, of nil 0. An error fails the test. */
static inline long long test_redis_do(const test_redis *redis, const char *fmt, ...)
{
    redisContext *c = test_redis_connect(redis);
    redisReply *reply;
    long long value = 0;
    va_list ap;

    va_start(ap, fmt);
    reply = redisvCommand(c, fmt, ap);
    va_end(ap);
    if (reply == NULL) fail_msg("redis: %s: %s", fmt, c->errstr);
    switch (reply->type) {
    case REDIS_REPLY_ERROR: fail_msg("redis: %s: %s", fmt, reply->str); break;
    case REDIS_REPLY_INTEGER: value = reply->integer; break;
    case REDIS_REPLY_STRING: value = (long long)reply->len; break;
    case REDIS_REPLY_ARRAY: value = (long long)reply->elements; break;
    case REDIS_REPLY_STATUS: value = 1; break;
    default: break;
    }
    freeReplyObject(reply);
    redisFree(c);
    return value;
}

#endif
