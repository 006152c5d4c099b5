/* sy_http_listen.h - sockets to listen on. Only for lib/control. */
#ifndef SY_HTTP_LISTEN_H
#define SY_HTTP_LISTEN_H

#include "sy_status.h"

typedef struct sy_listener {
    int fd;
    int port;                  /* 0: a Unix socket */
    char path[108];            /* "": TCP */
    uint64_t device_id, inode; /* of the socket file, to remove no other */
} sy_listener;

/* address: "host:port", ":port" for every interface, "unix:/path" (a file that no process listens
 * on any more is replaced). SY_EINVAL, SY_EEXISTS: in use; SY_EIO. The caller owns the descriptor.
 */
SY_MUST_USE sy_status sy_listener_open(sy_listener *out, const char *address, sy_error *err);
void sy_listener_unlink(
    const sy_listener *listener); /* removes the socket file if it is still ours */

#endif
