/* The CUDA device under the contract of runtime/device.h: caps, pinned memory, lanes that wait for
 * each other, spans, errors that leave the device usable. */
#define HARNESS_TIMEOUT_S 300
#include "tests/test_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/host/bf16.h"

#define MIB (1ll << 20)

static const struct mf_device_interface *cuda;

static struct mf_device *open_with(struct mf_device_options options)
{
    struct mf_device *device;
    cuda = test_device_cuda();
    assert_ok(cuda->open(&options, &device));
    return device;
}

static struct mf_kernel_call copy_call(void *from, void *to, int64_t bytes)
{
    struct mf_kernel_call call = {.kernel = MF_KERNEL_COPY, .shape = {.n = bytes}};
    call.operands[0].pointer = from;
    call.operands[1].pointer = to;
    return call;
}

static void test_describe_and_caps(void **state)
{
    (void)state;
    struct mf_hardware_device found;
    struct mf_device *device = open_with((struct mf_device_options){.memory_bytes = 64 * MIB});
    void *first;
    void *second = &first;
    assert_ok(cuda->describe(device, &found));
    print_message("%s, capability %d, %d multiprocessors, driver %s, %s\n", found.name,
                  found.compute_capability, found.multiprocessors, found.driver, found.runtime);
    assert_int_equal(found.memory_bytes, 64 * MIB);
    assert_ok(cuda->reserve(device, 40 * MIB - 100, &first));
    assert_int_equal(cuda->reserved_bytes(device), 40 * MIB);
    assert_fails(cuda->reserve(device, 40 * MIB, &second), MF_STATUS_NO_DEVICE_MEMORY, "cap");
    assert_null(second);
    assert_string_equal(mf_status_error()->reason, "DEVICE_MEMORY_TOO_SMALL");
    cuda->release(device, first);
    assert_int_equal(cuda->reserved_bytes(device), 0);
    cuda->close(device);
    device = open_with((struct mf_device_options){0});
    assert_ok(cuda->describe(device, &found));
    print_message("available without a cap: %lld MiB\n", (long long)(found.memory_bytes / MIB));
    assert_fails(cuda->reserve(device, found.memory_bytes + MIB, &first),
                 MF_STATUS_NO_DEVICE_MEMORY, "are needed");
    cuda->close(device);
    struct mf_device_options none = {.index = 99};
    assert_fails(cuda->open(&none, &device), MF_STATUS_UNSUPPORTED, "no CUDA device 99");
}

static bool count_calls(void *context, int64_t done, int64_t total)
{
    int *calls = context;
    assert_true(done <= total);
    return ++*calls < 3;
}

static void test_pinned(void **state)
{
    (void)state;
    struct mf_device *device = open_with((struct mf_device_options){.memory_bytes = 64 * MIB});
    int64_t size = 1024 * MIB + 64 * MIB;
    unsigned char *pinned;
    unsigned char *memory;
    void *none = &pinned;
    int calls = 0;
    assert_status(cuda->map_host(device, 1ll << 50, NULL, NULL, &none), MF_STATUS_NO_MEMORY);
    assert_null(none);
    print_message("%s\n", mf_status_text());
    assert_non_null(strstr(mf_status_text(), "pinned"));
    assert_ok(cuda->map_host(device, size, count_calls, &calls, (void **)&pinned));
    assert_int_equal(calls, 2);
    assert_status(cuda->map_host(device, 3072 * MIB, count_calls, &calls, &none),
                  MF_STATUS_CANCELLED);
    assert_int_equal((uintptr_t)pinned % 4096, 0);
    assert_ok(cuda->reserve(device, 64 * MIB, (void **)&memory));
    assert_ok(cuda->prepare(device, 4));
    /* A copy over the border of two registered chunks, there and back to another place. */
    int64_t border = 1024 * MIB - 16 * MIB;
    for (int64_t at = 0; at < 32 * MIB; at++) {
        pinned[border + at] = (unsigned char)(at * 31 >> 3);
    }
    struct mf_kernel_call in = copy_call(pinned + border, memory, 32 * MIB);
    struct mf_kernel_call out = copy_call(memory, pinned, 32 * MIB);
    assert_ok(cuda->begin(device, false));
    assert_ok(cuda->submit(device, MF_LANE_H2D, &in, 0));
    assert_ok(cuda->record(device, MF_LANE_H2D, 0));
    assert_ok(cuda->wait(device, MF_LANE_D2H, 0));
    assert_ok(cuda->submit(device, MF_LANE_D2H, &out, 1));
    assert_ok(cuda->sync(device));
    assert_memory_equal(pinned, pinned + border, 32 * MIB);
    cuda->unmap_host(device, pinned);
    cuda->close(device);
}

