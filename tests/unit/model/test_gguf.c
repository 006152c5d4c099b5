/* test_gguf.c - what the reader takes and what it refuses: hostile headers, made here, and files of
 * the reference writer (tests/golden/gguf/make_files.py). */
#include "gguf_files.h"

#include "sy_tensor.h"

#define GOLDEN SY_SOURCE_DIR "/tests/golden/gguf/"

static char dir[4096];

static int setup(void **state)
{
    (void)state;
    temp_dir_make(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    temp_dir_remove(dir);
    return 0;
}

static const char *file_path(void)
{
    return in_dir(dir, "model.gguf");
}

static void refuse_bytes(const void *bytes, size_t n, sy_status wanted, const char *part)
{
    sy_gguf *file = (sy_gguf *)&file;
    sy_error err;
    sy_status st;

    write_bytes(file_path(), bytes, n);
    sy_error_clear(&err);
    st = sy_gguf_open(&file, file_path(), &err);
    if (st != wanted)
        fail_msg("wanted %s with \"%s\", got %s: %s", sy_status_name(wanted), part,
                 sy_status_name(st), err.message);
    assert_null(file);
    expect_text(err.message, part);
    expect_text(err.message, file_path());
}

/* Ends m. */
static void refuse(made_gguf *m, const char *part)
{
    sy_strbuf bytes;

    (void)made_bytes(&bytes, m);
    refuse_bytes(bytes.data, bytes.len, SY_EINVAL, part);
    sy_strbuf_free(&bytes);
    made_free(m);
}

static sy_gguf *accept(made_gguf *m)
{
    sy_gguf *file;
    sy_error err;

    write_made(m, file_path());
    made_free(m);
    expect_ok(sy_gguf_open(&file, file_path(), &err), &err);
    return file;
}

/* One of everything that is sound. */
static void make_sound(made_gguf *m)
{
    static const char *const words[] = {"a", "", "\xc3\xa9"};

    make_gguf(m);
    add_string(m, "general.architecture", "llama");
    add_u32(m, "a.u32", 7);
    add_key(m, "a.u8", SY_GGUF_KIND_U8, "\xff", 1);
    add_key(m, "a.i8", SY_GGUF_KIND_I8, "\xff", 1);
    add_key(m, "a.u16", SY_GGUF_KIND_U16, "\xff\xff", 2);
    add_key(m, "a.i16", SY_GGUF_KIND_I16, "\xff\xff", 2);
    add_key(m, "a.i32", SY_GGUF_KIND_I32, &(int32_t){-5}, 4);
    add_key(m, "a.u64", SY_GGUF_KIND_U64, &(uint64_t){UINT64_MAX}, 8);
    add_key(m, "a.i64", SY_GGUF_KIND_I64, &(int64_t){INT64_MIN}, 8);
    add_key(m, "a.f64", SY_GGUF_KIND_F64, &(double){0.1}, 8);
    add_f32(m, "a.f32", 0.5f);
    add_bool(m, "a.bool", 1);
    add_strings(m, "a.words", words, 3);
    add_array(m, "a.numbers", SY_GGUF_KIND_I32, (int32_t[]){1, -2, 3}, 3, 4);
    add_array(m, "a.nothing", SY_GGUF_KIND_F32, "", 0, 4);
    add_matrix(m, "w", SY_GGUF_F16, 2, 3, NULL);
    add_matrix(m, "q", SY_GGUF_Q8_0, 2, 64, NULL);
    add_tensor(m, "scalar", SY_GGUF_F32, 0, NULL, NULL);
}

static void a_sound_file_gives_its_tensors(void **state)
{
    for (uint32_t version = 2; version <= 3; version++) {
        made_gguf m;
        sy_gguf *file;
        const sy_gguf_tensor *w, *q;

        (void)state;
        make_sound(&m);
        m.version = version;
        file = accept(&m);
        w = sy_gguf_at(file, 0);
        q = sy_gguf_find(file, "q");
        assert_int_equal(sy_gguf_count(file), 3);
        assert_string_equal(w->tensor.name, "w");
        assert_int_equal(w->tensor.dtype, SY_F16);
        assert_int_equal(w->tensor.encoding, SY_ENCODING_PLAIN);
        assert_int_equal(w->tensor.rank, 2);
        assert_int_equal(w->tensor.shape[0], 2); /* outermost first */
        assert_int_equal(w->tensor.shape[1], 3);
        assert_int_equal(w->tensor.bytes, 12);
        assert_int_equal(w->row_bytes, 6);
        assert_int_equal(w->tensor.data[11], 11);
        assert_string_equal(q->tensor.dtype_name, "Q8_0");
        assert_int_equal(q->tensor.dtype, SY_F32);
        assert_int_equal(q->tensor.encoding, SY_ENCODING_GGUF);
        assert_int_equal(q->tensor.block, SY_GGUF_Q8_0);
        assert_int_equal(q->row_bytes, 68);
        assert_int_equal(q->tensor.bytes, 136);
        assert_ptr_equal(q->tensor.data, w->tensor.data + 32);
        assert_int_equal(sy_gguf_find(file, "scalar")->tensor.n_elements, 1);
        assert_null(sy_gguf_find(file, "x"));
        assert_null(sy_gguf_at(file, 3));
        sy_tensor_release(&w->tensor);
        sy_gguf_close(file);
    }
}

static void expect_u32(const sy_gguf *file, const char *key, uint32_t wanted)
{
    uint32_t got = 0;
    sy_error err;

    expect_ok(sy_gguf_u32(&got, file, key, &err), &err);
    assert_int_equal(got, wanted);
}

static void refuse_u32(const sy_gguf *file, const char *key, sy_status wanted, const char *part)
{
    uint32_t got = 4711;
    sy_error err;

    assert_int_equal(sy_gguf_u32(&got, file, key, &err), wanted);
    expect_text(err.message, part);
    assert_int_equal(got, 4711);
}

static void metadata_is_read_by_key_and_type(void **state)
{
    made_gguf m;
    sy_gguf *file;
    sy_gguf_string s;
    const sy_gguf_value *value;
    float f = 0.0f;
    int b = 0;
    int64_t i = 0;
    sy_error err;

    (void)state;
    make_sound(&m);
    file = accept(&m);
    assert_int_equal(sy_gguf_key_count(file), 15);
    expect_u32(file, "a.u32", 7);
    expect_u32(file, "a.u8", 255);
    expect_u32(file, "a.u16", 65535);
    refuse_u32(file, "a.i8", SY_EINVAL, "-1");
    refuse_u32(file, "a.i16", SY_EINVAL, "-1");
    refuse_u32(file, "a.i32", SY_EINVAL, "-5");
    refuse_u32(file, "a.u64", SY_EINVAL, "a.u64");
    refuse_u32(file, "a.i64", SY_EINVAL, "-9223372036854775808");
    refuse_u32(file, "a.f32", SY_EINVAL, "of type f32, where an integer");
    refuse_u32(file, "a.numbers", SY_EINVAL, "an array of i32");
    refuse_u32(file, "a.absent", SY_ENOTFOUND, "a.absent is missing");
    expect_ok(sy_gguf_f32(&f, file, "a.f64", &err), &err);
    assert_true(f == 0.1f);
    expect_ok(sy_gguf_f32(&f, file, "a.f32", &err), &err);
    assert_true(f == 0.5f);
    assert_int_equal(sy_gguf_f32(&f, file, "a.u32", &err), SY_EINVAL);
    expect_ok(sy_gguf_bool(&b, file, "a.bool", &err), &err);
    assert_int_equal(b, 1);
    assert_int_equal(sy_gguf_bool(&b, file, "a.u8", &err), SY_EINVAL);
    expect_ok(sy_gguf_string_of(&s, file, "general.architecture", &err), &err);
    assert_int_equal(s.n, 5);
    assert_memory_equal(s.s, "llama", 5);
    assert_int_equal(sy_gguf_string_of(&s, file, "a.u32", &err), SY_EINVAL);
    expect_ok(sy_gguf_array(&value, file, "a.words", SY_GGUF_KIND_STRING, &err), &err);
    assert_int_equal(value->n, 3);
    assert_int_equal(value->strings[1].n, 0);
    assert_memory_equal(value->strings[2].s, "\xc3\xa9", 2);
    expect_ok(sy_gguf_array(&value, file, "a.numbers", SY_GGUF_KIND_I32, &err), &err);
    assert_true(sy_gguf_value_i64(&i, value, 1));
    assert_int_equal(i, -2);
    assert_false(sy_gguf_value_i64(&i, value, 3));
    assert_int_equal(sy_gguf_array(&value, file, "a.numbers", SY_GGUF_KIND_F32, &err), SY_EINVAL);
    expect_text(err.message, "an array of i32, where an array of f32");
    assert_int_equal(sy_gguf_array(&value, file, "a.u32", SY_GGUF_KIND_I32, &err), SY_EINVAL);
    expect_ok(sy_gguf_array(&value, file, "a.nothing", SY_GGUF_KIND_F32, &err), &err);
    assert_int_equal(value->n, 0);
    sy_gguf_close(file);
}

static void every_cut_of_a_file_is_refused(void **state)
{
    made_gguf m;
    sy_strbuf bytes;
    size_t needed;

    (void)state;
    make_sound(&m);
    (void)made_bytes(&bytes, &m);
    needed = bytes.len;
    for (size_t n = 0; n < needed; n++) {
        sy_gguf *file = (sy_gguf *)&file;
        sy_error err;

        write_bytes(file_path(), bytes.data, n);
        assert_int_equal(sy_gguf_open(&file, file_path(), &err), SY_EINVAL);
        assert_null(file);
        if (strstr(err.message, "truncated") == NULL) expect_text(err.message, "can hold");
    }
    sy_strbuf_free(&bytes);
    made_free(&m);
}

static void what_is_no_gguf_is_refused(void **state)
{
    (void)state;
    refuse_bytes("", 0, SY_EINVAL, "truncated or no GGUF file");
    refuse_bytes("GGML\3\0\0\0", 8, SY_EINVAL, "47 47 4d 4c, not with \"GGUF\"");
    refuse_bytes("GGUF\1\0\0\0", 8, SY_EINVAL, "version 1 is not supported");
    refuse_bytes("GGUF\4\0\0\0", 8, SY_EINVAL, "version 4 is not supported");
    refuse_bytes("GGUF\0\0\0\3", 8, SY_EINVAL, "big-endian");
}

static void counts_that_the_file_cannot_hold_are_refused(void **state)
{
    static const uint64_t counts[] = {(uint64_t)1 << 63, UINT64_MAX, (uint64_t)1 << 32, 1000};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(counts); i++) {
        made_gguf m;

        make_gguf(&m);
        m.n_keys = counts[i];
        refuse(&m, "can hold");
        make_gguf(&m);
        add_key(&m, "a", SY_GGUF_KIND_ARRAY, "\0\0\0\0", 4); /* of u8 */
        put_u64(&m.keys, counts[i]);
        refuse(&m, "more than the file can hold");
        make_gguf(&m);
        add_key(&m, "a", SY_GGUF_KIND_ARRAY, "\x8\0\0\0", 4); /* of strings */
        put_u64(&m.keys, counts[i]);
        refuse(&m, "more than the file can hold");
        make_gguf(&m);
        add_key(&m, "a", SY_GGUF_KIND_STRING, NULL, 0);
        put_u64(&m.keys, counts[i]);
        refuse(&m, "truncated");
    }
}

