/* up_cluster.c - names, paths and cluster.json. */
#include "up_cluster.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "sy_file.h"

#define DESCRIPTION_BYTES_MAX ((size_t)1 << 20)

const char *const up_stop_order[UP_TIERS] = {"aggregator", "router", "expert", "redis"};

void up_cluster_path(char out[UP_PATH_BYTES], const char *dir, const char *name, const char *suffix)
{
    snprintf(out, UP_PATH_BYTES, "%s/%s.%s", dir, name, suffix);
}

/* ---- the folder ---- */

/* The longest file that becomes a socket: "aggregator-12.sock". */
static size_t longest_socket_bytes(const up_size *size)
{
    char name[64];
    const uint32_t last = SY_MAX(size->aggregators, 1) - 1;

    return (size_t)snprintf(name, sizeof(name), "/aggregator-%u.sock", last);
}

sy_status up_cluster_set_dir(up_cluster *out, const char *dir, const up_size *size, sy_error *err)
{
    char real[PATH_MAX];
    const size_t room = UP_SOCKET_PATH_MAX - longest_socket_bytes(size);
    sy_status st;

    SY_TRY(sy_dir_make(dir, err));
    if (realpath(dir, real) == NULL) {
        return sy_error_set(err, SY_EIO, "--dir %s: %s", dir, strerrordesc_np(errno));
    }
    if (strlen(real) > room) {
        return sy_error_set(err, SY_EINVAL,
                            "--dir %s has %zu bytes, which is too long: it holds Unix sockets, "
                            "whose paths may have %d, so choose a folder of at most %zu bytes, "
                            "such as /tmp/NAME",
                            real, strlen(real), UP_SOCKET_PATH_MAX, room);
    }
    memcpy(out->dir, real, strlen(real) + 1);
out:
    return st;
}

static int has_suffix(const char *name, const char *suffix)
{
    const size_t n = strlen(name);
    const size_t n_suffix = strlen(suffix);

    return n > n_suffix && strcmp(name + n - n_suffix, suffix) == 0;
}

void up_cluster_clean(const char *dir)
{
    char path[UP_PATH_BYTES];
    DIR *entries = opendir(dir);
    const struct dirent *entry;
    struct stat info;

    up_cluster_path(path, dir, "cluster", "json");
    unlink(path);
    if (entries == NULL) return;
    while ((entry = readdir(entries)) != NULL) {
        if (!has_suffix(entry->d_name, ".sock") && !has_suffix(entry->d_name, ".http")) continue;
        if (fstatat(dirfd(entries), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISSOCK(info.st_mode)) {
            unlinkat(dirfd(entries), entry->d_name, 0);
        }
    }
    closedir(entries);
}

/* ---- the processes ---- */

static up_process *add_process(up_cluster *cluster, const char *tier)
{
    up_process *process = &cluster->process[cluster->n_processes++];

    SY_ASSERT(cluster->n_processes <= UP_PROCESSES_MAX);
    memset(process, 0, sizeof(*process));
    snprintf(process->tier, sizeof(process->tier), "%s", tier);
    return process;
}

static void set_address(char out[SY_ADDRESS_BYTES], const char *dir, const char *name,
                        const char *suffix)
{
    char path[UP_PATH_BYTES];

    up_cluster_path(path, dir, name, suffix);
    snprintf(out, SY_ADDRESS_BYTES, "unix:%.*s", UP_SOCKET_PATH_MAX, path);
}

/* The first aggregator's socket has no number: it is the one that clients are told. */
static void add_server(up_cluster *cluster, const char *tier, uint32_t id)
{
    up_process *process = add_process(cluster, tier);
    const int is_door = id == 0 && strcmp(tier, "aggregator") == 0;

    snprintf(process->name, sizeof(process->name), "%s-%u", tier, id);
    set_address(process->address, cluster->dir, is_door ? tier : process->name, "sock");
    set_address(process->http, cluster->dir, process->name, "http");
}

sy_status up_cluster_describe(up_cluster *cluster, const up_size *size, const char *redis,
                              sy_error *err)
{
    sy_redis_address address;
    sy_status st = SY_OK;

    cluster->n_processes = 0;
    cluster->owns_redis = redis == NULL;
    if (redis == NULL) {
        up_process *process = add_process(cluster, "redis");

        snprintf(process->name, sizeof(process->name), "redis");
        set_address(process->address, cluster->dir, process->name, "sock");
        snprintf(cluster->redis, sizeof(cluster->redis), "%s", process->address);
    } else {
        SY_TRY(sy_redis_address_parse(&address, redis, err));
        if (strlen(redis) >= sizeof(cluster->redis)) {
            return sy_error_set(err, SY_EINVAL, "--redis: an address of more than %zu bytes",
                                sizeof(cluster->redis) - 1);
        }
        memcpy(cluster->redis, redis, strlen(redis) + 1);
    }
    for (uint32_t i = 0; i < size->experts; i++) add_server(cluster, "expert", i);
    for (uint32_t i = 0; i < size->routers; i++) add_server(cluster, "router", i);
    for (uint32_t i = 0; i < size->aggregators; i++) add_server(cluster, "aggregator", i);
out:
    return st;
}

/* ---- cluster.json ---- */

sy_status up_cluster_save(const up_cluster *cluster, sy_error *err)
{
    char path[UP_PATH_BYTES];
    char moe_layers[SY_GRID_TEXT_BYTES];
    json_t *processes = json_array();
    json_t *root;
    char *text;
    mode_t mask;
    sy_status st;

    for (size_t i = 0; i < cluster->n_processes; i++) {
        const up_process *p = &cluster->process[i];

        json_array_append_new(processes,
                              json_pack("{s:s, s:s, s:s, s:s}", "name", p->name, "tier", p->tier,
                                        "address", p->address, "http", p->http));
    }
    sy_grid_format(moe_layers, sizeof(moe_layers), &cluster->grid);
    root =
        json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:b, s:o}", "model", cluster->model, "model_dir",
                  cluster->model_dir, "layers", (json_int_t)cluster->grid.layers, "experts",
                  (json_int_t)cluster->grid.experts, "moe_layers", moe_layers, "redis",
                  cluster->redis, "owns_redis", cluster->owns_redis, "processes", processes);
    text = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    if (text == NULL) {
        return sy_error_set(err, SY_EINVAL,
                            "cluster.json cannot be written: the model's name or folder is not "
                            "UTF-8, or there is no memory");
    }
    up_cluster_path(path, cluster->dir, "cluster", "json");
    mask = umask(077); /* the address of Redis may hold a password */
    st = sy_file_write_atomic(path, text, strlen(text), err);
    umask(mask);
    free(text);
    return st;
}

