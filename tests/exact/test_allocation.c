/*
 * The step loop allocates nothing: malloc and mmap are counted, in every thread, while steps of
 * every kind run after the first of its kind; and the device reports exactly the plan's peak.
 */
#include "tests/harness.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model.h"
#include "core/plan.h"
#include "planner/solve.h"
#include "runtime/executor.h"
#include "runtime/weights.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)

int main(void)
{
    return HARNESS_SKIP; /* the sanitizer owns the allocator */
}

#else

static atomic_bool counting;
static atomic_long allocations;

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static void count(void)
{
    if (atomic_load_explicit(&counting, memory_order_relaxed)) {
        atomic_fetch_add(&allocations, 1);
    }
}

void *malloc(size_t bytes)
{
    count();
    return __libc_malloc(bytes);
}

void *calloc(size_t number, size_t bytes)
{
    count();
    return __libc_calloc(number, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    count();
    return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    count();
    return __libc_memalign(alignment, bytes);
}

static const struct mf_workload workload = {
    .micro_batch = 2, .seq_len = 32, .accumulation = 2, .clip = true};
static const struct mf_adam adam = {
    .learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .clip_norm = 1};

static void init_parameters(const struct mf_model *model, struct mf_executor *executor)
{
    for (int32_t i = 0; i < model->unit_count; i++) {
        if (model->units[i].owner == i) {
            float *master = calloc((size_t)model->units[i].elements, sizeof(float));
            mf_weights_init_unit(model, i, 1, master);
            assert_ok(mf_executor_put_unit(executor, i, master, NULL, NULL));
            free(master);
        }
    }
}

static void step_each_way(struct mf_executor *executor, const int32_t *tokens,
                          const int32_t *labels)
{
    struct mf_update_result update;
    struct mf_micro_result micro;
    assert_ok(mf_executor_run(executor, tokens, labels, &adam, &update));
    assert_ok(mf_executor_forward_backward(executor, tokens, labels, NULL, &micro, &update));
    assert_ok(mf_executor_forward_backward(executor, tokens, labels, &adam, &micro, &update));
    assert_ok(mf_executor_forward_backward(executor, tokens, labels, NULL, &micro, &update));
    assert_ok(mf_executor_update(executor, &adam, &update));
    assert_ok(mf_executor_evaluate(executor, tokens, labels, &micro, NULL));
}

static void steps_allocate_nothing(void **state)
{
    (void)state;
    int32_t tokens[2 * 2 * 32];
    int32_t labels[2 * 2 * 32];
    for (int i = 0; i < 2 * 2 * 32; i++) {
        tokens[i] = (i * 37) % 256;
        labels[i] = (i * 91) % 256;
    }
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct mf_model model;
        struct mf_plan plan;
        struct mf_device *device = NULL;
        struct mf_executor *executor = NULL;
        const struct mf_device_options options = {.memory_bytes = 256 << 20};
        const struct mf_device_interface *host = mf_device_host();
        assert_ok(mf_model_from_preset(seed % 2 == 0 ? "tiny-gpt2" : "tiny-llama", 8192, &model));
        mf_solve_random(&model, &workload, seed, &plan);
        assert_ok(host->open(&options, &device));
        assert_ok(mf_executor_open(host, device, &model, &plan, NULL, NULL, &executor));
        mf_executor_set_trace(executor, true);
        init_parameters(&model, executor);
        int64_t peak[MF_SPACE_COUNT];
        assert_ok(mf_step_peak(&model, &plan, peak));
        assert_int_equal(host->reserved_bytes(device), peak[MF_SPACE_DEVICE]);
        step_each_way(executor, tokens, labels); /* OpenBLAS makes its buffers here */
        atomic_store(&allocations, 0);
        atomic_store(&counting, true);
        for (int step = 0; step < 3; step++) {
            step_each_way(executor, tokens, labels);
        }
        atomic_store(&counting, false);
        assert_int_equal(atomic_load(&allocations), 0);
        assert_int_equal(host->reserved_bytes(device), peak[MF_SPACE_DEVICE]);
        mf_executor_close(executor);
        host->close(device);
        mf_plan_reset(&plan);
        mf_model_reset(&model);
    }
}

/* The counter counts: otherwise the test above proves nothing. */
static void the_counter_counts(void **state)
{
    (void)state;
    atomic_store(&allocations, 0);
    atomic_store(&counting, true);
    void *volatile memory = malloc(100);
    atomic_store(&counting, false);
    free(memory);
    assert_int_equal(atomic_load(&allocations), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_counter_counts),
        cmocka_unit_test(steps_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
