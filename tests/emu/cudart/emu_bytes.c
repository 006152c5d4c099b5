/* emu_bytes.c - what a copy reads and writes, where every sanitizer sees it. */
#include <string.h>

#include "emu_state.h"

void emu_bytes_copy(void *to, const void *from, size_t n)
{
    memcpy(to, from, n);
}

void emu_bytes_set(void *to, int value, size_t n)
{
    memset(to, value, n);
}
