/*
 * How fast the device's kernels are: matrix products, attention, copies, and one Llama-3-8B block
 * forward and backward through the executor, as medians of the device's own spans.
 *   bench-ops [--device cuda|host] [--small]
 * bench/ops.py prints PyTorch's numbers for the same shapes; bench/ops.sh runs both.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/model.h"
#include "core/plan.h"
#include "runtime/executor.h"
#include "runtime/host/bf16.h"
#include "runtime/weights.h"

#define REPEATS 24
#define WARM 8 /* of these, not counted */
#define ARENA_BYTES (6ll << 30)
#define PINNED_BYTES (1ll << 30)
#define FILLED_BYTES (256ll << 20)

#define CHECK(call) check((call), #call)

static const struct mf_device_interface *interface;
static struct mf_device *device;
static char *arena;
static char *pinned;

static void check(enum mf_status status, const char *what)
{
    if (status != MF_STATUS_OK) {
        fprintf(stderr, "ops: %s: %s\n", what, mf_status_text());
        exit(1);
    }
}

static int compare_numbers(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a;
    int64_t right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

static double median_ms(int64_t *ns, int count)
{
    qsort(ns, (size_t)count, sizeof(*ns), compare_numbers);
    return (double)ns[count / 2] / 1e6;
}

/* The median of one call's spans, back to back. */
static double time_call(enum mf_lane lane, const struct mf_kernel_call *call)
{
    int64_t ns[REPEATS];
    CHECK(interface->begin(device, true));
    for (int32_t task = 0; task < REPEATS; task++) {
        CHECK(interface->submit(device, lane, call, task));
    }
    CHECK(interface->sync(device));
    for (int32_t task = WARM; task < REPEATS; task++) {
        struct mf_device_span span;
        if (!interface->span(device, task, &span)) {
            exit(1);
        }
        ns[task - WARM] = span.end_ns - span.start_ns;
    }
    return median_ms(ns, REPEATS - WARM);
}

/* Random values of the size of activations all over the arena: zeros run faster than they should.
 */
static void fill_arena(void)
{
    uint16_t *values = (uint16_t *)(void *)pinned;
    uint64_t state = 88172645463325252u;
    for (int64_t at = 0; at < FILLED_BYTES / 2; at++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        values[at] = mf_bf16_from_float((float)(state >> 40) / 16777216.0f - 0.5f);
    }
    for (int64_t done = 0; done < ARENA_BYTES; done += FILLED_BYTES) {
        struct mf_kernel_call copy = {.kernel = MF_KERNEL_COPY, .shape = {.n = FILLED_BYTES}};
        copy.operands[0].pointer = pinned;
        copy.operands[1].pointer = arena + done;
        CHECK(interface->begin(device, false));
        CHECK(interface->submit(device, MF_LANE_H2D, &copy, 0));
        CHECK(interface->sync(device));
    }
}

static void place(struct mf_kernel_call *call, int index, int64_t *at, int64_t rows, int64_t width,
                  int64_t element)
{
    call->operands[index] = (struct mf_operand){arena + *at, width};
    *at += (rows * width * element + 255) / 256 * 256;
    if (*at > ARENA_BYTES) {
        fprintf(stderr, "ops: the arena is too small\n");
        exit(1);
    }
}

static void report(const char *what, double ms, double flops)
{
    printf("%-44s %9.4f ms %8.1f TFLOP/s\n", what, ms, flops / ms / 1e9);
}

static void time_linear(int64_t rows, int64_t n, int64_t k)
{
    static const enum mf_kernel kernels[] = {
        MF_KERNEL_LINEAR_FORWARD, MF_KERNEL_LINEAR_BACKWARD_DATA, MF_KERNEL_LINEAR_BACKWARD_DATA,
        MF_KERNEL_LINEAR_BACKWARD_WEIGHT};
    static const uint32_t flags[] = {0, MF_SHAPE_FIRST_PANEL | MF_SHAPE_LAST_PANEL, 0, 0};
    for (int index = 0; index < 4; index++) {
        struct mf_kernel_call call = {
            .kernel = kernels[index],
            .shape = {.rows = rows, .n = n, .k = k, .flags = flags[index]},
        };
        int64_t at = 0;
        bool data = kernels[index] == MF_KERNEL_LINEAR_BACKWARD_DATA;
        bool weight = kernels[index] == MF_KERNEL_LINEAR_BACKWARD_WEIGHT;
        place(&call, 0, &at, rows, data ? n : k, 2);
        place(&call, 1, &at, weight ? rows : n, weight ? n : k, 2);
        if (data) {
            place(&call, 2, &at, rows, k, 4);
            place(&call, 3, &at, rows, k, 2);
        } else {
            place(&call, 2, &at, weight ? n : rows, weight ? k : n, 2);
        }
        char what[80];
        snprintf(what, sizeof(what), "%s%s %lldx%lldx%lld", mf_kernel_name(kernels[index]),
                 index == 2 ? " (fp32 sum)" : "", (long long)rows, (long long)n, (long long)k);
        report(what, time_call(MF_LANE_COMPUTE, &call), 2.0 * (double)rows * (double)(n * k));
    }
}

static void time_attention(int64_t rows, int32_t seq_len)
{
    struct mf_kernel_call call = {
        .shape = {.rows = rows, .seq_len = seq_len, .heads = 32, .kv_heads = 8, .head_dim = 128}};
    int64_t at = 0;
    for (int index = 0; index < 9; index++) {
        bool narrow = index == 1 || index == 2 || index == 7 || index == 8;
        place(&call, index, &at, rows, index == 4 ? 32 : narrow ? 1024 : 4096, index == 4 ? 4 : 2);
    }
    double flops = 4.0 * (double)rows * (double)seq_len / 2 * 4096;
    char what[80];
    call.kernel = MF_KERNEL_ATTENTION_FORWARD;
    snprintf(what, sizeof(what), "attention forward %lld x %d", (long long)rows / seq_len, seq_len);
    report(what, time_call(MF_LANE_COMPUTE, &call), flops);
    call.kernel = MF_KERNEL_ATTENTION_BACKWARD;
    snprintf(what, sizeof(what), "attention backward %lld x %d", (long long)rows / seq_len,
             seq_len);
    report(what, time_call(MF_LANE_COMPUTE, &call), 2.5 * flops);
}

static void time_copies(void)
{
    static const int64_t sizes[] = {64 << 10, 1 << 20, 8 << 20, 64 << 20, 512 << 20};
    for (int index = 0; index < 10; index++) {
        bool in = index % 2 == 0;
        int64_t bytes = sizes[index / 2];
        struct mf_kernel_call call = {.kernel = MF_KERNEL_COPY, .shape = {.n = bytes}};
        call.operands[0].pointer = in ? pinned : arena;
        call.operands[1].pointer = in ? arena : pinned;
        double ms = time_call(in ? MF_LANE_H2D : MF_LANE_D2H, &call);
        printf("%-34s %5lld KiB %9.4f ms %8.1f GB/s\n", in ? "copy to the device" : "copy back",
               (long long)bytes >> 10, ms, (double)bytes / ms / 1e6);
    }
}

/* ---- a block through the executor ---- */

static const char block_config[] =
    "{\"model_type\": \"llama\", \"hidden_act\": \"silu\", \"hidden_size\": 4096,"
    " \"intermediate_size\": 14336, \"num_hidden_layers\": 1, \"num_attention_heads\": 32,"
    " \"num_key_value_heads\": 8, \"vocab_size\": 1024, \"max_position_embeddings\": 8192,"
    " \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000.0, \"tie_word_embeddings\": false,"
    " \"initializer_range\": 0.02, \"attention_bias\": false, \"mlp_bias\": false}";

static void init_weights(struct mf_executor *executor, const struct mf_model *model)
{
    for (int32_t i = 0; i < model->unit_count; i++) {
        const struct mf_unit *unit = &model->units[i];
        float *master = calloc((size_t)unit->elements, sizeof(float));
        mf_weights_init_unit(model, i, 7, master);
        CHECK(mf_executor_put_unit(executor, i, master, NULL, NULL));
        free(master);
    }
}

/* Sums of spans of the transformer block's tasks, by phase and by kernel. */
static void read_spans(const struct mf_executor *executor, double phase_ms[2],
                       double kernel_ms[MF_KERNEL_COUNT])
{
    const struct mf_step *step = mf_executor_graph(executor);
    for (int32_t i = 0; i < step->task_count; i++) {
        const struct mf_task *task = &step->tasks[i];
        struct mf_device_span span;
        if (task->block != 1 || task->lane != MF_LANE_COMPUTE ||
            !mf_executor_span(executor, i, &span)) {
            continue;
        }
        double ms = (double)(span.end_ns - span.start_ns) / 1e6;
        phase_ms[task->phase == MF_PHASE_FORWARD ? 0 : 1] += ms;
        kernel_ms[task->kernel] += ms;
    }
}

#define BLOCK_RUNS 8
static void time_block(int32_t micro_batch, int32_t seq_len, int64_t panel_bytes)
{
    struct mf_model model;
    struct mf_plan plan;
    struct mf_executor *executor;
    struct mf_workload workload = {
        .micro_batch = micro_batch, .seq_len = seq_len, .accumulation = 1};
    json_t *config = json_loads(block_config, 0, NULL);
    CHECK(mf_model_from_config(config, "block", panel_bytes, &model));
    json_decref(config);
    mf_plan_init(&model, &workload, &plan);
    CHECK(mf_executor_open(interface, device, &model, &plan, NULL, NULL, &executor));
    init_weights(executor, &model);
    int32_t *tokens = malloc((size_t)mf_workload_rows(&workload) * sizeof(int32_t));
    for (int64_t i = 0; i < mf_workload_rows(&workload); i++) {
        tokens[i] = (int32_t)(i * 7919 % 1024);
    }
    mf_executor_set_trace(executor, true);
    int64_t forward_ns[BLOCK_RUNS];
    int64_t backward_ns[BLOCK_RUNS];
    double kernel_ms[MF_KERNEL_COUNT] = {0};
    for (int run = 0; run < BLOCK_RUNS; run++) {
        struct mf_micro_result micro;
        double phase_ms[2] = {0};
        memset(kernel_ms, 0, sizeof(kernel_ms));
        mf_executor_discard(executor);
        CHECK(mf_executor_forward_backward(executor, tokens, tokens, NULL, &micro, NULL));
        read_spans(executor, phase_ms, kernel_ms);
        forward_ns[run] = (int64_t)(phase_ms[0] * 1e6);
        backward_ns[run] = (int64_t)(phase_ms[1] * 1e6);
    }
    double forward = median_ms(forward_ns, BLOCK_RUNS);
    double backward = median_ms(backward_ns, BLOCK_RUNS);
    printf("block %d x %d, panels of %lld MiB: forward %.2f ms, backward %.2f ms, both %.2f ms\n",
           micro_batch, seq_len, (long long)(panel_bytes >> 20), forward, backward,
           forward + backward);
    for (int kernel = 0; kernel < MF_KERNEL_COUNT; kernel++) {
        if (kernel_ms[kernel] > 0.02) {
            printf("  %-32s %8.3f ms\n", mf_kernel_name((enum mf_kernel)kernel), kernel_ms[kernel]);
        }
    }
    mf_executor_close(executor);
    mf_plan_reset(&plan);
    mf_model_reset(&model);
    free(tokens);
}

int main(int argc, char **argv)
{
    bool small = false;
    bool host = false;
    for (int i = 1; i < argc; i++) {
        small = small || strcmp(argv[i], "--small") == 0;
        host = host || strcmp(argv[i], "host") == 0;
    }
    if (host) {
        interface = mf_device_host();
    } else {
        CHECK(mf_device_cuda(&interface));
    }
    const struct mf_device_options options = {0};
    CHECK(interface->open(&options, &device));
    CHECK(interface->prepare(device, REPEATS));
    CHECK(interface->reserve(device, ARENA_BYTES, (void **)&arena));
    CHECK(interface->map_host(device, PINNED_BYTES, NULL, NULL, (void **)&pinned));
    fill_arena();
    if (small) {
        time_linear(256, 512, 512);
        return 0;
    }
    time_copies();
    time_linear(8192, 4096, 4096);
    time_linear(8192, 1024, 4096);
    time_linear(8192, 256, 14336);
    time_attention(8192, 1024);
    time_attention(8192, 4096);
    interface->release(device, arena);
    time_block(8, 1024, 8ll << 20);
    time_block(8, 1024, 32ll << 20);
    time_block(8, 1024, 128ll << 20);
    time_block(2, 4096, 128ll << 20);
    interface->close(device);
    return 0;
}
