/* sy_tiktoken.c - from ranks to the same model that tokenizer.json makes. tiktoken merges the two
 * neighbours whose joined bytes have the lowest rank: each way to cut a token into two tokens is a
 * merge of that token's rank. */
#include "sy_tiktoken.h"
#include "sy_tokenizer_impl.h"
#include "sy_unicode.h"

#include <stdlib.h>
#include <string.h>

#define TOKEN_BYTES_MAX 512u /* four times the longest of published files */
#define MERGES_MAX      ((size_t)8 << 20)

#define WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
static const char kimi_pattern[] =
    "[\\p{Han}]+"
    "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" WORDS "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
    "*" WORDS "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

typedef struct rank_line {
    uint8_t token[TOKEN_BYTES_MAX];
    size_t n_bytes;
    uint32_t rank;
} rank_line;

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+') return 62;
    return c == '/' ? 63 : -1;
}

/* Whole groups of four, padded at the end; bits that padding leaves over must be 0. */
static int decode_base64(rank_line *line, const char *s, size_t n)
{
    size_t n_pad = 0;
    uint32_t bits = 0;

    if (n == 0 || n % 4 != 0) return 0;
    while (n_pad < 2 && s[n - 1 - n_pad] == '=') n_pad++;
    for (size_t i = 0; i < n; i++) {
        const int value = i < n - n_pad ? base64_value(s[i]) : 0;
        if (value < 0) return 0;
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 != 3) continue;
        const size_t n_here = i == n - 1 ? 3 - n_pad : 3;
        for (size_t k = 0; k < n_here; k++) {
            line->token[line->n_bytes++] = (uint8_t)(bits >> (16 - 8 * k));
        }
        if (n_here < 3 && (bits & ((1u << (8 * n_pad)) - 1)) != 0) return 0;
        bits = 0;
    }
    return 1;
}

static int decode_rank(rank_line *line, const char *s, size_t n)
{
    uint64_t rank = 0;

    if (n == 0 || n > 10) return 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return 0;
        rank = rank * 10 + (uint64_t)(s[i] - '0');
    }
    if (rank > UINT32_MAX) return 0;
    line->rank = (uint32_t)rank;
    return 1;
}

static sy_status read_line(rank_line *line, const char *s, size_t n, size_t line_id, sy_error *err)
{
    const char *space = memchr(s, ' ', n);
    const size_t token_bytes = space == NULL ? n : (size_t)(space - s);

    line->n_bytes = 0;
    line->rank = 0;
    if (token_bytes / 4 > TOKEN_BYTES_MAX / 3) {
        return sy_error_set(err, SY_ELIMIT, "line %zu: a token of more than %u bytes", line_id,
                            TOKEN_BYTES_MAX);
    }
    if (space == NULL || !decode_base64(line, s, token_bytes)) {
        return sy_error_set(err, SY_EINVAL, "line %zu does not begin with base64 and one space",
                            line_id);
    }
    if (!decode_rank(line, space + 1, n - token_bytes - 1)) {
        return sy_error_set(err, SY_EINVAL, "line %zu does not end with a rank", line_id);
    }
    return SY_OK;
}

/* Bytes in the vocabulary's spelling. */
static sy_status spell(sy_strbuf *out, const uint8_t *bytes, size_t n)
{
    sy_strbuf_reset(out);
    for (size_t i = 0; i < n; i++) {
        char c[4];
        sy_strbuf_append(out, c, sy_utf8_put(c, sy_byte_to_char(bytes[i])));
    }
    return out->failed ? SY_ENOMEM : SY_OK;
}

static sy_status add_rank(sy_tokenizer *self, const rank_line *line, size_t line_id, uint32_t limit,
                          sy_strbuf *text, sy_error *err)
{
    sy_status st = spell(text, line->token, line->n_bytes);

    if (st != SY_OK) return st;
    if (line->rank >= limit) {
        return sy_error_set(err, SY_EINVAL, "line %zu: the rank %u is past the vocabulary of %u",
                            line_id, (unsigned)line->rank, (unsigned)limit);
    }
    if (sy_vocab_find(&self->vocab, text->data, text->len) != SY_NO_ID) {
        return sy_error_set(err, SY_EINVAL, "line %zu: the token \"%.60s\" was there before",
                            line_id, text->data);
    }
    st = sy_vocab_add(&self->vocab, line->rank, text->data, text->len, 1);
    if (st == SY_EEXISTS) {
        st = sy_error_set(err, SY_EINVAL, "line %zu: the rank %u was there before", line_id,
                          (unsigned)line->rank);
    }
    return st;
}

