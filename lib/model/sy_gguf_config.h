/* sy_gguf_config.h - writing a config.json member by member from a GGUF file's metadata. Private to
 * lib/model. */
#ifndef SY_GGUF_CONFIG_H
#define SY_GGUF_CONFIG_H

#include "sy_gguf_family.h"

struct config_writer {
    sy_strbuf *out;
    const sy_gguf_set *set;
    const sy_gguf *metadata;
    const gguf_family *family;
    uint32_t n_layers;
    int n_members; /* written so far */
    sy_error *err;
};

/* Every member begins so; what follows is its value, as JSON. */
void config_write_name(config_writer *w, const char *name);
void config_write_uint(config_writer *w, const char *name, uint64_t value);
/* SY_EINVAL: no finite number. */
SY_MUST_USE sy_status config_write_float(config_writer *w, const char *name, float value);
/* The shortest decimal that reads back as the same float: 0.001, not 0.0010000000474974513. */
void config_format_float(char out[32], float value);

/* Keys without the architecture's prefix. */
int config_has_key(const config_writer *w, const char *name);
SY_MUST_USE sy_status config_key_u32(uint32_t *out, const config_writer *w, const char *name);
SY_MUST_USE sy_status config_key_f32(float *out, const config_writer *w, const char *name);
/* *out keeps its value when there is no such key. */
SY_MUST_USE sy_status config_optional_u32(uint32_t *out, const config_writer *w, const char *name);
SY_MUST_USE sy_status config_optional_f32(float *out, const config_writer *w, const char *name);

SY_MUST_USE sy_status config_write_rope(config_writer *w);

#endif
