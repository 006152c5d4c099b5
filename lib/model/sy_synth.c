/* sy_synth.c - writes checkpoints out of nothing: memory stays constant, and any element can be
 * recomputed alone. The configuration is written last: an interrupted run leaves nothing that
 * opens. */
#include "sy_synth.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sy_checkpoint_file.h"
#include "sy_family.h"
#include "sy_file.h"
#include "sy_hash.h"
#include "sy_json_load.h"
#include "sy_strbuf.h"
#include "sy_synth_fill.h"
#include "sy_synth_tokenizer.h"

enum { CONFIG_VALUES_MAX = 100000, F8_BLOCK = 128, FP4_BLOCK = 32 };

typedef struct synth {
    const sy_synth_options *options;
    sy_model_desc desc;
    sy_dtype dtype;
    sy_st_entry *entries; /* [n] in the order of the forward pass; names are the synth's */
    synth_fill *fills;    /* [n] */
    size_t n, capacity;
    size_t first_entry; /* of the shard being written */
    uint64_t done_bytes, total_bytes;
} synth;

/* ---- what is written ---- */

static int ends_with(const char *s, const char *tail)
{
    const size_t len = strlen(s), tail_len = strlen(tail);

    return len >= tail_len && strcmp(s + len - tail_len, tail) == 0;
}

static int contains_any(const char *s, const char *const *parts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strstr(s, parts[i]) != NULL) return 1;
    return 0;
}

static int is_bias(const char *name)
{
    return ends_with(name, "e_score_correction_bias") || ends_with(name, ".bias") ||
           ends_with(name, "_bias") || ends_with(name, "sinks");
}

/* The published rules go by the name on disk, the first that fits. */
static void set_rule(synth_fill *fill, const sy_tensor_spec *spec, sy_synth_recipe recipe)
{
    static const char *const gates[] = {"mlp.gate.weight", "block_sparse_moe.gate.weight",
                                        "router.weight", "router.layer.weight", "gate.wg.weight"};
    const char *name = spec->name;
    /* Llama 4 and gpt-oss hold a slab's inputs in its second dimension. */
    const int by_columns = spec->is_slab && !ends_with(name, ".weight");
    const uint64_t fan_in = spec->shape[by_columns ? 1 : spec->rank - 1];

    fill->scale = 0.25f;
    if (ends_with(name, "norm.weight") || strstr(name, "layernorm.weight") != NULL)
        fill->offset = 1.0f;
    else if (is_bias(name))
        fill->scale = 0.125f;
    else if (strstr(name, "embed_tokens") != NULL)
        fill->scale = 1.0f;
    else if (recipe == SY_SYNTH_SCALED)
        /* u has variance 1/3: a row's dot product with unit inputs then has variance 1. */
        fill->scale = sqrtf(3.0f / (float)fan_in);
    else if (contains_any(name, gates, SY_COUNT_OF(gates)))
        fill->scale = 0.5f;
}

static uint64_t seed_of(const synth *self, const char *name)
{
    const uint64_t hash = sy_fnv1a(SY_FNV1A_START, name, strlen(name));

    /* An odd factor keeps seeds apart, and leaves seed 0 with the plain hash. */
    return self->options->recipe == SY_SYNTH_SCALED
               ? hash + self->options->seed * 0xda942042e4dd58b5ull
               : hash;
}

static sy_status grow(synth *self)
{
    const size_t capacity = self->capacity == 0 ? 256 : self->capacity * 2;
    sy_st_entry *entries = realloc(self->entries, capacity * sizeof(*entries));
    synth_fill *fills;

    if (entries == NULL) return SY_ENOMEM;
    self->entries = entries;
    fills = realloc(self->fills, capacity * sizeof(*fills));
    if (fills == NULL) return SY_ENOMEM;
    self->fills = fills;
    self->capacity = capacity;
    return SY_OK;
}

static uint64_t entry_bytes(const sy_st_entry *entry)
{
    uint64_t n = entry->dtype_name != NULL ? 1 : sy_dtype_bytes(entry->dtype);

    for (uint32_t d = 0; d < entry->rank; d++) n *= entry->shape[d];
    return n;
}

/* A tensor of the file: NAME and what comes after it. dtype_name: of one byte, or NULL. */
static sy_status add(synth *self, const sy_tensor_spec *spec, const char *tail,
                     const char *dtype_name, const sy_st_entry *shape, synth_fill fill)
{
    const size_t len = strlen(spec->name) + strlen(tail) + 1;
    sy_st_entry *entry;
    char *name = malloc(len);

    if (name == NULL) return SY_ENOMEM;
    snprintf(name, len, "%s%s", spec->name, tail);
    if (self->n == self->capacity && grow(self) != SY_OK) {
        free(name);
        return SY_ENOMEM;
    }
    entry = &self->entries[self->n];
    *entry = *shape;
    entry->name = name;
    entry->dtype_name = dtype_name;
    self->fills[self->n++] = fill;
    self->total_bytes += entry_bytes(entry);
    return SY_OK;
}

