/*
 * Predicted against measured: profiles a model on this device, plans it under budgets and
 * strategies, runs the plans and prints one line for each.
 *
 *     bench-step [--device cuda|host] [--steps N] [--json FILE] POINT...
 *
 * POINT is model:micro_batch:seq_len:budget:strategy, for example gpt2:8:512:1.5GiB:auto; several
 * strategies may be joined by commas. Weights are random; tokens are drawn from the vocabulary. The
 * first two steps are not counted. First it prints what lanes cost each other. Columns: predicted
 * and median measured step, its spread, the plan's bound, the compute lane's idle share (in one
 * traced step), the time the CPU needs to issue a step, planned and reserved device memory, tokens
 * a second, deferred blocks and updates made again.
 */
#include <argp.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/format.h"
#include "planner/cost.h"
#include "planner/simulate.h"
#include "planner/solve.h"
#include "profiler/measure.h"
#include "runtime/executor.h"
#include "runtime/weights.h"
#include "server/machine.h"

#define STEPS_MAX 200
#define WARM 2
#define MEASURE_SECONDS 0.15
#define CONTENTION_SECONDS 3

static struct {
    const char *device;
    const char *json;
    int steps;
    const char *spans;
    double clip_norm;
} options = {"cuda", NULL, 12, NULL, 1e6};

static const struct mf_device_interface *interface;
static struct mf_device *device;
static struct mf_hardware hardware;
static struct mf_profile profile;
static json_t *rows;

static void must(enum mf_status status, const char *what)
{
    if (status != MF_STATUS_OK) {
        fprintf(stderr, "bench-step: %s: %s\n", what, mf_status_text());
        exit(1);
    }
}

/* Times slower, each row's load beside each column's; then latencies in microseconds. */
static void print_contention(const struct mf_contention *found, double seconds)
{
    printf("lanes side by side: %s in %.2f s, a graph costs %.1f us\n%-12s",
           found->measured ? "measured" : "ASSUMED, not measured", seconds, found->graph_ns * 1e-3,
           "");
    for (int b = 0; b < MF_LOAD_COUNT; b++) {
        printf(" %12s", mf_contention_load_name((enum mf_load)b));
    }
    for (int a = 0; a < MF_LOAD_COUNT; a++) {
        printf("\n%-12s", mf_contention_load_name((enum mf_load)a));
        for (int b = 0; b < MF_LOAD_COUNT; b++) {
            printf(" %12.2f", found->slowdown[a][b]);
        }
    }
    printf("\n%-12s %12s %12s", "lane, us", "gap", "issue");
    for (int b = 0; b < MF_LANE_COUNT; b++) {
        printf(" %9s %s", "to", mf_kernel_lane_name((enum mf_lane)b));
    }
    for (int a = 0; a < MF_LANE_COUNT; a++) {
        printf("\n%-12s %12.2f %12.2f", mf_kernel_lane_name((enum mf_lane)a),
               found->gap_ns[a] * 1e-3, found->issue_ns[a] * 1e-3);
        for (int b = 0; b < MF_LANE_COUNT; b++) {
            printf(" %12.2f", found->handover_ns[a][b] * 1e-3);
        }
    }
    printf("\n\n");
}

static void measure_machine(void)
{
    must(mf_measure_hardware(interface, device, 2, &hardware, &profile), "rates");
    int64_t start_ns = mf_clock_ns();
    must(mf_measure_contention(interface, device, CONTENTION_SECONDS, &hardware.contention),
         "contention");
    print_contention(&hardware.contention, (double)(mf_clock_ns() - start_ns) * 1e-9);
}

static void open_device(void)
{
    const struct mf_device_options settings = {0};
    if (strcmp(options.device, "host") == 0) {
        interface = mf_device_host();
    } else {
        must(mf_device_cuda(&interface), "device");
    }
    must(interface->open(&settings, &device), "device");
    struct mf_hardware_device described;
    must(interface->describe(device, &described), "device");
    mf_machine_describe(&described, 0, &hardware);
    mf_profile_init(&profile);
    measure_machine();
}

