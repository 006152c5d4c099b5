/* sy_chat_eval.c - expressions of a chat template. */
#include "sy_chat_eval.h"

chat_value sy_chat_lookup(chat_run *run, const chat_scope *scope, uint32_t name_id)
{
    for (; scope != NULL; scope = scope->outer) {
        for (size_t i = scope->n; i-- > 0;) {
            if (scope->binding[i].name_id == name_id) return scope->binding[i].value;
        }
        sy_chat_charge(run, scope->n);
    }
    return run->context[name_id];
}

static chat_value eval_name(chat_run *run, const chat_scope *scope, const chat_node *node)
{
    const chat_value v = sy_chat_lookup(run, scope, node->name_id);

    return v.kind == CHAT_MISSING ? sy_chat_undefined(node->name, CHAT_MISSING) : v;
}

static chat_value eval_sequence(chat_run *run, chat_scope *scope, const chat_node *node)
{
    const chat_seq seq = node->kind == CHAT_X_LIST ? CHAT_SEQ_LIST : CHAT_SEQ_TUPLE;
    chat_list *list = sy_chat_list_new(run, seq, node->items.n);

    for (size_t i = 0; i < node->items.n && run->status == SY_OK; i++) {
        sy_chat_list_push(run, list, sy_chat_eval(run, scope, node->items.item[i]));
    }
    return sy_chat_from_list(list);
}

static chat_value eval_dict(chat_run *run, chat_scope *scope, const chat_node *node)
{
    chat_dict *dict = sy_chat_dict_new(run);

    for (size_t i = 0; i + 1 < node->items.n && run->status == SY_OK; i += 2) {
        const chat_value key = sy_chat_eval(run, scope, node->items.item[i]);

        sy_chat_dict_set(run, dict, key, sy_chat_eval(run, scope, node->items.item[i + 1]));
    }
    return sy_chat_from_dict(dict);
}

static chat_value eval_join(chat_run *run, chat_scope *scope, const chat_node *node)
{
    chat_value text = sy_chat_cstring(run, "");

    for (size_t i = 0; i < node->items.n && run->status == SY_OK; i++) {
        const chat_value part = sy_chat_eval(run, scope, node->items.item[i]);

        text = sy_chat_concat(run, text, sy_chat_to_string(run, part));
    }
    text.is_safe = 0;
    return text;
}

static chat_value eval_comparison(chat_run *run, chat_scope *scope, const chat_node *node)
{
    chat_value left = sy_chat_eval(run, scope, node->a);
    chat_value truth = sy_chat_bool(0);

    for (size_t i = 0; i < node->items.n && run->status == SY_OK; i++) {
        const chat_value right = sy_chat_eval(run, scope, node->items.item[i]);

        run->line = node->line;
        truth = sy_chat_binary(run, (chat_op)node->ops[i], left, right);
        if (!sy_chat_truth(truth)) break;
        left = right;
    }
    return truth;
}

static chat_value eval_choice(chat_run *run, chat_scope *scope, const chat_node *node)
{
    if (sy_chat_truth(sy_chat_eval(run, scope, node->b))) return sy_chat_eval(run, scope, node->a);
    if (node->c == NULL) return sy_chat_undefined(NULL, CHAT_MISSING);
    return sy_chat_eval(run, scope, node->c);
}

static chat_value eval_slice(chat_run *run, chat_scope *scope, const chat_node *node)
{
    const chat_value object = sy_chat_eval(run, scope, node->a);
    chat_value bounds[3];

    for (size_t i = 0; i < 3; i++) {
        const chat_node *bound = i < node->items.n ? node->items.item[i] : NULL;

        bounds[i] = bound == NULL ? sy_chat_none() : sy_chat_eval(run, scope, bound);
    }
    run->line = node->line;
    return sy_chat_slice(run, object, bounds);
}

static void add_named(chat_run *run, chat_args *args, chat_value name, chat_value value)
{
    if (name.kind != CHAT_STRING) {
        sy_chat_fail(run, SY_EINVAL, "keywords must be strings, not %s", sy_chat_type(name));
        return;
    }
    args->named[args->n_named].name = name.str;
    args->named[args->n_named].value = value;
    args->n_named++;
}

void sy_chat_eval_args(chat_run *run, chat_scope *scope, const chat_call *call, chat_args *out)
{
    const chat_list *list = NULL;
    chat_value mapping = {.kind = CHAT_MISSING};
    size_t n_more = 0;

    *out = (chat_args){0};
    if (call->list != NULL) list = sy_chat_iterate(run, sy_chat_eval(run, scope, call->list));
    if (call->mapping != NULL) mapping = sy_chat_eval(run, scope, call->mapping);
    if (call->mapping != NULL && mapping.kind != CHAT_DICT) {
        sy_chat_fail(run, SY_EINVAL, "argument after ** must be a mapping, not %s",
                     sy_chat_type(mapping));
    }
    if (run->status != SY_OK) return;
    if (mapping.kind == CHAT_DICT) n_more = mapping.dict->n;
    out->pos = sy_chat_alloc(run, call->args.n + (list == NULL ? 0 : list->n), sizeof(*out->pos));
    /* One more than there are: a call block adds its caller. */
    out->named = sy_chat_alloc(run, call->n_keywords + n_more + 1, sizeof(*out->named));
    for (size_t i = 0; i < call->args.n && run->status == SY_OK; i++) {
        out->pos[out->n_pos++] = sy_chat_eval(run, scope, call->args.item[i]);
    }
    for (size_t i = 0; list != NULL && i < list->n && run->status == SY_OK; i++) {
        out->pos[out->n_pos++] = list->item[i];
    }
    for (size_t i = 0; i < call->n_keywords && run->status == SY_OK; i++) {
        const chat_value name = {.kind = CHAT_STRING, .str = call->keyword[i].name};

        add_named(run, out, name, sy_chat_eval(run, scope, call->keyword[i].value));
    }
    for (size_t i = 0; i < n_more && run->status == SY_OK; i++) {
        add_named(run, out, mapping.dict->entry[i].key, mapping.dict->entry[i].value);
    }
}