static sy_status add_f8(synth *self, const sy_tensor_spec *spec, synth_fill fill)
{
    const uint64_t rows = spec->shape[0], columns = spec->shape[1];
    const sy_st_entry codes = {.rank = 2, .shape = {rows, columns}};
    const sy_st_entry scales = {
        .dtype = SY_F32,
        .rank = 2,
        .shape = {(rows + F8_BLOCK - 1) / F8_BLOCK, (columns + F8_BLOCK - 1) / F8_BLOCK}};
    sy_status st;

    fill.rows = rows;
    fill.columns = columns;
    fill.part = SYNTH_F8;
    SY_TRY(add(self, spec, "", "F8_E4M3", &codes, fill));
    fill.part = SYNTH_F8_SCALES;
    st = add(self, spec, "_scale_inv", NULL, &scales, fill);
out:
    return st;
}

static sy_status add_fp4(synth *self, const sy_tensor_spec *spec, synth_fill fill)
{
    const uint64_t n = spec->shape[0], columns = spec->shape[1], rows = spec->shape[2];
    const sy_st_entry codes = {.rank = 4, .shape = {n, rows, columns / FP4_BLOCK, FP4_BLOCK / 2}};
    const sy_st_entry scales = {.rank = 3, .shape = {n, rows, columns / FP4_BLOCK}};
    sy_status st;

    fill.slabs = n;
    fill.rows = rows;
    fill.columns = columns;
    fill.part = SYNTH_FP4;
    SY_TRY(add(self, spec, "_blocks", "U8", &codes, fill));
    fill.part = SYNTH_FP4_SCALES;
    st = add(self, spec, "_scales", "U8", &scales, fill);
out:
    return st;
}

static sy_status add_tensor(void *arg, const sy_tensor_spec *spec)
{
    synth *self = arg;
    sy_st_entry entry = {.dtype = self->dtype, .rank = spec->rank};
    synth_fill fill = {.seed = seed_of(self, spec->name), .dtype = self->dtype, .n = 1};

    set_rule(&fill, spec, self->options->recipe);
    if (self->desc.stored == SY_ENCODING_F8_BLOCK && !spec->is_slab && spec->rank == 2 &&
        sy_role_is_encoded(spec->role))
        return add_f8(self, spec, fill);
    if (self->desc.stored == SY_ENCODING_MXFP4 && spec->is_slab && spec->rank == 3)
        return spec->shape[1] % FP4_BLOCK == 0 ? add_fp4(self, spec, fill) : SY_EINVAL;
    /* As DeepSeek has it beside fp8. */
    if (self->desc.stored != SY_ENCODING_PLAIN && spec->role == SY_ROLE_GATE_BIAS)
        entry.dtype = fill.dtype = SY_F32;
    for (uint32_t d = 0; d < spec->rank; d++) {
        entry.shape[d] = spec->shape[d];
        fill.n *= spec->shape[d];
    }
    return add(self, spec, "", NULL, &entry, fill);
}

/* What passes through on its way into the file. */
typedef struct counted_sink {
    synth *self;
    sy_st_emit emit;
    void *sink;
} counted_sink;

static sy_status emit_counted(void *arg, const void *data, size_t n)
{
    const counted_sink *c = arg;
    const sy_synth_options *options = c->self->options;
    const sy_status st = c->emit(c->sink, data, n);

    c->self->done_bytes += n;
    if (st == SY_OK && options->progress != NULL)
        options->progress(options->progress_arg, c->self->done_bytes, c->self->total_bytes);
    return st;
}

static sy_status fill_tensor(void *arg, size_t i, sy_st_emit emit, void *sink)
{
    synth *self = arg;
    counted_sink counted = {self, emit, sink};

    return synth_fill_emit(&self->fills[self->first_entry + i], emit_counted, &counted);
}

/* ---- files ---- */

/* Writes entries [first, end) as one file. */
static sy_status write_shard(synth *self, const char *dir, const char *name, size_t first,
                             size_t end, sy_error *err)
{
    char path[PATH_MAX];
    sy_status st = sy_checkpoint_path(path, dir, name, err);

    if (st != SY_OK) return st;
    self->first_entry = first;
    return sy_safetensors_write(path, self->entries + first, end - first, fill_tensor, self, err);
}

/* The end of the shard that begins at first: as many tensors as fit, and one at least. */
static size_t shard_end(const synth *self, size_t first)
{
    const uint64_t max_bytes = self->options->shard_bytes_max;
    uint64_t bytes = entry_bytes(&self->entries[first]);
    size_t end = first + 1;

    while (end < self->n && bytes + entry_bytes(&self->entries[end]) <= max_bytes) {
        bytes += entry_bytes(&self->entries[end++]);
    }
    return end;
}

