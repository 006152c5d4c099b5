/* device_measure.h - opens a device of a backend, checks that bytes come back as they went, and
 * measures how fast they move. */
#ifndef DEVICE_MEASURE_H
#define DEVICE_MEASURE_H

#include "sy_devices.h"

typedef struct device_measure {
    uint64_t free_bytes, total_bytes; /* of its memory, with this process on it */
    sy_backend_bandwidth copies;
} device_measure;

/* Takes 512 MiB on the device and 256 MiB of pinned memory on the host for a moment. SY_EDATALOSS:
 * bytes came back changed; else what the backend says, as sy_backend_status has it. */
SY_MUST_USE sy_status device_measure_run(device_measure *out, const sy_backend *backend,
                                         uint32_t number, sy_error *err);

#endif
