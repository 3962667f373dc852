/* The host device's matrix kernels against plain double-precision code: linear, attention, head;
 * and that bits depend neither on threads nor on addresses (kernel_bench.h checks every call). */
#define HARNESS_TIMEOUT_S 120
#include "kernel_bench.h"

#include <time.h>

#include "core/kernel.h"

static const int64_t linear_sizes[][3] = {/* rows, n, k */
                                          {1, 1, 1},     {37, 29, 53},    {300, 75, 70},
                                          {16, 640, 33}, {143, 515, 257}, {129, 64, 512}};
#define LINEAR_SIZES (sizeof(linear_sizes) / sizeof(linear_sizes[0]))

static struct mf_shape linear_shape(size_t index, uint32_t flags)
{
    return (struct mf_shape){.rows = linear_sizes[index][0],
                             .n = linear_sizes[index][1],
                             .k = linear_sizes[index][2],
                             .flags = flags};
}

static void test_linear_forward(void **state)
{
    (void)state;
    for (size_t size = 0; size < 2 * LINEAR_SIZES; size++) {
        struct bench bench = {0};
        bool bias = size % 2 == 1;
        struct mf_shape s = linear_shape(size / 2, bias ? MF_SHAPE_BIAS : 0);
        bench.call.shape = s;
        bench_matrix(&bench, 0, s.rows, s.k);
        bench_panel(&bench, 1, s.n * (s.k + bias));
        bench_matrix(&bench, 2, s.rows, s.n);
        bench_run(&bench, MF_KERNEL_LINEAR_FORWARD);
        for (int64_t row = 0; row < s.rows; row++) {
            for (int64_t column = 0; column < s.n; column++) {
                double sum = bias ? bench_in(&bench, 1, s.n * s.k, column) : 0;
                for (int64_t i = 0; i < s.k; i++) {
                    sum += bench_in(&bench, 0, row, i) * bench_in(&bench, 1, column * s.k, i);
                }
                assert_bf16(bench_out(&bench, 2, row, column), sum, 1e-5);
            }
        }
        bench_reset(&bench);
    }
}

/* dx of three panels, summed in fp32: one expectation over all of them. */
static void check_backward_data(int64_t rows, int64_t k, uint32_t last_flags)
{
    const int64_t widths[3] = {31, 64, 7};
    double *expected = calloc((size_t)(rows * k), sizeof(*expected));
    float *sum = calloc((size_t)(rows * k), sizeof(*sum));
    for (int panel = 0; panel < 3; panel++) {
        struct bench bench = {0};
        struct mf_shape s = {.rows = rows, .n = widths[panel], .k = k};
        s.flags = panel == 0 ? MF_SHAPE_FIRST_PANEL : 0;
        s.flags |= panel == 2 ? MF_SHAPE_LAST_PANEL | last_flags : 0;
        bench.call.shape = s;
        bench_matrix(&bench, 0, rows, s.n);
        bench_panel(&bench, 1, s.n * k);
        bench_dense(&bench, 2, 4, rows * k);
        bench_matrix(&bench, 3, rows, k);
        if (panel > 0) {
            memcpy(bench.operands[2].now, sum, bench.operands[2].bytes);
        }
        bench_run(&bench, MF_KERNEL_LINEAR_BACKWARD_DATA);
        memcpy(sum, bench.operands[2].now, bench.operands[2].bytes);
        for (int64_t at = 0; at < rows * k; at++) {
            for (int64_t i = 0; i < s.n; i++) {
                expected[at] += bench_in(&bench, 0, at / k, i) * bench_in(&bench, 1, i * k, at % k);
            }
            double old = last_flags != 0 ? bench_in(&bench, 3, at / k, at % k) : 0;
            assert_near((double)sum[at], expected[at], 2e-5, 1e-5);
            if (panel == 2) {
                assert_bf16(bench_out(&bench, 3, at / k, at % k), old + expected[at], 1e-5);
            } else {
                assert_near(bench_out(&bench, 3, at / k, at % k),
                            bench_in(&bench, 3, at / k, at % k), 0, 0);
            }
        }
        bench_reset(&bench);
    }
    free(expected);
    free(sum);
}

