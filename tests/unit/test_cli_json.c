/* Messages of the contract as JSON and back. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/library_json.h"
#include "core/json.h"
#include "harness.h"
#include "memferry/v1/plan.pb-c.h"
#include "memferry/v1/training.pb-c.h"
#include "proto/wire.h"

static json_t *parse(const char *text)
{
    json_t *json = NULL;
    assert_ok(mf_json_parse(text, strlen(text), "test", &json));
    return json;
}

static void test_round_trip(void **state)
{
    (void)state;
    static const char text[] =
        "{\"model\":{\"units\":{\"units\":[{\"name\":\"fc\",\"block\":1,\"rows\":4294967296,"
        "\"columns\":3,\"bias\":true}]}},"
        "\"workload\":{\"micro_batch\":4,\"seq_len\":16,\"accumulation\":2,\"no_clip\":true,"
        "\"dtype\":\"bf16\",\"optimizer\":\"\"},"
        "\"constraints\":{\"device_memory_bytes\":1000,\"host_memory_bytes\":0,"
        "\"strategy\":\"zero_offload\",\"pins\":[{\"pattern\":\"*.q\",\"forward\":\"stream\","
        "\"backward\":\"late\",\"gradient\":\"unspecified\",\"optimizer\":\"gpu_stream\"}]},"
        "\"effort\":\"measure\",\"hardware\":\"h200\",\"batch\":0,"
        "\"tune_micro_batch\":true}";
    struct mf_arena arena;
    ProtobufCMessage *message = NULL;
    mf_arena_init(&arena);
    json_t *json = parse(text);
    assert_ok(mf_library_json_decode(&memferry__v1__get_plan_request__descriptor, json, &arena,
                                     &message));
    const Memferry__V1__GetPlanRequest *request = (const Memferry__V1__GetPlanRequest *)message;
    assert_int_equal(request->model->source_case, MEMFERRY__V1__MODEL__SOURCE_UNITS);
    assert_int_equal(request->model->units->units[0]->rows, 4294967296);
    assert_true(request->workload->no_clip);
    assert_int_equal(request->constraints->pins[0]->backward,
                     MEMFERRY__V1__WEIGHT_BACKWARD__WEIGHT_BACKWARD_LATE);

    /* Also through the wire. */
    size_t count = 0;
    ProtobufCMessage *unpacked = NULL;
    uint8_t *bytes = mf_wire_pack(message, &count);
    assert_ok(mf_wire_unpack(message->descriptor, bytes, count, 0, &unpacked));
    json_t *again = mf_library_json_encode(unpacked);
    char *written = json_dumps(again, JSON_COMPACT | JSON_PRESERVE_ORDER);
    assert_string_equal(written, text);
    free(written);
    free(bytes);
    mf_wire_free(unpacked);
    json_decref(again);
    json_decref(json);
    mf_arena_reset(&arena);
}

static void test_oneof_shows_what_is_set(void **state)
{
    (void)state;
    Memferry__V1__RunResponse event = MEMFERRY__V1__RUN_RESPONSE__INIT;
    event.event_case = MEMFERRY__V1__RUN_RESPONSE__EVENT_CHECKPOINT;
    event.checkpoint = (char *)"/runs/checkpoint-10";
    json_t *json = mf_library_json_encode(&event.base);
    assert_int_equal(json_object_size(json), 1);
    assert_string_equal(json_string_value(json_object_get(json, "checkpoint")),
                        "/runs/checkpoint-10");
    json_decref(json);
}

static void test_numbers_json_does_not_have(void **state)
{
    (void)state;
    Memferry__V1__StepReport step = MEMFERRY__V1__STEP_REPORT__INIT;
    step.loss = NAN;
    step.grad_norm = INFINITY;
    json_t *json = mf_library_json_encode(&step.base);
    assert_true(json_is_null(json_object_get(json, "loss")));
    assert_true(json_is_null(json_object_get(json, "grad_norm")));
    assert_true(json_is_real(json_object_get(json, "learning_rate")));
    json_decref(json);
}

static void refuse(const char *text, const char *fragment)
{
    struct mf_arena arena;
    ProtobufCMessage *message = NULL;
    mf_arena_init(&arena);
    json_t *json = parse(text);
    assert_fails(
        mf_library_json_decode(&memferry__v1__get_plan_request__descriptor, json, &arena, &message),
        MF_STATUS_INVALID, fragment);
    json_decref(json);
    mf_arena_reset(&arena);
}

static void test_refusals(void **state)
{
    (void)state;
    refuse("{\"efort\":\"measure\"}", "did you mean \"effort\"");
    refuse("{\"effort\":\"hard\"}", "\"hard\" is no choice");
    refuse("{\"effort\":3}", "is no choice");
    refuse("{\"workload\":{\"micro_batch\":3000000000}}", "\"micro_batch\" must be an integer");
    refuse("{\"workload\":{\"micro_batch\":1.5}}", "\"micro_batch\" must be an integer");
    refuse("{\"workload\":{\"no_clip\":1}}", "true or false");
    refuse("{\"workload\":7}", "must be a JSON object");
    refuse("{\"constraints\":{\"pins\":{}}}", "an array");
    refuse("{\"model\":{\"preset\":\"gpt2\",\"folder\":\"/m\"}}", "both given");
}

static void test_enumerators(void **state)
{
    (void)state;
    char name[MF_LIBRARY_JSON_ENUM_MAX];
    const ProtobufCEnumDescriptor *optimizer = &memferry__v1__optimizer__descriptor;
    assert_string_equal(mf_library_json_enum(optimizer, 3, name), "gpu_stream");
    assert_string_equal(mf_library_json_enum(optimizer, 99, name), "?");
    assert_int_equal(mf_library_json_enum_value(optimizer, "gpu_stream"), 3);
    assert_int_equal(mf_library_json_enum_value(optimizer, "OPTIMIZER_GPU_STREAM"), 3);
    assert_int_equal(mf_library_json_enum_value(optimizer, "gpustream"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_oneof_shows_what_is_set),
        cmocka_unit_test(test_numbers_json_does_not_have),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_enumerators),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
