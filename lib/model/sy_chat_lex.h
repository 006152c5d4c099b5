/* sy_chat_lex.h - a chat template's text as tokens: the text between tags, less the white space
 * that Jinja's trim_blocks, lstrip_blocks and the signs of tags take away, and what is inside tags.
 * Private to sy_chat_*.c. */
#ifndef SY_CHAT_LEX_H
#define SY_CHAT_LEX_H

#include "sy_chat_value.h"

typedef enum chat_token_kind {
    CHAT_T_END,
    CHAT_T_TEXT,        /* value */
    CHAT_T_PRINT_BEGIN, /* {{ */
    CHAT_T_PRINT_END,
    CHAT_T_TAG_BEGIN, /* {% */
    CHAT_T_TAG_END,
    CHAT_T_NAME,
    CHAT_T_STRING, /* value */
    CHAT_T_NUMBER, /* value */
    CHAT_T_OPERATOR
} chat_token_kind;

typedef struct chat_token {
    chat_token_kind kind;
    uint32_t line;
    const char *text; /* NAME, OPERATOR: [n], in the template */
    size_t n;
    chat_value value;
} chat_token;

typedef struct chat_tokens {
    chat_token *token; /* [n], an END last */
    size_t n, capacity;
} chat_tokens;

/* text: [n], UTF-8, lives as long as the tokens. Fails the run. */
void sy_chat_lex(chat_run *run, chat_tokens *out, const char *text, size_t n);

#endif
