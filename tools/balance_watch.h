/* balance_watch.h - `switchyard balance --watch`: round after round, for ever. */
#ifndef BALANCE_WATCH_H
#define BALANCE_WATCH_H

#include "balance_round.h"

/* Since when nodes have had no lease, as this process saw it. */
typedef struct balance_away_node {
    char name[SY_NODE_BYTES];
    int64_t since_us;
} balance_away_node;
typedef struct balance_away {
    balance_away_node *item; /* [n] */
    size_t n;
    int64_t now_us, dead_after_us;
} balance_away;

/* Takes note of who has a lease now, of the nodes that the placement names. Forgets who has one
 * again. SY_ENOMEM. */
SY_MUST_USE sy_status balance_away_note(balance_away *away, const sy_snapshot *snapshot,
                                        const cluster_facts *facts, int64_t now_us);
/* For balance_round_plan: away is a balance_away. */
int balance_away_is_gone(void *away, const char *node);
/* After a time in which nobody looked: whoever is away now is so since now. */
void balance_away_forget(balance_away *away);

/* Until SIGTERM. Whatever fails is logged, and the next round goes on. Returns the exit code. */
int balance_watch(const balance_options *options);

#endif
