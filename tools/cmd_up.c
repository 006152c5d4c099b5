/* cmd_up.c - `switchyard up`: a local cluster on Unix sockets, started and supervised. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "commands.h"
#include "sy_args.h"
#include "sy_clock.h"
#include "sy_devices.h"
#include "sy_log.h"
#include "sy_model.h"
#include "sy_precision_text.h"
#include "tool_placement.h"
#include "tool_print.h"
#include "up_pids.h"
#include "up_result.h"
#include "up_supervisor.h"

#define REDIS_US 5000000

typedef struct up_options {
    const char *model, *name, *dir, *redis, *router, *devices, *log_level, *weights, *activations;
    sy_device_list device_list; /* what devices says */
    sy_arg_strings expert_args, router_args, aggregator_args;
    int64_t experts, routers, aggregators, threads, timeout_s;
    int detach, json, allow_nan;
} up_options;

typedef struct up_run {
    up_options options;
    up_cluster cluster;
    up_launcher launcher;
    char arithmetic[SY_BACKEND_ARITHMETIC_BYTES]; /* of the expert nodes' GPUs; "": on CPUs */
    int report_fd; /* where the result of the start goes; -1: to stdout and stderr */
    int lock_fd;
    int64_t began_us;
} up_run;

/* ---- options ---- */

static const char usage[] =
    "switchyard up --model DIR --dir RUNDIR [options]\n\n"
    "Starts Redis, expert nodes, routers and aggregators on Unix sockets in RUNDIR, waits until "
    "all\n"
    "are ready, and prints where they are. Starts again what dies. Without --detach it goes on "
    "until\n"
    "Ctrl-C, and then stops everything; with it, until switchyard down --dir RUNDIR.";

static sy_status check_options(up_options *o, sy_error *err)
{
    sy_log_level level;
    sy_precision precision;
    const sy_status st = sy_precision_parse(&precision, o->weights, o->activations, err);

    if (st != SY_OK) return st;
    if (o->model == NULL) return sy_error_set(err, SY_EINVAL, "--model DIR is required");
    if (o->dir == NULL) return sy_error_set(err, SY_EINVAL, "--dir RUNDIR is required");
    if (strcmp(o->router, "remote") != 0 && strcmp(o->router, "inproc") != 0) {
        return sy_error_set(err, SY_EINVAL, "--router %s: remote or inproc", o->router);
    }
    if (sy_log_level_from_name(&level, o->log_level) != SY_OK) {
        return sy_error_set(err, SY_EINVAL, "--log-level %s: debug, info, warn or error",
                            o->log_level);
    }
    if (o->routers < 0) o->routers = strcmp(o->router, "remote") == 0;
    if (o->routers == 0 && o->aggregators > 0 && strcmp(o->router, "remote") == 0) {
        return sy_error_set(err, SY_EINVAL,
                            "--routers 0: aggregators need a router, or --router inproc");
    }
    /* Here and not in every node's log: the nodes run on this machine. */
    return sy_devices_choose(&o->device_list, o->devices, err);
}

