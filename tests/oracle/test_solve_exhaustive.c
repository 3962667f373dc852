/*
 * `auto` against exhaustive search on random small instances: random units, rates, workloads and
 * budgets. And over twelve budgets from all to the least: more memory never costs time, and no
 * named strategy is faster.
 */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "planner/bound.h"
#include "planner/cost.h"
#include "planner/simulate.h"
#include "planner/solve.h"
#include "planner/work.h"

#define MIB (1ll << 20)
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INSTANCES 40 /* a sanitizer costs tenfold; the numbers are the normal build's business */
#else
#define INSTANCES 300
#endif
/* How far `auto` may be from the best plan there is. */
#define CLOSE 1.02
/* Times that are equal but for the order of additions. */
#define SAME (1 + 1e-9)
#define UNITS_MAX 3
#define BUDGETS 12

static double log_between(double low, double high)
{
    return exp(harness_random_between(log(low), log(high)));
}

static struct mf_hardware random_machine(void)
{
    double link = log_between(0.05e9, 5e9);
    struct mf_hardware hardware = {
        .device_count = 1,
        .devices = {{.kind = "cuda",
                     .memory_bytes = 256 * MIB,
                     .matrix_flops = log_between(0.2e12, 20e12),
                     .memory_bytes_per_s = log_between(5e9, 100e9),
                     .h2d_bytes_per_s = link,
                     .d2h_bytes_per_s = link * harness_random_between(0.6, 1.4),
                     .copy_latency_ns = log_between(200, 10000),
                     .link_emulated = true}},
        .host_bytes = 4096 * MIB,
        .host_bytes_per_s = log_between(0.5e9, 20e9),
    };
    return hardware;
}

static struct mf_model random_model(int32_t unit_count)
{
    static const char *const names[UNITS_MAX] = {"first", "second", "third"};
    struct mf_unit_shape shapes[UNITS_MAX];
    struct mf_model model;
    int32_t block = 0;
    for (int32_t i = 0; i < unit_count; i++) {
        block += i > 0 && harness_random_below(3) > 0 ? 1 : 0;
        shapes[i] = (struct mf_unit_shape){
            .name = names[i],
            .block = block,
            .rows = 64 * (int64_t)(1 + harness_random_below(6)),
            .columns = 64 * (int64_t)(1 + harness_random_below(6)),
            .bias = harness_random_below(2) == 0,
        };
    }
    int64_t panel_bytes = 16ll << (10 + harness_random_below(3));
    assert_ok(mf_model_from_units(shapes, unit_count, panel_bytes, &model));
    return model;
}

struct instance {
    struct mf_model model;
    struct mf_workload workload;
    struct mf_hardware hardware;
    int64_t budget;
};

static void measure(const struct instance *instance, const struct mf_plan *plan, double *ns,
                    int64_t *bytes)
{
    struct mf_step step;
    struct mf_simulation simulation;
    struct mf_step_request run = mf_step_variant_request(plan, MF_STEP_RUN);
    assert_ok(mf_step_build(&instance->model, plan, &run, &step));
    (void)mf_cost_fill(&instance->hardware, NULL, &step);
    mf_simulate(&step, &instance->hardware.contention, &simulation, NULL);
    *ns = simulation.step_ns;
    *bytes = step.space_bytes[MF_SPACE_DEVICE];
    mf_step_reset(&step);
}

/* The best plan of those seen so far. */
struct best {
    double ns;
    int64_t count;
};

static void visit(const struct instance *instance, const struct mf_plan *plan, struct best *best)
{
    double ns = 0;
    int64_t bytes = 0;
    measure(instance, plan, &ns, &bytes);
    best->count++;
    if (bytes > instance->budget || ns >= best->ns) {
        return;
    }
    int64_t peak[MF_SPACE_COUNT];
    assert_ok(mf_step_peak(&instance->model, plan, peak));
    best->ns = peak[MF_SPACE_DEVICE] <= instance->budget ? ns : best->ns;
}

