/* sy_shm_internal.h - the first page of a region, which both sides know. */
#ifndef SY_SHM_INTERNAL_H
#define SY_SHM_INTERNAL_H

#include <fcntl.h>

#include "sy_shm.h"

#define SHM_HEADER_BYTES ((size_t)4096) /* areas begin after it */
#define SHM_MAGIC        "SYSHM001"
#define SHM_SEALS        (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

typedef struct shm_header { /* written before anybody hears of the region, then only read */
    char magic[8];
    uint64_t bytes;
    uint8_t key[SY_SHM_KEY_BYTES];
} shm_header;

#endif
