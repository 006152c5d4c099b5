/* sy_shard_build.c - a shard from its bytes, in steps that the caller paces. Bytes are rounded, if
 * the store's format is another than theirs, and packed as soon as the rows of one panel are there,
 * so that beside the packed shard there is never more than one panel's rows; whole panels are taken
 * from where they lie, if they lie there as they read. On a GPU they are packed by the device. */
#include "sy_shard.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_file.h"
#include "sy_shard_home_internal.h"
#include "sy_shard_internal.h"

static const sy_role part_role[SY_SHARD_PARTS_MAX] = {
    SY_ROLE_EXPERT_GATE,      SY_ROLE_EXPERT_UP,      SY_ROLE_EXPERT_DOWN,
    SY_ROLE_EXPERT_GATE_BIAS, SY_ROLE_EXPERT_UP_BIAS, SY_ROLE_EXPERT_DOWN_BIAS};
static const char *const part_name[SY_SHARD_PARTS_MAX] = {"gate",      "up",      "down",
                                                          "gate bias", "up bias", "down bias"};

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

static size_t row_bytes_of(const sy_shard_form *form, unsigned part)
{
    return sy_dtype_row_bytes(form->dtype[part], form->cols[part]);
}

/* Never 0: room can be asked for even of a form without parts. */
static size_t panel_rows_bytes(const sy_shard_form *form)
{
    size_t row_bytes = 1;

    for (unsigned i = 0; i < form->n; i++) row_bytes = SY_MAX(row_bytes, row_bytes_of(form, i));
    return SY_PANEL * row_bytes;
}

/* Weights are rounded to blocks, once, and never from one type of elements to another. */
static sy_status check_stored(const sy_model *model, sy_dtype weights, uint32_t layer,
                              uint32_t expert, sy_error *err)
{
    const sy_shard shard = {.layer = layer, .expert = expert};
    sy_shard_form stored;

    sy_shard_form_of(&stored, model, SY_DTYPE_NONE, layer, expert);
    for (unsigned i = 0; i < SY_SHARD_MATRICES; i++) {
        const int is_rounded = sy_dtype_is_quant(stored.dtype[i]);

        if (stored.dtype[i] == weights || (sy_dtype_is_quant(weights) && !is_rounded)) continue;
        return sy_shard_refuse(&shard, SY_EINVAL, "SHARD_FORM", err,
                               "%s is stored as %s, not as %s: use --weights as-stored%s",
                               part_name[i], sy_dtype_name(stored.dtype[i]), sy_dtype_name(weights),
                               is_rounded ? "" : ", q8 or q4");
    }
    return SY_OK;
}

static int is_part_of(const sy_shard_form *form, const sy_shard_form *own, unsigned i)
{
    return form->dtype[i] == own->dtype[i] && form->rows[i] == own->rows[i] &&
           form->cols[i] == own->cols[i];
}

int sy_shard_is_form_of(const sy_shard_form *form, const sy_shard_form *own)
{
    unsigned i = 0;

    if (form->n != own->n) return 0;
    while (i < own->n && is_part_of(form, own, i)) i++;
    return i == own->n;
}

/* Where the weights will lie. */
static sy_status make_shard(sy_shard_builder *b, sy_shard_home *home, sy_activations activations,
                            uint32_t layer, uint32_t expert, sy_error *err)
{
    uint32_t slot;
    sy_status st;

    if (home == NULL) {
        b->shard = sy_shard_make(&b->held, activations, layer, expert);
        return b->shard == NULL ? SY_ENOMEM : SY_OK;
    }
    SY_ASSERT(sy_shard_is_form_of(&b->held, sy_shard_home_form(home)));
    st = sy_shard_home_take(&slot, home, err);
    if (st != SY_OK) {
        sy_error_where(err, NULL, (int32_t)layer, (int32_t)expert, NULL);
        return st;
    }
    b->shard = sy_shard_make_on(home, slot, &b->held, activations, layer, expert);
    if (b->shard != NULL) return SY_OK;
    sy_shard_home_give(home, slot);
    return SY_ENOMEM;
}