static void claims_of_tensors_are_bounded_by_the_file_and_a_limit(void **state)
{
    static const uint64_t counts[] = {(uint64_t)1 << 63, UINT64_MAX, 3};
    sy_strbuf bytes;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(counts); i++) {
        sy_strbuf_init(&bytes);
        put(&bytes, "GGUF\3\0\0\0", 8);
        put_u64(&bytes, counts[i]);
        put_u64(&bytes, 0);
        for (int k = 0; k < 64; k++) put(&bytes, "", 1);
        refuse_bytes(bytes.data, bytes.len, SY_EINVAL, "can hold");
        sy_strbuf_free(&bytes);
    }
    /* A large file may claim many: it is a hole, and costs nothing. */
    sy_strbuf_init(&bytes);
    put(&bytes, "GGUF\3\0\0\0", 8);
    put_u64(&bytes, SY_GGUF_TENSORS_MAX + 1u);
    put_u64(&bytes, 0);
    write_bytes(file_path(), bytes.data, bytes.len);
    assert_int_equal(truncate(file_path(), 1l << 30), 0);
    sy_gguf *file;
    sy_error err;
    assert_int_equal(sy_gguf_open(&file, file_path(), &err), SY_ELIMIT);
    expect_text(err.message, "limits");
    sy_strbuf_free(&bytes);
}

