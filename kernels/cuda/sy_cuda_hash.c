/* sy_cuda_hash.c - what cu_hash.cu computes, of host memory. No CUDA. */
#include "sy_cuda_hash.h"

#include <string.h>

uint64_t sy_cuda_hash_host(const void *data, uint64_t bytes)
{
    const unsigned char *from = data;
    uint64_t sum = 0;

    for (uint64_t i = 0; i < bytes / sizeof(uint64_t); i++) {
        uint64_t z;

        memcpy(&z, from + i * sizeof(z), sizeof(z));
        z ^= (i + 1) * SY_CUDA_HASH_STEP;
        z = (z ^ z >> 30) * SY_CUDA_HASH_MIX_1;
        z = (z ^ z >> 27) * SY_CUDA_HASH_MIX_2;
        sum += z ^ z >> 31;
    }
    return sum;
}
