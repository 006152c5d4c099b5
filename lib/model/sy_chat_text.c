/* sy_chat_text.c - characters as Python sees them. Upper and lower case are those of single
 * characters, the sharp s excepted; where Python makes two characters of one (ligatures) or looks
 * at its neighbours (the final sigma), the character that utf8proc pairs it with stands. */
#include "sy_chat_text.h"

#include <string.h>

#include <utf8proc.h>

#include "sy_unicode.h"

#define SHARP_S 0xDFu

int sy_chat_is_space(uint32_t c)
{
    if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
    return sy_unicode_is_space(c);
}

size_t sy_chat_space_prefix(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n) {
        size_t next = i;

        if (!sy_chat_is_space(sy_utf8_next(s, &next))) break;
        i = next;
    }
    return i;
}

size_t sy_chat_rstrip_space(const char *s, size_t n)
{
    while (n > 0) {
        size_t start = n - 1;
        size_t i;

        while (start > 0 && ((uint8_t)s[start] & 0xC0) == 0x80) start--;
        i = start;
        if (!sy_chat_is_space(sy_utf8_next(s, &i))) break;
        n = start;
    }
    return n;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* \xHH, \uHHHH, \UHHHHHHHH: n_digits hexadecimal digits at s: [n]. */
static size_t hex_escape(chat_run *run, char *out, const char *s, size_t n, size_t n_digits)
{
    uint32_t c = 0;

    for (size_t i = 0; i < n_digits; i++) {
        if (i >= n || hex_digit(s[i]) < 0) {
            sy_chat_fail(run, SY_EINVAL, "a \\x, \\u or \\U in a string lacks its digits");
            return 0;
        }
        c = c << 4 | (uint32_t)hex_digit(s[i]);
    }
    if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) {
        sy_chat_fail(run, SY_EINVAL, "an escape in a string names no character: U+%X", (unsigned)c);
        return 0;
    }
    return sy_utf8_put(out, c);
}

static size_t octal_escape(char *out, const char *s, size_t n, size_t *used)
{
    uint32_t c = 0;

    for (*used = 0; *used < 3 && *used < n && s[*used] >= '0' && s[*used] <= '7'; ++*used) {
        c = c << 3 | (uint32_t)(s[*used] - '0');
    }
    return sy_utf8_put(out, c);
}

/* One escape; s: [n] begins after the backslash, n >= 1. Returns the bytes written to out: [4]. */
static size_t unescape_one(chat_run *run, char *out, const char *s, size_t n, size_t *used)
{
    static const char from[] = "\\'\"abfnrtv";
    static const char to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *simple = s[0] == '\0' ? NULL : strchr(from, s[0]);

    *used = 1;
    if (simple != NULL) {
        out[0] = to[simple - from];
        return 1;
    }
    switch (s[0]) {
    case '\n': return 0;
    case 'x': *used = 3; return hex_escape(run, out, s + 1, n - 1, 2);
    case 'u': *used = 5; return hex_escape(run, out, s + 1, n - 1, 4);
    case 'U': *used = 9; return hex_escape(run, out, s + 1, n - 1, 8);
    case 'N': sy_chat_fail(run, SY_EINVAL, "\\N{...} in a string is not supported"); return 0;
    default: break;
    }
    if (s[0] >= '0' && s[0] <= '7') return octal_escape(out, s, n, used);
    if ((uint8_t)s[0] >= 0x80) {
        sy_chat_fail(run, SY_EINVAL, "a backslash before a character that is not ASCII");
        return 0;
    }
    out[0] = '\\'; /* what is no escape stays as it stands */
    out[1] = s[0];
    return 2;
}

chat_value sy_chat_unescape(chat_run *run, const char *s, size_t n)
{
    sy_strbuf buf;

    if (memchr(s, '\\', n) == NULL) return sy_chat_string(run, s, n);
    sy_chat_text_begin(&buf);
    for (size_t i = 0; i < n && run->status == SY_OK;) {
        const char *slash = memchr(s + i, '\\', n - i);
        const size_t end = slash == NULL ? n : (size_t)(slash - s);
        char out[4];
        size_t used = 0;

        sy_chat_put(run, &buf, s + i, end - i);
        i = end;
        if (i + 1 >= n) break; /* the lexer saw to it that no backslash is last */
        sy_chat_put(run, &buf, out, unescape_one(run, out, s + i + 1, n - i - 1, &used));
        i += 1 + used;
    }
    return sy_chat_text_end(run, &buf);
}

