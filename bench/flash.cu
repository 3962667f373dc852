/* Proves and times the attention kernels of the CUDA device on a GPU: every shape against plain
 * fp32 kernels, outputs poisoned before, two runs bit for bit; then a table of times.
 *
 * Build: nvcc -std=c++17 -O3 -I. -gencode=arch=compute_90a,code=sm_90a -o flash bench/flash.cu
 *        runtime/cuda/flash_forward.cu runtime/cuda/flash_backward.cu
 * Run:   flash            all checks, then the times
 *        flash time       the times only
 *        flash once       one forward and backward of 8 x 1024, for a profiler
 * Exit code 1 when a check fails. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "runtime/cuda/flash.h"

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess) {                                                               \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));      \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

struct shape {
    int batch;
    int seq_len;
    int heads;
    int kv_heads;
    int head_dim;
    int extra; /* columns between the slices of a wider matrix */
};

/* q, k, v are slices of one matrix, as are their gradients; o and grad_o stand alone. */
struct buffers {
    __nv_bfloat16 *inputs;
    __nv_bfloat16 *gradients;
    __nv_bfloat16 *o;
    __nv_bfloat16 *grad_o;
    float *lse;
    void *workspace;
    size_t input_count;
    size_t output_count;
    struct mf_flash_args args;
};

static __global__ void fill_kernel(__nv_bfloat16 *to, size_t count, uint32_t seed, float scale)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) {
        return;
    }
    float sum = 0.0f; /* of four uniform numbers: near enough to normal */
    for (uint32_t part = 0; part < 4; part++) {
        uint32_t x = (uint32_t)at * 4u + part + seed * 0x9e3779b9u;
        x = (x ^ (x >> 16)) * 0x7feb352du;
        x = (x ^ (x >> 15)) * 0x846ca68bu;
        x ^= x >> 16;
        sum += (float)x * (1.0f / 4294967296.0f) - 0.5f;
    }
    to[at] = __float2bfloat16(sum * 1.7320508f * scale);
}

static void fill(__nv_bfloat16 *to, size_t count, uint32_t seed, float scale)
{
    fill_kernel<<<(unsigned)((count + 255) / 256), 256>>>(to, count, seed, scale);
    CHECK(cudaGetLastError());
}

static struct mf_operand slice(__nv_bfloat16 *base, int64_t column, int64_t stride)
{
    struct mf_operand operand = {base + column, stride};
    return operand;
}

static struct buffers open_buffers(const struct shape *s, uint32_t seed)
{
    struct buffers b = {};
    int64_t rows = (int64_t)s->batch * s->seq_len;
    int64_t q_width = (int64_t)s->heads * s->head_dim;
    int64_t k_width = (int64_t)s->kv_heads * s->head_dim;
    int64_t k_column = q_width + s->extra;
    int64_t v_column = k_column + k_width + s->extra;
    int64_t stride = v_column + k_width + s->extra;
    int64_t o_stride = q_width + 2 * s->extra;
    b.input_count = (size_t)(rows * stride);
    b.output_count = (size_t)(rows * o_stride);
    CHECK(cudaMalloc(&b.inputs, b.input_count * 2));
    CHECK(cudaMalloc(&b.gradients, b.input_count * 2));
    CHECK(cudaMalloc(&b.o, b.output_count * 2));
    CHECK(cudaMalloc(&b.grad_o, b.output_count * 2));
    CHECK(cudaMalloc(&b.lse, (size_t)(rows * s->heads) * 4));
    CHECK(cudaMalloc(&b.workspace, mf_flash_workspace_bytes(rows, s->heads, s->head_dim)));
    fill(b.inputs, b.input_count, seed, 1.5f);
    fill(b.grad_o, b.output_count, seed + 1, 1.0f);
    b.args.q = slice(b.inputs, 0, stride);
    b.args.k = slice(b.inputs, k_column, stride);
    b.args.v = slice(b.inputs, v_column, stride);
    b.args.o = slice(b.o, s->extra, o_stride);
    b.args.grad_o = slice(b.grad_o, s->extra, o_stride);
    b.args.grad_q = slice(b.gradients, 0, stride);
    b.args.grad_k = slice(b.gradients, k_column, stride);
    b.args.grad_v = slice(b.gradients, v_column, stride);
    b.args.lse = b.lse;
    b.args.workspace = b.workspace;
    b.args.rows = rows;
    b.args.seq_len = s->seq_len;
    b.args.heads = s->heads;
    b.args.kv_heads = s->kv_heads;
    b.args.head_dim = s->head_dim;
    return b;
}

