/* Loading and saving parameters of a running job, panel by panel through the transfer buffer. */
#include "runtime/executor_internal.h"

#include <string.h>

#include "runtime/host/adamw.h"
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

/* Moves bytes between the transfer buffer, `at` bytes from its start, and a buffer of either space.
 */
static enum mf_status put_bytes(struct mf_executor *executor, int64_t at, int32_t buffer,
                                int64_t offset, int64_t bytes)
{
    void *to = mf_executor_host_pointer(executor, buffer, offset);
    char *from = (char *)mf_executor_transfer(executor) + at;
    if (executor->steps[0].buffers[buffer].space == MF_SPACE_HOST) {
        memcpy(to, from, (size_t)bytes);
        return MF_STATUS_OK;
    }
    return mf_executor_copy(executor, MF_LANE_H2D, from, to, bytes);
}

static enum mf_status get_bytes(struct mf_executor *executor, int64_t at, int32_t buffer,
                                int64_t offset, int64_t bytes)
{
    void *from = mf_executor_host_pointer(executor, buffer, offset);
    char *to = (char *)mf_executor_transfer(executor) + at;
    if (executor->steps[0].buffers[buffer].space == MF_SPACE_HOST) {
        memcpy(to, from, (size_t)bytes);
        return MF_STATUS_OK;
    }
    return mf_executor_copy(executor, MF_LANE_D2H, from, to, bytes);
}

/* A panel of parameters in the transfer buffer: the state as ADAMW wants it, then the weights. */
struct parts {
    float *m;
    float *v;
    int16_t *rest;
    uint16_t *weight;
};

static struct parts parts_of(const struct mf_executor *executor, int64_t elements)
{
    float *m = mf_executor_transfer(executor);
    int16_t *rest = (int16_t *)(void *)(m + 2 * elements);
    return (struct parts){m, m + elements, rest, (uint16_t *)rest + elements};
}

/* Where the weights of a unit lie, [space]; -1 = not there. */
static void find_weights(const struct mf_executor *executor, int32_t unit,
                         int32_t buffers[static MF_SPACE_COUNT])
{
    const struct mf_step_layout *layout = &executor->steps[0].layout;
    buffers[MF_SPACE_DEVICE] = layout->weight_device[unit];
    buffers[MF_SPACE_HOST] = layout->weight_host[unit];
}

static enum mf_status put_panel(struct mf_executor *executor, int32_t unit, int32_t panel)
{
    const struct mf_unit *shape = &executor->model->units[unit];
    int64_t elements = mf_model_panel_size(shape, panel);
    int64_t offset = mf_model_panel_offset(shape, panel);
    struct mf_shadow *shadow = &executor->shadows[executor->shadow_first[unit] + panel];
    int32_t buffers[MF_SPACE_COUNT];
    find_weights(executor, unit, buffers);
    MF_TRY(put_bytes(executor, 0, executor->steps[0].layout.state[unit], offset * MF_STATE_BYTES,
                     elements * MF_STATE_BYTES));
    shadow->version++;
    for (int space = 0; space < MF_SPACE_COUNT; space++) {
        if (buffers[space] >= 0) {
            MF_TRY(put_bytes(executor, elements * MF_STATE_BYTES, buffers[space], offset * 2,
                             elements * 2));
            shadow->versions[space] = shadow->version;
        }
    }
    return MF_STATUS_OK;
}

static enum mf_status get_panel(struct mf_executor *executor, int32_t unit, int32_t panel)
{
    const struct mf_unit *shape = &executor->model->units[unit];
    int64_t elements = mf_model_panel_size(shape, panel);
    int64_t offset = mf_model_panel_offset(shape, panel);
    const struct mf_shadow *shadow = &executor->shadows[executor->shadow_first[unit] + panel];
    enum mf_space space = mf_shadow_valid(shadow, MF_SPACE_HOST) ? MF_SPACE_HOST : MF_SPACE_DEVICE;
    int32_t buffers[MF_SPACE_COUNT];
    find_weights(executor, unit, buffers);
    mf_shadow_read(shadow, space);
    MF_TRY(
        get_bytes(executor, elements * MF_STATE_BYTES, buffers[space], offset * 2, elements * 2));
    return get_bytes(executor, 0, executor->steps[0].layout.state[unit], offset * MF_STATE_BYTES,
                     elements * MF_STATE_BYTES);
}

enum mf_status mf_executor_put_unit(struct mf_executor *executor, int32_t unit, const float *master,
                                    const float *first, const float *second)
{
    const struct mf_unit *shape = &executor->model->units[unit];
    MF_ASSERT(shape->owner == unit);
    MF_TRY(mf_executor_flush(executor));
    for (int32_t panel = 0; panel < shape->panel_count; panel++) {
        int64_t elements = mf_model_panel_size(shape, panel);
        int64_t offset = mf_model_panel_offset(shape, panel);
        struct parts parts = parts_of(executor, elements);
        for (int64_t i = 0; i < elements; i++) {
            parts.m[i] = first != NULL ? first[offset + i] : 0;
            mf_adamw_split(master[offset + i], second != NULL ? second[offset + i] : 0,
                           &parts.weight[i], &parts.rest[i], &parts.v[i]);
        }
        MF_TRY(put_panel(executor, unit, panel));
    }
    return MF_STATUS_OK;
}

enum mf_status mf_executor_get_unit(struct mf_executor *executor, int32_t unit, float *master,
                                    float *first, float *second)
{
    const struct mf_unit *shape = &executor->model->units[unit];
    MF_ASSERT(shape->owner == unit);
    MF_TRY(mf_executor_flush(executor));
    for (int32_t panel = 0; panel < shape->panel_count; panel++) {
        int64_t elements = mf_model_panel_size(shape, panel);
        int64_t offset = mf_model_panel_offset(shape, panel);
        struct parts parts = parts_of(executor, elements);
        MF_TRY(get_panel(executor, unit, panel));
        for (int64_t i = 0; i < elements && master != NULL; i++) {
            master[offset + i] = mf_adamw_join(parts.weight[i], parts.rest[i], parts.v[i]);
        }
        for (int64_t i = 0; i < elements && second != NULL; i++) {
            second[offset + i] = mf_adamw_moment(parts.v[i]);
        }
        if (first != NULL) {
            memcpy(first + offset, parts.m, (size_t)elements * sizeof(*first));
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
        MF_TRY(get_bytes(executor, 0, executor->steps[0].layout.gradient[unit], offset * size,
                         elements * size));
        const float *wide = mf_executor_transfer(executor);
        const uint16_t *narrow = mf_executor_transfer(executor);
        for (int64_t i = 0; i < elements; i++) {
            out[offset + i] = sums ? wide[i] : mf_bf16_to_float(narrow[i]);
        }
    }
    return MF_STATUS_OK;
}
