/* bench_echo.c - sockets and one child for each. */
#include "bench_echo.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const bench_transport_names[BENCH_N_TRANSPORTS] = {"unix", "tcp"};

typedef union any_address {
    struct sockaddr base;
    struct sockaddr_un un;
    struct sockaddr_in in;
} any_address;

static int write_all(int fd, const void *data, size_t n)
{
    for (const char *at = data; n > 0;) {
        const ssize_t done = write(fd, at, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return 0;
        at += done;
        n -= (size_t)done;
    }
    return 1;
}

/* Reads one message, whose length is its first eight bytes, into `capacity` bytes. Its length, or
 * 0: the other side is gone, or says a length that cannot be. */
static size_t read_message(int fd, void *data, size_t capacity)
{
    size_t n = 0;
    uint64_t bytes = BENCH_ECHO_BYTES_MIN;

    while (n < bytes) {
        const ssize_t done = read(fd, (char *)data + n, capacity - n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return 0;
        n += (size_t)done;
        if (n >= sizeof(bytes)) memcpy(&bytes, data, sizeof(bytes));
        if (bytes < BENCH_ECHO_BYTES_MIN || bytes > capacity) return 0;
    }
    return n;
}

static _Noreturn void serve(int listener)
{
    const int fd = accept(listener, NULL, NULL);
    char *data = malloc(BENCH_ECHO_BYTES_MAX);
    const int on = 1;
    size_t n;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* refused by Unix sockets */
    while (data != NULL && (n = read_message(fd, data, BENCH_ECHO_BYTES_MAX)) > 0)
        if (!write_all(fd, data, n)) break;
    _exit(0);
}

/* Bound to a name that the kernel chooses: an abstract one, or a free port of the loopback. */
static int open_listener(any_address *address, socklen_t *length, bench_transport transport)
{
    const int is_tcp = transport == BENCH_TCP;
    const int fd = socket(is_tcp ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memset(address, 0, sizeof(*address));
    address->base.sa_family = is_tcp ? AF_INET : AF_UNIX;
    if (is_tcp) address->in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *length = is_tcp ? sizeof(address->in) : sizeof(address->un.sun_family);
    if (fd >= 0 && bind(fd, &address->base, *length) == 0 && listen(fd, 1) == 0) {
        *length = sizeof(*address);
        if (getsockname(fd, &address->base, length) == 0) return fd;
    }
    if (fd >= 0) close(fd);
    return -1;
}

int bench_echo_open(bench_echo *echo, bench_transport transport)
{
    any_address address;
    socklen_t length;
    const int on = 1;
    const int listener = open_listener(&address, &length, transport);

    *echo = (bench_echo){.fd = -1, .pid = -1};
    if (listener >= 0) echo->pid = fork();
    if (listener >= 0 && echo->pid == 0) serve(listener);
    if (echo->pid > 0) {
        echo->fd = socket(address.base.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(echo->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
    if (echo->fd >= 0 && connect(echo->fd, &address.base, length) == 0) {
        close(listener);
        return 1;
    }
    fprintf(stderr, "bench: no %s socket: %s\n", bench_transport_names[transport],
            strerrordesc_np(errno));
    if (listener >= 0) close(listener); /* the child's accept ends only with a signal */
    if (echo->pid > 0) kill(echo->pid, SIGKILL);
    bench_echo_close(echo);
    return 0;
}

int bench_echo_exchange(bench_echo *echo, void *out, void *back, size_t bytes)
{
    const uint64_t length = bytes;

    memcpy(out, &length, sizeof(length));
    return write_all(echo->fd, out, bytes) && read_message(echo->fd, back, bytes) == bytes;
}

void bench_echo_close(bench_echo *echo)
{
    /* Children forked later hold this socket too: closing alone would not end the connection. */
    if (echo->fd >= 0) shutdown(echo->fd, SHUT_RDWR);
    if (echo->fd >= 0) close(echo->fd);
    if (echo->pid > 0) waitpid(echo->pid, NULL, 0);
    *echo = (bench_echo){.fd = -1, .pid = -1};
}
