/*
 * One kernel call of the host device with operands that are checked: for the tests of kernels.
 *
 * What: operands are filled with random numbers; bench_run() runs the call with one thread, then
 *   with three on shifted copies of the operands, and wants the same bits and nothing written
 *   outside a matrix. bench_in() reads what was there before, bench_out() what is there now.
 * Owner: bench_reset. Thread: the test's. Fails: as a test does.
 */
#ifndef MF_TESTS_UNIT_KERNEL_BENCH_H
#define MF_TESTS_UNIT_KERNEL_BENCH_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "runtime/host/bf16.h"
#include "runtime/host/gemm.h"
#include "runtime/host/kernels.h"

#define BENCH_SHIFT 3  /* columns left of a matrix that is a slice of a wider one */
#define BENCH_MARGIN 7 /* and how much wider that is */

struct bench_operand {
    unsigned char *now; /* NULL = not given */
    unsigned char *before;
    size_t bytes;
    size_t element;
    int64_t rows; /* 0 = dense */
    int64_t width;
    int64_t stride;
};

struct bench {
    struct mf_kernel_call call;
    struct bench_operand operands[MF_OPERANDS_MAX];
};

static inline double bench_value(const unsigned char *bytes, size_t element, int64_t index)
{
    float single;
    double real;
    switch (element) {
    case 2:
        return (double)mf_bf16_to_float(((const uint16_t *)(const void *)bytes)[index]);
    case 4:
        memcpy(&single, bytes + index * 4, sizeof(single));
        return (double)single;
    default:
        memcpy(&real, bytes + index * 8, sizeof(real));
        return real;
    }
}

static inline void bench_set(struct bench *bench, int index, int64_t at, double value)
{
    struct bench_operand *operand = &bench->operands[index];
    float single = (float)value;
    uint16_t half = mf_bf16_from_float(single);
    const void *from = operand->element == 2   ? (const void *)&half
                       : operand->element == 4 ? (const void *)&single
                                               : (const void *)&value;
    memcpy(operand->now + (size_t)at * operand->element, from, operand->element);
}

static inline void bench_allocate(struct bench *bench, int index, size_t element, int64_t count)
{
    struct bench_operand *operand = &bench->operands[index];
    operand->element = element;
    operand->bytes = (size_t)count * element;
    operand->now = malloc(operand->bytes + 64);
    operand->before = malloc(operand->bytes + 64);
    assert_non_null(operand->now);
    assert_non_null(operand->before);
    for (int64_t at = 0; at < count; at++) {
        bench_set(bench, index, at, harness_random_between(-1, 1));
    }
}

/* A bf16 matrix that is a slice of a wider one. */
static inline void bench_matrix(struct bench *bench, int index, int64_t rows, int64_t width)
{
    struct bench_operand *operand = &bench->operands[index];
    operand->rows = rows;
    operand->width = width;
    operand->stride = width + BENCH_MARGIN;
    bench_allocate(bench, index, 2, rows * operand->stride);
    bench->call.operands[index].pointer = operand->now + BENCH_SHIFT * 2;
    bench->call.operands[index].stride = operand->stride;
}

static inline void bench_dense(struct bench *bench, int index, size_t element, int64_t count)
{
    bench_allocate(bench, index, element, count);
    bench->operands[index].width = count;
    bench->call.operands[index].pointer = bench->operands[index].now;
}

/* A bf16 panel, with room for its padding. */
static inline void bench_panel(struct bench *bench, int index, int64_t elements)
{
    bench_dense(bench, index, 2, (elements + 63) / 64 * 64);
}

/* int32 numbers below `limit`. */
static inline int32_t *bench_integers(struct bench *bench, int index, int64_t count, int64_t limit)
{
    bench_dense(bench, index, 4, count);
    int32_t *values = (int32_t *)(void *)bench->operands[index].now;
    for (int64_t at = 0; at < count; at++) {
        values[at] = (int32_t)harness_random_below((uint64_t)limit);
    }
    return values;
}

