/* sy_spread.c - the placement to begin with: every device gets the same number of experts, and each
 * layer begins one device further, so that expert 0 is not always the same device's. */
#include <stdio.h>
#include <string.h>

#include "sy_placement.h"

static int is_plain_target(const char *device)
{
    sy_target_list list;

    return sy_targets_parse(&list, device, strlen(device), NULL) == SY_OK && list.n == 1 &&
           list.target[0].share == 0 && !list.target[0].any_weights;
}

sy_status sy_placement_spread(uint32_t layers, uint32_t experts, const char *const *devices,
                              size_t n_devices,
                              sy_status (*put)(void *arg, const char *field, const char *value),
                              void *arg)
{
    char field[32];
    sy_status st = SY_OK;

    if (n_devices == 0) return SY_EINVAL;
    for (size_t i = 0; i < n_devices; i++) {
        if (!is_plain_target(devices[i])) return SY_EINVAL;
    }
    for (uint32_t layer = 0; layer < layers; layer++) {
        for (uint32_t expert = 0; expert < experts; expert++) {
            snprintf(field, sizeof(field), "%u/%u", layer, expert);
            SY_TRY(put(arg, field, devices[((size_t)expert + layer) % n_devices]));
        }
    }
out:
    return st;
}
