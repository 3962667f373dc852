/* See library_call.h. The path and the reply's type come from the generated service descriptors,
 * so a method is named once, in the contract. */
#include "client/library_call.h"

#include <stdio.h>
#include <stdlib.h>

#include "proto/wire.h"

#define PATH_MAX_BYTES 128

static const ProtobufCMethodDescriptor *find_method(const ProtobufCServiceDescriptor *service,
                                                    const char *name, char path[PATH_MAX_BYTES])
{
    const ProtobufCMethodDescriptor *method =
        protobuf_c_service_descriptor_get_method_by_name(service, name);
    MF_ASSERT(method != NULL);
    snprintf(path, PATH_MAX_BYTES, "/%s/%s", service->name, name);
    return method;
}

static enum mf_status read_reply(const ProtobufCMessageDescriptor *descriptor, uint8_t *bytes,
                                 size_t count, ProtobufCMessage **out)
{
    enum mf_status status = mf_wire_unpack(descriptor, bytes, count, 0, out);
    free(bytes);
    if (status != MF_STATUS_OK) {
        return mf_status_set(MF_STATUS_CORRUPT,
                             "the daemon's answer (%s) cannot be read; client and daemon may be of "
                             "different versions",
                             descriptor->short_name);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_library_call_unary(struct mf_channel *channel,
                                     const ProtobufCServiceDescriptor *service, const char *method,
                                     const ProtobufCMessage *request, int64_t deadline_ms,
                                     ProtobufCMessage **reply)
{
    char path[PATH_MAX_BYTES];
    const ProtobufCMethodDescriptor *found = find_method(service, method, path);
    MF_ASSERT(request->descriptor == found->input);

    *reply = NULL;
    size_t count = 0;
    uint8_t *bytes = mf_wire_pack(request, &count);
    uint8_t *answer = NULL;
    size_t answer_count = 0;
    enum mf_status status =
        mf_channel_call(channel, path, bytes, count, deadline_ms, &answer, &answer_count);
    free(bytes);
    MF_TRY(status);
    return read_reply(found->output, answer, answer_count, reply);
}

enum mf_status mf_library_call_open(struct mf_channel *channel,
                                    const ProtobufCServiceDescriptor *service, const char *method,
                                    const ProtobufCMessage *request,
                                    struct mf_library_call_stream *out)
{
    char path[PATH_MAX_BYTES];
    const ProtobufCMethodDescriptor *found = find_method(service, method, path);
    MF_ASSERT(request->descriptor == found->input);

    size_t count = 0;
    uint8_t *bytes = mf_wire_pack(request, &count);
    out->reply = found->output;
    out->stream = NULL;
    enum mf_status status = mf_channel_stream_open(channel, path, bytes, count,
                                                   MF_LIBRARY_CALL_NO_LIMIT_MS, &out->stream);
    free(bytes);
    return status;
}

enum mf_status mf_library_call_next(struct mf_library_call_stream *stream, ProtobufCMessage **reply)
{
    *reply = NULL;
    uint8_t *bytes = NULL;
    size_t count = 0;
    MF_TRY(mf_channel_stream_next(stream->stream, &bytes, &count));
    if (bytes == NULL) {
        return MF_STATUS_OK;
    }
    return read_reply(stream->reply, bytes, count, reply);
}

void mf_library_call_close(struct mf_library_call_stream *stream)
{
    mf_channel_stream_close(stream->stream);
    stream->stream = NULL;
}
