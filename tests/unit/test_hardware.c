/* Hardware as data: nothing is lost in JSON, hostile JSON is refused, noise on the link is no
 * other machine. */
#include "harness.h"

#include <stdio.h>
#include <string.h>

#include "core/hardware.h"
#include "core/json.h"

static struct mf_hardware example(void)
{
    struct mf_hardware hardware = {
        .device_count = 2,
        .devices = {{.kind = "cuda",
                     .name = "NVIDIA H200",
                     .memory_bytes = 150754820096,
                     .multiprocessors = 132,
                     .compute_capability = 90,
                     .matrix_flops = 7.1234567890123e14,
                     .memory_bytes_per_s = 4.2e12,
                     .h2d_bytes_per_s = 55.3e9,
                     .d2h_bytes_per_s = 53.1e9,
                     .copy_latency_ns = 9876.5,
                     .driver = "575.57",
                     .runtime = "12.9"},
                    {.kind = "host",
                     .name = "CPU as device",
                     .memory_bytes = 1 << 30,
                     .link_emulated = true}},
        .cpu_name = "Xeon \"Platinum\"",
        .cpu_cores = 16,
        .numa_nodes = 2,
        .host_bytes = 1ll << 37,
        .host_bytes_per_s = 2.5e11,
        .measured = true,
    };
    mf_hardware_assume(&hardware);
    hardware.contention.measured = true;
    hardware.contention.slowdown[MF_LOAD_CPU][MF_LOAD_D2H] = 1.3912345678901;
    hardware.contention.handover_ns[MF_LANE_CPU][MF_LANE_H2D] = 7200.5;
    hardware.contention.gap_ns[MF_LANE_COMPUTE] = 900;
    hardware.contention.issue_ns[MF_LANE_D2H] = 2100;
    hardware.contention.graph_ns = 31000;
    return hardware;
}

static void test_round_trip(void **context)
{
    (void)context;
    struct mf_hardware before = example();
    struct mf_hardware after;
    json_t *json = mf_hardware_encode(&before);
    assert_ok(mf_hardware_decode(json, &after));
    json_t *again = mf_hardware_encode(&after);
    assert_true(json_equal(json, again));
    for (int a = 0; a < MF_LOAD_COUNT; a++) {
        for (int b = 0; b < MF_LOAD_COUNT; b++) {
            assert_true(after.contention.slowdown[a][b] == before.contention.slowdown[a][b]);
        }
    }
    assert_true(after.contention.measured);
    assert_true(after.contention.handover_ns[MF_LANE_CPU][MF_LANE_H2D] == 7200.5);
    assert_true(after.contention.handover_ns[MF_LANE_H2D][MF_LANE_CPU] == 0);
    assert_true(after.contention.gap_ns[MF_LANE_COMPUTE] == 900);
    assert_true(after.contention.issue_ns[MF_LANE_D2H] == 2100);
    assert_true(after.contention.graph_ns == 31000);
    assert_true(after.devices[0].matrix_flops == before.devices[0].matrix_flops);
    assert_string_equal(after.cpu_name, before.cpu_name);
    assert_true(after.devices[1].link_emulated && !after.devices[0].link_emulated);
    char first[MF_HASH_TEXT_MAX];
    char second[MF_HASH_TEXT_MAX];
    mf_hardware_fingerprint(&before, first);
    mf_hardware_fingerprint(&after, second);
    assert_string_equal(first, second);
    json_decref(json);
    json_decref(again);
}

static bool same_after(const struct mf_hardware *changed)
{
    struct mf_hardware base = example();
    char first[MF_HASH_TEXT_MAX];
    char second[MF_HASH_TEXT_MAX];
    mf_hardware_fingerprint(&base, first);
    mf_hardware_fingerprint(changed, second);
    return strcmp(first, second) == 0;
}

static void test_fingerprint(void **context)
{
    (void)context;
    struct mf_hardware changed = example();
    changed.devices[0].h2d_bytes_per_s *= 1.02; /* both in the class of 1.25^111 */
    changed.devices[0].matrix_flops *= 1.5;     /* clocks wander */
    changed.host_bytes_per_s *= 0.7;
    changed.measured = false;
    mf_contention_assume(false, &changed.contention);
    assert_true(same_after(&changed));
    changed.devices[0].h2d_bytes_per_s *= 0.5;
    assert_false(same_after(&changed));
    changed = example();
    changed.devices[0].driver[0] = '6';
    assert_false(same_after(&changed));
    changed = example();
    changed.devices[0].memory_bytes--;
    assert_false(same_after(&changed));
    changed = example();
    changed.device_count = 1;
    assert_false(same_after(&changed));
    changed = example();
    changed.cpu_cores++;
    assert_false(same_after(&changed));
    changed = example();
    changed.devices[0].d2h_bytes_per_s = 0; /* not measured */
    assert_false(same_after(&changed));
}

