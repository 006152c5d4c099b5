/* sy_chat_eval.h - running a template's tree: scopes, macros, loops, and the operations that the
 * files of the interpreter offer each other. Private to sy_chat_*.c. */
#ifndef SY_CHAT_EVAL_H
#define SY_CHAT_EVAL_H

#include "sy_chat_ast.h"
#include "sy_chat_builtin.h"

typedef struct chat_binding {
    uint32_t name_id;
    chat_value value;
} chat_binding;

/* Variables of a block, a loop's body or a macro. Jinja's scopes are lexical: a macro sees the one
 * it was defined in, whoever calls it. */
typedef struct chat_scope {
    struct chat_scope *outer; /* NULL: behind it are the caller's variables */
    chat_binding *binding;    /* [capacity] */
    size_t n, capacity;
} chat_scope;

typedef struct chat_macro {
    const chat_node *node; /* MACRO or CALL: signature and body */
    chat_scope *scope;     /* where it was defined */
    chat_str *name;        /* NULL: the body of a call block */
} chat_macro;

/* Items are drawn one by one, since the condition of a loop may depend on what its body did to a
 * namespace; loop.last looks one item ahead and loop.length draws them all, as in Jinja. */
typedef struct chat_loop {
    chat_list *items;
    size_t next;           /* of items, to be drawn */
    const chat_node *node; /* with a condition, until all was drawn; else NULL */
    chat_scope *test;      /* scope of the condition */
    size_t index;          /* of the current item, from 1; 0 before the first */
    size_t n_before;       /* items drawn when `items` was replaced by the drawn rest */
    chat_value before, current, after;
    int has_after;
    chat_value changed; /* what loop.changed() saw last; MISSING at first */
} chat_loop;

void sy_chat_bind(chat_run *run, chat_scope *scope, uint32_t name_id, chat_value value);
/* The variable's value, MISSING where nobody gave it one. */
chat_value sy_chat_lookup(chat_run *run, const chat_scope *scope, uint32_t name_id);
chat_value sy_chat_eval(chat_run *run, chat_scope *scope, const chat_node *node);
/* A FILTER node whose input is already there: block filters. */
chat_value sy_chat_eval_filter(chat_run *run, chat_scope *scope, const chat_node *node,
                               chat_value input);
void sy_chat_eval_args(chat_run *run, chat_scope *scope, const chat_call *call, chat_args *out);
chat_value sy_chat_call(chat_run *run, chat_value callee, const chat_args *args);
chat_value sy_chat_call_macro(chat_run *run, const chat_macro *macro, const chat_args *args);
void sy_chat_assign(chat_run *run, chat_scope *scope, const chat_node *target, chat_value value);

/* What a statement did: go on, or leave the loop's body. A failed run breaks. */
typedef enum chat_flow { CHAT_GO_ON, CHAT_BREAK, CHAT_CONTINUE } chat_flow;
chat_flow sy_chat_exec(chat_run *run, chat_scope *scope, const chat_nodes *body);

int sy_chat_loop_next(chat_run *run, chat_loop *loop); /* 0: no more items */
chat_value sy_chat_loop_attribute(chat_run *run, chat_loop *loop, chat_str *name);

chat_value sy_chat_binary(chat_run *run, chat_op op, chat_value a, chat_value b);
chat_value sy_chat_sign(chat_run *run, chat_value v, int is_negative);
/* object.name and object[key], each falling back to the other's meaning as Jinja does. */
chat_value sy_chat_attribute(chat_run *run, chat_value object, chat_str *name);
chat_value sy_chat_item(chat_run *run, chat_value object, chat_value key);
/* Bounds are NONE where left out. */
chat_value sy_chat_slice(chat_run *run, chat_value object, const chat_value bounds[3]);
/* "..." % value, and "...".format(...). */
chat_value sy_chat_format_percent(chat_run *run, chat_value format, chat_value value);
chat_value sy_chat_format_braces(chat_run *run, chat_value format, const chat_args *args);
chat_value sy_chat_strftime(chat_run *run, chat_value format);
/* The order of tuples (key, value) by their keys, in place; stable. */
void sy_chat_sort_pairs(chat_run *run, chat_list *pairs);
/* The value at a path "a.b.0" into an item, as the filters map and sort(attribute=...) take it. */
chat_value sy_chat_path(chat_run *run, chat_value item, chat_value path);

#endif
