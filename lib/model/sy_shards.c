/* sy_shards.c - which files a checkpoint consists of, and all their tensors under one index. Names
 * of files come from the index alone; a name that could leave the directory is refused. Symbolic
 * links are followed: Hugging Face's cache is made of them. */
#include "sy_shards.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "sy_checkpoint_file.h"
#include "sy_file.h"
#include "sy_json_load.h"

#define SINGLE_NAME      "model.safetensors"
#define INDEX_NAME       "model.safetensors.index.json"
#define INDEX_BYTES_MAX  ((size_t)256 << 20)
#define INDEX_VALUES_MAX ((size_t)4000000)

static sy_status add_file(sy_shards *self, const char *dir, const char *name, sy_error *err)
{
    char path[PATH_MAX];
    sy_status st = sy_checkpoint_path(path, dir, name, err);

    if (st != SY_OK) return st;
    st = sy_safetensors_open(&self->file[self->n_files], path, err);
    if (st != SY_OK) return st;
    self->file_name[self->n_files] = strdup(name);
    self->n_files++;
    if (self->file_name[self->n_files - 1] == NULL) {
        return sy_error_set(err, SY_ENOMEM, "%s: no memory", path);
    }
    self->n_tensors += sy_safetensors_count(self->file[self->n_files - 1]);
    return SY_OK;
}

static sy_status reserve_files(sy_shards *self, size_t n, sy_error *err)
{
    self->file = calloc(n + 1, sizeof(*self->file));
    self->file_name = calloc(n + 1, sizeof(*self->file_name));
    if (self->file != NULL && self->file_name != NULL) return SY_OK;
    return sy_error_set(err, SY_ENOMEM, "no memory for %zu shards", n);
}

static sy_status check_shard_name(const char *tensor, const json_t *file, sy_error *err)
{
    const char *name = json_string_value(file);

    if (name == NULL) {
        return sy_error_set(err, SY_EINVAL,
                            "weight_map holds %s, where a file's name is needed, "
                            "for tensor \"%s\"",
                            sy_json_kind(file), tensor);
    }
    if (name[0] == '\0' || strchr(name, '/') != NULL || strchr(name, '\\') != NULL ||
        strstr(name, "..") != NULL) {
        return sy_error_set(err, SY_EINVAL,
                            "weight_map names the file \"%.160s\": a shard must lie in the "
                            "checkpoint's own directory",
                            name);
    }
    return SY_OK;
}

