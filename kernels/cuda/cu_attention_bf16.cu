/* cu_attention_bf16.cu - attention over a cache of bf16, on tensor cores. Scores are a product of
 * keys (rows) and queries (columns), a warp a page; what is gathered is one of the values'
 * dimensions (rows) and queries, a warp 32 dimensions at a time. Both read the cache straight into
 * fragments, with k, or the rows, permuted as sy_cuda_pack.h has it: a lane's part is contiguous.
 */
#include "sy_cu_attention.h"
#include "sy_cu_product.h"

enum {
    THREADS = SY_CU_ATTEND_THREADS,
    WARPS = THREADS / 32,
    QUERIES = SY_CU_BF16_QUERIES,
    EIGHTS = QUERIES / 8,
    PITCH = SY_CUDA_KEY_MAX + 8, /* 16 bytes apart: eight lanes then read all banks */
    GROUP = 32,                  /* dimensions of values: two tiles of 16 rows */
    TILES = GROUP / 16
};

struct alignas(8) sy_cu_four_bf16 {
    uint32_t pair[2];
};

struct sy_cu_bf16_shared {
    sy_cu_scores<QUERIES> scores;
    alignas(16) uint16_t query[QUERIES][PITCH];
};

/* Eight elements of a key from d on; zeros past its end, and of one that is not seen (NULL). */
static __device__ __forceinline__ uint4 load_eight(const uint16_t *key, uint32_t d,
                                                   uint32_t key_dim)
{
    if (key == nullptr || d >= key_dim) return uint4{0, 0, 0, 0};
    return *reinterpret_cast<const uint4 *>(key + d);
}

/* A lane's part of 16 keys by 64 elements: of keys g and g + 8, elements 16 t .. 16 t + 15. */
static __device__ __forceinline__ void load_key_block(uint4 w[4], const uint16_t *const key[2],
                                                      uint32_t d, uint32_t key_dim)
{
    SY_UNROLL
    for (int half = 0; half < 2; half++) {
        const uint4 low = load_eight(key[0], d + 8 * half, key_dim);
        const uint4 high = load_eight(key[1], d + 8 * half, key_dim);
        w[2 * half] = uint4{low.x, high.x, low.y, high.y};
        w[2 * half + 1] = uint4{low.z, high.z, low.w, high.w};
    }
}

/* Scores of one page with every query. */
static __device__ __forceinline__ void score_page(float c[EIGHTS][4], const sy_cu_bf16_shared &s,
                                                  const uint16_t *const key[2], uint32_t key_dim)
{
    const uint32_t lane = threadIdx.x % 32;

    for (uint32_t j = 0; j < sy_cu_k_blocks(key_dim); j++) {
        const uint32_t d = j * 64 + lane % 4 * 16;
        uint4 w[4];
        load_key_block(w, key, d, key_dim);
        SY_UNROLL
        for (int n = 0; n < EIGHTS; n++) {
            const uint4 *q = reinterpret_cast<const uint4 *>(&s.query[n * 8 + lane / 4][d]);
            sy_cu_block_product(c[n], w, q[0], q[1]);
        }
    }
}

/* Two keys' weights of one query, which are bf16 already. */
static __device__ __forceinline__ uint32_t weight_pair(const sy_cu_bf16_shared &s, uint32_t key,
                                                       uint32_t query)
{
    const float low = s.scores.weight[key][query / 4].at[query % 4];
    const float high = s.scores.weight[key + 1][query / 4].at[query % 4];

    return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);
}

static __device__ __forceinline__ bool is_odd_half(uint32_t half)
{
    return (half & 0x7f80u) == 0x7f80u;
}

/* Puts zeros where a pair has no finite number; true: it had to. */
static __device__ __forceinline__ bool strip_pair(uint32_t *pair)
{
    const bool low = is_odd_half(*pair), high = is_odd_half(*pair >> 16);

    if (low) *pair &= 0xffff0000u;
    if (high) *pair &= 0x0000ffffu;
    return low || high;
}

/* GROUPS: of 32 dimensions, a warp. A lane has, of each, dimensions 4 g .. 4 g + 3, and of each
 * eight queries 2 t and 2 t + 1. */
