/*
 * The solver against what can be enumerated, and its bound against every plan we can make:
 * random plans, all plans of a small space, all strategies, under budgets from all to the least.
 */
#include "harness.h"

#include <math.h>
#include <string.h>

#include "planner/bound.h"
#include "planner/cost.h"
#include "planner/simulate.h"
#include "planner/solve.h"
#include "planner/work.h"

#define MIB (1ll << 20)
/* Times that are equal but for the order of additions. */
#define SAME (1 + 1e-9)

/* A machine on which the tiny models are torn between lanes: a slow link, a slow CPU, and lanes
 * that cost each other. */
static struct mf_hardware machine(const char *kind)
{
    struct mf_hardware hardware = {
        .device_count = 1,
        .devices = {{.memory_bytes = 64 * MIB,
                     .matrix_flops = 2e12,
                     .memory_bytes_per_s = 20e9,
                     .h2d_bytes_per_s = 0.4e9,
                     .d2h_bytes_per_s = 0.3e9,
                     .copy_latency_ns = 2000,
                     .link_emulated = true}},
        .host_bytes = 1024 * MIB,
        .host_bytes_per_s = 2e9,
    };
    memcpy(hardware.devices[0].kind, kind, strlen(kind) + 1);
    mf_hardware_assume(&hardware);
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        hardware.contention.gap_ns[lane] = 200;
        hardware.contention.issue_ns[lane] = 500;
        for (int to = 0; to < MF_LANE_COUNT; to++) {
            hardware.contention.handover_ns[lane][to] = to == lane ? 0 : 1500;
        }
    }
    hardware.contention.graph_ns = 10000;
    return hardware;
}

static struct mf_model preset(const char *name)
{
    struct mf_model model;
    assert_ok(mf_model_from_preset(name, 16 << 10, &model));
    return model;
}

static double time_of(const struct mf_model *model, const struct mf_hardware *hardware,
                      const struct mf_plan *plan)
{
    struct mf_step step;
    struct mf_simulation simulation;
    struct mf_step_request run = mf_step_variant_request(plan, MF_STEP_RUN);
    assert_ok(mf_step_build(model, plan, &run, &step));
    (void)mf_cost_fill(hardware, NULL, &step);
    mf_simulate(&step, &hardware->contention, &simulation, NULL);
    mf_step_reset(&step);
    return simulation.step_ns;
}

static const char *const models[] = {"tiny-llama", "tiny-gpt2", "tiny-qwen3"};
static const struct mf_workload workloads[] = {
    {.micro_batch = 2, .seq_len = 64, .accumulation = 1},
    {.micro_batch = 4, .seq_len = 128, .accumulation = 1, .clip = true},
    {.micro_batch = 1, .seq_len = 128, .accumulation = 3},
    {.micro_batch = 2, .seq_len = 32, .accumulation = 5, .clip = true},
};
#define MODELS (sizeof(models) / sizeof(models[0]))
#define WORKLOADS (sizeof(workloads) / sizeof(workloads[0]))

/* Random plans validate, reach every choice, and are never faster than the bound of the memory
 * they take; the lane totals of work.h never exceed the graph's. */