/* A unit of one panel has no sum buffer; the result must be what the sum would have given. */
static void check_backward_data_alone(void)
{
    struct bench bench = {0};
    struct mf_shape s = {.rows = 45, .n = 33, .k = 600};
    s.flags = MF_SHAPE_FIRST_PANEL | MF_SHAPE_LAST_PANEL;
    bench.call.shape = s;
    bench_matrix(&bench, 0, s.rows, s.n);
    bench_panel(&bench, 1, s.n * s.k);
    bench_dense(&bench, 2, 4, s.rows * s.k);
    bench_matrix(&bench, 3, s.rows, s.k);
    bench_run(&bench, MF_KERNEL_LINEAR_BACKWARD_DATA);
    unsigned char *with_sum = malloc(bench.operands[3].bytes);
    memcpy(with_sum, bench.operands[3].now, bench.operands[3].bytes);
    bench.call.operands[2].pointer = NULL;
    free(bench.operands[2].now);
    bench.operands[2].now = NULL;
    bench_run(&bench, MF_KERNEL_LINEAR_BACKWARD_DATA);
    assert_memory_equal(with_sum, bench.operands[3].now, bench.operands[3].bytes);
    free(with_sum);
    bench_reset(&bench);
}

static void test_linear_backward_data(void **state)
{
    (void)state;
    check_backward_data(1, 1, 0);
    check_backward_data(67, 35, 0);
    check_backward_data(130, 515, MF_SHAPE_ADD_TO_OUTPUT);
    check_backward_data_alone();
}

static void test_linear_backward_weight(void **state)
{
    (void)state;
    for (size_t size = 0; size < 2 * LINEAR_SIZES; size++) {
        struct bench bench = {0};
        bool bias = size % 2 == 1;
        struct mf_shape s = linear_shape(size / 2, bias ? MF_SHAPE_BIAS : 0);
        bench.call.shape = s;
        bench_matrix(&bench, 0, s.rows, s.k);
        bench_matrix(&bench, 1, s.rows, s.n);
        bench_panel(&bench, 2, s.n * (s.k + bias));
        bench_run(&bench, MF_KERNEL_LINEAR_BACKWARD_WEIGHT);
        for (int64_t at = 0; at < s.n * (s.k + bias); at++) {
            double sum = 0;
            for (int64_t row = 0; row < s.rows; row++) {
                sum += at < s.n * s.k
                           ? bench_in(&bench, 1, row, at / s.k) * bench_in(&bench, 0, row, at % s.k)
                           : bench_in(&bench, 1, row, at - s.n * s.k);
            }
            assert_bf16(bench_out(&bench, 2, 0, at), sum, 2e-5);
        }
        bench_check_padding(&bench, 2, s.n * (s.k + bias));
        bench_reset(&bench);
    }
}

/* ---- attention ---- */

static const struct mf_shape attention_shapes[] = {
    {.rows = 1, .seq_len = 1, .heads = 1, .kv_heads = 1, .head_dim = 2},
    {.rows = 10, .seq_len = 5, .heads = 4, .kv_heads = 2, .head_dim = 6},
    {.rows = 150, .seq_len = 150, .heads = 2, .kv_heads = 1, .head_dim = 10},
    {.rows = 260, .seq_len = 130, .heads = 3, .kv_heads = 3, .head_dim = 16},
};
#define ATTENTION_SHAPES (sizeof(attention_shapes) / sizeof(attention_shapes[0]))

/* Probabilities of one query over keys 0..query of its sequence; returns lse. */
static double attend(const struct bench *bench, int64_t base, int64_t query, int64_t head,
                     double *probabilities)
{
    const struct mf_shape *s = &bench->call.shape;
    int64_t kv = head / (s->heads / s->kv_heads);
    double top = -INFINITY;
    double sum = 0;
    for (int64_t key = 0; key <= query; key++) {
        double score = 0;
        for (int64_t i = 0; i < s->head_dim; i++) {
            score += bench_in(bench, 0, base + query, head * s->head_dim + i) *
                     bench_in(bench, 1, base + key, kv * s->head_dim + i);
        }
        probabilities[key] = score / sqrt(s->head_dim);
        top = fmax(top, probabilities[key]);
    }
    for (int64_t key = 0; key <= query; key++) {
        probabilities[key] = exp(probabilities[key] - top);
        sum += probabilities[key];
    }
    for (int64_t key = 0; key <= query; key++) {
        probabilities[key] /= sum;
    }
    return top + log(sum);
}

