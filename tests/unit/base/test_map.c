/* test_map.c - mapped files, and the guard against files that shrink under their readers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sy_file.h"
#include "sy_pool.h"

#define FILE_BYTES ((size_t)64 << 10)

static char path[64];
static sy_error err;

static int make_file(void **state)
{
    int fd;

    (void)state;
    snprintf(path, sizeof(path), "/tmp/sy-test-map-XXXXXX");
    fd = mkstemp(path);
    return fd < 0 || ftruncate(fd, (off_t)FILE_BYTES) != 0 ||
           pwrite(fd, "end", 3, FILE_BYTES - 3) != 3 || close(fd) != 0;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static void a_file_is_mapped_whole(void **state)
{
    sy_map map;

    (void)state;
    assert_int_equal(sy_map_open(&map, path, &err), SY_OK);
    assert_int_equal(map.len, FILE_BYTES);
    assert_memory_equal(map.data + map.len - 3, "end", 3);
    sy_map_close(&map);
    assert_null(map.data);
    sy_map_close(&map);
}

static void an_empty_file_is_an_empty_map(void **state)
{
    sy_map map;

    (void)state;
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(sy_map_open(&map, path, &err), SY_OK);
    assert_int_equal(map.len, 0);
    assert_non_null(map.data);
    sy_map_close(&map);
}

/* Closing one must not close descriptor 0. */
static void a_zeroed_map_may_be_closed(void **state)
{
    sy_map map = {0};
    const int was_open = fcntl(0, F_GETFD) >= 0;

    (void)state;
    sy_map_close(&map);
    assert_int_equal(fcntl(0, F_GETFD) >= 0, was_open);
}

static void what_cannot_be_mapped_is_named(void **state)
{
    sy_map map;

    (void)state;
    assert_int_equal(sy_map_open(&map, "/tmp/sy-no-such-file", &err), SY_ENOTFOUND);
    assert_non_null(strstr(err.message, "/tmp/sy-no-such-file: cannot map it: No such file"));
    sy_map_close(&map);
    assert_int_equal(sy_map_open(&map, "/tmp", &err), SY_EINVAL);
    sy_map_close(&map);
}

static sy_status read_last_byte(void *arg)
{
    const sy_map *map = arg;
    volatile const uint8_t *data = map->data;

    return data[map->len - 1] == 'd' ? SY_OK : SY_EINVAL;
}

static void a_file_that_shrank_is_data_loss_and_not_the_end(void **state)
{
    sy_map map;

    (void)state;
    assert_int_equal(sy_map_open(&map, path, &err), SY_OK);
    assert_int_equal(sy_map_guard(read_last_byte, &map, &err), SY_OK);
    assert_int_equal(truncate(path, 10), 0);
    for (int round = 0; round < 5;
         round++) { /* again and again: the signal must not stay blocked */
        sy_error_clear(&err);
        assert_int_equal(sy_map_guard(read_last_byte, &map, &err), SY_EDATALOSS);
        assert_int_equal(err.status, SY_EDATALOSS);
    }
    assert_int_equal(sy_map_guard(read_last_byte, &map, NULL), SY_EDATALOSS);
    sy_map_close(&map);
}

/* The inner guard catches its own; afterwards the outer one is still in force. */
static sy_status read_guarded_then_bare(void *arg)
{
    if (sy_map_guard(read_last_byte, arg, &err) != SY_EDATALOSS) return SY_EINTERNAL;
    return read_last_byte(arg);
}

static void guards_nest(void **state)
{
    sy_map map;

    (void)state;
    assert_int_equal(sy_map_open(&map, path, &err), SY_OK);
    assert_int_equal(truncate(path, 10), 0);
    assert_int_equal(sy_map_guard(read_guarded_then_bare, &map, &err), SY_EDATALOSS);
    sy_map_close(&map);
}

typedef struct pool_read {
    sy_map map;
    sy_status got[64];
} pool_read;

static void read_in_pool(void *arg, size_t i, unsigned thread)
{
    pool_read *self = arg;

    (void)thread;
    self->got[i] = sy_map_guard(read_last_byte, &self->map, NULL);
}

static void each_thread_has_a_guard_of_its_own(void **state)
{
    pool_read self = {0};
    sy_pool *pool;

    (void)state;
    assert_int_equal(sy_pool_open(&pool, 3, "map"), SY_OK);
    assert_int_equal(sy_map_open(&self.map, path, &err), SY_OK);
    assert_int_equal(truncate(path, 10), 0);
    sy_pool_run(pool, SY_COUNT_OF(self.got), read_in_pool, &self);
    for (size_t i = 0; i < SY_COUNT_OF(self.got); i++) assert_int_equal(self.got[i], SY_EDATALOSS);
    sy_map_close(&self.map);
    sy_pool_free(pool);
}

static void *read_with_signals_blocked(void *arg)
{
    sigset_t all;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    return (void *)(uintptr_t)sy_map_guard(read_last_byte, arg, NULL);
}

/* Servers block signals in all their threads; a fault with SIGBUS blocked would kill the process.
 */
static void a_thread_that_blocks_all_signals_is_guarded_too(void **state)
{
    sy_map map;
    pthread_t thread;
    void *got;

    (void)state;
    assert_int_equal(sy_map_open(&map, path, &err), SY_OK);
    assert_int_equal(truncate(path, 10), 0);
    assert_int_equal(pthread_create(&thread, NULL, read_with_signals_blocked, &map), 0);
    pthread_join(thread, &got);
    assert_int_equal((uintptr_t)got, SY_EDATALOSS);
    sy_map_close(&map);
}

static sy_status send_signal(void *arg)
{
    (void)arg;
    raise(SIGBUS);
    return SY_OK;
}

/* Runs in a child, with nobody else's handler in the way; returns how it ended. */
static int end_of_child(sy_status (*fn)(void *arg), void *arg, int is_guarded)
{
    int how = 0;
    const pid_t child = fork();

    if (child == 0) {
        signal(SIGBUS, SIG_DFL);
        (void)!sy_map_guard(read_last_byte, &(sy_map){.data = (const uint8_t *)"d", .len = 1},
                            NULL);
        if (is_guarded) {
            (void)!sy_map_guard(fn, arg, NULL);
        } else {
            (void)!fn(arg);
        }
        _exit(0);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &how, 0), child);
    return how;
}

static void outside_a_guard_the_signal_kills_as_ever(void **state)
{
    sy_map map;
    int how;

    (void)state;
    assert_int_equal(sy_map_open(&map, path, &err), SY_OK);
    assert_int_equal(truncate(path, 10), 0);
    how = end_of_child(read_last_byte, &map, 0);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGBUS);
    how = end_of_child(read_last_byte, &map, 1);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    /* A signal that somebody sent is no fault of a map, guard or not. */
    how = end_of_child(send_signal, NULL, 1);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGBUS);
    sy_map_close(&map);
}

int main(void)
{
#define WITH_FILE(test) cmocka_unit_test_setup_teardown(test, make_file, remove_file)
    const struct CMUnitTest tests[] = {
        WITH_FILE(outside_a_guard_the_signal_kills_as_ever),
        WITH_FILE(a_file_is_mapped_whole),
        WITH_FILE(an_empty_file_is_an_empty_map),
        cmocka_unit_test(a_zeroed_map_may_be_closed),
        cmocka_unit_test(what_cannot_be_mapped_is_named),
        WITH_FILE(a_file_that_shrank_is_data_loss_and_not_the_end),
        WITH_FILE(guards_nest),
        WITH_FILE(each_thread_has_a_guard_of_its_own),
        WITH_FILE(a_thread_that_blocks_all_signals_is_guarded_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
