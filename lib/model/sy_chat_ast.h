/* sy_chat_ast.h - a chat template as a tree. Built once by the parser in the template's arena, then
 * only read. Private to sy_chat_*.c. */
#ifndef SY_CHAT_AST_H
#define SY_CHAT_AST_H

#include "sy_chat_value.h"

typedef enum chat_node_kind {
    /* expressions, and what each uses of chat_node: */
    CHAT_X_CONSTANT,  /* constant */
    CHAT_X_NAME,      /* name, name_id */
    CHAT_X_ATTRIBUTE, /* a.name */
    CHAT_X_ITEM,      /* a[b] */
    CHAT_X_SLICE,     /* a[item[0]:item[1]:item[2]], each may be NULL */
    CHAT_X_CALL,      /* a(call) */
    CHAT_X_FILTER,    /* a|name(call), id; a is NULL where a block is filtered */
    CHAT_X_TEST,      /* a is name(call), id */
    CHAT_X_NOT,       /* a */
    CHAT_X_NEGATIVE,  /* a */
    CHAT_X_POSITIVE,  /* a */
    CHAT_X_BINARY,    /* a op b; id: chat_op */
    CHAT_X_AND,       /* a, b */
    CHAT_X_OR,        /* a, b */
    CHAT_X_JOIN,      /* item[0] ~ item[1] ~ ... */
    CHAT_X_COMPARE,   /* a, then pairs: ops[i] item[i] */
    CHAT_X_IF,        /* a if b else c; c may be NULL */
    CHAT_X_LIST,      /* items */
    CHAT_X_TUPLE,     /* items */
    CHAT_X_DICT,      /* items: key, value, key, value, ... */
    /* statements: */
    CHAT_S_TEXT,      /* constant */
    CHAT_S_PRINT,     /* a */
    CHAT_S_IF,        /* a, body, then elif b (an IF) or else other */
    CHAT_S_FOR,       /* target a, in b, if c (may be NULL), body, else other */
    CHAT_S_SET,       /* target a, value b */
    CHAT_S_SET_BLOCK, /* target a, filter b (may be NULL), body */
    CHAT_S_WITH,      /* items: target, value, target, value, ...; body */
    CHAT_S_MACRO,     /* name, name_id, signature, body */
    CHAT_S_CALL,      /* a: a CALL; signature, body */
    CHAT_S_FILTER,    /* filter b, body */
    CHAT_S_SCOPE,     /* body: {% generation %} */
    CHAT_S_BREAK,
    CHAT_S_CONTINUE
} chat_node_kind;

typedef enum chat_op {
    CHAT_OP_ADD,
    CHAT_OP_SUB,
    CHAT_OP_MUL,
    CHAT_OP_DIV,
    CHAT_OP_FLOORDIV,
    CHAT_OP_MOD,
    CHAT_OP_POW,
    CHAT_OP_EQ,
    CHAT_OP_NE,
    CHAT_OP_LT,
    CHAT_OP_LE,
    CHAT_OP_GT,
    CHAT_OP_GE,
    CHAT_OP_IN,
    CHAT_OP_NOT_IN
} chat_op;

typedef struct chat_node chat_node;

typedef struct chat_nodes {
    chat_node **item; /* [capacity] */
    size_t n, capacity;
} chat_nodes;

typedef struct chat_keyword {
    chat_str *name;
    chat_node *value;
} chat_keyword;

typedef struct chat_call {
    chat_nodes args;
    chat_keyword *keyword; /* [n_keywords] */
    size_t n_keywords;
    chat_node *list, *mapping; /* *list, **mapping: more of both; NULL: none */
} chat_call;

typedef struct chat_param {
    chat_str *name;
    uint32_t name_id;
    chat_node *fallback; /* NULL: none */
} chat_param;

typedef struct chat_signature {
    chat_param *param; /* [n_params] */
    size_t n_params;
    /* The body mentions these names: then the macro takes what they stand for. */
    int uses_caller, uses_varargs, uses_kwargs;
} chat_signature;

struct chat_node {
    chat_node_kind kind;
    uint32_t line;
    uint32_t height; /* of the tree below, which bounds the recursion over it */
    uint32_t name_id;
    uint16_t id;
    chat_str *name;
    chat_value constant;
    chat_node *a, *b, *c;
    chat_nodes items, body, other;
    uint8_t *ops; /* COMPARE: [items.n], chat_op */
    chat_call *call;
    chat_signature *signature;
};

/* Names that the interpreter itself binds; interned first, so that these are their ids. */
enum { CHAT_NAME_LOOP, CHAT_NAME_CALLER, CHAT_NAME_VARARGS, CHAT_NAME_KWARGS, CHAT_N_FIXED_NAMES };

typedef struct chat_special {
    chat_str *name, *text; /* "bos_token", "<s>" */
    struct chat_special *next;
} chat_special;

struct sy_chat {
    sy_arena arena; /* owns everything below */
    chat_nodes body;
    chat_str **name; /* [n_names]: every variable that the template mentions */
    size_t n_names;
    chat_special *specials;
};

/* text: [n], UTF-8 whose lines end in \n. run->arena is the template's. Fails the run. */
void sy_chat_parse_template(chat_run *run, sy_chat *chat, const char *text, size_t n);

#endif
