/* What the CPU lane runs: sums of gradients, the norm in its fixed order, clipping, AdamW against
 * PyTorch's formula in double. kernel_bench.h checks that bits depend on nothing else. */
#include "kernel_bench.h"
#include "runtime/host/adamw.h"
#include "runtime/host/simd.h"

static void test_accumulate(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        struct bench bench = {
            .call.shape = {.n = 40003, .flags = first ? MF_SHAPE_FIRST_MICRO : 0}};
        bench_dense(&bench, 0, 2, 40003);
        bench_dense(&bench, 1, 4, 40003);
        bench_run(&bench, MF_KERNEL_GRADIENT_ACCUMULATE);
        for (int64_t at = 0; at < 40003; at++) {
            float old = first ? 0 : (float)bench_in(&bench, 1, at, 0);
            float sum = old + (float)bench_in(&bench, 0, at, 0);
            assert_near(bench_out(&bench, 1, at, 0), (double)sum, 0, 0);
        }
        bench_reset(&bench);
    }
}

/* The order of kernel.h, word by word. */
static double square_sum(const struct bench *bench, int64_t n)
{
    double total = 0;
    for (int64_t start = 0; start < n; start += MF_SQUARE_BLOCK) {
        double lanes[MF_SQUARE_LANES] = {0};
        for (int64_t i = 0; i < MF_SQUARE_BLOCK && start + i < n; i++) {
            double value = bench_in(bench, 0, start + i, 0);
            lanes[i % MF_SQUARE_LANES] += value * value;
        }
        for (int half = MF_SQUARE_LANES / 2; half >= 1; half /= 2) {
            for (int lane = 0; lane < half; lane++) {
                lanes[lane] += lanes[lane + half];
            }
        }
        total += lanes[0];
    }
    return total;
}

static void test_norm(void **state)
{
    (void)state;
    const int64_t sizes[] = {1, 63, 65, 4096, 4097, 100001};
    for (size_t index = 0; index < 12; index++) {
        int64_t n = sizes[index / 2];
        bool fp32 = index % 2 == 1;
        struct bench bench = {.call.shape = {.n = n, .flags = fp32 ? MF_SHAPE_GRADIENT_FP32 : 0}};
        bench_dense(&bench, 0, fp32 ? 4 : 2, n);
        bench_dense(&bench, 1, 8, 1);
        bench_run(&bench, MF_KERNEL_GRADIENT_NORM);
        assert_near(bench_out(&bench, 1, 0, 0), square_sum(&bench, n), 0, 0);
        bench_reset(&bench);
    }
}

static struct mf_control clip(double square, struct mf_control control)
{
    double squares[3] = {square / 2, square / 4, square / 4};
    struct mf_host_context context;
    struct mf_kernel_call call = {.kernel = MF_KERNEL_CLIP, .shape = {.n = 3}};
    call.operands[0].pointer = squares;
    call.operands[1].pointer = &control;
    assert_ok(mf_host_context_open("test", 1, &context));
    assert_ok(mf_host_kernels_run(&context, &call));
    mf_host_context_close(&context);
    return control;
}

static void test_clip(void **state)
{
    (void)state;
    struct mf_control out;
    /* Nothing asked for: the norm alone, since updates may be running. */
    out = clip(400, (struct mf_control){.token_count = 5, .gradient_scale = 7, .skipped = 3});
    assert_near(out.norm, 4, 0, 1e-15);
    assert_near(out.gradient_scale, 7, 0, 0);
    assert_int_equal(out.skipped, 3);
    /* Above the limit: PyTorch's coefficient. */
    out = clip(400, (struct mf_control){.token_count = 5, .clip_norm = 1, .skipped = 1});
    assert_near(out.gradient_scale, 0.2 * (1 / (4 + 1e-6)), 0, 1e-15);
    assert_int_equal(out.skipped, 0);
    /* Below it: the mean. */
    out = clip(400, (struct mf_control){.token_count = 5, .clip_norm = 10});
    assert_near(out.gradient_scale, 0.2, 0, 1e-15);
    out = clip(400, (struct mf_control){.token_count = 5, .skip_nonfinite = 1});
    assert_near(out.gradient_scale, 0.2, 0, 1e-15);
    assert_int_equal(out.skipped, 0);
    out = clip((double)INFINITY, (struct mf_control){.token_count = 5, .skip_nonfinite = 1});
    assert_int_equal(out.skipped, 1);
    out = clip((double)NAN,
               (struct mf_control){.token_count = 5, .clip_norm = 1, .skip_nonfinite = 1});
    assert_int_equal(out.skipped, 1);
    assert_true(isnan(out.norm));
    /* No token to learn from. */
    out = clip(0, (struct mf_control){.token_count = 0, .clip_norm = 1});
    assert_int_equal(out.skipped, 1);
    assert_near(out.gradient_scale, 0, 0, 0);
}

