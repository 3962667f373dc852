/* Lane times of units: see unit_times.h. */
#include "server/unit_times.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost.h"
#include "planner/step.h"
#include "server/tune.h"
#include "server/tune_machine.h"

#define KEPT 16

struct kept {
    char id[MF_HASH_TEXT_MAX];
    uint64_t generation; /* of the costs */
    uint64_t used;
    int32_t count;
    double (*rows)[MF_LANE_COUNT];
};

struct mf_unit_times {
    pthread_mutex_t lock;
    uint64_t clock;
    struct kept kept[KEPT];
};

struct mf_unit_times *mf_unit_times_open(void)
{
    struct mf_unit_times *times = calloc(1, sizeof(*times));
    MF_ASSERT(times != NULL);
    pthread_mutex_init(&times->lock, NULL);
    return times;
}

void mf_unit_times_close(struct mf_unit_times *times)
{
    if (times == NULL) {
        return;
    }
    for (int i = 0; i < KEPT; i++) {
        free(times->kept[i].rows);
    }
    pthread_mutex_destroy(&times->lock);
    free(times);
}

static bool find(struct mf_unit_times *times, const struct mf_plan *plan, uint64_t generation,
                 double (*out)[MF_LANE_COUNT])
{
    bool found = false;
    pthread_mutex_lock(&times->lock);
    for (int i = 0; i < KEPT && !found; i++) {
        struct kept *kept = &times->kept[i];
        if (kept->rows != NULL && kept->generation == generation &&
            kept->count == plan->unit_count && strcmp(kept->id, plan->id) == 0) {
            memcpy(out, kept->rows, (size_t)kept->count * sizeof(*out));
            kept->used = ++times->clock;
            found = true;
        }
    }
    pthread_mutex_unlock(&times->lock);
    return found;
}

static void keep(struct mf_unit_times *times, const struct mf_plan *plan, uint64_t generation,
                 double (*rows)[MF_LANE_COUNT])
{
    size_t bytes = (size_t)plan->unit_count * sizeof(*rows);
    double(*copy)[MF_LANE_COUNT] = malloc(bytes);
    MF_ASSERT(copy != NULL);
    memcpy(copy, rows, bytes);
    pthread_mutex_lock(&times->lock);
    struct kept *oldest = &times->kept[0];
    for (int i = 1; i < KEPT; i++) {
        oldest = times->kept[i].used < oldest->used ? &times->kept[i] : oldest;
    }
    free(oldest->rows);
    *oldest = (struct kept){
        .generation = generation, .used = ++times->clock, .count = plan->unit_count, .rows = copy};
    memcpy(oldest->id, plan->id, sizeof(oldest->id));
    pthread_mutex_unlock(&times->lock);
}

/* Adds `repeats` times what one graph does. */
static enum mf_status add(const struct mf_model *model, const struct mf_plan *plan,
                          const struct mf_hardware *hardware, const struct mf_profile *profile,
                          enum mf_step_variant variant, int32_t repeats,
                          double (*out)[MF_LANE_COUNT])
{
    struct mf_step_request request = mf_step_variant_request(plan, variant);
    struct mf_step step;
    MF_TRY(mf_step_build(model, plan, &request, &step));
    (void)mf_cost_fill(hardware, profile, &step);
    for (int32_t i = 0; i < step.task_count; i++) {
        const struct mf_task *task = &step.tasks[i];
        if (task->unit >= 0) {
            out[task->unit][task->lane] += repeats * task->expected_ns;
        }
    }
    mf_step_reset(&step);
    return MF_STATUS_OK;
}

enum mf_status mf_unit_times_get(struct mf_service *service, const struct mf_plan *plan,
                                 const struct mf_model *model, double (*out)[MF_LANE_COUNT])
{
    struct mf_hardware hardware;
    struct mf_profile profile;
    uint64_t generation = mf_tune_profile_generation(service);
    if (find(service->unit_times, plan, generation, out)) {
        return MF_STATUS_OK;
    }
    memset(out, 0, (size_t)plan->unit_count * sizeof(*out));
    (void)mf_tune_machine_of(service, plan->hardware_fingerprint, &hardware, &profile);
    /* Two graphs of one micro-batch hold all that the graph of a whole step does. */
    enum mf_status status = add(model, plan, &hardware, &profile, MF_STEP_FIRST_UPDATE, 1, out);
    if (status == MF_STATUS_OK && plan->workload.accumulation > 1) {
        status = add(model, plan, &hardware, &profile, MF_STEP_LATER,
                     plan->workload.accumulation - 1, out);
    }
    mf_profile_reset(&profile);
    if (status == MF_STATUS_OK) {
        keep(service->unit_times, plan, generation, out);
    }
    return status;
}
