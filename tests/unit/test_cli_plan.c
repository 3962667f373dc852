/* What the CLI prints of a plan: folding of equal layers, totals, activations, comparisons. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/render.h"
#include "core/arena.h"
#include "harness.h"

#define LAYERS 12

struct sample {
    struct mf_arena arena;
    Memferry__V1__Plan plan;
    Memferry__V1__Workload workload;
    Memferry__V1__Constraints constraints;
    Memferry__V1__Prediction prediction;
    Memferry__V1__GetPlanResponse got;
    Memferry__V1__UnitPlan *units[3 + LAYERS * 3];
    Memferry__V1__Activation activations[LAYERS + 2];
};

static Memferry__V1__UnitPlan *add(struct sample *sample, const char *name, const char *kind,
                                   int block, int64_t rows, int64_t columns)
{
    Memferry__V1__UnitPlan *unit = mf_arena_alloc(&sample->arena, 1, sizeof(*unit));
    memferry__v1__unit_plan__init(unit);
    unit->name = mf_arena_string(&sample->arena, name);
    unit->kind = (char *)kind;
    unit->block = block;
    unit->rows = rows;
    unit->columns = columns;
    unit->params = rows * columns;
    unit->weight_bytes = 2 * rows * columns;
    unit->forward = MEMFERRY__V1__WEIGHT_FORWARD__WEIGHT_FORWARD_RESIDENT;
    unit->backward = MEMFERRY__V1__WEIGHT_BACKWARD__WEIGHT_BACKWARD_KEEP;
    unit->gradient = MEMFERRY__V1__GRADIENT__GRADIENT_DEVICE;
    unit->optimizer = MEMFERRY__V1__OPTIMIZER__OPTIMIZER_GPU;
    unit->why = (char *)"fits";
    unit->compute_ns = 1e6;
    sample->units[sample->plan.n_units++] = unit;
    return unit;
}

static void stream(Memferry__V1__UnitPlan *unit)
{
    unit->forward = MEMFERRY__V1__WEIGHT_FORWARD__WEIGHT_FORWARD_STREAM;
    unit->backward = MEMFERRY__V1__WEIGHT_BACKWARD__WEIGHT_BACKWARD_STREAM;
    unit->gradient = MEMFERRY__V1__GRADIENT__GRADIENT_COPY;
    unit->optimizer = MEMFERRY__V1__OPTIMIZER__OPTIMIZER_CPU;
    unit->h2d_ns = 4e6;
    unit->d2h_ns = 2e6;
    unit->cpu_ns = 3e6;
    unit->why = (char *)"the link has room for it";
}

static void predict(struct sample *sample)
{
    Memferry__V1__Prediction *p = &sample->prediction;
    memferry__v1__prediction__init(p);
    p->step_ns = 812.4e6;
    p->bound_ns = 770e6;
    p->bound_lane = (char *)"h2d";
    p->gap = 812.4 / 770 - 1;
    p->compute_busy_ns = 700e6;
    p->h2d_busy_ns = 765e6;
    p->d2h_busy_ns = 300e6;
    p->cpu_busy_ns = 410e6;
    p->stall_ns = 49.6e6;
    p->device_peak_bytes = 8ll << 30;
    p->host_peak_bytes = 30ll << 30;
    p->h2d_bytes = 20ll << 30;
    p->d2h_bytes = 8ll << 30;
    p->direct_bytes = 1ll << 30;
    p->n_memory = 2;
    p->memory = mf_arena_alloc(&sample->arena, 2, sizeof(*p->memory));
    for (size_t i = 0; i < 2; i++) {
        p->memory[i] = mf_arena_alloc(&sample->arena, 1, sizeof(*p->memory[i]));
        memferry__v1__memory_by_purpose__init(p->memory[i]);
    }
    p->memory[0]->purpose = (char *)"weights";
    p->memory[0]->device_bytes = 5ll << 30;
    p->memory[1]->purpose = (char *)"optimizer state";
    p->memory[1]->host_bytes = 30ll << 30;
    sample->plan.prediction = p;
}

/* Layers 0-5 and 8 resident, the others streamed; the norm is resident everywhere. */
static void sample_init(struct sample *sample)
{
    memset(sample, 0, sizeof(*sample));
    mf_arena_init(&sample->arena);
    memferry__v1__plan__init(&sample->plan);
    memferry__v1__workload__init(&sample->workload);
    memferry__v1__constraints__init(&sample->constraints);
    memferry__v1__get_plan_response__init(&sample->got);
    sample->plan.id = (char *)"0123456789abcdef0123456789abcdef";
    sample->plan.model_name = (char *)"llama-tiny";
    sample->plan.units = sample->units;
    sample->plan.workload = &sample->workload;
    sample->plan.constraints = &sample->constraints;
    sample->workload.micro_batch = 4;
    sample->workload.seq_len = 1024;
    sample->workload.accumulation = 8;
    sample->constraints.device_memory_bytes = 8ll << 30;

    add(sample, "model.embed_tokens", "embedding", 0, 32000, 4096);
    for (int i = 0; i < LAYERS; i++) {
        char name[64];
        snprintf(name, sizeof(name), "model.layers.%d.input_layernorm", i);
        add(sample, name, "norm", i + 1, 4096, 1);
        snprintf(name, sizeof(name), "model.layers.%d.self_attn.q_proj", i);
        Memferry__V1__UnitPlan *q = add(sample, name, "linear", i + 1, 4096, 4096);
        snprintf(name, sizeof(name), "model.layers.%d.mlp.up_proj", i);
        Memferry__V1__UnitPlan *up = add(sample, name, "linear", i + 1, 14336, 4096);
        if (i > 5 && i != 8) {
            stream(q);
            stream(up);
        }
        sample->activations[i + 1] = i < 4 ? MEMFERRY__V1__ACTIVATION__ACTIVATION_RECOMPUTE
                                           : MEMFERRY__V1__ACTIVATION__ACTIVATION_KEEP;
    }
    add(sample, "model.norm", "norm", LAYERS + 1, 4096, 1);
    Memferry__V1__UnitPlan *head = add(sample, "lm_head", "head", LAYERS + 1, 32000, 4096);
    head->params = 0;
    head->weight_bytes = 0;
    head->tied_to = (char *)"model.embed_tokens";
    head->why = (char *)"";
    sample->activations[0] = MEMFERRY__V1__ACTIVATION__ACTIVATION_KEEP;
    sample->activations[LAYERS + 1] = MEMFERRY__V1__ACTIVATION__ACTIVATION_KEEP;
    sample->plan.activations = sample->activations;
    sample->plan.n_activations = LAYERS + 2;
    sample->plan.measured = true;
    sample->got.plan = &sample->plan;
    sample->got.how = (char *)"measured";
    sample->got.miss = (char *)"new workload";
    sample->got.measure_seconds = 8.1;
    sample->got.solve_seconds = 0.42;
    predict(sample);
}

