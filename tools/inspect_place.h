/* inspect_place.h - where a checkpoint's experts could go, given devices and their memory: the
 * spread that `switchyard placement init` writes, kept within what each device has room for. */
#ifndef INSPECT_PLACE_H
#define INSPECT_PLACE_H

#include "inspect_facts.h"
#include "sy_placement.h"

#define INSPECT_DEVICES_MAX 1024

typedef struct inspect_device {
    char name[SY_NODE_BYTES + SY_DEVICE_BYTES]; /* "expert-0/cpu:0" */
    uint64_t memory_bytes;
    uint64_t n_room, n_experts; /* shards that fit, and that are placed there */
} inspect_device;

typedef struct inspect_place {
    const inspect_format *format; /* which weights the experts are held in */
    inspect_device *device;       /* [n_devices] */
    size_t n_devices;
    sy_grid grid;
    uint16_t *to;    /* [layers*experts]: the device, or INSPECT_NOWHERE */
    uint64_t n_left; /* shards that no device has room for */
} inspect_place;
#define INSPECT_NOWHERE UINT16_MAX

/* devices: "NODE/DEVICE=SIZE", "NODE=SIZE" for its cpu:0, or "N*SIZE" for expert-0/cpu:0 to
 * expert-(N-1)/cpu:0, separated by commas; a size is 80GiB, 512MB, 1000. weights: as --weights has
 * them. What does not fit is no failure. SY_EINVAL: the texts; SY_ENOMEM. *out is to be freed
 * either way; facts lives longer. */
SY_MUST_USE sy_status inspect_place_make(inspect_place *out, const inspect_facts *facts,
                                         const char *devices, const char *weights, sy_error *err);
void inspect_place_free(inspect_place *place); /* accepts a zeroed one */

#endif
