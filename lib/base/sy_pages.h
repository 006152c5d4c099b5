/* sy_pages.h - memory for weights and caches: large, made once, read at the speed of the memory.
 * From 2 MiB on it is mapped by itself, begins at a multiple of 2 MiB and asks the kernel for huge
 * pages, so that reading it in several streams does not wait for address translation; its last part
 * below 2 MiB has ordinary pages, so that nothing beyond `bytes`, rounded up to a page, ever
 * becomes resident. Smaller memory comes from the heap. */
#ifndef SY_PAGES_H
#define SY_PAGES_H

#include "sy_base.h"

/* bytes of memory, 64-byte aligned at least; NULL: no memory. Its content is undefined (not
 * zeroed: a caller that needs zeros writes them). Nothing is touched here: a page becomes resident
 * on the node of the thread that writes it first, so let the threads that will read it pack it. One
 * allocation for all the matrices of a shard wastes less than one for each. Any thread. */
void *sy_pages_alloc(size_t bytes);
/* bytes: as they were asked for. Accepts NULL. */
void sy_pages_free(void *memory, size_t bytes);

#endif
