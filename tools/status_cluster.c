/* status_cluster.c - see the header. */
#include "status_cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>
#include <jansson.h>

#include "fact_json.h"
#include "sy_clock.h"
#include "tool_print.h"
#include "tool_report.h"
#include "tool_text.h"

/* ---- asking ---- */

/* What an aggregator says of one node or router that is not as it should be; 0: all is well. */
static int find_doubt(status_doubt *out, const json_t *item, int is_node)
{
    char refused[FACT_TEXT_BYTES];

    fact_text(out->peer, sizeof(out->peer), item, "name");
    fact_text(refused, sizeof(refused), item, "refused");
    if (refused[0] != '\0') {
        snprintf(out->why, sizeof(out->why), "refused: %.170s", refused);
    } else if (fact_flag(item, "suspect")) {
        snprintf(out->why, sizeof(out->why),
                 "suspect: it failed lately, and others are asked first");
    } else if (!fact_flag(item, "up")) {
        snprintf(out->why, sizeof(out->why), "not connected");
    } else if (is_node && fact_count(item, "shards_refused") > 0) {
        snprintf(out->why, sizeof(out->why), "%llu of its shards are refused: not the same weights",
                 (unsigned long long)fact_count(item, "shards_refused"));
    } else {
        return 0;
    }
    return 1;
}

static void add_doubts(status_cluster *c, const char *aggregator, const json_t *list, int is_node)
{
    for (size_t i = 0; i < json_array_size(list) && c->n_doubts < STATUS_DOUBTS_MAX; i++) {
        status_doubt *doubt = &c->doubt[c->n_doubts];

        if (!find_doubt(doubt, json_array_get(list, i), is_node)) continue;
        snprintf(doubt->aggregator, sizeof(doubt->aggregator), "%s", aggregator);
        c->n_doubts++;
    }
}

static void ask_aggregators(status_cluster *c)
{
    for (size_t i = 0; i < c->facts.n; i++) {
        const fact_process *p = &c->facts.process[i];
        json_t *object = NULL;

        if (p->kind != SY_MEMBER_AGGREGATOR || !p->answers) continue;
        if (fact_get(&object, p->lease.http, "/nodes", NULL) == SY_OK) {
            add_doubts(c, p->lease.name, json_object_get(object, "nodes"), 1);
            add_doubts(c, p->lease.name, json_object_get(object, "routers"), 0);
        }
        json_decref(object);
    }
}

static void take_pairs(status_cluster *c, const redisReply *reply)
{
    for (size_t i = 0; i + 1 < reply->elements && c->n_pairs < STATUS_PAIRS_MAX; i += 2) {
        const redisReply *name = reply->element[i];
        const redisReply *value = reply->element[i + 1];
        status_pair *pair = &c->pair[c->n_pairs];

        if (name->type != REDIS_REPLY_STRING || value->type != REDIS_REPLY_STRING) continue;
        tool_text_show(pair->name, sizeof(pair->name), name->str, name->len);
        tool_text_show(pair->value, sizeof(pair->value), value->str, value->len);
        c->n_pairs++;
    }
}

/* A balancer that does not run is no failure, and neither is one that says nothing. */
static void ask_balancer(status_cluster *c, tool_redis *redis)
{
    redisReply *reply = NULL;

    if (tool_redis_ask(&reply, redis, 2, (const char *[]){"GET", "switchyard:balancer"}, NULL,
                       NULL) == SY_OK) {
        if (reply->type == REDIS_REPLY_STRING) {
            tool_text_show(c->balancer, sizeof(c->balancer), reply->str, reply->len);
        }
        freeReplyObject(reply);
    }
    if (tool_redis_ask(&reply, redis, 2, (const char *[]){"HGETALL", "switchyard:balancer:state"},
                       NULL, NULL) == SY_OK) {
        if (reply->type == REDIS_REPLY_ARRAY) take_pairs(c, reply);
        freeReplyObject(reply);
    }
}

static int is_well(const fact_process *p)
{
    return p->answers && strcmp(p->lease.state, "serving") == 0;
}

