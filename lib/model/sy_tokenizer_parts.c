/* sy_tokenizer_parts.c - the normalizer, pre-tokenizer, decoder and post-processor of
 * tokenizer.json. A component that is not implemented here is SY_EINVAL, and the message names it.
 */
#include "sy_tokenizer_impl.h"
#include "sy_tokenizer_json.h"
#include "sy_unicode.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define SEQUENCE_DEPTH_MAX 8 /* of Sequences in Sequences */

/* How GPT-2 splits text, which ByteLevel implies. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|"
                                   " ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static sy_status refuse(sy_error *err, const char *where, const char *what, const char *name)
{
    return sy_error_set(err, SY_EINVAL, "%s: the %s \"%.60s\" is not supported", where, what, name);
}

static sy_status read_type(json_t *json, const char *where, const char **type, sy_error *err)
{
    size_t n;

    if (!json_is_object(json)) {
        return sy_error_set(err, SY_EINVAL, "%s is not an object", where);
    }
    return sy_json_text(json, where, "type", type, &n, err);
}

static sy_status copy_text(char **out, size_t *out_bytes, const char *s, size_t n)
{
    *out = malloc(n + 1);
    if (*out == NULL) return SY_ENOMEM;
    memcpy(*out, s, n);
    (*out)[n] = '\0';
    *out_bytes = n;
    return SY_OK;
}

/* {"String": s} or {"Regex": s}. */
static sy_status read_pattern(json_t *json, const char *where, int *is_regex, const char **s,
                              size_t *n, sy_error *err)
{
    json_t *pattern = json_object_get(json, "pattern");
    sy_status st = sy_json_keys(pattern, where, "String Regex", err);

    if (st != SY_OK) return st;
    *is_regex = json_object_get(pattern, "Regex") != NULL;
    if (json_object_size(pattern) != 1) {
        return sy_error_set(err, SY_EINVAL, "%s: a pattern is a String or a Regex", where);
    }
    st = sy_json_text(pattern, where, *is_regex ? "Regex" : "String", s, n, err);
    if (st == SY_OK && *n == 0)
        st = sy_error_set(err, SY_EINVAL, "%s: the pattern is empty", where);
    return st;
}

/* Replace: of a normalizer and of a decoder. */
static sy_status read_replace(sy_norm_step *step, json_t *json, const char *where, sy_error *err)
{
    const char *from = "", *to = "";
    size_t from_bytes = 0, to_bytes = 0;
    int is_regex = 0;
    sy_status st = SY_OK;

    step->kind = SY_NORM_REPLACE;
    SY_TRY(sy_json_keys(json, where, "type pattern content", err));
    SY_TRY(read_pattern(json, where, &is_regex, &from, &from_bytes, err));
    if (is_regex) return refuse(err, where, "Replace of a Regex", from);
    SY_TRY(sy_json_text(json, where, "content", &to, &to_bytes, err));
    SY_TRY(copy_text(&step->from, &step->from_bytes, from, from_bytes));
    SY_TRY(copy_text(&step->to, &step->to_bytes, to, to_bytes));
out:
    return st;
}

/* For Sequences: calls read on every item of the list. */
static sy_status read_sequence(void *out, json_t *json, const char *where, const char *key,
                               sy_status (*read)(void *out, json_t *json, int depth, sy_error *err),
                               int depth, sy_error *err)
{
    json_t *list;
    sy_status st = SY_OK;

    if (depth == SEQUENCE_DEPTH_MAX) return refuse(err, where, "nesting of a", "Sequence");
    SY_TRY(sy_json_array(json, where, key, &list, err));
    for (size_t i = 0; i < json_array_size(list); i++) {
        SY_TRY(read(out, json_array_get(list, i), depth + 1, err));
    }
out:
    return st;
}

static sy_status read_norm(void *out, json_t *json, int depth, sy_error *err)
{
    static const char where[] = "normalizer";
    sy_norm *norm = out;
    const char *type = "", *text = "";
    size_t n = 0;
    sy_status st = SY_OK;

    SY_TRY(read_type(json, where, &type, err));
    if (strcmp(type, "Sequence") == 0) {
        return read_sequence(out, json, where, "normalizers", read_norm, depth, err);
    }
    if (norm->n_steps == SY_NORM_STEPS_MAX) return refuse(err, where, "one step too many,", type);
    /* Counted before it is filled, so that what it owns is freed whatever happens. */
    sy_norm_step *step = &norm->step[norm->n_steps++];
    if (strcmp(type, "NFC") == 0) {
        step->kind = SY_NORM_NFC;
        return sy_json_keys(json, where, "type", err);
    }
    if (strcmp(type, "Replace") == 0) return read_replace(step, json, where, err);
    if (strcmp(type, "Prepend") != 0) return refuse(err, where, "type", type);
    step->kind = SY_NORM_PREPEND;
    SY_TRY(sy_json_keys(json, where, "type prepend", err));
    SY_TRY(sy_json_text(json, where, "prepend", &text, &n, err));
    SY_TRY(copy_text(&step->to, &step->to_bytes, text, n));
out:
    return st;
}

