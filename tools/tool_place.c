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
    p->layers = sy_model_describe(model)->n_layers;
    p->experts = sy_model_describe(model)->n_experts;
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
    p->layers = (*cluster)->layers;
    p->experts = (*cluster)->experts;
out:
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
        if (strcmp(p->model, o->model) != 0) p->layers = p->experts = 0;
        snprintf(p->model, sizeof(p->model), "%s", o->model);
    }
    if (o->layers > 0) p->layers = (uint32_t)o->layers;
    if (o->experts > 0) p->experts = (uint32_t)o->experts;
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

static void find_dimensions(place *p, const tool_hash *hash)
{
    uint32_t layers = 0;
    uint32_t experts = 0;

    if (p->layers > 0 && p->experts > 0) return;
    if (facts_dimensions(&layers, &experts, p->redis, p->model) != SY_OK) {
        p->is_guessed = 1;
        tool_placement_guess(hash, &layers, &experts);
    }
    if (p->layers == 0) p->layers = layers;
    if (p->experts == 0) p->experts = experts;
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
        find_dimensions(p, &hash);
        st = field_map_open(out, &hash, err);
    }
    tool_hash_free(&hash);
out:
    return st;
}
