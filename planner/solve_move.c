/* The steps of the local search: see solve_move.h. */
#include "planner/solve_move.h"

#include <stdlib.h>

#define RANGES_MAX 64
/* All blocks, and each half. */
#define JOINT_RANGES 3
/* Steps of the number of deferred blocks. */
#define DEFER_PARTS 8

static void add_move(struct mf_solve_moves *moves, struct mf_solve_move move)
{
    if (moves->count == moves->capacity) {
        moves->capacity = moves->capacity == 0 ? 1024 : moves->capacity * 2;
        moves->moves = realloc(moves->moves, (size_t)moves->capacity * sizeof(*moves->moves));
        MF_ASSERT(moves->moves != NULL);
    }
    moves->moves[moves->count++] = move;
}

static bool same_unit(const struct mf_model *model, int32_t a, int32_t b)
{
    const struct mf_unit *left = &model->units[a];
    const struct mf_unit *right = &model->units[b];
    return left->kind == right->kind && left->rows == right->rows &&
           left->columns == right->columns &&
           (left->bias.name == NULL) == (right->bias.name == NULL);
}

void mf_solve_move_apply(const struct mf_solve_context *context, const struct mf_solve_move *move,
                         struct mf_plan *plan)
{
    int32_t slots = plan->ring_slots > 0 ? plan->ring_slots : MF_SOLVE_RING_DEFAULT;
    if (move->kind == MF_SOLVE_MOVE_RING) {
        mf_solve_decide_ring(plan, move->choice);
        return;
    }
    if (move->kind == MF_SOLVE_MOVE_DEFER) {
        plan->deferred_blocks = move->choice;
        plan->speculate = move->other == 1;
        return;
    }
    if (move->kind == MF_SOLVE_MOVE_ACTIVATION) {
        for (int32_t i = move->first; i <= move->last; i++) {
            plan->activations[i] = (enum mf_activation)move->choice;
        }
        return;
    }
    int32_t matched = 0;
    for (int32_t i = 0; i < plan->unit_count; i++) {
        int32_t block = context->model->units[i].block;
        if (block < move->first || block > move->last ||
            (move->group >= 0 && !same_unit(context->model, i, move->group)) ||
            (move->only >= 0 && (int)plan->units[i].optimizer != move->only) ||
            matched++ % move->every != move->from) {
            continue;
        }
        if (move->kind != MF_SOLVE_MOVE_UPDATE) {
            mf_solve_decide_weight(context, plan, i, move->choice);
        }
        if (move->kind != MF_SOLVE_MOVE_WEIGHT) {
            mf_solve_decide_update(context, plan, i,
                                   move->kind == MF_SOLVE_MOVE_BOTH ? move->other : move->choice);
        }
    }
    mf_solve_decide_ring(plan, slots);
}

static void add_choices(struct mf_solve_moves *moves, int32_t group, int32_t first, int32_t last,
                        bool joint)
{
    struct mf_solve_move move = {
        .group = group, .first = first, .last = last, .every = 1, .only = -1};
    for (int i = 0; i < MF_WORK_WEIGHTS; i++) {
        move.kind = MF_SOLVE_MOVE_WEIGHT;
        move.choice = i;
        add_move(moves, move);
    }
    for (int i = 0; i < MF_WORK_UPDATES; i++) {
        move.kind = MF_SOLVE_MOVE_UPDATE;
        move.choice = i;
        add_move(moves, move);
        move.kind = MF_SOLVE_MOVE_BOTH;
        move.choice = MF_WORK_WEIGHT_RESIDENT;
        move.other = i;
        add_move(moves, move);
    }
    /* Both at once, where few ranges make it cheap to look at. */
    for (int i = 1; i < MF_WORK_WEIGHTS && joint; i++) {
        move.kind = MF_SOLVE_MOVE_BOTH;
        move.choice = i;
        for (move.other = 0; move.other < MF_WORK_UPDATES; move.other++) {
            add_move(moves, move);
        }
    }
    move.other = 0;
    /* From one engine to another: what other engines update stays with them. */
    move.kind = MF_SOLVE_MOVE_UPDATE;
    for (move.only = 0; move.only < MF_OPTIMIZER_COUNT; move.only++) {
        for (move.choice = 0; move.choice < MF_WORK_UPDATES; move.choice++) {
            if ((int)mf_work_updates[move.choice].optimizer != move.only) {
                add_move(moves, move);
            }
        }
    }
    move.only = -1;
    /* Interleaved: an update that waits for the link between others that do not. */
    move.kind = MF_SOLVE_MOVE_UPDATE;
    for (move.every = 2; move.every <= 4 && first != last; move.every += 2) {
        for (move.from = 0; move.from < move.every; move.from++) {
            for (move.choice = 0; move.choice < MF_WORK_UPDATES; move.choice++) {
                add_move(moves, move);
            }
        }
    }
}

