/* The host device's row-wise kernels against plain double-precision code; gradients
 * against finite differences. kernel_bench.h checks that bits depend on nothing else. */
#define HARNESS_TIMEOUT_S 120
#include "kernel_bench.h"

#include "runtime/host/simd.h"

static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float value = mf_bf16_to_float((uint16_t)bits);
        uint16_t back = mf_bf16_from_float(value);
        assert_int_equal(back, isnan(value) ? bits | 0x40 : bits);
    }
    assert_int_equal(mf_bf16_from_float(1.00390625f), 0x3f80);   /* a tie goes to even */
    assert_int_equal(mf_bf16_from_float(1.01171875f), 0x3f82);   /* up as well as down */
    assert_int_equal(mf_bf16_from_float(1.003906369f), 0x3f81);  /* just above the tie */
    assert_int_equal(mf_bf16_from_float(3.4028235e38f), 0x7f80); /* beyond the largest */
    uint32_t payload = 0x7f800001u; /* a NaN whose bits would be cut off */
    float nan;
    memcpy(&nan, &payload, sizeof(nan));
    assert_int_equal(mf_bf16_from_float(nan), 0x7fc0);
}

static void test_exp(void **state)
{
    (void)state;
    for (int step = 0; step < 200000; step++) {
        float x = (float)harness_random_between(-87, 88);
        assert_near((double)mf_host_simd_exp(x), exp((double)x), 0, 2.5e-7);
    }
    assert_true(mf_host_simd_exp(0.0f) == 1.0f);
    assert_true(mf_host_simd_exp(-INFINITY) == 0.0f);
    assert_true(mf_host_simd_exp(-1000.0f) == 0.0f);
    assert_true(isinf(mf_host_simd_exp(1000.0f)));
    assert_true(isnan(mf_host_simd_exp(NAN)));
}

/* Arithmetic of every kind that inner loops use, for all that MF_HOST_SIMD makes of a body. */
MF_HOST_INLINE void probe_body(const float *x, const float *z, uint16_t *y, float *sum,
                               int64_t count)
{
    float lanes[MF_HOST_LANES] = {0};
    for (int64_t index = 0; index < count; index++) {
        float value = x[index] * z[index] + x[index];
        value = mf_host_simd_exp(value) / (1.0f + sqrtf(fabsf(z[index])));
        lanes[index % MF_HOST_LANES] += value * x[index];
        y[index] = mf_bf16_from_float(value + mf_bf16_to_float(y[index]));
    }
    *sum = mf_host_simd_sum(lanes);
}
MF_HOST_SIMD(probe, (const float *x, const float *z, uint16_t *y, float *sum, int64_t count),
             (x, z, y, sum, count))

#define PROBE_COUNT 1003

typedef void (*probe_function)(const float *x, const float *z, uint16_t *y, float *sum,
                               int64_t count);

#if defined(__x86_64__)
static const probe_function probes[] = {probe_baseline, probe_avx2, probe_avx512};

static size_t count_probes(void)
{
    return (size_t)mf_host_simd_level() + 1;
}
#else
static const probe_function probes[] = {probe};

static size_t count_probes(void)
{
    return 1;
}
#endif

static void test_vectors(void **state)
{
    (void)state;
    float x[PROBE_COUNT];
    float z[PROBE_COUNT];
    uint16_t y[2][PROBE_COUNT] = {0};
    float sum[2];
    for (int64_t at = 0; at < PROBE_COUNT; at++) {
        x[at] = (float)harness_random_between(-9, 9);
        z[at] = (float)harness_random_between(-9, 9);
    }
    probe(x, z, y[0], &sum[0], PROBE_COUNT);
    for (size_t index = 0; index < count_probes(); index++) {
        memset(y[1], 0, sizeof(y[1]));
        probes[index](x, z, y[1], &sum[1], PROBE_COUNT);
        assert_memory_equal(y[0], y[1], sizeof(y[0]));
        assert_memory_equal(&sum[0], &sum[1], sizeof(sum[0]));
    }
}

/* ---- embeddings ---- */