sy_status status_cluster_take(status_cluster *out, tool_redis *redis, const char *model,
                              sy_error *err)
{
    sy_status st;

    memset(out, 0, sizeof(*out));
    snprintf(out->model, sizeof(out->model), "%s", model);
    SY_TRY(facts_take(&out->facts, redis, model, FACT_PLACEMENT | FACT_SHARDS, err));
    SY_TRY(canary_list_read(&out->canaries, redis, model, err));
    ask_aggregators(out);
    ask_balancer(out, redis);
    for (size_t i = 0; i < out->facts.n; i++) out->n_well += is_well(&out->facts.process[i]);
out:
    return st;
}

void status_cluster_free(status_cluster *cluster)
{
    facts_free(&cluster->facts);
    canary_list_free(&cluster->canaries);
}

const char *status_cluster_hash(const status_cluster *cluster)
{
    const char *hash = NULL;

    for (size_t i = 0; i < cluster->facts.n; i++) {
        const fact_process *p = &cluster->facts.process[i];

        if (hash != NULL && strcmp(hash, p->hash) != 0) return "";
        hash = p->hash;
    }
    return hash != NULL ? hash : "";
}

/* ---- text ---- */

static void print_memory(const fact_process *p)
{
    for (size_t i = 0; i < p->shards.n_devices; i++) {
        const fact_device *d = &p->shards.device[i];
        char used[TOOL_SIZE_BYTES], most[TOOL_SIZE_BYTES];

        printf("%s%s %s", i > 0 ? ", " : "  ", d->name, tool_size(used, d->memory_bytes));
        if (d->memory_max_bytes > 0) printf(" of %s", tool_size(most, d->memory_max_bytes));
    }
}

static void print_nodes(const status_cluster *c)
{
    size_t n = 0;

    printf("\n%-14s  %-9s  %8s  %7s  %9s  %6s  %-16s  %-10s  %s\n", "NODE", "STATE", "RESIDENT",
           "LOADING", "LINGERING", "FAILED", "PLACEMENT", "DEVICES", "MEMORY");
    for (size_t i = 0; i < c->facts.n; i++) {
        const fact_process *p = &c->facts.process[i];
        const size_t *state = p->shards.n_in_state;

        if (p->kind != SY_MEMBER_NODE) continue;
        n++;
        if (p->has_shards) {
            printf("%-14s  %-9s  %8zu  %7zu  %9zu  %6zu  %-16s  %-10s", p->lease.name,
                   p->lease.state, state[SY_SHARD_RESIDENT],
                   state[SY_SHARD_LOADING] + state[SY_SHARD_VERIFYING], state[SY_SHARD_LINGERING],
                   state[SY_SHARD_FAILED], p->hash[0] != '\0' ? p->hash : "-", p->lease.devices);
            print_memory(p);
            printf("\n");
        } else {
            printf("%-14s  %-9s  %8s  %7s  %9s  %6s  %-16s  %-10s\n", p->lease.name, p->lease.state,
                   "?", "?", "?", "?", p->hash[0] != '\0' ? p->hash : "-", p->lease.devices);
            if (p->why[0] != '\0') printf("%-14s  %s\n", "", p->why);
        }
        printf("%-14s  %s\n", "", p->lease.address);
    }
    if (n == 0) printf("no node has a lease in Redis\n");
}

static void print_others(const status_cluster *c)
{
    printf("\n%-12s  %-16s  %-9s  %-16s  %s\n", "TIER", "NAME", "STATE", "PLACEMENT", "ADDRESS");
    for (size_t i = 0; i < c->facts.n; i++) {
        const fact_process *p = &c->facts.process[i];

        if (p->kind == SY_MEMBER_NODE) continue;
        printf("%-12s  %-16s  %-9s  %-16s  %s\n", fact_kind_name(p->kind), p->lease.name,
               p->lease.state, p->hash[0] != '\0' ? p->hash : "-", p->lease.address);
        if (!p->answers) printf("%-12s  %s\n", "", p->why);
    }
}

/* Processes by what they have in force, the way it matters while an edit spreads. */
static void print_hashes(const status_cluster *c)
{
    const char *hash = status_cluster_hash(c);

    if (hash[0] != '\0') {
        printf("\nplacement: the same in all servers, hash %s\n", hash);
        return;
    }
    printf("\nplacement: not the same in all servers:\n");
    for (size_t i = 0; i < c->facts.n; i++) {
        const fact_process *p = &c->facts.process[i];

        printf("  %s %s\n", p->hash[0] != '\0' ? p->hash : "none            ", p->lease.name);
    }
}

