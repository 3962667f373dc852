/* Random valid plans for tests: see mf_solve_random in solve.h. */
#include "planner/solve.h"
#include "planner/work.h"

/* splitmix64: small, and good enough to reach every choice. */
static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static int below(uint64_t *state, int limit)
{
    return (int)(next(state) % (uint64_t)limit);
}

static void decide_weight(uint64_t *state, struct mf_unit_decision *decision, bool resident)
{
    /* The first choice is the resident one. */
    int choice = resident ? MF_WORK_WEIGHT_RESIDENT : 1 + below(state, MF_WORK_WEIGHTS - 1);
    decision->forward = mf_work_weights[choice].forward;
    decision->backward = mf_work_weights[choice].backward;
}

void mf_solve_random(const struct mf_model *model, const struct mf_workload *workload,
                     uint64_t seed, struct mf_plan *out)
{
    uint64_t state = seed;
    mf_plan_init(model, workload, out);
    for (int32_t i = 0; i < model->unit_count; i++) {
        const struct mf_work_update_choice *update =
            &mf_work_updates[below(&state, MF_WORK_UPDATES)];
        out->units[i].gradient = update->gradient;
        out->units[i].optimizer = update->optimizer;
        decide_weight(&state, &out->units[i], below(&state, MF_WORK_WEIGHTS) == 0);
    }
    for (int32_t i = 0; i < model->unit_count; i++) {
        const struct mf_unit_decision *owner = &out->units[model->units[i].owner];
        struct mf_unit_decision *decision = &out->units[i];
        bool resident = owner->forward == MF_WEIGHT_FORWARD_RESIDENT;
        decision->gradient = owner->gradient;
        decision->optimizer = owner->optimizer;
        if (resident != (decision->forward == MF_WEIGHT_FORWARD_RESIDENT)) {
            decide_weight(&state, decision, resident);
        }
    }
    for (int32_t i = 1; i + 1 < model->block_count; i++) {
        out->activations[i] = (enum mf_activation)below(&state, MF_ACTIVATION_COUNT);
    }
    for (int32_t i = 0; i < model->unit_count; i++) {
        const struct mf_unit_decision *decision = &out->units[i];
        if (decision->backward == MF_WEIGHT_BACKWARD_STREAM ||
            (decision->forward == MF_WEIGHT_FORWARD_STREAM &&
             decision->backward != MF_WEIGHT_BACKWARD_KEEP)) {
            out->ring_slots = 2;
        }
    }
    if (out->ring_slots > 0) {
        out->ring_slots += below(&state, 7);
    }
    out->deferred_blocks = below(&state, model->block_count + 1);
    out->speculate = workload->clip && below(&state, 2) == 1;
}
