/* sy_gguf_parse.c - a cursor over the header's bytes, and what is read through it in the file's
 * order: magic, version, counts, metadata, tensor infos. Names are checked for duplicates by
 * whoever sorts them (sy_gguf.c). */
#include "sy_gguf_parse.h"

#include <inttypes.h>
#include <string.h>

#include "sy_unicode.h"

#define KEY_BYTES_MAX 65535u
/* The least that one takes in the file: a name's length and a type each, and a value of a byte; the
 * rank, and the offset. */
#define KEY_BYTES_MIN    (8u + 4u + 1u)
#define TENSOR_BYTES_MIN (8u + 4u + 4u + 8u)
#define EXCERPT_BYTES    64 /* of a name, in messages */

typedef struct cursor {
    const uint8_t *bytes;
    size_t n, at;
    uint64_t file_bytes;
    int *ran_out;
    sy_arena *arena;
    sy_error *err;
} cursor;

static const struct {
    const char *name;
    size_t bytes;
} kinds[SY_GGUF_N_KINDS] = {
    [SY_GGUF_KIND_U8] = {"u8", 1},         [SY_GGUF_KIND_I8] = {"i8", 1},
    [SY_GGUF_KIND_U16] = {"u16", 2},       [SY_GGUF_KIND_I16] = {"i16", 2},
    [SY_GGUF_KIND_U32] = {"u32", 4},       [SY_GGUF_KIND_I32] = {"i32", 4},
    [SY_GGUF_KIND_F32] = {"f32", 4},       [SY_GGUF_KIND_BOOL] = {"bool", 1},
    [SY_GGUF_KIND_STRING] = {"string", 0}, [SY_GGUF_KIND_ARRAY] = {"array", 0},
    [SY_GGUF_KIND_U64] = {"u64", 8},       [SY_GGUF_KIND_I64] = {"i64", 8},
    [SY_GGUF_KIND_F64] = {"f64", 8},
};

size_t gguf_kind_bytes(sy_gguf_kind kind)
{
    return (size_t)kind < SY_GGUF_N_KINDS ? kinds[kind].bytes : 0;
}

const char *sy_gguf_kind_name(sy_gguf_kind kind)
{
    return (size_t)kind < SY_GGUF_N_KINDS ? kinds[kind].name : "unknown";
}

static sy_status no_memory(const cursor *in, const char *what)
{
    return sy_error_set(in->err, SY_ENOMEM, "no memory for %s", what);
}

/* What of the file lies behind the cursor, in the bytes at hand or not. */
static uint64_t left_in_file(const cursor *in)
{
    return in->file_bytes - in->at;
}

/* *out: n bytes, and the cursor behind them. */
static sy_status take(const uint8_t **out, cursor *in, uint64_t n, const char *what)
{
    *out = in->bytes;
    if (n > left_in_file(in)) {
        return sy_error_set(in->err, SY_EINVAL,
                            "%s takes %" PRIu64 " bytes at byte %zu, but the file ends %" PRIu64
                            " bytes later: it is truncated or no GGUF file",
                            what, n, in->at, left_in_file(in));
    }
    if (n > in->n - in->at) {
        *in->ran_out = 1;
        return sy_error_set(in->err, SY_EINVAL, "the header goes on behind byte %zu", in->n);
    }
    *out = in->bytes + in->at;
    in->at += (size_t)n;
    return SY_OK;
}

static sy_status take_u32(uint32_t *out, cursor *in, const char *what)
{
    const uint8_t *bytes;
    const sy_status st = take(&bytes, in, sizeof(*out), what);

    *out = 0;
    if (st == SY_OK) memcpy(out, bytes, sizeof(*out));
    return st;
}

static sy_status take_u64(uint64_t *out, cursor *in, const char *what)
{
    const uint8_t *bytes;
    const sy_status st = take(&bytes, in, sizeof(*out), what);

    *out = 0;
    if (st == SY_OK) memcpy(out, bytes, sizeof(*out));
    return st;
}

