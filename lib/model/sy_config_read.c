/* sy_config_read.c - values out of a configuration's JSON, each checked against its range. */
#include "sy_config_read.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "sy_json_load.h"

json_t *config_member(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);

    return json_is_null(value) ? NULL : value;
}

sy_status config_find_alias(const json_t **value, const char **key, const config_reader *in,
                            const sy_key *keys)
{
    *value = NULL;
    *key = keys->alias[0];
    for (size_t i = 0; i < SY_KEY_ALIASES_MAX && keys->alias[i] != NULL; i++) {
        const json_t *found = config_member(in->root, keys->alias[i]);

        if (found == NULL) continue;
        if (*value != NULL && !json_equal(*value, found)) {
            return sy_error_set(in->err, SY_EINVAL, "%s and %s mean the same and differ", *key,
                                keys->alias[i]);
        }
        if (*value == NULL) {
            *value = found;
            *key = keys->alias[i];
        }
    }
    return SY_OK;
}

sy_status config_check_uint(uint32_t *out, const config_reader *in, const char *key,
                            const json_t *value, uint32_t min, uint32_t max)
{
    const json_int_t v = json_integer_value(value);

    if (!json_is_integer(value)) {
        return sy_error_set(in->err, SY_EINVAL, "%s is %s, where an integer is needed", key,
                            sy_json_kind(value));
    }
    if (v < min || v > max) {
        return sy_error_set(in->err, SY_EINVAL,
                            "%s is %" JSON_INTEGER_FORMAT ", outside [%" PRIu32 ", %" PRIu32 "]",
                            key, v, min, max);
    }
    *out = (uint32_t)v;
    return SY_OK;
}

/* Hunyuan gives some numbers once a layer: all of them must be the same. */
static sy_status one_of_all(const json_t **value, const char *key, const config_reader *in)
{
    const json_t *first = json_array_get(*value, 0);

    if (!in->family->lists_numbers) return SY_OK;
    for (size_t i = 1; i < json_array_size(*value); i++) {
        if (!json_equal(first, json_array_get(*value, i)))
            return sy_error_set(in->err, SY_EINVAL,
                                "%s[%zu] is not %s[0]: layers that differ are not supported", key,
                                i, key);
    }
    if (json_is_array(*value)) *value = first;
    return SY_OK;
}

sy_status config_read_uint_of(uint32_t *out, const config_reader *in, const sy_key *keys,
                              uint32_t min, uint32_t max)
{
    const json_t *value;
    const char *key;
    sy_status st;

    SY_TRY(config_find_alias(&value, &key, in, keys));
    SY_TRY(one_of_all(&value, key, in));
    st = config_check_uint(out, in, key, value, min, max);
out:
    return st;
}

sy_status config_read_uint(uint32_t *out, const config_reader *in, const char *key, uint32_t max)
{
    return config_read_uint_of(out, in, &(sy_key){{key}}, 1, max);
}

sy_status config_read_float(float *out, const config_reader *in, const char *key,
                            const json_t *value, double max, int zero_ok)
{
    const double v = json_number_value(value);

    if (value == NULL) return SY_OK;
    if (!json_is_number(value)) {
        return sy_error_set(in->err, SY_EINVAL, "%s is %s, where a number is needed", key,
                            sy_json_kind(value));
    }
    if (v < 0.0 || v > max || ((float)v == 0.0f && !(zero_ok && v == 0.0))) {
        return sy_error_set(in->err, SY_EINVAL, "%s is %g, outside %s0, %g]", key, v,
                            zero_ok ? "[" : "(", max);
    }
    *out = (float)v;
    return SY_OK;
}

sy_status config_read_bool_of(int *out, const config_reader *in, const char *key,
                              const json_t *value)
{
    if (value == NULL) return SY_OK;
    if (!json_is_boolean(value)) {
        return sy_error_set(in->err, SY_EINVAL, "%s is %s, where true or false is needed", key,
                            sy_json_kind(value));
    }
    *out = json_is_true(value);
    return SY_OK;
}

sy_status config_read_bool(int *out, const config_reader *in, const char *key)
{
    return config_read_bool_of(out, in, key, config_member(in->root, key));
}

int config_is_off(const json_t *value)
{
    return value == NULL || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0.0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

sy_status config_check_choice(const config_reader *in, const char *key, const char *const *choices)
{
    const json_t *value = config_member(in->root, key);

    if (value == NULL) return SY_OK;
    if (!json_is_string(value)) {
        return sy_error_set(in->err, SY_EINVAL, "%s is %s, where a string is needed", key,
                            sy_json_kind(value));
    }
    for (size_t i = 0; choices[i] != NULL; i++) {
        if (strcmp(json_string_value(value), choices[i]) == 0) return SY_OK;
    }
    return sy_error_set(in->err, SY_EINVAL, "%s \"%.64s\" is not supported, only \"%s\" is", key,
                        json_string_value(value), choices[0]);
}
