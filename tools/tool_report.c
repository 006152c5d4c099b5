/* tool_report.c - see the header. */
#include "tool_report.h"

#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "sy_strbuf.h"
#include "tool_print.h"

json_t *tool_json_text(const char *s, size_t n)
{
    sy_strbuf text;
    json_t *value = NULL;

    sy_strbuf_init(&text);
    sy_strbuf_json_string(&text, s, n);
    if (!text.failed) {
        value = json_loadb(text.data, text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    }
    sy_strbuf_free(&text);
    return value;
}

static int print(json_t *value, size_t flags)
{
    char *text = value != NULL ? json_dumps(value, flags | JSON_REAL_PRECISION(9)) : NULL;
    sy_error err;
    int code;

    sy_error_clear(&err);
    if (text == NULL) {
        sy_error_set(&err, SY_ENOMEM, "no memory for the JSON");
        code = tool_fail(&err);
    } else {
        printf("%s\n", text);
        code = tool_flush_stdout();
    }
    free(text);
    json_decref(value);
    return code;
}

int tool_json_print(json_t *value)
{
    return print(value, JSON_INDENT(2));
}

int tool_json_print_line(json_t *value)
{
    return print(value, JSON_COMPACT);
}
