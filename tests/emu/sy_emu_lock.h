/* sy_emu_lock.h - locks and waits of the emulators' own, straight on futexes: ThreadSanitizer must
 * not see them, or what they order by accident would hide races of the code under test. For files
 * that are built without it. */
#ifndef SY_EMU_LOCK_H
#define SY_EMU_LOCK_H

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct sy_emu_lock {
    uint32_t state; /* 0: free; 1: taken; 2: taken, and others wait */
} sy_emu_lock;

/* Until *word is no longer `is`, or for a while; us = 0: for as long as it takes. Wakes early. */
static inline void sy_emu_futex_wait(uint32_t *word, uint32_t is, uint32_t us)
{
    const struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};

    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, is, us != 0 ? &t : (const struct timespec *)0, 0,
            0);
}

static inline void sy_emu_futex_wake(uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, 0, 0, 0);
}

static inline void sy_emu_lock_take(sy_emu_lock *l)
{
    uint32_t was = 0;

    if (__atomic_compare_exchange_n(&l->state, &was, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    while (__atomic_exchange_n(&l->state, 2, __ATOMIC_ACQUIRE) != 0)
        sy_emu_futex_wait(&l->state, 2, 0);
}

static inline void sy_emu_lock_give(sy_emu_lock *l)
{
    if (__atomic_exchange_n(&l->state, 0, __ATOMIC_RELEASE) == 2) sy_emu_futex_wake(&l->state, 1);
}

#endif
