/* PlanService.ExplainPlan, a row of service_plan.c; see service_table.h for what a row does. Fails:
 * MF_STATUS_NOT_FOUND for a plan or a unit, with the nearest name; MF_STATUS_CANCELLED. */
#ifndef MF_SERVER_SERVICE_EXPLAIN_H
#define MF_SERVER_SERVICE_EXPLAIN_H

#include <protobuf-c/protobuf-c.h>

#include "core/arena.h"
#include "server/rpc.h"
#include "server/service.h"

enum mf_status mf_service_explain_plan(struct mf_service *service, struct mf_rpc_call *call,
                                       const void *request, struct mf_arena *arena,
                                       ProtobufCMessage **reply) MF_MUST_USE;

#endif