static sy_status write_shards(synth *self, const char *dir, sy_error *err)
{
    char path[PATH_MAX];
    char name[64];
    sy_strbuf index;
    size_t n_shards = 0;
    size_t shard_id = 0;
    sy_status st;

    for (size_t at = 0; at < self->n; at = shard_end(self, at)) n_shards++;
    sy_strbuf_init(&index);
    sy_strbuf_printf(&index,
                     "{\n  \"metadata\": {\"total_size\": %" PRIu64 "},\n  \"weight_map\": {",
                     self->total_bytes);
    for (size_t at = 0; at < self->n; shard_id++) {
        const size_t end = shard_end(self, at);

        snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", shard_id + 1, n_shards);
        SY_TRY(write_shard(self, dir, name, at, end, err));
        for (size_t i = at; i < end; i++) {
            sy_strbuf_printf(&index, "%s\n    \"%s\": \"%s\"", i > 0 ? "," : "",
                             self->entries[i].name, name);
        }
        at = end;
    }
    sy_strbuf_puts(&index, "\n  }\n}\n");
    if (index.failed) {
        st = sy_error_set(err, SY_ENOMEM, "no memory for the index");
        goto out;
    }
    SY_TRY(sy_checkpoint_path(path, dir, "model.safetensors.index.json", err));
    st = sy_file_write_atomic(path, index.data, index.len, err);
out:
    sy_strbuf_free(&index);
    return st;
}

static sy_status write_text(const char *dir, const char *name, const char *text, size_t n,
                            sy_error *err)
{
    char path[PATH_MAX];
    const sy_status st = sy_checkpoint_path(path, dir, name, err);

    return st == SY_OK ? sy_file_write_atomic(path, text, n, err) : st;
}

/* An old model in the same place must not shine through: a reader prefers the single file to the
 * index. */
static sy_status remove_old(const char *dir, sy_error *err)
{
    static const char *const names[] = {"config.json", "model.safetensors",
                                        "model.safetensors.index.json"};
    char path[PATH_MAX];

    for (size_t i = 0; i < SY_COUNT_OF(names); i++) {
        const sy_status st = sy_checkpoint_path(path, dir, names[i], err);

        if (st != SY_OK) return st;
        if (unlink(path) != 0 && sy_file_exists(path)) {
            return sy_error_set(err, SY_EIO, "%s: cannot remove it", path);
        }
    }
    return SY_OK;
}

static sy_status write_all(synth *self, const char *dir, const char *config, size_t n,
                           sy_error *err)
{
    char generation[64];
    uint32_t eos = 0;
    int len;
    sy_status st;

    SY_TRY(sy_synth_eos(&eos, self->options->tokenizer_dir, self->desc.vocab, err));
    SY_TRY(sy_dir_make(dir, err));
    SY_TRY(sy_synth_tokenizer_write(dir, self->options->tokenizer_dir, err));
    SY_TRY(remove_old(dir, err));
    if (self->options->shard_bytes_max == 0) {
        SY_TRY(write_shard(self, dir, "model.safetensors", 0, self->n, err));
    } else {
        SY_TRY(write_shards(self, dir, err));
    }
    len = snprintf(generation, sizeof(generation), "{\n  \"eos_token_id\": %" PRIu32 "\n}\n", eos);
    SY_TRY(write_text(dir, "generation_config.json", generation, (size_t)len, err));
    st = write_text(dir, "config.json", config, n, err);
out:
    return st;
}

/* ---- configurations ---- */

/* options.dtype, or what config.json says; bf16 where it says nothing. */
static sy_status choose_dtype(synth *self, const char *config, size_t n, sy_error *err)
{
    json_t *root = NULL;
    const char *name;
    const sy_status st = sy_json_load(&root, config, n, CONFIG_VALUES_MAX, err);

    if (st != SY_OK) return st;
    name = json_string_value(json_object_get(root, "torch_dtype"));
    if (name == NULL) name = json_string_value(json_object_get(root, "dtype"));
    self->dtype = self->options->dtype;
    if (self->dtype == SY_DTYPE_NONE)
        self->dtype = name == NULL ? SY_BF16 : sy_dtype_from_name(name);
    json_decref(root);
    if (sy_dtype_bytes(self->dtype) != 0) return SY_OK;
    return sy_error_set(err, SY_EINVAL, "weights can be f32, bf16 or f16, not %s",
                        sy_dtype_name(self->dtype));
}

