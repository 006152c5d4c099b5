/* sy_chat_test.c - Jinja's tests: "x is defined", and by name in select("equalto", 1). */
#include <math.h>

#include "sy_chat_eval.h"
#include "sy_chat_text.h"

static chat_value is_defined(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)run;
    (void)arg;
    return sy_chat_bool(self.kind != CHAT_UNDEFINED);
}

static chat_value is_undefined(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)run;
    (void)arg;
    return sy_chat_bool(self.kind == CHAT_UNDEFINED);
}

static chat_value is_none(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)run;
    (void)arg;
    return sy_chat_bool(self.kind == CHAT_NONE);
}

static chat_value is_boolean(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)run;
    (void)arg;
    return sy_chat_bool(self.kind == CHAT_BOOL);
}

static chat_value is_true(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)run;
    (void)arg;
    return sy_chat_bool(self.kind == CHAT_BOOL && self.i != 0);
}

static chat_value is_false(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)run;
    (void)arg;
    return sy_chat_bool(self.kind == CHAT_BOOL && self.i == 0);
}

static chat_value is_integer(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)run;
    (void)arg;
    return sy_chat_bool(self.kind == CHAT_INT);
}

static chat_value is_float(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)run;
    (void)arg;
    return sy_chat_bool(self.kind == CHAT_FLOAT);
}

static chat_value is_number(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)run;
    (void)arg;
    return sy_chat_bool(sy_chat_is_number(self));
}

static chat_value is_string(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)run;
    (void)arg;
    return sy_chat_bool(self.kind == CHAT_STRING);
}

static chat_value is_mapping(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)run;
    (void)arg;
    return sy_chat_bool(self.kind == CHAT_DICT);
}

static chat_value is_iterable(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)run;
    (void)arg;
    return sy_chat_bool(sy_chat_is_iterable(self));
}

/* Has a length and takes an index: to Jinja that is a mapping too, and the undefined value. */
static chat_value is_sequence(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)run;
    (void)arg;
    return sy_chat_bool(self.kind == CHAT_STRING || self.kind == CHAT_DICT ||
                        self.kind == CHAT_UNDEFINED ||
                        (self.kind == CHAT_LIST && self.list->seq <= CHAT_SEQ_RANGE));
}

static chat_value is_callable(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)run;
    (void)arg;
    return sy_chat_bool(self.kind == CHAT_MACRO || self.kind == CHAT_FUNCTION ||
                        self.kind == CHAT_METHOD || self.kind == CHAT_UNDEFINED ||
                        self.kind == CHAT_LOOP);
}

static chat_value is_escaped(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)run;
    (void)arg;
    return sy_chat_bool(self.kind == CHAT_STRING && self.is_safe);
}

static chat_value is_lower(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_bool(sy_chat_is_class(run, sy_chat_to_string(run, self).str, CHAT_IS_LOWER));
}

static chat_value is_upper(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_bool(sy_chat_is_class(run, sy_chat_to_string(run, self).str, CHAT_IS_UPPER));
}

static int divides(chat_run *run, chat_value v, chat_value by, int64_t rest)
{
    const chat_value got = sy_chat_binary(run, CHAT_OP_MOD, v, by);

    return run->status == SY_OK && sy_chat_equal(run, got, sy_chat_int(rest));
}

static chat_value is_divisibleby(chat_run *run, chat_value self, const chat_value *arg)
{
    return sy_chat_bool(divides(run, self, arg[0], 0));
}

static chat_value is_even(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_bool(divides(run, self, sy_chat_int(2), 0));
}

static chat_value is_odd(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_bool(divides(run, self, sy_chat_int(2), 1));
}

static chat_value is_equal(chat_run *run, chat_value self, const chat_value *arg)
{
    return sy_chat_binary(run, CHAT_OP_EQ, self, arg[0]);
}

static chat_value is_unequal(chat_run *run, chat_value self, const chat_value *arg)
{
    return sy_chat_binary(run, CHAT_OP_NE, self, arg[0]);
}

static chat_value is_less(chat_run *run, chat_value self, const chat_value *arg)
{
    return sy_chat_binary(run, CHAT_OP_LT, self, arg[0]);
}

