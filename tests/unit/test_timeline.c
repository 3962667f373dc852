/* Merged spans, memory over time, and the micro-batches that are tried. */
#include "server/timeline.h"

#include <string.h>

#include "harness.h"
#include "server/tune_batch.h"

#define STEP_NS 1000.0

static struct mf_task task(enum mf_lane lane, int32_t unit, int64_t link_bytes)
{
    return (struct mf_task){.kernel =
                                lane == MF_LANE_COMPUTE ? MF_KERNEL_LINEAR_FORWARD : MF_KERNEL_COPY,
                            .lane = lane,
                            .phase = MF_PHASE_BACKWARD,
                            .unit = unit,
                            .panel = -1,
                            .link_bytes = link_bytes};
}

static const Memferry__V1__LaneTimeline *lane_of(const Memferry__V1__GetTimelineResponse *out,
                                                 enum mf_lane lane)
{
    return out->lanes[lane];
}

static void test_short_neighbours_are_merged(void **state)
{
    (void)state;
    struct mf_task tasks[] = {
        task(MF_LANE_H2D, 0, 10), task(MF_LANE_H2D, 1, 20), task(MF_LANE_COMPUTE, 2, 0),
        task(MF_LANE_H2D, 3, 40), task(MF_LANE_H2D, 4, 80), task(MF_LANE_CPU, -1, 0),
    };
    /* Parts of 100 ns: the first two fit into one, the third ends beyond it, the fourth is long. */
    const struct mf_span spans[] = {{0, 20},   {50, 90},   {0, 500},
                                    {95, 130}, {130, 400}, {10, 5 /* not traced */}};
    struct mf_step step = {.task_count = 6, .tasks = tasks};
    struct mf_arena arena;
    Memferry__V1__GetTimelineResponse out = MEMFERRY__V1__GET_TIMELINE_RESPONSE__INIT;
    mf_arena_init(&arena);
    mf_timeline_fill(&step, spans, STEP_NS, 10, &arena, &out);
    const Memferry__V1__LaneTimeline *h2d = lane_of(&out, MF_LANE_H2D);
    assert_int_equal(h2d->n_spans, 3);
    assert_true(h2d->busy_ns == 20 + 40 + 35 + 270);
    const Memferry__V1__Span *first = h2d->spans[0];
    assert_int_equal(first->task_count, 2);
    assert_true(first->start_ns == 0 && first->duration_ns == 90 && first->busy_ns == 60);
    assert_int_equal(first->link_bytes, 30);
    assert_int_equal(first->unit, 1); /* of the longer one */
    assert_int_equal(h2d->spans[1]->unit, 3);
    assert_int_equal(h2d->spans[2]->task_count, 1);
    assert_int_equal(first->phase, MEMFERRY__V1__PHASE__PHASE_BACKWARD);
    assert_string_equal(first->kernel, mf_kernel_name(MF_KERNEL_COPY));
    assert_int_equal(lane_of(&out, MF_LANE_COMPUTE)->n_spans, 1);
    assert_int_equal(lane_of(&out, MF_LANE_CPU)->n_spans, 0);
    assert_int_equal(out.n_memory, 0);
    mf_arena_reset(&arena);
}

/* However many tasks: two merged neighbours reach over a part together. */
static void test_number_of_spans_is_bounded(void **state)
{
    (void)state;
    enum { TASKS = 20000, COLUMNS = 50 };
    static struct mf_task tasks[TASKS];
    static struct mf_span spans[TASKS];
    struct mf_step step = {.task_count = TASKS, .tasks = tasks};
    struct mf_arena arena;
    Memferry__V1__GetTimelineResponse out = MEMFERRY__V1__GET_TIMELINE_RESPONSE__INIT;
    for (int i = 0; i < TASKS; i++) {
        tasks[i] = task(MF_LANE_D2H, i, 1);
        spans[i] = (struct mf_span){STEP_NS * i / TASKS, STEP_NS * (i + 0.5) / TASKS};
    }
    mf_arena_init(&arena);
    mf_timeline_fill(&step, spans, STEP_NS, COLUMNS, &arena, &out);
    const Memferry__V1__LaneTimeline *lane = lane_of(&out, MF_LANE_D2H);
    int32_t count = 0;
    int64_t bytes = 0;
    for (size_t i = 0; i < lane->n_spans; i++) {
        count += lane->spans[i]->task_count;
        bytes += lane->spans[i]->link_bytes;
    }
    assert_true(lane->n_spans <= 2 * COLUMNS);
    assert_int_equal(count, TASKS);
    assert_int_equal(bytes, TASKS);
    mf_arena_reset(&arena);
}

