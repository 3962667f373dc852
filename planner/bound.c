/*
 * The lower bound: see bound.h, and docs/PLANS.md for the argument.
 *
 * A step takes at least as long as any one lane works, so at least as long as any weighted mean of
 * the lanes' work. Adding a price for every byte of device memory beyond the budget keeps that true
 * for all plans within the budget, and makes the cheapest plan a choice for each unit alone. Any
 * weights and any price give a valid bound; the best of them is searched.
 */
#include "planner/bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/work.h"

/*
 * The cycle of a step with several micro-batches, from its last loss to the next one's, is cut in
 * two, whose times add up: at the first loss. Before it come the last backward, all updates and the
 * first forward, behind it the rest.
 */
enum place {
    PLACE_BEFORE, /* the first loss */
    PLACE_BEHIND,
    PLACE_EITHER, /* copies that may be made early, or lag: the cheaper of both */
    PLACE_COUNT
};
#define PHASES 2
#define FAMILY_UNITS_MAX 8 /* an embedding and what is tied to it */

/* What to charge: nanoseconds for a nanosecond of a lane's work, and for a byte. */
struct prices {
    double lanes[PLACE_COUNT][MF_LANE_COUNT]; /* each phase sums to one */
    double byte;
};

/* Units with the same work, bought together. */
struct family {
    int32_t units[FAMILY_UNITS_MAX];
    int32_t unit_count;
    int32_t times;
};

struct problem {
    const struct mf_work *work;
    struct family *families;
    int32_t family_count;
    struct mf_work_block *blocks; /* distinct ones */
    int32_t *block_times;
    bool *block_free; /* its activations are a choice */
    int32_t block_count;
    double budget; /* bytes */
    double micros; /* micro-batches in a step */
    bool split;
};

static double charge(const double prices[MF_LANE_COUNT], const struct mf_work_lanes *lanes)
{
    double sum = 0;
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        sum += prices[lane] * lanes->ns[lane];
    }
    return sum;
}

/* Charges the copies and CPU work among `lanes` at `place`, not the kernels. */
static double charge_around(const struct prices *prices, enum place place,
                            const struct mf_work_lanes *lanes)
{
    const double *price = prices->lanes[place];
    return charge(price, lanes) - price[MF_LANE_COMPUTE] * lanes->ns[MF_LANE_COMPUTE];
}

/* Kernels of all backwards of a step. */
static double charge_backward(const struct problem *problem, const struct prices *prices, double ns)
{
    double last = ns / problem->micros;
    return prices->lanes[PLACE_BEFORE][MF_LANE_COMPUTE] * last +
           prices->lanes[PLACE_BEHIND][MF_LANE_COMPUTE] * (ns - last);
}

/* Kernels of all forwards of a step. */
static double charge_forward(const struct problem *problem, const struct prices *prices, double ns)
{
    double first = ns / problem->micros;
    return prices->lanes[PLACE_BEFORE][MF_LANE_COMPUTE] * first +
           prices->lanes[PLACE_BEHIND][MF_LANE_COMPUTE] * (ns - first);
}

static double cheapest_update(const struct problem *problem, const struct prices *prices,
                              const struct mf_work_unit *unit, int resident)
{
    double best = INFINITY;
    for (int i = 0; i < MF_WORK_UPDATES; i++) {
        const struct mf_work_lanes *when = unit->update[resident][i];
        double price = prices->byte * (double)unit->update_bytes[i] +
                       charge(prices->lanes[PLACE_BEFORE], &when[MF_WORK_AFTER]) +
                       charge(prices->lanes[PLACE_BEFORE], &when[MF_WORK_FREE]) +
                       charge_backward(problem, prices, when[MF_WORK_BEFORE].ns[MF_LANE_COMPUTE]) +
                       charge_around(prices, PLACE_EITHER, &when[MF_WORK_BEFORE]) +
                       charge(prices->lanes[PLACE_EITHER], &when[MF_WORK_NORM]);
        best = fmin(best, price);
    }
    return best;
}

static double weight_price(const struct problem *problem, const struct prices *prices,
                           const struct mf_work_unit *unit, int choice)
{
    double forward = unit->forward[choice].ns[MF_LANE_COMPUTE];
    double backward = unit->weight[choice].ns[MF_LANE_COMPUTE] - forward;
    return prices->byte * (double)unit->weight_bytes[choice] +
           charge_forward(problem, prices, forward) + charge_backward(problem, prices, backward) +
           charge_around(prices, PLACE_EITHER, &unit->weight[choice]);
}

static double activation_price(const struct problem *problem, const struct prices *prices,
                               const struct mf_work_lanes *lanes)
{
    return charge_backward(problem, prices, lanes->ns[MF_LANE_COMPUTE]) +
           charge_around(prices, PLACE_EITHER, lanes);
}

