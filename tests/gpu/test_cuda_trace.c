/* What spans of the CUDA device rest on: records of CUPTI on the host's clock, events where CUPTI
 * is taken, and no cost once tracing has ended. */
#define HARNESS_TIMEOUT_S 120
#include "tests/test_device.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define MIB (1ll << 20)
#define COPIES 200
#define CLOCKS_APART_NS 50000
#define UNTRACED_GRAPHS 80 /* more than recording outlives its last traced graph */

static const struct mf_device_interface *cuda;
static unsigned char *memory;
static unsigned char *pinned;

static struct mf_device *open_cuda(void)
{
    struct mf_device_options options = {.memory_bytes = 256 * MIB, .threads = 2};
    struct mf_device *device;
    cuda = test_device_cuda();
    assert_ok(cuda->open(&options, &device));
    assert_ok(cuda->reserve(device, 64 * MIB, (void **)&memory));
    assert_ok(cuda->map_host(device, 64 * MIB, NULL, NULL, (void **)&pinned));
    assert_ok(cuda->prepare(device, COPIES));
    return device;
}

static int64_t clock_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Queues `count` copies of `bytes` as one graph; what the host needed for a call. */
static double copy_all(struct mf_device *device, int count, int64_t bytes, bool trace)
{
    struct mf_kernel_call call = {.kernel = MF_KERNEL_COPY, .shape = {.n = bytes}};
    call.operands[0].pointer = pinned;
    call.operands[1].pointer = memory;
    assert_ok(cuda->begin(device, trace));
    int64_t started_ns = clock_ns();
    for (int32_t task = 0; task < count; task++) {
        assert_ok(cuda->submit(device, MF_LANE_H2D, &call, task));
    }
    double each_ns = (double)(clock_ns() - started_ns) / count;
    assert_ok(cuda->sync(device));
    return each_ns;
}

static void test_spans_are_on_the_host_clock(void **state)
{
    (void)state;
    struct mf_device *device = open_cuda();
    for (int round = 0; round < 3; round++) {
        struct mf_device_span span;
        int64_t last_ns = clock_ns();
        (void)copy_all(device, 10, 64 * MIB, true);
        int64_t ended_ns = clock_ns();
        for (int32_t task = 0; task < 10; task++) {
            assert_true(cuda->span(device, task, &span));
            assert_true(span.start_ns >= last_ns - CLOCKS_APART_NS);
            assert_true(span.end_ns > span.start_ns);
            last_ns = span.end_ns;
        }
        assert_true(last_ns <= ended_ns + CLOCKS_APART_NS);
        assert_false(cuda->span(device, 10, &span));
        print_message("%s: 64 MiB in %.3f ms, ended %.3f ms before sync returned\n",
                      cuda->trace_method(device), (double)(span.end_ns - span.start_ns) / 1e6,
                      (double)(ended_ns - last_ns) / 1e6);
    }
    cuda->close(device);
}

static void test_one_client_at_a_time(void **state)
{
    (void)state;
    struct mf_device *first = open_cuda();
    (void)copy_all(first, 1, 1024, true);
    struct mf_device *second = open_cuda();
    struct mf_device_span span;
    (void)copy_all(second, 1, 1024, true);
    assert_true(cuda->span(second, 0, &span));
    print_message("first: %s; second: %s\n", cuda->trace_method(first), cuda->trace_method(second));
    if (strcmp(cuda->trace_method(first), "CUPTI") == 0) {
        assert_non_null(strstr(cuda->trace_method(second), "CUDA events (CUPTI held by"));
    }
    cuda->close(second);
    cuda->close(first);
}

static void test_tracing_ends(void **state)
{
    (void)state;
    struct mf_device *device = open_cuda();
    struct mf_device_span span;
    double before_ns = 0;
    double traced_ns = 0;
    double after_ns = 0;
    for (int round = 0; round < 20; round++) {
        before_ns = copy_all(device, COPIES, 1024, false);
    }
    int64_t started_ns = clock_ns();
    assert_ok(cuda->begin(device, true));
    int64_t opened_ns = clock_ns() - started_ns;
    for (int round = 0; round < 20; round++) {
        traced_ns = copy_all(device, COPIES, 1024, true);
    }
    started_ns = clock_ns();
    for (int32_t task = 0; task < COPIES; task++) {
        assert_true(cuda->span(device, task, &span));
    }
    int64_t collected_ns = clock_ns() - started_ns;
    for (int round = 0; round < UNTRACED_GRAPHS; round++) {
        after_ns = copy_all(device, COPIES, 1024, false);
    }
    print_message("%s; submit: %.0f ns before, %.0f ns traced, %.0f ns after; opening %.2f ms, "
                  "collecting %d tasks %.2f ms\n",
                  cuda->trace_method(device), before_ns, traced_ns, after_ns,
                  (double)opened_ns / 1e6, COPIES, (double)collected_ns / 1e6);
    assert_true(after_ns < 1.5 * before_ns + 500);
    (void)copy_all(device, COPIES, 1024, true); /* and begins again */
    assert_true(cuda->span(device, COPIES - 1, &span));
    cuda->close(device);
}

static enum mf_status copy_once(void *context)
{
    (void)copy_all(context, 1, 64 * MIB, false);
    return MF_STATUS_OK;
}

/* Counters, where they may be read, see a copy's bytes; tracing works before and after. */
static void test_counters(void **state)
{
    (void)state;
    struct mf_device *device = open_cuda();
    struct mf_device_counts counts;
    struct mf_device_span span;
    (void)copy_all(device, 1, MIB, true);
    assert_true(cuda->span(device, 0, &span));
    enum mf_status status = cuda->count(device, copy_once, device, &counts);
    if (status == MF_STATUS_UNSUPPORTED) {
        print_message("no counters: %s\n", mf_status_text());
        assert_true(strlen(mf_status_text()) > 10);
    } else {
        assert_ok(status);
        print_message("64 MiB to the device: bus %.2f MB there, %.2f MB back; memory %.2f, %.2f\n",
                      (double)counts.link_bytes[0] / 1e6, (double)counts.link_bytes[1] / 1e6,
                      (double)counts.memory_bytes[0] / 1e6, (double)counts.memory_bytes[1] / 1e6);
        assert_in_range(counts.link_bytes[0], 64 * MIB, 80 * MIB);
    }
    (void)copy_all(device, 1, MIB, true);
    assert_true(cuda->span(device, 0, &span));
    print_message("traced by %s again\n", cuda->trace_method(device));
    cuda->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spans_are_on_the_host_clock),
        cmocka_unit_test(test_one_client_at_a_time),
        cmocka_unit_test(test_tracing_ends),
        cmocka_unit_test(test_counters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
