/* guard_hooks.c - see guard_hooks.h. Everything is a fixed table of atomics: the hooks allocate
 * nothing and take no lock themselves. */
#include "guard_hooks.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SITES_MAX 512 /* callers with their callers; more are counted, but not named */

typedef struct site {
    _Atomic uintptr_t caller; /* 0: free */
    _Atomic uintptr_t above;  /* its caller */
    _Atomic size_t n;
} site;

static site sites[GUARD_N_KINDS][SITES_MAX];
static _Atomic size_t totals[GUARD_N_KINDS];
static _Atomic int is_counting;

extern char __executable_start;

void *__real_malloc(size_t n);
void *__real_calloc(size_t count, size_t n);
void *__real_realloc(void *p, size_t n);
int __real_posix_memalign(void **out, size_t align, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
char *__real_strdup(const char *s);
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *until);
int __real_pthread_cond_signal(pthread_cond_t *cond);
int __real_pthread_cond_broadcast(pthread_cond_t *cond);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t count, size_t n);
void *__wrap_realloc(void *p, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
char *__wrap_strdup(const char *s);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *until);
int __wrap_pthread_cond_signal(pthread_cond_t *cond);
int __wrap_pthread_cond_broadcast(pthread_cond_t *cond);

static void count(guard_kind kind, void *caller, void *above)
{
    const uintptr_t pc = (uintptr_t)caller;

    if (!atomic_load_explicit(&is_counting, memory_order_relaxed)) return;
    atomic_fetch_add(&totals[kind], 1);
    for (size_t i = 0; i < SITES_MAX; i++) {
        site *s = &sites[kind][i];
        uintptr_t was = 0;
        if (atomic_compare_exchange_strong(&s->caller, &was, pc)) {
            atomic_store(&s->above, (uintptr_t)above);
        } else if (was != pc || atomic_load(&s->above) != (uintptr_t)above) {
            continue;
        }
        atomic_fetch_add(&s->n, 1);
        return;
    }
}

/* Our objects keep frame pointers, so both frames are there: each begins with where the one above
 * it is, and where it returns to. */
#define COUNT(kind)                                               \
    do {                                                          \
        void *const *frame = __builtin_frame_address(0);          \
        void *const *caller = frame[0];                           \
        count(kind, frame[1], caller == NULL ? NULL : caller[1]); \
    } while (0)

void *__wrap_malloc(size_t n)
{
    COUNT(GUARD_ALLOCATION);
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n_items, size_t n)
{
    COUNT(GUARD_ALLOCATION);
    return __real_calloc(n_items, n);
}

void *__wrap_realloc(void *p, size_t n)
{
    COUNT(GUARD_ALLOCATION);
    return __real_realloc(p, n);
}

int __wrap_posix_memalign(void **out, size_t align, size_t n)
{
    COUNT(GUARD_ALLOCATION);
    return __real_posix_memalign(out, align, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    COUNT(GUARD_ALLOCATION);
    return __real_aligned_alloc(align, n);
}

char *__wrap_strdup(const char *s)
{
    COUNT(GUARD_ALLOCATION);
    return __real_strdup(s);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    const int busy = pthread_mutex_trylock(mutex);

    if (busy != EBUSY) return busy;
    COUNT(GUARD_CONTENDED);
    return __real_pthread_mutex_lock(mutex);
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    COUNT(GUARD_SLEEP);
    return __real_pthread_cond_wait(cond, mutex);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *until)
{
    COUNT(GUARD_SLEEP);
    return __real_pthread_cond_timedwait(cond, mutex, until);
}

int __wrap_pthread_cond_signal(pthread_cond_t *cond)
{
    COUNT(GUARD_WAKE);
    return __real_pthread_cond_signal(cond);
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *cond)
{
    COUNT(GUARD_WAKE);
    return __real_pthread_cond_broadcast(cond);
}

/* ---- what came of it ---- */

void guard_begin(void)
{
    memset(sites, 0, sizeof(sites));
    memset(totals, 0, sizeof(totals));
    atomic_store(&is_counting, 1);
}

void guard_end(void)
{
    atomic_store(&is_counting, 0);
}

size_t guard_count(guard_kind kind)
{
    return atomic_load(&totals[kind]);
}

static void print_place(uintptr_t pc, const char *before)
{
    char command[128], name[160] = "";
    FILE *out;

    /* A return address is behind its call. */
    snprintf(command, sizeof(command),
             "addr2line -sfe /proc/%d/exe %#tx 2>/dev/null | paste -sd' '", (int)getpid(),
             (ptrdiff_t)(pc - (uintptr_t)&__executable_start) - 1);
    out = popen(command, "r");
    if (out == NULL || fgets(name, sizeof(name), out) == NULL) snprintf(name, sizeof(name), "?\n");
    if (out != NULL) pclose(out);
    name[strcspn(name, "\n")] = '\0';
    printf("%s%s", before, name);
}

void guard_print(guard_kind kind)
{
    for (size_t i = 0; i < SITES_MAX && atomic_load(&sites[kind][i].caller) != 0; i++) {
        printf("  %6zu", atomic_load(&sites[kind][i].n));
        print_place(atomic_load(&sites[kind][i].caller), "  ");
        print_place(atomic_load(&sites[kind][i].above), "  from ");
        printf("\n");
    }
}
