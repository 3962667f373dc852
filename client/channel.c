/* See channel.h. Every call has a completion queue of its own, from which events are plucked by
 * tag: so threads share a channel without a lock, and none waits for another's events. */
#include "client/channel.h"

#include <ctype.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/address.h"
#include "core/limits.h"
#include "core/log.h"
#include "proto/wire.h"

#define POLL_MS 50
#define BACKOFF_FIRST_MS 100
#define BACKOFF_LAST_MS 1000
#define DETAILS_KEY "grpc-status-details-bin"
#define OPS_MAX 6

struct mf_channel {
    grpc_channel *core;
    const volatile sig_atomic_t *cancel;
    char address[MF_ADDRESS_TEXT_MAX];
};

/* One call under way, unary or stream. */
struct call {
    struct mf_channel *channel;
    grpc_call *core;
    grpc_completion_queue *queue;
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *received;
    grpc_status_code code;
    grpc_slice text;
    bool interrupted; /* by the channel's flag */
};

struct mf_channel_stream {
    struct call call;
    bool done;
    struct mf_error end; /* status OK = ended well; valid when done */
};

/* Tags of a stream; only their addresses count. */
static const char tag_send[1], tag_receive[1], tag_status[1];

static void log_line(gpr_log_func_args *line)
{
    mf_log_debug("grpc %s:%d: %s", line->file, line->line, line->message);
}

static void quiet_log(void)
{
    gpr_set_log_function(log_line);
}

static grpc_arg int_arg(const char *name, int value)
{
    grpc_arg arg = {.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)name};
    arg.value.integer = value;
    return arg;
}

/* The address as gRPC's target: a URI, so a path must be percent-encoded. */
static void make_target(const struct mf_address *address, char *out, size_t size)
{
    char text[MF_ADDRESS_TEXT_MAX];
    if (address->kind == MF_ADDRESS_TCP) {
        snprintf(out, size, "dns:///%s", mf_address_print(address, text));
        return;
    }
    size_t used = (size_t)snprintf(out, size, "unix:");
    for (const char *at = address->path; *at != '\0' && used + 4 < size; at++) {
        bool plain = isalnum((unsigned char)*at) || strchr("/-._~", *at) != NULL;
        used +=
            (size_t)snprintf(out + used, size - used, plain ? "%c" : "%%%02X", (unsigned char)*at);
    }
}

enum mf_status mf_channel_open(const char *address, struct mf_channel **out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char text[MF_ADDRESS_TEXT_MAX];
    struct mf_address parsed;
    if (address == NULL) {
        MF_TRY(mf_address_default(true, text));
        address = text;
    }
    MF_TRY(mf_address_parse(address, &parsed));
    pthread_once(&once, quiet_log);
    grpc_init();

    grpc_arg args[] = {
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, MF_MESSAGE_BYTES_MAX),
        int_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1),
        int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        int_arg(GRPC_ARG_ENABLE_RETRIES, 0),
        int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, BACKOFF_FIRST_MS),
        int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, BACKOFF_FIRST_MS),
        int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, BACKOFF_LAST_MS),
    };
    const grpc_channel_args list = {sizeof(args) / sizeof(args[0]), args};
    char target[16 + 3 * MF_ADDRESS_TEXT_MAX];
    make_target(&parsed, target, sizeof(target));
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    struct mf_channel *channel = calloc(1, sizeof(*channel));
    MF_ASSERT(channel != NULL);
    channel->core = grpc_channel_create(target, credentials, &list);
    grpc_channel_credentials_release(credentials);
    mf_address_print(&parsed, channel->address);
    *out = channel;
    return MF_STATUS_OK;
}

void mf_channel_close(struct mf_channel *channel)
{
    if (channel == NULL) {
        return;
    }
    grpc_channel_destroy(channel->core);
    free(channel);
    grpc_shutdown();
}

const char *mf_channel_address(const struct mf_channel *channel)
{
    return channel->address;
}

void mf_channel_set_cancel(struct mf_channel *channel, const volatile sig_atomic_t *flag)
{
    channel->cancel = flag;
}

static void call_begin(struct call *call, struct mf_channel *channel, const char *path,
                       int64_t deadline_ms)
{
    gpr_timespec deadline = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    if (deadline_ms > 0) {
        deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                gpr_time_from_millis(deadline_ms, GPR_TIMESPAN));
    }
    *call = (struct call){.channel = channel, .text = grpc_empty_slice()};
    grpc_metadata_array_init(&call->initial);
    grpc_metadata_array_init(&call->trailing);
    call->queue = grpc_completion_queue_create_for_pluck(NULL);
    call->core =
        grpc_channel_create_call(channel->core, NULL, GRPC_PROPAGATE_DEFAULTS, call->queue,
                                 grpc_slice_from_copied_string(path), NULL, deadline, NULL);
}

/* Every tag has been plucked. */
static void call_end(struct call *call)
{
    grpc_metadata_array_destroy(&call->initial);
    grpc_metadata_array_destroy(&call->trailing);
    grpc_slice_unref(call->text);
    if (call->received != NULL) {
        grpc_byte_buffer_destroy(call->received);
    }
    grpc_call_unref(call->core);
    grpc_completion_queue_shutdown(call->queue);
    grpc_completion_queue_destroy(call->queue);
}

