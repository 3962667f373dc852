/* Plans: every rule of validation with a plan that keeps it and one that breaks it, ids, and JSON
 * that is lossless and never trusted. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/plan.h"

static const struct mf_workload workload = {.micro_batch = 2, .seq_len = 64, .accumulation = 4};

/* A model with a tied head: unit 0 owns, the last unit is tied. */
static struct mf_model model;

static int setup(void **context)
{
    (void)context;
    assert_ok(mf_model_from_preset("tiny-qwen3", 16 << 10, &model));
    return 0;
}

static int teardown(void **context)
{
    (void)context;
    mf_model_reset(&model);
    return 0;
}

static void test_start(void **context)
{
    (void)context;
    struct mf_plan plan;
    mf_plan_init(&model, &workload, &plan);
    assert_ok(mf_plan_validate(&plan, &model));
    assert_string_equal(plan.id, "");
    assert_string_equal(plan.model_name, "tiny-qwen3");
    assert_int_equal(plan.units[3].forward, MF_WEIGHT_FORWARD_RESIDENT);
    assert_int_equal(plan.units[3].optimizer, MF_OPTIMIZER_GPU);
    mf_plan_reset(&plan);
    assert_null(plan.units);
}

/* The whole table of a single unit: what may stand together. */
static void test_unit_rules(void **context)
{
    (void)context;
    static const char *const pairs[] = {"resident keep", "stream keep",   "stream stream",
                                        "stream direct", "direct stream", "direct direct",
                                        "direct late"};
    int accepted = 0;
    for (int f = 0; f < MF_WEIGHT_FORWARD_COUNT; f++) {
        for (int b = 0; b < MF_WEIGHT_BACKWARD_COUNT; b++) {
            for (int g = 0; g < MF_GRADIENT_COUNT; g++) {
                for (int o = 0; o < MF_OPTIMIZER_COUNT; o++) {
                    struct mf_plan plan;
                    mf_plan_init(&model, &workload, &plan);
                    plan.ring_slots = 2;
                    plan.units[3].forward = (enum mf_weight_forward)f;
                    plan.units[3].backward = (enum mf_weight_backward)b;
                    plan.units[3].gradient = (enum mf_gradient)g;
                    plan.units[3].optimizer = (enum mf_optimizer)o;
                    char text[64];
                    snprintf(text, sizeof(text), "%s %s",
                             mf_plan_forward_name((enum mf_weight_forward)f),
                             mf_plan_backward_name((enum mf_weight_backward)b));
                    bool allowed = false;
                    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
                        allowed = allowed || strcmp(pairs[i], text) == 0;
                    }
                    allowed = allowed && (o != MF_OPTIMIZER_GPU || g == MF_GRADIENT_DEVICE);
                    if (allowed) {
                        assert_ok(mf_plan_validate(&plan, &model));
                        accepted++;
                    } else {
                        assert_fails(mf_plan_validate(&plan, &model), MF_STATUS_INVALID,
                                     model.units[3].name);
                    }
                    mf_plan_reset(&plan);
                }
            }
        }
    }
    assert_int_equal(accepted, 7 * 7);
}

/* Changes a good plan and gives what validation says of it. */
static void expect(void (*change)(struct mf_plan *), const char *fragment)
{
    struct mf_plan plan;
    mf_plan_init(&model, &workload, &plan);
    change(&plan);
    if (fragment == NULL) {
        assert_ok(mf_plan_validate(&plan, &model));
    } else {
        assert_fails(mf_plan_validate(&plan, &model), MF_STATUS_INVALID, fragment);
    }
    mf_plan_reset(&plan);
}

