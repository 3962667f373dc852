/* The simulator on graphs small enough to work out by hand, its invariants on random ones, and a
 * second simulator that knows no events: it goes through time in small steps. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "planner/simulate.h"

static struct mf_task task(enum mf_lane lane, double ns)
{
    struct mf_task out = {.lane = lane, .kernel = MF_KERNEL_CLIP, .expected_ns = ns};
    for (int i = 0; i < MF_LANE_COUNT; i++) {
        out.depends[i] = -1;
    }
    return out;
}

static struct mf_simulation run_beside(struct mf_task *tasks, int32_t count,
                                       const struct mf_contention *contention,
                                       struct mf_span *spans)
{
    struct mf_step step = {.task_count = count, .tasks = tasks};
    struct mf_simulation out;
    mf_simulate(&step, contention, &out, spans);
    return out;
}

static struct mf_simulation run(struct mf_task *tasks, int32_t count, struct mf_span *spans)
{
    return run_beside(tasks, count, NULL, spans);
}

static double sum_of_stalls(const struct mf_simulation *simulation)
{
    double sum = 0;
    for (int i = 0; i < MF_STALL_COUNT; i++) {
        assert_true(simulation->stall_ns[i] >= 0);
        sum += simulation->stall_ns[i];
    }
    return sum;
}

static void test_empty(void **state)
{
    (void)state;
    struct mf_simulation out = run(NULL, 0, NULL);
    assert_true(out.step_ns == 0 && out.critical_path_ns == 0);
}

static void test_lanes_and_stalls(void **state)
{
    (void)state;
    struct mf_task tasks[] = {
        task(MF_LANE_H2D, 10),    /* 0: 0..10 */
        task(MF_LANE_H2D, 10),    /* 1: 10..20 */
        task(MF_LANE_COMPUTE, 5), /* 2: waits for 0: 10..15 */
        task(MF_LANE_COMPUTE, 5), /* 3: waits for 1: 20..25 */
        task(MF_LANE_CPU, 30),    /* 4: waits for 2: 15..45 */
        task(MF_LANE_COMPUTE, 1), /* 5: waits for 4: 45..46 */
        task(MF_LANE_D2H, 4),     /* 6: waits for 5: 46..50 */
    };
    tasks[2].depends[MF_LANE_H2D] = 0;
    tasks[3].depends[MF_LANE_H2D] = 1;
    tasks[4].depends[MF_LANE_COMPUTE] = 2;
    tasks[5].depends[MF_LANE_CPU] = 4;
    tasks[6].depends[MF_LANE_COMPUTE] = 5;
    struct mf_span spans[7];
    struct mf_simulation out = run(tasks, 7, spans);
    const double starts[] = {0, 10, 10, 20, 15, 45, 46};
    for (int i = 0; i < 7; i++) {
        assert_near(spans[i].start_ns, starts[i], 1e-9, 0);
    }
    assert_near(out.step_ns, 50, 1e-9, 0);
    assert_near(out.lane_busy_ns[MF_LANE_COMPUTE], 11, 1e-9, 0);
    assert_near(out.lane_busy_ns[MF_LANE_H2D], 20, 1e-9, 0);
    assert_near(out.stall_ns[MF_STALL_H2D], 15, 1e-9, 0);
    assert_near(out.stall_ns[MF_STALL_CPU], 20, 1e-9, 0);
    assert_near(out.stall_ns[MF_STALL_D2H], 0, 1e-9, 0);
    assert_near(out.stall_ns[MF_STALL_END], 4, 1e-9, 0);
    /* 0, 2, 4, 5, 6 */
    assert_near(out.critical_path_ns, 50, 1e-9, 0);
}