static sy_status parse(up_options *o, int argc, char **argv, sy_error *err)
{
    *o = (up_options){.router = "remote",
                      .devices = "cpu:0",
                      .log_level = "info",
                      .weights = "as-stored",
                      .activations = "f32",
                      .experts = 2,
                      .routers = -1,
                      .aggregators = 1,
                      .timeout_s = 120};
    const sy_arg args[] = {
        {"model", "DIR",
         "checkpoint: a directory in Hugging Face's layout, or a .gguf file (required)",
         SY_ARG_STRING, &o->model, 0, 0},
        {"dir", "RUNDIR", "folder of sockets, logs and pid files (required); made if absent",
         SY_ARG_STRING, &o->dir, 0, 0},
        {"name", "NAME", "what the model is called; default: the directory's name", SY_ARG_STRING,
         &o->name, 0, 0},
        {"experts", "N", "expert nodes", SY_ARG_INT, &o->experts, 1, UP_OF_A_TIER_MAX},
        {"routers", "N", "router replicas; -1: one, or none with --router inproc", SY_ARG_INT,
         &o->routers, -1, UP_OF_A_TIER_MAX},
        {"aggregators", "N", "aggregators", SY_ARG_INT, &o->aggregators, 0, UP_OF_A_TIER_MAX},
        {"router", "WHERE", "remote, or inproc: aggregators compute the gate themselves",
         SY_ARG_STRING, &o->router, 0, 0},
        {"devices", "LIST",
         "of each expert node: cpu:0,cpu:1; or GPUs: cuda:N, cuda for all of them, see switchyard "
         "devices",
         SY_ARG_STRING, &o->devices, 0, 0},
        {"weights", "FORMAT", SY_WEIGHTS_HELP, SY_ARG_STRING, &o->weights, 0, 0},
        {"activations", "TYPE", SY_ACTIVATIONS_HELP, SY_ARG_STRING, &o->activations, 0, 0},
        {"allow-nan", NULL, TOOL_ALLOW_NAN_HELP, SY_ARG_FLAG, &o->allow_nan, 0, 0},
        {"redis", "URL", "a Redis that runs already; default: one of the cluster's own",
         SY_ARG_STRING, &o->redis, 0, 0},
        {"threads", "N",
         "compute threads of each server; 0: all cores, which expert nodes share out among "
         "themselves",
         SY_ARG_INT, &o->threads, 0, 1024},
        {"timeout-s", "S", "how long the start may take", SY_ARG_INT, &o->timeout_s, 1, 86400},
        {"log-level", "LEVEL", "of the servers: debug, info, warn or error", SY_ARG_STRING,
         &o->log_level, 0, 0},
        {"expert-arg", "ARG",
         "one more argument for each expert node, such as --expert-arg=--log-level=debug; may be "
         "given again",
         SY_ARG_STRINGS, &o->expert_args, 0, 0},
        {"router-arg", "ARG", "the same for each router", SY_ARG_STRINGS, &o->router_args, 0, 0},
        {"aggregator-arg", "ARG", "the same for each aggregator", SY_ARG_STRINGS,
         &o->aggregator_args, 0, 0},
        {"detach", NULL, "return when all are ready, and supervise in the background", SY_ARG_FLAG,
         &o->detach, 0, 0},
        {"json", NULL, "print the endpoints as JSON", SY_ARG_FLAG, &o->json, 0, 0},
    };
    sy_status st = sy_args_parse(argc, argv, args, SY_COUNT_OF(args), usage, NULL, 0, NULL, err);

    if (st == SY_OK) st = check_options(o, err);
    return st;
}

/* ---- before anything is started ---- */

static sy_status look_at_model(up_cluster *cluster, const up_options *o, sy_error *err)
{
    char real[PATH_MAX];
    sy_model *model = NULL;
    sy_status st;

    SY_TRY(sy_model_open(&model, o->model, o->name, err));
    cluster->grid = tool_grid_of(sy_model_describe(model));
    snprintf(cluster->model, sizeof(cluster->model), "%s", sy_model_name(model));
    if (realpath(o->model, real) == NULL || strlen(real) >= sizeof(cluster->model_dir)) {
        st = sy_error_set(err, SY_EIO, "%s: %s", o->model, strerrordesc_np(errno));
        goto out;
    }
    memcpy(cluster->model_dir, real, strlen(real) + 1);
out:
    sy_model_close(model);
    return st;
}

typedef struct orphan {
    const char *dir;
    char name[SY_NODE_BYTES];
    pid_t pid;
} orphan;

static void find_orphan(void *arg, const char *name)
{
    orphan *found = arg;
    const pid_t pid = up_pid_of(found->dir, name);

    if (pid == 0) {
        up_pid_remove(found->dir, name);
    } else {
        found->pid = pid;
        snprintf(found->name, sizeof(found->name), "%s", name);
    }
}

/* What an earlier cluster in this folder left is removed, unless it still runs. Holds the lock. */
static sy_status clear_dir(const char *dir, sy_error *err)
{
    orphan found = {.dir = dir};

    up_pids_each(dir, find_orphan, &found);
    if (found.pid != 0) {
        return sy_error_set(err, SY_EEXISTS,
                            "%s (pid %d) of an earlier cluster in %s still runs, though its "
                            "supervisor is gone: stop it with switchyard down --dir %s",
                            found.name, (int)found.pid, dir, dir);
    }
    up_cluster_clean(dir);
    return SY_OK;
}

/* All devices of a node have one arithmetic, so the first tells it. */
static void find_arithmetic(up_run *run)
{
    const sy_device *first = &run->options.device_list.device[0];
    sy_cuda cuda;

    run->arithmetic[0] = '\0';
    if (first->kind != SY_DEVICE_CUDA) return;
    sy_cuda_probe(&cuda);
    SY_ASSERT(first->number < SY_MIN(cuda.n, (uint32_t)SY_DEVICES_MAX)); /* it was checked */
    snprintf(run->arithmetic, sizeof(run->arithmetic), SY_BACKEND_ARITHMETIC_CUDA,
             (unsigned)cuda.device[first->number].major,
             (unsigned)cuda.device[first->number].minor);
}

