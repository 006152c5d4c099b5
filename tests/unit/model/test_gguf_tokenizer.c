/* test_gguf_tokenizer.c - vocabularies of GGUF files as tokenizers that encode. */
#include "gguf_files.h"

#include "sy_gguf_tokenizer.h"
#include "sy_tokenizer.h"

#include <jansson.h>

static char dir[4096];

static int setup(void **state)
{
    (void)state;
    temp_dir_make(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    temp_dir_remove(dir);
    return 0;
}

static const char *file_path(void)
{
    return in_dir(dir, "model.gguf");
}

/* Ends m. */
static sy_tokenizer *tokenizer_of(made_gguf *m, char **config)
{
    sy_gguf_set *set = open_made(m, file_path());
    sy_strbuf json, settings;
    sy_tokenizer *tokenizer;
    sy_error err;

    made_free(m);
    sy_strbuf_init(&json);
    sy_strbuf_init(&settings);
    expect_ok(sy_gguf_tokenizer(&json, &settings, sy_gguf_set_metadata(set), &err), &err);
    if (sy_tokenizer_parse(&tokenizer, json.data, json.len, settings.data, settings.len, 65536,
                           &err) != SY_OK)
        fail_msg("%s\n%s\n%s", err.message, json.data, settings.data);
    sy_gguf_set_close(set);
    sy_strbuf_free(&json);
    if (config != NULL)
        *config = sy_strbuf_detach(&settings);
    else
        sy_strbuf_free(&settings);
    return tokenizer;
}

static void refuse_tokenizer(made_gguf *m, sy_status wanted, const char *part)
{
    sy_gguf_set *set = open_made(m, file_path());
    sy_strbuf json, settings;
    sy_error err;

    made_free(m);
    sy_strbuf_init(&json);
    sy_strbuf_init(&settings);
    assert_int_equal(sy_gguf_tokenizer(&json, &settings, sy_gguf_set_metadata(set), &err), wanted);
    expect_text(err.message, part);
    assert_int_equal(err.status, wanted);
    sy_gguf_set_close(set);
    sy_strbuf_free(&json);
    sy_strbuf_free(&settings);
}

static void expect_ids(const sy_tokenizer *tokenizer, const char *text, const uint32_t *ids,
                       size_t n)
{
    sy_ids got = {0};
    sy_error err;

    expect_ok(sy_tokenizer_encode(tokenizer, &got, text, strlen(text), 1, &err), &err);
    if (got.n != n || memcmp(got.id, ids, n * sizeof(*ids)) != 0) {
        print_message("\"%s\" gives", text);
        for (size_t i = 0; i < got.n; i++) print_message(" %u", got.id[i]);
        fail_msg("where others are wanted");
    }
    sy_ids_free(&got);
}

#define IDS(...) (const uint32_t[]){__VA_ARGS__}, SY_COUNT_OF(((const uint32_t[]){__VA_ARGS__}))

/* "\u0120" is how byte-level vocabularies write a space. */
static void make_gpt2(made_gguf *m, const char *pre)
{
    static const char *const tokens[] = {"a", "b",  "ab",      "\u0120",  "\u0120ab",
                                         "1", "12", "<|end|>", "<think>", "[PAD9]"};
    static const int32_t types[] = {1, 1, 1, 1, 1, 1, 1, 3, 4, 5};
    static const char *const merges[] = {"a b", "\u0120 ab", "1 1"};

    make_gguf(m);
    add_string(m, "tokenizer.ggml.model", "gpt2");
    add_string(m, "tokenizer.ggml.pre", pre);
    add_strings(m, "tokenizer.ggml.tokens", tokens, 10);
    add_array(m, "tokenizer.ggml.token_type", SY_GGUF_KIND_I32, types, 10, 4);
    add_strings(m, "tokenizer.ggml.merges", merges, 2);
    add_u32(m, "tokenizer.ggml.bos_token_id", 7);
    add_u32(m, "tokenizer.ggml.eos_token_id", 7);
}

static void byte_level_vocabularies_encode_as_before(void **state)
{
    static const char *const names[] = {
        "gpt-2",      "olmo",    "refact",       "qwen2",       "llama-bpe", "glm4",  "gpt-4o",
        "minimax-m2", "hunyuan", "deepseek-llm", "deepseek-v3", "kimi-k2",   "llama4"};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(names); i++) {
        made_gguf m;
        sy_tokenizer *tokenizer;
        char *config;

        make_gpt2(&m, names[i]);
        add_bool(&m, "tokenizer.ggml.add_bos_token", 0);
        add_string(&m, "tokenizer.chat_template", "{{ \"x\" }}");
        tokenizer = tokenizer_of(&m, &config);
        expect_ids(tokenizer, "ab ab<|end|>b<think>", IDS(2, 4, 7, 1, 8));
        assert_true(sy_tokenizer_is_special(tokenizer, 7));
        assert_false(sy_tokenizer_is_special(tokenizer, 8));
        assert_null(sy_tokenizer_token(tokenizer, 9)); /* padding */
        expect_text(config, "\"chat_template\": \"{{ \\\"x\\\" }}\"");
        expect_text(config, "\"eos_token\": \"<|end|>\"");
        sy_tokenizer_close(tokenizer);
        free(config);
    }
}

