/* What a user of a tokenizer sees: the shipped model's own vectors, splits as published, decoding,
 * special tokens, and what is refused. */
#include <pthread.h>

#include "sy_file.h"
#include "tokenizer_files.h"

#define TRIO       SY_SOURCE_DIR "/models/trio"
#define TRIO_VOCAB 2048

static sy_tokenizer *open_trio(void)
{
    sy_tokenizer *tokenizer;
    sy_error err;

    if (sy_tokenizer_open(&tokenizer, TRIO, TRIO_VOCAB, &err) != SY_OK) fail_msg("%s", err.message);
    return tokenizer;
}

static void read_ids(sy_ids *ids, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const uint32_t id = (uint32_t)json_integer_value(json_array_get(list, i));
        assert_int_equal(sy_ids_push(ids, id), SY_OK);
    }
}

static void check_golden(const sy_tokenizer *tokenizer, const char *name)
{
    char path[1024];
    sy_ids want = {0}, got = {0}, greedy = {0};
    json_t *root;

    (void)snprintf(path, sizeof(path), TRIO "/golden/%s.json", name);
    root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    const char *prompt = json_string_value(json_object_get(root, "prompt"));
    read_ids(&want, json_object_get(root, "prompt_tokens"));
    encode_n(tokenizer, &got, prompt, strlen(prompt), 1);
    assert_int_equal(got.n, want.n);
    assert_true(got.n > 0);
    assert_memory_equal(got.id, want.id, got.n * sizeof(*got.id));
    read_ids(&greedy, json_object_get(root, "greedy_tokens"));
    assert_decodes(tokenizer, greedy.id, greedy.n, 1,
                   json_string_value(json_object_get(root, "greedy_text")));
    sy_ids_free(&greedy);
    sy_ids_free(&got);
    sy_ids_free(&want);
    json_decref(root);
}

static void trio_prompts_and_answers_match_their_golden_files(void **state)
{
    static const char *const names[] = {"code", "code2", "facts",     "facts2",
                                        "one",  "utf8",  "scripture", "scripture2"};
    sy_tokenizer *tokenizer = open_trio();

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(names); i++) check_golden(tokenizer, names[i]);
    assert_int_equal(sy_tokenizer_vocab(tokenizer), TRIO_VOCAB);
    assert_string_equal(sy_tokenizer_token(tokenizer, 261), "Ġthe");
    assert_true(sy_tokenizer_is_special(tokenizer, 2047));
    assert_false(sy_tokenizer_is_special(tokenizer, 261));
    assert_null(sy_tokenizer_token(tokenizer, TRIO_VOCAB));
    assert_false(sy_tokenizer_is_special(tokenizer, TRIO_VOCAB));
    sy_tokenizer_close(tokenizer);
}

static void add_piece(void *arg, const char *s, size_t len)
{
    sy_strbuf *out = arg;

    if (out->len > 0) sy_strbuf_append(out, "|", 1);
    sy_strbuf_append(out, s, len);
}

static void check_pieces(const sy_tokenizer *tokenizer, const char *text, const char *want)
{
    sy_strbuf got;
    sy_error err;

    sy_strbuf_init(&got);
    assert_int_equal(sy_tokenizer_split(tokenizer, text, strlen(text), add_piece, &got, &err),
                     SY_OK);
    assert_string_equal(got.data, want);
    sy_strbuf_free(&got);
}

