/* sy_unicode.c - UTF-8, character classes, NFC and the byte-level table. Owns no state. */
#include "sy_unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define INSERTION_SORT_MAX 32 /* longer runs of combining marks are sorted by counting */

unsigned sy_utf8_length(uint8_t lead)
{
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) return 3;
    if (lead >= 0xF0 && lead <= 0xF4) return 4;
    return 0;
}

int sy_utf8_state(const uint8_t *s, size_t n)
{
    const unsigned len = sy_utf8_length(s[0]);

    if (len == 0) return -1;
    if (n >= 2) {
        /* The second byte rules out overlong forms, surrogates and values above U+10FFFF. */
        uint8_t low = 0x80, high = 0xBF;
        if (s[0] == 0xE0) low = 0xA0;
        if (s[0] == 0xED) high = 0x9F;
        if (s[0] == 0xF0) low = 0x90;
        if (s[0] == 0xF4) high = 0x8F;
        if (s[1] < low || s[1] > high) return -1;
        if (s[n - 1] < 0x80 || s[n - 1] > 0xBF) return -1;
    }
    return n == len;
}

size_t sy_utf8_check(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n) {
        uint8_t c[4];
        const unsigned len = sy_utf8_length((uint8_t)s[i]);
        if (len == 1) {
            i++;
            continue;
        }
        if (len == 0 || len > n - i) return i;
        memcpy(c, s + i, len);
        for (unsigned k = 2; k <= len; k++) {
            if (sy_utf8_state(c, k) < 0) return i;
        }
        i += len;
    }
    return n;
}

uint32_t sy_utf8_next(const char *s, size_t *i)
{
    const uint8_t lead = (uint8_t)s[*i];
    const unsigned len = sy_utf8_length(lead);
    uint32_t c = len <= 1 ? lead : lead & (0xFFu >> (len + 1));

    for (unsigned k = 1; k < len; k++) c = c << 6 | ((uint8_t)s[*i + k] & 0x3Fu);
    *i += len == 0 ? 1 : len;
    return c;
}

size_t sy_utf8_put(char out[4], uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

int sy_unicode_is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)sy_unicode_stand_in(c));
}

int sy_unicode_is_numeric(uint32_t c)
{
    if (c < 0x80) return c >= '0' && c <= '9';
    /* Rust's own table is a version ahead of what the reference has elsewhere. */
    if ((c >= 0x11DE0 && c <= 0x11DE9) || (c >= 0x16FF4 && c <= 0x16FF6)) return 1;
    switch (category(c)) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return 1;
    default: return 0;
    }
}

int sy_unicode_is_word(uint32_t c)
{
    switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return 1;
    case UTF8PROC_CATEGORY_SO: /* the circled and squared letters are Alphabetic */
        return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
               (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
    default: return c == 0x200C || c == 0x200D;
    }
}

static unsigned combining_class(int32_t c)
{
    return (unsigned)utf8proc_get_property(c)->combining_class;
}

static void insertion_sort(int32_t *c, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        const int32_t moved = c[i];
        const unsigned rank = combining_class(moved);
        size_t k = i;
        for (; k > 0 && combining_class(c[k - 1]) > rank; k--) c[k] = c[k - 1];
        c[k] = moved;
    }
}

/* Stable, by combining class. scratch: [n]. */
static void counting_sort(int32_t *c, int32_t *scratch, size_t n)
{
    size_t start[257] = {0};

    for (size_t i = 0; i < n; i++) start[(combining_class(c[i]) & 0xFF) + 1]++;
    for (size_t k = 1; k < 257; k++) start[k] += start[k - 1];
    for (size_t i = 0; i < n; i++) scratch[start[combining_class(c[i]) & 0xFF]++] = c[i];
    memcpy(c, scratch, n * sizeof(*c));
}

/* The canonical ordering. utf8proc's own exchanges neighbours, which is quadratic in a run of marks
 * that a hostile text may make as long as it likes. */
