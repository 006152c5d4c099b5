/* test_pages.c - memory for weights: aligned, usable to its last byte, given back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sy_pages.h"

#define HUGE_BYTES ((size_t)2 << 20)

static void every_size_is_aligned_and_usable_to_its_ends(void **state)
{
    static const size_t sizes[] = {
        0, 1, 63, 64, 4097, HUGE_BYTES - 1, HUGE_BYTES, HUGE_BYTES + 1, 5 * HUGE_BYTES + 12345};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(sizes); i++) {
        const size_t align = sizes[i] >= HUGE_BYTES ? HUGE_BYTES : 64;
        unsigned char *memory = sy_pages_alloc(sizes[i]);

        if (memory == NULL) fail_msg("%zu bytes: none", sizes[i]);
        if ((uintptr_t)memory % align != 0)
            fail_msg("%zu bytes: at %p, no multiple of %zu", sizes[i], (void *)memory, align);
        memset(memory, 0x5a, sizes[i]);
        if (sizes[i] > 0) assert_int_equal(memory[sizes[i] - 1], 0x5a);
        sy_pages_free(memory, sizes[i]);
    }
    sy_pages_free(NULL, 1);
    sy_pages_free(NULL, 5 * HUGE_BYTES);
}

static void a_size_that_no_machine_has_is_refused(void **state)
{
    (void)state;
    assert_null(sy_pages_alloc(SIZE_MAX));
    assert_null(sy_pages_alloc(PTRDIFF_MAX));
    assert_null(sy_pages_alloc((size_t)1 << 60));
}

/* Resident bytes of [memory, memory + bytes), a multiple of a page. */
static size_t resident_bytes(void *memory, size_t bytes)
{
    static unsigned char in_core[4 * (2 << 20) / 4096];
    const size_t n_pages = bytes / 4096;
    size_t resident = 0;

    assert_true(n_pages <= sizeof(in_core));
    assert_int_equal(mincore(memory, bytes, in_core), 0);
    for (size_t i = 0; i < n_pages; i++) resident += (in_core[i] & 1) * (size_t)4096;
    return resident;
}

static void nothing_is_resident_before_it_is_written_and_little_beyond_after(void **state)
{
    const size_t bytes = 3 * HUGE_BYTES + 8192;
    unsigned char *memory = sy_pages_alloc(bytes);

    (void)state;
    assert_non_null(memory);
    assert_int_equal(resident_bytes(memory, bytes), 0);
    memory[bytes - 1] = 1; /* in the part that is no whole huge page */
    if (resident_bytes(memory, bytes) > 64 << 10)
        fail_msg("one byte of the tail made %zu bytes resident", resident_bytes(memory, bytes));
    memset(memory, 1, bytes);
    assert_int_equal(resident_bytes(memory, bytes), bytes);
    sy_pages_free(memory, bytes);
    assert_int_equal(msync(memory, HUGE_BYTES, MS_ASYNC),
                     -1); /* nothing is mapped there any more */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_is_aligned_and_usable_to_its_ends),
        cmocka_unit_test(a_size_that_no_machine_has_is_refused),
        cmocka_unit_test(nothing_is_resident_before_it_is_written_and_little_beyond_after),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
