/*
 * The ladder of `auto`: see solve_search.h.
 *
 * Rungs are amounts of memory, on flights that end at a multiple of 2^(1/4) of each other; the top
 * is a little more than the plan without offload takes, or what the device has. A flight begins
 * with seeds, a climb and a walk on its first rung; on the way up the search spends what each rung
 * has more than the one below, and looks around. A flight is searched for itself, from nothing but
 * the most frugal plan, so that the lower ones can be left out: a search begins two flights or more
 * below the memory asked for, by how much it may look at, and ends with the first rung at or above
 * that memory. (A plan of a flight left out that is faster than all above would need luck with a
 * third less memory.)
 */
#include <math.h>
#include <stdlib.h>

#include "planner/solve_search.h"
#include "planner/solve_seed.h"

#define FLIGHTS_PER_DOUBLING 4
/* Evaluations of a flight: more of them go into more flights. */
#define FLIGHT_EVALUATIONS 100
#define FLIGHTS_MIN 3
/* Evaluations of a rung: more of them go into more rungs. */
#define RUNG_EVALUATIONS 20
#define RUNGS_MAX 64
/* A flight of so many evaluations ranks all moves and looks at seeds on each rung, one of half of
 * them on every second. */
#define LANDING_EVALUATIONS 512
/* Share of a flight's evaluations that are for its first rung. */
#define FIRST_SHARE 0.65
/* Of the evaluations between two landings one in so many is for seeds; on a first rung half. */
#define SEED_SHARE 8
/* Moves that are ranked for each that can be tried. */
#define MOVES_PER_EVALUATION 8
/* What is left to named strategies, which are scored beside the ladder. */
#define NAMED_EVALUATIONS 40

struct ladder {
    int64_t least, most;
    int64_t overhead;    /* what the least plan needs beyond what mf_work_plan counts */
    int32_t flights;     /* flight 0 ends at `most` */
    int32_t depth;       /* flights that are searched */
    int32_t evaluations; /* of a flight */
    int32_t rungs;       /* of a flight */
    int32_t landing;     /* every so many rungs */
    struct mf_solve_best frugal;
    /* Seeds that fill no memory: where memory buys nothing they are hard to beat. */
    int32_t bare_count;
    struct mf_solve_best *bare;
};

/* Builds a seed smaller until it fits: what it needs beyond the count is known after a build. */
static enum mf_status try_seed(struct mf_solve_search *search, int32_t index, int64_t overhead)
{
    struct mf_solve_context *context = search->context;
    int64_t limit = context->budget[MF_SPACE_DEVICE] - overhead;
    for (int attempt = 0; attempt < 3 && limit > 0; attempt++) {
        struct mf_plan plan;
        struct mf_solve_score score;
        mf_solve_seed_build(context, index, limit, &plan);
        enum mf_status status = mf_solve_search_score(search, &plan, &score);
        if (status == MF_STATUS_OK) {
            mf_solve_search_offer(search, &plan, &score);
        }
        mf_plan_reset(&plan);
        MF_TRY(status);
        int64_t over = score.bytes[MF_SPACE_DEVICE] - context->budget[MF_SPACE_DEVICE];
        if (over <= 0 || score.bytes[MF_SPACE_HOST] > context->budget[MF_SPACE_HOST]) {
            break;
        }
        limit -= over;
    }
    return MF_STATUS_OK;
}

/* The seeds that promise most, while evaluations are fewer than `evaluations`. */
static enum mf_status try_seeds(struct mf_solve_search *search, int64_t overhead,
                                int32_t evaluations)
{
    struct mf_solve_context *context = search->context;
    int32_t count = mf_solve_seed_count();
    double *promised = calloc((size_t)count, sizeof(*promised));
    MF_ASSERT(promised != NULL);
    for (int32_t i = 0; i < count; i++) {
        struct mf_plan plan;
        int64_t bytes = 0;
        mf_solve_seed_build(context, i, context->budget[MF_SPACE_DEVICE] - overhead, &plan);
        promised[i] = mf_solve_search_estimate(context, &plan, &bytes);
        mf_plan_reset(&plan);
    }
    enum mf_status status = MF_STATUS_OK;
    while (status == MF_STATUS_OK && context->evaluations < evaluations &&
           !mf_solve_score_spent(context)) {
        int32_t next = 0;
        for (int32_t i = 1; i < count; i++) {
            next = promised[i] < promised[next] ? i : next;
        }
        if (promised[next] >= search->best.score.ns * MF_SOLVE_BETTER) {
            break;
        }
        promised[next] = INFINITY;
        status = try_seed(search, next, overhead);
    }
    free(promised);
    return status;
}

