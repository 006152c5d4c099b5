/* sy_chat_arith.c - operators of a chat template: Python's, with integers of 64 bits that fail
 * rather than wrap. */
#include <math.h>

#include "sy_chat_eval.h"
#include "sy_chat_text.h"

static const char *const symbols[] = {
    [CHAT_OP_ADD] = "+", [CHAT_OP_SUB] = "-",       [CHAT_OP_MUL] = "*",        [CHAT_OP_DIV] = "/",
    [CHAT_OP_MOD] = "%", [CHAT_OP_FLOORDIV] = "//", [CHAT_OP_POW] = "**",       [CHAT_OP_EQ] = "==",
    [CHAT_OP_NE] = "!=", [CHAT_OP_LT] = "<",        [CHAT_OP_LE] = "<=",        [CHAT_OP_GT] = ">",
    [CHAT_OP_GE] = ">=", [CHAT_OP_IN] = "in",       [CHAT_OP_NOT_IN] = "not in"};

static chat_value fail_operands(chat_run *run, chat_op op, chat_value a, chat_value b)
{
    if (a.kind == CHAT_UNDEFINED || b.kind == CHAT_UNDEFINED) {
        sy_chat_fail_undefined(run, a.kind == CHAT_UNDEFINED ? a : b);
    } else {
        sy_chat_fail(run, SY_EINVAL, "unsupported operand types for %s: '%s' and '%s'", symbols[op],
                     sy_chat_type(a), sy_chat_type(b));
    }
    return sy_chat_none();
}

static chat_value fail_overflow(chat_run *run)
{
    sy_chat_fail(run, SY_EINVAL, "an integer does not fit 64 bits");
    return sy_chat_int(0);
}

