/* cu_route.cu - the pairs of a step, sorted by expert: a counting sort whose places are sums of
 * counts before, never of what arrived first, so that no order of threads shows.
 *
 * A block sorts a part of the pairs; a warp of it a run of that, 32 at a time, each lane counting
 * the equals in the lanes before it by ballots. One block does all of a small step in one launch. A
 * large one takes three: blocks count, one block places the experts and makes the tiles, blocks
 * count again and write. */
#include "sy_cu.h"
#include "sy_cuda_route.h"

enum {
    WARPS = 16,
    THREADS = WARPS * 32,
    BINS = SY_CUDA_ROUTE_EXPERTS_MAX + 1, /* the last one in use: elsewhere */
    BIN_BITS = 10,
    NO_BIN = (1 << BIN_BITS) - 1, /* of a lane past the end of its run */
    CHUNKS_ONE = 16,              /* of 32 pairs, a warp, where one block does all */
    CHUNKS_EACH = 4,              /* and where many do: more blocks to read with */
    PAIRS_ONE = CHUNKS_ONE * THREADS,
    PAIRS_EACH = CHUNKS_EACH * THREADS
};
static_assert(BINS - 1 <= THREADS, "scan_bins has a thread for each expert");
static_assert(BINS <= NO_BIN, "a bin in use is not NO_BIN");
#define ALL_LANES 0xffffffffu

typedef uint32_t sy_cu_bins[BINS];
typedef sy_cu_bins sy_cu_counts[WARPS];
typedef uint64_t sy_cu_warp_sums[WARPS];

/* What is sorted. */
struct sy_cu_pairs {
    const uint32_t *expert, *slot;
    uint32_t n, k, n_experts;
};

static __device__ __forceinline__ uint32_t bin_of(const sy_cu_pairs &pairs, uint32_t pair)
{
    const uint32_t e = pairs.expert[pair];

    if (e >= pairs.n_experts) return pairs.n_experts;
    return pairs.slot != nullptr && pairs.slot[e] == SY_CUDA_ELSEWHERE ? pairs.n_experts : e;
}

/* The bins of this thread's pairs: of each chunk that of its lane, of the chunks those from
 * *first + lane on. The pairs are [begin, end) of the block. */
template <int CHUNKS>
static __device__ __forceinline__ void load_bins(uint32_t bin[CHUNKS], uint32_t *first,
                                                 const sy_cu_pairs &pairs, uint32_t begin,
                                                 uint32_t end)
{
    const uint32_t run = (end - begin + THREADS - 1) / THREADS * 32;
    const uint32_t run_begin = begin + threadIdx.x / 32 * run, run_end = min(run_begin + run, end);

    *first = run_begin + threadIdx.x % 32;
    SY_UNROLL
    for (int c = 0; c < CHUNKS; c++) {
        const uint32_t pair = *first + c * 32;
        bin[c] = pair < run_end ? bin_of(pairs, pair) : (uint32_t)NO_BIN;
    }
}

/* The lanes whose bin is this lane's. */
static __device__ __forceinline__ uint32_t peers_of(uint32_t bin)
{
    uint32_t peers = ALL_LANES;

    SY_UNROLL
    for (int b = 0; b < BIN_BITS; b++) {
        const uint32_t ones = __ballot_sync(ALL_LANES, bin >> b & 1);
        peers &= bin >> b & 1 ? ones : ~ones;
    }
    return peers;
}

/* place[c]: how many of the warp's pairs of the same bin are before that of chunk c. Then count[w]
 * is what warp w has of each bin. */
template <int CHUNKS>
static __device__ __forceinline__ void count_runs(uint32_t place[CHUNKS], sy_cu_counts &count,
                                                  const uint32_t bin[CHUNKS], uint32_t n_bins)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    for (uint32_t b = lane; b < n_bins; b += 32) count[warp][b] = 0;
    __syncwarp();
    SY_UNROLL
    for (int c = 0; c < CHUNKS; c++) {
        const uint32_t peers = peers_of(bin[c]), before = peers & ((1u << lane) - 1);
        if (bin[c] != NO_BIN) place[c] = count[warp][bin[c]] + (uint32_t)__popc(before);
        __syncwarp();
        if (bin[c] != NO_BIN && before == 0) count[warp][bin[c]] += (uint32_t)__popc(peers);
        __syncwarp();
    }
}

/* count[w] becomes what the warps before w have, total what all have. */
static __device__ __forceinline__ void scan_warps(sy_cu_bins &total, sy_cu_counts &count,
                                                  uint32_t n_bins)
{
    __syncthreads();
    for (uint32_t b = threadIdx.x; b < n_bins; b += THREADS) {
        uint32_t sum = 0;
        for (uint32_t w = 0; w < WARPS; w++) {
            const uint32_t n = count[w][b];
            count[w][b] = sum;
            sum += n;
        }
        total[b] = sum;
    }
    __syncthreads();
}

