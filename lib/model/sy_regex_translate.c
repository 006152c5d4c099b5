/* sy_regex_translate.c - from Oniguruma's Ruby syntax to PCRE2's. Only syntax whose meaning is
 * known to be the same, or that has an exact translation, passes; the rest is an error that names
 * it. */
#include "sy_regex.h"
#include "sy_unicode.h"

#include <string.h>

#define DEPTH_MAX 32

/* \s is White_Space in Oniguruma; PCRE2's own \s adds U+180E. Ranges match faster than the
 * property. */
#define SPACE_RANGES \
    "\\t-\\r "       \
    "\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define WORD_CLASSES "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
/* Outside brackets Oniguruma's \w has the Latin-1 fractions and superscripts besides. */
#define WORD_ALONE WORD_CLASSES "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

/* The general categories: each character has exactly one. */
static const char categories[][3] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                     "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                     "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

typedef struct translation {
    sy_strbuf *out;
    const char *s;
    size_t n, i;
    unsigned depth;
    int ignores_case[DEPTH_MAX]; /* by group depth */
    sy_error *err;
} translation;

/* A pattern that is quadratic as it stands and has a linear equal. In a run of whitespace a match
 * ends at the run's last `$`, so only the run's first character can begin one. */
static const struct {
    const char *from, *to;
} rewritten[] = {{"\\s+$", "(?<![" SPACE_RANGES "])[" SPACE_RANGES "]+$"}};

static sy_status refuse(translation *t, const char *what)
{
    return sy_error_set(t->err, SY_EINVAL, "regular expression, byte %zu: %s is not supported",
                        t->i, what);
}

static int peek(const translation *t, size_t ahead)
{
    return ahead < t->n - t->i ? (uint8_t)t->s[t->i + ahead] : -1;
}

static int starts_with(const translation *t, const char *text)
{
    const size_t len = strlen(text);
    return len <= t->n - t->i && memcmp(t->s + t->i, text, len) == 0;
}

