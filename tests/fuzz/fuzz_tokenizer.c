/* fuzz_tokenizer.c - a tokenizer.json, or where it begins otherwise a tiktoken.model, up to the
 * first NUL byte, then a text. Whatever the file says, encoding and decoding must stay inside their
 * tables, and what is decoded must be UTF-8. */
#include "sy_tiktoken.h"
#include "sy_unicode.h"

#include <stdlib.h>
#include <string.h>

#define VOCAB          1024
#define TEXT_BYTES_MAX 4096 /* a pattern may cost a million steps a match; keeps a run short */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition)
{
    if (!condition) abort(); /* the fuzzer reports the input */
}

static void decode(const sy_tokenizer *tokenizer, const sy_ids *ids, int skip_special)
{
    sy_detok state = {0};
    sy_strbuf out;

    sy_strbuf_init(&out);
    for (size_t i = 0; i < ids->n; i++) {
        sy_tokenizer_decode(tokenizer, &state, ids->id[i], skip_special, &out);
        require(sy_utf8_check(out.data, out.len) == out.len);
    }
    sy_tokenizer_decode_end(tokenizer, &state, &out);
    require(sy_utf8_check(out.data, out.len) == out.len);
    sy_strbuf_free(&out);
}

static void encode_and_decode(const sy_tokenizer *tokenizer, const char *text, size_t n)
{
    sy_error err;

    for (int special = 0; special < 2; special++) {
        sy_ids ids = {0};
        if (sy_tokenizer_encode(tokenizer, &ids, text, n, special, &err) == SY_OK) {
            for (size_t i = 0; i < ids.n; i++) {
                require(ids.id[i] < VOCAB && sy_tokenizer_token(tokenizer, ids.id[i]) != NULL);
            }
        } else {
            require(ids.n == 0 && err.message[0] != '\0');
        }
        /* Any bytes are ids as well. */
        for (size_t i = 0; i < n && ids.n < TEXT_BYTES_MAX; i++) {
            if (sy_ids_push(&ids, (uint8_t)text[i]) != SY_OK) break;
        }
        decode(tokenizer, &ids, special);
        sy_ids_free(&ids);
    }
}

static sy_status parse(sy_tokenizer **out, const char *file, size_t n, sy_error *err)
{
    static const char config[] =
        "{\"add_bos_token\":true,\"bos_token\":\"<b>\",\"added_tokens_decoder\":"
        "{\"1000\":{\"content\":\"<b>\",\"special\":true},"
        "\"1001\":{\"content\":\"\u00E9 \",\"rstrip\":true}}}";

    if (n > 0 && file[0] != '{' && file[0] != '[') {
        return sy_tiktoken_parse(out, file, n, config, sizeof(config) - 1, VOCAB, err);
    }
    return sy_tokenizer_parse(out, file, n, NULL, 0, VOCAB, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size > 0 ? memchr(data, 0, size) : NULL;
    const size_t json_n = nul == NULL ? size : (size_t)(nul - data);
    const char *text = nul == NULL ? "" : (const char *)nul + 1;
    const size_t n = nul == NULL ? 0 : SY_MIN(size - json_n - 1, (size_t)TEXT_BYTES_MAX);
    sy_tokenizer *tokenizer;
    sy_error err;

    if (parse(&tokenizer, (const char *)data, json_n, &err) != SY_OK) {
        require(tokenizer == NULL && err.message[0] != '\0');
        return 0;
    }
    encode_and_decode(tokenizer, text, n);
    sy_tokenizer_close(tokenizer);
    return 0;
}
