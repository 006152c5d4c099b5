/* sy_tensor.c - rows out of whatever a file stores. Offsets stay within the tensor's bytes because
 * whoever made the view (sy_model_bind.c) checked its shape against them. */
#include "sy_tensor.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sy_gguf_block.h"

enum { F8_BLOCK = 128, FP4_BLOCK = 32, FP4_BLOCK_BYTES = FP4_BLOCK / 2 };

static uint64_t columns_of(const sy_tensor *t)
{
    uint64_t n = 1;

    for (uint32_t d = 1; d < t->rank; d++) n *= t->shape[d];
    return n;
}

size_t sy_tensor_row_bytes(const sy_tensor *tensor)
{
    return sy_dtype_row_bytes(tensor->dtype, columns_of(tensor));
}

int sy_tensor_is_in_place(const sy_tensor *tensor)
{
    const uint64_t row_bytes = sy_tensor_row_bytes(tensor);

    return tensor->encoding == SY_ENCODING_PLAIN &&
           (tensor->row_step == 0 || tensor->row_step == row_bytes) &&
           (tensor->column_step == 0 || tensor->column_step == sy_dtype_bytes(tensor->dtype));
}

static uint64_t row_step_of(const sy_tensor *t)
{
    return t->row_step != 0 ? t->row_step : sy_tensor_row_bytes(t);
}

/* Column after column: in a transposed matrix the rows of one column lie side by side. */
static void gather(uint8_t *dst, const sy_tensor *t, uint64_t row, uint64_t n)
{
    const size_t element = sy_dtype_bytes(t->dtype), row_bytes = sy_tensor_row_bytes(t);
    const uint64_t columns = columns_of(t), row_step = row_step_of(t);

    for (uint64_t c = 0; c < columns; c++) {
        const uint8_t *src = t->data + c * t->column_step + row * row_step;

        for (uint64_t r = 0; r < n; r++)
            memcpy(dst + r * row_bytes + c * element, src + r * row_step, element);
    }
}

static void read_plain(uint8_t *dst, const sy_tensor *t, uint64_t row, uint64_t n)
{
    const size_t row_bytes = sy_tensor_row_bytes(t);

    if (sy_tensor_is_in_place(t)) {
        memcpy(dst, t->data + row * row_bytes, n * row_bytes);
    } else if (t->column_step != 0 && t->column_step != sy_dtype_bytes(t->dtype)) {
        gather(dst, t, row, n);
    } else {
        for (uint64_t r = 0; r < n; r++)
            memcpy(dst + r * row_bytes, t->data + (row + r) * t->row_step, row_bytes);
    }
}

/* As transformers has it: the product in fp32, rounded to bf16. */
static void read_f8_row(uint16_t *dst, const sy_tensor *t, uint64_t row)
{
    const uint64_t columns = columns_of(t);
    const uint8_t *code = t->data + row * columns;
    const uint8_t *factors = t->scale + row / F8_BLOCK * t->scale_step;

    for (uint64_t c = 0; c < columns; c++) {
        float factor;

        memcpy(&factor, factors + c / F8_BLOCK * sizeof(factor), sizeof(factor));
        dst[c] = sy_f32_to_bf16(sy_f8_e4m3_to_f32(code[c]) * factor);
    }
}

/* 2^(b - 127), a NaN for 255. */
static float e8m0(uint8_t b)
{
    const uint32_t bits = b == 0 ? 0x400000 : b == 255 ? 0x7fc00000 : (uint32_t)b << 23;
    float v;

    memcpy(&v, &bits, sizeof(v));
    return v;
}

static void read_fp4_row(uint16_t *dst, const sy_tensor *t, uint64_t row)
{
    const uint8_t *code = t->data + row * row_step_of(t), *scale = t->scale + row * t->scale_step;

    for (uint64_t c = 0; c < columns_of(t); c++) {
        const uint8_t pair = code[c / 2];
        const unsigned nibble = c % 2 == 0 ? pair & 15u : (unsigned)pair >> 4;

        dst[c] = sy_f32_to_bf16(sy_fp4_to_f32(nibble) * e8m0(scale[c / FP4_BLOCK]));
    }
}

/* ---- GGUF ---- */

/* Elements [0, n) of row `row` of the matrix as the file has it. */
static void read_gguf_row(uint8_t *dst, const sy_tensor *t, uint64_t row)
{
    enum { PIECE = 256 }; /* whole blocks of any type */
    const uint8_t *src = t->data + row * t->row_step;
    const uint64_t columns = columns_of(t);
    float piece[PIECE];

    if (t->dtype != SY_BF16 || t->block == SY_GGUF_BF16) {
        memcpy(dst, src, sy_tensor_row_bytes(t)); /* a type that is kept as it is */
        return;
    }
    for (uint64_t c = 0; c < columns; c += PIECE) {
        const uint64_t n = SY_MIN(columns - c, (uint64_t)PIECE);

        sy_gguf_decode(piece, src + sy_gguf_row_bytes(t->block, c), t->block, n);
        for (uint64_t i = 0; i < n; i++) {
            const uint16_t half = sy_f32_to_bf16(piece[i]);
            memcpy(dst + (c + i) * sizeof(half), &half, sizeof(half));
        }
    }
}

