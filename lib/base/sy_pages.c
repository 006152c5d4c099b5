/* sy_pages.c - large memory on huge pages: a mapping whose beginning is cut to a multiple of the
 * huge page. The kernel puts a huge page only where it fits into the mapping as a whole, and no
 * neighbour can begin in the last, partial one unless it begins at its end: so the tail needs no
 * advice of its own, and an allocation stays one mapping (their number in a process is limited). */
#include "sy_pages.h"

#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_BYTES   ((size_t)2 << 20)
#define PAGE_BYTES   ((size_t)4096)
#define MALLOC_ALIGN ((size_t)64)

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) & ~(unit - 1);
}

/* Address space of one huge page more is mapped, then what lies before and behind is given back. */
static void *map_aligned(size_t bytes)
{
    const size_t length = round_up(bytes, PAGE_BYTES);
    const size_t whole = length + HUGE_BYTES;
    char *start = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t before;

    if (start == MAP_FAILED) return NULL;
    before = round_up((uintptr_t)start, HUGE_BYTES) - (uintptr_t)start;
    if (before > 0) munmap(start, before);
    if (before < HUGE_BYTES) munmap(start + before + length, HUGE_BYTES - before);
    /* A kernel without huge pages refuses, and ordinary ones do. */
    (void)madvise(start + before, length, MADV_HUGEPAGE);
    return start + before;
}

void *sy_pages_alloc(size_t bytes)
{
    if (bytes > PTRDIFF_MAX - HUGE_BYTES) return NULL;
    if (bytes >= HUGE_BYTES) return map_aligned(bytes);
    return aligned_alloc(MALLOC_ALIGN, round_up(SY_MAX(bytes, (size_t)1), MALLOC_ALIGN));
}

void sy_pages_free(void *memory, size_t bytes)
{
    if (memory == NULL) return;
    if (bytes >= HUGE_BYTES) {
        munmap(memory, round_up(bytes, PAGE_BYTES));
    } else {
        free(memory);
    }
}
