/* sy_status.c - names of statuses, and the texts of an error. A text that does not fit is cut at a
 * character, because it travels in protobuf strings, which must be UTF-8. */
#include "sy_status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sy_text.h"

static const char *const status_name[SY_N_STATUS] = {
    [SY_OK] = "OK",
    [SY_EINVAL] = "INVALID_ARGUMENT",
    [SY_ENOTFOUND] = "NOT_FOUND",
    [SY_EEXISTS] = "ALREADY_EXISTS",
    [SY_ELIMIT] = "RESOURCE_EXHAUSTED",
    [SY_ENOMEM] = "OUT_OF_MEMORY",
    [SY_EUNAVAILABLE] = "UNAVAILABLE",
    [SY_EDEADLINE] = "DEADLINE_EXCEEDED",
    [SY_ECANCELLED] = "CANCELLED",
    [SY_EPRECONDITION] = "FAILED_PRECONDITION",
    [SY_EUNIMPLEMENTED] = "UNIMPLEMENTED",
    [SY_EDATALOSS] = "DATA_LOSS",
    [SY_EIO] = "IO_ERROR",
    [SY_EINTERNAL] = "INTERNAL",
};

const char *sy_status_name(sy_status status)
{
    const size_t i = (size_t)status;

    return i < SY_N_STATUS ? status_name[i] : "UNKNOWN";
}

/* out: [cap], cap >= 1. src may lie inside the error that out belongs to, hence memmove. */
static void copy_text(char *out, size_t cap, const char *src)
{
    const size_t len = strlen(src);
    const size_t kept = len < cap ? len : sy_utf8_whole(src, cap - 1);

    memmove(out, src, kept);
    out[kept] = '\0';
}

/* text: [SY_MESSAGE_BYTES]. The arguments may point into the error that will receive the text, so
 * nobody formats into an error's own message. */
SY_PRINTF(2, 0) static void format_text(char *text, const char *fmt, va_list ap)
{
    const int len = vsnprintf(text, SY_MESSAGE_BYTES, fmt, ap);

    if (len < 0) {
        text[0] = '\0';
    } else if (len >= SY_MESSAGE_BYTES) {
        text[sy_utf8_whole(text, SY_MESSAGE_BYTES - 1)] = '\0';
    }
}

sy_status sy_error_set(sy_error *err, sy_status status, const char *fmt, ...)
{
    char text[SY_MESSAGE_BYTES];
    va_list ap;

    if (err == NULL) return status;
    va_start(ap, fmt);
    format_text(text, fmt, ap);
    va_end(ap);
    sy_error_clear(err);
    err->status = status;
    copy_text(err->message, sizeof(err->message), text);
    return status;
}

void sy_error_where(sy_error *err, const char *reason, int32_t layer, int32_t expert,
                    const char *node)
{
    if (err == NULL) return;
    if (reason != NULL) copy_text(err->reason, sizeof(err->reason), reason);
    if (node != NULL) copy_text(err->node, sizeof(err->node), node);
    if (layer >= 0) err->layer = layer;
    if (expert >= 0) err->expert = expert;
}

void sy_error_prefix(sy_error *err, const char *fmt, ...)
{
    char text[2 * SY_MESSAGE_BYTES + 2];
    size_t len;
    va_list ap;

    if (err == NULL) return;
    va_start(ap, fmt);
    format_text(text, fmt, ap);
    va_end(ap);
    len = strlen(text);
    memcpy(text + len, ": ", 2);
    memcpy(text + len + 2, err->message, strnlen(err->message, SY_MESSAGE_BYTES - 1));
    text[len + 2 + strnlen(err->message, SY_MESSAGE_BYTES - 1)] = '\0';
    copy_text(err->message, sizeof(err->message), text);
}

void sy_error_clear(sy_error *err)
{
    if (err == NULL) return;
    err->status = SY_OK;
    err->layer = -1;
    err->expert = -1;
    err->reason[0] = '\0';
    err->node[0] = '\0';
    err->message[0] = '\0';
}
