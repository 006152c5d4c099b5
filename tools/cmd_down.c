/* cmd_down.c - `switchyard down`: ends a local cluster, with its supervisor or without. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "commands.h"
#include "sy_args.h"
#include "sy_clock.h"
#include "tool_print.h"
#include "up_cluster.h"
#include "up_pids.h"

#define LOOK_US 20000
#define KILL_US 5000000 /* how long the kernel may take to end a process that was killed */

static void sleep_us(int64_t us)
{
    const struct timespec time = {.tv_sec = (time_t)(us / 1000000),
                                  .tv_nsec = (long)(us % 1000000) * 1000};

    nanosleep(&time, NULL);
}

/* The supervisor stops the tiers itself. 0: it had to be killed, so there is no time left. */
static int end_supervisor(const char *dir, int64_t deadline_us)
{
    pid_t pid = up_lock_holder(dir);

    if (pid == 0) return 1;
    kill(pid, SIGTERM);
    while ((pid = up_lock_holder(dir)) != 0 && sy_clock_us() < deadline_us) sleep_us(LOOK_US);
    if (pid == 0) return 1;
    fprintf(stderr, "switchyard down: the supervisor (pid %d) does not end: all is killed\n",
            (int)pid);
    kill(pid, SIGKILL);
    deadline_us = sy_clock_us() + KILL_US;
    while (up_lock_holder(dir) != 0 && sy_clock_us() < deadline_us) sleep_us(LOOK_US);
    return 0;
}

/* 1: no process of the tier runs any more. */
static int end_tier(const char *dir, const char *tier, int64_t deadline_us)
{
    const int had_time = sy_clock_us() < deadline_us;

    if (up_pids_signal(dir, tier, SIGTERM) == 0) return 1;
    while (up_pids_signal(dir, tier, 0) > 0 && sy_clock_us() < deadline_us) sleep_us(LOOK_US);
    if (up_pids_signal(dir, tier, SIGKILL) == 0) return 1;
    if (had_time) {
        fprintf(stderr, "switchyard down: the %s tier does not end: it is killed\n", tier);
    }
    deadline_us = sy_clock_us() + KILL_US;
    while (up_pids_signal(dir, tier, 0) > 0 && sy_clock_us() < deadline_us) sleep_us(LOOK_US);
    return up_pids_signal(dir, tier, 0) == 0;
}

static size_t count_running(const char *dir)
{
    size_t n = 0;

    for (size_t i = 0; i < UP_TIERS; i++) n += up_pids_signal(dir, up_stop_order[i], 0);
    return n;
}

static void remove_pid(void *arg, const char *name)
{
    up_pid_remove(arg, name);
}

static int take_down(char *dir, int64_t timeout_s)
{
    const size_t n_running = count_running(dir);
    const int is_supervised = up_lock_holder(dir) != 0;
    int64_t deadline_us = sy_clock_us() + timeout_s * 1000000;
    int is_down = 1;

    if (!end_supervisor(dir, deadline_us)) deadline_us = sy_clock_us();
    for (size_t i = 0; i < UP_TIERS; i++) {
        is_down = end_tier(dir, up_stop_order[i], deadline_us) && is_down;
    }
    if (!is_down || up_lock_holder(dir) != 0) {
        fprintf(stderr,
                "switchyard: error: some processes survived SIGKILL or belong to another "
                "user: look at them with switchyard status --dir %s\n",
                dir);
        return 1;
    }
    up_cluster_clean(dir);
    up_pids_each(dir, remove_pid, dir);
    up_pid_remove(dir, "supervisor");
    if (n_running == 0 && !is_supervised) {
        printf("nothing runs in %s\n", dir);
    } else {
        printf("stopped %zu processes of %s\n", n_running, dir);
    }
    return 0;
}

int cmd_down(int argc, char **argv)
{
    const char *dir = NULL;
    int64_t timeout_s = 30;
    const sy_arg args[] = {
        {"dir", "RUNDIR", "of the cluster (required)", SY_ARG_STRING, &dir, 0, 0},
        {"timeout-s", "S", "how long running calls may take to finish, before SIGKILL", SY_ARG_INT,
         &timeout_s, 0, 86400},
    };
    char real[PATH_MAX];
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    st = sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                       "switchyard down --dir RUNDIR [options]\n\n"
                       "Stops aggregators, routers, expert nodes and Redis, in this order.",
                       NULL, 0, NULL, &err);
    if (st == SY_OK && dir == NULL) st = sy_error_set(&err, SY_EINVAL, "--dir RUNDIR is required");
    if (st != SY_OK) return tool_usage_error(&err);
    if (realpath(dir, real) == NULL || strlen(real) >= UP_DIR_BYTES) {
        printf("nothing runs in %s\n", dir);
        return 0;
    }
    return take_down(real, timeout_s);
}
