/* A plan as data: see plan.h. Validation, encoding and decoding have their own files. */
#include "core/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const forward_names[] = {
#define X(name, text, sentence) text,
    MF_WEIGHT_FORWARD_MAP(X)
#undef X
};
static const char *const backward_names[] = {
#define X(name, text, sentence) text,
    MF_WEIGHT_BACKWARD_MAP(X)
#undef X
};
static const char *const gradient_names[] = {
#define X(name, text, sentence) text,
    MF_GRADIENT_MAP(X)
#undef X
};
static const char *const optimizer_names[] = {
#define X(name, text, sentence) text,
    MF_OPTIMIZER_MAP(X)
#undef X
};
static const char *const activation_names[] = {
#define X(name, text, sentence) text,
    MF_ACTIVATION_MAP(X)
#undef X
};
static const char *const strategy_names[] = {
#define X(name, text, sentence) text,
    MF_STRATEGY_MAP(X)
#undef X
};
static const char *const purpose_names[] = {
#define X(name, text) text,
    MF_PURPOSE_MAP(X)
#undef X
};

static void *allocate(int32_t count, size_t size)
{
    void *memory = calloc(count > 0 ? (size_t)count : 1, size);
    MF_ASSERT(memory != NULL);
    return memory;
}

void mf_plan_init(const struct mf_model *model, const struct mf_workload *workload,
                  struct mf_plan *out)
{
    memset(out, 0, sizeof(*out));
    snprintf(out->model_fingerprint, sizeof(out->model_fingerprint), "%s", model->fingerprint);
    snprintf(out->model_name, sizeof(out->model_name), "%s", model->name);
    out->workload = *workload;
    out->strategy = MF_STRATEGY_RESIDENT;
    out->planner_version = MF_PLANNER_VERSION;
    out->unit_count = model->unit_count;
    out->units = allocate(model->unit_count, sizeof(*out->units));
    for (int32_t i = 0; i < model->unit_count; i++) {
        out->units[i].forward = MF_WEIGHT_FORWARD_RESIDENT;
        out->units[i].backward = MF_WEIGHT_BACKWARD_KEEP;
        out->units[i].gradient = MF_GRADIENT_DEVICE;
        out->units[i].optimizer = MF_OPTIMIZER_GPU;
    }
    out->block_count = model->block_count;
    out->activations = allocate(model->block_count, sizeof(*out->activations));
    for (int32_t i = 0; i < model->block_count; i++) {
        out->activations[i] = MF_ACTIVATION_KEEP;
    }
}

void mf_plan_reset(struct mf_plan *plan)
{
    free(plan->units);
    free(plan->activations);
    memset(plan, 0, sizeof(*plan));
}

void mf_plan_copy(const struct mf_plan *plan, struct mf_plan *out)
{
    *out = *plan;
    out->units = allocate(plan->unit_count, sizeof(*out->units));
    memcpy(out->units, plan->units, (size_t)plan->unit_count * sizeof(*out->units));
    out->activations = allocate(plan->block_count, sizeof(*out->activations));
    memcpy(out->activations, plan->activations,
           (size_t)plan->block_count * sizeof(*out->activations));
}

bool mf_plan_defers(const struct mf_plan *plan, int32_t block)
{
    int64_t deferred = plan->deferred_blocks;
    return (block + 1) * deferred / plan->block_count > block * deferred / plan->block_count;
}

static void print_header(FILE *text, const struct mf_plan *plan)
{
    const struct mf_workload *workload = &plan->workload;
    fprintf(text, "plan 1 planner %d source %d strategy %s\nmodel %s\nhardware %s\n",
            (int)plan->planner_version, (int)plan->source, mf_plan_strategy_name(plan->strategy),
            plan->model_fingerprint, plan->hardware_fingerprint);
    fprintf(text, "workload %d %d %d %d\nconstraints %lld %lld\nring %d deferred %d speculate %d\n",
            (int)workload->micro_batch, (int)workload->seq_len, (int)workload->accumulation,
            workload->clip, (long long)plan->constraints.device_bytes,
            (long long)plan->constraints.host_bytes, (int)plan->ring_slots,
            (int)plan->deferred_blocks, plan->speculate);
}

/* Not in the id: when it was made, its predictions, the sentences for people, the model's name. */
void mf_plan_seal(struct mf_plan *plan)
{
    char *bytes = NULL;
    size_t count = 0;
    FILE *text = open_memstream(&bytes, &count);
    MF_ASSERT(text != NULL);
    print_header(text, plan);
    for (int32_t i = 0; i < plan->unit_count; i++) {
        const struct mf_unit_decision *unit = &plan->units[i];
        fprintf(text, "unit %s %s %s %s %d\n", mf_plan_forward_name(unit->forward),
                mf_plan_backward_name(unit->backward), mf_plan_gradient_name(unit->gradient),
                mf_plan_optimizer_name(unit->optimizer), unit->pinned);
    }
    for (int32_t i = 0; i < plan->block_count; i++) {
        fprintf(text, "block %s\n", mf_plan_activation_name(plan->activations[i]));
    }
    MF_ASSERT(fclose(text) == 0);
    mf_hash(bytes, count, plan->id);
    free(bytes);
}

static const char *name_of(const char *const *names, size_t count, unsigned index)
{
    return index < count ? names[index] : "unknown";
}

static int index_of(const char *const *names, size_t count, const char *text)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], text) == 0) {
            return (int)i;
        }
    }
    return -1;
}

const char *mf_plan_forward_name(enum mf_weight_forward choice)
{
    return name_of(forward_names, MF_WEIGHT_FORWARD_COUNT, (unsigned)choice);
}

const char *mf_plan_backward_name(enum mf_weight_backward choice)
{
    return name_of(backward_names, MF_WEIGHT_BACKWARD_COUNT, (unsigned)choice);
}

const char *mf_plan_gradient_name(enum mf_gradient choice)
{
    return name_of(gradient_names, MF_GRADIENT_COUNT, (unsigned)choice);
}

const char *mf_plan_optimizer_name(enum mf_optimizer choice)
{
    return name_of(optimizer_names, MF_OPTIMIZER_COUNT, (unsigned)choice);
}

const char *mf_plan_activation_name(enum mf_activation choice)
{
    return name_of(activation_names, MF_ACTIVATION_COUNT, (unsigned)choice);
}

const char *mf_plan_strategy_name(enum mf_strategy strategy)
{
    return name_of(strategy_names, MF_STRATEGY_COUNT, (unsigned)strategy);
}

const char *mf_plan_purpose_name(enum mf_purpose purpose)
{
    return name_of(purpose_names, MF_PURPOSE_COUNT, (unsigned)purpose);
}

int mf_plan_parse_forward(const char *text)
{
    return index_of(forward_names, MF_WEIGHT_FORWARD_COUNT, text);
}

int mf_plan_parse_backward(const char *text)
{
    return index_of(backward_names, MF_WEIGHT_BACKWARD_COUNT, text);
}

int mf_plan_parse_gradient(const char *text)
{
    return index_of(gradient_names, MF_GRADIENT_COUNT, text);
}

int mf_plan_parse_optimizer(const char *text)
{
    return index_of(optimizer_names, MF_OPTIMIZER_COUNT, text);
}

int mf_plan_parse_activation(const char *text)
{
    return index_of(activation_names, MF_ACTIVATION_COUNT, text);
}

int mf_plan_parse_strategy(const char *text)
{
    return index_of(strategy_names, MF_STRATEGY_COUNT, text);
}
