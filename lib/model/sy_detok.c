/* sy_detok.c - decoding, one token at a time. A token becomes bytes, the bytes become characters as
 * soon as they are complete, and a character goes out for good. */
#include "sy_tokenizer_impl.h"
#include "sy_unicode.h"

#include <stdlib.h>
#include <string.h>

#define REPLACEMENT "\xEF\xBF\xBD"

void sy_decoder_free(sy_decoder *decoder)
{
    for (size_t i = 0; i < decoder->n_replaces; i++) {
        free(decoder->replace[i].from);
        free(decoder->replace[i].to);
    }
    memset(decoder, 0, sizeof(*decoder));
}

/* A whole character of the text: the strip takes it or it goes out. `started` counts what was
 * stripped, and is strip_start once something else has come. */
static void put_character(const sy_decoder *decoder, sy_detok *state, const void *c, size_t n,
                          sy_strbuf *out)
{
    if (decoder->strip_start > 0 && state->started < decoder->strip_start) {
        if (n == decoder->strip_bytes && memcmp(c, decoder->strip, n) == 0) {
            state->started++;
            return;
        }
        state->started = decoder->strip_start;
    }
    sy_strbuf_append(out, c, n);
}

/* Every maximal beginning of a character that does not go on as one becomes one U+FFFD. */
static void put_byte(const sy_decoder *decoder, sy_detok *state, uint8_t byte, sy_strbuf *out)
{
    state->tail[state->n_tail++] = byte;
    switch (sy_utf8_state(state->tail, state->n_tail)) {
    case 0: return;
    case 1: put_character(decoder, state, state->tail, state->n_tail, out); break;
    default:
        put_character(decoder, state, REPLACEMENT, 3, out);
        if (state->n_tail > 1) {
            /* This byte ended a character before its time; it may begin the next one. */
            state->n_tail = 0;
            put_byte(decoder, state, byte, out);
            return;
        }
        break;
    }
    state->n_tail = 0;
}

static void put_bytes(const sy_decoder *decoder, sy_detok *state, const char *s, size_t n,
                      sy_strbuf *out)
{
    for (size_t i = 0; i < n; i++) put_byte(decoder, state, (uint8_t)s[i], out);
}

static void decode_byte_level(const sy_decoder *decoder, sy_detok *state, const char *s, size_t n,
                              int is_literal, sy_strbuf *out)
{
    int all_mapped = !is_literal;

    for (size_t i = 0; i < n && all_mapped;) {
        all_mapped = sy_char_to_byte(sy_utf8_next(s, &i)) >= 0;
    }
    if (!all_mapped) {
        put_bytes(decoder, state, s, n, out); /* an added token, spelt as it is */
        return;
    }
    for (size_t i = 0; i < n;) {
        put_byte(decoder, state, (uint8_t)sy_char_to_byte(sy_utf8_next(s, &i)), out);
    }
}

static void decode_metaspace(const sy_decoder *decoder, sy_detok *state, const char *s, size_t n,
                             sy_strbuf *out)
{
    const sy_norm_step *replace = &decoder->replace[0];
    const int drops = !state->started && !decoder->keeps_first;
    sy_strbuf text;

    sy_strbuf_init(&text);
    sy_norm_replace(&text, s, n, replace->from, replace->from_bytes, replace->to,
                    drops ? 0 : replace->to_bytes);
    put_bytes(decoder, state, text.data, text.len, out);
    if (text.failed) out->failed = 1;
    sy_strbuf_free(&text);
    state->started = 1;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The byte that "<0xHH>" stands for, or -1. */
static int fallback_byte(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    if (hex_value(s[3]) < 0 || hex_value(s[4]) < 0) return -1;
    return hex_value(s[3]) * 16 + hex_value(s[4]);
}

static void decode_sequence(const sy_decoder *decoder, sy_detok *state, const char *s, size_t n,
                            sy_strbuf *out)
{
    sy_strbuf text[2];
    int byte;

    sy_strbuf_init(&text[0]);
    sy_strbuf_init(&text[1]);
    for (size_t i = 0; i < decoder->n_replaces; i++) {
        const sy_norm_step *replace = &decoder->replace[i];
        sy_strbuf *next = &text[i % 2];
        sy_strbuf_reset(next);
        sy_norm_replace(next, s, n, replace->from, replace->from_bytes, replace->to,
                        replace->to_bytes);
        if (next->failed) out->failed = 1;
        s = next->data;
        n = next->len;
    }
    byte = decoder->byte_fallback ? fallback_byte(s, n) : -1;
    if (byte >= 0) {
        put_byte(decoder, state, (uint8_t)byte, out);
    } else {
        put_bytes(decoder, state, s, n, out);
    }
    sy_strbuf_free(&text[1]);
    sy_strbuf_free(&text[0]);
}

void sy_tokenizer_decode(const sy_tokenizer *tokenizer, sy_detok *state, uint32_t id,
                         int skip_special, sy_strbuf *out)
{
    const sy_decoder *decoder = &tokenizer->decoder;
    const sy_vocab_token *token = sy_vocab_get(&tokenizer->vocab, id);

    if (token == NULL || (skip_special && token->special)) return;
    const char *s = tokenizer->vocab.text + token->at;
    switch (decoder->kind) {
    case SY_DECODER_NONE:
        if (state->started) put_bytes(decoder, state, " ", 1, out);
        state->started = 1;
        put_bytes(decoder, state, s, token->n_bytes, out);
        break;
    case SY_DECODER_BYTE_LEVEL:
        decode_byte_level(decoder, state, s, token->n_bytes, token->is_literal, out);
        break;
    case SY_DECODER_METASPACE: decode_metaspace(decoder, state, s, token->n_bytes, out); break;
    case SY_DECODER_SEQUENCE: decode_sequence(decoder, state, s, token->n_bytes, out); break;
    }
}

void sy_tokenizer_decode_end(const sy_tokenizer *tokenizer, sy_detok *state, sy_strbuf *out)
{
    if (state->n_tail > 0) put_character(&tokenizer->decoder, state, REPLACEMENT, 3, out);
    state->n_tail = 0;
}
