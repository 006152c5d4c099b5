/* Tokenizer files that must be refused, and texts that must not take more than linear work.
 * Quadratic work on the megabytes below would run into ctest's timeout; the counts of pieces and
 * ids say that all of a text was used. */
#include "tokenizer_files.h"

#define MEGABYTE ((size_t)1 << 20)

#define MODEL(fields) "{\"model\":{\"type\":\"BPE\"," fields "}}"
#define PARTS(fields) \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}," fields "}"
#define PRETOKENIZER(json) PARTS("\"pre_tokenizer\":" json)
#define REGEX(pattern)                                                   \
    PRETOKENIZER("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern \
                 "\"},\"behavior\":\"Isolated\",\"invert\":false}")
#define ADDED(fields) PARTS("\"added_tokens\":[{" fields "}]")

static const struct bad_file {
    const char *json, *says;
} bad_files[] = {
    {"", "empty"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0", "not JSON"},
    {"[]", "not an object"},
    {"{}", "model"},
    {"{\"model\":{\"type\":\"WordPiece\"}}", "WordPiece"},
    {"{\"version\":\"2.0\",\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", "2.0"},
    {PARTS("\"surprise\":1"), "surprise"},
    {MODEL("\"vocab\":{\"a\":0}"), "merges"},
    {MODEL("\"merges\":[]"), "vocab"},
    {MODEL("\"vocab\":{\"a\":4096},\"merges\":[]"), "4096"},
    {MODEL("\"vocab\":{\"a\":-1},\"merges\":[]"), "-1"},
    {MODEL("\"vocab\":{\"a\":0.5},\"merges\":[]"), "integer"},
    {MODEL("\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]"), "twice"},
    {MODEL("\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]"), "two tokens have the id 0"},
    {MODEL("\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]"), "not all three"},
    {MODEL("\"vocab\":{\"a\":0,\"ab\":1},\"merges\":[[\"a\",\"b\"]]"), "not all three"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a\"]"), "one space"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a b c\"]"), "one space"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]"), "pair of strings"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[7]"), "pair of strings"},
    {MODEL("\"vocab\":{},\"merges\":[],\"dropout\":0.1"), "dropout"},
    {MODEL("\"vocab\":{},\"merges\":[],\"end_of_word_suffix\":\"</w>\""), "end_of_word_suffix"},
    {MODEL("\"vocab\":{},\"merges\":[],\"fuse_unk\":3"), "fuse_unk"},
    {MODEL("\"vocab\":{},\"merges\":[],\"novelty\":true"), "novelty"},
    {PARTS("\"normalizer\":{\"type\":\"NFKC\"}"), "NFKC"},
    {PARTS("\"normalizer\":{\"type\":\"Prepend\"}"), "prepend"},
    {PARTS("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"b\"}"),
     "Regex"},
    {PARTS("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"b\"}"),
     "empty"},
    {PRETOKENIZER("{\"type\":\"Whitespace\"}"), "Whitespace"},
    {PRETOKENIZER("7"), "pre_tokenizer"},
    {PRETOKENIZER("{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"Shuffled\"}"),
     "Shuffled"},
    {PRETOKENIZER("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":"
                  "\"Digits\"}]}"),
     "after ByteLevel"},
    {PRETOKENIZER("{\"type\":\"Metaspace\",\"replacement\":\"ab\"}"), "replacement"},
    {PRETOKENIZER("{\"type\":\"Metaspace\",\"replacement\":\"a\",\"prepend_scheme\":\"last\"}"),
     "last"},
    {REGEX(""), "empty"},
    {REGEX("a*"), "empty string"},
    {REGEX("(a"), "( without"},
    {REGEX("a)"), ") without"},
    {REGEX("[a"), "without its ]"},
    {REGEX("[a[b]]"), "class inside a class"},
    {REGEX("[\\\\p{L}&&\\\\p{Han}]"), "&&"},
    {REGEX("[\\\\p{L}a&&[^\\\\p{Han}]]"), "&&"},
    {REGEX("[^\\\\p{L}&&[^\\\\p{Han}]]"), "&&"},
    {REGEX("[\\\\p{L}&&[^\\\\p{Han}]b]"), "&&"},
    {REGEX("[\\\\p{L}&&[^\\\\p{Han}"), "without its ]"},
    {REGEX("[\\\\p{L}&&[^b&&c]]"), "&&"},
    {REGEX("\\\\h"), "escape"},
    {REGEX("(a)\\\\1"), "escape"},
    {REGEX("(?i)a"), "group"},
    {REGEX("(?m:a)"), "group"},
    {REGEX("(?<name>a)"), "group"},
    {REGEX("(?i:\\\\p{Lu})"), "inside (?i"},
    {REGEX("\\\\p{Nonsense}"), "regular expression"},
    {REGEX("\\\\xE9"), "single byte"},
    {REGEX("\\\\u12"), "code point"},
    {REGEX("a{2}+"), "interval"},
    {REGEX("(?<=a+)b"), "regular expression"},
    {REGEX("+"), "regular expression"},
    {PARTS("\"decoder\":{\"type\":\"WordPiece\"}"), "WordPiece"},
    {PARTS("\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":"
           "\"ByteFallback\"}]}"),
     "ByteFallback"},
    {PARTS("\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":"
           "\"Strip\",\"content\":"
           "\" \",\"start\":0,\"stop\":1}]}"),
     "stop"},
    {PARTS("\"post_processor\":{\"type\":\"BertProcessing\"}"), "BertProcessing"},
    {PARTS("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[],\"special_tokens\":{}"
           "}"),
     "0 times"},
    {PARTS("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
           "\"id\":\"x\"}}],"
           "\"special_tokens\":{}}"),
     "\"x\""},
    {PARTS("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
           "\"id\":\"x\"}}],"
           "\"special_tokens\":{\"x\":{\"ids\":[4096]}}}"),
     "4096"},
    {ADDED("\"content\":\"x\""), "id"},
    {ADDED("\"id\":9"), "content"},
    {ADDED("\"id\":5000,\"content\":\"x\""), "5000"},
    {ADDED("\"id\":1,\"content\":\"x\""), "another token's"},
    {ADDED("\"id\":1,\"content\":\"a\""), "but 0 in the vocabulary"},
    {ADDED("\"id\":9,\"content\":\"x\",\"lstrip\":\"yes\""), "lstrip"},
    {ADDED("\"id\":9,\"content\":\"x\"},{\"id\":9,\"content\":\"x\""), "another token's"},
    {ADDED("\"id\":9,\"content\":\"x\",\"glow\":true"), "glow"},
};

