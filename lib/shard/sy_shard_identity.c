/* sy_shard_identity.c - what a shard is: the hash of its bytes, read back from where they lie
 * packed, and the hash of its output for one row (sy_shard_probe.c). */
#include "sy_shard.h"

#include "sy_fault.h"
#include "sy_shard_internal.h"

static sy_status content_of(uint64_t *out, const sy_shard *shard, uint8_t *stage)
{
    sy_digest_state *digest = sy_digest_open();

    if (digest == NULL) return SY_ENOMEM;
    for (unsigned i = 0; i < sy_shard_parts(shard); i++) {
        const sy_panels w = sy_shard_part(shard, i);
        const size_t row_bytes = sy_dtype_row_bytes(w.dtype, w.k);

        for (uint32_t row = 0; row < w.n; row += SY_PANEL) {
            const uint32_t rows = SY_MIN((uint32_t)SY_PANEL, w.n - row);
            sy_panels_unpack(stage, &w, row, row + rows);
            sy_digest_add(digest, stage, rows * row_bytes);
        }
    }
    *out = sy_digest_value(digest);
    sy_digest_free(digest);
    return SY_OK;
}

sy_status sy_shard_verify(sy_shard_builder *builder, sy_shard_identity *out,
                          const sy_kernels *kernels, sy_error *err)
{
    sy_shard_identity *identity = &builder->shard->identity;
    const uint64_t added = sy_digest_value(builder->digest);
    sy_status st;

    *out = (sy_shard_identity){0};
    if (builder->failed || builder->added_bytes != builder->total_bytes)
        return sy_shard_refuse(
            builder->shard, SY_EPRECONDITION, NULL, err, "%llu of %llu bytes are there",
            (unsigned long long)builder->added_bytes, (unsigned long long)builder->total_bytes);
    if (sy_fault_hit("shard.memory")) /* a bit that flips between arriving and being checked */
        ((uint8_t *)(uintptr_t)builder->shard->up.data)[0] ^= 1;
    st = content_of(&identity->content, builder->shard, builder->stage);
    if (st != SY_OK) return sy_error_set(err, st, "no memory to hash a shard");
    if (identity->content != added)
        return sy_shard_refuse(builder->shard, SY_EDATALOSS, "SHARD_CORRUPT", err,
                               "what arrived hashes to %016llx, what lies in memory to %016llx: "
                               "the file changed while it was read, or memory is damaged",
                               (unsigned long long)added, (unsigned long long)identity->content);
    st = sy_shard_probe(&identity->probe, builder->shard, kernels, err);
    if (st != SY_OK) return st;
    builder->verified = 1;
    *out = *identity;
    return SY_OK;
}

sy_status sy_shard_identify(sy_shard_identity *out, const sy_model *model, sy_precision precision,
                            uint32_t layer, uint32_t expert, const sy_kernels *kernels,
                            sy_error *err)
{
    sy_shard_builder *builder;
    int done;
    sy_status st;

    *out = (sy_shard_identity){0};
    if (!sy_shard_exists(model, layer, expert)) return sy_shard_missing(layer, expert, err);
    st = sy_shard_builder_open(&builder, NULL, model, precision, layer, expert, err);
    if (st != SY_OK) return st;
    st = sy_shard_add_from_checkpoint(builder, SIZE_MAX, &done, err);
    if (st == SY_OK) st = sy_shard_verify(builder, out, kernels, err);
    sy_shard_abandon(builder);
    return st;
}
