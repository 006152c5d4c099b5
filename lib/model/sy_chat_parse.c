/* sy_chat_parse.c - statements of a chat template, and what its parser is made of. What Jinja has
 * and chat templates do not use (includes, inheritance, ...) is refused here by name. */
#include "sy_chat_parse.h"

#include <string.h>

#define TREE_HEIGHT_MAX 250 /* a chain such as a + b + c is as high as it is long */
#define PARAMS_MAX      64  /* of one macro */

static int token_is(const chat_token *token, chat_token_kind kind, const char *text)
{
    return token->kind == kind && token->n == strlen(text) &&
           memcmp(token->text, text, token->n) == 0;
}

void sy_chat_advance(chat_parser *p)
{
    if (p->token->kind != CHAT_T_END) p->token++;
    p->run->line = p->token->line;
}

int sy_chat_at_operator(const chat_parser *p, const char *op)
{
    return token_is(p->token, CHAT_T_OPERATOR, op);
}

int sy_chat_at_name(const chat_parser *p, const char *name)
{
    return token_is(p->token, CHAT_T_NAME, name);
}

int sy_chat_skip_operator(chat_parser *p, const char *op)
{
    if (!sy_chat_at_operator(p, op)) return 0;
    sy_chat_advance(p);
    return 1;
}

int sy_chat_skip_name(chat_parser *p, const char *name)
{
    if (!sy_chat_at_name(p, name)) return 0;
    sy_chat_advance(p);
    return 1;
}

void sy_chat_fail_token(chat_parser *p, const char *expected)
{
    static const char *const kinds[] = {
        [CHAT_T_END] = "the end of the template",
        [CHAT_T_TEXT] = "text",
        [CHAT_T_PRINT_BEGIN] = "{{",
        [CHAT_T_PRINT_END] = "}}",
        [CHAT_T_TAG_BEGIN] = "{%",
        [CHAT_T_TAG_END] = "%}",
        [CHAT_T_STRING] = "a string",
        [CHAT_T_NUMBER] = "a number",
    };

    if (p->token->kind == CHAT_T_NAME || p->token->kind == CHAT_T_OPERATOR) {
        sy_chat_fail(p->run, SY_EINVAL, "expected %s, found '%.*s'", expected,
                     sy_chat_clip(p->token->text, p->token->n), p->token->text);
    } else {
        sy_chat_fail(p->run, SY_EINVAL, "expected %s, found %s", expected, kinds[p->token->kind]);
    }
}

void sy_chat_expect_operator(chat_parser *p, const char *op)
{
    if (!sy_chat_skip_operator(p, op)) sy_chat_fail_token(p, op);
}

int sy_chat_descend(chat_parser *p)
{
    p->depth++;
    if (p->depth > SY_CHAT_NESTING_MAX) {
        sy_chat_fail(p->run, SY_ELIMIT, "it is nested deeper than %d levels", SY_CHAT_NESTING_MAX);
    }
    return p->run->status == SY_OK;
}

void sy_chat_ascend(chat_parser *p)
{
    p->depth--;
}

chat_node *sy_chat_node(chat_parser *p, chat_node_kind kind)
{
    chat_node *node = sy_chat_alloc(p->run, 1, sizeof(*node));

    if (node == NULL) node = &p->spare;
    *node = (chat_node){.kind = kind, .line = p->token->line};
    return node;
}

void sy_chat_add(chat_parser *p, chat_nodes *nodes, chat_node *node)
{
    if (p->run->status != SY_OK) return;
    if (nodes->n == nodes->capacity) {
        const size_t larger = SY_MAX((size_t)4, 2 * nodes->capacity);
        chat_node **item = sy_chat_alloc(p->run, larger, sizeof(chat_node *));

        if (item == NULL) return;
        if (nodes->n > 0) memcpy(item, nodes->item, nodes->n * sizeof(chat_node *));
        nodes->item = item;
        nodes->capacity = larger;
    }
    nodes->item[nodes->n++] = node;
}

static uint32_t height_of(const chat_nodes *nodes)
{
    uint32_t height = 0;

    for (size_t i = 0; i < nodes->n; i++) {
        if (nodes->item[i] != NULL) height = SY_MAX(height, nodes->item[i]->height);
    }
    return height;
}

static uint32_t height_of_call(const chat_call *call)
{
    uint32_t height = height_of(&call->args);

    if (call->list != NULL) height = SY_MAX(height, call->list->height);
    if (call->mapping != NULL) height = SY_MAX(height, call->mapping->height);
    for (size_t i = 0; i < call->n_keywords; i++) {
        height = SY_MAX(height, call->keyword[i].value->height);
    }
    return height;
}

