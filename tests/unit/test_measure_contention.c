/* Contention measured on the host device: bounds that hold on any machine, however busy, and the
 * time that it takes. */
#include "harness.h"

#include <math.h>
#include <string.h>

#include "core/arena.h"
#include "core/clock.h"
#include "profiler/measure.h"
#include "profiler/statistics.h"
#include "proto/wire.h"
#include "runtime/device.h"
#include "server/convert.h"

#define HARNESS_THREADS
#define HARNESS_TIMEOUT_S 300

static void print(const struct mf_contention *contention, double seconds)
{
    if (!contention->measured) {
        print_message("no time to measure in %.2f s\n", seconds);
        return;
    }
    print_message("measured in %.2f s; a graph %.1f us\n", seconds, contention->graph_ns / 1e3);
    for (int a = 0; a < MF_LOAD_COUNT; a++) {
        print_message("%-12s", mf_contention_load_name((enum mf_load)a));
        for (int b = 0; b < MF_LOAD_COUNT; b++) {
            print_message(" %6.2f", contention->slowdown[a][b]);
        }
        print_message("\n");
    }
    for (int a = 0; a < MF_LANE_COUNT; a++) {
        print_message("%-8s gap %6.2f, issue %6.2f us, hand-over",
                      mf_kernel_lane_name((enum mf_lane)a), contention->gap_ns[a] / 1e3,
                      contention->issue_ns[a] / 1e3);
        for (int b = 0; b < MF_LANE_COUNT; b++) {
            print_message(" %6.2f", contention->handover_ns[a][b] / 1e3);
        }
        print_message("\n");
    }
}

/* Returns how long it took. */
static double measure(const struct mf_device_options *options, double seconds_max,
                      struct mf_contention *out)
{
    const struct mf_device_interface *interface = mf_device_host();
    struct mf_device *device = NULL;
    assert_ok(interface->open(options, &device));
    int64_t start_ns = mf_clock_ns();
    assert_ok(mf_measure_contention(interface, device, seconds_max, out));
    double seconds = (double)(mf_clock_ns() - start_ns) * 1e-9;
    print(out, seconds);
    assert_int_equal(interface->reserved_bytes(device), 0);
    interface->close(device);
    return seconds;
}

/* A busy machine, or a sanitizer, may need more time for one look at each value. */
static void measure_in_time(const struct mf_device_options *options, struct mf_contention *out)
{
    for (double seconds_max = 1; seconds_max <= 32; seconds_max *= 2) {
        double seconds = measure(options, seconds_max, out);
        if (out->measured) {
            /* What is begun when the time is up is ended; freeing memory comes after it. */
            assert_true(seconds < 1.5 * seconds_max + 0.5);
            return;
        }
    }
    fail_msg("not measured in 32 s");
}

static void check_bounds(const struct mf_contention *contention)
{
    for (int a = 0; a < MF_LOAD_COUNT; a++) {
        enum mf_lane lane = mf_contention_lane((enum mf_load)a);
        for (int b = 0; b < MF_LOAD_COUNT; b++) {
            double slowdown = contention->slowdown[a][b];
            bool same = lane == mf_contention_lane((enum mf_load)b);
            assert_true(isfinite(slowdown) && slowdown >= 1);
            assert_true(slowdown == 1 || (!same && slowdown >= 1.02 && slowdown <= 4));
        }
    }
    for (int a = 0; a < MF_LANE_COUNT; a++) {
        assert_true(isfinite(contention->gap_ns[a]) && contention->gap_ns[a] >= 0);
        assert_true(contention->issue_ns[a] > 0 && contention->issue_ns[a] < 1e7);
        for (int b = 0; b < MF_LANE_COUNT; b++) {
            double ns = contention->handover_ns[a][b];
            assert_true(a == b ? ns == 0 : ns >= 0 && ns < 1e9);
            assert_true(ns == contention->handover_ns[b][a]);
        }
    }
    assert_true(contention->graph_ns > 0 && contention->graph_ns < 1e9);
}

static void test_bounds_and_time(void **state)
{
    (void)state;
    const struct mf_device_options options = {.memory_bytes = 512 << 20, .threads = 2};
    struct mf_contention contention;
    measure_in_time(&options, &contention);
    check_bounds(&contention);
}

/* Somebody waits for somebody on every machine: a thread wakes another, which is not free. */
static void test_hand_over_costs(void **state)
{
    (void)state;
    const struct mf_device_options options = {.memory_bytes = 512 << 20, .threads = 1};
    struct mf_contention contention;
    double sum_ns = 0;
    measure_in_time(&options, &contention);
    for (int a = 0; a < MF_LANE_COUNT; a++) {
        for (int b = 0; b < MF_LANE_COUNT; b++) {
            sum_ns += contention.handover_ns[a][b];
        }
    }
    assert_true(sum_ns > 100);
}

/* The emulated link sleeps: what a copy lasts is the link's, whatever the cores do. The lowest
 * slow-down of copies beside copies is thus near 1, and a 10 MB/s link does not take longer. */