static void close_buffers(struct buffers *b)
{
    CHECK(cudaFree(b->inputs));
    CHECK(cudaFree(b->gradients));
    CHECK(cudaFree(b->o));
    CHECK(cudaFree(b->grad_o));
    CHECK(cudaFree(b->lse));
    CHECK(cudaFree(b->workspace));
}

/* ---- the reference: a block of 128 threads for each row of each head ---- */

struct reference {
    float *o;
    float *lse;
    float *grad_q;
    float *grad_k;
    float *grad_v;
};

static __device__ float at(const struct mf_operand &m, int64_t row, int64_t column)
{
    return __bfloat162float(((const __nv_bfloat16 *)m.pointer)[row * m.stride + column]);
}

/* A warp's inner product of two heads' rows. */
static __device__ float dot(const struct mf_operand &a, int64_t a_row, int64_t a_column,
                            const struct mf_operand &b, int64_t b_row, int64_t b_column, int depth)
{
    float sum = 0.0f;
    for (int index = (int)threadIdx.x % 32; index < depth; index += 32) {
        sum += at(a, a_row, a_column + index) * at(b, b_row, b_column + index);
    }
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    return sum;
}

static __global__ void reference_rows(struct mf_flash_args p, struct reference out)
{
    extern __shared__ float weights[];
    int64_t row = blockIdx.x;
    int head = (int)blockIdx.y;
    int64_t position = row % p.seq_len;
    int64_t base = row - position;
    int64_t column = (int64_t)head * p.head_dim;
    int64_t k_column = (int64_t)(head / (p.heads / p.kv_heads)) * p.head_dim;
    float scale = 1.0f / sqrtf((float)p.head_dim);
    int warp = (int)threadIdx.x / 32;
    int thread = (int)threadIdx.x;
    for (int64_t j = warp; j <= position; j += 4) {
        float value = dot(p.q, row, column, p.k, base + j, k_column, p.head_dim) * scale;
        weights[j] = value;
    }
    __syncthreads();
    float top = -INFINITY;
    for (int64_t j = 0; j <= position; j++) {
        top = fmaxf(top, weights[j]);
    }
    float sum = 0.0f;
    for (int64_t j = 0; j <= position; j++) {
        sum += expf(weights[j] - top);
    }
    float lse = top + logf(sum);
    float o = 0.0f;
    for (int64_t j = 0; j <= position && thread < p.head_dim; j++) {
        o += expf(weights[j] - lse) * at(p.v, base + j, k_column + thread);
    }
    __shared__ float parts[128];
    parts[thread] = thread < p.head_dim ? o * at(p.grad_o, row, column + thread) : 0.0f;
    __syncthreads();
    float delta = 0.0f;
    for (int index = 0; index < 128; index++) {
        delta += parts[index];
    }
    for (int64_t j = warp; j <= position; j += 4) {
        float slope = dot(p.grad_o, row, column, p.v, base + j, k_column, p.head_dim) - delta;
        __syncwarp();
        float value = expf(weights[j] - lse) * slope * scale;
        __syncwarp();
        weights[j] = value;
    }
    __syncthreads();
    float grad = 0.0f;
    for (int64_t j = 0; j <= position && thread < p.head_dim; j++) {
        grad += weights[j] * at(p.k, base + j, k_column + thread);
    }
    if (thread < p.head_dim) {
        out.o[(row * p.heads + head) * p.head_dim + thread] = o;
        out.grad_q[(row * p.heads + head) * p.head_dim + thread] = grad;
    }
    out.lse[row * p.heads + head] = lse;
}

