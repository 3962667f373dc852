/* The walk of `auto`: threshold accepting over random moves. See solve_search.h. */
#include "planner/solve_search.h"
#include "planner/solve_seed.h"

/* How much slower a step may be at first, and how many steps are looked at for each plan that can
 * be built. */
#define SLACK_MAX 0.06
#define STEPS_PER_EVALUATION 24

struct walk {
    struct mf_solve_search *search;
    struct mf_solve_best here;
    double slack;
};

/* splitmix64: the same request must give the same plan. */
static uint64_t next_random(struct mf_solve_search *search)
{
    uint64_t z = search->random += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* The plan a random move or two away. */
static void step_aside(struct walk *walk, struct mf_plan *out)
{
    struct mf_solve_search *search = walk->search;
    mf_plan_copy(&walk->here.plan, out);
    int count = next_random(search) % 4 == 0 ? 2 : 1;
    for (int i = 0; i < count; i++) {
        uint64_t index = next_random(search) % (uint64_t)search->moves.count;
        mf_solve_move_apply(search->context, &search->moves.moves[index], out);
    }
    /* Other work wants other timing, and among so many moves chance would seldom bring both. */
    if (next_random(search) % 4 == 0) {
        uint64_t back = next_random(search) % (uint64_t)search->moves.timings;
        mf_solve_move_apply(search->context,
                            &search->moves.moves[search->moves.count - 1 - (int32_t)back], out);
    }
}

/* Where memory is full a good move needs another to pay for it. */
static bool give_up_bytes(struct mf_solve_search *search, int64_t over, struct mf_plan *plan)
{
    int way = (int)(next_random(search) % (uint64_t)mf_solve_seed_release_count());
    return mf_solve_seed_release(search->context, way, over, plan);
}

/* Builds a plan unless its estimate rules it out. score->fits tells whether it takes less than
 * `limit` and fits, `over` by how many device bytes one that takes less does not. */
static enum mf_status look(struct walk *walk, const struct mf_plan *plan,
                           struct mf_solve_score *score, int64_t *over)
{
    struct mf_solve_context *context = walk->search->context;
    double limit = walk->here.score.ns * (1 + walk->slack);
    int64_t budget = context->budget[MF_SPACE_DEVICE];
    int64_t bytes = 0;
    *over = 0;
    score->fits = false;
    if (mf_solve_search_estimate(context, plan, &bytes) >= limit ||
        mf_solve_search_same(plan, &walk->here.plan)) {
        return MF_STATUS_OK;
    }
    if (bytes > budget) {
        *over = bytes - budget;
        return MF_STATUS_OK;
    }
    MF_TRY(mf_solve_search_score(walk->search, plan, score));
    bytes = score->bytes[MF_SPACE_DEVICE];
    *over = score->ns < limit && bytes > budget ? bytes - budget : 0;
    score->fits = score->fits && score->ns < limit;
    return MF_STATUS_OK;
}

static enum mf_status step_once(struct walk *walk)
{
    struct mf_plan trial;
    struct mf_solve_score score;
    int64_t over = 0;
    step_aside(walk, &trial);
    enum mf_status status = look(walk, &trial, &score, &over);
    if (status == MF_STATUS_OK && over > 0 && give_up_bytes(walk->search, over, &trial)) {
        status = look(walk, &trial, &score, &over);
    }
    if (status == MF_STATUS_OK && score.fits) {
        mf_solve_search_offer(walk->search, &trial, &score);
        mf_solve_search_keep(&walk->here, &trial, &score);
    }
    mf_plan_reset(&trial);
    return status;
}

/* What a step may lose shrinks to nothing. */
enum mf_status mf_solve_walk(struct mf_solve_search *search)
{
    struct walk walk = {.search = search};
    const struct mf_solve_context *context = search->context;
    int32_t begin = context->evaluations;
    int32_t share = context->evaluations_max - begin;
    enum mf_status status = MF_STATUS_OK;
    mf_solve_search_keep(&walk.here, &search->best.plan, &search->best.score);
    for (int64_t steps = (int64_t)share * STEPS_PER_EVALUATION;
         steps > 0 && status == MF_STATUS_OK && !mf_solve_score_spent(context); steps--) {
        double left = 1 - (double)(context->evaluations - begin) / share;
        walk.slack = SLACK_MAX * left * left;
        status = step_once(&walk);
    }
    mf_solve_search_drop(&walk.here);
    return status;
}