static void test_embedding(void **state)
{
    (void)state;
    const int64_t rows = 61;
    const int64_t n = 37;
    struct bench bench = {.call.shape = {.rows = rows, .n = n, .k = 20}, .call.index0 = 15};
    int32_t *tokens = bench_integers(&bench, 0, rows, 50);
    bench_panel(&bench, 1, 20 * n);
    bench_matrix(&bench, 2, rows, n);
    bench_run(&bench, MF_KERNEL_EMBEDDING_FORWARD);
    for (int64_t at = 0; at < rows * n; at++) {
        int64_t index = tokens[at / n] - 15;
        double expected = index >= 0 && index < 20 ? bench_in(&bench, 1, index * n, at % n)
                                                   : bench_in(&bench, 2, at / n, at % n);
        assert_near(bench_out(&bench, 2, at / n, at % n), expected, 0, 0);
    }
    bench_reset(&bench);
    bench.call.shape = (struct mf_shape){.rows = rows, .n = n, .k = 20};
    bench.call.index0 = 15;
    tokens = bench_integers(&bench, 0, rows, 30);
    bench_matrix(&bench, 1, rows, n);
    bench_panel(&bench, 2, 20 * n);
    bench_run(&bench, MF_KERNEL_EMBEDDING_BACKWARD);
    for (int64_t at = 0; at < 20 * n; at++) {
        double sum = 0;
        for (int64_t row = 0; row < rows; row++) {
            sum += tokens[row] - 15 == at / n ? bench_in(&bench, 1, row, at % n) : 0;
        }
        assert_bf16(bench_out(&bench, 2, 0, at), sum, 1e-6);
    }
    bench_check_padding(&bench, 2, 20 * n);
    bench_reset(&bench);
}

/* Step after step with other tokens: the panel that keeps its zero rows has the bits of the one
 * that is written whole, and rows that no token ever names are never written. */
static void test_embedding_touched(void **state)
{
    (void)state;
    enum { ROWS = 40, N = 21, K = 30, FIRST = 5, STEPS = 6, NEVER = 11 };
    static uint16_t dy[ROWS * N], whole[(K * N + 63) / 64 * 64], kept[(K * N + 63) / 64 * 64];
    static int32_t tokens[ROWS];
    uint8_t marks[K] = {0};
    struct mf_host_context context;
    struct mf_kernel_call call = {.kernel = MF_KERNEL_EMBEDDING_BACKWARD,
                                  .shape = {.rows = ROWS, .n = N, .k = K},
                                  .index0 = FIRST};
    assert_ok(mf_host_context_open("embedding", 3, &context));
    memset(kept + NEVER * N, 0x55, N * sizeof(*kept));
    for (int step = 0; step < STEPS; step++) {
        int32_t limit = step == 3 ? FIRST : K + 10; /* once no token lies in the panel */
        for (int at = 0; at < ROWS; at++) {
            tokens[at] = (int32_t)harness_random_below((uint64_t)limit);
            tokens[at] -= tokens[at] == FIRST + NEVER;
        }
        for (int at = 0; at < ROWS * N; at++) {
            dy[at] = mf_bf16_from_float((float)harness_random_between(-1, 1));
        }
        call.operands[0] = (struct mf_operand){tokens, 0};
        call.operands[1] = (struct mf_operand){dy, N};
        call.operands[2] = (struct mf_operand){whole, 0};
        call.shape.flags = 0;
        assert_ok(mf_host_kernels_run(&context, &call));
        call.operands[2].pointer = kept;
        call.operands[3].pointer = marks;
        call.shape.flags = MF_SHAPE_TOUCHED | MF_SHAPE_OUTPUT_HOST;
        assert_ok(mf_host_kernels_run(&context, &call));
        for (int row = 0; row < K; row++) {
            bool zero = true;
            for (int at = 0; at < N; at++) {
                zero = zero && whole[row * N + at] == 0;
                assert_int_equal(kept[row * N + at], row == NEVER ? 0x5555 : whole[row * N + at]);
            }
            assert_int_equal(marks[row], !zero);
        }
    }
    mf_host_context_close(&context);
}

