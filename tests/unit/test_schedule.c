/* Learning-rate schedules against closed forms and values of the libraries they follow. */
#include <math.h>

#include "harness.h"
#include "runtime/schedule.h"

#define PEAK 2e-3

/* get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup of Transformers, as they
 * are written there. */
static double reference_linear(int64_t step, int64_t warmup, int64_t total)
{
    if (step < warmup) {
        return (double)step / fmax(1, (double)warmup);
    }
    return fmax(0, (double)(total - step) / fmax(1, (double)(total - warmup)));
}

static double reference_cosine(int64_t step, int64_t warmup, int64_t total)
{
    if (step < warmup) {
        return (double)step / fmax(1, (double)warmup);
    }
    double progress = (double)(step - warmup) / fmax(1, (double)(total - warmup));
    return fmax(0, 0.5 * (1 + cos(M_PI * 0.5 * 2 * progress)));
}

static void transformers(void **state)
{
    (void)state;
    static const int64_t lengths[][2] = {{0, 10}, {1, 10}, {7, 100}, {100, 1000}, {9, 10}};
    for (size_t i = 0; i < 5; i++) {
        struct mf_schedule schedule = {.kind = MF_SCHEDULE_LINEAR,
                                       .peak = PEAK,
                                       .warmup_steps = lengths[i][0],
                                       .total_steps = lengths[i][1]};
        for (int64_t step = 0; step <= lengths[i][1]; step++) {
            schedule.kind = MF_SCHEDULE_LINEAR;
            assert_near(mf_schedule_lr(&schedule, step),
                        PEAK * reference_linear(step, lengths[i][0], lengths[i][1]), 1e-18, 1e-12);
            schedule.kind = MF_SCHEDULE_COSINE;
            assert_near(mf_schedule_lr(&schedule, step),
                        PEAK * reference_cosine(step, lengths[i][0], lengths[i][1]), 1e-18, 1e-12);
        }
    }
}

/* Points worked out by hand. */
static void known_values(void **state)
{
    (void)state;
    const struct mf_schedule cosine = {.kind = MF_SCHEDULE_COSINE,
                                       .peak = 1,
                                       .floor = 0.1,
                                       .warmup_steps = 10,
                                       .total_steps = 110};
    assert_near(mf_schedule_lr(&cosine, 0), 0, 0, 0);
    assert_near(mf_schedule_lr(&cosine, 5), 0.5, 1e-15, 0);
    assert_near(mf_schedule_lr(&cosine, 10), 1, 1e-15, 0);
    assert_near(mf_schedule_lr(&cosine, 60), 0.55, 1e-15, 0);
    assert_near(mf_schedule_lr(&cosine, 110), 0.1, 1e-15, 0);
    assert_near(mf_schedule_lr(&cosine, 1000000), 0.1, 1e-15, 0);

    const struct mf_schedule wsd = {.kind = MF_SCHEDULE_WSD,
                                    .peak = 1,
                                    .start = 0.2,
                                    .floor = 0.1,
                                    .warmup_steps = 10,
                                    .total_steps = 100,
                                    .decay_steps = 20};
    assert_near(mf_schedule_lr(&wsd, 0), 0.2, 1e-15, 0);
    assert_near(mf_schedule_lr(&wsd, 5), 0.6, 1e-15, 0);
    assert_near(mf_schedule_lr(&wsd, 10), 1, 0, 0);
    assert_near(mf_schedule_lr(&wsd, 80), 1, 0, 0);
    assert_near(mf_schedule_lr(&wsd, 90), 0.55, 1e-15, 0);
    assert_near(mf_schedule_lr(&wsd, 100), 0.1, 1e-15, 0);

    const struct mf_schedule constant = {.kind = MF_SCHEDULE_CONSTANT, .peak = 3e-4};
    assert_near(mf_schedule_lr(&constant, 0), 3e-4, 0, 0);
    assert_near(mf_schedule_lr(&constant, INT64_MAX - 1), 3e-4, 0, 0);
}

