/* sy_gguf_tokenizer.c - the table of pre-tokenizers by their names, and the texts. */
#include "sy_gguf_tokenizer.h"

#include <inttypes.h>
#include <string.h>

#include "sy_gguf_vocab.h"

#define NAMES_MAX  6
#define SPLITS_MAX 5

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

#define QWEN2_PATTERN \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define LLAMA3_PATTERN                                                              \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+" \
                 "[\\r\\n]*|" SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K_PATTERN                                              \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTIONS "?|" \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" CONTRACTIONS "?|" \
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES
/* The original intersects its classes with [^\p{Han}]. */
#define NO_HAN(class) "(?:(?!\\p{Han})" class ")"
#define KIMI_PATTERN                                              \
    "[\\p{Han}]+|"                                                \
    "[^\\r\\n\\p{L}\\p{N}]?" NO_HAN(UPPER) "*" NO_HAN(            \
        LOWER) "+" CONTRACTIONS "?|"                              \
               "[^\\r\\n\\p{L}\\p{N}]?" NO_HAN(UPPER) "+" NO_HAN( \
                   LOWER) "*" CONTRACTIONS "?|"                   \
                          "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define DEEPSEEK_V3_PATTERN                                  \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|" \
    "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES
/* Letters with case: Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee, Coptic, Deseret, ... */
#define CASED_LETTERS                                                                            \
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af" \
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"         \
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"             \
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"             \
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"        \
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"       \
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"        \
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"               \
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"         \
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"             \
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"                  \
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"       \
    "\U000118a0-\U000118df\U0001e900-\U0001e943"

typedef struct pre_tokenizer {
    const char *name[NAMES_MAX];
    const char *split[SPLITS_MAX]; /* patterns, applied in turn; none: GPT-2's */
    int splits_digits;             /* one by one, before GPT-2's pattern or after the splits */
    int is_nfc;
    int ignores_merges; /* made of a tiktoken vocabulary, or says so itself */
    int adds_bos;       /* unless the file says otherwise */
} pre_tokenizer;

static const pre_tokenizer pre_tokenizers[] = {
    {.name = {"gpt-2", "phi-2"}},
    {.name = {"olmo"}, .is_nfc = 1},
    {.name = {"refact", "starcoder", "granite"}, .splits_digits = 1},
    {.name = {"qwen2", "deepseek-r1-qwen"}, .split = {QWEN2_PATTERN}, .is_nfc = 1},
    {.name = {"hunyuan"}, .split = {QWEN2_PATTERN}, .ignores_merges = 1},
    {.name = {"llama-bpe", "llama3", "llama-v3"},
     .split = {LLAMA3_PATTERN},
     .ignores_merges = 1,
     .adds_bos = 1},
    {.name = {"glm4", "chatglm-bpe"}, .split = {LLAMA3_PATTERN}},
    {.name = {"gpt-4o", "llama4"}, .split = {O200K_PATTERN}, .ignores_merges = 1},
    {.name = {"minimax-m2"}, .split = {O200K_PATTERN}},
    {.name = {"kimi-k2"}, .split = {KIMI_PATTERN}, .ignores_merges = 1},
    {.name = {"deepseek-llm"},
     .split = {"[\\r\\n]", "\\s?[" CASED_LETTERS "]+",
               "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", "\\s+$",
               "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"},
     .splits_digits = 1},
    {.name = {"deepseek-v3", "hunyuan-dense"},
     .split = {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK_V3_PATTERN}},
};

static int text_is(const sy_gguf_string *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->s, text, s->n) == 0;
}

static sy_status find_pre(const pre_tokenizer **out, const sy_gguf *metadata, sy_error *err)
{
    sy_gguf_string name = {.s = "missing", .n = 7};

    *out = NULL;
    if (sy_gguf_value_of(metadata, "tokenizer.ggml.pre") != NULL) {
        const sy_status st = sy_gguf_string_of(&name, metadata, "tokenizer.ggml.pre", err);

        if (st != SY_OK) return st;
    }
    for (size_t i = 0; i < SY_COUNT_OF(pre_tokenizers); i++) {
        for (size_t k = 0; k < NAMES_MAX && pre_tokenizers[i].name[k] != NULL; k++) {
            if (!text_is(&name, pre_tokenizers[i].name[k])) continue;
            *out = &pre_tokenizers[i];
            return SY_OK;
        }
    }
    return sy_error_set(err, SY_EUNIMPLEMENTED,
                        "tokenizer.ggml.pre is \"%.*s\": this pre-tokenizer is not known; put the "
                        "model's own tokenizer.json beside the file",
                        (int)SY_MIN(name.n, (size_t)64), name.s);
}

