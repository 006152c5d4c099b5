/* quant_rows.h - products of a few tokens with weights of integer blocks: kernels/cpu only. */
#ifndef SY_QUANT_ROWS_H
#define SY_QUANT_ROWS_H

#include "cpu/sy_cpu.h"
#include "sy_quant_panel.h"

#define QUANT_ROWS_MAX 4 /* tokens */

/* The arguments of matmul_q8, as they came. */
typedef struct quant_rows_job {
    float *y;
    size_t y_stride;
    const sy_qrows *x;
    const uint32_t *x_row;
    size_t T; /* at most QUANT_ROWS_MAX */
    const sy_panels *w;
    size_t begin, end;
} quant_rows_job;

void sy_vnni_rows_q8(const quant_rows_job *job);

#endif
