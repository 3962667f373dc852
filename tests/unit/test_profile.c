/* The profile's table against a plain list, its signatures, and its JSON. */
#include "harness.h"

#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "core/profile.h"

#define ENTRIES 3000

static struct mf_measurement random_measurement(void)
{
    static const uint32_t flags[] = {0, MF_SHAPE_BIAS, MF_SHAPE_WEIGHT_HOST,
                                     MF_SHAPE_BIAS | MF_SHAPE_OUTPUT_HOST};
    struct mf_shape shape = {.rows = (int64_t)harness_random_below(4) * 512,
                             .n = (int64_t)harness_random_below(16) << 32,
                             .k = (int64_t)harness_random_below(16),
                             .seq_len = (int32_t)harness_random_below(2),
                             .heads = (int32_t)harness_random_below(2),
                             .head_dim = (int32_t)harness_random_below(2),
                             .flags = flags[harness_random_below(4)]};
    enum mf_kernel kernel = (enum mf_kernel)harness_random_below(MF_KERNEL_COUNT);
    enum mf_lane lane = (enum mf_lane)harness_random_below(MF_LANE_COUNT);
    return (struct mf_measurement){.signature = mf_profile_signature(lane, kernel, &shape),
                                   .median_ns = harness_random_between(0, 1e9),
                                   .spread_ns = harness_random_between(0, 1e3),
                                   .samples = (int32_t)harness_random_below(100)};
}

static void fill(struct mf_profile *profile)
{
    mf_profile_init(profile);
    snprintf(profile->hardware_fingerprint, sizeof(profile->hardware_fingerprint), "%064d", 7);
    snprintf(profile->method, sizeof(profile->method), "host clock");
    profile->measured_at_unix_s = 1750000000;
    profile->complete = true;
    for (int i = 0; i < ENTRIES; i++) {
        struct mf_measurement entry = random_measurement();
        mf_profile_put(profile, &entry);
    }
}

static void test_put_and_find(void **context)
{
    (void)context;
    static struct mf_measurement put[ENTRIES];
    struct mf_profile profile;
    harness_random_restart(21);
    mf_profile_init(&profile);
    struct mf_measurement missing = random_measurement();
    assert_null(mf_profile_find(&profile, &missing.signature));
    for (int i = 0; i < ENTRIES; i++) {
        put[i] = random_measurement();
        int32_t before = profile.count;
        bool known = mf_profile_find(&profile, &put[i].signature) != NULL;
        mf_profile_put(&profile, &put[i]);
        assert_int_equal(profile.count, before + (known ? 0 : 1));
    }
    for (int i = 0; i < ENTRIES; i++) {
        const struct mf_measurement *found = mf_profile_find(&profile, &put[i].signature);
        assert_non_null(found);
        int newest = i; /* the last put of a signature wins */
        for (int j = i + 1; j < ENTRIES; j++) {
            newest = mf_profile_find(&profile, &put[j].signature) == found ? j : newest;
        }
        assert_true(found->median_ns == put[newest].median_ns);
    }
    missing.signature.shape.n = 3;
    assert_null(mf_profile_find(&profile, &missing.signature));
    mf_profile_reset(&profile);
    assert_int_equal(profile.count, 0);
}

static void test_signature(void **context)
{
    (void)context;
    struct mf_shape shape = {.rows = 4, .n = 8, .k = 16, .flags = (1u << 10) - 1};
    struct mf_signature signature =
        mf_profile_signature(MF_LANE_COMPUTE, MF_KERNEL_LINEAR_FORWARD, &shape);
    assert_int_equal(signature.shape.flags, MF_SHAPE_BIAS | MF_SHAPE_GRADIENT_FP32 |
                                                MF_SHAPE_WEIGHT_HOST | MF_SHAPE_OUTPUT_HOST);
    assert_int_equal(signature.shape.k, 16);
    signature = mf_profile_signature(MF_LANE_D2H, MF_KERNEL_COPY, &shape);
    assert_int_equal(signature.lane, MF_LANE_D2H);
    assert_int_equal(signature.shape.n, 8);
    assert_int_equal(signature.shape.rows, 0);
    assert_int_equal(signature.shape.k, 0);
    assert_int_equal(signature.shape.flags, 0);

    /* Put and find see through flags that cost nothing. */
    struct mf_profile profile;
    mf_profile_init(&profile);
    struct mf_measurement entry = {
        .signature = {MF_LANE_COMPUTE, MF_KERNEL_ADAMW, {.n = 4, .flags = MF_SHAPE_DECAY_FIRST}},
        .median_ns = 5};
    mf_profile_put(&profile, &entry);
    entry.signature.shape.flags = MF_SHAPE_FIRST_MICRO;
    assert_non_null(mf_profile_find(&profile, &entry.signature));
    entry.signature.shape.flags = MF_SHAPE_GRADIENT_FP32;
    assert_null(mf_profile_find(&profile, &entry.signature));
    mf_profile_reset(&profile);
}