static void stream_tied(struct mf_plan *plan)
{
    int32_t last = plan->unit_count - 1;
    plan->ring_slots = 3;
    plan->units[0].forward = MF_WEIGHT_FORWARD_STREAM;
    plan->units[0].backward = MF_WEIGHT_BACKWARD_KEEP;
    plan->units[last].forward = MF_WEIGHT_FORWARD_DIRECT;
    plan->units[last].backward = MF_WEIGHT_BACKWARD_LATE;
}
static void tied_gradient(struct mf_plan *plan)
{
    stream_tied(plan);
    plan->units[0].optimizer = MF_OPTIMIZER_CPU;
    plan->units[plan->unit_count - 1].optimizer = MF_OPTIMIZER_CPU;
    plan->units[0].gradient = MF_GRADIENT_COPY;
}
static void tied_optimizer(struct mf_plan *plan)
{
    stream_tied(plan);
    plan->units[0].optimizer = MF_OPTIMIZER_CPU;
}
static void tied_resident(struct mf_plan *plan)
{
    stream_tied(plan);
    plan->units[0].forward = MF_WEIGHT_FORWARD_RESIDENT;
}
static void no_ring(struct mf_plan *plan)
{
    plan->units[3].forward = MF_WEIGHT_FORWARD_DIRECT;
    plan->units[3].backward = MF_WEIGHT_BACKWARD_STREAM;
}
static void no_ring_forward(struct mf_plan *plan)
{
    plan->units[3].forward = MF_WEIGHT_FORWARD_STREAM;
    plan->units[3].backward = MF_WEIGHT_BACKWARD_DIRECT;
}
static void kept_needs_no_ring(struct mf_plan *plan)
{
    plan->units[3].forward = MF_WEIGHT_FORWARD_STREAM;
}
static void small_ring(struct mf_plan *plan)
{
    no_ring(plan);
    plan->ring_slots = 1;
}
static void large_ring(struct mf_plan *plan)
{
    no_ring(plan);
    plan->ring_slots = MF_RING_SLOTS_MAX + 1;
}
static void largest_ring(struct mf_plan *plan)
{
    no_ring(plan);
    plan->ring_slots = MF_RING_SLOTS_MAX;
}
static void negative_ring(struct mf_plan *plan)
{
    plan->ring_slots = -1;
}
static void first_block(struct mf_plan *plan)
{
    plan->activations[0] = MF_ACTIVATION_OFFLOAD;
}
static void last_block(struct mf_plan *plan)
{
    plan->activations[plan->block_count - 1] = MF_ACTIVATION_RECOMPUTE;
}
static void middle_blocks(struct mf_plan *plan)
{
    plan->activations[1] = MF_ACTIVATION_OFFLOAD;
    plan->activations[2] = MF_ACTIVATION_RECOMPUTE;
}
static void odd_activation(struct mf_plan *plan)
{
    plan->activations[1] = MF_ACTIVATION_COUNT;
}
static void odd_choice(struct mf_plan *plan)
{
    plan->units[2].gradient = MF_GRADIENT_COUNT;
}
static void odd_strategy(struct mf_plan *plan)
{
    plan->strategy = MF_STRATEGY_COUNT;
}
static void endless_reason(struct mf_plan *plan)
{
    memset(plan->units[2].why, 'x', sizeof(plan->units[2].why));
}
static void long_sequence(struct mf_plan *plan)
{
    plan->workload.seq_len = 513;
}
static void longest_sequence(struct mf_plan *plan)
{
    plan->workload.seq_len = 512;
}
static void no_batch(struct mf_plan *plan)
{
    plan->workload.micro_batch = 0;
}
static void much_accumulation(struct mf_plan *plan)
{
    plan->workload.accumulation = MF_ACCUMULATION_MAX + 1;
}
static void other_model(struct mf_plan *plan)
{
    plan->model_fingerprint[0] = 'x';
}
static void fewer_units(struct mf_plan *plan)
{
    plan->unit_count--;
}
static void fewer_blocks(struct mf_plan *plan)
{
    plan->block_count--;
}
static void other_version(struct mf_plan *plan)
{
    plan->planner_version++;
}
static void negative_budget(struct mf_plan *plan)
{
    plan->constraints.host_bytes = -1;
}

