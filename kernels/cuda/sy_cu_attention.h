/* sy_cu_attention.h - what the kernels of attention share: where keys and values lie, what a row
 * sees, how splits are merged, and the way of a block through its splits.
 *
 * A block has some queries (heads that share a kv head, of one row or of neighbours of one
 * sequence) and goes through their keys a split at a time. What a split gives is a maximum m, the
 * sum l of exp(s - m), and the sum o of exp(s - m) v; splits lie at fixed positions and are merged
 * in ascending order, whoever does it, so that nothing but a row's own keys shows in its bits. A
 * query's sums take in the keys that it sees and no others, not even times zero: what others hold
 * there may be NaN.
 *
 * How a split is computed is an engine's, which has
 *   QUERIES, of a block at most; THREAD_QUERIES, THREAD_DIMS: the part of o that a thread has;
 *   IS_ROUNDED: weights are bf16;
 *   query(i), dim(j): which they are;
 *   shared: struct with `scores`, a sy_cu_scores<QUERIES>;
 *   load_queries(shared, p, run): from p.q, to where
 *   score_keys(shared, p, run, begin) finds them, which waits for all threads, then leaves the
 *     split's scores in scores.weight, -infinity for what is not seen;
 *   add_values(o, shared, p, run, begin): with scores.weight the weights. */
#ifndef SY_CU_ATTENTION_H
#define SY_CU_ATTENTION_H

#include "sy_cu_math.h"
#include "sy_cuda_trunk.h"

enum { SY_CU_ATTEND_THREADS = SY_CUDA_SPLIT, SY_CU_PAGES = SY_CUDA_SPLIT / SY_CUDA_KV_PAGE };
#define SY_CU_ALL_LANES 0xffffffffu

/* ---- where keys and values lie ---- */

static __device__ __forceinline__ size_t sy_cu_page_elements(const sy_cuda_kv &kv)
{
    return (size_t)kv.n_heads * SY_CUDA_KV_PAGE * (kv.key_dim + (kv.is_latent ? 0 : kv.value_dim));
}

/* The first key of one head on the page that holds a position. */
template <class Element>
static __device__ __forceinline__ Element *sy_cu_keys_at(const sy_cuda_kv &kv, uint32_t sequence,
                                                         uint32_t position, uint32_t head)
{
    const size_t page = kv.page[(size_t)sequence * kv.pages_max + position / SY_CUDA_KV_PAGE];

    return static_cast<Element *>(kv.data) + page * sy_cu_page_elements(kv) +
           (size_t)head * SY_CUDA_KV_PAGE * kv.key_dim;
}

/* Its first value, and how far apart values are. */
template <class Element>
static __device__ __forceinline__ Element *sy_cu_values_at(const sy_cuda_kv &kv, uint32_t sequence,
                                                           uint32_t position, uint32_t head)
{
    Element *keys = sy_cu_keys_at<Element>(kv, sequence, position, 0);

    if (kv.is_latent) return keys;
    return keys + (size_t)kv.n_heads * SY_CUDA_KV_PAGE * kv.key_dim +
           (size_t)head * SY_CUDA_KV_PAGE * kv.value_dim;
}

static __device__ __forceinline__ uint32_t sy_cu_value_stride(const sy_cuda_kv &kv)
{
    return kv.is_latent ? kv.key_dim : kv.value_dim;
}

/* ---- merging ---- */

struct sy_cu_factors {
    float before, fresh;
};

static __device__ __forceinline__ float sy_cu_minus_infinity()
{
    return __uint_as_float(0xff800000u);
}

/* What exponents are taken from: where all scores are -infinity, their weights shall be zeros. */
static __device__ __forceinline__ float sy_cu_reference_of(float max)
{
    return max == sy_cu_minus_infinity() ? 0.0f : max;
}

/* Takes (m, l) into (max, sum); the same goes for the sums of values, by the factors. */
static __device__ __forceinline__ sy_cu_factors sy_cu_merge(float *max, float *sum, float m,
                                                            float l)
{
    const float top = m > *max ? m : *max, reference = sy_cu_reference_of(top);
    const sy_cu_factors f = {sy_cu_exp(*max - reference), sy_cu_exp(m - reference)};

    *sum = fmaf(*sum, f.before, l * f.fresh);
    *max = top;
    return f;
}

static __device__ __forceinline__ float sy_cu_merge_value(float before, float fresh,
                                                          sy_cu_factors f)
{
    return fmaf(before, f.before, fresh * f.fresh);
}