static void measure_model(const struct mf_model *model, const struct mf_workload *workload)
{
    struct mf_signature *needs = NULL;
    struct mf_measure_scratch scratch = {0};
    int32_t count = 0;
    int32_t measured = 0;
    int64_t start_ns = mf_clock_ns();
    must(mf_measure_needs(model, workload, &needs, &count), "needs");
    for (int32_t i = 0; i < count; i++) {
        struct mf_measurement one;
        if (mf_profile_find(&profile, &needs[i]) == NULL &&
            mf_measure_one(interface, device, &scratch, &needs[i], MEASURE_SECONDS, &one) ==
                MF_STATUS_OK) {
            mf_profile_put(&profile, &one);
            measured++;
        }
    }
    mf_measure_release(interface, device, &scratch);
    free(needs);
    fprintf(stderr, "measured %d of %d kernels in %.1f s\n", measured, count,
            (double)(mf_clock_ns() - start_ns) * 1e-9);
}

static void init_weights(const struct mf_model *model, struct mf_executor *executor)
{
    for (int32_t i = 0; i < model->unit_count; i++) {
        const struct mf_unit *unit = &model->units[i];
        if (unit->owner != i) {
            continue;
        }
        float *master = calloc((size_t)unit->elements, sizeof(float));
        MF_ASSERT(master != NULL);
        for (int64_t at = 0; at < unit->elements; at++) { /* quick, and of the usual size */
            uint64_t bits = (uint64_t)at * UINT64_C(0x9e3779b97f4a7c15);
            master[at] = unit->kind == MF_UNIT_NORM
                             ? 1.0f
                             : (float)((double)(bits >> 40) * 0x1p-24 - 0.5) * 0.06f;
        }
        must(mf_executor_put_unit(executor, i, master, NULL, NULL), "weights");
        free(master);
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

struct outcome {
    double median_ms, spread_ms, stall, issue_ms;
    int redone; /* steps whose speculation failed, of all */
};

/* Every task of the traced step beside its prediction, for a spreadsheet: microseconds. */
static void write_spans(const struct mf_executor *executor, const struct mf_model *model,
                        const char *point, const char *strategy)
{
    const struct mf_step *ran = mf_executor_graph(executor);
    struct mf_step step = *ran;
    size_t count = (size_t)ran->task_count;
    struct mf_span *spans = calloc(count + 1, sizeof(*spans));
    struct mf_simulation simulation;
    char path[512];
    snprintf(path, sizeof(path), "%s/%s-%s.csv", options.spans, point, strategy);
    step.tasks = calloc(count + 1, sizeof(*step.tasks));
    FILE *file = fopen(path, "w");
    MF_ASSERT(spans != NULL && step.tasks != NULL);
    if (file == NULL) {
        fprintf(stderr, "bench-step: %s cannot be written\n", path);
        exit(1);
    }
    memcpy(step.tasks, ran->tasks, count * sizeof(*step.tasks));
    (void)mf_cost_fill(&hardware, &profile, &step);
    mf_simulate(&step, &hardware.contention, &simulation, spans);
    fprintf(file, "task,lane,kernel,phase,unit,panel,pending,speculative,expected,predicted_start,"
                  "predicted_end,start,end,on_compute,on_h2d,on_d2h,on_cpu\n");
    int64_t first = INT64_MAX;
    struct mf_device_span found;
    for (int32_t i = 0; i < step.task_count; i++) {
        if (mf_executor_span(executor, i, &found)) {
            first = found.start_ns < first ? found.start_ns : first;
        }
    }
    for (int32_t i = 0; i < step.task_count; i++) {
        const struct mf_task *task = &step.tasks[i];
        bool there = mf_executor_span(executor, i, &found);
        fprintf(file, "%d,%s,%s,%s,%s,%d,%d,%d,%.1f,%.1f,%.1f,%.1f,%.1f,%d,%d,%d,%d\n", i,
                mf_kernel_lane_name(task->lane), mf_kernel_name(task->kernel),
                mf_step_phase_name(task->phase),
                task->unit >= 0 ? model->units[task->unit].name : "", task->panel, task->pending,
                task->speculative, task->expected_ns * 1e-3, spans[i].start_ns * 1e-3,
                spans[i].end_ns * 1e-3, there ? (double)(found.start_ns - first) * 1e-3 : -1.0,
                there ? (double)(found.end_ns - first) * 1e-3 : -1.0, task->depends[0],
                task->depends[1], task->depends[2], task->depends[3]);
    }
    fclose(file);
    free(step.tasks);
    free(spans);
}

static void run_steps(const struct mf_model *model, const struct mf_plan *plan,
                      struct mf_executor *executor, struct outcome *out)
{
    const struct mf_adam adam = {.learning_rate = 1e-4,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .eps = 1e-8,
                                 .clip_norm = options.clip_norm};
    double ms[STEPS_MAX];
    size_t ids = (size_t)(mf_workload_rows(&plan->workload) * plan->workload.accumulation);
    int32_t *tokens = malloc(ids * sizeof(int32_t));
    MF_ASSERT(tokens != NULL);
    for (size_t i = 0; i < ids; i++) {
        tokens[i] = (int32_t)((i * UINT64_C(2654435761)) % (uint64_t)model->vocab);
    }
    for (int step = 0; step < options.steps + WARM + 1; step++) {
        struct mf_update_result update;
        bool traced = step == options.steps + WARM; /* the last, not counted */
        mf_executor_set_trace(executor, traced);
        must(mf_executor_run(executor, tokens, tokens, &adam, &update), "step");
        const struct mf_executor_timing *timing = mf_executor_timing(executor);
        out->redone += update.redone;
        if (traced) {
            out->stall = timing->stall;
        } else if (step >= WARM) {
            ms[step - WARM] = (double)timing->wall_ns * 1e-6;
            out->issue_ms = (double)timing->issue_ns * 1e-6;
        }
    }
    size_t count = (size_t)options.steps;
    qsort(ms, count, sizeof(double), compare);
    out->median_ms = ms[count / 2];
    out->spread_ms = ms[count * 3 / 4] - ms[count / 4];
    free(tokens);
}

static void print(const char *point, const char *strategy, const struct mf_plan *plan,
                  const struct outcome *found, int64_t reserved)
{
    const struct mf_plan_prediction *prediction = &plan->prediction;
    double predicted_ms = prediction->step_ns * 1e-6;
    double error = predicted_ms / found->median_ms - 1;
    double tokens = (double)(mf_workload_rows(&plan->workload) * plan->workload.accumulation);
    printf("%-34s %-12s %9.2f %9.2f %+6.1f%% %7.2f %9.2f %5.1f%% %7.2f %8.2f%s %9.0f %3d%s %d\n",
           point, strategy, predicted_ms, found->median_ms, 100 * error, found->spread_ms,
           prediction->bound_ns * 1e-6, 100 * found->stall, found->issue_ms,
           (double)prediction->device_peak_bytes / 0x1p30,
           reserved == prediction->device_peak_bytes ? "=" : "!", tokens / found->median_ms * 1e3,
           plan->deferred_blocks, plan->speculate ? "+" : " ", found->redone);
    fflush(stdout);
    json_array_append_new(
        rows,
        json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:f}", "point", point,
                  "strategy", strategy, "predicted_ms", predicted_ms, "measured_ms",
                  found->median_ms, "spread_ms", found->spread_ms, "error", error, "bound_ms",
                  prediction->bound_ns * 1e-6, "stall", found->stall, "issue_ms", found->issue_ms,
                  "planned_device_bytes", (json_int_t)prediction->device_peak_bytes,
                  "reserved_device_bytes", (json_int_t)reserved, "tokens_per_second",
                  tokens / found->median_ms * 1e3));
}

