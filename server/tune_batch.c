/* The micro-batch as a decision: see tune_batch.h. */
#include "server/tune_batch.h"

#include <stdlib.h>
#include <string.h>

#include "core/limits.h"
#include "server/service_table.h"

#define FREE_MAX 64    /* largest micro-batch when no batch is wanted */
#define MEASURED_MAX 3 /* trials that are measured: each has kernels of its own */
#define STEP 1.25      /* a choice is so much larger than the one before, at least */

int32_t mf_tune_batch_choices(int32_t batch, int32_t out[static MF_TUNE_BATCH_TRIALS_MAX])
{
    int32_t count = 0;
    int32_t last = batch > 0 ? batch : FREE_MAX;
    for (int32_t n = 1; n <= last && count < MF_TUNE_BATCH_TRIALS_MAX; n++) {
        bool divides = batch > 0 ? batch % n == 0 : (n & (n - 1)) == 0;
        if (divides && (count == 0 || n >= STEP * out[count - 1])) {
            out[count++] = n;
        }
    }
    return count;
}

struct batch {
    struct mf_service *service;
    struct mf_tune_request request;
    int32_t sequences; /* in a step; 0 = as many as a micro-batch has */
    struct mf_arena *arena;
    Memferry__V1__Trial *trials[MF_TUNE_BATCH_TRIALS_MAX];
    struct mf_tune_result results[MF_TUNE_BATCH_TRIALS_MAX];
    bool planned[MF_TUNE_BATCH_TRIALS_MAX];
    size_t count;
    double measure_s, solve_s;
    bool all_cached;
    bool measure; /* the choice is among what was measured */
    char miss[sizeof(((struct mf_tune_result *)0)->miss)];
};

static void describe(struct batch *batch, size_t index)
{
    const struct mf_tune_result *result = &batch->results[index];
    const struct mf_plan_prediction *prediction = &result->plan.prediction;
    const struct mf_workload *work = &result->plan.workload;
    Memferry__V1__Trial *trial = batch->trials[index];
    trial->step_ns = prediction->step_ns;
    trial->tokens_per_second = (double)work->micro_batch * work->accumulation * work->seq_len /
                               (prediction->step_ns * 1e-9);
    trial->device_peak_bytes = prediction->device_peak_bytes;
    trial->host_peak_bytes = prediction->host_peak_bytes;
    trial->measured = result->plan.source == MF_PLAN_MEASURED;
    trial->plan_id = mf_arena_string(batch->arena, result->plan.id);
}

/* The plan of one trial, instead of the one it has. What cannot be planned stays without. */
static enum mf_status try(struct batch *batch, size_t index, enum mf_effort effort)
{
    struct mf_tune_result *result = &batch->results[index];
    Memferry__V1__Trial *trial = batch->trials[index];
    struct mf_tune_result fresh;
    batch->request.workload.micro_batch = trial->micro_batch;
    batch->request.workload.accumulation = trial->accumulation;
    batch->request.effort = effort;
    enum mf_status status = mf_workload_validate(&batch->request.workload);
    if (status == MF_STATUS_OK) {
        status = mf_tune_plan(batch->service, &batch->request, &fresh);
    }
    if (status != MF_STATUS_OK) {
        trial->why = mf_arena_string(batch->arena, mf_status_text());
        return status;
    }
    if (batch->planned[index]) {
        mf_plan_reset(&result->plan);
    }
    *result = fresh;
    batch->planned[index] = true;
    batch->measure_s += fresh.measure_s;
    batch->solve_s += fresh.solve_s;
    if (strcmp(fresh.how, "cached") != 0) {
        batch->all_cached = false;
        memcpy(batch->miss, fresh.miss, sizeof(batch->miss));
    }
    describe(batch, index);
    return MF_STATUS_OK;
}

static bool does_not_fit(enum mf_status status)
{
    return status == MF_STATUS_NO_DEVICE_MEMORY || status == MF_STATUS_NO_MEMORY;
}

/* The smallest first. Memory grows with the micro-batch: behind the first that does not fit no
 * other can. */
