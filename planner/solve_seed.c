/*
 * Seeds of the search: see solve_seed.h.
 *
 * A seed begins with a base that holds almost nothing on the device, then spends memory on
 * activations, weights and optimizer state in one of their six orders.
 */
#include "planner/solve_seed.h"

/* What device memory can be spent on. */
enum spend { SPEND_ACTIVATION, SPEND_WEIGHT, SPEND_STATE, SPEND_COUNT };

static const enum spend orders[][SPEND_COUNT] = {
    {SPEND_ACTIVATION, SPEND_WEIGHT, SPEND_STATE}, {SPEND_WEIGHT, SPEND_ACTIVATION, SPEND_STATE},
    {SPEND_WEIGHT, SPEND_STATE, SPEND_ACTIVATION}, {SPEND_STATE, SPEND_WEIGHT, SPEND_ACTIVATION},
    {SPEND_STATE, SPEND_ACTIVATION, SPEND_WEIGHT}, {SPEND_ACTIVATION, SPEND_STATE, SPEND_WEIGHT},
};
#define ORDER_COUNT ((int32_t)(sizeof(orders) / sizeof(orders[0])))
_Static_assert(sizeof(orders) / sizeof(orders[0]) == MF_SOLVE_SEED_ORDERS, "orders of a seed");

/* Bases: how gradients and updates go, and every how many-th owner is updated by the GPU with its
 * state passing through (0 = none). */
static const struct {
    enum mf_gradient gradient;
    int32_t every;
    bool keep; /* streamed copies stay for the backward, as far as memory goes */
    enum mf_activation activation;
} bases[] = {
    {MF_GRADIENT_COPY, 0, false, MF_ACTIVATION_RECOMPUTE},
    {MF_GRADIENT_COPY, 2, false, MF_ACTIVATION_RECOMPUTE},
    {MF_GRADIENT_DIRECT, 0, false, MF_ACTIVATION_RECOMPUTE},
    {MF_GRADIENT_COPY, 1, false, MF_ACTIVATION_RECOMPUTE},
    {MF_GRADIENT_COPY, 3, false, MF_ACTIVATION_RECOMPUTE},
    {MF_GRADIENT_COPY, 5, false, MF_ACTIVATION_RECOMPUTE},
    {MF_GRADIENT_COPY, 0, false, MF_ACTIVATION_OFFLOAD},
    {MF_GRADIENT_COPY, 0, true, MF_ACTIVATION_RECOMPUTE},
};
#define BASE_COUNT ((int32_t)(sizeof(bases) / sizeof(bases[0])))

struct purse {
    const struct mf_solve_context *context;
    struct mf_plan *plan;
    int64_t left;
};

/* Tables and vectors: a copy of them costs more than reading what is needed in place. */
static bool reads_little(enum mf_unit_kind kind)
{
    return kind == MF_UNIT_EMBEDDING || kind == MF_UNIT_POSITION || kind == MF_UNIT_NORM;
}

static void build_base(const struct mf_solve_context *context, int32_t base, struct mf_plan *plan)
{
    int direct = mf_work_find_weight(MF_WEIGHT_FORWARD_DIRECT, MF_WEIGHT_BACKWARD_DIRECT);
    int stream = mf_work_find_weight(MF_WEIGHT_FORWARD_STREAM, MF_WEIGHT_BACKWARD_STREAM);
    enum mf_gradient gradient = bases[base].gradient;
    int32_t owners = 0;
    for (int32_t i = 0; i < plan->unit_count; i++) {
        const struct mf_unit *unit = &context->model->units[i];
        mf_solve_decide_weight(context, plan, i, reads_little(unit->kind) ? direct : stream);
        if (unit->owner != i) {
            continue;
        }
        bool passes = bases[base].every > 0 && owners++ % bases[base].every == 0;
        /* A gradient that leaves the device and comes back makes the kernels behind it wait. */
        mf_solve_decide_update(
            context, plan, i,
            passes ? mf_work_find_update(MF_GRADIENT_DEVICE, MF_OPTIMIZER_GPU_STREAM)
                   : mf_work_find_update(gradient, MF_OPTIMIZER_CPU));
    }
    for (int32_t i = 1; i <= mf_solve_decide_layers(context->model); i++) {
        plan->activations[i] = bases[base].activation;
    }
}

static void spend_activations(struct purse *purse)
{
    const struct mf_work_block *blocks = purse->context->work.blocks;
    for (int32_t i = mf_solve_decide_layers(purse->context->model); i >= 1; i--) {
        if (blocks[i].kept_bytes <= purse->left) {
            purse->plan->activations[i] = MF_ACTIVATION_KEEP;
            purse->left -= blocks[i].kept_bytes;
        }
    }
}

/* Device bytes of a unit's weights and, if it owns them, gradient and state. */
static int64_t held(const struct purse *purse, int32_t index)
{
    const struct mf_work_unit *work = &purse->context->work.units[index];
    int64_t bytes = work->weight_bytes[mf_solve_decide_weight_of(purse->plan, index)];
    if (purse->context->model->units[index].owner == index) {
        bytes += work->update_bytes[mf_solve_decide_update_of(purse->plan, index)];
    }
    return bytes;
}

