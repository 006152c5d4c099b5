/* tool_memory.c - reading /proc/meminfo and the files of control groups. A file that is absent or
 * says something else limits nothing. */
#include "tool_memory.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_file.h"

enum { PATH_BYTES = 4096, FILE_BYTES_MAX = 1 << 20 };

/* The two layouts of control groups: their files' names, and where they lie. */
typedef struct group_layout {
    const char *dir, *limit, *usage;
    const char *caches; /* the line of memory.stat: pages of files that can go at once */
} group_layout;

static const group_layout version_1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                       "memory.usage_in_bytes", "total_inactive_file"};
static const group_layout version_2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                       "inactive_file"};

/* NULL: it cannot be read. The caller frees it. */
static char *read_text(const char *fmt, ...) SY_PRINTF(1, 2);
static char *read_text(const char *fmt, ...)
{
    char path[PATH_BYTES];
    char *text = NULL;
    size_t len;
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(path, sizeof(path), fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof(path)) return NULL;
    return sy_file_read(&text, &len, path, FILE_BYTES_MAX, NULL) == SY_OK ? text : NULL;
}

/* The number that text begins with. 0: there is none ("max"), or it does not fit. */
static int parse_count(uint64_t *out, const char *text)
{
    char *end;

    text += strspn(text, " \t");
    if (*text < '0' || *text > '9') return 0;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0;
}

/* The number on the line that begins with name, whole. */
static int parse_line(uint64_t *out, const char *text, const char *name)
{
    const size_t n = strlen(name);

    while (text != NULL && *text != '\0') {
        if (strncmp(text, name, n) == 0 && (text[n] == ' ' || text[n] == ':'))
            return parse_count(out, text + n + 1);
        text = strchr(text, '\n');
        if (text != NULL) text++;
    }
    return 0;
}

static uint64_t machine_bytes(const char *root)
{
    char *text = read_text("%s/proc/meminfo", root);
    uint64_t kib = 0;
    const int is_known = text != NULL && parse_line(&kib, text, "MemAvailable");

    free(text);
    return is_known && kib <= UINT64_MAX / 1024 ? kib * 1024 : UINT64_MAX;
}

static int read_count(uint64_t *out, const char *root, const group_layout *layout,
                      const char *group, const char *name)
{
    char *text = read_text("%s%s%s/%s", root, layout->dir, group, name);
    const int is_known = text != NULL && parse_count(out, text);

    free(text);
    return is_known;
}

/* What one group leaves. */
static uint64_t group_bytes(const char *root, const group_layout *layout, const char *group)
{
    uint64_t limit, usage, caches = 0;
    char *stat;

    if (!read_count(&limit, root, layout, group, layout->limit) ||
        !read_count(&usage, root, layout, group, layout->usage))
        return UINT64_MAX;
    stat = read_text("%s%s%s/memory.stat", root, layout->dir, group);
    if (stat == NULL || !parse_line(&caches, stat, layout->caches)) caches = 0;
    free(stat);
    usage -= SY_MIN(usage, caches);
    return limit > usage ? limit - usage : 0;
}

/* The least of a group and those above it. The path is as /proc names it: in a container the mount
 * may begin further down, and then the groups that are there count. */
static uint64_t groups_bytes(const char *root, const group_layout *layout, char *group)
{
    uint64_t least = UINT64_MAX;
    char *slash;

    for (;;) {
        const uint64_t bytes = group_bytes(root, layout, group);
        least = SY_MIN(least, bytes);
        slash = strrchr(group, '/');
        if (slash == NULL) return least;
        *slash = '\0';
    }
}

/* One line of /proc/self/cgroup, "NUMBER:CONTROLLERS:PATH"; version 2 has no controllers there. */
static uint64_t line_bytes(const char *root, char *line)
{
    char *controllers = strchr(line, ':');
    char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    char *save = NULL;

    if (path == NULL) return UINT64_MAX;
    *path++ = '\0';
    if (controllers[1] == '\0') return groups_bytes(root, &version_2, path);
    for (char *name = strtok_r(controllers + 1, ",", &save); name != NULL;
         name = strtok_r(NULL, ",", &save))
        if (strcmp(name, "memory") == 0) return groups_bytes(root, &version_1, path);
    return UINT64_MAX;
}

uint64_t tool_memory_available(const char *root)
{
    uint64_t least = machine_bytes(root);
    char *groups = read_text("%s/proc/self/cgroup", root), *save = NULL;

    for (char *line = groups == NULL ? NULL : strtok_r(groups, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        const uint64_t bytes = line_bytes(root, line);
        least = SY_MIN(least, bytes);
    }
    free(groups);
    return least;
}
