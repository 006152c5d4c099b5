/* tokenize_lines.c - what test_tokenizers.py compares with: a tokenizer asked line by line.
 *
 *   tokenize_lines DIR VOCAB
 *
 * DIR is a checkpoint's folder. Each line of the standard input is JSON: a string, answered by
 * [ids with special tokens, ids of the same as plain text], or a list of ids, answered by [text
 * with special tokens, text without]. Anything wrong ends the program with a message. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_tokenizer.h"

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "tokenize_lines: %s: %s\n", what, why);
    return 0;
}

static int print_ids(const sy_tokenizer *tokenizer, const json_t *text, int special)
{
    sy_ids ids = {0};
    sy_error err;
    const sy_status st = sy_tokenizer_encode(tokenizer, &ids, json_string_value(text),
                                             json_string_length(text), special, &err);

    if (st == SY_OK) {
        putchar('[');
        for (size_t i = 0; i < ids.n; i++) printf(i == 0 ? "%u" : ",%u", (unsigned)ids.id[i]);
        putchar(']');
    }
    sy_ids_free(&ids);
    return st == SY_OK ? 1 : fail("encoding", err.message);
}

static int print_text(const sy_tokenizer *tokenizer, const json_t *ids, int skip_special)
{
    sy_detok state = {0};
    sy_strbuf out;
    json_t *text;
    int ok;

    sy_strbuf_init(&out);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        sy_tokenizer_decode(tokenizer, &state, (uint32_t)json_integer_value(json_array_get(ids, i)),
                            skip_special, &out);
    }
    sy_tokenizer_decode_end(tokenizer, &state, &out);
    text = json_stringn(out.data, out.len); /* NULL unless it is UTF-8 */
    ok = text != NULL && json_dumpf(text, stdout, JSON_ENCODE_ANY) == 0;
    json_decref(text);
    sy_strbuf_free(&out);
    return ok ? 1 : fail("decoding", "what came out is not UTF-8");
}

static int answer(const sy_tokenizer *tokenizer, const char *line, size_t n)
{
    json_error_t error;
    json_t *asked = json_loadb(line, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    int (*const print)(const sy_tokenizer *, const json_t *, int) =
        json_is_string(asked) ? print_ids : print_text;
    int ok = 0;

    if (asked == NULL) return fail("reading", error.text);
    putchar('[');
    ok = print(tokenizer, asked, print == print_ids);
    putchar(',');
    ok = ok && print(tokenizer, asked, print != print_ids);
    puts("]");
    json_decref(asked);
    return ok;
}

int main(int argc, char **argv)
{
    sy_tokenizer *tokenizer;
    sy_error err;
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    int ok = 1;

    if (argc != 3) return fail("usage", "tokenize_lines DIR VOCAB") + 2;
    if (sy_tokenizer_open(&tokenizer, argv[1], (uint32_t)strtoul(argv[2], NULL, 10), &err) !=
        SY_OK) {
        return fail("opening", err.message) + 1;
    }
    while (ok && (n = getline(&line, &capacity, stdin)) > 0) {
        ok = answer(tokenizer, line, (size_t)n);
    }
    free(line);
    sy_tokenizer_close(tokenizer);
    return ok ? 0 : 1;
}