static int is_hex(int c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static int is_letter(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static int is_digit(int c)
{
    return c >= '0' && c <= '9';
}

/* \uHHHH, \xHH below 80, \x{H...}; t->i stands on the backslash. */
static sy_status translate_code_point(translation *t)
{
    const int braces = peek(t, 1) == 'x' && peek(t, 2) == '{';
    const size_t from = t->i + (braces ? 3 : 2);
    const size_t max = braces ? 6 : peek(t, 1) == 'u' ? 4 : 2;
    size_t end = from;

    while (end < t->n && end - from < max && is_hex((uint8_t)t->s[end])) end++;
    if (braces ? end == from || end == t->n || t->s[end] != '}' : end - from != max) {
        return refuse(t, "this escape for a code point");
    }
    if (!braces && max == 2 && t->s[from] > '7') return refuse(t, "\\x for a single byte");
    sy_strbuf_printf(t->out, "\\x{%.*s}", (int)(end - from), t->s + from);
    t->i = end + (braces ? 1 : 0);
    return SY_OK;
}

/* \p{Name}, \P{Name}, \p{^Name}. General categories are spelt alike; any other name must be a
 * script, and PCRE2 must be told so, since it would take script extensions. */
static sy_status translate_property(translation *t)
{
    const int inverse = peek(t, 3) == '^';
    const size_t from = t->i + (inverse ? 4 : 3);
    size_t end = from;
    int is_category;

    if (t->ignores_case[t->depth]) return refuse(t, "a property inside (?i:...)");
    if (peek(t, 2) != '{') return refuse(t, "a property without braces");
    while (end < t->n && (is_letter((uint8_t)t->s[end]) || t->s[end] == '_')) end++;
    if (end == from || end == t->n || t->s[end] != '}') return refuse(t, "this property name");
    is_category = end - from <= 2 && strchr("CLMNPSZ", t->s[from]) != NULL;
    sy_strbuf_printf(t->out, "\\%c{%s%s%.*s}", peek(t, 1), inverse ? "^" : "",
                     is_category ? "" : "sc:", (int)(end - from), t->s + from);
    t->i = end + 1;
    return SY_OK;
}

/* \s \S \w \W \d \D, where in_class says whether brackets stand around them already. */
static sy_status translate_kind(translation *t, int in_class)
{
    const char *text;

    if (t->ignores_case[t->depth]) return refuse(t, "a character class inside (?i:...)");
    switch (peek(t, 1)) {
    case 's': text = in_class ? SPACE_RANGES : "[" SPACE_RANGES "]"; break;
    case 'S': text = in_class ? "\\P{White_Space}" : "[^" SPACE_RANGES "]"; break;
    case 'w': text = in_class ? WORD_CLASSES : "[" WORD_ALONE "]"; break;
    case 'W':
        if (in_class) return refuse(t, "\\W inside brackets");
        text = "[^" WORD_ALONE "]";
        break;
    case 'd': text = "\\p{Nd}"; break;
    default: text = "\\P{Nd}"; break;
    }
    sy_strbuf_puts(t->out, text);
    t->i += 2;
    return SY_OK;
}

static sy_status translate_escape(translation *t, int in_class)
{
    const int c = peek(t, 1);

    switch (c) {
    case -1: return refuse(t, "a backslash at the end");
    case 's':
    case 'S':
    case 'w':
    case 'W':
    case 'd':
    case 'D': return translate_kind(t, in_class);
    case 'p':
    case 'P': return translate_property(t);
    case 'u':
    case 'x': return translate_code_point(t);
    case 'v': sy_strbuf_puts(t->out, "\\x{0B}"); break; /* PCRE2's \v is a class */
    case 'r':
    case 'n':
    case 't':
    case 'f':
    case 'a':
    case 'e': sy_strbuf_printf(t->out, "\\%c", c); break;
    default:
        if (is_letter(c) || is_digit(c) || c >= 0x80) return refuse(t, "this escape");
        sy_strbuf_printf(t->out, "\\%c", c);
        break;
    }
    t->i += 2;
    return SY_OK;
}

/* A character that stands for itself. Case folding of a single ASCII letter is the same in both
 * engines; beyond that Oniguruma folds one character into several. */
static sy_status copy_literal(translation *t)
{
    size_t end = t->i;
    const uint32_t c = sy_utf8_next(t->s, &end);

    if (c >= 0x80 && t->ignores_case[t->depth]) return refuse(t, "non-ASCII inside (?i:...)");
    if (c == 0) return refuse(t, "NUL");
    sy_strbuf_append(t->out, t->s + t->i, end - t->i);
    t->i = end;
    return SY_OK;
}

/* What stands between brackets, up to the ] that ends them. */
static sy_status translate_items(translation *t)
{
    sy_status st = SY_OK;

    if (peek(t, 0) == ']') return refuse(t, "an empty or unescaped ] class");
    while (peek(t, 0) != ']') {
        if (peek(t, 0) < 0) return refuse(t, "a class without its ]");
        if (peek(t, 0) == '[') return refuse(t, "a class inside a class");
        if (starts_with(t, "&&")) return refuse(t, "this intersection &&");
        SY_TRY(peek(t, 0) == '\\' ? translate_escape(t, 1) : copy_literal(t));
    }
out:
    return st;
}

/* "\p{Lu}" and "\p{L}" at the beginning of a list of them: how many bytes, 0: something else. Marks
 * in has[] what it covers. */
static size_t read_category(const char *s, size_t n, int has[SY_COUNT_OF(categories)])
{
    const size_t len = n >= 5 && s[4] == '}' ? 1 : 2;
    int found = 0;

    if (n < len + 4 || memcmp(s, "\\p{", 3) != 0 || s[3 + len] != '}') return 0;
    for (size_t k = 0; k < SY_COUNT_OF(categories); k++) {
        if (memcmp(categories[k], s + 3, len) != 0) continue;
        has[k] = 1;
        found = 1;
    }
    return found ? len + 4 : 0;
}

/* [A&&[^B]] where A is a list of general categories: every character has one of these, so that the
 * class is [^CB], C being the other categories. PCRE2 has no intersections. Leaves t alone, with
 * *taken 0, when the class is no such intersection. */
static sy_status translate_intersection(translation *t, int *taken)
{
    int has[SY_COUNT_OF(categories)] = {0};
    size_t i = t->i + 1, step;

    *taken = 0;
    while ((step = read_category(t->s + i, t->n - i, has)) > 0) i += step;
    if (t->n - i < 4 || i == t->i + 1 || memcmp(t->s + i, "&&[^", 4) != 0) return SY_OK;
    *taken = 1;
    t->i = i + 4;
    sy_strbuf_puts(t->out, "[^");
    for (size_t k = 0; k < SY_COUNT_OF(categories); k++) {
        if (!has[k]) sy_strbuf_printf(t->out, "\\p{%s}", categories[k]);
    }
    const sy_status st = translate_items(t);
    if (st != SY_OK) return st;
    if (!starts_with(t, "]]")) return refuse(t, "this intersection &&");
    sy_strbuf_puts(t->out, "]");
    t->i += 2;
    return SY_OK;
}

static sy_status translate_class(translation *t)
{
    int taken = 0;
    sy_status st = SY_OK;

    if (!t->ignores_case[t->depth]) SY_TRY(translate_intersection(t, &taken));
    if (taken) return SY_OK;
    sy_strbuf_puts(t->out, "[");
    t->i++;
    if (peek(t, 0) == '^') {
        if (t->ignores_case[t->depth]) return refuse(t, "[^...] inside (?i:...)");
        sy_strbuf_puts(t->out, "^");
        t->i++;
    }
    SY_TRY(translate_items(t));
    sy_strbuf_puts(t->out, "]");
    t->i++;
out:
    return st;
}

static sy_status open_group(translation *t)
{
    static const char *const heads[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    const char *head = "(";
    int ignores_case = t->ignores_case[t->depth];

    if (t->depth + 1 == DEPTH_MAX) return refuse(t, "so deep a nesting");
    if (peek(t, 1) == '?' || peek(t, 1) == '*') {
        head = NULL;
        for (size_t k = 0; k < SY_COUNT_OF(heads); k++) {
            if (starts_with(t, heads[k])) head = heads[k];
        }
        if (head == NULL) return refuse(t, "this kind of group");
        if (strcmp(head, "(?i:") == 0) ignores_case = 1;
    }
    sy_strbuf_puts(t->out, head);
    t->i += strlen(head);
    t->ignores_case[++t->depth] = ignores_case;
    return SY_OK;
}

static int is_repeat(char c)
{
    return c == '?' || c == '+' || c == '*' || c == '{';
}

static size_t skip_digits(const translation *t, size_t at)
{
    while (at < t->n && is_digit((uint8_t)t->s[at])) at++;
    return at;
}

/* {m}, {m,}, {m,n} and {,n}. What follows it would mean something else: Ruby has no possessive
 * {m,n}+, and {m}? is optional rather than lazy. A brace that is no interval stands for itself. */
static sy_status translate_brace(translation *t)
{
    const size_t low = t->i + 1;
    const size_t low_end = skip_digits(t, low);
    const int has_comma = low_end < t->n && t->s[low_end] == ',';
    const size_t high = low_end + (has_comma ? 1 : 0);
    const size_t high_end = has_comma ? skip_digits(t, high) : low_end;

    if (high_end == t->n || t->s[high_end] != '}' || (low_end == low && high_end == high)) {
        sy_strbuf_puts(t->out, "\\{");
        t->i++;
        return SY_OK;
    }
    if (high_end + 1 < t->n && is_repeat(t->s[high_end + 1])) {
        return refuse(t, "an interval followed by another repeat");
    }
    sy_strbuf_printf(t->out, "{%.*s%s%.*s}", low_end == low ? 1 : (int)(low_end - low),
                     low_end == low ? "0" : t->s + low, has_comma ? "," : "",
                     (int)(high_end - high), t->s + high);
    t->i = high_end + 1;
    return SY_OK;
}

static sy_status translate_item(translation *t)
{
    switch (peek(t, 0)) {
    case '\\': return translate_escape(t, 0);
    case '[': return translate_class(t);
    case '(': return open_group(t);
    case '{': return translate_brace(t);
    case ')':
        if (t->depth == 0) return refuse(t, "a ) without its (");
        t->depth--;
        break;
    default: return copy_literal(t);
    }
    sy_strbuf_puts(t->out, ")");
    t->i++;
    return SY_OK;
}

sy_status sy_regex_translate(sy_strbuf *out, const char *pattern, size_t n, sy_error *err)
{
    translation t = {.out = out, .s = pattern, .n = n, .err = err};
    sy_status st = SY_OK;

    for (size_t k = 0; k < SY_COUNT_OF(rewritten); k++) {
        if (n == strlen(rewritten[k].from) && memcmp(pattern, rewritten[k].from, n) == 0) {
            sy_strbuf_puts(out, rewritten[k].to);
            return out->failed ? SY_ENOMEM : SY_OK;
        }
    }
    while (t.i < n) SY_TRY(translate_item(&t));
    if (t.depth > 0) return refuse(&t, "a ( without its )");
    if (out->failed) st = SY_ENOMEM;
out:
    return st;
}
