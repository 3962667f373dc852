/* Choices within the user's pins: see solve_context.h. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solve_context.h"

enum field { FIELD_FORWARD, FIELD_BACKWARD, FIELD_GRADIENT, FIELD_OPTIMIZER, FIELD_COUNT };
static const char *const field_names[FIELD_COUNT] = {"forward", "backward", "gradient",
                                                     "optimizer"};
static const int field_counts[FIELD_COUNT] = {MF_WEIGHT_FORWARD_COUNT, MF_WEIGHT_BACKWARD_COUNT,
                                              MF_GRADIENT_COUNT, MF_OPTIMIZER_COUNT};

/* The wish for each field of one unit, -1 = none. */
struct wish {
    int choices[FIELD_COUNT];
};

static const char *choice_name(enum field field, int choice)
{
    switch (field) {
    case FIELD_FORWARD:
        return mf_plan_forward_name((enum mf_weight_forward)choice);
    case FIELD_BACKWARD:
        return mf_plan_backward_name((enum mf_weight_backward)choice);
    case FIELD_GRADIENT:
        return mf_plan_gradient_name((enum mf_gradient)choice);
    case FIELD_OPTIMIZER:
    case FIELD_COUNT:
        break;
    }
    return mf_plan_optimizer_name((enum mf_optimizer)choice);
}

static enum mf_status contradiction(const char *unit, enum field a, int a_choice, enum field b,
                                    int b_choice)
{
    return mf_status_set_reason(MF_STATUS_INVALID, "PINS_CONTRADICT",
                                "unit %s is pinned to %s %s and to %s %s, which exclude each other",
                                unit, field_names[a], choice_name(a, a_choice), field_names[b],
                                choice_name(b, b_choice));
}

static void read_pin(const struct mf_pin *pin, int out[static FIELD_COUNT])
{
    out[FIELD_FORWARD] = pin->forward;
    out[FIELD_BACKWARD] = pin->backward;
    out[FIELD_GRADIENT] = pin->gradient;
    out[FIELD_OPTIMIZER] = pin->optimizer;
}

/* Adds one pin to the wish of a unit, or of its owner for what an owner decides. */
static enum mf_status merge(const struct mf_model *model, int32_t unit, const int pin[],
                            struct wish *wishes)
{
    for (int field = 0; field < FIELD_COUNT; field++) {
        bool owners = field == FIELD_GRADIENT || field == FIELD_OPTIMIZER;
        int32_t target = owners ? model->units[unit].owner : unit;
        int *wish = &wishes[target].choices[field];
        if (pin[field] < 0) {
            continue;
        }
        if (pin[field] >= field_counts[field]) {
            return mf_status_set(MF_STATUS_INVALID, "%d is no choice for %s", pin[field],
                                 field_names[field]);
        }
        if (*wish >= 0 && *wish != pin[field]) {
            return contradiction(model->units[unit].name, (enum field)field, *wish,
                                 (enum field)field, pin[field]);
        }
        *wish = pin[field];
    }
    return MF_STATUS_OK;
}

static enum mf_status read_pins(struct mf_solve_context *context, struct wish *wishes)
{
    const struct mf_model *model = context->model;
    for (int32_t i = 0; i < context->request->pin_count; i++) {
        const struct mf_pin *pin = &context->request->pins[i];
        int choices[FIELD_COUNT];
        read_pin(pin, choices);
        int32_t matches = 0;
        for (int32_t unit = 0; unit < model->unit_count; unit++) {
            if (fnmatch(pin->pattern, model->units[unit].name, 0) == 0) {
                MF_TRY(merge(model, unit, choices, wishes));
                context->pinned[unit] = true;
                matches++;
            }
        }
        if (matches == 0) {
            return mf_status_set_reason(MF_STATUS_INVALID, "PIN_MATCHES_NOTHING",
                                        "the pin \"%s\" matches none of the %d units of %s",
                                        pin->pattern, model->unit_count, model->name);
        }
    }
    return MF_STATUS_OK;
}

static bool agrees(int wish, int choice)
{
    return wish < 0 || wish == choice;
}

static enum mf_status allow_unit(struct mf_solve_context *context, const struct wish *wish,
                                 int32_t unit)
{
    const char *name = context->model->units[unit].name;
    const int *choices = wish->choices;
    for (int i = 0; i < MF_WORK_WEIGHTS; i++) {
        if (agrees(choices[FIELD_FORWARD], (int)mf_work_weights[i].forward) &&
            agrees(choices[FIELD_BACKWARD], (int)mf_work_weights[i].backward)) {
            context->weights_allowed[unit] |= (uint8_t)(1u << i);
        }
    }
    for (int i = 0; i < MF_WORK_UPDATES; i++) {
        if (agrees(choices[FIELD_GRADIENT], (int)mf_work_updates[i].gradient) &&
            agrees(choices[FIELD_OPTIMIZER], (int)mf_work_updates[i].optimizer)) {
            context->updates_allowed[unit] |= (uint8_t)(1u << i);
        }
    }
    if (context->weights_allowed[unit] == 0) {
        return contradiction(name, FIELD_FORWARD, choices[FIELD_FORWARD], FIELD_BACKWARD,
                             choices[FIELD_BACKWARD]);
    }
    if (context->updates_allowed[unit] == 0) {
        return contradiction(name, FIELD_GRADIENT, choices[FIELD_GRADIENT], FIELD_OPTIMIZER,
                             choices[FIELD_OPTIMIZER]);
    }
    return MF_STATUS_OK;
}

