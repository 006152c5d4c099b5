/* sy_arena.h - bump allocation for one request, freed in one place. One thread at a time. Under
 * AddressSanitizer freed and unused bytes are poisoned. */
#ifndef SY_ARENA_H
#define SY_ARENA_H

#include "sy_status.h"

typedef struct sy_arena {
    struct sy_arena_block *block; /* the newest; older ones are linked behind it */
    size_t used_bytes;            /* in the newest block */
    size_t total_bytes;           /* of all blocks */
    size_t limit_bytes;           /* an allocation that would pass it returns NULL */
} sy_arena;

void sy_arena_init(sy_arena *arena, size_t limit_bytes);
/* Zeroed? No: contents are undefined. Alignment: 64 bytes for n >= 64, else 16. NULL: no memory, or
 * past the limit. */
void *sy_arena_alloc(sy_arena *arena, size_t n);
void *sy_arena_calloc(sy_arena *arena, size_t count,
                      size_t size); /* zeroed; NULL also on overflow */
char *sy_arena_strndup(sy_arena *arena, const char *s,
                       size_t n);     /* NUL is added; s may hold any bytes */
void sy_arena_reset(sy_arena *arena); /* keeps its memory for the next request, in one block */
void sy_arena_free(sy_arena *arena);  /* gives all memory back; the arena may be used again */

#endif
