/* plan_file.h - edits in a file: lines of FIELD and VALUE, a JSON object of them, or a plan that
 * was kept, which also says what it was made from. Pure, but for reading the file. */
#ifndef PLAN_FILE_H
#define PLAN_FILE_H

#include "sy_arena.h"
#include "tool_redis.h"

#define PLAN_FIELDS_MAX 1000000
#define PLAN_BYTES_MAX  ((size_t)256 << 20)

typedef struct plan_file {
    const tool_field_change *change; /* [n], each field once, in the file's order */
    size_t n;
    int has_before;           /* a plan that was kept: before is what the fields said then */
    const char *model, *hash; /* of a plan that was kept; else NULL */
    sy_arena arena;           /* owns everything */
} plan_file;

/* Lines: "3/17 expert-a/cpu:0 expert-b/cpu:0"; a value of "-" deletes the field; '#' begins a
 * comment. JSON: {"3/17": "expert-a/cpu:0", "4/1": null}. SY_EINVAL: neither, or a field twice; the
 * text names the line. What fields and values say is not checked. Ends with plan_file_free. */
SY_MUST_USE sy_status plan_file_parse(plan_file *out, const char *text, size_t n, sy_error *err);
/* path "-": standard input. SY_ELIMIT: more than 64 MB. */
SY_MUST_USE sy_status plan_file_read(plan_file *out, const char *path, sy_error *err);
void plan_file_free(plan_file *plan); /* accepts a zeroed one */

/* The text of a plan to keep, fields that it leaves as they are among them: they are guarded; the
 * caller frees it. NULL: no memory. */
char *plan_file_text(const char *model, const char *hash, const tool_field_change *change,
                     size_t n);

#endif