static void spend_units(struct purse *purse, bool state)
{
    int resident_update = mf_work_find_update(MF_GRADIENT_DEVICE, MF_OPTIMIZER_GPU);
    for (int32_t i = 0; i < purse->plan->unit_count; i++) {
        struct mf_unit_decision before = purse->plan->units[i];
        if (purse->context->model->units[i].owner != i) {
            continue;
        }
        int weight = mf_solve_decide_weight_of(purse->plan, i);
        int update = mf_solve_decide_update_of(purse->plan, i);
        int64_t had = held(purse, i);
        if (state) {
            mf_solve_decide_update(purse->context, purse->plan, i, resident_update);
        } else {
            mf_solve_decide_weight(purse->context, purse->plan, i, MF_WORK_WEIGHT_RESIDENT);
        }
        int64_t more = held(purse, i) - had;
        if (more <= purse->left) {
            purse->left -= more;
            continue;
        }
        mf_solve_decide_weight(purse->context, purse->plan, i, weight);
        mf_solve_decide_update(purse->context, purse->plan, i, update);
        purse->plan->units[i] = before;
    }
}

/* From the last unit on: its copy is needed again soonest. */
static void spend_copies(struct purse *purse)
{
    int keep = mf_work_find_weight(MF_WEIGHT_FORWARD_STREAM, MF_WEIGHT_BACKWARD_KEEP);
    for (int32_t i = purse->plan->unit_count - 1; i >= 0; i--) {
        int64_t bytes = purse->context->work.units[i].weight_bytes[keep];
        if (purse->plan->units[i].forward == MF_WEIGHT_FORWARD_STREAM && bytes > 0 &&
            bytes <= purse->left) {
            mf_solve_decide_weight(purse->context, purse->plan, i, keep);
            purse->left -= bytes;
        }
    }
}

static struct purse open_purse(const struct mf_solve_context *context, int64_t limit_bytes,
                               struct mf_plan *plan)
{
    struct mf_work_lanes lanes;
    int64_t used = 0;
    mf_work_plan(&context->work, context->model, plan, &lanes, &used);
    return (struct purse){.context = context, .plan = plan, .left = limit_bytes - used};
}

static void spend(const struct mf_solve_context *context, int32_t order, int64_t limit_bytes,
                  struct mf_plan *plan)
{
    struct purse purse = open_purse(context, limit_bytes, plan);
    for (int i = 0; i < SPEND_COUNT; i++) {
        switch (orders[order][i]) {
        case SPEND_ACTIVATION:
            spend_activations(&purse);
            break;
        case SPEND_WEIGHT:
        case SPEND_STATE:
            spend_units(&purse, orders[order][i] == SPEND_STATE);
            break;
        case SPEND_COUNT:
            break;
        }
    }
}

void mf_solve_seed_fill(const struct mf_solve_context *context, int use, int64_t limit_bytes,
                        struct mf_plan *plan)
{
    static const int32_t first_orders[MF_SOLVE_SEED_FILLS] = {0, 2, 3};
    int32_t slots = plan->ring_slots;
    spend(context, first_orders[use], limit_bytes, plan);
    mf_solve_decide_ring(plan, slots > 0 ? slots : MF_SOLVE_RING_DEFAULT);
}

int32_t mf_solve_seed_count(void)
{
    return ORDER_COUNT * BASE_COUNT;
}

void mf_solve_seed_build(const struct mf_solve_context *context, int32_t index, int64_t limit_bytes,
                         struct mf_plan *out)
{
    mf_solve_decide_start(context, out);
    build_base(context, index / ORDER_COUNT, out);
    spend(context, index % ORDER_COUNT, limit_bytes, out);
    if (bases[index / ORDER_COUNT].keep) {
        struct purse purse = open_purse(context, limit_bytes, out);
        spend_copies(&purse);
    }
    mf_solve_decide_ring(out, MF_SOLVE_RING_DEFAULT);
}

/* Gives up what unit `index` holds in one way. */
static void release_unit(const struct mf_solve_context *context, struct mf_plan *plan,
                         int32_t index, bool state)
{
    bool resident = plan->units[index].forward == MF_WEIGHT_FORWARD_RESIDENT;
    if (state && plan->units[index].optimizer == MF_OPTIMIZER_GPU) {
        mf_solve_decide_update(context, plan, index,
                               mf_work_find_update(MF_GRADIENT_COPY, MF_OPTIMIZER_CPU));
    } else if (!state && resident) {
        mf_solve_decide_weight(
            context, plan, index,
            mf_work_find_weight(MF_WEIGHT_FORWARD_STREAM, MF_WEIGHT_BACKWARD_STREAM));
    }
}

/* What was spent, and behind that the ring. */
int mf_solve_seed_release_count(void)
{
    return SPEND_COUNT + 1;
}

bool mf_solve_seed_release(const struct mf_solve_context *context, int way, int64_t bytes,
                           struct mf_plan *plan)
{
    int32_t slots = plan->ring_slots > 0 ? plan->ring_slots : MF_SOLVE_RING_DEFAULT;
    struct purse purse = {.context = context, .plan = plan};
    if (way == SPEND_COUNT) {
        bool cut = plan->ring_slots > MF_SOLVE_RING_MIN;
        mf_solve_decide_ring(plan, MF_SOLVE_RING_MIN);
        return cut;
    }
    if (way == SPEND_ACTIVATION) {
        for (int32_t i = mf_solve_decide_layers(context->model); i >= 1 && bytes > 0; i--) {
            if (plan->activations[i] == MF_ACTIVATION_KEEP) {
                plan->activations[i] = MF_ACTIVATION_RECOMPUTE;
                bytes -= context->work.blocks[i].kept_bytes;
            }
        }
        return bytes <= 0;
    }
    for (int32_t i = plan->unit_count - 1; i >= 0 && bytes > 0; i--) {
        if (context->model->units[i].owner == i) {
            int64_t had = held(&purse, i);
            release_unit(context, plan, i, way == SPEND_STATE);
            bytes -= had - held(&purse, i);
        }
    }
    mf_solve_decide_ring(plan, slots);
    return bytes <= 0;
}