/* Where the rows and the tiles of each expert begin, and, at [E], end. Both are scanned at once,
 * tiles in the upper half of a word. */
static __device__ __forceinline__ void scan_bins(sy_cu_bins &begin, sy_cu_bins &tile_begin,
                                                 sy_cu_warp_sums &warp_sum, const sy_cu_bins &total,
                                                 uint32_t n_experts, uint32_t tokens)
{
    const uint32_t e = threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t n = e < n_experts ? total[e] : 0;
    uint64_t sum = (uint64_t)((n + tokens - 1) / tokens) << 32 | n;

    for (uint32_t step = 1; step < 32; step *= 2) {
        const uint64_t before = __shfl_up_sync(ALL_LANES, sum, step);
        if (lane >= step) sum += before;
    }
    if (lane == 31) warp_sum[warp] = sum;
    __syncthreads();
    for (uint32_t w = 0; w < warp; w++) sum += warp_sum[w];
    if (e == 0) begin[0] = tile_begin[0] = 0;
    if (e < n_experts) {
        begin[e + 1] = (uint32_t)sum;
        tile_begin[e + 1] = (uint32_t)(sum >> 32);
    }
    __syncthreads();
}

/* A thread a tile, which finds its expert: an expert with all of the rows would keep one thread
 * busy while the others wait. */
static __device__ __forceinline__ void write_tiles(const sy_cuda_routes &out,
                                                   const sy_cu_bins &begin,
                                                   const sy_cu_bins &tile_begin,
                                                   const sy_cu_pairs &pairs, uint32_t tokens)
{
    const uint32_t n_experts = pairs.n_experts, n_tiles = tile_begin[n_experts];

    for (uint32_t t = threadIdx.x; t < n_tiles; t += THREADS) {
        uint32_t e = 0, above = n_experts; /* tile_begin[e] <= t < tile_begin[above] */
        while (above - e > 1) {
            const uint32_t middle = (e + above) / 2;
            if (tile_begin[middle] <= t) {
                e = middle;
            } else {
                above = middle;
            }
        }
        const uint32_t at = begin[e] + (t - tile_begin[e]) * tokens;
        out.tiles[t].expert = pairs.slot == nullptr ? e : pairs.slot[e];
        out.tiles[t].begin = at;
        out.tiles[t].end = min(at + tokens, begin[e + 1]);
    }
    for (uint32_t e = threadIdx.x; e <= n_experts; e += THREADS) out.begin[e] = begin[e];
    if (threadIdx.x == 0) {
        *out.n_tiles = n_tiles;
        *out.n_elsewhere = pairs.n - begin[n_experts];
    }
}

/* begin: where the block's part of each bin begins. */
template <int CHUNKS>
static __device__ __forceinline__ void write_rows(
    const sy_cuda_routes &out, const sy_cu_bins &begin, const sy_cu_counts &count,
    const uint32_t bin[CHUNKS], const uint32_t place[CHUNKS], uint32_t first, uint32_t k)
{
    SY_UNROLL
    for (int c = 0; c < CHUNKS; c++) {
        if (bin[c] == NO_BIN) continue;
        const uint32_t pair = first + c * 32;
        const uint32_t row = begin[bin[c]] + count[threadIdx.x / 32][bin[c]] + place[c];
        out.pos[pair] = row;
        out.x_row[row] = pair / k;
    }
}

__global__ void __launch_bounds__(THREADS)
    route_kernel(sy_cuda_routes out, sy_cu_pairs pairs, uint32_t tokens)
{
    SY_SHARED(sy_cu_bins, count, [WARPS]);
    SY_SHARED(uint32_t, total, [BINS]);
    SY_SHARED(uint32_t, begin, [BINS]);
    SY_SHARED(uint32_t, tile_begin, [BINS]);
    SY_SHARED(uint64_t, warp_sum, [WARPS]);
    uint32_t bin[CHUNKS_ONE], place[CHUNKS_ONE], first;

    load_bins<CHUNKS_ONE>(bin, &first, pairs, 0, pairs.n);
    count_runs<CHUNKS_ONE>(place, count, bin, pairs.n_experts + 1);
    scan_warps(total, count, pairs.n_experts + 1);
    scan_bins(begin, tile_begin, warp_sum, total, pairs.n_experts, tokens);
    write_tiles(out, begin, tile_begin, pairs, tokens);
    write_rows<CHUNKS_ONE>(out, begin, count, bin, place, first, pairs.k);
}

/* part[block][bin]: what the block has. */
__global__ void __launch_bounds__(THREADS) route_count_kernel(uint32_t *part, sy_cu_pairs pairs)
{
    SY_SHARED(sy_cu_bins, count, [WARPS]);
    SY_SHARED(uint32_t, total, [BINS]);
    const uint32_t n_bins = pairs.n_experts + 1, begin = blockIdx.x * PAIRS_EACH;
    uint32_t bin[CHUNKS_EACH], place[CHUNKS_EACH], first;

    load_bins<CHUNKS_EACH>(bin, &first, pairs, begin, min(begin + PAIRS_EACH, pairs.n));
    count_runs<CHUNKS_EACH>(place, count, bin, n_bins);
    scan_warps(total, count, n_bins);
    for (uint32_t b = threadIdx.x; b < n_bins; b += THREADS)
        part[(size_t)blockIdx.x * n_bins + b] = total[b];
}

