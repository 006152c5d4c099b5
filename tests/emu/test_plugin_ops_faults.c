/* The plugin's operations when CUDA fails: any call, once or for good, devices that are full, lost
 * or hang. Nothing is left behind, the result has the right kind, and nobody waits for ever. */
#include "ops_fixture.h"

#include <sys/wait.h>

enum { N = 24, K = 40, ROWS = 3 };

/* All that a session has; what is NULL was not made, or is ended. */
typedef struct session {
    sy_backend_handle *handle;
    sy_backend_stream *stream;
    sy_backend_buffer *memory;
    void *pinned;
} session;

static const sy_backend_matrix matrix = {SY_BACKEND_GATE_UP, N, K, SY_BACKEND_BF16};

/* Where things lie in the buffer; the matrix is last. */
enum { COUNT_AT = 0, X_AT = 64, X16_AT = 1024, H_AT = 2048, MATRIX_AT = 4096 };

/* Pinned memory has the rows from the start: a stream may still read them after a failure. */
static int session_open(session *s, uint32_t device)
{
    const uint64_t bytes = MATRIX_AT + cuda->matrix_bytes(&matrix);
    const uint32_t n_rows = ROWS;
    int result;

    *s = (session){0};
    if ((result = cuda->open(&s->handle, device, why)) != SY_BACKEND_OK ||
        (result = cuda->pinned_alloc(&s->pinned, s->handle, 4096, why)) != SY_BACKEND_OK ||
        (result = cuda->buffer_alloc(&s->memory, s->handle, bytes, why)) != SY_BACKEND_OK)
        return result;
    memcpy(s->pinned, &n_rows, 4);
    for (uint32_t i = 0; i < ROWS * K; i++) {
        const float v = (float)(i % 11) * 0.125f;
        memcpy((uint8_t *)s->pinned + 64 + 4 * i, &v, 4);
    }
    return cuda->stream_open(&s->stream, s->handle, why);
}

static void session_close(session *s)
{
    cuda->stream_close(s->stream);
    cuda->buffer_free(s->memory);
    if (s->handle != NULL) cuda->pinned_free(s->handle, s->pinned);
    cuda->close(s->handle);
}

static int write_weights(const session *s, char *reason)
{
    static uint16_t gate[N * K], up[N * K];

    for (uint32_t i = 0; i < N * K; i++) {
        gate[i] = sy_f32_to_bf16((float)(i % 7) * 0.25f - 0.5f);
        up[i] = sy_f32_to_bf16((float)(i % 5) * 0.5f - 1.0f);
    }
    return cuda->matrix_write((sy_backend_ref){s->memory, MATRIX_AT}, &matrix, 0, N, gate, up,
                              reason);
}

/* Rows in, rounded, through Gate and Up, and out, with mark 1. */
static int run_rows(const session *s, char *reason)
{
    uint8_t *host = s->pinned;
    sy_backend_op op[] = {
        {.kind = SY_BACKEND_IN, .u.copy = {.to = {s->memory, COUNT_AT}, .host = host, .n = 4}},
        {.kind = SY_BACKEND_IN,
         .u.copy = {.to = {s->memory, X_AT}, .host = host + 64, .n = ROWS * K * 4}},
        {.kind = SY_BACKEND_ROWS, .rows_max = ROWS},
        {.kind = SY_BACKEND_SWIGLU_UP, .rows_max = ROWS},
        {.kind = SY_BACKEND_OUT,
         .u.copy = {.from = {s->memory, H_AT}, .host = host + 2048, .n = 384}}};
    int result;

    op[2].u.rows.to = (sy_backend_ref){s->memory, X16_AT};
    op[2].u.rows.from = (sy_backend_ref){s->memory, X_AT};
    op[2].u.rows.n = K;
    op[3].n_rows = (sy_backend_ref){s->memory, COUNT_AT};
    op[3].u.linear.y = (sy_backend_ref){s->memory, H_AT};
    op[3].u.linear.x = (sy_backend_ref){s->memory, X16_AT};
    op[3].u.linear.weights = (sy_backend_ref){s->memory, MATRIX_AT};
    op[3].u.linear.matrix = matrix;
    result = cuda->stream_run(s->stream, op, SY_COUNT_OF(op), reason);
    return result != SY_BACKEND_OK ? result : cuda->stream_mark(s->stream, 1, reason);
}

/* Everything once, with the bytes that came out; the first result that is no success. */
static int run_session(uint8_t out[384])
{
    session s;
    int done = 0, result = session_open(&s, 0);

    if (result == SY_BACKEND_OK) result = write_weights(&s, why);
    if (result == SY_BACKEND_OK) result = run_rows(&s, why);
    if (result == SY_BACKEND_OK) result = cuda->stream_wait(&done, s.stream, 1, WAIT_US, why);
    if (result == SY_BACKEND_OK && !done) fail_msg("a minute was not enough");
    if (result == SY_BACKEND_OK) memcpy(out, (uint8_t *)s.pinned + 2048, 384);
    session_close(&s);
    return result;
}

