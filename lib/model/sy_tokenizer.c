/* sy_tokenizer.c - the life of a tokenizer, and encoding: added tokens in the raw text, normalizer,
 * added tokens in the normalized text, pre-tokenizer, BPE, post-processor. */
#include "sy_file.h"
#include "sy_gguf_set.h"
#include "sy_gguf_tokenizer.h"
#include "sy_tiktoken.h"
#include "sy_tokenizer_impl.h"
#include "sy_unicode.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX  ((size_t)256 << 20)
#define RANKS_BYTES_MAX ((size_t)32 << 20) /* ten times a file of 160,000 tokens */
#define TEXT_BYTES_MAX  ((size_t)1 << 28)  /* positions fit 32 bits after any expansion */
#define PATH_BYTES      4096

/* One call's working memory, so that calls on other threads share nothing. */
typedef struct encoding {
    const sy_tokenizer *tokenizer;
    sy_ids *ids;
    sy_pretok_run run;
    sy_strbuf normal[2]; /* the normalizer's */
    sy_strbuf mapped;    /* a piece in byte-level characters */
    sy_bpe_scratch bpe;
    int special;
} encoding;

sy_status sy_ids_push(sy_ids *ids, uint32_t id)
{
    if (ids->n == ids->capacity) {
        const size_t larger = SY_MAX((size_t)64, 2 * ids->capacity);
        void *moved = realloc(ids->id, larger * sizeof(*ids->id));
        if (moved == NULL) return SY_ENOMEM;
        ids->id = moved;
        ids->capacity = larger;
    }
    ids->id[ids->n++] = id;
    return SY_OK;
}

void sy_ids_free(sy_ids *ids)
{
    free(ids->id);
    memset(ids, 0, sizeof(*ids));
}

void sy_tokenizer_close(sy_tokenizer *tokenizer)
{
    if (tokenizer == NULL) return;
    sy_ids_free(&tokenizer->suffix);
    sy_ids_free(&tokenizer->prefix);
    sy_decoder_free(&tokenizer->decoder);
    sy_added_free(&tokenizer->normalized);
    sy_added_free(&tokenizer->raw);
    sy_pretok_free(&tokenizer->pretok);
    sy_norm_free(&tokenizer->norm);
    sy_bpe_free(&tokenizer->bpe);
    sy_vocab_free(&tokenizer->vocab);
    free(tokenizer);
}

typedef sy_status build_fn(sy_tokenizer *self, const char *file, size_t n, const char *config_json,
                           size_t config_n, uint32_t vocab, sy_error *err);

