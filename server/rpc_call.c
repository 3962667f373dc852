/* A call as its handlers see it: holding, sending, ending, cancelling. See rpc.h. */
#include <errno.h>
#include <grpc/slice.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/wire.h"
#include "server/rpc_internal.h"

#define DETAILS_KEY "grpc-status-details-bin"
#define OPS_MAX 3
#define NS_PER_S 1000000000ll
#define NS_PER_MS 1000000ll

int64_t mf_rpc_call_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

void mf_rpc_call_free(struct mf_rpc_call *call)
{
    MF_ASSERT(call->holds == 0 && call->events_out == 0 && call->retired);
    pthread_cond_destroy(&call->changed);
    pthread_mutex_destroy(&call->lock);
    free(call->error);
    free(call);
}

/* The functions named *_locked need the call's lock. */

static void start_locked(struct mf_rpc_call *call, const grpc_op *ops, size_t count,
                         enum mf_rpc_event event)
{
    MF_ASSERT(!call->closed && call->core != NULL);
    call->events_out++;
    grpc_call_error error = grpc_call_start_batch(call->core, ops, count, &call->tags[event], NULL);
    MF_ASSERT(error == GRPC_CALL_OK);
}

/* The first batch that goes out carries the (empty) initial metadata. */
static size_t metadata_op_locked(struct mf_rpc_call *call, grpc_op *ops)
{
    if (call->metadata_sent) {
        return 0;
    }
    call->metadata_sent = true;
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    return 1;
}

static size_t message_op(grpc_byte_buffer *buffer, grpc_op *op)
{
    *op = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
    op->data.send_message.send_message = buffer;
    return 1;
}

static void send_next_locked(struct mf_rpc_call *call)
{
    grpc_op ops[OPS_MAX];
    grpc_byte_buffer *buffer = call->queue[call->queue_first];
    call->queue_first = (call->queue_first + 1) % MF_STREAM_QUEUE_MAX;
    call->queue_count--;
    call->queue_bytes -= grpc_byte_buffer_length(buffer);
    size_t count = metadata_op_locked(call, ops);
    count += message_op(buffer, &ops[count]);
    call->sending = true;
    start_locked(call, ops, count, MF_RPC_EVENT_SEND);
    grpc_byte_buffer_destroy(buffer); /* gRPC has its own reference now. */
}

static void send_status_locked(struct mf_rpc_call *call)
{
    grpc_op ops[OPS_MAX];
    size_t count = metadata_op_locked(call, ops);
    if (call->reply != NULL) {
        count += message_op(call->reply, &ops[count]);
    }
    grpc_op *op = &ops[count++];
    *op = (grpc_op){.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    op->data.send_status_from_server.status = GRPC_STATUS_OK;

    char text[MF_STATUS_TEXT_MAX];
    grpc_slice text_slice = grpc_empty_slice();
    grpc_metadata trailer = {.key = grpc_slice_from_static_string(DETAILS_KEY),
                             .value = grpc_empty_slice()};
    if (call->error != NULL) {
        grpc_status_code code = mf_rpc_code(call->error->status);
        mf_wire_utf8_repair(call->error->text, text, sizeof(text));
        text_slice = grpc_slice_from_copied_string(text);
        size_t bytes = 0;
        uint8_t *details = mf_wire_error_encode(call->error, (int)code, &bytes);
        trailer.value = grpc_slice_from_copied_buffer((const char *)details, bytes);
        free(details);
        op->data.send_status_from_server.status = code;
        op->data.send_status_from_server.status_details = &text_slice;
        op->data.send_status_from_server.trailing_metadata_count = 1;
        op->data.send_status_from_server.trailing_metadata = &trailer;
    }
    call->status_sent = true;
    start_locked(call, ops, count, MF_RPC_EVENT_FINISH);
    grpc_slice_unref(text_slice);
    grpc_slice_unref(trailer.value);
    if (call->reply != NULL) {
        grpc_byte_buffer_destroy(call->reply);
        call->reply = NULL;
    }
}

void mf_rpc_call_pump(struct mf_rpc_call *call)
{
    if (call->closed || call->broken || call->sending) {
        return;
    }
    if (call->queue_count > 0) {
        send_next_locked(call);
    } else if (call->ended && !call->status_sent) {
        send_status_locked(call);
    }
}

static grpc_byte_buffer *copy_bytes(const uint8_t *bytes, size_t count)
{
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)bytes, count);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

