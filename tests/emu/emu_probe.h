/* emu_probe.h - kernels that write down what single instructions do, lane by lane. The same calls
 * serve a GPU, whose answers must be these bits wherever sums are exact. Pointers are device
 * memory. */
#ifndef EMU_PROBE_H
#define EMU_PROBE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of lane l: c[4l..] = C + A B with a: [32][4] and b: [32][2] registers, c: [32][4]. */
int emu_probe_mma(float *c, const uint32_t *a, const uint32_t *b, void *stream);
/* out: [32][4] registers of ldmatrix from the 32 rows of 8 elements in: [32][8]. */
int emu_probe_ldmatrix(uint32_t *out, const uint16_t *in, void *stream);
/* out: [5][32]: from lane 3; lane ^ 5; 7 lanes up; 7 lanes down; ballot of odd values. */
int emu_probe_shuffles(uint32_t *out, const uint32_t *in, void *stream);
/* Sums over blocks of `threads`: total, maximum, and how many blocks have an odd count of odd
 * values. in: [blocks * threads]. out: [3], zeroed before. */
int emu_probe_reduce(uint32_t *out, const uint32_t *in, uint32_t blocks, uint32_t threads,
                     void *stream);
/* out[i] = in[n - 1 - i], through shared memory by asynchronous copies of 16 bytes; n of them, n <=
 * 128. Odd ones are skipped: they come out as zeros. */
int emu_probe_copies(uint32_t *out, const uint32_t *in, uint32_t n, void *stream);
/* out[i] = first + i * step for i < n <= 1024. range: host memory, read during the call. */
typedef struct emu_probe_range {
    uint32_t first, step;
} emu_probe_range;
int emu_probe_count(uint32_t *out, uint32_t n, const emu_probe_range *range, void *stream);

#ifdef __cplusplus
}
#endif

#endif
