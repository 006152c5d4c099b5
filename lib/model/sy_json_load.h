/* sy_json_load.h - JSON from files that nobody vouches for: what a parser checks, plus limits on
 * depth and on the number of values, so that a small file cannot ask for much memory or stack.
 * Private to lib/model. */
#ifndef SY_JSON_LOAD_H
#define SY_JSON_LOAD_H

#include "sy_status.h"

struct json_t;

#define SY_JSON_DEPTH_MAX 32

/* text: n bytes, may be NULL when n is 0. *out: an object, the caller's reference; NULL on failure.
 * values_max bounds the members, elements and containers. SY_EINVAL: not UTF-8, not JSON, not an
 * object, a key twice, too deep, an integer beyond 64 bits; SY_ELIMIT: more than values_max;
 * SY_ENOMEM. */
SY_MUST_USE sy_status sy_json_load(struct json_t **out, const char *text, size_t n,
                                   size_t values_max, sy_error *err);
/* The same for a file of at most max_bytes. Errors begin with the path. SY_ENOTFOUND: no such file.
 */
SY_MUST_USE sy_status sy_json_load_file(struct json_t **out, const char *path, size_t max_bytes,
                                        size_t values_max, sy_error *err);
/* "a string", "an object", ... or "missing" for NULL. Static. */
const char *sy_json_kind(const struct json_t *value);

#endif
