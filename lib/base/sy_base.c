/* sy_base.c - the end of a process that found a mistake of its programmer. */
#include "sy_base.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void sy_assert_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, cond);
    abort();
}
