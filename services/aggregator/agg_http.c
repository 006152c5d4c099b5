/* agg_http.c - see agg_http.h. Numbers are read one by one while others write them: each is right,
 * together they are of about one moment. */
#include "agg_http.h"

#include <float.h>
#include <string.h>

#include "agg_targets.h"

static void put_string(sy_strbuf *body, const char *key, const char *value)
{
    sy_strbuf_printf(body, "\"%s\":", key);
    sy_strbuf_json_string(body, value, strlen(value));
}

static void put_model(sy_strbuf *body, const sy_model *model)
{
    sy_strbuf_puts(body, "{");
    put_string(body, "model", sy_model_name(model));
}

static const char *truth(int value)
{
    return value ? "true" : "false";
}

/* ---- /targets ---- */

static const agg_node *find_node(const agg_view *view, const char *name)
{
    for (uint32_t i = 0; i < view->n_nodes; i++)
        if (strcmp(view->node[i]->name, name) == 0) return view->node[i];
    return NULL;
}

/* JSON has no infinity, and what is not a number differs as much as can be. */
static double finite_diff(float diff)
{
    return diff <= FLT_MAX ? (double)diff : (double)FLT_MAX;
}

static void put_counters(sy_strbuf *body, const agg_target *t)
{
    sy_strbuf_printf(body, ",\"messages\":%llu,\"rows\":%llu,\"errors\":%llu,\"latency_us\":%llu",
                     (unsigned long long)atomic_load(&t->messages),
                     (unsigned long long)atomic_load(&t->rows),
                     (unsigned long long)atomic_load(&t->errors),
                     (unsigned long long)atomic_load(&t->latency_us));
    sy_strbuf_printf(body, ",\"compared_rows\":%llu,\"differing_rows\":%llu,\"max_diff\":%.9g}",
                     (unsigned long long)atomic_load(&t->compared_rows),
                     (unsigned long long)atomic_load(&t->differing_rows),
                     finite_diff(atomic_load(&t->max_diff)));
}

static void put_target(sy_strbuf *body, const agg_view *view, const agg_target *t)
{
    const agg_node *node = find_node(view, t->node);
    const uint32_t shard = t->layer * sy_snapshot_experts(view->snapshot) + t->expert;
    const uint8_t state = node == NULL ? SY_SHARD_ABSENT : atomic_load(&node->shard_state[shard]);
    const agg_refusal why = node == NULL ? AGG_FINE : agg_node_refusal(node, shard);

    sy_strbuf_printf(body, "{\"field\":\"%u/%u\",\"target\":\"%s/%s\",\"share\":%u,\"shadow\":%s",
                     t->layer, t->expert, t->node, t->device, atomic_load(&t->share),
                     truth(atomic_load(&t->shadow)));
    sy_strbuf_printf(body, ",\"any_weights\":%s,", truth(atomic_load(&t->any_weights)));
    put_string(body, "state", sy_shard_state_name((sy_shard_state)state));
    sy_strbuf_puts(body, ",");
    put_string(body, "refused", agg_refusal_text(why));
    put_counters(body, t);
}

static void put_targets(sy_strbuf *body, const agg_view *view, const sy_model *model)
{
    const size_t n = agg_targets_count(view->targets);

    put_model(body, model);
    if (view->snapshot == NULL)
        sy_strbuf_puts(body, ",\"hash\":null,\"targets\":[");
    else
        sy_strbuf_printf(body, ",\"hash\":\"%016llx\",\"targets\":[",
                         (unsigned long long)sy_snapshot_hash(view->snapshot));
    for (size_t i = 0; i < n; i++) {
        if (i > 0) sy_strbuf_puts(body, ",");
        put_target(body, view, agg_targets_at(view->targets, i));
    }
    sy_strbuf_puts(body, "]}\n");
}

/* ---- /load ---- */

