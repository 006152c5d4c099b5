/* up_view.c - probes and /proc. */
#include "up_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "sy_file.h"
#include "tool_http.h"
#include "tool_redis.h"
#include "tool_report.h"
#include "up_pids.h"

#define VIEW_US 2000000

static void copy_line(char *out, size_t cap, const char *text)
{
    snprintf(out, cap, "%.*s", (int)strcspn(text, "\r\n"), text);
}

static int probe_redis(char why[UP_WHY_BYTES], const char *url, int64_t timeout_us)
{
    tool_redis *redis;
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    SY_TRY(tool_redis_open(&redis, url, timeout_us, &err));
    st = tool_redis_ping(redis, &err);
    tool_redis_close(redis);
out:
    if (st != SY_OK) copy_line(why, UP_WHY_BYTES, err.message);
    return st == SY_OK;
}

int up_probe(char why[UP_WHY_BYTES], const up_cluster *cluster, const up_process *process,
             int64_t timeout_us)
{
    tool_http_reply reply;
    sy_error err;
    int is_ready;

    why[0] = '\0';
    if (process->http[0] == '\0') return probe_redis(why, cluster->redis, timeout_us);
    if (tool_http_get(&reply, process->http, "/readyz", timeout_us, &err) != SY_OK) {
        copy_line(why, UP_WHY_BYTES, err.message);
        return 0;
    }
    is_ready = reply.status == 200;
    if (!is_ready) copy_line(why, UP_WHY_BYTES, reply.body);
    tool_http_reply_free(&reply);
    return is_ready;
}

/* From the line `switchyard_placement_info{model="trio",hash="0123456789abcdef"} 1`. */
static void read_placement_hash(char out[20], const char *http)
{
    tool_http_reply reply;
    const char *line;
    const char *hash;

    if (tool_http_get(&reply, http, "/metrics", VIEW_US, NULL) != SY_OK) return;
    line = strstr(reply.body, "\nswitchyard_placement_info{");
    hash = line != NULL ? strstr(line, "hash=\"") : NULL;
    if (hash != NULL) {
        hash += strlen("hash=\"");
        snprintf(out, 20, "%.*s", (int)SY_MIN(strcspn(hash, "\"\n"), (size_t)16), hash);
    }
    tool_http_reply_free(&reply);
}

static uint64_t read_rss_bytes(pid_t pid)
{
    char path[64];
    char *text;
    size_t n;
    const char *resident;
    unsigned long long pages = 0;

    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    if (sy_file_read(&text, &n, path, 4096, NULL) != SY_OK) return 0;
    resident = strchr(text, ' '); /* the second number */
    if (resident != NULL) pages = strtoull(resident, NULL, 10);
    free(text);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

void up_view_take(up_view *out, const up_cluster *cluster, const up_process *process,
                  int is_supervised)
{
    memset(out, 0, sizeof(*out));
    out->process = process;
    out->pid = up_pid_of(cluster->dir, process->name);
    out->state = out->pid != 0 ? "running" : is_supervised ? "restarting" : "dead";
    if (out->pid == 0) {
        snprintf(out->why, sizeof(out->why), "it does not run: see %s/%s.log", cluster->dir,
                 process->name);
        return;
    }
    out->rss_bytes = read_rss_bytes(out->pid);
    out->ready = up_probe(out->why, cluster, process, VIEW_US);
    if (process->http[0] != '\0') read_placement_hash(out->placement_hash, process->http);
}

json_t *up_view_json(const up_view *view)
{
    const up_process *p = view->process;

    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:b, s:o, s:I, s:s}", "name", p->name, "tier",
                     p->tier, "pid", (json_int_t)view->pid, "address", p->address, "http", p->http,
                     "state", view->state, "ready", view->ready, "why",
                     tool_json_text(view->why, strlen(view->why)), "rss_bytes",
                     (json_int_t)view->rss_bytes, "placement_hash", view->placement_hash);
}