/* The kernels of no unit, less what copies into rings may have done before their phase. */
static double fixed_price(const struct problem *problem, const struct prices *prices)
{
    const struct mf_work *work = problem->work;
    return charge_forward(problem, prices, work->compute_forward_ns) +
           charge_backward(problem, prices, work->compute_ns - work->compute_forward_ns) -
           (problem->split ? charge(prices->lanes[PLACE_BEFORE], &work->ahead) : 0);
}

static double cheapest_family(const struct problem *problem, const struct prices *prices,
                              const struct family *family)
{
    double best = INFINITY;
    for (int resident = 0; resident < 2; resident++) {
        /* The owner comes first; the others share its parameters. */
        double price =
            cheapest_update(problem, prices, &problem->work->units[family->units[0]], resident);
        for (int32_t i = 0; i < family->unit_count; i++) {
            const struct mf_work_unit *unit = &problem->work->units[family->units[i]];
            double weight = INFINITY;
            for (int j = 0; j < MF_WORK_WEIGHTS; j++) {
                if ((j == MF_WORK_WEIGHT_RESIDENT) == (resident == 1)) {
                    weight = fmin(weight, weight_price(problem, prices, unit, j));
                }
            }
            price += weight;
        }
        best = fmin(best, price);
    }
    return best * family->times;
}

static double evaluate(const struct problem *problem, struct prices *prices)
{
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        double *before = &prices->lanes[PLACE_BEFORE][lane];
        double *behind = &prices->lanes[PLACE_BEHIND][lane];
        *behind = problem->split ? *behind : *before;
        prices->lanes[PLACE_EITHER][lane] = fmin(*before, *behind);
    }
    double total = fixed_price(problem, prices) - prices->byte * problem->budget;
    for (int32_t i = 0; i < problem->family_count; i++) {
        total += cheapest_family(problem, prices, &problem->families[i]);
    }
    for (int32_t i = 0; i < problem->block_count; i++) {
        const struct mf_work_block *block = &problem->blocks[i];
        double best = prices->byte * (double)block->kept_bytes;
        for (int j = 0; j < MF_ACTIVATION_COUNT && problem->block_free[i]; j++) {
            if (j != MF_ACTIVATION_KEEP) {
                best = fmin(best, activation_price(problem, prices, &block->activation[j]));
            }
        }
        total += best * problem->block_times[i];
    }
    return total;
}

/* Moves `share` of the weight from one lane to another; false when there is not so much. */
static bool shift(struct prices *prices, int phase, int from, int to, double share)
{
    double *lanes = prices->lanes[phase];
    double moved = fmin(share, lanes[from]);
    if (moved <= 0) {
        return false;
    }
    lanes[from] -= moved;
    lanes[to] += moved;
    return true;
}

/* One round of small steps in every direction; whether any was an improvement. */
static bool improve(const struct problem *problem, struct prices *prices, double *value,
                    double share)
{
    bool better = false;
    int phases = problem->split ? PHASES : 1;
    for (int move = 0; move < phases * MF_LANE_COUNT * MF_LANE_COUNT; move++) {
        struct prices trial = *prices;
        int from = move / MF_LANE_COUNT % MF_LANE_COUNT;
        int to = move % MF_LANE_COUNT;
        if (from == to || !shift(&trial, move / (MF_LANE_COUNT * MF_LANE_COUNT), from, to, share)) {
            continue;
        }
        double got = evaluate(problem, &trial);
        if (got > *value) {
            *prices = trial;
            *value = got;
            better = true;
        }
    }
    for (int direction = 0; direction < 2; direction++) {
        struct prices trial = *prices;
        trial.byte *= direction == 0 ? 1 + 2 * share : 1 / (1 + 2 * share);
        double got = evaluate(problem, &trial);
        if (got > *value) {
            *prices = trial;
            *value = got;
            better = true;
        }
    }
    return better;
}

/* Climbs from `prices`; the function is concave, so a local maximum of fine steps is near the
 * global one, and any point is a valid bound. */
static double climb(const struct problem *problem, struct prices *prices)
{
    double value = evaluate(problem, prices);
    for (double share = 0.5; share > 0.002; share /= 2) {
        for (int round = 0; round < 8; round++) {
            if (!improve(problem, prices, &value, share)) {
                break;
            }
        }
    }
    return value;
}

static const char *name_lanes(const double lanes[MF_LANE_COUNT])
{
    static const char *const names[MF_LANE_COUNT][MF_LANE_COUNT] = {
        {"compute", "compute or h2d", "compute or d2h", "compute or cpu"},
        {"compute or h2d", "h2d", "h2d or d2h", "cpu or h2d"},
        {"compute or d2h", "h2d or d2h", "d2h", "cpu or d2h"},
        {"compute or cpu", "cpu or h2d", "cpu or d2h", "cpu"},
    };
    int first = 0;
    int second = -1;
    for (int lane = 1; lane < MF_LANE_COUNT; lane++) {
        first = lanes[lane] > lanes[first] ? lane : first;
    }
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        if (lane != first && lanes[lane] > 0.2 && (second < 0 || lanes[lane] > lanes[second])) {
            second = lane;
        }
    }
    return names[first][second < 0 ? first : second];
}

