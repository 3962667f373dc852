/* The host device under the contract of runtime/device.h: memory caps, lanes and events, errors,
 * spans, jitter, emulated links; and what is said where there is no CUDA module. */
#define HARNESS_TIMEOUT_S 120
#include "harness.h"

#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device.h"
#include "runtime/host/lanes.h"
#include "runtime/host/memory.h"

#define MIB (1ll << 20)

static const struct mf_device_interface *host;

static struct mf_device *open_with(struct mf_device_options options)
{
    struct mf_device *device;
    options.threads = options.threads != 0 ? options.threads : 2;
    assert_ok(host->open(&options, &device));
    return device;
}

static struct mf_kernel_call copy_call(void *from, void *to, int64_t bytes)
{
    struct mf_kernel_call call = {.kernel = MF_KERNEL_COPY, .shape = {.n = bytes}};
    call.operands[0].pointer = from;
    call.operands[1].pointer = to;
    return call;
}

/* y = a + b over `n` elements in one row. */
static struct mf_kernel_call add_call(uint16_t *a, uint16_t *b, uint16_t *y, int64_t n)
{
    struct mf_kernel_call call = {.kernel = MF_KERNEL_ADD_FORWARD, .shape = {.rows = 1, .n = n}};
    call.operands[0] = (struct mf_operand){a, n};
    call.operands[1] = (struct mf_operand){b, n};
    call.operands[2] = (struct mf_operand){y, n};
    return call;
}

/* ---- memory ---- */

static int64_t number(const char *name)
{
    const struct mf_error *error = mf_status_error();
    for (size_t index = 0; index < error->number_count; index++) {
        if (strcmp(error->numbers[index].name, name) == 0) {
            return error->numbers[index].value;
        }
    }
    return -1;
}

static void test_reserve(void **state)
{
    (void)state;
    struct mf_device *device = open_with((struct mf_device_options){.memory_bytes = 8 * MIB});
    unsigned char *first;
    unsigned char *second;
    void *third = &first;
    assert_ok(host->reserve(device, 5 * MIB - 100, (void **)&first));
    assert_ok(host->reserve(device, 3 * MIB, (void **)&second));
    assert_int_equal((uintptr_t)first % 256, 0);
    for (int64_t at = 0; at < 5 * MIB - 100; at++) {
        assert_int_equal(first[at], 0);
    }
    assert_int_equal(host->reserved_bytes(device), 8 * MIB);
    assert_fails(host->reserve(device, 1, &third), MF_STATUS_NO_DEVICE_MEMORY, "memory cap");
    assert_null(third);
    assert_string_equal(mf_status_error()->reason, "DEVICE_MEMORY_TOO_SMALL");
    host->release(device, second);
    assert_status(host->reserve(device, 3 * MIB + 1, &third), MF_STATUS_NO_DEVICE_MEMORY);
    assert_int_equal(number("needed_bytes"), 3 * MIB + 1);
    assert_int_equal(number("available_bytes"), 3 * MIB);
    assert_int_equal(host->reserved_bytes(device), 5 * MIB);
    assert_ok(host->reserve(device, 3 * MIB, &third));
    host->close(device);
}

struct pinning {
    int64_t done;
    int64_t total;
    int64_t limit; /* gives up there */
    int calls;
};

static bool see_pinning(void *context, int64_t done, int64_t total)
{
    struct pinning *pinning = context;
    assert_true(done > pinning->done && done <= total);
    pinning->done = done;
    pinning->total = total;
    pinning->calls++;
    return done < pinning->limit;
}

static void test_map_host(void **state)
{
    (void)state;
    struct mf_device *device = open_with((struct mf_device_options){.memory_bytes = 1 * MIB});
    struct mf_host_memory_limits limits;
    struct pinning pinning = {.limit = INT64_MAX};
    unsigned char *memory;
    void *none;
    assert_ok(host->map_host(device, 150 * MIB, see_pinning, &pinning, (void **)&memory));
    assert_int_equal((uintptr_t)memory % 4096, 0);
    assert_int_equal(pinning.done, 150 * MIB);
    assert_int_equal(pinning.total, 150 * MIB);
    assert_true(pinning.calls >= 3);
    assert_int_equal(memory[150 * MIB - 1], 0);
    assert_ptr_equal(host->device_address(device, memory + 5), memory + 5);
    assert_int_equal(host->reserved_bytes(device), 0);
    host->unmap_host(device, memory);
    pinning = (struct pinning){.limit = 1};
    assert_status(host->map_host(device, 150 * MIB, see_pinning, &pinning, &none),
                  MF_STATUS_CANCELLED);
    assert_int_equal(pinning.calls, 1);
    mf_host_memory_limits(&limits);
    assert_true(limits.total_bytes > 0 && limits.available_bytes <= limits.total_bytes);
    assert_fails(host->map_host(device, limits.total_bytes + MIB, NULL, NULL, &none),
                 MF_STATUS_NO_MEMORY, "pinned");
    assert_true(number("available_bytes") > 0);
    host->close(device);
}