/* WarmupLR, WarmupDecayLR, WarmupCosineLR of DeepSpeed, as they are written there; `at` is
 * last_batch_iteration. */
static double reference_warmup(int64_t at, int64_t warmup, bool logarithm)
{
    if (at >= warmup) {
        return 1;
    }
    return logarithm ? 1 / log((double)warmup) * log((double)at + 1) : (double)at / (double)warmup;
}

static double reference_decay(int64_t at, int64_t warmup, int64_t total, bool logarithm)
{
    return at < warmup ? reference_warmup(at, warmup, logarithm)
                       : fmax(0, (double)(total - at) / fmax(1, (double)(total - warmup)));
}

static double reference_ratio(int64_t at, int64_t warmup, int64_t total, bool logarithm)
{
    const double start = 0.05;
    const double floor_ratio = 0.0001;
    if (at < warmup) {
        return start + (1 - start) * reference_warmup(at, warmup, logarithm);
    }
    double ratio = (1 + cos(M_PI * (double)(at - warmup + 1) / (double)(total - warmup))) / 2;
    return fmax(0, floor_ratio + (1 - floor_ratio) * ratio);
}

static void deepspeed(void **state)
{
    (void)state;
    const int64_t warmup = 12;
    const int64_t total = 90;
    const double low = 1e-5;
    for (int logarithm = 0; logarithm < 2; logarithm++) {
        struct mf_schedule schedule = {.peak = PEAK,
                                       .start = low / PEAK,
                                       .log_warmup = logarithm == 1,
                                       .warmup_steps = warmup,
                                       .total_steps = total};
        for (int64_t at = 0; at < total; at++) {
            schedule.start = low / PEAK;
            schedule.floor = 0;
            schedule.kind = MF_SCHEDULE_CONSTANT;
            assert_near(mf_schedule_lr(&schedule, at),
                        low + (PEAK - low) * reference_warmup(at, warmup, logarithm == 1), 1e-18,
                        1e-12);
            schedule.kind = MF_SCHEDULE_LINEAR;
            schedule.floor = schedule.start;
            assert_near(mf_schedule_lr(&schedule, at),
                        low + (PEAK - low) * reference_decay(at, warmup, total, logarithm == 1),
                        1e-18, 1e-12);
            schedule.kind = MF_SCHEDULE_WARMUP_COSINE;
            schedule.start = 0.05;
            schedule.floor = 0.0001;
            assert_near(mf_schedule_lr(&schedule, at),
                        PEAK * reference_ratio(at, warmup, total, logarithm == 1), 1e-18, 1e-10);
        }
    }
}

/* Whatever the lengths, every rate lies between 0 and the peak, and is finite. */
static void any_lengths(void **state)
{
    (void)state;
    for (int i = 0; i < 20000; i++) {
        struct mf_schedule schedule = {
            .kind = (enum mf_schedule_kind)harness_random_below(MF_SCHEDULE_COUNT),
            .peak = harness_random_between(0, 1),
            .start = harness_random_between(0, 1),
            .floor = harness_random_between(0, 1),
            .log_warmup = harness_random_below(2) == 1,
            .warmup_steps = (int64_t)harness_random_below(20),
            .total_steps = (int64_t)harness_random_below(20),
            .decay_steps = (int64_t)harness_random_below(20)};
        double rate = mf_schedule_lr(&schedule, (int64_t)harness_random_below(30));
        assert_true(rate >= 0 && rate <= schedule.peak * (1 + 1e-12));
    }
}

static void names(void **state)
{
    (void)state;
    for (int kind = 0; kind < MF_SCHEDULE_COUNT; kind++) {
        assert_int_equal(mf_schedule_parse(mf_schedule_name((enum mf_schedule_kind)kind)), kind);
    }
    assert_int_equal(mf_schedule_parse("cosinus"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transformers), cmocka_unit_test(known_values), cmocka_unit_test(deepspeed),
        cmocka_unit_test(any_lengths),  cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
