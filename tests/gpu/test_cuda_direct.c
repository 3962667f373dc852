/* Products with weights read in place from mapped host memory against the matrix library on device
 * memory: forward and data gradient, all ways of writing, any number of rows. Two direct runs must
 * have the same bits; sums are taken in another order than the library's, so results may differ by
 * what ROUNDING and SUM say, as ||difference|| / ||reference||, and no single element by more than
 * BF16_STEP or FURTHEST of the largest. And they must be faster than the library in place. */
#define HARNESS_TIMEOUT_S 600
#include "tests/gpu/gpu_bench.h"

#include <time.h>

#define ROUNDING 2.5e-3
#define SUM 2e-5
#define BF16_STEP (1.0 / 128) /* of a value just above a power of two */
#define FURTHEST 1e-4         /* fp32 */
#define REGION_BYTES (48ll << 20)
#define MARGIN 24     /* columns of wider matrices beside an operand's: a third of them before it */
#define LEFT 8        /* 16 bytes */
#define WEIGHT_AT 24  /* elements before the first: no more than 16 bytes of alignment */
#define PLAIN_LATER 2 /* times that the library takes in place, at least; measured: over 4 */

/* Regions of the device's memory and, of the same size, of pinned memory. The first three hold
 * random numbers, the rest the results of the reference and of two runs in place. */
enum { ROWS, WEIGHT, SUMS, OUT_RESULT, SUM_RESULT = OUT_RESULT + 3, REGIONS = SUM_RESULT + 3 };
_Static_assert(REGIONS *REGION_BYTES <= GPU_ARENA_BYTES, "what gpu_open reserves");

struct product {
    int64_t rows, n, k;
    bool backward;
    uint32_t flags;
};

static double worst[2][2]; /* [bf16, fp32][||difference||, furthest element] */

static unsigned char *on_device(int region)
{
    return gpu.arena + region * REGION_BYTES;
}

static unsigned char *on_host(int region)
{
    return gpu.pinned + region * REGION_BYTES;
}

static int setup(void **state)
{
    (void)state;
    gpu_open();
    uint16_t *halves = (uint16_t *)(void *)on_host(ROWS);
    float *sums = (float *)(void *)on_host(SUMS);
    for (int64_t at = 0; at < 2 * REGION_BYTES / 2; at++) {
        halves[at] = mf_bf16_from_float((float)harness_random_between(-1, 1));
    }
    for (int64_t at = 0; at < REGION_BYTES / 4; at++) {
        sums[at] = (float)harness_random_between(-1, 1);
    }
    assert_ok(gpu.interface->begin(gpu.device, false));
    gpu_copy(MF_LANE_H2D, gpu.pinned, gpu.arena, 3 * REGION_BYTES, 0);
    assert_ok(gpu.interface->sync(gpu.device));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    print_message("worst differences: bf16 %.3g of the norm, %.3g of the largest element; fp32 "
                  "%.3g, %.3g\n",
                  worst[0][0], worst[0][1], worst[1][0], worst[1][1]);
    gpu_close();
    return 0;
}

static int64_t out_stride(const struct product *p)
{
    return (p->backward ? p->k : p->n) + MARGIN;
}

static int64_t out_elements(const struct product *p)
{
    return p->rows * out_stride(p);
}

static int64_t sum_elements(const struct product *p)
{
    return p->backward ? p->rows * p->k : 0;
}

static bool fits(const struct product *p)
{
    int64_t width = p->n > p->k ? p->n : p->k;
    return p->rows * (width + MARGIN) * 2 <= REGION_BYTES && sum_elements(p) * 4 <= REGION_BYTES &&
           (WEIGHT_AT + p->n * (p->k + 1)) * 2 <= REGION_BYTES;
}

