/* gpu_wait.h - comes before every kernel file that this folder compiles (nvcc -include), so that
 * each launch is followed by a call of the program. Tests of tests/emu read results as soon as a
 * call returns, as the emulator lets them: there the call waits for the device. Measuring does not.
 */
#ifndef GPU_WAIT_H
#define GPU_WAIT_H

#include <cuda_runtime.h>

/* error: of the launch. What the launch's caller gets: 0, or an error. */
extern "C" int gpu_launched(int error);

/* What SY_LAUNCH asks after each launch. The name in brackets is no macro. */
#define cudaGetLastError() gpu_launched((int)(cudaGetLastError)())

#endif
