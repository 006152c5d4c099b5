/* test_buf.c - references, recycling and frames. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <malloc.h>
#include <pthread.h>
#include <string.h>

#include "sy_buf.h"

#define MB ((size_t)1 << 20)

static void buffers_of_every_size_are_aligned_and_writable_to_the_end(void **state)
{
    static const size_t sizes[] = {0,     1,     255,    256,     257,         4095,    4096,
                                   65536, 65537, 3 * MB, 64 * MB, 64 * MB + 1, 100 * MB};

    (void)state;
    for (size_t s = 0; s < SY_COUNT_OF(sizes); s++) {
        sy_buf *buf = sy_buf_alloc(sizes[s]);

        assert_non_null(buf);
        assert_int_equal(buf->len, sizes[s]);
        assert_int_equal((uintptr_t)buf->data % 64, 0);
        if (sizes[s] > 0) {
            ((char *)buf->data)[0] = 1;
            ((char *)buf->data)[sizes[s] - 1] = 1;
        }
        assert_int_equal(sy_buf_outstanding(), 1);
        sy_buf_unref(buf);
        assert_int_equal(sy_buf_outstanding(), 0);
    }
    sy_buf_trim();
}

static void a_size_that_no_machine_has_is_refused(void **state)
{
    (void)state;
    assert_null(sy_buf_alloc(SIZE_MAX));
    assert_null(sy_buf_alloc(SIZE_MAX - 63));
    assert_null(sy_buf_alloc(PTRDIFF_MAX));
    assert_int_equal(sy_buf_outstanding(), 0);
}

static void a_buffer_lives_until_its_last_reference_goes(void **state)
{
    sy_buf *buf = sy_buf_alloc(100);

    (void)state;
    memset(buf->data, 7, 100);
    assert_ptr_equal(sy_buf_ref(buf), buf);
    sy_buf_unref(buf);
    assert_int_equal(sy_buf_outstanding(), 1);
    assert_int_equal(((char *)buf->data)[99], 7);
    sy_buf_unref(buf);
    assert_int_equal(sy_buf_outstanding(), 0);
    sy_buf_unref(NULL);
}

/* What the C library has given out. A sanitizer's allocator says 0, and the bounds below hold of
 * themselves. */
static size_t allocated_bytes(void)
{
    const struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
}

static void what_is_kept_is_bounded_and_given_back_by_trim(void **state)
{
    const size_t before_bytes = allocated_bytes();
    sy_buf *bufs[300];

    (void)state;
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < SY_COUNT_OF(bufs); i++) {
            bufs[i] = sy_buf_alloc(2 * MB);
            assert_non_null(bufs[i]);
            memcpy(bufs[i]->data, &i, sizeof(i));
        }
        for (size_t i = 0; i < SY_COUNT_OF(bufs); i++) {
            assert_memory_equal(bufs[i]->data, &i, sizeof(i));
            sy_buf_unref(bufs[i]);
        }
        assert_in_range(allocated_bytes(), before_bytes, before_bytes + 257 * MB);
    }
    sy_buf_trim();
    sy_buf_trim();
    assert_in_range(allocated_bytes(), before_bytes, before_bytes + MB);
    assert_int_equal(sy_buf_outstanding(), 0);
}

#define N_THREADS 4
#define N_ROUNDS  3000

/* Every thread fills buffers with a number of its own and hands a reference to nobody: a buffer
 * that two threads were given shows as a wrong byte, and as a race. */
static void *churn(void *arg)
{
    const unsigned char mark = (unsigned char)(uintptr_t)arg;
    uintptr_t n_wrong = 0;

    for (size_t i = 0; i < N_ROUNDS; i++) {
        const size_t len = (i * 97) % 3000 + 1;
        sy_buf *buf = sy_buf_alloc(len);

        if (buf == NULL) return (void *)(uintptr_t)1;
        memset(buf->data, mark, len);
        sy_buf_ref(buf);
        for (size_t k = 0; k < len; k++) n_wrong += ((unsigned char *)buf->data)[k] != mark;
        sy_buf_unref(buf);
        sy_buf_unref(buf);
    }
    return (void *)n_wrong;
}