static void test_emulated_link(void **state)
{
    (void)state;
    const struct mf_device_options options = {
        .memory_bytes = 256 << 20, .h2d_bytes_per_s = 200e6, .d2h_bytes_per_s = 50e6, .threads = 2};
    struct mf_contention contention;
    measure_in_time(&options, &contention);
    check_bounds(&contention);
    double up = contention.slowdown[MF_LOAD_H2D][MF_LOAD_D2H];
    double down = contention.slowdown[MF_LOAD_D2H][MF_LOAD_H2D];
    assert_true((up < down ? up : down) < 2);
}

static void test_no_time_is_said(void **state)
{
    (void)state;
    const struct mf_device_options options = {.memory_bytes = 256 << 20, .threads = 1};
    struct mf_contention contention;
    struct mf_contention assumed;
    double seconds = measure(&options, 1e-6, &contention);
    mf_contention_assume(false, &assumed);
    assert_false(contention.measured);
    assert_memory_equal(&contention, &assumed, sizeof(assumed));
    assert_true(seconds < 30);
}

/* Smaller tasks where the device is small; an error where it is tiny. */
static void test_small_devices(void **state)
{
    (void)state;
    const struct mf_device_options small = {.memory_bytes = 24 << 20, .threads = 2};
    struct mf_device_options tiny = {.memory_bytes = 1 << 10, .threads = 1};
    const struct mf_device_interface *interface = mf_device_host();
    struct mf_device *device = NULL;
    struct mf_contention contention;
    measure_in_time(&small, &contention);
    check_bounds(&contention);
    assert_ok(interface->open(&tiny, &device));
    assert_status(mf_measure_contention(interface, device, 0.1, &contention),
                  MF_STATUS_NO_DEVICE_MEMORY);
    assert_false(contention.measured);
    assert_int_equal(interface->reserved_bytes(device), 0);
    interface->close(device);
}

static int load_named(const char *name)
{
    int load = 0;
    while (load < MF_LOAD_COUNT && strcmp(mf_contention_load_name((enum mf_load)load), name) != 0) {
        load++;
    }
    assert_true(load < MF_LOAD_COUNT);
    return load;
}

static int lane_named(const char *name)
{
    int lane = 0;
    while (lane < MF_LANE_COUNT && strcmp(mf_kernel_lane_name((enum mf_lane)lane), name) != 0) {
        lane++;
    }
    assert_true(lane < MF_LANE_COUNT);
    return lane;
}

static void read_message(const Memferry__V1__Contention *message, struct mf_contention *out)
{
    mf_contention_assume(false, out);
    out->measured = message->measured;
    out->graph_ns = message->graph_ns;
    for (size_t i = 0; i < message->n_slowdowns; i++) {
        const Memferry__V1__Slowdown *entry = message->slowdowns[i];
        out->slowdown[load_named(entry->load)][load_named(entry->beside)] = entry->factor;
    }
    for (size_t i = 0; i < message->n_lanes; i++) {
        int lane = lane_named(message->lanes[i]->lane);
        out->gap_ns[lane] = message->lanes[i]->gap_ns;
        out->issue_ns[lane] = message->lanes[i]->issue_ns;
    }
    for (size_t i = 0; i < message->n_hand_overs; i++) {
        const Memferry__V1__HandOver *entry = message->hand_overs[i];
        out->handover_ns[lane_named(entry->from)][lane_named(entry->to)] = entry->latency_ns;
    }
}

/* All of it is in the message: numbers by name, as a client reads them. */
static void test_message(void **state)
{
    (void)state;
    struct mf_contention before;
    struct mf_contention after;
    struct mf_arena arena;
    mf_contention_assume(true, &before);
    before.measured = true;
    before.graph_ns = 12345;
    for (int a = 0; a < MF_LANE_COUNT; a++) {
        before.gap_ns[a] = harness_random_between(0, 1e4);
        before.issue_ns[a] = harness_random_between(0, 1e4);
        for (int b = 0; b < MF_LANE_COUNT; b++) {
            before.handover_ns[a][b] = a == b ? 0 : harness_random_between(1, 1e5);
        }
    }
    mf_arena_init(&arena);
    Memferry__V1__Contention *message = mf_convert_contention(&before, &arena);
    size_t count = protobuf_c_message_get_packed_size(&message->base);
    uint8_t *bytes = mf_arena_alloc(&arena, count, 1);
    assert_int_equal(protobuf_c_message_pack(&message->base, bytes), count);
    Memferry__V1__Contention *unpacked = NULL;
    assert_ok(mf_wire_unpack(&memferry__v1__contention__descriptor, bytes, count, 0,
                             (ProtobufCMessage **)&unpacked));
    read_message(unpacked, &after);
    assert_memory_equal(&after, &before, sizeof(before));
    mf_wire_free(unpacked);
    mf_arena_reset(&arena);
}

static void test_low(void **state)
{
    (void)state;
    double one[] = {7};
    double some[] = {9, 1, 5, 3, 100, 7, 6, 8};
    assert_near(mf_statistics_low(one, 1), 7, 0, 0);
    assert_near(mf_statistics_low(some, 8), 5, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_low),
        cmocka_unit_test(test_message),
        cmocka_unit_test(test_bounds_and_time),
        cmocka_unit_test(test_hand_over_costs),
        cmocka_unit_test(test_emulated_link),
        cmocka_unit_test(test_no_time_is_said),
        cmocka_unit_test(test_small_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
