/*
 * What the files rpc*.c share: the server, the call, and the calls' events.
 *
 * One completion queue, polled by one thread, on which all events of all calls come. A call's lock
 * guards its state, because batches are also started by whoever sends or ends it. gRPC's own call
 * object is used only under that lock and only until the call is `closed`: from then on no batch
 * starts, so that the queue may be shut down once every call has retired.
 *
 * Life of a struct mf_rpc_call: armed (waiting for a call) -> live (NEW came) -> closed (CLOSE
 * came)
 * -> retired (no event outstanding; gRPC's objects freed) -> freed once no hold is left.
 */
#ifndef MF_SERVER_RPC_INTERNAL_H
#define MF_SERVER_RPC_INTERNAL_H

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <pthread.h>
#include <stdatomic.h>

#include "core/limits.h"
#include "server/rpc.h"

struct mf_rpc_pool;

enum mf_rpc_event {
    MF_RPC_EVENT_NEW,
    MF_RPC_EVENT_CLOSE,
    MF_RPC_EVENT_RECEIVE,
    MF_RPC_EVENT_SEND,
    MF_RPC_EVENT_FINISH,
    MF_RPC_EVENT_COUNT
};

/* What gRPC gives back with an event. */
struct mf_rpc_tag {
    enum mf_rpc_event event;
    struct mf_rpc_call *call;
};

struct mf_rpc_call {
    struct mf_rpc_server *server;       /* valid until retired */
    const struct mf_rpc_method *method; /* NULL while armed, and for an unknown path */
    struct mf_rpc_tag tags[MF_RPC_EVENT_COUNT];

    /* Written by gRPC at any time between the start of a batch and its event. */
    grpc_call *core;
    grpc_call_details details;
    grpc_metadata_array metadata;
    grpc_byte_buffer *received;
    int close_cancelled;

    /* Fixed once the call is live. */
    struct mf_peer peer;
    char path[MF_NAME_MAX];
    int64_t deadline_ns; /* of CLOCK_MONOTONIC; INT64_MAX = none */
    int64_t began_ns;

    grpc_slice request; /* owned by the thread that runs the handler */

    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    int holds;
    bool request_end; /* BIDI: the handler has been, or is being, told that all was said */
    int events_out;   /* batches whose event has not come */
    bool closed, retired, cancelled;
    bool broken;      /* a message did not go out; CLOSE will follow */
    bool ended;       /* reply, finish or fail was called */
    bool status_sent; /* the batch with the status was started */
    bool metadata_sent;
    bool sending;   /* a message is with gRPC */
    bool receiving; /* BIDI: a receive is out, or its handler runs */
    grpc_byte_buffer *queue[MF_STREAM_QUEUE_MAX];
    size_t queue_first, queue_count, queue_bytes;
    grpc_byte_buffer *reply;
    struct mf_error *error; /* NULL = ended well */
    mf_rpc_cancel_callback *on_cancel;
    void *on_cancel_context;
    bool on_cancel_running;
    pthread_t on_cancel_thread;
};

/* rpc.c: the only place that knows gRPC's status codes. */
grpc_status_code mf_rpc_code(enum mf_status status);

/* rpc_call.c: a call as its handlers see it. */
/* One more hold, for running a request; `end` = the run that tells that all was said. */
void mf_rpc_call_begin_run(struct mf_rpc_call *call, bool end);
/* Starts what can go out next: a queued message, or the status. Under the call's lock. */
void mf_rpc_call_pump(struct mf_rpc_call *call);
/* Frees the call; it has no hold and no event outstanding. */
void mf_rpc_call_free(struct mf_rpc_call *call);
int64_t mf_rpc_call_now_ns(void);

/* rpc_event.c: a call as gRPC sees it. On the completion-queue thread, but for receive. */
struct mf_rpc_call *mf_rpc_event_make(struct mf_rpc_server *server);
/* The first thing of a live call: fills its fixed part, waits for its CLOSE. */
void mf_rpc_event_begin(struct mf_rpc_call *call, struct mf_listener *listener);
/* Starts the receive of the next request if the call is ready for one. Any thread with a hold. */
void mf_rpc_event_receive(struct mf_rpc_call *call);
/* Handles every event but NEW; true when the call has retired: it may be gone then. */
bool mf_rpc_event_handle(struct mf_rpc_call *call, enum mf_rpc_event event, bool ok);
/* Frees gRPC's part of a call that is armed or closed, and the call if nobody holds it. */
void mf_rpc_event_retire(struct mf_rpc_call *call);

/* rpc_run.c: from a received request to the handler. */
/* The request came (NULL: the client has said all): checks it and runs the handler somewhere. */
void mf_rpc_run_request(struct mf_rpc_call *call, grpc_byte_buffer *buffer);

/* rpc_server.c */
struct mf_rpc_pool *mf_rpc_server_pool(struct mf_rpc_server *server);

/* rpc_pool.c: threads and a bounded queue of jobs. */
typedef void mf_rpc_job(void *argument);
enum mf_status mf_rpc_pool_open(int threads, int jobs_max, struct mf_rpc_pool **out) MF_MUST_USE;
/* MF_STATUS_BUSY with reason WORKERS_BUSY and numbers when `jobs_max` wait. */
enum mf_status mf_rpc_pool_put(struct mf_rpc_pool *pool, mf_rpc_job *job,
                               void *argument) MF_MUST_USE;
/* Runs what waits, joins the threads, frees. */
void mf_rpc_pool_close(struct mf_rpc_pool *pool);

#endif