sy_status sy_norm_read(sy_norm *norm, json_t *json, sy_error *err)
{
    return sy_json_absent(json) ? SY_OK : read_norm(norm, json, 0, err);
}

/* NULL: there are too many, which err says. */
static sy_pretok_step *add_step(sy_pretok *pretok, sy_error *err)
{
    if (pretok->n_steps < SY_PRETOK_STEPS_MAX) return &pretok->step[pretok->n_steps++];
    (void)sy_error_set(err, SY_EINVAL, "pre_tokenizer: more than %d steps", SY_PRETOK_STEPS_MAX);
    return NULL;
}

static sy_status read_behavior(const json_t *json, sy_split_behavior *out, sy_error *err)
{
    static const struct {
        const char *name;
        sy_split_behavior behavior;
    } known[] = {{"Removed", SY_SPLIT_REMOVED},
                 {"Isolated", SY_SPLIT_ISOLATED},
                 {"MergedWithPrevious", SY_SPLIT_MERGED_WITH_PREVIOUS},
                 {"MergedWithNext", SY_SPLIT_MERGED_WITH_NEXT},
                 {"Contiguous", SY_SPLIT_CONTIGUOUS}};
    const char *name = "";
    size_t n = 0;
    const sy_status st = sy_json_text(json, "pre_tokenizer", "behavior", &name, &n, err);

    if (st != SY_OK) return st;
    for (size_t i = 0; i < SY_COUNT_OF(known); i++) {
        if (strcmp(name, known[i].name) != 0) continue;
        *out = known[i].behavior;
        return SY_OK;
    }
    return refuse(err, "pre_tokenizer", "behavior", name);
}

static sy_status read_split(sy_pretok *pretok, json_t *json, sy_error *err)
{
    static const char where[] = "pre_tokenizer";
    sy_pretok_step *step;
    const char *text = "";
    size_t n = 0;
    int is_regex = 0;
    sy_status st = SY_OK;

    step = add_step(pretok, err);
    if (step == NULL) return SY_EINVAL;
    step->kind = SY_PRETOK_SPLIT;
    SY_TRY(sy_json_keys(json, where, "type pattern behavior invert", err));
    SY_TRY(read_behavior(json, &step->behavior, err));
    SY_TRY(sy_json_bool(json, where, "invert", 0, &step->invert, err));
    SY_TRY(read_pattern(json, where, &is_regex, &text, &n, err));
    step->pattern = is_regex ? SY_SPLIT_REGEX : SY_SPLIT_TEXT;
    if (!is_regex) return copy_text(&step->text, &step->text_bytes, text, n);
    st = sy_regex_open(&step->regex, text, n, err);
    if (st != SY_OK) sy_error_prefix(err, "pre_tokenizer Split");
out:
    return st;
}

static sy_status read_digits(sy_pretok *pretok, json_t *json, sy_error *err)
{
    sy_pretok_step *step;
    int individual;
    sy_status st = SY_OK;

    SY_TRY(sy_json_keys(json, "pre_tokenizer", "type individual_digits", err));
    SY_TRY(sy_json_bool(json, "pre_tokenizer", "individual_digits", 0, &individual, err));
    step = add_step(pretok, err);
    if (step == NULL) return SY_EINVAL;
    step->kind = SY_PRETOK_SPLIT;
    step->pattern = SY_SPLIT_NUMERIC;
    step->behavior = individual ? SY_SPLIT_ISOLATED : SY_SPLIT_CONTIGUOUS;
out:
    return st;
}

