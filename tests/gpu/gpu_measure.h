/* gpu_measure.h - what the parts of measure_gpu share. Figures go to stdout as they come, one JSON
 * object a line, so that what was measured stays when something later fails. */
#ifndef GPU_MEASURE_H
#define GPU_MEASURE_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

/* A CUDA call that has to work: says what failed, and ends the program. */
#define GPU_DO(call) gpu_check((call), #call)
void gpu_check(cudaError_t e, const char *what);
/* Says what is wrong, and ends the program. */
_Noreturn void gpu_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

typedef struct gpu_bench {
    cudaStream_t stream;
    int tiny;        /* small shapes, every result checked, nothing timed: for slow tools */
    int quick;       /* fewer shapes, and of the trunk nothing is timed */
    double limit_ms; /* of timed work for one figure, about */
    double end_s;    /* by gpu_now_s: nothing more is begun */
    uint64_t l2_bytes;
    int n_wrong; /* results that were not what they should be */
} gpu_bench;

int gpu_launched(int error); /* see gpu_wait.h */

/* The stream that everything goes by; for the caller to end. */
cudaStream_t gpu_stream_open(void);

/* ---- memory ---- */

void *gpu_alloc(size_t bytes); /* on the device; bytes may be 0 */
void gpu_free(void *p);
size_t gpu_free_bytes(void);
void gpu_put(void *device, const void *host, size_t bytes);
void gpu_get(void *host, const void *device, size_t bytes);
void *gpu_host(size_t bytes); /* malloc that does not fail; bytes may be 0 */

/* ---- samples ---- */

/* Enqueues one run of what is measured. run counts up, so that each may take other data. */
typedef struct gpu_work {
    int (*run)(void *arg, uint32_t run, void *stream);
    void *arg;
} gpu_work;

typedef struct gpu_time {
    double median_us, best_us;
    double enqueue_us; /* of the host, median; 0: it is not told */
    uint32_t n;
} gpu_time;

/* Of as many runs as fit into the limit. The device is kept busy until a series of runs and the
 * events around each has been enqueued, so that no run waits for the host. */
gpu_time gpu_measure(const gpu_bench *bench, gpu_work work);
/* The same by the host's clock, each run by itself: from its first call until it is done. */
gpu_time gpu_measure_alone(const gpu_bench *bench, gpu_work work);
double gpu_now_s(void);

/* ---- random numbers of the host ---- */

typedef struct gpu_random {
    uint64_t state;
} gpu_random;
uint32_t gpu_random_u32(gpu_random *r);

/* ---- the figures ---- */

/* An expert layer, of a known model or a tiny one. */
typedef struct gpu_shape {
    const char *name;
    uint32_t hidden, ffn, n_experts, k;
    int clamped; /* SY_CUDA_CLAMPED, with biases */
} gpu_shape;
extern const gpu_shape gpu_shapes[];
extern const size_t gpu_n_shapes;
/* T of every table; quick ones are fewer. Ends with 0. */
const uint32_t *gpu_token_counts(const gpu_bench *bench);

void gpu_print_device(const gpu_bench *bench);
void gpu_measure_ceilings(const gpu_bench *bench);
void gpu_measure_blas(const gpu_bench *bench);
void gpu_measure_experts(gpu_bench *bench, const gpu_shape *shape);
void gpu_measure_rows(gpu_bench *bench, const gpu_shape *shape);

/* One line of the table. what: "up", "gate", ...; how: "tokens_8", or ""; shape: its name; context:
 * positions that are attended to, 0 where nothing is. flops may be 0. */
typedef struct gpu_figure {
    const char *what, *how, *weights, *shape;
    uint32_t n_tokens, context;
    double bytes, flops;
} gpu_figure;
void gpu_print_figure(const gpu_figure *figure, gpu_time time);
/* Says and counts a result that is not what it should be. */
void gpu_wrong(gpu_bench *bench, const gpu_figure *figure, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* One line a figure whose results are right. */
void gpu_print_checked(const gpu_figure *figure);
/* Of a figure without shape or with it: what keeps it from being made. */
void gpu_skip(const gpu_figure *figure, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* 0, after having said so, when the time is over. */
int gpu_has_time(const gpu_bench *bench, const gpu_figure *figure);

#endif
