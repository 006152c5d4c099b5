/* test_file.c - whole files, folders and paths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sy_file.h"

static char root[64];
static sy_error err;

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/sy-test-file-XXXXXX");
    return mkdtemp(root) == NULL;
}

/* What the tests leave behind is two levels deep at most. */
static int remove_root(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf '%s'", root);
    return system(command); /* NOLINT(cert-env33-c): a fixed command on a folder of our own */
}

/* In turn one of four texts. */
static const char *in_root(const char *name)
{
    static char path[4][256];
    static unsigned turn;
    char *out = path[turn++ % 4];

    assert_int_equal(sy_path_join(out, sizeof(path[0]), root, name), SY_OK);
    return out;
}

static size_t count_entries(const char *path)
{
    DIR *dir = opendir(path);
    size_t n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL) n++;
    closedir(dir);
    return n - 2; /* . and .. */
}

static void what_is_written_is_read_back(void **state)
{
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 100000};
    char *in = malloc(100000);

    (void)state;
    assert_non_null(in);
    for (size_t i = 0; i < 100000; i++) in[i] = (char)(i * 31);
    for (size_t s = 0; s < SY_COUNT_OF(sizes); s++) {
        char *data;
        size_t len;

        assert_int_equal(sy_file_write_atomic(in_root("f"), in, sizes[s], &err), SY_OK);
        assert_int_equal(sy_file_read(&data, &len, in_root("f"), sizes[s], &err), SY_OK);
        assert_int_equal(len, sizes[s]);
        assert_memory_equal(data, in, len);
        assert_int_equal(data[len], 0);
        free(data);
        assert_int_equal(count_entries(root), 1); /* no temporary file is left */
    }
    free(in);
}

static void a_file_past_the_limit_is_refused_with_both_numbers(void **state)
{
    char *data;
    size_t len;

    (void)state;
    assert_int_equal(sy_file_write_atomic(in_root("f"), "12345", 5, &err), SY_OK);
    assert_int_equal(sy_file_read(&data, &len, in_root("f"), 4, &err), SY_ELIMIT);
    assert_null(data);
    assert_non_null(strstr(err.message, "5 bytes, the limit is 4"));
    assert_int_equal(sy_file_read(&data, &len, in_root("f"), 0, NULL), SY_ELIMIT);
    assert_int_equal(sy_file_read(&data, &len, in_root("f"), SIZE_MAX, NULL), SY_OK);
    free(data);
}

/* Such files say that they are empty. */
static void a_file_that_does_not_know_its_size_is_read_and_limited(void **state)
{
    char *data;
    size_t len;

    (void)state;
    assert_int_equal(sy_file_read(&data, &len, "/proc/self/status", 1 << 20, &err), SY_OK);
    assert_in_range(len, 100, 1 << 20);
    assert_int_equal(strlen(data), len);
    free(data);
    assert_int_equal(sy_file_read(&data, &len, "/proc/self/status", 99, &err), SY_ELIMIT);
    assert_null(data);
}

static void errors_name_the_path_and_the_reason(void **state)
{
    char *data;
    size_t len;

    (void)state;
    assert_int_equal(sy_file_read(&data, &len, in_root("none"), 100, &err), SY_ENOTFOUND);
    assert_non_null(strstr(err.message, "/none: cannot open: No such file"));
    assert_int_equal(sy_file_read(&data, &len, root, 100, &err), SY_EIO);
    assert_non_null(strstr(err.message, "is a folder"));
    assert_int_equal(sy_file_write_atomic(in_root("no/such/f"), "x", 1, &err), SY_ENOTFOUND);
    assert_int_equal(sy_dir_make(in_root("folder"), &err), SY_OK);
    assert_int_equal(sy_file_write_atomic(in_root("folder"), "x", 1, &err), SY_EIO);
    assert_int_equal(count_entries(root), 1); /* the temporary file is gone */
    assert_int_equal(sy_dir_make("", &err), SY_EINVAL);
}

static void a_write_replaces_the_file_and_leaves_it_readable_by_others(void **state)
{
    struct stat info;
    char *data;
    size_t len;
    const mode_t before = umask(022);

    (void)state;
    assert_int_equal(sy_file_write_atomic(in_root("f"), "a long first text", 17, &err), SY_OK);
    assert_int_equal(sy_file_write_atomic(in_root("f"), "short", 5, &err), SY_OK);
    umask(before);
    assert_int_equal(stat(in_root("f"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0644);
    assert_int_equal(sy_file_read(&data, &len, in_root("f"), 100, &err), SY_OK);
    assert_string_equal(data, "short");
    free(data);
}

static void folders_are_made_with_their_parents(void **state)
{
    (void)state;
    assert_int_equal(sy_dir_make(in_root("a/b//c/"), &err), SY_OK);
    assert_int_equal(sy_dir_make(in_root("a/b/c"), &err), SY_OK);
    assert_int_equal(sy_dir_make("/", &err), SY_OK);
    assert_true(sy_file_exists(in_root("a/b/c")));
    assert_false(sy_file_exists(in_root("a/b/d")));
    assert_int_equal(sy_file_write_atomic(in_root("a/file"), "x", 1, &err), SY_OK);
    assert_int_equal(sy_dir_make(in_root("a/file"), &err), SY_EEXISTS);
    assert_non_null(strstr(err.message, "a/file: exists and is not a folder"));
    assert_int_not_equal(sy_dir_make(in_root("a/file/below"), &err), SY_OK);
}

static void expect_join(const char *dir, const char *name, const char *want)
{
    char out[32];

    assert_int_equal(sy_path_join(out, sizeof(out), dir, name), SY_OK);
    assert_string_equal(out, want);
    /* It fits exactly, and one byte less is not enough. */
    assert_int_equal(sy_path_join(out, strlen(want) + 1, dir, name), SY_OK);
    assert_string_equal(out, want);
    assert_int_equal(sy_path_join(out, strlen(want), dir, name), SY_ELIMIT);
}

static void paths_are_joined_with_one_slash(void **state)
{
    (void)state;
    expect_join("a", "b", "a/b");
    expect_join("a/", "b", "a/b");
    expect_join("a//", "/b", "a/b");
    expect_join("/", "b", "/b");
    expect_join("", "b", "b");
    expect_join("", "/b", "/b");
}

static void the_base_of_a_path_is_its_last_name(void **state)
{
    (void)state;
    assert_string_equal(sy_path_base("a/b"), "b");
    assert_string_equal(sy_path_base("/a/b/"), "b/");
    assert_string_equal(sy_path_base("a//b//"), "b//");
    assert_string_equal(sy_path_base("b"), "b");
    assert_string_equal(sy_path_base("/"), "/");
    assert_string_equal(sy_path_base(""), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_written_is_read_back, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_file_past_the_limit_is_refused_with_both_numbers,
                                        make_root, remove_root),
        cmocka_unit_test(a_file_that_does_not_know_its_size_is_read_and_limited),
        cmocka_unit_test_setup_teardown(errors_name_the_path_and_the_reason, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(a_write_replaces_the_file_and_leaves_it_readable_by_others,
                                        make_root, remove_root),
        cmocka_unit_test_setup_teardown(folders_are_made_with_their_parents, make_root,
                                        remove_root),
        cmocka_unit_test(paths_are_joined_with_one_slash),
        cmocka_unit_test(the_base_of_a_path_is_its_last_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
