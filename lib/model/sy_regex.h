/* sy_regex.h - the regular expressions of tokenizer files. They are written for Oniguruma (Ruby
 * syntax, UTF-8); here they are translated for PCRE2, and what would mean something else there is
 * refused. */
#ifndef SY_REGEX_H
#define SY_REGEX_H

#include "sy_strbuf.h"

typedef struct sy_regex sy_regex;                 /* immutable once open: any thread may search */
typedef struct sy_regex_scratch sy_regex_scratch; /* one thread at a time */

/* pattern: [n] valid UTF-8. SY_EINVAL: unsupported or wrong syntax, or it can match nothing at all.
 */
SY_MUST_USE sy_status sy_regex_open(sy_regex **out, const char *pattern, size_t n, sy_error *err);
void sy_regex_close(sy_regex *regex); /* accepts NULL */

SY_MUST_USE sy_status sy_regex_scratch_open(sy_regex_scratch **out);
void sy_regex_scratch_close(sy_regex_scratch *scratch); /* accepts NULL */

/* The first match in s: [n], valid UTF-8, that begins at or after `from`; it is never empty. What
 * stands before `from` is seen by lookbehinds. SY_ENOTFOUND: none (err is untouched). SY_ELIMIT:
 * one match took more steps than a small multiple of n, or more memory than it may. */
SY_MUST_USE sy_status sy_regex_find(const sy_regex *regex, sy_regex_scratch *scratch, const char *s,
                                    size_t n, size_t from, size_t match[2], sy_error *err);

/* The translation alone: appends PCRE2 syntax for options UTF | UCP | MULTILINE and newline LF. */
SY_MUST_USE sy_status sy_regex_translate(sy_strbuf *out, const char *pattern, size_t n,
                                         sy_error *err);

#endif
