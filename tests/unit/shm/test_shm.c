/* test_shm.c - areas and who has them, and clients that show a server something else than a sealed
 * region of theirs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sy_shm.h"

enum { BYTES = 1 << 20, PAGE = 4096 };

static sy_shm *region(void)
{
    sy_shm *shm;
    sy_error err = {0};

    if (sy_shm_create(&shm, BYTES, &err) != SY_OK) fail_msg("%s", err.message);
    return shm;
}

static sy_shm_ticket ticket_of(const sy_shm *shm)
{
    sy_shm_ticket ticket;

    sy_shm_get_ticket(shm, &ticket);
    return ticket;
}

static void refused(const sy_shm_ticket *ticket, const char *why)
{
    sy_shm_view *view;
    sy_error err = {0};

    assert_int_equal(sy_shm_attach(&view, ticket, &err), SY_EPRECONDITION);
    assert_null(view);
    assert_string_equal(err.reason, SY_SHM_UNAVAILABLE);
    if (strstr(err.message, why) == NULL) fail_msg("'%s', wanted '%s'", err.message, why);
}

static sy_shm_view *attached(const sy_shm_ticket *ticket)
{
    sy_shm_view *view;
    sy_error err = {0};

    if (sy_shm_attach(&view, ticket, &err) != SY_OK) fail_msg("%s", err.message);
    return view;
}

/* ---- areas ---- */

static void what_one_side_writes_the_other_reads(void **state)
{
    sy_shm *shm = region();
    const sy_shm_ticket ticket = ticket_of(shm);
    sy_shm_view *view = attached(&ticket);
    float *mine = sy_shm_lend(shm, 100 * sizeof(float));
    float *theirs = sy_shm_view_at(view, sy_shm_offset(shm, mine), 100 * sizeof(float));

    (void)state;
    assert_non_null(theirs);
    assert_ptr_not_equal(mine, theirs);
    assert_int_equal((uintptr_t)mine % SY_SHM_ALIGN, 0);
    mine[99] = 1.5f;
    assert_true(theirs[99] == 1.5f);
    theirs[0] = -2.0f;
    assert_true(mine[0] == -2.0f);
    sy_shm_view_unref(view);
    sy_shm_unref(shm);
}

static void what_is_given_back_is_lent_again_before_anything_else(void **state)
{
    sy_shm *shm = region();
    void *a = sy_shm_lend(shm, 1000), *b = sy_shm_lend(shm, 5000), *c = sy_shm_lend(shm, 1000);

    (void)state;
    assert_true(a != b && b != c && a != c);
    assert_true((uint8_t *)b - (uint8_t *)a >= 1000 && (uint8_t *)c - (uint8_t *)b >= 5000);
    sy_shm_give_back(shm, b);
    assert_ptr_equal(sy_shm_lend(shm, 5000), b);
    sy_shm_give_back(shm, b);
    assert_ptr_equal(sy_shm_lend(shm, 2000), b); /* and less than was there fits as well */
    sy_shm_give_back(shm, a);
    sy_shm_give_back(shm, b);
    assert_ptr_equal(sy_shm_lend(shm, 6000), a); /* neighbours become one */
    sy_shm_give_back(shm, c);
    assert_int_equal(sy_shm_lent(shm), 1);
    sy_shm_unref(shm);
}

static void a_full_region_lends_nothing_more_and_stays_sound(void **state)
{
    sy_shm *shm = region();
    void *area[SY_SHM_AREAS_MAX];
    void *half = sy_shm_lend(shm, BYTES / 2);

    (void)state;
    assert_non_null(half);
    assert_null(sy_shm_lend(shm, BYTES / 2 + 1));
    assert_null(sy_shm_lend(shm, SIZE_MAX));
    assert_null(sy_shm_lend(shm, SIZE_MAX - 63));
    void *rest = sy_shm_lend(shm, BYTES / 2);
    assert_non_null(rest);
    assert_null(sy_shm_lend(shm, 0)); /* not a byte is left */
    memset(rest, 1, BYTES / 2);       /* to the last byte */
    sy_shm_give_back(shm, half);
    sy_shm_give_back(shm, rest);
    for (int i = 0; i < SY_SHM_AREAS_MAX; i++) assert_non_null(area[i] = sy_shm_lend(shm, 1));
    assert_null(sy_shm_lend(shm, 1)); /* too many at once */
    for (int i = 0; i < SY_SHM_AREAS_MAX; i++) sy_shm_give_back(shm, area[i]);
    assert_int_equal(sy_shm_lent(shm), 0);
    assert_non_null(sy_shm_lend(shm, BYTES));
    sy_shm_unref(shm);
}

