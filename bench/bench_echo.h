/* bench_echo.h - the floor under every exchange of messages: a process that sends back what a bare
 * socket brings, with blocking calls and nothing else. */
#ifndef BENCH_ECHO_H
#define BENCH_ECHO_H

#include <stddef.h>
#include <sys/types.h>

typedef enum bench_transport { BENCH_UNIX, BENCH_TCP, BENCH_N_TRANSPORTS } bench_transport;
extern const char *const bench_transport_names[BENCH_N_TRANSPORTS];

#define BENCH_ECHO_BYTES_MIN 16 /* a message begins with its length */
#define BENCH_ECHO_BYTES_MAX ((size_t)1 << 20)

typedef struct bench_echo {
    int fd;
    pid_t pid;
} bench_echo;

/* Forks: call it while the process has one thread. 0: failed, and stderr says why. */
int bench_echo_open(bench_echo *echo, bench_transport transport);
/* One round trip of `bytes` bytes, at least BENCH_ECHO_BYTES_MIN; out and back have room for them,
 * and the first eight of out are overwritten. 0: the other process is gone. */
int bench_echo_exchange(bench_echo *echo, void *out, void *back, size_t bytes);
void bench_echo_close(bench_echo *echo); /* ends the process and waits for it */

#endif
