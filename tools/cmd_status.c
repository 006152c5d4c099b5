/* cmd_status.c - `switchyard status`: asks the processes of a cluster, and Redis. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "commands.h"
#include "status_cluster.h"
#include "tool_place.h"
#include "tool_print.h"
#include "tool_report.h"
#include "tool_text.h"
#include "tool_watch.h"
#include "up_pids.h"
#include "up_view.h"

#define REDIS_US 2000000

typedef struct status_options {
    place_options where;
    int64_t interval_s;
    int json, watch;
} status_options;

typedef struct status {
    const status_options *options;
    up_cluster *cluster; /* of a local one; else NULL */
    pid_t supervisor;    /* 0: dead */
    up_view *view;       /* [cluster->n_processes] */
    size_t n_ready;
    sy_member *node, *router;
    size_t n_nodes, n_routers;
    sy_error redis_error; /* why nodes and routers are not known */
    status_cluster view_of_redis;
    int is_well; /* in the last look */
} status;

/* ---- asking ---- */

static void ask_redis(status *s)
{
    tool_redis *redis = NULL;
    sy_error *err = &s->redis_error;
    sy_status st;

    sy_error_clear(err);
    SY_TRY(tool_redis_open(&redis, s->cluster->redis, REDIS_US, err));
    SY_TRY(tool_redis_members(&s->node, &s->n_nodes, redis, SY_MEMBER_NODE, err));
    SY_TRY(tool_redis_members(&s->router, &s->n_routers, redis, SY_MEMBER_ROUTER, err));
    SY_TRY(status_cluster_take(&s->view_of_redis, redis, s->cluster->model, err));
out:
    tool_redis_close(redis);
}

static sy_status ask(status *s, const char *dir, sy_error *err)
{
    sy_status st;

    SY_TRY(up_cluster_load(&s->cluster, dir, err));
    s->supervisor = up_lock_holder(s->cluster->dir);
    s->view = calloc(s->cluster->n_processes + 1, sizeof(*s->view));
    if (s->view == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the status");
    for (size_t i = 0; i < s->cluster->n_processes; i++) {
        up_view_take(&s->view[i], s->cluster, &s->cluster->process[i], s->supervisor != 0);
        s->n_ready += (size_t)s->view[i].ready;
    }
    ask_redis(s);
out:
    return st;
}

/* The hash that all servers have in force; "": they differ, or one has none. */
static const char *common_hash(const status *s)
{
    const char *hash = NULL;

    for (size_t i = 0; i < s->cluster->n_processes; i++) {
        const up_view *view = &s->view[i];

        if (view->process->http[0] == '\0') continue;
        if (hash != NULL && strcmp(hash, view->placement_hash) != 0) return "";
        hash = view->placement_hash;
    }
    return hash != NULL ? hash : "";
}

/* ---- JSON ---- */

static json_t *text_of(const char *text)
{
    return tool_json_text(text, strlen(text));
}

static json_t *devices_json(const char *devices)
{
    json_t *list = json_array();

    for (const char *at = devices + strspn(devices, " "); *at != '\0'; at += strspn(at, " ")) {
        const size_t n = strcspn(at, " ");

        json_array_append_new(list, tool_json_text(at, n));
        at += n;
    }
    return list;
}

static json_t *members_json(const sy_member *member, size_t n)
{
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++) {
        const sy_member *m = &member[i];

        json_array_append_new(list,
                              json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I}", "name",
                                        text_of(m->name), "address", text_of(m->address), "http",
                                        text_of(m->http), "model", text_of(m->model), "devices",
                                        devices_json(m->devices), "state", text_of(m->state),
                                        "version", text_of(m->version), "pid", (json_int_t)m->pid));
    }
    return list;
}

static int print_value(const status *s, json_t *value)
{
    return s->options->watch ? tool_json_print_line(value) : tool_json_print(value);
}

static int print_json(const status *s)
{
    const up_cluster *c = s->cluster;
    json_t *processes = json_array();

    for (size_t i = 0; i < c->n_processes; i++) {
        json_array_append_new(processes, up_view_json(&s->view[i]));
    }
    json_t *value = json_pack(
        "{s:s, s:s, s:s, s:s, s:{s:I, s:s}, s:b, s:o, s:o, s:o, s:s, s:o, s:o}", "dir", c->dir,
        "model", c->model, "model_dir", c->model_dir, "redis", c->redis, "supervisor", "pid",
        (json_int_t)s->supervisor, "state", s->supervisor != 0 ? "running" : "dead", "ready",
        s->n_ready == c->n_processes, "processes", processes, "nodes",
        members_json(s->node, s->n_nodes), "routers", members_json(s->router, s->n_routers),
        "placement_hash", common_hash(s), "redis_error", text_of(s->redis_error.message), "cluster",
        status_cluster_json(&s->view_of_redis));

    return print_value(s, value);
}

/* ---- text ---- */

