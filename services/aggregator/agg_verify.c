/* agg_verify.c - see agg_verify.h. A byte a shard says that its identity is wanted, another that
 * something has changed: a queue that cannot overflow and in which a shard stands once. */
#include "agg_verify.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "sy_log.h"

/* Who says what a shard should be. */
enum reference_source { UNREAD, OUR_FILES, HOLDERS };

struct agg_verify {
    agg_verify_config config;
    uint32_t n_experts, n_shards;
    /* All [n_shards]. content is written after probe, so who sees the one sees the other. */
    _Atomic uint64_t *content, *probe;
    _Atomic uint8_t *source, *wanted, *changed;
    atomic_int any_changed;
    sem_t wake; /* a semaphore: to post it takes no lock that the idle thread may hold */
    atomic_int posted, stop;
    pthread_t thread;
    int started;
    int told; /* that files cannot be read: its own thread */
};

/* ---- the idle thread ---- */

static void note_change(agg_verify *self, uint32_t shard)
{
    atomic_store(&self->changed[shard], 1);
    atomic_store(&self->any_changed, 1);
}

static void set_reference(agg_verify *self, uint32_t shard, sy_shard_identity identity)
{
    atomic_store(&self->probe[shard], identity.probe);
    atomic_store(&self->content[shard], identity.content);
}

static void identify(agg_verify *self, uint32_t shard)
{
    const uint32_t layer = shard / self->n_experts, expert = shard % self->n_experts;
    sy_shard_identity identity = {0};
    sy_error err;

    if (atomic_load(&self->source[shard]) != UNREAD) { /* asked for again before it was known */
        note_change(self, shard);
        return;
    }
    sy_error_clear(&err);
    if (sy_shard_identify(&identity, self->config.model, self->config.precision, layer, expert,
                          self->config.kernels, &err) == SY_OK) {
        if (self->config.other_arithmetic) identity.probe = 0; /* for holders to say */
        set_reference(self, shard, identity);
        atomic_store(&self->source[shard], OUR_FILES);
    } else {
        if (!self->told)
            sy_log_error(SY_LOG_WARN, &err,
                         "layer %u expert %u of this process' own checkpoint cannot be read; where "
                         "that is so, nodes are only compared with each other",
                         layer, expert);
        self->told = 1;
        atomic_store(&self->source[shard], HOLDERS);
    }
    note_change(self, shard);
}

/* Runs when nothing else wants the processor; at the least priority where that is not to be had. */
static void become_idle(void)
{
    const struct sched_param param = {0};

    if (sched_setscheduler(0, SCHED_IDLE, &param) != 0)
        (void)setpriority(PRIO_PROCESS, (id_t)gettid(), 19);
}

static void *verify_main(void *arg)
{
    agg_verify *self = arg;

    become_idle();
    while (!atomic_load(&self->stop)) {
        if (sem_wait(&self->wake) != 0) continue; /* EINTR */
        atomic_store(&self->posted, 0);
        for (uint32_t s = 0; s < self->n_shards && !atomic_load(&self->stop); s++)
            if (atomic_exchange(&self->wanted[s], 0)) identify(self, s);
    }
    return NULL;
}

/* ---- opening and closing ---- */

void agg_verify_stop(agg_verify *self)
{
    if (self == NULL || !self->started) return;
    atomic_store(&self->stop, 1);
    sem_post(&self->wake);
    pthread_join(self->thread, NULL);
    self->started = 0;
}

void agg_verify_free(agg_verify *self)
{
    if (self == NULL) return;
    agg_verify_stop(self);
    sem_destroy(&self->wake);
    free(self->content);
    free(self->probe);
    free(self->source);
    free(self->wanted);
    free(self->changed);
    free(self);
}

static int allocate(agg_verify *self)
{
    const size_t n = self->n_shards;

    self->content = calloc(n, sizeof(*self->content));
    self->probe = calloc(n, sizeof(*self->probe));
    self->source = calloc(n, sizeof(*self->source));
    self->wanted = calloc(n, sizeof(*self->wanted));
    self->changed = calloc(n, sizeof(*self->changed));
    return self->content != NULL && self->probe != NULL && self->source != NULL &&
           self->wanted != NULL && self->changed != NULL;
}

sy_status agg_verify_open(agg_verify **out, const agg_verify_config *config, sy_error *err)
{
    const sy_model_desc *desc = sy_model_describe(config->model);
    agg_verify *self = calloc(1, sizeof(*self));

    *out = NULL;
    if (self == NULL) return sy_error_set(err, SY_ENOMEM, "no memory to verify weights");
    self->config = *config;
    self->n_experts = desc->n_experts;
    self->n_shards = desc->n_layers * desc->n_experts;
    sem_init(&self->wake, 0, 0);
    if (!allocate(self)) {
        agg_verify_free(self);
        return sy_error_set(err, SY_ENOMEM, "no memory to verify weights");
    }
    for (uint32_t s = 0; !config->read_weights && s < self->n_shards; s++)
        atomic_store_explicit(&self->source[s], HOLDERS, memory_order_relaxed);
    if (config->read_weights) {
        if (pthread_create(&self->thread, NULL, verify_main, self) != 0) {
            agg_verify_free(self);
            return sy_error_set(err, SY_ENOMEM, "no thread to verify weights");
        }
        self->started = 1;
    }
    *out = self;
    return SY_OK;
}

/* ---- what others ask ---- */

void agg_verify_touch(agg_verify *self, uint32_t shard)
{
    const uint8_t source = atomic_load(&self->source[shard]);

    if (source == UNREAD) {
        atomic_store(&self->wanted[shard], 1);
        if (!atomic_exchange(&self->posted, 1)) sem_post(&self->wake);
    } else if (source == HOLDERS || self->config.other_arithmetic) {
        note_change(self, shard);
    }
}

sy_shard_identity agg_verify_reference(const agg_verify *self, uint32_t shard)
{
    sy_shard_identity identity = {0};

    identity.content = atomic_load(&self->content[shard]);
    if (identity.content != 0) identity.probe = atomic_load(&self->probe[shard]);
    return identity;
}

agg_refusal agg_verify_compare(sy_shard_identity copy, sy_shard_identity reference)
{
    if (copy.content == 0 || reference.content == 0) return AGG_FINE;
    if (copy.content != reference.content) return AGG_OTHER_CONTENT;
    if (copy.probe == 0 || reference.probe == 0) return AGG_FINE;
    return copy.probe != reference.probe ? AGG_OTHER_PROBE : AGG_FINE;
}

int agg_verify_next(agg_verify *self, uint32_t *shard)
{
    if (*shard == 0 && !atomic_exchange(&self->any_changed, 0)) return 0;
    for (; *shard < self->n_shards; ++*shard)
        if (atomic_exchange(&self->changed[*shard], 0)) return 1;
    return 0;
}

int agg_verify_by_holders(const agg_verify *self, uint32_t shard)
{
    const uint8_t source = atomic_load(&self->source[shard]);

    return source == HOLDERS || (source == OUR_FILES && self->config.other_arithmetic);
}

int agg_verify_may_be(const agg_verify *self, uint32_t shard, sy_shard_identity copy)
{
    return atomic_load(&self->source[shard]) != OUR_FILES ||
           copy.content == atomic_load(&self->content[shard]);
}

void agg_verify_decide(agg_verify *self, uint32_t shard, sy_shard_identity reference)
{
    set_reference(self, shard, reference);
}
