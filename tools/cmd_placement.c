/* cmd_placement.c - `switchyard placement`: the table of its commands, init and show. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster_facts.h"
#include "commands.h"
#include "placement_commands.h"
#include "placement_show.h"
#include "tool_place.h"
#include "tool_placement.h"
#include "tool_print.h"
#include "tool_watch.h"

#define DEVICES_MAX 4096

typedef struct show_options {
    place_options where;
    const char *devices;
    int64_t layer, interval_s;
    int force, json, watch;
} show_options;

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

static sy_status init_placement(const place *p, const show_options *o, sy_error *err)
{
    static device_list devices;
    const tool_spread spread = {.model = p->model,
                                .grid = p->grid,
                                .device = devices.item,
                                .must_be_new = !o->force,
                                .reason = o->force ? "the default spread, by force"
                                                   : "the default spread",
                                .command = "switchyard placement init"};
    tool_spread filled = spread;
    sy_status st;

    if (p->grid.layers == 0 || p->grid.experts == 0) {
        return sy_error_set(err, SY_EINVAL,
                            "the dimensions of model %s are not known: give --model-dir DIR, or "
                            "--layers L --experts E (and --moe-layers, if some have none)",
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
        printf("model %s: %u experts of %u layers spread over %zu devices\n", p->model,
               p->grid.experts, sy_grid_moe_layers(&p->grid), devices.n);
    }
out:
    return st;
}

/* ---- show ---- */

static sy_status show_placement(const place *p, const show_options *o, sy_error *err)
{
    sy_snapshot *snapshot = NULL;
    tool_hash hash = {0};
    sy_grid grid = p->grid;
    sy_status st;

    if ((grid.layers == 0 || grid.experts == 0) && facts_grid(&grid, p->redis, p->model) != SY_OK) {
        grid = p->grid;
    }
    SY_TRY(tool_placement_read(&snapshot, &hash, p->redis, p->model, &grid, err));
    if (o->json) {
        if (placement_show_json(p->model, snapshot, &hash, o->watch) != 0) st = SY_EIO;
    } else {
        if (grid.layers == 0 || grid.experts == 0) {
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

static int run(const show_options *o,
               sy_status (*fn)(const place *p, const show_options *o, sy_error *err))
{
    place p = {0};
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    st = place_open(&p, &o->where, &err);
    if (st == SY_OK) st = fn(&p, o, &err);
    place_close(&p);
    if (st == SY_OK) return tool_flush_stdout();
    return err.status != SY_OK ? tool_fail(&err) : 1; /* without one, it has been told already */
}

static int cmd_init(int argc, char **argv)
{
    show_options o = {.layer = -1};
    const sy_arg args[] = {
        PLACE_ARGS(o.where),
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

typedef struct shower {
    const show_options *options;
    place p;
} shower;

static sy_status show_again(void *arg, sy_error *err)
{
    shower *s = arg;

    return show_placement(&s->p, s->options, err);
}

static int cmd_show(int argc, char **argv)
{
    show_options o = {.layer = -1, .interval_s = 2};
    const sy_arg args[] = {
        PLACE_ARGS(o.where),
        {"layer", "L", "only this layer, with its targets in full; -1: a table of all", SY_ARG_INT,
         &o.layer, -1, SY_LAYERS_MAX},
        {"watch", NULL, "again and again, until Ctrl-C", SY_ARG_FLAG, &o.watch, 0, 0},
        {"interval-s", "S", "with --watch: how often", SY_ARG_INT, &o.interval_s, 1, 86400},
        {"json", NULL, "print JSON; with --watch one line each time", SY_ARG_FLAG, &o.json, 0, 0},
    };
    shower s = {.options = &o};
    sy_error err;
    int code;

    sy_error_clear(&err);
    if (sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                      "switchyard placement show (--dir RUNDIR | --redis URL) [options]\n\n"
                      "What Redis asks for, resolved as a server that starts now resolves it.",
                      NULL, 0, NULL, &err) != SY_OK) {
        return tool_usage_error(&err);
    }
    if (!o.watch) return run(&o, show_placement);
    if (place_open(&s.p, &o.where, &err) != SY_OK) {
        code = tool_fail(&err);
    } else {
        code = tool_watch(show_again, &s, o.interval_s * 1000000, !o.json);
    }
    place_close(&s.p);
    return code;
}

static const struct placement_command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} placement_commands[] = {
    {"init", cmd_init, "write the default placement"},
    {"show", cmd_show, "what Redis asks for"},
    {"set", cmd_placement_set, "write fields, unless somebody else was first"},
    {"move", cmd_placement_move, "move experts from one device to another"},
    {"check", cmd_placement_check, "find what is wrong"},
    {"plan", cmd_placement_plan, "what edits in a file would do"},
    {"apply", cmd_placement_apply, "make them"},
    {"history", cmd_placement_history, "who changed what, when and why"},
    {"rollback", cmd_placement_rollback, "undo it"},
};

int cmd_placement(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < SY_COUNT_OF(placement_commands); i++) {
        if (strcmp(argv[1], placement_commands[i].name) == 0) {
            return placement_commands[i].run(argc - 1, argv + 1);
        }
    }
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        printf("usage: switchyard placement COMMAND (--dir RUNDIR | --redis URL) [options]\n\n");
        for (size_t i = 0; i < SY_COUNT_OF(placement_commands); i++) {
            printf("  %-9s %s\n", placement_commands[i].name, placement_commands[i].help);
        }
        printf("\n`switchyard placement COMMAND --help` tells a command's options.\n");
        return 0;
    }
    fprintf(stderr, "switchyard: error: placement needs a command, such as show or set; see "
                    "switchyard placement --help\n");
    return 2;
}