static void a_region_that_is_given_up_stays_with_who_holds_it(void **state)
{
    sy_shm *shm = region();
    const sy_shm_ticket ticket = ticket_of(shm);
    sy_shm_view *view = attached(&ticket);
    uint8_t *mine = sy_shm_lend(shm, 64);
    const uint64_t at = sy_shm_offset(shm, mine);

    (void)state;
    memset(mine, 7, 64);
    sy_shm_unref(sy_shm_ref(shm));
    assert_int_equal(mine[63], 7); /* one reference is left */
    sy_shm_unref(shm);
    uint8_t *theirs = sy_shm_view_at(view, at, 64);
    assert_int_equal(theirs[63], 7);
    memset(theirs, 8, 64); /* a process that stalled may still write into its own mapping */
    sy_shm_view_unref(view);
    refused(&ticket, "");
}

static void sizes_that_cannot_be_are_refused_at_once(void **state)
{
    sy_shm *shm;
    sy_error err = {0};

    (void)state;
    assert_int_equal(sy_shm_create(&shm, 0, &err), SY_EINVAL);
    assert_int_equal(sy_shm_create(&shm, SY_SHM_BYTES_MAX, &err), SY_EINVAL);
    assert_int_equal(sy_shm_create(&shm, SIZE_MAX, &err), SY_EINVAL);
    assert_null(shm);
}

/* ---- offsets from a message ---- */

static void only_aligned_bytes_inside_are_given_out(void **state)
{
    sy_shm *shm = region();
    const sy_shm_ticket ticket = ticket_of(shm);
    sy_shm_view *view = attached(&ticket);

    (void)state;
    assert_int_equal(ticket.bytes, BYTES + PAGE);
    assert_non_null(sy_shm_view_at(view, PAGE, BYTES));
    assert_non_null(sy_shm_view_at(view, ticket.bytes - 64, 64));
    assert_null(sy_shm_view_at(view, 0, 64)); /* the first page is no area */
    assert_null(sy_shm_view_at(view, PAGE - 64, 64));
    assert_null(sy_shm_view_at(view, PAGE + 4, 64));
    assert_null(sy_shm_view_at(view, PAGE, BYTES + 1));
    assert_null(sy_shm_view_at(view, ticket.bytes - 64, 65));
    assert_null(sy_shm_view_at(view, ticket.bytes + 64, 0));
    assert_null(sy_shm_view_at(view, UINT64_MAX - 63, 64)); /* the end wraps around */
    assert_null(sy_shm_view_at(view, PAGE, UINT64_MAX));
    sy_shm_view_unref(view);
    sy_shm_unref(shm);
}

/* ---- what is no region ---- */

static void a_ticket_with_something_wrong_is_refused(void **state)
{
    sy_shm *shm = region();
    const sy_shm_ticket good = ticket_of(shm);
    sy_shm_ticket bad = good;

    (void)state;
    bad.key[15] ^= 1;
    refused(&bad, "another region");
    bad = good;
    bad.bytes += PAGE;
    refused(&bad, "another size");
    bad.bytes = good.bytes - PAGE;
    refused(&bad, "another size");
    bad.bytes = 0;
    refused(&bad, "out of bounds");
    bad.bytes = UINT64_MAX;
    refused(&bad, "out of bounds");
    bad = good;
    bad.fd = 1u << 30;
    refused(&bad, "No such file");
    bad = good;
    bad.pid = UINT64_MAX;
    refused(&bad, "No such file");
    sy_shm_view_unref(attached(&good));
    sy_shm_unref(shm);
}

/* A memory file with a good first page, as a liar makes it. */
static sy_shm_ticket forged(const sy_shm *shm, int seals, size_t bytes)
{
    sy_shm_ticket ticket = ticket_of(shm);
    const int fd = memfd_create("forged", MFD_ALLOW_SEALING);
    uint8_t page[PAGE];

    assert_true(fd >= 0);
    assert_int_equal(pread((int)ticket.fd, page, sizeof(page), 0), PAGE);
    assert_int_equal(pwrite(fd, page, sizeof(page), 0), PAGE);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    if (seals != 0) assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    ticket.fd = (uint32_t)fd;
    return ticket;
}

static void memory_that_its_owner_could_cut_short_is_not_touched(void **state)
{
    static const int some[] = {0, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SHRINK | F_SEAL_GROW};
    sy_shm *shm = region();

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(some); i++) {
        const sy_shm_ticket ticket = forged(shm, some[i], BYTES + PAGE);
        refused(&ticket, "not sealed");
        close((int)ticket.fd);
    }
    const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    sy_shm_ticket ticket = forged(shm, all, PAGE); /* has been cut before it was sealed */
    refused(&ticket, "another size");
    close((int)ticket.fd);
    ticket = forged(shm, all | F_SEAL_WRITE, BYTES + PAGE); /* nobody can write */
    refused(&ticket, "");
    close((int)ticket.fd);
    ticket = forged(shm, all, BYTES + PAGE);
    sy_shm_view_unref(attached(&ticket)); /* this one is as good as any */
    close((int)ticket.fd);
    sy_shm_unref(shm);
}