static chat_value is_at_most(chat_run *run, chat_value self, const chat_value *arg)
{
    return sy_chat_binary(run, CHAT_OP_LE, self, arg[0]);
}

static chat_value is_greater(chat_run *run, chat_value self, const chat_value *arg)
{
    return sy_chat_binary(run, CHAT_OP_GT, self, arg[0]);
}

static chat_value is_at_least(chat_run *run, chat_value self, const chat_value *arg)
{
    return sy_chat_binary(run, CHAT_OP_GE, self, arg[0]);
}

static chat_value is_in(chat_run *run, chat_value self, const chat_value *arg)
{
    return sy_chat_binary(run, CHAT_OP_IN, self, arg[0]);
}

/* Python's identity, as far as it can be told from equality. */
static chat_value is_same(chat_run *run, chat_value self, const chat_value *arg)
{
    if (self.kind != arg[0].kind) return sy_chat_bool(0);
    if (self.kind == CHAT_LIST) return sy_chat_bool(self.list == arg[0].list);
    if (self.kind == CHAT_DICT) return sy_chat_bool(self.dict == arg[0].dict);
    return sy_chat_binary(run, CHAT_OP_EQ, self, arg[0]);
}

const chat_builtin *sy_chat_tests(size_t *n)
{
    static const chat_builtin tests[] = {
        {"defined", "", is_defined, NULL, CHAT_MISSING},
        {"undefined", "", is_undefined, NULL, CHAT_MISSING},
        {"none", "", is_none, NULL, CHAT_MISSING},
        {"boolean", "", is_boolean, NULL, CHAT_MISSING},
        {"true", "", is_true, NULL, CHAT_MISSING},
        {"false", "", is_false, NULL, CHAT_MISSING},
        {"integer", "", is_integer, NULL, CHAT_MISSING},
        {"float", "", is_float, NULL, CHAT_MISSING},
        {"number", "", is_number, NULL, CHAT_MISSING},
        {"string", "", is_string, NULL, CHAT_MISSING},
        {"mapping", "", is_mapping, NULL, CHAT_MISSING},
        {"iterable", "", is_iterable, NULL, CHAT_MISSING},
        {"sequence", "", is_sequence, NULL, CHAT_MISSING},
        {"callable", "", is_callable, NULL, CHAT_MISSING},
        {"escaped", "", is_escaped, NULL, CHAT_MISSING},
        {"lower", "", is_lower, NULL, CHAT_MISSING},
        {"upper", "", is_upper, NULL, CHAT_MISSING},
        {"even", "", is_even, NULL, CHAT_MISSING},
        {"odd", "", is_odd, NULL, CHAT_MISSING},
        {"divisibleby", "num", is_divisibleby, NULL, CHAT_MISSING},
        {"in", "seq", is_in, NULL, CHAT_MISSING},
        {"sameas", "other", is_same, NULL, CHAT_MISSING},
        {"equalto", "b", is_equal, NULL, CHAT_MISSING},
        {"eq", "b", is_equal, NULL, CHAT_MISSING},
        {"==", "b", is_equal, NULL, CHAT_MISSING},
        {"ne", "b", is_unequal, NULL, CHAT_MISSING},
        {"!=", "b", is_unequal, NULL, CHAT_MISSING},
        {"lt", "b", is_less, NULL, CHAT_MISSING},
        {"lessthan", "b", is_less, NULL, CHAT_MISSING},
        {"<", "b", is_less, NULL, CHAT_MISSING},
        {"le", "b", is_at_most, NULL, CHAT_MISSING},
        {"<=", "b", is_at_most, NULL, CHAT_MISSING},
        {"gt", "b", is_greater, NULL, CHAT_MISSING},
        {"greaterthan", "b", is_greater, NULL, CHAT_MISSING},
        {">", "b", is_greater, NULL, CHAT_MISSING},
        {"ge", "b", is_at_least, NULL, CHAT_MISSING},
        {">=", "b", is_at_least, NULL, CHAT_MISSING},
    };

    *n = SY_COUNT_OF(tests);
    return tests;
}
