/* emu_cudart.h - found in the place of that of tests/emu/cudart where its fixtures are built for a
 * GPU: what they ask of the emulated runtime, of which there is none. */
#ifndef GPU_EMU_CUDART_H
#define GPU_EMU_CUDART_H

#include <cuda_runtime_api.h>

static inline void emu_cudart_reset(void)
{
}

/* Objects that somebody has not freed; a real runtime does not tell. */
static inline int emu_cudart_n_live(void)
{
    return 0;
}

static inline cudaError_t emu_cudart_last(void)
{
    return cudaSuccess;
}

#endif