static void order_marks(int32_t *c, int32_t *scratch, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && combining_class(c[end]) != 0) end++;
        if (end - i > INSERTION_SORT_MAX) {
            counting_sort(c + i, scratch, end - i);
        } else {
            insertion_sort(c + i, end - i);
        }
        i = end + (end == i);
    }
}

static int is_trivially_nfc(const char *s, size_t n)
{
    /* Everything below U+0300 is a starter and composed: lead bytes up to 0xCB. */
    for (size_t i = 0; i < n; i++) {
        if ((uint8_t)s[i] > 0xCB) return 0;
    }
    return 1;
}

static sy_status compose(sy_strbuf *out, const char *s, size_t n)
{
    enum { DECOMPOSED_MAX = 4 }; /* the longest canonical decomposition of one character */
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    sy_status st = SY_ENOMEM;
    int32_t *c = NULL, *scratch = NULL;
    size_t n_chars = 1, n_out = 0; /* one to spare */

    if (is_trivially_nfc(s, n)) {
        sy_strbuf_append(out, s, n);
        return out->failed ? SY_ENOMEM : SY_OK;
    }
    for (size_t i = 0; i < n; i++) n_chars += ((uint8_t)s[i] & 0xC0) != 0x80;
    c = calloc(n_chars, DECOMPOSED_MAX * sizeof(*c));
    scratch = calloc(n_chars, DECOMPOSED_MAX * sizeof(*c));
    if (c == NULL || scratch == NULL) goto out;
    for (size_t i = 0; i < n;) {
        const int32_t next = (int32_t)sy_utf8_next(s, &i);
        int bound = 0;
        const utf8proc_ssize_t got =
            utf8proc_decompose_char(next, c + n_out, DECOMPOSED_MAX, UTF8PROC_DECOMPOSE, &bound);
        st = SY_EINTERNAL;
        if (got < 0 || got > DECOMPOSED_MAX) goto out;
        n_out += (size_t)got;
    }
    order_marks(c, scratch, n_out);
    const utf8proc_ssize_t composed = utf8proc_normalize_utf32(c, (utf8proc_ssize_t)n_out, options);
    st = SY_EINTERNAL;
    if (composed < 0) goto out;
    for (utf8proc_ssize_t i = 0; i < composed; i++) {
        char bytes[4];
        sy_strbuf_append(out, bytes, sy_utf8_put(bytes, (uint32_t)c[i]));
    }
    st = out->failed ? SY_ENOMEM : SY_OK;
out:
    free(scratch);
    free(c);
    return st;
}

sy_status sy_unicode_nfc(sy_strbuf *out, const char *s, size_t n)
{
    sy_status st = SY_OK;
    size_t from = 0;

    if (is_trivially_nfc(s, n)) {
        sy_strbuf_append(out, s, n);
        return out->failed ? SY_ENOMEM : SY_OK;
    }
    /* An inert character ends what stands before it and joins nothing behind it. */
    for (size_t i = 0; i < n && st == SY_OK;) {
        const size_t at = i;
        if (!sy_unicode_is_inert(sy_utf8_next(s, &i))) continue;
        if (from < at) st = compose(out, s + from, at - from);
        sy_strbuf_append(out, s + at, i - at);
        from = i;
    }
    if (from < n && st == SY_OK) st = compose(out, s + from, n - from);
    return st == SY_OK && out->failed ? SY_ENOMEM : st;
}

/* Printable Latin-1 stands for itself; the other 68 bytes follow from U+0100 in their order. */
static int stands_for_itself(uint32_t c)
{
    return (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
}

uint32_t sy_byte_to_char(uint8_t byte)
{
    if (stands_for_itself(byte)) return byte;
    if (byte <= 0x20) return 0x100u + byte;
    if (byte <= 0xA0) return 0x121u + (byte - 0x7Fu);
    return 0x143; /* 0xAD */
}

int sy_char_to_byte(uint32_t c)
{
    if (stands_for_itself(c)) return (int)c;
    if (c >= 0x100 && c <= 0x120) return (int)(c - 0x100);
    if (c >= 0x121 && c <= 0x142) return (int)(c - 0x121 + 0x7F);
    return c == 0x143 ? 0xAD : -1;
}
