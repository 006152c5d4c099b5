/* gpu_blas.c - what the tensor cores do at best: a large bf16 product by cuBLASLt, which is looked
 * for by name, as nothing here needs it. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "gpu_data.h"
#include "gpu_measure.h"

#if !defined(GPU_EMULATED) && __has_include(<cublasLt.h>)
#include <cublasLt.h>

#define N               8192
#define WORKSPACE_BYTES ((size_t)64 << 20)

/* The functions in use, by the names of cublasLt.h. */
#define FUNCTIONS(X)                        \
    X(cublasLtCreate)                       \
    X(cublasLtDestroy)                      \
    X(cublasLtGetVersion)                   \
    X(cublasLtMatmul)                       \
    X(cublasLtMatmulAlgoGetHeuristic)       \
    X(cublasLtMatmulDescCreate)             \
    X(cublasLtMatmulDescSetAttribute)       \
    X(cublasLtMatmulPreferenceCreate)       \
    X(cublasLtMatmulPreferenceSetAttribute) \
    X(cublasLtMatrixLayoutCreate)

typedef struct blas {
#define X(name) __typeof__(&name) name;
    FUNCTIONS(X)
#undef X
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t square;
    cublasLtMatmulAlgo_t algorithm;
    void *a, *b, *c, *workspace;
} blas;

static void skip(const char *why)
{
    printf("{\"kind\": \"ceiling\", \"name\": \"cublaslt_bf16\", \"skip\": \"%s\"}\n", why);
    fflush(stdout);
}

static void *open_library(void)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library != NULL) return library;
    }
    return NULL;
}

static int find_functions(blas *self, void *library)
{
#define X(name)                                     \
    {                                               \
        void *found = dlsym(library, #name);        \
        if (found == NULL) return 0;                \
        memcpy(&self->name, &found, sizeof(found)); \
    }
    FUNCTIONS(X)
#undef X
    return 1;
}

/* C = A^T B, all N by N, the form that is fastest. 0: cuBLASLt refused something. */
static int describe(blas *self)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const size_t workspace_bytes = WORKSPACE_BYTES;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;

    if (self->cublasLtCreate(&self->handle) != CUBLAS_STATUS_SUCCESS) return 0;
    if (self->cublasLtMatmulDescCreate(&self->product, CUBLAS_COMPUTE_32F, CUDA_R_32F) != 0 ||
        self->cublasLtMatmulDescSetAttribute(self->product, CUBLASLT_MATMUL_DESC_TRANSA,
                                             &transposed, sizeof(transposed)) != 0 ||
        self->cublasLtMatrixLayoutCreate(&self->square, CUDA_R_16BF, N, N, N) != 0 ||
        self->cublasLtMatmulPreferenceCreate(&preference) != 0 ||
        self->cublasLtMatmulPreferenceSetAttribute(preference,
                                                   CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                   &workspace_bytes, sizeof(workspace_bytes)) != 0)
        return 0;
    if (self->cublasLtMatmulAlgoGetHeuristic(self->handle, self->product, self->square,
                                             self->square, self->square, self->square, preference,
                                             1, &found, &n) != 0)
        return 0;
    self->algorithm = found.algo;
    return n == 1;
}

static int run_product(void *arg, uint32_t run, void *stream)
{
    const blas *self = arg;
    const float one = 1.0f, zero = 0.0f;

    (void)run;
    return self->cublasLtMatmul(self->handle, self->product, &one, self->a, self->square, self->b,
                                self->square, &zero, self->c, self->square, self->c, self->square,
                                &self->algorithm, self->workspace, WORKSPACE_BYTES,
                                stream) == CUBLAS_STATUS_SUCCESS
               ? 0
               : (int)cudaErrorUnknown;
}

static void measure(const gpu_bench *bench, blas *self)
{
    const uint64_t n = (uint64_t)N * N;

    self->a = gpu_alloc(n * 2);
    self->b = gpu_alloc(n * 2);
    self->c = gpu_alloc(n * 2);
    self->workspace = gpu_alloc(WORKSPACE_BYTES);
    gpu_check((cudaError_t)gpu_fill_bf16(self->a, n, 1, 1.0f, bench->stream), "filling A");
    gpu_check((cudaError_t)gpu_fill_bf16(self->b, n, 2, 1.0f, bench->stream), "filling B");
    const gpu_time time = gpu_measure(bench, (gpu_work){run_product, self});
    const double flops = 2.0 * (double)n * N;
    printf("{\"kind\": \"ceiling\", \"name\": \"cublaslt_bf16\", \"tflop_s\": %.1f, "
           "\"median_tflop_s\": %.1f, \"n\": %d, \"version\": %zu, \"runs\": %u}\n",
           flops / time.best_us * 1e-6, flops / time.median_us * 1e-6, N,
           self->cublasLtGetVersion(), time.n);
    fflush(stdout);
    gpu_free(self->a);
    gpu_free(self->b);
    gpu_free(self->c);
    gpu_free(self->workspace);
}

void gpu_measure_blas(const gpu_bench *bench)
{
    blas self = {0};
    void *library = open_library();

    if (library == NULL) {
        skip("libcublasLt is not to be found by the loader");
    } else if (!find_functions(&self, library)) {
        skip("this libcublasLt lacks a function");
    } else if (!describe(&self)) {
        skip("cuBLASLt does not take the product");
    } else {
        measure(bench, &self);
    }
    /* The library stays: it may have threads. */
    if (self.handle != NULL) (void)self.cublasLtDestroy(self.handle);
}
#else
void gpu_measure_blas(const gpu_bench *bench)
{
    (void)bench;
    puts("{\"kind\": \"ceiling\", \"name\": \"cublaslt_bf16\", \"skip\": \"built without "
         "cublasLt.h\"}");
}
#endif
