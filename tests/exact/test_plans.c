/*
 * The result never depends on the plan: random plans of tiny models give the same bits as the
 * resident one, for losses, norms, an evaluation in between and all parameters after five steps,
 * with and without accumulation and clipping; with delays on every lane, step by step or as whole
 * steps, and after a move of all state into another plan in between. Where plans use other matrix
 * kernels (same_kernels), within stated bounds instead.
 */
#define HARNESS_TIMEOUT_S 1500
#define HARNESS_THREADS

#include "tests/harness.h"
#include "tests/test_device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model.h"
#include "core/plan.h"
#include "planner/solve.h"
#include "runtime/executor.h"
#include "runtime/weights.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define PLANS_SHARE 5 /* of the plans below, one in so many */
#else
#define PLANS_SHARE 1
#endif
#define STEPS 6
#define EMPTY_STEP 4 /* all labels are ignored: nothing may change */
#define PANEL_BYTES 8192

static const char *const presets[] = {"tiny-gpt2", "tiny-llama", "tiny-qwen3"};

struct outcome {
    double loss[STEPS];
    double norm[STEPS];
    double evaluation; /* after the second step */
    int redone;        /* updates of all plans that speculation did not make */
    float *parameters; /* master, first and second moment of all owners */
    size_t count;
};

struct job {
    struct mf_model *model;
    struct mf_plan *plan;
    struct mf_device *device;
    struct mf_executor *executor;
};

/* One contribution to a gradient is the gradient, several are summed; an update may or may not
 * begin before the norm is known. */
static const struct {
    int32_t accumulation;
    bool clip;
    uint64_t plans; /* of each model */
} kinds[] = {{3, true, 40}, {1, false, 20}, {1, true, 20}};
static struct mf_workload workload = {.micro_batch = 2, .seq_len = 24};
static struct mf_adam adam = {
    .learning_rate = 1e-2,
    .beta1 = 0.9,
    .beta2 = 0.95,
    .eps = 1e-8,
    .weight_decay = 0.1,
    .skip_nonfinite = true,
};

/* Of the device: what it has, and which of its lanes are delayed where a job is (0 = all). */
static int64_t memory_bytes = 1ll << 30;
static uint32_t jitter_lanes;

static void set_kind(size_t kind)
{
    workload.accumulation = kinds[kind].accumulation;
    workload.clip = kinds[kind].clip;
}

/* Of speculation by step: it holds, holds, fails, is not tried, is for nothing (the step is empty),
 * and is not tried. */
static void set_clip(int step)
{
    static const double norms[STEPS] = {100, 100, 0.1, 100, 0.1, 0.1};
    adam.clip_norm = workload.clip ? norms[step] : 0;
}

static size_t parameter_count(const struct mf_model *model)
{
    size_t count = 0;
    for (int32_t i = 0; i < model->unit_count; i++) {
        count += model->units[i].owner == i ? (size_t)model->units[i].elements * 3 : 0;
    }
    return count;
}

static void open_job(struct job *job, struct mf_model *model, struct mf_plan *plan,
                     uint64_t jitter_seed)
{
    const struct mf_device_options options = {
        .memory_bytes = memory_bytes,
        .jitter_seed = jitter_seed,
        .jitter_ns_max = 200000,
        .jitter_lanes = jitter_lanes,
    };
    const struct mf_device_interface *host = test_device();
    int64_t peak[MF_SPACE_COUNT];
    *job = (struct job){.model = model, .plan = plan};
    assert_ok(host->open(&options, &job->device));
    assert_ok(mf_executor_open(host, job->device, model, plan, NULL, NULL, &job->executor));
    assert_ok(mf_step_peak(model, plan, peak));
    assert_int_equal(peak[MF_SPACE_DEVICE], host->reserved_bytes(job->device));
    assert_int_equal(peak[MF_SPACE_HOST], mf_executor_bytes(job->executor, MF_SPACE_HOST));
}

