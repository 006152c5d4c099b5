/* sy_address.c - addresses as operators write them, as gRPC wants them, and why listening on one
 * failed. */
#include "sy_rpc_internal.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define GOOD_ADDRESSES "write \"127.0.0.1:7000\", \"[::1]:7000\", \"host:7000\" or \"unix:/path\""

/* gRPC takes addresses as URIs: what could mean something else there is percent-encoded. out has
 * room for 3 bytes each. */
static void encode_path(char *out, const char *path)
{
    static const char hex[] = "0123456789ABCDEF";

    for (; *path != '\0'; path++) {
        const unsigned char c = (unsigned char)*path;

        if (isalnum(c) || strchr("/._-~", c) != NULL) {
            *out++ = (char)c;
        } else {
            *out++ = '%';
            *out++ = hex[c >> 4];
            *out++ = hex[c & 15];
        }
    }
    *out = '\0';
}

static sy_status parse_unix(rpc_address *out, const char *text, sy_error *err)
{
    const char *path = text + strlen("unix:");
    char encoded[3 * RPC_UNIX_PATH_BYTES];

    if (path[0] == '\0') return sy_error_set(err, SY_EINVAL, "address \"%s\": no path", text);
    if (strlen(path) >= sizeof(out->path)) {
        return sy_error_set(err, SY_EINVAL,
                            "address \"%s\": the path has %zu bytes, a Unix socket's at most %d",
                            text, strlen(path), RPC_UNIX_PATH_BYTES - 1);
    }
    out->is_unix = 1;
    memcpy(out->path, path, strlen(path) + 1);
    encode_path(encoded, path);
    snprintf(out->listen, sizeof(out->listen), "unix:%s", encoded);
    memcpy(out->target, out->listen, sizeof(out->listen));
    return SY_OK;
}

static int good_port(const char *port)
{
    char *end;
    long value;

    if (!isdigit((unsigned char)port[0]) || strlen(port) > 5) return 0;
    value = strtol(port, &end, 10);
    return *end == '\0' && value <= 65535;
}

static int good_name(const char *host)
{
    if (host[0] == '\0') return 0;
    for (; *host != '\0'; host++) {
        if (!isalnum((unsigned char)*host) && strchr(".-_", *host) == NULL) return 0;
    }
    return 1;
}

sy_status rpc_address_parse(rpc_address *out, const char *text, sy_error *err)
{
    unsigned char scratch[sizeof(struct in6_addr)];
    const char *colon, *host = text;
    size_t host_bytes;
    int bracketed;

    memset(out, 0, sizeof(*out));
    if (text == NULL) return sy_error_set(err, SY_EINVAL, "no address; %s", GOOD_ADDRESSES);
    if (strncmp(text, "unix:", 5) == 0) return parse_unix(out, text, err);
    colon = strrchr(text, ':');
    if (colon == NULL || !good_port(colon + 1)) {
        return sy_error_set(err, SY_EINVAL, "address \"%s\": no port from 0 to 65535; %s", text,
                            GOOD_ADDRESSES);
    }
    host_bytes = (size_t)(colon - text);
    bracketed = host_bytes >= 2 && text[0] == '[' && colon[-1] == ']';
    if (bracketed) {
        host++;
        host_bytes -= 2;
    }
    if (host_bytes >= sizeof(out->host)) {
        return sy_error_set(err, SY_EINVAL, "address \"%s\": the host is too long", text);
    }
    memcpy(out->host, host, host_bytes);
    memcpy(out->port, colon + 1, strlen(colon + 1));
    if (bracketed) {
        if (inet_pton(AF_INET6, out->host, scratch) != 1) {
            return sy_error_set(err, SY_EINVAL, "address \"%s\": no IPv6 address in brackets; %s",
                                text, GOOD_ADDRESSES);
        }
        snprintf(out->listen, sizeof(out->listen), "[%s]:%s", out->host, out->port);
        snprintf(out->target, sizeof(out->target), "ipv6:%s", out->listen);
        return SY_OK;
    }
    if (!good_name(out->host)) {
        return sy_error_set(err, SY_EINVAL, "address \"%s\": no such host can exist; %s", text,
                            GOOD_ADDRESSES);
    }
    snprintf(out->listen, sizeof(out->listen), "%s:%s", out->host, out->port);
    snprintf(out->target, sizeof(out->target), "%s%s",
             inet_pton(AF_INET, out->host, scratch) == 1 ? "ipv4:" : "dns:///", out->listen);
    return SY_OK;
}