static void a_bad_file_is_refused_and_the_message_says_why(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad_files); i++) {
        const char *json = bad_files[i].json;
        sy_tokenizer *tokenizer;
        sy_error err;
        const sy_status st =
            sy_tokenizer_parse(&tokenizer, json, strlen(json), NULL, 0, TEST_VOCAB, &err);
        if (st != SY_EINVAL || tokenizer != NULL) {
            fail_msg("%s: status %s", json, sy_status_name(st));
        }
        if (strstr(err.message, bad_files[i].says) == NULL) {
            fail_msg("%s: \"%s\" does not say \"%s\"", json, err.message, bad_files[i].says);
        }
    }
}

static void a_bad_config_is_refused(void **state)
{
    static const char json[] = PARTS("\"added_tokens\":[]");
    static const char *const configs[] = {"{",
                                          "[]",
                                          "{\"add_bos_token\":1}",
                                          "{\"add_bos_token\":true}",
                                          "{\"add_bos_token\":true,\"bos_token\":\"zz\"}",
                                          "{\"add_eos_token\":true,\"eos_token\":{}}"};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(configs); i++) {
        sy_tokenizer *tokenizer;
        sy_error err;
        assert_int_equal(sy_tokenizer_parse(&tokenizer, json, strlen(json), configs[i],
                                            strlen(configs[i]), TEST_VOCAB, &err),
                         SY_EINVAL);
        assert_non_null(strstr(err.message, "tokenizer_config.json"));
    }
}

