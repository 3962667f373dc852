/*
 * Our arithmetic against PyTorch and Transformers, one small real model per family: logits, loss,
 * every gradient, the norm, and ten AdamW steps. Numbers and tolerances: tests/oracle/README.md
 * (the tolerances for bf16 activations). Run under two plans, so that streaming is compared too.
 */
#define HARNESS_TIMEOUT_S 600

#include "tests/harness.h"
#include "tests/test_device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/model.h"
#include "core/plan.h"
#include "planner/solve.h"
#include "runtime/executor.h"
#include "runtime/safetensors.h"
#include "runtime/weights.h"
#include "runtime/weights_layout.h"

#define LOGITS_TOLERANCE 2.5e-2
#define LOSS_TOLERANCE 1e-3
#define GRADIENT_TOLERANCE 5e-2
#define NORM_TOLERANCE 3e-3
#define STEP_LOSS_TOLERANCE 5e-3
#define STEP_NORM_TOLERANCE 1.5e-2
/* On CUDA attention's probabilities are bf16 too (on Hopper for every head_dim), which ten steps at
 * this learning rate amplify: 1.6e-2 was seen. */
#define STEP_NORM_TOLERANCE_CUDA 3e-2
#define MOVED_TOLERANCE 6e-2
#define STEPS 10
#define VOCAB 320

static const char *const families[] = {"gpt2", "llama", "llama3-rope", "mistral", "qwen2", "qwen3"};

struct fixture {
    struct mf_model model;
    struct mf_safetensors *reference;
    struct mf_weights *weights;
    struct mf_workload workload;
    int32_t *tokens; /* [2 * rows] */
    int32_t *labels;
    struct mf_plan plan;
    struct mf_device *device;
    struct mf_executor *executor;
};

static const char *folder_of(const char *family)
{
    char relative[128];
    snprintf(relative, sizeof(relative), "tests/oracle/fixtures/%s", family);
    return harness_source(relative);
}

static void read_tensor(const struct mf_safetensors *set, const char *name, void *out)
{
    const struct mf_safetensors_tensor *tensor = mf_safetensors_find(set, name);
    assert_non_null(tensor);
    assert_ok(mf_safetensors_read(set, tensor, 0, tensor->bytes, out));
}

static void open_fixture(const char *family, uint64_t plan_seed, struct fixture *out)
{
    const char *folder = folder_of(family);
    json_t *config = NULL;
    *out = (struct fixture){0};
    assert_ok(mf_json_load(harness_path(folder, "config.json"), 1 << 20, &config));
    assert_ok(mf_model_from_config(config, family, 8192, &out->model));
    json_decref(config);
    assert_int_equal(out->model.vocab, VOCAB);
    assert_ok(mf_safetensors_open(harness_path(folder, "reference.safetensors"), &out->reference));
    assert_ok(mf_weights_open(&out->model, folder, &out->weights));
    const struct mf_safetensors_tensor *ids = mf_safetensors_find(out->reference, "input_ids");
    out->workload = (struct mf_workload){
        .micro_batch = 2, .seq_len = (int32_t)ids->shape[2], .accumulation = 2, .clip = true};
    out->tokens = malloc((size_t)ids->bytes);
    out->labels = malloc((size_t)ids->bytes);
    read_tensor(out->reference, "input_ids", out->tokens);
    read_tensor(out->reference, "labels", out->labels);
    if (plan_seed == 0) {
        mf_plan_init(&out->model, &out->workload, &out->plan);
    } else {
        mf_solve_random(&out->model, &out->workload, plan_seed, &out->plan);
    }
    const struct mf_device_options options = {.memory_bytes = 1ll << 30};
    assert_ok(test_device()->open(&options, &out->device));
    assert_ok(mf_executor_open(test_device(), out->device, &out->model, &out->plan, NULL, NULL,
                               &out->executor));
    for (int32_t i = 0; i < out->model.unit_count; i++) {
        const struct mf_unit *unit = &out->model.units[i];
        if (unit->owner == i) {
            float *master = malloc((size_t)unit->elements * sizeof(float));
            assert_ok(mf_weights_read_unit(out->weights, i, master));
            assert_ok(mf_executor_put_unit(out->executor, i, master, NULL, NULL));
            free(master);
        }
    }
}

static void close_fixture(struct fixture *fixture)
{
    mf_executor_close(fixture->executor);
    test_device()->close(fixture->device);
    mf_plan_reset(&fixture->plan);
    mf_weights_close(fixture->weights);
    mf_safetensors_close(fixture->reference);
    mf_model_reset(&fixture->model);
    free(fixture->tokens);
    free(fixture->labels);
}

