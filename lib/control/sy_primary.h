/* sy_primary.h - one Redis under several addresses, a primary and its replicas: a connection to
 * each, and the choice of the one in use. With a single address it is that connection and no more.
 * The loop's thread only. Only for lib/control. */
#ifndef SY_PRIMARY_H
#define SY_PRIMARY_H

#include "sy_control.h"
#include "sy_redis.h"

typedef struct sy_primary sy_primary;

typedef struct sy_primary_config {
    struct uv_loop_s *loop;
    const sy_redis_address *address; /* [n_addresses], borrowed */
    size_t n_addresses;              /* 1..SY_REDIS_ADDRESSES_MAX */
    void *ctx;
    void (*on_up)(void *ctx); /* a server is in use: commands may be sent */
    /* It is not any more; pending commands are answered NULL next, and before another on_up. */
    void (*on_down)(void *ctx);
    void (*on_writable)(void *ctx); /* the replica in use has become the primary */
} sy_primary_config;

SY_MUST_USE sy_status sy_primary_open(sy_primary **out, const sy_primary_config *config);
/* Closes the connections, and answers what is pending with NULL. Accepts NULL. */
void sy_primary_stop(sy_primary *primary);
void sy_primary_free(sy_primary *primary); /* after stop, when the loop has run out; accepts NULL */
void sy_primary_check(sy_primary *primary); /* asks the servers for their roles again */

int sy_primary_is_up(const sy_primary *primary);
/* The server in use takes writes, as far as is known. 0: a replica, while no primary is found. */
int sy_primary_is_writable(const sy_primary *primary);
/* What the server in use says is no older than what was heard before: 0 for a replica that has lost
 * its primary. */
int sy_primary_is_current(const sy_primary *primary);
const sy_redis *sy_primary_connection(const sy_primary *primary); /* in use; NULL when none */
/* As sy_redis_command, to the server in use. */
SY_MUST_USE sy_status sy_primary_command(sy_primary *primary, sy_redis_reply_fn *fn, void *arg,
                                         int argc, const char *const *argv);

#endif