/* Where the file has row `row`: of a head, row half * (n / 2) + i is its row 2 i + half. */
static uint64_t gguf_row_of(const sy_tensor *t, uint64_t row)
{
    if (t->head_rows == 0) return row;
    const uint64_t within = row % t->head_rows, pairs = t->head_rows / 2;
    return row - within + 2 * (within % pairs) + within / pairs;
}

/* Keys of a head: column c of its rows [first, first + n) is a part of row c of the first part. */
static void read_keys(uint8_t *dst, const sy_tensor *t, uint64_t head, uint64_t first, uint64_t n)
{
    const sy_tensor *keys = t->part[0];
    const size_t element = sy_dtype_bytes(t->dtype), row_bytes = sy_tensor_row_bytes(t);
    const uint64_t columns = columns_of(t);
    uint8_t row[SY_KV_B_NOPE_MAX * sizeof(float)];

    for (uint64_t c = 0; c < columns; c++) {
        read_gguf_row(row, keys, head * columns + c);
        for (uint64_t r = 0; r < n; r++)
            memcpy(dst + r * row_bytes + c * element, row + (first + r) * element, element);
    }
}

static void read_kv_b(uint8_t *dst, const sy_tensor *t, uint64_t row, uint64_t n)
{
    const uint64_t nope = columns_of(t->part[0]), columns = columns_of(t);
    const uint64_t heads = t->part[0]->shape[0] / columns, values = t->part[1]->shape[0] / heads;
    const size_t row_bytes = sy_tensor_row_bytes(t);

    for (uint64_t r = row; r < row + n;) {
        const uint64_t head = r / (nope + values), within = r % (nope + values);
        uint64_t n_here = 1;

        if (within < nope) {
            n_here = SY_MIN(nope - within, row + n - r);
            read_keys(dst, t, head, within, n_here);
        } else {
            read_gguf_row(dst, t->part[1], head * values + within - nope);
        }
        dst += n_here * row_bytes;
        r += n_here;
    }
}

void sy_tensor_read(void *dst, const sy_tensor *tensor, uint64_t row, uint64_t n)
{
    const size_t row_bytes = sy_tensor_row_bytes(tensor);
    uint8_t *out = dst;

    if (tensor->encoding == SY_ENCODING_PLAIN) {
        read_plain(out, tensor, row, n);
        return;
    }
    if (tensor->encoding == SY_ENCODING_GGUF_KV_B) {
        read_kv_b(out, tensor, row, n);
        return;
    }
    for (uint64_t r = 0; r < n; r++, out += row_bytes) {
        if (tensor->encoding == SY_ENCODING_F8_BLOCK)
            read_f8_row((uint16_t *)(void *)out, tensor, row + r);
        else if (tensor->encoding == SY_ENCODING_MXFP4)
            read_fp4_row((uint16_t *)(void *)out, tensor, row + r);
        else
            read_gguf_row(out, tensor, gguf_row_of(tensor, row + r));
    }
}

/* ---- encoded rows ---- */

sy_dtype sy_tensor_encoded(const sy_tensor *tensor)
{
    switch (tensor->encoding) {
    case SY_ENCODING_F8_BLOCK: return SY_FP8;
    case SY_ENCODING_MXFP4: return SY_MXFP4;
    case SY_ENCODING_GGUF: return tensor->block == SY_GGUF_MXFP4 ? SY_MXFP4 : SY_DTYPE_NONE;
    default: return SY_DTYPE_NONE;
    }
}

/* A block of GGUF's: its byte of the factor, then elements 0 to 15 in low and 16 to 31 in high
 * nibbles. ggml knows no -0, and no NaN: a factor of 2^128, which floats do not have, is taken as
 * 2^127 of twice the numbers, so that 0.5 is 1 and all above 0.5 are infinite, as ggml has them. */
static void turn_fp4_block(uint8_t *code, uint8_t *scale, const uint8_t *in)
{
    static const uint8_t as_they_are[16] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 9, 10, 11, 12, 13, 14, 15};
    static const uint8_t doubled[16] = {0, 2, 7, 7, 7, 7, 7, 7, 0, 10, 15, 15, 15, 15, 15, 15};
    const uint8_t *code_of = in[0] == 255 ? doubled : as_they_are;

    for (int i = 0; i < FP4_BLOCK_BYTES; i++) {
        const uint8_t *pair = in + 1 + 2 * i % FP4_BLOCK_BYTES;
        const int shift = i < FP4_BLOCK_BYTES / 2 ? 0 : 4;

        code[i] = (uint8_t)(code_of[pair[0] >> shift & 15] | code_of[pair[1] >> shift & 15] << 4);
    }
    *scale = in[0] == 255 ? 254 : in[0];
}

