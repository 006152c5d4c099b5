/* sy_emu_fiber.h - stacks and switching between them, as sanitizers have to be told of it. Private
 * to the emulator. On one OS thread at a time. SY_EMU_ASAN and SY_EMU_TSAN say what the tests are
 * built with. */
#ifndef SY_EMU_FIBER_H
#define SY_EMU_FIBER_H

#include <stddef.h>

/* A stack, and what runs on it. The one of the OS thread's own stack has no entry. */
struct sy_emu_fiber {
    void *sp;    /* where it was left, registers pushed; a ucontext_t where there is no switch */
    char *stack; /* lowest byte */
    size_t stack_bytes;
    void *sanitizer; /* TSan's fiber, or ASan's fake stack while it is left */
    void (*entry)(void);
};

/* Takes a stack with a guard page below. */
void sy_emu_fiber_open(sy_emu_fiber *fiber);
void sy_emu_fiber_close(sy_emu_fiber *fiber); /* one that has left */
/* The OS thread itself, which is the calling one from now on. apart: for TSan every fiber is a
 * thread of its own; otherwise all of them are this one, which must ignore (see below) until it
 * switches. */
void sy_emu_fiber_adopt(sy_emu_fiber *fiber, bool apart);
/* The next switch to it begins entry(), which must leave through sy_emu_fiber_leave. */
void sy_emu_fiber_prepare(sy_emu_fiber *fiber, void (*entry)(void));
void sy_emu_fiber_switch(sy_emu_fiber *from, sy_emu_fiber *to);
[[noreturn]] void sy_emu_fiber_leave(sy_emu_fiber *from, sy_emu_fiber *to);

/* What orders memory between fibers, for TSan; nothing elsewhere. */
void sy_emu_fiber_release(void *token);
void sy_emu_fiber_acquire(void *token);
/* Between these, but not in fibers, what the calling thread reads, writes and frees is not seen by
 * TSan. */
void sy_emu_fiber_ignore_begin(void);
void sy_emu_fiber_ignore_end(void);

#endif
