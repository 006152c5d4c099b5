/* sy_emu_fiber.cpp - see sy_emu_fiber.h. Never built with ThreadSanitizer itself: it runs between
 * threads, and nothing it touches belongs to one. */
#include "sy_emu_fiber.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef __x86_64__
#include <ucontext.h>
#endif
#ifdef SY_EMU_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" void __tsan_ignore_thread_begin(void);
extern "C" void __tsan_ignore_thread_end(void);
#endif
#ifdef SY_EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

static const size_t stack_bytes = 256 << 10; /* frames are several times larger under ASan */

#ifdef __x86_64__
/* Pushes what a call must preserve, changes stacks, and returns on the other one. swapcontext would
 * do, with two system calls each time. */
extern "C" void sy_emu_switch_stacks(void **save, void *to);
asm(".text\n"
    ".globl sy_emu_switch_stacks\n"
    ".type sy_emu_switch_stacks,@function\n"
    "sy_emu_switch_stacks:\n"
    "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
    "movq %rsp,(%rdi)\n"
    "movq %rsi,%rsp\n"
    "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
    "ret\n"
    ".size sy_emu_switch_stacks,.-sy_emu_switch_stacks\n");
#endif

static sy_emu_fiber *starting; /* whose entry runs next */
static sy_emu_fiber *own;      /* the OS thread's that launches */
static bool are_apart;

void sy_emu_fiber_open(sy_emu_fiber *fiber)
{
    const size_t guard = (size_t)sysconf(_SC_PAGESIZE);
    void *map = mmap(nullptr, guard + stack_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (map == MAP_FAILED || mprotect(map, guard, PROT_NONE) != 0) {
        perror("sy_emu: a stack");
        abort();
    }
    *fiber = {};
    fiber->stack = static_cast<char *>(map) + guard;
    fiber->stack_bytes = stack_bytes;
#ifndef __x86_64__
    fiber->sp = new ucontext_t();
#endif
}

void sy_emu_fiber_close(sy_emu_fiber *fiber)
{
    const size_t guard = (size_t)sysconf(_SC_PAGESIZE);

#ifdef SY_EMU_TSAN
    if (fiber->sanitizer != nullptr) __tsan_destroy_fiber(fiber->sanitizer);
#endif
#ifndef __x86_64__
    delete static_cast<ucontext_t *>(fiber->sp);
#endif
    munmap(fiber->stack - guard, guard + fiber->stack_bytes);
}

void sy_emu_fiber_adopt(sy_emu_fiber *fiber, bool apart)
{
#ifndef __x86_64__
    void *context = fiber->sp != nullptr ? fiber->sp : new ucontext_t();
#endif
    *fiber = {};
    own = fiber;
    are_apart = apart;
#ifdef SY_EMU_TSAN
    fiber->sanitizer = __tsan_get_current_fiber();
#endif
#ifndef __x86_64__
    fiber->sp = context;
#endif
}

static void begin(void)
{
    sy_emu_fiber *self = starting;

#ifdef SY_EMU_ASAN
    const void *from = nullptr;
    size_t n = 0;
    __sanitizer_finish_switch_fiber(nullptr, &from, &n);
    if (own->stack == nullptr) { /* only here does one learn where the OS thread's lies */
        own->stack = static_cast<char *>(const_cast<void *>(from));
        own->stack_bytes = n;
    }
#endif
    self->entry();
    abort(); /* it had to leave through sy_emu_fiber_leave */
}

void sy_emu_fiber_prepare(sy_emu_fiber *fiber, void (*entry)(void))
{
    fiber->entry = entry;
#ifdef SY_EMU_TSAN
    if (are_apart && fiber->sanitizer == nullptr) fiber->sanitizer = __tsan_create_fiber(0);
#endif
#ifdef SY_EMU_ASAN
    __asan_unpoison_memory_region(fiber->stack, fiber->stack_bytes);
    fiber->sanitizer = nullptr;
#endif
#ifdef __x86_64__
    void **top = reinterpret_cast<void **>(fiber->stack + fiber->stack_bytes);
    *--top = nullptr; /* as a call would leave it: the stack is 16-byte aligned at the entry */
    *--top = reinterpret_cast<void *>(begin);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber->sp = top;
#else
    ucontext_t *context = static_cast<ucontext_t *>(fiber->sp);
    getcontext(context);
    context->uc_stack.ss_sp = fiber->stack;
    context->uc_stack.ss_size = fiber->stack_bytes;
    context->uc_link = nullptr;
    makecontext(context, begin, 0);
#endif
}

static void change(sy_emu_fiber *from, sy_emu_fiber *to, [[maybe_unused]] void **fake_stack)
{
    starting = to;
#ifdef SY_EMU_TSAN
    if (are_apart) {
        __tsan_switch_to_fiber(to->sanitizer, __tsan_switch_to_fiber_no_sync);
    } else if (from == own) {
        sy_emu_fiber_ignore_end();
    }
#endif
#ifdef SY_EMU_ASAN
    __sanitizer_start_switch_fiber(fake_stack, to->stack, to->stack_bytes);
#endif
#ifdef __x86_64__
    sy_emu_switch_stacks(&from->sp, to->sp);
#else
    swapcontext(static_cast<ucontext_t *>(from->sp), static_cast<ucontext_t *>(to->sp));
#endif
#ifdef SY_EMU_ASAN
    __sanitizer_finish_switch_fiber(from->sanitizer, nullptr, nullptr);
#endif
#ifdef SY_EMU_TSAN
    if (!are_apart && from == own) sy_emu_fiber_ignore_begin();
#endif
}

void sy_emu_fiber_switch(sy_emu_fiber *from, sy_emu_fiber *to)
{
    change(from, to, &from->sanitizer);
}

void sy_emu_fiber_leave(sy_emu_fiber *from, sy_emu_fiber *to)
{
    change(from, to, nullptr); /* its fake stack goes with it */
    abort();
}

void sy_emu_fiber_release([[maybe_unused]] void *token)
{
#ifdef SY_EMU_TSAN
    __tsan_release(token);
#endif
}

void sy_emu_fiber_acquire([[maybe_unused]] void *token)
{
#ifdef SY_EMU_TSAN
    __tsan_acquire(token);
#endif
}

void sy_emu_fiber_ignore_begin(void)
{
#ifdef SY_EMU_TSAN
    __tsan_ignore_thread_begin();
#endif
}

void sy_emu_fiber_ignore_end(void)
{
#ifdef SY_EMU_TSAN
    __tsan_ignore_thread_end();
#endif
}
