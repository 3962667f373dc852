/* Learning-rate schedules: see schedule.h. */
#include "runtime/schedule.h"

#include <math.h>
#include <string.h>

static const char *const names[MF_SCHEDULE_COUNT] = {
#define X(name, text) text,
    MF_SCHEDULE_MAP(X)
#undef X
};

const char *mf_schedule_name(enum mf_schedule_kind kind)
{
    return names[kind];
}

int mf_schedule_parse(const char *text)
{
    for (int i = 0; i < MF_SCHEDULE_COUNT; i++) {
        if (strcmp(text, names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

/* How far the fall from `from` to total_steps has come, 0..1. */
static double progress(const struct mf_schedule *schedule, int64_t step, int64_t from)
{
    int64_t length = schedule->total_steps - from;
    if (step <= from) {
        return 0;
    }
    return length <= 0 || step >= schedule->total_steps ? 1
                                                        : (double)(step - from) / (double)length;
}

static double half_cosine(double done)
{
    return 0.5 * (1 + cos(M_PI * done));
}

/* How much of the warm-up is done, 0..1. */
static double warmup(const struct mf_schedule *schedule, int64_t step)
{
    double steps = (double)schedule->warmup_steps;
    return schedule->log_warmup && schedule->warmup_steps > 1 ? log((double)step + 1) / log(steps)
                                                              : (double)step / steps;
}

double mf_schedule_lr(const struct mf_schedule *schedule, int64_t step)
{
    int64_t from = schedule->warmup_steps;
    if (step < from) {
        return schedule->peak * (schedule->start + (1 - schedule->start) * warmup(schedule, step));
    }
    double share = 1;
    switch (schedule->kind) {
    case MF_SCHEDULE_LINEAR:
        share = 1 - progress(schedule, step, from);
        break;
    case MF_SCHEDULE_COSINE:
        share = half_cosine(progress(schedule, step, from));
        break;
    case MF_SCHEDULE_WSD:
        share = 1 - progress(schedule, step, schedule->total_steps - schedule->decay_steps);
        break;
    case MF_SCHEDULE_WARMUP_COSINE:
        share = half_cosine(progress(schedule, step + 1, from));
        break;
    case MF_SCHEDULE_CONSTANT:
    case MF_SCHEDULE_COUNT:
        break;
    }
    return schedule->peak * (schedule->floor + (1 - schedule->floor) * share);
}
