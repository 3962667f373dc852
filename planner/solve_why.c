/* Why each unit is held as it is, in a few words with numbers: see solve_context.h. */
#include <stdarg.h>
#include <stdio.h>

#include "core/format.h"
#include "planner/solve_context.h"

/* A text that is too long is cut. */
static void say(char out[static MF_WHY_MAX], const char *format, ...) MF_PRINTF(2, 3);
static void say(char out[static MF_WHY_MAX], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out, MF_WHY_MAX, format, arguments);
    va_end(arguments);
}

static double compute_of(const struct mf_work_unit *unit, int weight)
{
    return unit->weight[weight].ns[MF_LANE_COMPUTE];
}

static void say_resident(const struct mf_solve_context *context, const struct mf_plan *plan,
                         int32_t index, char out[static MF_WHY_MAX])
{
    const struct mf_work_unit *unit = &context->work.units[index];
    int stream = mf_work_find_weight(MF_WEIGHT_FORWARD_STREAM, MF_WEIGHT_BACKWARD_STREAM);
    char saved[MF_FORMAT_MAX];
    char bytes[MF_FORMAT_MAX];
    double link_ns = unit->weight[stream].ns[MF_LANE_H2D];
    if (plan->units[index].optimizer == MF_OPTIMIZER_CPU) {
        link_ns -= unit->copy_ns; /* the CPU's update is copied in */
    }
    mf_format_bytes(context->model->units[index].elements * 2, bytes);
    if (link_ns <= 0) {
        say(out, "%s, fits in device memory", bytes);
        return;
    }
    say(out, "%s, fits in device memory, saves %s of link a step", bytes,
        mf_format_ns(link_ns, saved));
}

static void say_stream(const struct mf_solve_context *context, const struct mf_plan *plan,
                       int32_t index, char out[static MF_WHY_MAX])
{
    const struct mf_work_unit *unit = &context->work.units[index];
    int weight = mf_solve_decide_weight_of(plan, index);
    int direct = mf_work_find_weight(MF_WEIGHT_FORWARD_DIRECT, MF_WEIGHT_BACKWARD_DIRECT);
    char copy[MF_FORMAT_MAX];
    char work[MF_FORMAT_MAX];
    double compute = compute_of(unit, weight);
    double link = unit->weight[weight].ns[MF_LANE_H2D];
    mf_format_ns(link, copy);
    if (compute_of(unit, direct) > compute + link) {
        say(out, "%s of copies a step; in place it would take %s more", copy,
            mf_format_ns(compute_of(unit, direct) - compute, work));
        return;
    }
    say(out, "%s of copies a step run beside %s of its own compute", copy,
        mf_format_ns(compute, work));
}

static void say_direct(const struct mf_solve_context *context, const struct mf_plan *plan,
                       int32_t index, char out[static MF_WHY_MAX])
{
    const struct mf_work_unit *unit = &context->work.units[index];
    int weight = mf_solve_decide_weight_of(plan, index);
    int keep = mf_work_find_weight(MF_WEIGHT_FORWARD_STREAM, MF_WEIGHT_BACKWARD_KEEP);
    char extra[MF_FORMAT_MAX];
    char copy[MF_FORMAT_MAX];
    double more = compute_of(unit, weight) - compute_of(unit, keep);
    mf_format_ns(more > 0 ? more : 0, extra);
    mf_format_ns(unit->copy_ns, copy);
    if (plan->units[index].backward == MF_WEIGHT_BACKWARD_LATE) {
        say(out, "read in place while the link is busy, its %s copy comes late", copy);
        return;
    }
    say(out, "in place costs %s more compute a step, a copy takes %s", extra, copy);
}

void mf_solve_why(const struct mf_solve_context *context, struct mf_plan *plan)
{
    static void (*const says[MF_WEIGHT_FORWARD_COUNT])(const struct mf_solve_context *,
                                                       const struct mf_plan *, int32_t,
                                                       char out[static MF_WHY_MAX]) = {
        [MF_WEIGHT_FORWARD_RESIDENT] = say_resident,
        [MF_WEIGHT_FORWARD_STREAM] = say_stream,
        [MF_WEIGHT_FORWARD_DIRECT] = say_direct,
    };
    for (int32_t i = 0; i < plan->unit_count; i++) {
        struct mf_unit_decision *decision = &plan->units[i];
        if (decision->pinned) {
            say(decision->why, "pinned by the user");
        } else {
            says[decision->forward](context, plan, i, decision->why);
        }
    }
}