/* Run 0 is the reference. */
static void submit(const struct product *p, int run, int32_t task)
{
    struct mf_operand x = {on_device(ROWS) + LEFT * 2, (p->backward ? p->n : p->k) + MARGIN};
    struct mf_operand out = {on_device(OUT_RESULT + run) + LEFT * 2, out_stride(p)};
    struct mf_operand weight = {on_device(WEIGHT) + WEIGHT_AT * 2, p->k};
    struct mf_kernel_call call = {
        .kernel = p->backward ? MF_KERNEL_LINEAR_BACKWARD_DATA : MF_KERNEL_LINEAR_FORWARD,
        .shape = {.rows = p->rows, .n = p->n, .k = p->k, .flags = p->flags},
    };
    if (run > 0) {
        call.shape.flags |= MF_SHAPE_WEIGHT_HOST;
        weight.pointer = gpu.interface->device_address(gpu.device, on_host(WEIGHT) + WEIGHT_AT * 2);
    }
    call.operands[0] = x;
    call.operands[1] = weight;
    call.operands[2] = p->backward ? (struct mf_operand){on_device(SUM_RESULT + run), 0} : out;
    call.operands[3] = p->backward ? out : (struct mf_operand){0};
    assert_ok(gpu.interface->submit(gpu.device, MF_LANE_COMPUTE, &call, task));
}

/* All three runs start from the same outputs. */
static void run_all(const struct product *p)
{
    size_t out_bytes = (size_t)out_elements(p) * 2;
    size_t sum_bytes = (size_t)sum_elements(p) * 4;
    assert_ok(gpu.interface->begin(gpu.device, false));
    for (int run = 0; run < 3; run++) {
        gpu_copy(MF_LANE_H2D, on_host(ROWS), on_device(OUT_RESULT + run), out_bytes, 0);
        if (sum_bytes > 0) {
            gpu_copy(MF_LANE_H2D, on_host(SUMS), on_device(SUM_RESULT + run), sum_bytes, 1);
        }
    }
    assert_ok(gpu.interface->record(gpu.device, MF_LANE_H2D, 2));
    assert_ok(gpu.interface->wait(gpu.device, MF_LANE_COMPUTE, 2));
    for (int run = 0; run < 3; run++) {
        submit(p, run, 3 + run);
    }
    assert_ok(gpu.interface->record(gpu.device, MF_LANE_COMPUTE, 6));
    assert_ok(gpu.interface->wait(gpu.device, MF_LANE_D2H, 6));
    for (int run = 0; run < 3; run++) {
        gpu_copy(MF_LANE_D2H, on_device(OUT_RESULT + run), on_host(OUT_RESULT + run), out_bytes, 7);
        if (sum_bytes > 0) {
            gpu_copy(MF_LANE_D2H, on_device(SUM_RESULT + run), on_host(SUM_RESULT + run), sum_bytes,
                     8);
        }
    }
    assert_ok(gpu.interface->sync(gpu.device));
}

static void explain(const struct product *p, const char *what, double value)
{
    print_message("%s of rows %lld n %lld k %lld flags 0x%x: %s %.3g\n",
                  p->backward ? "data gradient" : "forward", (long long)p->rows, (long long)p->n,
                  (long long)p->k, p->flags, what, value);
}