/* All depths of the ring that may matter to so few panels. */
static void visit_rings(const struct instance *instance, struct mf_plan *plan, struct best *best)
{
    static const int32_t slots[] = {2, 3, 4, 8};
    bool rings = false;
    for (int32_t i = 0; i < plan->unit_count; i++) {
        rings |= plan->units[i].backward == MF_WEIGHT_BACKWARD_STREAM ||
                 (plan->units[i].forward == MF_WEIGHT_FORWARD_STREAM &&
                  plan->units[i].backward != MF_WEIGHT_BACKWARD_KEEP);
    }
    plan->ring_slots = 0;
    if (!rings) {
        visit(instance, plan, best);
        return;
    }
    for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++) {
        plan->ring_slots = slots[i];
        visit(instance, plan, best);
    }
}

/* All choices of units from `unit` on, out of the lists; then all activations. */
struct choices {
    int weights[MF_WORK_WEIGHTS];
    int updates[MF_WORK_UPDATES];
    int weight_count, update_count;
};

static void visit_units(const struct instance *instance, const struct choices *choices,
                        int32_t unit, struct mf_plan *plan, struct best *best)
{
    if (unit == plan->unit_count) {
        int layers = plan->block_count > 2 ? MF_ACTIVATION_COUNT : 1;
        for (int i = 0; i < layers; i++) {
            for (int32_t block = 1; block + 1 < plan->block_count; block++) {
                plan->activations[block] = (enum mf_activation)i;
            }
            visit_rings(instance, plan, best);
        }
        return;
    }
    struct mf_unit_decision *decision = &plan->units[unit];
    for (int i = 0; i < choices->weight_count; i++) {
        decision->forward = mf_work_weights[choices->weights[i]].forward;
        decision->backward = mf_work_weights[choices->weights[i]].backward;
        for (int j = 0; j < choices->update_count; j++) {
            decision->gradient = mf_work_updates[choices->updates[j]].gradient;
            decision->optimizer = mf_work_updates[choices->updates[j]].optimizer;
            visit_units(instance, choices, unit + 1, plan, best);
        }
    }
}

/* The first `count` of `all` shuffled numbers. */
static void draw(int *out, int all, int count)
{
    int numbers[MF_WORK_WEIGHTS + MF_WORK_UPDATES];
    for (int i = 0; i < all; i++) {
        numbers[i] = i;
    }
    for (int i = 0; i < count; i++) {
        int other = i + (int)harness_random_below((uint64_t)(all - i));
        int swapped = numbers[i];
        numbers[i] = numbers[other];
        numbers[other] = swapped;
        out[i] = numbers[i];
    }
}

/* Everything for one unit; for more units a random part of the choices, a different one each time:
 * `auto` has them all. */
static struct choices draw_choices(int32_t unit_count)
{
    static const int weights[UNITS_MAX + 1] = {0, MF_WORK_WEIGHTS, 4, 3};
    static const int updates[UNITS_MAX + 1] = {0, MF_WORK_UPDATES, 4, 2};
    struct choices choices = {.weight_count = weights[unit_count],
                              .update_count = updates[unit_count]};
    draw(choices.weights, MF_WORK_WEIGHTS, choices.weight_count);
    draw(choices.updates, MF_WORK_UPDATES, choices.update_count);
    return choices;
}

static int64_t smallest_bytes(struct mf_solve_request request)
{
    struct mf_plan plan;
    request.constraints.device_bytes = 1;
    assert_status(mf_solve(&request, &plan), MF_STATUS_NO_DEVICE_MEMORY);
    const struct mf_error *error = mf_status_error();
    assert_string_equal(error->numbers[2].name, "smallest_bytes");
    return error->numbers[2].value;
}

static int64_t largest_bytes(struct mf_solve_request request)
{
    struct mf_plan plan;
    request.strategy = MF_STRATEGY_RESIDENT;
    request.constraints.device_bytes = 0;
    assert_ok(mf_solve(&request, &plan));
    int64_t bytes = plan.prediction.device_peak_bytes;
    mf_plan_reset(&plan);
    return bytes;
}

