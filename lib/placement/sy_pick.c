/* sy_pick.c - which of an expert's targets computes for a request. A function of its arguments
 * alone: every process that knows the same picks the same. */
#include "sy_hash.h"
#include "sy_placement.h"

/* An index by share, `point` being random bits. only_usable: shares of targets that cannot be used
 * are left out. -1: nothing to choose from. */
static int pick_by_share(const sy_target_list *targets, const sy_candidate *candidate,
                         uint64_t point, int only_usable)
{
    uint32_t total = 0;

    for (uint32_t i = 0; i < targets->n; i++) {
        if (candidate[i].usable || !only_usable) total += targets->target[i].share;
    }
    if (total == 0) return -1;
    point %= total;
    for (uint32_t i = 0; i < targets->n; i++) {
        if (!candidate[i].usable && only_usable) continue;
        if (point < targets->target[i].share) return (int)i;
        point -= targets->target[i].share;
    }
    return -1;
}

/* The less busy of two, which keeps queues short without sending everybody to the same one. */
static int pick_by_load(const sy_target_list *targets, const sy_candidate *candidate, uint64_t bits)
{
    uint32_t usable[SY_TARGETS_MAX];
    uint32_t n = 0;
    uint32_t first;
    uint32_t second;

    for (uint32_t i = 0; i < targets->n; i++) {
        if (candidate[i].usable && !targets->target[i].shadow) usable[n++] = i;
    }
    if (n == 0) return -1;
    if (n == 1) return (int)usable[0];
    first = (uint32_t)(bits % n);
    second = (first + 1 + (uint32_t)((bits >> 32) % (n - 1))) % n;
    first = usable[first];
    second = usable[second];
    return (int)(candidate[second].outstanding < candidate[first].outstanding ? second : first);
}

int sy_placement_pick(const sy_target_list *targets, const sy_candidate *candidate,
                      uint64_t request, uint32_t layer, uint32_t expert)
{
    const uint64_t bits =
        sy_splitmix64(request ^ sy_splitmix64((uint64_t)layer << 32 | (uint64_t)expert));
    int is_shared = 0;
    int i;

    for (uint32_t j = 0; j < targets->n; j++) is_shared |= targets->target[j].share > 0;
    if (!is_shared) return pick_by_load(targets, candidate, bits);
    /* Over all first: where a target fails, only its own requests move, the others stay. */
    i = pick_by_share(targets, candidate, bits, 0);
    if (i >= 0 && candidate[i].usable) return i;
    return pick_by_share(targets, candidate, sy_splitmix64(bits), 1);
}