static json_t *pre_of_golden(const char *name)
{
    char path[1024];
    json_error_t why;
    json_t *root, *pre;

    snprintf(path, sizeof(path), SY_SOURCE_DIR "/tests/golden/tokenizer/%s.json", name);
    root = json_load_file(path, JSON_ALLOW_NUL, &why);
    if (root == NULL) fail_msg("%s: %s", path, why.text);
    pre = json_incref(json_object_get(json_object_get(root, "tokenizer"), "pre_tokenizer"));
    json_decref(root);
    return pre;
}

/* Those files' pieces are compared with Hugging Face's elsewhere. */
static void pre_tokenizers_are_those_of_the_families_files(void **state)
{
    static const char *const cases[][2] = {{"qwen2", "qwen2"},
                                           {"llama-bpe", "llama3"},
                                           {"gpt-4o", "o200k"},
                                           {"deepseek-v3", "deepseek_v3"},
                                           {"refact", "granite"}};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        json_t *want = pre_of_golden(cases[i][1]);
        json_t *got;
        made_gguf m;
        sy_gguf_set *set;
        sy_strbuf json, config;
        sy_error err;

        make_gpt2(&m, cases[i][0]);
        set = open_made(&m, file_path());
        made_free(&m);
        sy_strbuf_init(&json);
        sy_strbuf_init(&config);
        expect_ok(sy_gguf_tokenizer(&json, &config, sy_gguf_set_metadata(set), &err), &err);
        got = json_loads(json.data, 0, NULL);
        if (!json_equal(json_object_get(got, "pre_tokenizer"), want))
            fail_msg("%s: %s", cases[i][0], json.data);
        json_decref(got);
        json_decref(want);
        sy_gguf_set_close(set);
        sy_strbuf_free(&json);
        sy_strbuf_free(&config);
    }
}

static void count_piece(void *arg, const char *s, size_t len)
{
    char *list = arg;

    snprintf(list + strlen(list), 64, "%.*s|", (int)len, s);
}

static void kimis_pattern_parts_han_from_other_letters(void **state)
{
    made_gguf m;
    sy_tokenizer *tokenizer;
    char pieces[256] = "";
    static const char text[] = "ab\u6f22\u5b57Cd don't 1234\n";
    sy_error err;

    (void)state;
    make_gpt2(&m, "kimi-k2");
    tokenizer = tokenizer_of(&m, NULL);
    expect_ok(sy_tokenizer_split(tokenizer, text, strlen(text), count_piece, pieces, &err), &err);
    assert_string_equal(pieces, "ab|\u6f22\u5b57|Cd| don't| |123|4|\n|");
    sy_tokenizer_close(tokenizer);
}

static void whole_pieces_win_where_the_vocabulary_says_so(void **state)
{
    made_gguf m;
    sy_tokenizer *tokenizer;

    (void)state;
    make_gpt2(&m, "gpt-4o"); /* "12" has no merge */
    tokenizer = tokenizer_of(&m, NULL);
    expect_ids(tokenizer, "12", IDS(6));
    sy_tokenizer_close(tokenizer);
    make_gpt2(&m, "gpt-2");
    tokenizer = tokenizer_of(&m, NULL);
    expect_ids(tokenizer, "1", IDS(5));
    sy_tokenizer_close(tokenizer);
}