static void check_plan(const struct mf_solve_request *request, const struct mf_plan *plan)
{
    int64_t peak[MF_SPACE_COUNT];
    assert_ok(mf_plan_validate(plan, request->model));
    assert_ok(mf_step_peak(request->model, plan, peak));
    assert_int_equal(peak[MF_SPACE_DEVICE], plan->prediction.device_peak_bytes);
    assert_true(peak[MF_SPACE_DEVICE] <= request->constraints.device_bytes);
    assert_true(plan->prediction.bound_ns <= plan->prediction.step_ns);
}

/* Solves one random instance both ways; how many times slower `auto` is. */
static double compare(int32_t unit_count, int64_t *count)
{
    struct instance instance = {.model = random_model(unit_count),
                                .hardware = random_machine(),
                                .workload = {.micro_batch = 1,
                                             .seq_len = (int32_t)(32 << harness_random_below(4)),
                                             .accumulation = 1 + (int32_t)harness_random_below(2),
                                             .clip = harness_random_below(3) == 0}};
    struct mf_solve_request request = {.model = &instance.model,
                                       .workload = instance.workload,
                                       .strategy = MF_STRATEGY_AUTO,
                                       .hardware = &instance.hardware,
                                       .evaluations_max = unit_count == 1 ? 2000 : 12000};
    int64_t least = smallest_bytes(request);
    int64_t most = largest_bytes(request);
    double share = harness_random_below(8) == 0 ? 0 : harness_random_between(0, 1);
    instance.budget = least + (int64_t)(share * (double)(most > least ? most - least : 0));
    request.constraints.device_bytes = instance.budget;

    struct mf_plan plan;
    struct best best = {.ns = INFINITY};
    struct choices choices = draw_choices(unit_count);
    mf_plan_init(&instance.model, &instance.workload, &plan);
    visit_units(&instance, &choices, 0, &plan, &best);
    mf_plan_reset(&plan);
    assert_ok(mf_solve(&request, &plan));
    check_plan(&request, &plan);
    double ns = plan.prediction.step_ns;
    struct mf_bound bound = mf_bound(&instance.model, &instance.workload, &request.constraints,
                                     &instance.hardware, NULL);
    assert_true(bound.ns <= best.ns * (1 + 1e-9));
    if (ns > best.ns * CLOSE) {
        print_message("%d units, share %.3f: auto %.0f ns, best of %lld %.0f ns, bound %.0f\n",
                      (int)unit_count, share, ns, (long long)best.count, best.ns, bound.ns);
    }
    *count += best.count;
    mf_plan_reset(&plan);
    mf_model_reset(&instance.model);
    return isinf(best.ns) ? 0 : ns / best.ns;
}

static void test_random_instances(void **state)
{
    (void)state;
    double worst = 0;
    int64_t count = 0;
    int far = 0;
    for (int i = 0; i < INSTANCES; i++) {
        harness_random_restart((uint64_t)i);
        double ratio = compare(1 + i % UNITS_MAX, &count);
        worst = fmax(worst, ratio);
        far += ratio > CLOSE ? 1 : 0;
    }
    print_message("%d instances, %lld plans: auto at most %.4f times the best\n", INSTANCES,
                  (long long)count, worst);
    assert_int_equal(far, 0);
}

/* The fastest named strategy that fits, infinity when none does. */
static double best_named(struct mf_solve_request request)
{
    double best = INFINITY;
    for (int strategy = 0; strategy < MF_STRATEGY_COUNT; strategy++) {
        struct mf_plan plan;
        if (strategy == MF_STRATEGY_AUTO) {
            continue;
        }
        request.strategy = (enum mf_strategy)strategy;
        enum mf_status status = mf_solve(&request, &plan);
        if (status == MF_STATUS_OK) {
            check_plan(&request, &plan);
            best = fmin(best, plan.prediction.step_ns);
            mf_plan_reset(&plan);
        } else {
            assert_int_equal(status, MF_STATUS_NO_DEVICE_MEMORY);
        }
    }
    return best;
}