static sy_status parse(sy_tokenizer **out, build_fn *build, const char *file, size_t n,
                       const char *config_json, size_t config_n, uint32_t vocab, sy_error *err)
{
    sy_tokenizer *self = calloc(1, sizeof(*self));
    sy_status st;

    *out = NULL;
    if (self == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for a tokenizer");
    sy_error_clear(err);
    st = build(self, file, n, config_json, config_n, vocab, err);
    if (st == SY_OK) {
        *out = self;
        return SY_OK;
    }
    if (st == SY_ENOMEM) (void)sy_error_set(err, st, "no memory for the tokenizer's tables");
    sy_tokenizer_close(self);
    return st;
}

sy_status sy_tokenizer_parse(sy_tokenizer **out, const char *json, size_t n,
                             const char *config_json, size_t config_n, uint32_t vocab,
                             sy_error *err)
{
    return parse(out, sy_tokenizer_build, json, n, config_json, config_n, vocab, err);
}

sy_status sy_tiktoken_parse(sy_tokenizer **out, const char *ranks, size_t n,
                            const char *config_json, size_t config_n, uint32_t vocab, sy_error *err)
{
    return parse(out, sy_tokenizer_build_ranks, ranks, n, config_json, config_n, vocab, err);
}

/* The tokenizer's own file: tokenizer.json, or tiktoken.model where there is none. */
static sy_status read_file(char **file, size_t *n, const char *dir, build_fn **build, sy_error *err)
{
    char json_path[PATH_BYTES], ranks_path[PATH_BYTES];
    sy_status st = SY_OK;

    SY_TRY(sy_path_join(json_path, sizeof(json_path), dir, "tokenizer.json"));
    SY_TRY(sy_path_join(ranks_path, sizeof(ranks_path), dir, "tiktoken.model"));
    if (!sy_file_exists(json_path) && sy_file_exists(ranks_path)) {
        *build = sy_tokenizer_build_ranks;
        return sy_file_read(file, n, ranks_path, RANKS_BYTES_MAX, err);
    }
    *build = sy_tokenizer_build;
    st = sy_file_read(file, n, json_path, FILE_BYTES_MAX, err);
out:
    return st;
}

/* A GGUF model holds its vocabulary itself. SY_ENOTFOUND: dir is none, or has a file of its own. */
static sy_status open_gguf(sy_tokenizer **out, const char *dir, uint32_t vocab, sy_error *err)
{
    static const char *const own[] = {"tokenizer.json", "tiktoken.model"};
    char path[PATH_MAX];
    sy_gguf_set *set = NULL;
    sy_strbuf json, config;
    sy_status st;

    for (size_t i = 0; i < SY_COUNT_OF(own); i++)
        if (sy_path_join(path, sizeof(path), dir, own[i]) == SY_OK && sy_file_exists(path))
            return SY_ENOTFOUND;
    st = sy_gguf_locate_file(path, dir, err);
    if (st != SY_OK) return st;
    sy_strbuf_init(&json);
    sy_strbuf_init(&config);
    SY_TRY(sy_gguf_set_open(&set, path, err));
    SY_TRY(sy_gguf_tokenizer(&json, &config, sy_gguf_set_metadata(set), err));
    st = parse(out, sy_tokenizer_build, json.data, json.len, config.data, config.len, vocab, err);
out:
    if (st != SY_OK) sy_error_prefix(err, "%s", path);
    sy_gguf_set_close(set);
    sy_strbuf_free(&json);
    sy_strbuf_free(&config);
    return st;
}

sy_status sy_tokenizer_open(sy_tokenizer **out, const char *dir, uint32_t vocab, sy_error *err)
{
    char path[PATH_BYTES], *file = NULL, *config = NULL;
    size_t n = 0, config_n = 0;
    build_fn *build = NULL;
    sy_status st;

    *out = NULL;
    st = open_gguf(out, dir, vocab, err);
    if (st != SY_ENOTFOUND) return st;
    sy_error_clear(err);
    st = sy_path_join(path, sizeof(path), dir, "tokenizer_config.json");
    if (st != SY_OK)
        return sy_error_set(err, st, "the name of the checkpoint's folder is too long");
    if (sy_file_exists(path)) SY_TRY(sy_file_read(&config, &config_n, path, FILE_BYTES_MAX, err));
    SY_TRY(read_file(&file, &n, dir, &build, err));
    st = parse(out, build, file, n, config, config_n, vocab, err);
    if (st != SY_OK) sy_error_prefix(err, "%s", dir);
out:
    free(config);
    free(file);
    return st;
}

size_t sy_tokenizer_vocab(const sy_tokenizer *tokenizer)
{
    return tokenizer->vocab.n_ids;
}

int sy_tokenizer_is_special(const sy_tokenizer *tokenizer, uint32_t id)
{
    const sy_vocab_token *token = sy_vocab_get(&tokenizer->vocab, id);
    return token != NULL && token->special;
}

const char *sy_tokenizer_token(const sy_tokenizer *tokenizer, uint32_t id)
{
    const sy_vocab_token *token = sy_vocab_get(&tokenizer->vocab, id);
    return token == NULL ? NULL : tokenizer->vocab.text + token->at;
}

/* Every byte of the piece as its printable character. */
static sy_status map_bytes(sy_strbuf *out, const char *s, size_t n)
{
    sy_strbuf_reset(out);
    for (size_t i = 0; i < n; i++) {
        char c[4];
        sy_strbuf_append(out, c, sy_utf8_put(c, sy_byte_to_char((uint8_t)s[i])));
    }
    return out->failed ? SY_ENOMEM : SY_OK;
}

static sy_status encode_piece(void *arg, const char *s, size_t n, sy_error *err)
{
    encoding *enc = arg;

    if (enc->tokenizer->pretok.byte_level) {
        const sy_status st = map_bytes(&enc->mapped, s, n);
        if (st != SY_OK) return st;
        s = enc->mapped.data;
        n = enc->mapped.len;
    }
    return sy_bpe_encode(&enc->tokenizer->bpe, &enc->bpe, enc->ids, s, n, err);
}

/* Pass 2, on the text between two raw added tokens. */
static sy_status encode_gap(encoding *enc, const char *s, size_t n, int at_start, sy_error *err)
{
    const sy_tokenizer *self = enc->tokenizer;
    sy_added_match match;
    sy_status st = SY_OK;

    SY_TRY(sy_norm_apply(&self->norm, enc->normal, s, n, &s, &n, err));
    sy_added_scan scan = {.set = &self->normalized, .s = s, .n = n, .special = enc->special};
    for (size_t from = 0;; from = scan.taken) {
        const int found = sy_added_next(&scan, &match);
        const size_t to = found ? match.from : n;
        if (from < to) {
            SY_TRY(sy_pretok_apply(&enc->run, s + from, to - from, at_start && from == 0, err));
        }
        if (!found) break;
        SY_TRY(sy_ids_push(enc->ids, match.token->id));
    }
out:
    return st;
}

static sy_status encode_text(encoding *enc, const char *s, size_t n, sy_error *err)
{
    const sy_tokenizer *self = enc->tokenizer;
    sy_added_scan scan = {.set = &self->raw, .s = s, .n = n, .special = enc->special};
    sy_added_match match;
    sy_status st = SY_OK;

    for (size_t from = 0;; from = scan.taken) {
        const int found = sy_added_next(&scan, &match);
        const size_t to = found ? match.from : n;
        if (from < to) SY_TRY(encode_gap(enc, s + from, to - from, from == 0, err));
        if (!found) break;
        SY_TRY(sy_ids_push(enc->ids, match.token->id));
    }
out:
    return st;
}

static sy_status append_ids(sy_ids *ids, const sy_ids *more)
{
    sy_status st = SY_OK;

    for (size_t i = 0; i < more->n && st == SY_OK; i++) st = sy_ids_push(ids, more->id[i]);
    return st;
}

static sy_status check_text(const char *text, size_t n, sy_error *err)
{
    const size_t bad = sy_utf8_check(text, n);

    if (n > TEXT_BYTES_MAX) {
        return sy_error_set(err, SY_ELIMIT, "the text has %zu bytes, more than %zu", n,
                            TEXT_BYTES_MAX);
    }
    if (bad == n) return SY_OK;
    return sy_error_set(err, SY_EINVAL, "the text is not UTF-8 at byte %zu (0x%02X)", bad,
                        (unsigned)(uint8_t)text[bad]);
}

sy_status sy_tokenizer_encode(const sy_tokenizer *tokenizer, sy_ids *ids, const char *text,
                              size_t n, sy_special special, sy_error *err)
{
    encoding enc = {.tokenizer = tokenizer, .ids = ids, .special = special != SY_SPECIAL_NONE};
    const size_t n_before = ids->n;
    sy_status st = check_text(text, n, err);

    if (st != SY_OK) return st;
    sy_pretok_run_init(&enc.run, &tokenizer->pretok);
    enc.run.piece = encode_piece;
    enc.run.arg = &enc;
    sy_strbuf_init(&enc.normal[0]);
    sy_strbuf_init(&enc.normal[1]);
    sy_strbuf_init(&enc.mapped);
    SY_TRY(sy_regex_scratch_open(&enc.run.regex));
    if (special == SY_SPECIAL_ALL) SY_TRY(append_ids(ids, &tokenizer->prefix));
    SY_TRY(encode_text(&enc, text, n, err));
    if (special == SY_SPECIAL_ALL) SY_TRY(append_ids(ids, &tokenizer->suffix));
out:
    sy_bpe_scratch_free(&enc.bpe);
    sy_strbuf_free(&enc.mapped);
    sy_strbuf_free(&enc.normal[1]);
    sy_strbuf_free(&enc.normal[0]);
    sy_regex_scratch_close(enc.run.regex);
    sy_pretok_run_free(&enc.run);
    if (st != SY_OK) ids->n = n_before;
    if (st == SY_ENOMEM) (void)sy_error_set(err, st, "no memory to encode %zu bytes", n);
    return st;
}

typedef struct piece_receiver {
    void (*piece)(void *arg, const char *s, size_t len);
    void *arg;
} piece_receiver;

static sy_status hand_over(void *arg, const char *s, size_t n, sy_error *err)
{
    const piece_receiver *receiver = arg;

    (void)err;
    receiver->piece(receiver->arg, s, n);
    return SY_OK;
}

sy_status sy_tokenizer_split(const sy_tokenizer *tokenizer, const char *text, size_t n,
                             void (*piece)(void *arg, const char *s, size_t len), void *arg,
                             sy_error *err)
{
    piece_receiver receiver = {.piece = piece, .arg = arg};
    sy_pretok_run run;
    sy_status st = check_text(text, n, err);

    if (st != SY_OK) return st;
    sy_pretok_run_init(&run, &tokenizer->pretok);
    run.piece = hand_over;
    run.arg = &receiver;
    SY_TRY(sy_regex_scratch_open(&run.regex));
    SY_TRY(sy_pretok_apply(&run, text, n, 1, err));
out:
    sy_regex_scratch_close(run.regex);
    sy_pretok_run_free(&run);
    if (st == SY_ENOMEM) (void)sy_error_set(err, st, "no memory to split %zu bytes", n);
    return st;
}
