/* agg_suspect.c - see agg_suspect.h. A probe is a request that its receiver must refuse: one
 * without rows, which costs it no work. Whatever comes back, the peer is alive. */
#include "agg_suspect.h"

#include "agg_peers.h"
#include "sy_clock.h"
#include "sy_log.h"
#include "sy_metrics.h"

enum {
    LEARN_SHIFT = 3,    /* an answer weighs one eighth */
    OUTLIER_FACTOR = 8, /* a longer one counts as so many times the usual: a stall is no habit */
    STRIKES_MAX = 16,
    LOG_INTERVAL_US = 10 * 1000 * 1000
};

int agg_is_suspect(const agg_node *node)
{
    return atomic_load_explicit(&node->suspicion.suspect, memory_order_relaxed);
}

void agg_heard(agg_node *node)
{
    atomic_store_explicit(&node->suspicion.quiet_ticks, 0, memory_order_relaxed);
}

int agg_is_silent(const agg_node *node, int64_t silent_us)
{
    const unsigned ticks = atomic_load_explicit(&node->suspicion.quiet_ticks, memory_order_relaxed);

    return agg_is_suspect(node) && (int64_t)ticks * AGG_PROBE_TICK_US >= silent_us;
}

int agg_comes_last(const agg_node *node)
{
    return agg_is_suspect(node) || atomic_load_explicit(&node->is_draining, memory_order_relaxed);
}

static int64_t backoff_us(unsigned strikes)
{
    int64_t us = AGG_PROBE_MIN_US;

    for (unsigned i = 1; i < strikes && us < AGG_PROBE_MAX_US; i++) us *= 2;
    return SY_MIN(us, (int64_t)AGG_PROBE_MAX_US);
}

/* One more silence: of a request, or of a probe. */
static void strike(agg_suspicion *s)
{
    unsigned strikes = atomic_load_explicit(&s->strikes, memory_order_relaxed);

    strikes = SY_MIN(strikes + 1, (unsigned)STRIKES_MAX);
    atomic_store_explicit(&s->strikes, strikes, memory_order_relaxed);
    atomic_store_explicit(&s->probe_at_us, sy_clock_us() + backoff_us(strikes),
                          memory_order_relaxed);
}

void agg_suspect(agg_node *node, const char *why)
{
    agg_suspicion *s = &node->suspicion;

    if (atomic_load_explicit(&s->suspect, memory_order_relaxed)) return;
    agg_heard(node);
    strike(s); /* first, so that whoever sees the suspicion finds a time for its probe */
    if (atomic_exchange(&s->suspect, 1)) return;
    if (sy_log_due(&s->logged_us, LOG_INTERVAL_US))
        sy_log(SY_LOG_WARN, "%s at %s %s: others are asked first, until it answers a probe",
               node->name, node->address, why);
}

void agg_absolve(agg_node *node)
{
    agg_heard(node);
    if (!agg_is_suspect(node)) return;
    if (atomic_exchange(&node->suspicion.suspect, 0))
        sy_log(SY_LOG_DEBUG, "%s at %s answers again", node->name, node->address);
}

/* ---- what is usual ---- */

static unsigned size_class(uint32_t n_rows)
{
    const unsigned bits = n_rows == 0 ? 0 : 31u - (unsigned)__builtin_clz(n_rows);

    return SY_MIN(bits, (unsigned)AGG_SIZES - 1);
}

static uint32_t usual_at(const agg_suspicion *s, unsigned size)
{
    return atomic_load_explicit(&s->usual_us[size], memory_order_relaxed);
}

/* A size that was never sent is taken for a multiple of the next smaller one that was, which is
 * too long where a message costs more than its rows do; or for as long as the next larger one. */
uint32_t agg_usual_us(const agg_node *node, uint32_t n_rows)
{
    const agg_suspicion *s = &node->suspicion;
    const unsigned size = size_class(n_rows);

    for (unsigned i = size + 1; i-- > 0;) {
        const uint64_t us = (uint64_t)usual_at(s, i) << (size - i);
        if (us > 0) return (uint32_t)SY_MIN(us, (uint64_t)UINT32_MAX);
    }
    for (unsigned i = size + 1; i < AGG_SIZES; i++)
        if (usual_at(s, i) > 0) return usual_at(s, i);
    return 0;
}