/* A sink is a split with the weight 1 and no value. */
static __device__ __forceinline__ float sy_cu_finish_value(float o, float max, float sum,
                                                           const float *sinks, uint32_t head)
{
    if (sinks != nullptr) o *= sy_cu_merge(&max, &sum, sinks[head], 1.0f).before;
    return o / sum;
}

/* ---- what a row sees ---- */

struct sy_cu_range {
    uint32_t first, end;
};

static __device__ __forceinline__ sy_cu_range sy_cu_keys_of(const sy_cuda_attention &a,
                                                            uint32_t position)
{
    sy_cu_range r = {0, position + 1}; /* SY_CUDA_NO_POSITION: none */

    if (r.end == 0) return r;
    if (a.window != 0 && position >= a.window) r.first = position - a.window + 1;
    if (a.chunk != 0 && position - position % a.chunk > r.first)
        r.first = position - position % a.chunk;
    return r;
}

static __device__ __forceinline__ bool sy_cu_sees_any(sy_cu_range r, uint32_t begin, uint32_t end)
{
    return r.first < end && r.end > begin && r.first < r.end;
}

/* ---- a block's queries ---- */

/* What a launch is given. A block's queries are `heads` heads of each of `rows` rows. */
struct sy_cu_attend {
    float *out;
    const float *q;
    const uint32_t *position, *sequence, *n_rows;
    sy_cuda_kv kv;
    sy_cuda_attention a;
    uint32_t group; /* query heads of a kv head, in parts of `heads` */
    uint32_t parts, heads, rows;
    uint32_t n_splits;
};

/* A block's queries of one sequence: rows [row, row + n_rows), heads [head, head + n_heads), row by
 * row. */
struct sy_cu_run {
    uint32_t row, n_rows, sequence;
    uint32_t head, n_heads, kv_head;
    sy_cu_range keys; /* that any of them sees */
};

static __device__ __forceinline__ uint32_t sy_cu_row_of(const sy_cu_run &run, uint32_t query)
{
    return run.row + query / run.n_heads;
}

static __device__ __forceinline__ bool sy_cu_is_query(const sy_cu_run &run, uint32_t query)
{
    return query < run.n_rows * run.n_heads;
}

/* Its place in [T,n_heads]. */
static __device__ __forceinline__ size_t sy_cu_place_of(const sy_cu_attend &p, const sy_cu_run &run,
                                                        uint32_t query)
{
    return (size_t)sy_cu_row_of(run, query) * p.a.n_heads + run.head + query % run.n_heads;
}

/* The rows from `row` on, before `end`, that are of its sequence. */
static __device__ __forceinline__ sy_cu_run sy_cu_find_run(const sy_cu_attend &p, uint32_t row,
                                                           uint32_t end)
{
    const uint32_t part = blockIdx.x % p.parts;
    sy_cu_run run = {row, 0, p.sequence[row], 0, 0, blockIdx.x / p.parts, {0, 0}};

    run.head = run.kv_head * p.group + part * p.heads;
    run.n_heads = min(p.heads, p.group - part * p.heads);
    for (; row < end && p.sequence[row] == run.sequence; row++, run.n_rows++) {
        const sy_cu_range r = sy_cu_keys_of(p.a, p.position[row]);
        if (r.end == 0) continue;
        run.keys.first = run.keys.end == 0 ? r.first : min(run.keys.first, r.first);
        run.keys.end = run.keys.end < r.end ? r.end : run.keys.end;
    }
    return run;
}

/* Element d of a query; zero past its end, and where there is no such query. */
static __device__ __forceinline__ float sy_cu_query_element(const sy_cu_attend &p,
                                                            const sy_cu_run &run, uint32_t query,
                                                            uint32_t d)
{
    if (!sy_cu_is_query(run, query) || d >= p.kv.key_dim) return 0.0f;
    return p.q[sy_cu_place_of(p, run, query) * p.kv.key_dim + d];
}

/* ---- scores ---- */

static __device__ __forceinline__ float sy_cu_from_bf16(uint16_t v)
{
    return __uint_as_float((uint32_t)v << 16);
}

/* Read by one instruction. */
struct alignas(16) sy_cu_four {
    float at[4];
};

template <int QUERIES> struct sy_cu_scores {
    /* Of a key; one more, so that keys lie in different banks. */
    sy_cu_four weight[SY_CUDA_SPLIT][QUERIES / 4 + 1];
    float max[QUERIES], sum[QUERIES];
    sy_cu_range sees[QUERIES]; /* {0, 0}: there is no such query */
};

