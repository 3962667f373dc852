/* The profiler on the host device: what is needed, and that all of it can be measured. */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/json.h"
#include "planner/cost.h"
#include "planner/step.h"
#include "planner/work.h"
#include "profiler/measure.h"
#include "profiler/operands.h"
#include "profiler/statistics.h"
#include "runtime/device.h"

#define HARNESS_THREADS

static void open_model(const char *fixture, struct mf_model *model)
{
    json_t *config = NULL;
    char path[256];
    (void)snprintf(path, sizeof(path), "tests/oracle/fixtures/%s/config.json", fixture);
    assert_ok(mf_json_load(harness_source(path), MF_CONFIG_FILE_MAX, &config));
    assert_ok(mf_model_from_config(config, fixture, 0, model));
    json_decref(config);
}

static void test_statistics(void **state)
{
    (void)state;
    double odd[] = {5, 1, 100};
    double even[] = {4, 1, 3, 2};
    assert_near(mf_statistics_median(odd, 3), 5, 0, 0);
    assert_near(mf_statistics_spread(odd, 3, 5), 4, 0, 0);
    assert_near(mf_statistics_median(even, 4), 2.5, 0, 0);
}

/* Whatever a plan chooses, each of its tasks has been named as a need. */
static void check_covered(const struct mf_model *model, const struct mf_workload *workload,
                          const struct mf_profile *needs)
{
    struct mf_plan plan;
    mf_plan_init(model, workload, &plan);
    plan.ring_slots = 4;
    for (int32_t i = 0; i < model->unit_count; i++) {
        int32_t owner = model->units[i].owner;
        uint64_t first = model->units[owner].owner == owner && owner != i &&
                                 plan.units[owner].forward == MF_WEIGHT_FORWARD_RESIDENT
                             ? 0
                             : 1;
        uint64_t weights = owner == i   ? harness_random_below(MF_WORK_WEIGHTS)
                           : first == 0 ? 0
                                        : 1 + harness_random_below(MF_WORK_WEIGHTS - 1);
        uint64_t updates = harness_random_below(MF_WORK_UPDATES);
        plan.units[i].forward = mf_work_weights[weights].forward;
        plan.units[i].backward = mf_work_weights[weights].backward;
        plan.units[i].gradient =
            owner == i ? mf_work_updates[updates].gradient : plan.units[owner].gradient;
        plan.units[i].optimizer =
            owner == i ? mf_work_updates[updates].optimizer : plan.units[owner].optimizer;
    }
    for (int32_t b = 1; b + 1 < model->block_count; b++) {
        plan.activations[b] = (enum mf_activation)harness_random_below(MF_ACTIVATION_COUNT);
    }
    for (int variant = 0; variant < MF_STEP_VARIANT_COUNT; variant++) {
        struct mf_step_request request =
            mf_step_variant_request(&plan, (enum mf_step_variant)variant);
        struct mf_step step;
        assert_ok(mf_step_build(model, &plan, &request, &step));
        for (int32_t t = 0; t < step.task_count; t++) {
            struct mf_signature signature = mf_profile_signature(
                step.tasks[t].lane, step.tasks[t].kernel, &step.tasks[t].shape);
            if (step.tasks[t].kernel != MF_KERNEL_COPY &&
                mf_profile_find(needs, &signature) == NULL) {
                char text[200];
                mf_measure_describe(&signature, text, sizeof(text));
                fail_msg("not among the needs: %s", text);
            }
        }
        mf_step_reset(&step);
    }
    mf_plan_reset(&plan);
}

static void test_needs_cover_every_plan(void **state)
{
    (void)state;
    const char *const fixtures[] = {"gpt2", "llama", "qwen3"};
    for (int f = 0; f < 3; f++) {
        struct mf_model model;
        open_model(fixtures[f], &model);
        for (int32_t accumulation = 1; accumulation <= 2; accumulation++) {
            struct mf_workload workload = {
                .micro_batch = 2, .seq_len = 16, .accumulation = accumulation, .clip = true};
            struct mf_signature *signatures = NULL;
            int32_t count = 0;
            assert_ok(mf_measure_needs(&model, &workload, &signatures, &count));
            assert_true(count > 20);
            struct mf_profile needs;
            mf_profile_init(&needs);
            for (int32_t i = 0; i < count; i++) {
                struct mf_measurement entry = {.signature = signatures[i]};
                assert_null(mf_profile_find(&needs, &signatures[i]));
                mf_profile_put(&needs, &entry);
            }
            for (int round = 0; round < 10; round++) {
                check_covered(&model, &workload, &needs);
            }
            mf_profile_reset(&needs);
            free(signatures);
        }
        mf_model_reset(&model);
    }
}

