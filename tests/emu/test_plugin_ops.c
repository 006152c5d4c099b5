/* Operations of the plugin: each does what the call that it names does, to no other memory, and is
 * refused, with nothing enqueued, where anything in it is wrong. */
#include "ops_cases.h"

static void every_operation_is_the_call_it_names(void **state)
{
    opened on = opened_open(1);

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(op_makers); i++) {
        op_case c;

        op_makers[i].make(&c, &on);
        case_upload(&c);
        ok(cuda->stream_run(on.stream, &c.op, 1, why));
        finish(&on);
        assert_int_equal(op_makers[i].call(&c), 0);
        case_check(&c, op_makers[i].name);
        case_end(&c);
    }
    opened_close(&on);
}

/* Behind a copy that is right, at index 1: the copy is not begun either. */
static void run_refused(const opened *on, const sy_backend_op *op, const char *name,
                        const char *text)
{
    uint8_t zero[4] = {0}, got[4] = {0};
    sy_backend_ref to = buffer_of(on, zero, sizeof(zero));
    uint8_t ones[4] = {1, 1, 1, 1};
    const sy_backend_op ops[2] = {
        {.kind = SY_BACKEND_IN, .u.copy = {.to = to, .host = ones, .n = sizeof(ones)}}, *op};
    char begin[64];

    snprintf(begin, sizeof(begin), "operation 1 (%s): ", name);
    refused(cuda->stream_run(on->stream, ops, 2, why), SY_BACKEND_EINVAL, begin);
    refused(SY_BACKEND_EINVAL, SY_BACKEND_EINVAL, text);
    finish(on);
    ok(cuda->copy_out(got, to.buffer, 0, sizeof(got), why));
    assert_memory_equal(got, zero, sizeof(got));
    cuda->buffer_free(to.buffer);
}

static void refuse_place(op_case *c, const piece *p, const opened *other, const char *name)
{
    const sy_backend_ref right = *p->at;

    p->at->offset = p->alignment;
    run_refused(c->on, &c->op, name, " of a buffer of ");
    p->at->offset = UINT64_MAX - p->alignment + 1;
    run_refused(c->on, &c->op, name, " of a buffer of ");
    *p->at = buffer_of(c->on, NULL, p->bytes + p->alignment);
    p->at->offset = p->alignment / 2;
    run_refused(c->on, &c->op, name, "not at a multiple of");
    cuda->buffer_free(p->at->buffer);
    *p->at = buffer_of(other, NULL, p->bytes);
    run_refused(c->on, &c->op, name, "is on device 1, and the stream on device 0");
    cuda->buffer_free(p->at->buffer);
    *p->at = buffer_of(c->on, NULL, p->bytes - 1);
    run_refused(c->on, &c->op, name, " of a buffer of ");
    cuda->buffer_free(p->at->buffer);
    p->at->buffer = NULL;
    p->at->offset = 0;
    if (!p->may_miss) run_refused(c->on, &c->op, name, "it needs ");
    *p->at = right;
}

static void a_place_that_is_not_right_is_refused(void **state)
{
    opened on = opened_open(0), other = opened_open(1);

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(op_makers); i++) {
        op_case c;

        op_makers[i].make(&c, &on);
        for (uint32_t p = 0; p < c.n_pieces; p++)
            refuse_place(&c, &c.piece[p], &other, op_makers[i].name);
        case_upload(&c);
        ok(cuda->stream_run(on.stream, &c.op, 1, why));
        finish(&on);
        case_end(&c);
    }
    assert_true(emu_cudart_n_calls("cudaLaunchKernel") >= SY_COUNT_OF(op_makers));
    opened_close(&on);
    opened_close(&other);
}

/* What may miss is left out alone, and the rest of the operation is what it was. */
static void what_an_operation_may_do_without_may_miss(void **state)
{
    opened on = opened_open(0);

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(op_makers); i++) {
        op_case c;

        op_makers[i].make(&c, &on);
        case_upload(&c);
        for (uint32_t p = 0; p < c.n_pieces; p++) {
            const piece *left_out = &c.piece[p];
            const sy_backend_ref right = *left_out->at;

            if (!left_out->may_miss) continue;
            *left_out->at = (sy_backend_ref){0};
            ok(cuda->stream_run(on.stream, &c.op, 1, why));
            finish(&on);
            *left_out->at = right;
        }
        case_end(&c);
    }
    opened_close(&on);
}

static void no_rows_at_most_and_no_operations_are_nothing_to_do(void **state)
{
    opened on = opened_open(0);

    (void)state;
    ok(cuda->stream_run(on.stream, NULL, 0, why));
    for (size_t i = 0; i < SY_COUNT_OF(op_makers); i++) {
        op_case c;

        op_makers[i].make(&c, &on);
        case_upload(&c);
        c.op.rows_max = 0;
        ok(cuda->stream_run(on.stream, &c.op, 1, why));
        finish(&on);
        case_check(&c, op_makers[i].name);
        case_end(&c);
    }
    assert_int_equal(emu_cudart_n_calls("cudaLaunchKernel"), 0);
    opened_close(&on);
}

