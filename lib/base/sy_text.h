/* sy_text.h - UTF-8 and JSON, one character at a time, into memory of any kind. Pure. Only for
 * lib/base. */
#ifndef SY_TEXT_H
#define SY_TEXT_H

#include "sy_base.h"

/* Bytes of the well-formed UTF-8 character at s, 1 to 4; 0 when there is none in the n bytes. */
size_t sy_utf8_char(const char *s, size_t n);
/* The largest length <= n that does not end inside a character, for cutting a text that was cut at
 * n bytes. */
size_t sy_utf8_whole(const char *s, size_t n);

#define SY_JSON_CHAR_BYTES 8
/* Writes the first character of s (n >= 1) as it stands inside a JSON string; a byte that is not
 * UTF-8 becomes U+FFFD. *used: bytes taken from s. Returns the bytes written, not NUL-terminated.
 */
size_t sy_json_char(char out[SY_JSON_CHAR_BYTES], size_t *used, const char *s, size_t n);

#endif
