/* test_emu_misuse.c - what the emulated runtime must not let pass: this program runs itself once
 * for every misuse, and once for the same without it, and looks at how that ends and what it says.
 * Races are for ThreadSanitizer; where they show in values, for every build. */
#include "emu_child.h"
#include "emu_cudart.h"
#include "emu_probe.h"
#include "sy_base.h"

#define WRONG "is wrong"

enum { N = 96, BYTES = N * sizeof(uint32_t), LATE = 0, DEVICE = 1 };

/* ---- in the child ---- */

#define OK(call)                                                                      \
    do {                                                                              \
        const cudaError_t e_ = (call);                                                \
        if (e_ != cudaSuccess) fprintf(stderr, #call ": %s\n", cudaGetErrorName(e_)); \
    } while (0)

static cudaStream_t stream, late; /* of DEVICE and of LATE */
static cudaEvent_t event;         /* of LATE */
static uint32_t *data;            /* on LATE */
static uint32_t *more;            /* on DEVICE, which is the current one */
static uint32_t *pinned;          /* ones */

static void open_all(void)
{
    OK(cudaSetDevice(LATE));
    OK(cudaStreamCreateWithFlags(&late, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    OK(cudaMalloc((void **)&data, BYTES));
    OK(cudaSetDevice(DEVICE));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&more, BYTES));
    OK(cudaHostAlloc((void **)&pinned, BYTES, cudaHostAllocPortable));
    for (uint32_t i = 0; i < N; i++) pinned[i] = 1;
}

static void close_all(void)
{
    OK(cudaFree(data));
    OK(cudaFree(more));
    OK(cudaFreeHost(pinned));
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(late));
    OK(cudaStreamDestroy(stream));
}

static void expect(const uint32_t *got, uint32_t want)
{
    for (uint32_t i = 0; i < N; i++)
        if (got[i] != want) {
            fprintf(stderr, "[%u] " WRONG ": %x, want %x\n", i, got[i], want);
            return;
        }
}

static void to_device(uint32_t *to, const uint32_t *from, cudaStream_t in)
{
    OK(cudaMemcpyAsync(to, from, BYTES, cudaMemcpyHostToDevice, in));
}

static void to_host(uint32_t *to, const uint32_t *from, cudaStream_t in)
{
    OK(cudaMemcpyAsync(to, from, BYTES, cudaMemcpyDeviceToHost, in));
}

/* What device memory holds, by way of memory of nobody's. */
static void expect_device(const uint32_t *from, uint32_t want)
{
    uint32_t got[N];

    to_host(got, from, stream);
    expect(got, want);
}

/* ---- races: device LATE hangs until the others have gone too far ---- */

static void reads_before_the_wait(int planted)
{
    OK(cudaMemsetAsync(data, 0, BYTES, late));
    OK(cudaStreamSynchronize(late));
    emu_cudart_hang(LATE, 1);
    to_host(pinned, data, late);
    if (planted) expect(pinned, 0);
    emu_cudart_hang(LATE, 0);
    OK(cudaStreamSynchronize(late));
    expect(pinned, 0);
}

static void write_pinned(uint32_t value)
{
    for (uint32_t i = 0; i < N; i++) pinned[i] = value;
}

static void writes_before_it_was_read(int planted)
{
    emu_cudart_hang(LATE, 1);
    to_device(data, pinned, late);
    OK(cudaEventRecord(event, late));
    if (planted) write_pinned(2);
    emu_cudart_hang(LATE, 0);
    OK(cudaEventSynchronize(event));
    write_pinned(2);
    expect_device(data, 1);
}

/* The event is recorded before what it is waited for. */
static void asks_the_wrong_event(int planted)
{
    OK(cudaStreamSynchronize(late));
    if (planted) {
        OK(cudaEventRecord(event, late));
        OK(cudaEventSynchronize(event));
    }
    emu_cudart_hang(LATE, 1);
    to_device(data, pinned, late);
    if (!planted) {
        OK(cudaEventRecord(event, late));
        emu_cudart_hang(LATE, 0);
    }
    while (cudaEventQuery(event) == cudaErrorNotReady) (void)cudaGetLastError();
    write_pinned(2);
    emu_cudart_hang(LATE, 0);
    expect_device(data, 1);
}

/* Lets `late` go on: without the event, once `stream` has done all that it has been given. */
static void end_both(int planted)
{
    if (planted) OK(cudaStreamSynchronize(stream));
    emu_cudart_hang(LATE, 0);
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamSynchronize(late));
}

static void two_streams_without_an_event(int planted)
{
    OK(cudaMemsetAsync(data, 0, BYTES, late));
    OK(cudaStreamSynchronize(late));
    emu_cudart_hang(LATE, 1);
    to_device(data, pinned, late);
    OK(cudaEventRecord(event, late));
    if (!planted) OK(cudaStreamWaitEvent(stream, event, cudaEventWaitDefault));
    OK(cudaMemcpyPeerAsync(more, DEVICE, data, LATE, BYTES, stream));
    end_both(planted);
    expect_device(more, 1);
}

