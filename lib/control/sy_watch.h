/* sy_watch.h - follows the placement hash of one model: reads it, again whenever Redis says that it
 * changed, and at each periodic check. The loop's thread only. Only for lib/control. */
#ifndef SY_WATCH_H
#define SY_WATCH_H

#include "sy_control.h"
#include "sy_redis.h"

typedef struct sy_watch sy_watch;

typedef struct sy_watch_config {
    struct uv_loop_s *loop;
    const sy_redis_address *address; /* borrowed */
    sy_redis *commands;              /* borrowed: where the hash is read */
    const char *model;               /* borrowed */
    uint32_t layers, experts;
    void *ctx;
    /* snapshot: owned by the watch until its next change. Also after a change that only concerns
     * refusals, with the epoch of the one before. */
    void (*on_snapshot)(void *ctx, sy_snapshot *snapshot);
} sy_watch_config;

SY_MUST_USE sy_status sy_watch_open(sy_watch **out, const sy_watch_config *config);
void sy_watch_stop(sy_watch *watch); /* closes its own connection */
void sy_watch_free(
    sy_watch *watch); /* after stop, when no answer can come any more; accepts NULL */
void sy_watch_on_up(sy_watch *watch); /* the command connection is up */
void sy_watch_read(sy_watch *watch);  /* soon; does nothing while Redis is away */

#endif