static sy_status read_byte_level(sy_pretok *pretok, json_t *json, sy_error *err)
{
    static const char where[] = "pre_tokenizer";
    sy_pretok_step *step;
    int prefix_space, use_regex, trim_offsets;
    sy_status st = SY_OK;

    SY_TRY(sy_json_keys(json, where, "type add_prefix_space trim_offsets use_regex", err));
    SY_TRY(sy_json_bool(json, where, "add_prefix_space", 1, &prefix_space, err));
    SY_TRY(sy_json_bool(json, where, "trim_offsets", 1, &trim_offsets, err));
    SY_TRY(sy_json_bool(json, where, "use_regex", 1, &use_regex, err));
    pretok->byte_level = 1;
    if (prefix_space) {
        step = add_step(pretok, err);
        if (step == NULL) return SY_EINVAL;
        step->kind = SY_PRETOK_PREFIX_SPACE;
    }
    if (use_regex) {
        step = add_step(pretok, err);
        if (step == NULL) return SY_EINVAL;
        step->kind = SY_PRETOK_SPLIT;
        step->behavior = SY_SPLIT_ISOLATED;
        SY_TRY(sy_regex_open(&step->regex, gpt2_pattern, sizeof(gpt2_pattern) - 1, err));
    }
out:
    return st;
}

/* Metaspace: of a pre-tokenizer and of a decoder. *replacement is borrowed from json: one
 * character. */
static sy_status read_metaspace(json_t *json, const char *where, const char **replacement,
                                size_t *n, sy_prepend_scheme *scheme, int *does_split,
                                sy_error *err)
{
    const char *name;
    size_t name_bytes, end = 0;
    int prefix_space;
    sy_status st = SY_OK;

    SY_TRY(sy_json_keys(json, where,
                        "type replacement add_prefix_space prepend_scheme split str_rep", err));
    SY_TRY(sy_json_text(json, where, "replacement", replacement, n, err));
    if (*n > 0) (void)sy_utf8_next(*replacement, &end);
    if (*n == 0 || end != *n) return refuse(err, where, "Metaspace replacement", *replacement);
    SY_TRY(sy_json_bool(json, where, "split", 1, does_split, err));
    SY_TRY(sy_json_bool(json, where, "add_prefix_space", 1, &prefix_space, err));
    SY_TRY(sy_json_string(json, where, "prepend_scheme", &name, &name_bytes, err));
    if (name == NULL) name = prefix_space ? "always" : "never";
    if (strcmp(name, "never") == 0) {
        *scheme = SY_PREPEND_NEVER;
    } else if (!prefix_space) {
        st = refuse(err, where, "add_prefix_space false with prepend_scheme", name);
    } else if (strcmp(name, "always") == 0) {
        *scheme = SY_PREPEND_ALWAYS;
    } else if (strcmp(name, "first") == 0) {
        *scheme = SY_PREPEND_FIRST;
    } else {
        st = refuse(err, where, "prepend_scheme", name);
    }
out:
    return st;
}

static sy_status add_metaspace(sy_pretok *pretok, json_t *json, sy_error *err)
{
    sy_pretok_step *step;
    sy_prepend_scheme scheme = SY_PREPEND_NEVER;
    const char *text = "";
    size_t n = 0;
    int does_split = 0;
    sy_status st = SY_OK;

    SY_TRY(read_metaspace(json, "pre_tokenizer", &text, &n, &scheme, &does_split, err));
    step = add_step(pretok, err);
    if (step == NULL) return SY_EINVAL;
    step->kind = SY_PRETOK_METASPACE;
    step->scheme = scheme;
    SY_TRY(copy_text(&step->text, &step->text_bytes, text, n));
    if (!does_split) goto out;
    step = add_step(pretok, err);
    if (step == NULL) return SY_EINVAL;
    step->kind = SY_PRETOK_SPLIT;
    step->pattern = SY_SPLIT_TEXT;
    step->behavior = SY_SPLIT_MERGED_WITH_NEXT;
    SY_TRY(copy_text(&step->text, &step->text_bytes, text, n));
out:
    return st;
}

static sy_status read_pretok(void *out, json_t *json, int depth, sy_error *err)
{
    static const char where[] = "pre_tokenizer";
    sy_pretok *pretok = out;
    const char *type = "";
    const sy_status st = read_type(json, where, &type, err);

    if (st != SY_OK) return st;
    if (strcmp(type, "Sequence") == 0) {
        return read_sequence(out, json, where, "pretokenizers", read_pretok, depth, err);
    }
    /* After ByteLevel the text is no longer characters but bytes in disguise. */
    if (pretok->byte_level) return refuse(err, where, "step after ByteLevel", type);
    if (strcmp(type, "Split") == 0) return read_split(pretok, json, err);
    if (strcmp(type, "Digits") == 0) return read_digits(pretok, json, err);
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(pretok, json, err);
    if (strcmp(type, "Metaspace") == 0) return add_metaspace(pretok, json, err);
    return refuse(err, where, "type", type);
}

sy_status sy_pretok_read(sy_pretok *pretok, json_t *json, sy_error *err)
{
    return sy_json_absent(json) ? SY_OK : read_pretok(pretok, json, 0, err);
}

