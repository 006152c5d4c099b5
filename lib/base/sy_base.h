/* sy_base.h - the few macros that every file may use. No state, no dependencies. */
#ifndef SY_BASE_H
#define SY_BASE_H

#include <stddef.h>
#include <stdint.h>

#define SY_COUNT_OF(a)       (sizeof(a) / sizeof((a)[0]))
#define SY_MUST_USE          __attribute__((warn_unused_result))
#define SY_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define SY_MIN(a, b)         ((a) < (b) ? (a) : (b))
#define SY_MAX(a, b)         ((a) > (b) ? (a) : (b))
#define SY_CACHE_LINE        64

/* Jumps to `out` with the failure in `st`, which the function declares. */
#define SY_TRY(call)               \
    do {                           \
        st = (call);               \
        if (st != SY_OK) goto out; \
    } while (0)

/* A programmer's mistake: says where and aborts, in release builds too. Nothing that arrives from
 * the network, a file or an operator may reach it. */
#define SY_ASSERT(cond) ((cond) ? (void)0 : sy_assert_failed(#cond, __FILE__, __LINE__))
_Noreturn void sy_assert_failed(const char *cond, const char *file, int line);

#endif