static void test_random_plans(void **state)
{
    (void)state;
    bool seen_weight[MF_WORK_WEIGHTS] = {false};
    bool seen_update[MF_WORK_UPDATES] = {false};
    for (size_t i = 0; i < MODELS * WORKLOADS; i++) {
        struct mf_model model = preset(models[i % MODELS]);
        const struct mf_workload *workload = &workloads[i / MODELS];
        struct mf_hardware hardware = machine(i % 2 == 0 ? "cuda" : "host");
        struct mf_work work;
        assert_ok(mf_work_build(&model, workload, &hardware, NULL, &work));
        for (uint64_t seed = 0; seed < 40; seed++) {
            struct mf_plan plan;
            int64_t peak[MF_SPACE_COUNT];
            mf_solve_random(&model, workload, harness_random(), &plan);
            assert_ok(mf_plan_validate(&plan, &model));
            for (int32_t u = 0; u < plan.unit_count; u++) {
                const struct mf_unit_decision *unit = &plan.units[u];
                seen_weight[mf_work_find_weight(unit->forward, unit->backward)] = true;
                seen_update[mf_work_find_update(unit->gradient, unit->optimizer)] = true;
            }
            assert_ok(mf_step_peak(&model, &plan, peak));
            struct mf_constraints constraints = {.device_bytes = peak[MF_SPACE_DEVICE]};
            struct mf_bound bound = mf_bound(&model, workload, &constraints, &hardware, NULL);
            assert_ok(mf_solve_predict(&model, &hardware, NULL, &plan));
            const struct mf_plan_prediction *got = &plan.prediction;
            if (bound.ns > time_of(&model, &hardware, &plan) * (1 + 1e-9)) {
                fail_msg("bound %.0f ns (%s) above %.0f ns: %s, workload %zu", bound.ns, bound.lane,
                         got->step_ns, models[i % MODELS], i / MODELS);
            }
            struct mf_work_lanes lanes;
            int64_t bytes = 0;
            mf_work_plan(&work, &model, &plan, &lanes, &bytes);
            assert_true(bytes <= peak[MF_SPACE_DEVICE]);
            for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
                assert_true(lanes.ns[lane] <= got->lane_busy_ns[lane] * (1 + 1e-9) + 1e-3);
            }
            mf_plan_reset(&plan);
        }
        mf_work_reset(&work);
        mf_model_reset(&model);
    }
    for (int i = 0; i < MF_WORK_WEIGHTS; i++) {
        assert_true(seen_weight[i]);
    }
    for (int i = 0; i < MF_WORK_UPDATES; i++) {
        assert_true(seen_update[i]);
    }
}

static struct mf_solve_request request_of(const struct mf_model *model,
                                          const struct mf_workload *workload,
                                          const struct mf_hardware *hardware, int64_t device_bytes,
                                          enum mf_strategy strategy)
{
    return (struct mf_solve_request){.model = model,
                                     .workload = *workload,
                                     .constraints = {.device_bytes = device_bytes},
                                     .strategy = strategy,
                                     .hardware = hardware,
                                     .evaluations_max = 1500};
}

static void check_plan(const struct mf_plan *plan, const struct mf_solve_request *request)
{
    int64_t peak[MF_SPACE_COUNT];
    assert_ok(mf_plan_validate(plan, request->model));
    assert_ok(mf_step_peak(request->model, plan, peak));
    assert_int_equal(peak[MF_SPACE_DEVICE], plan->prediction.device_peak_bytes);
    assert_int_equal(peak[MF_SPACE_HOST], plan->prediction.host_peak_bytes);
    if (request->constraints.device_bytes > 0) {
        assert_true(peak[MF_SPACE_DEVICE] <= request->constraints.device_bytes);
    }
    assert_true(plan->id[0] != '\0');
    assert_true(plan->prediction.bound_ns > 0);
    struct mf_bound bound = mf_bound(request->model, &request->workload, &request->constraints,
                                     request->hardware, request->profile);
    assert_true(bound.ns <= plan->prediction.step_ns * (1 + 1e-9));
    for (int32_t i = 0; i < plan->unit_count; i++) {
        assert_true(plan->units[i].why[0] != '\0');
    }
}

static int64_t smallest_budget(const struct mf_solve_request *request)
{
    struct mf_solve_request tiny = *request;
    struct mf_plan plan;
    tiny.constraints.device_bytes = 1;
    assert_status(mf_solve(&tiny, &plan), MF_STATUS_NO_DEVICE_MEMORY);
    const struct mf_error *error = mf_status_error();
    assert_string_equal(error->reason, "DEVICE_MEMORY_TOO_SMALL");
    assert_int_equal(error->number_count, 3);
    assert_string_equal(error->numbers[0].name, "needed_bytes");
    assert_int_equal(error->numbers[1].value, 1);
    assert_string_equal(error->numbers[2].name, "smallest_bytes");
    return error->numbers[2].value;
}

/* From all the memory to the least: a plan always, never worse than a named strategy that fits,
 * and never slower with more memory. */