template <int GROUPS> struct sy_cu_bf16_engine {
    static constexpr int QUERIES = SY_CU_BF16_QUERIES;
    static constexpr int THREAD_QUERIES = 2 * EIGHTS, THREAD_DIMS = 2 * TILES * GROUPS;
    static constexpr bool IS_ROUNDED = true;
    typedef sy_cu_bf16_shared shared;

    static __device__ __forceinline__ uint32_t query(int i)
    {
        return i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
    }
    static __device__ __forceinline__ uint32_t dim_of_group(int group)
    {
        return (group * WARPS + threadIdx.x / 32) * GROUP + threadIdx.x % 32 / 4 * 4;
    }
    static __device__ __forceinline__ uint32_t dim(int j)
    {
        return dim_of_group(j / 4) + j % 4;
    }

    static __device__ __forceinline__ void load_queries(shared &s, const sy_cu_attend &p,
                                                        const sy_cu_run &run)
    {
        for (uint32_t i = 0; i < QUERIES; i++)
            for (uint32_t d = threadIdx.x; d < sy_cu_k_blocks(p.kv.key_dim) * 64; d += THREADS)
                s.query[i][d] = sy_cu_to_bf16(sy_cu_query_element(p, run, i, d));
    }

    static __device__ __forceinline__ void score_keys(shared &s, const sy_cu_attend &p,
                                                      const sy_cu_run &run, uint32_t begin)
    {
        const uint32_t g = threadIdx.x % 32 / 4;

        __syncthreads(); /* everybody has left the weights */
        for (uint32_t page = threadIdx.x / 32; page < SY_CU_PAGES; page += WARPS) {
            const uint32_t first = page * SY_CUDA_KV_PAGE;
            const uint16_t *key[2] = {nullptr, nullptr};
            float c[EIGHTS][4] = {};
            if (sy_cu_sees_any(run.keys, begin + first, begin + first + SY_CUDA_KV_PAGE)) {
                const uint16_t *from =
                    sy_cu_keys_at<uint16_t>(p.kv, run.sequence, begin + first, run.kv_head);
                SY_UNROLL
                for (int half = 0; half < 2; half++) {
                    const uint32_t i = g + 8 * half, at = begin + first + i;
                    if (at >= run.keys.first && at < run.keys.end)
                        key[half] = from + (size_t)i * p.kv.key_dim;
                }
                score_page(c, s, key, p.kv.key_dim);
            }
            SY_UNROLL
            for (int i = 0; i < 4 * EIGHTS; i++) {
                const uint32_t at = first + g + i % 4 / 2 * 8, q = query(i / 4 * 2 + i % 2);
                s.scores.weight[at][q / 4].at[q % 4] = sy_cu_sees(s.scores, q, begin + at)
                                                           ? c[i / 4][i % 4] * p.a.scale
                                                           : sy_cu_minus_infinity();
            }
        }
    }

    /* A lane's part of 16 keys by 32 dimensions, of which it has four of each of the keys 2 t, 2 t
     * + 1, 2 t + 8, 2 t + 9, as the fragments of two tiles. */
    static __device__ __forceinline__ void load_value_group(uint4 a[TILES], const uint16_t *value,
                                                            uint32_t stride, uint32_t d,
                                                            uint32_t value_dim,
                                                            const bool is_seen[4])
    {
        sy_cu_four_bf16 v[4];

        SY_UNROLL
        for (int i = 0; i < 4; i++) {
            const uint32_t key = threadIdx.x % 4 * 2 + i % 2 + i / 2 * 8;
            v[i] =
                is_seen[i] && d < value_dim
                    ? *reinterpret_cast<const sy_cu_four_bf16 *>(value + (size_t)key * stride + d)
                    : sy_cu_four_bf16{{0, 0}};
        }
        SY_UNROLL
        for (int m = 0; m < TILES; m++) {
            uint32_t r[4];
            SY_UNROLL
            for (int i = 0; i < 4; i++) {
                const uint32_t low = v[i / 2 * 2].pair[m], high = v[i / 2 * 2 + 1].pair[m];
                r[i] = i % 2 == 0 ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u);
            }
            a[m] = uint4{r[0], r[1], r[2], r[3]};
        }
    }

    /* What load_value_group's zeros stand for, where they do: values that are no finite numbers,
     * for the queries that see them. */
    static __device__ __forceinline__ void add_odd_values(float o[THREAD_QUERIES][THREAD_DIMS],
                                                          const shared &s, const sy_cu_attend &p,
                                                          const sy_cu_run &run,
                                                          const uint16_t *value, uint32_t first)
    {
        for (uint32_t key = first; key < first + SY_CUDA_KV_PAGE; key++) {
            if (key < run.keys.first || key >= run.keys.end) continue;
            const uint16_t *from =
                value + (size_t)(key % SY_CUDA_KV_PAGE) * sy_cu_value_stride(p.kv);
            SY_UNROLL
            for (int j = 0; j < THREAD_DIMS; j++) {
                if (dim(j) >= p.kv.value_dim || !is_odd_half(from[dim(j)])) continue;
                SY_UNROLL
                for (int i = 0; i < THREAD_QUERIES; i++) {
                    const uint32_t q = query(i);
                    if (sy_cu_sees(s.scores, q, key))
                        o[i][j] = fmaf(s.scores.weight[key % SY_CUDA_SPLIT][q / 4].at[q % 4],
                                       sy_cu_from_bf16(from[dim(j)]), o[i][j]);
                }
            }
        }
    }

    /* o += values of 16 keys, whose fragments are a, times their weights. */
    static __device__ __forceinline__ void add_group(float o[THREAD_QUERIES][THREAD_DIMS],
                                                     int group, const uint4 a[TILES],
                                                     const uint32_t weight[EIGHTS][2])
    {
        SY_UNROLL
        for (int m = 0; m < TILES; m++) {
            const int j = (group * TILES + m) * 2;
            SY_UNROLL
            for (int n = 0; n < EIGHTS; n++) {
                float c[4] = {o[2 * n][j], o[2 * n + 1][j], o[2 * n][j + 1], o[2 * n + 1][j + 1]};
                sy_mma_bf16(c, a[m], weight[n][0], weight[n][1]);
                o[2 * n][j] = c[0];
                o[2 * n + 1][j] = c[1];
                o[2 * n][j + 1] = c[2];
                o[2 * n + 1][j + 1] = c[3];
            }
        }
    }

    /* The page that begins at position `first`. A weight of zero takes a value that is not to be
     * seen out of a sum unless it is infinite or NaN; is_whole: everybody sees what anybody sees.
     */
    static __device__ __forceinline__ void add_page(float o[THREAD_QUERIES][THREAD_DIMS],
                                                    const shared &s, const sy_cu_attend &p,
                                                    const sy_cu_run &run, uint32_t first,
                                                    bool is_whole)
    {
        const uint32_t t = threadIdx.x % 4, at = first % SY_CUDA_SPLIT;
        const uint16_t *value = sy_cu_values_at<uint16_t>(p.kv, run.sequence, first, run.kv_head);
        uint32_t weight[EIGHTS][2];
        bool is_seen[4], is_odd = false;

        SY_UNROLL
        for (int i = 0; i < 4; i++) {
            const uint32_t key = first + t * 2 + i % 2 + i / 2 * 8;
            is_seen[i] = key >= run.keys.first && key < run.keys.end;
        }
        SY_UNROLL
        for (int i = 0; i < 2 * EIGHTS; i++)
            weight[i / 2][i % 2] =
                weight_pair(s, at + t * 2 + i % 2 * 8, i / 2 * 8 + threadIdx.x % 32 / 4);
        SY_UNROLL
        for (int group = 0; group < GROUPS; group++) {
            uint4 a[TILES];
            load_value_group(a, value, sy_cu_value_stride(p.kv), dim_of_group(group),
                             p.kv.value_dim, is_seen);
            SY_UNROLL
            for (int m = 0; m < TILES; m++)
                if (!is_whole)
                    is_odd |= strip_pair(&a[m].x) | strip_pair(&a[m].y) | strip_pair(&a[m].z) |
                              strip_pair(&a[m].w);
            add_group(o, group, a, weight);
        }
        if (__any_sync(SY_CU_ALL_LANES, is_odd)) add_odd_values(o, s, p, run, value, first);
    }

    static __device__ __forceinline__ void add_values(float o[THREAD_QUERIES][THREAD_DIMS],
                                                      const shared &s, const sy_cu_attend &p,
                                                      const sy_cu_run &run, uint32_t begin)
    {
        const uint32_t from = run.keys.first > begin ? run.keys.first : begin;
        const uint32_t to = min(run.keys.end, begin + SY_CUDA_SPLIT);
        const bool is_whole = sy_cu_is_whole(s.scores, run, from, to);

        for (uint32_t at = from - from % SY_CUDA_KV_PAGE; at < to; at += SY_CUDA_KV_PAGE)
            add_page(o, s, p, run, at, is_whole);
    }
};

/* As many blocks a multiprocessor as their sums leave registers for: ptxas would take more blocks
 * and spill. */
template <int GROUPS>
__global__ void __launch_bounds__(THREADS, GROUPS == 4 ? 2 : 3) attend_kernel(sy_cu_attend p)
{
    SY_SHARED(sy_cu_bf16_shared, shared, [1]);

    sy_cu_attend_block<sy_cu_bf16_engine<GROUPS>>(shared[0], p);
}

int sy_cu_attend_bf16(const sy_cu_attend &p, dim3 grid, void *stream)
{
    if (p.kv.value_dim <= WARPS * GROUP)
        return SY_LAUNCH((attend_kernel<1>), grid, dim3(THREADS), stream, p);
    if (p.kv.value_dim <= 2 * WARPS * GROUP)
        return SY_LAUNCH((attend_kernel<2>), grid, dim3(THREADS), stream, p);
    return SY_LAUNCH((attend_kernel<4>), grid, dim3(THREADS), stream, p);
}
