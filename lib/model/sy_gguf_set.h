/* sy_gguf_set.h - the GGUF files of one model: one file, or the parts NAME-00001-of-00003.gguf of
 * a split one, as one set of tensors. The metadata is the first part's. Immutable once open: any
 * thread. */
#ifndef SY_GGUF_SET_H
#define SY_GGUF_SET_H

#include <limits.h>

#include "sy_gguf.h"

#define SY_GGUF_PARTS_MAX 1024u

typedef struct sy_gguf_set sy_gguf_set;

/* The one model in dir: its only .gguf file that is no later part of a split one. SY_ENOTFOUND:
 * there is none. SY_EINVAL: several. */
SY_MUST_USE sy_status sy_gguf_locate(char out[PATH_MAX], const char *dir, sy_error *err);

/* The same, or path itself where it ends in .gguf. SY_EINVAL: there is no such file. */
SY_MUST_USE sy_status sy_gguf_locate_file(char out[PATH_MAX], const char *path, sy_error *err);

/* path: the file, or the first part, whose neighbours are opened too. Errors name the file.
 * SY_EINVAL besides what sy_gguf_open returns: not the first part, a part that says it is another
 * one, a tensor in two parts, not as many tensors as split.tensors.count. */
SY_MUST_USE sy_status sy_gguf_set_open(sy_gguf_set **out, const char *path, sy_error *err);
void sy_gguf_set_close(sy_gguf_set *set);                    /* accepts NULL */
const sy_gguf *sy_gguf_set_metadata(const sy_gguf_set *set); /* lives as long as the set */
size_t sy_gguf_set_parts(const sy_gguf_set *set);
const char *sy_gguf_set_part_path(const sy_gguf_set *set, size_t part);
size_t sy_gguf_set_count(const sy_gguf_set *set);
const sy_gguf_tensor *sy_gguf_set_at(const sy_gguf_set *set, size_t i); /* by name; NULL: past */
const sy_gguf_tensor *sy_gguf_set_find(const sy_gguf_set *set, const char *name); /* NULL: none */

#endif
