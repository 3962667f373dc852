/*
 * The simulator: see simulate.h.
 *
 * One pass over events. Without direct host access a task takes exactly its expected time. A
 * compute task that reads or writes host memory in place shares the link with the copies that run
 * at the same time: with the share `demand` of the link that it takes alone, it and the copies
 * slow down by 1 + demand (measured: in-place access adds no bandwidth to a busy link, in either
 * direction).
 */
#include "planner/simulate.h"

#include <math.h>
#include <stdlib.h>

struct lane {
    int32_t running; /* task, -1 = idle */
    int32_t next;    /* first task that has not started, task_count = none */
    double slowdown; /* of the running task, 1 = none */
    double free_ns;  /* when the last task ended */
};

struct simulation {
    const struct mf_step *step;
    struct lane lanes[MF_LANE_COUNT];
    struct mf_span *spans; /* the end is -1 until a task starts, then what is expected now */
    int32_t *next;         /* per task: the next of its lane */
    bool *ended;
    double now;
    double link_bytes_per_ns; /* 0 = nothing is copied */
    struct mf_simulation *out;
};

/* fmin and fmax are calls: what they do with values that are no numbers matters to nobody here. */
static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static const enum mf_stall_cause causes[MF_LANE_COUNT] = {
    [MF_LANE_COMPUTE] = MF_STALL_END, /* never: a compute task does not wait for its own lane */
    [MF_LANE_H2D] = MF_STALL_H2D,
    [MF_LANE_D2H] = MF_STALL_D2H,
    [MF_LANE_CPU] = MF_STALL_CPU,
};

/* For each task the next one of its lane, task_count = none; sets each lane's first. */
static void link_lanes(struct simulation *state)
{
    const struct mf_step *step = state->step;
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        state->lanes[lane] = (struct lane){.running = -1, .next = step->task_count};
    }
    for (int32_t i = step->task_count - 1; i >= 0; i--) {
        struct lane *lane = &state->lanes[step->tasks[i].lane];
        state->next[i] = lane->next;
        lane->next = i;
    }
}

/* The best rate among the copies stands for the link. */
static double link_rate(const struct mf_step *step)
{
    double best = 0;
    for (int32_t i = 0; i < step->task_count; i++) {
        const struct mf_task *task = &step->tasks[i];
        if (task->kernel == MF_KERNEL_COPY && task->expected_ns > 0) {
            best = larger(best, (double)task->link_bytes / task->expected_ns);
        }
    }
    return best;
}

static bool is_ready(const struct simulation *state, int32_t index)
{
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        int32_t on = state->step->tasks[index].depends[lane];
        if (on >= 0 && !state->ended[on]) {
            return false;
        }
    }
    return true;
}

static void count_stall(struct simulation *state, int32_t index)
{
    double waited = state->now - state->lanes[MF_LANE_COMPUTE].free_ns;
    double latest = -1;
    int cause = MF_LANE_H2D;
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        int32_t on = state->step->tasks[index].depends[lane];
        if (on >= 0 && state->spans[on].end_ns > latest) {
            latest = state->spans[on].end_ns;
            cause = lane;
        }
    }
    if (waited > 0) {
        state->out->stall_ns[causes[cause]] += waited;
    }
}

static bool start_tasks(struct simulation *state)
{
    bool started = false;
    for (int i = 0; i < MF_LANE_COUNT; i++) {
        struct lane *lane = &state->lanes[i];
        int32_t index = lane->next;
        if (lane->running >= 0 || index == state->step->task_count || !is_ready(state, index)) {
            continue;
        }
        if (i == MF_LANE_COMPUTE) {
            count_stall(state, index);
        }
        state->spans[index].start_ns = state->now;
        state->spans[index].end_ns = state->now + larger(0, state->step->tasks[index].expected_ns);
        lane->running = index;
        lane->slowdown = 1;
        lane->next = state->next[index];
        started = true;
    }
    return started;
}

/* The share of the link that the running compute task takes, 0..1. */
static double direct_demand(const struct simulation *state)
{
    int32_t index = state->lanes[MF_LANE_COMPUTE].running;
    if (index < 0 || state->link_bytes_per_ns <= 0) {
        return 0;
    }
    const struct mf_task *task = &state->step->tasks[index];
    if (task->link_bytes <= 0 || task->expected_ns <= 0) {
        return 0;
    }
    return smaller(1, (double)task->link_bytes / state->link_bytes_per_ns / task->expected_ns);
}

