/* tool_interrupt.c - a thread that waits for signals, because almost nothing may be called from a
 * handler. */
#include "tool_interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define WAKE_SIGNAL SIGUSR2 /* sent by close to the thread itself */

static struct {
    pthread_t thread;
    sigset_t set;
    void (*fn)(void *arg);
    void *arg;
    int is_open;
} watcher;

static void *watch(void *arg)
{
    int n_interrupts = 0;

    (void)arg;
    for (;;) {
        int number = 0;

        if (sigwait(&watcher.set, &number) != 0) continue;
        if (number == WAKE_SIGNAL) return NULL;
        if (n_interrupts++ > 0) _exit(128 + number);
        watcher.fn(watcher.arg);
    }
}

sy_status tool_interrupt_open(void (*fn)(void *arg), void *arg, sy_error *err)
{
    SY_ASSERT(!watcher.is_open);
    watcher.fn = fn;
    watcher.arg = arg;
    sigemptyset(&watcher.set);
    sigaddset(&watcher.set, SIGINT);
    sigaddset(&watcher.set, SIGTERM);
    sigaddset(&watcher.set, WAKE_SIGNAL);
    pthread_sigmask(SIG_BLOCK, &watcher.set, NULL);
    if (pthread_create(&watcher.thread, NULL, watch, NULL) != 0)
        return sy_error_set(err, SY_EIO, "no thread for signals");
    watcher.is_open = 1;
    return SY_OK;
}

void tool_interrupt_close(void)
{
    if (!watcher.is_open) return;
    pthread_kill(watcher.thread, WAKE_SIGNAL);
    pthread_join(watcher.thread, NULL);
    watcher.is_open = 0;
}
