/* test_emu_runtime.c - what the emulated CUDA runtime promises: when work happens and in which
 * order, what fails and for how long, and what other processes see. What it forbids is in
 * test_emu_misuse.c. */
#include "emu_child.h"
#include "emu_cudart.h"
#include "emu_probe.h"
#include "sy_base.h"

#include <pthread.h>

enum { N = 96, BYTES = N * sizeof(uint32_t) };

static void check(cudaError_t got, cudaError_t want, const char *what, int line)
{
    if (got != want)
        fail_msg("line %d: %s: %s, want %s", line, what, cudaGetErrorName(got),
                 cudaGetErrorName(want));
}
#define GIVES(call, want) check((call), (want), #call, __LINE__)
#define OK(call)          GIVES(call, cudaSuccess)

/* Two devices, on each a stream, an event, memory, and memory of the host. */
static struct {
    cudaStream_t stream;
    cudaEvent_t event;
    uint32_t *data, *pinned;
} on[2];

static int open_all(void **state)
{
    (void)state;
    emu_cudart_reset();
    for (int d = 0; d < 2; d++) {
        OK(cudaSetDevice(d));
        OK(cudaStreamCreateWithPriority(&on[d].stream, cudaStreamNonBlocking, -1));
        OK(cudaEventCreate(&on[d].event));
        OK(cudaMalloc((void **)&on[d].data, BYTES));
        OK(cudaHostAlloc((void **)&on[d].pinned, BYTES, cudaHostAllocPortable));
        for (uint32_t i = 0; i < N; i++) on[d].pinned[i] = i + 1;
    }
    OK(cudaSetDevice(0));
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        (void)cudaSetDevice(d);
        (void)cudaFree(on[d].data);
        (void)cudaFreeHost(on[d].pinned);
        (void)cudaEventDestroy(on[d].event);
        (void)cudaStreamDestroy(on[d].stream);
    }
    assert_int_equal(emu_cudart_n_live(), 0);
    unsetenv("SY_EMU_CONTROL");
    return 0;
}

static void to_device(int d)
{
    OK(cudaMemcpyAsync(on[d].data, on[d].pinned, BYTES, cudaMemcpyHostToDevice, on[d].stream));
}

/* What device memory holds, when what its stream has been given is done. */
static void read_device(uint32_t out[N], int d)
{
    OK(cudaMemcpyAsync(out, on[d].data, BYTES, cudaMemcpyDeviceToHost, on[d].stream));
}

static void expect_device(int d)
{
    uint32_t got[N];

    read_device(got, d);
    for (uint32_t i = 0; i < N; i++) assert_int_equal(got[i], i + 1);
}

/* ---- memory ---- */

static void memory_of_a_device_is_limited_and_not_zero(void **state)
{
    size_t n_free = 0, n_total = 0;
    void *all, *more = NULL;
    uint32_t got[N];

    (void)state;
    OK(cudaMemGetInfo(&n_free, &n_total));
    assert_int_equal(n_total, (size_t)256 << 20);
    assert_true(n_free < n_total);
    read_device(got, 0);
    for (uint32_t i = 0; i < N; i++) assert_int_equal(got[i], 0xffffffffu);
    emu_cudart_machine_get()->device[0].memory_bytes = 1 << 20;
    OK(cudaMalloc(&all, (1 << 20) - 512));
    GIVES(cudaMalloc(&more, 1), cudaErrorMemoryAllocation);
    GIVES(cudaMalloc(&more, SIZE_MAX), cudaErrorMemoryAllocation);
    GIVES(cudaGetLastError(), cudaErrorMemoryAllocation);
    GIVES(cudaGetLastError(), cudaSuccess);
    OK(cudaMemGetInfo(&n_free, &n_total));
    assert_int_equal(n_free, 0);
    OK(cudaFree(all));
    OK(cudaMalloc(&more, 1));
    OK(cudaFree(more));
}

static void pageable_memory_is_read_at_the_call(void **state)
{
    uint32_t from[N], got[N];

    (void)state;
    for (uint32_t i = 0; i < N; i++) from[i] = i + 1;
    emu_cudart_hang(0, 1);
    OK(cudaMemcpyAsync(on[0].data, from, BYTES, cudaMemcpyHostToDevice, on[0].stream));
    memset(from, 0, sizeof(from));
    emu_cudart_hang(0, 0);
    read_device(got, 0); /* has landed when the call returns */
    for (uint32_t i = 0; i < N; i++) assert_int_equal(got[i], i + 1);
}