/* Rows of `width` elements at `left` of rows of `stride`; all else must be as it was. */
static void compare(const struct product *p, int result, int before, size_t element, int64_t left,
                    int64_t width, int64_t stride)
{
    struct gpu_operand as = {.element = element};
    const unsigned char *wanted = on_host(result);
    const unsigned char *found = on_host(result + 1);
    double difference = 0;
    double reference = 1e-30;
    double largest = 1e-30;
    double furthest = 0;
    if (memcmp(found, on_host(result + 2), (size_t)(p->rows * stride) * element) != 0) {
        explain(p, "other bits the second time, bytes an element", (double)element);
        fail();
    }
    for (int64_t at = 0; at < p->rows * stride; at++) {
        int64_t column = at % stride - left;
        double right = gpu_value(&as, wanted, at);
        double apart = fabs(gpu_value(&as, found, at) - right);
        if (column < 0 || column >= width) {
            size_t byte = (size_t)at * element;
            if (memcmp(found + byte, on_host(before) + byte, element) != 0) {
                explain(p, "written outside, element", (double)at);
                fail();
            }
            continue;
        }
        difference += apart * apart;
        reference += right * right;
        largest = fmax(largest, fabs(right));
        furthest = isnan(apart) ? INFINITY : fmax(furthest, apart);
    }
    /* Beside a bias or an addition the library may round the product first. */
    int roundings = (p->flags & (MF_SHAPE_BIAS | MF_SHAPE_ADD_TO_OUTPUT)) != 0 ? 2 : 1;
    double relative = sqrt(difference / reference);
    double *most = worst[element == 4];
    most[0] = fmax(most[0], relative);
    most[1] = fmax(most[1], furthest / largest);
    if (!(relative <= (element == 4 ? SUM : ROUNDING * roundings)) ||
        !(furthest <= largest * (element == 4 ? FURTHEST : BF16_STEP * roundings))) {
        explain(p, "difference of the norm", relative);
        explain(p, "furthest element, of the largest", furthest / largest);
        fail();
    }
}

static void check(const struct product *p)
{
    if (!fits(p)) {
        return;
    }
    run_all(p);
    compare(p, OUT_RESULT, ROWS, 2, LEFT, p->backward ? p->k : p->n, out_stride(p));
    if (p->backward) {
        compare(p, SUM_RESULT, SUMS, 4, 0, p->k, p->k);
    }
}

/* The numbers of rows of one block, one cluster and more; widths of whole tiles and not, of less
 * than a step of 64, and (75 x 70) of a product that stays with the library. */
static const int64_t row_counts[] = {1, 17, 128, 256, 1000, 1024, 2048, 4096, 5000, 8200};
static const int64_t sizes[][2] = {{64, 64},    {200, 72},    {24, 8},      {75, 70},
                                   {136, 2048}, {1000, 1032}, {1024, 2048}, {2056, 1544},
                                   {4096, 520}, {256, 4096}};

static void each_size(bool backward, uint32_t flags)
{
    for (size_t r = 0; r < sizeof(row_counts) / sizeof(row_counts[0]); r++) {
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            struct product p = {row_counts[r], sizes[s][0], sizes[s][1], backward, flags};
            check(&p);
        }
    }
}

static void test_forward(void **state)
{
    (void)state;
    each_size(false, 0);
    each_size(false, MF_SHAPE_BIAS);
}

static void test_backward_data(void **state)
{
    (void)state;
    each_size(true, MF_SHAPE_FIRST_PANEL | MF_SHAPE_LAST_PANEL);
    each_size(true, MF_SHAPE_FIRST_PANEL | MF_SHAPE_LAST_PANEL | MF_SHAPE_ADD_TO_OUTPUT);
    each_size(true, MF_SHAPE_FIRST_PANEL);
    each_size(true, MF_SHAPE_LAST_PANEL | MF_SHAPE_ADD_TO_OUTPUT);
}

static double now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* The least of five times. */
static double time_in_place(const struct product *p)
{
    double least = INFINITY;
    for (int i = 0; i < 5; i++) {
        assert_ok(gpu.interface->begin(gpu.device, false));
        double started = now_ns();
        submit(p, 1, 0);
        assert_ok(gpu.interface->sync(gpu.device));
        least = fmin(least, now_ns() - started);
    }
    return least;
}

/* Makes `setting` the device that works, on the memory of the first; NULL: the first again. */
static void use(const char *setting)
{
    static struct mf_device *first;
    const struct mf_device_options options = {.memory_bytes = 1ll << 20};
    if (first != NULL) {
        gpu.interface->close(gpu.device);
        gpu.device = first;
        first = NULL;
    }
    if (setting != NULL) {
        first = gpu.device;
        assert_int_equal(setenv("MEMFERRY_DIRECT", setting, 1), 0);
        assert_ok(gpu.interface->open(&options, &gpu.device));
        assert_ok(gpu.interface->prepare(gpu.device, 64));
    }
}