static void threads_never_share_a_buffer_by_accident(void **state)
{
    pthread_t threads[N_THREADS];

    (void)state;
    for (uintptr_t t = 0; t < N_THREADS; t++) {
        assert_int_equal(pthread_create(&threads[t], NULL, churn, (void *)t), 0);
    }
    for (size_t t = 0; t < N_THREADS; t++) {
        void *n_wrong;

        pthread_join(threads[t], &n_wrong);
        assert_null(n_wrong);
    }
    assert_int_equal(sy_buf_outstanding(), 0);
    sy_buf_trim();
}

/* The writer and the thread that drops the last reference need no lock of their own between them.
 */
static void *drop(void *arg)
{
    sy_buf *buf = arg;
    const unsigned char first = *(unsigned char *)buf->data;

    sy_buf_unref(buf);
    return (void *)(uintptr_t)(first != 9);
}

static void the_last_reference_may_go_on_any_thread(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        sy_buf *buf = sy_buf_alloc(1000);
        pthread_t thread;
        void *is_wrong;

        memset(buf->data, 9, 1000);
        sy_buf_ref(buf);
        assert_int_equal(pthread_create(&thread, NULL, drop, buf), 0);
        sy_buf_unref(buf);
        buf = sy_buf_alloc(1000); /* the same memory, when ours was the last reference */
        memset(buf->data, 8, 1000);
        sy_buf_unref(buf);
        pthread_join(thread, &is_wrong);
        assert_null(is_wrong);
        assert_int_equal(sy_buf_outstanding(), 0);
    }
}

static void a_frame_holds_its_buffers_until_it_is_freed(void **state)
{
    sy_buf *a = sy_buf_alloc(100);
    sy_buf *b = sy_buf_alloc(5000);
    sy_frame frame;

    (void)state;
    sy_frame_init(&frame);
    assert_int_equal(sy_frame_add(&frame, a, a->data, 100), SY_OK);
    assert_int_equal(sy_frame_add(&frame, b, (char *)b->data + 1000, 4000), SY_OK);
    assert_int_equal(sy_frame_add(&frame, a, (char *)a->data + 100, 0), SY_OK);
    assert_int_equal(frame.n_pieces, 3);
    assert_int_equal(frame.total_bytes, 4100);
    sy_buf_unref(a);
    sy_buf_unref(b);
    assert_int_equal(sy_buf_outstanding(), 2);
    sy_frame_free(&frame);
    assert_int_equal(sy_buf_outstanding(), 0);
    assert_int_equal(frame.n_pieces, 0);
    sy_frame_free(&frame);
}

static void a_full_frame_takes_no_piece_and_no_reference(void **state)
{
    sy_buf *buf = sy_buf_alloc(64);
    sy_frame frame;

    (void)state;
    sy_frame_init(&frame);
    for (size_t i = 0; i < SY_FRAME_PIECES_MAX; i++) {
        assert_int_equal(sy_frame_add(&frame, buf, (char *)buf->data + i, 1), SY_OK);
    }
    assert_int_equal(sy_frame_add(&frame, buf, buf->data, 1), SY_ELIMIT);
    assert_int_equal(frame.n_pieces, SY_FRAME_PIECES_MAX);
    assert_int_equal(frame.total_bytes, SY_FRAME_PIECES_MAX);
    sy_buf_unref(buf);
    sy_frame_free(&frame);
    assert_int_equal(sy_buf_outstanding(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_of_every_size_are_aligned_and_writable_to_the_end),
        cmocka_unit_test(a_size_that_no_machine_has_is_refused),
        cmocka_unit_test(a_buffer_lives_until_its_last_reference_goes),
        cmocka_unit_test(what_is_kept_is_bounded_and_given_back_by_trim),
        cmocka_unit_test(threads_never_share_a_buffer_by_accident),
        cmocka_unit_test(the_last_reference_may_go_on_any_thread),
        cmocka_unit_test(a_frame_holds_its_buffers_until_it_is_freed),
        cmocka_unit_test(a_full_frame_takes_no_piece_and_no_reference),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
