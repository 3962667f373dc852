/*
 * The strategy `auto`: the named strategies and the seeds, then local search. See solve_context.h.
 *
 * A candidate is first looked at through its lane totals (work.h): one whose busiest lane alone
 * takes as long as the best plan, or whose buffers alone are too much, is never built. The others
 * are tried in the order of that estimate.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solve_move.h"
#include "planner/solve_seed.h"

/* A plan must be this much faster to replace another, so that ties keep the simpler one. */
#define BETTER 0.9995
/* Share of the evaluations that seeds may take. */
#define SEED_SHARE 2
/* Rounds of the walk, how much slower a step of it may be at first, and how many steps are looked
 * at for each plan that can be built. */
#define ROUNDS 3
#define SLACK_MAX 0.06
#define STEPS_PER_EVALUATION 8
/* Moves that are ranked for each that can be tried. */
#define MOVES_PER_EVALUATION 8

struct best {
    struct mf_plan plan;
    struct mf_solve_score score;
    bool have;
};

/* Takes `plan` (its ownership too) when it is better. */
static enum mf_status offer(struct mf_solve_context *context, struct best *best,
                            struct mf_plan *plan, struct mf_solve_score *score)
{
    enum mf_status status = MF_STATUS_OK;
    bool better = score->fits && (!best->have || score->ns < best->score.ns * BETTER);
    if (better) {
        status = mf_solve_score_verify(context, plan, score);
    }
    if (better && status == MF_STATUS_OK && score->fits) {
        if (best->have) {
            mf_plan_reset(&best->plan);
        }
        best->plan = *plan;
        best->score = *score;
        best->have = true;
    } else {
        mf_plan_reset(plan);
    }
    return status;
}

/* The busiest lane, and the bytes that are certain. */
static double estimate(const struct mf_solve_context *context, const struct mf_plan *plan,
                       int64_t *bytes)
{
    struct mf_work_lanes lanes;
    mf_work_plan(&context->work, context->model, plan, &lanes, bytes);
    double busiest = 0;
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        busiest = fmax(busiest, lanes.ns[lane]);
    }
    return busiest;
}

static enum mf_status try_strategies(struct mf_solve_context *context, struct best *best)
{
    for (int i = 0; i < MF_STRATEGY_COUNT; i++) {
        struct mf_plan plan;
        struct mf_solve_score score;
        if (i == MF_STRATEGY_AUTO) {
            continue;
        }
        mf_solve_decide_start(context, &plan);
        enum mf_status status =
            mf_solve_strategy_build(context, (enum mf_strategy)i, &plan, &score);
        if (status != MF_STATUS_OK) {
            mf_plan_reset(&plan);
            return status;
        }
        MF_TRY(offer(context, best, &plan, &score));
    }
    return MF_STATUS_OK;
}

/* What a plan needs beyond what mf_work_plan counts: rings and working space. */
static enum mf_status try_frugal(struct mf_solve_context *context, struct best *best,
                                 int64_t *overhead)
{
    struct mf_plan plan;
    struct mf_solve_score score;
    int64_t counted = 0;
    mf_solve_decide_start(context, &plan);
    enum mf_status status = mf_solve_strategy_frugal(context, &plan, &score);
    if (status != MF_STATUS_OK) {
        mf_plan_reset(&plan);
        return status;
    }
    (void)estimate(context, &plan, &counted);
    *overhead = score.bytes[MF_SPACE_DEVICE] - counted;
    return offer(context, best, &plan, &score);
}

/* Builds a seed smaller until it fits: what it needs beyond the count is known after a build. */
static enum mf_status try_seed(struct mf_solve_context *context, int32_t index, int64_t overhead,
                               struct best *best)
{
    int64_t limit = context->budget[MF_SPACE_DEVICE] - overhead;
    for (int attempt = 0; attempt < 3 && limit > 0; attempt++) {
        struct mf_plan plan;
        struct mf_solve_score score;
        mf_solve_seed_build(context, index, limit, &plan);
        enum mf_status status = mf_solve_score_plan(context, &plan, &score);
        if (status != MF_STATUS_OK) {
            mf_plan_reset(&plan);
            return status;
        }
        int64_t over = score.bytes[MF_SPACE_DEVICE] - context->budget[MF_SPACE_DEVICE];
        bool host_fits = score.bytes[MF_SPACE_HOST] <= context->budget[MF_SPACE_HOST];
        MF_TRY(offer(context, best, &plan, &score));
        if (over <= 0 || !host_fits) {
            break;
        }
        limit -= over;
    }
    return MF_STATUS_OK;
}

