/* wire_fixture.h - seeded randomness, messages as bytes, and messages in pieces. Every piece is an
 * allocation of its own, so that AddressSanitizer sees one byte too many. */
#ifndef WIRE_FIXTURE_H
#define WIRE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sy_wire.h"

#define ARENA_BYTES ((size_t)64 << 20)

typedef struct rng {
    uint64_t state;
} rng;

static inline uint64_t rng_next(rng *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline size_t rng_below(rng *r, size_t n)
{
    return (size_t)(rng_next(r) % n);
}

typedef struct bytes {
    uint8_t *data; /* malloc'ed */
    size_t len;
} bytes;

static inline bytes bytes_new(size_t len)
{
    const bytes b = {malloc(len > 0 ? len : 1), len};

    assert_non_null(b.data);
    return b;
}

static inline bytes bytes_of_frame(sy_frame *frame)
{
    bytes b = bytes_new(frame->total_bytes);
    size_t at = 0;

    for (size_t i = 0; i < frame->n_pieces; i++) {
        memcpy(b.data + at, frame->piece[i].data, frame->piece[i].len);
        at += frame->piece[i].len;
    }
    assert_int_equal(at, frame->total_bytes);
    sy_frame_free(frame);
    return b;
}

static inline void bytes_equal(bytes got, bytes want)
{
    assert_int_equal(got.len, want.len);
    assert_memory_equal(got.data, want.data, want.len);
}

#define PIECES_MAX 4096
typedef struct pieces {
    size_t n;
    sy_iov iov[PIECES_MAX];
} pieces;

static inline void pieces_add(pieces *p, const uint8_t *data, size_t len)
{
    char *copy = len > 0 ? malloc(len) : NULL;

    assert_true(p->n < PIECES_MAX);
    if (len > 0) {
        assert_non_null(copy);
        memcpy(copy, data, len);
    }
    p->iov[p->n++] = (sy_iov){copy, len};
}

/* Pieces of step bytes, the first shorter by `cut`. */
static inline pieces *pieces_of(bytes b, size_t first, size_t step)
{
    pieces *p = calloc(1, sizeof(*p));

    assert_non_null(p);
    first = SY_MIN(first, b.len);
    pieces_add(p, b.data, first);
    for (size_t at = first; at < b.len; at += step) {
        pieces_add(p, b.data + at, SY_MIN(step, b.len - at));
    }
    return p;
}

/* Up to 8 pieces of random lengths, some of them empty. */
static inline pieces *pieces_random(bytes b, rng *r)
{
    pieces *p = calloc(1, sizeof(*p));
    const size_t n = 1 + rng_below(r, 8);
    size_t at = 0;

    assert_non_null(p);
    for (size_t i = 0; i + 1 < n; i++) {
        const size_t len = rng_below(r, 3) == 0 ? 0 : rng_below(r, b.len - at + 1);

        pieces_add(p, b.data + at, len);
        at += len;
    }
    pieces_add(p, b.data + at, b.len - at);
    return p;
}

static inline void pieces_free(pieces *p)
{
    for (size_t i = 0; i < p->n; i++) free((void *)(uintptr_t)p->iov[i].data);
    free(p);
}

static inline int is_aligned(const void *p)
{
    return (uintptr_t)p % 64 == 0;
}

#endif
