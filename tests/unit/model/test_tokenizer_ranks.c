/* tiktoken.model: what its ranks make of text, and files that must be refused. */
#include "sy_file.h"
#include "sy_tiktoken.h"
#include "tokenizer_files.h"

#include <unistd.h>

#define N_BYTES 256

static const char special_config[] =
    "{\"add_bos_token\":true,\"bos_token\":\"[BOS]\",\"added_tokens_decoder\":{"
    "\"300\":{\"content\":\"[BOS]\",\"special\":true},"
    "\"302\":{\"content\":\"<|im_end|>\",\"special\":true},"
    "\"303\":{\"content\":\"caf\u00E9\",\"special\":true}}}";

static void add_line(sy_strbuf *out, const char *token, size_t n, unsigned rank)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < n; i += 3) {
        unsigned bits = 0;
        for (size_t k = 0; k < 3; k++) bits = bits << 8 | (i + k < n ? (uint8_t)token[i + k] : 0);
        for (size_t k = 0; k < 4; k++) {
            const char c = i + k <= n ? digits[bits >> (18 - 6 * k) & 63] : '=';
            sy_strbuf_append(out, &c, 1);
        }
    }
    sy_strbuf_printf(out, " %u\n", rank);
}

/* Byte N has rank N; then one rank each for the tokens, NULL ends them. */
static void add_ranks(sy_strbuf *out, const char *const *token)
{
    for (unsigned byte = 0; byte < N_BYTES; byte++) {
        add_line(out, &(char){(char)byte}, 1, byte);
    }
    for (unsigned i = 0; token[i] != NULL; i++) {
        add_line(out, token[i], strlen(token[i]), N_BYTES + i);
    }
}

static sy_tokenizer *open_ranks(const char *const *token, const char *config)
{
    const size_t config_n = config == NULL ? 0 : strlen(config);
    sy_tokenizer *tokenizer;
    sy_strbuf ranks;
    sy_error err;

    sy_strbuf_init(&ranks);
    add_ranks(&ranks, token);
    if (sy_tiktoken_parse(&tokenizer, ranks.data, ranks.len, config, config_n, TEST_VOCAB, &err) !=
        SY_OK) {
        fail_msg("%s", err.message);
    }
    sy_strbuf_free(&ranks);
    return tokenizer;
}

static void neighbours_of_the_lowest_rank_merge_first(void **state)
{
    static const char *const tokens[] = {"bc", "ab", "abc", "aa", "aaaa", "xyz", NULL};
    sy_tokenizer *tokenizer = open_ranks(tokens, NULL);

    (void)state;
    assert_encodes(tokenizer, "abc", 0, "258");      /* the whole piece is a token */
    assert_encodes(tokenizer, "abcd", 0, "258 100"); /* a+bc makes abc as ab+c would */
    assert_encodes(tokenizer, "aaa", 0, "259 97");   /* the leftmost of equals */
    assert_encodes(tokenizer, "aaaaa", 0, "260 97");
    assert_encodes(tokenizer, "xyz", 0, "261");              /* though no two tokens make it */
    assert_encodes(tokenizer, "xyzz", 0, "120 121 122 122"); /* nor do they here */
    sy_tokenizer_close(tokenizer);
}

static void han_and_words_beside_it_are_pieces_of_their_own(void **state)
{
    static const char *const tokens[] = {"\u4F60\u597D", "a\u4F60", NULL};
    sy_tokenizer *tokenizer = open_ranks(tokens, NULL);

    (void)state;
    assert_encodes(tokenizer, "a\u4F60\u597D", 0, "97 256");
    sy_tokenizer_close(tokenizer);
}

static void special_tokens_come_from_the_configuration(void **state)
{
    static const char *const tokens[] = {NULL};
    static const uint32_t ids[] = {300, 'a', 303, 302};
    sy_tokenizer *tokenizer = open_ranks(tokens, special_config);

    (void)state;
    assert_encodes(tokenizer, "a<|im_end|>", 1, "300 97 302");
    assert_encodes(tokenizer, "[BOS]", 0, "91 66 79 83 93");
    assert_true(sy_tokenizer_is_special(tokenizer, 302));
    assert_false(sy_tokenizer_is_special(tokenizer, 301));
    assert_decodes(tokenizer, ids, SY_COUNT_OF(ids), 1, "a");
    /* An accented letter of a special token is no byte in disguise. */
    assert_decodes(tokenizer, ids, SY_COUNT_OF(ids), 0, "[BOS]acaf\u00E9<|im_end|>");
    sy_tokenizer_close(tokenizer);
}

static void write_file(const char *dir, const char *name, const char *text, size_t n)
{
    char path[512];
    sy_error err;

    assert_int_equal(sy_path_join(path, sizeof(path), dir, name), SY_OK);
    if (sy_file_write_atomic(path, text, n, &err) != SY_OK) fail_msg("%s", err.message);
}

static void remove_file(const char *dir, const char *name)
{
    char path[512];

    assert_int_equal(sy_path_join(path, sizeof(path), dir, name), SY_OK);
    (void)unlink(path);
}

