/*
 * Expected times of tasks: see cost.h.
 *
 * Order: the measured median; for copies, between measured sizes; else an estimate from rates. A
 * rate of zero has a default, chosen low so that an unknown machine is not promised too much.
 */
#include "planner/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A matrix product reaches this share of the peak rate (measured: 0.8 for large products). */
#define MATRIX_EFFICIENCY 0.7
#define LAUNCH_NS 4000.0
/* An ordinary product by direct access reads its weights once for each tile of so many tokens
 * (measured: nothing caches host lines on the device). */
#define DIRECT_TILE_ROWS 128
/* Hopper has a kernel that reads them once for so many (measured: 1.13 of the link's time up to
 * 4096 tokens, twice that for 8192). */
#define DIRECT_ROWS_HOPPER 4096
/* fp32 sum both ways and a bf16 panel; the first contribution only writes the sum. */
#define ACCUMULATE_BYTES 10.0

/* Where the hardware says nothing. */
struct defaults {
    const char *kind;
    double matrix_flops;
    double memory_bytes_per_s;
    double link_bytes_per_s; /* PCIe 3 x16; a copy within host memory */
    double copy_latency_ns;
};
static const struct defaults cuda_defaults = {"cuda", 50e12, 500e9, 12e9, 5000};
static const struct defaults host_defaults = {"host", 50e9, 10e9, 5e9, 1000};
#define HOST_BYTES_PER_S_DEFAULT 10e9

/* Rates of the device that plans are for, all above zero. */
struct rates {
    bool cuda;
    double direct_rows; /* tokens for which a product reads its weights in place once */
    bool link_is_free;  /* a host device without an emulated link: direct access is a plain read */
    double matrix_flops;
    double memory_bytes_per_s;
    double h2d_bytes_per_s;
    double d2h_bytes_per_s;
    double copy_latency_ns;
    double host_bytes_per_s;
};

static double or_default(double value, double fallback)
{
    return value > 0 ? value : fallback;
}

static struct rates rates_of(const struct mf_hardware *hardware)
{
    static const struct mf_hardware_device none = {.kind = "host"};
    const struct mf_hardware_device *device =
        hardware->device_count > 0 ? &hardware->devices[0] : &none;
    bool cuda = strcmp(device->kind, "cuda") == 0;
    const struct defaults *defaults = cuda ? &cuda_defaults : &host_defaults;
    return (struct rates){
        .cuda = cuda,
        .direct_rows = device->compute_capability == 90 ? DIRECT_ROWS_HOPPER : DIRECT_TILE_ROWS,
        .link_is_free = !cuda && !device->link_emulated,
        .matrix_flops = or_default(device->matrix_flops, defaults->matrix_flops),
        .memory_bytes_per_s = or_default(device->memory_bytes_per_s, defaults->memory_bytes_per_s),
        .h2d_bytes_per_s = or_default(device->h2d_bytes_per_s, defaults->link_bytes_per_s),
        .d2h_bytes_per_s = or_default(device->d2h_bytes_per_s, defaults->link_bytes_per_s),
        .copy_latency_ns = or_default(device->copy_latency_ns, defaults->copy_latency_ns),
        .host_bytes_per_s = or_default(hardware->host_bytes_per_s, HOST_BYTES_PER_S_DEFAULT),
    };
}

static double per_rate(double amount, double per_s)
{
    return amount / per_s * 1e9;
}

/* Bytes of host memory that a kernel with a direct operand moves over the link. */
static double direct_bytes(enum mf_kernel kernel, const struct mf_shape *shape,
                           const struct rates *rates)
{
    double panel =
        2.0 * (double)shape->n *
        ((double)(shape->k > 0 ? shape->k : 1) + ((shape->flags & MF_SHAPE_BIAS) != 0 ? 1.0 : 0.0));
    /* Of a table, the rows that tokens name. */
    double touched =
        2.0 * (double)shape->n *
        fmin((double)shape->rows / (shape->heads > 1 ? shape->heads : 1), (double)shape->k);
    if ((shape->flags & MF_SHAPE_OUTPUT_HOST) != 0) {
        return (shape->flags & MF_SHAPE_TOUCHED) != 0 ? touched : panel;
    }
    switch (kernel) {
    case MF_KERNEL_EMBEDDING_FORWARD:
        return touched;
    case MF_KERNEL_POSITION_FORWARD:
        return 2.0 * (double)shape->n * fmin((double)shape->seq_len, (double)shape->k);
    case MF_KERNEL_LINEAR_FORWARD:
    case MF_KERNEL_LINEAR_BACKWARD_DATA:
    case MF_KERNEL_HEAD_FORWARD:
    case MF_KERNEL_HEAD_BACKWARD:
    case MF_KERNEL_HEAD_LOGITS:
        return panel * (rates->cuda ? ceil((double)shape->rows / rates->direct_rows) : 1.0);
    default:
        return panel;
    }
}

