/* sy_gguf_family.h - the families that GGUF files may hold, as data: names of tensors and of
 * metadata keys beside Hugging Face's. Private to lib/model. */
#ifndef SY_GGUF_FAMILY_H
#define SY_GGUF_FAMILY_H

#include "sy_gguf_map.h"

typedef enum gguf_change {
    GGUF_AS_IS,
    GGUF_UNUSED,  /* no name there */
    GGUF_Q_HEADS, /* interleaved in families that permute */
    GGUF_K_HEADS,
    GGUF_EXPERTS,            /* a slab of all experts, each a tensor of its own there */
    GGUF_EXPERTS_FUSED,      /* a slab there as well */
    GGUF_EXPERTS_TRANSPOSED, /* and transposed */
    GGUF_GATE,               /* of a tensor with gate and up in it */
    GGUF_UP,
    GGUF_GATE_FUSED,
    GGUF_UP_FUSED,
    GGUF_GATE_TRANSPOSED,
    GGUF_UP_TRANSPOSED,
    GGUF_K_B,
    GGUF_V_B
} gguf_change;

/* Names without "blk.3." and "model.layers.3." where both are of a layer. */
typedef struct gguf_name {
    const char *here;
    const char *there;
    gguf_change change;
} gguf_name;

typedef enum gguf_source {
    GGUF_UINT,
    GGUF_FLOAT,
    GGUF_BOOL,
    GGUF_HEADS, /* a count, or an array of equal counts, one a layer */
    GGUF_ROWS,  /* of the first layer's tensor of that name */
    GGUF_HAS,   /* true when a layer has a tensor of that name */
    GGUF_TEXT   /* no source: fallback */
} gguf_source;

typedef struct gguf_setting {
    const char *there; /* in config.json */
    const char *here;  /* without the architecture's prefix */
    gguf_source source;
    const char *fallback; /* JSON; NULL: it must be there; "": left out */
} gguf_setting;

typedef struct config_writer config_writer;

typedef struct gguf_family {
    const char *architecture; /* general.architecture */
    const char *model_type;
    const gguf_name *names; /* looked at before those that all share; ends with an empty one */
    const gguf_setting *settings;
    sy_status (*extra)(config_writer *w); /* what no table says; NULL: nothing */
    int permutes_heads;
    int interleaves_gate_up;
} gguf_family;

/* SY_EINVAL lists the known ones. */
SY_MUST_USE sy_status gguf_family_of(const gguf_family **out, const sy_gguf *metadata,
                                     sy_error *err);
/* NULL: the family has no such tensor. is_of_layer: name stood behind "blk.N.". */
const gguf_name *gguf_name_find(const gguf_family *family, int is_of_layer, const char *name);

/* ARCHITECTURE.name, for messages and look-ups. */
#define GGUF_KEY_BYTES 160
void gguf_key_name(char out[GGUF_KEY_BYTES], const gguf_family *family, const char *name);
/* block_count without MTP blocks. */
SY_MUST_USE sy_status gguf_layers(uint32_t *out, const gguf_family *family, const sy_gguf *metadata,
                                  sy_error *err);
SY_MUST_USE sy_status gguf_heads(uint32_t *out, const gguf_family *family, const sy_gguf *metadata,
                                 const char *name, sy_error *err);

/* The extras of sy_gguf_config.c. */
sy_status gguf_extra_deepseek(config_writer *w);
sy_status gguf_extra_dense_layers(config_writer *w);
sy_status gguf_extra_glm(config_writer *w);
sy_status gguf_extra_gpt_oss(config_writer *w);
sy_status gguf_extra_granite(config_writer *w);
sy_status gguf_extra_llama4(config_writer *w);

#endif
