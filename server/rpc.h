/*
 * RPC over the gRPC C core: calls with bytes in and bytes out, and nothing of gRPC in sight.
 *
 * What: a server of methods, given as tables; one thread polls gRPC's completion queue, MF_WORKERS
 *   threads run handlers. A handler may finish its call later and from any thread.
 * Who calls it: the service table and handlers (server/), health.c, reflection.c, memferryd.
 * Owner: the server is open/close. A call belongs to the RPC layer; a handler borrows it until it
 *   returns, or for as long as it holds it (mf_rpc_call_hold). Request bytes are good until the
 *   handler returns; bytes given to send and reply are copied.
 * Thread: server functions from the thread that opened it; mf_rpc_call_* from any thread.
 * Fails: as said at each function; a failed call never takes the server with it.
 *
 * Life of a server:
 *     mf_rpc_server_open(&options, &server)
 *     mf_health_open(server, ...), mf_reflection_open(server, ...), mf_rpc_server_add(server, ...)
 *     mf_rpc_server_start(server)
 *     mf_rpc_server_listen(server, "unix:/path", ...)    any number of times
 *     mf_rpc_server_drain(server, grace_ms)
 *     mf_rpc_server_close(server)
 * Only the tables handed to add, and the contexts in them, must outlive close.
 */
#ifndef MF_SERVER_RPC_H
#define MF_SERVER_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/address.h"
#include "core/status.h"
#include "server/listener.h"

struct mf_rpc_server;
struct mf_rpc_call;

/* Bytes that may wait for a slow reader of one stream, besides MF_STREAM_QUEUE_MAX messages. */
#define MF_RPC_STREAM_BYTES_MAX (2 * MF_MESSAGE_BYTES_MAX)

enum mf_rpc_kind {
    MF_RPC_UNARY,         /* one request, ended by mf_rpc_call_reply() or _fail() */
    MF_RPC_SERVER_STREAM, /* one request, any number of _send(), then _finish() or _fail() */
    MF_RPC_BIDI,          /* the handler runs once for each request, one at a time, and at last with
                             `request` NULL (the client has said all), when it must end the call */
};

/*
 * Runs on a worker, or on the completion-queue thread for an `immediate` method. To answer later,
 * it takes mf_rpc_call_hold(call) before it returns. A handler that returns with the call neither
 * ended nor held fails it with INTERNAL (but not between requests of a BIDI call).
 */
typedef void mf_rpc_handler(struct mf_rpc_call *call, const uint8_t *request, size_t bytes,
                            void *context);

/* Runs first, on the completion-queue thread, and must not block: true = it has ended the call,
 * false = the handler is to run. For answers that are at hand. */
typedef bool mf_rpc_at_once(struct mf_rpc_call *call, const uint8_t *request, size_t bytes,
                            void *context);

struct mf_rpc_method {
    const char *path; /* "/memferry.v1.PlanService/GetPlan" */
    enum mf_rpc_kind kind;
    bool immediate;           /* the handler never blocks, computes or waits: saves a thread switch,
                                 and answers while all workers are busy */
    size_t request_bytes_max; /* 0 = MF_MESSAGE_BYTES_MAX; more is INVALID, REQUEST_TOO_LARGE */
    mf_rpc_handler *handler;
    void *context;
    mf_rpc_at_once *at_once; /* NULL = none; not for BIDI */
};

/* Zero means the default in brackets. */
struct mf_rpc_options {
    int workers;         /* [MF_WORKERS] */
    int calls_max;       /* in flight [MF_CALLS_MAX] */
    int queue_max;       /* calls waiting for a worker [MF_CALLS_MAX / 4] */
    int connections_max; /* [MF_CONNECTIONS_MAX] */
};

/* Once a process, before anything else of this file (open calls it too): takes over gRPC's log,
 * tunes malloc for large messages, raises the limit of file descriptors, ignores SIGPIPE. */
void mf_rpc_init(void);

enum mf_status mf_rpc_server_open(const struct mf_rpc_options *options,
                                  struct mf_rpc_server **out) MF_MUST_USE;
/* Before start. Paths must be new; a path twice is a programmer's error. Borrows `methods`. */
void mf_rpc_server_add(struct mf_rpc_server *server, const struct mf_rpc_method *methods,
                       size_t count);
