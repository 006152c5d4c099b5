/* sy_watch.h - follows the placement hash of one model: reads it when a hint says that it may have
 * changed, and at each periodic check. The loop's thread only. Only for lib/control. */
#ifndef SY_WATCH_H
#define SY_WATCH_H

#include "sy_control.h"
#include "sy_primary.h"

typedef struct sy_watch sy_watch;

typedef struct sy_watch_config {
    struct uv_loop_s *loop;
    sy_primary *commands; /* borrowed: where the hash is read */
    const char *model;    /* borrowed */
    sy_grid grid;
    void *ctx;
    /* snapshot: owned by the watch until its next change. Also after a change that only concerns
     * refusals, with the epoch of the one before. build_us: what it took to make it of the hash. */
    void (*on_snapshot)(void *ctx, sy_snapshot *snapshot, int64_t build_us);
} sy_watch_config;

SY_MUST_USE sy_status sy_watch_open(sy_watch **out, const sy_watch_config *config);
void sy_watch_stop(sy_watch *watch); /* ends its timer; accepts NULL */
/* After stop, when no answer can come any more; accepts NULL. */
void sy_watch_free(sy_watch *watch);
void sy_watch_hint(sy_watch *watch); /* it may have changed: reads soon, a burst of hints once */
void sy_watch_read(sy_watch *watch); /* now; does nothing while Redis is away */

#endif
