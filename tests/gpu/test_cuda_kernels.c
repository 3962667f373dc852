/* Every kernel of the CUDA device against the host device on random operands. Tolerances are of
 * ||difference|| / ||reference||: one rounding of bf16 here and there is about 1e-3; what the
 * update computes must have the same bits. */
#define HARNESS_TIMEOUT_S 600
#include "runtime/host/adamw.h"
#include "tests/gpu/gpu_bench.h"

#define ROUNDING 2.5e-3 /* an element-wise result or a product, rounded to bf16 */
#define SUM 2e-5        /* fp32 results */
#define ATTENTION 6e-3  /* probabilities are rounded to bf16 before the second product */
#define ATTENTION_BACK 1e-2

static int setup(void **state)
{
    (void)state;
    gpu_open();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    gpu_close();
    return 0;
}

static void test_embedding(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{300, 96, 50}, {3000, 1032, 30}, {70, 77, 11}};
    for (int run = 0; run < 12; run++) {
        const int64_t *size = sizes[run % 3];
        struct gpu_bench bench = {.layout = run / 3 % 2, .tolerance = ROUNDING};
        bench.call.shape = (struct mf_shape){.rows = size[0], .n = size[1], .k = size[2]};
        bench.call.index0 = 5;
        gpu_integers(&bench, 0, size[0], size[2] + 20);
        gpu_panel(&bench, 1, size[1] * size[2]);
        gpu_matrix(&bench, 2, size[0], size[1]);
        bench.operands[1].mapped = run >= 6;
        gpu_run(&bench, MF_KERNEL_EMBEDDING_FORWARD);
        gpu_drop(&bench, 1);
        gpu_drop(&bench, 2);
        gpu_matrix(&bench, 1, size[0], size[1]);
        gpu_panel(&bench, 2, size[1] * size[2]);
        bench.operands[2].mapped = run >= 6;
        gpu_run(&bench, MF_KERNEL_EMBEDDING_BACKWARD);
        gpu_reset(&bench);
    }
}

/* Marks at random: rows marked before and not touched become zero, the others stay. */
static void test_embedding_touched(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{300, 96, 50}, {3000, 1032, 3000}, {70, 77, 11}};
    for (int run = 0; run < 12; run++) {
        const int64_t *size = sizes[run % 3];
        struct gpu_bench bench = {.layout = run / 3 % 2, .tolerance = ROUNDING};
        bench.call.shape = (struct mf_shape){.rows = size[0],
                                             .n = size[1],
                                             .k = size[2],
                                             .flags = MF_SHAPE_OUTPUT_HOST | MF_SHAPE_TOUCHED};
        bench.call.index0 = 5;
        gpu_integers(&bench, 0, size[0], size[2] + 20);
        gpu_matrix(&bench, 1, size[0], size[1]);
        gpu_panel(&bench, 2, size[1] * size[2]);
        bench.operands[2].mapped = run >= 6;
        int32_t *marks = gpu_integers(&bench, 3, (size[2] + 3) / 4, 1);
        for (int64_t row = 0; row < size[2]; row++) {
            ((uint8_t *)marks)[row] = (uint8_t)harness_random_below(2);
        }
        gpu_run(&bench, MF_KERNEL_EMBEDDING_BACKWARD);
        gpu_keep(&bench, 2); /* and once more with other tokens */
        gpu_keep(&bench, 3);
        gpu_drop(&bench, 0);
        gpu_integers(&bench, 0, size[0], size[2] + 20);
        gpu_run(&bench, MF_KERNEL_EMBEDDING_BACKWARD);
        gpu_reset(&bench);
    }
}

static void test_position(void **state)
{
    (void)state;
    for (int run = 0; run < 6; run++) {
        int64_t n = run % 3 == 0 ? 768 : 45;
        struct gpu_bench bench = {.layout = run % 2, .tolerance = ROUNDING};
        bench.call.shape = (struct mf_shape){.rows = 120, .n = n, .k = 30, .seq_len = 40};
        bench.call.index0 = run % 3 == 2 ? 20 : 0;
        gpu_matrix(&bench, 0, 120, n);
        gpu_panel(&bench, 1, n * 30);
        gpu_matrix(&bench, 2, 120, n);
        gpu_run(&bench, MF_KERNEL_POSITION_FORWARD);
        gpu_drop(&bench, 2);
        gpu_run(&bench, MF_KERNEL_POSITION_BACKWARD);
        gpu_reset(&bench);
    }
}

