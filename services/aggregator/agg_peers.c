/* agg_peers.c - keeps the view of peers and placement. A mutex guards the pointer to the newest
 * view; a view itself never changes, so a layer call works on one consistent picture from beginning
 * to end. */
#include "agg_peers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "sy_clock.h"
#include "sy_log.h"

typedef struct agg_entry { /* a node and whether its lease is there */
    agg_node *node;
    int leased;
} agg_entry;

enum { MEMBERS_MAX = 256 };

struct agg_peers {
    sy_loop *loop;
    uint32_t layers, experts;
    size_t message_bytes_max;
    char model[SY_WIRE_NAME_MAX];
    uint64_t structure_hash;
    sy_frame watch_request;
    pthread_mutex_t mutex; /* guards view */
    agg_view *view;
    /* Control thread only. */
    agg_entry entry[2][MEMBERS_MAX]; /* [0] nodes, [1] routers */
    size_t n_entries[2];
    sy_snapshot *snapshot;
};

/* ---- one peer ---- */

static void node_forget_state(agg_node *node)
{
    atomic_store_explicit(&node->known, 0, memory_order_release);
    for (uint32_t i = 0; i < node->n_shards; i++)
        atomic_store_explicit(&node->shard_state[i], SY_SHARD_ABSENT, memory_order_relaxed);
}

static void on_state(void *ctx, sy_peer *peer, int up)
{
    agg_node *node = ctx;

    (void)peer;
    if (!up) node_forget_state(node);
}

static void on_watch(void *ctx, sy_peer *peer, sy_msg *msg)
{
    agg_node *node = ctx;
    agg_peers *peers = node->peers;
    sy_node_state state;
    sy_arena arena;
    sy_error err = {0};
    size_t n;
    const sy_iov *iov = sy_msg_iov(msg, &n);

    (void)peer;
    sy_arena_init(&arena, 64u << 20);
    if (sy_wire_node_state_decode(&state, &arena, iov, n, &err) != SY_OK) {
        sy_log_error(SY_LOG_WARN, &err, "%s sent a state that cannot be read", node->name);
    } else if (state.structure_hash != peers->structure_hash) {
        sy_log(SY_LOG_WARN,
               "%s holds a checkpoint of another structure than this one: it is not used",
               node->name);
        node_forget_state(node);
    } else {
        if (state.full) node_forget_state(node);
        for (uint32_t i = 0; i < state.n_shards; i++) {
            const sy_shard_info *shard = &state.shard[i];
            if (shard->layer >= peers->layers || shard->expert >= peers->experts) continue;
            atomic_store_explicit(&node->shard_state[shard->layer * peers->experts + shard->expert],
                                  (uint8_t)shard->state, memory_order_release);
        }
        atomic_store_explicit(&node->known, 1, memory_order_release);
    }
    sy_arena_free(&arena);
}

static void node_unref(agg_node *node)
{
    if (atomic_fetch_sub_explicit(&node->refs, 1, memory_order_acq_rel) != 1) return;
    sy_peer_close(node->peer);
    free(node->shard_state);
    free(node);
}

static agg_node *node_open(agg_peers *peers, sy_member_kind kind, const sy_member *member)
{
    const int expert = kind == SY_MEMBER_NODE;
    agg_node *node = calloc(1, sizeof(*node));
    sy_error err = {0};

    if (node == NULL) return NULL;
    node->peers = peers;
    atomic_init(&node->refs, 1);
    memcpy(node->name, member->name, sizeof(node->name));
    memcpy(node->address, member->address, sizeof(node->address));
    if (expert) {
        node->n_shards = peers->layers * peers->experts;
        node->shard_state = calloc(node->n_shards, sizeof(*node->shard_state));
        if (node->shard_state == NULL) {
            free(node);
            return NULL;
        }
    }
    const sy_peer_config config = {.name = node->name,
                                   .address = node->address,
                                   .stream_path = expert ? "/switchyard.v1.Expert/ComputeStream"
                                                         : "/switchyard.v1.Router/RouteStream",
                                   .watch_path = expert ? "/switchyard.v1.Expert/Watch" : NULL,
                                   .watch_request = peers->watch_request.piece[0].data,
                                   .watch_request_len = peers->watch_request.total_bytes,
                                   .message_bytes_max = peers->message_bytes_max,
                                   .reply_id = sy_wire_peek_id,
                                   .ctx = node,
                                   .on_state = on_state,
                                   .on_watch = on_watch};
    if (sy_peer_open(&node->peer, peers->loop, &config, &err) != SY_OK) {
        sy_log_error(SY_LOG_WARN, &err, "%s at %s cannot be used", node->name, node->address);
        free(node->shard_state);
        free(node);
        return NULL;
    }
    return node;
}

int agg_node_has(const agg_node *node, uint32_t shard)
{
    const uint8_t state = atomic_load_explicit(&node->shard_state[shard], memory_order_acquire);
    return (state == SY_SHARD_RESIDENT || state == SY_SHARD_LINGERING) && sy_peer_up(node->peer);
}