static void test_budgets(void **state)
{
    (void)state;
    static const double shares[] = {0, 0.03, 0.1, 0.25, 0.5, 0.75, 1};
    for (size_t i = 0; i < MODELS * 2; i++) {
        struct mf_model model = preset(models[i % MODELS]);
        const struct mf_workload *workload = &workloads[i % WORKLOADS];
        struct mf_hardware hardware = machine(i < MODELS ? "cuda" : "host");
        struct mf_solve_request request =
            request_of(&model, workload, &hardware, 0, MF_STRATEGY_AUTO);
        int64_t least = smallest_budget(&request);
        struct mf_plan plan;
        request.strategy = MF_STRATEGY_RESIDENT;
        assert_ok(mf_solve(&request, &plan));
        int64_t most = plan.prediction.device_peak_bytes;
        mf_plan_reset(&plan);
        double before = INFINITY;
        for (size_t j = 0; j < sizeof(shares) / sizeof(shares[0]); j++) {
            int64_t bytes = least + (int64_t)(shares[j] * (double)(most - least));
            request.constraints.device_bytes = bytes;
            request.strategy = MF_STRATEGY_AUTO;
            assert_ok(mf_solve(&request, &plan));
            check_plan(&plan, &request);
            double best = plan.prediction.step_ns;
            print_message("%-10s %8lld bytes: %9.0f ns, bound %9.0f (%s)", models[i % MODELS],
                          (long long)bytes, best, plan.prediction.bound_ns,
                          plan.prediction.bound_lane);
            mf_plan_reset(&plan);
            for (int strategy = 1; strategy < MF_STRATEGY_COUNT; strategy++) {
                request.strategy = (enum mf_strategy)strategy;
                enum mf_status status = mf_solve(&request, &plan);
                if (status == MF_STATUS_OK) {
                    check_plan(&plan, &request);
                    print_message(", %s %.0f", mf_plan_strategy_name(plan.strategy),
                                  plan.prediction.step_ns);
                    assert_true(best <= plan.prediction.step_ns * SAME);
                    mf_plan_reset(&plan);
                } else {
                    assert_int_equal(status, MF_STATUS_NO_DEVICE_MEMORY);
                }
            }
            print_message("\n");
            assert_true(best <= before * SAME);
            before = best;
        }
        mf_model_reset(&model);
    }
}

/* All plans in which equal units decide alike, of a model of few kinds of units. */
struct space {
    const struct mf_model *model;
    const struct mf_hardware *hardware;
    int64_t budget;
    double best;
    int64_t count;
};

/* Units in four groups: tables and head, norms, attention, feed-forward. */
static int group_of(const struct mf_unit *unit)
{
    if (unit->kind == MF_UNIT_NORM) {
        return 1;
    }
    if (unit->kind != MF_UNIT_LINEAR) {
        return 0;
    }
    return strstr(unit->name, "attn") != NULL ? 2 : 3;
}

static void set_group(struct mf_plan *plan, const struct mf_model *model, int group, int weight,
                      int update)
{
    for (int32_t i = 0; i < plan->unit_count; i++) {
        if (group_of(&model->units[i]) == group) {
            plan->units[i].forward = mf_work_weights[weight].forward;
            plan->units[i].backward = mf_work_weights[weight].backward;
            plan->units[i].gradient = mf_work_updates[update].gradient;
            plan->units[i].optimizer = mf_work_updates[update].optimizer;
        }
    }
}

static void visit(struct space *space, struct mf_plan *plan)
{
    bool streams = false;
    for (int32_t i = 0; i < plan->unit_count; i++) {
        streams |= plan->units[i].backward == MF_WEIGHT_BACKWARD_STREAM ||
                   (plan->units[i].forward == MF_WEIGHT_FORWARD_STREAM &&
                    plan->units[i].backward != MF_WEIGHT_BACKWARD_KEEP);
    }
    plan->ring_slots = streams ? 4 : 0;
    struct mf_step step;
    struct mf_simulation simulation;
    struct mf_step_request run = mf_step_variant_request(plan, MF_STEP_RUN);
    assert_ok(mf_step_build(space->model, plan, &run, &step));
    if (step.space_bytes[MF_SPACE_DEVICE] <= space->budget) {
        (void)mf_cost_fill(space->hardware, NULL, &step);
        mf_simulate(&step, &space->hardware->contention, &simulation, NULL);
        space->best = fmin(space->best, simulation.step_ns);
    }
    space->count++;
    mf_step_reset(&step);
}