chat_node *sy_chat_finish(chat_parser *p, chat_node *node)
{
    const chat_node *parts[] = {node->a, node->b, node->c};
    uint32_t height = 0;

    if (p->run->status != SY_OK) return node;
    for (size_t i = 0; i < SY_COUNT_OF(parts); i++) {
        if (parts[i] != NULL) height = SY_MAX(height, parts[i]->height);
    }
    height = SY_MAX(height, height_of(&node->items));
    height = SY_MAX(height, height_of(&node->body));
    height = SY_MAX(height, height_of(&node->other));
    if (node->call != NULL) height = SY_MAX(height, height_of_call(node->call));
    node->height = height + 1;
    if (node->height > TREE_HEIGHT_MAX) {
        sy_chat_fail(p->run, SY_ELIMIT, "an expression has more than %d parts in a row",
                     TREE_HEIGHT_MAX);
    }
    return node;
}

chat_str *sy_chat_token_str(chat_parser *p, const chat_token *token)
{
    return sy_chat_string(p->run, token->text, token->n).str;
}

uint32_t sy_chat_intern(chat_parser *p, chat_str *name)
{
    const chat_value key = {.kind = CHAT_STRING, .str = name};
    const chat_value *known;

    if (p->run->status != SY_OK) return 0;
    known = sy_chat_dict_get(p->run, p->name_ids, key);
    if (known != NULL) return (uint32_t)known->i;
    sy_chat_dict_set(p->run, p->name_ids, key, sy_chat_int((int64_t)p->names->n));
    sy_chat_list_push(p->run, p->names, key);
    return (uint32_t)(p->names->n - 1);
}

static void refuse_reserved(chat_parser *p)
{
    static const char *const reserved[] = {"true", "True", "false", "False", "none", "None"};

    for (size_t i = 0; i < SY_COUNT_OF(reserved); i++) {
        if (sy_chat_at_name(p, reserved[i])) {
            sy_chat_fail(p->run, SY_EINVAL, "%s cannot be assigned to", reserved[i]);
        }
    }
}

/* A variable, or with_namespace "variable.attribute". */
static chat_node *parse_name_target(chat_parser *p, int with_namespace)
{
    chat_node *node = sy_chat_node(p, CHAT_X_NAME);

    if (p->token->kind != CHAT_T_NAME) {
        sy_chat_fail_token(p, "a variable's name");
        return node;
    }
    refuse_reserved(p);
    node->name = sy_chat_token_str(p, p->token);
    node->name_id = sy_chat_intern(p, node->name);
    sy_chat_advance(p);
    if (with_namespace && sy_chat_skip_operator(p, ".")) {
        chat_node *attribute = sy_chat_node(p, CHAT_X_ATTRIBUTE);

        attribute->a = sy_chat_finish(p, node);
        if (p->token->kind != CHAT_T_NAME) sy_chat_fail_token(p, "an attribute's name");
        if (p->run->status == SY_OK) attribute->name = sy_chat_token_str(p, p->token);
        sy_chat_advance(p);
        return sy_chat_finish(p, attribute);
    }
    if (node->name_id == CHAT_NAME_LOOP && p->n_loops > 0) {
        sy_chat_fail(p->run, SY_EINVAL, "loop is a special variable and cannot be assigned to");
    }
    return sy_chat_finish(p, node);
}

/* A name or a tuple of them: a, (b, c). */
static chat_node *parse_target(chat_parser *p, int with_namespace)
{
    chat_node *tuple = NULL;
    chat_node *node = NULL;

    if (!sy_chat_descend(p)) return &p->spare;
    do {
        if (tuple != NULL && (sy_chat_at_name(p, "in") || sy_chat_at_operator(p, ")"))) break;
        if (sy_chat_skip_operator(p, "(")) {
            node = parse_target(p, with_namespace);
            sy_chat_expect_operator(p, ")");
        } else {
            node = parse_name_target(p, with_namespace);
        }
        if (tuple == NULL && sy_chat_at_operator(p, ",")) tuple = sy_chat_node(p, CHAT_X_TUPLE);
        if (tuple != NULL) sy_chat_add(p, &tuple->items, node);
    } while (p->run->status == SY_OK && sy_chat_skip_operator(p, ","));
    sy_chat_ascend(p);
    return tuple == NULL ? node : sy_chat_finish(p, tuple);
}