static void a_folder_with_ranks_alone_opens_and_tokenizer_json_goes_first(void **state)
{
    static const char *const tokens[] = {"ab", NULL};
    static const char json[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":7},\"merges\":[]}}";
    char dir[] = "/tmp/sy-ranks-XXXXXX";
    sy_tokenizer *tokenizer;
    sy_strbuf ranks;
    sy_error err;

    (void)state;
    assert_non_null(mkdtemp(dir));
    sy_strbuf_init(&ranks);
    add_ranks(&ranks, tokens);
    write_file(dir, "tiktoken.model", ranks.data, ranks.len);
    if (sy_tokenizer_open(&tokenizer, dir, TEST_VOCAB, &err) != SY_OK) fail_msg("%s", err.message);
    assert_encodes(tokenizer, "ab", 1, "256");
    sy_tokenizer_close(tokenizer);
    write_file(dir, "tokenizer.json", json, strlen(json));
    if (sy_tokenizer_open(&tokenizer, dir, TEST_VOCAB, &err) != SY_OK) fail_msg("%s", err.message);
    assert_encodes(tokenizer, "a", 1, "7");
    sy_tokenizer_close(tokenizer);
    sy_strbuf_free(&ranks);
    remove_file(dir, "tokenizer.json");
    remove_file(dir, "tiktoken.model");
    (void)rmdir(dir);
}

static void assert_refused(const char *ranks, size_t n, const char *config, uint32_t vocab,
                           sy_status want, const char *says)
{
    sy_tokenizer *tokenizer;
    sy_error err;
    const sy_status st = sy_tiktoken_parse(&tokenizer, ranks, n, config,
                                           config == NULL ? 0 : strlen(config), vocab, &err);

    if (st != want || tokenizer != NULL) fail_msg("%s: %s", says, sy_status_name(st));
    if (strstr(err.message, says) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.message, says);
    }
}

/* Each line is put behind the 256 bytes. */
static void a_bad_line_of_ranks_is_refused_and_the_message_says_which(void **state)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"YWI=", "line 257 does not begin"},          {"YW! 256", "line 257 does not begin"},
        {"YWI 256", "line 257 does not begin"},       {"YW=I 256", "line 257 does not begin"},
        {"Y=== 256", "line 257 does not begin"},      {"YWJ= 256", "line 257 does not begin"},
        {" 256", "line 257 does not begin"},          {"YWI= ", "line 257 does not end"},
        {"YWI= -1", "line 257 does not end"},         {"YWI= 2x", "line 257 does not end"},
        {"YWI= 256 ", "line 257 does not end"},       {"YWI= 99999999999", "line 257 does not end"},
        {"YWI= 4294967296", "line 257 does not"},     {"YQ== 256", "was there before"},
        {"YWI= 97", "the rank 97 was there before"},  {"YWI= 257", "no token has the rank 256"},
        {"YWI= 4096", "past the vocabulary of 4096"},
    };
    static const char *const none[] = {NULL};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        sy_strbuf ranks;
        sy_strbuf_init(&ranks);
        add_ranks(&ranks, none);
        sy_strbuf_puts(&ranks, cases[i].line);
        assert_refused(ranks.data, ranks.len, NULL, TEST_VOCAB, SY_EINVAL, cases[i].says);
        sy_strbuf_free(&ranks);
    }
}

static void ranks_without_every_byte_are_refused(void **state)
{
    sy_strbuf ranks;

    (void)state;
    assert_refused("", 0, NULL, TEST_VOCAB, SY_EINVAL, "0x00 has no token");
    sy_strbuf_init(&ranks);
    for (unsigned byte = 0; byte < 255; byte++) add_line(&ranks, &(char){(char)byte}, 1, byte);
    assert_refused(ranks.data, ranks.len, NULL, TEST_VOCAB, SY_EINVAL, "0xFF has no token");
    sy_strbuf_free(&ranks);
}

static void a_huge_line_of_ranks_is_refused(void **state)
{
    const size_t n = (size_t)1 << 20;
    char *line = malloc(n);

    (void)state;
    assert_non_null(line);
    memset(line, 'A', n);
    assert_refused(line, n, NULL, TEST_VOCAB, SY_ELIMIT, "line 1: a token of more than");
    free(line);
}

static void a_bad_list_of_special_tokens_is_refused(void **state)
{
    static const struct {
        const char *config, *says;
    } cases[] = {
        {"{", "tokenizer_config.json"},
        {"{\"added_tokens_decoder\":[]}", "not an object"},
        {"{\"added_tokens_decoder\":{\"97\":{\"content\":\"x y\"}}}", "another token's"},
        {"{\"added_tokens_decoder\":{\"300\":{\"content\":\"a\"}}}", "but 97 in the vocabulary"},
        {"{\"added_tokens_decoder\":{\"x\":{\"content\":\"<x>\"}}}", "added_tokens_decoder"},
        {"{\"added_tokens_decoder\":{\"4096\":{\"content\":\"<x>\"}}}", "4096"},
        {"{\"added_tokens_decoder\":{\"300\":{\"content\":7}}}", "content"},
        {"{\"added_tokens_decoder\":{\"300\":{\"content\":\"<x>\"},\"301\":{\"content\":\"<x>\"}}}",
         "same text"},
        {"{\"add_bos_token\":true,\"bos_token\":\"[BOS]\"}", "not a token"},
    };
    static const char *const none[] = {NULL};
    sy_strbuf ranks;

    (void)state;
    sy_strbuf_init(&ranks);
    add_ranks(&ranks, none);
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        assert_refused(ranks.data, ranks.len, cases[i].config, TEST_VOCAB, SY_EINVAL,
                       cases[i].says);
    }
    sy_strbuf_free(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_of_the_lowest_rank_merge_first),
        cmocka_unit_test(han_and_words_beside_it_are_pieces_of_their_own),
        cmocka_unit_test(special_tokens_come_from_the_configuration),
        cmocka_unit_test(a_folder_with_ranks_alone_opens_and_tokenizer_json_goes_first),
        cmocka_unit_test(a_bad_line_of_ranks_is_refused_and_the_message_says_which),
        cmocka_unit_test(ranks_without_every_byte_are_refused),
        cmocka_unit_test(a_huge_line_of_ranks_is_refused),
        cmocka_unit_test(a_bad_list_of_special_tokens_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
