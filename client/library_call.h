/*
 * Typed calls: a protobuf message to a method of the daemon, a message or an error back.
 *
 * Who calls it: libmemferry and the CLI. Owner: a reply is the caller's until mf_wire_free().
 * Thread: as channel.h: calls from any thread, a stream from one. Fails: as channel.h, or
 * MF_STATUS_CORRUPT when a reply cannot be read.
 */
#ifndef MF_CLIENT_LIBRARY_CALL_H
#define MF_CLIENT_LIBRARY_CALL_H

#include <protobuf-c/protobuf-c.h>
#include <stdint.h>

#include "client/channel.h"
#include "core/status.h"

/* Waits this long for what needs no device work. */
#define MF_LIBRARY_CALL_SHORT_MS 30000
/* No time limit: the work itself decides. */
#define MF_LIBRARY_CALL_NO_LIMIT_MS 0

/* `reply` points to a pointer of the method's reply type. */
enum mf_status mf_library_call_unary(struct mf_channel *channel,
                                     const ProtobufCServiceDescriptor *service, const char *method,
                                     const ProtobufCMessage *request, int64_t deadline_ms,
                                     ProtobufCMessage **reply) MF_MUST_USE;

struct mf_library_call_stream {
    struct mf_channel_stream *stream;
    const ProtobufCMessageDescriptor *reply;
};

enum mf_status mf_library_call_open(struct mf_channel *channel,
                                    const ProtobufCServiceDescriptor *service, const char *method,
                                    const ProtobufCMessage *request,
                                    struct mf_library_call_stream *out) MF_MUST_USE;
/* At the end *reply is NULL and the status is how the call ended. */
enum mf_status mf_library_call_next(struct mf_library_call_stream *stream,
                                    ProtobufCMessage **reply) MF_MUST_USE;
void mf_library_call_close(struct mf_library_call_stream *stream);

#endif
