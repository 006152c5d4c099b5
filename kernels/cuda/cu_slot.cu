/* cu_slot.cu - weights between row-major memory and the packed matrices that the kernels of experts
 * read. Packing: a thread for 16 bytes of a block, so that a warp writes whole lines; what it reads
 * lies in pieces, which are all used by its neighbours and wait for them in L1. Unpacking: a thread
 * for 16 bytes of the rows. Factors that are shared by rows lie in a table behind the blocks. */
#include "sy_cu_slot_forms.h"
#include "sy_cuda_slot.h"

enum { THREADS = 128 };
static const uint32_t GRID_Y_MAX = 65535; /* which CUDA sets */
static const int INVALID_VALUE = 1;       /* cudaErrorInvalidValue */

/* One call: rows [row, row + n_rows) of a part that has n of k inputs. */
struct sy_cu_slot {
    uint8_t *packed;
    uint8_t *rows; /* of which packing only reads */
    sy_cuda_part part;
    uint32_t n, k, row, n_rows;
};

/* ---- sizes ---- */

static uint32_t row_blocks(sy_cuda_part part, uint32_t n)
{
    if (part == SY_CUDA_DOWN) return n / 16 + (n % 16 != 0);
    return (n / 64 + (n % 64 != 0)) * 8;
}

template <class Form> static uint32_t blocks_along(uint32_t k)
{
    return k / Form::BLOCK_K + (k % Form::BLOCK_K != 0);
}

/* Of all blocks, filled up to a multiple of 256. */
template <class Form> static size_t blocks_bytes(sy_cuda_part part, uint32_t n, uint32_t k)
{
    const size_t n_blocks = (size_t)row_blocks(part, n) * blocks_along<Form>(k);
    size_t bytes;

    if (__builtin_mul_overflow(n_blocks, (size_t)Form::CHUNKS * SY_CU_CHUNK, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)255, &bytes))
        return 0;
    return bytes / 256 * 256;
}

/* Of the factors of one part, filled up likewise; too few to overflow. */
template <class Form> static size_t table_bytes(uint32_t n, uint32_t k)
{
    const size_t n_blocks = n / SY_CU_TABLE_ROWS + (n % SY_CU_TABLE_ROWS != 0);

    if (Form::FACTORS_INSIDE) return 0;
    return (n_blocks * blocks_along<Form>(k) * sizeof(float) + 255) / 256 * 256;
}

/* Gate's table, then Up's. */
template <class Form> static size_t table_offset(sy_cuda_part part, uint32_t n, uint32_t k)
{
    if (Form::FACTORS_INSIDE) return 0;
    return blocks_bytes<Form>(part, n, k) + (part == SY_CUDA_UP ? table_bytes<Form>(n, k) : 0);
}

template <class Form> static size_t matrix_bytes(sy_cuda_part part, uint32_t n, uint32_t k)
{
    const size_t blocks = blocks_bytes<Form>(part, n, k);
    const size_t tables = table_bytes<Form>(n, k) * (part == SY_CUDA_DOWN ? 1 : 2);
    size_t bytes;

    if (blocks == 0 || __builtin_add_overflow(blocks, tables, &bytes)) return 0;
    return bytes;
}

/* ---- packing ---- */

/* The eight rows of the part from which a block gets half h; a block of gate and up gets one half
 * from either. */
static __device__ __forceinline__ uint32_t first_row(const sy_cu_slot &s, uint32_t block,
                                                     uint32_t h)
{
    return s.part == SY_CUDA_DOWN ? block * 16 + h * 8 : block * 8;
}

/* Grid: (row blocks, blocks along k, or as many as there may be). tail: 16 bytes each, behind the
 * last row block. */
template <class Form>
__global__ void __launch_bounds__(THREADS)
    pack_kernel(sy_cu_slot s, uint32_t first_block, uint32_t k_blocks, size_t row_bytes,
                uint32_t tail)
{
    const uint32_t block = first_block + blockIdx.x;
    uint32_t *blocks = reinterpret_cast<uint32_t *>(s.packed + (size_t)block * k_blocks *
                                                                   (Form::CHUNKS * SY_CU_CHUNK));
    const uint32_t from = s.part == SY_CUDA_UP ? 1 : 0, step = s.part == SY_CUDA_DOWN ? 1 : 2;

    for (uint32_t j = blockIdx.y; j < k_blocks; j += gridDim.y)
        for (uint32_t c = threadIdx.x; c < Form::CHUNKS; c += THREADS)
            for (uint32_t w = from; w < 4; w += step) {
                const uint32_t row = first_row(s, block, w % 2) + Form::row_in_half(c, w);
                uint32_t v = 0;
                if (row < s.n) v = Form::word(s.rows + (row - s.row) * row_bytes, s.k, j, c, w);
                blocks[((size_t)j * Form::CHUNKS + c) * 4 + w] = v;
            }
    if (blockIdx.x + 1 == gridDim.x && blockIdx.y == 0 && threadIdx.x < tail * 4)
        blocks[(size_t)k_blocks * Form::CHUNKS * 4 + threadIdx.x] = 0;
}

