/* sy_safetensors.h - one safetensors file: the header parsed and checked whole, the data mapped and
 * not touched. The checks are those of the reference reader, in its order, plus: duplicate names,
 * nesting and name length are limited. Source: https://github.com/huggingface/safetensors, format
 * description. Immutable once open: any thread. */
#ifndef SY_SAFETENSORS_H
#define SY_SAFETENSORS_H

#include "sy_dtype.h"
#include "sy_status.h"

#define SY_TENSOR_RANK_MAX 8
#define SY_TENSOR_NAME_MAX 512
#define SY_ST_HEADER_MAX   100000000ull /* bytes, as the reference reader has it */

/* Every type of the format, so that a file with other types still opens; dtype is SY_DTYPE_NONE for
 * those that no kernel reads yet. */
typedef struct sy_tensor {
    const char *name;       /* NUL-terminated, lives as long as the file */
    const char *dtype_name; /* "BF16", "F8_E4M3", ...: static */
    sy_dtype dtype;
    uint32_t rank;
    uint64_t shape[SY_TENSOR_RANK_MAX];
    uint64_t n_elements;
    const uint8_t *data; /* inside the map; any alignment; lives as long as the file */
    uint64_t bytes;
} sy_tensor;

typedef struct sy_safetensors sy_safetensors;

/* SY_EINVAL with the rule that is broken and the tensor's name, SY_ENOTFOUND, SY_EIO, SY_ENOMEM. */
SY_MUST_USE sy_status sy_safetensors_open(sy_safetensors **out, const char *path, sy_error *err);
void sy_safetensors_close(sy_safetensors *file); /* accepts NULL */
size_t sy_safetensors_count(const sy_safetensors *file);
const sy_tensor *sy_safetensors_at(const sy_safetensors *file, size_t i); /* in file order */
const sy_tensor *sy_safetensors_find(const sy_safetensors *file, const char *name); /* NULL: none */

/* The tensor's bytes have been copied elsewhere: its whole pages leave this process's memory, and
 * come back from the file if they are read again. Any thread. */
void sy_tensor_release(const sy_tensor *tensor);
/* The same for bytes [begin, end) of it, as far as they are whole pages. */
void sy_tensor_release_part(const sy_tensor *tensor, uint64_t begin, uint64_t end);

/* Writes a file in the reference writer's order (widest type first, then name). Fill is called once
 * a tensor, in that order, to append its bytes in pieces. */
typedef struct sy_st_entry {
    const char *name;
    sy_dtype dtype;
    uint32_t rank;
    uint64_t shape[SY_TENSOR_RANK_MAX];
} sy_st_entry;
typedef sy_status (*sy_st_emit)(void *sink, const void *data, size_t n);
SY_MUST_USE sy_status sy_safetensors_write(const char *path, const sy_st_entry *entries, size_t n,
                                           sy_status (*fill)(void *arg, size_t entry,
                                                             sy_st_emit emit, void *sink),
                                           void *arg, sy_error *err);

#endif