/* Spends what the rung has more than the best plan takes, each kind of use first. */
static enum mf_status try_fills(struct mf_solve_search *search)
{
    struct mf_solve_context *context = search->context;
    struct mf_solve_best from = {0};
    int64_t counted = 0;
    mf_solve_search_keep(&from, &search->best.plan, &search->best.score);
    (void)mf_solve_search_estimate(context, &from.plan, &counted);
    int64_t limit =
        context->budget[MF_SPACE_DEVICE] - (from.score.bytes[MF_SPACE_DEVICE] - counted);
    enum mf_status status = MF_STATUS_OK;
    for (int i = 0; i < MF_SOLVE_SEED_FILLS && status == MF_STATUS_OK; i++) {
        struct mf_plan plan;
        struct mf_solve_score score;
        int64_t bytes = 0;
        mf_plan_copy(&from.plan, &plan);
        mf_solve_seed_fill(context, i, limit, &plan);
        if (!mf_solve_score_spent(context) && !mf_solve_search_same(&plan, &from.plan) &&
            mf_solve_search_estimate(context, &plan, &bytes) <
                search->best.score.ns * MF_SOLVE_BETTER) {
            status = mf_solve_search_score(search, &plan, &score);
            if (status == MF_STATUS_OK) {
                mf_solve_search_offer(search, &plan, &score);
            }
        }
        mf_plan_reset(&plan);
    }
    mf_solve_search_drop(&from);
    return status;
}

static enum mf_status find_bare(struct mf_solve_search *search, struct ladder *out)
{
    struct mf_solve_context *context = search->context;
    int32_t count = mf_solve_seed_count() / MF_SOLVE_SEED_ORDERS;
    out->bare = calloc((size_t)count, sizeof(*out->bare));
    MF_ASSERT(out->bare != NULL);
    enum mf_status status = MF_STATUS_OK;
    for (int32_t i = 0; i < count && status == MF_STATUS_OK; i++) {
        struct mf_plan plan;
        struct mf_solve_score score;
        mf_solve_seed_build(context, i * MF_SOLVE_SEED_ORDERS, 0, &plan);
        status = mf_solve_search_score(search, &plan, &score);
        if (status == MF_STATUS_OK) {
            mf_solve_search_keep(&out->bare[out->bare_count++], &plan, &score);
        }
        mf_plan_reset(&plan);
    }
    return status;
}

static int64_t rung_bytes(const struct ladder *ladder, int32_t flight, int32_t rung)
{
    double bytes = (double)ladder->most *
                   exp2(((double)rung / ladder->rungs - 1 - flight) / FLIGHTS_PER_DOUBLING);
    return (int64_t)fmax((double)ladder->least, bytes);
}

/* What is done on one rung until `end` evaluations; a climb may take some of those of the rungs up
 * to the next landing. */
static enum mf_status climb_rung(struct mf_solve_search *search, const struct ladder *ladder,
                                 int32_t rung, int32_t end)
{
    struct mf_solve_context *context = search->context;
    context->evaluations_max = end;
    if (mf_solve_score_spent(context)) {
        return MF_STATUS_OK;
    }
    if (rung > 1) {
        MF_TRY(try_fills(search));
    }
    if (rung == 1 || rung % ladder->landing == 0) {
        int32_t ahead = ladder->evaluations * ladder->landing / ladder->rungs;
        int32_t seeds = rung == 1 ? (end - context->evaluations) / 2 : ahead / SEED_SHARE;
        context->evaluations_max = rung == 1 ? end : end + ahead / 2;
        MF_TRY(try_seeds(search, ladder->overhead, context->evaluations + seeds));
        MF_TRY(mf_solve_climb(search));
        context->evaluations_max = end;
    }
    return mf_solve_walk(search);
}

static enum mf_status climb_flight(struct mf_solve_search *search, const struct ladder *ladder,
                                   int32_t flight)
{
    struct mf_solve_context *context = search->context;
    int32_t begin = context->evaluations;
    int32_t first = (int32_t)(ladder->evaluations * FIRST_SHARE);
    /* Nothing of what came before may be known here: it depends on where the search began. */
    mf_solve_search_keep(&search->best, &ladder->frugal.plan, &ladder->frugal.score);
    mf_solve_memo_reset(&search->memo);
    context->budget[MF_SPACE_DEVICE] = rung_bytes(ladder, flight, 1);
    for (int32_t i = 0; i < ladder->bare_count; i++) {
        struct mf_solve_score score = ladder->bare[i].score;
        score.fits = score.bytes[MF_SPACE_DEVICE] <= context->budget[MF_SPACE_DEVICE] &&
                     score.bytes[MF_SPACE_HOST] <= context->budget[MF_SPACE_HOST];
        mf_solve_search_offer(search, &ladder->bare[i].plan, &score);
    }
    search->random = context->request->seed + (uint64_t)flight;
    for (int32_t rung = 1; rung <= ladder->rungs; rung++) {
        if (rung_bytes(ladder, flight, rung - 1) >= search->asked_bytes && rung > 1) {
            break;
        }
        context->budget[MF_SPACE_DEVICE] = rung_bytes(ladder, flight, rung);
        int32_t end = begin + first + (ladder->evaluations - first) * rung / ladder->rungs;
        MF_TRY(climb_rung(search, ladder, rung, end));
    }
    return MF_STATUS_OK;
}

