/* up_supervisor.h - starts the processes of a cluster, starts each again that dies, and stops them
 * in order. One thread, which also takes SIGINT, SIGTERM, SIGHUP and SIGCHLD for the process. */
#ifndef UP_SUPERVISOR_H
#define UP_SUPERVISOR_H

#include "sy_strbuf.h"
#include "up_launch.h"

typedef struct up_supervisor up_supervisor;

typedef struct up_supervisor_config {
    const up_launcher *launcher; /* borrowed */
    int64_t start_us;            /* how long the start may take */
    int abort_fd;                /* a pipe whose reader waits for the start; -1: none. When the
                                    reader is gone, the start is given up */
    /* Called once Redis answers, before any server starts. */
    sy_status (*on_redis)(void *ctx, sy_error *err);
    void *ctx;
} up_supervisor_config;

/* Blocks the signals. Before any other thread exists. */
SY_MUST_USE sy_status up_supervisor_open(up_supervisor **out, const up_supervisor_config *config,
                                         sy_error *err);
/* Returns when every process is ready. Otherwise err says what failed, more (initialised by the
 * caller) has details for a person: the end of a log, who is not ready and why; what was started
 * still runs, or not, until up_supervisor_stop. SY_ECANCELLED: a signal came. */
SY_MUST_USE sy_status up_supervisor_start(up_supervisor *supervisor, sy_strbuf *more,
                                          sy_error *err);
void up_supervisor_run(up_supervisor *supervisor); /* until a signal to stop */
/* Tier by tier: SIGTERM, and SIGKILL to what is left after 25 s in all, or at once when another
 * signal to stop comes. */
void up_supervisor_stop(up_supervisor *supervisor);
void up_supervisor_close(up_supervisor *supervisor); /* after stop; accepts NULL */

#endif
