/* up_launch.c - command lines, and posix_spawn. */
#include "up_launch.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sy_arena.h"
#include "up_pids.h"

#define ARGS_MAX       (32 + SY_ARG_STRINGS_MAX)
#define ARGS_BYTES_MAX ((size_t)1 << 20)

/* ---- programs ---- */

static const char *const server_tiers[] = {"expert", "router", "aggregator"};

static sy_status find_servers(up_launcher *launcher, sy_error *err)
{
    char self[PATH_MAX];
    char path[UP_PATH_BYTES + 64];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (n < 0) return sy_error_set(err, SY_EIO, "/proc/self/exe: %s", strerrordesc_np(errno));
    self[n] = '\0';
    snprintf(launcher->program_dir, sizeof(launcher->program_dir), "%s", dirname(self));
    for (size_t i = 0; i < SY_COUNT_OF(server_tiers); i++) {
        snprintf(path, sizeof(path), "%s/switchyard-%s", launcher->program_dir, server_tiers[i]);
        if (access(path, X_OK) != 0) {
            return sy_error_set(err, SY_ENOTFOUND,
                                "there is no program %s: build or install the servers into the "
                                "folder of switchyard itself",
                                path);
        }
    }
    return SY_OK;
}

static sy_status find_on_path(char out[UP_PATH_BYTES], const char *program)
{
    const char *at = getenv("PATH");

    while (at != NULL && *at != '\0') {
        const size_t n = strcspn(at, ":");

        if (n > 0) {
            snprintf(out, UP_PATH_BYTES, "%.*s/%s", (int)SY_MIN(n, (size_t)PATH_MAX / 2), at,
                     program);
            if (access(out, X_OK) == 0) return SY_OK;
        }
        at += n + (at[n] == ':');
    }
    out[0] = '\0';
    return SY_ENOTFOUND;
}

sy_status up_launcher_find(up_launcher *launcher, sy_error *err)
{
    sy_status st;

    SY_TRY(find_servers(launcher, err));
    launcher->redis_program[0] = '\0';
    if (launcher->cluster->owns_redis &&
        find_on_path(launcher->redis_program, "redis-server") != SY_OK &&
        find_on_path(launcher->redis_program, "valkey-server") != SY_OK) {
        st = sy_error_set(err, SY_ENOTFOUND,
                          "there is no redis-server on PATH: install it (apt-get install "
                          "redis-server), or name a Redis that runs with --redis URL");
    }
out:
    return st;
}

/* ---- command lines ---- */

typedef struct arg_list {
    sy_arena arena;
    char *text[ARGS_MAX + 1]; /* NULL-terminated */
    size_t n;
    int failed;
} arg_list;

static void put(arg_list *args, const char *text)
{
    SY_ASSERT(args->n < ARGS_MAX);
    args->text[args->n] = sy_arena_strndup(&args->arena, text, strlen(text));
    if (args->text[args->n] == NULL) args->failed = 1;
    args->n++;
}

static void put_option(arg_list *args, const char *name, const char *value)
{
    put(args, name);
    put(args, value);
}

/* Not a word on disk: what matters is written by operators, and lives as long as the cluster. */
static void put_redis(arg_list *args, const up_launcher *launcher, const up_process *process)
{
    put(args, launcher->redis_program);
    put_option(args, "--port", "0");
    put_option(args, "--unixsocket", process->address + strlen("unix:"));
    put_option(args, "--save", "");
    put_option(args, "--appendonly", "no");
    put_option(args, "--dir", launcher->cluster->dir);
    put_option(args, "--notify-keyspace-events", "Kgh");
}

static void put_all(arg_list *args, const sy_arg_strings *more)
{
    for (size_t i = 0; i < more->n; i++) put(args, more->item[i]);
}

static void put_precision(arg_list *args, const up_launcher *launcher)
{
    put_option(args, "--weights", launcher->weights);
    put_option(args, "--activations", launcher->activations);
}

/* Unless it is said, expert nodes share the cores out among themselves: they compute at the same
 * time, and a thread that waits for another node's to give up its core holds up the whole layer. */
static int64_t threads_of(const up_launcher *launcher, const up_process *process)
{
    const int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t n_experts = 0;

    if (launcher->threads > 0 || strcmp(process->tier, "expert") != 0) return launcher->threads;
    for (size_t i = 0; i < launcher->cluster->n_processes; i++)
        n_experts += strcmp(launcher->cluster->process[i].tier, "expert") == 0;
    return SY_MAX(cores / SY_MAX(n_experts, 1), 1);
}

static void put_server(arg_list *args, const up_launcher *launcher, const up_process *process)
{
    char program[UP_PATH_BYTES + 64];
    char threads[24];

    snprintf(program, sizeof(program), "%s/switchyard-%s", launcher->program_dir, process->tier);
    snprintf(threads, sizeof(threads), "%lld", (long long)threads_of(launcher, process));
    put(args, program);
    put_option(args, "--model", launcher->cluster->model_dir);
    put_option(args, "--model-name", launcher->cluster->model);
    put_option(args, "--name", process->name);
    put_option(args, "--listen", process->address);
    put_option(args, "--http", process->http);
    put_option(args, "--threads", threads);
    put_option(args, "--log-level", launcher->log_level);
    if (launcher->allow_nan) put(args, "--allow-nan");
    if (strcmp(process->tier, "expert") == 0) {
        put_precision(args, launcher);
        put_option(args, "--devices", launcher->devices);
        put_all(args, &launcher->expert_args);
    } else if (strcmp(process->tier, "aggregator") == 0) {
        put_precision(args, launcher);
        if (launcher->arithmetic[0] != '\0')
            put_option(args, "--expert-arithmetic", launcher->arithmetic);
        put_option(args, "--router", launcher->router);
        put_all(args, &launcher->aggregator_args);
    } else {
        put_all(args, &launcher->router_args);
    }
}

/* ---- starting ---- */

/* Nothing of the supervisor's signals and files is passed on. */
static int spawn(pid_t *out, char *const *argv, const char *log_path)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigset_t all;
    int rc;

    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log_path, O_WRONLY | O_CREAT | O_APPEND,
                                     0644);
    posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                              POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    rc = posix_spawn(out, argv[0], &files, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return rc;
}

sy_status up_launch(pid_t *out, const up_launcher *launcher, const up_process *process,
                    sy_error *err)
{
    char log_path[UP_PATH_BYTES];
    arg_list args = {.n = 0};
    int rc;
    sy_status st;

    *out = 0;
    sy_arena_init(&args.arena, ARGS_BYTES_MAX);
    if (strcmp(process->tier, "redis") == 0) {
        put_redis(&args, launcher, process);
    } else {
        put_server(&args, launcher, process);
    }
    if (args.failed) {
        st = sy_error_set(err, SY_ENOMEM, "no memory to start %s", process->name);
        goto out;
    }
    up_cluster_path(log_path, launcher->cluster->dir, process->name, "log");
    rc = spawn(out, args.text, log_path);
    if (rc != 0) {
        *out = 0;
        st = sy_error_set(err, SY_EIO, "cannot start %s with its log in %s: %s", args.text[0],
                          log_path, strerrordesc_np(rc));
        goto out;
    }
    st = up_pid_save(launcher->cluster->dir, process->name, *out, err);
out:
    sy_arena_free(&args.arena);
    return st;
}