static void close_job(struct job *job)
{
    mf_executor_close(job->executor);
    assert_int_equal(test_device()->reserved_bytes(job->device), 0);
    test_device()->close(job->device);
}

static void init_parameters(const struct job *job)
{
    for (int32_t i = 0; i < job->model->unit_count; i++) {
        const struct mf_unit *unit = &job->model->units[i];
        if (unit->owner != i) {
            continue;
        }
        float *master = calloc((size_t)unit->elements, sizeof(float));
        mf_weights_init_unit(job->model, i, 7, master);
        assert_ok(mf_executor_put_unit(job->executor, i, master, NULL, NULL));
        free(master);
    }
}

static void get_parameters(const struct job *job, float *out)
{
    for (int32_t i = 0; i < job->model->unit_count; i++) {
        const struct mf_unit *unit = &job->model->units[i];
        if (unit->owner == i) {
            assert_ok(mf_executor_get_unit(job->executor, i, out, out + unit->elements,
                                           out + 2 * unit->elements));
            out += 3 * unit->elements;
        }
    }
}

static void put_parameters(const struct job *job, const float *from)
{
    for (int32_t i = 0; i < job->model->unit_count; i++) {
        const struct mf_unit *unit = &job->model->units[i];
        if (unit->owner == i) {
            assert_ok(mf_executor_put_unit(job->executor, i, from, from + unit->elements,
                                           from + 2 * unit->elements));
            from += 3 * unit->elements;
        }
    }
}

/* The same tokens for every plan; every ninth label is ignored. */
static void make_batch(const struct mf_model *model, int step, int32_t *tokens, int32_t *labels)
{
    int64_t count = mf_workload_rows(&workload) * workload.accumulation;
    uint64_t state = 1234567u + (uint64_t)step;
    uint64_t vocab = (uint64_t)model->vocab;
    for (int64_t i = 0; i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        tokens[i] = (int32_t)((state >> 33) % vocab);
        bool ignored = i % 9 == 4 || step == EMPTY_STEP;
        labels[i] = ignored ? -100 : (int32_t)((state >> 40) % vocab);
    }
}

static void one_step(struct job *job, int step, bool whole, struct outcome *out)
{
    int64_t rows = mf_workload_rows(&workload);
    int32_t tokens[2 * 24 * 3]; /* the largest accumulation */
    int32_t labels[2 * 24 * 3];
    struct mf_update_result update;
    set_clip(step);
    make_batch(job->model, step, tokens, labels);
    if (whole) {
        assert_ok(mf_executor_run(job->executor, tokens, labels, &adam, &update));
    } else {
        struct mf_micro_result micro;
        bool together = step % 2 == 0;
        for (int32_t i = 0; i < workload.accumulation; i++) {
            bool last = i == workload.accumulation - 1;
            assert_ok(
                mf_executor_forward_backward(job->executor, tokens + i * rows, labels + i * rows,
                                             last && together ? &adam : NULL, &micro, &update));
        }
        if (!together) {
            assert_ok(mf_executor_update(job->executor, &adam, &update));
        }
    }
    assert_int_equal(update.skipped, step == EMPTY_STEP);
    assert_int_equal(update.step, step + (step < EMPTY_STEP));
    out->loss[step] = update.loss_sum;
    out->redone += update.redone;
    out->norm[step] = update.norm;
    if (step == 1) {
        struct mf_micro_result result;
        assert_ok(mf_executor_evaluate(job->executor, tokens, labels, &result, NULL));
        out->evaluation = result.loss_sum;
    }
}

static void run_plan(struct mf_model *model, struct mf_plan *plan, struct mf_plan *second,
                     uint64_t jitter_seed, bool whole, struct outcome *out)
{
    struct job job;
    open_job(&job, model, plan, jitter_seed);
    init_parameters(&job);
    for (int step = 0; step < STEPS; step++) {
        if (second != NULL && step == 2) { /* as a resume under another plan does */
            get_parameters(&job, out->parameters);
            close_job(&job);
            open_job(&job, model, second, jitter_seed);
            put_parameters(&job, out->parameters);
            mf_executor_set_step(job.executor, step);
            assert_int_equal(step, mf_executor_step(job.executor));
        }
        one_step(&job, step, whole, out);
    }
    get_parameters(&job, out->parameters);
    close_job(&job);
}