static size_t count_lines(const char *s, size_t n)
{
    size_t n_lines = 1;

    for (size_t i = 0; i < n; i++) n_lines += s[i] == '\n';
    return n_lines;
}

static sy_status read_ranks(sy_tokenizer *self, const char *s, size_t n, uint32_t limit,
                            sy_strbuf *text, sy_error *err)
{
    sy_status st = SY_OK;
    size_t line_id = 1;

    SY_TRY(sy_vocab_reserve(&self->vocab, count_lines(s, n)));
    for (size_t from = 0; from < n; line_id++) {
        const char *newline = memchr(s + from, '\n', n - from);
        const size_t end = newline == NULL ? n : (size_t)(newline - s);
        const size_t to = end > from && s[end - 1] == '\r' ? end - 1 : end;
        rank_line line;
        if (to > from) {
            SY_TRY(read_line(&line, s + from, to - from, line_id, err));
            SY_TRY(add_rank(self, &line, line_id, limit, text, err));
        }
        from = end + 1;
    }
out:
    return st;
}

static sy_status check_ranks(const sy_tokenizer *self, sy_strbuf *text, sy_error *err)
{
    for (uint32_t rank = 0; rank < self->vocab.n_ids; rank++) {
        if (sy_vocab_get(&self->vocab, rank) == NULL) {
            return sy_error_set(err, SY_EINVAL, "no token has the rank %u", (unsigned)rank);
        }
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        const sy_status st = spell(text, &(uint8_t){(uint8_t)byte}, 1);
        if (st != SY_OK) return st;
        if (sy_vocab_find(&self->vocab, text->data, text->len) == SY_NO_ID) {
            return sy_error_set(err, SY_EINVAL, "the byte 0x%02X has no token of its own", byte);
        }
    }
    return SY_OK;
}

/* Every way to cut the token into two tokens; adds them when the table is open, else counts. */
static sy_status cut_token(sy_tokenizer *self, uint32_t id, int adds, size_t *n_merges,
                           sy_error *err)
{
    const sy_vocab_token *token = &self->vocab.token[id];
    const char *s = self->vocab.text + token->at;

    for (size_t i = 0; i < token->n_bytes;) {
        (void)sy_utf8_next(s, &i);
        if (i == token->n_bytes) break;
        sy_bpe_merge merge = {.rank = id, .merged = id};
        merge.left = sy_vocab_find(&self->vocab, s, i);
        if (merge.left == SY_NO_ID) continue;
        merge.right = sy_vocab_find(&self->vocab, s + i, token->n_bytes - i);
        if (merge.right == SY_NO_ID) continue;
        if (++*n_merges > MERGES_MAX) {
            return sy_error_set(err, SY_ELIMIT, "the ranks make more than %zu merges", MERGES_MAX);
        }
        if (adds) sy_bpe_add_merge(&self->bpe, &merge);
    }
    return SY_OK;
}

static sy_status make_merges(sy_tokenizer *self, sy_error *err)
{
    const uint32_t n_ranks = (uint32_t)self->vocab.n_ids;
    size_t n_merges = 0, n_added = 0;
    sy_status st = SY_OK;

    for (uint32_t id = 0; id < n_ranks; id++) SY_TRY(cut_token(self, id, 0, &n_merges, err));
    SY_TRY(sy_bpe_open(&self->bpe, &self->vocab, n_merges));
    self->bpe.ignore_merges = 1;
    for (uint32_t id = 0; id < n_ranks; id++) SY_TRY(cut_token(self, id, 1, &n_added, err));
out:
    return st;
}

sy_status sy_tiktoken_read(sy_tokenizer *self, const char *ranks, size_t n, uint32_t limit,
                           sy_error *err)
{
    sy_pretok_step *split = &self->pretok.step[0];
    sy_status st = SY_OK;
    sy_strbuf text;

    sy_strbuf_init(&text);
    SY_TRY(read_ranks(self, ranks, n, limit, &text, err));
    SY_TRY(check_ranks(self, &text, err));
    SY_TRY(make_merges(self, err));
    self->pretok.n_steps = 1;
    self->pretok.byte_level = 1;
    split->kind = SY_PRETOK_SPLIT;
    split->pattern = SY_SPLIT_REGEX;
    split->behavior = SY_SPLIT_ISOLATED;
    SY_TRY(sy_regex_open(&split->regex, kimi_pattern, sizeof(kimi_pattern) - 1, err));
    self->decoder.kind = SY_DECODER_BYTE_LEVEL;
out:
    sy_strbuf_free(&text);
    return st;
}