static void put_char(chat_run *run, sy_strbuf *buf, utf8proc_int32_t c)
{
    char out[4];

    sy_chat_put(run, buf, out, sy_utf8_put(out, (uint32_t)c));
}

static void put_case(chat_run *run, sy_strbuf *buf, uint32_t c, chat_case to)
{
    if (to == CHAT_LOWER) {
        put_char(run, buf, utf8proc_tolower((utf8proc_int32_t)c));
    } else if (c == SHARP_S) {
        sy_chat_put(run, buf, to == CHAT_UPPER ? "SS" : "Ss", 2);
    } else if (to == CHAT_UPPER) {
        put_char(run, buf, utf8proc_toupper((utf8proc_int32_t)c));
    } else {
        put_char(run, buf, utf8proc_totitle((utf8proc_int32_t)c));
    }
}

static int is_cased(uint32_t c)
{
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);

    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
           category == UTF8PROC_CATEGORY_LT;
}

chat_value sy_chat_change_case(chat_run *run, chat_value s, chat_case to)
{
    sy_strbuf buf;
    chat_value changed;
    int in_word = 0;

    sy_chat_text_begin(&buf);
    for (size_t i = 0; i < s.str->n && run->status == SY_OK;) {
        const uint32_t c = sy_utf8_next(s.str->data, &i);

        if (to == CHAT_UPPER || to == CHAT_LOWER) {
            put_case(run, &buf, c, to);
        } else {
            put_case(run, &buf, c, in_word ? CHAT_LOWER : CHAT_TITLE);
            in_word = to == CHAT_CAPITALIZE || is_cased(c);
        }
    }
    changed = sy_chat_text_end(run, &buf);
    changed.is_safe = s.is_safe;
    return changed;
}

chat_value sy_chat_title(chat_run *run, chat_value s)
{
    sy_strbuf buf;
    int in_word = 0;

    sy_chat_text_begin(&buf);
    for (size_t i = 0; i < s.str->n && run->status == SY_OK;) {
        const uint32_t c = sy_utf8_next(s.str->data, &i);

        put_case(run, &buf, c, in_word ? CHAT_LOWER : CHAT_UPPER);
        in_word = !sy_chat_is_space(c) && (c == 0 || c >= 0x80 || strchr("-({[<", (int)c) == NULL);
    }
    return sy_chat_text_end(run, &buf);
}

chat_value sy_chat_escape_html(chat_run *run, chat_value s)
{
    static const char special[] = "&<>'\"";
    static const char *const texts[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    sy_strbuf buf;
    chat_value escaped;

    if (s.is_safe) return s;
    sy_chat_text_begin(&buf);
    for (size_t i = 0; i < s.str->n && run->status == SY_OK; i++) {
        const char c = s.str->data[i];
        const char *found = c == '\0' ? NULL : strchr(special, c);

        if (found == NULL) {
            sy_chat_put(run, &buf, &c, 1);
        } else {
            sy_chat_put(run, &buf, texts[found - special], strlen(texts[found - special]));
        }
    }
    escaped = sy_chat_text_end(run, &buf);
    escaped.is_safe = 1;
    return escaped;
}

static int in_class(uint32_t c, chat_class which)
{
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    const int is_alpha = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;

    switch (which) {
    case CHAT_ALPHA: return is_alpha;
    case CHAT_DIGIT: return category == UTF8PROC_CATEGORY_ND;
    case CHAT_ALNUM: return is_alpha || sy_unicode_is_numeric(c);
    case CHAT_SPACE: return sy_chat_is_space(c);
    case CHAT_IS_UPPER: return category == UTF8PROC_CATEGORY_LU;
    case CHAT_IS_LOWER: return category == UTF8PROC_CATEGORY_LL;
    }
    return 0;
}

int sy_chat_is_class(chat_run *run, const chat_str *s, chat_class which)
{
    const int is_case = which == CHAT_IS_UPPER || which == CHAT_IS_LOWER;
    int n_in = 0;

    sy_chat_charge(run, s->n);
    for (size_t i = 0; i < s->n;) {
        const uint32_t c = sy_utf8_next(s->data, &i);

        if (in_class(c, which)) {
            n_in = 1;
        } else if (!is_case || is_cased(c)) {
            return 0;
        }
    }
    return n_in;
}