static void check_norm(int64_t rows, int64_t n, int32_t heads, bool layer, int layout)
{
    struct gpu_bench bench = {.layout = layout, .tolerance = ROUNDING};
    bench.call.shape = (struct mf_shape){.rows = rows, .n = n, .heads = heads};
    bench.call.scalar0 = 1e-5;
    gpu_matrix(&bench, 0, rows, n * heads);
    gpu_panel(&bench, 1, 2 * n);
    gpu_matrix(&bench, 2, rows, n * heads);
    gpu_dense(&bench, 3, 4, rows * heads * 2);
    bench.operands[1].mapped = layout == 1;
    gpu_run(&bench, layer ? MF_KERNEL_LAYER_NORM_FORWARD : MF_KERNEL_RMS_NORM_FORWARD);
    float *stats = malloc(bench.operands[3].bytes);
    memcpy(stats, bench.operands[3].host, bench.operands[3].bytes);
    gpu_drop(&bench, 2);
    gpu_drop(&bench, 3);
    gpu_dense(&bench, 2, 4, rows * heads * 2);
    memcpy(bench.operands[2].before, stats, bench.operands[2].bytes);
    gpu_matrix(&bench, 3, rows, n * heads);
    gpu_matrix(&bench, 4, rows, n * heads);
    for (int add = 0; add < 2; add++) {
        bench.call.shape.flags = add != 0 ? MF_SHAPE_ADD_TO_OUTPUT : 0;
        gpu_run(&bench, layer ? MF_KERNEL_LAYER_NORM_BACKWARD : MF_KERNEL_RMS_NORM_BACKWARD);
    }
    bench.call.shape.flags = 0;
    gpu_drop(&bench, 1);
    gpu_drop(&bench, 2);
    gpu_drop(&bench, 3);
    gpu_drop(&bench, 4);
    gpu_dense(&bench, 1, 4, rows * heads * 2);
    memcpy(bench.operands[1].before, stats, bench.operands[1].bytes);
    gpu_matrix(&bench, 2, rows, n * heads);
    gpu_panel(&bench, 3, (layer ? 2 : 1) * n);
    bench.operands[3].mapped = layout == 1;
    gpu_run(&bench,
            layer ? MF_KERNEL_LAYER_NORM_BACKWARD_WEIGHT : MF_KERNEL_RMS_NORM_BACKWARD_WEIGHT);
    free(stats);
    gpu_reset(&bench);
}

static void test_norm(void **state)
{
    (void)state;
    for (int run = 0; run < 4; run++) {
        bool layer = run % 2 == 1;
        check_norm(300, 96, 1, layer, run / 2);
        check_norm(75, 2056, 1, layer, run / 2);
        check_norm(3, 17, 1, layer, run / 2);
        check_norm(200, 64, 6, layer, run / 2);
    }
}

static const int64_t linear_sizes[][3] = {/* rows, n, k */
                                          {1, 1, 1},       {37, 29, 53},    {300, 75, 70},
                                          {143, 515, 257}, {256, 192, 128}, {520, 1024, 768}};

static void test_linear(void **state)
{
    (void)state;
    for (int run = 0; run < 24; run++) {
        const int64_t *size = linear_sizes[run % 6];
        bool bias = run / 6 % 2 == 1;
        /* At odd strides the library may round a product before it adds the bias. */
        struct gpu_bench bench = {.layout = run / 12, .tolerance = ROUNDING * (bias ? 2 : 1)};
        bench.call.shape = (struct mf_shape){.rows = size[0], .n = size[1], .k = size[2]};
        bench.call.shape.flags = bias ? MF_SHAPE_BIAS : 0;
        gpu_matrix(&bench, 0, size[0], size[2]);
        gpu_panel(&bench, 1, size[1] * (size[2] + bias));
        gpu_matrix(&bench, 2, size[0], size[1]);
        bench.operands[1].mapped = bias;
        gpu_run(&bench, MF_KERNEL_LINEAR_FORWARD);
        gpu_drop(&bench, 1);
        gpu_drop(&bench, 2);
        gpu_matrix(&bench, 1, size[0], size[1]);
        gpu_panel(&bench, 2, size[1] * (size[2] + bias));
        bench.operands[2].mapped = bias;
        gpu_run(&bench, MF_KERNEL_LINEAR_BACKWARD_WEIGHT);
        gpu_reset(&bench);
    }
}

