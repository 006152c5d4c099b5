/* sy_pool.c - a parallel for. The caller works from the first moment; workers spin for a moment
 * after a run, then sleep on a futex. A run does not wait for sleepy workers: one that wakes after
 * the last index was claimed takes no part. Indices are claimed one by one from a shared counter,
 * so a slow core takes fewer of them.
 *
 * One word says which run there is, whether workers may still enter it, and how many are inside; it
 * is what everybody waits on. A run's arguments change only while it is closed and nobody is
 * inside.
 *
 * Spinning saves the wake-up (5 to 50 us) when runs follow each other closely, as the steps of a
 * layer do, and costs whoever else wants the core when they do not. So a worker spins only as long
 * as most of its recent idle times were shorter than SPIN_US, never when the pools of this process
 * have more threads than the process has cores, and not for a good while after it noticed that
 * another thread had wanted its core. */
#include "sy_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sy_clock.h"

#define THREADS_MAX 1024

/* The word: INSIDE counts workers, the bits from RUN_ONE on number the runs. A number comes again
 * after half a million runs; a worker that slept through exactly that many misses one more. */
#define INSIDE       UINT32_C(0x3ff)
#define OPEN         UINT32_C(0x400)  /* workers may enter */
#define ENDING       UINT32_C(0x800)  /* the pool is being freed */
#define CALLER_WAITS UINT32_C(0x1000) /* the last worker that leaves wakes the caller */
#define RUN_ONE      UINT32_C(0x2000)
#define RUN_MASK     (~(RUN_ONE - 1))

/* Who sleeps on the word, as a futex bitset. */
#define THE_CALLER  UINT32_C(1)
#define THE_WORKERS UINT32_C(2)

enum {
    SPIN_US = 30,
    PAUSES = 24,      /* between two looks at the clock: about a microsecond */
    PREEMPTED_US = 8, /* two looks at the clock that lie further apart had somebody between them */
    SCORE_MAX = 8,    /* a worker spins when its score is above 0 */
    WAKE_FANOUT = 2   /* sleepers that one thread wakes: the woken ones go on with the rest */
};

typedef struct worker {
    sy_pool *pool;
    unsigned thread_id; /* 1 and up: 0 is the caller */
    int score;          /* of recent idle times: up for a short one, down twice for a long one */
    pthread_t thread;
} worker;

struct sy_pool {
    pthread_mutex_t turn; /* held by the caller for the whole of a run */
    unsigned n_workers;
    unsigned n_cores; /* that this process may use */
    char name[16];
    void (*fn)(void *arg, size_t i, unsigned thread);
    void *arg;
    size_t n;
    _Atomic int64_t opened_us; /* when the run was opened; workers judge their idle time by it */
    _Alignas(SY_CACHE_LINE) _Atomic uint32_t run;
    _Alignas(SY_CACHE_LINE) _Atomic uint32_t n_asleep; /* or on their way there */
    _Atomic uint32_t n_wanted;                         /* sleepers that are still to be woken */
    _Alignas(SY_CACHE_LINE) _Atomic size_t next_id;    /* the next index nobody has claimed */
    _Alignas(SY_CACHE_LINE) worker workers[];
};

/* Threads of all pools of the process, callers among them. */
static _Atomic unsigned n_threads_open;

static void futex_wait(_Atomic uint32_t *word, uint32_t expected, uint32_t who)
{
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, expected, NULL, NULL, who);
}

static void futex_wake(_Atomic uint32_t *word, unsigned n, uint32_t who)
{
    syscall(SYS_futex, word, FUTEX_WAKE_BITSET_PRIVATE, n, NULL, NULL, who);
}

static inline void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* ---- spinning ---- */

typedef enum spin_end { SPIN_CHANGED, SPIN_OVER, SPIN_PREEMPTED } spin_end;

/* Until a bit of mask changes in the word, or SPIN_US have passed. An idle worker offers its core
 * to others all the while; the caller does not, whose run would last as long as they like. That
 * somebody took the core ends the spinning. */
