/* HardwareService: the machine, the daemon's state, checks, and its end. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "memferry/v1/hardware.pb-c.h"
#include "server/convert.h"
#include "server/doctor.h"
#include "server/service_machine.h"
#include "server/service_table.h"
#include "server/session.h"
#include "server/tune.h"

static enum mf_status get_status(struct mf_service *service, struct mf_rpc_call *call,
                                 const void *request, struct mf_arena *arena,
                                 ProtobufCMessage **reply)
{
    struct mf_hardware hardware;
    struct mf_profile profile;
    struct mf_store_plan_record *plans = NULL;
    int32_t plan_count = 0;
    char doing[MF_DEVICE_WHAT_MAX];
    (void)call;
    (void)request;
    mf_tune_hardware(service, &hardware);
    mf_tune_profile(service, &profile);
    mf_device_worker_doing(service->worker, doing, sizeof(doing));
    Memferry__V1__GetStatusResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__GetStatusResponse, MEMFERRY__V1__GET_STATUS_RESPONSE__INIT);
    out->version = mf_arena_string(arena, MF_VERSION);
    out->pid = getpid();
    out->uptime_seconds = difftime(time(NULL), (time_t)service->started_unix_s);
    out->address = mf_arena_string(arena, service->address);
    out->store_path = mf_arena_format(arena, "%s/memferry.db", service->config.home);
    out->session_count = mf_session_table_count(service->sessions);
    out->sessions_max = service->config.sessions_max;
    mf_session_table_reserved(service->sessions, &out->device_reserved_bytes,
                              &out->host_reserved_bytes);
    out->device_memory_bytes = hardware.devices[0].memory_bytes;
    out->host_memory_bytes = hardware.host_bytes;
    if (mf_store_plan_list(service->store, arena, &plans, &plan_count) == MF_STATUS_OK) {
        out->plan_count = plan_count;
    }
    out->measurement_count = profile.count;
    out->working_on = mf_arena_string(arena, doing);
    out->no_gpu = mf_arena_string(arena, service->no_gpu);
    mf_profile_reset(&profile);
    *reply = &out->base;
    return MF_STATUS_OK;
}

static enum mf_status doctor(struct mf_service *service, struct mf_rpc_call *call,
                             const void *request, struct mf_arena *arena, ProtobufCMessage **reply)
{
    static const Memferry__V1__DoctorCheck__Verdict verdicts[] = {
        [MF_DOCTOR_GOOD] = MEMFERRY__V1__DOCTOR_CHECK__VERDICT__VERDICT_GOOD,
        [MF_DOCTOR_NOTE] = MEMFERRY__V1__DOCTOR_CHECK__VERDICT__VERDICT_NOTE,
        [MF_DOCTOR_BAD] = MEMFERRY__V1__DOCTOR_CHECK__VERDICT__VERDICT_BAD,
    };
    struct mf_doctor_check checks[MF_DOCTOR_CHECKS_MAX];
    (void)call;
    (void)request;
    size_t count = (size_t)mf_doctor_run(service, checks);
    Memferry__V1__DoctorResponse *out = MF_SERVICE_TABLE_NEW(arena, Memferry__V1__DoctorResponse,
                                                             MEMFERRY__V1__DOCTOR_RESPONSE__INIT);
    out->n_checks = count;
    out->checks = mf_arena_alloc(arena, count + 1, sizeof(*out->checks));
    for (size_t i = 0; i < count; i++) {
        out->checks[i] = MF_SERVICE_TABLE_NEW(arena, Memferry__V1__DoctorCheck,
                                              MEMFERRY__V1__DOCTOR_CHECK__INIT);
        out->checks[i]->name = mf_arena_string(arena, checks[i].name);
        out->checks[i]->value = mf_arena_string(arena, checks[i].value);
        out->checks[i]->verdict = verdicts[checks[i].verdict];
        out->checks[i]->meaning = mf_arena_string(arena, checks[i].meaning);
    }
    *reply = &out->base;
    return MF_STATUS_OK;
}

static enum mf_status shut_down(struct mf_service *service, struct mf_rpc_call *call,
                                const void *request, struct mf_arena *arena,
                                ProtobufCMessage **reply)
{
    const Memferry__V1__ShutdownRequest *message = request;
    const struct mf_peer *peer = mf_rpc_call_peer(call);
    if (!peer->known || (peer->uid != geteuid() && peer->uid != 0)) {
        return mf_status_set_reason(MF_STATUS_DENIED, "NOT_THE_OWNER",
                                    "only the user who runs memferryd, or root, over its unix "
                                    "socket, may end it");
    }
    service->request_shutdown(service, message->force);
    Memferry__V1__ShutdownResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__ShutdownResponse, MEMFERRY__V1__SHUTDOWN_RESPONSE__INIT);
    *reply = &out->base;
    return MF_STATUS_OK;
}

void mf_service_hardware_add(struct mf_service *service, struct mf_rpc_server *server)
{
    static struct mf_service_table_unary rows[] = {
        {.path = "/memferry.v1.HardwareService/GetHardware",
         .request = &memferry__v1__get_hardware_request__descriptor,
         .answer = mf_service_machine_get},
        {.path = "/memferry.v1.HardwareService/ListHardware",
         .request = &memferry__v1__list_hardware_request__descriptor,
         .answer = mf_service_machine_list},
        {.path = "/memferry.v1.HardwareService/GetStatus",
         .request = &memferry__v1__get_status_request__descriptor,
         .answer = get_status},
        {.path = "/memferry.v1.HardwareService/Doctor",
         .request = &memferry__v1__doctor_request__descriptor,
         .answer = doctor},
        {.path = "/memferry.v1.HardwareService/Shutdown",
         .request = &memferry__v1__shutdown_request__descriptor,
         .answer = shut_down},
    };
    static struct mf_rpc_method methods[sizeof(rows) / sizeof(rows[0])];
    mf_service_table_unary(service, server, rows, methods, sizeof(rows) / sizeof(rows[0]));
}
