/* sy_tokenizer_json.c - strict access to JSON fields. */
#include "sy_tokenizer_json.h"

#include <jansson.h>
#include <string.h>

int sy_json_absent(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

static int is_listed(const char *keys, const char *key, size_t n)
{
    for (const char *at = keys; *at != '\0';) {
        const size_t len = strcspn(at, " ");
        if (len == n && memcmp(at, key, n) == 0) return 1;
        at += len + (at[len] == ' ');
    }
    return 0;
}

sy_status sy_json_keys(json_t *object, const char *where, const char *keys, sy_error *err)
{
    if (!json_is_object(object)) {
        return sy_error_set(err, SY_EINVAL, "%s is not an object", where);
    }
    for (void *i = json_object_iter(object); i != NULL; i = json_object_iter_next(object, i)) {
        if (!is_listed(keys, json_object_iter_key(i), json_object_iter_key_len(i))) {
            return sy_error_set(err, SY_EINVAL, "%s: the field \"%.60s\" is not supported", where,
                                json_object_iter_key(i));
        }
    }
    return SY_OK;
}

sy_status sy_json_bool(const json_t *object, const char *where, const char *key, int fallback,
                       int *out, sy_error *err)
{
    const json_t *value = json_object_get(object, key);

    *out = fallback;
    if (sy_json_absent(value)) return SY_OK;
    if (!json_is_boolean(value)) {
        return sy_error_set(err, SY_EINVAL, "%s: \"%s\" is neither true nor false", where, key);
    }
    *out = json_is_true(value);
    return SY_OK;
}

sy_status sy_json_string(const json_t *object, const char *where, const char *key, const char **s,
                         size_t *n, sy_error *err)
{
    const json_t *value = json_object_get(object, key);

    *s = NULL;
    *n = 0;
    if (sy_json_absent(value)) return SY_OK;
    if (!json_is_string(value)) {
        return sy_error_set(err, SY_EINVAL, "%s: \"%s\" is not a string", where, key);
    }
    *s = json_string_value(value);
    *n = json_string_length(value);
    return SY_OK;
}

sy_status sy_json_text(const json_t *object, const char *where, const char *key, const char **s,
                       size_t *n, sy_error *err)
{
    const sy_status st = sy_json_string(object, where, key, s, n, err);

    if (st != SY_OK || *s != NULL) return st;
    return sy_error_set(err, SY_EINVAL, "%s: \"%s\" is missing", where, key);
}

sy_status sy_json_id(const json_t *value, const char *where, uint32_t limit, uint32_t *out,
                     sy_error *err)
{
    const json_int_t id = json_integer_value(value);

    if (!json_is_integer(value)) {
        return sy_error_set(err, SY_EINVAL, "%s: the id is not an integer", where);
    }
    if (id < 0 || id >= (json_int_t)limit) {
        return sy_error_set(err, SY_EINVAL,
                            "%s: id %lld is not below the model's vocabulary of %lu", where,
                            (long long)id, (unsigned long)limit);
    }
    *out = (uint32_t)id;
    return SY_OK;
}

sy_status sy_json_array(const json_t *object, const char *where, const char *key, json_t **out,
                        sy_error *err)
{
    *out = json_object_get(object, key);
    if (json_is_array(*out)) return SY_OK;
    return sy_error_set(err, SY_EINVAL, "%s: \"%s\" is not an array", where, key);
}