static void refuse(const char *text, const char *fragment)
{
    json_t *json = NULL;
    struct mf_hardware hardware;
    assert_ok(mf_json_parse(text, strlen(text), "test", &json));
    assert_fails(mf_hardware_decode(json, &hardware), MF_STATUS_INVALID, fragment);
    json_decref(json);
}

#define DEVICE "{\"kind\": \"host\", \"memory_bytes\": 1}"
#define LIST4 DEVICE "," DEVICE "," DEVICE "," DEVICE
#define LIST16 LIST4 "," LIST4 "," LIST4 "," LIST4

static void test_hostile(void **context)
{
    (void)context;
    struct mf_hardware hardware;
    assert_fails(mf_hardware_decode(NULL, &hardware), MF_STATUS_INVALID, "object");
    refuse("[]", "object");
    refuse("{}", "devices");
    refuse("{\"devices\": []}", "devices");
    refuse("{\"devices\": {}}", "devices");
    refuse("{\"devices\": [1]}", "devices[0]");
    refuse("{\"devices\": [" DEVICE ", {}]}", "devices[1]");
    refuse("{\"devices\": [" LIST16 "," DEVICE "]}", "16");
    refuse("{\"devices\": [{\"kind\": \"host\", \"memory_bytes\": -1}]}", "memory_bytes");
    refuse("{\"devices\": [{\"kind\": 7, \"memory_bytes\": 1}]}", "kind");
    refuse("{\"devices\": [{\"kind\": \"a kind that is too long\", \"memory_bytes\": 1}]}", "kind");
    refuse("{\"devices\": [{\"kind\": \"host\", \"memory_byte\": 1}]}", "memory_bytes");
    refuse("{\"cpu_cores\": 1e12, \"devices\": [" DEVICE "]}", "cpu_cores");
    refuse("{\"measured\": \"yes\", \"devices\": [" DEVICE "]}", "measured");
    refuse("{\"contention\": [], \"devices\": [" DEVICE "]}", "contention");
    refuse("{\"contention\": 7, \"devices\": [" DEVICE "]}", "contention");
    json_t *json = NULL;
    const char *full = "{\"devices\": [" LIST16 "]}";
    assert_ok(mf_json_parse(full, strlen(full), "test", &json));
    assert_ok(mf_hardware_decode(json, &hardware));
    assert_int_equal(hardware.device_count, 16);
    json_decref(json);
}

/* Every shipped description decodes, says that it is an estimate, and has all rates. */
static void test_shipped(void **context)
{
    (void)context;
    static const char *const names[] = {"rtx-3090",  "rtx-4090",  "rtx-5090",
                                        "a100-40gb", "a100-80gb", "h100-pcie",
                                        "h100-sxm",  "h200",      "l40s"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[64];
        snprintf(path, sizeof(path), "hardware/%s.json", names[i]);
        size_t count = 0;
        const char *text = harness_read(harness_source(path), &count);
        json_t *json = NULL;
        struct mf_hardware hardware;
        assert_ok(mf_json_parse(text, count, path, &json));
        assert_ok(mf_hardware_decode(json, &hardware));
        json_decref(json);
        assert_false(hardware.measured);
        assert_int_equal(hardware.device_count, 1);
        const struct mf_hardware_device *device = &hardware.devices[0];
        assert_string_equal(device->kind, "cuda");
        assert_true(device->memory_bytes > 20ll << 30 && device->matrix_flops > 5e13);
        assert_true(device->memory_bytes_per_s > 5e11 && device->h2d_bytes_per_s > 2e10);
        assert_true(device->d2h_bytes_per_s > 2e10 && hardware.host_bytes_per_s > 0);
    }
}

/* By device kind where a description says nothing. */
static void test_assumed(void **context)
{
    (void)context;
    static const struct {
        const char *text;
        double direct, update;
    } cases[] = {
        {"{\"devices\": [{\"kind\": \"cuda\", \"memory_bytes\": 1}]}", 2, 1.39},
        {"{\"devices\": [" DEVICE "]}", 1, 1},
        {"{\"devices\": [" DEVICE "], \"contention\": null}", 1, 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mf_hardware hardware;
        json_t *json = NULL;
        assert_ok(mf_json_parse(cases[i].text, strlen(cases[i].text), "test", &json));
        assert_ok(mf_hardware_decode(json, &hardware));
        json_decref(json);
        const struct mf_contention *contention = &hardware.contention;
        assert_false(contention->measured);
        assert_true(contention->slowdown[MF_LOAD_DIRECT_READ][MF_LOAD_H2D] == cases[i].direct);
        assert_true(contention->slowdown[MF_LOAD_D2H][MF_LOAD_DIRECT_WRITE] == cases[i].direct);
        assert_true(contention->slowdown[MF_LOAD_CPU][MF_LOAD_D2H] == cases[i].update);
        assert_true(contention->slowdown[MF_LOAD_COMPUTE][MF_LOAD_H2D] == 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_hostile),    cmocka_unit_test(test_shipped),
        cmocka_unit_test(test_assumed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