static void test_pin_limit(void **state)
{
    (void)state;
    struct mf_device *device;
    struct mf_device_options options = {.memory_bytes = 1 * MIB, .threads = 1};
    void *memory;
    void *none;
    assert_int_equal(setenv("MEMFERRY_PIN_LIMIT", "plenty", 1), 0);
    assert_fails(host->open(&options, &device), MF_STATUS_INVALID, "MEMFERRY_PIN_LIMIT");
    assert_int_equal(setenv("MEMFERRY_PIN_LIMIT", "10MiB", 1), 0);
    assert_ok(host->open(&options, &device));
    assert_ok(host->map_host(device, 4 * MIB, NULL, NULL, &memory));
    assert_fails(host->map_host(device, 6 * MIB + 1, NULL, NULL, &none), MF_STATUS_NO_MEMORY,
                 "pinned");
    assert_string_equal(mf_status_error()->reason, "PINNED_MEMORY_LIMIT");
    assert_int_equal(number("needed_bytes"), 6 * MIB + 1);
    assert_int_equal(number("available_bytes"), 6 * MIB);
    host->unmap_host(device, memory);
    assert_ok(host->map_host(device, 10 * MIB, NULL, NULL, &memory));
    host->close(device);
    assert_int_equal(unsetenv("MEMFERRY_PIN_LIMIT"), 0);
}

static void test_describe(void **state)
{
    (void)state;
    struct mf_hardware_device text;
    struct mf_host_memory_limits limits;
    struct mf_device *device = open_with((struct mf_device_options){.threads = 3});
    assert_ok(host->describe(device, &text));
    assert_string_equal(text.kind, "host");
    assert_non_null(strstr(text.name, "3 threads"));
    assert_non_null(strstr(text.runtime, "OpenBLAS"));
    mf_host_memory_limits(&limits);
    assert_int_equal(text.memory_bytes, limits.total_bytes / 2);
    assert_false(text.link_emulated);
    assert_true(text.h2d_bytes_per_s == 0);
    host->close(device);
    device = open_with((struct mf_device_options){.memory_bytes = MIB, .d2h_bytes_per_s = 1e9});
    assert_ok(host->describe(device, &text));
    assert_true(text.link_emulated);
    assert_true(text.d2h_bytes_per_s == 1e9);
    assert_int_equal(text.memory_bytes, MIB);
    host->close(device);
    struct mf_device_options bad = {.memory_bytes = -1};
    assert_status(host->open(&bad, &device), MF_STATUS_INVALID);
}

/* ---- lanes ---- */

#define CHAIN 200
#define CHAIN_BYTES 4096

/*
 * A value goes round: compute adds one to it in `a`, D2H copies it to `b`, H2D copies it to `a`.
 * Every step depends on the one before on another lane, so a lost wait or a broken order shows.
 */
static void queue_chain(struct mf_device *device, uint16_t *a, uint16_t *b, uint16_t *one)
{
    static const enum mf_lane lanes[3] = {MF_LANE_COMPUTE, MF_LANE_D2H, MF_LANE_H2D};
    int64_t n = CHAIN_BYTES / 2;
    for (int32_t task = 0; task < 3 * CHAIN; task++) {
        struct mf_kernel_call calls[3] = {add_call(a, one, a, n), copy_call(a, b, CHAIN_BYTES),
                                          copy_call(b, a, CHAIN_BYTES)};
        enum mf_lane lane = lanes[task % 3];
        if (task > 0) {
            assert_ok(host->wait(device, lane, task - 1));
        }
        assert_ok(host->submit(device, lane, &calls[task % 3], task));
        assert_ok(host->record(device, lane, task));
    }
}