sy_status sy_shard_builder_open(sy_shard_builder **out, sy_shard_store *store, sy_shard_home *home,
                                const sy_model *model, sy_precision precision, uint32_t layer,
                                uint32_t expert, sy_error *err)
{
    const sy_model_desc *desc = sy_model_describe(model);
    sy_shard_builder *b;
    sy_status st;

    *out = NULL;
    if (precision.weights != sy_shard_read_as(precision.weights)) {
        st = check_stored(model, precision.weights, layer, expert, err);
        if (st != SY_OK) return st;
    }
    b = calloc(1, sizeof(*b));
    if (b == NULL) goto no_memory;
    b->store = store;
    b->model = model;
    sy_shard_form_of(&b->stored, model, sy_shard_read_as(precision.weights), layer, expert);
    sy_shard_form_of(&b->held, model, precision.weights, layer, expert);
    b->in = &b->held;
    b->total_bytes = sy_shard_form_bytes(b->in);
    b->stage = malloc(SY_MAX(panel_rows_bytes(&b->held), panel_rows_bytes(&b->stored)));
    b->read = malloc(panel_rows_bytes(&b->stored));
    b->rounded = malloc(panel_rows_bytes(&b->held));
    b->digest = sy_digest_open();
    if (b->stage == NULL || b->read == NULL || b->rounded == NULL || b->digest == NULL)
        goto no_memory;
    st = make_shard(b, home, precision.activations, layer, expert, err);
    if (st == SY_ENOMEM) goto no_memory;
    if (st != SY_OK) {
        sy_shard_builder_free(b);
        return st;
    }
    b->shard->mlp = desc->mlp;
    b->shard->mlp_limit = desc->mlp_limit;
    *out = b;
    return SY_OK;
no_memory:
    sy_shard_builder_free(b);
    return sy_error_set(err, SY_ENOMEM, "no memory for layer %u expert %u", layer, expert);
}

void sy_shard_builder_free(sy_shard_builder *builder)
{
    if (builder == NULL) return;
    if (builder->shard != NULL && builder->shard->home != NULL) {
        sy_shard_home_close_remote(builder->shard->home, builder->remote);
        sy_shard_home_settle(builder->shard->home, builder->shard->slot);
    }
    sy_shard_free(builder->shard);
    if (builder->source != NULL) sy_shard_put(builder->store, builder->source);
    sy_digest_free(builder->digest);
    free(builder->stage);
    free(builder->read);
    free(builder->rounded);
    free(builder);
}

static sy_status refuse_form(const sy_shard_form *form, const sy_shard_form *own, uint32_t layer,
                             uint32_t expert, sy_error *err)
{
    const sy_shard shard = {.layer = layer, .expert = expert};
    unsigned i = 0;

    if (form->n != own->n)
        return sy_shard_refuse(&shard, SY_EINVAL, "SHARD_FORM", err,
                               "it comes %s: the sender serves another checkpoint",
                               form->n > own->n
                                   ? "with biases, but this model's experts have none"
                                   : "without biases, but this model's experts have some");
    while (i + 1 < own->n && is_part_of(form, own, i)) i++;
    const int same_shape = form->rows[i] == own->rows[i] && form->cols[i] == own->cols[i];
    /* What a model is stored as reads as plain elements: blocks are a matter of the option. */
    const int is_chosen = sy_dtype_bytes(form->dtype[i]) == 0 || sy_dtype_bytes(own->dtype[i]) == 0;
    return sy_shard_refuse(&shard, SY_EINVAL, "SHARD_FORM", err,
                           "%s is %s [%u,%u], but this %s has %s [%u,%u]: %s", part_name[i],
                           sy_dtype_name(form->dtype[i]), form->rows[i], form->cols[i],
                           same_shape && is_chosen ? "node" : "model", sy_dtype_name(own->dtype[i]),
                           own->rows[i], own->cols[i],
                           same_shape && is_chosen ? "start both nodes with the same --weights"
                                                   : "the sender serves another checkpoint");
}

