/* Counting what crosses the link: see counts.h. */
#include "profiler/counts.h"

#include <stdlib.h>
#include <string.h>

#include "profiler/calls.h"

bool mf_counts_wanted(const struct mf_signature *signature)
{
    uint32_t host = MF_SHAPE_WEIGHT_HOST | MF_SHAPE_OUTPUT_HOST;
    return signature->lane == MF_LANE_H2D || signature->lane == MF_LANE_D2H ||
           (signature->lane == MF_LANE_COMPUTE && (signature->shape.flags & host) != 0);
}

/* Rows of the panel that the tokens in the operands name. */
static int64_t count_touched(const struct mf_calls *calls)
{
    const struct mf_operands_need *need = &calls->needs[0];
    int64_t panel_rows = calls->signature.shape.k;
    int64_t touched = 0;
    int32_t *tokens = malloc((size_t)need->bytes);
    char *seen = calloc((size_t)panel_rows, 1);
    MF_ASSERT(tokens != NULL && seen != NULL);
    mf_operands_fill(&calls->signature, need, tokens, need->bytes);
    for (int64_t i = 0; i < need->bytes / 4; i++) {
        if (tokens[i] < panel_rows) { /* as others lie in other panels of the table */
            touched += seen[tokens[i]] == 0;
            seen[tokens[i]] = 1;
        }
    }
    free(tokens);
    free(seen);
    return touched;
}

/* Of the operand in host memory; there is room for a bias even where there is none. */
static int64_t find_operand(const struct mf_calls *calls, const struct mf_operands_need *need)
{
    const struct mf_shape *shape = &calls->signature.shape;
    bool touched = (shape->flags & MF_SHAPE_TOUCHED) != 0;
    switch (calls->signature.kernel) {
    case MF_KERNEL_EMBEDDING_FORWARD:
        return count_touched(calls) * shape->n * 2;
    case MF_KERNEL_EMBEDDING_BACKWARD:
        return (touched ? count_touched(calls) : shape->k) * shape->n * 2;
    case MF_KERNEL_LINEAR_FORWARD:
    case MF_KERNEL_LINEAR_BACKWARD_DATA:
    case MF_KERNEL_LINEAR_BACKWARD_WEIGHT:
        return shape->n * (shape->k + ((shape->flags & MF_SHAPE_BIAS) != 0)) * 2;
    default:
        return need->bytes;
    }
}

static void find_needed(const struct mf_calls *calls, int64_t out[static 2])
{
    const struct mf_signature *signature = &calls->signature;
    out[0] = out[1] = 0;
    if (signature->lane != MF_LANE_COMPUTE) {
        out[signature->lane == MF_LANE_D2H] = signature->shape.n;
        return;
    }
    for (int i = 0; i < MF_OPERANDS_MAX; i++) {
        if (calls->needs[i].host && calls->needs[i].parameter) {
            out[(signature->shape.flags & MF_SHAPE_OUTPUT_HOST) != 0] +=
                find_operand(calls, &calls->needs[i]);
        }
    }
}

struct work {
    const struct mf_device_interface *interface;
    struct mf_device *device;
    const struct mf_calls *calls;
};

static enum mf_status run_once(void *context)
{
    const struct work *work = context;
    MF_TRY(work->interface->begin(work->device, false));
    MF_TRY(work->interface->submit(work->device, work->calls->signature.lane,
                                   &work->calls->calls[0], 0));
    return work->interface->sync(work->device);
}

static enum mf_status measure(const struct mf_device_interface *interface, struct mf_device *device,
                              struct mf_measure_scratch *scratch,
                              const struct mf_signature *signature, struct mf_counts *out)
{
    struct mf_calls calls;
    struct work work = {interface, device, &calls};
    if (interface->count == NULL) {
        return mf_status_set(MF_STATUS_UNSUPPORTED, "the %s device has no link to count on",
                             interface->name);
    }
    MF_TRY(mf_calls_plan(signature, 1, &calls));
    MF_TRY(interface->prepare(device, 1));
    MF_TRY(mf_calls_prepare(interface, device, scratch, &calls));
    find_needed(&calls, out->needed_bytes);
    MF_TRY(run_once(&work)); /* chooses algorithms, loads code: not to be counted */
    return interface->count(device, run_once, &work, &out->counted);
}

enum mf_status mf_counts_measure(const struct mf_device_interface *interface,
                                 struct mf_device *device, struct mf_measure_scratch *scratch,
                                 const struct mf_signature *signature, struct mf_counts *out)
{
    enum mf_status status = measure(interface, device, scratch, signature, out);
    if (status != MF_STATUS_OK) {
        struct mf_error error = *mf_status_error();
        mf_measure_release(interface, device, scratch);
        (void)mf_status_restore(&error);
    }
    return status;
}
