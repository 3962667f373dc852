/* Contention as data: kinds of load, JSON there and back, hostile JSON. */
#include "harness.h"

#include <math.h>
#include <string.h>

#include "core/contention.h"
#include "core/json.h"

static void test_loads(void **state)
{
    (void)state;
    static const struct {
        enum mf_lane lane;
        enum mf_kernel kernel;
        uint32_t flags;
        enum mf_load load;
    } cases[] = {
        {MF_LANE_COMPUTE, MF_KERNEL_LINEAR_FORWARD, 0, MF_LOAD_COMPUTE},
        {MF_LANE_COMPUTE, MF_KERNEL_LINEAR_FORWARD, MF_SHAPE_BIAS, MF_LOAD_COMPUTE},
        {MF_LANE_COMPUTE, MF_KERNEL_LINEAR_FORWARD, MF_SHAPE_WEIGHT_HOST, MF_LOAD_DIRECT_READ},
        {MF_LANE_COMPUTE, MF_KERNEL_LINEAR_BACKWARD_WEIGHT, MF_SHAPE_OUTPUT_HOST,
         MF_LOAD_DIRECT_WRITE},
        {MF_LANE_COMPUTE, MF_KERNEL_ADAMW, 0, MF_LOAD_GPU_UPDATE},
        {MF_LANE_COMPUTE, MF_KERNEL_GRADIENT_NORM, MF_SHAPE_GRADIENT_FP32, MF_LOAD_GPU_UPDATE},
        {MF_LANE_CPU, MF_KERNEL_ADAMW, 0, MF_LOAD_CPU},
        {MF_LANE_H2D, MF_KERNEL_COPY, 0, MF_LOAD_H2D},
        {MF_LANE_D2H, MF_KERNEL_COPY, 0, MF_LOAD_D2H},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        enum mf_load load = mf_contention_load(cases[i].lane, cases[i].kernel, cases[i].flags);
        assert_int_equal(load, cases[i].load);
        assert_int_equal(mf_contention_lane(load), cases[i].lane);
    }
    assert_string_equal(mf_contention_load_name(MF_LOAD_GPU_UPDATE), "gpu_update");
    assert_string_equal(mf_contention_load_name(MF_LOAD_COUNT), "?");
}

/* Only loads of different lanes can meet. */
static void test_assumed(void **state)
{
    (void)state;
    for (int link = 0; link < 2; link++) {
        struct mf_contention assumed;
        mf_contention_assume(link == 1, &assumed);
        double most = 1;
        for (int a = 0; a < MF_LOAD_COUNT; a++) {
            for (int b = 0; b < MF_LOAD_COUNT; b++) {
                bool one_lane =
                    mf_contention_lane((enum mf_load)a) == mf_contention_lane((enum mf_load)b);
                assert_true(assumed.slowdown[a][b] >= 1);
                assert_true(!one_lane || assumed.slowdown[a][b] == 1);
                most = fmax(most, assumed.slowdown[a][b]);
            }
        }
        assert_true(most == (link == 1 ? 2 : 1));
        assert_false(assumed.measured);
    }
}

static void fill(struct mf_contention *out)
{
    mf_contention_assume(false, out);
    out->measured = true;
    for (int a = 0; a < MF_LOAD_COUNT; a++) {
        for (int b = 0; b < MF_LOAD_COUNT; b++) {
            if (mf_contention_lane((enum mf_load)a) != mf_contention_lane((enum mf_load)b)) {
                out->slowdown[a][b] = harness_random_between(1, 5);
            }
        }
    }
    for (int from = 0; from < MF_LANE_COUNT; from++) {
        out->gap_ns[from] = harness_random_between(0, 1e4);
        out->issue_ns[from] = harness_random_between(0, 1e4);
        for (int to = 0; to < MF_LANE_COUNT; to++) {
            out->handover_ns[from][to] = from == to ? 0 : harness_random_between(0, 1e5);
        }
    }
    out->graph_ns = harness_random_between(0, 1e6);
}

static void test_round_trip(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct mf_contention before;
        struct mf_contention after;
        fill(&before);
        json_t *json = mf_contention_encode(&before);
        assert_ok(mf_contention_decode(json, &after));
        assert_true(after.measured && after.graph_ns == before.graph_ns);
        assert_memory_equal(after.slowdown, before.slowdown, sizeof(before.slowdown));
        assert_memory_equal(after.handover_ns, before.handover_ns, sizeof(before.handover_ns));
        assert_memory_equal(after.gap_ns, before.gap_ns, sizeof(before.gap_ns));
        assert_memory_equal(after.issue_ns, before.issue_ns, sizeof(before.issue_ns));
        json_decref(json);
    }
    /* Zeros are no contention, and so they come back. */
    struct mf_contention zeros = {0};
    struct mf_contention after;
    json_t *json = mf_contention_encode(&zeros);
    assert_ok(mf_contention_decode(json, &after));
    json_decref(json);
    assert_true(after.slowdown[MF_LOAD_CPU][MF_LOAD_H2D] == 1 && !after.measured);
}

static enum mf_status decode(const char *text, struct mf_contention *out)
{
    json_t *json = NULL;
    assert_ok(mf_json_parse(text, strlen(text), "test", &json));
    enum mf_status status = mf_contention_decode(json, out);
    json_decref(json);
    return status;
}

static void test_decode(void **state)
{
    (void)state;
    struct mf_contention out;
    assert_ok(decode("{}", &out));
    assert_true(out.slowdown[MF_LOAD_H2D][MF_LOAD_CPU] == 1 && out.graph_ns == 0);
    assert_ok(decode("{\"slowdown\": {\"cpu\": {\"d2h\": 1.5}}, \"gap_ns\": null}", &out));
    assert_true(out.slowdown[MF_LOAD_CPU][MF_LOAD_D2H] == 1.5);
    assert_true(out.slowdown[MF_LOAD_CPU][MF_LOAD_H2D] == 1);
    static const struct {
        const char *text;
        const char *fragment;
    } bad[] = {
        {"[]", "object"},
        {"{\"slowdowns\": {}}", "\"slowdown\""},
        {"{\"slowdown\": 3}", "contention.slowdown"},
        {"{\"slowdown\": {\"gpu\": {}}}", "gpu"},
        {"{\"slowdown\": {\"cpu\": {\"d2h\": 0.5}}}", "contention.slowdown.cpu"},
        {"{\"slowdown\": {\"cpu\": {\"d2h\": 1e9}}}", "d2h"},
        {"{\"slowdown\": {\"cpu\": {\"d2h\": \"2\"}}}", "d2h"},
        {"{\"slowdown\": {\"cpu\": {\"cpu\": 2}}}", "cpu"},
        {"{\"handover_ns\": {\"h2d\": {\"h2d\": 5}}}", "contention.handover_ns.h2d"},
        {"{\"handover_ns\": {\"h2d\": {\"compute\": -1}}}", "compute"},
        {"{\"handover_ns\": {\"gpu_update\": {}}}", "gpu_update"},
        {"{\"gap_ns\": {\"compute\": 1e13}}", "contention.gap_ns"},
        {"{\"issue_ns\": []}", "contention.issue_ns"},
        {"{\"graph_ns\": true}", "graph_ns"},
        {"{\"measured\": 1}", "measured"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_fails(decode(bad[i].text, &out), MF_STATUS_INVALID, bad[i].fragment);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loads),
        cmocka_unit_test(test_assumed),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_decode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
