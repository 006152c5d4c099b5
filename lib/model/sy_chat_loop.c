/* sy_chat_loop.c - the items of a {% for %} and its variable `loop`. */
#include "sy_chat_eval.h"

/* The next item that passes the loop's condition. 0: none is left. */
static int draw(chat_run *run, chat_loop *loop, chat_value *out)
{
    while (run->status == SY_OK && loop->items != NULL && loop->next < loop->items->n) {
        *out = loop->items->item[loop->next++];
        sy_chat_charge(run, 0);
        if (loop->node == NULL) return 1;
        loop->test->n = 0;
        sy_chat_assign(run, loop->test, loop->node->a, *out);
        if (sy_chat_truth(sy_chat_eval(run, loop->test, loop->node->c))) {
            return run->status == SY_OK;
        }
    }
    return 0;
}

int sy_chat_loop_next(chat_run *run, chat_loop *loop)
{
    chat_value item;

    if (loop->has_after) {
        item = loop->after;
        loop->has_after = 0;
    } else if (!draw(run, loop, &item)) {
        return 0;
    }
    loop->index++;
    loop->before = loop->current;
    loop->current = item;
    return 1;
}

static int peek(chat_run *run, chat_loop *loop)
{
    if (!loop->has_after) loop->has_after = draw(run, loop, &loop->after);
    return loop->has_after;
}

static int64_t length(chat_run *run, chat_loop *loop)
{
    if (loop->node != NULL) { /* draw what is left, once */
        chat_list *rest = sy_chat_list_new(run, CHAT_SEQ_LIST, 0);
        chat_value item;

        while (draw(run, loop, &item)) sy_chat_list_push(run, rest, item);
        loop->n_before = loop->index + (size_t)loop->has_after;
        loop->items = rest;
        loop->next = 0;
        loop->node = NULL;
    }
    return loop->items == NULL ? 0 : (int64_t)(loop->n_before + loop->items->n);
}

chat_value sy_chat_loop_attribute(chat_run *run, chat_loop *loop, chat_str *name)
{
    const int64_t index = (int64_t)loop->index;

    if (sy_chat_str_is(name, "index")) return sy_chat_int(index);
    if (sy_chat_str_is(name, "index0")) return sy_chat_int(index - 1);
    if (sy_chat_str_is(name, "first")) return sy_chat_bool(index == 1);
    if (sy_chat_str_is(name, "last")) return sy_chat_bool(!peek(run, loop));
    if (sy_chat_str_is(name, "length")) return sy_chat_int(length(run, loop));
    if (sy_chat_str_is(name, "revindex")) return sy_chat_int(length(run, loop) - index + 1);
    if (sy_chat_str_is(name, "revindex0")) return sy_chat_int(length(run, loop) - index);
    if (sy_chat_str_is(name, "depth")) return sy_chat_int(1); /* of recursive loops only */
    if (sy_chat_str_is(name, "depth0")) return sy_chat_int(0);
    if (sy_chat_str_is(name, "previtem")) {
        return index > 1 ? loop->before : sy_chat_undefined(name, CHAT_LOOP);
    }
    if (sy_chat_str_is(name, "nextitem")) {
        return peek(run, loop) ? loop->after : sy_chat_undefined(name, CHAT_LOOP);
    }
    return (chat_value){.kind = CHAT_MISSING};
}
