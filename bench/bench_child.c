/* bench_child.c - see bench_child.h. */
#include "bench_child.h"

#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int spawn(bench_child *child, char *const argv[], const int in[2], const int out[2])
{
    posix_spawn_file_actions_t files;
    int ok;

    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
    ok = posix_spawn(&child->pid, "/proc/self/exe", &files, NULL, argv, environ) == 0;
    posix_spawn_file_actions_destroy(&files);
    return ok;
}

int bench_child_start(bench_child *child, char *const argv[])
{
    int in[2], out[2], ok;
    char byte;

    /* Closed in every child: a server whose standard input another one holds never sees its end. */
    if (pipe2(in, O_CLOEXEC) != 0) return 0;
    if (pipe2(out, O_CLOEXEC) != 0) {
        close(in[0]);
        close(in[1]);
        return 0;
    }
    ok = spawn(child, argv, in, out);
    close(in[0]);
    close(out[1]);
    child->stdin_fd = in[1];
    if (!ok) {
        close(in[1]);
    } else if (read(out[0], &byte, 1) != 1 ||
               clock_getcpuclockid(child->pid, &child->cpu_clock) != 0) {
        bench_child_stop(child);
        ok = 0;
    }
    close(out[0]);
    return ok;
}

void bench_child_serve(void)
{
    char byte;

    puts("serving");
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
}

double bench_child_cpu_s(const bench_child *child)
{
    struct timespec t = {0};

    clock_gettime(child->cpu_clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void bench_child_stop(bench_child *child)
{
    close(child->stdin_fd);
    waitpid(child->pid, NULL, 0);
}

void bench_pin(unsigned index)
{
    cpu_set_t all, one;

    if (sched_getaffinity(0, sizeof(all), &all) != 0 || CPU_COUNT(&all) == 0) return;
    index %= (unsigned)CPU_COUNT(&all);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all) || index-- > 0) continue;
        CPU_SET(cpu, &one);
        break;
    }
    (void)sched_setaffinity(0, sizeof(one), &one); /* without it the figures are only noisier */
}
