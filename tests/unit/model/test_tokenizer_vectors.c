/* Replays tests/golden/tokenizer: what Hugging Face's `tokenizers` made of the same texts with the
 * same tokenizer.json (tests/support/make_tokenizer_vectors.py). */
#include "sy_file.h"
#include "sy_tokenizer.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FOLDER      SY_SOURCE_DIR "/tests/golden/tokenizer/"
#define VOCAB       65536
#define BYTES_MAX   ((size_t)4 << 20)
#define MESSAGE_MAX 64 /* ids printed of a failing case */

static json_t *load(const char *name)
{
    char path[1024], *text;
    size_t n;
    json_error_t why;
    sy_error err;
    json_t *root;

    (void)snprintf(path, sizeof(path), FOLDER "%s.json", name);
    if (sy_file_read(&text, &n, path, BYTES_MAX, &err) != SY_OK) fail_msg("%s", err.message);
    root = json_loadb(text, n, JSON_ALLOW_NUL, &why);
    free(text);
    if (root == NULL) fail_msg("%s: %s", path, why.text);
    return root;
}

static sy_tokenizer *open_tokenizer(const json_t *json)
{
    char *text = json_dumps(json, JSON_COMPACT);
    sy_tokenizer *tokenizer;
    sy_error err;

    assert_non_null(text);
    if (sy_tokenizer_parse(&tokenizer, text, strlen(text), NULL, 0, VOCAB, &err) != SY_OK) {
        fail_msg("%s", err.message);
    }
    free(text);
    return tokenizer;
}

static void print_ids(const char *what, const sy_ids *got, const json_t *want)
{
    print_message("%s, got:", what);
    for (size_t i = 0; i < SY_MIN(got->n, MESSAGE_MAX); i++) print_message(" %u", got->id[i]);
    print_message("\nwant:");
    for (size_t i = 0; i < SY_MIN(json_array_size(want), MESSAGE_MAX); i++) {
        print_message(" %lld", json_integer_value(json_array_get(want, i)));
    }
    print_message("\n");
}

static int same_ids(const sy_ids *got, const json_t *want)
{
    if (got->n != json_array_size(want)) return 0;
    for (size_t i = 0; i < got->n; i++) {
        if (got->id[i] != json_integer_value(json_array_get(want, i))) return 0;
    }
    return 1;
}

/* Returns the number of failures: 0 or 1. */
static int check_encode(const sy_tokenizer *tokenizer, const json_t *text, const json_t *want,
                        int special)
{
    sy_ids ids = {0};
    sy_error err;
    int failed = 0;

    if (sy_tokenizer_encode(tokenizer, &ids, json_string_value(text), json_string_length(text),
                            special, &err) != SY_OK) {
        fail_msg("%s", err.message);
    }
    if (!same_ids(&ids, want)) {
        print_message("\"%s\" (special %d)\n", json_string_value(text), special);
        print_ids("encode", &ids, want);
        failed = 1;
    }
    sy_ids_free(&ids);
    return failed;
}

static int check_decode(const sy_tokenizer *tokenizer, const json_t *ids, const json_t *want,
                        int skip_special)
{
    sy_detok state = {0};
    sy_strbuf out;
    int failed;

    sy_strbuf_init(&out);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const uint32_t id = (uint32_t)json_integer_value(json_array_get(ids, i));
        sy_tokenizer_decode(tokenizer, &state, id, skip_special, &out);
    }
    sy_tokenizer_decode_end(tokenizer, &state, &out);
    failed = out.len != json_string_length(want) ||
             memcmp(out.data, json_string_value(want), out.len) != 0;
    if (failed) {
        print_message("decode (skip_special %d): got \"%s\", want \"%s\"\n", skip_special, out.data,
                      json_string_value(want));
    }
    sy_strbuf_free(&out);
    return failed;
}

static int check_both_decodes(const sy_tokenizer *tokenizer, const json_t *item)
{
    const json_t *want = json_object_get(item, "decoded");
    int failed = 0;

    if (want == NULL) return 0; /* the script says for which tokens there is no reference */
    for (int skip = 0; skip < 2; skip++) {
        failed += check_decode(tokenizer, json_object_get(item, "ids"),
                               json_array_get(want, (size_t)skip), skip);
    }
    return failed;
}

