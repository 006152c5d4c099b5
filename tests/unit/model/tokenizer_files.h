/* tokenizer_files.h - small tokenizers for tests, built as JSON, and calls that fail the test when
 * they fail. */
#ifndef TOKENIZER_FILES_H
#define TOKENIZER_FILES_H

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sy_tokenizer.h"

#define TEST_VOCAB 4096

static inline sy_tokenizer *parse_text(const char *json, const char *config)
{
    sy_tokenizer *tokenizer;
    sy_error err;
    const size_t config_n = config == NULL ? 0 : strlen(config);

    if (sy_tokenizer_parse(&tokenizer, json, strlen(json), config, config_n, TEST_VOCAB, &err) !=
        SY_OK) {
        fail_msg("%s", err.message);
    }
    return tokenizer;
}

/* Takes over the reference to root. */
static inline sy_tokenizer *parse_json(json_t *root, const char *config)
{
    char *text = json_dumps(root, 0);
    sy_tokenizer *tokenizer;

    assert_non_null(text);
    tokenizer = parse_text(text, config);
    free(text);
    json_decref(root);
    return tokenizer;
}

/* "Ā" for byte 0 and so on: GPT-2's printable characters, in the order of the bytes. out: [5]. */
static inline void byte_token(char *out, unsigned byte)
{
    unsigned c = byte, n_before = 0;

    for (unsigned b = 0; b < byte; b++) {
        n_before += b < 0x21 || (b > 0x7E && b < 0xA1) || b == 0xAD;
    }
    if (byte < 0x21 || (byte > 0x7E && byte < 0xA1) || byte == 0xAD) c = 0x100 + n_before;
    if (c < 0x80) {
        (void)snprintf(out, 5, "%c", (int)c);
    } else {
        (void)snprintf(out, 5, "%c%c", (int)(0xC0 | c >> 6), (int)(0x80 | (c & 0x3F)));
    }
}

/* A byte-level tokenizer whose token N is byte N, without merges. Takes over pre_tokenizer's
 * reference. */
static inline json_t *byte_level_json(json_t *pre_tokenizer)
{
    json_t *vocab = json_object();

    for (unsigned byte = 0; byte < 256; byte++) {
        char token[5];
        byte_token(token, byte);
        json_object_set_new(vocab, token, json_integer(byte));
    }
    return json_pack("{s:{s:s,s:o,s:[]},s:o,s:{s:s}}", "model", "type", "BPE", "vocab", vocab,
                     "merges", "pre_tokenizer", pre_tokenizer, "decoder", "type", "ByteLevel");
}

static inline json_t *split_json(const char *regex)
{
    return json_pack("{s:s,s:{s:s},s:s,s:b}", "type", "Split", "pattern", "Regex", regex,
                     "behavior", "Isolated", "invert", 0);
}

static inline json_t *byte_level_step(int use_regex)
{
    return json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", use_regex);
}

/* A Sequence of up to three Splits (NULL ends them) and a ByteLevel without a regex of its own. */
static inline json_t *sequence_json(const char *const regex[3])
{
    json_t *steps = json_array();

    for (size_t i = 0; i < 3 && regex[i] != NULL; i++) {
        json_array_append_new(steps, split_json(regex[i]));
    }
    json_array_append_new(steps, byte_level_step(0));
    return json_pack("{s:s,s:o}", "type", "Sequence", "pretokenizers", steps);
}

#define GPT2_WORDS   "'s|'t|'re|'ve|'m|'ll|'d"
#define QWEN2_START  "(?i:" GPT2_WORDS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define QWEN2_END    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define O200K_START  "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K_MIDDLE "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define KIMI_START   "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_MIDDLE  "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"

enum { GPT2, QWEN2, LLAMA3, O200K, DSV3, KIMI, N_KINDS };

/* How the families split text: Splits in sequence. */
static const char *const kind_regex[N_KINDS][3] = {
    {NULL}, /* ByteLevel's own */
    {QWEN2_START "\\p{N}" QWEN2_END},
    {QWEN2_START "\\p{N}{1,3}" QWEN2_END},
    {O200K_START "*" O200K_MIDDLE "+(?i:" GPT2_WORDS ")?|" O200K_START "+" O200K_MIDDLE
                 "*(?i:" GPT2_WORDS ")?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|"
                 "\\s+(?!\\S)|\\s+"},
    {"\\p{N}{1,3}", "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
     "[!\"#$%&'()*+,\\-./"
     ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
     " ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {"[\\p{Han}]+|" KIMI_START "*" KIMI_MIDDLE "+(?i:" GPT2_WORDS ")?|" KIMI_START "+" KIMI_MIDDLE
     "*(?i:" GPT2_WORDS ")?|\\p{N}{1,3}" QWEN2_END},
};

/* A byte-level tokenizer without merges that splits as that family does. */
static inline sy_tokenizer *open_kind(int kind)
{
    if (kind == GPT2) return parse_json(byte_level_json(byte_level_step(1)), NULL);
    return parse_json(byte_level_json(sequence_json(kind_regex[kind])), NULL);
}

static inline void encode_n(const sy_tokenizer *tokenizer, sy_ids *ids, const char *text, size_t n,
                            int special)
{
    sy_error err;

    if (sy_tokenizer_encode(tokenizer, ids, text, n, special, &err) != SY_OK) {
        fail_msg("%s", err.message);
    }
}

/* want: ids in decimal, separated by single spaces. */
static inline void assert_encodes(const sy_tokenizer *tokenizer, const char *text, int special,
                                  const char *want)
{
    sy_ids ids = {0};
    sy_strbuf got;

    sy_strbuf_init(&got);
    encode_n(tokenizer, &ids, text, strlen(text), special);
    for (size_t i = 0; i < ids.n; i++) sy_strbuf_printf(&got, i == 0 ? "%u" : " %u", ids.id[i]);
    assert_string_equal(got.data, want);
    sy_strbuf_free(&got);
    sy_ids_free(&ids);
}

static inline void decode_all(const sy_tokenizer *tokenizer, const uint32_t *id, size_t n,
                              int skip_special, sy_strbuf *out)
{
    sy_detok state = {0};

    for (size_t i = 0; i < n; i++) {
        sy_tokenizer_decode(tokenizer, &state, id[i], skip_special, out);
    }
    sy_tokenizer_decode_end(tokenizer, &state, out);
}

static inline void assert_decodes(const sy_tokenizer *tokenizer, const uint32_t *id, size_t n,
                                  int skip_special, const char *want)
{
    sy_strbuf out;

    sy_strbuf_init(&out);
    decode_all(tokenizer, id, n, skip_special, &out);
    assert_string_equal(out.data, want);
    sy_strbuf_free(&out);
}

#endif
