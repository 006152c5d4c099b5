/* Matrices written through the plugin: packed as sy_cuda_pack.h has them, whole or in parts, by
 * several threads, however long their rows are. */
#include "ops_fixture.h"

#include <pthread.h>

typedef struct matrix_case {
    sy_backend_matrix m;
    size_t row_bytes;
    uint8_t *rows, *up; /* up: NULL of PLAIN; both begin at an odd address */
    uint8_t *want;
    uint64_t bytes;
} matrix_case;

enum { FACTOR_ROWS = 128 }; /* of FP8, which share factors */

/* Any bytes are rows of any weights, but that those of FP8 end with the factors of their 128. */
static uint8_t *rows_of(const sy_backend_matrix *m, size_t row_bytes, uint64_t seed)
{
    test_random r = {TEST_SEED + seed};
    uint8_t *rows = malloc(m->n * row_bytes + 1);

    assert_non_null(rows);
    for (size_t i = 0; i < m->n * row_bytes; i++) rows[1 + i] = (uint8_t)random_u32(&r);
    for (uint32_t i = 0; m->weights == SY_BACKEND_FP8 && i < m->n; i++) {
        const uint8_t *first = rows + 1 + i / FACTOR_ROWS * FACTOR_ROWS * row_bytes;
        memmove(rows + 1 + i * row_bytes + m->k, first + m->k, row_bytes - m->k);
    }
    return rows;
}

/* Whole, by the kernel: of BF16 there is a second opinion, sy_cuda_pack.h. */
static void pack_part(uint8_t *to, const matrix_case *c, const uint8_t *rows, sy_cuda_part part)
{
    uint8_t *aligned = aligned_alloc(64, (c->m.n * c->row_bytes + 63) / 64 * 64);

    assert_non_null(aligned);
    memcpy(aligned, rows, c->m.n * c->row_bytes);
    assert_int_equal(sy_cuda_rows_pack(to, aligned, (sy_cuda_weights)c->m.weights, part, c->m.n,
                                       c->m.k, 0, c->m.n, NULL),
                     0);
    free(aligned);
}

static void pack_bf16(const matrix_case *c)
{
    const uint32_t n = c->m.n, k = c->m.k;

    if (c->up == NULL) {
        assert_int_equal(c->bytes, sy_cuda_pack_bytes(n, k));
        sy_cuda_pack(c->want, c->rows + 1, n, k, 0, sy_cuda_row_blocks(n));
    } else {
        assert_int_equal(c->bytes, sy_cuda_gate_up_bytes(n, k));
        sy_cuda_pack_gate_up(c->want, c->rows + 1, c->up + 1, n, k, 0, sy_cuda_gate_up_blocks(n));
    }
}

static matrix_case matrix_as(uint32_t weights, uint32_t form, uint32_t n, uint32_t k)
{
    matrix_case c = {.m = {form, n, k, weights}};

    c.row_bytes = sy_cuda_row_bytes((sy_cuda_weights)weights, k);
    c.rows = rows_of(&c.m, c.row_bytes, n);
    if (form == SY_BACKEND_GATE_UP) c.up = rows_of(&c.m, c.row_bytes, n + 1);
    c.bytes = cuda->matrix_bytes(&c.m);
    c.want = aligned_alloc(64, (c.bytes + 63) / 64 * 64);
    assert_non_null(c.want);
    if (weights == SY_BACKEND_BF16) {
        pack_bf16(&c);
    } else if (c.up == NULL) {
        pack_part(c.want, &c, c.rows + 1, SY_CUDA_DOWN);
    } else {
        pack_part(c.want, &c, c.rows + 1, SY_CUDA_GATE);
        pack_part(c.want, &c, c.up + 1, SY_CUDA_UP);
    }
    return c;
}

static matrix_case matrix_of(uint32_t form, uint32_t n, uint32_t k)
{
    return matrix_as(SY_BACKEND_BF16, form, n, k);
}

static void matrix_end(matrix_case *c)
{
    free(c->rows);
    free(c->up);
    free(c->want);
}

