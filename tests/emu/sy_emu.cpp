/* sy_emu.cpp - launches, the order of threads, barriers, and the memory of a block. */
#include "sy_emu_lock.h"
#include "sy_emu_state.h"
#include "sy_emu_stream.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <vector>

#ifdef SY_EMU_ASAN
#include <sanitizer/asan_interface.h>
#endif

/* Blocks that lie this close never share a fiber: one that both ran on would have seen the first
 * block's barriers, and so order, for TSan, what nothing orders. */
static const unsigned SETS = 3;

static const size_t SHARED_MAX = 48 << 10; /* of static arrays, as on every device */
static const size_t GAP = 64;              /* after each array; nobody may write there */
static const int GAP_BYTE = 0xfd;
static const int POISON = 0xff;

sy_emu_launch_state sy_emu;

enum order_kind { LINEAR, REVERSE, RANDOM };
static order_kind order;
static uint64_t random_state;
static void (*kernel)(void *);
static void *kernel_argument;
static char *end_token; /* of this launch alone: launches order nothing by their own */
static sy_emu_lock turn_to_launch;
static thread_local bool launches;
static sy_emu_enqueue enqueue;

/* With TSan every OS thread has its own, since what one has left on a stack is not for another. */
struct fiber_pool {
    std::vector<sy_emu_fiber> fiber;
    size_t next = 0;

    ~fiber_pool()
    {
        sy_emu_fiber_ignore_begin();
        for (sy_emu_fiber &f : fiber) sy_emu_fiber_close(&f);
        sy_emu_fiber_ignore_end();
    }
};
#ifdef SY_EMU_TSAN
static thread_local fiber_pool own_pool;
#else
static fiber_pool &own_pool = *new fiber_pool; /* kept for good: others may run at the exit */
#endif
static fiber_pool *pool; /* of the running launch */

struct shared_array {
    const void *key;
    char *data;
    size_t n;
};
static struct {
    char *memory; /* the tokens, then the arrays */
    size_t used;
    shared_array array[32];
    int n_arrays;
} block;

