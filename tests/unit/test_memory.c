/* Placement by lifetime, and the edges that make shared memory safe: proved by brute force. */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

#include "planner/memory.h"

#define TASKS 60
#define BUFFERS 40

/* A random graph on all lanes, its buffers and their first accesses. */
struct graph {
    struct mf_step step;
    struct mf_task tasks[TASKS];
    struct mf_buffer buffers[BUFFERS];
    int32_t first_access[BUFFERS][MF_LANE_COUNT];
    bool touches[TASKS][BUFFERS];
};

static void touch(struct graph *graph, int32_t task, int32_t index)
{
    struct mf_buffer *buffer = &graph->buffers[index];
    enum mf_lane lane = graph->tasks[task].lane;
    buffer->first_task = buffer->first_task < 0 ? task : buffer->first_task;
    buffer->last_task = task;
    if (graph->first_access[index][lane] < 0) {
        graph->first_access[index][lane] = task;
    }
    buffer->last_access[lane] = task;
    graph->touches[task][index] = true;
}

/* What the builder derives within one buffer: here every access waits for the one before it. */
static void chain(struct graph *graph, int32_t index)
{
    int32_t before = -1;
    for (int32_t task = 0; task < TASKS; task++) {
        if (!graph->touches[task][index]) {
            continue;
        }
        enum mf_lane lane = before < 0 ? MF_LANE_COUNT : graph->tasks[before].lane;
        if (before >= 0 && lane != graph->tasks[task].lane &&
            before > graph->tasks[task].depends[lane]) {
            graph->tasks[task].depends[lane] = before;
        }
        before = task;
    }
}

static void make_graph(struct graph *graph)
{
    memset(graph, 0, sizeof(*graph));
    memset(graph->first_access, 0xff, sizeof(graph->first_access));
    for (int32_t task = 0; task < TASKS; task++) {
        graph->tasks[task].lane = (enum mf_lane)harness_random_below(MF_LANE_COUNT);
        memset(graph->tasks[task].depends, 0xff, sizeof(graph->tasks[task].depends));
    }
    for (int32_t i = 0; i < BUFFERS; i++) {
        struct mf_buffer *buffer = &graph->buffers[i];
        *buffer = (struct mf_buffer){.first_task = -1, .last_task = -1};
        memset(buffer->last_access, 0xff, sizeof(buffer->last_access));
        buffer->space = harness_random_below(5) == 0 ? MF_SPACE_HOST : MF_SPACE_DEVICE;
        buffer->bytes = MF_BUFFER_ALIGN * (int64_t)(1 + harness_random_below(20));
        buffer->persistent = i < 3;
        int32_t begin = (int32_t)harness_random_below(TASKS);
        int32_t length = (int32_t)harness_random_below(12);
        for (int32_t task = begin; task < TASKS && task <= begin + length; task++) {
            if (task == begin || harness_random_below(3) == 0) {
                touch(graph, task, i);
            }
        }
        chain(graph, i);
    }
    graph->step = (struct mf_step){.task_count = TASKS,
                                   .tasks = graph->tasks,
                                   .buffer_count = BUFFERS,
                                   .buffers = graph->buffers};
}

static bool overlap(const struct mf_buffer *a, const struct mf_buffer *b)
{
    return a->space == b->space && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

static bool floats(const struct mf_buffer *buffer)
{
    return !buffer->persistent && buffer->first_task >= 0;
}

static void check_placement(const struct mf_buffer *buffers, int32_t count,
                            const int64_t space_bytes[MF_SPACE_COUNT])
{
    for (int32_t i = 0; i < count; i++) {
        const struct mf_buffer *a = &buffers[i];
        if (!a->persistent && a->first_task < 0) {
            continue;
        }
        assert_int_equal(a->offset % MF_BUFFER_ALIGN, 0);
        assert_true(a->offset >= 0 && a->offset + a->bytes <= space_bytes[a->space]);
        for (int32_t j = 0; j < i; j++) {
            const struct mf_buffer *b = &buffers[j];
            bool both = a->persistent || b->persistent ||
                        (a->first_task <= b->last_task && b->first_task <= a->last_task);
            bool there = b->persistent || b->first_task >= 0;
            assert_false(both && there && overlap(a, b));
        }
    }
}

/* Starts any task that may start; ends any that runs. A buffer is in use from the start of the
 * first task that touches it to the end of the last one. */
static void run_anyhow(const struct graph *graph)
{
    int32_t next[MF_LANE_COUNT];
    int32_t running[MF_LANE_COUNT];
    bool ended[TASKS] = {false};
    int32_t started_on[BUFFERS] = {0};
    int32_t ended_on[BUFFERS] = {0};
    int32_t total[BUFFERS] = {0};
    int32_t done = 0;
    for (int32_t i = 0; i < BUFFERS; i++) {
        for (int32_t task = 0; task < TASKS; task++) {
            total[i] += graph->touches[task][i] ? 1 : 0;
        }
    }
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        next[lane] = 0;
        running[lane] = -1;
    }
    while (done < TASKS) {
        int lane = (int)harness_random_below(MF_LANE_COUNT);
        if (running[lane] >= 0) {
            for (int32_t i = 0; i < BUFFERS; i++) {
                ended_on[i] += graph->touches[running[lane]][i] ? 1 : 0;
            }
            ended[running[lane]] = true;
            running[lane] = -1;
            done++;
            continue;
        }
        while (next[lane] < TASKS && (int)graph->tasks[next[lane]].lane != lane) {
            next[lane]++;
        }
        if (next[lane] == TASKS) {
            continue;
        }
        const struct mf_task *task = &graph->tasks[next[lane]];
        bool ready = true;
        for (int other = 0; other < MF_LANE_COUNT; other++) {
            ready = ready && (task->depends[other] < 0 || ended[task->depends[other]]);
        }
        if (!ready) {
            continue;
        }
        running[lane] = next[lane]++;
        for (int32_t i = 0; i < BUFFERS; i++) {
            started_on[i] += graph->touches[running[lane]][i] ? 1 : 0;
        }
        for (int32_t i = 0; i < BUFFERS; i++) {
            for (int32_t j = 0; j < i; j++) {
                bool both = started_on[i] > 0 && ended_on[i] < total[i] && started_on[j] > 0 &&
                            ended_on[j] < total[j];
                assert_false(both && floats(&graph->buffers[i]) && floats(&graph->buffers[j]) &&
                             overlap(&graph->buffers[i], &graph->buffers[j]));
            }
        }
    }
}

