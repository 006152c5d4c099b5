/* sy_json_load.c - jansson, with a pass over the bytes in front of it that bounds what it will
 * allocate. */
#include "sy_json_load.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "sy_checkpoint_file.h"
#include "sy_file.h"

#define EXCERPT_BYTES 160

/* Counts what will become values and follows the nesting. The text may be no JSON at all: then the
 * counts mean nothing, and the parser will say what is wrong with it. */
static sy_status check_size(const char *text, size_t n, size_t values_max, sy_error *err)
{
    size_t depth = 0;
    size_t values = 0;
    int in_string = 0;

    for (size_t i = 0; i < n; i++) {
        const char c = text[i];

        if (in_string) {
            if (c == '\\') i++;
            if (c == '"') in_string = 0;
            continue;
        }
        switch (c) {
        case '"': in_string = 1; break;
        case '{':
        case '[':
            values++;
            if (++depth > SY_JSON_DEPTH_MAX) {
                return sy_error_set(err, SY_EINVAL, "the JSON is nested deeper than %d levels",
                                    SY_JSON_DEPTH_MAX);
            }
            break;
        case '}':
        case ']': depth -= depth > 0; break;
        case ',': values++; break;
        default: break;
        }
    }
    if (values > values_max) {
        return sy_error_set(err, SY_ELIMIT, "the JSON holds more than %zu values", values_max);
    }
    return SY_OK;
}

/* The key that ends just before end, for a message; out: [EXCERPT_BYTES]. jansson itself names only
 * short ones. */
static void last_key(char *out, const char *text, size_t end)
{
    size_t begin;
    size_t len;

    while (end > 0 && text[end - 1] != '"') end--;
    begin = end > 0 ? end - 1 : 0;
    while (begin > 0 && (text[begin - 1] != '"' || (begin > 1 && text[begin - 2] == '\\'))) begin--;
    len = end > begin ? end - 1 - begin : 0;
    if (len >= EXCERPT_BYTES) len = EXCERPT_BYTES - 1;
    memcpy(out, text + begin, len);
    out[len] = '\0';
}

static sy_status fail_parse(const json_error_t *error, const char *text, size_t n, sy_error *err)
{
    const size_t at = error->position > 0 ? SY_MIN((size_t)error->position, n) : 0;
    char reason[JSON_ERROR_TEXT_LENGTH];
    char key[EXCERPT_BYTES];
    char *near;

    switch (json_error_code(error)) {
    case json_error_out_of_memory:
        return sy_error_set(err, SY_ENOMEM, "no memory to parse %zu bytes of JSON", n);
    case json_error_invalid_utf8:
        return sy_error_set(err, SY_EINVAL, "the JSON is not valid UTF-8 near byte %zu", at);
    case json_error_duplicate_key:
        last_key(key, text, at);
        return sy_error_set(err, SY_EINVAL, "the JSON has the key \"%s\" twice", key);
    default: break;
    }
    /* What jansson quotes after "near" are raw bytes of the file: no part of a message. */
    memcpy(reason, error->text, sizeof(reason) - 1);
    reason[sizeof(reason) - 1] = '\0';
    near = strstr(reason, " near ");
    if (near != NULL) *near = '\0';
    return sy_error_set(err, SY_EINVAL, "not JSON: %s at line %d, byte %zu", reason, error->line,
                        at);
}

sy_status sy_json_load(struct json_t **out, const char *text, size_t n, size_t values_max,
                       sy_error *err)
{
    json_error_t error;
    json_t *root;
    sy_status st;

    *out = NULL;
    if (n == 0) return sy_error_set(err, SY_EINVAL, "not JSON: it is empty");
    st = check_size(text, n, values_max, err);
    if (st != SY_OK) return st;
    root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) return fail_parse(&error, text, n, err);
    if (!json_is_object(root)) {
        st = sy_error_set(err, SY_EINVAL, "the JSON is %s, not an object", sy_json_kind(root));
        json_decref(root);
        return st;
    }
    *out = root;
    return SY_OK;
}

sy_status sy_json_load_file(struct json_t **out, const char *path, size_t max_bytes,
                            size_t values_max, sy_error *err)
{
    char *text = NULL;
    size_t n = 0;
    sy_status st = sy_checkpoint_require_file(path, err);

    *out = NULL;
    if (st == SY_OK) st = sy_file_read(&text, &n, path, max_bytes, err);
    if (st != SY_OK) return st;
    st = sy_json_load(out, text, n, values_max, err);
    if (st != SY_OK) sy_error_prefix(err, "%s", path);
    free(text);
    return st;
}

const char *sy_json_kind(const struct json_t *value)
{
    if (value == NULL) return "missing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    case JSON_NULL: return "null";
    }
    return "unknown";
}
