/*
 * Latencies between lanes: part of mf_measure_contention(), see loads.h.
 *
 * From walls of untraced graphs, as tracing costs more than what is looked for. A chain of tiny
 * tasks waits behind a gate, a task of a third lane that lasts until all of the chain is queued, so
 * that what issuing costs does not count; the difference of a long and a half as long chain holds
 * neither gate nor graph. A chain on one lane gives the gap between two tasks, one that goes to and
 * fro between two lanes the mean hand-over of both directions: nothing that goes round can tell
 * them apart, so each gets the mean. A task's own span, which cost models count already, is taken
 * off: that is traced, before.
 */
#include "core/clock.h"
#include "profiler/loads.h"
#include "profiler/statistics.h"

#define ROUNDS_MIN 2
#define ROUNDS_MAX 9
#define REPEATS 2
#define HOPS 32 /* of the shorter chain; the other has twice as many */
#define TRIES 3 /* to find a gate that is long enough */
#define GATES_MAX (MF_LOADS_TASKS_MAX - 1)
#define GATE_MARGIN 1.5
/* The CUDA device stops listening to its tracer after 64 untraced graphs (runtime/cuda/trace.c):
 * until then calls cost more. The last of them tell what a graph costs. */
#define UNTRACED 72
#define GRAPHS 15

struct samples {
    int32_t count;
    double at[ROUNDS_MAX * MF_LANE_COUNT];
};

struct meter {
    struct mf_loads *loads;
    double gate_ns;
    struct samples whole[MF_LANE_COUNT][MF_LANE_COUNT]; /* [a][b], a <= b: walls of chains */
    struct samples half[MF_LANE_COUNT][MF_LANE_COUNT];
    struct samples issue[MF_LANE_COUNT];
};

struct chain {
    enum mf_lane lanes[2]; /* in turns */
    int32_t hops;
    int64_t wall_ns;
    int64_t issued_ns;         /* from the first task of the chain to the last */
    double issue_ns[2 * HOPS]; /* of each hop */
};

static int gate_load(const struct chain *chain)
{
    static const int loads[] = {MF_LOAD_COMPUTE, MF_LOAD_H2D, MF_LOAD_D2H};
    int i = 0;
    while (mf_contention_lane((enum mf_load)loads[i]) == chain->lanes[0] ||
           mf_contention_lane((enum mf_load)loads[i]) == chain->lanes[1]) {
        i++;
    }
    return loads[i];
}

static int32_t count_gates(const struct meter *meter, int load)
{
    double count = meter->gate_ns / meter->loads->lone_ns[load] + 1;
    return count < GATES_MAX ? (int32_t)count : GATES_MAX;
}

/* Submit, and what the executor does around it when lanes differ. */
static enum mf_status hop(const struct mf_loads *loads, const struct chain *chain, int32_t index,
                          int32_t task)
{
    enum mf_lane lane = chain->lanes[index % 2];
    bool crosses = chain->lanes[0] != chain->lanes[1];
    if (crosses && index > 0) {
        MF_TRY(loads->interface->wait(loads->device, lane, task - 1));
    }
    MF_TRY(mf_loads_submit(loads, MF_LOADS_TINY(lane), task));
    return crosses ? loads->interface->record(loads->device, lane, task) : MF_STATUS_OK;
}

static enum mf_status issue(const struct meter *meter, struct chain *chain)
{
    struct mf_loads *loads = meter->loads;
    int load = gate_load(chain);
    int32_t gates = count_gates(meter, load);
    for (int32_t i = 0; i < gates; i++) {
        MF_TRY(mf_loads_submit(loads, load, i));
    }
    MF_TRY(
        loads->interface->record(loads->device, mf_contention_lane((enum mf_load)load), gates - 1));
    MF_TRY(loads->interface->wait(loads->device, chain->lanes[0], gates - 1));
    int64_t before_ns = mf_clock_ns();
    int64_t first_ns = before_ns;
    for (int32_t i = 0; i < chain->hops; i++) {
        MF_TRY(hop(loads, chain, i, gates + i));
        int64_t now_ns = mf_clock_ns();
        chain->issue_ns[i] = (double)(now_ns - before_ns);
        before_ns = now_ns;
    }
    chain->issued_ns = before_ns - first_ns;
    return MF_STATUS_OK;
}

static enum mf_status run_chain(const struct meter *meter, struct chain *chain)
{
    const struct mf_loads *loads = meter->loads;
    int64_t start_ns = mf_clock_ns();
    MF_TRY(loads->interface->begin(loads->device, false));
    enum mf_status status = issue(meter, chain);
    enum mf_status synced = loads->interface->sync(loads->device);
    chain->wall_ns = mf_clock_ns() - start_ns;
    return status == MF_STATUS_OK ? synced : status;
}

