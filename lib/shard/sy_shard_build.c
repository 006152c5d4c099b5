/* sy_shard_build.c - a shard from its stored bytes, in steps that the caller paces. Bytes are
 * packed as soon as the rows of one panel are there, so that beside the packed shard there is never
 * more than one panel's rows; whole panels are packed from where they lie. */
#include "sy_shard.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_file.h"
#include "sy_shard_internal.h"

static const sy_role matrix_role[3] = {SY_ROLE_EXPERT_GATE, SY_ROLE_EXPERT_UP, SY_ROLE_EXPERT_DOWN};
static const char *const matrix_name[3] = {"gate", "up", "down"};

sy_status sy_shard_refuse(const sy_shard *shard, sy_status status, const char *reason,
                          sy_error *err, const char *fmt, ...)
{
    char text[SY_MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    sy_error_set(err, status, "layer %u expert %u: %s", shard->layer, shard->expert, text);
    sy_error_where(err, reason, (int32_t)shard->layer, (int32_t)shard->expert, NULL);
    return status;
}

static sy_status build(sy_shard_builder **out, sy_shard_store *store, const sy_model *model,
                       const sy_shard_form *form, uint32_t layer, uint32_t expert, sy_error *err)
{
    sy_shard_builder *builder = calloc(1, sizeof(*builder));
    size_t row_bytes = 0;

    *out = NULL;
    if (builder == NULL) goto no_memory;
    for (unsigned i = 0; i < 3; i++)
        row_bytes = SY_MAX(row_bytes, form->cols[i] * sy_dtype_bytes(form->dtype[i]));
    builder->store = store;
    builder->model = model;
    builder->form = *form;
    builder->total_bytes = sy_shard_form_bytes(form);
    builder->shard = sy_shard_make(form, layer, expert);
    builder->stage = malloc(SY_PANEL * row_bytes);
    builder->digest = sy_digest_open();
    if (builder->shard == NULL || builder->stage == NULL || builder->digest == NULL) goto no_memory;
    *out = builder;
    return SY_OK;
no_memory:
    sy_shard_builder_free(builder);
    return sy_error_set(err, SY_ENOMEM, "no memory for layer %u expert %u: %llu bytes", layer,
                        expert, (unsigned long long)sy_shard_form_bytes(form));
}

sy_status sy_shard_builder_open(sy_shard_builder **out, sy_shard_store *store,
                                const sy_model *model, uint32_t layer, uint32_t expert,
                                sy_error *err)
{
    sy_shard_form form;

    sy_shard_form_of(&form, model, layer, expert);
    return build(out, store, model, &form, layer, expert, err);
}

void sy_shard_builder_free(sy_shard_builder *builder)
{
    if (builder == NULL) return;
    sy_shard_free(builder->shard);
    sy_digest_free(builder->digest);
    free(builder->stage);
    free(builder);
}

static int is_form_of(const sy_shard_form *form, const sy_shard_form *own)
{
    for (unsigned i = 0; i < 3; i++)
        if (form->dtype[i] != own->dtype[i] || form->rows[i] != own->rows[i] ||
            form->cols[i] != own->cols[i])
            return 0;
    return 1;
}

static sy_status refuse_form(const sy_shard_form *form, const sy_shard_form *own, uint32_t layer,
                             uint32_t expert, sy_error *err)
{
    const sy_shard shard = {.layer = layer, .expert = expert};
    unsigned i = 0;

    while (i < 2 && form->dtype[i] == own->dtype[i] && form->rows[i] == own->rows[i] &&
           form->cols[i] == own->cols[i])
        i++;
    return sy_shard_refuse(&shard, SY_EINVAL, "SHARD_FORM", err,
                           "%s is %s [%u,%u], but this model has %s [%u,%u]: the sender serves "
                           "another checkpoint",
                           matrix_name[i], sy_dtype_name(form->dtype[i]), form->rows[i],
                           form->cols[i], sy_dtype_name(own->dtype[i]), own->rows[i], own->cols[i]);
}

/* wait: as sy_shard_claim has it. */
static sy_status begin(sy_shard_builder **out, sy_shard_store *store, uint32_t layer,
                       uint32_t expert, const sy_shard_form *form, int wait, sy_error *err)
{
    const sy_model *model = sy_shard_store_model(store);
    sy_shard_form own;
    uint64_t bytes;
    sy_status st;

    *out = NULL;
    sy_shard_form_of(&own, model, layer, expert);
    bytes = sy_shard_packed_bytes(&own);
    if (form != NULL && bytes > 0 && !is_form_of(form, &own))
        return refuse_form(form, &own, layer, expert, err);
    st = sy_shard_claim(store, layer, expert, bytes, wait, err);
    if (st != SY_OK) return st;
    st = build(out, store, model, &own, layer, expert, err);
    if (st != SY_OK) sy_shard_settle(store, layer, expert, bytes, NULL);
    return st;
}

sy_status sy_shard_begin(sy_shard_builder **out, sy_shard_store *store, uint32_t layer,
                         uint32_t expert, const sy_shard_form *form, sy_error *err)
{
    return begin(out, store, layer, expert, form, 0, err);
}

/* ---- bytes in ---- */

/* Rows of the panel that comes next: the last one of a matrix may have fewer. */
static uint32_t panel_rows(const sy_shard_builder *b)
{
    return SY_MIN((uint32_t)SY_PANEL, b->form.rows[b->matrix] - (uint32_t)(b->panel * SY_PANEL));
}

static sy_status pack_panel(sy_shard_builder *b, const uint8_t *rows, sy_error *err)
{
    const sy_panels *w = sy_shard_matrix(b->shard, b->matrix);
    const uint32_t n = panel_rows(b);
    uint8_t *to = (uint8_t *)(uintptr_t)w->data + b->panel * sy_panels_bytes(w->dtype, 1, w->k);

    if (!sy_dtype_all_finite(rows, w->dtype, (uint64_t)n * w->k))
        return sy_shard_refuse(b->shard, SY_EDATALOSS, "SHARD_CORRUPT", err,
                               "a weight of %s is not a finite number, in rows %zu to %zu",
                               matrix_name[b->matrix], b->panel * SY_PANEL,
                               b->panel * SY_PANEL + n - 1);
    sy_panels_pack(to, rows, w->dtype, n, w->k, 0, 1); /* the panel as a matrix of its own */
    if (++b->panel == sy_panels_count(w->n)) {
        b->panel = 0;
        b->matrix++;
    }
    return SY_OK;
}

static sy_status take(sy_shard_builder *b, const uint8_t *data, size_t n, sy_error *err)
{
    while (n > 0) {
        const size_t row_bytes = b->form.cols[b->matrix] * sy_dtype_bytes(b->form.dtype[b->matrix]);
        const size_t need = panel_rows(b) * row_bytes - b->staged_bytes;
        const size_t used = SY_MIN(n, need);
        const uint8_t *rows = data;
        sy_status st;

        if (used < need || b->staged_bytes > 0) {
            memcpy(b->stage + b->staged_bytes, data, used);
            b->staged_bytes += used;
            rows = b->stage;
        }
        if (used == need) {
            b->staged_bytes = 0;
            st = pack_panel(b, rows, err);
            if (st != SY_OK) return st;
        }
        b->added_bytes += used;
        data += used;
        n -= used;
    }
    return SY_OK;
}

static sy_status add(sy_shard_builder *b, const void *data, size_t n, sy_error *err)
{
    if (b->failed || b->verified)
        return sy_shard_refuse(b->shard, SY_EPRECONDITION, NULL, err,
                               b->failed ? "it failed before: begin again" : "it is complete");
    if (n > b->total_bytes - b->added_bytes)
        return sy_shard_refuse(
            b->shard, SY_EINVAL, "SHARD_FORM", err, "%zu bytes more at %llu pass its %llu", n,
            (unsigned long long)b->added_bytes, (unsigned long long)b->total_bytes);
    b->failed = 1; /* should the guard below unwind out of the middle */
    sy_digest_add(b->digest, data, n);
    const sy_status st = take(b, data, n, err);
    b->failed = st != SY_OK;
    return st;
}

sy_status sy_shard_add(sy_shard_builder *builder, const void *data, size_t n, sy_error *err)
{
    return add(builder, data, n, err);
}

uint64_t sy_shard_added(const sy_shard_builder *builder)
{
    return builder->added_bytes;
}

typedef struct piece {
    sy_shard_builder *builder;
    const uint8_t *data;
    size_t n;
    sy_error *err;
    int returned; /* add came to its end, whatever it said */
} piece;

/* Runs under sy_map_guard: owns nothing, holds no lock. */
static sy_status add_guarded(void *arg)
{
    piece *p = arg;
    const sy_status st = add(p->builder, p->data, p->n, p->err);

    p->returned = 1;
    return st;
}

/* The next bytes of the matrix that is being filled, at most n_max. */
static sy_status add_piece(sy_shard_builder *b, size_t n_max, size_t *n, sy_error *err)
{
    const sy_shard *shard = b->shard;
    const sy_tensor *t =
        sy_model_tensor(b->model, matrix_role[b->matrix], shard->layer, shard->expert);
    const size_t row_bytes = b->form.cols[b->matrix] * sy_dtype_bytes(b->form.dtype[b->matrix]);
    const size_t at = b->panel * SY_PANEL * row_bytes + b->staged_bytes;
    piece p = {.builder = b,
               .data = t->data + at,
               .n = (size_t)SY_MIN((uint64_t)n_max, t->bytes - at),
               .err = err};
    sy_status st = sy_map_guard(add_guarded, &p, err);

    *n = p.n;
    if (st != SY_OK && !p.returned)
        sy_shard_refuse(shard, st, "SHARD_CORRUPT", err,
                        "the checkpoint's file became shorter while it was read: restore the file");
    if (st != SY_OK || at + p.n == t->bytes) sy_tensor_release(t);
    return st;
}

sy_status sy_shard_add_from_checkpoint(sy_shard_builder *builder, size_t n_max, int *done,
                                       sy_error *err)
{
    *done = 0;
    while (n_max > 0 && builder->added_bytes < builder->total_bytes) {
        size_t n;
        const sy_status st = add_piece(builder, n_max, &n, err);
        if (st != SY_OK) return st;
        n_max -= n;
    }
    *done = builder->added_bytes == builder->total_bytes;
    return SY_OK;
}

/* ---- the end ---- */

static void publish(sy_shard_builder *builder)
{
    sy_shard *shard = builder->shard;
    sy_shard_store *store = builder->store;

    builder->shard = NULL;
    sy_shard_builder_free(builder);
    sy_shard_settle(store, shard->layer, shard->expert, shard->bytes, shard);
}

void sy_shard_publish(sy_shard_builder *builder)
{
    SY_ASSERT(builder->verified);
    publish(builder);
}

void sy_shard_abandon(sy_shard_builder *builder)
{
    if (builder == NULL) return;
    sy_shard_store *store = builder->store;
    const uint32_t layer = builder->shard->layer, expert = builder->shard->expert;
    const uint64_t bytes = builder->shard->bytes;

    sy_shard_builder_free(builder);
    if (store != NULL) sy_shard_settle(store, layer, expert, bytes, NULL);
}

sy_status sy_shard_load(sy_shard_store *store, uint32_t layer, uint32_t expert, sy_error *err)
{
    sy_shard_builder *builder;
    int done;
    sy_status st = begin(&builder, store, layer, expert, NULL, 1, err);

    if (st == SY_EEXISTS) {
        sy_error_clear(err);
        return SY_OK;
    }
    if (st != SY_OK) return st;
    SY_ASSERT(builder != NULL);
    st = sy_shard_add_from_checkpoint(builder, SIZE_MAX, &done, err);
    if (st != SY_OK) {
        sy_shard_abandon(builder);
        return st;
    }
    builder->shard->identity.content = sy_digest_value(builder->digest);
    publish(builder);
    return SY_OK;
}
