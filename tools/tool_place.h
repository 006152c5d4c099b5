/* tool_place.h - which model's placement a command is about, and where its Redis is. */
#ifndef TOOL_PLACE_H
#define TOOL_PLACE_H

#include "field_map.h"
#include "sy_args.h"
#include "sy_model.h"

typedef struct place_options {
    const char *dir, *redis, *model, *model_dir, *moe_layers;
    int64_t layers, experts;
} place_options;

typedef struct place {
    tool_redis *redis;
    char model[128];
    char model_dir[4096]; /* "": not known */
    sy_grid grid;         /* layers or experts 0: not known yet */
    int is_guessed;       /* the grid is the least that has room for every field */
} place;

/* The options that say where, for a command's table. */
#define PLACE_ARGS(o)                                                                            \
    {"dir", "RUNDIR", "of a local cluster", SY_ARG_STRING, &(o).dir, 0, 0},                      \
        {"redis", "URL", "where Redis is, if not in a local cluster", SY_ARG_STRING, &(o).redis, \
         0,       0},                                                                            \
        {"model",                                                                                \
         "NAME",                                                                                 \
         "what the model is called; default: the cluster's, or the only one",                    \
         SY_ARG_STRING,                                                                          \
         &(o).model,                                                                             \
         0,                                                                                      \
         0},                                                                                     \
        {"model-dir",                                                                            \
         "DIR",                                                                                  \
         "its checkpoint, which knows its dimensions",                                           \
         SY_ARG_STRING,                                                                          \
         &(o).model_dir,                                                                         \
         0,                                                                                      \
         0},                                                                                     \
        {"layers",                                                                               \
         "L",                                                                                    \
         "its dimensions, where neither a checkpoint nor an aggregator tells",                   \
         SY_ARG_INT,                                                                             \
         &(o).layers,                                                                            \
         0,                                                                                      \
         SY_LAYERS_MAX},                                                                         \
        {"moe-layers",                                                                           \
         "RANGES",                                                                               \
         "with --layers: which of them have experts, as 3-60 or 1,3,5; default: all",            \
         SY_ARG_STRING,                                                                          \
         &(o).moe_layers,                                                                        \
         0,                                                                                      \
         0},                                                                                     \
    {                                                                                            \
        "experts", "E", "of a layer", SY_ARG_INT, &(o).experts, 0, SY_EXPERTS_MAX                \
    }

/* What the command line says wins over the cluster's description. Call place_close either way. */
SY_MUST_USE sy_status place_open(place *out, const place_options *options, sy_error *err);
void place_close(place *place);

/* Reads the hash, and finds the grid where it is not known: aggregators and nodes are asked, then
 * it is guessed from the fields. SY_ENOTFOUND: there is no placement. */
SY_MUST_USE sy_status place_read(field_map **out, place *place, sy_error *err);

/* What a field that is to be written may name: with a grid that is only guessed, anything. Lives as
 * long as the place. */
const sy_grid *place_bounds(const place *place);

#endif
