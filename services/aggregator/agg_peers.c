/* agg_peers.c - who is in the cluster, and the view of that and of placement. A mutex guards the
 * pointer to the newest view; a view itself never changes, so a layer call works on one consistent
 * picture from beginning to end. */
#include <stdlib.h>
#include <string.h>

#include "agg_peers_internal.h"
#include "agg_targets.h"
#include "sy_clock.h"
#include "sy_log.h"

enum { TWIN_LOG_INTERVAL_US = 10 * 1000 * 1000, IDENTITIES_MAX = 8 };

/* ---- views ---- */

void agg_view_unref(agg_view *view)
{
    if (view == NULL || atomic_fetch_sub_explicit(&view->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; i < view->n_nodes; i++) agg_node_unref(view->node[i]);
    for (uint32_t i = 0; i < view->n_routers; i++) agg_node_unref(view->router[i]);
    agg_targets_free(view->targets);
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

/* Nodes are sorted by name. */
static int32_t find_node(const agg_view *view, const char *name)
{
    uint32_t low = 0, high = view->n_nodes;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = strcmp(view->node[middle]->name, name);
        if (order == 0) return (int32_t)middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

/* The targets of every list as indices into view->node: experts are many, lists are few. */
static sy_status resolve_targets(agg_view *view)
{
    const uint32_t lists = view->snapshot == NULL ? 0 : sy_snapshot_lists(view->snapshot);
    uint32_t n = 0;

    view->first_target = calloc((size_t)lists + 2, sizeof(*view->first_target));
    if (view->first_target == NULL) return SY_ENOMEM;
    for (uint32_t k = 1; k <= lists; k++) {
        n += sy_snapshot_list(view->snapshot, k)->n;
        view->first_target[k + 1] = n;
    }
    view->target_node = calloc(SY_MAX(n, 1u), sizeof(*view->target_node));
    if (view->target_node == NULL) return SY_ENOMEM;
    for (uint32_t k = 1; k <= lists; k++) {
        const sy_target_list *list = sy_snapshot_list(view->snapshot, k);
        for (uint32_t i = 0; i < list->n; i++)
            view->target_node[view->first_target[k] + i] = find_node(view, list->target[i].node);
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

static agg_view *make_view(agg_peers *peers)
{
    agg_view *view = calloc(1, sizeof(*view));

    if (view == NULL) return NULL;
    atomic_init(&view->refs, 1);
    view->snapshot = peers->snapshot == NULL ? NULL : sy_snapshot_ref(peers->snapshot);
    view->node = copy_nodes(peers, 0, &view->n_nodes);
    view->router = copy_nodes(peers, 1, &view->n_routers);
    view->targets =
        agg_targets_make(peers->view == NULL ? NULL : peers->view->targets, view->snapshot);
    if (view->node != NULL && view->router != NULL && view->targets != NULL &&
        resolve_targets(view) == SY_OK)
        return view;
    agg_view_unref(view);
    return NULL;
}

/* Makes and publishes the view of what is known now. Without memory the old view stays. */
static void publish(agg_peers *peers)
{
    const int64_t begin_us = sy_clock_us();
    agg_view *view = make_view(peers), *old;

    if (view == NULL) {
        sy_log(SY_LOG_ERROR, "no memory for a new view of the cluster: the old one stays");
        return;
    }
    const int64_t made_us = sy_clock_us();
    pthread_mutex_lock(&peers->mutex);
    old = peers->view;
    peers->view = view;
    pthread_mutex_unlock(&peers->mutex);
    sy_metric_observe_us(peers->cutover, sy_clock_us() - made_us);
    sy_metric_observe_us(peers->view_build, made_us - begin_us);
    agg_view_unref(old);
}

/* ---- members: control thread ---- */

/* Where the entry of that name is, or would be. */
static size_t entry_place(const agg_peers *peers, int kind, const char *name, int *found)
{
    size_t low = 0, high = peers->n_entries[kind];

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(peers->entry[kind][middle].node->name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *found = low < peers->n_entries[kind] && strcmp(peers->entry[kind][low].node->name, name) == 0;
    return low;
}

static void drop_entry(agg_peers *peers, int kind, size_t i)
{
    agg_entry *entry = peers->entry[kind];

    agg_node_unref(entry[i].node);
    free(entry[i].waiting);
    memmove(&entry[i], &entry[i + 1], (peers->n_entries[kind] - i - 1) * sizeof(*entry));
    peers->n_entries[kind]--;
}

static int insert_entry(agg_peers *peers, int kind, size_t at, const sy_member *member)
{
    agg_entry *entry = peers->entry[kind];

    if (peers->n_entries[kind] == AGG_MEMBERS_MAX) {
        sy_log(SY_LOG_WARN, "%s is ignored: %d peers of its kind are the limit", member->name,
               AGG_MEMBERS_MAX);
        return 0;
    }
    agg_node *node = agg_node_open(peers, kind == 0 ? SY_MEMBER_NODE : SY_MEMBER_ROUTER, member);
    if (node == NULL) return 0;
    memmove(&entry[at + 1], &entry[at], (peers->n_entries[kind] - at) * sizeof(*entry));
    entry[at] = (agg_entry){node, 1, NULL};
    peers->n_entries[kind]++;
    return 1;
}

static int replace_entry(agg_peers *peers, int kind, agg_entry *entry, const sy_member *member)
{
    agg_node *node = agg_node_open(peers, kind == 0 ? SY_MEMBER_NODE : SY_MEMBER_ROUTER, member);

    if (node == NULL) return 0;
    agg_node_unref(entry->node);
    entry->node = node;
    return 1;
}

/* The lease of this name speaks of another address. If the process that is known has gone, this is
 * its successor. If it is still there, two processes have one name and write over each other's
 * lease in turn: to follow each turn would cut the connection every second, so the first keeps the
 * name until it has gone. */
static int take_moved(agg_peers *peers, int kind, agg_entry *entry, const sy_member *member)
{
    if (!sy_peer_up(entry->node->peer) || agg_is_suspect(entry->node))
        return replace_entry(peers, kind, entry, member);
    if (sy_log_due(&peers->twin_logged_us, TWIN_LOG_INTERVAL_US))
        sy_log(SY_LOG_WARN,
               "two processes are called %s: the one at %s is used as long as it is there, the one "
               "at %s is not; give each its own --name",
               member->name, entry->node->address, member->address);
    if (entry->waiting == NULL) entry->waiting = malloc(sizeof(*entry->waiting));
    if (entry->waiting != NULL) *entry->waiting = *member;
    return 0;
}

static int take_member(agg_peers *peers, int kind, const sy_member *member)
{
    int found;
    const size_t at = entry_place(peers, kind, member->name, &found);
    agg_entry *entry = &peers->entry[kind][at];

    /* Members without a lease do not say what they serve: they refuse requests for another model.
     */
    if (member->model[0] != '\0' && strcmp(member->model, peers->model_name) != 0) return 0;
    if (!found) return insert_entry(peers, kind, at, member);
    entry->leased = 1;
    if (strcmp(entry->node->address, member->address) != 0)
        return take_moved(peers, kind, entry, member);
    agg_node_set_lease(entry->node, member);
    free(entry->waiting);
    entry->waiting = NULL;
    return 0;
}

/* A router that is known by its address alone, and has a lease as well, is one process. */
static int has_better_name(const sy_member *member, size_t n, size_t i)
{
    if (strcmp(member[i].name, member[i].address) != 0) return 0;
    for (size_t k = 0; k < n; k++)
        if (k != i && strcmp(member[k].address, member[i].address) == 0) return 1;
    return 0;
}

void agg_peers_members(agg_peers *peers, sy_member_kind kind, const sy_member *member, size_t n)
{
    const int list = kind == SY_MEMBER_NODE ? 0 : 1;
    int changed = 0;

    if (kind == SY_MEMBER_AGGREGATOR) return;
    for (size_t i = 0; i < peers->n_entries[list]; i++) peers->entry[list][i].leased = 0;
    for (size_t i = 0; i < n; i++)
        if (!has_better_name(member, n, i)) changed |= take_member(peers, list, &member[i]);
    if (changed) publish(peers);
    agg_peers_sweep(peers);
}

/* ---- what time brings: control thread ---- */

/* A process that took over the address of another answers on the other's connection as well. */
static int address_is_taken(const agg_peers *peers, int kind, size_t i)
{
    const agg_entry *entry = peers->entry[kind];

    for (size_t k = 0; k < peers->n_entries[kind]; k++)
        if (k != i && entry[k].leased &&
            strcmp(entry[k].node->address, entry[i].node->address) == 0)
            return 1;
    return 0;
}

static int has_left(const agg_peers *peers, int kind, size_t i)
{
    const agg_entry *e = &peers->entry[kind][i];

    return !e->leased &&
           (!sy_peer_up(e->node->peer) || atomic_load(&e->node->refused_whole) == AGG_OTHER_NAME ||
            address_is_taken(peers, kind, i));
}

static int take_waiting(agg_peers *peers, int kind, agg_entry *entry)
{
    sy_member *waiting = entry->waiting;

    if (waiting == NULL || (sy_peer_up(entry->node->peer) && !agg_is_suspect(entry->node)))
        return 0;
    entry->waiting = NULL;
    const int changed = replace_entry(peers, kind, entry, waiting);
    free(waiting);
    return changed;
}

/* The identity that most holders announce; the one in force, when no other has more. */
static sy_shard_identity ask_holders(const agg_peers *peers, uint32_t shard)
{
    sy_shard_identity seen[IDENTITIES_MAX] = {agg_verify_reference(peers->verify, shard)};
    uint32_t votes[IDENTITIES_MAX] = {0}, n = 1, best = 0;

    for (size_t i = 0; i < peers->n_entries[0]; i++) {
        const agg_node *node = peers->entry[0][i].node;
        const sy_shard_identity copy = agg_node_copy(node, shard);
        uint32_t k = 0;
        if (copy.content == 0 || atomic_load(&node->refused_whole) != AGG_FINE ||
            !agg_verify_may_be(peers->verify, shard, copy))
            continue;
        while (k < n && (seen[k].content != copy.content || seen[k].probe != copy.probe)) k++;
        if (k == IDENTITIES_MAX) continue;
        if (k == n) seen[n++] = copy;
        votes[k]++;
    }
    for (uint32_t k = 1; k < n; k++)
        if (votes[k] > votes[best]) best = k;
    return seen[best];
}

static void settle_copies(agg_peers *peers)
{
    uint32_t shard = 0;

    for (; peers->verify != NULL && agg_verify_next(peers->verify, &shard); shard++) {
        if (agg_verify_by_holders(peers->verify, shard))
            agg_verify_decide(peers->verify, shard, ask_holders(peers, shard));
        for (size_t i = 0; i < peers->n_entries[0]; i++)
            agg_node_judge(peers->entry[0][i].node, shard);
    }
}

void agg_peers_sweep(agg_peers *peers)
{
    int changed = 0;

    for (int kind = 0; kind < 2; kind++)
        for (size_t i = peers->n_entries[kind]; i-- > 0;) {
            agg_entry *e = &peers->entry[kind][i];
            if (has_left(peers, kind, i)) {
                sy_log(SY_LOG_INFO, "%s at %s has left", e->node->name, e->node->address);
                drop_entry(peers, kind, i);
                changed = 1;
            } else {
                changed |= take_waiting(peers, kind, e);
            }
        }
    if (changed) publish(peers);
    settle_copies(peers);
    agg_node_bury(peers);
}

void agg_peers_placement(agg_peers *peers, sy_snapshot *snapshot)
{
    sy_snapshot_unref(peers->snapshot);
    peers->snapshot = sy_snapshot_ref(snapshot);
    publish(peers);
}

/* ---- open, close ---- */

static void open_metrics(agg_peers *peers)
{
    peers->cutover = sy_metric_histogram("switchyard_cutover_seconds",
                                         "Putting a new view of the cluster in force", NULL);
    peers->view_build =
        sy_metric_histogram("switchyard_view_seconds", "Making a new view of the cluster", NULL);
    peers->refused_nodes = sy_metric_gauge(
        "switchyard_refused_nodes", "Nodes of another checkpoint, structure or arithmetic", NULL);
    peers->refused_shards =
        sy_metric_gauge("switchyard_refused_shards",
                        "Copies of shards that are not what this checkpoint says", NULL);
}

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
    peers->model = model;
    peers->grid = sy_grid_of(desc->n_layers, desc->n_experts, desc->layer, SY_LAYER_DENSE);
    peers->message_bytes_max = message_bytes_max;
    peers->structure_hash = sy_model_structure_hash(model);
    peers->arithmetic = sy_arithmetic_name(SY_ACT_F32);
    peers->since_us = sy_clock_wall_us();
    strncpy(peers->model_name, sy_model_name(model), sizeof(peers->model_name) - 1);
    open_metrics(peers);
    SY_TRY(sy_wire_model_query_encode(&peers->watch_request, &query, NULL));
    peers->rows = calloc((size_t)peers->grid.layers * peers->grid.experts, sizeof(*peers->rows));
    if (peers->rows != NULL) publish(peers);
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

void agg_peers_share(agg_peers *peers, size_t bytes_max, size_t bytes_min)
{
    peers->shared_bytes_max = bytes_max;
    peers->shared_bytes_min = bytes_min;
}

sy_status agg_peers_verify(agg_peers *peers, uint64_t checkpoint_hash, const char *arithmetic,
                           const sy_kernels *kernels, sy_precision precision, int read_weights,
                           sy_error *err)
{
    const char *own = sy_arithmetic_name(precision.activations);
    const agg_verify_config config = {.model = peers->model,
                                      .kernels = kernels,
                                      .precision = precision,
                                      .other_arithmetic = strcmp(arithmetic, own) != 0,
                                      .read_weights = read_weights};

    peers->checkpoint_hash = checkpoint_hash;
    peers->arithmetic = arithmetic;
    return agg_verify_open(&peers->verify, &config, err);
}

/* Callbacks of peers use what verifies until the last of them is closed. */
void agg_peers_close(agg_peers *peers)
{
    if (peers == NULL) return;
    agg_verify_stop(peers->verify);
    for (int kind = 0; kind < 2; kind++)
        while (peers->n_entries[kind] > 0) drop_entry(peers, kind, peers->n_entries[kind] - 1);
    agg_view_unref(peers->view);
    agg_node_bury(peers);
    agg_verify_free(peers->verify);
    sy_snapshot_unref(peers->snapshot);
    sy_frame_free(&peers->watch_request);
    free(peers->rows);
    pthread_mutex_destroy(&peers->mutex);
    free(peers);
}

_Atomic uint64_t *agg_peers_rows(agg_peers *peers)
{
    return peers->rows;
}

int64_t agg_peers_since_us(const agg_peers *peers)
{
    return peers->since_us;
}

/* ---- readiness ---- */

static int any_up(agg_node *const *node, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (sy_peer_up(node[i]->peer)) return 1;
    return 0;
}

/* 1 when a wanted node has the shard, or failing that any node. */
static int shard_served(const agg_view *view, uint32_t layer, uint32_t expert, uint32_t shard)
{
    if (view->snapshot != NULL) {
        const uint32_t number = sy_snapshot_list_of(view->snapshot, layer, expert);
        const int32_t *target = view->target_node + view->first_target[number];
        const sy_target_list *list = number == 0 ? NULL : sy_snapshot_list(view->snapshot, number);
        for (uint32_t i = 0; list != NULL && i < list->n; i++)
            if (target[i] >= 0 && !list->target[i].shadow &&
                agg_node_has(view->node[target[i]], shard, list->target[i].any_weights))
                return 1;
    }
    for (uint32_t i = 0; i < view->n_nodes; i++)
        if (agg_node_has(view->node[i], shard, 0)) return 1;
    return 0;
}

/* A refusal that may be why a shard is not served: of its copy, else of any node as a whole. */
static void tell_refusal(const agg_view *view, uint32_t shard, sy_strbuf *why)
{
    for (uint32_t i = 0; i < view->n_nodes; i++) {
        const agg_node *node = view->node[i];
        const agg_refusal copy = (agg_refusal)atomic_load(&node->refused[shard]);
        if (copy == AGG_FINE) continue;
        sy_strbuf_printf(why, "; the copy on %s is refused: %s", node->name,
                         agg_refusal_text(copy));
        return;
    }
    for (uint32_t i = 0; i < view->n_nodes; i++) {
        const agg_refusal whole = (agg_refusal)atomic_load(&view->node[i]->refused_whole);
        if (whole == AGG_FINE) continue;
        sy_strbuf_printf(why, "; %s is refused: %s", view->node[i]->name, agg_refusal_text(whole));
        return;
    }
}

static int everything_served(const agg_peers *peers, const agg_view *view, sy_strbuf *why)
{
    uint32_t missing = 0, first = 0;

    for (uint32_t layer = 0; layer < peers->grid.layers; layer++) {
        if (!sy_grid_has(&peers->grid, layer)) continue;
        for (uint32_t expert = 0; expert < peers->grid.experts; expert++) {
            const uint32_t shard = layer * peers->grid.experts + expert;
            if (!shard_served(view, layer, expert, shard) && missing++ == 0) first = shard;
        }
    }
    if (missing == 0) return 1;
    sy_strbuf_printf(
        why, "%u shards have no reachable node that holds them; the first is layer %u expert %u",
        missing, first / peers->grid.experts, first % peers->grid.experts);
    tell_refusal(view, first, why);
    return 0;
}

int agg_peers_ready(agg_peers *peers, int need_router, sy_strbuf *why)
{
    agg_view *view = agg_peers_view(peers);
    uint32_t layer = 0, expert = 0;
    int ready = 0;

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
    else
        ready = everything_served(peers, view, why);
    agg_view_unref(view);
    return ready;
}