/* Its length is inside the file, which is a hole of 2 GB: not read, and no memory is asked for. */
static void a_header_above_the_limit_is_refused(void **state)
{
    sy_strbuf bytes;
    sy_gguf *file;
    sy_error err;

    (void)state;
    sy_strbuf_init(&bytes);
    put(&bytes, "GGUF\3\0\0\0", 8);
    put_u64(&bytes, 0);
    put_u64(&bytes, 1);
    put_string(&bytes, "a");
    put_u32(&bytes, SY_GGUF_KIND_STRING);
    put_u64(&bytes, SY_GGUF_STRING_MAX + 1);
    write_bytes(file_path(), bytes.data, bytes.len);
    assert_int_equal(truncate(file_path(), 2l << 30), 0);
    assert_int_equal(sy_gguf_open(&file, file_path(), &err), SY_ELIMIT);
    expect_text(err.message, "limit of 16777216");
    bytes.data[bytes.len - 12] = SY_GGUF_KIND_ARRAY;
    bytes.len -= 8;
    put_u32(&bytes, SY_GGUF_KIND_U8);
    put_u64(&bytes, (uint64_t)1 << 30);
    write_bytes(file_path(), bytes.data, bytes.len);
    assert_int_equal(truncate(file_path(), 2l << 30), 0);
    assert_int_equal(sy_gguf_open(&file, file_path(), &err), SY_ELIMIT);
    expect_text(err.message, "268435456");
    sy_strbuf_free(&bytes);
}