static sy_status begin(sy_shard_builder **out, sy_shard_store *store, sy_shard_home *home,
                       uint32_t layer, uint32_t expert, const sy_shard_form *form,
                       sy_shard_claiming claiming, sy_error *err)
{
    const sy_model *model = sy_shard_store_model(store);
    const sy_precision precision = sy_shard_store_precision(store);
    sy_shard_form own;
    uint64_t packed_bytes, bytes;
    sy_status st;

    *out = NULL;
    sy_shard_form_of(&own, model, precision.weights, layer, expert);
    packed_bytes = sy_shard_packed_bytes(&own);
    if (form != NULL && packed_bytes > 0 && !sy_shard_is_form_of(form, &own))
        return refuse_form(form, &own, layer, expert, err);
    bytes = home == NULL ? packed_bytes : 0;
    st = sy_shard_claim(store, layer, expert, home, bytes, claiming, err);
    if (st != SY_OK) return st;
    st = sy_shard_builder_open(out, store, home, model, precision, layer, expert, err);
    if (st != SY_OK) sy_shard_settle(store, layer, expert, bytes, NULL);
    return st;
}

sy_status sy_shard_begin(sy_shard_builder **out, sy_shard_store *store, uint32_t layer,
                         uint32_t expert, const sy_shard_form *form, sy_error *err)
{
    return begin(out, store, NULL, layer, expert, form, SY_SHARD_CLAIM_NEW, err);
}

sy_status sy_shard_begin_on(sy_shard_builder **out, sy_shard_store *store, sy_shard_home *home,
                            uint32_t layer, uint32_t expert, const sy_shard_form *form,
                            sy_error *err)
{
    return begin(out, store, home, layer, expert, form, SY_SHARD_CLAIM_COPY, err);
}

/* ---- bytes in ---- */

/* Rows of the panel that comes next: the last one of a part may have fewer. */
static uint32_t panel_rows(const sy_shard_builder *b)
{
    return SY_MIN((uint32_t)SY_PANEL, b->held.rows[b->part] - (uint32_t)(b->panel * SY_PANEL));
}

size_t sy_shard_builder_wants(const sy_shard_builder *b)
{
    if (b->added_bytes == b->total_bytes) return 0;
    return panel_rows(b) * row_bytes_of(b->in, b->part) - b->staged_bytes;
}

static sy_status round_rows(sy_shard_builder *b, const uint8_t *rows, uint32_t n, sy_error *err)
{
    const sy_panels w = sy_shard_part(b->shard, b->part);

    if (sy_quantize_rows(b->rounded, w.dtype, rows, b->in->dtype[b->part], n, w.k) != SY_OK)
        return sy_shard_refuse(b->shard, SY_EINVAL, "SHARD_ROUNDING", err,
                               "%s, rows %zu to %zu: its weights are too large for %s: load them "
                               "as stored (--weights)",
                               part_name[b->part], b->panel * SY_PANEL, b->panel * SY_PANEL + n - 1,
                               sy_dtype_name(w.dtype));
    sy_digest_add(b->digest, b->rounded, n * row_bytes_of(&b->held, b->part));
    return SY_OK;
}

/* rows: of one panel, as held; maybe in the map of a file, which may end under them: no other
 * library reads there, for it may hold a lock. */
static sy_status place_panel(const sy_shard_builder *b, const sy_panels *w, const uint8_t *rows,
                             uint32_t n, sy_error *err)
{
    const sy_shard *s = b->shard;

    if (s->home != NULL) {
        if (rows != b->rounded) memcpy(b->rounded, rows, n * row_bytes_of(&b->held, b->part));
        return sy_shard_home_write(s->home, s->slot, b->part, (uint32_t)(b->panel * SY_PANEL), n,
                                   b->rounded, err);
    }
    uint8_t *to = (uint8_t *)(uintptr_t)w->data + b->panel * sy_panels_bytes(w->dtype, 1, w->k);
    sy_panels_pack(to, rows, w->dtype, n, w->k, 0, 1); /* the panel as a matrix of its own */
    return SY_OK;
}

