/* cmd_placement.c - `switchyard placement init|show`: which expert is wanted where. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "placement_show.h"
#include "sy_args.h"
#include "sy_model.h"
#include "tool_placement.h"
#include "tool_print.h"
#include "up_cluster.h"

#define REDIS_US    5000000
#define DEVICES_MAX 4096

typedef struct place_options {
    const char *redis, *dir, *model, *model_dir, *devices;
    int64_t layers, experts, layer;
    int force, json;
} place_options;

/* The model and its Redis, wherever the options said to look for them. */
typedef struct place {
    tool_redis *redis;
    char model[SY_MODEL_NAME_MAX];
    uint32_t layers, experts; /* 0: not known */
} place;

/* ---- where ---- */

static sy_status look_at_checkpoint(place *p, const place_options *o, sy_error *err)
{
    sy_model *model = NULL;
    sy_status st;

    SY_TRY(sy_model_open(&model, o->model_dir, o->model, err));
    snprintf(p->model, sizeof(p->model), "%s", sy_model_name(model));
    p->layers = sy_model_describe(model)->n_layers;
    p->experts = sy_model_describe(model)->n_experts;
out:
    sy_model_close(model);
    return st;
}

/* Where nobody named the model, Redis knows it if there is only one. */
static sy_status look_in_redis(place *p, sy_error *err)
{
    tool_models models;
    sy_status st;

    SY_TRY(tool_redis_models(&models, p->redis, err));
    if (models.n == 0) {
        st = sy_error_set(err, SY_ENOTFOUND,
                          "no model has a placement in this Redis: name one with --model NAME");
    } else if (models.n > 1) {
        st = sy_error_set(err, SY_EINVAL,
                          "%zu models have a placement in this Redis, %s and %s among them: choose "
                          "one with --model NAME",
                          models.n, models.name[0], models.name[1]);
    } else {
        snprintf(p->model, sizeof(p->model), "%s", models.name[0]);
    }
out:
    return st;
}

/* What the command line says wins over the cluster's description. */
static sy_status open_place(place *p, const place_options *o, sy_error *err)
{
    up_cluster *cluster = NULL;
    const char *redis = o->redis;
    sy_status st;

    memset(p, 0, sizeof(*p));
    if (o->dir == NULL && o->redis == NULL) {
        return sy_error_set(err, SY_EINVAL,
                            "say where Redis is: --redis URL, or --dir RUNDIR of a local cluster");
    }
    if (o->model != NULL && strlen(o->model) >= sizeof(p->model)) {
        return sy_error_set(err, SY_EINVAL, "--model: a name of more than %zu bytes",
                            sizeof(p->model) - 1);
    }
    if (o->dir != NULL) {
        SY_TRY(up_cluster_load(&cluster, o->dir, err));
        redis = cluster->redis;
        memcpy(p->model, cluster->model, sizeof(p->model));
        p->layers = cluster->layers;
        p->experts = cluster->experts;
    }
    if (o->model_dir != NULL) {
        SY_TRY(look_at_checkpoint(p, o, err));
    } else if (o->model != NULL) {
        if (strcmp(p->model, o->model) != 0) p->layers = p->experts = 0;
        snprintf(p->model, sizeof(p->model), "%s", o->model);
    }
    if (o->layers > 0) p->layers = (uint32_t)o->layers;
    if (o->experts > 0) p->experts = (uint32_t)o->experts;
    SY_TRY(tool_redis_open(&p->redis, redis, REDIS_US, err));
    if (p->model[0] == '\0') SY_TRY(look_in_redis(p, err));
out:
    free(cluster);
    return st;
}

/* ---- init ---- */

typedef struct device_list {
    char text[DEVICES_MAX][SY_NODE_BYTES + SY_DEVICE_BYTES];
    const char *item[DEVICES_MAX];
    size_t n;
} device_list;

/* Adds the words of text, after "PREFIX/" where there is a prefix. */
static sy_status add_devices(device_list *list, const char *prefix, const char *text, sy_error *err)
{
    static const char separators[] = ", ";

    for (text += strspn(text, separators); *text != '\0'; text += strspn(text, separators)) {
        const size_t n = strcspn(text, separators);
        char *to = list->text[list->n];
        int len;

        if (list->n == DEVICES_MAX) {
            return sy_error_set(err, SY_ELIMIT, "more than %d devices", DEVICES_MAX);
        }
        len = snprintf(to, sizeof(list->text[0]), "%s%s%.*s", prefix, *prefix != '\0' ? "/" : "",
                       (int)SY_MIN(n, sizeof(list->text[0])), text);
        if ((size_t)len >= sizeof(list->text[0])) {
            return sy_error_set(err, SY_EINVAL, "device %s...: too long", to);
        }
        list->item[list->n++] = to;
        text += n;
    }
    return SY_OK;
}

static sy_status add_leased_devices(device_list *list, const place *p, sy_error *err)
{
    sy_member *node = NULL;
    size_t n_nodes;
    sy_status st;

    SY_TRY(tool_redis_members(&node, &n_nodes, p->redis, SY_MEMBER_NODE, err));
    for (size_t i = 0; i < n_nodes; i++) {
        if (strcmp(node[i].model, p->model) != 0) continue;
        SY_TRY(add_devices(list, node[i].name, node[i].devices, err));
    }
    if (list->n == 0) {
        st = sy_error_set(err, SY_ENOTFOUND,
                          "no expert node of model %s has a lease in Redis: start nodes first, or "
                          "name the devices: --devices expert-0/cpu:0,expert-1/cpu:0",
                          p->model);
    }
out:
    free(node);
    return st;
}

