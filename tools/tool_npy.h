/* tool_npy.h - NumPy's .npy files of two dimensions: what users bring hidden states in and take
 * results out with. Pure apart from the two calls that take a path; knows nothing of models.
 * Format: numpy/lib/format.py, versions 1.0 and 2.0. */
#ifndef TOOL_NPY_H
#define TOOL_NPY_H

#include "sy_buf.h"
#include "sy_dtype.h"

typedef struct tool_npy {
    sy_dtype dtype; /* '<f4' SY_F32, '<f2' SY_F16, '<u2' SY_BF16 */
    uint64_t rows, cols;
    const void *data; /* rows*cols elements in C order, any alignment */
    char *file;       /* what data points into; NULL when it was parsed in place */
} tool_npy;

/* Bytes of a whole file; out->data points into them. NumPy has no bf16: with bf16 set, an array of
 * uint16 holds its bits, without it such an array is refused. SY_EINVAL says what is wrong and,
 * where there is one, the NumPy call that puts it right. */
SY_MUST_USE sy_status tool_npy_parse(tool_npy *out, const void *bytes, size_t n, int bf16,
                                     sy_error *err);
/* The same from a file, ended with tool_npy_free; every message begins with the path. */
SY_MUST_USE sy_status tool_npy_read(tool_npy *out, const char *path, int bf16, sy_error *err);
void tool_npy_free(tool_npy *npy); /* accepts a zeroed one */

typedef struct tool_npy_shape {
    sy_dtype dtype; /* SY_BF16 is written as '<u2' */
    uint64_t rows, cols;
} tool_npy_shape;
/* pieces, one after another, are the rows*cols elements. SY_EINVAL: they are more or fewer. */
SY_MUST_USE sy_status tool_npy_write(const char *path, tool_npy_shape shape, const sy_iov *pieces,
                                     size_t n_pieces, sy_error *err);

#endif
