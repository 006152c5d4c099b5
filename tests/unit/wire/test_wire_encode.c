/* test_wire_encode.c - what goes by reference, what is copied, and that decoded bulk lies where
 * kernels want it. */
#include "wire_kinds.h"

static size_t n_bulk_pieces(const sy_frame *frame, const sy_buf *bulk)
{
    size_t n = 0;

    for (size_t i = 0; i < frame->n_pieces; i++) n += frame->piece[i].buf == bulk;
    return n;
}

static sy_buf *buf_of_noise(size_t n)
{
    sy_buf *buf = sy_buf_alloc(n);
    rng r = {n};

    assert_non_null(buf);
    for (size_t i = 0; i < n; i++) ((uint8_t *)buf->data)[i] = (uint8_t)rng_next(&r);
    return buf;
}

static void rows_go_by_reference(void **state)
{
    sy_buf *bulk = buf_of_noise(64 * 64 * 4 + 64);
    const char *rows = (const char *)bulk->data + 64;
    const sy_route_request in = {.id = 3, .model = "m", .hidden = {SY_F32, 64, 64, rows}};
    sy_frame frame, copied;
    bytes got, want;

    (void)state;
    assert_int_equal(sy_wire_route_request_encode(&frame, &in, bulk), SY_OK);
    assert_int_equal(frame.n_pieces, 2);
    assert_ptr_equal(frame.piece[1].buf, bulk);
    assert_ptr_equal(frame.piece[1].data, rows);
    assert_int_equal(frame.piece[1].len, 64 * 64 * 4);
    sy_buf_unref(bulk); /* the frame has a reference of its own */
    assert_int_equal(sy_wire_route_request_encode(&copied, &in, NULL), SY_OK);
    assert_int_equal(copied.n_pieces, 1);
    got = bytes_of_frame(&frame);
    want = bytes_of_frame(&copied);
    bytes_equal(got, want);
    free(got.data);
    free(want.data);
    assert_int_equal(sy_buf_outstanding(), 0);
}

static void a_chunk_goes_by_reference(void **state)
{
    enum { N = 64 * 64 * 2 };
    sy_buf *bulk = buf_of_noise(3 * N);
    const sy_shard_chunk in = {
        .total_bytes = 3 * N,
        .offset = N,
        .n_tensors = 3,
        .dtype = {SY_BF16, SY_BF16, SY_BF16},
        .rows = {64, 64, 64},
        .cols = {64, 64, 64},
        .data = (const char *)bulk->data + N,
        .n_bytes = 2 * N,
    };
    sy_shard_chunk out;
    sy_arena arena;
    sy_frame frame;
    pieces *p;
    bytes b;

    (void)state;
    assert_int_equal(sy_wire_shard_chunk_encode(&frame, &in, bulk), SY_OK);
    assert_int_equal(frame.n_pieces, 2);
    assert_ptr_equal(frame.piece[1].buf, bulk);
    assert_ptr_equal(frame.piece[1].data, in.data);
    assert_int_equal(frame.piece[1].len, 2 * N);
    b = bytes_of_frame(&frame);
    p = pieces_of(b, 1000, 4096);
    sy_arena_init(&arena, 2 * N + ((size_t)72 << 10)); /* room for one copy */
    assert_int_equal(sy_wire_shard_chunk_decode(&out, &arena, p->iov, p->n, NULL), SY_OK);
    assert_true(is_aligned(out.data));
    assert_int_equal(out.n_bytes, in.n_bytes);
    assert_memory_equal(out.data, in.data, in.n_bytes);
    sy_arena_free(&arena);
    pieces_free(p);
    free(b.data);
    sy_buf_unref(bulk);
    assert_int_equal(sy_buf_outstanding(), 0);
}

static void little_things_and_strangers_are_copied(void **state)
{
    static float elsewhere[1024];
    sy_buf *bulk = buf_of_noise(4096);
    const sy_rows cases[] = {
        {SY_F32, 1, 255, bulk->data}, /* 1020 bytes */
        {SY_F32, 1, 1024, elsewhere}, /* not of this buffer */
    };
    sy_frame frame;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        const sy_forward_request in = {.model = "", .hidden = cases[i]};

        assert_int_equal(sy_wire_forward_request_encode(&frame, &in, bulk), SY_OK);
        assert_int_equal(n_bulk_pieces(&frame, bulk), 0);
        sy_frame_free(&frame);
    }
    sy_buf_unref(bulk);
    assert_int_equal(sy_buf_outstanding(), 0);
}

