/* sy_chat_lex.c - from text to tokens, with Jinja's rules on white space. */
#include "sy_chat_lex.h"

#include <stdlib.h>
#include <string.h>

#include "sy_chat_text.h"
#include "sy_unicode.h"

#define BRACKETS_MAX 256
#define NUMBER_BYTES 128

typedef struct lexer {
    chat_run *run;
    chat_tokens *out;
    const char *text; /* [n] */
    size_t n, at;
    size_t counted; /* line ends before here are in run->line */
    char bracket[BRACKETS_MAX];
    size_t n_brackets;
    chat_token spare; /* what a failed run writes to; never read */
} lexer;

/* What is at `at` gives tokens and messages their line. */
static void mark_line(lexer *lx, size_t at)
{
    for (; lx->counted < at; lx->counted++) lx->run->line += lx->text[lx->counted] == '\n';
}

static chat_token *push(lexer *lx, chat_token_kind kind)
{
    chat_tokens *out = lx->out;

    if (out->n == out->capacity) {
        const size_t larger = SY_MAX((size_t)256, 2 * out->capacity);
        chat_token *token = sy_chat_alloc(lx->run, larger, sizeof(*token));

        if (token == NULL) return &lx->spare;
        if (out->n > 0) memcpy(token, out->token, out->n * sizeof(*token));
        out->token = token;
        out->capacity = larger;
    }
    out->token[out->n] = (chat_token){.kind = kind, .line = lx->run->line};
    return &out->token[out->n++];
}

static int has(const lexer *lx, size_t at, const char *literal)
{
    const size_t len = strlen(literal);

    return at <= lx->n && len <= lx->n - at && memcmp(lx->text + at, literal, len) == 0;
}

static size_t skip_space(const lexer *lx, size_t at)
{
    return at + sy_chat_space_prefix(lx->text + at, lx->n - at);
}

static char sign_at(const lexer *lx, size_t at)
{
    return has(lx, at, "-") ? '-' : has(lx, at, "+") ? '+' : '\0';
}

/* Text from `from` up to a tag at `end`, less what the tag's sign ('-', '+' or 0) and lstrip_blocks
 * take from its end. */
static void push_text(lexer *lx, size_t from, size_t end, char sign, int is_print)
{
    const char *s = lx->text + from;
    size_t keep = end - from;

    if (sign == '-') {
        keep = sy_chat_rstrip_space(s, keep);
    } else if (sign != '+' && !is_print) {
        size_t line = keep;

        while (line > 0 && s[line - 1] != '\n') line--;
        if ((line > 0 || from == 0 || lx->text[from - 1] == '\n') &&
            sy_chat_space_prefix(s + line, keep - line) == keep - line) {
            keep = line;
        }
    }
    if (keep > 0) {
        const chat_value text = sy_chat_string(lx->run, s, keep);

        push(lx, CHAT_T_TEXT)->value = text;
    }
}

/* The end of a tag or comment: "+%}", "-%}" with the space behind it, "%}" with one end of line.
 * Returns where the text goes on; 0: no such end is at `at`. */
static size_t block_end(const lexer *lx, size_t at, const char *end)
{
    if (has(lx, at, "+") && has(lx, at + 1, end)) return at + 3;
    if (has(lx, at, "-") && has(lx, at + 1, end)) return skip_space(lx, at + 3);
    if (!has(lx, at, end)) return 0;
    return has(lx, at + 2, "\n") ? at + 3 : at + 2;
}

static size_t print_end(const lexer *lx, size_t at)
{
    if (has(lx, at, "-}}")) return skip_space(lx, at + 3);
    return has(lx, at, "}}") ? at + 2 : 0;
}

static void lex_comment(lexer *lx)
{
    const size_t begin = lx->at + 2 + (sign_at(lx, lx->at + 2) != '\0');

    for (size_t at = begin; at < lx->n; at++) {
        const size_t next = block_end(lx, at, "#}");

        if (next == 0) continue;
        lx->at = next;
        return;
    }
    sy_chat_fail(lx->run, SY_EINVAL, "a comment does not end: #} is missing");
}

/* Where "{%- name" at `at` goes on, past the space behind it; 0: it is another tag. */
static size_t match_tag(const lexer *lx, size_t at, const char *name)
{
    if (!has(lx, at, "{%")) return 0;
    at += 2 + (sign_at(lx, at + 2) != '\0');
    at = skip_space(lx, at);
    return has(lx, at, name) ? skip_space(lx, at + strlen(name)) : 0;
}

static size_t match_raw(const lexer *lx)
{
    const size_t at = match_tag(lx, lx->at, "raw");

    if (at == 0) return 0;
    if (has(lx, at, "-%}")) return skip_space(lx, at + 3);
    return has(lx, at, "%}") ? at + 2 : 0;
}

