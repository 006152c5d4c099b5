/* sy_arena.c - blocks of doubling size, filled from the front. Under AddressSanitizer every byte
 * that nobody was given is poisoned, and a red zone stands between two allocations. */
#include "sy_arena.h"

#include <stdlib.h>
#include <string.h>

#include "sy_asan.h"

#define LEAST_BLOCK_BYTES ((size_t)64 << 10)
#define ALIGN_BYTES       ((size_t)64)
#define RED_ZONE_BYTES    ((size_t)(SY_ASAN ? 32 : 0))

struct sy_arena_block {
    struct sy_arena_block *older;
    size_t bytes; /* of payload, which begins ALIGN_BYTES after the block does */
};

static char *payload(struct sy_arena_block *block)
{
    return (char *)block + ALIGN_BYTES;
}

static void block_free(struct sy_arena_block *block)
{
    SY_UNPOISON(payload(block), block->bytes);
    free(block);
}

static struct sy_arena_block *block_new(size_t bytes)
{
    void *memory;
    struct sy_arena_block *block;

    if (posix_memalign(&memory, ALIGN_BYTES, ALIGN_BYTES + bytes) != 0) return NULL;
    block = memory;
    block->bytes = bytes;
    SY_POISON(payload(block), bytes);
    return block;
}

/* Puts a block in front that holds at least n bytes: as large as all before it together, where
 * limit and memory allow. */
static int add_block(sy_arena *arena, size_t n)
{
    const size_t room_bytes = arena->limit_bytes - arena->total_bytes;
    const size_t usual_bytes = SY_MIN(SY_MAX(arena->total_bytes, LEAST_BLOCK_BYTES), room_bytes);
    struct sy_arena_block *block = NULL;

    if (n > room_bytes || n > PTRDIFF_MAX - ALIGN_BYTES) return 0;
    if (usual_bytes > n) block = block_new(usual_bytes);
    if (block == NULL) block = block_new(n);
    if (block == NULL) return 0;
    block->older = arena->block;
    arena->block = block;
    arena->used_bytes = 0;
    arena->total_bytes += block->bytes;
    return 1;
}

void sy_arena_init(sy_arena *arena, size_t limit_bytes)
{
    *arena = (sy_arena){.limit_bytes = limit_bytes};
}

void *sy_arena_alloc(sy_arena *arena, size_t n)
{
    const size_t align = n >= ALIGN_BYTES ? ALIGN_BYTES : 16;
    const size_t wanted = n > 0 ? n : 1;
    size_t start = (arena->used_bytes + align - 1) & ~(align - 1);
    char *p;

    if (wanted > PTRDIFF_MAX) return NULL;
    if (arena->block == NULL || start > arena->block->bytes ||
        wanted > arena->block->bytes - start) {
        if (!add_block(arena, wanted)) return NULL;
        start = 0;
    }
    p = payload(arena->block) + start;
    arena->used_bytes = start + wanted;
    SY_UNPOISON(p, wanted);
    arena->used_bytes = SY_MIN(arena->used_bytes + RED_ZONE_BYTES, arena->block->bytes);
    return p;
}

void *sy_arena_calloc(sy_arena *arena, size_t count, size_t size)
{
    size_t n;
    void *p;

    if (__builtin_mul_overflow(count, size, &n)) return NULL;
    p = sy_arena_alloc(arena, n);
    if (p != NULL) memset(p, 0, n);
    return p;
}

char *sy_arena_strndup(sy_arena *arena, const char *s, size_t n)
{
    char *copy = n < SIZE_MAX ? sy_arena_alloc(arena, n + 1) : NULL;

    if (copy == NULL) return NULL;
    if (n > 0) memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}

static void free_blocks(sy_arena *arena)
{
    struct sy_arena_block *older;

    for (struct sy_arena_block *block = arena->block; block != NULL; block = older) {
        older = block->older;
        block_free(block);
    }
    arena->block = NULL;
}

/* Several blocks become one that holds as much as all of them: whoever needs so much again then
 * allocates nothing. */
static void join_blocks(sy_arena *arena)
{
    free_blocks(arena);
    arena->block = block_new(arena->total_bytes);
    if (arena->block != NULL)
        arena->block->older = NULL;
    else
        arena->total_bytes = 0; /* as empty as a new one */
}

void sy_arena_reset(sy_arena *arena)
{
    if (arena->block == NULL) return;
    if (arena->block->older != NULL)
        join_blocks(arena);
    else
        SY_POISON(payload(arena->block), arena->block->bytes);
    arena->used_bytes = 0;
}

void sy_arena_free(sy_arena *arena)
{
    free_blocks(arena);
    sy_arena_init(arena, arena->limit_bytes);
}
