/* sy_unicode.h - what the tokenizer must know of Unicode: UTF-8, a few character classes as Rust's
 * `regex` and `char` define them, NFC, and the byte <-> character table of byte-level vocabularies.
 * Pure. Character classes are those of Unicode 16 whatever is installed; NFC is that of Unicode 9,
 * as in the library that this follows. */
#ifndef SY_UNICODE_H
#define SY_UNICODE_H

#include "sy_strbuf.h"

/* Offset of the first byte that is not part of well-formed UTF-8 (no surrogates, no overlong forms,
 * nothing above U+10FFFF); n when there is none. */
size_t sy_utf8_check(const char *s, size_t n);
/* The character at s[*i], *i < n; advances *i. The text has passed sy_utf8_check. */
uint32_t sy_utf8_next(const char *s, size_t *i);
size_t sy_utf8_put(char out[4], uint32_t c); /* c is a scalar value; returns the bytes written */
/* Bytes of the character that `lead` begins: 1 to 4, 0 when no character begins so. */
unsigned sy_utf8_length(uint8_t lead);
/* s: [n], n >= 1: 1 a whole character, 0 the beginning of one, -1 neither. s + (n - 1) was not -1.
 */
int sy_utf8_state(const uint8_t *s, size_t n);

int sy_unicode_is_space(uint32_t c);   /* White_Space */
int sy_unicode_is_numeric(uint32_t c); /* Nd, Nl, No */
int sy_unicode_is_word(uint32_t c);    /* \w: Alphabetic, M, Nd, Pc, the joiners */

/* For a table of classes that may be older than Unicode 16: c itself, or where c is younger than
 * Unicode 14 an older character of the same general category that has as many bytes in UTF-8. */
uint32_t sy_unicode_stand_in(uint32_t c);
int sy_unicode_is_inert(uint32_t c); /* takes part in today's NFC, but not in Unicode 9's */

/* Appends the NFC of s, which has passed sy_utf8_check. Linear in n. SY_ENOMEM. */
SY_MUST_USE sy_status sy_unicode_nfc(sy_strbuf *out, const char *s, size_t n);

/* GPT-2's table: each byte is written as one printable character below U+0144. */
uint32_t sy_byte_to_char(uint8_t byte);
int sy_char_to_byte(uint32_t c); /* -1: not in the table */

#endif
