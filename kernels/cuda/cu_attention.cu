/* cu_attention.cu - attention over the paged cache: writing into it, the launch of what takes it
 * in, and the kernel that merges splits which blocks of their own computed. */
#include "sy_cu_attention.h"

enum { THREADS = SY_CU_ATTEND_THREADS };

static __device__ __forceinline__ void narrow(float *to, float v)
{
    *to = v;
}

static __device__ __forceinline__ void narrow(uint16_t *to, float v)
{
    *to = sy_cu_to_bf16(v);
}

/* Grid: (kv heads, rows). */
template <class Element>
__global__ void __launch_bounds__(THREADS)
    put_kernel(sy_cuda_kv kv, const float *k, const float *v, const uint32_t *position,
               const uint32_t *sequence, const uint32_t *n_rows)
{
    const uint32_t head = blockIdx.x, t = blockIdx.y;

    if (t >= *n_rows || position[t] == SY_CUDA_NO_POSITION) return;
    const uint32_t at = position[t], in_page = at % SY_CUDA_KV_PAGE;
    const size_t from = (size_t)t * kv.n_heads + head;
    Element *key = sy_cu_keys_at<Element>(kv, sequence[t], at, head) + (size_t)in_page * kv.key_dim;

    for (uint32_t i = threadIdx.x; i < kv.key_dim; i += THREADS)
        narrow(key + i, k[from * kv.key_dim + i]);
    if (kv.is_latent) return;
    Element *value =
        sy_cu_values_at<Element>(kv, sequence[t], at, head) + (size_t)in_page * kv.value_dim;
    for (uint32_t i = threadIdx.x; i < kv.value_dim; i += THREADS)
        narrow(value + i, v[from * kv.value_dim + i]);
}

extern "C" int sy_cuda_kv_put(const sy_cuda_kv *kv, const float *k, const float *v,
                              const sy_cuda_places *places, const sy_cuda_row_count *rows,
                              void *stream)
{
    const dim3 grid(kv->n_heads, rows->max), block(THREADS);

    if (rows->max == 0) return 0;
    if (kv->type == SY_CUDA_KV_BF16)
        return SY_LAUNCH((put_kernel<uint16_t>), grid, block, stream, *kv, k, v, places->position,
                         places->sequence, rows->n);
    return SY_LAUNCH((put_kernel<float>), grid, block, stream, *kv, k, v, places->position,
                     places->sequence, rows->n);
}

/* Grid: (heads, rows). Every thread merges for its dimensions. */
__global__ void __launch_bounds__(THREADS)
    merge_kernel(float *out, sy_cuda_attention a, uint32_t value_dim, uint32_t n_splits,
                 const uint32_t *position, const uint32_t *n_rows)
{
    const uint32_t head = blockIdx.x, t = blockIdx.y;

    if (t >= *n_rows) return;
    const sy_cu_range keys = sy_cu_keys_of(a, position[t]);
    const size_t place = (size_t)t * a.n_heads + head;

    for (uint32_t d = threadIdx.x; d < value_dim; d += THREADS) {
        float total = 0.0f, max = sy_cu_minus_infinity(), sum = 0.0f;
        for (uint32_t split = keys.first / SY_CUDA_SPLIT; split * SY_CUDA_SPLIT < keys.end;
             split++) {
            const float *from = sy_cu_partial_at(a, value_dim, n_splits, place, split);
            const sy_cu_factors f = sy_cu_merge(&max, &sum, from[value_dim], from[value_dim + 1]);
            total = sy_cu_merge_value(total, from[d], f);
        }
        out[place * value_dim + d] =
            keys.end == 0 ? 0.0f : sy_cu_finish_value(total, max, sum, a.sinks, head);
    }
}

/* ---- launching ---- */

static uint32_t splits_of(uint32_t positions_max)
{
    return positions_max / SY_CUDA_SPLIT + (positions_max % SY_CUDA_SPLIT != 0);
}

extern "C" size_t sy_cuda_attention_partial_bytes(uint32_t rows_max, uint32_t n_heads,
                                                  uint32_t value_dim, uint32_t positions_max)
{
    const size_t factor[] = {n_heads, splits_of(positions_max), (size_t)value_dim + 2,
                             sizeof(float)};
    size_t bytes = rows_max;

    for (size_t i = 0; i < sizeof(factor) / sizeof(factor[0]); i++)
        if (__builtin_mul_overflow(bytes, factor[i], &bytes)) return 0;
    return bytes;
}

/* A group's heads in as few equal parts as a block's queries allow; what is left of these is for
 * further rows. */
static sy_cu_attend plan_attend(float *out, const float *q, const sy_cuda_kv *kv,
                                const sy_cuda_places *places, const sy_cuda_attention *attention,
                                const sy_cuda_row_count *rows)
{
    const uint32_t queries = kv->type == SY_CUDA_KV_BF16 ? SY_CU_BF16_QUERIES : SY_CU_F32_QUERIES;
    sy_cu_attend p = {};

    p.out = out;
    p.q = q;
    p.position = places->position;
    p.sequence = places->sequence;
    p.n_rows = rows->n;
    p.kv = *kv;
    p.a = *attention;
    p.group = attention->n_heads / kv->n_heads;
    p.parts = (p.group + queries - 1) / queries;
    p.heads = (p.group + p.parts - 1) / p.parts;
    p.rows = min(attention->rows_together, queries / p.heads);
    if (p.rows == 0) p.rows = 1;
    p.n_splits = splits_of(attention->positions_max);
    return p;
}

extern "C" int sy_cuda_attend(float *out, const float *q, const sy_cuda_kv *kv,
                              const sy_cuda_places *places, const sy_cuda_attention *attention,
                              const sy_cuda_row_count *rows, void *stream)
{
    if (kv->key_dim > SY_CUDA_KEY_MAX || kv->value_dim > SY_CUDA_VALUE_MAX || kv->n_heads == 0 ||
        attention->n_heads % kv->n_heads != 0)
        return 1;
    if (kv->type == SY_CUDA_KV_BF16 && (kv->key_dim % 8 != 0 || kv->value_dim % 8 != 0)) return 1;
    if (rows->max == 0 || attention->n_heads == 0) return 0;
    const sy_cu_attend p = plan_attend(out, q, kv, places, attention, rows);
    const dim3 grid(kv->n_heads * p.parts, (rows->max + p.rows - 1) / p.rows,
                    attention->partial == nullptr ? 1 : p.n_splits);
    const int error = kv->type == SY_CUDA_KV_BF16 ? sy_cu_attend_bf16(p, grid, stream)
                                                  : sy_cu_attend_f32(p, grid, stream);

    if (error != 0 || attention->partial == nullptr) return error;
    return SY_LAUNCH(merge_kernel, dim3(attention->n_heads, rows->max), dim3(THREADS), stream, out,
                     *attention, kv->value_dim, p.n_splits, places->position, rows->n);
}
