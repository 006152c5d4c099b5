/* cluster_facts.c - see the header. */
#include "cluster_facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "fact_json.h"
#include "sy_model.h"
#include "tool_text.h"

#define SHARDS_MAX (SY_LAYERS_MAX * SY_EXPERTS_MAX)

const char *fact_kind_name(sy_member_kind kind)
{
    switch (kind) {
    case SY_MEMBER_NODE: return "expert";
    case SY_MEMBER_ROUTER: return "router";
    case SY_MEMBER_AGGREGATOR: break;
    }
    return "aggregator";
}

/* ---- answers ---- */

static void take_placement(fact_process *out, const json_t *object)
{
    fact_text(out->hash, sizeof(out->hash), object, "hash");
    out->refused = (int64_t)fact_count(object, "refused");
    out->missing = (int64_t)fact_count(object, "missing");
    out->answers = 1;
}

static sy_shard_state state_named(const char *name)
{
    for (int i = 0; i < SY_N_SHARD_STATES; i++) {
        if (strcmp(sy_shard_state_name((sy_shard_state)i), name) == 0) return (sy_shard_state)i;
    }
    return SY_SHARD_ABSENT;
}

static int take_shard(fact_shard *out, const json_t *item)
{
    const uint64_t layer = fact_count(item, "layer");
    const uint64_t expert = fact_count(item, "expert");
    char state[24];

    if (layer >= SY_LAYERS_MAX || expert >= SY_EXPERTS_MAX) return 0;
    memset(out, 0, sizeof(*out));
    out->layer = (uint32_t)layer;
    out->expert = (uint32_t)expert;
    fact_text(state, sizeof(state), item, "state");
    out->state = state_named(state);
    fact_text(out->device, sizeof(out->device), item, "device");
    out->wanted = fact_flag(item, "wanted");
    out->bytes = fact_count(item, "bytes");
    out->percent = (int)SY_MIN(fact_count(item, "percent"), (uint64_t)100);
    fact_text(out->reason, sizeof(out->reason), item, "reason");
    return 1;
}

static int by_place(const void *a, const void *b)
{
    const fact_shard *left = a;
    const fact_shard *right = b;

    if (left->layer != right->layer) return left->layer < right->layer ? -1 : 1;
    return (left->expert > right->expert) - (left->expert < right->expert);
}

static sy_status take_shards(fact_shards *out, const json_t *object)
{
    const json_t *devices = json_object_get(object, "devices");
    const json_t *shards = json_object_get(object, "shards");
    const size_t n = json_array_size(shards);

    memset(out, 0, sizeof(*out));
    if (!json_is_array(shards) || n > SHARDS_MAX) return SY_EDATALOSS;
    for (size_t i = 0; i < json_array_size(devices) && i < FACT_DEVICES_MAX; i++) {
        const json_t *item = json_array_get(devices, i);
        fact_device *device = &out->device[out->n_devices++];

        fact_text(device->name, sizeof(device->name), item, "device");
        device->memory_bytes = fact_count(item, "memory_bytes");
        device->memory_max_bytes = fact_count(item, "memory_max_bytes");
    }
    out->shard = calloc(n + 1, sizeof(*out->shard));
    if (out->shard == NULL) return SY_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        if (!take_shard(&out->shard[out->n], json_array_get(shards, i))) continue;
        out->n_in_state[out->shard[out->n].state]++;
        out->n++;
    }
    if (out->n > 1) qsort(out->shard, out->n, sizeof(*out->shard), by_place);
    return SY_OK;
}

sy_status fact_read_placement(fact_process *out, const char *json)
{
    json_t *object = json_loads(json, JSON_ALLOW_NUL, NULL);
    const int is_good = json_is_object(object);

    if (is_good) take_placement(out, object);
    json_decref(object);
    return is_good ? SY_OK : SY_EDATALOSS;
}

sy_status fact_read_shards(fact_shards *out, const char *json)
{
    json_t *object = json_loads(json, JSON_ALLOW_NUL, NULL);
    const sy_status st = take_shards(out, object);

    json_decref(object);
    return st;
}

/* ---- asking ---- */

static void ask_process(fact_process *p, unsigned what)
{
    json_t *object = NULL;
    sy_error err;

    sy_error_clear(&err);
    if ((what & FACT_PLACEMENT) != 0) {
        if (fact_get(&object, p->lease.http, "/placement", &err) == SY_OK) {
            take_placement(p, object);
        }
        json_decref(object);
        object = NULL;
    }
    if ((what & FACT_SHARDS) != 0 && p->kind == SY_MEMBER_NODE && err.status == SY_OK) {
        if (fact_get(&object, p->lease.http, "/shards", &err) == SY_OK) {
            p->has_shards = take_shards(&p->shards, object) == SY_OK;
        }
        json_decref(object);
        if (err.status == SY_OK && !p->has_shards) {
            sy_error_set(&err, SY_EDATALOSS, "GET /shards gives something else");
        }
    }
    tool_text_show(p->why, sizeof(p->why), err.message, strlen(err.message));
}