/* *names: a new reference to an object whose keys are the shards, in order of first mention. */
static sy_status collect_shards(json_t **names, json_t *weight_map, sy_error *err)
{
    const char *tensor;
    json_t *file;

    *names = json_object();
    if (*names == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the index");
    json_object_foreach(weight_map, tensor, file)
    {
        const sy_status st = check_shard_name(tensor, file, err);

        if (st != SY_OK) return st;
        if (json_object_set_new(*names, json_string_value(file), json_true()) != 0) {
            return sy_error_set(err, SY_ENOMEM, "no memory for the index");
        }
        if (json_object_size(*names) > SY_SHARDS_MAX) {
            return sy_error_set(err, SY_ELIMIT, "weight_map names more than %u files",
                                SY_SHARDS_MAX);
        }
    }
    return SY_OK;
}

static int order_by_name(const void *a, const void *b)
{
    const sy_shard_tensor *x = a;
    const sy_shard_tensor *y = b;

    return strcmp(x->tensor->name, y->tensor->name);
}

static sy_status merge_tensors(sy_shards *self, sy_error *err)
{
    size_t n = 0;

    self->tensors = calloc(self->n_tensors + 1, sizeof(*self->tensors));
    if (self->tensors == NULL) {
        return sy_error_set(err, SY_ENOMEM, "no memory for %zu tensors", self->n_tensors);
    }
    for (size_t f = 0; f < self->n_files; f++) {
        for (size_t i = 0; i < sy_safetensors_count(self->file[f]); i++) {
            self->tensors[n++] = (sy_shard_tensor){.tensor = sy_safetensors_at(self->file[f], i),
                                                   .shard = (uint32_t)f};
        }
    }
    qsort(self->tensors, n, sizeof(*self->tensors), order_by_name);
    for (size_t i = 1; i < n; i++) {
        if (order_by_name(&self->tensors[i - 1], &self->tensors[i]) == 0) {
            return sy_error_set(err, SY_EINVAL, "%s and %s both hold the tensor \"%s\"",
                                self->file_name[self->tensors[i - 1].shard],
                                self->file_name[self->tensors[i].shard],
                                self->tensors[i].tensor->name);
        }
    }
    return SY_OK;
}

/* Every tensor must be where the index says, and the index must know every tensor. */
static sy_status check_index(const sy_shards *self, json_t *weight_map, sy_error *err)
{
    const char *name;
    json_t *file;

    for (size_t i = 0; i < self->n_tensors; i++) {
        const sy_shard_tensor *item = &self->tensors[i];
        const char *mapped = json_string_value(json_object_get(weight_map, item->tensor->name));

        if (mapped == NULL || strcmp(mapped, self->file_name[item->shard]) != 0) {
            return sy_error_set(err, SY_EINVAL,
                                "%.160s holds a tensor that weight_map has %s%.160s: "
                                "\"%s\"",
                                self->file_name[item->shard], mapped == NULL ? "not" : "in ",
                                mapped == NULL ? "" : mapped, item->tensor->name);
        }
    }
    json_object_foreach(weight_map, name, file)
    {
        if (sy_shards_find(self, name) == self->n_tensors) {
            return sy_error_set(err, SY_EINVAL,
                                "%.160s lacks the tensor that weight_map has in it: "
                                "\"%s\"",
                                json_string_value(file), name);
        }
    }
    return SY_OK;
}

static sy_status open_indexed(sy_shards *self, const char *dir, const char *index_path,
                              sy_error *err)
{
    json_t *root = NULL;
    json_t *names = NULL;
    json_t *weight_map;
    const char *name;
    json_t *unused;
    sy_status st;

    SY_TRY(sy_json_load_file(&root, index_path, INDEX_BYTES_MAX, INDEX_VALUES_MAX, err));
    weight_map = json_object_get(root, "weight_map");
    if (!json_is_object(weight_map)) {
        st = sy_error_set(err, SY_EINVAL, "%s: weight_map is %s, where an object is needed",
                          index_path, sy_json_kind(weight_map));
        goto out;
    }
    st = collect_shards(&names, weight_map, err);
    if (st == SY_OK) st = reserve_files(self, json_object_size(names), err);
    if (st != SY_OK) {
        sy_error_prefix(err, "%s", index_path);
        goto out;
    }
    json_object_foreach(names, name, unused)
    {
        (void)unused;
        SY_TRY(add_file(self, dir, name, err));
    }
    st = merge_tensors(self, err);
    if (st == SY_OK) st = check_index(self, weight_map, err);
    if (st != SY_OK) sy_error_prefix(err, "%s", index_path);
out:
    json_decref(names);
    json_decref(root);
    return st;
}

sy_status sy_shards_open(sy_shards *out, const char *dir, sy_error *err)
{
    sy_shards self = {0};
    char single[PATH_MAX];
    char index[PATH_MAX];
    sy_status st;

    memset(out, 0, sizeof(*out));
    SY_TRY(sy_checkpoint_path(single, dir, SINGLE_NAME, err));
    SY_TRY(sy_checkpoint_path(index, dir, INDEX_NAME, err));
    if (sy_file_exists(single)) {
        SY_TRY(reserve_files(&self, 1, err));
        SY_TRY(add_file(&self, dir, SINGLE_NAME, err));
        SY_TRY(merge_tensors(&self, err));
    } else if (sy_file_exists(index)) {
        SY_TRY(open_indexed(&self, dir, index, err));
    } else {
        st = sy_error_set(err, SY_ENOTFOUND, "%s: holds neither %s nor %s", dir, SINGLE_NAME,
                          INDEX_NAME);
        goto out;
    }
    *out = self;
    self = (sy_shards){0};
out:
    sy_shards_close(&self);
    return st;
}

void sy_shards_close(sy_shards *shards)
{
    for (size_t i = 0; i < shards->n_files; i++) {
        sy_safetensors_close(shards->file[i]);
        free(shards->file_name[i]);
    }
    free(shards->file);
    free(shards->file_name);
    free(shards->tensors);
    memset(shards, 0, sizeof(*shards));
}

size_t sy_shards_find(const sy_shards *shards, const char *name)
{
    const sy_tensor wanted = {.name = name};
    const sy_shard_tensor key = {.tensor = &wanted};
    const sy_shard_tensor *found = shards->n_tensors == 0
                                       ? NULL
                                       : bsearch(&key, shards->tensors, shards->n_tensors,
                                                 sizeof(*shards->tensors), order_by_name);

    return found != NULL ? (size_t)(found - shards->tensors) : shards->n_tensors;
}
