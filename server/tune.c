/* From a model and its constraints to a plan: see tune.h. */
#include "server/tune.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/json.h"
#include "core/log.h"
#include "planner/solve.h"
#include "server/machine.h"
#include "server/tune_internal.h"

#define WAIT_NS 50000000 /* between two looks at whether a waiting caller gave up */

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

void mf_tune_profile(struct mf_service *service, struct mf_profile *out)
{
    struct mf_tune *tune = service->tune;
    mf_profile_init(out);
    pthread_mutex_lock(&tune->lock);
    for (int32_t i = 0; i < tune->profile.count; i++) {
        mf_profile_put(out, &tune->profile.entries[i]);
    }
    out->measured_at_unix_s = tune->profile.measured_at_unix_s;
    out->complete = tune->profile.complete;
    memcpy(out->method, tune->profile.method, sizeof(out->method));
    memcpy(out->hardware_fingerprint, tune->identity_fingerprint,
           sizeof(out->hardware_fingerprint));
    pthread_mutex_unlock(&tune->lock);
}

uint64_t mf_tune_generation(struct mf_service *service)
{
    pthread_mutex_lock(&service->tune->lock);
    uint64_t generation = service->tune->generation;
    pthread_mutex_unlock(&service->tune->lock);
    return generation;
}

void mf_tune_learn(struct mf_service *service, const struct mf_profile *measured)
{
    struct mf_tune *tune = service->tune;
    bool cuda = strcmp(tune->identity.devices[0].kind, "cuda") == 0;
    struct mf_profile stored = *measured; /* borrows the entries */
    memcpy(stored.hardware_fingerprint, tune->identity_fingerprint,
           sizeof(stored.hardware_fingerprint));
    (void)snprintf(stored.method, sizeof(stored.method), cuda ? "CUDA events" : "host clock");
    pthread_mutex_lock(&tune->lock);
    for (int32_t i = 0; i < measured->count; i++) {
        if (tune->profile.count < MF_PROFILE_ENTRIES_MAX) {
            mf_profile_put(&tune->profile, &measured->entries[i]);
        }
    }
    tune->profile.measured_at_unix_s = measured->measured_at_unix_s;
    tune->profile.complete = measured->complete;
    memcpy(tune->profile.method, stored.method, sizeof(stored.method));
    tune->generation++;
    pthread_mutex_unlock(&tune->lock);
    if (mf_store_profile_merge(service->store, &tune->identity, &stored) != MF_STATUS_OK) {
        mf_log_warn("measurements are not kept: %s", mf_status_text());
    }
}

/* The one stored hardware whose fingerprint begins with `prefix`. */
static enum mf_status find_hardware(struct mf_service *service, const char *prefix,
                                    struct mf_arena *arena, const char **out)
{
    struct mf_store_profile_record *records = NULL;
    int32_t count = 0;
    size_t length = strlen(prefix);
    *out = NULL;
    if (length < 6) {
        return mf_status_set(MF_STATUS_INVALID,
                             "hardware_fingerprint: at least 6 digits, found \"%s\"", prefix);
    }
    MF_TRY(mf_store_profile_list(service->store, arena, &records, &count));
    for (int32_t i = 0; i < count; i++) {
        const char *fingerprint = records[i].hardware_fingerprint;
        if (strncmp(fingerprint, prefix, length) != 0) {
            continue;
        }
        if (*out != NULL && strcmp(*out, fingerprint) != 0) {
            return mf_status_set(MF_STATUS_INVALID, "more than one profile begins with %.64s",
                                 prefix);
        }
        *out = fingerprint;
    }
    return *out != NULL ? MF_STATUS_OK
                        : mf_status_set(MF_STATUS_NOT_FOUND,
                                        "no profile of hardware %.64s in the store", prefix);
}

enum mf_status mf_tune_forget(struct mf_service *service, const char *fingerprint)
{
    struct mf_tune *tune = service->tune;
    struct mf_arena arena;
    const char *full = NULL;
    mf_arena_init(&arena);
    enum mf_status status = find_hardware(service, fingerprint, &arena, &full);
    if (status == MF_STATUS_OK) {
        status = mf_store_profile_delete(service->store, full);
    }
    if (status == MF_STATUS_OK && strcmp(full, tune->identity_fingerprint) == 0) {
        pthread_mutex_lock(&tune->lock);
        mf_profile_reset(&tune->profile);
        tune->generation++;
        pthread_mutex_unlock(&tune->lock);
    }
    mf_arena_reset(&arena);
    return status;
}

/* ---- keys ---- */

static void make_key(const struct mf_tune_request *request, const char *hardware_fingerprint,
                     bool measured, char out[static MF_HASH_TEXT_MAX])
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

