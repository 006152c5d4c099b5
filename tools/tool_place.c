/* tool_place.c - see the header. */
#include "tool_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster_facts.h"
#include "sy_model.h"
#include "tool_placement.h"
#include "tool_text.h"
#include "up_cluster.h"

#define REDIS_US 5000000

static sy_status look_at_checkpoint(place *p, const place_options *o, sy_error *err)
{
    sy_model *model = NULL;
    sy_status st;

    SY_TRY(sy_model_open(&model, o->model_dir, o->model, err));
    snprintf(p->model, sizeof(p->model), "%s", sy_model_name(model));
    p->grid = tool_grid_of(sy_model_describe(model));
out:
    sy_model_close(model);
    return st;
}

/* Where nobody named the model, Redis knows it if there is only one. */
static sy_status look_in_redis(place *p, sy_error *err)
{
    tool_models models;
    sy_status st;

    SY_TRY(tool_redis_models(&models, p->redis, err));
    if (models.n == 0) {
        st = sy_error_set(err, SY_ENOTFOUND,
                          "no model has a placement in this Redis: name one with --model NAME");
    } else if (models.n > 1) {
        st = sy_error_set(err, SY_EINVAL,
                          "%zu models have a placement in this Redis, %s and %s among them: choose "
                          "one with --model NAME",
                          models.n, tool_shown(models.name[0]), tool_shown(models.name[1]));
    } else {
        snprintf(p->model, sizeof(p->model), "%s", models.name[0]);
    }
out:
    return st;
}

static sy_status look_in_dir(place *p, const char **redis, up_cluster **cluster, const char *dir,
                             sy_error *err)
{
    sy_status st;

    SY_TRY(up_cluster_load(cluster, dir, err));
    *redis = (*cluster)->redis;
    memcpy(p->model, (*cluster)->model, sizeof(p->model));
    snprintf(p->model_dir, sizeof(p->model_dir), "%s", (*cluster)->model_dir);
    p->grid = (*cluster)->grid;
out:
    return st;
}

static sy_status take_dimensions(sy_grid *grid, const place_options *o, sy_error *err)
{
    sy_status st = SY_OK;

    if (o->layers > 0 && grid->layers != (uint32_t)o->layers)
        *grid = (sy_grid){.layers = (uint32_t)o->layers, .experts = grid->experts};
    if (o->experts > 0) grid->experts = (uint32_t)o->experts;
    if (o->moe_layers == NULL) return SY_OK;
    if (grid->layers == 0) {
        return sy_error_set(err, SY_EINVAL,
                            "--moe-layers %s: say of how many layers, with --layers L",
                            tool_shown(o->moe_layers));
    }
    SY_TRY(sy_grid_parse(grid, o->moe_layers, strlen(o->moe_layers), err));
out:
    if (st != SY_OK) sy_error_prefix(err, "--moe-layers");
    return st;
}

sy_status place_open(place *p, const place_options *o, sy_error *err)
{
    up_cluster *cluster = NULL;
    const char *redis = o->redis;
    sy_status st = SY_OK;

    memset(p, 0, sizeof(*p));
    if (o->dir == NULL && o->redis == NULL) {
        return sy_error_set(err, SY_EINVAL,
                            "say where Redis is: --redis URL, or --dir RUNDIR of a local cluster");
    }
    if (o->model != NULL && strlen(o->model) >= sizeof(p->model)) {
        return sy_error_set(err, SY_EINVAL, "--model: a name of more than %zu bytes",
                            sizeof(p->model) - 1);
    }
    if (o->dir != NULL) SY_TRY(look_in_dir(p, &redis, &cluster, o->dir, err));
    if (o->model_dir != NULL) {
        SY_TRY(look_at_checkpoint(p, o, err));
        snprintf(p->model_dir, sizeof(p->model_dir), "%s", o->model_dir);
    } else if (o->model != NULL) {
        if (strcmp(p->model, o->model) != 0) p->grid = (sy_grid){0};
        snprintf(p->model, sizeof(p->model), "%s", o->model);
    }
    SY_TRY(take_dimensions(&p->grid, o, err));
    SY_TRY(tool_redis_open(&p->redis, redis, REDIS_US, err));
    if (p->model[0] == '\0') SY_TRY(look_in_redis(p, err));
out:
    free(cluster);
    return st;
}

void place_close(place *p)
{
    tool_redis_close(p->redis);
    p->redis = NULL;
}

static void find_grid(place *p, const tool_hash *hash)
{
    sy_grid told;

    if (p->grid.layers > 0 && p->grid.experts > 0) return;
    if (facts_grid(&told, p->redis, p->model) == SY_OK) {
        if (p->grid.experts > 0) told.experts = p->grid.experts;
        if (p->grid.layers > 0) p->grid.experts = told.experts;
        if (p->grid.layers == 0) p->grid = told;
        return;
    }
    p->is_guessed = 1;
    tool_placement_guess(&p->grid, hash);
}

sy_status place_read(field_map **out, place *p, sy_error *err)
{
    tool_hash hash;
    sy_status st;

    *out = NULL;
    SY_TRY(tool_redis_placement(&hash, p->redis, p->model, err));
    if (hash.n == 0) {
        st = sy_error_set(err, SY_ENOTFOUND,
                          "model %s has no placement: write one with switchyard placement init",
                          tool_shown(p->model));
    } else {
        find_grid(p, &hash);
        st = field_map_open(out, &hash, err);
    }
    tool_hash_free(&hash);
out:
    return st;
}

const sy_grid *place_bounds(const place *p)
{
    static const sy_grid any = {.layers = SY_LAYERS_MAX, .experts = SY_EXPERTS_MAX};

    return p->is_guessed ? &any : &p->grid;
}
