/* sy_safetensors.h - one safetensors file: the header parsed and checked whole, the data mapped and
 * not touched. The checks are those of the reference reader, in its order, plus: duplicate names,
 * nesting and name length are limited. Source: https://github.com/huggingface/safetensors, format
 * description. Immutable once open: any thread. */
#ifndef SY_SAFETENSORS_H
#define SY_SAFETENSORS_H

#include "sy_tensor.h"

#define SY_ST_HEADER_MAX 100000000ull /* bytes, as the reference reader has it */

typedef struct sy_safetensors sy_safetensors;

/* SY_EINVAL with the rule that is broken and the tensor's name, SY_ENOTFOUND, SY_EIO, SY_ENOMEM. */
SY_MUST_USE sy_status sy_safetensors_open(sy_safetensors **out, const char *path, sy_error *err);
void sy_safetensors_close(sy_safetensors *file); /* accepts NULL */
size_t sy_safetensors_count(const sy_safetensors *file);
const sy_tensor *sy_safetensors_at(const sy_safetensors *file, size_t i); /* in file order */
const sy_tensor *sy_safetensors_find(const sy_safetensors *file, const char *name); /* NULL: none */

/* Writes a file in the reference writer's order (widest type first, then name). Fill is called once
 * a tensor, in that order, to append its bytes in pieces. */
typedef struct sy_st_entry {
    const char *name;
    sy_dtype dtype;
    const char *dtype_name; /* "U8", "F8_E4M3", of the format's; NULL: dtype's */
    uint32_t rank;
    uint64_t shape[SY_TENSOR_RANK_MAX];
} sy_st_entry;
typedef sy_status (*sy_st_emit)(void *sink, const void *data, size_t n);
SY_MUST_USE sy_status sy_safetensors_write(const char *path, const sy_st_entry *entries, size_t n,
                                           sy_status (*fill)(void *arg, size_t entry,
                                                             sy_st_emit emit, void *sink),
                                           void *arg, sy_error *err);

#endif
