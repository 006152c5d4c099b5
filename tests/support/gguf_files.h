/* gguf_files.h - GGUF files made in memory for the tests: metadata and tensors are appended,
 * and what is wrong with a file is put there by whoever wants it wrong. */
#ifndef GGUF_FILES_H
#define GGUF_FILES_H

#include "checkpoint_files.h"
#include "sy_gguf_map.h"
#include "sy_strbuf.h"

#define MADE_TENSORS_MAX 128

typedef struct made_tensor {
    char name[64];
    uint32_t type, rank;
    uint64_t shape[4]; /* outermost first */
    size_t bytes;
} made_tensor;

typedef struct made_gguf {
    sy_strbuf keys; /* raw bytes */
    sy_strbuf data;
    made_tensor tensor[MADE_TENSORS_MAX];
    uint64_t n_keys, n_tensors;
    uint32_t version, alignment;
} made_gguf;

static inline void put(sy_strbuf *out, const void *bytes, size_t n)
{
    sy_strbuf_append(out, bytes, n);
    assert_false(out->failed);
}

static inline void put_u32(sy_strbuf *out, uint32_t v)
{
    put(out, &v, sizeof(v));
}

static inline void put_u64(sy_strbuf *out, uint64_t v)
{
    put(out, &v, sizeof(v));
}

static inline void put_string(sy_strbuf *out, const char *s)
{
    put_u64(out, strlen(s));
    put(out, s, strlen(s));
}

static inline void make_gguf(made_gguf *m)
{
    memset(m, 0, sizeof(*m));
    sy_strbuf_init(&m->keys);
    sy_strbuf_init(&m->data);
    m->version = 3;
    m->alignment = 32;
}

static inline void made_free(made_gguf *m)
{
    sy_strbuf_free(&m->keys);
    sy_strbuf_free(&m->data);
}

/* Any value, from its raw bytes. */
static inline void add_key(made_gguf *m, const char *key, sy_gguf_kind kind, const void *bytes,
                           size_t n)
{
    put_string(&m->keys, key);
    put_u32(&m->keys, kind);
    put(&m->keys, bytes, n);
    m->n_keys++;
}

static inline void add_u32(made_gguf *m, const char *key, uint32_t v)
{
    add_key(m, key, SY_GGUF_KIND_U32, &v, sizeof(v));
}

static inline void add_f32(made_gguf *m, const char *key, float v)
{
    add_key(m, key, SY_GGUF_KIND_F32, &v, sizeof(v));
}

static inline void add_bool(made_gguf *m, const char *key, uint8_t v)
{
    add_key(m, key, SY_GGUF_KIND_BOOL, &v, sizeof(v));
}

static inline void add_string(made_gguf *m, const char *key, const char *s)
{
    add_key(m, key, SY_GGUF_KIND_STRING, NULL, 0);
    put_string(&m->keys, s);
}

static inline void add_array(made_gguf *m, const char *key, sy_gguf_kind kind, const void *elements,
                             size_t n, size_t element_bytes)
{
    add_key(m, key, SY_GGUF_KIND_ARRAY, NULL, 0);
    put_u32(&m->keys, kind);
    put_u64(&m->keys, n);
    put(&m->keys, elements, n * element_bytes);
}

static inline void add_strings(made_gguf *m, const char *key, const char *const *s, size_t n)
{
    add_array(m, key, SY_GGUF_KIND_STRING, "", n, 0);
    for (size_t i = 0; i < n; i++) put_string(&m->keys, s[i]);
}

/* shape: outermost first. bytes NULL: counted upwards from 0. */
static inline void add_tensor(made_gguf *m, const char *name, uint32_t type, uint32_t rank,
                              const uint64_t *shape, const void *bytes)
{
    made_tensor *t = &m->tensor[m->n_tensors++];
    uint64_t rows = 1;

    assert_true(m->n_tensors <= MADE_TENSORS_MAX);
    snprintf(t->name, sizeof(t->name), "%s", name);
    t->type = type;
    t->rank = rank;
    for (uint32_t i = 0; i < rank; i++) t->shape[i] = shape[i];
    for (uint32_t i = 0; i + 1 < rank; i++) rows *= shape[i];
    t->bytes = (size_t)(rows * sy_gguf_row_bytes(type, rank > 0 ? shape[rank - 1] : 1));
    while (m->data.len % m->alignment != 0) put(&m->data, "", 1);
    for (size_t i = 0; i < t->bytes; i++)
        put(&m->data,
            bytes != NULL ? (const char *)bytes + i : (const char *)&(uint8_t){(uint8_t)i}, 1);
}

static inline void add_matrix(made_gguf *m, const char *name, uint32_t type, uint64_t rows,
                              uint64_t columns, const void *bytes)
{
    add_tensor(m, name, type, 2, (uint64_t[]){rows, columns}, bytes);
}

static inline void add_vector(made_gguf *m, const char *name, uint64_t n, const void *floats)
{
    add_tensor(m, name, SY_GGUF_F32, 1, &n, floats);
}

static inline void put_info(sy_strbuf *out, const made_tensor *t, uint64_t offset)
{
    put_string(out, t->name);
    put_u32(out, t->rank);
    for (uint32_t i = t->rank; i-- > 0;) put_u64(out, t->shape[i]);
    put_u32(out, t->type);
    put_u64(out, offset);
}

/* The whole file; out is initialised here. Returns the bytes of the header. */
static inline size_t made_bytes(sy_strbuf *out, const made_gguf *m)
{
    uint64_t offset = 0;
    size_t header_bytes;

    sy_strbuf_init(out);
    put(out, "GGUF", 4);
    put_u32(out, m->version);
    put_u64(out, m->n_tensors);
    put_u64(out, m->n_keys);
    put(out, m->keys.data, m->keys.len);
    for (uint64_t i = 0; i < m->n_tensors; i++) {
        put_info(out, &m->tensor[i], offset);
        offset += (m->tensor[i].bytes + m->alignment - 1) / m->alignment * m->alignment;
    }
    header_bytes = out->len;
    while (out->len % m->alignment != 0) put(out, "", 1);
    put(out, m->data.data, m->data.len);
    return header_bytes;
}

static inline void write_made(const made_gguf *m, const char *path)
{
    sy_strbuf bytes;

    (void)made_bytes(&bytes, m);
    write_bytes(path, bytes.data, bytes.len);
    sy_strbuf_free(&bytes);
}

static inline sy_gguf_set *open_made(const made_gguf *m, const char *path)
{
    sy_gguf_set *set;
    sy_error err;

    write_made(m, path);
    expect_ok(sy_gguf_set_open(&set, path, &err), &err);
    return set;
}

#endif