static void texts_split_as_each_family_publishes(void **state)
{
    static const char *const texts[2] = {"I'M  here, isn't 12345 ok?\n\n  x=f(y);",
                                         "HelloWorld's\t42\u00E9\u4F60\u597D !\r\n"};
    static const char *const want[N_KINDS][2] = {
        {"I|'|M| | here|,| isn|'t| 12345| ok|?|\n\n | x|=|f|(|y|);",
         "HelloWorld|'s|\t|42|\u00E9\u4F60\u597D| !|\r\n"},
        {"I|'M| | here|,| isn|'t| |1|2|3|4|5| ok|?\n\n| | x|=f|(y|);",
         "HelloWorld|'s|\t|4|2|\u00E9\u4F60\u597D| !\r\n"},
        {"I|'M| | here|,| isn|'t| |123|45| ok|?\n\n| | x|=f|(y|);",
         "HelloWorld|'s|\t|42|\u00E9\u4F60\u597D| !\r\n"},
        {"I'M| | here|,| isn't| |123|45| ok|?\n\n| | x|=f|(y|);",
         "Hello|World's|\t|42|\u00E9\u4F60\u597D| !\r\n"},
        {"I|'M| | here|,| isn|'t| |123|45| ok|?\n\n| | x|=f|(y|);",
         "HelloWorld|'s|\t|42|\u00E9|\u4F60\u597D| !\r\n"},
        {"I'M| | here|,| isn't| |123|45| ok|?\n\n| | x|=f|(y|);",
         "Hello|World's|\t|42|\u00E9|\u4F60\u597D| !\r\n"},
    };

    (void)state;
    for (int kind = 0; kind < N_KINDS; kind++) {
        sy_tokenizer *tokenizer = open_kind(kind);
        for (size_t i = 0; i < 2; i++) check_pieces(tokenizer, texts[i], want[kind][i]);
        sy_tokenizer_close(tokenizer);
    }
}

/* Whatever Unicode version PCRE2 has: letters, a digit, a symbol and Han of versions 15 and 16. */
static void characters_younger_than_the_libraries_split_as_their_kind(void **state)
{
    sy_tokenizer *llama3 = open_kind(LLAMA3), *kimi = open_kind(KIMI);

    (void)state;
    check_pieces(llama3, "x\u1C8A\U0002EBF0\U000105C0", "x\u1C8A\U0002EBF0\U000105C0");
    check_pieces(llama3, "a\U00010D40b", "a|\U00010D40|b");
    check_pieces(llama3, " \u2427\n", " \u2427\n");
    check_pieces(llama3, "12\U00010D45\U00010D46", "12\U00010D45|\U00010D46");
    check_pieces(kimi, "a\U0002EBF0\U00031350b", "a|\U0002EBF0\U00031350|b");
    sy_tokenizer_close(kimi);
    sy_tokenizer_close(llama3);
}

/* The reference's NFC is Unicode 9's: younger marks stay where they are and hold others back. */
static void marks_younger_than_nfc_stay_where_they_are(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"e\u0302\u0323", "\u1EC7"},        /* known to it: ordered and composed */
        {"e\u1DF7\u0301", "e\u1DF7\u0301"}, /* Unicode 10 */
        {"x\u0302\u1DF9\u0302\u0323", "x\u0302\u1DF9\u0323\u0302"},
        {"\U00011935\U00011930", "\U00011935\U00011930"}, /* composed since Unicode 13 */
        {"e\u0301\U00010D24e\u0301", "\u00E9\U00010D24\u00E9"},
    };
    json_t *root = byte_level_json(byte_level_step(0));
    sy_tokenizer *tokenizer;

    (void)state;
    json_object_set_new(root, "normalizer", json_pack("{s:s}", "type", "NFC"));
    tokenizer = parse_json(root, NULL);
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        sy_ids ids = {0};
        encode_n(tokenizer, &ids, cases[i].text, strlen(cases[i].text), 0);
        assert_decodes(tokenizer, ids.id, ids.n, 0, cases[i].want);
        sy_ids_free(&ids);
    }
    sy_tokenizer_close(tokenizer);
}

/* A piece falls into parts where no merge reaches across; a merge of longer tokens does. */
static void merges_reach_across_words_where_the_vocabulary_says_so(void **state)
{
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"byte_fallback\":true,\"vocab\":{"
        "\"<unk>\":0,\"<0x0A>\":1,\"a\":2,\"b\":3,\"_\":4,\"ab\":5,\"_a\":6,\"_ab\":7,\"ab_ab\":8,"
        "\"<0x0A>a\":9,\"<unk>b\":10},"
        "\"merges\":[\"a b\",\"_ ab\",\"ab _ab\",\"<0x0A> a\",\"<unk> b\"]}}";
    sy_tokenizer *tokenizer = parse_text(json, NULL);

    (void)state;
    assert_encodes(tokenizer, "ab_ab_ab", 0, "8 7");
    assert_encodes(tokenizer, "b_ab_b", 0, "3 7 4 3");
    assert_encodes(tokenizer, "b\na_", 0, "3 9 4");
    assert_encodes(tokenizer, "xb", 0, "10");
    sy_tokenizer_close(tokenizer);
}

