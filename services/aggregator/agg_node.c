/* agg_node.c - one peer: its connection, what its Watch stream says of its shards, and what that is
 * worth. The loop thread writes, everybody reads; what is read is one atomic a shard. */
#include <stdlib.h>
#include <string.h>

#include "agg_peers_internal.h"
#include "sy_log.h"

enum { STATE_BYTES_MAX = 64 << 20, LOGGED_MAX = 32, LOG_INTERVAL_US = 10 * 1000 * 1000 };

const char *agg_refusal_text(agg_refusal why)
{
    switch (why) {
    case AGG_FINE: break;
    case AGG_OTHER_STRUCTURE: return "its checkpoint is of another structure than this one";
    case AGG_OTHER_NAME: return "another node answers at its address";
    case AGG_OTHER_CHECKPOINT: return "its weights are another checkpoint's than this one";
    case AGG_OTHER_ARITHMETIC:
        return "it computes with another arithmetic (--activations, or a GPU's: "
               "--expert-arithmetic), so bits would differ";
    case AGG_OTHER_CONTENT:
        return "its weights differ from this checkpoint's, or are held otherwise (--weights)";
    case AGG_OTHER_PROBE: return "it computes another output from the same weights";
    }
    return "";
}

int agg_refusal_is_final(agg_refusal why)
{
    return why == AGG_OTHER_STRUCTURE || why == AGG_OTHER_NAME;
}

/* ---- what readers ask ---- */

agg_refusal agg_node_refusal(const agg_node *node, uint32_t shard)
{
    const uint8_t whole = atomic_load_explicit(&node->refused_whole, memory_order_relaxed);

    if (whole != AGG_FINE) return (agg_refusal)whole;
    return (agg_refusal)atomic_load_explicit(&node->refused[shard], memory_order_relaxed);
}

int agg_node_has(const agg_node *node, uint32_t shard, int any_weights)
{
    const uint8_t state = atomic_load_explicit(&node->shard_state[shard], memory_order_acquire);

    if (state != SY_SHARD_RESIDENT && state != SY_SHARD_LINGERING) return 0;
    const agg_refusal why = agg_node_refusal(node, shard);
    if (why != AGG_FINE && (!any_weights || agg_refusal_is_final(why))) return 0;
    return sy_peer_up(node->peer);
}

/* ---- judging ---- */

/* A node whose state changes a thousand times a second must not fill a disk. */
static int may_log(agg_node *node)
{
    if (sy_log_due(&node->logged_us, LOG_INTERVAL_US)) atomic_store(&node->n_logged, 0);
    return atomic_fetch_add(&node->n_logged, 1) < LOGGED_MAX;
}

sy_shard_identity agg_node_copy(const agg_node *node, uint32_t shard)
{
    return (sy_shard_identity){.content = atomic_load(&node->content[shard]),
                               .probe = atomic_load(&node->probe[shard])};
}

static void set_refused(agg_node *node, uint32_t shard, agg_refusal why)
{
    const uint32_t experts = node->peers->grid.experts;
    const uint8_t before = atomic_exchange(&node->refused[shard], (uint8_t)why);

    if (before == why) return;
    if (before == AGG_FINE) {
        atomic_fetch_add(&node->n_refused, 1);
        sy_metric_add(node->peers->refused_shards, 1);
    } else if (why == AGG_FINE) {
        atomic_fetch_sub(&node->n_refused, 1);
        sy_metric_add(node->peers->refused_shards, -1);
    }
    if (!may_log(node)) return;
    if (why != AGG_FINE)
        sy_log(SY_LOG_WARN, "layer %u expert %u on %s is refused: %s", shard / experts,
               shard % experts, node->name, agg_refusal_text(why));
    else
        sy_log(SY_LOG_INFO, "layer %u expert %u on %s is no longer refused", shard / experts,
               shard % experts, node->name);
}

static int same_identity(sy_shard_identity a, sy_shard_identity b)
{
    return a.content == b.content && a.probe == b.probe;
}

