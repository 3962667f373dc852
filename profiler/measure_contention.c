/* Slow-downs between kinds of load, and the whole of mf_measure_contention(): see measure.h. */
#include <math.h>
#include <string.h>

#include "core/clock.h"
#include "profiler/loads.h"
#include "profiler/statistics.h"

#define ROUNDS_MIN 2 /* one look at a busy machine is none */
#define ROUNDS_MAX 9
/* Each lane gets work for so many times the longer of the two tasks: slowed down fourfold, there is
 * still a whole one beside the other lane's. On the host device also for this long: lanes that
 * share cores take turns of some milliseconds. */
#define WINDOW 4
#define WINDOW_NS_HOST 6e6
/* And share them evenly: more is another program's doing, which is no look. */
#define RATIO_MAX_HOST 4.0
#define NOISE 1.02 /* what repeats differ by anyway is no slow-down */
/* A task lasts at most this share of the time there is. */
#define LONE_SHARE 500
/* Latencies need little time but an untraced device, so they come last. Pairs end at the first
 * share of the time, or at the second with fewer rounds than must be. */
#define PAIRS_SHARE 0.7
#define PAIRS_SHARE_MAX 0.85

struct line { /* one lane's part of a graph */
    int load;
    int32_t count;
    int32_t first_task;
    struct mf_device_span spans[MF_LOADS_TASKS_MAX];
};

struct ratios {
    int32_t count;
    double at[ROUNDS_MAX];
};

static int32_t tasks_for(double window_ns, double lone_ns)
{
    double count = lone_ns > 0 ? window_ns / lone_ns : MF_LOADS_TASKS_MAX;
    return count < 1 ? 1 : count < MF_LOADS_TASKS_MAX ? (int32_t)count : MF_LOADS_TASKS_MAX;
}

static enum mf_status read_spans(const struct mf_loads *loads, struct line *line)
{
    for (int32_t i = 0; i < line->count; i++) {
        if (!loads->interface->span(loads->device, line->first_task + i, &line->spans[i])) {
            return mf_status_set(MF_STATUS_DEVICE, "the device did not say when a %s task ran",
                                 mf_contention_load_name((enum mf_load)line->load));
        }
    }
    return MF_STATUS_OK;
}

/* Both lanes busy from about the same moment: tasks are queued in the order of their expected
 * starts. */
static enum mf_status run_pair(const struct mf_loads *loads, struct line lines[static 2])
{
    double queued_ns[2] = {0, 0};
    int32_t queued[2] = {0, 0};
    MF_TRY(loads->interface->begin(loads->device, true));
    while (queued[0] < lines[0].count || queued[1] < lines[1].count) {
        int next = queued[1] < lines[1].count &&
                   (queued[0] == lines[0].count || queued_ns[1] < queued_ns[0]);
        MF_TRY(mf_loads_submit(loads, lines[next].load, lines[next].first_task + queued[next]));
        queued_ns[next] += loads->lone_ns[lines[next].load];
        queued[next]++;
    }
    MF_TRY(loads->interface->sync(loads->device));
    MF_TRY(read_spans(loads, &lines[0]));
    return read_spans(loads, &lines[1]);
}

/* Over the tasks that had the other lane beside them for at least half of their time. What of a
 * task ran alone is taken to have run at full speed: in the rest it did `work`. 0 = no such task.
 */
static double slowdown(const struct line *line, const struct line *beside, double alone_ns)
{
    double shared_ns = 0;
    double work_ns = 0;
    int64_t first = beside->spans[0].start_ns;
    int64_t last = beside->spans[beside->count - 1].end_ns;
    for (int32_t i = 0; i < line->count; i++) {
        int64_t start = line->spans[i].start_ns;
        int64_t end = line->spans[i].end_ns;
        double length = (double)(end - start);
        double shared = (double)((end < last ? end : last) - (start > first ? start : first));
        if (length > 0 && 2 * shared >= length) {
            double work = alone_ns - (length - shared);
            double even = alone_ns * shared / length; /* at one speed: also held up when alone */
            shared_ns += shared;
            work_ns += work > even ? work : even;
        }
    }
    return work_ns > 0 ? shared_ns / work_ns : 0;
}

struct meter {
    struct mf_loads *loads;
    double window_ns_min;
    double ratio_max;
    double alone_ns[MF_LOAD_COUNT]; /* of a task, in this round: what other programs do to it, they
                                       do to it in the pairs of this round, too */
    struct ratios ratios[MF_LOAD_COUNT][MF_LOAD_COUNT];
};

static void keep(struct meter *meter, int load, int beside, double ratio)
{
    struct ratios *ratios = &meter->ratios[load][beside];
    if (ratio > 0 && ratio <= meter->ratio_max && ratios->count < ROUNDS_MAX) {
        ratios->at[ratios->count++] = ratio;
    }
}

static enum mf_status measure_alone(struct meter *meter, int load)
{
    const struct mf_loads *loads = meter->loads;
    double ns[MF_LOADS_TASKS_MAX];
    int32_t count = tasks_for(meter->window_ns_min, loads->lone_ns[load]);
    count = count > 2 * WINDOW ? count : 2 * WINDOW;
    MF_TRY(mf_calls_run(loads->interface, loads->device, &loads->sets[load], count, ns));
    meter->alone_ns[load] = 0;
    for (int32_t i = 0; i < count; i++) {
        meter->alone_ns[load] += ns[i] / count;
    }
    return MF_STATUS_OK;
}

