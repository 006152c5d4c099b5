/* up_supervisor.c - a loop around signalfd. The one thing that it keeps for others is a copy of the
 * placement: the cluster's own Redis has nothing on disk, so when it dies the operators' edits
 * would be gone with it; they are put back before anybody misses them. */
#include "up_supervisor.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sy_clock.h"
#include "sy_file.h"
#include "sy_log.h"
#include "tool_redis.h"
#include "up_pids.h"
#include "up_view.h"

#define BACKOFF_MIN_US 200000
#define BACKOFF_MAX_US 5000000
#define SETTLED_US                                                                \
    10000000 /* who ran this long died of something new: the back-off begins anew \
              */
#define STOP_US         25000000 /* less than `switchyard down` waits */
#define PROBE_US        1000000
#define POLL_US         50000
#define COPY_US         1000000
#define LOG_BYTES_MAX   ((size_t)256 << 20)
#define LOG_LINES_SHOWN 15
#define END_BYTES       64
#define KEYS            2 /* placement and history, in this order */

typedef struct child {
    const up_process *process;
    pid_t pid; /* 0: does not run */
    int64_t started_us;
    int64_t backoff_us;
    int64_t start_at_us; /* when it does not run */
    int is_ready;        /* during the start */
    char end[END_BYTES]; /* how it ended last: "exited with code 1" */
} child;

typedef struct kept_key {
    char key[256];
    tool_copy copy;
} kept_key;

struct up_supervisor {
    up_supervisor_config config;
    const up_cluster *cluster;
    int signal_fd;
    int must_stop;  /* how many signals to stop have come */
    int is_running; /* between start and stop: what dies is started again */
    int is_stopping;
    tool_redis *redis; /* for copies; NULL: not connected */
    int64_t copied_us;
    kept_key kept[KEYS];
    size_t n_children;
    child child[UP_PROCESSES_MAX];
};

/* ---- children ---- */

static void describe_end(char out[END_BYTES], int status)
{
    if (WIFSIGNALED(status)) {
        const char *const what = sigdescr_np(WTERMSIG(status));

        snprintf(out, END_BYTES, "was killed by signal %d (%s)", WTERMSIG(status),
                 what != NULL ? what : "unknown");
    } else {
        snprintf(out, END_BYTES, "exited with code %d", WEXITSTATUS(status));
    }
}

static void reap_child(up_supervisor *s, child *c)
{
    const int64_t now_us = sy_clock_us();
    int status;

    if (c->pid == 0 || waitpid(c->pid, &status, WNOHANG) != c->pid) return;
    describe_end(c->end, status);
    if (now_us - c->started_us > SETTLED_US) c->backoff_us = BACKOFF_MIN_US;
    if (s->is_running) {
        sy_log(SY_LOG_ERROR, "%s (pid %d) %s; it starts again in %.1f s; its log is %s/%s.log",
               c->process->name, (int)c->pid, c->end, (double)c->backoff_us / 1e6, s->cluster->dir,
               c->process->name);
    } else if (status != 0) {
        sy_log(SY_LOG_WARN, "%s (pid %d) %s", c->process->name, (int)c->pid, c->end);
    }
    c->start_at_us = now_us + c->backoff_us;
    c->backoff_us = SY_MIN(c->backoff_us * 2, BACKOFF_MAX_US);
    up_pid_remove(s->cluster->dir, c->process->name);
    c->pid = 0;
    c->is_ready = 0;
}

static void reap(up_supervisor *s)
{
    for (size_t i = 0; i < s->n_children; i++) reap_child(s, &s->child[i]);
}

static sy_status start_child(up_supervisor *s, child *c, sy_error *err)
{
    sy_status st;

    c->started_us = sy_clock_us();
    SY_TRY(up_launch(&c->pid, s->config.launcher, c->process, err));
    sy_log(SY_LOG_INFO, "%s is started, pid %d", c->process->name, (int)c->pid);
out:
    return st;
}

/* ---- signals ---- */

