/* sy_file.h - files and folders: whole-file reads with a limit, atomic writes, read-only maps. */
#ifndef SY_FILE_H
#define SY_FILE_H

#include "sy_status.h"

/* *data: NUL-terminated, the caller frees it. SY_ENOTFOUND, SY_ELIMIT past max_bytes, SY_EIO. */
SY_MUST_USE sy_status sy_file_read(char **data, size_t *len, const char *path, size_t max_bytes,
                                   sy_error *err);
SY_MUST_USE sy_status sy_file_write_atomic(const char *path, const void *data, size_t len,
                                           sy_error *err);
SY_MUST_USE sy_status sy_dir_make(const char *path, sy_error *err); /* like mkdir -p, mode 0755 */
int sy_file_exists(const char *path);
/* out: [cap]; joins with one slash. SY_ELIMIT when it does not fit. */
SY_MUST_USE sy_status sy_path_join(char *out, size_t cap, const char *dir, const char *name);
const char *sy_path_base(const char *path); /* after the last slash that is followed by something */

/* A file mapped read-only. Reading a map whose file was truncated meanwhile would raise SIGBUS:
 * sy_map_guard turns that into SY_EDATALOSS for the calling thread. */
typedef struct sy_map {
    const uint8_t *data;
    size_t len;
    int fd;
} sy_map;
SY_MUST_USE sy_status sy_map_open(sy_map *out, const char *path, sy_error *err);
void sy_map_close(sy_map *map); /* accepts a zeroed map */
/* Runs fn(arg); when it touches a page of any map that the file no longer backs, unwinds to here
 * and returns SY_EDATALOSS (fn must hold no lock and own nothing at that moment). Otherwise returns
 * fn's own status. */
SY_MUST_USE sy_status sy_map_guard(sy_status (*fn)(void *arg), void *arg, sy_error *err);

#endif
