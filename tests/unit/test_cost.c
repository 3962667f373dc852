/* Costs: measured first, copies between measured sizes, estimates from rates. */
#include "harness.h"

#include <string.h>

#include "planner/cost.h"

static const struct mf_hardware cuda = {
    .device_count = 1,
    .devices = {{.kind = "cuda",
                 .matrix_flops = 1e14,
                 .memory_bytes_per_s = 1e12,
                 .h2d_bytes_per_s = 5e10,
                 .d2h_bytes_per_s = 2.5e10,
                 .copy_latency_ns = 5000}},
    .host_bytes_per_s = 1e11,
};

static double cost(const struct mf_hardware *hardware, const struct mf_profile *profile,
                   enum mf_lane lane, enum mf_kernel kernel, struct mf_shape shape, bool *measured)
{
    return mf_cost_ns(hardware, profile, lane, kernel, &shape, measured);
}

static void put_copy(struct mf_profile *profile, enum mf_lane lane, int64_t bytes, double ns)
{
    struct mf_shape shape = {.n = bytes};
    struct mf_measurement measurement = {
        .signature = mf_profile_signature(lane, MF_KERNEL_COPY, &shape),
        .median_ns = ns,
        .samples = 5,
    };
    mf_profile_put(profile, &measurement);
}

static void test_measured_copies(void **state)
{
    (void)state;
    struct mf_profile profile;
    bool measured = false;
    mf_profile_init(&profile);
    put_copy(&profile, MF_LANE_H2D, 1000, 2000);
    put_copy(&profile, MF_LANE_H2D, 3000, 6000);
    put_copy(&profile, MF_LANE_H2D, 2000, 3000);
    put_copy(&profile, MF_LANE_D2H, 2000, 100000);
    const struct {
        int64_t bytes;
        double ns;
    } cases[] = {
        {1000, 2000}, {2000, 3000}, {1500, 2500},
        {2500, 4500}, {3000, 6000}, {4000, 9000}, /* the last slope */
        {500, 2000}, /* the fixed cost is above the smallest: never below it */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        double ns = cost(&cuda, &profile, MF_LANE_H2D, MF_KERNEL_COPY,
                         (struct mf_shape){.n = cases[i].bytes}, &measured);
        assert_near(ns, cases[i].ns, 1e-6, 0);
        assert_true(measured);
    }
    struct mf_shape clip = {.n = 4};
    (void)cost(&cuda, &profile, MF_LANE_CPU, MF_KERNEL_CLIP, clip, &measured);
    assert_false(measured);
    mf_profile_reset(&profile);
}

static void test_estimates(void **state)
{
    (void)state;
    bool measured = true;
    double ns =
        cost(&cuda, NULL, MF_LANE_H2D, MF_KERNEL_COPY, (struct mf_shape){.n = 50000000}, &measured);
    assert_near(ns, 1e6 + 5000, 1e-3, 0);
    assert_false(measured);
    ns = cost(&cuda, NULL, MF_LANE_D2H, MF_KERNEL_COPY, (struct mf_shape){.n = 50000000}, NULL);
    assert_near(ns, 2e6 + 5000, 1e-3, 0);
    ns = cost(&cuda, NULL, MF_LANE_CPU, MF_KERNEL_ADAMW, (struct mf_shape){.n = 1000000}, NULL);
    assert_near(ns, 260000 + 4000, 1e-3, 0);
    ns = cost(&cuda, NULL, MF_LANE_CPU, MF_KERNEL_ADAMW,
              (struct mf_shape){.n = 1000000, .flags = MF_SHAPE_GRADIENT_FP32}, NULL);
    assert_near(ns, 280000 + 4000, 1e-3, 0);
    struct mf_shape product = {.rows = 4096, .n = 4096, .k = 4096};
    ns = cost(&cuda, NULL, MF_LANE_COMPUTE, MF_KERNEL_LINEAR_FORWARD, product, NULL);
    assert_near(ns, 2.0 * 4096 * 4096 * 4096 / 0.7e14 * 1e9 + 4000, 1, 0);
}