static void test_exhaustive(void **state)
{
    (void)state;
    static const int weights[] = {0, 1, 2, 4};
    static const int updates[] = {0, 1, 3, 4};
    struct mf_model model = preset("tiny-llama");
    struct mf_hardware hardware = machine("cuda");
    const struct mf_workload *workload = &workloads[0];
    for (int64_t budget = 1 * MIB; budget <= 2 * MIB; budget += MIB / 2) {
        struct space space = {.model = &model, .hardware = &hardware, .budget = budget};
        space.best = INFINITY;
        struct mf_plan plan;
        mf_plan_init(&model, workload, &plan);
        for (int code = 0; code < 16 * 16 * 16 * 2; code++) {
            int left = code / 2;
            enum mf_activation activation =
                code % 2 == 0 ? MF_ACTIVATION_KEEP : MF_ACTIVATION_RECOMPUTE;
            for (int32_t b = 1; b + 1 < plan.block_count; b++) {
                plan.activations[b] = activation;
            }
            set_group(&plan, &model, 1, 0, 0); /* norms hardly matter */
            for (int group = 0; group < 4; group++) {
                if (group != 1) {
                    set_group(&plan, &model, group, weights[left % 4], updates[left / 4 % 4]);
                    left /= 16;
                }
            }
            visit(&space, &plan);
        }
        mf_plan_reset(&plan);
        struct mf_constraints constraints = {.device_bytes = budget};
        struct mf_bound bound = mf_bound(&model, workload, &constraints, &hardware, NULL);
        assert_true(bound.ns <= space.best * (1 + 1e-9));
        struct mf_solve_request request =
            request_of(&model, workload, &hardware, budget, MF_STRATEGY_AUTO);
        assert_ok(mf_solve(&request, &plan));
        print_message("%lld bytes: best of %lld %.0f ns, auto %.0f, bound %.0f\n",
                      (long long)budget, (long long)space.count, space.best,
                      plan.prediction.step_ns, bound.ns);
        assert_true(plan.prediction.step_ns <= space.best * 1.02);
        mf_plan_reset(&plan);
    }
    mf_model_reset(&model);
}

static void test_pins(void **state)
{
    (void)state;
    struct mf_model model = preset("tiny-llama");
    struct mf_hardware hardware = machine("cuda");
    const struct mf_pin free_pin = {"*", -1, -1, -1, -1};
    struct mf_pin pins[2] = {free_pin, free_pin};
    pins[0].pattern = "*.mlp.*";
    pins[0].forward = MF_WEIGHT_FORWARD_DIRECT;
    pins[0].backward = MF_WEIGHT_BACKWARD_LATE;
    pins[1].pattern = "*self_attn*";
    pins[1].optimizer = MF_OPTIMIZER_GPU_STREAM;
    pins[1].gradient = MF_GRADIENT_DIRECT;
    for (int strategy = 0; strategy < MF_STRATEGY_COUNT; strategy++) {
        struct mf_solve_request request =
            request_of(&model, &workloads[0], &hardware, 0, (enum mf_strategy)strategy);
        request.pins = pins;
        request.pin_count = 2;
        struct mf_plan plan;
        assert_ok(mf_solve(&request, &plan));
        for (int32_t i = 0; i < plan.unit_count; i++) {
            const struct mf_unit_decision *unit = &plan.units[i];
            bool mlp = strstr(model.units[i].name, ".mlp.") != NULL;
            bool attention = strstr(model.units[i].name, "self_attn") != NULL;
            assert_int_equal(unit->pinned, mlp || attention);
            if (mlp) {
                assert_int_equal(unit->forward, MF_WEIGHT_FORWARD_DIRECT);
                assert_int_equal(unit->backward, MF_WEIGHT_BACKWARD_LATE);
                assert_string_equal(unit->why, "pinned by the user");
            }
            if (attention) {
                assert_int_equal(unit->gradient, MF_GRADIENT_DIRECT);
                assert_int_equal(unit->optimizer, MF_OPTIMIZER_GPU_STREAM);
            }
        }
        mf_plan_reset(&plan);
    }
    mf_model_reset(&model);
}