/* In one stream that is no mistake: the first copy reads before the second lands. */
static void a_copy_in_and_a_copy_out_may_share_pinned_memory(void **state)
{
    (void)state;
    emu_cudart_hang(0, 1);
    to_device(0);
    OK(cudaMemcpyAsync(on[0].pinned, on[0].data, BYTES, cudaMemcpyDeviceToHost, on[0].stream));
    emu_cudart_hang(0, 0);
    OK(cudaStreamSynchronize(on[0].stream));
    for (uint32_t i = 0; i < N; i++) assert_int_equal(on[0].pinned[i], i + 1);
}

static void registered_memory_is_pinned_once(void **state)
{
    static uint32_t here[N];

    (void)state;
    for (uint32_t i = 0; i < N; i++) here[i] = i + 1;
    OK(cudaHostRegister(here, BYTES, cudaHostRegisterPortable));
    GIVES(cudaHostRegister(here + N / 2, 4, 0), cudaErrorHostMemoryAlreadyRegistered);
    emu_cudart_hang(0, 1);
    OK(cudaMemcpyAsync(on[0].data, here, BYTES, cudaMemcpyDefault, on[0].stream));
    emu_cudart_hang(0, 0);
    OK(cudaStreamSynchronize(on[0].stream));
    OK(cudaHostUnregister(here));
    expect_device(0);
}

static void freeing_waits_for_what_is_on_its_way(void **state)
{
    uint32_t *p;

    (void)state;
    OK(cudaMalloc((void **)&p, BYTES));
    emu_cudart_slow(0, 3000);
    to_device(0);
    OK(cudaMemcpyAsync(p, on[0].data, BYTES, cudaMemcpyDeviceToDevice, on[0].stream));
    OK(cudaMemcpyAsync(on[0].data, p, BYTES, cudaMemcpyDeviceToDevice, on[0].stream));
    OK(cudaFree(p));
    emu_cudart_slow(0, 0);
    expect_device(0);
}

/* ---- streams, events, kernels ---- */

static void work_happens_later_and_in_order(void **state)
{
    uint32_t *sums, got[3];

    (void)state;
    OK(cudaMalloc((void **)&sums, sizeof(got)));
    emu_cudart_hang(0, 1);
    to_device(0);
    OK(cudaMemsetAsync(sums, 0, sizeof(got), on[0].stream));
    assert_int_equal(emu_probe_reduce(sums, on[0].data, 3, 32, on[0].stream), 0);
    OK(cudaEventRecord(on[0].event, on[0].stream));
    GIVES(cudaEventQuery(on[0].event), cudaErrorNotReady);
    GIVES(cudaStreamQuery(on[0].stream), cudaErrorNotReady);
    GIVES(cudaGetLastError(), cudaErrorNotReady); /* or the next launch would be blamed */
    emu_cudart_hang(0, 0);
    OK(cudaEventSynchronize(on[0].event));
    OK(cudaEventQuery(on[0].event));
    OK(cudaMemcpyAsync(got, sums, sizeof(got), cudaMemcpyDeviceToHost, on[0].stream));
    OK(cudaStreamQuery(on[0].stream));
    assert_int_equal(got[0], N * (N + 1) / 2);
    assert_int_equal(got[1], N);
    OK(cudaFree(sums));
}

static void a_launch_keeps_its_arguments_as_they_were(void **state)
{
    emu_probe_range range = {1, 1};

    (void)state;
    emu_cudart_hang(0, 1);
    assert_int_equal(emu_probe_count(on[0].data, N, &range, on[0].stream), 0);
    range = (emu_probe_range){7, 7};
    emu_cudart_hang(0, 0);
    expect_device(0);
}

