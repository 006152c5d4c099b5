/* sy_map.c - read-only maps of files, and the guard around reading them. It owns the process'
 * SIGBUS handler, which is installed by the first guard and hands every signal that is no guard's
 * business to whoever had it before. */
#include "sy_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint8_t no_bytes[1];

sy_status sy_map_open(sy_map *out, const char *path, sy_error *err)
{
    struct stat info;
    void *data;
    int is_absent;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);

    *out = (sy_map){.fd = -1};
    if (fd < 0 || fstat(fd, &info) != 0) goto failed;
    if (!S_ISREG(info.st_mode)) {
        close(fd);
        return sy_error_set(err, SY_EINVAL, "%s: is not a regular file", path);
    }
    *out = (sy_map){.data = no_bytes, .len = (size_t)info.st_size, .fd = fd};
    if (out->len == 0) return SY_OK; /* mmap refuses an empty range */
    data = mmap(NULL, out->len, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) goto failed;
    out->data = data;
    return SY_OK;
failed:
    is_absent = errno == ENOENT || errno == ENOTDIR;
    sy_error_set(err, is_absent ? SY_ENOTFOUND : SY_EIO, "%s: cannot map it: %s", path,
                 strerrordesc_np(errno));
    if (fd >= 0) close(fd);
    *out = (sy_map){.fd = -1};
    return is_absent ? SY_ENOTFOUND : SY_EIO;
}

void sy_map_close(sy_map *map)
{
    if (map->data == NULL) return;
    if (map->len > 0) munmap((void *)(uintptr_t)map->data, map->len);
    close(map->fd);
    *map = (sy_map){.fd = -1};
}

/* The innermost guard of the thread; volatile, because the handler reads it behind the compiler's
 * back. */
static _Thread_local sigjmp_buf *volatile active_guard;
static struct sigaction previous;

static void die_of(int signo, const siginfo_t *info)
{
    signal(signo, SIG_DFL);
    /* A fault comes again as soon as the handler returns; a signal that was sent does not. */
    if (info->si_code <= 0) raise(signo);
}

static void on_sigbus(int signo, siginfo_t *info, void *context)
{
    static _Thread_local volatile int is_chaining;
    sigjmp_buf *guard = active_guard;

    if (guard != NULL && info->si_code == BUS_ADRERR) siglongjmp(*guard, 1);
    /* A handler that was installed over ours and then under it would hand the signal round for
     * ever. */
    if (is_chaining || previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
        die_of(signo, info);
        return;
    }
    is_chaining = 1;
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
        previous.sa_sigaction(signo, info, context);
    } else {
        previous.sa_handler(signo);
    }
    is_chaining = 0;
}

/* Each guard looks, for others (crash reporters, test frameworks) install handlers of their own
 * when they please. */
static void install_handler(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_ONSTACK};
    struct sigaction current;

    action.sa_sigaction = on_sigbus;
    sigemptyset(&action.sa_mask);
    pthread_mutex_lock(&lock);
    sigaction(SIGBUS, NULL, &current);
    if ((current.sa_flags & SA_SIGINFO) == 0 || current.sa_sigaction != on_sigbus) {
        previous = current;
        sigaction(SIGBUS, &action, NULL);
    }
    pthread_mutex_unlock(&lock);
}

/* Once a thread: the kernel kills a thread that faults while the signal is blocked, and threads
 * that block all signals are common. */
static void unblock_sigbus(void)
{
    static _Thread_local int is_done;
    sigset_t faults;

    if (is_done) return;
    sigemptyset(&faults);
    sigaddset(&faults, SIGBUS);
    pthread_sigmask(SIG_UNBLOCK, &faults, NULL);
    is_done = 1;
}

sy_status sy_map_guard(sy_status (*fn)(void *arg), void *arg, sy_error *err)
{
    sigjmp_buf *const outer = active_guard;
    sigjmp_buf here;
    sy_status st;

    install_handler();
    unblock_sigbus();
    if (sigsetjmp(here, 1) != 0) {
        active_guard = outer;
        return sy_error_set(err, SY_EDATALOSS,
                            "a mapped file became shorter while it was read: restore the file");
    }
    active_guard = &here;
    st = fn(arg);
    active_guard = outer;
    return st;
}
