/* sy_chat_parse_expr.c - expressions of a chat template, by recursive descent in Jinja's order of
 * precedence: if, or, and, not, comparison, + -, ~, * / // %, **, sign, then postfix and filters.
 */
#include <string.h>

#include "sy_chat_builtin.h"
#include "sy_chat_parse.h"

#define KEYWORDS_MAX    64 /* named arguments of one call */
#define COMPARISONS_MAX 32 /* in one chain a < b < c ... */

static chat_node *fail_node(chat_parser *p)
{
    p->spare = (chat_node){.kind = CHAT_X_CONSTANT};
    return &p->spare;
}

static chat_node *binary(chat_parser *p, chat_node_kind kind, chat_op op, chat_node *a,
                         chat_node *b)
{
    chat_node *node = sy_chat_node(p, kind);

    node->id = (uint16_t)op;
    node->a = a;
    node->b = b;
    return sy_chat_finish(p, node);
}

static chat_node *unary(chat_parser *p, chat_node_kind kind, chat_node *a)
{
    return binary(p, kind, CHAT_OP_ADD, a, NULL);
}

static chat_node *constant(chat_parser *p, chat_value value)
{
    chat_node *node = sy_chat_node(p, CHAT_X_CONSTANT);

    node->constant = value;
    return sy_chat_finish(p, node);
}

static void refuse_unsupported_global(chat_parser *p)
{
    static const char *const names[] = {"cycler", "joiner", "lipsum", "super", "self"};

    for (size_t i = 0; i < SY_COUNT_OF(names); i++) {
        if (sy_chat_at_name(p, names[i])) {
            sy_chat_fail(p->run, SY_EINVAL, "the global \"%s\" is not supported", names[i]);
        }
    }
}

static void note_special_name(chat_parser *p, uint32_t id)
{
    for (chat_enclosing *e = p->enclosing; e != NULL; e = e->outer) {
        if (id == CHAT_NAME_CALLER) e->signature->uses_caller = 1;
        if (id == CHAT_NAME_VARARGS) e->signature->uses_varargs = 1;
        if (id == CHAT_NAME_KWARGS) e->signature->uses_kwargs = 1;
    }
}

static chat_node *parse_name(chat_parser *p)
{
    chat_node *node;

    if (sy_chat_skip_name(p, "true") || sy_chat_skip_name(p, "True")) {
        return constant(p, sy_chat_bool(1));
    }
    if (sy_chat_skip_name(p, "false") || sy_chat_skip_name(p, "False")) {
        return constant(p, sy_chat_bool(0));
    }
    if (sy_chat_skip_name(p, "none") || sy_chat_skip_name(p, "None")) {
        return constant(p, sy_chat_none());
    }
    refuse_unsupported_global(p);
    node = sy_chat_node(p, CHAT_X_NAME);
    node->name = sy_chat_token_str(p, p->token);
    node->name_id = sy_chat_intern(p, node->name);
    note_special_name(p, node->name_id);
    sy_chat_advance(p);
    return sy_chat_finish(p, node);
}

static chat_node *parse_string(chat_parser *p)
{
    chat_value text = p->token->value;

    sy_chat_advance(p);
    while (p->token->kind == CHAT_T_STRING) { /* "a" "b" is one string */
        text = sy_chat_concat(p->run, text, p->token->value);
        sy_chat_advance(p);
    }
    /* A constant is read by many threads: nobody may append to it in place. */
    if (text.str->room > 0) text.str->room = 0;
    return constant(p, text);
}

static chat_node *parse_items(chat_parser *p, chat_node_kind kind, const char *close)
{
    chat_node *node = sy_chat_node(p, kind);

    sy_chat_advance(p);
    while (p->run->status == SY_OK && !sy_chat_at_operator(p, close)) {
        if (node->items.n > 0) {
            sy_chat_expect_operator(p, ",");
            if (sy_chat_at_operator(p, close)) break;
        }
        sy_chat_add(p, &node->items, sy_chat_parse_expression(p, 1));
        if (kind == CHAT_X_DICT) {
            sy_chat_expect_operator(p, ":");
            sy_chat_add(p, &node->items, sy_chat_parse_expression(p, 1));
        }
    }
    sy_chat_expect_operator(p, close);
    return sy_chat_finish(p, node);
}