/* ---- any call ---- */

static const char *const calls[] = {"cudaGetDeviceCount",
                                    "cudaSetDevice",
                                    "cudaDeviceGetStreamPriorityRange",
                                    "cudaMalloc",
                                    "cudaHostAlloc",
                                    "cudaMemcpyAsync",
                                    "cudaStreamCreateWithFlags",
                                    "cudaStreamCreateWithPriority",
                                    "cudaStreamQuery",
                                    "cudaEventCreateWithFlags",
                                    "cudaEventRecord",
                                    "cudaEventQuery",
                                    "cudaLaunchKernel"};

static void fail_once(const char *call, uint64_t at, cudaError_t error, int kind)
{
    uint8_t out[384];
    int result;

    emu_cudart_reset();
    emu_cudart_fail(call, at, error);
    why[0] = '\0';
    result = run_session(out);
    if (result != kind)
        fail_msg("%s %d: result %d and not %d: %s", call, (int)at, result, kind, why);
    if (why[0] == '\0') fail_msg("%s %d: no reason", call, (int)at);
    if (emu_cudart_n_live() != 0)
        fail_msg("%s %d leaves %d objects", call, (int)at, emu_cudart_n_live());
    if (emu_cudart_last() != cudaSuccess)
        fail_msg("%s %d leaves the error %d", call, (int)at, (int)emu_cudart_last());
}

/* Of those that are asked again and again the first is looked at, and closing, which makes five
 * devices current, tells nobody. */
static uint64_t n_to_fail(const char *call)
{
    const uint64_t n = emu_cudart_n_calls(call);

    if (strstr(call, "Query") != NULL) return 1;
    if (strcmp(call, "cudaSetDevice") == 0) return n - 4;
    return n;
}

static void any_call_that_fails_leaves_nothing_behind(void **state)
{
    static const struct {
        cudaError_t error;
        int result;
    } kinds[] = {{cudaErrorMemoryAllocation, SY_BACKEND_ENOMEM},
                 {cudaErrorECCUncorrectable, SY_BACKEND_EDEVLOST},
                 {cudaErrorUnknown, SY_BACKEND_EFAILED}};
    uint8_t out[384];

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(calls); i++) {
        uint64_t n;

        emu_cudart_reset();
        ok(run_session(out));
        n = n_to_fail(calls[i]);
        if (n == 0) fail_msg("no %s", calls[i]);
        for (uint64_t at = 1; at <= n; at++)
            for (size_t k = 0; k < SY_COUNT_OF(kinds); k++)
                fail_once(calls[i], at, kinds[k].error, kinds[k].result);
    }
}

static void a_session_after_a_failed_one_gives_the_same(void **state)
{
    uint8_t first[384], again[384];

    (void)state;
    ok(run_session(first));
    emu_cudart_fail("cudaLaunchKernel", 3, cudaErrorLaunchOutOfResources);
    refused(run_session(again), SY_BACKEND_EFAILED, "operation 2 (rows): ");
    emu_cudart_fail("cudaLaunchKernel", 4, cudaErrorLaunchOutOfResources);
    refused(run_session(again), SY_BACKEND_EFAILED, "operation 3 (swiglu up): ");
    ok(run_session(again));
    assert_memory_equal(first, again, sizeof(first));
    for (uint32_t i = 0; i < N; i++)
        if (first[2 * i] != 0 || first[2 * i + 1] != 0) return;
    fail_msg("rows of zeros");
}

/* ---- full ---- */

static void a_matrix_for_which_the_device_has_no_room_says_so(void **state)
{
    session s;

    (void)state;
    emu_cudart_machine_get()->device[0].memory_bytes = 1 << 20;
    ok(session_open(&s, 0));
    refused(write_weights(&s, why), SY_BACKEND_ENOMEM,
            "the way in for matrices: 2.1 MB do not fit");
    refused(write_weights(&s, why), SY_BACKEND_ENOMEM,
            "the way in for matrices: 2.1 MB do not fit");
    session_close(&s);
}

/* ---- lost ---- */

