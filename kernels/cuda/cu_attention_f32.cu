/* cu_attention_f32.cu - attention over a cache of fp32, in fp32 alone: scores with a thread a key,
 * values with a thread a dimension. */
#include "sy_cu_attention.h"

enum {
    THREADS = SY_CU_ATTEND_THREADS,
    CHUNK = 32, /* elements of keys that are in shared memory at a time */
    PITCH_FOURS = CHUNK / 4 + 1,
    STEP = 4,      /* values on their way at a time */
    MIN_BLOCKS = 3 /* a multiprocessor: without it ptxas spills for the sake of a fourth */
};

struct sy_cu_f32_shared {
    sy_cu_scores<SY_CU_F32_QUERIES> scores;
    sy_cu_four query[SY_CU_F32_QUERIES][SY_CUDA_KEY_MAX / 4];
    sy_cu_four key[SY_CUDA_SPLIT][PITCH_FOURS];
};

/* Elements [chunk, chunk + CHUNK) of the split's keys; a warp takes its pages, a lane an element.
 * Keys that nobody sees are not read: their page may not be there. */
static __device__ __forceinline__ void load_keys(sy_cu_f32_shared &s, const sy_cu_attend &p,
                                                 const sy_cu_run &run, uint32_t begin,
                                                 uint32_t chunk)
{
    const uint32_t lane = threadIdx.x % 32, d = chunk + lane;

    for (uint32_t page = threadIdx.x / 32; page < SY_CU_PAGES; page += THREADS / 32) {
        const uint32_t first = begin + page * SY_CUDA_KV_PAGE;
        const float *from = nullptr;
        if (sy_cu_sees_any(run.keys, first, first + SY_CUDA_KV_PAGE))
            from = sy_cu_keys_at<float>(p.kv, run.sequence, first, run.kv_head);
        SY_UNROLL
        for (uint32_t i = 0; i < SY_CUDA_KV_PAGE; i++) {
            const bool is_seen = first + i >= run.keys.first && first + i < run.keys.end;
            s.key[page * SY_CUDA_KV_PAGE + i][lane / 4].at[lane % 4] =
                is_seen && d < p.kv.key_dim ? from[i * p.kv.key_dim + d] : 0.0f;
        }
    }
}

/* Keys [from, to) of one page, of which every query sees all (is_whole) or some. */
template <int DIMS>
static __device__ __forceinline__ void add_page(float o[SY_CU_F32_QUERIES][DIMS],
                                                const sy_cu_f32_shared &s, const sy_cuda_kv &kv,
                                                const float *value, uint32_t from, uint32_t to,
                                                bool is_whole)
{
    for (uint32_t at = from; at < to; at += STEP) {
        float v[STEP][DIMS];
        SY_UNROLL
        for (int e = 0; e < STEP; e++) {
            SY_UNROLL
            for (int j = 0; j < DIMS; j++) {
                const uint32_t d = threadIdx.x + THREADS * j;
                v[e][j] = at + e < to && d < kv.value_dim
                              ? value[(at + e) % SY_CUDA_KV_PAGE * sy_cu_value_stride(kv) + d]
                              : 0.0f;
            }
        }
        SY_UNROLL
        for (int e = 0; e < STEP; e++) {
            if (at + e >= to) break;
            const sy_cu_four *weight = s.scores.weight[(at + e) % SY_CUDA_SPLIT];
            const sy_cu_four weights[SY_CU_F32_QUERIES / 4] = {weight[0], weight[1]};
            SY_UNROLL
            for (int i = 0; i < SY_CU_F32_QUERIES; i++) {
                if (!is_whole && !sy_cu_sees(s.scores, i, at + e)) continue;
                SY_UNROLL
                for (int j = 0; j < DIMS; j++)
                    o[i][j] = fmaf(weights[i / 4].at[i % 4], v[e][j], o[i][j]);
            }
        }
    }
}

