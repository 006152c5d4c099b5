/* sy_trunk_device_test.h - the layer that every build knows, between the files that make its
 * weights, have a GPU compute it, and say what must come out. */
#ifndef SY_TRUNK_DEVICE_TEST_H
#define SY_TRUNK_DEVICE_TEST_H

#include "sy_trunk_device.h"

enum { TEST_SEQUENCES = 2, TEST_ROWS = 21, TEST_HIDDEN = 72, TEST_FFN = 40, TEST_VOCAB = 32 };

/* Matrices and vectors, made up by a hash of their number and the element's. */
typedef enum test_weight {
    TEST_EMBED,
    TEST_Q,
    TEST_K,
    TEST_V,
    TEST_O,
    TEST_Q_A,
    TEST_KEY_UP, /* of all heads, one behind the other; as the next */
    TEST_VALUE_UP,
    TEST_GATE,
    TEST_UP,
    TEST_DOWN,
    TEST_NORM1, /* vectors around 1 from here on */
    TEST_NORM2,
    TEST_Q_NORM,
    TEST_K_NORM,
    TEST_Q_A_NORM,
    TEST_KV_A_NORM,
    TEST_NORM1_BIAS, /* around 0 */
    TEST_NORM2_BIAS,
    TEST_Q_BIAS,
    TEST_K_BIAS,
    TEST_V_BIAS,
    TEST_O_BIAS,
    TEST_SINKS,
    TEST_MIX
} test_weight;
/* Element (i, j) of a matrix with k columns, of bf16's values, so sized that its products are about
 * as large as what they are of; element i of a vector has j = 0, k = 1. */
float trunk_test_weight(test_weight weight, uint32_t i, uint32_t j, uint32_t k);
/* All n rows of a matrix in that type, and their values, [n,k]; fp8 and mxfp4 with factors that
 * differ. rows: n times sy_dtype_row_bytes. 0: no memory. */
int trunk_test_make(uint8_t *rows, float *value, test_weight weight, sy_dtype dtype, uint32_t n,
                    uint32_t k);

/* What of a row is looked at, in the order in which it is made. */
typedef enum test_stage {
    TEST_EMBEDDED,
    TEST_NORMED,
    TEST_QUERIES,
    TEST_KEYS,
    TEST_VALUES,   /* not with MLA; these two alone with MLA */
    TEST_ABSORBED, /* queries in the latents' space */
    TEST_ATTENDED,
    TEST_RAISED, /* values of latents; MLA */
    TEST_ADDED,  /* what attention gave, to the row */
    TEST_INPUT,  /* of the MLP, and of experts */
    TEST_MLP,    /* added as well */
    TEST_STAGES
} test_stage;

typedef struct device_test {
    sy_trunk trunk; /* one layer of the model's forms, small elsewhere */
    struct trunk_device device;
    device_layer layer;
    sy_trunk_ws *ws;
    sy_kv *kv;
    sy_kv_seq seq[TEST_SEQUENCES];
    sy_backend_buffer *memory[TEST_MIX + 1];
    float *value[TEST_MIX + 1];        /* of matrices, as the device has them */
    uint32_t width[TEST_STAGES];       /* of a row; 0: there is no such stage */
    float *first[TEST_STAGES];         /* [TEST_ROWS, width], as computed in one batch */
    float *again[TEST_STAGES];         /* and in several */
    sy_backend_ref place[TEST_STAGES]; /* where the workspace has it */
    uint32_t position[TEST_ROWS];      /* of a row: */
    uint32_t sequence[TEST_ROWS];
} device_test;

/* want: [width], what the stage must give for that row, from what the device gave before. */
void trunk_test_want(double *want, const device_test *t, test_stage stage, uint32_t row);

#endif