static sy_status add_kind(cluster_facts *facts, tool_redis *redis, const char *model,
                          sy_member_kind kind, sy_error *err)
{
    sy_member *member = NULL;
    fact_process *grown;
    size_t n;
    sy_status st;

    SY_TRY(tool_redis_members(&member, &n, redis, kind, err));
    grown = realloc(facts->process, (facts->n + n + 1) * sizeof(*grown));
    if (grown == NULL) {
        st = sy_error_set(err, SY_ENOMEM, "no memory for the processes");
        goto out;
    }
    facts->process = grown;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(member[i].model, model) != 0) continue;
        memset(&grown[facts->n], 0, sizeof(*grown));
        grown[facts->n].kind = kind;
        grown[facts->n++].lease = member[i];
    }
out:
    free(member);
    return st;
}

sy_status facts_take(cluster_facts *out, tool_redis *redis, const char *model, unsigned what,
                     sy_error *err)
{
    char shown[128]; /* leases' texts are escaped, so the name is compared escaped */
    sy_status st;

    memset(out, 0, sizeof(*out));
    tool_text_show(shown, sizeof(shown), model, strlen(model));
    SY_TRY(add_kind(out, redis, shown, SY_MEMBER_NODE, err));
    SY_TRY(add_kind(out, redis, shown, SY_MEMBER_ROUTER, err));
    SY_TRY(add_kind(out, redis, shown, SY_MEMBER_AGGREGATOR, err));
    for (size_t i = 0; i < out->n && what != 0; i++) ask_process(&out->process[i], what);
out:
    if (st != SY_OK) facts_free(out);
    return st;
}

void facts_free(cluster_facts *facts)
{
    for (size_t i = 0; i < facts->n; i++) free(facts->process[i].shards.shard);
    free(facts->process);
    memset(facts, 0, sizeof(*facts));
}

/* Processes that are older than layers without experts do not speak of them: then all have some. */
static sy_status take_grid(sy_grid *out, const json_t *object)
{
    const uint64_t layers = fact_count(object, "layers");
    const uint64_t experts = fact_count(object, "experts");
    const char *ranges = json_string_value(json_object_get(object, "moe_layers"));

    if (layers == 0 || layers > SY_LAYERS_MAX || experts == 0 || experts > SY_EXPERTS_MAX)
        return SY_EDATALOSS;
    *out = (sy_grid){.layers = (uint32_t)layers, .experts = (uint32_t)experts};
    if (ranges != NULL && sy_grid_parse(out, ranges, strlen(ranges), NULL) != SY_OK)
        return SY_EDATALOSS;
    return sy_grid_shards(out) > 0 ? SY_OK : SY_EDATALOSS;
}

sy_status fact_read_grid(sy_grid *out, const char *json)
{
    json_t *object = json_loads(json, JSON_ALLOW_NUL, NULL);
    const sy_status st = take_grid(out, object);

    json_decref(object);
    return st;
}

static sy_status ask_grid(sy_grid *out, const cluster_facts *facts, sy_member_kind kind,
                          const char *path)
{
    sy_status st = SY_ENOTFOUND;

    for (size_t i = 0; i < facts->n && st != SY_OK; i++) {
        json_t *object = NULL;

        if (facts->process[i].kind != kind) continue;
        if (fact_get(&object, facts->process[i].lease.http, path, NULL) == SY_OK)
            st = take_grid(out, object);
        json_decref(object);
    }
    return st;
}

sy_status facts_grid(sy_grid *out, tool_redis *redis, const char *model)
{
    cluster_facts facts;
    sy_status st;

    if (facts_take(&facts, redis, model, 0, NULL) != SY_OK) return SY_ENOTFOUND;
    st = ask_grid(out, &facts, SY_MEMBER_AGGREGATOR, "/load");
    if (st != SY_OK) st = ask_grid(out, &facts, SY_MEMBER_NODE, "/shards");
    facts_free(&facts);
    return st == SY_OK ? SY_OK : SY_ENOTFOUND;
}

/* ---- looking ---- */

const fact_process *facts_node(const cluster_facts *facts, const char *node)
{
    for (size_t i = 0; i < facts->n; i++) {
        const fact_process *p = &facts->process[i];

        if (p->kind == SY_MEMBER_NODE && strcmp(p->lease.name, node) == 0) return p;
    }
    return NULL;
}

const fact_shard *fact_find_shard(const fact_process *node, uint32_t layer, uint32_t expert)
{
    const fact_shard wanted = {.layer = layer, .expert = expert};

    if (node->shards.n == 0) return NULL;
    return bsearch(&wanted, node->shards.shard, node->shards.n, sizeof(wanted), by_place);
}

int fact_has_device(const fact_process *node, const char *device)
{
    static const char separators[] = " ,";
    const size_t n_device = strlen(device);

    for (const char *at = node->lease.devices; *at != '\0'; at += strspn(at, separators)) {
        const size_t n = strcspn(at, separators);

        if (n == n_device && memcmp(at, device, n) == 0) return 1;
        at += n;
    }
    return 0;
}

uint64_t facts_shard_bytes(const cluster_facts *facts)
{
    for (size_t i = 0; i < facts->n; i++) {
        for (size_t j = 0; j < facts->process[i].shards.n; j++) {
            const fact_shard *shard = &facts->process[i].shards.shard[j];

            if (shard->state == SY_SHARD_RESIDENT && shard->bytes > 0) return shard->bytes;
        }
    }
    return 0;
}