static void test_round_trip(void **context)
{
    (void)context;
    struct mf_profile before;
    struct mf_profile after;
    harness_random_restart(22);
    fill(&before);
    json_t *json = mf_profile_encode(&before);
    assert_ok(mf_profile_decode(json, &after));
    assert_int_equal(after.count, before.count);
    assert_true(after.complete);
    assert_string_equal(after.method, before.method);
    for (int32_t i = 0; i < before.count; i++) {
        const struct mf_measurement *found = mf_profile_find(&after, &before.entries[i].signature);
        assert_ptr_equal(found, &after.entries[i]);
        assert_true(found->median_ns == before.entries[i].median_ns);
        assert_true(found->spread_ns == before.entries[i].spread_ns);
        assert_int_equal(found->samples, before.entries[i].samples);
    }
    json_decref(json);
    mf_profile_reset(&before);
    mf_profile_reset(&after);
}

static void refuse(const char *entries, const char *fragment)
{
    char text[512];
    json_t *json = NULL;
    struct mf_profile profile;
    snprintf(text, sizeof(text), "{\"hardware\": \"\", \"entries\": %s}", entries);
    assert_ok(mf_json_parse(text, strlen(text), "test", &json));
    assert_fails(mf_profile_decode(json, &profile), MF_STATUS_INVALID, fragment);
    assert_null(profile.entries);
    json_decref(json);
}

#define GOOD "[\"h2d\", \"copy\", 0, 9, 0, 0, 0, 0, 0, 0, 1.5, 0.1, 3]"

static void test_hostile(void **context)
{
    (void)context;
    struct mf_profile profile;
    assert_fails(mf_profile_decode(NULL, &profile), MF_STATUS_INVALID, "object");
    refuse("null", "entries");
    refuse("{}", "entries");
    refuse("[[]]", "entries[0]");
    refuse("[{}]", "entries[0]");
    refuse("[" GOOD ", " GOOD "]", "entries[1]");
    refuse("[[\"h2d\", \"copy\", 0, 9, 0, 0, 0, 0, 0, 0, 1.5, 0.1]]", "entries[0]");
    refuse("[[\"h3d\", \"copy\", 0, 9, 0, 0, 0, 0, 0, 0, 1.5, 0.1, 3]]", "entries[0]");
    refuse("[[7, \"copy\", 0, 9, 0, 0, 0, 0, 0, 0, 1.5, 0.1, 3]]", "entries[0]");
    refuse("[[\"h2d\", \"cp\", 0, 9, 0, 0, 0, 0, 0, 0, 1.5, 0.1, 3]]", "entries[0]");
    refuse("[[\"h2d\", null, 0, 9, 0, 0, 0, 0, 0, 0, 1.5, 0.1, 3]]", "entries[0]");
    refuse("[[\"h2d\", \"copy\", 4, 9, 0, 0, 0, 0, 0, 0, 1.5, 0.1, 3]]", "entries[0]");
    refuse("[[\"h2d\", \"copy\", 0, -9, 0, 0, 0, 0, 0, 0, 1.5, 0.1, 3]]", "entries[0]");
    refuse("[[\"h2d\", \"copy\", 0, 9.5, 0, 0, 0, 0, 0, 0, 1.5, 0.1, 3]]", "entries[0]");
    refuse("[[\"h2d\", \"copy\", 0, 9, 0, 0, 0, 0, 0, 0, -1.5, 0.1, 3]]", "entries[0]");
    refuse("[[\"h2d\", \"copy\", 0, 9, 0, 0, 0, 0, 0, 0, \"1\", 0.1, 3]]", "entries[0]");
    refuse("[[\"h2d\", \"copy\", 0, 9, 0, 0, 0, 0, 0, 0, 1.5, 1e300, 3]]", "entries[0]");
    refuse("[[\"h2d\", \"copy\", 0, 9, 0, 9999999999, 0, 0, 0, 0, 1.5, 0.1, 3]]", "entries[0]");
    /* A flag that costs nothing would never be found again. */
    refuse("[[\"compute\", \"adamw\", 0, 9, 0, 0, 0, 0, 0, 64, 1.5, 0.1, 3]]", "entries[0]");
    refuse("[], \"color\": 1", "color");
    refuse("[], \"complete\": 1", "complete");
    refuse("[], \"measured_at_unix_s\": -1", "measured_at");
    json_t *json = json_pack("{s: o}", "entries", json_array());
    assert_ok(mf_profile_decode(json, &profile));
    assert_int_equal(profile.count, 0);
    mf_profile_reset(&profile);
    json_decref(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_and_find),
        cmocka_unit_test(test_signature),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_hostile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
