/* sy_chat_exec.c - statements of a chat template: what they print, which variables they set, how
 * loops and macros run. */
#include "sy_chat_eval.h"

void sy_chat_bind(chat_run *run, chat_scope *scope, uint32_t name_id, chat_value value)
{
    for (size_t i = 0; i < scope->n; i++) {
        if (scope->binding[i].name_id != name_id) continue;
        scope->binding[i].value = value;
        return;
    }
    sy_chat_charge(run, scope->n);
    if (scope->n == scope->capacity) {
        const size_t larger = SY_MAX((size_t)4, 2 * scope->capacity);
        chat_binding *binding = sy_chat_alloc(run, larger, sizeof(*binding));

        if (binding == NULL) return;
        for (size_t i = 0; i < scope->n; i++) binding[i] = scope->binding[i];
        scope->binding = binding;
        scope->capacity = larger;
    }
    scope->binding[scope->n++] = (chat_binding){.name_id = name_id, .value = value};
}

/* Never NULL: a failed run writes to the outer scope, whose values nobody reads any more. */
static chat_scope *inner_scope(chat_run *run, chat_scope *outer)
{
    chat_scope *scope = sy_chat_alloc(run, 1, sizeof(*scope));

    if (scope == NULL) return outer;
    *scope = (chat_scope){.outer = outer};
    return scope;
}

static void assign_attribute(chat_run *run, const chat_scope *scope, const chat_node *target,
                             chat_value value)
{
    const chat_value object = sy_chat_lookup(run, scope, target->a->name_id);
    const chat_value key = {.kind = CHAT_STRING, .str = target->name};

    if (object.kind == CHAT_NAMESPACE) {
        sy_chat_dict_set(run, object.dict, key, value);
    } else {
        sy_chat_fail(run, SY_EINVAL, "cannot assign attribute on non-namespace object");
    }
}

static void unpack(chat_run *run, chat_scope *scope, const chat_node *target, chat_value value)
{
    const chat_list *list = sy_chat_iterate(run, value);

    if (list == NULL) return;
    if (list->n != target->items.n) {
        sy_chat_fail(run, SY_EINVAL, "%zu values to unpack into %zu variables", list->n,
                     target->items.n);
        return;
    }
    for (size_t i = 0; i < list->n && run->status == SY_OK; i++) {
        sy_chat_assign(run, scope, target->items.item[i], list->item[i]);
    }
}

void sy_chat_assign(chat_run *run, chat_scope *scope, const chat_node *target, chat_value value)
{
    switch (target->kind) {
    case CHAT_X_NAME: sy_chat_bind(run, scope, target->name_id, value); break;
    case CHAT_X_ATTRIBUTE: assign_attribute(run, scope, target, value); break;
    default: unpack(run, scope, target, value); break;
    }
}

/* The text that the body prints. */
static chat_value capture(chat_run *run, chat_scope *scope, const chat_nodes *body, chat_flow *flow)
{
    sy_strbuf *outer = run->out;
    sy_strbuf buf;

    sy_chat_text_begin(&buf);
    run->out = &buf;
    *flow = sy_chat_exec(run, scope, body);
    run->out = outer;
    return sy_chat_text_end(run, &buf);
}

static chat_flow exec_if(chat_run *run, chat_scope *scope, const chat_node *node)
{
    for (;; node = node->b) {
        if (sy_chat_truth(sy_chat_eval(run, scope, node->a))) {
            return sy_chat_exec(run, scope, &node->body);
        }
        if (node->b == NULL) return sy_chat_exec(run, scope, &node->other);
    }
}

/* Everything in a run's arena lives as long as the run, so a macro or an inner loop that outlives
 * an iteration may keep pointers to its scope. */
static chat_flow exec_for(chat_run *run, chat_scope *scope, const chat_node *node)
{
    chat_loop *loop = sy_chat_alloc(run, 1, sizeof(*loop));
    chat_scope *inner = inner_scope(run, scope);
    const chat_value items = sy_chat_eval(run, scope, node->b);
    int ran = 0;

    if (loop == NULL) return CHAT_BREAK;
    *loop =
        (chat_loop){.items = sy_chat_iterate(run, items), .node = node->c == NULL ? NULL : node};
    if (node->c != NULL) loop->test = inner_scope(run, scope);
    while (run->status == SY_OK && sy_chat_loop_next(run, loop)) {
        chat_flow flow;

        inner->n = 0;
        sy_chat_assign(run, inner, node->a, loop->current);
        sy_chat_bind(run, inner, CHAT_NAME_LOOP, (chat_value){.kind = CHAT_LOOP, .loop = loop});
        flow = sy_chat_exec(run, inner, &node->body);
        if (flow == CHAT_BREAK) break;
        /* As in Jinja, where continue skips the note that there was an item. */
        if (flow == CHAT_GO_ON) ran = 1;
    }
    if (ran || run->status != SY_OK || node->other.n == 0) return CHAT_GO_ON;
    return sy_chat_exec(run, inner_scope(run, scope), &node->other);
}