/* All blocks, halves, quarters, eighths, then single layers (`step` apart in big models). */
static int32_t list_ranges(const struct mf_model *model, int32_t (*ranges)[2])
{
    int32_t blocks = model->block_count;
    int32_t count = 0;
    for (int32_t parts = 1; parts <= 8 && parts <= blocks; parts *= 2) {
        for (int32_t part = 0; part < parts; part++) {
            ranges[count][0] = part * blocks / parts;
            ranges[count++][1] = (part + 1) * blocks / parts - 1;
        }
    }
    int32_t room = RANGES_MAX - count;
    int32_t step = (blocks + room - 1) / room;
    for (int32_t i = 0; i < blocks && blocks > 8; i += step) {
        ranges[count][0] = i;
        ranges[count++][1] = i;
    }
    return count;
}

/* Coarse ranges first; a search that can only try a few moves gets no fine ones. */
void mf_solve_move_list(const struct mf_model *model, bool clip, int32_t wanted,
                        struct mf_solve_moves *moves)
{
    int32_t ranges[RANGES_MAX][2];
    int32_t range_count = list_ranges(model, ranges);
    int32_t layers = mf_solve_decide_layers(model);
    for (int32_t r = 0; r < range_count && moves->count < wanted; r++) {
        int32_t first = ranges[r][0];
        int32_t last = ranges[r][1];
        add_choices(moves, -1, first, last, r < JOINT_RANGES);
        for (int32_t i = 0; i < model->unit_count; i++) {
            bool seen = model->units[i].block < first || model->units[i].block > last;
            for (int32_t j = 0; j < i && !seen; j++) {
                seen = model->units[j].block >= first && same_unit(model, i, j);
            }
            if (!seen) {
                add_choices(moves, i, first, last, r < JOINT_RANGES);
            }
        }
        first = first < 1 ? 1 : first;
        last = last > layers ? layers : last;
        for (int choice = 0; choice < MF_ACTIVATION_COUNT && first <= last; choice++) {
            add_move(moves, (struct mf_solve_move){.kind = MF_SOLVE_MOVE_ACTIVATION,
                                                   .first = first,
                                                   .last = last,
                                                   .choice = choice});
        }
    }
    static const int rings[] = {2, 3, 4, 6, 8, 12, 16, 24, 32};
    for (size_t i = 0; i < sizeof(rings) / sizeof(rings[0]); i++) {
        add_move(moves, (struct mf_solve_move){.kind = MF_SOLVE_MOVE_RING, .choice = rings[i]});
    }
    int32_t before = moves->count;
    int32_t parts = model->block_count < DEFER_PARTS ? model->block_count : DEFER_PARTS;
    for (int32_t part = 0; part <= parts; part++) {
        for (int speculate = 0; speculate <= clip; speculate++) {
            add_move(moves, (struct mf_solve_move){.kind = MF_SOLVE_MOVE_DEFER,
                                                   .choice = model->block_count * part / parts,
                                                   .other = speculate});
        }
    }
    moves->timings = moves->count - before;
}