static void take_signals(up_supervisor *s)
{
    struct signalfd_siginfo info;

    while (read(s->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) continue;
        s->must_stop++;
        sy_log(SY_LOG_INFO, "%s: %s", sigdescr_np((int)info.ssi_signo),
               s->is_stopping ? "what still runs is killed" : "the cluster stops");
    }
}

static int reader_is_gone(const up_supervisor *s)
{
    struct pollfd slot = {.fd = s->config.abort_fd};

    return s->config.abort_fd >= 0 && poll(&slot, 1, 0) == 1 && (slot.revents & POLLERR) != 0;
}

/* Sleeps until a signal or for at most us, then reaps. */
static void wait_us(up_supervisor *s, int64_t us)
{
    struct pollfd slot = {.fd = s->signal_fd, .events = POLLIN};

    (void)poll(&slot, 1, (int)(SY_MAX(us, 0) / 1000) + 1);
    take_signals(s);
    reap(s);
}

static sy_status open_signals(up_supervisor *s, sy_error *err)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->signal_fd >= 0) return SY_OK;
    return sy_error_set(err, SY_EIO, "cannot wait for signals: %s", strerrordesc_np(errno));
}

/* ---- the copy of the placement ---- */

static void forget_redis(up_supervisor *s)
{
    tool_redis_close(s->redis);
    s->redis = NULL;
}

/* *changed: its content is another than at the last copy. A key that is gone while Redis is alive
 * was deleted by somebody, and is not put back; the copy of its last content is kept, for the day
 * Redis dies. */
static sy_status copy_key(up_supervisor *s, kept_key *kept, int *changed)
{
    tool_copy now = {0};
    sy_error err;
    const sy_status st = tool_redis_dump(&now, s->redis, kept->key, &err);

    *changed = 0;
    if (st != SY_OK) return st == SY_ENOTFOUND ? SY_OK : st;
    *changed = kept->copy.data == NULL || kept->copy.len != now.len ||
               memcmp(kept->copy.data, now.data, now.len) != 0;
    free(kept->copy.data);
    kept->copy = now;
    return SY_OK;
}

/* The history may be long; it changes together with the placement. */
static void copy_keys(up_supervisor *s)
{
    int changed = 1;
    sy_error err;
    sy_status st = SY_OK;

    s->copied_us = sy_clock_us();
    if (s->redis == NULL) st = tool_redis_open(&s->redis, s->cluster->redis, PROBE_US, &err);
    for (size_t i = 0; st == SY_OK && changed && i < KEYS; i++) {
        st = copy_key(s, &s->kept[i], &changed);
    }
    if (st != SY_OK) forget_redis(s);
}

/* After Redis was started again: waits until it answers, which takes milliseconds. */
static void restore_keys(up_supervisor *s)
{
    const int64_t deadline_us = sy_clock_us() + PROBE_US;
    sy_error err;
    sy_status st;

    forget_redis(s);
    while ((st = tool_redis_open(&s->redis, s->cluster->redis, PROBE_US, &err)) != SY_OK &&
           sy_clock_us() < deadline_us && s->child[0].pid != 0) {
        wait_us(s, POLL_US);
    }
    for (size_t i = 0; st == SY_OK && i < KEYS; i++) {
        if (s->kept[i].copy.data == NULL) continue;
        st = tool_redis_restore(s->redis, s->kept[i].key, &s->kept[i].copy, &err);
        if (st == SY_OK) sy_log(SY_LOG_INFO, "%s is put back into Redis", s->kept[i].key);
        if (st == SY_EEXISTS) st = SY_OK;
    }
    if (st != SY_OK) sy_log_error(SY_LOG_ERROR, &err, "the placement is not put back into Redis");
}

/* ---- start ---- */

static void show_log(sy_strbuf *more, const char *dir, const char *name)
{
    char path[UP_PATH_BYTES];
    char *text;
    size_t n;
    size_t at;

    up_cluster_path(path, dir, name, "log");
    if (sy_file_read(&text, &n, path, LOG_BYTES_MAX, NULL) != SY_OK) return;
    at = n;
    for (int lines = 0; at > 0; at--) {
        if (text[at - 1] == '\n' && at < n && ++lines == LOG_LINES_SHOWN) break;
    }
    sy_strbuf_printf(more, "the last lines of %s:\n%s", path, text + at);
    if (n > 0 && text[n - 1] != '\n') sy_strbuf_puts(more, "\n");
    free(text);
}

