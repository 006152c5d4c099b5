/* sy_tokenizer_build.c - from tokenizer.json and tokenizer_config.json to a tokenizer: the file as
 * a whole, the BPE model, the added tokens. Files are untrusted: whatever is wrong or unknown is
 * SY_EINVAL. */
#include "sy_json_load.h"
#include "sy_tokenizer_impl.h"
#include "sy_tokenizer_json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define JSON_VALUES_MAX ((size_t)8 << 20) /* 200,000 tokens and 450,000 merges are 1.6 million */

static sy_status read_vocab(sy_tokenizer *self, json_t *vocab, uint32_t limit, sy_error *err)
{
    sy_status st = SY_OK;

    if (!json_is_object(vocab)) {
        return sy_error_set(err, SY_EINVAL, "model: \"vocab\" is not an object");
    }
    SY_TRY(sy_vocab_reserve(&self->vocab, json_object_size(vocab)));
    for (void *i = json_object_iter(vocab); i != NULL; i = json_object_iter_next(vocab, i)) {
        const char *text = json_object_iter_key(i);
        uint32_t id;
        SY_TRY(sy_json_id(json_object_iter_value(i), "model.vocab", limit, &id, err));
        st = sy_vocab_add(&self->vocab, id, text, json_object_iter_key_len(i), 1);
        if (st == SY_EEXISTS) {
            st = sy_error_set(err, SY_EINVAL,
                              "model.vocab: two tokens have the id %u, one is \"%.60s\"",
                              (unsigned)id, text);
        }
        if (st != SY_OK) goto out;
    }
out:
    return st;
}

static sy_status refuse_merge(size_t rank, const char *why, sy_error *err)
{
    return sy_error_set(err, SY_EINVAL, "model.merges: merge %zu %s", rank, why);
}

/* The two halves of a merge: "a b" or ["a", "b"]. */
static sy_status read_halves(json_t *item, size_t rank, const char *half[2], size_t bytes[2],
                             sy_error *err)
{
    const char *space;

    if (json_is_string(item)) {
        const size_t n = json_string_length(item);
        half[0] = json_string_value(item);
        space = memchr(half[0], ' ', n);
        if (space == NULL || memchr(space + 1, ' ', n - 1 - (size_t)(space - half[0])) != NULL) {
            return refuse_merge(rank, "is not two tokens and one space", err);
        }
        half[1] = space + 1;
        bytes[0] = (size_t)(space - half[0]);
        bytes[1] = n - bytes[0] - 1;
        return SY_OK;
    }
    if (!json_is_array(item) || json_array_size(item) != 2 ||
        !json_is_string(json_array_get(item, 0)) || !json_is_string(json_array_get(item, 1))) {
        return refuse_merge(rank, "is neither a string nor a pair of strings", err);
    }
    for (size_t k = 0; k < 2; k++) {
        half[k] = json_string_value(json_array_get(item, k));
        bytes[k] = json_string_length(json_array_get(item, k));
    }
    return SY_OK;
}

static sy_status read_merge(sy_tokenizer *self, json_t *item, uint32_t rank, sy_strbuf *whole,
                            sy_error *err)
{
    sy_bpe_merge merge = {.rank = rank};
    const char *half[2];
    size_t bytes[2];
    sy_status st = read_halves(item, rank, half, bytes, err);

    if (st != SY_OK) return st;
    sy_strbuf_reset(whole);
    sy_strbuf_append(whole, half[0], bytes[0]);
    sy_strbuf_append(whole, half[1], bytes[1]);
    if (whole->failed) return SY_ENOMEM;
    merge.left = sy_vocab_find(&self->vocab, half[0], bytes[0]);
    merge.right = sy_vocab_find(&self->vocab, half[1], bytes[1]);
    merge.merged = sy_vocab_find(&self->vocab, whole->data, whole->len);
    if (merge.left == SY_NO_ID || merge.right == SY_NO_ID || merge.merged == SY_NO_ID) {
        return sy_error_set(
            err, SY_EINVAL,
            "model.merges: merge %u makes \"%.60s\" of \"%.*s\" and \"%.*s\", and not "
            "all three are in the vocabulary",
            (unsigned)rank, whole->data, (int)SY_MIN(bytes[0], 60), half[0],
            (int)SY_MIN(bytes[1], 60), half[1]);
    }
    sy_bpe_add_merge(&self->bpe, &merge);
    return SY_OK;
}

