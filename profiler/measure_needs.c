/* What a model needs measured: the distinct signatures of graphs that together use every choice of
 * the plan space. */
#include <stdlib.h>
#include <string.h>

#include "core/plan.h"
#include "planner/step.h"
#include "planner/work.h"
#include "profiler/measure.h"

#define RING_SLOTS 3

_Static_assert(MF_WORK_WEIGHTS == MF_WORK_UPDATES, "one plan for each pair of choices");

/* Plan `index`: every unit with one choice of weights and one of updates, every block but the
 * outer ones with one of activations. A kernel's signature depends on one of them alone. */
static void choose(const struct mf_model *model, int index, struct mf_plan *plan)
{
    bool resident = mf_work_weights[index].forward == MF_WEIGHT_FORWARD_RESIDENT;
    /* Resident weights are paired with the update on the device. */
    const struct mf_work_update_choice *update =
        &mf_work_updates[(index + mf_work_find_update(MF_GRADIENT_DEVICE, MF_OPTIMIZER_GPU)) %
                         MF_WORK_UPDATES];
    plan->ring_slots = resident ? 0 : RING_SLOTS;
    for (int32_t i = 0; i < model->unit_count; i++) {
        struct mf_unit_decision *unit = &plan->units[i];
        unit->forward = mf_work_weights[index].forward;
        unit->backward = mf_work_weights[index].backward;
        unit->gradient = update->gradient;
        unit->optimizer = update->optimizer;
    }
    for (int32_t b = 1; b + 1 < model->block_count; b++) {
        plan->activations[b] = (enum mf_activation)(index % MF_ACTIVATION_COUNT);
    }
}

static void collect(const struct mf_step *step, struct mf_profile *found)
{
    for (int32_t i = 0; i < step->task_count; i++) {
        const struct mf_task *task = &step->tasks[i];
        struct mf_measurement entry = {
            .signature = mf_profile_signature(task->lane, task->kernel, &task->shape)};
        if (mf_profile_find(found, &entry.signature) == NULL &&
            found->count < MF_PROFILE_ENTRIES_MAX) {
            mf_profile_put(found, &entry);
        }
    }
}

static enum mf_status collect_variant(const struct mf_model *model, const struct mf_plan *plan,
                                      enum mf_step_variant variant, struct mf_profile *found)
{
    struct mf_step_request request = mf_step_variant_request(plan, variant);
    struct mf_step step;
    MF_TRY(mf_step_build(model, plan, &request, &step));
    collect(&step, found);
    mf_step_reset(&step);
    return MF_STATUS_OK;
}

static enum mf_status collect_plan(const struct mf_model *model, const struct mf_workload *workload,
                                   int index, struct mf_profile *found)
{
    struct mf_plan plan;
    mf_plan_init(model, workload, &plan);
    choose(model, index, &plan);
    enum mf_status status = collect_variant(model, &plan, MF_STEP_FIRST_UPDATE, found);
    if (status == MF_STATUS_OK && workload->clip) {
        plan.speculate = true;
        status = collect_variant(model, &plan, MF_STEP_FIRST_UPDATE, found);
        plan.speculate = false;
    }
    if (status == MF_STATUS_OK && workload->accumulation > 1) {
        status = collect_variant(model, &plan, MF_STEP_LATER_UPDATE, found);
    }
    if (status == MF_STATUS_OK && model->executable) {
        status = collect_variant(model, &plan, MF_STEP_LOGITS, found);
    }
    mf_plan_reset(&plan);
    return status;
}

/* Cheap and rare first would leave the dear ones to the time cap: the heaviest first, since a
 * wrong guess costs most there. */
static int compare(const void *a, const void *b)
{
    const struct mf_signature *left = a;
    const struct mf_signature *right = b;
    double left_work = mf_kernel_flops(left->kernel, &left->shape) +
                       8 * mf_kernel_bytes(left->kernel, &left->shape);
    double right_work = mf_kernel_flops(right->kernel, &right->shape) +
                        8 * mf_kernel_bytes(right->kernel, &right->shape);
    if (left_work != right_work) {
        return left_work < right_work ? 1 : -1;
    }
    return memcmp(left, right, sizeof(*left));
}

enum mf_status mf_measure_needs(const struct mf_model *model, const struct mf_workload *workload,
                                struct mf_signature **out, int32_t *count)
{
    struct mf_profile found;
    *out = NULL;
    *count = 0;
    MF_TRY(mf_workload_validate(workload));
    mf_profile_init(&found);
    for (int index = 0; index < MF_WORK_WEIGHTS; index++) {
        enum mf_status status = collect_plan(model, workload, index, &found);
        if (status != MF_STATUS_OK) {
            mf_profile_reset(&found);
            return status;
        }
    }
    struct mf_signature *signatures = calloc((size_t)found.count + 1, sizeof(*signatures));
    MF_ASSERT(signatures != NULL);
    for (int32_t i = 0; i < found.count; i++) {
        signatures[i] = found.entries[i].signature;
    }
    qsort(signatures, (size_t)found.count, sizeof(*signatures), compare);
    *out = signatures;
    *count = found.count;
    mf_profile_reset(&found);
    return MF_STATUS_OK;
}
