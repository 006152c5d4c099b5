/* tool_http.h - one GET of a process' HTTP port. Blocks, until a timeout. */
#ifndef TOOL_HTTP_H
#define TOOL_HTTP_H

#include "sy_status.h"

typedef struct tool_http_reply {
    int status; /* 200 */
    char *body; /* NUL-terminated */
    size_t body_bytes;
} tool_http_reply;

/* address: "unix:/path", "host:port", "[v6]:port". SY_OK: there was an answer, with any status; the
 * caller ends it with tool_http_reply_free. Otherwise *out is zeroed: SY_EINVAL the address,
 * SY_EUNAVAILABLE nobody listens there, SY_EDEADLINE, SY_ELIMIT, SY_EDATALOSS no HTTP. */
SY_MUST_USE sy_status tool_http_get(tool_http_reply *out, const char *address, const char *path,
                                    int64_t timeout_us, sy_error *err);
void tool_http_reply_free(tool_http_reply *reply); /* accepts a zeroed one */

#endif