struct ranked {
    double estimate;
    int32_t index;
};

static int by_estimate(const void *left, const void *right)
{
    const struct ranked *a = left;
    const struct ranked *b = right;
    if (a->estimate != b->estimate) {
        return a->estimate < b->estimate ? -1 : 1;
    }
    return a->index < b->index ? -1 : 1;
}

static enum mf_status try_seeds(struct mf_solve_context *context, int64_t overhead,
                                struct best *best)
{
    int32_t count = mf_solve_seed_count();
    struct ranked *order = calloc((size_t)count, sizeof(*order));
    MF_ASSERT(order != NULL);
    for (int32_t i = 0; i < count; i++) {
        struct mf_plan plan;
        int64_t bytes = 0;
        mf_solve_seed_build(context, i, context->budget[MF_SPACE_DEVICE] - overhead, &plan);
        order[i] = (struct ranked){estimate(context, &plan, &bytes), i};
        mf_plan_reset(&plan);
    }
    qsort(order, (size_t)count, sizeof(*order), by_estimate);
    enum mf_status status = MF_STATUS_OK;
    int32_t share = context->evaluations_max / SEED_SHARE;
    for (int32_t i = 0; i < count && status == MF_STATUS_OK; i++) {
        bool enough = best->have && (context->evaluations > share ||
                                     order[i].estimate >= best->score.ns * BETTER ||
                                     mf_solve_score_spent(context));
        if (!enough) {
            status = try_seed(context, order[i].index, overhead, best);
        }
    }
    free(order);
    return status;
}

static bool same_plan(const struct mf_plan *a, const struct mf_plan *b)
{
    bool same = a->ring_slots == b->ring_slots && a->deferred_blocks == b->deferred_blocks &&
                a->speculate == b->speculate &&
                memcmp(a->activations, b->activations,
                       (size_t)a->block_count * sizeof(*a->activations)) == 0;
    for (int32_t i = 0; i < a->unit_count && same; i++) {
        same = a->units[i].forward == b->units[i].forward &&
               a->units[i].backward == b->units[i].backward &&
               a->units[i].gradient == b->units[i].gradient &&
               a->units[i].optimizer == b->units[i].optimizer;
    }
    return same;
}

/* Orders the moves by what they promise at best from here; hopeless ones get infinity. */
static void rank_moves(struct mf_solve_context *context, const struct best *best,
                       struct mf_solve_moves *moves, struct ranked *order)
{
    for (int32_t i = 0; i < moves->count; i++) {
        struct mf_plan trial;
        int64_t bytes = 0;
        mf_plan_copy(&best->plan, &trial);
        mf_solve_move_apply(context, &moves->moves[i], &trial);
        double at_best = estimate(context, &trial, &bytes);
        bool hopeless = at_best >= best->score.ns * BETTER ||
                        bytes > context->budget[MF_SPACE_DEVICE] || same_plan(&trial, &best->plan);
        order[i] = (struct ranked){hopeless ? INFINITY : at_best, i};
        mf_plan_reset(&trial);
    }
    qsort(order, (size_t)moves->count, sizeof(*order), by_estimate);
}

/* Builds and scores a candidate unless its estimate rules it out. `over` tells by how many device
 * bytes a plan that would be faster does not fit, else 0. Takes the plan. */
static enum mf_status consider(struct mf_solve_context *context, struct mf_plan *plan,
                               struct best *best, int64_t *over)
{
    struct mf_solve_score score;
    int64_t bytes = 0;
    int64_t budget = context->budget[MF_SPACE_DEVICE];
    *over = 0;
    bool hopeless = estimate(context, plan, &bytes) >= best->score.ns * BETTER;
    if (hopeless || bytes > budget) {
        *over = hopeless ? 0 : bytes - budget;
        mf_plan_reset(plan);
        return MF_STATUS_OK;
    }
    enum mf_status status = mf_solve_score_plan(context, plan, &score);
    if (status != MF_STATUS_OK) {
        mf_plan_reset(plan);
        return status;
    }
    if (score.ns < best->score.ns * BETTER && score.bytes[MF_SPACE_DEVICE] > budget) {
        *over = score.bytes[MF_SPACE_DEVICE] - budget;
    }
    return offer(context, best, plan, &score);
}