uint32_t agg_measured_us(const agg_node *node, uint32_t n_rows)
{
    return usual_at(&node->suspicion, size_class(n_rows));
}

void agg_answered(agg_node *node, uint32_t n_rows, int64_t took_us, int in_time)
{
    agg_suspicion *s = &node->suspicion;
    _Atomic uint32_t *usual = &s->usual_us[size_class(n_rows)];
    const int64_t known = atomic_load_explicit(usual, memory_order_relaxed);
    int64_t us = SY_MAX(took_us, (int64_t)1);

    us = SY_MIN(us, known > 0 ? known * OUTLIER_FACTOR : (int64_t)INT32_MAX);
    us = known == 0 ? us : known + (us - known) / (1 << LEARN_SHIFT);
    atomic_store_explicit(usual, (uint32_t)SY_MAX(SY_MIN(us, (int64_t)INT32_MAX), (int64_t)1),
                          memory_order_relaxed);
    if (in_time && atomic_load_explicit(&s->strikes, memory_order_relaxed) != 0)
        atomic_store_explicit(&s->strikes, 0, memory_order_relaxed);
    agg_absolve(node);
}

/* ---- probes; control thread ---- */

/* On the loop's thread. The node is there: whoever frees one closes its peer first, and that waits
 * for this callback. */
static void on_probe(void *arg, uint64_t id, sy_msg *msg, const sy_error *err)
{
    agg_node *node = arg;

    (void)id;
    (void)err;
    if (msg != NULL) agg_absolve(node);
    atomic_store(&node->suspicion.probing, 0);
}

static sy_status probe_frame(sy_frame *frame, uint64_t id, const char *model, int is_router)
{
    const sy_compute_request compute = {.id = id, .model = model};
    const sy_route_request route = {.id = id, .model = model};

    return is_router ? sy_wire_route_request_encode(frame, &route, NULL)
                     : sy_wire_compute_request_encode(frame, &compute, NULL);
}

/* A probe that is still out when the next is due has had no answer: one more strike. */
static void probe(agg_node *node, const char *model, int is_router)
{
    agg_suspicion *s = &node->suspicion;
    sy_frame frame;

    if (atomic_load(&s->probing) && sy_peer_forget(node->peer, s->probe_id))
        atomic_store(&s->probing, 0);
    if (!agg_is_suspect(node)) return; /* the answer came in this moment */
    strike(s);
    s->probe_id = sy_peer_next_id(node->peer);
    if (probe_frame(&frame, s->probe_id, model, is_router) != SY_OK) return;
    atomic_store(&s->probing, 1);
    if (sy_peer_send(node->peer, s->probe_id, &frame, on_probe, node) != SY_OK)
        atomic_store(&s->probing, 0);
}

/* A peer without a connection is not asked for anything, so it needs no probe before it has one
 * again; then at once. */
static unsigned look_after(agg_node *const *list, uint32_t n, const char *model, int are_routers)
{
    const int64_t now_us = sy_clock_us();
    unsigned suspects = 0;

    for (uint32_t i = 0; i < n; i++) {
        agg_suspicion *s = &list[i]->suspicion;
        const int up = sy_peer_up(list[i]->peer);
        if (up) atomic_store_explicit(&s->seen_up_us, now_us, memory_order_relaxed);
        if (!agg_is_suspect(list[i])) continue;
        suspects++;
        atomic_fetch_add_explicit(&s->quiet_ticks, up ? 1 : 0, memory_order_relaxed);
        if (!up)
            atomic_store_explicit(&s->probe_at_us, now_us, memory_order_relaxed);
        else if (atomic_load_explicit(&s->probe_at_us, memory_order_relaxed) <= now_us)
            probe(list[i], model, are_routers);
    }
    return suspects;
}

void agg_probe_suspects(agg_view *view, const char *model)
{
    static const char name[] = "switchyard_suspect_peers";
    static const char help[] = "Peers that kept silent and are asked only when nobody else is left";

    sy_metric_set(sy_metric_gauge(name, help, "tier=\"expert\""),
                  look_after(view->node, view->n_nodes, model, 0));
    sy_metric_set(sy_metric_gauge(name, help, "tier=\"router\""),
                  look_after(view->router, view->n_routers, model, 1));
}
