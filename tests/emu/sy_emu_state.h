/* sy_emu_state.h - the emulator's one running launch. Private to sy_emu*.cpp, which are never built
 * with ThreadSanitizer: what they keep here belongs to no CUDA thread. */
#ifndef SY_EMU_STATE_H
#define SY_EMU_STATE_H

#include "sy_emu.h"
#include "sy_emu_fiber.h"

enum {
    SY_EMU_THREADS_MAX = 1024, /* of a block */
    SY_EMU_WARPS_MAX = SY_EMU_THREADS_MAX / 32,
    SY_EMU_MASKS_MAX = 8, /* different masks that the lanes of a warp use in one block */
    SY_EMU_COPIES_MAX = 64,
    SY_EMU_GROUPS_MAX = 16
};

enum sy_emu_thread_state { SY_EMU_READY, SY_EMU_AT_BARRIER, SY_EMU_AT_PRIMITIVE, SY_EMU_LEFT };

struct sy_emu_copies {
    void *to[SY_EMU_COPIES_MAX];
    const void *from[SY_EMU_COPIES_MAX];
    int n, n_landed;                  /* landed ones stay until all of a wait have */
    int group_end[SY_EMU_GROUPS_MAX]; /* copies [group_end[i-1], group_end[i]) are group i */
    int n_groups;
};

struct sy_emu_thread {
    sy_emu_place place;
    sy_emu_fiber *fiber;
    sy_emu_thread_state state;
    unsigned id; /* in the block */
    sy_emu_copies copies;
};

/* Lanes of one mask on their way through one primitive after another. A lane can be one primitive
 * ahead of the others, never two: hence two of everything, by phase. */
struct sy_emu_meeting {
    uint32_t mask; /* 0: not in use */
    uint32_t arrived;
    unsigned phase;
    sy_emu_warp_kind kind;
    int line;
    sy_emu_lanes lanes[2];
    double product[2][16][8]; /* of SY_EMU_MMA: rounded once, with c */
};

struct sy_emu_warp {
    uint32_t members, live;
    sy_emu_meeting meeting[SY_EMU_MASKS_MAX];
};

/* What lies before the shared arrays of a block: allocated for each block anew, so that TSan
 * forgets what ordered the block before. */
struct sy_emu_tokens {
    char start;
    char barrier[2];
    char syncwarp[SY_EMU_WARPS_MAX][SY_EMU_MASKS_MAX][2];
};

struct sy_emu_launch_state {
    sy_emu_fiber host;
    sy_emu_thread *current; /* NULL: the host's code runs */
    sy_emu_thread thread[SY_EMU_THREADS_MAX];
    unsigned n_threads, n_live;
    sy_emu_warp warp[SY_EMU_WARPS_MAX];
    sy_emu_tokens *tokens;
    /* The barrier that threads are at, and the result of the one before. */
    sy_emu_barrier_kind barrier_kind;
    int barrier_line, barrier_sum, barrier_result;
    unsigned n_at_barrier, barrier_phase;
};
extern sy_emu_launch_state sy_emu;

/* Says which block and thread, and ends the process. */
[[noreturn]] void sy_emu_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
void sy_emu_yield(void); /* to the scheduler, until it finds this thread ready */

#endif