static int check_budgets(const char *name, const struct mf_workload *workload)
{
    struct mf_model model;
    assert_ok(mf_model_from_preset(name, 16 << 10, &model));
    struct mf_hardware hardware = random_machine();
    struct mf_solve_request request = {.model = &model,
                                       .workload = *workload,
                                       .strategy = MF_STRATEGY_AUTO,
                                       .hardware = &hardware};
    int64_t least = smallest_bytes(request);
    int64_t most = largest_bytes(request);
    double before = 0;
    int wrong = 0;
    for (int i = 0; i < BUDGETS; i++) {
        double share = (double)(BUDGETS - 1 - i) / (BUDGETS - 1);
        request.constraints.device_bytes = least + (int64_t)(share * (double)(most - least));
        struct mf_plan plan;
        assert_ok(mf_solve(&request, &plan));
        check_plan(&request, &plan);
        double ns = plan.prediction.step_ns;
        double named = best_named(request);
        if (ns * SAME < before || ns > named * SAME) {
            print_message("%s, budget %d: auto %.0f ns, with more memory %.0f, named %.0f\n", name,
                          i, ns, before, named);
            wrong++;
        }
        before = fmax(before, ns);
        mf_plan_reset(&plan);
    }
    mf_model_reset(&model);
    return wrong;
}

static void test_budgets(void **state)
{
    (void)state;
    static const char *const models[] = {"tiny-llama", "tiny-gpt2", "tiny-qwen3"};
    static const struct mf_workload workloads[] = {
        {.micro_batch = 2, .seq_len = 64, .accumulation = 1},
        {.micro_batch = 4, .seq_len = 128, .accumulation = 1, .clip = true},
        {.micro_batch = 1, .seq_len = 128, .accumulation = 3},
    };
    int wrong = 0;
    for (size_t i = 0; i < 6; i++) {
        harness_random_restart(1000 + i);
        wrong += check_budgets(models[i % 3], &workloads[i / 2]);
    }
    assert_int_equal(wrong, 0);
}

/* The peak that mf_step_peak finds without building every graph is that of all of them. */
static void test_peak(void **state)
{
    (void)state;
    static const char *const models[] = {"tiny-llama", "tiny-gpt2", "tiny-qwen3"};
    for (int i = 0; i < 60; i++) {
        struct mf_model model;
        struct mf_plan plan;
        struct mf_workload workload = {
            .micro_batch = 2, .seq_len = 64, .accumulation = 1 + i % 2, .clip = i % 5 == 0};
        assert_ok(mf_model_from_preset(models[i % 3], 16 << 10, &model));
        mf_solve_random(&model, &workload, harness_random(), &plan);
        int64_t most[MF_SPACE_COUNT] = {0};
        int64_t peak[MF_SPACE_COUNT];
        for (int variant = 0; variant < MF_STEP_VARIANT_COUNT; variant++) {
            struct mf_step_request request =
                mf_step_variant_request(&plan, (enum mf_step_variant)variant);
            struct mf_step step;
            assert_ok(mf_step_build(&model, &plan, &request, &step));
            for (int space = 0; space < MF_SPACE_COUNT; space++) {
                int64_t bytes = step.space_bytes[space];
                most[space] = bytes > most[space] ? bytes : most[space];
            }
            mf_step_reset(&step);
        }
        assert_ok(mf_step_peak(&model, &plan, peak));
        assert_int_equal(peak[MF_SPACE_DEVICE], most[MF_SPACE_DEVICE]);
        assert_int_equal(peak[MF_SPACE_HOST], most[MF_SPACE_HOST]);
        mf_plan_reset(&plan);
        mf_model_reset(&model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peak),
        cmocka_unit_test(test_random_instances),
        cmocka_unit_test(test_budgets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
