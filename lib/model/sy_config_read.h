/* sy_config_read.h - reading config.json value by value: ranges, spellings, and errors that name
 * the key. Private to lib/model. */
#ifndef SY_CONFIG_READ_H
#define SY_CONFIG_READ_H

#include "sy_family.h"

struct json_t; /* jansson's */

/* Every function below reads from here, and reports here. */
typedef struct config_reader {
    const struct json_t *file; /* all of it */
    const struct json_t *root; /* the model's settings: file, or a part of it */
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

SY_MUST_USE sy_status config_read_bool_of(int *out, const config_reader *in, const char *key,
                                          const struct json_t *value);

/* The parts of a configuration, in this order. Each sets its fields of desc from what the ones
 * before have set. */

/* Options that would change what is computed and that nothing here implements are refused; also how
 * the files are encoded, and which layers are left alone. sy_config_check.c */
SY_MUST_USE sy_status config_check_options(const config_reader *in, sy_model_desc *desc);
/* Heads, their sizes, latents, norms, clipping and biases. sy_config_attention.c */
SY_MUST_USE sy_status config_read_heads(const config_reader *in, sy_model_desc *desc);
/* rope_theta, what part of a head rotates, and rope_scaling or rope_parameters; the context grows
 * where the scaling says so. sy_config_rope.c */
SY_MUST_USE sy_status config_read_rope(const config_reader *in, sy_model_desc *desc);
/* attention_scale. sy_config_attention.c */
SY_MUST_USE sy_status config_read_scale(const config_reader *in, sy_model_desc *desc);
/* Which layers are dense, and what is beside the experts of the others. sy_config_layers.c */
SY_MUST_USE sy_status config_read_layers(const config_reader *in, sy_model_desc *desc);
/* How far the attention of each layer reaches. sy_config_windows.c */
SY_MUST_USE sy_status config_read_windows(const config_reader *in, sy_model_desc *desc);
/* sy_config_gate.c */
SY_MUST_USE sy_status config_read_gate(const config_reader *in, sy_model_desc *desc);
/* Granite's factors. sy_config_attention.c */
SY_MUST_USE sy_status config_read_multipliers(const config_reader *in, sy_model_desc *desc);

/* True for null, false, 0 and empty containers: an option that is switched off. */
int config_is_off(const struct json_t *value);

#endif