void sy_emu_die(const char *format, ...)
{
    va_list args;

    if (launches && sy_emu.current != nullptr) {
        const sy_emu_place &p = sy_emu.current->place;
        fprintf(stderr, "sy_emu: block (%u,%u,%u), thread (%u,%u,%u): ", p.block.x, p.block.y,
                p.block.z, p.thread.x, p.thread.y, p.thread.z);
    } else {
        fprintf(stderr, "sy_emu: ");
    }
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

const sy_emu_place *sy_emu_here(void)
{
    return &sy_emu.current->place;
}

void sy_emu_yield(void)
{
    sy_emu_fiber_switch(sy_emu.current->fiber, &sy_emu.host);
}

/* ---- order ---- */

static void read_order(void)
{
    const char *text = getenv("SY_EMU_ORDER");
    unsigned long long seed = 1;
    char rest;

    if (text == nullptr || sscanf(text, "random:%llu%c", &seed, &rest) == 1) {
        order = RANDOM;
    } else if (strcmp(text, "linear") == 0) {
        order = LINEAR;
    } else if (strcmp(text, "reverse") == 0) {
        order = REVERSE;
    } else {
        sy_emu_die("SY_EMU_ORDER=%s: linear, reverse or random:SEED", text);
    }
    random_state = seed;
}

static void permute(std::vector<unsigned> &turn)
{
    const size_t n = turn.size();

    for (size_t i = 0; i < n; i++) turn[i] = (unsigned)(order == REVERSE ? n - 1 - i : i);
    for (size_t i = n; order == RANDOM && i > 1; i--) {
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        const size_t j = (size_t)((random_state >> 33) % i);
        const unsigned t = turn[i - 1];
        turn[i - 1] = turn[j];
        turn[j] = t;
    }
}

/* ---- shared memory ---- */

static void guard([[maybe_unused]] char *at, [[maybe_unused]] size_t n)
{
#ifdef SY_EMU_ASAN
    __asan_poison_memory_region(at, n);
#endif
}

static void open_memory(void)
{
    const size_t bytes = sizeof(sy_emu_tokens) + SHARED_MAX + 34 * GAP;

    block.memory = static_cast<char *>(aligned_alloc(GAP, (bytes + GAP - 1) / GAP * GAP));
    if (block.memory == nullptr) sy_emu_die("no memory for a block");
    memset(block.memory, GAP_BYTE, bytes);
    sy_emu.tokens = reinterpret_cast<sy_emu_tokens *>(block.memory);
    block.used = (sizeof(sy_emu_tokens) + GAP - 1) / GAP * GAP;
    block.n_arrays = 0;
    guard(block.memory + block.used, bytes - block.used);
    sy_emu_fiber_release(&sy_emu.tokens->start);
}

void *sy_emu_shared(const void *key, size_t n)
{
    for (int i = 0; i < block.n_arrays; i++)
        if (block.array[i].key == key) return block.array[i].data;
    if (block.n_arrays == 32 || n > SHARED_MAX ||
        block.used + n > sizeof(sy_emu_tokens) + SHARED_MAX)
        sy_emu_die("more than %zu bytes, or 32 arrays, of shared memory", SHARED_MAX);
    shared_array *a = &block.array[block.n_arrays++];
    *a = {key, block.memory + block.used, n};
    block.used += (n + GAP - 1) / GAP * GAP + GAP;
#ifdef SY_EMU_ASAN
    __asan_unpoison_memory_region(a->data, n);
#endif
    /* Not by memset: TSan would see this thread write what the others then use unordered. */
    for (size_t i = 0; i < n; i++) static_cast<volatile char *>(a->data)[i] = (char)POISON;
    return a->data;
}

static void close_memory(void)
{
#ifndef SY_EMU_ASAN
    for (int i = 0; i < block.n_arrays; i++)
        for (size_t j = 0; j < GAP; j++)
            if (block.array[i].data[block.array[i].n + j] != (char)GAP_BYTE)
                sy_emu_die("byte %zu after a shared array of %zu was written", j, block.array[i].n);
#endif
#ifdef SY_EMU_ASAN
    __asan_unpoison_memory_region(block.memory, sizeof(sy_emu_tokens) + SHARED_MAX + 34 * GAP);
#endif
    free(block.memory);
}

/* ---- threads ---- */

/* Whether others wait for a thread that leaves now, as they may for ever. */
static void check_nobody_waits(const sy_emu_thread *self)
{
    const sy_emu_warp *w = &sy_emu.warp[self->id / 32];

    if (self->copies.n != 0) sy_emu_die("leaves with %d copies on their way", self->copies.n);
    if (sy_emu.n_at_barrier != 0)
        sy_emu_die("has left before the barrier of line %d, at which others are",
                   sy_emu.barrier_line);
    for (int i = 0; i < SY_EMU_MASKS_MAX; i++)
        if (w->meeting[i].arrived != 0 && (w->meeting[i].mask >> self->place.lane & 1))
            sy_emu_die("line %d: a warp primitive names a lane that has left", w->meeting[i].line);
}

static void thread_main(void)
{
    sy_emu_thread *self = sy_emu.current;

    sy_emu_fiber_acquire(&sy_emu.tokens->start);
    kernel(kernel_argument);
    sy_emu_fiber_release(end_token);
    check_nobody_waits(self);
    self->state = SY_EMU_LEFT;
    sy_emu.n_live--;
    sy_emu.warp[self->id / 32].live &= ~(1u << self->id % 32);
    sy_emu_fiber_leave(self->fiber, &sy_emu.host);
}

static void open_threads(dim3 grid, dim3 size, uint3 at)
{
    const unsigned n = sy_emu.n_threads;

    for (unsigned w = 0; w < SY_EMU_WARPS_MAX; w++) {
        sy_emu.warp[w].members = sy_emu.warp[w].live = 0;
        for (int m = 0; m < SY_EMU_MASKS_MAX; m++)
            sy_emu.warp[w].meeting[m].mask = sy_emu.warp[w].meeting[m].arrived = 0;
    }
    for (unsigned i = 0; i < n; i++) {
        sy_emu_thread *t = &sy_emu.thread[i];
        t->place = {
            {i % size.x, i / size.x % size.y, i / (size.x * size.y)}, at, size, grid, i % 32};
        t->id = i;
        t->state = SY_EMU_READY;
        t->copies.n = t->copies.n_landed = t->copies.n_groups = 0;
        t->fiber = &pool->fiber[(pool->next + i) % pool->fiber.size()];
        sy_emu_fiber_prepare(t->fiber, thread_main);
        sy_emu.warp[i / 32].members |= 1u << i % 32;
        sy_emu.warp[i / 32].live |= 1u << i % 32;
    }
    pool->next = (pool->next + n) % pool->fiber.size();
    sy_emu.n_live = n;
    sy_emu.n_at_barrier = 0;
    sy_emu.barrier_sum = 0;
}

static void open_pool(unsigned n)
{
    pool = &own_pool;
    while (pool->fiber.size() < (size_t)n * SETS) {
        pool->fiber.emplace_back();
        sy_emu_fiber_open(&pool->fiber.back());
    }
}

/* ---- barriers ---- */

int sy_emu_barrier(sy_emu_barrier_kind kind, int predicate, int line)
{
    sy_emu_thread *self = sy_emu.current;
    char *token = &sy_emu.tokens->barrier[sy_emu.barrier_phase % 2];

    if (sy_emu.n_live != sy_emu.n_threads)
        sy_emu_die("line %d: a barrier, and %u threads have left before it", line,
                   sy_emu.n_threads - sy_emu.n_live);
    if (sy_emu.n_at_barrier != 0 && (kind != sy_emu.barrier_kind || line != sy_emu.barrier_line))
        sy_emu_die("line %d: a barrier, while others are at that of line %d", line,
                   sy_emu.barrier_line);
    sy_emu.barrier_kind = kind;
    sy_emu.barrier_line = line;
    sy_emu.barrier_sum += predicate;
    sy_emu.n_at_barrier++;
    self->state = SY_EMU_AT_BARRIER;
    sy_emu_fiber_release(token);
    sy_emu_yield();
    sy_emu_fiber_acquire(token);
    return sy_emu.barrier_result;
}

static void open_barrier(void)
{
    sy_emu.barrier_result = sy_emu.barrier_sum;
    sy_emu.barrier_sum = 0;
    sy_emu.n_at_barrier = 0;
    sy_emu.barrier_phase++;
    for (unsigned i = 0; i < sy_emu.n_threads; i++) sy_emu.thread[i].state = SY_EMU_READY;
}

[[noreturn]] static void die_stuck(void)
{
    unsigned n_at_primitive = 0;

    for (unsigned i = 0; i < sy_emu.n_threads; i++)
        n_at_primitive += sy_emu.thread[i].state == SY_EMU_AT_PRIMITIVE;
    sy_emu_die("nobody can go on: %u threads at the barrier of line %d, %u at warp primitives, "
               "%u have left",
               sy_emu.n_at_barrier, sy_emu.barrier_line, n_at_primitive,
               sy_emu.n_threads - sy_emu.n_live);
}

/* ---- blocks and launches ---- */

static void run_threads(void)
{
    static std::vector<unsigned> turn;

    turn.resize(sy_emu.n_threads);
    while (sy_emu.n_live > 0) {
        bool someone_ran = false;
        permute(turn);
        for (unsigned i : turn) {
            sy_emu_thread *t = &sy_emu.thread[i];
            if (t->state != SY_EMU_READY) continue;
            someone_ran = true;
            sy_emu.current = t;
            sy_emu_fiber_switch(&sy_emu.host, t->fiber);
            sy_emu.current = nullptr;
        }
        if (someone_ran) continue;
        if (sy_emu.n_at_barrier != sy_emu.n_threads) die_stuck();
        open_barrier();
    }
}

static void run_blocks(dim3 grid, dim3 size)
{
    std::vector<unsigned> turn((size_t)grid.x * grid.y * grid.z);

    permute(turn);
    for (unsigned i : turn) {
        open_memory();
        open_threads(grid, size, {i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y)});
        run_threads();
        close_memory();
    }
}

