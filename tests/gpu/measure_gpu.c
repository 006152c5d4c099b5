/* measure_gpu.c - what a GPU and the kernels on it do: the device, its ceilings, and a table of
 * kernels, each checked against the CPU before it is timed. JSON, one object a line, on stdout.
 * usage: measure_gpu [--info | --tiny | --quick] [--device N] [--shape NAME] [--seconds S]
 *   --info    what the device is, and whether a kernel runs on it at all
 *   --tiny    small shapes, checked and not timed
 *   --quick   fewer shapes and token counts, and of the trunk checks alone
 *   --seconds what is not begun by then is left out
 * The exit code is 0 when all results were right. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_data.h"
#include "gpu_measure.h"
#include "gpu_trunk.h"
#include "sy_base.h"

/* Checkpoints' own figures; tiny ones are odd on purpose. The first quick ones come first. */
const gpu_shape gpu_shapes[] = {
    {"tiny", 72, 40, 5, 2, 0},
    {"tiny-clamped", 136, 65, 33, 4, 1},
    {"qwen3-30b-a3b", 2048, 768, 128, 8, 0},
    {"mixtral-8x7b", 4096, 14336, 8, 2, 0},
    {"deepseek-v3", 7168, 2048, 256, 8, 0},
    {"gpt-oss-120b", 2880, 2880, 128, 4, 1},
};
const size_t gpu_n_shapes = SY_COUNT_OF(gpu_shapes);
enum { N_TINY = 2, N_QUICK = 4 };

const uint32_t *gpu_token_counts(const gpu_bench *bench)
{
    static const uint32_t all[] = {1, 8, 32, 128, 512, 0};
    static const uint32_t quick[] = {1, 32, 512, 0};
    static const uint32_t tiny[] = {1, 9, 70, 0};

    return bench->tiny ? tiny : bench->quick ? quick : all;
}

/* ---- lines ---- */

static void print_head(const char *kind, const gpu_figure *f)
{
    printf("{\"kind\": \"%s\", \"kernel\": \"%s\", \"variant\": \"%s\", \"weights\": \"%s\", "
           "\"shape\": \"%s\", \"tokens\": %u",
           kind, f->what, f->how, f->weights, f->shape, f->n_tokens);
    if (f->context > 0) printf(", \"context\": %u", f->context);
}

void gpu_print_figure(const gpu_figure *f, gpu_time time)
{
    print_head("kernel", f);
    printf(", \"us\": %.3f, \"best_us\": %.3f, \"runs\": %u, \"bytes\": %.0f, \"gb_s\": %.2f, "
           "\"tflop_s\": %.3f",
           time.median_us, time.best_us, time.n, f->bytes, f->bytes / time.median_us * 1e-3,
           f->flops / time.median_us * 1e-6);
    if (time.enqueue_us > 0.0) printf(", \"enqueue_us\": %.3f", time.enqueue_us);
    puts("}");
    fflush(stdout);
}

void gpu_print_checked(const gpu_figure *f)
{
    print_head("check", f);
    puts(", \"result\": \"pass\"}");
    fflush(stdout);
}

void gpu_wrong(gpu_bench *bench, const gpu_figure *f, const char *format, ...)
{
    char what[256];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    print_head("check", f);
    printf(", \"result\": \"fail\", \"reason\": \"%s\"}\n", what);
    fflush(stdout);
    bench->n_wrong++;
}

void gpu_skip(const gpu_figure *f, const char *format, ...)
{
    va_list args;

    print_head("skip", f);
    fputs(", \"reason\": \"", stdout);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    puts("\"}");
    fflush(stdout);
}

int gpu_has_time(const gpu_bench *bench, const gpu_figure *f)
{
    if (gpu_now_s() < bench->end_s) return 1;
    gpu_skip(f, "no time was left for it");
    return 0;
}

/* ---- the device ---- */