/* Two threads may judge one copy at once, and what they judge by may change meanwhile. So whoever
 * has written looks again whether all is as it was: a verdict of old evidence does not stay. */
void agg_node_judge(agg_node *node, uint32_t shard)
{
    const agg_verify *verify = node->peers->verify;
    sy_shard_identity copy, reference;
    uint8_t whole;

    if (verify == NULL) return;
    do {
        whole = atomic_load(&node->refused_whole);
        copy = agg_node_copy(node, shard);
        reference = agg_verify_reference(verify, shard);
        set_refused(node, shard,
                    whole != AGG_FINE ? AGG_FINE : agg_verify_compare(copy, reference));
    } while (whole != atomic_load(&node->refused_whole) ||
             !same_identity(copy, agg_node_copy(node, shard)) ||
             !same_identity(reference, agg_verify_reference(verify, shard)));
}

/* An identity of 0 belongs to no copy. Loop thread. */
static void set_copy(agg_node *node, uint32_t shard, sy_shard_identity copy)
{
    if (same_identity(copy, agg_node_copy(node, shard))) return;
    atomic_store(&node->content[shard], copy.content);
    atomic_store(&node->probe[shard], copy.probe);
    agg_node_judge(node, shard);
}

/* A copy is judged before it is offered, and taken back before it is forgotten. */
static void set_state(agg_node *node, uint32_t shard, sy_shard_state state, sy_shard_identity copy)
{
    const int in_memory = state == SY_SHARD_RESIDENT || state == SY_SHARD_LINGERING;
    const sy_shard_identity before = agg_node_copy(node, shard);

    if (!in_memory) {
        copy = (sy_shard_identity){0};
        atomic_store_explicit(&node->shard_state[shard], (uint8_t)state, memory_order_release);
    }
    set_copy(node, shard, copy);
    if (in_memory)
        atomic_store_explicit(&node->shard_state[shard], (uint8_t)state, memory_order_release);
    if (node->peers->verify != NULL && !same_identity(before, copy))
        agg_verify_touch(node->peers->verify, shard);
}

static void forget_all(agg_node *node)
{
    atomic_store_explicit(&node->known, 0, memory_order_release);
    for (uint32_t i = 0; i < node->n_shards; i++)
        set_state(node, i, SY_SHARD_ABSENT, (sy_shard_identity){0});
}

/* ---- the node as a whole ---- */

/* By hashes as announced; what is not known on one side is not held against the node. A router's
 * arithmetic is the gate's, which is exact whatever nodes do. */
static agg_refusal judge_hashes(const agg_node *node, uint64_t checkpoint, const char *arithmetic)
{
    const agg_peers *peers = node->peers;
    const char *expected = node->n_shards > 0 ? peers->arithmetic : sy_arithmetic_name(SY_ACT_F32);

    if (checkpoint != 0 && peers->checkpoint_hash != 0 && checkpoint != peers->checkpoint_hash)
        return AGG_OTHER_CHECKPOINT;
    if (arithmetic[0] != '\0' && strcmp(arithmetic, expected) != 0) return AGG_OTHER_ARITHMETIC;
    return AGG_FINE;
}

void agg_node_set_lease(agg_node *node, const sy_member *member)
{
    const agg_peers *peers = node->peers;
    const uint64_t structure = strtoull(member->structure_hash, NULL, 16);
    const uint64_t checkpoint = strtoull(member->checkpoint_hash, NULL, 16);
    const agg_refusal why = structure != 0 && structure != peers->structure_hash
                                ? AGG_OTHER_STRUCTURE
                                : judge_hashes(node, checkpoint, member->arithmetic);

    atomic_store_explicit(&node->refused_lease, (uint8_t)why, memory_order_relaxed);
    atomic_store_explicit(&node->is_draining, strcmp(member->state, "draining") == 0,
                          memory_order_relaxed);
}

