/* sy_digest.h - XXH3 (64 bits) of large contents: weights and what is copied of them. It tells
 * damage and mistakes, not forgery. */
#ifndef SY_DIGEST_H
#define SY_DIGEST_H

#include "sy_base.h"

uint64_t sy_digest(const void *data, size_t n);

/* The same value for the same bytes in pieces. One thread at a time. */
typedef struct sy_digest_state sy_digest_state;
sy_digest_state *sy_digest_open(void); /* NULL: no memory */
void sy_digest_add(sy_digest_state *state, const void *data, size_t n);
uint64_t sy_digest_value(const sy_digest_state *state); /* of what was added so far */
void sy_digest_free(sy_digest_state *state);            /* accepts NULL */

#endif