static void a_launch_wants_the_streams_device(void **state)
{
    (void)state;
    assert_int_equal(emu_probe_reduce(on[1].data, on[1].data, 1, 32, on[1].stream),
                     cudaErrorInvalidResourceHandle);
    GIVES(cudaEventRecord(on[0].event, on[1].stream), cudaErrorInvalidResourceHandle);
    OK(cudaMemsetAsync(on[1].data, 0, BYTES, on[1].stream));
    OK(cudaStreamSynchronize(on[1].stream));
}

static void events_order_streams_of_two_devices(void **state)
{
    int can = 0;

    (void)state;
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    assert_int_equal(can, 1);
    OK(cudaDeviceEnablePeerAccess(1, 0));
    GIVES(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
    emu_cudart_slow(0, 3000);
    to_device(0);
    OK(cudaEventRecord(on[0].event, on[0].stream));
    OK(cudaStreamWaitEvent(on[1].stream, on[0].event, cudaEventWaitDefault));
    OK(cudaMemcpyPeerAsync(on[1].data, 1, on[0].data, 0, BYTES, on[1].stream));
    expect_device(1);
}

static void events_tell_the_time_between_them(void **state)
{
    cudaEvent_t end, untimed;
    float ms = -1;

    (void)state;
    OK(cudaEventCreate(&end));
    OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    OK(cudaEventQuery(end)); /* never recorded: nothing to wait for */
    OK(cudaEventSynchronize(end));
    GIVES(cudaEventElapsedTime(&ms, on[0].event, end), cudaErrorInvalidResourceHandle);
    OK(cudaEventRecord(on[0].event, on[0].stream));
    emu_cudart_slow(0, 3000);
    to_device(0);
    OK(cudaEventRecord(end, on[0].stream));
    OK(cudaEventRecord(untimed, on[0].stream));
    OK(cudaEventSynchronize(untimed));
    GIVES(cudaEventElapsedTime(&ms, on[0].event, untimed), cudaErrorInvalidResourceHandle);
    OK(cudaEventElapsedTime(&ms, on[0].event, end));
    assert_true(ms >= 3.0f);
    OK(cudaEventDestroy(end));
    OK(cudaEventDestroy(untimed));
}

static void a_destroyed_stream_ends_its_work(void **state)
{
    cudaStream_t stream;

    (void)state;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    emu_cudart_slow(0, 3000);
    OK(cudaMemcpyAsync(on[0].data, on[0].pinned, BYTES, cudaMemcpyHostToDevice, stream));
    OK(cudaEventRecord(on[0].event, stream));
    OK(cudaStreamDestroy(stream));
    OK(cudaEventSynchronize(on[0].event));
    expect_device(0);
}

/* Kernels of two streams and of threads of their own, which all share one emulator. */
static void *launch_on_the_host(void *argument)
{
    uint32_t *sums = argument, in[64];

    for (uint32_t i = 0; i < 64; i++) in[i] = i;
    for (int k = 0; k < 4; k++) emu_probe_reduce(sums, in, 2, 32, NULL);
    return NULL;
}

static void kernels_of_several_threads_take_turns(void **state)
{
    uint32_t host_sums[3] = {0}, got[3], *sums[2];
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, launch_on_the_host, host_sums), 0);
    for (int d = 0; d < 2; d++) {
        OK(cudaSetDevice(d));
        OK(cudaMalloc((void **)&sums[d], sizeof(got)));
        OK(cudaMemsetAsync(sums[d], 0, sizeof(got), on[d].stream));
        to_device(d);
        for (int k = 0; k < 4; k++)
            assert_int_equal(emu_probe_reduce(sums[d], on[d].data, 3, 32, on[d].stream), 0);
    }
    for (int d = 0; d < 2; d++) {
        OK(cudaMemcpyAsync(got, sums[d], sizeof(got), cudaMemcpyDeviceToHost, on[d].stream));
        assert_int_equal(got[0], 4 * N * (N + 1) / 2);
        OK(cudaFree(sums[d]));
    }
    pthread_join(thread, NULL);
    assert_int_equal(host_sums[0], 4 * 63 * 64 / 2);
}

/* ---- graphs ---- */