static void write_string(sy_strbuf *out, const sy_gguf_string *s)
{
    sy_strbuf_json_string(out, s->s, s->n);
}

static int is_added(gguf_token_type type)
{
    return type == GGUF_TOKEN_CONTROL || type == GGUF_TOKEN_UNKNOWN ||
           type == GGUF_TOKEN_USER_DEFINED;
}

static void write_added(sy_strbuf *out, const gguf_vocab *vocab)
{
    int n = 0;

    sy_strbuf_puts(out, "{\"version\": \"1.0\",\n\"added_tokens\": [");
    for (size_t id = 0; id < vocab->n; id++) {
        const gguf_token_type type = gguf_token_type_of(vocab, id);

        if (!is_added(type) || !gguf_token_is_there(vocab, id)) continue;
        sy_strbuf_printf(out, "%s\n{\"id\": %zu, \"content\": ", n++ > 0 ? "," : "", id);
        write_string(out, &vocab->tokens[id]);
        sy_strbuf_printf(out,
                         ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                         "\"normalized\": false, \"special\": %s}",
                         type == GGUF_TOKEN_USER_DEFINED ? "false" : "true");
    }
    sy_strbuf_puts(out, "]");
}

/* with_added: a SentencePiece vocabulary has its control pieces too. */
static void write_vocab(sy_strbuf *out, const gguf_vocab *vocab, int with_added)
{
    int n = 0;

    sy_strbuf_puts(out, ", \"vocab\": {");
    for (size_t id = 0; id < vocab->n; id++) {
        if (!gguf_token_is_there(vocab, id)) continue;
        if (!with_added && is_added(gguf_token_type_of(vocab, id))) continue;
        sy_strbuf_puts(out, n++ > 0 ? ",\n" : "");
        write_string(out, &vocab->tokens[id]);
        sy_strbuf_printf(out, ": %zu", id);
    }
    sy_strbuf_puts(out, "}");
}

static void write_byte_level(sy_strbuf *out, int splits)
{
    sy_strbuf_printf(out,
                     "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": "
                     "true, \"use_regex\": %s}",
                     splits ? "true" : "false");
}

