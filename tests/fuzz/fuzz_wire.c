/* fuzz_wire.c - any bytes as any message, in any cut. The first byte picks the decoder, the second
 * the cuts, the rest is the message. What is accepted is written again, and that is read to the
 * same bytes. */
#include <stdlib.h>
#include <string.h>

#include "sy_wire.h"

#define ARENA_BYTES ((size_t)8 << 20)
#define PIECES_MAX  8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef sy_status read_again(sy_frame *out, sy_arena *arena, const sy_iov *iov, size_t n,
                             sy_error *err);

/* Reads a message and writes it again, so that all that was read is looked at. */
#define AGAIN(name, type)                                                                      \
    static sy_status again_##name(sy_frame *out, sy_arena *arena, const sy_iov *iov, size_t n, \
                                  sy_error *err)                                               \
    {                                                                                          \
        type value;                                                                            \
        const sy_status st = sy_wire_##name##_decode(&value, arena, iov, n, err);              \
                                                                                               \
        return st != SY_OK ? st : sy_wire_##name##_encode(out, &value, NULL);                  \
    }
AGAIN(route_request, sy_route_request)
AGAIN(route_reply, sy_route_reply)
AGAIN(compute_request, sy_compute_request)
AGAIN(compute_reply, sy_compute_reply)
AGAIN(node_state, sy_node_state)
AGAIN(generate_request, sy_generate_request)
AGAIN(generate_reply, sy_generate_reply)
AGAIN(forward_request, sy_forward_request)
AGAIN(forward_reply, sy_forward_reply)
AGAIN(model_query, sy_model_query)
AGAIN(model_description, sy_model_info)
AGAIN(model_list, sy_model_list)
AGAIN(fetch_request, sy_fetch_request)
AGAIN(shard_chunk, sy_shard_chunk)

/* New ones come last: the files of the corpus name theirs by its place. */
static read_again *const decoders[] = {
    again_route_request, again_route_reply,      again_compute_request,   again_compute_reply,
    again_node_state,    again_generate_request, again_generate_reply,    again_forward_request,
    again_forward_reply, again_model_query,      again_model_description, again_model_list,
    again_fetch_request, again_shard_chunk,
};

/* Pieces in blocks of exactly their size, so that a sanitizer sees a byte too many. */
static size_t cut(sy_iov *iov, const uint8_t *data, size_t n, uint8_t cuts)
{
    size_t n_pieces = 0;

    for (size_t i = 0; i < PIECES_MAX; i++) {
        const size_t len = i + 1 == PIECES_MAX || !(cuts & (1u << i)) ? n : n / 2;
        void *piece = malloc(len > 0 ? len : 1);

        if (piece == NULL) abort();
        if (len > 0) memcpy(piece, data, len);
        iov[n_pieces++] = (sy_iov){piece, len};
        data += len;
        n -= len;
    }
    return n_pieces;
}

/* Writes the frame's bytes, which the caller frees, and ends the frame. */
static uint8_t *flatten(size_t *n, sy_frame *frame)
{
    uint8_t *bytes = malloc(frame->total_bytes > 0 ? frame->total_bytes : 1);

    if (bytes == NULL) abort();
    *n = 0;
    for (size_t i = 0; i < frame->n_pieces; i++) {
        memcpy(bytes + *n, frame->piece[i].data, frame->piece[i].len);
        *n += frame->piece[i].len;
    }
    sy_frame_free(frame);
    return bytes;
}

static void check_twice(read_again *again, const sy_iov *iov, size_t n_pieces)
{
    size_t n_once, n_twice;
    uint8_t *once, *twice;
    sy_arena arena;
    sy_frame frame;
    sy_error err;
    sy_status st;

    sy_frame_init(&frame);
    sy_error_clear(&err);
    sy_arena_init(&arena, ARENA_BYTES);
    st = again(&frame, &arena, iov, n_pieces, &err);
    sy_arena_free(&arena);
    if (st != SY_OK) {
        SY_ASSERT(st == SY_EINVAL || st == SY_ELIMIT);
        SY_ASSERT(err.status == st && err.message[0] != '\0');
        return;
    }
    once = flatten(&n_once, &frame);
    sy_arena_init(&arena, 4 * ARENA_BYTES);
    SY_ASSERT(again(&frame, &arena, &(sy_iov){once, n_once}, 1, &err) == SY_OK);
    sy_arena_free(&arena);
    twice = flatten(&n_twice, &frame);
    SY_ASSERT(n_once == n_twice && memcmp(once, twice, n_once) == 0);
    free(once);
    free(twice);
}

static void check_small_readers(const sy_iov *iov, size_t n_pieces, const uint8_t *data, size_t n)
{
    sy_error err;
    int status;

    (void)sy_wire_peek_id(iov, n_pieces);
    if (sy_wire_health_reply_decode(&status, iov, n_pieces) != SY_OK) SY_ASSERT(status == 0);
    sy_error_set(&err, SY_EUNAVAILABLE, "as gRPC said it");
    sy_wire_error_from_details(&err, data, n);
    SY_ASSERT(err.status == SY_EUNAVAILABLE);
    SY_ASSERT(memchr(err.reason, '\0', sizeof(err.reason)) != NULL);
    SY_ASSERT(memchr(err.node, '\0', sizeof(err.node)) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sy_iov iov[PIECES_MAX];
    size_t n_pieces;

    if (size < 2) return 0;
    n_pieces = cut(iov, data + 2, size - 2, data[1]);
    check_twice(decoders[data[0] % SY_COUNT_OF(decoders)], iov, n_pieces);
    check_small_readers(iov, n_pieces, data + 2, size - 2);
    for (size_t i = 0; i < n_pieces; i++) free((void *)(uintptr_t)iov[i].data);
    SY_ASSERT(sy_buf_outstanding() == 0);
    return 0;
}
