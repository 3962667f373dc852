/*
 * One kernel call, on the host device and on the GPU, compared: for the tests of CUDA kernels.
 *
 * What: operands are filled with random numbers; gpu_run() runs the call on the host, then twice on
 *   the GPU, and wants: the same bits twice; nothing written outside a matrix; outputs within
 *   `tolerance` of the host's, as ||difference|| / ||reference|| (0 = the same bits), and no single
 *   element further off than a tenth of the largest. Layout 0 is aligned, layout 1 is not.
 * Owner: gpu_reset. Thread: the test's. Fails: as a test does.
 */
#ifndef MF_TESTS_GPU_GPU_BENCH_H
#define MF_TESTS_GPU_GPU_BENCH_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/host/bf16.h"
#include "runtime/host/kernels.h"
#include "tests/test_device.h"

#define GPU_ARENA_BYTES (512ll << 20)

struct gpu_operand {
    size_t bytes; /* 0 = not given */
    size_t element;
    int64_t rows;
    int64_t width;
    int64_t stride;
    int64_t shift; /* elements before the first */
    bool mapped;   /* in pinned host memory, accessed in place */
    bool integer;
    unsigned char *before;
    unsigned char *host;
    unsigned char *gpu;
};

struct gpu_bench {
    struct mf_kernel_call call;
    struct gpu_operand operands[MF_OPERANDS_MAX];
    int layout;
    double tolerance;
    double worst; /* found so far */
};

struct gpu {
    const struct mf_device_interface *interface;
    struct mf_device *device;
    unsigned char *arena;
    unsigned char *pinned;
};

static struct gpu gpu;

static inline void gpu_open(void)
{
    const struct mf_device_options options = {.memory_bytes = GPU_ARENA_BYTES};
    gpu.interface = test_device_cuda();
    assert_ok(gpu.interface->open(&options, &gpu.device));
    assert_ok(gpu.interface->reserve(gpu.device, GPU_ARENA_BYTES, (void **)&gpu.arena));
    assert_ok(
        gpu.interface->map_host(gpu.device, GPU_ARENA_BYTES, NULL, NULL, (void **)&gpu.pinned));
    assert_ok(gpu.interface->prepare(gpu.device, 64));
}

static inline void gpu_close(void)
{
    gpu.interface->close(gpu.device);
}

static inline double gpu_value(const struct gpu_operand *operand, const unsigned char *bytes,
                               int64_t at)
{
    float single;
    double real;
    switch (operand->element) {
    case 2:
        return (double)mf_bf16_to_float(((const uint16_t *)(const void *)bytes)[at]);
    case 4:
        memcpy(&single, bytes + at * 4, sizeof(single));
        return (double)single;
    default:
        memcpy(&real, bytes + at * 8, sizeof(real));
        return real;
    }
}

static inline void gpu_set(struct gpu_operand *operand, int64_t at, double value)
{
    float single = (float)value;
    uint16_t half = mf_bf16_from_float(single);
    const void *from = operand->element == 2   ? (const void *)&half
                       : operand->element == 4 ? (const void *)&single
                                               : (const void *)&value;
    memcpy(operand->before + (size_t)at * operand->element, from, operand->element);
}

static inline void gpu_give(struct gpu_bench *bench, int index, size_t element, int64_t rows,
                            int64_t width, int64_t margin, double scale)
{
    struct gpu_operand *operand = &bench->operands[index];
    operand->element = element;
    operand->rows = rows;
    operand->width = width;
    operand->stride = width + margin;
    operand->shift = margin == 0 ? 0 : margin / 2;
    int64_t count = rows * operand->stride + operand->shift;
    operand->bytes = (size_t)count * element;
    operand->before = malloc(operand->bytes);
    operand->host = malloc(operand->bytes);
    operand->gpu = malloc(operand->bytes);
    assert_non_null(operand->before);
    for (int64_t at = 0; at < count; at++) {
        gpu_set(operand, at, harness_random_between(-scale, scale));
    }
}

/* A bf16 matrix, a slice of a wider one. */
static inline void gpu_matrix(struct gpu_bench *bench, int index, int64_t rows, int64_t width)
{
    int64_t margin = bench->layout == 0 ? (width % 8 == 0 ? 16 : 24 - width % 8) : 7;
    gpu_give(bench, index, 2, rows, width, margin, 1.0);
}

