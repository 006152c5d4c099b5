/* up_result.c - endpoints for programs and for people. */
#include "up_result.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "sy_log.h"
#include "tool_placement.h"
#include "up_view.h"

#define REDIS_US 5000000

static void read_hash(char out[20], const up_cluster *cluster)
{
    tool_redis *redis = NULL;
    sy_snapshot *snapshot = NULL;
    tool_hash hash = {0};
    sy_error err;
    sy_status st;

    out[0] = '\0';
    SY_TRY(tool_redis_open(&redis, cluster->redis, REDIS_US, &err));
    SY_TRY(tool_placement_read(&snapshot, &hash, redis, cluster->model, &cluster->grid, &err));
    snprintf(out, 20, "%016llx", (unsigned long long)sy_snapshot_hash(snapshot));
out:
    if (st != SY_OK) sy_log_error(SY_LOG_WARN, &err, "the placement cannot be read");
    sy_snapshot_unref(snapshot);
    tool_hash_free(&hash);
    tool_redis_close(redis);
}

void up_result_json(sy_strbuf *out, const up_cluster *cluster)
{
    json_t *aggregators = json_array();
    json_t *processes = json_array();
    char hash[20];
    json_t *root;
    char *text;

    for (size_t i = 0; i < cluster->n_processes; i++) {
        const up_process *p = &cluster->process[i];
        up_view view;

        up_view_take(&view, cluster, p, 1);
        json_array_append_new(processes, up_view_json(&view));
        if (strcmp(p->tier, "aggregator") == 0) {
            json_array_append_new(aggregators, json_string(p->address));
        }
    }
    read_hash(hash, cluster);
    root = json_pack("{s:s, s:s, s:s, s:o, s:o, s:s}", "model", cluster->model, "dir", cluster->dir,
                     "redis", cluster->redis, "aggregators", aggregators, "processes", processes,
                     "placement_hash", hash);
    text = json_dumps(root, JSON_INDENT(2));
    if (text != NULL) sy_strbuf_printf(out, "%s\n", text);
    free(text);
    json_decref(root);
}

void up_result_text(sy_strbuf *out, const up_cluster *cluster, int64_t took_us, int is_detached)
{
    const char *door = NULL;

    sy_strbuf_printf(out, "model %s is ready after %.1f s\n\n", cluster->model,
                     (double)took_us / 1e6);
    if (!cluster->owns_redis) sy_strbuf_puts(out, "  redis         as given\n");
    for (size_t i = 0; i < cluster->n_processes; i++) {
        const up_process *p = &cluster->process[i];

        sy_strbuf_printf(out, "  %-13s %s\n", p->name, p->address);
        if (door == NULL && strcmp(p->tier, "aggregator") == 0) door = p->address;
    }
    sy_strbuf_puts(out, "\n");
    if (door != NULL) {
        sy_strbuf_printf(out, "switchyard generate --target %s --prompt \"In the beginning\"\n",
                         door);
    }
    sy_strbuf_printf(out, "switchyard status --dir %s\n", cluster->dir);
    sy_strbuf_printf(out, "switchyard down --dir %s%s\n", cluster->dir,
                     is_detached ? "" : "    (or Ctrl-C here)");
}
