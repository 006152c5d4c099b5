/* sy_spread.c - the placement to begin with: every device gets the same number of experts, and each
 * layer with experts begins one device further, so that expert 0 is not always the same device's,
 * and what does not divide evenly in one layer does over several. */
#include <stdio.h>
#include <string.h>

#include "sy_placement.h"

static int is_plain_target(const char *device)
{
    sy_target_list list;

    return sy_targets_parse(&list, device, strlen(device), NULL) == SY_OK && list.n == 1 &&
           list.target[0].share == 0 && !list.target[0].any_weights;
}

sy_status sy_placement_spread(const sy_grid *grid, const char *const *devices, size_t n_devices,
                              sy_status (*put)(void *arg, const char *field, const char *value),
                              void *arg)
{
    char field[32];
    size_t begin = 0;
    sy_status st = SY_OK;

    if (n_devices == 0) return SY_EINVAL;
    for (size_t i = 0; i < n_devices; i++) {
        if (!is_plain_target(devices[i])) return SY_EINVAL;
    }
    for (uint32_t layer = 0; layer < grid->layers; layer++) {
        if (!sy_grid_has(grid, layer)) continue;
        for (uint32_t expert = 0; expert < grid->experts; expert++) {
            snprintf(field, sizeof(field), "%u/%u", layer, expert);
            SY_TRY(put(arg, field, devices[(expert + begin) % n_devices]));
        }
        begin++;
    }
out:
    return st;
}