/* Units that share parameters are all resident or none. */
static enum mf_status allow_tied(struct mf_solve_context *context, const struct wish *wishes)
{
    const struct mf_model *model = context->model;
    const uint8_t resident = 1u << MF_WORK_WEIGHT_RESIDENT;
    for (int32_t i = 0; i < model->unit_count; i++) {
        int32_t owner = model->units[i].owner;
        uint8_t *mine = &context->weights_allowed[i];
        uint8_t *owners = &context->weights_allowed[owner];
        if (owner == i) {
            continue;
        }
        bool can_be = (*mine & resident) != 0 && (*owners & resident) != 0;
        bool can_not = (*mine & ~resident) != 0 && (*owners & ~resident) != 0;
        if (!can_be && !can_not) {
            return mf_status_set_reason(
                MF_STATUS_INVALID, "PINS_CONTRADICT",
                "units %s and %s share their weights, but one is pinned to be resident and the "
                "other not: forward %s, forward %s",
                model->units[owner].name, model->units[i].name,
                wishes[owner].choices[FIELD_FORWARD] < 0
                    ? "any"
                    : choice_name(FIELD_FORWARD, wishes[owner].choices[FIELD_FORWARD]),
                wishes[i].choices[FIELD_FORWARD] < 0
                    ? "any"
                    : choice_name(FIELD_FORWARD, wishes[i].choices[FIELD_FORWARD]));
        }
        if (!can_be) {
            *mine &= (uint8_t)~resident;
            *owners &= (uint8_t)~resident;
        }
        if (!can_not) {
            *mine &= resident;
            *owners &= resident;
        }
    }
    return MF_STATUS_OK;
}

enum mf_status mf_solve_decide_open(struct mf_solve_context *context)
{
    size_t count = (size_t)context->model->unit_count + 1;
    context->weights_allowed = calloc(count, sizeof(*context->weights_allowed));
    context->updates_allowed = calloc(count, sizeof(*context->updates_allowed));
    context->pinned = calloc(count, sizeof(*context->pinned));
    context->tied = calloc(count, sizeof(*context->tied));
    struct wish *wishes = malloc(count * sizeof(*wishes));
    MF_ASSERT(context->weights_allowed != NULL && context->updates_allowed != NULL &&
              context->pinned != NULL && context->tied != NULL && wishes != NULL);
    for (int32_t i = 0; i < context->model->unit_count; i++) {
        int32_t owner = context->model->units[i].owner;
        context->tied[i] = context->tied[i] || owner != i;
        context->tied[owner] = context->tied[owner] || owner != i;
    }
    memset(wishes, 0xff, count * sizeof(*wishes)); /* -1 = no wish */
    enum mf_status status = MF_STATUS_OK;
    MF_TRY_GOTO(read_pins(context, wishes), out);
    for (int32_t i = 0; i < context->model->unit_count; i++) {
        MF_TRY_GOTO(allow_unit(context, &wishes[i], i), out);
    }
    status = allow_tied(context, wishes);
out:
    free(wishes);
    return status;
}

void mf_solve_decide_close(struct mf_solve_context *context)
{
    free(context->weights_allowed);
    free(context->updates_allowed);
    free(context->pinned);
    free(context->tied);
    context->weights_allowed = context->updates_allowed = NULL;
    context->pinned = context->tied = NULL;
}

/* The allowed choice nearest to `wanted`: itself, the same forward, the same backward, any. */
static int nearest_weight(uint8_t allowed, int wanted)
{
    int best = -1;
    int best_rank = 4;
    for (int i = 0; i < MF_WORK_WEIGHTS; i++) {
        bool forward = mf_work_weights[i].forward == mf_work_weights[wanted].forward;
        bool backward = mf_work_weights[i].backward == mf_work_weights[wanted].backward;
        int rank = i == wanted ? 0 : forward ? 1 : backward ? 2 : 3;
        if ((allowed >> i & 1) != 0 && rank < best_rank) {
            best = i;
            best_rank = rank;
        }
    }
    return best;
}