static double estimate_compute(const struct rates *rates, enum mf_kernel kernel,
                               const struct mf_shape *shape)
{
    double flops_ns =
        per_rate(mf_kernel_flops(kernel, shape), rates->matrix_flops * MATRIX_EFFICIENCY);
    double bytes_ns = per_rate(mf_kernel_bytes(kernel, shape), rates->memory_bytes_per_s);
    double ns = fmax(flops_ns, bytes_ns);
    if ((shape->flags & (MF_SHAPE_WEIGHT_HOST | MF_SHAPE_OUTPUT_HOST)) != 0 &&
        !rates->link_is_free) {
        bool writes = (shape->flags & MF_SHAPE_OUTPUT_HOST) != 0;
        double link = writes ? rates->d2h_bytes_per_s : rates->h2d_bytes_per_s;
        ns = fmax(ns, per_rate(direct_bytes(kernel, shape, rates), link));
    }
    return ns + LAUNCH_NS;
}

static double estimate_cpu(const struct rates *rates, enum mf_kernel kernel,
                           const struct mf_shape *shape)
{
    bool fp32 = (shape->flags & MF_SHAPE_GRADIENT_FP32) != 0;
    double bytes = 0;
    switch (kernel) {
    case MF_KERNEL_ADAMW:
        bytes = MF_ADAMW_BYTES + (fp32 ? 2 : 0);
        break;
    case MF_KERNEL_GRADIENT_ACCUMULATE:
        bytes = ACCUMULATE_BYTES;
        break;
    case MF_KERNEL_GRADIENT_NORM:
        bytes = fp32 ? 4 : 2;
        break;
    default:
        bytes = 8;
        break;
    }
    return per_rate(bytes * (double)shape->n, rates->host_bytes_per_s) + LAUNCH_NS;
}

static double estimate(const struct rates *rates, enum mf_lane lane, enum mf_kernel kernel,
                       const struct mf_shape *shape)
{
    switch (lane) {
    case MF_LANE_H2D:
        return rates->copy_latency_ns + per_rate((double)shape->n, rates->h2d_bytes_per_s);
    case MF_LANE_D2H:
        return rates->copy_latency_ns + per_rate((double)shape->n, rates->d2h_bytes_per_s);
    case MF_LANE_CPU:
        return estimate_cpu(rates, kernel, shape);
    case MF_LANE_COMPUTE:
    case MF_LANE_COUNT:
        break;
    }
    return estimate_compute(rates, kernel, shape);
}

struct point {
    double bytes, ns;
};

/*
 * A copy between measured sizes of its lane: on the line through the two points around it, or
 * through the two largest beyond them. Below the smallest the line begins at the fixed cost.
 * False when the lane has no points.
 */