static enum mf_status try_all(struct batch *batch, enum mf_effort effort)
{
    int32_t choices[MF_TUNE_BATCH_TRIALS_MAX];
    struct mf_error first = {0};
    int32_t count = mf_tune_batch_choices(batch->sequences, choices);
    size_t planned = 0;
    for (int32_t i = 0; i < count; i++) {
        Memferry__V1__Trial *trial =
            MF_SERVICE_TABLE_NEW(batch->arena, Memferry__V1__Trial, MEMFERRY__V1__TRIAL__INIT);
        trial->micro_batch = choices[i];
        trial->accumulation = batch->sequences > 0 ? batch->sequences / choices[i] : 1;
        batch->trials[batch->count++] = trial;
        enum mf_status status = try(batch, (size_t)i, effort);
        planned += status == MF_STATUS_OK;
        if (status != MF_STATUS_OK && i == 0) {
            first = *mf_status_error();
        }
        if (does_not_fit(status)) {
            break;
        }
        /* Too much accumulation for a small one, or not in the store: a larger one may be. */
        if (status != MF_STATUS_OK && status != MF_STATUS_INVALID &&
            status != MF_STATUS_NOT_FOUND) {
            return status;
        }
    }
    return planned > 0 ? MF_STATUS_OK : mf_status_restore(&first);
}

static int faster(const void *a, const void *b)
{
    double left = (*(Memferry__V1__Trial *const *)a)->tokens_per_second;
    double right = (*(Memferry__V1__Trial *const *)b)->tokens_per_second;
    return (left < right) - (left > right);
}

/* Of the trials that look best. What fails to be measured keeps its estimate. */
static enum mf_status measure_best(struct batch *batch)
{
    Memferry__V1__Trial *order[MF_TUNE_BATCH_TRIALS_MAX];
    memcpy(order, batch->trials, sizeof(order));
    qsort(order, batch->count, sizeof(Memferry__V1__Trial *), faster);
    for (size_t i = 0; i < batch->count && i < MEASURED_MAX; i++) {
        size_t index = 0;
        while (batch->trials[index] != order[i]) {
            index++;
        }
        if (!batch->planned[index]) {
            continue;
        }
        MF_TRY(try(batch, index, MF_EFFORT_MEASURE));
    }
    return MF_STATUS_OK;
}

static size_t choose(const struct batch *batch)
{
    size_t best = 0;
    for (size_t i = 1; i < batch->count; i++) {
        const Memferry__V1__Trial *trial = batch->trials[i];
        const Memferry__V1__Trial *so_far = batch->trials[best];
        bool unlike = batch->measure && trial->measured != so_far->measured;
        bool better = unlike && batch->planned[best]
                          ? trial->measured
                          : trial->tokens_per_second > so_far->tokens_per_second;
        best = batch->planned[i] && better ? i : best;
    }
    return best;
}

static void give(struct batch *batch, size_t chosen, struct mf_tune_result *out)
{
    for (size_t i = 0; i < batch->count; i++) {
        if (i != chosen && batch->planned[i]) {
            mf_plan_reset(&batch->results[i].plan);
        }
    }
    *out = batch->results[chosen];
    batch->trials[chosen]->chosen = true;
    out->measure_s = batch->measure_s;
    out->solve_s = batch->solve_s;
    if (!batch->all_cached && strcmp(out->how, "cached") == 0) {
        out->how = out->plan.source == MF_PLAN_MEASURED ? "measured" : "estimated";
        memcpy(out->miss, batch->miss, sizeof(out->miss));
    }
}

enum mf_status mf_tune_batch_plan(struct mf_service *service, const struct mf_tune_request *request,
                                  int32_t batch_size, struct mf_arena *arena,
                                  struct mf_tune_result *out, Memferry__V1__Trial ***trials,
                                  size_t *count)
{
    struct batch *batch = mf_arena_alloc(arena, 1, sizeof(*batch));
    *batch = (struct batch){.service = service,
                            .request = *request,
                            .sequences = batch_size,
                            .arena = arena,
                            .all_cached = true,
                            .measure = request->effort == MF_EFFORT_MEASURE};
    enum mf_status status = try_all(batch, batch->measure ? MF_EFFORT_ESTIMATE : request->effort);
    if (status == MF_STATUS_OK && batch->measure) {
        status = measure_best(batch);
    }
    if (status != MF_STATUS_OK) {
        for (size_t i = 0; i < batch->count; i++) {
            if (batch->planned[i]) {
                mf_plan_reset(&batch->results[i].plan);
            }
        }
        return status;
    }
    give(batch, choose(batch), out);
    *trials = batch->trials;
    *count = batch->count;
    return MF_STATUS_OK;
}