static double as_double(chat_value v)
{
    return v.kind == CHAT_FLOAT ? v.f : (double)v.i;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

static int64_t floor_mod(int64_t a, int64_t b)
{
    const int64_t rest = a % b;

    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

static chat_value int_power(chat_run *run, int64_t base, int64_t exponent)
{
    int64_t power = 1;

    if (exponent < 0) return sy_chat_float(pow((double)base, (double)exponent));
    if (base == 0 || base == 1 || base == -1) {
        return sy_chat_int(exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base);
    }
    for (; exponent > 0; exponent--) {
        if (__builtin_mul_overflow(power, base, &power)) return fail_overflow(run);
    }
    return sy_chat_int(power);
}

static chat_value int_op(chat_run *run, chat_op op, int64_t a, int64_t b)
{
    int64_t result = 0;
    int overflows = 0;

    switch (op) {
    case CHAT_OP_ADD: overflows = __builtin_add_overflow(a, b, &result); break;
    case CHAT_OP_SUB: overflows = __builtin_sub_overflow(a, b, &result); break;
    case CHAT_OP_MUL: overflows = __builtin_mul_overflow(a, b, &result); break;
    case CHAT_OP_POW: return int_power(run, a, b);
    case CHAT_OP_DIV: return sy_chat_float((double)a / (double)b);
    default:
        overflows = a == INT64_MIN && b == -1;
        if (!overflows) result = op == CHAT_OP_MOD ? floor_mod(a, b) : floor_div(a, b);
    }
    return overflows ? fail_overflow(run) : sy_chat_int(result);
}

static double float_mod(double a, double b)
{
    const double rest = fmod(a, b);

    if (rest == 0.0) return copysign(0.0, b);
    return (rest < 0.0) != (b < 0.0) ? rest + b : rest;
}

static chat_value float_op(chat_run *run, chat_op op, double a, double b)
{
    double power;

    switch (op) {
    case CHAT_OP_ADD: return sy_chat_float(a + b);
    case CHAT_OP_SUB: return sy_chat_float(a - b);
    case CHAT_OP_MUL: return sy_chat_float(a * b);
    case CHAT_OP_DIV: return sy_chat_float(a / b);
    case CHAT_OP_POW:
        power = pow(a, b);
        if (!isfinite(power) && isfinite(a) && isfinite(b)) {
            sy_chat_fail(run, SY_EINVAL, "the result of ** is not a finite number");
        }
        return sy_chat_float(power);
    case CHAT_OP_MOD: return sy_chat_float(float_mod(a, b));
    default: return sy_chat_float(floor((a - float_mod(a, b)) / b + 0.5));
    }
}

static chat_value number_op(chat_run *run, chat_op op, chat_value a, chat_value b)
{
    const int divides = op == CHAT_OP_DIV || op == CHAT_OP_FLOORDIV || op == CHAT_OP_MOD;

    if ((divides && as_double(b) == 0.0) ||
        (op == CHAT_OP_POW && as_double(a) == 0.0 && as_double(b) < 0.0)) {
        sy_chat_fail(run, SY_EINVAL, "division by zero");
        return sy_chat_int(0);
    }
    if (a.kind == CHAT_FLOAT || b.kind == CHAT_FLOAT) {
        return float_op(run, op, as_double(a), as_double(b));
    }
    return int_op(run, op, a.i, b.i);
}

/* A string that went through |safe has what is added to it escaped. */
static chat_value add_strings(chat_run *run, chat_value a, chat_value b)
{
    const int is_safe = a.is_safe || b.is_safe;
    chat_value sum;

    if (is_safe) {
        a = sy_chat_escape_html(run, a);
        b = sy_chat_escape_html(run, b);
    }
    sum = sy_chat_concat(run, a, b);
    sum.is_safe = (uint8_t)is_safe;
    return sum;
}

static chat_value add_lists(chat_run *run, const chat_list *a, const chat_list *b)
{
    chat_list *sum = sy_chat_list_new(run, a->seq, a->n + b->n);

    for (size_t i = 0; i < a->n && run->status == SY_OK; i++) {
        sy_chat_list_push(run, sum, a->item[i]);
    }
    for (size_t i = 0; i < b->n && run->status == SY_OK; i++) {
        sy_chat_list_push(run, sum, b->item[i]);
    }
    return sy_chat_from_list(sum);
}

static chat_value repeat(chat_run *run, chat_value v, int64_t times)
{
    const size_t unit = v.kind == CHAT_STRING ? v.str->n : v.list->n;
    chat_value result;

    if (times < 0 || unit == 0) times = 0;
    if (times > 0 && (uint64_t)times > SY_CHAT_MEMORY_BYTES_MAX / unit) {
        sy_chat_fail(run, SY_ELIMIT, "a repeated %s is too long", sy_chat_type(v));
        times = 0;
    }
    if (v.kind == CHAT_STRING) {
        result = sy_chat_cstring(run, "");
        for (int64_t i = 0; i < times && run->status == SY_OK; i++) {
            result = sy_chat_concat(run, result, v);
        }
        result.is_safe = v.is_safe;
        return result;
    }
    result = sy_chat_from_list(sy_chat_list_new(run, v.list->seq, 0));
    for (int64_t i = 0; i < times && run->status == SY_OK; i++) {
        for (size_t j = 0; j < unit && run->status == SY_OK; j++) {
            sy_chat_list_push(run, result.list, v.list->item[j]);
        }
    }
    return result;
}

static int is_repeatable(chat_value v)
{
    return v.kind == CHAT_STRING || (v.kind == CHAT_LIST && v.list->seq <= CHAT_SEQ_TUPLE);
}

static chat_value arithmetic(chat_run *run, chat_op op, chat_value a, chat_value b)
{
    if (sy_chat_is_number(a) && sy_chat_is_number(b)) return number_op(run, op, a, b);
    if (op == CHAT_OP_MOD && a.kind == CHAT_STRING) return sy_chat_format_percent(run, a, b);
    if (op == CHAT_OP_ADD && a.kind == CHAT_STRING && b.kind == CHAT_STRING) {
        return add_strings(run, a, b);
    }
    if (op == CHAT_OP_ADD && a.kind == CHAT_LIST && b.kind == CHAT_LIST &&
        a.list->seq == b.list->seq && a.list->seq <= CHAT_SEQ_TUPLE) {
        return add_lists(run, a.list, b.list);
    }
    if (op == CHAT_OP_MUL && is_repeatable(a) && sy_chat_is_integer(b)) return repeat(run, a, b.i);
    if (op == CHAT_OP_MUL && is_repeatable(b) && sy_chat_is_integer(a)) return repeat(run, b, a.i);
    return fail_operands(run, op, a, b);
}

chat_value sy_chat_binary(chat_run *run, chat_op op, chat_value a, chat_value b)
{
    int unordered = 0;
    int order;

    if (run->status != SY_OK) return sy_chat_none();
    switch (op) {
    case CHAT_OP_EQ: return sy_chat_bool(sy_chat_equal(run, a, b));
    case CHAT_OP_NE: return sy_chat_bool(!sy_chat_equal(run, a, b));
    case CHAT_OP_IN: return sy_chat_bool(sy_chat_contains(run, b, a));
    case CHAT_OP_NOT_IN: return sy_chat_bool(!sy_chat_contains(run, b, a));
    case CHAT_OP_LT:
    case CHAT_OP_LE:
    case CHAT_OP_GT:
    case CHAT_OP_GE: break;
    default: return arithmetic(run, op, a, b);
    }
    order = sy_chat_compare(run, a, b, symbols[op], &unordered);
    if (unordered) return sy_chat_bool(0);
    return sy_chat_bool(op == CHAT_OP_LT   ? order < 0
                        : op == CHAT_OP_LE ? order <= 0
                        : op == CHAT_OP_GT ? order > 0
                                           : order >= 0);
}

chat_value sy_chat_sign(chat_run *run, chat_value v, int is_negative)
{
    if (v.kind == CHAT_FLOAT) return sy_chat_float(is_negative ? -v.f : v.f);
    if (sy_chat_is_integer(v)) {
        if (is_negative && v.i == INT64_MIN) return fail_overflow(run);
        return sy_chat_int(is_negative ? -v.i : v.i);
    }
    if (v.kind == CHAT_UNDEFINED) {
        sy_chat_fail_undefined(run, v);
    } else {
        sy_chat_fail(run, SY_EINVAL, "bad operand type for unary %c: '%s'", is_negative ? '-' : '+',
                     sy_chat_type(v));
    }
    return sy_chat_int(0);
}