static int nearest_update(uint8_t allowed, int wanted)
{
    int best = -1;
    int best_rank = 4;
    for (int i = 0; i < MF_WORK_UPDATES; i++) {
        bool optimizer = mf_work_updates[i].optimizer == mf_work_updates[wanted].optimizer;
        bool gradient = mf_work_updates[i].gradient == mf_work_updates[wanted].gradient;
        int rank = i == wanted ? 0 : optimizer ? 1 : gradient ? 2 : 3;
        if ((allowed >> i & 1) != 0 && rank < best_rank) {
            best = i;
            best_rank = rank;
        }
    }
    return best;
}

static void set_weight(struct mf_plan *plan, int32_t unit, int choice)
{
    plan->units[unit].forward = mf_work_weights[choice].forward;
    plan->units[unit].backward = mf_work_weights[choice].backward;
}

static void set_update(struct mf_plan *plan, int32_t unit, int choice)
{
    plan->units[unit].gradient = mf_work_updates[choice].gradient;
    plan->units[unit].optimizer = mf_work_updates[choice].optimizer;
}

void mf_solve_decide_weight(const struct mf_solve_context *context, struct mf_plan *plan,
                            int32_t unit, int wanted)
{
    int choice = nearest_weight(context->weights_allowed[unit], wanted);
    set_weight(plan, unit, choice);
    bool resident = choice == MF_WORK_WEIGHT_RESIDENT;
    int32_t owner = context->model->units[unit].owner;
    for (int32_t i = 0; i < plan->unit_count && context->tied[unit]; i++) {
        bool is_resident = mf_solve_decide_weight_of(plan, i) == MF_WORK_WEIGHT_RESIDENT;
        if (context->model->units[i].owner == owner && i != unit && is_resident != resident) {
            uint8_t others =
                context->weights_allowed[i] & (uint8_t) ~(1u << MF_WORK_WEIGHT_RESIDENT);
            set_weight(plan, i,
                       resident ? MF_WORK_WEIGHT_RESIDENT : nearest_weight(others, choice));
        }
    }
}

void mf_solve_decide_update(const struct mf_solve_context *context, struct mf_plan *plan,
                            int32_t unit, int wanted)
{
    int32_t owner = context->model->units[unit].owner;
    int choice = nearest_update(context->updates_allowed[owner], wanted);
    set_update(plan, owner, choice);
    for (int32_t i = 0; i < plan->unit_count && context->tied[owner]; i++) {
        if (context->model->units[i].owner == owner) {
            set_update(plan, i, choice);
        }
    }
}

void mf_solve_decide_ring(struct mf_plan *plan, int32_t slots)
{
    bool streams = false;
    for (int32_t i = 0; i < plan->unit_count && !streams; i++) {
        const struct mf_unit_decision *decision = &plan->units[i];
        streams = (decision->forward == MF_WEIGHT_FORWARD_STREAM &&
                   decision->backward != MF_WEIGHT_BACKWARD_KEEP) ||
                  decision->backward == MF_WEIGHT_BACKWARD_STREAM;
    }
    slots = slots < MF_SOLVE_RING_MIN ? MF_SOLVE_RING_MIN : slots;
    slots = slots > MF_RING_SLOTS_MAX ? MF_RING_SLOTS_MAX : slots;
    plan->ring_slots = streams ? slots : 0;
}

int mf_solve_decide_weight_of(const struct mf_plan *plan, int32_t unit)
{
    int choice = mf_work_find_weight(plan->units[unit].forward, plan->units[unit].backward);
    MF_ASSERT(choice >= 0);
    return choice;
}

int mf_solve_decide_update_of(const struct mf_plan *plan, int32_t unit)
{
    int choice = mf_work_find_update(plan->units[unit].gradient, plan->units[unit].optimizer);
    MF_ASSERT(choice >= 0);
    return choice;
}

int32_t mf_solve_decide_layers(const struct mf_model *model)
{
    return model->block_count > 2 ? model->block_count - 2 : 0;
}

void mf_solve_decide_start(const struct mf_solve_context *context, struct mf_plan *out)
{
    mf_plan_init(context->model, &context->request->workload, out);
    out->constraints = context->request->constraints;
    out->strategy = context->request->strategy;
    for (int32_t i = 0; i < out->unit_count; i++) {
        mf_solve_decide_weight(context, out, i, MF_WORK_WEIGHT_RESIDENT);
        mf_solve_decide_update(context, out, i,
                               mf_work_find_update(MF_GRADIENT_DEVICE, MF_OPTIMIZER_GPU));
        out->units[i].pinned = context->pinned[i];
    }
    mf_solve_decide_ring(out, MF_SOLVE_RING_DEFAULT);
    /* With clipping no update can begin before the last gradient: all may as well run beside the
     * next forward. Without, each can follow its gradient. */
    out->deferred_blocks = context->request->workload.clip ? out->block_count : 0;
}
