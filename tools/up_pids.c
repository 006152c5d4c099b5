/* up_pids.c - pid files and the lock. */
#include "up_pids.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sy_file.h"
#include "up_cluster.h"

#define CMDLINE_BYTES_MAX ((size_t)1 << 20)

/* ---- pid files ---- */

static pid_t read_pid(const char *path)
{
    char *text;
    size_t n;
    long pid;

    if (sy_file_read(&text, &n, path, 64, NULL) != SY_OK) return 0;
    pid = strtol(text, NULL, 10);
    free(text);
    return pid > 1 && pid <= INT32_MAX ? (pid_t)pid : 0;
}

/* The path of its own socket that every process has on its command line. Redis replaces its command
 * line by a title, but that holds the path as well. */
static void mark_of(char out[UP_PATH_BYTES], const char *dir, const char *name)
{
    up_cluster_path(out, dir, name, strcmp(name, "redis") == 0 ? "sock" : "http");
}

/* The mark as a whole argument, or after a colon, as in "unix:/run/a/expert-0.http": the folder of
 * another cluster may end in ours. */
static int has_mark(const char *cmdline, size_t n, const char *mark)
{
    const char *at = cmdline;
    const char *const end = cmdline + n;

    while ((at = memmem(at, (size_t)(end - at), mark, strlen(mark))) != NULL) {
        const char *const after = at + strlen(mark);

        if (at > cmdline && (at[-1] == ':' || at[-1] == '\0') &&
            (after == end || *after == '\0' || *after == ' ')) {
            return 1;
        }
        at++;
    }
    return 0;
}

/* A process that has ended but was not waited for has no command line any more: it is gone. */
static int is_ours(pid_t pid, const char *dir, const char *name)
{
    char path[64];
    char mark[UP_PATH_BYTES];
    char *cmdline;
    size_t n;
    int yes;

    snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
    if (sy_file_read(&cmdline, &n, path, CMDLINE_BYTES_MAX, NULL) != SY_OK) return 0;
    mark_of(mark, dir, name);
    yes = has_mark(cmdline, n, mark);
    free(cmdline);
    return yes;
}

pid_t up_pid_of(const char *dir, const char *name)
{
    char path[UP_PATH_BYTES];
    pid_t pid;

    up_cluster_path(path, dir, name, "pid");
    pid = read_pid(path);
    return pid != 0 && is_ours(pid, dir, name) ? pid : 0;
}

sy_status up_pid_save(const char *dir, const char *name, pid_t pid, sy_error *err)
{
    char path[UP_PATH_BYTES];
    char text[24];
    const int n = snprintf(text, sizeof(text), "%d\n", (int)pid);

    up_cluster_path(path, dir, name, "pid");
    return sy_file_write_atomic(path, text, (size_t)n, err);
}

void up_pid_remove(const char *dir, const char *name)
{
    char path[UP_PATH_BYTES];

    up_cluster_path(path, dir, name, "pid");
    unlink(path);
}

void up_pids_each(const char *dir, void (*fn)(void *arg, const char *name), void *arg)
{
    DIR *entries = opendir(dir);
    const struct dirent *entry;
    char name[SY_NODE_BYTES];

    if (entries == NULL) return;
    while ((entry = readdir(entries)) != NULL) {
        const char *const dot = strrchr(entry->d_name, '.');

        if (dot == NULL || strcmp(dot, ".pid") != 0) continue;
        if ((size_t)(dot - entry->d_name) >= sizeof(name)) continue;
        snprintf(name, sizeof(name), "%.*s", (int)(dot - entry->d_name), entry->d_name);
        if (strcmp(name, "supervisor") != 0) fn(arg, name);
    }
    closedir(entries);
}

/* ---- signals ---- */

typedef struct signalling {
    const char *dir, *tier;
    int signum;
    size_t n;
} signalling;

/* "expert-12" and "redis" are of the tiers "expert" and "redis". */
static void signal_one(void *arg, const char *name)
{
    signalling *s = arg;
    const size_t n = strlen(s->tier);
    pid_t pid;

    if (strncmp(name, s->tier, n) != 0 || (name[n] != '\0' && name[n] != '-')) return;
    pid = up_pid_of(s->dir, name);
    if (pid == 0) return;
    s->n++;
    if (s->signum != 0) kill(pid, s->signum);
}

size_t up_pids_signal(const char *dir, const char *tier, int signum)
{
    signalling s = {.dir = dir, .tier = tier, .signum = signum};

    up_pids_each(dir, signal_one, &s);
    return s.n;
}

/* ---- the lock ---- */

static struct flock whole_file(void)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
}

pid_t up_lock_holder(const char *dir)
{
    char path[UP_PATH_BYTES];
    struct flock lock = whole_file();
    pid_t holder = 0;
    int fd;

    up_cluster_path(path, dir, "supervisor", "pid");
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return 0;
    if (fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK) holder = lock.l_pid;
    close(fd);
    return holder;
}

sy_status up_lock_take(int *fd, const char *dir, sy_error *err)
{
    char path[UP_PATH_BYTES];
    struct flock lock = whole_file();

    up_cluster_path(path, dir, "supervisor", "pid");
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (*fd < 0) {
        return sy_error_set(err, SY_EIO, "cannot write %s: %s", path, strerrordesc_np(errno));
    }
    if (fcntl(*fd, F_SETLK, &lock) == 0 && ftruncate(*fd, 0) == 0 &&
        dprintf(*fd, "%d\n", (int)getpid()) > 0) {
        return SY_OK;
    }
    close(*fd);
    *fd = -1;
    return sy_error_set(err, SY_EEXISTS,
                        "a cluster runs in %s already: stop it with switchyard down --dir %s, or "
                        "choose another --dir",
                        dir, dir);
}
