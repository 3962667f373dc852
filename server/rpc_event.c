/* A call as gRPC sees it: its events, from NEW to retirement. See rpc_internal.h. */
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "server/rpc_internal.h"

#define NS_PER_S 1000000000ll
#define PEER_PREFIX "fd:"

struct mf_rpc_call *mf_rpc_event_make(struct mf_rpc_server *server)
{
    struct mf_rpc_call *call = calloc(1, sizeof(*call));
    MF_ASSERT(call != NULL);
    call->server = server;
    for (int i = 0; i < MF_RPC_EVENT_COUNT; i++) {
        call->tags[i] = (struct mf_rpc_tag){(enum mf_rpc_event)i, call};
    }
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    call->request = grpc_empty_slice();
    pthread_mutex_init(&call->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&call->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return call;
}

static void drop_queue_locked(struct mf_rpc_call *call)
{
    while (call->queue_count > 0) {
        grpc_byte_buffer_destroy(call->queue[call->queue_first]);
        call->queue_first = (call->queue_first + 1) % MF_STREAM_QUEUE_MAX;
        call->queue_count--;
    }
    call->queue_bytes = 0;
    pthread_cond_broadcast(&call->changed);
}

void mf_rpc_event_retire(struct mf_rpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    MF_ASSERT(call->events_out == 0 && !call->retired);
    drop_queue_locked(call);
    if (call->reply != NULL) {
        grpc_byte_buffer_destroy(call->reply);
        call->reply = NULL;
    }
    if (call->received != NULL) {
        grpc_byte_buffer_destroy(call->received);
        call->received = NULL;
    }
    grpc_metadata_array_destroy(&call->metadata);
    grpc_call_details_destroy(&call->details);
    if (call->core != NULL) {
        grpc_call_unref(call->core);
        call->core = NULL;
    }
    call->retired = true;
    bool gone = call->holds == 0;
    pthread_mutex_unlock(&call->lock);
    if (gone) {
        mf_rpc_call_free(call);
    }
}

static void find_peer(struct mf_rpc_call *call, struct mf_listener *listener)
{
    char *peer = grpc_call_get_peer(call->core);
    int number = -1;
    if (strncmp(peer, PEER_PREFIX, strlen(PEER_PREFIX)) == 0) {
        char *end = NULL;
        long parsed = strtol(peer + strlen(PEER_PREFIX), &end, 10);
        number = *end == '\0' && parsed >= 0 && parsed <= INT_MAX ? (int)parsed : -1;
    }
    mf_listener_peer(listener, number, &call->peer);
    gpr_free(peer);
}

static int64_t deadline_ns(gpr_timespec deadline)
{
    deadline = gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC);
    if (deadline.tv_sec >= INT64_MAX / NS_PER_S) {
        return INT64_MAX;
    }
    return deadline.tv_sec * NS_PER_S + deadline.tv_nsec;
}

void mf_rpc_event_begin(struct mf_rpc_call *call, struct mf_listener *listener)
{
    size_t bytes = GRPC_SLICE_LENGTH(call->details.method);
    bytes = bytes < sizeof(call->path) ? bytes : sizeof(call->path) - 1;
    memcpy(call->path, GRPC_SLICE_START_PTR(call->details.method), bytes);
    call->path[bytes] = '\0';
    call->deadline_ns = deadline_ns(call->details.deadline);
    call->began_ns = mf_rpc_call_now_ns();
    find_peer(call, listener);

    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    op.data.recv_close_on_server.cancelled = &call->close_cancelled;
    pthread_mutex_lock(&call->lock);
    call->events_out++;
    grpc_call_error error =
        grpc_call_start_batch(call->core, &op, 1, &call->tags[MF_RPC_EVENT_CLOSE], NULL);
    MF_ASSERT(error == GRPC_CALL_OK);
    pthread_mutex_unlock(&call->lock);
}

void mf_rpc_event_receive(struct mf_rpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    /* A client that asks without reading the answers is not read from either. */
    bool ready = !call->closed && !call->ended && !call->receiving && !call->request_end &&
                 !call->sending && call->queue_count == 0;
    if (ready) {
        grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
        op.data.recv_message.recv_message = &call->received;
        call->receiving = true;
        call->events_out++;
        grpc_call_error error =
            grpc_call_start_batch(call->core, &op, 1, &call->tags[MF_RPC_EVENT_RECEIVE], NULL);
        MF_ASSERT(error == GRPC_CALL_OK);
    }
    pthread_mutex_unlock(&call->lock);
}

static void on_close(struct mf_rpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    call->closed = true;
    call->cancelled = call->close_cancelled != 0;
    drop_queue_locked(call);
    bool tell = call->cancelled && !call->ended;
    mf_rpc_cancel_callback *callback = tell ? call->on_cancel : NULL;
    void *context = call->on_cancel_context;
    call->on_cancel = NULL;
    call->on_cancel_running = callback != NULL;
    call->on_cancel_thread = pthread_self();
    pthread_mutex_unlock(&call->lock);
    if (callback == NULL) {
        return;
    }
    callback(call, context);
    pthread_mutex_lock(&call->lock);
    call->on_cancel_running = false;
    pthread_cond_broadcast(&call->changed);
    pthread_mutex_unlock(&call->lock);
}

static void on_receive(struct mf_rpc_call *call, bool ok)
{
    grpc_byte_buffer *buffer = call->received;
    call->received = NULL; /* Before another receive can start and write it. */
    if (ok) {
        mf_rpc_run_request(call, buffer);
    } else if (buffer != NULL) {
        grpc_byte_buffer_destroy(buffer);
    }
}

static void on_send(struct mf_rpc_call *call, bool ok)
{
    pthread_mutex_lock(&call->lock);
    call->sending = false;
    if (!ok) {
        call->broken = true;
        drop_queue_locked(call);
    }
    mf_rpc_call_pump(call);
    pthread_cond_broadcast(&call->changed);
    pthread_mutex_unlock(&call->lock);
    if (call->method->kind == MF_RPC_BIDI) {
        mf_rpc_event_receive(call);
    }
}

static void log_end(const struct mf_rpc_call *call)
{
    const char *status = call->cancelled       ? "cancelled"
                         : call->error == NULL ? "ok"
                                               : mf_status_name(call->error->status);
    enum mf_log_level level = call->error != NULL && call->error->status == MF_STATUS_INTERNAL
                                  ? MF_LOG_WARN
                                  : MF_LOG_DEBUG;
    mf_log(level, "rpc %s from %s: %s after %" PRId64 " us%s%s", call->path, call->peer.text,
           status, (mf_rpc_call_now_ns() - call->began_ns) / 1000, call->error != NULL ? ": " : "",
           call->error != NULL ? call->error->text : "");
}

bool mf_rpc_event_handle(struct mf_rpc_call *call, enum mf_rpc_event event, bool ok)
{
    if (event == MF_RPC_EVENT_CLOSE) {
        on_close(call);
    } else if (event == MF_RPC_EVENT_RECEIVE) {
        on_receive(call, ok);
    } else if (event == MF_RPC_EVENT_SEND) {
        on_send(call, ok);
    }
    /* Only now is this event over: what it has started counts already. */
    pthread_mutex_lock(&call->lock);
    call->events_out--;
    bool retires = call->closed && call->events_out == 0;
    if (retires) {
        log_end(call);
    }
    pthread_mutex_unlock(&call->lock);
    if (retires) {
        mf_rpc_event_retire(call);
    }
    return retires;
}
