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

/* Where a slot's bytes came from directly, and what it was said to be there. */
typedef struct origin {
    const char *name;
    sy_shard_identity identity;
    uint64_t home_hash;
    int is_same_arithmetic;
} origin;

static origin origin_of(const sy_shard_builder *b)
{
    const char *own = sy_shard_home_arithmetic(b->shard->home);

    if (b->is_offered)
        return (origin){"another process's GPU", b->offer.identity, b->offer.home_hash, 1};
    return (origin){sy_shard_home_name(b->source->home), b->source->identity, b->source->home_hash,
                    strcmp(own, sy_shard_home_arithmetic(b->source->home)) == 0};
}

static sy_status refuse_content(const sy_shard_builder *b, const origin *from, sy_error *err)
{
    return sy_shard_refuse(b->shard, SY_EDATALOSS, "SHARD_CORRUPT", err,
                           "%s said that its content is %016llx, and what came from there has "
                           "%016llx",
                           from->name, (unsigned long long)from->identity.content,
                           (unsigned long long)b->shard->identity.content);
}

/* What a copy of this process was said to be, this process has seen; of another's it has the word
 * alone. So its rows are read back and hashed, and its output held against the reference, as if
 * they had come as bytes. */
static sy_status check_identity(sy_shard_builder *b, const origin *from, sy_error *err)
{
    sy_shard *shard = b->shard;
    sy_status st;

    shard->identity.content = from->identity.content;
    if (b->is_offered) {
        st = sy_shard_home_content(&shard->identity.content, shard, err);
        if (st != SY_OK) return st;
        if (shard->identity.content != from->identity.content) return refuse_content(b, from, err);
    }
    if (b->is_offered || !from->is_same_arithmetic)
        return sy_shard_home_probe(&shard->identity.probe, shard, err);
    return sy_shard_home_output(&shard->identity.probe, NULL, shard, err);
}

/* What came directly is what the source has if the devices' hashes agree. Where their arithmetic is
 * the same, so are the bits of the probe, which the source's reference stands for. */
static sy_status verify_copy(sy_shard_builder *b, sy_error *err)
{
    const origin from = origin_of(b);
    sy_shard *shard = b->shard;
    const char *home = sy_shard_home_name(shard->home);
    sy_status st = sy_shard_home_flush(shard->home, shard->slot, err);

    if (st == SY_OK) st = sy_shard_home_hash(&shard->home_hash, shard->home, shard->slot, err);
    if (st != SY_OK) return st;
    if (shard->home_hash != from.home_hash)
        return sy_shard_refuse(shard, SY_EDATALOSS, "SHARD_CORRUPT", err,
                               "on %s it hashed to %016llx when it was verified, its copy on %s "
                               "hashes to %016llx: the copy or the memory of a device is damaged",
                               from.name, (unsigned long long)from.home_hash, home,
                               (unsigned long long)shard->home_hash);
    st = check_identity(b, &from, err);
    if (st != SY_OK || !from.is_same_arithmetic || shard->identity.probe == from.identity.probe)
        return st;
    return sy_shard_refuse(shard, SY_EDATALOSS, "SHARD_PROBE", err,
                           "%s computes other bits than %s from the same weights: do not serve "
                           "from it before it is checked (switchyard devices --measure)",
                           home, from.name);
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
        first[SY_MAX(sy_dtype_bytes(dtype), (size_t)1) - 1] ^= 0x80; /* of blocks, the first byte */
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