static sy_status take_string(sy_gguf_string *out, cursor *in, uint64_t bytes_max, const char *what)
{
    const size_t begin = in->at;
    const uint8_t *bytes;
    uint64_t n;
    sy_status st;

    SY_TRY(take_u64(&n, in, what));
    if (n > bytes_max && n <= left_in_file(in)) {
        return sy_error_set(in->err, SY_ELIMIT,
                            "%s has %" PRIu64 " bytes at byte %zu, more than the limit of %" PRIu64,
                            what, n, begin, bytes_max);
    }
    SY_TRY(take(&bytes, in, n, what));
    *out = (sy_gguf_string){.s = (const char *)bytes, .n = (size_t)n};
    if (sy_utf8_check(out->s, out->n) != out->n)
        st = sy_error_set(in->err, SY_EINVAL, "%s is not UTF-8 at byte %zu", what, begin);
    else if (memchr(out->s, '\0', out->n) != NULL)
        st = sy_error_set(in->err, SY_EINVAL, "%s holds a NUL at byte %zu", what, begin);
out:
    return st;
}

/* A string that becomes a name: NUL-terminated, and not empty. */
static sy_status take_name(const char **out, cursor *in, uint64_t bytes_max, const char *what)
{
    const size_t begin = in->at;
    sy_gguf_string string = {0};
    sy_status st = take_string(&string, in, bytes_max, what);

    if (st != SY_OK) return st;
    if (string.n == 0)
        return sy_error_set(in->err, SY_EINVAL, "%s is empty at byte %zu", what, begin);
    *out = sy_arena_strndup(in->arena, string.s, string.n);
    return *out != NULL ? SY_OK : no_memory(in, what);
}

static sy_status take_strings(sy_gguf_value *value, cursor *in)
{
    sy_gguf_string *strings;
    sy_status st = SY_OK;

    /* The lengths alone must be there before memory is asked for, which is then at most twice what
     * has been read. */
    if (value->n > (in->n - in->at) / 8) {
        *in->ran_out = 1;
        return sy_error_set(in->err, SY_EINVAL, "the header goes on behind byte %zu", in->n);
    }
    strings = sy_arena_calloc(in->arena, value->n + 1, sizeof(*strings));
    if (strings == NULL) return no_memory(in, "an array of strings");
    value->strings = strings;
    for (size_t i = 0; i < value->n; i++)
        SY_TRY(take_string(&strings[i], in, SY_GGUF_STRING_MAX, "a string"));
out:
    return st;
}

static sy_status check_bools(const cursor *in, const sy_gguf_value *value, const char *key)
{
    for (size_t i = 0; i < value->n; i++) {
        if (value->bytes[i] > 1) {
            return sy_error_set(in->err, SY_EINVAL, "%.*s holds %u, where 0 or 1 is needed",
                                EXCERPT_BYTES, key, value->bytes[i]);
        }
    }
    return SY_OK;
}

static sy_status take_kind(sy_gguf_kind *out, cursor *in, const char *key)
{
    uint32_t kind = 0;
    const sy_status st = take_u32(&kind, in, "a type");

    if (st != SY_OK) return st;
    if (kind >= SY_GGUF_N_KINDS) {
        return sy_error_set(in->err, SY_EINVAL,
                            "%.*s is of type %" PRIu32 ", which the format has not", EXCERPT_BYTES,
                            key, kind);
    }
    *out = (sy_gguf_kind)kind;
    return SY_OK;
}

/* The kind and the count of elements; *value is zeroed. */
static sy_status take_extent(sy_gguf_value *value, cursor *in, const char *key)
{
    uint64_t n = 1;
    uint64_t least = 8; /* bytes of an element: of a string, its length */
    sy_status st;

    SY_TRY(take_kind(&value->kind, in, key));
    value->is_array = value->kind == SY_GGUF_KIND_ARRAY;
    if (value->is_array) {
        SY_TRY(take_kind(&value->kind, in, key));
        if (value->kind == SY_GGUF_KIND_ARRAY) {
            return sy_error_set(in->err, SY_EINVAL,
                                "%.*s is an array of arrays, which is not supported", EXCERPT_BYTES,
                                key);
        }
        SY_TRY(take_u64(&n, in, "an array's length"));
    }
    if (value->kind != SY_GGUF_KIND_STRING) least = gguf_kind_bytes(value->kind);
    if (least == 0) least = 1; /* never: an array's kind is refused above */
    if (n > left_in_file(in) / least) {
        return sy_error_set(in->err, SY_EINVAL,
                            "%.*s has %" PRIu64 " elements of type %s, more than the file can hold",
                            EXCERPT_BYTES, key, n, sy_gguf_kind_name(value->kind));
    }
    value->n = (size_t)n;
out:
    return st;
}

