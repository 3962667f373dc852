/* The rates of the machine, measured in about a second at start-up. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "profiler/measure.h"

#define COPY_BYTES_MIN (4ll << 10)
#define COPY_BYTES_MAX (64ll << 20)
#define COPY_GROWTH 8
#define SHRINKS_MAX 8

struct probe {
    const struct mf_device_interface *interface;
    struct mf_device *device;
    struct mf_measure_scratch scratch;
    struct mf_profile *profile;
    double seconds; /* for one signature */
};

static enum mf_status measure(struct probe *probe, const struct mf_signature *signature,
                              struct mf_measurement *out)
{
    return mf_measure_one(probe->interface, probe->device, &probe->scratch, signature,
                          probe->seconds, out);
}

static bool memory_is_short(enum mf_status status)
{
    return status == MF_STATUS_NO_DEVICE_MEMORY || status == MF_STATUS_NO_MEMORY;
}

/* Measures the kernel, halving rows (or n where there are none) until it fits. */
static enum mf_status measure_shrinking(struct probe *probe, struct mf_signature *signature,
                                        struct mf_measurement *out)
{
    enum mf_status status = MF_STATUS_OK;
    for (int shrink = 0; shrink < SHRINKS_MAX; shrink++) {
        status = measure(probe, signature, out);
        if (!memory_is_short(status)) {
            break;
        }
        if (signature->shape.rows > 1) {
            signature->shape.rows /= 4;
        } else {
            signature->shape.n /= 4;
        }
    }
    return status;
}

/* Products and memory of the device; sizes that keep a GPU busy, and a few cores not too long. */
static enum mf_status measure_compute(struct probe *probe, struct mf_hardware_device *device)
{
    bool cuda = strcmp(device->kind, "cuda") == 0;
    struct mf_measurement measured;
    struct mf_signature product = {
        .lane = MF_LANE_COMPUTE,
        .kernel = MF_KERNEL_LINEAR_FORWARD,
        .shape = {.rows = cuda ? 8192 : 256, .n = cuda ? 4096 : 1024, .k = cuda ? 8192 : 1024},
    };
    MF_TRY(measure_shrinking(probe, &product, &measured));
    device->matrix_flops =
        mf_kernel_flops(product.kernel, &product.shape) / measured.median_ns * 1e9;
    struct mf_signature addition = {
        .lane = MF_LANE_COMPUTE,
        .kernel = MF_KERNEL_ADD_FORWARD,
        .shape = {.rows = cuda ? 16384 : 2048, .n = 8192},
    };
    MF_TRY(measure_shrinking(probe, &addition, &measured));
    device->memory_bytes_per_s =
        mf_kernel_bytes(addition.kernel, &addition.shape) / measured.median_ns * 1e9;
    return MF_STATUS_OK;
}

/* Copies by size: the largest that is measured gives the rate, the smallest the fixed cost. */
static enum mf_status measure_copies(struct probe *probe, enum mf_lane lane, double *rate,
                                     double *latency_ns)
{
    double smallest_ns = 0;
    double largest_ns = 0;
    int64_t largest = 0;
    for (int64_t bytes = COPY_BYTES_MIN; bytes <= COPY_BYTES_MAX; bytes *= COPY_GROWTH) {
        struct mf_signature copy = {.lane = lane, .kernel = MF_KERNEL_COPY, .shape = {.n = bytes}};
        struct mf_measurement measured;
        /* Four copies of eight times the size, on a slow link, are left out. */
        if (largest_ns * COPY_GROWTH * 4 > probe->seconds * 4e9) {
            break;
        }
        enum mf_status status = measure(probe, &copy, &measured);
        if (memory_is_short(status) && largest > 0) {
            break;
        }
        MF_TRY(status);
        mf_profile_put(probe->profile, &measured);
        smallest_ns = bytes == COPY_BYTES_MIN ? measured.median_ns : smallest_ns;
        largest_ns = measured.median_ns;
        largest = bytes;
    }
    *rate = largest_ns > 0 ? (double)largest / largest_ns * 1e9 : 0;
    double moving_ns = *rate > 0 ? (double)COPY_BYTES_MIN / *rate * 1e9 : 0;
    *latency_ns = fmax(smallest_ns - moving_ns, 0);
    return MF_STATUS_OK;
}

static enum mf_status measure_update(struct probe *probe, struct mf_hardware *hardware)
{
    struct mf_signature update = {
        .lane = MF_LANE_CPU, .kernel = MF_KERNEL_ADAMW, .shape = {.n = 4 << 20, .k = 4 << 20}};
    struct mf_measurement measured;
    MF_TRY(measure_shrinking(probe, &update, &measured));
    hardware->host_bytes_per_s = MF_ADAMW_BYTES * (double)update.shape.n / measured.median_ns * 1e9;
    return MF_STATUS_OK;
}

static enum mf_status measure_all(struct probe *probe, struct mf_hardware *hardware)
{
    struct mf_hardware_device *device = &hardware->devices[0];
    double up_ns = 0;
    double down_ns = 0;
    struct mf_hardware_device described = *device;
    MF_TRY(measure_compute(probe, device));
    MF_TRY(measure_copies(probe, MF_LANE_H2D, &device->h2d_bytes_per_s, &up_ns));
    MF_TRY(measure_copies(probe, MF_LANE_D2H, &device->d2h_bytes_per_s, &down_ns));
    device->copy_latency_ns = fmax(up_ns, down_ns);
    if (described.link_emulated) { /* a setting, not a finding */
        device->h2d_bytes_per_s = described.h2d_bytes_per_s;
        device->d2h_bytes_per_s = described.d2h_bytes_per_s;
    }
    MF_TRY(measure_update(probe, hardware));
    hardware->measured = true;
    return MF_STATUS_OK;
}

enum mf_status mf_measure_hardware(const struct mf_device_interface *interface,
                                   struct mf_device *device, double seconds_max,
                                   struct mf_hardware *hardware, struct mf_profile *profile)
{
    /* Some thirteen signatures, each with a warm-up, filling and three repeats at least. */
    struct probe probe = {
        .interface = interface, .device = device, .profile = profile, .seconds = seconds_max / 26};
    enum mf_status status = measure_all(&probe, hardware);
    struct mf_error error = *mf_status_error();
    mf_measure_release(interface, device, &probe.scratch);
    profile->measured_at_unix_s = (int64_t)time(NULL);
    mf_measure_method(interface, device, profile->method, sizeof(profile->method));
    return status == MF_STATUS_OK ? status : mf_status_restore(&error);
}
