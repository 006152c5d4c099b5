/* cu_hash.cu - the hash of sy_cuda_hash.h. Threads walk the words side by side, in strides of the
 * grid; sums meet in a warp, then in *out, where integer additions may arrive in any order. */
#include "sy_cu.h"
#include "sy_cuda_hash.h"

enum {
    THREADS = 256,
    WORDS = 4,        /* of a thread, asked for before the first is used */
    BLOCKS_MAX = 1024 /* more would only add more often to the one sum */
};
#define ALL_LANES 0xffffffffu

static __device__ __forceinline__ uint64_t mix(uint64_t word, uint64_t i)
{
    uint64_t z = word ^ (i + 1) * SY_CUDA_HASH_STEP;

    z = (z ^ z >> 30) * SY_CUDA_HASH_MIX_1;
    z = (z ^ z >> 27) * SY_CUDA_HASH_MIX_2;
    return z ^ z >> 31;
}

__global__ void hash_clear_kernel(uint64_t *out)
{
    *out = 0;
}

__global__ void __launch_bounds__(THREADS)
    hash_kernel(uint64_t *out, const uint64_t *word, uint64_t n_words)
{
    const uint64_t stride = (uint64_t)gridDim.x * THREADS;
    uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x, sum = 0;

    for (; n_words > (WORDS - 1) * stride && i < n_words - (WORDS - 1) * stride;
         i += WORDS * stride) {
        uint64_t w[WORDS];
        SY_UNROLL
        for (int j = 0; j < WORDS; j++) w[j] = word[i + j * stride];
        SY_UNROLL
        for (int j = 0; j < WORDS; j++) sum += mix(w[j], i + j * stride);
    }
    for (; i < n_words; i += stride) sum += mix(word[i], i);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(ALL_LANES, sum, step);
    /* CUDA spells its 64-bit atomics with unsigned long long alone. */
    if (threadIdx.x % 32 == 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(out), (unsigned long long)sum);
}

extern "C" int sy_cuda_hash(uint64_t *out, const void *data, uint64_t bytes, void *stream)
{
    const uint64_t n_words = bytes / sizeof(uint64_t), per_block = THREADS * WORDS;
    const uint64_t n_blocks = (n_words + per_block - 1) / per_block;
    const unsigned grid = n_blocks < BLOCKS_MAX ? (unsigned)n_blocks : (unsigned)BLOCKS_MAX;
    const int error = SY_LAUNCH(hash_clear_kernel, dim3(1), dim3(1), stream, out);

    if (error != 0 || n_words == 0) return error;
    return SY_LAUNCH(hash_kernel, dim3(grid), dim3(THREADS), stream, out,
                     static_cast<const uint64_t *>(data), n_words);
}