static unsigned char *keep(int region, int64_t elements, int64_t size)
{
    size_t bytes = (size_t)(elements * size);
    unsigned char *copy = malloc(bytes + 1);
    assert_non_null(copy);
    memcpy(copy, on_host(region), bytes);
    return copy;
}

static void test_any_tile_gives_the_same_bits(void **state)
{
    (void)state;
    static const char *const settings[] = {"128x128",   "128x128/1",    "256x128/4",  "512x64/1",
                                           "256x64/16", "256x128s/8/2", "512x64/16/1"};
    static const struct product products[] = {
        {1000, 1000, 1032, false, MF_SHAPE_BIAS},
        {2300, 200, 72, false, 0},
        {1000, 1032, 1000, true, MF_SHAPE_FIRST_PANEL | MF_SHAPE_LAST_PANEL},
        {2300, 72, 200, true, MF_SHAPE_LAST_PANEL | MF_SHAPE_ADD_TO_OUTPUT},
    };
    for (size_t i = 0; i < sizeof(products) / sizeof(products[0]); i++) {
        const struct product *p = &products[i];
        run_all(p);
        unsigned char *outs = keep(OUT_RESULT + 1, out_elements(p), 2);
        unsigned char *sums = keep(SUM_RESULT + 1, sum_elements(p), 4);
        for (size_t s = 0; s < sizeof(settings) / sizeof(settings[0]); s++) {
            use(settings[s]);
            run_all(p);
            if (memcmp(outs, on_host(OUT_RESULT + 1), (size_t)out_elements(p) * 2) != 0 ||
                memcmp(sums, on_host(SUM_RESULT + 1), (size_t)sum_elements(p) * 4) != 0) {
                print_message("%s: ", settings[s]);
                explain(p, "other bits than before, setting", (double)s);
                fail();
            }
        }
        use(NULL);
        free(outs);
        free(sums);
    }
}

/* So that the tests above cannot pass by running the library. */
static void test_weights_cross_the_link_once(void **state)
{
    (void)state;
    struct mf_hardware_device described;
    assert_ok(gpu.interface->describe(gpu.device, &described));
    if (described.compute_capability != 90) {
        print_message("there are no direct products for this GPU\n");
        skip();
    }
    for (int backward = 0; backward < 2; backward++) {
        uint32_t flags = backward != 0 ? MF_SHAPE_FIRST_PANEL | MF_SHAPE_LAST_PANEL : 0;
        struct product p = {1024, 4096, 4096, backward != 0, flags};
        assert_true(fits(&p));
        use("auto");
        double direct_ns = time_in_place(&p);
        use("plain");
        double plain_ns = time_in_place(&p);
        use(NULL);
        print_message("%s of 1024 rows, 4096 x 4096: direct %.3f ms, the library in place %.3f\n",
                      backward != 0 ? "data gradient" : "forward", direct_ns / 1e6, plain_ns / 1e6);
        assert_true(direct_ns * PLAIN_LATER < plain_ns);
    }
}

static void test_unknown_setting(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",         "fast",        "256x128/3",    "256x128/32",
                                        "256x128/", "256x128/16/", "256x128/16/0", "256x128/8/4/2",
                                        "256x128-", "1x1"};
    const struct mf_device_options options = {.memory_bytes = 1ll << 20};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct mf_device *device = NULL;
        assert_int_equal(setenv("MEMFERRY_DIRECT", wrong[i], 1), 0);
        assert_int_equal(gpu.interface->open(&options, &device), MF_STATUS_INVALID);
        assert_null(device);
        assert_non_null(strstr(mf_status_text(), "MEMFERRY_DIRECT="));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_backward_data),
        cmocka_unit_test(test_any_tile_gives_the_same_bits),
        cmocka_unit_test(test_weights_cross_the_link_once),
        cmocka_unit_test(test_unknown_setting),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