static void lex_raw(lexer *lx, size_t begin)
{
    for (size_t at = begin; at < lx->n; at++) {
        const size_t name_end = lx->text[at] == '{' ? match_tag(lx, at, "endraw") : 0;
        const size_t next = name_end == 0 ? 0 : block_end(lx, name_end, "%}");

        if (next == 0) continue;
        push_text(lx, begin, at, sign_at(lx, at + 2), 0);
        lx->at = next;
        return;
    }
    sy_chat_fail(lx->run, SY_EINVAL, "a raw block does not end: {%% endraw %%} is missing");
}

static int is_name_start(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static void lex_string(lexer *lx)
{
    const char quote = lx->text[lx->at];
    const size_t begin = lx->at + 1;
    size_t end = begin;
    chat_value value;

    while (end < lx->n && lx->text[end] != quote) end += lx->text[end] == '\\' ? 2 : 1;
    if (end >= lx->n) {
        sy_chat_fail(lx->run, SY_EINVAL, "a string does not end: %c is missing", quote);
        return;
    }
    value = sy_chat_unescape(lx->run, lx->text + begin, end - begin);
    push(lx, CHAT_T_STRING)->value = value;
    lx->at = end + 1;
}

/* Appends the digits at `at`, less single underscores between them, to out: [NUMBER_BYTES], of
 * which a part stays free. Returns where they end. */
static size_t digits(const lexer *lx, size_t at, char *out, size_t *n_out)
{
    const size_t begin = at;

    for (; at < lx->n; at++) {
        if (is_digit(lx->text[at])) {
            if (*n_out < NUMBER_BYTES - 8) out[(*n_out)++] = lx->text[at];
        } else if (lx->text[at] != '_' || at == begin || lx->text[at - 1] == '_' ||
                   at + 1 == lx->n || !is_digit(lx->text[at + 1])) {
            break;
        }
    }
    return at;
}

static chat_value integer_value(lexer *lx, const char *text)
{
    int64_t value = 0;

    if (text[0] == '0' && strspn(text, "0") != strlen(text)) {
        sy_chat_fail(lx->run, SY_EINVAL, "a number begins with 0");
    }
    for (const char *c = text; *c != '\0'; c++) {
        if (__builtin_mul_overflow(value, (int64_t)10, &value) ||
            __builtin_add_overflow(value, (int64_t)(*c - '0'), &value)) {
            sy_chat_fail(lx->run, SY_EINVAL, "the number %.40s does not fit 64 bits", text);
            break;
        }
    }
    return sy_chat_int(value);
}

/* The exponent at `at`, if one is there: appends it and returns where it ends. */
static size_t exponent(const lexer *lx, size_t at, char *out, size_t *n_out)
{
    const int is_e = at < lx->n && (lx->text[at] == 'e' || lx->text[at] == 'E');
    const size_t first = at + 1 + (is_e && sign_at(lx, at + 1) != '\0');

    if (!is_e || first >= lx->n || !is_digit(lx->text[first])) return at;
    out[(*n_out)++] = 'e';
    if (first == at + 2) out[(*n_out)++] = lx->text[at + 1];
    return digits(lx, first, out, n_out);
}

static void lex_number(lexer *lx)
{
    char text[NUMBER_BYTES];
    size_t n = 0;
    size_t at = digits(lx, lx->at, text, &n);
    size_t end = at;
    chat_value value;

    if (at + 1 < lx->n && lx->text[at] == '.' && is_digit(lx->text[at + 1]) &&
        (lx->at == 0 || lx->text[lx->at - 1] != '.')) {
        text[n++] = '.';
        end = digits(lx, at + 1, text, &n);
    }
    end = exponent(lx, end, text, &n);
    text[n] = '\0';
    if (n >= NUMBER_BYTES - 8) sy_chat_fail(lx->run, SY_EINVAL, "a number is too long");
    if (end < lx->n && (is_name_start(lx->text[end]) || is_digit(lx->text[end]))) {
        sy_chat_fail(lx->run, SY_EINVAL, "not a number: %.40s%c", text, lx->text[end]);
    }
    value = end > at ? sy_chat_float(strtod(text, NULL)) : integer_value(lx, text);
    push(lx, CHAT_T_NUMBER)->value = value;
    lx->at = end;
}

/* Brackets must match: "}}" ends a {{ only where no bracket is open. */
static void follow_brackets(lexer *lx, char c)
{
    const char want = lx->n_brackets > 0 ? lx->bracket[lx->n_brackets - 1] : '\0';

    if (c == '(' || c == '[' || c == '{') {
        if (lx->n_brackets == BRACKETS_MAX) {
            sy_chat_fail(lx->run, SY_ELIMIT, "more than %d brackets are open", BRACKETS_MAX);
            return;
        }
        lx->bracket[lx->n_brackets++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (c == want) {
            lx->n_brackets--;
        } else if (want == '\0') {
            sy_chat_fail(lx->run, SY_EINVAL, "unexpected '%c'", c);
        } else {
            sy_chat_fail(lx->run, SY_EINVAL, "unexpected '%c', expected '%c'", c, want);
        }
    }
}

static void lex_operator(lexer *lx)
{
    static const char *const pairs[] = {"//", "**", "==", "!=", ">=", "<="};
    const char c = lx->text[lx->at];
    size_t n = 1;
    chat_token *token;

    for (size_t i = 0; i < SY_COUNT_OF(pairs); i++) {
        if (has(lx, lx->at, pairs[i])) n = 2;
    }
    if (n == 1 && (c == '\0' || strchr("+-/*%~[](){}><=.:|,", c) == NULL)) {
        if (c > ' ' && c < 0x7F) {
            sy_chat_fail(lx->run, SY_EINVAL, "unexpected '%c'", c);
        } else {
            sy_chat_fail(lx->run, SY_EINVAL, "a byte that no expression has: 0x%02x",
                         (unsigned)(uint8_t)c);
        }
        return;
    }
    if (n == 1) follow_brackets(lx, c);
    token = push(lx, CHAT_T_OPERATOR);
    token->text = lx->text + lx->at;
    token->n = n;
    lx->at += n;
}

static void lex_name(lexer *lx)
{
    size_t end = lx->at;
    chat_token *token = push(lx, CHAT_T_NAME);

    while (end < lx->n && (is_name_start(lx->text[end]) || is_digit(lx->text[end]))) end++;
    token->text = lx->text + lx->at;
    token->n = end - lx->at;
    lx->at = end;
}

static void lex_inside(lexer *lx)
{
    const char c = lx->text[lx->at];

    if (is_digit(c)) {
        lex_number(lx);
    } else if (is_name_start(c)) {
        lex_name(lx);
    } else if (c == '\'' || c == '"') {
        lex_string(lx);
    } else {
        lex_operator(lx);
    }
}

static void lex_tag(lexer *lx, int is_print)
{
    push(lx, is_print ? CHAT_T_PRINT_BEGIN : CHAT_T_TAG_BEGIN);
    lx->at += 2 + (sign_at(lx, lx->at + 2) != '\0');
    lx->n_brackets = 0;
    while (lx->run->status == SY_OK) {
        size_t next = 0;

        lx->at = skip_space(lx, lx->at);
        mark_line(lx, lx->at);
        if (lx->at >= lx->n) {
            sy_chat_fail(lx->run, SY_EINVAL, "a tag does not end: %s is missing",
                         is_print ? "}}" : "%}");
            return;
        }
        if (lx->n_brackets == 0) {
            next = is_print ? print_end(lx, lx->at) : block_end(lx, lx->at, "%}");
        }
        if (next > 0) {
            push(lx, is_print ? CHAT_T_PRINT_END : CHAT_T_TAG_END);
            lx->at = next;
            return;
        }
        lex_inside(lx);
    }
}

static size_t find_tag(const lexer *lx)
{
    size_t at = lx->at;

    while (at < lx->n) {
        const char *brace = memchr(lx->text + at, '{', lx->n - at);

        if (brace == NULL) break;
        at = (size_t)(brace - lx->text);
        if (has(lx, at, "{%") || has(lx, at, "{{") || has(lx, at, "{#")) return at;
        at++;
    }
    return lx->n;
}

void sy_chat_lex(chat_run *run, chat_tokens *out, const char *text, size_t n)
{
    lexer lx = {.run = run, .out = out, .text = text, .n = n};

    *out = (chat_tokens){0};
    run->line = 1;
    while (run->status == SY_OK && lx.at < n) {
        const size_t from = lx.at;
        const size_t tag = find_tag(&lx);
        size_t raw;

        mark_line(&lx, from);
        if (tag == n) {
            push_text(&lx, from, n, '+', 0);
            break;
        }
        push_text(&lx, from, tag, sign_at(&lx, tag + 2), text[tag + 1] == '{');
        mark_line(&lx, tag);
        lx.at = tag;
        raw = match_raw(&lx);
        if (raw > 0) {
            lex_raw(&lx, raw);
        } else if (text[tag + 1] == '#') {
            lex_comment(&lx);
        } else {
            lex_tag(&lx, text[tag + 1] == '{');
        }
    }
    mark_line(&lx, n);
    push(&lx, CHAT_T_END);
}
