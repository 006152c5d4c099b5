/* synth_model.h - the small configurations whose results are published, as synthetic checkpoints.
 */
#ifndef SYNTH_MODEL_H
#define SYNTH_MODEL_H

#include <stdio.h>
#include <stdlib.h>

#include "sy_file.h"
#include "sy_synth.h"

static inline sy_synth_config mixtral_vectors(void)
{
    return (sy_synth_config){.family = "mixtral",
                             .vocab = 256,
                             .hidden = 64,
                             .n_layers = 3,
                             .n_heads = 4,
                             .n_kv_heads = 2,
                             .head_dim = 16,
                             .n_experts = 8,
                             .top_k = 2,
                             .expert_ffn = 96,
                             .context = 128,
                             .rms_eps = 1e-5f,
                             .rope_theta = 1e6f,
                             .options = {.dtype = SY_F32, .recipe = SY_SYNTH_VECTORS}};
}

static inline sy_synth_config olmoe_vectors(void)
{
    sy_synth_config config = mixtral_vectors();

    config.family = "olmoe";
    config.n_experts = 16;
    config.top_k = 4;
    config.expert_ffn = 32;
    config.rope_theta = 1e4f;
    config.qkv_clip = 1.5f;
    return config;
}

/* The model of a published vector: tests/golden/families/NAME.json. */
static inline void write_family(const char *dir, const char *name, sy_dtype dtype)
{
    const sy_synth_options options = {.dtype = dtype, .recipe = SY_SYNTH_VECTORS};
    char path[512];
    char *text = NULL;
    size_t n = 0;
    sy_error err = {0};

    snprintf(path, sizeof(path), "%s/tests/golden/families/%s.json", SY_SOURCE_DIR, name);
    if (sy_file_read(&text, &n, path, 1 << 20, &err) != SY_OK ||
        sy_synth_write_config(dir, text, n, &options, &err) != SY_OK) {
        fprintf(stderr, "%s: %s\n", name, err.message);
        abort();
    }
    free(text);
}

#endif
