/* sy_grid.h - which shards a model has: experts 0..E-1 in each of its layers, but for layers
 * without experts. Layers count from 0 and keep their number, whether they have experts or not; a
 * layer without any has no shards, and so nothing of it is placed, loaded, asked for or missing.
 * Plain data, without pointers: copied by value. */
#ifndef SY_GRID_H
#define SY_GRID_H

#include "sy_status.h"

#define SY_GRID_LAYERS_MAX 1024u /* layers from this one on all have experts */
/* Of a text of ranges, with its NUL: at worst every second layer, "1,3,5,...". */
#define SY_GRID_TEXT_BYTES 2560

typedef struct sy_grid { /* {layers, experts} alone: every layer has experts */
    uint32_t layers, experts;
    uint64_t dense[SY_GRID_LAYERS_MAX / 64]; /* bit l: layer l has no experts */
} sy_grid;

/* flag: [layers] borrowed during the call: layers with any of the bits of mask have no experts;
 * NULL: all have. */
sy_grid sy_grid_of(uint32_t layers, uint32_t experts, const uint8_t *flag, uint8_t mask);
void sy_grid_set(sy_grid *grid, uint32_t layer, int has_experts); /* below SY_GRID_LAYERS_MAX */

static inline int sy_grid_has(const sy_grid *grid, uint32_t layer)
{
    return layer < grid->layers &&
           (layer >= SY_GRID_LAYERS_MAX || (grid->dense[layer / 64] >> (layer % 64) & 1) == 0);
}
/* The shard is there. */
static inline int sy_grid_holds(const sy_grid *grid, uint32_t layer, uint32_t expert)
{
    return expert < grid->experts && sy_grid_has(grid, layer);
}
int sy_grid_is_same(const sy_grid *a, const sy_grid *b);
uint32_t sy_grid_moe_layers(const sy_grid *grid); /* how many have experts */
uint64_t sy_grid_shards(const sy_grid *grid);     /* experts of all layers together */

/* The layers with experts, as people and processes write them: "3-60", "0-2,5,7-9"; "" when none
 * has any. Returns the length, as snprintf does. */
size_t sy_grid_format(char *out, size_t cap, const sy_grid *grid);
/* Sets which of grid's layers have experts: ranges in ascending order. Text need not be
 * NUL-terminated. SY_EINVAL, a sentence for an operator, and grid is as it was: it is none of that,
 * or names a layer past the last. */
SY_MUST_USE sy_status sy_grid_parse(sy_grid *grid, const char *text, size_t n, sy_error *err);
/* SY_EINVAL and a sentence when the layer has no experts or is past the last. */
SY_MUST_USE sy_status sy_grid_check(const sy_grid *grid, uint32_t layer, sy_error *err);

#endif