static void share_link(struct simulation *state)
{
    double demand = direct_demand(state);
    bool copying = state->lanes[MF_LANE_H2D].running >= 0 || state->lanes[MF_LANE_D2H].running >= 0;
    for (int i = 0; i < MF_LANE_COUNT; i++) {
        struct lane *lane = &state->lanes[i];
        double slowdown = i != MF_LANE_CPU && copying ? 1 + demand : 1;
        if (lane->running >= 0 && slowdown != lane->slowdown) {
            double left = state->spans[lane->running].end_ns - state->now;
            state->spans[lane->running].end_ns = state->now + left / lane->slowdown * slowdown;
            lane->slowdown = slowdown;
        }
    }
}

/* Goes to the next end of a task; false when nothing runs. */
static bool advance(struct simulation *state)
{
    double next = INFINITY;
    for (int i = 0; i < MF_LANE_COUNT; i++) {
        if (state->lanes[i].running >= 0) {
            next = smaller(next, state->spans[state->lanes[i].running].end_ns);
        }
    }
    if (isinf(next)) {
        return false;
    }
    state->now = next;
    for (int i = 0; i < MF_LANE_COUNT; i++) {
        struct lane *lane = &state->lanes[i];
        if (lane->running >= 0 && state->spans[lane->running].end_ns <= next) {
            const struct mf_span *span = &state->spans[lane->running];
            state->ended[lane->running] = true;
            state->out->lane_busy_ns[i] += span->end_ns - span->start_ns;
            lane->free_ns = next;
            lane->running = -1;
        }
    }
    return true;
}

/* Compute tasks follow each other through the activations; other lanes are unlimited. */
static double critical_path(const struct mf_step *step, double *reached)
{
    double longest = 0;
    double compute = 0;
    for (int32_t i = 0; i < step->task_count; i++) {
        const struct mf_task *task = &step->tasks[i];
        double start = task->lane == MF_LANE_COMPUTE ? compute : 0;
        for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
            if (task->depends[lane] >= 0) {
                start = larger(start, reached[task->depends[lane]]);
            }
        }
        reached[i] = start + larger(0, task->expected_ns);
        compute = task->lane == MF_LANE_COMPUTE ? reached[i] : compute;
        longest = larger(longest, reached[i]);
    }
    return longest;
}

void mf_simulate(const struct mf_step *step, struct mf_simulation *out, struct mf_span *spans)
{
    size_t count = (size_t)step->task_count + 1;
    struct mf_span *own = spans == NULL ? malloc(count * sizeof(*own)) : NULL;
    double *reached = malloc(count * sizeof(*reached));
    struct simulation state = {
        .step = step,
        .spans = spans == NULL ? own : spans,
        .next = malloc(count * sizeof(*state.next)),
        .ended = calloc(count, sizeof(*state.ended)),
        .link_bytes_per_ns = link_rate(step),
        .out = out,
    };
    MF_ASSERT(state.spans != NULL && state.next != NULL && state.ended != NULL && reached != NULL);
    *out = (struct mf_simulation){0};
    link_lanes(&state);
    do {
        while (start_tasks(&state)) {
        }
        share_link(&state);
    } while (advance(&state));
    for (int i = 0; i < MF_LANE_COUNT; i++) {
        /* Dependencies point back in issue order, so every task has its turn. */
        MF_ASSERT(state.lanes[i].next == step->task_count);
        out->step_ns = larger(out->step_ns, state.lanes[i].free_ns);
    }
    out->stall_ns[MF_STALL_END] = out->step_ns - state.lanes[MF_LANE_COMPUTE].free_ns;
    out->critical_path_ns = critical_path(step, reached);
    free(reached);
    free(state.ended);
    free(state.next);
    free(own);
}

const char *mf_simulate_stall_name(enum mf_stall_cause cause)
{
    static const char *const names[MF_STALL_COUNT] = {
        [MF_STALL_H2D] = "h2d",
        [MF_STALL_D2H] = "d2h",
        [MF_STALL_CPU] = "cpu",
        [MF_STALL_END] = "end",
    };
    return cause < MF_STALL_COUNT ? names[cause] : "?";
}