/* Two lanes: 72 of the update pass beside the copy, at 1/1.5 of its speed. */
static void test_two_lanes(void **state)
{
    (void)state;
    struct mf_contention contention = {0};
    contention.slowdown[MF_LOAD_CPU][MF_LOAD_D2H] = 1.5;
    contention.slowdown[MF_LOAD_D2H][MF_LOAD_CPU] = 1.2;
    struct mf_task tasks[] = {task(MF_LANE_CPU, 100), task(MF_LANE_D2H, 60)};
    struct mf_span spans[2];
    struct mf_simulation out = run_beside(tasks, 2, &contention, spans);
    assert_near(spans[1].end_ns, 72, 1e-9, 0);
    assert_near(spans[0].end_ns, 72 + (100 - 72 / 1.5), 1e-9, 0);
    assert_near(out.step_ns, 124, 1e-9, 0);
    assert_near(out.lane_busy_ns[MF_LANE_CPU], 124, 1e-9, 0);
    assert_near(out.lane_busy_ns[MF_LANE_D2H], 72, 1e-9, 0);
    assert_near(out.critical_path_ns, 100, 1e-9, 0);
    assert_near(run(tasks, 2, NULL).step_ns, 100, 1e-9, 0);
}

/* Three lanes: slow-downs multiply, and one that ends gives its part back. */
static void test_three_lanes(void **state)
{
    (void)state;
    struct mf_contention contention;
    mf_contention_assume(false, &contention);
    contention.slowdown[MF_LOAD_CPU][MF_LOAD_H2D] = 1.2;
    contention.slowdown[MF_LOAD_CPU][MF_LOAD_D2H] = 1.5;
    contention.slowdown[MF_LOAD_H2D][MF_LOAD_D2H] = 1.25;
    contention.slowdown[MF_LOAD_GPU_UPDATE][MF_LOAD_H2D] = 3; /* nobody here */
    struct mf_task tasks[] = {
        task(MF_LANE_CPU, 100),    /* 0..50 at 1.8, to 90 at 1.5, then alone */
        task(MF_LANE_H2D, 40),     /* beside the other copy at 1.25: to 50 */
        task(MF_LANE_D2H, 90),     /* to 90 */
        task(MF_LANE_COMPUTE, 30), /* to 30 */
    };
    struct mf_span spans[4];
    struct mf_simulation out = run_beside(tasks, 4, &contention, spans);
    assert_near(spans[1].end_ns, 50, 1e-9, 0);
    assert_near(spans[2].end_ns, 90, 1e-9, 0);
    assert_near(spans[3].end_ns, 30, 1e-9, 0);
    assert_near(spans[0].end_ns, 90 + 100 - 50 / 1.8 - 40 / 1.5, 1e-9, 0);
    assert_near(out.stall_ns[MF_STALL_END], out.step_ns - 30, 1e-9, 0);
    assert_near(sum_of_stalls(&out) + 30, out.step_ns, 1e-9, 0);
}

/* A kernel that reads host memory shares the link with a copy: both take their sum. */
static void test_link_is_shared(void **state)
{
    (void)state;
    struct mf_contention contention;
    mf_contention_assume(true, &contention);
    struct mf_task tasks[] = {task(MF_LANE_H2D, 100), task(MF_LANE_COMPUTE, 100)};
    tasks[0].kernel = MF_KERNEL_COPY;
    tasks[0].link_bytes = 1000;
    tasks[1].kernel = MF_KERNEL_LINEAR_FORWARD;
    assert_near(run_beside(tasks, 2, &contention, NULL).step_ns, 100, 1e-9, 0);
    tasks[1].shape.flags = MF_SHAPE_WEIGHT_HOST;
    tasks[1].link_bytes = 1000;
    assert_near(run_beside(tasks, 2, &contention, NULL).step_ns, 200, 1e-9, 0);
    tasks[1].link_bytes = 500; /* half of the link: one and a half times as long, both */
    assert_near(run_beside(tasks, 2, &contention, NULL).step_ns, 150, 1e-9, 0);
    tasks[1].link_bytes = 2000; /* no kernel takes more than the link */
    assert_near(run_beside(tasks, 2, &contention, NULL).step_ns, 200, 1e-9, 0);
    tasks[1].expected_ns = 50; /* ends at 100; half of the copy is left */
    assert_near(run_beside(tasks, 2, &contention, NULL).step_ns, 150, 1e-9, 0);
    assert_near(run(tasks, 2, NULL).step_ns, 100, 1e-9, 0);
}