static cudaGraphExec_t capture_copy_and_sum(uint32_t *sums)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    OK(cudaStreamBeginCapture(on[0].stream, cudaStreamCaptureModeThreadLocal));
    to_device(0);
    OK(cudaMemsetAsync(sums, 0, 3 * sizeof(*sums), on[0].stream));
    assert_int_equal(emu_probe_reduce(sums, on[0].data, 3, 32, on[0].stream), 0);
    OK(cudaStreamEndCapture(on[0].stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    return exec;
}

static void a_graph_does_again_what_was_captured(void **state)
{
    uint32_t *sums, got[3], before[N];
    cudaGraphExec_t exec;

    (void)state;
    OK(cudaMalloc((void **)&sums, sizeof(got)));
    exec = capture_copy_and_sum(sums);
    read_device(before, 0); /* nothing has been done yet */
    assert_int_equal(before[0], 0xffffffffu);
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < N; i++) on[0].pinned[i] = round;
        OK(cudaGraphLaunch(exec, on[0].stream));
        OK(cudaMemcpyAsync(got, sums, sizeof(got), cudaMemcpyDeviceToHost, on[0].stream));
        assert_int_equal(got[0], round * N);
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaFree(sums));
}

static void what_a_capture_does_not_allow_breaks_it(void **state)
{
    cudaGraph_t graph;
    uint32_t here[N] = {0};
    void *p;

    (void)state;
    OK(cudaStreamBeginCapture(on[0].stream, cudaStreamCaptureModeGlobal));
    GIVES(cudaMalloc(&p, 1), cudaErrorStreamCaptureUnsupported);
    GIVES(cudaStreamEndCapture(on[0].stream, &graph), cudaErrorStreamCaptureInvalidated);
    assert_null(graph);
    OK(cudaStreamBeginCapture(on[0].stream, cudaStreamCaptureModeGlobal));
    GIVES(cudaEventQuery(on[1].event), cudaErrorStreamCaptureUnsupported);
    GIVES(cudaStreamEndCapture(on[0].stream, &graph), cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamBeginCapture(on[0].stream, cudaStreamCaptureModeRelaxed));
    OK(cudaMalloc(&p, 1));
    GIVES(cudaStreamBeginCapture(on[0].stream, cudaStreamCaptureModeRelaxed),
          cudaErrorIllegalState);
    GIVES(cudaStreamSynchronize(on[0].stream), cudaErrorStreamCaptureUnsupported);
    GIVES(cudaStreamEndCapture(on[0].stream, &graph), cudaErrorStreamCaptureInvalidated);
    OK(cudaFree(p));
    OK(cudaStreamBeginCapture(on[0].stream, cudaStreamCaptureModeRelaxed));
    GIVES(cudaMemcpyAsync(on[0].data, here, BYTES, cudaMemcpyHostToDevice, on[0].stream),
          cudaErrorStreamCaptureUnsupported);
    GIVES(cudaStreamEndCapture(on[0].stream, &graph), cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamBeginCapture(on[0].stream, cudaStreamCaptureModeRelaxed));
    OK(cudaEventRecord(on[0].event, on[0].stream));
    GIVES(cudaEventQuery(on[0].event), cudaErrorCapturedEvent);
    OK(cudaStreamEndCapture(on[0].stream, &graph));
    OK(cudaGraphDestroy(graph));
    GIVES(cudaStreamEndCapture(on[0].stream, &graph), cudaErrorIllegalState);
}

/* ---- what goes wrong ---- */

static void a_lost_device_stays_lost_and_the_other_goes_on(void **state)
{
    void *p;

    (void)state;
    emu_cudart_hang(0, 1);
    to_device(0);
    OK(cudaEventRecord(on[0].event, on[0].stream));
    emu_cudart_lose(0, cudaErrorIllegalAddress);
    GIVES(cudaEventSynchronize(on[0].event), cudaErrorIllegalAddress);
    GIVES(cudaEventQuery(on[0].event), cudaErrorIllegalAddress);
    GIVES(cudaStreamSynchronize(on[0].stream), cudaErrorIllegalAddress);
    GIVES(cudaMalloc(&p, 1), cudaErrorIllegalAddress);
    GIVES(cudaGetLastError(), cudaErrorIllegalAddress);
    GIVES(cudaGetLastError(), cudaErrorIllegalAddress);
    assert_int_equal(emu_probe_reduce(on[0].data, on[0].data, 1, 32, on[0].stream),
                     cudaErrorIllegalAddress);
    OK(cudaSetDevice(1));
    to_device(1);
    expect_device(1);
    GIVES(cudaMemcpyPeerAsync(on[1].data, 1, on[0].data, 0, BYTES, on[1].stream),
          cudaErrorIllegalAddress);
    GIVES(cudaSetDevice(0), cudaErrorIllegalAddress);
    GIVES(cudaFree(on[0].data), cudaErrorIllegalAddress); /* and is gone all the same */
    on[0].data = NULL;
}