void sy_emu_launch(dim3 grid, dim3 size, void (*body)(void *), void *argument, bool on_stream)
{
    const size_t n = (size_t)size.x * size.y * size.z;
    const size_t n_blocks = (size_t)grid.x * grid.y * grid.z;

    if (launches) sy_emu_die("launches a kernel");
    if (n < 1 || n > SY_EMU_THREADS_MAX) sy_emu_die("a block of %zu threads", n);
    if (n_blocks == 0 || grid.y > 65535 || grid.z > 65535)
        sy_emu_die("a grid of (%u,%u,%u)", grid.x, grid.y, grid.z);
    sy_emu_lock_take(&turn_to_launch);
    sy_emu_fiber_ignore_begin();
    launches = true;
    read_order();
    open_pool((unsigned)n);
    sy_emu_fiber_adopt(&sy_emu.host, !on_stream);
    end_token = static_cast<char *>(malloc(1));
    kernel = body;
    kernel_argument = argument;
    sy_emu.n_threads = (unsigned)n;
    run_blocks(grid, size);
    sy_emu_fiber_acquire(end_token);
    free(end_token);
    launches = false;
    sy_emu_fiber_ignore_end();
    sy_emu_lock_give(&turn_to_launch);
}

/* ---- streams ---- */

void sy_emu_stream_set_enqueue(sy_emu_enqueue by)
{
    __atomic_store_n(&enqueue, by, __ATOMIC_RELEASE);
}

int sy_emu_enqueue_on(void *stream, void (*run)(void *), void (*drop)(void *), void *argument)
{
    const sy_emu_enqueue by = __atomic_load_n(&enqueue, __ATOMIC_ACQUIRE);

    if (by == nullptr) sy_emu_die("a launch on a stream, and there is no runtime");
    return by(stream, run, drop, argument);
}
