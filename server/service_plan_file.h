/*
 * PlanService.ExportPlan and ImportPlan. Who calls it: service_plan.c (rows of its table). Owner,
 * thread: as service_table.h. Fails: as tune_file.h.
 */
#ifndef MF_SERVER_SERVICE_PLAN_FILE_H
#define MF_SERVER_SERVICE_PLAN_FILE_H

#include "server/service_table.h"

enum mf_status mf_service_plan_file_export(struct mf_service *service, struct mf_rpc_call *call,
                                           const void *request, struct mf_arena *arena,
                                           ProtobufCMessage **reply) MF_MUST_USE;
enum mf_status mf_service_plan_file_import(struct mf_service *service, struct mf_rpc_call *call,
                                           const void *request, struct mf_arena *arena,
                                           ProtobufCMessage **reply) MF_MUST_USE;

#endif