static void test_linear_backward_data(void **state)
{
    (void)state;
    static const uint32_t flags[] = {MF_SHAPE_FIRST_PANEL,
                                     0,
                                     MF_SHAPE_LAST_PANEL,
                                     MF_SHAPE_LAST_PANEL | MF_SHAPE_ADD_TO_OUTPUT,
                                     MF_SHAPE_FIRST_PANEL | MF_SHAPE_LAST_PANEL,
                                     MF_SHAPE_FIRST_PANEL | MF_SHAPE_LAST_PANEL |
                                         MF_SHAPE_ADD_TO_OUTPUT};
    for (int run = 0; run < 72; run++) {
        const int64_t *size = linear_sizes[run % 6];
        uint32_t flag = flags[run / 6 % 6];
        bool alone = (flag & MF_SHAPE_FIRST_PANEL) != 0 && (flag & MF_SHAPE_LAST_PANEL) != 0;
        /* Adding to bf16 in the product itself, the library may round the product first. */
        bool twice = alone && (flag & MF_SHAPE_ADD_TO_OUTPUT) != 0;
        struct gpu_bench bench = {.layout = run / 36, .tolerance = ROUNDING * (twice ? 2 : 1)};
        bench.call.shape =
            (struct mf_shape){.rows = size[0], .n = size[1], .k = size[2], .flags = flag};
        gpu_matrix(&bench, 0, size[0], size[1]);
        gpu_panel(&bench, 1, size[1] * size[2]);
        if (!alone) {
            gpu_dense(&bench, 2, 4, size[0] * size[2]);
        }
        gpu_matrix(&bench, 3, size[0], size[2]);
        gpu_run(&bench, MF_KERNEL_LINEAR_BACKWARD_DATA);
        gpu_reset(&bench);
    }
}

/* The bits of a product must not depend on where its weights lie. */
static void test_direct_reads_have_the_same_bits(void **state)
{
    (void)state;
    struct gpu_bench bench = {.tolerance = ROUNDING};
    bench.call.shape = (struct mf_shape){.rows = 2048, .n = 1024, .k = 1024};
    gpu_matrix(&bench, 0, 2048, 1024);
    gpu_panel(&bench, 1, 1024 * 1024);
    gpu_matrix(&bench, 2, 2048, 1024);
    gpu_run(&bench, MF_KERNEL_LINEAR_FORWARD);
    unsigned char *resident = malloc(bench.operands[2].bytes);
    memcpy(resident, bench.operands[2].gpu, bench.operands[2].bytes);
    bench.operands[1].mapped = true;
    gpu_run(&bench, MF_KERNEL_LINEAR_FORWARD);
    assert_memory_equal(resident, bench.operands[2].gpu, bench.operands[2].bytes);
    free(resident);
    gpu_reset(&bench);
}

static void test_rope(void **state)
{
    (void)state;
    static const int32_t dims[] = {64, 128, 20, 6};
    for (int run = 0; run < 16; run++) {
        int32_t dim = dims[run % 4];
        struct gpu_bench bench = {.layout = run / 4 % 2, .tolerance = ROUNDING};
        bench.call.shape =
            (struct mf_shape){.rows = 90, .heads = 3, .head_dim = dim, .seq_len = 30, .n = 3 * dim};
        bench.call.shape.flags = run / 8 == 1 ? MF_SHAPE_ADD_TO_OUTPUT : 0;
        gpu_matrix(&bench, 0, 90, 3 * dim);
        gpu_dense(&bench, 1, 4, 30 * dim);
        gpu_matrix(&bench, 2, 90, 3 * dim);
        gpu_run(&bench, run / 8 == 0 ? MF_KERNEL_ROPE_FORWARD : MF_KERNEL_ROPE_BACKWARD);
        gpu_reset(&bench);
    }
}

