/* ops_fixture.h - what the tests of the plugin's operations share: an opened device with a stream,
 * and one operation with all memory that it needs, each piece in a buffer of exactly its size and
 * once more on the host, so that the same can be done to both. */
#ifndef OPS_FIXTURE_H
#define OPS_FIXTURE_H

#include "plugin_fixture.h"
#include "sy_cuda_trunk.h"

enum { PIECES_MAX = 12, WAIT_US = 60 * 1000000 };

typedef struct opened {
    sy_backend_handle *handle;
    sy_backend_stream *stream;
} opened;

static inline opened opened_open(uint32_t device)
{
    opened o = {0};

    ok(cuda->open(&o.handle, device, why));
    ok(cuda->stream_open(&o.stream, o.handle, why));
    return o;
}

static inline void opened_close(opened *o)
{
    cuda->stream_close(o->stream);
    cuda->close(o->handle);
}

static inline sy_backend_ref buffer_of(const opened *o, const void *host, uint64_t bytes)
{
    sy_backend_ref ref = {0};

    ok(cuda->buffer_alloc(&ref.buffer, o->handle, bytes, why));
    if (host != NULL) ok(cuda->copy_in(ref.buffer, 0, host, bytes, why));
    return ref;
}

/* All that the stream was given is done. */
static inline void finish(const opened *o)
{
    int done = 0;

    ok(cuda->stream_mark(o->stream, 0, why));
    ok(cuda->stream_wait(&done, o->stream, 0, WAIT_US, why));
    if (!done) fail_msg("a minute was not enough");
}

/* ---- one operation ---- */

typedef struct piece {
    sy_backend_ref *at; /* in the operation */
    uint8_t *host;
    uint64_t bytes;
    uint64_t alignment; /* that the operation asks for */
    int may_miss;
} piece;

typedef struct op_case {
    const opened *on;
    test_random random;
    sy_backend_op op;
    piece piece[PIECES_MAX];
    uint32_t n_pieces;
} op_case;

/* Memory for one place of the operation, whose contents the caller fills in on the host before
 * case_upload. */
static inline void *piece_of(op_case *c, sy_backend_ref *at, uint64_t bytes)
{
    piece *p = &c->piece[c->n_pieces++];

    assert_true(c->n_pieces <= PIECES_MAX && bytes > 0);
    *p = (piece){.at = at, .host = calloc(1, bytes), .bytes = bytes, .alignment = 16};
    assert_non_null(p->host);
    *at = buffer_of(c->on, NULL, bytes);
    return p->host;
}

static inline float *floats_of(op_case *c, sy_backend_ref *at, uint64_t n)
{
    float *v = piece_of(c, at, n * sizeof(float));

    random_fill(v, n, &c->random, VALUES_PLAIN);
    return v;
}

static inline uint16_t *bf16_of(op_case *c, sy_backend_ref *at, uint64_t n)
{
    uint16_t *v = piece_of(c, at, n * sizeof(uint16_t));

    for (uint64_t i = 0; i < n; i++) v[i] = sy_f32_to_bf16(random_unit(&c->random));
    return v;
}

/* [n] numbers below `end`. */
static inline uint32_t *numbers_of(op_case *c, sy_backend_ref *at, uint32_t n, uint32_t end)
{
    uint32_t *v = piece_of(c, at, n * sizeof(uint32_t));

    for (uint32_t i = 0; i < n; i++) v[i] = random_u32(&c->random) % end;
    return v;
}

/* The piece that was made last. */
static inline void may_miss(op_case *c)
{
    c->piece[c->n_pieces - 1].may_miss = 1;
}

static inline void is_of_words(op_case *c)
{
    c->piece[c->n_pieces - 1].alignment = sizeof(uint32_t);
}

/* What the operation's place is on the host; NULL: it has none. */
static inline void *host_of(const op_case *c, const sy_backend_ref *at)
{
    for (uint32_t i = 0; i < c->n_pieces; i++)
        if (c->piece[i].at == at) return c->piece[i].host;
    return NULL;
}

/* c is used where it lies: its pieces point into it. */
static inline void case_begin(op_case *c, const opened *on, uint32_t kind, uint32_t n_rows,
                              uint32_t rows_max)
{
    *c = (op_case){.on = on, .random = {TEST_SEED + kind * 100 + rows_max}};
    c->op.kind = kind;
    c->op.rows_max = rows_max;
    if (kind == SY_BACKEND_ROWS) return;
    memcpy(piece_of(c, &c->op.n_rows, sizeof(n_rows)), &n_rows, sizeof(n_rows));
    is_of_words(c);
}

static inline void case_upload(const op_case *c)
{
    for (uint32_t i = 0; i < c->n_pieces; i++)
        ok(cuda->copy_in(c->piece[i].at->buffer, 0, c->piece[i].host, c->piece[i].bytes, why));
}

/* Every byte that the operation can reach is as it is on the host. */
static inline void case_check(const op_case *c, const char *name)
{
    for (uint32_t i = 0; i < c->n_pieces; i++) {
        const piece *p = &c->piece[i];
        uint8_t *got = malloc(p->bytes);

        assert_non_null(got);
        ok(cuda->copy_out(got, p->at->buffer, 0, p->bytes, why));
        for (uint64_t b = 0; b < p->bytes; b++)
            if (got[b] != p->host[b])
                fail_msg("%s: piece %u, byte %d of %d is %02x and not %02x", name, i, (int)b,
                         (int)p->bytes, got[b], p->host[b]);
        free(got);
    }
}

static inline void case_end(op_case *c)
{
    for (uint32_t i = 0; i < c->n_pieces; i++) {
        cuda->buffer_free(c->piece[i].at->buffer);
        free(c->piece[i].host);
    }
}

#endif