/* 1: something accepts connections at the path; 0: nobody does; -1: cannot tell, errno says why. */
static int someone_listens(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int result;

    if (fd < 0) return -1;
    memcpy(addr.sun_path, path, strlen(path) + 1);
    if (connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) == 0 || errno == EAGAIN) {
        result = 1; /* EAGAIN: alive, its backlog is full */
    } else {
        result = errno == ECONNREFUSED || errno == ENOENT ? 0 : -1;
    }
    close(fd);
    return result;
}

sy_status rpc_address_claim(const rpc_address *address, const char *text, sy_error *err)
{
    struct stat info;

    if (!address->is_unix) return SY_OK;
    if (lstat(address->path, &info) != 0) {
        if (errno == ENOENT) return SY_OK;
        return sy_error_set(err, SY_EIO, "address \"%s\": %s", text, strerror(errno));
    }
    if (!S_ISSOCK(info.st_mode)) {
        return sy_error_set(err, SY_EEXISTS, "address \"%s\": a file that is no socket is there",
                            text);
    }
    switch (someone_listens(address->path)) {
    case 0: break;
    case 1:
        return sy_error_set(err, SY_EEXISTS,
                            "address \"%s\": in use by another process; stop it first", text);
    default: return sy_error_set(err, SY_EIO, "address \"%s\": %s", text, strerror(errno));
    }
    if (unlink(address->path) != 0 && errno != ENOENT) { /* left over from a killed process */
        return sy_error_set(err, SY_EIO, "address \"%s\": cannot remove the stale socket: %s", text,
                            strerror(errno));
    }
    return SY_OK;
}

/* Binds as gRPC has just tried to; returns errno, 0 when it works. */
static int try_bind(int family, const struct sockaddr *addr, socklen_t addr_bytes)
{
    const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int one = 1;
    int failed;

    if (fd < 0) return errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    failed = bind(fd, addr, addr_bytes) == 0 ? 0 : errno;
    close(fd);
    return failed;
}

static sy_status explain_tcp(const rpc_address *address, const char *text, sy_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    const int unresolved = getaddrinfo(address->host, address->port, &hints, &found);
    int failed = 0;

    if (unresolved != 0) {
        return sy_error_set(err, SY_EINVAL, "address \"%s\": %s", text, gai_strerror(unresolved));
    }
    for (const struct addrinfo *i = found; i != NULL && failed == 0; i = i->ai_next) {
        failed = try_bind(i->ai_family, i->ai_addr, i->ai_addrlen);
    }
    freeaddrinfo(found);
    if (failed == EADDRINUSE) {
        return sy_error_set(err, SY_EEXISTS,
                            "address \"%s\": the port is in use; stop its owner or choose another",
                            text);
    }
    return sy_error_set(err, failed == EADDRNOTAVAIL ? SY_EINVAL : SY_EIO, "address \"%s\": %s",
                        text, failed != 0 ? strerror(failed) : "cannot listen");
}

static sy_status explain_unix(const rpc_address *address, const char *text, sy_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int failed;

    memcpy(addr.sun_path, address->path, strlen(address->path) + 1);
    failed = try_bind(AF_UNIX, (const struct sockaddr *)&addr, sizeof(addr));
    if (failed == 0) unlink(address->path);
    return sy_error_set(err, failed == EADDRINUSE ? SY_EEXISTS : SY_EIO, "address \"%s\": %s", text,
                        failed != 0 ? strerror(failed) : "cannot listen");
}

sy_status rpc_address_explain(const rpc_address *address, const char *text, sy_error *err)
{
    return address->is_unix ? explain_unix(address, text, err) : explain_tcp(address, text, err);
}