void gpu_print_device(const gpu_bench *bench)
{
    struct cudaDeviceProp p;
    int device, driver, runtime;

    GPU_DO(cudaGetDevice(&device));
    GPU_DO(cudaGetDeviceProperties(&p, device));
    GPU_DO(cudaDriverGetVersion(&driver));
    GPU_DO(cudaRuntimeGetVersion(&runtime));
    printf(
        "{\"kind\": \"device\", \"name\": \"%s\", \"compute_capability\": [%d, %d], "
        "\"multiprocessors\": %d, \"memory_bytes\": %zu, \"free_bytes\": %zu, \"l2_bytes\": %llu, "
        "\"ecc\": %s, \"driver_serves\": \"%d.%d\", \"runtime\": \"%d.%d\"}\n",
        p.name, p.major, p.minor, p.multiProcessorCount, p.totalGlobalMem, gpu_free_bytes(),
        (unsigned long long)bench->l2_bytes, p.ECCEnabled ? "true" : "false", driver / 1000,
        driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    fflush(stdout);
}

/* That a kernel runs at all, which a driver older than the code would prevent. */
static void try_a_kernel(const gpu_bench *bench)
{
    enum { N = 1000 };
    uint32_t host[N] = {0};
    uint32_t *device = gpu_alloc(sizeof(host));

    gpu_check((cudaError_t)gpu_fill_words(device, N, 1, bench->stream), "the first kernel");
    gpu_get(host, device, sizeof(host));
    for (int i = 1; i < N; i++)
        if (host[i] == host[i - 1]) gpu_die("the first kernel wrote the same number twice");
    gpu_free(device);
}

/* ---- what was asked for ---- */

typedef struct options {
    int info, tiny, quick, device;
    double seconds;
    const char *shape;
} options;

static options parse(int argc, char **argv)
{
    options o = {.seconds = 1e9};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--info") == 0) {
            o.info = 1;
        } else if (strcmp(argv[i], "--tiny") == 0) {
            o.tiny = 1;
        } else if (strcmp(argv[i], "--quick") == 0) {
            o.quick = 1;
        } else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
            o.device = (int)strtol(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--shape") == 0 && i + 1 < argc) {
            o.shape = argv[++i];
        } else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
            o.seconds = strtod(argv[++i], NULL);
        } else {
            fprintf(stderr, "usage: measure_gpu [--info | --tiny | --quick] [--device N] "
                            "[--shape NAME] [--seconds S]\n");
            exit(2);
        }
    }
    return o;
}

static int is_wanted(const options *o, size_t i)
{
    if (o->shape != NULL) return strcmp(o->shape, gpu_shapes[i].name) == 0;
    if (o->tiny) return i < N_TINY;
    return i >= N_TINY && (!o->quick || i < N_QUICK);
}

static int is_trunk_wanted(const options *o, const gpu_trunk_shape *shape)
{
    if (o->shape != NULL) return strcmp(o->shape, shape->name) == 0;
    return o->tiny == shape->is_tiny;
}

static void measure_all(gpu_bench *bench, const options *o)
{
    if (!o->tiny) {
        gpu_measure_ceilings(bench);
        gpu_measure_blas(bench);
    }
    for (size_t i = 0; i < gpu_n_trunk_shapes; i++)
        if (is_trunk_wanted(o, &gpu_trunk_shapes[i]))
            gpu_measure_trunk(bench, &gpu_trunk_shapes[i]);
    for (size_t i = 0; i < gpu_n_shapes; i++)
        if (is_wanted(o, i)) {
            gpu_measure_rows(bench, &gpu_shapes[i]);
            gpu_measure_experts(bench, &gpu_shapes[i]);
        }
}

int main(int argc, char **argv)
{
    const options o = parse(argc, argv);
    gpu_bench bench = {.tiny = o.tiny,
                       .quick = o.quick,
                       .limit_ms = o.quick ? 20.0 : 40.0,
                       .end_s = gpu_now_s() + o.seconds};
    int l2_bytes;

    GPU_DO(cudaSetDevice(o.device));
    bench.stream = gpu_stream_open();
    GPU_DO(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, o.device));
    bench.l2_bytes = (uint64_t)l2_bytes;
    gpu_print_device(&bench);
    try_a_kernel(&bench);
    if (!o.info) measure_all(&bench, &o);
    GPU_DO(cudaStreamDestroy(bench.stream));
    puts("{\"kind\": \"end\"}");
    return bench.n_wrong == 0 ? 0 : 1;
}