/* `hook` runs on the draining thread when drain begins, before calls are refused. Before start; at
 * most 8 of them. */
void mf_rpc_server_on_drain(struct mf_rpc_server *server, void (*hook)(void *context),
                            void *context);
enum mf_status mf_rpc_server_start(struct mf_rpc_server *server) MF_MUST_USE;
/* "unix:/path" or "host:port" (0 = any free port); see mf_listener_add(). `bound` may be NULL. */
enum mf_status mf_rpc_server_listen(struct mf_rpc_server *server, const char *address,
                                    const struct mf_listener_options *options,
                                    char *bound) MF_MUST_USE;
/* Stops listening and refuses new calls, lets the running ones finish for `grace_ms`, cancels the
 * rest, and returns when gRPC is quiet. Calls still held stay valid, as cancelled ones. */
void mf_rpc_server_drain(struct mf_rpc_server *server, int64_t grace_ms);
/* Drains without grace if that was not done, waits for handlers to return, frees. NULL is nothing.
 * Calls that are held may outlive it. */
void mf_rpc_server_close(struct mf_rpc_server *server);
/* Calls in flight now. */
int mf_rpc_server_calls(struct mf_rpc_server *server);
/* The i-th path, NULL past the end; sorted by path once started. For reflection. */
const char *mf_rpc_server_method(const struct mf_rpc_server *server, size_t index);

/* Keeps the call valid after the handler returns, until release. Each hold needs one release;
 * releasing the last one of a call that was not ended fails it with INTERNAL. */
void mf_rpc_call_hold(struct mf_rpc_call *call);
void mf_rpc_call_release(struct mf_rpc_call *call);

/*
 * Queues one message of a stream; never blocks. MF_STATUS_BUSY: the reader is slow and the queue is
 * full (messages or bytes): nothing was queued, drop or merge it. MF_STATUS_CANCELLED or _DEADLINE:
 * nobody listens any more, stop. MF_STATUS_INVALID: larger than MF_MESSAGE_BYTES_MAX.
 */
enum mf_status mf_rpc_call_send(struct mf_rpc_call *call, const uint8_t *bytes,
                                size_t count) MF_MUST_USE;
/* The same, but waits up to `timeout_ms` for room (-1 = as long as the call lives), then
 * MF_STATUS_DEADLINE. For bulk streams on a worker; never from an `immediate` handler. */
enum mf_status mf_rpc_call_send_wait(struct mf_rpc_call *call, const uint8_t *bytes, size_t count,
                                     int64_t timeout_ms) MF_MUST_USE;

/* These end the call; the first one counts, later ones and those after a cancel do nothing. Queued
 * messages are delivered first. reply is for UNARY, finish for the others. */
void mf_rpc_call_reply(struct mf_rpc_call *call, const uint8_t *bytes, size_t count);
void mf_rpc_call_finish(struct mf_rpc_call *call);
void mf_rpc_call_fail(struct mf_rpc_call *call, const struct mf_error *error);

/* True when the client has cancelled or gone, the deadline has passed, or the server drains. */
bool mf_rpc_call_cancelled(struct mf_rpc_call *call);
/* MF_STATUS_OK, or why to stop (MF_STATUS_CANCELLED, MF_STATUS_DEADLINE) with its text set. */
enum mf_status mf_rpc_call_check(struct mf_rpc_call *call) MF_MUST_USE;
/*
 * `callback` runs once when the call is cancelled before it was ended: on the completion-queue
 * thread, so it must not block, or at once when that has happened already. NULL takes it back: once
 * this has returned it does not run, and is not running (unless called from within it). Needs a
 * hold, which the callback may release.
 */
typedef void mf_rpc_cancel_callback(struct mf_rpc_call *call, void *context);
void mf_rpc_call_on_cancel(struct mf_rpc_call *call, mf_rpc_cancel_callback *callback,
                           void *context);
/* Until the client's deadline; 0 when it has passed, INT64_MAX when there is none. */
int64_t mf_rpc_call_remaining_ns(struct mf_rpc_call *call);
/* Borrowed; as long as the call. */
const struct mf_peer *mf_rpc_call_peer(const struct mf_rpc_call *call);
const char *mf_rpc_call_path(const struct mf_rpc_call *call);

#endif