static void write_pre(sy_strbuf *out, const pre_tokenizer *pre)
{
    sy_strbuf_printf(out, ",\n\"normalizer\": %s", pre->is_nfc ? "{\"type\": \"NFC\"}" : "null");
    sy_strbuf_puts(out, ",\n\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [");
    for (size_t i = 0; i < SPLITS_MAX && pre->split[i] != NULL; i++) {
        sy_strbuf_puts(out, "\n{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
        sy_strbuf_json_string(out, pre->split[i], strlen(pre->split[i]));
        sy_strbuf_puts(out, "}, \"behavior\": \"Isolated\", \"invert\": false},");
    }
    if (pre->splits_digits)
        sy_strbuf_puts(out, "\n{\"type\": \"Digits\", \"individual_digits\": true},");
    sy_strbuf_puts(out, "\n");
    write_byte_level(out, pre->split[0] == NULL);
    sy_strbuf_puts(out, "]},\n\"post_processor\": null,\n\"decoder\": ");
    write_byte_level(out, 1);
}

/* "left right": a space may be the left part's first character, and nowhere else. */
static sy_status write_merges(sy_strbuf *out, const sy_gguf *metadata, sy_error *err)
{
    const sy_gguf_value *merges = NULL;
    const sy_status st =
        sy_gguf_array(&merges, metadata, "tokenizer.ggml.merges", SY_GGUF_KIND_STRING, err);

    if (st != SY_OK) return st;
    sy_strbuf_puts(out, ",\n\"merges\": [");
    for (size_t i = 0; i < merges->n; i++) {
        const sy_gguf_string *merge = &merges->strings[i];
        const char *space = merge->n > 1 ? memchr(merge->s + 1, ' ', merge->n - 1) : NULL;
        sy_gguf_string left, right;

        if (space == NULL || space + 1 == merge->s + merge->n) {
            return sy_error_set(err, SY_EINVAL, "tokenizer.ggml.merges[%zu] is no pair: \"%.*s\"",
                                i, (int)SY_MIN(merge->n, (size_t)64), merge->s);
        }
        left = (sy_gguf_string){.s = merge->s, .n = (size_t)(space - merge->s)};
        right = (sy_gguf_string){.s = space + 1, .n = merge->n - left.n - 1};
        sy_strbuf_puts(out, i > 0 ? ",\n[" : "[");
        write_string(out, &left);
        sy_strbuf_puts(out, ",");
        write_string(out, &right);
        sy_strbuf_puts(out, "]");
    }
    sy_strbuf_puts(out, "]");
    return SY_OK;
}

static sy_status write_gpt2(sy_strbuf *out, int *adds_bos, const gguf_vocab *vocab,
                            const sy_gguf *metadata, sy_error *err)
{
    const pre_tokenizer *pre = NULL;
    sy_status st;

    SY_TRY(find_pre(&pre, metadata, err));
    *adds_bos = pre->adds_bos;
    write_added(out, vocab);
    write_pre(out, pre);
    sy_strbuf_printf(out, ",\n\"model\": {\"type\": \"BPE\", \"ignore_merges\": %s",
                     pre->ignores_merges ? "true" : "false");
    write_vocab(out, vocab, 0);
    SY_TRY(write_merges(out, metadata, err));
    sy_strbuf_puts(out, "}}\n");
out:
    return st;
}

static size_t find_type(const gguf_vocab *vocab, gguf_token_type type)
{
    size_t id = 0;

    while (id < vocab->n && gguf_token_type_of(vocab, id) != type) id++;
    return id;
}

#define SPACE_MARK "\u2581"

static void write_marks(sy_strbuf *out, int has_prefix)
{
    sy_strbuf_puts(out, ",\n\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [");
    if (has_prefix)
        sy_strbuf_puts(out, "{\"type\": \"Prepend\", \"prepend\": \"" SPACE_MARK "\"}, ");
    sy_strbuf_puts(out, "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": "
                        "\"" SPACE_MARK "\"}]},\n\"pre_tokenizer\": null,\n\"post_processor\": "
                        "null,\n\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": "
                        "\"Replace\", \"pattern\": {\"String\": \"" SPACE_MARK "\"}, \"content\": "
                        "\" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}");
    if (has_prefix)
        sy_strbuf_puts(out,
                       ", {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}");
    sy_strbuf_puts(out, "]}");
}

static sy_status write_llama(sy_strbuf *out, int *adds_bos, const gguf_vocab *vocab,
                             const sy_gguf *metadata, sy_error *err)
{
    static const char prefix_key[] = "tokenizer.ggml.add_space_prefix";
    const size_t unknown = find_type(vocab, GGUF_TOKEN_UNKNOWN);
    int has_prefix = 1;
    sy_status st = SY_OK;

    *adds_bos = 1;
    if (vocab->scores == NULL)
        return sy_error_set(err, SY_EINVAL, "tokenizer.ggml.scores is missing");
    if (sy_gguf_value_of(metadata, prefix_key) != NULL)
        SY_TRY(sy_gguf_bool(&has_prefix, metadata, prefix_key, err));
    write_added(out, vocab);
    write_marks(out, has_prefix);
    sy_strbuf_puts(out, ",\n\"model\": {\"type\": \"BPE\", \"unk_token\": ");
    if (unknown < vocab->n)
        write_string(out, &vocab->tokens[unknown]);
    else
        sy_strbuf_puts(out, "null");
    sy_strbuf_printf(out, ", \"fuse_unk\": true, \"byte_fallback\": %s",
                     find_type(vocab, GGUF_TOKEN_BYTE) < vocab->n ? "true" : "false");
    write_vocab(out, vocab, 1);
    sy_strbuf_puts(out, ",\n\"merges\": ");
    SY_TRY(gguf_merges_of_scores(out, vocab, err));
    sy_strbuf_puts(out, "}}\n");
out:
    return st;
}

/* Writes the text of the token whose id stands under key; *is_there says whether one does. */
static sy_status write_named(sy_strbuf *out, int *is_there, const char *name, const char *key,
                             const gguf_vocab *vocab, const sy_gguf *metadata, sy_error *err)
{
    uint32_t id = 0;
    sy_status st;

    *is_there = 0;
    if (sy_gguf_value_of(metadata, key) == NULL) return SY_OK;
    st = sy_gguf_u32(&id, metadata, key, err);
    if (st != SY_OK) return st;
    if (id >= vocab->n) {
        return sy_error_set(err, SY_EINVAL, "%s is %" PRIu32 ", but there are %zu tokens", key, id,
                            vocab->n);
    }
    sy_strbuf_printf(out, "  \"%s\": ", name);
    write_string(out, &vocab->tokens[id]);
    sy_strbuf_puts(out, ",\n");
    *is_there = 1;
    return SY_OK;
}

static sy_status read_flag(int *flag, const char *key, const sy_gguf *metadata, sy_error *err)
{
    return sy_gguf_value_of(metadata, key) != NULL ? sy_gguf_bool(flag, metadata, key, err) : SY_OK;
}

static sy_status write_config(sy_strbuf *out, int adds_bos, const gguf_vocab *vocab,
                              const sy_gguf *metadata, sy_error *err)
{
    static const char template_key[] = "tokenizer.chat_template";
    sy_gguf_string template;
    int adds_eos = 0;
    int has_bos, has_eos, has_other;
    sy_status st;

    SY_TRY(read_flag(&adds_bos, "tokenizer.ggml.add_bos_token", metadata, err));
    SY_TRY(read_flag(&adds_eos, "tokenizer.ggml.add_eos_token", metadata, err));
    sy_strbuf_puts(out, "{\n");
    SY_TRY(write_named(out, &has_bos, "bos_token", "tokenizer.ggml.bos_token_id", vocab, metadata,
                       err));
    SY_TRY(write_named(out, &has_eos, "eos_token", "tokenizer.ggml.eos_token_id", vocab, metadata,
                       err));
    SY_TRY(write_named(out, &has_other, "unk_token", "tokenizer.ggml.unknown_token_id", vocab,
                       metadata, err));
    SY_TRY(write_named(out, &has_other, "pad_token", "tokenizer.ggml.padding_token_id", vocab,
                       metadata, err));
    if (sy_gguf_value_of(metadata, template_key) != NULL) {
        SY_TRY(sy_gguf_string_of(&template, metadata, template_key, err));
        sy_strbuf_puts(out, "  \"chat_template\": ");
        write_string(out, &template);
        sy_strbuf_puts(out, ",\n");
    }
    sy_strbuf_printf(out, "  \"add_bos_token\": %s,\n  \"add_eos_token\": %s\n}\n",
                     adds_bos && has_bos ? "true" : "false",
                     adds_eos && has_eos ? "true" : "false");
out:
    return st;
}

sy_status sy_gguf_tokenizer(sy_strbuf *tokenizer_json, sy_strbuf *config_json,
                            const sy_gguf *metadata, sy_error *err)
{
    sy_gguf_string model = {0};
    gguf_vocab vocab;
    int adds_bos = 0;
    sy_status st;

    SY_TRY(sy_gguf_string_of(&model, metadata, "tokenizer.ggml.model", err));
    SY_TRY(gguf_vocab_read(&vocab, metadata, err));
    if (text_is(&model, "gpt2")) {
        SY_TRY(write_gpt2(tokenizer_json, &adds_bos, &vocab, metadata, err));
    } else if (text_is(&model, "llama")) {
        SY_TRY(write_llama(tokenizer_json, &adds_bos, &vocab, metadata, err));
    } else {
        return sy_error_set(err, SY_EUNIMPLEMENTED,
                            "tokenizer.ggml.model is \"%.*s\"; gpt2 and llama are supported: put "
                            "the model's own tokenizer.json beside the file",
                            (int)SY_MIN(model.n, (size_t)64), model.s);
    }
    SY_TRY(write_config(config_json, adds_bos, &vocab, metadata, err));
    if (tokenizer_json->failed || config_json->failed)
        st = sy_error_set(err, SY_ENOMEM, "no memory for the tokenizer");
out:
    if (st == SY_ENOTFOUND) { /* a key: the file's mistake */
        st = SY_EINVAL;
        if (err != NULL) err->status = st;
    }
    return st;
}