static void test_handover(void **state)
{
    (void)state;
    struct mf_contention contention = {0};
    contention.handover_ns[MF_LANE_H2D][MF_LANE_COMPUTE] = 3;
    contention.handover_ns[MF_LANE_D2H][MF_LANE_COMPUTE] = 6;
    contention.handover_ns[MF_LANE_COMPUTE][MF_LANE_CPU] = 4;
    contention.handover_ns[MF_LANE_CPU][MF_LANE_H2D] = 2;
    contention.gap_ns[MF_LANE_COMPUTE] = 1;
    struct mf_task tasks[] = {
        task(MF_LANE_H2D, 10),    /* 0: 0..10 */
        task(MF_LANE_D2H, 9),     /* 1: 0..9 */
        task(MF_LANE_COMPUTE, 5), /* 2: 0 at 13, 1 at 15: 15..20 */
        task(MF_LANE_COMPUTE, 5), /* 3: behind 2, with a gap: 21..26 */
        task(MF_LANE_CPU, 7),     /* 4: after 2: 24..31 */
        task(MF_LANE_H2D, 1),     /* 5: after 4: 33..34 */
        task(MF_LANE_COMPUTE, 1), /* 6: after 5: 37..38 */
    };
    tasks[2].depends[MF_LANE_H2D] = 0;
    tasks[2].depends[MF_LANE_D2H] = 1;
    tasks[4].depends[MF_LANE_COMPUTE] = 2;
    tasks[5].depends[MF_LANE_CPU] = 4;
    tasks[6].depends[MF_LANE_H2D] = 5;
    struct mf_span spans[7];
    struct mf_simulation out = run_beside(tasks, 7, &contention, spans);
    const double starts[] = {0, 0, 15, 21, 24, 33, 37};
    for (int i = 0; i < 7; i++) {
        assert_near(spans[i].start_ns, starts[i], 1e-9, 0);
        assert_near(spans[i].end_ns, starts[i] + tasks[i].expected_ns, 1e-9, 0);
    }
    assert_near(out.step_ns, 38, 1e-9, 0);
    assert_near(out.stall_ns[MF_STALL_H2D], 10 + 8, 1e-9, 0);
    assert_near(out.stall_ns[MF_STALL_HANDOVER], 5 + 1 + 3, 1e-9, 0);
    assert_near(sum_of_stalls(&out) + 11, out.step_ns, 1e-9, 0);
    /* No latency in the chain: 0, 2, 4, 5, 6. */
    assert_near(out.critical_path_ns, 10 + 5 + 7 + 1 + 1, 1e-9, 0);
}

/* A graph of small tasks runs as fast as it is queued. */
static void test_issue(void **state)
{
    (void)state;
    struct mf_contention contention = {.graph_ns = 100};
    contention.issue_ns[MF_LANE_COMPUTE] = 3;
    contention.issue_ns[MF_LANE_H2D] = 5;
    struct mf_task tasks[] = {
        task(MF_LANE_COMPUTE, 1), /* queued at 3 */
        task(MF_LANE_COMPUTE, 1), /* 6 */
        task(MF_LANE_H2D, 10),    /* 11 */
        task(MF_LANE_COMPUTE, 9), /* 14..23 */
        task(MF_LANE_COMPUTE, 1), /* queued at 17, but 23..24 */
        task(MF_LANE_COMPUTE, 1), /* 24..25 */
    };
    struct mf_span spans[6];
    struct mf_simulation out = run_beside(tasks, 6, &contention, spans);
    const double starts[] = {3, 6, 11, 14, 23, 24};
    for (int i = 0; i < 6; i++) {
        assert_near(spans[i].start_ns, starts[i], 1e-9, 0);
    }
    assert_near(out.step_ns, 25 + 100, 1e-9, 0);
    assert_near(out.stall_ns[MF_STALL_ISSUE], 3 + 2 + 7 + 100, 1e-9, 0);
    assert_near(sum_of_stalls(&out) + 13, out.step_ns, 1e-9, 0);
}