static void start(struct call *call, const grpc_op *ops, size_t count, const void *tag)
{
    grpc_call_error error =
        grpc_call_start_batch(call->core, ops, count, (void *)(uintptr_t)tag, NULL);
    MF_ASSERT(error == GRPC_CALL_OK);
}

/* Waits for the event of `tag`, cancelling the call when the channel's flag is set meanwhile. */
static bool pluck(struct call *call, const void *tag)
{
    const volatile sig_atomic_t *flag = call->channel->cancel;
    for (;;) {
        bool polls = flag != NULL && !call->interrupted;
        if (polls && __atomic_load_n(flag, __ATOMIC_RELAXED) != 0) {
            grpc_call_cancel(call->core, NULL);
            call->interrupted = true;
            polls = false;
        }
        gpr_timespec until = polls ? gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                                  gpr_time_from_millis(POLL_MS, GPR_TIMESPAN))
                                   : gpr_inf_future(GPR_CLOCK_MONOTONIC);
        grpc_event event =
            grpc_completion_queue_pluck(call->queue, (void *)(uintptr_t)tag, until, NULL);
        if (event.type == GRPC_OP_COMPLETE) {
            return event.success != 0;
        }
    }
}

static enum mf_status status_of(grpc_status_code code)
{
    static const struct {
        grpc_status_code code;
        enum mf_status status;
    } table[] = {
        {GRPC_STATUS_OK, MF_STATUS_OK},
        {GRPC_STATUS_CANCELLED, MF_STATUS_CANCELLED},
        {GRPC_STATUS_INVALID_ARGUMENT, MF_STATUS_INVALID},
        {GRPC_STATUS_OUT_OF_RANGE, MF_STATUS_INVALID},
        {GRPC_STATUS_DEADLINE_EXCEEDED, MF_STATUS_DEADLINE},
        {GRPC_STATUS_NOT_FOUND, MF_STATUS_NOT_FOUND},
        {GRPC_STATUS_ALREADY_EXISTS, MF_STATUS_EXISTS},
        {GRPC_STATUS_PERMISSION_DENIED, MF_STATUS_DENIED},
        {GRPC_STATUS_UNAUTHENTICATED, MF_STATUS_DENIED},
        {GRPC_STATUS_RESOURCE_EXHAUSTED, MF_STATUS_BUSY},
        {GRPC_STATUS_ABORTED, MF_STATUS_BUSY},
        {GRPC_STATUS_UNIMPLEMENTED, MF_STATUS_UNSUPPORTED},
        {GRPC_STATUS_FAILED_PRECONDITION, MF_STATUS_UNSUPPORTED},
        {GRPC_STATUS_UNAVAILABLE, MF_STATUS_UNAVAILABLE},
        {GRPC_STATUS_DATA_LOSS, MF_STATUS_CORRUPT},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].code == code) {
            return table[i].status;
        }
    }
    return MF_STATUS_INTERNAL;
}

/* How the call ended, once its status has come. */
static void read_end(const struct call *call, struct mf_error *out)
{
    *out = (struct mf_error){.status = status_of(call->code)};
    if (out->status == MF_STATUS_OK) {
        return;
    }
    size_t bytes = GRPC_SLICE_LENGTH(call->text);
    bytes = bytes < sizeof(out->text) ? bytes : sizeof(out->text) - 1;
    memcpy(out->text, GRPC_SLICE_START_PTR(call->text), bytes);
    out->text[bytes] = '\0';
    for (size_t i = 0; i < call->trailing.count; i++) {
        const grpc_metadata *pair = &call->trailing.metadata[i];
        if (grpc_slice_str_cmp(pair->key, DETAILS_KEY) == 0 &&
            mf_wire_error_decode(GRPC_SLICE_START_PTR(pair->value), GRPC_SLICE_LENGTH(pair->value),
                                 out)) {
            return; /* The daemon's own words. */
        }
    }
    char reported[MF_ERROR_TEXT_MAX / 2];
    snprintf(reported, sizeof(reported), "%.*s", (int)sizeof(reported) - 1, out->text);
    if (call->interrupted) {
        out->status = MF_STATUS_CANCELLED;
        snprintf(out->text, sizeof(out->text), "interrupted");
    } else if (out->status == MF_STATUS_UNAVAILABLE) {
        snprintf(out->reason, sizeof(out->reason), "NO_DAEMON");
        snprintf(out->text, sizeof(out->text),
                 "no memferry daemon answers at %s; start one with `memferry serve` (%s)",
                 call->channel->address, reported);
    } else if (out->status == MF_STATUS_DEADLINE) {
        snprintf(out->text, sizeof(out->text), "no answer from %s within the deadline (%s)",
                 call->channel->address, reported);
    }
}

