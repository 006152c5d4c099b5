/* sy_emu_warp.cpp - what the lanes of a warp do together, and the copies that a thread has on their
 * way. */
#include "sy_emu_state.h"

/* ---- meetings ---- */

static sy_emu_meeting *find_meeting(sy_emu_warp *w, uint32_t mask)
{
    for (int i = 0; i < SY_EMU_MASKS_MAX; i++)
        if (w->meeting[i].mask == mask || w->meeting[i].mask == 0) {
            w->meeting[i].mask = mask;
            return &w->meeting[i];
        }
    sy_emu_die("a warp that uses more than %d masks", SY_EMU_MASKS_MAX);
}

static float bf16_half(uint32_t word, unsigned high)
{
    return __uint_as_float(high ? word & 0xffff0000u : word << 16);
}

/* Once, by the lane that came last, from the words of all: A is [16][16], B [16][8]. */
static void multiply(sy_emu_meeting *m)
{
    const sy_emu_lanes *in = &m->lanes[m->phase % 2];
    float a[16][16], b[16][8];

    for (unsigned l = 0; l < 32; l++) {
        const unsigned g = l / 4, t = l % 4;
        for (unsigned r = 0; r < 4; r++)
            for (unsigned i = 0; i < 2; i++)
                a[g + 8 * (r % 2)][2 * t + 8 * (r / 2) + i] = bf16_half(in->word[l][r], i);
        for (unsigned r = 0; r < 2; r++)
            for (unsigned i = 0; i < 2; i++)
                b[2 * t + 8 * r + i][g] = bf16_half(in->word[l][4 + r], i);
    }
    for (unsigned row = 0; row < 16; row++) {
        double *sum = m->product[m->phase % 2][row];
        for (unsigned col = 0; col < 8; col++) sum[col] = 0;
        for (unsigned k = 0; k < 16; k++)
            for (unsigned col = 0; col < 8; col++)
                sum[col] += (double)a[row][k] * (double)b[k][col];
    }
}

/* Everybody has come: the next phase may begin. */
static void open_meeting(sy_emu_warp *w, sy_emu_meeting *m)
{
    sy_emu_thread *first = &sy_emu.thread[(w - sy_emu.warp) * 32];

    if (m->kind == SY_EMU_MMA) multiply(m);
    m->arrived = 0;
    m->phase++;
    for (unsigned l = 0; l < 32; l++)
        if ((m->mask >> l & 1) && first[l].state == SY_EMU_AT_PRIMITIVE)
            first[l].state = SY_EMU_READY;
}

static void check_lanes(const sy_emu_warp *w, const sy_emu_meeting *m, sy_emu_warp_kind kind,
                        uint32_t mask, unsigned lane, int line)
{
    if (!(mask >> lane & 1)) sy_emu_die("line %d: a lane that is not in its own mask", line);
    if (mask & w->members & ~w->live)
        sy_emu_die("line %d: a warp primitive names a lane that has left", line);
    if (m->arrived != 0 && (m->kind != kind || m->line != line))
        sy_emu_die("line %d: a warp primitive, while other lanes are at that of line %d", line,
                   m->line);
}

/* Returns the phase that this lane took part in. */
static unsigned take_part(sy_emu_warp *w, sy_emu_meeting *m, sy_emu_warp_kind kind,
                          const uint32_t *word, size_t n_words, int line)
{
    sy_emu_thread *self = sy_emu.current;
    const unsigned lane = self->place.lane, phase = m->phase % 2;
    char *token = &sy_emu.tokens->syncwarp[w - sy_emu.warp][m - w->meeting][phase];

    m->kind = kind;
    m->line = line;
    /* volatile: not a call of memcpy, in which TSan would see this thread write. */
    volatile uint32_t *mine = m->lanes[phase].word[lane];
    for (size_t i = 0; i < n_words; i++) mine[i] = word[i];
    m->arrived |= 1u << lane;
    if (kind == SY_EMU_SYNCWARP) sy_emu_fiber_release(token);
    if (m->arrived == (m->mask & w->members)) {
        open_meeting(w, m);
    } else {
        self->state = SY_EMU_AT_PRIMITIVE;
        sy_emu_yield();
    }
    if (kind == SY_EMU_SYNCWARP) sy_emu_fiber_acquire(token);
    return phase;
}

const sy_emu_lanes *sy_emu_meet(sy_emu_warp_kind kind, uint32_t mask, const uint32_t *word,
                                size_t n_words, int line)
{
    sy_emu_warp *w = &sy_emu.warp[sy_emu.current->id / 32];
    sy_emu_meeting *m = find_meeting(w, mask);

    check_lanes(w, m, kind, mask, sy_emu.current->place.lane, line);
    return &m->lanes[take_part(w, m, kind, word, n_words, line)];
}

void sy_emu_mma(float c[4], const uint32_t a_and_b[6], int line)
{
    const unsigned lane = sy_emu.current->place.lane, g = lane / 4, t = lane % 4;
    sy_emu_warp *w = &sy_emu.warp[sy_emu.current->id / 32];
    sy_emu_meeting *m = find_meeting(w, 0xffffffffu);

    if (w->members != 0xffffffffu) sy_emu_die("line %d: mma in a warp that is not whole", line);
    check_lanes(w, m, SY_EMU_MMA, 0xffffffffu, lane, line);
    const unsigned phase = take_part(w, m, SY_EMU_MMA, a_and_b, 6, line);
    for (unsigned i = 0; i < 4; i++)
        c[i] = (float)((double)c[i] + m->product[phase][g + 8 * (i / 2)][2 * t + i % 2]);
}

/* ---- asynchronous copies ---- */

void sy_emu_copy_start(void *to, const void *from)
{
    sy_emu_copies *c = &sy_emu.current->copies;

    if (c->n == SY_EMU_COPIES_MAX)
        sy_emu_die("more than %d copies on their way", SY_EMU_COPIES_MAX);
    if (((uintptr_t)to | (uintptr_t)from) % 16 != 0) sy_emu_die("a copy that is not aligned");
    c->to[c->n] = to;
    c->from[c->n++] = from;
}

void sy_emu_copy_commit(void)
{
    sy_emu_copies *c = &sy_emu.current->copies;

    if (c->n_groups == SY_EMU_GROUPS_MAX) {
        /* The two oldest become one: no wait keeps that many. */
        for (int i = 1; i < c->n_groups; i++) c->group_end[i - 1] = c->group_end[i];
        c->n_groups--;
    }
    c->group_end[c->n_groups++] = c->n;
}

/* The copies of groups that have landed leave the lists, once the last of them has been taken. */
static void forget_landed(sy_emu_copies *c, int n_groups)
{
    for (int i = c->n_landed; i < c->n; i++) {
        c->to[i - c->n_landed] = c->to[i];
        c->from[i - c->n_landed] = c->from[i];
    }
    for (int i = n_groups; i < c->n_groups; i++)
        c->group_end[i - n_groups] = c->group_end[i] - c->n_landed;
    c->n -= c->n_landed;
    c->n_groups -= n_groups;
    c->n_landed = 0;
}

int sy_emu_copy_land(int keep, void **to, const void **from)
{
    sy_emu_copies *c = &sy_emu.current->copies;
    const int n_groups = c->n_groups - keep;

    if (n_groups <= 0) return 0;
    if (c->n_landed == c->group_end[n_groups - 1]) {
        forget_landed(c, n_groups);
        return 0;
    }
    *to = c->to[c->n_landed];
    *from = c->from[c->n_landed++];
    return 1;
}
