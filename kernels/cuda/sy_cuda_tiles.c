/* sy_cuda_tiles.c - the list of tiles that a batch is computed by: host memory, no CUDA. */
#include "sy_base.h"
#include "sy_cuda_kernels.h"

uint32_t sy_cuda_variant_tokens(sy_cuda_variant variant)
{
    static const uint32_t tokens[N_SY_CUDA_VARIANTS] = {
        [SY_CUDA_TOKENS_8] = 8,   [SY_CUDA_TOKENS_16] = 16, [SY_CUDA_TOKENS_32] = 32,
        [SY_CUDA_TOKENS_64] = 64, [SY_CUDA_TILED_64] = 64,  [SY_CUDA_TILED_128] = 128,
    };

    SY_ASSERT(variant < N_SY_CUDA_VARIANTS);
    return tokens[variant];
}

/* Larger tiles save readings of the weights, which bf16 has twice as many bytes of as anything
 * else. */
sy_cuda_variant sy_cuda_variant_for(uint32_t n_rows, sy_cuda_weights weights)
{
    const uint32_t last = weights == SY_CUDA_BF16 ? SY_CUDA_TILED_128 : SY_CUDA_TILED_64;
    uint32_t variant = SY_CUDA_TOKENS_8;

    while (variant < last && sy_cuda_variant_tokens((sy_cuda_variant)variant) < n_rows) variant++;
    return (sy_cuda_variant)variant;
}

size_t sy_cuda_tiles_cut(sy_cuda_tile *tiles, const uint32_t *begin, size_t n,
                         sy_cuda_variant variant)
{
    const uint32_t tokens = sy_cuda_variant_tokens(variant);
    size_t n_tiles = 0;

    for (size_t i = 0; i < n; i++) {
        SY_ASSERT(begin[i] <= begin[i + 1]);
        for (uint32_t at = begin[i]; at < begin[i + 1];) {
            const uint32_t end = begin[i + 1] - at > tokens ? at + tokens : begin[i + 1];
            tiles[n_tiles++] = (sy_cuda_tile){(uint32_t)i, at, end};
            at = end;
        }
    }
    return n_tiles;
}
