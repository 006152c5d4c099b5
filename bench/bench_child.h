/* bench_child.h - a program that starts itself again as a server, in a process of its own, so that
 * messages cross the kernel as they do between the tiers and its processor time can be read apart.
 */
#ifndef BENCH_CHILD_H
#define BENCH_CHILD_H

#include <sys/types.h>

typedef struct bench_child {
    pid_t pid;
    int stdin_fd; /* the child ends when this does */
    clockid_t cpu_clock;
} bench_child;

/* Runs this program with argv ([0] is its name, NULL ends it) and waits for one line on its
 * standard output, which says that it serves. 0: it did not start; nothing is left behind. */
int bench_child_start(bench_child *child, char *const argv[]);
/* In the child, once it serves: says so, and returns when the parent is gone or done. */
void bench_child_serve(void);
double bench_child_cpu_s(const bench_child *child); /* of all its threads, so far */
void bench_child_stop(bench_child *child);          /* returns once it has ended */
/* Runs this process, and all threads that it will have, on the index-th of the processors that it
 * may use; modulo their number. */
void bench_pin(unsigned index);

#endif