static void keep(struct samples *samples, double value)
{
    samples->at[samples->count++] = value;
}

/* The cost of issuing on each of the chain's lanes: the median keeps out where this thread was
 * interrupted. */
static void keep_issue(struct meter *meter, const struct chain *chain)
{
    for (int turn = 0; turn < 2; turn++) {
        double ns[HOPS];
        for (int32_t i = 0; i < HOPS; i++) {
            ns[i] = chain->issue_ns[2 * i + turn];
        }
        keep(&meter->issue[chain->lanes[turn]], mf_statistics_median(ns, HOPS));
    }
}

static enum mf_status measure_hops(struct meter *meter, enum mf_lane a, enum mf_lane b)
{
    struct chain whole = {.lanes = {a, b}, .hops = 2 * HOPS};
    struct chain half = {.lanes = {a, b}, .hops = HOPS};
    for (int try = 0; try < TRIES; try++) {
        MF_TRY(run_chain(meter, &whole));
        if ((double)whole.issued_ns * GATE_MARGIN <= meter->gate_ns) {
            break;
        }
        meter->gate_ns = (double)whole.issued_ns * GATE_MARGIN * GATE_MARGIN;
    }
    keep(&meter->whole[a][b], (double)whole.wall_ns);
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        MF_TRY(run_chain(meter, &half));
        keep(&meter->half[a][b], (double)half.wall_ns);
        MF_TRY(run_chain(meter, &whole));
        keep(&meter->whole[a][b], (double)whole.wall_ns);
    }
    if (a != b) {
        keep_issue(meter, &whole);
    }
    return MF_STATUS_OK;
}

/* What a graph of one task costs beside it. */
static enum mf_status measure_graph(struct mf_loads *loads, double *out)
{
    const struct mf_device_interface *interface = loads->interface;
    int tiny = MF_LOADS_TINY(MF_LANE_COMPUTE);
    double walls_ns[GRAPHS];
    for (int i = 0; i < UNTRACED; i++) {
        int64_t start_ns = mf_clock_ns();
        MF_TRY(interface->begin(loads->device, false));
        MF_TRY(mf_loads_submit(loads, tiny, 0));
        MF_TRY(interface->sync(loads->device));
        walls_ns[i % GRAPHS] = (double)(mf_clock_ns() - start_ns);
    }
    double beside_ns = mf_statistics_low(walls_ns, GRAPHS) - loads->lone_ns[tiny];
    *out = beside_ns > 0 ? beside_ns : 0;
    return MF_STATUS_OK;
}

static double low(struct samples *samples)
{
    return mf_statistics_low(samples->at, samples->count);
}

static void conclude(struct meter *meter, struct mf_contention *out)
{
    const double *span_ns = meter->loads->lone_ns + MF_LOAD_COUNT;
    for (int a = 0; a < MF_LANE_COUNT; a++) {
        out->issue_ns[a] = low(&meter->issue[a]);
        for (int b = a; b < MF_LANE_COUNT; b++) {
            double ns = (low(&meter->whole[a][b]) - low(&meter->half[a][b])) / HOPS;
            ns -= (span_ns[a] + span_ns[b]) / 2;
            ns = ns > 0 ? ns : 0;
            if (a == b) {
                out->gap_ns[a] = ns;
            } else {
                out->handover_ns[a][b] = ns;
                out->handover_ns[b][a] = ns;
            }
        }
    }
}

enum mf_status mf_measure_latency(struct mf_loads *loads, int64_t end_ns, struct mf_contention *out,
                                  bool *complete)
{
    struct meter meter = {.loads = loads, .gate_ns = loads->lone_ns[MF_LOAD_COMPUTE]};
    *complete = false;
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        MF_TRY(mf_loads_time(loads, MF_LOADS_TINY(lane)));
    }
    MF_TRY(measure_graph(loads, &out->graph_ns));
    for (int round = 0; round < ROUNDS_MAX; round++) {
        for (int a = 0; a < MF_LANE_COUNT; a++) {
            for (int b = a; b < MF_LANE_COUNT; b++) {
                if (mf_clock_ns() > end_ns) {
                    goto out;
                }
                MF_TRY(measure_hops(&meter, (enum mf_lane)a, (enum mf_lane)b));
            }
        }
        *complete = round + 1 >= ROUNDS_MIN;
    }
out:
    if (*complete) {
        conclude(&meter, out);
    }
    return MF_STATUS_OK;
}