/* Tasks of every load, with two dependencies at most on the 50 before. */
static void fill(struct mf_task *tasks, int32_t count, double ns_max)
{
    for (int32_t i = 0; i < count; i++) {
        tasks[i] = task((enum mf_lane)harness_random_below(MF_LANE_COUNT),
                        harness_random_below(10) == 0 ? 0 : harness_random_between(0, ns_max));
        switch (tasks[i].lane) {
        case MF_LANE_COMPUTE:
            tasks[i].kernel =
                harness_random_below(3) == 0 ? MF_KERNEL_ADAMW : MF_KERNEL_LINEAR_FORWARD;
            tasks[i].shape.flags = harness_random_below(3) == 0   ? MF_SHAPE_WEIGHT_HOST
                                   : harness_random_below(3) == 0 ? MF_SHAPE_OUTPUT_HOST
                                                                  : 0;
            break;
        case MF_LANE_H2D:
        case MF_LANE_D2H:
            tasks[i].kernel = MF_KERNEL_COPY;
            break;
        case MF_LANE_CPU:
        case MF_LANE_COUNT:
            break;
        }
        tasks[i].link_bytes = (int64_t)(tasks[i].expected_ns * harness_random_between(0, 100));
        for (int try = 0; try < 2 && i > 0; try++) {
            int32_t on = i - 1 - (int32_t)harness_random_below(i < 50 ? (uint64_t)i : 50);
            if (tasks[on].lane != tasks[i].lane && on > tasks[i].depends[tasks[on].lane]) {
                tasks[i].depends[tasks[on].lane] = on;
            }
        }
    }
}

/* `most` = the largest slow-down; latencies of the order of tasks. */
static struct mf_contention some_contention(double most, double ns)
{
    struct mf_contention out;
    mf_contention_assume(false, &out);
    for (int a = 0; a < MF_LOAD_COUNT; a++) {
        for (int b = 0; b < MF_LOAD_COUNT; b++) {
            if (mf_contention_lane((enum mf_load)a) != mf_contention_lane((enum mf_load)b)) {
                out.slowdown[a][b] = harness_random_between(1, most);
            }
        }
    }
    for (int from = 0; from < MF_LANE_COUNT; from++) {
        out.gap_ns[from] = harness_random_between(0, ns / 4);
        out.issue_ns[from] = harness_random_between(0, ns / 4);
        for (int to = 0; to < MF_LANE_COUNT; to++) {
            out.handover_ns[from][to] = from == to ? 0 : harness_random_between(0, ns);
        }
    }
    out.graph_ns = harness_random_between(0, ns);
    return out;
}

