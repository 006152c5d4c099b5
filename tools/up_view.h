/* up_view.h - how a process of a cluster is, for people and for JSON. */
#ifndef UP_VIEW_H
#define UP_VIEW_H

#include <sys/types.h>

#include "up_cluster.h"

struct json_t;

#define UP_WHY_BYTES 256

typedef struct up_view {
    const up_process *process; /* borrowed */
    pid_t pid;                 /* 0: does not run */
    const char *state;         /* "running", "restarting", "dead" */
    int ready;
    char why[UP_WHY_BYTES]; /* "" when ready */
    uint64_t rss_bytes;
    char placement_hash[20]; /* of the placement in force there; "": none, or it cannot be asked */
} up_view;

/* Asks the process itself: its HTTP port, or PING for Redis. 1: ready; else why has the reason.
 * Takes at most timeout_us. */
int up_probe(char why[UP_WHY_BYTES], const up_cluster *cluster, const up_process *process,
             int64_t timeout_us);
/* is_supervised: a process that does not run will be started again. */
void up_view_take(up_view *out, const up_cluster *cluster, const up_process *process,
                  int is_supervised);
/* The caller owns the result; NULL: no memory. */
struct json_t *up_view_json(const up_view *view);

#endif