/* DIMS: dimensions of values a thread. */
template <int DIMS> struct sy_cu_f32_engine {
    static constexpr int QUERIES = SY_CU_F32_QUERIES, THREAD_QUERIES = QUERIES, THREAD_DIMS = DIMS;
    static constexpr bool IS_ROUNDED = false;
    typedef sy_cu_f32_shared shared;

    static __device__ __forceinline__ uint32_t query(int i)
    {
        return (uint32_t)i;
    }
    static __device__ __forceinline__ uint32_t dim(int j)
    {
        return threadIdx.x + THREADS * j;
    }

    /* Padded with zeros to whole chunks, as keys are. */
    static __device__ __forceinline__ void load_queries(shared &s, const sy_cu_attend &p,
                                                        const sy_cu_run &run)
    {
        const uint32_t padded = (p.kv.key_dim + CHUNK - 1) / CHUNK * CHUNK;

        for (uint32_t i = 0; i < QUERIES; i++)
            for (uint32_t d = threadIdx.x; d < padded; d += THREADS)
                s.query[i][d / 4].at[d % 4] = sy_cu_query_element(p, run, i, d);
    }

    /* Of this thread's key with every query. */
    static __device__ __forceinline__ void score_keys(shared &s, const sy_cu_attend &p,
                                                      const sy_cu_run &run, uint32_t begin)
    {
        float score[QUERIES] = {};

        for (uint32_t chunk = 0; chunk < p.kv.key_dim; chunk += CHUNK) {
            __syncthreads(); /* everybody has left the chunk before, and the weights */
            load_keys(s, p, run, begin, chunk);
            __syncthreads();
            for (uint32_t d = 0; d < CHUNK / 4; d++) {
                const sy_cu_four k = s.key[threadIdx.x][d];
                SY_UNROLL
                for (int i = 0; i < QUERIES; i++) {
                    const sy_cu_four q = s.query[i][chunk / 4 + d];
                    SY_UNROLL
                    for (int e = 0; e < 4; e++) score[i] = fmaf(q.at[e], k.at[e], score[i]);
                }
            }
        }
        SY_UNROLL
        for (int i = 0; i < QUERIES; i++)
            s.scores.weight[threadIdx.x][i / 4].at[i % 4] =
                sy_cu_sees(s.scores, i, begin + threadIdx.x) ? score[i] * p.a.scale
                                                             : sy_cu_minus_infinity();
    }

    static __device__ __forceinline__ void add_values(float o[QUERIES][DIMS], const shared &s,
                                                      const sy_cu_attend &p, const sy_cu_run &run,
                                                      uint32_t begin)
    {
        const uint32_t from = run.keys.first > begin ? run.keys.first : begin;
        const uint32_t to = min(run.keys.end, begin + SY_CUDA_SPLIT);
        const bool is_whole = sy_cu_is_whole(s.scores, run, from, to);

        for (uint32_t at = from; at < to;) {
            const uint32_t next = min(to, at - at % SY_CUDA_KV_PAGE + SY_CUDA_KV_PAGE);
            add_page<DIMS>(o, s, p.kv, sy_cu_values_at<float>(p.kv, run.sequence, at, run.kv_head),
                           at, next, is_whole);
            at = next;
        }
    }
};

template <int DIMS>
__global__ void __launch_bounds__(THREADS, MIN_BLOCKS) attend_kernel(sy_cu_attend p)
{
    SY_SHARED(sy_cu_f32_shared, shared, [1]);

    sy_cu_attend_block<sy_cu_f32_engine<DIMS>>(shared[0], p);
}

int sy_cu_attend_f32(const sy_cu_attend &p, dim3 grid, void *stream)
{
    if (p.kv.value_dim <= THREADS)
        return SY_LAUNCH((attend_kernel<1>), grid, dim3(THREADS), stream, p);
    if (p.kv.value_dim <= 2 * THREADS)
        return SY_LAUNCH((attend_kernel<2>), grid, dim3(THREADS), stream, p);
    return SY_LAUNCH((attend_kernel<4>), grid, dim3(THREADS), stream, p);
}