/* Decodes one by one and checks after every token that what has come out is whole characters. */
static void check_stream(const sy_tokenizer *tokenizer, const sy_ids *ids)
{
    sy_detok detok = {0};
    sy_strbuf stream, whole;
    sy_ids discarded = {0};
    sy_error err;

    sy_strbuf_init(&stream);
    sy_strbuf_init(&whole);
    for (size_t i = 0; i < ids->n; i++) {
        sy_tokenizer_decode(tokenizer, &detok, ids->id[i], 0, &stream);
        assert_int_equal(
            sy_tokenizer_encode(tokenizer, &discarded, stream.data, stream.len, 0, &err), SY_OK);
    }
    sy_tokenizer_decode_end(tokenizer, &detok, &stream);
    decode_all(tokenizer, ids->id, ids->n, 0, &whole);
    assert_string_equal(stream.data, whole.data);
    sy_ids_free(&discarded);
    sy_strbuf_free(&whole);
    sy_strbuf_free(&stream);
}

static void a_stream_never_splits_a_character(void **state)
{
    sy_tokenizer *tokenizer = open_kind(GPT2);
    static const char text[] = "caf\u00E9 \u4F60\u597D \U0001F600 end";
    sy_ids ids = {0};
    sy_strbuf out;

    (void)state;
    encode_n(tokenizer, &ids, text, strlen(text), 1);
    assert_int_equal(ids.n, strlen(text));
    check_stream(tokenizer, &ids);
    sy_strbuf_init(&out);
    decode_all(tokenizer, ids.id, ids.n, 0, &out);
    assert_string_equal(out.data, text);
    sy_strbuf_free(&out);
    ids.n = 0;
    for (uint32_t i = 0; i < 500; i++) {
        assert_int_equal(sy_ids_push(&ids, (i * 2654435761u) >> 24), SY_OK);
    }
    check_stream(tokenizer, &ids);
    sy_ids_free(&ids);
    sy_tokenizer_close(tokenizer);
}

static void invalid_bytes_decode_as_python_replaces_them(void **state)
{
    static const struct {
        uint32_t byte[8];
        size_t n;
        const char *want;
    } cases[] = {
        {{0xFF}, 1, "\uFFFD"},
        {{0x80, 0x80}, 2, "\uFFFD\uFFFD"},
        {{0xF0, 0x9F, 0x98}, 3, "\uFFFD"},
        {{0xF0, 0x9F, 0x98, 'x'}, 4, "\uFFFDx"},
        {{0xE4, 0xBD, 0xE4, 0xBD, 0xA0}, 5, "\uFFFD\u4F60"},
        {{0xED, 0xA0, 0x80}, 3, "\uFFFD\uFFFD\uFFFD"},             /* a surrogate */
        {{0xC0, 0xAF, 0xC1, 0x80}, 4, "\uFFFD\uFFFD\uFFFD\uFFFD"}, /* overlong */
        {{0xE0, 0x80, 0x80}, 3, "\uFFFD\uFFFD\uFFFD"},
        {{0xF4, 0x90, 0x80, 0x80}, 4, "\uFFFD\uFFFD\uFFFD\uFFFD"}, /* above U+10FFFF */
        {{0xF1, 0x80, 0x80, 0xE1, 0x80, 0xC2, 'b', 0x80}, 8, "\uFFFD\uFFFD\uFFFDb\uFFFD"},
    };
    sy_tokenizer *tokenizer = open_kind(GPT2);

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        assert_decodes(tokenizer, cases[i].byte, cases[i].n, 0, cases[i].want);
    }
    sy_tokenizer_close(tokenizer);
}