/* A limit met in the second chunk: the numbers are exact, nothing stays pinned, the GPU works on.
 */
static void test_pin_limit(void **state)
{
    (void)state;
    struct mf_device_options options = {.memory_bytes = 64 * MIB};
    struct mf_device *device;
    unsigned char *pinned;
    void *none = &pinned;
    void *memory;
    char placed[128];
    assert_int_equal(setenv("MEMFERRY_PIN_LIMIT", "1536MiB", 1), 0);
    assert_ok(cuda->open(&options, &device));
    assert_int_equal(unsetenv("MEMFERRY_PIN_LIMIT"), 0);
    assert_status(cuda->map_host(device, 2048 * MIB, NULL, NULL, &none), MF_STATUS_NO_MEMORY);
    assert_null(none);
    print_message("%s\n", mf_status_text());
    assert_string_equal(mf_status_error()->reason, "PINNED_MEMORY_LIMIT");
    assert_int_equal(mf_status_error()->numbers[1].value, 1536 * MIB);
    assert_ok(cuda->map_host(device, 1536 * MIB, NULL, NULL, (void **)&pinned));
    cuda->host_memory(device, placed, sizeof(placed));
    print_message("pinned memory: %s\n", placed);
    assert_true(strlen(placed) > 0);
    assert_ok(cuda->reserve(device, MIB, &memory));
    assert_ok(cuda->prepare(device, 1));
    memset(pinned, 7, MIB);
    struct mf_kernel_call in = copy_call(pinned, memory, MIB);
    struct mf_kernel_call out = copy_call(memory, pinned + MIB, MIB);
    assert_ok(cuda->begin(device, false));
    assert_ok(cuda->submit(device, MF_LANE_H2D, &in, 0));
    assert_ok(cuda->sync(device));
    assert_ok(cuda->begin(device, false));
    assert_ok(cuda->submit(device, MF_LANE_D2H, &out, 0));
    assert_ok(cuda->sync(device));
    assert_memory_equal(pinned, pinned + MIB, MIB);
    cuda->close(device);
}

/* ---- lanes ---- */

#define ROUNDS 200
#define COUNT 4096

/* Each round: H2D, x = x + x on the GPU, D2H, an fp32 sum on the CPU, whose result goes in again;
 * every arrow crosses lanes. */
static void run_rounds(struct mf_device *device, unsigned char *memory, unsigned char *pinned,
                       bool trace)
{
    uint16_t *values = (uint16_t *)(void *)pinned;
    float *sums = (float *)(void *)(pinned + 64 * 1024);
    struct mf_kernel_call add = {.kernel = MF_KERNEL_ADD_FORWARD, .shape = {.rows = 1, .n = COUNT}};
    struct mf_kernel_call sum = {.kernel = MF_KERNEL_GRADIENT_ACCUMULATE, .shape = {.n = COUNT}};
    for (int index = 0; index < 3; index++) {
        add.operands[index] = (struct mf_operand){memory, COUNT};
    }
    sum.operands[0].pointer = values;
    sum.operands[1].pointer = sums;
    for (int at = 0; at < COUNT; at++) {
        values[at] = mf_bf16_from_float(1.0f / 1024);
        sums[at] = 0;
    }
    assert_ok(cuda->begin(device, trace));
    for (int32_t round = 0; round < 5; round++) {
        const struct mf_kernel_call in = copy_call(values, memory, COUNT * 2);
        const struct mf_kernel_call out = copy_call(memory, values, COUNT * 2);
        const struct mf_kernel_call *calls[] = {&in, &add, &out, &sum};
        static const enum mf_lane lanes[] = {MF_LANE_H2D, MF_LANE_COMPUTE, MF_LANE_D2H,
                                             MF_LANE_CPU};
        for (int32_t at = 0; at < 4; at++) {
            int32_t task = round * 4 + at;
            if (task > 0) {
                assert_ok(cuda->wait(device, lanes[at], task - 1));
            }
            assert_ok(cuda->submit(device, lanes[at], calls[at], task));
            assert_ok(cuda->record(device, lanes[at], task));
        }
    }
    assert_ok(cuda->sync(device));
    for (int at = 0; at < COUNT; at++) { /* 2 + 4 + 8 + 16 + 32 */
        assert_true(sums[at] == 62.0f / 1024);
    }
}