static bool same_family(const struct problem *problem, const struct family *family,
                        const int32_t *units, int32_t count)
{
    bool same = family->unit_count == count;
    for (int32_t i = 0; i < count && same; i++) {
        same = memcmp(&problem->work->units[family->units[i]], &problem->work->units[units[i]],
                      sizeof(struct mf_work_unit)) == 0;
    }
    return same;
}

static void add_family(struct problem *problem, const struct mf_model *model, int32_t owner)
{
    struct family family = {.units = {owner}, .unit_count = 1, .times = 1};
    for (int32_t i = 0; i < model->unit_count; i++) {
        if (i != owner && model->units[i].owner == owner) {
            MF_ASSERT(family.unit_count < FAMILY_UNITS_MAX);
            family.units[family.unit_count++] = i;
        }
    }
    for (int32_t i = 0; i < problem->family_count; i++) {
        if (same_family(problem, &problem->families[i], family.units, family.unit_count)) {
            problem->families[i].times++;
            return;
        }
    }
    problem->families[problem->family_count++] = family;
}

static void add_block(struct problem *problem, const struct mf_work_block *block, bool is_free)
{
    for (int32_t i = 0; i < problem->block_count; i++) {
        if (problem->block_free[i] == is_free &&
            memcmp(&problem->blocks[i], block, sizeof(*block)) == 0) {
            problem->block_times[i]++;
            return;
        }
    }
    problem->blocks[problem->block_count] = *block;
    problem->block_free[problem->block_count] = is_free;
    problem->block_times[problem->block_count++] = 1;
}

static void open_problem(struct problem *problem, const struct mf_model *model)
{
    size_t blocks = (size_t)model->block_count + 1;
    problem->families = calloc((size_t)model->unit_count + 1, sizeof(*problem->families));
    problem->blocks = calloc(blocks, sizeof(*problem->blocks));
    problem->block_times = calloc(blocks, sizeof(*problem->block_times));
    problem->block_free = calloc(blocks, sizeof(*problem->block_free));
    MF_ASSERT(problem->families != NULL && problem->blocks != NULL &&
              problem->block_times != NULL && problem->block_free != NULL);
    for (int32_t i = 0; i < model->unit_count; i++) {
        if (model->units[i].owner == i) {
            add_family(problem, model, i);
        }
    }
    for (int32_t i = 0; i < model->block_count; i++) {
        add_block(problem, &problem->work->blocks[i], i > 0 && i + 1 < model->block_count);
    }
}

static void close_problem(struct problem *problem)
{
    free(problem->families);
    free(problem->blocks);
    free(problem->block_times);
    free(problem->block_free);
}

/* Climbs from every lane alone and from their mean, with and without a price for memory. */
static void search(const struct problem *problem, double byte, struct mf_bound *best)
{
    const double bytes[] = {byte, byte * 1e-3, 0};
    for (int start = 0; start < 3 * (MF_LANE_COUNT + 1); start++) {
        struct prices prices = {.byte = bytes[start % 3]};
        for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
            bool alone = start / 3 == lane;
            double share = start / 3 == MF_LANE_COUNT ? 1.0 / MF_LANE_COUNT : alone ? 1 : 0;
            prices.lanes[0][lane] = share;
            prices.lanes[1][lane] = 1.0 / MF_LANE_COUNT;
        }
        double value = climb(problem, &prices);
        if (value > best->ns) {
            *best = (struct mf_bound){value, name_lanes(prices.lanes[PLACE_BEFORE])};
        }
    }
}

struct mf_bound mf_bound(const struct mf_model *model, const struct mf_workload *workload,
                         const struct mf_constraints *constraints,
                         const struct mf_hardware *hardware, const struct mf_profile *profile)
{
    struct mf_bound best = {0, "nothing"};
    struct mf_work work;
    if (mf_work_build(model, workload, hardware, profile, &work) != MF_STATUS_OK) {
        return best; /* no plan has a graph either */
    }
    int64_t budget = constraints->device_bytes;
    if (budget == 0 && hardware->device_count > 0) {
        budget = hardware->devices[0].memory_bytes;
    }
    struct problem problem = {
        .work = &work,
        .budget = budget > 0 ? (double)budget : 1e18,
        .micros = workload->accumulation,
    };
    open_problem(&problem, model);
    /* A byte of weights costs about a byte of link time: where the search for its price begins. */
    double copies = 0;
    double elements = 1;
    for (int32_t i = 0; i < model->unit_count; i++) {
        copies += work.units[i].copy_ns;
        elements += (double)model->units[i].elements;
    }
    search(&problem, copies / elements, &best);
    if (workload->accumulation > 1) {
        problem.split = true;
        search(&problem, copies / elements, &best);
    }
    close_problem(&problem);
    mf_work_reset(&work);
    return best;
}