static void a_header_longer_than_the_first_read_is_read_whole(void **state)
{
    enum { N = 300000 };
    const char **words = calloc(N, sizeof(*words));
    const sy_gguf_value *value;
    made_gguf m;
    sy_gguf *file;
    sy_error err;

    (void)state;
    assert_non_null(words);
    for (size_t i = 0; i < N; i++) words[i] = i % 2 == 0 ? "even" : "odd";
    make_gguf(&m);
    add_strings(&m, "words", words, N);
    add_u32(&m, "behind", 5);
    add_vector(&m, "v", 4, (float[]){1, 2, 3, 4});
    file = accept(&m);
    expect_u32(file, "behind", 5);
    expect_ok(sy_gguf_array(&value, file, "words", SY_GGUF_KIND_STRING, &err), &err);
    assert_int_equal(value->n, N);
    assert_memory_equal(value->strings[N - 1].s, "odd", 3);
    sy_gguf_close(file);
    free(words);
}

static void metadata_of_the_wrong_form_is_refused(void **state)
{
    made_gguf m;

    (void)state;
    make_gguf(&m);
    add_key(&m, "a", (sy_gguf_kind)13, "", 1);
    refuse(&m, "a is of type 13, which the format has not");
    make_gguf(&m);
    add_key(&m, "a", SY_GGUF_KIND_ARRAY, "\xff\xff\xff\xff\1\0\0\0\0\0\0\0", 12);
    refuse(&m, "type 4294967295");
    make_gguf(&m);
    add_key(&m, "a", SY_GGUF_KIND_ARRAY, "\x9\0\0\0\1\0\0\0\0\0\0\0", 12);
    refuse(&m, "an array of arrays");
    make_gguf(&m);
    add_bool(&m, "a", 2);
    refuse(&m, "a holds 2, where 0 or 1");
    make_gguf(&m);
    add_u32(&m, "twice", 1);
    add_u32(&m, "other", 1);
    add_u32(&m, "twice", 1);
    refuse(&m, "the key \"twice\" stands there twice");
    make_gguf(&m);
    add_u32(&m, "", 1);
    refuse(&m, "a key is empty");
    make_gguf(&m);
    add_u32(&m, "\xff", 1);
    refuse(&m, "not UTF-8");
    make_gguf(&m);
    add_string(&m, "a", "\xed\xa0\x80");
    refuse(&m, "not UTF-8");
    make_gguf(&m);
    add_key(&m, "a", SY_GGUF_KIND_STRING, "\2\0\0\0\0\0\0\0a\0", 10);
    refuse(&m, "holds a NUL");
}

