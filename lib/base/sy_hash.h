/* sy_hash.h - hashes and counter-based random numbers. Pure. */
#ifndef SY_HASH_H
#define SY_HASH_H

#include "sy_base.h"

#define SY_FNV1A_START 0xcbf29ce484222325ull
uint64_t sy_fnv1a(uint64_t hash, const void *data,
                  size_t n);              /* FNV-1a 64; chain calls, begin with SY_FNV1A_START */
uint64_t sy_splitmix64(uint64_t counter); /* a good 64-bit mix of a counter; no state */
float sy_unit_float(uint64_t bits);       /* [0, 1), from the top 24 bits */

#endif
