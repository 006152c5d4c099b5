/* sy_config_read.h - reading config.json value by value: ranges, spellings, and errors that name
 * the key. Private to lib/model. */
#ifndef SY_CONFIG_READ_H
#define SY_CONFIG_READ_H

#include "sy_family.h"

struct json_t; /* jansson's */

/* Every function below reads from here, and reports here. */
typedef struct config_reader {
    const struct json_t *root;
    const sy_family *family;
    sy_error *err;
} config_reader;

/* NULL for a key that is absent or null: Hugging Face's files use both for "not set". */
struct json_t *config_member(const struct json_t *object, const char *key);
/* The value under any of the aliases, and the alias that was used. Two spellings must not disagree.
 */
SY_MUST_USE sy_status config_find_alias(const struct json_t **value, const char **key,
                                        const config_reader *in, const sy_key *keys);
SY_MUST_USE sy_status config_check_uint(uint32_t *out, const config_reader *in, const char *key,
                                        const struct json_t *value, uint32_t min, uint32_t max);
SY_MUST_USE sy_status config_read_uint_of(uint32_t *out, const config_reader *in,
                                          const sy_key *keys, uint32_t min, uint32_t max);
SY_MUST_USE sy_status config_read_uint(uint32_t *out, const config_reader *in, const char *key,
                                       uint32_t max); /* from 1 */
/* An integer is a number too: 10000 for rope_theta. *out keeps its default when there is no value.
 */
SY_MUST_USE sy_status config_read_float(float *out, const config_reader *in, const char *key,
                                        const struct json_t *value, double max, int zero_ok);
SY_MUST_USE sy_status config_read_bool(int *out, const config_reader *in, const char *key);
/* A string that must be one of a few; absent is fine. choices ends with NULL. */
SY_MUST_USE sy_status config_check_choice(const config_reader *in, const char *key,
                                          const char *const *choices);

/* rope_theta, what part of a head rotates, and rope_scaling or rope_parameters. desc->head_dim and
 * desc->context are set; the context grows where the scaling says so. */
SY_MUST_USE sy_status config_read_rope(const config_reader *in, sy_model_desc *desc);

#endif