void status_cluster_print(const status_cluster *c)
{
    const int64_t now_us = sy_clock_wall_us();

    print_nodes(c);
    print_others(c);
    print_hashes(c);
    for (size_t i = 0; i < c->n_doubts; i++) {
        const status_doubt *d = &c->doubt[i];

        printf("%s%s of %s: %s\n", i == 0 ? "\n" : "", d->aggregator, d->peer, d->why);
    }
    for (size_t i = 0; i < c->canaries.n; i++) {
        const canary_state *s = &c->canaries.state[i];

        printf("canary of %s: %s, phase %s, %u %%, by %s%s\n", tool_shown(s->name),
               tool_shown(s->to), canary_phase_name(s->phase), s->share, tool_shown(s->author),
               canary_is_watched(s, now_us) ? "" : ", and nobody watches it");
    }
    printf("balancer: %s", c->balancer[0] != '\0' ? c->balancer : "none runs");
    for (size_t i = 0; i < c->n_pairs; i++) {
        printf("%s%s %s", i == 0 ? " (" : ", ", c->pair[i].name, c->pair[i].value);
    }
    printf("%s\n", c->n_pairs > 0 ? ")" : "");
}

/* ---- JSON ---- */

static json_t *text_of(const char *text)
{
    return tool_json_text(text, strlen(text));
}

static json_t *process_json(const fact_process *p)
{
    json_t *object =
        json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:o}", "tier", fact_kind_name(p->kind),
                  "name", text_of(p->lease.name), "address", text_of(p->lease.address), "http",
                  text_of(p->lease.http), "state", text_of(p->lease.state), "devices",
                  text_of(p->lease.devices), "answers", p->answers, "why", text_of(p->why), "hash",
                  text_of(p->hash));
    json_t *devices = json_array();

    for (int i = SY_SHARD_LOADING; p->has_shards && i < SY_N_SHARD_STATES; i++) {
        json_object_set_new(object, sy_shard_state_name((sy_shard_state)i),
                            json_integer((json_int_t)p->shards.n_in_state[i]));
    }
    for (size_t i = 0; i < p->shards.n_devices; i++) {
        const fact_device *d = &p->shards.device[i];

        json_array_append_new(devices,
                              json_pack("{s:o, s:I, s:I}", "device", text_of(d->name),
                                        "memory_bytes", (json_int_t)d->memory_bytes,
                                        "memory_max_bytes", (json_int_t)d->memory_max_bytes));
    }
    json_object_set_new(object, "memory", devices);
    return object;
}

json_t *status_cluster_json(const status_cluster *c)
{
    const int64_t now_us = sy_clock_wall_us();
    json_t *processes = json_array();
    json_t *doubts = json_array();
    json_t *canaries = json_array();
    json_t *balancer = json_object();

    for (size_t i = 0; i < c->facts.n; i++) {
        json_array_append_new(processes, process_json(&c->facts.process[i]));
    }
    for (size_t i = 0; i < c->n_doubts; i++) {
        json_array_append_new(
            doubts, json_pack("{s:o, s:o, s:o}", "aggregator", text_of(c->doubt[i].aggregator),
                              "peer", text_of(c->doubt[i].peer), "why", text_of(c->doubt[i].why)));
    }
    for (size_t i = 0; i < c->canaries.n; i++) {
        const canary_state *s = &c->canaries.state[i];

        json_array_append_new(canaries,
                              json_pack("{s:o, s:o, s:s, s:I, s:o, s:b}", "field", text_of(s->name),
                                        "to", text_of(s->to), "phase", canary_phase_name(s->phase),
                                        "share", (json_int_t)s->share, "author", text_of(s->author),
                                        "watched", canary_is_watched(s, now_us)));
    }
    json_object_set_new(balancer, "holder", text_of(c->balancer));
    for (size_t i = 0; i < c->n_pairs; i++) {
        json_object_set_new(balancer, c->pair[i].name, text_of(c->pair[i].value));
    }
    return json_pack("{s:o, s:s, s:I, s:o, s:o, s:o, s:o}", "model", text_of(c->model), "hash",
                     status_cluster_hash(c), "well", (json_int_t)c->n_well, "processes", processes,
                     "doubts", doubts, "canaries", canaries, "balancer", balancer);
}