/* Without contention a task takes what is expected, right after what it waits for. */
static void check_starts(const struct mf_task *tasks, const struct mf_span *spans, int32_t count)
{
    double lane_free[MF_LANE_COUNT] = {0};
    for (int32_t i = 0; i < count; i++) {
        double ready = lane_free[tasks[i].lane];
        for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
            int32_t on = tasks[i].depends[lane];
            ready = on >= 0 && spans[on].end_ns > ready ? spans[on].end_ns : ready;
        }
        assert_near(spans[i].start_ns, ready, 1e-6, 0);
        assert_near(spans[i].end_ns, ready + tasks[i].expected_ns, 1e-6, 0);
        lane_free[tasks[i].lane] = spans[i].end_ns;
    }
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static void test_invariants(void **state)
{
    (void)state;
    enum { COUNT = 10000 };
    static struct mf_task tasks[COUNT];
    static struct mf_span spans[COUNT];
    static struct mf_span beside[COUNT];
    double best_ms = INFINITY;
    for (int round = 0; round < 5; round++) {
        fill(tasks, COUNT, 100);
        struct mf_contention contention = some_contention(3, round < 3 ? 40 : 0);
        struct mf_simulation alone = run(tasks, COUNT, spans);
        double begin = now_ms();
        struct mf_simulation out = run_beside(tasks, COUNT, &contention, beside);
        best_ms = fmin(best_ms, now_ms() - begin);
        check_starts(tasks, spans, COUNT);
        double busy[MF_LANE_COUNT] = {0};
        for (int32_t i = 0; i < COUNT; i++) {
            busy[tasks[i].lane] += beside[i].end_ns - beside[i].start_ns;
            assert_true(beside[i].start_ns >= spans[i].start_ns - 1e-6);
            assert_true(beside[i].end_ns >= spans[i].end_ns - 1e-6);
        }
        for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
            assert_near(out.lane_busy_ns[lane], busy[lane], 1e-3, 0);
            assert_true(out.step_ns >= busy[lane]);
            assert_true(out.lane_busy_ns[lane] >= alone.lane_busy_ns[lane] - 1e-6);
        }
        assert_near(sum_of_stalls(&out) + busy[MF_LANE_COMPUTE], out.step_ns, 1e-3, 0);
        assert_near(sum_of_stalls(&alone) + alone.lane_busy_ns[MF_LANE_COMPUTE], alone.step_ns,
                    1e-3, 0);
        assert_true(out.step_ns > alone.step_ns);
        assert_true(out.critical_path_ns == alone.critical_path_ns);
        assert_true(alone.critical_path_ns <= alone.step_ns * (1 + 1e-9));
        struct mf_simulation again = run_beside(tasks, COUNT, &contention, NULL);
        assert_memory_equal(&again, &out, sizeof(out));
    }
    print_message("10k tasks in %.2f ms\n", best_ms);
    assert_true(best_ms <= 10);
}

/* The other simulator. Each lane runs task after task of the array; every DT it is looked at what
 * may begin, and what runs gets on by DT over its slow-down. */
#define DT 0.002

struct slow {
    const struct mf_task *tasks;
    int32_t count;
    const struct mf_contention *contention;
    double bytes_per_ns;
    struct mf_span *spans;
    bool *ended;
    double *done;
    double time;
};

static double link_share(const struct slow *slow, const struct mf_task *one)
{
    bool direct = (one->shape.flags & (MF_SHAPE_WEIGHT_HOST | MF_SHAPE_OUTPUT_HOST)) != 0;
    if (!direct || slow->bytes_per_ns <= 0 || one->expected_ns <= 0) {
        return 1;
    }
    return fmin(1, (double)one->link_bytes / (slow->bytes_per_ns * one->expected_ns));
}

static double pace(const struct slow *slow, const int32_t running[MF_LANE_COUNT], int lane)
{
    const struct mf_task *self = &slow->tasks[running[lane]];
    double slowdown = 1;
    for (int other = 0; other < MF_LANE_COUNT; other++) {
        if (other == lane || running[other] < 0) {
            continue;
        }
        const struct mf_task *beside = &slow->tasks[running[other]];
        enum mf_load a = mf_contention_load(self->lane, self->kernel, self->shape.flags);
        enum mf_load b = mf_contention_load(beside->lane, beside->kernel, beside->shape.flags);
        double share = link_share(slow, self) * link_share(slow, beside);
        slowdown *= 1 + (slow->contention->slowdown[a][b] - 1) * share;
    }
    return 1 / slowdown;
}

static bool may_begin(const struct slow *slow, int32_t index)
{
    const struct mf_task *self = &slow->tasks[index];
    double earliest = 0;
    double queued = 0;
    for (int32_t i = 0; i <= index; i++) {
        queued += slow->contention->issue_ns[slow->tasks[i].lane];
        if (i < index && slow->tasks[i].lane == self->lane) {
            if (!slow->ended[i]) {
                return false;
            }
            earliest = slow->spans[i].end_ns + slow->contention->gap_ns[self->lane];
        }
    }
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        int32_t on = self->depends[lane];
        if (on >= 0 && !slow->ended[on]) {
            return false;
        }
        if (on >= 0) {
            double latency = slow->contention->handover_ns[lane][self->lane];
            earliest = fmax(earliest, slow->spans[on].end_ns + latency);
        }
    }
    return slow->time >= fmax(earliest, queued);
}