/* ---- numbers ---- */

typedef struct wrong_number {
    void (*make)(op_case *c, const opened *on);
    const char *name;
    size_t at; /* of a uint32_t in the operation */
    uint32_t value;
    const char *text;
} wrong_number;

#define WRONG(make, name, field, value, text)                   \
    {                                                           \
        make, name, offsetof(sy_backend_op, field), value, text \
    }

static const wrong_number wrong_numbers[] = {
    WRONG(make_rows, "rows", u.rows.n, 0, "n is 0"),
    WRONG(make_rows, "rows", u.rows.n, UINT32_MAX, "n is 4294967295"),
    WRONG(make_rows, "rows", rows_max, UINT32_MAX, "rows_max is 4294967295"),
    WRONG(make_embed, "embed", u.embed.hidden, 0, "hidden is 0"),
    WRONG(make_embed, "embed", u.embed.vocab, 0, "vocab is 0"),
    WRONG(make_norm, "norm", u.norm.n, 0, "n is 0"),
    WRONG(make_norm, "norm", u.norm.form, 2, "form 2 is none"),
    WRONG(make_layer_norm, "norm", u.norm.form, 0, "an RMS norm has no bias"),
    WRONG(make_sum, "add", u.add.hidden, 0, "hidden is 0"),
    WRONG(make_gate, "shared gate", u.shared_gate.hidden, 0, "hidden is 0"),
    WRONG(make_linear, "linear", u.linear.matrix.form, 1, "of form 1, and form 0"),
    WRONG(make_linear, "linear", u.linear.matrix.n, 0, "n is 0"),
    WRONG(make_linear, "linear", u.linear.matrix.k, UINT32_MAX, "k is 4294967295"),
    WRONG(make_linear, "linear", u.linear.divisor, 0, "divides by 0"),
    WRONG(make_linear, "linear", u.linear.matrix.weights, 5, "of weights 5, and weights 0 to 4"),
    WRONG(make_long_q4_linear, "linear", u.linear.matrix.weights, 1, "weights needs"),
    WRONG(make_fp8_linear, "linear", u.linear.matrix.n, 4000, "weights needs"),
    WRONG(make_fp8_up, "swiglu up", u.linear.matrix.weights, UINT32_MAX, "of weights 4294967295"),
    WRONG(make_up, "swiglu up", u.linear.matrix.form, 0, "of form 0, and form 1"),
    WRONG(make_linear_heads, "linear heads", u.linear_heads.n_heads, 0, "n_heads is 0"),
    WRONG(make_linear_heads, "linear heads", u.linear_heads.n_heads, 65536, "n_heads is 65536"),
    WRONG(make_linear_heads, "linear heads", u.linear_heads.matrix.k, 0, "k is 0"),
    WRONG(make_linear_heads, "linear heads", u.linear_heads.matrix.form, 1,
          "of form 1, and form 0"),
    WRONG(make_linear_heads, "linear heads", u.linear_heads.matrix.weights, 3,
          "of weights 3, and weights 0 to 2"),
    WRONG(make_q4_linear_heads, "linear heads", u.linear_heads.matrix.weights, 1, "weights needs"),
    WRONG(make_linear_heads, "linear heads", u.linear_heads.n_tail, UINT32_MAX, "n_tail is"),
    WRONG(make_heads, "heads", u.heads.head_dim, 577, "head_dim is 577"),
    WRONG(make_heads, "heads", u.heads.norm, 3, "norm 3 is none"),
    WRONG(make_heads, "heads", u.heads.norm_dim, 21, "norm_dim is 21"),
    WRONG(make_heads, "heads", u.heads.rotary_dim, 9, "9 elements from 4 on do not rotate"),
    WRONG(make_heads, "heads", u.heads.rotary_at, 11, "10 elements from 11 on do not rotate"),
    WRONG(make_heads, "heads", u.heads.rotary_at, UINT32_MAX, "do not rotate"),
    WRONG(make_heads, "heads", u.heads.angle_rows, 0, "angle_rows is 0"),
    WRONG(make_heads, "heads", rows_max, 65536, "rows_max is 65536"),
    WRONG(make_tempered_heads, "heads", u.heads.temperature_floor, 0, "temperature_floor is 0"),
    WRONG(make_put, "kv put", u.kv_put.kv.n_heads, 0, "kv.n_heads is 0"),
    WRONG(make_put, "kv put", u.kv_put.kv.is_latent, 1, "a cache of latents"),
    WRONG(make_put, "kv put", u.kv_put.kv.n_pages, 6, "kv.data needs"),
    WRONG(make_put, "kv put", u.kv_put.kv.n_pages, UINT32_MAX, "kv.data needs"),
    WRONG(make_put, "kv put", u.kv_put.kv.pages_max, 3, "kv.page needs"),
    WRONG(make_put, "kv put", u.kv_put.kv.n_sequences, UINT32_MAX, "kv.page needs"),
    WRONG(make_attention, "attend", u.attend.n_heads, 5, "5 heads do not share 2"),
    WRONG(make_attention, "attend", u.attend.positions_max, 0, "positions_max is 0"),
    WRONG(make_attention, "attend", u.attend.positions_max, 257, "scratch needs"),
    WRONG(make_attention, "attend", u.attend.positions_max, UINT32_MAX, "positions_max is"),
    WRONG(make_attention, "attend", u.attend.kv.is_bf16, 1, "no multiples of 8"),
    WRONG(make_bf16_attention, "attend", u.attend.kv.key_dim, 584, "keys of 584"),
};