static void read_encoded_row(uint8_t *dst, const sy_tensor *t, uint64_t row)
{
    const uint64_t columns = columns_of(t), groups = columns / FP4_BLOCK;

    if (t->encoding == SY_ENCODING_F8_BLOCK) {
        memcpy(dst, t->data + row * columns, columns);
        memcpy(dst + columns, t->scale + row / F8_BLOCK * t->scale_step,
               (columns + F8_BLOCK - 1) / F8_BLOCK * sizeof(float));
    } else if (t->encoding == SY_ENCODING_MXFP4) {
        memcpy(dst, t->data + row * row_step_of(t), groups * FP4_BLOCK_BYTES);
        memcpy(dst + groups * FP4_BLOCK_BYTES, t->scale + row * t->scale_step, groups);
    } else {
        const uint8_t *in = t->data + gguf_row_of(t, row) * t->row_step;

        for (uint64_t g = 0; g < groups; g++)
            turn_fp4_block(dst + g * FP4_BLOCK_BYTES, dst + groups * FP4_BLOCK_BYTES + g,
                           in + g * (1 + FP4_BLOCK_BYTES));
    }
}

void sy_tensor_read_as(void *dst, const sy_tensor *tensor, sy_dtype dtype, uint64_t row, uint64_t n)
{
    const size_t row_bytes = sy_dtype_row_bytes(dtype, columns_of(tensor));
    uint8_t *out = dst;

    if (dtype == tensor->dtype) {
        sy_tensor_read(dst, tensor, row, n);
        return;
    }
    SY_ASSERT(dtype != SY_DTYPE_NONE && dtype == sy_tensor_encoded(tensor));
    for (uint64_t r = 0; r < n; r++, out += row_bytes) read_encoded_row(out, tensor, row + r);
}

/* ---- pages ---- */

/* Not a byte further than the last element's: what is mapped behind the file may be anybody's
 * memory. */
uint64_t sy_tensor_span(const sy_tensor *t)
{
    const uint64_t rows = t->rank > 0 ? t->shape[0] : 1, columns = columns_of(t);
    const uint64_t element = sy_dtype_bytes(t->dtype);

    if (rows == 0 || columns == 0) return 0;
    switch (t->encoding) {
    case SY_ENCODING_F8_BLOCK: return rows * columns;
    case SY_ENCODING_MXFP4: return (rows - 1) * t->row_step + columns / FP4_BLOCK * FP4_BLOCK_BYTES;
    case SY_ENCODING_PLAIN:
        if (element == 0) return (rows - 1) * row_step_of(t) + sy_tensor_row_bytes(t);
        return (rows - 1) * row_step_of(t) + element +
               (columns - 1) * (t->column_step == 0 ? element : t->column_step);
    case SY_ENCODING_GGUF_KV_B: return t->part[1]->bytes; /* where `data` lies */
    default: return t->bytes;
    }
}

static void release(const uint8_t *begin, const uint8_t *end)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = ((uintptr_t)begin + page - 1) / page * page;
    const uintptr_t last = (uintptr_t)end / page * page;

    if (first < last)
        madvise((void *)first, last - first, MADV_DONTNEED); /* only advice: failure costs memory */
}

void sy_tensor_release(const sy_tensor *tensor)
{
    if (tensor->encoding == SY_ENCODING_GGUF_KV_B) sy_tensor_release(tensor->part[0]);
    release(tensor->data, tensor->data + sy_tensor_span(tensor));
}

void sy_tensor_release_rows(const sy_tensor *tensor, uint64_t row, uint64_t n)
{
    /* Rows of a transposed matrix share all of their pages. */
    if (tensor->encoding == SY_ENCODING_PLAIN && tensor->column_step != 0 &&
        tensor->column_step != sy_dtype_bytes(tensor->dtype))
        return;
    if (tensor->encoding == SY_ENCODING_GGUF_KV_B || tensor->head_rows > 0) return;
    const uint64_t step =
        tensor->encoding == SY_ENCODING_F8_BLOCK ? columns_of(tensor) : row_step_of(tensor);
    release(tensor->data + row * step,
            tensor->data + SY_MIN((row + n) * step, sy_tensor_span(tensor)));
}

void sy_tensor_release_part(const sy_tensor *tensor, uint64_t begin, uint64_t end)
{
    release(tensor->data + begin, tensor->data + end);
}