static bool interpolate_copy(const struct rates *rates, const struct mf_profile *profile,
                             enum mf_lane lane, double bytes, double *ns)
{
    struct point below = {-1, 0};
    struct point second = {-1, 0}; /* the next smaller one than `below` */
    struct point above = {INFINITY, 0};
    for (int32_t i = 0; i < profile->count; i++) {
        const struct mf_measurement *entry = &profile->entries[i];
        if (entry->signature.lane != lane || entry->signature.kernel != MF_KERNEL_COPY) {
            continue;
        }
        struct point point = {(double)entry->signature.shape.n, entry->median_ns};
        if (point.bytes > bytes) {
            above = point.bytes < above.bytes ? point : above;
        } else if (point.bytes > below.bytes) {
            second = below;
            below = point;
        } else if (point.bytes > second.bytes && point.bytes < below.bytes) {
            second = point;
        }
    }
    if (below.bytes < 0 && isinf(above.bytes)) {
        return false;
    }
    struct point from = below;
    struct point to = above;
    if (isinf(above.bytes)) {
        from = second;
        to = below;
    }
    if (from.bytes < 0) {
        from = (struct point){0, fmin(rates->copy_latency_ns, to.ns)};
    }
    double slope = to.bytes > from.bytes ? (to.ns - from.ns) / (to.bytes - from.bytes) : 0;
    /* Noise must not make a larger copy faster. */
    *ns = to.ns + fmax(slope, 0) * (bytes - to.bytes);
    return true;
}

static double cost(const struct rates *rates, const struct mf_profile *profile, enum mf_lane lane,
                   enum mf_kernel kernel, const struct mf_shape *shape, bool *measured)
{
    *measured = profile != NULL;
    if (profile != NULL) {
        struct mf_signature signature = mf_profile_signature(lane, kernel, shape);
        const struct mf_measurement *entry = mf_profile_find(profile, &signature);
        double ns = 0;
        if (entry != NULL) {
            return entry->median_ns;
        }
        if (kernel == MF_KERNEL_COPY &&
            interpolate_copy(rates, profile, lane, (double)shape->n, &ns)) {
            return ns;
        }
        *measured = false;
    }
    return estimate(rates, lane, kernel, shape);
}

double mf_cost_ns(const struct mf_hardware *hardware, const struct mf_profile *profile,
                  enum mf_lane lane, enum mf_kernel kernel, const struct mf_shape *shape,
                  bool *measured)
{
    struct rates rates = rates_of(hardware);
    bool was_measured = false;
    double ns = cost(&rates, profile, lane, kernel, shape, &was_measured);
    if (measured != NULL) {
        *measured = was_measured;
    }
    return ns;
}

/* Graphs repeat a few hundred signatures thousands of times: remember what was looked up. */
#define MEMO_SIZE 1024
struct memo {
    bool used;
    bool measured;
    enum mf_lane lane;
    enum mf_kernel kernel;
    struct mf_shape shape;
    double ns;
};

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    return hash ^ (hash >> 29);
}

static size_t memo_slot(const struct mf_task *task)
{
    const struct mf_shape *shape = &task->shape;
    uint64_t hash =
        mix((uint64_t)task->kernel * MF_LANE_COUNT + (uint64_t)task->lane, (uint64_t)shape->n);
    hash = mix(hash, (uint64_t)shape->k);
    hash = mix(hash, (uint64_t)shape->rows);
    hash = mix(hash, shape->flags | (uint64_t)(uint32_t)shape->heads << 32);
    return (size_t)(hash % MEMO_SIZE);
}

static bool same_shape(const struct mf_shape *a, const struct mf_shape *b)
{
    return a->rows == b->rows && a->n == b->n && a->k == b->k && a->seq_len == b->seq_len &&
           a->heads == b->heads && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
           a->flags == b->flags;
}

int32_t mf_cost_fill(const struct mf_hardware *hardware, const struct mf_profile *profile,
                     struct mf_step *step)
{
    struct rates rates = rates_of(hardware);
    struct memo *memos = calloc(MEMO_SIZE, sizeof(*memos));
    MF_ASSERT(memos != NULL);
    int32_t estimated = 0;
    for (int32_t i = 0; i < step->task_count; i++) {
        struct mf_task *task = &step->tasks[i];
        struct memo *memo = &memos[memo_slot(task)];
        if (!memo->used || memo->lane != task->lane || memo->kernel != task->kernel ||
            !same_shape(&memo->shape, &task->shape)) {
            *memo = (struct memo){
                .used = true, .lane = task->lane, .kernel = task->kernel, .shape = task->shape};
            memo->ns =
                cost(&rates, profile, task->lane, task->kernel, &task->shape, &memo->measured);
        }
        task->expected_ns = memo->ns;
        estimated += memo->measured ? 0 : 1;
    }
    free(memos);
    return estimated;
}