static chat_node *parse_parentheses(chat_parser *p)
{
    chat_node *node;

    sy_chat_advance(p);
    if (sy_chat_at_operator(p, ")")) {
        node = sy_chat_finish(p, sy_chat_node(p, CHAT_X_TUPLE));
    } else {
        node = sy_chat_parse_tuple(p, 1, NULL);
    }
    sy_chat_expect_operator(p, ")");
    return node;
}

static chat_node *parse_primary(chat_parser *p)
{
    chat_node *node;

    switch (p->token->kind) {
    case CHAT_T_NAME: return parse_name(p);
    case CHAT_T_STRING: return parse_string(p);
    case CHAT_T_NUMBER:
        node = constant(p, p->token->value);
        sy_chat_advance(p);
        return node;
    default: break;
    }
    if (sy_chat_at_operator(p, "(")) return parse_parentheses(p);
    if (sy_chat_at_operator(p, "[")) return parse_items(p, CHAT_X_LIST, "]");
    if (sy_chat_at_operator(p, "{")) return parse_items(p, CHAT_X_DICT, "}");
    sy_chat_fail_token(p, "an expression");
    return fail_node(p);
}

/* [a], [a:b], [a:b:c], and every part of a slice may be missing. */
static chat_node *parse_index(chat_parser *p, chat_node *object)
{
    chat_node *part[3] = {NULL, NULL, NULL};
    chat_node *node;
    int n_colons = 0;

    sy_chat_advance(p);
    while (p->run->status == SY_OK && !sy_chat_at_operator(p, "]")) {
        if (n_colons < 2 && sy_chat_skip_operator(p, ":")) {
            n_colons++;
        } else if (part[n_colons] == NULL) {
            part[n_colons] = sy_chat_parse_expression(p, 1);
        } else {
            sy_chat_fail_token(p, "]");
        }
    }
    if (n_colons == 0 && part[0] == NULL) sy_chat_fail_token(p, "an index");
    sy_chat_expect_operator(p, "]");
    if (n_colons == 0) return binary(p, CHAT_X_ITEM, CHAT_OP_ADD, object, part[0]);
    node = sy_chat_node(p, CHAT_X_SLICE);
    node->a = object;
    for (int i = 0; i < 3; i++) sy_chat_add(p, &node->items, part[i]);
    return sy_chat_finish(p, node);
}

static chat_node *parse_dot(chat_parser *p, chat_node *object)
{
    chat_node *node;

    sy_chat_advance(p);
    if (p->token->kind == CHAT_T_NUMBER && p->token->value.kind == CHAT_INT) {
        node = binary(p, CHAT_X_ITEM, CHAT_OP_ADD, object, constant(p, p->token->value));
        sy_chat_advance(p);
        return node;
    }
    if (p->token->kind != CHAT_T_NAME) {
        sy_chat_fail_token(p, "a name or a number");
        return object;
    }
    node = sy_chat_node(p, CHAT_X_ATTRIBUTE);
    node->a = object;
    node->name = sy_chat_token_str(p, p->token);
    sy_chat_advance(p);
    return sy_chat_finish(p, node);
}

static void add_keyword(chat_parser *p, chat_call *call, chat_str *name, chat_node *value)
{
    if (call->keyword == NULL) {
        call->keyword = sy_chat_alloc(p->run, KEYWORDS_MAX, sizeof(*call->keyword));
    }
    if (call->n_keywords == KEYWORDS_MAX) {
        sy_chat_fail(p->run, SY_ELIMIT, "more than %d named arguments", KEYWORDS_MAX);
    }
    for (size_t i = 0; i < call->n_keywords; i++) {
        if (sy_chat_str_equal(call->keyword[i].name, name)) {
            sy_chat_fail(p->run, SY_EINVAL, "the argument %.*s is given twice",
                         sy_chat_clip(name->data, name->n), name->data);
        }
    }
    if (p->run->status != SY_OK) return;
    call->keyword[call->n_keywords++] = (chat_keyword){.name = name, .value = value};
}

static int at_keyword(const chat_parser *p)
{
    return p->token->kind == CHAT_T_NAME && p->token[1].kind == CHAT_T_OPERATOR &&
           p->token[1].n == 1 && p->token[1].text[0] == '=';
}