static spin_end spin(sy_pool *pool, uint32_t mask, uint32_t value, int offer_core)
{
    const int64_t start_us = sy_clock_us();
    int64_t before_us = start_us;

    for (;;) {
        for (int i = 0; i < PAUSES; i++) {
            if ((atomic_load_explicit(&pool->run, memory_order_relaxed) & mask) != value)
                return SPIN_CHANGED;
            cpu_pause();
        }
        if (offer_core) sched_yield();
        const int64_t now_us = sy_clock_us();
        if (now_us - before_us > PREEMPTED_US) return SPIN_PREEMPTED;
        if (now_us - start_us > SPIN_US) return SPIN_OVER;
        before_us = now_us;
    }
}

static int is_crowded(const sy_pool *pool)
{
    return atomic_load_explicit(&n_threads_open, memory_order_relaxed) > pool->n_cores;
}

/* An idle time counts by when the next run was opened, not by when this worker woke: so a worker
 * that sleeps learns when spinning would have paid. */
static void judge_idle(worker *self, int64_t idle_since_us)
{
    const int64_t opened_us = atomic_load_explicit(&self->pool->opened_us, memory_order_relaxed);

    if (opened_us - idle_since_us <= SPIN_US) {
        self->score = SY_MIN(self->score + 1, SCORE_MAX);
    } else {
        self->score = SY_MAX(self->score - 2, -SCORE_MAX);
    }
}

/* ---- workers ---- */

/* fn, arg and n do not change while a thread is inside the run. The counter passes n by one for
 * each thread, no more. */
static void work_off(sy_pool *pool, unsigned thread_id)
{
    size_t i;

    while ((i = atomic_fetch_add_explicit(&pool->next_id, 1, memory_order_relaxed)) < pool->n) {
        pool->fn(pool->arg, i, thread_id);
    }
}

static int is_new(uint32_t run, uint32_t seen)
{
    return (run & RUN_MASK) != seen || (run & ENDING) != 0;
}

/* Returns the word once it tells of another run than `seen`, or of the end. */
static uint32_t await_run(worker *self, uint32_t seen)
{
    sy_pool *pool = self->pool;
    const int64_t idle_since_us = sy_clock_us();
    uint32_t run = atomic_load_explicit(&pool->run, memory_order_relaxed);

    if (!is_new(run, seen) && self->score > 0 && !is_crowded(pool) &&
        spin(pool, RUN_MASK | ENDING, seen, 1) == SPIN_PREEMPTED) {
        self->score = -SCORE_MAX;
    }
    run = atomic_load_explicit(&pool->run, memory_order_relaxed);
    if (!is_new(run, seen)) {
        /* Both in one order with open_run's: either it sees a sleeper, or the word has changed. */
        atomic_fetch_add(&pool->n_asleep, 1);
        while (!is_new(run = atomic_load(&pool->run), seen)) {
            futex_wait(&pool->run, run, THE_WORKERS);
        }
        atomic_fetch_sub(&pool->n_asleep, 1);
    }
    judge_idle(self, idle_since_us);
    return run;
}

/* A thread that joins a run wakes a few of the sleepers that are still wanted, and they the next:
 * the caller of a wide pool does not spend its time on waking all of them. */
static void wake_some(sy_pool *pool)
{
    uint32_t wanted = atomic_load_explicit(&pool->n_wanted, memory_order_relaxed);
    uint32_t n;

    do {
        if (wanted == 0) return;
        n = SY_MIN(wanted, (uint32_t)WAKE_FANOUT);
    } while (!atomic_compare_exchange_weak(&pool->n_wanted, &wanted, wanted - n));
    futex_wake(&pool->run, n, THE_WORKERS);
}

static void leave(sy_pool *pool)
{
    const uint32_t before = atomic_fetch_sub_explicit(&pool->run, 1, memory_order_acq_rel);

    if ((before & CALLER_WAITS) != 0 && (before & INSIDE) == 1)
        futex_wake(&pool->run, 1, THE_CALLER);
}