/* A prefix of a good file is never good, and never does harm. */
static void every_truncation_of_a_file_is_refused(void **state)
{
    json_t *root = byte_level_json(byte_level_step(1));
    char *json = json_dumps(root, JSON_COMPACT);
    const size_t n = strlen(json);

    (void)state;
    for (size_t len = 0; len < n; len += 1 + len / 64) {
        sy_tokenizer *tokenizer;
        sy_error err;
        assert_int_equal(sy_tokenizer_parse(&tokenizer, json, len, NULL, 0, TEST_VOCAB, &err),
                         SY_EINVAL);
    }
    json_decref(root);
    free(json);
}

static char *repeat(const char *unit, size_t n_bytes)
{
    const size_t unit_bytes = strlen(unit);
    char *text = malloc(n_bytes + 1);

    assert_non_null(text);
    for (size_t i = 0; i < n_bytes; i++) text[i] = unit[i % unit_bytes];
    text[n_bytes] = '\0';
    return text;
}

typedef struct piece_count {
    size_t n_pieces, n_bytes;
} piece_count;

static void count_piece(void *arg, const char *s, size_t len)
{
    piece_count *count = arg;

    (void)s;
    count->n_pieces++;
    count->n_bytes += len;
}

static size_t count_pieces(const sy_tokenizer *tokenizer, const char *text, size_t n)
{
    piece_count count = {0};
    sy_error err;

    if (sy_tokenizer_split(tokenizer, text, n, count_piece, &count, &err) != SY_OK) {
        fail_msg("%s", err.message);
    }
    assert_int_equal(count.n_bytes, n);
    return count.n_pieces;
}

static void check_megabyte(const sy_tokenizer *tokenizer, const char *unit, size_t n_pieces)
{
    char *text = repeat(unit, MEGABYTE);
    const size_t got = count_pieces(tokenizer, text, MEGABYTE);
    sy_ids ids = {0};

    if (n_pieces > 0) assert_int_equal(got, n_pieces);
    encode_n(tokenizer, &ids, text, MEGABYTE, 1);
    assert_int_equal(ids.n, MEGABYTE); /* one token a byte */
    sy_ids_free(&ids);
    free(text);
}

static void a_megabyte_of_one_kind_takes_linear_work(void **state)
{
    static const size_t digits_a_piece[N_KINDS] = {MEGABYTE, 1, 3, 3, 3, 3};

    (void)state;
    for (int kind = 0; kind < N_KINDS; kind++) {
        sy_tokenizer *tokenizer = open_kind(kind);
        const size_t digits = digits_a_piece[kind];
        check_megabyte(tokenizer, "a", 1);
        check_megabyte(tokenizer, "A", 1);
        check_megabyte(tokenizer, " ", 1);
        check_megabyte(tokenizer, "\n", 1);
        check_megabyte(tokenizer, "7", (MEGABYTE + digits - 1) / digits);
        check_megabyte(tokenizer, " \t\n ", 0);
        check_megabyte(tokenizer, "\xCC\x81\xCC\xA3", 0); /* combining marks */
        check_megabyte(tokenizer, "aA1 '\n\xC3\xA9,\xE4\xBD\xA0\xF0\x9F\x98\x80 ", 0);
        sy_tokenizer_close(tokenizer);
    }
}

