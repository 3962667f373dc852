/* Kernel calls with operands: see calls.h. */
#include "profiler/calls.h"

#include <string.h>
#include <unistd.h>

#define ALIGN 256
/* Parameters alternate between so many copies that together they are larger than a cache: the
 * device's, or for the CPU lane four times the last level's (an update that ran from a server's
 * cache was measured twice as fast as it is in a step). */
#define PARAMETER_BYTES (64ll << 20)
#define CPU_PARAMETER_BYTES_MAX (1ll << 30)
/* One operand set beyond this is no kernel of a model that fits any machine. */
#define SET_BYTES_MAX (1ll << 46)

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

enum mf_status mf_calls_plan(const struct mf_signature *signature, int64_t rotated_bytes_asked,
                             struct mf_calls *out)
{
    int64_t parameters = 0;
    int64_t others[2] = {0, 0}; /* device, host */
    int64_t rotated[2] = {0, 0};
    int64_t largest = 0;
    out->signature = *signature;
    mf_operands_list(signature, out->needs);
    for (int i = 0; i < MF_OPERANDS_MAX; i++) {
        const struct mf_operands_need *need = &out->needs[i];
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
    int64_t wanted = rotated_bytes(signature->lane);
    bool host = signature->lane != MF_LANE_COMPUTE;
    wanted = rotated_bytes_asked > 0 && (host || wanted > rotated_bytes_asked) ? rotated_bytes_asked
                                                                               : wanted;
    int64_t copies = parameters > 0 ? wanted / parameters + 1 : 1;
    out->count = (int32_t)(copies < MF_CALLS_COPIES_MAX ? copies : MF_CALLS_COPIES_MAX);
    out->device_bytes = others[0] + rotated[0] * out->count;
    out->staging_offset = others[1] + rotated[1] * out->count;
    out->staging_bytes = largest < PARAMETER_BYTES ? largest : PARAMETER_BYTES;
    out->host_bytes = out->staging_offset + out->staging_bytes;
    return MF_STATUS_OK;
}

static enum mf_status grow(const struct mf_device_interface *interface, struct mf_device *device,
                           struct mf_measure_scratch *scratch, const struct mf_calls *calls)
{
    if (scratch->device_bytes >= calls->device_bytes && scratch->host_bytes >= calls->host_bytes) {
        return MF_STATUS_OK;
    }
    mf_measure_release(interface, device, scratch);
    if (calls->device_bytes > 0) {
        MF_TRY(interface->reserve(device, calls->device_bytes, &scratch->device));
        scratch->device_bytes = calls->device_bytes;
    }
    if (calls->host_bytes > 0) {
        MF_TRY(interface->map_host(device, calls->host_bytes, NULL, NULL, &scratch->host));
        scratch->host_bytes = calls->host_bytes;
    }
    return MF_STATUS_OK;
}

/* Device memory need not be the host's to write: in pieces through the staging area. */
static enum mf_status fill_on_device(const struct mf_device_interface *interface,
                                     struct mf_device *device,
                                     const struct mf_measure_scratch *scratch,
                                     const struct mf_calls *calls, int index, char *to)
{
    const struct mf_operands_need *need = &calls->needs[index];
    if (need->content == MF_OPERANDS_ZERO) {
        return MF_STATUS_OK; /* written before it is read, or only copied */
    }
    char *staging = (char *)scratch->host + calls->staging_offset;
    int64_t piece = need->bytes < calls->staging_bytes ? need->bytes : calls->staging_bytes;
    mf_operands_fill(&calls->signature, need, staging, piece);
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

/* Gives operand `index` of one copy its place and its data: those of the first copy, which lies at
 * `first_offset`. */
static enum mf_status place(const struct mf_device_interface *interface, struct mf_device *device,
                            const struct mf_measure_scratch *scratch, const struct mf_calls *calls,
                            int index, int64_t offset, int64_t first_offset, struct mf_operand *out)
{
    const struct mf_operands_need *need = &calls->needs[index];
    char *at = (char *)(need->host ? scratch->host : scratch->device) + offset;
    if (!need->host) {
        out->pointer = at;
        return fill_on_device(interface, device, scratch, calls, index, at);
    }
    if (offset != first_offset) {
        memcpy(at, (char *)scratch->host + first_offset, (size_t)need->bytes);
    } else {
        mf_operands_fill(&calls->signature, need, at, need->bytes);
    }
    out->pointer = calls->signature.lane == MF_LANE_COMPUTE ? interface->device_address(device, at)
                                                            : (void *)at;
    return MF_STATUS_OK;
}

enum mf_status mf_calls_prepare(const struct mf_device_interface *interface,
                                struct mf_device *device, struct mf_measure_scratch *scratch,
                                struct mf_calls *calls)
{
    const struct mf_signature *signature = &calls->signature;
    int64_t offsets[2] = {0, 0};
    int64_t first[MF_OPERANDS_MAX] = {0};
    calls->next = 0;
    MF_TRY(grow(interface, device, scratch, calls));
    for (int32_t copy = 0; copy < calls->count; copy++) {
        struct mf_kernel_call *call = &calls->calls[copy];
        *call = (struct mf_kernel_call){
            .kernel = signature->kernel, .shape = signature->shape, .scalar0 = 1e-5};
        call->shape.flags |= typical_flags(signature);
        call->shape.k = signature->kernel == MF_KERNEL_ADAMW ? call->shape.n : call->shape.k;
        for (int i = 0; i < MF_OPERANDS_MAX; i++) {
            const struct mf_operands_need *need = &calls->needs[i];
            if (need->bytes == 0) {
                continue;
            }
            call->operands[i].stride = need->stride;
            if (copy > 0 && !need->parameter) {
                call->operands[i].pointer = calls->calls[0].operands[i].pointer;
                continue;
            }
            first[i] = copy == 0 ? offsets[need->host] : first[i];
            MF_TRY(place(interface, device, scratch, calls, i, offsets[need->host], first[i],
                         &call->operands[i]));
            offsets[need->host] += align(need->bytes);
        }
    }
    return MF_STATUS_OK;
}

const struct mf_kernel_call *mf_calls_next(struct mf_calls *calls)
{
    calls->next = (calls->next + 1) % calls->count;
    return &calls->calls[calls->next];
}

enum mf_status mf_calls_run(const struct mf_device_interface *interface, struct mf_device *device,
                            struct mf_calls *calls, int32_t count, double *ns)
{
    MF_TRY(interface->begin(device, true));
    for (int32_t i = 0; i < count; i++) {
        MF_TRY(interface->submit(device, calls->signature.lane, mf_calls_next(calls), i));
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