static sy_status prepare(up_run *run, sy_error *err)
{
    const up_options *o = &run->options;
    const up_size size = {.experts = (uint32_t)o->experts,
                          .routers = (uint32_t)o->routers,
                          .aggregators = (uint32_t)o->aggregators};
    sy_status st;

    find_arithmetic(run);
    SY_TRY(look_at_model(&run->cluster, o, err));
    SY_TRY(up_cluster_set_dir(&run->cluster, o->dir, &size, err));
    SY_TRY(up_cluster_describe(&run->cluster, &size, o->redis, err));
    run->launcher = (up_launcher){.cluster = &run->cluster,
                                  .router = o->router,
                                  .devices = o->devices,
                                  .arithmetic = run->arithmetic,
                                  .log_level = o->log_level,
                                  .weights = o->weights,
                                  .activations = o->activations,
                                  .expert_args = o->expert_args,
                                  .router_args = o->router_args,
                                  .aggregator_args = o->aggregator_args,
                                  .allow_nan = o->allow_nan,
                                  .threads = o->threads};
    SY_TRY(up_launcher_find(&run->launcher, err));
out:
    return st;
}

/* ---- placement ---- */

/* "expert-0/cpu:0", ...: every device of every node. list: room for all. Returns how many. */
static size_t list_devices(char (*list)[SY_NODE_BYTES + SY_DEVICE_BYTES], const up_options *o)
{
    size_t n = 0;

    for (int64_t node = 0; node < o->experts; node++)
        for (uint32_t i = 0; i < o->device_list.n; i++)
            snprintf(list[n++], sizeof(list[0]), "expert-%d/%s", (int)node,
                     o->device_list.device[i].name);
    return n;
}

static sy_status write_placement(up_run *run, tool_redis *redis, sy_error *err)
{
    enum { DEVICES_MAX = UP_OF_A_TIER_MAX * SY_DEVICES_MAX };
    static char text[DEVICES_MAX][SY_NODE_BYTES + SY_DEVICE_BYTES];
    const char *device[DEVICES_MAX];
    const tool_spread spread = {.model = run->cluster.model,
                                .grid = run->cluster.grid,
                                .device = device,
                                .n_devices = list_devices(text, &run->options),
                                .must_be_new = 1,
                                .reason = "the default spread, because there was no placement",
                                .command = "switchyard up"};
    sy_status st;

    for (size_t i = 0; i < spread.n_devices; i++) device[i] = text[i];
    st = tool_placement_init(redis, &spread, err);
    if (st == SY_OK) {
        sy_log(SY_LOG_INFO, "placement: %u experts of %u layers spread over %zu devices",
               spread.grid.experts, sy_grid_moe_layers(&spread.grid), spread.n_devices);
    } else if (st == SY_EEXISTS) {
        sy_log(SY_LOG_INFO, "placement: as Redis has it (%s)", err->message);
        st = SY_OK;
    }
    return st;
}

static sy_status on_redis(void *ctx, sy_error *err)
{
    up_run *run = ctx;
    tool_redis *redis = NULL;
    sy_status st;

    SY_TRY(tool_redis_open(&redis, run->cluster.redis, REDIS_US, err));
    SY_TRY(write_placement(run, redis, err));
out:
    tool_redis_close(redis);
    return st;
}

/* ---- the result of the start ---- */

/* To the terminal, or over the pipe to the command that waits: a byte with its exit code, then what
 * it prints. 0: nobody is there to hear it. */
static int report(up_run *run, int code, const char *text)
{
    const size_t n = strlen(text);
    int is_heard;

    if (run->report_fd < 0) {
        fputs(text, code == 0 ? stdout : stderr);
        return fflush(code == 0 ? stdout : stderr) == 0;
    }
    is_heard = dprintf(run->report_fd, "%c%s", '0' + code, text) == (int)n + 1;
    close(run->report_fd);
    run->report_fd = -1;
    return is_heard;
}

static int report_failure(up_run *run, const sy_error *err, const sy_strbuf *more)
{
    sy_strbuf text;

    sy_strbuf_init(&text);
    sy_strbuf_printf(&text, "switchyard: error: %s: %s\n%s", sy_status_name(err->status),
                     err->message, more->data);
    (void)report(run, 1, text.data);
    sy_strbuf_free(&text);
    return 1;
}

static int report_ready(up_run *run)
{
    sy_strbuf text;
    int is_heard;

    sy_strbuf_init(&text);
    if (run->options.json) {
        up_result_json(&text, &run->cluster);
    } else {
        up_result_text(&text, &run->cluster, sy_clock_us() - run->began_us, run->options.detach);
    }
    is_heard = report(run, 0, text.data);
    sy_strbuf_free(&text);
    return is_heard;
}

/* ---- the supervising process ---- */