static chat_node *parse_statement(chat_parser *p);

static int at_end_tag(const chat_parser *p, const char *const *ends)
{
    for (; ends != NULL && *ends != NULL; ends++) {
        if (token_is(&p->token[1], CHAT_T_NAME, *ends)) return 1;
    }
    return 0;
}

static chat_node *parse_print(chat_parser *p)
{
    chat_node *node = sy_chat_node(p, CHAT_S_PRINT);

    sy_chat_advance(p);
    node->a = sy_chat_parse_tuple(p, 1, NULL);
    if (p->token->kind != CHAT_T_PRINT_END) sy_chat_fail_token(p, "}}");
    sy_chat_advance(p);
    return sy_chat_finish(p, node);
}

static chat_node *parse_text(chat_parser *p)
{
    chat_node *node = sy_chat_node(p, CHAT_S_TEXT);

    node->constant = p->token->value;
    sy_chat_advance(p);
    return node;
}

static void expect_tag_end(chat_parser *p)
{
    if (p->token->kind != CHAT_T_TAG_END) sy_chat_fail_token(p, "%}");
    sy_chat_advance(p);
}

/* Up to a tag named in ends (NULL-terminated; NULL: up to the end of the template), whose name
 * becomes the next token. */
static void parse_body(chat_parser *p, chat_nodes *out, const char *const *ends)
{
    if (!sy_chat_descend(p)) return;
    while (p->run->status == SY_OK) {
        if (p->token->kind == CHAT_T_TEXT) {
            sy_chat_add(p, out, parse_text(p));
        } else if (p->token->kind == CHAT_T_PRINT_BEGIN) {
            sy_chat_add(p, out, parse_print(p));
        } else if (p->token->kind == CHAT_T_TAG_BEGIN) {
            const int is_end = at_end_tag(p, ends);

            sy_chat_advance(p);
            if (is_end) break;
            sy_chat_add(p, out, parse_statement(p));
            expect_tag_end(p);
        } else {
            if (ends != NULL) {
                sy_chat_fail(p->run, SY_EINVAL, "the template ends where {%% %s %%} was expected",
                             ends[0]);
            }
            break;
        }
    }
    sy_chat_ascend(p);
}

/* The rest of an opening tag, then the body. */
static void parse_block(chat_parser *p, chat_nodes *out, const char *const *ends)
{
    (void)sy_chat_skip_operator(p, ":");
    expect_tag_end(p);
    parse_body(p, out, ends);
}

/* The same, where only one tag can end it; that tag's name is consumed. */
static void parse_whole_block(chat_parser *p, chat_nodes *out, const char *end)
{
    const char *const ends[] = {end, NULL};

    parse_block(p, out, ends);
    sy_chat_advance(p);
}

static chat_node *parse_if(chat_parser *p)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    chat_node *node = sy_chat_node(p, CHAT_S_IF);
    chat_nodes chain = {0}; /* the conditions in their order */

    sy_chat_advance(p);
    for (;;) {
        node->a = sy_chat_parse_tuple(p, 0, NULL);
        parse_block(p, &node->body, ends);
        sy_chat_add(p, &chain, node);
        if (p->run->status != SY_OK || !sy_chat_skip_name(p, "elif")) break;
        node = sy_chat_node(p, CHAT_S_IF);
    }
    if (sy_chat_skip_name(p, "else")) {
        parse_whole_block(p, &node->other, "endif");
    } else {
        sy_chat_advance(p); /* endif */
    }
    for (size_t i = chain.n; i-- > 0;) {
        sy_chat_finish(p, chain.item[i]);
        if (i + 1 == chain.n) continue;
        /* A row of elifs is one level, for the reader and for the interpreter. */
        chain.item[i]->b = chain.item[i + 1];
        chain.item[i]->height = SY_MAX(chain.item[i]->height, chain.item[i + 1]->height);
    }
    return chain.n > 0 ? chain.item[0] : node;
}

static chat_node *parse_for(chat_parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    chat_node *node = sy_chat_node(p, CHAT_S_FOR);

    sy_chat_advance(p);
    p->n_loops++;
    node->a = parse_target(p, 0);
    if (!sy_chat_skip_name(p, "in")) sy_chat_fail_token(p, "in");
    node->b = sy_chat_parse_tuple(p, 0, "recursive");
    if (sy_chat_skip_name(p, "if")) node->c = sy_chat_parse_expression(p, 1);
    if (sy_chat_at_name(p, "recursive")) {
        sy_chat_fail(p->run, SY_EINVAL, "recursive loops are not supported");
    }
    parse_block(p, &node->body, ends);
    p->n_loops--;
    if (sy_chat_skip_name(p, "else")) {
        parse_whole_block(p, &node->other, "endfor");
    } else {
        sy_chat_advance(p); /* endfor */
    }
    return sy_chat_finish(p, node);
}