static void add_attention_operands(struct bench *bench, const struct mf_shape *s)
{
    bench->call.shape = *s;
    for (int index = 0; index < 3; index++) {
        int64_t heads = index == 0 ? s->heads : s->kv_heads;
        bench_matrix(bench, index, s->rows, heads * s->head_dim);
    }
    bench_matrix(bench, 3, s->rows, (int64_t)s->heads * s->head_dim);
    bench_dense(bench, 4, 4, s->rows * s->heads);
}

static void test_attention_forward(void **state)
{
    (void)state;
    double probabilities[256];
    for (size_t size = 0; size < ATTENTION_SHAPES; size++) {
        const struct mf_shape *s = &attention_shapes[size];
        struct bench bench = {0};
        add_attention_operands(&bench, s);
        bench_run(&bench, MF_KERNEL_ATTENTION_FORWARD);
        for (int64_t item = 0; item < s->rows * s->heads; item++) {
            int64_t row = item / s->heads;
            int64_t head = item % s->heads;
            int64_t base = row / s->seq_len * s->seq_len;
            int64_t kv = head / (s->heads / s->kv_heads);
            double lse = attend(&bench, base, row - base, head, probabilities);
            assert_near(bench_out(&bench, 4, item, 0), lse, 1e-5, 1e-6);
            for (int64_t i = 0; i < s->head_dim; i++) {
                double sum = 0;
                for (int64_t key = 0; key <= row - base; key++) {
                    sum +=
                        probabilities[key] * bench_in(&bench, 2, base + key, kv * s->head_dim + i);
                }
                assert_bf16(bench_out(&bench, 3, row, head * s->head_dim + i), sum, 1e-5);
            }
        }
        bench_reset(&bench);
    }
}

/* The chain rule written out for one query of one head; q, k and v gradients are added to
 * `gradients`, laid out as the operands 6, 7, 8. */
static void differentiate(const struct bench *bench, int64_t row, int64_t head,
                          double *gradients[3])
{
    const struct mf_shape *s = &bench->call.shape;
    int64_t base = row / s->seq_len * s->seq_len;
    int64_t kv = head / (s->heads / s->kv_heads);
    int64_t query_width = (int64_t)s->heads * s->head_dim;
    int64_t key_width = (int64_t)s->kv_heads * s->head_dim;
    double probabilities[256];
    double slopes[256]; /* of the loss by each probability */
    double mean = 0;    /* sum of probability * slope = output * its gradient, output as rounded */
    for (int64_t i = head * s->head_dim; i < (head + 1) * s->head_dim; i++) {
        mean += bench_in(bench, 3, row, i) * bench_in(bench, 5, row, i);
    }
    (void)attend(bench, base, row - base, head, probabilities);
    for (int64_t key = 0; key <= row - base; key++) {
        slopes[key] = 0;
        for (int64_t i = 0; i < s->head_dim; i++) {
            double dout = bench_in(bench, 5, row, head * s->head_dim + i);
            slopes[key] += dout * bench_in(bench, 2, base + key, kv * s->head_dim + i);
            gradients[2][(base + key) * key_width + kv * s->head_dim + i] +=
                probabilities[key] * dout;
        }
    }
    for (int64_t key = 0; key <= row - base; key++) {
        double score = probabilities[key] * (slopes[key] - mean) / sqrt(s->head_dim);
        for (int64_t i = 0; i < s->head_dim; i++) {
            gradients[0][row * query_width + head * s->head_dim + i] +=
                score * bench_in(bench, 1, base + key, kv * s->head_dim + i);
            gradients[1][(base + key) * key_width + kv * s->head_dim + i] +=
                score * bench_in(bench, 0, row, head * s->head_dim + i);
        }
    }
}

