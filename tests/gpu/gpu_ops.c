/* gpu_ops.c - the plugin's operations on rows, through its table: on a device with the plugin as it
 * is built and loaded, beside the same kernels called directly. tests/emu/test_plugin_ops*.c has
 * what needs a runtime that can be told to fail; here is what hardware may do otherwise. */
#include "ops_cases.h"
#include "sy_backend_load.h"

enum { N_OPS = SY_COUNT_OF(op_makers), ROUNDS = 20 };

#ifndef GPU_EMULATED
const sy_backend *sy_backend_get(uint32_t abi)
{
    const sy_backend *backend = NULL;
    sy_error err;

    sy_error_clear(&err);
    if (sy_backend_load(&backend, "cuda", &err) != SY_OK) fail_msg("%s", err.message);
    return backend != NULL && backend->abi == abi ? backend : NULL;
}
#endif

static void every_operation_is_the_call_it_names(void **state)
{
    opened on = opened_open(0);

    (void)state;
    for (size_t i = 0; i < N_OPS; i++) {
        op_case c;

        op_makers[i].make(&c, &on);
        case_upload(&c);
        ok(cuda->stream_run(on.stream, &c.op, 1, why));
        finish(&on);
        assert_int_equal(op_makers[i].call(&c), 0);
        case_check(&c, op_makers[i].name);
        case_end(&c);
    }
    opened_close(&on);
}

/* Nobody waits between them: they are done by the mark that follows the last. */
static void operations_enqueued_together_are_those_of_one_by_one(void **state)
{
    static op_case c[N_OPS];
    sy_backend_op ops[N_OPS];
    opened on = opened_open(0);

    (void)state;
    for (size_t i = 0; i < N_OPS; i++) {
        op_makers[i].make(&c[i], &on);
        case_upload(&c[i]);
        ops[i] = c[i].op;
    }
    ok(cuda->stream_run(on.stream, ops, N_OPS, why));
    finish(&on);
    for (size_t i = 0; i < N_OPS; i++) {
        assert_int_equal(op_makers[i].call(&c[i]), 0);
        case_check(&c[i], op_makers[i].name);
        case_end(&c[i]);
    }
    opened_close(&on);
}

static void fill(uint32_t *words, uint32_t n, uint32_t round)
{
    for (uint32_t i = 0; i < n; i++) words[i] = i * 2654435761u + round;
}

/* In, from buffer to buffer, and out again by memory that the device reads and writes itself, while
 * the host is told of each end by a mark of its own. */
static void what_goes_through_pinned_memory_is_there_when_its_mark_is_done(void **state)
{
    enum { N = 40000, BYTES = N * sizeof(uint32_t) };
    opened on = opened_open(0);
    sy_backend_ref a = buffer_of(&on, NULL, BYTES), b = buffer_of(&on, NULL, BYTES);
    void *in, *out;

    (void)state;
    ok(cuda->pinned_alloc(&in, on.handle, BYTES, why));
    ok(cuda->pinned_alloc(&out, on.handle, BYTES, why));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t mark = round % SY_BACKEND_MARKS;
        const sy_backend_op ops[] = {
            {.kind = SY_BACKEND_IN, .u.copy = {.to = a, .host = in, .n = BYTES}},
            {.kind = SY_BACKEND_COPY, .u.copy = {.to = b, .from = a, .n = BYTES}},
            {.kind = SY_BACKEND_OUT, .u.copy = {.from = b, .host = out, .n = BYTES}}};
        int done = 0;

        fill(in, N, round);
        memset(out, 0xa5, BYTES);
        ok(cuda->stream_run(on.stream, ops, SY_COUNT_OF(ops), why));
        ok(cuda->stream_mark(on.stream, mark, why));
        ok(cuda->stream_wait(&done, on.stream, mark, WAIT_US, why));
        assert_true(done);
        assert_memory_equal(out, in, BYTES);
    }
    cuda->pinned_free(on.handle, in);
    cuda->pinned_free(on.handle, out);
    cuda->buffer_free(a.buffer);
    cuda->buffer_free(b.buffer);
    opened_close(&on);
}

/* A matrix of rows that are longer than what goes in at a time, from an odd address, in parts. */
static void a_matrix_that_is_written_in_parts_is_packed(void **state)
{
    enum { MATRIX_ROWS = 200, K = 1000, STEP = 48 };
    const sy_backend_matrix m = {SY_BACKEND_PLAIN, MATRIX_ROWS, K, SY_BACKEND_BF16};
    const size_t row_bytes = K * sizeof(uint16_t);
    opened on = opened_open(0);
    const size_t bytes = cuda->matrix_bytes(&m);
    uint8_t *rows = malloc(MATRIX_ROWS * row_bytes + 1), *want = malloc(bytes);
    uint8_t *got = malloc(bytes);
    sy_backend_ref to = buffer_of(&on, NULL, bytes);
    test_random r = {TEST_SEED};

    (void)state;
    assert_true(rows != NULL && want != NULL && got != NULL);
    for (size_t i = 0; i < MATRIX_ROWS * row_bytes; i++) rows[1 + i] = (uint8_t)random_u32(&r);
    for (uint32_t row = 0; row < MATRIX_ROWS; row += STEP)
        ok(cuda->matrix_write(to, &m, row, SY_MIN(MATRIX_ROWS - row, (uint32_t)STEP),
                              rows + 1 + row * row_bytes, NULL, why));
    sy_cuda_pack(want, rows + 1, MATRIX_ROWS, K, 0, sy_cuda_row_blocks(MATRIX_ROWS));
    ok(cuda->copy_out(got, to.buffer, 0, bytes, why));
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != want[i])
            fail_msg("byte %zu of %zu is %02x and not %02x", i, bytes, got[i], want[i]);
    cuda->buffer_free(to.buffer);
    opened_close(&on);
    free(rows);
    free(want);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        PLUGIN_TEST(every_operation_is_the_call_it_names),
        PLUGIN_TEST(operations_enqueued_together_are_those_of_one_by_one),
        PLUGIN_TEST(what_goes_through_pinned_memory_is_there_when_its_mark_is_done),
        PLUGIN_TEST(a_matrix_that_is_written_in_parts_is_packed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