static void alignment_is_a_power_of_two(void **state)
{
    static const uint32_t bad[] = {0, 3, 33, 1u << 31};
    made_gguf m;
    sy_gguf *file;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        make_gguf(&m);
        add_u32(&m, "general.alignment", bad[i]);
        refuse(&m, "not a power of two");
    }
    make_gguf(&m);
    add_f32(&m, "general.alignment", 32.0f);
    refuse(&m, "general.alignment is of type f32");
    make_gguf(&m);
    m.alignment = 4096;
    add_u32(&m, "general.alignment", 4096);
    add_vector(&m, "v", 1, NULL);
    add_vector(&m, "w", 1, NULL);
    file = accept(&m);
    assert_ptr_equal(sy_gguf_at(file, 1)->tensor.data, sy_gguf_at(file, 0)->tensor.data + 4096);
    sy_gguf_close(file);
    make_gguf(&m);
    m.alignment = 8;
    add_u32(&m, "general.alignment", 8);
    add_vector(&m, "v", 1, NULL);
    file = accept(&m);
    assert_int_equal((uintptr_t)sy_gguf_at(file, 0)->tensor.data % 8, 0);
    sy_gguf_close(file);
}

static void tensors_of_the_wrong_form_are_refused(void **state)
{
    made_gguf m;

    (void)state;
    make_gguf(&m);
    add_vector(&m, "v", 4, NULL);
    add_vector(&m, "v", 4, NULL);
    refuse(&m, "the tensor \"v\" stands there twice");
    make_gguf(&m);
    add_vector(&m, "v", 4, NULL);
    m.tensor[0].type = 4; /* Q4_2, which was withdrawn */
    refuse(&m, "type 4 is unknown in tensor \"v\"");
    make_gguf(&m);
    add_vector(&m, "v", 4, NULL);
    m.tensor[0].type = UINT32_MAX;
    refuse(&m, "type 4294967295 is unknown");
    make_gguf(&m);
    add_vector(&m, "v", 4, NULL);
    m.tensor[0].shape[0] = 0;
    refuse(&m, "dimension 0 is 0 in tensor \"v\"");
    make_gguf(&m);
    add_matrix(&m, "v", SY_GGUF_F32, 2, 2, NULL);
    m.tensor[0].shape[0] = (uint64_t)1 << 63;
    refuse(&m, "the product overflows");
    make_gguf(&m);
    add_vector(&m, "v", 4, NULL);
    m.tensor[0].shape[0] = (uint64_t)1 << 63;
    refuse(&m, "overflows in tensor \"v\"");
    make_gguf(&m);
    add_vector(&m, "v", 4, NULL);
    m.tensor[0].shape[0] = (uint64_t)1 << 40;
    refuse(&m, "truncated, in tensor \"v\"");
    make_gguf(&m);
    add_matrix(&m, "v", SY_GGUF_Q8_0, 2, 32, NULL);
    m.tensor[0].shape[1] = 33;
    refuse(&m, "no whole blocks of 32");
}

/* The info of one tensor with an offset, or a rank, of its own. */
static void refuse_info(uint32_t rank, uint64_t offset_a, uint64_t offset_b, const char *part)
{
    sy_strbuf bytes;

    sy_strbuf_init(&bytes);
    put(&bytes, "GGUF\3\0\0\0", 8);
    put_u64(&bytes, 2);
    put_u64(&bytes, 0);
    for (int i = 0; i < 2; i++) {
        put_string(&bytes, i == 0 ? "a" : "b");
        put_u32(&bytes, rank);
        for (uint32_t k = 0; k < rank; k++) put_u64(&bytes, k == 0 ? 16 : 1);
        put_u32(&bytes, SY_GGUF_F32);
        put_u64(&bytes, i == 0 ? offset_a : offset_b);
    }
    while (bytes.len % 32 != 0) put(&bytes, "", 1);
    for (int i = 0; i < 256; i++) put(&bytes, "", 1);
    refuse_bytes(bytes.data, bytes.len, SY_EINVAL, part);
    sy_strbuf_free(&bytes);
}

