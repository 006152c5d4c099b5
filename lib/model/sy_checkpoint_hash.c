/* sy_checkpoint_hash.c - a fingerprint of a checkpoint's weights from a bounded sample. Places are
 * chosen by what a tensor is to the model, so that neither names nor the layout of files show. The
 * tensors outside the experts are sampled all, for nothing else compares them between processes;
 * experts, whose shards have hashes of their own, up to EXPERTS_MAX of them, evenly chosen. */
#include "sy_model.h"

#include "sy_digest.h"
#include "sy_file.h"

enum {
    PLACE_BYTES = 256, /* or the whole tensor, when it is shorter */
    EXPERTS_MAX = 512
};

typedef enum place { PLACE_BEGIN, PLACE_MIDDLE, PLACE_END } place;

typedef struct sampler {
    const sy_model *model;
    sy_digest_state *digest;
} sampler;

/* As the file stores it, encoded or not. */
static void sample(const sampler *s, const sy_tensor *tensor, place where)
{
    const uint64_t span = sy_tensor_span(tensor), n = SY_MIN(span, (uint64_t)PLACE_BYTES);
    const uint64_t at = (span - n) * (uint64_t)where / 2;

    sy_digest_add(s->digest, tensor->data + at, (size_t)n);
    if (tensor->scale != NULL) /* the first factor: a float, or a byte */
        sy_digest_add(s->digest, tensor->scale,
                      tensor->encoding == SY_ENCODING_F8_BLOCK ? sizeof(float) : 1);
    sy_tensor_release(tensor);
}

static void sample_all_places(const sampler *s, const sy_tensor *tensor)
{
    sample(s, tensor, PLACE_BEGIN);
    sample(s, tensor, PLACE_MIDDLE);
    sample(s, tensor, PLACE_END);
}

static void sample_whole(const sampler *s, sy_role role, uint32_t layer)
{
    const sy_tensor *tensor = sy_model_tensor(s->model, role, layer, 0);

    if (tensor == NULL) return;
    sample_all_places(s, tensor);
    if (tensor->encoding == SY_ENCODING_GGUF_KV_B) sample_all_places(s, tensor->part[0]);
}

/* One place of each of an expert's matrices. */
static void sample_expert(const sampler *s, uint32_t layer, uint32_t expert)
{
    sample(s, sy_model_tensor(s->model, SY_ROLE_EXPERT_GATE, layer, expert), PLACE_BEGIN);
    sample(s, sy_model_tensor(s->model, SY_ROLE_EXPERT_UP, layer, expert), PLACE_MIDDLE);
    sample(s, sy_model_tensor(s->model, SY_ROLE_EXPERT_DOWN, layer, expert), PLACE_END);
}

/* Runs under sy_map_guard: the digest's state is the caller's. */
static sy_status sample_all(void *arg)
{
    const sampler *s = arg;
    const sy_model_desc *desc = sy_model_describe(s->model);
    uint32_t layers[SY_LAYERS_MAX], n_layers = 0; /* with experts */
    uint64_t total, n;

    for (int role = SY_ROLE_EMBED; role < SY_ROLE_NORM1; role++) sample_whole(s, (sy_role)role, 0);
    for (uint32_t layer = 0; layer < desc->n_layers; layer++)
        for (int role = SY_ROLE_NORM1; role < SY_ROLE_EXPERT_GATE; role++)
            sample_whole(s, (sy_role)role, layer);
    for (uint32_t layer = 0; layer < desc->n_layers; layer++)
        if (sy_model_has_experts(desc, layer)) layers[n_layers++] = layer;
    total = (uint64_t)n_layers * desc->n_experts;
    n = SY_MIN(total, (uint64_t)EXPERTS_MAX);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t shard = i * total / n;
        sample_expert(s, layers[shard / desc->n_experts], (uint32_t)(shard % desc->n_experts));
    }
    return SY_OK;
}

sy_status sy_model_checkpoint_hash(uint64_t *out, const sy_model *model, sy_error *err)
{
    sampler s = {.model = model, .digest = sy_digest_open()};
    const uint64_t structure = sy_model_structure_hash(model);
    sy_status st;

    *out = 0;
    if (s.digest == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for a hash");
    sy_digest_add(s.digest, &structure, sizeof(structure));
    st = sy_map_guard(sample_all, &s, err);
    if (st == SY_OK) *out = sy_digest_value(s.digest);
    if (st != SY_OK) sy_error_prefix(err, "%s", sy_model_dir(model));
    sy_digest_free(s.digest);
    return st;
}
