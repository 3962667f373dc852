/* Timing one kernel on a device: see measure.h. */
#include "profiler/measure.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "profiler/operands.h"
#include "profiler/statistics.h"

#define ALIGN 256
#define REPEATS_MIN 3
#define REPEATS_MAX 25
/* Parameters alternate between so many copies that together they are larger than a cache: the
 * device's, or for the CPU lane four times the last level's (an update that ran from a server's
 * cache was measured twice as fast as it is in a step). */
#define PARAMETER_BYTES (64ll << 20)
#define CPU_PARAMETER_BYTES_MAX (1ll << 30)
#define COPIES_MAX 64
/* One operand set beyond this is no kernel of a model that fits any machine. */
#define SET_BYTES_MAX (1ll << 46)
/* Scratch that is kept between measurements is at most this share of the device's memory. */
#define KEEP_SHARE 8
/* After a pause of so long a device is slow at first (measured on two cores: twofold, for some 80
 * ms, until its threads are on cores of their own): it is kept busy for a while before it counts.
 */
#define PAUSE_NS 5000000
#define WARM_NS 120000000

struct plan {
    const struct mf_signature *signature;
    struct mf_operands_need needs[MF_OPERANDS_MAX];
    int32_t copies;
    int64_t device_bytes;
    int64_t host_bytes;
    int64_t staging_offset; /* host: device operands are filled through here */
    int64_t staging_bytes;
};