template <int QUERIES>
static __device__ __forceinline__ void sy_cu_set_sees(sy_cu_scores<QUERIES> &s,
                                                      const sy_cu_attend &p, const sy_cu_run &run)
{
    const uint32_t i = threadIdx.x;

    if (i < QUERIES)
        s.sees[i] = sy_cu_is_query(run, i) ? sy_cu_keys_of(p.a, p.position[sy_cu_row_of(run, i)])
                                           : sy_cu_range{0, 0};
}

template <int QUERIES>
static __device__ __forceinline__ bool sy_cu_sees(const sy_cu_scores<QUERIES> &s, uint32_t query,
                                                  uint32_t key)
{
    return key >= s.sees[query].first && key < s.sees[query].end;
}

/* Whether every query sees all of keys [from, to). */
template <int QUERIES>
static __device__ __forceinline__ bool sy_cu_is_whole(const sy_cu_scores<QUERIES> &s,
                                                      const sy_cu_run &run, uint32_t from,
                                                      uint32_t to)
{
    for (uint32_t i = 0; i < run.n_rows * run.n_heads; i++)
        if (s.sees[i].first > from || s.sees[i].end < to) return false;
    return true;
}

/* From scores to weights, maximum and sum, a warp a query. */
template <class Engine>
static __device__ __forceinline__ void sy_cu_soften(sy_cu_scores<Engine::QUERIES> &s)
{
    const uint32_t lane = threadIdx.x % 32;

    for (uint32_t i = threadIdx.x / 32; i < Engine::QUERIES; i += SY_CU_ATTEND_THREADS / 32) {
        float max = sy_cu_minus_infinity(), sum = 0.0f;
        for (uint32_t j = lane; j < SY_CUDA_SPLIT; j += 32) {
            const float score = s.weight[j][i / 4].at[i % 4];
            max = score > max ? score : max;
        }
        for (int step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(SY_CU_ALL_LANES, max, step);
            max = other > max ? other : max;
        }
        for (uint32_t j = lane; j < SY_CUDA_SPLIT; j += 32) {
            float *weight = &s.weight[j][i / 4].at[i % 4];
            float w = sy_cu_exp(*weight - sy_cu_reference_of(max));
            if (Engine::IS_ROUNDED) w = sy_cu_from_bf16(sy_cu_to_bf16(w));
            *weight = w;
            sum += w;
        }
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(SY_CU_ALL_LANES, sum, step);
        if (lane == 0) {
            s.max[i] = max;
            s.sum[i] = sum;
        }
    }
    __syncthreads();
}

/* ---- the way through the splits ---- */

/* (m, l, o) of one split, for every query: scores.max, scores.sum, and this thread's part of o. */
template <class Engine>
static __device__ __forceinline__ void sy_cu_attend_split(
    float o[Engine::THREAD_QUERIES][Engine::THREAD_DIMS], typename Engine::shared &s,
    const sy_cu_attend &p, const sy_cu_run &run, uint32_t begin)
{
    SY_UNROLL
    for (int i = 0; i < Engine::THREAD_QUERIES; i++) {
        SY_UNROLL
        for (int j = 0; j < Engine::THREAD_DIMS; j++) o[i][j] = 0.0f;
    }
    Engine::score_keys(s, p, run, begin);
    __syncthreads();
    sy_cu_soften<Engine>(s.scores);
    Engine::add_values(o, s, p, run, begin);
}

/* Where a query's part of a split lies: its o, then m and l. */
static __device__ __forceinline__ float *sy_cu_partial_at(const sy_cuda_attention &a,
                                                          uint32_t value_dim, uint32_t n_splits,
                                                          size_t place, uint32_t split)
{
    return a.partial + (place * n_splits + split) * ((size_t)value_dim + 2);
}

template <class Engine>
static __device__ __forceinline__ void sy_cu_store_split(
    const float o[Engine::THREAD_QUERIES][Engine::THREAD_DIMS], const typename Engine::shared &s,
    const sy_cu_attend &p, const sy_cu_run &run, uint32_t split)
{
    const uint32_t begin = split * SY_CUDA_SPLIT, value_dim = p.kv.value_dim;

    SY_UNROLL
    for (int i = 0; i < Engine::THREAD_QUERIES; i++) {
        const uint32_t query = Engine::query(i);
        if (!sy_cu_sees_any(s.scores.sees[query], begin, begin + SY_CUDA_SPLIT)) continue;
        float *to =
            sy_cu_partial_at(p.a, value_dim, p.n_splits, sy_cu_place_of(p, run, query), split);
        SY_UNROLL
        for (int j = 0; j < Engine::THREAD_DIMS; j++)
            if (Engine::dim(j) < value_dim) to[Engine::dim(j)] = o[i][j];
        if (Engine::dim(0) == 0) {
            to[value_dim] = s.scores.max[query];
            to[value_dim + 1] = s.scores.sum[query];
        }
    }
}

