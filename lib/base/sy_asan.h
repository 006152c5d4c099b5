/* sy_asan.h - tells AddressSanitizer which bytes of a recycled block may be touched. Only for
 * lib/base. */
#ifndef SY_ASAN_H
#define SY_ASAN_H

#if defined(__SANITIZE_ADDRESS__)
#define SY_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SY_ASAN 1
#endif
#endif
#ifndef SY_ASAN
#define SY_ASAN 0
#endif

#if SY_ASAN
#include <sanitizer/asan_interface.h>
#define SY_POISON(p, n)   __asan_poison_memory_region((p), (n))
#define SY_UNPOISON(p, n) __asan_unpoison_memory_region((p), (n))
#else
#define SY_POISON(p, n)   ((void)(p), (void)(n))
#define SY_UNPOISON(p, n) ((void)(p), (void)(n))
#endif

#endif