/* Kernels alone: that they take turns in the emulator orders nothing. */
static void a_kernel_reads_what_another_streams_writes(int planted)
{
    const emu_probe_range ones = {1, 0};
    uint32_t *sums, got[3];

    OK(cudaMalloc((void **)&sums, sizeof(got)));
    OK(cudaMemsetAsync(sums, 0, sizeof(got), stream));
    OK(cudaMemsetAsync(data, 0, BYTES, late));
    OK(cudaStreamSynchronize(late));
    OK(cudaSetDevice(LATE));
    emu_cudart_hang(LATE, 1);
    OK((cudaError_t)emu_probe_count(data, N, &ones, late));
    OK(cudaEventRecord(event, late));
    OK(cudaSetDevice(DEVICE));
    if (!planted) OK(cudaStreamWaitEvent(stream, event, cudaEventWaitDefault));
    OK((cudaError_t)emu_probe_reduce(sums, data, 3, 32, stream));
    end_both(planted);
    OK(cudaMemcpyAsync(got, sums, sizeof(got), cudaMemcpyDeviceToHost, stream));
    if (got[0] != N) fprintf(stderr, "the sum " WRONG ": %u, want %u\n", got[0], N);
    OK(cudaFree(sums));
}

/* ---- memory ---- */

static void frees_twice(int planted)
{
    uint32_t *p;

    OK(cudaMalloc((void **)&p, BYTES));
    OK(cudaFree(p));
    if (planted) OK(cudaFree(p));
}

static void frees_what_was_never_there(int planted)
{
    OK(cudaFree(planted ? data + 1 : NULL));
}

static void frees_pinned_memory_as_a_devices(int planted)
{
    uint32_t *p;

    OK(cudaHostAlloc((void **)&p, BYTES, cudaHostAllocPortable));
    if (planted) OK(cudaFree(p));
    OK(cudaFreeHost(p));
}

static void unregisters_twice(int planted)
{
    static uint32_t here[N];

    OK(cudaHostRegister(here, BYTES, cudaHostRegisterDefault));
    OK(cudaHostUnregister(here));
    if (planted) OK(cudaHostUnregister(here));
}

static void copies_past_the_end(int planted)
{
    OK(cudaMemcpyAsync(more + 1, pinned, planted ? BYTES : BYTES - sizeof(*more),
                       cudaMemcpyHostToDevice, stream));
    OK(cudaStreamSynchronize(stream));
}

static void fills_past_the_end(int planted)
{
    OK(cudaMemsetAsync(more, 0, planted ? BYTES + 1 : BYTES, stream));
}

static void takes_host_memory_for_a_devices(int planted)
{
    uint32_t here[N] = {0};

    OK(cudaMemcpyAsync(planted ? pinned : more, here, BYTES, cudaMemcpyHostToDevice, stream));
}

static void takes_device_memory_for_the_hosts(int planted)
{
    OK(cudaMemcpyAsync(more, planted ? data : pinned, BYTES, cudaMemcpyHostToDevice, stream));
    OK(cudaStreamSynchronize(stream));
}

static void names_the_wrong_peer(int planted)
{
    OK(cudaMemcpyPeerAsync(more, planted ? LATE : DEVICE, data, LATE, BYTES, stream));
    OK(cudaStreamSynchronize(stream));
}

static void a_kernel_reads_past_the_end(int planted)
{
    /* Into the page after it, or, where that is watched, by 16 bytes. */
    const uint32_t n = emu_child_sanitizes("address") ? N / 4 + 1 : 128;

    OK((cudaError_t)emu_probe_copies(data, more, planted ? n : N / 4, stream));
    OK(cudaStreamSynchronize(stream));
}

static void reads_memory_never_written(int planted)
{
    if (!planted) OK(cudaMemsetAsync(more, 0, BYTES, stream));
    expect_device(more, 0);
}

/* ---- objects ---- */

static void destroys_a_stream_twice(int planted)
{
    cudaStream_t s;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaStreamDestroy(s));
    if (planted) OK(cudaStreamDestroy(s));
}

static void uses_an_event_after_its_end(int planted)
{
    cudaEvent_t e;

    OK(cudaEventCreate(&e));
    if (!planted) OK(cudaEventRecord(e, stream));
    OK(cudaEventDestroy(e));
    if (planted) OK(cudaEventRecord(e, stream));
}

static void uses_the_default_stream(int planted)
{
    OK(cudaMemsetAsync(more, 0, BYTES, planted ? NULL : stream));
}

static void uses_a_stream_of_another_device(int planted)
{
    OK(cudaSetDevice(planted ? LATE : DEVICE));
    emu_cudart_machine_get()->strict = 1;
    OK(cudaStreamSynchronize(stream));
    emu_cudart_machine_get()->strict = 0;
}