static sy_status init_placement(const place *p, const place_options *o, sy_error *err)
{
    static device_list devices;
    const tool_spread spread = {.model = p->model,
                                .layers = p->layers,
                                .experts = p->experts,
                                .device = devices.item,
                                .must_be_new = !o->force,
                                .reason = o->force ? "the default spread, by force"
                                                   : "the default spread",
                                .command = "switchyard placement init"};
    tool_spread filled = spread;
    sy_status st;

    if (p->layers == 0 || p->experts == 0) {
        return sy_error_set(err, SY_EINVAL,
                            "the dimensions of model %s are not known: give --model-dir DIR, or "
                            "--layers L --experts E",
                            p->model);
    }
    if (o->devices != NULL) {
        SY_TRY(add_devices(&devices, "", o->devices, err));
    } else {
        SY_TRY(add_leased_devices(&devices, p, err));
    }
    filled.n_devices = devices.n;
    st = tool_placement_init(p->redis, &filled, err);
    if (st == SY_EEXISTS) {
        sy_error_set(err, st,
                     "model %s has a placement already, and it stays as it is: look at it with "
                     "switchyard placement show, or replace all of it with --force",
                     p->model);
    }
    if (st == SY_OK) {
        printf("model %s: %u experts of %u layers spread over %zu devices\n", p->model, p->experts,
               p->layers, devices.n);
    }
out:
    return st;
}

/* ---- show ---- */

static sy_status show_placement(const place *p, const place_options *o, sy_error *err)
{
    sy_snapshot *snapshot = NULL;
    tool_hash hash = {0};
    sy_status st;

    SY_TRY(tool_placement_read(&snapshot, &hash, p->redis, p->model, p->layers, p->experts, err));
    if (o->json) {
        if (placement_show_json(p->model, snapshot, &hash) != 0) st = SY_EIO;
    } else {
        if (p->layers == 0 || p->experts == 0) {
            printf("the model's dimensions are not known: they are taken from the fields\n");
        }
        st = placement_show_text(p->model, snapshot, o->layer, err);
    }
out:
    sy_snapshot_unref(snapshot);
    tool_hash_free(&hash);
    return st;
}

/* ---- command lines ---- */

#define WHERE(o)                                                                                 \
    {"dir", "RUNDIR", "of a local cluster", SY_ARG_STRING, &(o).dir, 0, 0},                      \
        {"redis", "URL", "where Redis is, if not in a local cluster", SY_ARG_STRING, &(o).redis, \
         0,       0},                                                                            \
        {"model",                                                                                \
         "NAME",                                                                                 \
         "what the model is called; default: the cluster's, or the only one",                    \
         SY_ARG_STRING,                                                                          \
         &(o).model,                                                                             \
         0,                                                                                      \
         0},                                                                                     \
        {"model-dir",                                                                            \
         "DIR",                                                                                  \
         "its checkpoint, which knows its dimensions",                                           \
         SY_ARG_STRING,                                                                          \
         &(o).model_dir,                                                                         \
         0,                                                                                      \
         0},                                                                                     \
        {"layers",     "L",         "its dimensions, where no checkpoint is at hand",            \
         SY_ARG_INT,   &(o).layers, 0,                                                           \
         SY_LAYERS_MAX},                                                                         \
    {                                                                                            \
        "experts", "E", "of a layer", SY_ARG_INT, &(o).experts, 0, SY_EXPERTS_MAX                \
    }

static int run(const place_options *o,
               sy_status (*fn)(const place *p, const place_options *o, sy_error *err))
{
    place p;
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    st = open_place(&p, o, &err);
    if (st == SY_OK) st = fn(&p, o, &err);
    tool_redis_close(p.redis);
    return st == SY_OK ? tool_flush_stdout() : tool_fail(&err);
}

static int cmd_init(int argc, char **argv)
{
    place_options o = {.layer = -1};
    const sy_arg args[] = {
        WHERE(o),
        {"devices", "LIST", "expert-0/cpu:0,expert-1/cpu:0; default: all that nodes announce",
         SY_ARG_STRING, &o.devices, 0, 0},
        {"force", NULL, "replace a placement that is there", SY_ARG_FLAG, &o.force, 0, 0},
    };
    sy_error err;

    sy_error_clear(&err);
    if (sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                      "switchyard placement init (--dir RUNDIR | --redis URL) [options]\n\n"
                      "Writes the default placement: experts spread evenly over the devices.",
                      NULL, 0, NULL, &err) != SY_OK) {
        return tool_usage_error(&err);
    }
    return run(&o, init_placement);
}

static int cmd_show(int argc, char **argv)
{
    place_options o = {.layer = -1};
    const sy_arg args[] = {
        WHERE(o),
        {"layer", "L", "only this layer, with its targets in full; -1: a table of all", SY_ARG_INT,
         &o.layer, -1, SY_LAYERS_MAX},
        {"json", NULL, "print JSON", SY_ARG_FLAG, &o.json, 0, 0},
    };
    sy_error err;

    sy_error_clear(&err);
    if (sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                      "switchyard placement show (--dir RUNDIR | --redis URL) [options]\n\n"
                      "What Redis asks for, resolved as a server that starts now resolves it.",
                      NULL, 0, NULL, &err) != SY_OK) {
        return tool_usage_error(&err);
    }
    return run(&o, show_placement);
}

int cmd_placement(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "init") == 0) return cmd_init(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "show") == 0) return cmd_show(argc - 1, argv + 1);
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        printf("usage: switchyard placement init|show (--dir RUNDIR | --redis URL) [options]\n\n"
               "  init  write the default placement\n"
               "  show  what Redis asks for\n\n"
               "`switchyard placement init --help` tells the options.\n");
        return 0;
    }
    fprintf(stderr, "switchyard: error: placement needs init or show; see switchyard placement "
                    "--help\n");
    return 2;
}
