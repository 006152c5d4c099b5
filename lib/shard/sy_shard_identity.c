/* sy_shard_identity.c - what a shard is: the hash of its bytes, read back from where they lie
 * packed, and the hash of its output for one row (sy_shard_probe.c, sy_shard_home_probe.c). */
#include "sy_shard.h"

#include <string.h>

#include "sy_fault.h"
#include "sy_shard_home_internal.h"
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

static sy_status check_content(const sy_shard_builder *b, sy_error *err)
{
    const uint64_t added = sy_digest_value(b->digest), is = b->shard->identity.content;

    if (is != added)
        return sy_shard_refuse(b->shard, SY_EDATALOSS, "SHARD_CORRUPT", err,
                               "what arrived hashes to %016llx, what lies in memory to %016llx: "
                               "the file changed while it was read, or memory is damaged",
                               (unsigned long long)added, (unsigned long long)is);
    if (b->source == NULL || is == b->source->identity.content) return SY_OK;
    return sy_shard_refuse(b->shard, SY_EDATALOSS, "SHARD_CORRUPT", err,
                           "the copy it came from hashed to %016llx when it was made, and now gave "
                           "what hashes to %016llx: memory of this machine or of its devices is "
                           "damaged",
                           (unsigned long long)b->source->identity.content, (unsigned long long)is);
}

static sy_status verify_on_host(sy_shard_builder *b, const sy_kernels *kernels, sy_error *err)
{
    sy_status st = content_of(&b->shard->identity.content, b->shard, b->stage);

    if (st != SY_OK) return sy_error_set(err, st, "no memory to hash a shard");
    st = check_content(b, err);
    return st == SY_OK ? sy_shard_probe(&b->shard->identity.probe, b->shard, kernels, err) : st;
}

static sy_status verify_on_home(sy_shard_builder *b, sy_error *err)
{
    sy_shard *shard = b->shard;
    sy_status st = sy_shard_home_flush(shard->home, shard->slot, err);

    if (st == SY_OK) st = sy_shard_home_content(&shard->identity.content, shard, err);
    if (st == SY_OK) st = check_content(b, err);
    if (st == SY_OK) st = sy_shard_home_hash(&shard->home_hash, shard->home, shard->slot, err);
    return st == SY_OK ? sy_shard_home_probe(&shard->identity.probe, shard, err) : st;
}

/* What came directly is what the source has if the devices' hashes agree. Where their arithmetic is
 * the same, so are the bits of the probe, which the source's reference stands for. */
static sy_status verify_copy(sy_shard_builder *b, sy_error *err)
{
    const sy_shard *from = b->source;
    sy_shard *shard = b->shard;
    const char *home = sy_shard_home_name(shard->home);
    const int is_same =
        strcmp(sy_shard_home_arithmetic(shard->home), sy_shard_home_arithmetic(from->home)) == 0;
    sy_status st = sy_shard_home_flush(shard->home, shard->slot, err);

    if (st == SY_OK) st = sy_shard_home_hash(&shard->home_hash, shard->home, shard->slot, err);
    if (st != SY_OK) return st;
    if (shard->home_hash != from->home_hash)
        return sy_shard_refuse(shard, SY_EDATALOSS, "SHARD_CORRUPT", err,
                               "on %s it hashed to %016llx when it was verified, its copy on %s "
                               "hashes to %016llx: the copy or the memory of a device is damaged",
                               sy_shard_home_name(from->home), (unsigned long long)from->home_hash,
                               home, (unsigned long long)shard->home_hash);
    shard->identity.content = from->identity.content;
    if (!is_same) return sy_shard_home_probe(&shard->identity.probe, shard, err);
    st = sy_shard_home_output(&shard->identity.probe, NULL, shard, err);
    if (st != SY_OK || shard->identity.probe == from->identity.probe) return st;
    return sy_shard_refuse(shard, SY_EDATALOSS, "SHARD_PROBE", err,
                           "%s computes other bits than %s from the same weights: do not serve "
                           "from it before it is checked (switchyard devices --measure)",
                           home, sy_shard_home_name(from->home));
}

sy_status sy_shard_verify(sy_shard_builder *builder, sy_shard_identity *out,
                          const sy_kernels *kernels, sy_error *err)
{
    sy_status st;

    *out = (sy_shard_identity){0};
    if (builder->failed || builder->added_bytes != builder->total_bytes)
        return sy_shard_refuse(
            builder->shard, SY_EPRECONDITION, NULL, err, "%llu of %llu bytes are there",
            (unsigned long long)builder->added_bytes, (unsigned long long)builder->total_bytes);
    if (sy_fault_hit("shard.memory")) /* a bit that flips between arriving and being checked */
        sy_shard_flip_bit(builder->shard);
    if (builder->direct)
        st = verify_copy(builder, err);
    else if (builder->shard->home != NULL)
        st = verify_on_home(builder, err);
    else
        st = verify_on_host(builder, kernels, err);
    if (st != SY_OK) return st;
    builder->verified = 1;
    *out = builder->shard->identity;
    return SY_OK;
}

void sy_shard_flip_bit(const sy_shard *shard)
{
    const sy_dtype dtype = shard->up.dtype;
    uint8_t *first = (uint8_t *)(uintptr_t)shard->up.data;

    if (shard->home != NULL)
        sy_shard_home_flip_bit(shard);
    else
        first[sy_dtype_is_quant(dtype) ? 0 : sy_dtype_bytes(dtype) - 1] ^= 0x80;
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
    st = sy_shard_builder_open(&builder, NULL, NULL, model, precision, layer, expert, err);
    if (st != SY_OK) return st;
    st = sy_shard_add_from_checkpoint(builder, SIZE_MAX, &done, err);
    if (st == SY_OK) st = sy_shard_verify(builder, out, kernels, err);
    sy_shard_abandon(builder);
    return st;
}