struct deviation {
    double difference, reference; /* sums of squares */
};

static void add(struct deviation *sum, double found, double wanted)
{
    sum->difference += (found - wanted) * (found - wanted);
    sum->reference += wanted * wanted;
}

static double relative(const struct deviation *sum)
{
    return sqrt(sum->difference / (sum->reference > 0 ? sum->reference : 1));
}

static double compare_logits(struct fixture *fixture)
{
    int32_t seq_len = fixture->workload.seq_len;
    struct deviation sum = {0};
    float *wanted = malloc(2 * (size_t)seq_len * VOCAB * sizeof(float));
    read_tensor(fixture->reference, "logits", wanted);
    for (int32_t position = 0; position < seq_len; position++) {
        const float *found = NULL;
        assert_ok(mf_executor_logits(fixture->executor, fixture->tokens, position, &found));
        for (int row = 0; row < 2; row++) {
            for (int i = 0; i < VOCAB; i++) {
                add(&sum, (double)found[row * VOCAB + i],
                    (double)wanted[(row * seq_len + position) * VOCAB + i]);
            }
        }
    }
    free(wanted);
    return relative(&sum);
}

/* Stored tensor (Hugging Face's order) against elements in panel layout times `scale`. */
static void compare_tensor(const struct fixture *fixture, int32_t index, int part,
                           const char *prefix, const float *elements, double scale,
                           const float *start, struct deviation *sum)
{
    const struct mf_unit *unit = &fixture->model.units[index];
    const struct mf_tensor *tensor = mf_weights_layout_tensor(unit, (enum mf_weights_part)part);
    if (tensor->name == NULL) {
        return;
    }
    char name[256];
    snprintf(name, sizeof(name), "%s.%s", prefix, tensor->name);
    int64_t columns = part == MF_WEIGHTS_PART_WEIGHT ? unit->columns : 1;
    float *wanted = malloc((size_t)(unit->rows * columns) * sizeof(float));
    read_tensor(fixture->reference, name, wanted);
    for (int64_t row = 0; row < unit->rows; row++) {
        for (int64_t column = 0; column < columns; column++) {
            int64_t at = part == MF_WEIGHTS_PART_WEIGHT
                             ? mf_weights_layout_offset(unit, row, column)
                             : mf_weights_layout_bias_offset(unit, row);
            int64_t stored =
                tensor->transposed ? column * unit->rows + row : row * columns + column;
            double base = start == NULL ? 0 : (double)start[at];
            add(sum, (double)elements[at] * scale - base, (double)wanted[stored] - base);
        }
    }
    free(wanted);
}

static double compare_gradients(struct fixture *fixture, int64_t token_count)
{
    double worst = 0;
    for (int32_t i = 0; i < fixture->model.unit_count; i++) {
        const struct mf_unit *unit = &fixture->model.units[i];
        if (unit->owner != i) {
            continue;
        }
        float *gradient = malloc((size_t)unit->elements * sizeof(float));
        assert_ok(mf_executor_get_gradient(fixture->executor, i, gradient));
        for (int part = 0; part < MF_WEIGHTS_PART_COUNT; part++) {
            struct deviation sum = {0};
            compare_tensor(fixture, i, part, "grad", gradient, 1.0 / (double)token_count, NULL,
                           &sum);
            /* The gradient of Qwen2's key bias is nearly zero by mathematics. */
            bool noise = part == MF_WEIGHTS_PART_BIAS && strstr(unit->name, "k_proj") != NULL;
            if (!noise && relative(&sum) > worst) {
                worst = relative(&sum);
            }
        }
        free(gradient);
    }
    return worst;
}

static const struct mf_adam adam = {
    .learning_rate = 1e-3,
    .beta1 = 0.9,
    .beta2 = 0.999,
    .eps = 1e-8,
    .weight_decay = 0.1,
    .clip_norm = 1.0,
    .skip_nonfinite = true,
};

static double compare_moved(struct fixture *fixture)
{
    struct deviation sum = {0};
    for (int32_t i = 0; i < fixture->model.unit_count; i++) {
        const struct mf_unit *unit = &fixture->model.units[i];
        if (unit->owner != i) {
            continue;
        }
        float *master = malloc((size_t)unit->elements * sizeof(float));
        float *start = malloc((size_t)unit->elements * sizeof(float));
        assert_ok(mf_executor_get_unit(fixture->executor, i, master, NULL, NULL));
        assert_ok(mf_weights_read_unit(fixture->weights, i, start));
        for (int part = 0; part < MF_WEIGHTS_PART_COUNT; part++) {
            compare_tensor(fixture, i, part, "weight10", master, 1, start, &sum);
        }
        free(master);
        free(start);
    }
    return relative(&sum);
}

