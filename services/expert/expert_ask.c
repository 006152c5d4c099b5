/* expert_ask.c - one Watch call per question, cancelled after its first message. Answers are kept,
 * so that a loader that fetches hundreds of shards does not ask hundreds of times. */
#include "expert_ask.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sy_clock.h"
#include "sy_rpc.h"
#include "sy_wire.h"

enum {
    ARENA_BYTES_MAX = 64 << 20,
    ASK_US = 2 * 1000 * 1000,
    LISTED_US = 2 * 1000 * 1000 /* what a load waits for the first list of leases */
};

typedef struct counted_answer {
    expert_answer answer; /* first: an expert_answer is its counted_answer */
    atomic_int refs;
} counted_answer;

typedef struct peer {
    char node[SY_NODE_BYTES];
    char address[SY_ADDRESS_BYTES];
    expert_answer *answer; /* the newest, with a reference; NULL: none */
    int64_t asked_us;      /* the last question, answered or not */
} peer;

struct expert_peers {
    const sy_model *model;
    const char *self;
    uint32_t layers, experts;
    uint64_t structure_hash;
    pthread_mutex_t asking; /* one loader asks everybody, the others wait for its answers */
    pthread_mutex_t mutex;  /* guards what follows */
    pthread_cond_t listed;  /* the leases have been read */
    int is_listed;
    peer peer[EXPERT_PEERS_MAX];
    size_t n;
};

sy_status expert_peers_open(expert_peers **out, const sy_model *model, const char *self,
                            sy_error *err)
{
    expert_peers *peers = calloc(1, sizeof(*peers));
    pthread_condattr_t monotonic;

    *out = peers;
    if (peers == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the list of nodes");
    peers->model = model;
    peers->self = self;
    peers->layers = sy_model_describe(model)->n_layers;
    peers->experts = sy_model_describe(model)->n_experts;
    peers->structure_hash = sy_model_structure_hash(model);
    pthread_mutex_init(&peers->asking, NULL);
    pthread_mutex_init(&peers->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&peers->listed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return SY_OK;
}

void expert_peers_close(expert_peers *peers)
{
    if (peers == NULL) return;
    for (size_t i = 0; i < peers->n; i++) expert_answer_unref(peers->peer[i].answer);
    pthread_cond_destroy(&peers->listed);
    pthread_mutex_destroy(&peers->asking);
    pthread_mutex_destroy(&peers->mutex);
    free(peers);
}

/* ---- answers ---- */

static expert_answer *answer_ref(expert_answer *answer)
{
    if (answer != NULL) atomic_fetch_add(&((counted_answer *)answer)->refs, 1);
    return answer;
}

void expert_answer_unref(expert_answer *answer)
{
    if (answer == NULL || atomic_fetch_sub(&((counted_answer *)answer)->refs, 1) != 1) return;
    free(answer->state);
    free(answer->identity);
    free((counted_answer *)answer);
}

static expert_answer *answer_new(const expert_peers *peers, const char *node, const char *address)
{
    const size_t n = (size_t)peers->layers * peers->experts;
    counted_answer *made = calloc(1, sizeof(*made));

    if (made == NULL) return NULL;
    atomic_init(&made->refs, 1);
    snprintf(made->answer.node, sizeof(made->answer.node), "%s", node);
    snprintf(made->answer.address, sizeof(made->answer.address), "%s", address);
    made->answer.layers = peers->layers;
    made->answer.experts = peers->experts;
    made->answer.state = calloc(n, sizeof(*made->answer.state));
    made->answer.identity = calloc(n, sizeof(*made->answer.identity));
    if (made->answer.state != NULL && made->answer.identity != NULL) return &made->answer;
    expert_answer_unref(&made->answer);
    return NULL;
}

/* ---- leases ---- */

static peer *find(expert_peers *peers, const char *node)
{
    for (size_t i = 0; i < peers->n; i++)
        if (strcmp(peers->peer[i].node, node) == 0) return &peers->peer[i];
    return NULL;
}

static int is_leased(const sy_member *member, size_t n, const peer *p)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(member[i].name, p->node) == 0 && strcmp(member[i].address, p->address) == 0)
            return 1;
    return 0;
}

