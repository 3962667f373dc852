/*
 * The MemFerry paper's two algorithms, in our vocabulary (its text leaves both open):
 *
 * Forward. All units are copied ahead and stay for their backward. Where the forward waits for a
 * copy, units at or before that point are read in place instead, those first that lose least by
 * it, until the wait is gone. They are copied late, before their backward.
 *
 * Gradients. A share of their bytes, the reserve, may stay in device memory until the update; the
 * rest is written to host memory by the kernels. Which stay is a knapsack: least extra time for
 * the bytes of the reserve.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solve_context.h"

struct layer {
    double load_ns;   /* its copy */
    double exec_ns;   /* its kernels, weights in device memory */
    double direct_ns; /* its kernels, weights in host memory */
    double stall_ns;  /* how long the forward waits for it */
    bool direct;
};

static double compute_of(const struct mf_work_unit *unit, enum mf_weight_forward forward,
                         enum mf_weight_backward backward)
{
    return unit->weight[mf_work_find_weight(forward, backward)].ns[MF_LANE_COMPUTE];
}

static void read_layers(const struct mf_solve_context *context, struct layer *layers)
{
    double micros = context->request->workload.accumulation;
    for (int32_t i = 0; i < context->model->unit_count; i++) {
        const struct mf_work_unit *unit = &context->work.units[i];
        double extra = compute_of(unit, MF_WEIGHT_FORWARD_DIRECT, MF_WEIGHT_BACKWARD_STREAM) -
                       compute_of(unit, MF_WEIGHT_FORWARD_STREAM, MF_WEIGHT_BACKWARD_STREAM);
        layers[i] = (struct layer){.load_ns = unit->copy_ns,
                                   .exec_ns = unit->forward_ns,
                                   .direct_ns = unit->forward_ns + extra / micros};
    }
}

/* The forward as a pipeline of copies and kernels. A layer read in place lets the copies run
 * ahead only as far as it leaves the link free. */
static void trace(struct layer *layers, int32_t count)
{
    double loaded = 0;
    double now = 0;
    for (int32_t i = 0; i < count; i++) {
        struct layer *layer = &layers[i];
        layer->stall_ns = 0;
        if (layer->direct) {
            now += layer->direct_ns;
            loaded += fmax(0, layer->direct_ns - layer->exec_ns);
            continue;
        }
        loaded += layer->load_ns;
        layer->stall_ns = fmax(0, loaded - now);
        now += layer->stall_ns + layer->exec_ns;
    }
}

/* The layer at or before `last` that loses least when it is read in place; -1 when reading any of
 * them in place costs more than it saves. */
static int32_t pick(const struct layer *layers, int32_t last)
{
    int32_t best = -1;
    double best_loss = 0;
    for (int32_t i = 0; i <= last; i++) {
        double loss = layers[i].direct_ns - layers[i].exec_ns;
        /* More than one and a half copies: the link would be busier than with the copy. */
        if (layers[i].direct || loss > 1.5 * layers[i].load_ns || loss >= layers[last].stall_ns) {
            continue;
        }
        if (best < 0 || loss < best_loss ||
            (loss == best_loss && layers[i].load_ns > layers[best].load_ns)) {
            best = i;
            best_loss = loss;
        }
    }
    return best;
}

void mf_solve_ferry_weights(const struct mf_solve_context *context, struct mf_plan *plan)
{
    int32_t count = plan->unit_count;
    struct layer *layers = calloc((size_t)count + 1, sizeof(*layers));
    MF_ASSERT(layers != NULL);
    read_layers(context, layers);
    trace(layers, count);
    for (int32_t i = 0; i < count; i++) {
        while (layers[i].stall_ns > 0) {
            int32_t chosen = pick(layers, i);
            if (chosen < 0) {
                break;
            }
            layers[chosen].direct = true;
            trace(layers, count);
        }
    }
    for (int32_t i = 0; i < count; i++) {
        const struct mf_work_unit *unit = &context->work.units[i];
        int choice = mf_work_find_weight(MF_WEIGHT_FORWARD_STREAM, MF_WEIGHT_BACKWARD_KEEP);
        if (layers[i].direct) {
            choice = mf_work_find_weight(MF_WEIGHT_FORWARD_DIRECT, unit->read_in_backward
                                                                       ? MF_WEIGHT_BACKWARD_LATE
                                                                       : MF_WEIGHT_BACKWARD_DIRECT);
        }
        mf_solve_decide_weight(context, plan, i, choice);
    }
    free(layers);
}

#define BUCKETS 1024

void mf_solve_ferry_gradients(const struct mf_solve_context *context, struct mf_plan *plan,
                              double reserve_factor)
{
    const struct mf_model *model = context->model;
    int kept = mf_work_find_update(MF_GRADIENT_DEVICE, MF_OPTIMIZER_CPU);
    int written = mf_work_find_update(MF_GRADIENT_DIRECT, MF_OPTIMIZER_CPU);
    size_t count = (size_t)plan->unit_count;
    int64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        total += context->work.units[i].update_bytes[kept];
    }
    int64_t bucket = total / BUCKETS + 1;
    int32_t reserve = (int32_t)(reserve_factor * (double)(total / bucket + 1));
    /* best[b]: least extra time of the units so far with b buckets kept. */
    double best[BUCKETS + 2] = {0};
    bool *keeps = calloc(count * (BUCKETS + 2) + 1, sizeof(*keeps));
    MF_ASSERT(keeps != NULL && reserve <= BUCKETS + 1);
    for (size_t i = 0; i < count; i++) {
        const struct mf_work_unit *unit = &context->work.units[i];
        int32_t size = (int32_t)((unit->update_bytes[kept] + bucket / 2) / bucket);
        double extra = unit->update[0][written][MF_WORK_BEFORE].ns[MF_LANE_COMPUTE] -
                       unit->update[0][kept][MF_WORK_BEFORE].ns[MF_LANE_COMPUTE];
        if (model->units[i].owner != (int32_t)i) {
            continue;
        }
        for (int32_t b = reserve; b >= 0; b--) {
            double direct = best[b] + fmax(0, extra);
            double stay = b >= size ? best[b - size] : INFINITY;
            keeps[i * (BUCKETS + 2) + (size_t)b] = stay < direct;
            best[b] = fmin(stay, direct);
        }
    }
    int32_t left = reserve;
    for (size_t i = count; i-- > 0;) {
        if (model->units[i].owner != (int32_t)i) {
            continue;
        }
        bool stays = keeps[i * (BUCKETS + 2) + (size_t)left];
        mf_solve_decide_update(context, plan, (int32_t)i, stays ? kept : written);
        left -= stays ? (int32_t)((context->work.units[i].update_bytes[kept] + bucket / 2) / bucket)
                      : 0;
    }
    free(keeps);
}