static enum mf_status try_move(struct mf_solve_context *context, const struct mf_solve_move *move,
                               struct best *best)
{
    struct mf_plan trial;
    int64_t over = 0;
    mf_plan_copy(&best->plan, &trial);
    mf_solve_move_apply(context, move, &trial);
    if (same_plan(&trial, &best->plan)) {
        mf_plan_reset(&trial);
        return MF_STATUS_OK;
    }
    struct mf_plan larger;
    mf_plan_copy(&trial, &larger);
    enum mf_status status = consider(context, &trial, best, &over);
    /* Where memory is full a good move needs another to pay for it. */
    for (int i = 0; i < mf_solve_seed_release_count() && status == MF_STATUS_OK && over > 0; i++) {
        int64_t still = 0;
        mf_plan_copy(&larger, &trial);
        if (!mf_solve_seed_release(context, i, over, &trial)) {
            mf_plan_reset(&trial);
            continue;
        }
        status = consider(context, &trial, best, &still);
    }
    mf_plan_reset(&larger);
    return status;
}

/* Tries moves until none helps. */
static enum mf_status climb(struct mf_solve_context *context, struct mf_solve_moves *moves,
                            struct ranked *order, struct best *best)
{
    enum mf_status status = MF_STATUS_OK;
    bool improved = true;
    while (improved && status == MF_STATUS_OK && !mf_solve_score_spent(context)) {
        double before = best->score.ns;
        rank_moves(context, best, moves, order);
        for (int32_t i = 0; i < moves->count && status == MF_STATUS_OK; i++) {
            if (isinf(order[i].estimate) || mf_solve_score_spent(context)) {
                break;
            }
            status = try_move(context, &moves->moves[order[i].index], best);
        }
        improved = best->score.ns < before * BETTER;
    }
    return status;
}

/* splitmix64: the same request must give the same plan. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* A walk from plan to plan: takes what is slower by less than `slack` too. */
struct walk {
    const struct mf_solve_moves *moves;
    struct best *best;
    struct best here;
    double slack;
    uint64_t state;
};

/* The plan a random move or two away. */
static void step_aside(struct mf_solve_context *context, struct walk *walk, struct mf_plan *out)
{
    const struct mf_solve_moves *moves = walk->moves;
    mf_plan_copy(&walk->here.plan, out);
    int count = next_random(&walk->state) % 4 == 0 ? 2 : 1;
    for (int i = 0; i < count; i++) {
        uint64_t index = next_random(&walk->state) % (uint64_t)moves->count;
        mf_solve_move_apply(context, &moves->moves[index], out);
    }
}

/* Where memory is full a good move needs another to pay for it. */
static bool give_up_bytes(struct mf_solve_context *context, struct walk *walk, int64_t over,
                          struct mf_plan *plan)
{
    int way = (int)(next_random(&walk->state) % (uint64_t)mf_solve_seed_release_count());
    return mf_solve_seed_release(context, way, over, plan);
}

/* Goes to `plan` when it is good enough; takes it. */
static enum mf_status go(struct mf_solve_context *context, struct walk *walk, struct mf_plan *plan,
                         struct mf_solve_score *score)
{
    if (score->ns < walk->best->score.ns * BETTER) {
        struct mf_plan copy;
        mf_plan_copy(plan, &copy);
        struct mf_solve_score verified = *score;
        enum mf_status status = offer(context, walk->best, &copy, &verified);
        if (status != MF_STATUS_OK || !verified.fits) {
            mf_plan_reset(plan);
            return status;
        }
    }
    mf_plan_reset(&walk->here.plan);
    walk->here.plan = *plan;
    walk->here.score = *score;
    return MF_STATUS_OK;
}

/* Builds a plan unless its estimate rules it out. score->fits tells whether it takes less than
 * `limit` and fits, `over` by how many device bytes one that takes less does not. */
static enum mf_status look(struct mf_solve_context *context, const struct walk *walk,
                           const struct mf_plan *plan, struct mf_solve_score *score, int64_t *over)
{
    double limit = walk->here.score.ns * (1 + walk->slack);
    int64_t budget = context->budget[MF_SPACE_DEVICE];
    int64_t bytes = 0;
    *over = 0;
    score->fits = false;
    if (estimate(context, plan, &bytes) >= limit || same_plan(plan, &walk->here.plan)) {
        return MF_STATUS_OK;
    }
    if (bytes > budget) {
        *over = bytes - budget;
        return MF_STATUS_OK;
    }
    MF_TRY(mf_solve_score_plan(context, plan, score));
    bytes = score->bytes[MF_SPACE_DEVICE];
    *over = score->ns < limit && bytes > budget ? bytes - budget : 0;
    score->fits = score->fits && score->ns < limit;
    return MF_STATUS_OK;
}