static void parse_argument(chat_parser *p, chat_call *call)
{
    if (call->mapping == NULL && sy_chat_skip_operator(p, "**")) {
        call->mapping = sy_chat_parse_expression(p, 1);
    } else if (call->mapping == NULL && call->list == NULL && sy_chat_skip_operator(p, "*")) {
        call->list = sy_chat_parse_expression(p, 1);
    } else if (call->mapping == NULL && at_keyword(p)) {
        chat_str *name = sy_chat_token_str(p, p->token);

        sy_chat_advance(p);
        sy_chat_advance(p);
        add_keyword(p, call, name, sy_chat_parse_expression(p, 1));
    } else if (call->mapping != NULL || call->list != NULL || call->n_keywords > 0) {
        sy_chat_fail(p->run, SY_EINVAL, "an argument without a name after one with it");
    } else {
        sy_chat_add(p, &call->args, sy_chat_parse_expression(p, 1));
    }
}

/* (a, b, *c, d=e, **f). */
static void parse_arguments(chat_parser *p, chat_call *call)
{
    int is_first = 1;

    sy_chat_expect_operator(p, "(");
    while (p->run->status == SY_OK && !sy_chat_at_operator(p, ")")) {
        if (!is_first) {
            sy_chat_expect_operator(p, ",");
            if (sy_chat_at_operator(p, ")")) break;
        }
        is_first = 0;
        parse_argument(p, call);
    }
    sy_chat_expect_operator(p, ")");
}

static chat_node *call_node(chat_parser *p, chat_node_kind kind, chat_node *a)
{
    chat_node *node = sy_chat_node(p, kind);

    node->a = a;
    node->call = sy_chat_alloc(p->run, 1, sizeof(*node->call));
    if (node->call == NULL) return NULL;
    *node->call = (chat_call){0};
    return node;
}

static chat_node *parse_call(chat_parser *p, chat_node *callee)
{
    chat_node *node = call_node(p, CHAT_X_CALL, callee);

    if (node == NULL) return fail_node(p);
    if (callee->kind == CHAT_X_ATTRIBUTE) sy_chat_check_method(p->run, callee->name);
    parse_arguments(p, node->call);
    return sy_chat_finish(p, node);
}

static chat_node *parse_postfix(chat_parser *p, chat_node *node)
{
    while (p->run->status == SY_OK) {
        if (sy_chat_at_operator(p, ".")) {
            node = parse_dot(p, node);
        } else if (sy_chat_at_operator(p, "[")) {
            node = parse_index(p, node);
        } else if (sy_chat_at_operator(p, "(")) {
            node = parse_call(p, node);
        } else {
            break;
        }
    }
    return node;
}

/* A filter's or test's name, which must be one of the table's. */
static void parse_builtin(chat_parser *p, chat_node *node, chat_table table)
{
    if (p->token->kind != CHAT_T_NAME) {
        sy_chat_fail_token(p, table == CHAT_FILTERS ? "a filter's name" : "a test's name");
        return;
    }
    node->name = sy_chat_token_str(p, p->token);
    node->id = sy_chat_builtin_find(table, node->name);
    if (node->id == CHAT_NOT_BUILTIN) {
        sy_chat_fail(p->run, SY_EINVAL, "the %s \"%.*s\" is not supported",
                     table == CHAT_FILTERS ? "filter" : "test",
                     sy_chat_clip(node->name->data, node->name->n), node->name->data);
    }
    sy_chat_advance(p);
}

chat_node *sy_chat_parse_filters(chat_parser *p, chat_node *node, int is_inline)
{
    while (p->run->status == SY_OK && (is_inline || sy_chat_at_operator(p, "|"))) {
        chat_node *filter;

        if (!is_inline) sy_chat_advance(p);
        is_inline = 0;
        filter = call_node(p, CHAT_X_FILTER, node);
        if (filter == NULL) return fail_node(p);
        parse_builtin(p, filter, CHAT_FILTERS);
        if (sy_chat_at_operator(p, "(")) parse_arguments(p, filter->call);
        node = sy_chat_finish(p, filter);
    }
    return node;
}

/* Jinja lets a test take one argument without parentheses: "x is divisibleby 3". */
static int at_bare_argument(const chat_parser *p)
{
    switch (p->token->kind) {
    case CHAT_T_STRING:
    case CHAT_T_NUMBER: return 1;
    case CHAT_T_NAME:
        return !sy_chat_at_name(p, "else") && !sy_chat_at_name(p, "or") &&
               !sy_chat_at_name(p, "and");
    default: return sy_chat_at_operator(p, "[") || sy_chat_at_operator(p, "{");
    }
}

