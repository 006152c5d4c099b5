/* tool_http.c - HTTP/1.0, so that the answer ends where the connection does: no chunks, no
 * keep-alive. */
#include "tool_http.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "sy_clock.h"
#include "sy_strbuf.h"

#define REPLY_BYTES_MAX (16u << 20)

typedef struct get {
    const char *address;
    int64_t deadline_us;
    sy_error *err;
    int fd; /* -1: none */
} get;

static sy_status fail(const get *g, int error)
{
    const int is_absent = error == ECONNREFUSED || error == ENOENT || error == ECONNRESET;

    return sy_error_set(g->err, is_absent ? SY_EUNAVAILABLE : SY_EIO, "%s: %s", g->address,
                        strerrordesc_np(error));
}

static sy_status wait_for(const get *g, short events)
{
    struct pollfd slot = {.fd = g->fd, .events = events};

    for (;;) {
        const int64_t left_us = g->deadline_us - sy_clock_us();
        int n;

        if (left_us <= 0) {
            return sy_error_set(g->err, SY_EDEADLINE, "%s: no answer in time", g->address);
        }
        n = poll(&slot, 1, (int)(left_us / 1000) + 1);
        if (n > 0) return SY_OK;
        if (n < 0 && errno != EINTR) return fail(g, errno);
    }
}

static sy_status connect_to(get *g, const struct sockaddr *name, socklen_t name_bytes)
{
    int error = 0;
    socklen_t error_bytes = sizeof(error);
    sy_status st;

    g->fd = socket(name->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (g->fd < 0) return fail(g, errno);
    if (connect(g->fd, name, name_bytes) == 0) return SY_OK;
    /* A Unix socket whose backlog is full says EAGAIN: the process is there, but stuck. */
    if (errno != EINPROGRESS) return fail(g, errno);
    SY_TRY(wait_for(g, POLLOUT));
    if (getsockopt(g->fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0) error = errno;
    if (error != 0) st = fail(g, error);
out:
    return st;
}

static sy_status connect_unix(get *g, const char *path)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const size_t n = strlen(path);

    if (n == 0 || n >= sizeof(name.sun_path)) {
        return sy_error_set(g->err, SY_EINVAL, "%s: the path must have 1 to %zu bytes", g->address,
                            sizeof(name.sun_path) - 1);
    }
    memcpy(name.sun_path, path, n + 1);
    return connect_to(g, (const struct sockaddr *)&name, sizeof(name));
}

static sy_status connect_tcp(get *g)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    const char *colon = strrchr(g->address, ':');
    const char *from = g->address;
    struct addrinfo *found = NULL;
    char host[256];
    size_t n;
    int rc;
    sy_status st;

    if (colon == NULL || colon == g->address) {
        return sy_error_set(g->err, SY_EINVAL, "%s: neither HOST:PORT nor unix:/PATH", g->address);
    }
    n = (size_t)(colon - from);
    if (n > 2 && from[0] == '[' && from[n - 1] == ']') {
        from++;
        n -= 2;
    }
    snprintf(host, sizeof(host), "%.*s", (int)SY_MIN(n, sizeof(host) - 1), from);
    rc = getaddrinfo(host, colon + 1, &hints, &found);
    if (rc != 0) {
        return sy_error_set(g->err, SY_EUNAVAILABLE, "%s: %s", g->address, gai_strerror(rc));
    }
    st = connect_to(g, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return st;
}

static sy_status send_request(const get *g, const char *path)
{
    char request[512];
    const int n = snprintf(request, sizeof(request),
                           "GET %s HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    size_t n_sent = 0;
    sy_status st = SY_OK;

    SY_ASSERT(n > 0 && (size_t)n < sizeof(request));
    while (n_sent < (size_t)n) {
        const ssize_t sent = send(g->fd, request + n_sent, (size_t)n - n_sent, MSG_NOSIGNAL);

        if (sent >= 0) {
            n_sent += (size_t)sent;
        } else if (errno == EAGAIN) {
            SY_TRY(wait_for(g, POLLOUT));
        } else if (errno != EINTR) {
            return fail(g, errno);
        }
    }
out:
    return st;
}

static sy_status receive(const get *g, sy_strbuf *out)
{
    char piece[16384];
    sy_status st = SY_OK;

    for (;;) {
        const ssize_t n = recv(g->fd, piece, sizeof(piece), 0);

        if (n == 0) return SY_OK;
        if (n > 0) {
            sy_strbuf_append(out, piece, (size_t)n);
            if (out->failed) return sy_error_set(g->err, SY_ENOMEM, "no memory for an answer");
            if (out->len > REPLY_BYTES_MAX) {
                return sy_error_set(g->err, SY_ELIMIT, "%s: an answer of more than %u bytes",
                                    g->address, REPLY_BYTES_MAX);
            }
        } else if (errno == EAGAIN) {
            SY_TRY(wait_for(g, POLLIN));
        } else if (errno != EINTR) {
            return fail(g, errno);
        }
    }
out:
    return st;
}

static sy_status take_reply(tool_http_reply *out, const get *g, const sy_strbuf *text)
{
    const char *end = strstr(text->data, "\r\n\r\n");
    const char *code = strchr(text->data, ' ');

    if (end == NULL || code == NULL || strncmp(text->data, "HTTP/1.", 7) != 0) {
        return sy_error_set(g->err, SY_EDATALOSS, "%s: the answer is not HTTP", g->address);
    }
    out->status = (int)strtol(code + 1, NULL, 10);
    end += 4;
    out->body_bytes = text->len - (size_t)(end - text->data);
    out->body = malloc(out->body_bytes + 1);
    if (out->body == NULL) return sy_error_set(g->err, SY_ENOMEM, "no memory for an answer");
    memcpy(out->body, end, out->body_bytes + 1);
    return SY_OK;
}

sy_status tool_http_get(tool_http_reply *out, const char *address, const char *path,
                        int64_t timeout_us, sy_error *err)
{
    get g = {.address = address, .deadline_us = sy_clock_us() + timeout_us, .err = err, .fd = -1};
    sy_strbuf text;
    sy_status st;

    memset(out, 0, sizeof(*out));
    sy_strbuf_init(&text);
    if (strncmp(address, "unix:", 5) == 0) {
        SY_TRY(connect_unix(&g, address + 5));
    } else {
        SY_TRY(connect_tcp(&g));
    }
    SY_TRY(send_request(&g, path));
    SY_TRY(receive(&g, &text));
    SY_TRY(take_reply(out, &g, &text));
out:
    if (g.fd >= 0) close(g.fd);
    sy_strbuf_free(&text);
    if (st != SY_OK) memset(out, 0, sizeof(*out));
    return st;
}

void tool_http_reply_free(tool_http_reply *reply)
{
    free(reply->body);
    memset(reply, 0, sizeof(*reply));
}