static void unknown_ids_decode_to_nothing(void **state)
{
    sy_tokenizer *tokenizer = open_kind(GPT2);
    static const uint32_t ids[] = {'a', 256, UINT32_MAX, 'b'};

    (void)state;
    assert_decodes(tokenizer, ids, SY_COUNT_OF(ids), 0, "ab");
    sy_tokenizer_close(tokenizer);
}

static const char sentencepiece[] =
    "{\"version\":\"1.0\",\"added_tokens\":["
    "{\"id\":1,\"content\":\"<s>\",\"special\":true},{\"id\":2,\"content\":\"</"
    "s>\",\"special\":true}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
    "\"\u2581\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
    "\"String\":\"\u2581\"},"
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<"
    "s>\","
    "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],"
    "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1],\"tokens\":[\"<s>\"]}}},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,"
    "\"vocab\":"
    "{\"<unk>\":0,\"<s>\":1,\"</"
    "s>\":2,\"<0xC3>\":3,\"<0xA9>\":4,\"\u2581\":5,\"a\":6,\"b\":7,\"ab\":8,"
    "\"\u2581ab\":9},\"merges\":[\"#version: 0.2\",\"a b\",[\"\u2581\",\"ab\"]]}}";

static void a_missing_character_becomes_its_bytes_or_unk(void **state)
{
    sy_tokenizer *tokenizer = parse_text(sentencepiece, NULL);
    static const uint32_t e_acute[] = {1, 5, 3, 4, 9, 2}, broken[] = {9, 3, 9};

    (void)state;
    assert_encodes(tokenizer, "ab", 1, "1 9");
    assert_encodes(tokenizer, "ab ab", 0, "9 9");
    assert_encodes(tokenizer, "\u00E9", 0, "5 3 4");
    assert_encodes(tokenizer, "xyz", 0, "5 0"); /* fused */
    assert_encodes(tokenizer, "xaz\u00E9", 0, "5 0 6 3 4 0");
    assert_encodes(tokenizer, "", 1, "1");
    assert_encodes(tokenizer, "", 0, "");
    assert_decodes(tokenizer, e_acute, SY_COUNT_OF(e_acute), 1, "\u00E9 ab");
    assert_decodes(tokenizer, e_acute, SY_COUNT_OF(e_acute), 0, "<s> \u00E9 ab</s>");
    assert_decodes(tokenizer, broken, SY_COUNT_OF(broken), 1, "ab\uFFFD ab");
    sy_tokenizer_close(tokenizer);
}

static void special_tokens_in_the_text_count_only_when_asked(void **state)
{
    sy_tokenizer *tokenizer = parse_text(sentencepiece, NULL);

    (void)state;
    assert_encodes(tokenizer, "ab</s>ab", 1, "1 9 2 9");
    assert_encodes(tokenizer, "b<s>", 0, "5 7 0");
    sy_tokenizer_close(tokenizer);
}

static void the_config_decides_about_bos_and_eos(void **state)
{
    static const struct {
        const char *config, *want;
    } cases[] = {
        {"{}", "1 9"},
        {"{\"add_bos_token\":null}", "1 9"},
        {"{\"add_bos_token\":false}", "9"},
        {"{\"add_bos_token\":true,\"bos_token\":\"<s>\"}", "1 9"},
        {"{\"add_eos_token\":true,\"eos_token\":{\"content\":\"</s>\",\"lstrip\":false}}", "9 2"},
        {"{\"add_bos_token\":true,\"bos_token\":{\"content\":\"<s>\"},\"add_eos_token\":true,"
         "\"eos_token\":\"</s>\"}",
         "1 9 2"},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        sy_tokenizer *tokenizer = parse_text(sentencepiece, cases[i].config);
        assert_encodes(tokenizer, "ab", 1, cases[i].want);
        assert_encodes(tokenizer, "ab", 0, "9");
        sy_tokenizer_close(tokenizer);
    }
}

