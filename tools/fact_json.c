/* fact_json.c - see the header. */
#include "fact_json.h"

#include <math.h>
#include <string.h>

#include <jansson.h>

#include "tool_http.h"
#include "tool_text.h"

sy_status fact_get(json_t **out, const char *address, const char *path, sy_error *err)
{
    tool_http_reply reply = {0};
    sy_status st;

    *out = NULL;
    if (address[0] == '\0') {
        return sy_error_set(err, SY_EUNAVAILABLE, "it has no HTTP port to ask");
    }
    SY_TRY(tool_http_get(&reply, address, path, FACT_HTTP_US, err));
    if (reply.status != 200) {
        st = sy_error_set(err, SY_EUNAVAILABLE, "%s: GET %s gives status %d", address, path,
                          reply.status);
        goto out;
    }
    *out = json_loadb(reply.body, reply.body_bytes, JSON_ALLOW_NUL, NULL);
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        st = sy_error_set(err, SY_EDATALOSS, "%s: GET %s gives no JSON", address, path);
    }
out:
    tool_http_reply_free(&reply);
    return st;
}

void fact_text(char *out, size_t cap, const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    out[0] = '\0';
    if (json_is_string(value)) {
        tool_text_show(out, cap, json_string_value(value), json_string_length(value));
    }
}

uint64_t fact_count(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    const json_int_t n = json_is_integer(value) ? json_integer_value(value) : 0;

    return n > 0 ? (uint64_t)n : 0;
}

double fact_number(const json_t *object, const char *name)
{
    const double value = json_number_value(json_object_get(object, name));

    return isfinite(value) ? value : 0;
}

int fact_flag(const json_t *object, const char *name)
{
    return json_is_true(json_object_get(object, name));
}
