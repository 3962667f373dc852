/*
 * Which device a test runs on: MEMFERRY_TEST_DEVICE = host (or unset) or cuda.
 *
 * Who calls it: tests that hold for every device. Owner: nothing. Thread: any. Fails: a test on
 *   cuda where there is none is skipped (exit code 77), with the reason.
 */
#ifndef MF_TESTS_TEST_DEVICE_H
#define MF_TESTS_TEST_DEVICE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device.h"
#include "tests/harness.h"

/* The CUDA device's table, after it has shown that it can open. */
static inline const struct mf_device_interface *test_device_cuda(void)
{
    static const struct mf_device_interface *cuda;
    if (cuda == NULL) {
        const struct mf_device_options options = {.memory_bytes = 1ll << 20};
        struct mf_device *device = NULL;
        enum mf_status status = mf_device_cuda(&cuda);
        if (status == MF_STATUS_OK) {
            status = cuda->open(&options, &device);
        }
        if (status == MF_STATUS_UNSUPPORTED) {
            fprintf(stderr, "skipped: %s\n", mf_status_text());
            exit(HARNESS_SKIP);
        }
        assert_ok(status);
        cuda->close(device);
    }
    return cuda;
}

static inline const struct mf_device_interface *test_device(void)
{
    const char *name = getenv("MEMFERRY_TEST_DEVICE");
    if (name == NULL || strcmp(name, "host") == 0) {
        return mf_device_host();
    }
    assert_string_equal(name, "cuda");
    return test_device_cuda();
}

#endif