static void ranks_and_offsets_are_checked(void **state)
{
    (void)state;
    refuse_info(5, 0, 64, "5 dimensions, more than the limit of 4");
    refuse_info(1, 0, 0, "overlaps another tensor");
    refuse_info(1, 64, 32, "overlaps another tensor, which ends at 96");
    refuse_info(1, 0, 65, "no multiple of the alignment, 32, in tensor \"b\"");
    refuse_info(1, 0, 224, "do not lie in the 256 bytes of data");
    refuse_info(1, 0, UINT64_MAX - 31, "do not lie in");
    refuse_info(1, (uint64_t)1 << 63, 0, "do not lie in");
}

static void what_is_no_regular_file_is_refused_and_not_waited_for(void **state)
{
    sy_gguf *file;
    sy_error err;

    (void)state;
    assert_int_equal(sy_gguf_open(&file, dir, &err), SY_EINVAL);
    assert_int_equal(sy_gguf_open(&file, in_dir(dir, "absent"), &err), SY_ENOTFOUND);
    sy_gguf_close(NULL);
    sy_gguf_set_close(NULL);
}

/* ---- files of the reference writer ---- */

static void the_reference_writers_file_is_read(void **state)
{
    sy_gguf_set *set;
    const sy_gguf_tensor *t;
    float row[64];
    sy_error err;

    (void)state;
    expect_ok(sy_gguf_set_open(&set, GOLDEN "whole.gguf", &err), &err);
    assert_int_equal(sy_gguf_set_parts(set), 1);
    expect_u32(sy_gguf_set_metadata(set), "qwen3moe.block_count", 1);
    t = sy_gguf_set_find(set, "blk.0.ffn_up_exps.weight");
    assert_non_null(t);
    assert_int_equal(t->tensor.rank, 3);
    assert_int_equal(t->tensor.shape[0], 3);
    assert_int_equal(t->tensor.shape[1], 2);
    assert_int_equal(t->tensor.shape[2], 64);
    /* Element i of the tensor is i mod 16 - 8 in sixteenths, which Q4_0 holds exactly. */
    sy_gguf_decode(row, t->tensor.data + 5 * t->row_bytes, t->type, 64);
    for (int i = 0; i < 64; i++) assert_true(row[i] == (float)(i % 16 - 8) / 16.0f);
    sy_gguf_set_close(set);
}

static void the_reference_writers_parts_are_one_set(void **state)
{
    sy_gguf_set *set;
    const sy_gguf_tensor *a, *b;
    float v[4];
    sy_error err;

    (void)state;
    expect_ok(sy_gguf_set_open(&set, GOLDEN "parts-00001-of-00002.gguf", &err), &err);
    assert_int_equal(sy_gguf_set_parts(set), 2);
    expect_text(sy_gguf_set_part_path(set, 1), "parts-00002-of-00002.gguf");
    assert_int_equal(sy_gguf_set_count(set), 3);
    a = sy_gguf_set_find(set, "a");
    b = sy_gguf_set_find(set, "c");
    assert_true(a != NULL && b != NULL && sy_gguf_set_at(set, 0) == a);
    assert_null(sy_gguf_set_at(set, 3));
    memcpy(v, b->tensor.data, sizeof(v));
    assert_true(v[0] == 2.0f && v[3] == 5.0f);
    sy_gguf_set_close(set);
    assert_int_equal(sy_gguf_set_open(&set, GOLDEN "parts-00002-of-00002.gguf", &err), SY_EINVAL);
    expect_text(err.message, "part 2 of 2: open the first one");
}

/* ---- parts ---- */