static void take_bytes(grpc_byte_buffer *buffer, uint8_t **out, size_t *count)
{
    size_t total = grpc_byte_buffer_length(buffer);
    *out = malloc(total > 0 ? total : 1);
    MF_ASSERT(*out != NULL);
    *count = 0;
    grpc_byte_buffer_reader reader;
    grpc_slice *slice = NULL;
    if (grpc_byte_buffer_reader_init(&reader, buffer)) {
        while (grpc_byte_buffer_reader_peek(&reader, &slice)) {
            memcpy(*out + *count, GRPC_SLICE_START_PTR(*slice), GRPC_SLICE_LENGTH(*slice));
            *count += GRPC_SLICE_LENGTH(*slice);
        }
        grpc_byte_buffer_reader_destroy(&reader);
    }
}

/* Sending the request, and the headers of the answer: four operations. */
static size_t request_ops(struct call *call, grpc_byte_buffer *request, grpc_op *ops)
{
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    ops[1] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
    ops[1].data.send_message.send_message = request;
    ops[2] = (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    ops[3] = (grpc_op){.op = GRPC_OP_RECV_INITIAL_METADATA};
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &call->initial;
    return 4;
}

static grpc_op message_op(struct call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &call->received;
    return op;
}

static grpc_op status_op(struct call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    op.data.recv_status_on_client.trailing_metadata = &call->trailing;
    op.data.recv_status_on_client.status = &call->code;
    op.data.recv_status_on_client.status_details = &call->text;
    return op;
}

static grpc_byte_buffer *make_request(const uint8_t *bytes, size_t count)
{
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)bytes, count);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

enum mf_status mf_channel_call(struct mf_channel *channel, const char *path, const uint8_t *request,
                               size_t bytes, int64_t deadline_ms, uint8_t **reply,
                               size_t *reply_bytes)
{
    struct call call;
    grpc_op ops[OPS_MAX];
    *reply = NULL;
    *reply_bytes = 0;
    call_begin(&call, channel, path, deadline_ms);
    grpc_byte_buffer *buffer = make_request(request, bytes);
    size_t count = request_ops(&call, buffer, ops);
    ops[count++] = message_op(&call);
    ops[count++] = status_op(&call);
    start(&call, ops, count, tag_status);
    grpc_byte_buffer_destroy(buffer);
    pluck(&call, tag_status);

    struct mf_error end;
    read_end(&call, &end);
    if (end.status == MF_STATUS_OK && call.received != NULL) {
        take_bytes(call.received, reply, reply_bytes);
    } else if (end.status == MF_STATUS_OK) {
        end.status = MF_STATUS_INTERNAL;
        snprintf(end.text, sizeof(end.text), "%s: the daemon ended the call without an answer",
                 path);
    }
    call_end(&call);
    return end.status == MF_STATUS_OK ? MF_STATUS_OK : mf_status_restore(&end);
}

enum mf_status mf_channel_stream_open(struct mf_channel *channel, const char *path,
                                      const uint8_t *request, size_t bytes, int64_t deadline_ms,
                                      struct mf_channel_stream **out)
{
    struct mf_channel_stream *stream = calloc(1, sizeof(*stream));
    MF_ASSERT(stream != NULL);
    call_begin(&stream->call, channel, path, deadline_ms);
    grpc_op ops[OPS_MAX];
    grpc_byte_buffer *buffer = make_request(request, bytes);
    size_t count = request_ops(&stream->call, buffer, ops);
    start(&stream->call, ops, count, tag_send);
    grpc_byte_buffer_destroy(buffer);
    grpc_op op = status_op(&stream->call);
    start(&stream->call, &op, 1, tag_status);
    *out = stream;
    return MF_STATUS_OK;
}

/* Takes the events still out; the call has ended or is cancelled. */
static void stream_end(struct mf_channel_stream *stream)
{
    pluck(&stream->call, tag_status);
    pluck(&stream->call, tag_send);
    read_end(&stream->call, &stream->end);
    stream->done = true;
}

enum mf_status mf_channel_stream_next(struct mf_channel_stream *stream, uint8_t **reply,
                                      size_t *reply_bytes)
{
    *reply = NULL;
    *reply_bytes = 0;
    if (!stream->done) {
        grpc_op op = message_op(&stream->call);
        start(&stream->call, &op, 1, tag_receive);
        bool ok = pluck(&stream->call, tag_receive);
        grpc_byte_buffer *buffer = stream->call.received;
        stream->call.received = NULL;
        if (ok && buffer != NULL) {
            take_bytes(buffer, reply, reply_bytes);
            grpc_byte_buffer_destroy(buffer);
            return MF_STATUS_OK;
        }
        if (buffer != NULL) {
            grpc_byte_buffer_destroy(buffer);
        }
        stream_end(stream);
    }
    return stream->end.status == MF_STATUS_OK ? MF_STATUS_OK : mf_status_restore(&stream->end);
}

void mf_channel_stream_cancel(struct mf_channel_stream *stream)
{
    grpc_call_cancel(stream->call.core, NULL);
}

void mf_channel_stream_close(struct mf_channel_stream *stream)
{
    if (stream == NULL) {
        return;
    }
    if (!stream->done) {
        grpc_call_cancel(stream->call.core, NULL);
        stream_end(stream);
    }
    call_end(&stream->call);
    free(stream);
}
