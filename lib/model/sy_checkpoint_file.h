/* sy_checkpoint_file.h - paths inside a checkpoint directory. Private to lib/model. */
#ifndef SY_CHECKPOINT_FILE_H
#define SY_CHECKPOINT_FILE_H

#include <limits.h>

#include "sy_status.h"

/* dir/name. SY_EINVAL: longer than a path may be. */
SY_MUST_USE sy_status sy_checkpoint_path(char out[PATH_MAX], const char *dir, const char *name,
                                         sy_error *err);
/* Fails for what is there and is no regular file: opening a pipe would wait for ever. */
SY_MUST_USE sy_status sy_checkpoint_require_file(const char *path, sy_error *err);

#endif
