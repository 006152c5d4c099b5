/* sy_chat_text.h - what Python knows of characters: which are white space, which letters pair with
 * which, what \n means in a literal. Private to sy_chat_*.c. */
#ifndef SY_CHAT_TEXT_H
#define SY_CHAT_TEXT_H

#include "sy_chat_value.h"

int sy_chat_is_space(uint32_t c); /* str.isspace() */
/* Bytes of white space that s: [n] begins with; bytes that remain without the space at its end. */
size_t sy_chat_space_prefix(const char *s, size_t n);
size_t sy_chat_rstrip_space(const char *s, size_t n);
/* The text of a string literal between its quotes. */
chat_value sy_chat_unescape(chat_run *run, const char *s, size_t n);

typedef enum chat_case { CHAT_UPPER, CHAT_LOWER, CHAT_CAPITALIZE, CHAT_TITLE } chat_case;
chat_value sy_chat_change_case(chat_run *run, chat_value s, chat_case to); /* Python's methods */
/* Jinja's filter title: words begin after white space and any of -({[<. */
chat_value sy_chat_title(chat_run *run, chat_value s);
chat_value sy_chat_escape_html(chat_run *run, chat_value s); /* |safe strings stay */

typedef enum chat_class {
    CHAT_ALPHA,
    CHAT_DIGIT,
    CHAT_ALNUM,
    CHAT_SPACE,
    CHAT_IS_UPPER,
    CHAT_IS_LOWER
} chat_class;
int sy_chat_is_class(chat_run *run, const chat_str *s,
                     chat_class which); /* "".isalpha() and its like */

#endif