static int64_t align(int64_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static int64_t rotated_bytes(enum mf_lane lane)
{
    int64_t cache = lane == MF_LANE_CPU ? 4 * (int64_t)sysconf(_SC_LEVEL3_CACHE_SIZE) : 0;
    cache = cache < CPU_PARAMETER_BYTES_MAX ? cache : CPU_PARAMETER_BYTES_MAX;
    return cache > PARAMETER_BYTES ? cache : PARAMETER_BYTES;
}

static enum mf_status lay_out(struct plan *plan)
{
    int64_t parameters = 0;
    int64_t others[2] = {0, 0}; /* device, host */
    int64_t rotated[2] = {0, 0};
    int64_t largest = 0;
    mf_operands_list(plan->signature, plan->needs);
    for (int i = 0; i < MF_OPERANDS_MAX; i++) {
        const struct mf_operands_need *need = &plan->needs[i];
        if (need->bytes > SET_BYTES_MAX) {
            return mf_status_set(MF_STATUS_NO_DEVICE_MEMORY,
                                 "an operand of %lld bytes cannot be measured",
                                 (long long)need->bytes);
        }
        int64_t bytes = align(need->bytes);
        parameters += need->parameter ? bytes : 0;
        *(need->parameter ? &rotated[need->host] : &others[need->host]) += bytes;
        largest = !need->host && bytes > largest ? bytes : largest;
    }
    int64_t wanted = rotated_bytes(plan->signature->lane);
    int64_t copies = parameters > 0 ? wanted / parameters + 1 : 1;
    plan->copies = (int32_t)(copies < COPIES_MAX ? copies : COPIES_MAX);
    plan->device_bytes = others[0] + rotated[0] * plan->copies;
    plan->staging_offset = others[1] + rotated[1] * plan->copies;
    plan->staging_bytes = largest < PARAMETER_BYTES ? largest : PARAMETER_BYTES;
    plan->host_bytes = plan->staging_offset + plan->staging_bytes;
    return MF_STATUS_OK;
}

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

static enum mf_status grow(const struct mf_device_interface *interface, struct mf_device *device,
                           struct mf_measure_scratch *scratch, const struct plan *plan)
{
    if (scratch->device_bytes >= plan->device_bytes && scratch->host_bytes >= plan->host_bytes) {
        return MF_STATUS_OK;
    }
    mf_measure_release(interface, device, scratch);
    if (plan->device_bytes > 0) {
        MF_TRY(interface->reserve(device, plan->device_bytes, &scratch->device));
        scratch->device_bytes = plan->device_bytes;
    }
    if (plan->host_bytes > 0) {
        MF_TRY(interface->map_host(device, plan->host_bytes, NULL, NULL, &scratch->host));
        scratch->host_bytes = plan->host_bytes;
    }
    return MF_STATUS_OK;
}

/* Device memory need not be the host's to write: in pieces through the staging area. */
static enum mf_status fill_on_device(const struct mf_device_interface *interface,
                                     struct mf_device *device,
                                     const struct mf_measure_scratch *scratch,
                                     const struct plan *plan, int index, char *to)
{
    const struct mf_operands_need *need = &plan->needs[index];
    char *staging = (char *)scratch->host + plan->staging_offset;
    int64_t piece = need->bytes < plan->staging_bytes ? need->bytes : plan->staging_bytes;
    mf_operands_fill(plan->signature, need, staging, piece);
    for (int64_t done = 0; done < need->bytes; done += piece) {
        piece = need->bytes - done < piece ? need->bytes - done : piece;
        struct mf_kernel_call call = {
            .kernel = MF_KERNEL_COPY,
            .shape = {.n = piece},
            .operands = {{.pointer = staging}, {.pointer = to + done}},
        };
        MF_TRY(interface->begin(device, false));
        MF_TRY(interface->submit(device, MF_LANE_H2D, &call, 0));
        MF_TRY(interface->sync(device));
    }
    return MF_STATUS_OK;
}

/* The flags that a signature leaves out, as a typical task has them. */
static uint32_t typical_flags(const struct mf_signature *signature)
{
    const struct mf_shape *shape = &signature->shape;
    switch (signature->kernel) {
    case MF_KERNEL_LINEAR_BACKWARD_DATA: /* the panels of a large matrix add to one sum */
        return shape->n * shape->k * 2 > MF_PANEL_BYTES_DEFAULT * 3 / 4
                   ? 0
                   : MF_SHAPE_FIRST_PANEL | MF_SHAPE_LAST_PANEL;
    case MF_KERNEL_HEAD_FORWARD:
        return MF_SHAPE_FIRST_PANEL;
    case MF_KERNEL_ADAMW:
        return MF_SHAPE_DECAY_FIRST;
    default:
        return 0;
    }
}

/* One call for each copy of the parameters, operands filled. */
static enum mf_status prepare_calls(const struct mf_device_interface *interface,
                                    struct mf_device *device,
                                    const struct mf_measure_scratch *scratch,
                                    const struct plan *plan, struct mf_kernel_call *calls)
{
    const struct mf_signature *signature = plan->signature;
    bool host_lane = signature->lane != MF_LANE_COMPUTE;
    int64_t offsets[2] = {0, 0};
    for (int32_t copy = 0; copy < plan->copies; copy++) {
        struct mf_kernel_call *call = &calls[copy];
        *call = (struct mf_kernel_call){
            .kernel = signature->kernel, .shape = signature->shape, .scalar0 = 1e-5};
        call->shape.flags |= typical_flags(signature);
        call->shape.k = signature->kernel == MF_KERNEL_ADAMW ? call->shape.n : call->shape.k;
        for (int i = 0; i < MF_OPERANDS_MAX; i++) {
            const struct mf_operands_need *need = &plan->needs[i];
            if (need->bytes == 0) {
                continue;
            }
            call->operands[i].stride = need->stride;
            if (copy > 0 && !need->parameter) {
                call->operands[i].pointer = calls[0].operands[i].pointer;
                continue;
            }
            char *base = need->host ? scratch->host : scratch->device;
            char *at = base + offsets[need->host];
            offsets[need->host] += align(need->bytes);
            if (need->host) {
                mf_operands_fill(signature, need, at, need->bytes);
                call->operands[i].pointer = host_lane ? at : interface->device_address(device, at);
            } else {
                MF_TRY(fill_on_device(interface, device, scratch, plan, i, at));
                call->operands[i].pointer = at;
            }
        }
    }
    return MF_STATUS_OK;
}

/* Runs `count` calls as one graph; ns gets how long each took. */
static enum mf_status run(const struct mf_device_interface *interface, struct mf_device *device,
                          const struct plan *plan, const struct mf_kernel_call *calls,
                          int32_t count, double *ns)
{
    MF_TRY(interface->begin(device, true));
    for (int32_t i = 0; i < count; i++) {
        MF_TRY(interface->submit(device, plan->signature->lane, &calls[i % plan->copies], i));
    }
    MF_TRY(interface->sync(device));
    for (int32_t i = 0; i < count; i++) {
        struct mf_device_span span;
        if (!interface->span(device, i, &span)) {
            return mf_status_set(MF_STATUS_DEVICE, "the device did not say when a kernel ran");
        }
        ns[i] = (double)(span.end_ns - span.start_ns);
    }
    return MF_STATUS_OK;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* Leaves in ns[0] what one call takes. */
static enum mf_status warm_up(const struct mf_device_interface *interface, struct mf_device *device,
                              const struct plan *plan, const struct mf_kernel_call *calls,
                              bool paused, double *ns)
{
    int64_t end_ns = now_ns() + (paused ? WARM_NS : 0);
    MF_TRY(run(interface, device, plan, calls, 1, ns));
    while (now_ns() < end_ns) {
        MF_TRY(run(interface, device, plan, calls, 1, ns));
    }
    return MF_STATUS_OK;
}

static enum mf_status measure(const struct mf_device_interface *interface, struct mf_device *device,
                              struct mf_measure_scratch *scratch, struct plan *plan,
                              double seconds_max, struct mf_measurement *out)
{
    struct mf_kernel_call calls[COPIES_MAX];
    double ns[REPEATS_MAX];
    bool paused = now_ns() - scratch->ended_ns > PAUSE_NS;
    MF_TRY(lay_out(plan));
    MF_TRY(grow(interface, device, scratch, plan));
    MF_TRY(interface->prepare(device, REPEATS_MAX));
    MF_TRY(prepare_calls(interface, device, scratch, plan, calls));
    MF_TRY(warm_up(interface, device, plan, calls, paused, ns));
    /* The warm-up says little about the length: a product may have chosen its algorithm in it. */
    MF_TRY(run(interface, device, plan, calls, REPEATS_MIN, ns));
    double typical_ns = mf_statistics_median(ns, REPEATS_MIN);
    double repeats = typical_ns > 0 ? seconds_max * 1e9 / typical_ns : REPEATS_MAX;
    int32_t count = repeats < REPEATS_MAX ? (int32_t)repeats : REPEATS_MAX;
    if (count > REPEATS_MIN) {
        MF_TRY(run(interface, device, plan, calls, count - REPEATS_MIN, ns + REPEATS_MIN));
    }
    count = count > REPEATS_MIN ? count : REPEATS_MIN;
    double median = mf_statistics_median(ns, count);
    *out = (struct mf_measurement){
        .signature = *plan->signature,
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
    struct plan plan = {.signature = signature};
    struct mf_hardware_device described;
    enum mf_status status = measure(interface, device, scratch, &plan, seconds_max, out);
    /* What is kept may not stand in the way of a session that is opened meanwhile. */
    struct mf_error error = *mf_status_error();
    if (status != MF_STATUS_OK || interface->describe(device, &described) != MF_STATUS_OK ||
        scratch->device_bytes > described.memory_bytes / KEEP_SHARE) {
        mf_measure_release(interface, device, scratch);
    }
    scratch->ended_ns = now_ns();
    return status == MF_STATUS_OK ? status : mf_status_restore(&error);
}

static const char *placement(uint32_t flags)
{
    return (flags & MF_SHAPE_WEIGHT_HOST) != 0   ? ", weight in host memory"
           : (flags & MF_SHAPE_OUTPUT_HOST) != 0 ? ", output in host memory"
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