/* "#version: ..." lines of the old spelling are skipped and have no rank. */
static int is_comment(const json_t *item)
{
    const char *text = json_string_value(item);
    return text != NULL && strncmp(text, "#version", 8) == 0;
}

static sy_status read_merges(sy_tokenizer *self, json_t *merges, sy_error *err)
{
    sy_status st = SY_OK;
    sy_strbuf whole;
    uint32_t rank = 0;

    sy_strbuf_init(&whole);
    for (size_t i = 0; i < json_array_size(merges); i++) {
        json_t *item = json_array_get(merges, i);
        if (is_comment(item)) continue;
        SY_TRY(read_merge(self, item, rank, &whole, err));
        rank++;
    }
out:
    sy_strbuf_free(&whole);
    return st;
}

/* Fields that must be null, or "" as some writers spell it. */
static sy_status check_unused(const json_t *model, const char *key, sy_error *err)
{
    const json_t *value = json_object_get(model, key);

    if (sy_json_absent(value)) return SY_OK;
    if (json_is_string(value) && json_string_length(value) == 0) return SY_OK;
    if (json_is_number(value) && json_number_value(value) == 0.0) return SY_OK;
    return sy_error_set(err, SY_EINVAL, "model: \"%s\" is not supported unless null", key);
}

static sy_status read_model(sy_tokenizer *self, json_t *model, uint32_t limit, sy_error *err)
{
    const char *type, *unk;
    size_t n;
    json_t *merges;
    sy_status st = SY_OK;

    SY_TRY(sy_json_text(model, "model", "type", &type, &n, err));
    if (strcmp(type, "BPE") != 0) {
        return sy_error_set(err, SY_EINVAL, "model: the type \"%.60s\" is not supported, only BPE",
                            type);
    }
    SY_TRY(sy_json_keys(model, "model",
                        "type dropout unk_token continuing_subword_prefix end_of_word_suffix "
                        "fuse_unk byte_fallback ignore_merges vocab merges",
                        err));
    SY_TRY(check_unused(model, "dropout", err));
    SY_TRY(check_unused(model, "continuing_subword_prefix", err));
    SY_TRY(check_unused(model, "end_of_word_suffix", err));
    SY_TRY(read_vocab(self, json_object_get(model, "vocab"), limit, err));
    SY_TRY(sy_json_array(model, "model", "merges", &merges, err));
    SY_TRY(sy_bpe_open(&self->bpe, &self->vocab, json_array_size(merges)));
    SY_TRY(sy_json_bool(model, "model", "fuse_unk", 0, &self->bpe.fuse_unk, err));
    SY_TRY(sy_json_bool(model, "model", "byte_fallback", 0, &self->bpe.byte_fallback, err));
    SY_TRY(sy_json_bool(model, "model", "ignore_merges", 0, &self->bpe.ignore_merges, err));
    SY_TRY(sy_json_string(model, "model", "unk_token", &unk, &n, err));
    if (unk != NULL) {
        self->bpe.has_unk = 1;
        self->bpe.unk = sy_vocab_find(&self->vocab, unk, n);
    }
    SY_TRY(read_merges(self, merges, err));
out:
    return st;
}

static sy_status read_flags(const json_t *item, sy_added_token *token, int *normalized,
                            sy_error *err)
{
    int special, single_word, lstrip, rstrip;
    sy_status st = SY_OK;

    SY_TRY(sy_json_bool(item, "added_tokens", "special", 0, &special, err));
    SY_TRY(sy_json_bool(item, "added_tokens", "single_word", 0, &single_word, err));
    SY_TRY(sy_json_bool(item, "added_tokens", "lstrip", 0, &lstrip, err));
    SY_TRY(sy_json_bool(item, "added_tokens", "rstrip", 0, &rstrip, err));
    SY_TRY(sy_json_bool(item, "added_tokens", "normalized", !special, normalized, err));
    token->special = (uint8_t)special;
    token->single_word = (uint8_t)single_word;
    token->lstrip = (uint8_t)lstrip;
    token->rstrip = (uint8_t)rstrip;
out:
    return st;
}

