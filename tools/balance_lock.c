/* balance_lock.c - see the header. */
#include "balance_lock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <hiredis/hiredis.h>

#include "sy_clock.h"
#include "tool_redis.h"
#include "tool_text.h"

#define LOCK_KEY  "switchyard:balancer"
#define LOCK_MS   "15000"
#define LOCK_US   15000000
#define RENEW_US  3000000
#define ANSWER_US 2000000 /* that Redis has for an answer */
#define MARGIN_US 5000000 /* held means: for this much longer */

struct balance_lock {
    char url[512];
    char name[BALANCE_HOLDER_BYTES];
    tool_redis *redis; /* the thread's */
    pthread_t thread;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t changed;
    int is_closing;
    int64_t held_until_us; /* by this clock, counted from before Redis was asked; 0: not held */
    char why[SY_MESSAGE_BYTES]; /* why not */
};

/* ---- Redis ---- */

/* Takes the lock, or renews it: whoever has it is the answer. */
static const char take_script[] =
    "local v = redis.call('get', KEYS[1]) "
    "if v == false or v == ARGV[1] then "
    "redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2]) return ARGV[1] end return v";
static const char give_script[] = "if redis.call('get', KEYS[1]) == ARGV[1] then "
                                  "return redis.call('del', KEYS[1]) end return 0";

static sy_status ask_for_it(balance_lock *lock, char *holder, size_t cap, sy_error *err)
{
    const char *take[] = {"EVAL", take_script, "1", LOCK_KEY, lock->name, LOCK_MS};
    redisReply *reply = NULL;
    sy_status st = SY_OK;

    if (lock->redis == NULL) SY_TRY(tool_redis_open(&lock->redis, lock->url, ANSWER_US, err));
    SY_TRY(tool_redis_ask(&reply, lock->redis, 6, take, NULL, err));
    if (reply->type == REDIS_REPLY_STRING) {
        tool_text_show(holder, cap, reply->str, reply->len);
    } else {
        st = tool_redis_odd(lock->redis, "EVAL", err);
    }
out:
    if (reply != NULL) freeReplyObject(reply);
    return st;
}

static void give_back(balance_lock *lock)
{
    const char *give[] = {"EVAL", give_script, "1", LOCK_KEY, lock->name};

    /* If Redis does not answer, the lock ends by itself. */
    if (lock->redis != NULL) (void)!tool_redis_tell(lock->redis, 5, give, NULL);
}

/* ---- the thread ---- */

static void renew(balance_lock *lock)
{
    char holder[BALANCE_HOLDER_BYTES];
    const int64_t asked_us = sy_clock_us();
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    st = ask_for_it(lock, holder, sizeof(holder), &err);
    pthread_mutex_lock(&lock->mutex);
    if (st != SY_OK) {
        /* A lock that is held goes on to be held until it ends. */
        snprintf(lock->why, sizeof(lock->why), "%s", err.message);
    } else if (strcmp(holder, lock->name) == 0) {
        lock->held_until_us = asked_us + LOCK_US;
    } else {
        lock->held_until_us = 0;
        snprintf(lock->why, sizeof(lock->why), "another balancer acts: %s has %s", holder,
                 LOCK_KEY);
    }
    pthread_cond_broadcast(&lock->changed);
    pthread_mutex_unlock(&lock->mutex);
}

/* Until the condition is signalled or us are over. The mutex is held. */
static void wait_a_while(balance_lock *lock, int64_t us)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += us / 1000000;
    until.tv_nsec += us % 1000000 * 1000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(&lock->changed, &lock->mutex, &until);
}

static void *keep(void *arg)
{
    balance_lock *const lock = arg;
    int is_closing = 0;

    while (!is_closing) {
        const int64_t next_us = sy_clock_us() + RENEW_US;

        renew(lock);
        pthread_mutex_lock(&lock->mutex);
        while (!lock->is_closing && sy_clock_us() < next_us)
            wait_a_while(lock, next_us - sy_clock_us());
        is_closing = lock->is_closing;
        pthread_mutex_unlock(&lock->mutex);
    }
    give_back(lock);
    return NULL;
}

/* ---- outside ---- */

sy_status balance_lock_open(balance_lock **out, const char *url, sy_error *err)
{
    balance_lock *lock = calloc(1, sizeof(*lock));
    pthread_condattr_t attributes;
    char host[128] = "";

    *out = NULL;
    if (lock == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the lock");
    snprintf(lock->url, sizeof(lock->url), "%s", url);
    gethostname(host, sizeof(host) - 1);
    snprintf(lock->name, sizeof(lock->name), "%s:%d", host, (int)getpid());
    snprintf(lock->why, sizeof(lock->why), "%s was not taken yet", LOCK_KEY);
    pthread_mutex_init(&lock->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&lock->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    if (pthread_create(&lock->thread, NULL, keep, lock) != 0) {
        pthread_cond_destroy(&lock->changed);
        pthread_mutex_destroy(&lock->mutex);
        free(lock);
        return sy_error_set(err, SY_EIO, "no thread for the lock");
    }
    *out = lock;
    return SY_OK;
}

void balance_lock_close(balance_lock *lock)
{
    if (lock == NULL) return;
    pthread_mutex_lock(&lock->mutex);
    lock->is_closing = 1;
    pthread_cond_broadcast(&lock->changed);
    pthread_mutex_unlock(&lock->mutex);
    pthread_join(lock->thread, NULL);
    pthread_cond_destroy(&lock->changed);
    pthread_mutex_destroy(&lock->mutex);
    tool_redis_close(lock->redis);
    free(lock);
}

static int is_held(const balance_lock *lock)
{
    return sy_clock_us() + MARGIN_US < lock->held_until_us;
}

int balance_lock_held(balance_lock *lock, char *why, size_t cap)
{
    int held;

    pthread_mutex_lock(&lock->mutex);
    held = is_held(lock);
    if (!held) snprintf(why, cap, "%s", lock->why);
    pthread_mutex_unlock(&lock->mutex);
    return held;
}

const char *balance_lock_name(const balance_lock *lock)
{
    return lock->name;
}