/* The steps of a decoder's Sequence come in the order Replace, ByteFallback, Fuse, Strip, any of
 * them left out: only then can a stream be decoded token by token. */
enum { STAGE_REPLACE, STAGE_BYTES, STAGE_FUSE, STAGE_STRIP };

typedef struct decoder_reading {
    sy_decoder *decoder;
    int stage;
} decoder_reading;

static sy_status read_strip(decoder_reading *reading, json_t *json, sy_error *err)
{
    static const char where[] = "decoder";
    sy_decoder *decoder = reading->decoder;
    const json_t *start = json_object_get(json, "start"), *stop = json_object_get(json, "stop");
    const char *text = "";
    size_t n = 0, end = 0;
    sy_status st = SY_OK;

    SY_TRY(sy_json_keys(json, where, "type content start stop", err));
    SY_TRY(sy_json_text(json, where, "content", &text, &n, err));
    if (n > 0) (void)sy_utf8_next(text, &end);
    if (n == 0 || end != n) return refuse(err, where, "Strip content", text);
    if (reading->stage != STAGE_FUSE) {
        return refuse(err, where, "step without a Fuse before it,", "Strip");
    }
    if (!json_is_integer(start) || json_integer_value(start) < 0 ||
        json_integer_value(start) > INT32_MAX) {
        return sy_error_set(err, SY_EINVAL, "decoder: the start of Strip is not a count");
    }
    if (!json_is_integer(stop) || json_integer_value(stop) != 0) {
        return sy_error_set(err, SY_EINVAL, "decoder: Strip is not supported unless its stop is 0");
    }
    memcpy(decoder->strip, text, n);
    decoder->strip_bytes = (unsigned)n;
    decoder->strip_start = (int)json_integer_value(start);
    reading->stage = STAGE_STRIP;
out:
    return st;
}

static sy_status read_decoder_step(void *out, json_t *json, int depth, sy_error *err)
{
    static const char where[] = "decoder";
    decoder_reading *reading = out;
    sy_decoder *decoder = reading->decoder;
    const char *type = "";
    sy_status st = read_type(json, where, &type, err);

    if (st != SY_OK) return st;
    if (strcmp(type, "Sequence") == 0) {
        return read_sequence(out, json, where, "decoders", read_decoder_step, depth, err);
    }
    decoder->kind = SY_DECODER_SEQUENCE;
    if (strcmp(type, "Strip") == 0) return read_strip(reading, json, err);
    if (strcmp(type, "Replace") == 0 && reading->stage == STAGE_REPLACE) {
        if (decoder->n_replaces == SY_DECODER_REPLACES_MAX) {
            return refuse(err, where, "one step too many,", type);
        }
        return read_replace(&decoder->replace[decoder->n_replaces++], json, where, err);
    }
    if (strcmp(type, "ByteFallback") == 0 && reading->stage == STAGE_REPLACE) {
        decoder->byte_fallback = 1;
        reading->stage = STAGE_BYTES;
        return sy_json_keys(json, where, "type", err);
    }
    if (strcmp(type, "Fuse") == 0 && reading->stage <= STAGE_BYTES) {
        reading->stage = STAGE_FUSE;
        return sy_json_keys(json, where, "type", err);
    }
    return refuse(err, where, "type, alone or at this place of a Sequence,", type);
}

static sy_status read_metaspace_decoder(sy_decoder *decoder, json_t *json, sy_error *err)
{
    sy_norm_step *replace = &decoder->replace[0];
    sy_prepend_scheme scheme = SY_PREPEND_NEVER;
    const char *text = "";
    size_t n = 0;
    int does_split = 0;
    sy_status st = SY_OK;

    SY_TRY(read_metaspace(json, "decoder", &text, &n, &scheme, &does_split, err));
    decoder->kind = SY_DECODER_METASPACE;
    decoder->keeps_first = scheme == SY_PREPEND_NEVER;
    decoder->n_replaces = 1;
    SY_TRY(copy_text(&replace->from, &replace->from_bytes, text, n));
    SY_TRY(copy_text(&replace->to, &replace->to_bytes, " ", 1));
out:
    return st;
}

sy_status sy_decoder_read(sy_decoder *decoder, json_t *json, sy_error *err)
{
    decoder_reading reading = {.decoder = decoder, .stage = STAGE_REPLACE};
    const char *type = "";
    sy_status st;

    if (sy_json_absent(json)) return SY_OK;
    st = read_type(json, "decoder", &type, err);
    if (st != SY_OK) return st;
    if (strcmp(type, "Metaspace") == 0) return read_metaspace_decoder(decoder, json, err);
    if (strcmp(type, "ByteLevel") == 0) {
        decoder->kind = SY_DECODER_BYTE_LEVEL;
        return sy_json_keys(json, "decoder", "type add_prefix_space trim_offsets use_regex", err);
    }
    return read_decoder_step(&reading, json, 0, err);
}