/* ---- views ---- */

void agg_view_unref(agg_view *view)
{
    if (view == NULL || atomic_fetch_sub_explicit(&view->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; i < view->n_nodes; i++) node_unref(view->node[i]);
    for (uint32_t i = 0; i < view->n_routers; i++) node_unref(view->router[i]);
    sy_snapshot_unref(view->snapshot);
    free(view->node);
    free(view->router);
    free(view->first_target);
    free(view->target_node);
    free(view);
}

agg_view *agg_peers_view(agg_peers *peers)
{
    pthread_mutex_lock(&peers->mutex);
    agg_view *view = peers->view;
    atomic_fetch_add_explicit(&view->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&peers->mutex);
    return view;
}

static int32_t find_node(const agg_view *view, const char *name)
{
    for (uint32_t i = 0; i < view->n_nodes; i++)
        if (strcmp(view->node[i]->name, name) == 0) return (int32_t)i;
    return -1;
}

/* The targets of every expert as indices into view->node. */
static sy_status resolve_targets(const agg_peers *peers, agg_view *view)
{
    const uint32_t shards = peers->layers * peers->experts;
    uint32_t n = 0;

    view->first_target = calloc(shards + 1, sizeof(*view->first_target));
    if (view->first_target == NULL) return SY_ENOMEM;
    for (uint32_t s = 0; view->snapshot != NULL && s < shards; s++) {
        const sy_target_list *list =
            sy_snapshot_targets(view->snapshot, s / peers->experts, s % peers->experts);
        n += list == NULL ? 0 : list->n;
        view->first_target[s + 1] = n;
    }
    view->target_node = calloc(SY_MAX(n, 1u), sizeof(*view->target_node));
    if (view->target_node == NULL) return SY_ENOMEM;
    for (uint32_t s = 0; n > 0 && s < shards; s++) {
        const sy_target_list *list =
            sy_snapshot_targets(view->snapshot, s / peers->experts, s % peers->experts);
        for (uint32_t i = 0; list != NULL && i < list->n; i++)
            view->target_node[view->first_target[s] + i] = find_node(view, list->target[i].node);
    }
    return SY_OK;
}

static agg_node **copy_nodes(const agg_peers *peers, int kind, uint32_t *n)
{
    agg_node **list = calloc(SY_MAX(peers->n_entries[kind], (size_t)1), sizeof(*list));

    *n = 0;
    if (list == NULL) return NULL;
    for (size_t i = 0; i < peers->n_entries[kind]; i++) {
        list[i] = peers->entry[kind][i].node;
        atomic_fetch_add_explicit(&list[i]->refs, 1, memory_order_relaxed);
    }
    *n = (uint32_t)peers->n_entries[kind];
    return list;
}

/* Makes and publishes the view of what is known now. Without memory the old view stays. */
static void publish(agg_peers *peers)
{
    agg_view *view = calloc(1, sizeof(*view)), *old;

    if (view == NULL) return;
    atomic_init(&view->refs, 1);
    view->snapshot = peers->snapshot == NULL ? NULL : sy_snapshot_ref(peers->snapshot);
    view->node = copy_nodes(peers, 0, &view->n_nodes);
    view->router = copy_nodes(peers, 1, &view->n_routers);
    if (view->node == NULL || view->router == NULL || resolve_targets(peers, view) != SY_OK) {
        sy_log(SY_LOG_ERROR, "no memory for a new view of the cluster: the old one stays");
        agg_view_unref(view);
        return;
    }
    pthread_mutex_lock(&peers->mutex);
    old = peers->view;
    peers->view = view;
    pthread_mutex_unlock(&peers->mutex);
    agg_view_unref(old);
}

/* ---- control thread ---- */

static void drop_entry(agg_peers *peers, int kind, size_t i)
{
    node_unref(peers->entry[kind][i].node);
    peers->entry[kind][i] = peers->entry[kind][--peers->n_entries[kind]];
}

void agg_peers_sweep(agg_peers *peers)
{
    int changed = 0;

    for (int kind = 0; kind < 2; kind++)
        for (size_t i = peers->n_entries[kind]; i-- > 0;) {
            const agg_entry *e = &peers->entry[kind][i];
            if (e->leased || sy_peer_up(e->node->peer)) continue;
            sy_log(SY_LOG_INFO, "%s at %s has left", e->node->name, e->node->address);
            drop_entry(peers, kind, i);
            changed = 1;
        }
    if (changed) publish(peers);
}

static agg_entry *find_entry(agg_peers *peers, int kind, const char *name)
{
    for (size_t i = 0; i < peers->n_entries[kind]; i++)
        if (strcmp(peers->entry[kind][i].node->name, name) == 0) return &peers->entry[kind][i];
    return NULL;
}

/* A member that is new, or came back at another address, gets a peer. */
static int take_member(agg_peers *peers, sy_member_kind kind, int list, const sy_member *member)
{
    agg_entry *entry = find_entry(peers, list, member->name);
    agg_node *node;

    if (strcmp(member->model, peers->model) != 0) return 0;
    if (entry != NULL && strcmp(entry->node->address, member->address) == 0) {
        entry->leased = 1;
        return 0;
    }
    if (entry == NULL && peers->n_entries[list] == MEMBERS_MAX) {
        sy_log(SY_LOG_WARN, "%s is ignored: %d peers of its kind are the limit", member->name,
               MEMBERS_MAX);
        return 0;
    }
    node = node_open(peers, kind, member);
    if (node == NULL) return 0;
    if (entry != NULL)
        node_unref(entry->node);
    else
        entry = &peers->entry[list][peers->n_entries[list]++];
    *entry = (agg_entry){node, 1};
    return 1;
}

void agg_peers_members(agg_peers *peers, sy_member_kind kind, const sy_member *member, size_t n)
{
    const int list = kind == SY_MEMBER_NODE ? 0 : 1;
    int changed = 0;

    if (kind == SY_MEMBER_AGGREGATOR) return;
    for (size_t i = 0; i < peers->n_entries[list]; i++) peers->entry[list][i].leased = 0;
    for (size_t i = 0; i < n; i++) changed |= take_member(peers, kind, list, &member[i]);
    if (changed) publish(peers);
    agg_peers_sweep(peers);
}

void agg_peers_placement(agg_peers *peers, sy_snapshot *snapshot)
{
    sy_snapshot_unref(peers->snapshot);
    peers->snapshot = sy_snapshot_ref(snapshot);
    publish(peers);
}

/* ---- open, close, readiness ---- */

sy_status agg_peers_open(agg_peers **out, const sy_model *model, size_t message_bytes_max,
                         sy_error *err)
{
    const sy_model_desc *desc = sy_model_describe(model);
    agg_peers *peers = calloc(1, sizeof(*peers));
    const sy_model_query query = {.model = sy_model_name(model)};
    sy_status st = SY_ENOMEM;

    *out = NULL;
    if (peers == NULL) return sy_error_set(err, st, "no memory for the peers");
    pthread_mutex_init(&peers->mutex, NULL);
    peers->layers = desc->n_layers;
    peers->experts = desc->n_experts;
    peers->message_bytes_max = message_bytes_max;
    peers->structure_hash = sy_model_structure_hash(model);
    strncpy(peers->model, sy_model_name(model), sizeof(peers->model) - 1);
    SY_TRY(sy_wire_model_query_encode(&peers->watch_request, &query, NULL));
    publish(peers);
    if (peers->view == NULL) {
        st = sy_error_set(err, SY_ENOMEM, "no memory for the peers");
        goto out;
    }
    *out = peers;
    peers = NULL;
out:
    agg_peers_close(peers);
    return st;
}

void agg_peers_set_loop(agg_peers *peers, sy_loop *loop)
{
    peers->loop = loop;
}

void agg_peers_close(agg_peers *peers)
{
    if (peers == NULL) return;
    for (int kind = 0; kind < 2; kind++)
        while (peers->n_entries[kind] > 0) drop_entry(peers, kind, 0);
    agg_view_unref(peers->view);
    sy_snapshot_unref(peers->snapshot);
    sy_frame_free(&peers->watch_request);
    pthread_mutex_destroy(&peers->mutex);
    free(peers);
}

static int any_up(agg_node *const *node, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (sy_peer_up(node[i]->peer)) return 1;
    return 0;
}

/* 1 when a wanted node, or failing that any node, has the shard. */
static int shard_served(const agg_view *view, uint32_t shard)
{
    for (uint32_t i = 0; i < view->n_nodes; i++)
        if (agg_node_has(view->node[i], shard)) return 1;
    return 0;
}

int agg_peers_ready(agg_peers *peers, int need_router, sy_strbuf *why)
{
    agg_view *view = agg_peers_view(peers);
    uint32_t missing = 0, first = 0, layer = 0, expert = 0;
    int ready = 0;

    for (uint32_t s = 0; s < peers->layers * peers->experts; s++)
        if (!shard_served(view, s) && missing++ == 0) first = s;
    if (view->snapshot == NULL)
        sy_strbuf_puts(why, "no placement has been read from Redis yet");
    else if (!sy_snapshot_complete(view->snapshot) &&
             sy_snapshot_missing(view->snapshot, &layer, &expert) > 0)
        sy_strbuf_printf(
            why, "placement names no node for layer %u expert %u; try: switchyard placement init",
            layer, expert);
    else if (need_router && !any_up(view->router, view->n_routers))
        sy_strbuf_puts(why, view->n_routers == 0 ? "no router has announced itself"
                                                 : "no router is reachable");
    else if (missing > 0)
        sy_strbuf_printf(
            why,
            "%u shards have no reachable node that holds them; the first is layer %u expert %u",
            missing, first / peers->experts, first % peers->experts);
    else
        ready = 1;
    agg_view_unref(view);
    return ready;
}
