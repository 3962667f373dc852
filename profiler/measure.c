/* Timing one kernel on a device: see measure.h. */
#include "profiler/measure.h"

#include <stdio.h>

#include "core/clock.h"
#include "profiler/calls.h"
#include "profiler/statistics.h"

#define REPEATS_MIN 3
#define REPEATS_MAX 25
/* Scratch that is kept between measurements is at most this share of the device's memory. */
#define KEEP_SHARE 8
/* After a pause of so long a device is slow at first (measured on two cores: twofold, for some 80
 * ms, until its threads are on cores of their own): it is kept busy for a while before it counts.
 */
#define PAUSE_NS 5000000
#define WARM_NS 120000000

void mf_measure_release(const struct mf_device_interface *interface, struct mf_device *device,
                        struct mf_measure_scratch *scratch)
{
    if (scratch->device != NULL) {
        interface->release(device, scratch->device);
    }
    if (scratch->host != NULL) {
        interface->unmap_host(device, scratch->host);
    }
    *scratch = (struct mf_measure_scratch){0};
}

/* Leaves in ns[0] what one call takes. */
static enum mf_status warm_up(const struct mf_device_interface *interface, struct mf_device *device,
                              struct mf_calls *calls, bool paused, double *ns)
{
    int64_t end_ns = mf_clock_ns() + (paused ? WARM_NS : 0);
    MF_TRY(mf_calls_run(interface, device, calls, 1, ns));
    while (mf_clock_ns() < end_ns) {
        MF_TRY(mf_calls_run(interface, device, calls, 1, ns));
    }
    return MF_STATUS_OK;
}

static enum mf_status measure(const struct mf_device_interface *interface, struct mf_device *device,
                              struct mf_measure_scratch *scratch,
                              const struct mf_signature *signature, double seconds_max,
                              struct mf_measurement *out)
{
    struct mf_calls planned;
    struct mf_calls *calls = &planned;
    double ns[REPEATS_MAX];
    bool paused = mf_clock_ns() - scratch->ended_ns > PAUSE_NS;
    MF_TRY(mf_calls_plan(signature, 0, calls));
    MF_TRY(interface->prepare(device, REPEATS_MAX));
    MF_TRY(mf_calls_prepare(interface, device, scratch, calls));
    MF_TRY(warm_up(interface, device, calls, paused, ns));
    /* The warm-up says little about the length: a product may have chosen its algorithm in it. */
    MF_TRY(mf_calls_run(interface, device, calls, REPEATS_MIN, ns));
    double typical_ns = mf_statistics_median(ns, REPEATS_MIN);
    double repeats = typical_ns > 0 ? seconds_max * 1e9 / typical_ns : REPEATS_MAX;
    int32_t count = repeats < REPEATS_MAX ? (int32_t)repeats : REPEATS_MAX;
    if (count > REPEATS_MIN) {
        MF_TRY(mf_calls_run(interface, device, calls, count - REPEATS_MIN, ns + REPEATS_MIN));
    }
    count = count > REPEATS_MIN ? count : REPEATS_MIN;
    double median = mf_statistics_median(ns, count);
    *out = (struct mf_measurement){
        .signature = *signature,
        .median_ns = median,
        .spread_ns = mf_statistics_spread(ns, count, median),
        .samples = count,
    };
    return MF_STATUS_OK;
}

void mf_measure_method(const struct mf_device_interface *interface, struct mf_device *device,
                       char *out, int32_t size)
{
    bool said = interface->trace_method != NULL;
    (void)snprintf(out, (size_t)size, "%s",
                   said ? interface->trace_method(device) : interface->name);
}

enum mf_status mf_measure_one(const struct mf_device_interface *interface, struct mf_device *device,
                              struct mf_measure_scratch *scratch,
                              const struct mf_signature *signature, double seconds_max,
                              struct mf_measurement *out)
{
    struct mf_hardware_device described;
    enum mf_status status = measure(interface, device, scratch, signature, seconds_max, out);
    /* What is kept may not stand in the way of a session that is opened meanwhile. */
    struct mf_error error = *mf_status_error();
    if (status != MF_STATUS_OK || interface->describe(device, &described) != MF_STATUS_OK ||
        scratch->device_bytes > described.memory_bytes / KEEP_SHARE) {
        mf_measure_release(interface, device, scratch);
    }
    scratch->ended_ns = mf_clock_ns();
    return status == MF_STATUS_OK ? status : mf_status_restore(&error);
}

static const char *placement(uint32_t flags)
{
    return (flags & MF_SHAPE_WEIGHT_HOST) != 0   ? ", weight in host memory"
           : (flags & MF_SHAPE_TOUCHED) != 0     ? ", touched rows in host memory"
           : (flags & MF_SHAPE_OUTPUT_HOST) != 0 ? ", output in host memory"
           : (flags & MF_SHAPE_APART) != 0       ? ", results apart"
                                                 : "";
}

void mf_measure_describe(const struct mf_signature *signature, char *out, int32_t size)
{
    const struct mf_shape *shape = &signature->shape;
    char width[48] = "";
    char tokens[48] = "";
    if (shape->n > 0 && shape->k > 0) {
        (void)snprintf(width, sizeof(width), " %lldx%lld", (long long)shape->n,
                       (long long)shape->k);
    } else if (shape->n > 0) {
        (void)snprintf(width, sizeof(width), " %lld%s", (long long)shape->n,
                       signature->kernel == MF_KERNEL_COPY ? " bytes" : "");
    } else if (shape->heads > 0) {
        (void)snprintf(width, sizeof(width), " %d heads of %d", shape->heads, shape->head_dim);
    }
    if (shape->rows > 0) {
        (void)snprintf(tokens, sizeof(tokens), ", %lld tokens", (long long)shape->rows);
    }
    (void)snprintf(out, (size_t)size, "%s%s%s%s%s%s", mf_kernel_name(signature->kernel), width,
                   tokens, (shape->flags & MF_SHAPE_GRADIENT_FP32) != 0 ? ", fp32 gradient" : "",
                   placement(shape->flags),
                   signature->lane == MF_LANE_COMPUTE ? ""
                   : signature->lane == MF_LANE_CPU   ? ", on the CPU"
                   : signature->lane == MF_LANE_H2D   ? ", to the device"
                                                      : ", from the device");
}
