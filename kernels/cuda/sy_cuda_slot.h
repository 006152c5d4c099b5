/* sy_cuda_slot.h - weights between the rows that a checkpoint or another node gives and the packed
 * form that the kernels of experts read, on the device. As sy_cuda_kernels.h: pointers are device
 * memory, calls enqueue and return 0 or an error of the launch, nothing waits. sy_cuda_pack.h says
 * how BF16 is packed, sy_cu_forms.h the others.
 *
 * A row of k inputs in row-major memory, without padding, is what sy_dtype.h says of the type of
 * that name. Rows [128 i, 128 i + 128) of a part of FP8 have the same factors: they are held once,
 * in a table behind the blocks of the packed matrix. */
#ifndef SY_CUDA_SLOT_H
#define SY_CUDA_SLOT_H

#include "sy_cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gate and up lie interleaved in one packed matrix, so that a row of either fills half a block. */
typedef enum sy_cuda_part { SY_CUDA_GATE, SY_CUDA_UP, SY_CUDA_DOWN } sy_cuda_part;

/* Bytes of the packed matrix that holds the part, a multiple of 256, tables of factors among them;
 * gate and up name the same one. n: rows of the part; k: its inputs. 0: it overflows. Host
 * arithmetic. */
size_t sy_cuda_matrix_bytes(sy_cuda_weights weights, sy_cuda_part part, uint32_t n, uint32_t k);
/* FP8: where the part's factors lie in its packed matrix, as sy_cuda_expert has them, a multiple of
 * 256; gate and up have different ones. The others have none: 0. Host arithmetic. */
size_t sy_cuda_scale_offset(sy_cuda_weights weights, sy_cuda_part part, uint32_t n, uint32_t k);
/* Bytes of one row of k inputs in row-major memory: those of sy_dtype_row_bytes. Host arithmetic.
 */
size_t sy_cuda_row_bytes(sy_cuda_weights weights, uint32_t k);

/* Packs rows [row, row + n_rows) of the part, which has n rows in all, into `packed`, the start of
 * its whole matrix; row is a multiple of 16, and n_rows too unless the part ends there. rows:
 * row-major, without padding between them, 16-byte aligned. Padding of the matrix (rows past n,
 * inputs past k) is written as zeros with the rows and inputs beside it, so a matrix of which all
 * rows were packed is wholly defined. Factors of FP8 are taken from the first of the rows that are
 * of the same 128; nobody looks whether the others have them, too. */
int sy_cuda_rows_pack(void *packed, const void *rows, sy_cuda_weights weights, sy_cuda_part part,
                      uint32_t n, uint32_t k, uint32_t row, uint32_t n_rows, void *stream);
/* The inverse: exactly the bytes that were packed, each row of FP8 with its table's factors. */
int sy_cuda_rows_unpack(void *rows, const void *packed, sy_cuda_weights weights, sy_cuda_part part,
                        uint32_t n, uint32_t k, uint32_t row, uint32_t n_rows, void *stream);

#ifdef __cplusplus
}
#endif

#endif