/* dy and the rest as a model would have them: values up to 1. */
static void check_elementwise(enum mf_kernel kernel, int operands, uint32_t flags)
{
    static const int64_t sizes[][2] = {{100, 768}, {3, 5}, {700, 1100}};
    for (int run = 0; run < 6; run++) {
        const int64_t *size = sizes[run % 3];
        struct gpu_bench bench = {.layout = run / 3, .tolerance = ROUNDING};
        bench.call.shape = (struct mf_shape){.rows = size[0], .n = size[1], .flags = flags};
        for (int index = 0; index < operands; index++) {
            gpu_matrix(&bench, index, size[0], size[1]);
        }
        gpu_run(&bench, kernel);
        gpu_reset(&bench);
    }
}

static void test_elementwise(void **state)
{
    (void)state;
    check_elementwise(MF_KERNEL_GELU_FORWARD, 2, 0);
    check_elementwise(MF_KERNEL_GELU_BACKWARD, 3, 0);
    check_elementwise(MF_KERNEL_SWIGLU_FORWARD, 3, 0);
    check_elementwise(MF_KERNEL_SWIGLU_BACKWARD, 5, 0);
    check_elementwise(MF_KERNEL_ADD_FORWARD, 3, 0);
    check_elementwise(MF_KERNEL_GRADIENT_COPY, 2, 0);
    check_elementwise(MF_KERNEL_GRADIENT_COPY, 2, MF_SHAPE_ADD_TO_OUTPUT);
}

static const struct mf_shape attention_shapes[] = {
    {.rows = 1, .seq_len = 1, .heads = 1, .kv_heads = 1, .head_dim = 2},
    {.rows = 10, .seq_len = 5, .heads = 4, .kv_heads = 2, .head_dim = 6},
    {.rows = 150, .seq_len = 150, .heads = 2, .kv_heads = 1, .head_dim = 10},
    {.rows = 12, .seq_len = 3, .heads = 2, .kv_heads = 1, .head_dim = 64},
    {.rows = 260, .seq_len = 130, .heads = 4, .kv_heads = 2, .head_dim = 64},
    {.rows = 514, .seq_len = 257, .heads = 8, .kv_heads = 2, .head_dim = 128},
    {.rows = 512, .seq_len = 512, .heads = 2, .kv_heads = 2, .head_dim = 128},
    {.rows = 1024, .seq_len = 1024, .heads = 3, .kv_heads = 1, .head_dim = 64},
    {.rows = 200, .seq_len = 100, .heads = 2, .kv_heads = 2, .head_dim = 96},
    {.rows = 70, .seq_len = 70, .heads = 2, .kv_heads = 1, .head_dim = 256},
};

static void check_attention(const struct mf_shape *s, int layout)
{
    struct gpu_bench bench = {.layout = layout, .tolerance = ATTENTION};
    int64_t width = (int64_t)s->heads * s->head_dim;
    int64_t kv_width = (int64_t)s->kv_heads * s->head_dim;
    bench.call.shape = *s;
    for (int index = 0; index < 4; index++) {
        gpu_matrix(&bench, index, s->rows, index == 1 || index == 2 ? kv_width : width);
    }
    gpu_dense(&bench, 4, 4, s->rows * s->heads);
    gpu_run(&bench, MF_KERNEL_ATTENTION_FORWARD);
    gpu_keep(&bench, 3);
    gpu_keep(&bench, 4);
    gpu_matrix(&bench, 5, s->rows, width);
    gpu_matrix(&bench, 6, s->rows, width);
    gpu_matrix(&bench, 7, s->rows, kv_width);
    gpu_matrix(&bench, 8, s->rows, kv_width);
    bench.tolerance = ATTENTION_BACK;
    gpu_run(&bench, MF_KERNEL_ATTENTION_BACKWARD);
    gpu_reset(&bench);
}