static void leaves_memory_behind(int planted)
{
    uint32_t *p;

    OK(cudaMalloc((void **)&p, 1000));
    if (!planted) OK(cudaFree(p));
}

static void leaves_a_stream_behind_at_the_reset(int planted)
{
    cudaStream_t s;

    OK(cudaSetDevice(2));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    if (!planted) OK(cudaStreamDestroy(s));
    OK(cudaDeviceReset());
}

static void misspells_the_control_file(int planted)
{
    char path[] = "/tmp/test_emu_misuse.XXXXXX";
    const int fd = mkstemp(path);

    if (fd < 0 || dprintf(fd, planted ? "loose 1\n" : "# lose 1\n") < 0) perror(path);
    close(fd);
    setenv("SY_EMU_CONTROL", path, 1);
    OK(cudaStreamSynchronize(stream));
    unlink(path);
}

/* ---- all of them ---- */

typedef struct misuse {
    const char *name;
    void (*run)(int planted);
    const char *any, *address, *thread; /* what the child says; NULL: not more than the others */
} misuse;
#define CASE(misuse_, said, ...)                                   \
    {                                                              \
        .name = #misuse_, .run = misuse_, .any = said, __VA_ARGS__ \
    }
static const misuse misuses[] = {
    CASE(reads_before_the_wait, WRONG, .thread = "data race"),
    CASE(writes_before_it_was_read, WRONG, .thread = "data race"),
    CASE(asks_the_wrong_event, WRONG, .thread = "data race"),
    CASE(two_streams_without_an_event, WRONG, .thread = "data race"),
    CASE(a_kernel_reads_what_another_streams_writes, WRONG, .thread = "data race"),
    CASE(frees_twice, "cudaFree: 0x"),
    CASE(frees_what_was_never_there, "cudaFree: 0x"),
    CASE(frees_pinned_memory_as_a_devices, "cudaFree: 0x"),
    CASE(unregisters_twice, "cudaHostUnregister: 0x"),
    CASE(copies_past_the_end, "cudaMemcpyAsync: 384 bytes at 4 of 384"),
    CASE(fills_past_the_end, "cudaMemsetAsync: 385 bytes at 0 of 384"),
    CASE(takes_host_memory_for_a_devices, "the target is memory of the host"),
    CASE(takes_device_memory_for_the_hosts, "the source is memory of the device"),
    CASE(names_the_wrong_peer, "is on device 1, not 0"),
    CASE(a_kernel_reads_past_the_end, NULL, .address = "use-after-poison"),
    CASE(reads_memory_never_written, WRONG),
    CASE(destroys_a_stream_twice, "is not there"),
    CASE(uses_an_event_after_its_end, "is not there"),
    CASE(uses_the_default_stream, "the default stream"),
    CASE(uses_a_stream_of_another_device, "a stream of device 1 is used while device 0"),
    CASE(leaves_memory_behind,
         "exit: left behind: 0 streams, 0 events, 0 graphs, 1 pieces of memory (1000 bytes)"),
    CASE(leaves_a_stream_behind_at_the_reset, "cudaDeviceReset: left behind: 1 streams"),
    CASE(misspells_the_control_file, "SY_EMU_CONTROL: what is \"loose 1\"?"),
};

static int child(const misuse *m, int planted)
{
    setenv("SY_EMU_DEVICES", "3", 1);
    open_all();
    m->run(planted);
    close_all();
    return 0;
}

static void run_child(emu_child_end *end, size_t m, int planted)
{
    char number[16];

    snprintf(number, sizeof(number), "%zu", m);
    emu_child_run(end, number, planted ? "1" : "0", "random:1");
}

static void every_misuse_is_caught(void **state)
{
    static emu_child_end end;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(misuses); i++) {
        const misuse *m = &misuses[i];
        const char *want = m->any;
        if (emu_child_sanitizes("address") && m->address != NULL) want = m->address;
        if (emu_child_sanitizes("thread") && m->thread != NULL) want = m->thread;
        run_child(&end, i, 1);
        if (want == NULL && end.clean) fail_msg("%s: not caught", m->name);
        if (want != NULL && strstr(end.said, want) == NULL)
            fail_msg("%s: without \"%s\": %s", m->name, want, end.said);
    }
}

static void nothing_is_said_without_the_misuse(void **state)
{
    static emu_child_end end;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(misuses); i++) {
        run_child(&end, i, 0);
        if (!end.clean || end.said[0] != '\0')
            fail_msg("without %s: %s", misuses[i].name, end.said);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_misuse_is_caught),
        cmocka_unit_test(nothing_is_said_without_the_misuse),
    };

    if (argc == 3) return child(&misuses[atoi(argv[1])], atoi(argv[2]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