static void test_position(void **state)
{
    (void)state;
    const int64_t rows = 44;
    const int64_t n = 33;
    const int64_t k = 15;
    struct mf_shape shape = {.rows = rows, .n = n, .k = k, .seq_len = 11};
    struct bench bench = {.call.shape = shape};
    bench_matrix(&bench, 0, rows, n);
    bench_panel(&bench, 1, k * n);
    bench_matrix(&bench, 2, rows, n);
    bench_run(&bench, MF_KERNEL_POSITION_FORWARD);
    for (int64_t at = 0; at < rows * n; at++) {
        double expected = bench_in(&bench, 0, at / n, at % n) +
                          bench_in(&bench, 1, at / n % shape.seq_len * n, at % n);
        assert_bf16(bench_out(&bench, 2, at / n, at % n), expected, 1e-7);
    }
    bench_reset(&bench);
    bench.call.shape = shape;
    bench_matrix(&bench, 0, rows, n);
    bench_panel(&bench, 1, k * n);
    bench_run(&bench, MF_KERNEL_POSITION_BACKWARD);
    for (int64_t at = 0; at < k * n; at++) {
        double sum = 0;
        for (int64_t row = at / n; at / n < shape.seq_len && row < rows; row += shape.seq_len) {
            sum += bench_in(&bench, 0, row, at % n);
        }
        assert_bf16(bench_out(&bench, 1, 0, at), sum, 1e-6);
    }
    bench_check_padding(&bench, 1, k * n);
    bench_reset(&bench);
}

/* ---- norms ---- */

#define NORM_EPS 1e-5
#define NORM_MAX 80

/* y of one group in double. */
static void naive_norm(bool layer, const double *x, const double *weight, const double *bias,
                       int64_t n, double *y)
{
    double mean = 0;
    double square = 0;
    for (int64_t i = 0; i < n; i++) {
        mean += layer ? x[i] / (double)n : 0;
    }
    for (int64_t i = 0; i < n; i++) {
        square += (x[i] - mean) * (x[i] - mean) / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
        y[i] = (x[i] - mean) / sqrt(square + NORM_EPS) * weight[i] + (layer ? bias[i] : 0);
    }
}

/* One group as doubles: x, weight, bias and what the gradient of y is. */
struct group {
    bool layer;
    int64_t n;
    double x[NORM_MAX];
    double weight[NORM_MAX];
    double bias[NORM_MAX];
    double dy[NORM_MAX];
};

static double norm_loss(const struct group *group)
{
    double y[NORM_MAX];
    double loss = 0;
    naive_norm(group->layer, group->x, group->weight, group->bias, group->n, y);
    for (int64_t i = 0; i < group->n; i++) {
        loss += y[i] * group->dy[i];
    }
    return loss;
}

static double difference(struct group *group, double *variable)
{
    double saved = *variable;
    *variable = saved + 1e-5;
    double above = norm_loss(group);
    *variable = saved - 1e-5;
    double below = norm_loss(group);
    *variable = saved;
    return (above - below) / 2e-5;
}

static void read_group(const struct bench *bench, int weight, int dy, int64_t row, int64_t head,
                       struct group *group)
{
    for (int64_t i = 0; i < group->n; i++) {
        group->x[i] = bench_in(bench, 0, row, head * group->n + i);
        if (weight >= 0) {
            group->weight[i] = bench_in(bench, weight, 0, i);
            group->bias[i] = group->layer ? bench_in(bench, weight, group->n, i) : 0;
        }
        if (dy >= 0) {
            group->dy[i] = bench_in(bench, dy, row, head * group->n + i);
        }
    }
}

