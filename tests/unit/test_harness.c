/* The harness itself: seeds repeat, folders are private, files come back as written. */
#include "harness.h"

#include <string.h>
#include <unistd.h>

static void test_random_repeats(void **context)
{
    (void)context;
    uint64_t first[8];
    harness_random_restart(7);
    for (size_t index = 0; index < 8; index++) {
        first[index] = harness_random();
    }
    harness_random_restart(7);
    for (size_t index = 0; index < 8; index++) {
        assert_true(harness_random() == first[index]);
    }
    harness_random_restart(8);
    assert_true(harness_random() != first[0]);
}

static void test_random_ranges(void **context)
{
    (void)context;
    for (int round = 0; round < 1000; round++) {
        assert_in_range(harness_random_below(10), 0, 9);
        double value = harness_random_between(-2.0, 3.0);
        assert_true(value >= -2.0 && value < 3.0);
    }
}

static void test_files(void **context)
{
    (void)context;
    const char *folder = harness_folder();
    assert_string_not_equal(folder, harness_folder());
    const char *path = harness_path(folder, "a");
    harness_write(path, "x\0y", 3);
    size_t count = 0;
    char *bytes = harness_read(path, &count);
    assert_int_equal(count, 3);
    assert_memory_equal(bytes, "x\0y", 4);
    assert_int_equal(access(harness_source("CMakeLists.txt"), R_OK), 0);
}

static void test_statuses(void **context)
{
    (void)context;
    assert_ok(MF_STATUS_OK);
    assert_status(mf_status_set(MF_STATUS_IO, "disk"), MF_STATUS_IO);
    assert_fails(mf_status_set(MF_STATUS_INVALID, "batch 0"), MF_STATUS_INVALID, "batch");
    assert_near(1.0 + 1e-9, 1.0, 0.0, 1e-8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_repeats),
        cmocka_unit_test(test_random_ranges),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_statuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