sy_status sy_synth_write_config(const char *dir, const char *config, size_t n,
                                const sy_synth_options *options, sy_error *err)
{
    synth *self = calloc(1, sizeof(*self));
    sy_status st;

    if (self == NULL) return sy_error_set(err, SY_ENOMEM, "%s: no memory to write it", dir);
    self->options = options;
    SY_TRY(sy_model_desc_parse(&self->desc, config, n, err));
    SY_TRY(choose_dtype(self, config, n, err));
    st = sy_model_each_tensor(&self->desc, add_tensor, self);
    if (st != SY_OK) {
        sy_error_set(err, st,
                     st == SY_EINVAL ? "mxfp4 needs rows of whole blocks of 32 elements"
                                     : "no memory for the list of tensors");
        goto out;
    }
    st = write_all(self, dir, config, n, err);
out:
    for (size_t i = 0; i < self->n; i++) free((char *)(uintptr_t)self->entries[i].name);
    free(self->entries);
    free(self->fills);
    free(self);
    return st;
}

/* The config.json of the wanted model. It is also how the wish is checked: by parsing it as any
 * other. */
static void render_config(sy_strbuf *out, const sy_synth_config *config, const sy_family *family)
{
    static const char *const dtype_names[] = {
        [SY_F32] = "float32", [SY_BF16] = "bfloat16", [SY_F16] = "float16"};

    sy_strbuf_printf(out, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n",
                     family->architecture[0], family->name);
    sy_strbuf_printf(out, "  \"torch_dtype\": \"%s\",\n", dtype_names[config->options.dtype]);
    sy_strbuf_printf(out, "  \"vocab_size\": %" PRIu32 ",\n  \"hidden_size\": %" PRIu32 ",\n",
                     config->vocab, config->hidden);
    sy_strbuf_printf(out, "  \"%s\": %" PRIu32 ",\n", family->expert_ffn.alias[0],
                     config->expert_ffn);
    sy_strbuf_printf(out, "  \"num_hidden_layers\": %" PRIu32 ",\n", config->n_layers);
    sy_strbuf_printf(out, "  \"num_attention_heads\": %" PRIu32 ",\n", config->n_heads);
    sy_strbuf_printf(out, "  \"num_key_value_heads\": %" PRIu32 ",\n", config->n_kv_heads);
    sy_strbuf_printf(out, "  \"head_dim\": %" PRIu32 ",\n", config->head_dim);
    sy_strbuf_printf(out, "  \"%s\": %" PRIu32 ",\n", family->experts.alias[0], config->n_experts);
    sy_strbuf_printf(out, "  \"%s\": %" PRIu32 ",\n", family->top_k.alias[0], config->top_k);
    if (family->renormalise_key != NULL) {
        sy_strbuf_printf(out, "  \"%s\": %s,\n", family->renormalise_key,
                         family->renormalise || config->renormalise ? "true" : "false");
    }
    if (config->qkv_clip != 0.0f) {
        sy_strbuf_printf(out, "  \"%s\": %.9g,\n",
                         family->qkv_clip_key != NULL ? family->qkv_clip_key : "clip_qkv",
                         (double)config->qkv_clip);
    }
    sy_strbuf_printf(out, "  \"max_position_embeddings\": %" PRIu32 ",\n", config->context);
    sy_strbuf_printf(out, "  \"rms_norm_eps\": %.9g,\n  \"rope_theta\": %.9g,\n",
                     (double)config->rms_eps, (double)config->rope_theta);
    sy_strbuf_puts(out, "  \"hidden_act\": \"silu\",\n  \"tie_word_embeddings\": false,\n"
                        "  \"bos_token_id\": null,\n  \"eos_token_id\": null\n}\n");
}

static sy_status check_numbers(const sy_synth_config *config, const sy_family *family,
                               sy_error *err)
{
    if (family == NULL)
        return sy_error_set(err, SY_EINVAL, "the family %.64s is unknown",
                            config->family != NULL ? config->family : "(none)");
    if (sy_dtype_bytes(config->options.dtype) == 0)
        return sy_error_set(err, SY_EINVAL, "weights can be f32, bf16 or f16, not %s",
                            sy_dtype_name(config->options.dtype));
    if (!isfinite(config->rms_eps) || !isfinite(config->rope_theta) || !isfinite(config->qkv_clip))
        return sy_error_set(err, SY_EINVAL, "rms_eps, rope_theta and qkv_clip must be finite");
    return SY_OK;
}

sy_status sy_synth_write(const char *dir, const sy_synth_config *config, sy_error *err)
{
    const sy_family *family = config->family != NULL ? sy_family_find(config->family) : NULL;
    sy_strbuf text;
    sy_status st;

    sy_strbuf_init(&text);
    SY_TRY(check_numbers(config, family, err));
    SY_ASSERT(family != NULL);
    render_config(&text, config, family);
    st = text.failed ? sy_error_set(err, SY_ENOMEM, "no memory for the configuration")
                     : sy_synth_write_config(dir, text.data, text.len, &config->options, err);
out:
    sy_strbuf_free(&text);
    return st;
}