void expert_peers_members(expert_peers *peers, const sy_member *member, size_t n)
{
    pthread_mutex_lock(&peers->mutex);
    for (size_t i = peers->n; i-- > 0;) {
        if (is_leased(member, n, &peers->peer[i])) continue;
        expert_answer_unref(peers->peer[i].answer);
        peers->peer[i] = peers->peer[--peers->n];
    }
    for (size_t i = 0; i < n && peers->n < EXPERT_PEERS_MAX; i++) {
        if (strcmp(member[i].name, peers->self) == 0 || find(peers, member[i].name) != NULL)
            continue;
        peer *p = &peers->peer[peers->n++];
        *p = (peer){.asked_us = INT64_MIN};
        snprintf(p->node, sizeof(p->node), "%s", member[i].name);
        snprintf(p->address, sizeof(p->address), "%s", member[i].address);
    }
    peers->is_listed = 1;
    pthread_cond_broadcast(&peers->listed);
    pthread_mutex_unlock(&peers->mutex);
}

int expert_peers_address(expert_peers *peers, const char *node, char *out)
{
    pthread_mutex_lock(&peers->mutex);
    const peer *p = find(peers, node);
    if (p != NULL) memcpy(out, p->address, SY_ADDRESS_BYTES);
    pthread_mutex_unlock(&peers->mutex);
    return p != NULL;
}

/* ---- asking ---- */

/* Does whoever answers at the address say what the lease said? An address may belong to another
 * process by now, and custody is handed to names. */
static sy_status check_state(const expert_peers *peers, const expert_answer *answer,
                             const sy_node_state *state, sy_error *err)
{
    if (strcmp(state->node, answer->node) != 0)
        return sy_error_set(err, SY_EPRECONDITION, "%s answers at %s, the address of %s",
                            state->node, answer->address, answer->node);
    if (!state->full)
        return sy_error_set(err, SY_EPRECONDITION, "%s began with changes instead of its state",
                            answer->node);
    if (state->structure_hash != peers->structure_hash)
        return sy_error_set(err, SY_EPRECONDITION,
                            "%s serves a checkpoint of another structure than this node's",
                            answer->node);
    return SY_OK;
}

static sy_status read_state(expert_answer *out, const expert_peers *peers, const sy_msg *msg,
                            sy_error *err)
{
    sy_node_state state;
    sy_arena arena;
    size_t n;
    const sy_iov *iov = sy_msg_iov(msg, &n);
    sy_status st;

    sy_arena_init(&arena, ARENA_BYTES_MAX);
    SY_TRY(sy_wire_node_state_decode(&state, &arena, iov, n, err));
    SY_TRY(check_state(peers, out, &state, err));
    out->placement_hash = state.placement_hash;
    out->checkpoint_hash = state.checkpoint_hash;
    snprintf(out->arithmetic, sizeof(out->arithmetic), "%s", state.arithmetic);
    for (uint32_t i = 0; i < state.n_shards; i++) {
        const sy_shard_info *shard = &state.shard[i];
        if (shard->layer >= out->layers || shard->expert >= out->experts) continue;
        const uint32_t at = shard->layer * out->experts + shard->expert;
        out->state[at] = (uint8_t)shard->state;
        out->identity[at] = (sy_shard_identity){shard->content_hash, shard->probe_hash};
    }
out:
    sy_arena_free(&arena);
    return st;
}

static sy_status first_message(sy_msg **out, sy_client **client, sy_client_call **call,
                               const expert_peers *peers, const expert_answer *answer,
                               int64_t deadline_us, sy_error *err)
{
    const sy_model_query query = {sy_model_name(peers->model)};
    sy_frame frame;
    sy_status st;

    SY_TRY(sy_client_open(client, answer->address, 0, err));
    st = sy_wire_model_query_encode(&frame, &query, NULL);
    if (st != SY_OK) return sy_error_set(err, st, "no memory for the question");
    SY_TRY(
        sy_client_start(call, *client, "/switchyard.v1.Expert/Watch", &frame, deadline_us, 0, err));
    SY_TRY(sy_client_next(*call, out, err));
    if (*out == NULL)
        st =
            sy_error_set(err, SY_EUNAVAILABLE, "%s ended the call without an answer", answer->node);
out:
    return st;
}