/* During the start nothing is started again: what ends at once has a reason that repeats. */
static sy_status check_alive(up_supervisor *s, sy_strbuf *more, sy_error *err)
{
    for (size_t i = 0; i < s->n_children; i++) {
        const child *c = &s->child[i];

        if (c->pid != 0 || c->started_us == 0) continue;
        show_log(more, s->cluster->dir, c->process->name);
        return sy_error_set(err, SY_EUNAVAILABLE, "%s %s while the cluster was starting",
                            c->process->name, c->end);
    }
    if (s->must_stop > 0) return sy_error_set(err, SY_ECANCELLED, "stopped by a signal");
    if (reader_is_gone(s)) return sy_error_set(err, SY_ECANCELLED, "whoever waited is gone");
    return SY_OK;
}

/* Of the first n children. */
static size_t count_ready(up_supervisor *s, size_t n)
{
    char why[UP_WHY_BYTES];
    size_t n_ready = 0;

    for (size_t i = 0; i < n; i++) {
        child *c = &s->child[i];

        if (!c->is_ready && c->pid != 0) {
            c->is_ready = up_probe(why, s->cluster, c->process, PROBE_US);
            if (c->is_ready) sy_log(SY_LOG_INFO, "%s is ready", c->process->name);
        }
        n_ready += (size_t)c->is_ready;
    }
    return n_ready;
}

static sy_status fail_late(up_supervisor *s, size_t n, sy_strbuf *more, sy_error *err)
{
    char why[UP_WHY_BYTES];

    for (size_t i = 0; i < n; i++) {
        const child *c = &s->child[i];

        if (c->is_ready) continue;
        (void)up_probe(why, s->cluster, c->process, PROBE_US);
        sy_strbuf_printf(more, "%s: %s; its log is %s/%s.log\n", c->process->name, why,
                         s->cluster->dir, c->process->name);
    }
    return sy_error_set(err, SY_EDEADLINE,
                        "the cluster is not ready after %lld s: see below, or give it longer with "
                        "--timeout-s",
                        (long long)(s->config.start_us / 1000000));
}

static sy_status wait_ready(up_supervisor *s, size_t n, int64_t deadline_us, sy_strbuf *more,
                            sy_error *err)
{
    sy_status st;

    for (;;) {
        SY_TRY(check_alive(s, more, err));
        if (count_ready(s, n) == n) break;
        if (sy_clock_us() > deadline_us) return fail_late(s, n, more, err);
        wait_us(s, POLL_US);
    }
out:
    return st;
}

sy_status up_supervisor_start(up_supervisor *supervisor, sy_strbuf *more, sy_error *err)
{
    const int64_t deadline_us = sy_clock_us() + supervisor->config.start_us;
    const size_t n_first = supervisor->cluster->owns_redis ? 1 : 0;
    sy_status st;

    for (size_t i = 0; i < supervisor->n_children; i++) {
        char path[UP_PATH_BYTES];

        up_cluster_path(path, supervisor->cluster->dir, supervisor->child[i].process->name, "log");
        unlink(path);
    }
    for (size_t i = 0; i < n_first; i++) {
        SY_TRY(start_child(supervisor, &supervisor->child[i], err));
    }
    SY_TRY(wait_ready(supervisor, n_first, deadline_us, more, err));
    SY_TRY(supervisor->config.on_redis(supervisor->config.ctx, err));
    for (size_t i = n_first; i < supervisor->n_children; i++) {
        SY_TRY(start_child(supervisor, &supervisor->child[i], err));
    }
    SY_TRY(wait_ready(supervisor, supervisor->n_children, deadline_us, more, err));
out:
    return st;
}

/* ---- run ---- */

