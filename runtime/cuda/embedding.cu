/* Token and position embeddings; core/kernel.h says what each operand is. */
#include "runtime/cuda/common.cuh"
#include "runtime/cuda/kernels.h"

#define THREADS 128
#define PANEL_ALIGN 64
#define SCAN (THREADS * 8) /* tokens looked at between two rounds of sums */
#define SWEEPERS_MAX 8192  /* blocks that look for rows to clear */

template <int VEC>
static __global__ void __launch_bounds__(THREADS)
    gather(const int32_t *tokens, int64_t first, int64_t k, const bf16 *weight, bf16 *y,
           int64_t stride, int64_t rows, int64_t n)
{
    int64_t column = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VEC;
    for (int64_t row = blockIdx.y; row < rows && column < n; row += gridDim.y) {
        int64_t index = tokens[row] - first;
        if (index >= 0 && index < k) {
            store(y + row * stride + column, load<VEC>(weight + index * n + column));
        }
    }
}

cudaError_t mf_cuda_embedding_forward(const struct mf_cuda_context *context,
                                      const struct mf_kernel_call *call)
{
    const struct mf_shape *s = &call->shape;
    const struct mf_operand *o = call->operands;
    bool wide = packable(o[1].pointer, 0, s->n, 8) && packable(o[2].pointer, o[2].stride, s->n, 8);
    dim3 grid((unsigned)blocks_for(s->n, THREADS * (wide ? 8 : 1)), grid_rows(s->rows));
    (wide ? gather<8> : gather<1>)<<<grid, THREADS, 0, context->stream>>>(
        (const int32_t *)o[0].pointer, call->index0, s->k, (const bf16 *)o[1].pointer,
        (bf16 *)o[2].pointer, o[2].stride, s->rows, s->n);
    return cudaGetLastError();
}

/* Where tokens[start + i] is `wanted`, in order, for i below SCAN; returns how many. */
__device__ static int find_tokens(const int32_t *tokens, int64_t start, int64_t rows,
                                  int64_t wanted, int32_t *found, int *counts)
{
    int warp = threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    unsigned hits[SCAN / THREADS];
    int count = 0;
    for (int round = 0; round < SCAN / THREADS; round++) { /* a warp looks at 256 in a row */
        int64_t row = start + warp * (SCAN / 4) + round * 32 + lane;
        hits[round] = __ballot_sync(0xffffffffu, row < rows && tokens[row] == wanted);
        count += __popc(hits[round]);
    }
    __syncthreads();
    if (lane == 0) {
        counts[warp] = count;
    }
    __syncthreads();
    int place = 0;
    for (int before = 0; before < warp; before++) {
        place += counts[before];
    }
    for (int round = 0; round < SCAN / THREADS; round++) {
        if ((hits[round] >> lane & 1u) != 0) {
            found[place + __popc(hits[round] & ((1u << lane) - 1u))] =
                (int32_t)(start + warp * (SCAN / 4) + round * 32 + lane);
        }
        place += __popc(hits[round]);
    }
    __syncthreads();
    return counts[0] + counts[1] + counts[2] + counts[3];
}

/* One block a row of the panel (and a range of columns): looks for its token, sums in order. */
template <int VEC>
static __global__ void __launch_bounds__(THREADS)
    scatter(const int32_t *tokens, int64_t first, int64_t k, const bf16 *dy, int64_t stride,
            bf16 *out, int64_t rows, int64_t n)
{
    __shared__ int32_t found[SCAN];
    __shared__ int counts[4];
    int64_t column = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * VEC;
    for (int64_t index = blockIdx.x; index < k; index += gridDim.x) {
        float sums[VEC] = {};
        for (int64_t start = 0; start < rows; start += SCAN) {
            int count = find_tokens(tokens, start, rows, first + index, found, counts);
            for (int i = 0; i < count && column < n; i++) {
                pack<VEC> gradient = load<VEC>(dy + found[i] * stride + column);
                for (int j = 0; j < VEC; j++) {
                    sums[j] += widen(gradient.at[j]);
                }
            }
        }
        if (column < n) {
            pack<VEC> result;
            for (int j = 0; j < VEC; j++) {
                result.at[j] = narrow(sums[j]);
            }
            store(out + index * n + column, result);
        }
    }
}

#define MARK_NOW 2 /* between the two kernels: written by this call */

