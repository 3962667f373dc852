/*
 * The named strategies, and how a plan that does not fit is made smaller: see solve_context.h.
 * docs/PLANS.md lists both for the user.
 */
#include <string.h>

#include "planner/solve_context.h"

/* Guesses of a bisection before a near miss is good enough. */
#define ROUNDS_MAX 4

struct choices {
    int weight;
    int update;
};

static void set_all(const struct mf_solve_context *context, struct mf_plan *plan, int weight,
                    int update)
{
    for (int32_t i = 0; i < plan->unit_count; i++) {
        mf_solve_decide_weight(context, plan, i, weight);
        mf_solve_decide_update(context, plan, i, update);
    }
}

static void set_activations(struct mf_plan *plan, int32_t count, enum mf_activation choice)
{
    for (int32_t i = 1; i <= count; i++) {
        plan->activations[i] = choice;
    }
}

static enum mf_status score(struct mf_solve_context *context, const struct mf_plan *plan,
                            struct mf_solve_score *out)
{
    return mf_solve_score_plan(context, plan, out);
}

/*
 * Rungs of the ladder down. Each is applied to the first `count` of its things; they add up, and
 * only the last one needed is applied in part.
 */

/* Copies of weights that stay from forward to backward are made twice instead, first ones first:
 * their copies would stay longest. */
static int32_t reload_count(const struct mf_plan *plan)
{
    return plan->unit_count;
}
static void reload(const struct mf_solve_context *context, struct mf_plan *plan, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        struct mf_unit_decision *decision = &plan->units[i];
        if (decision->forward == MF_WEIGHT_FORWARD_STREAM &&
            decision->backward == MF_WEIGHT_BACKWARD_KEEP) {
            mf_solve_decide_weight(
                context, plan, i,
                mf_work_find_weight(MF_WEIGHT_FORWARD_STREAM, MF_WEIGHT_BACKWARD_STREAM));
        }
    }
}

/* The gradients that wait on the device for a CPU update go to the host at once. */
static void deliver(const struct mf_solve_context *context, struct mf_plan *plan, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        struct mf_unit_decision *decision = &plan->units[i];
        if (decision->gradient == MF_GRADIENT_DEVICE && decision->optimizer == MF_OPTIMIZER_CPU) {
            mf_solve_decide_update(context, plan, i,
                                   mf_work_find_update(MF_GRADIENT_COPY, MF_OPTIMIZER_CPU));
        }
    }
}

static int32_t layer_count(const struct mf_plan *plan)
{
    return plan->block_count > 2 ? plan->block_count - 2 : 0;
}
static void recompute(const struct mf_solve_context *context, struct mf_plan *plan, int32_t count)
{
    (void)context;
    set_activations(plan, count, MF_ACTIVATION_RECOMPUTE);
}
static void offload(const struct mf_solve_context *context, struct mf_plan *plan, int32_t count)
{
    (void)context;
    set_activations(plan, count, MF_ACTIVATION_OFFLOAD);
}

static int32_t one(const struct mf_plan *plan)
{
    (void)plan;
    return 1;
}
static void shorten_ring(const struct mf_solve_context *context, struct mf_plan *plan,
                         int32_t count)
{
    (void)context;
    mf_solve_decide_ring(plan, count > 0 ? MF_SOLVE_RING_MIN : plan->ring_slots);
}

static const struct {
    int32_t (*count)(const struct mf_plan *);
    void (*apply)(const struct mf_solve_context *, struct mf_plan *, int32_t);
} rungs[] = {
    {reload_count, reload}, {reload_count, deliver}, {layer_count, recompute},
    {one, shorten_ring},    {layer_count, offload},
};

static void apply(const struct mf_solve_context *context, const struct mf_plan *from, size_t rung,
                  int32_t count, struct mf_plan *out)
{
    int32_t slots = from->ring_slots > 0 ? from->ring_slots : MF_SOLVE_RING_DEFAULT;
    mf_plan_copy(from, out);
    rungs[rung].apply(context, out, count);
    mf_solve_decide_ring(out, rungs[rung].apply == shorten_ring ? out->ring_slots : slots);
}

/* Where the line from `low`'s bytes to `high`'s crosses the budget; between the two. */
static int32_t guess(const struct mf_solve_context *context, int32_t low, int64_t low_bytes,
                     int32_t high, int64_t high_bytes)
{
    int64_t over = low_bytes - context->budget[MF_SPACE_DEVICE];
    int64_t saves = low_bytes - high_bytes;
    double share = saves > 0 ? (double)over / (double)saves : 0.5;
    int32_t at = low + 1 + (int32_t)((double)(high - low) * share);
    at = at <= low ? low + 1 : at;
    return at >= high ? high - 1 : at;
}

