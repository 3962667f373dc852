/* Tasks of each kind of load: see loads.h. */
#include "profiler/loads.h"

#include <stdlib.h>
#include <string.h>

#include "profiler/statistics.h"

#define REPEATS 5
#define SHRINKS_MAX 8
#define SHRINK 4
#define N_MIN 64 /* elements: what kernels for whole matrices still take */
/* All sets together stay below about half of a small device; pinning and filling takes time. */
#define MEMORY_SHARE 16
#define ROTATED_BYTES_HOST (8ll << 20)
/* Of host memory so much that no cache holds it: a server's was seen to keep half of 400 MB. */
#define ROTATED_BYTES_GPU (1536ll << 20)

struct load {
    enum mf_lane lane;
    enum mf_kernel kernel;
    uint32_t flags;
    struct mf_shape sizes[2]; /* on the host device, on a GPU */
};

/* On a GPU: copies of half a panel, a product of 8192 tokens, updates of a few million parameters.
 * On the host device some milliseconds of each. */
static const struct load table[MF_LOADS_SETS] = {
    [MF_LOAD_COMPUTE] = {MF_LANE_COMPUTE,
                         MF_KERNEL_LINEAR_FORWARD,
                         0,
                         {{.rows = 128, .n = 512, .k = 512}, {.rows = 8192, .n = 4096, .k = 4096}}},
    [MF_LOAD_GPU_UPDATE] = {MF_LANE_COMPUTE,
                            MF_KERNEL_ADAMW,
                            0,
                            {{.n = 512 << 10}, {.n = 16 << 20}}},
    [MF_LOAD_DIRECT_READ] = {MF_LANE_COMPUTE,
                             MF_KERNEL_EMBEDDING_FORWARD,
                             MF_SHAPE_WEIGHT_HOST,
                             {{.rows = 2048, .n = 1024, .k = 4096},
                              {.rows = 2048, .n = 4096, .k = 8192}}},
    [MF_LOAD_DIRECT_WRITE] = {MF_LANE_COMPUTE,
                              MF_KERNEL_LINEAR_BACKWARD_WEIGHT,
                              MF_SHAPE_OUTPUT_HOST,
                              {{.rows = 32, .n = 1024, .k = 1024},
                               {.rows = 1024, .n = 2048, .k = 4096}}},
    [MF_LOAD_H2D] = {MF_LANE_H2D, MF_KERNEL_COPY, 0, {{.n = 4 << 20}, {.n = 16 << 20}}},
    [MF_LOAD_D2H] = {MF_LANE_D2H, MF_KERNEL_COPY, 0, {{.n = 4 << 20}, {.n = 16 << 20}}},
    [MF_LOAD_CPU] = {MF_LANE_CPU, MF_KERNEL_ADAMW, 0, {{.n = 512 << 10}, {.n = 4 << 20}}},
    [MF_LOADS_TINY(MF_LANE_COMPUTE)] = {MF_LANE_COMPUTE,
                                        MF_KERNEL_ADD_FORWARD,
                                        0,
                                        {{.rows = 1, .n = 256}, {.rows = 1, .n = 256}}},
    [MF_LOADS_TINY(MF_LANE_H2D)] = {MF_LANE_H2D, MF_KERNEL_COPY, 0, {{.n = 256}, {.n = 256}}},
    [MF_LOADS_TINY(MF_LANE_D2H)] = {MF_LANE_D2H, MF_KERNEL_COPY, 0, {{.n = 256}, {.n = 256}}},
    [MF_LOADS_TINY(
        MF_LANE_CPU)] = {MF_LANE_CPU, MF_KERNEL_GRADIENT_NORM, 0, {{.n = 256}, {.n = 256}}},
};

static bool memory_is_short(enum mf_status status)
{
    return status == MF_STATUS_NO_DEVICE_MEMORY || status == MF_STATUS_NO_MEMORY;
}

