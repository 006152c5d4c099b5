/* sy_bytes.c - unchecked bytes made fit for logs, JSON and error texts. */
#include "sy_bytes.h"

#include <stdio.h>
#include <string.h>

#define ESCAPE_BYTES 4 /* "\x1b" */

char *sy_bytes_show(char *out, size_t cap, const char *bytes, size_t n)
{
    char text[ESCAPE_BYTES + 1];
    size_t len = 0;
    size_t cut = 0; /* the longest text so far after which "..." still fits */

    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        const int is_plain = c >= 0x20 && c < 0x7f;
        const size_t width = is_plain ? 1 : ESCAPE_BYTES;

        if (len + width >= cap) {
            memcpy(out + cut, "...", 4);
            return out;
        }
        snprintf(text, sizeof(text), is_plain ? "%c" : "\\x%02x", c);
        memcpy(out + len, text, width);
        len += width;
        if (len + 3 < cap) cut = len;
    }
    out[len] = '\0';
    return out;
}