/* Forward, then both gradients with the forward's statistics. */
static void check_norm(bool layer, int64_t rows, int32_t heads, int64_t n, uint32_t flags)
{
    struct bench bench = {.call.shape = {.rows = rows, .n = n, .heads = heads}};
    struct group group = {.layer = layer, .n = n};
    double y[NORM_MAX];
    double dweight[2 * NORM_MAX] = {0};
    int64_t panel = layer ? 2 * n : n;
    bench.call.scalar0 = NORM_EPS;
    bench_matrix(&bench, 0, rows, heads * n);
    bench_panel(&bench, 1, panel);
    bench_matrix(&bench, 2, rows, heads * n);
    bench_dense(&bench, 3, 4, rows * heads * 2);
    bench_run(&bench, layer ? MF_KERNEL_LAYER_NORM_FORWARD : MF_KERNEL_RMS_NORM_FORWARD);
    for (int64_t at = 0; at < rows * heads; at++) {
        read_group(&bench, 1, -1, at / heads, at % heads, &group);
        naive_norm(layer, group.x, group.weight, group.bias, n, y);
        for (int64_t i = 0; i < n; i++) {
            assert_bf16(bench_out(&bench, 2, at / heads, at % heads * n + i), y[i], 2e-6);
        }
    }

    struct bench data = bench; /* takes over x, the weight and the statistics */
    data.operands[2] = bench.operands[3];
    data.call.operands[2] = bench.call.operands[3];
    bench_matrix(&data, 3, rows, heads * n);
    bench_matrix(&data, 4, rows, heads * n);
    data.call.shape.flags = flags;
    bench_run(&data, layer ? MF_KERNEL_LAYER_NORM_BACKWARD : MF_KERNEL_RMS_NORM_BACKWARD);
    for (int64_t at = 0; at < rows * heads; at++) {
        read_group(&data, 1, 3, at / heads, at % heads, &group);
        for (int64_t i = 0; i < n; i++) {
            double old = flags != 0 ? bench_in(&data, 4, at / heads, at % heads * n + i) : 0;
            assert_bf16(bench_out(&data, 4, at / heads, at % heads * n + i),
                        old + difference(&group, &group.x[i]), 2e-5);
            dweight[i] += difference(&group, &group.weight[i]);
            dweight[n + i] += group.dy[i];
        }
    }

    struct bench weights = {.call.shape = bench.call.shape};
    weights.operands[0] = data.operands[0];
    weights.call.operands[0] = data.call.operands[0];
    weights.operands[1] = data.operands[2];
    weights.call.operands[1] = data.call.operands[2];
    weights.operands[2] = data.operands[3];
    weights.call.operands[2] = data.call.operands[3];
    bench_panel(&weights, 3, panel);
    bench_run(&weights,
              layer ? MF_KERNEL_LAYER_NORM_BACKWARD_WEIGHT : MF_KERNEL_RMS_NORM_BACKWARD_WEIGHT);
    for (int64_t i = 0; i < panel; i++) {
        assert_bf16(bench_out(&weights, 3, 0, i), dweight[i], 3e-5);
    }
    bench_check_padding(&weights, 3, panel);
    data.operands[0] = data.operands[2] = data.operands[3] = (struct bench_operand){0};
    free(bench.operands[2].now);
    free(bench.operands[2].before);
    bench_reset(&weights);
    bench_reset(&data);
}

static void test_norms(void **state)
{
    (void)state;
    for (int layer = 0; layer < 2; layer++) {
        check_norm(layer != 0, 1, 1, 1, 0);
        check_norm(layer != 0, 5, 1, 77, 0);
        check_norm(layer != 0, 7, 3, 16, MF_SHAPE_ADD_TO_OUTPUT);
        check_norm(layer != 0, 90, 4, 19, 0);
    }
}

/* ---- element-wise ---- */

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double slope(double (*function)(double), double x)
{
    return (function(x + 1e-5) - function(x - 1e-5)) / 2e-5;
}

/* Wider inputs than -1..1, and the ends of the range. */
static void spread(struct bench *bench, int index, int64_t rows, int64_t width)
{
    for (int64_t at = 0; at < rows * width; at++) {
        double value = harness_random_between(-8, 8);
        value = at == 3 ? 200 : at == 4 ? -200 : at == 5 ? 0 : value;
        bench_set(bench, index, bench_place(&bench->operands[index], at / width, at % width),
                  value);
    }
}

