/*
 * All methods that the daemon serves, and how a unary one runs.
 *
 * What: each service_<name>.c adds its methods to the RPC server; a unary method is a row: path,
 *   request type, function. The function gets the unpacked request and an arena, and gives a reply
 *   or a status. Who calls it: memferryd.c. Owner: rows are static; the request and the arena are
 *   freed after the reply was packed. Thread: RPC workers. Fails: a status becomes the call's
 * error.
 */
#ifndef MF_SERVER_SERVICE_TABLE_H
#define MF_SERVER_SERVICE_TABLE_H

#include <protobuf-c/protobuf-c.h>

#include "core/arena.h"
#include "server/rpc.h"
#include "server/service.h"

struct mf_service_table_unary {
    const char *path;
    const ProtobufCMessageDescriptor *request;
    /* `reply` gets a message that lives in the arena. */
    enum mf_status (*answer)(struct mf_service *service, struct mf_rpc_call *call,
                             const void *request, struct mf_arena *arena, ProtobufCMessage **reply);
    struct mf_service *service; /* set when it is added */
};

/* Adds rows; `methods` is the caller's static room for as many RPC methods. */
void mf_service_table_unary(struct mf_service *service, struct mf_rpc_server *server,
                            struct mf_service_table_unary *rows, struct mf_rpc_method *methods,
                            size_t count);
/* Packs and sends one message of a stream, waiting for room when `wait`. */
enum mf_status mf_service_table_send(struct mf_rpc_call *call, const ProtobufCMessage *message,
                                     bool wait) MF_MUST_USE;
/* Every service. */
void mf_service_table_add(struct mf_service *service, struct mf_rpc_server *server);

void mf_service_hardware_add(struct mf_service *service, struct mf_rpc_server *server);
void mf_service_plan_add(struct mf_service *service, struct mf_rpc_server *server);
void mf_service_profile_add(struct mf_service *service, struct mf_rpc_server *server);
void mf_service_training_add(struct mf_service *service, struct mf_rpc_server *server);

/* A new message of `arena`: MF_SERVICE_TABLE_NEW(arena, Memferry__V1__Plan,
 * MEMFERRY__V1__PLAN__INIT). */
#define MF_SERVICE_TABLE_NEW(arena, type, init)                                                    \
    ((type *)mf_service_table_new((arena), sizeof(type), &(const type)init))
void *mf_service_table_new(struct mf_arena *arena, size_t size, const void *initial);

#endif
