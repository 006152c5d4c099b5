/* expert_idle.c - the hand-over between an owner and its idle thread. */
#include "expert_idle.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

struct expert_idle {
    pthread_mutex_t mutex;  /* of these two threads only */
    pthread_cond_t changed; /* fn or stopping */
    void (*fn)(void *arg);  /* NULL: nothing to do */
    void *arg;
    int stopping;
    pthread_t thread;
};

/* Of this thread only. Linux's idle class yields to everything else; where it is not allowed, the
 * lowest ordinary priority comes close. */
static void yield_to_all(void)
{
    const struct sched_param param = {0};

    if (sched_setscheduler(0, SCHED_IDLE, &param) != 0)
        setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
}

static void *idle_main(void *arg)
{
    expert_idle *idle = arg;

    yield_to_all();
    pthread_mutex_lock(&idle->mutex);
    for (;;) {
        while (idle->fn == NULL && !idle->stopping) pthread_cond_wait(&idle->changed, &idle->mutex);
        if (idle->stopping) break;
        pthread_mutex_unlock(&idle->mutex);
        idle->fn(idle->arg); /* the owner waits: neither changes meanwhile */
        pthread_mutex_lock(&idle->mutex);
        idle->fn = NULL;
        pthread_cond_broadcast(&idle->changed);
    }
    pthread_mutex_unlock(&idle->mutex);
    return NULL;
}

sy_status expert_idle_open(expert_idle **out, sy_error *err)
{
    expert_idle *idle = calloc(1, sizeof(*idle));

    *out = NULL;
    if (idle == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for an idle thread");
    pthread_mutex_init(&idle->mutex, NULL);
    pthread_cond_init(&idle->changed, NULL);
    if (pthread_create(&idle->thread, NULL, idle_main, idle) != 0) {
        free(idle);
        return sy_error_set(err, SY_EIO, "no idle thread");
    }
    *out = idle;
    return SY_OK;
}

void expert_idle_close(expert_idle *idle)
{
    if (idle == NULL) return;
    pthread_mutex_lock(&idle->mutex);
    idle->stopping = 1;
    pthread_cond_broadcast(&idle->changed);
    pthread_mutex_unlock(&idle->mutex);
    pthread_join(idle->thread, NULL);
    pthread_cond_destroy(&idle->changed);
    pthread_mutex_destroy(&idle->mutex);
    free(idle);
}

void expert_idle_run(expert_idle *idle, void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&idle->mutex);
    idle->arg = arg;
    idle->fn = fn;
    pthread_cond_broadcast(&idle->changed);
    while (idle->fn != NULL) pthread_cond_wait(&idle->changed, &idle->mutex);
    pthread_mutex_unlock(&idle->mutex);
}