static void test_activations(void **state)
{
    (void)state;
    const int64_t rows = 50;
    const int64_t n = 523;
    static const struct {
        enum mf_kernel kernel;
        int operands;
    } cases[] = {{MF_KERNEL_GELU_FORWARD, 2},
                 {MF_KERNEL_GELU_BACKWARD, 3},
                 {MF_KERNEL_SWIGLU_FORWARD, 3},
                 {MF_KERNEL_SWIGLU_BACKWARD, 5}};
    for (size_t index = 0; index < 4; index++) {
        struct bench bench = {.call.shape = {.rows = rows, .n = n}};
        for (int operand = 0; operand < cases[index].operands; operand++) {
            bench_matrix(&bench, operand, rows, n);
        }
        spread(&bench, 0, rows, n);
        bench_run(&bench, cases[index].kernel);
        for (int64_t at = 0; at < rows * n; at++) {
            double a = bench_in(&bench, 0, at / n, at % n);
            double b = bench_in(&bench, 1, at / n, at % n);
            double c = cases[index].operands > 2 ? bench_in(&bench, 2, at / n, at % n) : 0;
            double outs[4][2] = {{gelu(a), 0},
                                 {b * slope(gelu, a), 0},
                                 {silu(a) * b, 0},
                                 {c * b * slope(silu, a), c * silu(a)}};
            int first = index == 0 ? 1 : index < 3 ? 2 : 3;
            assert_bf16(bench_out(&bench, first, at / n, at % n), outs[index][0], 1e-6);
            if (index == 3) {
                assert_bf16(bench_out(&bench, 4, at / n, at % n), outs[index][1], 1e-6);
            }
        }
        bench_reset(&bench);
    }
}

static void test_sums(void **state)
{
    (void)state;
    const int64_t rows = 30;
    const int64_t n = 601;
    struct bench bench = {.call.shape = {.rows = rows, .n = n}};
    for (int index = 0; index < 3; index++) {
        bench_matrix(&bench, index, rows, n);
    }
    bench_run(&bench, MF_KERNEL_ADD_FORWARD);
    for (int64_t at = 0; at < rows * n; at++) {
        assert_bf16(bench_out(&bench, 2, at / n, at % n),
                    bench_in(&bench, 0, at / n, at % n) + bench_in(&bench, 1, at / n, at % n),
                    1e-7);
    }
    bench_reset(&bench);
    for (int add = 0; add < 2; add++) {
        bench.call.shape =
            (struct mf_shape){.rows = rows, .n = n, .flags = add ? MF_SHAPE_ADD_TO_OUTPUT : 0};
        bench_matrix(&bench, 0, rows, n);
        bench_matrix(&bench, 1, rows, n);
        bench_run(&bench, MF_KERNEL_GRADIENT_COPY);
        for (int64_t at = 0; at < rows * n; at++) {
            double old = add ? bench_in(&bench, 1, at / n, at % n) : 0;
            assert_bf16(bench_out(&bench, 1, at / n, at % n),
                        old + bench_in(&bench, 0, at / n, at % n), 1e-7);
        }
        bench_reset(&bench);
    }
}

static void test_rope(void **state)
{
    (void)state;
    const int64_t rows = 36;
    const int32_t heads = 3;
    const int32_t dim = 10;
    for (int turn = 0; turn < 4; turn++) {
        struct bench bench = {0};
        double sign = turn < 2 ? 1 : -1;
        bool add = turn == 3;
        bench.call.shape = (struct mf_shape){.rows = rows,
                                             .heads = heads,
                                             .head_dim = dim,
                                             .seq_len = 12,
                                             .flags = add ? MF_SHAPE_ADD_TO_OUTPUT : 0};
        bench_matrix(&bench, 0, rows, heads * dim);
        bench_dense(&bench, 1, 4, 12 * dim);
        bench_matrix(&bench, 2, rows, heads * dim);
        bench_run(&bench, sign > 0 ? MF_KERNEL_ROPE_FORWARD : MF_KERNEL_ROPE_BACKWARD);
        for (int64_t at = 0; at < rows * heads * dim; at++) {
            int64_t row = at / (heads * dim);
            int64_t column = at % (heads * dim);
            int64_t pair = column % dim % (dim / 2);
            bool high = column % dim >= dim / 2;
            double cosine = bench_in(&bench, 1, row % 12 * dim + pair * 2, 0);
            double sine = sign * bench_in(&bench, 1, row % 12 * dim + pair * 2 + 1, 0);
            double own = bench_in(&bench, 0, row, column);
            double other = bench_in(&bench, 0, row, high ? column - dim / 2 : column + dim / 2);
            double expected = own * cosine + (high ? other : -other) * sine;
            expected += add ? bench_in(&bench, 2, row, column) : 0;
            assert_bf16(bench_out(&bench, 2, row, column), expected, 1e-6);
        }
        bench_reset(&bench);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_embedding_touched),
        cmocka_unit_test(test_position),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_rope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