static void check_chain(struct mf_device_options options)
{
    struct mf_device *device = open_with(options);
    uint16_t *memory;
    assert_ok(host->reserve(device, 3 * CHAIN_BYTES, (void **)&memory));
    uint16_t *a = memory;
    uint16_t *b = a + CHAIN_BYTES / 2;
    uint16_t *one = b + CHAIN_BYTES / 2;
    assert_ok(host->prepare(device, 3 * CHAIN));
    for (int graph = 0; graph < 3; graph++) {
        for (int64_t at = 0; at < CHAIN_BYTES / 2; at++) {
            a[at] = 0;
            b[at] = 0;
            one[at] = 0x3f80; /* 1 in bf16, which counts exactly up to 256 */
        }
        assert_ok(host->begin(device, graph == 1));
        queue_chain(device, a, b, one);
        assert_ok(host->sync(device));
        for (int64_t at = 0; at < CHAIN_BYTES / 2; at++) {
            assert_int_equal(a[at], 0x4348); /* 200 */
        }
        struct mf_device_span span = {0};
        struct mf_device_span last = {0};
        for (int32_t task = 0; task < 3 * CHAIN; task++) {
            assert_int_equal(host->span(device, task, &span), graph == 1);
            if (graph == 1) {
                assert_true(span.start_ns >= last.end_ns && span.end_ns >= span.start_ns);
                last = span;
            }
        }
    }
    host->close(device);
}

static void test_events(void **state)
{
    (void)state;
    check_chain((struct mf_device_options){.memory_bytes = MIB});
    check_chain(
        (struct mf_device_options){.memory_bytes = MIB, .jitter_seed = 7, .jitter_ns_max = 50000});
}

/* A wait for an event of the graph before must be refused, not met by the old mark. */
static void test_generations(void **state)
{
    (void)state;
    struct mf_device *device = open_with((struct mf_device_options){.memory_bytes = MIB});
    assert_status(host->record(device, MF_LANE_CPU, 0), MF_STATUS_INVALID); /* not prepared */
    assert_ok(host->prepare(device, 4));
    assert_ok(host->prepare(device, 2)); /* keeps the larger */
    assert_ok(host->begin(device, false));
    assert_ok(host->record(device, MF_LANE_COMPUTE, 3));
    assert_ok(host->wait(device, MF_LANE_CPU, 3));
    assert_ok(host->sync(device));
    assert_ok(host->begin(device, false));
    assert_fails(host->wait(device, MF_LANE_CPU, 3), MF_STATUS_INVALID, "not recorded");
    assert_status(host->wait(device, MF_LANE_CPU, 4), MF_STATUS_INVALID);
    assert_status(host->prepare(device, 0), MF_STATUS_INVALID);
    struct mf_kernel_call call = copy_call(NULL, NULL, 0);
    assert_fails(host->submit(device, MF_LANE_CPU, &call, 0), MF_STATUS_INVALID, "copy");
    call.kernel = MF_KERNEL_LINEAR_FORWARD;
    assert_fails(host->submit(device, MF_LANE_H2D, &call, 0), MF_STATUS_INVALID, "h2d");
    assert_ok(host->sync(device));
    /* More marks than a queue has room for: the caller waits, nothing is lost. */
    for (int turn = 0; turn < 1000; turn++) {
        assert_ok(host->record(device, MF_LANE_COMPUTE, turn % 4));
    }
    assert_ok(host->sync(device));
    host->close(device);
}