/* The same sums, one block a token (and a range of columns): the first of its kind writes the row,
 * the others leave at once. */
template <int VEC>
static __global__ void __launch_bounds__(THREADS)
    scatter_touched(const int32_t *tokens, int64_t first, int64_t k, const bf16 *dy, int64_t stride,
                    bf16 *out, uint8_t *marks, int64_t rows, int64_t n)
{
    __shared__ int32_t found[SCAN];
    __shared__ int counts[4];
    int64_t column = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * VEC;
    for (int64_t token = blockIdx.x; token < rows; token += gridDim.x) {
        int64_t index = tokens[token] - first;
        if (index < 0 || index >= k) {
            continue;
        }
        float sums[VEC] = {};
        bool seen = false;
        bool mine = true;
        for (int64_t start = 0; start < rows && mine; start += SCAN) {
            int count = find_tokens(tokens, start, rows, first + index, found, counts);
            mine = seen || count == 0 || found[0] == token;
            seen = seen || count > 0;
            for (int i = 0; i < count && mine && column < n; i++) {
                pack<VEC> gradient = load<VEC>(dy + found[i] * stride + column);
                for (int j = 0; j < VEC; j++) {
                    sums[j] += widen(gradient.at[j]);
                }
            }
        }
        if (mine && column < n) {
            pack<VEC> result;
            for (int j = 0; j < VEC; j++) {
                result.at[j] = narrow(sums[j]);
            }
            store(out + index * n + column, result);
        }
        if (mine && blockIdx.y == 0 && threadIdx.x == 0) {
            marks[index] = MARK_NOW;
        }
    }
}

/* Rows that the last call wrote and this one did not become zero again. */
template <int VEC>
static __global__ void __launch_bounds__(THREADS)
    clear_stale(uint8_t *marks, int64_t k, bf16 *out, int64_t n)
{
    const pack<VEC> zeros = {};
    for (int64_t index = blockIdx.x; index < k; index += gridDim.x) {
        uint8_t mark = marks[index];
        if (mark == 0) {
            continue;
        }
        for (int64_t column = threadIdx.x * VEC; mark != MARK_NOW && column < n;
             column += THREADS * VEC) {
            store(out + index * n + column, zeros);
        }
        __syncthreads(); /* all have read the mark */
        if (threadIdx.x == 0) {
            marks[index] = mark == MARK_NOW;
        }
    }
}

static cudaError_t backward_touched(const struct mf_cuda_context *context,
                                    const struct mf_kernel_call *call, bool wide)
{
    const struct mf_shape *s = &call->shape;
    const struct mf_operand *o = call->operands;
    uint8_t *marks = (uint8_t *)o[3].pointer;
    dim3 grid((unsigned)(s->rows < 1 << 30 ? s->rows : 1 << 30),
              (unsigned)blocks_for(s->n, THREADS * (wide ? 8 : 1)));
    (wide ? scatter_touched<8> : scatter_touched<1>)<<<grid, THREADS, 0, context->stream>>>(
        (const int32_t *)o[0].pointer, call->index0, s->k, (const bf16 *)o[1].pointer, o[1].stride,
        (bf16 *)o[2].pointer, marks, s->rows, s->n);
    unsigned sweepers = (unsigned)(s->k < SWEEPERS_MAX ? s->k : SWEEPERS_MAX);
    (wide ? clear_stale<8> : clear_stale<1>)<<<sweepers, THREADS, 0, context->stream>>>(
        marks, s->k, (bf16 *)o[2].pointer, s->n);
    return cudaGetLastError();
}

cudaError_t mf_cuda_embedding_backward(const struct mf_cuda_context *context,
                                       const struct mf_kernel_call *call)
{
    const struct mf_shape *s = &call->shape;
    const struct mf_operand *o = call->operands;
    bool wide = packable(o[1].pointer, o[1].stride, s->n, 8) && packable(o[2].pointer, 0, s->n, 8);
    if ((s->flags & MF_SHAPE_TOUCHED) != 0) {
        cudaError_t error = backward_touched(context, call, wide);
        return error != cudaSuccess ? error
                                    : mf_cuda_elementwise_pad(context, o[2].pointer, s->n * s->k);
    }
    dim3 grid((unsigned)(s->k < 1 << 30 ? s->k : 1 << 30),
              (unsigned)blocks_for(s->n, THREADS * (wide ? 8 : 1)));
    (wide ? scatter<8> : scatter<1>)<<<grid, THREADS, 0, context->stream>>>(
        (const int32_t *)o[0].pointer, call->index0, s->k, (const bf16 *)o[1].pointer, o[1].stride,
        (bf16 *)o[2].pointer, s->rows, s->n);
    cudaError_t error = cudaGetLastError();
    return error != cudaSuccess ? error
                                : mf_cuda_elementwise_pad(context, o[2].pointer, s->n * s->k);
}

