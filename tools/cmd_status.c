/* cmd_status.c - `switchyard status`: asks the processes of a local cluster, and Redis. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "commands.h"
#include "sy_args.h"
#include "tool_print.h"
#include "tool_redis.h"
#include "tool_report.h"
#include "up_pids.h"
#include "up_view.h"

#define REDIS_US 2000000

typedef struct status {
    up_cluster *cluster;
    pid_t supervisor; /* 0: dead */
    up_view *view;    /* [cluster->n_processes] */
    size_t n_ready;
    sy_member *node, *router;
    size_t n_nodes, n_routers;
    sy_error redis_error; /* why nodes and routers are not known */
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

static int print_json(const status *s)
{
    const up_cluster *c = s->cluster;
    json_t *processes = json_array();

    for (size_t i = 0; i < c->n_processes; i++) {
        json_array_append_new(processes, up_view_json(&s->view[i]));
    }
    return tool_json_print(json_pack(
        "{s:s, s:s, s:s, s:s, s:{s:I, s:s}, s:b, s:o, s:o, s:o, s:s, s:o}", "dir", c->dir, "model",
        c->model, "model_dir", c->model_dir, "redis", c->redis, "supervisor", "pid",
        (json_int_t)s->supervisor, "state", s->supervisor != 0 ? "running" : "dead", "ready",
        s->n_ready == c->n_processes, "processes", processes, "nodes",
        members_json(s->node, s->n_nodes), "routers", members_json(s->router, s->n_routers),
        "placement_hash", common_hash(s), "redis_error", text_of(s->redis_error.message)));
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

static void print_nodes(const status *s)
{
    if (s->redis_error.status != SY_OK) {
        printf("\nnodes: not known: %s\n", s->redis_error.message);
        return;
    }
    printf("\n%-14s  %-20s  %-16s  %s\n", "NODE", "DEVICES", "MODEL", "STATE");
    for (size_t i = 0; i < s->n_nodes; i++) {
        const sy_member *m = &s->node[i];

        printf("%-14s  %-20s  %-16s  %s\n", m->name, m->devices, m->model, m->state);
    }
    if (s->n_nodes == 0) printf("no node has a lease in Redis\n");
}

static void print_text(const status *s)
{
    const char *hash = common_hash(s);

    printf("model %s from %s\n", s->cluster->model, s->cluster->model_dir);
    if (s->supervisor != 0) {
        printf("supervisor: pid %d\n\n", (int)s->supervisor);
    } else {
        printf("supervisor: dead, so nothing is started again: switchyard down --dir %s, then "
               "switchyard up\n\n",
               s->cluster->dir);
    }
    print_processes(s);
    print_nodes(s);
    printf("\nplacement: %s%s\n",
           hash[0] != '\0' ? "the same in all servers, hash " : "not the same in all servers",
           hash);
    printf("%zu of %zu processes are ready\n", s->n_ready, s->cluster->n_processes);
}

int cmd_status(int argc, char **argv)
{
    static status s;
    const char *dir = NULL;
    int json = 0;
    const sy_arg args[] = {
        {"dir", "RUNDIR", "of the cluster (required)", SY_ARG_STRING, &dir, 0, 0},
        {"json", NULL, "print JSON", SY_ARG_FLAG, &json, 0, 0},
    };
    sy_error err;
    int code = 1;
    sy_status st;

    sy_error_clear(&err);
    st = sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                       "switchyard status --dir RUNDIR [options]\n\n"
                       "Processes, nodes and placement of a local cluster. The exit code is 0 when "
                       "every process is ready,\nelse 1.",
                       NULL, 0, NULL, &err);
    if (st == SY_OK && dir == NULL) st = sy_error_set(&err, SY_EINVAL, "--dir RUNDIR is required");
    if (st != SY_OK) return tool_usage_error(&err);
    st = ask(&s, dir, &err);
    if (st != SY_OK) {
        code = tool_fail(&err);
    } else if (json) {
        code = print_json(&s) != 0 || s.n_ready < s.cluster->n_processes;
    } else {
        print_text(&s);
        code = s.n_ready < s.cluster->n_processes;
    }
    free(s.cluster);
    free(s.view);
    free(s.node);
    free(s.router);
    return code;
}