static void *worker_main(void *arg)
{
    worker *self = arg;
    sy_pool *pool = self->pool;
    uint32_t seen = 0;
    char name[16];

    snprintf(name, sizeof(name), "%.10s-%u", pool->name, self->thread_id);
    pthread_setname_np(pthread_self(), name);
    for (;;) {
        uint32_t run = await_run(self, seen);
        if ((run & ENDING) != 0) return NULL;
        int entered = 0;
        while (!entered && (run & OPEN) != 0) {
            entered = atomic_compare_exchange_weak_explicit(
                &pool->run, &run, run + 1, memory_order_acquire, memory_order_relaxed);
        }
        seen = run & RUN_MASK;
        if (!entered) continue;
        wake_some(pool);
        work_off(pool, self->thread_id);
        leave(pool);
    }
}

/* ---- opening and freeing ---- */

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

        *next = (worker){.pool = pool, .thread_id = pool->n_workers + 1, .score = 1};
        if (pthread_create(&next->thread, NULL, worker_main, next) == 0) {
            pool->n_workers++;
        } else {
            st = SY_ELIMIT;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    atomic_fetch_add(&n_threads_open, pool->n_workers + 1);
    return st;
}

/* More than a cpu_set_t holds, or no answer: as if there were enough. */
static unsigned count_cores(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 ? (unsigned)CPU_COUNT(&set) : THREADS_MAX;
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
    *self = (sy_pool){.n_cores = count_cores()};
    snprintf(self->name, sizeof(self->name), "%s", name != NULL ? name : "pool");
    pthread_mutex_init(&self->turn, NULL);
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
    SY_ASSERT((atomic_load(&pool->run) & OPEN) == 0);
    atomic_fetch_or(&pool->run, ENDING);
    futex_wake(&pool->run, THREADS_MAX, THE_WORKERS);
    for (unsigned i = 0; i < pool->n_workers; i++) pthread_join(pool->workers[i].thread, NULL);
    atomic_fetch_sub(&n_threads_open, pool->n_workers + 1);
    pthread_mutex_destroy(&pool->turn);
    free(pool);
}

unsigned sy_pool_threads(const sy_pool *pool)
{
    return pool != NULL ? pool->n_workers + 1 : 1;
}

/* ---- running ---- */

/* The caller takes one index at least, so more than n - 1 workers would find nothing; those awake
 * come by themselves. */
static void open_run(sy_pool *pool, size_t n, void (*fn)(void *arg, size_t i, unsigned thread),
                     void *arg)
{
    const size_t n_useful = SY_MIN(n - 1, (size_t)pool->n_workers);
    const uint32_t run = atomic_load_explicit(&pool->run, memory_order_relaxed);

    pool->fn = fn;
    pool->arg = arg;
    pool->n = n;
    atomic_store_explicit(&pool->next_id, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->opened_us, sy_clock_us(), memory_order_relaxed);
    atomic_store(&pool->run, ((run & RUN_MASK) + RUN_ONE) | OPEN);
    const size_t n_asleep = atomic_load(&pool->n_asleep);
    const size_t n_awake = pool->n_workers - n_asleep;
    if (n_useful <= n_awake) return;
    atomic_store_explicit(&pool->n_wanted, (uint32_t)(n_useful - n_awake), memory_order_relaxed);
    wake_some(pool);
}

static void close_run(sy_pool *pool)
{
    uint32_t run = atomic_fetch_and_explicit(&pool->run, ~OPEN, memory_order_acquire) & ~OPEN;

    if ((run & INSIDE) != 0) {
        while (spin(pool, ~UINT32_C(0), run, 0) == SPIN_CHANGED) {
            run = atomic_load_explicit(&pool->run, memory_order_acquire);
            if ((run & INSIDE) == 0) break;
        }
        run = atomic_fetch_or_explicit(&pool->run, CALLER_WAITS, memory_order_acquire);
        while ((run & INSIDE) != 0) {
            futex_wait(&pool->run, run | CALLER_WAITS, THE_CALLER);
            run = atomic_load_explicit(&pool->run, memory_order_acquire);
        }
        atomic_store_explicit(&pool->run, run & RUN_MASK, memory_order_relaxed);
    }
    atomic_store_explicit(&pool->n_wanted, 0, memory_order_relaxed);
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