static void test_plan_rules(void **context)
{
    (void)context;
    expect(stream_tied, NULL);
    expect(tied_gradient, "gradient \"device\"");
    expect(tied_optimizer, "optimizer");
    expect(tied_resident, "resident");
    expect(no_ring, "ring");
    expect(no_ring_forward, "ring");
    expect(kept_needs_no_ring, NULL);
    expect(small_ring, "ring");
    expect(large_ring, "ring");
    expect(largest_ring, NULL);
    expect(negative_ring, "ring");
    expect(first_block, "block 0");
    expect(last_block, "block 3");
    expect(middle_blocks, NULL);
    expect(odd_activation, "block 1");
    expect(odd_choice, model.units[2].name);
    expect(odd_strategy, "strategy");
    expect(endless_reason, model.units[2].name);
    expect(long_sequence, "512");
    expect(longest_sequence, NULL);
    expect(no_batch, "micro_batch");
    expect(much_accumulation, "accumulation");
    expect(other_model, "model");
    expect(fewer_units, "units");
    expect(fewer_blocks, "blocks");
    expect(other_version, "version");
    expect(negative_budget, "budget");
}

static void test_unit_list_has_no_position_limit(void **context)
{
    (void)context;
    const struct mf_unit_shape shape = {"u", 0, 64, 64, false};
    const struct mf_workload longest = {
        .micro_batch = 1, .seq_len = MF_SEQ_LEN_MAX, .accumulation = 1};
    struct mf_model list;
    struct mf_plan plan;
    assert_ok(mf_model_from_units(&shape, 1, 0, &list));
    mf_plan_init(&list, &longest, &plan);
    assert_ok(mf_plan_validate(&plan, &list));
    mf_plan_reset(&plan);
    mf_model_reset(&list);
}

static void make_plan(struct mf_plan *plan)
{
    mf_plan_init(&model, &workload, plan);
    stream_tied(plan);
    snprintf(plan->hardware_fingerprint, sizeof(plan->hardware_fingerprint), "%064d", 5);
    plan->workload.clip = true;
    plan->constraints.device_bytes = 8ll << 30;
    plan->strategy = MF_STRATEGY_MEMFERRY;
    plan->source = MF_PLAN_MEASURED;
    plan->created_unix_s = 1750000000;
    plan->units[4].pinned = true;
    snprintf(plan->units[4].why, sizeof(plan->units[4].why), "the user's \"wish\"");
    plan->activations[1] = MF_ACTIVATION_OFFLOAD;
    struct mf_plan_prediction *prediction = &plan->prediction;
    prediction->step_ns = 1234567.890123456;
    prediction->bound_ns = 1.0 / 3.0;
    snprintf(prediction->bound_lane, sizeof(prediction->bound_lane), "critical path");
    prediction->lane_busy_ns[MF_LANE_H2D] = 17.25;
    prediction->device_purpose_bytes[MF_PURPOSE_RING] = 1ll << 40;
    prediction->host_purpose_bytes[MF_PURPOSE_STATE] = 77;
    prediction->device_peak_bytes = INT64_MAX;
    prediction->task_count = 99;
    mf_plan_seal(plan);
}

static void test_round_trip(void **context)
{
    (void)context;
    struct mf_plan before;
    struct mf_plan after;
    struct mf_plan copy;
    make_plan(&before);
    json_t *json = mf_plan_encode(&before);
    assert_ok(mf_plan_decode(json, &after));
    assert_ok(mf_plan_validate(&after, &model));
    mf_plan_copy(&after, &copy);
    mf_plan_reset(&after); /* the copy stands alone */
    json_t *again = mf_plan_encode(&copy);
    assert_true(json_equal(json, again));
    assert_memory_equal(&copy.prediction, &before.prediction, sizeof(copy.prediction));
    assert_memory_equal(copy.units, before.units, (size_t)copy.unit_count * sizeof(*copy.units));
    assert_string_equal(copy.id, before.id);
    json_decref(json);
    json_decref(again);
    mf_plan_reset(&before);
    mf_plan_reset(&copy);
}