static __global__ void reference_keys(struct mf_flash_args p, struct reference out)
{
    extern __shared__ float weights[];
    float *slopes = weights + p.seq_len;
    int64_t row = blockIdx.x;
    int kv_head = (int)blockIdx.y;
    int group = p.heads / p.kv_heads;
    int64_t position = row % p.seq_len;
    int64_t base = row - position;
    int64_t k_column = (int64_t)kv_head * p.head_dim;
    float scale = 1.0f / sqrtf((float)p.head_dim);
    int warp = (int)threadIdx.x / 32;
    int thread = (int)threadIdx.x;
    float grad_k = 0.0f;
    float grad_v = 0.0f;
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        int64_t column = (int64_t)head * p.head_dim;
        for (int64_t i = position + warp; i < p.seq_len; i += 4) {
            float score = dot(p.q, base + i, column, p.k, row, k_column, p.head_dim) * scale;
            float slope = dot(p.grad_o, base + i, column, p.v, row, k_column, p.head_dim);
            float delta = 0.0f;
            for (int index = thread % 32; index < p.head_dim; index += 32) {
                delta += at(p.grad_o, base + i, column + index) *
                         out.o[((base + i) * p.heads + head) * p.head_dim + index];
            }
            for (int step = 16; step > 0; step /= 2) {
                delta += __shfl_xor_sync(0xffffffffu, delta, step);
            }
            float weight = expf(score - out.lse[(base + i) * p.heads + head]);
            weights[i] = weight;
            slopes[i] = weight * (slope - delta) * scale;
        }
        __syncthreads();
        for (int64_t i = position; i < p.seq_len && thread < p.head_dim; i++) {
            grad_v += weights[i] * at(p.grad_o, base + i, column + thread);
            grad_k += slopes[i] * at(p.q, base + i, column + thread);
        }
        __syncthreads();
    }
    if (thread < p.head_dim) {
        out.grad_k[(row * p.kv_heads + kv_head) * p.head_dim + thread] = grad_k;
        out.grad_v[(row * p.kv_heads + kv_head) * p.head_dim + thread] = grad_v;
    }
}

/* ---- checks ---- */

template <typename type> static std::vector<type> fetch(const void *from, size_t count)
{
    std::vector<type> values(count);
    CHECK(cudaMemcpy(values.data(), from, count * sizeof(type), cudaMemcpyDeviceToHost));
    return values;
}