static void put_load(sy_strbuf *body, agg_peers *peers, const sy_model *model)
{
    const sy_model_desc *desc = sy_model_describe(model);
    const sy_grid grid = sy_grid_of(desc->n_layers, desc->n_experts, desc->layer, SY_LAYER_DENSE);
    const size_t n = (size_t)desc->n_layers * desc->n_experts;
    char moe_layers[SY_GRID_TEXT_BYTES];
    _Atomic uint64_t *rows = agg_peers_rows(peers);

    sy_grid_format(moe_layers, sizeof(moe_layers), &grid);
    put_model(body, model);
    sy_strbuf_printf(
        body, ",\"layers\":%u,\"experts\":%u,\"moe_layers\":\"%s\",\"since_us\":%lld,\"rows\":[",
        desc->n_layers, desc->n_experts, moe_layers, (long long)agg_peers_since_us(peers));
    for (size_t i = 0; i < n; i++)
        sy_strbuf_printf(body, i == 0 ? "%llu" : ",%llu",
                         (unsigned long long)atomic_load_explicit(&rows[i], memory_order_relaxed));
    sy_strbuf_puts(body, "]}\n");
}

/* ---- /nodes ---- */

static uint32_t count_resident(const agg_node *node)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < node->n_shards; i++)
        n += atomic_load_explicit(&node->shard_state[i], memory_order_relaxed) == SY_SHARD_RESIDENT;
    return n;
}

/* By its own words; until it has said any, by its lease. */
static agg_refusal whole_refusal(const agg_node *node)
{
    const uint8_t why = atomic_load(&node->refused_whole);

    if (why != AGG_FINE || atomic_load(&node->known)) return (agg_refusal)why;
    return (agg_refusal)atomic_load(&node->refused_lease);
}

static void put_peer(sy_strbuf *body, const agg_node *node)
{
    sy_strbuf_puts(body, "{");
    put_string(body, "name", node->name);
    sy_strbuf_puts(body, ",");
    put_string(body, "address", node->address);
    sy_strbuf_printf(body, ",\"up\":%s,\"suspect\":%s,\"outstanding\":%zu",
                     truth(sy_peer_up(node->peer)), truth(agg_is_suspect(node)),
                     sy_peer_outstanding(node->peer));
}

static void put_node(sy_strbuf *body, const agg_node *node)
{
    put_peer(body, node);
    sy_strbuf_printf(body, ",\"known\":%s,", truth(atomic_load(&node->known)));
    put_string(body, "refused", agg_refusal_text(whole_refusal(node)));
    sy_strbuf_printf(body, ",\"resident\":%u,\"queue_length\":%u,\"shards_refused\":%u}",
                     count_resident(node), atomic_load(&node->queue_length),
                     atomic_load(&node->n_refused));
}

static void put_nodes(sy_strbuf *body, const agg_view *view)
{
    sy_strbuf_puts(body, "{\"nodes\":[");
    for (uint32_t i = 0; i < view->n_nodes; i++) {
        if (i > 0) sy_strbuf_puts(body, ",");
        put_node(body, view->node[i]);
    }
    sy_strbuf_puts(body, "],\"routers\":[");
    for (uint32_t i = 0; i < view->n_routers; i++) {
        if (i > 0) sy_strbuf_puts(body, ",");
        put_peer(body, view->router[i]);
        sy_strbuf_puts(body, "}");
    }
    sy_strbuf_puts(body, "]}\n");
}

int agg_http_get(agg_peers *peers, const sy_model *model, const char *path, sy_strbuf *body)
{
    agg_view *view;

    if (strcmp(path, "/load") == 0) {
        put_load(body, peers, model);
        return 1;
    }
    if (strcmp(path, "/targets") != 0 && strcmp(path, "/nodes") != 0) return 0;
    view = agg_peers_view(peers);
    if (path[1] == 't')
        put_targets(body, view, model);
    else
        put_nodes(body, view);
    agg_view_unref(view);
    return 1;
}