static chat_node *parse_test(chat_parser *p, chat_node *node)
{
    chat_node *test = call_node(p, CHAT_X_TEST, node);
    int is_not;

    if (test == NULL) return fail_node(p);
    sy_chat_advance(p); /* is */
    is_not = sy_chat_skip_name(p, "not");
    parse_builtin(p, test, CHAT_TESTS);
    if (sy_chat_at_operator(p, "(")) {
        parse_arguments(p, test->call);
    } else if (at_bare_argument(p)) {
        if (sy_chat_at_name(p, "is")) {
            sy_chat_fail(p->run, SY_EINVAL, "tests cannot be chained with is");
        }
        sy_chat_add(p, &test->call->args, parse_postfix(p, parse_primary(p)));
    }
    sy_chat_finish(p, test);
    return is_not ? unary(p, CHAT_X_NOT, test) : test;
}

static chat_node *parse_filter_expression(chat_parser *p, chat_node *node)
{
    while (p->run->status == SY_OK) {
        if (sy_chat_at_operator(p, "|")) {
            node = sy_chat_parse_filters(p, node, 0);
        } else if (sy_chat_at_name(p, "is")) {
            node = parse_test(p, node);
        } else if (sy_chat_at_operator(p, "(")) {
            node = parse_call(p, node);
        } else {
            break;
        }
    }
    return node;
}

static chat_node *parse_unary(chat_parser *p, int with_filter)
{
    chat_node *node;

    if (!sy_chat_descend(p)) return fail_node(p);
    if (sy_chat_skip_operator(p, "-")) {
        node = unary(p, CHAT_X_NEGATIVE, parse_unary(p, 0));
    } else if (sy_chat_skip_operator(p, "+")) {
        node = unary(p, CHAT_X_POSITIVE, parse_unary(p, 0));
    } else {
        node = parse_primary(p);
    }
    node = parse_postfix(p, node);
    if (with_filter) node = parse_filter_expression(p, node);
    sy_chat_ascend(p);
    return node;
}

static chat_node *parse_power(chat_parser *p)
{
    chat_node *node = parse_unary(p, 1);

    while (p->run->status == SY_OK && sy_chat_skip_operator(p, "**")) {
        node = binary(p, CHAT_X_BINARY, CHAT_OP_POW, node, parse_unary(p, 1));
    }
    return node;
}

typedef struct operator_name {
    const char *text;
    chat_op op;
} operator_name;

static int skip_one_of(chat_parser *p, const operator_name *ops, size_t n, chat_op *op)
{
    for (size_t i = 0; i < n; i++) {
        if (!sy_chat_skip_operator(p, ops[i].text)) continue;
        *op = ops[i].op;
        return 1;
    }
    return 0;
}

static chat_node *parse_product(chat_parser *p)
{
    static const operator_name ops[] = {
        {"*", CHAT_OP_MUL}, {"/", CHAT_OP_DIV}, {"//", CHAT_OP_FLOORDIV}, {"%", CHAT_OP_MOD}};
    chat_node *node = parse_power(p);
    chat_op op;

    while (p->run->status == SY_OK && skip_one_of(p, ops, SY_COUNT_OF(ops), &op)) {
        node = binary(p, CHAT_X_BINARY, op, node, parse_power(p));
    }
    return node;
}

static chat_node *parse_join(chat_parser *p)
{
    chat_node *first = parse_product(p);
    chat_node *node;

    if (!sy_chat_at_operator(p, "~")) return first;
    node = sy_chat_node(p, CHAT_X_JOIN);
    sy_chat_add(p, &node->items, first);
    while (p->run->status == SY_OK && sy_chat_skip_operator(p, "~")) {
        sy_chat_add(p, &node->items, parse_product(p));
    }
    return sy_chat_finish(p, node);
}

static chat_node *parse_sum(chat_parser *p)
{
    static const operator_name ops[] = {{"+", CHAT_OP_ADD}, {"-", CHAT_OP_SUB}};
    chat_node *node = parse_join(p);
    chat_op op;

    while (p->run->status == SY_OK && skip_one_of(p, ops, SY_COUNT_OF(ops), &op)) {
        node = binary(p, CHAT_X_BINARY, op, node, parse_join(p));
    }
    return node;
}