/* An ordinary product reads its weights over the link once for every tile of tokens; a table only
 * the rows that tokens name. */
static void test_direct(void **state)
{
    (void)state;
    struct mf_shape product = {.rows = 1024, .n = 4096, .k = 4096, .flags = MF_SHAPE_WEIGHT_HOST};
    double ns = cost(&cuda, NULL, MF_LANE_COMPUTE, MF_KERNEL_LINEAR_FORWARD, product, NULL);
    assert_near(ns, 8 * 2.0 * 4096 * 4096 / 5e10 * 1e9 + 4000, 1, 0);
    struct mf_shape table = {.rows = 100, .n = 1000, .k = 30000, .flags = MF_SHAPE_WEIGHT_HOST};
    ns = cost(&cuda, NULL, MF_LANE_COMPUTE, MF_KERNEL_EMBEDDING_FORWARD, table, NULL);
    assert_near(ns, 2.0 * 100 * 1000 / 5e10 * 1e9 + 4000, 1, 0);
    struct mf_shape gradient = {.rows = 128, .n = 4096, .k = 4096, .flags = MF_SHAPE_OUTPUT_HOST};
    ns = cost(&cuda, NULL, MF_LANE_COMPUTE, MF_KERNEL_LINEAR_BACKWARD_WEIGHT, gradient, NULL);
    assert_near(ns, 2.0 * 4096 * 4096 / 2.5e10 * 1e9 + 4000, 1, 0);

    /* On the host device direct access is a plain read, unless its link is emulated. */
    struct mf_hardware host = cuda;
    memcpy(host.devices[0].kind, "host", 5);
    struct mf_shape plain = product;
    plain.flags = 0;
    double resident = cost(&host, NULL, MF_LANE_COMPUTE, MF_KERNEL_LINEAR_FORWARD, plain, NULL);
    ns = cost(&host, NULL, MF_LANE_COMPUTE, MF_KERNEL_LINEAR_FORWARD, product, NULL);
    assert_near(ns, resident, 0, 0);
    host.devices[0].link_emulated = true;
    host.devices[0].h2d_bytes_per_s = 1e9;
    ns = cost(&host, NULL, MF_LANE_COMPUTE, MF_KERNEL_LINEAR_FORWARD, product, NULL);
    assert_near(ns, 2.0 * 4096 * 4096 + 4000, 1, 0);
}

/* Hardware that says nothing still gives finite, positive times. */
static void test_defaults(void **state)
{
    (void)state;
    const struct mf_hardware unknown = {0};
    struct mf_shape shape = {
        .rows = 64, .n = 64, .k = 64, .seq_len = 64, .heads = 1, .kv_heads = 1, .head_dim = 64};
    for (int kernel = 0; kernel < MF_KERNEL_COUNT; kernel++) {
        for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
            double ns =
                cost(&unknown, NULL, (enum mf_lane)lane, (enum mf_kernel)kernel, shape, NULL);
            assert_true(ns > 0 && ns < 1e9);
        }
    }
}

static void test_fill(void **state)
{
    (void)state;
    struct mf_profile profile;
    mf_profile_init(&profile);
    put_copy(&profile, MF_LANE_H2D, 1000, 2000);
    struct mf_task tasks[] = {
        {.lane = MF_LANE_H2D, .kernel = MF_KERNEL_COPY, .shape = {.n = 1000}},
        {.lane = MF_LANE_D2H, .kernel = MF_KERNEL_COPY, .shape = {.n = 1000}},
        {.lane = MF_LANE_H2D, .kernel = MF_KERNEL_COPY, .shape = {.n = 1000}},
    };
    struct mf_step step = {.task_count = 3, .tasks = tasks};
    assert_int_equal(mf_cost_fill(&cuda, &profile, &step), 1);
    assert_near(tasks[0].expected_ns, 2000, 0, 0);
    assert_near(tasks[2].expected_ns, 2000, 0, 0);
    assert_near(tasks[1].expected_ns, 5000 + 40, 1e-6, 0);
    mf_profile_reset(&profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measured_copies),
        cmocka_unit_test(test_estimates),
        cmocka_unit_test(test_direct),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_fill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
