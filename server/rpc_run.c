/* From a received request to its handler: checks, then a worker or this thread; see rpc_internal.h.
 * A call that runs has one hold for the run. */
#include <grpc/byte_buffer_reader.h>

#include "server/rpc_internal.h"

/* The request as one piece; a copy only when it came in several. */
static grpc_slice flatten(grpc_byte_buffer *buffer)
{
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, buffer)) {
        return grpc_empty_slice();
    }
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    return slice;
}

static void forget_request(struct mf_rpc_call *call)
{
    grpc_slice_unref(call->request);
    call->request = grpc_empty_slice();
}

static bool answer_at_once(struct mf_rpc_call *call)
{
    const struct mf_rpc_method *method = call->method;
    if (method->at_once == NULL ||
        !method->at_once(call, GRPC_SLICE_START_PTR(call->request),
                         GRPC_SLICE_LENGTH(call->request), method->context)) {
        return false;
    }
    forget_request(call);
    mf_rpc_call_release(call);
    return true;
}

static void run(void *argument)
{
    struct mf_rpc_call *call = argument;
    const struct mf_rpc_method *method = call->method;
    bool end = call->request_end;
    if (!mf_rpc_call_cancelled(call)) {
        const uint8_t *bytes = GRPC_SLICE_START_PTR(call->request);
        method->handler(call, end ? NULL : bytes, GRPC_SLICE_LENGTH(call->request),
                        method->context);
    }
    forget_request(call);
    if (method->kind == MF_RPC_BIDI && !end) {
        pthread_mutex_lock(&call->lock);
        call->receiving = false;
        pthread_mutex_unlock(&call->lock);
        mf_rpc_event_receive(call);
    }
    mf_rpc_call_release(call);
}

static enum mf_status check(const struct mf_rpc_call *call, const grpc_byte_buffer *buffer,
                            size_t bytes)
{
    const struct mf_rpc_method *method = call->method;
    size_t limit =
        method->request_bytes_max > 0 ? method->request_bytes_max : (size_t)MF_MESSAGE_BYTES_MAX;
    if (buffer == NULL && method->kind != MF_RPC_BIDI) {
        return mf_status_set_reason(MF_STATUS_INVALID, "REQUEST_MISSING",
                                    "%s: the client sent no request", method->path);
    }
    if (bytes <= limit) {
        return MF_STATUS_OK;
    }
    enum mf_status status = mf_status_set_reason(
        MF_STATUS_INVALID, "REQUEST_TOO_LARGE",
        "%s: a request of %zu bytes, at most %zu are allowed", method->path, bytes, limit);
    mf_status_number("request_bytes", (int64_t)bytes);
    mf_status_number("limit_bytes", (int64_t)limit);
    return status;
}

void mf_rpc_run_request(struct mf_rpc_call *call, grpc_byte_buffer *buffer)
{
    size_t bytes = buffer != NULL ? grpc_byte_buffer_length(buffer) : 0;
    enum mf_status status = check(call, buffer, bytes);
    if (status == MF_STATUS_OK) {
        call->request = buffer != NULL ? flatten(buffer) : grpc_empty_slice();
        mf_rpc_call_begin_run(call, buffer == NULL);
        if (call->method->immediate) {
            run(call);
        } else if (!answer_at_once(call)) {
            status = mf_rpc_pool_put(mf_rpc_server_pool(call->server), run, call);
        }
        if (status != MF_STATUS_OK) {
            mf_rpc_call_fail(call, mf_status_error());
            forget_request(call);
            mf_rpc_call_release(call);
        }
    } else {
        mf_rpc_call_fail(call, mf_status_error());
    }
    if (buffer != NULL) {
        grpc_byte_buffer_destroy(buffer);
    }
}
