/* sy_regex.c - compiled patterns and bounded searches with PCRE2. */
#include "sy_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>

/* Steps one match may take: the patterns of real tokenizers need at most a few a byte, when a run
 * of one kind is tried by one alternative, given back, and taken by another. */
#define MATCH_STEPS_A_BYTE 16u
#define MATCH_STEPS_MIN    1000000u
#define MATCH_HEAP_KIB     (256u * 1024u)
#define PATTERN_DEPTH_MAX  64u

struct sy_regex {
    pcre2_code *code;
};

struct sy_regex_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
};

static sy_status compile(sy_regex *regex, const sy_strbuf *pattern, sy_error *err)
{
    const uint32_t options =
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    sy_status st = SY_ENOMEM;
    int code = 0;
    size_t at = 0;
    uint32_t may_be_empty = 0;

    if (context == NULL) goto out;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, PATTERN_DEPTH_MAX);
    regex->code =
        pcre2_compile((PCRE2_SPTR)pattern->data, pattern->len, options, &code, &at, context);
    if (regex->code == NULL) {
        PCRE2_UCHAR text[120] = "";
        pcre2_get_error_message(code, text, sizeof(text));
        st = sy_error_set(err, SY_EINVAL, "regular expression: %s", (const char *)text);
        goto out;
    }
    if (pcre2_pattern_info(regex->code, PCRE2_INFO_MATCHEMPTY, &may_be_empty) != 0 ||
        may_be_empty) {
        st =
            sy_error_set(err, SY_EINVAL,
                         "regular expression: it can match the empty string, which splits nothing");
        goto out;
    }
    /* Where there is no JIT the interpreter gives the same matches. */
    (void)pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE);
    st = SY_OK;
out:
    pcre2_compile_context_free(context);
    return st;
}

sy_status sy_regex_open(sy_regex **out, const char *pattern, size_t n, sy_error *err)
{
    sy_status st = SY_ENOMEM;
    sy_regex *self = calloc(1, sizeof(*self));
    sy_strbuf translated;

    *out = NULL;
    sy_strbuf_init(&translated);
    if (self == NULL) goto out;
    SY_TRY(sy_regex_translate(&translated, pattern, n, err));
    SY_TRY(compile(self, &translated, err));
    *out = self;
    self = NULL;
out:
    sy_strbuf_free(&translated);
    sy_regex_close(self);
    return st;
}

void sy_regex_close(sy_regex *regex)
{
    if (regex == NULL) return;
    pcre2_code_free(regex->code);
    free(regex);
}

sy_status sy_regex_scratch_open(sy_regex_scratch **out)
{
    sy_regex_scratch *self = calloc(1, sizeof(*self));

    *out = NULL;
    if (self == NULL) return SY_ENOMEM;
    self->data = pcre2_match_data_create(1, NULL);
    self->context = pcre2_match_context_create(NULL);
    if (self->data == NULL || self->context == NULL) {
        sy_regex_scratch_close(self);
        return SY_ENOMEM;
    }
    pcre2_set_heap_limit(self->context, MATCH_HEAP_KIB);
    *out = self;
    return SY_OK;
}

void sy_regex_scratch_close(sy_regex_scratch *scratch)
{
    if (scratch == NULL) return;
    pcre2_match_data_free(scratch->data);
    pcre2_match_context_free(scratch->context);
    free(scratch);
}

sy_status sy_regex_find(const sy_regex *regex, sy_regex_scratch *scratch, const char *s, size_t n,
                        size_t from, size_t match[2], sy_error *err)
{
    const size_t steps =
        SY_MAX(MATCH_STEPS_MIN, SY_MIN(n, UINT32_MAX / MATCH_STEPS_A_BYTE) * MATCH_STEPS_A_BYTE);
    /* The text was checked once: checking it again at every match would be quadratic. */
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc;

    pcre2_set_match_limit(scratch->context, (uint32_t)steps);
    rc = pcre2_match(regex->code, (PCRE2_SPTR)s, n, from, options, scratch->data, scratch->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        /* The interpreter keeps its backtracking on the heap, under the limit above. */
        options |= PCRE2_NO_JIT;
        rc = pcre2_match(regex->code, (PCRE2_SPTR)s, n, from, options, scratch->data,
                         scratch->context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return SY_ENOTFOUND;
    if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_DEPTHLIMIT ||
        rc == PCRE2_ERROR_HEAPLIMIT) {
        return sy_error_set(err, SY_ELIMIT,
                            "the tokenizer's regular expression needs too many steps on this text; "
                            "shorten the run of similar characters near byte %zu",
                            from);
    }
    if (rc == PCRE2_ERROR_NOMEMORY) return SY_ENOMEM;
    if (rc < 0) return sy_error_set(err, SY_EINTERNAL, "PCRE2 failed with code %d", rc);
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(scratch->data);
    if (range[1] <= range[0] || range[0] < from || range[1] > n) {
        return sy_error_set(err, SY_EINTERNAL, "PCRE2 returned an impossible match");
    }
    match[0] = range[0];
    match[1] = range[1];
    return SY_OK;
}