/* The first failure wins, names its task, and nothing behind it runs. */
static void test_errors(void **state)
{
    (void)state;
    struct mf_device *device = open_with((struct mf_device_options){.memory_bytes = MIB});
    uint16_t values[8] = {0};
    uint16_t ones[8] = {0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x3f80};
    struct mf_kernel_call add = add_call(values, ones, values, 8);
    struct mf_kernel_call copy = copy_call(ones, values, 16);
    struct mf_kernel_call huge = {.kernel = MF_KERNEL_LINEAR_FORWARD,
                                  .shape = {.rows = 1ll << 40, .n = 1, .k = 1 << 10}};
    assert_ok(host->prepare(device, 8));
    assert_ok(host->begin(device, true));
    assert_ok(host->submit(device, MF_LANE_COMPUTE, &add, 0));
    assert_ok(host->submit(device, MF_LANE_COMPUTE, &huge, 5));
    assert_ok(host->record(device, MF_LANE_COMPUTE, 5));
    assert_ok(host->submit(device, MF_LANE_COMPUTE, &add, 1));
    assert_ok(host->submit(device, MF_LANE_COMPUTE, &huge, 6));
    assert_ok(host->wait(device, MF_LANE_H2D, 5));
    assert_ok(host->submit(device, MF_LANE_H2D, &copy, 7));
    assert_fails(host->sync(device), MF_STATUS_NO_MEMORY, "linear_forward (task 5, compute lane)");
    assert_fails(host->sync(device), MF_STATUS_NO_MEMORY, "task 5"); /* until the next begin */
    assert_int_equal(values[0], 0x3f80);
    struct mf_device_span span;
    assert_true(host->span(device, 0, &span));
    assert_false(host->span(device, 1, &span));
    assert_false(host->span(device, 5, &span));
    assert_ok(host->begin(device, false));
    assert_ok(host->submit(device, MF_LANE_COMPUTE, &add, 1));
    assert_ok(host->sync(device));
    assert_int_equal(values[7], 0x4000);
    host->close(device);
}

/* Closing with work still queued drops it. */
static void test_close_busy(void **state)
{
    (void)state;
    struct mf_device *device =
        open_with((struct mf_device_options){.memory_bytes = 8 * MIB, .h2d_bytes_per_s = 1e8});
    unsigned char *memory;
    assert_ok(host->reserve(device, 2 * MIB, (void **)&memory));
    assert_ok(host->prepare(device, 1000));
    assert_ok(host->begin(device, false));
    struct mf_kernel_call copy = copy_call(memory, memory + MIB, MIB);
    for (int32_t task = 0; task < 1000; task++) {
        assert_ok(host->submit(device, MF_LANE_H2D, &copy, task));
    }
    assert_ok(host->record(device, MF_LANE_H2D, 0));
    assert_ok(host->wait(device, MF_LANE_COMPUTE, 0));
    assert_status(host->begin(device, false), MF_STATUS_BUSY);
    host->close(device); /* a thousand copies would take ten seconds */
}

/* ---- emulated links ---- */

static void test_link(void **state)
{
    (void)state;
    struct mf_device *device = open_with((struct mf_device_options){
        .memory_bytes = 16 * MIB, .h2d_bytes_per_s = 1e9, .d2h_bytes_per_s = 5e8});
    unsigned char *memory;
    struct mf_device_span span[3];
    assert_ok(host->reserve(device, 8 * MIB, (void **)&memory));
    assert_ok(host->prepare(device, 3));
    assert_ok(host->begin(device, true));
    struct mf_kernel_call copy = copy_call(memory, memory + 4 * MIB, 4 * MIB);
    struct mf_kernel_call back = copy_call(memory + 4 * MIB, memory, 4 * MIB);
    struct mf_kernel_call direct = {
        .kernel = MF_KERNEL_LINEAR_FORWARD,
        .shape = {.rows = 2, .n = 1000, .k = 1000, .flags = MF_SHAPE_WEIGHT_HOST}};
    direct.operands[0] = (struct mf_operand){memory, 1000};
    direct.operands[1] = (struct mf_operand){memory + MIB, 0};
    direct.operands[2] = (struct mf_operand){memory + 4 * MIB, 1000};
    assert_ok(host->submit(device, MF_LANE_H2D, &copy, 0));
    assert_ok(host->record(device, MF_LANE_H2D, 0));
    assert_ok(host->wait(device, MF_LANE_D2H, 0));
    assert_ok(host->submit(device, MF_LANE_D2H, &back, 1));
    assert_ok(host->record(device, MF_LANE_D2H, 1));
    assert_ok(host->wait(device, MF_LANE_COMPUTE, 1));
    assert_ok(host->submit(device, MF_LANE_COMPUTE, &direct, 2));
    assert_ok(host->sync(device));
    const double least_ns[3] = {4 * MIB * 1.0, 4 * MIB * 2.0, 2e6};
    for (int32_t task = 0; task < 3; task++) {
        assert_true(host->span(device, task, &span[task]));
        assert_true((double)(span[task].end_ns - span[task].start_ns) >= floor(least_ns[task]));
    }
    host->close(device);
}