/* Why it was not in the store: the nearest of what is there. */
static const char *explain_miss(const struct making *making)
{
    static const char *const reasons[] = {
        "no plan for this model yet",
        "the stored plans of this model are of another planner version",
        "the stored plans of this model are for other hardware",
        "the stored plans are for another strategy",
        "the stored plans are for another workload, budget or pins",
        "the stored plan was an estimate and measuring was asked for",
    };
    struct mf_store_plan_record *records = NULL;
    struct mf_arena arena;
    int32_t count = 0;
    size_t best = 0;
    mf_arena_init(&arena);
    if (mf_store_plan_list(making->service->store, &arena, &records, &count) != MF_STATUS_OK) {
        count = 0;
    }
    for (int32_t i = 0; i < count; i++) {
        const struct mf_store_plan_record *record = &records[i];
        if (strcmp(record->model_fingerprint, making->request->model->fingerprint) != 0) {
            continue;
        }
        size_t near = 1;
        if (strcmp(record->key, making->estimate_key) == 0) {
            near = 5;
        } else if (record->planner_version != MF_PLANNER_VERSION) {
            near = 1;
        } else if (strcmp(record->hardware_fingerprint, making->hardware_fingerprint) != 0) {
            near = 2;
        } else {
            near = strcmp(record->strategy, mf_plan_strategy_name(making->request->strategy)) == 0
                       ? 4
                       : 3;
        }
        best = near > best ? near : best;
    }
    mf_arena_reset(&arena);
    return reasons[best];
}

static void remember(struct making *making, enum mf_status solved)
{
    const struct mf_tune_request *request = making->request;
    struct mf_store *store = making->service->store;
    struct mf_error error = *mf_status_error();
    enum mf_status status = mf_store_model_put(store, request->model);
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
    (void)mf_status_restore(&error);
}

/* ---- making a plan ---- */

static bool does_not_fit(enum mf_status status)
{
    const char *reason = mf_status_error()->reason;
    return (status == MF_STATUS_NO_DEVICE_MEMORY || status == MF_STATUS_NO_MEMORY) &&
           (strcmp(reason, "DEVICE_MEMORY_TOO_SMALL") == 0 ||
            strcmp(reason, "HOST_MEMORY_TOO_SMALL") == 0);
}

static bool gave_up(void *context)
{
    const struct mf_tune_request *request = context;
    return request->cancelled != NULL && request->cancelled(request->context);
}

static enum mf_status solve(struct making *making, int32_t evaluations_max, struct mf_plan *out)
{
    const struct mf_tune_request *request = making->request;
    struct mf_profile profile;
    mf_tune_profile(making->service, &profile);
    const struct mf_solve_request wish = {
        .model = request->model,
        .workload = request->workload,
        .constraints = request->constraints,
        .strategy = request->strategy,
        .hardware = &making->hardware,
        .profile = profile.count > 0 ? &profile : NULL,
        .pins = request->pins,
        .pin_count = request->pin_count,
        .evaluations_max = evaluations_max,
        .expired = gave_up,
        .context = (void *)request,
    };
    enum mf_status status = mf_solve(&wish, out);
    mf_profile_reset(&profile);
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
    enum mf_status status = mf_tune_measure(making->service, making->request, &needed, &measured);
    making->result->measure_s = mf_tune_measure_clock() - start;
    return status;
}

static enum mf_status make(struct making *making)
{
    struct mf_tune_result *result = making->result;
    enum mf_status status = MF_STATUS_OK;
    (void)snprintf(result->miss, sizeof(result->miss), "%s", explain_miss(making));
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

/* ---- one at a time for each key ---- */

static int find_making(const struct mf_tune *tune, const char *key)
{
    int i = 0;
    while (i < MF_TUNE_MAKING_MAX && strcmp(tune->making[i], key) != 0) {
        i++;
    }
    return i;
}

/* Waits while someone else makes the plan of `key`; then it is ours to make, in *slot. */
static enum mf_status begin(struct mf_tune *tune, const struct mf_tune_request *request,
                            const char *key, bool *waited, int *slot)
{
    enum mf_status status = MF_STATUS_OK;
    *waited = false;
    pthread_mutex_lock(&tune->lock);
    while (find_making(tune, key) < MF_TUNE_MAKING_MAX && status == MF_STATUS_OK) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += WAIT_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        *waited = true;
        (void)pthread_cond_timedwait(&tune->made, &tune->lock, &until);
        if (gave_up((void *)request)) {
            status = mf_status_set(MF_STATUS_CANCELLED, "waiting for a plan was cancelled");
        }
    }
    *slot = find_making(tune, "");
    if (status == MF_STATUS_OK && *slot == MF_TUNE_MAKING_MAX) {
        status = mf_status_set_reason(MF_STATUS_BUSY, "PLANS_FULL",
                                      "%d plans are being made already, try again later",
                                      MF_TUNE_MAKING_MAX);
    }
    if (status == MF_STATUS_OK) {
        (void)snprintf(tune->making[*slot], sizeof(tune->making[*slot]), "%s", key);
    }
    pthread_mutex_unlock(&tune->lock);
    return status;
}

static void end(struct mf_tune *tune, int slot)
{
    pthread_mutex_lock(&tune->lock);
    tune->making[slot][0] = 0;
    pthread_cond_broadcast(&tune->made);
    pthread_mutex_unlock(&tune->lock);
}

