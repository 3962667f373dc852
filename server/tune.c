/* From a model and its constraints to a plan: see tune.h. */
#include "server/tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/log.h"
#include "planner/solve.h"
#include "server/machine.h"
#include "server/tune_internal.h"
#include "server/tune_machine.h"

/* ---- profile and hardware in memory ---- */

struct mf_tune *mf_tune_open(struct mf_service *service)
{
    struct mf_tune *tune = calloc(1, sizeof(*tune));
    MF_ASSERT(tune != NULL);
    tune->service = service;
    pthread_mutex_init(&tune->lock, NULL);
    pthread_cond_init(&tune->made, NULL);
    mf_machine_identity(&service->hardware, &tune->identity);
    mf_hardware_fingerprint(&tune->identity, tune->identity_fingerprint);
    if (mf_store_profile_load(service->store, tune->identity_fingerprint, &tune->profile) !=
        MF_STATUS_OK) {
        mf_log_warn("nothing measured before is used: %s", mf_status_text());
        mf_profile_reset(&tune->profile);
    }
    return tune;
}

void mf_tune_close(struct mf_tune *tune)
{
    if (tune == NULL) {
        return;
    }
    mf_profile_reset(&tune->profile);
    pthread_mutex_destroy(&tune->lock);
    pthread_cond_destroy(&tune->made);
    free(tune);
}

void mf_tune_hardware(struct mf_service *service, struct mf_hardware *out)
{
    pthread_mutex_lock(&service->hardware_lock);
    *out = service->hardware;
    pthread_mutex_unlock(&service->hardware_lock);
}

uint64_t mf_tune_generation(struct mf_service *service)
{
    pthread_mutex_lock(&service->tune->lock);
    uint64_t generation = service->tune->plan_generation + service->tune->profile_generation;
    pthread_mutex_unlock(&service->tune->lock);
    return generation;
}

void mf_tune_changed(struct mf_service *service)
{
    pthread_mutex_lock(&service->tune->lock);
    service->tune->plan_generation++;
    pthread_mutex_unlock(&service->tune->lock);
}

/* ---- keys ---- */

/* `there`: what was measured on another machine, -1 = it is this one. Nothing is measured for a
 * plan of another machine, so what is imported must make it another request. */
static void make_key(const struct mf_tune_request *request, const char *hardware_fingerprint,
                     int32_t there, bool measured, char out[static MF_HASH_TEXT_MAX])
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    MF_ASSERT(file != NULL);
    fprintf(file, "plan %d %s\nmodel %s\nhardware %s\n", MF_PLANNER_VERSION,
            measured ? "measured" : "estimate", request->model->fingerprint, hardware_fingerprint);
    fprintf(file, "workload %d %d %d %d\nbudget %lld %lld\nstrategy %d\n",
            request->workload.micro_batch, request->workload.seq_len,
            request->workload.accumulation, request->workload.clip,
            (long long)request->constraints.device_bytes,
            (long long)request->constraints.host_bytes, (int)request->strategy);
    if (there >= 0) {
        fprintf(file, "measurements %d\n", there);
    }
    for (int32_t i = 0; i < request->pin_count; i++) {
        const struct mf_pin *pin = &request->pins[i];
        fprintf(file, "pin %zu:%s %d %d %d %d\n", strlen(pin->pattern), pin->pattern, pin->forward,
                pin->backward, pin->gradient, pin->optimizer);
    }
    MF_ASSERT(fclose(file) == 0);
    mf_hash(text, size, out);
    free(text);
}

struct making {
    struct mf_service *service;
    const struct mf_tune_request *request;
    struct mf_tune_result *result;
    struct mf_hardware hardware;
    struct mf_profile profile; /* of another machine */
    bool there;                /* it is another machine */
    char hardware_fingerprint[MF_HASH_TEXT_MAX];
    char measured_key[MF_HASH_TEXT_MAX];
    char estimate_key[MF_HASH_TEXT_MAX];
};

/* ---- the store ---- */

static enum mf_status look_up(struct making *making, const char *key)
{
    struct mf_store_plan_answer answer;
    enum mf_status status =
        mf_store_plan_get(making->service->store, key, making->request->model, &answer);
    if (status == MF_STATUS_NOT_FOUND) {
        return status;
    }
    if (status != MF_STATUS_OK) {
        mf_log_warn("the store does not answer, planning again: %s", mf_status_text());
        return MF_STATUS_NOT_FOUND;
    }
    if (!answer.feasible) {
        return mf_status_restore(&answer.error);
    }
    making->result->plan = answer.plan;
    making->result->how = "cached";
    making->result->use_count = answer.use_count;
    making->result->age_s = (double)((int64_t)time(NULL) - answer.created_unix_s);
    return MF_STATUS_OK;
}