static void test_attention_backward(void **state)
{
    (void)state;
    for (size_t size = 0; size < ATTENTION_SHAPES; size++) {
        const struct mf_shape *s = &attention_shapes[size];
        struct bench bench = {0};
        double *gradients[3];
        add_attention_operands(&bench, s);
        bench_run(&bench, MF_KERNEL_ATTENTION_FORWARD);
        bench_matrix(&bench, 5, s->rows, (int64_t)s->heads * s->head_dim);
        for (int index = 0; index < 3; index++) {
            int64_t width = (index == 0 ? s->heads : s->kv_heads) * (int64_t)s->head_dim;
            bench_matrix(&bench, 6 + index, s->rows, width);
            gradients[index] = calloc((size_t)(s->rows * width), sizeof(double));
        }
        bench_run(&bench, MF_KERNEL_ATTENTION_BACKWARD);
        for (int64_t item = 0; item < s->rows * s->heads; item++) {
            differentiate(&bench, item / s->heads, item % s->heads, gradients);
        }
        for (int index = 0; index < 3; index++) {
            int64_t width = bench.operands[6 + index].width;
            for (int64_t at = 0; at < s->rows * width; at++) {
                assert_bf16(bench_out(&bench, 6 + index, at / width, at % width),
                            gradients[index][at], 1e-5);
            }
            free(gradients[index]);
        }
        bench_reset(&bench);
    }
}

/* ---- head ---- */

#define HEAD_ROWS 70
#define HEAD_WIDTH 45
#define HEAD_VOCAB 1300

struct head {
    struct bench bench; /* operands of the panel that ran last */
    double logits[HEAD_ROWS * HEAD_VOCAB];
    int32_t labels[HEAD_ROWS];
    uint16_t *x;
    uint16_t *weights;
};

static void open_panel(struct head *head, int64_t first, int64_t count)
{
    struct bench *bench = &head->bench;
    bench_reset(bench);
    bench->call.shape = (struct mf_shape){.rows = HEAD_ROWS, .n = count, .k = HEAD_WIDTH};
    bench->call.index0 = first;
    bench_matrix(bench, 0, HEAD_ROWS, HEAD_WIDTH);
    for (int64_t row = 0; row < HEAD_ROWS; row++) {
        memcpy(bench->operands[0].now + bench_place(&bench->operands[0], row, 0) * 2,
               head->x + row * HEAD_WIDTH, HEAD_WIDTH * 2);
    }
    bench_panel(bench, 1, count * HEAD_WIDTH);
    memcpy(bench->operands[1].now, head->weights + first * HEAD_WIDTH,
           (size_t)count * HEAD_WIDTH * 2);
    memcpy(bench_integers(bench, 2, HEAD_ROWS, 1), head->labels, sizeof(head->labels));
}

static struct head *open_head(void)
{
    struct head *head = calloc(1, sizeof(*head));
    head->x = calloc(HEAD_ROWS * HEAD_WIDTH, 2);
    head->weights = calloc(HEAD_VOCAB * HEAD_WIDTH, 2);
    for (int64_t at = 0; at < HEAD_ROWS * HEAD_WIDTH; at++) {
        head->x[at] = mf_bf16_from_float((float)harness_random_between(-2, 2));
    }
    for (int64_t at = 0; at < HEAD_VOCAB * HEAD_WIDTH; at++) {
        head->weights[at] = mf_bf16_from_float((float)harness_random_between(-1, 1));
    }
    for (int64_t row = 0; row < HEAD_ROWS; row++) {
        head->labels[row] = row % 7 == 3 ? -100 : (int32_t)harness_random_below(HEAD_VOCAB);
        for (int64_t column = 0; column < HEAD_VOCAB; column++) {
            for (int64_t i = 0; i < HEAD_WIDTH; i++) {
                head->logits[row * HEAD_VOCAB + column] +=
                    (double)mf_bf16_to_float(head->x[row * HEAD_WIDTH + i]) *
                    (double)mf_bf16_to_float(head->weights[column * HEAD_WIDTH + i]);
            }
        }
    }
    return head;
}

static void close_head(struct head *head)
{
    bench_reset(&head->bench);
    free(head->x);
    free(head->weights);
    free(head);
}

