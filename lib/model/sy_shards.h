/* sy_shards.h - the safetensors files of one checkpoint directory as one set of tensors. Private to
 * lib/model. */
#ifndef SY_SHARDS_H
#define SY_SHARDS_H

#include "sy_safetensors.h"

#define SY_SHARDS_MAX 4096u

typedef struct sy_shard_tensor {
    const sy_tensor *tensor; /* lives as long as the shards */
    uint32_t shard;          /* index into file and file_name */
} sy_shard_tensor;

typedef struct sy_shards {
    sy_safetensors **file;    /* [n_files] */
    char **file_name;         /* [n_files], without the directory */
    sy_shard_tensor *tensors; /* [n_tensors] sorted by name, each name once */
    size_t n_files, n_tensors;
} sy_shards;

/* dir/model.safetensors when there is one, else what dir/model.safetensors.index.json lists: index
 * and shards must agree on every tensor, and no shard may lie outside dir. On failure *out is
 * zeroed. */
SY_MUST_USE sy_status sy_shards_open(sy_shards *out, const char *dir, sy_error *err);
void sy_shards_close(sy_shards *shards); /* accepts zeroed ones */
/* The place in tensors; n_tensors when there is none of that name. */
size_t sy_shards_find(const sy_shards *shards, const char *name);

#endif