static void explain(const struct mf_model *model, const struct mf_plan *plan)
{
    for (int32_t i = 0; i < model->unit_count; i++) {
        print_message("  %-40s %-8s %-7s %-7s %s\n", model->units[i].name,
                      mf_plan_forward_name(plan->units[i].forward),
                      mf_plan_backward_name(plan->units[i].backward),
                      mf_plan_gradient_name(plan->units[i].gradient),
                      mf_plan_optimizer_name(plan->units[i].optimizer));
    }
    for (int32_t i = 0; i < model->block_count; i++) {
        print_message("  block %d: %s\n", i, mf_plan_activation_name(plan->activations[i]));
    }
    print_message("  %d of %d blocks deferred\n", plan->deferred_blocks, plan->block_count);
}

/* Whether all plans use the same matrix kernels. Weights that a GPU reads in place are multiplied
 * by kernels of their own unless MEMFERRY_DIRECT is "plain". */
static bool same_kernels(void)
{
    const char *direct = getenv("MEMFERRY_DIRECT");
    return test_device() == mf_device_host() || (direct != NULL && strcmp(direct, "plain") == 0);
}

static bool same_bits(const struct outcome *reference, const struct outcome *found)
{
    return memcmp(reference->loss, found->loss, sizeof(found->loss)) == 0 &&
           memcmp(reference->norm, found->norm, sizeof(found->norm)) == 0 &&
           reference->evaluation == found->evaluation &&
           memcmp(reference->parameters, found->parameters, found->count * sizeof(float)) == 0;
}

/* Other orders of fp32 sums: rounding at the first step, which the four that follow amplify at this
 * learning rate; parameters that moved alike. */
static bool alike(const struct outcome *reference, const struct outcome *found)
{
    double difference = 0;
    double square = 1e-30;
    for (size_t i = 0; i < found->count; i++) {
        double apart = (double)found->parameters[i] - (double)reference->parameters[i];
        difference += apart * apart;
        square += (double)reference->parameters[i] * (double)reference->parameters[i];
    }
    double last = reference->loss[STEPS - 1];
    return fabs(found->loss[0] - reference->loss[0]) <= 2e-4 * reference->loss[0] &&
           fabs(found->norm[0] - reference->norm[0]) <= 5e-3 * reference->norm[0] &&
           fabs(found->loss[STEPS - 1] - last) <= 2e-2 * last &&
           fabs(found->evaluation - reference->evaluation) <= 2e-2 * reference->evaluation &&
           sqrt(difference / square) <= 0.1;
}

static void compare(const struct mf_model *model, const struct mf_plan *plan, uint64_t seed,
                    const struct outcome *reference, const struct outcome *found)
{
    bool same = same_kernels() ? same_bits(reference, found) : alike(reference, found);
    if (!same) {
        print_message("plan of seed %llu differs:\n", (unsigned long long)seed);
        explain(model, plan);
        for (int step = 0; step < STEPS; step++) {
            print_message("  step %d: loss %.17g / %.17g, norm %.17g / %.17g\n", step,
                          reference->loss[step], found->loss[step], reference->norm[step],
                          found->norm[step]);
        }
    }
    assert_true(same);
}

static void new_outcome(const struct mf_model *model, struct outcome *out)
{
    *out = (struct outcome){.count = parameter_count(model)};
    out->parameters = calloc(out->count, sizeof(float));
    assert_non_null(out->parameters);
}

