/* sy_tensor.h - a tensor of a checkpoint where it lies in the mapped file, and a way to read its
 * rows whatever they are encoded as. What a file stores and what the model sees may differ: an
 * expert may be a part of a larger tensor, transposed, every second row of it, or in blocks. The
 * view says how; sy_tensor_read gives plain rows. Immutable: any thread. */
#ifndef SY_TENSOR_H
#define SY_TENSOR_H

#include "sy_dtype.h"
#include "sy_status.h"

#define SY_TENSOR_RANK_MAX 8
#define SY_TENSOR_NAME_MAX 512
#define SY_KV_B_NOPE_MAX   1024u /* width of the keys in GGUF_KV_B */

/* How the bytes of a row become elements. Block encodings read as bf16 (as f32, where bf16 would
 * lose bits that the encoding has). */
typedef enum sy_encoding {
    SY_ENCODING_PLAIN,    /* elements of dtype */
    SY_ENCODING_F8_BLOCK, /* e4m3; a block of 128 x 128 shares an fp32 factor; rounded to bf16 */
    SY_ENCODING_MXFP4, /* gpt-oss: 32 elements of e2m1 in 16 bytes, low nibble first, times 2^(s -
                          127), s a byte in a tensor of its own; exact in bf16 */
    SY_ENCODING_GGUF,  /* blocks as ggml has them; `block` says which */
    SY_ENCODING_GGUF_KV_B /* kv_b_proj as its two parts, of keys and of values */
} sy_encoding;

/* Every type of the safetensors format, so that a file with other types still opens; dtype is
 * SY_DTYPE_NONE for those that nothing reads. */
typedef struct sy_tensor {
    const char *name;       /* NUL-terminated, lives as long as the file */
    const char *dtype_name; /* "BF16", "F8_E4M3", ...: static */
    sy_dtype dtype;         /* of the elements that sy_tensor_read gives */
    uint32_t rank;
    uint64_t shape[SY_TENSOR_RANK_MAX];
    uint64_t n_elements;
    const uint8_t *data; /* inside the map; any alignment; lives as long as the file */
    uint64_t bytes;      /* that belong to it, its factors among them */
    /* How rows lie; zero for a tensor as a file lists it, whose elements are row-major. */
    sy_encoding encoding;
    uint32_t block;       /* GGUF: the number of ggml's type */
    uint64_t row_step;    /* bytes from one row to the next; 0: they follow each other */
    uint64_t column_step; /* PLAIN: bytes from one element to the next; 0: they follow each other */
    const uint8_t *scale; /* F8_BLOCK, MXFP4: the first row's factors */
    uint64_t scale_step;  /* bytes from one row of factors to the next */
    uint32_t head_rows;   /* GGUF: > 0: rows i and i + half of a head, so many in all, lie side by
                             side */
    /* GGUF_KV_B: [heads * columns, nope], each head's keys transposed, and [heads * values,
     * columns]; a head's rows here are nope of the first, then its values. `data` is the second's.
     */
    const struct sy_tensor *part[2];
} sy_tensor;

/* True when the rows lie in the file as sy_tensor_read would give them, one after the other from
 * `data` on: whoever can may then use them in place. */
int sy_tensor_is_in_place(const sy_tensor *tensor);
/* Rows [row, row + n) of a matrix, or elements of a vector, into dst: row-major elements of
 * tensor->dtype. Under sy_map_guard, as all access to a mapped file. */
void sy_tensor_read(void *dst, const sy_tensor *tensor, uint64_t row, uint64_t n);
/* Bytes of one row (an element of a vector) as sy_tensor_read gives it. */
size_t sy_tensor_row_bytes(const sy_tensor *tensor);
/* The type whose rows have the very numbers that the file has encoded, before anything is rounded:
 * SY_FP8 (F8_BLOCK, which is always a whole tensor, so that its blocks begin with its rows),
 * SY_MXFP4 (MXFP4, and GGUF's); SY_DTYPE_NONE: it is not encoded so. */
sy_dtype sy_tensor_encoded(const sy_tensor *tensor);
/* As sy_tensor_read, rows of dtype: tensor->dtype, or what sy_tensor_encoded says. */
void sy_tensor_read_as(void *dst, const sy_tensor *tensor, sy_dtype dtype, uint64_t row,
                       uint64_t n);

/* Bytes of the file from `data` on within which its elements lie, those of others among them where
 * rows have gaps. */
uint64_t sy_tensor_span(const sy_tensor *tensor);

/* The tensor's bytes have been copied elsewhere: its whole pages leave this process's memory, and
 * come back from the file if they are read again. Any thread. */
void sy_tensor_release(const sy_tensor *tensor);
/* The same for rows [row, row + n), as far as they are whole pages that no other row shares. */
void sy_tensor_release_rows(const sy_tensor *tensor, uint64_t row, uint64_t n);
/* The same for bytes [begin, end) of the file's tensor. */
void sy_tensor_release_part(const sy_tensor *tensor, uint64_t begin, uint64_t end);

#endif