/* The ends of the ladder: the plan that needs all the memory, and the most frugal one. */
static enum mf_status find_ends(struct mf_solve_search *search, struct ladder *out)
{
    struct mf_solve_context *context = search->context;
    struct mf_solve_score score;
    struct mf_plan plan;
    int64_t counted = 0;
    mf_solve_decide_start(context, &plan);
    enum mf_status status = mf_solve_search_score(search, &plan, &score);
    mf_plan_reset(&plan);
    MF_TRY(status);
    int64_t there = context->request->hardware->devices[0].memory_bytes;
    /* Copies and rings beside resident weights can take some more. */
    int64_t needed = score.bytes[MF_SPACE_DEVICE] / 4 * 5;
    out->most = there > 0 && there < needed ? there : needed;
    mf_solve_decide_start(context, &plan);
    status = mf_solve_strategy_frugal(context, &plan, &score);
    if (status == MF_STATUS_OK) {
        status = mf_solve_search_score(search, &plan, &score);
    }
    if (status == MF_STATUS_OK) {
        (void)mf_solve_search_estimate(context, &plan, &counted);
        out->least = score.bytes[MF_SPACE_DEVICE];
        out->overhead = out->least - counted;
        mf_solve_search_keep(&out->frugal, &plan, &score);
    }
    mf_plan_reset(&plan);
    return status;
}

/* None of this depends on the memory asked for. */
static void lay_out(struct ladder *ladder, int32_t evaluations)
{
    ladder->most = ladder->most > ladder->least ? ladder->most : ladder->least;
    double doublings = log2((double)ladder->most / (double)ladder->least);
    ladder->flights = (int32_t)fmax(1, ceil(doublings * FLIGHTS_PER_DOUBLING));
    double depth = fmax(FLIGHTS_MIN, evaluations / FLIGHT_EVALUATIONS);
    ladder->depth = (int32_t)fmin(depth, ladder->flights);
    ladder->evaluations = evaluations / ladder->depth;
    double rungs = fmin(fmax(2, ladder->evaluations / RUNG_EVALUATIONS), RUNGS_MAX);
    ladder->rungs = (int32_t)rungs;
    ladder->landing = 1 + LANDING_EVALUATIONS / (ladder->evaluations + 1);
}

enum mf_status mf_solve_ladder(struct mf_solve_search *search)
{
    struct mf_solve_context *context = search->context;
    struct ladder ladder = {0};
    int32_t most = context->evaluations_max;
    enum mf_status status = find_ends(search, &ladder);
    if (status == MF_STATUS_OK) {
        status = find_bare(search, &ladder);
    }
    if (status == MF_STATUS_OK) {
        lay_out(&ladder, most > 2 * NAMED_EVALUATIONS ? most - NAMED_EVALUATIONS : most / 2);
        mf_solve_move_list(context->model, context->request->workload.clip,
                           most * MOVES_PER_EVALUATION, &search->moves);
    }
    int32_t top = ladder.flights - 1;
    while (top > 0 && rung_bytes(&ladder, top, ladder.rungs) < search->asked_bytes) {
        top--;
    }
    int32_t flight = top + ladder.depth - 1;
    flight = flight < ladder.flights ? flight : ladder.flights - 1;
    for (; flight >= top && status == MF_STATUS_OK; flight--) {
        status = climb_flight(search, &ladder, flight);
    }
    context->budget[MF_SPACE_DEVICE] = search->asked_bytes;
    context->evaluations_max = most;
    free(search->moves.moves);
    mf_solve_memo_reset(&search->memo);
    mf_solve_search_drop(&search->best);
    mf_solve_search_drop(&ladder.frugal);
    for (int32_t i = 0; i < ladder.bare_count; i++) {
        mf_solve_search_drop(&ladder.bare[i]);
    }
    free(ladder.bare);
    return status;
}