static void test_id(void **context)
{
    (void)context;
    struct mf_plan plan;
    char id[MF_HASH_TEXT_MAX];
    make_plan(&plan);
    memcpy(id, plan.id, sizeof(id));
    assert_int_equal(strlen(id), 64);
    plan.created_unix_s++;
    plan.prediction.step_ns = 1;
    snprintf(plan.model_name, sizeof(plan.model_name), "another name");
    snprintf(plan.units[1].why, sizeof(plan.units[1].why), "because");
    mf_plan_seal(&plan);
    assert_string_equal(plan.id, id);
    plan.units[1].gradient = MF_GRADIENT_COPY;
    mf_plan_seal(&plan);
    assert_string_not_equal(plan.id, id);
    plan.units[1].gradient = MF_GRADIENT_DEVICE;
    plan.constraints.host_bytes = 1;
    mf_plan_seal(&plan);
    assert_string_not_equal(plan.id, id);
    plan.constraints.host_bytes = 0;
    plan.workload.seq_len--;
    mf_plan_seal(&plan);
    assert_string_not_equal(plan.id, id);
    mf_plan_reset(&plan);
}

/* Puts the JSON `value` at `key` of a good plan; NULL takes the key away. */
static void refuse(const char *key, const char *value, const char *fragment)
{
    struct mf_plan plan;
    struct mf_plan decoded;
    make_plan(&plan);
    json_t *json = mf_plan_encode(&plan);
    if (value == NULL) {
        assert_int_equal(json_object_del(json, key), 0);
    } else {
        json_t *parsed = json_loads(value, JSON_DECODE_ANY, NULL);
        assert_non_null(parsed);
        assert_int_equal(json_object_set_new(json, key, parsed), 0);
    }
    assert_fails(mf_plan_decode(json, &decoded), MF_STATUS_INVALID, fragment);
    assert_null(decoded.units);
    json_decref(json);
    mf_plan_reset(&plan);
}

static void test_hostile(void **context)
{
    (void)context;
    struct mf_plan plan;
    assert_fails(mf_plan_decode(NULL, &plan), MF_STATUS_INVALID, "object");
    refuse("colour", "1", "colour");
    refuse("units", NULL, "units");
    refuse("units", "[]", "units");
    refuse("units", "{}", "units");
    refuse("units", "[1]", "units[0]");
    refuse("units", "[[]]", "units[0]");
    refuse("units", "[[\"resident\", \"keep\", \"device\", \"tpu\", false, \"\"]]", "units[0]");
    refuse("units", "[[\"resident\", \"keep\", \"device\", \"gpu\", 0, \"\"]]", "units[0]");
    refuse("units", "[[\"resident\", \"keep\", \"device\", \"gpu\", false, \"\", 1]]", "units[0]");
    refuse("units", "[[\"resident\", \"keep\", \"device\", \"gpu\", false, null]]", "units[0]");
    refuse("units",
           "[[\"resident\", \"keep\", \"device\", \"gpu\", false, \"0123456789012345678901234567890"
           "12345678901234567890123456789012345678901234567890123456789012345\"]]",
           "units[0]");
    refuse("activations", "[\"keep\", 1]", "activations[1]");
    refuse("activations", "\"keep\"", "activations");
    refuse("activations", "[\"keep\", \"keep\", \"keep\", \"keep\"]", "id"); /* decisions changed */
    refuse("id", "\"0123\"", "id");
    refuse("id", "17", "id");
    refuse("ring_slots", "65", "ring_slots");
    refuse("ring_slots", "4", "id");
    refuse("workload", NULL, "workload");
    refuse("workload", "{\"micro_batch\": 1, \"seq_len\": 64}", "accumulation");
    refuse("workload", "{\"micro_batch\": 0, \"seq_len\": 64, \"accumulation\": 1}", "micro_batch");
    refuse("constraints", "{\"device_bytes\": -1}", "device_bytes");
    refuse("constraints", "{\"device_byte\": 1}", "device_bytes");
    refuse("strategy", "\"best\"", "strategy");
    refuse("source", "\"guess\"", "source");
    refuse("source", NULL, "source");
    refuse("model_fingerprint", NULL, "model_fingerprint");
    refuse("model_fingerprint",
           "\"01234567890123456789012345678901234567890123456789012345678901234\"",
           "model_fingerprint");
    refuse("prediction", "7", "prediction");
    refuse("prediction", "{\"step_ns\": -1}", "step_ns");
    refuse("prediction", "{\"lane_busy_ns\": {\"warp\": 1}}", "warp");
    refuse("prediction", "{\"bound_lane\": \"a lane with too long a name\"}", "bound_lane");
    refuse("prediction",
           "{\"lane_busy_ns\": {}, \"device_purpose_bytes\": {\"weights\": 1.5},"
           " \"host_purpose_bytes\": {}}",
           "weights");
}