struct adamw_case {
    int64_t n;
    int64_t k;
    uint32_t flags;
    double eps;
    double decay;
};

/* The state of n elements as ADAMW wants it, and their weights. */
struct parameters {
    float *m;
    float *v;
    int16_t *rest;
    uint16_t *weight;
};

/* Their state, counted in floats, so that the bench keeps it aligned. */
static int64_t state_floats(int64_t n)
{
    return (n * MF_STATE_BYTES + 3) / 4;
}

static struct parameters parameters_of(void *state, void *weight, int64_t n)
{
    float *m = state;
    return (struct parameters){m, m + n, (int16_t *)(void *)(m + 2 * n), weight};
}

static float master_of(const struct parameters *p, int64_t at)
{
    return mf_adamw_join(p->weight[at], p->rest[at], p->v[at]);
}

/* One step of torch.optim.AdamW in double on p, m, v. */
static void naive_adamw(const struct mf_control *control, double decay, double gradient, double *p,
                        double *m, double *v)
{
    double t = (double)control->step;
    double g = gradient * control->gradient_scale;
    *p *= 1 - control->learning_rate * decay;
    *m = control->beta1 * *m + (1 - control->beta1) * g;
    *v = control->beta2 * *v + (1 - control->beta2) * g * g;
    double root = sqrt(*v) / sqrt(1 - pow(control->beta2, t)) + control->eps;
    *p -= control->learning_rate / (1 - pow(control->beta1, t)) * *m / root;
}

static void check_adamw(const struct adamw_case *c)
{
    struct bench bench = {.call.shape = {.n = c->n, .k = c->k, .flags = c->flags}};
    bool fp32 = (c->flags & MF_SHAPE_GRADIENT_FP32) != 0;
    double *naive = calloc((size_t)c->n * 3, sizeof(*naive));
    struct mf_control control = {.learning_rate = 1e-2,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .eps = c->eps,
                                 .weight_decay = c->decay,
                                 .gradient_scale = 0.125};
    bench_dense(&bench, 0, fp32 ? 4 : 2, c->n);
    bench_dense(&bench, 1, 4, state_floats(c->n));
    bench_dense(&bench, 2, 2, c->n);
    struct parameters now = parameters_of(bench.operands[1].now, bench.operands[2].now, c->n);
    memset(now.m, 0, (size_t)c->n * 4);
    bench.call.operands[3].pointer = &control;
    for (int64_t at = 0; at < c->n; at++) {
        float master = (float)harness_random_between(-1, 1);
        mf_adamw_split(master, 0, &now.weight[at], &now.rest[at], &now.v[at]);
        naive[at] = (double)master;
    }
    for (control.step = 1; control.step <= 5; control.step++) {
        for (int64_t at = 0; at < c->n; at++) {
            bench_set(&bench, 0, at, harness_random_between(-1, 1));
        }
        bench_run(&bench, MF_KERNEL_ADAMW);
        for (int64_t at = 0; at < c->n; at++) {
            uint32_t flag = at < c->k ? MF_SHAPE_DECAY_FIRST : MF_SHAPE_DECAY_REST;
            naive_adamw(&control, (c->flags & flag) != 0 ? c->decay : 0, bench_in(&bench, 0, at, 0),
                        &naive[at], &naive[c->n + at], &naive[2 * c->n + at]);
            float master = master_of(&now, at);
            assert_near((double)master, naive[at], 2e-6, 1e-6);
            assert_near((double)now.m[at], naive[c->n + at], 1e-7, 1e-6);
            assert_near(fabs((double)now.v[at]), naive[2 * c->n + at], 1e-9, 2e-6);
            assert_int_equal(now.weight[at], mf_bf16_from_float(master));
        }
    }
    free(naive);
    bench_reset(&bench);
}

