/* sy_file.c - files and folders by path. Errors name the path and what the system said. Maps live
 * in sy_map.c. */
#include "sy_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_READ_BYTES ((size_t)4096)
#define TEMP_TRIES       100

static sy_status fail_errno(sy_error *err, const char *what, const char *path)
{
    const int saved_errno = errno;
    const int is_absent = saved_errno == ENOENT || saved_errno == ENOTDIR;

    return sy_error_set(err, is_absent ? SY_ENOTFOUND : SY_EIO, "%s: cannot %s: %s", path, what,
                        strerrordesc_np(saved_errno));
}

static ssize_t read_some(int fd, void *out, size_t cap)
{
    ssize_t n;

    do {
        n = read(fd, out, cap);
    } while (n < 0 && errno == EINTR);
    return n;
}

/* Reads to the end, whatever the file says its size is: pipes and files in /proc say 0. One byte
 * past the limit is asked for, so that a file of exactly max_bytes is told from a longer one. */
static sy_status read_all(char **data, size_t *len, int fd, size_t first_bytes, size_t max_bytes,
                          const char *path, sy_error *err)
{
    const size_t most_bytes = max_bytes < PTRDIFF_MAX - 2 ? max_bytes + 1 : PTRDIFF_MAX - 1;
    size_t cap = SY_MIN(SY_MAX(first_bytes, FIRST_READ_BYTES), most_bytes);
    size_t n_read = 0;

    for (;;) {
        char *grown = realloc(*data, cap + 1);
        ssize_t n = -1;

        if (grown == NULL) return sy_error_set(err, SY_ENOMEM, "%s: no memory to read it", path);
        *data = grown;
        while (n_read < cap && (n = read_some(fd, grown + n_read, cap - n_read)) > 0) {
            n_read += (size_t)n;
        }
        if (n < 0) return fail_errno(err, "read", path);
        if (n_read > max_bytes) {
            return sy_error_set(err, SY_ELIMIT, "%s: longer than the limit of %zu bytes", path,
                                max_bytes);
        }
        if (n == 0) break;
        cap = cap < most_bytes / 2 ? cap * 2 : most_bytes;
    }
    (*data)[n_read] = '\0';
    *len = n_read;
    return SY_OK;
}

sy_status sy_file_read(char **data, size_t *len, const char *path, size_t max_bytes, sy_error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    sy_status st;

    *data = NULL;
    *len = 0;
    if (fd < 0) return fail_errno(err, "open", path);
    if (fstat(fd, &info) != 0) {
        st = fail_errno(err, "read", path);
    } else if (S_ISDIR(info.st_mode)) {
        st = sy_error_set(err, SY_EIO, "%s: is a folder, not a file", path);
    } else if (info.st_size > 0 && (uintmax_t)info.st_size > max_bytes) {
        st = sy_error_set(err, SY_ELIMIT, "%s: %jd bytes, the limit is %zu", path,
                          (intmax_t)info.st_size, max_bytes);
    } else {
        st = read_all(data, len, fd, (size_t)info.st_size + 1, max_bytes, path, err);
    }
    close(fd);
    if (st != SY_OK) {
        free(*data);
        *data = NULL;
    }
    return st;
}

static int write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        const ssize_t n = write(fd, data, len);

        if (n < 0 && errno != EINTR) return 0;
        if (n > 0) {
            data += n;
            len -= (size_t)n;
        }
    }
    return 1;
}

/* Opens a new file beside path; temp: [cap]. Not mkstemp, which would make the file unreadable to
 * other users. */
static int open_temp(char *temp, size_t cap, const char *path)
{
    static _Atomic unsigned counter;
    int fd = -1;

    for (int i = 0; i < TEMP_TRIES && fd < 0; i++) {
        const unsigned id = atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed);
        const int n = snprintf(temp, cap, "%s.tmp-%ld-%u", path, (long)getpid(), id);

        if (n < 0 || (size_t)n >= cap) {
            errno = ENAMETOOLONG;
            return -1;
        }
        fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (fd < 0 && errno != EEXIST) return -1;
    }
    return fd;
}

/* A rename survives a crash only once its folder is on disk. Some file systems refuse this; the
 * data is safe anyhow. */
static void sync_folder_of(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int fd;

    if (slash == NULL) {
        memcpy(folder, ".", 2);
    } else {
        const size_t len = slash == path ? 1 : (size_t)(slash - path);

        if (len >= sizeof(folder)) return;
        memcpy(folder, path, len);
        folder[len] = '\0';
    }
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

sy_status sy_file_write_atomic(const char *path, const void *data, size_t len, sy_error *err)
{
    char temp[PATH_MAX];
    sy_status st = SY_OK;
    const int fd = open_temp(temp, sizeof(temp), path);

    if (fd < 0) return fail_errno(err, "create a file beside it", path);
    if (!write_all(fd, data, len) || fsync(fd) != 0) st = fail_errno(err, "write", path);
    if (close(fd) != 0 && st == SY_OK) st = fail_errno(err, "write", path);
    if (st == SY_OK && rename(temp, path) != 0) st = fail_errno(err, "replace", path);
    if (st != SY_OK) {
        unlink(temp);
        return st;
    }
    sync_folder_of(path);
    return SY_OK;
}

static int is_folder(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

sy_status sy_dir_make(const char *path, sy_error *err)
{
    char part[PATH_MAX];
    const size_t len = strlen(path);

    if (len == 0) return sy_error_set(err, SY_EINVAL, "the name of a folder is empty");
    if (len >= sizeof(part)) {
        return sy_error_set(err, SY_EINVAL, "%.64s...: the path is longer than %d bytes", path,
                            PATH_MAX - 1);
    }
    memcpy(part, path, len + 1);
    for (size_t i = 1; i <= len; i++) {
        if (part[i] != '/' && part[i] != '\0') continue;
        part[i] = '\0';
        /* Another process may make the same folder at the same moment: what counts is that it is
         * there. */
        if (mkdir(part, 0755) != 0 && !is_folder(part)) {
            if (errno == EEXIST) {
                return sy_error_set(err, SY_EEXISTS, "%s: exists and is not a folder", part);
            }
            return fail_errno(err, "make the folder", part);
        }
        part[i] = path[i];
    }
    return SY_OK;
}

int sy_file_exists(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0;
}

sy_status sy_path_join(char *out, size_t cap, const char *dir, const char *name)
{
    const char *slash = "/";
    size_t dir_len = strlen(dir);
    int n;

    while (*name == '/' && dir_len > 0) name++;
    while (dir_len > 1 && dir[dir_len - 1] == '/') dir_len--;
    if (dir_len == 0 || dir[dir_len - 1] == '/') slash = "";
    if (dir_len > INT_MAX) return SY_ELIMIT;
    n = snprintf(out, cap, "%.*s%s%s", (int)dir_len, dir, slash, name);
    return n >= 0 && (size_t)n < cap ? SY_OK : SY_ELIMIT;
}

const char *sy_path_base(const char *path)
{
    const char *base = path;

    for (const char *p = path; *p != '\0'; p++) {
        if (*p == '/' && p[1] != '\0' && p[1] != '/') base = p + 1;
    }
    return base;
}