/* The smallest count of one rung that makes `plan` fit, in (0, high]; `plan` has all of it. */
static enum mf_status bisect(struct mf_solve_context *context, const struct mf_plan *from,
                             int64_t from_bytes, size_t rung, int32_t high, struct mf_plan *plan,
                             struct mf_solve_score *out)
{
    int32_t low = 0;
    for (int round = 0; high - low > 1; round++) {
        /* Bytes are nearly a line in the count; every other guess halves, in case they are not. */
        int32_t middle = round % 3 != 2
                             ? guess(context, low, from_bytes, high, out->bytes[MF_SPACE_DEVICE])
                             : low + (high - low) / 2;
        struct mf_plan trial;
        struct mf_solve_score got;
        apply(context, from, rung, middle, &trial);
        enum mf_status status = score(context, &trial, &got);
        if (status == MF_STATUS_OK && got.fits) {
            mf_plan_reset(plan);
            *plan = trial;
            *out = got;
            high = middle;
        } else {
            mf_plan_reset(&trial);
            MF_TRY(status);
            low = middle;
            from_bytes = got.bytes[MF_SPACE_DEVICE];
        }
        /* A layer more or less is not worth many builds of a big graph. */
        if (round >= ROUNDS_MAX && high - low <= high / 16) {
            break;
        }
    }
    return MF_STATUS_OK;
}

static enum mf_status descend(struct mf_solve_context *context, struct mf_plan *plan,
                              struct mf_solve_score *out)
{
    MF_TRY(score(context, plan, out));
    for (size_t rung = 0; rung < sizeof(rungs) / sizeof(rungs[0]) && !out->fits; rung++) {
        struct mf_plan whole;
        struct mf_solve_score got;
        int32_t count = rungs[rung].count(plan);
        apply(context, plan, rung, count, &whole);
        enum mf_status status = score(context, &whole, &got);
        if (status != MF_STATUS_OK) {
            mf_plan_reset(&whole);
            return status;
        }
        if (!got.fits && got.bytes[MF_SPACE_DEVICE] >= out->bytes[MF_SPACE_DEVICE]) {
            mf_plan_reset(&whole); /* no help */
            continue;
        }
        struct mf_plan from = *plan;
        int64_t from_bytes = out->bytes[MF_SPACE_DEVICE];
        *plan = whole;
        *out = got;
        if (got.fits) {
            status = bisect(context, &from, from_bytes, rung, count, plan, out);
        }
        mf_plan_reset(&from);
        MF_TRY(status);
    }
    return MF_STATUS_OK;
}

/* A plan that only seemed to fit is made smaller again, for a budget that much smaller. */
enum mf_status mf_solve_strategy_shrink(struct mf_solve_context *context, struct mf_plan *plan,
                                        struct mf_solve_score *out)
{
    int64_t budget[MF_SPACE_COUNT];
    memcpy(budget, context->budget, sizeof(budget));
    struct mf_plan whole;
    mf_plan_copy(plan, &whole);
    enum mf_status status = MF_STATUS_OK;
    for (int attempt = 0; attempt < 3; attempt++) {
        if (attempt > 0) {
            mf_plan_reset(plan);
            mf_plan_copy(&whole, plan);
        }
        status = descend(context, plan, out);
        bool fits = status == MF_STATUS_OK && out->fits;
        int64_t tried[MF_SPACE_COUNT];
        memcpy(tried, context->budget, sizeof(tried));
        memcpy(context->budget, budget, sizeof(budget));
        if (fits) {
            status = mf_solve_score_verify(context, plan, out);
        }
        if (!fits || status != MF_STATUS_OK || out->fits) {
            break;
        }
        for (int space = 0; space < MF_SPACE_COUNT; space++) {
            int64_t over = out->bytes[space] - budget[space];
            context->budget[space] = tried[space] - (over > 0 ? over : 0);
        }
    }
    memcpy(context->budget, budget, sizeof(budget));
    mf_plan_reset(&whole);
    return status;
}

static enum mf_status build_uniform(struct mf_solve_context *context, struct choices choices,
                                    struct mf_plan *plan, struct mf_solve_score *out)
{
    set_all(context, plan, choices.weight, choices.update);
    mf_solve_decide_ring(plan, MF_SOLVE_RING_DEFAULT);
    return mf_solve_strategy_shrink(context, plan, out);
}

static enum mf_status build_resident(struct mf_solve_context *context, struct mf_plan *plan,
                                     struct mf_solve_score *out)
{
    struct choices choices = {MF_WORK_WEIGHT_RESIDENT,
                              mf_work_find_update(MF_GRADIENT_DEVICE, MF_OPTIMIZER_GPU)};
    return build_uniform(context, choices, plan, out);
}

