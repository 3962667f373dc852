/* Sampling: greedy, top-k, the distribution, repeatability, and logits that are not finite. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "runtime/sample.h"

#define DRAWS 200000

static int32_t draw(const float *logits, int64_t vocab, double temperature, int32_t top_k,
                    uint64_t seed, uint64_t counter)
{
    int32_t token = -1;
    assert_ok(mf_sample(logits, vocab, temperature, top_k, seed, counter, &token));
    assert_true(token >= 0 && token < vocab);
    return token;
}

static void greedy(void **state)
{
    (void)state;
    const float logits[] = {-1, 3, 2.5f, 3};
    assert_int_equal(draw(logits, 4, 0, 0, 1, 2), 1); /* the lowest id of equals */
    const float lowest[] = {-5, -5, -5};
    assert_int_equal(draw(lowest, 3, 0, 1, 1, 2), 0);
    const float one[] = {-1e30f};
    assert_int_equal(draw(one, 1, 1, 0, 1, 2), 0);
    /* top_k 1 leaves the largest alone whatever the temperature. */
    const float spread[] = {1, 2, 0};
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(draw(spread, 3, 50, 1, 9, i), 1);
    }
}

/* Pearson's statistic of DRAWS draws against softmax(logits / temperature) over the top k. */
static double chi_squared(const float *logits, int64_t vocab, double temperature, int32_t top_k,
                          const double *expected)
{
    int64_t *seen = calloc((size_t)vocab, sizeof(*seen));
    assert_non_null(seen);
    for (uint64_t i = 0; i < DRAWS; i++) {
        seen[draw(logits, vocab, temperature, top_k, 42, i)]++;
    }
    double sum = 0;
    for (int64_t i = 0; i < vocab; i++) {
        double mean = expected[i] * DRAWS;
        if (expected[i] > 0) {
            sum += ((double)seen[i] - mean) * ((double)seen[i] - mean) / mean;
        } else {
            assert_int_equal(seen[i], 0);
        }
    }
    free(seen);
    return sum;
}

static void distribution(void **state)
{
    (void)state;
    const float logits[] = {0, 1, 2, -1, 0.5f, 1.5f, -2, 1};
    const double temperatures[] = {0.5, 1, 2};
    for (size_t t = 0; t < 3; t++) {
        double expected[8];
        double total = 0;
        for (size_t i = 0; i < 8; i++) {
            total += expected[i] = exp((double)logits[i] / temperatures[t]);
        }
        for (size_t i = 0; i < 8; i++) {
            expected[i] /= total;
        }
        /* 7 degrees of freedom: above 35 with probability 1e-5. */
        assert_true(chi_squared(logits, 8, temperatures[t], 0, expected) < 35);
    }
    /* The three largest are 2, 1.5 and 1; both of 1 count as in. */
    double expected[8] = {0};
    double total = exp(2) + exp(1.5) + 2 * exp(1);
    expected[2] = exp(2) / total;
    expected[5] = exp(1.5) / total;
    expected[1] = expected[7] = exp(1) / total;
    assert_true(chi_squared(logits, 8, 1, 3, expected) < 30);
}

/* A draw depends on seed and counter alone; neighbours of either are unrelated. */
static void repeatable(void **state)
{
    (void)state;
    enum { VOCAB = 256 };
    float logits[VOCAB] = {0};
    int32_t same = 0;
    for (uint64_t i = 0; i < 10000; i++) {
        int32_t token = draw(logits, VOCAB, 1, 0, 7, i);
        assert_int_equal(token, draw(logits, VOCAB, 1, 0, 7, i));
        same += token == draw(logits, VOCAB, 1, 0, 8, i);
        same += token == draw(logits, VOCAB, 1, 0, 7, i + 1);
    }
    /* 20000 pairs, each equal with probability 1/256: 78 expected, deviation 9. */
    assert_in_range(same, 30, 130);
}

static void extreme_temperatures(void **state)
{
    (void)state;
    const float logits[] = {1e30f, -1e30f, 1e30f};
    for (uint64_t i = 0; i < 1000; i++) {
        assert_int_not_equal(draw(logits, 3, 1e-300, 0, 1, i), 1);
        assert_int_not_equal(draw(logits, 3, 1, 2, 1, i), 1);
    }
    const float close[] = {0, 1e-3f};
    for (uint64_t i = 0; i < 1000; i++) {
        assert_int_equal(draw(close, 2, 1e-9, 0, 1, i), 1);
    }
}

static void not_finite(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 3; i++) {
        float logits[] = {0, 1, bad[i], 2};
        int32_t token = 0;
        assert_fails(mf_sample(logits, 4, 0, 0, 1, 1, &token), MF_STATUS_INVALID, "token 2");
        assert_fails(mf_sample(logits, 4, 1, 2, 1, 1, &token), MF_STATUS_INVALID, "token 2");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy),     cmocka_unit_test(distribution),
        cmocka_unit_test(repeatable), cmocka_unit_test(extreme_temperatures),
        cmocka_unit_test(not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