static void write_part(const char *name, uint16_t number, uint16_t count, const char *tensor)
{
    made_gguf m;

    make_gguf(&m);
    add_key(&m, "split.no", SY_GGUF_KIND_U16, &number, 2);
    add_key(&m, "split.count", SY_GGUF_KIND_U16, &count, 2);
    add_key(&m, "split.tensors.count", SY_GGUF_KIND_I32, &(int32_t){2}, 4);
    if (tensor != NULL) add_vector(&m, tensor, 4, NULL);
    write_made(&m, in_dir(dir, name));
    made_free(&m);
}

static void refuse_set(const char *name, sy_status wanted, const char *part)
{
    sy_gguf_set *set = (sy_gguf_set *)&set;
    sy_error err;

    assert_int_equal(sy_gguf_set_open(&set, in_dir(dir, name), &err), wanted);
    assert_null(set);
    expect_text(err.message, part);
}

static void parts_that_do_not_belong_together_are_refused(void **state)
{
    (void)state;
    write_part("m-00001-of-00002.gguf", 0, 2, "a");
    refuse_set("m-00001-of-00002.gguf", SY_ENOTFOUND, "m-00002-of-00002.gguf");
    write_part("m-00002-of-00002.gguf", 1, 3, "b");
    refuse_set("m-00001-of-00002.gguf", SY_EINVAL, "says it is part 2 of 3");
    write_part("m-00002-of-00002.gguf", 0, 2, "b");
    refuse_set("m-00001-of-00002.gguf", SY_EINVAL, "says it is part 1 of 2");
    write_part("m-00002-of-00002.gguf", 1, 2, "a");
    refuse_set("m-00001-of-00002.gguf", SY_EINVAL, "two parts hold the tensor \"a\"");
    write_part("m-00002-of-00002.gguf", 1, 2, NULL);
    refuse_set("m-00001-of-00002.gguf", SY_EINVAL,
               "split.tensors.count is 2, but the parts hold 1");
    write_part("renamed.gguf", 0, 2, "a");
    refuse_set("renamed.gguf", SY_EINVAL, "must end in -00001-of-00002.gguf");
    write_part("m-00001-of-65535.gguf", 0, 65535, "a");
    refuse_set("m-00001-of-65535.gguf", SY_ELIMIT, "65535");
}

static void a_directorys_model_is_found(void **state)
{
    char path[PATH_MAX];
    sy_error err;

    (void)state;
    assert_int_equal(sy_gguf_locate(path, dir, &err), SY_ENOTFOUND);
    expect_text(err.message, "no .gguf file");
    assert_int_equal(sy_gguf_locate(path, in_dir(dir, "absent"), &err), SY_ENOTFOUND);
    write_part("m-00001-of-00002.gguf", 0, 2, "a");
    write_part("m-00002-of-00002.gguf", 1, 2, "b");
    expect_ok(sy_gguf_locate(path, dir, &err), &err);
    expect_text(path, "m-00001-of-00002.gguf");
    write_part("other.gguf", 0, 0, "a");
    assert_int_equal(sy_gguf_locate(path, dir, &err), SY_EINVAL);
    expect_text(err.message, "several models");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_sound_file_gives_its_tensors),
        TEST(metadata_is_read_by_key_and_type),
        TEST(every_cut_of_a_file_is_refused),
        TEST(what_is_no_gguf_is_refused),
        TEST(counts_that_the_file_cannot_hold_are_refused),
        TEST(claims_of_tensors_are_bounded_by_the_file_and_a_limit),
        TEST(a_header_above_the_limit_is_refused),
        TEST(a_header_longer_than_the_first_read_is_read_whole),
        TEST(metadata_of_the_wrong_form_is_refused),
        TEST(alignment_is_a_power_of_two),
        TEST(tensors_of_the_wrong_form_are_refused),
        TEST(ranks_and_offsets_are_checked),
        TEST(what_is_no_regular_file_is_refused_and_not_waited_for),
        TEST(the_reference_writers_file_is_read),
        TEST(the_reference_writers_parts_are_one_set),
        TEST(parts_that_do_not_belong_together_are_refused),
        TEST(a_directorys_model_is_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