/* 1: a comparison operator was there and is consumed. */
static int skip_comparison(chat_parser *p, chat_op *op)
{
    static const operator_name ops[] = {{"==", CHAT_OP_EQ}, {"!=", CHAT_OP_NE}, {"<", CHAT_OP_LT},
                                        {"<=", CHAT_OP_LE}, {">", CHAT_OP_GT},  {">=", CHAT_OP_GE}};

    if (skip_one_of(p, ops, SY_COUNT_OF(ops), op)) return 1;
    if (sy_chat_skip_name(p, "in")) {
        *op = CHAT_OP_IN;
        return 1;
    }
    if (sy_chat_at_name(p, "not") && p->token[1].kind == CHAT_T_NAME && p->token[1].n == 2 &&
        memcmp(p->token[1].text, "in", 2) == 0) {
        sy_chat_advance(p);
        sy_chat_advance(p);
        *op = CHAT_OP_NOT_IN;
        return 1;
    }
    return 0;
}

static chat_node *parse_comparison(chat_parser *p)
{
    chat_node *first = parse_sum(p);
    chat_node *node = NULL;
    chat_op op;

    while (p->run->status == SY_OK && skip_comparison(p, &op)) {
        if (node == NULL) {
            node = sy_chat_node(p, CHAT_X_COMPARE);
            node->a = first;
            node->ops = sy_chat_alloc(p->run, COMPARISONS_MAX, 1);
        }
        if (node->items.n == COMPARISONS_MAX) {
            sy_chat_fail(p->run, SY_ELIMIT, "more than %d comparisons in one", COMPARISONS_MAX);
        }
        if (p->run->status != SY_OK) break;
        node->ops[node->items.n] = (uint8_t)op;
        sy_chat_add(p, &node->items, parse_sum(p));
    }
    return node == NULL ? first : sy_chat_finish(p, node);
}

static chat_node *parse_not(chat_parser *p)
{
    chat_node *node;

    if (!sy_chat_at_name(p, "not")) return parse_comparison(p);
    if (!sy_chat_descend(p)) return fail_node(p);
    sy_chat_advance(p);
    node = unary(p, CHAT_X_NOT, parse_not(p));
    sy_chat_ascend(p);
    return node;
}

static chat_node *parse_and(chat_parser *p)
{
    chat_node *node = parse_not(p);

    while (p->run->status == SY_OK && sy_chat_skip_name(p, "and")) {
        node = binary(p, CHAT_X_AND, CHAT_OP_ADD, node, parse_not(p));
    }
    return node;
}

static chat_node *parse_or(chat_parser *p)
{
    chat_node *node = parse_and(p);

    while (p->run->status == SY_OK && sy_chat_skip_name(p, "or")) {
        node = binary(p, CHAT_X_OR, CHAT_OP_ADD, node, parse_and(p));
    }
    return node;
}

chat_node *sy_chat_parse_expression(chat_parser *p, int with_if)
{
    chat_node *node;

    if (!sy_chat_descend(p)) return fail_node(p);
    node = parse_or(p);
    while (with_if && p->run->status == SY_OK && sy_chat_skip_name(p, "if")) {
        chat_node *choice = sy_chat_node(p, CHAT_X_IF);

        choice->a = node;
        choice->b = parse_or(p);
        if (sy_chat_skip_name(p, "else")) choice->c = sy_chat_parse_expression(p, 1);
        node = sy_chat_finish(p, choice);
    }
    sy_chat_ascend(p);
    return node;
}

static int at_tuple_end(const chat_parser *p, const char *end)
{
    return p->token->kind == CHAT_T_PRINT_END || p->token->kind == CHAT_T_TAG_END ||
           sy_chat_at_operator(p, ")") || (end != NULL && sy_chat_at_name(p, end));
}

chat_node *sy_chat_parse_tuple(chat_parser *p, int with_if, const char *end)
{
    chat_node *first;
    chat_node *tuple;

    if (at_tuple_end(p, end)) sy_chat_fail_token(p, "an expression");
    first = sy_chat_parse_expression(p, with_if);
    if (!sy_chat_at_operator(p, ",")) return first;
    tuple = sy_chat_node(p, CHAT_X_TUPLE);
    sy_chat_add(p, &tuple->items, first);
    while (p->run->status == SY_OK && sy_chat_skip_operator(p, ",")) {
        if (at_tuple_end(p, end)) break;
        sy_chat_add(p, &tuple->items, sy_chat_parse_expression(p, with_if));
    }
    return sy_chat_finish(p, tuple);
}