/* At most `step` rows a call; the first result that is no success. */
static int matrix_write(const matrix_case *c, sy_backend_ref to, uint32_t step, char *reason)
{
    int result = SY_BACKEND_OK;

    for (uint32_t row = 0; row < c->m.n && result == SY_BACKEND_OK; row += step) {
        const size_t at = 1 + (size_t)row * c->row_bytes;
        const uint32_t n = SY_MIN(step, c->m.n - row);

        result = cuda->matrix_write(to, &c->m, row, n, c->rows + at,
                                    c->up == NULL ? NULL : c->up + at, reason);
    }
    return result;
}

static void matrix_check(const matrix_case *c, sy_backend_ref at)
{
    uint8_t *got = malloc(c->bytes);

    assert_non_null(got);
    ok(cuda->copy_out(got, at.buffer, at.offset, c->bytes, why));
    for (uint64_t i = 0; i < c->bytes; i++)
        if (got[i] != c->want[i])
            fail_msg("form %u, weights %u, %u by %u: byte %d of %d is %02x and not %02x", c->m.form,
                     c->m.weights, c->m.n, c->m.k, (int)i, (int)c->bytes, got[i], c->want[i]);
    free(got);
}

static void a_matrix_is_packed_whole_and_in_parts(void **state)
{
    static const uint32_t shapes[][2] = {{1, 1}, {16, 64}, {40, 70}, {65, 63}};
    opened on = opened_open(1);

    (void)state;
    for (uint32_t form = SY_BACKEND_PLAIN; form <= SY_BACKEND_GATE_UP; form++)
        for (size_t i = 0; i < SY_COUNT_OF(shapes); i++)
            for (uint32_t step = 16; step <= 128; step *= 8) {
                matrix_case c = matrix_of(form, shapes[i][0], shapes[i][1]);
                sy_backend_ref to = buffer_of(&on, NULL, 48 + c.bytes);

                to.offset = 48;
                ok(matrix_write(&c, to, step, why));
                matrix_check(&c, to);
                cuda->buffer_free(to.buffer);
                matrix_end(&c);
            }
    opened_close(&on);
}

/* Of every kind of weights, from row to row, and of all rows at once. */
static void a_matrix_of_fewer_bits_is_packed_whole_and_in_parts(void **state)
{
    static const uint32_t shapes[][2] = {{1, 1}, {40, 70}, {145, 129}, {300, 31}};
    opened on = opened_open(1);

    (void)state;
    for (uint32_t weights = SY_BACKEND_Q8; weights <= SY_BACKEND_MXFP4; weights++)
        for (size_t i = 0; i < 2 * SY_COUNT_OF(shapes); i++) {
            matrix_case c = matrix_as(weights, i % 2 == 0 ? SY_BACKEND_PLAIN : SY_BACKEND_GATE_UP,
                                      shapes[i / 2][0], shapes[i / 2][1]);
            const uint32_t step = weights == SY_BACKEND_FP8 ? FACTOR_ROWS : 16;
            sy_backend_ref to = buffer_of(&on, NULL, 48 + c.bytes);

            to.offset = 48;
            for (uint32_t times = 1; times <= 16; times *= 16) {
                ok(matrix_write(&c, to, times * step, why));
                matrix_check(&c, to);
            }
            cuda->buffer_free(to.buffer);
            matrix_end(&c);
        }
    opened_close(&on);
}

