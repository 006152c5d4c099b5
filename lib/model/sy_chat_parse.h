/* sy_chat_parse.h - what the parser of expressions and that of statements share. Private to the two
 * files sy_chat_parse*.c. */
#ifndef SY_CHAT_PARSE_H
#define SY_CHAT_PARSE_H

#include "sy_chat_ast.h"
#include "sy_chat_lex.h"

/* The macros and call blocks around the place being parsed. */
typedef struct chat_enclosing {
    chat_signature *signature;
    struct chat_enclosing *outer;
} chat_enclosing;

typedef struct chat_parser {
    chat_run *run;
    sy_chat *chat;
    const chat_token *token; /* the next one */
    uint32_t depth;          /* of nested parentheses, blocks, ... */
    uint32_t n_loops;        /* around this place, within the same macro */
    chat_enclosing *enclosing;
    chat_dict *name_ids; /* name -> index in names */
    chat_list *names;
    chat_node spare; /* what a failed run writes to; never read */
} chat_parser;

chat_node *sy_chat_node(chat_parser *p, chat_node_kind kind);
void sy_chat_add(chat_parser *p, chat_nodes *nodes, chat_node *node);
/* When the node has all its parts: computes the height and checks it. Returns node. */
chat_node *sy_chat_finish(chat_parser *p, chat_node *node);
int sy_chat_descend(chat_parser *p); /* 0: nested too deeply, the run failed */
void sy_chat_ascend(chat_parser *p);
uint32_t sy_chat_intern(chat_parser *p, chat_str *name);
chat_str *sy_chat_token_str(chat_parser *p, const chat_token *token);

void sy_chat_advance(chat_parser *p);
int sy_chat_at_operator(const chat_parser *p, const char *op);
int sy_chat_at_name(const chat_parser *p, const char *name);
int sy_chat_skip_operator(chat_parser *p, const char *op); /* 1: it was there and is consumed */
int sy_chat_skip_name(chat_parser *p, const char *name);
void sy_chat_expect_operator(chat_parser *p, const char *op);
void sy_chat_fail_token(chat_parser *p, const char *expected); /* "expected X, found Y" */

chat_node *sy_chat_parse_expression(chat_parser *p, int with_if);
/* A tuple where there are commas, else the expression itself. end: a name that ends it too; may be
 * NULL. */
chat_node *sy_chat_parse_tuple(chat_parser *p, int with_if, const char *end);
/* name(args)|name(args)...; node may be NULL: then a block takes its place. is_inline: no | before
 * the first. */
chat_node *sy_chat_parse_filters(chat_parser *p, chat_node *node, int is_inline);

#endif