static void compare_training(struct fixture *fixture, const char *family)
{
    float losses[STEPS];
    float norms[STEPS];
    double worst_loss = 0;
    double worst_norm = 0;
    read_tensor(fixture->reference, "step_loss", losses);
    read_tensor(fixture->reference, "step_norm", norms);
    for (int step = 0; step < STEPS; step++) {
        struct mf_update_result update;
        assert_ok(
            mf_executor_run(fixture->executor, fixture->tokens, fixture->labels, &adam, &update));
        double loss = update.loss_sum / (double)update.token_count;
        worst_loss = fmax(worst_loss, fabs(loss - (double)losses[step]));
        worst_norm = fmax(worst_norm, fabs(update.norm / (double)norms[step] - 1));
    }
    bool masters =
        mf_safetensors_find(fixture->reference, fixture->model.family[0] == 'g'
                                                    ? "weight10.transformer.wte.weight"
                                                    : "weight10.model.embed_tokens.weight") != NULL;
    double moved = masters ? compare_moved(fixture) : 0;
    print_message("%-12s 10 steps: loss %.1e, norm %.1e, moved %.1e\n", family, worst_loss,
                  worst_norm, moved);
    assert_true(worst_loss <= STEP_LOSS_TOLERANCE);
    /* Hopper's attention multiplies with probabilities rounded to bf16, as PyTorch's does. */
    bool host = test_device() == mf_device_host();
    assert_true(worst_norm <= STEP_NORM_TOLERANCE * (host ? 1 : 2));
    assert_true(moved <= MOVED_TOLERANCE);
}

static void compare_family(const char *family, uint64_t plan_seed)
{
    struct fixture fixture;
    float loss_sums[2];
    float norm = 0;
    open_fixture(family, plan_seed, &fixture);
    double logits = compare_logits(&fixture);
    int64_t rows = mf_workload_rows(&fixture.workload);
    int64_t token_count = 0;
    double loss = 0;
    double wanted = 0;
    read_tensor(fixture.reference, "loss_sum", loss_sums);
    for (int micro = 0; micro < 2; micro++) {
        struct mf_micro_result result;
        assert_ok(mf_executor_forward_backward(fixture.executor, fixture.tokens + micro * rows,
                                               fixture.labels + micro * rows, NULL, &result, NULL));
        token_count += result.token_count;
        loss += result.loss_sum;
        wanted += (double)loss_sums[micro];
    }
    double loss_off = fabs(loss - wanted) / (double)token_count;
    double gradient = compare_gradients(&fixture, token_count);
    struct mf_update_result update;
    const struct mf_adam still = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    assert_ok(mf_executor_update(fixture.executor, &still, &update));
    read_tensor(fixture.reference, "grad_norm", &norm);
    double norm_off = fabs(update.norm / (double)norm - 1);
    print_message("%-12s logits %.1e, loss %.1e, worst gradient %.1e, norm %.1e\n", family, logits,
                  loss_off, gradient, norm_off);
    assert_true(logits <= LOGITS_TOLERANCE);
    assert_true(loss_off <= LOSS_TOLERANCE);
    assert_true(gradient <= GRADIENT_TOLERANCE);
    assert_true(norm_off <= NORM_TOLERANCE);
    close_fixture(&fixture);

    open_fixture(family, plan_seed, &fixture);
    compare_training(&fixture, family);
    close_fixture(&fixture);
}

static void every_family_matches(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        compare_family(families[i], 0);
        compare_family(families[i], 11 + i);
    }
}

static void both_spellings_of_a_config_are_one_model(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        struct mf_model models[2];
        static const char *const names[] = {"config.json", "config.v4.json"};
        for (int j = 0; j < 2; j++) {
            json_t *config = NULL;
            assert_ok(
                mf_json_load(harness_path(folder_of(families[i]), names[j]), 1 << 20, &config));
            assert_ok(mf_model_from_config(config, families[i], 0, &models[j]));
            json_decref(config);
        }
        assert_string_equal(models[0].fingerprint, models[1].fingerprint);
        mf_model_reset(&models[0]);
        mf_model_reset(&models[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_matches),
        cmocka_unit_test(both_spellings_of_a_config_are_one_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