/* Rows and all index arrays of a layer in one buffer: each is a piece. */
static void arrays_go_by_reference_too(void **state)
{
    enum { G = 600, R = 1200, T = 20, H = 32 };
    sy_buf *bulk = buf_of_noise(G * 2 + G * 4 + R * 4 + R * 4 + T * H * 4);
    uint16_t *expert = bulk->data;
    uint32_t *group_end = (uint32_t *)(void *)(expert + G);
    uint32_t *row = group_end + G;
    float *weight = (float *)(void *)(row + R);
    const sy_compute_request in = {
        .id = 1,
        .model = "m",
        .partial = 1,
        .n_groups = G,
        .n_assign = R,
        .expert = expert,
        .group_end = group_end,
        .row = row,
        .weight = weight,
        .hidden = {SY_F32, T, H, weight + R},
    };
    sy_compute_request out;
    sy_arena arena;
    sy_frame frame;
    sy_iov iov[SY_FRAME_PIECES_MAX];

    (void)state;
    for (uint32_t g = 0; g < G; g++) {
        expert[g] = (uint16_t)(g * 100);
        group_end[g] = 2 * g + 2;
    }
    for (uint32_t i = 0; i < R; i++) {
        row[i] = i % T;
        weight[i] = (float)i;
    }
    sy_arena_init(&arena, ARENA_BYTES);
    assert_int_equal(sy_wire_compute_request_encode(&frame, &in, bulk), SY_OK);
    assert_int_equal(n_bulk_pieces(&frame, bulk), 5);
    for (size_t i = 0; i < frame.n_pieces; i++)
        iov[i] = (sy_iov){frame.piece[i].data, frame.piece[i].len};
    assert_int_equal(sy_wire_compute_request_decode(&out, &arena, iov, frame.n_pieces, NULL),
                     SY_OK);
    assert_memory_equal(out.expert, expert, G * sizeof(*expert));
    assert_memory_equal(out.group_end, group_end, G * sizeof(*group_end));
    assert_memory_equal(out.row, row, R * sizeof(*row));
    assert_memory_equal(out.weight, weight, R * sizeof(*weight));
    assert_memory_equal(out.hidden.data, in.hidden.data, sy_rows_bytes(&in.hidden));
    assert_true(is_aligned(out.expert) && is_aligned(out.group_end) && is_aligned(out.row));
    assert_true(is_aligned(out.weight) && is_aligned(out.hidden.data));
    sy_frame_free(&frame);
    sy_buf_unref(bulk);
    sy_arena_free(&arena);
    assert_int_equal(sy_buf_outstanding(), 0);
}

/* Not a message of ours, but the limit of pieces is the encoder's to keep: shards with texts in the
 * bulk buffer. */
static void a_frame_never_has_too_many_pieces(void **state)
{
    enum { N = 40, TEXT_BYTES = 2000 };
    sy_buf *bulk = sy_buf_alloc(N * (TEXT_BYTES + 1));
    sy_shard_info shard[N];
    const sy_node_state in = {.node = "n", .model = "m", .n_shards = N, .shard = shard};
    sy_frame frame, copied;
    bytes got, want;

    (void)state;
    assert_non_null(bulk);
    for (size_t i = 0; i < N; i++) {
        char *reason = (char *)bulk->data + i * (TEXT_BYTES + 1);

        memset(reason, 'a' + (int)(i % 26), TEXT_BYTES);
        reason[TEXT_BYTES] = '\0';
        shard[i] = (sy_shard_info){.device = "cpu:0", .reason = reason};
    }
    assert_int_equal(sy_wire_node_state_encode(&frame, &in, bulk), SY_OK);
    assert_true(n_bulk_pieces(&frame, bulk) > 0);
    assert_int_equal(sy_wire_node_state_encode(&copied, &in, NULL), SY_OK);
    got = bytes_of_frame(&frame);
    want = bytes_of_frame(&copied);
    bytes_equal(got, want);
    free(got.data);
    free(want.data);
    sy_buf_unref(bulk);
    assert_int_equal(sy_buf_outstanding(), 0);
}

/* The point of cutting the bulk off: it is copied once, so that little more memory is needed than
 * it has. */
static void trailing_bulk_is_copied_once(void **state)
{
    enum { T = 512, H = 1024 };
    sy_buf *bulk = buf_of_noise((size_t)T * H * 2);
    const sy_forward_request in = {.id = 9, .model = "m", .hidden = {SY_BF16, T, H, bulk->data}};
    sy_forward_request out;
    sy_arena arena;
    sy_frame frame;
    sy_error err;
    pieces *p;
    bytes b;

    (void)state;
    assert_int_equal(sy_wire_forward_request_encode(&frame, &in, bulk), SY_OK);
    b = bytes_of_frame(&frame);
    p = pieces_of(b, 1000, 8192);
    sy_arena_init(&arena, bulk->len + ((size_t)72 << 10));
    if (sy_wire_forward_request_decode(&out, &arena, p->iov, p->n, &err) != SY_OK)
        fail_msg("%s", err.message);
    assert_true(is_aligned(out.hidden.data));
    assert_memory_equal(out.hidden.data, bulk->data, bulk->len);
    sy_arena_free(&arena);
    pieces_free(p);
    free(b.data);
    sy_buf_unref(bulk);
}

static void a_message_beyond_2_gib_is_refused(void **state)
{
    const sy_route_request in = {.model = "", .hidden = {SY_F32, 1u << 20, 1024, "never read"}};
    sy_frame frame;

    (void)state;
    assert_int_equal(sy_wire_route_request_encode(&frame, &in, NULL), SY_ELIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_go_by_reference),
        cmocka_unit_test(a_chunk_goes_by_reference),
        cmocka_unit_test(little_things_and_strangers_are_copied),
        cmocka_unit_test(arrays_go_by_reference_too),
        cmocka_unit_test(a_frame_never_has_too_many_pieces),
        cmocka_unit_test(trailing_bulk_is_copied_once),
        cmocka_unit_test(a_message_beyond_2_gib_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