static void run_strategy(const char *point, const char *name, const struct mf_model *model,
                         const struct mf_workload *workload, int64_t budget)
{
    int strategy = mf_plan_parse_strategy(name);
    struct mf_plan plan;
    struct mf_executor *executor = NULL;
    struct outcome found = {0};
    if (strategy < 0) {
        fprintf(stderr, "bench-step: no strategy \"%s\"\n", name);
        exit(2);
    }
    const struct mf_solve_request request = {
        .model = model,
        .workload = *workload,
        .constraints = {.device_bytes = budget},
        .strategy = (enum mf_strategy)strategy,
        .hardware = &hardware,
        .profile = &profile,
    };
    if (mf_solve(&request, &plan) != MF_STATUS_OK) {
        printf("%-34s %-12s %s\n", point, name, mf_status_text());
        return;
    }
    if (mf_executor_open(interface, device, model, &plan, NULL, NULL, &executor) != MF_STATUS_OK) {
        printf("%-34s %-12s %s\n", point, name, mf_status_text());
    } else {
        init_weights(model, executor);
        run_steps(model, &plan, executor, &found);
        if (options.spans != NULL) {
            write_spans(executor, model, point, name);
        }
        print(point, name, &plan, &found, interface->reserved_bytes(device));
        mf_executor_close(executor);
    }
    mf_plan_reset(&plan);
}

