/* sy_synth.c - writes checkpoints out of nothing: each element from a counter, so that memory stays
 * constant and any element can be recomputed alone. The configuration is written last: an
 * interrupted run leaves nothing that opens. */
#include "sy_synth.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sy_checkpoint_file.h"
#include "sy_family.h"
#include "sy_file.h"
#include "sy_hash.h"
#include "sy_strbuf.h"
#include "sy_synth_tokenizer.h"

#define CHUNK_ELEMENTS ((size_t)16384)

/* What one tensor is filled with: offset + scale * u. */
typedef struct fill_rule {
    float offset, scale;
} fill_rule;

typedef struct synth {
    const sy_synth_config *config;
    sy_model_desc desc;
    sy_st_entry *entries; /* [n] in the order of the forward pass; names are the synth's */
    fill_rule *rules;     /* [n] */
    size_t n, capacity;
    size_t first_entry; /* of the shard being written */
    uint64_t done_bytes, total_bytes;
    float values[CHUNK_ELEMENTS];
    uint16_t halves[CHUNK_ELEMENTS];
} synth;

static void render_factor(sy_strbuf *out, const char *key, float value)
{
    if (value != 0.0f) sy_strbuf_printf(out, "  \"%s\": %.9g,\n", key, (double)value);
}

/* The config.json of the wanted model. It is also how the wish is checked: by parsing it as any
 * other. */
static void render_config(sy_strbuf *out, const sy_synth_config *config, const sy_family *family)
{
    static const char *const dtype_names[] = {
        [SY_F32] = "float32", [SY_BF16] = "bfloat16", [SY_F16] = "float16"};

    sy_strbuf_printf(out, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n",
                     family->architecture, family->name);
    sy_strbuf_printf(out, "  \"torch_dtype\": \"%s\",\n", dtype_names[config->dtype]);
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
    if (config->rotary_dim != 0)
        sy_strbuf_printf(out, "  \"rotary_dim\": %" PRIu32 ",\n", config->rotary_dim);
    sy_strbuf_printf(out, "  \"max_position_embeddings\": %" PRIu32 ",\n", config->context);
    sy_strbuf_printf(out, "  \"rms_norm_eps\": %.9g,\n  \"rope_theta\": %.9g,\n",
                     (double)config->rms_eps, (double)config->rope_theta);
    render_factor(out, "embedding_multiplier", config->embedding_multiplier);
    render_factor(out, "residual_multiplier", config->residual_multiplier);
    render_factor(out, "attention_multiplier", config->attention_multiplier);
    render_factor(out, "logits_scaling", config->logits_scaling);
    sy_strbuf_printf(out, "  \"tie_word_embeddings\": %s,\n", config->tied_head ? "true" : "false");
    sy_strbuf_puts(out, "  \"hidden_act\": \"silu\",\n"
                        "  \"bos_token_id\": null,\n  \"eos_token_id\": null\n}\n");
}

static sy_status check_config(synth *self, sy_strbuf *text, sy_error *err)
{
    const sy_synth_config *config = self->config;
    const sy_family *family = config->family != NULL ? sy_family_find(config->family) : NULL;

    if (family == NULL) {
        return sy_error_set(err, SY_EINVAL, "the family %.64s is unknown",
                            config->family != NULL ? config->family : "(none)");
    }
    if (sy_dtype_bytes(config->dtype) == 0) {
        return sy_error_set(err, SY_EINVAL, "weights can be f32, bf16 or f16, not %s",
                            sy_dtype_name(config->dtype));
    }
    if (!isfinite(config->rms_eps) || !isfinite(config->rope_theta) ||
        !isfinite(config->qkv_clip) || !isfinite(config->embedding_multiplier) ||
        !isfinite(config->residual_multiplier) || !isfinite(config->attention_multiplier) ||
        !isfinite(config->logits_scaling)) {
        return sy_error_set(err, SY_EINVAL,
                            "rms_eps, rope_theta, qkv_clip and multipliers must be finite");
    }
    render_config(text, config, family);
    if (text->failed) return sy_error_set(err, SY_ENOMEM, "no memory for the configuration");
    return sy_model_desc_parse(&self->desc, text->data, text->len, err);
}

static fill_rule rule_of(const synth *self, const sy_tensor_spec *spec)
{
    const int is_scaled = self->config->recipe == SY_SYNTH_SCALED;

    if (spec->role == SY_ROLE_GATE_BIAS) return (fill_rule){.scale = 0.125f};
    if (spec->rank == 1) return (fill_rule){.offset = 1.0f, .scale = 0.25f}; /* norms */
    if (spec->role == SY_ROLE_EMBED) return (fill_rule){.scale = 1.0f};
    /* u has variance 1/3: a row's dot product with unit inputs then has variance 1. */
    if (is_scaled) return (fill_rule){.scale = sqrtf(3.0f / (float)spec->shape[spec->rank - 1])};
    return (fill_rule){.scale = spec->role == SY_ROLE_GATE ? 0.5f : 0.25f};
}

static sy_status grow(synth *self)
{
    const size_t capacity = self->capacity == 0 ? 256 : self->capacity * 2;
    sy_st_entry *entries = realloc(self->entries, capacity * sizeof(*entries));
    fill_rule *rules;

    if (entries == NULL) return SY_ENOMEM;
    self->entries = entries;
    rules = realloc(self->rules, capacity * sizeof(*rules));
    if (rules == NULL) return SY_ENOMEM;
    self->rules = rules;
    self->capacity = capacity;
    return SY_OK;
}