static void a_descriptor_of_something_else_is_not_even_opened(void **state)
{
    char path[] = "/tmp/sy-shm-XXXXXX";
    sy_shm *shm = region();
    sy_shm_ticket ticket = ticket_of(shm);
    const int file = mkstemp(path);
    int ends[2];

    (void)state;
    assert_true(file >= 0);
    assert_int_equal(ftruncate(file, BYTES + PAGE), 0);
    ticket.fd = (uint32_t)file;
    refused(&ticket, "");
    assert_int_equal(pipe(ends), 0);
    ticket.fd = (uint32_t)ends[0];
    refused(&ticket, "no memory file");
    const int null = open("/dev/null", O_RDWR);
    ticket.fd = (uint32_t)null;
    refused(&ticket, "no memory file");
    close(null);
    close(ends[0]);
    close(ends[1]);
    close(file);
    unlink(path);
    sy_shm_unref(shm);
}

/* Another process has the same number open: another file, or none. */
static void the_number_in_another_process_is_not_taken_for_it(void **state)
{
    sy_shm *shm = region();
    sy_shm_ticket ticket = ticket_of(shm);
    int up[2], down[2];
    char byte = 0;

    (void)state;
    assert_int_equal(pipe(up), 0);
    assert_int_equal(pipe(down), 0);
    const pid_t child = fork();
    if (child == 0) {
        const int fd = memfd_create("another", MFD_ALLOW_SEALING);
        if (ftruncate(fd, BYTES + PAGE) != 0 || dup2(fd, (int)ticket.fd) < 0 ||
            fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
            _exit(1);
        if (write(up[1], &byte, 1) != 1) _exit(1);
        close(down[1]);
        _exit(read(down[0], &byte, 1) == 0 ? 0 : 1);
    }
    assert_int_equal(read(up[0], &byte, 1), 1);
    ticket.pid = (uint64_t)child;
    refused(&ticket, "does not begin as");
    close(down[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    refused(&ticket, "");
    close(up[0]);
    close(up[1]);
    close(down[0]);
    sy_shm_unref(shm);
}

/* ---- a connection ---- */

static void a_connection_has_one_region_and_keeps_views_of_the_last(void **state)
{
    sy_shm *first = region(), *second = region();
    const sy_shm_ticket one = ticket_of(first), two = ticket_of(second);
    sy_shm_guest *guest = sy_shm_guest_open(1);
    sy_shm_view *a, *b, *c;
    sy_error err = {0};

    (void)state;
    assert_int_equal(sy_shm_guest_view(&a, guest, &one, &err), SY_OK);
    assert_int_equal(sy_shm_guest_view(&b, guest, &one, &err), SY_OK);
    assert_ptr_equal(a, b);
    assert_int_equal(sy_shm_guest_view(&c, guest, &two, &err), SY_OK);
    assert_ptr_not_equal(a, c);
    sy_shm_unref(first);
    sy_shm_guest_unref(guest);
    memset(sy_shm_view_at(a, PAGE, BYTES), 1, BYTES); /* whoever computes may go on */
    sy_shm_view_unref(a);
    sy_shm_view_unref(b);
    sy_shm_view_unref(c);
    sy_shm_unref(second);
}

static void a_connection_that_shows_ticket_after_ticket_is_refused(void **state)
{
    sy_shm_guest *guest = sy_shm_guest_open(1), *off = sy_shm_guest_open(0);
    sy_shm *shm = region();
    sy_shm_ticket good = ticket_of(shm), bad = good;
    sy_shm_view *view;
    sy_error err = {0};

    (void)state;
    bad.key[0] ^= 1;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(sy_shm_guest_view(&view, guest, &bad, &err), SY_EPRECONDITION);
        assert_string_equal(err.reason, SY_SHM_UNAVAILABLE);
    }
    assert_non_null(strstr(err.message, "too many"));
    assert_int_equal(sy_shm_guest_view(&view, guest, &good, &err), SY_EPRECONDITION);
    assert_int_equal(sy_shm_guest_view(&view, off, &good, &err), SY_EPRECONDITION);
    assert_non_null(strstr(err.message, "--shared-memory off"));
    sy_shm_guest_unref(sy_shm_guest_ref(guest));
    sy_shm_guest_unref(guest);
    sy_shm_guest_unref(off);
    sy_shm_unref(shm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_one_side_writes_the_other_reads),
        cmocka_unit_test(what_is_given_back_is_lent_again_before_anything_else),
        cmocka_unit_test(a_full_region_lends_nothing_more_and_stays_sound),
        cmocka_unit_test(a_region_that_is_given_up_stays_with_who_holds_it),
        cmocka_unit_test(sizes_that_cannot_be_are_refused_at_once),
        cmocka_unit_test(only_aligned_bytes_inside_are_given_out),
        cmocka_unit_test(a_ticket_with_something_wrong_is_refused),
        cmocka_unit_test(memory_that_its_owner_could_cut_short_is_not_touched),
        cmocka_unit_test(a_descriptor_of_something_else_is_not_even_opened),
        cmocka_unit_test(the_number_in_another_process_is_not_taken_for_it),
        cmocka_unit_test(a_connection_has_one_region_and_keeps_views_of_the_last),
        cmocka_unit_test(a_connection_that_shows_ticket_after_ticket_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