static void a_number_that_is_out_of_range_is_refused(void **state)
{
    opened on = opened_open(0);

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(wrong_numbers); i++) {
        const wrong_number *w = &wrong_numbers[i];
        op_case c;

        w->make(&c, &on);
        /* A cache large enough for whatever else is wrong with it. */
        if (strstr(w->text, "keys of") != NULL || strstr(w->text, "multiples") != NULL) {
            cuda->buffer_free(c.op.u.attend.kv.data.buffer);
            c.op.u.attend.kv.data = buffer_of(&on, NULL, 1 << 20);
        }
        memcpy((uint8_t *)&c.op + w->at, &w->value, sizeof(w->value));
        run_refused(&on, &c.op, w->name, w->text);
        case_end(&c);
    }
    assert_int_equal(emu_cudart_n_calls("cudaLaunchKernel"), 0);
    opened_close(&on);
}

static void an_operation_of_no_kind_is_refused(void **state)
{
    const sy_backend_op op = {.kind = SY_BACKEND_ATTEND + 1};
    opened on = opened_open(0);

    (void)state;
    refused(cuda->stream_run(on.stream, &op, 1, why), SY_BACKEND_EINVAL,
            "operation 0: there is no kind 14");
    opened_close(&on);
}

static void a_copy_that_is_not_right_is_refused(void **state)
{
    opened on = opened_open(0);
    uint8_t host[8] = {0};
    sy_backend_ref a = buffer_of(&on, host, 8), past = a;
    sy_backend_op op = {.kind = SY_BACKEND_IN, .u.copy = {.to = a, .n = 8}};

    (void)state;
    run_refused(&on, &op, "in", "it needs memory of the host");
    op.u.copy.host = host;
    op.u.copy.n = 9;
    run_refused(&on, &op, "in", "to needs 9 bytes at 0 of a buffer of 8");
    op.u.copy.n = 8;
    op.u.copy.to.buffer = NULL;
    run_refused(&on, &op, "in", "it needs to");
    past.offset = 9;
    op = (sy_backend_op){.kind = SY_BACKEND_OUT, .u.copy = {.from = past, .host = host, .n = 0}};
    run_refused(&on, &op, "out", "from needs 0 bytes at 9 of a buffer of 8");
    op = (sy_backend_op){.kind = SY_BACKEND_COPY, .u.copy = {.to = a, .from = a, .n = 5}};
    op.u.copy.from.offset = 3;
    run_refused(&on, &op, "copy", "which overlaps");
    op.u.copy.to.offset = 3;
    op.u.copy.from.offset = 0;
    run_refused(&on, &op, "copy", "which overlaps");
    op.u.copy.n = UINT64_MAX;
    run_refused(&on, &op, "copy", "to needs 18446744073709551615 bytes");
    cuda->buffer_free(a.buffer);
    opened_close(&on);
}

static void scratch_is_what_attention_in_splits_takes(void **state)
{
    (void)state;
    assert_int_equal(cuda->attend_scratch_bytes(4, 4, 6, 130), 4 * 4 * 2 * (6 + 2) * 4);
    assert_int_equal(cuda->attend_scratch_bytes(UINT32_MAX, UINT32_MAX, 512, UINT32_MAX), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        PLUGIN_TEST(every_operation_is_the_call_it_names),
        PLUGIN_TEST(a_place_that_is_not_right_is_refused),
        PLUGIN_TEST(what_an_operation_may_do_without_may_miss),
        PLUGIN_TEST(no_rows_at_most_and_no_operations_are_nothing_to_do),
        PLUGIN_TEST(a_number_that_is_out_of_range_is_refused),
        PLUGIN_TEST(an_operation_of_no_kind_is_refused),
        PLUGIN_TEST(a_copy_that_is_not_right_is_refused),
        PLUGIN_TEST(scratch_is_what_attention_in_splits_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