/* The text printed; the caller frees it. */
static char *print_plan(const struct sample *sample, bool all)
{
    char *text = NULL;
    size_t length = 0;
    struct mf_render render = {.header = true, .now_unix_s = 1000};
    render.out = open_memstream(&text, &length);
    assert_non_null(render.out);
    mf_render_plan(&render, &sample->plan, &sample->got, all);
    fclose(render.out);
    if (getenv("MF_TEST_SHOW") != NULL) {
        fputs(text, stderr);
    }
    return text;
}

static void assert_has(const char *text, const char *fragment)
{
    if (strstr(text, fragment) == NULL) {
        fail_msg("\"%s\" is not in:\n%s", fragment, text);
    }
}

static size_t count_lines(const char *text, const char *fragment)
{
    size_t count = 0;
    for (const char *at = strstr(text, fragment); at != NULL; at = strstr(at + 1, fragment)) {
        count++;
    }
    return count;
}

static void test_plan_folds_equal_layers(void **state)
{
    (void)state;
    struct sample sample;
    sample_init(&sample);
    char *text = print_plan(&sample, false);
    assert_has(text, "plan 0123456789ab: llama-tiny");
    assert_has(text, "layers 0-11: input_layernorm ");
    assert_has(text, "layers 0-5,8: self_attn.q_proj ");
    assert_has(text, "layers 6-7,9-11: self_attn.q_proj ");
    assert_has(text, "tied to model.embed_tokens\n");
    assert_has(text, "4 x 1024 tokens a micro-batch, 8 micro-batches = 32768 tokens a step");
    assert_has(text, "measured in 8.1 s, solved in 0.42 s");
    assert_has(text, "new workload");
    assert_has(text, "keep input; recompute layers 0-3; keep layers 4-11; keep output");
    assert_has(text, "gap 5.5%");
    /* Five streamed layers of 4 ms each. */
    assert_int_equal(count_lines(text, "    5.00   20.00   10.00   15.00  "), 2);
    free(text);
    mf_arena_reset(&sample.arena);
}