static double naive_lse(const struct head *head, int64_t row)
{
    double top = -INFINITY;
    double sum = 0;
    for (int64_t column = 0; column < HEAD_VOCAB; column++) {
        top = fmax(top, head->logits[row * HEAD_VOCAB + column]);
    }
    for (int64_t column = 0; column < HEAD_VOCAB; column++) {
        sum += exp(head->logits[row * HEAD_VOCAB + column] - top);
    }
    return top + log(sum);
}

static void test_head_loss(void **state)
{
    (void)state;
    const int64_t border = 777;
    struct head *head = open_head();
    float running[HEAD_ROWS * 3];
    double expected = 0;
    double count = 0;
    for (int panel = 0; panel < 2; panel++) {
        open_panel(head, panel * border, panel == 0 ? border : HEAD_VOCAB - border);
        head->bench.call.shape.flags = panel == 0 ? MF_SHAPE_FIRST_PANEL : MF_SHAPE_LAST_PANEL;
        bench_dense(&head->bench, 3, 4, HEAD_ROWS * 3);
        if (panel == 1) {
            memcpy(head->bench.operands[3].now, running, sizeof(running));
        }
        bench_run(&head->bench, MF_KERNEL_HEAD_FORWARD);
        memcpy(running, head->bench.operands[3].now, sizeof(running));
    }
    struct bench loss = {.call.shape.rows = HEAD_ROWS};
    bench_dense(&loss, 0, 4, HEAD_ROWS * 3);
    memcpy(loss.operands[0].now, running, sizeof(running));
    memcpy(bench_integers(&loss, 1, HEAD_ROWS, 1), head->labels, sizeof(head->labels));
    bench_dense(&loss, 2, 4, HEAD_ROWS);
    bench_dense(&loss, 3, 4, HEAD_ROWS);
    bench_dense(&loss, 4, 8, 2);
    bench_run(&loss, MF_KERNEL_HEAD_LOSS);
    for (int64_t row = 0; row < HEAD_ROWS; row++) {
        double lse = naive_lse(head, row);
        bool counted = head->labels[row] >= 0;
        double logprob = counted ? head->logits[row * HEAD_VOCAB + head->labels[row]] - lse : 0;
        assert_near(bench_out(&loss, 2, row, 0), lse, 1e-5, 1e-6);
        assert_near(bench_out(&loss, 3, row, 0), logprob, 2e-5, 1e-6);
        expected -= logprob;
        count += counted;
    }
    assert_near(bench_out(&loss, 4, 0, 0), expected, 1e-4, 1e-6);
    assert_near(bench_out(&loss, 4, 1, 0), count, 0, 0);
    bench_reset(&loss);
    close_head(head);
}

static void test_head_backward(void **state)
{
    (void)state;
    const int64_t first = 300;
    const int64_t count = 651;
    struct head *head = open_head();
    open_panel(head, first, count);
    bench_dense(&head->bench, 3, 4, HEAD_ROWS);
    for (int64_t row = 0; row < HEAD_ROWS; row++) {
        bench_set(&head->bench, 3, row, naive_lse(head, row));
    }
    bench_matrix(&head->bench, 4, HEAD_ROWS, count);
    bench_run(&head->bench, MF_KERNEL_HEAD_BACKWARD);
    for (int64_t at = 0; at < HEAD_ROWS * count; at++) {
        int64_t row = at / count;
        int64_t column = first + at % count;
        double expected = exp(head->logits[row * HEAD_VOCAB + column] - naive_lse(head, row)) -
                          (head->labels[row] == column ? 1 : 0);
        assert_bf16(bench_out(&head->bench, 4, row, at % count),
                    head->labels[row] < 0 ? 0 : expected, 1e-6);
    }
    close_head(head);
}

