/* fact_json.h - a JSON answer over HTTP, and values in it that nobody has checked. */
#ifndef FACT_JSON_H
#define FACT_JSON_H

#include "sy_status.h"

struct json_t;

#define FACT_HTTP_US 2000000

/* *out: an object; the caller ends it with json_decref. SY_EUNAVAILABLE, SY_EDEADLINE and others:
 * no answer, or none with status 200; SY_EDATALOSS: no JSON object. */
SY_MUST_USE sy_status fact_get(struct json_t **out, const char *address, const char *path,
                               sy_error *err);
/* Printable; "" when there is none. */
void fact_text(char *out, size_t cap, const struct json_t *object, const char *name);
/* 0 when there is none, or a negative one. */
uint64_t fact_count(const struct json_t *object, const char *name);
double fact_number(const struct json_t *object, const char *name);
int fact_flag(const struct json_t *object, const char *name);

#endif