/* What the device is for: blocks of 32 with an f16, codes alone, blocks of 32 with a byte. */
static void a_matrix_takes_the_bytes_of_its_weights(void **state)
{
    static const uint64_t want[] = {[SY_BACKEND_BF16] = 4096ull * 4096 * 2,
                                    [SY_BACKEND_Q8] = 4096ull * 4096 / 32 * 34,
                                    [SY_BACKEND_Q4] = 4096ull * 4096 / 32 * 18,
                                    [SY_BACKEND_FP8] = 4096ull * 4096 + 32 * 32 * 4,
                                    [SY_BACKEND_MXFP4] = 4096ull * 4096 / 32 * 17};

    (void)state;
    for (uint32_t i = 0; i < SY_COUNT_OF(want); i++) {
        const sy_backend_matrix plain = {SY_BACKEND_PLAIN, 4096, 4096, i};
        const sy_backend_matrix gated = {SY_BACKEND_GATE_UP, 4096, 4096, i};

        assert_int_equal(cuda->matrix_bytes(&plain), want[i]);
        assert_int_equal(cuda->matrix_bytes(&gated), 2 * want[i]);
    }
}

/* More than a piece of pinned memory holds, first in rows and then in one block of rows. */
static void rows_that_do_not_fit_into_a_piece_are_written_too(void **state)
{
    static const uint32_t shapes[][3] = {{272, 2100, SY_BACKEND_BF16},
                                         {17, 33000, SY_BACKEND_BF16},
                                         {48, 70, SY_BACKEND_BF16},
                                         {272, 4200, SY_BACKEND_FP8},
                                         {20, 70000, SY_BACKEND_Q8}};
    opened on = opened_open(0);

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(shapes); i++) {
        matrix_case c = matrix_as(shapes[i][2], SY_BACKEND_PLAIN, shapes[i][0], shapes[i][1]);
        sy_backend_ref to = buffer_of(&on, NULL, c.bytes);

        ok(matrix_write(&c, to, c.m.n, why));
        matrix_check(&c, to);
        cuda->buffer_free(to.buffer);
        matrix_end(&c);
    }
    opened_close(&on);
}

typedef struct write_job {
    const matrix_case *c;
    sy_backend_ref to;
    int result;
    char why[SY_BACKEND_WHY_BYTES];
} write_job;

static void *write_matrix(void *argument)
{
    write_job *job = argument;

    for (int i = 0; i < 5 && job->result == SY_BACKEND_OK; i++)
        job->result = matrix_write(job->c, job->to, 16, job->why);
    return NULL;
}

