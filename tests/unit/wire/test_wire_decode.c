/* test_wire_decode.c - every message, with random contents, in every order and every cut: the same
 * result, or a clean refusal. */
#include "wire_kinds.h"

#define SEED      20240917u
#define MUTATIONS 100000

/* Reads pieces and writes what it got; on failure the bytes are empty and err says why. */
static sy_status read_again(bytes *out, const wire_kind *kind, const pieces *p, sy_error *err)
{
    sy_arena arena;
    sy_frame frame;
    sy_status st;

    sy_arena_init(&arena, ARENA_BYTES);
    sy_error_clear(err);
    st = kind->again(&frame, &arena, p->iov, p->n, err);
    assert_int_equal(err->status, st);
    assert_true((st == SY_OK) == (err->message[0] == '\0'));
    *out = bytes_of_frame(&frame);
    sy_arena_free(&arena);
    return st;
}

static void expect_same(const wire_kind *kind, pieces *p, bytes want)
{
    sy_error err;
    bytes got;
    const sy_status st = read_again(&got, kind, p, &err);

    if (st != SY_OK) fail_msg("%s: %s", kind->name, err.message);
    bytes_equal(got, want);
    free(got.data);
    pieces_free(p);
}

static void a_message_comes_back_as_it_was_sent(void **state)
{
    rng r = {SEED};

    (void)state;
    for (size_t k = 0; k < SY_COUNT_OF(wire_kinds); k++) {
        for (int round = 0; round < 100; round++) {
            const bytes b = some_message(&wire_kinds[k], &r);

            expect_same(&wire_kinds[k], pieces_of(b, b.len, 1), b);
            expect_same(&wire_kinds[k], pieces_random(b, &r), b);
            free(b.data);
        }
    }
    assert_int_equal(sy_buf_outstanding(), 0);
}

static void a_message_may_be_cut_at_every_byte(void **state)
{
    rng r = {SEED + 1};

    (void)state;
    for (size_t k = 0; k < SY_COUNT_OF(wire_kinds); k++) {
        const bytes b = some_message(&wire_kinds[k], &r);

        for (size_t cut = 0; cut <= b.len; cut++) {
            expect_same(&wire_kinds[k], pieces_of(b, cut, b.len + 1), b);
        }
        for (size_t step = 1; step < 9; step++) {
            if (b.len / step < PIECES_MAX - 1)
                expect_same(&wire_kinds[k], pieces_of(b, step, step), b);
        }
        free(b.data);
    }
}

static void what_is_sent_is_what_protobuf_c_would_send(void **state)
{
    rng r = {SEED + 2};

    (void)state;
    for (size_t k = 0; k < SY_COUNT_OF(wire_kinds); k++) {
        for (int round = 0; round < 50; round++) {
            const bytes b = some_message(&wire_kinds[k], &r);
            ProtobufCMessage *msg =
                protobuf_c_message_unpack(wire_kinds[k].desc, NULL, b.len, b.data);
            bytes packed;

            assert_non_null(msg);
            packed = bytes_new(protobuf_c_message_get_packed_size(msg));
            protobuf_c_message_pack(msg, packed.data);
            bytes_equal(b, packed);
            protobuf_c_message_free_unpacked(msg, NULL);
            free(packed.data);
            free(b.data);
        }
    }
}

typedef struct span {
    uint32_t number;
    size_t start, payload, end;
} span;