static void text_that_is_not_utf8_is_refused_with_its_offset(void **state)
{
    static const struct {
        const char *text, *offset;
    } cases[] = {{"ab\xFF", "byte 2"},
                 {"\x80", "byte 0"},
                 {"abc\xE4\xBD", "byte 3"},
                 {"a\xED\xA0\x80", "byte 1"},
                 {"a\xF4\x90\x80\x80", "byte 1"},
                 {"\xC0\xAF", "byte 0"}};
    sy_tokenizer *tokenizer = open_kind(QWEN2);
    sy_ids ids = {0};
    sy_error err;

    (void)state;
    assert_int_equal(sy_ids_push(&ids, 7), SY_OK);
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        const char *text = cases[i].text;
        assert_int_equal(sy_tokenizer_encode(tokenizer, &ids, text, strlen(text), 1, &err),
                         SY_EINVAL);
        if (strstr(err.message, cases[i].offset) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", err.message, cases[i].offset);
        }
        assert_int_equal(ids.n, 1); /* nothing was appended */
    }
    sy_ids_free(&ids);
    sy_tokenizer_close(tokenizer);
}

static void a_folder_without_a_tokenizer_is_not_found(void **state)
{
    sy_tokenizer *tokenizer;
    sy_error err;

    (void)state;
    assert_int_equal(sy_tokenizer_open(&tokenizer, TRIO "/golden", TRIO_VOCAB, &err), SY_ENOTFOUND);
    assert_null(tokenizer);
    assert_int_equal(sy_tokenizer_open(&tokenizer, TRIO, TRIO_VOCAB - 1, &err), SY_EINVAL);
    assert_non_null(strstr(err.message, "vocabulary of 2047"));
    sy_tokenizer_close(NULL);
}

typedef struct thread_job {
    const sy_tokenizer *tokenizer;
    const char *text;
    sy_ids ids;
} thread_job;

static void *encode_on_a_thread(void *arg)
{
    thread_job *job = arg;
    sy_error err;

    for (int i = 0; i < 20; i++) {
        job->ids.n = 0;
        if (sy_tokenizer_encode(job->tokenizer, &job->ids, job->text, strlen(job->text), 1, &err) !=
            SY_OK) {
            job->ids.n = 0;
            break;
        }
    }
    return NULL;
}

static void threads_share_one_tokenizer(void **state)
{
    static const char text[] = "In the beginning 12345 \u4F60\u597D, isn't it?  static int x;\n";
    sy_tokenizer *tokenizer = open_trio();
    pthread_t thread[4];
    thread_job job[4];

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        job[i] = (thread_job){.tokenizer = tokenizer, .text = text};
        assert_int_equal(pthread_create(&thread[i], NULL, encode_on_a_thread, &job[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_true(job[0].ids.n > 0);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(job[i].ids.n, job[0].ids.n);
        assert_memory_equal(job[i].ids.id, job[0].ids.id, job[0].ids.n * sizeof(uint32_t));
    }
    for (size_t i = 0; i < 4; i++) sy_ids_free(&job[i].ids);
    sy_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trio_prompts_and_answers_match_their_golden_files),
        cmocka_unit_test(texts_split_as_each_family_publishes),
        cmocka_unit_test(characters_younger_than_the_libraries_split_as_their_kind),
        cmocka_unit_test(marks_younger_than_nfc_stay_where_they_are),
        cmocka_unit_test(merges_reach_across_words_where_the_vocabulary_says_so),
        cmocka_unit_test(a_stream_never_splits_a_character),
        cmocka_unit_test(invalid_bytes_decode_as_python_replaces_them),
        cmocka_unit_test(unknown_ids_decode_to_nothing),
        cmocka_unit_test(a_missing_character_becomes_its_bytes_or_unk),
        cmocka_unit_test(special_tokens_in_the_text_count_only_when_asked),
        cmocka_unit_test(the_config_decides_about_bos_and_eos),
        cmocka_unit_test(text_that_is_not_utf8_is_refused_with_its_offset),
        cmocka_unit_test(a_folder_without_a_tokenizer_is_not_found),
        cmocka_unit_test(threads_share_one_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