/* ---- no allocation in the second run; the same bits whatever runs beside ---- */

#define ROWS 96
#define WIDTH 160

struct scene {
    uint16_t *x;
    uint16_t *weight;
    uint16_t *gradient; /* of the weight */
    unsigned char *state;
    uint16_t *updated;
    struct mf_control control;
};

/* A linear layer's forward and weight gradient on compute while the CPU lane updates and copies
 * run; `updated` and `gradient` hold the results. */
static void queue_scene(struct mf_device *device, struct scene *scene, unsigned char *spare)
{
    struct mf_kernel_call weight = {.kernel = MF_KERNEL_LINEAR_BACKWARD_WEIGHT,
                                    .shape = {.rows = ROWS, .n = WIDTH, .k = WIDTH}};
    weight.operands[0] = (struct mf_operand){scene->x, WIDTH};
    weight.operands[1] = (struct mf_operand){scene->x, WIDTH};
    weight.operands[2] = (struct mf_operand){scene->gradient, 0};
    struct mf_kernel_call update = {.kernel = MF_KERNEL_ADAMW,
                                    .shape = {.n = WIDTH * WIDTH, .k = WIDTH * WIDTH}};
    update.operands[0].pointer = scene->gradient;
    update.operands[1].pointer = scene->state;
    update.operands[2].pointer = scene->updated;
    update.operands[3].pointer = &scene->control;
    struct mf_kernel_call copy = copy_call(spare, spare + MIB, MIB);
    assert_ok(host->submit(device, MF_LANE_H2D, &copy, 0));
    assert_ok(host->submit(device, MF_LANE_COMPUTE, &weight, 1));
    assert_ok(host->record(device, MF_LANE_COMPUTE, 1));
    assert_ok(host->submit(device, MF_LANE_COMPUTE, &weight, 2)); /* the same values again */
    assert_ok(host->record(device, MF_LANE_COMPUTE, 2));
    assert_ok(host->wait(device, MF_LANE_CPU, 2));
    assert_ok(host->submit(device, MF_LANE_CPU, &update, 3));
}

static void run_scene(struct mf_device_options options, unsigned char *out)
{
    struct mf_device *device = open_with(options);
    size_t elements = WIDTH * WIDTH;
    unsigned char *spare;
    struct scene scene = {.control = {.learning_rate = 0.1,
                                      .beta1 = 0.9,
                                      .beta2 = 0.999,
                                      .eps = 1e-8,
                                      .gradient_scale = 0.01}};
    assert_ok(host->reserve(device, 2 * MIB, (void **)&spare));
    assert_ok(host->reserve(device, ROWS * WIDTH * 2, (void **)&scene.x));
    assert_ok(host->reserve(device, (int64_t)elements * 2, (void **)&scene.gradient));
    assert_ok(host->map_host(device, (int64_t)elements * MF_STATE_BYTES, NULL, NULL,
                             (void **)&scene.state));
    assert_ok(host->map_host(device, (int64_t)elements * 2, NULL, NULL, (void **)&scene.updated));
    for (int64_t at = 0; at < ROWS * WIDTH; at++) {
        scene.x[at] = (uint16_t)(0x3f00 + at * 37 % 251 + (at % 2) * 0x8000);
    }
    assert_ok(host->prepare(device, 4));
    for (scene.control.step = 1; scene.control.step <= 4; scene.control.step++) {
        assert_ok(host->begin(device, false));
        queue_scene(device, &scene, spare);
        assert_ok(host->sync(device));
    }
    memcpy(out, scene.updated, elements * 2);
    memcpy(out + elements * 2, scene.state, elements * MF_STATE_BYTES);
    host->close(device);
}

static void test_same_bits(void **state)
{
    (void)state;
    size_t bytes = WIDTH * WIDTH * (2 + MF_STATE_BYTES);
    unsigned char *expected = malloc(bytes);
    unsigned char *actual = malloc(bytes);
    run_scene((struct mf_device_options){.memory_bytes = 8 * MIB, .threads = 1}, expected);
    for (uint64_t turn = 1; turn <= 6; turn++) {
        run_scene((struct mf_device_options){.memory_bytes = 8 * MIB,
                                             .threads = (int32_t)turn % 3 + 1,
                                             .jitter_seed = turn,
                                             .jitter_ns_max = 300000},
                  actual);
        assert_memory_equal(actual, expected, bytes);
    }
    free(expected);
    free(actual);
}