static void test_bad_pins(void **state)
{
    (void)state;
    struct mf_model model = preset("tiny-llama");
    struct mf_model tied = preset("tiny-qwen3");
    struct mf_hardware hardware = machine("cuda");
    const struct {
        const struct mf_model *model;
        struct mf_pin pins[2];
        const char *fragment;
    } cases[] = {
        {&model,
         {{"*q_proj", 0, -1, -1, -1}, {"*layers.0*", 1, -1, -1, -1}},
         "model.layers.0.self_attn.q_proj is pinned to forward resident and to forward stream"},
        {&model,
         {{"*q_proj", 0, 1, -1, -1}, {"*", -1, -1, -1, -1}},
         "forward resident and to backward stream"},
        {&model,
         {{"*q_proj", -1, -1, 1, 1}, {"*", -1, -1, -1, -1}},
         "gradient copy and to optimizer gpu"},
        {&model, {{"*no_such*", 0, -1, -1, -1}, {"*", -1, -1, -1, -1}}, "matches none"},
        {&tied, {{"*embed_tokens", 0, -1, -1, -1}, {"lm_head", 1, -1, -1, -1}}, "share"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mf_solve_request request =
            request_of(cases[i].model, &workloads[0], &hardware, 0, MF_STRATEGY_AUTO);
        struct mf_plan plan;
        request.pins = cases[i].pins;
        request.pin_count = 2;
        assert_fails(mf_solve(&request, &plan), MF_STATUS_INVALID, cases[i].fragment);
    }
    mf_model_reset(&model);
    mf_model_reset(&tied);
}

static void test_host_budget(void **state)
{
    (void)state;
    struct mf_model model = preset("tiny-llama");
    struct mf_hardware hardware = machine("cuda");
    struct mf_solve_request request =
        request_of(&model, &workloads[0], &hardware, 0, MF_STRATEGY_STREAM);
    struct mf_plan plan;
    request.constraints.host_bytes = 300 << 10;
    assert_status(mf_solve(&request, &plan), MF_STATUS_NO_MEMORY);
    assert_string_equal(mf_status_error()->reason, "HOST_MEMORY_TOO_SMALL");
    request.strategy = MF_STRATEGY_AUTO;
    assert_ok(mf_solve(&request, &plan));
    assert_true(plan.prediction.host_peak_bytes <= request.constraints.host_bytes);
    mf_plan_reset(&plan);
    mf_model_reset(&model);
}

static bool at_once(void *context)
{
    ++*(int *)context;
    return true;
}

/* The same request gives the same plan; time that is up gives the best so far. */
static void test_deterministic_and_anytime(void **state)
{
    (void)state;
    struct mf_model model = preset("tiny-gpt2");
    struct mf_hardware hardware = machine("cuda");
    /* Memory without a limit: what is left is the work of the lanes. */
    struct mf_hardware unlimited = hardware;
    unlimited.devices[0].memory_bytes = 0;
    const struct mf_constraints none = {0};
    assert_true(mf_bound(&model, &workloads[1], &none, &unlimited, NULL).ns > 0);
    struct mf_solve_request request =
        request_of(&model, &workloads[1], &hardware, 2 * MIB, MF_STRATEGY_AUTO);
    struct mf_plan first;
    struct mf_plan second;
    assert_ok(mf_solve(&request, &first));
    assert_ok(mf_solve(&request, &second));
    assert_string_equal(first.id, second.id);
    mf_plan_reset(&second);
    int asked = 0;
    request.expired = at_once;
    request.context = &asked;
    assert_ok(mf_solve(&request, &second));
    check_plan(&second, &request);
    assert_true(asked > 0);
    assert_true(first.prediction.step_ns <= second.prediction.step_ns);
    mf_plan_reset(&first);
    mf_plan_reset(&second);
    mf_model_reset(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_plans),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_exhaustive),
        cmocka_unit_test(test_pins),
        cmocka_unit_test(test_bad_pins),
        cmocka_unit_test(test_host_budget),
        cmocka_unit_test(test_deterministic_and_anytime),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
