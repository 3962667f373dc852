/* Loading and saving parameters of a running job, panel by panel through the transfer buffer. */
#include "runtime/executor_internal.h"

#include <string.h>

#include "runtime/host/bf16.h"

enum mf_status mf_executor_copy(struct mf_executor *executor, enum mf_lane lane, void *from,
                                void *to, int64_t bytes)
{
    const struct mf_device_interface *interface = executor->interface;
    struct mf_kernel_call call = {
        .kernel = MF_KERNEL_COPY,
        .shape = {.n = bytes},
        .operands = {{.pointer = from}, {.pointer = to}},
    };
    MF_TRY(interface->begin(executor->device, false));
    MF_TRY(interface->submit(executor->device, lane, &call, 0));
    return interface->sync(executor->device);
}

/* Moves bytes between host memory of ours and a buffer of either space. */
static enum mf_status put_bytes(struct mf_executor *executor, int32_t buffer, int64_t offset,
                                int64_t bytes)
{
    void *to = mf_executor_host_pointer(executor, buffer, offset);
    void *transfer = mf_executor_transfer(executor);
    if (executor->steps[0].buffers[buffer].space == MF_SPACE_HOST) {
        memcpy(to, transfer, (size_t)bytes);
        return MF_STATUS_OK;
    }
    return mf_executor_copy(executor, MF_LANE_H2D, transfer, to, bytes);
}

static enum mf_status get_bytes(struct mf_executor *executor, int32_t buffer, int64_t offset,
                                int64_t bytes)
{
    void *from = mf_executor_host_pointer(executor, buffer, offset);
    void *transfer = mf_executor_transfer(executor);
    if (executor->steps[0].buffers[buffer].space == MF_SPACE_HOST) {
        memcpy(transfer, from, (size_t)bytes);
        return MF_STATUS_OK;
    }
    return mf_executor_copy(executor, MF_LANE_D2H, from, transfer, bytes);
}

static enum mf_status put_weight(struct mf_executor *executor, int32_t unit, int32_t panel,
                                 const float *master)
{
    const struct mf_step_layout *layout = &executor->steps[0].layout;
    const struct mf_unit *shape = &executor->model->units[unit];
    int64_t elements = mf_model_panel_size(shape, panel);
    int64_t offset = mf_model_panel_offset(shape, panel);
    const int32_t buffers[MF_SPACE_COUNT] = {
        [MF_SPACE_DEVICE] = layout->weight_device[unit],
        [MF_SPACE_HOST] = layout->weight_host[unit],
    };
    struct mf_shadow *shadow = &executor->shadows[executor->shadow_first[unit] + panel];
    uint16_t *weights = mf_executor_transfer(executor);
    for (int64_t i = 0; i < elements; i++) {
        weights[i] = mf_bf16_from_float(master[offset + i]);
    }
    shadow->version++;
    for (int space = 0; space < MF_SPACE_COUNT; space++) {
        if (buffers[space] >= 0) {
            MF_TRY(put_bytes(executor, buffers[space], offset * 2, elements * 2));
            shadow->versions[space] = shadow->version;
        }
    }
    return MF_STATUS_OK;
}

enum mf_status mf_executor_put_unit(struct mf_executor *executor, int32_t unit, const float *master,
                                    const float *first, const float *second)
{
    const struct mf_unit *shape = &executor->model->units[unit];
    MF_ASSERT(shape->owner == unit);
    const float *parts[3] = {master, first, second};
    MF_TRY(mf_executor_flush(executor));
    for (int32_t panel = 0; panel < shape->panel_count; panel++) {
        int64_t elements = mf_model_panel_size(shape, panel);
        int64_t offset = mf_model_panel_offset(shape, panel);
        MF_TRY(put_weight(executor, unit, panel, master));
        float *state = mf_executor_transfer(executor);
        for (int part = 0; part < 3; part++) {
            size_t bytes = (size_t)elements * sizeof(float);
            if (parts[part] != NULL) {
                memcpy(state + part * elements, parts[part] + offset, bytes);
            } else {
                memset(state + part * elements, 0, bytes);
            }
        }
        MF_TRY(
            put_bytes(executor, executor->steps[0].layout.state[unit], offset * 12, elements * 12));
    }
    return MF_STATUS_OK;
}

enum mf_status mf_executor_get_unit(struct mf_executor *executor, int32_t unit, float *master,
                                    float *first, float *second)
{
    const struct mf_unit *shape = &executor->model->units[unit];
    MF_ASSERT(shape->owner == unit);
    float *parts[3] = {master, first, second};
    MF_TRY(mf_executor_flush(executor));
    for (int32_t panel = 0; panel < shape->panel_count; panel++) {
        int64_t elements = mf_model_panel_size(shape, panel);
        int64_t offset = mf_model_panel_offset(shape, panel);
        MF_TRY(
            get_bytes(executor, executor->steps[0].layout.state[unit], offset * 12, elements * 12));
        const float *state = mf_executor_transfer(executor);
        for (int part = 0; part < 3; part++) {
            if (parts[part] != NULL) {
                memcpy(parts[part] + offset, state + part * elements,
                       (size_t)elements * sizeof(float));
            }
        }
    }
    return MF_STATUS_OK;
}

enum mf_status mf_executor_get_gradient(struct mf_executor *executor, int32_t unit, float *out)
{
    const struct mf_unit *shape = &executor->model->units[unit];
    MF_ASSERT(shape->owner == unit);
    bool sums = mf_step_contributions(executor->model, &executor->plan->workload, unit) > 1;
    int64_t size = sums ? 4 : 2;
    for (int32_t panel = 0; panel < shape->panel_count; panel++) {
        int64_t elements = mf_model_panel_size(shape, panel);
        int64_t offset = mf_model_panel_offset(shape, panel);
        MF_TRY(get_bytes(executor, executor->steps[0].layout.gradient[unit], offset * size,
                         elements * size));
        const float *wide = mf_executor_transfer(executor);
        const uint16_t *narrow = mf_executor_transfer(executor);
        for (int64_t i = 0; i < elements; i++) {
            out[offset + i] = sums ? wide[i] : mf_bf16_to_float(narrow[i]);
        }
    }
    return MF_STATUS_OK;
}
