/* sy_moe_gpus.h - the experts of one process on its GPUs, for sy_moe_local: which lies where, and
 * the computation of a layer's groups. One thread at a time. */
#ifndef SY_MOE_GPUS_H
#define SY_MOE_GPUS_H

#include "sy_moe.h"
#include "sy_plan.h"
#include "sy_shard_home.h"

typedef struct moe_gpus moe_gpus;

/* Takes the memory of all devices, each of which passes its self-test. SY_EINVAL
 * (MIXED_ARITHMETIC): their bits would differ. */
SY_MUST_USE sy_status moe_gpus_open(moe_gpus **out, const sy_moe_devices *devices,
                                    const sy_model *model, sy_dtype weights,
                                    const sy_kernels *kernels, sy_error *err);
/* No shard of them is in any store; accepts NULL. */
void moe_gpus_close(moe_gpus *gpus);
const char *moe_gpus_arithmetic(const moe_gpus *gpus);

/* Puts shard number i of the model, counted over layers and experts, where it belongs, verified.
 * Any thread. */
SY_MUST_USE sy_status moe_gpus_load(moe_gpus *gpus, sy_shard_store *store, size_t i, uint32_t layer,
                                    uint32_t expert, sy_error *err);

/* out[r] = expert(x[row_token[r]]) for the rows of every group. x: [n_tokens,H]; out: [R,H].
 * SY_EUNAVAILABLE (DEVICE_LOST), then and from then on. */
SY_MUST_USE sy_status moe_gpus_compute(moe_gpus *gpus, float *out, const float *x,
                                       const sy_plan *plan, const sy_shard_group *group,
                                       sy_error *err);

#endif