static void test_scratch(void **state)
{
    (void)state;
    struct mf_host_lanes *lanes;
    struct mf_device_options options = {0};
    uint16_t *memory = calloc(3 * 256 * 256, 2);
    struct mf_kernel_call call = {.kernel = MF_KERNEL_LINEAR_FORWARD};
    for (int index = 0; index < 3; index++) {
        call.operands[index] = (struct mf_operand){memory + index * 256 * 256, 256};
    }
    assert_ok(mf_host_lanes_open(2, &options, &lanes));
    assert_ok(mf_host_lanes_prepare(lanes, 2));
    int64_t growths = 0;
    for (int graph = 0; graph < 3; graph++) {
        assert_ok(mf_host_lanes_begin(lanes, false));
        for (int32_t task = 0; task < 2; task++) {
            call.shape = (struct mf_shape){.rows = 64 << task, .n = 256, .k = 128 << task};
            assert_ok(mf_host_lanes_submit(lanes, MF_LANE_COMPUTE, &call, task));
        }
        assert_ok(mf_host_lanes_sync(lanes));
        assert_true(graph == 0 || mf_host_lanes_growths(lanes) == growths);
        growths = mf_host_lanes_growths(lanes);
    }
    assert_true(growths > 0);
    mf_host_lanes_close(lanes);
    free(memory);
}

/* Names of this process's threads that start with "mf-", and whether they block SIGTERM. */
static void test_threads(void **state)
{
    (void)state;
    struct mf_device *device = open_with((struct mf_device_options){.memory_bytes = MIB});
    DIR *folder = opendir("/proc/self/task");
    int found = 0;
    assert_non_null(folder);
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        char path[512];
        char line[256] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        bool ours = false;
        while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
            ours = ours || strncmp(line, "Name:\tmf-", 9) == 0;
            if (ours && strncmp(line, "SigBlk:", 7) == 0) {
                unsigned long long mask = strtoull(line + 7, NULL, 16);
                assert_true((mask >> (SIGTERM - 1) & 1) != 0);
                found++;
            }
        }
        if (file != NULL) {
            fclose(file);
        }
    }
    closedir(folder);
    assert_int_equal(found, MF_LANE_COUNT + 2); /* and a second thread for compute and CPU */
    host->close(device);
}

static void test_no_cuda(void **state)
{
    (void)state;
    const struct mf_device_interface *cuda = host;
    const char *folder = harness_folder();
    setenv("MEMFERRY_CUDA_MODULE", harness_path(folder, "none.so"), 1);
    assert_fails(mf_device_cuda(&cuda), MF_STATUS_UNSUPPORTED, "is not there");
    assert_null(cuda);
    harness_write(harness_path(folder, "text.so"), "no module", 9);
    setenv("MEMFERRY_CUDA_MODULE", harness_path(folder, "text.so"), 1);
    assert_fails(mf_device_cuda(&cuda), MF_STATUS_UNSUPPORTED, "cannot be loaded");
    Dl_info info;
    assert_true(dladdr((void *)(uintptr_t)&pthread_create, &info) != 0);
    setenv("MEMFERRY_CUDA_MODULE", info.dli_fname, 1); /* a library, but not a device */
    assert_fails(mf_device_cuda(&cuda), MF_STATUS_UNSUPPORTED, "no device module");
    setenv("MEMFERRY_CUDA_MODULE", "bare", 1);
    assert_fails(mf_device_cuda(&cuda), MF_STATUS_UNSUPPORTED, "slash");
    unsetenv("MEMFERRY_CUDA_MODULE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reserve),   cmocka_unit_test(test_map_host),
        cmocka_unit_test(test_pin_limit), cmocka_unit_test(test_describe),
        cmocka_unit_test(test_events),    cmocka_unit_test(test_generations),
        cmocka_unit_test(test_errors),    cmocka_unit_test(test_close_busy),
        cmocka_unit_test(test_link),      cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_scratch),   cmocka_unit_test(test_threads),
        cmocka_unit_test(test_no_cuda),
    };
    host = mf_device_host();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
