/* test_backend_load.c - plugins that load, and plugins that must not: each refusal names the file
 * and what is wrong with it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sy_backend_load.h"

#define FILE_NAME "libswitchyard_cuda.so"

static sy_error err;
static const sy_backend *backend;

static int begin(void **state)
{
    (void)state;
    sy_error_clear(&err);
    backend = NULL;
    unsetenv(SY_BACKEND_DIR_VARIABLE);
    return 0;
}

static const char *variant(const char *name)
{
    static char path[1024];

    snprintf(path, sizeof(path), "%s/%s/%s", SY_TEST_BACKENDS, name, FILE_NAME);
    return path;
}

static void assert_says(const char *text)
{
    if (strstr(err.message, text) == NULL) fail_msg("'%s' is not in: %s", text, err.message);
}

/* The plugin does not load, for this reason and in words that have text and the file. */
static void refused(const char *path, sy_status st, const char *reason, const char *text)
{
    assert_int_equal(sy_backend_load_file(&backend, path, "cuda", &err), st);
    assert_int_equal(err.status, st);
    assert_null(backend);
    assert_string_equal(err.reason, reason);
    assert_says(path);
    assert_says(text);
}

static void a_plugin_is_loaded_and_offers_its_table(void **state)
{
    (void)state;
    assert_int_equal(sy_backend_load_file(&backend, variant("devices"), "cuda", &err), SY_OK);
    assert_string_equal(backend->name, "cuda");
    assert_int_equal(backend->abi, SY_BACKEND_ABI);
    assert_true(backend->size >= sizeof(*backend));
}

static void a_plugin_of_another_abi_is_refused(void **state)
{
    (void)state;
    refused(variant("other_abi"), SY_EPRECONDITION, "BACKEND_MISMATCH", "ABI 2");
    refused(variant("other_table_abi"), SY_EPRECONDITION, "BACKEND_MISMATCH", "ABI 2");
}

static void an_older_and_shorter_table_is_refused(void **state)
{
    (void)state;
    refused(variant("short_table"), SY_EPRECONDITION, "BACKEND_MISMATCH", "32 bytes");
}

static void a_table_without_one_function_is_refused(void **state)
{
    (void)state;
    refused(variant("hole"), SY_EPRECONDITION, "BACKEND_MISMATCH", "empty");
}

static void another_backend_under_this_name_is_refused(void **state)
{
    (void)state;
    refused(variant("other_name"), SY_EPRECONDITION, "BACKEND_MISMATCH", "rocm");
}

static void a_library_that_is_no_plugin_is_refused(void **state)
{
    (void)state;
    refused(variant("no_entry"), SY_EPRECONDITION, "BACKEND_MISMATCH", SY_BACKEND_ENTRY);
}

static void a_missing_file_is_refused_in_the_loaders_words(void **state)
{
    (void)state;
    refused("/no/such/" FILE_NAME, SY_EPRECONDITION, "BACKEND_NOT_LOADABLE", "No such file");
}