static int copy_text(char *out, size_t cap, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    if (text == NULL || strlen(text) >= cap) return 0;
    memcpy(out, text, strlen(text) + 1);
    return 1;
}

static int copy_count(uint32_t *out, const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    const json_int_t n = json_integer_value(value);

    if (!json_is_integer(value) || n < 0 || n > UINT32_MAX) return 0;
    *out = (uint32_t)n;
    return 1;
}

static int copy_grid(sy_grid *out, const json_t *object)
{
    const json_t *ranges = json_object_get(object, "moe_layers");

    if (!copy_count(&out->layers, object, "layers") ||
        !copy_count(&out->experts, object, "experts"))
        return 0;
    if (ranges == NULL) return 1; /* every layer has experts */
    return json_is_string(ranges) &&
           sy_grid_parse(out, json_string_value(ranges), json_string_length(ranges), NULL) == SY_OK;
}

static int take_description(up_cluster *out, const json_t *root)
{
    const json_t *processes = json_object_get(root, "processes");
    const size_t n = json_array_size(processes);

    if (n > UP_PROCESSES_MAX || !copy_text(out->model, sizeof(out->model), root, "model") ||
        !copy_text(out->model_dir, sizeof(out->model_dir), root, "model_dir") ||
        !copy_text(out->redis, sizeof(out->redis), root, "redis") || !copy_grid(&out->grid, root)) {
        return 0;
    }
    out->owns_redis = json_is_true(json_object_get(root, "owns_redis"));
    for (size_t i = 0; i < n; i++) {
        const json_t *from = json_array_get(processes, i);
        up_process *p = &out->process[out->n_processes++];

        if (!copy_text(p->name, sizeof(p->name), from, "name") ||
            !copy_text(p->tier, sizeof(p->tier), from, "tier") ||
            !copy_text(p->address, sizeof(p->address), from, "address") ||
            !copy_text(p->http, sizeof(p->http), from, "http")) {
            return 0;
        }
    }
    return 1;
}

sy_status up_cluster_load(up_cluster **out, const char *dir, sy_error *err)
{
    char real[PATH_MAX];
    char path[UP_PATH_BYTES];
    up_cluster *cluster = calloc(1, sizeof(*cluster));
    json_t *root = NULL;
    char *text = NULL;
    size_t n;
    sy_status st = SY_ENOTFOUND;

    *out = NULL;
    if (cluster == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for cluster.json");
    if (realpath(dir, real) != NULL && strlen(real) < sizeof(cluster->dir)) {
        memcpy(cluster->dir, real, strlen(real) + 1);
        up_cluster_path(path, cluster->dir, "cluster", "json");
        st = sy_file_read(&text, &n, path, DESCRIPTION_BYTES_MAX, err);
    }
    if (st == SY_ENOTFOUND) {
        sy_error_set(err, st,
                     "no cluster runs in %s: start one with switchyard up --model DIR --dir %s",
                     dir, dir);
        goto out;
    }
    if (st != SY_OK) goto out;
    root = json_loadb(text, n, 0, NULL);
    if (!take_description(cluster, root)) {
        st = sy_error_set(err, SY_EDATALOSS,
                          "%s is not what switchyard up writes: run switchyard down --dir %s, then "
                          "switchyard up again",
                          path, dir);
        goto out;
    }
    *out = cluster;
    cluster = NULL;
out:
    json_decref(root);
    free(text);
    free(cluster);
    return st;
}
