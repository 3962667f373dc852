/*
 * The simulator: see simulate.h.
 *
 * One pass over events, which are ends of tasks and starts that are known ahead. Between two events
 * every running task has one slow-down; at an event what is left of it is stretched or shortened.
 */
#include "planner/simulate.h"

#include <math.h>
#include <stdlib.h>

/* The load of a lane that runs nothing: nobody minds it. */
#define IDLE MF_LOAD_COUNT

/* What the walk needs of a task, close together: tasks are large. */
struct node {
    double work_ns;   /* alone */
    double queued_ns; /* when the issuing thread has queued it */
    double share;     /* 0..1 of what contention says, as victim and as actor */
    double reached_ns;
    int32_t depends[MF_LANE_COUNT];
    int32_t next; /* of its lane */
    int32_t load;
};

struct lane {
    int32_t running; /* task, -1 = idle */
    int32_t next;    /* first task that has not started, task_count = none */
    int32_t ended;   /* last task that has, -1 = none */
    int32_t load;    /* of the running task, or IDLE */
    double share;
    double slowdown;
    double begin_ns; /* of `next`; infinite while what it waits for has no end yet */
    double free_ns;  /* when the last task ended */
};

struct simulation {
    const struct mf_contention *contention;
    int32_t count;
    struct node *nodes;
    struct lane lanes[MF_LANE_COUNT];
    struct mf_span *spans; /* of a running task the end is what is expected now */
    double excess[MF_LOAD_COUNT + 1][MF_LOAD_COUNT + 1]; /* slow-down - 1 */
    double now;
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
    [MF_LANE_COMPUTE] = MF_STALL_HANDOVER, /* never: it does not wait for its own lane */
    [MF_LANE_H2D] = MF_STALL_H2D,
    [MF_LANE_D2H] = MF_STALL_D2H,
    [MF_LANE_CPU] = MF_STALL_CPU,
};

static void read_contention(struct simulation *state)
{
    for (int a = 0; a < MF_LOAD_COUNT; a++) {
        for (int b = 0; b < MF_LOAD_COUNT; b++) {
            bool apart = mf_contention_lane((enum mf_load)a) != mf_contention_lane((enum mf_load)b);
            state->excess[a][b] = apart ? larger(0, state->contention->slowdown[a][b] - 1) : 0;
        }
    }
}

/* The best rate among the copies stands for the link; 0 = nothing is copied. */
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

/* The share of its time that a kernel's bytes take on the link. */
static double share_of(const struct mf_task *task, int32_t load, double bytes_per_ns)
{
    bool direct = load == MF_LOAD_DIRECT_READ || load == MF_LOAD_DIRECT_WRITE;
    double moved = bytes_per_ns * larger(0, task->expected_ns);
    return direct && moved > 0 ? smaller(1, (double)task->link_bytes / moved) : 1;
}

/* The longest chain on the way: compute tasks follow each other through the activations, other
 * lanes are unlimited. */
static void read_tasks(struct simulation *state, const struct mf_step *step)
{
    double bytes_per_ns = link_rate(step);
    double queued = 0;
    double compute = 0;
    for (int32_t i = 0; i < step->task_count; i++) {
        const struct mf_task *task = &step->tasks[i];
        struct node *node = &state->nodes[i];
        double start = task->lane == MF_LANE_COMPUTE ? compute : 0;
        for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
            int32_t on = task->depends[lane];
            node->depends[lane] = on;
            start = on >= 0 ? larger(start, state->nodes[on].reached_ns) : start;
        }
        queued += state->contention->issue_ns[task->lane];
        node->work_ns = larger(0, task->expected_ns);
        node->queued_ns = queued;
        node->load = (int32_t)mf_contention_load(task->lane, task->kernel, task->shape.flags);
        node->share = share_of(task, node->load, bytes_per_ns);
        node->reached_ns = start + node->work_ns;
        compute = task->lane == MF_LANE_COMPUTE ? node->reached_ns : compute;
        state->out->critical_path_ns = larger(state->out->critical_path_ns, node->reached_ns);
    }
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        state->lanes[lane] = (struct lane){
            .running = -1, .next = state->count, .ended = -1, .load = IDLE, .begin_ns = INFINITY};
    }
    for (int32_t i = step->task_count - 1; i >= 0; i--) {
        struct lane *lane = &state->lanes[step->tasks[i].lane];
        state->nodes[i].next = lane->next;
        lane->next = i;
    }
}

/* When the next task of an idle lane may start; infinite while what it waits for has no end. */
static double begin_of(const struct simulation *state, int lane)
{
    const struct lane *self = &state->lanes[lane];
    const struct node *node = &state->nodes[self->next];
    double gap = self->ended >= 0 ? state->contention->gap_ns[lane] : 0;
    double begin = larger(node->queued_ns, self->free_ns + gap);
    for (int from = 0; from < MF_LANE_COUNT; from++) {
        int32_t on = node->depends[from];
        if (on < 0) {
            continue;
        }
        if (on > state->lanes[from].ended) {
            return INFINITY;
        }
        begin = larger(begin, state->spans[on].end_ns + state->contention->handover_ns[from][lane]);
    }
    return begin;
}

/* Up to the end of the last of its dependencies the compute lane waits for that one's lane, from
 * there for the issuing thread or for the hand-over. */
