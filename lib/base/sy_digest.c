/* sy_digest.c - libxxhash behind two calls and a state. */
#include "sy_digest.h"

#include <xxhash.h>

uint64_t sy_digest(const void *data, size_t n)
{
    return XXH3_64bits(data, n);
}

sy_digest_state *sy_digest_open(void)
{
    XXH3_state_t *state = XXH3_createState();

    if (state != NULL) (void)XXH3_64bits_reset(state);
    return (sy_digest_state *)state;
}

void sy_digest_add(sy_digest_state *state, const void *data, size_t n)
{
    if (n > 0) (void)XXH3_64bits_update((XXH3_state_t *)state, data, n);
}

uint64_t sy_digest_value(const sy_digest_state *state)
{
    return XXH3_64bits_digest((const XXH3_state_t *)state);
}

void sy_digest_free(sy_digest_state *state)
{
    (void)XXH3_freeState((XXH3_state_t *)state);
}