sy_status expert_ask(expert_answer **out, expert_peers *peers, const char *node,
                     int64_t deadline_us, sy_error *err)
{
    char address[SY_ADDRESS_BYTES];
    expert_answer *answer = NULL;
    sy_client *client = NULL;
    sy_client_call *call = NULL;
    sy_msg *msg = NULL;
    sy_status st = SY_OK;

    *out = NULL;
    if (!expert_peers_address(peers, node, address))
        return sy_error_set(err, SY_ENOTFOUND, "%s has no lease: it does not run", node);
    answer = answer_new(peers, node, address);
    if (answer == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for an answer");
    answer->asked_us = sy_clock_us();
    SY_TRY(first_message(&msg, &client, &call, peers, answer, deadline_us, err));
    SY_TRY(read_state(answer, peers, msg, err));
    *out = answer;
    answer = NULL;
out:
    sy_msg_free(msg);
    sy_client_end(call);
    sy_client_close(client);
    expert_answer_unref(answer);
    return st;
}

/* ---- who has a shard ---- */

/* The next node that has not been asked since `since_us`; it counts as asked from now on. 0: all
 * have been. */
static int next_to_ask(expert_peers *peers, char *node, int64_t since_us)
{
    int found = 0;

    pthread_mutex_lock(&peers->mutex);
    for (size_t i = 0; i < peers->n && !found; i++) {
        peer *p = &peers->peer[i];
        if (p->asked_us >= since_us) continue;
        p->asked_us = sy_clock_us();
        memcpy(node, p->node, SY_NODE_BYTES);
        found = 1;
    }
    pthread_mutex_unlock(&peers->mutex);
    return found;
}

static void keep_answer(expert_peers *peers, const char *node, expert_answer *answer)
{
    pthread_mutex_lock(&peers->mutex);
    peer *p = find(peers, node);
    if (p != NULL) {
        expert_answer_unref(p->answer);
        p->answer = answer;
        answer = NULL;
    }
    pthread_mutex_unlock(&peers->mutex);
    expert_answer_unref(answer);
}

/* A placement may be read before the leases are: who starts must not take that for being alone. */
static void wait_for_leases(expert_peers *peers)
{
    const int64_t until_us = sy_clock_us() + LISTED_US;
    const struct timespec until = {.tv_sec = until_us / 1000000,
                                   .tv_nsec = until_us % 1000000 * 1000};
    int waiting = 1;

    pthread_mutex_lock(&peers->mutex);
    while (!peers->is_listed && waiting)
        waiting = pthread_cond_timedwait(&peers->listed, &peers->mutex, &until) == 0;
    pthread_mutex_unlock(&peers->mutex);
}

static void refresh(expert_peers *peers, int64_t age_us)
{
    const int64_t since_us = sy_clock_us() - age_us;
    char node[SY_NODE_BYTES];

    pthread_mutex_lock(&peers->asking);
    while (next_to_ask(peers, node, since_us)) {
        expert_answer *answer;
        sy_error err = {0};
        if (expert_ask(&answer, peers, node, sy_clock_us() + ASK_US, &err) != SY_OK) answer = NULL;
        keep_answer(peers, node, answer);
    }
    pthread_mutex_unlock(&peers->asking);
}

size_t expert_peers_holders(expert_peers *peers, expert_answer **out, size_t max, uint32_t layer,
                            uint32_t expert, uint64_t checkpoint_hash, int64_t age_us)
{
    static const sy_shard_state order[] = {SY_SHARD_RESIDENT, SY_SHARD_LINGERING};
    const uint32_t at = layer * peers->experts + expert;
    size_t n = 0;

    wait_for_leases(peers);
    refresh(peers, age_us);
    pthread_mutex_lock(&peers->mutex);
    for (size_t k = 0; k < SY_COUNT_OF(order); k++)
        for (size_t i = 0; i < peers->n && n < max; i++) {
            expert_answer *answer = peers->peer[i].answer;
            if (answer == NULL || answer->state[at] != order[k]) continue;
            if (answer->checkpoint_hash == checkpoint_hash) out[n++] = answer_ref(answer);
        }
    pthread_mutex_unlock(&peers->mutex);
    return n;
}
