/* up_launch.h - starts one process of a cluster: program, arguments, log, pid file. */
#ifndef UP_LAUNCH_H
#define UP_LAUNCH_H

#include <sys/types.h>

#include "sy_args.h"
#include "up_cluster.h"

typedef struct up_launcher {
    const up_cluster *cluster; /* borrowed */
    const char *router;        /* of aggregators: "remote", "inproc" */
    const char *devices;       /* of expert nodes: "cpu:0,cpu:1" */
    const char *arithmetic;    /* of those devices; "": the processors' */
    const char *log_level;
    const char *weights, *activations;                        /* of expert nodes and aggregators */
    sy_arg_strings expert_args, router_args, aggregator_args; /* handed on as they are */
    int allow_nan;                                            /* every server's */
    int64_t threads;                   /* 0: all cores, which expert nodes share out */
    char program_dir[UP_PATH_BYTES];   /* where the servers are: beside this program */
    char redis_program[UP_PATH_BYTES]; /* "": not needed */
} up_launcher;

/* Finds the programs. SY_ENOTFOUND: the text says what to install or to build. */
SY_MUST_USE sy_status up_launcher_find(up_launcher *launcher, sy_error *err);
/* The process runs in a process group of its own, so that Ctrl-C in a terminal reaches the
 * supervisor alone, which stops the tiers in order. It outlives a supervisor that is killed: a
 * fault there must not stop the traffic; `switchyard down` finds it by its pid file. Its output
 * goes to the end of RUNDIR/NAME.log. */
SY_MUST_USE sy_status up_launch(pid_t *out, const up_launcher *launcher, const up_process *process,
                                sy_error *err);

#endif
