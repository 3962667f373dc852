/* Causal attention, forward: a block owns 128 queries of one head and walks its keys from the
 * diagonal to the first, with the running softmax in registers. While the scores of the next keys
 * and the outputs of the last are on the tensor cores, the exponentials run beside them. */
#include "runtime/cuda/flash_common.cuh"

#include <math.h>

namespace mf_flash
{

static constexpr int forward_keys = MF_FLASH_TILE; /* so that only the first block has a mask */
static constexpr int forward_stages = 2;

struct forward_params {
    CUtensorMap q;
    CUtensorMap k;
    CUtensorMap v;
    struct schedule plan;
    __nv_bfloat16 *o;
    float *lse;
    int64_t o_stride;
    int32_t seq_len;
    int32_t heads;
    int32_t group;
    int32_t head_dim;
    float scale;
};

template <int DEPTH> struct forward_shared {
    __nv_bfloat16 q[MF_FLASH_GROUPS][64 * DEPTH];
    __nv_bfloat16 k[forward_stages][forward_keys * DEPTH];
    __nv_bfloat16 v[forward_stages][forward_keys * DEPTH];
    uint64_t q_full[MF_FLASH_GROUPS]; /* for each group its rows, so that one may be ahead */
    uint64_t q_free[MF_FLASH_GROUPS];
    uint64_t k_full[forward_stages];
    uint64_t k_free[forward_stages];
    uint64_t v_full[forward_stages];
    uint64_t v_free[forward_stages];
};

static __device__ __forceinline__ int32_t last_keys(const struct forward_params *p,
                                                    const struct tile *tile)
{
    int32_t end = min(tile->first + MF_FLASH_TILE, p->seq_len);
    return (end + forward_keys - 1) / forward_keys - 1;
}

template <int DEPTH>
static __device__ __forceinline__ void forward_copy_own(const struct forward_params *p,
                                                        struct forward_shared<DEPTH> *shared,
                                                        const struct tile *tile, ring<1> queries)
{
#pragma unroll
    for (int group = 0; group < MF_FLASH_GROUPS; group++) {
        barrier_wait(&shared->q_free[group], queries.parity() ^ 1);
        barrier_expect(&shared->q_full[group], 64 * DEPTH * 2);
        copy_tile<64, DEPTH>(&p->q, &shared->q_full[group], shared->q[group],
                             tile->first + group * 64, tile->head, tile->batch);
    }
}

/* One thread: copies what the others will read. */
template <int DEPTH>
static __device__ __forceinline__ void forward_copy(const struct forward_params *p,
                                                    struct forward_shared<DEPTH> *shared)
{
    constexpr uint32_t bytes = forward_keys * DEPTH * 2;
    ring<1> queries = {0};
    ring<forward_stages> keys = {0};
    for (int32_t turn = 0; turn < turns(&p->plan); turn++) {
        struct tile tile;
        if (!take(&p->plan, turn, &tile)) {
            continue;
        }
        int32_t head = tile.head / p->group;
        int32_t last = last_keys(p, &tile);
        for (int32_t block = last; block >= 0; block--, keys.count++) {
            uint32_t at = keys.stage();
            barrier_wait(&shared->k_free[at], keys.parity() ^ 1);
            barrier_expect(&shared->k_full[at], bytes);
            copy_tile<forward_keys, DEPTH>(&p->k, &shared->k_full[at], shared->k[at],
                                           block * forward_keys, head, tile.batch);
            if (block == last) {
                forward_copy_own<DEPTH>(p, shared, &tile, queries);
                queries.count++;
            }
            barrier_wait(&shared->v_free[at], keys.parity() ^ 1);
            barrier_expect(&shared->v_full[at], bytes);
            copy_tile<forward_keys, DEPTH>(&p->v, &shared->v_full[at], shared->v[at],
                                           block * forward_keys, head, tile.batch);
        }
    }
}

/* Scores of keys after their query become -inf: `row` and the first key count from one origin. */
static __device__ __forceinline__ void mask(float (&scores)[forward_keys / 2], int32_t row)
{
    int32_t column = (int32_t)threadIdx.x % 4 * 2;
#pragma unroll
    for (int index = 0; index < forward_keys / 2; index++) {
        if (index / 4 * 8 + column + index % 2 > row + index % 4 / 2 * 8) {
            scores[index] = -INFINITY;
        }
    }
}

/* The running softmax of a thread's two rows; `sum` is of the thread's own columns. */
struct softmax {
    float top[2];
    float sum[2];
    float shrink[2]; /* what the sums so far must be multiplied by */
};

static __device__ __forceinline__ void soften(float (&scores)[forward_keys / 2],
                                              struct softmax *state, float scale)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = state->top[half];
#pragma unroll
        for (int index = 0; index < forward_keys / 8; index++) {
            top = fmaxf(top, fmaxf(scores[4 * index + 2 * half], scores[4 * index + 2 * half + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        state->shrink[half] = exp2_fast((state->top[half] - top) * scale);
        state->top[half] = top;
        float offset = top * scale;
        float sum = 0.0f;
#pragma unroll
        for (int index = 0; index < forward_keys / 8; index++) {
#pragma unroll
            for (int at = 4 * index + 2 * half; at < 4 * index + 2 * half + 2; at++) {
                scores[at] = exp2_fast(fmaf(scores[at], scale, -offset));
                sum += scores[at];
            }
        }
        state->sum[half] = state->sum[half] * state->shrink[half] + sum;
    }
}

template <int COUNT>
static __device__ __forceinline__ void shrink_rows(float (&sums)[COUNT], const float (&by)[2])
{
#pragma unroll
    for (int index = 0; index < COUNT; index++) {
        sums[index] *= by[index % 4 / 2];
    }
}

template <int DEPTH>
static __device__ __forceinline__ void forward_store(const struct forward_params *p,
                                                     const struct tile *tile, struct softmax *state,
                                                     const float (&sums)[DEPTH / 2])
{
    float inverse[2];
    int64_t row = (int64_t)tile->batch * p->seq_len + tile->first;
    int32_t limit = p->seq_len - tile->first;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = state->sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        inverse[half] = 1.0f / sum;
        int32_t at = row_of_thread() + 8 * half;
        if (threadIdx.x % 4 == 0 && at < limit) {
            p->lse[(row + at) * p->heads + tile->head] =
                fmaf(state->top[half], p->scale, __logf(sum));
        }
    }
    store_rows<DEPTH>(sums, inverse, p->o + row * p->o_stride + tile->head * p->head_dim,
                      p->o_stride, limit, p->head_dim);
}

/* Scores of one block of keys, left running on the tensor cores. */
template <int DEPTH>
static __device__ __forceinline__ void start_scores(struct forward_shared<DEPTH> *shared,
                                                    ring<forward_stages> keys, uint64_t queries,
                                                    float (&scores)[forward_keys / 2])
{
    barrier_wait(&shared->k_full[keys.stage()], keys.parity());
    hold(scores);
    mma_fence();
    product_of_rows<forward_keys, DEPTH>(scores, queries, 64 * 128,
                                         rows_descriptor(shared_address(shared->k[keys.stage()])),
                                         forward_keys * 128);
    mma_commit();
}

template <int DEPTH>
static __device__ __forceinline__ void
start_outputs(struct forward_shared<DEPTH> *shared, ring<forward_stages> keys,
              uint32_t (&weights)[forward_keys / 4], float (&sums)[DEPTH / 2], int accumulate)
{
    barrier_wait(&shared->v_full[keys.stage()], keys.parity());
    hold(sums);
    hold(weights);
    mma_fence();
    product_of_columns<DEPTH, forward_keys>(
        sums, weights,
        columns_descriptor(shared_address(shared->v[keys.stage()]), forward_keys * 128),
        accumulate);
    mma_commit();
}

/* One warpgroup, one tile; `keys` counts the blocks of keys used since the kernel began. */
template <int DEPTH>
static __device__ __forceinline__ void
forward_tile(const struct forward_params *p, const struct tile *tile,
             struct forward_shared<DEPTH> *shared, uint32_t group, uint64_t queries,
             ring<forward_stages> *keys)
{
    float scale = p->scale * MF_FLASH_LOG2E;
    float scores[forward_keys / 2];
    float sums[DEPTH / 2];
    uint32_t weights[forward_keys / 4];
    struct softmax state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}, {0.0f, 0.0f}};
    start_scores<DEPTH>(shared, *keys, queries, scores);
    mma_wait<0>();
    hold(scores);
    barrier_release(&shared->k_free[keys->stage()]);
    mask(scores, row_of_thread());
    soften(scores, &state, scale);
    pack(scores, weights);
    int accumulate = 0;
    for (int32_t block = last_keys(p, tile); block > 0; block--) {
        ring<forward_stages> last = *keys;
        keys->count++;
        start_scores<DEPTH>(shared, *keys, queries, scores);
        start_outputs<DEPTH>(shared, last, weights, sums, accumulate);
        accumulate = 1;
        mma_wait<1>();
        hold(scores);
        barrier_release(&shared->k_free[keys->stage()]);
        soften(scores, &state, scale);
        mma_wait<0>();
        hold(sums);
        barrier_release(&shared->v_free[last.stage()]);
        shrink_rows(sums, state.shrink);
        pack(scores, weights);
    }
    barrier_release(&shared->q_free[group]);
    start_outputs<DEPTH>(shared, *keys, weights, sums, accumulate);
    mma_wait<0>();
    hold(sums);
    barrier_release(&shared->v_free[keys->stage()]);
    keys->count++;
    forward_store<DEPTH>(p, tile, &state, sums);
}

