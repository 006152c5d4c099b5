/* tool_text.c - see the header. */
#include "tool_text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define ESCAPE_BYTES 4 /* "\x1b" */

/* Bytes of the character at s that a terminal may have as it stands; 0: none. Left out are control
 * characters, C1 among them, and what is not UTF-8. */
static size_t plain_bytes(const unsigned char *s, size_t n)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t code = s[0];
    size_t len = 1;

    if (code < 0x80) return code >= 0x20 && code != 0x7f;
    if (code >= 0xc2 && code < 0xe0) len = 2;
    if (code >= 0xe0 && code < 0xf0) len = 3;
    if (code >= 0xf0 && code < 0xf5) len = 4;
    if (len == 1 || len > n) return 0;
    code &= 0xffu >> (len + 1);
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (s[i] & 0x3fu);
    }
    if (code < least[len] || code < 0xa0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
        return 0;
    }
    return code >= 0x2028 && code <= 0x202e ? 0 : len; /* line breaks and changes of direction */
}

char *tool_text_show(char *out, size_t cap, const char *text, size_t n)
{
    const unsigned char *from = (const unsigned char *)text;
    size_t len = 0;
    size_t cut = 0; /* the longest text so far after which "..." still fits */

    for (size_t i = 0; i < n;) {
        const size_t n_plain = plain_bytes(from + i, n - i);
        const size_t width = n_plain > 0 ? n_plain : ESCAPE_BYTES;
        char escape[ESCAPE_BYTES + 1];

        if (len + width >= cap) {
            memcpy(out + cut, "...", 4);
            return out;
        }
        snprintf(escape, sizeof(escape), "\\x%02x", from[i]);
        memcpy(out + len, n_plain > 0 ? text + i : escape, width);
        len += width;
        i += n_plain > 0 ? n_plain : 1;
        if (len + 3 < cap) cut = len;
    }
    out[len] = '\0';
    return out;
}

const char *tool_shown(const char *text)
{
    static char shown[TOOL_SHOWN_TEXTS][TOOL_SHOWN_BYTES];
    static size_t next;

    if (text == NULL) return "nothing";
    next = (next + 1) % TOOL_SHOWN_TEXTS;
    return tool_text_show(shown[next], TOOL_SHOWN_BYTES, text, strlen(text));
}

const char *tool_time_show(char *out, int64_t wall_us)
{
    const time_t seconds = (time_t)(wall_us / 1000000);
    struct tm utc;

    if (gmtime_r(&seconds, &utc) == NULL || utc.tm_year > 8099 || utc.tm_year < 0 ||
        strftime(out, TOOL_TIME_BYTES, "%Y-%m-%d %H:%M:%S UTC", &utc) == 0) {
        snprintf(out, TOOL_TIME_BYTES, "?");
    }
    return out;
}