static void matrices_are_written_by_several_threads(void **state)
{
    enum { THREADS = 3 };
    matrix_case c[THREADS] = {matrix_of(SY_BACKEND_PLAIN, 65, 63),
                              matrix_of(SY_BACKEND_GATE_UP, 40, 70),
                              matrix_of(SY_BACKEND_PLAIN, 33, 200)};
    write_job job[THREADS] = {0};
    pthread_t thread[THREADS];
    opened on = opened_open(0);
    sy_backend_ref all = buffer_of(&on, NULL, c[0].bytes + c[1].bytes + c[2].bytes);

    (void)state;
    for (int i = 0; i < THREADS; i++) {
        job[i] = (write_job){.c = &c[i], .to = all};
        all.offset += c[i].bytes;
        assert_int_equal(pthread_create(&thread[i], NULL, write_matrix, &job[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        memcpy(why, job[i].why, sizeof(why));
        ok(job[i].result);
        matrix_check(&c[i], job[i].to);
        matrix_end(&c[i]);
    }
    cuda->buffer_free(all.buffer);
    opened_close(&on);
}

static void what_is_no_part_of_a_matrix_is_refused(void **state)
{
    matrix_case c = matrix_of(SY_BACKEND_PLAIN, 40, 70),
                gated = matrix_of(SY_BACKEND_GATE_UP, 8, 8);
    opened on = opened_open(0);
    sy_backend_ref to = buffer_of(&on, NULL, c.bytes + 15), past = to, odd = to;
    const sy_backend_matrix wrong[] = {
        {2, 40, 70, 0}, {0, 40, 70, 5}, {0, 0, 70, 0}, {0, 40, 0, 1}, {0, UINT32_MAX, 1, 2}};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(wrong); i++)
        refused(cuda->matrix_write(to, &wrong[i], 0, 16, c.rows, NULL, why), SY_BACKEND_EINVAL,
                "there are forms 0 and 1, weights 0 to 4, from 1 to 1048576");
    refused(cuda->matrix_write(to, &c.m, 32, 16, c.rows, NULL, why), SY_BACKEND_EINVAL,
            "16 rows from row 32 on, and the matrix has 40");
    refused(cuda->matrix_write(to, &c.m, 48, 0, c.rows, NULL, why), SY_BACKEND_EINVAL,
            "the matrix has 40");
    refused(cuda->matrix_write(to, &c.m, 8, 16, c.rows, NULL, why), SY_BACKEND_EINVAL,
            "whole blocks of 16");
    refused(cuda->matrix_write(to, &c.m, 16, 8, c.rows, NULL, why), SY_BACKEND_EINVAL,
            "whole blocks of 16");
    refused(cuda->matrix_write(to, &c.m, 0, 16, NULL, NULL, why), SY_BACKEND_EINVAL, "rows of");
    refused(cuda->matrix_write(to, &c.m, 0, 16, c.rows, c.rows, why), SY_BACKEND_EINVAL, "rows of");
    refused(cuda->matrix_write(to, &gated.m, 0, 8, gated.rows, NULL, why), SY_BACKEND_EINVAL,
            "rows of a plain matrix, or of Gate and of Up");
    past.offset = 16;
    odd.offset = 8;
    refused(cuda->matrix_write(past, &c.m, 0, 16, c.rows, NULL, why), SY_BACKEND_EINVAL,
            "it lies inside");
    refused(cuda->matrix_write(odd, &c.m, 0, 16, c.rows, NULL, why), SY_BACKEND_EINVAL,
            "at a multiple of 16");
    odd.buffer = NULL;
    refused(cuda->matrix_write(odd, &c.m, 0, 16, c.rows, NULL, why), SY_BACKEND_EINVAL,
            "of a buffer of 0");
    assert_int_equal(cuda->matrix_bytes(&wrong[0]), 0);
    assert_int_equal(cuda->matrix_bytes(&wrong[1]), 0);
    assert_int_equal(emu_cudart_n_calls("cudaLaunchKernel"), 0);
    ok(cuda->matrix_write(to, &c.m, 0, 0, c.rows, NULL, why));
    cuda->buffer_free(to.buffer);
    opened_close(&on);
    matrix_end(&c);
    matrix_end(&gated);
}

/* The device has one factor for 128 rows by 128 inputs, and what has others is not written, nor is
 * the half that was right. */
static void rows_of_fp8_that_share_no_factors_are_refused(void **state)
{
    matrix_case c = matrix_as(SY_BACKEND_FP8, SY_BACKEND_GATE_UP, 300, 200);
    opened on = opened_open(0);
    sy_backend_ref to = buffer_of(&on, NULL, c.bytes);

    (void)state;
    ok(matrix_write(&c, to, c.m.n, why));
    refused(cuda->matrix_write(to, &c.m, 16, 128, c.rows + 1, c.up + 1, why), SY_BACKEND_EINVAL,
            "whole blocks of 128");
    c.up[1 + 290 * c.row_bytes + c.m.k + 5] ^= 1;
    refused(cuda->matrix_write(to, &c.m, 256, 44, c.rows + 1, c.up + 1 + 256 * c.row_bytes, why),
            SY_BACKEND_EINVAL, "row 290 has other factors than row 256");
    matrix_check(&c, to);
    cuda->buffer_free(to.buffer);
    opened_close(&on);
    matrix_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        PLUGIN_TEST(a_matrix_is_packed_whole_and_in_parts),
        PLUGIN_TEST(a_matrix_of_fewer_bits_is_packed_whole_and_in_parts),
        PLUGIN_TEST(a_matrix_takes_the_bytes_of_its_weights),
        PLUGIN_TEST(rows_that_do_not_fit_into_a_piece_are_written_too),
        PLUGIN_TEST(matrices_are_written_by_several_threads),
        PLUGIN_TEST(what_is_no_part_of_a_matrix_is_refused),
        PLUGIN_TEST(rows_of_fp8_that_share_no_factors_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