template <class Engine>
static __device__ __forceinline__ void sy_cu_store_out(
    const float total[Engine::THREAD_QUERIES][Engine::THREAD_DIMS],
    const float max[Engine::THREAD_QUERIES], const float sum[Engine::THREAD_QUERIES],
    const typename Engine::shared &s, const sy_cu_attend &p, const sy_cu_run &run)
{
    SY_UNROLL
    for (int i = 0; i < Engine::THREAD_QUERIES; i++) {
        const uint32_t query = Engine::query(i);
        if (!sy_cu_is_query(run, query)) continue;
        const size_t place = sy_cu_place_of(p, run, query);
        const uint32_t head = (uint32_t)(place % p.a.n_heads);
        SY_UNROLL
        for (int j = 0; j < Engine::THREAD_DIMS; j++)
            if (Engine::dim(j) < p.kv.value_dim)
                p.out[place * p.kv.value_dim + Engine::dim(j)] =
                    s.scores.sees[query].end == 0
                        ? 0.0f
                        : sy_cu_finish_value(total[i][j], max[i], sum[i], p.a.sinks, head);
    }
}

/* Every split of a run, one after the other, and its results. */
template <class Engine>
static __device__ __forceinline__ void sy_cu_attend_run(typename Engine::shared &s,
                                                        const sy_cu_attend &p, const sy_cu_run &run)
{
    float total[Engine::THREAD_QUERIES][Engine::THREAD_DIMS] = {};
    float o[Engine::THREAD_QUERIES][Engine::THREAD_DIMS];
    float max[Engine::THREAD_QUERIES], sum[Engine::THREAD_QUERIES] = {};

    SY_UNROLL
    for (int i = 0; i < Engine::THREAD_QUERIES; i++) max[i] = sy_cu_minus_infinity();
    for (uint32_t begin = run.keys.first / SY_CUDA_SPLIT * SY_CUDA_SPLIT; begin < run.keys.end;
         begin += SY_CUDA_SPLIT) {
        sy_cu_attend_split<Engine>(o, s, p, run, begin);
        SY_UNROLL
        for (int i = 0; i < Engine::THREAD_QUERIES; i++) {
            const uint32_t query = Engine::query(i);
            if (!sy_cu_sees_any(s.scores.sees[query], begin, begin + SY_CUDA_SPLIT)) continue;
            const sy_cu_factors f =
                sy_cu_merge(&max[i], &sum[i], s.scores.max[query], s.scores.sum[query]);
            SY_UNROLL
            for (int j = 0; j < Engine::THREAD_DIMS; j++)
                total[i][j] = sy_cu_merge_value(total[i][j], o[i][j], f);
        }
    }
    sy_cu_store_out<Engine>(total, max, sum, s, p, run);
}

/* Grid: (kv heads * parts, rows / p.rows, splits or 1). */
template <class Engine>
static __device__ __forceinline__ void sy_cu_attend_block(typename Engine::shared &s,
                                                          const sy_cu_attend &p)
{
    const uint32_t end = min((blockIdx.y + 1) * p.rows, *p.n_rows);
    const uint32_t split = blockIdx.z, begin = split * SY_CUDA_SPLIT;

    for (uint32_t row = blockIdx.y * p.rows; row < end;) {
        const sy_cu_run run = sy_cu_find_run(p, row, end);
        row += run.n_rows;
        if (p.a.partial != nullptr && !sy_cu_sees_any(run.keys, begin, begin + SY_CUDA_SPLIT))
            continue;
        __syncthreads(); /* everybody has left the run before */
        sy_cu_set_sees(s.scores, p, run);
        Engine::load_queries(s, p, run);
        __syncthreads();
        if (p.a.partial == nullptr) {
            sy_cu_attend_run<Engine>(s, p, run);
        } else {
            float o[Engine::THREAD_QUERIES][Engine::THREAD_DIMS];
            sy_cu_attend_split<Engine>(o, s, p, run, begin);
            sy_cu_store_split<Engine>(o, s, p, run, split);
        }
    }
}

/* ---- the engines, for cu_attention.cu ---- */

enum { SY_CU_F32_QUERIES = 8, SY_CU_BF16_QUERIES = 16 };
int sy_cu_attend_f32(const sy_cu_attend &p, dim3 grid, void *stream);
int sy_cu_attend_bf16(const sy_cu_attend &p, dim3 grid, void *stream);

#endif