/* The factors of one block of rows, from the first of them that is there; all of them have the
 * same. Grid: the blocks that the rows are of. tail: words behind the last block. */
template <class Form>
__global__ void __launch_bounds__(THREADS)
    pack_table_kernel(uint32_t *table, sy_cu_slot s, uint32_t k_blocks, size_t row_bytes,
                      uint32_t tail)
{
    const uint32_t block = s.row / SY_CU_TABLE_ROWS + blockIdx.x;
    const uint32_t n_before = blockIdx.x == 0 ? 0 : block * SY_CU_TABLE_ROWS - s.row;
    const uint8_t *from = s.rows + n_before * row_bytes;
    uint32_t *to = table + (size_t)block * k_blocks;

    for (uint32_t j = threadIdx.x; j < k_blocks; j += THREADS) to[j] = Form::factor(from, s.k, j);
    if (blockIdx.x + 1 == gridDim.x && threadIdx.x < tail) to[k_blocks + threadIdx.x] = 0;
}

template <class Form> static int launch_pack_table(const sy_cu_slot &s, void *stream)
{
    const uint32_t k_blocks = blocks_along<Form>(s.k), last = s.row + s.n_rows - 1;
    const uint32_t n_blocks = last / SY_CU_TABLE_ROWS + 1;
    const size_t used = (size_t)n_blocks * k_blocks * sizeof(float);
    const size_t tail = last + 1 == s.n ? table_bytes<Form>(s.n, s.k) - used : 0;
    uint8_t *table = s.packed + table_offset<Form>(s.part, s.n, s.k);

    return SY_LAUNCH((pack_table_kernel<Form>), dim3(n_blocks - s.row / SY_CU_TABLE_ROWS),
                     dim3(THREADS), stream, reinterpret_cast<uint32_t *>(table), s, k_blocks,
                     Form::row_bytes(s.k), (uint32_t)(tail / sizeof(float)));
}

/* Blocks [first, end): those of the rows, and after the last row those that are padding alone. */
template <class Form> static int launch_pack(const sy_cu_slot &s, void *stream)
{
    const uint32_t rows_a_block = s.part == SY_CUDA_DOWN ? 16 : 8;
    const uint32_t n_blocks = row_blocks(s.part, s.n), k_blocks = blocks_along<Form>(s.k);
    const bool is_end = s.n - s.row == s.n_rows;
    const uint32_t first = s.row / rows_a_block;
    const uint32_t end = is_end ? n_blocks : (s.row + s.n_rows) / rows_a_block;
    const size_t used = (size_t)n_blocks * k_blocks * (Form::CHUNKS * SY_CU_CHUNK);
    const size_t tail = is_end ? blocks_bytes<Form>(s.part, s.n, s.k) - used : 0;
    int error;

    if (first == end || k_blocks == 0) return 0;
    error =
        SY_LAUNCH((pack_kernel<Form>),
                  dim3(end - first, k_blocks < GRID_Y_MAX ? k_blocks : GRID_Y_MAX), dim3(THREADS),
                  stream, s, first, k_blocks, Form::row_bytes(s.k), (uint32_t)(tail / SY_CU_CHUNK));
    if constexpr (!Form::FACTORS_INSIDE)
        if (error == 0 && s.n_rows > 0) error = launch_pack_table<Form>(s, stream);
    return error;
}

/* ---- unpacking ---- */

/* The rows are one run of bytes, of which the last chunk may be short. table: of factors, where the
 * form has one; the codes before them are bytes then. */
template <class Form>
__global__ void __launch_bounds__(THREADS)
    unpack_kernel(sy_cu_slot s, const uint8_t *table, uint32_t k_blocks, size_t row_bytes)
{
    const size_t n_bytes = s.n_rows * row_bytes;
    const size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * SY_CU_CHUNK;
    const size_t end = at + SY_CU_CHUNK < n_bytes ? at + SY_CU_CHUNK : n_bytes;
    const uint32_t rows_a_block = s.part == SY_CUDA_DOWN ? 16 : 8;
    const uint32_t up = s.part == SY_CUDA_UP ? 8 : 0;
    size_t row = at / row_bytes, b = at % row_bytes;

    for (size_t i = at; i < end; i++) {
        const size_t in_part = s.row + row;
        const uint8_t *blocks =
            s.packed + in_part / rows_a_block * k_blocks * (Form::CHUNKS * SY_CU_CHUNK);
        if (!Form::FACTORS_INSIDE && b >= s.k)
            s.rows[i] = table[in_part / SY_CU_TABLE_ROWS * k_blocks * sizeof(float) + (b - s.k)];
        else
            s.rows[i] = Form::byte(blocks, (uint32_t)(in_part % rows_a_block) + up, s.k, b);
        if (++b == row_bytes) {
            b = 0;
            row++;
        }
    }
}