/* rows: of one panel, in the form that comes in. */
static sy_status pack_panel(sy_shard_builder *b, const uint8_t *rows, sy_error *err)
{
    const sy_panels w = sy_shard_part(b->shard, b->part);
    const sy_dtype dtype = b->in->dtype[b->part];
    const uint32_t n = panel_rows(b);

    if (!sy_model_are_sound(b->model, rows, dtype, n, w.k))
        return sy_shard_refuse(b->shard, SY_EDATALOSS, "SHARD_CORRUPT", err,
                               "a weight of %s is not a finite number, in rows %zu to %zu "
                               "(--allow-nan loads such weights)",
                               part_name[b->part], b->panel * SY_PANEL,
                               b->panel * SY_PANEL + n - 1);
    if (dtype != w.dtype) {
        const sy_status st = round_rows(b, rows, n, err);
        if (st != SY_OK) return st;
        rows = b->rounded;
    }
    const sy_status st = place_panel(b, &w, rows, n, err);
    if (st != SY_OK) return st;
    if (++b->panel == sy_panels_count(w.n)) {
        b->panel = 0;
        b->part++;
    }
    return SY_OK;
}

static sy_status take(sy_shard_builder *b, const uint8_t *data, size_t n, sy_error *err)
{
    while (n > 0) {
        const size_t need = panel_rows(b) * row_bytes_of(b->in, b->part) - b->staged_bytes;
        const size_t used = SY_MIN(n, need);
        const int as_held = b->in->dtype[b->part] == b->held.dtype[b->part];
        const uint8_t *rows = data;
        sy_status st;

        if (as_held) sy_digest_add(b->digest, data, used);
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

/* The form of all bytes is that of the first; none may follow a failure. */
sy_status sy_shard_builder_choose(sy_shard_builder *b, const sy_shard_form *in, sy_error *err)
{
    if (b->failed)
        return sy_shard_refuse(b->shard, SY_EPRECONDITION, NULL, err,
                               "it failed before: begin again");
    if (b->direct)
        return sy_shard_refuse(
            b->shard, SY_EPRECONDITION, NULL, err, "it was begun with a copy from %s: begin again",
            b->is_offered ? "another process" : sy_shard_home_name(b->source->home));
    if (in == b->in || sy_shard_is_form_of(in, b->in)) return SY_OK;
    if (b->added_bytes > 0)
        return sy_shard_refuse(b->shard, SY_EPRECONDITION, NULL, err,
                               "it was begun with bytes of %s: begin again",
                               sy_dtype_name(b->in->dtype[0]));
    b->in = in;
    b->total_bytes = sy_shard_form_bytes(in);
    return SY_OK;
}

static sy_status add(sy_shard_builder *b, const void *data, size_t n, sy_error *err)
{
    if (b->verified)
        return sy_shard_refuse(b->shard, SY_EPRECONDITION, NULL, err, "it is complete");
    if (n > b->total_bytes - b->added_bytes)
        return sy_shard_refuse(
            b->shard, SY_EINVAL, "SHARD_FORM", err, "%zu bytes more at %llu pass its %llu", n,
            (unsigned long long)b->added_bytes, (unsigned long long)b->total_bytes);
    const sy_status st = take(b, data, n, err);
    b->failed = st != SY_OK;
    return st;
}

sy_status sy_shard_add(sy_shard_builder *builder, const void *data, size_t n, sy_error *err)
{
    const sy_status st = sy_shard_builder_choose(builder, &builder->held, err);

    return st == SY_OK ? add(builder, data, n, err) : st;
}

uint64_t sy_shard_added(const sy_shard_builder *builder)
{
    return builder->added_bytes;
}

/* A run of bytes of one part, as its tensor reads, or as that has it encoded. */
typedef struct piece {
    sy_shard_builder *builder;
    const sy_tensor *tensor;
    uint64_t row; /* where it begins: n_skipped bytes behind the beginning of this row */
    size_t n_skipped, n;
    int in_place; /* else it is a part of the panel that comes next */
    sy_error *err;
    int returned; /* add came to its end, whatever it said */
} piece;

/* From the first row on, in place or in b->read. */
static const uint8_t *rows_of(const piece *p)
{
    sy_shard_builder *b = p->builder;
    const size_t row_bytes = row_bytes_of(b->in, b->part);
    const size_t n_rows = (p->n_skipped + p->n + row_bytes - 1) / row_bytes;
    float bias[SY_PANEL]; /* of the type that the checkpoint has, which is no wider */

    if (p->in_place) return p->tensor->data + p->row * row_bytes;
    if (b->part < SY_SHARD_MATRICES) {
        sy_tensor_read_as(b->read, p->tensor, b->in->dtype[b->part], p->row, n_rows);
    } else {
        sy_tensor_read(bias, p->tensor, p->row, n_rows);
        sy_dtype_widen((float *)(void *)b->read, bias, p->tensor->dtype, n_rows);
    }
    return b->read;
}

/* Runs under sy_map_guard: owns nothing, holds no lock. */
static sy_status add_guarded(void *arg)
{
    piece *p = arg;
    const sy_status st = add(p->builder, rows_of(p) + p->n_skipped, p->n, p->err);

    p->returned = 1;
    return st;
}

/* The next bytes of the part that is being filled, at most n_max, and no more than the panel's if
 * they have to be decoded. */
static sy_status add_piece(sy_shard_builder *b, size_t n_max, size_t *n, sy_error *err)
{
    const sy_shard *shard = b->shard;
    const sy_tensor *t = sy_model_tensor(b->model, part_role[b->part], shard->layer, shard->expert);
    const size_t row_bytes = row_bytes_of(b->in, b->part);
    const size_t part_bytes = row_bytes * b->in->rows[b->part];
    const size_t panel_at = b->panel * SY_PANEL * row_bytes, at = panel_at + b->staged_bytes;
    const int in_place = b->part < SY_SHARD_MATRICES && sy_tensor_is_in_place(t);
    const size_t end = in_place ? part_bytes : panel_at + panel_rows(b) * row_bytes;
    piece p = {.builder = b,
               .tensor = t,
               .row = at / row_bytes,
               .n_skipped = at % row_bytes,
               .n = SY_MIN(n_max, end - at),
               .in_place = in_place,
               .err = err};
    sy_status st = sy_map_guard(add_guarded, &p, err);

    *n = p.n;
    if (st != SY_OK) b->failed = 1; /* the guard unwinds out of the middle of anything */
    if (st != SY_OK && !p.returned)
        sy_shard_refuse(shard, st, "SHARD_CORRUPT", err,
                        "the checkpoint's file became shorter while it was read: restore the file");
    if (st != SY_OK || at + p.n == part_bytes) sy_tensor_release(t);
    return st;
}

sy_status sy_shard_add_from_checkpoint(sy_shard_builder *builder, size_t n_max, int *done,
                                       sy_error *err)
{
    sy_status st = sy_shard_builder_choose(builder, &builder->stored, err);

    *done = 0;
    if (st != SY_OK) return st;
    while (n_max > 0 && builder->added_bytes < builder->total_bytes) {
        size_t n;
        st = add_piece(builder, n_max, &n, err);
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
    sy_shard_settle(store, shard->layer, shard->expert, sy_shard_host_bytes(shard), shard);
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
    const uint64_t bytes = sy_shard_host_bytes(builder->shard);

    sy_shard_builder_free(builder);
    if (store != NULL) sy_shard_settle(store, layer, expert, bytes, NULL);
}

sy_status sy_shard_load(sy_shard_store *store, uint32_t layer, uint32_t expert, sy_error *err)
{
    sy_shard_builder *builder;
    int done;
    sy_status st = begin(&builder, store, NULL, layer, expert, NULL, SY_SHARD_CLAIM_WAIT, err);

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
