/* Which decisions mean something together: mf_plan_validate of plan.h. */
#include "core/plan.h"

#include <string.h>

/* A weight that is kept has to be on the device, and a late copy only makes sense where the
 * forward had none. */
static const bool pairs[MF_WEIGHT_FORWARD_COUNT][MF_WEIGHT_BACKWARD_COUNT] = {
    [MF_WEIGHT_FORWARD_RESIDENT] = {[MF_WEIGHT_BACKWARD_KEEP] = true},
    [MF_WEIGHT_FORWARD_STREAM] = {[MF_WEIGHT_BACKWARD_KEEP] = true,
                                  [MF_WEIGHT_BACKWARD_STREAM] = true,
                                  [MF_WEIGHT_BACKWARD_DIRECT] = true},
    [MF_WEIGHT_FORWARD_DIRECT] = {[MF_WEIGHT_BACKWARD_STREAM] = true,
                                  [MF_WEIGHT_BACKWARD_DIRECT] = true,
                                  [MF_WEIGHT_BACKWARD_LATE] = true},
};

static enum mf_status check_for_model(const struct mf_plan *plan, const struct mf_model *model)
{
    if (plan->planner_version != MF_PLANNER_VERSION) {
        return mf_status_set(MF_STATUS_INVALID, "the plan is of planner version %d, this is %d",
                             (int)plan->planner_version, MF_PLANNER_VERSION);
    }
    if (strcmp(plan->model_fingerprint, model->fingerprint) != 0) {
        return mf_status_set(
            MF_STATUS_INVALID, "the plan is for the model %.12s (%s), this one is %.12s (%s)",
            plan->model_fingerprint, plan->model_name, model->fingerprint, model->name);
    }
    if (plan->unit_count != model->unit_count || plan->block_count != model->block_count) {
        return mf_status_set(MF_STATUS_INVALID,
                             "the plan has %d units and %d blocks, the model %d and %d",
                             (int)plan->unit_count, (int)plan->block_count, (int)model->unit_count,
                             (int)model->block_count);
    }
    MF_TRY(mf_workload_validate(&plan->workload));
    if (model->executable && plan->workload.seq_len > model->positions_max) {
        return mf_status_set(
            MF_STATUS_INVALID, "seq_len %d is above the %lld positions of the model %s",
            (int)plan->workload.seq_len, (long long)model->positions_max, model->name);
    }
    if (plan->constraints.device_bytes < 0 || plan->constraints.host_bytes < 0) {
        return mf_status_set(MF_STATUS_INVALID, "a budget is negative: device %lld, host %lld",
                             (long long)plan->constraints.device_bytes,
                             (long long)plan->constraints.host_bytes);
    }
    if ((unsigned)plan->strategy >= MF_STRATEGY_COUNT ||
        (plan->source != MF_PLAN_ESTIMATE && plan->source != MF_PLAN_MEASURED)) {
        return mf_status_set(MF_STATUS_INVALID, "strategy %d or source %d is not known",
                             (int)plan->strategy, (int)plan->source);
    }
    return MF_STATUS_OK;
}

static enum mf_status check_unit(const struct mf_unit_decision *unit, const char *name)
{
    if ((unsigned)unit->forward >= MF_WEIGHT_FORWARD_COUNT ||
        (unsigned)unit->backward >= MF_WEIGHT_BACKWARD_COUNT ||
        (unsigned)unit->gradient >= MF_GRADIENT_COUNT ||
        (unsigned)unit->optimizer >= MF_OPTIMIZER_COUNT) {
        return mf_status_set(MF_STATUS_INVALID, "unit %s: a choice is not known (%d %d %d %d)",
                             name, (int)unit->forward, (int)unit->backward, (int)unit->gradient,
                             (int)unit->optimizer);
    }
    if (!pairs[unit->forward][unit->backward]) {
        return mf_status_set(
            MF_STATUS_INVALID,
            "unit %s: weight \"%s\" in forward does not go with \"%s\" in backward", name,
            mf_plan_forward_name(unit->forward), mf_plan_backward_name(unit->backward));
    }
    if (unit->optimizer == MF_OPTIMIZER_GPU && unit->gradient != MF_GRADIENT_DEVICE) {
        return mf_status_set(MF_STATUS_INVALID,
                             "unit %s: optimizer \"gpu\" needs gradient \"device\", not \"%s\"",
                             name, mf_plan_gradient_name(unit->gradient));
    }
    if (memchr(unit->why, '\0', sizeof(unit->why)) == NULL) {
        return mf_status_set(MF_STATUS_INVALID, "unit %s: its reason has no end", name);
    }
    return MF_STATUS_OK;
}