static inline int64_t bench_place(const struct bench_operand *operand, int64_t row, int64_t column)
{
    return operand->rows > 0 ? row * operand->stride + BENCH_SHIFT + column : row + column;
}

/* Element (row, column) of a matrix; of a dense operand, element row + column. */
static inline double bench_in(const struct bench *bench, int index, int64_t row, int64_t column)
{
    const struct bench_operand *operand = &bench->operands[index];
    return bench_value(operand->before, operand->element, bench_place(operand, row, column));
}

static inline double bench_out(const struct bench *bench, int index, int64_t row, int64_t column)
{
    const struct bench_operand *operand = &bench->operands[index];
    return bench_value(operand->now, operand->element, bench_place(operand, row, column));
}

static inline void bench_check_margins(const struct bench_operand *operand)
{
    for (int64_t at = 0; operand->rows > 0 && at < operand->rows * operand->stride; at++) {
        int64_t column = at % operand->stride - BENCH_SHIFT;
        if (column < 0 || column >= operand->width) {
            assert_memory_equal(operand->now + at * 2, operand->before + at * 2, 2);
        }
    }
}

/* Runs the call again with `threads` threads and every operand moved by one element. */
static inline void bench_repeat(const struct bench *bench, int32_t threads)
{
    struct mf_host_context context;
    struct mf_kernel_call call = bench->call;
    unsigned char *moved[MF_OPERANDS_MAX] = {0};
    assert_ok(mf_host_context_open("test", threads, &context));
    for (int index = 0; index < MF_OPERANDS_MAX; index++) {
        const struct bench_operand *operand = &bench->operands[index];
        if (operand->now != NULL) {
            moved[index] = malloc(operand->bytes + 128);
            assert_non_null(moved[index]);
            unsigned char *to = moved[index] + operand->element;
            memcpy(to, operand->before, operand->bytes);
            call.operands[index].pointer =
                to + ((unsigned char *)bench->call.operands[index].pointer - operand->now);
        }
    }
    assert_ok(mf_host_kernels_run(&context, &call));
    for (int index = 0; index < MF_OPERANDS_MAX; index++) {
        if (moved[index] != NULL) {
            const struct bench_operand *operand = &bench->operands[index];
            assert_memory_equal(moved[index] + operand->element, operand->now, operand->bytes);
            free(moved[index]);
        }
    }
    mf_host_context_close(&context);
}

static inline void bench_run(struct bench *bench, enum mf_kernel kernel)
{
    struct mf_host_context context;
    bench->call.kernel = kernel;
    for (int index = 0; index < MF_OPERANDS_MAX; index++) {
        struct bench_operand *operand = &bench->operands[index];
        if (operand->now != NULL) {
            memcpy(operand->before, operand->now, operand->bytes);
        }
    }
    assert_ok(mf_host_context_open("test", 1, &context));
    assert_ok(mf_host_kernels_run(&context, &bench->call));
    mf_host_context_close(&context);
    for (int index = 0; index < MF_OPERANDS_MAX; index++) {
        if (bench->operands[index].now != NULL) {
            bench_check_margins(&bench->operands[index]);
        }
    }
    bench_repeat(bench, 3);
}

static inline void bench_reset(struct bench *bench)
{
    for (int index = 0; index < MF_OPERANDS_MAX; index++) {
        free(bench->operands[index].now);
        free(bench->operands[index].before);
    }
    memset(bench, 0, sizeof(*bench));
}

/* Within the rounding of bf16, plus `absolute` for the fp32 sum behind it. */
#define assert_bf16(actual, expected, absolute) assert_near(actual, expected, absolute, 0.0040)

/* The padding behind `elements` elements of a panel must be zeros. */
static inline void bench_check_padding(const struct bench *bench, int index, int64_t elements)
{
    for (int64_t at = elements; at < bench->operands[index].width; at++) {
        assert_near(bench_out(bench, index, 0, at), 0, 0, 0);
    }
}

#endif
