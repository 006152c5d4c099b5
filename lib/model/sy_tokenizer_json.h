/* sy_tokenizer_json.h - reading fields of tokenizer.json strictly: a field of the wrong type, an
 * unknown field and an unknown type are errors that name them. `where` is how messages call the
 * object. */
#ifndef SY_TOKENIZER_JSON_H
#define SY_TOKENIZER_JSON_H

#include "sy_status.h"

struct json_t;

/* keys: separated by single spaces, every key the object may have. Not an object: SY_EINVAL. */
SY_MUST_USE sy_status sy_json_keys(struct json_t *object, const char *where, const char *keys,
                                   sy_error *err);
/* Absent or null: fallback. */
SY_MUST_USE sy_status sy_json_bool(const struct json_t *object, const char *where, const char *key,
                                   int fallback, int *out, sy_error *err);
/* *s is borrowed from the object, [n] valid UTF-8; NULL when the field is absent or null. */
SY_MUST_USE sy_status sy_json_string(const struct json_t *object, const char *where,
                                     const char *key, const char **s, size_t *n, sy_error *err);
/* The same, but it must be there. */
SY_MUST_USE sy_status sy_json_text(const struct json_t *object, const char *where, const char *key,
                                   const char **s, size_t *n, sy_error *err);
/* An integer in [0, limit). */
SY_MUST_USE sy_status sy_json_id(const struct json_t *value, const char *where, uint32_t limit,
                                 uint32_t *out, sy_error *err);
/* An array; absent or null is an error as well. */
SY_MUST_USE sy_status sy_json_array(const struct json_t *object, const char *where, const char *key,
                                    struct json_t **out, sy_error *err);
int sy_json_absent(const struct json_t *value); /* NULL or null */

#endif
