/* sy_gguf_value.c - metadata by key, with types checked. Numbers lie unaligned in the header's
 * bytes, little-endian, as every machine this is built for has them. */
#include "sy_gguf.h"

#include <inttypes.h>
#include <string.h>

static int is_integer(sy_gguf_kind kind)
{
    return kind <= SY_GGUF_KIND_I32 || kind == SY_GGUF_KIND_U64 || kind == SY_GGUF_KIND_I64;
}

static int is_signed(sy_gguf_kind kind)
{
    return kind == SY_GGUF_KIND_I8 || kind == SY_GGUF_KIND_I16 || kind == SY_GGUF_KIND_I32 ||
           kind == SY_GGUF_KIND_I64;
}

static int is_float(sy_gguf_kind kind)
{
    return kind == SY_GGUF_KIND_F32 || kind == SY_GGUF_KIND_F64;
}

static size_t width_bytes(sy_gguf_kind kind)
{
    switch (kind) {
    case SY_GGUF_KIND_U8:
    case SY_GGUF_KIND_I8:
    case SY_GGUF_KIND_BOOL: return 1;
    case SY_GGUF_KIND_U16:
    case SY_GGUF_KIND_I16: return 2;
    case SY_GGUF_KIND_U64:
    case SY_GGUF_KIND_I64:
    case SY_GGUF_KIND_F64: return 8;
    default: return 4;
    }
}

int sy_gguf_value_i64(int64_t *out, const sy_gguf_value *value, size_t i)
{
    const size_t width = width_bytes(value->kind);
    uint64_t bits = 0;

    if (!is_integer(value->kind) || i >= value->n) return 0;
    memcpy(&bits, value->bytes + i * width, width);
    if (is_signed(value->kind)) {
        const unsigned above = 64 - 8 * (unsigned)width;

        *out = (int64_t)(bits << above) >> above; /* the sign fills what the file has not */
        return 1;
    }
    if (bits > INT64_MAX) return 0;
    *out = (int64_t)bits;
    return 1;
}

int sy_gguf_value_f32(float *out, const sy_gguf_value *value, size_t i)
{
    double wide;

    if (!is_float(value->kind) || i >= value->n) return 0;
    if (value->kind == SY_GGUF_KIND_F32) {
        memcpy(out, value->bytes + i * sizeof(*out), sizeof(*out));
        return 1;
    }
    memcpy(&wide, value->bytes + i * sizeof(wide), sizeof(wide));
    *out = (float)wide;
    return 1;
}

int sy_gguf_value_bool(int *out, const sy_gguf_value *value, size_t i)
{
    if (value->kind != SY_GGUF_KIND_BOOL || i >= value->n) return 0;
    *out = value->bytes[i];
    return 1;
}

/* *out: the scalar under key. */
static sy_status find_scalar(const sy_gguf_value **out, const sy_gguf *file, const char *key,
                             sy_error *err)
{
    *out = sy_gguf_value_of(file, key);
    if (*out == NULL) return sy_error_set(err, SY_ENOTFOUND, "%s is missing", key);
    if ((*out)->is_array) {
        return sy_error_set(err, SY_EINVAL, "%s is an array of %s, where a single value is needed",
                            key, sy_gguf_kind_name((*out)->kind));
    }
    return SY_OK;
}

static sy_status wrong_kind(const sy_gguf_value *value, const char *key, const char *needed,
                            sy_error *err)
{
    return sy_error_set(err, SY_EINVAL, "%s is of type %s, where %s is needed", key,
                        sy_gguf_kind_name(value->kind), needed);
}

sy_status sy_gguf_u32(uint32_t *out, const sy_gguf *file, const char *key, sy_error *err)
{
    const sy_gguf_value *value;
    int64_t number = -1;
    const sy_status st = find_scalar(&value, file, key, err);

    if (st != SY_OK) return st;
    if (!is_integer(value->kind)) return wrong_kind(value, key, "an integer", err);
    if (!sy_gguf_value_i64(&number, value, 0) || number < 0 || number > UINT32_MAX) {
        return sy_error_set(err, SY_EINVAL, "%s is %" PRIi64 ", not in 0 to %" PRIu32, key, number,
                            UINT32_MAX);
    }
    *out = (uint32_t)number;
    return SY_OK;
}

sy_status sy_gguf_f32(float *out, const sy_gguf *file, const char *key, sy_error *err)
{
    const sy_gguf_value *value;
    const sy_status st = find_scalar(&value, file, key, err);

    if (st != SY_OK) return st;
    return sy_gguf_value_f32(out, value, 0) ? SY_OK : wrong_kind(value, key, "f32 or f64", err);
}

sy_status sy_gguf_bool(int *out, const sy_gguf *file, const char *key, sy_error *err)
{
    const sy_gguf_value *value;
    const sy_status st = find_scalar(&value, file, key, err);

    if (st != SY_OK) return st;
    return sy_gguf_value_bool(out, value, 0) ? SY_OK : wrong_kind(value, key, "bool", err);
}

sy_status sy_gguf_string_of(sy_gguf_string *out, const sy_gguf *file, const char *key,
                            sy_error *err)
{
    const sy_gguf_value *value;
    const sy_status st = find_scalar(&value, file, key, err);

    if (st != SY_OK) return st;
    if (value->kind != SY_GGUF_KIND_STRING) return wrong_kind(value, key, "a string", err);
    *out = value->strings[0];
    return SY_OK;
}

sy_status sy_gguf_array(const sy_gguf_value **out, const sy_gguf *file, const char *key,
                        sy_gguf_kind kind, sy_error *err)
{
    const sy_gguf_value *value = sy_gguf_value_of(file, key);
    int fits;

    if (value == NULL) return sy_error_set(err, SY_ENOTFOUND, "%s is missing", key);
    fits = kind == SY_GGUF_KIND_I32   ? is_integer(value->kind)
           : kind == SY_GGUF_KIND_F32 ? is_float(value->kind)
                                      : value->kind == kind;
    if (!value->is_array || !fits) {
        return sy_error_set(err, SY_EINVAL, "%s is %s%s, where an array of %s is needed", key,
                            value->is_array ? "an array of " : "of type ",
                            sy_gguf_kind_name(value->kind), sy_gguf_kind_name(kind));
    }
    *out = value;
    return SY_OK;
}
