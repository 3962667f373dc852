/*
 * The strategy `auto`: a search up a ladder of memory, and the named strategies. See
 * solve_context.h, solve_search.h and solve_ladder.c.
 *
 * Which plans the ladder comes by depends on the memory asked for only in how far up it goes; the
 * answer is the fastest of them that fits. So with more memory the search comes by the same plans
 * and more, and no answer is slower than one for less memory.
 */
#include "planner/solve_search.h"

#include <math.h>
#include <stdlib.h>

void mf_solve_search_keep(struct mf_solve_best *best, const struct mf_plan *plan,
                          const struct mf_solve_score *score)
{
    struct mf_plan copy;
    mf_plan_copy(plan, &copy);
    mf_solve_search_drop(best);
    *best = (struct mf_solve_best){.plan = copy, .score = *score, .have = true};
}

void mf_solve_search_drop(struct mf_solve_best *best)
{
    if (best->have) {
        mf_plan_reset(&best->plan);
    }
    best->have = false;
}

static bool fits(const struct mf_solve_context *context, const struct mf_solve_score *score,
                 int64_t device_bytes)
{
    return score->bytes[MF_SPACE_DEVICE] <= device_bytes &&
           score->bytes[MF_SPACE_HOST] <= context->budget[MF_SPACE_HOST];
}

/* Makes a plan the answer when it is the fastest that fits what was asked for, in all graphs. */
static enum mf_status answer(struct mf_solve_search *search, const struct mf_plan *plan,
                             const struct mf_solve_score *score)
{
    struct mf_solve_context *context = search->context;
    int64_t rung = context->budget[MF_SPACE_DEVICE];
    struct mf_solve_score exact = *score;
    exact.fits = fits(context, score, search->asked_bytes);
    if (!exact.fits || (search->answer.have && exact.ns >= search->answer.score.ns)) {
        return MF_STATUS_OK;
    }
    context->budget[MF_SPACE_DEVICE] = search->asked_bytes;
    enum mf_status status = mf_solve_score_verify(context, plan, &exact);
    context->budget[MF_SPACE_DEVICE] = rung;
    if (status == MF_STATUS_OK && exact.fits) {
        mf_solve_search_keep(&search->answer, plan, &exact);
    }
    return status;
}

enum mf_status mf_solve_search_score(struct mf_solve_search *search, const struct mf_plan *plan,
                                     struct mf_solve_score *score)
{
    struct mf_solve_context *context = search->context;
    uint64_t key = mf_solve_memo_key(plan);
    const struct mf_solve_score *known = mf_solve_memo_find(&search->memo, key);
    if (known != NULL) {
        *score = *known;
        score->fits = fits(context, score, context->budget[MF_SPACE_DEVICE]);
        return MF_STATUS_OK;
    }
    MF_TRY(mf_solve_score_plan(context, plan, score));
    mf_solve_memo_put(&search->memo, key, score);
    return answer(search, plan, score);
}

void mf_solve_search_offer(struct mf_solve_search *search, const struct mf_plan *plan,
                           const struct mf_solve_score *score)
{
    struct mf_solve_best *best = &search->best;
    if (score->fits && (!best->have || score->ns < best->score.ns * MF_SOLVE_BETTER)) {
        mf_solve_search_keep(best, plan, score);
    }
}

double mf_solve_search_estimate(const struct mf_solve_context *context, const struct mf_plan *plan,
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

bool mf_solve_search_same(const struct mf_plan *a, const struct mf_plan *b)
{
    bool same = a->ring_slots == b->ring_slots && a->deferred_blocks == b->deferred_blocks &&
                a->speculate == b->speculate;
    for (int32_t i = 0; i < a->block_count && same; i++) {
        same = a->activations[i] == b->activations[i];
    }
    for (int32_t i = 0; i < a->unit_count && same; i++) {
        same = a->units[i].forward == b->units[i].forward &&
               a->units[i].backward == b->units[i].backward &&
               a->units[i].gradient == b->units[i].gradient &&
               a->units[i].optimizer == b->units[i].optimizer;
    }
    return same;
}

/* No answer is slower than a named strategy. They do not lead the search: how they are made to fit
 * depends on the memory asked for. */
static enum mf_status try_strategies(struct mf_solve_search *search)
{
    for (int i = 0; i < MF_STRATEGY_COUNT; i++) {
        struct mf_plan plan;
        struct mf_solve_score score;
        if (i == MF_STRATEGY_AUTO) {
            continue;
        }
        mf_solve_decide_start(search->context, &plan);
        enum mf_status status =
            mf_solve_strategy_build(search->context, (enum mf_strategy)i, &plan, &score);
        if (status == MF_STATUS_OK) {
            status = answer(search, &plan, &score);
        }
        mf_plan_reset(&plan);
        MF_TRY(status);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_solve_search(struct mf_solve_context *context, struct mf_plan *plan,
                               struct mf_solve_score *out)
{
    struct mf_solve_search search = {.context = context,
                                     .asked_bytes = context->budget[MF_SPACE_DEVICE]};
    enum mf_status status = try_strategies(&search);
    if (status == MF_STATUS_OK) {
        status = mf_solve_ladder(&search);
    }
    if (status == MF_STATUS_OK && search.answer.have) {
        mf_plan_reset(plan);
        *plan = search.answer.plan;
        *out = search.answer.score;
    } else if (status == MF_STATUS_OK) {
        /* Nothing fits: the plan given back is the one nearest to fitting, for the message. */
        status = mf_solve_strategy_frugal(context, plan, out);
    } else {
        mf_solve_search_drop(&search.answer);
    }
    return status;
}
