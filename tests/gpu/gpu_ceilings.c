/* gpu_ceilings.c - how fast bytes move at best: to, from and on the device by its copy engines and
 * its own kernels, and read by a kernel that does nothing else. No kernel of experts can be faster.
 */
#include <stdio.h>

#include "gpu_data.h"
#include "gpu_measure.h"

#define DEVICE_BYTES ((size_t)1 << 30)
#define HOST_BYTES   ((size_t)256 << 20)

typedef struct copy {
    void *to;
    const void *from;
    size_t bytes;
    enum cudaMemcpyKind kind;
} copy;

static int run_copy(void *arg, uint32_t run, void *stream)
{
    const copy *c = arg;

    (void)run;
    return (int)cudaMemcpyAsync(c->to, c->from, c->bytes, c->kind, stream);
}

static int run_read(void *arg, uint32_t run, void *stream)
{
    const copy *c = arg;

    (void)run;
    return gpu_read(c->to, c->from, c->bytes, stream);
}

/* moved: bytes read and bytes written, both counted. */
static void print_ceiling(const gpu_bench *bench, const char *name, gpu_work work, double moved)
{
    const gpu_time time = gpu_measure(bench, work);

    printf("{\"kind\": \"ceiling\", \"name\": \"%s\", \"gb_s\": %.2f, \"median_gb_s\": %.2f, "
           "\"bytes\": %.0f, \"runs\": %u}\n",
           name, moved / time.best_us * 1e-3, moved / time.median_us * 1e-3, moved, time.n);
    fflush(stdout);
}

static void print_copy(const gpu_bench *bench, const char *name, copy c)
{
    const double moved = (double)c.bytes * (c.kind == cudaMemcpyDeviceToDevice ? 2.0 : 1.0);

    print_ceiling(bench, name, (gpu_work){run_copy, &c}, moved);
}

void gpu_measure_ceilings(const gpu_bench *bench)
{
    const size_t n =
        DEVICE_BYTES < gpu_free_bytes() / 4 ? DEVICE_BYTES : gpu_free_bytes() / 4096 * 1024;
    const size_t host_bytes = HOST_BYTES < 2 * n ? HOST_BYTES : 2 * n;
    uint8_t *device = gpu_alloc(2 * n);
    uint32_t *sink = gpu_alloc(sizeof(uint32_t));
    void *host = NULL;

    GPU_DO(cudaHostAlloc(&host, host_bytes, cudaHostAllocDefault));
    /* Random, since compressible data may take less. */
    gpu_check((cudaError_t)gpu_fill_words((uint32_t *)(void *)device, 2 * n / 4, 7, bench->stream),
              "filling memory");
    print_copy(bench, "copy_on_device", (copy){device + n, device, n, cudaMemcpyDeviceToDevice});
    copy read = {sink, device, 2 * n, cudaMemcpyDeviceToDevice};
    print_ceiling(bench, "read_on_device", (gpu_work){run_read, &read}, 2.0 * (double)n);
    print_copy(bench, "from_device", (copy){host, device, host_bytes, cudaMemcpyDeviceToHost});
    print_copy(bench, "to_device", (copy){device, host, host_bytes, cudaMemcpyHostToDevice});
    gpu_free(sink);
    gpu_free(device);
    GPU_DO(cudaFreeHost(host));
}