/* A bf16 panel with room for its padding. */
static inline void gpu_panel(struct gpu_bench *bench, int index, int64_t elements)
{
    gpu_give(bench, index, 2, 1, (elements + 63) / 64 * 64, 0, 1.0);
}

static inline void gpu_dense(struct gpu_bench *bench, int index, size_t element, int64_t count)
{
    gpu_give(bench, index, element, 1, count, 0, 1.0);
}

static inline int32_t *gpu_integers(struct gpu_bench *bench, int index, int64_t count,
                                    int64_t limit)
{
    gpu_dense(bench, index, 4, count);
    bench->operands[index].integer = true;
    int32_t *values = (int32_t *)(void *)bench->operands[index].before;
    for (int64_t at = 0; at < count; at++) {
        values[at] = (int32_t)harness_random_below((uint64_t)limit);
    }
    return values;
}

static inline void gpu_run_host(struct gpu_bench *bench)
{
    struct mf_host_context context;
    struct mf_kernel_call call = bench->call;
    for (int index = 0; index < MF_OPERANDS_MAX; index++) {
        struct gpu_operand *operand = &bench->operands[index];
        if (operand->bytes > 0) {
            memcpy(operand->host, operand->before, operand->bytes);
            call.operands[index].pointer =
                operand->host + (size_t)operand->shift * operand->element;
            call.operands[index].stride = operand->rows > 1 ? operand->stride : operand->width;
        }
    }
    assert_ok(mf_host_context_open("reference", 8, &context));
    assert_ok(mf_host_kernels_run(&context, &call));
    mf_host_context_close(&context);
}

static inline void gpu_copy(enum mf_lane lane, void *from, void *to, size_t bytes, int32_t task)
{
    struct mf_kernel_call call = {.kernel = MF_KERNEL_COPY, .shape = {.n = (int64_t)bytes}};
    call.operands[0].pointer = from;
    call.operands[1].pointer = to;
    assert_ok(gpu.interface->submit(gpu.device, lane, &call, task));
}

/* Operands in, the call, operands out. */
static inline void gpu_run_once(struct gpu_bench *bench)
{
    struct mf_kernel_call call = bench->call;
    size_t at = 0;
    size_t places[MF_OPERANDS_MAX];
    assert_ok(gpu.interface->begin(gpu.device, false));
    for (int index = 0; index < MF_OPERANDS_MAX; index++) {
        struct gpu_operand *operand = &bench->operands[index];
        places[index] = at;
        if (operand->bytes == 0) {
            continue;
        }
        unsigned char *base = operand->mapped
                                  ? gpu.interface->device_address(gpu.device, gpu.pinned + at)
                                  : gpu.arena + at;
        memcpy(gpu.pinned + at, operand->before, operand->bytes);
        if (!operand->mapped) {
            gpu_copy(MF_LANE_H2D, gpu.pinned + at, gpu.arena + at, operand->bytes, index);
        }
        call.operands[index].pointer = base + (size_t)operand->shift * operand->element;
        call.operands[index].stride = operand->rows > 1 ? operand->stride : operand->width;
        at += (operand->bytes + 511) / 256 * 256;
        assert_true(at < GPU_ARENA_BYTES);
    }
    assert_ok(gpu.interface->record(gpu.device, MF_LANE_H2D, 20));
    assert_ok(gpu.interface->wait(gpu.device, MF_LANE_COMPUTE, 20));
    assert_ok(gpu.interface->submit(gpu.device, MF_LANE_COMPUTE, &call, 21));
    assert_ok(gpu.interface->record(gpu.device, MF_LANE_COMPUTE, 21));
    assert_ok(gpu.interface->wait(gpu.device, MF_LANE_D2H, 21));
    for (int index = 0; index < MF_OPERANDS_MAX; index++) {
        const struct gpu_operand *operand = &bench->operands[index];
        if (operand->bytes > 0 && !operand->mapped) {
            gpu_copy(MF_LANE_D2H, gpu.arena + places[index], gpu.pinned + places[index],
                     operand->bytes, 30 + index);
        }
    }
    assert_ok(gpu.interface->sync(gpu.device));
    for (int index = 0; index < MF_OPERANDS_MAX; index++) {
        struct gpu_operand *operand = &bench->operands[index];
        if (operand->bytes > 0) {
            memcpy(operand->gpu, gpu.pinned + places[index], operand->bytes);
        }
    }
}