static void the_first_token_is_added_where_the_file_or_its_kind_says_so(void **state)
{
    made_gguf m;
    sy_tokenizer *tokenizer;

    (void)state;
    make_gpt2(&m, "llama-bpe");
    tokenizer = tokenizer_of(&m, NULL);
    expect_ids(tokenizer, "a", IDS(7, 0));
    sy_tokenizer_close(tokenizer);
    make_gpt2(&m, "qwen2");
    add_bool(&m, "tokenizer.ggml.add_bos_token", 1);
    add_bool(&m, "tokenizer.ggml.add_eos_token", 1);
    tokenizer = tokenizer_of(&m, NULL);
    expect_ids(tokenizer, "a", IDS(7, 0, 7));
    sy_tokenizer_close(tokenizer);
    make_gpt2(&m, "qwen2");
    tokenizer = tokenizer_of(&m, NULL);
    expect_ids(tokenizer, "a", IDS(0));
    sy_tokenizer_close(tokenizer);
}

/* The merges are of scores alone: "abc" is made of "ab" and "c", since "ab" scores above "bc". */
static void make_llama(made_gguf *m)
{
    static const char *const tokens[] = {"<unk>",  "<s>", "</s>",     "<0x41>", "<0x42>",
                                         "\u2581", "a",   "b",        "c",      "ab",
                                         "bc",     "abc", "\u2581abc"};
    static const int32_t types[] = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1};
    static const float scores[] = {0, 0, 0, 0, 0, -9, -9, -9, -9, -1, -2, -3, -4};

    make_gguf(m);
    add_string(m, "tokenizer.ggml.model", "llama");
    add_strings(m, "tokenizer.ggml.tokens", tokens, 13);
    add_array(m, "tokenizer.ggml.token_type", SY_GGUF_KIND_I32, types, 13, 4);
    add_array(m, "tokenizer.ggml.scores", SY_GGUF_KIND_F32, scores, 13, 4);
    add_u32(m, "tokenizer.ggml.bos_token_id", 1);
    add_u32(m, "tokenizer.ggml.eos_token_id", 2);
    add_u32(m, "tokenizer.ggml.unknown_token_id", 0);
}

static void sentencepiece_vocabularies_get_their_merges_from_scores(void **state)
{
    made_gguf m;
    sy_tokenizer *tokenizer;
    char *config;

    (void)state;
    make_llama(&m);
    tokenizer = tokenizer_of(&m, &config);
    expect_ids(tokenizer, "abc", IDS(1, 12));
    expect_ids(tokenizer, "bcab", IDS(1, 5, 10, 9));
    expect_ids(tokenizer, "aAB</s>", IDS(1, 5, 6, 3, 4, 2)); /* bytes */
    expect_text(config, "\"unk_token\": \"<unk>\"");
    sy_tokenizer_close(tokenizer);
    free(config);
    make_llama(&m);
    add_bool(&m, "tokenizer.ggml.add_space_prefix", 0);
    add_bool(&m, "tokenizer.ggml.add_bos_token", 0);
    tokenizer = tokenizer_of(&m, NULL);
    expect_ids(tokenizer, "abc abc", IDS(11, 12));
    sy_tokenizer_close(tokenizer);
}

static void merges_are_ranked_as_transformers_ranks_them(void **state)
{
    made_gguf m;
    sy_gguf_set *set;
    sy_strbuf json, config;
    sy_error err;

    (void)state;
    make_llama(&m);
    set = open_made(&m, file_path());
    made_free(&m);
    sy_strbuf_init(&json);
    sy_strbuf_init(&config);
    expect_ok(sy_gguf_tokenizer(&json, &config, sy_gguf_set_metadata(set), &err), &err);
    expect_text(json.data, "\"merges\": [[\"a\",\"b\"],\n[\"b\",\"c\"],\n[\"ab\",\"c\"],\n"
                           "[\"a\",\"bc\"],\n[\"\u2581\",\"abc\"]]");
    sy_gguf_set_close(set);
    sy_strbuf_free(&json);
    sy_strbuf_free(&config);
}