/* A token of the model keeps its id; any other id must be free. */
static sy_status claim_id(sy_tokenizer *self, const sy_added_token *token, sy_error *err)
{
    const uint32_t model_id = sy_vocab_find(&self->vocab, token->text, token->n_bytes);
    sy_status st = SY_OK;

    if (model_id != SY_NO_ID && model_id != token->id) {
        return sy_error_set(err, SY_EINVAL,
                            "added_tokens: \"%.60s\" has the id %u, but %u in the vocabulary",
                            token->text, (unsigned)token->id, (unsigned)model_id);
    }
    if (model_id == SY_NO_ID) {
        st = sy_vocab_add(&self->vocab, token->id, token->text, token->n_bytes, 0);
    }
    if (st == SY_EEXISTS) {
        return sy_error_set(err, SY_EINVAL,
                            "added_tokens: the id %u of \"%.60s\" is another token's",
                            (unsigned)token->id, token->text);
    }
    if (st == SY_OK) self->vocab.token[token->id].special = token->special;
    return st;
}

/* Looked for in normalized text, a token is itself normalized first. */
static sy_status add_normalized(sy_tokenizer *self, sy_added_token *token, sy_strbuf buf[2],
                                sy_error *err)
{
    const char *text;
    size_t n;
    sy_status st = sy_norm_apply(&self->norm, buf, token->text, token->n_bytes, &text, &n, err);
    sy_strbuf copy;

    if (st != SY_OK) return st;
    if (n == 0) {
        return sy_error_set(err, SY_EINVAL,
                            "added_tokens: nothing of \"%.60s\" is left once normalized",
                            token->text);
    }
    sy_strbuf_init(&copy);
    sy_strbuf_append(&copy, text, n);
    token->text = copy.data;
    token->n_bytes = n;
    st = copy.failed ? SY_ENOMEM : sy_added_add(&self->normalized, token);
    sy_strbuf_free(&copy);
    return st;
}

/* An added token whose id is known; the model has it or not. */
static sy_status read_added_token(sy_tokenizer *self, json_t *item, uint32_t id, sy_strbuf buf[2],
                                  sy_error *err)
{
    const char *text;
    sy_added_token token;
    sy_strbuf copy;
    int normalized;
    sy_status st = SY_OK;

    memset(&token, 0, sizeof(token));
    sy_strbuf_init(&copy);
    token.id = id;
    SY_TRY(sy_json_text(item, "added_tokens", "content", &text, &token.n_bytes, err));
    SY_TRY(read_flags(item, &token, &normalized, err));
    sy_strbuf_append(&copy, text, token.n_bytes);
    st = SY_ENOMEM;
    if (copy.failed) goto out;
    token.text = copy.data;
    SY_TRY(claim_id(self, &token, err));
    st = normalized ? add_normalized(self, &token, buf, err) : sy_added_add(&self->raw, &token);
out:
    sy_strbuf_free(&copy);
    return st;
}

static sy_status read_added_item(sy_tokenizer *self, json_t *item, uint32_t limit, sy_strbuf buf[2],
                                 sy_error *err)
{
    const char *text;
    uint32_t id;
    size_t n;
    sy_status st = SY_OK;

    SY_TRY(sy_json_keys(item, "added_tokens",
                        "id content single_word lstrip rstrip normalized special", err));
    SY_TRY(sy_json_text(item, "added_tokens", "content", &text, &n, err));
    if (n == 0) goto out; /* the library this follows ignores it as well */
    SY_TRY(sy_json_id(json_object_get(item, "id"), "added_tokens", limit, &id, err));
    st = read_added_token(self, item, id, buf, err);
out:
    return st;
}