template <int DEPTH>
static __device__ __forceinline__ void forward_compute(const struct forward_params *p,
                                                       struct forward_shared<DEPTH> *shared,
                                                       uint32_t group)
{
    uint64_t queries = rows_descriptor(shared_address(shared->q[group]));
    ring<1> tiles = {0};
    ring<forward_stages> keys = {0};
    for (int32_t turn = 0; turn < turns(&p->plan); turn++) {
        struct tile tile;
        if (!take(&p->plan, turn, &tile)) {
            continue;
        }
        barrier_wait(&shared->q_full[group], tiles.parity());
        tiles.count++;
        forward_tile<DEPTH>(p, &tile, shared, group, queries, &keys);
    }
}

template <int DEPTH>
static __device__ __forceinline__ void forward_block(const struct forward_params *p)
{
    auto *shared = (struct forward_shared<DEPTH> *)shared_memory();
    if (threadIdx.x == 0) {
        for (int at = 0; at < MF_FLASH_GROUPS; at++) {
            barrier_init(&shared->q_full[at], 1);
            barrier_init(&shared->q_free[at], 4);
        }
        for (int at = 0; at < forward_stages; at++) {
            barrier_init(&shared->k_full[at], 1);
            barrier_init(&shared->k_free[at], MF_FLASH_WARPS);
            barrier_init(&shared->v_full[at], 1);
            barrier_init(&shared->v_free[at], MF_FLASH_WARPS);
        }
        barrier_publish();
    }
    __syncthreads();
    uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    if (group == 0) {
        registers_give<false>();
        if (threadIdx.x == 0) {
            forward_copy<DEPTH>(p, shared);
        }
    } else {
        registers_take<false>();
        forward_compute<DEPTH>(p, shared, group - 1);
    }
}