static void test_adamw(void **state)
{
    (void)state;
    const uint32_t first = MF_SHAPE_DECAY_FIRST;
    const uint32_t rest = MF_SHAPE_DECAY_REST;
    const uint32_t fp32 = MF_SHAPE_GRADIENT_FP32;
    const struct adamw_case cases[] = {
        {1, 1, 0, 1e-8, 0.1},
        {77, 50, first, 1e-8, 0.1},
        {77, 50, first, 1e-3, 0.1},
        {1024, 0, rest, 1e-8, 0},
        {5000, 4990, fp32, 1e-8, 0.1},
        {40007, 33333, first | fp32, 1e-3, 0.1},
        {35000, 17000, first | rest, 1e-8, 0.1},
    };
    for (size_t index = 0; index < sizeof(cases) / sizeof(cases[0]); index++) {
        check_adamw(&cases[index]);
    }
}

static void test_adamw_skipped(void **state)
{
    (void)state;
    struct bench bench = {.call.shape = {.n = 100, .k = 100}};
    struct mf_control control = {.learning_rate = 1, .step = 1, .skipped = 1};
    bench_dense(&bench, 0, 2, 100);
    bench_dense(&bench, 1, 4, state_floats(100));
    bench_dense(&bench, 2, 2, 100);
    bench.call.operands[3].pointer = &control;
    bench_run(&bench, MF_KERNEL_ADAMW);
    for (int index = 0; index < 3; index++) {
        assert_memory_equal(bench.operands[index].now, bench.operands[index].before,
                            bench.operands[index].bytes);
    }
    bench_reset(&bench);
}

/* Results in another place are those in place, and what was read stays as it is. */
static void test_adamw_apart(void **state)
{
    (void)state;
    enum { COUNT = 3001 };
    struct mf_control control = {
        .learning_rate = 0.1,
        .beta1 = 0.9,
        .beta2 = 0.99,
        .eps = 1e-8,
        .weight_decay = 0.1,
        .step = 3,
        .gradient_scale = 0.5,
    };
    struct bench bench = {.call.shape = {.n = COUNT, .k = 2000, .flags = MF_SHAPE_DECAY_FIRST}};
    struct mf_host_context context;
    bench_dense(&bench, 0, 2, COUNT);
    bench_dense(&bench, 1, 4, state_floats(COUNT));
    bench_dense(&bench, 2, 2, COUNT);
    bench.call.operands[3].pointer = &control;
    bench_run(&bench, MF_KERNEL_ADAMW);
    struct mf_kernel_call call = bench.call;
    const size_t bytes = COUNT * MF_STATE_BYTES;
    float *apart = malloc(bytes + 4);
    float *before = malloc(bytes);
    uint16_t *weight = malloc(COUNT * 2 + 2);
    uint16_t *weight_before = malloc(COUNT * 2);
    memcpy(before, bench.operands[1].before, bytes);
    memcpy(weight_before, bench.operands[2].before, COUNT * 2);
    call.operands[1].pointer = before;
    call.operands[2].pointer = weight_before;
    call.operands[4].pointer = apart + 1; /* not aligned to a vector */
    call.operands[5].pointer = weight + 1;
    assert_ok(mf_host_context_open("test", 2, &context));
    assert_ok(mf_host_kernels_run(&context, &call));
    mf_host_context_close(&context);
    assert_memory_equal(apart + 1, bench.operands[1].now, bytes);
    assert_memory_equal(weight + 1, bench.operands[2].now, COUNT * 2);
    assert_memory_equal(before, bench.operands[1].before, bytes);
    assert_memory_equal(weight_before, bench.operands[2].before, COUNT * 2);
    free(before);
    free(weight_before);
    free(apart);
    free(weight);
    bench_reset(&bench);
}