/* MF_STATUS_NOT_FOUND for a miss; else a plan, or the error of what is known not to fit. */
static enum mf_status look_up_any(struct making *making)
{
    enum mf_status status = look_up(making, making->measured_key);
    if (status != MF_STATUS_NOT_FOUND) {
        return status;
    }
    if (making->request->effort != MF_EFFORT_MEASURE) {
        return look_up(making, making->estimate_key);
    }
    /* Whether it fits is known without measuring. */
    struct mf_store_plan_answer answer;
    if (mf_store_plan_get(making->service->store, making->estimate_key, making->request->model,
                          &answer) == MF_STATUS_OK) {
        if (!answer.feasible) {
            return mf_status_restore(&answer.error);
        }
        mf_plan_reset(&answer.plan);
    }
    return MF_STATUS_NOT_FOUND;
}

static void explain(const struct making *making, char out[static MF_TUNE_MISS_MAX])
{
    const struct mf_tune_miss miss = {.model_fingerprint = making->request->model->fingerprint,
                                      .strategy = making->request->strategy,
                                      .hardware = &making->hardware,
                                      .estimate_key = making->estimate_key};
    mf_tune_miss_explain(making->service, &miss, out);
}

static void remember(struct making *making, enum mf_status solved)
{
    const struct mf_tune_request *request = making->request;
    struct mf_store *store = making->service->store;
    struct mf_error error = *mf_status_error();
    enum mf_status status = mf_store_model_put(store, request->model);
    if (status == MF_STATUS_OK) { /* so that the plan's machine is known to whoever shows it */
        status = mf_store_hardware_put(store, &making->hardware);
    }
    if (status == MF_STATUS_OK && solved == MF_STATUS_OK) {
        const struct mf_plan *plan = &making->result->plan;
        status = mf_store_plan_put(
            store, plan->source == MF_PLAN_MEASURED ? making->measured_key : making->estimate_key,
            plan);
    } else if (status == MF_STATUS_OK) {
        const struct mf_store_plan_request record = {
            .model_fingerprint = request->model->fingerprint,
            .model_name = request->model->name,
            .hardware_fingerprint = making->hardware_fingerprint,
            .strategy = request->strategy};
        status = mf_store_plan_put_error(store, making->estimate_key, &record, &error);
    }
    if (status != MF_STATUS_OK) {
        mf_log_warn("the plan is not kept: %s", mf_status_text());
    }
    mf_tune_changed(making->service);
    (void)mf_status_restore(&error);
}

/* ---- making a plan ---- */

static bool gave_up(void *context)
{
    const struct mf_tune_request *request = context;
    return request->cancelled != NULL && request->cancelled(request->context);
}

static bool does_not_fit(enum mf_status status)
{
    const char *reason = mf_status_error()->reason;
    return (status == MF_STATUS_NO_DEVICE_MEMORY || status == MF_STATUS_NO_MEMORY) &&
           (strcmp(reason, "DEVICE_MEMORY_TOO_SMALL") == 0 ||
            strcmp(reason, "HOST_MEMORY_TOO_SMALL") == 0);
}

static enum mf_status solve(struct making *making, int32_t evaluations_max, struct mf_plan *out)
{
    const struct mf_tune_request *request = making->request;
    struct mf_profile own;
    mf_tune_profile(making->service, &own);
    const struct mf_profile *profile = making->there ? &making->profile : &own;
    const struct mf_solve_request wish = {
        .model = request->model,
        .workload = request->workload,
        .constraints = request->constraints,
        .strategy = request->strategy,
        .hardware = &making->hardware,
        .profile = profile->count > 0 ? profile : NULL,
        .pins = request->pins,
        .pin_count = request->pin_count,
        .evaluations_max = evaluations_max,
        .expired = gave_up,
        .context = (void *)request,
    };
    enum mf_status status = mf_solve(&wish, out);
    mf_profile_reset(&own);
    if (status == MF_STATUS_OK) {
        out->created_unix_s = (int64_t)time(NULL);
    }
    return status;
}