static void step_by_step(struct slow *slow)
{
    int32_t left = slow->count;
    int32_t running[MF_LANE_COUNT] = {-1, -1, -1, -1};
    int32_t next[MF_LANE_COUNT] = {0};
    while (left > 0) {
        for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
            while (next[lane] < slow->count && (int)slow->tasks[next[lane]].lane != lane) {
                next[lane]++;
            }
            if (running[lane] < 0 && next[lane] < slow->count && may_begin(slow, next[lane])) {
                running[lane] = next[lane]++;
                slow->spans[running[lane]].start_ns = slow->time;
            }
        }
        for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
            if (running[lane] >= 0) {
                slow->done[running[lane]] += DT * pace(slow, running, lane);
            }
        }
        slow->time += DT;
        for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
            int32_t index = running[lane];
            if (index >= 0 && slow->done[index] >= slow->tasks[index].expected_ns) {
                slow->spans[index].end_ns = slow->time;
                slow->ended[index] = true;
                running[lane] = -1;
                left--;
            }
        }
    }
}

/* Each task may begin and end one DT late; what it delays may then run beside something else. */
static void test_against_small_steps(void **state)
{
    (void)state;
    enum { COUNT = 24 };
    const double tolerance = 4 * COUNT * DT;
    for (int round = 0; round < 40; round++) {
        struct mf_task tasks[COUNT];
        struct mf_span spans[COUNT];
        struct mf_span slow_spans[COUNT] = {0};
        bool ended[COUNT] = {false};
        double done[COUNT] = {0};
        fill(tasks, COUNT, 20);
        struct mf_contention contention = some_contention(3, round % 2 == 0 ? 5 : 0);
        struct slow slow = {.tasks = tasks,
                            .count = COUNT,
                            .contention = &contention,
                            .spans = slow_spans,
                            .ended = ended,
                            .done = done};
        for (int i = 0; i < COUNT; i++) {
            if (tasks[i].kernel == MF_KERNEL_COPY && tasks[i].expected_ns > 0) {
                slow.bytes_per_ns =
                    fmax(slow.bytes_per_ns, (double)tasks[i].link_bytes / tasks[i].expected_ns);
            }
        }
        struct mf_simulation out = run_beside(tasks, COUNT, &contention, spans);
        step_by_step(&slow);
        double last = 0;
        for (int i = 0; i < COUNT; i++) {
            assert_near(spans[i].start_ns, slow_spans[i].start_ns, tolerance, 0);
            assert_near(spans[i].end_ns, slow_spans[i].end_ns, tolerance, 0);
            last = fmax(last, slow_spans[i].end_ns);
        }
        assert_near(out.step_ns, last + contention.graph_ns, tolerance, 0);
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(mf_simulate_stall_name(MF_STALL_H2D), "h2d");
    assert_string_equal(mf_simulate_stall_name(MF_STALL_HANDOVER), "handover");
    assert_string_equal(mf_simulate_stall_name(MF_STALL_ISSUE), "issue");
    assert_string_equal(mf_simulate_stall_name(MF_STALL_END), "end");
    assert_string_equal(mf_simulate_stall_name(MF_STALL_COUNT), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_lanes_and_stalls),
        cmocka_unit_test(test_two_lanes),
        cmocka_unit_test(test_three_lanes),
        cmocka_unit_test(test_link_is_shared),
        cmocka_unit_test(test_handover),
        cmocka_unit_test(test_issue),
        cmocka_unit_test(test_invariants),
        cmocka_unit_test(test_against_small_steps),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