static void run_point(char *text)
{
    char *rest = NULL;
    char *point = strdup(text);
    char *parts[5];
    int64_t budget = 0;
    struct mf_model model;
    MF_ASSERT(point != NULL);
    for (int i = 0; i < 5; i++) {
        parts[i] = strtok_r(i == 0 ? point : NULL, ":", &rest);
        if (parts[i] == NULL) {
            fprintf(stderr, "bench-step: %s is not model:micro_batch:seq_len:budget:strategy\n",
                    text);
            exit(2);
        }
    }
    must(mf_format_parse_bytes(parts[3], &budget), text);
    must(mf_model_from_preset(parts[0], 0, &model), text);
    const struct mf_workload workload = {.micro_batch = (int32_t)strtol(parts[1], NULL, 10),
                                         .seq_len = (int32_t)strtol(parts[2], NULL, 10),
                                         .accumulation = 1,
                                         .clip = true};
    must(mf_workload_validate(&workload), text);
    measure_model(&model, &workload);
    *strrchr(text, ':') = '\0';
    for (char *name = strtok_r(parts[4], ",", &rest); name != NULL;
         name = strtok_r(NULL, ",", &rest)) {
        run_strategy(text, name, &model, &workload, budget);
    }
    mf_model_reset(&model);
    free(point);
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    switch (key) {
    case 'd':
        options.device = argument;
        return 0;
    case 'j':
        options.json = argument;
        return 0;
    case 's':
        options.spans = argument;
        return 0;
    case 'c':
        options.clip_norm = strtod(argument, NULL);
        return 0;
    case 'n':
        options.steps = (int)strtol(argument, NULL, 10);
        if (options.steps < 1 || options.steps > STEPS_MAX) {
            argp_error(state, "--steps must be from 1 to %d", STEPS_MAX);
        }
        return 0;
    case ARGP_KEY_ARGS:
        *(int *)state->input = state->next;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static const struct argp_option flags[] = {
        {"device", 'd', "cuda|host", 0, "default cuda", 0},
        {"json", 'j', "FILE", 0, "write the table as JSON too", 0},
        {"steps", 'n', "N", 0, "counted steps of each point (default 12)", 0},
        {"spans", 's', "DIR", 0, "write every task of a traced step, predicted and measured", 0},
        {"clip", 'c', "NORM", 0, "clip by this norm (default 1e6: it is computed, nothing clipped)",
         0},
        {0},
    };
    static const struct argp argp = {.options = flags,
                                     .parser = parse,
                                     .args_doc = "MODEL:MICRO_BATCH:SEQ_LEN:BUDGET:STRATEGY...",
                                     .doc = "Predicted against measured step times."};
    int first = argc;
    argp_parse(&argp, argc, argv, 0, NULL, &first);
    rows = json_array();
    open_device();
    printf("%-34s %-12s %9s %9s %7s %7s %9s %6s %7s %9s %9s %s\n", "model:micro:seq:budget",
           "strategy", "plan ms", "step ms", "error", "+-", "bound", "idle", "issue", "GiB",
           "tokens/s", "deferred (+ = speculates), redone");
    for (int i = first; i < argc; i++) {
        run_point(argv[i]);
    }
    if (options.json != NULL && json_dump_file(rows, options.json, JSON_INDENT(1)) != 0) {
        fprintf(stderr, "bench-step: cannot write %s\n", options.json);
        return 1;
    }
    json_decref(rows);
    mf_profile_reset(&profile);
    interface->close(device);
    return 0;
}