static void set_refused_whole(agg_node *node, agg_refusal why)
{
    const uint8_t before = atomic_exchange(&node->refused_whole, (uint8_t)why);

    if (before == why) return;
    sy_metric_add(node->peers->refused_nodes, (why != AGG_FINE) - (before != AGG_FINE));
    if (may_log(node)) {
        if (why != AGG_FINE)
            sy_log(SY_LOG_WARN, "%s at %s is refused: %s", node->name, node->address,
                   agg_refusal_text(why));
        else
            sy_log(SY_LOG_INFO, "%s at %s is no longer refused", node->name, node->address);
    }
    for (uint32_t i = 0; i < node->n_shards; i++)
        if (atomic_load_explicit(&node->content[i], memory_order_relaxed) != 0)
            agg_node_judge(node, i);
}

/* Only a full state has to say everything; later ones may leave out what has not changed. */
static agg_refusal judge_state(agg_node *node, const sy_node_state *state)
{
    if (state->full || state->structure_hash != 0) node->structure = state->structure_hash;
    if (state->full || state->checkpoint_hash != 0) node->checkpoint = state->checkpoint_hash;
    if (state->full || state->arithmetic[0] != '\0') {
        strncpy(node->arithmetic, state->arithmetic, sizeof(node->arithmetic) - 1);
        node->arithmetic[sizeof(node->arithmetic) - 1] = '\0';
    }
    if (state->node[0] != '\0' && strcmp(state->node, node->name) != 0) return AGG_OTHER_NAME;
    if (node->structure != node->peers->structure_hash) return AGG_OTHER_STRUCTURE;
    return judge_hashes(node, node->checkpoint, node->arithmetic);
}

static void take_load(agg_node *node, const sy_node_state *state)
{
    uint64_t queued = 0;

    for (uint32_t i = 0; i < state->n_devices; i++) queued += state->device[i].queue_length;
    if (state->n_devices == 0 && !state->full) return;
    if (state->n_devices == 0) queued = state->queue_length;
    atomic_store_explicit(&node->queue_length, (uint32_t)SY_MIN(queued, UINT32_MAX),
                          memory_order_relaxed);
}

/* What a full state does not name is absent; what it names does not become absent in between. */
static sy_status take_shards(agg_node *node, const sy_node_state *state, sy_arena *arena)
{
    const agg_peers *peers = node->peers;
    uint8_t *named = state->full ? sy_arena_calloc(arena, node->n_shards, 1) : NULL;

    if (state->full && named == NULL) return SY_ENOMEM;
    for (uint32_t i = 0; i < state->n_shards; i++) {
        const sy_shard_info *info = &state->shard[i];
        if (!sy_grid_holds(&peers->grid, info->layer, info->expert)) continue;
        const uint32_t shard = info->layer * peers->grid.experts + info->expert;
        set_state(node, shard, info->state,
                  (sy_shard_identity){.content = info->content_hash, .probe = info->probe_hash});
        if (named != NULL) named[shard] = 1;
    }
    for (uint32_t s = 0; named != NULL && s < node->n_shards; s++)
        if (!named[s]) set_state(node, s, SY_SHARD_ABSENT, (sy_shard_identity){0});
    if (state->full) atomic_store_explicit(&node->known, 1, memory_order_release);
    return SY_OK;
}

/* ---- callbacks of the peer: loop thread ---- */

static void on_state(void *ctx, sy_peer *peer, int up)
{
    agg_node *node = ctx;

    (void)peer;
    if (up) return;
    agg_share_lost(node->share);
    forget_all(node); /* what was refused as a whole stays so until it says otherwise */
}

/* Any thread. */
static void on_settled(void *ctx, uint64_t id)
{
    agg_node *node = ctx;

    agg_share_settled(node->share, id);
}