static sy_status take_key(gguf_key *key, cursor *in)
{
    sy_gguf_value *value = &key->value;
    sy_status st;

    SY_TRY(take_name(&key->name, in, KEY_BYTES_MAX, "a key"));
    SY_TRY(take_extent(value, in, key->name));
    if (value->kind == SY_GGUF_KIND_STRING) return take_strings(value, in);
    SY_TRY(take(&value->bytes, in, (uint64_t)value->n * gguf_kind_bytes(value->kind), key->name));
    if (value->kind == SY_GGUF_KIND_BOOL) st = check_bools(in, value, key->name);
out:
    return st;
}

/* The file's dimensions begin with the innermost. */
static sy_status take_shape(sy_tensor *tensor, cursor *in)
{
    sy_status st;

    SY_TRY(take_u32(&tensor->rank, in, "a rank"));
    if (tensor->rank > SY_GGUF_RANK_MAX) {
        return sy_error_set(in->err, SY_EINVAL,
                            "%" PRIu32 " dimensions, more than the limit of %d, in tensor \"%s\"",
                            tensor->rank, SY_GGUF_RANK_MAX, tensor->name);
    }
    tensor->n_elements = 1;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        uint64_t *size = &tensor->shape[tensor->rank - 1 - i];

        SY_TRY(take_u64(size, in, "a dimension"));
        if (*size == 0 || __builtin_mul_overflow(tensor->n_elements, *size, &tensor->n_elements)) {
            return sy_error_set(in->err, SY_EINVAL,
                                "dimension %" PRIu32 " is %" PRIu64 "%s in tensor \"%s\"", i, *size,
                                *size == 0 ? "" : ": the product overflows", tensor->name);
        }
    }
out:
    return st;
}

static sy_status set_type(sy_gguf_tensor *item, const cursor *in)
{
    sy_tensor *tensor = &item->tensor;
    const sy_gguf_block *block = sy_gguf_block_find(item->type);
    const uint64_t row = tensor->rank > 0 ? tensor->shape[tensor->rank - 1] : 1;

    if (block == NULL) {
        return sy_error_set(in->err, SY_EINVAL, "type %" PRIu32 " is unknown in tensor \"%s\"",
                            item->type, tensor->name);
    }
    if (row % block->elements != 0) {
        return sy_error_set(in->err, SY_EINVAL,
                            "rows of %" PRIu64 " elements are no whole blocks of %" PRIu32
                            ", which %s has, in tensor \"%s\"",
                            row, block->elements, block->name, tensor->name);
    }
    tensor->dtype_name = block->name;
    if (block->elements > 1) {
        tensor->encoding = SY_ENCODING_GGUF;
        tensor->block = item->type;
        tensor->dtype = sy_gguf_decodable(item->type, NULL) == SY_OK ? SY_F32 : SY_DTYPE_NONE;
    } else {
        tensor->dtype = block->dtype;
    }
    item->row_bytes = sy_gguf_row_bytes(item->type, row);
    if (item->row_bytes == 0 ||
        __builtin_mul_overflow(tensor->n_elements / row, item->row_bytes, &tensor->bytes)) {
        return sy_error_set(in->err, SY_EINVAL, "the size in bytes overflows in tensor \"%s\"",
                            tensor->name);
    }
    return SY_OK;
}

static sy_status take_entry(gguf_entry *entry, cursor *in)
{
    sy_tensor *tensor = &entry->item.tensor;
    sy_status st;

    SY_TRY(take_name(&tensor->name, in, SY_TENSOR_NAME_MAX, "a tensor's name"));
    SY_TRY(take_shape(tensor, in));
    SY_TRY(take_u32(&entry->item.type, in, "a tensor's type"));
    SY_TRY(set_type(&entry->item, in));
    st = take_u64(&entry->offset, in, "a tensor's offset");
out:
    return st;
}

