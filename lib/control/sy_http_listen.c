/* sy_http_listen.c - opens the socket itself, because the HTTP library does not say why it cannot,
 * nor which port it got. */
#include "sy_http_listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "sy_address.h"

#define BACKLOG 64

static int open_socket(int family)
{
    return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static sy_status fail(int error, const char *address, sy_error *err)
{
    if (error == EADDRINUSE) {
        return sy_error_set(err, SY_EEXISTS,
                            "the HTTP address %s is in use: stop who has it, or choose another",
                            address);
    }
    return sy_error_set(err, SY_EIO, "cannot listen on the HTTP address %s: %s", address,
                        strerrordesc_np(error));
}

/* ---- Unix ---- */

/* Removes a socket file whose process is gone. 0, or the error: EADDRINUSE when somebody listens
 * there, and when it is a file of another kind. */
static int remove_stale(const struct sockaddr_un *name)
{
    struct stat info;
    int error;
    int fd;

    if (lstat(name->sun_path, &info) != 0) return errno == ENOENT ? 0 : errno;
    if (!S_ISSOCK(info.st_mode)) return EADDRINUSE;
    fd = open_socket(AF_UNIX);
    if (fd < 0) return errno;
    error = connect(fd, (const struct sockaddr *)name, sizeof(*name)) == 0 ? 0 : errno;
    close(fd);
    if (error != ECONNREFUSED) return EADDRINUSE;
    return unlink(name->sun_path) == 0 ? 0 : errno;
}

static sy_status listen_unix(sy_listener *out, const char *address, sy_error *err)
{
    const char *path = address + 5;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    struct stat info;
    int error;

    if (path[0] != '/' || strlen(path) >= sizeof(out->path)) {
        return sy_error_set(err, SY_EINVAL,
                            "the HTTP address %s is not unix: and an absolute path of at most %zu "
                            "bytes",
                            address, sizeof(out->path) - 1);
    }
    memcpy(out->path, path, strlen(path) + 1);
    memcpy(name.sun_path, out->path, SY_MIN(sizeof(name.sun_path), sizeof(out->path)));
    error = remove_stale(&name);
    if (error != 0) return fail(error, address, err);
    out->fd = open_socket(AF_UNIX);
    if (out->fd < 0) return fail(errno, address, err);
    if (bind(out->fd, (const struct sockaddr *)&name, sizeof(name)) != 0 ||
        listen(out->fd, BACKLOG) != 0 || stat(path, &info) != 0) {
        error = errno;
        close(out->fd);
        return fail(error, address, err);
    }
    out->device_id = info.st_dev;
    out->inode = info.st_ino;
    return SY_OK;
}

void sy_listener_unlink(const sy_listener *listener)
{
    struct stat info;

    if (listener->path[0] == '\0' || stat(listener->path, &info) != 0) return;
    if (info.st_dev == listener->device_id && info.st_ino == listener->inode) {
        unlink(listener->path);
    }
}

/* ---- TCP ---- */

static int listen_at(const struct addrinfo *at)
{
    const int on = 1;
    const int fd = open_socket(at->ai_family);
    int error;

    if (fd < 0) return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
        return fd;
    }
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

static int port_of(int fd)
{
    struct sockaddr_storage name = {0};
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    socklen_t n = sizeof(name);

    if (getsockname(fd, (struct sockaddr *)&name, &n) != 0) return 0;
    memcpy(&v4, &name, sizeof(v4));
    memcpy(&v6, &name, sizeof(v6));
    return ntohs(name.ss_family == AF_INET6 ? v6.sin6_port : v4.sin_port);
}

static sy_status listen_tcp(sy_listener *out, const char *address, sy_error *err)
{
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    char host[128];
    char service[16];
    int port;
    int rc;

    if (!sy_address_split(host, sizeof(host), &port, address, strlen(address)) || port < 0) {
        return sy_error_set(err, SY_EINVAL,
                            "the HTTP address %s does not parse: write HOST:PORT, :PORT or "
                            "unix:/PATH",
                            address);
    }
    snprintf(service, sizeof(service), "%d", port);
    rc = getaddrinfo(host[0] != '\0' ? host : NULL, service, &hints, &found);
    if (rc != 0) {
        return sy_error_set(err, SY_EINVAL, "the host of the HTTP address %s is unknown: %s",
                            address, gai_strerror(rc));
    }
    out->fd = listen_at(found);
    rc = errno;
    freeaddrinfo(found);
    if (out->fd < 0) return fail(rc, address, err);
    out->port = port_of(out->fd);
    return SY_OK;
}

sy_status sy_listener_open(sy_listener *out, const char *address, sy_error *err)
{
    memset(out, 0, sizeof(*out));
    out->fd = -1;
    return strncmp(address, "unix:", 5) == 0 ? listen_unix(out, address, err)
                                             : listen_tcp(out, address, err);
}