static chat_value eval_call(chat_run *run, chat_scope *scope, const chat_node *node)
{
    const chat_value callee = sy_chat_eval(run, scope, node->a);
    chat_args args;

    sy_chat_eval_args(run, scope, node->call, &args);
    run->line = node->line;
    return sy_chat_call(run, callee, &args);
}

chat_value sy_chat_call(chat_run *run, chat_value callee, const chat_args *args)
{
    if (run->status != SY_OK) return sy_chat_none();
    switch (callee.kind) {
    case CHAT_MACRO: return sy_chat_call_macro(run, callee.macro, args);
    case CHAT_FUNCTION:
        return sy_chat_call_builtin(run, CHAT_FUNCTIONS, callee.id, sy_chat_none(), args);
    case CHAT_METHOD: return sy_chat_call_builtin(run, CHAT_METHODS, callee.id, *callee.self, args);
    case CHAT_UNDEFINED: sy_chat_fail_undefined(run, callee); return sy_chat_none();
    default:
        sy_chat_fail(run, SY_EINVAL, "'%s' object is not callable", sy_chat_type(callee));
        return sy_chat_none();
    }
}

chat_value sy_chat_eval_filter(chat_run *run, chat_scope *scope, const chat_node *node,
                               chat_value input)
{
    chat_args args;

    /* Filters of a block stand in a chain whose innermost has no operand of its own. */
    if (node->a != NULL) input = sy_chat_eval_filter(run, scope, node->a, input);
    sy_chat_eval_args(run, scope, node->call, &args);
    run->line = node->line;
    return sy_chat_call_builtin(run, CHAT_FILTERS, node->id, input, &args);
}

static chat_value eval_builtin(chat_run *run, chat_scope *scope, const chat_node *node)
{
    const chat_table table = node->kind == CHAT_X_FILTER ? CHAT_FILTERS : CHAT_TESTS;
    const chat_value input = sy_chat_eval(run, scope, node->a);
    chat_args args;

    sy_chat_eval_args(run, scope, node->call, &args);
    run->line = node->line;
    return sy_chat_call_builtin(run, table, node->id, input, &args);
}

static chat_value eval_binary(chat_run *run, chat_scope *scope, const chat_node *node)
{
    const chat_value a = sy_chat_eval(run, scope, node->a);
    const chat_value b = sy_chat_eval(run, scope, node->b);

    run->line = node->line;
    return node->kind == CHAT_X_ITEM ? sy_chat_item(run, a, b)
                                     : sy_chat_binary(run, (chat_op)node->id, a, b);
}

static chat_value eval_attribute(chat_run *run, chat_scope *scope, const chat_node *node)
{
    const chat_value object = sy_chat_eval(run, scope, node->a);

    run->line = node->line;
    return sy_chat_attribute(run, object, node->name);
}

/* and, or: the operand that decides, as it is. */
static chat_value eval_logic(chat_run *run, chat_scope *scope, const chat_node *node)
{
    const chat_value a = sy_chat_eval(run, scope, node->a);

    if (sy_chat_truth(a) == (node->kind == CHAT_X_OR)) return a;
    return sy_chat_eval(run, scope, node->b);
}

static chat_value eval_sign(chat_run *run, chat_scope *scope, const chat_node *node)
{
    const chat_value a = sy_chat_eval(run, scope, node->a);

    run->line = node->line;
    return sy_chat_sign(run, a, node->kind == CHAT_X_NEGATIVE);
}

static chat_value eval_any(chat_run *run, chat_scope *scope, const chat_node *node)
{
    switch (node->kind) {
    case CHAT_X_CONSTANT: return node->constant;
    case CHAT_X_NAME: return eval_name(run, scope, node);
    case CHAT_X_ATTRIBUTE: return eval_attribute(run, scope, node);
    case CHAT_X_SLICE: return eval_slice(run, scope, node);
    case CHAT_X_CALL: return eval_call(run, scope, node);
    case CHAT_X_FILTER:
    case CHAT_X_TEST: return eval_builtin(run, scope, node);
    case CHAT_X_NOT: return sy_chat_bool(!sy_chat_truth(sy_chat_eval(run, scope, node->a)));
    case CHAT_X_NEGATIVE:
    case CHAT_X_POSITIVE: return eval_sign(run, scope, node);
    case CHAT_X_ITEM:
    case CHAT_X_BINARY: return eval_binary(run, scope, node);
    case CHAT_X_AND:
    case CHAT_X_OR: return eval_logic(run, scope, node);
    case CHAT_X_JOIN: return eval_join(run, scope, node);
    case CHAT_X_COMPARE: return eval_comparison(run, scope, node);
    case CHAT_X_IF: return eval_choice(run, scope, node);
    case CHAT_X_LIST:
    case CHAT_X_TUPLE: return eval_sequence(run, scope, node);
    case CHAT_X_DICT: return eval_dict(run, scope, node);
    default: SY_ASSERT(!"a statement where an expression belongs");
    }
    return sy_chat_none();
}

chat_value sy_chat_eval(chat_run *run, chat_scope *scope, const chat_node *node)
{
    chat_value v = sy_chat_none();

    if (sy_chat_enter(run)) {
        run->line = node->line;
        sy_chat_charge(run, 0);
        v = eval_any(run, scope, node);
    }
    sy_chat_leave(run);
    return v;
}