static void make_dir(char *out, size_t cap)
{
    snprintf(out, cap, "/tmp/sy-backend-XXXXXX");
    assert_non_null(mkdtemp(out));
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void a_file_that_is_no_library_is_refused(void **state)
{
    static const char *const texts[] = {"", "\177ELF", "#!/bin/sh\nexit 0\n"};
    char dir[64], path[128];

    (void)state;
    make_dir(dir, sizeof(dir));
    snprintf(path, sizeof(path), "%s/" FILE_NAME, dir);
    for (size_t i = 0; i < SY_COUNT_OF(texts); i++) {
        write_file(path, texts[i]);
        refused(path, SY_EPRECONDITION, "BACKEND_NOT_LOADABLE", "");
    }
    unlink(path);
    rmdir(dir);
}

static void a_folder_where_the_file_should_be_is_refused(void **state)
{
    char dir[64], path[128];

    (void)state;
    make_dir(dir, sizeof(dir));
    snprintf(path, sizeof(path), "%s/" FILE_NAME, dir);
    assert_int_equal(mkdir(path, 0700), 0);
    refused(path, SY_EPRECONDITION, "BACKEND_NOT_LOADABLE", "");
    rmdir(path);
    rmdir(dir);
}

/* ---- the search ---- */

static void the_folder_of_the_environment_comes_first(void **state)
{
    (void)state;
    setenv(SY_BACKEND_DIR_VARIABLE, SY_TEST_BACKENDS "/other_abi", 1);
    assert_int_equal(sy_backend_load(&backend, "cuda", &err), SY_EPRECONDITION);
    assert_null(backend);
    assert_says(SY_TEST_BACKENDS "/other_abi/" FILE_NAME);
    setenv(SY_BACKEND_DIR_VARIABLE, SY_TEST_BACKENDS "/devices", 1);
    assert_int_equal(sy_backend_load(&backend, "cuda", &err), SY_OK);
    assert_non_null(backend);
}

static void every_folder_that_was_looked_at_is_named(void **state)
{
    (void)state;
    setenv(SY_BACKEND_DIR_VARIABLE, "/no/such/folder", 1);
    assert_int_equal(sy_backend_load(&backend, "absent", &err), SY_ENOTFOUND);
    assert_null(backend);
    assert_string_equal(err.reason, "BACKEND_NOT_FOUND");
    assert_says("/no/such/folder/libswitchyard_absent.so");
    assert_says("/../lib/switchyard/libswitchyard_absent.so, ");
}

static void the_working_directory_is_never_looked_at(void **state)
{
    char before[1024];

    (void)state;
    assert_non_null(getcwd(before, sizeof(before)));
    assert_int_equal(chdir(SY_TEST_BACKENDS "/devices"), 0);
    setenv(SY_BACKEND_DIR_VARIABLE, ".", 1);
    assert_int_equal(sy_backend_load(&backend, "cuda", &err), SY_EINVAL);
    assert_says("absolute");
    assert_int_equal(chdir(before), 0);
}

static void every_result_has_a_status(void **state)
{
    (void)state;
    assert_int_equal(sy_backend_status(SY_BACKEND_OK), SY_OK);
    assert_int_equal(sy_backend_status(SY_BACKEND_ENODEVICE), SY_EUNAVAILABLE);
    assert_int_equal(sy_backend_status(SY_BACKEND_EDEVLOST), SY_EUNAVAILABLE);
    assert_int_equal(sy_backend_status(SY_BACKEND_EINVAL), SY_EINVAL);
    assert_int_equal(sy_backend_status(SY_BACKEND_ENOMEM), SY_ENOMEM);
    assert_int_equal(sy_backend_status(SY_BACKEND_EFAILED), SY_EIO);
    assert_int_equal(sy_backend_status(-1), SY_EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_plugin_is_loaded_and_offers_its_table, begin),
        cmocka_unit_test_setup(a_plugin_of_another_abi_is_refused, begin),
        cmocka_unit_test_setup(an_older_and_shorter_table_is_refused, begin),
        cmocka_unit_test_setup(a_table_without_one_function_is_refused, begin),
        cmocka_unit_test_setup(another_backend_under_this_name_is_refused, begin),
        cmocka_unit_test_setup(a_library_that_is_no_plugin_is_refused, begin),
        cmocka_unit_test_setup(a_missing_file_is_refused_in_the_loaders_words, begin),
        cmocka_unit_test_setup(a_file_that_is_no_library_is_refused, begin),
        cmocka_unit_test_setup(a_folder_where_the_file_should_be_is_refused, begin),
        cmocka_unit_test_setup(the_folder_of_the_environment_comes_first, begin),
        cmocka_unit_test_setup(every_folder_that_was_looked_at_is_named, begin),
        cmocka_unit_test_setup(the_working_directory_is_never_looked_at, begin),
        cmocka_unit_test_setup(every_result_has_a_status, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