/* An entry of added_tokens_decoder: the id in decimal is the key. */
static sy_status read_decoder_item(sy_tokenizer *self, const char *key, json_t *item,
                                   uint32_t limit, sy_strbuf buf[2], sy_error *err)
{
    static const char where[] = "added_tokens_decoder";
    json_t *number;
    uint32_t id;
    const char *text;
    size_t n;
    sy_status st = SY_OK;

    SY_TRY(sy_json_keys(item, where, "content single_word lstrip rstrip normalized special", err));
    SY_TRY(sy_json_text(item, where, "content", &text, &n, err));
    number = json_loads(key, JSON_DECODE_ANY, NULL);
    st = sy_json_id(number, where, limit, &id, err);
    json_decref(number);
    if (st != SY_OK || n == 0) goto out;
    SY_TRY(read_added_token(self, item, id, buf, err));
    self->vocab.token[id].is_literal = 1;
out:
    return st;
}

static sy_status seal_added(sy_tokenizer *self, sy_error *err)
{
    sy_status st = sy_added_seal(&self->raw);

    if (st == SY_OK) st = sy_added_seal(&self->normalized);
    if (st != SY_EEXISTS) return st;
    return sy_error_set(err, SY_EINVAL, "added_tokens: two of them have the same text");
}

static sy_status read_added(sy_tokenizer *self, json_t *root, uint32_t limit, sy_error *err)
{
    sy_strbuf buf[2];
    json_t *list = NULL;
    sy_status st = SY_OK;

    sy_strbuf_init(&buf[0]);
    sy_strbuf_init(&buf[1]);
    if (!sy_json_absent(json_object_get(root, "added_tokens"))) {
        SY_TRY(sy_json_array(root, "tokenizer", "added_tokens", &list, err));
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        SY_TRY(read_added_item(self, json_array_get(list, i), limit, buf, err));
    }
    st = seal_added(self, err);
out:
    sy_strbuf_free(&buf[1]);
    sy_strbuf_free(&buf[0]);
    return st;
}

static sy_status read_decoder_items(sy_tokenizer *self, json_t *config, uint32_t limit,
                                    sy_error *err)
{
    json_t *map = json_object_get(config, "added_tokens_decoder");
    sy_strbuf buf[2];
    sy_status st = SY_OK;

    if (!sy_json_absent(map) && !json_is_object(map)) {
        return sy_error_set(err, SY_EINVAL, "added_tokens_decoder is not an object");
    }
    sy_strbuf_init(&buf[0]);
    sy_strbuf_init(&buf[1]);
    for (void *i = json_object_iter(map); i != NULL; i = json_object_iter_next(map, i)) {
        SY_TRY(read_decoder_item(self, json_object_iter_key(i), json_object_iter_value(i), limit,
                                 buf, err));
    }
    st = seal_added(self, err);
out:
    sy_strbuf_free(&buf[1]);
    sy_strbuf_free(&buf[0]);
    return st;
}

/* Appends the id that tokenizer_config.json's bos_token or eos_token names. */
static sy_status push_named(const sy_tokenizer *self, const json_t *config, const char *key,
                            sy_ids *ids, sy_error *err)
{
    const json_t *holder = config;
    const char *field = key, *text;
    size_t n;
    sy_status st;

    if (json_is_object(json_object_get(config, key))) {
        holder = json_object_get(config, key);
        field = "content";
    }
    st = sy_json_text(holder, "tokenizer_config.json", field, &text, &n, err);
    if (st != SY_OK) return st;
    for (uint32_t id = 0; id < self->vocab.n_ids; id++) {
        const sy_vocab_token *token = sy_vocab_get(&self->vocab, id);
        if (token != NULL && token->n_bytes == n &&
            memcmp(self->vocab.text + token->at, text, n) == 0) {
            return sy_ids_push(ids, id);
        }
    }
    return sy_error_set(err, SY_EINVAL, "tokenizer_config.json: %s \"%.60s\" is not a token", key,
                        text);
}

