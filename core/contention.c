/* Contention of lanes as data: see contention.h. */
#include "core/contention.h"

#include <string.h>

#include "core/json.h"

static const struct {
    const char *name;
    enum mf_lane lane;
} loads[MF_LOAD_COUNT] = {
    [MF_LOAD_COMPUTE] = {"compute", MF_LANE_COMPUTE},
    [MF_LOAD_GPU_UPDATE] = {"gpu_update", MF_LANE_COMPUTE},
    [MF_LOAD_DIRECT_READ] = {"direct_read", MF_LANE_COMPUTE},
    [MF_LOAD_DIRECT_WRITE] = {"direct_write", MF_LANE_COMPUTE},
    [MF_LOAD_H2D] = {"h2d", MF_LANE_H2D},
    [MF_LOAD_D2H] = {"d2h", MF_LANE_D2H},
    [MF_LOAD_CPU] = {"cpu", MF_LANE_CPU},
};

enum mf_load mf_contention_load(enum mf_lane lane, enum mf_kernel kernel, uint32_t shape_flags)
{
    switch (lane) {
    case MF_LANE_H2D:
        return MF_LOAD_H2D;
    case MF_LANE_D2H:
        return MF_LOAD_D2H;
    case MF_LANE_CPU:
        return MF_LOAD_CPU;
    default:
        break;
    }
    if ((shape_flags & MF_SHAPE_OUTPUT_HOST) != 0) {
        return MF_LOAD_DIRECT_WRITE;
    }
    if ((shape_flags & MF_SHAPE_WEIGHT_HOST) != 0) {
        return MF_LOAD_DIRECT_READ;
    }
    bool update = kernel == MF_KERNEL_ADAMW || kernel == MF_KERNEL_GRADIENT_ACCUMULATE ||
                  kernel == MF_KERNEL_GRADIENT_NORM;
    return update ? MF_LOAD_GPU_UPDATE : MF_LOAD_COMPUTE;
}

enum mf_lane mf_contention_lane(enum mf_load load)
{
    return loads[load].lane;
}

const char *mf_contention_load_name(enum mf_load load)
{
    return load < MF_LOAD_COUNT ? loads[load].name : "?";
}