static chat_flow exec_set_block(chat_run *run, chat_scope *scope, const chat_node *node)
{
    chat_flow flow;
    chat_value text = capture(run, inner_scope(run, scope), &node->body, &flow);

    if (flow != CHAT_GO_ON) return flow;
    if (node->b != NULL) text = sy_chat_eval_filter(run, scope, node->b, text);
    sy_chat_assign(run, scope, node->a, text);
    return CHAT_GO_ON;
}

static chat_flow exec_filter_block(chat_run *run, chat_scope *scope, const chat_node *node)
{
    chat_scope *inner = inner_scope(run, scope);
    chat_flow flow;
    const chat_value text = capture(run, inner, &node->body, &flow);

    if (flow == CHAT_GO_ON) {
        sy_chat_print(run, run->out, sy_chat_eval_filter(run, inner, node->b, text));
    }
    return flow;
}

static chat_flow exec_with(chat_run *run, chat_scope *scope, const chat_node *node)
{
    chat_scope *inner = inner_scope(run, scope);

    for (size_t i = 0; i + 1 < node->items.n && run->status == SY_OK; i += 2) {
        sy_chat_assign(run, inner, node->items.item[i],
                       sy_chat_eval(run, scope, node->items.item[i + 1]));
    }
    return sy_chat_exec(run, inner, &node->body);
}

static chat_value new_macro(chat_run *run, chat_scope *scope, const chat_node *node)
{
    chat_macro *macro = sy_chat_alloc(run, 1, sizeof(*macro));

    if (macro == NULL) return sy_chat_none();
    *macro = (chat_macro){.node = node, .scope = scope, .name = node->name};
    return (chat_value){.kind = CHAT_MACRO, .macro = macro};
}

static void exec_call(chat_run *run, chat_scope *scope, const chat_node *node)
{
    const chat_node *call = node->a;
    const chat_value callee = sy_chat_eval(run, scope, call->a);
    chat_args args;

    sy_chat_eval_args(run, scope, call->call, &args);
    if (run->status != SY_OK) return;
    /* sy_chat_eval_args left room for it. */
    args.named[args.n_named++] = (chat_named){.name = run->chat->name[CHAT_NAME_CALLER],
                                              .value = new_macro(run, scope, node)};
    sy_chat_print(run, run->out, sy_chat_call(run, callee, &args));
}

static chat_flow exec_one(chat_run *run, chat_scope *scope, const chat_node *node)
{
    switch (node->kind) {
    case CHAT_S_TEXT:
        sy_chat_put(run, run->out, node->constant.str->data, node->constant.str->n);
        return CHAT_GO_ON;
    case CHAT_S_PRINT: sy_chat_print(run, run->out, sy_chat_eval(run, scope, node->a)); break;
    case CHAT_S_IF: return exec_if(run, scope, node);
    case CHAT_S_FOR: return exec_for(run, scope, node);
    case CHAT_S_SET: sy_chat_assign(run, scope, node->a, sy_chat_eval(run, scope, node->b)); break;
    case CHAT_S_SET_BLOCK: return exec_set_block(run, scope, node);
    case CHAT_S_WITH: return exec_with(run, scope, node);
    case CHAT_S_MACRO: sy_chat_bind(run, scope, node->name_id, new_macro(run, scope, node)); break;
    case CHAT_S_CALL: exec_call(run, scope, node); break;
    case CHAT_S_FILTER: return exec_filter_block(run, scope, node);
    case CHAT_S_SCOPE: return sy_chat_exec(run, inner_scope(run, scope), &node->body);
    case CHAT_S_BREAK: return CHAT_BREAK;
    case CHAT_S_CONTINUE: return CHAT_CONTINUE;
    default: SY_ASSERT(!"an expression where a statement belongs");
    }
    return CHAT_GO_ON;
}

