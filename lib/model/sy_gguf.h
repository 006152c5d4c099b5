/* sy_gguf.h - one GGUF file: header, metadata and tensor infos read and checked whole, the data
 * mapped and not touched. Versions 2 and 3, little-endian. Source: ggml's docs/gguf.md
 * (https://github.com/ggml-org/ggml); the checks are those of its reader, plus: text is UTF-8, no
 * two tensors share a byte, and sizes are bounded by the file before memory is asked for. A model
 * may be split over several files: sy_gguf_set.h. Immutable once open: any thread. */
#ifndef SY_GGUF_H
#define SY_GGUF_H

#include "sy_gguf_block.h"
#include "sy_tensor.h"

#define SY_GGUF_RANK_MAX       4
#define SY_GGUF_TENSORS_MAX    (1u << 18) /* of one file; a layer's experts are three */
#define SY_GGUF_KEYS_MAX       (1u << 16)
#define SY_GGUF_STRING_MAX     ((uint64_t)16 << 20)  /* bytes of one string; templates are long */
#define SY_GGUF_HEADER_MAX     ((uint64_t)256 << 20) /* bytes of all that is no data */
#define SY_GGUF_ALIGNMENT_MAX  ((uint32_t)1 << 20)
#define SY_GGUF_ALIGNMENT_UNIT 32u /* unless general.alignment says otherwise */

/* Types of metadata, with the format's numbers. */
typedef enum sy_gguf_kind {
    SY_GGUF_KIND_U8 = 0,
    SY_GGUF_KIND_I8,
    SY_GGUF_KIND_U16,
    SY_GGUF_KIND_I16,
    SY_GGUF_KIND_U32,
    SY_GGUF_KIND_I32,
    SY_GGUF_KIND_F32,
    SY_GGUF_KIND_BOOL,
    SY_GGUF_KIND_STRING,
    SY_GGUF_KIND_ARRAY,
    SY_GGUF_KIND_U64,
    SY_GGUF_KIND_I64,
    SY_GGUF_KIND_F64,
    SY_GGUF_N_KINDS
} sy_gguf_kind;

typedef struct sy_gguf_string {
    const char *s; /* [n] UTF-8 without a NUL, also at its end; lives as long as the file */
    size_t n;
} sy_gguf_string;

/* A scalar is an array of one. Arrays of arrays are refused. */
typedef struct sy_gguf_value {
    sy_gguf_kind kind; /* of an element: never ARRAY */
    int is_array;
    size_t n;
    const uint8_t *bytes;          /* [n] numbers as the file has them, unaligned */
    const sy_gguf_string *strings; /* [n] for STRING, else NULL */
} sy_gguf_value;

/* tensor.shape has the outermost dimension first (the file has it last), tensor.dtype_name is
 * "Q4_K". F32, F16 and BF16 are PLAIN; blocks that are decoded have the encoding GGUF and read as
 * f32; what nothing decodes has SY_DTYPE_NONE. sy_gguf_block.dtype says more: rows of Q8_0 and Q4_0
 * have the very bytes of SY_Q8 and SY_Q4. */
typedef struct sy_gguf_tensor {
    sy_tensor tensor;
    uint32_t type;      /* sy_gguf_type, or one that is not decoded */
    uint64_t row_bytes; /* of the innermost dimension's elements */
} sy_gguf_tensor;

typedef struct sy_gguf sy_gguf;

/* SY_EINVAL with the rule that is broken, SY_ELIMIT, SY_ENOTFOUND, SY_EIO, SY_ENOMEM. */
SY_MUST_USE sy_status sy_gguf_open(sy_gguf **out, const char *path, sy_error *err);
void sy_gguf_close(sy_gguf *file); /* accepts NULL */
size_t sy_gguf_count(const sy_gguf *file);
const sy_gguf_tensor *sy_gguf_at(const sy_gguf *file, size_t i); /* in the order of the infos */
const sy_gguf_tensor *sy_gguf_find(const sy_gguf *file, const char *name); /* NULL: none */

/* Metadata. Keys are unique. */
size_t sy_gguf_key_count(const sy_gguf *file);
const char *sy_gguf_key_at(const sy_gguf *file, size_t i, const sy_gguf_value **value);
const sy_gguf_value *sy_gguf_value_of(const sy_gguf *file, const char *key); /* NULL: none */

/* One scalar by its key; *out stays as it is unless SY_OK is returned. SY_ENOTFOUND: no such key.
 * SY_EINVAL: another type, or a number that *out cannot hold: integers of any width and sign that
 * fit are taken, floats of either width, never one for the other. */
SY_MUST_USE sy_status sy_gguf_u32(uint32_t *out, const sy_gguf *file, const char *key,
                                  sy_error *err);
SY_MUST_USE sy_status sy_gguf_f32(float *out, const sy_gguf *file, const char *key, sy_error *err);
SY_MUST_USE sy_status sy_gguf_bool(int *out, const sy_gguf *file, const char *key, sy_error *err);
SY_MUST_USE sy_status sy_gguf_string_of(sy_gguf_string *out, const sy_gguf *file, const char *key,
                                        sy_error *err);
/* An array whose elements are of that kind; I32 stands for every integer kind, F32 for both kinds
 * of floats. *out lives as long as the file. */
SY_MUST_USE sy_status sy_gguf_array(const sy_gguf_value **out, const sy_gguf *file, const char *key,
                                    sy_gguf_kind kind, sy_error *err);

/* Element i < value->n. 0: it is of another kind, or does not fit. */
int sy_gguf_value_i64(int64_t *out, const sy_gguf_value *value, size_t i); /* any integer */
int sy_gguf_value_f32(float *out, const sy_gguf_value *value, size_t i);   /* F32, F64 rounded */
int sy_gguf_value_bool(int *out, const sy_gguf_value *value, size_t i);

const char *sy_gguf_kind_name(sy_gguf_kind kind); /* "u32": static */

#endif