static sy_status claim_dir(up_run *run, sy_error *err)
{
    sy_status st;

    SY_TRY(up_lock_take(&run->lock_fd, run->cluster.dir, err));
    SY_TRY(clear_dir(run->cluster.dir, err));
    SY_TRY(up_cluster_save(&run->cluster, err));
    /* Servers take it from the environment: a password on a command line is there for all to see.
     */
    if (setenv("SWITCHYARD_REDIS", run->cluster.redis, 1) != 0) {
        st = sy_error_set(err, SY_ENOMEM, "no memory for the environment");
    }
out:
    return st;
}

static int supervise(up_run *run)
{
    const up_supervisor_config config = {.launcher = &run->launcher,
                                         .start_us = run->options.timeout_s * 1000000,
                                         .abort_fd = run->report_fd,
                                         .on_redis = on_redis,
                                         .ctx = run};
    up_supervisor *supervisor = NULL;
    sy_strbuf more;
    sy_error err;
    int code = 0;
    sy_status st;

    sy_error_clear(&err);
    sy_strbuf_init(&more);
    st = claim_dir(run, &err);
    if (st == SY_OK) st = up_supervisor_open(&supervisor, &config, &err);
    if (st != SY_OK) {
        code = report_failure(run, &err, &more);
        goto out;
    }
    st = up_supervisor_start(supervisor, &more, &err);
    if (st == SY_OK && report_ready(run)) up_supervisor_run(supervisor);
    up_supervisor_stop(supervisor);
    up_cluster_clean(run->cluster.dir);
    if (st != SY_OK) code = report_failure(run, &err, &more);
    up_pid_remove(run->cluster.dir, "supervisor");
out:
    up_supervisor_close(supervisor);
    sy_strbuf_free(&more);
    if (run->lock_fd >= 0) close(run->lock_fd);
    return code;
}

/* ---- in the background ---- */

/* Only the pipe connects it with the command from now on. */
static sy_status leave_terminal(const up_run *run, sy_error *err)
{
    char path[UP_PATH_BYTES];
    int log;
    int null;

    up_cluster_path(path, run->cluster.dir, "supervisor", "log");
    log = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (log < 0 || null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(log, STDOUT_FILENO) < 0 ||
        dup2(log, STDERR_FILENO) < 0 || chdir("/") != 0) {
        return sy_error_set(err, SY_EIO, "%s: %s", path, strerrordesc_np(errno));
    }
    close(log);
    close(null);
    return SY_OK;
}

static int supervise_detached(up_run *run)
{
    sy_strbuf none;
    sy_error err;

    sy_strbuf_init(&none);
    if (leave_terminal(run, &err) != SY_OK) return report_failure(run, &err, &none);
    return supervise(run);
}

/* Prints what comes over the pipe until its end. */
static int relay(int fd, const char *dir)
{
    sy_strbuf text;
    char piece[4096];
    ssize_t n;
    int code = 1;

    sy_strbuf_init(&text);
    while ((n = read(fd, piece, sizeof(piece))) > 0 || (n < 0 && errno == EINTR)) {
        if (n > 0) sy_strbuf_append(&text, piece, (size_t)n);
    }
    if (text.len > 0) {
        code = text.data[0] - '0';
        fputs(text.data + 1, code == 0 ? stdout : stderr);
    } else {
        fprintf(stderr,
                "switchyard: error: the supervisor ended without a word: see %s/supervisor.log "
                "and stop what is left with switchyard down --dir %s\n",
                dir, dir);
    }
    sy_strbuf_free(&text);
    return code;
}

/* Two forks and a session of its own: it has no terminal, can get none, and init is its parent. */
static int detach(up_run *run)
{
    int ends[2];
    pid_t pid;
    int code;

    if (pipe2(ends, O_CLOEXEC) != 0 || (fflush(NULL), pid = fork()) < 0) {
        fprintf(stderr, "switchyard: error: %s\n", strerrordesc_np(errno));
        return 1;
    }
    if (pid == 0) {
        close(ends[0]);
        run->report_fd = ends[1];
        setsid();
        pid = fork();
        _exit(pid == 0 ? supervise_detached(run) : 0);
    }
    close(ends[1]);
    waitpid(pid, NULL, 0);
    code = relay(ends[0], run->cluster.dir);
    close(ends[0]);
    return code;
}

int cmd_up(int argc, char **argv)
{
    static up_run run;
    sy_error err;

    sy_error_clear(&err);
    run.report_fd = run.lock_fd = -1;
    run.began_us = sy_clock_us();
    if (parse(&run.options, argc, argv, &err) != SY_OK) return tool_usage_error(&err);
    if (prepare(&run, &err) != SY_OK) return tool_fail(&err);
    sy_log_open("supervisor", SY_LOG_INFO, 0);
    return run.options.detach ? detach(&run) : supervise(&run);
}
