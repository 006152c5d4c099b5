/* sy_emu_stream.h - how kernels launched on a stream reach whoever has streams: the emulated
 * runtime of cudart/. Without it, and on stream NULL, a launch runs at once, on the calling thread.
 */
#ifndef SY_EMU_STREAM_H
#define SY_EMU_STREAM_H

#ifdef __cplusplus
extern "C" {
#endif

/* Calls run(argument) when the stream gets there, once or, captured, any number of times; then
 * drop(argument). Returns 0 or a cudaError_t, and then has dropped it already. */
typedef int (*sy_emu_enqueue)(void *stream, void (*run)(void *), void (*drop)(void *),
                              void *argument);
void sy_emu_stream_set_enqueue(sy_emu_enqueue enqueue);

#ifdef __cplusplus
}
#endif

#endif
