/* PlanService.ExportPlan and ImportPlan: see service_plan_file.h. */
#include "server/service_plan_file.h"

#include "server/convert.h"
#include "server/tune_file.h"
#include "server/tune_machine.h"

enum mf_status mf_service_plan_file_export(struct mf_service *service, struct mf_rpc_call *call,
                                           const void *request, struct mf_arena *arena,
                                           ProtobufCMessage **reply)
{
    const Memferry__V1__ExportPlanRequest *message = request;
    const char *text = NULL;
    const char *id = NULL;
    (void)call;
    MF_TRY(mf_tune_file_export(service, message->id, arena, &text, &id));
    Memferry__V1__ExportPlanResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__ExportPlanResponse, MEMFERRY__V1__EXPORT_PLAN_RESPONSE__INIT);
    out->json = (char *)text;
    out->id = (char *)id;
    *reply = &out->base;
    return MF_STATUS_OK;
}

/* The fingerprint that the plan's model must have; NULL = any. */
static enum mf_status read_wanted(struct mf_service *service, const Memferry__V1__Model *message,
                                  struct mf_arena *arena, const char **out)
{
    struct mf_model model;
    *out = NULL;
    if (message == NULL) {
        return MF_STATUS_OK;
    }
    MF_TRY(mf_convert_model(service, message, arena, &model, NULL));
    *out = mf_arena_string(arena, model.fingerprint);
    mf_model_reset(&model);
    return MF_STATUS_OK;
}

enum mf_status mf_service_plan_file_import(struct mf_service *service, struct mf_rpc_call *call,
                                           const void *request, struct mf_arena *arena,
                                           ProtobufCMessage **reply)
{
    const Memferry__V1__ImportPlanRequest *message = request;
    struct mf_hardware hardware;
    struct mf_plan plan;
    struct mf_model model;
    const char *wanted = NULL;
    Memferry__V1__ImportPlanResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__ImportPlanResponse, MEMFERRY__V1__IMPORT_PLAN_RESPONSE__INIT);
    (void)call;
    MF_TRY(read_wanted(service, message->model, arena, &wanted));
    MF_TRY(mf_tune_machine_find(service, message->hardware, &hardware));
    MF_TRY(mf_tune_file_import(service, message->json, wanted, &hardware, &plan, &model,
                               &out->step_ns_before));
    enum mf_status status = mf_convert_plan(service, &plan, &model, arena, &out->plan);
    mf_plan_reset(&plan);
    mf_model_reset(&model);
    *reply = &out->base;
    return status;
}
