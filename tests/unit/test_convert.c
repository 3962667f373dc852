/* Requests to structs: defaults, ranges, every enum; nothing of a message outlives it. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"
#include "server/convert.h"

struct fixture {
    struct mf_service service;
    struct mf_arena arena;
    struct mf_model model;
};

static struct fixture *open_fixture(void)
{
    static struct fixture fixture;
    memset(&fixture, 0, sizeof(fixture));
    assert_ok(mf_config_read_file(NULL, &fixture.service.config));
    mf_arena_init(&fixture.arena);
    assert_ok(mf_model_from_preset("gpt2", 0, &fixture.model));
    return &fixture;
}

static void close_fixture(struct fixture *fixture)
{
    mf_model_reset(&fixture->model);
    mf_arena_reset(&fixture->arena);
}

static void test_workload(void **state)
{
    (void)state;
    struct fixture *fixture = open_fixture();
    struct mf_workload workload;
    Memferry__V1__Workload message = MEMFERRY__V1__WORKLOAD__INIT;
    for (int given = 0; given < 2; given++) {
        assert_ok(mf_convert_workload(given ? &message : NULL, &fixture->model, &workload));
        assert_int_equal(workload.micro_batch, 1);
        assert_int_equal(workload.seq_len, 1024);
        assert_int_equal(workload.accumulation, 1);
        assert_true(workload.clip);
    }
    message.no_clip = true;
    message.dtype = "bf16";
    assert_ok(mf_convert_workload(&message, &fixture->model, &workload));
    assert_false(workload.clip);
    static const struct {
        int32_t micro_batch, seq_len, accumulation;
    } wrong[] = {{-1, 0, 0}, {65537, 0, 0}, {0, -1, 0},        {0, 1025, 0},
                 {0, 0, -1}, {0, 0, 4097},  {INT32_MIN, 0, 0}, {0, INT32_MAX, 0}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        message.micro_batch = wrong[i].micro_batch;
        message.seq_len = wrong[i].seq_len;
        message.accumulation = wrong[i].accumulation;
        assert_status(mf_convert_workload(&message, &fixture->model, &workload), MF_STATUS_INVALID);
    }
    message = (Memferry__V1__Workload)MEMFERRY__V1__WORKLOAD__INIT;
    message.optimizer = "sgd";
    assert_fails(mf_convert_workload(&message, &fixture->model, &workload), MF_STATUS_UNSUPPORTED,
                 "adamw");
    close_fixture(fixture);
}

static void test_constraints(void **state)
{
    (void)state;
    struct fixture *fixture = open_fixture();
    struct mf_constraints constraints;
    enum mf_strategy strategy = MF_STRATEGY_STREAM;
    struct mf_pin *pins = NULL;
    int32_t count = -1;
    assert_ok(
        mf_convert_constraints(NULL, &fixture->arena, &constraints, &strategy, &pins, &count));
    assert_int_equal(strategy, MF_STRATEGY_AUTO);
    assert_int_equal(count, 0);
    char pattern[] = "transformer.h.*";
    Memferry__V1__Pin pin = MEMFERRY__V1__PIN__INIT;
    pin.pattern = pattern;
    pin.forward = MEMFERRY__V1__WEIGHT_FORWARD__WEIGHT_FORWARD_DIRECT;
    pin.optimizer = MEMFERRY__V1__OPTIMIZER__OPTIMIZER_GPU_STREAM;
    Memferry__V1__Pin *list[] = {&pin};
    Memferry__V1__Constraints message = MEMFERRY__V1__CONSTRAINTS__INIT;
    message.device_memory_bytes = 1 << 30;
    message.strategy = MEMFERRY__V1__STRATEGY__STRATEGY_MEMFERRY;
    message.pins = list;
    message.n_pins = 1;
    assert_ok(
        mf_convert_constraints(&message, &fixture->arena, &constraints, &strategy, &pins, &count));
    memset(pattern, 'x', strlen(pattern)); /* nothing is borrowed */
    assert_int_equal(constraints.device_bytes, 1 << 30);
    assert_int_equal(strategy, MF_STRATEGY_MEMFERRY);
    assert_string_equal(pins[0].pattern, "transformer.h.*");
    assert_int_equal(pins[0].forward, MF_WEIGHT_FORWARD_DIRECT);
    assert_int_equal(pins[0].backward, -1);
    assert_int_equal(pins[0].gradient, -1);
    assert_int_equal(pins[0].optimizer, MF_OPTIMIZER_GPU_STREAM);
    int *const fields[] = {(int *)&pin.forward, (int *)&pin.backward, (int *)&pin.gradient,
                           (int *)&pin.optimizer, (int *)&message.strategy};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        int kept = *fields[i];
        static const int wrong[] = {-1, 6, 1000, INT32_MAX, INT32_MIN};
        for (size_t j = 0; j < sizeof(wrong) / sizeof(wrong[0]); j++) {
            *fields[i] = wrong[j];
            assert_status(mf_convert_constraints(&message, &fixture->arena, &constraints, &strategy,
                                                 &pins, &count),
                          MF_STATUS_INVALID);
        }
        *fields[i] = kept;
    }
    pin.pattern = "";
    assert_fails(
        mf_convert_constraints(&message, &fixture->arena, &constraints, &strategy, &pins, &count),
        MF_STATUS_INVALID, "pin.pattern");
    message.n_pins = MF_PINS_MAX + 1; /* refused before any is read */
    assert_fails(
        mf_convert_constraints(&message, &fixture->arena, &constraints, &strategy, &pins, &count),
        MF_STATUS_INVALID, "256");
    enum mf_effort effort = MF_EFFORT_CACHED;
    assert_ok(mf_convert_effort(MEMFERRY__V1__EFFORT__EFFORT_UNSPECIFIED, &effort));
    assert_int_equal(effort, MF_EFFORT_MEASURE);
    assert_ok(mf_convert_effort(MEMFERRY__V1__EFFORT__EFFORT_CACHED, &effort));
    assert_int_equal(effort, MF_EFFORT_CACHED);
    assert_status(mf_convert_effort((Memferry__V1__Effort)4, &effort), MF_STATUS_INVALID);
    close_fixture(fixture);
}