static chat_node *parse_set(chat_parser *p)
{
    chat_node *node = sy_chat_node(p, CHAT_S_SET);

    sy_chat_advance(p);
    node->a = parse_target(p, 1);
    if (sy_chat_skip_operator(p, "=")) {
        node->b = sy_chat_parse_tuple(p, 1, NULL);
    } else {
        node->kind = CHAT_S_SET_BLOCK;
        node->b = sy_chat_parse_filters(p, NULL, 0);
        parse_whole_block(p, &node->body, "endset");
    }
    return sy_chat_finish(p, node);
}

static chat_node *parse_with(chat_parser *p)
{
    chat_node *node = sy_chat_node(p, CHAT_S_WITH);

    sy_chat_advance(p);
    while (p->run->status == SY_OK && p->token->kind != CHAT_T_TAG_END) {
        if (node->items.n > 0) sy_chat_expect_operator(p, ",");
        sy_chat_add(p, &node->items, parse_name_target(p, 0));
        sy_chat_expect_operator(p, "=");
        sy_chat_add(p, &node->items, sy_chat_parse_expression(p, 1));
    }
    parse_whole_block(p, &node->body, "endwith");
    return sy_chat_finish(p, node);
}

static void parse_param(chat_parser *p, chat_signature *signature)
{
    const chat_node *target = parse_name_target(p, 0);
    chat_param *param = &signature->param[signature->n_params];

    if (p->run->status != SY_OK) return;
    *param = (chat_param){.name = target->name, .name_id = target->name_id};
    if (target->name_id < CHAT_N_FIXED_NAMES) {
        sy_chat_fail(p->run, SY_EINVAL, "a parameter named %.*s is not supported",
                     (int)target->name->n, target->name->data);
    }
    if (sy_chat_skip_operator(p, "=")) {
        param->fallback = sy_chat_parse_expression(p, 1);
    } else if (signature->n_params > 0 && param[-1].fallback != NULL) {
        sy_chat_fail(p->run, SY_EINVAL, "a parameter without a default after one with it");
    }
    signature->n_params++;
}

/* (a, b=1) */
static void parse_signature(chat_parser *p, chat_signature *signature)
{
    signature->param = sy_chat_alloc(p->run, PARAMS_MAX, sizeof(*signature->param));
    sy_chat_expect_operator(p, "(");
    while (p->run->status == SY_OK && !sy_chat_at_operator(p, ")")) {
        if (signature->n_params > 0) sy_chat_expect_operator(p, ",");
        if (signature->n_params == PARAMS_MAX) {
            sy_chat_fail(p->run, SY_ELIMIT, "a macro has more than %d parameters", PARAMS_MAX);
            return;
        }
        parse_param(p, signature);
    }
    sy_chat_expect_operator(p, ")");
}

static void parse_macro_body(chat_parser *p, chat_node *node, const char *end)
{
    chat_enclosing here = {.signature = node->signature, .outer = p->enclosing};
    const uint32_t n_loops = p->n_loops;

    p->enclosing = &here;
    p->n_loops = 0; /* break does not leave a macro */
    parse_whole_block(p, &node->body, end);
    p->n_loops = n_loops;
    p->enclosing = here.outer;
}

static int add_signature(chat_parser *p, chat_node *node)
{
    node->signature = sy_chat_alloc(p->run, 1, sizeof(*node->signature));
    if (node->signature == NULL) return 0;
    *node->signature = (chat_signature){0};
    return 1;
}

static chat_node *parse_macro(chat_parser *p)
{
    chat_node *node = sy_chat_node(p, CHAT_S_MACRO);
    const chat_node *name;

    sy_chat_advance(p);
    name = parse_name_target(p, 0);
    node->name = name->name;
    node->name_id = name->name_id;
    if (!add_signature(p, node)) return node;
    parse_signature(p, node->signature);
    parse_macro_body(p, node, "endmacro");
    return sy_chat_finish(p, node);
}

