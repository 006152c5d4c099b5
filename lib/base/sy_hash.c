/* sy_hash.c - FNV-1a for names and contents, splitmix64 for everything that needs a random number
 * by position. */
#include "sy_hash.h"

uint64_t sy_fnv1a(uint64_t hash, const void *data, size_t n)
{
    const unsigned char *bytes = data;

    for (size_t i = 0; i < n; i++) hash = (hash ^ bytes[i]) * 0x100000001b3ull;
    return hash;
}

uint64_t sy_splitmix64(uint64_t counter)
{
    uint64_t z = counter + 0x9e3779b97f4a7c15ull;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

float sy_unit_float(uint64_t bits)
{
    return (float)(bits >> 40) *
           0x1p-24f; /* 24 bits fit a float exactly, so the result is below 1 */
}
