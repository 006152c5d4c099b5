/* tool_memory.h - how much memory this process may still take. */
#ifndef TOOL_MEMORY_H
#define TOOL_MEMORY_H

#include "sy_base.h"

/* What the machine could give without swapping, or less where a control group (version 1 or 2, its
 * own or one above it) has a limit: what is left below that, file caches counted as free.
 * UINT64_MAX: nothing there says so. root: "" for this machine; tests have a folder with proc/ and
 * sys/ in it. */
uint64_t tool_memory_available(const char *root);

#endif
