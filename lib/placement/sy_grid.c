/* sy_grid.c - which layers have experts, in and out of text. */
#include "sy_grid.h"

#include <stdio.h>
#include <string.h>

#include "sy_bytes.h"

#define SHOWN_BYTES 80

void sy_grid_set(sy_grid *grid, uint32_t layer, int has_experts)
{
    const uint64_t bit = (uint64_t)1 << (layer % 64);

    SY_ASSERT(layer < SY_GRID_LAYERS_MAX);
    if (has_experts) {
        grid->dense[layer / 64] &= ~bit;
    } else {
        grid->dense[layer / 64] |= bit;
    }
}

sy_grid sy_grid_of(uint32_t layers, uint32_t experts, const uint8_t *flag, uint8_t mask)
{
    sy_grid grid = {.layers = layers, .experts = experts};

    for (uint32_t layer = 0; flag != NULL && layer < layers && layer < SY_GRID_LAYERS_MAX; layer++)
        sy_grid_set(&grid, layer, (flag[layer] & mask) == 0);
    return grid;
}

int sy_grid_is_same(const sy_grid *a, const sy_grid *b)
{
    return a->layers == b->layers && a->experts == b->experts &&
           memcmp(a->dense, b->dense, sizeof(a->dense)) == 0;
}

uint32_t sy_grid_moe_layers(const sy_grid *grid)
{
    uint32_t n = 0;

    for (uint32_t layer = 0; layer < grid->layers; layer++) n += (uint32_t)sy_grid_has(grid, layer);
    return n;
}

uint64_t sy_grid_shards(const sy_grid *grid)
{
    return (uint64_t)sy_grid_moe_layers(grid) * grid->experts;
}

/* ---- out ---- */

size_t sy_grid_format(char *out, size_t cap, const sy_grid *grid)
{
    size_t len = 0;

    if (cap > 0) out[0] = '\0';
    for (uint32_t first = 0; first < grid->layers; first++) {
        uint32_t last = first;
        char *const to = len < cap ? out + len : NULL;
        const size_t room = to != NULL ? cap - len : 0;

        if (!sy_grid_has(grid, first)) continue;
        while (sy_grid_has(grid, last + 1)) last++;
        len += (size_t)snprintf(to, room, first == last ? "%s%u" : "%s%u-%u", len > 0 ? "," : "",
                                first, last);
        first = last;
    }
    return len;
}

/* ---- in ---- */

/* Digits at *at, at most 9; -1: there are none. */
static int64_t read_number(const char *text, size_t n, size_t *at)
{
    const size_t begin = *at;
    int64_t value = 0;

    while (*at < n && *at - begin < 9 && text[*at] >= '0' && text[*at] <= '9')
        value = value * 10 + (text[(*at)++] - '0');
    return *at > begin ? value : -1;
}

static sy_status refuse(const char *text, size_t n, sy_error *err)
{
    char shown[SHOWN_BYTES];

    return sy_error_set(err, SY_EINVAL,
                        "'%s' is no list of layers: write them in ascending order, as 3-60 or "
                        "0-2,5,7-9",
                        sy_bytes_show(shown, sizeof(shown), text, n));
}

sy_status sy_grid_parse(sy_grid *grid, const char *text, size_t n, sy_error *err)
{
    sy_grid read = {.layers = grid->layers, .experts = grid->experts};
    int64_t next = 0; /* the least that may come */
    size_t at = 0;

    for (uint32_t layer = 0; layer < SY_MIN(read.layers, SY_GRID_LAYERS_MAX); layer++)
        sy_grid_set(&read, layer, 0);
    while (at < n) {
        const int64_t first = read_number(text, n, &at);
        int64_t last = first;

        if (at < n && text[at] == '-') {
            at++;
            last = read_number(text, n, &at);
        }
        if (first < next || last < first) return refuse(text, n, err);
        if (last >= SY_MIN(read.layers, SY_GRID_LAYERS_MAX)) {
            return sy_error_set(err, SY_EINVAL, "layer %lld has experts, but there are %u layers",
                                (long long)last, SY_MIN(read.layers, SY_GRID_LAYERS_MAX));
        }
        for (int64_t layer = first; layer <= last; layer++) sy_grid_set(&read, (uint32_t)layer, 1);
        next = last + 1;
        if (at == n) break;
        if (text[at++] != ',' || at == n) return refuse(text, n, err);
    }
    *grid = read;
    return SY_OK;
}

sy_status sy_grid_check(const sy_grid *grid, uint32_t layer, sy_error *err)
{
    char ranges[SHOWN_BYTES];

    if (sy_grid_has(grid, layer)) return SY_OK;
    if (layer >= grid->layers) {
        return sy_error_set(err, SY_EINVAL, "the model has no layer %u: its layers are 0 to %u",
                            layer, grid->layers - 1);
    }
    if (sy_grid_format(ranges, sizeof(ranges), grid) >= sizeof(ranges))
        memcpy(ranges + sizeof(ranges) - 4, "...", 4);
    return sy_error_set(err, SY_EINVAL, "layer %u has no experts: those that have are %s", layer,
                        ranges[0] != '\0' ? ranges : "none");
}
