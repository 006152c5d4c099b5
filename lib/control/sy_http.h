/* sy_http.h - the HTTP port of a process: metrics, probes, and what the service adds. It has a
 * thread of its own, on which all callbacks run. Only for lib/control. */
#ifndef SY_HTTP_H
#define SY_HTTP_H

#include "sy_strbuf.h"

typedef struct sy_http sy_http;

typedef struct sy_http_config {
    const char *address; /* "host:port", "unix:/path"; borrowed during open */
    void *ctx;
    void (*metrics)(void *ctx, sy_strbuf *out);
    int (*ready)(void *ctx, sy_strbuf *why);                       /* 1, or why not */
    int (*get)(void *ctx, const char *path, sy_strbuf *json_body); /* 1, or 0 for 404 */
} sy_http_config;

/* SY_EINVAL: the address; SY_EEXISTS: in use. */
SY_MUST_USE sy_status sy_http_open(sy_http **out, const sy_http_config *config, sy_error *err);
void sy_http_close(sy_http *http);     /* ends the thread; accepts NULL */
int sy_http_port(const sy_http *http); /* 0: a Unix socket */

#endif