static void test_models(void **state)
{
    (void)state;
    struct fixture *fixture = open_fixture();
    struct mf_model model;
    const char *folder = NULL;
    Memferry__V1__Model message = MEMFERRY__V1__MODEL__INIT;
    assert_status(mf_convert_model(&fixture->service, NULL, &fixture->arena, &model, NULL),
                  MF_STATUS_INVALID);
    assert_status(mf_convert_model(&fixture->service, &message, &fixture->arena, &model, NULL),
                  MF_STATUS_INVALID);
    message.source_case = MEMFERRY__V1__MODEL__SOURCE_PRESET;
    message.preset = "gpt2";
    assert_ok(mf_convert_model(&fixture->service, &message, &fixture->arena, &model, &folder));
    assert_string_equal(model.fingerprint, fixture->model.fingerprint);
    assert_null(folder);
    mf_model_reset(&model);
    message.source_case = MEMFERRY__V1__MODEL__SOURCE_FOLDER;
    message.folder = (char *)harness_source("tests/oracle/fixtures/llama");
    assert_ok(mf_convert_model(&fixture->service, &message, &fixture->arena, &model, &folder));
    assert_string_equal(model.name, "llama");
    assert_non_null(strstr(folder, "tests/oracle/fixtures/llama"));
    mf_model_reset(&model);
    message.folder = (char *)harness_source("tests/oracle");
    assert_status(mf_convert_model(&fixture->service, &message, &fixture->arena, &model, &folder),
                  MF_STATUS_NOT_FOUND);
    message.source_case = MEMFERRY__V1__MODEL__SOURCE_CONFIG_JSON;
    static const char *const broken[] = {
        "", "{", "[]", "{} {}", "{\"model_type\": \"gpt2\"}", "{\"model_type\": 7}"};
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        message.config_json = (char *)broken[i];
        assert_int_not_equal(
            mf_convert_model(&fixture->service, &message, &fixture->arena, &model, &folder),
            MF_STATUS_OK);
    }
    close_fixture(fixture);
}

static void test_units(void **state)
{
    (void)state;
    struct fixture *fixture = open_fixture();
    struct mf_model model;
    char name[] = "a";
    char long_name[MF_NAME_MAX + 1];
    memset(long_name, 'n', MF_NAME_MAX);
    long_name[MF_NAME_MAX] = 0;
    Memferry__V1__UnitShape first = MEMFERRY__V1__UNIT_SHAPE__INIT;
    Memferry__V1__UnitShape second = MEMFERRY__V1__UNIT_SHAPE__INIT;
    first.name = name;
    first.rows = first.columns = second.rows = second.columns = 64;
    second.name = "b";
    second.block = 1;
    Memferry__V1__UnitShape *shapes[] = {&first, &second};
    Memferry__V1__UnitList list = MEMFERRY__V1__UNIT_LIST__INIT;
    list.units = shapes;
    list.n_units = 2;
    Memferry__V1__Model message = MEMFERRY__V1__MODEL__INIT;
    message.source_case = MEMFERRY__V1__MODEL__SOURCE_UNITS;
    message.units = &list;
    assert_ok(mf_convert_model(&fixture->service, &message, &fixture->arena, &model, NULL));
    name[0] = 'x';
    assert_string_equal(model.units[0].name, "a");
    assert_false(model.executable);
    mf_model_reset(&model);
    name[0] = 'a';
    const Memferry__V1__UnitShape good = second;
    for (int wrong = 0; wrong < 9; wrong++) {
        second = good;
        second.name = wrong == 0 ? "" : wrong == 1 ? long_name : wrong == 2 ? "a" : "b";
        second.rows = wrong == 3 ? 0 : wrong == 4 ? MF_DIMENSION_MAX + 1 : 64;
        second.columns = wrong == 5 ? -64 : wrong == 6 ? INT64_MAX : 64;
        second.block = wrong == 7 ? -1 : wrong == 8 ? MF_BLOCKS_MAX : 1;
        assert_status(mf_convert_model(&fixture->service, &message, &fixture->arena, &model, NULL),
                      MF_STATUS_INVALID);
        mf_model_reset(&model);
    }
    list.n_units = MF_UNITS_MAX + 1; /* refused before any is read */
    assert_status(mf_convert_model(&fixture->service, &message, &fixture->arena, &model, NULL),
                  MF_STATUS_INVALID);
    list.n_units = 0;
    assert_status(mf_convert_model(&fixture->service, &message, &fixture->arena, &model, NULL),
                  MF_STATUS_INVALID);
    close_fixture(fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workload),
        cmocka_unit_test(test_constraints),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
