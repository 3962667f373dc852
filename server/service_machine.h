/*
 * The machines that plans can be made for, over gRPC: HardwareService.GetHardware and ListHardware,
 * ProfileService.ExportProfile and ImportProfile. Who calls it: service_hardware.c,
 * service_profile.c (rows of their tables). Owner, thread: as service_table.h. Fails: as
 * tune_machine.h.
 */
#ifndef MF_SERVER_SERVICE_MACHINE_H
#define MF_SERVER_SERVICE_MACHINE_H

#include "server/service_table.h"

enum mf_status mf_service_machine_get(struct mf_service *service, struct mf_rpc_call *call,
                                      const void *request, struct mf_arena *arena,
                                      ProtobufCMessage **reply) MF_MUST_USE;
enum mf_status mf_service_machine_list(struct mf_service *service, struct mf_rpc_call *call,
                                       const void *request, struct mf_arena *arena,
                                       ProtobufCMessage **reply) MF_MUST_USE;
enum mf_status mf_service_machine_export(struct mf_service *service, struct mf_rpc_call *call,
                                         const void *request, struct mf_arena *arena,
                                         ProtobufCMessage **reply) MF_MUST_USE;
enum mf_status mf_service_machine_import(struct mf_service *service, struct mf_rpc_call *call,
                                         const void *request, struct mf_arena *arena,
                                         ProtobufCMessage **reply) MF_MUST_USE;

#endif
