/* sy_checkpoint_file.c - two checks that every file of a checkpoint goes through before it is
 * opened. */
#include "sy_checkpoint_file.h"

#include <sys/stat.h>

#include "sy_file.h"

sy_status sy_checkpoint_path(char out[PATH_MAX], const char *dir, const char *name, sy_error *err)
{
    if (sy_path_join(out, PATH_MAX, dir, name) == SY_OK) return SY_OK;
    return sy_error_set(err, SY_EINVAL, "%.64s...: the path is longer than %d bytes", dir,
                        PATH_MAX - 1);
}

sy_status sy_checkpoint_require_file(const char *path, sy_error *err)
{
    struct stat info;

    if (stat(path, &info) != 0 || S_ISREG(info.st_mode)) return SY_OK;
    return sy_error_set(err, SY_EINVAL, "%s: is not a regular file", path);
}