/* ---- every vector path has the bits of plain scalar code ---- */

#define SCALAR __attribute__((noinline)) /* one element a call: nothing to make vectors of */
#define PATH_COUNT 5003

static SCALAR void scalar_adamw(const struct mf_adamw_scalars *s, float decay, float gradient,
                                float *master, float *m, float *v)
{
    mf_adamw_element(s, decay, gradient, master, m, v);
}

static SCALAR float scalar_add(float a, float b)
{
    return a + b;
}

/* Of every kind: normal, denormal, zero, huge, infinite, NaN. */
static float special(void)
{
    const uint32_t kinds[] = {0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x00800000,
                              0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
                              0x7f800001, 0x7fffffff, 0x3f808000, 0x3f807fff, 0x0d800000};
    uint64_t kind = harness_random_below(64);
    uint32_t bits = kind < sizeof(kinds) / sizeof(kinds[0]) ? kinds[kind]
                    : kind < 20 ? (uint32_t)harness_random_below(UINT64_C(1) << 32)
                                : 0;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return kind < 20 ? value : (float)harness_random_between(-2, 2);
}

/* The same bits, or both NaN: which NaN comes out of two is left to the processor. */
static void assert_same_float(float actual, float expected)
{
    if (!isnan(expected) || !isnan(actual)) {
        assert_memory_equal(&actual, &expected, sizeof(actual));
    }
}

struct path_data {
    uint16_t gradient[PATH_COUNT];
    float gradient32[PATH_COUNT];
    float sum[PATH_COUNT];
    float master[PATH_COUNT];
    float m[PATH_COUNT];
    float v[PATH_COUNT];
};

static void fill_paths(struct path_data *data)
{
    for (int at = 0; at < PATH_COUNT; at++) {
        data->gradient[at] = mf_bf16_from_float(special());
        data->gradient32[at] = special();
        data->sum[at] = special();
        data->master[at] = special();
        data->m[at] = special();
        data->v[at] = fabsf(special());
    }
}

static const struct mf_control path_control = {.learning_rate = 1e-3,
                                               .beta1 = 0.9,
                                               .beta2 = 0.999,
                                               .eps = 1e-8,
                                               .weight_decay = 0.1,
                                               .step = 7,
                                               .gradient_scale = 0.37};

/* What lies behind the `n` elements must stay as it was. */
static void check_adamw_path(struct mf_host_context *context, const struct path_data *data,
                             int64_t n, bool fp32)
{
    static float state[PATH_COUNT * MF_STATE_BYTES / 4 + 2];
    static uint16_t weight[PATH_COUNT + 1];
    struct mf_control control = path_control;
    struct mf_adamw_scalars scalars = mf_adamw_prepare(&control);
    struct parameters now = parameters_of(state, weight, n);
    int64_t border = n / 3;
    for (int64_t at = 0; at < n; at++) {
        now.m[at] = data->m[at];
        mf_adamw_split(data->master[at], data->v[at], &now.weight[at], &now.rest[at], &now.v[at]);
    }
    now.rest[n] = 0x5555;
    now.weight[n] = 0x5555;
    struct mf_kernel_call call = {
        .kernel = MF_KERNEL_ADAMW,
        .shape = {.n = n,
                  .k = border,
                  .flags = MF_SHAPE_DECAY_FIRST | (fp32 ? MF_SHAPE_GRADIENT_FP32 : 0)},
        .operands = {{.pointer = fp32 ? (void *)data->gradient32 : (void *)data->gradient},
                     {.pointer = state},
                     {.pointer = weight},
                     {.pointer = &control}}};
    assert_ok(mf_host_kernels_run(context, &call));
    for (int64_t at = 0; at < n; at++) {
        float master = data->master[at];
        float m = data->m[at];
        float v = data->v[at];
        float gradient = fp32 ? data->gradient32[at] : mf_bf16_to_float(data->gradient[at]);
        scalar_adamw(&scalars, at < border ? scalars.decay : 1.0f, gradient, &master, &m, &v);
        assert_same_float(master_of(&now, at), master);
        assert_same_float(now.m[at], m);
        assert_same_float(mf_adamw_moment(now.v[at]), v);
        assert_same_float(mf_bf16_to_float(now.weight[at]),
                          mf_bf16_to_float(mf_bf16_from_float(master)));
    }
    assert_int_equal(now.rest[n], 0x5555);
    assert_int_equal(now.weight[n], 0x5555);
}