static float widen(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

/* ||got - want|| / ||want||, where what is below 1e-3 in the mean counts as that. */
static double compare(const std::vector<uint16_t> &got, size_t first, size_t stride, size_t width,
                      const float *want_device, size_t rows)
{
    std::vector<float> want = fetch<float>(want_device, rows * width);
    double error = 0.0;
    double size = 0.0;
    for (size_t row = 0; row < rows; row++) {
        for (size_t column = 0; column < width; column++) {
            double right = want[row * width + column];
            double wrong = widen(got[first + row * stride + column]) - right;
            error += wrong * wrong;
            size += right * right;
        }
    }
    return sqrt(error / std::max(size, 1e-6 * (double)(rows * width)));
}

static void run_both(struct buffers *b)
{
    CHECK(cudaMemset(b->o, 0xff, b->output_count * 2));
    CHECK(cudaMemset(b->gradients, 0xff, b->input_count * 2));
    CHECK(cudaMemset(b->lse, 0xff, (size_t)(b->args.rows * b->args.heads) * 4));
    CHECK(cudaMemset(b->workspace, 0xff,
                     mf_flash_workspace_bytes(b->args.rows, b->args.heads, b->args.head_dim)));
    CHECK(mf_flash_forward(&b->args, 0));
    CHECK(mf_flash_backward(&b->args, 0));
    CHECK(cudaDeviceSynchronize());
}

/* Elements outside the slices that were written to. */
static size_t count_strays(const std::vector<uint16_t> &values, size_t stride,
                           const std::vector<size_t> &edges)
{
    size_t strays = 0;
    for (size_t at_index = 0; at_index < values.size(); at_index++) {
        size_t column = at_index % stride;
        bool inside = false;
        for (size_t edge = 0; edge < edges.size(); edge += 2) {
            inside = inside || (column >= edges[edge] && column < edges[edge + 1]);
        }
        strays += !inside && values[at_index] != 0xffff;
    }
    return strays;
}

static struct reference open_reference(const struct buffers *b)
{
    struct reference r;
    const struct mf_flash_args *p = &b->args;
    size_t q_count = (size_t)(p->rows * p->heads * p->head_dim);
    size_t k_count = (size_t)(p->rows * p->kv_heads * p->head_dim);
    CHECK(cudaMalloc(&r.o, q_count * 4));
    CHECK(cudaMalloc(&r.grad_q, q_count * 4));
    CHECK(cudaMalloc(&r.grad_k, k_count * 4));
    CHECK(cudaMalloc(&r.grad_v, k_count * 4));
    CHECK(cudaMalloc(&r.lse, (size_t)(p->rows * p->heads) * 4));
    size_t shared = (size_t)p->seq_len * 4;
    reference_rows<<<dim3((unsigned)p->rows, (unsigned)p->heads), 128, shared>>>(*p, r);
    reference_keys<<<dim3((unsigned)p->rows, (unsigned)p->kv_heads), 128, 2 * shared>>>(*p, r);
    CHECK(cudaDeviceSynchronize());
    return r;
}

static void close_reference(struct reference *r)
{
    CHECK(cudaFree(r->o));
    CHECK(cudaFree(r->lse));
    CHECK(cudaFree(r->grad_q));
    CHECK(cudaFree(r->grad_k));
    CHECK(cudaFree(r->grad_v));
}

static bool check(const struct shape *s, uint32_t seed)
{
    struct buffers b = open_buffers(s, seed);
    const struct mf_flash_args *p = &b.args;
    run_both(&b);
    std::vector<uint16_t> o = fetch<uint16_t>(b.o, b.output_count);
    std::vector<uint16_t> gradients = fetch<uint16_t>(b.gradients, b.input_count);
    std::vector<float> lse = fetch<float>(b.lse, (size_t)(p->rows * p->heads));
    run_both(&b);
    bool same = o == fetch<uint16_t>(b.o, b.output_count) &&
                gradients == fetch<uint16_t>(b.gradients, b.input_count);
    struct reference r = open_reference(&b);
    std::vector<float> want_lse = fetch<float>(r.lse, lse.size());
    double worst = 0.0;
    for (size_t index = 0; index < lse.size(); index++) {
        double difference = fabs((double)lse[index] - (double)want_lse[index]);
        worst = difference <= worst ? worst : difference; /* NaN becomes the worst */
    }
    size_t rows = (size_t)p->rows;
    size_t q_width = (size_t)(p->heads * p->head_dim);
    size_t k_width = (size_t)(p->kv_heads * p->head_dim);
    size_t stride = (size_t)p->q.stride;
    size_t extra = (size_t)s->extra;
    size_t k_first = q_width + extra;
    size_t v_first = k_first + k_width + extra;
    double errors[4] = {compare(o, extra, (size_t)p->o.stride, q_width, r.o, rows),
                        compare(gradients, 0, stride, q_width, r.grad_q, rows),
                        compare(gradients, k_first, stride, k_width, r.grad_k, rows),
                        compare(gradients, v_first, stride, k_width, r.grad_v, rows)};
    size_t strays =
        count_strays(o, (size_t)p->o.stride, {extra, extra + q_width}) +
        count_strays(gradients, stride,
                     {0, q_width, k_first, k_first + k_width, v_first, v_first + k_width});
    bool good = same && strays == 0 && worst < 1e-3;
    for (double error : errors) {
        good = good && error < 1e-2;
    }
    printf("%-4s %2d x %4d heads %2d/%d x %3d extra %2d: lse %.1e o %.1e dq %.1e dk %.1e dv %.1e"
           "%s strays %zu\n",
           good ? "ok" : "BAD", s->batch, s->seq_len, s->heads, s->kv_heads, s->head_dim, s->extra,
           worst, errors[0], errors[1], errors[2], errors[3], same ? "" : " DIFFERS", strays);
    close_reference(&r);
    close_buffers(&b);
    return good;
}

static bool check_all()
{
    static const int lengths[] = {1, 7, 64, 100, 128, 1000, 1024, 4096};
    static const int kv_heads[] = {8, 2, 1};
    static const int depths[] = {128, 64};
    static const struct shape others[] = {{2, 300, 4, 2, 32, 8},   {2, 300, 4, 2, 96, 0},
                                          {2, 300, 4, 2, 80, 16},  {3, 129, 3, 3, 8, 0},
                                          {5, 333, 12, 4, 128, 0}, {40, 257, 16, 4, 64, 8}};
    bool good = true;
    uint32_t seed = 1;
    for (int depth : depths) {
        for (int length : lengths) {
            for (int kv : kv_heads) {
                struct shape s = {length < 1000 ? 3 : 1, length, 8, kv, depth, kv == 2 ? 24 : 0};
                good = check(&s, seed += 2) && good;
            }
        }
    }
    for (const struct shape &s : others) {
        good = check(&s, seed += 2) && good;
    }
    return good;
}

/* ---- times ---- */

typedef cudaError_t function(const struct mf_flash_args *, cudaStream_t);

static double median_ms(function *run, const struct mf_flash_args *args)
{
    enum { repeats = 15 };
    cudaEvent_t events[repeats + 1];
    std::vector<float> times;
    for (int index = 0; index < 3; index++) {
        CHECK(run(args, 0));
    }
    for (cudaEvent_t &event : events) {
        CHECK(cudaEventCreate(&event));
    }
    CHECK(cudaEventRecord(events[0]));
    for (int index = 0; index < repeats; index++) {
        CHECK(run(args, 0));
        CHECK(cudaEventRecord(events[index + 1]));
    }
    CHECK(cudaDeviceSynchronize());
    for (int index = 0; index < repeats; index++) {
        float time;
        CHECK(cudaEventElapsedTime(&time, events[index], events[index + 1]));
        times.push_back(time);
    }
    for (cudaEvent_t &event : events) {
        CHECK(cudaEventDestroy(event));
    }
    std::sort(times.begin(), times.end());
    return times[repeats / 2];
}

static void time_all()
{
    static const struct shape shapes[] = {
        {8, 1024, 32, 32, 128, 0}, {8, 1024, 32, 8, 128, 0},  {2, 4096, 32, 32, 128, 0},
        {2, 4096, 32, 8, 128, 0},  {1, 16384, 32, 8, 128, 0}, {8, 1024, 32, 32, 64, 0},
        {8, 1024, 32, 8, 64, 0},   {2, 4096, 32, 8, 64, 0},   {16, 512, 32, 8, 128, 0},
    };
    printf("batch x seq_len, heads/kv x head_dim    forward ms TFLOP/s   backward ms TFLOP/s\n");
    for (const struct shape &s : shapes) {
        struct buffers b = open_buffers(&s, 7);
        double flops = 2.0 * s.batch * s.heads * (double)s.seq_len * s.seq_len * s.head_dim;
        double forward = median_ms(mf_flash_forward, &b.args);
        double backward = median_ms(mf_flash_backward, &b.args);
        printf("%3d x %5d, %2d/%-2d x %3d               %8.3f %8.0f  %10.3f %8.0f\n", s.batch,
               s.seq_len, s.heads, s.kv_heads, s.head_dim, forward, flops / forward / 1e9, backward,
               2.5 * flops / backward / 1e9);
        close_buffers(&b);
    }
}

int main(int count, char **words)
{
    if (!mf_flash_supported(128)) {
        printf("no device of compute capability 9.0\n");
        return 1;
    }
    const char *word = count > 1 ? words[1] : "";
    if (strcmp(word, "once") == 0) {
        struct shape s = {8, 1024, 32, 8, 128, 0};
        struct buffers b = open_buffers(&s, 7);
        run_both(&b);
        close_buffers(&b);
        return 0;
    }
    bool good = strcmp(word, "time") == 0 || check_all();
    printf("%s\n", good ? "all checks passed" : "SOME CHECKS FAILED");
    time_all();
    return good ? 0 : 1;
}