static enum mf_status prepare(struct mf_loads *loads, int set, int64_t rotated_bytes_max)
{
    const struct load *load = &table[set];
    struct mf_shape shape = load->sizes[loads->cuda];
    enum mf_status status = MF_STATUS_OK;
    shape.flags = load->flags;
    for (int shrink = 0; shrink < SHRINKS_MAX; shrink++) {
        struct mf_signature signature = mf_profile_signature(load->lane, load->kernel, &shape);
        MF_TRY(mf_calls_plan(&signature, rotated_bytes_max, &loads->sets[set]));
        status = mf_calls_prepare(loads->interface, loads->device, &loads->scratch[set],
                                  &loads->sets[set]);
        if (!memory_is_short(status)) {
            break;
        }
        mf_measure_release(loads->interface, loads->device, &loads->scratch[set]);
        if (shape.rows > SHRINK) {
            shape.rows /= SHRINK;
        } else {
            shape.n /= SHRINK;
        }
    }
    return status;
}

/* Half the work and half the bytes, in operands that were laid out for more. */
static bool halve(struct mf_calls *calls)
{
    const struct mf_shape *shape = &calls->calls[0].shape;
    bool by_rows = calls->signature.kernel == MF_KERNEL_EMBEDDING_FORWARD; /* n is its stride */
    if (by_rows ? shape->rows <= 1 : shape->n <= N_MIN) {
        return false;
    }
    for (int32_t i = 0; i < calls->count; i++) {
        struct mf_shape *own = &calls->calls[i].shape;
        *(by_rows ? &own->rows : &own->n) /= 2;
        own->k = calls->signature.kernel == MF_KERNEL_ADAMW ? own->n : own->k;
    }
    return true;
}

static enum mf_status settle(struct mf_loads *loads, int set, double lone_ns_max)
{
    struct mf_calls *calls = &loads->sets[set];
    bool smaller = false;
    do {
        double ns[2]; /* a product may choose its algorithm in the first */
        smaller = false;
        MF_TRY(mf_calls_run(loads->interface, loads->device, calls, 2, ns));
        for (; set < MF_LOAD_COUNT && ns[1] > lone_ns_max && halve(calls); ns[1] /= 2) {
            smaller = true;
        }
    } while (smaller);
    return mf_loads_time(loads, set);
}

enum mf_status mf_loads_open(const struct mf_device_interface *interface, struct mf_device *device,
                             double lone_ns_max, struct mf_loads *out)
{
    struct mf_hardware_device described;
    *out = (struct mf_loads){.interface = interface, .device = device};
    MF_TRY(interface->describe(device, &described));
    out->cuda = strcmp(described.kind, "cuda") == 0;
    int64_t share = described.memory_bytes / MEMORY_SHARE;
    int64_t most = out->cuda ? ROTATED_BYTES_GPU : ROTATED_BYTES_HOST;
    most = share < most ? share : most;
    out->sets = calloc(MF_LOADS_SETS, sizeof(*out->sets));
    MF_ASSERT(out->sets != NULL);
    MF_TRY(interface->prepare(device, 2 * MF_LOADS_TASKS_MAX));
    for (int set = 0; set < MF_LOADS_SETS; set++) {
        MF_TRY(prepare(out, set, most));
    }
    for (int set = 0; set < MF_LOADS_SETS; set++) {
        MF_TRY(settle(out, set, lone_ns_max));
    }
    return MF_STATUS_OK;
}

void mf_loads_close(struct mf_loads *loads)
{
    for (int set = 0; set < MF_LOADS_SETS; set++) {
        mf_measure_release(loads->interface, loads->device, &loads->scratch[set]);
    }
    free(loads->sets);
    loads->sets = NULL;
}

enum mf_status mf_loads_time(struct mf_loads *loads, int set)
{
    double ns[REPEATS];
    MF_TRY(mf_calls_run(loads->interface, loads->device, &loads->sets[set], REPEATS, ns));
    double median = mf_statistics_median(ns, REPEATS);
    if (loads->lone_ns[set] == 0 || median < loads->lone_ns[set]) {
        loads->lone_ns[set] = median;
    }
    return MF_STATUS_OK;
}

enum mf_status mf_loads_submit(const struct mf_loads *loads, int set, int32_t task)
{
    struct mf_calls *calls = &loads->sets[set];
    return loads->interface->submit(loads->device, calls->signature.lane, mf_calls_next(calls),
                                    task);
}