/* part[block] becomes what the blocks before it have. */
__global__ void __launch_bounds__(THREADS)
    route_place_kernel(sy_cuda_routes out, uint32_t *part, uint32_t n_parts, sy_cu_pairs pairs,
                       uint32_t tokens)
{
    SY_SHARED(uint32_t, total, [BINS]);
    SY_SHARED(uint32_t, begin, [BINS]);
    SY_SHARED(uint32_t, tile_begin, [BINS]);
    SY_SHARED(uint64_t, warp_sum, [WARPS]);
    const uint32_t n_bins = pairs.n_experts + 1;

    for (uint32_t b = threadIdx.x; b < n_bins; b += THREADS) {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < n_parts; i++) {
            const uint32_t n = part[(size_t)i * n_bins + b];
            part[(size_t)i * n_bins + b] = sum;
            sum += n;
        }
        total[b] = sum;
    }
    __syncthreads();
    scan_bins(begin, tile_begin, warp_sum, total, pairs.n_experts, tokens);
    write_tiles(out, begin, tile_begin, pairs, tokens);
}

__global__ void __launch_bounds__(THREADS)
    route_write_kernel(sy_cuda_routes out, const uint32_t *part, sy_cu_pairs pairs)
{
    SY_SHARED(sy_cu_bins, count, [WARPS]);
    SY_SHARED(uint32_t, total, [BINS]);
    SY_SHARED(uint32_t, begin, [BINS]);
    const uint32_t n_bins = pairs.n_experts + 1, from = blockIdx.x * PAIRS_EACH;
    uint32_t bin[CHUNKS_EACH], place[CHUNKS_EACH], first;

    load_bins<CHUNKS_EACH>(bin, &first, pairs, from, min(from + PAIRS_EACH, pairs.n));
    count_runs<CHUNKS_EACH>(place, count, bin, n_bins);
    for (uint32_t b = threadIdx.x; b < n_bins; b += THREADS)
        begin[b] = out.begin[b] + part[(size_t)blockIdx.x * n_bins + b];
    scan_warps(total, count, n_bins);
    write_rows<CHUNKS_EACH>(out, begin, count, bin, place, first, pairs.k);
}

static uint32_t n_parts_of(uint32_t n_pairs)
{
    return (n_pairs + PAIRS_EACH - 1) / PAIRS_EACH;
}

extern "C" uint32_t sy_cuda_route_tiles_max(const sy_cuda_route_dims *dims, sy_cuda_variant variant)
{
    const uint64_t tokens = sy_cuda_variant_tokens(variant);
    const uint64_t n_pairs = (uint64_t)dims->n_tokens * dims->k;
    const uint64_t n_experts = n_pairs < dims->n_experts ? n_pairs : dims->n_experts;

    /* Every expert with rows may have a tile that holds just one. */
    return (uint32_t)((n_pairs + n_experts * (tokens - 1)) / tokens);
}

extern "C" size_t sy_cuda_route_scratch_bytes(const sy_cuda_route_dims *dims)
{
    const uint32_t n_pairs = dims->n_tokens * dims->k;

    if (n_pairs <= PAIRS_ONE) return 0;
    return (size_t)n_parts_of(n_pairs) * (dims->n_experts + 1) * sizeof(uint32_t);
}

extern "C" int sy_cuda_route(const sy_cuda_routes *out, const uint32_t *expert,
                             const uint32_t *slot, const sy_cuda_route_dims *dims,
                             sy_cuda_variant variant, void *stream)
{
    const uint32_t n_pairs = dims->n_tokens * dims->k, tokens = sy_cuda_variant_tokens(variant);
    const sy_cu_pairs pairs = {expert, slot, n_pairs, dims->k, dims->n_experts};
    const uint32_t n_parts = n_parts_of(n_pairs);
    uint32_t *part = static_cast<uint32_t *>(out->scratch);
    int error;

    if (n_pairs <= PAIRS_ONE)
        return SY_LAUNCH(route_kernel, dim3(1), dim3(THREADS), stream, *out, pairs, tokens);
    error = SY_LAUNCH(route_count_kernel, dim3(n_parts), dim3(THREADS), stream, part, pairs);
    if (error != 0) return error;
    error = SY_LAUNCH(route_place_kernel, dim3(1), dim3(THREADS), stream, *out, part, n_parts,
                      pairs, tokens);
    if (error != 0) return error;
    return SY_LAUNCH(route_write_kernel, dim3(n_parts), dim3(THREADS), stream, *out, part, pairs);
}