template <int VEC>
static __global__ void __launch_bounds__(THREADS)
    add_positions(const bf16 *x, int64_t x_stride, const bf16 *weight, int64_t first, int64_t k,
                  int64_t seq_len, bf16 *y, int64_t y_stride, int64_t rows, int64_t n)
{
    int64_t column = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VEC;
    for (int64_t row = blockIdx.y; row < rows && column < n; row += gridDim.y) {
        int64_t index = row % seq_len - first;
        if (index < 0 || index >= k) {
            continue;
        }
        pack<VEC> a = load<VEC>(x + row * x_stride + column);
        pack<VEC> b = load<VEC>(weight + index * n + column);
        for (int i = 0; i < VEC; i++) {
            a.at[i] = narrow(widen(a.at[i]) + widen(b.at[i]));
        }
        store(y + row * y_stride + column, a);
    }
}

cudaError_t mf_cuda_embedding_position_forward(const struct mf_cuda_context *context,
                                               const struct mf_kernel_call *call)
{
    const struct mf_shape *s = &call->shape;
    const struct mf_operand *o = call->operands;
    bool wide = packable(o[0].pointer, o[0].stride, s->n, 8) &&
                packable(o[1].pointer, 0, s->n, 8) && packable(o[2].pointer, o[2].stride, s->n, 8);
    dim3 grid((unsigned)blocks_for(s->n, THREADS * (wide ? 8 : 1)), grid_rows(s->rows));
    (wide ? add_positions<8> : add_positions<1>)<<<grid, THREADS, 0, context->stream>>>(
        (const bf16 *)o[0].pointer, o[0].stride, (const bf16 *)o[1].pointer, call->index0, s->k,
        s->seq_len, (bf16 *)o[2].pointer, o[2].stride, s->rows, s->n);
    return cudaGetLastError();
}

/* One thread an element of the table: its position in every sequence, in order. */
static __global__ void __launch_bounds__(THREADS)
    sum_positions(const bf16 *dy, int64_t stride, int64_t first, int64_t k, int64_t seq_len,
                  bf16 *out, int64_t rows, int64_t n)
{
    int64_t column = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int64_t index = blockIdx.y; index < k && column < n; index += gridDim.y) {
        float sum = 0;
        if (index + first < seq_len) {
            for (int64_t row = index + first; row < rows; row += seq_len) {
                sum += widen(dy[row * stride + column]);
            }
        }
        out[index * n + column] = narrow(sum);
    }
}

cudaError_t mf_cuda_embedding_position_backward(const struct mf_cuda_context *context,
                                                const struct mf_kernel_call *call)
{
    const struct mf_shape *s = &call->shape;
    const struct mf_operand *o = call->operands;
    dim3 grid((unsigned)blocks_for(s->n, THREADS), grid_rows(s->k));
    sum_positions<<<grid, THREADS, 0, context->stream>>>((const bf16 *)o[0].pointer, o[0].stride,
                                                         call->index0, s->k, s->seq_len,
                                                         (bf16 *)o[1].pointer, s->rows, s->n);
    cudaError_t error = cudaGetLastError();
    return error != cudaSuccess ? error
                                : mf_cuda_elementwise_pad(context, o[1].pointer, s->n * s->k);
}

cudaError_t mf_cuda_embedding_load(void)
{
    const void *const kernels[] = {
        (const void *)gather<8>,          (const void *)gather<1>,
        (const void *)scatter<8>,         (const void *)scatter<1>,
        (const void *)add_positions<8>,   (const void *)add_positions<1>,
        (const void *)sum_positions,      (const void *)scatter_touched<8>,
        (const void *)scatter_touched<1>, (const void *)clear_stale<8>,
        (const void *)clear_stale<1>,
    };
    return load_all(kernels, sizeof(kernels) / sizeof(kernels[0]));
}