static void start_due(up_supervisor *s)
{
    sy_error err;

    for (size_t i = 0; i < s->n_children; i++) {
        child *c = &s->child[i];

        if (c->pid != 0 || sy_clock_us() < c->start_at_us) continue;
        if (start_child(s, c, &err) != SY_OK) {
            sy_log_error(SY_LOG_ERROR, &err, "%s cannot be started again", c->process->name);
            c->start_at_us = sy_clock_us() + c->backoff_us;
            c->backoff_us = SY_MIN(c->backoff_us * 2, BACKOFF_MAX_US);
        } else if (s->cluster->owns_redis && i == 0) {
            restore_keys(s);
        }
    }
}

void up_supervisor_run(up_supervisor *supervisor)
{
    supervisor->is_running = 1;
    while (supervisor->must_stop == 0) {
        int64_t wake_us = supervisor->copied_us + COPY_US;

        start_due(supervisor);
        for (size_t i = 0; i < supervisor->n_children; i++) {
            const child *c = &supervisor->child[i];

            if (c->pid == 0) wake_us = SY_MIN(wake_us, c->start_at_us);
        }
        if (supervisor->cluster->owns_redis && supervisor->child[0].pid != 0 &&
            sy_clock_us() >= supervisor->copied_us + COPY_US) {
            copy_keys(supervisor);
        }
        wait_us(supervisor, SY_MIN(wake_us - sy_clock_us(), COPY_US));
    }
    supervisor->is_running = 0;
}

/* ---- stop ---- */

static size_t signal_tier(up_supervisor *s, const char *tier, int signum)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n_children; i++) {
        const child *c = &s->child[i];

        if (c->pid == 0 || strcmp(c->process->tier, tier) != 0) continue;
        n++;
        if (signum != 0) kill(c->pid, signum);
    }
    return n;
}

void up_supervisor_stop(up_supervisor *supervisor)
{
    const int64_t deadline_us = sy_clock_us() + STOP_US;
    const int n_signals = supervisor->must_stop;

    supervisor->is_stopping = 1;
    reap(supervisor);
    for (size_t i = 0; i < UP_TIERS; i++) {
        size_t n_left = signal_tier(supervisor, up_stop_order[i], SIGTERM);

        for (; n_left > 0; n_left = signal_tier(supervisor, up_stop_order[i], 0)) {
            wait_us(supervisor, POLL_US);
            if (supervisor->must_stop == n_signals && sy_clock_us() < deadline_us) continue;
            (void)signal_tier(supervisor, up_stop_order[i], SIGKILL);
        }
    }
    sy_log(SY_LOG_INFO, "all processes have ended");
}

/* ---- open and close ---- */

sy_status up_supervisor_open(up_supervisor **out, const up_supervisor_config *config, sy_error *err)
{
    up_supervisor *s = calloc(1, sizeof(*s));
    sy_status st;

    *out = NULL;
    if (s == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the supervisor");
    s->config = *config;
    s->cluster = config->launcher->cluster;
    s->signal_fd = -1;
    s->n_children = s->cluster->n_processes;
    for (size_t i = 0; i < s->n_children; i++) {
        s->child[i] = (child){.process = &s->cluster->process[i], .backoff_us = BACKOFF_MIN_US};
    }
    SY_TRY(sy_key_placement(s->kept[0].key, sizeof(s->kept[0].key), s->cluster->model));
    SY_TRY(tool_key_history(s->kept[1].key, sizeof(s->kept[1].key), s->cluster->model));
    SY_TRY(open_signals(s, err));
    *out = s;
    s = NULL;
out:
    if (st == SY_ELIMIT) sy_error_set(err, st, "the name of the model is too long");
    up_supervisor_close(s);
    return st;
}

void up_supervisor_close(up_supervisor *supervisor)
{
    if (supervisor == NULL) return;
    if (supervisor->signal_fd >= 0) close(supervisor->signal_fd);
    for (size_t i = 0; i < KEYS; i++) free(supervisor->kept[i].copy.data);
    forget_redis(supervisor);
    free(supervisor);
}