chat_flow sy_chat_exec(chat_run *run, chat_scope *scope, const chat_nodes *body)
{
    chat_flow flow = CHAT_GO_ON;

    if (sy_chat_enter(run)) {
        for (size_t i = 0; i < body->n && flow == CHAT_GO_ON; i++) {
            run->line = body->item[i]->line;
            sy_chat_charge(run, 0);
            flow = exec_one(run, scope, body->item[i]);
            if (run->status != SY_OK) flow = CHAT_BREAK;
        }
    }
    sy_chat_leave(run);
    return run->status == SY_OK ? flow : CHAT_BREAK;
}

/* Takes the argument of that name out of args; MISSING: it is not there. */
static chat_value take_named(chat_args *args, const chat_str *name)
{
    for (size_t i = 0; i < args->n_named; i++) {
        if (sy_chat_str_equal(args->named[i].name, name)) {
            const chat_value value = args->named[i].value;

            args->named[i] = args->named[--args->n_named];
            return value;
        }
    }
    return (chat_value){.kind = CHAT_MISSING};
}

static void bind_params(chat_run *run, const chat_signature *sig, chat_scope *inner,
                        chat_args *args)
{
    for (size_t i = 0; i < sig->n_params && run->status == SY_OK; i++) {
        const chat_param *param = &sig->param[i];
        chat_value value = i < args->n_pos ? args->pos[i] : take_named(args, param->name);

        if (value.kind == CHAT_MISSING) {
            value = param->fallback != NULL ? sy_chat_eval(run, inner, param->fallback)
                                            : sy_chat_undefined(param->name, CHAT_MISSING);
        }
        sy_chat_bind(run, inner, param->name_id, value);
    }
}

/* caller, varargs and kwargs, for the macros that mention them; others take no more than they name.
 */
static void bind_rest(chat_run *run, const chat_macro *macro, chat_scope *inner, chat_args *args)
{
    const chat_signature *sig = macro->node->signature;

    if (sig->uses_caller) {
        chat_str *name = run->chat->name[CHAT_NAME_CALLER];
        const chat_value caller = take_named(args, name);

        sy_chat_bind(run, inner, CHAT_NAME_CALLER,
                     caller.kind == CHAT_MISSING ? sy_chat_undefined(name, CHAT_MISSING) : caller);
    }
    if (sig->uses_kwargs) {
        chat_dict *kwargs = sy_chat_dict_new(run);

        for (size_t i = 0; i < args->n_named; i++) {
            sy_chat_dict_set(run, kwargs,
                             (chat_value){.kind = CHAT_STRING, .str = args->named[i].name},
                             args->named[i].value);
        }
        sy_chat_bind(run, inner, CHAT_NAME_KWARGS, sy_chat_from_dict(kwargs));
    } else if (args->n_named > 0) {
        sy_chat_fail(run, SY_EINVAL, "the macro takes no argument of the name '%.*s'",
                     sy_chat_clip(args->named[0].name->data, args->named[0].name->n),
                     args->named[0].name->data);
    }
    if (sig->uses_varargs) {
        chat_list *rest = sy_chat_list_new(run, CHAT_SEQ_TUPLE, 0);

        for (size_t i = sig->n_params; i < args->n_pos; i++) {
            sy_chat_list_push(run, rest, args->pos[i]);
        }
        sy_chat_bind(run, inner, CHAT_NAME_VARARGS, sy_chat_from_list(rest));
    } else if (args->n_pos > sig->n_params) {
        sy_chat_fail(run, SY_EINVAL, "the macro takes not more than %zu arguments", sig->n_params);
    }
}

chat_value sy_chat_call_macro(chat_run *run, const chat_macro *macro, const chat_args *given)
{
    chat_scope *inner = inner_scope(run, macro->scope);
    chat_args args = *given;
    const uint32_t line = run->line;
    chat_value text;
    chat_flow flow;

    if (given->n_named > 0) { /* taken apart below, and the caller keeps its own */
        args.named = sy_chat_alloc(run, given->n_named, sizeof(*args.named));
        if (args.named == NULL) return sy_chat_none();
        for (size_t i = 0; i < given->n_named; i++) args.named[i] = given->named[i];
    }
    bind_params(run, macro->node->signature, inner, &args);
    if (run->status == SY_OK) bind_rest(run, macro, inner, &args);
    text = capture(run, inner, &macro->node->body, &flow);
    if (run->status == SY_OK) run->line = line;
    return text;
}