static void test_head_logits(void **state)
{
    (void)state;
    const int64_t first = 100;
    const int64_t count = 555;
    struct head *head = open_head();
    open_panel(head, first, count);
    head->bench.call.shape.seq_len = 10;
    head->bench.call.index1 = 4;
    bench_dense(&head->bench, 2 + 1, 4, HEAD_VOCAB * HEAD_ROWS / 10);
    head->bench.call.operands[2].pointer = head->bench.operands[3].now + first * 4;
    head->bench.call.operands[2].stride = HEAD_VOCAB;
    /* The operand list of this kernel has the logits where the others have labels. */
    free(head->bench.operands[2].now);
    free(head->bench.operands[2].before);
    head->bench.operands[2] = head->bench.operands[3];
    head->bench.operands[3] = (struct bench_operand){0};
    head->bench.call.operands[3].pointer = NULL;
    bench_run(&head->bench, MF_KERNEL_HEAD_LOGITS);
    for (int64_t at = 0; at < HEAD_VOCAB * HEAD_ROWS / 10; at++) {
        int64_t sequence = at / HEAD_VOCAB;
        int64_t column = at % HEAD_VOCAB;
        bool inside = column >= first && column < first + count;
        double expected = inside ? head->logits[(sequence * 10 + 4) * HEAD_VOCAB + column]
                                 : bench_in(&head->bench, 2, at, 0);
        assert_near(bench_out(&head->bench, 2, at, 0), expected, 1e-4, 1e-5);
    }
    close_head(head);
}

/* ---- names, speed ---- */

static void test_names(void **state)
{
    (void)state;
    for (int kernel = 0; kernel < MF_KERNEL_COUNT; kernel++) {
        assert_int_equal(mf_kernel_parse(mf_kernel_name((enum mf_kernel)kernel)), kernel);
    }
    assert_int_equal(mf_kernel_parse("no_such_kernel"), -1);
    assert_string_equal(mf_kernel_lane_name(MF_LANE_D2H), "d2h");
    struct mf_shape s = {.rows = 8, .n = 10, .k = 20, .flags = MF_SHAPE_BIAS};
    assert_near(mf_kernel_flops(MF_KERNEL_LINEAR_FORWARD, &s), 2 * 8 * 10 * 20, 0, 0);
    assert_near(mf_kernel_bytes(MF_KERNEL_LINEAR_FORWARD, &s), 2 * (80 + 200 + 160 + 10), 0, 0);
    struct mf_shape a = {.rows = 8, .seq_len = 4, .heads = 2, .kv_heads = 2, .head_dim = 3};
    assert_near(mf_kernel_flops(MF_KERNEL_ATTENTION_FORWARD, &a), 20 * 4 * 6, 0, 0);
    struct mf_shape copy = {.n = 1000};
    assert_near(mf_kernel_bytes(MF_KERNEL_COPY, &copy), 2000, 0, 0);
}

static void test_speed(void **state)
{
    (void)state;
    struct bench bench = {.call.shape = {.rows = 512, .n = 512, .k = 2048}};
    struct mf_host_context context;
    struct timespec start;
    struct timespec end;
    double best = INFINITY;
    bench.call.kernel = MF_KERNEL_LINEAR_FORWARD;
    bench_matrix(&bench, 0, 512, 2048);
    bench_panel(&bench, 1, 512 * 2048);
    bench_matrix(&bench, 2, 512, 512);
    assert_ok(mf_host_context_open("test", 2, &context));
    for (int turn = 0; turn < 5; turn++) {
        clock_gettime(CLOCK_MONOTONIC, &start);
        assert_ok(mf_host_kernels_run(&context, &bench.call));
        clock_gettime(CLOCK_MONOTONIC, &end);
        best = fmin(best, (double)(end.tv_sec - start.tv_sec) * 1e9 +
                              (double)(end.tv_nsec - start.tv_nsec));
    }
    print_message("linear forward 512 x 512 x 2048, 2 threads: %.1f GFLOP/s\n",
                  mf_kernel_flops(MF_KERNEL_LINEAR_FORWARD, &bench.call.shape) / best);
    assert_int_equal(context.scratch_growths, 1);
    mf_host_context_close(&context);
    bench_reset(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_linear_forward),
        cmocka_unit_test(test_linear_backward_data),
        cmocka_unit_test(test_linear_backward_weight),
        cmocka_unit_test(test_attention_forward),
        cmocka_unit_test(test_attention_backward),
        cmocka_unit_test(test_head_loss),
        cmocka_unit_test(test_head_backward),
        cmocka_unit_test(test_head_logits),
        cmocka_unit_test(test_speed),
    };
    assert_ok(mf_host_gemm_check());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