static enum mf_status measure_pair(struct meter *meter, int a, int b)
{
    const struct mf_loads *loads = meter->loads;
    double a_ns = loads->lone_ns[a];
    double b_ns = loads->lone_ns[b];
    double shorter_ns = a_ns < b_ns ? a_ns : b_ns;
    double longer_ns = a_ns < b_ns ? b_ns : a_ns;
    double window_ns =
        fmin(fmax(WINDOW * longer_ns, meter->window_ns_min), MF_LOADS_TASKS_MAX * shorter_ns);
    struct line lines[2] = {
        {.load = a, .count = tasks_for(window_ns, a_ns)},
        {.load = b, .count = tasks_for(window_ns, b_ns), .first_task = MF_LOADS_TASKS_MAX},
    };
    MF_TRY(run_pair(loads, lines));
    keep(meter, a, b, slowdown(&lines[0], &lines[1], meter->alone_ns[a]));
    keep(meter, b, a, slowdown(&lines[1], &lines[0], meter->alone_ns[b]));
    return MF_STATUS_OK;
}

static bool different_lanes(int a, int b)
{
    return mf_contention_lane((enum mf_load)a) != mf_contention_lane((enum mf_load)b);
}

static bool seen(const struct meter *meter, int a, int b)
{
    return !different_lanes(a, b) ||
           (meter->ratios[a][b].count >= ROUNDS_MIN && meter->ratios[b][a].count >= ROUNDS_MIN);
}

static enum mf_status measure_round(struct meter *meter, int64_t end_ns)
{
    for (int load = 0; load < MF_LOAD_COUNT; load++) {
        MF_TRY(measure_alone(meter, load));
    }
    for (int a = 0; a < MF_LOAD_COUNT; a++) {
        for (int b = a + 1; b < MF_LOAD_COUNT; b++) {
            if (different_lanes(a, b) && mf_clock_ns() < end_ns) {
                MF_TRY(measure_pair(meter, a, b));
            }
        }
    }
    return MF_STATUS_OK;
}

/* Once more what was seen too seldom, by bad luck or for want of time; `missing` = some still is.
 */
static enum mf_status measure_missing(struct meter *meter, int64_t end_ns, bool *missing)
{
    *missing = false;
    for (int a = 0; a < MF_LOAD_COUNT; a++) {
        for (int b = a + 1; b < MF_LOAD_COUNT; b++) {
            if (!seen(meter, a, b) && mf_clock_ns() < end_ns) {
                MF_TRY(measure_alone(meter, a));
                MF_TRY(measure_alone(meter, b));
                MF_TRY(measure_pair(meter, a, b));
                *missing = *missing || !seen(meter, a, b);
            }
        }
    }
    return MF_STATUS_OK;
}

static enum mf_status measure_pairs(struct meter *meter, int64_t start_ns, double limit_ns,
                                    struct mf_contention *out, bool *complete)
{
    int64_t rounds_end_ns = start_ns + (int64_t)(limit_ns * PAIRS_SHARE);
    int64_t end_ns = start_ns + (int64_t)(limit_ns * PAIRS_SHARE_MAX);
    bool missing = true;
    for (int round = 0; round < ROUNDS_MAX && mf_clock_ns() < rounds_end_ns; round++) {
        MF_TRY(measure_round(meter, rounds_end_ns));
    }
    while (missing && mf_clock_ns() < end_ns) {
        MF_TRY(measure_missing(meter, end_ns, &missing));
    }
    *complete = true;
    for (int a = 0; a < MF_LOAD_COUNT; a++) {
        for (int b = 0; b < MF_LOAD_COUNT; b++) {
            struct ratios *found = &meter->ratios[a][b];
            if (found->count >= ROUNDS_MIN) {
                /* The host device shares its cores with whoever comes by. */
                double ratio = meter->loads->cuda ? mf_statistics_median(found->at, found->count)
                                                  : mf_statistics_low(found->at, found->count);
                out->slowdown[a][b] = ratio > NOISE ? ratio : 1;
            }
            *complete = *complete && seen(meter, a, b);
        }
    }
    return MF_STATUS_OK;
}

enum mf_status mf_measure_contention(const struct mf_device_interface *interface,
                                     struct mf_device *device, double seconds_max,
                                     struct mf_contention *out)
{
    struct mf_loads loads;
    struct meter meter = {.loads = &loads};
    struct mf_contention found;
    bool pairs = false;
    bool latencies = false;
    int64_t start_ns = mf_clock_ns();
    double limit_ns = seconds_max * 1e9;
    mf_contention_assume(strcmp(interface->name, "cuda") == 0, &found);
    *out = found;
    enum mf_status status = mf_loads_open(interface, device, limit_ns / LONE_SHARE, &loads);
    meter.window_ns_min = loads.cuda ? 0 : WINDOW_NS_HOST;
    meter.ratio_max = loads.cuda ? INFINITY : RATIO_MAX_HOST;
    if (status == MF_STATUS_OK) {
        status = measure_pairs(&meter, start_ns, limit_ns, &found, &pairs);
    }
    if (status == MF_STATUS_OK) {
        status = mf_measure_latency(&loads, start_ns + (int64_t)limit_ns, &found, &latencies);
    }
    if (status == MF_STATUS_OK && pairs && latencies) { /* half a matrix is no measurement */
        *out = found;
        out->measured = true;
    }
    struct mf_error error = *mf_status_error();
    mf_loads_close(&loads);
    return status == MF_STATUS_OK ? status : mf_status_restore(&error);
}