/* A stored plan with damaged bytes is refused, unless the damage is in what the id leaves out. */
static void test_damaged(void **context)
{
    (void)context;
    static const char alphabet[] = "0123456789-.eE{}[]\":,nulltruefalse ";
    struct mf_plan plan;
    make_plan(&plan);
    json_t *json = mf_plan_encode(&plan);
    char *text = json_dumps(json, JSON_COMPACT);
    char id[MF_HASH_TEXT_MAX];
    memcpy(id, plan.id, sizeof(id));
    harness_random_restart(41);
    size_t length = strlen(text);
    for (int round = 0; round < 2000; round++) {
        size_t at = (size_t)harness_random_below(length);
        char before = text[at];
        text[at] = alphabet[harness_random_below(sizeof(alphabet) - 1)];
        json_t *damaged = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        struct mf_plan decoded;
        if (damaged != NULL && mf_plan_decode(damaged, &decoded) == MF_STATUS_OK) {
            assert_string_equal(decoded.id, id);
            mf_plan_reset(&decoded);
        }
        json_decref(damaged);
        text[at] = before;
    }
    free(text);
    json_decref(json);
    mf_plan_reset(&plan);
}

static void test_names(void **context)
{
    (void)context;
    assert_int_equal(mf_plan_parse_forward("direct"), MF_WEIGHT_FORWARD_DIRECT);
    assert_int_equal(mf_plan_parse_backward("late"), MF_WEIGHT_BACKWARD_LATE);
    assert_int_equal(mf_plan_parse_gradient("copy"), MF_GRADIENT_COPY);
    assert_int_equal(mf_plan_parse_optimizer("gpu_stream"), MF_OPTIMIZER_GPU_STREAM);
    assert_int_equal(mf_plan_parse_activation("recompute"), MF_ACTIVATION_RECOMPUTE);
    assert_int_equal(mf_plan_parse_strategy("zero_offload"), MF_STRATEGY_ZERO_OFFLOAD);
    assert_int_equal(mf_plan_parse_strategy("Auto"), -1);
    for (int i = 0; i < MF_STRATEGY_COUNT; i++) {
        assert_int_equal(mf_plan_parse_strategy(mf_plan_strategy_name((enum mf_strategy)i)), i);
    }
    assert_string_equal(mf_plan_purpose_name(MF_PURPOSE_RING), "weight ring");
    assert_string_equal(mf_plan_forward_name(MF_WEIGHT_FORWARD_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start),      cmocka_unit_test(test_unit_rules),
        cmocka_unit_test(test_plan_rules), cmocka_unit_test(test_unit_list_has_no_position_limit),
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_id),
        cmocka_unit_test(test_hostile),    cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