static void test_memory_is_the_fullest_moment_of_a_part(void **state)
{
    (void)state;
    struct mf_task tasks[] = {task(MF_LANE_COMPUTE, 0, 0), task(MF_LANE_D2H, 0, 0),
                              task(MF_LANE_COMPUTE, 1, 0)};
    const struct mf_span spans[] = {{100, 300}, {300, 620}, {620, 700}};
    struct mf_buffer buffers[] = {
        {.space = MF_SPACE_DEVICE, .purpose = MF_PURPOSE_WEIGHT, .persistent = true, .bytes = 1024},
        {.space = MF_SPACE_HOST, .purpose = MF_PURPOSE_STATE, .persistent = true, .bytes = 4096},
        /* Written by compute, read by a copy out: held until the copy ends. */
        {.space = MF_SPACE_DEVICE,
         .purpose = MF_PURPOSE_GRADIENT,
         .bytes = 512,
         .first_task = 0,
         .last_access =
             {[MF_LANE_COMPUTE] = 0, [MF_LANE_H2D] = -1, [MF_LANE_D2H] = 1, [MF_LANE_CPU] = -1}},
        /* Takes the place of the first at the same moment: never both. */
        {.space = MF_SPACE_DEVICE,
         .purpose = MF_PURPOSE_ACTIVATION,
         .bytes = 256,
         .first_task = 2,
         .last_access =
             {[MF_LANE_COMPUTE] = 2, [MF_LANE_H2D] = -1, [MF_LANE_D2H] = -1, [MF_LANE_CPU] = -1}},
        {.space = MF_SPACE_DEVICE, .purpose = MF_PURPOSE_RING, .bytes = 64, .first_task = -1},
    };
    struct mf_step step = {.task_count = 3, .tasks = tasks, .buffer_count = 5, .buffers = buffers};
    struct mf_arena arena;
    Memferry__V1__GetTimelineResponse out = MEMFERRY__V1__GET_TIMELINE_RESPONSE__INIT;
    static const int64_t gradients[] = {0, 512, 512, 512, 512, 512, 512, 0, 0, 0};
    mf_arena_init(&arena);
    mf_timeline_fill(&step, spans, STEP_NS, 10, &arena, &out);
    assert_int_equal(out.n_memory, 10);
    for (int i = 0; i < 10; i++) {
        const Memferry__V1__MemorySample *sample = out.memory[i];
        assert_true(sample->time_ns == 100.0 * i);
        assert_int_equal(sample->device_bytes[MF_PURPOSE_WEIGHT], 1024);
        assert_int_equal(sample->device_bytes[MF_PURPOSE_RING], 0);
        assert_int_equal(sample->host_bytes[MF_PURPOSE_STATE], 4096);
        assert_int_equal(sample->host_bytes[MF_PURPOSE_WEIGHT], 0);
        assert_int_equal(sample->device_bytes[MF_PURPOSE_GRADIENT], gradients[i]);
        assert_int_equal(sample->device_bytes[MF_PURPOSE_ACTIVATION], i == 7 ? 256 : 0);
    }
    mf_arena_reset(&arena);
}

static void test_micro_batches_that_are_tried(void **state)
{
    (void)state;
    static const struct {
        int32_t batch, count, choices[MF_TUNE_BATCH_TRIALS_MAX];
    } cases[] = {
        {0, 7, {1, 2, 4, 8, 16, 32, 64}},
        {1, 1, {1}},
        {7, 2, {1, 7}},
        {12, 6, {1, 2, 3, 4, 6, 12}},
        {60, 9, {1, 2, 3, 4, 5, 10, 15, 20, 30}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int32_t choices[MF_TUNE_BATCH_TRIALS_MAX];
        int32_t count = mf_tune_batch_choices(cases[i].batch, choices);
        assert_true(count >= cases[i].count);
        assert_memory_equal(choices, cases[i].choices, (size_t)cases[i].count * sizeof(choices[0]));
    }
    for (int32_t batch = 1; batch <= 65536; batch = batch * 3 + 1) {
        int32_t choices[MF_TUNE_BATCH_TRIALS_MAX];
        int32_t count = mf_tune_batch_choices(batch, choices);
        assert_true(count >= 1 && count <= MF_TUNE_BATCH_TRIALS_MAX);
        for (int32_t i = 0; i < count; i++) {
            assert_int_equal(batch % choices[i], 0);
            assert_true(i == 0 || choices[i] > choices[i - 1]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_neighbours_are_merged),
        cmocka_unit_test(test_number_of_spans_is_bounded),
        cmocka_unit_test(test_memory_is_the_fullest_moment_of_a_part),
        cmocka_unit_test(test_micro_batches_that_are_tried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
