/* sy_cuda_hash.h - a hash of bytes on the device, to tell whether a copy between devices is whole
 * without reading it back. As sy_cuda_kernels.h: pointers are device memory, the call enqueues. */
#ifndef SY_CUDA_HASH_H
#define SY_CUDA_HASH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of mix(w, i): z = w ^ (i + 1) * STEP; z = (z ^ z >> 30) * MIX_1; z = (z ^ z >> 27) * MIX_2;
 * z ^ z >> 31. */
#define SY_CUDA_HASH_STEP  UINT64_C(0x9e3779b97f4a7c15)
#define SY_CUDA_HASH_MIX_1 UINT64_C(0xbf58476d1ce4e5b9)
#define SY_CUDA_HASH_MIX_2 UINT64_C(0x94d049bb133111eb)

/* *out = the sum modulo 2^64 over i in [0, bytes / 8) of mix(word[i], i), where mix is a bijection
 * of the word for every i (splitmix64's finaliser of word ^ (i + 1) * odd constant): one changed
 * word always changes it, exchanged words do but once in 2^64. Additions commute, so how the work
 * is cut does not show. bytes: a multiple of 8, 0 gives 0; data: 8-byte aligned; out may hold
 * anything before. */
int sy_cuda_hash(uint64_t *out, const void *data, uint64_t bytes, void *stream);
/* The same of host memory, on the host: what a device is held against. */
uint64_t sy_cuda_hash_host(const void *data, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