static void whitespace_before_a_word_takes_linear_work(void **state)
{
    static const char *const trailing[3] = {
        "\\s+$"}; /* DeepSeek-V2's; tried at every space as it stands */
    char *text = repeat(" ", MEGABYTE);
    sy_tokenizer *tokenizer = parse_json(byte_level_json(sequence_json(trailing)), NULL);

    (void)state;
    text[MEGABYTE - 1] = 'x';
    assert_int_equal(count_pieces(tokenizer, text, MEGABYTE), 1);
    sy_tokenizer_close(tokenizer);
    for (int kind = 0; kind < N_KINDS; kind++) {
        tokenizer = open_kind(kind);
        assert_int_equal(count_pieces(tokenizer, text, MEGABYTE), 2);
        sy_tokenizer_close(tokenizer);
    }
    free(text);
}

static void a_megabyte_of_disordered_marks_is_normalized_in_linear_work(void **state)
{
    json_t *root = byte_level_json(byte_level_step(0));
    char *text = malloc(MEGABYTE + 1);
    sy_tokenizer *tokenizer;
    sy_ids ids = {0};

    (void)state;
    assert_non_null(text);
    json_object_set_new(root, "normalizer", json_pack("{s:s}", "type", "NFC"));
    tokenizer = parse_json(root, NULL);
    /* First the marks above, then those below: the canonical order is the other way round. */
    for (size_t i = 0; i < MEGABYTE; i += 2) {
        text[i] = '\xCC';
        text[i + 1] = i < MEGABYTE / 2 ? '\x82' : '\xA3'; /* U+0302, U+0323 */
    }
    encode_n(tokenizer, &ids, text, MEGABYTE, 1);
    assert_int_equal(ids.n, MEGABYTE);
    for (size_t i = 0; i < MEGABYTE; i += 2) {
        assert_int_equal(ids.id[i + 1], i < MEGABYTE / 2 ? 0xA3 : 0x82);
    }
    sy_ids_free(&ids);
    free(text);
    sy_tokenizer_close(tokenizer);
}

static void a_megabyte_merges_in_one_piece(void **state)
{
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1,\"aaaa\":2,\"aaaaaaaa\":3},"
        "\"merges\":[\"a a\",\"aa aa\",\"aaaa aaaa\"]}}";
    sy_tokenizer *tokenizer = parse_text(json, NULL);
    char *text = repeat("a", MEGABYTE);
    sy_ids ids = {0};

    (void)state;
    encode_n(tokenizer, &ids, text, MEGABYTE - 1, 1);
    assert_int_equal(ids.n, MEGABYTE / 8 + 2);
    assert_int_equal(ids.id[0], 3);
    assert_int_equal(ids.id[ids.n - 1], 0);
    assert_int_equal(ids.id[ids.n - 2], 1);
    assert_int_equal(ids.id[ids.n - 3], 2);
    sy_ids_free(&ids);
    free(text);
    sy_tokenizer_close(tokenizer);
}

static void an_exponential_pattern_meets_its_limit(void **state)
{
    static const char *const regex[3] = {"(?:a|a|aa)+[bc]"};
    sy_tokenizer *tokenizer = parse_json(byte_level_json(sequence_json(regex)), NULL);
    char *text = repeat("a", 400);
    sy_ids ids = {0};
    sy_error err;

    (void)state;
    assert_int_equal(sy_tokenizer_encode(tokenizer, &ids, text, 400, 1, &err), SY_ELIMIT);
    assert_non_null(strstr(err.message, "too many steps"));
    assert_int_equal(ids.n, 0);
    sy_ids_free(&ids);
    free(text);
    sy_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_file_is_refused_and_the_message_says_why),
        cmocka_unit_test(a_bad_config_is_refused),
        cmocka_unit_test(every_truncation_of_a_file_is_refused),
        cmocka_unit_test(a_megabyte_of_one_kind_takes_linear_work),
        cmocka_unit_test(whitespace_before_a_word_takes_linear_work),
        cmocka_unit_test(a_megabyte_of_disordered_marks_is_normalized_in_linear_work),
        cmocka_unit_test(a_megabyte_merges_in_one_piece),
        cmocka_unit_test(an_exponential_pattern_meets_its_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