static void test_every_need_can_be_measured(void **state)
{
    (void)state;
    const char *const fixtures[] = {"gpt2", "qwen3"};
    const struct mf_device_interface *interface = mf_device_host();
    struct mf_device_options options = {.memory_bytes = 512 << 20, .threads = 2};
    struct mf_device *device = NULL;
    assert_ok(interface->open(&options, &device));
    for (int f = 0; f < 2; f++) {
        struct mf_model model;
        struct mf_workload workload = {
            .micro_batch = 2, .seq_len = 16, .accumulation = 2, .clip = true};
        struct mf_signature *signatures = NULL;
        struct mf_measure_scratch scratch = {0};
        int32_t count = 0;
        open_model(fixtures[f], &model);
        assert_ok(mf_measure_needs(&model, &workload, &signatures, &count));
        for (int32_t i = 0; i < count; i++) {
            struct mf_measurement measured;
            assert_ok(
                mf_measure_one(interface, device, &scratch, &signatures[i], 0.001, &measured));
            assert_true(measured.samples >= 3 && measured.samples <= 25);
            assert_true(measured.median_ns > 0 && isfinite(measured.median_ns));
            assert_true(measured.spread_ns >= 0);
        }
        mf_measure_release(interface, device, &scratch);
        assert_int_equal(interface->reserved_bytes(device), 0);
        free(signatures);
        mf_model_reset(&model);
    }
    interface->close(device);
}

static void test_what_does_not_fit_is_said(void **state)
{
    (void)state;
    const struct mf_device_interface *interface = mf_device_host();
    struct mf_device_options options = {.memory_bytes = 1 << 20, .threads = 1};
    struct mf_device *device = NULL;
    struct mf_measure_scratch scratch = {0};
    struct mf_measurement measured;
    struct mf_signature large = {.lane = MF_LANE_COMPUTE,
                                 .kernel = MF_KERNEL_ADD_FORWARD,
                                 .shape = {.rows = 4096, .n = 4096}};
    struct mf_signature vast = {.lane = MF_LANE_COMPUTE,
                                .kernel = MF_KERNEL_ADD_FORWARD,
                                .shape = {.rows = 1ll << 36, .n = 1ll << 31}};
    assert_ok(interface->open(&options, &device));
    assert_status(mf_measure_one(interface, device, &scratch, &large, 0.01, &measured),
                  MF_STATUS_NO_DEVICE_MEMORY);
    assert_status(mf_measure_one(interface, device, &scratch, &vast, 0.01, &measured),
                  MF_STATUS_NO_DEVICE_MEMORY);
    assert_null(scratch.device);
    interface->close(device);
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void test_rates(void **state)
{
    (void)state;
    const struct mf_device_interface *interface = mf_device_host();
    /* An emulated link of 200 MB/s up and 100 MB/s down shows as measured. */
    struct mf_device_options options = {.memory_bytes = 256 << 20,
                                        .h2d_bytes_per_s = 200e6,
                                        .d2h_bytes_per_s = 100e6,
                                        .threads = 2};
    struct mf_device *device = NULL;
    struct mf_hardware hardware = {.device_count = 1};
    struct mf_profile profile;
    mf_profile_init(&profile);
    assert_ok(interface->open(&options, &device));
    assert_ok(interface->describe(device, &hardware.devices[0]));
    double start = seconds_now();
    assert_ok(mf_measure_hardware(interface, device, 1.0, &hardware, &profile));
    print_message("rates: %.1f s, %.2f GFLOP/s, memory %.2f GB/s, link %.1f and %.1f MB/s, "
                  "latency %.1f us, update %.2f GB/s\n",
                  seconds_now() - start, hardware.devices[0].matrix_flops / 1e9,
                  hardware.devices[0].memory_bytes_per_s / 1e9,
                  hardware.devices[0].h2d_bytes_per_s / 1e6,
                  hardware.devices[0].d2h_bytes_per_s / 1e6,
                  hardware.devices[0].copy_latency_ns / 1e3, hardware.host_bytes_per_s / 1e9);
    assert_true(hardware.measured);
    assert_true(hardware.devices[0].matrix_flops > 0);
    assert_true(hardware.devices[0].memory_bytes_per_s > 0);
    assert_true(hardware.host_bytes_per_s > 0);
    assert_near(hardware.devices[0].h2d_bytes_per_s, 200e6, 0, 0);
    const struct mf_shape large = {.n = 2 << 20};
    for (int lane = MF_LANE_H2D; lane <= MF_LANE_D2H; lane++) {
        bool measured = false;
        double rate = lane == MF_LANE_H2D ? 200e6 : 100e6;
        double emulated_ns = (2 << 20) / rate * 1e9;
        double cost_ns =
            mf_cost_ns(&hardware, &profile, (enum mf_lane)lane, MF_KERNEL_COPY, &large, &measured);
        assert_true(measured);
        assert_true(cost_ns >= 0.98 * emulated_ns); /* the link never is faster than it was set */
        assert_true(cost_ns <= 3 * emulated_ns);    /* a busy machine wakes its sleepers late */
    }
    assert_true(profile.count >= 4);
    mf_profile_reset(&profile);
    interface->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_needs_cover_every_plan),
        cmocka_unit_test(test_every_need_can_be_measured),
        cmocka_unit_test(test_what_does_not_fit_is_said),
        cmocka_unit_test(test_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
