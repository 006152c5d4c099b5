/* sy_shm.h - memory that a client shares with a server on the same host, so that rows need not pass
 * through a socket. The client creates a region and owns every area in it; it lends an area to one
 * message at a time and says where it is by a ticket and an offset. The server attaches the region
 * and reads and writes there.
 *
 * Neither side trusts the other. Offsets and lengths travel in messages and are checked against the
 * mapping; nothing but the elements of rows is in the region, so what the other side writes there,
 * whenever it does, can change numbers and nothing else. A region never changes its size once
 * somebody else has heard of it: both sides see to the seals, so that no access can fault. Whoever
 * lends an area again must know that the other side is done with it, and without an answer that is
 * never known: then the whole region is given up, and the mapping of a process that stalled stays
 * its own.
 *
 * Any thread, all of it. */
#ifndef SY_SHM_H
#define SY_SHM_H

#include "sy_status.h"

#define SY_SHM_ALIGN     64
#define SY_SHM_KEY_BYTES 16
#define SY_SHM_BYTES_MAX ((uint64_t)1 << 30) /* of a region: larger ones are not attached */
#define SY_SHM_AREAS_MAX 256                 /* lent at once */
/* The reason in errors of attaching: the client sends the same again, without shared memory. */
#define SY_SHM_UNAVAILABLE "SHARED_MEMORY_UNAVAILABLE"

typedef struct sy_shm_ticket { /* what a server needs to know of a region */
    uint64_t pid;
    uint32_t fd;
    uint8_t key[SY_SHM_KEY_BYTES]; /* random: another file at that number is not taken for it */
    uint64_t bytes;
} sy_shm_ticket;

/* ---- the client's side ---- */
typedef struct sy_shm sy_shm; /* reference-counted: unmapped with the last reference */

/* bytes: for areas, up to SY_SHM_BYTES_MAX less a page; memory is only taken by what is written.
 * One reference. SY_EIO: the system gives none; SY_ENOMEM. */
SY_MUST_USE sy_status sy_shm_create(sy_shm **out, size_t bytes, sy_error *err);
sy_shm *sy_shm_ref(sy_shm *shm); /* returns shm */
void sy_shm_unref(sy_shm *shm);  /* accepts NULL */
void sy_shm_get_ticket(const sy_shm *shm, sy_shm_ticket *out);
/* An area of at least `bytes`, aligned to SY_SHM_ALIGN, contents undefined. The lowest one that is
 * free: pages that have been used are used again before others are touched. NULL: no room. */
void *sy_shm_lend(sy_shm *shm, size_t bytes);
void sy_shm_give_back(sy_shm *shm, void *area);            /* as lent */
uint64_t sy_shm_offset(const sy_shm *shm, const void *at); /* at: inside of an area */
uint32_t sy_shm_lent(sy_shm *shm);                         /* areas */

/* ---- the server's side ---- */
typedef struct sy_shm_view sy_shm_view; /* an attached region, reference-counted */

/* One reference. What is not exactly a sealed region of that size and key is SY_EPRECONDITION with
 * the reason SY_SHM_UNAVAILABLE. */
SY_MUST_USE sy_status sy_shm_attach(sy_shm_view **out, const sy_shm_ticket *ticket, sy_error *err);
sy_shm_view *sy_shm_view_ref(sy_shm_view *view); /* returns view */
void sy_shm_view_unref(sy_shm_view *view);       /* accepts NULL */
/* The bytes at offset. NULL: not aligned, or not inside of where areas are. */
void *sy_shm_view_at(const sy_shm_view *view, uint64_t offset, uint64_t bytes);

/* What one connection has attached: one region at a time. Views of an earlier one stay good for
 * those who hold them. */
typedef struct sy_shm_guest sy_shm_guest; /* reference-counted */

/* usable 0: every ticket is refused. NULL: no memory. */
sy_shm_guest *sy_shm_guest_open(int usable);
sy_shm_guest *sy_shm_guest_ref(sy_shm_guest *guest);
void sy_shm_guest_unref(sy_shm_guest *guest); /* accepts NULL */
/* The view of that region, with a reference: attached now, unless it is already. A connection that
 * shows one ticket after another is refused. Errors as of sy_shm_attach. */
SY_MUST_USE sy_status sy_shm_guest_view(sy_shm_view **out, sy_shm_guest *guest,
                                        const sy_shm_ticket *ticket, sy_error *err);

#endif