static void count_stall(struct simulation *state, int32_t index)
{
    const struct node *node = &state->nodes[index];
    double since = state->lanes[MF_LANE_COMPUTE].free_ns;
    double latest = since;
    enum mf_stall_cause cause = MF_STALL_HANDOVER;
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        int32_t on = node->depends[lane];
        if (on >= 0 && state->spans[on].end_ns > latest) {
            latest = state->spans[on].end_ns;
            cause = causes[lane];
        }
    }
    state->out->stall_ns[cause] += latest - since;
    bool queued_last = node->queued_ns >= state->now;
    state->out->stall_ns[queued_last ? MF_STALL_ISSUE : MF_STALL_HANDOVER] += state->now - latest;
}

static void start(struct simulation *state, int index)
{
    struct lane *lane = &state->lanes[index];
    const struct node *node = &state->nodes[lane->next];
    if (index == MF_LANE_COMPUTE) {
        count_stall(state, lane->next);
    }
    state->spans[lane->next] = (struct mf_span){state->now, state->now + node->work_ns};
    lane->running = lane->next;
    lane->load = node->load;
    lane->share = node->share;
    lane->slowdown = 1;
    lane->next = node->next;
}

static void start_tasks(struct simulation *state)
{
    for (int i = 0; i < MF_LANE_COUNT; i++) {
        struct lane *lane = &state->lanes[i];
        if (lane->running >= 0 || lane->next == state->count) {
            continue;
        }
        if (isinf(lane->begin_ns)) {
            lane->begin_ns = begin_of(state, i);
        }
        if (lane->begin_ns <= state->now) {
            start(state, i);
        }
    }
}

static void slow_down(struct simulation *state)
{
    for (int a = 0; a < MF_LANE_COUNT; a++) {
        struct lane *lane = &state->lanes[a];
        if (lane->running < 0) {
            continue;
        }
        double slowdown = 1;
        for (int b = 0; b < MF_LANE_COUNT; b++) {
            const struct lane *other = &state->lanes[b];
            slowdown *= 1 + state->excess[lane->load][other->load] * lane->share * other->share;
        }
        if (slowdown != lane->slowdown) {
            double left = (state->spans[lane->running].end_ns - state->now) / lane->slowdown;
            state->spans[lane->running].end_ns = state->now + left * slowdown;
            lane->slowdown = slowdown;
        }
    }
}

/* Goes to the next event; false when there is none. */
static bool advance(struct simulation *state)
{
    double next = INFINITY;
    for (int i = 0; i < MF_LANE_COUNT; i++) {
        const struct lane *lane = &state->lanes[i];
        next =
            smaller(next, lane->running >= 0 ? state->spans[lane->running].end_ns : lane->begin_ns);
    }
    if (isinf(next)) {
        return false;
    }
    state->now = next;
    for (int i = 0; i < MF_LANE_COUNT; i++) {
        struct lane *lane = &state->lanes[i];
        if (lane->running >= 0 && state->spans[lane->running].end_ns <= next) {
            const struct mf_span *span = &state->spans[lane->running];
            state->out->lane_busy_ns[i] += span->end_ns - span->start_ns;
            lane->free_ns = span->end_ns;
            lane->ended = lane->running;
            lane->running = -1;
            lane->load = IDLE;
            lane->begin_ns = INFINITY;
        }
    }
    return true;
}

void mf_simulate(const struct mf_step *step, const struct mf_contention *contention,
                 struct mf_simulation *out, struct mf_span *spans)
{
    static const struct mf_contention none;
    size_t count = (size_t)step->task_count + 1;
    struct mf_span *own = spans == NULL ? malloc(count * sizeof(*own)) : NULL;
    struct simulation state = {
        .contention = contention == NULL ? &none : contention,
        .count = step->task_count,
        .nodes = malloc(count * sizeof(*state.nodes)),
        .spans = spans == NULL ? own : spans,
        .out = out,
    };
    MF_ASSERT(state.spans != NULL && state.nodes != NULL);
    *out = (struct mf_simulation){0};
    read_contention(&state);
    read_tasks(&state, step);
    do {
        start_tasks(&state);
        slow_down(&state);
    } while (advance(&state));
    for (int i = 0; i < MF_LANE_COUNT; i++) {
        /* Dependencies point back in issue order, so every task has its turn. */
        MF_ASSERT(state.lanes[i].next == step->task_count);
        out->step_ns = larger(out->step_ns, state.lanes[i].free_ns);
    }
    out->stall_ns[MF_STALL_END] = out->step_ns - state.lanes[MF_LANE_COMPUTE].free_ns;
    out->stall_ns[MF_STALL_ISSUE] += state.contention->graph_ns;
    out->step_ns += state.contention->graph_ns;
    free(state.nodes);
    free(own);
}

const char *mf_simulate_stall_name(enum mf_stall_cause cause)
{
    static const char *const names[MF_STALL_COUNT] = {
        [MF_STALL_H2D] = "h2d",           [MF_STALL_D2H] = "d2h",     [MF_STALL_CPU] = "cpu",
        [MF_STALL_HANDOVER] = "handover", [MF_STALL_ISSUE] = "issue", [MF_STALL_END] = "end",
    };
    return cause < MF_STALL_COUNT ? names[cause] : "?";
}
