/*
 * How long the solver takes, and how good its plans are, by strategy; how long the simulator takes.
 *
 *     bench-plan [--hardware FILE] [--json FILE]
 *
 * FILE is a description as in hardware/. Without it costs are estimates for a machine like an H200:
 * the solver's time depends on sizes, not on rates. Targets, in CPU time: `auto` for an 8B model
 * within 0.3 s, for 80 blocks within 1 s; the simulator at most 1 us a task.
 */
#include <argp.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "planner/cost.h"
#include "planner/simulate.h"
#include "planner/solve.h"

#define GIB (1ll << 30)
#define REPEATS 3

static const struct {
    const char *preset;
    int64_t device_bytes;
    int32_t seq_len;
} cases[] = {
    {"gpt2", 2 * GIB, 1024},
    {"llama-3-8b", 24 * GIB, 2048},
    {"llama-3-8b", 80 * GIB, 2048},
    {"llama-3.1-70b", 80 * GIB, 2048},
};

static const char *json_path;
static const char *hardware_path;

/* The solver is one thread: its CPU time is what it takes where nothing else runs. */
static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static struct mf_hardware machine(void)
{
    struct mf_hardware hardware = {
        .device_count = 1,
        .devices = {{.kind = "cuda",
                     .name = "like an H200",
                     .memory_bytes = 139 * GIB,
                     .matrix_flops = 700e12,
                     .memory_bytes_per_s = 4e12,
                     .h2d_bytes_per_s = 50e9,
                     .d2h_bytes_per_s = 50e9,
                     .copy_latency_ns = 5000}},
        .host_bytes = 4096 * GIB,
        .host_bytes_per_s = 200e9,
    };
    mf_hardware_assume(&hardware);
    return hardware;
}

static enum mf_status read_hardware(const char *path, struct mf_hardware *out)
{
    json_error_t error;
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (json == NULL) {
        return mf_status_set(MF_STATUS_INVALID, "%s: %s", path, error.text);
    }
    enum mf_status status = mf_hardware_decode(json, out);
    json_decref(json);
    return status;
}

static void report(json_t *rows, const struct mf_model *model, int64_t device_bytes,
                   enum mf_strategy strategy, double seconds, const struct mf_plan *plan)
{
    const struct mf_plan_prediction *got = &plan->prediction;
    bool fits = plan->unit_count > 0;
    printf("| %s | %d | %lld GiB | %s | %.3f |", model->name, (int)model->block_count - 2,
           (long long)(device_bytes / GIB), mf_plan_strategy_name(strategy), seconds);
    if (fits) {
        printf(" %d | %.1f | %.1f |\n", (int)got->task_count, got->step_ns / 1e6,
               got->bound_ns / 1e6);
    } else {
        printf(" does not fit | | |\n");
    }
    json_array_append_new(rows, json_pack("{s:s, s:i, s:I, s:s, s:f, s:b, s:i, s:f, s:f}", "model",
                                          model->name, "layers", (int)model->block_count - 2,
                                          "device_bytes", (json_int_t)device_bytes, "strategy",
                                          mf_plan_strategy_name(strategy), "solve_s", seconds,
                                          "fits", fits, "tasks", (int)got->task_count, "step_ns",
                                          got->step_ns, "bound_ns", got->bound_ns));
}

/* What simulating the plan's step takes, beside contention. */
static void time_simulator(json_t *rows, const struct mf_solve_request *request,
                           const struct mf_plan *plan)
{
    struct mf_step step;
    struct mf_simulation simulation;
    struct mf_step_request run = mf_step_variant_request(plan, MF_STEP_RUN);
    if (plan->unit_count == 0 || mf_step_build(request->model, plan, &run, &step) != MF_STATUS_OK) {
        return;
    }
    (void)mf_cost_fill(request->hardware, request->profile, &step);
    double best = 1;
    for (int i = 0; i < REPEATS; i++) {
        double begin = now_s();
        mf_simulate(&step, &request->hardware->contention, &simulation, NULL);
        double seconds = now_s() - begin;
        best = seconds < best ? seconds : best;
    }
    printf("simulator: %s, %d tasks in %.2f ms, %.3f us a task\n", request->model->name,
           (int)step.task_count, best * 1e3, best * 1e6 / step.task_count);
    json_array_append_new(rows,
                          json_pack("{s:s, s:i, s:f}", "model", request->model->name,
                                    "simulated_tasks", (int)step.task_count, "simulate_s", best));
    mf_step_reset(&step);
}

/* The median of a few runs; every run gives the same plan. */
static void bench(json_t *rows, const struct mf_solve_request *request)
{
    double seconds[REPEATS];
    struct mf_plan plan = {0};
    for (int i = 0; i < REPEATS; i++) {
        mf_plan_reset(&plan);
        double begin = now_s();
        enum mf_status status = mf_solve(request, &plan);
        seconds[i] = now_s() - begin;
        if (status != MF_STATUS_OK && status != MF_STATUS_NO_DEVICE_MEMORY &&
            status != MF_STATUS_NO_MEMORY) {
            fprintf(stderr, "bench-plan: %s\n", mf_status_text());
            exit(1);
        }
        for (int j = i; j > 0 && seconds[j] < seconds[j - 1]; j--) {
            double swapped = seconds[j];
            seconds[j] = seconds[j - 1];
            seconds[j - 1] = swapped;
        }
    }
    report(rows, request->model, request->constraints.device_bytes, request->strategy,
           seconds[REPEATS / 2], &plan);
    if (request->strategy == MF_STRATEGY_STREAM) {
        time_simulator(rows, request, &plan);
    }
    mf_plan_reset(&plan);
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    (void)state;
    if (key != 'j' && key != 'h') {
        return ARGP_ERR_UNKNOWN;
    }
    *(key == 'j' ? &json_path : &hardware_path) = argument;
    return 0;
}

int main(int argc, char **argv)
{
    static const struct argp_option known[] = {
        {"hardware", 'h', "FILE", 0, "the machine to plan for", 0},
        {"json", 'j', "FILE", 0, "write the table as JSON too", 0},
        {0},
    };
    static const struct argp argp = {.options = known, .parser = parse};
    argp_parse(&argp, argc, argv, 0, NULL, NULL);
    json_t *rows = json_array();
    struct mf_hardware hardware = machine();
    if (hardware_path != NULL && read_hardware(hardware_path, &hardware) != MF_STATUS_OK) {
        fprintf(stderr, "bench-plan: %s\n", mf_status_text());
        return 1;
    }
    printf("| model | layers | device | strategy | solve s | tasks | step ms | bound ms |\n"
           "| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mf_model model;
        if (mf_model_from_preset(cases[i].preset, 0, &model) != MF_STATUS_OK) {
            fprintf(stderr, "bench-plan: %s\n", mf_status_text());
            return 1;
        }
        for (int strategy = 0; strategy < MF_STRATEGY_COUNT; strategy++) {
            struct mf_solve_request request = {
                .model = &model,
                .workload = {.micro_batch = 1, .seq_len = cases[i].seq_len, .accumulation = 1},
                .constraints = {.device_bytes = cases[i].device_bytes},
                .strategy = (enum mf_strategy)strategy,
                .hardware = &hardware,
            };
            bench(rows, &request);
        }
        mf_model_reset(&model);
    }
    int rc = json_path != NULL && json_dump_file(rows, json_path, JSON_INDENT(1)) != 0 ? 1 : 0;
    if (rc != 0) {
        fprintf(stderr, "bench-plan: cannot write %s\n", json_path);
    }
    json_decref(rows);
    return rc;
}