static void test_lanes_wait_for_each_other(void **state)
{
    (void)state;
    for (int run = 0; run < 2; run++) {
        struct mf_device *device =
            open_with((struct mf_device_options){.memory_bytes = 64 * MIB,
                                                 .jitter_seed = run == 0 ? 0 : 77,
                                                 .jitter_ns_max = 100000,
                                                 .threads = 2});
        unsigned char *memory;
        unsigned char *pinned;
        assert_ok(cuda->reserve(device, MIB, (void **)&memory));
        assert_ok(cuda->map_host(device, MIB, NULL, NULL, (void **)&pinned));
        assert_ok(cuda->prepare(device, 64));
        for (int round = 0; round < ROUNDS / (run + 1); round++) {
            run_rounds(device, memory, pinned, round % 10 == 9);
        }
        struct mf_device_span spans[20];
        run_rounds(device, memory, pinned, true);
        for (int32_t task = 0; task < 20; task++) {
            assert_true(cuda->span(device, task, &spans[task]));
            assert_true(spans[task].end_ns >= spans[task].start_ns);
            /* Within what the clocks of GPU and CPU are apart. */
            assert_true(task == 0 || spans[task].start_ns >= spans[task - 1].end_ns - 50000);
        }
        assert_false(cuda->span(device, 20, &spans[0]));
        cuda->close(device);
    }
}

static void test_wrong_calls(void **state)
{
    (void)state;
    struct mf_device *device = open_with((struct mf_device_options){.memory_bytes = 64 * MIB});
    unsigned char *memory;
    unsigned char *pinned;
    assert_ok(cuda->reserve(device, MIB, (void **)&memory));
    assert_ok(cuda->map_host(device, MIB, NULL, NULL, (void **)&pinned));
    assert_ok(cuda->prepare(device, 64));
    struct mf_kernel_call copy = copy_call(pinned, memory, 1024);
    assert_ok(cuda->begin(device, false));
    assert_status(cuda->submit(device, MF_LANE_COMPUTE, &copy, 0), MF_STATUS_INVALID);
    assert_status(cuda->submit(device, MF_LANE_H2D, &copy, 64), MF_STATUS_INVALID);
    assert_fails(cuda->wait(device, MF_LANE_H2D, 3), MF_STATUS_INVALID, "for ever");
    assert_ok(cuda->sync(device));
    struct mf_kernel_call attention = {
        .kernel = MF_KERNEL_ATTENTION_FORWARD,
        .shape = {.rows = 1, .seq_len = 1, .heads = 1, .kv_heads = 1, .head_dim = 512}};
    assert_ok(cuda->begin(device, false));
    assert_fails(cuda->submit(device, MF_LANE_COMPUTE, &attention, 0), MF_STATUS_UNSUPPORTED,
                 "head_dim 512");
    assert_ok(cuda->sync(device));
    run_rounds(device, memory, pinned, false); /* nothing is left behind */
    cuda->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_describe_and_caps), cmocka_unit_test(test_pinned),
        cmocka_unit_test(test_pin_limit),         cmocka_unit_test(test_lanes_wait_for_each_other),
        cmocka_unit_test(test_wrong_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
