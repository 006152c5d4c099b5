/* Matrices written through the plugin: packed as sy_cuda_pack.h has them, whole or in parts, by
 * several threads, however long their rows are. */
#include "ops_fixture.h"

#include <pthread.h>

typedef struct matrix_case {
    sy_backend_matrix m;
    uint8_t *rows, *up; /* up: NULL of PLAIN; both begin at an odd address */
    uint8_t *want;
    uint64_t bytes;
} matrix_case;

static uint8_t *rows_of(uint32_t n, uint32_t k, uint64_t seed)
{
    test_random r = {TEST_SEED + seed};
    uint8_t *rows = malloc((size_t)n * k * 2 + 1);

    assert_non_null(rows);
    for (size_t i = 0; i < (size_t)n * k; i++) {
        const uint16_t v = sy_f32_to_bf16(random_unit(&r));
        memcpy(rows + 1 + 2 * i, &v, 2);
    }
    return rows;
}

static matrix_case matrix_of(uint32_t form, uint32_t n, uint32_t k)
{
    matrix_case c = {.m = {form, n, k}, .rows = rows_of(n, k, n)};

    c.bytes = cuda->matrix_bytes(&c.m);
    if (form == SY_BACKEND_GATE_UP) {
        assert_int_equal(c.bytes, sy_cuda_gate_up_bytes(n, k));
        c.up = rows_of(n, k, n + 1);
        c.want = malloc(c.bytes);
        assert_non_null(c.want);
        sy_cuda_pack_gate_up(c.want, c.rows + 1, c.up + 1, n, k, 0, sy_cuda_gate_up_blocks(n));
    } else {
        assert_int_equal(c.bytes, sy_cuda_pack_bytes(n, k));
        c.want = malloc(c.bytes);
        assert_non_null(c.want);
        sy_cuda_pack(c.want, c.rows + 1, n, k, 0, sy_cuda_row_blocks(n));
    }
    return c;
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
        const size_t at = 1 + (size_t)row * c->m.k * 2;
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
            fail_msg("form %u, %u by %u: byte %d of %d is %02x and not %02x", c->m.form, c->m.n,
                     c->m.k, (int)i, (int)c->bytes, got[i], c->want[i]);
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

/* More than a piece of pinned memory holds, first in rows and then in one block of rows. */
static void rows_that_do_not_fit_into_a_piece_are_written_too(void **state)
{
    static const uint32_t shapes[][2] = {{272, 2100}, {17, 33000}, {48, 70}};
    opened on = opened_open(0);

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(shapes); i++) {
        matrix_case c = matrix_of(SY_BACKEND_PLAIN, shapes[i][0], shapes[i][1]);
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
    const sy_backend_matrix wrong[] = {{2, 40, 70}, {0, 0, 70}, {0, 40, 0}, {0, UINT32_MAX, 1}};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(wrong); i++)
        refused(cuda->matrix_write(to, &wrong[i], 0, 16, c.rows, NULL, why), SY_BACKEND_EINVAL,
                "there are forms 0 and 1, from 1 to 1048576");
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
    assert_int_equal(emu_cudart_n_calls("cudaLaunchKernel"), 0);
    ok(cuda->matrix_write(to, &c.m, 0, 0, c.rows, NULL, why));
    cuda->buffer_free(to.buffer);
    opened_close(&on);
    matrix_end(&c);
    matrix_end(&gated);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        PLUGIN_TEST(a_matrix_is_packed_whole_and_in_parts),
        PLUGIN_TEST(rows_that_do_not_fit_into_a_piece_are_written_too),
        PLUGIN_TEST(matrices_are_written_by_several_threads),
        PLUGIN_TEST(what_is_no_part_of_a_matrix_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