enum mf_status mf_tune_plan(struct mf_service *service, const struct mf_tune_request *request,
                            struct mf_tune_result *out)
{
    struct making making = {.service = service, .request = request, .result = out};
    bool fresh = request->measure_again && request->effort == MF_EFFORT_MEASURE;
    bool waited = false;
    int slot = 0;
    *out = (struct mf_tune_result){0};
    mf_tune_hardware(service, &making.hardware);
    mf_hardware_fingerprint(&making.hardware, making.hardware_fingerprint);
    make_key(request, making.hardware_fingerprint, true, making.measured_key);
    make_key(request, making.hardware_fingerprint, false, making.estimate_key);
    enum mf_status status = fresh ? MF_STATUS_NOT_FOUND : look_up_any(&making);
    if (status != MF_STATUS_NOT_FOUND) {
        return status;
    }
    if (request->effort == MF_EFFORT_CACHED) {
        return mf_status_set_reason(MF_STATUS_NOT_FOUND, "PLAN_NOT_CACHED",
                                    "no plan in the store: %s; ask with effort ESTIMATE or MEASURE",
                                    explain_miss(&making));
    }
    const char *key =
        request->effort == MF_EFFORT_MEASURE ? making.measured_key : making.estimate_key;
    MF_TRY(begin(service->tune, request, key, &waited, &slot));
    status = waited ? look_up_any(&making) : MF_STATUS_NOT_FOUND;
    if (status == MF_STATUS_NOT_FOUND) {
        status = make(&making);
    }
    end(service->tune, slot);
    return status;
}

/* ---- stored plans ---- */

static enum mf_status model_from_list(const json_t *config, struct mf_model *out)
{
    const json_t *list = json_object_get(config, "units");
    size_t count = json_array_size(list);
    struct mf_unit_shape *shapes = calloc(count + 1, sizeof(*shapes));
    MF_ASSERT(shapes != NULL);
    bool good = count > 0 && count <= MF_UNITS_MAX;
    for (size_t i = 0; i < count && good; i++) {
        const char *name = NULL;
        json_int_t rows = 0;
        json_int_t columns = 0;
        int bias = 0;
        good = json_unpack(json_array_get(list, i), "[s, i, I, I, b]", &name, &shapes[i].block,
                           &rows, &columns, &bias) == 0;
        shapes[i].name = name;
        shapes[i].rows = rows;
        shapes[i].columns = columns;
        shapes[i].bias = bias != 0;
    }
    enum mf_status status =
        good ? mf_model_from_units(shapes, (int32_t)count, 0, out)
             : mf_status_set(MF_STATUS_CORRUPT, "the stored list of units is damaged");
    free(shapes);
    return status;
}

enum mf_status mf_tune_model(struct mf_service *service, const struct mf_plan *plan,
                             struct mf_model *out)
{
    struct mf_store_model_record record;
    struct mf_arena arena;
    json_t *config = NULL;
    enum mf_status status = MF_STATUS_OK;
    *out = (struct mf_model){0};
    mf_arena_init(&arena);
    MF_TRY_GOTO(mf_store_model_get(service->store, plan->model_fingerprint, &arena, &record), end);
    if (record.config == NULL) {
        status = mf_status_set(MF_STATUS_NOT_FOUND, "the shapes of model %s are not in the store",
                               record.name);
        goto end;
    }
    MF_TRY_GOTO(mf_json_parse(record.config, strlen(record.config), "stored model", &config), end);
    status = strcmp(record.family, "units") == 0
                 ? model_from_list(config, out)
                 : mf_model_from_config(config, record.name, 0, out);
    json_decref(config);
    if (status == MF_STATUS_OK && strcmp(out->fingerprint, plan->model_fingerprint) != 0) {
        mf_model_reset(out);
        status =
            mf_status_set(MF_STATUS_CORRUPT,
                          "the stored model %s is not the one of its fingerprint", record.name);
    }
end:
    mf_arena_reset(&arena);
    return status;
}

enum mf_status mf_tune_find(struct mf_service *service, const char *id, struct mf_plan *out)
{
    struct mf_store_plan_record record;
    struct mf_arena arena;
    json_t *json = NULL;
    if (strlen(id) < 6 || strlen(id) >= MF_HASH_TEXT_MAX) {
        return mf_status_set(MF_STATUS_INVALID,
                             "a plan is named by 6 to 64 digits of its id, found \"%.80s\"", id);
    }
    mf_arena_init(&arena);
    enum mf_status status = mf_store_plan_find(service->store, id, &arena, &record);
    if (status == MF_STATUS_OK && record.json == NULL) {
        status = mf_status_set(MF_STATUS_NOT_FOUND,
                               "%s is a request that does not fit: it has no "
                               "plan",
                               id);
    }
    if (status == MF_STATUS_OK) {
        status = mf_json_parse(record.json, strlen(record.json), "stored plan", &json);
    }
    if (status == MF_STATUS_OK) {
        status = mf_plan_decode(json, out);
        json_decref(json);
    }
    mf_arena_reset(&arena);
    return status;
}