/* The ids that a template's special token stands for: tokens, as everything that encoding gives
 * out. */
static sy_status push_template_ids(const sy_tokenizer *self, sy_ids *ids, const json_t *json,
                                   const char *name, sy_error *err)
{
    static const char where[] = "post_processor";
    const json_t *token = json_object_get(json_object_get(json, "special_tokens"), name);
    json_t *list;
    sy_status st = SY_OK;

    if (token == NULL) return refuse(err, where, "undeclared special token", name);
    SY_TRY(sy_json_array(token, where, "ids", &list, err));
    for (size_t i = 0; i < json_array_size(list); i++) {
        uint32_t id;
        SY_TRY(sy_json_id(json_array_get(list, i), where, UINT32_MAX, &id, err));
        if (sy_vocab_get(&self->vocab, id) == NULL) {
            return sy_error_set(err, SY_EINVAL, "%s: id %u of \"%.60s\" is not a token", where,
                                (unsigned)id, name);
        }
        SY_TRY(sy_ids_push(ids, id));
    }
out:
    return st;
}

static sy_status read_template_piece(const sy_tokenizer *self, sy_ids *ids, json_t *json,
                                     json_t *piece, int *is_text, sy_error *err)
{
    static const char where[] = "post_processor";
    json_t *sequence = json_object_get(piece, "Sequence");
    json_t *special = json_object_get(piece, "SpecialToken");
    const char *name = "";
    size_t n = 0;
    sy_status st = SY_OK;

    *is_text = sequence != NULL;
    SY_TRY(sy_json_keys(piece, where, "Sequence SpecialToken", err));
    SY_TRY(sy_json_keys(*is_text ? sequence : special, where, "id type_id", err));
    SY_TRY(sy_json_text(*is_text ? sequence : special, where, "id", &name, &n, err));
    if (!*is_text) return push_template_ids(self, ids, json, name, err);
    if (strcmp(name, "A") != 0) st = refuse(err, where, "Sequence in a single template", name);
out:
    return st;
}

static sy_status push_all(sy_ids *ids, const sy_ids *more)
{
    sy_status st = SY_OK;

    for (size_t i = 0; i < more->n && st == SY_OK; i++) st = sy_ids_push(ids, more->id[i]);
    return st;
}

/* A template goes around what the templates before it have made. */
static sy_status read_template(sy_tokenizer *self, json_t *json, sy_error *err)
{
    sy_ids before = {0}, after = {0};
    size_t n_texts = 0;
    json_t *single;
    sy_status st = SY_OK;

    SY_TRY(sy_json_keys(json, "post_processor", "type single pair special_tokens", err));
    SY_TRY(sy_json_array(json, "post_processor", "single", &single, err));
    for (size_t i = 0; i < json_array_size(single); i++) {
        int is_text;
        SY_TRY(read_template_piece(self, n_texts == 0 ? &before : &after, json,
                                   json_array_get(single, i), &is_text, err));
        n_texts += (size_t)is_text;
    }
    if (n_texts != 1) {
        st = sy_error_set(err, SY_EINVAL,
                          "post_processor: the single template has the text %zu times", n_texts);
        goto out;
    }
    SY_TRY(push_all(&before, &self->prefix));
    SY_TRY(push_all(&self->suffix, &after));
    sy_ids_free(&self->prefix);
    self->prefix = before;
    before = (sy_ids){0};
out:
    sy_ids_free(&before);
    sy_ids_free(&after);
    return st;
}

static sy_status read_post(void *out, json_t *json, int depth, sy_error *err)
{
    static const char where[] = "post_processor";
    const char *type = "";
    const sy_status st = read_type(json, where, &type, err);

    if (st != SY_OK) return st;
    if (strcmp(type, "Sequence") == 0) {
        return read_sequence(out, json, where, "processors", read_post, depth, err);
    }
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(out, json, err);
    if (strcmp(type, "ByteLevel") != 0) return refuse(err, where, "type", type);
    /* It moves offsets, which are not kept here. */
    return sy_json_keys(json, where, "type add_prefix_space trim_offsets use_regex", err);
}

sy_status sy_post_read(sy_tokenizer *self, json_t *json, sy_error *err)
{
    return sy_json_absent(json) ? SY_OK : read_post(self, json, 0, err);
}