/* True when this is what ends the call. */
static bool end_locked(struct mf_rpc_call *call, const struct mf_error *error)
{
    if (call->ended || call->closed) {
        return false;
    }
    call->ended = true;
    if (error != NULL) {
        call->error = malloc(sizeof(*error));
        MF_ASSERT(call->error != NULL);
        *call->error = *error;
        if (error->status == MF_STATUS_OK) {
            call->error->status = MF_STATUS_INTERNAL;
        }
    }
    pthread_cond_broadcast(&call->changed);
    return true;
}

void mf_rpc_call_begin_run(struct mf_rpc_call *call, bool end)
{
    pthread_mutex_lock(&call->lock);
    call->request_end = end;
    call->holds++;
    pthread_mutex_unlock(&call->lock);
}

void mf_rpc_call_hold(struct mf_rpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    MF_ASSERT(call->holds > 0); /* Only who has the call may hold it. */
    call->holds++;
    pthread_mutex_unlock(&call->lock);
}

void mf_rpc_call_release(struct mf_rpc_call *call)
{
    static const struct mf_error forgotten = {
        .status = MF_STATUS_INTERNAL,
        .reason = "CALL_FORGOTTEN",
        .text = "the handler left the call without an answer",
    };
    pthread_mutex_lock(&call->lock);
    MF_ASSERT(call->holds > 0);
    call->holds--;
    bool waits_for_request = call->method->kind == MF_RPC_BIDI && !call->request_end;
    if (call->holds == 0 && !waits_for_request && end_locked(call, &forgotten)) {
        mf_rpc_call_pump(call);
    }
    bool gone = call->holds == 0 && call->retired;
    pthread_mutex_unlock(&call->lock);
    if (gone) {
        mf_rpc_call_free(call);
    }
}

static enum mf_status stop_reason_locked(const struct mf_rpc_call *call)
{
    if (call->closed || call->broken) {
        if (mf_rpc_call_now_ns() >= call->deadline_ns) {
            return mf_status_set(MF_STATUS_DEADLINE, "the caller's deadline has passed");
        }
        return mf_status_set(MF_STATUS_CANCELLED, "the caller has cancelled or is gone");
    }
    if (call->ended) {
        return mf_status_set(MF_STATUS_CANCELLED, "the call was answered already");
    }
    return MF_STATUS_OK;
}

static bool full_locked(const struct mf_rpc_call *call, size_t count)
{
    return call->queue_count == MF_STREAM_QUEUE_MAX ||
           (call->queue_count > 0 && call->queue_bytes + count > (size_t)MF_RPC_STREAM_BYTES_MAX);
}

static void put_locked(struct mf_rpc_call *call, const uint8_t *bytes, size_t count)
{
    size_t last = (call->queue_first + call->queue_count) % MF_STREAM_QUEUE_MAX;
    call->queue[last] = copy_bytes(bytes, count);
    call->queue_count++;
    call->queue_bytes += count;
    mf_rpc_call_pump(call);
}

/* Waits until there is room, the call has stopped, or `until_ns`. */
static enum mf_status wait_for_room_locked(struct mf_rpc_call *call, size_t count, int64_t until_ns)
{
    const struct timespec until = {.tv_sec = until_ns / NS_PER_S, .tv_nsec = until_ns % NS_PER_S};
    for (;;) {
        MF_TRY(stop_reason_locked(call));
        if (!full_locked(call, count)) {
            return MF_STATUS_OK;
        }
        if (until_ns == 0 || mf_rpc_call_now_ns() >= until_ns) {
            enum mf_status status = mf_status_set_reason(
                until_ns == 0 ? MF_STATUS_BUSY : MF_STATUS_DEADLINE, "STREAM_FULL",
                "the reader of %s is slow: %zu messages wait", call->path, call->queue_count);
            mf_status_number("waiting_count", (int64_t)call->queue_count);
            mf_status_number("limit_count", MF_STREAM_QUEUE_MAX);
            return status;
        }
        if (until_ns == INT64_MAX) {
            pthread_cond_wait(&call->changed, &call->lock);
        } else {
            pthread_cond_timedwait(&call->changed, &call->lock, &until);
        }
    }
}