static uint64_t entry_elements(const sy_st_entry *entry)
{
    uint64_t n = 1;

    for (uint32_t d = 0; d < entry->rank; d++) n *= entry->shape[d];
    return n;
}

static uint64_t entry_bytes(const sy_st_entry *entry)
{
    return entry_elements(entry) * sy_dtype_bytes(entry->dtype);
}

static sy_status add_entry(void *arg, const sy_tensor_spec *spec)
{
    synth *self = arg;
    sy_st_entry *entry;

    if (self->n == self->capacity && grow(self) != SY_OK) return SY_ENOMEM;
    entry = &self->entries[self->n];
    *entry = (sy_st_entry){.name = strdup(spec->name),
                           .dtype = self->config->dtype,
                           .rank = spec->rank,
                           .shape = {spec->shape[0], spec->shape[1], spec->shape[2]}};
    if (entry->name == NULL) return SY_ENOMEM;
    self->rules[self->n++] = rule_of(self, spec);
    self->total_bytes += entry_bytes(entry);
    return SY_OK;
}

static uint64_t seed_of(const synth *self, const char *name)
{
    const uint64_t hash = sy_fnv1a(SY_FNV1A_START, name, strlen(name));

    /* An odd factor keeps seeds apart, and leaves seed 0 with the plain hash. */
    return self->config->recipe == SY_SYNTH_SCALED
               ? hash + self->config->seed * 0xda942042e4dd58b5ull
               : hash;
}

static void make_values(synth *self, uint64_t counter, fill_rule rule, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const int32_t v = (int32_t)(sy_splitmix64(counter + i) >> 40) - (1 << 23);

        self->values[i] = rule.offset + rule.scale * ((float)v * 0x1p-23f);
    }
}

static sy_status emit_values(synth *self, sy_dtype dtype, size_t n, sy_st_emit emit, void *sink)
{
    if (dtype == SY_F32) return emit(sink, self->values, n * sizeof(self->values[0]));
    for (size_t i = 0; i < n; i++) {
        self->halves[i] =
            dtype == SY_BF16 ? sy_f32_to_bf16(self->values[i]) : sy_f32_to_f16(self->values[i]);
    }
    return emit(sink, self->halves, n * sizeof(self->halves[0]));
}

static sy_status fill_tensor(void *arg, size_t i, sy_st_emit emit, void *sink)
{
    synth *self = arg;
    const sy_st_entry *entry = &self->entries[self->first_entry + i];
    const uint64_t seed = seed_of(self, entry->name);
    const uint64_t n = entry_elements(entry);

    for (uint64_t at = 0; at < n; at += CHUNK_ELEMENTS) {
        const size_t n_chunk = (size_t)SY_MIN(n - at, CHUNK_ELEMENTS);
        sy_status st;

        make_values(self, seed + at, self->rules[self->first_entry + i], n_chunk);
        st = emit_values(self, entry->dtype, n_chunk, emit, sink);
        if (st != SY_OK) return st;
        self->done_bytes += n_chunk * sy_dtype_bytes(entry->dtype);
        if (self->config->progress != NULL) {
            self->config->progress(self->config->progress_arg, self->done_bytes, self->total_bytes);
        }
    }
    return SY_OK;
}

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
    const uint64_t max_bytes = self->config->shard_bytes_max;
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

static sy_status write_all(synth *self, const char *dir, const sy_strbuf *config_text,
                           sy_error *err)
{
    char generation[64];
    uint32_t eos = 0;
    int len;
    sy_status st;

    SY_TRY(sy_synth_eos(&eos, self->config->tokenizer_dir, self->desc.vocab, err));
    SY_TRY(sy_dir_make(dir, err));
    SY_TRY(sy_synth_tokenizer_write(dir, self->config->tokenizer_dir, err));
    SY_TRY(remove_old(dir, err));
    if (self->config->shard_bytes_max == 0) {
        SY_TRY(write_shard(self, dir, "model.safetensors", 0, self->n, err));
    } else {
        SY_TRY(write_shards(self, dir, err));
    }
    len = snprintf(generation, sizeof(generation), "{\n  \"eos_token_id\": %" PRIu32 "\n}\n", eos);
    SY_TRY(write_text(dir, "generation_config.json", generation, (size_t)len, err));
    st = write_text(dir, "config.json", config_text->data, config_text->len, err);
out:
    return st;
}

sy_status sy_synth_write(const char *dir, const sy_synth_config *config, sy_error *err)
{
    synth *self = calloc(1, sizeof(*self));
    sy_strbuf config_text;
    sy_status st;

    sy_strbuf_init(&config_text);
    if (self == NULL) {
        st = sy_error_set(err, SY_ENOMEM, "%s: no memory to write a checkpoint", dir);
        goto out;
    }
    self->config = config;
    SY_TRY(check_config(self, &config_text, err));
    st = sy_model_each_tensor(&self->desc, add_entry, self);
    if (st != SY_OK) {
        sy_error_set(err, st, "no memory for the list of tensors");
        goto out;
    }
    st = write_all(self, dir, &config_text, err);
out:
    sy_strbuf_free(&config_text);
    if (self != NULL) {
        for (size_t i = 0; i < self->n; i++) free((char *)(uintptr_t)self->entries[i].name);
        free(self->entries);
        free(self->rules);
    }
    free(self);
    return st;
}
