/* kernel_cases.h - what the tests of kernels share: memory that ends at an unreadable page, values
 * of every kind, and the comparison of bits. */
#ifndef KERNEL_CASES_H
#define KERNEL_CASES_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "sy_kernels.h"

#define TEST_SEED   20240229u
#define GUARD       0xa5 /* bytes around a buffer that nobody may change */
#define GUARD_BYTES 64

/* A buffer whose end is the end of readable memory, or (gap_bytes > 0) lies that far before it.
 * Reading or writing past the page stops the test; writing into the gap, or before the start, fails
 * cases_check. */
typedef struct edge_buffer {
    uint8_t *map;
    size_t map_bytes;
    uint8_t *data;
    size_t bytes;
    size_t gap_bytes;
} edge_buffer;

static inline edge_buffer edge_open(size_t bytes, size_t gap_bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t used = (bytes + gap_bytes + GUARD_BYTES + page - 1) / page * page;
    edge_buffer b = {.map_bytes = used + page, .bytes = bytes, .gap_bytes = gap_bytes};

    b.map = mmap(NULL, b.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(b.map != MAP_FAILED);
    assert_int_equal(mprotect(b.map + used, page, PROT_NONE), 0);
    memset(b.map, GUARD, used);
    b.data = b.map + used - gap_bytes - bytes;
    return b;
}

static inline float *edge_floats(const edge_buffer *b)
{
    return (float *)(void *)b->data;
}

static inline void edge_check(const edge_buffer *b)
{
    for (size_t i = 1; i <= GUARD_BYTES; i++)
        if (b->data[-(ptrdiff_t)i] != GUARD) fail_msg("byte %zu before the buffer was written", i);
    for (size_t i = 0; i < b->gap_bytes; i++)
        if (b->data[b->bytes + i] != GUARD) fail_msg("byte %zu after the buffer was written", i);
}

static inline void edge_close(edge_buffer *b)
{
    munmap(b->map, b->map_bytes);
}

typedef struct test_random {
    uint64_t state;
} test_random;

static inline uint32_t random_u32(test_random *r)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->state >> 32);
}

static inline float random_unit(test_random *r) /* [-1, 1) */
{
    return (float)(int32_t)random_u32(r) * 0x1p-31f;
}

typedef enum value_kind {
    VALUES_PLAIN, /* [-1, 1) */
    VALUES_TINY, /* around and below the smallest normal, zeros of both signs: products underflow */
    VALUES_HUGE, /* sums overflow, and infinities meet */
    VALUES_MIXED, /* mostly plain; now and then a zero, an infinity, a denormal, something huge */
    N_VALUE_KINDS
} value_kind;

static inline float random_value(test_random *r, value_kind kind)
{
    static const float odd[] = {0.0f,   -0.0f,    1e-45f,    -1e-45f, 1e-39f, -1e-40f, 3e38f,
                                -3e38f, INFINITY, -INFINITY, 1e-20f,  -1e20f, 88.7f,   -87.3f};
    const float unit = random_unit(r);

    switch (kind) {
    case VALUES_TINY:
        return random_u32(r) % 8 == 0 ? copysignf(0.0f, unit) : unit * 0x1p-70f * 0x1p-60f;
    case VALUES_HUGE: return unit * 0x1p+127f;
    case VALUES_MIXED:
        return random_u32(r) % 64 == 0 ? odd[random_u32(r) % SY_COUNT_OF(odd)] : unit * 8.0f;
    default: return unit;
    }
}

static inline void random_fill(float *out, size_t n, test_random *r, value_kind kind)
{
    for (size_t i = 0; i < n; i++) out[i] = random_value(r, kind);
}

/* Equal bits, except that any NaN equals any NaN: which one an operation makes is not specified. */
static inline void check_bits(const float *want, const float *got, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t want_bits, got_bits;
        memcpy(&want_bits, want + i, sizeof(want_bits));
        memcpy(&got_bits, got + i, sizeof(got_bits));
        if (want_bits != got_bits && !(isnan(want[i]) && isnan(got[i]))) {
            fail_msg("%s: element %zu of %zu: want %a (%08x), got %a (%08x)", what, i, n,
                     (double)want[i], want_bits, (double)got[i], got_bits);
        }
    }
}

static const size_t odd_sizes[] = {0,  1,  2,  3,  5,  7,   8,   9,   15,  16,
                                   17, 31, 33, 63, 65, 127, 129, 255, 1023};

#endif
