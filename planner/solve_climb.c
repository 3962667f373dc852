/*
 * The climb of `auto`: see solve_search.h.
 *
 * A move is first looked at through the lane totals of its plan (work.h): one whose busiest lane
 * alone takes as long as the best plan, or whose buffers alone are too much, is never built. The
 * others are tried in the order of that estimate.
 */
#include <math.h>
#include <stdlib.h>

#include "planner/solve_search.h"
#include "planner/solve_seed.h"

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

/* Orders the moves by what they promise at best from here; hopeless ones get infinity. */
static void rank_moves(const struct mf_solve_search *search, struct ranked *order)
{
    const struct mf_solve_context *context = search->context;
    for (int32_t i = 0; i < search->moves.count; i++) {
        struct mf_plan trial;
        int64_t bytes = 0;
        mf_plan_copy(&search->best.plan, &trial);
        mf_solve_move_apply(context, &search->moves.moves[i], &trial);
        double at_best = mf_solve_search_estimate(context, &trial, &bytes);
        bool hopeless = at_best >= search->best.score.ns * MF_SOLVE_BETTER ||
                        bytes > context->budget[MF_SPACE_DEVICE] ||
                        mf_solve_search_same(&trial, &search->best.plan);
        order[i] = (struct ranked){hopeless ? INFINITY : at_best, i};
        mf_plan_reset(&trial);
    }
    qsort(order, (size_t)search->moves.count, sizeof(*order), by_estimate);
}

/* Builds and scores a candidate unless its estimate rules it out. `over` tells by how many device
 * bytes a plan that would be faster does not fit, else 0. */
static enum mf_status consider(struct mf_solve_search *search, const struct mf_plan *plan,
                               int64_t *over)
{
    struct mf_solve_score score;
    int64_t bytes = 0;
    int64_t budget = search->context->budget[MF_SPACE_DEVICE];
    double limit = search->best.score.ns * MF_SOLVE_BETTER;
    *over = 0;
    if (mf_solve_search_estimate(search->context, plan, &bytes) >= limit) {
        return MF_STATUS_OK;
    }
    if (bytes > budget) {
        *over = bytes - budget;
        return MF_STATUS_OK;
    }
    MF_TRY(mf_solve_search_score(search, plan, &score));
    if (score.ns < limit && score.bytes[MF_SPACE_DEVICE] > budget) {
        *over = score.bytes[MF_SPACE_DEVICE] - budget;
    }
    mf_solve_search_offer(search, plan, &score);
    return MF_STATUS_OK;
}

static enum mf_status try_move(struct mf_solve_search *search, const struct mf_solve_move *move)
{
    struct mf_plan trial;
    int64_t over = 0;
    mf_plan_copy(&search->best.plan, &trial);
    mf_solve_move_apply(search->context, move, &trial);
    enum mf_status status = MF_STATUS_OK;
    if (!mf_solve_search_same(&trial, &search->best.plan)) {
        status = consider(search, &trial, &over);
    }
    /* Where memory is full a good move needs another to pay for it. */
    for (int i = 0; i < mf_solve_seed_release_count() && status == MF_STATUS_OK && over > 0; i++) {
        struct mf_plan smaller;
        int64_t still = 0;
        mf_plan_copy(&trial, &smaller);
        if (mf_solve_seed_release(search->context, i, over, &smaller)) {
            status = consider(search, &smaller, &still);
        }
        mf_plan_reset(&smaller);
    }
    mf_plan_reset(&trial);
    return status;
}

/* When updates run: all ways, because lane totals do not tell them apart. */
static enum mf_status try_timings(struct mf_solve_search *search)
{
    enum mf_status status = MF_STATUS_OK;
    for (int32_t i = 0; i < search->moves.count && status == MF_STATUS_OK; i++) {
        const struct mf_solve_move *move = &search->moves.moves[i];
        if (move->kind == MF_SOLVE_MOVE_DEFER && !mf_solve_score_spent(search->context)) {
            status = try_move(search, move);
        }
    }
    return status;
}

enum mf_status mf_solve_climb(struct mf_solve_search *search)
{
    struct ranked *order = calloc((size_t)search->moves.count + 1, sizeof(*order));
    MF_ASSERT(order != NULL);
    enum mf_status status = try_timings(search);
    bool improved = true;
    while (improved && status == MF_STATUS_OK && !mf_solve_score_spent(search->context)) {
        double before = search->best.score.ns;
        rank_moves(search, order);
        for (int32_t i = 0; i < search->moves.count && status == MF_STATUS_OK; i++) {
            if (isinf(order[i].estimate) || mf_solve_score_spent(search->context)) {
                break;
            }
            status = try_move(search, &search->moves.moves[order[i].index]);
        }
        improved = search->best.score.ns < before * MF_SOLVE_BETTER;
    }
    free(order);
    return status;
}
