/* gpu_data.h - kernels of measuring itself: random data, a read as fast as it goes, and a wait.
 * Calls enqueue on stream and return the launch's error. */
#ifndef GPU_DATA_H
#define GPU_DATA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* n numbers in [-scale, scale), a function of seed and index. out: device memory. */
int gpu_fill_bf16(uint16_t *out, uint64_t n, uint64_t seed, float scale, void *stream);
int gpu_fill_f32(float *out, uint64_t n, uint64_t seed, float scale, void *stream);
/* Any bytes, 4 at a time. */
int gpu_fill_words(uint32_t *out, uint64_t n, uint64_t seed, void *stream);
/* Reads bytes, a multiple of 16, the way weights are read. sink: one word that is hardly ever
 * written. */
int gpu_read(uint32_t *sink, const void *data, uint64_t bytes, void *stream);
/* Keeps the device busy for about so long. */
int gpu_spin(uint32_t us, void *stream);

#ifdef __cplusplus
}
#endif

#endif