static inline void gpu_explain(const struct gpu_bench *bench, int index, const char *what,
                               double value)
{
    const struct mf_shape *s = &bench->call.shape;
    print_message("%s operand %d: %s %.3g (rows %lld n %lld k %lld seq %d heads %d/%d dim %d "
                  "flags 0x%x layout %d)\n",
                  mf_kernel_name(bench->call.kernel), index, what, value, (long long)s->rows,
                  (long long)s->n, (long long)s->k, s->seq_len, s->heads, s->kv_heads, s->head_dim,
                  s->flags, bench->layout);
}

static inline void gpu_compare(struct gpu_bench *bench, int index)
{
    struct gpu_operand *operand = &bench->operands[index];
    double difference = 0;
    double reference = 0;
    double largest = 0;
    double furthest = 0;
    if (operand->integer || bench->tolerance == 0) {
        if (memcmp(operand->gpu, operand->host, operand->bytes) != 0) {
            gpu_explain(bench, index, "bits differ", 0);
            fail();
        }
        return;
    }
    int64_t count = (int64_t)(operand->bytes / operand->element);
    for (int64_t at = 0; at < count; at++) {
        int64_t column = (at - operand->shift) % operand->stride;
        bool inside = at >= operand->shift && column < operand->width;
        if (!inside &&
            memcmp(operand->gpu + (size_t)at * operand->element,
                   operand->before + (size_t)at * operand->element, operand->element) != 0) {
            gpu_explain(bench, index, "written outside, element", (double)at);
            fail();
        }
        double found = gpu_value(operand, operand->gpu, at);
        double wanted = gpu_value(operand, operand->host, at);
        if (!inside || (isinf(wanted) && found == wanted)) {
            continue;
        }
        difference += (found - wanted) * (found - wanted);
        reference += wanted * wanted;
        largest = fmax(largest, fabs(wanted));
        furthest = isnan(found) ? INFINITY : fmax(furthest, fabs(found - wanted));
    }
    double relative = sqrt(difference / (reference > 0 ? reference : 1));
    bench->worst = fmax(bench->worst, relative);
    if (!(relative <= bench->tolerance) || !(furthest <= 0.1 * largest + 1e-6)) {
        gpu_explain(bench, index, "relative difference", relative);
        gpu_explain(bench, index, "furthest element off by", furthest);
        fail();
    }
}

static inline void gpu_run(struct gpu_bench *bench, enum mf_kernel kernel)
{
    bench->call.kernel = kernel;
    gpu_run_host(bench);
    gpu_run_once(bench);
    unsigned char *first[MF_OPERANDS_MAX] = {0};
    for (int index = 0; index < MF_OPERANDS_MAX; index++) {
        struct gpu_operand *operand = &bench->operands[index];
        if (operand->bytes > 0) {
            first[index] = malloc(operand->bytes);
            memcpy(first[index], operand->gpu, operand->bytes);
        }
    }
    gpu_run_once(bench);
    for (int index = 0; index < MF_OPERANDS_MAX; index++) {
        struct gpu_operand *operand = &bench->operands[index];
        if (operand->bytes > 0) {
            if (memcmp(first[index], operand->gpu, operand->bytes) != 0) {
                gpu_explain(bench, index, "another result the second time", 0);
                fail();
            }
            free(first[index]);
            gpu_compare(bench, index);
        }
    }
}

/* What an operand holds now becomes what the next call starts with. */
static inline void gpu_keep(struct gpu_bench *bench, int index)
{
    memcpy(bench->operands[index].before, bench->operands[index].host,
           bench->operands[index].bytes);
}

static inline void gpu_drop(struct gpu_bench *bench, int index)
{
    free(bench->operands[index].before);
    free(bench->operands[index].host);
    free(bench->operands[index].gpu);
    memset(&bench->operands[index], 0, sizeof(bench->operands[index]));
    bench->call.operands[index] = (struct mf_operand){0};
}

static inline void gpu_reset(struct gpu_bench *bench)
{
    for (int index = 0; index < MF_OPERANDS_MAX; index++) {
        gpu_drop(bench, index);
    }
}

#endif
