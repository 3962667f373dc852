/* Plans as text with their model: see tune_file.h. */
#include "server/tune_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/format.h"
#include "core/json.h"
#include "planner/solve.h"
#include "server/tune_internal.h"
#include "server/tune_machine.h"

#define FORMAT "memferry plan 1"

enum mf_status mf_tune_file_export(struct mf_service *service, const char *id,
                                   struct mf_arena *arena, const char **text, const char **full_id)
{
    struct mf_plan plan;
    struct mf_model model;
    MF_TRY(mf_tune_find_whole(service, id, &plan, &model));
    json_t *json =
        json_pack("{s:s, s:o, s:{s:s, s:s, s:O}}", "format", FORMAT, "plan", mf_plan_encode(&plan),
                  "model", "name", model.name, "family", model.family, "config", model.config);
    MF_ASSERT(json != NULL);
    char *dump = json_dumps(json, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    MF_ASSERT(dump != NULL);
    *text = mf_arena_string(arena, dump);
    *full_id = mf_arena_string(arena, plan.id);
    free(dump);
    json_decref(json);
    mf_plan_reset(&plan);
    mf_model_reset(&model);
    return MF_STATUS_OK;
}

static enum mf_status read_model(const json_t *json, struct mf_model *out)
{
    static const char *const known[] = {"name", "family", "config"};
    const char *name = "";
    const char *family = "";
    json_t *config = json_object_get(json, "config");
    MF_TRY(mf_json_only(json, "model", known, 3));
    MF_TRY(mf_json_string(json, "model", "name", &name));
    MF_TRY(mf_json_string(json, "model", "family", &family));
    if (!json_is_object(config) || strlen(name) >= MF_NAME_MAX) {
        return mf_status_set(MF_STATUS_INVALID,
                             "model: \"config\" must be an object and \"name\" at most %d bytes",
                             MF_NAME_MAX - 1);
    }
    return mf_tune_find_build(family, name, config, out);
}

/* Both are the caller's, also after a failure. */
static enum mf_status read_file(const json_t *json, struct mf_plan *plan, struct mf_model *model)
{
    static const char *const known[] = {"format", "plan", "model"};
    const char *format = "";
    MF_TRY(mf_json_string(json, "plan file", "format", &format));
    if (strcmp(format, FORMAT) != 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "this is no plan that memferry plan --export wrote: its \"format\" is "
                             "\"%.40s\", not \"" FORMAT "\"",
                             format);
    }
    MF_TRY(mf_json_only(json, "plan file", known, 3));
    MF_TRY(mf_json_require(json, "plan file", "plan"));
    MF_TRY(mf_json_require(json, "plan file", "model"));
    MF_TRY(read_model(json_object_get(json, "model"), model));
    return mf_plan_decode(json_object_get(json, "plan"), plan);
}

static enum mf_status check_model(const struct mf_plan *plan, const struct mf_model *model,
                                  const char *wanted)
{
    if (strcmp(plan->model_fingerprint, model->fingerprint) != 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "the plan is for a model %.12s, the model beside it is %.12s (%s)",
                             plan->model_fingerprint, model->fingerprint, model->name);
    }
    if (wanted != NULL && strcmp(wanted, model->fingerprint) != 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "the plan is for another model: %s (%.12s), not %.12s", model->name,
                             model->fingerprint, wanted);
    }
    return MF_STATUS_OK;
}

static enum mf_status check_fit(const struct mf_plan *plan, const struct mf_hardware *hardware)
{
    const struct {
        const char *what, *reason;
        enum mf_status status;
        int64_t needed, available;
    } checks[] = {{"device memory", "DEVICE_MEMORY_TOO_SMALL", MF_STATUS_NO_DEVICE_MEMORY,
                   plan->prediction.device_peak_bytes, hardware->devices[0].memory_bytes},
                  {"host memory", "HOST_MEMORY_TOO_SMALL", MF_STATUS_NO_MEMORY,
                   plan->prediction.host_peak_bytes, hardware->host_bytes}};
    char needed[MF_FORMAT_MAX];
    char available[MF_FORMAT_MAX];
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        if (checks[i].needed > checks[i].available) {
            enum mf_status status = mf_status_set_reason(
                checks[i].status, checks[i].reason,
                "the plan needs %s of %s, %s has %s: ask for a plan for that machine",
                mf_format_bytes(checks[i].needed, needed), checks[i].what,
                hardware->devices[0].name, mf_format_bytes(checks[i].available, available));
            mf_status_number("needed_bytes", checks[i].needed);
            mf_status_number("available_bytes", checks[i].available);
            return status;
        }
    }
    return MF_STATUS_OK;
}

/* As if it had been made here and now. */
static enum mf_status predict(struct mf_service *service, const struct mf_hardware *hardware,
                              const struct mf_model *model, struct mf_plan *plan)
{
    struct mf_profile profile;
    plan->planner_version = MF_PLANNER_VERSION;
    MF_TRY(mf_plan_validate(plan, model));
    mf_hardware_fingerprint(hardware, plan->hardware_fingerprint);
    (void)snprintf(plan->model_name, sizeof(plan->model_name), "%s", model->name);
    plan->created_unix_s = (int64_t)time(NULL);
    mf_tune_machine_profile(service, hardware, &profile);
    enum mf_status status =
        mf_solve_predict(model, hardware, profile.count > 0 ? &profile : NULL, plan);
    mf_profile_reset(&profile);
    MF_TRY(status);
    MF_TRY(check_fit(plan, hardware));
    mf_plan_seal(plan);
    return MF_STATUS_OK;
}

static enum mf_status keep(struct mf_service *service, const struct mf_hardware *hardware,
                           const struct mf_model *model, const struct mf_plan *plan)
{
    char text[MF_HASH_TEXT_MAX + 16];
    char key[MF_HASH_TEXT_MAX];
    int length = snprintf(text, sizeof(text), "imported %s", plan->id);
    struct mf_plan same;
    if (mf_tune_find(service, plan->id, &same) == MF_STATUS_OK) { /* the same plan, made here */
        mf_plan_reset(&same);
        return MF_STATUS_OK;
    }
    mf_hash(text, (size_t)length, key);
    MF_TRY(mf_store_model_put(service->store, model));
    MF_TRY(mf_store_hardware_put(service->store, hardware));
    MF_TRY(mf_store_plan_put(service->store, key, plan));
    mf_tune_changed(service);
    return MF_STATUS_OK;
}

enum mf_status mf_tune_file_import(struct mf_service *service, const char *text, const char *wanted,
                                   const struct mf_hardware *hardware, struct mf_plan *plan,
                                   struct mf_model *model, double *before)
{
    json_t *json = NULL;
    *plan = (struct mf_plan){0};
    *model = (struct mf_model){0};
    MF_TRY(mf_json_parse(text, strlen(text), "plan file", &json));
    enum mf_status status = read_file(json, plan, model);
    json_decref(json);
    if (status == MF_STATUS_OK) {
        *before = plan->prediction.step_ns;
        status = check_model(plan, model, wanted);
    }
    if (status == MF_STATUS_OK) {
        status = predict(service, hardware, model, plan);
    }
    if (status == MF_STATUS_OK) {
        status = keep(service, hardware, model, plan);
    }
    if (status != MF_STATUS_OK) {
        mf_plan_reset(plan);
        mf_model_reset(model);
    }
    return status;
}