static enum mf_status build_stream(struct mf_solve_context *context, struct mf_plan *plan,
                                   struct mf_solve_score *out)
{
    struct choices choices = {
        mf_work_find_weight(MF_WEIGHT_FORWARD_STREAM, MF_WEIGHT_BACKWARD_STREAM),
        mf_work_find_update(MF_GRADIENT_COPY, MF_OPTIMIZER_CPU)};
    return build_uniform(context, choices, plan, out);
}

static enum mf_status build_zero_offload(struct mf_solve_context *context, struct mf_plan *plan,
                                         struct mf_solve_score *out)
{
    struct choices choices = {MF_WORK_WEIGHT_RESIDENT,
                              mf_work_find_update(MF_GRADIENT_COPY, MF_OPTIMIZER_CPU)};
    return build_uniform(context, choices, plan, out);
}

/* The paper's forward and reload, then its program over gradients for several reserve factors:
 * the fastest plan that fits. */
static enum mf_status build_memferry(struct mf_solve_context *context, struct mf_plan *plan,
                                     struct mf_solve_score *out)
{
    static const double reserve_factors[] = {1, 0.5, 0.25, 0};
    bool have = false;
    for (size_t i = 0; i < sizeof(reserve_factors) / sizeof(reserve_factors[0]); i++) {
        struct mf_plan trial;
        struct mf_solve_score got;
        mf_plan_copy(plan, &trial);
        mf_solve_ferry_weights(context, &trial);
        mf_solve_ferry_gradients(context, &trial, reserve_factors[i]);
        mf_solve_decide_ring(&trial, MF_SOLVE_RING_DEFAULT);
        enum mf_status status = mf_solve_strategy_shrink(context, &trial, &got);
        if (status != MF_STATUS_OK) {
            mf_plan_reset(&trial);
            return status;
        }
        bool better = !have || (got.fits && (!out->fits || got.ns < out->ns));
        if (better) {
            mf_plan_reset(plan);
            *plan = trial;
            *out = got;
            have = true;
        } else {
            mf_plan_reset(&trial);
        }
    }
    return MF_STATUS_OK;
}

static enum mf_status (*const strategies[MF_STRATEGY_COUNT])(struct mf_solve_context *,
                                                             struct mf_plan *,
                                                             struct mf_solve_score *) = {
    [MF_STRATEGY_AUTO] = mf_solve_search,    [MF_STRATEGY_RESIDENT] = build_resident,
    [MF_STRATEGY_STREAM] = build_stream,     [MF_STRATEGY_ZERO_OFFLOAD] = build_zero_offload,
    [MF_STRATEGY_MEMFERRY] = build_memferry,
};

enum mf_status mf_solve_strategy_build(struct mf_solve_context *context, enum mf_strategy strategy,
                                       struct mf_plan *plan, struct mf_solve_score *out)
{
    /* In the schedules of others a step ends with its update. */
    bool defers = strategy == MF_STRATEGY_AUTO || strategy == MF_STRATEGY_STREAM;
    plan->deferred_blocks = defers ? plan->deferred_blocks : 0;
    return strategies[strategy](context, plan, out);
}

enum mf_status mf_solve_strategy_frugal(struct mf_solve_context *context, struct mf_plan *plan,
                                        struct mf_solve_score *out)
{
    static const enum mf_activation activations[] = {MF_ACTIVATION_RECOMPUTE, MF_ACTIVATION_OFFLOAD,
                                                     MF_ACTIVATION_KEEP};
    set_all(context, plan, mf_work_find_weight(MF_WEIGHT_FORWARD_DIRECT, MF_WEIGHT_BACKWARD_DIRECT),
            mf_work_find_update(MF_GRADIENT_DIRECT, MF_OPTIMIZER_CPU));
    mf_solve_decide_ring(plan, MF_SOLVE_RING_MIN);
    enum mf_activation best = MF_ACTIVATION_KEEP;
    bool have = false;
    for (size_t i = 0; i < sizeof(activations) / sizeof(activations[0]); i++) {
        struct mf_solve_score got;
        set_activations(plan, layer_count(plan), activations[i]);
        MF_TRY(score(context, plan, &got));
        if (!have || got.bytes[MF_SPACE_DEVICE] < out->bytes[MF_SPACE_DEVICE]) {
            best = activations[i];
            *out = got;
            have = true;
        }
    }
    set_activations(plan, layer_count(plan), best);
    return MF_STATUS_OK;
}
