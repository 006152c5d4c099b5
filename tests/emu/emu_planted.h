/* emu_planted.h - small kernels with a bug each, and the same ones without it: whether the emulator
 * tells them apart is what test_emu_planted.c asks. */
#ifndef EMU_PLANTED_H
#define EMU_PLANTED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum emu_bug {
    BUG_BARRIER_MISSING,      /* a neighbour's value is read before it has been written */
    BUG_BARRIER_MISSING_LATE, /* it is overwritten before it has been read */
    BUG_WAIT_TOO_EARLY,       /* one group of copies too many is left on its way */
    BUG_COUNT_NOT_ATOMIC,     /* two blocks add to one number */
    BUG_SHARED_OVERRUN,       /* the element after a shared array is written */
    BUG_GLOBAL_OVERRUN,       /* the element after a global array is read */
    BUG_SHARED_UNWRITTEN,     /* half of what is read was never written */
    BUG_MISALIGNED,           /* 16 bytes are read at 4 */
    BUG_BARRIER_DIVERGENT,    /* half of the threads are at another barrier */
    BUG_BARRIER_LEFT,         /* half of the threads have left before the barrier */
    BUG_LANE_LEFT,            /* a shuffle names lanes that have left */
    BUG_LANES_APART,          /* half of the lanes shuffle elsewhere */
    N_EMU_BUGS
} emu_bug;

enum { EMU_PLANTED_THREADS = 64 };
/* Runs the kernel, with its bug or without: out[i] is to be what `want` says. in: [THREADS + 4]
 * numbers, 16-byte aligned; out: [THREADS], zeroed. */
void emu_planted_run(emu_bug bug, int planted, uint32_t *out, const uint32_t *in);
uint32_t emu_planted_want(emu_bug bug, const uint32_t *in, uint32_t i);

#ifdef __cplusplus
}
#endif

#endif