static void print_processes(const status *s)
{
    printf("%-14s %8s  %-10s  %-5s  %7s  %-16s  %s\n", "PROCESS", "PID", "STATE", "READY", "RSS MB",
           "PLACEMENT", "ADDRESS");
    for (size_t i = 0; i < s->cluster->n_processes; i++) {
        const up_view *v = &s->view[i];

        printf("%-14s %8d  %-10s  %-5s  %7.1f  %-16s  %s\n", v->process->name, (int)v->pid,
               v->state, v->ready ? "yes" : "no", (double)v->rss_bytes / (1 << 20),
               v->placement_hash[0] != '\0' ? v->placement_hash : "-", v->process->address);
        if (!v->ready) printf("%-14s %s\n", "", v->why);
    }
}

static void print_cluster(const status *s)
{
    if (s->redis_error.status != SY_OK) {
        printf("\nnodes: not known: %s\n", tool_shown(s->redis_error.message));
    } else {
        status_cluster_print(&s->view_of_redis);
    }
}

static void print_text(const status *s)
{
    printf("model %s from %s\n", s->cluster->model, s->cluster->model_dir);
    if (s->supervisor != 0) {
        printf("supervisor: pid %d\n\n", (int)s->supervisor);
    } else {
        printf("supervisor: dead, so nothing is started again: switchyard down --dir %s, then "
               "switchyard up\n\n",
               s->cluster->dir);
    }
    print_processes(s);
    print_cluster(s);
    printf("%zu of %zu processes are ready\n", s->n_ready, s->cluster->n_processes);
}

/* ---- one look ---- */

static void forget(status *s)
{
    const status_options *options = s->options;

    free(s->cluster);
    free(s->view);
    free(s->node);
    free(s->router);
    status_cluster_free(&s->view_of_redis);
    memset(s, 0, sizeof(*s));
    s->options = options;
}

static sy_status show_local(status *s, sy_error *err)
{
    sy_status st;

    SY_TRY(ask(s, s->options->where.dir, err));
    s->is_well = s->n_ready == s->cluster->n_processes;
    if (s->options->json) {
        s->is_well = print_json(s) == 0 && s->is_well;
    } else {
        print_text(s);
    }
out:
    return st;
}

/* A cluster whose processes run anywhere: Redis and their HTTP ports are all there is. */
static sy_status show_remote(status *s, sy_error *err)
{
    status_cluster *c = &s->view_of_redis;
    place p = {0};
    sy_status st;

    SY_TRY(place_open(&p, &s->options->where, err));
    SY_TRY(status_cluster_take(c, p.redis, p.model, err));
    s->is_well = c->facts.n > 0 && c->n_well == c->facts.n;
    if (s->options->json) {
        s->is_well = print_value(s, status_cluster_json(c)) == 0 && s->is_well;
    } else {
        printf("model %s\n", tool_shown(p.model));
        status_cluster_print(c);
        printf("%zu of %zu processes serve and answer\n", c->n_well, c->facts.n);
    }
out:
    place_close(&p);
    return st;
}

static sy_status show(void *arg, sy_error *err)
{
    status *s = arg;

    forget(s);
    return s->options->where.dir != NULL ? show_local(s, err) : show_remote(s, err);
}

int cmd_status(int argc, char **argv)
{
    static status s;
    status_options o = {.interval_s = 2};
    const sy_arg args[] = {
        {"dir", "RUNDIR", "of a local cluster", SY_ARG_STRING, &o.where.dir, 0, 0},
        {"redis", "URL", "of a cluster whose processes run anywhere", SY_ARG_STRING, &o.where.redis,
         0, 0},
        {"model", "NAME", "with --redis: what the model is called; default: the only one",
         SY_ARG_STRING, &o.where.model, 0, 0},
        {"watch", NULL, "again and again, until Ctrl-C", SY_ARG_FLAG, &o.watch, 0, 0},
        {"interval-s", "S", "with --watch: how often", SY_ARG_INT, &o.interval_s, 1, 86400},
        {"json", NULL, "print JSON; with --watch one line each time", SY_ARG_FLAG, &o.json, 0, 0},
    };
    sy_error err;
    int code;
    sy_status st;

    sy_error_clear(&err);
    st = sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                       "switchyard status (--dir RUNDIR | --redis URL) [options]\n\n"
                       "Processes, nodes and their shards, placement, what aggregators think of "
                       "nodes, canaries, the\nbalancer. The exit code is 0 when every process is "
                       "ready, else 1.",
                       NULL, 0, NULL, &err);
    /* SWITCHYARD_REDIS may be in the environment of somebody who names a folder. */
    if (st == SY_OK && o.where.dir == NULL && o.where.redis == NULL) {
        st = sy_error_set(&err, SY_EINVAL, "--dir RUNDIR or --redis URL is required");
    }
    if (st != SY_OK) return tool_usage_error(&err);
    s.options = &o;
    if (o.watch) {
        code = tool_watch(show, &s, o.interval_s * 1000000, !o.json);
    } else if (show(&s, &err) != SY_OK) {
        code = tool_fail(&err);
    } else {
        code = tool_flush_stdout() != 0 || !s.is_well;
    }
    forget(&s);
    s.options = NULL;
    return code;
}
