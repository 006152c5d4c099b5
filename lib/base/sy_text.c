/* sy_text.c - the byte rules of UTF-8 (RFC 3629, so no surrogates and no overlong forms) and JSON
 * (RFC 8259). */
#include "sy_text.h"

#include <stdio.h>
#include <string.h>

/* The second byte has a narrower range after four of the lead bytes; this is what keeps out
 * overlong forms, surrogates and everything past U+10FFFF. */
static int second_byte_fits(unsigned char lead, unsigned char second)
{
    switch (lead) {
    case 0xe0: return second >= 0xa0 && second <= 0xbf;
    case 0xed: return second >= 0x80 && second <= 0x9f;
    case 0xf0: return second >= 0x90 && second <= 0xbf;
    case 0xf4: return second >= 0x80 && second <= 0x8f;
    default: return second >= 0x80 && second <= 0xbf;
    }
}

static size_t length_by_lead(unsigned char lead)
{
    if (lead < 0x80) return 1;
    if (lead >= 0xc2 && lead <= 0xdf) return 2;
    if (lead >= 0xe0 && lead <= 0xef) return 3;
    if (lead >= 0xf0 && lead <= 0xf4) return 4;
    return 0;
}

size_t sy_utf8_char(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    const size_t length = n == 0 ? 0 : length_by_lead(u[0]);

    if (length <= 1) return length;
    if (length > n || !second_byte_fits(u[0], u[1])) return 0;
    for (size_t i = 2; i < length; i++) {
        if ((u[i] & 0xc0) != 0x80) return 0;
    }
    return length;
}

size_t sy_utf8_whole(const char *s, size_t n)
{
    /* A character that the end cuts has its lead byte among the last three bytes. */
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        const unsigned char c = (unsigned char)s[n - back];

        if (c < 0x80) return n;
        if (c >= 0xc0) return length_by_lead(c) > back ? n - back : n;
    }
    return n;
}

size_t sy_json_char(char out[SY_JSON_CHAR_BYTES], size_t *used, const char *s, size_t n)
{
    static const char replacement[3] = {(char)0xef, (char)0xbf, (char)0xbd};
    static const char short_name[] = "btn\0fr"; /* of 0x08 to 0x0d; 0x0b has none */
    const unsigned char c = (unsigned char)s[0];
    const size_t length = sy_utf8_char(s, n);

    *used = 1;
    if (length == 0) {
        memcpy(out, replacement, sizeof(replacement));
        return sizeof(replacement);
    }
    if (c == '"' || c == '\\' || (c >= 0x08 && c <= 0x0d && c != 0x0b)) {
        out[0] = '\\';
        out[1] = c >= 0x20 ? (char)c : short_name[c - 0x08];
        return 2;
    }
    if (c < 0x20 || c == 0x7f) {
        return (size_t)snprintf(out, SY_JSON_CHAR_BYTES, "\\u%04x", c);
    }
    memcpy(out, s, length);
    *used = length;
    return length;
}
