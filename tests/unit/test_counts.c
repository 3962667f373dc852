/* What a kernel has to move over the link, beside a device that counts. */
#include "harness.h"

#include "profiler/counts.h"

#define MIB (1ll << 20)

static int runs;

/* A device of two passes whose counters say what they were told to. */
static enum mf_status count_twice(struct mf_device *device, mf_device_work work, void *context,
                                  struct mf_device_counts *out)
{
    (void)device;
    for (int pass = 0; pass < 2; pass++) {
        MF_TRY(work(context));
        runs++;
    }
    *out = (struct mf_device_counts){{11, 12}, {13, -1}};
    return MF_STATUS_OK;
}

static struct mf_counts count(enum mf_lane lane, enum mf_kernel kernel, struct mf_shape shape)
{
    struct mf_device_interface interface = *mf_device_host();
    struct mf_device_options options = {.memory_bytes = 64 * MIB, .threads = 1};
    struct mf_signature signature = mf_profile_signature(lane, kernel, &shape);
    struct mf_measure_scratch scratch = {0};
    struct mf_device *device;
    struct mf_counts counts;
    interface.count = count_twice;
    runs = 0;
    assert_ok(interface.open(&options, &device));
    assert_true(mf_counts_wanted(&signature));
    assert_ok(mf_counts_measure(&interface, device, &scratch, &signature, &counts));
    assert_int_equal(runs, 2);
    assert_int_equal(counts.counted.link_bytes[1], 12);
    assert_int_equal(counts.counted.memory_bytes[1], -1);
    mf_measure_release(&interface, device, &scratch);
    interface.close(device);
    return counts;
}

static void test_needed(void **state)
{
    (void)state;
    struct mf_counts counts = count(MF_LANE_D2H, MF_KERNEL_COPY, (struct mf_shape){.n = MIB});
    assert_int_equal(counts.needed_bytes[0], 0);
    assert_int_equal(counts.needed_bytes[1], MIB);
    counts = count(MF_LANE_COMPUTE, MF_KERNEL_LINEAR_FORWARD,
                   (struct mf_shape){.rows = 8, .n = 64, .k = 32, .flags = MF_SHAPE_WEIGHT_HOST});
    assert_int_equal(counts.needed_bytes[0], 64 * 32 * 2);
    assert_int_equal(counts.needed_bytes[1], 0);
    counts = count(MF_LANE_COMPUTE, MF_KERNEL_LINEAR_BACKWARD_WEIGHT,
                   (struct mf_shape){.rows = 8, .n = 64, .k = 32, .flags = MF_SHAPE_OUTPUT_HOST});
    assert_int_equal(counts.needed_bytes[0], 0);
    assert_int_equal(counts.needed_bytes[1], 64 * 32 * 2);
}

/* Of a table, the rows that tokens name, each once: all of a small one, few of a large one. */
static void test_touched_rows(void **state)
{
    (void)state;
    struct mf_shape shape = {.rows = 512, .n = 16, .k = 2, .flags = MF_SHAPE_WEIGHT_HOST};
    struct mf_counts counts = count(MF_LANE_COMPUTE, MF_KERNEL_EMBEDDING_FORWARD, shape);
    assert_int_equal(counts.needed_bytes[0], 2 * 16 * 2);
    shape.k = 100000;
    counts = count(MF_LANE_COMPUTE, MF_KERNEL_EMBEDDING_FORWARD, shape);
    assert_in_range(counts.needed_bytes[0], 500 * 16 * 2, 512 * 16 * 2);
    shape.heads = 4; /* one of four panels: a quarter of the tokens */
    counts = count(MF_LANE_COMPUTE, MF_KERNEL_EMBEDDING_FORWARD, shape);
    assert_in_range(counts.needed_bytes[0], 90 * 16 * 2, 170 * 16 * 2);
    shape.flags = MF_SHAPE_OUTPUT_HOST;
    counts = count(MF_LANE_COMPUTE, MF_KERNEL_EMBEDDING_BACKWARD, shape);
    assert_int_equal(counts.needed_bytes[1], 100000 * 16 * 2);
    shape.flags |= MF_SHAPE_TOUCHED;
    counts = count(MF_LANE_COMPUTE, MF_KERNEL_EMBEDDING_BACKWARD, shape);
    assert_in_range(counts.needed_bytes[1], 90 * 16 * 2, 170 * 16 * 2);
}

static void test_no_counters(void **state)
{
    (void)state;
    const struct mf_device_interface *host = mf_device_host();
    struct mf_device_options options = {.memory_bytes = MIB, .threads = 1};
    struct mf_shape shape = {.rows = 8, .n = 8, .k = 8};
    struct mf_signature signature =
        mf_profile_signature(MF_LANE_COMPUTE, MF_KERNEL_LINEAR_FORWARD, &shape);
    struct mf_measure_scratch scratch = {0};
    struct mf_device *device;
    struct mf_counts counts;
    assert_false(mf_counts_wanted(&signature));
    assert_ok(host->open(&options, &device));
    assert_fails(mf_counts_measure(host, device, &scratch, &signature, &counts),
                 MF_STATUS_UNSUPPORTED, "host device has no link");
    host->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_needed),
        cmocka_unit_test(test_touched_rows),
        cmocka_unit_test(test_no_counters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