static void test_attention(void **state)
{
    (void)state;
    for (size_t size = 0; size < sizeof(attention_shapes) / sizeof(attention_shapes[0]); size++) {
        check_attention(&attention_shapes[size], 0);
        check_attention(&attention_shapes[size], 1);
    }
}

/* ---- head ---- */

static void label_rows(struct gpu_bench *bench, int index, int64_t rows, int64_t vocab)
{
    int32_t *labels = gpu_integers(bench, index, rows, vocab);
    for (int64_t row = 3; row < rows; row += 7) {
        labels[row] = -100;
    }
}

static void check_head_panel(int64_t rows, int64_t n, int64_t k, int64_t first, bool first_panel)
{
    struct gpu_bench bench = {.tolerance = ROUNDING};
    bench.call.shape = (struct mf_shape){.rows = rows, .n = n, .k = k, .seq_len = (int32_t)rows};
    bench.call.index0 = first;
    bench.call.shape.flags = first_panel ? MF_SHAPE_FIRST_PANEL : 0;
    gpu_matrix(&bench, 0, rows, k);
    gpu_panel(&bench, 1, n * k);
    label_rows(&bench, 2, rows, first + 2 * n);
    gpu_dense(&bench, 3, 4, rows * 3);
    for (int64_t row = 0; row < rows; row++) { /* a running maximum and sum of panels before */
        gpu_set(&bench.operands[3], row * 3, harness_random_between(0, 5));
        gpu_set(&bench.operands[3], row * 3 + 1, harness_random_between(1, 50));
    }
    gpu_run(&bench, MF_KERNEL_HEAD_FORWARD);
    gpu_drop(&bench, 3);
    gpu_dense(&bench, 3, 4, rows);
    for (int64_t row = 0; row < rows; row++) { /* near the true sum, so that nothing overflows */
        gpu_set(&bench.operands[3], row, harness_random_between(20, 24));
    }
    gpu_matrix(&bench, 4, rows, n);
    gpu_run(&bench, MF_KERNEL_HEAD_BACKWARD);
    for (int index = 2; index < 5; index++) {
        gpu_drop(&bench, index);
    }
    bench.call.index1 = rows - 1;
    gpu_dense(&bench, 2, 4, n);
    gpu_run(&bench, MF_KERNEL_HEAD_LOGITS);
    gpu_reset(&bench);
}

static void test_head(void **state)
{
    (void)state;
    check_head_panel(70, 500, 45, 0, true);
    check_head_panel(300, 1024, 64, 2048, false);
    check_head_panel(129, 333, 96, 333, false);
    struct gpu_bench bench = {.tolerance = SUM};
    bench.call.shape = (struct mf_shape){.rows = 1000};
    gpu_dense(&bench, 0, 4, 3000);
    for (int64_t row = 0; row < 1000; row++) {
        gpu_set(&bench.operands[0], row * 3 + 1, harness_random_between(1, 50));
    }
    label_rows(&bench, 1, 1000, 50000);
    gpu_dense(&bench, 2, 4, 1000);
    gpu_dense(&bench, 3, 4, 1000);
    gpu_dense(&bench, 4, 8, 2);
    gpu_run(&bench, MF_KERNEL_HEAD_LOSS);
    gpu_reset(&bench);
}

/* ---- what must have the same bits ---- */

static void test_gradients_have_the_same_bits(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 64, 4095, 100003, 1 << 20};
    for (int run = 0; run < 10; run++) {
        struct gpu_bench bench = {.tolerance = 0};
        int64_t n = sizes[run % 5];
        bench.call.shape = (struct mf_shape){.n = n, .flags = run < 5 ? MF_SHAPE_FIRST_MICRO : 0};
        gpu_dense(&bench, 0, 2, n);
        gpu_dense(&bench, 1, 4, n);
        gpu_run(&bench, MF_KERNEL_GRADIENT_ACCUMULATE);
        gpu_drop(&bench, 0);
        gpu_drop(&bench, 1);
        gpu_dense(&bench, 0, run < 5 ? 2 : 4, n);
        gpu_dense(&bench, 1, 8, 1);
        bench.call.shape.flags = run < 5 ? 0 : MF_SHAPE_GRADIENT_FP32;
        gpu_run(&bench, MF_KERNEL_GRADIENT_NORM);
        gpu_reset(&bench);
    }
}