/* Measures; what cannot fit is found out first, as that takes no device. */
static enum mf_status measure(struct making *making)
{
    struct mf_plan rough;
    int32_t needed = 0;
    int32_t measured = 0;
    double start = mf_tune_measure_clock();
    MF_TRY(solve(making, 1, &rough));
    mf_plan_reset(&rough);
    enum mf_status status =
        mf_tune_once_measure(making->service, making->request, &needed, &measured);
    making->result->measure_s = mf_tune_measure_clock() - start;
    return status;
}

static enum mf_status make(struct making *making)
{
    struct mf_tune_result *result = making->result;
    enum mf_status status = MF_STATUS_OK;
    explain(making, result->miss);
    if (making->request->effort == MF_EFFORT_MEASURE) {
        status = measure(making);
    }
    double start = mf_tune_measure_clock();
    if (status == MF_STATUS_OK) {
        if (making->request->progress != NULL) {
            making->request->progress(making->request->context, "solving", 1);
        }
        status = solve(making, 0, &result->plan);
    }
    result->solve_s = mf_tune_measure_clock() - start;
    if (status == MF_STATUS_OK && gave_up((void *)making->request)) {
        mf_plan_reset(&result->plan); /* cut short: not what the key promises */
        return mf_status_set(MF_STATUS_CANCELLED, "planning was cancelled");
    }
    if (status == MF_STATUS_OK || does_not_fit(status)) {
        remember(making, status);
    }
    if (status == MF_STATUS_OK) {
        result->how = result->plan.source == MF_PLAN_MEASURED ? "measured" : "estimated";
        result->use_count = 1;
    }
    return status;
}

static void open_making(struct making *making)
{
    const struct mf_tune_request *request = making->request;
    struct mf_service *service = making->service;
    making->there = request->hardware != NULL && !mf_tune_machine_here(service, request->hardware);
    if (making->there) {
        making->hardware = *request->hardware;
        mf_tune_machine_profile(service, &making->hardware, &making->profile);
    } else {
        mf_tune_hardware(service, &making->hardware);
        mf_profile_init(&making->profile);
    }
    int32_t there = making->there ? making->profile.count : -1;
    mf_hardware_fingerprint(&making->hardware, making->hardware_fingerprint);
    make_key(request, making->hardware_fingerprint, there, true, making->measured_key);
    make_key(request, making->hardware_fingerprint, there, false, making->estimate_key);
}

static enum mf_status find_or_make(struct making *making)
{
    const struct mf_tune_request *request = making->request;
    bool fresh = request->measure_again && request->effort == MF_EFFORT_MEASURE;
    bool waited = false;
    int slot = 0;
    enum mf_status status = fresh ? MF_STATUS_NOT_FOUND : look_up_any(making);
    if (status != MF_STATUS_NOT_FOUND) {
        return status;
    }
    if (request->effort == MF_EFFORT_CACHED) {
        char why[MF_TUNE_MISS_MAX];
        explain(making, why);
        return mf_status_set_reason(MF_STATUS_NOT_FOUND, "PLAN_NOT_CACHED",
                                    "no plan in the store: %s; ask with effort ESTIMATE or MEASURE",
                                    why);
    }
    const char *key =
        request->effort == MF_EFFORT_MEASURE ? making->measured_key : making->estimate_key;
    MF_TRY(mf_tune_once_begin(making->service->tune, request, key, &waited, &slot));
    status = waited ? look_up_any(making) : MF_STATUS_NOT_FOUND;
    if (status == MF_STATUS_NOT_FOUND) {
        status = make(making);
    }
    mf_tune_once_end(making->service->tune, slot);
    return status;
}

enum mf_status mf_tune_plan(struct mf_service *service, const struct mf_tune_request *request,
                            struct mf_tune_result *out)
{
    struct making making = {.service = service, .request = request, .result = out};
    *out = (struct mf_tune_result){0};
    open_making(&making);
    enum mf_status status =
        making.there && request->effort == MF_EFFORT_MEASURE
            ? mf_status_set(MF_STATUS_INVALID,
                            "%s is not this machine, so nothing can be measured: ask with effort "
                            "ESTIMATE; it uses what was measured there once that is imported "
                            "(memferry profile --import FILE)",
                            making.hardware.devices[0].name)
            : find_or_make(&making);
    mf_profile_reset(&making.profile);
    return status;
}