static void test_plan_shows_every_unit(void **state)
{
    (void)state;
    struct sample sample;
    sample_init(&sample);
    char *text = print_plan(&sample, true);
    assert_int_equal(count_lines(text, ".self_attn.q_proj "), LAYERS);
    assert_null(strstr(text, "layers 0-5"));
    free(text);
    mf_arena_reset(&sample.arena);
}

static void test_pinned_units_stand_alone(void **state)
{
    (void)state;
    struct sample sample;
    sample_init(&sample);
    sample.units[2]->pinned = true; /* q_proj of layer 0 */
    char *text = print_plan(&sample, false);
    assert_has(text, "layers 1-5,8: self_attn.q_proj ");
    assert_has(text, "pinned by you");
    free(text);
    mf_arena_reset(&sample.arena);
}

static void test_names_cannot_steer_the_terminal(void **state)
{
    (void)state;
    struct sample sample;
    sample_init(&sample);
    sample.units[0]->name = (char *)"evil\033[2Jname";
    sample.plan.model_name = (char *)"m\033]0;x\007";
    char *text = print_plan(&sample, false);
    assert_null(strchr(text, '\033'));
    assert_null(strchr(text, '\007'));
    free(text);
    mf_arena_reset(&sample.arena);
}

static void test_comparison(void **state)
{
    (void)state;
    struct sample sample;
    sample_init(&sample);
    struct mf_render_compare_row rows[2] = {
        {.strategy = MEMFERRY__V1__STRATEGY__STRATEGY_AUTO, .got = &sample.got},
        {.strategy = MEMFERRY__V1__STRATEGY__STRATEGY_RESIDENT, .got = NULL}};
    snprintf(rows[1].error.text, sizeof(rows[1].error.text), "needs 64 GiB of device memory");
    char *text = NULL;
    size_t length = 0;
    struct mf_render render = {.header = true};
    render.out = open_memstream(&text, &length);
    mf_render_compare(&render, rows, 2);
    fclose(render.out);
    assert_has(text, "strategy");
    assert_has(text, "812.4 ms");
    assert_has(text, "needs 64 GiB of device memory\n");
    free(text);
    mf_arena_reset(&sample.arena);
}

static void test_difference(void **state)
{
    (void)state;
    struct sample a;
    struct sample b;
    sample_init(&a);
    sample_init(&b);
    b.plan.id = (char *)"fedcba9876543210";
    stream(b.units[0]);
    b.prediction.step_ns = 2 * a.prediction.step_ns;
    char *text = NULL;
    size_t length = 0;
    struct mf_render render = {.header = true};
    render.out = open_memstream(&text, &length);
    mf_render_compare_diff(&render, &a.plan, &b.plan);
    fclose(render.out);
    assert_has(text, "+100.0%");
    assert_has(text, "resident/keep/device/gpu");
    assert_has(text, "stream/stream/copy/cpu");
    assert_has(text, "1 unit is held differently");
    free(text);

    json_t *document = mf_render_compare_diff_json(&a.plan, &b.plan);
    assert_int_equal(json_array_size(json_object_get(document, "units")), 1);
    json_t *step = json_object_get(json_object_get(document, "prediction"), "step_ns");
    assert_near(json_number_value(json_object_get(step, "b")), 2 * a.prediction.step_ns, 0, 0);
    json_decref(document);
    mf_arena_reset(&a.arena);
    mf_arena_reset(&b.arena);
}

static void test_step_line(void **state)
{
    (void)state;
    Memferry__V1__StepReport step = MEMFERRY__V1__STEP_REPORT__INIT;
    step.step = 12;
    step.steps_total = 1000;
    step.loss = 3.14149;
    step.grad_norm = 0.98;
    step.learning_rate = 3e-4;
    step.step_ms = 812.4;
    step.tokens_per_second = 20180;
    step.stall = 0.061;
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    mf_render_step(&step, out);
    fclose(out);
    assert_string_equal(text, "step 12/1000 | loss 3.1415 | norm 0.98 | lr 3.0e-04 | 812.4 ms | "
                              "20180 tok/s | stall 6.1%");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_folds_equal_layers),
        cmocka_unit_test(test_plan_shows_every_unit),
        cmocka_unit_test(test_pinned_units_stand_alone),
        cmocka_unit_test(test_names_cannot_steer_the_terminal),
        cmocka_unit_test(test_comparison),
        cmocka_unit_test(test_difference),
        cmocka_unit_test(test_step_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