static void set_control(struct gpu_bench *bench, int index, int64_t step, bool skip)
{
    gpu_dense(bench, index, 8, (int64_t)(sizeof(struct mf_control) / 8));
    assert_true(sizeof(struct mf_control) % 8 == 0);
    const struct mf_control control = {
        .learning_rate = 1.7e-3,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .weight_decay = 0.1,
        .clip_norm = 0.7,
        .step = step,
        .token_count = 777,
        .gradient_scale = 1.0 / 777,
        .skip_nonfinite = 1,
        .skipped = skip,
    };
    memcpy(bench->operands[index].before, &control, sizeof(control));
    bench->operands[index].mapped = true;
}

/* State and weights of n parameters: masters that are normal, ties between two weights, denormal
 * and huge; second moments that are not negative. */
static void give_parameters(struct gpu_bench *bench, int64_t n)
{
    gpu_dense(bench, 1, 2, n * MF_STATE_BYTES / 2);
    gpu_dense(bench, 2, 2, n);
    float *m = (float *)(void *)bench->operands[1].before;
    float *v = m + n;
    int16_t *rest = (int16_t *)(void *)(v + n);
    uint16_t *weight = (uint16_t *)(void *)bench->operands[2].before;
    for (int64_t at = 0; at < n; at++) {
        uint32_t bits = mf_adamw_bits((float)harness_random_between(-1, 1));
        bits = at % 5 == 1 ? (bits & 0xffff0000u) | 0x8000u : bits;
        bits = at % 7 == 2 ? bits & 0x807fffffu : bits;
        bits = at % 11 == 3 ? (bits & 0x807fffffu) | 0x7f000000u : bits;
        m[at] = (float)harness_random_between(-1, 1);
        mf_adamw_split(mf_adamw_float(bits), (float)harness_random_between(0, 1), &weight[at],
                       &rest[at], &v[at]);
    }
}

static void test_update_has_the_same_bits(void **state)
{
    (void)state;
    static const int64_t sizes[] = {64, 4096 + 64, 100033, 1 << 21}; /* one without groups */
    for (int run = 0; run < 16; run++) {
        struct gpu_bench bench = {.tolerance = 0};
        int64_t n = sizes[run % 4];
        bool fp32 = run / 4 % 2 == 1;
        bench.call.shape = (struct mf_shape){.n = n, .k = n / 3};
        bench.call.shape.flags = (fp32 ? MF_SHAPE_GRADIENT_FP32 : 0) |
                                 (run % 3 != 0 ? MF_SHAPE_DECAY_FIRST : 0) |
                                 (run % 5 == 0 ? MF_SHAPE_DECAY_REST : 0);
        gpu_give(&bench, 0, fp32 ? 4 : 2, 1, n, 0, 800);
        give_parameters(&bench, n);
        set_control(&bench, 3, 1 + run * run * 37, run == 7);
        gpu_run(&bench, MF_KERNEL_ADAMW);
        gpu_reset(&bench);
    }
    struct gpu_bench bench = {.tolerance = 0};
    bench.call.shape = (struct mf_shape){.n = 313};
    gpu_give(&bench, 0, 8, 1, 313, 0, 1);
    for (int64_t at = 0; at < 313; at++) {
        gpu_set(&bench.operands[0], at, harness_random_between(0, 1e4));
    }
    set_control(&bench, 1, 3, false);
    gpu_run(&bench, MF_KERNEL_CLIP);
    gpu_reset(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_embedding_touched),
        cmocka_unit_test(test_position),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_linear_backward_data),
        cmocka_unit_test(test_direct_reads_have_the_same_bits),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_elementwise),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_head),
        cmocka_unit_test(test_gradients_have_the_same_bits),
        cmocka_unit_test(test_update_has_the_same_bits),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