static void test_any_schedule_is_safe(void **state)
{
    (void)state;
    static struct graph graph;
    int64_t shared = 0;
    for (int round = 0; round < 120; round++) {
        make_graph(&graph);
        mf_memory_place(graph.buffers, BUFFERS, graph.step.space_bytes);
        check_placement(graph.buffers, BUFFERS, graph.step.space_bytes);
        mf_memory_order(&graph.step, (const int32_t(*)[MF_LANE_COUNT])graph.first_access);
        for (int32_t task = 0; task < TASKS; task++) {
            assert_int_equal(graph.tasks[task].depends[graph.tasks[task].lane], -1);
            for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
                assert_true(graph.tasks[task].depends[lane] < task);
            }
        }
        for (int schedule = 0; schedule < 20; schedule++) {
            run_anyhow(&graph);
        }
        int64_t sum = 0;
        for (int32_t i = 0; i < BUFFERS; i++) {
            sum += graph.buffers[i].bytes;
        }
        shared += sum > graph.step.space_bytes[0] + graph.step.space_bytes[1];
    }
    assert_true(shared > 100); /* memory was shared at all */
}

static void test_live_peak(void **state)
{
    (void)state;
    struct mf_buffer buffers[] = {
        {.persistent = true, .bytes = 256, .first_task = -1, .last_task = -1},
        {.bytes = 512, .first_task = 0, .last_task = 2},
        {.bytes = 1024, .first_task = 2, .last_task = 3},
        {.bytes = 768, .first_task = 3, .last_task = 9},
        {.bytes = 4096, .first_task = -1, .last_task = -1}, /* no task: no room */
    };
    assert_int_equal(mf_memory_live_peak(buffers, 5, MF_SPACE_DEVICE), 256 + 1024 + 768);
    assert_int_equal(mf_memory_live_peak(buffers, 5, MF_SPACE_HOST), 0);
    int64_t bytes[MF_SPACE_COUNT];
    mf_memory_place(buffers, 5, bytes);
    assert_int_equal(bytes[MF_SPACE_DEVICE], 256 + 1024 + 768);
    assert_int_equal(bytes[MF_SPACE_HOST], 0);
    assert_int_equal(buffers[0].offset, 0);
}

/* Lives like those of a training step: long ones from forward to backward, short ones between. */
static void test_fragmentation_and_size(void **state)
{
    (void)state;
    static struct mf_buffer buffers[50000];
    for (int32_t count = 500; count <= 50000; count *= 10) {
        for (int32_t i = 0; i < count; i++) {
            bool saved = i % 3 == 0;
            buffers[i] = (struct mf_buffer){
                .bytes = MF_BUFFER_ALIGN * (int64_t)(saved ? 64 : 1 + harness_random_below(200)),
                .first_task = i,
                .last_task = saved ? 2 * count - i : i + (int32_t)harness_random_below(6),
            };
        }
        int64_t bytes[MF_SPACE_COUNT];
        int64_t again[MF_SPACE_COUNT];
        mf_memory_place(buffers, count, bytes);
        int64_t peak = mf_memory_live_peak(buffers, count, MF_SPACE_DEVICE);
        assert_true(bytes[MF_SPACE_DEVICE] >= peak);
        print_message("%d buffers: %.3f of the live peak\n", count,
                      (double)bytes[MF_SPACE_DEVICE] / (double)peak);
        assert_true((double)bytes[MF_SPACE_DEVICE] <= 1.05 * (double)peak);
        if (count <= 5000) {
            check_placement(buffers, count, bytes);
        }
        mf_memory_place(buffers, count, again);
        assert_memory_equal(bytes, again, sizeof(bytes));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_schedule_is_safe),
        cmocka_unit_test(test_live_peak),
        cmocka_unit_test(test_fragmentation_and_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