static size_t varint_at(const uint8_t *data, size_t *at)
{
    size_t value = 0;

    for (unsigned shift = 0;; shift += 7) {
        const uint8_t byte = data[(*at)++];

        if (shift < 64) value |= (size_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
    }
}

/* The fields of a well-formed message. */
static size_t spans_of(span *out, size_t cap, const uint8_t *data, size_t len)
{
    size_t n = 0;

    for (size_t at = 0; at < len;) {
        span *s = &out[n++];
        size_t tag;

        assert_true(n <= cap);
        s->start = at;
        tag = varint_at(data, &at);
        s->number = (uint32_t)(tag >> 3);
        s->payload = at;
        if ((tag & 7) == 0) varint_at(data, &at);
        if ((tag & 7) == 1) at += 8;
        if ((tag & 7) == 5) at += 4;
        if ((tag & 7) == 2) {
            const size_t payload_bytes = varint_at(data, &at);

            s->payload = at;
            at += payload_bytes;
        }
        s->end = at;
    }
    return n;
}

#define SPANS_MAX 256

static int has_rows(const wire_kind *kind)
{
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field(kind->desc, 15);

    return field != NULL && field->type == PROTOBUF_C_TYPE_MESSAGE;
}

/* Swaps neighbours of different numbers: the order within a repeated field means something.
 * inside: also the fields of the Rows that is field 15. */
static void shuffle_fields(uint8_t *data, size_t len, rng *r, int inside)
{
    span s[SPANS_MAX];
    const size_t n = spans_of(s, SPANS_MAX, data, len);
    uint8_t *out = bytes_new(len).data;
    size_t at = 0;

    for (size_t swaps = 0; n > 1 && swaps < 4 * n; swaps++) {
        const size_t i = rng_below(r, n - 1);
        const span kept = s[i];

        if (kept.number == s[i + 1].number) continue;
        s[i] = s[i + 1];
        s[i + 1] = kept;
    }
    for (size_t i = 0; i < n; i++) {
        if (s[i].number == 15 && inside)
            shuffle_fields(data + s[i].payload, s[i].end - s[i].payload, r, 0);
        memcpy(out + at, data + s[i].start, s[i].end - s[i].start);
        at += s[i].end - s[i].start;
    }
    assert_int_equal(at, len);
    memcpy(data, out, len);
    free(out);
}

static void the_order_of_fields_makes_no_difference(void **state)
{
    rng r = {SEED + 3};

    (void)state;
    for (size_t k = 0; k < SY_COUNT_OF(wire_kinds); k++) {
        for (int round = 0; round < 100; round++) {
            const bytes want = some_message(&wire_kinds[k], &r);
            const bytes b = bytes_new(want.len);

            memcpy(b.data, want.data, want.len);
            shuffle_fields(b.data, b.len, &r, has_rows(&wire_kinds[k]));
            expect_same(&wire_kinds[k], pieces_random(b, &r), want);
            free(b.data);
            free(want.data);
        }
    }
}

/* Field 1000, which nobody knows, as a varint of one byte. Behind the bulk it also forbids taking
 * that apart. */
static bytes with_unknown_field(bytes b, size_t at)
{
    static const uint8_t unknown[] = {0xc0, 0x3e, 0x07};
    bytes out = bytes_new(b.len + sizeof(unknown));

    memcpy(out.data, b.data, at);
    memcpy(out.data + at, unknown, sizeof(unknown));
    memcpy(out.data + at + sizeof(unknown), b.data + at, b.len - at);
    return out;
}

static void unknown_fields_are_ignored(void **state)
{
    rng r = {SEED + 4};

    (void)state;
    for (size_t k = 0; k < SY_COUNT_OF(wire_kinds); k++) {
        const bytes want = some_message(&wire_kinds[k], &r);
        const bytes before = with_unknown_field(want, 0);
        const bytes after = with_unknown_field(want, want.len);

        expect_same(&wire_kinds[k], pieces_random(before, &r), want);
        expect_same(&wire_kinds[k], pieces_random(after, &r), want);
        free(before.data);
        free(after.data);
        free(want.data);
    }
}

static int ends_between_fields(bytes b, size_t len)
{
    span s[SPANS_MAX];
    const size_t n = spans_of(s, SPANS_MAX, b.data, b.len);

    for (size_t i = 0; i < n; i++) {
        if (s[i].start == len) return 1;
    }
    return len == b.len;
}

static void a_message_cut_short_is_refused(void **state)
{
    rng r = {SEED + 5};

    (void)state;
    for (size_t k = 0; k < SY_COUNT_OF(wire_kinds); k++) {
        const bytes b = some_message(&wire_kinds[k], &r);

        for (size_t len = 0; len < b.len; len++) {
            pieces *p = pieces_random((bytes){b.data, len}, &r);
            sy_error err;
            bytes got;
            const sy_status st = read_again(&got, &wire_kinds[k], p, &err);

            if (st != SY_EINVAL && (st != SY_OK || !ends_between_fields(b, len))) {
                fail_msg("%s, %zu of %zu bytes: %s", wire_kinds[k].name, len, b.len,
                         sy_status_name(st));
            }
            free(got.data);
            pieces_free(p);
        }
        free(b.data);
    }
}

static void mutate(bytes *b, rng *r)
{
    const size_t n = 1 + rng_below(r, 4);

    for (size_t i = 0; i < n && b->len > 0; i++) {
        const size_t at = rng_below(r, b->len);

        switch (rng_below(r, 4)) {
        case 0: b->data[at] = (uint8_t)rng_next(r); break;
        case 1: b->data[at] ^= (uint8_t)(1u << rng_below(r, 8)); break;
        case 2: memmove(b->data + at, b->data + at + 1, --b->len - at); break;
        default: memmove(b->data + at, b->data + rng_below(r, at + 1), 1); break;
        }
    }
}

/* Whatever arrives: an answer, and the same one whether or not the bulk could be taken apart. */
static void no_bytes_do_harm(void **state)
{
    rng r = {SEED + 6};
    size_t n_ok = 0;

    (void)state;
    for (int i = 0; i < MUTATIONS; i++) {
        const wire_kind *kind = &wire_kinds[rng_below(&r, SY_COUNT_OF(wire_kinds))];
        bytes b = some_message(kind, &r);
        sy_error err, other_err;
        bytes got, other;
        bytes longer;
        pieces *p;
        pieces *q;
        sy_status st, other_st;

        mutate(&b, &r);
        longer = with_unknown_field(b, b.len);
        p = pieces_random(b, &r);
        q = pieces_random(longer, &r);
        st = read_again(&got, kind, p, &err);
        n_ok += st == SY_OK;
        assert_true(st == SY_OK || st == SY_EINVAL || st == SY_ELIMIT);
        other_st = read_again(&other, kind, q, &other_err);
        if (st == SY_OK) bytes_equal(got, other);
        if (strstr(err.message, "bytes are not") == NULL) {
            assert_int_equal(other_st, st);
            assert_string_equal(err.message, other_err.message);
        }
        free(got.data);
        free(other.data);
        free(longer.data);
        free(b.data);
        pieces_free(p);
        pieces_free(q);
    }
    assert_true(n_ok > MUTATIONS / 100);
    assert_true(n_ok < MUTATIONS - MUTATIONS / 100);
    assert_int_equal(sy_buf_outstanding(), 0);
}

static void too_little_memory_is_not_called_a_bad_message(void **state)
{
    rng r = {SEED + 7};

    (void)state;
    for (size_t k = 0; k < SY_COUNT_OF(wire_kinds); k++) {
        const bytes b = some_message(&wire_kinds[k], &r);
        pieces *p = pieces_of(b, b.len / 2, b.len + 1);
        sy_status st = SY_ELIMIT;

        for (size_t limit = 0; st != SY_OK; limit += 48) {
            sy_error err;
            sy_arena arena;
            sy_frame frame;

            sy_error_clear(&err);
            sy_arena_init(&arena, limit);
            st = wire_kinds[k].again(&frame, &arena, p->iov, p->n, &err);
            if (st != SY_OK) {
                assert_int_equal(st, SY_ELIMIT);
                assert_non_null(strstr(err.message, wire_kinds[k].desc->short_name));
                assert_true(limit < 64u << 10);
            }
            sy_frame_free(&frame);
            sy_arena_free(&arena);
        }
        pieces_free(p);
        free(b.data);
    }
}

static void errors_need_not_be_taken(void **state)
{

    (void)state;
    for (size_t k = 0; k < SY_COUNT_OF(wire_kinds); k++) {
        const sy_iov bad = {"\x0f\xff", 2};
        sy_arena arena;
        sy_frame frame;

        sy_arena_init(&arena, ARENA_BYTES);
        assert_int_equal(wire_kinds[k].again(&frame, &arena, &bad, 1, NULL), SY_EINVAL);
        sy_arena_free(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_comes_back_as_it_was_sent),
        cmocka_unit_test(a_message_may_be_cut_at_every_byte),
        cmocka_unit_test(what_is_sent_is_what_protobuf_c_would_send),
        cmocka_unit_test(the_order_of_fields_makes_no_difference),
        cmocka_unit_test(unknown_fields_are_ignored),
        cmocka_unit_test(a_message_cut_short_is_refused),
        cmocka_unit_test(no_bytes_do_harm),
        cmocka_unit_test(too_little_memory_is_not_called_a_bad_message),
        cmocka_unit_test(errors_need_not_be_taken),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