static void compare_plans(struct mf_model *model, uint64_t plans)
{
    struct mf_plan plan;
    struct outcome reference;
    struct outcome found;
    new_outcome(model, &reference);
    new_outcome(model, &found);
    mf_plan_init(model, &workload, &plan);
    run_plan(model, &plan, NULL, 0, true, &reference);
    mf_plan_reset(&plan);
    assert_true(reference.loss[STEPS - 1] < reference.loss[0] * 1.5);
    for (uint64_t seed = 1; seed <= plans; seed++) {
        struct mf_plan second;
        mf_solve_random(model, &workload, seed, &plan);
        mf_solve_random(model, &workload, seed + 100000, &second);
        run_plan(model, &plan, seed % 3 == 0 ? &second : NULL, seed % 4 == 0 ? seed : 0,
                 seed % 2 == 0, &found);
        compare(model, &plan, seed, &reference, &found);
        mf_plan_reset(&plan);
        mf_plan_reset(&second);
    }
    assert_int_equal(found.redone > 0, workload.clip); /* some plans speculated */
    free(reference.parameters);
    free(found.parameters);
}

static void any_plan_gives_the_same_bits(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof(presets) / sizeof(presets[0]); m++) {
        struct mf_model model;
        assert_ok(mf_model_from_preset(presets[m], PANEL_BYTES, &model));
        for (size_t kind = 0; kind < sizeof(kinds) / sizeof(kinds[0]); kind++) {
            set_kind(kind);
            compare_plans(&model, kinds[kind].plans / PLANS_SHARE);
        }
        mf_model_reset(&model);
    }
}

/* Under a cap of 100 MB, each lane alone late: the same plan gives the same bits, on any device. */
static void delays_of_one_lane_change_nothing(void **state)
{
    (void)state;
    memory_bytes = 100000000;
    for (size_t m = 0; m < sizeof(presets) / sizeof(presets[0]); m++) {
        struct mf_model model;
        struct mf_plan plan;
        struct outcome reference;
        struct outcome found;
        assert_ok(mf_model_from_preset(presets[m], PANEL_BYTES, &model));
        new_outcome(&model, &reference);
        new_outcome(&model, &found);
        for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
            set_kind((size_t)lane % (sizeof(kinds) / sizeof(kinds[0])));
            mf_solve_random(&model, &workload, 900 + (uint64_t)lane, &plan);
            run_plan(&model, &plan, NULL, 0, true, &reference);
            jitter_lanes = 1u << lane;
            run_plan(&model, &plan, NULL, 77 + (uint64_t)lane, true, &found);
            jitter_lanes = 0;
            assert_true(same_bits(&reference, &found));
            mf_plan_reset(&plan);
        }
        free(reference.parameters);
        free(found.parameters);
        mf_model_reset(&model);
    }
    memory_bytes = 1ll << 30;
}

/* Panels are geometry: other panels may change sums, but never by more than rounding. At the first
 * step that is all there is; five steps at this learning rate amplify it. */
static void panels_change_only_rounding(void **state)
{
    (void)state;
    double first[2];
    double last[2];
    set_kind(0);
    for (int i = 0; i < 2; i++) {
        struct mf_model model;
        struct mf_plan plan;
        struct outcome found;
        assert_ok(mf_model_from_preset("tiny-llama", i == 0 ? PANEL_BYTES : 0, &model));
        new_outcome(&model, &found);
        mf_plan_init(&model, &workload, &plan);
        run_plan(&model, &plan, NULL, 0, true, &found);
        first[i] = found.loss[0];
        last[i] = found.loss[STEPS - 1];
        mf_plan_reset(&plan);
        free(found.parameters);
        mf_model_reset(&model);
    }
    assert_near(first[0], first[1], 0, 2e-4);
    assert_near(last[0], last[1], 0, 2e-2);
}

/* With an argument: the tests whose name matches it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_plan_gives_the_same_bits),
        cmocka_unit_test(delays_of_one_lane_change_nothing),
        cmocka_unit_test(panels_change_only_rounding),
    };
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