static chat_node *parse_call_block(chat_parser *p)
{
    chat_node *node = sy_chat_node(p, CHAT_S_CALL);

    sy_chat_advance(p);
    if (!add_signature(p, node)) return node;
    if (sy_chat_at_operator(p, "(")) parse_signature(p, node->signature);
    node->a = sy_chat_parse_expression(p, 1);
    if (node->a->kind != CHAT_X_CALL) {
        sy_chat_fail(p->run, SY_EINVAL, "{%% call %%} is followed by no call of a macro");
    }
    parse_macro_body(p, node, "endcall");
    return sy_chat_finish(p, node);
}

static chat_node *parse_filter_block(chat_parser *p)
{
    chat_node *node = sy_chat_node(p, CHAT_S_FILTER);

    sy_chat_advance(p);
    node->b = sy_chat_parse_filters(p, NULL, 1);
    parse_whole_block(p, &node->body, "endfilter");
    return sy_chat_finish(p, node);
}

static chat_node *parse_generation(chat_parser *p)
{
    chat_node *node = sy_chat_node(p, CHAT_S_SCOPE);
    const uint32_t n_loops = p->n_loops;

    sy_chat_advance(p);
    p->n_loops = 0; /* to Jinja the block is a function: break cannot leave it */
    parse_whole_block(p, &node->body, "endgeneration");
    p->n_loops = n_loops;
    return sy_chat_finish(p, node);
}

static chat_node *parse_jump(chat_parser *p)
{
    const int is_break = sy_chat_at_name(p, "break");
    chat_node *node = sy_chat_node(p, is_break ? CHAT_S_BREAK : CHAT_S_CONTINUE);

    if (p->n_loops == 0) {
        sy_chat_fail(p->run, SY_EINVAL, "{%% %s %%} outside of a loop",
                     is_break ? "break" : "continue");
    }
    sy_chat_advance(p);
    return sy_chat_finish(p, node);
}

static chat_node *parse_statement(chat_parser *p)
{
    static const struct {
        const char *tag;
        chat_node *(*parse)(chat_parser *p);
    } statements[] = {
        {"if", parse_if},         {"for", parse_for},
        {"set", parse_set},       {"macro", parse_macro},
        {"with", parse_with},     {"call", parse_call_block},
        {"break", parse_jump},    {"filter", parse_filter_block},
        {"continue", parse_jump}, {"generation", parse_generation},
    };

    if (p->token->kind != CHAT_T_NAME) {
        sy_chat_fail_token(p, "a tag's name");
        return &p->spare;
    }
    for (size_t i = 0; i < SY_COUNT_OF(statements); i++) {
        if (sy_chat_at_name(p, statements[i].tag)) return statements[i].parse(p);
    }
    if (p->token->n > 3 && memcmp(p->token->text, "end", 3) == 0) {
        sy_chat_fail(p->run, SY_EINVAL, "{%% %.*s %%} ends nothing that is open here",
                     sy_chat_clip(p->token->text, p->token->n), p->token->text);
    } else {
        sy_chat_fail(p->run, SY_EINVAL, "the tag {%% %.*s %%} is not supported",
                     sy_chat_clip(p->token->text, p->token->n), p->token->text);
    }
    return &p->spare;
}

static void copy_names(chat_parser *p)
{
    sy_chat *chat = p->chat;

    chat->name = sy_chat_alloc(p->run, p->names->n, sizeof(chat_str *));
    if (chat->name == NULL) return;
    for (size_t i = 0; i < p->names->n; i++) chat->name[i] = p->names->item[i].str;
    chat->n_names = p->names->n;
}

void sy_chat_parse_template(chat_run *run, sy_chat *chat, const char *text, size_t n)
{
    static const char *const fixed[CHAT_N_FIXED_NAMES] = {[CHAT_NAME_LOOP] = "loop",
                                                          [CHAT_NAME_CALLER] = "caller",
                                                          [CHAT_NAME_VARARGS] = "varargs",
                                                          [CHAT_NAME_KWARGS] = "kwargs"};
    chat_tokens tokens;
    chat_parser p = {.run = run, .chat = chat};

    sy_chat_lex(run, &tokens, text, n);
    p.name_ids = sy_chat_dict_new(run);
    p.names = sy_chat_list_new(run, CHAT_SEQ_LIST, 0);
    for (int i = 0; i < CHAT_N_FIXED_NAMES && run->status == SY_OK; i++) {
        (void)sy_chat_intern(&p, sy_chat_cstring(run, fixed[i]).str);
    }
    if (run->status != SY_OK) return;
    p.token = tokens.token;
    run->line = p.token->line;
    parse_body(&p, &chat->body, NULL);
    if (run->status == SY_OK) copy_names(&p);
}
