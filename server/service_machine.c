/* The machines that plans can be made for: see service_machine.h. */
#include "server/service_machine.h"

#include <stdlib.h>

#include "memferry/v1/profile.pb-c.h"
#include "server/convert.h"
#include "server/session.h"
#include "server/tune_machine.h"

static const char *describe(const struct mf_hardware *hardware, struct mf_arena *arena)
{
    json_t *json = mf_hardware_encode(hardware);
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    MF_ASSERT(text != NULL);
    const char *kept = mf_arena_string(arena, text);
    free(text);
    json_decref(json);
    return kept;
}

enum mf_status mf_service_machine_get(struct mf_service *service, struct mf_rpc_call *call,
                                      const void *request, struct mf_arena *arena,
                                      ProtobufCMessage **reply)
{
    const Memferry__V1__GetHardwareRequest *message = request;
    struct mf_hardware hardware;
    int64_t device = 0;
    int64_t host = 0;
    (void)call;
    MF_TRY(mf_tune_machine_find(service, message->name, &hardware));
    if (mf_tune_machine_here(service, &hardware)) {
        mf_session_table_reserved(service->sessions, &device, &host);
    }
    Memferry__V1__GetHardwareResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__GetHardwareResponse, MEMFERRY__V1__GET_HARDWARE_RESPONSE__INIT);
    out->hardware = mf_convert_hardware(&hardware, device, arena);
    out->no_gpu = mf_arena_string(arena, service->no_gpu);
    out->description = (char *)describe(&hardware, arena);
    *reply = &out->base;
    return MF_STATUS_OK;
}

enum mf_status mf_service_machine_list(struct mf_service *service, struct mf_rpc_call *call,
                                       const void *request, struct mf_arena *arena,
                                       ProtobufCMessage **reply)
{
    Memferry__V1__ListHardwareResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__ListHardwareResponse, MEMFERRY__V1__LIST_HARDWARE_RESPONSE__INIT);
    (void)call;
    (void)request;
    *reply = &out->base;
    return mf_tune_machine_list(service, arena, &out->machines, &out->n_machines);
}

enum mf_status mf_service_machine_export(struct mf_service *service, struct mf_rpc_call *call,
                                         const void *request, struct mf_arena *arena,
                                         ProtobufCMessage **reply)
{
    const Memferry__V1__ExportProfileRequest *message = request;
    const char *text = NULL;
    Memferry__V1__ExportProfileResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__ExportProfileResponse, MEMFERRY__V1__EXPORT_PROFILE_RESPONSE__INIT);
    (void)call;
    MF_TRY(
        mf_tune_machine_export(service, message->hardware, arena, &text, &out->measurement_count));
    out->json = (char *)text;
    *reply = &out->base;
    return MF_STATUS_OK;
}

enum mf_status mf_service_machine_import(struct mf_service *service, struct mf_rpc_call *call,
                                         const void *request, struct mf_arena *arena,
                                         ProtobufCMessage **reply)
{
    const Memferry__V1__ImportProfileRequest *message = request;
    struct mf_hardware hardware;
    Memferry__V1__ImportProfileResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__ImportProfileResponse, MEMFERRY__V1__IMPORT_PROFILE_RESPONSE__INIT);
    (void)call;
    MF_TRY(mf_tune_machine_import(service, message->json, &hardware, &out->measurement_count));
    out->hardware = mf_tune_machine_summary(service, &hardware, arena);
    *reply = &out->base;
    return MF_STATUS_OK;
}