template <int DEPTH>
static __global__ void __launch_bounds__(MF_FLASH_THREADS, 1)
    forward_kernel(const __grid_constant__ struct forward_params p)
{
    MF_FLASH_RUN(forward_block<DEPTH>(&p));
}

} // namespace mf_flash

using namespace mf_flash;

bool mf_flash_supported(int head_dim)
{
    int device = 0;
    int major = 0;
    int minor = 0;
    return head_dim > 0 && head_dim <= 128 && head_dim % 8 == 0 &&
           cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) ==
               cudaSuccess &&
           major == 9 && minor == 0;
}

cudaError_t mf_flash_forward(const struct mf_flash_args *args, cudaStream_t stream)
{
    if (!valid(args) || !aligned(&args->q) || !aligned(&args->k) || !aligned(&args->v) ||
        !aligned(&args->o)) {
        return cudaErrorInvalidValue;
    }
    struct forward_params p = {};
    p.group = args->heads / args->kv_heads;
    p.plan = make_schedule(args, args->heads, head_bytes(args) / p.group, true);
    p.o = (__nv_bfloat16 *)args->o.pointer;
    p.o_stride = args->o.stride;
    p.lse = args->lse;
    p.seq_len = args->seq_len;
    p.heads = args->heads;
    p.head_dim = args->head_dim;
    p.scale = 1.0f / sqrtf((float)args->head_dim);
    cudaError_t error = map_operand(args, &args->q, args->heads, 64, &p.q);
    if (error == cudaSuccess) {
        error = map_operand(args, &args->k, args->kv_heads, forward_keys, &p.k);
    }
    if (error == cudaSuccess) {
        error = map_operand(args, &args->v, args->kv_heads, forward_keys, &p.v);
    }
    if (error != cudaSuccess) {
        return error;
    }
    return args->head_dim > 64 ? launch(forward_kernel<128>, p,
                                        sizeof(struct forward_shared<128>) + 1024, &p.plan, stream)
                               : launch(forward_kernel<64>, p,
                                        sizeof(struct forward_shared<64>) + 1024, &p.plan, stream);
}