static void check_accumulate_path(struct mf_host_context *context, const struct path_data *before,
                                  int64_t n, bool first)
{
    static struct path_data now;
    now = *before;
    struct mf_kernel_call call = {.kernel = MF_KERNEL_GRADIENT_ACCUMULATE,
                                  .shape = {.n = n, .flags = first ? MF_SHAPE_FIRST_MICRO : 0},
                                  .operands = {{.pointer = now.gradient}, {.pointer = now.sum}}};
    assert_ok(mf_host_kernels_run(context, &call));
    for (int64_t at = 0; at < n; at++) {
        float value = mf_bf16_to_float(before->gradient[at]);
        assert_same_float(now.sum[at], first ? value : scalar_add(before->sum[at], value));
    }
    assert_memory_equal(now.sum + n, before->sum + n, (size_t)(PATH_COUNT - n) * sizeof(float));
}

static void test_paths(void **state)
{
    (void)state;
    static struct path_data data;
    struct mf_host_context context;
    enum mf_host_simd_level best = mf_host_simd_level();
    fill_paths(&data);
    assert_ok(mf_host_context_open("test", 2, &context));
    for (int level = 0; level <= (int)best; level++) {
        mf_host_simd_limit((enum mf_host_simd_level)level);
        assert_int_equal(mf_host_simd_level(), level);
        for (int64_t n = 0; n <= PATH_COUNT; n += n < 200 ? 1 : 1601) {
            for (int flag = 0; flag < 2; flag++) {
                check_adamw_path(&context, &data, n, flag == 1);
                check_accumulate_path(&context, &data, n, flag == 1);
            }
        }
    }
    mf_host_simd_limit(MF_HOST_SIMD_COUNT - 1);
    mf_host_context_close(&context);
}

/* ---- the master as weight and rest ---- */

static void check_split(uint32_t bits, float moment)
{
    float master = mf_adamw_float(bits);
    uint16_t weight;
    int16_t rest;
    float v;
    mf_adamw_split(master, moment, &weight, &rest, &v);
    uint32_t back = mf_adamw_bits(mf_adamw_join(weight, rest, v));
    if (isnan(master)) {
        assert_int_equal(back, 0x7fc00000);
        assert_int_equal(weight, 0x7fc0);
    } else {
        assert_int_equal(back, bits);
        assert_int_equal(weight, mf_bf16_from_float(master));
    }
    assert_same_float(mf_adamw_moment(v), moment);
}

/* Every lower half around the ties, for upper halves of every kind; then at random. */
static void test_split(void **state)
{
    (void)state;
    const uint32_t uppers[] = {0x0000, 0x0001, 0x007f, 0x0080, 0x3f7f, 0x3f80, 0x7f7e,
                               0x7f7f, 0x7f80, 0x7fc0, 0x8000, 0xbf80, 0xff7f, 0xff80};
    for (size_t index = 0; index < sizeof(uppers) / sizeof(uppers[0]); index++) {
        for (uint32_t lower = 0; lower < 0x10000; lower++) {
            check_split(uppers[index] << 16 | lower, lower % 2 == 0 ? 0.0f : 0.75f);
        }
    }
    for (int index = 0; index < 200000; index++) {
        uint32_t bits = (uint32_t)harness_random_below(UINT64_C(1) << 32);
        check_split(bits, (float)harness_random_between(0, 1));
        check_split((bits & 0xffff0000u) | 0x8000u, 1e-40f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accumulate),    cmocka_unit_test(test_norm),
        cmocka_unit_test(test_clip),          cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_adamw_skipped), cmocka_unit_test(test_adamw_apart),
        cmocka_unit_test(test_split),         cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