static sy_status take_counts(uint64_t *n_tensors, uint64_t *n_keys, cursor *in)
{
    const uint8_t *magic;
    uint32_t version;
    sy_status st;

    SY_TRY(take(&magic, in, 4, "the magic number"));
    if (memcmp(magic, "GGUF", 4) != 0) {
        return sy_error_set(in->err, SY_EINVAL,
                            "begins with %02x %02x %02x %02x, not with \"GGUF\"", magic[0],
                            magic[1], magic[2], magic[3]);
    }
    SY_TRY(take_u32(&version, in, "the version"));
    if (version != 2 && version != 3) {
        return sy_error_set(
            in->err, SY_EINVAL, "GGUF version %" PRIu32 "%s; 2 and 3 are read", version,
            (version & 0xffff) == 0 && version != 0 ? " (the file is big-endian: convert it)"
                                                    : " is not supported");
    }
    SY_TRY(take_u64(n_tensors, in, "the number of tensors"));
    SY_TRY(take_u64(n_keys, in, "the number of keys"));
    if (*n_tensors > left_in_file(in) / TENSOR_BYTES_MIN ||
        *n_keys > left_in_file(in) / KEY_BYTES_MIN) {
        return sy_error_set(in->err, SY_EINVAL,
                            "claims %" PRIu64 " tensors and %" PRIu64 " keys, more than a file of "
                            "%" PRIu64 " bytes can hold",
                            *n_tensors, *n_keys, in->file_bytes);
    }
    if (*n_tensors > SY_GGUF_TENSORS_MAX || *n_keys > SY_GGUF_KEYS_MAX) {
        return sy_error_set(in->err, SY_ELIMIT,
                            "%" PRIu64 " tensors and %" PRIu64 " keys are more than the limits of "
                            "%u and %u",
                            *n_tensors, *n_keys, SY_GGUF_TENSORS_MAX, SY_GGUF_KEYS_MAX);
    }
out:
    return st;
}

static sy_status read_alignment(gguf_header *out, const cursor *in)
{
    out->alignment = SY_GGUF_ALIGNMENT_UNIT;
    for (size_t i = 0; i < out->n_keys; i++) {
        const sy_gguf_value *value = &out->keys[i].value;

        if (strcmp(out->keys[i].name, "general.alignment") != 0) continue;
        if (value->kind != SY_GGUF_KIND_U32 || value->is_array) {
            return sy_error_set(in->err, SY_EINVAL,
                                "general.alignment is of type %s, where u32 is needed",
                                value->is_array ? "array" : sy_gguf_kind_name(value->kind));
        }
        memcpy(&out->alignment, value->bytes, sizeof(out->alignment));
        if (out->alignment == 0 || (out->alignment & (out->alignment - 1)) != 0 ||
            out->alignment > SY_GGUF_ALIGNMENT_MAX) {
            return sy_error_set(in->err, SY_EINVAL,
                                "general.alignment is %" PRIu32 ", not a power of two up to %u",
                                out->alignment, SY_GGUF_ALIGNMENT_MAX);
        }
    }
    return SY_OK;
}

sy_status gguf_parse(gguf_header *out, sy_arena *arena, const uint8_t *bytes, size_t n,
                     uint64_t file_bytes, int *ran_out, sy_error *err)
{
    cursor in = {bytes, n, 0, file_bytes, ran_out, arena, err};
    uint64_t n_tensors = 0, n_keys = 0;
    sy_status st;

    *out = (gguf_header){0};
    *ran_out = 0;
    SY_TRY(take_counts(&n_tensors, &n_keys, &in));
    out->keys = sy_arena_calloc(arena, (size_t)n_keys + 1, sizeof(*out->keys));
    out->entries = sy_arena_calloc(arena, (size_t)n_tensors + 1, sizeof(*out->entries));
    if (out->keys == NULL || out->entries == NULL) return no_memory(&in, "the header");
    for (; out->n_keys < n_keys; out->n_keys++) SY_TRY(take_key(&out->keys[out->n_keys], &in));
    SY_TRY(read_alignment(out, &in));
    for (; out->n_entries < n_tensors; out->n_entries++)
        SY_TRY(take_entry(&out->entries[out->n_entries], &in));
    out->bytes = in.at;
out:
    return st;
}