/* `until_ns` 0 = do not wait. */
static enum mf_status send_until(struct mf_rpc_call *call, const uint8_t *bytes, size_t count,
                                 int64_t until_ns)
{
    MF_ASSERT(call->method->kind != MF_RPC_UNARY);
    if (count > (size_t)MF_MESSAGE_BYTES_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "a message of %zu bytes; at most %lld may be sent",
                             count, MF_MESSAGE_BYTES_MAX);
    }
    pthread_mutex_lock(&call->lock);
    enum mf_status status = wait_for_room_locked(call, count, until_ns);
    if (status == MF_STATUS_OK) {
        put_locked(call, bytes, count);
    }
    pthread_mutex_unlock(&call->lock);
    return status;
}

enum mf_status mf_rpc_call_send(struct mf_rpc_call *call, const uint8_t *bytes, size_t count)
{
    return send_until(call, bytes, count, 0);
}

enum mf_status mf_rpc_call_send_wait(struct mf_rpc_call *call, const uint8_t *bytes, size_t count,
                                     int64_t timeout_ms)
{
    int64_t until_ns = timeout_ms < 0 ? INT64_MAX : mf_rpc_call_now_ns() + timeout_ms * NS_PER_MS;
    return send_until(call, bytes, count, until_ns);
}

void mf_rpc_call_reply(struct mf_rpc_call *call, const uint8_t *bytes, size_t count)
{
    MF_ASSERT(call->method->kind == MF_RPC_UNARY);
    pthread_mutex_lock(&call->lock);
    if (end_locked(call, NULL)) {
        call->reply = copy_bytes(bytes, count);
        mf_rpc_call_pump(call);
    }
    pthread_mutex_unlock(&call->lock);
}

void mf_rpc_call_finish(struct mf_rpc_call *call)
{
    MF_ASSERT(call->method->kind != MF_RPC_UNARY);
    pthread_mutex_lock(&call->lock);
    if (end_locked(call, NULL)) {
        mf_rpc_call_pump(call);
    }
    pthread_mutex_unlock(&call->lock);
}

void mf_rpc_call_fail(struct mf_rpc_call *call, const struct mf_error *error)
{
    pthread_mutex_lock(&call->lock);
    if (end_locked(call, error)) {
        mf_rpc_call_pump(call);
    }
    pthread_mutex_unlock(&call->lock);
}

bool mf_rpc_call_cancelled(struct mf_rpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    bool cancelled = call->cancelled || call->broken;
    pthread_mutex_unlock(&call->lock);
    return cancelled;
}

enum mf_status mf_rpc_call_check(struct mf_rpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    enum mf_status status = stop_reason_locked(call);
    pthread_mutex_unlock(&call->lock);
    return status;
}

void mf_rpc_call_on_cancel(struct mf_rpc_call *call, mf_rpc_cancel_callback *callback,
                           void *context)
{
    pthread_mutex_lock(&call->lock);
    bool now = callback != NULL && call->cancelled && !call->ended;
    call->on_cancel = now ? NULL : callback;
    call->on_cancel_context = context;
    while (callback == NULL && call->on_cancel_running &&
           !pthread_equal(call->on_cancel_thread, pthread_self())) {
        pthread_cond_wait(&call->changed, &call->lock);
    }
    pthread_mutex_unlock(&call->lock);
    if (now) {
        callback(call, context);
    }
}

int64_t mf_rpc_call_remaining_ns(struct mf_rpc_call *call)
{
    if (call->deadline_ns == INT64_MAX) {
        return INT64_MAX;
    }
    int64_t left_ns = call->deadline_ns - mf_rpc_call_now_ns();
    return left_ns > 0 ? left_ns : 0;
}

const struct mf_peer *mf_rpc_call_peer(const struct mf_rpc_call *call)
{
    return &call->peer;
}

const char *mf_rpc_call_path(const struct mf_rpc_call *call)
{
    return call->path;
}