template <class Form> static int launch_unpack(const sy_cu_slot &s, void *stream)
{
    const size_t row_bytes = Form::row_bytes(s.k);
    const size_t n_chunks = (s.n_rows * row_bytes + SY_CU_CHUNK - 1) / SY_CU_CHUNK;

    if (n_chunks == 0) return 0;
    return SY_LAUNCH((unpack_kernel<Form>), dim3((unsigned)((n_chunks + THREADS - 1) / THREADS)),
                     dim3(THREADS), stream, s, s.packed + table_offset<Form>(s.part, s.n, s.k),
                     blocks_along<Form>(s.k), row_bytes);
}

/* ---- calls ---- */

extern "C" size_t sy_cuda_matrix_bytes(sy_cuda_weights weights, sy_cuda_part part, uint32_t n,
                                       uint32_t k)
{
    switch (weights) {
    case SY_CUDA_BF16: return matrix_bytes<sy_cu_bf16_rows>(part, n, k);
    case SY_CUDA_Q8: return matrix_bytes<sy_cu_q8_rows>(part, n, k);
    case SY_CUDA_Q4: return matrix_bytes<sy_cu_q4_rows>(part, n, k);
    case SY_CUDA_FP8: return matrix_bytes<sy_cu_fp8_rows>(part, n, k);
    case SY_CUDA_MXFP4: return matrix_bytes<sy_cu_mxfp4_rows>(part, n, k);
    default: return 0;
    }
}

extern "C" size_t sy_cuda_row_bytes(sy_cuda_weights weights, uint32_t k)
{
    switch (weights) {
    case SY_CUDA_BF16: return sy_cu_bf16_rows::row_bytes(k);
    case SY_CUDA_Q8: return sy_cu_q8_rows::row_bytes(k);
    case SY_CUDA_Q4: return sy_cu_q4_rows::row_bytes(k);
    case SY_CUDA_FP8: return sy_cu_fp8_rows::row_bytes(k);
    case SY_CUDA_MXFP4: return sy_cu_mxfp4_rows::row_bytes(k);
    default: return 0;
    }
}

extern "C" size_t sy_cuda_scale_offset(sy_cuda_weights weights, sy_cuda_part part, uint32_t n,
                                       uint32_t k)
{
    return weights == SY_CUDA_FP8 ? table_offset<sy_cu_fp8_rows>(part, n, k) : 0;
}

extern "C" int sy_cuda_rows_pack(void *packed, const void *rows, sy_cuda_weights weights,
                                 sy_cuda_part part, uint32_t n, uint32_t k, uint32_t row,
                                 uint32_t n_rows, void *stream)
{
    const sy_cu_slot s = {static_cast<uint8_t *>(packed),
                          static_cast<uint8_t *>(const_cast<void *>(rows)),
                          part,
                          n,
                          k,
                          row,
                          n_rows};

    switch (weights) {
    case SY_CUDA_BF16: return launch_pack<sy_cu_bf16_rows>(s, stream);
    case SY_CUDA_Q8: return launch_pack<sy_cu_q8_rows>(s, stream);
    case SY_CUDA_Q4: return launch_pack<sy_cu_q4_rows>(s, stream);
    case SY_CUDA_FP8: return launch_pack<sy_cu_fp8_rows>(s, stream);
    case SY_CUDA_MXFP4: return launch_pack<sy_cu_mxfp4_rows>(s, stream);
    default: return INVALID_VALUE;
    }
}

extern "C" int sy_cuda_rows_unpack(void *rows, const void *packed, sy_cuda_weights weights,
                                   sy_cuda_part part, uint32_t n, uint32_t k, uint32_t row,
                                   uint32_t n_rows, void *stream)
{
    const sy_cu_slot s = {static_cast<uint8_t *>(const_cast<void *>(packed)),
                          static_cast<uint8_t *>(rows),
                          part,
                          n,
                          k,
                          row,
                          n_rows};

    switch (weights) {
    case SY_CUDA_BF16: return launch_unpack<sy_cu_bf16_rows>(s, stream);
    case SY_CUDA_Q8: return launch_unpack<sy_cu_q8_rows>(s, stream);
    case SY_CUDA_Q4: return launch_unpack<sy_cu_q4_rows>(s, stream);
    case SY_CUDA_FP8: return launch_unpack<sy_cu_fp8_rows>(s, stream);
    case SY_CUDA_MXFP4: return launch_unpack<sy_cu_mxfp4_rows>(s, stream);
    default: return INVALID_VALUE;
    }
}
