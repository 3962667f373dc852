/* All methods that the daemon serves: see service_table.h. */
#include "server/service_table.h"

#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"

void *mf_service_table_new(struct mf_arena *arena, size_t size, const void *initial)
{
    void *message = mf_arena_alloc(arena, 1, size);
    memcpy(message, initial, size);
    return message;
}

static void run_unary(struct mf_rpc_call *call, const uint8_t *bytes, size_t count, void *context)
{
    const struct mf_service_table_unary *row = context;
    struct mf_arena arena;
    ProtobufCMessage *request = NULL;
    ProtobufCMessage *reply = NULL;
    mf_arena_init(&arena);
    enum mf_status status = mf_wire_unpack(row->request, bytes, count, 0, &request);
    if (status == MF_STATUS_OK) {
        status = row->answer(row->service, call, request, &arena, &reply);
    }
    if (status == MF_STATUS_OK) {
        size_t size = 0;
        uint8_t *packed = mf_wire_pack(reply, &size);
        mf_rpc_call_reply(call, packed, size);
        free(packed);
    } else {
        mf_rpc_call_fail(call, mf_status_error());
    }
    mf_wire_free(request);
    mf_arena_reset(&arena);
}

void mf_service_table_unary(struct mf_service *service, struct mf_rpc_server *server,
                            struct mf_service_table_unary *rows, struct mf_rpc_method *methods,
                            size_t count)
{
    for (size_t i = 0; i < count; i++) {
        rows[i].service = service;
        methods[i] = (struct mf_rpc_method){
            .path = rows[i].path, .kind = MF_RPC_UNARY, .handler = run_unary, .context = &rows[i]};
    }
    mf_rpc_server_add(server, methods, count);
}

enum mf_status mf_service_table_send(struct mf_rpc_call *call, const ProtobufCMessage *message,
                                     bool wait)
{
    size_t count = 0;
    uint8_t *bytes = mf_wire_pack(message, &count);
    enum mf_status status =
        wait ? mf_rpc_call_send_wait(call, bytes, count, -1) : mf_rpc_call_send(call, bytes, count);
    free(bytes);
    return status;
}

void mf_service_table_add(struct mf_service *service, struct mf_rpc_server *server)
{
    mf_service_hardware_add(service, server);
    mf_service_profile_add(service, server);
    mf_service_plan_add(service, server);
    mf_service_training_add(service, server);
}