static void replay(const char *name)
{
    json_t *root = load(name);
    sy_tokenizer *tokenizer = open_tokenizer(json_object_get(root, "tokenizer"));
    const json_t *encode = json_object_get(root, "encode");
    const json_t *decode = json_object_get(root, "decode");
    int failed = 0;

    assert_true(json_array_size(encode) > 80);
    for (size_t i = 0; i < json_array_size(encode); i++) {
        const json_t *item = json_array_get(encode, i);
        const json_t *text = json_object_get(item, "text");
        const json_t *ids = json_object_get(item, "ids");
        const json_t *plain = json_object_get(item, "plain");
        failed += check_encode(tokenizer, text, ids, 1);
        failed += check_encode(tokenizer, text, plain == NULL ? ids : plain, 0);
        failed += check_both_decodes(tokenizer, item);
    }
    for (size_t i = 0; i < json_array_size(decode); i++) {
        failed += check_both_decodes(tokenizer, json_array_get(decode, i));
    }
    sy_tokenizer_close(tokenizer);
    json_decref(root);
    if (failed > 0) fail_msg("%s: %d differences", name, failed);
}

#define REPLAY(name)                                           \
    static void name##_agrees_with_the_reference(void **state) \
    {                                                          \
        (void)state;                                           \
        replay(#name);                                         \
    }
REPLAY(gpt2)
REPLAY(gpt2_prefix_space)
REPLAY(qwen2)
REPLAY(llama3)
REPLAY(o200k)
REPLAY(deepseek_v2)
REPLAY(deepseek_v3)
REPLAY(granite)
REPLAY(metaspace_first)
REPLAY(metaspace_fused_unk)
REPLAY(metaspace_single_unk)
REPLAY(legacy_partial_bytes)
REPLAY(no_unk_no_decoder)
REPLAY(nfc)

static void keep_piece(void *arg, const char *s, size_t len)
{
    json_t *pieces = arg;

    json_array_append_new(pieces, json_stringn(s, len));
}

static int check_split(const json_t *step, const json_t *text, const json_t *want)
{
    json_t *root = json_pack("{s:{s:s,s:{},s:[]},s:O}", "model", "type", "BPE", "vocab", "merges",
                             "pre_tokenizer", step);
    sy_tokenizer *tokenizer = open_tokenizer(root);
    json_t *got = json_array();
    sy_error err;
    int failed;

    if (sy_tokenizer_split(tokenizer, json_string_value(text), json_string_length(text), keep_piece,
                           got, &err) != SY_OK) {
        fail_msg("%s", err.message);
    }
    failed = !json_equal(got, want);
    if (failed) {
        char *shown[3] = {json_dumps(step, 0), json_dumps(got, 0), json_dumps(want, 0)};
        print_message("%s on \"%s\"\n got %s\nwant %s\n", shown[0], json_string_value(text),
                      shown[1], shown[2]);
        for (size_t i = 0; i < 3; i++) free(shown[i]);
    }
    json_decref(got);
    sy_tokenizer_close(tokenizer);
    json_decref(root);
    return failed;
}

static void splits_agree_with_the_reference(void **state)
{
    json_t *root = load("splits");
    const json_t *texts = json_object_get(root, "texts");
    const json_t *cases = json_object_get(root, "cases");
    int failed = 0;

    (void)state;
    assert_true(json_array_size(cases) > 80);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *item = json_array_get(cases, i);
        const json_t *pieces = json_object_get(item, "pieces");
        for (size_t k = 0; k < json_array_size(texts); k++) {
            failed += check_split(json_object_get(item, "pre_tokenizer"), json_array_get(texts, k),
                                  json_array_get(pieces, k));
        }
    }
    json_decref(root);
    if (failed > 0) fail_msg("%d differences", failed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_agrees_with_the_reference),
        cmocka_unit_test(gpt2_prefix_space_agrees_with_the_reference),
        cmocka_unit_test(qwen2_agrees_with_the_reference),
        cmocka_unit_test(llama3_agrees_with_the_reference),
        cmocka_unit_test(o200k_agrees_with_the_reference),
        cmocka_unit_test(deepseek_v2_agrees_with_the_reference),
        cmocka_unit_test(deepseek_v3_agrees_with_the_reference),
        cmocka_unit_test(granite_agrees_with_the_reference),
        cmocka_unit_test(metaspace_first_agrees_with_the_reference),
        cmocka_unit_test(metaspace_fused_unk_agrees_with_the_reference),
        cmocka_unit_test(metaspace_single_unk_agrees_with_the_reference),
        cmocka_unit_test(legacy_partial_bytes_agrees_with_the_reference),
        cmocka_unit_test(no_unk_no_decoder_agrees_with_the_reference),
        cmocka_unit_test(nfc_agrees_with_the_reference),
        cmocka_unit_test(splits_agree_with_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