/* Two uses of the same parameters: one gradient, one state, one home. */
static enum mf_status check_tie(const struct mf_unit_decision *unit, const char *name,
                                const struct mf_unit_decision *owner, const char *owner_name)
{
    if (unit->gradient != owner->gradient || unit->optimizer != owner->optimizer) {
        return mf_status_set(MF_STATUS_INVALID,
                             "unit %s is tied to %s but has gradient \"%s\" and optimizer \"%s\", "
                             "not \"%s\" and \"%s\"",
                             name, owner_name, mf_plan_gradient_name(unit->gradient),
                             mf_plan_optimizer_name(unit->optimizer),
                             mf_plan_gradient_name(owner->gradient),
                             mf_plan_optimizer_name(owner->optimizer));
    }
    if ((unit->forward == MF_WEIGHT_FORWARD_RESIDENT) !=
        (owner->forward == MF_WEIGHT_FORWARD_RESIDENT)) {
        return mf_status_set(MF_STATUS_INVALID,
                             "unit %s is tied to %s: both are resident or neither, not \"%s\" and "
                             "\"%s\"",
                             name, owner_name, mf_plan_forward_name(unit->forward),
                             mf_plan_forward_name(owner->forward));
    }
    return MF_STATUS_OK;
}

static bool uses_ring(const struct mf_unit_decision *unit)
{
    return unit->backward == MF_WEIGHT_BACKWARD_STREAM ||
           (unit->forward == MF_WEIGHT_FORWARD_STREAM && unit->backward != MF_WEIGHT_BACKWARD_KEEP);
}

static enum mf_status check_ring(const struct mf_plan *plan)
{
    bool used = false;
    for (int32_t i = 0; i < plan->unit_count && !used; i++) {
        used = uses_ring(&plan->units[i]);
    }
    bool fits = plan->ring_slots >= 2 && plan->ring_slots <= MF_RING_SLOTS_MAX;
    if (!fits && (used || plan->ring_slots != 0)) {
        return mf_status_set(MF_STATUS_INVALID, "the weight ring has %d slots: 2 to %d%s",
                             (int)plan->ring_slots, MF_RING_SLOTS_MAX,
                             used ? "" : ", or 0 as nothing streams");
    }
    return MF_STATUS_OK;
}

static enum mf_status check_activations(const struct mf_plan *plan)
{
    for (int32_t i = 0; i < plan->block_count; i++) {
        enum mf_activation choice = plan->activations[i];
        if ((unsigned)choice >= MF_ACTIVATION_COUNT) {
            return mf_status_set(MF_STATUS_INVALID, "block %d: activation choice %d is not known",
                                 (int)i, (int)choice);
        }
        bool edge = i == 0 || i == plan->block_count - 1;
        if (edge && choice != MF_ACTIVATION_KEEP) {
            return mf_status_set(MF_STATUS_INVALID,
                                 "block %d: activations of the first and last block are \"keep\", "
                                 "not \"%s\"",
                                 (int)i, mf_plan_activation_name(choice));
        }
    }
    return MF_STATUS_OK;
}

enum mf_status mf_plan_validate(const struct mf_plan *plan, const struct mf_model *model)
{
    MF_TRY(check_for_model(plan, model));
    for (int32_t i = 0; i < plan->unit_count; i++) {
        MF_TRY(check_unit(&plan->units[i], model->units[i].name));
    }
    for (int32_t i = 0; i < plan->unit_count; i++) {
        int32_t owner = model->units[i].owner;
        MF_TRY(check_tie(&plan->units[i], model->units[i].name, &plan->units[owner],
                         model->units[owner].name));
    }
    MF_TRY(check_ring(plan));
    if (plan->deferred_blocks < 0 || plan->deferred_blocks > plan->block_count) {
        return mf_status_set(MF_STATUS_INVALID, "%d deferred blocks: the model has %d blocks",
                             (int)plan->deferred_blocks, (int)plan->block_count);
    }
    if (plan->speculate && !plan->workload.clip) {
        return mf_status_set(MF_STATUS_INVALID,
                             "speculate: without clipping no update waits for the norm");
    }
    return check_activations(plan);
}