static void on_watch(void *ctx, sy_peer *peer, sy_msg *msg)
{
    agg_node *node = ctx;
    sy_node_state state;
    sy_arena arena;
    sy_error err = {0};
    size_t n;
    const sy_iov *iov = sy_msg_iov(msg, &n);

    (void)peer;
    agg_heard(node);
    sy_error_clear(&err);
    sy_arena_init(&arena, STATE_BYTES_MAX);
    if (sy_wire_node_state_decode(&state, &arena, iov, n, &err) != SY_OK) {
        if (may_log(node))
            sy_log_error(SY_LOG_WARN, &err, "%s sent a state that cannot be read", node->name);
        sy_arena_free(&arena);
        return;
    }
    set_refused_whole(node, judge_state(node, &state));
    if (agg_refusal_is_final((agg_refusal)atomic_load(&node->refused_whole))) {
        forget_all(node);
    } else {
        take_load(node, &state);
        if (take_shards(node, &state, &arena) != SY_OK)
            sy_log(SY_LOG_ERROR, "no memory for the state of %s: it is not used", node->name);
    }
    sy_arena_free(&arena);
}

/* ---- opening and closing ---- */

static void node_free(agg_node *node)
{
    agg_share_close(node->share);
    free(node->shard_state);
    free(node->content);
    free(node->probe);
    free(node->refused);
    free(node);
}

static agg_node *node_alloc(agg_peers *peers, const sy_member *member, uint32_t n_shards)
{
    agg_node *node = calloc(1, sizeof(*node));

    if (node == NULL) return NULL;
    node->peers = peers;
    node->n_shards = n_shards;
    atomic_init(&node->refs, 1);
    memcpy(node->name, member->name, sizeof(node->name));
    memcpy(node->address, member->address, sizeof(node->address));
    node->share =
        agg_share_open(node->name, node->address, peers->shared_bytes_max, peers->shared_bytes_min);
    if (n_shards == 0) return node;
    node->shard_state = calloc(n_shards, sizeof(*node->shard_state));
    node->content = calloc(n_shards, sizeof(*node->content));
    node->probe = calloc(n_shards, sizeof(*node->probe));
    node->refused = calloc(n_shards, sizeof(*node->refused));
    if (node->shard_state != NULL && node->content != NULL && node->probe != NULL &&
        node->refused != NULL)
        return node;
    node_free(node);
    return NULL;
}

agg_node *agg_node_open(agg_peers *peers, sy_member_kind kind, const sy_member *member)
{
    const int expert = kind == SY_MEMBER_NODE;
    agg_node *node =
        node_alloc(peers, member, expert ? peers->grid.layers * peers->grid.experts : 0);
    sy_error err = {0};

    if (node == NULL) {
        sy_log(SY_LOG_ERROR, "no memory for %s at %s", member->name, member->address);
        return NULL;
    }
    agg_node_set_lease(node, member);
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
                                   .on_watch = on_watch,
                                   .on_settled = node->share != NULL ? on_settled : NULL};
    if (sy_peer_open(&node->peer, peers->loop, &config, &err) != SY_OK) {
        sy_log_error(SY_LOG_WARN, &err, "%s at %s cannot be used", node->name, node->address);
        node_free(node);
        return NULL;
    }
    return node;
}

void agg_node_unref(agg_node *node)
{
    agg_peers *peers = node->peers;

    if (atomic_fetch_sub_explicit(&node->refs, 1, memory_order_acq_rel) != 1) return;
    node->next_dead = atomic_load(&peers->dead);
    while (!atomic_compare_exchange_weak(&peers->dead, &node->next_dead, node)) {
    }
}

void agg_node_bury(agg_peers *peers)
{
    agg_node *node = atomic_exchange(&peers->dead, NULL);

    while (node != NULL) {
        agg_node *next = node->next_dead;
        sy_peer_close(node->peer); /* from here on nothing is said of it any more */
        sy_metric_add(peers->refused_shards, -(double)atomic_load(&node->n_refused));
        sy_metric_add(peers->refused_nodes, -(double)(atomic_load(&node->refused_whole) != 0));
        node_free(node);
        node = next;
    }
}
