/*
 * What work costs beside other work: slow-downs between kinds of load, and the latencies of handing
 * work from one lane to another. Part of the hardware: it is the same for every model.
 *
 * Who calls it: the profiler measures it, the simulator applies it, the CLI shows it.
 * Owner: plain data, copied freely. Thread: any. Fails: decoding gives MF_STATUS_INVALID with the
 * key.
 *
 * Slow-downs multiply: a task of kind `a` runs at 1 / product over every load `b` beside it of
 * slowdown[a][b] of the speed it has alone. (Measured on an H200 machine: the CPU update is 1.21
 * times slower beside copies in, 1.39 beside copies out, 1.64 beside both and a product.) Data that
 * is all zeros is no contention: a slow-down below 1 counts as 1.
 */
#ifndef MF_CORE_CONTENTION_H
#define MF_CORE_CONTENTION_H

#include <jansson.h>
#include <stdbool.h>

#include "core/kernel.h"
#include "core/status.h"

/* What a task loads while it runs. */
#define MF_LOAD_MAP(X)                                                                             \
    X(COMPUTE, "compute", "matrix products and all other kernels of the compute lane")             \
    X(GPU_UPDATE, "gpu_update", "AdamW and sums on the compute lane: device memory's bandwidth")   \
    X(DIRECT_READ, "direct_read", "a kernel of the compute lane that reads host memory in place")  \
    X(DIRECT_WRITE, "direct_write", "a kernel of the compute lane that writes host memory")        \
    X(H2D, "h2d", "a copy to the device")                                                          \
    X(D2H, "d2h", "a copy to the host")                                                            \
    X(CPU, "cpu", "AdamW, sums and norms on the CPU lane")
#define X(name, text, sentence) MF_LOAD_##name,
enum mf_load { MF_LOAD_MAP(X) MF_LOAD_COUNT };
#undef X

struct mf_contention {
    bool measured; /* on this machine, not assumed */
    /* [a][b] >= 1: time of `a` beside an endless `b` over its time alone. 1 where both are of one
     * lane, which runs one task at a time. */
    double slowdown[MF_LOAD_COUNT][MF_LOAD_COUNT];
    /* From the end of a task on one lane to the start of an idle other lane's task that waited for
     * it; 0 on the diagonal. */
    double handover_ns[MF_LANE_COUNT][MF_LANE_COUNT];
    double gap_ns[MF_LANE_COUNT];   /* between two tasks that are queued on one lane */
    double issue_ns[MF_LANE_COUNT]; /* what queueing a task, with its waits, costs the thread */
    double graph_ns;                /* beginning and ending a graph, beside its tasks */
};

/* The kind of a task: by its lane, kernel and the flags of its shape. */
enum mf_load mf_contention_load(enum mf_lane lane, enum mf_kernel kernel, uint32_t shape_flags);
enum mf_lane mf_contention_lane(enum mf_load load);
const char *mf_contention_load_name(enum mf_load load);
/* What is assumed where nothing was measured. On a device with a link of its own: in-place access
 * shares the link with copies, both ways (2 each), host memory is shared a little; on the host
 * device: 1 everywhere. */
void mf_contention_assume(bool has_link, struct mf_contention *out);
json_t *mf_contention_encode(const struct mf_contention *contention); /* caller owns; never NULL */
/* What is missing is no contention. */
enum mf_status mf_contention_decode(const json_t *json, struct mf_contention *out) MF_MUST_USE;

#endif