static void the_nth_call_fails_once(void **state)
{
    void *p = NULL;

    (void)state;
    emu_cudart_fail("cudaMalloc", 2, cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p, 1));
    OK(cudaFree(p));
    GIVES(cudaMalloc(&p, 1), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p, 1));
    emu_cudart_fail("cudaFree", 1, cudaErrorUnknown);
    GIVES(cudaFree(p), cudaErrorUnknown); /* of other work, as CUDA says: it is gone */
    const uint64_t n_calls = emu_cudart_n_calls(NULL);
    emu_cudart_fail(NULL, 2, cudaErrorNotPermitted);
    OK(cudaSetDevice(1));
    OK(cudaFree(NULL));
    GIVES(cudaSetDevice(0), cudaErrorNotPermitted);
    assert_int_equal(emu_cudart_n_calls(NULL), n_calls + 2);
    emu_cudart_fail("cudaLaunchKernel", 1, cudaErrorLaunchOutOfResources);
    assert_int_equal(emu_probe_reduce(on[1].data, on[1].data, 1, 32, on[1].stream),
                     cudaErrorLaunchOutOfResources);
}

/* Fewer than three devices, no driver, no peers. */
static void machines_differ(void **state)
{
    struct cudaDeviceProp properties;
    int n = 7;

    (void)state;
    GIVES(cudaSetDevice(2), cudaErrorInvalidDevice);
    emu_cudart_machine_get()->has_peers = 0;
    GIVES(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessUnsupported);
    emu_cudart_machine_get()->device[0].properties_error = cudaErrorECCUncorrectable;
    GIVES(cudaGetDeviceProperties(&properties, 0), cudaErrorECCUncorrectable);
    OK(cudaGetDeviceProperties(&properties, 1));
    assert_string_equal(properties.name, "Emulated GPU");
    emu_cudart_machine_get()->driver_version = 0;
    GIVES(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
    assert_int_equal(n, 0);
    emu_cudart_machine_get()->driver_version = CUDART_VERSION;
    assert_string_equal(cudaGetErrorName(cudaErrorInsufficientDriver),
                        "cudaErrorInsufficientDriver");
}

/* ---- the control file ---- */

static char control_path[] = "/tmp/test_emu_runtime.XXXXXX";

static void control(const char *text)
{
    char next[sizeof(control_path) + 8];
    FILE *file;

    snprintf(next, sizeof(next), "%s.next", control_path);
    file = fopen(next, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(next, control_path), 0);
    setenv("SY_EMU_CONTROL", control_path, 1);
}

static void the_control_file_makes_things_fail_while_they_run(void **state)
{
    void *p;
    uint32_t got[N];

    (void)state;
    control("fail cudaMalloc 2 cudaErrorMemoryAllocation\n# a remark\n");
    OK(cudaMalloc(&p, 1));
    GIVES(cudaMalloc(&p, 1), cudaErrorMemoryAllocation);
    OK(cudaFree(p));
    control("hang 0\nslow 0 3000\n");
    to_device(0);
    GIVES(cudaStreamQuery(on[0].stream), cudaErrorNotReady);
    control("slow 0 3000\nlose 1"); /* which is still being written */
    OK(cudaStreamSynchronize(on[0].stream));
    OK(cudaSetDevice(1));
    control("flip 1 memory\nflip 0\n");
    OK(cudaSetDevice(0));
    OK(cudaMemcpyAsync(on[0].data + N / 2, on[0].data, BYTES / 2, cudaMemcpyDeviceToDevice,
                       on[0].stream));
    read_device(got, 0);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(got[i], (i % (N / 2) + 1) ^ (i == N * 3 / 4 ? 0x10 : 0));
    read_device(got, 1);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(got[i], i == N / 2 ? 0xffffffefu : 0xffffffffu);
    control("lose 1 cudaErrorIllegalAddress\n");
    GIVES(cudaStreamQuery(on[1].stream), cudaErrorIllegalAddress);
    control("");
    GIVES(cudaStreamQuery(on[1].stream), cudaErrorIllegalAddress);
    OK(cudaStreamQuery(on[0].stream));
    unlink(control_path);
}

/* ---- other processes ---- */

/* The child maps what its standard input names, adds one to each number, and says so. */
static int change_memory_of_another_process(void)
{
    cudaIpcMemHandle_t handle;
    cudaStream_t stream;
    uint32_t *theirs, numbers[N];

    if (read(STDIN_FILENO, &handle, sizeof(handle)) != sizeof(handle)) return 2;
    if (cudaSetDevice(1) != cudaSuccess ||
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaIpcOpenMemHandle((void **)&theirs, handle, cudaIpcMemLazyEnablePeerAccess) !=
            cudaSuccess ||
        cudaMemcpyAsync(numbers, theirs, BYTES, cudaMemcpyDeviceToHost, stream) != cudaSuccess)
        return 3;
    for (uint32_t i = 0; i < N; i++) numbers[i]++;
    if (cudaMemcpyAsync(theirs, numbers, BYTES, cudaMemcpyHostToDevice, stream) != cudaSuccess ||
        cudaStreamSynchronize(stream) != cudaSuccess ||
        cudaIpcCloseMemHandle(theirs) != cudaSuccess || cudaStreamDestroy(stream) != cudaSuccess)
        return 4;
    return 0;
}

static void another_process_sees_and_changes_exported_memory(void **state)
{
    cudaIpcMemHandle_t handle;
    uint32_t got[N];
    int channel[2], status;
    void *p;

    (void)state;
    for (uint32_t i = 0; i < N; i++) on[0].pinned[i] = i;
    to_device(0);
    OK(cudaStreamSynchronize(on[0].stream));
    GIVES(cudaIpcGetMemHandle(&handle, on[0].pinned), cudaErrorInvalidValue);
    OK(cudaIpcGetMemHandle(&handle, on[0].data));
    GIVES(cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess),
          cudaErrorDeviceUninitialized); /* one's own */
    assert_int_equal(pipe(channel), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(channel[0], STDIN_FILENO);
        execl("/proc/self/exe", "child", "ipc", (char *)NULL);
        _exit(127);
    }
    assert_int_equal(write(channel[1], &handle, sizeof(handle)), sizeof(handle));
    close(channel[0]);
    close(channel[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    read_device(got, 0);
    for (uint32_t i = 0; i < N; i++) assert_int_equal(got[i], i + 1);
    memset(&handle, 0x55, sizeof(handle));
    GIVES(cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess), cudaErrorInvalidValue);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, open_all, close_all)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(memory_of_a_device_is_limited_and_not_zero),
        CASE(pageable_memory_is_read_at_the_call),
        CASE(a_copy_in_and_a_copy_out_may_share_pinned_memory),
        CASE(registered_memory_is_pinned_once),
        CASE(freeing_waits_for_what_is_on_its_way),
        CASE(work_happens_later_and_in_order),
        CASE(a_launch_keeps_its_arguments_as_they_were),
        CASE(a_launch_wants_the_streams_device),
        CASE(events_order_streams_of_two_devices),
        CASE(events_tell_the_time_between_them),
        CASE(a_destroyed_stream_ends_its_work),
        CASE(kernels_of_several_threads_take_turns),
        CASE(a_graph_does_again_what_was_captured),
        CASE(what_a_capture_does_not_allow_breaks_it),
        CASE(a_lost_device_stays_lost_and_the_other_goes_on),
        CASE(the_nth_call_fails_once),
        CASE(machines_differ),
        CASE(the_control_file_makes_things_fail_while_they_run),
        CASE(another_process_sees_and_changes_exported_memory),
    };

    if (argc == 2 && strcmp(argv[1], "ipc") == 0) return change_memory_of_another_process();
    const int fd = mkstemp(control_path);
    if (fd < 0) return 1;
    close(fd);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
