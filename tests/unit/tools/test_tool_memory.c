/* test_tool_memory.c - the memory that is left, as machines and both kinds of control groups tell
 * it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "sy_file.h"
#include "tool_memory.h"

static const char meminfo[] =
    "MemTotal:       16000 kB\nMemFree:  12 kB\nMemAvailable:   8000 kB\n";

static char root[] = "/tmp/sy-memory-XXXXXX";

static void put(const char *path, const char *text)
{
    char full[512];
    char *slash;
    sy_error err;

    snprintf(full, sizeof(full), "%s/%s", root, path);
    slash = strrchr(full, '/');
    *slash = '\0';
    assert_int_equal(sy_dir_make(full, &err), SY_OK);
    *slash = '/';
    assert_int_equal(sy_file_write_atomic(full, text, strlen(text), &err), SY_OK);
}

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/sy-memory-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command);
}

static void a_machine_that_says_nothing_limits_nothing(void **state)
{
    (void)state;
    assert_true(tool_memory_available(root) == UINT64_MAX);
    put("proc/meminfo", "MemAvailable: none\n");
    put("proc/self/cgroup", "nonsense\n7:memory\n:\n0::\n");
    assert_true(tool_memory_available(root) == UINT64_MAX);
}

static void without_a_limit_it_is_what_the_machine_has(void **state)
{
    (void)state;
    put("proc/meminfo", meminfo);
    assert_int_equal(tool_memory_available(root), 8000 * 1024);
    put("proc/self/cgroup", "0::/a\n");
    put("sys/fs/cgroup/a/memory.max", "max\n");
    put("sys/fs/cgroup/a/memory.current", "4096\n");
    assert_int_equal(tool_memory_available(root), 8000 * 1024);
}

static void a_group_leaves_its_limit_less_what_is_used_but_for_caches(void **state)
{
    (void)state;
    put("proc/meminfo", meminfo);
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/memory.max", "5000\n");
    put("sys/fs/cgroup/a/b/memory.current", "3000\n");
    assert_int_equal(tool_memory_available(root), 2000);
    put("sys/fs/cgroup/a/b/memory.stat", "anon 7\ninactive_file 1000\nactive_file 9\n");
    assert_int_equal(tool_memory_available(root), 3000);
}

static void a_group_above_may_leave_less(void **state)
{
    (void)state;
    put("proc/meminfo", meminfo);
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/memory.max", "5000\n");
    put("sys/fs/cgroup/a/b/memory.current", "3000\n");
    put("sys/fs/cgroup/a/memory.max", "6000\n");
    put("sys/fs/cgroup/a/memory.current", "7000\n"); /* lowered while in use */
    assert_int_equal(tool_memory_available(root), 0);
}

static void groups_of_version_1_count_also_where_a_container_hides_the_path(void **state)
{
    (void)state;
    put("proc/meminfo", meminfo);
    put("proc/self/cgroup", "9:cpu,cpuacct:/\n4:memory:/docker/0123\n0::/\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9000\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "2500\n");
    put("sys/fs/cgroup/memory/memory.stat", "inactive_file 2500\ntotal_inactive_file 500\n");
    assert_int_equal(tool_memory_available(root), 7000);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)
    const struct CMUnitTest tests[] = {
        CASE(a_machine_that_says_nothing_limits_nothing),
        CASE(without_a_limit_it_is_what_the_machine_has),
        CASE(a_group_leaves_its_limit_less_what_is_used_but_for_caches),
        CASE(a_group_above_may_leave_less),
        CASE(groups_of_version_1_count_also_where_a_container_hides_the_path),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