static void tokenizers_that_cannot_be_made_say_why(void **state)
{
    made_gguf m;
    char *piece = malloc(SY_GGUF_PIECE_BYTES + 2);

    (void)state;
    make_gguf(&m);
    refuse_tokenizer(&m, SY_EINVAL, "tokenizer.ggml.model is missing");
    make_gpt2(&m, "tekken");
    refuse_tokenizer(&m, SY_EUNIMPLEMENTED, "tokenizer.ggml.pre is \"tekken\"");
    make_gguf(&m);
    add_string(&m, "tokenizer.ggml.model", "bert");
    add_strings(&m, "tokenizer.ggml.tokens", (const char *const[]){"a"}, 1);
    refuse_tokenizer(&m, SY_EUNIMPLEMENTED, "is \"bert\"; gpt2 and llama are supported");
    make_gguf(&m);
    add_string(&m, "tokenizer.ggml.model", "gpt2");
    add_string(&m, "tokenizer.ggml.pre", "gpt-2");
    add_strings(&m, "tokenizer.ggml.tokens", (const char *const[]){"a"}, 1);
    refuse_tokenizer(&m, SY_EINVAL, "tokenizer.ggml.merges is missing");
    make_gguf(&m);
    add_string(&m, "tokenizer.ggml.model", "gpt2");
    add_string(&m, "tokenizer.ggml.pre", "gpt-2");
    add_strings(&m, "tokenizer.ggml.tokens", (const char *const[]){"a"}, 1);
    add_strings(&m, "tokenizer.ggml.merges", (const char *const[]){"ab"}, 1);
    refuse_tokenizer(&m, SY_EINVAL, "tokenizer.ggml.merges[0] is no pair: \"ab\"");
    make_llama(&m);
    add_u32(&m, "tokenizer.ggml.padding_token_id", 13);
    refuse_tokenizer(&m, SY_EINVAL, "padding_token_id is 13, but there are 13 tokens");
    make_gguf(&m);
    add_string(&m, "tokenizer.ggml.model", "llama");
    assert_non_null(piece);
    memset(piece, 'a', SY_GGUF_PIECE_BYTES + 1);
    piece[SY_GGUF_PIECE_BYTES + 1] = '\0';
    add_strings(&m, "tokenizer.ggml.tokens", (const char *const[]){piece}, 1);
    add_array(&m, "tokenizer.ggml.scores", SY_GGUF_KIND_F32, (float[]){0}, 1, 4);
    refuse_tokenizer(&m, SY_EINVAL, "token 0 has 1025 bytes");
    make_gguf(&m);
    add_string(&m, "tokenizer.ggml.model", "llama");
    add_strings(&m, "tokenizer.ggml.tokens", (const char *const[]){"a", "b"}, 2);
    add_array(&m, "tokenizer.ggml.scores", SY_GGUF_KIND_F32, (float[]){0}, 1, 4);
    refuse_tokenizer(&m, SY_EINVAL, "tokenizer.ggml.scores has 1 elements, but there are 2");
    make_gguf(&m);
    add_string(&m, "tokenizer.ggml.model", "llama");
    add_strings(&m, "tokenizer.ggml.tokens", (const char *const[]){"a"}, 1);
    add_array(&m, "tokenizer.ggml.scores", SY_GGUF_KIND_F32, "\0\0\xc0\x7f", 1, 4);
    refuse_tokenizer(&m, SY_EINVAL, "tokenizer.ggml.scores[0] is no number");
    free(piece);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(byte_level_vocabularies_encode_as_before),
        TEST(pre_tokenizers_are_those_of_the_families_files),
        TEST(kimis_pattern_parts_han_from_other_letters),
        TEST(whole_pieces_win_where_the_vocabulary_says_so),
        TEST(the_first_token_is_added_where_the_file_or_its_kind_says_so),
        TEST(sentencepiece_vocabularies_get_their_merges_from_scores),
        TEST(merges_are_ranked_as_transformers_ranks_them),
        TEST(tokenizers_that_cannot_be_made_say_why),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
