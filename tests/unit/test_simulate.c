/* The simulator on graphs small enough to work out by hand, and its invariants on random ones. */
#include "harness.h"

#include <stdlib.h>
#include <string.h>
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

static struct mf_simulation run(struct mf_task *tasks, int32_t count, struct mf_span *spans)
{
    struct mf_step step = {.task_count = count, .tasks = tasks};
    struct mf_simulation out;
    mf_simulate(&step, &out, spans);
    return out;
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

/* A kernel that reads host memory shares the link with a copy: both take their sum. */
static void test_link_is_shared(void **state)
{
    (void)state;
    struct mf_task tasks[] = {task(MF_LANE_H2D, 100), task(MF_LANE_COMPUTE, 100)};
    tasks[0].kernel = MF_KERNEL_COPY;
    tasks[0].link_bytes = 1000;
    assert_near(run(tasks, 2, NULL).step_ns, 100, 1e-9, 0);
    tasks[1].link_bytes = 1000;
    assert_near(run(tasks, 2, NULL).step_ns, 200, 1e-9, 0);
    tasks[1].link_bytes = 500; /* half of the link: one and a half times as long, both */
    assert_near(run(tasks, 2, NULL).step_ns, 150, 1e-9, 0);
    tasks[1].expected_ns = 50; /* ends at 100 at half rate; 50 of the copy are left by then */
    assert_near(run(tasks, 2, NULL).step_ns, 150, 1e-9, 0);
}

static void test_invariants(void **state)
{
    (void)state;
    enum { COUNT = 10000 };
    static struct mf_task tasks[COUNT];
    static struct mf_span spans[COUNT];
    for (int round = 0; round < 5; round++) {
        double busy[MF_LANE_COUNT] = {0};
        for (int32_t i = 0; i < COUNT; i++) {
            tasks[i] = task((enum mf_lane)harness_random_below(MF_LANE_COUNT),
                            harness_random_between(0, 100));
            busy[tasks[i].lane] += tasks[i].expected_ns;
            for (int try = 0; try < 2 && i > 0; try++) {
                int32_t on = i - 1 - (int32_t)harness_random_below(i < 50 ? (uint64_t)i : 50);
                if (tasks[on].lane != tasks[i].lane && on > tasks[i].depends[tasks[on].lane]) {
                    tasks[i].depends[tasks[on].lane] = on;
                }
            }
        }
        struct timespec begin;
        struct timespec end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        struct mf_simulation out = run(tasks, COUNT, spans);
        clock_gettime(CLOCK_MONOTONIC, &end);
        double ms = (double)(end.tv_sec - begin.tv_sec) * 1e3 +
                    (double)(end.tv_nsec - begin.tv_nsec) * 1e-6;
        print_message("10k tasks in %.2f ms\n", ms);
        double lane_free[MF_LANE_COUNT] = {0};
        for (int32_t i = 0; i < COUNT; i++) {
            double ready = lane_free[tasks[i].lane];
            for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
                int32_t on = tasks[i].depends[lane];
                ready = on >= 0 && spans[on].end_ns > ready ? spans[on].end_ns : ready;
            }
            assert_near(spans[i].start_ns, ready, 1e-6, 0);
            assert_near(spans[i].end_ns, ready + tasks[i].expected_ns, 1e-6, 0);
            lane_free[tasks[i].lane] = spans[i].end_ns;
        }
        double stalls = 0;
        for (int i = 0; i < MF_STALL_COUNT; i++) {
            stalls += out.stall_ns[i];
        }
        assert_near(stalls + busy[MF_LANE_COMPUTE], out.step_ns, 1e-3, 0);
        assert_true(out.critical_path_ns <= out.step_ns * (1 + 1e-9));
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(mf_simulate_stall_name(MF_STALL_H2D), "h2d");
    assert_string_equal(mf_simulate_stall_name(MF_STALL_END), "end");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),          cmocka_unit_test(test_lanes_and_stalls),
        cmocka_unit_test(test_link_is_shared), cmocka_unit_test(test_invariants),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