static enum mf_status walk_once(struct mf_solve_context *context, struct walk *walk)
{
    struct mf_plan trial;
    struct mf_solve_score score;
    int64_t over = 0;
    step_aside(context, walk, &trial);
    enum mf_status status = look(context, walk, &trial, &score, &over);
    if (status == MF_STATUS_OK && over > 0 && give_up_bytes(context, walk, over, &trial)) {
        status = look(context, walk, &trial, &score, &over);
    }
    if (status == MF_STATUS_OK && score.fits) {
        return go(context, walk, &trial, &score);
    }
    mf_plan_reset(&trial);
    return status;
}

/* Threshold accepting: what a step may lose shrinks to nothing; each round begins at the best. */
static enum mf_status wander(struct mf_solve_context *context, const struct mf_solve_moves *moves,
                             struct best *best)
{
    struct walk walk = {.moves = moves, .best = best, .state = context->request->seed};
    int32_t begin = context->evaluations;
    int32_t share = (context->evaluations_max - begin) / ROUNDS + 1;
    int64_t steps = (int64_t)context->evaluations_max * STEPS_PER_EVALUATION;
    int32_t round = -1;
    enum mf_status status = MF_STATUS_OK;
    while (status == MF_STATUS_OK && steps-- > 0 && !mf_solve_score_spent(context)) {
        int32_t done = context->evaluations - begin;
        if (done / share > round) {
            round = done / share;
            if (walk.here.have) {
                mf_plan_reset(&walk.here.plan);
            }
            mf_plan_copy(&best->plan, &walk.here.plan);
            walk.here.score = best->score;
            walk.here.have = true;
        }
        double left = 1 - (double)(done % share) / share;
        walk.slack = SLACK_MAX * left * left;
        status = walk_once(context, &walk);
    }
    if (walk.here.have) {
        mf_plan_reset(&walk.here.plan);
    }
    return status;
}

/* When updates run: all ways, because lane totals do not tell them apart. */
static enum mf_status try_timings(struct mf_solve_context *context,
                                  const struct mf_solve_moves *moves, struct best *best)
{
    enum mf_status status = MF_STATUS_OK;
    for (int32_t i = 0; i < moves->count && status == MF_STATUS_OK; i++) {
        if (moves->moves[i].kind == MF_SOLVE_MOVE_DEFER && !mf_solve_score_spent(context)) {
            status = try_move(context, &moves->moves[i], best);
        }
    }
    return status;
}

static enum mf_status improve(struct mf_solve_context *context, struct best *best)
{
    struct mf_solve_moves moves = {0};
    mf_solve_move_list(context->model, context->request->workload.clip,
                       context->evaluations_max * MOVES_PER_EVALUATION, &moves);
    struct ranked *order = calloc((size_t)moves.count + 1, sizeof(*order));
    MF_ASSERT(order != NULL);
    int32_t most = context->evaluations_max;
    context->evaluations_max -= (most - context->evaluations) / 2;
    enum mf_status status = try_timings(context, &moves, best);
    if (status == MF_STATUS_OK) {
        status = climb(context, &moves, order, best);
    }
    context->evaluations_max = most;
    if (status == MF_STATUS_OK) {
        status = wander(context, &moves, best);
    }
    free(order);
    free(moves.moves);
    return status;
}

/* Nothing fits: the plan given back is the one nearest to fitting, for the message. */
static enum mf_status give_up(struct mf_solve_context *context, struct mf_plan *plan,
                              struct mf_solve_score *out)
{
    return mf_solve_strategy_frugal(context, plan, out);
}

enum mf_status mf_solve_search(struct mf_solve_context *context, struct mf_plan *plan,
                               struct mf_solve_score *out)
{
    struct best best = {0};
    int64_t overhead = 0;
    enum mf_status status = MF_STATUS_OK;
    MF_TRY_GOTO(try_strategies(context, &best), out);
    MF_TRY_GOTO(try_frugal(context, &best, &overhead), out);
    MF_TRY_GOTO(try_seeds(context, overhead, &best), out);
    if (!best.have) {
        return give_up(context, plan, out);
    }
    MF_TRY_GOTO(improve(context, &best), out);
    mf_plan_reset(plan);
    *plan = best.plan;
    *out = best.score;
    return MF_STATUS_OK;
out:
    if (best.have) {
        mf_plan_reset(&best.plan);
    }
    return status;
}
