/* sy_pool.c - a parallel for. Workers sleep on a condition variable between runs. A run does not
 * wait for sleepy workers: the caller works from the first moment, and a worker that wakes after
 * the last index was claimed goes back to sleep without taking part. Indices are claimed one by one
 * from a shared counter, so a slow core takes fewer of them. */
#include "sy_pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS_MAX 1024

typedef struct worker {
    sy_pool *pool;
    unsigned thread_id; /* 1 and up: 0 is the caller */
    pthread_t thread;
} worker;

struct sy_pool {
    pthread_mutex_t turn; /* held by the caller for the whole of a run */
    pthread_mutex_t lock; /* guards everything below up to next_id */
    pthread_cond_t work;  /* a run was opened, or the pool is ending */
    pthread_cond_t left;  /* the last worker left a closed run */
    uint64_t run_id;
    int is_open; /* workers may still enter the run */
    int is_ending;
    unsigned n_inside; /* workers in the run */
    void (*fn)(void *arg, size_t i, unsigned thread);
    void *arg;
    size_t n;
    _Alignas(SY_CACHE_LINE) _Atomic size_t next_id; /* the next index nobody has claimed */
    _Alignas(SY_CACHE_LINE) unsigned n_workers;
    char name[16];
    worker workers[];
};

/* fn, arg and n do not change while a thread is inside the run. The counter passes n by one for
 * each thread, no more. */
static void work_off(sy_pool *pool, unsigned thread_id)
{
    size_t i;

    while ((i = atomic_fetch_add_explicit(&pool->next_id, 1, memory_order_relaxed)) < pool->n) {
        pool->fn(pool->arg, i, thread_id);
    }
}

static void *worker_main(void *arg)
{
    worker *self = arg;
    sy_pool *pool = self->pool;
    uint64_t seen_id = 0;
    char name[16];

    snprintf(name, sizeof(name), "%.10s-%u", pool->name, self->thread_id);
    pthread_setname_np(pthread_self(), name);
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->is_ending && (!pool->is_open || pool->run_id == seen_id)) {
            pthread_cond_wait(&pool->work, &pool->lock);
        }
        if (pool->is_ending) break;
        seen_id = pool->run_id;
        pool->n_inside++;
        pthread_mutex_unlock(&pool->lock);
        work_off(pool, self->thread_id);
        pthread_mutex_lock(&pool->lock);
        pool->n_inside--;
        if (pool->n_inside == 0 && !pool->is_open) pthread_cond_signal(&pool->left);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Workers take no signals meant for the process, so that handlers run where the program expects
 * them. The signals of a fault stay: the kernel kills a thread that faults with them blocked. */
static void block_signals(sigset_t *before)
{
    sigset_t blocked;

    sigfillset(&blocked);
    sigdelset(&blocked, SIGBUS);
    sigdelset(&blocked, SIGSEGV);
    sigdelset(&blocked, SIGFPE);
    sigdelset(&blocked, SIGILL);
    pthread_sigmask(SIG_SETMASK, &blocked, before);
}

static sy_status start_workers(sy_pool *pool, unsigned n_workers)
{
    sigset_t before;
    sy_status st = SY_OK;

    block_signals(&before);
    while (st == SY_OK && pool->n_workers < n_workers) {
        worker *next = &pool->workers[pool->n_workers];

        next->pool = pool;
        next->thread_id = pool->n_workers + 1;
        if (pthread_create(&next->thread, NULL, worker_main, next) == 0) {
            pool->n_workers++;
        } else {
            st = SY_ELIMIT;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return st;
}

sy_status sy_pool_open(sy_pool **out, unsigned n_threads, const char *name)
{
    sy_status st;
    void *memory;
    sy_pool *self;

    *out = NULL;
    if (n_threads == 0 || n_threads > THREADS_MAX) return SY_EINVAL;
    if (posix_memalign(&memory, SY_CACHE_LINE,
                       sizeof(*self) + (n_threads - 1) * sizeof(self->workers[0])) != 0) {
        return SY_ENOMEM;
    }
    self = memory;
    *self = (sy_pool){.n_workers = 0};
    snprintf(self->name, sizeof(self->name), "%s", name != NULL ? name : "pool");
    pthread_mutex_init(&self->turn, NULL);
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->work, NULL);
    pthread_cond_init(&self->left, NULL);
    SY_TRY(start_workers(self, n_threads - 1));
    *out = self;
    self = NULL;
out:
    sy_pool_free(self);
    return st;
}

void sy_pool_free(sy_pool *pool)
{
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->lock);
    SY_ASSERT(!pool->is_open);
    pool->is_ending = 1;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->n_workers; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->left);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->turn);
    free(pool);
}

unsigned sy_pool_threads(const sy_pool *pool)
{
    return pool != NULL ? pool->n_workers + 1 : 1;
}

/* The caller takes one index at least, so more than n - 1 workers would find nothing. */
static void open_run(sy_pool *pool, size_t n, void (*fn)(void *arg, size_t i, unsigned thread),
                     void *arg)
{
    pthread_mutex_lock(&pool->lock);
    pool->fn = fn;
    pool->arg = arg;
    pool->n = n;
    atomic_store_explicit(&pool->next_id, 0, memory_order_relaxed);
    pool->run_id++;
    pool->is_open = 1;
    if (n - 1 >= pool->n_workers) {
        pthread_cond_broadcast(&pool->work);
    } else {
        for (size_t i = 1; i < n; i++) pthread_cond_signal(&pool->work);
    }
    pthread_mutex_unlock(&pool->lock);
}

static void close_run(sy_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->is_open = 0;
    while (pool->n_inside > 0) pthread_cond_wait(&pool->left, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

void sy_pool_run(sy_pool *pool, size_t n, void (*fn)(void *arg, size_t i, unsigned thread),
                 void *arg)
{
    if (n == 0) return;
    if (pool == NULL) {
        for (size_t i = 0; i < n; i++) fn(arg, i, 0);
        return;
    }
    /* Also for a run that stays inline: thread 0's scratch memory belongs to one run at a time. */
    pthread_mutex_lock(&pool->turn);
    if (n == 1 || pool->n_workers == 0) {
        for (size_t i = 0; i < n; i++) fn(arg, i, 0);
    } else {
        open_run(pool, n, fn, arg);
        work_off(pool, 0);
        close_run(pool);
    }
    pthread_mutex_unlock(&pool->turn);
}