static void every_call_says(const session *s, const char *text)
{
    sy_backend_stream *stream;
    sy_backend_buffer *buffer;
    uint64_t free_bytes, total_bytes;
    void *pinned;
    uint8_t byte = 0;
    int done = 1;

    refused(run_rows(s, why), SY_BACKEND_EDEVLOST, text);
    refused(write_weights(s, why), SY_BACKEND_EDEVLOST, text);
    refused(cuda->stream_run(s->stream, NULL, 0, why), SY_BACKEND_EDEVLOST, text);
    refused(cuda->stream_mark(s->stream, 0, why), SY_BACKEND_EDEVLOST, text);
    refused(cuda->stream_wait(&done, s->stream, 0, 1000000, why), SY_BACKEND_EDEVLOST, text);
    assert_int_equal(done, 0);
    refused(cuda->stream_open(&stream, s->handle, why), SY_BACKEND_EDEVLOST, text);
    assert_null(stream);
    refused(cuda->pinned_alloc(&pinned, s->handle, 1, why), SY_BACKEND_EDEVLOST, text);
    assert_null(pinned);
    refused(cuda->buffer_alloc(&buffer, s->handle, 1, why), SY_BACKEND_EDEVLOST, text);
    assert_null(buffer);
    refused(cuda->copy_in(s->memory, 0, &byte, 1, why), SY_BACKEND_EDEVLOST, text);
    refused(cuda->copy_out(&byte, s->memory, 0, 1, why), SY_BACKEND_EDEVLOST, text);
    refused(cuda->memory(s->handle, &free_bytes, &total_bytes, why), SY_BACKEND_EDEVLOST, text);
}

static void a_device_lost_under_a_stream_says_so_from_then_on(void **state)
{
    session lost, other;
    int done = 1;

    (void)state;
    ok(session_open(&lost, 0));
    ok(session_open(&other, 1));
    ok(write_weights(&lost, why));
    ok(write_weights(&other, why));
    emu_cudart_hang(0, 1);
    ok(run_rows(&lost, why));
    emu_cudart_lose(0, cudaErrorIllegalAddress);
    refused(cuda->stream_wait(&done, lost.stream, 1, WAIT_US, why), SY_BACKEND_EDEVLOST,
            "(cudaErrorIllegalAddress)");
    assert_int_equal(done, 0);
    every_call_says(&lost, "device 0 was lost before: ");
    every_call_says(&lost, "(cudaErrorIllegalAddress)");
    ok(run_rows(&other, why));
    ok(cuda->stream_wait(&done, other.stream, 1, WAIT_US, why));
    assert_int_equal(done, 1);
    session_close(&lost);
    session_close(&other);
}

/* Whoever meets the loss, all that is of the handle is told from then on, even where the runtime
 * says it once alone. */
static void a_loss_is_remembered_whoever_meets_it(void **state)
{
    static const char *const met_by[] = {"cudaLaunchKernel", "cudaMemcpyAsync", "cudaEventRecord",
                                         "cudaEventQuery"};

    (void)state;
    for (size_t i = 0; i < 2 * SY_COUNT_OF(met_by); i++) {
        const char *call = met_by[i / 2];
        int done, result;
        session s;

        ok(session_open(&s, 0));
        if (i % 2 == 1) ok(write_weights(&s, why));
        emu_cudart_fail(call, 1, cudaErrorLaunchFailure);
        result = i % 2 == 0 ? write_weights(&s, why) : run_rows(&s, why);
        if (result == SY_BACKEND_OK) result = cuda->stream_wait(&done, s.stream, 1, WAIT_US, why);
        refused(result, SY_BACKEND_EDEVLOST, "(cudaErrorLaunchFailure)");
        every_call_says(&s, "device 0 was lost before: ");
        session_close(&s);
        emu_cudart_reset();
    }
}

/* ---- hanging ---- */

/* The other process: a wait that ends, and a close that does. What it leaves is its end's. */
static int close_a_hanging_device(void)
{
    session s;
    int done = 1;

    cuda = sy_backend_get(SY_BACKEND_ABI);
    ok(session_open(&s, 0));
    ok(write_weights(&s, why));
    emu_cudart_hang(0, 1);
    ok(run_rows(&s, why));
    ok(cuda->stream_wait(&done, s.stream, 1, 20000, why));
    assert_int_equal(done, 0);
    session_close(&s);
    _exit(0);
}

static void a_stream_on_a_device_that_hangs_is_closed_all_the_same(void **state)
{
    int status = -1;
    pid_t pid = fork();

    (void)state;
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(200);
        execl("/proc/self/exe", "test_plugin_ops_faults", "hang", (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        PLUGIN_TEST(any_call_that_fails_leaves_nothing_behind),
        PLUGIN_TEST(a_session_after_a_failed_one_gives_the_same),
        PLUGIN_TEST(a_matrix_for_which_the_device_has_no_room_says_so),
        PLUGIN_TEST(a_device_lost_under_a_stream_says_so_from_then_on),
        PLUGIN_TEST(a_loss_is_remembered_whoever_meets_it),
        PLUGIN_TEST(a_stream_on_a_device_that_hangs_is_closed_all_the_same),
    };
    if (argc > 1 && strcmp(argv[1], "hang") == 0) return close_a_hanging_device();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