/* add_bos_token and add_eos_token, when one is there, replace the file's own post-processor. */
static sy_status read_ends(sy_tokenizer *self, const json_t *config, sy_error *err)
{
    static const char where[] = "tokenizer_config.json";
    int add_bos, add_eos;
    sy_status st = SY_OK;

    SY_TRY(sy_json_bool(config, where, "add_bos_token", -1, &add_bos, err));
    SY_TRY(sy_json_bool(config, where, "add_eos_token", -1, &add_eos, err));
    if (add_bos >= 0 || add_eos >= 0) {
        self->prefix.n = 0;
        self->suffix.n = 0;
        if (add_bos > 0) SY_TRY(push_named(self, config, "bos_token", &self->prefix, err));
        if (add_eos > 0) SY_TRY(push_named(self, config, "eos_token", &self->suffix, err));
    }
out:
    return st;
}

static sy_status load_config(json_t **config, const char *json, size_t n, sy_error *err)
{
    const sy_status st = sy_json_load(config, json, n, JSON_VALUES_MAX, err);

    if (st != SY_OK) sy_error_prefix(err, "tokenizer_config.json");
    return st;
}

static sy_status read_root(sy_tokenizer *self, json_t *root, uint32_t limit, sy_error *err)
{
    const char *version;
    size_t n;
    sy_status st = SY_OK;

    SY_TRY(sy_json_keys(root, "tokenizer",
                        "version truncation padding added_tokens normalizer pre_tokenizer "
                        "post_processor decoder model",
                        err));
    SY_TRY(sy_json_string(root, "tokenizer", "version", &version, &n, err));
    if (version != NULL && strcmp(version, "1.0") != 0) {
        return sy_error_set(err, SY_EINVAL, "the version \"%.60s\" is not supported, only 1.0",
                            version);
    }
    SY_TRY(read_model(self, json_object_get(root, "model"), limit, err));
    SY_TRY(sy_norm_read(&self->norm, json_object_get(root, "normalizer"), err));
    SY_TRY(sy_pretok_read(&self->pretok, json_object_get(root, "pre_tokenizer"), err));
    SY_TRY(sy_decoder_read(&self->decoder, json_object_get(root, "decoder"), err));
    SY_TRY(read_added(self, root, limit, err));
    SY_TRY(sy_post_read(self, json_object_get(root, "post_processor"), err));
out:
    return st;
}

sy_status sy_tokenizer_build(sy_tokenizer *self, const char *json, size_t n,
                             const char *config_json, size_t config_n, uint32_t vocab,
                             sy_error *err)
{
    json_t *root = NULL, *config = NULL;
    sy_status st = sy_json_load(&root, json, n, JSON_VALUES_MAX, err);

    if (st == SY_OK) st = read_root(self, root, SY_MIN(vocab, SY_TOKEN_ID_MAX), err);
    json_decref(root);
    if (st != SY_OK) {
        sy_error_prefix(err, "tokenizer.json");
        return st;
    }
    if (config_json == NULL) return SY_OK;
    SY_TRY(load_config(&config, config_json, config_n, err));
    st = read_ends(self, config, err);
out:
    json_decref(config);
    return st;
}

sy_status sy_tokenizer_build_ranks(sy_tokenizer *self, const char *ranks, size_t n,
                                   const char *config_json, size_t config_n, uint32_t vocab,
                                   sy_error *err)
{
    json_t *config = NULL;
    sy_status st = sy_tiktoken_read(self, ranks, n, SY_MIN(vocab, SY_TOKEN_ID_MAX), err);

    if (st != SY_OK) {
        sy_error_prefix(err, "tiktoken.model");
        return st;
    }
    if (config_json == NULL) return seal_added(self, err);
    SY_TRY(load_config(&config, config_json, config_n, err));
    st = read_decoder_items(self, config, SY_MIN(vocab, SY_TOKEN_ID_MAX), err);
    if (st == SY_OK) {
        st = read_ends(self, config, err);
    } else {
        sy_error_prefix(err, "tokenizer_config.json");
    }
out:
    json_decref(config);
    return st;
}
